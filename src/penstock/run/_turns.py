"""Whether threads run units side by side, or take turns: whichever is faster, found by trying.

A function that is made of many short calls which let go of the GIL, such as warps of small images, is slower on two
threads than on one: after each call a thread has to wait for the other's Python, and a wait costs more than the call
gained. Measured 2026-11 on two cores, images of 64x64 through six distortions: 9,300 a second one at a time, 6,600 to
9,000 side by side. A function that computes in one long call, or waits for a disk, gains by every thread. Which it is
nobody can tell from outside, for in both cases threads mostly wait. So where it might be the first kind, it is tried.

What is suspicious: for a while there was always a unit to do, and all threads together used 0.6 to 1.6 CPUs. Then turns
are tried (`_trials.py`), and kept if they did more rows in the same time. A trial costs a fraction of a second of a
slower loader.

Who writes what. Everything is written with `_lock` held, by the workers, for a few operations. `is_over` is set by
whoever stops them, without it.

Each wait, and what ends it. A worker that is to take turns waits in `begin` for the one before it to end its unit; or
for `is_over`, which it looks at ten times a second, should that one never return.
"""

import threading
from typing import Final, final

from penstock.run._trials import Trials

WINDOW_S: Final = 0.25
"""How long threads are watched before they are suspected."""
TRIAL_WINDOW_S: Final = 0.08
LEAST_UNITS: Final = 8
"""In fewer, a window says little; and units that take so long are not made of short calls."""
SUSPECT_CPUS: Final = (0.6, 1.6)
"""What threads that hinder each other use together."""
LEAST_GAIN: Final = 1.1
_LOOK_S: Final = 0.1


@final
class Turns:
    """Lets workers run side by side, or one at a time.

    Args:
        incidents: Gets a line for people when turns are taken for the first time.
    """

    def __init__(self, incidents: list[str]) -> None:
        self.are_useful = False
        """Whether there are several workers, and functions that may hinder each other; plain reads, also of a cache, do
        not."""
        self.is_over = False
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self.trials = Trials(LEAST_GAIN)
        self._window = _Window(0.0)
        self._incidents = incidents
        self._was_told = False

    @property
    def are_taken(self) -> bool:
        """Whether units run one at a time now."""
        return self.trials.is_other

    def begin(self) -> bool:
        """Waits for the calling worker's turn, where turns are taken. Returns whether it has to be given back."""
        while self.are_taken and not self.is_over:
            if self._turn.acquire(timeout=_LOOK_S):
                return True
        return False

    def give_back(self) -> None:
        """Ends the turn of the calling worker."""
        self._turn.release()

    def note(self, rows: int, cpu_s: float, now_s: float, *, has_more: bool) -> None:
        """Takes notice of a unit that is done, and decides how it goes on.

        Args:
            rows: How many rows it had.
            cpu_s: What of a CPU it used.
            now_s: A clock.
            has_more: Whether there are units that nobody runs yet: else a worker is idle, and speed says nothing.
        """
        with self._lock:
            self._window.add(rows, cpu_s)
            if not has_more:
                self.trials.give_up(now_s)
                self._window = _Window(now_s)
            elif now_s - self._window.began_s >= (TRIAL_WINDOW_S if self.trials.are_on else WINDOW_S):
                self._end_window(now_s)

    def _end_window(self, now_s: float) -> None:
        window, self._window = self._window, _Window(now_s)
        if not self.trials.are_on:
            low, high = SUSPECT_CPUS
            is_suspect = self.are_taken or low <= window.cpu_s / (now_s - window.began_s) <= high
            if window.units >= LEAST_UNITS and is_suspect:
                self.trials.begin(now_s)
            return
        gain = self.trials.note(window.rows / (now_s - window.began_s), now_s)
        if gain is not None and self.are_taken and not self._was_told:
            self._was_told = True
            self._incidents.append(
                f"Threads take turns at the functions, which is {gain:.1f} times as fast as side by side: "
                "these let go of the GIL too briefly. executor='processes' may be faster."
            )


@final
class _Window:
    """What was done since a moment."""

    __slots__ = ("began_s", "cpu_s", "rows", "units")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.units = 0
        self.rows = 0
        self.cpu_s = 0.0

    def add(self, rows: int, cpu_s: float) -> None:
        self.units += 1
        self.rows += rows
        self.cpu_s += cpu_s
