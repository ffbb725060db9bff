"""The order in which a plan reads a source: known ahead, across epochs. Arithmetic only.

An open source with a method `follow(order, now, ahead)` gets it before each unit of a plan with random access: the
order, always the same object, the batch that is read, and the last one that is announced. It must be cheap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from penstock.memory._rows import Indices
from penstock.plan._node import Node
from penstock.plan._source import Openable, key_of

Times = npt.NDArray[np.float64]
Position = tuple[int, int]
"""`(epoch, index)` of a batch."""


@final
@dataclass(frozen=True, eq=False)
class ReadOrder:
    """The elements of a source that the batches of a plan need, of all shards together."""

    node: Node
    opens: Openable
    """The source."""
    batch_count: int | None
    """Batches in an epoch; None if it has no end."""

    def elements(self, epoch: int, first: int, last: int) -> tuple[Indices, Times]:
        """Returns the elements that batches `[first, last)` of an epoch need, `(n,)`, and about when.

        A time is the number of the batch, and the part of the batch that lies before the element.
        """
        batches = np.arange(first, last, dtype=np.int64)
        found = list(_demanded(self.node, key_of(self.opens), epoch, batches, batches.astype(np.float64)))
        elements, times = [each for each, _ in found], [of for _, of in found]
        return np.concatenate([np.empty(0, np.int64), *elements]), np.concatenate([np.empty(0), *times])


def _demanded(
    node: Node, key: object, epoch: int, indices: Indices, times: Times, *, is_whole: bool = True
) -> Iterator[tuple[Indices, Times]]:
    if node.opens is not None and key_of(node.opens) == key:
        yield indices, times
    for need in node.demand(epoch, indices):
        mine, count, still_whole = times if need.rows is None else times[need.rows], len(need.indices), is_whole
        if len(mine) != count:  # several for each, as below a batch
            places = np.arange(count) * (len(mine) / max(1, count))
            mine = mine[places.astype(np.int64)]
            if is_whole:
                mine, still_whole = mine + places % 1, False
        yield from _demanded(node.inputs[need.input], key, need.epoch, need.indices, mine, is_whole=still_whole)
