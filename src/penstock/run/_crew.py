"""What the workers of a part of a plan are made from: the choice, the pickled program, a right to the pool.

A `Crew` is a value. Crews of another choice, or with a program, are made from it. What lives is the `PoolRight` that
they share: workers that find specs run before the plan is arranged, and the same ones fill its batches.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, final

from penstock.base._reach import Reach
from penstock.base._threads import start_thread
from penstock.lower._program import Program
from penstock.run._choose import Choice
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
_NOTHING: Final = PlanPayload(b"", ())


@final
class PoolRight:
    """The right to worker processes of the crews that share it, and what happened to these processes.

    `Crew.join_pool` takes it. Whichever comes first gives it back: the executor that got the client, `leave`, or the
    end of the last crew. To give it back again does nothing. `close` may come from another thread, so the one that
    joins takes the client that it made, and does not read it from here.
    """

    def __init__(self) -> None:
        self.client: PoolClient | None = None
        """None if it was not asked for."""
        self.events: list[str] = []


@final
@dataclass(frozen=True, eq=False)
class Crew:
    """The workers of a part of a plan before they are made."""

    choice: Choice
    timeout_s: float
    memory_limit: int | None
    ray_options: Mapping[str, Any]
    right: PoolRight = field(default_factory=PoolRight)
    payload: PlanPayload = _NOTHING
    """The program, ready to travel to worker processes."""

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
    def events(self) -> list[str]:
        """A line for each event that the report shows."""
        return self.right.events

    @property
    def notes(self) -> str:
        """Remarks about the choice, and events of worker processes so far; a line each."""
        lines = [self.choice.note, *self.events[:SHOWN_COUNT]]
        if len(self.events) > SHOWN_COUNT:
            lines.append(f"And {len(self.events) - SHOWN_COUNT} more such lines, which went to the logger `penstock`.")
        return "\n".join(line for line in lines if line)

    def packed(self, program: Program) -> "Crew":
        """Returns the same workers with a program that is ready to travel, if they are processes.

        Raises:
            TravelError: It cannot travel.
        """
        if self.reach in (None, "thread"):
            return self
        payload = pack(program.node, program, leaves_machine=self.reach == "machine")
        if payload.generators:
            line = (
                f"A function holds a random generator ({', '.join(payload.generators)}). Each worker has a "
                "copy of it, so its numbers repeat among workers, and depend on which worker does what. "
                "random_map(fn) gives fn(element, rng) numbers of its own."
            )
            if line not in self.events:
                self.events.append(line)
                _log.warning("%s", line)
        return replace(self, payload=payload)

    def require(self, nbytes: int) -> None:
        """Refuses to start, if finished batches and the program take more memory of a cluster than there is."""
        EXECUTORS[self.executor].require(self, nbytes + self.payload.shared_nbytes)

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

    def join_pool(self) -> PoolClient:
        """Returns the right to the worker processes of this process; another one after a start that was cut off.

        Raises:
            WorkerError: This is a worker process that imports a module.
        """
        require_run_time()
        client = self.right.client
        return _uninterrupted(self._join) if client is None or client.has_left else client

    def _join(self) -> PoolClient:
        local_count = self.worker_count if self.reach == "process" else 1  # on a cluster, one finds specs
        client = join_alone(self.events) if self.choice.is_alone else join(local_count, self.events)
        weakref.finalize(self.right, client.leave).atexit = False
        self.right.client = client
        return client


def leave(crews: Iterable[Crew]) -> None:
    """Releases the workers of crews that run nothing, and waits for them for a moment."""
    rights = {each.right for each in crews}
    clients = [each.client for each in rights if each.client is not None]
    for right in rights:
        right.client = None  # whoever asks again joins the pool anew
    for client in clients:
        client.leave()
    ends_at = time.monotonic() + LEAVE_WAIT_S
    for client in clients:
        client.join(max(0.0, ends_at - time.monotonic()))


def _uninterrupted(call: Callable[[], PoolClient]) -> PoolClient:
    """Makes a call on a thread of its own. Ctrl-C interrupts the main thread only, so the call completes."""
    made: Future[PoolClient] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)

    thread = threading.Thread(target=run, name="penstock-start", daemon=True)
    start_thread(thread)
    thread.join()
    return made.result()
