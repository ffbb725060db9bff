"""Weights of classes as weights of samples; what Keras makes of them is tested in `test_keras.py`."""

import re

import numpy as np
import pytest

import penstock as ps
from penstock import ArraySpec
from penstock.adapters._class_weight import ClassWeights

X = ArraySpec((4, 3), "float32")
LABELS = ArraySpec((4,), "int64")


def weights(table: dict[int, float], labels: ArraySpec = LABELS) -> ClassWeights:
    return ClassWeights(table, (X, labels))


@pytest.mark.parametrize(
    "y",
    [
        np.array([0, 7, 1, 7]),
        np.array([[0], [7], [1], [7]], np.uint8),
        np.array([0.0, 7.0, 1.0, 7.0], np.float32),
        np.eye(8, dtype=np.float32)[[0, 7, 1, 7]],
    ],
    ids=["integers", "a column", "floats", "one-hot"],
)
def test_labels_in_any_form_get_the_weight_of_their_class(y):
    found = weights({7: 20.0, 0: 0.5}).of(y)
    assert found.dtype == np.float32
    assert found.tolist() == [0.5, 20.0, 1.0, 20.0]


def test_labels_above_and_below_all_that_are_named_weigh_1():
    assert weights({3: 2.0}).of(np.array([-1, 3, 1_000_000, 0])).tolist() == [1.0, 2.0, 1.0, 1.0]


def test_true_and_false_are_labels_1_and_0():
    assert weights({1: 3.0}).of(np.array([True, False])).tolist() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ([1.0, 2.0], ps.ArgumentTypeError, "is not a dict with a weight for each label, such as {0: 1.0, 1: 20.0}"),
        ({}, ps.ArgumentTypeError, "is not a dict"),
        ({"cat": 2.0}, ps.ArgumentTypeError, "has the key 'cat', which is no integer label"),
        ({0: -1.0}, ps.ArgumentError, "class_weight[0]=-1.0 is not a finite weight"),
        ({0: float("nan")}, ps.ArgumentError, "class_weight[0]=nan is not a finite weight"),
    ],
)
def test_weights_that_mean_nothing_are_refused(table, error, message):
    with pytest.raises(error, match=re.escape(message)):
        weights(table)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (X, "but these are x alone"),
        ((X, X, X), "(x, y, sample_weight): they have weights. Multiply them in a map()"),
        ((X, {"a": X}), "needs one output whose y is labels (n,) or (n, 1), or one-hot (n, classes)"),
        ((X, ArraySpec((4, 8, 8), "int64")), "but y is (4, 8, 8) int64"),
        ((X, ArraySpec((4, None), "int64")), "but y is (4, None) int64"),
        ((X, ArraySpec((4,), "U")), "but y is (4,) text"),
    ],
)
def test_batches_without_labels_are_refused(spec, message):
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ClassWeights({0: 1.0}, spec)
