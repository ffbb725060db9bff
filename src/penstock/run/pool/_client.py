"""What the pool of workers works on: jobs of plans, and the tenants whose plans they are.

A tenant is a loader's right to the workers; the pool ends with the last one. `_pool.py` says who writes what.
"""

import itertools
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from penstock.base._retries import NOTHING_WANTED
from penstock.lower._program import Unit
from penstock.memory._budget import granted
from penstock.memory._ring import Ring
from penstock.memory._shared import Place
from penstock.memory._slot import own_header
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._worker import Opening, current_directory

if TYPE_CHECKING:
    from penstock.run.pool._pool import Pool

_numbers = itertools.count()

_log = logging.getLogger("penstock")


class Receiver(Protocol):
    """Who takes what comes of the units of a plan; called on the pool's thread."""

    def describe(self, unit: Unit, trace: tuple[int, int, int]) -> str:
        """What a worker was at that had a unit, for messages; see `WorkerStatus` for where in it."""

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        """Takes the outcome of a unit."""

    def told(self, unit: Unit, payload: Any) -> None:
        """Takes what a worker had to say of a unit, before `finished`."""


@final
class Job:
    """A unit on its way."""

    __slots__ = ("deaths", "hangs", "number", "plan", "unit")

    def __init__(self, plan: "Plan", unit: Unit) -> None:
        self.number = next(_numbers)
        """In the order in which they were submitted, which places on the board are not: it is a circle."""
        self.plan = plan
        self.unit = unit
        self.deaths = 0
        self.hangs = 0


@final
class Plan:
    """Something that workers run units of: a loader's program with its ring, or a plan whose specs are asked for.

    Args:
        tenant: Whose it is.
        parcel: The pickled plan.
        ring: Where its units write; None for a plan without.
        spans: Where they read, if it is a plan over a stream.
        timeout_s: How long a worker may stand still.
        receiver: Takes the outcomes.
    """

    def __init__(
        self,
        tenant: "PoolClient",
        parcel: PlanPayload,
        ring: Ring | None,
        timeout_s: float,
        receiver: Receiver,
        spans: Ring | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.receiver = receiver
        self.unfinished_count = 0
        self.closed_at = 0.0
        """When it was given up; 0 before."""
        self._tenant = tenant
        self._pool = tenant.pool
        self.words = own_header() if ring is None else ring.header
        self.files = tuple(each.file for each in (ring, spans) if each is not None and each.file is not None)
        """Memory that workers map: of the ring, then of the spans."""
        self.places: list[Place] = []
        """What it has in the pool's shared file: itself, then its arrays."""
        shared = self._pool.shared
        nbytes = len(parcel.data) + sum(array.nbytes for array in parcel.arrays)
        try:
            with granted(nbytes, "what worker processes share", "Put large arrays into files (from_npy)"):
                self.places.append(shared.put_bytes(parcel.data))
                for array in parcel.arrays:
                    self.places.append(shared.put_array(array))  # each one is noted, should the next fail
        except BaseException:
            for place in self.places:
                shared.release(place)
            raise
        self.number = self._pool.new_number()
        self.opening = Opening(
            plan=self.number,
            data=self.places[0],
            arrays=tuple(self.places[1:]),
            slot_count=1 if ring is None else ring.slot_count,
            file_nbytes=tuple(file.nbytes for file in self.files),
            timeout_s=timeout_s,
            directory=current_directory(),
            path=tuple(path for path in sys.path if type(path) is str),
        )

    def note(self, text: str, *, topic: str = "", is_warning: bool = False) -> None:
        """Keeps what happened to the workers, for the report, and logs it; of a topic, or a text, only once."""
        if (topic or text) not in self._tenant.topics:
            self._tenant.topics.add(topic or text)
            self._tenant.incidents.append(text)
            _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def submit(self, units: Sequence[Unit]) -> None:
        """Queues units, those of a slot together. On the pool's thread, like all that follows of the pool."""
        if not units:
            return
        for slot, group in itertools.groupby(units, key=lambda unit: unit.slot):
            self.words[1 + slot] = len(list(group))
        self.unfinished_count += len(units)
        self._pool.queue([Job(self, unit) for unit in units])


@final
class PoolClient:
    """A loader's right to the workers, from its making to its end.

    Args:
        pool: The pool, which counts this tenant already.
        incidents: Gets a line for each thing that happens to its workers, for people.
    """

    def __init__(self, pool: "Pool", incidents: list[str]) -> None:
        self.pool = pool
        self.gone = threading.Event()
        """Set when nothing of this tenant runs any more; and, if it was the last, no worker either."""
        self.plans: list[Plan] = []
        self.incidents = incidents
        self.topics: set[str] = set()
        """What they are about."""
        self._has_left = False
        self._pid = os.getpid()

    def open(
        self, parcel: PlanPayload, ring: Ring | None, timeout_s: float, receiver: Receiver, spans: Ring | None = None
    ) -> Plan:
        """Has the workers learn of a plan; see `Plan`."""
        plan = Plan(self, parcel, ring, timeout_s, receiver, spans)
        self.plans.append(plan)
        self.pool.post(lambda: self.pool.open(self, plan))
        return plan

    def close(self, plan: Plan) -> None:
        """Has the workers forget a plan of which no unit is unfinished."""
        self.plans.remove(plan)
        self.pool.post(lambda: self.pool.close(plan))

    def leave(self) -> None:
        """Gives up all units; `gone` tells when. May be called by finalizers, and again."""
        if self._has_left or self._pid != os.getpid():
            return
        for plan in self.plans:
            plan.words[0] = NOTHING_WANTED
        self.pool.post(lambda: self.pool.leave(self))
        self._has_left = True  # last: Ctrl-C may strike anywhere before, and then whoever calls again does it

    def join(self, timeout_s: float) -> bool:
        """Waits until it is gone; returns whether it is. After fork() a child has nothing to wait for.

        Nor has the pool's own thread, where a finalizer of the user's may close a loader: it would wait for itself.
        """
        return self._pid != os.getpid() or self.gone.wait(0 if self.pool.is_current_thread else timeout_s)
