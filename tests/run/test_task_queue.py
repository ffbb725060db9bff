"""Units on their way to workers: each is taken once, in order, and none is lost with a worker."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import native
from penstock.lower._program import Unit
from penstock.memory._shared import SharedFile
from penstock.memory._slot import count_place, own_header
from penstock.run._dispatcher import Job, Notes
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import Pool
from penstock.run.pool._task_queue import ANSWER, GROUP_COUNT, TAKING, UNIT, TaskQueue, own_words, unpacked
from penstock.run.pool._tasks import PoolTask

UNITS = [
    Unit(epoch=7, index=1 << 40, start=2, stop=5, slot=3, generation=9),
    Unit(0, 1, 2, 3, 4, 5, (6, 7, 8), 9, 10, (11, 12), True),
]


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    queue = TaskQueue()
    yield queue
    queue.close()


def take(queue: TaskQueue) -> tuple[int, int, Unit]:
    """Takes a unit as a worker does."""
    return unpacked(os.read(queue.descriptors[0], UNIT.size))


def test_units_arrive_in_order_and_unchanged(queue: TaskQueue) -> None:
    assert queue.send([(1, 4, UNITS[0]), (2, 5, UNITS[1])])
    assert [take(queue), take(queue)] == [(1, 4, UNITS[0]), (2, 5, UNITS[1])]
    with pytest.raises(BlockingIOError):
        take(queue)


def test_units_that_no_worker_took_come_back_oldest_first(queue: TaskQueue) -> None:
    queue.send([(number, 1, UNITS[0]) for number in range(1, 5)])
    take(queue)
    assert queue.take_back() == [2, 3, 4]
    assert queue.take_back() == []


def test_a_full_queue_takes_a_group_or_nothing(queue: TaskQueue) -> None:
    group, sent_count = [(1, 1, UNITS[0])] * GROUP_COUNT, 0
    while queue.send(group):
        sent_count += GROUP_COUNT
    assert len(queue.take_back()) == sent_count
    assert queue.send(group)


def test_answers_arrive_in_the_order_of_each_worker(queue: TaskQueue) -> None:
    assert list(queue.answers()) == []
    for number, worker in ((3, 0), (1, 1), (4, 0)):
        os.write(queue.descriptors[1], ANSWER.pack(number, worker, number == 1))
    assert list(queue.answers()) == [(3, 0, False), (1, 1, True), (4, 0, False)]


@pytest.fixture
def pool() -> Iterator[Any]:
    pool: Any = Pool()  # its own thread has nothing to do, and sleeps
    pool._worker_count = 0
    yield pool
    pool._jobs.clear()
    pool._workers.clear()
    pool._waiting.clear()
    pool.client_count = 0
    pool.post(lambda: None)
    pool._thread.join()


def workers_at(pool: Any, dead: int, alive: int) -> Any:
    """Gives the pool a dead worker and a live one with these claims, and three units, of which number 1 is taken."""
    for number, claim in enumerate((dead, alive)):
        own_words(pool._queue._words, number)[0][0] = claim
        pool._workers[number] = SimpleNamespace(number=number, ending=None if number else "was killed")
    task: Any = SimpleNamespace(number=1)
    pool._jobs = {number: Job(task, UNITS[0]) for number in (1, 2, 3)}
    for number, job in pool._jobs.items():
        job.number = number
    pool._queue.send([(number, 1, UNITS[0]) for number in pool._jobs])
    take(pool._queue)
    return pool._workers[0]


def numbers(jobs: Any) -> list[int]:
    return [job.number for job in jobs]


def test_a_dead_worker_held_the_unit_of_its_claim(pool: Any) -> None:
    assert numbers(pool._held_by(workers_at(pool, dead=1, alive=0))) == [1]
    assert sorted(pool._jobs) == [2, 3]


def test_a_dead_worker_whose_unit_is_answered_held_none(pool: Any) -> None:
    assert pool._held_by(workers_at(pool, dead=9, alive=1)) == []
    assert sorted(pool._jobs) == [1, 2, 3]


def test_a_unit_that_a_worker_took_and_did_not_claim_before_its_end_is_sent_first(pool: Any) -> None:
    assert pool._held_by(workers_at(pool, dead=TAKING, alive=0)) == []
    assert numbers(pool._waiting) == [1, 2, 3]
    assert pool._jobs == {}


def test_a_unit_that_a_live_worker_has_is_not_sent_again(pool: Any) -> None:
    assert pool._held_by(workers_at(pool, dead=TAKING, alive=1)) == []
    assert (numbers(pool._waiting), list(pool._jobs)) == ([2, 3], [1])


def test_while_a_live_worker_takes_a_unit_it_is_not_known_what_the_dead_one_took(pool: Any) -> None:
    assert pool._held_by(workers_at(pool, dead=TAKING, alive=TAKING)) is None
    assert (numbers(pool._waiting), list(pool._jobs)) == ([2, 3], [1])


def test_a_worker_that_answered_and_died_before_it_counted_hides_no_wake_up(pool: Any) -> None:
    worker = workers_at(pool, dead=1, alive=2)
    settled: list[int] = []
    task = one_task(settled)
    for job in pool._jobs.values():
        job.task = task
    pool._tasks = {1: task}
    task.unfinished_count = 3
    task.count([job.unit for job in pool._jobs.values()])
    os.write(pool._queue.descriptors[1], ANSWER.pack(1, 0, False))
    worker.reap, pool._start = lambda: True, lambda number: None
    worker.is_ready, worker.asked_at = True, 0.0
    pool._ending.append(worker)
    pool._worker_count = 1
    pool._bury(worker)
    assert settled == [1]
    place = count_place(UNITS[0].slot)
    assert [native.count_down(task.header, place, 1) <= 0 for _ in range(2)] == [True, True]


def one_task(settled: list[int]) -> Any:
    """A task that notes each unit that is settled."""

    def finished(unit: Unit, result: Any) -> tuple[()]:
        settled.append(1)
        return ()

    payload: Any = PlanPayload(b"", ())
    receiver: Any = SimpleNamespace(finished=finished)
    task = PoolTask(payload, None, 1.0, receiver, None, SharedFile(), Notes([]), wakes_each=False)
    task.header = own_header(4)
    return task
