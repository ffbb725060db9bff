"""Measuring is cheap: units and chunks of calls are timed, and the totals are right."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget
from penstock.base._traffic import Traffic
from penstock.memory import _times
from penstock.memory._times import Noted, Times, word_count
from penstock.plan import _map
from penstock.report import _memory
from penstock.report._lanes import StepTime
from penstock.run import _unit_runner

COUNT = 1024


class Clock:
    """Time that passes only where it is let pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.readings = 0
        for module in (_map, _times, _unit_runner):
            clocks = SimpleNamespace(perf_counter=self.read if module is _map else self.time, thread_time=self.time)
            monkeypatch.setattr(module, "time", clocks)

    def time(self) -> float:
        return self.now

    def read(self) -> float:
        self.readings += 1
        return self.now

    def function(self, call_s: float, long: dict[int, float] | None = None) -> Callable[[Any], Any]:
        """A function whose calls take so long, but for those of some elements."""

        def work(x: Any) -> Any:
            self.now += (long or {}).get(int(x), call_s)
            return x

        return work


def step_of(clock: Clock, function: Callable[[Any], Any], batch_size: int) -> StepTime:
    """What is said of a function that has run on all elements."""
    with ps.range(COUNT).map(function).batch(batch_size).loader("inline") as loader:
        clock.readings = 0
        assert sum(len(batch) for batch in loader) == COUNT
        (step,) = [each for each in loader.report().lanes[0].steps if each.step.startswith("map")]
    assert step.elements == COUNT
    return step


@pytest.mark.parametrize("call_s", [1e-6, 200e-6])
def test_the_calls_of_a_unit_are_timed_together(monkeypatch: pytest.MonkeyPatch, call_s: float) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(call_s), 33)
    assert clock.readings <= 2 * (COUNT / 33 + 1)
    assert step.element_s == pytest.approx(call_s, rel=0.05)


@pytest.mark.parametrize("batch_size", [5, 33])
@pytest.mark.parametrize("index", [160, 500, 509, 512, 1000])
def test_one_long_call_among_short_ones_counts_once(
    monkeypatch: pytest.MonkeyPatch, index: int, batch_size: int
) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(2e-6, {index: 0.6}), batch_size)
    assert step.seconds == pytest.approx(0.6 + COUNT * 2e-6, rel=0.01)


def new_times(step_count: int = 1) -> Times:
    return Times(memoryview(array("q", bytes(8 * word_count(step_count)))))


def noted(times: Times) -> Noted:
    return Noted.of(np.array(times.words))


def test_each_unit_is_noted_with_its_time_by_the_clock_and_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = iter([0.0, 1.0, 5.0, 5.5])
    monkeypatch.setattr(_times, "time", SimpleNamespace(thread_time=lambda: next(cpu_s)))
    times = new_times(2)
    for wall_s in (2.0, 3.0):
        times.begin()
        times.note(0, 4, wall_s / 4)
        times.note(1, 2, wall_s / 2)
        times.end(wall_s, 4)
    budget = RetryBudget()
    budget.repeat_count, budget.waited_s = 3, 0.5
    times.note_traffic(budget)
    assert noted(times) == Noted(8, 5.0, 1.5, ((8, 1.25), (4, 2.5)), Traffic(repeats=3, waited_s=0.5))


def test_memory_is_looked_at_between_batches_where_that_was_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    base, looks = _memory.memory_now(), 0

    def memory_now(_: object) -> _memory.MemoryUse:
        nonlocal looks
        looks += 1
        return replace(base, private_nbytes=base.private_nbytes + looks)

    for interval_s, look_count in ((0.0, 4), (1e6, 1)):
        monkeypatch.setattr(_memory, "INTERVAL_S", interval_s)
        with ps.range(4).loader("inline") as loader:
            loader._peak.reserved_nbytes, looks = base.nbytes, 0
            with monkeypatch.context() as patch:
                patch.setattr(_memory, "memory_now", memory_now)
                assert [int(number) for number in loader] == [0, 1, 2, 3]
            assert looks == loader._peak.nbytes == look_count
