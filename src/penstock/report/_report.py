"""Where the time and the memory of a run went, in one sentence."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError
from penstock.report._lanes import Cpus, Lane, PlanStep, Shares, StepTime, cpu_s_per_batch, seconds_per_batch
from penstock.report._picture import SUFFIXES, lay_out
from penstock.report._units import MIB, an, many, mib, ms, share, size

IDLE_SHARE = 0.03
"""A consumer that waits less than this share of its time does not wait."""
BUSY_SHARE = 0.4
"""Workers that are busy for a smaller share of their time are not what a pipeline is as fast as."""
FULL_SHARE = 2 / 3
"""CPUs that are used for a smaller share of the time are not what a pipeline is as fast as."""
LARGE_SHARE = 1 / 3
"""A single step of the consumer that takes a larger share of the time is said."""
HANDING_OVER_S: Final = 1e-3
"""A batch that is filled in less by code that holds the GIL takes as long to be handed from thread to thread."""
SIDE_BY_SIDE_SHARE: Final = 0.8
"""Threads that compute for a larger share of the time that they have work do not wait for each other."""
ONE_CPU: Final = (0.8, 1.2)
"""What threads that hold the GIL in turn use together; those that wait for a disk use less, as a rule."""
TWO_CPUS: Final = 1.6
"""A program that had fewer CPUs says nothing about its threads."""
MOST_ALIKE: Final = 4
"""So many steps that are alike have a line each."""
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
    longest_use_s: float = 0.0
    """The longest time that it was busy so."""
    longest_wait_s: float = 0.0
    """The longest time that it waited, the first batch's left out."""
    cpu_s: float = 0.0
    """The CPU's time of this process between the first batch of an epoch and its last, all threads."""
    _left_at: float = field(default=0.0, repr=False)
    _entered_at: float = field(default=0.0, repr=False)
    _cpu_began_s: float | None = field(default=None, repr=False)

    def entered(self) -> float:
        """The consumer asks for a batch. Returns the time."""
        now = time.perf_counter()
        if self._left_at:
            used_s = now - self._left_at
            self.use_s += used_s
            if used_s > self.longest_use_s:
                self.longest_use_s = used_s
        self._entered_at = now
        return now

    def failed(self) -> None:
        """The consumer got an error for the batch that it asked for."""
        if self._entered_at:
            self.wait_s += time.perf_counter() - self._entered_at
        self._entered_at = self._left_at = 0.0

    def left(self, entered_at: float, started_at: float) -> float:
        """The consumer has its batch. Returns the time."""
        self._left_at, self._entered_at = time.perf_counter(), 0.0
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

    def copy(self) -> "Counters":
        """These numbers, as they are now."""
        running_s = 0.0 if self._cpu_began_s is None else time.process_time() - self._cpu_began_s
        return replace(self, cpu_s=self.cpu_s + running_s)

    def since(self, before: "Counters") -> "Counters":
        """What was counted since. Of a longest time that is no record, nothing is known."""
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
    unit: str = "element"
    """What is counted: `batch` where nobody knows how many elements one has."""

    def __str__(self) -> str:
        wait = f"waiting {self.wait_share:.0%} of the time"
        return f"with {_workers(self.workers)}: {self.elements_per_s:,.0f} {many(self.unit)}/s, {wait}"


@final
@dataclass(frozen=True, repr=False)
class Report:
    """A snapshot of a run. `print` it for a sentence and a table, `save` it as a picture, or read its fields."""

    batches: int
    """Batches handed out."""
    elements_per_batch: int
    """Elements in a full batch, of one of several shards in its part; 1 where the dataset is not batched, and where
    nobody knows: see `unit`."""
    elapsed_s: float
    """Time that the consumer spent between the first batch and the last, waiting or working."""
    wait_s: float
    """The part of it that the consumer waited for data."""
    first_batch_s: float
    """From `iter` to the first batch; 0 of an epoch that is not the first."""
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

    longest_use_s: float = 0.0
    """How long the consumer worked on one batch at most."""
    longest_wait_s: float = 0.0
    """How long it waited for one batch at most, the first left out."""
    unit: str = "element"
    """What is counted: `batch` where nobody knows how many elements a batch has."""
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
    def repeats(self) -> int:
        """Requests to servers that were made again, because they failed for a moment."""
        return sum(lane.repeats for lane in self.lanes)

    @property
    def wait_share(self) -> float:
        """The share of the time that the consumer waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def elements_per_s(self) -> float:
        """Elements a second, as the consumer saw it."""
        return self._timed * self.elements_per_batch / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def _timed(self) -> int:
        """Of how many batches `elapsed_s` is the time: all but the first of a loader, which is told apart."""
        return self.batches - 1 if self.first_batch_s else self.batches

    @property
    def use_s(self) -> float:
        """How long the consumer worked on a batch, on average."""
        return max(0.0, self.elapsed_s - self.wait_s) / max(1, self._timed)

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
        count = as_int(workers)
        if count is None or count < 1:
            raise ArgumentError(f"what_if(workers={workers!r}): a number from 1 on is needed.")
        if not self.lanes or not self.lanes[0].batches:
            raise ArgumentError("what_if() computes from what was measured, and no batch was handed out yet.")
        batch_s = self._batch_s(count)
        return WhatIf(
            count,
            self.elements_per_batch / batch_s if batch_s else math.inf,
            1 - self.use_s / batch_s if batch_s else 0.0,
            self.unit,
        )

    def _batch_s(self, workers: int) -> float:
        """How long a batch would take so many workers."""
        cpus, other_cpu_s = self._cpus, self._other_cpu_s
        said_s = seconds_per_batch(self.lanes, workers, cpus, self.use_s, other_cpu_s)
        if not self.workers or not self._timed or self.wait_share < IDLE_SHARE:
            return said_s  # inline, the consumer does the work itself; and one that does not wait says nothing of it
        said_now_s = seconds_per_batch(self.lanes, self.workers, cpus, self.use_s, other_cpu_s)
        now_s = self.elapsed_s / self._timed
        if (
            self.is_idle
        ):  # to hand elements over takes as long whoever made them, and who is idle takes no turn on a CPU
            return now_s
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
        the pipeline is as fast as, or nothing is: see `is_idle`.
        """
        if self.wait_share < IDLE_SHARE:
            return None
        lanes = [lane for lane in self.lanes if self._may_limit(lane)]
        if not lanes:
            return None
        lane = max(lanes, key=lambda lane: lane.seconds_per_batch(self.workers or 1, self._cpus))
        return lane, None if lane.is_serial else lane.slowest

    @property
    def is_idle(self) -> bool:
        """Whether the consumer waits most of the time, and yet no workers are busy: what takes it is between them."""
        return bool(self.lanes) and self.slowest is None and self.wait_share > 0.5

    def _may_limit(self, lane: Lane) -> bool:
        """Whether workers are busy enough to be the limit, or their work would be, done by one after the other."""
        if not lane.batches or not self.elapsed_s:
            return False
        done = [lane]
        if lane.executor == "processes" and not lane.is_serial:  # of a pool, which does all such work
            done = [each for each in self.lanes if each.executor == "processes" and not each.is_serial and each.batches]
        steps = max(1, self._timed)
        work_s = sum(each.wall_s / each.batches for each in done)
        if work_s >= BUSY_SHARE * lane.at_once * self.elapsed_s / steps:
            return True
        # One long element stops what comes after it, however many workers there are.
        return self.wait_share > 0.5 and 2 * work_s >= self.wait_s / steps

    @property
    def limit(self) -> str:
        """What the pipeline is as fast as, and what would help: a part of a sentence."""
        if not self.elapsed_s:
            return "what the limit is shows from the second batch on"
        if self.is_idle and self.longest_wait_s >= 0.1 and self.longest_wait_s > self.wait_s / 2 and self._timed > 2:
            return (
                f"no step is the limit, for {self.longest_wait_s:.1f} of {self.elapsed_s:.1f} s were one wait, as "
                "while workers start or import what a function needs"
            )
        if self.is_idle:
            wait_s = self.wait_s / max(1, self._timed)
            return (
                f"no step is the limit, for all workers are mostly idle: handing elements over takes {ms(wait_s)} a "
                "batch, and more workers would not help"
            )
        if self.slowest is None:
            alone = ""
            if self._is_driven and self.wait_share >= IDLE_SHARE:
                wait_s = self.wait_s / max(1, self._timed)
                alone = f", and fills such small batches itself, {ms(wait_s)}: to hand them over takes longer"
            return f"your program is the limit, {ms(self.use_s)} a batch{alone}"
        lane, step = self.slowest
        elements, unit = self.elements_of(lane), an(self.unit_of(lane))
        if lane.is_serial:
            return f"{lane.label}, read in one place, is the limit, {ms(lane.wall_s / elements)} {unit}"
        if step is None:
            what = f"putting elements into batches is the limit, {ms(lane.rest_s / elements)} {unit}"
        else:
            what = f"{step.step} is the limit, {ms(step.element_s)} {an(step.unit)}"
        where = f"on {_workers(self.workers)}" if self.workers and not self._is_driven else "inline"
        return f"{what} {where}{self._cure}"

    @property
    def _cure(self) -> str:
        cure = self._more_workers
        return (
            f"{cure}, while other programs have {self._others:.1f} of {_cpus_in_words(self.cpu_count)}"
            if self._others
            else cure
        )

    @property
    def _more_workers(self) -> str:
        now = self.workers or 1
        if self._is_driven:
            return "; your program fills such small batches itself, for to hand them over takes longer"
        if any(lane.takes_turns for lane in self.lanes):
            return "; threads take turns at it, so more of them would not help, but executor='processes' may"
        if self.slowest is not None and (cure := self._cure_of_python(*self.slowest)):
            return cure
        least_s = self._least_batch_s
        best_s = max(least_s, self._batch_s(now + MOST_WORKERS))
        helps = 1.1 * best_s <= self._batch_s(now)
        for more in range(1, MOST_WORKERS + 1):
            batch_s = max(least_s, self._batch_s(now + more))
            # Inline, the consumer is the one who works; with workers it is none of them.
            name = f"{more} more worker{'' if more == 1 else 's'}" if self.workers else _workers(now + more)
            if self.use_s >= (1 - IDLE_SHARE) * batch_s:
                return f"; {name} would remove the wait"
            if helps and 0.9 * batch_s <= best_s:
                return f"; {name} would give {self.elements_per_batch / batch_s:,.0f} {many(self.unit)}/s"
        return f"; more workers would not help, for {self._why_not_more}"

    def _cure_of_python(self, lane: Lane, step: StepTime | None) -> str:
        """What helps where Python of the user's may hold the GIL; nothing if that is not what takes the time."""
        is_short = lane.wall_s < HANDING_OVER_S * lane.batches
        if is_short and not self.workers and any(each.may_hold_gil for each in lane.steps):
            return "; for workers to hand such batches over would take about as long"
        if not self.may_hold_gil:
            return ""
        if is_short:
            return "; to hand such batches over takes about as long as to fill them, executor='inline' may be faster"
        if (step is not None and not step.may_hold_gil) or self._is_side_by_side(lane):
            return ""
        if self._is_one_at_a_time(lane):
            return (
                "; its threads use one CPU together, as Python does that holds the GIL: then executor='processes' "
                "helps, and more threads do not"
            )
        return "; more threads help if it lets go of the GIL, executor='processes' also if it does not"

    def _is_side_by_side(self, lane: Lane) -> bool:
        """Whether several threads compute all the time that they have work, and so do not wait for the GIL."""
        shares = self.shares(lane)
        return shares is not None and lane.at_once > 1 and shares.computing >= SIDE_BY_SIDE_SHARE * (1 - shares.idle)

    def _is_one_at_a_time(self, lane: Lane) -> bool:
        """Whether several threads use one CPU together, where more were to be had."""
        shares = self.shares(lane)
        if shares is None or lane.at_once < 2 or (self.cpus or 0.0) < TWO_CPUS:
            return False
        least, most = ONE_CPU
        return least <= lane.at_once * shares.computing <= most

    @property
    def _least_batch_s(self) -> float:
        """How long a batch takes the CPUs that this program had: on those of other programs no advice counts.

        If the kernel dealt them out as `Cpus` says, more workers would get more of them. But it deals by groups where
        it knows some, such as containers and terminals.
        """
        cpu_s = self._other_cpu_s + cpu_s_per_batch(self.lanes)
        return cpu_s / self.cpus if self._others and self.cpus else 0.0

    @property
    def _is_driven(self) -> bool:
        """Whether there are workers, and the consumer fills batches itself all the same."""
        return bool(self.workers and self.lanes) and self.lanes[0].executor == "inline"

    @property
    def _why_not_more(self) -> str:
        """Why a batch would take as long with more workers."""
        # Who waits for a CPU has none because all are busy, be it with what nobody measured.
        lanes = [lane for lane in self.lanes if lane.batches]
        wanted_s = self._other_cpu_s + sum((lane.cpu_s + (lane.delay_s or 0.0)) / lane.batches for lane in lanes)
        if wanted_s * max(1, self._timed) < FULL_SHARE * (self.cpu_count - self._others) * self.elapsed_s:
            return "most of the time goes into what is done one at a time, such as handing elements over"
        return "the one CPU is busy" if self.cpu_count == 1 else f"all {self.cpu_count} CPUs are busy"

    def __str__(self) -> str:
        if not self.batches:
            return "No batch was handed out yet."
        copies = f" {self.copied} batches were copied out, because many were kept." if self.copied else ""
        if self.set_aside:
            plural = " was" if self.set_aside == 1 else "s were"
            copies += f" {self.set_aside:,} element{plural} set aside, see {self.quarantine}."
        if self.repeats:
            plural = " was" if self.repeats == 1 else "s were"
            copies += (
                f" {self.repeats:,} request{plural} made again, because a server failed for a moment; see the log."
            )
        lines = [f"{self.sentence}.{copies}", *self._table(), *self._memory(), *([self.note] if self.note else [])]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows at the end of a cell

    @property
    def sentence(self) -> str:
        """The run in one sentence, without its full stop."""
        limit = f" of {self.memory_limit / MIB:,.0f}" if self.memory_limit else ""
        shared = f", {self.shared_nbytes / MIB:.0f} MiB of arrays for the workers" if self.shared_nbytes else ""
        first = f"; first batch after {self.first_batch_s * 1e3:.0f} ms" if self.first_batch_s else ""
        count = f"{self.batches:,} batch{'' if self.batches == 1 else 'es'}"
        if self.elapsed_s:
            count += (
                f", {self.elements_per_s:,.0f} {many(self.unit)}/s; waited {self.wait_share:.0%} of the time for data"
            )
        return (
            f"{count} ({self.executor}, {_workers(self.workers)}); {self.limit}{self._one_step}{first}; memory "
            f"{self.projected_nbytes / MIB:,.0f}{limit} MiB projected "
            f"({self.slot_count} slots of {size(self.slot_nbytes)}{shared})"
        )

    @property
    def _one_step(self) -> str:
        """Says so if one step of the consumer, most likely its first, is a large part of all the time."""
        longest_s, others_s = self.longest_use_s, self.elapsed_s - self.wait_s - self.longest_use_s
        is_large = longest_s >= 0.1 and longest_s > self.elapsed_s * LARGE_SHARE
        if not is_large or longest_s * (self.batches - 2) <= 4 * others_s:  # they are few, and so each is a large part
            return ""
        return f"; {longest_s:.1f} of {self.elapsed_s:.1f} s were one step of your program"

    def elements_of(self, lane: Lane) -> float:
        """How many elements these workers gave, or batches where `unit_of` says so; at least 1."""
        return max(1.0, lane.batches * self.elements_per_batch if lane.given is None else lane.given)

    def unit_of(self, lane: Lane) -> str:
        """What is counted of these workers: `element` or `batch`."""
        return self.unit if lane.given is None else lane.unit

    def shares(self, lane: Lane) -> Shares | None:
        """What these workers did with their time; None where they are the consumer itself, or little was measured."""
        return lane.shares(self.elapsed_s / max(1, self._timed))

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
        """A line for each step that was measured, with those of the same workers, and one for these workers."""
        groups = [(lane, rows) for lane in self.lanes if (rows := list(self._rows(lane)))]
        if not groups:
            return
        widths = [max(len(row[column]) for _, rows in groups for row in rows) for column in range(6)]
        for lane, rows in groups:
            shares, indent = self.shares(lane), "  "
            if len(groups) > 1:
                yield f"  {lane.who} for {lane.label}{'' if shares is None else f': {shares}'}"
                indent = "    "
            for name, count, unit, nbytes, each, part in rows:
                yield (
                    f"{indent}{name:<{widths[0]}}  {count:>{widths[1]}} {unit:<{widths[2]}}  {nbytes:>{widths[3]}}  "
                    f"{each:>{widths[4]}} each  {part:>{widths[5]}} of the workers' time"
                )
            if len(groups) == 1 and shares is not None:
                yield f"  {lane.who}{f' for {lane.label}' if lane.is_serial else ''}: {shares}"

    def _rows(self, lane: Lane) -> Iterator[tuple[str, str, str, str, str, str]]:
        """What the table says of the steps that some workers run: name, count, unit, bytes, time, share."""
        for step in _joined(sorted(lane.steps, key=lambda step: -step.number)):
            part = share(step.seconds, lane.wall_s)
            count = f"{step.elements:,}"
            yield step.step, count, many(step.unit), size(step.nbytes), ms(step.element_s), part
        if lane.wall_s:
            label = f"{lane.label}, read in one place" if lane.is_serial else "into batches"
            elements, part = self.elements_of(lane), share(lane.rest_s, lane.wall_s)
            yield label, f"{round(elements):,}", many(self.unit_of(lane)), "", ms(lane.rest_s / elements), part


def _joined(steps: list[StepTime]) -> Iterator[StepTime]:
    """Steps, where many are alike, as the columns of a table are, one for all of them."""
    alike: dict[tuple[str, str, int | None], list[StepTime]] = {}
    for step in steps:
        alike.setdefault((step.step, step.unit, step.element_nbytes), []).append(step)
    for step in steps:
        group = alike[step.step, step.unit, step.element_nbytes]
        if len(group) <= MOST_ALIKE:
            yield step
        elif step is group[0]:
            elements, seconds = sum(each.elements for each in group), sum(each.seconds for each in group)
            yield replace(step, step=f"{len(group)} times {step.step}", elements=elements, seconds=seconds)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _cpus_in_words(count: int) -> str:
    return "the one CPU" if count == 1 else f"the {count} CPUs"
