"""Batches of elements whose lengths differ, end to end: values, and offsets that say where each element begins."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._batch import Batching, require_one_shape, stacked_text
from penstock.plan._node import Memory, working_memory
from penstock.plan._reader import Gather, Reader


class Ragged(NamedTuple):
    """Arrays of several lengths end to end: what `ragged_batch` makes of a leaf.

    Array `i` is `values[offsets[i] : offsets[i + 1]]`, a view. It is a tuple: `values, offsets = batch["boxes"]`, and a
    function of a batch may return one. In `element_spec` both are `ArraySpec`s, in batches for torch and JAX tensors;
    for TensorFlow `to_tf` makes one `tf.RaggedTensor` of the two.

    Example:
        >>> import penstock
        >>> values, offsets = penstock.range(4).map(np.arange).ragged_batch(4)[0]
        >>> values.tolist(), offsets.tolist()
        ([0, 0, 1, 0, 1, 2], [0, 0, 1, 3, 6])
    """

    values: Any
    """Shape `(total, ...)`, with the dtype of the arrays."""
    offsets: Any
    """int64, shape `(n + 1,)`, ascending from 0 to `total`."""


@dataclass(frozen=True)
class EndToEnd:
    """Leaves with a first axis that varies become `Ragged`; others are stacked."""

    verb = "ragged_batch"
    facts = "ragged"
    width = 1
    """The leaves that have offsets in common."""
    values_at = 0
    """Where values begin in a ragged part of a batch; offsets are at the other end."""

    def is_ragged(self, part: Any) -> bool:
        """Whether a part of a spec has elements of several lengths."""
        return isinstance(part, ArraySpec) and part.shape[:1] == (None,)

    def _none(self, label: str, spec: Spec) -> str:
        return (
            f"{label} lays elements of several lengths end to end, but here an element is {spec}, and no leaf has a "
            "first axis that varies. Use batch(); or say that it does where elements are made: "
            'element_spec=penstock.ArraySpec((None, 4), "float32").'
        )

    def parts(self, label: str, spec: Spec) -> tuple[list[Any], Any]:
        """The parts of an element that become one part of a batch each, and the structure of these.

        Raises:
            SpecError: No leaf has a first axis that varies, or one varies only along another.
        """
        parts, structure = _tree.flatten_until(spec.tree, self.is_ragged)
        if not any(map(self.is_ragged, parts)):
            raise SpecError(self._none(label, spec))
        rest = [ArraySpec((), np.int64) if self.is_ragged(part) else part for part in parts]
        require_one_shape(label, Spec.of(structure.unflatten(rest)))
        return parts, structure

    def spec(self, label: str, spec: Spec, size: int, *, is_exact: bool, most: int | None = None) -> Spec:
        """The spec of batches.

        Args:
            label: The step, for messages.
            spec: The spec of elements.
            size: The number of elements, or the most.
            is_exact: Whether all batches have that many.
            most: The most values of a leaf; None for what so many of the largest elements have.
        """
        parts, structure = self.parts(label, spec)
        offsets = ArraySpec((size + 1 if is_exact else None,), np.int64, (size + 1,))
        made = [
            self._part(part, offsets, size, most) if self.is_ragged(part) else part.stacked(size, exact=is_exact)
            for part in parts
        ]
        return Spec.of(structure.unflatten(made))

    def _part(self, part: Any, offsets: ArraySpec, size: int, most: int | None) -> Tree:
        shape, bound = part.shape, None
        if None not in shape[1:] and part.dtype.itemsize:
            if most is None and part.max_shape is not None:
                most = size * part.max_shape[0]
            bound = None if most is None else (most, *shape[1:])
        return Ragged(ArraySpec(shape, part.dtype, bound), offsets)

    def require(self, label: str, counts: Indices, others: Sequence[Any], dtype: Any, number_of: Any) -> None:
        """Refuses elements whose leaves do not belong together."""

    def stacker(self, label: str, spec: Spec) -> "Stacker":
        """Returns what makes batches of elements of a spec."""
        return Stacker(self, label, spec)


class Stacker:
    """Makes batches: of the values of each leaf in some elements, and what gives the number of one by its row."""

    def __init__(self, layout: EndToEnd, label: str, spec: Spec) -> None:
        self._layout, self._label, self._spec = layout, label, spec
        self._parts = list(map(layout.is_ragged, layout.parts(label, spec)[0]))
        made = layout.spec(label, spec, 0, is_exact=False)
        free = (ArraySpec((None,) * len(leaf.shape), leaf.dtype) for leaf in made.leaves)
        self._free = Spec(tuple(free), made.structure)
        """The spec of batches, of any size."""

    def __call__(self, columns: Iterable[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Returns the leaves of a batch, in memory of their own."""
        box = Rows.allocate(self._free, 1)
        self.write(list(columns), number_of, box, 0)
        return box.leaf_values(0)

    def write(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int], out: Rows, row: int) -> None:
        """Writes a batch into a row: each value once, from where the element has it to its place.

        Raises:
            SpecError: Elements differ along another axis than the first.
        """
        layout, count, number, at = self._layout, len(columns[0]), 0, 0
        for is_ragged in self._parts:
            if not is_ragged:
                leaf = self._spec.leaves[number]
                if not leaf.shape and leaf.dtype.kind in "biufc":
                    self._place(out, at, row, (count,))[...] = columns[number]  # five times as fast
                elif leaf.dtype.itemsize:
                    np.stack(columns[number], out=self._place(out, at, row, (count, *leaf.shape)))  # type: ignore[arg-type]
                else:
                    _put(out, at, row, stacked_text(leaf, columns[number]))
                number, at = number + 1, at + 1
                continue
            mine = columns[number : number + layout.width]
            counts = np.fromiter(map(len, mine[0]), np.int64, count)
            ends = self._place(out, at + (0 if layout.values_at else layout.width), row, (count + 1,))
            layout.require(self._label, counts, mine[-1], ends.dtype, number_of)
            ends[0] = 0
            np.cumsum(counts, out=ends[1:])
            for leaf_at, values in enumerate(mine, at + layout.values_at):
                try:
                    if self._free.leaves[leaf_at].dtype.itemsize:
                        shape = int(ends[-1]), *values[0].shape[1:]
                        np.concatenate(values, out=self._place(out, leaf_at, row, shape))
                    else:
                        _put(out, leaf_at, row, np.concatenate(values))
                except ValueError:
                    self._require_one_shape(values, number_of)  # here alone: a look at each shape takes as long
                    raise
            number, at = number + layout.width, at + layout.width + 1

    def _require_one_shape(self, values: Sequence[Any], number_of: Callable[[int], int]) -> None:
        """Refuses elements that differ along another axis than the first."""
        shape = values[0].shape[1:]
        for row, value in enumerate(values):
            if value.shape[1:] != shape:
                raise SpecError(
                    f"{self._label} lays elements end to end along their first axis, and the other axes must agree, "
                    f"but element {number_of(0)} is {values[0].shape}, and element {number_of(row)} is {value.shape}. "
                    "Move the axis that varies to the front in map(), or use padded_batch()."
                )

    def _place(self, out: Rows, leaf: int, row: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The part of a leaf's place that is used; a leaf without a place of known size gets an array of its own."""
        array, extent = out.arrays[leaf], out.extents[leaf]
        if array.dtype.hasobject:
            array[row] = np.empty(shape, self._free.leaves[leaf].dtype)
            return array[row]  # type: ignore[no-any-return]
        if extent is None:
            return array[row]  # type: ignore[no-any-return]
        extent[row] = shape[0]
        return array[row, : shape[0]]


def _put(out: Rows, leaf: int, row: int, text: npt.NDArray[Any]) -> None:
    """Writes text, whose array is made before its size is known."""
    array, extent = out.arrays[leaf], out.extents[leaf]
    if extent is not None:
        extent[row] = len(text)
        array[row, : len(text)] = text
    else:
        array[row] = text


@dataclass(frozen=True, eq=False)
class RaggedBatch(Batching):
    """Element `i` is the input's elements `[i * size, (i + 1) * size)`, end to end."""

    layout: EndToEnd

    takes_any_shape = True

    @property
    def verb(self) -> str:
        """The user's."""
        return self.layout.verb

    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return {"size": self.size, "drop_remainder": self.drop_remainder}

    @cached_property
    def spec(self) -> Spec:
        """Values and offsets of each ragged leaf; others stacked."""
        return self.layout.spec(self.label, self.source.spec, self.size, is_exact=self.is_exact)

    @cached_property
    def _joined(self) -> Stacker:
        return self.layout.stacker(self.label, self.source.spec)

    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Lays them end to end."""
        return self._joined(columns, number_of)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads one batch after the other, and writes its elements straight to their places."""
        for row, index in zip(out.row_numbers(), indices.tolist(), strict=True):
            numbers = self.group(epoch, index)
            self._joined.write(reader.inputs[0].columns(epoch, numbers), numbers.__getitem__, out, row)

    @property
    def memory(self) -> Memory:
        """Elements of unknown size count as nothing; of the rest, the elements of a batch, and the batch."""
        return working_memory(2 * self.size * self.source.spec.nbytes)
