"""Image files as a source: read, decoded and resized straight into the batch, with or without labels.

Threads. An open source serves any number at once: each has its own memory for a file's bytes, which is used again.
"""

import io
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.image._decode import Decoding
from penstock.image._formats import ImageError
from penstock.memory._rows import Indices
from penstock.plan._source import Read, Source
from penstock.sources import _openfile, _remote
from penstock.sources._inmemory import is_in_memory
from penstock.sources._listing import FileList, Paths

Bytes = npt.NDArray[np.uint8]

_FIRST_NBYTES: Final = 256 << 10
# Memory beyond this is given back at once: one large file should not cost it for the rest of the run.
_KEPT_NBYTES: Final = 8 << 20
# No image that fits into a batch comes of so many bytes; a sparse file might be larger than memory.
_LARGEST_NBYTES: Final = 1 << 30
# So many files behind URLs are fetched at once by a thread, which has them all until they are decoded.
_FETCHED_COUNT: Final = 32
_ADVICE_NBYTES: Final = 128 << 10
# O_NONBLOCK: a pipe with the name of an image must not wait for somebody to write into it.
_OPEN_FLAGS: Final[int] = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)


class Labels(NamedTuple):
    """A label for each file."""

    values: npt.NDArray[Any]
    """Shape `(n, *shape)`."""
    class_count: int = 0
    """Above 0: values are classes, shape `(n,)`, and a label is float32 `(class_count,)`, 1 at its class."""

    @property
    def element_spec(self) -> ArraySpec:
        """One label."""
        if self.class_count:
            return ArraySpec((self.class_count,), np.dtype(np.float32))
        return ArraySpec(self.values.shape[1:], self.values.dtype)

    def take(self, order: Indices) -> "Labels":
        """Some of them, in any order."""
        return Labels(self.values[order], self.class_count)

    def read_into(self, indices: Indices, out: npt.NDArray[Any], rows: Indices) -> None:
        """Writes labels into rows of an array."""
        if not self.class_count:
            out[rows] = self.values[indices]
            return
        out[rows] = 0
        out[rows, self.values[indices]] = 1


def _stamp(path: str) -> tuple[int, int]:
    """A file's size and the time of its last change; of one that is not there, neither."""
    try:
        return _openfile.stamp(path)
    except OSError:
        return -1, -1


@final
@dataclass(frozen=True, eq=False)
class ImageSource(Source):
    """Images of files, each with its label if there are labels. Reads a file when its element is asked for."""

    is_cpu_bound = True

    files: FileList
    decoding: Decoding
    labels: Labels | None = None
    classes: tuple[str, ...] | None = None

    def fingerprint_parts(self) -> dict[str, Any]:
        """The files by path, size and time of their last change; looks at each, some microseconds a file."""
        return {
            "the paths of the files": "\0".join(self.files),
            "the sizes and times of the files": np.array([_stamp(path) for path in self.files], np.int64),
            "the decoding": self.decoding,
            "the labels": self.labels,
        }

    @property
    def class_names(self) -> list[str] | None:
        """What the classes are called, in the order of their numbers; None where nobody said."""
        return None if self.classes is None else list(self.classes)

    @property
    def file_paths(self) -> list[str]:
        """The path of each element's file. Made anew each time: some 100 bytes an element."""
        return list(self.files)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # found out by its files
        """Whether any of its files is behind an URL."""
        return bool(self.files.remote_folders)

    @property
    def element_spec(self) -> Tree:
        """The image, or the image and its label."""
        image = self.decoding.element_spec
        return image if self.labels is None else (image, self.labels.element_spec)

    def __len__(self) -> int:
        return len(self.files)

    def __str__(self) -> str:
        if self.files.root:
            return os.path.basename(os.path.normpath(self.files.root))
        if not len(self):
            return "no files"
        folder, name = os.path.split(self.files[0])  # images and their masks have the same names, in two folders
        more = len(self) - 1
        return os.path.join(os.path.basename(folder), name) + f" and {more:,} more" * (more > 0)

    def describe(self, index: int) -> str:
        """The path of the file."""
        return self.files[index]

    def open(self) -> "OpenImageSource":
        """The form that reads; files are open only while they are read."""
        return OpenImageSource(self)


@final
class OpenImageSource:
    """An `ImageSource` that reads. Memory: for each thread that reads, the largest file, and what decoding it takes.

    Of files behind URLs it is the largest `_FETCHED_COUNT` files.
    """

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self._paths = Paths(source.files)
        self._own = threading.local()
        self._is_remote = source.is_remote

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, one file after the other.

        Raises:
            SourceError: A file is gone, cannot be read or holds no image that can be decoded. It is named.
        """
        decoding, labels = self._source.decoding, self._source.labels
        for read in reads:
            images = read.arrays[0]
            rows = np.arange(len(images))[read.rows]
            if labels is not None:
                labels.read_into(read.indices, read.arrays[1], rows)
            contents = (
                self._fetched(read.indices)
                if self._is_remote
                else map(self._content, read.indices.tolist(), self._paths(read.indices))
            )
            for row, index, data in zip(rows.tolist(), read.indices.tolist(), contents, strict=True):
                try:
                    if decoding.size is None:
                        images[row] = decoding(data)
                    else:
                        decoding.into(data, images[row])
                except ImageError as error:
                    # Not its cause: that says the same without the file, and would be what stands last.
                    raise SourceError(f"{self._named(index)}: {error}") from None

    def _fetched(self, indices: Indices) -> Iterator[Bytes]:
        """The bytes of each file where some are behind URLs: of these, several are under way at once."""
        for start in range(0, len(indices), _FETCHED_COUNT):
            some = indices[start : start + _FETCHED_COUNT]
            urls = [url if _remote.is_remote(url) else None for url in map(self._source.describe, some.tolist())]
            fetched = iter(_remote.fetched([url for url in urls if url is not None]))
            for url, index, path in zip(urls, some.tolist(), self._paths(some), strict=True):
                yield self._content(index, path) if url is None else np.frombuffer(next(fetched), np.uint8)

    def _content(self, index: int, path: bytes) -> Bytes:
        """The bytes of a file; in memory of this thread, which holds another one's after the next call."""
        try:
            descriptor = os.open(path, _OPEN_FLAGS)  # not by `_opened`: a generator for each image
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise SourceError(f"{self._named(index)} is no file, but a folder, pipe or device. Leave it out.")
                return self._read(descriptor, status.st_size, index)
            finally:
                os.close(descriptor)
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(
                f"{self._named(index)} cannot be read: {error.strerror}. Put it back, or make the dataset again "
                "without it."
            ) from error

    def _named(self, index: int) -> str:
        return f"{self._source.describe(index)} (element {index})"

    def _read(self, descriptor: int, nbytes: int, index: int) -> Bytes:
        memory, count = self._memory(nbytes + 1, index), 0
        # Some file systems say 0 of what has bytes. Else no call looks for the end: each lets go of the GIL, and a
        # thread that has to wait to get it back waits longer than the call takes.
        while (count < nbytes or not nbytes) and (got := _read_some(descriptor, memory[count:])):
            count += got
            if count == len(memory):
                larger = self._memory(count + 1, index)
                larger[:count] = memory
                memory = larger
        return memory[:count]

    def _memory(self, nbytes: int, index: int) -> Bytes:
        if nbytes > _LARGEST_NBYTES:
            raise SourceError(
                f"{self._named(index)} has {nbytes - 1:,} bytes or more, which is no image: at "
                f"most {_LARGEST_NBYTES - 1:,} are read. Leave it out."
            )
        memory: Bytes | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(max(_FIRST_NBYTES, 1 << (nbytes - 1).bit_length()), np.uint8)
            self._own.memory = memory if len(memory) <= _KEPT_NBYTES else None
        return memory

    def advise(self, indices: Indices) -> None:
        """Has the kernel fetch the files, unless the first and the last are in memory already. Never fails."""
        if not hasattr(os, "posix_fadvise") or not len(indices):
            return
        with suppress(OSError):
            if all(map(_is_in_memory, self._paths(indices[[0, -1]]))):
                return
        for path in self._paths(indices):
            with suppress(OSError), _opened(path) as descriptor:  # one behind an URL is not there
                # The kernel cuts an announcement to the device's readahead, and forgets the rest.
                for at in range(0, min(os.fstat(descriptor).st_size, _KEPT_NBYTES), _ADVICE_NBYTES):
                    os.posix_fadvise(descriptor, at, _ADVICE_NBYTES, os.POSIX_FADV_WILLNEED)


@contextmanager
def _opened(path: bytes) -> Iterator[int]:
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_some(descriptor: int, place: Bytes) -> int:
    if hasattr(os, "readv"):
        return os.readv(descriptor, [place.data])
    with io.FileIO(descriptor, closefd=False) as file:  # Windows
        return file.readinto(place.data) or 0


def _is_in_memory(path: bytes) -> bool:
    with _opened(path) as descriptor:
        return is_in_memory(descriptor, 0)
