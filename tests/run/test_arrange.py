"""From a plan to what runs it: which workers are chosen, when functions run, and what stays if something fails."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock.base._errors import TravelError
from penstock.lower._analysis import Analysis, analyse
from penstock.lower._copies import CopyPlan
from penstock.lower._share import Share
from penstock.memory._spans import BatchLayout, SpanLayout
from penstock.run._arrange import arrange
from penstock.run._choose import Choice, Machine, choose, choose_reader
from penstock.run._crew import PoolRight
from penstock.run._options import LoaderOptions
from penstock.run._quarantine import Quarantine
from penstock.run.pool._payload import PlanPayload

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker cannot import it

INT = ps.ArraySpec((), np.int64)
FOUR = Machine(4, "")
BARE = Machine(4, "There is no Python here.")


def slow(x: Any) -> Any:
    return x + 1


def quick(x: Any) -> Any:
    return x + 1


quick.releases_gil = True  # type: ignore[attr-defined]


def never(x: Any) -> Any:
    raise AssertionError("choosing runs nothing")


@pytest.mark.parametrize(
    ("function", "options", "machine", "chosen"),
    [
        (None, {}, FOUR, ("threads", 4)),
        (never, {}, FOUR, ("processes", 4)),
        (quick, {}, FOUR, ("threads", 4)),
        (never, {}, BARE, ("threads", 4)),
        (never, {"workers": 7}, FOUR, ("processes", 7)),
        (never, {"executor": "inline"}, FOUR, ("inline", 0)),
        (never, {"executor": "threads", "workers": 2}, FOUR, ("threads", 2)),
        (None, {"executor": "processes"}, FOUR, ("processes", 4)),
        (never, {"executor": "ray"}, FOUR, ("ray", 0)),
        (never, {"executor": "ray", "workers": 3}, FOUR, ("ray", 3)),
    ],
)
def test_the_choice_is_a_function_of_facts_options_and_machine(
    function: Any, options: dict[str, Any], machine: Machine, chosen: tuple[str, int]
) -> None:
    ds = ps.range(8) if function is None else ps.range(8).map(function, element_spec=INT)
    choice = choose(analyse(ds.batch(2)._node), LoaderOptions(**options), machine)
    assert (choice.executor, choice.worker_count) == chosen


def test_what_cannot_travel_runs_on_threads_with_a_note() -> None:
    facts = analyse(ps.range(8).map(slow, element_spec=INT)._node)
    choice = choose(facts, LoaderOptions(), FOUR, TravelError("It holds a lock."))
    note = "It runs on threads, not on processes: It holds a lock."
    assert choice == Choice("threads", 4, note, (note,))


def test_processes_that_cannot_run_are_refused() -> None:
    facts = analyse(ps.range(8)._node)
    with pytest.raises(ps.ArgumentError, match=r"executor='processes' cannot run here\. There is no Python here\."):
        choose(facts, LoaderOptions(executor="processes"), BARE)


@pytest.mark.parametrize(
    ("options", "machine", "has_stages", "executor"),
    [
        ({}, FOUR, False, "processes"),
        ({}, FOUR, True, "threads"),
        ({}, BARE, False, "threads"),
        ({"executor": "threads"}, FOUR, False, "threads"),
    ],
)
def test_a_stream_is_read_in_a_process_of_its_own_where_it_can_be(
    options: dict[str, Any], machine: Machine, has_stages: bool, executor: str
) -> None:
    facts = analyse(ps.from_generator(range, 8)._node)
    choice = choose_reader(facts, LoaderOptions(**options), machine, has_stages=has_stages)
    assert (choice.executor, choice.worker_count, choice.is_alone) == (executor, 1, executor == "processes")


def test_a_function_runs_once_before_the_first_batch_also_where_a_limit_makes_sources_keep_less(tmp_path: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.arange(400_000)}), tmp_path / "a.parquet", row_group_size=100_000)
    calls: list[int] = []

    def noted(row: Any) -> Any:
        calls.append(1)
        return row["x"]

    ds = ps.from_parquet(tmp_path / "a.parquet").map(noted).batch(8)
    with ds.loader("threads", workers=1) as whole:
        nbytes = whole.projected_nbytes
    assert len(calls) == 1
    fresh = ps.from_parquet(tmp_path / "a.parquet").map(noted).batch(8)
    with fresh.loader("threads", workers=1, memory_limit=nbytes - 1) as loader:
        assert len(calls) == 2
        assert loader.projected_nbytes < nbytes
        assert next(iter(loader)).tolist() == list(range(8))


@pytest.mark.slow
def test_a_dataset_that_a_function_holds_and_that_fails_does_not_stop_the_others() -> None:
    def bad(x: Any) -> Any:
        raise ValueError("no")

    inner = ps.range(4).map(bad).cache()

    def tries(x: Any) -> Any:
        try:
            inner[0]
        except ps.ElementError:
            return x

    with ps.range(6).map(tries, element_spec=INT).batch(3).loader("processes", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def told(value: Any) -> Any:
    """What a value of planning says, without what lives. Fails where a value can be changed."""
    if isinstance(value, PlanPayload):
        return value.shared_nbytes  # steps travel with what they have found out, such as their specs
    if is_dataclass(value):
        given = [each for each in fields(value) if each.init]
        for each in given:
            with pytest.raises(FrozenInstanceError):
                setattr(value, each.name, None)
        if isinstance(value, Analysis):  # the rest follows from the plan
            given = given[:1]
        return type(value), [told(getattr(value, each.name)) for each in given]
    if isinstance(value, SpanLayout | BatchLayout | CopyPlan):
        return type(value), value.spec
    if isinstance(value, PoolRight | Quarantine):  # these live
        return type(value)
    if isinstance(value, Mapping):
        return [(told(key), told(each)) for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [told(each) for each in value]
    return value


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: ps.range(64).batch(8), {}),
        (lambda: ps.range(64).batch(8), {"executor": "processes", "workers": 2, "memory_limit": 2 << 30}),
        (lambda: ps.range(64).map(slow).cache().shuffle(0).batch(8), {"workers": 2}),
        (lambda: ps.from_arrays(np.zeros((64, 2))).map(quick).batch(8), {"shard": (1, 2)}),
        (lambda: ps.range(64).map(slow).batch(8), {"executor": "inline", "on_error": "replace"}),
        (lambda: ps.from_generator(range, 64).batch(8, drop_remainder=True), {}),
        (lambda: ps.from_generator(range, 64).batch(8, drop_remainder=True), {"executor": "threads", "shard": (0, 2)}),
        (lambda: ps.range(64).map(slow).filter(bool).batch(8).map(slow), {"workers": 2}),
    ],
)
def test_an_arrangement_cannot_be_changed_and_another_of_the_same_dataset_is_equal(
    make: Callable[[], ps.Dataset], options: dict[str, Any], tmp_path: Path
) -> None:
    plan, wanted = make()._node, LoaderOptions(**options, quarantine=tmp_path / "failed.jsonl")
    said = []
    for _ in range(2):
        made = arrange(plan, wanted, Share(*wanted.shard))
        said.append(told(replace(made, probes=())))  # specs are found once
        made.close()
    assert said[0] == said[1]
