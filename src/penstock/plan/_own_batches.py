"""The batches that one of several ranks gets whole."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._node import ClearAfter, Demand, Length, OneInput, Reorder, Traits, finite_length


@dataclass(frozen=True, eq=False)
class OwnBatches(Reorder, OneInput):
    """Of the input's batches, taken in turn by `count` ranks, those of rank `index`. `arrange` adds it.

    A step of the run is `count * step_size` batches. Element `i` is batch `first + i * count + index`. Over a stream
    an element needs the batches of its whole step, so that no rank begins a step that another rank cannot begin.
    """

    first: int
    """The batch at which the first step begins."""
    index: int
    count: int
    step_size: int
    """Batches that a rank takes in a step."""
    fills: bool
    """Whether the last step is filled up, with the last batch. Otherwise a step that is not full is left out."""

    verb = "shard"
    traits = Traits(is_parallel=True, is_hidden=True)

    @property
    def group(self) -> int:
        """Batches that all ranks take in a step."""
        return self.count * self.step_size

    @cached_property
    def length(self) -> Length:
        """The rank's batches from `first` on: those of all full steps."""
        below = self.source.length
        if below is None or below == math.inf:
            return below
        return self.count_of(int(below) - self.first)

    def count_of(self, left: int) -> int:
        """The batches that the rank gets of as many batches of all ranks."""
        return (-(-left // self.group) if self.fills else left // self.group) * self.step_size

    def weight(self, position: int, number: int) -> float:
        """The weight of a batch, such that the mean over a step of `weight * loss` is the mean over its batches.

        Args:
            position: The batch at which the step begins.
            number: How many batches the rank got in the step before.
        """
        left = finite_length(self.source) - position
        return self.group / min(left, self.group) if number * self.count + self.index < left else 0.0

    @property
    def keeps_neighbours(self) -> bool:  # type: ignore[override]
        """Where one rank takes all."""
        return self.count == 1

    def numbers(self, indices: Indices) -> Indices:
        """The batches that some elements are."""
        numbers = self.first + indices * self.count + self.index
        return np.minimum(numbers, finite_length(self.source) - 1) if self.fills else numbers

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The rank's own batches."""
        return [Demand(0, epoch, self.numbers(indices))]

    def needs(self, start: int, stop: int) -> tuple[int, int]:
        """All batches of their steps."""
        first, last = (self.first + number // self.step_size * self.group for number in (start, stop - 1))
        end = last + self.group
        return first, min(end, finite_length(self.source)) if self.fills else end

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first of the rank's batches that is clear of this one."""
        (number,) = self.numbers(np.array([index])).tolist()
        return max(index + 1, -((self.first + self.index - ask(self.source, number)) // self.count))
