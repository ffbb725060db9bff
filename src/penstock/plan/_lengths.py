"""The number of tokens of each element: `Dataset.lengths`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Rows, ranges_of
from penstock.plan._node import Elements, OneInput, OneToOne, Traits
from penstock.plan._reader import Gather, Reader

_AT_ONCE: Final = 64
"""Elements that are read before they are counted. They may be large."""


@dataclass(frozen=True, eq=False)
class LengthOf(OneToOne, OneInput):
    """The sizes of the first axes of some leaves; of several the largest."""

    leaves: tuple[int, ...]

    verb = "lengths"
    takes_any_shape = True
    traits = Traits(is_parallel=True, is_hidden=True)

    @cached_property
    def spec(self) -> Spec:
        """An integer."""
        return Spec.of(ArraySpec((), np.int64))

    batch_size = 1

    def _longest(self, columns: Sequence[Sequence[Any]]) -> Any:
        return np.max([list(map(len, columns[leaf])) for leaf in self.leaves], axis=0)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements, and counts."""
        for start, stop in ranges_of(len(indices), _AT_ONCE):
            rows = out.take(slice(start, stop))
            rows.arrays[0][rows.rows] = self._longest(reader.inputs[0].columns(epoch, indices[start:stop]))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The same for each element of a stream."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield [np.int64(max(len(leaves[leaf]) for leaf in self.leaves))]
