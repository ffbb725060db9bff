"""Which parts of which sources the next batches of a plan want: known ahead, across epochs. Arithmetic only."""

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from penstock.base._random import are_firsts
from penstock.lower._analysis import PartedSource
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Position
from penstock.plan._order import ReadOrder
from penstock.run.parts._plan import Want

BLOCK_ELEMENTS: Final = 1 << 12
"""Elements whose parts are looked up at once. That spreads the cost of NumPy's calls."""
MOST_ELEMENTS: Final = 1 << 16
"""Elements of the batches in sight, at most. Each part of a batch takes some 100 bytes."""


@final
class PartOrder:
    """What the batches want, one block of batches after the other.

    Args:
        program: The program of the batches.
        sources: The sources with parts.
        worker_count: How many units share a batch.
    """

    def __init__(self, program: ParallelProgram, sources: Sequence[PartedSource], worker_count: int) -> None:
        self._program = program
        self._orders = [ReadOrder(program.node, each.source, program.batch_count) for each in sources]
        self._sizes = [each.sizes for each in sources]
        self._bounds = [each.bounds for each in self._sizes]
        self._firsts = np.cumsum([0, *(len(each) - 1 for each in self._bounds)]).tolist()
        self._unit_span = 1 / max(1, worker_count)
        largest = max(int(np.diff(each).max(initial=1)) for each in self._bounds)
        rows = max(1, program.rows_per_batch)
        self.block_count = max(1, BLOCK_ELEMENTS // rows)
        """Batches of a block."""
        self.sight_count = max(2, min(MOST_ELEMENTS, max(largest, 2 * self._firsts[-1])) // rows)
        """How many batches are to be in sight: until the next part of a table that is read in order is."""

    def is_local(self, room: int) -> bool:
        """Returns whether the parts of a batch fit into the room together, for each of the first batches."""
        nbytes = np.concatenate([each.nbytes for each in self._sizes])
        room -= max(int(each.work_nbytes.max(initial=0)) for each in self._sizes)
        wanted, _ = self.block((0, 0))
        return all(int(nbytes[[part for part, _ in each]].sum()) <= room for each in wanted)

    def block(self, position: Position) -> tuple[list[list[Want]], Position]:
        """Returns what the batches from a position on want, and the position behind them."""
        epoch, index = position
        end = index + self.block_count
        if self._program.batch_count is not None:
            end = min(end, self._program.batch_count)
        wanted: list[list[Want]] = [[] for _ in range(end - index)]
        for order, bounds, first in zip(self._orders, self._bounds, self._firsts, strict=False):
            elements, times = order.elements(epoch, index, end)
            if not len(elements):
                continue
            batches = times.astype(np.int64) - index
            parts = np.searchsorted(bounds, elements, "right") - 1
            keys = batches * len(bounds) + parts
            by_key = np.lexsort((times, keys))
            keys, times = keys[by_key], times[by_key]
            starts = np.flatnonzero(are_firsts(keys))
            ends = np.append(starts[1:], len(keys)) - 1
            is_wide = times[ends] - times[starts] >= self._unit_span
            places, numbers = np.divmod(keys[starts], len(bounds))
            for place, part, wide in zip(places.tolist(), (numbers + first).tolist(), is_wide.tolist(), strict=True):
                wanted[place].append(Want(part, wide))
        return wanted, self._program.next_position(epoch, end - 1)
