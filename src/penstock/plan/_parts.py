"""Elements of any size from a function of many elements: `map(batched=)` with a spec that has axes of None."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._pickles import dumps
from penstock.memory._rows import Indices, Leaves, Rows, distinct
from penstock.plan._conform import MisfitError, column, conformed, rows_of
from penstock.plan._map import Apart, Map, OfMade, wrong_count
from penstock.plan._node import ClearAfter, Demand, Elements, Length, Memory, walk, working_memory
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class PackedMap(Map):
    """Elements of any size that a function makes of a group, as one pickle. What `Parts` takes apart.

    So a group has one size in a slot, and workers, guards and messages treat the function as that of any `map`.
    """

    @property
    def made_spec(self) -> Spec:
        """The spec of one of the elements. The user declared it."""
        assert self.declared
        return self.declared

    @cached_property
    def spec(self) -> Spec:
        """A pickle."""
        pickle_spec = ArraySpec((), "S")
        return Spec.of((pickle_spec, self.source.spec.leaves[-1]) if self.has_mask else pickle_spec)

    def _leaves_of(self, value: Any, spec: Spec, count: int | None, index: int) -> Leaves:
        try:
            made = [conformed(self.made_spec, each) for each in rows_of(value)]
        except MisfitError as found:
            raise self._misfit(found, self.elements_at(index), self.made_spec) from None
        except ValueError as error:
            raise SpecError(f"{self.label} at {self.where}, for {self.elements_at(index)}: {error}.") from None
        if len(made) != count:
            raise wrong_count(self, count or 0, index, f"{len(made)}")
        return [dumps([column(*each) for each in zip(self.made_spec.leaves, zip(*made, strict=True), strict=True)])]


@dataclass(frozen=True, eq=False)
class Parts(OfMade, Apart):
    """Element `i` is the one that a function of many elements made of element `i` of its input; of any size."""

    takes_any_shape = True
    batch_size = 1

    @cached_property
    def maker(self) -> PackedMap:
        """The step that made them: the input, or below guards."""
        return next(each for each in walk(self.source) if isinstance(each, PackedMap))

    @cached_property
    def length(self) -> Length:
        """That of the elements before they are grouped; unknown if groups are left out."""
        return self.source.length and self.maker.source.inputs[0].length

    @property
    def spec(self) -> Spec:
        """The declared one."""
        return self.maker.made_spec

    @property
    def part_size(self) -> int:
        """The elements of a group."""
        assert self.maker.batched is not None
        return self.maker.batched

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The groups that have the elements."""
        return [Demand(0, epoch, distinct(indices // self.part_size))]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Takes elements out of what the function made of their groups, of which the last stays for the next call."""
        owners, numbers = indices // self.part_size, out.row_numbers()
        for owner in distinct(owners).tolist():
            made = self.apart(reader.kept(epoch, owner).leaf_values(0))
            for place in np.flatnonzero(owners == owner).tolist():
                out.put(numbers[place], made[int(indices[place]) - owner * self.part_size])

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The elements of each group of a stream."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield from self.apart(leaves)

    def apart(self, leaves: Leaves) -> list[Leaves]:
        """The elements of a group."""
        return list(map(list, zip(*pickle.loads(leaves[0]), strict=True)))

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first element of a group that is clear of this one's."""
        return ask(self.source, index // self.part_size) * self.part_size

    @property
    def memory(self) -> Memory:
        """A group."""
        return working_memory(self.maker.source.spec.nbytes)
