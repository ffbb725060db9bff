"""Stacking elements into batches, and taking batches apart."""

import itertools
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows, as_slice, copied, text_array
from penstock.plan._cast import Cast
from penstock.plan._combine import Zip
from penstock.plan._index import Slice
from penstock.plan._map import Map
from penstock.plan._node import Demand, Length, Node, finite_length
from penstock.plan._source import SourceNode

if TYPE_CHECKING:
    from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class Batch(Node):
    """Element `i` is the input's elements `[i * size, (i + 1) * size)`, stacked leaf by leaf."""

    source: Node
    size: int
    drop_remainder: bool

    @property
    def verb(self) -> str:
        """`batch`."""
        return "batch"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"batch({self.size}{', drop_remainder=True' if self.drop_remainder else ''})"

    def _find_length(self) -> Length:
        count = self.source.length
        if not isinstance(count, int):
            return count
        return count // self.size if self.drop_remainder else -(-count // self.size)

    @cached_property
    def remainder(self) -> int:
        """How many elements the last batch has if it is short; 0 if none is."""
        count = self.source.length
        return 0 if self.drop_remainder or not isinstance(count, int) else count % self.size

    @property
    def known_spec(self) -> Spec | None:
        """Known with the input's."""
        return self.spec if self.source.known_spec else None

    def _find_spec(self) -> Spec:
        require_one_shape(self.label, self.source.spec)
        return self.source.spec.stacked(self.size, exact=self.is_exact)

    @property
    def is_exact(self) -> bool:
        """Whether every batch has as many elements."""
        return self.drop_remainder or (self.remainder == 0 and self.source.length is not None)

    @property
    def batch_size(self) -> int:
        """The size."""
        return self.size

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements of each batch, in order."""
        return [Demand(0, epoch, self._members(indices)[0])]

    def _members(self, indices: Indices) -> tuple[Indices, Indices | None]:
        """The elements of some batches, and the place of each among `len(indices) * size` rows; None: all, in order."""
        count = self.source.length
        width = min(self.size, count) if isinstance(count, int) else self.size  # nothing for what is not there
        members = (indices[:, None] * self.size + np.arange(width, dtype=np.int64)).ravel()
        if not (self.remainder and (indices == finite_length(self) - 1).any()):
            return members, None
        places = np.arange(len(members), dtype=np.int64)
        places += places // width * (self.size - width)
        real = members < finite_length(self.source)
        return members[real], places[real]

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """The elements go straight to where they lie in their batch."""
        members, places = self._members(indices)
        reader.inputs[0].fill(epoch, members, out.unstacked(self.size, places), gather)
        if any(extent is not None for extent in out.extents):
            out.set_extents(np.array([self.part_count(epoch, index) for index in indices.tolist()], np.int64))

    @property
    def is_parallel(self) -> bool:
        """A batch is elements that follow each other."""
        return True

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """Stacks elements of a stream as they come."""
        require_one_shape(self.label, self.source.spec)
        source = reader.inputs[0].sequence(epoch)
        while members := [[copied(leaf) for leaf in leaves] for leaves in itertools.islice(source, self.size)]:
            if len(members) == self.size or not self.drop_remainder:
                yield stacked(self.source.spec, members)

    @property
    def held_nbytes(self) -> int:
        """The elements of one batch, and the batch: without a slot to write them to, they are collected and stacked."""
        return 2 * self.spec.nbytes

    def part_count(self, epoch: int, index: int) -> int:
        """Its number of elements."""
        return self.remainder if self.remainder and index == self.length - 1 else self.size  # type: ignore[operator]

    def fill_parts(
        self, reader: "Reader", epoch: int, index: int, parts: Indices, out: "Rows", gather: "Gather"
    ) -> None:
        """Some of the elements of one batch."""
        reader.inputs[0].fill(epoch, parts + index * self.size, out, gather)

    def clear_after(self, index: int) -> int:
        """The first batch all of whose elements are clear of this one's."""
        return max(index + 1, -(-self.source.clear_after((index + 1) * self.size - 1) // self.size))


@final
@dataclass(frozen=True, eq=False)
class Bundle(Batch):
    """A batch in which ragged leaves and text lie side by side, as an array of Python objects.

    Nobody sees one: it is how workers hand over some elements at a time to a step that takes them one by one, and how
    `materialize` has them made. As arrays of NumPy, bytes would lose the zeros at their ends.
    """

    def _find_spec(self) -> Spec:
        spec = self.source.spec
        objects = ArraySpec((self.size if self.is_exact else None,), _OBJECTS, (self.size,))
        leaves = zip(spec.leaves, spec.stacked(self.size, exact=self.is_exact).leaves, strict=True)
        return Spec(tuple(objects if is_object(leaf) else many for leaf, many in leaves), spec.structure)


_OBJECTS: Final = np.dtype("V")
"""Of leaves that have no place in a slot, and no dtype that matters."""


@final
@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Element `i` is one of the arrays that are stacked along the first axis of the input's elements."""

    source: Node

    @property
    def verb(self) -> str:
        """`unbatch`."""
        return "unbatch"

    @cached_property
    def _parts(self) -> Node | None:
        """A plan of the parts, where they can be read alone: then it is read instead."""
        return _read_alone(self.source)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The plan of the parts, or the elements that have them."""
        return (self.source if self._parts is None else self._parts,)

    @property
    def made_by(self) -> tuple[Node, ...]:
        """The elements that have the parts."""
        return (self.source,)

    @property
    def shown(self) -> tuple[Node, ...]:
        """The same."""
        return (self.source,)

    def _find_length(self) -> Length:
        count = self.source.length
        if not isinstance(count, int):
            return count
        if self.access == "stream" and any(None in leaf.shape[:1] for leaf in self.source.spec.leaves):
            return None
        size, remainder = self._sizes
        return count * size - (size - remainder if remainder and count else 0)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """How many parts an element has, and how many the last has if it is short (else 0)."""
        spec = self.source.spec
        firsts = [(leaf.max_shape or leaf.shape)[0] for leaf in spec.leaves if leaf.shape]
        sizes = {size for size in firsts if size is not None}
        if len(sizes) > 1 or not all(leaf.shape for leaf in spec.leaves):
            raise SpecError(
                f"unbatch() takes elements apart along their first axis, but here that is {spec}: every "
                "leaf needs a first axis, and all the same."
            )
        remainder = 0
        if self.source.access == "stream":
            return max(sizes, default=0), 0  # no short one is looked for: parts are taken as they come
        if not sizes:
            raise SpecError(
                "unbatch() needs to know how many rows each element has, so as to number its parts, but here that "
                f"is {spec}. Say it where that is made, element_spec=, with a number in place of the first None; or "
                "use flat_map(lambda rows: rows), which takes them as they come and gives a stream."
            )
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

    def _find_spec(self) -> Spec:
        assert self._sizes
        return self.source.spec.unstacked()

    @property
    def batch_size(self) -> int:
        """Its elements are no batches."""
        return 1

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The parts themselves, or the element that each is in."""
        return [Demand(0, epoch, indices if self._parts else np.unique(indices // self._sizes[0]))]

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Parts are read alone where the input can; otherwise its whole element is read, and kept for the next."""
        source, size = reader.inputs[0], self._sizes[0]
        if self._parts is not None:
            source.fill(epoch, indices, out, gather)
            return
        owners = indices // size
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            parts, mine = indices[rows] - owner * size, out.take(as_slice(rows))
            if self.source.part_count(epoch, owner) is not None:
                source.fill_parts(epoch, owner, parts, mine, gather)
                continue
            self._copy_parts(reader.kept(epoch, owner), owner, parts, mine)

    def _copy_parts(self, box: "Rows", owner: int, parts: Indices, out: "Rows") -> None:
        """A frame of its own, which ends before the next element is read: what it holds is no longer held then."""
        extents = zip(box.arrays, box.extents, strict=True)
        self._require_rows(owner, [len(rows[0]) if used is None else int(used[0]) for rows, used in extents])
        rows = as_slice(parts)
        taken = [origin[0][rows] for origin in box.arrays]
        out.copy_from(Rows(taken, slice(0, len(parts)), (None,) * len(taken)), len(parts))

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """The parts of each element of a stream, however many it has."""
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

    def _require_rows(self, owner: int, found: list[int]) -> None:
        """A function may return fewer rows than its batch had; then nobody can know which part is where."""
        size, last = self._sizes
        expected = last if last and owner == finite_length(self.source) - 1 else size
        for count in found:
            if count != expected:
                raise SpecError(
                    f"unbatch() counts on {expected} rows in element {owner} of {self.source.label}, but it has "
                    f"{count}. "
                    "Its parts can only be numbered if every element has the same number of rows, the last excepted."
                )

    def clear_after(self, index: int) -> int:
        """The next part; where the input's elements overlap, the first part of one that is clear of this one's."""
        size = self._sizes[0]
        return self.source.clear_after(index // size) * size if self.source.overlaps else index + 1

    @property
    def scratch_nbytes(self) -> int:
        """One element of the input, if it is read whole."""
        return 0 if self._parts else self.source.spec.nbytes


def _read_alone(node: Node) -> Node | None:
    """A plan whose elements are the parts of another's, where the sources read them alone; None where not all do."""
    if isinstance(node, SourceNode):
        data = node.data.unstacked()
        return None if data is None else replace(node, data=data)
    if isinstance(node, Zip):
        found = [each for each in map(_read_alone, node.sources) if each is not None]
        is_whole = len(found) == len(node.sources) and len({each.length for each in found}) == 1
        return replace(node, sources=tuple(found)) if is_whole else None
    if isinstance(node, Unbatch):
        return None if node._parts is None else _read_alone(node._parts)
    if isinstance(node, Cast):
        parts = _read_alone(node.source)
        return None if parts is None else replace(node, source=parts)
    if isinstance(node, Slice) and node.step == 1 and isinstance(node.length, int) and node.length:
        parts = _read_alone(node.source)
        if parts is None:
            return None
        size = finite_length(parts) // finite_length(node.source)
        return replace(node, source=parts, start=node.start * size, count=node.length * size)
    return None


def stacked(spec: Spec, members: Sequence[Leaves]) -> Leaves:
    """Stacks elements of a stream. Of their dtype: by itself NumPy takes the machine's byte order, and no padding."""
    columns = zip(spec.leaves, zip(*members, strict=True), strict=True)
    return [
        np.stack(column, dtype=leaf.dtype) if leaf.dtype.itemsize else stacked_text(leaf, column)
        for leaf, column in columns
    ]


def stacked_text(leaf: ArraySpec, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Stacks text or bytes of any size, or arrays of them.

    Raises:
        SpecError: One ends in a zero; see `text_array`.
    """
    texts = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return text_array(np.array(texts, object), leaf.dtype.kind)


def is_object(leaf: ArraySpec) -> bool:
    """Whether it is a Python object where it waits: an array of any size, or one text."""
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
                f"{_short_batch_cure(leaf)}."
            )


def remainders(node: Node) -> set[int]:
    """How many elements the short batches of a plan have, wherever they are; empty if all are full."""
    if isinstance(node, Batch):
        return {node.remainder} - {0}
    return set().union(*map(remainders, node.inputs))


def _short_batch_cure(leaf: ArraySpec) -> str:
    if not leaf.is_bounded:
        return ""
    return (
        ". Where elements are batches already, leave this step out (of image_dataset_from_directory: batch_size=None), "
        "or give the batch below drop_remainder=True"
    )


def _rows_of_last(node: Node) -> int | None:
    """The first axis of the last element, through steps that keep order and number; None where nobody knows."""
    if isinstance(node, Batch):
        return node.remainder or node.size
    if isinstance(node, (Map, Cast, Zip)):
        sizes = {_rows_of_last(each) for each in node.inputs}
        return sizes.pop() if len(sizes) == 1 else None
    shapes = {leaf.shape[:1] for leaf in node.spec.leaves}
    return shapes.pop()[0] if len(shapes) == 1 and () not in shapes else None
