"""Steps that make one dataset of several: side by side, end to end, or dealt in turn."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from penstock.base import _tree
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows, as_slice
from penstock.plan._node import Access, Demand, Elements, Length, Node, OneToOne, Overlap, Reorder, clear_within, total
from penstock.plan._reader import Gather, Reader


@final
@dataclass(frozen=True, eq=False)
class Zip(OneToOne):
    """Element `i` is the tree of the inputs' elements `i`. `zip` compared the lengths."""

    sources: tuple[Node, ...]
    structure: _tree.Structure

    verb = "zip"

    @property
    def label(self) -> str:
        """`repr` shows the inputs below it."""
        return "zip"

    def settings(self) -> dict[str, Any]:
        """The structure of the inputs."""
        return {"structure": str(self.structure)}

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

    @cached_property
    def spec(self) -> Spec:
        """The inputs' specs as one tree."""
        specs = [node.spec for node in self.sources]
        leaves = tuple(leaf for spec in specs for leaf in spec.leaves)
        return Spec(leaves, _tree.nest([spec.structure for spec in specs], self.structure))

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


@final
@dataclass(frozen=True, eq=False)
class Concatenate(Reorder):
    """The elements of the first input, then those of the second, and so on."""

    sources: tuple[Node, ...]

    verb = "concatenate"

    @cached_property
    def length(self) -> Length:
        """The sum."""
        return total([node.length for node in self.sources])

    @cached_property
    def _starts(self) -> Indices:
        # All inputs but the last are finite: `concatenate` checked it.
        lengths = [node.length for node in self.sources[:-1]]
        return np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Each input's share of the positions."""
        which = np.searchsorted(self._starts, indices, side="right") - 1
        return shares(epoch, which, indices - self._starts[which])

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """One input after the other."""
        for each in reader.inputs:
            yield from each.sequence(epoch)

    def clear_after(self, index: int) -> int:
        """That of the element's input, at most its end: inputs count as disjoint."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        source, start = self.sources[number], int(self._starts[number])
        return start + clear_within(source, index - start)


@final
@dataclass(frozen=True, eq=False)
class Interleave(Reorder):
    """Some elements of each input in turn; an input that has ended is skipped.

    With a cycle, that many inputs take part at a time. The next one replaces an input that has ended.
    """

    sources: tuple[Node, ...]
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

    @cached_property
    def overlap(self) -> Overlap:
        """With a cycle or blocks, elements that share data may be anywhere."""
        overlap = super().overlap
        return overlap if self._is_plain or overlap == "none" else "anywhere"

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
    def length(self) -> Length:
        """The sum."""
        return total([node.length for node in self.sources])

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

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Arithmetic within the stage of a position."""
        positions, rounds, alive = self._stages
        stages = np.minimum(np.searchsorted(positions, indices, side="right"), len(alive)) - 1
        which, theirs = np.empty_like(indices), np.empty_like(indices)
        for stage in np.unique(stages):
            mine = stages == stage
            turn, number = np.divmod(indices[mine] - positions[stage], len(alive[stage]))
            which[mine] = alive[stage][number]
            theirs[mine] = turn + rounds[stage]
        return shares(epoch, which, theirs)

    def clear_after(self, index: int) -> int:
        """After the last element of any input that shares data with elements dealt so far."""
        clear = index + 1
        dealt = np.arange(max(0, index - len(self.sources) + 1), index + 1)  # the last of every input is among these
        for need in self.demand(0, dealt):
            source = self.sources[need.input]
            last = clear_within(source, int(need.indices[-1])) - 1
            clear = max(clear, self._position(need.input, last) + 1)
        return clear

    def _position(self, number: int, index: int) -> int:
        """The position at which element `index` of an input is dealt."""
        turns = (index + (other < number) for other in range(len(self.sources)))
        return sum(
            min(node.length, turn) if isinstance(node.length, int) else turn
            for node, turn in zip(self.sources, turns, strict=True)
        )


def shares(epoch: int, which: Indices, indices: Indices) -> list[Demand]:
    """Splits positions by input. Evenly spaced positions become a slice, which costs nothing to write."""
    order = np.argsort(which, kind="stable")
    inputs = which[order]
    bounds = [0, *((inputs[1:] != inputs[:-1]).nonzero()[0] + 1).tolist(), len(order)]
    shares = []
    for start, stop in itertools.pairwise(bounds if len(order) else ()):
        rows = order[start:stop]
        shares.append(Demand(int(inputs[start]), epoch, indices[rows], as_slice(rows)))
    return shares
