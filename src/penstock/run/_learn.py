"""Runs functions once, before the first batch, to find what they return. Nothing else runs one so early.

They run in a worker process if the plan has one, where neither a crash nor a hang ends the program. Generators run
there too. One that cannot travel stays in this process, and its first elements travel in its place (`_heads.py`).
"""

import contextlib
import io
import itertools
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import DeadlineError, PenstockError, TravelError
from penstock.lower._analysis import Analysis
from penstock.lower._program import Unit, UnitResult
from penstock.memory._rows import Leaves
from penstock.plan._cache import Cache
from penstock.plan._map import adopt
from penstock.plan._node import Node
from penstock.plan._rewritten import rewritten
from penstock.plan._stream import Generate
from penstock.plan._text import place_of
from penstock.run._choose import HAS_PROCESSES
from penstock.run._crew import Crew, leave
from penstock.run._heads import HEADS_NBYTES, Head, MoreNeededError
from penstock.run.pool._payload import pack
from penstock.run.pool._pool import pool_deadline_s
from penstock.run.pool._remote_error import unpickled
from penstock.run.pool._worker import Probe


def learn(facts: Analysis, crew: Crew, *, may_stay: bool) -> TravelError | None:
    """Finds the specs of a plan's functions where its workers are, for functions may crash or hang.

    Args:
        facts: The plan.
        crew: The workers that were chosen.
        may_stay: The plan may run in this process instead. Then it is tried whether a worker can load it at all, also
            where all specs are known.

    Returns:
        Why the plan cannot travel to another process, if it may stay; else None.

    Raises:
        TravelError: The plan cannot travel, and may not stay.
        PenstockError: The error of a function, or the end of its workers.
    """
    if not HAS_PROCESSES or crew.reach in (None, "thread"):
        _learn_here(facts, may_fail=may_stay or crew.reach == "thread")
        return None
    staying = [each for each in facts.generators if not each.data.travels]
    try:
        if staying:
            _learn_from_heads(facts, staying, crew)
        elif (may_stay and pack(facts.plan, facts.plan).makes_itself) or not facts.is_learnt:
            _learn_in_a_worker(facts.plan, crew)
    except TravelError as error:
        if not may_stay:
            raise
        if len(staying) < len(facts.generators) and not facts.is_learnt:
            with contextlib.suppress(TravelError):  # it may be a generator that cannot
                _learn_from_heads(facts, facts.generators, crew)
                return error
        leave([crew])
        _learn_here(facts, may_fail=True)
        return error
    return None


def learn_held(caches: Sequence[Cache], crew: Crew) -> bool:
    """Finds the specs of caches in datasets that functions hold. Returns whether it found one."""
    for cache in caches:
        with contextlib.suppress(PenstockError):  # the step that reads it raises it again
            _learn_in_a_worker(cache, crew)
            cache.spec  # noqa: B018  # known from now on
    return any(cache.known_spec for cache in caches)


def _learn_here(facts: Analysis, *, may_fail: bool) -> None:
    if not may_fail:
        facts.learn()
        return
    firsts: dict[int, Leaves] = {}
    for each in reversed(facts.functions):
        with contextlib.suppress(Exception):  # an element that fails here fails again in its place
            each.learn_by(firsts, takes_any=bool(facts.guards))  # also with a spec, which says nothing of generators


def _learn_from_heads(facts: Analysis, generators: Sequence[Generate], crew: Crew) -> None:
    """Finds the specs of functions in a worker, and reads some generators here as far as the functions need.

    Raises:
        TravelError: The rest cannot travel.
    """
    limit_nbytes = min(HEADS_NBYTES, (crew.memory_limit or math.inf) // 4)
    chunks: list[npt.NDArray[np.uint8]] = []
    with contextlib.ExitStack() as stack:
        heads = {id(each): Head(each, chunks) for each in generators}
        for head in heads.values():
            stack.callback(head.close)
        for doubling in itertools.count():
            left_nbytes, chunk = limit_nbytes - sum(each.nbytes for each in chunks), io.BytesIO()
            stops = [(place + 1) * left_nbytes // len(heads) for place in range(len(heads))]
            grow = [
                head.read(1 << doubling, chunk, int(stop)) for head, stop in zip(heads.values(), stops, strict=True)
            ]
            chunks.append(np.frombuffer(chunk.getbuffer(), np.uint8))
            made = {id(each): replace(each, data=heads[id(each)]) for each in generators}
            with contextlib.suppress(MoreNeededError):
                _learn_in_a_worker(rewritten(facts.plan, made=made), crew)
            if facts.is_learnt or not any(grow):
                break
    if not facts.is_learnt:
        facts.learn()  # here: functions that give nothing for so many elements


def _learn_in_a_worker(plan: Node, crew: Crew) -> None:
    probe = Probe(plan, crew.memory_limit or math.inf)
    payload, answer = pack(plan, probe), _Answer(plan)
    client = crew.join_pool()
    task = client.open(payload, None, crew.timeout_s, answer)
    unit = Unit(epoch=0, index=0, start=0, stop=1, slot=0, generation=1)
    client.pool.post(lambda: client.pool.submit(task, [unit]))
    # The pool ends the wait, because it finishes every unit; or the deadline does, if a dead worker stays.
    limit_s = pool_deadline_s(crew.timeout_s)
    try:
        result = answer.result.result(min(limit_s, threading.TIMEOUT_MAX))
    except TimeoutError:
        raise DeadlineError(
            f"No worker process said within {limit_s:g} s what the functions of the plan return. Say it "
            "yourself: map(fn, element_spec=...)."
        ) from None
    error, rows = result.error, result.rows
    del answer, result
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback holds this frame, and so the caller
    adopt(plan, unpickled(rows[0]))
    client.close(task)


@final
class _Answer:
    """Takes the specs that a worker finds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.result: Future[UnitResult] = Future()

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        if status[0]:
            return place_of(status, self._node)
        return "the plan, which it loads to see what its functions return"

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        self.result.set_result(result)
        return ()
