"""Which of two ways of running is faster, found by trying both in turn.

What decides it, nobody can tell from outside: how long a thread waits for the GIL, how long a core takes to wake up,
what a user's function does. So both ways are run for short windows, one after the other, and the one that did more is
kept. A trial is made again later, and later still while it changes nothing, for what a user does may change.

Values and arithmetic: whoever uses it sees to it that one thread at a time does.
"""

import statistics
from typing import Final, final

TRIAL_COUNT: Final = 3
"""Windows of each kind in a trial, in turn."""
PAUSES_S: Final = (1.0, 60.0)
"""From one trial to the next: at first, and at most. It grows fourfold with each trial that changes nothing."""


@final
class Trials:
    """Finds out whether another way than the usual one is faster.

    Args:
        least_gain: How many times as fast the way that is not taken has to be, to be taken.
    """

    def __init__(self, least_gain: float) -> None:
        self._least_gain = least_gain
        self.is_other = False
        """Whether the other way is taken now: because it was found faster, or because it is being tried."""
        self._began_other = False
        self._speeds: list[tuple[bool, float]] | None = None
        self._pause_s = PAUSES_S[0]
        self._next_s = 0.0

    @property
    def are_on(self) -> bool:
        """Whether a trial is being made."""
        return self._speeds is not None

    def begin(self, now_s: float) -> None:
        """Begins a trial with the way that is taken, unless the last one was a short while ago."""
        if now_s >= self._next_s:
            self._speeds, self._began_other = [], self.is_other

    def note(self, speed: float, now_s: float) -> float | None:
        """Takes the speed of a window of the way that is taken, and goes on with the other, or with the faster one.

        Returns:
            How many times as fast as the usual way the other one is, when the trial is over; None before.
        """
        assert self._speeds is not None
        self._speeds.append((self.is_other, speed))
        if len(self._speeds) < 2 * TRIAL_COUNT:
            self.is_other = not self.is_other
            return None
        usual, other = (
            statistics.median(speed for was_other, speed in self._speeds if was_other is kind) for kind in (False, True)
        )
        self._speeds = None
        self.is_other = other >= (1 / self._least_gain if self._began_other else self._least_gain) * usual
        first_s, most_s = PAUSES_S
        self._pause_s = first_s if self._began_other != self.is_other else min(4 * self._pause_s, most_s)
        self._next_s = now_s + self._pause_s
        return other / usual if usual else 1.0

    def give_up(self, now_s: float) -> None:
        """Ends a trial that says nothing, with what was before it."""
        if self._speeds is not None:
            self.is_other, self._speeds = self._began_other, None
            self._next_s = now_s + self._pause_s
