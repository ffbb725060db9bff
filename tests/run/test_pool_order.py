"""The pool hears of the units of one worker in the order in which that worker did them, however its looks fall."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.lower._program import Unit
from penstock.run.pool._client import Job
from penstock.run.pool._pool import Pool
from penstock.run.pool._task_queue import CLAIMED, DONE, FREE, TOLD
from penstock.run.pool._worker import Message

PLACE_COUNT = 3
"""Of the board, as far as it is looked at here."""


class Looked:
    """Stands for a board while a worker goes on between any two places that the pool looks at."""

    def __init__(self, states: list[int], steps: dict[int, list[tuple[int, int]]]) -> None:
        self._states = states
        self._steps = steps
        self.look_count = 0

    def places(self, state: int) -> list[int]:
        found = []
        for place in range(PLACE_COUNT):
            for done, to in self._steps.pop(self.look_count, ()):
                self._states[done] = to
            self.look_count += 1
            if self._states[place] == state:
                found.append(place)
        return found

    def owner(self, place: int) -> int:
        return 0

    def free(self, place: int) -> None:
        self._states[place] = FREE


@pytest.mark.slow
@pytest.mark.parametrize("places", [(0, 2), (2, 0)], ids=["one after the other", "where the board begins again"])
@pytest.mark.parametrize("first", [DONE, TOLD], ids=["done", "told"])
@pytest.mark.parametrize("second", [DONE, TOLD], ids=["done", "told"])
def test_what_was_done_first_is_heard_of_first_whenever_the_pool_looks(
    places: tuple[int, int], first: int, second: int
) -> None:
    heard: list[int] = []

    def finished(unit: Unit, error: BaseException | None) -> None:
        heard.append(unit.generation)

    pool = Pool()  # its own thread has nothing to do, and sleeps
    board = pool._board
    plan: Any = SimpleNamespace(
        closed_at=0.0, unfinished_count=0, receiver=SimpleNamespace(finished=finished, told=lambda unit, payload: None)
    )
    look_count = 5 * PLACE_COUNT  # more than one turn has
    try:
        for begin in range(look_count):
            for end in range(begin, look_count):
                heard.clear()
                jobs = [Job(plan, Unit(0, 0, 0, 1, slot=0, generation=generation)) for generation in (1, 2)]
                pool._jobs = dict(zip(places, jobs, strict=True))
                pool._told = {
                    place: Message("made", place, None)
                    for place, state in zip(places, (first, second), strict=True)
                    if state == TOLD
                }
                states = [FREE] * PLACE_COUNT
                states[places[0]] = states[places[1]] = CLAIMED
                steps: dict[int, list[tuple[int, int]]] = {}
                steps.setdefault(begin, []).append((places[0], first))
                steps.setdefault(end, []).append((places[1], second))
                pool._board = looked = Looked(states, steps)  # type: ignore[assignment]
                while looked.look_count <= look_count or pool._jobs:
                    pool._collect()
                assert heard == [1, 2], (begin, end)
    finally:
        pool._board = board
        pool.tenant_count = 0
        pool.post(lambda: None)
        pool._thread.join()


@pytest.mark.slow
def test_streams_continue_where_the_task_queue_wraps_around() -> None:
    """Units have places on a board of 4,096, a circle: those of a stream are heard of in order all the same."""

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
    # A worker may say what it has to say between two looks at the board.
    with ps.range(12_000).map(lambda x: f"n{x}").batch(6).loader("processes", workers=4) as loader:
        for number, batch in enumerate(loader):
            assert batch.tolist() == [f"n{6 * number + row}" for row in range(6)]
