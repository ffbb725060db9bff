"""What workers did, as they measured it, and what another number of them would do.

A lane is some workers that run the same steps. A plan with random access has one; a stream has one more for the place
where it is read, and one for each part of it that is made in parallel.

The model of `seconds_per_batch` is the bound of a pipeline with room between its parts: as slow as its slowest part,
and no faster than the CPUs. A worker's time for a batch is measured by the clock (`wall_s`) and by the CPU (`cpu_s`).
What the clock says more is waiting, for a disk or a lock, or for a CPU that somebody else had; the last is known from
the kernel, or else computed, and taken off, so that a run with many workers can say what fewer would do.
"""

from dataclasses import dataclass, replace
from typing import final


@final
@dataclass(frozen=True)
class StepTime:
    """What a step took."""

    step: str
    """As `print(ds)` shows it."""
    number: int
    """Its place in the plan, counted from the end."""
    elements: int
    """It was asked for so many; more than were delivered, for workers are ahead."""
    seconds: float
    """All workers together, by the clock, without what the steps before it took."""
    element_nbytes: int | None = None
    """Of each element that it gave, by its spec; None where elements differ in size."""
    unit: str = "element"
    """What it gave: `batch` where that is what its elements are."""
    may_hold_gil: bool = False
    """Whether it runs Python of the user's, of which nobody knows whether threads can run it side by side."""

    @property
    def element_s(self) -> float:
        """Seconds an element."""
        return self.seconds / self.elements if self.elements else 0.0

    @property
    def nbytes(self) -> int | None:
        """Bytes that it gave in all; None where elements differ in size."""
        return None if self.element_nbytes is None else self.elements * self.element_nbytes


@final
@dataclass(frozen=True)
class PlanStep:
    """A step of the plan that is run, as far as a report shows it."""

    label: str
    """As `print(ds)` shows it."""
    numbers: tuple[int, ...]
    """Its places in the plan, counted from the end: its own, those of its parts that are not shown, and those of the
    same step of other shards that are read side by side."""
    inputs: tuple["PlanStep", ...]
    """The steps that it reads; of shards the first, which stands for all."""
    length: str
    """In words: `500 elements`."""
    element_nbytes: int | None = None
    """Of each element, by its spec; None where elements differ in size."""
    alike: int = 1
    """It stands for so many steps that are alike."""


@final
@dataclass(frozen=True)
class Shares:
    """What some workers did with their time, as shares of it that sum to 1."""

    computing: float
    """They had work, and a CPU."""
    waiting: float
    """They had work, and waited in the midst of it: for a disk, a lock, a CPU."""
    idle: float
    """They had no work of this lane: what it reads was not there, or there was no room for more."""

    def __str__(self) -> str:
        return f"{self.computing:.0%} computing, {self.waiting:.0%} waiting at work, {self.idle:.0%} idle"


@final
@dataclass(frozen=True)
class Lane:
    """What some workers did that run the same steps."""

    label: str
    """The last of these steps."""
    workers: int
    is_serial: bool
    """One worker does it, whatever the number that was asked for."""
    batches: float
    """The batches that it was for: of those that are being filled, a part."""
    wall_s: float
    """All workers together, by the clock, without what they waited for other lanes."""
    cpu_s: float
    """All workers together, by the CPU."""
    steps: tuple[StepTime, ...]
    """Those that were measured: sources and functions. The rest went into putting elements into batches."""
    executor: str = "threads"
    """What these workers are: `threads`, `processes`, or `inline`, which is the consumer itself."""
    first: int = 0
    """The place in the plan of the last of its steps, counted from the end."""
    takes_turns: bool = False
    """These threads run one at a time, for side by side they would be slower."""
    given: int | None = None
    """Of a part of a plan: how many elements, or batches, its last step gave."""
    unit: str = "element"
    """What that step gave."""
    delay_s: float | None = None
    """All workers together: how much of `wall_s` they could have run and had no CPU; None where that is not known."""
    repeats: int = 0
    """Requests that they made again, because a server failed for a moment."""

    @property
    def who(self) -> str:
        """Its workers in words."""
        if self.executor == "inline":
            return "your program itself (inline)"
        one, more = ("thread", "threads") if self.executor == "threads" else ("process", "processes")
        return f"one {one}" if self.workers == 1 else f"{self.workers} {more}"

    @property
    def at_once(self) -> int:
        """How many of its workers work side by side."""
        return 1 if self.is_serial or self.takes_turns else self.workers

    @property
    def rest_s(self) -> float:
        """What no step took: casting, stacking, copying into the batch."""
        return max(0.0, self.wall_s - sum(step.seconds for step in self.steps))

    @property
    def slowest(self) -> StepTime | None:
        """The step that took most, or None if the rest did."""
        step = max(self.steps, key=lambda step: step.seconds, default=None)
        return step if step is not None and step.seconds >= self.rest_s else None

    def shares(self, batch_s: float) -> Shares | None:
        """What its workers did with their time, if a batch took so long on average; None where that is not known.

        It goes by the batch, for what workers had done before the first batch is not of the time that was measured.
        """
        if self.executor == "inline" or not (self.batches and batch_s and self.wall_s):
            return None
        busy = min(1.0, self.wall_s / self.batches / (self.workers * batch_s))
        computing = busy * min(1.0, self.cpu_s / self.wall_s)
        return Shares(computing, busy - computing, 1 - busy)

    @property
    def place(self) -> tuple[int, str]:
        """What tells it from the others of a plan."""
        return self.first, self.label

    def since(self, before: "Lane | None") -> "Lane":
        """What was done since; all of it, if there was nothing before."""
        if before is None:
            return self
        then = {step.number: (step.elements, step.seconds) for step in before.steps}
        steps = []
        for step in self.steps:
            elements, seconds = then.get(step.number, (0, 0.0))
            steps.append(replace(step, elements=step.elements - elements, seconds=step.seconds - seconds))
        return replace(
            self,
            batches=self.batches - before.batches,
            given=None if self.given is None else self.given - (before.given or 0),
            wall_s=self.wall_s - before.wall_s,
            cpu_s=self.cpu_s - before.cpu_s,
            repeats=self.repeats - before.repeats,
            steps=tuple(step for step in steps if step.elements),
        )

    def seconds_per_batch(self, workers: int, cpus: "Cpus") -> float:
        """How long a batch would take so many workers, if the CPUs were theirs and other programs' alone."""
        if not self.batches:
            return 0.0
        workers = 1 if self.is_serial or self.takes_turns else workers
        cpu_s = self.cpu_s / self.batches
        delay_s = cpu_s * (cpus.slowdown(self.workers) - 1) if self.delay_s is None else self.delay_s / self.batches
        waiting_s = max(0.0, self.wall_s / self.batches - cpu_s - delay_s)
        return (waiting_s + cpu_s * cpus.slowdown(workers)) / workers


@final
@dataclass(frozen=True)
class Cpus:
    """The CPUs, and who else wants them. The kernel deals them out evenly among all who could run."""

    count: int
    """Those that this process may use."""
    others: float = 0.0
    """Other programs' threads that could run, on average."""

    def slowdown(self, threads: float) -> float:
        """How many times as long as alone each of so many threads takes to compute."""
        return max(1.0, (threads + self.others) / self.count)


def cpu_s_per_batch(lanes: tuple[Lane, ...]) -> float:
    """The CPU's time that all workers together take for a batch."""
    return sum(lane.cpu_s / lane.batches for lane in lanes if lane.batches)


def seconds_per_batch(lanes: tuple[Lane, ...], workers: int, cpus: Cpus, use_s: float, other_cpu_s: float) -> float:
    """How long a batch would take in all: no less than the slowest lane, the CPUs, and the consumer take.

    Args:
        lanes: What workers did.
        workers: How many there would be.
        cpus: The CPUs that there are.
        use_s: How long the consumer works on a batch, by the clock.
        other_cpu_s: What else takes the CPUs for a batch: the consumer, and what hands it over.
    """
    cpu_s = other_cpu_s + cpu_s_per_batch(lanes)
    threads = max(workers, cpus.count)  # or some of the CPUs would be nobody's
    together_s = cpu_s * cpus.slowdown(threads) / threads
    return max(use_s, together_s, *(lane.seconds_per_batch(workers, cpus) for lane in lanes))
