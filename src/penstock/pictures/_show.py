"""`penstock.show`: reads the elements to show. `_panels.py` arranges them, and `_grid.py` draws them."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._positions import require_order
from penstock.base._spec import Spec, Verbatim
from penstock.pictures._grid import Picture, draw
from penstock.pictures._panels import CHANNELS, Elements, arrange
from penstock.plan._node import Node


def show(
    data: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    count: int = 16,
    class_names: Iterable[str] | None = None,
) -> "Picture":
    """Draws a labelled grid of the first elements of a dataset, or of a batch.

    In a notebook the result of the last line is shown. Elsewhere give a path, for a script has no window.

    Images may be (height, width), (height, width, channels) or (channels, height, width), of 1, 3 or 4 channels, and of
    any dtype and range. Unusual ranges are stretched, and the picture says so, as it does for NaN. Several images of an
    element stand side by side. A window or video is a strip. Integers that look like a mask get a colour for each
    class. A vector is drawn as a line, or named if it is one-hot. Numbers and text are written below.

    Reads the shown elements and no others, in epoch 0 and without workers; of a dataset of batches, one batch.
    Memory: these, and the picture.

    Args:
        data: A dataset; a batch or an element, which are told apart by their shapes; or a list of elements.
        path: A PNG to write, too.
        count: The most elements to show.
        class_names: The names of integer and one-hot labels, from 0 on; by default those of the dataset. If a label has
            no name, as 7 of 3 classes, all are shown as numbers, and a note says so.

    Returns:
        A picture that a notebook shows. `save(path)` writes it, and `figure` is Matplotlib's.

    Raises:
        ImportError: Matplotlib is not installed.
        ArgumentError: There is nothing in it, `path` is no PNG, or `count` is below 1.
        SpecError: Nothing in an element can be drawn or written.
        ElementError: A function of the dataset raised.
    """
    if (number := as_int(count)) is None:
        raise ArgumentTypeError(f"show(count={count!r:.80}): an integer is needed, not {type_of(count)}.")
    if number < 1:
        raise ArgumentError(f"show(count={count!r}): it must be at least 1.")
    if path is not None and Path(path).suffix.lower() != ".png":
        raise ArgumentError(f"show({os.fspath(path)!r}): the picture is a PNG, so its name must end in .png.")
    if class_names is None and _is_dataset(data):
        class_names = getattr(data, "class_names", None)
    require_order("show(class_names=)", class_names, "Give a list.")
    if isinstance(class_names, str) or not isinstance(class_names, (Iterable, type(None))):
        raise ArgumentTypeError(f"show(class_names=...) needs a list of names, got {type_of(class_names)}.")
    picture = draw(arrange(look(data, count), None if class_names is None else list(map(str, class_names))))
    if path is not None:
        picture.save(path)
    return picture


def look(data: Any, count: int) -> Elements:
    """Reads at most `count` elements, or one batch.

    Args:
        data: A dataset; a list of elements; or one element or batch, which are told apart by their shapes.
        count: At least 1.

    Raises:
        ArgumentError: There is no element, or those of a list differ in structure.
        SpecError: A leaf is no array.
    """
    if _is_dataset(data):
        return _of_dataset(data, count)
    if isinstance(data, list):
        return _of_list(data[:count], "" if len(data) <= count else f"the first {count} of {len(data):,} elements")
    leaves, structure = _flatten(data)
    if _look_stacked(leaves):
        return _of_batch(leaves, structure, count, "the batch")
    return _of_list([data], "")


def _is_dataset(data: Any) -> bool:
    """Recognises a dataset by its plan, because this module is below `Dataset`."""
    return isinstance(getattr(data, "_node", None), Node)


def _of_dataset(dataset: Any, count: int) -> Elements:
    is_batch, are_windows = _axes_by_plan(dataset._node)
    rows: list[Any] = []
    # Closed here rather than when it is collected: a stream may have a file or a generator open.
    with contextlib.closing(iter(dataset.take(count))) as elements:
        for element in elements:
            leaves, structure = _flatten(element)
            if is_batch is None and not rows:
                specs = Spec.of(dataset.element_spec).leaves
                is_batch = _look_stacked(leaves)
                if len(specs) == 1:  # a batch if the first axis, and no other, differs between elements; else a video
                    is_batch = is_batch and specs[0].shape[:1] == (None,) and None not in specs[0].shape[1:]
            # A function of a batch may give a mean over it.
            if is_batch and leaves and all(leaf.shape[:1] == leaves[0].shape[:1] != () for leaf in leaves):
                return _of_batch(leaves, structure, count, "the first batch", are_windows)
            rows.append(element)
    if not rows:
        raise ArgumentError(f"show() has nothing to show: this dataset has no elements.\n{dataset!r}")
    length = dataset.length
    of = f" of {length:,}" if isinstance(length, int) else " of endlessly many" if length == math.inf else ""
    return _of_list(rows, f"the first {len(rows)}{of} elements" if len(rows) != length else "", are_windows)


def _axes_by_plan(node: Node) -> tuple[bool | None, bool]:
    """Returns whether elements are batches, None if unknown, and whether the next axis is known to be time."""
    is_batch, is_kept = node.batch_size != 1 or None, True
    while node.verb not in ("windows", "unbatch"):
        # A function or a zip may make anything of windows.
        is_function = node.verb in ("map", "random_map") and not node.traits.is_hidden
        is_kept = is_kept and len(node.inputs) == 1 and not is_function
        if not node.inputs:
            return is_batch, False
        node = node.inputs[0]
    return bool(is_batch), is_kept and node.verb == "windows"


def _look_stacked(leaves: Sequence[Any]) -> bool:
    """Judges by shapes whether leaves have a common batch axis."""
    shapes = [leaf.shape for leaf in leaves]
    pictures = [shape for shape in shapes if len(shape) >= 3]
    if not pictures or len({shape[:1] for shape in shapes}) > 1:
        return False
    if any(len(shape) == 3 and shape[-1] in CHANNELS for shape in pictures):
        return False
    return len(shapes) > 1 or len(shapes[0]) > 3 or shapes[0][0] not in CHANNELS


def _of_batch(
    leaves: list[Any], structure: _tree.Structure, count: int, name: str, are_windows: bool = False
) -> Elements:
    size = len(leaves[0])
    if not size:
        raise ArgumentError(f"show() has nothing to show: {name} has no elements.")
    shown = min(count, size)
    heading = f"{'all' if shown == size else f'the first {shown} of'} {size:,} elements of {name}"
    return _named([[leaf[row] for leaf in leaves] for row in range(shown)], structure, heading, are_windows)


def _of_list(elements: list[Any], heading: str, are_windows: bool = False) -> Elements:
    flat = [_flatten(element) for element in elements]
    if not flat:
        raise ArgumentError("show() has nothing to show: the list has no elements.")
    structure = flat[0][1]
    for number, (_, other) in enumerate(flat):
        if other != structure:
            raise ArgumentError(
                f"show() needs elements of one structure, but element {number} is {other}, and element 0 is "
                f"{structure}. Show them one by one."
            )
    return _named([leaves for leaves, _ in flat], structure, heading, are_windows)


def _named(rows: list[list[Any]], structure: _tree.Structure, heading: str, are_windows: bool) -> Elements:
    rows = [[np.asarray(leaf) for leaf in row] for row in rows]
    specs = [Verbatim(_common_spec(leaves)) for leaves in zip(*rows, strict=True)]
    names = []
    for accessor, place in zip(structure.accessors(), _tree.paths(structure), strict=True):
        known = [getattr(entry, "field", entry.entry) for entry in accessor]
        names.append(next((name for name in reversed(known) if isinstance(name, str)), place))
    text = repr(structure.unflatten(specs)).replace("ArraySpec(", "(")
    return Elements(rows, names, f"{heading}: {text}" if heading else text, are_windows)


def _common_spec(leaves: Sequence[Any]) -> str:
    """Returns shape and dtype of all of these, None for an axis that differs."""
    if len({leaf.ndim for leaf in leaves}) > 1:
        return "different shapes"
    sizes = zip(*(leaf.shape for leaf in leaves), strict=True)
    shape = tuple(axis[0] if len(set(axis)) == 1 else None for axis in sizes)
    dtype = leaves[0].dtype
    return "text" if dtype.kind in "UTS" and not shape else f"{shape} {dtype}"


def _flatten(element: Any) -> tuple[list[Any], _tree.Structure]:
    leaves, structure = _tree.flatten(element)
    arrays = []
    for leaf, place in zip(leaves, _tree.paths(structure), strict=True):
        try:
            arrays.append(np.asarray(leaf))
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch's, of tensors with a gradient
            at = f" at {place}" if place else ""
            raise SpecError(f"show() cannot make an array of the leaf{at}, {type_of(leaf)}: {error}") from None
    return arrays, structure
