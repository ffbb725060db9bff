"""Other weights of a mix for what is still to come: set at a restart, and written into the state."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from tests.strategies import mixed

INT64 = ps.ArraySpec((), "int64")
EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
OLD, NEW, NEWER = [8, 1, 1], [1, 1, 2], [1, 5, 1]

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")


def parts(length: int = 30_000) -> list[ps.Dataset]:
    """Datasets whose elements say which it is, and which element."""
    return [ps.from_arrays(np.arange(length) * 10 + number) for number in range(3)]


def mix(weights: Any, length: int = 30_000) -> ps.Dataset:
    return ps.mix([each.shuffle(number).repeat() for number, each in enumerate(parts(length))], weights, seed=3)


def streams(weights: Any) -> ps.Dataset:
    return ps.mix([ps.from_generator(range, k, 90_000, 10, element_spec=INT64) for k in range(3)], weights, seed=3)


def drawn(x: Any, rng: Any) -> Any:
    return x + 100_000_000 * rng.integers(9)


PLANS: dict[str, Callable[[Any], ps.Dataset]] = {
    "batches": lambda weights: mix(weights).batch(24),
    "elements": lambda weights: mix(weights, 90),
    "functions": lambda weights: mix(weights).random_map(drawn, seed=1).batch(24).map(lambda x: x * 2),
    "a part": lambda weights: mix(weights).skip(7).take(50_000).cast("int32").batch(24, drop_remainder=True),
    "beside others": lambda weights: (
        ps.zip((mix(weights), ps.range(10**6).repeat())).batch(24).map(lambda both: both[0])
    ),
    "a filter": lambda weights: mix(weights).map(lambda x: x + 1).filter(lambda x: x % 3 > 0).batch(24),
    "streams": lambda weights: streams(weights).batch(24),
    "batches of batches": lambda weights: mix(weights).batch(4).batch(6),
}


def take(loader: Any, count: int) -> list[list[int]]:
    return [np.ravel(batch).tolist() for _, batch in zip(range(count), loader, strict=False)]


def values(ds: ps.Dataset) -> Any:
    with ds.batch(512).loader("inline") as loader:
        return np.concatenate(list(loader))


def through_json(loader: Any) -> Any:
    text = json.dumps(loader.get_state())
    assert len(text) <= 500
    return json.loads(text)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", PLANS)
def test_a_run_goes_on_with_other_weights_as_if_the_plan_had_both(executor: Any, name: str) -> None:
    build = PLANS[name]
    with build(OLD).loader(executor) as loader:
        found = take(loader, 10)
        state = through_json(loader)
    with build(NEW).loader(executor) as loader:
        loader.set_state(state, changed="mix")
        found += take(loader, 60)
        later = through_json(loader)
        first, second = later["mix"]
        element = second[1]
        assert (first[:2], second[0]) == ([0, 0], 0)
    with build(NEW).loader(executor) as loader:  # nothing has to be said again
        loader.set_state(later)
        assert through_json(loader) == later
        found += take(loader, 10)
    both = build({0: OLD, element: NEW})
    with both.loader("inline") as loader:
        assert found == take(loader, 80)
    with build(NEW).loader("inline") as loader:  # an earlier place has the former mixture
        loader.set_state({key: each for key, each in later.items() if key != "cursor"} | {"position": 0})
        assert take(loader, 80) == found
    # Two changes, the second in the past of the first, which is then no part of the run any more.
    with build(NEWER).loader("inline") as loader:
        loader.set_state(later, changed="mix")
        assert [each[:2] for each in loader.get_state()["mix"]][:2] == [[0, 0], [0, element]]
        loader.set_state(state, changed="mix")
        assert [each[:2] for each in loader.get_state()["mix"]] == [[0, 0], [0, element]]


def test_a_change_equals_the_old_mix_before_it_and_its_shares_are_exact_after_it() -> None:
    old = values(mix(OLD).take(3000))
    for change in (1, 160, 1024, 3000):
        both = values(mix({0: OLD, change: NEW}).take(change + 1500))
        assert (both[:change] == old[:change]).all()
        assert np.bincount(both[change : change + 1024] % 10).tolist() == [256, 256, 512]
        whole = itertools.islice(mixed({0: tuple(OLD), change: tuple(NEW)}, 3), change + 1500)
        assert (both % 10).tolist() == list(whole)


def finite(weights: Any) -> ps.Dataset:
    return ps.mix([each.shuffle(7) for each in parts(100)], weights, seed=1).batch(8)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_epochs_before_the_change_are_of_the_old_mix_and_those_after_it_of_the_new(executor: Any) -> None:
    with finite(OLD).loader(executor) as loader:
        old = [take(loader, 1000) for _ in range(2)]
        old.append(take(loader, 6))
        state = through_json(loader)
        assert state["epoch"] == 2
    with finite(NEW).loader(executor) as loader:
        loader.set_state(state, changed="mix")
        rest, whole, again = (take(loader, 1000) for _ in range(3))
        assert len(loader) == len(whole) == len(again) == len(finite(NEW))
        assert len(old[-1] + rest) == len(finite({0: OLD, 48: NEW}))
        later = through_json(loader)
        assert later["epoch"] == 5
        counts = [count for _, count in loader.report().mixed]
    with finite({0: OLD, 48: NEW}).loader("inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": 2})
        assert take(loader, 1000) == old[-1] + rest
    with finite(NEW).loader("inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": 3})
        assert [take(loader, 1000) for _ in range(2)] == [whole, again]
    with finite(NEW).loader("inline") as loader:  # the whole run again
        loader.set_state(later | {"epoch": 0, "position": 0})
        epochs = [take(loader, 1000) for _ in range(5)]
        assert epochs == [*old[:2], old[-1] + rest, whole, again]
    assert np.bincount([x % 10 for batch in again for x in batch]).tolist() == counts


def skipping(weights: Any) -> ps.Dataset:
    return mix(weights).skip(5).take(100).batch(8)


@pytest.mark.parametrize("build", [finite, skipping])
def test_a_change_at_the_end_of_an_epoch_is_a_clean_cut(build: Callable[[Any], ps.Dataset]) -> None:
    with build(OLD).loader("inline") as loader:
        take(loader, 1000)
        state = through_json(loader)
    with build(NEW).loader("inline") as loader:
        loader.set_state(state, changed="mix")
        assert [count for _, count in loader.report().mixed] != [0, 0, 0]  # of the epoch that has ended
        found = take(loader, 1000)
        assert [each[:2] for each in loader.get_state()["mix"]] == [[0, 0], [1, 0]]
    with build(NEW).loader("inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": 1})
        assert take(loader, 1000) == found


@pytest.mark.parametrize("build", [finite, skipping])
def test_a_change_before_the_first_batch_leaves_no_trace(build: Callable[[Any], ps.Dataset]) -> None:
    with build(OLD).loader("inline") as old, build(NEW).loader("inline") as new:
        wanted = new.get_state()
        new.set_state(old.get_state(), changed="mix")
        assert new.get_state() == wanted
        assert [count for _, count in new.report().mixed] == [0, 0, 0]


@pytest.mark.parametrize("options", [{}, {"whole_batches": True}], ids=["rows", "whole batches"])
def test_ranks_of_any_number_go_on_with_the_new_weights(options: Any) -> None:
    def rows(count: int, state: Any, steps: int, **change: Any) -> tuple[list[int], Any]:
        """Elements of all ranks, in the order of the run."""
        found: list[list[list[int]]] = []
        for rank in range(count):
            with PLANS["batches"](NEW).loader("inline", shard=(rank, count), **options) as loader:
                loader.set_state(state, **change)
                found.append(take(loader, steps))
                after = through_json(loader)
        return [x for step in zip(*found, strict=True) for batch in step for x in batch], after

    with PLANS["batches"](OLD).loader("inline", shard=(1, 4), **options) as loader:
        take(loader, 3)
        state = through_json(loader)
    first, state = rows(2, state, 6, changed="mix")
    second, later = rows(3, state, 6)
    element, start = later["mix"][1][1], 24 * (12 if options else 3)
    assert element == start
    wanted = mix({0: OLD, element: NEW})[start : start + len(first) + len(second)]
    assert first + second == values(wanted).tolist()


def test_weights_and_the_size_of_batches_may_change_together() -> None:
    with mix(OLD).batch(24).loader("inline") as loader:
        found = take(loader, 10)
        state = through_json(loader)
    with mix(NEW).batch(10).loader("inline") as loader:
        loader.set_state(state, changed="mix")
        found += take(loader, 5)
        state = through_json(loader)
    assert (state["cut"], state["position"], state["mix"][1][1]) == (240, 5, 240)
    with mix(NEWER).batch(16).loader("threads") as loader:
        loader.set_state(state, changed="mix")
        found += take(loader, 80)
        assert [each[1] for each in loader.get_state()["mix"]] == [0, 240, 290]
        assert sum(count for _, count in loader.report().mixed) == 290 + 80 * 16
    wanted = mix({0: OLD, 240: NEW, 290: NEWER}).take(290 + 80 * 16)
    assert [x for batch in found for x in batch] == values(wanted).tolist()


def test_a_dataset_may_be_added_at_the_end() -> None:
    first, more = [each.repeat() for each in parts()], ps.from_arrays(np.arange(9) * 10 + 3).repeat()
    with ps.mix(first, OLD).batch(8).loader("inline") as loader:
        found = take(loader, 100)
        state = through_json(loader)
    with ps.mix([*first, more], [1, 1, 1, 5]).batch(8).loader("inline") as loader:
        loader.set_state(state, changed="mix")
        found += take(loader, 128)
        later = through_json(loader)
        loader.set_state(later | {"position": 0})
        assert take(loader, 228) == found
        loader.set_state(later)
        numbers = np.array(found).ravel() % 10
        assert [count for _, count in loader.report().mixed] == np.bincount(numbers).tolist()
    assert not any(x % 10 == 3 for batch in found[:100] for x in batch)
    assert sum(x % 10 == 3 for batch in found for x in batch) == 640


def test_weights_by_element_may_change_behind_the_place_without_a_word() -> None:
    build = PLANS["batches"]
    with build(OLD).loader("inline") as loader:
        old = take(loader, 6)
        state = through_json(loader)
    for change in (144, 145, 5000):
        with build({0: OLD, change: NEW}).loader("inline") as loader:
            loader.set_state(state)
            rest = take(loader, 300)
            later = through_json(loader)
            assert "mix" not in later
        with build({0: OLD, change: NEW}).loader("inline") as loader:
            assert take(loader, 306) == old + rest
        with build({0: OLD, change: NEW, 9000: NEWER}).loader("inline") as loader:
            loader.set_state(later)
    with (
        build({0: OLD, 143: NEW}).loader("inline") as loader,
        pytest.raises(ps.StateError, match=r"Weights of mix\(\) by element may change from element 144 of this epoch"),
    ):
        loader.set_state(state)


def test_the_report_counts_the_elements_of_each_dataset() -> None:
    with mix(OLD).batch(8).loader("inline") as loader:
        assert [count for _, count in loader.report().mixed] == [0, 0, 0]
        numbers = np.array(take(loader, 256)) % 10
        report = loader.report()
        assert [count for _, count in report.mixed] == np.bincount(numbers.ravel()).tolist()
        assert report.mixed[0][0].startswith("from_arrays(")
        line = "\n  mix used 1,638 elements of from_arrays(array of (30000,) int64), 80.0% of the epoch's\n"
        assert line in str(report)
        state = through_json(loader)
    with mix(OLD).batch(8).loader("threads", shard=(1, 2)) as loader:  # of all ranks, and of the run before
        loader.set_state(state)
        assert loader.report().mixed == report.mixed
    with ps.range(9).batch(2).loader("inline") as one:
        take(one, 2)
        assert one.report().mixed == ()
        assert "mix used" not in str(one.report())


def test_the_report_counts_what_a_filter_left_out() -> None:
    ds = ps.mix(parts(90), [1, 1, 1]).filter(lambda x: x > 100).batch(4)
    with ds.loader("inline") as loader:
        last = take(loader, 5)[-1][-1]
        counts = [count for _, count in loader.report().mixed]
        places = [int(x) for x in ps.mix(parts(90), [1, 1, 1])]
        assert sum(counts) == places.index(last) + 1
        first = take(loader, 1)[-1][-1]  # of the next epoch
        assert sum(count for _, count in loader.report().mixed) == places.index(first) + 1


def rows_of(documents: ps.Dataset) -> ps.Dataset:
    return documents.pack(8, lengths=[3] * len(documents))


@given(st.data())
@settings(max_examples=15)
def test_any_changes_at_any_places_of_any_plan_are_those_of_weights_by_element(data: st.DataObject) -> None:
    """Sections with weights, a size of batches and executors of their own, and a replay of all of them in the end."""
    weights = st.lists(st.integers(1, 9), min_size=3, max_size=3)
    skip, keeps, length = data.draw(st.integers(0, 40)), data.draw(st.booleans()), data.draw(st.integers(1, 400))

    def plan(of: Any, size: int) -> ps.Dataset:
        ds = ps.mix([each.shuffle(1).repeat() for each in parts(length)], of, seed=length)
        ds = ds.skip(skip).random_map(drawn, seed=5) if skip else ds.map(lambda x: x)
        return (ds.filter(lambda x: x % 7 > 1) if keeps else ds).take(20_000).batch(size)

    stages: dict[int, list[int]] = {}
    found: list[int] = []
    state: Any = None
    size = data.draw(st.integers(1, 30), "size")
    for number in range(data.draw(st.integers(1, 4), "sections")):
        section = data.draw(weights, "weights")
        if not keeps:  # a stream cannot go on with other batches
            size = data.draw(st.integers(1, 30), "size")
        executor: Any = data.draw(st.sampled_from(["inline", "threads"]))
        with plan(section, size).loader(executor, workers=1 if executor == "threads" else "auto") as loader:
            if state is not None:
                loader.set_state(state, changed="mix")
            found += np.ravel([x for batch in take(loader, data.draw(st.integers(1, 40))) for x in batch]).tolist()
            state = json.loads(json.dumps(loader.get_state()))
        stages = {element: list(counts) for _, element, *counts in state["mix"]}
        assert number or list(stages) == [0]
    assert found == list(itertools.islice((x for b in plan(stages, 64) for x in b.tolist()), len(found)))
    with plan(section, size).loader("inline") as loader:
        loader.set_state({**state, "position": 0, "cut": 0} | ({"cursor": [0]} if keeps else {}))
        assert found == [x for batch in take(loader, -(-len(found) // size)) for x in batch][: len(found)]


REFUSED: dict[str, tuple[Callable[[Any], ps.Dataset], str]] = {
    "an order": (lambda w: finite(w).unbatch().shuffle(1).batch(4), r"shuffle\(seed=1\) after mix\(\) does not use"),
    "rows": (
        lambda w: rows_of(ps.mix([ps.from_source([np.ones(3)] * 9)] * 3, w)),
        r"pack\(8\) after mix\(\) does not use its elements in their order",
    ),
    "rounds": (lambda w: finite(w).repeat(2), r"repeat\(2\) after mix"),
    "kept": (lambda w: ps.mix(parts(9), w).cache().batch(2), r"cache\(\) after mix"),
    "two": (lambda w: ps.zip((mix(w), mix(w))).batch(4), r"zip after mix\(\) does not"),
    "none": (lambda w: ps.range(90).shuffle(w[0]).batch(4), r"it has no mix\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_cannot_change_where_no_element_is_the_next_one(name: str) -> None:
    build, message = REFUSED[name]
    with build(OLD).loader("inline") as old, build(NEW).loader("inline") as new:
        state = old.get_state()
        assert "mix" not in state
        assert new.report().mixed == ()
        with pytest.raises(ps.StateError, match=rf"The weights of mix\(\) cannot change: {message}"):
            new.set_state(state, changed="mix")


def test_without_a_word_another_mixture_is_refused_and_the_error_says_what_to_write() -> None:
    with mix(OLD).batch(8).loader("inline") as old, mix(NEW).batch(8).loader("inline") as new:
        state = old.get_state()
        with pytest.raises(ps.StateError, match=r"arguments of mix changed\. .* set_state\(state, changed='mix'\)"):
            new.set_state(state)
        with pytest.raises(
            ps.ArgumentError, match=r"set_state\(changed='map'\): the one step that may differ is 'mix'"
        ):
            new.set_state(state, changed="map")  # type: ignore[arg-type]
    more = r"step 11 differs: here it is map\. Build .* was saved\.$"
    with mix(NEW).map(abs).batch(8).loader("inline") as other, pytest.raises(ps.StateError, match=more):
        other.set_state(state, changed="mix")
    with ps.mix(parts(), NEW, seed=4).loader("inline") as other, pytest.raises(ps.StateError, match="step 2 differs"):
        other.set_state(state, changed="mix")
    cut = r"the arguments of skip changed"  # it has another number of elements, for the mix ends elsewhere
    with finite(OLD).skip(5).loader("inline") as old:
        state = old.get_state()
    with finite(NEW).skip(5).loader("inline") as new, pytest.raises(ps.StateError, match=cut):
        new.set_state(state, changed="mix")


def test_a_state_without_weights_asks_for_them_by_element() -> None:
    many = [ps.range(9).repeat()] * 60
    with ps.mix(many, [1] * 60).batch(4).loader("inline") as loader:
        state = through_json(loader) | {"position": 10}
        assert "mix" not in state
    other = [2, *[1] * 59]
    with ps.mix(many, other).batch(4).loader("inline") as loader, pytest.raises(ps.StateError, match="state has none"):
        loader.set_state(state, changed="mix")
    with ps.mix(many, {0: [1] * 60, 40: other}).batch(4).loader("inline") as loader:
        loader.set_state(state)


def test_a_state_has_room_for_some_changes_and_the_error_says_what_then() -> None:
    with mix(OLD).batch(4).loader("inline") as loader:
        state = loader.get_state()
    with pytest.raises(ps.StateError, match="160 bytes for the weights of mix\\(\\), too few for these"):  # noqa: PT012
        for number in range(1, 20):
            with mix([number, 1, 1 + number % 3]).batch(4).loader("inline") as loader:
                loader.set_state(state | {"position": 10_000 * number}, changed="mix")
                state = through_json(loader)
    assert number > 4


def test_elements_that_are_left_out_have_no_place_at_which_weights_change() -> None:
    with mix(OLD).batch(8).loader("inline") as loader:
        state = loader.get_state() | {"position": 4}
    with mix(NEW).batch(8).loader("inline", on_error="skip") as loader:
        with pytest.raises(ps.StateError, match="'replace' keeps their positions"):
            loader.set_state(state, changed="mix")
        assert take(loader, 1)
    with mix(NEW).batch(8).loader("inline", on_error="replace") as loader:
        loader.set_state(state, changed="mix")


@pytest.mark.parametrize(
    "value",
    [
        1,
        "x",
        [],
        [[0, 0]],
        [[0, 1, 1024, 0, 0]],
        [[0, 0, 1, 2, 3]],
        [[0, 0, None]],
        [[0, 0, 1024], [1, 5, 1025, -1]],
        {},
        [[]],
    ],
    ids=str,
)
def test_what_is_no_history_of_weights_is_refused(value: Any) -> None:
    with mix(OLD).batch(8).loader("inline") as loader, pytest.raises(ps.StateError, match=r"^mix=.* is nothing that"):
        loader.set_state(loader.get_state() | {"mix": value})


def test_ranks_with_different_histories_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("penstock.loader.require_agreement", lambda shard, facts: seen.append(facts))
    with mix(OLD).batch(8).loader("inline") as old, mix(NEW).batch(8).loader("inline") as new:
        new.set_state(old.get_state() | {"position": 2}, changed="mix")
        take(new, 1)
        wanted = new.get_state()["mix"]
    assert json.loads(json.dumps([each["mix"] for each in seen])) == [wanted]
    assert wanted[1][:2] == [0, 16]
