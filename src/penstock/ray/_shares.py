"""What a fleet of agents on Ray works on. Everything here belongs to the thread of the fleet; see `_fleet.py`."""

import itertools
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Unit
from penstock.memory._ring import Ring
from penstock.memory._rows import owned
from penstock.ray._agent import CALL_THREAD, SHARE_COUNT, AgentOpening
from penstock.ray._local import LocalWorkers
from penstock.run._dispatcher import ClientReceiver, Job, Notes, Task

numbers: Final = itertools.count(1)


@final
class RayTask(Task):
    """A program that agents run units of. Holds nothing of the user's.

    Args:
        payload: A reference to the pickled program. While it lives, the object store keeps it for agents that come
            later.
        receiver: Takes the outcomes.
        program: The program.
        ring: Where units write.
        timeout_s: How long a worker may stand still.
        lines: Events for the report.
    """

    receiver: ClientReceiver

    def __init__(
        self,
        payload: Any,
        receiver: ClientReceiver,
        program: ParallelProgram,
        ring: Ring,
        timeout_s: float,
        lines: list[str],
    ) -> None:
        super().__init__(timeout_s, receiver, Notes(lines))
        self.opening = AgentOpening(self.number, program.spec.leaves, program.step_count, timeout_s)
        self.payload = payload
        self.program = weakref.ref(program)
        self.ring = weakref.ref(ring)
        self.lines = lines
        self.waiting: deque[Job[RayTask]] = deque()
        """Units for the next shares, in order."""
        self.local: LocalWorkers | None = None
        """Its workers on this machine, once they have work."""


@final
class NodeShare:
    """Neighbouring units of a batch that an agent has."""

    def __init__(self, task: RayTask, jobs: list[Job[RayTask]], place: Any) -> None:
        self.task = task
        self.jobs = jobs
        self.place = place
        self.remaining = len(jobs)
        """Units that have not come back, if workers of this machine have them."""

    @property
    def is_suspect(self) -> bool:
        """Whether an agent was lost with it."""
        return self.jobs[0].crash_count > 0

    def rows_of(self, unit: Unit, rows: Sequence[Any]) -> Sequence[Any]:
        """Returns the rows of one unit among those of the share.

        The slot keeps arrays that have no size as they are, so these are copies: no view of the object store stays.
        """
        leaves = self.task.opening.leaves
        first = unit.start - self.jobs[0].unit.start
        mine = ... if self.place == 0 else slice(first, first + unit.stop - unit.start)
        own = [
            value if not isinstance(value, np.ndarray) else value[mine] if leaf.is_bounded else _own(value[mine])
            for value, leaf in zip(rows, leaves, strict=False)
        ]
        return [*own, *rows[len(leaves) :]]


def _own(values: Any) -> Any:
    return owned(values) if values.dtype == object else values.copy()


@final
class AgentHandle:
    """The trainer's end of an agent. That of the trainer's own node, `is_here`, only keeps CPUs for its workers."""

    def __init__(self, node: Mapping[str, Any], actor: Any, worker_count: int, *, is_here: bool = False) -> None:
        self.is_here = is_here
        self.node_id: str = node["NodeID"]
        self.address: str = node["NodeManagerAddress"]
        self.actor = actor
        self.worker_count = worker_count
        self.number = next(numbers)
        self.is_ready = False
        self.shares: dict[int, NodeShare] = {}
        self.opened: set[int] = set()
        """Numbers of programs."""
        self.row_s: dict[int, float] = {}
        """How long one of its workers takes for a row of a program."""
        self.seen = 0
        """What it answered last."""
        self.silent_count: int | None = None
        """Ticks since it was asked; None if it has answered."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method beside those that run shares."""
        return getattr(self.actor, method).options(concurrency_group=CALL_THREAD).remote(*arguments)

    def row_limit(self, task: RayTask, seconds: float) -> float:
        """The rows that it does in a time; 0 if that is not known yet."""
        row_s = self.row_s.get(task.number, 0.0)
        return seconds * self.worker_count / row_s if row_s else 0.0

    @property
    def has_room(self) -> bool:
        """Whether it may get a share."""
        return len(self.shares) < SHARE_COUNT and not any(share.is_suspect for share in self.shares.values())
