"""The labels of `split` and the keys of `join`: an array, or a leaf of the elements, which is read now.

The values that a leaf has in files are kept beside the first of these (`files/_kept.py`), so that other processes and
runs need not read them. They belong to the plan of the source, with the state of each file. What a function makes is
read anew.
"""

import base64
import hashlib
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError
from penstock.base._extensions import CALLS, needed
from penstock.base._positions import as_labels
from penstock.loader import Loader, LoaderOptions
from penstock.lower._rewrite import ValueAt, with_rows, with_value
from penstock.plan._batch import Bundle
from penstock.plan._cautions import caution_labels, reordering
from penstock.plan._fields import named
from penstock.plan._node import Node

Labels = npt.ArrayLike | str | int
_BATCH_SIZE: Final = 1024
_LONGEST: Final = 80
"""A longer text or key is told by this beginning and a digest of all, because an array has the width of its longest."""
_ONE_LEVEL: Final = (
    "Give a key of the top level, or for a leaf below it its values: [e['a']['b'] for e in ds.select('a')]."
)
_TextT = TypeVar("_TextT", str, bytes)


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
    is_missing = labels != labels
    if labels.dtype.hasobject:
        is_missing |= labels == None  # noqa: E711  # element by element
    missing = np.flatnonzero(is_missing)
    if len(missing):
        raise ArgumentError(
            f"{call} has the label {labels[missing[0]]} for element {missing[0]}, and {len(missing)} such in all. That "
            "is no value, so their groups are unknown. Give these elements a label, or leave them out of the dataset."
        )
    return labels


def values_of(node: Node, call: str, values: Labels) -> npt.NDArray[Any]:
    """Returns a value for each element of a plan, as `labels_of` takes them.

    Raises:
        ArgumentError: There is no such leaf, or it is no single value; or there is not one for each element.
    """
    is_leaf = isinstance(values, str) or as_int(values) is not None
    if callable(values):  # such as a function of the element
        raise ArgumentTypeError(
            f"{call} takes no function, but the key of a leaf, or a value for each element: [fn(e) for e in ds]."
        )
    if not is_leaf:
        caution_labels(node, call)
    found = _read(node, call, values) if is_leaf else _given(call, values)
    if found.shape != (node.length,):
        are_keys = isinstance(values, tuple) and any(isinstance(each, str) for each in values)
        hint = f" {_ONE_LEVEL}" if are_keys else ""
        raise ArgumentError(f"{call} needs a value for each element, shape ({node.length},), got {found.shape}.{hint}")
    return found


def _given(call: str, values: Any) -> npt.NDArray[Any]:
    try:
        return as_labels(values, call)
    except PenstockError:
        raise
    except ValueError as error:  # lists of unlike lengths
        raise ArgumentTypeError(f"{call} needs one number or text for each element, and NumPy says: {error}") from None


def _read(node: Node, call: str, key: Any) -> npt.NDArray[Any]:
    call = call.replace("...", repr(key))
    if node.randomness.reorders:
        steps, keeps = reordering(node)
        raise ArgumentError(
            f"{call} reads the labels of epoch 0, and {steps} before it changes the order in each epoch. Put it before "
            f"{steps}{keeps}."
        )
    try:
        part = ValueAt(key)(node.spec.tree)
    except (LookupError, TypeError):
        tree = node.spec.tree
        is_nested = isinstance(tree, dict) and any(isinstance(part, (dict, tuple)) for part in tree.values())
        hint = f" {_ONE_LEVEL}" if is_nested else ""
        raise ArgumentError(f"{call}: elements have no such leaf. They are {node.spec}.{hint}") from None
    if getattr(part, "shape", None) != ():
        raise ArgumentError(
            f"{call}: a label or length is one number or text, and this leaf is {part}. Give one for each "
            "element, [label_of(e) for e in ds], or do this before the windows() or batch() that made it."
        )
    if node.length == 0:
        return np.empty(0, part.dtype)
    # By its name a source reads the one column, see `with_rows`.
    is_named = isinstance(node.spec.tree, dict)
    one = named(node, [key]) if is_named else with_value(node, key)
    return needed(CALLS, "kept_keys")(with_rows(one), _all_of) if is_named else _all_of(one)


def _all_of(one: Node) -> npt.NDArray[Any]:
    """The values of all elements, which are single values or dicts of one."""
    with Loader(Bundle(one, _BATCH_SIZE, False), LoaderOptions(), logs_epochs=False) as loader:
        leaves = (next(iter(batch.values())) if isinstance(batch, dict) else batch for batch in loader)
        return np.concatenate([array_of(leaf) for leaf in leaves])


def array_of(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values as labels are kept: a copy, in which a long text has a bounded width."""
    width = values.dtype.itemsize // {"U": 4, "S": 1}.get(values.dtype.kind, values.dtype.itemsize)
    is_text = values.dtype.hasobject and all(isinstance(each, (str, bytes)) for each in values.flat)
    if is_text or width > _LONGEST:
        return np.array([*map(_short, values.tolist())])
    return np.array(values)


def _short(text: _TextT) -> _TextT:
    """A text, or what stands for it in an array, which drops zeros at the end: longer than any text that is not."""
    text = text.rstrip(b"\0" if isinstance(text, bytes) else "\0")
    if len(text) <= _LONGEST:
        return text
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    digest = base64.b64encode(hashlib.blake2b(data, digest_size=18).digest())
    return text[:_LONGEST] + (digest if isinstance(text, bytes) else digest.decode())
