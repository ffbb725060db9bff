"""Chooses the executor of a plan and its number of workers, and makes it."""

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Final, final

from penstock.base._errors import ArgumentError, DeadlineError, PenstockError, TravelError
from penstock.base._reach import Reach
from penstock.base._threads import start_thread
from penstock.lower._analysis import Analysis, analyse
from penstock.lower._program import Program, Unit, UnitResult
from penstock.plan._cache import Cache
from penstock.plan._map import adopt
from penstock.plan._node import Node
from penstock.plan._text import place_of
from penstock.run._cpus import usable_cpu_count
from penstock.run._options import LoaderOptions
from penstock.run.executors._executor import Client, Executor
from penstock.run.executors._registry import EXECUTORS
from penstock.run.pool._interpreter import why_no_interpreter
from penstock.run.pool._payload import PlanPayload, pack
from penstock.run.pool._pool import PoolClient, join, join_alone, pool_deadline_s
from penstock.run.pool._remote_error import unpickled

_log = logging.getLogger("penstock")

HAS_PROCESSES: Final = sys.platform == "linux"
"""Other systems would need another kind of socket, which keeps packets apart and reports its end, and another way to
end workers whose parent was killed. That is neither built nor tried."""
REMOTE_THREAD_COUNT: Final = 8
"""The least number of threads that wait for a server. Waiting takes no CPU, and more than the default number of
batches are then under way. Where requests are made ahead, threads do not wait: on two CPUs 2 of them read shuffled
images 1.2 times as fast as 8, and from the cache on disk twice as fast."""
LEAVE_WAIT_S: Final = 5.0
"""The wait for workers that are busy with something else."""
SHOWN_COUNT: Final = 4
"""The number of events in a report; the log has all."""


@final
class ExecutorSpec:
    """A chosen executor, and the resources to make it.

    Args:
        executor: Its name.
        worker_count: Its workers; 0 for `inline`.
        timeout_s: How long a worker may make no progress.
        note: A remark about the choice, for the report.
        is_alone: Whether its worker process belongs to no pool.
        ray_options: The user's options for agents on Ray.
    """

    def __init__(
        self,
        executor: str,
        worker_count: int,
        timeout_s: float,
        note: str = "",
        *,
        is_alone: bool = False,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.executor = executor
        self.ray_options = ray_options or {}
        self.worker_count = worker_count
        self.note = note
        self.is_alone = is_alone
        self.events: list[str] = []
        self.timeout_s = timeout_s
        self._payload: PlanPayload | None = None
        self._client: PoolClient | None = None

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
        lines = [self.note, *self.events[:SHOWN_COUNT]]
        if len(self.events) > SHOWN_COUNT:
            lines.append(f"And {len(self.events) - SHOWN_COUNT} more such lines, which went to the logger `penstock`.")
        return "\n".join(line for line in lines if line)

    def learn(self, analysis: Analysis, *, is_tried: bool = False) -> None:
        """Runs functions with unknown specs in a worker process, because they may crash or hang.

        Args:
            analysis: The plan.
            is_tried: Whether a worker loads the plan also where all specs are known.

        Raises:
            TravelError: The plan cannot go to another process.
            PenstockError: The error of a function, or the end of its workers.
        """
        if not HAS_PROCESSES:
            analysis.learn()
        if self.reach in (None, "thread") or (analysis.is_learnt and not is_tried):
            return
        node = analysis.plan
        payload, answer = pack(node, node), _Answer(node)
        client = self.join_pool()
        task = client.open(payload, None, self.timeout_s, answer)
        unit = Unit(epoch=0, index=0, start=0, stop=1, slot=0, generation=1)
        client.pool.post(lambda: client.pool.submit(task, [unit]))
        # The pool ends the wait, because it finishes every unit; or the deadline does, if a dead worker stays.
        limit_s = pool_deadline_s(self.timeout_s)
        try:
            result = answer.result.result(min(limit_s, threading.TIMEOUT_MAX))
        except TimeoutError:
            raise DeadlineError(
                f"No worker process said within {limit_s:g} s what the functions of the plan return. Say it "
                "yourself: map(fn, element_spec=...)."
            ) from None
        error, rows = result.error, result.rows
        del answer, result
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and so the caller
        adopt(node, unpickled(rows[0]))
        client.close(task)

    def pack(self, program: Program) -> None:
        """Makes a program ready to travel, if workers are processes.

        Raises:
            TravelError: It cannot travel.
        """
        if self.reach in (None, "thread"):
            return
        self._payload = pack(program.node, program, leaves_machine=self.reach == "machine")
        while self._learns_held(self._payload.unseen):
            self._payload = pack(program.node, program, leaves_machine=self.reach == "machine")
        if self._payload.generators:
            self.events.append(
                f"A function holds a random generator ({', '.join(self._payload.generators)}). Each worker has a "
                "copy of it, so its numbers repeat among workers, and depend on which worker does what. "
                "random_map(fn) gives fn(element, rng) numbers of its own."
            )
            _log.warning("%s", self.events[-1])

    def _learns_held(self, caches: Sequence[Cache]) -> bool:
        """Finds the specs of caches in datasets that functions hold; returns whether it found one."""
        for cache in caches:
            with contextlib.suppress(PenstockError):  # the step that reads it raises it again
                self.learn(analyse(cache))
                cache.spec  # noqa: B018  # known from now on
        return any(cache.known_spec for cache in caches)

    def require(self, nbytes: int) -> None:
        """Refuses to start, if finished batches and the program take more memory of a cluster than there is."""
        EXECUTORS[self.executor].require(self, nbytes + self.shared_nbytes)

    def make_executor(self, client: Client) -> Executor:
        """Makes the executor and starts its workers."""
        make = EXECUTORS[self.executor].make
        assert make is not None
        return make(client, self)

    def take_payload(self) -> PlanPayload:
        """Returns the pickled program."""
        assert self._payload is not None
        return self._payload

    def join_pool(self) -> PoolClient:
        """Returns the right to the worker processes of this process."""
        if self._client is None:
            _uninterrupted(self._join)
        assert self._client is not None
        return self._client

    def _join(self) -> None:
        local_count = self.worker_count if self.reach == "process" else 1  # on a cluster, one finds specs
        client = join_alone(self.events) if self.is_alone else join(local_count, self.events)
        weakref.finalize(self, client.leave).atexit = False
        self._client = client

    def leave(self) -> None:
        """Releases workers that were started to find specs, if no executor was made."""
        if self._client is not None:
            self._client.leave()
            self._client.join(LEAVE_WAIT_S)


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


@final
class _Answer:
    """Takes the specs that a worker finds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.result: Future[UnitResult] = Future()

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        if status[0]:
            return place_of(status, self._node)
        return "the plan, which it loads to see what its functions return"

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        self.result.set_result(result)
        return ()


def why_no_processes() -> str:
    """Returns why this program has no worker processes, and what helps; an empty text if it has them."""
    if not HAS_PROCESSES:
        return f"They run on Linux so far, and this is {sys.platform}. Use executor='threads'."
    return why_no_interpreter()


def choose(analysis: Analysis, options: LoaderOptions) -> ExecutorSpec:
    """Chooses how to run a plan, and finds the specs of its functions.

    `auto` means processes if a user's function may hold the GIL, and threads if such a function cannot travel to
    another process. Without such a function it means threads: the library releases the GIL, and so does a function with
    the attribute `releases_gil = True`. There are as many workers as CPUs; more threads if they wait for a server, and
    one if several would be no faster.

    Raises:
        ArgumentError: The executor cannot run this plan, or takes no workers.
        TravelError: The user asked for processes, and the plan cannot travel.
    """
    executor, workers, timeout_s = options.executor, options.workers, options.timeout_s
    if executor == "inline":
        analysis.learn()
        return ExecutorSpec("inline", 0, timeout_s)
    problem = why_no_processes()
    reach = _asked_reach(executor)
    if reach == "process" and problem:
        raise ArgumentError(f"executor={executor!r} cannot run here. {problem}")
    count = usable_cpu_count() if workers == "auto" else workers
    note = ""
    if reach == "machine":
        EXECUTORS[executor].connect()
        if not analysis.reads_spans:
            asked = 0 if workers == "auto" else workers
            spec = ExecutorSpec(executor, asked, timeout_s, ray_options=options.ray_options)
            spec.learn(analysis)
            spec.leave()
            return spec
        note = "The steps after a stream run on this machine, because its elements lie in memory here."
        executor, reach = ("threads", "thread") if problem else ("processes", "process")
    wants_processes = executor == "auto" and analysis.wants_processes
    if wants_processes and problem and HAS_PROCESSES:
        note = f"It runs on threads, not on processes: {problem}"
        _log.warning("%s", note)
    if reach == "process" or (wants_processes and not problem):
        spec = ExecutorSpec("processes" if executor == "auto" else executor, count, timeout_s, note)
        try:
            is_tried = executor == "auto" and pack(analysis.plan, analysis.plan).makes_itself
            spec.learn(analysis, is_tried=is_tried)
            return spec
        except BaseException as error:
            spec.leave()
            if reach == "process" or not isinstance(error, TravelError):
                raise
            note = f"It runs on threads, not on processes: {error}"
            _log.warning("%s", note)
    if executor not in ("auto", "threads"):
        analysis.learn()
        return ExecutorSpec(executor, count, timeout_s)
    return _on_threads(analysis, options, note)


def _asked_reach(executor: str) -> Reach | None:
    """Returns the reach of the user's executor; None for `auto`."""
    return None if executor == "auto" else EXECUTORS[executor].reach


def _on_threads(analysis: Analysis, options: LoaderOptions, note: str) -> ExecutorSpec:
    for each in reversed(analysis.functions):
        with contextlib.suppress(Exception):  # an element that fails here fails again in its place
            each.learn(takes_any=bool(analysis.guards))  # also with a declared spec, which says nothing of generators
    drawing = next((each for each in analysis.functions if each.memo.learned.uses_globals), None)
    if drawing is None:
        count = usable_cpu_count() if options.workers == "auto" else options.workers
        if options.workers == "auto" and analysis.waits:
            count = max(count, REMOTE_THREAD_COUNT)
        elif options.workers == "auto" and analysis.suits_one_thread:
            count = 1
        drawing = next((each for each in analysis.functions if each.memo.learned.uses_torch), None)
        if drawing is not None:
            warning = (
                f"{drawing.label} at {drawing.where} draws from torch's global generator, which threads share with "
                "each other and with your training: what it draws is another in each run, also after "
                "torch.manual_seed(). executor='processes' gives each worker one of its own."
            )
            _log.warning("%s", warning)
            note = f"{note} {warning}".lstrip()
        return ExecutorSpec("threads", count, options.timeout_s, note)
    if options.executor == "auto":
        return ExecutorSpec(
            "inline",
            0,
            options.timeout_s,
            f"It runs inline, without workers, because {drawing.label} draws from the global np.random or random and "
            "cannot go to other processes; random_map() gives it numbers of its own and lets it run on threads. "
            f"{note}",
        )
    raise ArgumentError(
        f"{drawing.label} at {drawing.where} draws from the global np.random or random, whose state threads would "
        "share in an uncontrolled order. Use random_map(fn), whose fn(element, rng) gets numbers of its own, "
        "or executor='processes', or 'inline'."
    )


def choose_feed(program: Program, feed: Analysis, executor: str, timeout_s: float, *, has_stages: bool) -> ExecutorSpec:
    """Chooses where a stream is read: in its own worker process, or on a thread.

    In a process, a generator's Python does not compete with the training's for the GIL. The stream stays on a thread if
    it cannot travel, as an iterator of another library, and if it takes batches of stages.

    Args:
        program: The program that reads it.
        feed: The stream.
        executor: The user's option.
        timeout_s: How long the worker may make no progress.
        has_stages: Workers make parts of it.

    Raises:
        TravelError: The user asked for processes, and the stream cannot travel.
    """
    reach = _asked_reach(executor)
    if reach == "thread" or why_no_processes() or has_stages or not feed.travels:
        return ExecutorSpec("threads", 1, timeout_s)
    spec = ExecutorSpec("processes", 1, timeout_s, is_alone=True)
    try:
        spec.pack(program)
        if reach != "process" and spec.take_payload().makes_itself:
            spec.learn(feed, is_tried=True)
    except TravelError as error:
        spec.leave()
        if reach == "process":
            raise
        note = f"The stream is read on a thread of this process, not in one of its own: {error}"
        _log.warning("%s", note)
        return ExecutorSpec("threads", 1, timeout_s, note)
    return spec
