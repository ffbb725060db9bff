"""Where the time and the memory of a run went, in one sentence."""

import time
from dataclasses import dataclass, field
from typing import final

MIB = 1 << 20


@final
@dataclass(slots=True)
class Counters:
    """What a loader counts while it runs; two clock readings a batch."""

    batches: int = 0
    """Handed out."""
    wait_s: float = 0.0
    """The consumer waited so long in `next`."""
    use_s: float = 0.0
    """The consumer was busy so long between one `next` and the following."""
    first_batch_s: float | None = None
    """From the first `iter` to the first batch; it is not part of `wait_s`."""
    _left_at: float = field(default=0.0, repr=False)
    _entered_at: float = field(default=0.0, repr=False)

    def entered(self) -> float:
        """The consumer asks for a batch. Returns the time."""
        now = time.perf_counter()
        if self._left_at:
            self.use_s += now - self._left_at
        self._entered_at = now
        return now

    def failed(self) -> None:
        """The consumer got an error for the batch that it asked for."""
        if self._entered_at:
            self.wait_s += time.perf_counter() - self._entered_at
        self._entered_at = self._left_at = 0.0

    def left(self, entered_at: float, started_at: float) -> None:
        """The consumer has its batch."""
        self._left_at, self._entered_at = time.perf_counter(), 0.0
        if self.first_batch_s is None:
            self.first_batch_s = self._left_at - started_at
        else:
            self.wait_s += self._left_at - entered_at
        self.batches += 1

    def paused(self) -> None:
        """The consumer turns to something else; that time is nobody's."""
        self._left_at = 0.0


@final
@dataclass(frozen=True)
class Report:
    """A snapshot of a run. `print` it for a sentence, or read its fields."""

    batches: int
    """Batches handed out."""
    elements_per_batch: int
    """Elements in a full batch; 1 where the dataset is not batched."""
    elapsed_s: float
    """Time that the consumer spent between the first batch and the last, waiting or working."""
    wait_s: float
    """The part of it that the consumer waited for data."""
    first_batch_s: float
    """From `iter` to the first batch."""
    copied: int
    """Batches handed out as private copies, because the consumer kept many."""
    executor: str
    workers: int
    projected_nbytes: int
    slot_count: int
    slot_nbytes: int
    shared_nbytes: int
    """Of arrays that worker processes share."""
    note: str
    """What the library chose by itself and why, if it chose, and what happened to workers; a line each."""
    set_aside: int = 0
    """Elements that failed, and were replaced or left out: see `on_error`."""
    quarantine: str = ""
    """The file that lists them."""

    @property
    def wait_share(self) -> float:
        """The share of the time that the consumer waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def elements_per_s(self) -> float:
        """Elements a second, as the consumer saw it."""
        return (self.batches - 1) * self.elements_per_batch / self.elapsed_s if self.elapsed_s else 0.0

    def __str__(self) -> str:
        if not self.batches:
            return "No batch was handed out yet."
        shared = f", {self.shared_nbytes / MIB:.0f} MiB of arrays for the workers" if self.shared_nbytes else ""
        memory = (
            f"{self.projected_nbytes / MIB:.0f} MiB projected ({self.slot_count} slots of "
            f"{self.slot_nbytes / MIB:.1f} MiB{shared})"
        )
        copies = f" {self.copied} batches were copied out, because many were kept." if self.copied else ""
        if self.set_aside:
            plural = " was" if self.set_aside == 1 else "s were"
            copies += f" {self.set_aside:,} element{plural} set aside, see {self.quarantine}."
        note = f"\n{self.note}" if self.note else ""
        workers = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        return (
            f"{self.batches:,} batches, {self.elements_per_s:,.0f} elements/s; waited {self.wait_share:.0%} of the "
            f"time for data ({self.executor}, {workers}); first batch after {self.first_batch_s * 1e3:.0f} ms; "
            f"memory {memory}.{copies}{note}"
        )
