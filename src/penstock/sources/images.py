"""Image files as a source: read, decoded and resized straight into the batch, with or without labels.

Threads. Any number of threads may use an open source. Each has its own memory for the bytes of a file.
"""

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.base._printable import printable
from penstock.base._retries import retry_budget
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.image._decode import Decoding
from penstock.image._formats import ImageError
from penstock.memory._rows import Indices
from penstock.plan._order import Position, ReadOrder
from penstock.plan._source import Read, Source
from penstock.sources import _openfile
from penstock.sources._blocks import ORDER_NBYTES, BlockReader
from penstock.sources._diskcache import DiskCache
from penstock.sources._fetch import AHEAD_NBYTES, MEMORY_COUNT, WHOLE, Fetcher
from penstock.sources._listing import FileList, Paths, Texts, packed
from penstock.sources._openfile import File, LocalFile
from penstock.sources._remote import RemoteFile
from penstock.sources._store import StorageOptions
from penstock.sources.npy import is_in_memory

Bytes = npt.NDArray[np.uint8]

_FIRST_NBYTES: Final = 256 << 10
# Larger memory is freed after use, so that one large file does not cost it for the rest of the run.
_KEPT_NBYTES: Final = 8 << 20
# No image that fits into a batch has more bytes. A sparse file might be larger than memory.
_LARGEST_NBYTES: Final = 1 << 30
# Remote files that a thread fetches at once and holds until they are decoded.
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
        """Returns the states of files from their sizes and versions; None if there are no versions."""
        if not states or not all(version for _, version in states):
            return None
        sizes = np.array([nbytes for nbytes, _ in states], np.int64)
        if cache is not None:
            cache.require_room(int(sizes.sum()))
        return cls(cache, sizes, Texts.of([packed([version for _, version in states])]))

    def take(self, order: Indices) -> "Objects":
        return Objects(self.cache, self.sizes[order], self.versions.take(order))


def _stamp(path: str) -> tuple[int, int]:
    """Returns size and time of the last change, or -1 for a missing file."""
    try:
        return _openfile.stamp(path)
    except OSError:
        return -1, -1


@final
@dataclass(frozen=True, eq=False)
class ImageSource(Source):
    """The images of files, with labels if there are any. Reads a file when its element is requested."""

    is_cpu_bound = True
    reads_ahead = True

    files: FileList
    decoding: Decoding
    labels: Labels | None = None
    classes: tuple[str, ...] | None = None
    options: StorageOptions | None = None
    """Those of the client of remote files."""
    objects: Objects | None = None
    """The states of remote files, if a listing told them."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """The files by path, size and time of the last change. Takes some microseconds for each file."""
        return {
            "the paths of the files": "\0".join(self.files),
            "the sizes and times of the files": np.array([_stamp(path) for path in self.files], np.int64),
            "the decoding": self.decoding,
            "the labels": self.labels,
        }

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes in the order of their numbers; None if there are none."""
        return None if self.classes is None else list(self.classes)

    @property
    def file_paths(self) -> list[str]:
        """The path of each element's file. Made at each call: about 100 bytes an element."""
        return list(self.files)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # depends on the files
        return bool(self.files.remote_folders)

    @property
    def kept_nbytes(self) -> int:
        objects = self.objects
        is_small = objects is not None and objects.cache is not None and objects.cache.nbytes < objects.sizes.sum()
        return MEMORY_COUNT * AHEAD_NBYTES + ORDER_NBYTES * len(self) * is_small if self.is_remote else 0

    @property
    def element_spec(self) -> Tree:
        image = self.decoding.element_spec
        return image if self.labels is None else (image, self.labels.element_spec)

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

    def open(self) -> "OpenImageSource":
        return OpenImageSource(self)


@final
class OpenImageSource:
    """Reads image files; each is open only during its read.

    Memory: for each thread that reads, the largest file (of remote files the largest `_FETCHED_COUNT`), and what its
    decoding takes.
    """

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self._paths = Paths(source.files)
        self._own = threading.local()
        self._fetcher = Fetcher(self._remote_file, AHEAD_NBYTES) if source.is_remote else None
        self._blocks: BlockReader | None = None
        cache = None if source.objects is None else source.objects.cache
        if source.objects is not None and cache is not None and (folder := cache.open()) is not None:
            sizes = source.objects.sizes
            self._blocks = BlockReader(cache, folder, self._file, sizes, self._remote_file, AHEAD_NBYTES)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, one file after the other.

        Raises:
            SourceError: A file is missing, unreadable, or no image that can be decoded. The message names it.
        """
        decoding, labels = self._source.decoding, self._source.labels
        for read in reads:
            images = read.arrays[0]
            rows = np.arange(len(images))[read.rows]
            if labels is not None:
                labels.read_into(read.indices, read.arrays[1], rows)
            contents = (
                self._fetched(read.indices)
                if self._fetcher is not None
                else map(self._content, read.indices.tolist(), self._paths(read.indices))
            )
            for row, index, data in zip(rows.tolist(), read.indices.tolist(), contents, strict=True):
                try:
                    if decoding.size is None:
                        images[row] = decoding(data)
                    else:
                        decoding.into(data, images[row])
                except ImageError as error:
                    # Without the cause, which says the same without the file and would be printed last.
                    raise SourceError(f"{self._named(index)}: {error}") from None

    def _fetched(self, indices: Indices) -> Iterator[Bytes]:
        """Yields the bytes of each file. Several remote files are under way at once."""
        assert self._fetcher is not None
        for start in range(0, len(indices), _FETCHED_COUNT):
            some = indices[start : start + _FETCHED_COUNT]
            if self._blocks is not None:
                numbers, offsets, sizes, _ = self._ranges(some)
                places = [np.empty(size, np.uint8) for size in sizes.tolist()]
                wanted = list(zip(some.tolist(), offsets.tolist(), places, strict=True))
                self._blocks.read(wanted, retry_budget(), self._blocks.spans(numbers, offsets, sizes, 1))
                yield from places
                continue
            for data in self._fetcher.whole(some.tolist(), retry_budget()):
                yield np.frombuffer(data, np.uint8)

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
        assert self._source.objects is not None
        return indices, np.zeros_like(indices), self._source.objects.sizes[indices], 1

    @property
    def follows_order(self) -> bool:
        return self._blocks is not None

    def follow(self, order: ReadOrder, now: Position, ahead: Position) -> None:
        """See `plan/_order.py`."""
        if self._blocks is not None:
            self._blocks.follow(order, now, ahead, self._ranges)

    def _content(self, index: int, path: bytes) -> Bytes:
        """Returns the bytes of a file, in memory of this thread that the next call uses again."""
        try:
            file = LocalFile(path)
            status = os.fstat(file.descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{self._named(index)} is no file, but a folder, pipe or device. Leave it out.")
            # No further call looks for the end: it would release the GIL, and waiting to get it back costs more.
            memory = self._memory(status.st_size, index)
            return memory[: file.read_into(0, memory[: status.st_size].data)]
        except OSError as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(
                f"{self._named(index)} cannot be read: {error.strerror}. Put it back, or make the dataset again "
                "without it."
            ) from error

    def _named(self, index: int) -> str:
        return f"{self._source.describe(index)} (element {index})"

    def _memory(self, nbytes: int, index: int) -> Bytes:
        if nbytes >= _LARGEST_NBYTES:
            raise SourceError(
                f"{self._named(index)} has {nbytes:,} bytes or more, which is no image: at most "
                f"{_LARGEST_NBYTES - 1:,} are read. Leave it out."
            )
        memory: Bytes | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(max(_FIRST_NBYTES, 1 << (nbytes - 1).bit_length()), np.uint8)
            self._own.memory = memory if len(memory) <= _KEPT_NBYTES else None
        return memory

    def advise(self, indices: Indices) -> None:
        """Announces local files to the kernel, unless the first and the last are in memory; fetches remote ones."""
        if self._blocks is not None:
            numbers, offsets, sizes, width = self._ranges(indices)
            self._blocks.announce(numbers, offsets, sizes, retry_budget().limit_s, width)
            return
        if self._fetcher is not None:
            offsets = np.zeros_like(indices)
            self._fetcher.announce(indices, offsets, offsets + WHOLE, retry_budget().limit_s)
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
                _openfile.announce(file.descriptor, 0, min(os.fstat(file.descriptor).st_size, _KEPT_NBYTES))

    def close(self) -> None:
        """Ends the requests of remote files."""
        for each in (self._fetcher, self._blocks):
            if each is not None:
                each.close()
