"""How one element of the loader, most often a batch, lies in a slot."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock._memory._mapping import PAGE_NBYTES
from penstock._plan._reader import Rows
from penstock._spec import Spec

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

    def _reserve(self, nbytes: int | None) -> int | None:
        if nbytes is None:
            return None
        place = self.nbytes
        self.nbytes = _up(place + nbytes, ALIGNMENT_NBYTES)
        return place

    def arrays(self, root: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any] | None]:
        """Views of the leaves in a slot's bytes, each `(1, *max_shape)`; None for leaves without a place."""
        return [
            None
            if place is None
            else root[place : place + (leaf.nbytes or 0)].view(leaf.dtype).reshape(1, *(leaf.max_shape or ()))
            for leaf, place in zip(self.spec.leaves, self._places, strict=True)
        ]

    def extents(self, root: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.int64] | None]:
        """Views of how much of each varying leaf is used, each `(1,)`."""
        return [None if place is None else root[place : place + 8].view(np.int64) for place in self._extent_places]

    def rows(self, root: npt.NDArray[np.uint8]) -> Rows:
        """The slot as the one row that a plan fills, with Python objects where a leaf has no place."""
        spare = Rows.allocate(self.spec.unbounded(), 1).arrays
        unplaced = iter(spare)
        arrays = [next(unplaced) if array is None else array for array in self.arrays(root)]
        return Rows(arrays, slice(0, 1), self.extents(root))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def trimmed(arrays: Sequence[npt.NDArray[Any]], extents: Sequence[int | None]) -> list[npt.NDArray[Any]]:
    """Views of the element in `(1, ...)` arrays, cut to what is used of a first axis that varies."""
    return [
        array[0] if extent is None else array[0, :extent] for array, extent in zip(arrays, extents, strict=True)
    ]
