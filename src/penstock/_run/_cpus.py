"""How many CPUs this process may use: what it is given, not what the machine has."""

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpu_count() -> int:
    """Returns the CPUs of this process's affinity, no more than its cgroup's quota, at least one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, count if quota is None else min(count, round(quota)))


def cpu_quota() -> float | None:
    """Returns the quota of a container, in CPUs: cgroup version 2, else version 1; None where there is no limit."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = (_CGROUP / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with contextlib.suppress(OSError, ValueError):
        limit = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text()
        period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text()
        return None if int(limit) <= 0 else int(limit) / int(period)
    return None
