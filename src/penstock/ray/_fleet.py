"""The agents of this process on Ray, and the thread that looks after them.

A `Fleet` is the agents with the same options. Loaders share it, as they share a pool. The trainer's own node has
workers of the trainer; see `_local.py`.

Work travels as shares: neighbouring units of one batch, some 50 ms of an agent's work. Shares are taken from the head
of the queue, so all nodes fill the next batch. A unit exists only for a free slot. So what lies in object stores is at
most the ring once more, and never spills.

Which thread writes what: see `_dispatcher.py`. Ray's own threads use `post` too, when a result came. The fleet's thread
holds the client, the program and the ring only while it works for them.

Guarantees, beside those of a dispatcher.
- When an agent is lost, others do its units again. A unit with which `CRASH_LIMIT` agents were lost is an error that
  names its rows. After the first loss it travels alone, so those rows are the cause. Results that come too late are
  dropped before they reach a slot.
- No view of an object store outlives the copy into the slot.
- Workers on this machine keep their units, whatever happens to agents. So none writes to a slot that another batch has.

Each wait, and what ends it. There is one, of the thread for its inbox: a post, or a tick. A tick looks for nodes that
came or left, and asks agents with shares to answer. One that stays silent for `SILENCE_S`, or the loader's `timeout_s`,
is killed and lost. An agent watches its workers itself. Agents are actors of this process: `close` kills them, and if
this process ends in another way, Ray does, and frees its objects.
"""

import functools
import logging
import math
import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, final

import numpy as np
import ray
from ray._private.state import available_resources_per_node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from penstock.base._errors import DeadlineError, WorkerError
from penstock.base._threads import start_thread
from penstock.lower._batches import NO_BATCHES
from penstock.lower._program import Unit, UnitResult
from penstock.ray._agent import CALL_THREAD, SHARE_COUNT, Agent, Answer, versions
from penstock.ray._local import LocalWorkers
from penstock.ray._shares import AgentHandle, NodeShare, RayTask, numbers
from penstock.run._dispatcher import CRASH_LIMIT, Dispatcher, DispatcherClient, Job
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import join
from penstock.run.pool._registry import Registry
from penstock.run.pool._remote_error import load_error

SHARE_S: Final = 0.05
"""The work in a share. A call of an agent takes some 2 ms, and a consumer waits no longer for the last of a batch."""
LEAST_SHARE_S: Final = 0.005
"""The same where there is less work than agents."""
START_LIMIT: Final = 3
"""How often in a row an agent may fail to start on a node, before the node is left out."""
START_S: Final = 60.0
"""How long the fleet waits for its first agent, at least."""
SILENCE_S: Final = 30.0
"""How long an agent may not answer, at most. The user's functions do not run in it, so they do not delay answers."""
TICK_S: Final = 1.0

_log = logging.getLogger("penstock")


@final
class Fleet(Dispatcher[RayTask]):
    """The agents of this process with the same options, and the thread that looks after them.

    Args:
        worker_count: Workers a node; 0 for its free CPUs.
        options: The user's options of Ray for each agent.
    """

    def __init__(self, worker_count: int, options: dict[str, Any]) -> None:
        super().__init__("penstock-ray", registry)
        self.agents: dict[str, AgentHandle] = {}
        """By node."""
        self._worker_count = worker_count
        self._options = options
        self._node_id = ray.get_runtime_context().get_node_id()
        self._excluded: dict[str, str] = {}
        """Why nodes have no agent, by node."""
        self._failed_start_counts: dict[str, int] = {}
        self._look_at = 0.0
        self._waited_s = 0.0
        """How long units wait without any agent."""
        start_thread(self._thread)

    # For everybody.

    def post(self, call: Callable[[], object]) -> None:
        """See `Dispatcher`. Drops a call after the end, because it may hold a result in the object store."""
        if self.client_count:
            super().post(call)

    def node_lines(self) -> list[str]:
        """Tells what is known of each node."""
        running = [
            f"Ray node {agent.address}: {agent.worker_count} workers, {len(agent.shares)} shares under way"
            if agent.is_ready
            else f"Ray node {agent.address}: its agent starts, or waits for resources"
            for agent in self.agents.copy().values()
        ]
        return [*running, *self._excluded.copy().values()]

    # Everything below is the fleet's thread.

    def _note_bug(self) -> str:
        if ray.is_initialized():  # else the program has shut it down
            _log.exception("The agents on Ray failed.")
        return "The connection to Ray"

    def _turn(self) -> None:
        """Waits for a post or a tick, and gives out work."""
        with suppress(queue.Empty):
            ends_s = max(0.0, self._look_at - time.monotonic()) if self._failure is None else None
            self._inbox.get(timeout=0.0 if self._failing else ends_s)()
            self._take_posts()
        if time.monotonic() >= self._look_at and self._failure is None and self.client_count:
            self._look()
            self._look_at = time.monotonic() + self._tick_s
        self._settle_failing()
        if self._failure is None:
            self._give_out()

    @property
    def _tick_s(self) -> float:
        return TICK_S if self.agents else TICK_S / 10

    def open(self, task: RayTask) -> None:
        """Takes a program, and its first units."""
        self._tasks[task.number] = task
        self.issue(task)

    def issue(self, task: RayTask) -> None:
        """Takes units for the slots that are free."""
        if task.number in self._tasks:
            self.submit(task, task.receiver.issue())

    def leave(self, client: DispatcherClient[RayTask]) -> None:
        """See `Dispatcher`."""
        for task in client.tasks:
            self._tasks.pop(task.number, None)
            task.waiting.clear()
            if task.local is not None:
                task.local.pool_client.leave()
            task.payload = None  # results that Ray never reports would keep it
            for agent in self.agents.values():
                if task.number in agent.opened and ray.is_initialized():
                    agent.opened.discard(task.number)
                    agent.call("close", task.number)
        self._let_go(client)

    def _await_worker(self, task: RayTask, jobs: Sequence[Job[RayTask]]) -> None:
        task.waiting += jobs

    # Shares.

    def _give_out(self) -> None:
        ready = [agent for agent in self.agents.values() if agent.is_ready]
        for task in self._tasks.values():
            while task.waiting:
                is_suspect = task.waiting[0].crash_count > 0
                able = [agent for agent in ready if agent.has_room and not (is_suspect and agent.shares)]
                if is_suspect and len(ready) > 1:  # this process is not to be lost
                    able = [agent for agent in able if not agent.is_here]
                if not able:
                    break
                place_count = sum(SHARE_COUNT - len(agent.shares) for agent in able)
                agent = min(able, key=lambda each: (len(each.shares), -each.row_limit(task, SHARE_S), each.number))
                self._send(agent, task, self._cut(agent, task, place_count))

    def _cut(self, agent: AgentHandle, task: RayTask, place_count: int) -> list[Job[RayTask]]:
        """Takes the units of a share from the queue: no more than `SHARE_S` of work, so that nobody waits for it long.

        Where there is less work than agents, each gets a part of it, but at least `LEAST_SHARE_S`.
        """
        waiting = task.waiting
        jobs = [waiting.popleft()]
        if jobs[0].crash_count:
            return jobs
        row_count = sum(job.unit.stop - job.unit.start for job in waiting) / place_count
        limit = min(agent.row_limit(task, SHARE_S), max(agent.row_limit(task, LEAST_SHARE_S), row_count))
        first = jobs[0].unit
        while waiting and not waiting[0].crash_count:
            last, unit = jobs[-1].unit, waiting[0].unit
            is_next = unit.generation == last.generation and unit.start == last.stop
            if not is_next or (len(jobs) >= agent.worker_count and unit.stop - first.start > limit):
                break
            jobs.append(waiting.popleft())
        return jobs

    def _send(self, agent: AgentHandle, task: RayTask, jobs: list[Job[RayTask]]) -> None:
        program, number = task.program(), task.number
        if program is None:  # the loader was dropped, and `leave` follows
            return
        place = program.slot_rows(jobs[0].unit._replace(stop=jobs[-1].unit.stop))
        # Announcements would make a node read what others need.
        units = [job.unit._replace(announce=NO_BATCHES) for job in jobs]
        share_number = next(numbers)
        share = agent.shares[share_number] = NodeShare(task, jobs, place)
        if agent.is_here:
            if task.local is None and (ring := task.ring()) is not None:
                right, timeout_s = join(agent.worker_count, task.lines), task.timeout_s
                payload = PlanPayload(*ray.get(task.payload))
                task.local = LocalWorkers(right, payload, ring, timeout_s, task.receiver, self.post)
            if task.local is not None:
                take = functools.partial(self._take_unit, agent, share_number, share)
                task.local.submit(units, [functools.partial(take, job) for job in jobs])
            return
        if number not in agent.opened:
            agent.opened.add(number)
            self._expect(agent, agent.call("open", task.opening, task.payload), lambda _: None)
        reference = agent.actor.work.remote(number, place, list(map(tuple, units)))
        self._expect(agent, reference, functools.partial(self._take, agent, share_number, share))

    def _expect(self, agent: AgentHandle, reference: Any, take: Callable[[Any], object]) -> None:
        """Has the result of a call taken on this thread. Any failure means that the agent is lost."""

        def arrived(future: Any) -> None:
            if self.agents.get(agent.node_id) is not agent:
                return
            error = future.exception()
            if error is None:
                take(future.result())
            else:
                self._lose(agent, f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

        # Ray fetches the result before it reports it.
        reference.future().add_done_callback(lambda future: self.post(functools.partial(arrived, future)))

    def _take_unit(
        self, agent: AgentHandle, number: int, share: NodeShare, job: Job[RayTask], result: UnitResult
    ) -> None:
        """Hands on the result of a unit that workers of this machine have run."""
        self.progress += 1
        share.remaining -= 1
        if not share.remaining:
            agent.shares.pop(number, None)
        if (ring := share.task.ring()) is not None:
            agent.row_s[share.task.number] = ring.header[-1] / 1e9
        self._settle(job, result)

    def _take(self, agent: AgentHandle, number: int, share: NodeShare, answer: Answer | None) -> None:
        """Hands the results of a share to the client, which copies rows into the slot."""
        del agent.shares[number]
        self.progress += 1
        task = share.task
        if answer is None or task.number not in self._tasks:
            return
        agent.row_s[task.number] = answer.row_s
        for line in answer.lines:
            task.notes.add(f"On Ray node {agent.address}: {line}")
        ring = task.ring()
        if ring is not None:
            # From the last on, because workers of this machine have the first.
            np.frombuffer(ring.times[-1 - agent.number % len(ring.times)], np.int64)[:] += answer.times
        for job, dumped, failures in zip(share.jobs, answer.errors, answer.failures, strict=True):
            unit = job.unit
            seconds = answer.row_s * (unit.stop - unit.start)
            error = None if dumped is None else self._error(agent, task, unit, dumped)
            rows = share.rows_of(unit, answer.rows) if error is None else ()
            self._settle(job, UnitResult(error, rows, failures, seconds))

    def _error(self, agent: AgentHandle, task: RayTask, unit: Unit, dumped: bytes) -> BaseException:
        error = load_error(dumped)
        if isinstance(error, (WorkerError, DeadlineError)):
            found = re.search(r"<unit \d+: (\d+) (\d+) (\d+)>", str(error))
            if found is not None:
                first, second, third = map(int, found.groups())
                at = task.receiver.describe(unit, (first, second, third))
                error.args = (str(error).replace(found.group(), at),)
        error.add_note(f"It was on the Ray node {agent.address}.")
        return error

    def _settle(self, job: Job[RayTask], result: UnitResult) -> None:
        if job.task.number in self._tasks:  # else its loader left
            super()._settle(job, result)

    # Agents.

    def _look(self) -> None:
        """Looks for nodes that came or left, and for agents that do not answer."""
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for agent in list(self.agents.values()):
            if agent.node_id not in nodes:
                self._lose(agent, "its node left the cluster")
            elif agent.is_ready and not agent.is_here:
                self._listen_to(agent)
        new = [node for node in nodes.values() if node["NodeID"] not in self.agents]
        free = available_resources_per_node() if new and not self._worker_count else {}
        for node in new:
            self._start(node, free.get(node["NodeID"], {}).get("CPU", 0.0))
        is_waiting = any(task.waiting for task in self._tasks.values())
        is_alone = not any(agent.is_ready for agent in self.agents.values())
        self._waited_s = self._waited_s + self._tick_s if is_waiting and is_alone else 0.0
        are_useless = not self.agents and max(self._failed_start_counts.values(), default=0) >= START_LIMIT
        limit_s = max([START_S, *(task.timeout_s for task in self._tasks.values())])
        if is_waiting and (self._waited_s > limit_s or are_useless):
            self._fail(
                WorkerError(
                    f"No node of the Ray cluster took any work for {self._waited_s:.0f} s. "
                    f"{'; '.join(self.node_lines()) or 'No node is alive'}. Agents need what ray_options= "
                    "asks for, and workers= CPUs a node; `ray status` lists what is free."
                )
            )

    def _listen_to(self, agent: AgentHandle) -> None:
        """Asks an agent with shares to answer, and gives it up after a silence. A pause of this process is none."""
        if agent.silent_count is None:
            if agent.shares:
                agent.silent_count = 0
                self._expect(agent, agent.call("progress"), functools.partial(self._hear, agent))
            return
        agent.silent_count += 1
        limit_s = min([SILENCE_S, *(share.task.timeout_s for share in agent.shares.values())])
        if agent.silent_count * TICK_S > limit_s:
            self._lose(agent, f"it did not answer for {limit_s:g} s")

    def _hear(self, agent: AgentHandle, progress: int) -> None:
        agent.silent_count = None
        if progress != agent.seen:
            agent.seen = progress
            self.progress += 1

    def _start(self, node: Mapping[str, Any], free_cpu_count: float) -> None:
        """Starts an agent on a node, if the node has what the options ask for."""
        node_id, address, options = node["NodeID"], node["NodeManagerAddress"], self._options
        worker_count, why = workers_on(node, self._worker_count, free_cpu_count, options)
        if self._failed_start_counts.get(node_id, 0) >= START_LIMIT:
            return
        if why:
            self._excluded[node_id] = f"Ray node {address}: {why}"
            return
        self._excluded.pop(node_id, None)
        is_here = node_id == self._node_id and works_here(options)
        cpu_count = min(worker_count, node["Resources"].get("CPU", 0.0))
        actor = (
            ray.remote(concurrency_groups={CALL_THREAD: 1})(Agent)
            .options(
                **{"num_cpus": cpu_count} | {key: each for key, each in options.items() if key != "label_selector"},
                max_concurrency=SHARE_COUNT,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(versions(), 0 if is_here else worker_count)
        )
        agent = self.agents[node_id] = AgentHandle(node, actor, worker_count, is_here=is_here)
        self._expect(agent, agent.call("start"), functools.partial(self._welcome, agent))

    def _welcome(self, agent: AgentHandle, differences: list[str]) -> None:
        self.progress += 1
        if differences:
            self._failed_start_counts[agent.node_id] = START_LIMIT
            self._lose(agent, f"it has other versions, so its results may differ: {'; '.join(differences)}")
            return
        agent.is_ready = True
        self._failed_start_counts.pop(agent.node_id, None)

    def _lose(self, agent: AgentHandle, reason: str) -> None:
        """Has the work of an agent done by others."""
        if self.agents.pop(agent.node_id, None) is None:
            return
        with suppress(Exception):
            ray.kill(agent.actor)
        text = f"The agent on Ray node {agent.address} was lost: {reason}."
        if not agent.is_ready:
            count = self._failed_start_counts.get(agent.node_id, 0) + 1
            self._failed_start_counts[agent.node_id] = count
            self._excluded[agent.node_id] = text
        for task in self._tasks.values():
            task.notes.add(f"{text} Other nodes do its work.", topic=f"{agent.number}")
        shares = () if agent.is_here else reversed(agent.shares.values())
        for share in shares:
            for job in reversed(share.jobs):
                job.crash_count += 1
                if job.crash_count < CRASH_LIMIT:
                    share.task.waiting.appendleft(job)
                else:
                    self._settle(job, UnitResult(self._lethal(share.task, job.unit, text)))

    def _lethal(self, task: RayTask, unit: Unit, text: str) -> WorkerError:
        at = task.receiver.describe(unit, (0, 0, 0))
        return WorkerError(
            f"{text} It was agent number {CRASH_LIMIT} that was lost while it worked on {at}. Do these rows take more "
            "memory than a node has? executor='processes' runs them on this machine."
        )

    # The end.

    def _give_up(self) -> Iterable[Job[RayTask]]:
        jobs = [
            job
            for agent in self.agents.values()
            if not agent.is_here  # whose workers finish what they have
            for share in agent.shares.values()
            for job in share.jobs
        ]
        for task in self._tasks.values():
            jobs += task.waiting
            task.waiting.clear()
        self._kill_agents()
        return jobs

    def _end(self) -> None:
        self._kill_agents()
        with suppress(queue.Empty):
            while True:  # results that came too late, which hold their part of the object store
                self._inbox.get_nowait()

    def _kill_agents(self) -> None:
        agents, self.agents = self.agents, {}
        for agent in agents.values():
            if ray.is_initialized():  # or else Ray has ended them, and would be started again here
                with suppress(Exception):
                    ray.kill(agent.actor)


def works_here(options: Mapping[str, Any]) -> bool:
    """Whether workers of the trainer do the work of its node. They are not in an environment that Ray makes."""
    return "runtime_env" not in options


def workers_on(
    node: Mapping[str, Any], asked_count: int, free_cpu_count: float, options: Mapping[str, Any]
) -> tuple[int, str]:
    """Returns how many workers a node gets, and why it gets none.

    Args:
        node: An entry of `ray.nodes()`.
        asked_count: The user's `workers=`; 0 for `"auto"`.
        free_cpu_count: CPUs that Ray has not given away on this node.
        options: The user's `ray_options=`.
    """
    resources, labels = node["Resources"], node.get("Labels", {})
    wanted = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
    for name, count in wanted.items():
        if count and resources.get(name, 0) < count:
            return 0, f"it has {resources.get(name, 0):g} {name}, and an agent needs {count:g}"
    for name, value in options.get("label_selector", {}).items():
        if labels.get(name) != value:
            return 0, f"its label {name} is {labels.get(name)!r}, and not {value!r}"
    count = asked_count or math.floor(options.get("num_cpus") or free_cpu_count)
    return count, "" if count else "it has no free CPU"


registry: Final[Registry[Fleet]] = Registry()


def join_fleet(worker_count: int, options: dict[str, Any]) -> Fleet:
    """Returns the fleet with these options, which has one more client."""
    key = repr((worker_count, sorted(options.items()), ray.get_runtime_context().get_job_id()))
    return registry.join(lambda: Fleet(worker_count, options), key)
