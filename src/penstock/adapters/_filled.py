"""What Keras gets of batches that `uneven="mask"` fills up.

Keras divides the loss of a batch by its number of rows, and averages batches by theirs. Both count rows that weigh
nothing, as do `compile(metrics=)` and `predict`. So rows that fill up are left out: loss, metrics and predictions are
then those of arrays that have the other rows alone.

Only where `keras.distribution` shares a batch out are they needed. There weights correct Keras's means. In `fit` the
loss of each batch is the mean of its own rows, which gives the gradient. In an evaluation the weights are one number
for the whole epoch, because Keras adds up batches as if they had equally many rows. What weights cannot correct is
refused.
"""

from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError
from penstock.loader import Loader
from penstock.lower._share import most_rows
from penstock.plan._batch import element_count, remainders

Leaves = list[npt.NDArray[Any]]


@final
class FilledUp:
    """The rows of a loader's batches that are not there to fill up.

    Args:
        loader: It has `uneven="mask"`, so the last leaf of a batch is the mask. The rows that fill up come last.

    Raises:
        ArgumentError: No batch has rows for this process.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        share, spec = loader.arrangement.share, loader.arrangement.plan.spec
        most = most_rows(spec)
        varies = any(leaf.varies for leaf in spec.leaves)
        row_counts = {most, *(remainders(loader.arrangement.plan) or {1} if varies else ())}
        self._row_count = share.size(most)
        """The rows that this process gets of a batch."""
        if most <= share.index * self._row_count:
            raise ArgumentError(
                f"Batches have at most {most} elements, of which shard={share[:2]} would get none: shares are of "
                f"{self._row_count}. Use a batch size that {share.count} divides."
            )
        part_row_count = self._row_count // share.micro_count
        self.fills_up = min(row_counts) < share.count * self._row_count
        """Whether a batch may have rows that fill up, in some process."""
        self.may_be_empty = min(row_counts) <= (share.index + 1) * self._row_count - part_row_count
        """Whether all rows of a batch, or of a part of it, may fill up in this process."""

    def left(self, leaves: Leaves, *, keeps_one: bool) -> Leaves | None:
        """Returns the leaves without the rows that fill up, and 1 as the weight of each row.

        Args:
            leaves: Those of a batch.
            keeps_one: If nothing is left, keeps a row, with the weight 0. So all processes make equally many steps.

        Returns:
            None if nothing is left.
        """
        count = int(np.count_nonzero(leaves[-1]))
        if not count and not keeps_one:
            return None
        rows = [leaf[: max(1, count)] for leaf in leaves[:-1]]
        return [*rows, np.full(max(1, count), count > 0, np.float32)]

    def weighed(self, leaves: Leaves, scale: float | None) -> Leaves:
        """Returns the leaves with weights in place of the mask.

        Args:
            leaves: Those of a batch.
            scale: See `scale`; None for that of this batch alone.
        """
        *rows, mask = leaves
        if scale is None:
            scale = len(mask) / max(1, int(np.count_nonzero(mask)))
        return [*rows, np.multiply(mask, scale, dtype=np.float32)]

    def scale(self, verb: str, model: Any, step_count: int | None, position: int) -> float | None:
        """Returns the weight of all rows of an evaluation; None in training.

        Args:
            verb: Keras's method that asks.
            model: Its model.
            step_count: The steps that it was given.
            position: The batch with which it begins.

        Raises:
            ArgumentError: No weights make right what Keras returns.
        """
        if not self.fills_up:
            return 1.0
        share, length = self._loader.arrangement.share, self._loader.arrangement.plan.length
        metrics = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
        cure = "Or make batches that need none: batch(size, drop_remainder=True), with a size that shares divide."
        if verb == "predict":
            raise self._refused("predict() would return rows for these, too", cure)
        if metrics:
            raise self._refused(
                "compile(metrics=) counts these, too", f"Use compile(weighted_metrics=), which does not. {cure}"
            )
        if verb != "evaluate":
            if share.count > 1:
                raise self._refused("a process does not know how many there are in the others", cure)
            return None
        count = element_count(self._loader.arrangement.plan)
        is_part = position > 0 or (step_count is not None and length is not None and step_count < length)
        if count is None or not isinstance(length, int) or is_part:
            raise self._refused(
                "the number of elements that it measures on is not known ahead",
                "Let a step batch() make the batches, of data with a known number of elements, and measure on a whole "
                f"epoch. {cure}",
            )
        return length * share.count * self._row_count / count

    def _refused(self, why: str, cure: str) -> ArgumentError:
        return ArgumentError(
            f"uneven='mask' fills batches up with rows that do not count, keras.distribution needs these, and {why}. "
            f"{cure}"
        )
