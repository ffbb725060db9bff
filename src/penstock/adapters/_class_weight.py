"""Weights of classes as weights of samples, as Keras does it for arrays.

Keras takes `argmax` of whatever has several columns, and rounds. So tags for each step, several labels at once, soft
labels and real numbers get weights that mean nothing. Here they are refused: by their shape before anything is read, by
their values in the batch that has them.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final, NoReturn, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree


@final
class ClassWeights:
    """Looks up the weight of each sample's class; a class that is not named weighs 1, as in Keras.

    Args:
        weights: A weight for each integer label, or for False and True.
        element_spec: The spec of the batches `(x, y)`. Labels `y` are integers `(n,)` or `(n, 1)`, or one-hot `(n,
            classes)`.

    Raises:
        ArgumentTypeError: Not a dict of integers to numbers.
        ArgumentError: A weight is negative or not finite.
        SpecError: Batches are not `(x, y)`, or `y` holds no labels.
    """

    def __init__(self, weights: Mapping[int, float], element_spec: Tree) -> None:
        given: object = weights
        if not isinstance(given, Mapping) or not given:
            raise ArgumentTypeError(
                f"class_weight={weights!r:.80} is not a dict with a weight for each label, such as {{0: 1.0, 1: 20.0}}."
                + (_BALANCED if given == "balanced" else "")
            )
        label: Any
        weight: Any  # whatever a user gave
        for label, weight in weights.items():
            if not isinstance(label, (int, np.integer, np.bool_)):
                raise ArgumentTypeError(f"class_weight has the key {label!r}, which is no integer label.")
            if not -_LABEL_LIMIT <= int(label) < _LABEL_LIMIT:
                raise ArgumentError(f"class_weight has the key {label!r}, which is no label of 64 bits.")
            if not isinstance(weight, Real):
                raise ArgumentTypeError(f"class_weight[{label}]={weight!r} is no number.")
            if not (math.isfinite(weight) and float(weight) >= 0):
                raise ArgumentError(f"class_weight[{label}]={weight!r} is not a finite weight of at least 0.")
        if isinstance(element_spec, tuple) and len(element_spec) == 3 and element_spec[2] is None:
            element_spec = element_spec[:2]  # without weights
        if not isinstance(element_spec, tuple) or len(element_spec) != 2:
            has_weights = isinstance(element_spec, tuple) and len(element_spec) == 3
            raise SpecError(
                "class_weight becomes the sample weights of batches (x, y), but these are "
                + ("(x, y, sample_weight): they have weights. Multiply them in a map()." if has_weights else "x alone.")
            )
        labels = element_spec[1]
        if (
            not isinstance(labels, ArraySpec)
            or len(labels.shape) not in (1, 2)
            or labels.shape[1:] in ((None,), (0,))  # a label for each part of a sequence, as many as it has
            or labels.dtype.kind not in "biuf"
        ):
            raise SpecError(
                f"class_weight needs one output whose y is labels (n,) or (n, 1), or one-hot (n, classes), but y is "
                f"{labels}. Give sample weights as a third part of the element, in a map()."
            )
        order = sorted(weights)
        self._labels = np.array(order, np.int64)
        self._weights = np.array([weights[label] for label in order], np.float32)

    def of(self, y: npt.NDArray[Any], place: str = "a batch") -> npt.NDArray[np.float32]:
        """Returns the weights `(n,)`, float32, of a batch of labels.

        Args:
            y: The labels, see above.
            place: Names the batch in messages.

        Raises:
            SpecError: An element has no class, or several.
        """
        labels = y[:, 0] if y.shape[1:] == (1,) else y
        if labels.ndim == 2:
            rows, labels = labels, labels.argmax(axis=1)
            # As many nonzeros as rows, and a 1 in each row: each row is one-hot.
            is_hot = rows[np.arange(len(rows)), labels] == 1
            if not is_hot.all() or np.count_nonzero(rows) != len(rows):
                self._refuse(rows, is_hot & (np.count_nonzero(rows, axis=1) == 1), place, "not one-hot")
        elif labels.dtype.kind == "f":
            numbers = labels.astype(np.float64)
            labels = np.rint(numbers)
            is_whole = (numbers == labels) & (np.abs(numbers) < _LABEL_LIMIT)
            if not is_whole.all():
                self._refuse(numbers, is_whole, place, "no class")
        elif labels.dtype == np.uint64 and not (is_label := labels < _LABEL_LIMIT).all():
            self._refuse(labels, is_label, place, "no class")
        labels = labels.astype(np.int64, copy=False)
        places = np.minimum(np.searchsorted(self._labels, labels), len(self._labels) - 1)
        return np.where(self._labels[places] == labels, self._weights[places], np.float32(1))

    @staticmethod
    def _refuse(y: npt.NDArray[Any], is_class: npt.NDArray[np.bool_], place: str, what: str) -> NoReturn:
        row = int(np.flatnonzero(~is_class)[0])
        raise SpecError(
            f"class_weight needs one class for each element, as an integer or one-hot, but element {row} of {place} "
            f"has y = {y[row].tolist()!s:.80}, which is {what}. Leave class_weight= out, and give sample weights as "
            "a third part of the element: map(lambda e: (*e, weight_of(e[1])))."
        )


_LABEL_LIMIT: Final = 1 << 63
_BALANCED: Final = (
    " Count the labels for it: counts = np.bincount(labels), then {label: counts.sum() / (len(counts) * count) for "
    "label, count in enumerate(counts)}."
)
