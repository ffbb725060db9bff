"""Elements of several datasets in proportions, which may change at some positions."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._random import deal
from penstock.memory._rows import Indices, distinct
from penstock.plan._combine import Dealt
from penstock.plan._node import POSITION_LIMIT, Elements, Length, located
from penstock.plan._reader import Reader
from penstock.plan._text import length_text

BLOCK_LENGTH: Final = 1024
"""The number of elements in which each input has exactly its share (by largest remainder)."""
Weights = tuple[float, ...]
Shares = tuple[tuple[int, tuple[int, ...]], ...]
"""See `Mix.shares`."""


class _Stages(NamedTuple):
    """Where the weights change, and what was dealt before."""

    starts: Indices
    """The first position of each stage."""
    ends: Indices
    """The first position after it; for the last stage, the largest number."""
    blocks: Indices
    """The number of blocks before it."""
    given: Indices
    """The number of elements of each input before it, shape `(stages, inputs)`."""


@dataclass(frozen=True, eq=False)
class Mix(Dealt):
    """Elements of the inputs, in an order that the seed defines. Ends where an exhausted input has its turn.

    Stages have weights of their own, and blocks of their own: the next stage may cut off the end of the last block. So
    what comes before a stage does not depend on it, and a run may get other weights for what is still to come. The
    order and the length are the same in every epoch.
    """

    stages: tuple[tuple[int, Weights], ...]
    """The first position of each stage, and its weights; the first is 0."""
    seed: int
    text: str = field(repr=False)
    """The weights as the user wrote them."""

    verb = "mix"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"mix({self.text}{f', seed={self.seed}' if self.seed else ''})"

    def settings(self) -> dict[str, Any]:
        """The shares, where they change, and the seed."""
        (_, counts), *later = self.shares
        return {"counts": counts, "seed": self.seed, **({"stages": later} if later else {})}

    @cached_property
    def shares(self) -> Shares:
        """The first position of each stage, and the elements of each input in a block of it."""
        return tuple((start, _shares(weights)) for start, weights in self.stages)

    @cached_property
    def _table(self) -> _Stages:
        blocks, given = [0], [np.zeros(len(self.sources), np.int64)]
        for (start, counts), (stop, _) in itertools.pairwise(self.shares):
            whole, rest = divmod(stop - start, BLOCK_LENGTH)
            given.append(given[-1] + whole * np.array(counts, np.int64))
            if rest:
                which, _ = deal(np.arange(rest), np.full(rest, blocks[-1] + whole + 1), counts, seed=self.seed)
                given[-1] += np.bincount(which, minlength=len(counts))
            blocks.append(blocks[-1] + whole + (rest > 0))
        starts = np.array([start for start, _ in self.stages], np.int64)
        ends = np.append(starts[1:], np.iinfo(np.int64).max)
        return _Stages(starts, ends, np.array(blocks, np.int64), np.array(given))

    @property
    def absent(self) -> list[int]:
        """The inputs that never have a turn, because their weights are too small for one element of a block."""
        dealt = self._table.given[-1] + np.array(self.shares[-1][1])
        return [number for number, count in enumerate(dealt.tolist()) if not count]

    def _stage(self, position: int) -> int:
        """The stage of a position."""
        return int(np.searchsorted(self._table.starts, position, side="right")) - 1

    @cached_property
    def length(self) -> Length:
        """The position at which an exhausted input has its turn."""
        lengths = [node.length for node in self.sources]
        for number, each in enumerate(lengths):
            if each == 0 and (first := self.position(number, 0)) < POSITION_LIMIT:
                raise self._nothing(number, first)
        if None in lengths:
            return None
        ends = [
            (self._block(number, each), number, each) for number, each in enumerate(lengths) if isinstance(each, int)
        ]
        # Blocks come one after the other, so only the first of these is looked into.
        first = min((start for start, _, _ in ends), default=POSITION_LIMIT)
        if first == POSITION_LIMIT:
            return math.inf
        return min(self.position(number, each) for start, number, each in ends if start == first)

    def _nothing(self, number: int, position: int) -> SpecError:
        return SpecError(
            f"{self.label}: dataset {number}, {located(self.sources[number])}, has no element. A mix ends at the turn "
            f"of an exhausted dataset, here after {length_text(position)}. Leave it out, or let it keep some elements."
        )

    def _block(self, number: int, index: int) -> int:
        """The first position of the block that has an element of an input. `POSITION_LIMIT` if its turn never comes."""
        table = self._table
        stage = int(np.searchsorted(table.given[1:, number], index, side="right"))
        start, counts = self.shares[stage]
        if not counts[number]:  # of the last stage, for it was found in this one
            return POSITION_LIMIT
        return start + (index - int(table.given[stage, number])) // counts[number] * BLOCK_LENGTH

    def _positions(self, start: int) -> Indices:
        """The positions of the block that begins at `start`."""
        return np.arange(start, min(start + BLOCK_LENGTH, int(self._table.ends[self._stage(start)])))

    def position(self, number: int, index: int) -> int:
        """Looks it up in its block. `POSITION_LIMIT` if its turn never comes."""
        start = self._block(number, index)
        if start >= POSITION_LIMIT:
            return POSITION_LIMIT
        which, theirs = self.deal(self._positions(start))
        return start + int(np.flatnonzero((which == number) & (theirs == index))[0])

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """Looks up each position in its block: the input, and the number of elements of it before."""
        which, theirs = np.empty_like(indices), np.empty_like(indices)
        table = self._table
        stages = np.searchsorted(table.starts, indices, side="right") - 1
        numbers, places = np.divmod(indices - table.starts[stages], BLOCK_LENGTH)
        for stage in distinct(stages).tolist():
            mine = np.flatnonzero(stages == stage)
            counts, blocks = self.shares[stage][1], numbers[mine]
            found, before = deal(places[mine], table.blocks[stage] + blocks + 1, counts, seed=self.seed)
            whole = np.array(counts, np.int64)
            which[mine], theirs[mine] = found, table.given[stage, found] + blocks * whole[found] + before
        return which, theirs

    def counts(self, position: int) -> list[int]:
        """The number of elements of each input before a position."""
        stage = self._stage(position)
        start, counts = self.shares[stage]
        number, place = divmod(position - start, BLOCK_LENGTH)
        which, _ = self.deal(np.arange(position - place, position))
        given = self._table.given[stage] + number * np.array(counts, np.int64)
        found: list[int] = (given + np.bincount(which, minlength=len(counts))).tolist()
        return found

    def latest(self, index: int) -> Iterable[tuple[int, int]]:
        """Adds up blocks."""
        return [(source, count - 1) for source, count in enumerate(self.counts(index + 1)) if count]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Deals from the inputs until one has no element left."""
        inputs = [each.sequence(epoch) for each in reader.inputs]
        start = 0
        while True:
            which, theirs = self.deal(positions := self._positions(start))
            for source, index in zip(which.tolist(), theirs.tolist(), strict=True):
                leaves = next(inputs[source], None)
                if leaves is None:
                    if index == 0:
                        raise self._nothing(source, self.position(source, 0))
                    return
                yield leaves
            start += len(positions)


@lru_cache(64)
def _shares(weights: Weights) -> tuple[int, ...]:
    """The number of elements of each input in a block: by largest remainder, the first of equals first."""
    total = math.fsum(weights)
    exact = [weight / total * BLOCK_LENGTH for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
    for number in by_remainder[: BLOCK_LENGTH - sum(counts)]:
        counts[number] += 1
    return tuple(counts)
