"""What the reader of a stream fills: spans, in which elements wait for the workers, or batches as they are."""

import pickle
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from penstock.base import _tree
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._pickles import dumps
from penstock.memory._rows import Rows, Window
from penstock.memory._shared import Place, read_bytes
from penstock.memory._slot import RingLayout


@final
class SpanLayout:
    """The layout of a span: each leaf stacked, with text and ragged arrays as Python objects.

    Args:
        spec: The spec of an element.
        size: Elements in a span.
        slot_count: Spans.
    """

    def __init__(self, spec: Spec, size: int, slot_count: int) -> None:
        self.element = spec
        self.size = size
        self.slot_count = slot_count
        leaves = [_stacked(leaf, size) for leaf in spec.leaves]
        self._extents = [number for number, leaf in enumerate(spec.leaves) if leaf.varies]
        leaves += [ArraySpec((size,), "int64") for _ in self._extents]
        self.has_objects = not spec.is_bounded
        if self.has_objects:
            leaves.append(ArraySpec((size, 3), "int64"))
        leaves.append(ArraySpec((size,), "int64"))
        self.spec = Spec(tuple(leaves), _tree.flatten(tuple(leaves))[1])
        """The spec of the slot that holds a span."""

    def rows(self, slot: Rows) -> Rows:
        """Returns a span as places of elements."""
        count = len(self.element.leaves)
        extents: list[Any] = [None] * count
        for place, number in enumerate(self._extents):
            extents[number] = slot.arrays[count + place][0]
        return Rows([array[0] for array in slot.arrays[:count]], slice(0, self.size), extents)

    def window(self, slots: Sequence[Rows], shared: int = -1) -> Window:
        """Returns all spans as the window of a worker.

        Args:
            slots: The slots of the spans.
            shared: In another process, the descriptor of the file with text and ragged arrays.
        """
        fetch = _Fetch(self, slots, shared).fetch if shared >= 0 and self.has_objects else None
        return Window([self.rows(slot) for slot in slots], self.size, fetch)

    def packed(self, slot: Rows, start: int, stop: int) -> bytes:
        """Pickles text and ragged arrays of some elements, for another process."""
        return dumps([array[start:stop] for array in objects_of(self.rows(slot))], pickle.HIGHEST_PROTOCOL)

    def note_place(self, slot: Rows, start: int, stop: int, place: Place) -> None:
        """Writes beside some elements the place of the bytes from `packed`."""
        slot.arrays[-2][0][start:stop] = (*place, start)

    @staticmethod
    def place(slot: Rows, row: int) -> tuple[Place, int]:
        """Returns the place of the bytes of an element, and the first element in them."""
        offset, nbytes, start = slot.arrays[-2][0][row].tolist()
        return Place(offset, nbytes), start

    @property
    def nbytes(self) -> int:
        """Bytes of all spans."""
        return RingLayout(self.spec, self.slot_count).nbytes

    @staticmethod
    def consumed(slot: Rows) -> Any:
        """Returns how far the input of the stream was read for each element; see `Reader.consumed`."""
        return slot.arrays[-1][0]


@final
class BatchLayout:
    """The layout of a slot that is handed out as it is: the rows of a batch, or one element.

    Args:
        spec: The spec of a batch, or of an element.
        batch_size: Elements in a batch; 0 without batches.
        slot_count: Slots.
    """

    def __init__(self, spec: Spec, batch_size: int, slot_count: int) -> None:
        self.spec = spec
        self.size = max(1, batch_size)
        self.slot_count = slot_count
        self._is_stacked = batch_size > 0

    def rows(self, slot: Rows) -> Rows:
        """Returns a slot as places of elements."""
        return slot.inside() if self._is_stacked else slot

    def set_filled(self, slot: Rows, count: int) -> None:
        """Says how many elements were written into a batch."""
        if self._is_stacked:
            slot.set_extents(count)


def objects_of(rows: Rows) -> list[Any]:
    """Returns the arrays that hold Python objects, one for each element."""
    return [array for array in rows.arrays if array.dtype == object]


@final
class _Fetch:
    """Loads text and ragged arrays from the process that reads the stream, on demand."""

    def __init__(self, layout: SpanLayout, slots: Sequence[Rows], shared: int) -> None:
        self._layout = layout
        self._slots = slots
        self._shared = shared
        self._there: list[tuple[int, set[int]]] = [(-1, set())] * len(slots)
        """For each slot, the number of its span, and the first elements of the bytes that were loaded."""

    def fetch(self, number: int, start: int, stop: int) -> None:
        """Loads the objects of some elements of a span into their places."""
        which = number % len(self._slots)
        slot = self._slots[which]
        if self._there[which][0] != number:
            self._there[which] = (number, set())
        there = self._there[which][1]
        while start < stop:
            place, first = self._layout.place(slot, start)
            if first not in there:
                values = pickle.loads(read_bytes(self._shared, place))
                for array, found in zip(objects_of(self._layout.rows(slot)), values, strict=True):
                    array[first : first + len(found)] = found
                there.add(first)
            start = self._next(slot, start, place)

    def _next(self, slot: Rows, row: int, place: Place) -> int:
        while row < self._layout.size and self._layout.place(slot, row)[0] == place:
            row += 1
        return row


def _stacked(leaf: ArraySpec, size: int) -> ArraySpec:
    if leaf.max_shape is None:
        return ArraySpec((size,), np.dtype("U"))  # a place for an object each
    return ArraySpec((size, *leaf.max_shape), leaf.dtype)
