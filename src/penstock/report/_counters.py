"""Counters of a loader's consumer."""

import time
from dataclasses import dataclass, field, replace
from typing import final


@final
@dataclass(slots=True)
class Counters:
    """Counts while a loader runs: two clock readings a batch, and two of the CPU's clock an epoch."""

    batches: int = 0
    """Handed out."""
    wait_s: float = 0.0
    """Time of the consumer in `next`, without the first batch."""
    use_s: float = 0.0
    """Time of the consumer between one `next` and the following."""
    first_batch_s: float | None = None
    """From the first `iter` to the first batch."""
    longest_use_s: float = 0.0
    longest_wait_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process between the first batch of an epoch and its last, all threads."""
    _left_at: float = field(default=0.0, repr=False)
    _cpu_began_s: float | None = field(default=None, repr=False)

    def delivered(self, entered_at: float, started_at: float) -> float:
        """The consumer has the batch that it asked for at `entered_at`. Returns the time."""
        left_at, self._left_at = self._left_at, time.perf_counter()
        if left_at:
            used_s = entered_at - left_at
            self.use_s += used_s
            if used_s > self.longest_use_s:
                self.longest_use_s = used_s
        if self.first_batch_s is None:
            self.first_batch_s = self._left_at - started_at
        else:
            waited_s = self._left_at - entered_at
            self.wait_s += waited_s
            if waited_s > self.longest_wait_s:
                self.longest_wait_s = waited_s
        if self._cpu_began_s is None:
            self._cpu_began_s = time.process_time()
        self.batches += 1
        return self._left_at

    def failed(self, entered_at: float) -> None:
        """The consumer got an error instead of the batch that it asked for at `entered_at`."""
        self.wait_s += time.perf_counter() - entered_at
        self._left_at = 0.0

    def copy(self) -> "Counters":
        """Returns the present numbers. Any thread may call this."""
        began_s = self._cpu_began_s  # read once: the consumer may end the epoch meanwhile
        running_s = 0.0 if began_s is None else time.process_time() - began_s
        return replace(self, cpu_s=self.cpu_s + running_s)

    def since(self, before: "Counters") -> "Counters":
        """Returns the difference to earlier numbers. A longest time that is not newer becomes 0."""
        return replace(
            self,
            first_batch_s=self.first_batch_s if before.first_batch_s is None else None,
            longest_use_s=self.longest_use_s if self.longest_use_s > before.longest_use_s else 0.0,
            longest_wait_s=self.longest_wait_s if self.longest_wait_s > before.longest_wait_s else 0.0,
            batches=self.batches - before.batches,
            wait_s=self.wait_s - before.wait_s,
            use_s=self.use_s - before.use_s,
            cpu_s=self.cpu_s - before.cpu_s,
        )

    def ended(self) -> None:
        """The last batch of an epoch was handed out."""
        if self._cpu_began_s is not None:
            self.cpu_s += time.process_time() - self._cpu_began_s
            self._cpu_began_s = None

    def paused(self) -> None:
        """The consumer stops iterating. The time from here on is not counted."""
        self.ended()
        self._left_at = 0.0
