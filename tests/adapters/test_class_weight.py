"""Weights of classes as weights of samples; what Keras makes of them is tested in `test_keras.py`."""

import re
from fractions import Fraction

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


def test_weights_by_false_and_true():
    assert weights({False: 0.5, np.True_: 20.0}).of(np.array([True, False])).tolist() == [20.0, 0.5]
    assert weights({True: 20.0}).of(np.array([0, 1])).tolist() == [1.0, 20.0]


def test_labels_above_and_below_all_that_are_named_weigh_1():
    assert weights({3: 2.0}).of(np.array([-1, 3, 1_000_000, 0])).tolist() == [1.0, 2.0, 1.0, 1.0]


ONE_HOT = np.eye(3, dtype=np.float32)[[0, 2, 1, 2]]


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (np.where(np.arange(12).reshape(4, 3) == 11, 0, ONE_HOT), "element 3 of batch 5 of epoch 1 has y = [0.0, 0.0"),
        (np.where(np.arange(12).reshape(4, 3) == 4, 1, ONE_HOT), "element 1 of batch 5 of epoch 1 has y = [0.0, 1.0"),
        (ONE_HOT * 0.9 + 0.1 / 3, "element 0 of batch 5 of epoch 1 has y = [0.9"),
        (ONE_HOT * 2, "y = [2.0, 0.0, 0.0], which is not one-hot"),
        (-ONE_HOT, "y = [-1.0, -0.0, -0.0], which is not one-hot"),
        (np.zeros((4, 3), bool), "y = [False, False, False], which is not one-hot"),
        (np.array([[1, 0], [0, 1], [2, 3]]), "element 2 of batch 5 of epoch 1 has y = [2, 3], which is not one-hot"),
        (np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]]), "element 0 of batch 5 of epoch 1 has y = [1, 0, 1], which is"),
        (np.full((4, 3), np.nan), "y = [nan, nan, nan], which is not one-hot"),
        (np.array([0, 1, 0.25, 1], np.float32), "element 2 of batch 5 of epoch 1 has y = 0.25, which is no class"),
        (np.array([[0.9], [1]]), "element 0 of batch 5 of epoch 1 has y = 0.9, which is no class"),
        (np.array([1, np.nan]), "element 1 of batch 5 of epoch 1 has y = nan, which is no class"),
        (np.array([1, 2**64 - 1], np.uint64), "element 1 of batch 5 of epoch 1 has y = 18446744073709551615, which"),
        (np.array([[2**63]], np.uint64), "element 0 of batch 5 of epoch 1 has y = 9223372036854775808, which is no"),
        (np.array([2.0**63]), "element 0 of batch 5 of epoch 1 has y = 9.223372036854776e+18, which"),
        (np.array([np.inf, 1], np.float16), "element 0 of batch 5 of epoch 1 has y = inf, which is no class"),
    ],
)
def test_what_is_no_class_is_refused_where_it_comes(y, text):
    with pytest.raises(ps.SpecError, match="needs one class for each element, as an integer or one-hot") as caught:
        weights({0: 2.0}, ArraySpec(y.shape, y.dtype)).of(y, "batch 5 of epoch 1")
    assert text in str(caught.value)
    assert "a third part of the element: map(lambda e: (*e, weight_of(e[1])))" in str(caught.value)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_one_hot_of_any_dtype_and_any_layout_has_the_weight_of_its_class(dtype):
    y = np.eye(3)[[2, 0, 1, 2]].astype(dtype)
    for rows in (y, np.asfortranarray(y), np.ascontiguousarray(y[::-1])[::-1]):
        assert weights({2: 5.0, 0: 0.0}, ArraySpec((4, 3), dtype)).of(rows).tolist() == [5, 0, 1, 5]


def test_an_empty_batch_has_no_weights():
    assert weights({1: 2.0}).of(np.zeros(0, np.int64)).shape == (0,)
    assert weights({1: 2.0}, ArraySpec((4, 3), "float32")).of(np.zeros((0, 3), np.float32)).shape == (0,)


def test_true_and_false_are_labels_1_and_0():
    assert weights({1: 3.0}).of(np.array([True, False])).tolist() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ([1.0, 2.0], ps.ArgumentTypeError, "is not a dict with a weight for each label, such as {0: 1.0, 1: 20.0}"),
        ({}, ps.ArgumentTypeError, "is not a dict"),
        ({0: "2"}, ps.ArgumentTypeError, "class_weight[0]='2' is no number"),
        ({0: np.ones(2)}, ps.ArgumentTypeError, "is no number"),
        ({0: 1 + 2j}, ps.ArgumentTypeError, "class_weight[0]=(1+2j) is no number"),
        ({0: np.complex64(1)}, ps.ArgumentTypeError, "is no number"),
        ({1 << 63: 2.0}, ps.ArgumentError, "has the key 9223372036854775808, which is no label of 64 bits"),
        ({"cat": 2.0}, ps.ArgumentTypeError, "has the key 'cat', which is no integer label"),
        ({0: -1.0}, ps.ArgumentError, "class_weight[0]=-1.0 is not a finite weight"),
        ({0: float("nan")}, ps.ArgumentError, "class_weight[0]=nan is not a finite weight"),
    ],
)
def test_weights_that_mean_nothing_are_refused(table, error, message):
    with pytest.raises(error, match=re.escape(message)):
        weights(table)


def test_a_weight_is_any_real_number():
    table = {0: Fraction(1, 2), 1: np.float32(2), 2: np.uint8(3), 3: True}
    assert weights(table).of(np.arange(4)).tolist() == [0.5, 2.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (X, "but these are x alone"),
        ((X, X, X), "(x, y, sample_weight): they have weights. Multiply them in a map()"),
        ((X, {"a": X}), "needs one output whose y is labels (n,) or (n, 1), or one-hot (n, classes)"),
        ((X, ArraySpec((4, 8, 8), "int64")), "but y is (4, 8, 8) int64"),
        ((X, ArraySpec((4, None), "int64")), "but y is (4, None) int64"),
        ((X, ArraySpec((4, 8, 1), "int64")), "but y is (4, 8, 1) int64"),
        ((X, ArraySpec((4, 0), "int64")), "but y is (4, 0) int64"),
        ((X, ArraySpec((), "int64")), "but y is () int64"),
        ((X, ArraySpec((4,), "U")), "but y is (4,) text"),
    ],
)
def test_batches_without_labels_are_refused(spec, message):
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ClassWeights({0: 1.0}, spec)
