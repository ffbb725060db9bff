"""How much memory this process and its worker processes have, and the most that they had while somebody watched."""

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.02
_PROC = Path("/proc")
_LOOK_INTERVAL_S = 0.2
"""Between two looks for worker processes: listing the threads of a framework costs more than reading a status."""


@dataclass(frozen=True)
class Memory:
    """Resident memory without the pages of files, which the kernel can drop at any time."""

    private_nbytes: int
    """Of this process alone."""
    shared_nbytes: int
    """That several processes may map: penstock's rings are of this kind. Counted once."""
    worker_nbytes: tuple[int, ...] = ()
    """Private memory of each worker process."""

    @property
    def here_nbytes(self) -> int:
        """Of this process, the shared part included."""
        return self.private_nbytes + self.shared_nbytes

    @property
    def nbytes(self) -> int:
        """All together."""
        return self.here_nbytes + sum(self.worker_nbytes)


def memory_now(workers: Iterable[int] = ()) -> Memory:
    """Measures this process and the worker processes with these ids.

    What is shared is the most that any of them maps. Where there is no `/proc`, all that was ever resident at once in
    this process counts as private.
    """
    here = _private_and_shared("self")
    if here is None:
        unit = 1 if sys.platform == "darwin" else 1024
        return Memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 0)
    there = [found for found in map(_private_and_shared, map(str, workers)) if found is not None]
    return Memory(here[0], max([here[1], *(shared for _, shared in there)]), tuple(private for private, _ in there))


def worker_pids() -> list[int]:
    """The processes that this one started and that live; none where there is no `/proc`."""
    found: list[int] = []
    for path in _PROC.glob("self/task/*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return sorted(found)


def cpu_s(pid: int) -> float:
    """Processor time that a process has used since its start; 0 for one that is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _private_and_shared(process: str) -> tuple[int, int] | None:
    """Resident bytes of a process, or None where that is not to be had."""
    try:
        text = (_PROC / process / "status").read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
    if not lines:  # it has ended, and nobody has asked how
        return None
    private, shared = (int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    return private, shared


class MemoryWatch:
    """Measures every 20 ms in a `with` block; `peak` is the most that was seen at once."""

    def __init__(self) -> None:
        self.peak = memory_now(worker_pids())
        self._ends = threading.Event()
        # A daemon: an interrupt between two lines of ours must not keep the process alive.
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def _watch(self) -> None:
        ends, workers, looked_at = False, worker_pids(), time.monotonic()
        while not ends:  # once more when it ends
            ends = self._ends.wait(_INTERVAL_S)
            if ends or time.monotonic() - looked_at > _LOOK_INTERVAL_S:
                workers, looked_at = worker_pids(), time.monotonic()
            self.peak = max(self.peak, memory_now(workers), key=lambda memory: memory.nbytes)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
