"""The limit of the memory of a worker process. What asks for more gets none, and that is an error of its element.

RLIMIT_DATA counts private memory that a process may write, reserved or used: heaps, stacks of threads, maps that are
copied on write. It does not count the ring and other shared memory. A library that gets no memory raises an error, or
aborts, which ends this process alone (`_crashes.py`).

What the process holds after it loaded a plan is given: the user's objects, and arrays that it shares. On top comes the
room of each plan: its share of `memory_limit`, or half of the memory that is free where the user gave no limit. Half,
because a function may hold a large table in one worker of many. What functions import later has an allowance.
"""

import contextlib
import math
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from penstock.base._units import size_text
from penstock.report._cgroups import free_nbytes

IMPORTS_NBYTES: Final = 1 << 30
"""For what functions import. Reserved after an import, in MiB, measured 2026-11: NumPy 89, h5py 92, JAX 138, torch 222,
OpenCV 242, TensorFlow 647, and pyarrow 145 with the setting in `_process.py`."""
NO_MEMORY: Final = 75
"""The exit status of a worker that got no memory, because earlier elements hold it."""
THREADS_NBYTES: Final = 16 << 20
"""For each CPU: the stacks of two threads, as frameworks start them."""


def room_of(share_nbytes: float) -> float:
    """Returns the room of a plan, in bytes, of which a worker has a share of `memory_limit`; infinity for no limit."""
    free = free_nbytes() if math.isinf(share_nbytes) else None
    return share_nbytes if free is None else free // 2


def words_of_limit(nbytes: int) -> str:
    """Says what a limit consists of, and what to do."""
    return (
        f"A worker process may reserve {size_text(nbytes)} here: what it held before, {size_text(IMPORTS_NBYTES)} for "
        "imports, and its share of memory_limit, or else half of the memory that was free. If elements need more, "
        "raise memory_limit or use fewer workers. If not, the file is damaged."
    )


@final
class MemoryLimit:
    """The limit of this process, below the one that it was started with."""

    def __init__(self) -> None:
        self._given = resource.getrlimit(resource.RLIMIT_DATA)
        self._nbytes = math.inf
        self._held_nbytes = 0
        """When it was set."""

    def lift(self) -> None:
        """Ends the limit, while a plan is loaded."""
        resource.setrlimit(resource.RLIMIT_DATA, self._given)

    def set(self, rooms: Iterable[float]) -> None:
        """Limits what may be reserved beside what is held now.

        Args:
            rooms: The room of each loaded plan.
        """
        soft, hard = self._given
        self._held_nbytes = _held_nbytes()
        threads_nbytes = THREADS_NBYTES * (os.cpu_count() or 1)
        self._nbytes = self._held_nbytes + IMPORTS_NBYTES + threads_nbytes + sum(rooms)
        if soft != resource.RLIM_INFINITY:
            self._nbytes = min(self._nbytes, soft)
        if math.isfinite(self._nbytes):
            resource.setrlimit(resource.RLIMIT_DATA, (int(self._nbytes), hard))

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self._nbytes)

    def on_lack(self) -> str:
        """Returns what to say of an element that got no memory; see `words_of_limit`.

        If little is left without that element, as where a function keeps what it read, the next one would get none
        either. Then this ends the process, and a new worker does the unit again.
        """
        if self._nbytes - _held_nbytes() < (self._nbytes - self._held_nbytes) / 4:
            os._exit(NO_MEMORY)
        return words_of_limit(int(self._nbytes))


def _held_nbytes() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
