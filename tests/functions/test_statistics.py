"""`statistics`: those of NumPy over all elements, on any executor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.functions._statistics import merged

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")

EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
RNG = np.random.default_rng(0)
X = (RNG.normal(1e6, 1, (700, 2, 3))).astype(np.float64)
Y = RNG.integers(0, 200, 700).astype(np.uint8)


def want(values: Any, axes: Any = None) -> list[Any]:
    wide = values.astype(np.longdouble)
    return [wide.mean(axis=axes), wide.std(axis=axes), values.min(axis=axes), values.max(axis=axes)]


def assert_are(found: ps.Statistics, values: Any, axes: Any = None) -> None:
    for one, other in zip(found[1:], want(values, axes), strict=True):
        np.testing.assert_allclose(one, other.astype(np.float64), rtol=1e-9)
    assert found.count == values.size // max(1, np.size(found.mean))
    assert np.asarray(found.min).dtype == np.asarray(found.max).dtype == values.dtype


@pytest.mark.parametrize("executor", EXECUTORS)
def test_statistics_are_those_of_numpy(executor: str) -> None:
    ds = ps.from_arrays({"x": X, "y": Y}).shuffle(1)
    for made in (ds, ds.batch(64), ds.filter(lambda e: True), ds.map(lambda e: e).batch(64)):
        found = ps.statistics(made, executor=executor)
        assert_are(found["x"], X)
        assert_are(found["y"], Y)
    found = ps.statistics(ds, axis=-1, executor=executor)
    assert_are(found["x"], X, (0, 1))
    assert_are(found["y"], Y)
    assert found["x"].mean.shape == (3,)
    assert_are(ps.statistics(ds.select("x"), axis=(0, 1), executor=executor)["x"], X, 0)
    assert_are(ps.statistics(ds.batch(70).select("x"), axis=1, executor=executor)["x"], X, (0, 2))


def test_statistics_are_the_same_to_the_bit_for_any_workers() -> None:
    ds = ps.from_arrays(X.astype(np.float32)).map(lambda x: x / 3)
    first, *others = (
        ps.statistics(ds, axis=-1, executor=name, **options)
        for name, options in (("inline", {}), ("threads", {"workers": 1}), ("threads", {"workers": 3}))
    )
    for other in others:
        for one, two in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_ragged_elements_count_by_their_values() -> None:
    ds = ps.range(50).map(lambda i: np.arange(i % 5, dtype=float), element_spec=ps.ArraySpec((None,), "f8"))
    assert_are(ps.statistics(ds, executor="inline"), np.concatenate(list(ds)))
    spec = ps.ArraySpec((None, 3), "f8")
    rows = ps.range(50).map(lambda i: np.ones((i % 5, 3)) * [0, 1, i], element_spec=spec)
    assert_are(ps.statistics(rows, axis=1, executor="inline"), np.concatenate(list(rows)), 0)


def test_values_that_are_no_numbers_stay_so() -> None:
    found = ps.statistics(ps.from_arrays(np.array([1.0, np.nan, 3.0])))
    assert found.count == 3
    assert np.isnan(found[1:]).all()
    found = ps.statistics(ps.from_arrays(np.array([1.0, np.inf])))
    assert (found.mean, found.max, found.min) == (np.inf, np.inf, 1.0)
    assert np.isnan(found.deviation)


def test_merging_loses_no_digits_where_sums_of_squares_would() -> None:
    values = np.array([1e9, 1e9 + 1, 1e9 + 2])
    state: Any = []
    for value in values:
        state = merged(state, [(1, value, 0.0, value, value)])
    assert state[0][2] == pytest.approx(2.0, abs=1e-12)
    assert np.subtract((values**2).sum(), values.sum() ** 2 / 3) != pytest.approx(2.0, abs=1)


def test_statistics_are_kept_and_read_again(tmp_path: Path) -> None:
    told: list[int] = []
    ds = ps.from_arrays((X, Y))
    runs = [
        ps.statistics(ds, axis=-1, path=tmp_path / "s", progress=lambda *_: told.append(1), executor="inline")
        for _ in range(2)
    ]
    assert len(told) == 1
    for one, other in zip(*runs, strict=True):
        assert all(map(np.array_equal, one, other))
        assert [np.asarray(each).dtype for each in one] == [np.asarray(each).dtype for each in other]
    ps.statistics(ds, path=tmp_path / "s", progress=lambda *_: told.append(1), executor="inline")
    assert len(told) == 2


@pytest.mark.parametrize(
    ("ds", "options", "error", "message"),
    [
        (ps.from_arrays(np.array(["a", "b"])), {}, ps.SpecError, r"are of numbers, but element is \(\) <U1"),
        (
            ps.from_arrays((X, Y)),
            {"axis": 2},
            ps.ArgumentError,
            r"axis=2\): element\[0\] is .*: axis 2 is out of bounds",
        ),
        (ps.from_arrays(X).batch(64), {"axis": 0}, ps.ArgumentError, r"axis=0\): element is \(None, 2, 3\)"),
        (
            ps.from_arrays(X),
            {"axis": "x"},
            ps.ArgumentTypeError,
            r"axis='x'\): element is .* cannot be interpreted as an int",
        ),
        (ps.range(0), {}, ps.ArgumentError, r"there is no value of which"),
        (ps.from_arrays(np.zeros((3, 0))), {}, ps.ArgumentError, r"there is no value of which"),
        (X, {}, ps.ArgumentTypeError, r"statistics\(\) takes a Dataset, and got an? .*array"),
        (ps.range(3).repeat(), {}, ps.ArgumentError, r"endless"),
    ],
)
def test_what_has_no_statistics_is_refused(ds: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ps.statistics(ds, **options)
