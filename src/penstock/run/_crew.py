"""What the workers of a part of a plan are made from: the choice, the pickled program, a right to the pool."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, final

from penstock.base._reach import Reach
from penstock.base._threads import start_thread
from penstock.lower._program import Program
from penstock.plan._cache import Cache
from penstock.run._choose import Choice
from penstock.run._options import LoaderOptions
from penstock.run.executors._executor import Client, Executor
from penstock.run.executors._registry import EXECUTORS
from penstock.run.pool._interpreter import require_run_time
from penstock.run.pool._payload import PlanPayload, pack
from penstock.run.pool._pool import PoolClient, join, join_alone

_log = logging.getLogger("penstock")

LEAVE_WAIT_S: Final = 5.0
"""The wait for workers that are busy with something else."""
SHOWN_COUNT: Final = 4
"""The number of events in a report; the log has all."""


@final
class Crew:
    """The workers of a part of a plan before they are made.

    Args:
        choice: Which they are.
        options: The user's.
    """

    def __init__(self, choice: Choice, options: LoaderOptions) -> None:
        self.choice = choice
        self.timeout_s = options.timeout_s
        self.memory_limit = options.memory_limit
        self.ray_options: Mapping[str, Any] = options.ray_options or {}
        self.events: list[str] = []
        self._payload: PlanPayload | None = None
        self.client: PoolClient | None = None
        """The right to worker processes, if it was asked for."""

    @property
    def executor(self) -> str:
        """The name of the executor."""
        return self.choice.executor

    @property
    def worker_count(self) -> int:
        """See `Choice`."""
        return self.choice.worker_count

    @property
    def reach(self) -> Reach | None:
        """What its workers share with this process; None for `inline`."""
        return EXECUTORS[self.executor].reach

    @cached_property
    def process_count(self) -> int:
        """Its worker processes on this machine, at most."""
        return EXECUTORS[self.executor].process_count(self)

    @property
    def shared_nbytes(self) -> int:
        """Bytes of arrays in memory that worker processes share."""
        return self._payload.shared_nbytes if self._payload else 0

    @property
    def notes(self) -> str:
        """Remarks about the choice, and events of worker processes so far; a line each."""
        lines = [self.choice.note, *self.events[:SHOWN_COUNT]]
        if len(self.events) > SHOWN_COUNT:
            lines.append(f"And {len(self.events) - SHOWN_COUNT} more such lines, which went to the logger `penstock`.")
        return "\n".join(line for line in lines if line)

    def pack(self, program: Program) -> Sequence[Cache]:
        """Makes a program ready to travel, if workers are processes.

        Returns:
            Caches of datasets that functions hold, whose specs are unknown. In a worker they keep nothing.

        Raises:
            TravelError: It cannot travel.
        """
        if self.reach in (None, "thread"):
            return ()
        self._payload = pack(program.node, program, leaves_machine=self.reach == "machine")
        if self._payload.generators:
            line = (
                f"A function holds a random generator ({', '.join(self._payload.generators)}). Each worker has a "
                "copy of it, so its numbers repeat among workers, and depend on which worker does what. "
                "random_map(fn) gives fn(element, rng) numbers of its own."
            )
            if line not in self.events:
                self.events.append(line)
                _log.warning("%s", line)
        return self._payload.unseen

    def require(self, nbytes: int) -> None:
        """Refuses to start, if finished batches and the program take more memory of a cluster than there is."""
        EXECUTORS[self.executor].require(self, nbytes + self.shared_nbytes)

    def make_executor(self, client: Client) -> Executor:
        """Makes the executor and starts its workers.

        Raises:
            WorkerError: This is a worker process that imports a module.
        """
        if self.reach != "thread":
            require_run_time()
        make = EXECUTORS[self.executor].make
        assert make is not None
        return make(client, self)

    def take_payload(self) -> PlanPayload:
        """Returns the pickled program."""
        assert self._payload is not None
        return self._payload

    def join_pool(self) -> PoolClient:
        """Returns the right to the worker processes of this process; another one after a start that was cut off.

        Raises:
            WorkerError: This is a worker process that imports a module.
        """
        require_run_time()
        if self.client is None or self.client.has_left:
            _uninterrupted(self._join)
        assert self.client is not None
        return self.client

    def _join(self) -> None:
        local_count = self.worker_count if self.reach == "process" else 1  # on a cluster, one finds specs
        client = join_alone(self.events) if self.choice.is_alone else join(local_count, self.events)
        weakref.finalize(self, client.leave).atexit = False
        self.client = client

    def leave(self) -> None:
        """Releases workers that were started to find specs, if no executor was made."""
        leave([self])


def leave(crews: Sequence[Crew]) -> None:
    """Releases the workers of crews that run nothing, and waits for them for a moment."""
    clients = [each.client for each in crews if each.client is not None]
    for crew in crews:
        crew.client = None  # whoever asks again joins the pool anew
    for client in clients:
        client.leave()
    ends_at = time.monotonic() + LEAVE_WAIT_S
    for client in clients:
        client.join(max(0.0, ends_at - time.monotonic()))


def _uninterrupted(call: Callable[[], None]) -> None:
    """Makes a call on a thread of its own. Ctrl-C interrupts the main thread only, so the call completes."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="penstock-start", daemon=True)
    start_thread(thread)
    thread.join()
    for error in errors:
        raise error
