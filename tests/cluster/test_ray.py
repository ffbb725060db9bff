"""The executor `ray` on a cluster of this machine: the contract, random plans, and the order of a seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.run.executors._registry import EXECUTORS
from penstock.testing import ExecutorTests, assert_resumes_exactly, assert_same
from tests.strategies import Plan, plans

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


class TestRay(ExecutorTests):
    executor = "ray"
    worker_counts = (2,)


def test_its_entry_has_the_reach_of_the_executor() -> None:
    from penstock.ray._executor import RayExecutor

    assert EXECUTORS["ray"].reach == RayExecutor.reach


@pytest.mark.usefixtures("agents_stay")
def test_the_report_counts_the_workers_of_agents_that_run() -> None:
    with ps.range(8).batch(4).loader(executor="ray", workers=1) as loader:
        list(loader)
        assert loader.report().executor == "ray"
        assert loader.report().workers in (1, 2)  # the second agent may start still


@pytest.mark.usefixtures("agents_stay")
def test_arrays_of_any_size_are_no_views_of_the_object_store() -> None:
    sizes = ps.ArraySpec((None,), "int64")
    dataset = ps.range(8).map(lambda x: np.full(1 << int(x + 10), x), element_spec=sizes)
    with dataset.loader(executor="ray", workers=1) as loader:
        for number, array in enumerate(loader):
            assert array.flags.writeable
            array += 1
            assert (array == number + 1).all()


@pytest.mark.usefixtures("agents_stay")
@given(plan=plans())
@settings(max_examples=8)
def test_a_loader_delivers_the_epochs_of_the_model(plan: Plan) -> None:
    with plan.dataset.loader(executor="ray", workers=1, prefetch=2) as loader:
        for epoch in range(2):
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


@pytest.mark.usefixtures("agents_stay")
@given(plan=plans(max_steps=3), prefetch=st.integers(1, 5))
@settings(max_examples=3)
def test_a_run_resumes_exactly_at_every_position(plan: Plan, prefetch: int) -> None:
    assert_resumes_exactly(plan.dataset, executors=[("inline", 1), ("ray", 1)], prefetch=prefetch)


@pytest.mark.usefixtures("agents_stay")
def test_orders_are_the_golden_ones() -> None:
    orders = json.loads((Path(__file__).parents[1] / "golden" / "orders.json").read_text())["orders"]
    for order in orders:
        if order["n"] > 12_000 or order["window"] is not None:
            continue
        dataset = ps.range(order["n"]).shuffle(order["seed"]).batch(max(1, order["n"] // 16))
        with dataset.loader(executor="ray", workers=1) as loader:
            loader.set_state(loader.get_state() | {"epoch": order["epoch"]})
            found = np.concatenate([batch.copy() for batch in loader])
        assert found[order["at"]].tolist() == order["indices"]
