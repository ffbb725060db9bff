"""The interface of executors. An executor runs units, in any order, and reports when each is done.

Units flow one way. The executor asks its client for units to run: by `Client.issue` after `wake`, and as the return
value of `Client.finished`. So an executor needs no lock of the client's, and one call for each unit.
"""

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from penstock.base._reach import Reach
from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.memory._shared import SharedFile


class Client(Protocol):
    """Gives units to an executor and takes their results.

    Its methods may be called from any thread, but not from a finalizer, because they take a lock.
    """

    def issue(self) -> Sequence[Unit]:
        """Returns units to run, in order, for slots that are free. They count as under way from now on."""

    def run(self, unit: Unit) -> UnitResult:
        """Runs a unit in this process, on the calling thread. Errors are in the result; see `UnitRunner.run`."""

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        """Takes the result of a unit. Returns units to run next, in order; see `issue`."""

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """Describes what a worker is working on, for messages. `status` is that of the worker; see `WorkerStatus`."""

    def leave(self) -> None:
        """Closes what the calling worker holds open. A thread calls this before it ends."""


class Executor(ABC):
    """Runs units. It knows no dataset, no batch and no order.

    `begin` comes first, then `wake`. After that the executor asks its client for units. If a worker dies, its unit has
    finished with a `WorkerError`; the client says whether it runs again.
    """

    name: ClassVar[str]
    """The name by which users ask for it; see `_registry.py`."""
    worker_count: int
    """How many units can run at once."""
    queue_target: int
    """The client issues batches while fewer units than this are unfinished."""
    reach: ClassVar[Reach]
    """What its workers share with this process."""
    shared: SharedFile | None = None
    """Where worker processes find data that has no place in a ring; None if there are none."""

    def begin(self, program: Program, ring: Ring, inputs: Ring | PartMemory | None = None) -> None:
        """Receives the program, once, before the first unit.

        Args:
            program: The program of the units.
            ring: Where units write.
            inputs: Where units read what others made: the spans of a stream, or decoded parts.
        """

    @property
    def available_count(self) -> int:
        """How many workers run its units. An executor that shares its workers with others may have more."""
        return self.worker_count

    @abstractmethod
    def wake(self) -> None:
        """Makes the executor call `Client.issue` soon. Finalizers call this, so it takes no lock and does not fail."""

    def deadline_s(self, timeout_s: float) -> float:
        """How long a standstill lasts before the loader gives up. Longer for executors that watch their workers."""
        return timeout_s

    def progress(self) -> object:
        """Returns a value that changes when a worker moves on; None if nothing runs."""
        return None

    def tasks(self) -> list[str]:
        """Returns the workers as folders below `/proc`: `pid` for a process, `self/task/tid` for a thread."""
        return []

    def stuck(self) -> list[str]:
        """Describes what each worker is doing and where, for the message of a deadline."""
        return []

    @abstractmethod
    def request_stop(self) -> None:
        """Makes workers stop at the next unit. Finalizers call this, so it takes no lock and does not fail."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Waits for the workers to end after `request_stop`. Returns whether they ended in time."""


def clear_own_frames(error: BaseException) -> None:
    """Clears the frames of this package in a traceback, which hold rows of the ring and scratch memory.

    An interactive interpreter keeps the last error for long. Frames of the user's functions stay, for a debugger.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    with contextlib.suppress(Exception):  # the user's class may have replaced these attributes
        while one is not None and id(one) not in seen:  # `raise e from e` is its own cause
            seen.add(id(one))
            for frame, _ in traceback.walk_tb(one.__traceback__):
                if frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
                    with contextlib.suppress(RuntimeError):  # the frame still runs
                        frame.clear()
            one = one.__cause__
