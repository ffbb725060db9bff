"""Batches of which a function moved the axis of elements: `batch_axis=` says where it is."""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_fits

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")


def features_first(batch: Any) -> Any:
    return {"x": batch["x"].T, "y": batch["y"]}


def rows(count: int = 24) -> ps.Dataset:
    return ps.from_arrays({"x": np.arange(10 * count).reshape(count, 10), "y": np.arange(count)}).shuffle(1)


AXES = {"x": 1, "y": 0}
PLANS = {
    "arrays": (rows().batch(8), 8),
    "a stream": (rows().filter(lambda e: True).batch(8, drop_remainder=True), 8),
}


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"uneven": "weights"}, {"uneven": "mask"}], ids=str)
@pytest.mark.parametrize("name", PLANS)
def test_a_share_is_that_of_the_batch_before_its_axis_was_moved(name: str, options: Any, executor: Any) -> None:
    plain = PLANS[name][0]
    moved = plain.map(features_first)
    for rank in range(2):
        wanted = plain.loader("inline", shard=(rank, 2), **options)
        with moved.loader(executor, shard=(rank, 2), batch_axis=AXES, **options) as loader, wanted:
            for batch, want in zip(loader, wanted, strict=True):
                assert_fits(batch, loader.element_spec)
                if "uneven" in options:
                    (batch, mark), (want, other) = batch, want
                    assert np.array_equal(mark, other)
                assert np.array_equal(batch["x"], want["x"].T)
                assert np.array_equal(batch["y"], want["y"])


def test_one_axis_holds_for_all_leaves() -> None:
    dataset = rows().batch(6).map(lambda batch: batch["x"].T)
    with dataset.loader("inline", shard=(1, 3), batch_axis=np.int64(1)) as loader:
        assert loader.element_spec == ps.ArraySpec((10, 2), "int64")
        assert [batch.shape for batch in loader] == [(10, 2)] * 4


def test_a_moved_axis_is_refused_as_far_as_sizes_tell() -> None:
    moved = rows().batch(8).map(lambda batch: batch["x"].T)
    for options in ({"shard": (0, 2)}, {"micro_batches": 5}, {"uneven": "mask"}):
        with pytest.raises(
            ps.ArgumentError, match=r"a batch of 8 elements is \(10, 8\) int64: .* batch_axis=1, or 0 if"
        ):
            moved.loader("inline", **options)
    moved.loader("inline").close()
    moved.loader("inline", shard=(0, 2), whole_batches=True).close()
    with moved.loader("inline", shard=(0, 2), batch_axis=0) as loader:  # it says that ten rows are meant
        assert next(iter(loader)).shape == (5, 8)
    with rows().batch(10).map(lambda batch: batch["x"].T).loader("inline", shard=(0, 2)) as loader:
        assert next(iter(loader)).shape == (5, 10)  # sizes do not tell


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (1, r"a batch\['y'\] is \(8,\) int64, which has no axis 1\. Axes count from 0"),
        (-1, "has no axis -1"),
        ("x", "has no axis x"),
        ({"x": 1}, "is a tree of another structure than the batch, which is"),
    ],
)
def test_axes_that_a_batch_does_not_have_are_refused(axes: Any, message: str) -> None:
    with pytest.raises(ps.ArgumentError, match=message):
        rows().batch(8).map(features_first).loader("inline", shard=(0, 2), batch_axis=axes)
