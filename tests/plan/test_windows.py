import math

import numpy as np
import pytest

import penstock as ps


def lists(ds):
    return [x.tolist() for x in ds]


def test_windows_are_neighbours():
    assert lists(ps.range(5).windows(3)) == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_shift_is_from_window_to_window_and_stride_within_one():
    assert lists(ps.range(10).windows(3, shift=4)) == [[0, 1, 2], [4, 5, 6]]
    assert lists(ps.range(8).windows(3, stride=2, shift=2)) == [[0, 2, 4], [2, 4, 6]]


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (2, 0), (3, 1), (4, 2)])
def test_windows_that_do_not_fit_are_left_out(count, expected):
    assert len(ps.range(count).windows(3)) == expected


def test_no_window_crosses_a_group():
    ds = ps.range(9).windows(2, groups=["a"] * 3 + ["b"] + ["a"] * 2 + ["c"] * 3)
    assert lists(ds) == [[0, 1], [1, 2], [4, 5], [6, 7], [7, 8]]
    assert lists(ds.batch(5))[0] == lists(ds)
    assert ds[3].tolist() == [6, 7]


def test_shift_starts_anew_in_each_group():
    assert lists(ps.range(9).windows(2, shift=2, groups=[0] * 5 + [1] * 4)) == [[0, 1], [2, 3], [5, 6], [7, 8]]


@pytest.mark.parametrize(
    "labels", [[np.nan, np.nan, 1.0, 1.0], np.array(["NaT", "NaT", "2026-01-01", "2026-01-01"], "M8[D]")]
)
def test_labels_that_are_equal_to_nothing_are_refused(labels):
    for use in (
        lambda: ps.range(4).windows(2, groups=labels),
        lambda: ps.range(4).split(0.5, 0.5, groups=labels),
        lambda: ps.range(4).split(0.5, 0.5, stratify=labels),
    ):
        with pytest.raises(
            ps.ArgumentError, match=r"=\.\.\.\) has the label (nan|NaT) for element 0, and 2 such in all"
        ):
            use()


def test_groups_of_a_stream_are_refused_for_that():
    with pytest.raises(ps.ArgumentTypeError, match=r"windows\(groups=\) needs random access, but filter\(bool\)"):
        ps.range(4).filter(bool).windows(2, groups=[0, 0, 1, 1])


def test_groups_too_short_for_a_window_give_none():
    assert lists(ps.range(4).windows(3, groups=[0, 1, 2, 3])) == []


def test_a_label_that_comes_back_is_another_group():
    assert lists(ps.range(5).windows(2, groups=[0, 0, 1, 0, 0])) == [[0, 1], [3, 4]]


def test_windows_of_trees_stack_each_leaf():
    ds = ps.from_arrays({"x": np.arange(10).reshape(5, 2), "t": np.arange(5)}).windows(2)
    assert ds.element_spec == {"x": ps.ArraySpec((2, 2), "int64"), "t": ps.ArraySpec((2,), "int64")}
    assert ds[1]["x"].tolist() == [[2, 3], [4, 5]]


def test_windows_of_windows():
    assert ps.range(5).windows(3).windows(2)[1].tolist() == [[1, 2, 3], [2, 3, 4]]


def test_windows_of_what_is_shuffled_are_neighbours_in_that_order():
    order = [int(x) for x in ps.range(6).shuffle(2)]
    assert lists(ps.range(6).shuffle(2).windows(2)) == [order[i : i + 2] for i in range(5)]


def test_windows_of_an_endless_dataset_are_endless():
    ds = ps.range(3).repeat().windows(2)
    assert ds.length == math.inf
    assert ds[2].tolist() == [2, 0]


def test_elements_without_data_can_be_stacked():
    assert ps.from_arrays(np.zeros((4, 3, 0))).windows(2).batch(2)[0].shape == (2, 2, 3, 0)


def test_labels_for_another_number_of_elements_are_refused():
    with pytest.raises(ps.ArgumentError, match=r"a value for each element, shape \(5,\), got \(4,\)"):
        ps.range(5).windows(2, groups=[0, 0, 1, 1])
