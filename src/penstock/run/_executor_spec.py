"""Which executor runs a plan, with how many workers, and why."""

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, final

from penstock.base._errors import ArgumentError, DeadlineError, PenstockError, TravelError
from penstock.lower._batches import is_remote
from penstock.lower._program import Program, Unit, UnitResult
from penstock.lower._streams import FeedProgram, SerialProgram
from penstock.plan._cache import Cache
from penstock.plan._map import Map, adopt, learn
from penstock.plan._node import Node, walk
from penstock.plan._reader import WorkerStatus, place_of
from penstock.plan._stream import Generate, Inlet
from penstock.plan._tolerate import FailureFilter
from penstock.run._cpus import usable_cpu_count
from penstock.run.executors._consumer_or_threads import ConsumerOrThreadsExecutor
from penstock.run.executors._executor import Client, Executor, start_thread
from penstock.run.executors._registry import EXECUTORS
from penstock.run.pool._payload import PlanPayload, pack
from penstock.run.pool._pool import PoolClient, join, join_alone, pool_deadline_s
from penstock.run.pool._remote_error import unpickled

_log = logging.getLogger("penstock")

HAS_PROCESSES: Final = sys.platform == "linux"
"""Elsewhere a socket that keeps packets apart and tells of its end, and what kills workers whose parent is killed,
would have to be something else; nobody has built and tried that."""


REMOTE_THREAD_COUNT: Final = 8
"""So many threads at least where they wait for a server, for that takes no CPU: more than batches are under way by
default."""
LEAVE_WAIT_S: Final = 5.0
"""How long workers that are at something else may take to go."""
SHOWN_COUNT: Final = 4
"""How many events a report shows. The log has all of them."""


@final
class ExecutorSpec:
    """An executor that was chosen, and what it takes to make it.

    Args:
        executor: Its name.
        worker_count: Its workers; 0 for `inline`.
        timeout_s: How long a worker may stand still.
        note: What there is to say about the choice.
        is_alone: Whether its worker process is to be given nothing else to do.
    """

    def __init__(
        self, executor: str, worker_count: int, timeout_s: float, note: str, *, is_alone: bool = False
    ) -> None:
        self.executor = executor
        self.worker_count = worker_count
        self.note = note
        self.events: list[str] = []
        self.timeout_s = timeout_s
        self.is_alone = is_alone
        self._payload: PlanPayload | None = None
        self._pool_client: PoolClient | None = None

    @property
    def shared_nbytes(self) -> int:
        """Bytes of arrays that are put where worker processes see them."""
        return self._payload.shared_nbytes if self._payload else 0

    @property
    def remarks(self) -> str:
        """What there is to say about the choice, and what happened to worker processes so far."""
        lines = [self.note, *self.events[:SHOWN_COUNT]]
        if len(self.events) > SHOWN_COUNT:
            lines.append(f"And {len(self.events) - SHOWN_COUNT} more such lines, which went to the logger `penstock`.")
        return "\n".join(line for line in lines if line)

    def find_specs(self, node: Node) -> None:
        """Has a worker process run the functions whose specs are unknown, for they may crash or hang.

        Raises:
            TravelError: The plan cannot go to another process.
            PenstockError: What a function raised, or how it ended its workers.
        """
        if self.executor != "processes" or all(each.known_spec for each in walk(node) if isinstance(each, Map)):
            return
        payload, answer = pack(node, node), _Answer(node)
        client = self.join_pool()
        task = client.open(payload, None, self.timeout_s, answer)
        unit = Unit(epoch=0, index=0, start=0, stop=1, slot=0, generation=1)
        client.pool.post(lambda: client.pool.submit(task, [unit]))
        adopt(node, unpickled(answer.wait(pool_deadline_s(self.timeout_s))))
        client.close(task)

    def pack(self, program: Program[Any]) -> None:
        """Gets a program ready to travel, if it has to.

        Raises:
            TravelError: It cannot.
        """
        if self.executor == "processes":
            self._payload = pack(program.node, program)
            while self._finds_held(self._payload.unseen):
                self._payload = pack(program.node, program)
            if self._payload.generators:
                self.events.append(
                    f"A function holds a random generator ({', '.join(self._payload.generators)}). Each worker has a "
                    "copy of it, so its numbers repeat among workers, and depend on which worker does what. "
                    "random_map(fn) gives fn(element, rng) numbers of its own."
                )
                _log.warning("%s", self.events[-1])

    def _finds_held(self, caches: Sequence[Cache]) -> bool:
        """Finds what caches are to keep of datasets that functions hold; returns whether it did of any."""
        for cache in caches:
            with contextlib.suppress(PenstockError):  # whoever reads it is told
                self.find_specs(cache)
                cache.spec  # noqa: B018  # which is known then
        return any(cache.known_spec for cache in caches)

    def make_executor(self, client: Client, *, consumer_slots: tuple[int, int | None] | None = None) -> Executor:
        """Makes the executor and starts its workers.

        Args:
            client: Gives it units.
            consumer_slots: If the consumer may fill batches itself: the slots of the ring, and the bytes of a batch.
        """
        if consumer_slots is not None:
            return ConsumerOrThreadsExecutor(client, self.worker_count, self.events, *consumer_slots)
        return EXECUTORS[self.executor].make(client, self)

    def take_payload(self) -> PlanPayload:
        """Returns the pickled program."""
        assert self._payload is not None
        return self._payload

    def join_pool(self) -> PoolClient:
        """Returns the right to the worker processes of this process."""
        if self._pool_client is None:
            _undisturbed(self._join)
        assert self._pool_client is not None
        return self._pool_client

    def _join(self) -> None:
        client = join_alone(self.events) if self.is_alone else join(self.worker_count, self.events)
        weakref.finalize(self, client.leave).atexit = False
        self._pool_client = client

    def leave(self) -> None:
        """Lets go of workers that were started to find specs, if no executor was made."""
        if self._pool_client is not None:
            self._pool_client.leave()
            self._pool_client.join(LEAVE_WAIT_S)


def _undisturbed(call: Callable[[], None]) -> None:
    """Makes a call on a thread of its own, for Ctrl-C strikes the main thread: the call is made whole all the same."""
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


@final
class _Answer:
    """Takes the specs that a worker finds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._payload: Any = None

    def wait(self, patience_s: float) -> Any:
        # Ended by the pool, which finishes every unit, or by the deadline, should a dead worker not go away.
        if not self._is_over.wait(min(patience_s, threading.TIMEOUT_MAX)):
            raise DeadlineError(
                f"No worker process said within {patience_s:g} s what the functions of the plan return. Say it "
                "yourself: map(fn, element_spec=...)."
            )
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and so whoever waits
        (pickled,) = self._payload
        return pickled

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        if status[0]:
            return place_of(status, self._node)
        return "the plan, which it loads to see what its functions return"

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        self._error, self._payload = result.error, result.rows
        self._is_over.set()
        return ()


def choose(
    node: Node, executor: str, workers: int | Literal["auto"], timeout_s: float, functions: Sequence[Map] | None = None
) -> ExecutorSpec:
    """Chooses how to run a plan.

    `auto`: a user's Python function means processes, for it may hold the GIL; threads if it cannot travel to
    another process. Without such a function, threads: what we do ourselves lets go of the GIL, and so does a function
    that says so by an attribute, `releases_gil = True`. As many as CPUs, and more where they wait for a server.

    Args:
        node: The plan.
        executor: What the user asked for.
        workers: How many.
        timeout_s: How long a worker may stand still.
        functions: The steps with functions, as they stand in the whole plan, where they can be asked for a first
            element; by default those of `node`.

    Raises:
        ArgumentError: The executor cannot run this plan, or takes no workers.
        TravelError: The plan cannot go to worker processes, which were asked for.
    """
    takes_any = any(isinstance(each, FailureFilter) for each in walk(node))
    if executor == "inline":
        if workers not in ("auto", 1):
            raise ArgumentError(f"executor='inline' has no workers, but workers={workers} was asked for.")
        learn(node, WorkerStatus(), takes_any=takes_any)
        return ExecutorSpec("inline", 0, timeout_s, "")
    if executor == "processes" and not HAS_PROCESSES:
        raise ArgumentError(
            f"executor='processes' runs on Linux so far, and this is {sys.platform}. Use executor='threads'."
        )
    count = usable_cpu_count() if workers == "auto" else workers
    if functions is None:
        functions = [each for each in walk(node) if isinstance(each, Map)]
    note = ""
    if executor == "processes" or (
        executor == "auto" and HAS_PROCESSES and any(not each.releases_gil for each in functions)
    ):
        choice = ExecutorSpec("processes", count, timeout_s, "")
        try:
            choice.find_specs(node)
            if executor == "auto":
                pack(node, node)
            return choice
        except BaseException as error:
            choice.leave()
            if executor == "processes" or not isinstance(error, TravelError):
                raise
            note = f"It runs on threads, not on processes: {error}"
            _log.warning("%s", note)
    if executor not in ("auto", "threads"):
        reads_spans = any(isinstance(each, Inlet) for each in walk(node))
        if EXECUTORS[executor].reads_spans or not reads_spans:
            learn(node, WorkerStatus(), takes_any=takes_any)
            return ExecutorSpec(executor, count, timeout_s, "")
    for each in functions:
        with contextlib.suppress(Exception):  # an element that fails here fails again in its place
            each.learn(takes_any=takes_any)  # a declared spec says nothing about generators
    culprit = next((each for each in functions if each.memo.learned.uses_globals), None)
    if culprit is None:
        if workers == "auto" and is_remote(node):
            count = max(count, REMOTE_THREAD_COUNT)
        drawing = next((each for each in functions if each.memo.learned.uses_torch), None)
        if drawing is not None:
            warning = (
                f"{drawing.label} at {drawing.where} draws from torch's global generator, which threads share with "
                "each other and with your training: what it draws is another in each run, also after "
                "torch.manual_seed(). executor='processes' gives each worker one of its own."
            )
            _log.warning("%s", warning)
            note = f"{note} {warning}".lstrip()
        return ExecutorSpec("threads", count, timeout_s, note)
    if executor == "auto":
        return ExecutorSpec(
            "inline",
            0,
            timeout_s,
            f"It runs inline, without workers, because {culprit.label} draws from the global np.random or random and "
            "cannot go to other processes; random_map() gives it numbers of its own and lets it run on threads. "
            f"{note}",
        )
    raise ArgumentError(
        f"{culprit.label} at {culprit.where} draws from the global np.random or random, whose state threads would "
        "share in an order that nobody controls. Use random_map(fn), whose fn(element, rng) gets numbers of its own, "
        "or executor='processes', or 'inline'."
    )


def choose_feed(program: FeedProgram | SerialProgram, executor: str, timeout_s: float) -> ExecutorSpec:
    """Chooses where a stream is read: in a worker process of its own, on a thread, or by the consumer.

    In a process, a generator's Python does not stand in the way of the training's. It stays on a thread where it cannot
    travel, as an iterator of another library, and where it takes batches of its stages.

    Args:
        program: What reads it.
        executor: What the user asked for.
        timeout_s: How long it may stand still.

    Raises:
        TravelError: A process was asked for, and it holds what cannot travel.
    """
    if executor == "inline":
        return ExecutorSpec("inline", 0, timeout_s, "")
    generates = [node for node in walk(program.node) if isinstance(node, Generate)]
    has_stages = isinstance(program, FeedProgram) and bool(program.stages)
    if executor == "threads" or not HAS_PROCESSES or has_stages or not all(each.data.travels for each in generates):
        return ExecutorSpec("threads", 1, timeout_s, "")
    feed = ExecutorSpec("processes", 1, timeout_s, "", is_alone=True)
    try:
        feed.pack(program)
    except TravelError as error:
        if executor == "processes":
            raise
        note = f"The stream is read on a thread of this process, not in one of its own: {error}"
        _log.warning("%s", note)
        return ExecutorSpec("threads", 1, timeout_s, note)
    return feed
