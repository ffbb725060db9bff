"""The queue of units, in memory that a pool's processes share.

A place holds one unit. It goes FREE, QUEUED, CLAIMED, then DONE or ANSWERED, and FREE again. ANSWERED means done,
with a message that the worker sent to the parent before.

Who writes what. The parent alone makes places QUEUED and FREE. A worker makes a QUEUED place CLAIMED, with its number
beside it, and makes that place DONE or ANSWERED. It also writes its own status, its own count of claims and its own
idle flag. All of this happens under the lock, except that a worker writes its status at any time.

Guarantees.
- A unit is claimed once. The lock is a record lock of the kernel. A worker that dies with the lock, at any
  instruction, leaves it open for the others.
- No unit is lost. Until a place is CLAIMED it is QUEUED, and its owner was written before it is CLAIMED. When the owner
  is dead (reaped, so that it writes nothing any more), the parent queues the unit again.
- Workers take units without the parent, whose interpreter may be busy with the user's code.
- A worker that goes to sleep set its idle flag under the lock under which it found nothing. So a parent that queues
  units later sees the flag, and wakes it with a token.

A token is a byte in a pipe. One too many costs a look at the queue. A worker that dies may take a token along, so the
parent adds one for each death.

Each wait, and what ends it. A worker waits for the lock: ended by its holder's next lines, or by the holder's death.
The parent finds a holder that was stopped in between by `lock_holder`, and kills it. The parent itself never
waits: it tries the lock. It keeps the GIL meanwhile, or else the user's threads would run while it holds the lock.
"""

import ctypes
import os
import struct
import sys
from typing import Final, NamedTuple, final

from penstock.lower._program import Unit
from penstock.memory._mapping import map_shared

if sys.platform != "win32":  # where nothing of this is used
    import fcntl

PLACE_COUNT: Final = 4096
MAX_WORKER_COUNT: Final = 1024
FREE, QUEUED, CLAIMED, DONE, ANSWERED = range(5)

_BYTES: Final = [bytes([state]) for state in range(5)]
_ENTRY: Final = struct.Struct("=15q")  # the number of the task, and the integers of a unit
_LOCK: Final = struct.Struct("hhqqi")  # struct flock: type, whence, start, length, process
_STATUS_SIZE: Final = 3
_STATES: Final = 64  # before it: where the search for a QUEUED place begins
_IDLE: Final = _STATES + PLACE_COUNT
_OWNERS: Final = _IDLE + MAX_WORKER_COUNT
_CLAIMS: Final = _OWNERS + 2 * PLACE_COUNT
_STATUSES: Final = _CLAIMS + 8 * MAX_WORKER_COUNT
_ENTRIES: Final = _STATUSES + 8 * _STATUS_SIZE * MAX_WORKER_COUNT
QUEUE_NBYTES: Final = _ENTRIES + _ENTRY.size * PLACE_COUNT


class Entry(NamedTuple):
    """A unit of a task that the pool has opened under a number."""

    task: int
    unit: Unit


@final
class TaskQueue:
    """The shared memory of a pool and the operations on it, for the parent and for workers.

    Args:
        descriptor: A memory file of `QUEUE_NBYTES`. The caller closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = map_shared(descriptor, QUEUE_NBYTES)
        self._view = view = memoryview(self._memory)
        self._head = view[:8].cast("q")
        self._states = view[_STATES:_IDLE]
        self._idle = view[_IDLE:_OWNERS]
        self._owners = view[_OWNERS:_CLAIMS].cast("H")
        self._claims = view[_CLAIMS:_STATUSES].cast("q")
        self._statuses = view[_STATUSES:_ENTRIES].cast("q")
        self._tail = 0
        """The parent's: where the search for a FREE place begins."""
        self._lockf = ctypes.PyDLL(None).lockf  # which, unlike `os.lockf`, keeps the GIL
        self._lockf.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_long

    def close(self) -> None:
        """Unmaps the memory."""
        for view in (self._head, self._states, self._idle, self._owners, self._claims, self._statuses):
            view.release()
        self._view.release()
        self._memory.close()

    def status(self, worker: int) -> "memoryview[int]":
        """The three words of `WorkerStatus` of a worker."""
        return self._statuses[_STATUS_SIZE * worker : _STATUS_SIZE * (worker + 1)]

    # Workers.

    def lock(self) -> None:
        """Waits for the lock."""
        os.lockf(self._descriptor, os.F_LOCK, 1)

    def claim(self, worker: int) -> int | None:
        """Claims the oldest QUEUED place for a worker, with the lock held; notes that it is idle if there is none."""
        place = self._next(QUEUED, self._head[0])
        self._idle[worker] = place < 0
        if place < 0:
            return None
        self._owners[place] = worker  # before the state, so that a claim without an owner is never seen
        self._states[place] = CLAIMED
        self._claims[worker] += 1
        self._head[0] = place + 1
        return place

    def entry(self, place: int) -> Entry:
        """The unit at a place that is claimed."""
        task, epoch, index, start, stop, slot, generation, a, b, c, base, length, first, consumed, is_poisoned = (
            _ENTRY.unpack_from(self._memory, _ENTRIES + place * _ENTRY.size)
        )
        origin = (first, consumed)
        unit = Unit(epoch, index, start, stop, slot, generation, (a, b, c), base, length, origin, bool(is_poisoned))
        return Entry(task, unit)

    def finish(self, place: int, state: int, header: "memoryview[int]", slot: int) -> bool:
        """Makes a claimed place DONE or ANSWERED, with the lock held, and counts it off its slot.

        Args:
            place: The place.
            state: DONE or ANSWERED.
            header: That of the ring, see `ring_header`.
            slot: The slot that the unit was for.

        Returns:
            Whether the parent is to look: no unit of that slot is left, or there is a message.
        """
        # Counted before it is DONE. If the worker dies in between, a unit that was counted is done again, and then the
        # parent looks once too often, rather than never.
        header[1 + slot] -= 1
        self._states[place] = state
        return header[1 + slot] <= 0 or state == ANSWERED

    # Both.

    def unlock(self) -> None:
        """Lets go of the lock."""
        self._lockf(self._descriptor, os.F_ULOCK, 1)

    # The parent. None of these waits.

    def try_lock(self) -> bool:
        """Takes the lock, or returns False. A record lock is the process's, so one thread may do this."""
        return not self._lockf(self._descriptor, os.F_TLOCK, 1)

    def lock_holder(self) -> int | None:
        """The process that holds the lock; None if it is free, or the system does not say."""
        if struct.calcsize("P") != 8:
            return None
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process

    def push(self, entry: Entry) -> int | None:
        """Queues a unit, with the lock held; returns its place, or None while the queue is full."""
        place = self._next(FREE, self._tail)
        if place < 0:
            return None
        unit = entry.unit
        where = (entry.task, unit.epoch, unit.index, unit.start, unit.stop, unit.slot, unit.generation)
        rest = (*unit.announce, unit.base, unit.length, *unit.origin, unit.is_poisoned)
        _ENTRY.pack_into(self._memory, _ENTRIES + place * _ENTRY.size, *where, *rest)
        self._states[place] = QUEUED
        self._tail = (place + 1) % PLACE_COUNT
        return place

    def idle_count(self) -> int:
        """How many workers sleep, or are about to; with the lock held."""
        return self._memory[_IDLE:_OWNERS].count(1)

    def requeue(self, place: int) -> None:
        """Queues the unit of a place again, the next to be claimed. With the lock held; its owner is dead."""
        self._states[place] = QUEUED
        self._head[0] = place

    def free(self, place: int) -> None:
        """Frees a place that is DONE or ANSWERED, or QUEUED and with the lock held."""
        self._states[place] = FREE

    def forget(self, worker: int) -> None:
        """Resets what a dead worker wrote of itself."""
        self._idle[worker] = 0
        self.status(worker)[0] = 0

    def owner(self, place: int) -> int:
        """The worker that claimed a place last."""
        return self._owners[place]

    def claim_count(self, worker: int) -> int:
        """How many units a worker, and those with its number before it, ever claimed."""
        return self._claims[worker]

    def places(self, state: int) -> list[int]:
        """All places in a state."""
        found, find = [], self._memory.find
        at = find(_BYTES[state], _STATES, _IDLE)
        while at >= 0:
            found.append(at - _STATES)
            at = find(_BYTES[state], at + 1, _IDLE)
        return found

    def _next(self, state: int, start: int) -> int:
        """The first place in a state from `start` on, and round; -1 if there is none."""
        at = self._memory.find(_BYTES[state], _STATES + start, _IDLE)
        if at < 0:
            at = self._memory.find(_BYTES[state], _STATES, _STATES + start)
        return at - _STATES if at >= 0 else -1
