"""The labels of `split` and `windows`: an array, or a leaf of the elements, which is read now."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._loader import Loader, LoaderOptions
from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError
from penstock.base._positions import as_labels
from penstock.lower._rewrite import Part, with_part
from penstock.plan._batch import Batch
from penstock.plan._cautions import caution_labels
from penstock.plan._fields import named
from penstock.plan._node import Node

Labels = npt.ArrayLike | str | int
_BATCH_SIZE = 1024


def labels_of(node: Node, call: str, values: Labels) -> npt.NDArray[Any]:
    """Returns a label for each element of a plan.

    Args:
        node: The plan, of known length.
        call: The call in the user's words: `split(groups=...)`.
        values: The labels; or the key or place of a leaf.

    Raises:
        ArgumentError: There is no such leaf, or it is no label; or there is not one label for each element.
    """
    labels = values_of(node, call, values)
    missing = np.flatnonzero(labels != labels)
    if len(missing):
        raise ArgumentError(
            f"{call} has the label {labels[missing[0]]} for element {missing[0]}, and {len(missing)} such in all, "
            "which equal no other label, so their groups are unknown. Give these elements a label, or "
            "leave them out of the dataset."
        )
    return labels


def values_of(node: Node, call: str, values: Labels) -> npt.NDArray[Any]:
    """Returns a value for each element of a plan, as `labels_of` takes them.

    Raises:
        ArgumentError: There is no such leaf, or it is no single value; or there is not one for each element.
    """
    is_leaf = isinstance(values, str) or as_int(values) is not None
    if not is_leaf:
        caution_labels(node, call)
    found = _read(node, call, values) if is_leaf else as_labels(values, call)
    if found.shape != (node.length,):
        raise ArgumentError(f"{call} needs a value for each element, shape ({node.length},), got {found.shape}.")
    return found


def _read(node: Node, call: str, key: Any) -> npt.NDArray[Any]:
    call = call.replace("...", repr(key))
    if node.randomness.reorders:
        raise ArgumentError(
            f"{call} reads the labels of epoch 0, and a shuffle before it changes the order in each epoch. Put it "
            "before the shuffle, or use shuffle(reshuffle=False)."
        )
    try:
        part = Part(key)(node.spec.tree)
    except (LookupError, TypeError):
        raise ArgumentError(f"{call}: elements have no such leaf. They are {node.spec}.") from None
    if getattr(part, "shape", None) != ():
        raise ArgumentError(f"{call}: a label or length is one number or text, and this leaf is {part}.")
    if node.length == 0:
        return np.empty(0, part.dtype)
    # By its name a source reads the one column, see `with_parts`.
    is_named = isinstance(node.spec.tree, dict)
    one = named(node, [key]) if is_named else with_part(node, key)
    with Loader(Batch(one, _BATCH_SIZE, False), LoaderOptions()) as loader:
        return np.concatenate([np.array(batch[key] if is_named else batch) for batch in loader])
