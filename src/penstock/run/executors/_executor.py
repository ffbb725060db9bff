"""All that an executor has to be: something that runs units, in any order, and says when each is done."""

import contextlib
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from penstock.base._errors import WorkerError
from penstock.lower._program import Program, Unit
from penstock.memory._ring import Ring
from penstock.memory._shared import SharedFile
from penstock.plan._tolerate import Failure
from penstock.run._feed_program import FeedProgram


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        WorkerError: The system gives no more.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise WorkerError(
            f"The system starts no more threads: {error}. A user's threads and processes are limited (ulimit -u), and "
            "those of a container (pids.max), and each takes address space (ulimit -v). Raise the limit, close loaders "
            "that are not needed, or take fewer workers=; executor='inline' needs none."
        ) from error


class Client(Protocol):
    """Who gives an executor its units. Its methods may be called from any thread, but not from a finalizer."""

    def run(self, unit: Unit) -> None:
        """Runs a unit where the caller is. Raises what the unit raises."""

    def describe(self, unit: Unit, trace: tuple[int, int, int]) -> str:
        """What a worker was at that had a unit, for messages; see `WorkerStatus` for where in it."""

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        """Takes the outcome of a unit."""

    def received(self, unit: Unit, objects: Sequence[Any], failures: Sequence[Failure]) -> None:
        """Takes what a unit made in another process and could not put into the slot; before `finished`.

        Args:
            unit: The unit.
            objects: Of leaves without a place in the slot.
            failures: Elements that were set aside.
        """

    def pump(self) -> None:
        """Turns slots that came back into new units."""

    def leave(self) -> None:
        """Lets go of what the calling worker has open, which ends."""


class Executor(ABC):
    """Runs units. It sees no dataset, no batch and no order: a unit is all there is."""

    worker_count: int
    """How many units can run at once; 0 if the consumer runs them itself."""
    queue_target: int
    """Batches are issued while fewer units than this are unfinished."""
    is_elsewhere = False
    """Whether units run in other processes, which the ring's memory has to be shared with."""
    shared: SharedFile | None = None
    """Where other processes that run units find what has no place in the ring; None if there are none."""
    takes_turns = False
    """Whether its workers run one at a time now."""
    is_driven = False
    """Whether the consumer runs units now, by `drive`, and workers none."""
    isolates: bool
    """Whether a process runs one element at a time, so that global random generators can be seeded for it."""

    def begin(self, program: Program | FeedProgram, ring: Ring, spans: Ring | None = None) -> None:
        """Is told once, before the first unit, what the units are of and where they go.

        Args:
            program: What the units are of.
            ring: Where they go.
            spans: Of a plan over a stream: where they read.
        """

    @property
    def hand_count(self) -> int:
        """How many workers share its units: those that were asked for, or more, where it shares them with others."""
        return self.worker_count

    @property
    def name(self) -> Literal["inline", "threads", "processes"]:
        """What its workers are, as a user asks for them."""
        if self.is_elsewhere:
            return "processes"
        return "threads" if self.worker_count else "inline"

    @abstractmethod
    def submit(self, units: Sequence[Unit]) -> None:
        """Takes the units of a batch to run; returns at once."""

    @abstractmethod
    def wake(self) -> None:
        """Has `pump` called soon. Called from finalizers: it must take no lock and not fail."""

    def drive(self) -> bool:
        """Runs one unit on the calling thread, the consumer's, if that is who runs them. Returns whether it did."""
        return False

    def change_hands(self) -> None:
        """Has the consumer run units from now on, or workers again. Called by it, while no unit is unfinished."""
        raise NotImplementedError(f"{self.name} cannot change hands")

    def forget(self) -> None:
        """Forgets units that the consumer was to run. Called by it."""

    def patience_s(self, timeout_s: float) -> float:
        """How long nobody gets on before the pipeline gives up; longer where the executor watches its workers."""
        return timeout_s

    def progress(self) -> object:
        """A value that changes whenever a worker gets on; None if nothing is running."""
        return None

    def tasks(self) -> list[str]:
        """Its workers as folders below `/proc`: of a process `pid`, of a thread of this one `self/task/tid`."""
        return []

    def stuck(self) -> list[str]:
        """Says of each worker what it is doing and where, for the message of a deadline."""
        return []

    @abstractmethod
    def request_stop(self) -> None:
        """Has the workers stop at the next unit. Called from finalizers: it must take no lock and not fail."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Waits for the workers to end after `request_stop`, no longer than this. Returns whether they did."""


def clear_own_frames(error: BaseException) -> None:
    """Lets go of what our frames of a traceback hold: rows of the ring, scratch memory.

    Somebody may keep the error for long, an interactive interpreter does. Frames of the user's functions stay
    as they are, for a debugger.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    with contextlib.suppress(Exception):  # a class of the user's may have made something of its own of these attributes
        while one is not None and id(one) not in seen:  # `raise e from e` is its own cause
            seen.add(id(one))
            for frame, _ in traceback.walk_tb(one.__traceback__):
                if frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
                    with contextlib.suppress(RuntimeError):  # it still runs
                        frame.clear()
            one = one.__cause__
