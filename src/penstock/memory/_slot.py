"""How one element of the loader, most often a batch, lies in a slot."""

import mmap
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._spec import Spec
from penstock.memory._mapping import PAGE_NBYTES
from penstock.memory._rows import Rows
from penstock.memory._times import word_count

TIMED_COUNT = 16
"""Workers that have places of their own for their times. Two that share one may lose a note, which is no harm."""
ALIGNMENT_NBYTES = 64
"""A cache line, and what XLA asks of memory that it takes over without a copy."""


@final
class SlotLayout:
    """Where each leaf of a spec is in a slot: aligned places, one after the other.

    Leaves without a size (text, ragged arrays) have no place in it; the ring keeps them as Python objects.
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
        """Whether every leaf is an array with a place in the slot: no object, and no scalar."""

    def _reserve(self, nbytes: int | None) -> int | None:
        if nbytes is None:
            return None
        place = self.nbytes
        self.nbytes = _up(place + nbytes, ALIGNMENT_NBYTES)
        return place

    def rows(self, root: npt.NDArray[np.uint8]) -> Rows:
        """The slot as the one row that a plan fills, with Python objects where a leaf has no place."""
        unplaced = iter(Rows.allocate(self.spec.unbounded(), 1).arrays)
        arrays = [
            next(unplaced) if place is None else np.ndarray((1, *shape), leaf.dtype, root, place)
            for place, leaf, shape in zip(self._places, self.spec.leaves, self._shapes, strict=True)
        ]
        extents = [None if place is None else np.ndarray((1,), np.int64, root, place) for place in self._extent_places]
        return Rows(arrays, slice(0, 1), extents)

    def leaves(self, root: npt.NDArray[np.uint8], filled: Rows) -> list[Any]:
        """The element in a slot: views of `root`, cut to what is used; objects of leaves without a place."""
        leaves: list[Any] = []
        for number, (place, shape) in enumerate(zip(self._places, self._shapes, strict=True)):
            array, extent = filled.arrays[number], filled.extents[number]
            if place is None:
                leaves.append(array[0] if extent is None else array[0, : extent[0]])
            else:
                used = shape if extent is None else (int(extent[0]), *shape[1:])
                leaves.append(np.ndarray(used, array.dtype, root, place))
        return leaves


@final
class RingLayout:
    """Where the slots of a ring are in its memory, and the words before them that its workers share.

    Args:
        spec: What one slot holds.
        slot_count: How many slots.
        step_count: Steps of which workers note how long they take, behind the slots.
    """

    def __init__(self, spec: Spec, slot_count: int, step_count: int = 0) -> None:
        self.slot = SlotLayout(spec)
        self.slot_count = slot_count
        self._header_nbytes = _up(_header_nbytes_of(slot_count), PAGE_NBYTES)
        self._times_at = self._header_nbytes + slot_count * self.slot.nbytes
        self._times_count = word_count(step_count)
        self.nbytes = self._times_at + 8 * TIMED_COUNT * self._times_count

    def times(self, memory: mmap.mmap) -> "list[memoryview[int]]":
        """Where each worker notes its time, see `Times`; workers beyond `TIMED_COUNT` begin again at 0."""
        words = memoryview(memory)[self._times_at : self.nbytes].cast("q")
        return [words[start : start + self._times_count] for start in range(0, len(words), self._times_count)]

    def slots(self, memory: mmap.mmap) -> list[Rows]:
        """Every slot as the one row that a plan fills."""
        return [self.slot.rows(self.root(memory, slot)) for slot in range(self.slot_count)]

    def root(self, memory: mmap.mmap, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot, as an array of their own."""
        return np.frombuffer(memory, np.uint8, self.slot.nbytes, self._header_nbytes + slot * self.slot.nbytes)


def ring_header(memory: mmap.mmap | bytearray, slot_count: int) -> "memoryview[int]":
    """Integers before the slots of a ring, which its workers share.

    The first is the last generation that is given up; then come the units left of each slot, and three words a slot of
    what came of a unit that reads a stream; the last one is how many nanoseconds a row took of late, 0 before the
    first.
    """
    return memoryview(memory)[: _header_nbytes_of(slot_count)].cast("q")


def _header_nbytes_of(slot_count: int) -> int:
    return 8 * (2 + 4 * slot_count)


def outcome_words(words: "memoryview[int]", slot: int) -> "memoryview[int]":
    """The three words of a slot for what came of a unit that reads a stream; see `Outcome`."""
    start = 1 + len(words) // 4 + 3 * slot
    return words[start : start + 3]


def own_header(slot_count: int = 1) -> "memoryview[int]":
    """Such words that nobody else looks at: of a plan without a ring, or after its end."""
    return ring_header(bytearray(_header_nbytes_of(slot_count)), slot_count)


def note_time(words: "memoryview[int]", row_count: int, seconds: float) -> None:
    """Notes how long some rows took. Workers may overwrite each other's notes; it is about the size of units only."""
    row_ns = int(seconds * 1e9) // max(1, row_count)
    words[-1] = (7 * words[-1] + row_ns) // 8 if words[-1] else row_ns


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
