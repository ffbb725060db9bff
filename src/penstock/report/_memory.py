"""The memory of this process and its worker processes, measured."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from penstock.report._cgroups import PROC, control_groups, group_page_cache_nbytes, machine_nbytes

INTERVAL_S: Final = 0.5
"""A loader measures no more often, because reading the kernel's counts costs about 100 us."""


@final
@dataclass(frozen=True)
class MemoryUse:
    """Resident memory without the pages of files, which the kernel can drop at any time."""

    private_nbytes: int
    """Of this process alone."""
    shared_nbytes: int
    """MemoryUse that several processes may map, such as rings and caches in memory. Counted once."""
    worker_nbytes: tuple[int, ...] = ()
    """Private memory of each worker process."""

    @property
    def here_nbytes(self) -> int:
        """Of this process, with the shared part."""
        return self.private_nbytes + self.shared_nbytes

    @property
    def nbytes(self) -> int:
        """All together."""
        return self.here_nbytes + sum(self.worker_nbytes)


def memory_now(workers: Iterable[int] = ()) -> MemoryUse:
    """Measures this process and the worker processes with these ids.

    The shared part is the most that any of them maps, or the size of this process's memory files if that is more: files
    that are read and written are not mapped. Without `/proc`, the peak of this process counts as private.
    """
    here = _private_and_shared("self")
    if here is None:
        unit = 1 if sys.platform == "darwin" else 1024
        return MemoryUse(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 0)
    there = [found for found in map(_private_and_shared, map(str, workers)) if found is not None]
    shared = max([here[1], _memory_files_nbytes(), *(shared for _, shared in there)])
    return MemoryUse(here[0], shared, tuple(private for private, _ in there))


def worker_pids() -> list[int]:
    """Returns the living processes that this one started. None without `/proc`."""
    found: list[int] = []
    for path in PROC.glob("self/task/*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return sorted(found)


def mapped_nbytes() -> int:
    """Returns the resident pages of files and libraries that this process maps. 0 where unknown."""
    return _resident("self").get("RssFile", 0)


def _private_and_shared(process: str) -> tuple[int, int] | None:
    """Returns resident bytes of a process. None where they are unknown, and for a zombie."""
    found = _resident(process)
    return (found["RssAnon"], found["RssShmem"]) if found else None


def _resident(process: str) -> dict[str, int]:
    """Returns the kinds of resident bytes of a process by the kernel's names."""
    try:
        text = (PROC / process / "status").read_text()
    except OSError:
        return {}
    lines = [line.split() for line in text.splitlines() if line.startswith("Rss")]
    return {name.rstrip(":"): int(count) * 1024 for name, count, _ in lines}


def _memory_files_nbytes() -> int:
    """Returns the bytes in penstock's memory files that this process has open, in a microsecond or two each."""
    found: dict[int, int] = {}  # by inode, because a mapping may have a descriptor of its own
    with contextlib.suppress(OSError):
        for name in os.listdir(PROC / "self" / "fd"):  # not scandir, which Ctrl-C would leave open
            path = f"{PROC}/self/fd/{name}"
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.readlink(path).startswith("/memfd:penstock"):
                    status = os.stat(path)
                    found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def page_cache_nbytes() -> int:
    """Returns the pages of files that the kernel keeps for this control group, or for all. 0 where unknown."""
    for version, folder in control_groups("memory"):
        with contextlib.suppress(OSError, ValueError):
            return group_page_cache_nbytes(version, folder)
    return machine_nbytes("Cached") or 0


@final
class Peak:
    """The largest measured growth of a loader's process and workers."""

    def __init__(self) -> None:
        self.reserved_nbytes = memory_now().here_nbytes
        """The process's memory before."""
        self.nbytes = 0
        """The growth, with the workers' memory."""
        self.due_s: float = 0.0
        """The time of the next measurement, by `time.perf_counter`."""

    def look(self, workers: Iterable[int]) -> None:
        """Measures this process and the worker processes."""
        self.nbytes = max(self.nbytes, memory_now(workers).nbytes - self.reserved_nbytes)
        self.due_s = time.perf_counter() + INTERVAL_S
