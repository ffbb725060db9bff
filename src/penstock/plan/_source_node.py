"""The first step of a plan: the elements of a source."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Rows
from penstock.plan._chunks import Chunks
from penstock.plan._fields import chosen
from penstock.plan._node import POSITION_LIMIT, Node, Pairs, Start, Traits
from penstock.plan._source import Source, traits_of

if TYPE_CHECKING:
    from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class SourceNode(Start):
    """The elements of a source."""

    data: Source
    name: str = field(repr=False)
    revision: str = field(default="", repr=False)
    """The commit that the data are pinned to, if a later run may find another."""

    moves = True
    keeps_neighbours = True

    @property
    def held(self) -> Source:
        return self.data

    def loosened(self) -> "SourceNode":
        data = self.data.loosened()
        return self if data is self.data else replace(self, data=data)

    def settings(self) -> dict[str, Any]:
        """The length and the spec identify the data, because a file may move."""
        found = {"length": self.length, "spec": str(self.spec)}
        return found | {"revision": self.revision} if self.revision else found

    @cached_property
    def length(self) -> int:
        try:
            count = len(self.data)
        except OverflowError:  # more than Python can say
            count = POSITION_LIMIT
        if count >= POSITION_LIMIT:
            raise SourceError(
                f"{self.label} says that it has 2**62 elements or more, and positions go up to 2**62 - 1. Its data are "
                "damaged, or its __len__ is wrong."
            )
        return count

    @cached_property
    def spec(self) -> Spec:
        # A source does not report the used part of a place, so leaves that vary are ragged.
        spec = Spec.of(self.data.element_spec)
        leaves = (ArraySpec(leaf.shape, leaf.dtype) if leaf.varies else leaf for leaf in spec.leaves)
        return Spec(tuple(leaves), spec.structure)

    @cached_property
    def chunks(self) -> Chunks | None:
        """The parts that it decodes at once, or the rows of chunks of an array."""
        found, shape, count = self.data.part_bounds, self.data.chunk_shape, self.length
        if shape is not None:
            found = np.append(np.arange(0, count, shape[0]), count)
        if found is None:
            return None
        bounds = np.asarray(found, np.int64)
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != count or (np.diff(bounds) < 0).any():
            raise SourceError(
                f"part_bounds of {self.label} are {bounds!s:.80}. They are the first element of each part "
                f"and the number of elements: they begin with 0, never descend, and end with {count}."
            )
        return Chunks.of_bounds(bounds)

    @property
    def rows(self) -> "SourceNode | None":  # type: ignore[override]
        data = self.data.unstacked()
        return None if data is None else replace(self, data=data)

    def narrowed(self, pairs: Pairs, narrow: Callable[[Node, Pairs], Node]) -> Node | None:
        data = self.data.selected([old for old, _ in pairs])
        return None if data is None else chosen(replace(self, data=data), pairs)

    @property
    def opens(self) -> Source:
        return self.data

    @property
    def traits(self) -> Traits:
        return traits_of(self.data)

    @property
    def remark(self) -> str:
        return str(getattr(self.data, "remark", ""))

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: Rows, gather: "Gather") -> None:
        # The source executes all of its reads at once.
        gather.add(reader, indices, out)
