"""The order in which a plan reads a source: known ahead, across epochs. Arithmetic only.

An open source with a method `follow(order, now, ahead)` gets it before each unit of a plan with random access: the
order, always the same object, the batch that is read, and the last one that is announced. It must be cheap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from penstock.memory._rows import Indices
from penstock.plan._node import Node
from penstock.plan._source import Openable, key_of

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

    def elements(self, epoch: int, first: int, last: int) -> tuple[Indices, Indices]:
        """Returns the elements that batches `[first, last)` of an epoch need, `(n,)`, and about the batch of each."""
        batches = np.arange(first, last, dtype=np.int64)
        found = list(_demanded(self.node, key_of(self.opens), epoch, batches, batches))
        empty = np.empty(0, np.int64)
        return np.concatenate([empty, *(each for each, _ in found)]), np.concatenate([empty, *(of for _, of in found)])


def _demanded(
    node: Node, key: object, epoch: int, indices: Indices, batches: Indices
) -> Iterator[tuple[Indices, Indices]]:
    if node.opens is not None and key_of(node.opens) == key:
        yield indices, batches
    for need in node.demand(epoch, indices):
        mine, count = batches if need.rows is None else batches[need.rows], len(need.indices)
        if len(mine) != count:  # several for each, as below a batch
            mine = mine[np.arange(count) * len(mine) // max(1, count)]
        yield from _demanded(node.inputs[need.input], key, need.epoch, need.indices, mine)
