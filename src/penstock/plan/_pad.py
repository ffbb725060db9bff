"""Batches of elements whose sizes differ: padded, and grouped by length."""

import functools
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from penstock import native
from penstock.base import _tree
from penstock.base._errors import ElementError, SpecError
from penstock.base._spec import ArraySpec, Shape, Spec
from penstock.base._tree import Structure
from penstock.memory._rows import Indices, Leaves, Rows, copied
from penstock.plan._batch import Batching, stacked_text
from penstock.plan._blocks import Buckets
from penstock.plan._filter import Sequential
from penstock.plan._map import Map, judged
from penstock.plan._node import (
    Demand,
    Elements,
    Memory,
    Node,
    OneInput,
    Reorder,
    Traits,
    history,
    walk,
    working_memory,
)
from penstock.plan._reader import Gather, Reader

Stack = Callable[[Iterable[Sequence[Any]], Callable[[int], int]], Leaves]
"""Pads and stacks elements. Takes the values of each leaf in all elements, and what gives the number of an element, for
messages, by its row."""


@final
@dataclass(frozen=True)
class Padding:
    """How elements are padded to one size: a size for each axis of each leaf, and the value that fills the rest."""

    shapes: tuple[tuple[int | None, ...] | None, ...] | None
    """For each leaf its padded shape, in which None is the largest size of the batch; or None, to pad the leaf's own
    varying axes. None instead of the tuple does so for all leaves."""
    values: tuple[Any, ...]
    """The value that fills each leaf, or a single one for all. None is 0, or empty text."""
    structure: Structure | None
    """The structure of the shapes, which must equal that of elements."""
    value_structure: Structure
    """The structure of the values, which must equal that of elements, or be a leaf."""
    is_left: bool = False
    """Whether the filling stands before elements."""

    @property
    def facts(self) -> str:
        """The shapes and values, as text; and the side, if it is the left one."""
        values = ["0" if value is None else str(value) for value in self.values]
        return str((self.shapes, values, "left") if self.is_left else (self.shapes, values))

    def target(self, label: str, spec: Spec) -> list[Shape]:
        """The padded shape of each leaf of an element.

        Raises:
            SpecError: Shapes or values were given in another structure, shapes with other axes, or values of another
                kind; or text has axes to pad.
        """
        fill = self._fill(label, spec)
        shapes: Sequence[tuple[int | None, ...] | None] = (None,) * len(spec.leaves)
        if self.structure is not None and self.shapes is not None:
            try:
                shapes = _tree.values_like(spec.structure, self.shapes, self.structure)
            except ValueError:
                raise SpecError(f"{label}: padded_shapes has another structure than the element, {spec}.") from None
        found = []
        places = _tree.paths(spec.structure)
        for number, (place, shape, leaf) in enumerate(zip(places, shapes, spec.leaves, strict=True)):
            wanted = leaf.shape if shape is None else shape
            if len(wanted) != len(leaf.shape):
                raise SpecError(f"{label}: padded_shapes{place} is {wanted}, but element{place} is {leaf}.")
            if any(have and want and want < have for have, want in zip(leaf.shape, wanted, strict=True)):
                raise SpecError(f"{label}: padded_shapes{place} is {wanted}, smaller than element{place}, {leaf}.")
            is_padded = None in leaf.shape or wanted != leaf.shape
            if is_padded and leaf.dtype.itemsize == 0:
                raise SpecError(f"{label}: element{place} is {leaf}; text is not padded, but stacked as it is.")
            if is_padded and not holds(leaf.dtype, fill[number]):
                raise SpecError(
                    f"{label}: element{place} is {leaf}, which cannot hold the padding value {fill[number]!r}."
                )
            found.append(wanted)
        return found

    def _fill(self, label: str, spec: Spec) -> Sequence[Any]:
        """The value that fills each leaf."""
        if self.value_structure.is_leaf():
            return self.values * len(spec.leaves)
        try:
            return _tree.values_like(spec.structure, self.values, self.value_structure)
        except ValueError:
            raise SpecError(
                f"{label}: padding_values has another structure than the element, {spec}. Give one value for all "
                "leaves, or one for each."
            ) from None

    def stacker(self, label: str, spec: Spec) -> Stack:
        """Returns what pads and stacks elements.

        It raises an ElementError if an element is larger than its padded shape, and a SpecError if text or bytes end
        in a zero; see `text_array`.

        Args:
            label: The step, for messages.
            spec: The spec of elements.
        """
        return functools.partial(self._stack, label, spec, self.target(label, spec), self._fill(label, spec))

    def _stack(
        self,
        label: str,
        spec: Spec,
        shapes: Sequence[Shape],
        fills: Sequence[Any],
        columns: Iterable[Sequence[Any]],
        number_of: Callable[[int], int],
    ) -> Leaves:
        stacked = []
        for leaf, shape, fill, column in zip(spec.leaves, shapes, fills, columns, strict=True):
            if leaf.dtype.itemsize == 0:
                stacked.append(stacked_text(leaf, column))
                continue
            # Most calls below are made in C, for all elements at once.
            are_arrays = set(map(type, column)) == {np.ndarray}
            values = column if are_arrays else [np.asarray(value) for value in column]
            found: list[tuple[int, ...]]
            found = list(zip(map(len, values), strict=True)) if len(shape) == 1 else [value.shape for value in values]
            largest = tuple(map(max, zip(*found, strict=True)))
            size = tuple(most if want is None else want for most, want in zip(largest, shape, strict=True))
            if any(have > want for have, want in zip(largest, size, strict=True)):
                row = next(row for row, have in enumerate(found) if any(map(operator.gt, have, size)))
                raise ElementError(
                    f"{label}: element {number_of(row)} is {found[row]}, larger than its padded shape {size}. Cut it "
                    "with map(), or give a larger shape."
                )
            place = np.empty((len(values), *size), leaf.dtype)
            filling = np.zeros((), leaf.dtype)
            if fill is not None and holds(leaf.dtype, fill):
                filling[...] = fill
            if self.is_left or len(size) != 1 or not native.lay_rows(values, place, filling):
                if found.count(size) < len(found):
                    place[...] = filling
                for row, value in enumerate(values):
                    corner: tuple[int | slice, ...] = (row, *map(slice, value.shape))
                    if self.is_left:
                        corner = (row, *(slice(n - have, n) for have, n in zip(value.shape, size, strict=True)))
                    place[corner] = value
            stacked.append(place)
        return stacked

    def spec(self, label: str, spec: Spec, size: int, *, is_exact: bool) -> Spec:
        """The spec of batches of up to `size` elements, or of exactly that many."""
        leaves = []
        for leaf, shape in zip(spec.leaves, self.target(label, spec), strict=True):
            largest = None if None in shape else (size, *shape)
            leaves.append(ArraySpec((size if is_exact else None, *shape), leaf.dtype, largest))  # type: ignore[arg-type]
        return Spec(tuple(leaves), spec.structure)


def holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether a dtype can hold a value: floats may round it, but not to infinity, and others hold it exactly."""
    if value is None:
        return True
    if dtype.kind in "biufc" and np.asarray(value).dtype.kind in "USmM":  # of which NumPy makes numbers
        return False
    held = np.empty((), dtype)
    try:
        with np.errstate(all="ignore"):
            held[...] = value
            if dtype.kind in "fc":
                return bool(np.isfinite(held)) or not np.isfinite(np.asarray(value, np.result_type(dtype, float)))
            if dtype.kind in "mM":
                given = np.asarray(value)
                return given.dtype.kind not in "mM" or bool(np.isnat(given) or held.astype(given.dtype) == given)
    except (TypeError, ValueError, OverflowError):
        return False
    return dtype.kind not in "iub" or bool(held == value)


@dataclass(frozen=True, eq=False)
class Bucketed(Reorder, OneInput):
    """The elements in the order of their batches, which have elements of similar length. The batches follow."""

    buckets: Buckets

    verb = "bucket_by_length"
    takes_each_once = True
    _scatters = True
    traits = Traits(is_hidden=True)

    @property
    def label(self) -> str:
        """That of the batches."""
        return f"{self.verb}({self.buckets.size})"

    def settings(self) -> dict[str, Any]:
        """The lengths, and how they are divided."""
        return {f"bucket_{name}": value for name, value in self.buckets.settings().items()}

    @property
    def spread(self) -> float:  # type: ignore[override]
        """A block, or all if blocks are no neighbours."""
        return self.buckets.spread

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """Unless the order stays."""
        return self.buckets.seed is not None

    @property
    def memory(self) -> Memory:
        """That of the blocks."""
        return self.buckets.memory

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """A look-up in the blocks."""
        return [Demand(0, epoch, self.buckets.at(epoch, indices))]


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batching):
    """Element `i` is the input's elements `[i * size, (i + 1) * size)`, padded to one size and stacked."""

    padding: Padding
    buckets: Buckets | None = field(default=None, repr=False, kw_only=True)
    """The order of the input, `Bucketed`; None for another."""

    takes_any_shape = True

    @property
    def verb(self) -> str:
        """The user's."""
        return "padded_batch" if self.buckets is None else "bucket_by_length"

    @property
    def remark(self) -> str:
        """How much is padding, where lengths are known."""
        return "" if self.buckets is None else self.buckets.remark

    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return {"size": self.size, "drop_remainder": self.drop_remainder, "padding": self.padding.facts}

    @cached_property
    def spec(self) -> Spec:
        """The input's, padded and stacked."""
        return self.padding.spec(self.label, self.source.spec, self.size, is_exact=self.is_exact)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Pads one batch after the other; refuses a short one that has no place."""
        counts = [self.element_count(index) for index in indices.tolist()]
        out.set_filled(counts[0] if len(counts) == 1 else np.array(counts, np.int64))  # most often one batch is read
        super().fill(reader, epoch, indices, out, gather)

    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """Pads them. Where batches follow from lengths, messages have the elements before they were divided."""
        if self.buckets is None:
            return super().grouped(epoch, index, numbers, columns)
        buckets = self.buckets
        return self.stack(columns, lambda row: int(buckets.at(epoch, numbers[row : row + 1])[0]))

    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Pads and stacks them."""
        return self._stacked(columns, number_of)

    @cached_property
    def _stacked(self) -> Stack:
        return self.padding.stacker(self.label, self.source.spec)

    @property
    def padded_nbytes(self) -> int:  # type: ignore[override]
        """The largest size of an element; 0 if batches are padded to their own largest element."""
        return self.spec.nbytes // self.size

    @property
    def memory(self) -> Memory:
        """The elements of one batch, none larger than it is padded to, and the batch; 0 if the size is unknown."""
        nbytes = max(self.size * self.source.spec.nbytes, self.spec.nbytes) + self.spec.nbytes
        return working_memory(nbytes)


@dataclass(frozen=True, eq=False)
class BucketByLength(Sequential):
    """Batches of elements of similar length. The input yields pairs of an element and its length."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    drop_remainder: bool
    padding: Padding

    verb = "bucket_by_length"
    takes_any_shape = True
    ends_guards = True

    @property
    def label(self) -> str:
        """As the user wrote it: `bucket_by_length(len, [10, 20])`."""
        function = next(each for each in walk(self.source) if isinstance(each, Map))  # below a guard, perhaps
        return f"bucket_by_length({function.function_name}, {list(self.boundaries)})"

    @property
    def _element_spec(self) -> Spec:
        return judged(self.source.spec)

    def settings(self) -> dict[str, Any]:
        """The arguments; the input has the function."""
        return {"boundaries": self.boundaries, "sizes": self.sizes, "drop_remainder": self.drop_remainder}

    @cached_property
    def spec(self) -> Spec:
        """A batch, padded."""
        is_exact = self.drop_remainder and len(set(self.sizes)) == 1
        return self.padding.spec(self.label, self._element_spec, max(self.sizes), is_exact=is_exact)

    _scatters = True

    @property
    def batch_size(self) -> int | None:
        """That of all buckets; None if they differ, because it is unknown how often each is full."""
        return self.sizes[0] if len(set(self.sizes)) == 1 else None

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """A batch when its bucket is full; at the end the rest, shortest first."""
        spec = self._element_spec
        stack = self.padding.stacker(self.label, spec)
        buckets: list[list[Leaves]] = [[] for _ in self.sizes]
        numbers: list[list[int]] = [[] for _ in self.sizes]
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            which = bisect_right(self.boundaries, int(leaves[-1]))
            bucket = buckets[which]
            bucket.append([copied(leaf) for leaf in leaves[:-1]])
            numbers[which].append(number)
            if len(bucket) == self.sizes[which]:
                yield stack(zip(*bucket, strict=True), numbers[which].__getitem__)
                bucket.clear()
                numbers[which].clear()
        if not self.drop_remainder:
            left = ((bucket, of) for bucket, of in zip(buckets, numbers, strict=True) if bucket)
            yield from (stack(zip(*bucket, strict=True), of.__getitem__) for bucket, of in left)

    @property
    def memory(self) -> Memory:
        """Buckets and a batch of the largest, with elements as large as they are padded to; 0 if that is unknown."""
        element_nbytes = max(self._element_spec.nbytes, self.spec.nbytes // max(self.sizes))
        nbytes = (sum(self.sizes) + max(self.sizes)) * element_nbytes
        return working_memory(nbytes)


def padding_verb(node: Node) -> str:
    """The step that pads the batches of a plan, in the user's words; without one, the one that could."""
    steps = (each for each in walk(node, history) if isinstance(each, (PaddedBatch, BucketByLength)))
    return next((each.verb for each in steps), "padded_batch")
