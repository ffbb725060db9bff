"""Plans made of plans: the helper for all rewrites."""

from collections.abc import Callable, Mapping

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
            done[id(node)] = change(node.over(*map(visit, node.inputs)))
        return done[id(node)]

    return visit(plan)
