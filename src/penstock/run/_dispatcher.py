"""What gives units to workers that may be lost: the base of the pool of processes and of the fleet on Ray.

Which thread writes what. Everything in a `Dispatcher` belongs to its one thread, which takes turns until the last
client has left. Other threads use `post`: a call for that thread to make, put into a queue that takes no lock, so
finalizers may post too. The thread holds the client of an executor only while it works for it (`ClientReceiver`); see
`executors/_threads.py` for the reason.

Guarantees.
- A unit that was submitted is settled once: with its result, or with an error. Lost workers, the end of a loader and a
  bug of the dispatcher are no exceptions. If nothing works any more, every unit fails with the reason.
- A client is gone when none of its units runs; the last one, when the workers have ended too.

Each wait, and what ends it. A turn waits as its class says. `join` waits for the thread, or for its timeout.
"""

import copy
import itertools
import logging
import os
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, final

from penstock.base._errors import LoaderError
from penstock.lower._program import Unit, UnitResult
from penstock.run.executors._executor import Client
from penstock.run.pool._registry import Registry

CRASH_LIMIT: Final = 3
"""A unit is an error when so many workers, or agents, in a row were lost with it. One loss may have another cause."""
RETRY_S: Final = 0.001
EMPTY: Final = UnitResult()

_log = logging.getLogger("penstock")
_numbers: Final = itertools.count(1)


class Receiver(Protocol):
    """Takes what comes of the units of a task; called on the dispatcher's thread."""

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """Describes where a worker is in a unit, for messages. `status` is the worker's: see `WorkerStatus`."""

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        """Takes the result of a unit; returns units of the same task to run next, in order."""


@final
class ClientReceiver:
    """Hands results to the client of an executor, if it is still there."""

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)

    def issue(self) -> Sequence[Unit]:
        """See `Client`."""
        client = self._client()
        return () if client is None else client.issue()

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        """See `Receiver`."""
        client = self._client()
        return () if client is None else client.finished(unit, result)

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """See `Receiver`."""
        client = self._client()
        return "a batch that is not wanted any more" if client is None else client.describe(unit, status)


@final
class Notes:
    """Lines for people about the workers of a loader: for its report, and for the log.

    Args:
        lines: Gets each line.
    """

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._topics: set[str] = set()

    def add(self, text: str, *, topic: str = "") -> None:
        """Keeps a line and logs it, unless there is one of the same topic, or with the same text."""
        if (topic or text) not in self._topics:
            self._topics.add(topic or text)
            self._lines.append(text)
            _log.warning("%s", text)


class Task:
    """A program that a dispatcher knows.

    Args:
        timeout_s: How long a worker may stand still.
        receiver: Takes the outcomes.
        notes: Those of the loader.
    """

    def __init__(self, timeout_s: float, receiver: Receiver, notes: Notes) -> None:
        self.number = next(_numbers)
        self.timeout_s = timeout_s
        self.receiver = receiver
        self.notes = notes
        self.unfinished_count = 0
        """Units that are not settled."""


T = TypeVar("T", bound=Task)


@final
@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A unit under way."""

    task: T
    unit: Unit
    number: int = field(default_factory=_numbers.__next__)
    """In the order of submission, which the places in the pool's queue do not tell: it is a circle."""
    crash_count: int = 0
    hang_count: int = 0


class Dispatcher(ABC, Generic[T]):
    """Gives the units of tasks to workers, on a thread of its own.

    Args:
        name: The name of the thread.
        registry: Where loaders find it.
    """

    def __init__(self, name: str, registry: "Registry[Any]") -> None:
        self.client_count = 1
        """Guarded by the registry."""
        self.progress = 0
        """Grows while workers get on."""
        self._registry = registry
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._tasks: dict[int, T] = {}
        self._failing: list[Job[T]] = []
        """Given up, or submitted when nothing works any more."""
        self._failure: Exception | None = None
        """Why nothing works any more."""
        self._last: DispatcherClient[T] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # For everybody.

    def post(self, call: Callable[[], object]) -> None:
        """Makes the thread make a call. Takes no lock, so finalizers may do it."""
        self._inbox.put(call)

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the dispatcher's own thread."""
        return threading.current_thread() is self._thread

    # Everything below is the dispatcher's thread.

    def _run(self) -> None:
        while self.client_count:
            try:
                self._turn()
            except BaseException as error:  # a bug of ours; no consumer may wait for ever because of it
                what = self._note_bug()
                self._fail(LoaderError(f"{what} failed: {type(error).__name__}: {error}."))
                time.sleep(RETRY_S)  # should it fail again and again
        try:
            self._end()
        finally:
            last, self._last = self._last, None  # which holds this
            if last is not None:
                last.is_gone.set()

    @abstractmethod
    def _turn(self) -> None:
        """Waits for something to do, and does it."""

    @abstractmethod
    def _note_bug(self) -> str:
        """Logs the error that is being handled, and returns what failed."""

    @abstractmethod
    def _end(self) -> None:
        """Ends the workers, and frees everything."""

    @abstractmethod
    def leave(self, client: "DispatcherClient[T]") -> None:
        """Closes the tasks of a client, and lets it go (`_let_go`)."""

    @abstractmethod
    def _await_worker(self, task: T, jobs: Sequence[Job[T]]) -> None:
        """Takes jobs for the end of this turn, in order."""

    @abstractmethod
    def _give_up(self) -> Iterable[Job[T]]:
        """Ends the workers, and returns all jobs."""

    def _take_posts(self) -> None:
        for _ in range(self._inbox.qsize()):
            self._inbox.get_nowait()()

    def submit(self, task: T, units: Sequence[Unit]) -> None:
        """Takes units. They are given to workers, in order, at the end of this turn."""
        task.unfinished_count += len(units)
        jobs = [Job(task, unit) for unit in units]
        if self._failure is None:
            self._await_worker(task, jobs)
        else:
            self._failing += jobs  # not at once: the caller may hold a lock that its receiver takes

    def _settle(self, job: Job[T], result: UnitResult) -> None:
        # Counted before the receiver looks for slots: see `ProcessesExecutor.wake`.
        job.task.unfinished_count -= 1
        if units := job.task.receiver.finished(job.unit, result):
            self.submit(job.task, units)

    def _let_go(self, client: "DispatcherClient[T]") -> None:
        if self._registry.left(self):
            self._last = client  # gone when the workers are
        else:
            client.is_gone.set()

    def _fail(self, error: Exception) -> None:
        """Fails everything, now and later; new loaders get another dispatcher."""
        self._failure = self._failure or error
        self._registry.discard(self)
        self._failing += self._give_up()

    def _settle_failing(self) -> None:
        """Settles the jobs for which nothing works any more. Those that this submits wait for the next turn."""
        if self._failing:
            assert self._failure is not None
            failing, self._failing = self._failing, []
            for job in failing:
                self._settle(job, UnitResult(copy.copy(self._failure)))  # whose traceback is its own


class DispatcherClient(Generic[T]):
    """A loader's right to the workers, from its making to its end.

    Args:
        dispatcher: It counts this client already.
        lines: Gets a line for each thing that happens to its workers, for people.
    """

    def __init__(self, dispatcher: Dispatcher[T], lines: list[str]) -> None:
        self.is_gone = threading.Event()
        """Set when no unit of this client runs. If it was the last client, the workers have ended too."""
        self.tasks: list[T] = []
        self.notes = Notes(lines)
        self._dispatcher = dispatcher
        self.has_left = False
        """Whether `leave` was called: nothing runs for it any more."""
        self._pid = os.getpid()

    def leave(self) -> None:
        """Gives up all units; `is_gone` tells when. May be called by finalizers, and again."""
        if self.has_left or self._pid != os.getpid():
            return
        self._dispatcher.post(lambda: self._dispatcher.leave(self))
        self.has_left = True  # last: Ctrl-C may strike anywhere before, and then another call does it

    def join(self, timeout_s: float) -> bool:
        """Waits until it is gone; returns whether it is. After fork() a child has nothing to wait for.

        The dispatcher's own thread, where a user's finalizer may close a loader, does not wait for itself.
        """
        return self._pid != os.getpid() or self.is_gone.wait(0 if self._dispatcher.is_current_thread else timeout_s)
