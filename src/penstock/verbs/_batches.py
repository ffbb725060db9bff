"""The verbs that make batches of elements of several lengths, and `batch`."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from penstock.base import _tree
from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Structure, Tree
from penstock.lower._loose import loosened
from penstock.plan._batch import Batch
from penstock.plan._blocks import Buckets, Cost, Packs, as_lengths, caution_long
from penstock.plan._node import Node
from penstock.plan._pack import Pack, TokenBatch
from penstock.plan._pad import BucketByLength, Bucketed, PaddedBatch, Padding
from penstock.plan._ragged import EndToEnd, RaggedBatch
from penstock.verbs._asked import integer, integers, mapped, require_function, require_random
from penstock.verbs._lengths import KnownLengths, lengths_of, without_count

WAITING_COUNT: Final = 1024
"""The sequences of a stream among which `pack(fit="best")` chooses. A constant, for rows depend on it."""


def batch(
    node: Node, size: Any, drop_remainder: bool, max_tokens: Any, lengths: Any, cost: Callable[[Any, Any], Any] | None
) -> Node:
    """See `Dataset.batch`."""
    if (size is None) == (max_tokens is None):
        raise ArgumentError("batch() needs a size, batch(32), or a number of tokens, batch(max_tokens=4096).")
    if max_tokens is not None:
        if drop_remainder:
            raise ArgumentError("batch(max_tokens=, drop_remainder=True): no batch has a size to be short of.")
        limit = integer("batch", "max_tokens", max_tokens, least=1)
        known = None if lengths is None else known_lengths(node, "batch(lengths=...)", lengths)
        if known is not None and known.seed is not None:
            raise ArgumentError(
                "batch(lengths=...): lengths are those of elements by position, but the order changes with each "
                "epoch. Put this step before shuffle(), or use shuffle(reshuffle=False), or "
                "bucket_by_length(lengths=..., max_tokens=...), which takes the shuffle over."
            )
        flat = None if known is None else np.asarray(known.lengths[0], np.int64)
        padding, is_declared = padding_of("batch", None, None), _declares_axes(node)
        of = cost_of("batch", cost, has_lengths=flat is not None)
        made = TokenBatch(loosened(node), flat, limit, padding, cost=of, is_declared=is_declared)
        assert made.length is None or made.length >= 0  # refuses a sequence that is too long
        return made
    if lengths is not None:
        raise ArgumentError("batch(lengths=) is for batch(max_tokens=).")
    cost_of("batch", cost, has_lengths=False)
    return Batch(node, integer("batch", "size", size, least=1), drop_remainder)


def pack(
    node: Node,
    length: Any,
    lengths: Any,
    fit: Any,
    split: bool,
    padding_value: Any,
    drop_remainder: bool,
    positions: bool,
    offsets: bool,
) -> Node:
    """See `Dataset.pack`."""
    if fit not in ("next", "first", "best"):
        raise ArgumentError(f"pack(fit={fit!r:.80}): it is 'next', 'first' or 'best'.")
    sizes, structure = _row_sizes(length)
    if structure is not None and (split or lengths is None):
        raise ArgumentError(
            f"pack({length!r:.80}): parts of different lengths have no common place to be cut, so elements stay "
            "whole. Write pack(..., lengths={...}, split=False), with lengths in the same tree."
        )
    if fit == "first" and lengths is None:
        raise ArgumentError(
            "pack(fit='first') looks for room in all rows, by the lengths of all elements. Give them, "
            "pack(..., lengths=[...]); or use fit='best', which then chooses among those that wait."
        )
    plan, flat, packs = node, None, None
    if lengths is not None:
        plan, known, seed, is_local = known_lengths(node, "pack(lengths=...)", lengths, structure)
        plan = without_count(plan, lengths)
        if fit != "next" or seed is not None or structure is not None:
            packs = Packs(as_lengths("pack", known), seed, is_local, sizes, fit, bool(split))
        else:
            flat = np.asarray(known[0], np.int64)
        if packs is not None and drop_remainder:
            raise ArgumentError(
                "pack(drop_remainder=True): rows come from blocks here, and each block may end with a row that is "
                "not full. Leave drop_remainder out; or use fit='next', one length and no shuffle before."
            )
        if not split:
            caution_long(f"pack({length})", known, sizes)
    options = bool(split), padding_value, bool(drop_remainder), bool(positions)
    waiting = WAITING_COUNT if fit == "best" and lengths is None else None
    made = Pack(loosened(plan), flat, sizes, structure, *options, packs, bool(offsets), waiting)
    assert made.length is None or made.length >= 0  # refuses lengths that make too many rows
    if node.known_spec is not None:
        made.spec  # noqa: B018  # refuses what is wrong here
    return made


def ragged_batch(node: Node, size: Any, drop_remainder: bool, max_tokens: Any, lengths: Any) -> Node:
    """See `Dataset.ragged_batch`."""
    if (size is None) == (max_tokens is None):
        raise ArgumentError(
            "ragged_batch() needs a size, ragged_batch(32), or a number of tokens, ragged_batch(max_tokens=4096)."
        )
    if max_tokens is None:
        if lengths is not None:
            raise ArgumentError("ragged_batch(lengths=) is for ragged_batch(max_tokens=).")
        count = integer("ragged_batch", "size", size, least=1)
        return RaggedBatch(loosened(node), count, drop_remainder, EndToEnd())
    if drop_remainder:
        raise ArgumentError("ragged_batch(max_tokens=, drop_remainder=True): no batch has a size to be short of.")
    limit, flat, packs = integer("ragged_batch", "max_tokens", max_tokens, least=1), None, None
    if lengths is not None:
        node, known, seed, is_local = known_lengths(node, "ragged_batch(lengths=...)", lengths)
        caution_long(f"ragged_batch(max_tokens={limit})", known, (limit,))
        tokens = [np.maximum(known[0], 1)]
        if seed is None:
            flat = np.asarray(tokens[0], np.int64)
        else:
            packs = Packs(as_lengths("ragged_batch", tokens), seed, is_local, (limit,), "next", splits=False)
    made = TokenBatch(loosened(node), flat, limit, EndToEnd(), packs)
    assert made.length is None or made.length >= 0  # refuses a sequence that is too long
    return made


def bucket_by_length(
    node: Node,
    length_fn: Callable[[Any], Any] | None,
    boundaries: Any,
    batch_sizes: Any,
    lengths: Any,
    batch_size: Any,
    max_tokens: Any,
    cost: Callable[[Any, Any], Any] | None,
    padding: Padding,
    drop_remainder: bool,
) -> Node:
    """See `Dataset.bucket_by_length`."""
    if lengths is not None:
        if (batch_size is None) == (max_tokens is None) or (length_fn, boundaries, batch_sizes) != (None,) * 3:
            raise ArgumentError(
                "bucket_by_length(lengths=...) sorts by lengths, so it takes no function and no boundaries, and "
                "the size of batches in one way: batch_size=32 or max_tokens=4096."
            )
        of = cost_of("bucket_by_length", cost, has_lengths=max_tokens is not None)
        return _by_lengths(node, lengths, batch_size, max_tokens, of, padding, drop_remainder)
    cost_of("bucket_by_length", cost, has_lengths=False)
    if batch_size is not None or max_tokens is not None:
        raise ArgumentError(
            "bucket_by_length(batch_size=) and max_tokens= need lengths=, a number for each element. With a "
            "function and boundaries, write batch_sizes=[...], one for each bucket."
        )
    edges = integers("bucket_by_length", "boundaries", boundaries)
    sizes = integers("bucket_by_length", "batch_sizes", batch_sizes, least=1)
    if list(edges) != sorted(set(edges)):
        raise ArgumentError(f"bucket_by_length(boundaries={list(edges)}): they must ascend.")
    if len(sizes) != len(edges) + 1:
        raise ArgumentError(
            f"bucket_by_length() has {len(edges)} boundaries, and so {len(edges) + 1} buckets, but got "
            f"{len(sizes)} batch_sizes."
        )
    spec = node.known_spec
    if length_fn is len and spec is not None and not isinstance(tree := spec.tree, ArraySpec):
        part = repr(next(iter(tree))) if isinstance(tree, dict) else 0
        raise ArgumentError(
            f"bucket_by_length(len): an element is {type_of(tree)}, whose len is always {len(tree)}, so all go "
            f"to one bucket. Say of which part: lambda element: len(element[{part}])."
        )
    shape = spec.leaves[0].shape if length_fn is len and spec is not None and spec.is_lone else ()
    if None in shape[1:] and shape[0] is not None:
        raise ArgumentError(
            f"bucket_by_length(len): an element is {spec}, whose len is always {shape[0]}, so all go to one "
            f"bucket. Say of which axis: lambda element: element.shape[{shape.index(None)}]."
        )
    require_function("bucket_by_length", length_fn)
    assert length_fn is not None
    judged = mapped(loosened(node), "bucket_by_length", length_fn, verdict="int64")
    return BucketByLength(judged, edges, sizes, drop_remainder, padding)


def _by_lengths(
    node: Node,
    lengths: Any,
    batch_size: Any,
    max_tokens: Any,
    cost: Cost | None,
    padding: Padding,
    drop_remainder: bool,
) -> Node:
    plan, known, seed, is_local = known_lengths(node, "bucket_by_length(lengths=...)", lengths)
    verb, table = "bucket_by_length", as_lengths("bucket_by_length", known)
    if max_tokens is None:
        size = integer(verb, "batch_size", batch_size, least=1)
        buckets = Buckets(table, seed, is_local, size, None)
        ordered = Bucketed(loosened(plan), buckets)
        return PaddedBatch(ordered, size, drop_remainder, padding, buckets=buckets)
    if drop_remainder:
        raise ArgumentError(
            "bucket_by_length(max_tokens=, drop_remainder=True): no batch has a size to be short of. Leave "
            "drop_remainder out, or use batch_size=."
        )
    limit = integer(verb, "max_tokens", max_tokens, least=1)
    caution_long(f"{verb}(max_tokens={limit})", known, (limit,))
    buckets, is_declared = Buckets(table, seed, is_local, None, limit, cost), _declares_axes(plan)
    return TokenBatch(loosened(plan), None, limit, padding, buckets, is_declared=is_declared)


def known_lengths(node: Node, call: str, lengths: Any, structure: Structure | None = None) -> KnownLengths:
    """The lengths of all elements, of a plan with random access."""
    require_random(node, call, "Leave lengths out, and rows come as a stream")
    return lengths_of(node, call, lengths, structure)


def cost_of(verb: str, function: object, *, has_lengths: bool) -> Cost | None:
    if function is None:
        return None
    if not has_lengths:
        raise ArgumentError(
            f"{verb}(cost=) orders batches by what they cost, which lengths tell. Write {verb}(lengths=..., "
            "max_tokens=..., cost=...)."
        )
    require_function(verb, function)
    cost = Cost(function)  # type: ignore[arg-type]
    cost.mark  # noqa: B018  # refuses a function that returns something else
    return cost


def _declares_axes(node: Node) -> bool:
    """Whether the spec of a plan says that axes vary. That of one element never does."""
    return (spec := node.known_spec) is not None and any(None in leaf.shape for leaf in spec.leaves)


def padding_of(verb: str, shapes: Tree, values: Tree, side: str = "right") -> Padding:
    if side not in ("left", "right"):
        raise ArgumentError(f"{verb}(side={side!r:.80}): it is 'right' or 'left'.")
    fill, value_structure = _tree.flatten_values(values)
    if shapes is None:
        return Padding(None, tuple(fill), None, value_structure, side == "left")
    # A shape is a tuple, and so is structure: leaves are found by what they hold.
    leaves, structure = _tree.flatten_until(shapes, lambda x: x is None or _is_shape(x))
    for leaf in leaves:
        if leaf is not None and not _is_shape(leaf):
            raise ArgumentTypeError(f"{verb}(padded_shapes=...) needs shapes such as (None, 3), got {leaf!r}.")
    sizes = tuple(
        None if leaf is None else tuple(None if size is None else as_int(size) for size in leaf) for leaf in leaves
    )
    return Padding(sizes, tuple(fill), structure, value_structure, side == "left")


def _row_sizes(length: Any) -> tuple[tuple[int, ...], Structure | None]:
    """The tokens of a row of `pack`; for parts of different lengths also their structure."""
    is_one = as_int(length) is not None or not isinstance(length, (dict, tuple))
    given, structure = ([length], None) if is_one else _tree.flatten(length)
    sizes = tuple(integer("pack", "length", each, least=1) for each in given)
    if not sizes:
        raise ArgumentError(f"pack(length={length!r}): it has no length. Give tokens a row, as in pack(512).")
    return sizes, structure


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and all(size is None or _is_size(size) for size in value)


def _is_size(value: object) -> bool:
    size = as_int(value)
    return size is not None and size >= 0
