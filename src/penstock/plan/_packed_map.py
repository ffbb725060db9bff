"""Elements of any size from a function of many elements: `map(batched=)` with a spec that has axes of None."""

import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._pickles import dumps
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._conform import MisfitError, column, conformed, rows_of
from penstock.plan._map import Apart, Map, OfMade, parts_at, wrong_count
from penstock.plan._node import Elements, Length, Memory, walk, working_memory
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class PackedMap(Map):
    """Elements of any size that a function makes of a group, as one pickle. What `Unpacked` takes apart.

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
class Unpacked(OfMade, Apart):
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

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Takes elements out of what the function made of their groups, of which the last stays for the next call."""
        numbers = out.row_numbers()
        for place, part in parts_at(reader, epoch, indices, self.part_size, self.apart):
            assert part is not None
            out.put(numbers[place], part)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The elements of each group of a stream."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield from self.apart(leaves)

    def apart(self, leaves: Leaves) -> list[Leaves]:
        """The elements of a group."""
        return list(map(list, zip(*pickle.loads(leaves[0]), strict=True)))

    @property
    def memory(self) -> Memory:
        """A group."""
        return working_memory(self.maker.source.spec.nbytes)
