"""The CPUs that a run had, as the kernel counts them, and the time that its workers waited for one.

Read at two moments: `/proc/stat` for idle CPUs, and each worker's `schedstat`, with the time that it ran and the time
that it was ready and had no CPU.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from penstock.report._cgroups import PROC

LEAST_S: Final = 0.2
"""A shorter time is not measured, because the kernel counts idle CPUs in hundredths of a second."""


@final
@dataclass(frozen=True)
class CpuMoment:
    """The counts up to a moment."""

    at_s: float
    own_s: float
    """CPU time of this process, all threads."""
    idle_s: float | None
    """Idle time of the CPUs that this process may use. None where unknown."""
    tasks: dict[str, tuple[int, int]]
    """Of each worker: the time that it ran, and that it was ready and had no CPU, in nanoseconds."""


@final
@dataclass(frozen=True)
class CpuUse:
    """The difference of two moments."""

    cpus: float | None = None
    """The CPUs that this program could have: used ones and idle ones."""
    delay: float | None = None
    """The time that workers were ready and had no CPU, as a part of the time that they ran."""


def cpus_now(tasks: Iterable[str]) -> CpuMoment:
    """Reads the counts.

    Args:
        tasks: Workers, as folders below `/proc`.
    """
    found = {}
    for task in tasks:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or this kernel does not count
            ran, delayed, _ = map(int, (PROC / task / "schedstat").read_text().split())
            found[task] = ran, delayed
    return CpuMoment(time.perf_counter(), time.process_time(), _idle_s(), found)


def between(before: CpuMoment, after: CpuMoment) -> CpuUse:
    """Compares two moments."""
    elapsed_s = after.at_s - before.at_s
    used_s, ran_ns, delayed_ns = after.own_s - before.own_s, 0, 0
    for task, (ran, delayed) in after.tasks.items():
        ran_before, delayed_before = before.tasks.get(task, (0, 0))  # or it was started in between
        ran_ns, delayed_ns = ran_ns + ran - ran_before, delayed_ns + delayed - delayed_before
        used_s += (ran - ran_before) / 1e9 if task.isdecimal() else 0.0  # threads are part of this process
    if elapsed_s < LEAST_S or ran_ns <= 0:  # no workers, or a kernel that does not count
        return CpuUse()
    if before.idle_s is None or after.idle_s is None:
        return CpuUse(None, delayed_ns / ran_ns)
    return CpuUse((used_s + after.idle_s - before.idle_s) / elapsed_s, delayed_ns / ran_ns)


def _idle_s() -> float | None:
    try:
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = (line.split() for line in (PROC / "stat").read_text().splitlines() if line.startswith("cpu"))
        # The fourth column is idle, the fifth idle with a read of a disk under way.
        ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in allowed)
        return ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError, IndexError):
        return None
