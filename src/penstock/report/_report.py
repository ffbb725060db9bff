"""The report of a run: limit, advice, speed and memory in a line each, and the times of its steps."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, final

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError
from penstock.base._extensions import CALLS, needed
from penstock.base._printable import printable
from penstock.base._traffic import Traffic
from penstock.base._units import size_text
from penstock.report._lanes import Lane, PlanStep, StepTime
from penstock.report._units import MIB, an, mib, ms, plural, plural_of, share
from penstock.report._what_if import Model

IDLE_SHARE: Final = 0.03
"""A consumer that waits less than this share of its time does not wait."""
BUSY_SHARE: Final = 0.4
"""Workers that are busy for a smaller share of their time are not the limit."""
FULL_SHARE: Final = 2 / 3
"""CPUs that are used for a smaller share of the time are not the limit."""
LARGE_SHARE: Final = 1 / 3
"""The sentence names a single step of the consumer that takes a larger share of the time."""
HANDING_OVER_S: Final = 1e-3
"""A batch that is filled in less, by code that holds the GIL, takes as long to go from thread to thread."""
ONE_CPU: Final = (0.8, 1.2)
"""The CPUs that threads use together if the GIL lets one run at a time. Others use more, and those that wait, fewer."""
MOST_ALIKE: Final = 4
"""The table has a line for each of at most this number of alike steps."""
FEW_ELEMENTS: Final = 100
"""Of fewer elements the first call of a function may take the most: it imports libraries."""
LEAST_OTHERS: Final = 0.1
"""Other programs are mentioned where they have more than this part of the CPUs."""


@final
@dataclass(frozen=True)
class WhatIf:
    """The expected speed with another number of workers."""

    workers: int
    elements_per_s: float
    wait_share: float
    """The share of the time that the consumer would wait, 0 to 1."""
    unit: str = "element"
    """`batch` where the number of elements in a batch is unknown."""

    def __str__(self) -> str:
        wait = f"waiting {self.wait_share:.0%} of the time"
        return f"with {plural(self.workers, 'worker')}: {self.elements_per_s:,.0f} {plural_of(self.unit)}/s, {wait}"


@final
@dataclass(frozen=True)
class Drawn:
    """What a picture of a report shows: the consumer, the steps, and their workers."""

    texts: list[str]
    """Those of the consumer."""
    is_limit: bool
    """Whether the consumer is the limit."""
    plan: PlanStep | None
    lanes: tuple[Lane, ...]
    """What workers did; those of the shards of a stream as one."""
    limit: tuple[Lane, StepTime | None] | None
    """The slowest workers, and their slowest step."""
    batch_s: float
    """The average time of a batch."""
    given: Callable[[Lane], tuple[float, str]]
    """Returns the number and the kind of a lane's elements."""


@final
@dataclass(frozen=True, repr=False)
class Report:
    """A snapshot of a run. `print` it for four lines and a table, `save` it as a picture, or read its fields."""

    batches: int
    """Batches handed out."""
    elements_per_batch: int
    """Elements in a full batch, or in this shard's part of it. 1 without batches, or if unknown, see `unit`."""
    elapsed_s: float
    """Time of the consumer between the first batch and the last, waiting or working."""
    wait_s: float
    """The part of it in which the consumer waited for data."""
    first_batch_s: float
    """From `iter` to the first batch. 0 of a later epoch."""
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
    """Choices of the library with their reasons, and events of workers, a line each."""
    set_aside: int = 0
    """Elements that failed, and were replaced or left out: see `on_error`."""
    quarantine: str = ""
    """The file that lists them."""
    mixed: tuple[tuple[str, int], ...] = ()
    """For each dataset of `mix`, its source and the elements that were used of it in this epoch, in all ranks, and also
    before a restart; between epochs, in the last one. Empty without `mix`, and where steps after it use its elements in
    another order."""
    may_hold_gil: bool = False
    """Whether functions of the user run on threads, which may not be able to run side by side."""
    memory_limit: int | None = None
    cpu_count: int = 1
    """CPUs that this process may use."""
    cpus: float | None = None
    """The CPUs that it could have: those that it used, and idle ones. None where not measured."""
    cpu_s: float = 0.0
    """CPU time of this process in `elapsed_s`, all threads."""
    lanes: "tuple[Lane, ...]" = ()
    """The measurements of workers, step by step."""
    plan: "PlanStep | None" = None
    """The last step, with all that it reads."""

    longest_use_s: float = 0.0
    """The longest time that the consumer worked on one batch."""
    longest_wait_s: float = 0.0
    """The longest time that it waited for one batch other than the first."""
    unit: str = "element"
    """`batch` where the number of elements in a batch is unknown."""
    reserved_nbytes: int = 0
    """Private and shared memory of this process before the loader, without pages of files."""
    peak_nbytes: int = 0
    """The measured growth of it, with worker processes, every half second. Includes the rest of the program."""
    overhead_nbytes: int = 0
    """The most that worker processes take besides what is projected."""
    page_cache_nbytes: int = 0
    """Pages of files that the kernel keeps while no program needs the memory."""
    mapped_nbytes: int = 0
    """Those of files and libraries that show as memory of this process. In no other number here."""

    @property
    def traffic(self) -> Traffic:
        """The requests to servers: their number, bytes and time."""
        return sum((lane.traffic for lane in self.lanes), Traffic())

    @property
    def repeats(self) -> int:
        """Repeated requests, after temporary failures of a server."""
        return self.traffic.repeats

    @property
    def network_share(self) -> float:
        """The share of the time for which the network was the limit, 0 to 1.

        In that time your program waited for data, and workers waited for servers. Where they also worked in the time
        that your program waited, only their waiting counts.
        """
        wall_s = sum(lane.wall_s for lane in self.lanes if lane.traffic.requests)
        return self.wait_share * min(1.0, self.traffic.waited_s / wall_s) if wall_s else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time that the consumer waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def elements_per_s(self) -> float:
        """Elements a second, as the consumer saw it."""
        return self._timed * self.elements_per_batch / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def use_s(self) -> float:
        """The average time of the consumer's work on a batch."""
        return max(0.0, self.elapsed_s - self.wait_s) / max(1, self._timed)

    @property
    def _timed(self) -> int:
        """The batches of `elapsed_s`: all but the first of a loader."""
        return self.batches - 1 if self.first_batch_s else self.batches

    @property
    def _batch_s(self) -> float:
        return self.elapsed_s / max(1, self._timed)

    def what_if(self, *, workers: int) -> "WhatIf":
        """Computes the speed with another number of workers, from the measurements of these.

        A batch takes as long as the slowest part of the pipeline: the consumer, the workers together, or the CPUs. The
        time beyond that, where the consumer waited, is work done one at a time, such as Python under the GIL, and
        stays. So the result for the present number of workers is the measured speed.

        Args:
            workers: Threads or processes, on this machine.

        Raises:
            ArgumentError: Not a number from 1 on, or no batch was handed out yet.
        """
        count = as_int(workers)
        if count is None or count < 1:
            raise ArgumentError(f"what_if(workers={workers!r}): a number from 1 on is needed.")
        if not self.lanes or not self.lanes[0].batches:
            raise ArgumentError("what_if() computes from measurements, and no batch was handed out yet.")
        # The wait for idle workers is between them and the consumer, so that their number does not change it.
        batch_s = self._batch_s if self.is_idle and self.workers else self._model.batch_s(count)
        if not batch_s:
            return WhatIf(count, math.inf, 0.0, self.unit)
        return WhatIf(count, self.elements_per_batch / batch_s, 1 - self.use_s / batch_s, self.unit)

    @cached_property
    def _model(self) -> Model:
        measured = [lane for lane in self.lanes if lane.delay_s is not None]
        ran_s = sum(lane.cpu_s for lane in measured)
        # Others waited for a CPU as long as our workers did, so that more of their threads want one than have one.
        delay = sum(lane.delay_s or 0.0 for lane in measured) / ran_s if ran_s else 0.0
        here = [each for each in self.lanes if each.batches and each.reach in (None, "thread")]
        here_s = sum(each.cpu_s / each.batches for each in here)
        says_nothing = not self.workers or not self._timed or self.wait_share < IDLE_SHARE
        return Model(
            lanes=tuple(replace(lane, is_serial=lane.is_serial or self._holds_gil(lane)) for lane in self.lanes),
            workers=self.workers,
            cpu_count=self.cpu_count,
            others=self._others * (1 + delay),
            use_s=self.use_s,
            other_cpu_s=max(0.0, self.cpu_s / max(1, self.batches - 1) - here_s),
            measured_s=None if says_nothing else self._batch_s,
        )

    @property
    def _others(self) -> float:
        """The CPUs that other programs had. 0 where they are few, or not measured."""
        others = 0.0 if self.cpus is None else self.cpu_count - self.cpus
        return others if others > LEAST_OTHERS * self.cpu_count else 0.0

    @property
    def slowest(self) -> tuple[Lane, StepTime | None] | None:
        """The workers that limit the speed, and the step that takes most of their time.

        The step is None where putting elements into batches takes most. All is None where the consumer is the limit,
        or nothing is: see `is_idle`.
        """
        lanes = [lane for lane in self.lanes if self._may_limit(lane)]
        if self.wait_share < IDLE_SHARE or not lanes:
            return None
        lane = self._model.slowest(lanes)
        return lane, None if lane.is_serial else lane.slowest

    @property
    def is_idle(self) -> bool:
        """Whether the consumer waits most of the time and no workers are busy, so the time is lost between them."""
        return bool(self.lanes) and self.slowest is None and self.wait_share > 0.5

    def _may_limit(self, lane: Lane) -> bool:
        """Whether workers are busy enough to be the limit, or their work would be, done by one after the other."""
        if not lane.batches or not self.elapsed_s:
            return False
        done = [lane]
        if lane.reach == "process" and not lane.is_serial:  # one pool does the work of all these lanes
            done = [each for each in self.lanes if each.reach == "process" and not each.is_serial and each.batches]
        work_s = sum(each.wall_s / each.batches for each in done)
        if work_s >= BUSY_SHARE * lane.at_once * self._batch_s:
            return True
        # One long element delays all after it, whatever the number of workers.
        return self.wait_share > 0.5 and 2 * work_s >= self.wait_s / max(1, self._timed)

    @property
    def limit(self) -> str:
        """The limit of the speed, and a remedy: a part of a sentence."""
        found = self._limit
        limit = f"{found.what} is the limit, {found.cost}" if found.what else found.cost
        return f"{limit}; {found.advice}" if found.advice else limit

    @property
    def advice(self) -> str:
        """What would make it faster: a part of a sentence. Empty if your program is the limit, or nothing is known."""
        return self._limit.advice

    @cached_property
    def _limit(self) -> "_Limit":
        if not self.elapsed_s:
            return _Limit("", "the limit is known from the second batch on")
        if self.is_idle and self.longest_wait_s >= 0.1 and self.longest_wait_s > self.wait_s / 2 and self._timed > 2:
            cost = f"{self.longest_wait_s:.1f} of {self.elapsed_s:.1f} s were one wait"
            return _Limit("no step", f"{cost}, such as for workers that start or import packages")
        if self.is_idle:
            cost = f"handing elements over takes {ms(self.wait_s / max(1, self._timed))} a batch"
            return _Limit("no step", f"all workers are mostly idle: {cost}", "more workers would not help")
        if self.slowest is None:
            return _Limit("your program", f"{ms(self.use_s)} a batch")
        lane, step = self.slowest
        elements, unit = self._given(lane)
        if lane.is_serial:
            what, each = f"{self._read_in(lane)},", f"{ms(lane.wall_s / elements)} {an(unit)}"
            return _Limit(what, each, _TOO_FEW if self._is_early(lane) else "a map() after it runs on all workers")
        if step is None:
            what, each = "putting elements into batches", f"{ms(lane.rest_s / elements)} {an(unit)}"
        elif step.elements > elements:  # such as tokens, where the speed is in windows
            what, each = step.step, f"{ms(step.seconds / elements)} {an(unit)}"
        else:
            what, each = step.step, f"{ms(step.element_s)} {an(step.unit)}"
        cost = f"{each} on {plural(self.workers, 'worker')}" if self.workers else f"{each} inline"
        if self._is_early(lane):
            return _Limit(what, cost, _TOO_FEW)
        cpus = "the one CPU" if self.cpu_count == 1 else f"the {self.cpu_count} CPUs"
        others = f", while other programs have {self._others:.1f} of {cpus}" if self._others else ""
        return _Limit(what, cost, f"{self._remedy_for_python(lane, step) or self._remedy()}{others}")

    def _is_early(self, lane: Lane) -> bool:
        """Whether first calls may have taken most of the time: of functions, and of libraries that decode."""
        return self._given(lane)[0] < FEW_ELEMENTS

    def _remedy(self) -> str:
        now, count = self.workers or 1, self._model.advised()
        if count == now:
            enough = self._model.enough()
            are_enough = f", and {plural(enough, 'worker')} would be enough" if enough < now else ""
            return f"more workers would not help, because {self._why_not_more}{are_enough}"
        # Inline the consumer works, and with workers it does not.
        name = f"{count - now} more worker{'' if count - now == 1 else 's'}" if self.workers else f"{count} workers"
        batch_s = self._model.batch_s(count)
        if self.use_s >= (1 - IDLE_SHARE) * batch_s:
            return f"{name} would remove the wait"
        return f"{name} would give {self.elements_per_batch / batch_s:,.0f} {plural_of(self.unit)}/s"

    def _remedy_for_python(self, lane: Lane, step: StepTime | None) -> str:
        """The remedy where the user's Python may hold the GIL. Empty where that does not take the time."""
        if not any(each.may_hold_gil for each in lane.steps):
            return ""
        if lane.wall_s < HANDING_OVER_S * lane.batches:
            nearer = {"process": "threads", "thread": "inline"}.get(lane.reach or "")
            faster = f", and executor='{nearer}' may be faster" if nearer else ""
            return f"handing such a batch over costs as much as filling it, so more workers would not help{faster}"
        if lane.reach != "thread" or (step is not None and not step.may_hold_gil):
            return ""
        if self._holds_gil(lane):
            return (
                "its threads share one CPU, as Python does that holds the GIL: executor='processes' helps, more "
                "threads do not"
            )
        return "" if lane.at_once > 1 else "more threads help if it releases the GIL, executor='processes' in any case"

    def _holds_gil(self, lane: Lane) -> bool:
        """Whether of threads that may hold the GIL one at a time is on a CPU, and no other program has the others."""
        if not self.may_hold_gil or lane.reach != "thread" or lane.at_once < 2 or not lane.batches or self._others:
            return False
        least, most = ONE_CPU
        return least <= lane.cpu_s / lane.batches / self._batch_s <= most

    @property
    def _why_not_more(self) -> str:
        # Workers that wait for a CPU have none because all are busy, possibly with unmeasured work.
        lanes = [lane for lane in self._model.lanes if lane.batches]
        wanted_s = self._model.other_cpu_s + sum((lane.cpu_s + (lane.delay_s or 0.0)) / lane.batches for lane in lanes)
        if wanted_s < FULL_SHARE * (self.cpu_count - self._others) * self._batch_s:
            return "most of the time goes into work that is done one at a time, such as handing elements over"
        return "the one CPU is busy" if self.cpu_count == 1 else f"all {self.cpu_count} CPUs are busy"

    def __str__(self) -> str:
        if not self.batches:
            return "No batch was handed out yet."
        lines = [
            *self._heading(),
            *self._table(),
            *self._network(),
            *self._events(),
            *self._files(),
            *([self.note] if self.note else []),
        ]
        return printable("\n".join(lines), has_lines=True)

    def _heading(self) -> Iterator[str]:
        """Yields the four lines: what limits, what to do, how fast and how even, memory."""
        found = self._limit
        yield f"limit:  {found.what.removesuffix(',')}, {found.cost}" if found.what else f"limit:  {found.cost}"
        if found.advice:
            yield f"advice: {found.advice}"
        elif self.elapsed_s:
            why = "" if self.is_idle else ", data is ready before your program asks for it"
            yield f"advice: none{why}"
        yield f"speed:  {self._speed()}"
        grew = f"grew by {mib(self.peak_nbytes)}; " if self.peak_nbytes else ""
        overhead = f", and up to {mib(self.overhead_nbytes)} for worker processes" if self.overhead_nbytes else ""
        yield f"memory: {grew}{self._projected()}{overhead}"

    def _events(self) -> Iterator[str]:
        if self.copied:
            yield f"  {plural(self.copied, 'batch', ' was', ' were')} copied out, because many were kept"
        if self.set_aside:
            yield f"  {plural(self.set_aside, 'element', ' was', ' were')} set aside, see {self.quarantine}"
        total = sum(count for _, count in self.mixed)
        for name, count in self.mixed if total else ():
            yield f"  mix used {plural(count, 'element')} of {name}, {count / total:.1%} of the epoch's"
        if self.repeats:
            were = plural(self.repeats, "request", " was", " were")
            yield f"  {were} repeated after temporary failures of a server"

    def __repr__(self) -> str:
        return str(self)  # the result of a notebook's cell

    @property
    def sentence(self) -> str:
        """The run in one sentence, without its full stop."""
        return f"{self._speed()}; {self.limit}; memory {self._projected()}"

    def _speed(self) -> str:
        ran = f"{plural(self.batches, 'batch')} ({self.executor}, {plural(self.workers, 'worker')})"
        first = f"; first batch after {self.first_batch_s * 1e3:.0f} ms" if self.first_batch_s else ""
        if not self.elapsed_s:
            return f"{ran}{first}"
        longest = f", longest wait {ms(self.longest_wait_s)}" if self.longest_wait_s else ""
        rate = f"{self.elements_per_s:,.0f} {plural_of(self.unit)}/s"
        return f"{ran}, {rate}; waited {self.wait_share:.0%} of the time for data{longest}{self._one_step}{first}"

    def _projected(self) -> str:
        limit = f" of {self.memory_limit / MIB:,.0f}" if self.memory_limit else ""
        shared = f", {self.shared_nbytes / MIB:.0f} MiB of arrays for the workers" if self.shared_nbytes else ""
        slots = f"{self.slot_count} slots of {size_text(self.slot_nbytes)}"
        return f"{self.projected_nbytes / MIB:,.0f}{limit} MiB projected ({slots}{shared})"

    @property
    def _one_step(self) -> str:
        """Names a single step of the consumer, most likely its first, that is a large part of all the time."""
        longest_s, others_s = self.longest_use_s, self.elapsed_s - self.wait_s - self.longest_use_s
        is_large = longest_s >= 0.1 and longest_s > self.elapsed_s * LARGE_SHARE
        if not is_large or longest_s * (self.batches - 2) <= 4 * others_s:  # of few steps each is a large part
            return ""
        return f"; {longest_s:.1f} of {self.elapsed_s:.1f} s were one step of your program"

    def _given(self, lane: Lane) -> tuple[float, str]:
        """Returns the number of a lane's elements, at least 1, and their kind."""
        if lane.given is None:
            return max(1.0, lane.batches * self.elements_per_batch), self.unit
        return max(1.0, lane.given), lane.unit

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws the plan with its times, from the sources down to your program, and writes the picture.

        A box for each step shows its elements and their bytes, its time, and, as a colour, its share of its workers'
        time. Below the steps of the same workers stand these workers and the shares of their time. A step that was not
        measured has no time. The limit is marked.

        Args:
            path: The file to write, a PNG or an SVG by its name.

        Raises:
            ArgumentError: The name ends in neither `.png` nor `.svg`.
            ImportError: Matplotlib is not installed.
        """
        if Path(path).suffix.lower() not in (".png", ".svg"):
            raise ArgumentError(
                f"report().save({os.fspath(path)!r}): the picture is a PNG or an SVG, so its name must end in .png or "
                ".svg."
            )
        title = "\n".join(self._heading()) if self.batches else str(self)
        needed(CALLS, "draw_report")(path, title, self._drawn)

    @property
    def _drawn(self) -> Drawn:
        """What a picture of it shows."""
        has_times = bool(self.batches and self.elapsed_s)
        if has_times:
            speed = f"{ms(self.use_s)} a batch, {self.elements_per_s:,.0f} {plural_of(self.unit)}/s"
            texts = ["your program", speed, f"waits {self.wait_share:.0%} of the time for data"]
        else:
            texts = ["your program", self.limit if self.batches else "no batch was handed out yet"]
        return Drawn(
            texts,
            has_times and self.slowest is None and not self.is_idle,
            self.plan,
            tuple(self._shown()),
            self.slowest if self.batches else None,
            self._batch_s,
            self._given,
        )

    def _network(self) -> Iterator[str]:
        if self.traffic.requests:
            yield f"  network: {self.traffic}; it was the limit for {self.network_share:.0%} of the time"

    def _files(self) -> Iterator[str]:
        if self.peak_nbytes:
            yield (
                f"  not counted: {mib(self.reserved_nbytes)} of this program before this loader, and "
                f"{mib(self.page_cache_nbytes)} of files in this machine's page cache, which it frees when needed; "
                f"{mib(self.mapped_nbytes)} of it, libraries included, are mapped by this process"
            )

    def _table(self) -> Iterator[str]:
        """Yields a line for each measured step, below the line of its workers."""
        groups = [(lane, rows) for lane in self._shown() if (rows := list(self._rows(lane)))]
        widths = [max(map(len, column)) for column in zip(*(row for _, rows in groups for row in rows), strict=True)]
        for lane, rows in groups:
            shares = "" if (found := lane.shares(self._batch_s)) is None else f": {found}"
            if len(groups) > 1:
                yield f"  {lane.who} for {lane.label}{shares}"
            for name, count, unit, nbytes, each, part in rows:
                yield (
                    f"{'    ' if len(groups) > 1 else '  '}{name:<{widths[0]}}  {count:>{widths[1]}} "
                    f"{unit:<{widths[2]}}  {nbytes:>{widths[3]}}  {each:>{widths[4]}} each  "
                    f"{part:>{widths[5]}} of the workers' time"
                )
            if len(groups) == 1 and shares:
                yield f"  {lane.who}{f' for {lane.label}' if lane.is_serial else ''}{shares}"

    def _alike(self, lane: Lane) -> list[Lane]:
        """The lanes of the shards of a stream, which run the same steps side by side."""
        return [each for each in self.lanes if (each.label, each.reach) == (lane.label, lane.reach)]

    def _shown(self) -> Iterator[Lane]:
        """Yields the lanes, those of shards as one."""
        for lane in self.lanes:
            alike = self._alike(lane) if lane.is_serial else [lane]
            if lane is not alike[0]:
                continue
            steps: dict[str, StepTime] = {}
            for step in (step for each in alike for step in each.steps):
                done = steps.get(step.step, replace(step, elements=0, seconds=0.0))
                steps[step.step] = replace(
                    done, elements=done.elements + step.elements, seconds=done.seconds + step.seconds
                )
            yield (
                lane
                if len(alike) == 1
                else replace(
                    lane,
                    workers=sum(each.workers for each in alike),
                    batches=sum(each.batches for each in alike) / len(alike),
                    wall_s=sum(each.wall_s for each in alike),
                    cpu_s=sum(each.cpu_s for each in alike),
                    given=round(sum(self._given(each)[0] for each in alike)),
                    steps=tuple(steps.values()),
                )
            )

    def _read_in(self, lane: Lane) -> str:
        places = len(self._alike(lane))
        return f"{lane.label}, read in {'one place' if places == 1 else f'{places} places'}"

    def _rows(self, lane: Lane) -> Iterator[tuple[str, str, str, str, str, str]]:
        """Yields name, count, unit, bytes, time and share of the steps that some workers run.

        Workers are ahead, so they began more elements than were delivered.
        """
        begun = " begun" if lane.reach else ""
        alike: dict[tuple[str, str, int | None], list[StepTime]] = {}
        for step in sorted(lane.steps, key=lambda step: -step.number):
            alike.setdefault((step.step, step.unit, step.element_nbytes), []).append(step)
        for group in alike.values():
            if len(group) > MOST_ALIKE:  # the columns of a table
                name, count = f"{len(group)} times {group[0].step}", sum(each.elements for each in group)
                group = [replace(group[0], step=name, elements=count, seconds=sum(each.seconds for each in group))]
            for step in group:
                part = share(step.seconds, lane.wall_s)
                unit = f"{plural_of(step.unit)}{begun}"
                nbytes = "" if step.nbytes is None else size_text(step.nbytes)
                yield step.step, f"{step.elements:,}", unit, nbytes, ms(step.element_s), part
        if lane.wall_s:
            label = self._read_in(lane) if lane.is_serial else "into batches"
            (elements, unit), part = self._given(lane), share(lane.rest_s, lane.wall_s)
            yield label, f"{round(elements):,}", f"{plural_of(unit)}{begun}", "", ms(lane.rest_s / elements), part


_TOO_FEW: Final = (
    "these are too few elements for advice, because a first call, which may import a library, counts among them"
)


class _Limit(NamedTuple):
    """What limits the speed, in words."""

    what: str
    cost: str
    advice: str = ""
