"""Functions that draw from `np.random` or `random`: the same numbers for an element wherever it is asked for."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


def with_numpy(x: Any) -> Any:
    return x + np.random.rand()


def with_random(x: Any) -> Any:
    return x + random.random()


def with_both_by_turns(x: Any) -> Any:
    return x + (np.random.rand() if x % 2 else random.gauss(0, 1))


DRAWERS = [with_numpy, with_random, with_both_by_turns]
DRAWER = pytest.mark.parametrize("function", DRAWERS)


@pytest.fixture(autouse=True)
def _states_are_not_disturbed() -> Any:
    np.random.seed(17)
    random.seed(17)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    yield
    assert str(np.random.get_state()) == str(numpy_state)
    assert random.getstate() == python_state


@DRAWER
def test_elements_are_the_same_by_index_in_order_and_in_batches(function: Callable[[Any], Any]) -> None:
    dataset = ps.range(20).map(function)
    want = [float(dataset[index]) for index in range(20)]
    assert len(set(want)) == 20
    assert [float(dataset[index]) for index in reversed(range(20))] == want[::-1]
    assert [float(x) for x in dataset] == want
    with dataset.batch(3).loader("inline") as loader:
        assert [x for batch in loader for x in batch.tolist()] == want
        assert [x for batch in loader for x in batch.tolist()] != want  # another epoch
    with dataset.shuffle(4).batch(3).loader("inline") as loader:
        assert sorted(x for batch in loader for x in batch.tolist()) == sorted(want)


@DRAWER
def test_a_new_process_state_changes_nothing(function: Callable[[Any], Any]) -> None:
    want = [float(x) for x in ps.range(10).map(function)]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.rand(1000)
    random.seed(99)
    assert [float(x) for x in ps.range(10).map(function)] == want
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def test_a_function_that_draws_late_is_seeded_from_its_first_draw_on() -> None:
    def late(x: Any) -> Any:
        return x + (np.random.rand() if x >= 7 else 0.0)

    forward = [float(x) for x in ps.range(20).map(late)]
    dataset = ps.range(20).map(late)
    assert [float(dataset[index]) for index in reversed(range(20))] == forward[::-1]


@pytest.mark.parametrize("access", ["random", "stream"])
def test_a_function_that_is_seeded_late_and_changes_what_it_is_given_gets_it_unchanged_again(access: str) -> None:
    def in_place(x: Any) -> Any:
        x += 1
        return x + 0 * np.random.rand(2)

    spec = ps.ArraySpec((2,), "float64")
    rows = ps.from_arrays(np.zeros((4, 2)))
    source = rows if access == "random" else rows.filter(lambda x: True)
    assert np.array_equal(list(source.map(in_place, element_spec=spec)), np.ones((4, 2)))


def test_two_steps_in_a_row_draw_numbers_of_the_element() -> None:
    dataset = ps.range(12).map(with_numpy).map(with_random)
    want = [float(x) for x in dataset]
    with dataset.shuffle(1).batch(5).loader("inline") as loader:
        assert sorted(x for batch in loader for x in batch.tolist()) == sorted(want)


def test_a_resumed_run_draws_the_same() -> None:
    dataset = ps.range(20).shuffle(2).map(with_numpy).batch(4)
    with dataset.loader("inline") as loader:
        whole = [batch.tolist() for _ in range(2) for batch in loader]
    for position in range(5):
        with dataset.loader("inline") as loader:
            loader.set_state(loader.get_state() | {"epoch": 1, "position": position})
            assert [batch.tolist() for batch in loader] == whole[5 + position :]


@DRAWER
def test_threads_refuse_such_a_function_and_say_what_to_do(function: Callable[[Any], Any]) -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        ps.range(20).map(function).batch(2).loader("threads")
    assert str(caught.value).startswith(f"map({function.__name__}) at test_global_randomness.py:")
    assert "draws from the global np.random or random" in str(caught.value)
    assert "Use random_map(fn)" in str(caught.value)
    assert "executor='processes', or 'inline'" in str(caught.value)


@pytest.mark.usefixtures("workers_stay")
@DRAWER
def test_such_a_function_draws_the_same_in_worker_processes(function: Callable[[Any], Any]) -> None:
    dataset = ps.range(60).map(function).shuffle(1).batch(7)
    with dataset.loader("inline") as inline, dataset.loader("processes", workers=2) as processes:
        for _ in range(2):
            ours, oracle = ([batch.tolist() for batch in loader] for loader in (processes, inline))
            assert ours == oracle


@pytest.mark.usefixtures("workers_stay")
def test_auto_runs_such_a_function_in_processes() -> None:
    with ps.range(20).map(with_numpy).batch(2).loader(workers=2) as loader:
        assert loader.report().executor == "processes"


@DRAWER
def test_auto_runs_such_a_function_inline_if_it_cannot_travel_and_says_why(function: Callable[[Any], Any]) -> None:
    lock, before = threading.Lock(), set(threading.enumerate())

    def guarded(x: Any) -> Any:
        with lock:
            return function(x)

    with ps.range(20).map(guarded).batch(2).loader() as loader:
        list(loader)
        report = loader.report()
        assert (report.executor, report.workers) == ("inline", 0)
        assert "because map(guarded) draws from the global np.random or random" in report.note
        assert "`lock`" in report.note
        assert report.note in str(report)
        assert set(threading.enumerate()) <= before


def test_a_declared_spec_hides_nothing() -> None:
    dataset = ps.range(20).map(with_numpy, element_spec=ps.ArraySpec((), "float64")).batch(2)
    with pytest.raises(ps.ArgumentError, match="draws from the global"):
        dataset.loader("threads")


def test_a_function_that_cannot_travel_runs_on_threads_and_says_why() -> None:
    lock = threading.Lock()
    with ps.range(20).map(lambda x: x + 1 if lock else x).batch(2).loader() as loader:
        assert loader.report().executor == "threads"
        assert loader.report().note.startswith("It runs on threads, not on processes: ")
        assert "`lock`" in loader.report().note


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_random_map_draws_the_same_on_every_executor(workers: int) -> None:
    dataset = (
        ps.range(60).random_map(lambda x, rng: x + rng.random()).shuffle(3).random_map(lambda x, rng: x * rng.normal())
    )
    plan = dataset.batch(7)
    with plan.loader("threads", workers=workers) as threads, plan.loader("inline") as inline:
        for _ in range(2):
            ours, oracle = ([batch.tolist() for batch in loader] for loader in (threads, inline))
            assert ours == oracle
    assert [float(x) for x in dataset] == [float(dataset[index]) for index in range(60)]


@pytest.mark.slow
def test_a_generator_that_a_function_holds_is_reported() -> None:
    rng = np.random.default_rng(0)
    with ps.range(4).map(lambda x: x + rng.random()).batch(2).loader("processes", workers=1) as loader:
        list(loader)
        assert "holds a random generator (Generator). Each worker has a copy of it" in str(loader.report())
