"""The times of units and steps: workers note them at little cost, and a report adds them up.

Each unit, each read and each chunk of calls is timed, never one call. See design/0012-reports.md.
"""

import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._retries import RetryBudget
from penstock.base._traffic import Traffic

# The words: rows; nanoseconds by the clock and by the CPU; six of `Traffic`, its seconds in nanoseconds. And for each
# step its elements and its nanoseconds.
_ROWS, _WALL, _CPU, _TRAFFIC, _HEAD = 0, 1, 2, 3, 9
_STEP: Final = 2


def word_count(step_count: int) -> int:
    """The number of words for the times of a worker."""
    return _HEAD + _STEP * step_count


@final
class Times:
    """The times of one worker for one plan, in words that another process may read; see `Noted.of`.

    Args:
        words: `word_count` integers, 0 at first.
    """

    __slots__ = ("_cpu_began_s", "words")

    def __init__(self, words: "memoryview[int]") -> None:
        self.words: memoryview[int] = words
        self._cpu_began_s = 0.0

    def begin(self) -> None:
        """Notes that a unit begins."""
        self._cpu_began_s = time.thread_time()

    def end(self, wall_s: float, row_count: int) -> None:
        """Notes the rows and the time of a unit."""
        words = self.words
        words[_ROWS] += row_count
        words[_WALL] += int(wall_s * 1e9)
        words[_CPU] += int((time.thread_time() - self._cpu_began_s) * 1e9)

    def note_traffic(self, budget: RetryBudget) -> None:
        """Notes the requests of a unit to servers."""
        seconds = int(budget.request_s * 1e9), int(budget.waited_s * 1e9)
        counts = budget.request_count, budget.repeat_count, budget.fetched_nbytes, budget.needed_nbytes
        for place, count in enumerate((*counts, *seconds), _TRAFFIC):
            self.words[place] += count

    def note(self, step: int, count: int, seconds: float) -> None:
        """Notes elements and time of a step, by its number in the order of `walk`."""
        place = _HEAD + _STEP * step
        self.words[place] += count
        self.words[place + 1] += int(seconds * 1e9)


@final
@dataclass(frozen=True)
class Noted:
    """The times of all units of some workers."""

    rows: int
    wall_s: float
    """By the clock."""
    cpu_s: float
    """By the CPU."""
    steps: tuple[tuple[int, float], ...]
    """For each step, in the order of `walk`: its elements and its time."""
    traffic: Traffic
    """Requests to servers."""

    @classmethod
    def of(cls, words: npt.NDArray[np.int64]) -> "Noted":
        """Reads the words of a worker, or the sums of several."""
        rows, wall_ns, cpu_ns, requests, repeats, fetched, needed, request_ns, waited_ns = words[:_HEAD].tolist()
        traffic = Traffic(requests, repeats, fetched, needed, request_ns / 1e9, waited_ns / 1e9)
        steps = tuple((count, step_ns / 1e9) for count, step_ns in words[_HEAD:].reshape(-1, _STEP).tolist())
        return cls(rows, wall_ns / 1e9, cpu_ns / 1e9, steps, traffic)
