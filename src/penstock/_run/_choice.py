"""Which executor runs a plan, with how many workers, and why."""

import pickle
import sys
import threading
import weakref
from typing import Any, Final, Literal, final

from penstock._errors import ArgumentError, TravelError
from penstock._plan._map import Map, adopt_specs
from penstock._plan._node import Node, walk
from penstock._run._cpus import usable_cpu_count
from penstock._run._executor import Client, Executor
from penstock._run._inline import InlineExecutor
from penstock._run._lower import Program, Unit
from penstock._run._parcel import Parcel, pack
from penstock._run._pool import join
from penstock._run._processes import ProcessesExecutor, steps_of
from penstock._run._tenant import Tenant
from penstock._run._threads import ThreadsExecutor

HAS_PROCESSES: Final = sys.platform == "linux"
"""Elsewhere a socket that keeps packets apart and tells of its end, and what kills workers whose parent is killed,
would have to be something else; nobody has built and tried that."""


SHOWN_COUNT: Final = 4
"""How many incidents a report tells; the log has them all."""


@final
class Choice:
    """An executor that was chosen, and what it takes to make it.

    Args:
        executor: Its name.
        worker_count: Its workers; 0 for `inline`.
        timeout_s: How long a worker may stand still.
        note: What there is to say about the choice.
    """

    def __init__(self, executor: str, worker_count: int, timeout_s: float, note: str) -> None:
        self.executor = executor
        self.worker_count = worker_count
        self.note = note
        self._incidents: list[str] = []
        self._timeout_s = timeout_s
        self._parcel: Parcel | None = None
        self._tenant: Tenant | None = None

    @property
    def shared_nbytes(self) -> int:
        """Bytes of arrays that are put where worker processes see them."""
        return self._parcel.shared_nbytes if self._parcel else 0

    @property
    def remarks(self) -> str:
        """What there is to say about the choice, and what happened to worker processes so far."""
        lines = [self.note, *self._incidents[:SHOWN_COUNT]]
        if len(self._incidents) > SHOWN_COUNT:
            lines.append(f"And {len(self._incidents) - SHOWN_COUNT} more such lines, which are in the log.")
        return "\n".join(line for line in lines if line)

    def find_specs(self, node: Node) -> None:
        """Has a worker process run the functions whose specs are unknown, for they may crash or hang.

        Raises:
            TravelError: The plan cannot go to another process.
            PenstockError: What a function raised, or how it ended its workers.
        """
        if self.executor != "processes" or all(each.known_spec for each in walk(node) if isinstance(each, Map)):
            return
        parcel, answer = pack(node, node), _Answer(node)
        tenant = self._take_tenant()
        self._tenant = tenant
        weakref.finalize(self, tenant.leave).atexit = False
        plan = tenant.open(parcel, None, steps_of(node), self._timeout_s, answer)
        tenant.pool.post(lambda: plan.submit([Unit(epoch=0, index=0, start=0, stop=1, slot=0, ticket=1)]))
        answer.wait()
        tenant.close(plan)

    def pack(self, program: Program) -> None:
        """Gets a program ready to travel, if it has to.

        Raises:
            TravelError: It cannot.
        """
        if self.executor == "processes":
            self._parcel = pack(program.node, program)

    def make_executor(self, client: Client) -> Executor:
        """Makes the executor and starts its workers."""
        if self.executor == "inline":
            return InlineExecutor(client)
        if self.executor == "threads":
            return ThreadsExecutor(client, self.worker_count)
        assert self._parcel is not None
        tenant, self._tenant = self._take_tenant(), None
        return ProcessesExecutor(client, tenant, self._parcel, self.worker_count, self._timeout_s)

    def _take_tenant(self) -> Tenant:
        return self._tenant or join(self.worker_count, self._incidents)

    def leave(self) -> None:
        """Lets go of workers that were started to find specs, if no executor was made."""
        if self._tenant is not None:
            self._tenant.leave()
            self._tenant.join(self._timeout_s)


@final
class _Answer:
    """Takes the specs that a worker finds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_over = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        # Ended by the pool, which finishes every unit, sooner or later with an error.
        self._is_over.wait()
        if self._error is not None:
            raise self._error

    def describe(self, unit: Unit) -> str:
        return "loading the plan, to find out what its functions return"

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        self._error = error
        self._is_over.set()

    def told(self, unit: Unit, payload: Any) -> None:
        adopt_specs(self._node, pickle.loads(payload))


def choose(node: Node, executor: str, workers: int | Literal["auto"], timeout_s: float) -> Choice:
    """Chooses how to run a plan.

    `auto`: a user's Python function means processes, for it may hold the GIL; threads if it cannot travel to
    another process. Without such a function, threads: what we do ourselves lets go of the GIL.

    Raises:
        ArgumentError: The executor cannot run this plan, or takes no workers.
        TravelError: The plan cannot go to worker processes, which were asked for.
    """
    if executor == "inline":
        if workers not in ("auto", 1):
            raise ArgumentError(f"executor='inline' has no workers, but workers={workers} was asked for.")
        return Choice("inline", 0, timeout_s, "")
    if executor == "processes" and not HAS_PROCESSES:
        raise ArgumentError(
            f"executor='processes' runs on Linux so far, and this is {sys.platform}. Use executor='threads'."
        )
    count = usable_cpu_count() if workers == "auto" else workers
    functions = [each for each in walk(node) if isinstance(each, Map)]
    note = ""
    if executor == "processes" or (executor == "auto" and functions and HAS_PROCESSES):
        choice = Choice("processes", count, timeout_s, "")
        try:
            choice.find_specs(node)
            if executor == "auto":
                pack(node, node)
            return choice
        except TravelError as error:
            choice.leave()
            if executor == "processes":
                raise
            note = f"It runs on threads, not on processes: {error}"
    culprit = next((each for each in functions if each.uses_globals()), None)
    if culprit is None:
        return Choice("threads", count, timeout_s, note)
    if executor == "auto":
        return Choice(
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
