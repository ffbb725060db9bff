"""Properties of any plan hold in worker processes, and for any table of worker deaths."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.sources.arrays import RangeSource
from penstock.testing import LethalFunction, LethalSource, assert_resumes_exactly, assert_same
from tests.strategies import Plan, plans

COUNTS = (1, 2, 5)


@pytest.fixture(scope="module")
def five_workers_stay() -> Iterator[None]:
    with ps.range(8).loader(executor="processes", workers=5) as loader:
        next(iter(loader))
        yield


def _assert_delivers(plan: Plan, workers: int) -> None:
    with plan.dataset.loader(executor="processes", workers=workers, prefetch=2) as loader:
        for epoch in range(2):
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


@pytest.mark.slow
@pytest.mark.usefixtures("five_workers_stay")
@pytest.mark.parametrize("workers", [1, 2])
@given(plan=plans())
@settings(max_examples=15)
def test_a_loader_delivers_the_epochs_of_the_model(workers: int, plan: Plan) -> None:
    _assert_delivers(plan, workers)


@pytest.mark.slow
@pytest.mark.usefixtures("five_workers_stay")
@given(plan=plans(max_steps=8), workers=st.integers(1, 5))
@settings(max_examples=40)
def test_a_loader_delivers_the_epochs_of_the_model_of_long_plans(plan: Plan, workers: int) -> None:
    _assert_delivers(plan, workers)


RUNS = [("inline", 1), ("processes", 2), ("threads", 2), ("processes", 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("five_workers_stay")
@given(plan=plans(max_steps=3), prefetch=st.integers(1, 5))
@settings(max_examples=8)
def test_a_run_resumes_exactly_at_every_position(plan: Plan, prefetch: int) -> None:
    assert_resumes_exactly(plan.dataset, executors=RUNS, prefetch=prefetch)


@pytest.mark.slow
@pytest.mark.usefixtures("five_workers_stay")
@given(plan=plans(), prefetch=st.integers(1, 5))
@settings(max_examples=12)
def test_a_run_of_a_long_plan_resumes_exactly_at_every_position(plan: Plan, prefetch: int) -> None:
    assert_resumes_exactly(plan.dataset, executors=[*RUNS, ("processes", 5)], prefetch=prefetch)


@pytest.mark.slow
@pytest.mark.usefixtures("five_workers_stay")
@given(plan=plans(), seed=st.integers(0, 9))
@settings(max_examples=10)
def test_batches_that_somebody_keeps_stay_as_they_were(plan: Plan, seed: int) -> None:
    rng, kept = np.random.default_rng(seed), []
    with plan.dataset.loader(executor="processes", workers=2, prefetch=1) as loader:
        for epoch in range(3):
            for index, batch in enumerate(loader):
                if rng.random() < 0.5:
                    kept.append((batch, plan.elements(epoch)[index]))
                for held, want in kept:
                    assert_same(held, want)
    for held, want in kept:
        assert_same(held, want)


# A third death at one unit is an error. So two of an element at most, where elements are units; else two in all.
FAULTS = st.sampled_from([None, "kill", "exit", "segfault"])
DEATHS = st.dictionaries(st.integers(0, 29), st.lists(FAULTS, min_size=1, max_size=2), max_size=4)
TWO_DEATHS = st.dictionaries(st.integers(0, 29), st.lists(FAULTS, min_size=1, max_size=1), max_size=2)


@pytest.mark.faults
@given(
    case=st.tuples(DEATHS, st.just(1)) | st.tuples(TWO_DEATHS, st.integers(2, 7)),
    at_source=st.booleans(),
    workers=st.sampled_from(COUNTS),
    cut=st.integers(0, 4),
    then=st.sampled_from([("inline", 1), ("threads", 2), ("processes", 1), ("processes", 5)]),
)
@settings(max_examples=8)
def test_no_table_of_deaths_changes_a_run(
    case: tuple[dict[int, Any], int], at_source: bool, workers: int, cut: int, then: tuple[Any, int]
) -> None:
    deaths, size = case

    def make(table: dict[int, Any]) -> ps.Dataset:
        source = LethalSource(RangeSource(30), table if at_source else {})
        function = LethalFunction({} if at_source else table)
        return ps.from_source(source).map(function).random_map(_noisy).shuffle(1).batch(size)

    # No deaths in the oracle, under the same names.
    with make({}).loader(executor="inline") as oracle:
        want = [np.array(batch) for _ in range(2) for batch in oracle]
    with make(deaths).loader(executor="processes", workers=workers) as loader:
        loader.set_state(oracle.get_state() | {"epoch": 0, "position": cut})
        found = [np.array(batch) for batch in loader]
        state = loader.get_state()
    executor, count = then
    with make({}).loader(executor=executor, workers=count) as loader:
        loader.set_state(state)
        found += [np.array(batch) for batch in loader]
    assert len(found) == len(want) - cut
    for batch, expected in zip(found, want[cut:], strict=True):
        assert_same(batch, expected)


def _noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal()
