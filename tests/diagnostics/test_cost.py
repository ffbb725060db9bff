"""Measuring costs little: of short calls and short units few are timed, and what is said of all holds."""

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock._plan import _map
from penstock._plan._reader import STEP_WORD, Trace
from penstock.diagnostics._lanes import StepTime

COUNT = 1024


class Clock:
    """Time that passes only where it is let pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.readings = 0
        monkeypatch.setattr(_map, "time", SimpleNamespace(perf_counter=self.read))

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


@pytest.mark.parametrize(("call_s", "timed"), [(1e-6, COUNT / 16), (40e-6, COUNT / 16), (60e-6, COUNT)])
def test_of_short_calls_one_in_sixteen_is_timed_and_stands_for_the_others(
    monkeypatch: pytest.MonkeyPatch, call_s: float, timed: float
) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(call_s), 33)
    # Until anything is known, which is after a batch, all are. Each batch of others is timed as a whole.
    each, batch = (2, 0) if timed == COUNT else (3, 2)
    assert each * timed <= clock.readings <= each * (timed + 33) + batch * (COUNT / 33 + 1)
    assert step.element_s == pytest.approx(call_s, rel=0.05)


@pytest.mark.parametrize("batch_size", [5, 33])
@pytest.mark.parametrize("index", [160, 500, 509, 512, 1000])
def test_one_long_call_among_short_ones_counts_once_whether_it_was_timed_or_not(
    monkeypatch: pytest.MonkeyPatch, index: int, batch_size: int
) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(2e-6, {index: 0.6}), batch_size)
    assert step.seconds == pytest.approx(0.6 + COUNT * 2e-6, rel=0.01)


def test_putting_away_what_short_calls_gave_is_not_their_time() -> None:
    trace = Trace()
    trace.times = memoryview(array("q", bytes(8 * (STEP_WORD + 2))))
    trace.note_timed(0, 32, 32 * 4e-6, 2, 2 * 1e-6, 2 * 3e-6)
    assert trace.times[STEP_WORD + 1] == pytest.approx(32e3, rel=0.01)
    trace.note_timed(0, 8, 8 * 4e-6, 0, 0.0, 0.0)  # none of these was timed
    assert trace.times.tolist()[STEP_WORD:] == [40, pytest.approx(40e3, rel=0.01)]
    trace.note_timed(0, 16, 1e-3, 1, 1e-6, 1e-3)  # a pause while one was put away
    assert trace.times[STEP_WORD + 1] < 50e3


def noted(units: list[tuple[float, float]]) -> tuple[int, list[int]]:
    """How often the CPU is asked, and what is noted, for units that take so long by the clock and by the CPU."""
    trace, reads = Trace(), 0
    trace.times = memoryview(array("q", bytes(8 * STEP_WORD)))
    for wall_s, cpu_s in units:
        is_read = trace.reads_cpu()
        reads += is_read
        trace.note_unit(4, wall_s, cpu_s if is_read else None)
    return reads, trace.times.tolist()


def test_of_many_short_units_the_cpu_is_read_for_one_in_eight() -> None:
    reads, notes = noted([(1e-4, 0.5e-4)] * 800)
    assert reads == 8 + 99
    assert notes == [3200, pytest.approx(80e6, rel=1e-3), pytest.approx(40e6, rel=1e-3)]


def test_among_long_units_nothing_is_guessed() -> None:
    units = [(1e-4, 1e-4), (8e-3, 1e-5)] * 100  # what is short computes, and what is long waits
    reads, notes = noted(units)
    assert reads == 200
    assert notes[2] == pytest.approx(100 * (1e5 + 1e4), rel=1e-3)


def test_a_unit_that_turns_out_long_is_taken_to_have_waited() -> None:
    _, notes = noted([(1e-4, 1e-4)] * 9 + [(5.0, 0.0)])
    assert notes[1:] == [pytest.approx(5.0009e9, rel=1e-6), pytest.approx(1.9e6, rel=1e-3)]
