"""The control groups around this process: the kernel's limits of a container, a service or a job."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
_MEMORY_FILES: Final = {
    2: ("memory.max", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Limit and use, by the version of control groups."""
_NO_LIMIT_NBYTES: Final = 1 << 60
"""Version 1 writes a larger number where there is no limit."""


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yields version (2 or 1) and folder of each group that may bound this process, the nearest first.

    A limit binds at every level, so the least of them holds. A folder need not exist: in a container the kernel may
    name the host's path, of which only the root exists there, which is the container's own.

    Args:
        controller: Its name in version 1: `"cpu"`, `"memory"`.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                version, root = 2, CGROUP
            elif controller in controllers.split(","):
                version, root = 1, CGROUP / controller
            else:
                continue
            for depth in range(len(parts := Path(path.lstrip("/")).parts), -1, -1):
                yield version, root.joinpath(*parts[:depth])


def group_page_cache_nbytes(version: int, folder: Path) -> int:
    """Returns the pages of files that the kernel keeps for a group and the groups below it.

    Leaves out shared memory, which the kernel counts as files and cannot drop.

    Raises:
        OSError: The group does not count memory.
    """
    name, prefix = ("file", "") if version == 2 else ("cache", "total_")
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(stat.get(f"{prefix}{name}", 0)) - int(stat.get(f"{prefix}shmem", 0))


def machine_nbytes(name: str) -> int | None:
    """Returns a number of `/proc/meminfo`, such as `Cached`. None where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (PROC / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return None


def free_nbytes() -> int | None:
    """Returns the memory that this process may still take. None where the kernel does not say."""
    bounds = machine_nbytes("MemAvailable"), group_free_nbytes()
    return min((bound for bound in bounds if bound is not None), default=None)


def group_free_nbytes() -> int | None:
    """Returns what the groups around this process leave of their memory. None if none of them limits it."""
    return min((max(0, limit - used) for limit, used in memory_limits()), default=None)


def memory_limits() -> Iterator[tuple[int, int]]:
    """Yields limit and use, without the page cache, of each group around this process that limits memory."""
    for version, folder in control_groups("memory"):
        limit_name, use_name = _MEMORY_FILES[version]
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text())  # a ValueError for "max"
            if limit < _NO_LIMIT_NBYTES:
                yield limit, int((folder / use_name).read_text()) - group_page_cache_nbytes(version, folder)
