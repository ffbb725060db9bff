"""Whether threads run units side by side, or take turns: whichever is faster, found by trying.

A function that is made of many short calls which let go of the GIL, such as warps of small images, is slower on two
threads than on one: after each call a thread has to wait for the other's Python, and a wait costs more than the call
gained. Measured 2026-11 on two cores, images of 64x64 through six distortions: 9,300 a second one at a time, 6,600 to
9,000 side by side. A function that computes in one long call, or waits for a disk, gains by every thread. Which it is
nobody can tell from outside, for in both cases threads mostly wait. So where it might be the first kind, it is tried.

What is suspicious: for a while there was always a unit to do, and all threads together used 0.6 to 1.6 CPUs. Then turns
are tried, in short windows between others, and kept if they did more rows in the same time. A trial that was in vain
is repeated later and later, for what the functions do may change; it costs a fraction of a second of a slower loader.

Who writes what. Everything is written with `_lock` held, by the workers, for a few operations. `is_over` is set by
whoever stops them, without it.

Each wait, and what ends it. A worker that is to take turns waits in `begin` for the one before it to end its unit; or
for `is_over`, which it looks at ten times a second, should that one never return.
"""

import statistics
import threading
from typing import Final, final

WINDOW_S: Final = 0.25
"""How long threads are watched before they are suspected."""
TRIAL_WINDOW_S: Final = 0.08
TRIAL_COUNT: Final = 3
"""Windows of each kind in a trial, in turn."""
LEAST_UNITS: Final = 8
"""In fewer, a window says little; and units that take so long are not made of short calls."""
LEAST_GAIN: Final = 1.1
"""By how much the other way has to be faster to be taken."""
SUSPECT_CPUS: Final = (0.6, 1.6)
"""What threads that hinder each other use together."""
PAUSES_S: Final = (1.0, 60.0)
"""From one trial to the next: at first, doubled each time, and at most."""
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
        self.are_taken = False
        """Whether units run one at a time now."""
        self.is_over = False
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._pause_s = PAUSES_S[0]
        self._next_trial_s = 0.0
        self._trial: list[tuple[bool, float]] | None = None
        """While one is made: for each window so far, whether turns were taken, and rows a second."""
        self._window = _Window(0.0)
        self._incidents = incidents
        self._was_told = False

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
                self._give_up(now_s)
            elif now_s - self._window.began_s >= (WINDOW_S if self._trial is None else TRIAL_WINDOW_S):
                self._end_window(now_s)

    def _give_up(self, now_s: float) -> None:
        if self._trial is not None:
            self.are_taken, self._trial = self._trial[0][0] if self._trial else self.are_taken, None
            self._next_trial_s = now_s + self._pause_s
        self._window = _Window(now_s)

    def _end_window(self, now_s: float) -> None:
        window, self._window = self._window, _Window(now_s)
        if self._trial is None:
            low, high = SUSPECT_CPUS
            is_suspect = self.are_taken or low <= window.cpu_s / (now_s - window.began_s) <= high
            if now_s >= self._next_trial_s and window.units >= LEAST_UNITS and is_suspect:
                self._trial = []
            return
        self._trial.append((self.are_taken, window.rows / (now_s - window.began_s)))
        if len(self._trial) < 2 * TRIAL_COUNT:
            self.are_taken = not self.are_taken
            return
        trial, self._trial = self._trial, None
        by_side, in_turn = (
            statistics.median(speed for was_taken, speed in trial if was_taken is kind) for kind in (False, True)
        )
        began_taken = trial[0][0]
        self.are_taken = in_turn >= (1 / LEAST_GAIN if began_taken else LEAST_GAIN) * by_side
        first_s, most_s = PAUSES_S
        self._pause_s = first_s if began_taken != self.are_taken else min(2 * self._pause_s, most_s)
        self._next_trial_s = now_s + self._pause_s
        if self.are_taken and not began_taken and not self._was_told:
            self._was_told = True
            self._incidents.append(
                f"Threads take turns at the functions, which is {in_turn / by_side:.1f} times as fast as side by side: "
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
