"""Measuring costs little: of short calls and short units few are timed, and what is said of all holds."""

import itertools
from array import array
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import penstock as ps
from penstock._plan import _map
from penstock._plan._reader import STEP_WORD, Trace

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
