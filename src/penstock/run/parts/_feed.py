"""Has workers decode the parts of sources, ahead of the workers that fill batches; see `_plan.py`, which decides.

The workers of both are of the same kind. Worker processes are the same ones, of the pool: so whichever is free decodes.

Which thread writes what. The feed shares the one lock of its `Delivery`. With it held, the scheduler of the delivery
asks whether a batch may begin, and workers that end a decoding note that. The feed wakes the executor of the delivery,
whose worker then asks for units.

Each wait, and what ends it. `close` waits for the workers, at most as long as it is told. A decoding that fails, or
whose worker dies or stands still too long, ends as a part that is not there: units decode it alone, and the error is
that of their element.
"""

import threading
from collections.abc import Callable
from typing import Final, final

import numpy as np

from penstock.lower._parts import PartProgram
from penstock.lower._program import Position, Unit, UnitResult
from penstock.memory._part_memory import HeldParts, PartMemory, SharedParts
from penstock.memory._ring import Ring
from penstock.run._unit_runner import LocalClient
from penstock.run.executors._executor import Client, Executor, clear_own_frames
from penstock.run.parts._order import PartOrder
from penstock.run.parts._plan import Load, PartPlan

PLACE_SHARE: Final = 16
PLACE_NBYTES: Final = 8 << 10
"""A place in shared memory is larger than its part by that share of it, and by these bytes: objects take some, too."""


@final
class PartFeed(LocalClient):
    """Decodes parts on workers, as far as there is room.

    Args:
        program: Decodes parts. On threads its sources are open.
        order: What the batches want; None if `plan` is told.
        room: The memory for parts.
        make_executor: Makes the executor.
        wake: Wakes the executor of the delivery. Takes no lock.
        lock: The lock of the delivery.
        timeout_s: How long a worker may stand still.
    """

    def __init__(
        self,
        program: PartProgram,
        order: PartOrder | None,
        room: int,
        make_executor: Callable[[Client], Executor],
        wake: Callable[[], None],
        lock: threading.Lock,
        timeout_s: float,
    ) -> None:
        super().__init__(program, timeout_s, lock)
        self._wake = wake
        self._closed = False
        self.is_stirred = False
        """Whether there may be something to decode."""
        self._executor = executor = make_executor(self)
        self.stop_workers = executor.request_stop
        try:
            self._order = order
            self._position: Position | None = None
            """The batch behind those in sight."""
            self._loads: list[Load] = []
            self._generation = 0
            nbytes = np.concatenate([each.sizes.nbytes for each in program.sources])
            work_nbytes = np.concatenate([each.sizes.work_nbytes for each in program.sources])
            self.memory: PartMemory = HeldParts()
            if executor.reach != "thread":
                # What is not written takes no memory.
                count = min(len(nbytes), 1 + room // max(1, int(nbytes.min())))
                room += room // PLACE_SHARE + PLACE_NBYTES * count
                nbytes = nbytes + nbytes // PLACE_SHARE + PLACE_NBYTES
                self.memory = SharedParts(program.part_count, room)
            self.plan = PartPlan(nbytes, work_nbytes, room, executor.worker_count)
            self.ring = Ring(
                program.spec,
                executor.worker_count + 1,
                None,
                is_shared=executor.reach != "thread",
                step_count=program.step_count,
            )
            executor.begin(program, self.ring, self.memory)
        except BaseException:
            executor.request_stop()
            raise

    # The scheduler's side: with the lock held.

    def start(self, position: Position) -> None:
        """A seek: this is the next batch."""
        self._position = position
        self.plan.begin_anew()

    def is_ready(self) -> bool:
        """Returns whether the next batch may begin."""
        self._look()
        return self.plan.is_ready

    def begin(self, generation: int) -> None:
        """The next batch begins."""
        self.plan.begin(generation)

    def end(self, generation: int) -> None:
        """A batch has ended that began."""
        self.plan.end(generation)
        self._decide()

    def _look(self) -> None:
        """Looks a block further ahead if that is far enough from what was seen, and decides."""
        plan, order = self.plan, self._order
        while order is not None and (not plan.sight_count or plan.sight_count + order.block_count <= order.sight_count):
            assert self._position is not None
            is_first = not plan.sight_count
            wanted, self._position = order.block(self._position)
            for each in wanted:
                plan.want(each)
            if not is_first:
                break  # the next one at the next look
        self._decide()

    def _decide(self) -> None:
        self._loads += self.plan.loads()
        for part in self.plan.dropped:
            self.memory.drop(part)
        self.plan.dropped.clear()
        self.is_stirred |= bool(self._loads)

    def stir(self) -> None:
        """Has workers look at what is to decode."""
        self.is_stirred = False
        self._executor.wake()

    # The executor's side: see `Client`.

    def _inputs(self) -> PartMemory:
        return self.memory

    def _issue(self) -> list[Unit]:
        if self._closed:
            return []
        loads, self._loads = self._loads, []
        units = []
        for part, place, nbytes in loads:
            self._generation += 1
            slot = self.ring.free.pop()
            self.ring.rows(slot).arrays[0][0] = 0
            units.append(Unit(0, part, 0, 1, slot, self._generation, base=place, length=nbytes))
        return units

    def _is_wanted(self, unit: Unit) -> bool:
        return not self._closed

    def finished(self, unit: Unit, result: UnitResult) -> list[Unit]:
        """A decoding has ended."""
        if result.error is not None:
            clear_own_frames(result.error)
        with self._lock:
            if self._closed:
                return []
            nbytes = 0 if result.error is not None else int(self.ring.rows(unit.slot).arrays[0][0, 0])
            self.ring.free.append(unit.slot)
            is_there = nbytes > 0 and (nbytes <= unit.length or self.memory.file is None)
            if is_there:
                self.memory.publish(unit.index, unit.base)
            self.plan.decoded(unit.index, nbytes, is_there=is_there)
            self._decide()
            units = self._issue()
        self._wake()
        return units

    # The delivery's side.

    def progress(self) -> object:
        """Returns a value that changes when a worker moves on."""
        return self._executor.progress()

    def stuck(self) -> list[str]:
        """See `Executor.stuck`."""
        return self._executor.stuck()

    def tasks(self) -> list[str]:
        """See `Executor.tasks`."""
        return self._executor.tasks()

    def request_stop(self) -> None:
        """Makes the workers stop soon. Takes no lock."""
        self._closed = True
        self.ring.give_up()
        self.stop_workers()

    def close(self, timeout_s: float) -> bool:
        """Stops, waits for the workers, and frees the memory. Returns whether they ended."""
        self.request_stop()
        ended = self._executor.join(timeout_s)
        if ended:
            self._close_runners()
            self.ring.release()
            self.memory.release()
        return ended
