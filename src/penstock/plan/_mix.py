"""Mixing datasets in given proportions, exactly so in every block."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np

from penstock.base._random import permute
from penstock.memory._rows import Indices
from penstock.plan._combine import shares
from penstock.plan._node import Demand, Elements, Length, Node, Reorder, clear_within
from penstock.plan._reader import Reader

BLOCK_LENGTH = 1024
"""The number of elements in which each input has exactly its share (by largest remainder)."""


@final
@dataclass(frozen=True, eq=False)
class Mix(Reorder):
    """Elements of the inputs, in an order that the seed defines. Ends where an exhausted input has its turn.

    The order and the length are the same in every epoch.
    """

    sources: tuple[Node, ...]
    weights: tuple[float, ...]
    seed: int

    verb = "mix"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"mix({list(self.weights)}{f', seed={self.seed}' if self.seed else ''})"

    def settings(self) -> dict[str, Any]:
        """The shares and the seed."""
        return {"counts": self._counts, "seed": self.seed}

    @property
    def _counts(self) -> tuple[int, ...]:
        """The number of elements of each input in a block: by largest remainder, the first of equals first."""
        total = math.fsum(self.weights)
        exact = [weight / total * BLOCK_LENGTH for weight in self.weights]
        counts = [int(share) for share in exact]
        by_remainder = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
        for number in by_remainder[: BLOCK_LENGTH - sum(counts)]:
            counts[number] += 1
        return tuple(counts)

    @cached_property
    def length(self) -> Length:
        """The position at which an exhausted input has its turn."""
        lengths = [node.length for node in self.sources]
        ends = [
            self._position(number, int(length)) if length != math.inf else math.inf
            for number, (length, count) in enumerate(zip(lengths, self._counts, strict=True))
            if count and length is not None
        ]
        return None if None in lengths else min(ends)

    def _position(self, number: int, index: int) -> int:
        """The position at which element `index` of an input is dealt, or would be if it existed."""
        block, given = divmod(index, self._counts[number])
        dealt, _ = _deal(self._counts, self.seed, block)
        return block * BLOCK_LENGTH + int(np.flatnonzero(dealt == number)[given])

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Looks up each position in its block: the input, and the number of elements of it before."""
        which, theirs = np.empty_like(indices), np.empty_like(indices)
        blocks = indices // BLOCK_LENGTH
        counts = np.array(self._counts, np.int64)
        for block in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == block)
            dealt, before = _deal(self._counts, self.seed, block)
            places = indices[mine] - block * BLOCK_LENGTH
            which[mine] = dealt[places]
            theirs[mine] = before[places] + block * counts[dealt[places]]
        return shares(epoch, which, theirs)

    def clear_after(self, index: int) -> int:
        """After the last element of any input that shares data with elements dealt so far."""
        block, place = divmod(index, BLOCK_LENGTH)
        dealt, _ = _deal(self._counts, self.seed, block)
        counts = np.bincount(dealt[: place + 1], minlength=len(self.sources)) + block * np.array(self._counts, np.int64)
        clear = index + 1
        for number, (source, count) in enumerate(zip(self.sources, counts.tolist(), strict=True)):
            if count:
                clear = max(clear, self._position(number, clear_within(source, count - 1) - 1) + 1)
        return clear

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Deals from the inputs until one has no element left."""
        inputs = [each.sequence(epoch) for each in reader.inputs]
        block = 0
        while True:
            for number in _deal(self._counts, self.seed, block)[0].tolist():
                leaves = next(inputs[number], None)
                if leaves is None:
                    return
                yield leaves
            block += 1


@lru_cache(64)
def _deal(counts: tuple[int, ...], seed: int, block: int) -> tuple[Indices, Indices]:
    """For each place of a block: its input, and the number of places of that input before it in the block."""
    order = permute(np.arange(BLOCK_LENGTH), BLOCK_LENGTH, seed=seed + ((block + 1) << 64), epoch=0)
    dealt = np.repeat(np.arange(len(counts), dtype=np.int64), counts)[order]
    before = np.empty_like(dealt)
    for number, count in enumerate(counts):
        before[dealt == number] = np.arange(count)
    return dealt, before
