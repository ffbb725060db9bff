"""The times of units and steps: workers note them at little cost, and a report adds them up.

The clock is read for each unit, each read and each chunk of calls, and elements are always counted. More facts, such as
CPU time or the time of a single call, would cost too much in a short unit. So every few milliseconds one short unit is
*sampled*, and stands for the short units since the last sample. For long units, and for long steps within short units,
all times are kept. See design/0012-reports.md.
"""

import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

SHORT_UNIT_S: Final = 5e-3
"""Of shorter units, only some are sampled."""
SAMPLED_EVERY_S: Final = (5e-3, 20e-3)
"""The bounds of the interval between samples: short at first, longer in a long run."""
SLOWER_BY_S: Final = 1e-4
"""The growth of the interval with each sample, within these bounds."""
FIRST_COUNT: Final = 8
"""The first units are always sampled, because they often differ from the others."""
SHORT_CALL_S: Final = 50e-6
"""Shorter calls of functions, with storing their results, are sampled too, even within a sampled unit."""
TIMED_EVERY: Final = 16
"""One in this number is timed; of very short calls, one in four times this number."""
VERY_SHORT_CALL_S: Final = 10e-6
LONG_FACTOR: Final = 4
"""If calls took this factor more than the timed ones explain, another one was long."""

# The words: rows; nanoseconds of all short units; then, of long units, and of sampled ones and those that they stand
# for, nanoseconds by the clock and by the CPU; requests that were made again. And for each step its elements, and its
# nanoseconds within both.
_ROWS, _SHORT, _LONG, _SAMPLED, _REPEATS, _HEAD = 0, 1, 2, 4, 6, 7
_STEP: Final = 3


def word_count(step_count: int) -> int:
    """The number of words for the times of a worker."""
    return _HEAD + _STEP * step_count


@final
class Times:
    """The times of one worker for one plan, in words that another process may read; see `Noted.of`.

    Args:
        words: `word_count` integers, 0 at first.
    """

    __slots__ = (
        "_calls",
        "_count",
        "_cpu_began_s",
        "_cpu_share",
        "_noted",
        "_shares",
        "_unseen_s",
        "due_s",
        "is_sampled",
        "short",
        "words",
    )

    def __init__(self, words: "memoryview[int]") -> None:
        self.words: memoryview[int] = words
        self.is_sampled: bool = False
        """Whether the running unit is sampled."""
        self.due_s: float = 0.0
        """The time of the next sample: a unit that begins then or later calls `sample`."""
        self._count = 0
        """Sampled units."""
        self._unseen_s = 0.0
        """The time of short units since the last sample."""
        self._cpu_began_s = 0.0
        self._noted: list[tuple[int, float]] = []
        """The steps of the running unit, and their times."""
        self._cpu_share = 1.0
        self._shares: list[tuple[int, float]] = []
        """The steps of the last sampled unit, and their shares of its time."""
        self._calls: dict[int, tuple[float, float]] = {}
        """For each function: the last times of a call and of storing its result."""
        self.short: set[int] = set()
        """The steps with short calls: they have a `turn` in sampled units only."""

    def sample(self) -> None:
        """Samples the unit that begins."""
        self.is_sampled = True
        self._cpu_began_s = time.thread_time()

    def end(self, began_s: float, ended_s: float, row_count: int) -> None:
        """Notes the rows and the time of a unit, and if it is sampled or long, the times of its steps."""
        words, wall_s = self.words, ended_s - began_s
        words[_ROWS] += row_count
        is_long = wall_s >= SHORT_UNIT_S
        if not is_long:
            words[_SHORT] += int(wall_s * 1e9)
            if not self.is_sampled:
                self._unseen_s += wall_s
                return
        noted, self._noted = self._noted, []
        is_sampled, self.is_sampled = self.is_sampled, False
        if is_sampled:
            cpu_s = time.thread_time() - self._cpu_began_s
            if wall_s:
                self._cpu_share = min(1.0, cpu_s / wall_s)
                self._shares = [(step, seconds / wall_s) for step, seconds in noted]
        else:  # it was expected to be short; one noted step made it long, or waiting
            cpu_s = SHORT_UNIT_S * self._cpu_share
            rest_s = max(0.0, wall_s - sum(seconds for _, seconds in noted))
            noted += [(step, share * rest_s) for step, share in self._shares]
        place, factor_ns = _LONG, 1e9
        if not is_long:
            place, factor_ns = _SAMPLED, 1e9 * (1 + self._unseen_s / wall_s) if wall_s else 1e9
            self._unseen_s = 0.0
        words[place] += int(wall_s * factor_ns)
        words[place + 1] += int(cpu_s * factor_ns)
        for step, seconds in noted:
            words[_HEAD + _STEP * step + (1 if is_long else 2)] += int(seconds * factor_ns)
        self._count += 1
        if is_long or self._count < FIRST_COUNT:
            self.due_s = 0.0
        else:
            least_s, most_s = SAMPLED_EVERY_S
            self.due_s = ended_s + min(max(least_s, self._count * SLOWER_BY_S), most_s)

    def note_repeats(self, count: int) -> None:
        """Notes the number of requests that a unit repeated after a failure of a server."""
        self.words[_REPEATS] += count

    def count(self, step: int, count: int) -> None:
        """Notes the number of elements of a step, without a time."""
        self.words[_HEAD + _STEP * step] += count

    def note(self, step: int, count: int, seconds: float) -> None:
        """Notes elements and time of a step in this unit, by its number in the order of `walk`."""
        self.words[_HEAD + _STEP * step] += count
        if self.is_sampled or seconds >= SHORT_UNIT_S:
            self._noted.append((step, seconds))

    def turn(self, step: int) -> tuple[int, int]:
        """Returns which calls of a step's function to time: the place of the first, and one in how many.

        Reading the clock twice takes 0.1 us, and several times that with cold caches. So a short call that is timed
        stands for others, at another place in each chunk: the first call of a chunk finds cold caches.
        """
        if step not in self.short:
            return 0, 1
        every = TIMED_EVERY if sum(self._calls[step]) >= VERY_SHORT_CALL_S else 4 * TIMED_EVERY
        return -self.words[_HEAD + _STEP * step] % every, every

    def note_calls(self, step: int, count: int, seconds: float, timed: int, call_s: float, put_s: float) -> None:
        """Notes the time of calls of a function, of which some were timed.

        The timed calls divide the time of all calls between the function and storing its results. If all calls took far
        longer than the timed ones explain, another call was long. So a rare long call counts, timed or not.

        Args:
            step: The step's number.
            count: The calls.
            seconds: The time of all calls and of storing their results.
            timed: The number of timed calls; if 0, earlier ones stand for them.
            call_s: The time of the timed calls.
            put_s: The time of storing their results.
        """
        if not (timed or self.is_sampled) and seconds < SHORT_UNIT_S:
            self.words[_HEAD + _STEP * step] += count
            return
        if timed:
            self._calls[step] = call_s / timed, put_s / timed
            (self.short.add if call_s + put_s < SHORT_CALL_S * timed else self.short.discard)(step)
        if timed == count:
            self.note(step, count, call_s)
            return
        call_s, put_s = self._calls[step]
        usual_s = (call_s + put_s) * count
        if seconds > max(LONG_FACTOR * usual_s, SHORT_UNIT_S):
            self.note(step, count, seconds - put_s * count)
        else:
            self.note(step, count, seconds * call_s / (call_s + put_s) if usual_s else seconds)


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
    repeats: int
    """Repeated requests to servers."""

    @classmethod
    def of(cls, words: npt.NDArray[np.int64]) -> "Noted":
        """Reads the words of a worker, or the sums of several."""
        rows, short_ns, long_ns, long_cpu_ns, sampled_ns, sampled_cpu_ns, repeats = words[:_HEAD].tolist()
        factor = short_ns / sampled_ns if sampled_ns else 0.0
        steps = tuple(
            (count, (in_long_ns + factor * in_sampled_ns) / 1e9)
            for count, in_long_ns, in_sampled_ns in words[_HEAD:].reshape(-1, _STEP).tolist()
        )
        return cls(rows, (long_ns + short_ns) / 1e9, (long_cpu_ns + factor * sampled_cpu_ns) / 1e9, steps, repeats)
