"""Steps that make one dataset of several: side by side, end to end, dealt in turn, or mixed in proportions."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._random import permute
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows, as_slice
from penstock.plan._node import Access, ClearAfter, Demand, Elements, Length, ManyInputs, OneToOne, Reorder
from penstock.plan._reader import Gather, Reader


class _Beside(OneToOne, ManyInputs):
    """Element `i` has the leaves of the inputs' elements `i`, one input after the other."""

    moves = True
    keeps_neighbours = True
    takes_any_shape = True
    is_pointwise = True

    @property
    def takes_each_once(self) -> bool:  # type: ignore[override]
        """Unless an input is longer, and ends later."""
        return all(each.length == self.length for each in self.sources)

    @cached_property
    def length(self) -> Length:
        """The common length of those that end."""
        lengths = [node.length for node in self.sources]
        if None in lengths:
            return None
        known = [length for length in lengths if length != math.inf]
        return known[0] if known else math.inf

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Ends with the first input that ends."""
        for parts in zip(*(each.sequence(epoch) for each in reader.inputs), strict=False):
            yield [leaf for leaves in parts for leaf in leaves]

    @abstractmethod
    def _structure(self) -> _tree.Structure:
        """The tree of an element."""

    @cached_property
    def spec(self) -> Spec:
        """The inputs' specs as one tree."""
        leaves = tuple(leaf for node in self.sources for leaf in node.spec.leaves)
        return Spec(leaves, self._structure())

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Each input fills its own leaves of the same rows."""
        for source, (start, stop) in zip(reader.inputs, self._leaves, strict=True):
            source.fill(epoch, indices, out.leaves(start, stop), gather)

    @cached_property
    def _leaves(self) -> list[tuple[int, int]]:
        """The range of leaves of each input."""
        return list(
            itertools.pairwise(itertools.accumulate((len(node.spec.leaves) for node in self.sources), initial=0))
        )

    def part_count(self, epoch: int, index: int) -> int | None:
        """That of the inputs, if all agree."""
        counts = {node.part_count(epoch, index) for node in dict.fromkeys(self.sources)}
        return counts.pop() if len(counts) == 1 else None

    def fill_parts(self, reader: Reader, epoch: int, index: int, parts: Indices, out: Rows, gather: Gather) -> None:
        """Each input fills its own leaves of the same parts."""
        for source, (start, stop) in zip(reader.inputs, self._leaves, strict=True):
            source.fill_parts(epoch, index, parts, out.leaves(start, stop), gather)


@dataclass(frozen=True, eq=False)
class Zip(_Beside):
    """Element `i` is the tree of the inputs' elements `i`. `zip` compared the lengths."""

    structure: _tree.Structure

    verb = "zip"

    @property
    def label(self) -> str:
        """`repr` shows the inputs below it."""
        return "zip"

    def settings(self) -> dict[str, Any]:
        """The structure of the inputs."""
        return {"structure": str(self.structure)}

    def _structure(self) -> _tree.Structure:
        """The inputs' trees within one."""
        return _tree.nest([node.spec.structure for node in self.sources], self.structure)


@dataclass(frozen=True, eq=False)
class Merged(_Beside):
    """Element `i` is one dict, of the values of the inputs' elements `i`. These are dicts without a common name."""

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

    def settings(self) -> dict[str, Any]:
        """None: the inputs have them."""
        return {}

    def _structure(self) -> _tree.Structure:
        """All names, in the order of the inputs."""
        return _tree.flatten({name: part for node in self.sources for name, part in node.spec.tree.items()})[1]


@dataclass(frozen=True, eq=False)
class Dealt(Reorder, ManyInputs):
    """A step that gives each element of each input once, in the order of that input."""

    reach = 1
    """Among so many neighbouring positions is an element of each input that has elements there and later."""

    @cached_property
    def length(self) -> Length:
        """The sum: None if one is unknown, infinite if one is infinite."""
        lengths = [node.length for node in self.sources]
        return None if None in lengths else sum(length for length in lengths if length is not None)

    @abstractmethod
    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """The input of each position, and the index there."""

    @abstractmethod
    def position(self, number: int, index: int) -> int:
        """The position at which element `index` of input `number` is dealt, or would be if it existed."""

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Splits positions by input. Evenly spaced positions become a slice, which costs nothing to write."""
        which, theirs = self.deal(indices)
        order = np.argsort(which, kind="stable")
        inputs = which[order]
        bounds = [0, *((inputs[1:] != inputs[:-1]).nonzero()[0] + 1).tolist(), len(order)]
        for start, stop in itertools.pairwise(bounds if len(order) else ()):
            rows = order[start:stop]
            yield Demand(int(inputs[start]), epoch, theirs[rows], as_slice(rows))

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """After the last element of any input that shares data with elements dealt so far."""
        clear = index + 1
        for need in self.demand(0, np.arange(max(0, index - self.reach + 1), index + 1)):
            source = self.sources[need.input]
            after = ask(source, int(need.indices[-1]))
            last = min(after, source.length) - 1 if isinstance(source.length, int) else after - 1
            clear = max(clear, self.position(need.input, last) + 1)
        return clear


@dataclass(frozen=True, eq=False)
class Concatenate(Dealt):
    """The elements of the first input, then those of the second, and so on."""

    verb = "concatenate"

    @cached_property
    def _starts(self) -> Indices:
        # All inputs but the last are finite: `concatenate` checked it.
        lengths = [node.length for node in self.sources[:-1]]
        return np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """Each input's share of the positions."""
        which = np.searchsorted(self._starts, indices, side="right") - 1
        return which, indices - self._starts[which]

    def position(self, number: int, index: int) -> int:
        """After all inputs before."""
        return int(self._starts[number]) + index

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """One input after the other."""
        for each in reader.inputs:
            yield from each.sequence(epoch)


@dataclass(frozen=True, eq=False)
class Interleave(Dealt):
    """Some elements of each input in turn; an input that has ended is skipped.

    With a cycle, that many inputs take part at a time. The next one replaces an input that has ended.
    """

    cycle: int | None = None
    """The number of inputs that take part at a time; None for all."""
    block: int = 1
    """The number of elements that an input gives in its turn."""
    reads_ahead: bool = False
    """Inputs that are streams are read at the same time, each by its own worker."""

    verb = "interleave"

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        if self.reads_ahead:
            return f"{self.sources[0].label}, shards={len(self.sources)}"
        cycle = "" if self.cycle is None else f"cycle_length={self.cycle}"
        block = "" if self.block == 1 else f"block_length={self.block}"
        return f"interleave({', '.join(filter(None, (cycle, block)))})"

    def _unlike(self, number: int, difference: str) -> str:
        """For shards, the user wrote one function and no datasets."""
        if not self.reads_ahead:
            return super()._unlike(number, difference)
        return (
            f"{self.label}: all shards need elements that look the same, but the first of shard {number} differs from "
            f"those of the shards before it: {difference}. An axis that differs is None in element_spec=."
        )

    @cached_property
    def access(self) -> Access:
        """With a cycle or blocks, the position of an element depends on every length, so access is lost."""
        return super().access if self._is_plain else "stream"

    @property
    def _is_plain(self) -> bool:
        return self.cycle is None and self.block == 1

    @property
    def _scatters(self) -> bool:  # type: ignore[override]
        """With a cycle or blocks."""
        return not self._is_plain

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Deals from the inputs that take part, each of which has a place, as tf.data does."""
        waiting = iter(reader.inputs)
        places: list[Elements | None] = [
            each.sequence(epoch)
            for each in itertools.islice(waiting, self.cycle)  # they start at once, if workers make them
        ]
        empty_count = 0
        for number in itertools.cycle(range(len(places))):
            if places[number] is None and (fresh := next(waiting, None)) is not None:
                places[number] = fresh.sequence(epoch)
            taking, count = places[number], 0
            for leaves in itertools.islice(taking or (), self.block):
                yield leaves
                count += 1
            if count < self.block:
                places[number] = None
            empty_count = empty_count + 1 if taking is None else 0
            if empty_count == len(places):
                return

    @cached_property
    def _stages(self) -> tuple[Indices, Indices, list[Indices]]:
        """The stages: between the ends of two inputs, the same inputs take part.

        Returns the first position of each stage, the first round of each, and the inputs that take part in each.
        """
        lengths = [node.length for node in self.sources]
        ends = sorted({length for length in lengths if length is not None and length > 0})
        positions, rounds, alive = [0], [0], []
        for end in ends:
            inputs = [k for k, length in enumerate(lengths) if length is not None and length >= end]
            alive.append(np.array(inputs, np.int64))
            if isinstance(end, int):
                positions.append(positions[-1] + (end - rounds[-1]) * len(inputs))
                rounds.append(end)
        return np.array(positions, np.int64), np.array(rounds, np.int64), alive

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """Arithmetic within the stage of a position."""
        positions, rounds, alive = self._stages
        stages = np.minimum(np.searchsorted(positions, indices, side="right"), len(alive)) - 1
        which, theirs = np.empty_like(indices), np.empty_like(indices)
        for stage in np.unique(stages):
            mine = stages == stage
            turn, number = np.divmod(indices[mine] - positions[stage], len(alive[stage]))
            which[mine] = alive[stage][number]
            theirs[mine] = turn + rounds[stage]
        return which, theirs

    @property
    def reach(self) -> int:  # type: ignore[override]
        """One round."""
        return len(self.sources)

    def position(self, number: int, index: int) -> int:
        """The position at which element `index` of an input is dealt."""
        turns = (index + (other < number) for other in range(len(self.sources)))
        return sum(
            min(node.length, turn) if isinstance(node.length, int) else turn
            for node, turn in zip(self.sources, turns, strict=True)
        )


BLOCK_LENGTH = 1024
"""The number of elements in which each input has exactly its share (by largest remainder)."""


@dataclass(frozen=True, eq=False)
class Mix(Dealt):
    """Elements of the inputs, in an order that the seed defines. Ends where an exhausted input has its turn.

    The order and the length are the same in every epoch.
    """

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
            self.position(number, int(length)) if length != math.inf else math.inf
            for number, (length, count) in enumerate(zip(lengths, self._counts, strict=True))
            if count and length is not None
        ]
        return None if None in lengths else min(ends)

    def position(self, number: int, index: int) -> int:
        """Looks it up in its block."""
        block, given = divmod(index, self._counts[number])
        dealt, _ = _deal(self._counts, self.seed, block)
        return block * BLOCK_LENGTH + int(np.flatnonzero(dealt == number)[given])

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
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
        return which, theirs

    reach = 2 * BLOCK_LENGTH

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
