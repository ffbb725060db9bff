"""`ds[array]`: elements by an array of positions or a mask, as NumPy has it; and folds, made of such parts."""

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import penstock as ps

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker cannot import it

VALUES = np.arange(10) * 11


def data() -> ps.Dataset:
    return ps.from_arrays(VALUES)


def ints(ds: ps.Dataset) -> list[int]:
    return [int(x) for x in ds]


INDICES = {
    "a list": [3, 1, 4, 1, 5],
    "bytes": np.array([9, 0], np.uint8),
    "from the end": np.array([-1, -10, 3], np.int8),
    "an empty list": [],
    "an empty array": np.array([], int),
    "a mask": VALUES > 40,
    "a list of bools": (VALUES > 40).tolist(),
    "a mask of none": np.zeros(10, bool),
    "backwards": np.arange(20)[::-2] % 10,
    "numbers of NumPy": [np.int64(2), np.uint8(7)],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_array_chooses_as_in_numpy(index: Any, executor: Any) -> None:
    chosen, expected = data()[index], VALUES[np.asarray(index, None if len(index) else int)]
    assert ints(chosen) == expected.tolist()
    assert (len(chosen), chosen.access) == (len(expected), "random")
    if len(expected):
        assert int(chosen[-1]) == expected[-1]
        with chosen.batch(3).loader(executor) as loader:
            assert np.concatenate(list(loader)).tolist() == expected.tolist()


def test_an_array_chooses_from_every_step() -> None:
    made = data().map(lambda x: x + 1).shuffle(seed=3, reshuffle=False)
    all_of_it = ints(made)
    assert ints(made[[4, 4, 0]]) == [all_of_it[4], all_of_it[4], all_of_it[0]]
    assert ints(made[[4, 4, 0]][1:][::-1]) == [all_of_it[0], all_of_it[4]]
    assert ints(data().repeat()[[25, 3]]) == [55, 33]
    assert [batch.tolist() for batch in data().batch(4)[[2, 0]]] == [[88, 99], [0, 11, 22, 33]]


def test_random_numbers_are_of_the_place_in_the_array() -> None:
    twice = ps.from_arrays(np.zeros(4)).map(lambda x: x)[[1, 1]].random_map(lambda x, rng: x + rng.random())
    one, two = (float(x) for x in twice)
    assert one != two


def test_columns_of_other_libraries_choose_by_position() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"label": [0, 1] * 5}, index=range(100, 110))
    assert ints(data()[frame["label"] == 1]) == VALUES[1::2].tolist()
    assert ints(data()[frame.sort_index(ascending=False)["label"].reset_index(drop=True)]) == [11, 0] * 5


def test_the_array_may_change_afterwards() -> None:
    index = np.array([1, 2])
    chosen = data()[index]
    index[:] = 9
    assert ints(chosen) == [11, 22]
    assert str(chosen).startswith("index(2 integers): 2 elements, () int64")


def test_states_tell_arrays_apart() -> None:
    with data()[[1, 2, 3, 4]].batch(2).loader("inline") as loader:
        next(iter(loader))
        state = loader.get_state()
    with data()[[1, 2, 3, 5]].batch(2).loader("inline") as other, pytest.raises(ps.StateError, match="index"):
        other.set_state(state)


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        ([3, 10], IndexError, r"Index 10, at place 1 of the array, is outside a dataset of 10 elements\."),
        ([-11], IndexError, r"Index -11, at place 0 of the array, is outside a dataset of 10 elements\."),
        (np.array([2**64 - 1], np.uint64), IndexError, r"Index 18446744073709551615, at place 0 of the array, is"),
        ([True, False], IndexError, r"A mask has an entry for each element\. This has 2, the dataset 10 elements\."),
        ([[1, 2]], TypeError, r"indexed by an array of one axis, and this has the shape \(1, 2\)\."),
        ([0.5], TypeError, r"indexed by an array of integers or bools, and a list of float64 is neither\."),
        (["a"], TypeError, r"indexed by an array of integers or bools, and a list of <U1 is neither\."),
        ((1, 2), TypeError, r"not by \(1, 2\), a tuple\. For some elements: an array or a list of integers\."),
        ({1}, TypeError, r"not by \{1\}, a set\."),
    ],
    ids=str,
)
def test_what_is_no_such_array_is_refused(index: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        data()[index]


def test_arrays_need_random_access_and_masks_a_length() -> None:
    stream = ps.from_generator(range, 4)
    with pytest.raises(TypeError, match=r"^\[\[1, 2\]\] needs random access"):
        stream[[1, 2]]
    with pytest.raises(IndexError, match=r"A mask has an entry for each element\. This has 1, the dataset endless\."):
        data().repeat()[[True]]


def test_split_of_an_array_with_twins_is_refused() -> None:
    with pytest.raises(ps.ArgumentError, match=r"has some of them twice .* ds\[numpy\.unique\(indices\)\]"):
        data()[[1, 1, 2]].split(0.5, 0.5)
    train, test = data()[[5, 1, 2, 0]].split(0.5, 0.5)
    assert (ints(train), ints(test)) == ([55, 11], [22, 0])


# Folds.


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"groups": np.arange(10) // 2}, {"stratify": np.arange(10) % 2}])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_each_element_is_validated_once_and_trained_with_in_all_other_folds(k: int, options: Any) -> None:
    folds = data().k_folds(k, **options)
    assert len(folds) == k
    assert sorted(x for _, test in folds for x in ints(test)) == VALUES.tolist()
    for train, test in folds:
        assert sorted(ints(train) + ints(test)) == VALUES.tolist()
        assert 10 // k - 1 <= len(test) <= 10 // k + 1
        assert [int(x) for batch in train.shuffle(1).batch(2) for x in batch] != ints(train)


def test_folds_of_windows_share_no_data() -> None:
    for train, test in ps.range(30).windows(4).k_folds(3):
        used = {int(x) for window in train for x in window}
        assert used.isdisjoint(int(x) for window in test for x in window)


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (1, {}, r"k_folds\(k=1\): it must be at least 2\."),
        (11, {}, r"k_folds\(11\) would leave 1 folds? without an element\. There are 10 elements: use a smaller k\."),
        (2**70, {}, r"would leave \d+ folds without an element\. There are 10 elements"),
        (3, {"groups": np.zeros(10)}, r"would leave 2 folds without an element\. The groups are too few or too uneven"),
    ],
)
def test_folds_without_elements_are_refused(k: int, options: Any, message: str) -> None:
    with pytest.raises(ps.ArgumentError, match=message):
        data().k_folds(k, **options)
