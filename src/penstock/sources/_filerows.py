"""Reads rows of an array in a file into memory that it is given, many at a time.

The file is never mapped: a process that touches a mapping of a file that has become shorter dies by SIGBUS,
and one that reads a whole file through a mapping shows the whole file as its resident memory. Rows go from
the page cache straight to their destinations, by `_aio.ReadQueue` where the kernel has it and by `preadv`
where not.

What threads share, and why that is right. `gather` and `advise` may be called by any number of threads at
once.

- The descriptor. Reads name their own offset, so no thread moves another's. It belongs to an `_OpenFile`,
  which each call holds while it runs: `close` drops the reference of `FileRows`, and the descriptor is closed
  when the last call under way has let go of it. So no read can go to another file that was given its number.
- The read queues. One thread at a time has each; lending is by atomic deque operations.
- The state of `advise`, one integer. Written without a lock: a lost update costs or saves a few system calls.
- Opening and closing. Under a lock, so that a file is opened once, and not after it was closed.
- The destinations. Two calls may not write the same rows; the caller sees to that (units are disjoint).

The GIL is free while bytes move. A child made by fork uses the same descriptor, which is right for positioned
reads, and makes read queues of its own.

Thousands a second, from the page cache and shuffled (measured 2026-11, 2 cores that others used too; all of
six rounds):

                                               one thread   two threads   np.take of a memmap, one thread
    pairs of neighbours, 60 kB, 32 a call        57 to 93     85 to 151                        107 to 153
    rows of 8 kB, 256 a call                   326 to 462    264 to 767                      708 to 1,224

Two threads over np.take in the same round: pairs 0.68 to 1.08, 8 kB 0.35 to 0.92. Some 45 us of a call are
ours (the parts timed apart: 64 rows or 256 take about the same); the rest is the kernel's.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from penstock.base._errors import SourceError
from penstock.sources import _aio
from penstock.sources._inmemory import is_in_memory
from penstock.sources.npy import StridedFile

Read: TypeAlias = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64] | slice]
"""`(indices, out, rows)`: row `indices[k]` of the file goes to `out[rows[k]]`."""

# Pieces of memory that one read may fill. IOV_MAX is 1024; beyond some dozens nothing more is saved.
_MAX_VECTORS: Final = 64
# So many places of units are remembered, 16 bytes a row: half a MiB. Units of more rows hardly gain by it.
_MAX_KNOWN: Final = 64
_MAX_KNOWN_ROWS: Final = 512
# Of rows of fewer bytes, neighbours that are neighbours in memory too are one piece, such as a window of tokens.
_SMALL_NBYTES: Final = 4 << 10
# Small rows that lie so far apart, from one's beginning to the next's, are read with what is between them: another read
# takes as long as copying some kilobytes more. Such are windows with a stride.
_NEAR_NBYTES: Final = 2 << 10
# So many bytes of the file at a time, about: they stay in the core's cache.
_STRETCHES_NBYTES: Final = 512 << 10
# Fewer reads than this are done one by one: the tables of a read queue take longer to fill.
_MIN_QUEUED: Final = 4
# `advise` looks whether this many rows of a call are in memory (6 to 10 us; announcing 32 rows of 60 kB takes
# 100 if they are there, 600 to 800 if not; measured 2026-11, 2 cores). After a miss it announces the rows
# of so many calls without looking.
_PROBE_COUNT: Final = 2
_UNPROBED_CALLS: Final = 64
# Bytes between two stretches that are announced as one: a seek costs more than reading them.
_ADVISE_GAP_NBYTES: Final = 16 << 10
# The kernel cuts an announcement to the device's readahead, which by default is this much, and forgets the rest.
_ADVICE_NBYTES: Final = 128 << 10
# A row of a Fortran array has as many stretches as elements. So many are announced a call, the rest is not.
_MAX_ADVICES: Final = 4096
_HAS_FADVISE: Final = hasattr(os, "posix_fadvise")


class _OpenFile:
    """A descriptor that is closed when nobody holds this object any more."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        self._seek_lock = threading.Lock()

    def read_at(self, offset: int, views: list[memoryview]) -> int:
        """Fills `views` with the bytes from `offset` on; returns how many, fewer only at the file's end."""
        total = 0
        while views:
            count = self._read_some(offset + total, views)
            if count == 0:
                break
            total += count
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]
        return total

    def _read_some(self, offset: int, views: list[memoryview]) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fd, views, offset)
        # Windows has no positioned read in `os`: the position is shared, so one thread at a time.
        with self._seek_lock, open(self.fd, "rb", buffering=0, closefd=False) as file:
            file.seek(offset)
            return file.readinto(views[0]) or 0

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # Bound here: when the interpreter ends, `os` may be there and what is in it gone.
        if getattr(self, "fd", -1) >= 0:
            _close(self.fd)


class _Requests(NamedTuple):
    """Reads to be done: a *request* is a stretch of the file that goes to one or more pieces. Arrays are int64."""

    offsets: NDArray[np.int64]
    """Byte of the file at which each request starts."""
    heads: NDArray[np.int64]
    """The piece that each fills first, an index into `vectors`."""
    counts: NDArray[np.int64]
    """The pieces that each fills."""
    vectors: NDArray[np.int64]
    """Shape `(pieces, 2)`, address and bytes: the kernel's `struct iovec`. A piece is a row, or several small ones."""
    sizes: NDArray[np.int64]
    """The bytes of each."""


class _Plan:
    """The reads that fetch the first run of each of some rows; the other runs are the same reads elsewhere.

    It is made for every unit, with few and simple operations: beside a read that has emptied the processor's caches
    each costs some microseconds, and holds the GIL. So rows are joined that follow one another as they were
    asked for, and nothing is sorted; and rows that are neighbours in memory too stay vectors of their own, which
    the kernel hardly minds, but where they are small.
    """

    def __init__(self, elements: NDArray[np.int64], offsets: NDArray[np.int64], vectors: NDArray[np.int64]) -> None:
        self._elements = elements
        self._nbytes = nbytes = int(vectors[0, 1])
        self._rows: NDArray[np.int64] | None = None
        """The first row of each piece; None where a piece is a row."""
        breaks = offsets[1:] - offsets[:-1] != nbytes
        if nbytes < _SMALL_NBYTES:
            starts = _with_ends(breaks | (vectors[1:, 0] - vectors[:-1, 0] != nbytes))
            if len(starts) <= len(offsets):
                self._rows = rows = starts[:-1]
                vectors = np.stack((vectors[rows, 0], (starts[1:] - rows) * nbytes), axis=1)
                offsets, breaks = offsets[rows], breaks[rows[1:] - 1]
        bounds = _with_ends(breaks)
        if len(offsets) > _MAX_VECTORS:
            bounds = _split(bounds)
        self._heads = heads = bounds[:-1]
        counts = bounds[1:] - heads
        sizes = counts * nbytes if self._rows is None else np.add.reduceat(vectors[:, 1], heads)
        self.requests = _Requests(offsets[heads], heads, counts, vectors, sizes)

    def at_runs(self, first: int, shifts: NDArray[np.int64]) -> _Requests:
        """Returns the reads for runs `first` and on; run k lies `shifts[k]` bytes after run 0."""
        offsets, heads, counts, vectors, sizes = self.requests
        runs = np.arange(len(shifts))[:, None]
        moved = np.tile(vectors, (len(shifts), 1, 1))
        moved[:, :, 0] += (first + runs) * self._nbytes
        return _Requests(
            (offsets + shifts[:, None]).ravel(),
            (heads + runs * len(vectors)).ravel(),
            np.tile(counts, len(shifts)),
            moved.reshape(-1, 2),
            np.tile(sizes, len(shifts)),
        )

    def element_at(self, request: int, byte: int) -> int:
        """Returns the element to which a byte of a request belongs."""
        piece = int(self._heads[request])
        row = piece if self._rows is None else int(self._rows[piece])
        return int(self._elements[row + byte // self._nbytes])


def _with_ends(breaks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where groups of neighbours start, and the end, given where there is a break between two."""
    starts = np.empty(len(breaks) + 2, np.bool_)
    starts[0] = starts[-1] = True
    starts[1:-1] = breaks
    return starts.nonzero()[0]


def _split(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Splits groups that are larger than `_MAX_VECTORS`."""
    lengths = bounds[1:] - bounds[:-1]
    if lengths.max() <= _MAX_VECTORS:
        return bounds
    place = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    return np.append(np.flatnonzero(place % _MAX_VECTORS == 0), bounds[-1])


@final
class FileRows:
    """The rows of one array in a file, opened in this process.

    Opens the file at first use. Memory: a descriptor, and 8 bytes for each run of a row (1 for C order, as
    many as a row has elements for Fortran order). The process's resident memory does not grow with what is
    read.

    Args:
        handle: The array, as `npy.describe` or `StridedFile.of_memmap` gives it.
    """

    def __init__(self, handle: StridedFile) -> None:
        self.handle = handle
        self._run_nbytes, self._run_count = handle.runs
        self._run_offsets = handle.run_offsets()
        self._file: _OpenFile | None = None
        self._closed = False
        self._open_lock = threading.Lock()
        self._unprobed_calls = 0
        self._known_vectors: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads rows into their destinations; all of a call together, each byte moved once.

        Rows that follow one another in the file and were asked for one after the other, or in the same place of
        several requests (a frame and its successor), are one read. A row wanted twice is read twice: that is one
        copy, and so would be a copy from its first destination.

        Args:
            reads: Each `(indices, out, rows)`: row `indices[k]`, which the caller has checked to be in range,
                goes to `out[rows[k]]`. `out` is C-contiguous, writable, of shape `(any, *row_shape)` and of
                the file's dtype, byte order included. `rows` is an int64 array or a slice, with as many rows
                as there are indices.

        Raises:
            SourceError: The file was replaced, deleted or shortened, or its device fails; names file and
                element. Rows of `out` may have been written.
        """
        elements = _interleaved([indices for indices, _, _ in reads])
        if not len(elements):
            return
        file = self._opened(int(elements[0]))
        if self._run_count == 0:
            return
        if len(elements) == 1 and self._run_count == 1:
            self._read_row(file, *next(read for read in reads if len(read[0])))
            return
        # As unsigned numbers, negative ones are large.
        assert elements.view(np.uint64).max() < self.handle.shape[0], "a row that the file does not have"
        if len(reads) == 1 and self._are_near(elements):
            self._gather_near(*reads[0])
            return
        offsets = elements * self.handle.strides[0]
        offsets += self.handle.offset
        plan = _Plan(elements, offsets, self._vectors(reads))
        queue = _aio.take() if len(plan.requests.offsets) * self._run_count >= _MIN_QUEUED else None
        try:
            if self._run_count == 1:
                self._read(file, queue, plan, plan.requests)
                return
            at_once = max(1, _aio.CAPACITY // len(plan.requests.offsets))
            for first in range(0, self._run_count, at_once):
                shifts = self._run_offsets[first : first + at_once]
                self._read(file, queue, plan, plan.at_runs(first, shifts))
        finally:
            _aio.put(queue)

    def _read_row(self, file: _OpenFile, indices: NDArray[np.int64], out: NDArray[Any], rows: Any) -> None:
        """Reads a single row, such as `ds[i]` wants of every column: to plan it takes longer than to read it."""
        element = int(indices[0])
        row = rows.indices(len(out))[0] if isinstance(rows, slice) else int(rows[0])
        place = out[row : row + 1]
        assert 0 <= element < self.handle.shape[0], "a row that the file does not have"
        assert place.shape == (1, *self.handle.row_shape), (place.shape, self.handle.row_shape)
        assert place.dtype == self.handle.dtype, (place.dtype, self.handle.dtype)
        assert out.flags.c_contiguous, "a row is written as one piece"
        assert out.flags.writeable, "rows are written"
        offset = element * self.handle.strides[0] + self.handle.offset
        self._read_one(file, offset, [place.view(np.uint8).reshape(-1).data], self._run_nbytes, lambda byte: element)

    def _are_near(self, elements: NDArray[np.int64]) -> bool:
        """Whether rows are small and lie a little apart, to judge by the first three: shuffled ones hardly do."""
        nbytes = self.handle.row_nbytes
        if nbytes > _NEAR_NBYTES // 2 or len(elements) < 3 or self.handle.strides[0] != nbytes:
            return False
        first, second, third = elements[:3].tolist()
        step = second - first
        return bool(1 < step == third - second and step * nbytes <= _NEAR_NBYTES)

    def _gather_near(self, indices: NDArray[np.int64], out: NDArray[Any], rows: Any) -> None:
        """Reads stretches of the file whole, some at a time, and copies the rows that were asked for."""
        at_once = _STRETCHES_NBYTES // int((indices[1] - indices[0]) * self.handle.strides[0])
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            steps = some[1:] - some[:-1]
            bounds = _with_ends((steps < 1) | (steps * self.handle.strides[0] > _NEAR_NBYTES))
            firsts, lasts = some[bounds[:-1]], some[bounds[1:] - 1]
            counts = lasts - firsts + 1
            shifts = firsts - (np.cumsum(counts) - counts)  # from a row in memory to that of the file
            box = np.empty((int(counts.sum()), *self.handle.row_shape), self.handle.dtype)
            self.gather([(np.arange(len(box)) + np.repeat(shifts, counts), box, slice(0, len(box)))])
            at = some - np.repeat(shifts, bounds[1:] - bounds[:-1])
            if isinstance(rows, slice):  # `clip` writes straight into `out`, and all of them are in range
                np.take(box, at, axis=0, out=out[rows][start : start + at_once], mode="clip")
            else:
                out[rows[start : start + at_once]] = box[at]

    def _vectors(self, reads: Sequence[Read]) -> NDArray[np.int64]:
        """Where each row goes: address and bytes of its first run, shape `(rows, 2)`.

        Slots come again, so these are kept for those that are filled in one piece. A key is made of addresses of
        arrays that are alive now, and says all that the vectors hold, so it cannot go stale.
        """
        key: list[int] = []
        is_kept = sum(len(indices) for indices, _, _ in reads) <= _MAX_KNOWN_ROWS
        for indices, out, rows in reads:
            flags = out.flags
            assert flags.c_contiguous, "a row is written as one piece"
            assert flags.writeable, "rows are written"
            assert out.dtype == self.handle.dtype, (out.dtype, self.handle.dtype)
            assert out.shape[1:] == self.handle.row_shape, (out.shape, self.handle.row_shape)
            if isinstance(rows, slice):
                start, stop, step = rows.indices(len(out))
                assert len(range(start, stop, step)) == len(indices), (rows, len(indices))
                key += (out.__array_interface__["data"][0], start, stop, step)
            else:
                # Writing by address: a row outside of `out` would be somebody else's memory.
                assert not len(rows) or (0 <= rows.min() <= rows.max() < len(out)), "rows outside of out"
                assert rows.shape == indices.shape, (rows.shape, indices.shape)
                is_kept = False
        known = self._known_vectors.get(tuple(key)) if is_kept else None
        if known is not None:
            return known
        nbytes = self.handle.row_nbytes
        addresses = []
        for _, out, rows in reads:
            numbers = np.arange(*rows.indices(len(out)), dtype=np.int64) if isinstance(rows, slice) else rows
            addresses.append(numbers * nbytes + out.__array_interface__["data"][0])
        starts = _interleaved(addresses)
        vectors = np.empty((len(starts), 2), np.int64)
        vectors[:, 0] = starts
        vectors[:, 1] = self._run_nbytes
        if is_kept:
            if len(self._known_vectors) >= _MAX_KNOWN:
                self._known_vectors.clear()
            self._known_vectors[tuple(key)] = vectors
        return vectors

    def _read(self, file: _OpenFile, queue: _aio.ReadQueue | None, plan: _Plan, requests: _Requests) -> None:
        """Does the requests of a plan for one or more of its runs."""
        offsets, heads, counts, vectors, sizes = requests
        buffers = heads * (2 * vectors.itemsize)
        buffers += vectors.__array_interface__["data"][0]
        for start in range(0, len(offsets), _aio.CAPACITY):
            part = slice(start, start + _aio.CAPACITY)
            missed: Iterable[int] = range(len(offsets[part]))
            if queue is not None:
                missed = queue.read(file.fd, offsets[part], buffers[part], counts[part], sizes[part])
            # What did not come back whole is read again one by one, which tells a short read from the end of
            # the file, and an error of the device from one of the queue.
            for k in (start + each for each in missed):
                pieces = vectors[heads[k] : heads[k] + counts[k]].tolist()
                views = [memoryview((ctypes.c_char * n).from_address(a)).cast("B") for a, n in pieces]
                element_at = partial(plan.element_at, k % len(plan.requests.offsets))
                self._read_one(file, int(offsets[k]), views, int(sizes[k]), element_at)

    def _read_one(
        self, file: _OpenFile, offset: int, views: list[memoryview], nbytes: int, element_at: Callable[[int], int]
    ) -> None:
        """Does one read; `element_at` says to which element a byte of it belongs."""
        try:
            got = file.read_at(offset, views)
        except OSError as error:
            raise SourceError(
                f"{self.handle.describe(element_at(0))} cannot be read: {error.strerror or error}, at byte {offset:,} "
                f"of {self.handle.path}. The disk or the connection to it fails; see the system's log."
            ) from error
        if got < nbytes:
            raise self._shortened(os.fstat(file.fd).st_size, element_at(got))

    def advise(self, indices: NDArray[np.int64]) -> None:
        """Announces rows that will be read soon, so that the kernel fetches them meanwhile.

        Never fails: what is wrong with the file, `gather` will say. Does nothing where the system has no
        `posix_fadvise`, and next to nothing while the rows are in memory already.

        Args:
            indices: Rows, in range; any order.
        """
        if not _HAS_FADVISE or not len(indices) or not self._run_count:
            return
        with suppress(OSError):
            file = self._opened(int(indices[0]))
            if self._unprobed_calls > 0:
                self._unprobed_calls -= 1
            elif self._in_memory(file, indices):
                return
            else:
                self._unprobed_calls = _UNPROBED_CALLS
            for first, nbytes in self._stretches(indices):
                for start in range(first, first + nbytes, _ADVICE_NBYTES):
                    piece = min(_ADVICE_NBYTES, first + nbytes - start)
                    os.posix_fadvise(file.fd, start, piece, os.POSIX_FADV_WILLNEED)

    def _in_memory(self, file: _OpenFile, indices: NDArray[np.int64]) -> bool:
        """Says whether the rows looked at are in memory; False where that cannot be asked."""
        looked_at = indices[:: -(-len(indices) // _PROBE_COUNT)] * self.handle.strides[0] + self.handle.offset
        return all(is_in_memory(file.fd, offset) for offset in looked_at.tolist())

    def _stretches(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yields `(first byte, length)` of what the rows cover, neighbours merged."""
        rows = indices[: max(1, _MAX_ADVICES // self._run_count)] * self.handle.strides[0] + self.handle.offset
        starts = np.sort((rows[:, None] + self._run_offsets[:_MAX_ADVICES]).ravel())
        gaps = starts[1:] - starts[:-1] > self._run_nbytes + _ADVISE_GAP_NBYTES
        bounds = _with_ends(gaps)
        firsts, lasts = starts[bounds[:-1]], starts[bounds[1:] - 1]
        return zip(firsts.tolist(), (lasts - firsts + self._run_nbytes).tolist(), strict=True)

    def describe(self, index: int) -> str:
        """Names one row as a message should: `ds.npy[777]`."""
        return self.handle.describe(index)

    def close(self) -> None:
        """Lets go of the file, at once or when calls under way have ended; a later call is an error."""
        with self._open_lock:
            self._closed = True
            self._file = None

    def __reduce__(self) -> Any:
        raise TypeError(f"FileRows of {self.handle.path} is open in one process; send its handle and open that.")

    def _opened(self, element: int) -> _OpenFile:
        """Returns the open file after a look at whether its name still means it (1 us)."""
        handle = self.handle
        file = self._file
        try:
            if file is None:
                file = self._open(element)
            status = os.stat(handle.path)
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(
                f"{handle.describe(element)} cannot be read: {handle.path}: {error.strerror or error}. The "
                f"file was there when the dataset was made; put it back, or make the dataset again."
            ) from error
        if (status.st_dev, status.st_ino) != (handle.st_dev, handle.st_ino):
            raise SourceError(
                f"{handle.describe(element)} cannot be read: {handle.path} was replaced by another file "
                f"since the dataset was made (inode {handle.st_ino} then, {status.st_ino} now), and a run "
                f"must not mix two. Make the dataset again, and a loader that goes on where this one is, by "
                f"set_state(). What is written in place instead reaches batches that are not made yet; the first of "
                f"the next epoch may be made already."
            )
        return file

    def _open(self, element: int) -> _OpenFile:
        with self._open_lock:
            if self._closed:
                raise SourceError(f"{self.handle.describe(element)} cannot be read: {self.handle.path} was closed.")
            if self._file is None:
                file = _OpenFile(self.handle.path)
                size = os.fstat(file.fd).st_size
                if size < self.handle.extent[1]:
                    raise self._shortened(size, element)
                self._file = file
            return self._file

    def _shortened(self, size: int, element: int) -> SourceError:
        handle = self.handle
        return SourceError(
            f"{handle.describe(element)} cannot be read: {handle.path} was shortened since the dataset was "
            f"made, from {handle.st_size:,} to {size:,} bytes; its array ends at byte {handle.extent[1]:,}. "
            f"Restore the file, or make the dataset again from what is there."
        )


def _interleaved(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Joins arrays, the first items of all before the second: so a frame comes beside its successor."""
    if len(parts) == 1:
        return parts[0]
    if not parts or any(len(part) != len(parts[0]) for part in parts):
        return np.concatenate([np.empty(0, np.int64), *parts])
    joined = np.empty((len(parts[0]), len(parts)), np.int64)
    for number, part in enumerate(parts):
        joined[:, number] = part
    return joined.reshape(-1)
