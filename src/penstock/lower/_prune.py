"""A plan with other nodes in the place of some.

Without what nobody needs any more: what is before a cache that has all that the plan can ask for. And with sources that
keep less in memory.
"""

import operator
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.memory._rows import Indices
from penstock.plan._cache import Cache
from penstock.plan._map import Map
from penstock.plan._node import Node, walk
from penstock.plan._shuffle import Shuffle
from penstock.plan._source import SourceNode
from penstock.plan._tolerate import Replace

MOST_ELEMENTS: Final = 1 << 23
"""Of longer plans nobody counts out which elements they ask for: then it takes them all. So many take some 0.1 s."""


def settled(plan: Node) -> Node:
    """The same plan, where a cache that has all that is asked for needs nothing before it.

    A stream stays as it is: one that is kept is another kind of plan, with another state.
    """
    whole: dict[int, Node] = {}
    if plan.access == "stream":
        return plan
    for node in walk(plan):
        if isinstance(node, Cache) and node.all is None and node.access == "random" and id(node) not in whole:
            found = node.store.complete(lambda cache=node: _asked(plan, cache))  # type: ignore[misc]
            if found is not None:
                whole[id(node)] = replace(node, all=found)
    return _with(plan, whole)


def _asked(plan: Node, cache: Cache) -> npt.NDArray[np.bool_] | None:
    """Which elements of a cache any epoch of a plan may ask for; None where it takes too long to say."""
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
            for each in node.inputs:  # it asks for others in another epoch, or where some fail
                look_at_all(each)
        else:
            for demand in node.demand(0, indices):
                look(node.inputs[demand.input], demand.indices)

    look_at_all(plan)
    return found


def keeping(plan: Node, share: float) -> Node:
    """The same plan, whose sources keep but a share of the memory that they would keep; itself if none can."""
    made: dict[int, Node] = {}
    for node in walk(plan):
        if isinstance(node, SourceNode) and id(node) not in made:
            data = node.data.with_cache_limit(int(share * node.data.kept_nbytes))
            if data is not node.data:
                made[id(node)] = replace(node, data=data)
    less = _with(plan, made)
    for old, new in zip(walk(plan), walk(less), strict=True):
        if isinstance(old, Map) and "_probed" in old.__dict__:  # its function need not run again for that
            new.__dict__["_probed"] = old.__dict__["_probed"]
    return less


def _with(node: Node, made: Mapping[int, Node]) -> Node:
    """The same plan with some of its nodes made anew; itself where there is none of them."""
    if id(node) in made:
        return made[id(node)]
    changed: dict[str, Any] = {}
    for field in fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        if isinstance(value, Node):
            new: Any = _with(value, made)
        elif isinstance(value, tuple) and value and all(isinstance(each, Node) for each in value):
            new = tuple(_with(each, made) for each in value)
            new = value if all(map(operator.is_, new, value)) else new
        else:
            continue
        if new is not value:
            changed[field.name] = new
    return replace(node, **changed) if changed else node  # type: ignore[type-var]
