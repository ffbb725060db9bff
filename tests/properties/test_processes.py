"""What holds for any plan holds in worker processes, and for any table of workers that die."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.testing import LethalFunction, assert_resumes_exactly, assert_same
from penstock.testing.strategies import Plan, plans

pytestmark = pytest.mark.slow

COUNTS = (1, 2, 5)


@pytest.fixture(scope="module", autouse=True)
def _workers_stay() -> Iterator[None]:
    # They take longer to start than a plan takes to run.
    with ps.range(8).loader(executor="processes", workers=max(COUNTS)) as loader:
        next(iter(loader))
        yield


@pytest.mark.parametrize("workers", COUNTS)
@given(plan=plans())
@settings(max_examples=25)
def test_a_loader_delivers_the_epochs_of_the_model(workers: int, plan: Plan) -> None:
    with plan.dataset.loader(executor="processes", workers=workers, prefetch=2) as loader:
        for epoch in range(2):
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


@given(plan=plans(max_steps=3), prefetch=st.integers(1, 5))
@settings(max_examples=10)
def test_a_run_resumes_exactly_at_every_position(plan: Plan, prefetch: int) -> None:
    runs = [("inline", 1), ("processes", 2), ("threads", 2), ("processes", 1), ("processes", 5)]
    assert_resumes_exactly(plan.dataset, executors=runs, prefetch=prefetch)


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


# Twice each at most: a third death of one element is an error.
DEATHS = st.dictionaries(
    st.integers(0, 29),
    st.lists(st.sampled_from([None, "kill", "exit", "segfault"]), min_size=1, max_size=2),
    max_size=4,
)


@pytest.mark.faults
@given(deaths=DEATHS, workers=st.sampled_from(COUNTS), size=st.integers(1, 7), cut=st.integers(0, 4))
@settings(max_examples=10)
def test_no_table_of_deaths_changes_a_run(deaths: dict[int, Any], workers: int, size: int, cut: int) -> None:
    def make(function: Any) -> ps.Dataset:
        return ps.range(30).map(function).random_map(_noisy).shuffle(1).batch(size)

    # No deaths in the oracle, under the same name.
    with make(LethalFunction({})).loader(executor="inline") as oracle:
        want = [np.array(batch) for _ in range(2) for batch in oracle]
    state = oracle.get_state() | {"epoch": 0, "position": cut}
    with make(LethalFunction(deaths)).loader(executor="processes", workers=workers) as loader:
        loader.set_state(state)
        found = [np.array(batch) for _ in range(2) for batch in loader]
    assert len(found) == len(want) - cut
    for batch, expected in zip(found, want[cut:], strict=True):
        assert_same(batch, expected)


def _noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal()
