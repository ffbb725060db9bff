"""Steps that make one dataset of several: side by side, end to end, or dealt in turn."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows, as_slice
from penstock.plan._chunks import Chunks
from penstock.plan._fields import named
from penstock.plan._node import (
    POSITION_LIMIT,
    Access,
    Called,
    ClearAfter,
    Demand,
    Elements,
    Length,
    ManyInputs,
    Node,
    OneToOne,
    Pairs,
    Reorder,
)
from penstock.plan._reader import Gather, Reader


class Beside(OneToOne, ManyInputs):
    """Element `i` has the leaves of the inputs' elements `i`, one input after the other."""

    moves = True
    is_beside = True
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

    def row_count(self, epoch: int, index: int) -> int | None:
        """That of the inputs, if all agree."""
        counts = {node.row_count(epoch, index) for node in dict.fromkeys(self.sources)}
        return counts.pop() if len(counts) == 1 else None

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Each input fills its own leaves of the same rows."""
        for source, (start, stop) in zip(reader.inputs, self._leaves, strict=True):
            source.fill_rows(epoch, index, rows, out.leaves(start, stop), gather)


@dataclass(frozen=True, eq=False)
class Zip(Beside):
    """Element `i` is the tree of the inputs' elements `i`. `zip` compared the lengths."""

    structure: _tree.Structure

    verb = "zip"

    @property
    def label(self) -> str:
        """`repr` shows the inputs below it."""
        return "zip"

    def settings(self) -> dict[str, Any]:
        """The structure of the inputs."""
        return {"structure": _tree.text_of_structure(self.structure)}

    def narrowed(self, pairs: Pairs, narrow: Callable[[Node, Pairs], Node]) -> "Zip | None":
        """`zip` of some."""
        numbers: _tree.Tree = self.structure.unflatten(range(len(self.sources)))
        if not isinstance(numbers, dict):
            return None
        chosen, structure = _tree.flatten({new: numbers[old] for old, new in pairs})
        return Zip(tuple(self.sources[number] for number in chosen), structure)

    def _structure(self) -> _tree.Structure:
        """The inputs' trees within one."""
        return _tree.nest([node.spec.structure for node in self.sources], self.structure)


@dataclass(frozen=True, eq=False)
class Merged(Called, Beside):
    """Element `i` is one dict, of the values of the inputs' elements `i`. These are dicts without a common name."""

    def settings(self) -> dict[str, Any]:
        """None: the inputs have them."""
        return {}

    def narrowed(self, pairs: Pairs, narrow: Callable[[Node, Pairs], Node]) -> Node:
        """Inputs without any of the values are left out."""
        parts = [(each, tuple(pair for pair in pairs if pair[0] in each.spec.tree)) for each in self.sources]
        made = self.over(*(narrow(each, mine) for each, mine in parts if mine))
        wanted = [new for _, new in pairs]
        in_order = [new for _, mine in parts for _, new in mine] == wanted
        return made if in_order else named(made, wanted)

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
        for number, latest in self.latest(index):
            source = self.sources[number]
            after = ask(source, latest)
            last = min(after, source.length) - 1 if isinstance(source.length, int) else after - 1
            clear = max(clear, self.position(number, last) + 1)
        return clear

    def latest(self, index: int) -> Iterable[tuple[int, int]]:
        """The last element dealt of each input that has elements later, up to a position."""
        for need in self.demand(0, np.arange(max(0, index - self.reach + 1), index + 1)):
            yield need.input, int(need.indices[-1])


@dataclass(frozen=True, eq=False)
class Concatenate(Dealt):
    """The elements of the first input, then those of the second, and so on."""

    verb = "concatenate"

    @cached_property
    def _starts(self) -> Indices:
        # All inputs but the last are finite: `concatenate` checked it.
        lengths = [node.length for node in self.sources[:-1]]
        return np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those of the first input, then those of the second, and so on."""
        known = [each.chunks for each in self.sources if each.chunks is not None]
        return Chunks.joined(known) if len(known) == len(self.sources) else None

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
    is_sharded: bool = False
    """Inputs that are streams are read at the same time, each by its own worker."""

    verb = "interleave"

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        if self.is_sharded:
            return f"{self.sources[0].label}, shards={len(self.sources)}"
        cycle = "" if self.cycle is None else f"cycle_length={self.cycle}"
        block = "" if self.block == 1 else f"block_length={self.block}"
        return f"interleave({', '.join(filter(None, (cycle, block)))})"

    def _unlike(self, number: int, difference: str) -> str:
        """For shards, the user wrote one function and no datasets."""
        if not self.is_sharded:
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
    def _stages(self) -> tuple[Indices, Indices, Indices]:
        """The stages: between the ends of two inputs, the same inputs take part.

        Returns the first position of each stage, the first round of each, and the number of inputs that take part.
        """
        lengths = sorted(self._lengths.tolist())
        firsts = [place for place, end in enumerate(lengths) if end > (lengths[place - 1] if place else 0)]
        rounds = [0, *(lengths[place] for place in firsts[:-1])]
        counts = [len(lengths) - place for place in firsts]
        spans = (
            (stop - start) * count for (start, stop), count in zip(itertools.pairwise(rounds), counts, strict=False)
        )
        positions = [*itertools.accumulate(spans, initial=0)]
        return np.array(positions, np.int64), np.array(rounds, np.int64), np.array(counts, np.int64)

    @cached_property
    def _lengths(self) -> Indices:
        """The length of each input; of one that does not end, the limit of all positions."""
        return np.array([min(node.length or 0, POSITION_LIMIT) for node in self.sources], np.int64)

    @cached_property
    def _bits(self) -> list[tuple[int, Indices]]:
        """The numbers of the inputs, the longest first, as a wavelet matrix.

        For each bit, the highest first: how many of the numbers up to each place do not have it. The numbers without
        it come first for the next bit.
        """
        numbers, found = np.argsort(-self._lengths, kind="stable"), []
        for bit in reversed(range((len(numbers) - 1).bit_length())):
            lacks = numbers >> bit & 1 == 0
            found.append((1 << bit, np.append(0, np.cumsum(lacks))))
            numbers = np.concatenate((numbers[lacks], numbers[~lacks]))
        return found

    def deal(self, indices: Indices) -> tuple[Indices, Indices]:
        """Arithmetic within the stage of a position, and a look at each bit of the input's number."""
        positions, rounds, counts = self._stages
        stages = np.searchsorted(positions, indices, side="right") - 1
        turns, places = np.divmod(indices - positions[stages], counts[stages])
        # The inputs that take part are the longest. Of these, the one in this place by its number is looked for.
        first, last, which = np.zeros_like(indices), counts[stages], np.zeros_like(indices)
        for value, lacking in self._bits:
            start, stop = lacking[first], lacking[last]
            has = places >= stop - start
            places = np.where(has, places - (stop - start), places)
            first = np.where(has, lacking[-1] + first - start, start)
            last = np.where(has, lacking[-1] + last - stop, stop)
            which += value * has
        return which, turns + rounds[stages]

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
