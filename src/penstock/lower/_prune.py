"""Plans without unneeded steps or memory: complete caches without their inputs, and sources that keep less."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.lower._rewrite import rewritten
from penstock.memory._rows import Indices
from penstock.plan._cache import Cache, CompleteCache
from penstock.plan._index import Shuffle
from penstock.plan._node import Node, walk
from penstock.plan._source_node import SourceNode
from penstock.plan._tolerate import Replace

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
        key: CompleteCache(cache.store, cache.text, whole, cache.source)
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
        elif isinstance(node, Replace) or (isinstance(node, Shuffle) and node.reshuffle):
            for each in node.inputs:  # it reads others in another epoch, or if some fail
                look_at_all(each)
        else:
            for demand in node.demand(0, indices):
                look(node.inputs[demand.input], demand.indices)

    look_at_all(plan)
    return found


def with_cache_limit(plan: Node, share: float) -> Node:
    """The same plan with sources that keep only a share of their memory; itself if none can."""

    def change(node: Node) -> Node:
        if not isinstance(node, SourceNode):
            return node
        data = node.data.with_cache_limit(int(share * node.data.kept_nbytes))
        return node if data is node.data else replace(node, data=data)

    return rewritten(plan, change)
