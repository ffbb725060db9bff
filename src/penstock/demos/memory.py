"""The most memory that this process and its worker processes had while somebody watched."""

import os
import threading
import time
from typing import Self

from penstock.report._cgroups import PROC
from penstock.report._memory import memory_now, worker_pids

_INTERVAL_S = 0.02
_LOOK_INTERVAL_S = 0.2
"""Between two looks for worker processes: listing the threads of a framework costs more than reading a status."""


def cpu_s(pid: int) -> float:
    """Processor time that a process has used since its start; 0 for one that is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
