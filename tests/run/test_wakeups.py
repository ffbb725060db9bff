"""Workers wake the pool once a slot. One that dies between its answer and its wake-up loses and doubles nothing."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock import native
from penstock.lower._program import Unit
from penstock.memory._shared import SharedFile
from penstock.memory._slot import count_place, own_header
from penstock.native import _numpy
from penstock.run._dispatcher import Notes
from penstock.run.pool import _pool
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._tasks import PoolTask
from tests.waits import PROGRAM_S

SCALAR = ps.ArraySpec((), "int64")
SLOT_COUNT = 4
counting = pytest.mark.skipif(native.count_down is _numpy.count_down, reason="NumPy's engine wakes for each unit")
NEVER_S = 1e6  # a tick that would hide a lost wake-up


def units(slot: int, generation: int, count: int) -> list[Unit]:
    return [Unit(0, generation, row, row + 1, slot, generation) for row in range(count)]


def task(*, wakes_each: bool = False) -> Any:
    payload: Any = PlanPayload(b"", ())
    receiver: Any = None
    shared = SharedFile()
    made: Any = PoolTask(payload, None, 1.0, receiver, None, shared, Notes([]), wakes_each=wakes_each)
    made.header = own_header(SLOT_COUNT)
    return made


def answer(task: Any, slot: int) -> bool:
    """Counts a unit as a worker does; returns whether it wakes the pool."""
    return native.count_down(task.header, count_place(slot), 1) <= 0


@counting
def test_the_last_unit_of_a_slot_wakes() -> None:
    each = task()
    each.count([*units(2, 7, 3), *units(0, 8, 2)])
    assert [answer(each, slot) for slot in (2, 0, 2, 0, 2)] == [False, False, False, True, True]
    each.count(units(2, 9, 2))
    assert [answer(each, 2) for _ in range(2)] == [False, True]


@counting
def test_a_worker_that_counts_late_costs_a_wake_up_and_hides_none() -> None:
    each = task()
    each.count(units(1, 3, 2))
    answer(each, 1)
    each.count(units(1, 4, 3))  # the last answer was read before it was counted
    answer(each, 1)
    assert [answer(each, 1) for _ in range(3)] == [False, True, True]


def test_units_that_run_again_wake_each() -> None:
    each = task()
    each.count(units(1, 3, 3))
    answer(each, 1)
    each.count(units(1, 3, 2))
    assert [answer(each, 1) for _ in range(4)] == [True] * 4


@counting
def test_after_a_death_each_answer_wakes_until_the_slot_is_filled_anew() -> None:
    each = task()
    each.count(units(1, 3, 3))
    each.wake_each()
    assert [answer(each, 1) for _ in range(2)] == [True, True]
    each.count(units(1, 4, 2))
    assert [answer(each, 1) for _ in range(2)] == [False, True]


def test_a_stream_and_a_loader_that_leaves_are_woken_by_each_unit() -> None:
    stream, leaving = task(wakes_each=True), task()
    leaving.closed_at = 1.0
    for each in (stream, leaving):
        each.count(units(1, 3, 3))
        assert [answer(each, 1) for _ in range(3)] == [True] * 3


@counting
def test_spare_units_are_those_beside_the_slot_that_wakes_next() -> None:
    each = task()
    assert each.spare_count == 0
    each.count([*units(0, 1, 4), *units(1, 2, 4)])
    assert each.spare_count == 4
    answer(each, 0)
    assert each.spare_count == 3
    each.wake_each()
    assert each.spare_count == 0
    stream = task(wakes_each=True)
    stream.unfinished_count = 2
    assert stream.spare_count == 1


def test_words_are_counted_one_by_one() -> None:
    words = memoryview(bytearray(24)).cast("q")
    words[1] = 5
    counted = [native.count_down(words, 1, 2) for _ in range(3)]
    assert counted == ([0, 0, 0] if native.count_down is _numpy.count_down else [3, 1, -1])
    assert (words[0], words[1], words[2]) == (0, counted[-1], 0)


@counting
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_a_batch_of_many_units_wakes_the_pool_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    turn = _pool.Pool._turn

    def counted(pool: Any) -> None:
        turns.append(len(pool._jobs))
        turn(pool)

    monkeypatch.setattr(_pool.Pool, "_turn", counted)
    monkeypatch.setattr(_pool, "_TICK_S", NEVER_S)
    # Until a batch is done, the time of a row is unknown, and a unit has four rows.
    with ps.range(768).map(lambda x: x, element_spec=SCALAR).batch(128).loader("processes", workers=2) as loader:
        assert [batch[0] for batch in loader] == [0, 128, 256, 384, 512, 640]
    assert max(turns) > 100
    assert len(turns) < 60


STEPS = {0: "answer", 16: "answered", 32: "counted", 48: "wake", 64: "woken"}  # the first unit of each of five slots


def dying(folder: Path) -> Any:
    """Makes a function whose worker is killed once at each step of an answer, from the unit of an element on."""

    def function(x: Any) -> Any:
        from penstock.run.pool import _worker

        begun: set[str] = getattr(_worker, "begun", set())

        def strike(step: str) -> None:
            if step in begun and not (folder / step).exists():
                (folder / step).touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def write(descriptor: int, data: bytes) -> int:
            before, after = ("answer", "answered") if len(data) == _worker.ANSWER.size else ("wake", "woken")
            strike(before)
            written = os.write(descriptor, data)
            strike(after)
            return written

        def count_down(*arguments: Any) -> int:
            left = native.count_down(*arguments)
            strike("counted")
            return left

        if int(x) in STEPS:
            begun.add(STEPS[int(x)])
            system: Any = {name: getattr(os, name) for name in dir(os)} | {"write": write}
            changed: Any = _worker
            changed.begun, changed.os, changed.native = begun, SimpleNamespace(**system), SimpleNamespace()
            changed.native.count_down = count_down
        return x

    return function


def batches_of(dataset: ps.Dataset, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns the batches of two workers in time, without a tick that would make up for a lost wake-up."""
    monkeypatch.setattr(_pool, "_TICK_S", NEVER_S)
    found: list[list[int]] = []

    def consume() -> None:
        with dataset.loader("processes", workers=2, timeout_s=8 * NEVER_S) as loader:
            found.extend(batch.tolist() for batch in loader)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    thread.join(PROGRAM_S)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_a_slot_of_more_units_than_the_pipes_hold_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ps.range(40_000).map(lambda x: x, element_spec=SCALAR).batch(20_000)  # 5,000 units each
    assert batches_of(dataset, monkeypatch) == [list(range(20_000)), list(range(20_000, 40_000))]


@pytest.mark.faults
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_workers_that_die_at_each_step_of_an_answer_lose_and_double_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ps.range(640).map(dying(tmp_path), element_spec=SCALAR).batch(16)
    assert batches_of(dataset, monkeypatch) == [list(range(start, start + 16)) for start in range(0, 640, 16)]
    assert {each.name for each in tmp_path.iterdir()} == set(STEPS.values())
