"""What the next batches of a plan want of a source, for sources that decode several elements at once, such as films.

A *term* is a number of batches within which what is wanted together is decoded together. Each group of elements has
terms of its own, which end at different batches, so that batches have equal work. The end follows from the order, the
group and the batch alone.

Memory: 24 bytes for each of some 65,000 uses, twice; more if batches have very unequal numbers of elements.
"""

import threading
from typing import Final, NamedTuple, final

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._order import Position, ReadOrder

_USES: Final = 1 << 16
"""Uses that are computed at once, about."""
_MOST_BATCHES: Final = 512
_SAMPLE: Final = 16
"""Batches of which the number of elements is counted."""
_FAR: Final = 1 << 40
_SPREAD: Final = 0x9E3779B1
"""A multiplier that spreads neighbouring numbers: 2**32 by the golden ratio."""


class Uses(NamedTuple):
    """Uses of an element by some batches."""

    rows: int
    """How many rows it fills."""
    first: int
    """The first batch."""
    last: int


@final
class Ahead:
    """The next uses of elements. Any number of threads may ask.

    Args:
        order: The order.
        epoch: An epoch, from which follows how many elements a batch wants on average.
        most: The most elements that may be decoded before their batch. Groups are in the middle of their terms on
            average, so a term has twice as many.
        bounds: The first element of each part of the source, such as a file, and their number.
    """

    def __init__(self, order: ReadOrder, epoch: int, most: int, bounds: Indices) -> None:
        self.order = order
        self._bounds = bounds
        self._lock = threading.Lock()
        self._end = _FAR if order.batch_count is None else order.batch_count
        some = max(1, min(_SAMPLE, self._end))
        count = max(1, len(order.elements(epoch, 0, some)[0]) // some)
        self._term = min(max(1, 2 * most // count), _MOST_BATCHES)
        self._span = max(self._term, min(_USES // count, _MOST_BATCHES))
        """Batches whose uses are computed at once."""
        self._spans: dict[Position, tuple[Indices, Indices, Indices]] = {}

    def uses(self, now: Position, begins: Indices, ends: Indices) -> "dict[int, Uses]":
        """The uses of elements of some groups, from this batch to the end of the term of each group, by element.

        Args:
            now: The batch.
            begins: The first elements of the groups, ascending.
            ends: Their ends.
        """
        epoch, index = now
        phases = (begins * _SPREAD & 0xFFFFFFFF) * self._term >> 32
        lasts = np.minimum(index + self._term - 1 - (index + phases) % self._term, self._end - 1)
        found = []
        for number in range(index // self._span, int(lasts.max()) // self._span + 1):
            elements, batches, _ = self._uses(epoch, number)
            starts, stops = np.searchsorted(elements, (begins, ends))
            counts = stops - starts
            places = np.repeat(stops - counts.cumsum(), counts) + np.arange(counts.sum())
            places = places[(batches[places] >= index) & (batches[places] <= np.repeat(lasts, counts))]
            found.append((elements[places], batches[places]))
        elements, batches = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(elements, kind="stable")
        elements, batches = elements[order], batches[order]
        unique, at, rows = np.unique(elements, return_index=True, return_counts=True)
        if not len(unique):
            return {}
        firsts, lasts = np.minimum.reduceat(batches, at), np.maximum.reduceat(batches, at)
        return dict(zip(unique.tolist(), map(Uses, rows.tolist(), firsts.tolist(), lasts.tolist()), strict=True))

    def next_batches(self, epoch: int, parts: Indices, since: Indices) -> Indices:
        """The first batch that wants an element of each of some parts, as far as it is in sight; else a large number.

        Args:
            epoch: The epoch.
            parts: The parts.
            since: The first batch that counts, for each.
        """
        number = int(since.min()) // self._span
        _, _, keys = self._uses(epoch, number)
        begin = number * self._span
        least = parts * self._span + np.minimum(since - begin, self._span - 1)
        if not len(keys):
            return np.full(len(parts), _FAR)
        found = keys[np.minimum(np.searchsorted(keys, least), len(keys) - 1)]
        is_use = (found >= least) & (found // self._span == parts)
        return np.where(is_use, found % self._span + begin, _FAR)

    def _uses(self, epoch: int, number: int) -> tuple[Indices, Indices, Indices]:
        """The uses of a span of batches: elements ascending, their batches, and `part * span + batch` ascending."""
        with self._lock:
            if (found := self._spans.get((epoch, number))) is None:
                begin, end = number * self._span, min((number + 1) * self._span, self._end)
                elements, times = self.order.elements(epoch, begin, max(begin, end))
                batches = times.astype(np.int64)
                order = np.argsort(elements, kind="stable")
                elements, batches = elements[order], batches[order]
                parts = np.searchsorted(self._bounds, elements, "right") - 1
                found = elements, batches, np.sort(parts * self._span + batches - begin)
                self._spans[epoch, number] = found
                while len(self._spans) > 2:
                    del self._spans[next(iter(self._spans))]
            return found
