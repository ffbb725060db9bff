"""How much memory this process has, and the most that it had while somebody watched."""

import resource
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.02
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Memory:
    """Resident memory of this process, without the pages of files, which the kernel can drop at any time."""

    private_nbytes: int
    """Of this process alone."""
    shared_nbytes: int
    """That other processes may map, too: penstock's rings are of this kind."""

    @property
    def nbytes(self) -> int:
        """Both together."""
        return self.private_nbytes + self.shared_nbytes


def memory_now() -> Memory:
    """Measures; where there is no `/proc`, all that was ever resident at once counts as private."""
    if not _STATUS.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return Memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 0)
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Rss"))
    return Memory(*(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem")))


class MemoryWatch:
    """Measures every 20 ms in a `with` block; `peak` is the most that was seen at once."""

    def __init__(self) -> None:
        self.peak = memory_now()
        self._ends = threading.Event()
        # A daemon: an interrupt between two lines of ours must not keep the process alive.
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def _watch(self) -> None:
        ends = False
        while not ends:  # once more when it ends
            ends = self._ends.wait(_INTERVAL_S)
            self.peak = max(self.peak, memory_now(), key=lambda memory: memory.nbytes)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
