"""The way of units to workers and back: three pipes, four words of shared memory a worker, and one a slot.

The parent writes a unit into one pipe as a struct. All workers read that pipe, so the next worker that is ready takes
the oldest unit. It needs no help of the parent, whose interpreter may be busy with the user's code. A worker that
finished a unit writes a struct into the second pipe, which the parent reads whenever it wakes. The third pipe wakes it:
once a slot, by the worker that finished the slot, and not once a unit.

Who writes what. The parent alone writes units. A worker writes its own four words: its claim, then its `WorkerStatus`.
The parent sets the count of a slot before it sends the slot's units. Workers count down; so does `PoolTask.wake_each`.

Guarantees.
- A unit is taken once. All units have one size, and Linux copies what a pipe has in one piece, under a lock.
- The parent knows which unit each worker holds. A worker sets its claim to TAKING before it reads the pipe. After that
  it sets the claim to the number of the unit, or to 0 if there was none. So a unit that is in no pipe and in no claim
  was lost by a dead worker whose claim is TAKING.
- No unit is lost. When its worker is dead (reaped, so that it writes nothing any more), the parent sends it again.
- A worker writes its answer before it changes its claim.
- A slot wakes the parent after its last answer. A worker writes its answer, counts down, and wakes the parent if
  nothing or less is left. The subtraction is one step, sequentially consistent. So all workers of a slot see one order
  of differences, and the writes before each step are visible to those that come after it: the worker that counts to 0
  wakes the parent after all answers are in the pipe. In any other order (count, then answer) the last worker could wake
  the parent while another one has counted and not answered.
- The count may be too low, never too high while a unit of the slot is under way. Too low costs a wake-up. It is too low
  if a worker counts late, for the slot's earlier use. It would be too high if a worker died between answer and count:
  so at each death, after the dead worker is reaped, the parent lowers all counts by so much that each answer wakes it,
  and then reads the answers. A worker that counted before that answered before it, so this read finds the answer. One
  that counts afterwards wakes the parent. The same holds when a loader leaves, and takes back units that none counts.
- A worker that dies before its answer is in the pipe has not counted, so the worker that does the unit again counts for
  it. Units that replace one that failed are not counted: their slot's count becomes 0, and each answer wakes.

Each wait, and what ends it. A worker waits to write an answer if the pipe is full. The parent ends that by reading, at
the latest at its next tick, or by its own end, with which the system kills the workers. The parent waits for nothing
here. A write of at most `PIPE_BUF` bytes that finds no room does nothing, and is repeated when there is room.
"""

import os
import select
import struct
from collections.abc import Callable, Iterable
from typing import Final, final

from penstock.lower._program import Unit
from penstock.memory._mapping import MemoryFile, map_shared

MAX_WORKER_COUNT: Final = 1024
TAKING: Final = -1
UNIT: Final = struct.Struct("=16q")
"""The number of a job, the number of its task, and the integers of its unit."""
ANSWER: Final = struct.Struct("=qii")
"""The number of a job, the number of the worker, and whether a message was sent before."""
GROUP_COUNT: Final = select.PIPE_BUF // UNIT.size
"""The most units of one write."""
_STATUS_SIZE: Final = 4
_READ_NBYTES: Final = 1 << 16


@final
class Pipe:
    """A pipe whose reader never waits. It is closed when it is dropped.

    Functions of modules are held by defaults. A batch that the program kept is dropped while modules are torn down, or
    in a child of fork(), and then it writes a wake-up.

    Args:
        writer_waits: Whether a writer waits while the pipe is full.
    """

    def __init__(self, *, writer_waits: bool = False) -> None:
        self._both: tuple[int, ...] = ()
        self._both = self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, writer_waits)

    def write(self, data: bytes = b"\0", write: Callable[[int, bytes], int] = os.write) -> bool:
        """Writes at most `PIPE_BUF` bytes, all or none. Returns whether there was room."""
        try:
            write(self.writer, data)
        except BlockingIOError:
            return False
        return True

    def read(self) -> bytes:
        """Returns what the pipe has; nothing if it is empty."""
        try:
            return os.read(self.reader, _READ_NBYTES)
        except BlockingIOError:
            return b""

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Closes both ends."""
        both, self._both = self._both, ()
        for descriptor in both:
            close(descriptor)

    __del__ = close


@final
class TaskQueue:
    """The parent's side of both pipes and of the words of the workers."""

    def __init__(self) -> None:
        self._units = Pipe()
        self._answers = Pipe(writer_waits=True)
        self._file = MemoryFile(8 * _STATUS_SIZE * MAX_WORKER_COUNT)
        self._words = worker_words(self._file.descriptor)
        self.room_descriptor = self._units.writer
        """Ready to write when there is room for units."""
        self.wakeup = Pipe()
        """A byte for each time that the parent is to look. It is open as long as any thread may write."""
        self.descriptors = self._units.reader, self._answers.writer, self._file.descriptor, self.wakeup.writer
        """Those that a worker needs."""

    def send(self, units: Iterable[tuple[int, int, Unit]]) -> bool:
        """Sends at most `GROUP_COUNT` units, all or none. Returns whether there was room.

        Args:
            units: The number of the job, the number of its task, and the unit.
        """
        return self._units.write(b"".join([_packed(number, task, unit) for number, task, unit in units]))

    def take_back(self) -> list[int]:
        """Takes the units that no worker has taken, oldest first. Returns the numbers of their jobs."""
        numbers: list[int] = []
        while data := self._units.read():
            numbers += [fields[0] for fields in UNIT.iter_unpack(data)]
        return numbers

    def answers(self) -> Iterable[tuple[int, ...]]:
        """Takes the answers that are there: the fields of `ANSWER`. Those of one worker are in its order."""
        return ANSWER.iter_unpack(self._answers.read())

    def claim(self, worker: int) -> int:
        """Returns the number of the job that a worker took last; TAKING while it takes one; 0 if it has none."""
        return self._words[_STATUS_SIZE * worker]

    def status(self, worker: int) -> tuple[int, int, int]:
        """Returns the words of `WorkerStatus` of a worker."""
        step, epoch, element = self._words[_STATUS_SIZE * worker + 1 : _STATUS_SIZE * (worker + 1)]
        return step, epoch, element

    def forget(self, worker: int) -> None:
        """Resets the words of a dead worker, before the next one has its number."""
        for place in range(_STATUS_SIZE * worker, _STATUS_SIZE * (worker + 1)):
            self._words[place] = 0

    def close(self) -> None:
        """Closes the pipes and the file, and unmaps the words."""
        self._units.close()
        self._answers.close()
        self._file.close()
        self._words.release()


def _packed(number: int, task: int, unit: Unit) -> bytes:
    epoch, index, start, stop, slot, generation, announce, base, length, origin, is_poisoned = unit
    return UNIT.pack(
        number, task, epoch, index, start, stop, slot, generation, *announce, base, length, *origin, is_poisoned
    )


def unpacked(data: bytes) -> tuple[int, int, Unit]:
    """Returns the number of the job, the number of its task, and the unit."""
    number, task, epoch, index, start, stop, slot, generation, a, b, c, base, length, first, consumed, is_poisoned = (
        UNIT.unpack(data)
    )
    origin = first, consumed
    unit = Unit(epoch, index, start, stop, slot, generation, (a, b, c), base, length, origin, bool(is_poisoned))
    return number, task, unit


def worker_words(descriptor: int) -> "memoryview[int]":
    """Maps the words of all workers."""
    return memoryview(map_shared(descriptor, 8 * _STATUS_SIZE * MAX_WORKER_COUNT)).cast("q")


def own_words(words: "memoryview[int]", worker: int) -> "tuple[memoryview[int], memoryview[int]]":
    """Returns the claim of a worker, and its status."""
    start = _STATUS_SIZE * worker
    return words[start : start + 1], words[start + 1 : start + _STATUS_SIZE]
