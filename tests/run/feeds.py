"""What tests of streams that run share: a generator that notes what befalls it, and short ways to say things."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing._shared import SharedLog, SharedSignal
from tests.waits import DEADLINE_S

EXECUTORS = ("inline", "threads", "processes")
INT64 = ps.ArraySpec((), "int64")
BEGUN, ENDED, BLOCKED = -1, -2, -3


EVERY_EXECUTOR = pytest.mark.parametrize(
    "executor", [pytest.param(name, marks=pytest.mark.slow if name == "processes" else ()) for name in EXECUTORS]
)


class Watched:
    """A generator function of integers that notes what befalls it, in whichever process it runs.

    Args:
        count: How many it yields; None for without end.
        fails_at: The number of the element in whose place it raises, as long as `broken` is given.
        blocks_at: The number of the element before which it waits for the gate.
    """

    def __init__(self, count: int | None, fails_at: int | None = None, blocks_at: int | None = None) -> None:
        self._count, self._fails_at, self._blocks_at = count, fails_at, blocks_at
        self._log, self.gate, self.broken, self.blocked = SharedLog(), SharedSignal(), SharedSignal(), SharedSignal()
        self.broken.give()

    def __call__(self) -> Iterator[int]:
        self._note(BEGUN)
        try:
            for i in itertools.count() if self._count is None else range(self._count):
                if i == self._fails_at and self.broken.wait(0):
                    raise KeyError(f"record {i}")
                if i == self._blocks_at and not self.gate.wait(0):
                    self._note(BLOCKED)
                    self.blocked.give()
                    assert self.gate.wait(DEADLINE_S), "nobody opened the gate"
                yield i
        finally:
            self._note(ENDED)

    def _note(self, event: int) -> None:
        self._log.append(np.array([event], np.int64))

    def times(self, event: int) -> int:
        return int((self._log.values() == event).sum())


def stream(watched: Any, **options: Any) -> ps.Dataset:
    return ps.from_generator(watched, element_spec=INT64, **options)


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


def batches_of(size: int, *numbers: int) -> list[list[int]]:
    values = list(range(*numbers))
    return [values[start : start + size] for start in range(0, len(values), size)]
