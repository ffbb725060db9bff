"""The pool hands on the units of one worker in the order in which that worker did them, whenever it looks."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.lower._program import Unit, UnitResult
from penstock.run.pool._pool import Pool
from penstock.run.pool._task_queue import ANSWERED, CLAIMED, DONE, FREE
from penstock.run.pool._tasks import Job
from penstock.run.pool._worker import Message

PLACE_COUNT = 3
LOOK_COUNT = 3


class FakeQueue:
    """Stands for a task queue, whose worker finishes units just before the pool takes the lock."""

    def __init__(self, states: list[int], steps: dict[int, list[tuple[int, int]]]) -> None:
        self._states = states
        self._steps = steps
        self._is_locked = False
        self.look_count = 0

    def try_lock(self) -> bool:
        for place, state in self._steps.pop(self.look_count, ()):
            self._states[place] = state
        self.look_count += 1
        self._is_locked = True
        return True

    def unlock(self) -> None:
        self._is_locked = False

    def places(self, state: int) -> list[int]:
        assert self._is_locked  # or the worker could finish two units between two looks
        return [place for place in range(PLACE_COUNT) if self._states[place] == state]

    def owner(self, place: int) -> int:
        return 0

    def free(self, place: int) -> None:
        self._states[place] = FREE


ORDERS = {"one after the other": (0, 2), "where the queue begins again": (2, 0)}
ANSWERS = list(itertools.product((DONE, ANSWERED), repeat=2))
LOOKS = [(begin, end) for begin in range(LOOK_COUNT) for end in range(begin, LOOK_COUNT)]


def test_units_are_handed_on_in_their_order_whenever_the_pool_looks() -> None:
    heard: list[int] = []

    def finished(unit: Unit, result: UnitResult) -> list[Unit]:
        heard.append(unit.generation)
        return []

    pool = Pool()  # its own thread has nothing to do, and sleeps
    queue = pool._queue
    task: Any = SimpleNamespace(closed_at=0.0, unfinished_count=0, receiver=SimpleNamespace(finished=finished))
    try:
        for (name, places), answers, (begin, end) in itertools.product(ORDERS.items(), ANSWERS, LOOKS):
            heard.clear()
            jobs = [Job(task, Unit(0, 0, 0, 1, slot=0, generation=generation)) for generation in (1, 2)]
            pool._jobs = dict(zip(places, jobs, strict=True))
            pool._messages = {
                place: Message("made", place, ((), ()))
                for place, state in zip(places, answers, strict=True)
                if state == ANSWERED
            }
            states = [FREE] * PLACE_COUNT
            states[places[0]] = states[places[1]] = CLAIMED
            steps: dict[int, list[tuple[int, int]]] = {}
            steps.setdefault(begin, []).append((places[0], answers[0]))
            steps.setdefault(end, []).append((places[1], answers[1]))
            pool._queue = looked = FakeQueue(states, steps)  # type: ignore[assignment]
            while looked.look_count <= LOOK_COUNT and pool._jobs:
                pool._collect()
            assert heard == [1, 2], (name, answers, begin, end)
    finally:
        pool._queue = queue
        pool.client_count = 0
        pool.post(lambda: None)
        pool._thread.join()


@pytest.mark.slow
def test_streams_continue_where_the_task_queue_wraps_around() -> None:
    """Units have places in a queue of 4,096, a circle. Those of a stream are handed on in order all the same."""

    def rows() -> Any:
        for number in range(20):
            yield np.full(50, number), "text" * number

    spec = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), np.dtype("U")))
    dataset = ps.from_generator(rows, element_spec=spec).filter(lambda x: True).map(lambda x: x, element_spec=spec)
    with dataset.loader("processes", workers=2) as loader:
        for _ in range(240):
            assert [(int(array[0]), len(text)) for array, text in loader] == [(n, 4 * n) for n in range(20)]


@pytest.mark.slow
def test_text_of_units_that_end_while_the_pool_looks_belongs_to_its_element() -> None:
    # A worker may send its text between two looks at the queue.
    with ps.range(12_000).map(lambda x: f"n{x}").batch(6).loader("processes", workers=4) as loader:
        for number, batch in enumerate(loader):
            assert batch.tolist() == [f"n{6 * number + row}" for row in range(6)]
