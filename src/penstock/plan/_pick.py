"""The elements at positions that a user gave: `ds[array]`."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentTypeError, ElementIndexError, type_of
from penstock.base._positions import as_values
from penstock.memory._rows import Indices
from penstock.plan._index import Select
from penstock.plan._node import POSITION_LIMIT, Memory, Node, Overlap
from penstock.plan._text import length_words


@dataclass(frozen=True, eq=False)
class Pick(Select):
    """Elements in the order of a list of positions. One may come several times."""

    spread = math.inf

    @cached_property
    def has_twins(self) -> bool:
        """Whether an element comes several times."""
        return len(np.unique(self.positions)) < len(self.positions)

    @property
    def takes_each_once(self) -> bool:  # type: ignore[override]
        """If none comes again, and none is left out."""
        return super().takes_each_once and not self.has_twins

    @cached_property
    def overlap(self) -> Overlap:
        """An element that comes twice shares its data with itself."""
        return "anywhere" if self.has_twins else super().overlap

    @property
    def memory(self) -> Memory:
        """The list."""
        return Memory(kept_nbytes=self.positions.nbytes)


def picked(source: Node, index: Any) -> Pick:
    """The elements of a dataset with random access that an array chooses, as NumPy does it.

    Raises:
        ArgumentTypeError: It is no array of one axis, of integers or bools.
        ElementIndexError: It points outside the dataset, or is a mask of another length.
    """
    array = np.asarray(as_values(index, "A dataset's index"))
    if array.ndim != 1:
        raise ArgumentTypeError(f"A dataset is indexed by an array of one axis, and this has the shape {array.shape}.")
    length = source.length
    if array.dtype == bool:
        if len(array) != length:
            raise ElementIndexError(
                f"A mask has an entry for each element. This has {len(array)}, the dataset {length_words(length)}."
            )
        return Pick(source, "index", f"{len(array)} bools", _own(np.flatnonzero(array)))
    if not len(array):
        array = array.astype(np.int64)  # a list without numbers is of floats
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"A dataset is indexed by an array of integers or bools, and {type_of(index)} of {array.dtype} is neither."
        )
    least, end = (-length, length) if isinstance(length, int) else (0, POSITION_LIMIT)
    outside = np.flatnonzero((array < least) | (array >= end))
    if len(outside):
        number, here = as_int(array[outside[0]]), length_words(length)
        raise ElementIndexError(f"Index {number}, at place {outside[0]} of the array, is outside a dataset of {here}.")
    positions = _own(array)
    if isinstance(length, int):
        positions[positions < 0] += length
    return Pick(source, "index", f"{len(positions)} integers", positions)


def _own(positions: Any) -> Indices:
    """A copy that nobody else writes to."""
    return np.array(positions, np.int64)
