"""The control groups around this process: where the kernel says what a container, a service or a job may use."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yields version (2 or 1) and folder of each group that may bound this process, the nearest first.

    A limit binds at every level, so that the least of them is what is left. Folders need not exist: in a container the
    kernel may name the host's path, and of that only the root is there, which is the container's own.

    Args:
        controller: What is bounded, as version 1 names it: `"cpu"`, `"memory"`.
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
    """Returns the pages of files that the kernel keeps for the processes of a group and those below it.

    Without those of shared memory, which it counts among them and cannot drop.

    Raises:
        OSError: The group does not count memory.
    """
    name, prefix = ("file", "") if version == 2 else ("cache", "total_")
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(stat.get(f"{prefix}{name}", 0)) - int(stat.get(f"{prefix}shmem", 0))
