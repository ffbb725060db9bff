"""Which elements are shown: the first of a dataset, those of a batch, or those of a list."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._errors import ArgumentError, SpecError, type_of
from penstock.base._spec import ArraySpec, Spec
from penstock.plan._batch import Batch, Unbatch
from penstock.plan._map import Map
from penstock.plan._node import Node
from penstock.plan._pad import BucketByLength, PaddedBatch
from penstock.plan._windows import Windows

CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Elements:
    """Elements without their structure, and what a reader of the picture is told of them."""

    rows: list[list[Any]]
    """The leaves of each element, as NumPy arrays (of any dtype, objects included)."""
    names: list[str]
    """Of each leaf: its key or field, its place such as `[0]` where it has neither, or nothing for a lone one."""
    heading: str
    are_windows: bool = False
    """Whether the first axis of a leaf is known to be time."""


def look(data: Any, count: int) -> Elements:
    """Reads at most `count` elements, or one batch.

    Args:
        data: A dataset; a list of elements; or one element or batch, which is told from the other by its shapes.
        count: At least 1.

    Raises:
        ArgumentError: There is no element, or those of a list differ in structure.
        SpecError: A leaf is no array.
    """
    if isinstance(data, Dataset):
        return _look_into(data, count)
    if isinstance(data, list):
        return _elements(data[:count], "" if len(data) <= count else f"the first {count} of {len(data):,} elements")
    leaves, structure = _flatten(data)
    if not _looks_stacked([leaf.shape for leaf in leaves], is_batch_alone=True):
        return _elements([data], "")
    return _of_batch(leaves, structure, count, "the batch", are_windows=False)


def _look_into(dataset: Dataset, count: int) -> Elements:
    is_batch, are_windows = _axes_by_plan(dataset._node)
    rows: list[Any] = []
    # Closed here, not whenever it is collected: a stream may have a file or a generator open.
    with contextlib.closing(iter(dataset.take(count))) as elements:  # type: ignore[type-var]  # a generator
        for element in elements:
            leaves, structure = _flatten(element)
            if is_batch is None and not rows:
                specs = Spec.of(dataset.element_spec).leaves
                is_batch = _looks_stacked([leaf.shape for leaf in leaves], is_batch_alone=_is_counted(specs))
            # What a function makes of a batch may be a mean over it.
            if is_batch and leaves and all(leaf.shape[:1] == leaves[0].shape[:1] != () for leaf in leaves):
                return _of_batch(leaves, structure, count, "the first batch", are_windows=are_windows)
            rows.append(element)
    if not rows:
        raise ArgumentError(f"show() has nothing to show: this dataset has no elements.\n{dataset!r}")
    length = dataset.length
    of = f" of {length:,}" if isinstance(length, int) else " of endlessly many" if length == math.inf else ""
    return _elements(rows, f"the first {len(rows)}{of} elements" if len(rows) != length else "", are_windows)


def _axes_by_plan(node: Node) -> tuple[bool | None, bool]:
    """Whether elements are batches, None for unknown; and whether the axis after that is known to be time."""
    is_batch, is_kept = None, True
    while True:
        if isinstance(node, (Batch, PaddedBatch, BucketByLength)) and is_batch is None:
            is_batch = True
        elif isinstance(node, Windows):
            return bool(is_batch), is_kept
        elif isinstance(node, Unbatch):
            return bool(is_batch), False
        # What a function or a zip makes of windows may be anything; batches it most often leaves batches.
        is_kept = is_kept and len(node.inputs) == 1 and (not isinstance(node, Map) or node.is_hidden)
        if not node.inputs:
            return is_batch, False
        node = node.inputs[0]


def _is_counted(specs: Sequence[ArraySpec]) -> bool:
    """Whether a lone leaf's first axis, and no other, differs from element to element: a batch, not a video."""
    return len(specs) == 1 and None in specs[0].shape[:1] and None not in specs[0].shape[1:]


def _looks_stacked(shapes: list[tuple[int, ...]], *, is_batch_alone: bool) -> bool:
    """Judges by shapes whether leaves have a common batch axis.

    Args:
        shapes: Of all leaves.
        is_batch_alone: What to say of a lone leaf of images, `(n, height, width)` or more axes.
    """
    pictures = [shape for shape in shapes if len(shape) >= 3]
    if not pictures or len({shape[:1] for shape in shapes}) > 1:
        return False
    if any(len(shape) == 3 and shape[-1] in CHANNELS for shape in pictures):
        return False
    if len(shapes) > 1:
        return True
    return is_batch_alone and (len(shapes[0]) > 3 or shapes[0][0] not in CHANNELS)


def _of_batch(leaves: list[Any], structure: _tree.Structure, count: int, name: str, *, are_windows: bool) -> Elements:
    size = len(leaves[0])
    if not size:
        raise ArgumentError(f"show() has nothing to show: {name} has no elements.")
    shown = min(count, size)
    heading = f"{'all' if shown == size else f'the first {shown} of'} {size:,} elements of {name}"
    rows = [[leaf[row] for leaf in leaves] for row in range(shown)]
    return _named(rows, structure, heading, are_windows)


def _elements(elements: Iterable[Any], heading: str, are_windows: bool = False) -> Elements:
    flat = [_flatten(element) for element in elements]
    if not flat:
        raise ArgumentError("show() has nothing to show: the list has no elements.")
    structure = flat[0][1]
    for number, (_, other) in enumerate(flat):
        if other != structure:
            raise ArgumentError(
                f"show() sets elements of one structure side by side, but element {number} is {other}, and element 0 "
                f"is {structure}. Show them one by one."
            )
    return _named([leaves for leaves, _ in flat], structure, heading, are_windows)


def _named(rows: list[list[Any]], structure: _tree.Structure, heading: str, are_windows: bool) -> Elements:
    rows = [[np.asarray(leaf) for leaf in row] for row in rows]
    specs = [_common(leaves) for leaves in zip(*rows, strict=True)]
    text = repr(structure.unflatten(specs)).replace("ArraySpec(", "(")  # as `Spec` prints, of elements alone
    return Elements(rows, _names(structure), f"{heading}: {text}" if heading else text, are_windows)


class _Printed(str):
    """Text that prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _common(leaves: Sequence[Any]) -> _Printed:
    """Shape and dtype of all of these, None for an axis that differs."""
    if len({leaf.ndim for leaf in leaves}) > 1:
        return _Printed("different shapes")
    together = zip(*(leaf.shape for leaf in leaves), strict=True)
    shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in together)
    dtype = leaves[0].dtype
    return _Printed("text" if dtype.kind in "UTS" and not shape else f"{shape} {dtype}")


def _names(structure: _tree.Structure) -> list[str]:
    """Each leaf's innermost key or field, or its place where there is none."""
    names = []
    for accessor, place in zip(structure.accessors(), _tree.paths(structure), strict=True):
        known = [getattr(entry, "field", entry.entry) for entry in accessor]
        texts = [name for name in known if isinstance(name, str)]
        names.append(texts[-1] if texts else place)
    return names


def _flatten(element: Any) -> tuple[list[Any], _tree.Structure]:
    leaves, structure = _tree.flatten(element)
    arrays = []
    for leaf, place in zip(leaves, _tree.paths(structure), strict=True):
        try:
            arrays.append(np.asarray(leaf))
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch's, of tensors with a gradient
            raise SpecError(
                f"show() cannot make an array of the leaf{f' at {place}' if place else ''}, {type_of(leaf)}: {error}"
            ) from None
    return arrays, structure
