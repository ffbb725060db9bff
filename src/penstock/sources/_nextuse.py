"""Which blocks a full cache gives up: those that are wanted last, which the order of a plan says ahead.

Belady's rule: the optimum evicts what is wanted again last, or does not keep what arrives if that is wanted last of
all. The order of a plan is a pure function of its seed, so the next use of each block is known, across epochs. No
files, threads or clock here.

Evicting one block at a time would sort all blocks at each miss. So 1/64 of the limit is freed at once, which costs at
most that part of the hits. `tests/sources/test_next_use.py` compares it with the optimum and with LRU.

Memory: 16 bytes for each use of a block in this epoch and the next, and 16 bytes a block in the cache.
"""

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.plan._order import ReadOrder

Integers = npt.NDArray[np.int64]

FAR: Final = 1 << 62
"""The next use of a block that is not known to be wanted again."""
FREED_SHARE: Final = 64
_CHUNK: Final = 1 << 16
"""Elements whose blocks are computed at once."""
_MOST_ROUNDS: Final = 4
"""Uses in one segment for each element of the source, at most."""


class _Segment(NamedTuple):
    """Batches `[first, last)` of an epoch. Times count batches, from the first that was looked at."""

    epoch: int
    first: int
    last: int
    base: int
    """The time of the first batch."""
    ids: Integers
    """The blocks, sorted."""
    uses: Integers
    """`(number in ids) << 32 | (batch - first)`, sorted."""


@final
class NextUse:
    """The next use of blocks by a plan. Looks at the present segment of the order, mostly an epoch, and the next.

    Args:
        order: The order.
        blocks_of: Returns the blocks of elements, shape `(n, k)`.
    """

    def __init__(self, order: ReadOrder, blocks_of: Callable[[Integers], Integers]) -> None:
        self._order, self._blocks_of = order, blocks_of
        self._segments: list[_Segment] = []
        self._end = 0

    def time(self, epoch: int, index: int, *, is_now: bool = False) -> int | None:
        """Returns the time of a batch. None if it is not near the present one, which `is_now` sets."""
        for place, each in enumerate(self._segments):
            if each.epoch == epoch and each.first <= index < each.last:
                if is_now:
                    del self._segments[:place]
                break
        else:
            if not is_now:
                return None
            self._segments = [each := self._made(epoch, index)]
        if is_now and len(self._segments) < 2:
            is_end = each.last == self._order.batch_count
            self._segments.append(self._made(*((self._order.next_epoch(epoch), 0) if is_end else (epoch, each.last))))
        return each.base + index - each.first

    def after(self, ids: Integers, time: int) -> Integers:
        """Returns the first use of each block after a time; `FAR` if there is none in sight."""
        found = np.full(len(ids), FAR, np.int64)
        for epoch in self._segments:
            if not len(epoch.uses):
                continue
            rank = np.minimum(np.searchsorted(epoch.ids, ids), len(epoch.ids) - 1)
            least = rank << 32 | max(0, time + 1 - epoch.base)
            use = epoch.uses[np.minimum(np.searchsorted(epoch.uses, least), len(epoch.uses) - 1)]
            is_use = (found == FAR) & (epoch.ids[rank] == ids) & (use >> 32 == rank) & (use >= least)
            found[is_use] = epoch.base + (use[is_use] & 0xFFFFFFFF)
        return found

    def _made(self, epoch: int, first: int) -> _Segment:
        last, step, total = first, 1, 0
        ids, batches = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        end = FAR if self._order.batch_count is None else self._order.batch_count
        # An epoch without an end is looked at in parts that have as many elements as the source.
        most = self._order.element_count * (1 if end == FAR else _MOST_ROUNDS)
        while last < end and (total < most or last == first):
            stop = min(end, last + step)
            elements, of = self._order.elements(epoch, last, stop)
            blocks = self._blocks_of(elements)
            ids.append(blocks.ravel())
            batches.append(np.repeat(of - first, blocks.shape[1]))
            total += max(1, len(elements))
            step, last = max(1, min(64 * step, _CHUNK * (stop - last) // max(1, len(elements)))), stop
        unique, rank = np.unique(np.concatenate(ids), return_inverse=True)
        uses = np.unique(rank.astype(np.int64) << 32 | np.concatenate(batches))
        made = _Segment(epoch, first, last, self._end, unique, uses)
        self._end += last - first
        return made


@final
class Shelf:
    """The blocks that may be evicted, and the choice among them.

    Args:
        nbytes: The limit of the cache.
    """

    def __init__(self, nbytes: int) -> None:
        self._freed_nbytes = max(1, nbytes // FREED_SHARE)
        self._ids, self._sizes = array("q"), array("q")
        self._threshold = 0
        """Blocks that are wanted later are not kept, until as many bytes as are freed at once were refused."""
        self._refused_nbytes = self._freed_nbytes

    def add(self, block: int, nbytes: int) -> None:
        """Notes a block in the cache."""
        self._ids.append(block)
        self._sizes.append(nbytes)

    def offer(
        self, nbytes: int, next_use: int, next_uses: Callable[[Integers], Integers]
    ) -> list[tuple[int, int]] | None:
        """Decides about a block that has no room.

        Args:
            nbytes: Its size.
            next_use: When it is wanted again, after the present use.
            next_uses: Returns the same for blocks in the cache, from now on.

        Returns:
            The blocks to delete, with their sizes, which are then forgotten; None to keep them.
        """
        if next_use >= self._threshold and self._refused_nbytes < self._freed_nbytes:
            self._refused_nbytes += nbytes
            return None
        self._refused_nbytes = 0
        ids, sizes = np.array(self._ids, np.int64), np.array(self._sizes, np.int64)
        if not len(ids):
            return None
        times = next_uses(ids)
        last_first = np.argsort(-times, kind="stable")
        count = int(np.searchsorted(np.cumsum(sizes[last_first]), max(nbytes, self._freed_nbytes))) + 1
        victims = last_first[:count]
        self._threshold = int(times[victims].min())
        if next_use >= self._threshold:
            return None
        kept = np.ones(len(ids), np.bool_)
        kept[victims] = False
        self._ids, self._sizes = array("q", ids[kept].tolist()), array("q", sizes[kept].tolist())
        return list(zip(ids[victims].tolist(), sizes[victims].tolist(), strict=True))
