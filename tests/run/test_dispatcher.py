"""What the pool and the fleet share: each unit is settled once, a bug fails all of them, the last client ends it."""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from penstock.base._errors import LoaderError
from penstock.lower._program import Unit, UnitResult
from penstock.run._dispatcher import Dispatcher, DispatcherClient, Job, Notes, Task
from penstock.run.pool._registry import Registry
from tests.waits import DEADLINE_S

registry: Registry[Any] = Registry()


class Echo(Dispatcher[Task]):
    """Gives units back as they came, but those of batch 13, which keep it from going on."""

    def __init__(self) -> None:
        super().__init__("penstock-echo", registry)
        self.jobs: list[Job[Task]] = []
        self.has_ended = False
        self._thread.start()

    def _turn(self) -> None:
        if not (self._failing or self.jobs):
            self._inbox.get()()
        self._take_posts()
        self._settle_failing()
        jobs, self.jobs = self.jobs, []
        for number, job in enumerate(jobs):
            if job.unit.index == 13:
                self.jobs = jobs[number:]
                raise ZeroDivisionError("batch 13")
            self._settle(job, UnitResult())

    def _note_bug(self) -> str:
        return "The echo"

    def _await_worker(self, task: Task, jobs: Sequence[Job[Task]]) -> None:
        self.jobs += jobs

    def _give_up(self) -> Iterable[Job[Task]]:
        jobs, self.jobs = self.jobs, []
        return jobs

    def leave(self, client: DispatcherClient[Task]) -> None:
        self._let_go(client)

    def _end(self) -> None:
        self.has_ended = True


class Receiver:
    """Notes the results of units. A unit of batch 1 is followed by two more."""

    def __init__(self, count: int) -> None:
        self.results: list[tuple[int, str]] = []
        self._count = count
        self.is_done = threading.Event()

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        return "a unit"

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        self.results.append((unit.index, str(result.error or "")))
        if len(self.results) == self._count:
            self.is_done.set()
        return [unit_of(2), unit_of(3)] if unit.index == 1 else []


def unit_of(index: int) -> Unit:
    return Unit(0, index, 0, 1, 0, 1)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    if echo.client_count:
        DispatcherClient(echo, []).leave()
    echo._thread.join(DEADLINE_S)


def run(echo: Echo, indices: Sequence[int], count: int) -> list[tuple[int, str]]:
    """Submits units, and returns the results of that many."""
    receiver = Receiver(count)
    task = Task(1.0, receiver, Notes([]))
    echo.post(lambda: echo.submit(task, [unit_of(index) for index in indices]))
    assert receiver.is_done.wait(DEADLINE_S)
    assert task.unfinished_count == 0
    return receiver.results


def test_units_that_follow_from_a_result_run_after_those_that_wait(echo: Echo) -> None:
    assert run(echo, [1, 7], 4) == [(1, ""), (7, ""), (2, ""), (3, "")]


def test_after_a_bug_each_unit_fails_once_with_the_reason(echo: Echo) -> None:
    reason = "The echo failed: ZeroDivisionError: batch 13."
    assert run(echo, [5, 13, 6], 3) == [(5, ""), (13, reason), (6, reason)]
    assert run(echo, [8], 1) == [(8, reason)]
    assert isinstance(echo._failure, LoaderError)


def test_the_last_client_is_gone_when_the_workers_have_ended(echo: Echo) -> None:
    echo.client_count = 2
    first, last = DispatcherClient(echo, []), DispatcherClient(echo, [])
    first.leave()
    assert first.join(DEADLINE_S)
    assert not echo.has_ended
    last.leave()
    last.leave()
    assert last.join(DEADLINE_S)
    assert echo.has_ended


def test_a_note_of_the_same_topic_is_kept_once(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    notes = Notes(lines)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        for text in ("worker 1 ended", "worker 2 ended"):
            notes.add(text, topic="ends")
    assert lines == caplog.messages == ["worker 1 ended"]
