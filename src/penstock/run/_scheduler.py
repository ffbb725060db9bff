"""Which batches are filled next, and in which order they are delivered.

This is a state machine without threads, locks, clocks or waits. Its caller holds one lock. Its events are methods:
`start` and `abandon` (a seek), `finished`, `close`, and slots that come back (a deque, which finalizers append to). Its
decisions are what the methods return: units to run, and the batch at the head.

Guarantees.
- Batches are delivered in the order of positions, each once, in whatever order units finish.
- Batches are issued late, when a worker would have nothing to do, and into the slot that came back last. So a consumer
  that keeps up uses three or four slots, which stay in the cache. Measured 2026-11: reads of 60 kB rows into 6 slots in
  turn take 1.4 times as long as into one.
- Each position is not issued yet (at or after the cursor), or in the order, or delivered. `abandon` gives up all
  generations up to now. Their units do not start any more, and a slot comes back with its last unit.

Why a batch always comes: at least one slot is never the user's (`Ring.hand_out`). Either it is free, and `issue` uses
it. Or units fill it, which an executor finishes or fails. Or it is filled and delivered.

Above a stream, a batch is issued when its elements are there (`_span_schedule.py`). If spans are batches, such a batch
has no units: it takes the slot of its span, and is ready.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

from penstock.lower._batches import Announcements, ParallelProgram
from penstock.lower._program import Position, Unit
from penstock.lower._rewrite import needed
from penstock.plan._node import Node
from penstock.run._span_schedule import Reading, SpanSchedule
from penstock.run.parts._feed import PartFeed


@final
@dataclass(slots=True, eq=False)
class PendingBatch:
    """A batch that is being filled, or is ready."""

    epoch: int
    index: int
    slot: int
    generation: int
    remaining: int
    """Units that are not finished. At 0 the batch is ready."""
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    """What units or the stream raised, with the first row that is missing."""
    consumed: int = -1
    """Streams: how far the input was read for this batch; -1 if that is unknown."""
    needs: int | None = None
    """Streams: the place of the first element that the batch reads; see `_span_schedule.py`."""
    is_end: bool = False
    """This is the end of an epoch of unknown length, and no batch."""

    @property
    def position(self) -> Position:
        """The epoch and the index."""
        return self.epoch, self.index

    @property
    def first_error(self) -> tuple[int, BaseException]:
        """The error of the first row that failed, whichever unit finished first."""
        return min(self.errors, key=lambda pair: pair[0])


class _Elements(NamedTuple):
    """The elements of a stream that a batch is made of. Without a stream there are none."""

    base: int = 0
    """See `Unit`."""
    length: int = -1
    """See `Unit`."""
    needs: int | None = None
    """See `PendingBatch`."""
    consumed: int = -1
    """See `PendingBatch`."""
    errors: Sequence[tuple[int, BaseException]] = ()
    """See `PendingBatch`."""


@final
class Scheduler:
    """Decides which units run, and which batch is next.

    Args:
        program: The program of the batches.
        free: Slots that may be filled. Those that come back are appended to it.
        stream: The spans that the program reads, if it is above a stream.
        consumed_at: Returns how far the input of the stream was read for the element at a place.
        parts: What decodes the parts of sources, ahead.
        spans_are_batches: Whether spans are handed out as they are, and the program runs no units.
        gives_rest: Whether the rows before an error are delivered.
        redoes_crashes: Whether a unit that crashed workers runs again, one element at a time. An element that crashes
            workers again is set aside.
    """

    def __init__(
        self,
        program: ParallelProgram,
        free: deque[int],
        stream: SpanSchedule | None = None,
        consumed_at: Callable[[int], int] = lambda place: -1,
        *,
        parts: PartFeed | None = None,
        spans_are_batches: bool = False,
        gives_rest: bool = False,
        redoes_crashes: bool = False,
    ) -> None:
        self._program = program
        self._free = free
        self._stream = stream
        self._consumed_at = consumed_at
        self._parts = parts
        self._filled = stream if spans_are_batches else None
        """The spans, if they are batches."""
        self._gives_rest = gives_rest
        self._redoes_crashes = redoes_crashes
        self.is_closed = False
        self.given_up = 0
        """Units of generations up to this one are not wanted any more."""
        self.unfinished_count = 0
        """Units under way."""
        self._generation = 0
        self._cursor: Position | None = None
        """The batch that is issued next."""
        self._pending: dict[int, PendingBatch] = {}
        """Batches with units under way, by generation."""
        self._order: deque[PendingBatch] = deque()
        self._reading: Reading | None = None
        """Streams: the reading of the epoch of the cursor; None if it has not begun."""
        self._need: tuple[Node, int, tuple[int, int]] | None = None
        self._announcements = Announcements(program)

    # Events.

    def abandon(self) -> None:
        """A seek begins: everything under way is given up.

        The position is set last of all, by `start`. So a seek that Ctrl-C cuts off is made again.
        """
        self._cursor = None
        self.given_up = self._generation
        self._order.clear()
        self._announcements.reset()

    def start(self, position: Position, consumed: int = -1) -> None:
        """A seek ends: this is the next batch.

        Args:
            position: The batch.
            consumed: Streams: `consumed` of the batch before it, from another run; -1 if unknown.
        """
        if self._stream is not None:
            self._begin_reading(self._stream, *position, consumed)
        if self._parts is not None:
            self._parts.start(position)
        self._cursor = position
        self._release()

    def close(self) -> None:
        """Nothing is issued any more. One assignment, so no lock is needed."""
        self.is_closed = True

    def finished(self, unit: Unit, error: BaseException | None = None, *, crashed: bool = False) -> list[Unit]:
        """A unit is done. The last unit of a batch makes the batch ready.

        Args:
            unit: The unit.
            error: The error that it raised.
            crashed: Whether the error says that workers crashed or hung.

        Returns:
            Units to run again, in place of this one.
        """
        batch = self._pending[unit.generation]
        if error is not None:
            if again := self._again(unit, crashed=crashed):
                batch.remaining += len(again) - 1
                self.unfinished_count += len(again) - 1
                return again
            batch.errors.append((unit.start, error))
        if batch.remaining > 1:
            batch.remaining -= 1
        else:
            self._complete(batch)
        self.unfinished_count -= 1
        return []

    def _again(self, unit: Unit, *, crashed: bool) -> list[Unit]:
        """Returns the units that run in place of one that failed."""
        if self.is_closed:
            return []
        redoes = crashed and self._redoes_crashes and not unit.is_poisoned
        if unit.stop - unit.start > 1 and (redoes or self._gives_rest):
            return [unit._replace(start=row, stop=row + 1) for row in range(unit.start, unit.stop)]
        return [unit._replace(is_poisoned=True)] if redoes else []

    def _complete(self, batch: PendingBatch) -> None:
        del self._pending[batch.generation]
        self._release()
        if self._parts is not None:
            self._parts.end(batch.generation)
        if batch.generation <= self.given_up:
            self._free.append(batch.slot)
            return
        batch.remaining = 0  # last of all: if Ctrl-C strikes before, the batch never becomes ready

    # Decisions.

    @property
    def head_position(self) -> Position | None:
        """The position that is delivered next."""
        return self._order[0].position if self._order else self._cursor

    @property
    def is_head_ready(self) -> bool:
        """Whether the next batch is ready."""
        return bool(self._order) and not self._order[0].remaining

    def take(self) -> PendingBatch:
        """Removes the next batch, which is ready, from the order."""
        return self._order.popleft()

    @property
    def busy_slots(self) -> set[int]:
        """Slots that units may write to, and those of spans that are batches."""
        spans = set() if self._filled is None else self._filled.slots
        return spans | {batch.slot for batch in self._pending.values()}

    @property
    def waiting_for(self) -> Position:
        """The first batch that is not ready, for messages."""
        return next((batch.position for batch in self._order if batch.remaining), self._cursor or (0, 0))

    def is_wanted(self, unit: Unit) -> bool:
        """Returns whether the result of a unit matters: the batch is not given up, and no row before it failed."""
        batch = self._pending[unit.generation]
        if self.is_closed or batch.generation <= self.given_up:
            return False
        return not (batch.errors and batch.first_error[0] < unit.start)

    def issue(self, target: int, worker_count: int, row_s: float) -> list[Unit]:
        """Issues batches into free slots while fewer units than `target` are under way.

        Args:
            target: See `Executor.queue_target`.
            worker_count: How many workers share a batch.
            row_s: Measured seconds for a row; 0 if unknown.
        """
        units: list[Unit] = []
        while self._cursor is not None and self.unfinished_count < target and not self.is_closed:
            if not self._free and self._stream is None:
                break  # at once, because this runs for each unit
            elements = _Elements()
            if self._stream is not None:
                found = self._look(self._stream, *self._cursor)
                if found == "wait":
                    self._release()  # the feed may wait for room
                    break
                if found == "end" and any(batch.is_end for batch in self._order):
                    break  # else epochs without a batch would begin without end
                if not isinstance(found, _Elements):
                    self._conclude(self._cursor, found)
                    continue
                if not self._free and self._filled is None:
                    break
                elements = found
            if self._parts is not None and not self._parts.is_ready():
                break
            units += self._issue(self._cursor, worker_count, row_s, elements)
        return units

    def _issue(self, position: Position, worker_count: int, row_s: float, elements: "_Elements") -> Sequence[Unit]:
        base, length, needs, consumed, errors = elements
        self._go_to(self._program.next_position(*position))  # before the slot is taken: see `Delivery`
        slot = self._free.pop() if self._filled is None or needs is None else self._filled.hand_over(needs)
        self._generation += 1
        announce = self._announcements.after(position)
        whole = Unit(*position, 0, 1, slot, self._generation, announce, base, length)
        units = self._program.cut(whole, worker_count, row_s) if self._filled is None else []
        if self._parts is not None:
            self._parts.begin(self._generation)
        batch = PendingBatch(*position, slot, self._generation, len(units), [*errors], consumed, needs)
        if units:
            self._pending[self._generation] = batch
        self._order.append(batch)
        self.unfinished_count += len(units)
        return units

    def _conclude(self, position: Position, found: "BaseException | Literal['end']") -> None:
        """Puts the end of an epoch, or the error of its stream, in the place of a batch."""
        self._generation += 1
        batch = PendingBatch(*position, slot=-1, generation=self._generation, remaining=0, is_end=found == "end")
        if isinstance(found, BaseException):
            batch.errors.append((0, found))
            self._cursor = None  # until a seek
        else:
            self._go_to(self._program.next_position(*position, is_last=True))
        self._order.append(batch)

    def _go_to(self, position: Position) -> None:
        self._cursor = position
        if position[1] == 0:
            self._reading = None

    # Streams.

    def _needed(self, node: Node, index: int) -> tuple[int, int]:
        """As `needed`, and keeps the last answer: without that, these calls were two fifths of the parent's time."""
        if self._need is None or self._need[0] is not node or self._need[1] != index:
            self._need = node, index, needed(node, index)
        return self._need[2]

    def _begin_reading(self, stream: SpanSchedule, epoch: int, index: int, consumed: int = -1) -> Reading:
        node, limit = self._program.node, None
        if self._program.batch_count:
            limit = needed(node, self._program.batch_count - 1)[1]
        self._reading = None  # Ctrl-C may strike before the next line is complete
        self._reading = stream.begin(epoch, self._needed(node, index)[0], consumed, limit)
        return self._reading

    def _look(
        self, stream: SpanSchedule, epoch: int, index: int
    ) -> "_Elements | BaseException | Literal['wait', 'end']":
        """Returns the elements of a batch, if they are there, or why there is no such batch.

        With a batch whose last rows are missing comes the error of the stream.
        """
        reading = self._reading or self._begin_reading(stream, epoch, index)
        node = self._program.at(reading.count)
        if node.length != math.inf and index >= (node.length or 0):
            return "end"
        first, stop = self._needed(node, index)
        needs = reading.base + first
        if stop <= reading.filled:
            consumed = self._consumed_at(reading.base + stop - 1) if stop > first else -1
            return _Elements(reading.base, reading.count, needs, consumed)
        if reading.error is None:
            return "wait" if reading.count < 0 else self._program.shortage(epoch, index, reading.count)
        if self._gives_rest:
            row_count, length = self._program.rest(index, reading.filled)
            if row_count:
                return _Elements(reading.base, length, needs, errors=[(row_count, reading.error)])
        return reading.error

    def _release(self) -> None:
        """Tells the stream which elements are not needed any more."""
        if self._stream is None:
            return
        needs = [batch.needs for batch in self._pending.values() if batch.needs is not None]
        if self._reading is not None and self._cursor is not None:
            needs.append(self._reading.base + self._needed(self._program.node, self._cursor[1])[0])
        if needs:
            self._stream.release(min(needs))
