"""Elements of several datasets in proportions, which may change at some positions."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._random import permute
from penstock.memory._rows import Indices, distinct
from penstock.plan._combine import Dealt
from penstock.plan._node import POSITION_LIMIT, Elements, Length, located
from penstock.plan._reader import Reader
from penstock.plan._text import length_text

BLOCK_LENGTH: Final = 1024
"""The number of elements in which each input has exactly its share (by largest remainder)."""
Weights = tuple[float, ...]


class _Stages(NamedTuple):
    """Where the weights change, and what was dealt before."""

    starts: Indices
    """The first position of each stage."""
    blocks: Indices
    """The number of blocks before it."""
    given: Indices
    """The number of elements of each input before it, shape `(stages, inputs)`."""


@dataclass(frozen=True, eq=False)
class Mix(Dealt):
    """Elements of the inputs, in an order that the seed defines. Ends where an exhausted input has its turn.

    Stages have weights of their own, and blocks of their own: the last block of a stage may be shorter. The order and
    the length are the same in every epoch.
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
        (_, weights), *later = self.stages
        stages = {"stages": [(start, _shares(each, BLOCK_LENGTH)) for start, each in later]} if later else {}
        return {"counts": _shares(weights, BLOCK_LENGTH), "seed": self.seed, **stages}

    @cached_property
    def _table(self) -> _Stages:
        blocks, given = [0], [np.zeros(len(self.sources), np.int64)]
        for (start, weights), (stop, _) in itertools.pairwise(self.stages):
            whole, rest = divmod(stop - start, BLOCK_LENGTH)
            blocks.append(blocks[-1] + whole + (rest > 0))
            dealt = whole * np.array(_shares(weights, BLOCK_LENGTH), np.int64) + np.array(_shares(weights, rest))
            given.append(given[-1] + dealt)
        starts = np.array([start for start, _ in self.stages], np.int64)
        return _Stages(starts, np.array(blocks, np.int64), np.array(given))

    @property
    def absent(self) -> list[int]:
        """The inputs that never have a turn, because their weights are too small for one element of a block."""
        dealt = self._table.given[-1] + np.array(_shares(self.stages[-1][1], BLOCK_LENGTH))
        return [number for number, count in enumerate(dealt.tolist()) if not count]

    def _block_length(self, stage: int, number: int) -> int:
        """The length of a block of a stage, by its number there; the last stage has no end."""
        if stage + 1 == len(self.stages):
            return BLOCK_LENGTH
        return min(BLOCK_LENGTH, self.stages[stage + 1][0] - self.stages[stage][0] - number * BLOCK_LENGTH)

    def _dealt(self, stage: int, number: int) -> tuple[Indices, Indices, Indices]:
        """One block of a stage: see `_deal`; and the elements of each input before it."""
        table, weights = self._table, self.stages[stage][1]
        counts = _shares(weights, self._block_length(stage, number))
        dealt, before = _deal(counts, self.seed, int(table.blocks[stage]) + number)
        return dealt, before, table.given[stage] + number * np.array(_shares(weights, BLOCK_LENGTH), np.int64)

    @cached_property
    def length(self) -> Length:
        """The position at which an exhausted input has its turn."""
        lengths = [node.length for node in self.sources]
        for number, each in enumerate(lengths):
            if each == 0 and (first := self.position(number, 0)) < POSITION_LIMIT:
                raise self._nothing(number, first)
        if None in lengths:
            return None
        ends = [self.position(number, int(each)) for number, each in enumerate(lengths) if isinstance(each, int)]
        return min((end for end in ends if end < POSITION_LIMIT), default=math.inf)

    def _nothing(self, number: int, position: int) -> SpecError:
        return SpecError(
            f"{self.label}: dataset {number}, {located(self.sources[number])}, has no element. A mix ends at the turn "
            f"of an exhausted dataset, here after {length_text(position)}. Leave it out, or let it keep some elements."
        )

    def position(self, number: int, index: int) -> int:
        """Looks it up in its block. `POSITION_LIMIT` if its turn never comes."""
        table = self._table
        stage = int(np.searchsorted(table.given[1:, number], index, side="right"))
        index -= int(table.given[stage, number])
        weights = self.stages[stage][1]
        count = _shares(weights, BLOCK_LENGTH)[number]
        if not count and stage + 1 == len(self.stages):
            return POSITION_LIMIT
        block = index // count if count else POSITION_LIMIT
        if stage + 1 < len(self.stages):  # what whole blocks do not have is in the short one
            block = min(block, (self.stages[stage + 1][0] - self.stages[stage][0]) // BLOCK_LENGTH)
        dealt, _, _ = self._dealt(stage, block)
        place = int(np.flatnonzero(dealt == number)[index - block * count])
        return self.stages[stage][0] + block * BLOCK_LENGTH + place

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """Looks up each position in its block: the input, and the number of elements of it before."""
        which, theirs = np.empty_like(indices), np.empty_like(indices)
        starts = self._table.starts
        stages = np.searchsorted(starts, indices, side="right") - 1
        numbers, places = np.divmod(indices - starts[stages], BLOCK_LENGTH)
        for stage in distinct(stages).tolist():
            here = stages == stage
            for number in distinct(numbers[here]).tolist():
                mine = np.flatnonzero(here & (numbers == number))
                dealt, before, given = self._dealt(stage, number)
                which[mine] = found = dealt[places[mine]]
                theirs[mine] = before[places[mine]] + given[found]
        return which, theirs

    def latest(self, index: int) -> Iterable[tuple[int, int]]:
        """Adds up blocks."""
        stage = int(np.searchsorted(self._table.starts, index, side="right")) - 1
        number, place = divmod(index - self.stages[stage][0], BLOCK_LENGTH)
        dealt, _, given = self._dealt(stage, number)
        counts = given + np.bincount(dealt[: place + 1], minlength=len(self.sources))
        return [(source, count - 1) for source, count in enumerate(counts.tolist()) if count]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Deals from the inputs until one has no element left."""
        inputs = [each.sequence(epoch) for each in reader.inputs]
        for stage in range(len(self.stages)):
            for number in itertools.count():
                if self._block_length(stage, number) <= 0:
                    break
                dealt, before, given = self._dealt(stage, number)
                for place, source in enumerate(dealt.tolist()):
                    leaves = next(inputs[source], None)
                    if leaves is None:
                        if before[place] + given[source] == 0:
                            raise self._nothing(source, self.position(source, 0))
                        return
                    yield leaves


@lru_cache(64)
def _shares(weights: Weights, length: int) -> tuple[int, ...]:
    """The number of elements of each input in a block: by largest remainder, the first of equals first."""
    total = math.fsum(weights)
    exact = [weight / total * length for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
    for number in by_remainder[: length - sum(counts)]:
        counts[number] += 1
    return tuple(counts)


@lru_cache(64)
def _deal(counts: tuple[int, ...], seed: int, block: int) -> tuple[Indices, Indices]:
    """For each place of a block: its input, and the number of places of that input before it in the block."""
    length = sum(counts)
    order = permute(np.arange(length), length, seed=seed + ((block + 1) << 64), epoch=0)
    dealt = np.repeat(np.arange(len(counts), dtype=np.int64), counts)[order]
    before = np.empty_like(dealt)
    for number, count in enumerate(counts):
        before[dealt == number] = np.arange(count)
    return dealt, before
