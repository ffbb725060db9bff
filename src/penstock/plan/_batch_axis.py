"""Batches whose elements do not lie along the first axis, because a function of whole batches moved it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._errors import ArgumentError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._batch import Batching
from penstock.plan._node import Elements, Memory, Node, OneInput, OneToOne, Traits, history, walk, working_memory
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class BatchFirst(OneToOne, OneInput):
    """The input's batches with the axis of their elements in front, where they are shared out. `arrange` adds it."""

    axes: Tree
    """That axis: one for all leaves, or a tree like the batch."""

    verb = "batch_axis"
    is_pointwise = True
    traits = Traits(is_parallel=True, is_hidden=True)

    @cached_property
    def _axes(self) -> list[int]:
        spec = self.source.spec
        axes: list[int] = axes_of(self.axes, spec)
        for place, leaf, axis in zip(_tree.paths(spec.structure), spec.leaves, axes, strict=True):
            if not (isinstance(axis, int | np.integer) and 0 <= axis < len(leaf.shape)):
                raise ArgumentError(
                    f"batch_axis={self.axes}: a batch{place} is {leaf}, which has no axis {axis}. Axes count from 0; "
                    "give one for all leaves, or a tree like the batch."
                )
        return axes

    @cached_property
    def spec(self) -> Spec:
        """That of the input, with these axes in front."""
        spec = self.source.spec
        return Spec(
            tuple(_moved(leaf, axis, 0) for leaf, axis in zip(spec.leaves, self._axes, strict=True)), spec.structure
        )

    @property
    def memory(self) -> Memory:
        """A batch of the input."""
        return working_memory(self.source.spec.nbytes)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads batches, and copies them."""
        for chunk, rows, box in reader.inputs[0].chunks(epoch, indices, out):
            for number, row in zip(range(len(chunk)), rows.row_numbers(), strict=True):
                rows.put(row, self._in_front(box.leaf_values(number)))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The batches of a stream."""
        return (self._in_front(leaves) for leaves in reader.inputs[0].sequence(epoch))

    def _in_front(self, leaves: Leaves) -> Leaves:
        return [np.moveaxis(leaf, axis, 0) for leaf, axis in zip(leaves, self._axes, strict=True)]

    def back(self, batch: Tree) -> Tree:
        """A delivered batch, or its spec, with the axes where they were."""
        leaves = zip(_tree.flatten_like(self.spec.structure, batch), self._axes, strict=True)
        moved = [
            _moved(leaf, 0, axis) if isinstance(leaf, ArraySpec) else np.moveaxis(leaf, 0, axis)
            for leaf, axis in leaves
        ]
        return self.spec.structure.unflatten(moved)


def axes_of(axes: Tree, spec: Spec) -> list[Any]:
    """The axis of each leaf."""
    found, structure = _tree.flatten(axes)
    if not structure.is_leaf() and structure != spec.structure:
        raise ArgumentError(f"batch_axis={axes} is a tree of another structure than the batch, which is {spec}.")
    return found * len(spec.leaves) if structure.is_leaf() else found


def _moved(leaf: ArraySpec, start: int, end: int) -> ArraySpec:
    order = [axis for axis in range(len(leaf.shape)) if axis != start]
    order.insert(end, start)
    largest = leaf.max_shape and tuple(leaf.max_shape[axis] for axis in order)
    return ArraySpec(tuple(leaf.shape[axis] for axis in order), leaf.dtype, largest)


def require_batch_first(node: Node) -> None:
    """Refuses batches whose first axis is not that of their elements, as far as sizes tell and the user does not.

    Raises:
        ArgumentError: Another axis has the size of a batch, and the first has not.
    """
    if isinstance(node, BatchFirst):
        return
    steps = walk(node, lambda each: () if isinstance(each, Batching) else history(each))
    sizes = {each.size for each in steps if isinstance(each, Batching)}
    size = sizes.pop() if len(sizes) == 1 else 0
    for place, leaf in zip(_tree.paths(node.spec.structure), node.spec.leaves, strict=True):
        shape = leaf.max_shape or leaf.shape
        if size > 1 and shape and shape[0] != size and size in shape[1:]:
            raise ArgumentError(
                "shard=, uneven= and micro_batches= divide the first axis of a batch, but a batch"
                f"{place} of {size} elements is {leaf}: a function has moved that axis. Give ranks whole batches: "
                f"whole_batches=True. Or say where it is: batch_axis={shape.index(size)}, or 0 if it is the first, or "
                "a tree of these like the batch."
            )
