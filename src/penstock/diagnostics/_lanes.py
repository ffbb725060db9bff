"""What workers did, as they measured it, and what another number of them would do.

A lane is some workers that run the same steps. A plan with random access has one; a stream has one more for the place
where it is read, and one for each part of it that is made in parallel.

The model of `seconds_per_batch` is the bound of a pipeline with room between its parts: as slow as its slowest part,
and no faster than the CPUs. A worker's time for a batch is measured by the clock (`wall_s`) and by the CPU (`cpu_s`).
What the clock says more is waiting, for a disk or a lock or, where there are more workers than CPUs, for a CPU; the
last is computed and taken off, so that a run with many workers can say what fewer would do.
"""

from dataclasses import dataclass
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

    @property
    def element_s(self) -> float:
        """Seconds an element."""
        return self.seconds / self.elements if self.elements else 0.0


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
    """All workers together, by the clock."""
    cpu_s: float
    """All workers together, by the CPU."""
    steps: tuple[StepTime, ...]
    """Those that were measured: sources and functions. The rest went into putting elements into batches."""

    @property
    def rest_s(self) -> float:
        """What no step took: casting, stacking, copying into the batch."""
        return max(0.0, self.wall_s - sum(step.seconds for step in self.steps))

    @property
    def slowest(self) -> StepTime | None:
        """The step that took most, or None if the rest did."""
        step = max(self.steps, key=lambda step: step.seconds, default=None)
        return step if step is not None and step.seconds >= self.rest_s else None

    def since(self, before: "Lane") -> "Lane":
        """What was done since."""
        then = {step.number: (step.elements, step.seconds) for step in before.steps}
        steps = []
        for step in self.steps:
            elements, seconds = then.get(step.number, (0, 0.0))
            steps.append(StepTime(step.step, step.number, step.elements - elements, step.seconds - seconds))
        return Lane(
            self.label,
            self.workers,
            self.is_serial,
            self.batches - before.batches,
            self.wall_s - before.wall_s,
            self.cpu_s - before.cpu_s,
            tuple(step for step in steps if step.elements),
        )

    def seconds_per_batch(self, workers: int, cpu_count: int) -> float:
        """How long a batch would take so many workers."""
        if not self.batches:
            return 0.0
        workers = 1 if self.is_serial else workers
        cpu_s = self.cpu_s / self.batches
        waiting_s = max(0.0, self.wall_s / self.batches - cpu_s * max(1.0, self.workers / cpu_count))
        return (waiting_s + cpu_s * max(1.0, workers / cpu_count)) / workers


def seconds_per_batch(lanes: tuple[Lane, ...], workers: int, cpu_count: int, use_s: float) -> float:
    """How long a batch would take in all: no less than the slowest lane, the CPUs, and the consumer take."""
    cpu_s = sum(lane.cpu_s / lane.batches for lane in lanes if lane.batches)
    return max(use_s, cpu_s / cpu_count, *(lane.seconds_per_batch(workers, cpu_count) for lane in lanes))
