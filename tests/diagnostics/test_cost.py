"""Measuring costs little: of short calls and short units few are timed, and what is said of all holds."""

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock._plan import _map
from penstock._run import _lower

COUNT = 1024


@pytest.mark.parametrize(("call_s", "timed"), [(1e-6, COUNT / 16), (40e-6, COUNT / 16), (60e-6, COUNT)])
def test_of_short_calls_one_in_sixteen_is_timed_and_stands_for_the_others(
    monkeypatch: pytest.MonkeyPatch, call_s: float, timed: float
) -> None:
    readings: Iterator[int] = itertools.count()
    taken = []

    def clock() -> float:
        taken.append(next(readings))
        return taken[-1] * call_s

    monkeypatch.setattr(_map, "time", SimpleNamespace(perf_counter=clock))
    with ps.range(COUNT).map(lambda x: x).batch(33).loader("inline") as loader:
        assert sum(len(batch) for batch in loader) == COUNT
        (step,) = [each for each in loader.report().lanes[0].steps if each.step.startswith("map")]
    # Until anything is known, which is after a batch, all are.
    assert timed <= len(taken) / 2 <= timed + 33
    assert step.elements == COUNT
    assert step.element_s == pytest.approx(call_s, rel=0.05)


def test_of_short_units_the_cpu_is_asked_for_one_in_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cpu() -> float:
        asked.append(time.thread_time())
        return asked[-1]

    clock: Any = SimpleNamespace(perf_counter=time.perf_counter, thread_time=cpu)
    monkeypatch.setattr(_lower, "time", clock)
    with ps.range(4 * 800).batch(4).loader("inline") as loader:
        for _ in loader:
            pass
        (lane,) = loader.report().lanes
    # Some units may take a millisecond here, if the machine has other work.
    assert 2 * 100 <= len(asked) <= 2 * 200
    assert lane.batches == 800
    assert 0.3 * lane.wall_s < lane.cpu_s < 1.5 * lane.wall_s
