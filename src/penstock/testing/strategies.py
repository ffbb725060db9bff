"""Random plans for Hypothesis, each with a perfect model: what its elements are, in plain lists.

A model is a function from an epoch to the list of all its elements. Each verb below stands beside its meaning in
that language, written from the meanings and not from the code: no indices of indices, no batches, no memory. What
cannot be said in another way, the order of a shuffle and the numbers of an element, is taken from
`penstock.base._random`.

    @given(plans())
    def test_elements_are_those_of_the_model(plan):
        for index, element in enumerate(plan.elements(0)):
            assert_same(plan.dataset[index], element)
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from penstock._constructors import concatenate, from_arrays, interleave, range as range_of, zip as zip_of
from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._random import ElementRng, local_permute, permute
from penstock.base._tree import Tree
from penstock.plan._shuffle import repeats

MAX_LENGTH = 24
"""Largest number of elements in a plan. Every property concerns small numbers."""

Elements = Callable[[int], list[Tree]]


@dataclass(frozen=True)
class Plan:
    """A dataset, and what it should give."""

    dataset: Dataset
    elements: Elements
    """The model: an epoch's elements, in order."""
    depth: int = 0
    """How many `random_map` steps are below, on the way that has most."""
    is_short: bool = False
    """Whether some element may have a shorter first axis: there is a short batch."""

    def __len__(self) -> int:
        return len(self.elements(0))

    def __repr__(self) -> str:
        return f"\n{self.dataset}\n"

    def then(self, dataset: Dataset, elements: Elements, **changes: Any) -> "Plan":
        """This plan with one more step."""
        facts = {"depth": self.depth, "is_short": self.is_short} | changes
        return Plan(dataset, functools.cache(elements), **facts)


class Pair(NamedTuple):
    """A named tuple, which is structure."""

    left: Tree
    right: Tree


# Functions for `map`: of any tree, and of each leaf alone. Their names show in the plan.


def double(element: Tree) -> Tree:
    """Twice each leaf, in its own dtype; in place, for what a function gets is its own."""
    return _each(lambda leaf: np.add(leaf, leaf, out=leaf if leaf.shape else None), element)


def reverse_rows(element: Tree) -> Tree:
    """The first axis backwards; a view of what it was given."""
    return _each(lambda leaf: leaf[::-1] if leaf.shape else leaf, element)


def total(element: Tree) -> Tree:
    """One number a leaf."""
    return _each(np.sum, element)


def named(element: Tree) -> Tree:
    """A dict in an order that is not the alphabet's, with the element as it is and a flag."""
    return {"value": element, "flag": True}


def listed(element: Tree) -> Tree:
    """A list, which is a leaf, beside the element."""
    return (element, [1.5, 2.5])


def jitter(element: Tree, rng: np.random.Generator) -> Tree:
    """The element beside two numbers drawn for it."""
    return Pair(element, rng.integers(0, 1000, 2))


def _each(function: Callable[[Any], Any], element: Tree) -> Tree:
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([function(np.asarray(leaf)) for leaf in leaves])


# Data.


def _range(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    return Plan(range_of(count), lambda epoch: [np.int64(i) for i in range(count)])


def _arrays(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    x = np.arange(count * 6, dtype=np.float32).reshape(count, 3, 2)
    y = np.arange(count, dtype=np.uint8)
    tree: Tree = draw(st.sampled_from([x, (x,), {"y": y, "x": x}, Pair(x, (y, x[:, 0]))]))
    leaves, structure = _tree.flatten(tree)
    return Plan(
        from_arrays(tree),
        lambda epoch: [structure.unflatten([leaf[i].copy() for leaf in leaves]) for i in range(count)],
    )


# Verbs. Each returns None where it does not apply.


def _map(draw: st.DrawFn, p: Plan) -> Plan | None:
    choices = [double, named] + ([] if p.is_short else [reverse_rows, total, listed])
    fn = draw(st.sampled_from(choices))
    return p.then(p.dataset.map(fn), lambda epoch: [_as_leaves(fn(_own(x))) for x in p.elements(epoch)])


def _random_map(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, depth = draw(st.integers(0, 3)), p.depth + 1

    def elements(epoch: int) -> list[Tree]:
        rng = ElementRng(seed, depth)
        return [_as_leaves(jitter(_own(x), rng.at(epoch, i))) for i, x in enumerate(p.elements(epoch))]

    return p.then(p.dataset.random_map(jitter, seed=seed), elements, depth=depth)


def _cast(draw: st.DrawFn, p: Plan) -> Plan | None:
    dtype = draw(st.sampled_from(["float32", "int64", "float64"]))
    return p.then(p.dataset.cast(dtype), lambda epoch: [_each(lambda x: x.astype(dtype), e) for e in p.elements(epoch)])


def _slice(draw: st.DrawFn, p: Plan) -> Plan | None:
    chosen = draw(st.slices(len(p)))
    return p.then(p.dataset[chosen], lambda epoch: p.elements(epoch)[chosen])


def _take(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = draw(st.integers(0, len(p) + 2))
    return p.then(p.dataset.take(n), lambda epoch: p.elements(epoch)[:n])


def _skip(draw: st.DrawFn, p: Plan) -> Plan | None:
    n = draw(st.integers(0, len(p)))
    return p.then(p.dataset.skip(n), lambda epoch: p.elements(epoch)[n:])


def _shard(draw: st.DrawFn, p: Plan) -> Plan | None:
    count = draw(st.integers(1, 3))
    index = draw(st.integers(0, count - 1))
    return p.then(p.dataset.shard(index, count), lambda epoch: p.elements(epoch)[index::count])


def _repeat(draw: st.DrawFn, p: Plan) -> Plan | None:
    k = draw(st.integers(1, 3))
    return p.then(p.dataset.repeat(k), lambda epoch: [x for r in range(k) for x in p.elements(epoch * k + r)])


def _shuffle(draw: st.DrawFn, p: Plan) -> Plan | None:
    seed, reshuffle = draw(st.integers(0, 3)), draw(st.booleans())
    window = draw(st.none() | st.integers(1, len(p) + 1))

    def elements(epoch: int) -> list[Tree]:
        values, era = p.elements(epoch), epoch if reshuffle else 0
        positions, n = np.arange(len(values)), len(values)
        if window is None:
            return [values[i] for i in permute(positions, n, seed=seed, epoch=era)]
        return [values[i] for i in local_permute(positions, n, seed=seed, epoch=era, window=window)]

    return p.then(p.dataset.shuffle(seed, window=window, reshuffle=reshuffle), elements)


def _cache(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.depth or p.dataset._node.randomness.reorders:
        return None
    limit = draw(st.none() | st.integers(1, 1000))
    return p.then(p.dataset.cache(limit=limit), lambda epoch: p.elements(0))


def _batch(draw: st.DrawFn, p: Plan) -> Plan | None:
    return None if p.is_short else _batches(draw(st.integers(1, 5)), p, draw(st.booleans()))


def _batches(size: int, p: Plan, drop_remainder: bool = False) -> Plan:
    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        cuts = [values[start : start + size] for start in range(0, len(values), size)]
        return [_stacked(cut) for cut in cuts if len(cut) == size or not drop_remainder]

    is_short = not drop_remainder and len(p) % size != 0
    return p.then(p.dataset.batch(size, drop_remainder=drop_remainder), elements, is_short=is_short)


def _unbatch(draw: st.DrawFn, p: Plan) -> Plan | None:
    shapes = {np.shape(leaf)[:1] for x in p.elements(0) for leaf in _tree.flatten(x)[0]}
    if len(shapes) != 1 or shapes in ({()}, {(0,)}) or p.is_short:
        return None
    return p.then(p.dataset.unbatch(), lambda epoch: [part for x in p.elements(epoch) for part in _parts(x)])


def _batch_and_unbatch(draw: st.DrawFn, p: Plan) -> Plan | None:
    # The short batch is where `unbatch` expects it, with or without steps between that keep order and number.
    size = draw(st.integers(1, 5))
    if p.is_short:
        return None
    batches, twice = p.dataset.batch(size), draw(st.booleans())
    if not twice:
        return p.then(batches.unbatch(), p.elements)
    return p.then(batches.map(double).unbatch(), lambda epoch: [double(_own(x)) for x in p.elements(epoch)])


def _windows(draw: st.DrawFn, p: Plan) -> Plan | None:
    length, shift, stride = (draw(st.integers(1, 3)) for _ in range(3))
    if p.is_short:
        return None
    labels = draw(st.none() | st.lists(st.integers(0, 1), min_size=len(p), max_size=len(p)))

    def elements(epoch: int) -> list[Tree]:
        # Groups are runs of one label, and windows are made in each group alone.
        runs: list[list[Tree]] = []
        for i, x in enumerate(p.elements(epoch)):
            if i == 0 or (labels is not None and labels[i] != labels[i - 1]):
                runs.append([])
            runs[-1].append(x)
        span = (length - 1) * stride + 1
        return [
            _stacked(run[start : start + span : stride])
            for run in runs
            for start in range(0, len(run) - span + 1, shift)
        ]

    return p.then(p.dataset.windows(length, shift=shift, stride=stride, groups=labels), elements)


def _split(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Counts alone; fractions and overlapping windows have tests of their own.
    first = draw(st.integers(0, len(p)))
    seed, part = draw(st.none() | st.integers(0, 3)), draw(st.integers(0, 1))
    if p.dataset._node.randomness.reorders or p.dataset._node.overlap != "none" or repeats(p.dataset._node):
        return None

    def elements(epoch: int) -> list[Tree]:
        values = p.elements(epoch)
        order = range(len(values)) if seed is None else permute(np.arange(len(values)), len(values), seed=seed, epoch=0)
        return [values[i] for i in (order[:first], order[first:])[part]]

    return p.then(p.dataset.split(first, len(p) - first, seed=seed)[part], elements)


# Verbs of several datasets: of a plan and of another that grew out of it, whose elements look the same.


def _relative(draw: st.DrawFn, p: Plan) -> Plan:
    verb = draw(st.sampled_from([_shuffle, _slice, _repeat]))
    return _grown(draw, p, verb)


def _zip(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _relative(draw, p)
    n = min(len(p), len(q))
    a, b = p.dataset.take(n), q.dataset.take(n)
    make: Callable[[Any, Any], Tree] = draw(
        st.sampled_from([lambda x, y: (x, y), lambda x, y: {"b": x, "a": y}, Pair, lambda x, y: ((x,), {"y": y})])
    )

    def elements(epoch: int) -> list[Tree]:
        return [make(x, y) for x, y in zip(p.elements(epoch)[:n], q.elements(epoch)[:n], strict=True)]

    return p.then(zip_of(make(a, b)), elements, depth=max(p.depth, q.depth))


def _concatenate(draw: st.DrawFn, p: Plan) -> Plan | None:
    q = _relative(draw, p)
    return p.then(concatenate([p.dataset, q.dataset]), lambda e: _end_to_end([p.elements(e), q.elements(e)]))


def _end_to_end(lists: list[list[Tree]]) -> list[Tree]:
    return [element for each in lists for element in each]


def _batches_of_two_sizes(draw: st.DrawFn, p: Plan) -> Plan | None:
    # Their first axes may differ where one of them varies; places are as large as the larger one's.
    if p.is_short:
        return None
    one, two = (_batches(draw(st.integers(1, 4)), p) for _ in range(2))
    if not (one.is_short or two.is_short):
        return None
    join, deal = draw(st.sampled_from([(concatenate, _end_to_end), (interleave, _in_turn)]))
    dataset = join([one.dataset, two.dataset])
    return p.then(dataset, lambda epoch: deal([one.elements(epoch), two.elements(epoch)]), is_short=True)


def _interleave(draw: st.DrawFn, p: Plan) -> Plan | None:
    hands = [p, _relative(draw, p), _relative(draw, p)]
    dataset = interleave([hand.dataset for hand in hands])
    return p.then(dataset, lambda epoch: _in_turn([hand.elements(epoch) for hand in hands]))


def _in_turn(lists: list[list[Tree]]) -> list[Tree]:
    decks, dealt = [list(each) for each in lists], []
    while any(decks):
        dealt += [deck.pop(0) for deck in decks if deck]
    return dealt


def _own(element: Tree) -> Tree:
    """The element as a function gets it: its arrays are its own."""
    return _each(lambda leaf: leaf.copy()[()], element)


def _as_leaves(value: Tree) -> Tree:
    return _each(np.asarray, value)


def _stacked(elements: list[Tree]) -> Tree:
    structure = _tree.flatten(elements[0])[1]
    columns = zip(*(_tree.flatten(element)[0] for element in elements), strict=True)
    return structure.unflatten([np.stack(column) for column in columns])


def _parts(element: Tree) -> list[Tree]:
    leaves, structure = _tree.flatten(element)
    return [structure.unflatten([leaf[k] for leaf in leaves]) for k in range(len(leaves[0]))]


DATA = [_range, _arrays]
VERBS = [
    _map, _random_map, _cast, _slice, _take, _skip, _shard, _repeat, _shuffle, _batch, _unbatch, _batch_and_unbatch,
    _windows, _split, _zip, _concatenate, _interleave, _batches_of_two_sizes, _cache,
]  # fmt: skip


def _grown(draw: st.DrawFn, plan: Plan, verb: Callable[[st.DrawFn, Plan], Plan | None]) -> Plan:
    """The plan with one more step, or as it was if the step does not apply, or leaves nothing, or too much."""
    grown = verb(draw, plan)
    return plan if grown is None or not 0 < len(grown) <= MAX_LENGTH else grown


@st.composite
def plans(draw: st.DrawFn, max_steps: int = 5) -> Plan:
    """Random plans of up to `max_steps` steps on small data, with their model. None is empty."""
    plan: Plan = draw(st.sampled_from(DATA))(draw)
    for verb in draw(st.lists(st.sampled_from(VERBS), max_size=max_steps)):
        plan = _grown(draw, plan, verb)
    return plan
