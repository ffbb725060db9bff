"""Any plan with functions and sources that fail: batches, quarantine and replay are what the policy says.

The model has no guards and no units. It is plain lists in which an element that failed is `BAD`; what becomes of those
is said where elements go into batches, and, of a stream, where a step has to see elements in order.
"""

import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import penstock as ps
from penstock.base._errors import ElementError
from penstock.base._random import ElementRng, local_permute, permute
from penstock.plan._text import sources_of
from penstock.testing import assert_same
from tests.strategies import dealt_in_cycles, mixed, shuffled

BAD: Any = None
"""An element that fails."""
INT64 = ps.ArraySpec((), "int64")
TOKENS = ps.ArraySpec((None,), "int64")
PAIR = (INT64, ps.ArraySpec((), "float64"))
MOST = 40
EPOCHS = range(2)
RUNS = {"inline": 1, "threads": 3, "processes": 2}


class Lame:
    """Adds one, and fails for some: which, is all that it is made of."""

    def __init__(self, modulus: int, residue: int) -> None:
        self.modulus, self.residue = modulus, residue

    def __call__(self, x: Any) -> Any:
        if int(x) % self.modulus == self.residue:
            raise ValueError(f"{x} is lame")
        return x + 1


class Moody:
    """Fails with the numbers that it draws, so that other elements fail in another epoch."""

    def __init__(self, chance: float) -> None:
        self.chance = chance

    def __call__(self, x: Any, rng: np.random.Generator) -> Any:
        if rng.random() < self.chance:
            raise KeyError(int(x))
        return x + rng.integers(3)


class Judging:
    """For `filter`: keeps most, and fails for some."""

    def __init__(self, modulus: int, residue: int) -> None:
        self.modulus, self.residue = modulus, residue

    def __call__(self, x: Any) -> bool:
        if int(x) % self.modulus == self.residue:
            raise ValueError(f"{x} has no verdict")
        return bool(int(x) % self.modulus != self.residue + 1)


class Files(ps.Source):
    """Integers, of which some cannot be read."""

    element_spec = INT64

    def __init__(self, count: int, broken: frozenset[int]) -> None:
        self.count, self.broken = count, broken

    def __len__(self) -> int:
        return self.count

    def describe(self, index: int) -> str:
        return f"file {index}"

    def read_into(self, indices: Any, out: Any) -> None:
        for row, index in enumerate(indices.tolist()):
            if index in self.broken:
                raise OSError(f"file {index} is truncated")
            out[row] = index


def counted(count: int) -> Iterator[int]:
    yield from range(count)


def failing(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return int(function(*arguments))
    except (ValueError, KeyError):
        return BAD


Lists = Callable[[int], list[Any]]


@dataclass(frozen=True)
class Case:
    """A dataset of integers, and an epoch's elements in order, with `BAD` among them."""

    dataset: ps.Dataset
    elements: Lists
    policy: str
    depth: int = 0
    has_groups: bool = False
    """A function of many elements may fail: its failures are those of groups."""

    def __repr__(self) -> str:
        return f"\n{self.dataset}\n"

    @property
    def is_stream(self) -> bool:
        return self.dataset.access == "stream"

    def then(self, dataset: ps.Dataset, elements: Lists, **changes: Any) -> "Case":
        return Case(
            dataset,
            functools.cache(elements),
            self.policy,
            **({"depth": self.depth, "has_groups": self.has_groups} | changes),
        )

    def in_rounds(self, epoch: int) -> list[Any]:
        """As `repeat` sees them."""
        values = self.elements(epoch)
        return [x for x in values if x is not BAD] if self.is_stream else values


def _lame(draw: st.DrawFn, p: Case) -> Case:
    modulus = draw(st.integers(3, 9))
    fn = Lame(modulus, draw(st.integers(0, modulus - 1)))

    def elements(epoch: int) -> list[Any]:
        return [failing(fn, x) if x is not BAD else x for x in p.elements(epoch)]

    # If all elements fail, the spec is unknown. A trial run of a stream also sees other elements than the run: a step
    # before it numbers and draws anew for the elements that are left.
    has_spec = not p.is_stream and set(elements(0)) - {BAD}
    spec = draw(st.sampled_from([INT64, None])) if has_spec else INT64
    return p.then(p.dataset.map(fn, element_spec=spec), elements)


def _moody(draw: st.DrawFn, p: Case) -> Case:
    seed, depth, fn = draw(st.integers(0, 3)), p.depth + 1, Moody(0.2)

    def elements(epoch: int) -> list[Any]:
        rng = ElementRng(seed, depth)
        values = enumerate(p.elements(epoch))
        return [failing(fn, np.int64(x), rng.at(epoch, i)) if x is not BAD else x for i, x in values]

    return p.then(p.dataset.random_map(fn, seed=seed, element_spec=INT64), elements, depth=depth)


def _cast(draw: st.DrawFn, p: Case) -> Case:
    return p.then(p.dataset.cast("float64").cast("int64"), p.elements)


def _slice(draw: st.DrawFn, p: Case) -> Case:
    start, stop, step = draw(st.integers(0, 3)), draw(st.none() | st.integers(3, MOST)), draw(st.integers(1, 2))
    return p.then(p.dataset[start:stop:step], lambda e: p.elements(e)[start:stop:step])


def _repeat(draw: st.DrawFn, p: Case) -> Case:
    k = draw(st.integers(1, 2))
    return p.then(p.dataset.repeat(k), lambda e: [x for r in range(k) for x in p.in_rounds(e * k + r)])


def _shuffle(draw: st.DrawFn, p: Case) -> Case:
    seed, window, reshuffle = draw(st.integers(0, 3)), draw(st.integers(1, 6)), draw(st.booleans())
    window = draw(st.sampled_from([window, None])) if not p.is_stream else window

    def elements(epoch: int) -> list[Any]:
        values, era = p.elements(epoch), epoch if reshuffle else 0
        n = len(values)
        if p.is_stream:
            order = shuffled(n, seed, window, era)
        elif window is None:
            order = permute(np.arange(n), n, seed=seed, epoch=era)
        else:
            order = local_permute(np.arange(n), n, seed=seed, epoch=era, window=window)
        return [values[i] for i in order]

    return p.then(p.dataset.shuffle(seed, window=window, reshuffle=reshuffle), elements)


def _filter(draw: st.DrawFn, p: Case) -> Case:
    modulus = draw(st.integers(4, 9))
    fn = Judging(modulus, draw(st.integers(0, modulus - 1)))
    return p.then(p.dataset.filter(fn), lambda e: [x for x in p.elements(e) if x is not BAD and failing(fn, x) == 1])


def _flat_map(draw: st.DrawFn, p: Case) -> Case:
    return p.then(
        p.dataset.flat_map(twice, element_spec=INT64),
        lambda e: [x for x in p.elements(e) if x is not BAD for _ in "ab"],
    )


def twice(x: Any) -> Iterator[Any]:
    yield x
    yield x


def _sum_of_pairs(draw: st.DrawFn, p: Case) -> Case:
    q = draw(st.sampled_from([_shuffle, _slice, _lame]))(draw, p)
    both = _zip(p, q)
    return both.then(both.dataset.map(sum_of, element_spec=INT64), both.elements)


def _zip(p: Case, q: Case) -> Case:
    a, b = p.dataset, q.dataset
    if None not in (a.length, b.length):
        n = min(len(a), len(b))
        a, b = a.take(n), b.take(n)

    def elements(epoch: int) -> list[Any]:
        return [BAD if BAD in pair else sum(pair) for pair in zip(p.elements(epoch), q.elements(epoch), strict=False)]

    return p.then(ps.zip((a, b)), elements, depth=max(p.depth, q.depth))


def sum_of(pair: Any) -> Any:
    return pair[0] + pair[1]


def _sum_of_windows(draw: st.DrawFn, p: Case) -> Case:
    length, shift, stride = (draw(st.integers(1, 3)) for _ in range(3))
    span = (length - 1) * stride + 1

    def elements(epoch: int) -> list[Any]:
        values = p.elements(epoch)
        cuts = [values[k : k + span : stride] for k in range(0, len(values) - span + 1, shift)]
        return [sum(cut) if BAD not in cut else BAD for cut in cuts]

    windows = p.then(p.dataset.windows(length, shift=shift, stride=stride), elements)
    return windows.then(windows.dataset.map(np.sum, element_spec=INT64), windows.elements)


def some_of(x: Any) -> Any:
    return np.full(int(x) % 3 + 1, x)


def _sum_of_tokens(draw: st.DrawFn, p: Case) -> Case:
    # Without lengths these steps see elements in order, also those that have random access.
    sequences, size = p.dataset.map(some_of, element_spec=ps.ArraySpec((None,), "int64")), draw(st.integers(3, 5))
    packs = draw(st.booleans())
    made = sequences.pack(size).map(first_of, element_spec=INT64) if packs else sequences.batch(max_tokens=size)

    def elements(epoch: int) -> list[Any]:
        found = [some_of(x).tolist() for x in p.elements(epoch) if x is not BAD]
        tokens = [token for row in found for token in row]
        if packs:
            return [sum(tokens[start : start + size]) for start in range(0, len(tokens), size)]
        rows: list[list[Any]] = []
        for row in found:
            if rows and (len(rows[-1]) + 1) * max(map(len, [*rows[-1], row])) <= size:
                rows[-1].append(row)
            else:
                rows.append([row])
        return [sum(map(sum, many)) for many in rows]

    return p.then(made if packs else made.map(np.sum, element_spec=INT64), elements)


def first_of(pair: Any) -> Any:
    return pair[0].sum()


def _branches(draw: st.DrawFn, p: Case) -> list[Case]:
    grow = st.sampled_from([_lame, _slice, _shuffle, _repeat])
    return [p, *(draw(grow)(draw, p) for _ in range(draw(st.integers(1, 2))))]


def _concatenate(draw: st.DrawFn, p: Case) -> Case:
    hands = _branches(draw, p)
    dataset = ps.concatenate([hand.dataset for hand in hands])
    return p.then(dataset, lambda e: [x for hand in hands for x in hand.elements(e)], depth=max(h.depth for h in hands))


def _interleave(draw: st.DrawFn, p: Case) -> Case:
    hands, cycle = _branches(draw, p), draw(st.sampled_from([None, 2]))
    dataset = ps.interleave([hand.dataset for hand in hands], cycle_length=cycle)

    def elements(epoch: int) -> list[Any]:
        lists = [hand.elements(epoch) for hand in hands]
        return dealt_in_cycles(lists, cycle, 1) if dataset.access == "stream" else _in_turn(lists)

    return p.then(dataset, elements, depth=max(hand.depth for hand in hands))


def _in_turn(lists: list[list[Any]]) -> list[Any]:
    return [x for row in itertools.zip_longest(*lists, fillvalue=()) for x in row if x != ()]


def _mix(draw: st.DrawFn, p: Case) -> Case:
    hands, seed = _branches(draw, p)[:2], draw(st.integers(0, 3))
    if not all(hand.elements(epoch) for hand in hands for epoch in range(4 * len(EPOCHS))):
        return p  # a mix refuses an input without elements, and so one of which all fail
    dataset = ps.mix([hand.dataset for hand in hands], [1, 2], seed)

    def elements(epoch: int) -> list[Any]:
        lists, given = [iter(hand.elements(epoch)) for hand in hands], []
        for number in mixed({0: (1, 2)}, seed):
            try:
                given.append(next(lists[number]))
            except StopIteration:
                break
        return given

    return p.then(dataset, elements, depth=max(hand.depth for hand in hands))


def _lame_groups(draw: st.DrawFn, p: Case) -> Case:
    size, modulus = draw(st.integers(1, 4)), draw(st.integers(4, 9))

    def elements(epoch: int) -> list[Any]:
        values, made = p.elements(epoch), []
        for cut in (values[start : start + size] for start in range(0, len(values), size)):
            there = [x for x in cut if x is not BAD]
            if p.policy == "replace":
                cut = stood_in(cut) if there else cut
                there = there and cut
            if there and sum(there) % modulus != 1:
                made += [x + 1 if x is not BAD else x for x in cut]
            else:
                made += [BAD] * len(cut)
        return made

    dataset = p.dataset.map(LameGroups(modulus, are_ragged=False), batched=size, element_spec=INT64)
    return p.then(dataset, elements, has_groups=True)


def stood_in(cut: list[Any]) -> list[Any]:
    """The next element of the same batch that is there, for each."""
    return [next(x for x in cut[row:] + cut[:row] if x is not BAD) for row in range(len(cut))]


VERBS = [
    _lame_groups, _lame, _lame, _moody, _cast, _slice, _repeat, _shuffle, _filter, _flat_map, _sum_of_pairs,
    _sum_of_windows, _sum_of_tokens, _concatenate, _interleave, _mix,
]  # fmt: skip
ADDING_VERBS = (_concatenate, _interleave, _repeat, _flat_map)


@st.composite
def cases(draw: st.DrawFn, max_steps: int = 4) -> Case:
    """A plan of integers of which some fail."""
    count, policy = draw(st.integers(1, 30)), draw(st.sampled_from(["replace", "skip"]))
    if draw(st.booleans()):
        broken = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=count // 3)))
        files = ps.from_source(Files(count, broken))
        case = Case(files, lambda e: [BAD if i in broken else i for i in range(count)], policy)
    else:
        case = Case(ps.from_generator(counted, count, element_spec=INT64), lambda e: [*range(count)], policy)
    for verb in draw(st.lists(st.sampled_from(VERBS), max_size=max_steps)):
        if verb in ADDING_VERBS and max(len(case.elements(e)) for e in EPOCHS) > MOST // 3:
            continue
        grown = verb(draw, case)
        if grown.dataset.length != 0 and (grown.is_stream or grown.elements(0)):
            case = grown
    return case


def batches(case: Case, size: int, epoch: int, drop_remainder: bool) -> list[list[int]] | None:
    """Returns the batches of a loader, or None if all elements of a batch failed, which is an error."""
    values = [x for x in case.elements(epoch) if case.policy == "replace" or x is not BAD]
    cuts = [values[start : start + size] for start in range(0, len(values), size)]
    found = []
    for cut in cuts:
        if len(cut) < size and drop_remainder:
            continue
        if all(x is BAD for x in cut):
            return None
        found.append(stood_in(cut))
    return found


def _assert_policy(run: tuple[str, int], case: Case, data: Any) -> None:
    policy, size = case.policy, data.draw(st.integers(1, 5), "size")
    drop, padded = data.draw(st.booleans(), "drop_remainder"), data.draw(st.booleans(), "padded")
    shards = data.draw(st.sampled_from([1, 2]), "shards") if policy == "replace" and drop and size % 2 == 0 else 1
    make = case.dataset.padded_batch if padded else case.dataset.batch
    dataset = make(size, drop_remainder=drop)
    assume(dataset.length != 0)
    wanted = [batches(case, size, epoch, drop) for epoch in EPOCHS]
    assume(None not in wanted)
    cut = data.draw(st.integers(0, len(wanted[0])), "cut")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bad.jsonl"
        options: dict[str, Any] = {"executor": run[0], "workers": run[1], "on_error": policy, "quarantine": path}
        for rank in range(shards):
            with dataset.loader(**options, prefetch=2, shard=(rank, shards)) as loader:
                for values in wanted:
                    for batch, want in zip(loader, values, strict=True):
                        start, stop = rank * size // shards, (rank + 1) * size // shards
                        assert_same(batch, np.array(want[start:stop], np.int64))
        with dataset.loader(**options, prefetch=1) as loader:
            for _, _ in zip(range(cut), loader, strict=False):
                pass
            state = json.loads(json.dumps(loader.get_state()))
        with dataset.loader(**options) as loader:
            loader.set_state(state)
            rest = wanted[0][cut:] + wanted[1] if (state["epoch"], state["position"]) == (0, cut) else wanted[1]
            found = [batch.tolist() for _ in range(state["epoch"], len(EPOCHS)) for batch in loader]
            assert found[: len(rest)] == rest
        bad = {(epoch, i) for epoch in EPOCHS for i, x in enumerate(case.elements(epoch)) if x is BAD}
        read = {(epoch, i) for epoch, i in bad if policy == "skip" or not drop or i < len(wanted[epoch]) * size}
        _assert_quarantine(path, case, dataset, bad, read)


def _assert_quarantine(
    path: Path, case: Case, dataset: ps.Dataset, bad: set[tuple[int, int]], read: set[tuple[int, int]]
) -> None:
    """Asserts that the lines are those of what fails; another may stand for the same element in another place."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        if case.has_groups and line["exception"] == "ElementError":
            assert "nothing to put" in line["message"]  # all elements of the group failed
            continue
        assert line["exception"] in ("ValueError", "KeyError", "OSError"), line
        assert line["exception"] in line["message"]
    if case.is_stream:
        return
    failed = {(line["epoch"], line["index"]) for line in lines}
    origins = {tuple(map(tuple, line["sources"])) for line in lines}
    if not case.has_groups:
        assert {place for place in failed if place[0] in EPOCHS} <= bad
        assert {tuple(sources_of(case.dataset._node, *place)) for place in read} <= origins
    if lines:
        again = list(ps.replay(path, dataset))
        assert {(each.failure["epoch"], each.failure["index"]) for each in again} <= failed
        assert {tuple(map(tuple, each.failure["sources"])) for each in again} == origins
        assert all(each.error for each in again)


@pytest.mark.parametrize(("executor", "examples"), [("inline", 10), ("threads", 6)])
def test_any_plan_with_elements_that_fail_is_as_the_policy_says(executor: str, examples: int) -> None:
    @given(case=cases(), data=st.data())
    @settings(max_examples=examples)
    def holds(case: Case, data: Any) -> None:
        _assert_policy((executor, RUNS[executor]), case, data)

    holds()


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize(("executor", "examples"), [("inline", 40), ("threads", 20), ("processes", 10)])
def test_any_long_plan_with_elements_that_fail_is_as_the_policy_says(executor: str, examples: int) -> None:
    @given(case=cases(max_steps=6), data=st.data())
    @settings(max_examples=examples)
    def holds(case: Case, data: Any) -> None:
        _assert_policy((executor, RUNS[executor]), case, data)

    holds()


class LameGroups:
    """Adds one to each of many, and fails for some groups; elements have one size, or are arrays of any size."""

    def __init__(self, modulus: int, are_ragged: bool) -> None:
        self.modulus, self.are_ragged = modulus, are_ragged

    def __call__(self, many: Any) -> Any:
        if int(many.sum()) % self.modulus == 1:
            raise ValueError("lame")
        return [np.full(int(x) % 3 + 1, x + 1) for x in many] if self.are_ragged else many + 1


@given(data=st.data(), case=cases(max_steps=2), size=st.integers(1, 5), modulus=st.integers(2, 6))
@settings(max_examples=settings.default.max_examples // 2)
def test_groups_that_fail_are_left_out_whole_whatever_the_size_of_their_elements(
    data: Any, case: Case, size: int, modulus: int
) -> None:
    policy, executor = case.policy, data.draw(st.sampled_from(["inline", "threads"]))
    found: list[Any] = []
    for spec, last in ((INT64, None), (TOKENS, first_number)):
        dataset = case.dataset.map(LameGroups(modulus, spec is TOKENS), batched=size, element_spec=spec)
        dataset = dataset if last is None else dataset.map(last, element_spec=INT64)
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"on_error": policy, "quarantine": Path(folder) / "bad.jsonl"}
            try:
                with dataset.batch(3).loader(executor=executor, **options) as loader:
                    found.append([batch.tolist() for _ in EPOCHS for batch in loader])
            except ElementError as error:  # all elements of a batch failed
                assert policy == "replace"
                found.append(str(error)[:50])
    assert found[0] == found[1]
    if policy == "skip":
        groups = [
            many
            for epoch in EPOCHS
            for values in [case.elements(epoch)]
            for cut in (values[start : start + size] for start in range(0, len(values), size))
            for many in [[x for x in cut if x is not BAD]]
            if sum(many) % modulus != 1
        ]
        assert [x for batch in found[0] for x in batch] == [x + 1 for many in groups for x in many]


def first_number(numbers: Any) -> Any:
    return numbers[0]
