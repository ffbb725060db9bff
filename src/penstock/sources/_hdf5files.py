"""The other files that an HDF5 file names: external links, external storage, and virtual datasets.

HDF5 opens them by itself, wherever they are. So a file from a stranger would make a program read any file of its user.
Those in the folder of the file are read, as detectors write them; others only if the user names their folder.
"""

import glob
import os
from collections.abc import Iterator
from typing import Any, Final

import h5py

from penstock.base._errors import SourceError
from penstock.base._trust import is_inside
from penstock.sources._listing import matching

_MOST_LINKS: Final = 100


def require_inside(file: h5py.File, name: str, folder: str | None) -> None:
    """Refuses an array whose values are in a file outside of a folder. Opens none that is outside.

    Args:
        file: The open file.
        name: The path of the array in it.
        folder: The folder; None for that of the file.

    Raises:
        SourceError: They are, or links lead in a circle.
    """
    path = os.path.abspath(file.filename)
    _Check(path, name, folder or os.path.dirname(path)).walk(file, name)


class _Check:
    def __init__(self, path: str, name: str, folder: str) -> None:
        self._path, self._name, self._folder = path, name, folder
        self._seen: set[tuple[str, str]] = set()
        self._link_count = 0

    def walk(self, file: h5py.File, name: str) -> None:
        """Follows a path, link by link, and looks at the array at its end."""
        key = os.path.realpath(file.filename), name
        if key in self._seen:
            return
        self._seen.add(key)
        item: Any = file["/"]
        rest = name.split("/")[::-1]
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            link = item.get(part, getlink=True) if isinstance(item, h5py.Group) else None
            if link is None:
                return  # it is missing, and a read says so
            if isinstance(link, h5py.ExternalLink):
                self._count_link()
                with self._opened(file, link.filename, "HDF5_EXT_PREFIX", "an external link") as other:
                    self.walk(other, "/".join([link.path, *rest[::-1]]))
                return
            if isinstance(link, h5py.SoftLink):
                self._count_link()
                item = file["/"] if link.path.startswith("/") else item
                rest += link.path.split("/")[::-1]
            else:
                item = item[part]
        if isinstance(item, h5py.Dataset):
            self._look(file, item)

    def _look(self, file: h5py.File, data: h5py.Dataset) -> None:
        for name, *_ in data.external or ():
            prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "")
            prefix = prefix.replace("${ORIGIN}", os.path.dirname(os.path.abspath(file.filename)))
            self._require(os.path.join(prefix, os.fsdecode(name)), "external storage")
        if not data.is_virtual:
            return
        for source in data.virtual_sources():
            if source.file_name == ".":
                self.walk(file, source.dset_name)
                continue
            for name in _named(file, source.file_name):
                with self._opened(file, name, "HDF5_VDS_PREFIX", "a virtual dataset") as other:
                    for each in [source.dset_name] if "%" not in source.dset_name else _arrays_in(other):
                        self.walk(other, each)

    def _opened(self, file: h5py.File, name: str, variable: str, kind: str) -> h5py.File:
        here = os.path.dirname(os.path.abspath(file.filename))
        folders = [*filter(None, os.environ.get(variable, "").split(os.pathsep)), here]
        found = next((path for path in (os.path.join(each, name) for each in folders) if os.path.exists(path)), None)
        # Where it is missing, HDF5 would look in other folders.
        self._require(found or os.path.join(os.sep, "(missing)", name), kind, name)
        return h5py.File(found, "r")

    def _require(self, path: str, kind: str, name: str | None = None) -> None:
        if not is_inside(path, [self._folder]):
            where = path if name is None or os.path.exists(path) else name
            raise SourceError(
                f"{self._name} in {self._path} has its values in {where} ({kind}), which is not in {self._folder}. A "
                "file that names others can make a program read any of them, so these are not opened. If you trust it, "
                "name a folder that has them: from_hdf5(path, files_in=folder)."
            )

    def _count_link(self) -> None:
        self._link_count += 1
        if self._link_count > _MOST_LINKS:
            raise SourceError(f"{self._name} in {self._path} is a link that leads in a circle.")


def _named(file: h5py.File, name: str) -> list[str]:
    """Returns the files that a name of a virtual dataset stands for: `%b` is the number of a block."""
    if "%b" not in name:
        return [name.replace("%%", "%")]
    here = os.path.dirname(os.path.abspath(file.filename))
    pattern = os.path.join(glob.escape(here), glob.escape(name).replace("%b", "*"))
    return matching(pattern) or [name]


def _arrays_in(file: h5py.File) -> Iterator[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return iter(found)
