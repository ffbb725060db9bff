"""All that an executor has to be: something that runs units, in any order, and says when each is done."""

from abc import ABC, abstractmethod
from typing import Protocol

from penstock._run._lower import Unit


class Client(Protocol):
    """Who gives an executor its units. Its methods may be called from any thread, but not from a finalizer."""

    def run(self, unit: Unit) -> None:
        """Runs a unit where the caller is. Raises what the unit raises."""

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        """Takes the outcome of a unit."""

    def pump(self) -> None:
        """Turns slots that came back into new units."""


class Executor(ABC):
    """Runs units. It sees no dataset, no batch and no order: a unit is all there is."""

    worker_count: int
    """How many units can run at once."""
    isolates: bool
    """Whether a process runs one element at a time, so that global random generators can be seeded for it."""

    @abstractmethod
    def submit(self, unit: Unit) -> None:
        """Takes a unit to run; returns at once."""

    @abstractmethod
    def wake(self) -> None:
        """Has `pump` called soon. Called from finalizers: it must take no lock and not fail."""

    def drive(self) -> bool:
        """Runs one unit on the calling thread, if this executor has no workers. Returns whether it did."""
        return False

    def progress(self) -> object:
        """A value that changes whenever a worker gets on; None if nothing is running."""
        return None

    def stuck(self) -> list[str]:
        """Says of each worker what it is doing and where, for the message of a deadline."""
        return []

    @abstractmethod
    def request_stop(self) -> None:
        """Has the workers stop at the next unit. Called from finalizers: it must take no lock and not fail."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Waits for the workers to end after `request_stop`, no longer than this. Returns whether they did."""
