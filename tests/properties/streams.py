"""Random plans over streams, each with a perfect model, as those of `tests.strategies`.

A stream begins at a generator, or where a step such as `filter` makes a stream of data with random access.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock import ArraySpec, from_generator, range as range_of, zip as zip_of
from penstock.base import _tree
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.plan._index import EMPTY_ROUND_COUNT, ENDLESS_ROUND_COUNT
from penstock.plan._stream import Generate, StreamSource
from tests.strategies import (
    COMMON,
    INT64,
    Plan,
    Verb,
    _as_leaves,
    _csr_batch,
    _cuts_of,
    _filter,
    _grown,
    _own,
    _pack,
    _ragged_batch,
    _relative,
    checksum,
    double,
    plans,
)

# Functions of the user.


def labelled(element: Tree) -> Tree:
    """Returns the element beside a number computed from it."""
    return {"z": element, "a": checksum(element)}


def digit(element: Tree) -> int:
    """Returns a number that `bucket_by_length` takes for a length."""
    return checksum(element) % 10


def copies(element: Tree) -> Iterator[Tree]:
    """Yields the element none to two times, for `flat_map`."""
    yield from [element] * (checksum(element) % 3)


def numbers(element: Tree) -> Dataset:
    """Returns a dataset of none to three integers, for `flat_map`."""
    return range_of(checksum(element) % 4)


# Generators.


def words(count: int) -> Iterator[Tree]:
    """Yields text, bytes, and arrays of many lengths, which are views of one array."""
    buffer = np.zeros(7, np.int16)
    for i in range(count):
        buffer[:] = i
        raw = b"\0" * (i % 4) + b"." * (i % 4 > 0)
        yield {"text": "né" * (i % 3), "raw": raw, "row": buffer[: i * 5 % 8], "i": np.int8(i)}


WORDS_SPEC = {
    "text": ArraySpec((), np.dtype("U")),
    "raw": ArraySpec((), np.dtype("S")),
    "row": ArraySpec((None,), np.dtype("int16")),
    "i": ArraySpec((), np.dtype("int8")),
}


def ragged(count: int) -> Iterator[Tree]:
    """Yields arrays with two axes that differ, in the other order of bytes."""
    for i in range(count):
        yield np.full((i * 3 % 4, 2, i % 3), i, ">f4")


RAGGED_SPEC = ArraySpec((None, 2, None), np.dtype(">f4"))


def pairs(count: int) -> Iterator[Tree]:
    """Yields pairs of an array, which is the same object every time, and a Python number."""
    buffer = np.zeros((2, 3), np.uint8)
    for i in range(count):
        buffer[:] = np.arange(6, dtype=np.uint8).reshape(2, 3) + i
        yield buffer, i / 2


def dealt(shard_index: int, shard_count: int, count: int) -> Iterator[Tree]:
    """Yields the integers of a shard."""
    yield from range(shard_index, count, shard_count)


# Data.


def _padded(elements: list[Tree], fill: Any) -> Tree:
    structure = _tree.flatten(elements[0])[1]
    stacked = []
    for column in zip(*(_tree.flatten(element)[0] for element in elements), strict=True):
        leaves = [np.asarray(leaf) for leaf in column]
        shape = np.max([leaf.shape for leaf in leaves], axis=0).astype(int)
        stacked.append(np.full((len(leaves), *shape), fill, leaves[0].dtype))
        for row, leaf in enumerate(leaves):
            corner: Any = (row, *map(slice, leaf.shape))
            stacked[-1][corner] = leaf
    return structure.unflatten(stacked)


def _generated(draw: st.DrawFn) -> Plan:
    fn, spec = draw(st.sampled_from([(words, WORDS_SPEC), (ragged, RAGGED_SPEC), (pairs, None)]))
    count = 12 - draw(st.integers(0, 12 if spec is not None else 11))
    length = draw(st.sampled_from([None, count])) if count else None
    dataset = from_generator(fn, count, element_spec=spec, length=length)
    return Plan(dataset, lambda epoch: [_as_leaves(_own(x)) for x in fn(count)])


def _dealt(draw: st.DrawFn) -> Plan:
    count, shards = 12 - draw(st.integers(0, 11)), draw(st.integers(2, 5))
    dataset = from_generator(dealt, count, element_spec=INT64, shards=shards)
    return Plan(dataset, lambda epoch: [np.array(i) for i in range(count)])


def _made_a_stream(draw: st.DrawFn) -> Plan:
    plan = draw(plans(max_steps=3))
    return _grown(draw, plan, draw(st.sampled_from([_filter, _flat_map])))


# Verbs that make streams, or need one.


def _flat_map(draw: st.DrawFn, p: Plan) -> Plan | None:
    if draw(st.booleans()):
        dataset = p.dataset.flat_map(numbers, element_spec=INT64)
        return p.then(dataset, lambda e: [np.int64(i) for x in p.elements(e) for i in range(checksum(x) % 4)])
    dataset = p.dataset.flat_map(copies, element_spec=p.dataset.element_spec)
    return p.then(dataset, lambda epoch: [y for x in p.elements(epoch) for y in copies(x)])


def _map_with_spec(draw: st.DrawFn, p: Plan) -> Plan | None:
    fn, spec = double, p.dataset.element_spec
    if p.has_text or draw(st.booleans()):
        fn, spec = labelled, {"z": spec, "a": INT64}
    dataset = p.dataset.map(fn, element_spec=spec)
    return p.then(dataset, lambda epoch: [_as_leaves(fn(_own(x))) for x in p.elements(epoch)])


def _repeat_for_ever(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Its rounds in the first epoch are the input's epochs. The model does not know the rounds of another epoch.
    if "repeat()" in repr(p.dataset) or p.dataset._node.randomness.reorders or p.depth:
        return None
    if not all(p.elements(epoch) for epoch in range(12)):
        return None
    n = draw(st.integers(0, 20))

    def elements(epoch: int) -> list[Tree]:
        return list(itertools.islice((x for r in itertools.count() for x in p.elements(r)), n))

    return p.then(p.dataset.repeat().take(n), elements)


def _padded_batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    if not _can_pad(p):
        return None
    most = 1 if any(leaf.dtype.kind == "b" for leaf in p.specs) else 2  # a bool cannot hold a 2
    size, drop, fill = draw(st.integers(1, 4)), draw(st.booleans()), draw(st.integers(0, most))
    dataset = p.dataset.padded_batch(size, padding_values=fill, drop_remainder=drop)
    return p.then(dataset, lambda epoch: [_padded(cut, fill) for cut in _cuts_of(dataset, p.elements(epoch), size)])


def _bucket_by_length(draw: st.DrawFn, p: Plan) -> Plan | None:
    if not _can_pad(p):
        return None
    edges = sorted(draw(st.sets(st.integers(1, 9), max_size=3)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=len(edges) + 1, max_size=len(edges) + 1))
    drop = draw(st.booleans())

    def elements(epoch: int) -> list[Tree]:
        buckets: list[list[Tree]] = [[] for _ in sizes]
        given = []
        for x in p.elements(epoch):
            number = sum(edge <= digit(x) for edge in edges)
            buckets[number].append(x)
            if len(buckets[number]) == sizes[number]:
                given.append(_padded(buckets[number], 0))
                buckets[number] = []
        return given + [_padded(bucket, 0) for bucket in buckets if bucket and not drop]

    return p.then(p.dataset.bucket_by_length(digit, edges, sizes, drop_remainder=drop), elements)


def _can_pad(p: Plan) -> bool:
    return all(leaf.dtype.kind in "iufb" for leaf in p.specs)


def _zip_of_streams(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _relative(draw, p) if draw(st.booleans()) else draw(plans(max_steps=2))
    if None not in (p.dataset.length, q.dataset.length) and p.dataset.length != q.dataset.length:
        return None
    dataset, depth = zip_of((p.dataset, q.dataset)), max(p.depth, q.depth)
    return p.then(dataset, lambda epoch: list(zip(p.elements(epoch), q.elements(epoch), strict=False)), depth)


# Streams that end too early, and verbs that search among them. The models are those of streams whose lengths hold: what
# is given before an error is the beginning of what they give.


class Rounds(StreamSource):
    """Integers: so many in each epoch, and none in some. It may say a length that it does not keep, or break off."""

    element_spec = INT64

    def __init__(self, counts: tuple[int, ...], length: int | float | None, breaks: bool) -> None:
        self.counts, self.length, self.breaks = counts, length, breaks

    def count(self, epoch: int) -> int:
        """Returns the number of elements in an epoch."""
        return self.counts[epoch % len(self.counts)]

    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Begins an epoch."""
        yield from range(self.count(epoch))
        if self.breaks:
            raise OSError("broken")

    def describe(self, index: int) -> str:
        """Names an element."""
        return f"element {index} of rounds"


def _rounds(draw: st.DrawFn) -> Plan:
    counts = tuple(draw(st.lists(st.sampled_from([0, 7, 0, 1, 12, 3]), min_size=1, max_size=4)))
    length = draw(st.sampled_from([None, max(counts) or None, max(counts) + 3, math.inf]))
    source = Rounds(counts, length, draw(st.booleans()) and draw(st.booleans()))
    dataset = Dataset(Generate(source, "rounds", "test.py:1"))
    if length == math.inf:  # most verbs refuse it
        dataset = dataset.take(max(counts) + 1)
    return Plan(dataset, lambda epoch: [np.int64(i) for i in range(source.count(epoch))])


def _short(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(0, 11))
    dataset = from_generator(dealt, 0, 1, count, element_spec=INT64, length=count + draw(st.integers(0, 4)) or None)
    return Plan(dataset, lambda epoch: [np.int64(i) for i in range(count)])


def _nothing(draw: st.DrawFn, p: Plan) -> Plan | None:
    return p.then(p.dataset.filter(nothing), lambda epoch: [])


def nothing(element: Tree) -> bool:
    """Keeps no element."""
    return False


def _search(draw: st.DrawFn, p: Plan) -> Plan | None:
    # As `_repeat_for_ever`, of anything: rounds may be empty, and too many of them are an error.
    if p.dataset.length == math.inf or "repeat()" in repr(p.dataset) or p.dataset._node.randomness.reorders or p.depth:
        return None
    n = draw(st.integers(0, 20))

    def elements(epoch: int) -> list[Tree]:
        given: list[Tree] = []
        empty_count = 0
        for number in itertools.count():
            found = p.elements(epoch * ENDLESS_ROUND_COUNT + number)
            empty_count = 0 if found else empty_count + 1
            given += found
            if len(given) >= n or empty_count == EMPTY_ROUND_COUNT:
                return given[:n]
        raise AssertionError

    return p.then(p.dataset.repeat().take(n), elements)


UNEVEN_VERBS: list[Verb] = [
    *COMMON, _filter, _flat_map, _map_with_spec, _pack, _padded_batch, _bucket_by_length, _csr_batch,
    _ragged_batch, _zip_of_streams, _search, _search, _search, _nothing,
]  # fmt: skip


@st.composite
def uneven_streams(draw: st.DrawFn, max_steps: int = 5) -> Plan:
    """Random streams of which some end before their length, break off, or search among rounds without an element.

    Before an error they give the beginning of what the model gives. Without an error they give all of it.
    """
    begin = draw(st.sampled_from([_rounds, _rounds, _short, _generated, _dealt, _made_a_stream]))
    plan: Plan = begin(draw)
    for verb in draw(st.lists(st.sampled_from(UNEVEN_VERBS), max_size=max_steps)):
        plan = _grown(draw, plan, verb)
    return plan


STREAM_VERBS: list[Verb] = [
    *COMMON, _filter, _flat_map, _map_with_spec, _pack, _repeat_for_ever, _padded_batch, _bucket_by_length,
    _csr_batch, _ragged_batch, _zip_of_streams,
]  # fmt: skip


@st.composite
def streams(draw: st.DrawFn, max_steps: int = 5) -> Plan:
    """Random streams of up to `max_steps` steps, with their model. An epoch may be empty."""
    plan: Plan = draw(st.sampled_from([_dealt, _generated, _generated, _generated, _made_a_stream]))(draw)
    for verb in draw(st.lists(st.sampled_from(STREAM_VERBS), max_size=max_steps)):
        plan = _grown(draw, plan, verb)
    return plan
