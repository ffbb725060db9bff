"""Plans made of plans: the helpers for all rewrites."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from penstock.plan._node import Node


def rewritten(
    plan: Node, change: Callable[[Node], Node] = lambda node: node, made: Mapping[int, Node] | None = None
) -> Node:
    """A plan with changed nodes, from the data upwards. A node that is used twice is changed once.

    Args:
        plan: The plan. It is returned if nothing changes.
        change: Returns the replacement of a node whose inputs were changed already; or the node.
        made: Replacements of nodes, by id, below which nothing is looked at.
    """
    done = dict(made or {})

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = change(over(node, tuple(map(visit, node.inputs))))
        return done[id(node)]

    return visit(plan)


def over(node: Node, inputs: tuple[Node, ...], **changes: Any) -> Node:
    """The same step over other inputs; itself if nothing changes."""
    if all(map(operator.is_, inputs, node.inputs)) and not changes:
        return node
    names = {field.name for field in fields(node)}  # type: ignore[arg-type]  # every concrete node is a dataclass
    changes |= {"source": inputs[0]} if "source" in names else {"sources": inputs}
    clone: Node = replace(node, **changes)  # type: ignore[type-var]
    return clone
