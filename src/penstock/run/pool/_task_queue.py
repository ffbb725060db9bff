"""The board: units that wait for a worker, in memory that a pool's processes share.

A place on the board holds one unit and goes FREE, QUEUED, CLAIMED, DONE or TOLD, and FREE again. TOLD is done
with a message, which the worker sent to the parent before.

Who writes what. The parent alone makes places QUEUED and FREE. A worker makes a QUEUED place CLAIMED, with its
number beside it, and that place DONE or TOLD; and it writes its own trace.

Guarantees.
- A unit is claimed once. Claims are made under a record lock of the kernel, so two workers never see the same
  QUEUED place, and a worker that dies with the lock, at any instruction, leaves it open for the others.
- No unit is lost. Until a place is CLAIMED it is QUEUED, and then its owner is known: it was written before.
  When the owner is dead (reaped, so that it writes nothing any more), the parent queues the unit again.
- Workers take units without the parent, whose interpreter may be busy with the user's code for long.

Tokens tell workers that there is something to claim: a pipe with a byte for each place that was queued. A
worker that dies between a token and its claim takes the token along; so the parent adds one for each death. One
too many costs a look at the board.

Each wait, and what ends it. For the lock: its holder's next lines, or its death; a holder that is stopped in
between is found by `lock_holder` and killed. The parent never waits for it. For tokens: see `_worker.py`.
"""

import os
import struct
import sys
from typing import Final, NamedTuple, final

from penstock.lower._program import Unit
from penstock.memory._mapping import map_shared

if sys.platform != "win32":  # there, nothing of this is used: see `_choice.py`
    import fcntl

PLACE_COUNT: Final = 4096
MAX_WORKER_COUNT: Final = 1024
FREE, QUEUED, CLAIMED, DONE, TOLD = range(5)

_BYTES = [bytes([state]) for state in range(5)]
_ENTRY = struct.Struct("=15q")  # the number of the plan, and the integers of a unit
_LOCK = struct.Struct("hhqqi")  # struct flock: type, whence, start, length, process
_STATES: Final = 64
_OWNERS: Final = _STATES + PLACE_COUNT
_TRACES: Final = _OWNERS + 2 * PLACE_COUNT
_ENTRIES: Final = _TRACES + 24 * MAX_WORKER_COUNT
BOARD_NBYTES: Final = _ENTRIES + _ENTRY.size * PLACE_COUNT


class Entry(NamedTuple):
    """A unit of a plan that the pool has opened under a number."""

    plan: int
    unit: Unit


@final
class TaskQueue:
    """The shared memory of a pool and the operations on it, for the parent and for workers.

    Args:
        descriptor: A memory file of `BOARD_NBYTES`; the caller closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = map_shared(descriptor, BOARD_NBYTES)
        self._view = view = memoryview(self._memory)
        self._head = view[:8].cast("q")
        """Where the search for a QUEUED place begins."""
        self._states = view[_STATES:_OWNERS]
        self._owners = view[_OWNERS:_TRACES].cast("H")
        self._traces = view[_TRACES:_ENTRIES].cast("q")
        self._tail = 0
        """The parent's: where the search for a FREE place begins."""

    def close(self) -> None:
        """Unmaps the memory."""
        for view in (self._head, self._states, self._owners, self._traces):
            view.release()
        self._view.release()
        self._memory.close()

    def trace(self, worker: int) -> "memoryview[int]":
        """The three words of `WorkerStatus` of a worker."""
        return self._traces[3 * worker : 3 * worker + 3]

    # Workers.

    def claim(self, worker: int) -> int | None:
        """Claims the oldest QUEUED place for a worker; None if there is none."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            place = self._next(QUEUED, self._head[0])
            if place < 0:
                return None
            self._owners[place] = worker  # before the state, so that a claim without an owner is never seen
            self._states[place] = CLAIMED
            self._head[0] = place + 1
            return place
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    def entry(self, place: int) -> Entry:
        """What is to be done at a place that is claimed."""
        plan, epoch, index, start, stop, slot, generation, *rest = _ENTRY.unpack_from(
            self._memory, _ENTRIES + place * _ENTRY.size
        )
        to_come, base, length, origin = (rest[0], rest[1], rest[2]), rest[3], rest[4], (rest[5], rest[6])
        return Entry(
            plan, Unit(epoch, index, start, stop, slot, generation, to_come, base, length, origin, bool(rest[7]))
        )

    def finish(self, place: int, state: int, words: "memoryview[int]", slot: int) -> bool:
        """Makes a claimed place DONE or TOLD, and counts it off its slot.

        Args:
            place: The place.
            state: DONE or TOLD.
            words: Those of the ring, see `ring_header`.
            slot: The slot that the unit was for.

        Returns:
            Whether the parent is to look: no unit of that slot is left, or there is a message.
        """
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            # Counted before it is DONE. Whoever dies in between has counted a unit that is done again, and then the
            # parent looks once too often, rather than never.
            words[1 + slot] -= 1
            self._states[place] = state
            return words[1 + slot] <= 0 or state == TOLD
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    # The parent. None of these waits.

    def try_lock(self) -> bool:
        """Takes the lock, or says that somebody holds it. A record lock is the process's, so one thread may do this."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self) -> None:
        """Lets go of the lock."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    def lock_holder(self) -> int | None:
        """The process that holds the lock; None if nobody does, or the system does not say."""
        if struct.calcsize("P") != 8:
            return None
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process

    def push(self, entry: Entry) -> int | None:
        """Queues a unit, with the lock held; returns its place, or None while the board is full."""
        place = self._next(FREE, self._tail)
        if place < 0:
            return None
        unit = entry.unit
        where = (entry.plan, unit.epoch, unit.index, unit.start, unit.stop, unit.slot, unit.generation)
        numbers = (*where, *unit.announce, unit.base, unit.length, *unit.origin, unit.is_poisoned)
        _ENTRY.pack_into(self._memory, _ENTRIES + place * _ENTRY.size, *numbers)
        self._states[place] = QUEUED
        self._tail = (place + 1) % PLACE_COUNT
        return place

    def requeue(self, place: int) -> None:
        """Queues the unit of a place again, the next to be claimed. With the lock held; its owner is dead."""
        self._states[place] = QUEUED
        self._head[0] = place

    def free(self, place: int) -> None:
        """Frees a place that is DONE or TOLD, or QUEUED and with the lock held."""
        self._states[place] = FREE

    def owner(self, place: int) -> int:
        """The worker that claimed a place last."""
        return self._owners[place]

    def places(self, state: int) -> list[int]:
        """All places in a state."""
        found, find, end = [], self._memory.find, _STATES + PLACE_COUNT
        at = find(_BYTES[state], _STATES, end)
        while at >= 0:
            found.append(at - _STATES)
            at = find(_BYTES[state], at + 1, end)
        return found

    def _next(self, state: int, start: int) -> int:
        """The first place in a state from `start` on, and round; -1 if there is none."""
        place = self._find(state, start, PLACE_COUNT)
        return place if place >= 0 else self._find(state, 0, start)

    def _find(self, state: int, start: int, stop: int) -> int:
        place = self._memory.find(_BYTES[state], _STATES + start, _STATES + stop)
        return place - _STATES if place >= 0 else -1
