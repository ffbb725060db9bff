"""When the batches of a plan want elements next, for sources that decode several elements at once, such as films.

A *term* is a number of batches within which elements of a group are decoded together. Each group has terms of its own,
which end at different batches, so that batches have equal work. The end follows from the group and the batch alone.

Batches are numbered across epochs. Memory: 16 bytes for each of some 65,000 uses, twice; more if batches have very
unequal numbers of elements.
"""

import threading
from typing import Final, final

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._order import Position, ReadOrder

_USES: Final = 1 << 16
"""Uses that are in sight at most, about."""
_MOST_BATCHES: Final = 512
_SAMPLE: Final = 16
"""Batches of which the number of elements is counted."""
FAR: Final = 1 << 40
"""In place of the number of a batch: none in sight."""
_SPREAD: Final = 0x9E3779B1
"""A multiplier that spreads neighbouring numbers: 2**32 by the golden ratio."""


@final
class Ahead:
    """The next uses of elements. Any number of threads may ask.

    Args:
        order: The order.
        epoch: An epoch, from which follows how many elements a batch wants on average.
        most: The most elements that are kept. Groups are in the middle of their terms on average, so a term has twice
            as many.
        bounds: The first element of each part of the source, such as a file, and their number.
    """

    def __init__(self, order: ReadOrder, epoch: int, most: int, bounds: Indices) -> None:
        self.order = order
        self._bounds = bounds
        self._lock = threading.Lock()
        self._end = FAR if order.batch_count is None else order.batch_count
        some = max(1, min(_SAMPLE, self._end))
        count = max(1, len(order.elements(epoch, 0, some)[0]) // some)
        self._term = min(max(1, 2 * most // count), _MOST_BATCHES)
        self._step = max(self._term, min(_USES // count // 2, _MOST_BATCHES))
        """From one to two times as many batches are in sight."""
        self._sights: dict[int, tuple[Indices, Indices]] = {}

    def number(self, position: Position) -> int:
        """Returns the number of a batch."""
        return position[0] * self._end + position[1]

    def wanted(self, now: int, begins: Indices, ends: Indices) -> tuple[Indices, Indices, Indices]:
        """Returns the elements of groups that are wanted from a batch on, until the term of their group ends.

        Args:
            now: The number of the batch.
            begins: The first elements of the groups, ascending.
            ends: Their ends.

        Returns:
            The elements, ascending; the number of the first batch that wants each; and that of the last of its term.
        """
        phases = (begins * _SPREAD & 0xFFFFFFFF) * self._term >> 32
        lasts = now + self._term - 1 - (now + phases) % self._term
        width, begin = 2 * self._step, now // self._step * self._step
        keys, _ = self._sight(now // self._step)
        starts, stops = np.searchsorted(keys, (begins * width, ends * width))
        counts = stops - starts
        places = np.repeat(stops - counts.cumsum(), counts) + np.arange(counts.sum())
        elements, batches = np.divmod(keys[places], width)
        batches, lasts = batches + begin, np.repeat(lasts, counts)
        is_in = (batches >= now) & (batches <= lasts)
        is_in[is_in] = np.diff(elements[is_in], prepend=-1) > 0
        return elements[is_in], batches[is_in], lasts[is_in]

    def next_uses(self, now: int, elements: Indices) -> Indices:
        """Returns the number of the first batch from one on that wants each element; `FAR` if none in sight does."""
        keys, _ = self._sight(now // self._step)
        return self._found(keys, now, elements, np.full(len(elements), now))

    def next_uses_of_parts(self, now: int, parts: Indices, since: Indices) -> Indices:
        """As `next_uses`, for any element of each part, from the batch `since` on, which is the present or the next."""
        _, keys = self._sight(now // self._step)
        return self._found(keys, now, parts, since)

    def _found(self, keys: Indices, now: int, wanted: Indices, since: Indices) -> Indices:
        width, begin = 2 * self._step, now // self._step * self._step
        least = wanted * width + since - begin
        if not len(keys):
            return np.full(len(wanted), FAR)
        found = keys[np.minimum(np.searchsorted(keys, least), len(keys) - 1)]
        is_use = (found >= least) & (found // width == wanted)
        return np.where(is_use, found % width + begin, FAR)

    def _sight(self, number: int) -> tuple[Indices, Indices]:
        """The uses of batches from `number * step` on: `element * width + batch` and `part * width + batch`, sorted."""
        with self._lock:
            if (found := self._sights.get(number)) is None:
                found = self._sights[number] = self._uses(number * self._step)
                while len(self._sights) > 2:
                    del self._sights[next(iter(self._sights))]
            return found

    def _uses(self, begin: int) -> tuple[Indices, Indices]:
        width, at = 2 * self._step, 0
        every, batches = [], []
        while at < width:
            epoch, index = divmod(begin + at, self._end)
            stop = min(index + width - at, self._end)
            elements, times = self.order.elements(epoch, index, stop)
            every.append(elements)
            batches.append(times.astype(np.int64) - index + at)
            at += stop - index
        elements, places = np.concatenate(every), np.concatenate(batches)
        parts = np.searchsorted(self._bounds, elements, "right") - 1
        return np.sort(elements * width + places), np.sort(parts * width + places)
