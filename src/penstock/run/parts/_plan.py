"""Which parts are decoded, kept and dropped: decided from the order, the sizes and the room.

This is a state machine without threads, locks, clocks or waits. Its events are methods: what the next batch in sight
wants (`want`), a batch begins and ends, a part is decoded, the order begins anew. Its decisions are what `loads`
returns, the parts that it drops (`dropped`), and whether the next batch may begin (`is_ready`).

When a batch begins, each of its parts is in memory, or nobody decodes it. A part is there until the last batch that
began with it has ended. The units of the batch decode the other parts *alone*, each for itself. That is so for a part

- that one unit alone wants, as far as can be seen, so that nobody would share it, unless there is room for all parts,
- that is larger than the room, or whose decoding failed: the unit then says so in the name of its element,
- for which others would have to go that are wanted sooner. So if the parts in turn do not fit, some stay.

Why a batch always begins: the next one waits for decodings, and for the end of batches that began, and for nothing
else. If neither is under way, it begins.
"""

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, final

from penstock.memory._rows import Indices

NEVER: Final = 1 << 62


class Want(NamedTuple):
    """A batch wants a part."""

    part: int
    is_wide: bool
    """Whether several units of the batch do."""


class Load(NamedTuple):
    """A part to decode, into a place."""

    part: int
    place: int
    """The first byte."""
    nbytes: int
    """The size of the place."""


@final
class PartPlan:
    """The parts of all sources of a plan, numbered one source after the other.

    Args:
        nbytes: The memory of each decoded part.
        work_nbytes: The additional memory of its decoding.
        room: The memory for all of that.
        most_loads: Decodings at once, at most.
    """

    def __init__(self, nbytes: Indices, work_nbytes: Indices, room: int, most_loads: int) -> None:
        self._nbytes = nbytes.tolist()
        self._work_nbytes = work_nbytes.tolist()
        self._room = room
        self._has_room_for_all = int(nbytes.sum() + work_nbytes.max(initial=0)) <= room
        self._most_loads = most_loads
        self.dropped: list[int] = []
        """Parts that were dropped since this list was emptied."""
        self._there: dict[int, int] = {}
        """The place of each decoded part."""
        self._there_nbytes = 0
        """The memory of all of them."""
        self._loading: dict[int, int] = {}
        self._places = _Places(room)
        self._failed: set[int] = set()
        self._running: dict[int, tuple[int, ...]] = {}
        """The parts of each batch that began and has not ended."""
        self._sight: deque[tuple[Want, ...]] = deque()
        """What the next batches want."""
        self._first = 0
        """The number of the first of them."""
        self._uses: dict[int, deque[tuple[int, bool]]] = {}
        """For each part the batches in sight that want it, and whether several units do."""
        self._missing: list[tuple[int, int]] = []
        """A heap: the next batch that wants a part, and the part. Entries that are not true any more are skipped."""
        self._alone: set[int] = set()
        """Parts of the next batch that it decodes alone, because others are wanted sooner."""

    # Events.

    def begin_anew(self) -> None:
        """The order begins anew: nothing is known of it. What is there stays, and so do batches that began."""
        self._sight.clear()
        self._uses.clear()
        self._missing.clear()
        self._alone.clear()
        self._failed.clear()

    def want(self, wanted: Iterable[Want]) -> None:
        """Another batch comes into sight, behind those before it."""
        wants, number = tuple(wanted), self._first + len(self._sight)
        self._sight.append(wants)
        for part, is_wide in wants:
            uses = self._uses.setdefault(part, deque())
            uses.append((number, is_wide))
            if len(uses) <= 2:  # with the second use, it may be worth a place
                self._note_missing(part)

    def begin(self, batch: int) -> None:
        """The next batch begins, under a number of its own."""
        wants = self._sight.popleft()
        self._first += 1
        self._alone.clear()
        for part, _ in wants:
            uses = self._uses[part]
            uses.popleft()
            if not uses:
                del self._uses[part]
            self._note_missing(part)
        self._running[batch] = tuple(part for part, _ in wants if part in self._there)

    def end(self, batch: int) -> None:
        """A batch that began reads no part any more."""
        del self._running[batch]

    def end_all(self) -> None:
        """No batch that began reads a part any more."""
        self._running.clear()

    def decoded(self, part: int, nbytes: int, *, is_there: bool) -> None:
        """A decoding has ended.

        Args:
            part: The part.
            nbytes: The memory that it takes, which replaces what was known; 0 if that is unknown.
            is_there: Whether it is in its place.
        """
        place = self._loading.pop(part)
        if nbytes:
            self._nbytes[part] = nbytes
        if is_there:
            self._there[part] = place
            self._there_nbytes += self._nbytes[part]
            return
        self._places.free(place)
        if nbytes:  # its place was too small
            self._note_missing(part)
        else:
            self._failed.add(part)

    # Decisions.

    @property
    def sight_count(self) -> int:
        """Batches in sight that have not begun."""
        return len(self._sight)

    @property
    def is_ready(self) -> bool:
        """Whether the next batch may begin. `loads` was called after the last event."""
        missing = [part for part, _ in self._sight[0] if part not in self._there]
        return all(part not in self._loading and self._is_alone(part) for part in missing)

    def loads(self) -> list[Load]:
        """Returns the parts to decode now, those first that are wanted first."""
        found: list[Load] = []
        while self._missing and len(self._loading) < self._most_loads:
            number, part = self._missing[0]
            uses = self._uses.get(part)
            is_waiting = uses is not None and uses[0][0] == number
            if is_waiting and part not in self._there and part not in self._loading and not self._is_alone(part):
                place = self._place(part)
                if place is None:
                    break
                if place >= 0:
                    self._loading[part] = place
                    found.append(Load(part, place, self._nbytes[part]))
                elif number > self._first:
                    break
                else:
                    self._alone.add(part)
            heapq.heappop(self._missing)
        return found

    def _note_missing(self, part: int) -> None:
        if part in self._uses and part not in self._there and part not in self._loading:
            heapq.heappush(self._missing, (self._uses[part][0][0], part))

    def _is_alone(self, part: int) -> bool:
        """Whether units decode a part alone, each for itself, as far as can be seen."""
        uses = self._uses[part]
        is_shared = self._has_room_for_all or len(uses) > 1 or uses[0][1]
        fits = self._nbytes[part] + self._work_nbytes[part] <= self._room
        return not (is_shared and fits) or part in self._failed or part in self._alone

    def _next_use(self, part: int) -> int:
        return self._uses[part][0][0] if part in self._uses else NEVER

    def _place(self, part: int) -> int | None:
        """Returns the place for a part, after others were dropped; None to wait; -1 if others are wanted sooner."""
        uses = self._uses[part]
        worth = uses[0][0] if uses[0][1] or len(uses) == 1 else uses[1][0]
        need = self._nbytes[part] + self._work_nbytes[part]
        left = self._room - self._there_nbytes
        left -= sum(self._nbytes[each] + self._work_nbytes[each] for each in self._loading)
        if left < need <= left + sum(self._work_nbytes[each] for each in self._loading):
            return None  # there is room as soon as these are decoded
        if left >= need and (place := self._places.take(self._nbytes[part])) is not None:
            return place
        rivals = sorted((each for each in self._there if self._next_use(each) > worth), key=self._next_use)
        used = {each for parts in self._running.values() for each in parts}
        idle = [each for each in rivals if each not in used]
        while left < need or (place := self._places.take(self._nbytes[part])) is None:
            if not idle:
                # Those in use will go; and a decoding frees its work, or fails.
                return None if len(rivals) > 0 or self._loading else -1
            dropped = idle.pop()
            rivals.remove(dropped)
            self._places.free(self._there.pop(dropped))
            self.dropped.append(dropped)
            self._note_missing(dropped)
            self._there_nbytes -= self._nbytes[dropped]
            left += self._nbytes[dropped]
        return place


@final
class _Places:
    """Places in a memory of a given size, the first that is large enough each time."""

    def __init__(self, room: int) -> None:
        self._gaps = [(0, room)]
        """Where each gap begins and ends, ascending. There are few."""
        self._ends: dict[int, int] = {}
        """The end of each place, by its beginning."""

    def take(self, nbytes: int) -> int | None:
        """Takes a place; None if no gap is large enough."""
        for number, (begin, end) in enumerate(self._gaps):
            if end - begin >= nbytes:
                self._gaps[number : number + 1] = [(begin + nbytes, end)] * (begin + nbytes < end)
                self._ends[begin] = begin + nbytes
                return begin
        return None

    def free(self, place: int) -> None:
        """Frees a place."""
        begin, end = place, self._ends.pop(place)
        number = bisect(self._gaps, (begin, end))
        if number < len(self._gaps) and self._gaps[number][0] == end:
            end = self._gaps.pop(number)[1]
        if number and self._gaps[number - 1][1] == begin:
            number -= 1
            begin = self._gaps.pop(number)[0]
        self._gaps.insert(number, (begin, end))
