"""Leaves of dicts by name: chosen, and renamed. `lower/_rewrite.py` has sources read no others."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows
from penstock.plan._cast import ByChunk
from penstock.plan._node import Elements, Memory, Node, Pairs
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class Fields(ByChunk):
    """Some of the values of each element, which is a dict, perhaps under other names."""

    name: str
    """The verb that the user called: `select` or `rename`."""
    pairs: Pairs
    keeps_others: bool
    """Values without a pair keep their names and places; else they are left out."""

    @property
    def verb(self) -> str:
        """The verb that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """As the user wrote it."""
        if self.name == "select":
            return f"select({', '.join(repr(name) for name, _ in self.pairs)})"
        return f"rename({dict(self.pairs)})"

    def settings(self) -> dict[str, Any]:
        """The pairs."""
        return {"fields": self.pairs}

    @cached_property
    def all_pairs(self) -> Pairs:
        """A pair for each value here.

        Raises:
            SpecError: Elements are no dicts, lack a name, or would have one twice.
        """
        spec = self.source.spec
        if not isinstance(spec.tree, dict):
            raise SpecError(
                f"{self.label} takes values of dicts by their names, but elements are {spec}. Make dicts of them with "
                "map(): lambda element: {...}."
            )
        names = list(spec.tree)
        if missing := [old for old, _ in self.pairs if old not in names]:
            raise SpecError(f"{self.label}: elements have no {missing[0]!r}; they have {names}.")
        if not self.keeps_others:
            return self.pairs
        new = dict(self.pairs)
        pairs = tuple((name, new.get(name, name)) for name in names)
        here = [name for _, name in pairs]
        if twice := [name for name in here if here.count(name) > 1]:
            raise SpecError(f"{self.label}: elements would have {twice[0]!r} twice; they have {names}.")
        return pairs

    def narrowed(self, pairs: Pairs, narrow: Callable[[Node, Pairs], Node]) -> Node:
        """Of the input, under the names there."""
        old = {new: old for old, new in self.all_pairs}
        return narrow(self.source, tuple((old[name], new) for name, new in pairs))

    @cached_property
    def _leaves(self) -> list[int]:
        """The numbers of the leaves in the input's elements."""
        tree = self.source.spec.tree
        counts = [len(_tree.flatten(tree[name])[0]) for name in tree]
        places = dict(zip(tree, itertools.pairwise(itertools.accumulate(counts, initial=0)), strict=True))
        return [number for old, _ in self.all_pairs for number in range(*places[old])]

    @cached_property
    def spec(self) -> Spec:
        """Those of the values."""
        tree = {new: self.source.spec.tree[old] for old, new in self.all_pairs}
        return Spec(tuple(self.source.spec.leaves[number] for number in self._leaves), _tree.flatten(tree)[1])

    @property
    def memory(self) -> Memory:
        """Elements of the input, read some at a time, unless all of their values are taken."""
        return Memory() if self._is_whole else super().memory

    @property
    def _is_whole(self) -> bool:
        return len(self._leaves) == len(self.source.spec.leaves)

    def _spread(self, out: Rows) -> Rows:
        """The same rows, as places of the input's elements, of which all values are taken."""
        order = sorted(range(len(self._leaves)), key=self._leaves.__getitem__)
        return Rows([out.arrays[place] for place in order], out.rows, [out.extents[place] for place in order])

    def convert(self, box: Rows, out: Rows, count: int) -> None:
        """Copies the values that are taken."""
        taken = self._leaves
        arrays, extents = [box.arrays[number] for number in taken], [box.extents[number] for number in taken]
        out.copy_from(Rows(arrays, box.rows, extents), count)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads straight into the places if all values are taken; else into scratch memory."""
        if self._is_whole:
            reader.inputs[0].fill(epoch, indices, self._spread(out), gather)
        else:
            super().fill(reader, epoch, indices, out, gather)

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """The same for some rows of one element."""
        if self._is_whole:
            reader.inputs[0].fill_rows(epoch, index, rows, self._spread(out), gather)
        else:
            super().fill_rows(reader, epoch, index, rows, out, gather)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The same for each element of a stream."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield [leaves[number] for number in self._leaves]


def named(source: Node, names: Iterable[str]) -> Fields:
    """The values of these names alone."""
    return Fields(source, "select", tuple((name, name) for name in names), keeps_others=False)


def chosen(node: Node, pairs: Pairs) -> Node:
    """Some values of elements, under their new names and in this order; the node itself if it gives these."""
    whole = tuple((name, name) for name in node.spec.tree)
    return node if whole == pairs else Fields(node, "select", pairs, keeps_others=False)
