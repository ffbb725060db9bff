"""The executor `ray`: workers on the nodes of a Ray cluster, for work that one machine does not get done.

Ray starts an agent on each node (`_agent.py`), reports when one is lost, and carries bytes. Order, retries and
back-pressure are the plan's and the ring's, as with any executor. `_fleet.py` gives out the work.
"""

import functools
from typing import Final, final

import ray

from penstock.base._errors import ArgumentError, MemoryLimitError
from penstock.base._units import size_text
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Program
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.ray._fleet import SILENCE_S, join_fleet, workers_on, works_here
from penstock.ray._shares import RayTask
from penstock.run._dispatcher import ClientReceiver, DispatcherClient
from penstock.run.executors._executor import Client, Executor
from penstock.run.executors._request import ExecutorRequest
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import pool_deadline_s

OWN_OPTIONS: Final = ("concurrency_groups", "lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name")
STORE_PART: Final = 2
"""A loader may fill one part in so many of an object store. Ray begins to spill to disk at 80 %."""


@final
class RayExecutor(Executor):
    """Runs units on the agents of a fleet.

    Args:
        client: The pipeline.
        request: The number of workers a node (0 for its free CPUs), Ray's options, the packed program.
    """

    name = "ray"
    reach = "machine"
    queue_target = 1 << 30  # as many batches as there are slots

    def __init__(self, client: Client, request: ExecutorRequest) -> None:
        self._receiver = ClientReceiver(client)
        self._payload: PlanPayload | None = request.payload
        self._timeout_s = request.timeout_s
        self._events = request.events
        self._task: RayTask | None = None
        self._fleet = join_fleet(request.worker_count, dict(request.ray_options))
        self._right = DispatcherClient(self._fleet, request.events)

    @property
    def worker_count(self) -> int:  # type: ignore[override]  # agents come and go
        """The workers of all agents now."""
        return max(1, sum(agent.worker_count for agent in self._fleet.agents.copy().values() if agent.is_ready))

    def begin(self, program: Program, ring: Ring, inputs: Ring | PartMemory | None = None) -> None:
        """Puts the program into the object store. Each agent fetches it when it gets its first share."""
        assert self._payload is not None
        assert isinstance(program, ParallelProgram)
        payload = ray.put((self._payload.data, self._payload.arrays))
        self._payload = None
        task = self._task = RayTask(payload, self._receiver, program, ring, self._timeout_s, self._events)
        self._right.tasks.append(task)
        self._fleet.post(functools.partial(self._fleet.open, task))

    def wake(self) -> None:
        """Makes the fleet's thread look for slots."""
        if self._task is not None:
            self._fleet.post(functools.partial(self._fleet.issue, self._task))

    def deadline_s(self, timeout_s: float) -> float:
        """Longer than an agent needs to find out that its workers hang."""
        return pool_deadline_s(timeout_s) + SILENCE_S

    def progress(self) -> object:
        """Changes while workers get on."""
        local = self._task and self._task.local
        return self._fleet.progress, local and local.pool_client.pool.progress

    def tasks(self) -> list[str]:
        """The workers on this machine."""
        local = self._task and self._task.local
        return list(map(str, local.pool_client.pool.pids())) if local else []

    def stuck(self) -> list[str]:
        """Tells what is known of the nodes."""
        return [f"{line}\n" for line in self._fleet.node_lines()]

    def request_stop(self) -> None:
        """Gives up all units, and the right to the agents."""
        self._right.leave()

    def join(self, timeout_s: float) -> bool:
        """Waits until the fleet gave up its units; with the last executor, until Ray was told to end the agents."""
        is_gone = self._right.join(timeout_s)
        local = self._task and self._task.local
        return is_gone and (not local or local.pool_client.join(timeout_s))


def local_worker_count(request: ExecutorRequest) -> int:
    """Returns how many workers this machine has, if Ray gives them all CPUs of this node."""
    options, here = request.ray_options, ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["NodeID"] == here and node["Alive"] and works_here(options)]
    return sum(workers_on(node, request.worker_count, node["Resources"].get("CPU", 0), options)[0] for node in nodes)


def connect() -> None:
    """Connects to the cluster of this machine, unless the program has done so.

    Raises:
        ArgumentError: There is none, or this program is outside of it.
    """
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ArgumentError(
                "executor='ray' found no Ray cluster on this machine. Start one (`ray start --head`), join one, or "
                "call ray.init() before the loader is made. On a single machine executor='processes' does the same."
            ) from error
    if ray.util.client.ray.is_connected():
        raise ArgumentError(
            "executor='ray' fills batches in memory of this machine, and a program connected by ray:// is outside of "
            "the cluster. Run it on a node: `ray job submit`."
        )


def require(request: ExecutorRequest, nbytes: int) -> None:
    """Refuses what cannot run, before anything is started.

    Args:
        request: The loader's.
        nbytes: What may lie in object stores.

    Raises:
        ArgumentError: An option is not the user's to set.
        MemoryLimitError: The object store of this node, or of one that gets an agent, is too small.
    """
    if own := [name for name in (*OWN_OPTIONS, "scheduling_strategy") if name in request.ray_options]:
        raise ArgumentError(
            f"ray_options={{{own[0]!r}: ...}} is set by penstock, which places and replaces one agent a node. Choose "
            "nodes by num_cpus, num_gpus, memory, resources or label_selector."
        )
    here = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        resources = node["Resources"]
        store = resources.get("object_store_memory", 0)
        has_agent = workers_on(node, request.worker_count, resources.get("CPU", 0), request.ray_options)[0] > 0
        if node["Alive"] and (node["NodeID"] == here or has_agent) and STORE_PART * nbytes > store:
            raise MemoryLimitError(
                f"Batches on their way take up to {size_text(nbytes)} of Ray's object store, which has "
                f"{size_text(int(store))} on node {node['NodeManagerAddress']}. More than half of it is refused, "
                "because Ray would begin to spill to disk. Use a smaller prefetch or batch, or start Ray with a larger "
                "object_store_memory."
            )
