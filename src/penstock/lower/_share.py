"""The rows of each batch that one of several processes delivers, and what comes with them if they are not equally many.

Rows are shared out last, after the global order. Share `index` of `count` has rows `[index * n / count, (index + 1) * n
/ count)` of a batch of `n` rows. If `count` does not divide `n`, shares differ by a row. Then a batch is a pair: the
rows, and a leaf that has a number for each of them.

- `"weights"`: float32, `count * own / n`, where `own` is the number of rows of the share. The mean over the ranks of
  `mean(weights * loss)` is the mean over all rows of the batch. Every weight is 1 where all shares are equal.
- `"mask"`: bool. Every share has as many rows as the largest one of a full batch. The batch is filled up with its own
  rows, from its first on, and the mask is False for these. Zeros would be the other way; a model may divide by them.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._spec import ArraySpec, Spec

Uneven = Literal["refuse", "weights", "mask", "pad"]
"""What happens to batches that do not divide by the number of shares; `"pad"` is for whole batches (`OwnBatches`)."""


class Share(NamedTuple):
    """The rows of each batch that are delivered."""

    index: int = 0  # type: ignore[assignment]  # replaces a method of tuples that is not used here
    count: int = 1  # type: ignore[assignment]  # the same
    uneven: Uneven = "refuse"
    micro_count: int = 1
    """The equal made in which the rows are handed out."""
    multiple: int = 1
    """With a mask: rows are filled up to a multiple of it."""

    @property
    def is_whole(self) -> bool:
        """Whether batches are delivered as they are."""
        return self.count == 1 and self.uneven == "refuse"

    @property
    def divides(self) -> bool:
        """Whether batches are not delivered as they are, each at once."""
        return not self.is_whole or self.micro_count > 1

    def size(self, most: int) -> int:
        """The most rows that are delivered of a batch of at most `most`."""
        parts = self.micro_count * self.multiple if self.uneven == "mask" else 1
        return -(-most // (self.count * parts)) * parts

    def rows(self, row_count: int, most: int) -> tuple[int, int]:
        """The rows `[first, last)` that are delivered of a batch; with a mask, those from `row_count` on fill up."""
        if self.uneven == "mask":
            size = self.size(most)
            return self.index * size, (self.index + 1) * size
        return self.index * row_count // self.count, (self.index + 1) * row_count // self.count

    def spec(self, spec: Spec) -> Spec:
        """The spec of what is delivered of batches of a spec."""
        if self.is_whole:
            return spec
        shared = spec.divided(self.count)
        if self.uneven == "refuse":
            return shared
        size, is_full = self.size(most_rows(spec)), self.uneven == "mask"
        leaves = [leaf.unstacked().stacked(size) if is_full else leaf for leaf in shared.leaves]
        is_exact = all(leaf.shape[0] is not None for leaf in leaves)
        mark = ArraySpec((), bool if is_full else np.float32).stacked(size, exact=is_exact)
        return Spec.of((spec.structure.unflatten(leaves), mark))

    def marks(self, most: int) -> npt.NDArray[Any]:
        """The values of the additional leaf: False and True, or the weight of a row by the rows of its batch."""
        if self.uneven == "mask":
            return np.array([False, True])
        row_counts = np.arange(most + 1)
        own = (self.index + 1) * row_counts // self.count - self.index * row_counts // self.count
        return (self.count * own / np.maximum(1, row_counts)).astype(np.float32)

    def micro_batches(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """Cuts what is delivered of a batch into micro-batches, the last one first; weights are those within each."""
        count, row_count = self.micro_count, len(leaves[-1])
        bounds = [[number * len(leaf) // count for number in range(count + 1)] for leaf in leaves]
        made = [
            [leaf[ends[number] : ends[number + 1]] for leaf, ends in zip(leaves, bounds, strict=True)]
            for number in range(count)
        ]
        if self.uneven == "weights":
            for each in made:
                each[-1] = each[-1] * np.float32(count * len(each[-1]) / row_count)
        return made[::-1]

    def mark_rows(self, row_count: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """For rows `[first, last)` of a batch, which of `marks` they have."""
        if self.uneven == "mask":
            return (np.arange(first, last) < row_count).astype(np.int64)
        return np.full(last - first, row_count, np.int64)


def most_rows(spec: Spec) -> int:
    """The first axis of a full batch; 0 if the leaves have none in common."""
    sizes = {leaf.max_shape[0] if leaf.max_shape else 0 for leaf in spec.leaves}
    return sizes.pop() if len(sizes) == 1 else 0
