"""What the workers of a pool work on. Everything here belongs to the pool's thread, `spare_count` apart."""

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Final, final

from penstock import native
from penstock.lower._program import Unit
from penstock.memory._budget import granted
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.memory._shared import Place, SharedFile
from penstock.memory._slot import count_place, counts, own_header
from penstock.run._dispatcher import Notes, Receiver, Task
from penstock.run.pool._logs import levels_here
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._remote_error import load_error
from penstock.run.pool._worker import Opening, current_directory

_MANY: Final = 1 << 32


@final
class PoolTask(Task):
    """Something that workers run units of: a loader's program with its ring, or a plan whose specs are asked for.

    Args:
        payload: The pickled plan.
        ring: Where its units write; None for a task without.
        timeout_s: How long a worker may stand still.
        receiver: Takes the outcomes.
        inputs: Where units read what others made: the spans of a stream, or decoded parts.
        shared: The pool's file, which gets the plan and its arrays.
        notes: Those of the loader.
        wakes_each: Whether the receiver wants each unit when it is done, and not only the last one of a slot.
    """

    def __init__(
        self,
        payload: PlanPayload,
        ring: Ring | None,
        timeout_s: float,
        receiver: Receiver,
        inputs: Ring | PartMemory | None,
        shared: SharedFile,
        notes: Notes,
        *,
        wakes_each: bool,
    ) -> None:
        super().__init__(timeout_s, receiver, notes)
        self.closed_at = 0.0
        """When it was given up; 0 before."""
        self.load_error: Callable[[bytes], BaseException] = load_error
        """Makes the error of a worker again."""
        self.header = own_header() if ring is None else ring.header
        self.files = tuple(each.file for each in (ring, inputs) if each is not None and each.file is not None)
        """Memory that workers map: of the ring, then of what others made."""
        self._wakes_each = wakes_each
        self._generations: dict[int, int] = {}
        """Of the units that were counted last, by slot."""
        self._shared = shared
        self._places: list[Place] = []
        nbytes = len(payload.data) + payload.shared_nbytes
        try:
            with granted(nbytes, "what worker processes share", "Put large arrays into files (from_npy)"):
                self._places.append(shared.put_bytes(payload.data))
                self._places.append(shared.put_bytes(pickle.dumps(levels_here())))
                for array in payload.arrays:
                    self._places.append(shared.put_array(array))  # noted one by one, should the next fail
        except BaseException:
            self._release()
            raise
        self.opening = Opening(
            task=self.number,
            data=self._places[0],
            levels=self._places[1],
            arrays=tuple(self._places[2:]),
            slot_count=1 if ring is None else ring.slot_count,
            file_nbytes=tuple(file.nbytes for file in self.files),
            timeout_s=timeout_s,
            directory=current_directory(),
            path=tuple(path for path in sys.path if type(path) is str),
        )

    # Wake-ups; see `_task_queue.py`.

    def count(self, units: Sequence[Unit]) -> None:
        """Notes how many units of a slot workers are about to get, before they get them.

        Only if all units of a slot come at once, for the first time. Units that run again wake each.
        """
        found: dict[tuple[int, int], int] = {}
        for unit in units:
            use = unit.slot, unit.generation
            found[use] = found.get(use, 0) + 1
        for (slot, generation), count in found.items():
            is_whole = self._generations.get(slot) != generation and not self._wakes_each and not self.closed_at
            self._generations[slot] = generation
            self.header[count_place(slot)] = count if is_whole else 0

    def wake_each(self) -> None:
        """Makes each answer wake the pool, for the slots that are being filled."""
        for slot in self._generations:
            native.count_down(self.header, count_place(slot), _MANY)

    @property
    def spare_count(self) -> int:
        """Returns how many units workers have, at least, when the pool is woken next. Takes no lock."""
        if self._wakes_each:
            return self.unfinished_count - 1
        left = [max(0, count) for count in counts(self.header)]
        return sum(left) - max(left)

    def close(self) -> None:
        """Lets go of what workers shared."""
        self._release()
        self._generations.clear()
        self.header, self.files = own_header(), ()

    def _release(self) -> None:
        places, self._places = self._places, []
        for place in places:
            self._shared.release(place)
