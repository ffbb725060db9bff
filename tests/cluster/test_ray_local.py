"""The trainer's own node: worker processes of the trainer do its work, beside the agents of other nodes."""

import os
import queue
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import penstock as ps
from penstock.memory._budget import overhead_nbytes
from penstock.testing import LethalFunction, assert_same
from penstock.testing._assertions import leaves_no_worker
from tests.cluster.conftest import HERE
from tests.cluster.watch import agents, stores, until
from tests.strategies import Plan, plans
from tests.waits import DEADLINE_S

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("cluster")]

EVERYWHERE: Any = {"num_cpus": 0}


def test_rows_of_this_machine_do_not_go_through_the_object_store(cluster: Any) -> None:
    before = stores()[0]
    dataset = ps.range(64).map(lambda x: np.full(1 << 18, x, np.int64)).batch(1)
    with dataset.loader("ray", workers=2, ray_options=HERE) as loader:
        for number, batch in enumerate(loader):
            assert (batch == number).all()
            if number % 16 == 0:
                assert stores()[0] <= before + (1 << 20)  # the plan
        assert len(loader._delivery.tasks()) == 2
        assert loader.arrangement.overhead_nbytes == overhead_nbytes(2)
        assert loader.report().workers == 2


def test_rows_of_any_size_and_objects_arrive(cluster: Any) -> None:
    dataset = ps.range(40).map(lambda x: {"text": str(x), "rows": np.full(3, x)}).batch(4)
    with dataset.loader("ray", workers=2, ray_options=HERE) as loader, dataset.loader("inline") as oracle:
        for batch, want in zip(loader, oracle, strict=True):
            assert_same(batch, want)


def test_a_worker_of_this_machine_that_dies_changes_nothing_and_a_lethal_element_is_named(cluster: Any) -> None:
    dataset = ps.range(40).map(LethalFunction({13: ["kill"], 30: "kill"})).batch(4)
    with leaves_no_worker(), dataset.loader("ray", workers=2, ray_options=HERE) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(7)] == np.arange(28).reshape(7, 4).tolist()
        with pytest.raises(ps.WorkerError, match=r"map\(LethalFunction\) at .* on element 30"):
            next(iterator)
        loader.set_state({**loader.get_state(), "position": 8})
        assert [batch.tolist() for batch in loader] == np.arange(32, 40).reshape(2, 4).tolist()


def test_the_end_of_the_place_of_this_machine_does_not_end_its_work(cluster: Any) -> None:
    with ps.range(400).batch(4).loader("ray", workers=2, ray_options=HERE) as loader:
        iterator = iter(loader)
        found = [next(iterator).tolist() for _ in range(5)]
        for place in agents():
            os.kill(place, signal.SIGKILL)
        found += [batch.tolist() for batch in iterator]
    assert found == np.arange(400).reshape(100, 4).tolist()


def test_an_environment_of_ray_is_that_of_an_agent(cluster: Any) -> None:
    options: Any = {**HERE, "runtime_env": {"env_vars": {"PLACE": "there"}}}
    with (
        ps.range(8).map(lambda x: os.environ.get("PLACE", "")).batch(4).loader("ray", 1, ray_options=options) as loader
    ):
        assert {text for batch in loader for text in batch.tolist()} == {"there"}
        assert loader.arrangement.overhead_nbytes == 0


@pytest.fixture(scope="module")
def agents_are_everywhere(cluster: object) -> Iterator[ps.Loader]:
    """A loader with agents on two nodes, and the place of this one."""
    with ps.range(8).loader("ray", workers=1, ray_options=EVERYWHERE) as loader:
        next(iter(loader))
        until(lambda: loader._delivery._executor.worker_count == 3)
        yield loader


@given(plan=plans())
@settings(max_examples=8)
def test_this_machine_and_others_deliver_the_epochs_of_the_model(agents_are_everywhere: ps.Loader, plan: Plan) -> None:
    with plan.dataset.loader("ray", workers=1, prefetch=2, ray_options=EVERYWHERE) as loader:
        for epoch in range(2):
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


def unit_count(loader: ps.Loader) -> int:
    """The units that wait or are under way, of all loaders of the fleet, as its thread counts them."""
    fleet: Any = loader._delivery._executor._fleet
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    fleet.post(
        lambda: found.put(
            sum(len(task.waiting) for task in fleet._tasks.values())
            + sum(len(agent.shares) for agent in fleet.agents.values())
        )
    )
    return found.get(timeout=DEADLINE_S)


def test_this_machine_and_others_share_the_work(agents_are_everywhere: ps.Loader) -> None:
    until(lambda: not unit_count(agents_are_everywhere))  # else a place has no room for the first share
    dataset = ps.range(6).map(lambda x: os.getppid()).batch(1)
    with dataset.loader("ray", workers=1, ray_options=EVERYWHERE) as loader:
        parents = [int(batch[0]) for batch in loader]
    assert os.getpid() in parents
    assert len(set(parents[:3])) == 3  # each place gets a share before any gets a second one
