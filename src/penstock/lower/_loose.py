"""Elements of any size before a step that pads them, where the user declared no spec.

A spec that is found on element 0 has that element's shape, and an element of another shape is an error. Before
`padded_batch` and `bucket_by_length` the shapes are expected to differ. So there a found spec has dtypes and numbers of
axes only. All axes are padded, so batches have no size that is known ahead. A declared spec, or `padded_shapes`, keeps
batches of fixed size in slots.
"""

from dataclasses import replace

from penstock.lower._rewrite import over
from penstock.plan._cast import Cast
from penstock.plan._combine import Concatenate, Interleave, Mix, Zip
from penstock.plan._fields import Fields
from penstock.plan._filter import Filter
from penstock.plan._index import Repeat, Select, Shuffle, Slice
from penstock.plan._map import Map, OfFunction
from penstock.plan._node import Node
from penstock.plan._sample import Sample
from penstock.plan._source_node import SourceNode
from penstock.plan._stream import Generate

_SAME_ELEMENTS = (Cast, Concatenate, Fields, Filter, Interleave, Mix, Repeat, Sample, Select, Shuffle, Slice, Zip)


def loosened(node: Node) -> Node:
    """Returns the same steps, whose elements may have any size where nothing declares one."""
    if isinstance(node, (Generate, SourceNode)):
        data = node.data.loosened()
        return node if data is node.data else replace(node, data=data)  # type: ignore[arg-type]
    if isinstance(node, OfFunction):
        source = loosened(node.source)
        if node.declared is None and not (isinstance(node, Map) and node.verdict):
            return replace(node, source=source, is_loose=True)
        return over(node, (source,))
    if isinstance(node, _SAME_ELEMENTS):
        return over(node, tuple(map(loosened, node.inputs)))
    return node
