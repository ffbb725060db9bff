"""Stacking elements into batches, and taking batches apart."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows, as_slice, copied, distinct, text_array
from penstock.plan._chunks import Chunks
from penstock.plan._map import Apart, Map
from penstock.plan._node import (
    ClearAfter,
    Demand,
    Elements,
    Grouping,
    Length,
    Memory,
    Node,
    OneInput,
    OneToOne,
    Traits,
    finite_length,
    history,
    walk,
    working_memory,
)
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class Stacking(OneInput):
    """A step whose elements are some of the input's, stacked leaf by leaf. These go straight to their places."""

    moves = True
    stacks = 1
    treats_leaves_alike = True

    @property
    @abstractmethod
    def width(self) -> int:
        """The most elements of the input in one."""

    @abstractmethod
    def members(self, indices: Indices) -> tuple[Indices, Indices | None]:
        """The input's elements that some are made of, end to end.

        Returns:
            The elements; and the place of each among `len(indices) * width`, or None if all have as many.
        """

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements that are stacked, in order."""
        return [Demand(0, epoch, self.members(indices)[0])]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Has the input write to the places."""
        members, places = self.members(indices)
        reader.inputs[0].fill(epoch, members, out.unstacked(self.width, places), gather)
        if places is not None or any(extent is not None for extent in out.extents):
            out.set_filled(np.array([self.row_count(epoch, index) for index in indices.tolist()], np.int64))

    def row_count(self, epoch: int, index: int) -> int:
        """The number of elements that are stacked."""
        return self.width

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Some of the elements that are stacked."""
        members, _ = self.members(np.array([index], np.int64))
        reader.inputs[0].fill(epoch, members[rows], out, gather)


@dataclass(frozen=True, eq=False)
class Batching(Grouping):
    """A step whose element `i` is the input's elements `[i * size, (i + 1) * size)`."""

    ends_guards = True
    goes_by_position = False

    size: int
    drop_remainder: bool
    exact: bool | None = field(default=None, repr=False, kw_only=True)
    """Whether all batches have the size; None to derive it from the input's length. `lower` sets it where it puts this
    step over another input."""

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"{self.verb}({self.size}{', drop_remainder=True' if self.drop_remainder else ''})"

    @cached_property
    def length(self) -> Length:
        """The number of batches."""
        count = self.source.length
        if not isinstance(count, int):
            return count
        return count // self.size if self.drop_remainder else -(-count // self.size)

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those in which batches begin."""
        below = self.source.chunks
        return None if below is None else below.sliced(0, self.size, finite_length(self))

    @cached_property
    def remainder(self) -> int:  # type: ignore[override]
        """The number of elements in the last batch if it is short; 0 if none is."""
        count = self.source.length
        return 0 if self.drop_remainder or not isinstance(count, int) else count % self.size

    @cached_property
    def is_exact(self) -> bool:
        """Whether all batches have the size."""
        if self.exact is not None:
            return self.exact
        return self.drop_remainder or (self.remainder == 0 and self.source.length is not None)

    @property
    def fixes(self) -> dict[str, Any]:  # type: ignore[override]
        """Whether all batches have the size."""
        return {"exact": self.is_exact}

    def element_count(self, index: int) -> int:
        """The number of elements of one batch."""
        return self.remainder if self.remainder and index == self.length - 1 else self.size  # type: ignore[operator]

    @property
    def batch_size(self) -> int:
        """The size."""
        return self.size

    @property
    def traits(self) -> Traits:
        """Positions are enough."""
        return Traits(is_parallel=True)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements of each batch, in order."""
        return [Demand(0, epoch, self.members(indices)[0])]

    def needs(self, start: int, stop: int) -> tuple[int, int]:
        """From the first element of the first batch to the last of the last."""
        return start * self.size, (stop - 1) * self.size + self.element_count(stop - 1)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Stacks elements of a stream as they come."""
        self.spec  # noqa: B018  # refuses elements that cannot be stacked
        source = reader.inputs[0].sequence(epoch)
        for first in itertools.count(step=self.size):
            members = [[copied(leaf) for leaf in leaves] for leaves in itertools.islice(source, self.size)]
            if len(members) == self.size or (members and not self.drop_remainder):
                yield self.stack(list(zip(*members, strict=True)), first.__add__)
            if len(members) < self.size:
                return

    @abstractmethod
    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Makes a batch of elements.

        Args:
            columns: For each leaf, its values in these elements.
            number_of: Gives the number of an element, for messages, by its row.
        """

    def group(self, epoch: int, index: int) -> Indices:
        """The elements of the batch."""
        return index * self.size + np.arange(self.element_count(index), dtype=np.int64)

    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """A batch of these elements."""
        return self.stack(columns, numbers.__getitem__)

    def shortened(self) -> "Batching":
        """The same, with a first axis that varies."""
        return replace(self, exact=False)

    def members(self, indices: Indices) -> tuple[Indices, Indices | None]:
        """The elements of some batches, and the place of each among `len(indices) * size` rows; None: all, in order."""
        count = self.source.length
        width = min(self.size, count) if isinstance(count, int) else self.size  # no memory for absent elements
        members = (indices[:, None] * self.size + np.arange(width, dtype=np.int64)).ravel()
        if not (self.remainder and (indices == finite_length(self) - 1).any()):
            return members, None
        places = np.arange(len(members), dtype=np.int64)
        places += places // width * (self.size - width)
        real = members < finite_length(self.source)
        return members[real], places[real]

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first batch whose elements are all clear of this one's."""
        return max(index + 1, -(-ask(self.source, (index + 1) * self.size - 1) // self.size))


@dataclass(frozen=True, eq=False)
class Batch(Stacking, Batching):
    """Element `i` is the input's elements `[i * size, (i + 1) * size)`, stacked leaf by leaf."""

    members = Batching.members
    is_group: bool = field(default=False, repr=False, kw_only=True)
    """It makes what a function of many elements gets. The user sees no batches."""

    @property
    def verb(self) -> str:
        """The user's."""
        return "map" if self.is_group else "batch"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"map(batched={self.size})" if self.is_group else super().label

    @property
    def traits(self) -> Traits:
        """Positions are enough."""
        return Traits(is_parallel=True, is_hidden=self.is_group)

    @cached_property
    def spec(self) -> Spec:
        """The input's, stacked."""
        require_one_shape(self.label, self.source.spec)
        return self.source.spec.stacked(self.size, exact=self.is_exact)

    @property
    def width(self) -> int:
        """The size."""
        return self.size

    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Stacks them leaf by leaf."""
        return stacked(self.source.spec, columns)

    @property
    def memory(self) -> Memory:
        """As a stream, without a slot to write to: the elements of one batch, and the batch."""
        return Memory(sequence_nbytes=2 * self.spec.nbytes)

    def row_count(self, epoch: int, index: int) -> int:
        """Its number of elements."""
        return self.element_count(index)

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Some of the elements of one batch."""
        reader.inputs[0].fill(epoch, rows + index * self.size, out, gather)


@dataclass(frozen=True, eq=False)
class Bundle(Batch):
    """A batch in which ragged leaves and text lie side by side, as an array of Python objects.

    No user sees one. Workers use it to hand over some elements at a time to a step that takes them one by one, and
    `materialize` uses it too. In NumPy arrays, bytes would lose the zeros at their ends.
    """

    @cached_property
    def spec(self) -> Spec:
        """The input's, stacked; leaves of any size as objects."""
        spec = self.source.spec
        objects = ArraySpec((self.size if self.is_exact else None,), _OBJECTS, (self.size,))
        leaves = zip(spec.leaves, spec.stacked(self.size, exact=self.is_exact).leaves, strict=True)
        return Spec(tuple(objects if is_object(leaf) else many for leaf, many in leaves), spec.structure)


_OBJECTS: Final = np.dtype("V")
"""The dtype of leaves that have no place in a slot."""


@dataclass(frozen=True, eq=False)
class Unbatch(Apart):
    """Element `i` is one of the arrays that are stacked along the first axis of the input's elements."""

    moves = True
    stacks = -1

    @property
    def treats_leaves_alike(self) -> bool:  # type: ignore[override]
        """Unless it takes apart what a function of many elements makes."""
        return self.grouped is None

    @property
    def grouped(self) -> Map | None:
        """The function of many elements whose results are taken apart."""
        return self.source if isinstance(self.source, Map) and self.source.batched else None

    @property
    def verb(self) -> str:
        """The user's."""
        return "map" if self.grouped else "unbatch"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return self.grouped.label if self.grouped else super().label

    @cached_property
    def length(self) -> Length:
        """The number of parts. May run a mapped function, for the number of parts of an element."""
        if self.grouped is not None:
            return self.grouped.source.inputs[0].length
        count = self.source.length
        if not isinstance(count, int):
            return count
        if self.access == "stream" and any(None in leaf.shape[:1] for leaf in self.source.spec.leaves):
            return None
        size, remainder = self._sizes
        return count * size - (size - remainder if remainder and count else 0)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """The number of parts of an element, and of the last one if it is short (else 0)."""
        spec = self.source.spec
        firsts = [(leaf.max_shape or leaf.shape)[0] for leaf in spec.leaves if leaf.shape]
        sizes = {size for size in firsts if size is not None}
        if len(sizes) > 1 or not all(leaf.shape for leaf in spec.leaves):
            raise SpecError(
                f"unbatch() takes elements apart along their first axis, but here that is {spec}: every "
                "leaf needs a first axis, and all the same."
            )
        if sizes == {0} and self.source.length == math.inf:
            raise SpecError(
                f"unbatch() would look for a part for ever: elements are {spec}, without rows, and endless."
            )
        if self.source.access == "stream":
            return max(sizes, default=0), 0  # parts are taken as they come, short or not
        if not sizes:
            raise SpecError(
                "unbatch() needs to know how many rows each element has, so as to number its parts, but here that "
                f"is {spec}. Say it where that is made, element_spec=, with a number in place of the first None; or "
                "use flat_map(lambda rows: rows), which takes them as they come and gives a stream."
            )
        remainder = 0
        if any(None in leaf.shape[:1] for leaf in spec.leaves):
            last = _rows_of_last(self.source)
            if last is None:
                raise SpecError(
                    "unbatch() needs to know where the short batch is, but after "
                    f"{self.source.label} it may be anywhere. Use batch(size, drop_remainder=True), or "
                    "unbatch before the batches are rearranged."
                )
            remainder = last % max(sizes)
        return sizes.pop(), remainder

    @cached_property
    def spec(self) -> Spec:
        """The input's, without the first axis."""
        assert self._sizes
        return self.source.spec.unstacked()

    batch_size = 1

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Parts are read alone if the input can do so; otherwise its whole element is read, and kept for the next."""
        source, size = reader.inputs[0], self._sizes[0]
        owners = indices // size
        for owner in distinct(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            parts, mine = indices[rows] - owner * size, out.take(as_slice(rows))
            if self.source.row_count(epoch, owner) is not None:
                source.fill_rows(epoch, owner, parts, mine, gather)
                continue
            self._copy_rows(reader.kept(epoch, owner), owner, parts, mine)

    def _copy_rows(self, box: Rows, owner: int, parts: Indices, out: Rows) -> None:
        # A separate frame: its locals must not hold the memory of this element while the next one is read.
        extents = zip(box.arrays, box.extents, strict=True)
        self._require_rows(owner, {len(rows[0]) if used is None else int(used[0]) for rows, used in extents})
        taken = [origin[0][as_slice(parts)] for origin in box.arrays]
        out.copy_from(Rows(taken, slice(0, len(parts)), (None,) * len(taken)), len(parts))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """All parts of each element of a stream."""
        assert self._sizes
        for owner, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            leaves = [copied(leaf) for leaf in leaves]
            counts = {len(leaf) for leaf in leaves}
            if len(counts) > 1:
                raise SpecError(
                    f"unbatch() takes elements apart along their first axis, but the leaves of element {owner} of "
                    f"epoch {epoch} of {self.source.label} have {' and '.join(map(str, sorted(counts)))} rows. Make "
                    "them equally long before."
                )
            yield from ([leaf[number] for leaf in leaves] for number in range(len(leaves[0])))

    @property
    def part_size(self) -> int:
        """The rows of an element."""
        return self._sizes[0]

    def apart(self, leaves: Leaves) -> list[Leaves]:
        """The rows of one element."""
        return list(map(list, zip(*leaves, strict=True)))

    def _require_rows(self, owner: int, counts: set[int]) -> None:
        """Refuses an element with another number of rows. A function may return fewer rows than its batch had."""
        size, last = self._sizes
        expected = last if last and owner == finite_length(self.source) - 1 else size
        if other := counts - {expected}:
            raise SpecError(
                f"unbatch() counts on {expected} rows in element {owner} of {self.source.label}, but it has "
                f"{min(other)}. "
                "Its parts can only be numbered if every element has the same number of rows, the last excepted."
            )

    @property
    def memory(self) -> Memory:
        """One element of the input."""
        return working_memory(self.source.spec.nbytes)


def stacked(spec: Spec, columns: Sequence[Sequence[Any]]) -> Leaves:
    """Stacks the values of each leaf with its dtype; by default NumPy drops byte order and padding."""
    return [
        np.stack(column, dtype=leaf.dtype) if leaf.dtype.itemsize else stacked_text(leaf, column)
        for leaf, column in zip(spec.leaves, columns, strict=True)
    ]


def stacked_text(leaf: ArraySpec, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Stacks text or bytes of any size, or arrays of them.

    Raises:
        SpecError: One ends in a zero; see `text_array`.
    """
    texts = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return text_array(np.array(texts, object), leaf.dtype.kind)


def is_object(leaf: ArraySpec) -> bool:
    """Whether a leaf waits as a Python object: an array of any size, or one text."""
    return leaf.max_shape is None or (leaf.shape == () and leaf.dtype.itemsize == 0)


def require_one_shape(label: str, spec: Spec) -> None:
    """Refuses to stack leaves whose shapes differ from element to element.

    Raises:
        SpecError: Names the leaf and the cures.
    """
    for place, leaf in zip(_tree.paths(spec.structure), spec.leaves, strict=True):
        if None in leaf.shape:
            raise SpecError(
                f"{label} stacks elements, so they must have one shape, but element{place} is {leaf}: an axis "
                "of None differs from element to element. Use padded_batch(), or bring it to one size with map()"
                f"{_one_size_cure(leaf)}."
            )


def remainders(node: Node) -> set[int]:
    """The numbers of elements in the short batches of a plan; of batches of batches, the outer ones.

    Empty if there are none, or if they are not known: a function that declares what it makes of a batch may make
    another number of rows.
    """
    if all(leaf.shape[:1] != (None,) for leaf in node.spec.leaves):
        return set()
    return {each.remainder for each in _batchings(node)} - {0}


def are_side_by_side(node: Node) -> bool:
    """Whether a plan puts batches of several sizes into one element, so that its leaves have no common first axis."""
    sizes = set()
    for each in walk(node, lambda each: () if isinstance(each, Batching) else history(each)):
        if isinstance(each, Batching):
            sizes.add(each.size)
        elif not history(each) or getattr(type(each), "batch_size", None) == 1:
            return False  # some elements are no batches
    return len(sizes) > 1


def element_count(node: Node) -> int | None:
    """The number of elements in all batches of a plan together; None if it is not known."""
    batchings = _batchings(node)
    above = (each for each in _down_to_batches(node) if not isinstance(each, Batching) and _batchings(each))
    if len(batchings) != 1 or not all(each.takes_each_once for each in above):
        return None
    count = batchings[0].source.length
    if not isinstance(count, int):
        return None
    return count - count % batchings[0].size if batchings[0].drop_remainder else count


def _batchings(node: Node) -> list[Batching]:
    """The steps that make the batches of a plan; none if a function may have changed the number of rows."""
    found = list(_down_to_batches(node))
    if any(isinstance(each, Map) and each.declared is not None for each in found):
        return []
    return [each for each in found if isinstance(each, Batching)]


def _down_to_batches(node: Node) -> Iterator[Node]:
    return walk(node, lambda each: () if isinstance(each, Batching) else each.inputs)


def _one_size_cure(leaf: ArraySpec) -> str:
    if not leaf.is_bounded and len(leaf.shape) > 1:
        return ""
    if not leaf.is_bounded:
        return (
            ". If all have one size, say so where they come from: element_spec=, or in Parquet a list of fixed size, "
            "such as pyarrow.list_(pyarrow.float32(), 7)"
        )
    return (
        ". Where elements are batches already, leave this step out (of image_dataset_from_directory: batch_size=None), "
        "or give the batch below drop_remainder=True"
    )


def _rows_of_last(node: Node) -> int | None:
    """The first axis of the last element, through steps that keep order and number; None if it is unknown."""
    if isinstance(node, Batch):
        return node.remainder or node.size
    if isinstance(node, OneToOne):
        sizes = {_rows_of_last(each) for each in node.inputs}
        return sizes.pop() if len(sizes) == 1 else None
    shapes = {leaf.shape[:1] for leaf in node.spec.leaves}
    return shapes.pop()[0] if len(shapes) == 1 and () not in shapes else None
