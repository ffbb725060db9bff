"""Plans made of plans.

- `cut` divides a stream.
- `with_rows` lets sources read parts of elements alone: rows for `unbatch`, and the values that `select` names.
- `prune_cached` drops the inputs of complete caches.
- `with_batches` makes other batches of the same elements.
- `with_own_rows` takes a share of the rows of each leaf.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._random import seeded_globals
from penstock.memory._rows import Indices
from penstock.plan._batch import Batching, Unbatch
from penstock.plan._cache import Cache, CompleteCache
from penstock.plan._combine import Zip
from penstock.plan._fields import Fields, chosen
from penstock.plan._index import MovedRows, StandIn, sliced
from penstock.plan._map import Map, Memo
from penstock.plan._node import Length, Node, Pairs, walk
from penstock.plan._own_rows import OwnRows
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._rewritten import rewritten
from penstock.plan._stream import Inlet


def cut(node: Node) -> tuple[Node, Node]:
    """Cuts a stream into steps that workers run side by side, and steps that one worker runs.

    Args:
        node: The last step of a stream.

    Returns:
        The steps from the end, over an `Inlet`; and the step that the inlet stands for.
    """
    if not (node.traits.is_parallel and node.access == "stream"):
        below = node.randomness
        differs = below._replace(reorders=below.reorders or below.depth > 0)
        count = node.length if isinstance(node.length, int) else math.inf
        facts = {"length": count, "spec": node.spec, "batch_size": node.batch_size, "randomness": differs}
        return Inlet(node.label, facts), node
    above, below_cut = cut(node.inputs[0])
    return node.over(above, **node.fixes), below_cut


def with_own_rows(plan: Node, index: int, count: int, micro_count: int) -> Node:
    """A plan of a share of the rows of each leaf: the step that takes them is as near to the data as it can be.

    It passes steps that only move elements, for rows of their elements are rows of their inputs' elements.
    """
    if not (plan.moves and plan.inputs and not plan.stacks):
        return OwnRows(plan, index, count, micro_count)
    return plan.over(*(with_own_rows(each, index, count, micro_count) for each in plan.inputs))


def closed(node: Node, length: Length) -> Node:
    """The steps over an inlet, for an epoch that has this number of elements."""
    if isinstance(node, Inlet):
        return replace(node, facts={**node.facts, "length": length})
    return node.over(closed(node.inputs[0], length), **node.fixes)


def uses(node: Node) -> Iterator[Node]:
    """Yields the steps of a stream, and the parts with random access below it, once for each use.

    A step that two others read is yielded twice, because each of them reads it at its own position.
    """
    yield node
    if node.access == "stream":
        for each in node.inputs:
            yield from uses(each)


def needed(node: Node, index: int) -> tuple[int, int]:
    """The elements `[first, stop)` of the inlet that one element of a step above it needs."""
    start, stop = index, index + 1
    while node.inputs:
        start, stop = node.needs(start, stop)
        (node,) = node.inputs
    return start, stop


def reader_of(plan: Node) -> Reader:
    """A reader for the calling thread, with sources of its own, which close when it is dropped."""
    plan = with_rows(plan)
    return Reader(plan, OpenSources(plan), isolation=seeded_globals)


def with_rows(plan: Node) -> Node:
    """A plan that reads parts of elements alone: those of `unbatch`, and the values that `select` names.

    Sources that cannot do so read whole elements.
    """

    @functools.cache  # a node may be used many times
    def rows_of(node: Node) -> Node | None:
        """A plan whose elements are the rows of another plan's; None if the sources cannot read them alone."""
        if not node.inputs:
            return node.rows
        moves = node.gives_inputs and node.moves
        converts_rows = node.is_pointwise and type(node).fill_rows is not Node.fill_rows
        if node.access == "stream" or not (moves or converts_rows):  # such as a batch, whose rows are elements
            return None
        rows = tuple(each for each in map(rows_of, node.inputs) if each is not None)
        if len(rows) < len(node.inputs):
            return None
        if not moves:
            return node.over(*rows)
        stand_ins = tuple(StandIn(each.length, mine.spec) for each, mine in zip(node.inputs, rows, strict=True))
        return MovedRows(rows, node.over(*stand_ins), Unbatch(node).part_size)

    def change(node: Node) -> Node:
        if isinstance(node, Fields) and node.access == "random":
            return _narrow(node.source, node.all_pairs)
        rows = rows_of(node.inputs[0]) if node.stacks < 0 else None
        return node if rows is None or rows.length != node.length else rows

    return rewritten(plan, change)


def _narrow(node: Node, pairs: Pairs) -> Node:
    """A plan of some values of the elements of a plan, under their new names and in this order."""
    if node.treats_leaves_alike:
        return node.over(*(_narrow(each, pairs) for each in node.inputs))
    found = node.narrowed(pairs, _narrow)
    # Inputs that are left out may end sooner, or count among those whose functions draw numbers.
    if found is not None and (found.length, found.randomness) == (node.length, node.randomness):
        return found
    return chosen(node, pairs)


MOST_ELEMENTS: Final = 1 << 23
"""In longer plans, a cache counts as complete only if it has all its elements. Finding those that the plan reads takes
about 0.1 s for this number."""


def prune_cached(plan: Node) -> Node:
    """Drops the inputs of complete caches.

    A stream stays as it is: a stream that is kept is another kind of plan, with another state.
    """
    if plan.access == "stream":
        return plan
    caches = {id(each): each for each in walk(plan) if isinstance(each, Cache) and each.access == "random"}
    found = {
        key: CompleteCache(cache.store, cache.text, whole, cache.source, cache.randomness)
        for key, cache in caches.items()
        if (whole := cache.store.complete(lambda cache=cache: _asked(plan, cache))) is not None  # type: ignore[misc]
    }
    return rewritten(plan, made=found)


def _asked(plan: Node, cache: Cache) -> npt.NDArray[np.bool_] | None:
    """The elements of a cache that any epoch of a plan may read; None if finding them takes too long."""
    if any(isinstance(node.length, int) and node.length > MOST_ELEMENTS for node in walk(plan)):
        return None
    assert isinstance(cache.length, int)
    found = np.zeros(cache.length, np.bool_)

    def look_at_all(node: Node) -> None:
        if isinstance(node.length, int):
            look(node, np.arange(node.length))
        else:
            for each in node.inputs:
                look_at_all(each)

    def look(node: Node, indices: Indices) -> None:
        if node is cache:
            found[indices] = True
        elif node.redraws:
            for each in node.inputs:
                look_at_all(each)
        else:
            for demand in node.demand(0, indices):
                look(node.inputs[demand.input], demand.indices)

    look_at_all(plan)
    return found


def batching_of(plan: Node) -> Batching | None:
    """The step that makes the batches of a plan with random access; None if other steps depend on its size.

    Functions of whole batches may follow it, but no random ones: these draw by the number of the batch.
    """
    while plan.is_pointwise and len(plan.inputs) == 1:
        (plan,) = plan.inputs
    return plan if isinstance(plan, Batching) and plan.access == "random" else None


def with_batches(plan: Node, start: int = 0, size: int | None = None) -> Node:
    """The same plan, with other batches of its elements; `batching_of` must find the step that makes them.

    Args:
        plan: The plan.
        start: The elements before the first batch.
        size: The elements of a batch; None for as many as now.
    """
    batching = batching_of(plan)
    assert batching is not None
    source = sliced(batching.source, "skip", str(start), start, None, None) if start else batching.source
    made = batching.over(source, size=size or batching.size)

    def change(node: Node) -> Node:  # a function found something out about the other batches
        return node.over(*node.inputs, memo=Memo()) if isinstance(node, Map) else node

    return rewritten(plan, change, {id(batching): made})


@final
@dataclass(frozen=True)
class ValueAt:
    """A function that takes a part out of an element, by its place or name."""

    key: Any
    releases_gil = True

    def __call__(self, element: _tree.Tree) -> _tree.Tree:
        """Takes the part."""
        if isinstance(self.key, str) and hasattr(element, "_fields"):
            return dict(zip(element._fields, element, strict=True))[self.key]
        return element[self.key]


def with_value(plan: Node, key: Any) -> Node:
    """A plan of one part of each element, without the other parts where they come from elsewhere."""
    if isinstance(plan, Zip):
        sources: _tree.Tree = plan.structure.unflatten(plan.sources)
        return ValueAt(key)(sources)  # type: ignore[no-any-return]
    if plan.treats_leaves_alike:
        return plan.over(*(with_value(each, key) for each in plan.inputs))
    return Map(plan, ValueAt(key), None, "")
