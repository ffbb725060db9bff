"""How long units and steps take: noted by workers, for next to nothing, and added up by whoever wants a report.

A unit's own time is read off the clock always, and so is that of each read and of each chunk of calls; elements are
counted always. To know more, such as what the CPU did and what a single call took, costs more than a short unit can
pay. So of short units one is *sampled* every few milliseconds, and stands for those since the last; of long units
everything is kept, and what took long within a short one. See design/0014-cost-of-measuring.md.
"""

import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

SHORT_UNIT_S: Final = 5e-3
"""Of units that take less, a worker looks closely at some only."""
SAMPLED_EVERY_S: Final = (5e-3, 20e-3)
"""At one after so long: the first hundred milliseconds are to be told well, too, and an hour needs fewer."""
SLOWER_BY_S: Final = 1e-4
"""Times the number that were looked at, within these bounds."""
FIRST_COUNT: Final = 8
"""Units that are looked at in any case: the first are often not like the others."""
SHORT_CALL_S: Final = 50e-6
"""Calls of functions that take less, and putting away what they gave with them, are sampled too, even within a unit
that is."""
TIMED_EVERY: Final = 16
"""One in so many, and of very short calls one in four times as many."""
VERY_SHORT_CALL_S: Final = 10e-6
LONG_FACTOR: Final = 4
"""Where calls took so many times what those that were timed explain, another one of them was long."""

# The words: rows; nanoseconds of all short units; then, of long units, and of sampled ones and those that they stand
# for, nanoseconds by the clock and by the CPU; requests that were made again. And for each step its elements, and its
# nanoseconds within both.
_ROWS, _SHORT, _LONG, _SAMPLED, _REPEATS, _HEAD = 0, 1, 2, 4, 6, 7
_STEP: Final = 3


def word_count(step_count: int) -> int:
    """How many words a worker has for its times, in a plan of so many steps."""
    return _HEAD + _STEP * step_count


@final
class Times:
    """What one worker notes of one plan, in words that another process may look at; see `Noted.of`.

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
        """Whether the unit that runs is looked at closely."""
        self.due_s: float = 0.0
        """When a unit is to be looked at again: one that begins then or later is said to `sample`."""
        self._count = 0
        """Units that were looked at."""
        self._unseen_s = 0.0
        """What short units took since the last that was sampled."""
        self._cpu_began_s = 0.0
        self._noted: list[tuple[int, float]] = []
        """The steps of the unit that runs, and how long they took."""
        self._cpu_share = 1.0
        self._shares: list[tuple[int, float]] = []
        """Of the last unit that was looked at closely: the steps, and how much of its time they took."""
        self._calls: dict[int, tuple[float, float]] = {}
        """Of functions: how long a call takes, and putting away what it gave, when last timed."""
        self.short: set[int] = set()
        """Of which steps that is short: they have a `turn` in units that are looked at closely, and in no others."""

    def sample(self) -> None:
        """A unit begins that is due."""
        self.is_sampled = True
        self._cpu_began_s = time.thread_time()

    def end(self, began_s: float, ended_s: float, row_count: int) -> None:
        """Notes a unit's rows and its time, and, where that is of interest, what it went into."""
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
        else:  # it was expected to be short: what made it long was one step, which was noted, or waiting
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
        """Notes how many requests a unit made again, because a server failed for a moment."""
        self.words[_REPEATS] += count

    def count(self, step: int, count: int) -> None:
        """Notes how many elements a step gave, and of their time nothing."""
        self.words[_HEAD + _STEP * step] += count

    def note(self, step: int, count: int, seconds: float) -> None:
        """Notes what a step, of this number in the order of `walk`, gave in this unit, and how long that took."""
        self.words[_HEAD + _STEP * step] += count
        if self.is_sampled or seconds >= SHORT_UNIT_S:
            self._noted.append((step, seconds))

    def turn(self, step: int) -> tuple[int, int]:
        """Which of the next calls of a step's function to time: the place of the first, and one in how many.

        Reading the clock twice takes 0.1 us, and several times that where the caches are cold. So a short call that is
        timed stands for others: another place in every chunk, whose first call finds the caches cold.
        """
        if step not in self.short:
            return 0, 1
        every = TIMED_EVERY if sum(self._calls[step]) >= VERY_SHORT_CALL_S else 4 * TIMED_EVERY
        return -self.words[_HEAD + _STEP * step] % every, every

    def note_calls(self, step: int, count: int, seconds: float, timed: int, call_s: float, put_s: float) -> None:
        """Notes the time of calls of a function of which some were timed, by how long all of them took together.

        What was timed says how the calls and putting away what they gave share that time. Where it took far longer than
        what was timed explains, one of the other calls was long. So a call that takes long once in a while counts as
        the time that it took, whether it was timed or not.

        Args:
            step: The step's number.
            count: The calls.
            seconds: What they took, and putting away what they gave.
            timed: How many of them were timed; if none, those before them stand for them.
            call_s: What these took.
            put_s: What it took to put away what they gave.
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
    """What workers noted, for all their units."""

    rows: int
    wall_s: float
    """By the clock."""
    cpu_s: float
    """By the CPU."""
    steps: tuple[tuple[int, float], ...]
    """Of each step, in the order of `walk`: its elements, and how long it took."""
    repeats: int
    """Requests to servers that were made again."""

    @classmethod
    def of(cls, words: npt.NDArray[np.int64]) -> "Noted":
        """What the words of a worker say, or the sums of several; all stand for the last few short units."""
        rows, short_ns, long_ns, long_cpu_ns, sampled_ns, sampled_cpu_ns, repeats = words[:_HEAD].tolist()
        factor = short_ns / sampled_ns if sampled_ns else 0.0
        steps = tuple(
            (count, (in_long_ns + factor * in_sampled_ns) / 1e9)
            for count, in_long_ns, in_sampled_ns in words[_HEAD:].reshape(-1, _STEP).tolist()
        )
        return cls(rows, (long_ns + short_ns) / 1e9, (long_cpu_ns + factor * sampled_cpu_ns) / 1e9, steps, repeats)
