"""The executor `processes`: workers with an interpreter each, for functions that hold the GIL.

The workers are in `run/pool/`. This file is what a pipeline sees.

Who writes what. Everything happens on the pool's thread: it collects what is done, lets the pipeline issue the next
batches, and queues them. `wake` and `request_stop` only post to it, so a finalizer may call them.
"""

from typing import final

from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Program
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.run._dispatcher import ClientReceiver
from penstock.run.executors._executor import Client, Executor
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import PoolClient, pool_deadline_s
from penstock.run.pool._tasks import PoolTask


@final
class ProcessesExecutor(Executor):
    """Runs units in the worker processes of the pool.

    Args:
        client: The pipeline.
        pool_client: The right to the workers; from now on this executor's.
        payload: The program, packed.
        worker_count: How many workers were asked for.
        timeout_s: How long a worker may stand still on an element.
    """

    name = "processes"
    reach = "process"

    def __init__(
        self, client: Client, pool_client: PoolClient, payload: PlanPayload, worker_count: int, timeout_s: float
    ) -> None:
        self.worker_count = worker_count
        self.queue_target = 1 << 30  # as many batches as there are slots, so that workers need not wait for us
        self._receiver = ClientReceiver(client)
        self._pool_client = pool_client
        self._pool = pool_client.pool
        self.shared = self._pool.shared
        self._payload: PlanPayload | None = payload
        self._timeout_s = timeout_s
        self._task: PoolTask | None = None

    def begin(self, program: Program, ring: Ring, inputs: Ring | PartMemory | None = None) -> None:
        """Sends the program to the workers."""
        assert self._payload is not None
        wants_each = not isinstance(program, ParallelProgram)
        self._task = self._pool_client.open(
            self._payload, ring, self._timeout_s, self._receiver, inputs, wakes_each=wants_each
        )
        self._payload = None  # it holds the arrays that are shared now

    def wake(self) -> None:
        """Makes the pool's thread look for slots, unless it will soon, and workers have enough until then.

        A slot that is unfinished now is counted off before the pipeline looks for slots because of it. So that
        look comes after the slot came back for which this is called.
        """
        task = self._task
        if task is not None and task.spare_count < self.worker_count:
            receiver, pool = self._receiver, self._pool
            pool.post(lambda: pool.submit(task, receiver.issue()))

    @property
    def available_count(self) -> int:
        """All that the pool has: a loader beside this one may have asked for more."""
        return max(self.worker_count, len(self._pool.pids()))

    def deadline_s(self, timeout_s: float) -> float:
        """Longer than the pool, which watches its workers, needs to find out. It ends the wait if the pool fails."""
        return pool_deadline_s(timeout_s)

    def progress(self) -> object:
        """Grows while workers of the pool get on."""
        return self._pool.progress

    def tasks(self) -> list[str]:
        """The workers of the pool."""
        return list(map(str, self._pool.pids()))

    def request_stop(self) -> None:
        """Gives up all units, and the right to the workers."""
        self._pool_client.leave()

    def join(self, timeout_s: float) -> bool:
        """Waits until no worker is at anything of this executor's; the last one's workers have ended then."""
        return self._pool_client.join(timeout_s)
