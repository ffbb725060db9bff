"""The rows of batches that one rank gets, where batches of several sizes stand side by side in an element."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows
from penstock.plan._node import Elements, Memory, OneInput, OneToOne, Traits, working_memory
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class OwnRows(OneToOne, OneInput):
    """Of each leaf of an element, share `index` of `count` of its rows. `lower` adds it; the user does not see it.

    One number of rows would not do for leaves of several sizes. So the share is a step, below the one that puts the
    leaves side by side, and each input reads its own rows alone.
    """

    index: int
    count: int
    micro_count: int
    """The equal pieces in which the rows are handed out."""

    verb = "shard"
    moves = True
    takes_rows = True
    takes_any_shape = True
    is_pointwise = True
    treats_leaves_alike = True
    traits = Traits(is_parallel=True, is_hidden=True)

    def _range(self, row_count: int) -> tuple[int, int]:
        if row_count % (self.count * self.micro_count):
            raise not_shared(row_count, self.count, self.count * self.micro_count)
        return self.index * row_count // self.count, (self.index + 1) * row_count // self.count

    @cached_property
    def spec(self) -> Spec:
        """The input's, with fewer rows."""
        return self.source.spec.divided(self.count)

    @property
    def memory(self) -> Memory:
        """Without parts, an element of the input."""
        return working_memory(0 if self.source.row_count(0, 0) is not None else self.source.spec.nbytes)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the rows alone if the input has parts; otherwise its whole element, and copies them."""
        for place, index in enumerate(indices.tolist()):
            row = out.take(slice(place, place + 1))
            row_count = self.source.row_count(epoch, index)
            if row_count is None:
                self._copy(reader, epoch, index, row)
                continue
            first, last = self._range(row_count)
            places = row.unstacked(out.arrays[0].shape[1], np.arange(last - first))
            reader.inputs[0].fill_rows(epoch, index, np.arange(first, last), places, gather)
            row.set_filled(last - first)

    def _copy(self, reader: Reader, epoch: int, index: int, row: Rows) -> None:
        source = reader.inputs[0]
        box = source.scratch(1)
        source.read(epoch, np.array([index], np.int64), box)
        (number,) = row.row_numbers()
        row.put(number, [leaf[slice(*self._range(len(leaf)))] for leaf in box.leaf_values(0)])

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The rows of each element of a stream."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield [leaf[slice(*self._range(len(leaf)))] for leaf in leaves]


def not_shared(row_count: int, shard_count: int, share_count: int, *, uneven: bool = False) -> SpecError:
    """The error for a batch whose size is known when it is made, and that cannot be shared out."""
    sharers = "shards" if shard_count > 1 else "parts"
    return SpecError(
        f"A batch has {row_count} elements, which {share_count} {sharers} cannot share "
        f"{'without an empty share' if uneven else 'evenly'}. Its size was not known ahead: a function made it, or "
        "max_tokens=. Give ranks whole batches: whole_batches=True. Or have the function return a number of rows that "
        "they divide, or put it before batch(); or give a batch_size. For evaluation: uneven='mask', which fills up."
    )
