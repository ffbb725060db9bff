"""The layout of a slot, which holds one element of the loader, and of the ring around it."""

import mmap
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._spec import Spec
from penstock.memory._mapping import PAGE_NBYTES
from penstock.memory._rows import Rows
from penstock.memory._times import word_count

TIMED_COUNT = 16
"""Workers that have time words of their own. Two workers that share words may lose a note, which does no harm."""
_SLOT_WORDS = 5
ALIGNMENT_NBYTES = 64
"""A cache line. XLA needs this alignment to use memory without a copy."""


@final
class SlotLayout:
    """The place of each leaf of a spec in a slot: aligned places, one after the other.

    Leaves without a size (text, ragged arrays) have no place. The ring keeps them as Python objects.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.nbytes = 0
        self._places = [self._reserve(leaf.nbytes) for leaf in spec.leaves]
        self._extent_places = [self._reserve(8 if leaf.varies else None) for leaf in spec.leaves]
        self.nbytes = _up(self.nbytes, PAGE_NBYTES)
        self._shapes = [leaf.max_shape or () for leaf in spec.leaves]
        self.has_arrays_alone = all(
            place is not None and leaf.shape for leaf, place in zip(spec.leaves, self._places, strict=True)
        )
        """Whether every leaf is an array with a place in the slot, so no object and no scalar."""
        self.views: tuple[list[tuple[int, ...]], list[np.dtype[Any]], list[int]] | None = None
        """The shapes, dtypes and places of the leaves, if all are arrays whose sizes never vary."""
        if self.has_arrays_alone and not any(leaf.varies for leaf in spec.leaves):
            self.views = self._shapes, [leaf.dtype for leaf in spec.leaves], [place or 0 for place in self._places]

    def _reserve(self, nbytes: int | None) -> int | None:
        if nbytes is None:
            return None
        place = self.nbytes
        self.nbytes = _up(place + nbytes, ALIGNMENT_NBYTES)
        return place

    def rows(self, root: npt.NDArray[np.uint8]) -> Rows:
        """Returns the slot as the one row that a plan fills, with Python objects where a leaf has no place."""
        unplaced = iter(Rows.allocate(self.spec.unbounded(), 1).arrays)
        arrays = [
            next(unplaced) if place is None else np.ndarray((1, *shape), leaf.dtype, root, place)
            for place, leaf, shape in zip(self._places, self.spec.leaves, self._shapes, strict=True)
        ]
        extents = [None if place is None else np.ndarray((1,), np.int64, root, place) for place in self._extent_places]
        return Rows(arrays, slice(0, 1), extents)

    def leaves(self, root: npt.NDArray[np.uint8], filled: Rows) -> list[Any]:
        """Returns the element in a slot: views of `root`, cut to the used extent, and Python objects."""
        leaves: list[Any] = []
        for array, extent, place, shape in zip(filled.arrays, filled.extents, self._places, self._shapes, strict=True):
            if place is None:
                leaves.append(array[0] if extent is None else array[0, : extent[0]])
            else:
                used = shape if extent is None else (extent.item(), *shape[1:])
                leaves.append(np.ndarray(used, array.dtype, root, place))
        return leaves


@final
class RingLayout:
    """The layout of a ring: a header that its workers share, the slots, then the words for times.

    Args:
        spec: The contents of a slot.
        slot_count: How many slots.
        step_count: Steps whose time is measured.
    """

    def __init__(self, spec: Spec, slot_count: int, step_count: int = 0) -> None:
        self.slot = SlotLayout(spec)
        self.slot_count = slot_count
        self._header_nbytes = _up(_header_nbytes_of(slot_count), PAGE_NBYTES)
        self._times_at = self._header_nbytes + slot_count * self.slot.nbytes
        self._times_count = word_count(step_count)
        self.nbytes = self._times_at + 8 * TIMED_COUNT * self._times_count

    def times(self, memory: mmap.mmap) -> "list[memoryview[int]]":
        """Returns the time words of each worker, see `Times`. Worker `TIMED_COUNT` shares those of worker 0."""
        words = memoryview(memory)[self._times_at : self.nbytes].cast("q")
        return [words[start : start + self._times_count] for start in range(0, len(words), self._times_count)]

    def slots(self, memory: mmap.mmap) -> list[Rows]:
        """Returns every slot as the one row that a plan fills."""
        return [self.slot.rows(np.frombuffer(memory, np.uint8, *place)) for place in self.places()]

    def places(self) -> list[tuple[int, int]]:
        """Returns the length of each slot and its offset in the memory, in bytes."""
        nbytes = self.slot.nbytes
        return [(nbytes, self._header_nbytes + slot * nbytes) for slot in range(self.slot_count)]


def ring_header(memory: mmap.mmap | bytearray, slot_count: int) -> "memoryview[int]":
    """Returns the header of a ring: 64-bit integers before the slots, which its workers share.

    - The first is the last generation that was given up.
    - Five words a slot: four are the marks of a stream, see `marks_of`, and one counts units, see `count_place`.
    - Two of `RetryBudget.first_other`.
    - The last one is the recent time for a row in nanoseconds; 0 before the first row.
    """
    return memoryview(memory)[: _header_nbytes_of(slot_count)].cast("q")


def _header_nbytes_of(slot_count: int) -> int:
    return 8 * (4 + _SLOT_WORDS * slot_count)


def marks_of(header: "memoryview[int]", slot: int) -> "memoryview[int]":
    """Returns the words in a header by which the reader of a stream says what it wrote into a slot.

    They are: elements in the slot; whether the epoch ended after them; the generation of the unit that wrote them; how
    far the input of the stream was read for the last of them, see `Reader.consumed`.
    """
    start = 1 + _SLOT_WORDS * slot
    return header[start : start + _SLOT_WORDS - 1]


def count_place(slot: int) -> int:
    """Returns the word in a header that counts the units of a slot which no worker has answered yet; see `PoolTask`."""
    return _SLOT_WORDS * (slot + 1)


def counts(header: "memoryview[int]") -> list[int]:
    """Returns these words of all slots."""
    return header[_SLOT_WORDS::_SLOT_WORDS].tolist()


def own_header(slot_count: int = 1) -> "memoryview[int]":
    """Returns a header that no other process sees: for a plan without a ring, or after the end of the ring."""
    return ring_header(bytearray(_header_nbytes_of(slot_count)), slot_count)


def note_time(words: "memoryview[int]", row_count: int, seconds: float) -> None:
    """Notes how long some rows took. Workers may overwrite each other's notes. It only decides the size of units."""
    row_ns = int(seconds * 1e9) // max(1, row_count)
    words[-1] = (7 * words[-1] + row_ns) // 8 if words[-1] else row_ns


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
