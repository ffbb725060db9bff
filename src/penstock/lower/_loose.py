"""Elements of any size before a step that pads them, where the user declared no spec.

A spec that is found on element 0 has that element's shape, and an element of another shape is an error. Before
`padded_batch` and `bucket_by_length` the shapes are expected to differ. So there a found spec has dtypes and numbers of
axes only. All axes are padded, so batches have no size that is known ahead. A declared spec, or `padded_shapes`, keeps
batches of fixed size in slots.
"""

from penstock.plan._node import Node


def loosened(plan: Node) -> Node:
    """Returns the same steps, whose elements may have any size where nothing declares one."""
    done: dict[int, Node] = {}

    def visit(node: Node) -> Node:
        if id(node) not in done:
            same = node.over(*map(visit, node.inputs)) if node.takes_any_shape else node
            done[id(node)] = same.loosened()
        return done[id(node)]

    return visit(plan)
