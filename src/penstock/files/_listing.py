"""The files of folders, found in one walk and kept in a few arrays.

A list of a million paths is a million Python objects, 150 MB that each worker process would copy. Here names are bytes
in one array, folders are in a table, and a file is three numbers. A path is made when it is requested.
"""

import errno
import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, SourceError
from penstock.base._files import is_folder, require_path
from penstock.files._remote import is_remote, matches, sent
from penstock.files._store import StorageOptions

Integers = npt.NDArray[np.int64]

_FOLDERS_KEPT: Final = 4096

_Places = frozenset[tuple[int, int]]
"""Device and inode of folders."""


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """Many short texts in one array."""

    data: npt.NDArray[np.uint8]
    """The bytes of the texts in the file system's encoding, each with a zero after it."""
    starts: Integers
    """The start of each text, shape `(n,)`."""
    sizes: npt.NDArray[np.int32]
    """The bytes of each text, shape `(n,)`."""

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> "Texts":
        """Joins results of `packed`."""
        data = np.frombuffer(b"".join(pieces), np.uint8)
        ends = np.flatnonzero(data == 0)
        starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64)[: len(ends)]
        return cls(data, starts, (ends - starts).astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> str:
        start = int(self.starts[index])
        return os.fsdecode(self.data[start : start + int(self.sizes[index])].tobytes())

    def take(self, order: Integers) -> "Texts":
        """Returns some texts in any order, which share the bytes."""
        return Texts(self.data, self.starts[order], self.sizes[order])


def packed(texts: Sequence[str]) -> bytes:
    """Returns the bytes of texts, each with a zero after it."""
    return os.fsencode("\0".join(texts)) + b"\0" if texts else b""


@final
@dataclass(frozen=True, eq=False)
class FileList:
    """Files in an order. Memory: 16 bytes and the name for each file, and the names of the folders."""

    root: str
    """The common folder, as the user wrote it; empty for files that were named one by one."""
    base: str
    """The same as an absolute path, for workers with another current directory."""
    folders: Texts
    """Folders below `root`; empty for `root` itself."""
    folder_of: npt.NDArray[np.int32]
    """The folder of each file, shape `(n,)`."""
    names: Texts
    """The name of each file in its folder."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        values = self.root, self.base, self.folders, self.folder_of, self.names
        return sent(self.remote_folders, FileList, values) or super().__reduce_ex__(protocol)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        """Returns the path of a file, as a user would write it."""
        return os.path.join(self.root, self.folders[int(self.folder_of[index])], self.names[index])

    @property
    def remote_folders(self) -> list[str]:
        """The folders behind URLs."""
        if b"://" not in self.folders.data.tobytes():
            return []
        return [path for path in map(self.folders.__getitem__, range(len(self.folders))) if is_remote(path)]

    def __iter__(self) -> Iterator[str]:
        folders = [os.path.join(self.root, self.folders[number], "") for number in range(len(self.folders))]
        for number, folder in enumerate(self.folder_of.tolist()):
            yield folders[folder] + self.names[number]

    def beginning(self, folder: int) -> bytes:
        """Returns the absolute path of a folder, with a separator."""
        return os.fsencode(os.path.join(self.base, self.folders[folder], ""))

    def take(self, order: Integers) -> "FileList":
        """Returns some files in any order."""
        return FileList(self.root, self.base, self.folders, self.folder_of[order], self.names.take(order))


@final
class Paths:
    """Makes the absolute paths of many files at once, as bytes. Memory: the paths of the last folders."""

    def __init__(self, files: FileList) -> None:
        self._files = files
        self._text = files.names.data.data
        self._folder = lru_cache(_FOLDERS_KEPT)(files.beginning)  # a method of this object would keep it alive

    def __call__(self, indices: Integers) -> list[bytes]:
        files, text, folder = self._files, self._text, self._folder
        starts = files.names.starts[indices]
        stops = starts + files.names.sizes[indices]
        numbers = files.folder_of[indices].tolist()
        each = zip(numbers, starts.tolist(), stops.tolist(), strict=True)
        return [folder(number) + text[start:stop] for number, start, stop in each]


def listed(
    root: str, folders: Sequence[str], extensions: tuple[str, ...], follow_links: bool
) -> tuple[FileList, list[int]]:
    """Finds the files in and below some folders of a directory.

    The given folders keep their order. Within each, files are sorted by folder and then by name, by code points.

    200,000 empty files in 20 folders of a RAM disk took 0.20 s of one core, and 33 bytes each with names of 16
    characters. Keras's `index_directory` took 1.2 s and 107 bytes each, and 190 at its peak.

    Args:
        root: The directory, as the user wrote it.
        folders: Names of folders in it; `""` for the whole directory.
        extensions: Endings of names, in lower case.
        follow_links: Whether to enter folders behind symbolic links. A link in `folders` is always followed. A folder
            that a link puts into itself is left out.

    Returns:
        The files, and the number of files in each folder.

    Raises:
        SourceError: A folder cannot be read.
    """
    base = os.path.abspath(root)
    found = [_walked(base, folder, extensions, follow_links) for folder in folders]
    parts = list(itertools.chain.from_iterable(found))
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [count for _, _, count in parts])
    table, names = Texts.of(packed([each]) for each, _, _ in parts), Texts.of(each for _, each, _ in parts)
    return FileList(root, base, table, numbers, names), [sum(count for _, _, count in each) for each in found]


def named(paths: Iterable[str]) -> FileList:
    """Packs paths that were named one by one, in their order. Examines no file.

    Raises:
        ArgumentError: A path is empty or holds a zero byte.
    """
    pieces: list[bytes] = []
    folders: dict[str, int] = {}
    numbers: list[npt.NDArray[np.int32]] = []
    several = iter(paths)
    while some := list(itertools.islice(several, 4096)):  # bounds the number of Python objects
        split = [_split(path) for path in some]
        for path, (_, name) in zip(some, split, strict=True):
            if not name:
                raise ArgumentError(f"{path!r} is no path of a file.")
            require_path(path)
        pieces.append(packed([name for _, name in split]))
        numbers.append(np.array([folders.setdefault(folder, len(folders)) for folder, _ in split], np.int32))
    folder_of = np.concatenate(numbers) if numbers else np.zeros(0, np.int32)
    return FileList("", os.getcwd(), Texts.of([packed(list(folders))]), folder_of, Texts.of(pieces))


def _split(path: str) -> tuple[str, str]:
    """As `os.path.split`, but `a//b` stays what it is: to a server another name than `a/b`."""
    folder, name = os.path.split(path)
    return (folder if len(folder) + 1 + len(name) == len(path) else path[: len(path) - len(name)]), name


def below(root: str, options: StorageOptions | None) -> dict[str, tuple[int, str]]:
    """Returns the files below a remote folder from one listing: sizes and versions by paths relative to it.

    A version is empty if the listing has none.

    Raises:
        SourceError: The connection fails.
    """
    start = root.rstrip("/") + "/"
    found = matches(f"{glob.escape(start)}**", options)
    described = ((each, 0, "") if isinstance(each, str) else each for each in found)
    return {url.removeprefix(start): (nbytes, version) for url, nbytes, version in described if url.startswith(start)}


def listed_remotely(
    root: str, folders: Sequence[str], extensions: tuple[str, ...], paths: Iterable[str]
) -> tuple[FileList, list[int]]:
    """Returns the files of some folders in the order of `listed`, of the result of `below`, and their numbers."""
    kept: list[list[str]] = []
    for folder in folders:
        mine = [path for path in paths if path.startswith(f"{folder}/" * bool(folder))]
        some = [path for path in mine if path.lower().endswith(extensions)]
        kept.append(sorted(some, key=os.path.split))
    urls = (f"{root.rstrip('/')}/{path}" for some in kept for path in some)
    return named(urls), [len(some) for some in kept]


def _walked(base: str, folder: str, extensions: tuple[str, ...], follow_links: bool) -> list[tuple[str, bytes, int]]:
    """Returns the folders below one, sorted: the folder, the sorted names of its files, packed, and their number."""
    parts: list[tuple[str, bytes, int]] = []
    waiting: list[tuple[str, _Places]] = [(folder, frozenset())]
    while waiting:
        below, above = waiting.pop()
        names: list[str] = []
        path = os.path.join(base, below)
        try:
            if follow_links:
                status = os.stat(path)
                if (place := (status.st_dev, status.st_ino)) in above:
                    continue
                above |= {place}
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if _is_folder(entry):
                        if follow_links or not entry.is_symlink():
                            waiting.append((os.path.join(below, name), above))
                    elif name.lower().endswith(extensions):
                        names.append(name)
        except OSError as error:
            raise _unlisted(error.filename or path, error) from error
        if names:
            names.sort()
            parts.append((below, packed(names), len(names)))
    return sorted(parts)


def matching(pattern: str) -> list[str]:
    """Returns the paths that fit a pattern, as `glob.glob(pattern, recursive=True)`, sorted and each once.

    A folder that a link puts into itself is left out.

    Raises:
        SourceError: A folder cannot be read. `glob` would leave out what is in it.
    """
    root = "/" * pattern.startswith("/")
    return sorted(set(_matching(root, [part for part in pattern.split("/") if part], frozenset())))


def _matching(folder: str, parts: list[str], above: _Places) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    try:
        if part == "**":
            status = os.stat(folder or ".")
            if (place := (status.st_dev, status.st_ino)) in above:
                return
            above |= {place}
            if rest:
                yield from _matching(folder, rest, frozenset())
        elif not glob.has_magic(part):
            path = os.path.join(folder, part)
            if rest:
                yield from _matching(path, rest, above)
            elif os.lstat(path):
                yield path
            return
        with os.scandir(folder or ".") as entries:
            some = [(entry.name, (part == "**" or bool(rest)) and _is_folder(entry)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    except SourceError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise _unlisted(error.filename or folder, error) from error
    is_match = re.compile(fnmatch.translate("*" if part == "**" else part)).match
    for name, is_below in some:
        if not is_match(name) or (name.startswith(".") and not part.startswith(".")):
            continue
        path = os.path.join(folder, name)
        if not rest:
            yield path
        if is_below:
            yield from _matching(path, parts if part == "**" else rest, above)


def _unlisted(folder: str, error: OSError) -> SourceError:
    return SourceError(
        f"The folder {folder} cannot be read: {error.strerror}. Files in it would be left out silently; make it "
        "readable, or move it elsewhere."
    )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """As `is_folder`. A broken link counts as a file, whose read reports it."""
    return is_folder(entry.path) if entry.is_symlink() else entry.is_dir()
