"""What the next batches of a plan want of a source, for sources that decode several elements at once, such as films.

A *term* is a number of batches within which what is wanted together is decoded together. Each group of elements has
terms of its own, which end at different batches, so that batches have equal work. The end follows from the number of
the group and the batch alone.

Memory: 16 bytes for each of some 65,000 uses, twice.
"""

import threading
from typing import Final, NamedTuple, final

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._order import Position, ReadOrder

_USES: Final = 1 << 16
"""Uses that are computed at once."""
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
        now: A batch, from which follows how many elements a batch wants.
        most: The most elements that may be decoded before their batch. Groups are in the middle of their terms on
            average, so a term has twice as many.
    """

    def __init__(self, order: ReadOrder, now: Position, most: int) -> None:
        self.order = order
        self._lock = threading.Lock()
        count = max(1, len(order.elements(*now, now[1] + 1)[0]))
        self._term = max(1, 2 * most // count)
        self._span = max(self._term, _USES // count)
        """Batches whose uses are computed at once."""
        self._spans: dict[Position, tuple[Indices, Indices]] = {}

    def uses(self, now: Position, begins: Indices, ends: Indices) -> "dict[int, Uses]":
        """The uses of elements of some groups, from this batch to the end of the term of each group, by element.

        Args:
            now: The batch.
            begins: The first elements of the groups, ascending.
            ends: Their ends.
        """
        epoch, index = now
        # The golden ratio spreads the terms of neighbouring groups.
        phases = (begins * _SPREAD & 0xFFFFFFFF) * self._term >> 32
        lasts = index + self._term - 1 - (index + phases) % self._term
        found = []
        for number in range(index // self._span, int(lasts.max()) // self._span + 1):
            elements, batches = self._uses(epoch, number)
            starts, counts = (at := np.searchsorted(elements, (begins, ends)))[0], at[1] - at[0]
            places = np.repeat(starts - counts.cumsum() + counts, counts) + np.arange(counts.sum())
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

    def next_use(self, now: Position, begin: int, end: int) -> float:
        """The first batch after this one that wants one of elements `[begin, end)`; inf if none is in sight."""
        elements, batches = self._uses(now[0], (now[1] + 1) // self._span)
        later = batches[slice(*np.searchsorted(elements, (begin, end)))]
        later = later[later > now[1]]
        return float(later.min()) if len(later) else np.inf

    def _uses(self, epoch: int, number: int) -> tuple[Indices, Indices]:
        """The uses of a span of batches, sorted by the element."""
        with self._lock:
            if (found := self._spans.get((epoch, number))) is None:
                begin, end = number * self._span, (number + 1) * self._span
                if self.order.batch_count is not None:
                    end = min(end, self.order.batch_count)
                elements, batches = self.order.elements(epoch, begin, max(begin, end))
                order = np.argsort(elements, kind="stable")
                found = self._spans[epoch, number] = elements[order], batches[order]
                while len(self._spans) > 2:
                    del self._spans[next(iter(self._spans))]
            return found
