"""Measuring costs little: of short calls and short units few are timed, and what is said of all holds."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.memory import _times
from penstock.memory._times import FIRST_COUNT, SAMPLED_EVERY_S, SHORT_CALL_S, SHORT_UNIT_S, Noted, Times, word_count
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


@pytest.mark.parametrize("call_s", [1e-6, 40e-6, 60e-6, 200e-6])
def test_of_short_calls_few_are_timed_and_stand_for_the_others(monkeypatch: pytest.MonkeyPatch, call_s: float) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(call_s), 33)
    # Until anything is known, which is after a batch, all are; then one in 16, of the batches that are looked at. Each
    # batch is timed as a whole.
    each, batches = 3, 2 * (COUNT / 33 + 1)
    if call_s < SHORT_CALL_S:
        assert each * 33 <= clock.readings <= each * (33 + COUNT / 16) + batches
    else:
        assert each * COUNT <= clock.readings <= each * COUNT + batches
    assert step.element_s == pytest.approx(call_s, rel=0.05)


@pytest.mark.parametrize("batch_size", [5, 33])
@pytest.mark.parametrize("index", [160, 500, 509, 512, 1000])
def test_one_long_call_among_short_ones_counts_once_whether_it_was_timed_or_not(
    monkeypatch: pytest.MonkeyPatch, index: int, batch_size: int
) -> None:
    clock = Clock(monkeypatch)
    step = step_of(clock, clock.function(2e-6, {index: 0.6}), batch_size)
    assert step.seconds == pytest.approx(0.6 + COUNT * 2e-6, rel=0.01)


def new_times(step_count: int = 1) -> Times:
    return Times(memoryview(array("q", bytes(8 * word_count(step_count)))))


def noted(times: Times) -> Noted:
    return Noted.of(np.array(times.words))


def test_long_putting_away_is_timed_each_time_for_it_varies_as_calls_do() -> None:
    times = new_times()
    times.sample()
    times.note_calls(0, 4, 8e-3, timed=4, call_s=4e-6, put_s=4 * SHORT_CALL_S)
    assert times.turn(0) == (0, 1)
    times.note_calls(0, 4, 8e-3, timed=4, call_s=4e-6, put_s=SHORT_CALL_S)
    assert times.turn(0)[1] > 1


def test_putting_away_what_short_calls_gave_is_not_their_time() -> None:
    times = new_times()
    times.sample()
    times.note_calls(0, 32, 32 * 4e-6, 2, 2 * 1e-6, 2 * 3e-6)
    times.note_calls(0, 8, 8 * 4e-6, 0, 0.0, 0.0)  # none of these was timed
    times.end(0.0, 160e-6, 40)
    assert noted(times).steps == ((40, pytest.approx(40e-6, rel=0.01)),)
    times = new_times()
    times.sample()
    times.note_calls(0, 16, 1e-3, 1, 1e-6, 1e-3)  # a pause while one was put away
    times.end(0.0, 1e-3, 16)
    assert noted(times).steps[0][1] < 10e-6


class Unit(NamedTuple):
    """How long a unit of four rows takes by the clock and by the CPU, and how long its steps do."""

    wall_s: float
    cpu_s: float
    steps_s: tuple[float, ...] = ()


def run(monkeypatch: pytest.MonkeyPatch, units: list[Unit], pause_s: float = 0.0) -> tuple[int, Noted]:
    """How often the CPU is asked, and what is noted. Where a unit does not say so, half of it is its one step's."""
    now, cpu, reads = 0.0, 0.0, 0

    def cpu_time() -> float:
        nonlocal reads
        reads += 1
        return cpu

    monkeypatch.setattr(_times, "time", SimpleNamespace(thread_time=cpu_time))
    times = new_times(len(units[0].steps_s) or 1)
    for wall_s, cpu_s, steps_s in units:
        if now >= times.due_s:
            times.sample()
        began, now, cpu = now, now + wall_s, cpu + cpu_s
        for step, seconds in enumerate(steps_s or (wall_s / 2,)):
            times.note(step, 4, seconds)
        times.end(began, now, 4)
        now += pause_s
    return reads, noted(times)


@pytest.mark.parametrize("pause_s", [0.0, 1e-4, 1.0])
def test_of_short_units_one_is_looked_at_every_few_milliseconds(
    monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    count = 800
    reads, found = run(monkeypatch, [Unit(1e-4, 0.5e-4)] * count, pause_s)
    looks = FIRST_COUNT + (count - FIRST_COUNT) / (1 + SHORT_UNIT_S // (1e-4 + pause_s))
    assert reads == pytest.approx(2 * looks, rel=0.1, abs=4)
    assert (found.rows, found.steps) == (4 * count, ((4 * count, pytest.approx(40e-3, rel=1e-3)),))
    assert (found.wall_s, found.cpu_s) == (pytest.approx(80e-3, rel=1e-3), pytest.approx(40e-3, rel=1e-3))


def test_the_longer_it_goes_on_the_fewer_short_units_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, (least_s, most_s) = Unit(1e-4, 0.5e-4), SAMPLED_EVERY_S
    looks = [run(monkeypatch, [unit] * count)[0] / 2 for count in (10_000, 40_000, 50_000)]
    assert least_s < 1.0 / looks[0] < most_s
    assert 1.0 / (looks[2] - looks[1]) == pytest.approx(most_s, rel=0.05)


def test_memory_is_looked_at_between_batches_where_that_was_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    base, looks = _memory.memory_now(), 0

    def memory_now(_: object) -> _memory.Memory:
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


def test_of_long_units_and_those_after_them_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    units = [Unit(1e-4, 1e-4), Unit(8e-3, 1e-5)] * 100  # what is short computes, and what is long waits
    reads, found = run(monkeypatch, units, 2 * max(SAMPLED_EVERY_S))
    assert reads == 2 * 200
    assert found.cpu_s == pytest.approx(100 * (1e-4 + 1e-5), rel=1e-3)
    assert found.steps == ((800, pytest.approx(100 * 4.05e-3, rel=1e-3)),)


def test_a_unit_that_turns_out_long_is_taken_to_have_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = run(monkeypatch, [Unit(1e-4, 1e-4)] * 9 + [Unit(5.0, 0.0)])
    assert found.wall_s == pytest.approx(5.0009)
    assert found.cpu_s == pytest.approx(9e-4 + SHORT_UNIT_S)


def test_what_no_step_explains_of_a_unit_that_turned_out_long_is_shared_as_in_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Unit(1e-4, 1e-4, (2e-5, 8e-5))
    stalled, waiting = Unit(1.0, 0.0, (0.6, 1e-5)), Unit(1.0, 0.0, (1e-4, 1e-4))
    _, found = run(monkeypatch, [*[usual] * FIRST_COUNT, stalled, usual, waiting])
    first, second = found.steps
    assert first == (
        4 * (FIRST_COUNT + 3),
        pytest.approx((FIRST_COUNT + 1) * 2e-5 + 0.6 + 0.2 * 0.4 + 0.2 * 1.0, rel=1e-3),
    )
    assert second == (4 * (FIRST_COUNT + 3), pytest.approx((FIRST_COUNT + 1) * 8e-5 + 0.8 * 0.4 + 0.8 * 1.0, rel=1e-3))


def test_a_short_unit_stands_for_those_since_the_last_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first few make what the others only read, which is not known beforehand.
    makes, reads = Unit(3e-3, 3e-3, (1e-6, 3e-3)), Unit(1e-4, 1e-4, (1e-4, 0.0))
    _, found = run(monkeypatch, [makes] * FIRST_COUNT + [reads] * (1000 - FIRST_COUNT))
    first, second = found.steps
    assert first[1] == pytest.approx(0.0992, rel=0.02)
    assert second[1] == pytest.approx(FIRST_COUNT * 3e-3, rel=0.02)
