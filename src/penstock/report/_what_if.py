"""The model of a run with another number of workers. `what_if` and the advice in the sentence both come from it.

A batch takes as long as the slowest part of the pipeline: the consumer, a lane, or the CPUs together. A lane's work for
a batch is measured by the clock and by the CPU. The difference is waiting, for a disk, a lock or a CPU. Waiting for a
CPU is known from the kernel, or computed, and depends on the number of workers. The rest of the waiting does not.

The measured run took longer than that bound. The excess is work done one at a time, such as handing batches over, and
stays. So the model gives the measured speed for the measured number of workers.
"""

from dataclasses import dataclass
from typing import Final, final

from penstock.report._lanes import Lane

MOST_PER_CPU: Final = 8
"""Advice stops at this number of workers a CPU, or at twice the present number if that is more; for a step that
computes, at one worker a CPU."""
NEAR_BEST: Final = 0.95
"""The advised number has at least this part of the best speed."""
LEAST_GAIN: Final = 1.1
"""Advice for more workers needs at least this gain in speed."""


@final
@dataclass(frozen=True)
class Model:
    """A measured run, as the model sees it. All times are of a batch."""

    lanes: tuple[Lane, ...]
    workers: int
    """The number that ran, 0 inline."""
    cpu_count: int
    """The CPUs that this process may use."""
    others: float
    """Threads of other programs that want a CPU, on average. The kernel shares CPUs evenly among threads."""
    use_s: float
    """The consumer's work."""
    other_cpu_s: float
    """CPU time outside of lanes: the consumer's, and for handing batches over."""
    measured_s: float | None
    """The time that a batch took. None if it says nothing of the workers: inline, or without a wait."""

    def batch_s(self, workers: int) -> float:
        """Returns the time of a batch with this number of workers."""
        bound_s = self._bound_s(workers)
        if self.measured_s is None:
            return bound_s
        now_s = self._bound_s(self.workers)
        excess_s = self.measured_s - now_s
        return max(self.use_s, bound_s + excess_s if excess_s > 0 else bound_s * self.measured_s / now_s)

    def advised(self) -> int:
        """Returns the smallest number of workers near the best speed, or the present number if no more would help."""
        now = self.workers or 1
        most = self.cpu_count if self.computes else max(2 * now, MOST_PER_CPU * self.cpu_count)
        times = {count: self.batch_s(count) for count in range(1, max(now, most) + 1)}
        best_s = min(times.values())
        if LEAST_GAIN * best_s > times[now]:
            return now
        return max(now, next(count for count, batch_s in times.items() if NEAR_BEST * batch_s <= best_s))

    def enough(self) -> int:
        """Returns the smallest number of workers near the present speed."""
        now = self.workers or 1
        most_s = self.batch_s(now) / NEAR_BEST
        return next(count for count in range(1, now + 1) if self.batch_s(count) <= most_s)

    def _bound_s(self, workers: int) -> float:
        threads = max(workers, self.cpu_count)  # fewer would leave a CPU unused, which the consumer could use
        cpu_s = self.other_cpu_s + sum(lane.cpu_s / lane.batches for lane in self.lanes if lane.batches)
        together_s = cpu_s * self._slowdown(threads) / threads
        return max(self.use_s, together_s, *(self._lane_s(lane, workers) for lane in self.lanes))

    def _lane_s(self, lane: Lane, workers: int) -> float:
        if not lane.batches:
            return 0.0
        count = 1 if lane.is_serial else max(workers, 1)
        cpu_s = lane.cpu_s / lane.batches
        waiting_s = self._waiting_s(lane)
        return (waiting_s + cpu_s * self._slowdown(count)) / count

    def _waiting_s(self, lane: Lane) -> float:
        """Returns how long its workers wait in a batch, for something else than a CPU."""
        cpu_s = lane.cpu_s / lane.batches
        delay_s = cpu_s * (self._slowdown(lane.workers) - 1) if lane.delay_s is None else lane.delay_s / lane.batches
        return max(0.0, lane.wall_s / lane.batches - cpu_s - delay_s)

    @property
    def computes(self) -> bool:
        """Whether the workers that are the limit compute for longer than they wait."""
        lanes = [lane for lane in self.lanes if lane.batches]
        return not lanes or (slowest := self.slowest(lanes)).cpu_s / slowest.batches >= self._waiting_s(slowest)

    def slowest(self, lanes: list[Lane]) -> Lane:
        """Returns the slowest of some lanes with the present number of workers."""
        return max(lanes, key=lambda lane: self._lane_s(lane, self.workers or 1))

    def _slowdown(self, threads: float) -> float:
        """Returns how many times longer each of these threads computes than with a CPU of its own."""
        return max(1.0, (threads + self.others) / self.cpu_count)
