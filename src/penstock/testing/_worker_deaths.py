"""What an executor must do whose workers are processes, which die and hang: tests to subclass."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock._constructors import from_source, range as range_of
from penstock._dataset import Dataset
from penstock._loader import Loader
from penstock.base._errors import DeadlineError, WorkerError
from penstock.sources.arrays import RangeSource
from penstock.testing._compare import assert_same
from penstock.testing._fakes import LethalFunction, LethalSource
from penstock.testing._runs import OnExecutor, child_processes

TIMEOUT_S = 1.0
"""How long a worker may be silent in these tests."""
SLACK_S = 6.0
"""Allowance for a busy machine: starting new workers, and their imports."""

DEATHS = {
    "kill": r"signal 9\b|SIGKILL",
    "segfault": r"signal 11\b|SIGSEGV",
    "exit": r"(status|code|with) 3\b",
}
"""What ends a worker, and what an error says of it."""


class WorkerDeathTests(OnExecutor):
    """The contract of an executor that replaces its workers. Each test takes a second or some."""

    executor: ClassVar[str] = "processes"
    worker_counts: ClassVar[tuple[int, ...]] = (1, 2)
    starts_processes: ClassVar[bool] = True

    @pytest.mark.parametrize("death", DEATHS)
    def test_worker_that_dies_once_changes_nothing(self, load: Callable[..., Loader], death: Any) -> None:
        _assert_as_ever(load(range_of(40).map(LethalFunction({13: [death]})).shuffle(1).batch(4)))

    @pytest.mark.parametrize("death", DEATHS)
    def test_worker_that_dies_while_it_reads_changes_nothing(self, load: Callable[..., Loader], death: Any) -> None:
        _assert_as_ever(load(from_source(LethalSource(RangeSource(40), {13: [death]})).shuffle(1).batch(4)))

    def test_worker_that_dies_while_a_spec_is_found_changes_nothing(self, load: Callable[..., Loader]) -> None:
        _assert_as_ever(load(range_of(40).map(LethalFunction({0: ["kill"]})).shuffle(1).batch(4)))

    def test_many_deaths_change_nothing(self, load: Callable[..., Loader]) -> None:
        table: Any = {
            3: ["kill"],
            4: ["exit", None, "kill"],
            11: ["segfault", "kill"],
            12: ["kill"],
            29: [None, "exit"],
            39: ["kill", "kill"],
        }
        _assert_as_ever(load(range_of(40).map(LethalFunction(table)).shuffle(1).batch(4)))

    @pytest.mark.parametrize("silence", ["hang", "stop"])
    def test_worker_that_is_silent_once_changes_nothing(self, load: Callable[..., Loader], silence: Any) -> None:
        dataset = range_of(40).map(LethalFunction({13: [silence]})).shuffle(1).batch(4)
        _assert_as_ever(load(dataset, timeout_s=TIMEOUT_S))

    @pytest.mark.parametrize("death", DEATHS)
    def test_element_that_is_always_lethal_is_named(self, load: Callable[..., Loader], death: Any) -> None:
        loader = load(range_of(40).map(LethalFunction({13: death})).batch(4))
        error = _error_in_batch_3(loader, WorkerError)
        assert re.search(r"map\(LethalFunction\) at .*\belement 13\b", error), error
        assert re.search(DEATHS[death], error), error

    def test_element_that_is_always_lethal_to_read_is_named(self, load: Callable[..., Loader]) -> None:
        iterator = iter(load(from_source(LethalSource(RangeSource(8), {3: "kill"})).batch(1)))
        assert [next(iterator).tolist() for _ in range(3)] == [[0], [1], [2]]
        with pytest.raises(WorkerError, match="made of the integer 3") as caught:
            next(iterator)
        assert re.search(DEATHS["kill"], str(caught.value)), caught.value

    @pytest.mark.parametrize("silence", ["hang", "stop"])
    def test_element_that_never_returns_is_named_in_time(self, load: Callable[..., Loader], silence: Any) -> None:
        loader = load(range_of(40).map(LethalFunction({13: silence})).batch(4), timeout_s=TIMEOUT_S)
        began_s = time.monotonic()
        error = _error_in_batch_3(loader, DeadlineError)
        assert time.monotonic() - began_s < 2 * TIMEOUT_S + SLACK_S
        assert re.search(r"map\(LethalFunction\) at .*\belement 13\b", error), error
        if silence == "hang":
            assert "_fakes.py" in error, error  # the worker's stack

    def test_deaths_in_one_loader_are_not_seen_by_another(self, load: Callable[..., Loader]) -> None:
        lethal = load(range_of(40).map(LethalFunction({13: "kill", 20: ["exit"]})).batch(4))
        calm = load(range_of(40).map(LethalFunction({})).shuffle(1).batch(4))
        next(iter(lethal))
        _assert_as_ever(calm)
        _error_in_batch_3(lethal, WorkerError)

    @pytest.mark.parametrize("fault", ["kill", "hang", "stop"])
    def test_close_leaves_no_process(
        self, load: Callable[..., Loader], let_go: Callable[[], None], workers: int, fault: Any
    ) -> None:
        let_go()
        threads, children = set(threading.enumerate()), child_processes()
        loader = load(range_of(40).map(LethalFunction({8 * workers + 1: fault})).batch(4))
        iterator = iter(loader)
        first = next(iterator).tolist()
        began_s = time.monotonic()
        loader.close()
        assert time.monotonic() - began_s < SLACK_S
        assert first == [0, 1, 2, 3]
        assert child_processes() <= children
        assert set(threading.enumerate()) <= threads


def _plain() -> Dataset:
    return range_of(40).shuffle(1).batch(4)


def _assert_as_ever(loader: Loader) -> None:
    """Asserts two epochs of integers, shuffled with seed 1, in batches of 4."""
    with _plain().loader(executor="inline") as oracle:
        for _ in range(2):
            for batch, want in zip(loader, oracle, strict=True):
                assert_same(batch, want)


def _error_in_batch_3(loader: Loader, kind: type[Exception]) -> str:
    """Asserts that the fourth batch is an error, and that all others arrive; returns the error's text."""
    loader.set_state({**loader.get_state(), "epoch": 0, "position": 0})
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
    with pytest.raises(kind) as caught:
        next(iterator)
    loader.set_state({**loader.get_state(), "position": 4})
    assert [batch.tolist() for batch in loader] == np.arange(16, 40).reshape(6, 4).tolist()
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
