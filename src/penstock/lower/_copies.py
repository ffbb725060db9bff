"""A plan that only moves bytes, as copies: which rows of which arrays go where, for many batches at once.

The steps of a plan say which elements they need by arithmetic on indices (`Node.fill`). Here that arithmetic runs once
for a block of batches, over places without memory (`Rows.imagined`). It ends with the reads that a `Gather` holds. They
are not run: each becomes an index array for each batch. The copy engine executes these without Python (`native/`).

Sources side by side are read as one, which has the arrays of all. Sources that are dealt from are one too, if their
arrays have equal rows: an array in parts. So a thousand files take the arithmetic of one.

A plan is not of this kind if a step computes, or if a source has no array or file behind it. `CopyPlan.of` then returns
None, and workers run the plan unit by unit.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from penstock.base._random import are_firsts
from penstock.base._spec import Spec
from penstock.lower._share import Share, most_rows
from penstock.memory._rows import Indices, Rows, places_of, positions_of
from penstock.native import conversion
from penstock.plan._combine import Concatenate, Dealt
from penstock.plan._node import Length, Node, OneInput, OneToOne, finite_length, walk
from penstock.plan._reader import Gather, OpenSources, Reader
from penstock.plan._source import Read, Source
from penstock.plan._source_node import SourceNode
from penstock.plan._windows import Windows

Copy = tuple[int, int, Indices, Indices | None, int]
"""Rows of one array that go to one leaf of a batch: `(array, leaf, rows, places, first)`.

- `array`: the number of the array in `CopyPlan.arrays`.
- `leaf`: the number of the leaf.
- `rows`: the rows of the array, int64, shape `(n,)`.
- `places`: where each goes, counted in such rows from the start of the leaf; None for `first`, `first + 1`, and so on.

A plain tuple, because two are made for each batch.
"""


class _NotCopiesError(Exception):
    """The plan does more than to move bytes."""


@final
class CopyPlan:
    """The copies that fill the batches of a plan.

    Args:
        node: The plan; its elements are what is delivered.
        shard: The rows of each batch that are delivered: a `Share`, or `(index, count)`.
    """

    def __init__(self, node: Node, shard: Share | tuple[int, int]) -> None:
        self.arrays: list[Any] = []
        """Arrays, files (`StridedFile`), both as one (`Joined`), and what else the engine reads (`EngineRows`)."""
        self.spec = node.spec
        self._share = share = Share(*shard)
        self._is_whole = share.is_whole
        self._most_rows = 0 if share.is_whole else most_rows(node.spec)
        self._varying = [number for number, leaf in enumerate(share.spec(node.spec).leaves) if leaf.varies]
        self._made: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        plan = self._over_arrays(node, None, depth=int(not self._is_whole))
        self._reader = Reader(plan, OpenSources(plan), isolation=None)
        self._numbers: dict[int, int] = {}
        for each in walk(plan):
            if isinstance(each.opens, _Arrays):
                each.opens.numbers = list(map(self._number, each.opens.held))
        self._marks = None if share.uneven == "refuse" else self._number(share.marks(self._most_rows))

    @classmethod
    def of(cls, node: Node, shard: Share | tuple[int, int]) -> "CopyPlan | None":
        """Returns the copies of a plan, or None if it does more than to move bytes."""
        if node.length is None or not node.spec.is_bounded:
            return None
        try:
            return cls(node, shard)
        except _NotCopiesError:
            return None

    def block(self, epoch: int, first: int, count: int) -> "tuple[list[list[Copy]], list[tuple[int, ...]]]":
        """Computes the copies of batches `[first, first + count)` of an epoch.

        Returns:
            The copies of each batch, and the number of rows in use of each of its leaves that vary.
        """
        box = Rows.imagined(self.spec, count)
        gather = Gather()
        self._reader.fill(epoch, np.arange(first, first + count, dtype=np.int64), box, gather)
        leaf_of = {id(array.base): leaf for leaf, array in enumerate(box.arrays)}
        full = np.full(count, self._most_rows)
        used = [full if extent is None else extent for extent in box.extents]
        batches: list[list[Copy]] = [[] for _ in range(count)]
        # Columns of a table have the same rows, also where each is a source of its own. The reads keep the addresses.
        tables: dict[tuple[int, int, int], tuple[Read, list[tuple[int, int]]]] = {}
        for source, wanted in gather.wanted.values():
            assert isinstance(source, _Arrays)
            for read, _ in wanted:
                leaves = [leaf_of[id(array.base)] for array in read.arrays]
                key = id(read.indices), id(read.rows), len(read.arrays[0])
                tables.setdefault(key, (read, []))[1].extend(zip(source.numbers, leaves, strict=True))
        for read, pairs in tables.values():
            self._share_out(pairs, read, len(read.arrays[0]), batches, used)
        if self._marks is not None:
            for copies, row_count in zip(batches, used[0].tolist(), strict=True):
                marks = self._share.mark_rows(row_count, *self._share.rows(row_count, self._most_rows))
                copies.append((self._marks, len(used), marks, None, 0))
            used.append(used[0])
        index, shards = self._share[:2]
        mine = [(index + 1) * used[leaf] // shards - index * used[leaf] // shards for leaf in self._varying]
        return batches, list(zip(*(counts.tolist() for counts in mine), strict=True)) or [()] * count

    def _share_out(
        self,
        pairs: list[tuple[int, int]],
        read: Read,
        room: int,
        batches: list[list[Copy]],
        used: list[Indices],
    ) -> None:
        """Cuts rows of a block at the borders between batches, and keeps those of this shard.

        Columns of a table get the same index arrays, of which the engine then takes one copy for all.

        Args:
            pairs: The numbers of arrays, each with that of its leaf.
            read: The rows, and their places in the block.
            room: For how many such rows the block has places.
            batches: Takes the copies.
            used: The rows in use in each batch, for each leaf.
        """
        rows, each = read.indices, room // len(batches)  # such rows in a batch
        if isinstance(read.rows, slice) and read.rows.step in (None, 1) and self._is_whole:
            start = read.rows.start
            for number in range(start // each, -(-(start + len(rows)) // each)):
                begin, end = max(0, number * each - start), min(len(rows), (number + 1) * each - start)
                theirs, first = rows[begin:end], start + begin - number * each
                for array, leaf in pairs:
                    batches[number].append((array, leaf, theirs, None, first))
            return
        places = positions_of(read.rows, room)
        owners = places // each
        if (owners[1:] < owners[:-1]).any():
            order = np.argsort(owners, kind="stable")
            owners, places, rows = owners[order], places[order], rows[order]
        # Only batches that have such rows: a small dataset that repeats comes here for each of its many rounds.
        changes = np.flatnonzero(owners[1:] != owners[:-1]) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist(), len(owners)] if len(owners) else []):
            number = int(owners[begin])
            mine, theirs = places[begin:end] - number * each, rows[begin:end]
            if self._is_whole:
                for array, leaf in pairs:
                    batches[number].append((array, leaf, theirs, mine, 0))
                continue
            part = each // self._most_rows  # such rows in a row of a batch
            for array, leaf in pairs:
                row_count = int(used[leaf][number])
                first, last = (row * part for row in self._share.rows(row_count, self._most_rows))
                # With a mask, rows that fill up come again in each turn after the first.
                for turn in range(0, last, row_count * part):
                    kept = (mine >= first - turn) & (mine < last - turn)
                    if kept.any():
                        batches[number].append((array, leaf, theirs[kept], mine[kept] + turn - first, 0))

    def _over_arrays(self, node: Node, window: "tuple[int, int] | None", *, depth: int) -> Node:
        """Returns the same plan over numbered arrays, without what the engine does: it casts, and it reads windows.

        Args:
            node: The plan.
            window: `(size, stride)` to have windows over its elements, each named by its first element.
            depth: How many axes of its elements are taken apart above. Windows that are taken apart are read row by
                row.

        Raises:
            _NotCopiesError: A step does more than arithmetic on indices, or a source has no arrays.
        """
        if not node.moves:
            raise _NotCopiesError
        if node.gives_inputs and any(places_of(each.spec) != places_of(node.spec) for each in node.inputs):
            raise _NotCopiesError
        if depth and type(node).fill_rows is Node.fill_rows:
            raise _NotCopiesError  # its elements have no parts that can be read alone
        if isinstance(node.opens, Source):
            arrays = node.opens.arrays()
            if arrays is None:
                raise _NotCopiesError
            if window is not None:
                arrays = [self._once((array,), window) for array in arrays]
            return _held(node, arrays)
        if isinstance(node, Windows) and window is None and not depth and _keeps_neighbours(node.source):
            return _Starts(self._over_arrays(node.source, (node.size, node.stride), depth=0), node)
        depth = max(0, depth - node.stacks) + node.takes_rows
        inputs = tuple(self._over_arrays(each, window, depth=depth) for each in node.inputs)
        held = [each.opens.held for each in inputs if isinstance(each.opens, _Arrays)]
        are_sources = len(held) == len(inputs)
        if node.converts:
            _require_one_cast(node)
            return _held(node, *held) if are_sources else _Converted(inputs[0], node)
        if node.is_beside and are_sources:
            return _held(node, [array for arrays in held for array in arrays])
        if isinstance(node, Dealt) and are_sources and all(map(_are_alike, zip(*held, strict=True))):
            source = _held(node, [self._once(column, None) for column in zip(*held, strict=True)])
            return source if isinstance(node, Concatenate) else _InTurn(source, node)
        return node.over(*inputs)

    def _once(self, arrays: tuple[Any, ...], window: "tuple[int, int] | None") -> Any:
        """Returns the windows over an array, or several arrays as one: the same object for the same arrays."""
        key = (*map(id, arrays), window)
        if key not in self._made:
            made = Joined(arrays) if window is None else _windowed(arrays[0], *window)
            self._made[key] = arrays, made  # they stay, so that their addresses stay their own
        return self._made[key][1]

    def _number(self, array: Any) -> int:
        """Returns the number of an array."""
        if id(array) not in self._numbers:
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[id(array)]


@final
class Joined:
    """Arrays of equal rows, one after the other, as one array."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.parts: list[Any] = [
            part for each in arrays for part in (each.parts if isinstance(each, Joined) else [each])
        ]
        self.bounds = np.cumsum([0, *(each.shape[0] for each in self.parts)], dtype=np.int64)
        """The first row of each, and the number of all rows."""
        self.shape = (int(self.bounds[-1]), *arrays[0].shape[1:])
        self.dtype = arrays[0].dtype

    def at(self, rows: Indices) -> list[tuple[Any, int]]:
        """The arrays that have some of these rows, each with the number there of one of them."""
        rows = np.sort(rows)
        numbers = np.searchsorted(self.bounds, rows, side="right") - 1
        firsts = np.flatnonzero(are_firsts(numbers))
        rows, numbers = rows[firsts] - self.bounds[numbers[firsts]], numbers[firsts]
        return [(self.parts[part], row) for part, row in zip(numbers.tolist(), rows.tolist(), strict=True)]


@final
class _Arrays(Source):
    """Stands for a step whose elements are the rows of arrays. Its reads are collected and never run."""

    def __init__(self, node: Node, arrays: Sequence[Any]) -> None:
        self.element_spec = node.spec.tree
        self.held = arrays
        self.numbers: list[int] = []
        """That of each array in `CopyPlan.arrays`."""
        self._length = finite_length(node)

    def __len__(self) -> int:
        return self._length


def _held(node: Node, arrays: Sequence[Any]) -> SourceNode:
    return SourceNode(_Arrays(node, arrays), node.verb)


def _are_alike(arrays: Sequence[Any]) -> bool:
    """Whether arrays can be read as one."""
    is_strided = all(isinstance(each, Joined) or _has_windows(each) for each in arrays)
    return is_strided and len({(each.shape[1:], each.dtype) for each in arrays}) == 1


@final
@dataclass(frozen=True, eq=False)
class _Converted(OneToOne, OneInput):
    """The elements of a cast. The engine converts the bytes, so the rows are those of the input."""

    cast: Node

    verb = "cast"

    @property
    def spec(self) -> Spec:
        """That of the cast, for steps above that compare it."""
        return self.cast.spec

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Those of the input."""
        reader.inputs[0].fill(epoch, indices, out, gather)

    def row_count(self, epoch: int, index: int) -> int | None:
        """That of the input."""
        return self.source.row_count(epoch, index)

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Those of the input."""
        reader.inputs[0].fill_rows(epoch, index, rows, out, gather)


@final
@dataclass(frozen=True, eq=False)
class _InTurn(OneInput):
    """The elements that a step deals from its inputs. The input here has those of all, one after the other."""

    step: Dealt

    verb = "deal"

    @property
    def length(self) -> Length:
        """That of the step."""
        return self.step.length

    @cached_property
    def _starts(self) -> Indices:
        return np.cumsum([0, *map(finite_length, self.step.inputs[:-1])], dtype=np.int64)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """The rows of these elements."""
        which, theirs = self.step.deal(indices)
        reader.inputs[0].fill(epoch, self._starts[which] + theirs, out, gather)


@final
@dataclass(frozen=True, eq=False)
class _Starts(OneInput):
    """The windows of a step. The engine reads a window as one row, named by its first element."""

    windows: Windows

    verb = "windows"

    @property
    def length(self) -> Length:
        """The number of windows."""
        return self.windows.length

    @property
    def spec(self) -> Spec:
        """That of the windows."""
        return self.windows.spec

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """The rows at which the windows start."""
        reader.inputs[0].fill(epoch, self.windows.starts(indices), out, gather)


def _keeps_neighbours(node: Node) -> bool:
    """Whether neighbours of a node's elements are neighbours in arrays below that have windows."""
    if isinstance(node.opens, Source) and not all(map(_has_windows, node.opens.arrays() or ())):
        return False
    return node.keeps_neighbours and all(map(_keeps_neighbours, node.inputs))


def _has_windows(array: Any) -> bool:
    return isinstance(array, np.ndarray) or hasattr(array, "windowed")


def _require_one_cast(node: Node) -> None:
    (source,) = node.inputs
    if any(each.converts for each in walk(source)):
        raise _NotCopiesError
    try:
        for given, made in zip(source.spec.leaves, node.spec.leaves, strict=True):
            conversion(given.dtype, made.dtype)
    except TypeError as error:
        raise _NotCopiesError from error


def _windowed(array: Any, size: int, stride: int) -> Any:
    """The windows over an array, one a start, as an array of the same memory or file."""
    if not isinstance(array, np.ndarray):
        return array.windowed(size, stride)
    shape = (max(0, len(array) - (size - 1) * stride), size, *array.shape[1:])
    strides = (array.strides[0], array.strides[0] * stride, *array.strides[1:])
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)
