"""One memory file for each pool: large arrays and pickled plans, written once and read by every worker.

Which process writes what. The parent alone writes, by `pwrite`. It maps nothing, so its memory does not grow by what it
shares. The pages belong to the system and count once for all workers. A worker reads bytes, or maps them privately
(copy on write). It may write to its arrays, and neither the parent nor another worker sees that.

Guarantees.
- A place is written once and never reused: the file only grows, by whole pages. So no worker can see one array in the
  place of another. A released place is a hole and takes no memory.
- Any thread may call. A child that the parent forks has the file too, but never changes it.

A view of another array is shared as a view: `lay_out` finds the memory, and `View` makes the view again.

Decided elsewhere: when a place may be released. No worker may map it any more, because a page of a hole that the worker
has not written reads as zeros.
"""

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from penstock.memory._mapping import PAGE_NBYTES, MemoryFile

# The kernel moves at most 2 GiB in one call; and Ctrl-C has to wait for the end of one write.
_WRITE_NBYTES: Final = 64 << 20
_READ_NBYTES: Final = 1 << 30
_COMPARE_NBYTES: Final = 1 << 20


class Place(NamedTuple):
    """Where something lies in the file."""

    offset: int
    """The first byte, at the start of a page."""
    nbytes: int
    """How many bytes."""


@dataclass(slots=True)
class _Held:
    """A place in use."""

    place: Place
    root: "weakref.ref[npt.NDArray[Any]] | None"
    """The array from which the bytes were written."""
    count: int = 1


@final
class SharedFile:
    """The parent's side. The memory is freed when the last process has closed and unmapped the file."""

    def __init__(self) -> None:
        self._file = MemoryFile(0)
        self._end = 0
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def descriptor(self) -> int:
        """The descriptor for workers; -1 after `close`."""
        return self._file.descriptor

    def put_array(self, root: npt.NDArray[Any]) -> Place:
        """Writes the memory of an array, unless it is there already.

        The array itself, put before and still held, has one place, as long as it did not change since: contents
        are compared, at some GB/s, for nothing else tells.

        Args:
            root: Any shape and dtype without Python objects; its memory is one piece. Only a weak reference is kept.

        Raises:
            OSError: There is no memory for it.
        """
        data = _bytes_of(root)
        with self._lock:
            for held in self._held.values():
                if held.root is not None and held.root() is root and self._holds(held.place, data):
                    held.count += 1
                    return held.place
            return self._write(data, weakref.ref(root))

    def put_bytes(self, data: bytes) -> Place:
        """Writes bytes, always to a place of their own.

        Raises:
            OSError: There is no memory for them.
        """
        with self._lock:
            return self._write(memoryview(data), None)

    def release(self, place: Place) -> None:
        """Releases a place. Its memory is freed when each `put` of it was released."""
        if os.getpid() != self._pid:
            return  # a forked child: the lock may be taken for ever, and the file is the parent's
        with self._lock:
            held = self._held[place.offset]
            held.count -= 1
            if held.count == 0:
                del self._held[place.offset]
                self._punch(place)

    def close(self) -> None:
        """Closes this process's descriptor. Closing again does nothing."""
        self._file.close()

    def _write(self, data: memoryview, root: "weakref.ref[npt.NDArray[Any]] | None") -> Place:
        assert os.getpid() == self._pid, "a forked child would write where its parent does"
        place = Place(self._end, data.nbytes)
        try:
            written = 0
            while written < place.nbytes:
                piece = data[written : written + _WRITE_NBYTES]
                written += os.pwrite(self.descriptor, piece, place.offset + written)
        except BaseException:
            os.ftruncate(self.descriptor, place.offset)  # the place is the last, and not in use yet
            raise
        # A place of no bytes takes a page too, because its offset identifies it.
        self._end += -(-max(place.nbytes, 1) // PAGE_NBYTES) * PAGE_NBYTES
        self._held[place.offset] = _Held(place, root)
        return place

    def _holds(self, place: Place, data: memoryview) -> bool:
        """Returns whether a place has these bytes. Compares in pieces, which needs little memory."""
        if place.nbytes != data.nbytes:
            return False
        # A bytearray compares with another buffer at once. Bytes or memoryviews compare item by item.
        buffer = bytearray(min(_COMPARE_NBYTES, place.nbytes))
        for start in range(0, place.nbytes, _COMPARE_NBYTES):
            piece = data[start : start + _COMPARE_NBYTES]
            del buffer[len(piece) :]
            if os.preadv(self.descriptor, [buffer], place.offset + start) < len(piece) or buffer != piece:
                return False
        return True

    def _punch(self, place: Place) -> None:
        # A file system without holes keeps the memory until the file is closed.
        if hasattr(mmap, "MADV_REMOVE") and place.nbytes and self.descriptor >= 0:
            with (
                contextlib.suppress(OSError),
                mmap.mmap(self.descriptor, place.nbytes, offset=place.offset) as pages,
            ):
                pages.madvise(mmap.MADV_REMOVE)


def map_private(descriptor: int, place: Place) -> npt.NDArray[np.uint8]:
    """Maps a place for a worker: shape `(nbytes,)`, writable. Other processes do not see its writes.

    Pages that are only read are shared by all workers. The mapping goes with the last view of the array.
    """
    if place.nbytes == 0:
        return np.empty(0, np.uint8)
    memory = mmap.mmap(
        descriptor, place.nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=place.offset
    )
    return np.frombuffer(memory, np.uint8)


def read_bytes(descriptor: int, place: Place) -> bytes:
    """Reads a place.

    Raises:
        EOFError: The file ends before.
    """
    pieces = []
    read = 0
    while read < place.nbytes:
        piece = os.pread(descriptor, min(place.nbytes - read, _READ_NBYTES), place.offset + read)
        if not piece:
            raise EOFError(f"the shared file ends {place.nbytes - read:,} bytes before the end of {place}")
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)  # no copy if there is one piece


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Returns the memory of an array as bytes, without a copy."""
    assert array.flags.forc, "its memory is one piece"
    assert not array.dtype.hasobject, array.dtype
    # Order "A" is the order in memory, C or Fortran. Some dtypes have no buffer (dates), so it is viewed as uint8.
    return np.asarray(array).reshape(-1, order="A").view(np.uint8).data


class View(NamedTuple):
    """An array as a part of the memory of another array, which is shared."""

    root: int
    """The number of the shared array."""
    offset: int
    """Bytes from the start of that array to the first element."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    def load(self, roots: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[Any]:
        """Makes the array, in the memory of the shared arrays."""
        return np.ndarray(self.shape, self.dtype, roots[self.root], self.offset, self.strides)


def lay_out(arrays: Sequence[npt.NDArray[Any]]) -> tuple[list[View], tuple[npt.NDArray[Any], ...]]:
    """Finds the memory to share for some arrays, and the place of each in it.

    An array that owns its memory is shared once for all of its views, if they need half of it or more; otherwise
    each view is shared alone, and copied before if it has gaps.

    Args:
        arrays: Of any shape and strides, without Python objects.

    Returns:
        A view for each array, and the arrays to share, each one piece of memory.
    """
    needs: dict[int, set[tuple[int, int, int]]] = {}
    for array in arrays:
        needs.setdefault(id(_root_of(array)), set()).add((*byte_bounds(array), array.nbytes))
    views: list[View] = []
    roots: list[npt.NDArray[Any]] = []
    numbers: dict[int, int] = {}
    for array in arrays:
        root = _root_of(array)
        if not _is_worth(root, needs[id(root)]):
            array = root = array if array.flags.forc else np.ascontiguousarray(array)
        number = numbers.setdefault(id(root), len(roots))
        if number == len(roots):
            roots.append(root)
        views.append(View(number, _address(array) - _address(root), array.shape, array.dtype, array.strides))
    return views, tuple(roots)


def _is_worth(root: npt.NDArray[Any], needs: set[tuple[int, int, int]]) -> bool:
    """Returns whether to share an array for its views. Each view is its first byte, its end, and its size."""
    if not root.flags.forc or root.dtype.hasobject:
        return False
    low, high = byte_bounds(root)
    is_inside = all(low <= start and end <= high for start, end, _ in needs)
    # A column has fewer bytes than lie between its ends. Overlapping windows have more.
    return is_inside and root.nbytes <= 2 * sum(min(nbytes, end - start) for start, end, nbytes in needs)


def _root_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the array below a view that owns the memory, or whose memory belongs to no array."""
    while True:
        base: Any = array.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # `as_strided` puts an object of its own in between
        if not isinstance(base, np.ndarray):
            return array
        array = base


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
