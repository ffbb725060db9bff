"""Whether functions let go of the GIL: the question that decides between threads and processes.

A thread that sleeps and wakes beside a function is a clock of the GIL. Next to a function that lets go of it the
thread is late by what the system takes to wake it, some 0.1 ms; next to one that holds it, until it is let go of
or, after 5 ms, taken away. One that holds it often and briefly, as Python between calls of Pillow does, makes most
wake-ups a little late: so the lateness that a quarter of them exceed is what counts.
"""

import statistics
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
    """Takes samples while functions run, then ends; it costs them some wake-ups, once.

    Args:
        pause_s: How long to leave the functions alone first: what they do at first may be different.
    """

    def __init__(self, pause_s: float = 0.5) -> None:
        super().__init__(name="penstock-gil", daemon=True)
        self._pause_s = pause_s
        self.is_busy = False
        """Whether a function runs; kept by who runs it."""
        self.lateness_s: float | None = None
        """What a quarter of the samples exceed, once it is known."""

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
            self.lateness_s = statistics.quantiles(samples, n=4)[2]

    @property
    def finds_it_free(self) -> bool:
        """Whether the GIL was there when it was wanted. False too while that is not known."""
        return self.lateness_s is not None and self.lateness_s < _LATE_S
