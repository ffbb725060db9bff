"""Random plans over streams for Hypothesis, each with a perfect model, as those of `penstock.testing.strategies`.

A stream begins at a generator, or where a step such as `filter` makes one of data with random access. What follows is
the verbs of both kinds. Two things cannot be said in another way and are asked of the library on bare numbers: the
order of a windowed shuffle, and the deal of a mix. So they are shown to depend on nothing else; that a shuffle is a
permutation of near displacement, and a mix exact, are properties of their own.

    @given(streams())
    def test_elements_are_those_of_the_model(plan):
        for element, want in zip(plan.dataset, plan.elements(0), strict=True):
            assert_same(element, want)
"""

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock._constructors import (
    concatenate,
    from_generator,
    interleave,
    mix,
    range as range_of,
    zip as zip_of,
)
from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._random import ElementRng
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.testing.strategies import (
    MAX_LENGTH,
    Plan,
    _as_leaves,
    _each,
    _own,
    _parts,
    _stacked,
    double,
    jitter,
    plans,
)

EPOCHS = range(3)
"""A stream may be longer in another epoch; in these it has at most `MAX_LENGTH` elements."""


# Functions of the user. Each element says by its checksum what becomes of it, so that nothing is regular.


def checksum(element: Tree) -> int:
    """A number made of all values of an element, whatever holds them."""
    leaves = [np.asarray(leaf).tolist() for leaf in _tree.flatten(element)[0]]
    return zlib.crc32(repr(leaves).encode())


class Kept:
    """For `filter`: leaves out one of so many; of one, all."""

    def __init__(self, one_of: int) -> None:
        self._one_of = one_of

    def __call__(self, element: Tree) -> bool:
        """Whether the element stays."""
        return checksum(element) % self._one_of != 0


def copies(element: Tree) -> Iterator[Tree]:
    """For `flat_map`: the element none to two times."""
    for _ in range(checksum(element) % 3):
        yield element


def numbers(element: Tree) -> Dataset:
    """For `flat_map`: a dataset of none to three integers."""
    return range_of(checksum(element) % 4)


def labelled(element: Tree) -> Tree:
    """For `map`, of any element: beside a number made of it."""
    return {"z": element, "a": checksum(element)}


def words(count: int) -> Iterator[Tree]:
    """Elements with text, bytes, and arrays of many lengths, all in arrays of which one is used again and again."""
    buffer = np.zeros(7, np.int16)
    for i in range(count):
        buffer[:] = i
        yield {
            "text": "né" * (i % 3),
            "raw": b"\0" * (i % 4) + b"." * (i % 4 > 0),
            "row": buffer[: i * 5 % 8],
            "i": np.int8(i),
        }


WORDS_SPEC = {
    "text": ArraySpec((), np.dtype("U")),
    "raw": ArraySpec((), np.dtype("S")),
    "row": ArraySpec((None,), np.dtype("int16")),
    "i": ArraySpec((), np.dtype("int8")),
}


def ragged(count: int) -> Iterator[Tree]:
    """Arrays with two axes that differ, in the other order of bytes."""
    for i in range(count):
        yield np.full((i * 3 % 4, 2, i % 3), i, ">f4")


RAGGED_SPEC = ArraySpec((None, 2, None), np.dtype(">f4"))


def pairs(count: int) -> Iterator[Tree]:
    """Pairs of an array, which is the same object every time, and a number of Python."""
    buffer = np.zeros((2, 3), np.uint8)
    for i in range(count):
        buffer[:] = np.arange(6, dtype=np.uint8).reshape(2, 3) + i
        yield buffer, i / 2


def dealt(shard_index: int, shard_count: int, count: int) -> Iterator[Tree]:
    """Every so manieth of the integers."""
    yield from range(shard_index, count, shard_count)


# Where streams begin.


def _of(fn: Callable[[int], Iterator[Tree]], spec: Tree, draw: st.DrawFn) -> Plan:
    count = 12 - draw(st.integers(0, 12 if spec is not None else 11))
    length = draw(st.sampled_from([None, count]))
    if count == 0:
        length = None
    dataset = from_generator(fn, count, element_spec=spec, length=length)
    return Plan(dataset, lambda epoch: [_kept(x) for x in fn(count)])


def _kept(element: Tree) -> Tree:
    """The element in arrays of its own, text as it is."""
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([leaf if isinstance(leaf, (str, bytes)) else np.array(leaf) for leaf in leaves])


def _words(draw: st.DrawFn) -> Plan:
    return _of(words, WORDS_SPEC, draw)


def _ragged(draw: st.DrawFn) -> Plan:
    return _of(ragged, RAGGED_SPEC, draw)


def _pairs(draw: st.DrawFn) -> Plan:
    return _of(pairs, None, draw)


def _dealt(draw: st.DrawFn) -> Plan:
    count, shards = 12 - draw(st.integers(0, 11)), draw(st.integers(2, 5))
    spec = ArraySpec((), np.dtype("int64"))
    dataset = from_generator(dealt, count, element_spec=spec, shards=shards)
    return Plan(dataset, lambda epoch: [np.array(i) for i in range(count)])


def _data(draw: st.DrawFn) -> Plan:
    """Data with random access, and the step that makes a stream of it."""
    plan = draw(plans(max_steps=3))
    return _grown(draw, plan, draw(st.sampled_from([_filter, _flat_map])))


# Verbs. Each returns None where it does not apply.


def _leaf_specs(p: Plan) -> tuple[ArraySpec, ...]:
    return Spec.of(p.dataset.element_spec).leaves


def _is_even(p: Plan) -> bool:
    """Whether all elements have one shape, and are numbers."""
    return not any(None in leaf.shape for leaf in _leaf_specs(p))


def _has_text(p: Plan) -> bool:
    return any(leaf.dtype.itemsize == 0 for leaf in _leaf_specs(p))


def _filter(draw: st.DrawFn, p: Plan) -> Plan | None:
    fn = Kept(draw(st.sampled_from([2, 3, 4, 5, 1])))
    return p.then(p.dataset.filter(fn), lambda epoch: [x for x in p.elements(epoch) if fn(x)])


def _cache(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.depth or p.dataset._node.randomness.reorders or p.dataset.length == math.inf:
        return None
    limit = draw(st.sampled_from([100, 1 << 20]))
    return p.then(p.dataset.cache(limit=limit), lambda epoch: p.elements(0))


def _flat_map(draw: st.DrawFn, p: Plan) -> Plan | None:
    if draw(st.booleans()):
        spec = ArraySpec((), np.dtype("int64"))
        dataset = p.dataset.flat_map(numbers, element_spec=spec)
        return p.then(
            dataset, lambda e: [np.int64(i) for x in p.elements(e) for i in range(checksum(x) % 4)], is_short=False
        )
    dataset = p.dataset.flat_map(copies, element_spec=p.dataset.element_spec)
    return p.then(dataset, lambda epoch: [y for x in p.elements(epoch) for y in copies(x)])


def _map(draw: st.DrawFn, p: Plan) -> Plan | None:
    if _has_text(p) or draw(st.booleans()):
        spec = {"z": p.dataset.element_spec, "a": ArraySpec((), np.dtype("int64"))}
        return p.then(
            p.dataset.map(labelled, element_spec=spec),
            lambda epoch: [{"z": x, "a": np.array(checksum(x))} for x in p.elements(epoch)],
        )
    dataset = p.dataset.map(double, element_spec=p.dataset.element_spec)
    return p.then(dataset, lambda epoch: [_as_leaves(double(_own(x))) for x in p.elements(epoch)])


def _random_map(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, depth = draw(st.integers(0, 3)), p.depth + 1

    def elements(epoch: int) -> list[Tree]:
        rng = ElementRng(seed, depth)
        return [_kept(jitter(x, rng.at(epoch, i))) for i, x in enumerate(p.elements(epoch))]

    drawn = ArraySpec((2,), np.dtype("int64"))
    spec = type(jitter((), np.random.default_rng(0)))(p.dataset.element_spec, drawn)
    return p.then(p.dataset.random_map(jitter, seed=seed, element_spec=spec), elements, depth=depth)


def _cast(draw: st.DrawFn, p: Plan) -> Plan | None:
    if _has_text(p):
        return None
    dtype = draw(st.sampled_from(["float32", "int64", "float64"]))
    return p.then(p.dataset.cast(dtype), lambda epoch: [_each(lambda x: x.astype(dtype), e) for e in p.elements(epoch)])


def _slice(draw: st.DrawFn, p: Plan) -> Plan | None:
    start, stop, step = draw(st.integers(0, 3)), draw(st.none() | st.integers(3, 20)), draw(st.integers(1, 3))
    return p.then(p.dataset[start:stop:step], lambda epoch: p.elements(epoch)[start:stop:step])


def _take(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = 20 - draw(st.integers(0, 20))
    return p.then(p.dataset.take(n), lambda epoch: p.elements(epoch)[:n])


def _skip(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = draw(st.integers(0, 3))
    return p.then(p.dataset.skip(n), lambda epoch: p.elements(epoch)[n:])


def _shard(draw: st.DrawFn, p: Plan) -> Plan | None:
    count = draw(st.integers(1, 3))
    index = draw(st.integers(0, count - 1))
    return p.then(p.dataset.shard(index, count), lambda epoch: p.elements(epoch)[index::count])


def _repeat(draw: st.DrawFn, p: Plan) -> Plan | None:
    k = draw(st.sampled_from([2, 3, 1, 0]))
    return p.then(p.dataset.repeat(k), lambda epoch: [x for r in range(k) for x in p.elements(epoch * k + r)])


def _repeat_for_ever(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Its rounds in the first epoch are the input's epochs; of another epoch the model does not know the rounds.
    if (
        "repeat()" in repr(p.dataset)
        or p.dataset._node.randomness.reorders
        or p.depth
        or not all(p.elements(epoch) for epoch in range(12))
    ):
        return None
    n = draw(st.integers(0, 20))

    def elements(epoch: int) -> list[Tree]:
        return list(itertools.islice((x for r in itertools.count() for x in p.elements(r)), n))

    return p.then(p.dataset.repeat().take(n), elements)


def _shuffle(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, window, reshuffle = draw(st.integers(0, 3)), draw(st.integers(1, 9)), draw(st.booleans())
    if p.dataset.access == "random":
        return None

    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        return [values[i] for i in shuffled(len(values), seed, window, epoch if reshuffle else 0)]

    return p.then(p.dataset.shuffle(seed, window=window, reshuffle=reshuffle), elements)


@functools.cache
def shuffled(count: int, seed: int, window: int, epoch: int) -> list[int]:
    """The order in which `count` elements of a stream leave a shuffle window."""
    numbers = from_generator(range(count), element_spec=ArraySpec((), np.dtype("int64")))
    with numbers.shuffle(seed, window=window).loader(executor="inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": epoch})
        return [int(x) for x in loader]


def _batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    return _batches(draw(st.integers(1, 5)), p, drop_remainder=draw(st.booleans())) if _is_even(p) else None


def _batches(size: int, p: Plan, *, drop_remainder: bool) -> Plan:
    def elements(epoch: int) -> list[Tree]:
        return [_stacked(cut) for cut in _cuts(p.elements(epoch), size, drop_remainder)]

    return p.then(p.dataset.batch(size, drop_remainder=drop_remainder), elements)


def _cuts(values: list[Tree], size: int, drop_remainder: bool) -> list[list[Tree]]:
    cuts = [values[start : start + size] for start in range(0, len(values), size)]
    return [cut for cut in cuts if len(cut) == size or not drop_remainder]


def _unbatch(draw: st.DrawFn, p: Plan) -> Plan | None:
    specs = _leaf_specs(p)
    sizes = {leaf.max_shape[:1] if leaf.max_shape else () for leaf in specs}
    if p.dataset.access == "random" or len(sizes) != 1 or not all(leaf.max_shape for leaf in specs):
        return None
    return p.then(p.dataset.unbatch(), lambda epoch: [part for x in p.elements(epoch) for part in _parts(x)])


def _windows(draw: st.DrawFn, p: Plan) -> Plan | None:
    length, shift, stride = (draw(st.integers(1, 3)) for _ in range(3))
    if not _is_even(p):
        return None
    span = (length - 1) * stride + 1

    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        starts = range(0, len(values) - span + 1, shift)
        return [_stacked(values[start : start + span : stride]) for start in starts]

    return p.then(p.dataset.windows(length, shift=shift, stride=stride), elements)


def _padded_batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    if not _can_pad(p):
        return None
    most = 1 if any(np.dtype(leaf.dtype).kind == "b" for leaf in _leaf_specs(p)) else 2  # a bool cannot hold a 2
    size, drop, fill = draw(st.integers(1, 4)), draw(st.booleans()), draw(st.integers(0, most))
    dataset = p.dataset.padded_batch(size, padding_values=fill, drop_remainder=drop)
    return p.then(dataset, lambda epoch: [_padded(cut, fill) for cut in _cuts(p.elements(epoch), size, drop)])


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


def digit(element: Tree) -> int:
    """A length, as far as a bucket can tell."""
    return checksum(element) % 10


def _can_pad(p: Plan) -> bool:
    # Text is not padded; and what a short batch leaves open is not what padding is for.
    return not _has_text(p) and all(np.dtype(leaf.dtype).kind in "iufb" for leaf in _leaf_specs(p))


def _padded(elements: list[Tree], fill: Any) -> Tree:
    structure = _tree.flatten(elements[0])[1]
    stacked = []
    for column in zip(*(_tree.flatten(element)[0] for element in elements), strict=True):
        leaves = [np.asarray(leaf) for leaf in column]
        shape = np.max([leaf.shape for leaf in leaves], axis=0).astype(int)
        place = np.full((len(leaves), *shape), fill, leaves[0].dtype)
        for row, leaf in enumerate(leaves):
            corner: tuple[Any, ...] = (row, *map(slice, leaf.shape))
            place[corner] = leaf
        stacked.append(place)
    return structure.unflatten(stacked)


# Verbs of several datasets.


def _relative(draw: st.DrawFn, p: Plan) -> Plan:
    return _grown(draw, p, draw(st.sampled_from([_shuffle, _take, _skip, _repeat, _filter])))


def _part(draw: st.DrawFn, p: Plan) -> Plan:
    q = _relative(draw, p)
    n = draw(st.integers(0, 8))
    return q.then(q.dataset.take(n), lambda epoch: q.elements(epoch)[:n])


def _zip(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = draw(st.sampled_from([_relative, lambda draw, p: draw(plans(max_steps=2))]))(draw, p)
    if None not in (p.dataset.length, q.dataset.length) and p.dataset.length != q.dataset.length:
        return None
    depth = max(p.depth, q.depth)

    def elements(epoch: int) -> list[Tree]:
        return [(x, y) for x, y in zip(p.elements(epoch), q.elements(epoch), strict=False)]

    return p.then(zip_of((p.dataset, q.dataset)), elements, depth=depth)


def _concatenate(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _part(draw, p)
    return p.then(concatenate([p.dataset, q.dataset]), lambda epoch: p.elements(epoch) + q.elements(epoch))


def _interleave(draw: st.DrawFn, p: Plan) -> Plan | None:
    hands = [_part(draw, p) for _ in range(draw(st.integers(2, 4)))]
    cycle, block = draw(st.none() | st.integers(1, 4)), draw(st.integers(1, 3))
    dataset = interleave([hand.dataset for hand in hands], cycle_length=cycle, block_length=block)
    return p.then(dataset, lambda epoch: dealt_in_cycles([each.elements(epoch) for each in hands], cycle, block))


def dealt_in_cycles(lists: list[list[Tree]], cycle: int | None, block: int) -> list[Tree]:
    """As `tf.data`: a place whose input has ended passes its turn, and takes the next input when it comes again."""
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
    hands = [p, _part(draw, p)]
    weights, seed = draw(st.lists(st.integers(1, 9), min_size=2, max_size=2)), draw(st.integers(0, 3))
    dataset = mix([hand.dataset for hand in hands], weights, seed)

    def elements(epoch: int) -> list[Tree]:
        lists = [iter(hand.elements(epoch)) for hand in hands]
        given = []
        for number in deal(tuple(weights), seed):
            try:
                given.append(next(lists[number]))
            except StopIteration:
                break
        return given

    return p.then(dataset, elements)


@functools.cache
def deal(weights: tuple[float, ...], seed: int, count: int = 1024) -> list[int]:
    """Of which input each element of a mix is."""
    spec = ArraySpec((), np.dtype("int64"))
    datasets = [from_generator([k] * (count + 1), element_spec=spec) for k in range(len(weights))]
    return [int(x) for x in mix(datasets, weights, seed).take(count)]


BEGINNINGS = [_dealt, _words, _pairs, _ragged, _data]
VERBS = [
    _filter, _flat_map, _map, _random_map, _cast, _slice, _take, _skip, _shard, _repeat, _repeat_for_ever, _shuffle,
    _batch, _unbatch, _windows, _padded_batch, _bucket_by_length, _zip, _concatenate, _interleave, _mix,
    _cache,
]  # fmt: skip


def _grown(draw: st.DrawFn, plan: Plan, verb: Callable[[st.DrawFn, Plan], Plan | None]) -> Plan:
    """The plan with one more step, or as it was if the step does not apply, or gives too much, or nothing for sure."""
    grown = verb(draw, plan)
    if grown is None or grown.dataset.length == 0:
        return plan
    return plan if any(len(grown.elements(epoch)) > MAX_LENGTH for epoch in EPOCHS) else grown


@st.composite
def streams(draw: st.DrawFn, max_steps: int = 5) -> Plan:
    """Random streams of up to `max_steps` steps, with their model. An epoch may be empty, and as long as it likes."""
    plan: Plan = draw(st.sampled_from(BEGINNINGS))(draw)
    for verb in draw(st.lists(st.sampled_from(VERBS), max_size=max_steps)):
        plan = _grown(draw, plan, verb)
    return plan
