"""`windows`: runs of elements, and offsets by name."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.plan._around import Anchors, around, offsets_of
from penstock.plan._cautions import caution_stride, caution_windows
from penstock.plan._index import Select
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._source_node import SourceNode
from penstock.plan._windows import Windows, group_bounds, grouped, window_count
from penstock.sources.arrays import ArraySource
from penstock.verbs._asked import integer, require_random
from penstock.verbs._labels import Labels, labels_of


def windows(
    node: Node,
    length: int | Mapping[str, Iterable[int]],
    shift: int,
    stride: int,
    groups: Labels | None,
    tail: bool,
) -> Node:
    """See `Dataset.windows`."""
    shift, stride = (integer("windows", name, each, 1) for name, each in (("shift", shift), ("stride", stride)))
    tail, total, offsets = bool(tail), node.length, None
    if isinstance(length, Mapping):
        require_random(node, "windows({name: offsets})", "Keep its elements first, or give a length: windows(8)")
        offsets, size = offsets_of(node, length), 1
        if stride != 1:
            raise ArgumentError(f"windows({{name: offsets}}, stride={stride}): the offsets say how far apart.")
    else:
        size = integer("windows", "length", length, least=1)
    span = (size - 1) * stride + 1
    if groups is None:
        if offsets is None:
            count = window_count(total, span, shift, tail) if isinstance(total, int) else total
            plain = Windows(node, size, shift, stride, None, count, tail)
            caution_windows(node, plain.label)
            caution_stride(node, plain)
            return plain
        caution_windows(node, "windows({name: offsets})")
        order, sizes = None, np.array([min(total or 0, POSITION_LIMIT)], np.int64)
    else:
        require_random(node, "windows(groups=)", "Make the windows in the generator, or by flat_map()")
        order, sizes = grouped(labels_of(node, "windows(groups=...)", groups))
    bounds, count = group_bounds(sizes, span, shift, tail)
    chosen = node if order is None else Select(node, "windows", "groups=...", order, is_hidden=True)
    if offsets is None:
        return Windows(chosen, size, shift, stride, bounds, count, tail)
    pads = SourceNode(ArraySource(np.array([False, True])), "from_arrays")
    every = [each for name in node.spec.tree for each in offsets.get(name, (0,))]
    anchors = Anchors(bounds, shift, total if total == math.inf else count, min(every), max(every))
    return around(chosen, offsets, anchors, pads)
