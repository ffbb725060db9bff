"""Sources whose elements are decoded many at once, in parts: row groups of a table, chunks of an array.

A part is decoded as a whole, whichever of its elements is wanted. A source says how large its parts are, and what it
opens decodes one. Nothing else about them is the source's: a plan whose order is known decides which parts are decoded,
kept and dropped (`run/parts/_plan.py`), and where there is none, `PartCache` keeps those that were used last.

What a source opened has a `part_cache`. For a source with `decode`, such as one of the user's, that is `_decoded.py`.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np

from penstock.memory._rows import Indices

ROOM_NBYTES: Final = 128 << 20
"""What a source keeps of decoded parts, at most, unless two parts that follow each other are larger."""


class PartSizes(NamedTuple):
    """What is known of the parts of a source before one is decoded."""

    bounds: Indices
    """The first element of each part, and the number of all elements."""
    nbytes: Indices
    """The memory of each decoded part. Where it depends on values, an estimate."""
    work_nbytes: Indices
    """The additional memory of its decoding."""
    room: int
    """The most memory for decoded parts."""

    @staticmethod
    def of(bounds: Indices, nbytes: Indices, work_nbytes: Indices) -> "PartSizes":
        """Chooses the room: for all parts, or `ROOM_NBYTES`, or for two that follow each other, and for a decoding."""
        most = max(ROOM_NBYTES, int((nbytes[:-1] + nbytes[1:]).max(initial=0)))
        return PartSizes(bounds, nbytes, work_nbytes, min(most, int(nbytes.sum())) + int(work_nbytes.max(initial=0)))

    @property
    def least_room(self) -> int:
        """The memory for one part at a time, and its decoding."""
        return int((self.nbytes + self.work_nbytes).max(initial=0))

    def room_of(self, share: float) -> int:
        """Returns the most memory for decoded parts, if the source keeps only a share."""
        return max(self.least_room, int(share * self.room))


class PartView(Protocol):
    """Parts that others decode for this process. See `memory/_part_memory.py`."""

    def get(self, number: int) -> Any:
        """Returns a decoded part; None if it is not there."""


class _Decoded:
    """A part. The first thread that needs it decodes it under the lock."""

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.nbytes = nbytes
        """Its memory, and until it is decoded also that of the decoding."""


@final
class PartCache:
    """The decoded parts of an open source, in this process. Any number of threads may use it.

    Parts that a plan decodes ahead are taken from a view (`follow`). All others are decoded by the thread that needs
    them, and the last used ones are kept as far as there is room.

    Each wait, and what ends it. A thread uses one part at a time, and none while it waits for room. So the parts in use
    are released sooner or later, and every wait for room ends: the end of a use or of a decoding notifies it.

    Args:
        decode: Decodes a part. Returns it, and its memory in bytes.
        sizes: Those of the parts.
    """

    def __init__(self, decode: Callable[[int], tuple[Any, int]], sizes: PartSizes) -> None:
        self.decode = decode
        self.sizes = sizes
        self._room = sizes.room_of(1)
        self._view: PartView | None = None
        self._first = 0
        self._let_go = threading.Condition()
        self._decoded: dict[int, _Decoded] = {}
        """Parts by number, the last used at the end."""
        self._used: dict[int, int] = {}
        """The part that each thread uses."""
        self.late_count = 0
        """Parts that were decoded when they were needed. For a warning, where a lost update does no harm."""

    def limit(self, share: float) -> None:
        """Keeps only a share of the memory. Called before anything is read."""
        self._room = self.sizes.room_of(share)

    def follow(self, view: PartView, first: int) -> None:
        """Takes parts from a view from now on. Those that are not there are decoded for one use, and not kept.

        Args:
            view: The view.
            first: The number of the first part there.
        """
        self._view, self._first = view, first
        self._room = self.sizes.least_room

    def is_there(self, part: int) -> bool:
        """Returns whether a part is decoded."""
        return part in self._decoded or (self._view is not None and self._view.get(self._first + part) is not None)

    @contextmanager
    def use(self, part: int) -> Iterator[Any]:
        """Yields a decoded part, which stays until the end of the block.

        Raises:
            SourceError: It cannot be decoded.
        """
        if self._view is not None and (value := self._view.get(self._first + part)) is not None:
            yield value
            return
        thread = threading.get_ident()
        try:
            yield self._value(part, thread)
        finally:
            with self._let_go:
                self._used.pop(thread, None)
                if self._view is not None and part not in self._used.values():
                    self._decoded.pop(part, None)
                self._let_go.notify_all()

    @property
    def nbytes(self) -> int:
        """The memory of the parts that this process keeps for itself."""
        return sum(each.nbytes for each in self._decoded.values())

    def clear(self) -> None:
        """Drops all parts. Nobody uses one any more."""
        self._decoded.clear()
        self._view = None

    def _value(self, part: int, thread: int) -> Any:
        decoded = self._entry(part, thread)
        with decoded.lock:
            if decoded.value is None:
                self.late_count += 1
                decoded.value, nbytes = self.decode(part)
                with self._let_go:
                    decoded.nbytes = max(nbytes, int(self.sizes.nbytes[part]))
                    self._let_go.notify_all()
            return decoded.value

    def _entry(self, part: int, thread: int) -> _Decoded:
        """Returns the entry of a part, after others were dropped, or released by the threads that use them."""
        with self._let_go:
            self._used.pop(thread, None)  # left by a call that Ctrl-C ended
            while (decoded := self._decoded.pop(part, None)) is None:
                if self._has_room(part):
                    decoded = _Decoded(int(self.sizes.nbytes[part] + self.sizes.work_nbytes[part]))
                    break
                self._let_go.wait()
            self._decoded[part] = decoded  # the last to be dropped
            self._used[thread] = part
            return decoded

    def _has_room(self, part: int) -> bool:
        """Whether a part can be decoded now. Drops others, the least recently used first."""
        need = int(self.sizes.nbytes[part] + self.sizes.work_nbytes[part])
        room = self._room - self.nbytes
        used = set(self._used.values())
        under_way = (other for other in used if self._decoded[other].value is None)
        if room < need <= room + sum(int(self.sizes.work_nbytes[other]) for other in under_way):
            return False  # there is room as soon as these are decoded, without dropping one
        for other in list(self._decoded):
            if room < need and other not in used:
                room += self._decoded.pop(other).nbytes
        # With no part in use there is nothing to wait for: a part may be larger than its file said.
        return room >= need or not used


def by_part(bounds: Indices, indices: Indices, rows: Indices | slice) -> Iterator[tuple[int, Indices, Indices | slice]]:
    """Yields each part that holds some of the elements, in order: the part, their numbers in it, and their rows."""
    parts = np.searchsorted(bounds, indices, "right") - 1
    if len(parts) and (parts == parts[0]).all():  # as in most windows
        yield int(parts[0]), indices - bounds[parts[0]], rows
        return
    order = np.argsort(parts, kind="stable")
    borders = np.flatnonzero(np.diff(parts[order], prepend=-1, append=-1))
    for begin, end in itertools.pairwise(borders.tolist()):
        here = order[begin:end]
        part = int(parts[here[0]])
        yield part, indices[here] - bounds[part], rows_of(rows, here)


def rows_of(rows: Indices | slice, members: Indices) -> Indices | slice:
    """Returns the rows of some members of a request, as a slice if they are neighbours, because that is faster."""
    if not isinstance(rows, slice):
        return rows[members]
    step = rows.step or 1
    first, count = int(members[0]), len(members)
    if int(members[-1]) - first == count - 1 and bool((members[1:] > members[:-1]).all()):
        return slice(rows.start + step * first, rows.start + step * (first + count), step)
    return np.asarray(members * step + rows.start, np.int64)
