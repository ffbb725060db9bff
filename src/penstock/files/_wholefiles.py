"""Whole files as elements: their list, their states, their labels, and reads of their content.

Sources of pictures, and of files of any kind (`records/files.py`), are made of it.

Threads. Any number of threads may use an open source. Each has its own memory for the bytes of a file.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, SourceError
from penstock.base._files import Stamp
from penstock.base._printable import printable
from penstock.base._retries import retry_budget
from penstock.base._spec import ArraySpec
from penstock.files import _listing, _openfile
from penstock.files._blocks import BlockReader
from penstock.files._diskcache import DiskCache
from penstock.files._fetch import AHEAD_NBYTES, MEMORY_COUNT, WHOLE, Fetcher
from penstock.files._listing import FileList, Paths, Texts, packed
from penstock.files._openfile import File, ThreadMemory, require_room
from penstock.files._remote import RemoteFile
from penstock.files._store import StorageOptions
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources._localfile import LocalFile
from penstock.sources.npy import is_in_memory

Bytes = npt.NDArray[np.uint8]

_FIRST_NBYTES: Final = 256 << 10
# Of a larger file, what is announced to the kernel.
_ADVISED_NBYTES: Final = 8 << 20
_NOTHING: Final = np.empty(0, np.uint8)
# Remote files that a thread fetches at once and holds until they are used.
_FETCHED_COUNT: Final = 32


class Labels(NamedTuple):
    """A label for each file."""

    values: npt.NDArray[Any]
    """Shape `(n, *shape)`."""
    class_count: int = 0
    """If above 0, values are classes, shape `(n,)`, and a label is float32 `(class_count,)`, 1 at its class."""

    @property
    def element_spec(self) -> ArraySpec:
        if self.class_count:
            return ArraySpec((self.class_count,), np.dtype(np.float32))
        return ArraySpec(self.values.shape[1:], self.values.dtype)

    def take(self, order: Indices) -> "Labels":
        return Labels(self.values[order], self.class_count)

    def read_into(self, indices: Indices, out: npt.NDArray[Any], rows: Indices) -> None:
        """Writes labels into rows of an array."""
        if not self.class_count:
            out[rows] = self.values[indices]
            return
        out[rows] = 0
        out[rows, self.values[indices]] = 1


class Objects(NamedTuple):
    """The states of remote files. A cache may keep them."""

    cache: DiskCache | None
    sizes: npt.NDArray[np.int64]
    versions: Texts

    @classmethod
    def of(cls, cache: DiskCache | None, states: Sequence[tuple[int, str]]) -> "Objects | None":
        """Returns the states of files from their sizes and versions; None if they are not known of all."""
        if not states or (0, "") in states:
            return None
        sizes = np.array([nbytes for nbytes, _ in states], np.int64)
        if cache is not None:
            cache.require_room(int(sizes.sum()))
        return cls(cache, sizes, Texts.of([packed([version for _, version in states])]))

    def take(self, order: Indices) -> "Objects":
        return Objects(self.cache, self.sizes[order], self.versions.take(order))


class WholeFiles(Source):
    """A source whose elements are files, read when their elements are requested."""

    reads_ahead = True

    files: FileList
    labels: Labels | None
    classes: tuple[str, ...] | None
    options: StorageOptions | None
    """Those of the client of remote files."""
    objects: Objects | None
    """The states of remote files, if a listing told them."""

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes in the order of their numbers; None if there are none."""
        return None if self.classes is None else list(self.classes)

    @property
    def file_paths(self) -> list[str]:
        """The path of each element's file. Made at each call: about 100 bytes an element."""
        return list(self.files)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The files by path, size, time of the last change and inode. Takes some microseconds for each file."""
        return {
            "the paths of the files": "\0".join(self.files),
            "the sizes and times of the files": np.array([_stamp(path) for path in self.files], np.int64),
            "the labels": self.labels,
        }

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # depends on the files
        return bool(self.files.remote_folders)

    @property
    def kept_nbytes(self) -> int:
        return MEMORY_COUNT * AHEAD_NBYTES if self.is_remote else 0

    def __len__(self) -> int:
        return len(self.files)

    def __str__(self) -> str:
        if self.files.root:
            return os.path.basename(os.path.normpath(printable(self.files.root)))
        if not len(self):
            return "no files"
        folder, name = os.path.split(
            printable(self.files[0])
        )  # images and their masks have the same names in two folders
        more = len(self) - 1
        return os.path.join(os.path.basename(folder), name) + f" and {more:,} more" * (more > 0)

    def describe(self, index: int) -> str:
        return self.files[index]


class OpenWholeFiles:
    """Reads whole files; each is open only during its read.

    Memory: for each thread that reads, the largest file (of remote files the largest `_FETCHED_COUNT`).
    """

    def __init__(self, source: WholeFiles) -> None:
        self._source: Any = source
        self._paths = Paths(source.files)
        self._memory = ThreadMemory(_FIRST_NBYTES)
        self._fetcher = Fetcher(self._remote_file, AHEAD_NBYTES) if source.is_remote else None
        self._blocks: BlockReader | None = None
        cache = None if source.objects is None else source.objects.cache
        if source.objects is not None and cache is not None and (folder := cache.open()) is not None:
            sizes = source.objects.sizes
            self._blocks = BlockReader(cache, folder, self._file, sizes, self._remote_file, AHEAD_NBYTES)

    def contents(self, indices: Indices) -> Iterator[Bytes]:
        """Yields the bytes of each file, in memory that the next one may use again.

        Raises:
            SourceError: A file is missing, unreadable or too large. The message names it.
        """
        if self._fetcher is not None:
            return self._fetched(indices)
        return map(self._content, indices.tolist(), self._paths(indices))

    def _fetched(self, indices: Indices) -> Iterator[Bytes]:
        """Yields the bytes of each file. Several remote files are under way at once."""
        assert self._fetcher is not None
        for start in range(0, len(indices), _FETCHED_COUNT):
            some = indices[start : start + _FETCHED_COUNT]
            numbers, offsets, sizes, _ = self._ranges(some)
            spans = list(zip(some.tolist(), offsets.tolist(), sizes.tolist(), strict=True))
            for index, _, size in spans if self._source.objects is not None else ():
                require_room(f"{self._named(index)} has", size)
            if self._blocks is None:
                for parts in self._fetcher.fetched(spans, retry_budget()):
                    data = np.concatenate([_NOTHING, *(np.frombuffer(part, np.uint8) for _, part in parts)])
                    retry_budget().needed_nbytes += len(data)
                    yield data
                continue
            places = [(index, 0, np.empty(size, np.uint8)) for index, _, size in spans]
            self._blocks.read(places, retry_budget(), self._blocks.spans(numbers, offsets, sizes, 1))
            yield from (place for _, _, place in places)

    def _remote_file(self, index: int) -> RemoteFile:
        if self._source.objects is None:
            return RemoteFile(self._source.describe(index), options=self._source.options)
        file = self._file(index)
        return RemoteFile(file.url, (file.nbytes, file.version), file.options)

    def _file(self, index: int) -> File:
        """Returns the state of a remote file."""
        objects = self._source.objects
        assert objects is not None
        return File(
            self._source.describe(index), int(objects.sizes[index]), objects.versions[index], self._source.options
        )

    def _ranges(self, indices: Indices) -> tuple[Indices, Indices, Indices, int]:
        objects, offsets = self._source.objects, np.zeros_like(indices)
        return indices, offsets, offsets + WHOLE if objects is None else objects.sizes[indices], 1

    def _content(self, index: int, path: bytes) -> Bytes:
        """Returns the bytes of a file, in memory of this thread that the next call uses again."""
        try:
            file = LocalFile(path)
            status = os.fstat(file.descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{self._named(index)} is no file, but a folder, pipe or device. Leave it out.")
            # No further call looks for the end: it would release the GIL, and waiting to get it back costs more.
            require_room(f"{self._named(index)} has", status.st_size)
            memory = self._take(status.st_size)
            return memory[: file.read_into(0, memory.data)]
        except SourceError:
            raise
        except (OSError, MemoryError) as error:
            raise SourceError(
                f"{self._named(index)} cannot be read: {getattr(error, 'strerror', None) or error}. Put it back, or "
                "make the dataset again without it."
            ) from error

    def _take(self, nbytes: int) -> Bytes:
        """Returns memory for a file."""
        return self._memory.take(nbytes)

    def _named(self, index: int) -> str:
        return f"{printable(self._source.describe(index))} (element {index})"

    def advise(self, indices: Indices) -> None:
        """Announces local files to the kernel, unless the first and the last are in memory; fetches remote ones."""
        if self._fetcher is not None:
            numbers, offsets, sizes, width = self._ranges(indices)
            (self._blocks or self._fetcher).announce(numbers, offsets, sizes, retry_budget().limit_s, width)
            return
        if not hasattr(os, "posix_fadvise") or not len(indices):
            return
        with suppress(OSError):
            first_and_last = (LocalFile(path) for path in self._paths(indices[[0, -1]]))
            if all(is_in_memory(file.descriptor, 0) for file in first_and_last):
                return
        for path in self._paths(indices):
            with suppress(OSError):
                file = LocalFile(path)
                _openfile.announce(file.descriptor, 0, min(os.fstat(file.descriptor).st_size, _ADVISED_NBYTES))

    def close(self) -> None:
        """Ends the requests of remote files."""
        for each in (self._fetcher, self._blocks):
            if each is not None:
                each.close()


def found(
    verb: str, paths: Any, storage_options: Any, cache: DiskCache | None, *, needs_sizes: bool = False
) -> tuple[FileList, Objects | None, StorageOptions | None]:
    """Returns the files of a path, a pattern or an iterable of paths, the states of remote ones, and their options.

    Files behind URLs that are named one by one are examined if there is a cache, or if sizes are needed. Local ones are
    not.

    Raises:
        ArgumentTypeError: An item is no path.
        ArgumentError: There are no paths, or URLs and local paths.
        SourceError: A pattern fits no file.
    """
    several = _openfile.asked(verb, paths)
    described: Sequence[File] = ()
    if isinstance(paths, (str, os.PathLike)) or cache is not None:
        described = _openfile.find(verb, several, storage_options)
    files = _listing.named([file.url for file in described] or several)
    if not len(files):
        raise ArgumentError(f"{verb}() got no files.")
    if 0 < len(files.remote_folders) < len(files.folders):
        raise ArgumentError(
            f"{verb}() got URLs, such as {files.remote_folders[0]}, and paths of this machine, which one dataset "
            "cannot read. Make a dataset of each, and concatenate([...]) them."
        )
    if needs_sizes and files.remote_folders and not described:
        described = _openfile.find(verb, list(files), storage_options)
    objects = Objects.of(cache, [(file.nbytes, file.version) for file in described if not file.is_local])
    return files, objects, StorageOptions.of(verb, storage_options)


def _stamp(path: str) -> tuple[int, ...]:
    """Returns size, time of the last change and inode, or -1 for a missing file. There may be too many to read each."""
    try:
        return Stamp.of(path)[:3]
    except OSError:
        return -1, -1, -1
