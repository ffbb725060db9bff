"""All elements that have one label as one element: `group_by`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, within
from penstock.plan._batch import Stacking, require_one_shape, stacked
from penstock.plan._index import mark_of
from penstock.plan._node import ClearAfter, Grouping, Memory


@dataclass(frozen=True, eq=False)
class Group(Stacking, Grouping):
    """Element `i` is the input's elements `[bounds[i], bounds[i + 1])`, stacked. Groups are of any sizes."""

    bounds: Indices
    may_be_empty: bool = False
    """A step after it has groups without elements. So no number of elements is that of all groups."""

    verb = "group_by"
    label = "group_by(...)"
    takes_each_once = True
    batch_size = 1

    def settings(self) -> dict[str, Any]:
        """Where groups lie."""
        return {"groups": mark_of(self.bounds)}

    @property
    def length(self) -> int:
        """The number of groups."""
        return len(self.bounds) - 1

    @cached_property
    def width(self) -> int:
        """The number of elements in the largest group."""
        return int(np.diff(self.bounds).max(initial=0))

    @cached_property
    def spec(self) -> Spec:
        """The input's, stacked; a place is as large as the largest group."""
        require_one_shape(self.label, self.source.spec)
        is_exact = not self.may_be_empty and bool((np.diff(self.bounds) == self.width).all())
        return self.source.spec.stacked(self.width, exact=is_exact)

    def members(self, indices: Indices) -> tuple[Indices, Indices]:
        """Those of the groups; a group may have fewer than others."""
        sizes = self.bounds[indices + 1] - self.bounds[indices]
        numbers = within(sizes)
        places = np.repeat(np.arange(len(indices)) * self.width, sizes) + numbers
        return np.repeat(self.bounds[indices], sizes) + numbers, places

    def group(self, epoch: int, index: int) -> Indices:
        """The elements of the group."""
        return np.arange(self.bounds[index], self.bounds[index + 1], dtype=np.int64)

    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """These elements, stacked."""
        return stacked(self.source.spec, columns)

    def shortened(self) -> "Group":
        """The same, with a first axis that varies."""
        return replace(self, may_be_empty=True)

    def row_count(self, epoch: int, index: int) -> int:
        """Its number of elements."""
        return int(self.bounds[index + 1] - self.bounds[index])

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first group whose elements are all clear of this one's."""
        return max(index + 1, int(np.searchsorted(self.bounds, ask(self.source, int(self.bounds[index + 1]) - 1))))

    @property
    def memory(self) -> Memory:
        """Where groups lie."""
        return Memory(kept_nbytes=self.bounds.nbytes)
