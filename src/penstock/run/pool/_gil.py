"""Measures whether functions release the GIL, which decides between threads and processes.

A thread that sleeps and wakes beside a function is a clock of the GIL. Beside a function that releases the GIL the
thread is late by the time that the system takes to wake it, some 0.1 ms. Beside one that holds it, the thread is late
until the GIL is released or, after 5 ms, taken away. A function that holds it often and briefly, as Python between
calls of Pillow does, makes most wake-ups a little late. So the lateness that a quarter of them exceed decides.
"""

import threading
import time
from typing import Final, final

SAMPLE_COUNT: Final = 25
_NAP_S: Final = 0.002
_LATE_S: Final = 0.00025
"""A thread that gets the GIL within this, three times out of four, might as well be working."""
_DEADLINE_S: Final = 5.0


@final
class GilClock(threading.Thread):
    """Takes samples while functions run, then ends. It costs them some wake-ups, once.

    Args:
        pause_s: How long to wait first, because the first calls of a function may be different.
    """

    def __init__(self, pause_s: float = 0.5) -> None:
        super().__init__(name="penstock-gil", daemon=True)
        self._pause_s = pause_s
        self.is_busy = False
        """Whether a function runs; set by the worker."""
        self.lateness_s: float | None = None
        """The lateness that a quarter of the samples exceed, once it is known."""

    def run(self) -> None:
        """Samples until there are enough, or for some seconds."""
        time.sleep(self._pause_s)
        samples: list[float] = []
        ends_at = time.monotonic() + _DEADLINE_S
        while len(samples) < SAMPLE_COUNT and time.monotonic() < ends_at:
            before = time.perf_counter()
            was_busy = self.is_busy
            time.sleep(_NAP_S)
            late_s = time.perf_counter() - before - _NAP_S
            if was_busy and self.is_busy:
                samples.append(late_s)
        if len(samples) == SAMPLE_COUNT:
            self.lateness_s = sorted(samples)[3 * SAMPLE_COUNT // 4]

    @property
    def finds_it_free(self) -> bool:
        """Whether the GIL was free when it was wanted. False too while that is unknown."""
        return self.lateness_s is not None and self.lateness_s < _LATE_S
