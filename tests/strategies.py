"""Random plans for Hypothesis, each with a perfect model: its elements in plain lists.

A model is a function from an epoch to the list of all its elements. Each verb below stands beside its meaning in
that language, written from the meanings and not from the code: no indices of indices, no batches, no memory. The order
of a shuffle and the numbers of `random_map` cannot be described in another way, so they come from
`penstock.base._random`. The order of a windowed shuffle of a stream comes from the library itself, run on bare numbers.
This shows that the order depends on nothing else.

    @given(plans())
    def test_elements_are_those_of_the_model(plan):
        for index, element in enumerate(plan.elements(0)):
            assert_same(plan.dataset[index], element)
"""

import functools
import itertools
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from penstock import (
    Ragged,
    concatenate,
    from_arrays,
    from_csr,
    from_generator,
    from_source,
    interleave,
    mix,
    range as range_of,
    zip as zip_of,
)
from penstock.base import _tree
from penstock.base._random import ElementRng, local_permute, permute, permute_each
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.plan._batch import Batching
from penstock.plan._index import repeats
from penstock.plan._parted import PartSizes
from penstock.plan._sample import Weights
from penstock.plan._source import Source
from penstock.sources.boxes import BoxSource
from penstock.verbs._join import with_empty_groups

MAX_LENGTH = 24
"""Largest number of elements in a plan. Every property concerns small numbers."""
EPOCHS = range(3)
"""A stream may be longer in another epoch. In these it has at most `MAX_LENGTH` elements."""
INT64 = ArraySpec((), np.dtype("int64"))

Elements = Callable[[int], list[Tree]]


@dataclass(frozen=True)
class Plan:
    """A dataset, and its expected elements."""

    dataset: Dataset
    elements: Elements
    """The model: an epoch's elements, in order."""
    depth: int = 0
    """The number of `random_map` steps below, on the path with most."""

    def __len__(self) -> int:
        return len(self.elements(0))

    def __repr__(self) -> str:
        return f"\n{self.dataset}\n"

    def then(self, dataset: Dataset, elements: Elements, depth: int | None = None) -> "Plan":
        """Adds a step."""
        return Plan(dataset, functools.cache(elements), self.depth if depth is None else depth)

    @property
    def is_stream(self) -> bool:
        """Whether it has no random access."""
        return self.dataset.access == "stream"

    @property
    def specs(self) -> tuple[ArraySpec, ...]:
        """The spec of each leaf."""
        return Spec.of(self.dataset.element_spec).leaves

    @property
    def is_uniform(self) -> bool:
        """Whether all elements have one shape: there is no short batch."""
        return not any(None in leaf.shape for leaf in self.specs)

    @property
    def is_ragged(self) -> bool:
        """Whether a leaf is of any size. A function that declares no spec is then found out on element 0 alone."""
        return any(None in leaf.shape and leaf.max_shape is None for leaf in self.specs)

    @property
    def has_text(self) -> bool:
        """Whether a leaf is text or bytes."""
        return any(leaf.dtype.itemsize == 0 for leaf in self.specs)


Verb = Callable[[st.DrawFn, Plan], Plan | None]
"""Adds a step to a plan, or returns None where the step does not apply."""


class Pair(NamedTuple):
    """A named tuple, which is structure."""

    left: Tree
    right: Tree


# Functions of the user. Their names show in the plan.


def double(element: Tree) -> Tree:
    """Doubles each leaf in its own dtype, and in place, because a function's arrays are its own."""
    return _each(lambda leaf: np.add(leaf, leaf, out=leaf if leaf.shape else None), element)


def reverse_rows(element: Tree) -> Tree:
    """Reverses the first axis, as a view of its argument."""
    return _each(lambda leaf: leaf[::-1] if leaf.shape else leaf, element)


def total(element: Tree) -> Tree:
    """Returns one number for each leaf."""
    return _each(np.sum, element)


def named(element: Tree) -> Tree:
    """Returns a dict in an order that is not alphabetical."""
    return {"value": element, "flag": True}


def listed(element: Tree) -> Tree:
    """Returns a list, which is a leaf, beside the element."""
    return (element, [1.5, 2.5])


def checksum(element: Tree) -> int:
    """Computes a number from all values of an element. It decides irregularly what becomes of the element."""
    return zlib.crc32(repr([np.asarray(leaf).tolist() for leaf in _tree.flatten(element)[0]]).encode())


class Kept:
    """A function for `filter` that leaves out one element of every `one_of`. With 1 it leaves out all."""

    def __init__(self, one_of: int) -> None:
        self._one_of = one_of

    def __call__(self, element: Tree) -> bool:
        """Whether the element stays."""
        return checksum(element) % self._one_of != 0


def jitter(element: Tree, rng: np.random.Generator) -> Tree:
    """Returns the element beside two random numbers."""
    return Pair(element, rng.integers(0, 1000, 2))


# Trees.


def _each(function: Callable[[Any], Any], element: Tree) -> Tree:
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([function(np.asarray(leaf)) for leaf in leaves])


def _own(element: Tree) -> Tree:
    """Copies the element, as a function gets it. Text stays as it is."""
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([leaf if isinstance(leaf, (str, bytes)) else np.array(leaf)[()] for leaf in leaves])


def _as_leaves(element: Tree) -> Tree:
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([leaf if isinstance(leaf, (str, bytes)) else np.asarray(leaf) for leaf in leaves])


def _stacked(elements: list[Tree]) -> Tree:
    structure = _tree.flatten(elements[0])[1]
    columns = zip(*(_tree.flatten(element)[0] for element in elements), strict=True)
    return structure.unflatten([np.stack(column) for column in columns])


def _parts(element: Tree) -> list[Tree]:
    leaves, structure = _tree.flatten(element)
    return [structure.unflatten([leaf[k] for leaf in leaves]) for k in range(len(leaves[0]))]


# Data.


def _range(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    return Plan(range_of(count), lambda epoch: [np.int64(i) for i in range(count)])


def _arrays(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    x = np.arange(count * 6, dtype=np.float32).reshape(count, 3, 2)
    y = np.arange(count, dtype=np.uint8)
    tree: Tree = draw(st.sampled_from([x, (x,), {"y": y, "none": None, "x": x}, Pair(x, (y, x[:, 0])), (x, None)]))
    return Plan(from_arrays(tree), lambda epoch: [_own(part) for part in _parts(tree)])


class Parted(Source):
    """Numbers that are decoded some at a time."""

    element_spec: Tree = INT64

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return sum(self._sizes)

    @property
    def part_bounds(self) -> Any:
        """The first number of each part, and the end."""
        return np.cumsum([0, *self._sizes])

    def read_into(self, indices: Any, out: Any) -> None:
        """Writes the numbers."""
        out[...] = indices


class Decoded(Parted):
    """Numbers whose parts are decoded as a whole, of which some are kept."""

    def __init__(self, sizes: Sequence[int], room: float) -> None:
        super().__init__(sizes)
        self._room = room

    @property
    def parts(self) -> PartSizes | None:
        """There is room for a share of the parts."""
        sizes = super().parts
        assert sizes is not None
        return sizes._replace(room=sizes.room_of(self._room))

    def decode(self, part: int) -> Any:
        """Returns the numbers of a part."""
        return np.arange(*self.part_bounds[part : part + 2])


def _parted(draw: st.DrawFn) -> Plan:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any))
    source = draw(st.sampled_from([Parted(sizes), Decoded(sizes, 0), Decoded(sizes, 0.5), Decoded(sizes, 1)]))
    return Plan(from_source(source), lambda epoch: [np.int64(i) for i in range(sum(sizes))])


class Chunked(Source):
    """An array that is stored in chunks."""

    def __init__(self, array: Any, chunk_shape: tuple[int, ...]) -> None:
        self._array, self.chunk_shape = array, chunk_shape
        self.element_spec: Tree = ArraySpec(array.shape[1:], array.dtype)

    def __len__(self) -> int:
        return len(self._array)

    def read_into(self, indices: Any, out: Any) -> None:
        """Writes rows."""
        out[...] = self._array[indices]

    def part(self, box: tuple[slice, ...]) -> Any:
        """Returns a box of the array."""
        return self._array[box]

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource:
        """Returns its patches."""
        return BoxSource(self, sizes, keeps_first=keeps_first)


def _patches(draw: st.DrawFn) -> Plan:
    array = np.arange(5 * 6 * 4, dtype=np.int32).reshape(5, 6, 4)
    kinds = [from_arrays(array), from_arrays(np.asfortranarray(array)), from_source(Chunked(array, (2, 4, 3)))]
    sizes = draw(st.tuples(*(st.integers(2, n) for n in array.shape)))
    strides = draw(st.tuples(*(st.integers(1, 3) for _ in sizes)))
    starts = itertools.product(*map(lambda n, size, by: range(0, n - size + 1, by), array.shape, sizes, strides))
    found = [array[tuple(map(lambda at, size: slice(at, at + size), start, sizes))] for start in starts][:MAX_LENGTH]
    dataset = draw(st.sampled_from(kinds)).patches(sizes, stride=strides).take(MAX_LENGTH)
    return Plan(dataset, lambda epoch: [_own(each) for each in found])


class Csr:
    """A matrix in compressed rows, with the attributes of SciPy's.

    Args:
        dense: The matrix, with its zeros.
    """

    format = "csr"

    def __init__(self, dense: Any) -> None:
        rows, self.indices = np.nonzero(dense)
        self.shape, self.data = dense.shape, dense[rows, self.indices]
        self.indptr = np.searchsorted(rows, np.arange(len(dense) + 1))


def _sparse(draw: st.DrawFn) -> Plan:
    rows = draw(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=12))
    dense = np.array(rows, draw(st.sampled_from([np.float32, np.int16, np.bool_])))
    return Plan(from_csr(Csr(dense)), lambda epoch: [_own(row) for row in dense])


# Verbs with random access.


def _map(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_ragged:
        return None
    fn = draw(st.sampled_from([double, named] + [reverse_rows, total, listed] * p.is_uniform))
    return p.then(p.dataset.map(fn), lambda epoch: [_as_leaves(fn(_own(x))) for x in p.elements(epoch)])


def _random_map(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, depth = draw(st.integers(0, 3)), p.depth + 1

    def elements(epoch: int) -> list[Tree]:
        rng, number_of = ElementRng(seed, depth), p.dataset._node.randomness.number_of  # differs below `shard`
        return [_as_leaves(jitter(_own(x), rng.at(epoch, number_of(i)))) for i, x in enumerate(p.elements(epoch))]

    # A stream may be empty, and then has no element 0 whose result would be the spec.
    spec = Pair(p.dataset.element_spec, ArraySpec((2,), np.dtype("int64"))) if p.is_stream or p.is_ragged else None
    return p.then(p.dataset.random_map(jitter, seed=seed, element_spec=spec), elements, depth)


def _cast(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.has_text:
        return None
    dtype = draw(st.sampled_from(["float32", "int64", "float64"]))
    return p.then(p.dataset.cast(dtype), lambda epoch: [_each(lambda x: x.astype(dtype), e) for e in p.elements(epoch)])


def _slice(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream:
        stops = st.none() | st.integers(3, 20) | st.just(10**20)
        chosen = slice(draw(st.integers(0, 3)), draw(stops), draw(st.integers(1, 3)))
    else:
        chosen = draw(st.slices(len(p)))
    return p.then(p.dataset[chosen], lambda epoch: p.elements(epoch)[chosen])


def _take(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = draw(st.sampled_from([20 - draw(st.integers(0, 20)), 10**20]))
    return p.then(p.dataset.take(n), lambda epoch: p.elements(epoch)[:n])


def _skip(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = draw(st.integers(0, 6))
    return p.then(p.dataset.skip(n), lambda epoch: p.elements(epoch)[n:])


def _shard(draw: st.DrawFn, p: Plan) -> Plan | None:
    count = draw(st.integers(1, 3))
    index = draw(st.integers(0, count - 1))
    return p.then(p.dataset.shard(index, count), lambda epoch: p.elements(epoch)[index::count])


def _repeat(draw: st.DrawFn, p: Plan) -> Plan | None:
    k = draw(st.sampled_from([2, 3, 1, 0]))
    return p.then(p.dataset.repeat(k), lambda epoch: [x for r in range(k) for x in p.elements(epoch * k + r)])


def _shuffle(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, reshuffle, is_stream = draw(st.integers(0, 3)), draw(st.booleans()), p.is_stream
    chunks = p.dataset._node.chunks
    windows = st.none() | st.integers(1, len(p) + 1) | (st.just("chunks") if chunks else st.none())
    window: Any = draw(st.integers(1, 9) if is_stream else windows)

    def elements(epoch: int) -> list[Tree]:
        values, era = p.elements(epoch), epoch if reshuffle else 0
        positions, n = np.arange(len(values)), len(values)
        if window == "chunks":
            assert chunks is not None
            order: Any = in_chunks([chunks.elements(k, np.arange(n)) for k, n in enumerate(chunks.sizes)], seed, era)
        elif window is None:
            order = permute(positions, n, seed=seed, epoch=era)
        elif is_stream:
            order = shuffled(n, seed, window, era)
        else:
            order = local_permute(positions, n, seed=seed, epoch=era, window=window)
        return [values[i] for i in order]

    return p.then(p.dataset.shuffle(seed, window=window, reshuffle=reshuffle), elements)


def in_chunks(chunks: list[Any], seed: int, epoch: int) -> list[int]:
    """Returns the elements of chunks in the order of a shuffle that takes those of a chunk together."""
    given: list[int] = []
    for number in permute(np.arange(len(chunks)), len(chunks), seed=seed, epoch=epoch).tolist():
        count = len(chunks[number])
        places = permute(np.arange(count), count, seed=seed + ((number + 1) << 64), epoch=epoch)
        given += chunks[number][places].tolist()
    return given


@functools.cache
def shuffled(count: int, seed: int, window: int, epoch: int) -> list[int]:
    """Returns the order in which `count` elements of a stream leave a shuffle window."""
    stream = from_generator(range(count), element_spec=INT64).shuffle(seed, window=window)
    with stream.loader(executor="inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": epoch})
        return [int(x) for x in loader]


def _cache(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.depth or p.dataset._node.randomness.reorders or p.dataset.length == math.inf:
        return None
    is_known = not p.is_stream and all(leaf.is_bounded for leaf in p.specs)
    limit = draw(st.sampled_from([100, 1 << 20] + [1, 1000] * (not p.is_stream) + [None] * is_known))
    return p.then(p.dataset.cache(limit=limit), lambda epoch: p.elements(0))


def _batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    return _batches(draw(st.integers(1, 5)), p, draw(st.booleans())) if p.is_uniform else None


def _batches(size: int, p: Plan, drop_remainder: bool = False) -> Plan:
    dataset = p.dataset.batch(size, drop_remainder=drop_remainder)
    return p.then(dataset, lambda epoch: [_stacked(cut) for cut in _cuts_of(dataset, p.elements(epoch), size)])


def _cuts_of(dataset: Dataset, values: list[Tree], size: int) -> list[list[Tree]]:
    """Returns the members of each batch. Where the length says that none is short, a short one is an error instead."""
    node = dataset._node
    assert isinstance(node, Batching)
    return _cuts(values, size, node.is_exact)


def _cuts(values: list[Tree], size: int, drop_remainder: bool) -> list[list[Tree]]:
    cuts = [values[start : start + size] for start in range(0, len(values), size)]
    return [cut for cut in cuts if len(cut) == size or not drop_remainder]


def _csr_batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    if not p.is_uniform or len(p.specs) != 1 or p.has_text or p.specs[0].dtype.kind not in "biuf":
        return None
    size, drops, dtype = draw(st.integers(1, 4)), draw(st.booleans()), p.specs[0].dtype

    def sparse(element: Tree) -> Tree:
        values = np.ravel(_tree.flatten(element)[0][0])
        columns = np.flatnonzero(values)
        return {"indices": columns, "values": values[columns]}

    def joined(cut: list[Tree]) -> Tree:
        rows = [sparse(x) for x in cut]
        parts: Tree = {"indptr": np.cumsum([0, *(len(row["values"]) for row in rows)])}
        return parts | {name: np.concatenate([row[name] for row in rows]) for name in ("indices", "values")}

    spec = {"indices": ArraySpec((None,), np.dtype("int64")), "values": ArraySpec((None,), dtype)}
    made = p.dataset.map(sparse, element_spec=spec).csr_batch(size, drop_remainder=drops)
    # Its leaves have several lengths, and functions of later steps need one shape.
    return p.then(
        made.map(checksum, element_spec=INT64),
        lambda epoch: [np.int64(checksum(joined(cut))) for cut in _cuts_of(made, p.elements(epoch), size)],
    )


def _ragged_batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    if not p.is_uniform or len(p.specs) != 1 or p.has_text or p.specs[0].dtype.kind not in "biuf":
        return None
    size, drops, dtype = draw(st.integers(1, 4)), draw(st.booleans()), p.specs[0].dtype
    most = math.prod(p.specs[0].max_shape or p.specs[0].shape)
    bound = draw(st.sampled_from([None, (most,)]))

    def ragged(element: Tree) -> Tree:
        values = np.ravel(_tree.flatten(element)[0][0])
        return values[values != 0], np.int64(len(values))

    def joined(cut: list[Tree]) -> Tree:
        rows = [ragged(x) for x in cut]
        values, ends = np.concatenate([row for row, _ in rows]), np.cumsum([0, *(len(row) for row, _ in rows)])
        return (values, ends), np.array([count for _, count in rows])

    spec = ArraySpec((None,), dtype, bound), ArraySpec((), np.dtype("int64"))
    made = p.dataset.map(ragged, element_spec=spec).ragged_batch(size, drop_remainder=drops)
    return p.then(
        made.map(checksum, element_spec=INT64),
        lambda epoch: [np.int64(checksum(joined(cut))) for cut in _cuts_of(made, p.elements(epoch), size)],
    )


def _unbatch(draw: st.DrawFn, p: Plan) -> Plan | None:
    sizes = {(leaf.max_shape or ())[:1] for leaf in p.specs}
    if len(sizes) != 1 or sizes <= {(), (0,)} or not (p.is_stream or p.is_uniform):
        return None
    return p.then(p.dataset.unbatch(), lambda epoch: [part for x in p.elements(epoch) for part in _parts(x)])


def _batch_and_unbatch(draw: st.DrawFn, p: Plan) -> Plan | None:
    # `unbatch` finds the short batch also below steps that keep order and number.
    size, is_mapped = draw(st.integers(1, 5)), draw(st.booleans())
    if not p.is_uniform:
        return None
    batches = p.dataset.batch(size)
    if not is_mapped:
        return p.then(batches.unbatch(), p.elements)
    return p.then(batches.map(double).unbatch(), lambda epoch: [double(_own(x)) for x in p.elements(epoch)])


def _windows(draw: st.DrawFn, p: Plan) -> Plan | None:
    length, shift, stride = (draw(st.integers(1, 3)) for _ in range(3))
    if not p.is_uniform:
        return None
    labels, tail = _labels(draw, p), draw(st.booleans())
    span = (length - 1) * stride + 1

    def elements(epoch: int) -> list[Tree]:
        groups = _groups(p.elements(epoch), labels)
        return [
            _stacked(group[start : start + span : stride])
            for group in groups
            for start in starts(len(group), span, shift, tail)
        ]

    return p.then(p.dataset.windows(length, shift=shift, stride=stride, groups=labels, tail=tail), elements)


def _labels(draw: st.DrawFn, p: Plan) -> list[int] | None:
    if p.is_stream or not len(p):
        return None
    labels: list[int] | None = draw(st.none() | st.lists(st.integers(0, 2), min_size=len(p), max_size=len(p)))
    return labels


def _groups(values: list[Tree], labels: list[int] | None) -> list[list[Tree]]:
    """Returns the groups: all elements with one label, in their order. Each has windows of its own."""
    groups: dict[int, list[Tree]] = {}
    for i, x in enumerate(values):
        groups.setdefault(0 if labels is None else labels[i], []).append(x)
    return list(groups.values())


def starts(count: int, span: int, shift: int, tail: bool) -> list[int]:
    """Returns where windows of a group start."""
    found = list(range(0, count - span + 1, shift))
    return found + [count - span] * (tail and bool(found) and found[-1] != count - span)


def _windows_by_name(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream or not p.is_uniform:
        return None
    spec = p.dataset.element_spec
    q = p if isinstance(spec, dict) else p.then(zip_of({"x": p.dataset}), lambda e: [{"x": x} for x in p.elements(e)])
    names = list(q.dataset.element_spec)
    if "is_pad" in names:
        return None
    some = st.lists(st.integers(-3, 3), min_size=1, max_size=3)
    offsets = {name: draw(some) for name in names if draw(st.booleans())} or {names[0]: [0, 1]}
    labels, shift, tail = _labels(draw, p), draw(st.integers(1, 3)), draw(st.booleans())

    def window(group: list[Tree], at: int) -> Tree:
        def near(name: str) -> Tree:
            return _stacked([group[min(max(at + each, 0), len(group) - 1)][name] for each in offsets[name]])

        pads = {name: np.array([not 0 <= at + o < len(group) for o in each]) for name, each in offsets.items()}
        others = {name: part for name, part in group[at].items() if name not in offsets}
        return {**others, **{name: near(name) for name in _alike_together(offsets)}, "is_pad": pads}

    def elements(epoch: int) -> list[Tree]:
        groups = _groups(q.elements(epoch), labels)
        return [window(group, at) for group in groups for at in starts(len(group), 1, shift, tail)]

    return q.then(q.dataset.windows(offsets, shift=shift, groups=labels, tail=tail), elements)


def _alike_together(offsets: dict[str, list[int]]) -> list[str]:
    """Returns names in their order, those with the offsets of an earlier one beside it."""
    return [
        name for each in dict.fromkeys(map(tuple, offsets.values())) for name in offsets if (*offsets[name],) == each
    ]


def _group_by(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream or not p.is_uniform:
        return None
    count = len(p)
    labels: Any = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int64)
    if draw(st.booleans()) or p.dataset._node.randomness.reorders:  # by position

        def positional(epoch: int) -> list[Tree]:
            return [_stacked(group) for group in _groups(p.elements(epoch), labels.tolist())]

        return p.then(p.dataset.group_by(labels), positional)
    dataset = zip_of({"key": from_arrays(labels), "x": p.dataset}).group_by("key")

    def elements(epoch: int) -> list[Tree]:
        groups = _groups(p.elements(epoch), labels.tolist())
        keys = dict.fromkeys(labels.tolist())
        return [{"key": np.int64(key), "x": _stacked(group)} for key, group in zip(keys, groups, strict=True)]

    return p.then(dataset, elements)


def _join(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _part(draw, p)
    # Keys beside what draws numbers are read with it, by processes, which takes half a second.
    if p.is_stream or p.depth or p.dataset._node.randomness.reorders or q.depth or q.dataset._node.randomness.reorders:
        return None
    here = draw(st.lists(st.integers(0, 9), min_size=len(p), max_size=len(p)))
    there = draw(st.permutations(range(10)))[: len(q)]
    left = zip_of({"key": from_arrays(np.array(here, np.uint8)), "x": p.dataset})
    right = zip_of({"id": from_arrays(np.array(there, np.int64)), "y": q.dataset})
    kept = [key in there for key in here]
    how: Any = draw(st.sampled_from(["inner", "left"]))
    fill = draw(st.sampled_from([0, {"y": 1}])) if how == "left" and not all(kept) else None

    def elements(epoch: int) -> list[Tree]:
        values, others = p.elements(epoch), dict(zip(there, q.elements(epoch), strict=False))
        return [
            {"key": np.uint8(key), "x": x, "y": others[key] if key in others else _blank(q, fill)}
            for key, x in zip(here, values, strict=True)
            if key in others or fill is not None
        ]

    return p.then(left.join(right, {"key": "id"}, how=how, fill=fill), elements)


def _by_key(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream or p.depth or p.dataset._node.randomness.reorders:  # as for `_join`
        return None
    keys = draw(st.permutations(range(MAX_LENGTH)))[: len(p)]
    asked = draw(st.lists(st.sampled_from(keys), max_size=9)) if keys else []
    keyed = zip_of({"key": from_arrays(np.array(keys, np.uint8)), "x": p.dataset})

    def elements(epoch: int) -> list[Tree]:
        values = dict(zip(keys, p.elements(epoch), strict=True))
        return [{"key": np.uint8(key), "x": values[key]} for key in asked]

    return p.then(keyed[keyed.positions_of(np.array(asked, np.int64), on="key")], elements)


def _blank(q: Plan, fill: Any) -> Tree:
    """An element of one value, empty along axes of any size, as those of groups are."""
    value = 1 if fill else 0
    leaves = [
        np.full([size or 0 for size in leaf.shape], value, leaf.dtype)[()] if leaf.dtype.itemsize else ""
        for leaf in with_empty_groups(q.dataset._node).spec.leaves
    ]
    return Spec.of(q.dataset.element_spec).structure.unflatten(leaves)


def _sample(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream:
        return None
    weights = np.array(draw(st.lists(st.integers(0, 3), min_size=len(p), max_size=len(p))), float)
    if not weights.any():
        return None
    seed, replacement, most = draw(st.integers(0, 3)), draw(st.booleans()), int(np.count_nonzero(weights))
    count = draw(st.integers(0, 9 if replacement else most))

    def elements(epoch: int) -> list[Tree]:
        values, drawer = p.elements(epoch), Weights(weights)
        drawn = drawer.drawn(np.arange(count), seed, epoch) if replacement else drawer.order(seed, epoch)
        return [values[i] for i in drawn[:count].tolist()]

    return p.then(p.dataset.sample(weights, seed=seed, replacement=replacement, count=count), elements)


def _per_class(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream or not len(p):
        return None
    labels = draw(st.lists(st.integers(0, 3), min_size=len(p), max_size=len(p)))
    seed, due, names = draw(st.integers(0, 3)), draw(st.integers(1, 3)), sorted(set(labels))
    some = draw(st.none() | st.integers(1, len(names)))
    dataset = p.dataset.sample(balance=labels, per_class=due, class_count=some, seed=seed)

    def shuffled(values: list[int], number: int, epoch: int, seed: int = seed) -> list[int]:
        every, size = np.arange(len(values)), np.full(len(values), len(values))
        return [values[i] for i in permute_each(every, size, np.full_like(every, number), seed=seed, epoch=epoch)]

    def chunks(number: int, epoch: int) -> Iterator[list[int]]:
        """Yields what a class has for one group after the other."""
        members = [i for i, label in enumerate(labels) if label == names[number]]
        for turn in itertools.count():
            order = shuffled(members, turn * len(names) + number, epoch)
            order = order * -(-due // len(order)) if len(order) < due else order[: len(order) // due * due]
            yield from (order[start : start + due] for start in range(0, len(order) // due * due, due))

    def elements(epoch: int) -> list[Tree]:
        values, found, width = p.elements(epoch), [], some or len(names)
        hands = [chunks(number, epoch) for number in range(len(names))]
        for turn in itertools.count():
            dealt = list(range(len(names)))
            if width < len(names):
                dealt = shuffled(dealt, turn, epoch, seed + (1 << 64))[: len(names) // width * width]
            taken = [next(hand) for hand in hands]
            found += [values[i] for number in dealt for i in taken[number]]
            if len(found) >= len(dataset):
                return found[: len(dataset)]
        raise AssertionError

    return p.then(dataset, elements)


def _batched(draw: st.DrawFn, p: Plan) -> Plan | None:
    size = draw(st.integers(1, 5))
    if not p.is_uniform or p.has_text:
        return None

    def add(many: Tree) -> Tree:
        return _each(lambda leaf: leaf + np.asarray(len(leaf), leaf.dtype), many)

    def elements(epoch: int) -> list[Tree]:
        return [part for cut in _cuts(p.elements(epoch), size, False) for part in _parts(add(_stacked(cut)))]

    spec = p.dataset.element_spec if p.is_stream else None  # which may be empty
    if not p.is_stream or draw(st.booleans()):
        return p.then(p.dataset.map(add, batched=size, element_spec=spec), elements)

    def repeated(many: Tree) -> Tree:
        count = len(_tree.flatten(many)[0][0])
        return _each(lambda leaf: np.repeat(leaf, np.arange(count) % 3, axis=0), many)

    def more(epoch: int) -> list[Tree]:
        cuts = _cuts(p.elements(epoch), size, False)
        return [part for cut in cuts if len(cut) > 1 for part in _parts(repeated(_stacked(cut)))]

    return p.then(p.dataset.map(repeated, batched=size, keeps_count=False, element_spec=spec), more)


def _ragged(draw: st.DrawFn, p: Plan) -> Plan | None:
    # A function of many that gives as many elements, of any size.
    size = draw(st.integers(1, 5))
    if not p.is_uniform or p.has_text:
        return None

    def split(many: Tree) -> Tree:
        return Pair(many, [np.arange(checksum(part) % 4) for part in _parts(many)])

    def elements(epoch: int) -> list[Tree]:
        return [Pair(_as_leaves(x), np.arange(checksum(x) % 4)) for x in p.elements(epoch)]

    spec = Pair(p.dataset.element_spec, ArraySpec((None,), np.dtype("int64")))
    return p.then(p.dataset.map(split, batched=size, element_spec=spec), elements)


def _pack(draw: st.DrawFn, p: Plan) -> Plan | None:
    size, ragged = draw(st.integers(1, 5)), draw(st.booleans())
    if not _has_sequences(p):
        return None
    tokens = functools.partial(_tokens, ragged=ragged)
    dtype = p.specs[0].dtype
    lengths = None if p.is_stream else [len(tokens(x)) for x in p.elements(0)]
    fits = lengths is None and draw(st.booleans())

    def elements(epoch: int) -> list[Tree]:
        if fits:
            return _rows_that_fit([tokens(x) for x in p.elements(epoch)], size, dtype)
        laid = [(value, owner) for owner, x in enumerate(p.elements(epoch)) for value in tokens(x)]
        rows = []
        for start in range(0, len(laid), size):
            row = laid[start : start + size]
            owners = {owner: number for number, owner in enumerate(dict.fromkeys(o for _, o in row), 1)}
            filled = size - len(row)
            values = np.array([value for value, _ in row] + [0] * filled, dtype)
            rows.append((values, np.array([owners[o] for _, o in row] + [0] * filled, np.int32)))
        return rows

    sequences = p.dataset.map(tokens, element_spec=ArraySpec((None,), dtype))
    return p.then(sequences.pack(size, lengths=lengths, fit="best" if fits else "next"), elements)


def fitted(sequences: Iterable[Any], size: int, most: int) -> list[list[Any]]:
    """Rows of the longest pieces that still fit, of at most so many that wait; of equals, the first to come."""
    arriving = [each[start : start + size] for each in sequences for start in range(0, len(each), size)]
    waiting, rows = arriving[:most], []
    del arriving[:most]
    while waiting:
        row: list[Any] = []
        while fitting := [each for each in waiting if len(each) <= size - sum(map(len, row))]:
            best = max(fitting, key=len)
            row.append(best)
            del waiting[next(place for place, each in enumerate(waiting) if each is best)]
            waiting += arriving[:1]
            del arriving[:1]
        rows.append(row)
    return rows


def _rows_that_fit(sequences: list[Any], size: int, dtype: Any) -> list[Tree]:
    """The rows that `pack(fit="best")` makes of a short stream, of which all wait at once."""
    rows: list[Tree] = []
    for row in fitted(sequences, size, sys.maxsize):
        rest = [0] * (size - sum(map(len, row)))
        owners = np.repeat(np.arange(1, len(row) + 1), [len(each) for each in row])
        rows.append((np.array([*np.concatenate(row), *rest], dtype), np.array([*owners, *rest], np.int32)))
    return rows


def _has_sequences(p: Plan) -> bool:
    """Whether `_tokens` of an element are the same in every epoch, or come as a stream."""
    differs = p.dataset._node.randomness.reorders or p.depth
    # The models of later steps stack rows with NumPy, which gives all dtypes this machine's order of bytes.
    is_one = len(p.specs) == 1 and not p.has_text and p.specs[0].dtype.isnative
    return is_one and (p.is_stream or not differs)


def _tokens(element: Tree, ragged: bool) -> Any:
    values = np.asarray(_tree.flatten(element)[0][0]).ravel()
    return values[: checksum(element) % (len(values) + 1)] if ragged else values


def _by_length(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Which elements a row has is arithmetic on lengths. So it is learnt from bare numbers with the same lengths.
    if p.is_stream or not _has_sequences(p):
        return None
    seed, packs, ragged = draw(st.none() | st.integers(0, 3)), draw(st.booleans()), draw(st.booleans())
    size, fit, split = draw(st.integers(1, 5)), draw(st.sampled_from(["next", "first", "best"])), draw(st.booleans())
    tokens, dtype = functools.partial(_tokens, ragged=ragged), p.specs[0].dtype
    lengths = tuple(len(tokens(x)) for x in p.elements(0))
    room = max(size, *lengths) if (packs and not split) or (not packs and split) else size

    def add(sequences: Dataset) -> Dataset:
        ordered = sequences if seed is None else sequences.shuffle(seed)
        if packs:
            return ordered.pack(room, lengths=lengths, fit=fit, split=split, positions=True)
        limit = {"max_tokens": max(1, room)} if split else {"batch_size": size}
        return ordered.bucket_by_length(lengths=lengths, **limit)

    @functools.cache
    def numbered(epoch: int) -> list[Tree]:
        tokens = [np.array([(owner << 8) + place for place in range(n)], np.int64) for owner, n in enumerate(lengths)]
        sequences = from_source(tokens, element_spec=ArraySpec((None,), np.dtype("int64")))
        with add(sequences if packs else zip_of((sequences, range_of(len(lengths))))).loader("inline") as loader:
            loader.set_state(loader.get_state() | {"epoch": epoch})
            return list(loader)

    def elements(epoch: int) -> list[Tree]:
        given = [tokens(x) for x in p.elements(epoch)]
        if not packs:
            batches = []
            for _, owners in numbered(epoch):
                mine = [given[owner] for owner in owners.tolist()]
                longest = max(map(len, mine))
                rows = [np.concatenate([row, np.zeros(longest - len(row), dtype)]) for row in mine]
                batches.append(np.int64(checksum(np.stack(rows).astype(dtype))))
            return batches
        packed = []
        for where, segments, places in numbered(epoch):
            row = np.zeros(room, dtype)
            row[segments > 0] = [given[owner][place] for owner, place in np.transpose(divmod(where[segments > 0], 256))]
            packed.append((row, segments, places))
        return packed

    made = add(p.dataset.map(tokens, element_spec=ArraySpec((None,), dtype)))
    # Shapes of batches differ, and functions of later steps need one.
    return p.then(made if packs else made.map(checksum, element_spec=INT64), elements)


def _select(draw: st.DrawFn, p: Plan) -> Plan | None:
    spec = p.dataset.element_spec
    if not isinstance(spec, dict):
        return None
    names = draw(st.permutations(list(spec)))[: draw(st.integers(1, len(spec)))]
    if all(spec[name] is None for name in names):  # nothing would be left
        return None
    renamed = {names[0]: "renamed"} if draw(st.booleans()) and "renamed" not in spec else {}
    ds = p.dataset.select(*names)
    return p.then(
        ds.rename(renamed) if renamed else ds,
        lambda epoch: [{renamed.get(name, name): x[name] for name in names} for x in p.elements(epoch)],
    )


def _picked(draw: st.DrawFn, p: Plan) -> Plan | None:
    count = len(p)
    if draw(st.booleans()):
        mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        chosen = p.dataset[np.array(mask, bool)]
        return p.then(chosen, lambda epoch: list(itertools.compress(p.elements(epoch), mask)))
    places = draw(st.lists(st.integers(-count, count - 1), max_size=9)) if count else []
    return p.then(p.dataset[places], lambda epoch: [p.elements(epoch)[place] for place in places])


def _split(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Counts alone. Fractions and overlapping windows have tests of their own.
    first = draw(st.integers(0, len(p)))
    seed, part = draw(st.none() | st.integers(0, 3)), draw(st.integers(0, 1))
    if p.dataset._node.randomness.reorders or p.dataset._node.overlap != "none" or repeats(p.dataset._node):
        return None

    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        order = range(len(values)) if seed is None else permute(np.arange(len(values)), len(values), seed=seed, epoch=0)
        return [values[i] for i in (order[:first], order[first:])[part]]

    return p.then(p.dataset.split(first, len(p) - first, seed=seed)[part], elements)


def _filter(draw: st.DrawFn, p: Plan) -> Plan | None:
    fn = Kept(draw(st.sampled_from([2, 3, 4, 5, 1])))
    return p.then(p.dataset.filter(fn), lambda epoch: [x for x in p.elements(epoch) if fn(x)])


# Verbs of several datasets: of a plan, and of others that grew out of it, whose elements look the same.


def _relative(draw: st.DrawFn, p: Plan) -> Plan:
    verbs: list[Verb] = [_shuffle, _take, _skip, _repeat, _filter] if p.is_stream else [_shuffle, _slice, _repeat]
    return _grown(draw, p, draw(st.sampled_from(verbs)))


def _part(draw: st.DrawFn, p: Plan) -> Plan:
    q, n = _relative(draw, p), draw(st.integers(0, 8))
    return q.then(q.dataset.take(n), lambda epoch: q.elements(epoch)[:n])


def _zip(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _relative(draw, p)
    n = min(len(p), len(q))
    a, b = p.dataset.take(n), q.dataset.take(n)
    make: Callable[[Any, Any], Tree] = draw(
        st.sampled_from([lambda x, y: (x, y), lambda x, y: {"b": x, "a": y}, Pair, lambda x, y: ((x,), {"y": y})])
    )

    def elements(epoch: int) -> list[Tree]:
        return [make(x, y) for x, y in zip(p.elements(epoch)[:n], q.elements(epoch)[:n], strict=True)]

    return p.then(zip_of(make(a, b)), elements, max(p.depth, q.depth))


def _concatenate(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _part(draw, p)
    return p.then(concatenate([p.dataset, q.dataset]), lambda epoch: p.elements(epoch) + q.elements(epoch))


def _interleave(draw: st.DrawFn, p: Plan) -> Plan | None:
    hands = [_part(draw, p) for _ in range(draw(st.integers(2, 4)))]
    cycle, block = (draw(st.none() | st.integers(1, 4)), draw(st.integers(1, 3))) if p.is_stream else (None, 1)
    dataset = interleave([hand.dataset for hand in hands], cycle_length=cycle, block_length=block)
    return p.then(dataset, lambda epoch: dealt_in_cycles([each.elements(epoch) for each in hands], cycle, block))


def dealt_in_cycles(lists: list[list[Tree]], cycle: int | None = None, block: int = 1) -> list[Tree]:
    """Interleaves as `tf.data`: a place whose input has ended passes its turn, and takes the next input in the next."""
    waiting = [list(each) for each in lists]
    places: list[list[Tree] | None] = [None] * min(cycle or len(waiting), len(waiting))
    given: list[Tree] = []
    while waiting or any(place is not None for place in places):
        for number, place in enumerate(places):
            if place is None and waiting:
                place = waiting.pop(0)
            if place is None:
                continue
            given += place[:block]
            places[number] = place[block:] if len(place) >= block else None
    return given


def _mix(draw: st.DrawFn, p: Plan) -> Plan | None:
    hands, seed = [p, _part(draw, p)], draw(st.integers(0, 3))
    # A mix refuses an input without elements, and a filter of random data may leave none in some epoch.
    varies = p.dataset.length is None and (p.depth or p.dataset._node.randomness.reorders)
    if varies or not all(hand.elements(0) for hand in hands):
        return None
    some = st.tuples(st.integers(0, 3), st.integers(1, 3))
    starts = draw(st.lists(st.integers(1, 12), max_size=2, unique=True))
    stages = {0: (1, draw(st.integers(1, 3)))} | {start: draw(some) for start in sorted(starts)}
    weights: Any = stages if len(stages) > 1 else stages[0]

    def elements(epoch: int) -> list[Tree]:
        lists, given = [iter(hand.elements(epoch)) for hand in hands], []
        for number in mixed(stages, seed):
            try:
                given.append(next(lists[number]))
            except StopIteration:
                break
        return given

    return p.then(mix([hand.dataset for hand in hands], weights, seed), elements)


def mixed(stages: dict[int, tuple[float, ...]], seed: int) -> Iterator[int]:
    """Yields the number of the input of each element of a mix, block by block."""
    position, block = 0, 0
    for weights, stop in zip(stages.values(), [*list(stages)[1:], None], strict=True):
        while stop is None or position < stop:
            exact = [weight / sum(weights) * 1024 for weight in weights]
            counts = [math.floor(share) for share in exact]
            for number in sorted(range(len(weights)), key=lambda k: counts[k] - exact[k])[: 1024 - sum(counts)]:
                counts[number] += 1
            order = [number for number, count in enumerate(counts) for _ in range(count)]
            block += 1
            length = 1024 if stop is None else min(1024, stop - position)  # a change cuts off the end of a block
            places = permute(np.arange(1024), 1024, seed=seed + (block << 64), epoch=0)
            yield from (order[place] for place in places[:length].tolist())
            position += length


def _batches_of_two_sizes(draw: st.DrawFn, p: Plan) -> Plan | None:
    # First axes may differ where one of them varies. Places are as large as the larger one's.
    if not p.is_uniform:
        return None
    one, two = (_batches(draw(st.integers(1, 4)), p) for _ in range(2))
    if one.is_uniform and two.is_uniform:
        return None
    if draw(st.booleans()):
        return p.then(concatenate([one.dataset, two.dataset]), lambda e: one.elements(e) + two.elements(e))
    dataset = interleave([one.dataset, two.dataset])
    return p.then(dataset, lambda epoch: dealt_in_cycles([one.elements(epoch), two.elements(epoch)]))


def _side_by_side(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Batches of two sizes in one element, equally many of each.
    if not p.is_uniform:
        return None
    q = _relative(draw, p)
    one, two = (_batches(draw(st.integers(1, 4)), each, draw(st.booleans())) for each in (p, q))
    if not q.is_uniform or one.dataset.length is None or two.dataset.length is None:
        return None
    n = min(len(one), len(two))
    a, b = one.dataset.take(n), two.dataset.take(n)

    def elements(epoch: int) -> list[Tree]:
        return [Pair(x, y) for x, y in zip(one.elements(epoch)[:n], two.elements(epoch)[:n], strict=True)]

    return p.then(zip_of(Pair(a, b)), elements, max(p.depth, q.depth))


COMMON: list[Verb] = [
    _random_map, _cast, _slice, _take, _skip, _shard, _repeat, _shuffle, _batch, _unbatch, _windows, _concatenate,
    _interleave, _cache, _select, _batched, _mix,
]  # fmt: skip
VERBS: list[Verb] = [
    *COMMON, _map, _batch_and_unbatch, _picked, _split, _zip, _batches_of_two_sizes, _sample, _pack, _windows_by_name,
    _per_class, _side_by_side, _ragged, _group_by, _join, _by_key, _by_length,
    _csr_batch,
    _ragged_batch,
]  # fmt: skip
MOVES: list[Verb] = [
    _cast, _slice, _take, _skip, _shard, _repeat, _shuffle, _batch, _unbatch, _windows, _concatenate, _interleave, _zip,
    _batches_of_two_sizes, _select, _windows_by_name, _per_class, _mix, _side_by_side, _group_by,
]  # fmt: skip
"""Verbs that only move bytes. Plans of these alone are executed by the copy engine."""


_REORDERS: list[Verb] = [
    _cast, _slice, _take, _skip, _shard, _repeat, _shuffle, _concatenate, _interleave, _mix, _zip, _picked, _split,
    _sample, _per_class,
]  # fmt: skip


def _rows(draw: st.DrawFn) -> Plan:
    """The rows of elements that other steps have moved whole."""
    count = draw(st.integers(1, 4))
    x = np.arange(count * 4, dtype=np.float32).reshape(count, 2, 2)
    tree: Tree = draw(st.sampled_from([x, {"x": x, "y": x[:, :, 0]}]))
    plan = Plan(from_arrays(tree), lambda epoch: [_own(part) for part in _parts(tree)])
    for verb in draw(st.lists(st.sampled_from(_REORDERS), min_size=1, max_size=3)):
        plan = _grown(draw, plan, verb)
    return _grown(draw, plan, _unbatch)


def _grown(draw: st.DrawFn, plan: Plan, verb: Verb) -> Plan:
    """Adds a step, unless it does not apply, gives too much, or certainly gives nothing."""
    grown = verb(draw, plan)
    if grown is None or grown.dataset.length == 0:
        return plan
    return plan if any(len(grown.elements(epoch)) > MAX_LENGTH for epoch in EPOCHS) else grown


@st.composite
def plans(draw: st.DrawFn, max_steps: int = 5, verbs: Sequence[Verb] = tuple(VERBS)) -> Plan:
    """Random plans of up to `max_steps` steps on small data, with their model. None is empty."""
    plan: Plan = draw(st.sampled_from([_range, _arrays, _patches, _sparse, _rows, _parted]))(draw)
    for verb in draw(st.lists(st.sampled_from(verbs), max_size=max_steps)):
        plan = _grown(draw, plan, verb)
    return plan


# Batches of unequal size, which end a plan: functions of later steps would need one shape.


def boxes(element: Tree) -> Tree:
    """Returns two ragged leaves of unlike lengths, text, and a number, computed from an element."""
    number = checksum(element)
    values = {"boxes": np.full((number % 4, 2), number % 251, np.uint8), "words": np.arange(number % 7 % 5)}
    return {**values, "name": f"né{number % 1000}", "number": number}


def _tokens_of(element: Tree) -> int:
    x = boxes(element)
    return max(1, len(x["boxes"]), len(x["words"]))


def _end_to_end(members: list[Tree]) -> Tree:
    rows = [boxes(member) for member in members]
    ragged = {
        name: Ragged(np.concatenate([row[name] for row in rows]), np.cumsum([0, *(len(row[name]) for row in rows)]))
        for name in ("boxes", "words")
    }
    return {**ragged, "name": np.array([row["name"] for row in rows]), "number": np.array([r["number"] for r in rows])}


def _under(limit: int, members: list[Tree]) -> list[list[Tree]]:
    """Returns neighbours that have at most so many tokens together."""
    groups: list[list[Tree]] = []
    room = 0
    for member in members:
        if (need := _tokens_of(member)) > room:
            groups.append([])
            room = limit
        groups[-1].append(member)
        room -= need
    return groups


@st.composite
def ragged_batches(draw: st.DrawFn, begin: st.SearchStrategy[Plan]) -> Plan:
    """Plans that end with `ragged_batch`, by a size or by tokens, with their model."""
    p = draw(begin)
    most: Any = draw(st.sampled_from([(None, None), ((3, 2), (4,))]))
    shapes = {"boxes": ArraySpec((None, 2), "uint8", most[0]), "words": ArraySpec((None,), "int64", most[1])}
    made = p.dataset.map(boxes, element_spec={**shapes, "name": ArraySpec((), "U"), "number": INT64})
    if draw(st.booleans()):
        size, drops = draw(st.integers(1, 4)), draw(st.booleans())
        batches = made.ragged_batch(size, drop_remainder=drops)
        return p.then(batches, lambda e: [_end_to_end(cut) for cut in _cuts_of(batches, p.elements(e), size)])
    limit = draw(st.integers(4, 12))
    if p.is_stream or p.dataset._node.randomness.reorders or p.depth:
        if not p.is_stream:
            made = made.filter(lambda x: True)
        return p.then(
            made.ragged_batch(max_tokens=limit), lambda e: [_end_to_end(cut) for cut in _under(limit, p.elements(e))]
        )
    lengths = [_tokens_of(x) for x in p.elements(0)]
    seed = draw(st.none() | st.integers(0, 3))
    if seed is None:
        batches = made.ragged_batch(max_tokens=limit, lengths=lengths)
        return p.then(batches, lambda e: [_end_to_end(cut) for cut in _under(limit, p.elements(e))])

    @functools.cache
    def rows(epoch: int) -> list[list[int]]:
        # Which elements a batch has is arithmetic on lengths, so it is learnt from rows of bare numbers.
        bare = from_source(
            [np.full(n, owner) for owner, n in enumerate(lengths)], element_spec=ArraySpec((None,), "i8")
        )
        packed = bare.shuffle(seed).pack(limit, lengths=lengths, split=False, padding_value=-1)
        with packed.loader("inline") as loader:
            loader.set_state(loader.get_state() | {"epoch": epoch})
            return [[owner for owner in dict.fromkeys(tokens.tolist()) if owner >= 0] for tokens, _ in loader]

    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        assert sorted(owner for row in rows(epoch) for owner in row) == list(range(len(values)))
        return [_end_to_end([values[owner] for owner in row]) for row in rows(epoch)]

    return p.then(made.shuffle(seed).ragged_batch(max_tokens=limit, lengths=lengths), elements)
