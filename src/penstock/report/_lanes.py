"""Measurements of workers.

A lane is a group of workers that run the same steps. A plan with random access has one. A stream has one more for the
place where it is read, and one for each part of it that runs in parallel.
"""

from dataclasses import dataclass, field, replace
from typing import final

from penstock.base._reach import Reach
from penstock.base._traffic import Traffic


@final
@dataclass(frozen=True)
class StepTime:
    """The time of a step."""

    step: str
    """As `print(ds)` shows it."""
    number: int
    """Its place in the plan, counted from the end."""
    elements: int
    """Its elements. They exceed the delivered ones, because workers are ahead."""
    seconds: float
    """All workers together, by the clock, without the steps before it."""
    element_nbytes: int | None = None
    """Of each element, by its spec. None where elements differ in size."""
    unit: str = "element"
    """The kind of its elements: `element`, or `batch`."""
    may_hold_gil: bool = False
    """Whether it runs the user's Python, which threads may not be able to run side by side."""

    @property
    def element_s(self) -> float:
        """Seconds an element."""
        return self.seconds / self.elements if self.elements else 0.0

    @property
    def nbytes(self) -> int | None:
        """Bytes of all its elements. None where they differ in size."""
        return None if self.element_nbytes is None else self.elements * self.element_nbytes


@final
@dataclass(frozen=True)
class PlanStep:
    """A step of the plan, as a report shows it."""

    label: str
    """As `print(ds)` shows it."""
    numbers: tuple[int, ...]
    """Its places in the plan, counted from the end, with those of its hidden parts and of the same step of other
    shards."""
    inputs: tuple["PlanStep", ...]
    """The steps that it reads. Of alike shards, the first."""
    length: str
    """In words: `500 elements`."""
    element_nbytes: int | None = None
    """Of each element, by its spec. None where elements differ in size."""
    alike: int = 1
    """The number of alike steps that it stands for."""


@final
@dataclass(frozen=True)
class Shares:
    """The shares of some workers' time. They sum to 1."""

    computing: float
    """With work, and on a CPU."""
    waiting: float
    """With work, and not on a CPU: waiting for a disk, a lock, a CPU."""
    idle: float
    """Without work: the input was not ready, or no slot was free."""

    def __str__(self) -> str:
        return f"{self.computing:.0%} computing, {self.waiting:.0%} waiting at work, {self.idle:.0%} idle"


@final
@dataclass(frozen=True)
class Lane:
    """The measurements of some workers that run the same steps."""

    label: str
    """The last of these steps."""
    workers: int
    is_serial: bool
    """Whether one worker runs it, whatever number the user asked for."""
    batches: float
    """The batches that it worked for, with the filled parts of unfinished ones."""
    wall_s: float
    """All workers together, by the clock, without the time spent waiting for other lanes."""
    cpu_s: float
    """All workers together, by the CPU."""
    steps: tuple[StepTime, ...]
    """The measured ones: sources and functions. The rest of the time put elements into batches."""
    reach: Reach | None = "thread"
    """What its workers share with the consumer; None where that is the worker (`inline`)."""
    first: int = 0
    """The place in the plan of the last of its steps, counted from the end."""
    given: int | None = None
    """The elements, or batches, that the last step of a part of a plan gave."""
    unit: str = "element"
    """The kind of that step's elements."""
    delay_s: float | None = None
    """All workers together: the part of `wall_s` in which they were ready and had no CPU. None where unknown."""
    traffic: Traffic = field(default_factory=Traffic)
    """Requests to servers."""

    @property
    def who(self) -> str:
        """Its workers in words."""
        if self.reach is None:
            return "your program itself (inline)"
        one, more = ("thread", "threads") if self.reach == "thread" else ("process", "processes")
        return f"one {one}" if self.workers == 1 else f"{self.workers} {more}"

    @property
    def at_once(self) -> int:
        """The number of its workers that work side by side."""
        return 1 if self.is_serial else self.workers

    @property
    def rest_s(self) -> float:
        """The time outside of steps: casting, stacking, copying into the batch."""
        return max(0.0, self.wall_s - sum(step.seconds for step in self.steps))

    @property
    def slowest(self) -> StepTime | None:
        """The step that took most, or None if the rest did."""
        step = max(self.steps, key=lambda step: step.seconds, default=None)
        return step if step is not None and step.seconds >= self.rest_s else None

    def shares(self, batch_s: float) -> Shares | None:
        """Returns the shares of its workers' time, given the average time of a batch. None where unknown.

        Computed from the time of a batch, because the measured time leaves out the work for the first batch.
        """
        if self.reach is None or not (self.batches and batch_s and self.wall_s):
            return None
        busy = min(1.0, self.wall_s / self.batches / (self.workers * batch_s))
        computing = busy * min(1.0, self.cpu_s / self.wall_s)
        return Shares(computing, busy - computing, 1 - busy)

    @property
    def place(self) -> tuple[int, str]:
        """Identifies it among the lanes of a plan."""
        return self.first, self.label

    def since(self, before: "Lane | None") -> "Lane":
        """Returns the difference to an earlier measurement, or all of it without one."""
        if before is None:
            return self
        then = {step.number: (step.elements, step.seconds) for step in before.steps}
        steps = []
        for step in self.steps:
            elements, seconds = then.get(step.number, (0, 0.0))
            if step.elements > elements:
                steps.append(replace(step, elements=step.elements - elements, seconds=step.seconds - seconds))
        return replace(
            self,
            batches=self.batches - before.batches,
            given=None if self.given is None else self.given - (before.given or 0),
            wall_s=self.wall_s - before.wall_s,
            cpu_s=self.cpu_s - before.cpu_s,
            traffic=self.traffic - before.traffic,
            steps=tuple(steps),
        )
