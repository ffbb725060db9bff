"""Any plan over a stream: one after the other, on any executor, cut anywhere. One meaning."""

import itertools
import json
import operator
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

import penstock as ps
from penstock.testing import assert_fits, assert_same, copied
from tests.properties.streams import streams
from tests.strategies import EPOCHS, Plan, mixed, shuffled

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")

RUNS = [("inline", 1), ("threads", 1), ("threads", 3), ("processes", 2)]
"""Executors and numbers of workers that must all say the same."""
EXAMPLES = {"inline": 10, "threads": 6, "processes": 3}
MORE_EXAMPLES = {"inline": 25, "threads": 15, "processes": 6}
EACH_RUN = [pytest.param(run, marks=pytest.mark.slow if run[0] == "processes" else ()) for run in RUNS]
NEAR = st.sampled_from([run for run in RUNS if run[0] != "processes"])
INT64 = ps.ArraySpec((), "int64")


@pytest.mark.slow
@pytest.mark.parametrize("second", RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_run_of_a_long_plan_resumes_exactly_wherever_it_was_cut(second: tuple[str, int]) -> None:
    @given(plan=streams(max_steps=8), first=NEAR, prefetch=st.integers(1, 3), data=st.data())
    @settings(max_examples=MORE_EXAMPLES[second[0]])
    def resumes(plan: Plan, first: tuple[str, int], prefetch: int, data: Any) -> None:
        _assert_resumes(plan, first, second, prefetch, data)

    resumes()


def _run(run: tuple[str, int], plan: Plan, prefetch: int) -> ps.Loader:
    executor, workers = run
    return plan.dataset.loader(executor=executor, workers=workers, prefetch=prefetch)  # type: ignore[arg-type]


@given(streams())
@settings(max_examples=25)
def test_elements_in_order_are_those_of_the_model(plan: Plan) -> None:
    spec = plan.dataset.element_spec
    for element, want in zip(plan.dataset, plan.elements(0), strict=True):
        assert_same(element, want)
        assert_fits(element, spec)


@given(streams())
@settings(max_examples=25)
def test_a_length_that_is_told_is_that_of_every_epoch(plan: Plan) -> None:
    if plan.dataset.length is not None:
        assert {len(plan.elements(epoch)) for epoch in EPOCHS} == {plan.dataset.length}


def _assert_delivers(run: tuple[str, int], plan: Plan, prefetch: int) -> None:
    with _run(run, plan, prefetch) as loader:
        assert loader.length == plan.dataset.length
        assert operator.length_hint(loader, -1) == (-1 if loader.length is None else loader.length)
        for epoch in EPOCHS:
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)
            assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (epoch + 1, 0)


@pytest.mark.parametrize("run", EACH_RUN, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_loader_delivers_the_epochs_of_the_model(run: tuple[str, int]) -> None:
    @given(plan=streams(), prefetch=st.integers(1, 3))
    @settings(max_examples=EXAMPLES[run[0]])
    def delivers(plan: Plan, prefetch: int) -> None:
        _assert_delivers(run, plan, prefetch)

    delivers()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_loader_delivers_the_epochs_of_the_model_of_long_plans(run: tuple[str, int]) -> None:
    @given(plan=streams(max_steps=8), prefetch=st.integers(1, 3))
    @settings(max_examples=MORE_EXAMPLES[run[0]])
    def delivers(plan: Plan, prefetch: int) -> None:
        _assert_delivers(run, plan, prefetch)

    delivers()


def _assert_resumes(plan: Plan, first: tuple[str, int], second: tuple[str, int], prefetch: int, data: Any) -> None:
    epoch = data.draw(st.sampled_from(EPOCHS), "epoch")
    count = len(plan.elements(epoch))
    cut = data.draw(st.integers(0, count), "cut")
    with _run(first, plan, prefetch) as loader:
        for _ in range(epoch):
            assert len(list(loader)) < 1 << 20
        for _, _ in zip(range(cut), loader, strict=False):
            pass
        state = loader.get_state()
    # A complete cache says that there is nothing, and the next loader is refused.
    assume("cache" not in repr(plan.dataset) or any(map(plan.elements, EPOCHS)))
    text = json.dumps(state)
    assert len(text.encode()) < 500
    with _run(second, plan, prefetch) as loader:
        loader.set_state(json.loads(text))
        # After the last batch of an epoch of unknown length, the state is still in that epoch, and the rest is empty.
        at = loader.get_state()["epoch"]
        assert at == epoch or (cut == count and at == epoch + 1)
        wanted = plan.elements(at)[cut if at == epoch else 0 :]
        for element, want in zip(loader, wanted, strict=True):
            assert_same(element, want)
        for element, want in zip(loader, plan.elements(at + 1), strict=True):
            assert_same(element, want)


@pytest.mark.parametrize("second", EACH_RUN, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_run_resumes_exactly_wherever_it_was_cut(second: tuple[str, int]) -> None:
    @given(plan=streams(max_steps=4), first=NEAR, prefetch=st.integers(1, 3), data=st.data())
    @settings(max_examples=EXAMPLES[second[0]])
    def resumes(plan: Plan, first: tuple[str, int], prefetch: int, data: Any) -> None:
        _assert_resumes(plan, first, second, prefetch, data)

    resumes()


@given(plan=streams(max_steps=3), run=NEAR, prefetch=st.integers(1, 3))
@settings(max_examples=10)
def test_batches_that_somebody_keeps_stay_as_they_were(plan: Plan, run: tuple[str, int], prefetch: int) -> None:
    with _run(run, plan, prefetch) as loader:
        kept = [(batch, copied(batch)) for epoch in EPOCHS for batch in loader]
    for batch, want in kept:
        assert_same(batch, want)


# The order of a window, which the models take from the library, and the deal of a mix.


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(0, 5), st.integers(1, 20), st.integers(0, 3))
def test_a_window_permutes_and_moves_elements_by_less_than_its_size(n: int, seed: int, window: int, epoch: int) -> None:
    order = shuffled(n, seed, window, epoch)
    assert sorted(order) == list(range(n))
    assert all(abs(place - number) < window for place, number in enumerate(order))


def test_a_window_has_an_order_of_its_own_for_each_seed_and_epoch() -> None:
    orders = {tuple(shuffled(60, seed, 10, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert tuple(range(60)) not in orders


def test_elements_of_a_window_get_everywhere_in_reach() -> None:
    # The windows of one epoch end where another epoch's are in the middle: no border holds elements back for ever.
    moves = {place - n for epoch in range(60) for place, n in enumerate(shuffled(40, 1, 8, epoch))}
    assert moves == set(range(-7, 8))
    crossed = {
        edge
        for epoch in range(60)
        for edge in range(1, 40)
        if set(shuffled(40, 1, 8, epoch)[:edge]) != set(range(edge))
    }
    assert crossed == set(range(1, 40))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=8)
def test_the_shares_of_a_mix_are_exact_in_each_1024(weights: list[int], seed: int) -> None:
    starts = [ps.from_generator([k] * 1025, element_spec=INT64) for k in range(len(weights))]
    order = [int(x) for x in ps.mix(starts, weights, seed).take(1024)]
    assert order == list(itertools.islice(mixed({0: tuple(weights)}, seed), 1024))
    exact = [1024 * weight / sum(weights) for weight in weights]
    counts = [order.count(number) for number in range(len(weights))]
    assert sum(counts) == 1024
    assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))


def test_a_mix_of_streams_is_dealt_as_one_of_random_access() -> None:
    lengths, weights = [400, 200, 100], [5, 2, 1]
    random = ps.mix([ps.range(n).map(_offset(1000 * k)) for k, n in enumerate(lengths)], weights, 7)
    starts = [ps.from_generator(range(1000 * k, 1000 * k + n), element_spec=INT64) for k, n in enumerate(lengths)]
    assert [int(x) for x in ps.mix(starts, weights, 7)] == [int(x) for x in random]


def _offset(start: int) -> Any:
    return lambda x: x + start
