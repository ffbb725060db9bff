"""A plan that only moves bytes, as copies: which rows of which arrays go where, for many batches at once.

The steps of a plan say which elements they need by arithmetic on indices (`Node.fill`). Here that arithmetic runs once
for a block of batches, over rows that have numbers and no memory. The result is a list of index arrays for each batch.
The copy engine executes them without Python (`native/`).

A plan is not of this kind if a step computes, or if a source has no array or file behind it. `CopyPlan.of` then returns
None, and workers run the plan unit by unit.
"""

import itertools
from typing import Any, final

import numpy as np

from penstock.base._spec import Spec
from penstock.lower._share import Share, most_rows
from penstock.memory._rows import Indices, compose, places_of
from penstock.plan._cast import Cast
from penstock.plan._node import Node, Reorder
from penstock.plan._source_node import SourceNode
from penstock.plan._windows import Windows

_NUMERIC = frozenset("biufc")


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
        """NumPy arrays, and arrays in files (`StridedFile`)."""
        self.spec = node.spec
        self._share = share = Share(*shard)
        self._is_whole = share.is_whole
        self._most_rows = 0 if share.is_whole else most_rows(node.spec)
        self._varying = [number for number, leaf in enumerate(share.spec(node.spec).leaves) if leaf.varies]
        self._counted = {number for number, leaf in enumerate(self.spec.leaves) if leaf.varies or not share.is_whole}
        """The leaves whose rows in use are counted."""
        self._numbers: dict[tuple[int, Any], int] = {}
        self._kept: list[Any] = []
        self._root = _Reader(self, node, None, depth=int(not self._is_whole))
        self._marks = None if share.uneven == "refuse" else self.number(share.marks(self._most_rows), None)

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
        found = _Gather()
        self._root.fill(
            epoch, np.arange(first, first + count, dtype=np.int64), _Rows.of(len(self.spec.leaves), count), found
        )
        used = self._used(found.wanted, count)
        batches: list[list[Copy]] = [[] for _ in range(count)]
        for array, leaf, rows, out in found.wanted:
            self._share_out(array, leaf, rows, out, batches, used)
        if self._marks is not None:
            leaf = used.shape[1]
            used = np.column_stack((used, used[:, 0]))
            for copies, row_count in zip(batches, used[:, 0].tolist(), strict=True):
                marks = self._share.mark_rows(row_count, *self._share.rows(row_count, self._most_rows))
                copies.append((self._marks, leaf, marks, None, 0))
        index, shards = self._share[:2]
        mine = (index + 1) * used[:, self._varying] // shards - index * used[:, self._varying] // shards
        return batches, list(map(tuple, mine.tolist()))

    def _used(self, wanted: "list[tuple[int, int, Indices, _Rows]]", count: int) -> "np.ndarray[Any, Any]":
        """Counts the rows of each leaf of each batch, as far as that is asked for: shape `(count, leaves)`.

        A short batch may be anywhere: batches can be shuffled or concatenated.
        """
        used = np.zeros((count, len(self.spec.leaves)), np.int64)
        for _, leaf, _, out in wanted:
            if leaf in self._counted:
                # A place of an element's row 0 counts one: the row may be made of many rows of this kind.
                places = out.positions()
                first = places[places % out.part == 0] if out.part > 1 else places
                used[:, leaf] += np.bincount(first // out.each, minlength=count)
        return used

    def number(self, array: Any, window: "tuple[int, int] | None") -> int:
        """The number of an array, or of the windows over one."""
        key = id(array), window
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self._kept.append(array)  # so that the address stays its own
            self.arrays.append(array if window is None else _windowed(array, *window))
        return self._numbers[key]

    def _share_out(
        self,
        array: int,
        leaf: int,
        rows: Indices,
        out: "_Rows",
        batches: list[list[Copy]],
        used: "np.ndarray[Any, Any]",
    ) -> None:
        """Cuts rows of a block at the borders between batches, and keeps those of this shard."""
        each = out.each
        if isinstance(out.rows, slice) and out.rows.step in (None, 1) and self._is_whole:
            start = out.rows.start
            for number in range(start // each, -(-(start + len(rows)) // each)):
                begin, end = max(0, number * each - start), min(len(rows), (number + 1) * each - start)
                batches[number].append((array, leaf, rows[begin:end], None, start + begin - number * each))
            return
        places = out.positions()
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
                batches[number].append((array, leaf, theirs, mine, 0))
                continue
            row_count = int(used[number, leaf])
            first, last = (row * out.part for row in self._share.rows(row_count, self._most_rows))
            # With a mask, rows that fill up come again in each turn after the first.
            for turn in range(0, last, row_count * out.part):
                kept = (mine >= first - turn) & (mine < last - turn)
                if kept.any():
                    batches[number].append((array, leaf, theirs[kept], mine[kept] + turn - first, 0))


@final
class _Rows:
    """Rows of a block by number: as `Rows`, without memory.

    Args:
        leaves: The leaves that are written.
        each: Rows in a batch.
        part: Rows in a part of a batch along its first axis; 0 as long as batches are written whole.
        rows: Which rows of the block, counted over all of its batches.
    """

    extents = ()

    def __init__(self, leaves: tuple[int, ...], each: int, part: int, rows: "Indices | slice") -> None:
        self.numbers = leaves
        self.each = each
        self.part = part
        self.rows = rows

    @classmethod
    def of(cls, leaf_count: int, count: int) -> "_Rows":
        return cls(tuple(range(leaf_count)), 1, 0, slice(0, count))

    def take(self, rows: "Indices | slice") -> "_Rows":
        return _Rows(self.numbers, self.each, self.part, compose(self.rows, rows))

    def leaves(self, start: int, stop: int) -> "_Rows":
        return _Rows(self.numbers[start:stop], self.each, self.part, self.rows)

    def unstacked(self, size: int, inner: Indices | None = None) -> "_Rows":
        if inner is not None:
            rows: Indices | slice = self.positions()[inner // size] * size + inner % size
        elif isinstance(self.rows, slice) and self.rows.step in (None, 1):
            rows = slice(self.rows.start * size, self.rows.stop * size)
        else:
            rows = (self.positions()[:, None] * size + np.arange(size)).ravel()
        return _Rows(self.numbers, self.each * size, self.part * size or 1, rows)

    def positions(self) -> Indices:
        if isinstance(self.rows, slice):
            return np.arange(self.rows.start, self.rows.stop, self.rows.step or 1, dtype=np.int64)
        return self.rows


@final
class _Gather:
    """Collects what sources are asked for."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, int, Indices, _Rows]] = []
        """The number of an array, that of a leaf of the batch, rows of the array, and where they go."""

    def add(self, reader: "_Reader", indices: Indices, out: _Rows) -> None:
        for number, leaf in zip(reader.numbers, out.numbers, strict=True):
            self.wanted.append((number, leaf, indices, out))


@final
class _Reader:
    """A node whose `fill` is asked for row numbers alone.

    Args:
        plan: What collects the arrays.
        node: The node.
        window: `(size, stride)` if its elements are windows over the node's, each named by its first element.
        depth: How many axes of its elements are taken apart above it. Windows that are taken apart are read row by row.
    """

    def __init__(self, plan: CopyPlan, node: Node, window: "tuple[int, int] | None", *, depth: int) -> None:
        self._node = node
        self.numbers: list[int] = []
        _require_moves(node)
        if depth and type(node).fill_parts is Node.fill_parts:
            raise _NotCopiesError  # its elements have no parts that can be read alone
        inner = window
        if isinstance(node, Windows) and window is None and not depth and _keeps_neighbours(node.source):
            inner = (node.size, node.stride)
        if isinstance(node, SourceNode):
            arrays = node.data.arrays()
            if arrays is None:
                raise _NotCopiesError
            self.numbers = [plan.number(array, window) for array in arrays]
        elif isinstance(node, Cast):
            _require_one_cast(node)
        self._over_windows = inner is not window
        self._is_cast = isinstance(node, Cast)  # the engine converts to what the batch has
        depth = max(0, depth - node.stacks)
        self.inputs = [_Reader(plan, each, inner, depth=depth) for each in node.inputs]

    def fill(self, epoch: int, indices: Indices, out: _Rows, gather: _Gather) -> None:
        if self._over_windows:
            self.inputs[0].fill(epoch, self._node.starts(indices), out, gather)  # type: ignore[attr-defined]
        elif self._is_cast:
            self.inputs[0].fill(epoch, indices, out, gather)
        else:
            self._node.fill(self, epoch, indices, out, gather)  # type: ignore[arg-type]  # the same methods

    def fill_place(self, spec: Spec, epoch: int, indices: Indices, out: _Rows, gather: _Gather) -> None:
        self.fill(epoch, indices, out, gather)  # the places are alike, see `_require_moves`

    def fill_parts(self, epoch: int, index: int, parts: Indices, out: _Rows, gather: _Gather) -> None:
        if self._is_cast:
            self.inputs[0].fill_parts(epoch, index, parts, out, gather)
        else:
            self._node.fill_parts(self, epoch, index, parts, out, gather)  # type: ignore[arg-type]  # as above


def _require_moves(node: Node) -> None:
    """Refuses a step that does more than arithmetic on indices."""
    if not node.moves:
        raise _NotCopiesError
    if isinstance(node, Reorder) and any(places_of(each.spec) != places_of(node.spec) for each in node.inputs):
        raise _NotCopiesError


def _keeps_neighbours(node: Node) -> bool:
    """Whether neighbours of a node's elements are neighbours in the arrays below."""
    return node.keeps_neighbours and all(map(_keeps_neighbours, node.inputs))


def _require_one_cast(node: Cast) -> None:
    below: list[Node] = [node.source]
    while below:
        each = below.pop()
        if isinstance(each, Cast):
            raise _NotCopiesError
        below += each.inputs
    leaves = (*node.spec.leaves, *node.source.spec.leaves)
    if not all(leaf.dtype.kind in _NUMERIC for leaf in leaves):
        raise _NotCopiesError


def _windowed(array: Any, size: int, stride: int) -> Any:
    """The windows over an array, one a start, as an array of the same memory or file."""
    if not isinstance(array, np.ndarray):
        return array.windowed(size, stride)
    shape = (max(0, len(array) - (size - 1) * stride), size, *array.shape[1:])
    strides = (array.strides[0], array.strides[0] * stride, *array.strides[1:])
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)
