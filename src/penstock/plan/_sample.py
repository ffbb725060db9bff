"""Elements drawn at random by weights: an order that is computed from (seed, epoch, position)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._random import permute
from penstock.memory._rows import Indices
from penstock.plan._index import mark_of
from penstock.plan._node import POSITION_LIMIT, Demand, Memory, OneInput, Overlap, Randomness, Reorder

_RANGE: Final = POSITION_LIMIT - 1


def _uniform(positions: Indices, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each position: its image under a bijection of a range far larger than any dataset."""
    return (permute(positions, _RANGE, seed=seed, epoch=epoch) + 0.5) / _RANGE


@final
class Weights:
    """Weights of elements, and what is computed from them once.

    Threads: any may ask. Two that miss the same order both compute it.
    """

    def __init__(self, values: npt.NDArray[np.float64]) -> None:
        self.values = values
        self._order: tuple[tuple[int, int] | None, Indices] = None, np.empty(0, np.int64)

    def __reduce__(self) -> Any:
        return Weights, (self.values,)

    @cached_property
    def _ends(self) -> npt.NDArray[np.float64]:
        return np.cumsum(self.values)

    def drawn(self, positions: Indices, seed: int, epoch: int) -> Indices:
        """The elements at some positions, each drawn alone."""
        ends = self._ends
        last = int(np.flatnonzero(self.values)[-1])  # rounding may reach the end
        found: Indices = np.searchsorted(ends, _uniform(positions, seed, epoch) * ends[-1], "right")
        return np.minimum(found, last, out=found)

    def order(self, seed: int, epoch: int) -> Indices:
        """All elements with a weight, each once: those that are drawn first, first.

        It is the order of `log(u) / weight` (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
        2006). The last one is kept.
        """
        key, order = self._order
        if key != (seed, epoch):
            some = np.flatnonzero(self.values)
            keys = np.log(_uniform(some, seed, epoch)) / self.values[some]
            order = some[np.argsort(-keys, kind="stable")]
            self._order = (seed, epoch), order
        return order


@dataclass(frozen=True, eq=False)
class Sample(Reorder, OneInput):
    """Elements of the input, drawn by their weights, anew in each epoch."""

    weights: Weights
    seed: int
    replacement: bool
    count: int

    verb = "sample"
    spread = math.inf
    redraws = True

    @property
    def label(self) -> str:
        """As the user wrote it, without the weights."""
        return f"sample(..., seed={self.seed}{'' if self.replacement else ', replacement=False'})"

    def settings(self) -> dict[str, Any]:
        """The arguments, and the weights."""
        facts = {"seed": self.seed, "replacement": self.replacement, "count": self.count}
        return {**facts, "weights": mark_of(self.weights.values.view(np.int64))}

    @cached_property
    def length(self) -> int:
        """The count."""
        return self.count

    @cached_property
    def randomness(self) -> Randomness:
        """Each epoch draws anew."""
        return Randomness(self.source.randomness.depth, reorders=True)

    @cached_property
    def overlap(self) -> Overlap:
        """An element may come twice, anywhere."""
        return "anywhere"

    @property
    def memory(self) -> Memory:
        """The sums of the weights, or the order of an epoch; and the weights."""
        return Memory(kept_nbytes=16 * len(self.weights.values))

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements drawn."""
        if self.replacement:
            return [Demand(0, epoch, self.weights.drawn(indices, self.seed, epoch))]
        return [Demand(0, epoch, self.weights.order(self.seed, epoch)[indices])]
