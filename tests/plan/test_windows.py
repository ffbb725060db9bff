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
    assert lists(ds) == [[0, 1], [1, 2], [2, 4], [4, 5], [6, 7], [7, 8]]
    assert lists(ds.batch(6))[0] == lists(ds)
    assert ds[4].tolist() == [6, 7]


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


def test_a_label_that_comes_back_is_the_same_group():
    assert lists(ps.range(5).windows(2, groups=[0, 0, 1, 0, 0])) == [[0, 1], [1, 3], [3, 4]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", ["int64", "U1", object, "M8[D]"])
def test_windows_by_group_are_those_of_the_elements_sorted_by_group(dtype, seed):
    labels = np.random.default_rng(seed).integers(0, 4, 30)
    order = np.argsort(labels, kind="stable")
    of = {int(x[0]): x.tolist() for x in ps.from_arrays(order).windows(3, shift=2, stride=2, groups=labels[order])}
    ds = ps.range(30).windows(
        3, shift=2, stride=2, groups=labels.astype(str if dtype is object else dtype).astype(dtype)
    )
    assert len(of) == len(ds) > 0
    assert sorted(lists(ds)) == sorted(of.values())
    firsts = [labels[x[0]] for x in lists(ds)]
    appearance = [label for label in dict.fromkeys(labels.tolist()) if label in firsts]
    assert list(dict.fromkeys(firsts)) == appearance  # by group, in the order of their first elements
    with ds.shuffle(1).batch(2).loader("threads") as loader:
        assert sorted(x.tolist() for batch in loader for x in batch) == sorted(of.values())


def test_rows_of_groups_in_turn_have_windows_at_once_by_index():
    ds = ps.range(10**6).windows(4, groups=np.arange(10**6) % 3)
    assert ds[0].tolist() == [0, 3, 6, 9]
    assert ds[len(ds) - 1].tolist() == [999_989, 999_992, 999_995, 999_998]
    assert str(ds).splitlines()[1].strip().startswith("range(1000000)")  # the order is no step of its own


def test_windows_of_groups_in_turn_know_their_order_in_a_checkpoint():
    first, second = (ps.range(4).windows(2, groups=groups).loader("inline") for groups in ([0, 1, 0, 1], [0, 1, 1, 0]))
    with first, second, pytest.raises(ps.StateError, match="windows"):
        second.set_state(first.get_state())


def test_parts_of_windows_of_groups_in_turn_share_nothing():
    ds = ps.range(40).windows(3, groups=np.arange(40) % 2)
    train, val = ds.split(0.5, 0.5)
    assert not {int(x) for w in train for x in w} & {int(x) for w in val for x in w}
    nested = ps.range(40).windows(2).windows(2, groups=np.arange(39) % 2)  # inner windows share data across groups
    with pytest.raises(ps.ArgumentError, match="overlapping windows would make parts that share data"):
        nested.split(0.5, 0.5)


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
