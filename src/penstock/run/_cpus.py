"""How many CPUs this process may use: what it is given, not what the machine has."""

import contextlib
import os
from pathlib import Path

from penstock.report._cgroups import control_groups


def usable_cpu_count() -> int:
    """Returns the CPUs of this process's affinity, no more than the quota of its control groups, at least one."""
    count, quota = os.cpu_count() or 1, cpu_quota()
    with contextlib.suppress(AttributeError, OSError):  # the system has no affinity, or a sandbox does not say
        count = len(os.sched_getaffinity(0))
    return max(1, count if quota is None else min(count, round(quota)))


def cpu_quota() -> float | None:
    """Returns the least quota of the control groups around this process, in CPUs; None where there is no limit."""
    quotas = (_quota(version, folder) for version, folder in control_groups("cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(version: int, folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        if version == 2:
            limit, period = map(int, (folder / "cpu.max").read_text().split())
        else:
            limit, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return limit / period if limit > 0 else None
    return None
