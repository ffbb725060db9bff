"""Steps that choose elements by position: slices of every kind, and a given list of positions."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._node import POSITION_LIMIT, Demand, Elements, Length, Node, Reorder, Traits, finite_length
from penstock.plan._reader import Reader


class _Choice(Reorder):
    name: str
    """The verb that the user called."""
    text: str
    """Its arguments, for `repr`."""

    @property
    def verb(self) -> str:
        """The verb that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"{self.name}({self.text})"


@final
@dataclass(frozen=True, eq=False)
class Slice(_Choice):
    """Elements `start, start + step, ...` of the input: `take`, `skip`, `shard`, `split` and `ds[a:b:c]`."""

    source: Node
    name: str
    text: str
    start: int
    step: int
    count: Length

    def settings(self) -> dict[str, Any]:
        """Start, step and count, whichever verb made them."""
        return {"start": self.start, "step": self.step, "count": self.count}

    @cached_property
    def length(self) -> Length:
        """At most the count: the input may be a stream that ends earlier."""
        available = self.source.length
        if available is None or self.step < 0:
            return None if available is None else self.count
        most = math.inf if available == math.inf else _count(self.start, int(available), self.step)
        return most if self.count is None or self.count > most else self.count

    @property
    def traits(self) -> Traits:
        """Positions are enough, if elements are neighbours."""
        return Traits(is_parallel=self.step == 1)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """An affine map of positions."""
        return [Demand(0, epoch, indices * self.step + self.start)]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The chosen elements of a stream, which is read from its start."""
        if self.count == 0:
            return
        last = None if self.count in (None, math.inf) else self.start + (int(self.count or 0) - 1) * self.step
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            if number >= self.start and (number - self.start) % self.step == 0:
                yield leaves
            if number == last:
                return

    def clear_after(self, index: int) -> int:
        """That of the input, in positions of the slice. A backward slice is searched from its other end."""
        here = self.start + index * self.step
        if self.step > 0:
            return max(index + 1, -((self.start - self.source.clear_after(here)) // self.step))
        later = index + 1
        while self.source.clear_after(self.start + later * self.step) > here and later < finite_length(self):
            later += 1
        return later


@final
@dataclass(frozen=True, eq=False)
class Select(_Choice):
    """The elements at an ascending list of positions. The list takes 8 bytes an element."""

    source: Node
    name: str
    text: str
    positions: Indices

    def settings(self) -> dict[str, Any]:
        """The number of positions."""
        return {"count": len(self.positions)}

    @cached_property
    def length(self) -> int:
        """The number of positions."""
        return len(self.positions)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """A look-up in the list."""
        return [Demand(0, epoch, self.positions[indices])]

    def clear_after(self, index: int) -> int:
        """The first chosen position where the input is clear; the list ascends."""
        clear = self.source.clear_after(int(self.positions[index]))
        return max(index + 1, int(np.searchsorted(self.positions, clear)))


def sliced(source: Node, name: str, text: str, start: int | None, stop: int | None, step: int | None) -> Slice:
    """Builds a slice of a dataset of any length as Python slices a sequence.

    Raises:
        ValueError: `step` is zero, or an infinite dataset was sliced from its end.
    """
    length = source.length
    if step is not None:
        step = max(-POSITION_LIMIT, min(operator.index(step), POSITION_LIMIT))  # a larger step gives one element, too
    if source.access == "stream" and step is not None and step < 0:
        raise ValueError("a stream cannot be read backwards")
    if isinstance(length, int):
        first, last, stride = slice(start, stop, step).indices(length)
        return Slice(source, name, text, first, stride, _count(first, last, stride))
    first, stride = operator.index(start or 0), 1 if step is None else step
    if first < 0 or stride < 1 or (stop is not None and stop < 0):
        what = "without an end" if length == math.inf else "of unknown length"
        raise ValueError(f"a dataset {what} cannot be counted from its end")
    count: Length = length if stop is None else _count(first, operator.index(stop), stride)
    return Slice(source, name, text, first, stride, count)


def _count(first: int, stop: int, step: int) -> int:
    """The length of a range. `len` fails above 2**63."""
    return max(0, -((first - stop) // step))


def as_range(positions: Indices) -> tuple[int, int] | None:
    """Returns `(start, count)` if positions are neighbours in order, else None."""
    if len(positions) and not np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions))):
        return None
    return (int(positions[0]) if len(positions) else 0), len(positions)
