"""Steps that choose elements by position: slices of every kind, and a given list of them."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from penstock._plan._node import Demand, Indices, Length, Node, Reorder, finite_length


@final
@dataclass(frozen=True, eq=False)
class Slice(Reorder):
    """Elements `start, start + step, ...` of the input: `take`, `skip`, `shard`, `split` and `ds[a:b:c]`."""

    source: Node
    name: str
    """The verb that the user called."""
    text: str
    """Its arguments, for `repr`."""
    start: int
    step: int
    count: Length

    @property
    def verb(self) -> str:
        """The verb that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"{self.name}({self.text})"

    def settings(self) -> dict[str, Any]:
        """Where it starts, its step and its length."""
        return {"start": self.start, "step": self.step, "count": self.count}

    def _find_length(self) -> Length:
        return self.count

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """An affine map of positions."""
        return [Demand(0, epoch, indices * self.step + self.start)]

    def clear_after(self, index: int) -> int:
        """As the input, seen through the slice; a slice that runs backwards is looked at from its other end."""
        here = self.start + index * self.step
        if self.step > 0:
            return max(index + 1, -((self.start - self.source.clear_after(here)) // self.step))
        later = index + 1
        while self.source.clear_after(self.start + later * self.step) > here and later < finite_length(self):
            later += 1
        return later


@final
@dataclass(frozen=True, eq=False)
class Select(Reorder):
    """The elements of an ascending list of positions. Holds the list: 8 bytes an element."""

    source: Node
    name: str
    """The verb that the user called."""
    text: str
    """Its arguments, for `repr`."""
    positions: Indices

    @property
    def verb(self) -> str:
        """The verb that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"{self.name}({self.text})"

    def settings(self) -> dict[str, Any]:
        """How many were chosen."""
        return {"count": len(self.positions)}

    def _find_length(self) -> int:
        return len(self.positions)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """A look-up in the list."""
        return [Demand(0, epoch, self.positions[indices])]

    def clear_after(self, index: int) -> int:
        """The first that is chosen behind where the input is clear; the list ascends."""
        clear = self.source.clear_after(int(self.positions[index]))
        return max(index + 1, int(np.searchsorted(self.positions, clear)))


def sliced(source: Node, name: str, text: str, start: int | None, stop: int | None, step: int | None) -> Slice:
    """Builds a slice of a dataset of any length as Python slices a sequence.

    Raises:
        ValueError: `step` is zero, or an infinite dataset was sliced from its end.
    """
    length = source.length
    if isinstance(length, int):
        first, last, stride = slice(start, stop, step).indices(length)
        return Slice(source, name, text, first, stride, len(range(first, last, stride)))
    first, stride = operator.index(start or 0), 1 if step is None else operator.index(step)
    if first < 0 or stride < 1 or (stop is not None and stop < 0):
        raise ValueError("a dataset without an end cannot be counted from its end")
    count: Length = length if stop is None else len(range(first, stop, stride))
    return Slice(source, name, text, first, stride, count)


def as_range(positions: Indices) -> tuple[int, int] | None:
    """Returns `(start, count)` if positions are neighbours in order, else None."""
    if len(positions) and not np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions))):
        return None
    return (int(positions[0]) if len(positions) else 0), len(positions)
