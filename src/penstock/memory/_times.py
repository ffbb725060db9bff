"""The times of units and steps: workers note them at little cost, and a report adds them up.

Each unit, each read and each chunk of calls is timed, and elements are always counted. Of short calls one in
`TIMED_EVERY` is timed alone. See design/0012-reports.md.
"""

import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._retries import RetryBudget
from penstock.base._traffic import Traffic

SHORT_CALL_S: Final = 50e-6
"""A function whose calls, with storing their results, take less is short."""
TIMED_EVERY: Final = 16
"""One in this number of short calls is timed."""

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

    __slots__ = ("_calls", "_cpu_began_s", "_short", "words")

    def __init__(self, words: "memoryview[int]") -> None:
        self.words: memoryview[int] = words
        self._cpu_began_s = 0.0
        self._calls: dict[int, tuple[float, float]] = {}
        """For each function: the last times of a call and of storing its result."""
        self._short: set[int] = set()
        """The steps with short calls."""

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

    def turn(self, step: int) -> tuple[int, int]:
        """Returns which calls of a step's function to time: the place of the first, and one in how many.

        Reading the clock twice takes 0.1 us, and several times that with cold caches. So a short call that is timed
        stands for others, at another place in each chunk: the first call of a chunk finds cold caches.
        """
        return (-self.words[_HEAD + _STEP * step] % TIMED_EVERY, TIMED_EVERY) if step in self._short else (0, 1)

    def note_calls(self, step: int, count: int, seconds: float, timed: int, call_s: float, put_s: float) -> None:
        """Notes the time of calls of a function, of which some were timed.

        The timed calls tell how long storing a result takes. The function has the other time, also that of a long call
        that was not timed.

        Args:
            step: The step's number.
            count: The calls.
            seconds: The time of all calls and of storing their results.
            timed: The number of timed calls; if 0, earlier ones stand for them.
            call_s: The time of the timed calls.
            put_s: The time of storing their results.
        """
        if timed:
            self._calls[step] = call_s / timed, put_s / timed
            (self._short.add if call_s + put_s < SHORT_CALL_S * timed else self._short.discard)(step)
        if timed < count:
            each_call_s, each_put_s = self._calls[step]
            share = each_call_s / (each_call_s + each_put_s) if each_call_s else 0.0
            call_s = max(seconds - each_put_s * count, seconds * share)  # storing one of them may have paused
        self.note(step, count, call_s)


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
