"""Where the time and the memory of a run went, in one sentence."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from penstock._errors import ArgumentError
from penstock.diagnostics._lanes import Cpus, Lane, PlanStep, Shares, StepTime, seconds_per_batch
from penstock.diagnostics._picture import SUFFIXES, lay_out
from penstock.diagnostics._units import MIB, mib, ms, share, size

IDLE_SHARE = 0.03
"""A consumer that waits less than this share of its time does not wait."""
MOST_WORKERS = 64
"""So many workers more are thought of."""
LEAST_OTHERS: Final = 0.1
"""Other programs are not spoken of where they have less than this part of the CPUs."""


@final
@dataclass(slots=True)
class Counters:
    """What a loader counts while it runs; two clock readings a batch, and two of the CPU's clock an epoch."""

    batches: int = 0
    """Handed out."""
    wait_s: float = 0.0
    """The consumer waited so long in `next`."""
    use_s: float = 0.0
    """The consumer was busy so long between one `next` and the following."""
    first_batch_s: float | None = None
    """From the first `iter` to the first batch; it is not part of `wait_s`."""
    cpu_s: float = 0.0
    """The CPU's time of this process between the first batch of an epoch and its last, all threads."""
    _left_at: float = field(default=0.0, repr=False)
    _entered_at: float = field(default=0.0, repr=False)
    _cpu_began_s: float | None = field(default=None, repr=False)

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
        if self._cpu_began_s is None:
            self._cpu_began_s = time.process_time()
        self.batches += 1

    def copy(self) -> "Counters":
        """These numbers, as they are now."""
        running_s = 0.0 if self._cpu_began_s is None else time.process_time() - self._cpu_began_s
        return replace(self, cpu_s=self.cpu_s + running_s)

    def since(self, before: "Counters") -> "Counters":
        """What was counted since."""
        return replace(
            self,
            batches=self.batches - before.batches,
            wait_s=self.wait_s - before.wait_s,
            use_s=self.use_s - before.use_s,
            cpu_s=self.cpu_s - before.cpu_s,
        )

    def ended(self) -> None:
        """An epoch's last batch was handed out."""
        if self._cpu_began_s is not None:
            self.cpu_s += time.process_time() - self._cpu_began_s
            self._cpu_began_s = None

    def paused(self) -> None:
        """The consumer turns to something else; that time is nobody's."""
        self.ended()
        self._left_at = 0.0


@final
@dataclass(frozen=True)
class WhatIf:
    """What a report says of a run with another number of workers."""

    workers: int
    elements_per_s: float
    wait_share: float
    """The share of the time that the consumer would wait, 0 to 1."""

    def __str__(self) -> str:
        wait = f"waiting {self.wait_share:.0%} of the time"
        return f"with {_workers(self.workers)}: {self.elements_per_s:,.0f} elements/s, {wait}"


@final
@dataclass(frozen=True)
class Report:
    """A snapshot of a run. `print` it for a sentence and a table, `save` it as a picture, or read its fields."""

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
    may_hold_gil: bool = False
    """Functions of the user run on threads, and nobody knows whether they can run side by side."""
    memory_limit: int | None = None
    cpu_count: int = 1
    """CPUs that this process may use."""
    cpus: float | None = None
    """How many of them it had: those that it and its workers used, and those that nobody used; None where that was not
    measured."""
    cpu_s: float = 0.0
    """The CPU's time of this process in `elapsed_s`, all threads, those of workers included."""
    lanes: tuple[Lane, ...] = ()
    """What workers did, step by step, as they measured it."""
    plan: PlanStep | None = None
    """The steps, from the last one on, whether they were measured or not."""

    reserved_nbytes: int = 0
    """What this process had before the loader was made: private and shared memory, without pages of files."""
    peak_nbytes: int = 0
    """How much more it had at most, worker processes included, at the moments that were looked at: every half second.
    Whatever else of the program grew meanwhile is in it."""
    overhead_nbytes: int = 0
    """What worker processes may take besides what is projected."""
    page_cache_nbytes: int = 0
    """Pages of files that the kernel keeps, and drops when anybody needs the memory: nobody's."""

    @property
    def wait_share(self) -> float:
        """The share of the time that the consumer waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def elements_per_s(self) -> float:
        """Elements a second, as the consumer saw it."""
        return (self.batches - 1) * self.elements_per_batch / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def use_s(self) -> float:
        """How long the consumer worked on a batch, on average."""
        return max(0.0, self.elapsed_s - self.wait_s) / max(1, self.batches - 1)

    def what_if(self, *, workers: int) -> WhatIf:
        """Says what another number of workers would do, from what these measured.

        A batch takes as long as the slowest part of the pipeline: the consumer, the workers together, or the CPUs.
        What this run took beyond that, where its consumer waited, is taken for work that is done one at a time, such as
        Python under the GIL, and stays. So what is said of the number of workers that ran is what was measured.

        Args:
            workers: Threads or processes, on this machine.

        Raises:
            ArgumentError: Not a number from 1 on, or no batch was handed out yet.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ArgumentError(f"what_if(workers={workers!r}): a number from 1 on is needed.")
        if not self.lanes or not self.lanes[0].batches:
            raise ArgumentError("what_if() computes from what was measured, and no batch was handed out yet.")
        batch_s = self._batch_s(workers)
        return WhatIf(
            workers,
            self.elements_per_batch / batch_s if batch_s else math.inf,
            1 - self.use_s / batch_s if batch_s else 0.0,
        )

    def _batch_s(self, workers: int) -> float:
        """How long a batch would take so many workers."""
        cpus, other_cpu_s = self._cpus, self._other_cpu_s
        said_s = seconds_per_batch(self.lanes, workers, cpus, self.use_s, other_cpu_s)
        if not self.workers or self.batches < 2 or self.wait_share < IDLE_SHARE:
            return said_s  # inline, the consumer does the work itself; and one that does not wait says nothing of it
        said_now_s = seconds_per_batch(self.lanes, self.workers, cpus, self.use_s, other_cpu_s)
        now_s = self.elapsed_s / (self.batches - 1)
        return max(self.use_s, said_s + now_s - said_now_s if now_s > said_now_s else said_s * now_s / said_now_s)

    @property
    def _cpus(self) -> Cpus:
        """The CPUs, and how many other threads want them: others had to wait for one as workers had to."""
        delays = [(lane.delay_s, lane.cpu_s) for lane in self.lanes if lane.delay_s is not None]
        ran_s = sum(ran for _, ran in delays)
        delay = sum(late for late, _ in delays) / ran_s if ran_s else 0.0
        return Cpus(self.cpu_count, self._others * (1 + delay))

    @property
    def _others(self) -> float:
        """The CPUs that other programs had; 0 where that is little, or was not measured."""
        others = 0.0 if self.cpus is None else self.cpu_count - self.cpus
        return others if others > LEAST_OTHERS * self.cpu_count else 0.0

    @property
    def _other_cpu_s(self) -> float:
        """The CPU's time a batch of this process besides its workers': the consumer's, and to hand over a batch."""
        here = sum(each.cpu_s / each.batches for each in self.lanes if each.batches and each.executor != "processes")
        return max(0.0, self.cpu_s / max(1, self.batches - 1) - here)

    @property
    def slowest(self) -> tuple[Lane, StepTime | None] | None:
        """The workers that the pipeline is as fast as, and the step that takes most of their time.

        There is no step where most goes into putting elements into batches, and None at all where the consumer is what
        the pipeline is as fast as.
        """
        if self.wait_share < IDLE_SHARE or not self.lanes:
            return None
        lane = max(self.lanes, key=lambda lane: lane.seconds_per_batch(self.workers or 1, self._cpus))
        return lane, None if lane.is_serial else lane.slowest

    @property
    def limit(self) -> str:
        """What the pipeline is as fast as, and what would help: a part of a sentence."""
        if self.slowest is None:
            return f"your program is the limit, {ms(self.use_s)} a batch"
        lane, step = self.slowest
        elements = self.elements_of(lane)
        if lane.is_serial:
            return f"{lane.label}, read in one place, is the limit, {ms(lane.wall_s / elements)} an element"
        if step is None:
            what = f"putting elements into batches is the limit, {ms(lane.rest_s / elements)} an element"
        else:
            what = f"{step.step} is the limit, {ms(step.element_s)} an element"
        return f"{what} {f'on {_workers(self.workers)}' if self.workers else 'inline'}{self._cure}"

    @property
    def _cure(self) -> str:
        cure = self._more_workers
        return (
            f"{cure}, while other programs have {self._others:.1f} of {_cpus(self.cpu_count)}" if self._others else cure
        )

    @property
    def _more_workers(self) -> str:
        now = self.workers or 1
        if any(lane.takes_turns for lane in self.lanes):
            return "; threads take turns at it, so more of them would not help, but executor='processes' may"
        if self.may_hold_gil:
            return "; more threads help if it lets go of the GIL, executor='processes' also if it does not"
        best = self.what_if(workers=now + MOST_WORKERS).elements_per_s
        helps = best >= 1.1 * self.what_if(workers=now).elements_per_s
        for more in range(1, MOST_WORKERS + 1):
            other = self.what_if(workers=now + more)
            name = f"{more} more worker{'' if more == 1 else 's'}"
            if other.wait_share < IDLE_SHARE:
                return f"; {name} would remove the wait"
            if helps and other.elements_per_s >= 0.9 * best:
                return f"; {name} would give {other.elements_per_s:,.0f} elements/s"
        busy = "the one CPU is" if self.cpu_count == 1 else f"all {self.cpu_count} CPUs are"
        return f"; more workers would not help, for {busy} busy"

    def __str__(self) -> str:
        if not self.batches:
            return "No batch was handed out yet."
        copies = f" {self.copied} batches were copied out, because many were kept." if self.copied else ""
        if self.set_aside:
            plural = " was" if self.set_aside == 1 else "s were"
            copies += f" {self.set_aside:,} element{plural} set aside, see {self.quarantine}."
        lines = [f"{self.sentence}.{copies}", *self._table(), *self._memory(), *([self.note] if self.note else [])]
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """The run in one sentence, without its full stop."""
        limit = f" of {self.memory_limit / MIB:,.0f}" if self.memory_limit else ""
        shared = f", {self.shared_nbytes / MIB:.0f} MiB of arrays for the workers" if self.shared_nbytes else ""
        return (
            f"{self.batches:,} batches, {self.elements_per_s:,.0f} elements/s; waited {self.wait_share:.0%} of the "
            f"time for data ({self.executor}, {_workers(self.workers)}); {self.limit}; first batch after "
            f"{self.first_batch_s * 1e3:.0f} ms; memory {self.projected_nbytes / MIB:,.0f}{limit} MiB projected "
            f"({self.slot_count} slots of {self.slot_nbytes / MIB:.1f} MiB{shared})"
        )

    def elements_of(self, lane: Lane) -> float:
        """How many elements of batches these workers worked for; at least 1."""
        return max(1.0, lane.batches * self.elements_per_batch)

    def shares(self, lane: Lane) -> Shares | None:
        """What these workers did with their time; None where they are the consumer itself, or little was measured."""
        return lane.shares(self.elapsed_s / max(1, self.batches - 1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws the plan with the times on it, from the sources down to your program, and writes it.

        A box for each step: its elements and their bytes, its time, and, as a colour, its share of its workers' time.
        Below the steps that the same workers run stand these workers and what they did with their time. What was not
        measured has no number. What is the limit says so.

        Args:
            path: The file to write, a PNG or an SVG by its name.

        Raises:
            ArgumentError: The name ends in neither `.png` nor `.svg`.
            ImportError: Matplotlib is not installed.
        """
        if Path(path).suffix.lower() not in SUFFIXES:
            raise ArgumentError(
                f"report().save({os.fspath(path)!r}): the picture is a PNG or an SVG, so its name must end in .png or "
                ".svg."
            )
        from penstock._show._report import write

        write(lay_out(self), path)

    def _memory(self) -> Iterator[str]:
        """Who holds the memory."""
        if self.peak_nbytes:
            overhead = f", and up to {mib(self.overhead_nbytes)} for worker processes" if self.overhead_nbytes else ""
            yield (
                f"  memory: grew by {mib(self.peak_nbytes)} since this loader was made, from "
                f"{mib(self.reserved_nbytes)}; projected: {mib(self.projected_nbytes)}{overhead}. Not ours: "
                f"{mib(self.page_cache_nbytes)} of files in this machine's page cache, while nobody needs the room"
            )

    def _table(self) -> Iterator[str]:
        """A line for each step that was measured, and one for its workers."""
        rows = []
        for lane in self.lanes:
            for step in sorted(lane.steps, key=lambda step: -step.number):
                part = share(step.seconds, lane.wall_s)
                rows.append((step.step, f"{step.elements:,}", size(step.nbytes), ms(step.element_s), part))
            if lane.wall_s:
                label = f"{lane.label}, read in one place" if lane.is_serial else "into batches"
                elements = f"{round(lane.batches * self.elements_per_batch):,}"
                rows.append(
                    (label, elements, "", ms(lane.rest_s / self.elements_of(lane)), share(lane.rest_s, lane.wall_s))
                )
        if not rows:
            return
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for name, elements, nbytes, each, part in rows:
            yield (
                f"  {name:<{widths[0]}}  {elements:>{widths[1]}} elements  {nbytes:>{widths[2]}}  "
                f"{each:>{widths[3]}} each  {part:>{widths[4]}} of the workers' time"
            )
        for lane in self.lanes:
            if (shares := self.shares(lane)) is not None:
                where = f" for {lane.label}" if lane.is_serial or len(self.lanes) > 1 else ""
                yield f"  {lane.who}{where}: {shares}"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _cpus(count: int) -> str:
    return "the one CPU" if count == 1 else f"the {count} CPUs"
