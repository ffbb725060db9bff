"""Which elements of a stream are read next, and in which span they lie.

This is a state machine without threads, locks, clocks or waits. Its events are: an epoch begins, elements arrive, a
unit is finished, elements are not needed any more. Its decisions are the units to issue and the slots that are free.

A stream is read by one worker in order, into *spans* of `size` elements each. Spans are numbered from the first to the
last that the feed ever fills. A *place* is the number of an element among those of all spans: element `i` of a reading
has place `reading.base + i`.

A slot that holds a span comes back in one of two ways.
- Spans become free in the order of their numbers, when the batches need nothing of them any more and no unit writes to
  them. The slot that came back first is taken first, so span number `n` lies in slot `n % slot_count`.
- If spans are batches, the scheduler hands them over (`hand_over`), and their slots come back as leases end.
"""

from collections import deque
from dataclasses import dataclass
from typing import final

from penstock.lower._program import Unit


@final
@dataclass(slots=True, eq=False)
class Reading:
    """An epoch of the stream, or the rest of one, that is being read."""

    epoch: int
    base: int
    """The place of element 0 of the epoch."""
    filled: int
    """Elements up to this number are there. Those before the first span never were."""
    count: int = -1
    """Elements in the epoch; -1 until its end was seen."""
    origin: tuple[int, int] = (0, 0)
    """See `Unit.origin`."""
    error: BaseException | None = None
    """What element number `filled` raised."""
    is_over: bool = False
    """Whether nothing more comes: its end was seen, or an error."""


@final
@dataclass(slots=True, eq=False)
class _Span:
    number: int
    reading: Reading
    index: int
    """Its number among the spans of its epoch."""
    slot: int
    issued: int
    """Rows up to this one are in units."""
    pending: int = 0
    """Units that are not finished."""


@final
class SpanSchedule:
    """The spans of a stream and the units that fill them.

    Args:
        size: Elements in a span.
        free: Slots that may be filled. Those that come back are put to its left, and leases that end to its right.
        ahead_count: Units under way at most.
    """

    def __init__(self, size: int, free: deque[int], ahead_count: int) -> None:
        self._size = size
        self._free = free
        self._ahead_count = ahead_count
        self.reading: Reading | None = None
        """The reading under way."""
        self.given_up = 0
        """Units of generations up to this one are not wanted any more."""
        self.is_stirred = False
        """Whether the worker of the feed may have something to do; see `Feed.stir`."""
        self.freed: list[int] = []
        """Slots whose spans were dropped since this list was emptied."""
        self._spans: deque[_Span] = deque()
        self._next_number = 0
        self._needed_from = 0
        """The number of the first span that is needed."""
        self._limit: int | None = None
        self._units: dict[int, tuple[Unit, _Span]] = {}
        """Units under way, by generation."""
        self._generation = 0

    def begin(self, epoch: int, element: int, consumed: int = -1, limit: int | None = None) -> Reading:
        """Starts to read an epoch at an element, and gives up the reading before it.

        Args:
            epoch: The epoch.
            element: The first element that is needed.
            consumed: How far the input was read before this element, as known from an earlier run; -1 to read the epoch
                from its start.
            limit: How many elements of the epoch are needed at most; None for all.
        """
        index = element // self._size
        reading = Reading(epoch, (self._next_number - index) * self._size, element)
        if consumed >= 0:
            reading.origin = element, consumed
        self.reading, self._limit = reading, limit
        self.given_up = self._generation
        self.is_stirred = True
        return reading

    def issue(self, row_count: int) -> list[Unit]:
        """Returns the next units to run, of `row_count` elements each at most."""
        units: list[Unit] = []
        while (reading := self.reading) is not None and not reading.is_over and len(self._units) < self._ahead_count:
            span = self._spans[-1] if self._spans else None
            if span is None or span.reading is not reading or span.issued == self._size:
                span = self._new_span(reading)
                if span is None:
                    break
            stop = min(self._size, span.issued + row_count)
            if self._limit is not None:  # elements behind it may take for ever, and are not needed
                stop = min(stop, self._limit - span.index * self._size)
                if stop <= span.issued:
                    break
            self._generation += 1
            unit = Unit(
                reading.epoch, span.index, span.issued, stop, span.slot, self._generation, origin=reading.origin
            )
            units.append(unit)
            self._units[self._generation] = unit, span
            span.issued, span.pending = stop, span.pending + 1
        return units

    def _new_span(self, reading: Reading) -> _Span | None:
        self._drop()
        if not self._free:
            return None
        index = self._next_number - reading.base // self._size
        first = max(0, reading.filled - index * self._size)
        span = _Span(self._next_number, reading, index, self._free.pop(), first if first < self._size else 0)
        self._next_number += 1
        self._spans.append(span)
        return span

    def _drop(self) -> None:
        """Frees the slots of the spans that are not needed any more."""
        while self._spans and self._spans[0].number < self._needed_from and not self._spans[0].pending:
            slot = self._spans.popleft().slot
            self.freed.append(slot)
            self._free.appendleft(slot)

    def slot_of(self, place: int) -> int:
        """Returns the slot of an element that is there and needed."""
        return self._spans[place // self._size - self._spans[0].number].slot

    @property
    def slots(self) -> set[int]:
        """Slots that hold spans."""
        return {span.slot for span in self._spans}

    def hand_over(self, place: int) -> int:
        """Returns the slot of the oldest span that is needed, whose elements from `place` on are there.

        From now on, it belongs to the caller.
        """
        self._needed_from = number = place // self._size
        self._drop()
        span = self._spans.popleft()
        assert span.number == number
        self._needed_from += 1
        return span.slot

    def is_wanted(self, unit: Unit) -> bool:
        """Returns whether a unit belongs to what is being read."""
        found = self._units.get(unit.generation)
        return found is not None and found[1].reading is self.reading and not found[1].reading.is_over

    def oldest(self) -> Unit | None:
        """Returns the oldest unit under way, if it is wanted."""
        unit = self._units[min(self._units)][0] if self._units else None
        return unit if unit is not None and self.is_wanted(unit) else None

    def first_new_row(self, unit: Unit) -> int:
        """Returns the first row of a wanted unit that has not arrived yet."""
        assert self.reading is not None
        return max(unit.start, self.reading.filled - unit.index * self._size)

    def arrived(self, unit: Unit, stop: int) -> None:
        """Elements of a wanted unit have arrived, up to row `stop`."""
        assert self.reading is not None
        self.reading.filled = max(self.reading.filled, unit.index * self._size + stop)

    def finished(self, unit: Unit, *, ended: bool = False, error: BaseException | None = None) -> None:
        """A unit is finished. Its elements have arrived before.

        Args:
            unit: The unit.
            ended: Whether the epoch ended in it.
            error: The error of the element after those that arrived.
        """
        is_wanted = self.is_wanted(unit)
        found = self._units.pop(unit.generation, None)
        if found is None:
            return
        found[1].pending -= 1
        reading = found[1].reading
        if not is_wanted:
            return
        if error is not None:
            reading.error = error
        elif ended:
            reading.count = reading.filled
        if error is not None or ended:
            reading.is_over = True
            self.given_up = self._generation

    def release(self, place: int) -> None:
        """Elements before this place are not needed any more."""
        number = place // self._size
        if number > self._needed_from:
            self._needed_from = number
            self.is_stirred = True
