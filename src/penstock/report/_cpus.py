"""Who had the CPUs between two moments of a run, as far as the kernel tells, and who waited for one.

Read at these moments alone: `/proc/stat` for what nobody used, and each worker's `schedstat`, in which the kernel
counts the time that it ran, and the time that it could have run and had no CPU.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from penstock.report._cgroups import PROC

LEAST_S: Final = 0.2
"""Of a shorter time nothing is said: the kernel counts what nobody used in hundredths of a second."""


@final
@dataclass(frozen=True)
class CpuMoment:
    """What was counted up to a moment."""

    at_s: float
    """The moment, by a clock."""
    own_s: float
    """The CPU's time of this process, all threads."""
    idle_s: float | None
    """What nobody used of the CPUs that this process may use; None where that is not to be had."""
    tasks: dict[str, tuple[int, int]]
    """Of each worker, how long it ran, and how long it could have run and had no CPU, in nanoseconds."""


@final
@dataclass(frozen=True)
class CpuUse:
    """What happened between two moments."""

    cpus: float | None = None
    """The CPUs that this program had: those that it used, and those that nobody used."""
    delay: float | None = None
    """How long a worker waited for a CPU, in all, by how long it ran."""


def cpus_now(tasks: Iterable[str]) -> CpuMoment:
    """Reads what was counted so far.

    Args:
        tasks: Workers, as folders below `/proc`.
    """
    found = {}
    for task in tasks:
        with contextlib.suppress(OSError, ValueError):  # it has ended; or this kernel does not count
            ran, delayed, _ = map(int, (PROC / task / "schedstat").read_text().split())
            found[task] = ran, delayed
    return CpuMoment(time.perf_counter(), time.process_time(), _idle_s(), found)


def between(before: CpuMoment, after: CpuMoment) -> CpuUse:
    """Compares two moments, the earlier one first."""
    elapsed_s = after.at_s - before.at_s
    if elapsed_s < LEAST_S:
        return CpuUse()
    used_s, ran_ns, delayed_ns = after.own_s - before.own_s, 0, 0
    for task, (ran, delayed) in after.tasks.items():
        ran_before, delayed_before = before.tasks.get(task, (0, 0))  # or it was started in between
        ran_ns, delayed_ns = ran_ns + ran - ran_before, delayed_ns + delayed - delayed_before
        used_s += (ran - ran_before) / 1e9 if task.isdecimal() else 0.0
    if ran_ns <= 0:  # no workers, or a kernel that does not count
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
