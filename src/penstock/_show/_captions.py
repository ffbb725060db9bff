"""Values that are said rather than drawn: labels, numbers, text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SPOKEN = 4
"""A vector of so many numbers is said, such as a box; a longer one is drawn."""
_LABEL_NAMES = ("label", "class", "target", "y", "category")
_LONGEST = 60


def is_one_hot(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether all of these are vectors of zeros with a single one."""
    return all(
        array.ndim == 1 and array.size > 1 and array.dtype.kind in "biuf" and array.sum() == array.max() == 1
        for array in arrays
    ) and all(np.isin(array, (0, 1)).all() for array in arrays)


def label_column(columns: Sequence[Sequence[npt.NDArray[Any]]], names: Sequence[str], class_count: int) -> int | None:
    """Which leaf holds labels, those to which class names belong; None if none can.

    Args:
        columns: For each leaf, its value in each element.
        names: Of the leaves.
        class_count: The number of class names, 0 for none.
    """
    if not class_count:
        return None
    able = [number for number, arrays in enumerate(columns) if _are_labels(arrays, class_count)]
    named = [number for number in able if any(word in names[number].lower() for word in _LABEL_NAMES)]
    return next(iter(named or able), None)


def _are_labels(arrays: Sequence[npt.NDArray[Any]], class_count: int) -> bool:
    if all(array.shape == (class_count,) and array.dtype.kind in "biuf" for array in arrays):
        return True  # one-hot, or a share for each class
    return all(
        array.size == 1
        and array.dtype.kind in "biuf"
        and 0 <= array.item() < class_count
        and float(array.item()).is_integer()
        for array in arrays
    )


def are_integers(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether each is an integer alone, as a label is."""
    return all(array.size == 1 and array.dtype.kind in "iu" for array in arrays)


def label_text(array: npt.NDArray[Any], class_names: Sequence[str]) -> str:
    """The name of a label: an integer, a one-hot vector, or the largest of a vector of shares, with its share."""
    if array.size == 1:
        return class_names[int(array.item())]
    share = float(array.max())
    name = class_names[int(array.argmax())]
    return name if share == 1 else f"{name} {share:.2f}"


def text_of(array: npt.NDArray[Any], *, are_one_hot: bool = False) -> str:
    """A value in a few words; text as it is, cut where it is long."""
    if array.size == 0:
        return f"empty {array.shape}"
    if are_one_hot:
        return str(int(array.argmax()))
    if array.ndim == 0 or array.size == 1:
        return _scalar(array.item())
    if array.size <= SPOKEN:
        return f"[{', '.join(_scalar(value) for value in array.ravel().tolist())}]"
    return f"{array.shape} {array.dtype}"


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value):,} bytes"
    if isinstance(value, (float, complex)):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
