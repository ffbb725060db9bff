"""The other files that an HDF5 file names: external links, external storage, and virtual datasets.

HDF5 opens them by itself, wherever they are. So a file from a stranger would make a program read any file of its user.
Those in the folder of the file are read, as detectors write them; others only if the user names their folder.

HDF5 also gives fill values, without an error, for a source of a virtual dataset that it cannot open, and zeros for the
bytes that external storage lacks. So each source is opened here before HDF5 needs it, and stays open: then no writer
locks it, and no limit of open files can stop HDF5. After each read, the state of the files says whether HDF5 could find
them: after a change, `OpenHdf5Source` reads again.
"""

import errno
import glob
import itertools
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final, final

import h5py
import numpy as np

from penstock.base._errors import SourceError
from penstock.base._trust import is_inside
from penstock.files._listing import matching
from penstock.memory._rows import Indices

_MOST_LINKS: Final = 100
_ANYWHERE: Final = os.sep
_BLOCK: Final = "\0"
"""Stands for a number in a name."""
_EVERY_ROW: Final = (0, sys.maxsize)


def require_inside(file: h5py.File, name: str, folder: str | None) -> None:
    """Refuses an array whose values are in a file outside of a folder, or are missing. Opens none that is outside.

    Args:
        file: The open file.
        name: The path of the array in it.
        folder: The folder; None for that of the file.

    Raises:
        SourceError: They are, or links lead in a circle.
    """
    OtherFiles(file, name, folder or os.path.dirname(os.path.abspath(file.filename))).close()


@final
class OtherFiles:
    """The other files that have the values of an array, held open.

    Args:
        file: The open file.
        name: The path of the array in it.
        folder: The folder which has them.

    Raises:
        SourceError: A file or an array in it is missing, too small, or elsewhere; or links lead in a circle.
    """

    def __init__(self, file: h5py.File, name: str, folder: str = _ANYWHERE) -> None:
        self._path, self._name, self._folder = os.path.abspath(file.filename), name, folder
        self._seen: dict[tuple[str, str], tuple[int, ...] | None] = {}
        self._link_count = 0
        self._is_nested = False
        self._states: dict[str, tuple[int, ...]] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._files: dict[str, h5py.File] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            self._walk(file, name)
            undo.pop_all()

    def __bool__(self) -> bool:
        return bool(self._states)

    def have_changed(self, rows: Indices) -> bool:
        """Whether a file that some rows need is another one than it was, or gone. Takes 2 microseconds for a file."""
        spans, rows = np.array(list(self._spans.values())), np.sort(rows)
        needed = np.searchsorted(rows, spans[:, 0]) < np.searchsorted(rows, spans[:, 1], "right")
        return any(_state(path) != self._states[path] for path in itertools.compress(self._spans, needed))

    def close(self) -> None:
        """Closes the files."""
        for each in self._files.values():
            each.close()

    def _walk(self, file: h5py.File, name: str) -> tuple[int, ...] | None:
        """Follows a path, link by link, and looks at the array at its end. Returns its shape; None if there is none."""
        key = os.path.realpath(file.filename), name
        if key in self._seen:
            return self._seen[key]
        self._seen[key] = None
        item: Any = file["/"]
        rest = name.split("/")[::-1]
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            link = item.get(part, getlink=True) if isinstance(item, h5py.Group) else None
            if link is None:
                return None
            if isinstance(link, h5py.ExternalLink):
                self._count_link()
                other = self._opened(file, link.filename, "HDF5_EXT_PREFIX", "an external link")
                self._seen[key] = self._walk(other, "/".join([link.path, *rest[::-1]]))
                return self._seen[key]
            if isinstance(link, h5py.SoftLink):
                self._count_link()
                item = file["/"] if link.path.startswith("/") else item
                rest += link.path.split("/")[::-1]
            else:
                item = item[part]
        if isinstance(item, h5py.Dataset):
            self._look(file, item)
            self._seen[key] = item.shape  # for an unlimited one HDF5 opens the files
        return self._seen[key]

    def _look(self, file: h5py.File, data: h5py.Dataset) -> None:
        if data.external:
            self._look_at_storage(file, data)
        if not data.is_virtual:
            return
        found = []
        is_outermost, self._is_nested = not self._is_nested, True
        for source in data.virtual_sources():
            for file_name, name in self._named(file, source):
                other = self._other(file, file_name, _span(source.vspace) if is_outermost else _EVERY_ROW)
                shape = self._walk(other, name)
                place = f"{name} of {other.filename} (a virtual dataset)"
                if shape is None:
                    raise self._fault(f"{place}, and there is no such array")
                found.append((place, shape, source))
        for place, shape, source in found:
            if not _holds(shape, source.src_space, data.shape, source.vspace):
                raise self._fault(f"{place}, which is {shape} and has not all of the values that are taken from it")

    def _other(self, file: h5py.File, name: str, span: tuple[int, int] = _EVERY_ROW) -> h5py.File:
        return file if name == "." else self._opened(file, name, "HDF5_VDS_PREFIX", "a virtual dataset", span)

    def _look_at_storage(self, file: h5py.File, data: h5py.Dataset) -> None:
        left = data.size * data.id.get_type().get_size()
        for name, offset, room in data.external:
            prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "")
            prefix = prefix.replace("${ORIGIN}", os.path.dirname(os.path.abspath(file.filename)))
            path = os.path.join(prefix, os.fsdecode(name))
            self._require(path, "external storage")
            self._states[path], self._spans[path] = _state(path), _EVERY_ROW
            here, there = offset + min(left, room), os.path.getsize(path)
            left -= min(left, room)
            if there < here:
                raise self._fault(f"{path} (external storage), which has {there:,} bytes of {here:,}")

    def _opened(
        self, file: h5py.File, name: str, variable: str, kind: str, span: tuple[int, int] = _EVERY_ROW
    ) -> h5py.File:
        here = os.path.dirname(os.path.abspath(file.filename))
        folders = [*filter(None, os.environ.get(variable, "").split(os.pathsep)), here]
        paths = [os.path.join(each, name) for each in folders]
        path = next(filter(os.path.exists, paths), paths[-1])  # where it is missing, HDF5 would look in other folders
        self._require(path, kind)
        if path not in self._files:
            self._states[path] = _state(path)
            try:
                self._files[path] = h5py.File(path, "r")
                os.close(os.open(path, os.O_RDONLY))  # HDF5 needs one more for a moment
            except OSError as error:
                cure = "It is open for writing elsewhere, or damaged, or no HDF5 file."
                if error.errno == errno.EMFILE:
                    cure = f"HDF5 needs a descriptor for each of them; allow more than {len(self._files)}: ulimit -n."
                raise self._fault(f"{path} ({kind}), which cannot be opened: {error}", cure) from error
        first, last = self._spans.get(path, span)
        self._spans[path] = min(first, span[0]), max(last, span[1])
        return self._files[path]

    def _require(self, path: str, kind: str) -> None:
        if not is_inside(path, [self._folder]):
            raise SourceError(
                f"{self._name} in {self._path} has its values in {path} ({kind}), which is not in {self._folder}. A "
                "file that names others can make a program read any of them, so these are not opened. If you trust it, "
                "name a folder that has them: from_hdf5(path, files_in=folder)."
            )
        if not os.path.exists(path):
            raise self._fault(f"{path} ({kind}), which is missing")

    def _fault(self, fact: str, cure: str = "Put them back, or write the file again.") -> SourceError:
        return SourceError(f"{self._name} in {self._path} has its values in {fact}. {cure}")

    def _count_link(self) -> None:
        self._link_count += 1
        if self._link_count > _MOST_LINKS:
            raise SourceError(f"{self._name} in {self._path} is a link that leads in a circle.")

    def _named(self, file: h5py.File, source: Any) -> Iterator[tuple[str, str]]:
        """Yields the files and arrays of a virtual dataset; in their names `%b` is the number of a block, from 0 on."""
        names = source.file_name, source.dset_name
        file_form, form = (re.sub("%[%b]", lambda found: {"%%": "%"}.get(found[0], _BLOCK), each) for each in names)
        count = 1
        if _BLOCK in file_form:
            file_form = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(file.filename)), file_form))
            count = self._count(file_form, matching("*".join(map(glob.escape, file_form.split(_BLOCK)))))
        elif _BLOCK in form:
            count = self._count(form.strip("/"), arrays_in(self._other(file, file_form)))
        for number in map(str, range(count)):
            yield file_form.replace(_BLOCK, number), form.replace(_BLOCK, number)

    def _count(self, form: str, found: Iterable[str]) -> int:
        """How many blocks there are."""
        numbered = re.compile("(0|[1-9][0-9]*)".join(map(re.escape, form.split(_BLOCK))))
        numbers = {int(match[1]) for match in map(numbered.fullmatch, found) if match}
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if missing < max(len(numbers), 1):  # HDF5 would end there
            raise self._fault(f"{form.replace(_BLOCK, '%b')} (a virtual dataset), of which number {missing} is missing")
        return missing


def _state(path: str) -> tuple[int, ...]:
    """The file at a path, and its state. A time of change (ctime) says also that it was elsewhere meanwhile."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _span(place: Any) -> tuple[int, int]:
    """The first and the last row of a place in a virtual dataset."""
    if place.get_select_type() != h5py.h5s.SEL_HYPERSLABS:
        return _EVERY_ROW
    if place.is_regular_hyperslab() and h5py.h5s.UNLIMITED in {*sum(place.get_regular_hyperslab()[2:], ())}:
        return _EVERY_ROW
    firsts, lasts = place.get_select_bounds()
    return firsts[0], lasts[0]


def _holds(shape: tuple[int, ...], taken: Any, whole: tuple[int, ...], place: Any) -> bool:
    """Whether an array has the values that are taken from it, for a place in a virtual dataset of the shape `whole`."""
    if taken.get_select_type() != h5py.h5s.SEL_HYPERSLABS:  # but all
        fixed = place.get_select_type() == h5py.h5s.SEL_HYPERSLABS and place.is_regular_hyperslab()
        counts = map(math.prod, zip(*place.get_regular_hyperslab()[2:], strict=True)) if fixed else [0]
        return math.prod(shape) >= math.prod(count for count in counts if count < h5py.h5s.UNLIMITED)
    if not taken.is_regular_hyperslab():
        ends = [last + 1 for last in taken.get_select_bounds()[1]]
    else:
        ends = [
            0 if h5py.h5s.UNLIMITED in (count, block) else first + (count - 1) * step + block
            for first, step, count, block in zip(*taken.get_regular_hyperslab(), strict=True)
        ]
    if len(ends) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
        return False
    return 0 not in ends or _open_count(shape, taken) >= _open_count(whole, place)


def _open_count(shape: tuple[int, ...], space: Any) -> int:
    """How many places a selection has along its unlimited axis in an array of a shape."""
    for size, first, step, count, block in zip(shape, *space.get_regular_hyperslab(), strict=True):
        if count == h5py.h5s.UNLIMITED:
            several, rest = divmod(max(0, size - first), step)
            return int(several * block + min(rest, block))
        if block == h5py.h5s.UNLIMITED:
            return int(max(0, size - first))
    return 0


def arrays_in(file: h5py.File) -> list[str]:
    """Returns the paths of all arrays."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found
