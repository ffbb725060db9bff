"""The executor `processes`: workers with an interpreter each, for functions that hold the GIL.

What it is made of is in `_workers/`. This file is what a pipeline sees.

Who writes what. Everything happens on the pool's thread: it takes what is done, has the pipeline issue the next
batches, and queues them. `wake` and `request_stop` only post to it, so a finalizer may call them.
"""

import weakref
from typing import Any, final

from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._ring import Ring
from penstock.run.executors._executor import Client, Executor
from penstock.run.pool._client import Plan, PoolClient
from penstock.run.pool._crashes import HANG_COUNT
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import START_S


@final
class ProcessesExecutor(Executor):
    """Runs units in the worker processes of the pool.

    Args:
        client: The pipeline.
        tenant: The right to the workers; from now on this executor's.
        parcel: The program, packed.
        worker_count: How many workers were asked for.
        timeout_s: How long a worker may stand still on an element.
    """

    name = "processes"
    isolates = True
    is_elsewhere = True
    maps_ring = True

    def __init__(
        self, client: Client, tenant: PoolClient, parcel: PlanPayload, worker_count: int, timeout_s: float
    ) -> None:
        self.worker_count = worker_count
        self.queue_target = 1 << 30  # as many batches as there are slots, so that workers need not wait for us
        self._client = weakref.ref(client)
        self._tenant = tenant
        self.shared = tenant.pool.shared
        self._parcel: PlanPayload | None = parcel
        self._timeout_s = timeout_s
        self._plan: Plan | None = None

    def begin(self, program: Program[Any], ring: Ring, spans: Ring | None = None) -> None:
        """Has the workers learn of the program."""
        assert self._parcel is not None
        receiver = _Receiver(self._client)
        self._plan = receiver.plan = self._tenant.open(self._parcel, ring, self._timeout_s, receiver, spans)
        self._parcel = None  # it holds the arrays that are shared now

    def wake(self) -> None:
        """Has the pool's thread look for slots, unless it will soon.

        A unit that is unfinished now is counted off before the pipeline looks for slots because of it. So that
        look comes after the slot came back for which this is called.
        """
        if self._plan is None or self._plan.unfinished_count <= self.worker_count:
            client, plan = self._client, self._plan
            self._tenant.pool.post(lambda: _issue(client, plan))

    @property
    def available_count(self) -> int:
        """All that the pool has: a loader beside this one may have asked for more."""
        return max(self.worker_count, len(self._tenant.pool.pids()))

    def deadline_s(self, timeout_s: float) -> float:
        """Longer than what the pool, which watches its workers, needs to find out; this is if it stands still."""
        return pool_deadline_s(timeout_s)

    def progress(self) -> object:
        """What all workers of the pool got done."""
        return self._tenant.pool.progress

    def tasks(self) -> list[str]:
        """All of the pool's."""
        return list(map(str, self._tenant.pool.pids()))

    def request_stop(self) -> None:
        """Gives up all units, and the right to the workers."""
        self._tenant.leave()

    def join(self, timeout_s: float) -> bool:
        """Waits until no worker is at anything of this executor's; the last one's workers have ended then."""
        return self._tenant.join(timeout_s)


class _Receiver:
    """Hands what came of units on to a pipeline, if it is still there."""

    def __init__(self, client: "weakref.ref[Client]") -> None:
        self._client = client
        self.plan: Plan | None = None
        self._payload: Any = ((), ())

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        (rows, failures), self._payload = self._payload, ((), ())
        client = self._client()
        if client is not None and self.plan is not None:
            self.plan.submit(client.finished(unit, UnitResult(error, rows, failures)))

    def describe(self, unit: Unit, trace: tuple[int, int, int]) -> str:
        client = self._client()
        return "a batch that nobody wants" if client is None else client.describe(unit, trace)

    def told(self, unit: Unit, payload: Any) -> None:
        self._payload = payload


def _issue(client_ref: "weakref.ref[Client]", plan: Plan | None) -> None:
    client = client_ref()
    if client is not None and plan is not None:
        plan.submit(client.issue())


def pool_deadline_s(timeout_s: float) -> float:
    """How long the pool may take, at most, to have a unit finished of which workers do not get on."""
    return (HANG_COUNT + 1) * timeout_s + START_S
