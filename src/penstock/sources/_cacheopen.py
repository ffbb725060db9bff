"""An open cache: read like the rows of a `.npy` file, written element by element.

Writers. Any thread of any process may write any missing element: first its leaves, then its mark, each by `pwrite`.
Two writers of one element write the same bytes, because elements depend on the plan alone. Leaves without rows are
appended under a lock, so each writer has its own place. Nothing is mapped for writing, so a full disk cannot refuse a
page. Rows in memory are mapped for reading, because their file cannot be shortened.

Why nothing wrong is read. A killed process has passed its bytes to the kernel, or not. A mark follows its bytes, so a
reader that sees the mark sees the bytes. After a crash of the machine, bytes and marks have reached the disk in any
order. But then the marks have an old tag and are not trusted: the element is compared with its checksum, and made again
if it differs. A failed write (a full disk, a limit) leaves no mark, and the element is made again at each request.

Threads. The state of each element in a process is a byte, written without a lock. It changes from absent or suspect to
held when that is true. A thread that sees the change late reads the file once more.
"""

import errno
import fcntl
import itertools
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._descriptors import keep_standard_numbers
from penstock.base._errors import PenstockError, SourceError
from penstock.memory._rows import CHUNK_NBYTES, Indices, Leaves, Rows
from penstock.plan._cache import ABSENT, HELD, SUSPECT, Asked, OpenCache
from penstock.plan._reader import Gather, Reader
from penstock.plan._source import Read, Source, open_source
from penstock.sources._cachefiles import (
    CacheFiles,
    has_rows,
    header,
    mark_nbytes,
    reading,
    row_nbytes,
    rows_of,
)
from penstock.sources._cachevalues import decode, encode
from penstock.sources._localfile import LocalFile
from penstock.sources.arrays import ArraySource
from penstock.sources.files import FileSource
from penstock.sources.npy import StridedFile, mapped, seal_size

_log = logging.getLogger("penstock")
_IS_SET: Final = np.uint64(1)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
# After this many complete requests a process checks whether all elements are held.
_LOOK_COUNT: Final = 32
_BUFFER_NBYTES: Final = 1 << 16


def _trusted(files: CacheFiles) -> np.uint64:
    """Returns the low half of a trusted mark: the present tag, and the bit that is set."""
    return np.uint64(files.tag << 1 | 1)


def _states(files: CacheFiles, marks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Returns the state of elements by their marks."""
    is_trusted = (marks[:, -1] & _LOW_HALF == _trusted(files)) & (files.tag != 0)
    is_set = marks[:, -1] & _IS_SET == _IS_SET
    return np.where(is_trusted, HELD, np.where(is_set, SUSPECT, ABSENT)).astype(np.uint8)


def holds_all(files: CacheFiles, asked: Asked) -> bool:
    """Whether every requested element is held and trusted, by all marks.

    Args:
        files: The cache.
        asked: See `CacheHandle.complete`.

    Raises:
        OSError: The marks cannot be read.
    """
    if not files.length or not files.tag:
        return False
    width = mark_nbytes(files.spec) // 8
    marks = np.fromfile(files.index.path, "<u8", files.length * width, offset=files.index.offset)
    if len(marks) < files.length * width:
        return False
    is_missing = _states(files, marks.reshape(-1, width)) != HELD
    if not is_missing.any():
        return True
    among = asked() if asked else None
    return among is not None and not among[is_missing].any()


def _rows_of(file: StridedFile) -> Source:
    """Returns the rows of a file. A file in memory is read as an array, which is much faster for small rows."""
    array = mapped(file)
    return open_source(FileSource(file)) if array is None else ArraySource(array)


@final
class OpenCacheFiles(OpenCache):
    """A cache that is open in this process."""

    def __init__(self, files: CacheFiles) -> None:
        self.files, self.length = files, files.length
        self._spec = files.spec
        self._rows = [None if file is None else _rows_of(file) for file in files.leaves]
        self._index = _rows_of(files.index)
        self.opened = _Files(files.paths)
        self._lock = threading.Lock()
        self._has_warned = False
        self._has_rest, self._row_limit = files.has_rest, files.row_limit
        self._whole: OpenCacheFiles | None = None
        self._state = np.zeros(files.length, np.uint8)
        self._look_count = 0
        if files.length:
            marks = self._marks(np.arange(self._row_limit))
            self._state[: self._row_limit] = _states(files, marks)
            self._require_rest(marks)

    def _require_rest(self, marks: npt.NDArray[np.uint64]) -> None:
        """Refuses a cache whose `rest.bin` was cut off: once it grows, marks of other bytes would look good.

        Raises:
            SourceError: It was.
        """
        if self._has_rest:
            ends = np.where(self._state[: len(marks)] == HELD, marks[:, 0] + marks[:, 1], np.uint64(0))
            with reading(self.files.place):
                size = os.fstat(self.opened["rest.bin"].descriptor).st_size
            if ends.max(initial=0) > size:
                raise self.damaged(int(np.argmax(ends)))

    def look(self, indices: Indices) -> npt.NDArray[np.uint8]:
        if self.is_full:
            return np.full(len(indices), HELD, np.uint8)
        state = self._state[indices]
        if state.min(initial=HELD) == HELD:
            self._look_count += 1
            if self._look_count % _LOOK_COUNT == 0:
                self.is_full = self._state.min() == HELD
            return state
        unsure = ((state == ABSENT) & (indices < self._row_limit)).nonzero()[0]
        if len(unsure):
            wanted = indices[unsure]
            state[unsure] = self._state[wanted] = self._learn(wanted)
        return state

    def _marks(self, indices: Indices) -> npt.NDArray[np.uint64]:
        """Reads marks: shape `(n, 1)` or `(n, 3)`."""
        marks = np.empty((len(indices), mark_nbytes(self._spec) // 8), "<u8")
        self._index.gather([Read(indices, [marks], slice(0, len(indices)))])
        return marks

    def _learn(self, indices: Indices) -> npt.NDArray[np.uint8]:
        """Returns the state of elements by their marks."""
        return _states(self.files, self._marks(indices))

    def read(self, reader: Reader, indices: Indices, out: Rows, gather: Gather) -> None:
        # Rows with all reads of the batch, the rest now.
        for number, source in enumerate(self._rows):
            if source is not None:
                gather.add(reader, indices, out.leaves(number, number + 1), source)
        if self._has_rest:
            for row, index, mark in zip(out.row_numbers(), indices.tolist(), self._marks(indices), strict=True):
                try:
                    self._put_rest(row, self._rest_of(mark), out)
                except ValueError as error:  # the file was changed after its mark was read
                    raise self.damaged(index) from error

    def _rest_of(self, mark: npt.NDArray[np.uint64]) -> bytes:
        """Returns the leaves without rows."""
        if not self._has_rest:
            return b""
        offset, size, _ = mark.tolist()
        with reading(self.files.place):
            file = self.opened["rest.bin"]
            if not 0 <= offset <= offset + size <= os.fstat(file.descriptor).st_size:
                return b""  # no element is empty here: each leaf begins with a shape or a size
            return os.pread(file.descriptor, size, offset)

    def _put_rest(self, row: int, data: bytes, out: Rows) -> None:
        at = 0
        for number, leaf in enumerate(self._spec.leaves):
            if not has_rows(leaf):
                value, size = decode(leaf, memoryview(data)[at:])
                out.leaves(number, number + 1).put(row, [value])
                at += size

    def stretch(self, start: int, stop: int) -> int:
        if not self._has_rest:
            return stop
        ends = np.cumsum(self._marks(np.arange(start, stop))[:, 1])
        return start + max(1, int(np.searchsorted(ends, CHUNK_NBYTES, "right")))

    def check(self, indices: Indices, out: Rows) -> npt.NDArray[np.bool_]:
        """Compares checksums. Correct elements get the present tag, and the others lose their mark."""
        for array, source in zip(out.arrays, self._rows, strict=True):
            if source is not None:
                source.gather([Read(indices, [array], out.rows)])
        marks, pieces = self._marks(indices), self._pieces(out)
        right = np.zeros(len(indices), np.bool_)
        for k, (row, index) in enumerate(zip(out.row_numbers(), indices.tolist(), strict=True)):
            rest = self._rest_of(marks[k])
            right[k] = self._checksum(index, pieces, row, rest) == int(marks[k, -1]) >> 32
            if right[k] and self._has_rest:
                self._put_rest(row, rest, out)
        self._mark(indices[right], marks[right])
        self._mark(indices[~right], np.zeros_like(marks[~right]))
        self._state[indices[right]] = HELD
        self._state[indices[~right]] = ABSENT
        return right

    def _mark(self, indices: Indices, marks: npt.NDArray[np.uint64]) -> None:
        """Writes marks again, with the present tag; 0 stays 0."""
        marks = marks.copy()
        is_set = marks[:, -1] != 0
        marks[is_set, -1] = (marks[is_set, -1] & ~_LOW_HALF) | _trusted(self.files)
        with suppress(OSError):  # if the file cannot be written, each process checks for itself
            file, offset = self.opened["index.npy"], self.files.index.offset
            for index, mark in zip(indices.tolist(), marks, strict=True):
                file.write(mark, offset + index * mark.nbytes)

    def damaged(self, index: int) -> PenstockError:
        return SourceError(
            f"Element {index} of the cache in {self.files.place} is damaged: it is not what its checksum says. Delete "
            "the directory, and make the cache again."
        )

    def advise(self, indices: Indices) -> None:
        held = indices if self.is_full else indices[self._state[indices] == HELD]
        for source in self._rows:
            if source is not None and len(held):
                source.advise(held)

    def write(self, indices: Indices, rows: Rows) -> None:
        # Neighbours are one write. Elements that another writer has finished are skipped.
        is_wanted = indices < self._row_limit
        is_wanted[is_wanted] = self._marks(indices[is_wanted])[:, -1] & _IS_SET == 0
        wanted, numbers = indices[is_wanted], np.array(rows.row_numbers(), np.int64)[is_wanted]
        if not len(wanted):
            return
        apart = (np.diff(wanted) != 1) | (np.diff(numbers) != 1)
        heads = [0, *(apart.nonzero()[0] + 1).tolist(), len(wanted)]
        pieces = self._pieces(rows)
        for start, stop in itertools.pairwise(heads):
            try:
                self._write_run(int(wanted[start]), int(numbers[start]), stop - start, rows, pieces)
            except OSError as error:
                self.warn(error)
                return

    def _write_run(self, index: int, row: int, count: int, rows: Rows, pieces: list[Any]) -> None:
        """Writes neighbouring elements.

        Raises:
            OSError: There is no room. Then none of them is held.
        """
        rest = self._encoded(rows, row, count)
        marks = np.empty((count, mark_nbytes(self._spec) // 8), "<u8")
        for k in range(count):
            marks[k, -1] = self._checksum(index + k, pieces, row + k, rest[k]) << 32
        marks[:, -1] |= _trusted(self.files)
        if self._has_rest:
            sizes = np.array([len(each) for each in rest], np.uint64)
            marks[:, 1] = sizes
            marks[:, 0] = self._append(b"".join(rest)) + np.cumsum(sizes) - sizes
        for file, piece, number in zip(self.files.leaves, pieces, range(len(pieces)), strict=True):
            if file is not None and piece is not None:
                data = piece[row : row + count].reshape(-1).data
                self.opened[f"{number}.npy"].write(data, file.offset + index * file.strides[0])
        self.opened["index.npy"].write(marks, self.files.index.offset + index * marks[0].nbytes)
        if self.files.tag:
            self._state[index : index + count] = HELD

    def _encoded(self, rows: Rows, row: int, count: int) -> list[bytes]:
        if not self._has_rest:
            return [b""] * count
        found = []
        for k in range(count):
            values = zip(self._spec.leaves, rows.leaf_values(row + k), strict=True)
            found.append(b"".join(encode(leaf, value) for leaf, value in values if not has_rows(leaf)))
        return found

    def _append(self, data: bytes) -> np.uint64:
        """Appends leaves without rows; returns their offset."""
        file, limit = self.opened["rest.bin"], self.files.rest_limit
        with self._lock:  # `flock` excludes other processes, and ends with them
            fcntl.flock(file.descriptor, fcntl.LOCK_EX)
            try:
                offset = os.fstat(file.descriptor).st_size
                if limit is not None and offset + len(data) > limit:
                    raise OSError(errno.ENOSPC, "limit= is reached")
                file.write(data, offset)
            finally:
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)
        return np.uint64(offset)

    def _pieces(self, rows: Rows) -> list[npt.NDArray[np.uint8] | None]:
        """Returns the bytes of each leaf with rows, shape `(rows, nbytes)`; None for other leaves."""
        return [
            array.view(np.ndarray).reshape(len(array), -1).view(np.uint8)
            if has_rows(leaf) and array.size and leaf.nbytes
            else None
            for leaf, array in zip(self._spec.leaves, rows.arrays, strict=True)
        ]

    def _checksum(self, index: int, pieces: Sequence[npt.NDArray[np.uint8] | None], row: int, rest: bytes) -> int:
        value = zlib.crc32(index.to_bytes(8, "little"))
        for piece in pieces:
            if piece is not None:
                value = zlib.crc32(piece[row].data, value)
        return zlib.crc32(rest, value) if rest else value

    def warn(self, error: OSError) -> None:
        """Logs once that not all elements are kept."""
        if not self._has_warned:
            self._has_warned = True
            why = error.strerror or error
            text = "The cache in %s cannot keep more elements: %s. Missing ones are made again in each epoch."
            _log.warning(text, self.files.place, why)

    def whole(self) -> "OpenCacheFiles | None":
        if self._whole is None:
            with reading(self.files.place):
                count = int.from_bytes(os.pread(self.opened["count"].descriptor, 8, 0), "little") - 1
            if count >= 0:
                self._whole = OpenCacheFiles(self.files.grown(count))
        return self._whole

    def recorder(self) -> "_Recorder | None":
        try:
            lock = self.opened.locked("lock")
            return None if self.whole() else _Recorder(self, lock)  # another writer may have just finished
        except BlockingIOError:
            return None
        except OSError as error:
            self.warn(error)
            return None

    def close(self) -> None:
        """Closes each file as soon as no call uses it."""
        for source in (*self._rows, self._index):
            if source is not None:
                source.close()
        self.opened.close()
        if self._whole is not None:
            self._whole.close()


@final
class _Descriptor(LocalFile):
    """A file that can also be written, if the user may."""

    def __init__(self, path: str) -> None:
        keep_standard_numbers()
        self.can_write = True
        no_link = 0 if path.startswith("/proc/") else os.O_NOFOLLOW  # files in memory are links there
        try:
            super().__init__(path, os.O_RDWR | no_link)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            self.can_write = False  # held elements can be read, and no more are kept
            super().__init__(path, no_link)

    def write(self, data: Any, offset: int, *, is_end: bool = False) -> None:
        """Writes bytes at an offset, and cuts the file off there if it `is_end`."""
        if not self.can_write:  # the kernel would call it a bad descriptor, or an invalid argument
            raise PermissionError(errno.EACCES, "its files cannot be written")
        rest = memoryview(data).cast("B")
        while len(rest):
            count = os.pwrite(self.descriptor, rest, offset)
            rest, offset = rest[count:], offset + count
        if is_end:
            os.truncate(self.descriptor, offset)


@final
class _Files:
    """The files of a cache, opened when they are needed. A child of fork() opens its own, to have its own locks."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths
        self._opened: dict[tuple[str, int], _Descriptor] = {}

    def __getitem__(self, name: str) -> _Descriptor:
        key = name, os.getpid()
        found = self._opened.get(key)
        # Two threads may both open it; one of the two is used, and the other is closed.
        return found or self._opened.setdefault(key, _Descriptor(self._paths[name]))

    def locked(self, name: str) -> _Descriptor:
        """Returns a new descriptor, locked until it is dropped or the process ends.

        Raises:
            BlockingIOError: Another descriptor has the lock.
        """
        descriptor = _Descriptor(self._paths[name])
        fcntl.flock(descriptor.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def close(self) -> None:
        self._opened.clear()  # a call under way has its own reference


@final
class _Recorder:
    """Writes an epoch of a stream from its beginning, as the owner of the lock."""

    def __init__(self, cache: OpenCacheFiles, lock: _Descriptor) -> None:
        self._cache, self._spec = cache, cache.files.spec
        self._lock: _Descriptor | None = lock
        self._rows = rows_of(self._spec)
        self._opened = {name: cache.opened[name] for name in (*self._rows, "rest.bin")}
        self._begin()
        self._outs = {
            name: os.fdopen(each.descriptor, "ab", _BUFFER_NBYTES, closefd=False) for name, each in self._opened.items()
        }

    def _begin(self) -> None:
        self._count = self._rest_nbytes = 0
        self._write_headers(is_end=True)

    def _write_headers(self, *, is_end: bool) -> None:
        for name, opened in self._opened.items():
            if name in self._rows:
                dtype, shape = self._rows[name]
                opened.write(header(dtype, (self._count, *shape)), 0, is_end=is_end)
            else:
                opened.write(b"", 0, is_end=is_end)

    def put(self, leaves: Leaves) -> None:
        if self._lock is not None:
            with self._giving_up():
                self._put(leaves)

    def _put(self, leaves: Leaves) -> None:
        checksum, rest = zlib.crc32(self._count.to_bytes(8, "little")), b""
        for number, (leaf, value) in enumerate(zip(self._spec.leaves, leaves, strict=True)):
            if has_rows(leaf):
                data = np.asarray(value, leaf.dtype).tobytes()
                self._outs[f"{number}.npy"].write(data)
                checksum = zlib.crc32(data, checksum)
            else:
                rest += encode(leaf, value)
        mark = [zlib.crc32(rest, checksum) << 32 | int(_trusted(self._cache.files))]
        if self._cache.files.has_rest:
            mark = [self._rest_nbytes, len(rest), *mark]
        self._outs["rest.bin"].write(rest)
        self._outs["index.npy"].write(np.array(mark, "<u8").tobytes())
        self._count, self._rest_nbytes = self._count + 1, self._rest_nbytes + len(rest)
        limit = self._cache.files.limit
        if limit is not None and self._count * row_nbytes(self._spec) + self._rest_nbytes > limit:
            raise OSError(errno.ENOSPC, f"limit={limit:,} bytes is reached, and a stream is kept whole or not")

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Where a write fails, ends the writing and frees the room."""
        try:
            yield
        except OSError as error:
            self._cache.warn(error)
            self.close()
            with suppress(OSError):
                self._begin()

    def finish(self) -> None:
        if self._lock is None:
            return
        with self._giving_up():
            for out in self._outs.values():
                out.flush()
            self._write_headers(is_end=False)
            for opened in self._opened.values():
                seal_size(opened.descriptor)
            self._cache.opened["count"].write((self._count + 1).to_bytes(8, "little"), 0)

    def close(self) -> None:
        for out in self._outs.values():
            with suppress(OSError):
                out.close()
        self._lock = None
