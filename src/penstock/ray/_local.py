"""The trainer's own node in a fleet. Worker processes of the trainer do what an agent does elsewhere.

They map the ring, so their rows are neither packed nor copied, and do not go through the object store. An actor without
workers keeps their CPUs, so that Ray gives these to nobody else.

The pool ends every unit, and its thread hands each to the thread of the fleet. `leave` ends the rest, and the pool ends
its workers if this process is killed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import final

from penstock.lower._program import Unit, UnitResult
from penstock.memory._ring import Ring
from penstock.run._dispatcher import Receiver
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import PoolClient


@final
class LocalWorkers:
    """Worker processes of this machine, with one program. Receives what comes of units, on the pool's thread.

    Args:
        pool_client: The right to them; from now on this object's.
        payload: The program.
        ring: Where they write.
        timeout_s: How long a worker may stand still.
        receiver: Describes units.
        post: Makes the fleet's thread make a call.
    """

    def __init__(
        self,
        pool_client: PoolClient,
        payload: PlanPayload,
        ring: Ring,
        timeout_s: float,
        receiver: Receiver,
        post: Callable[[Callable[[], object]], object],
    ) -> None:
        self.pool_client = pool_client
        self._receiver = receiver
        self._post = post
        self._takers: dict[tuple[int, int], Callable[[UnitResult], object]] = {}
        """By generation and first row of a unit."""
        self._task = pool_client.open(payload, ring, timeout_s, self)

    def submit(self, units: Sequence[Unit], takers: Sequence[Callable[[UnitResult], object]]) -> None:
        """Has units run. Each of `takers` gets the result of its unit, on the fleet's thread."""
        self._takers |= {(unit.generation, unit.start): take for unit, take in zip(units, takers, strict=True)}
        pool, task = self.pool_client.pool, self._task
        pool.post(lambda: pool.submit(task, units))

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """See `Receiver`."""
        return self._receiver.describe(unit, status)

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        """See `Receiver`."""
        self._post(functools.partial(self._takers.pop((unit.generation, unit.start)), result))
        return ()
