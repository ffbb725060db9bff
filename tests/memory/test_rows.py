"""Places that have shapes and no memory are as those that have memory, for a plan that only says what goes where."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock as ps
from penstock.base._spec import Spec
from penstock.memory._rows import Rows, distinct

SPEC = Spec.of(
    {
        "short": ps.ArraySpec((None, 4, 3), "float32", (6, 4, 3)),
        "scalars": ps.ArraySpec((6, 4), "int64"),
        "empty": ps.ArraySpec((6, 4, 0), "uint8"),
        "records": ps.ArraySpec((6, 4), [("a", "int8"), ("b", "float64")]),
        "text": ps.ArraySpec((6, 4), "U7"),
    }
)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("inner", [None, [3, 1, 3]], ids=["all", "some"])
def test_imagined_places_are_those_of_real_ones_without_memory(count, inner):
    boxes = Rows.allocate(SPEC, count), Rows.imagined(SPEC, count)
    bases = [array.base for array in boxes[1].arrays]
    some = slice(0, count) if inner is None else np.arange(count)[::-1].copy()
    places = None if inner is None else np.array(inner if count else [], np.int64)
    for steps in (
        lambda box: box,
        lambda box: box.take(some),
        lambda box: box.take(some).unstacked(6, places),
        lambda box: box.unstacked(6).take(slice(0, 6 * count)).unstacked(4),
    ):
        real, imagined = map(steps, boxes)
        assert [array.shape for array in imagined.arrays] == [array.shape for array in real.arrays]
        assert imagined.row_numbers() == real.row_numbers()
        assert all(array.base is base for array, base in zip(imagined.arrays, bases, strict=True))
        (last,) = imagined.leaves(4, 5).arrays
        assert last.base is bases[4]


def test_imagined_places_know_how_much_of_a_batch_is_used():
    box = Rows.imagined(SPEC, 3)
    box.take(np.array([2, 0])).set_filled(np.array([6, 6]))
    assert [extent is None for extent in box.extents] == [False, True, True, True, True]
    assert box.extents[0].tolist() == [6, 0, 6]


@given(st.lists(st.integers(-3, 9)))
def test_distinct_numbers_are_those_of_a_set(numbers):
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
