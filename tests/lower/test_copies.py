"""The copies of a plan, executed one after the other by NumPy, make the elements of the plan."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock as ps
from penstock import native
from penstock.lower._copies import CopyPlan, Joined
from penstock.lower._share import Share
from penstock.memory._rows import Rows
from penstock.sparse.sparse import SparseRows
from penstock.testing import assert_same
from tests.strategies import MOVES, Plan, plans


def whole(array: Any) -> np.ndarray:
    """All rows of an array of a plan."""
    if isinstance(array, Joined):
        return np.concatenate([whole(part) for part in array.parts])
    if isinstance(array, SparseRows):
        dense = np.empty(array.shape, array.dtype)
        native.copy([(array.opened(0), np.arange(len(dense)), dense, None, None)])
        return dense
    if isinstance(array, np.ndarray):
        return array
    return np.ndarray(array.shape, array.dtype, np.fromfile(array.path, np.uint8).data, array.offset, array.strides)


def executed(plan: CopyPlan, batch: list, extents: tuple[int, ...], shard: tuple[Any, ...]) -> Rows:
    """A batch, made by NumPy."""
    spec = Share(*shard).spec(plan.spec)
    box = Rows.allocate(spec, 1)
    for number, leaf, rows, places, first in batch:
        array = whole(plan.arrays[number])
        out = box.arrays[leaf].reshape(-1, *array.shape[1:])
        if places is None:
            places = np.arange(first, first + len(rows))
        out[places] = array[rows].astype(out.dtype)
    for extent, size in zip((each for each in box.extents if each is not None), extents, strict=True):
        extent[0] = size
    return box


def check(dataset: ps.Dataset, shard: tuple[Any, ...] = (0, 1), epoch: int = 0, block: int = 3) -> bool:
    node = dataset._node
    plan = CopyPlan.of(node, shard)
    if plan is None:
        return False
    length = min(int(min(node.length, 40)), 40)
    uneven = shard[2] if len(shard) > 2 else "refuse"
    with ps.Dataset(node).loader("inline", shard=shard[:2], uneven=uneven) as loader:
        if epoch:
            loader.set_state({**loader.get_state(), "epoch": epoch})
        expected = [element for element, _ in zip(loader, range(length), strict=False)]
    for first in range(0, length, block):
        batches, extents = plan.block(epoch, first, min(block, length - first))
        for index, (batch, used) in enumerate(zip(batches, extents, strict=True), first):
            box = executed(plan, batch, used, shard)
            structure = Share(*shard).spec(node.spec).structure
            assert_same(structure.unflatten(box.leaf_values(0)), expected[index])
    return True


@given(plans(verbs=MOVES), st.integers(1, 5))
def test_copies_of_any_plan_make_its_elements(plan: Plan, block: int) -> None:
    if len(plan):
        check(plan.dataset, block=block)


TABLE = np.arange(240, dtype=np.float32).reshape(60, 4)


@pytest.fixture
def film(tmp_path):
    np.save(tmp_path / "film.npy", TABLE)
    return ps.from_npy(tmp_path / "film.npy")


STEPS = {
    "pairs": lambda ds: ps.zip((ds[:-1], ds[1:])).shuffle(seed=1).batch(8),
    "windows": lambda ds: ds.windows(5, stride=2).shuffle(seed=2).batch(4, drop_remainder=True),
    "windows of a slice, cast": lambda ds: ds[3:50].windows(5, shift=3).batch(4).cast("float64"),
    "two windows": lambda ds: ps.zip((ds[:-1].windows(6), ds[1:].windows(6))).cast("int64").shuffle(1).batch(3),
    "windows of a shuffle": lambda ds: ds.shuffle(seed=3).windows(4).batch(2),
    "mix": lambda ds: ps.mix([ds, ds[::-1]], [1, 2]).batch(7),
    "interleave": lambda ds: ps.interleave([ds[:20], ds[20:], ds[::3]]).batch(9).repeat(2),
    "repeat": lambda ds: ds.shuffle(1).repeat().batch(16),
    "unbatch": lambda ds: ds.batch(8).unbatch().batch(5),
    "unbatch, cast before": lambda ds: ds.batch(8).cast("float64").unbatch().batch(5),
    "windows taken apart": lambda ds: ds.windows(3).shuffle(2).unbatch().batch(5),
    "concatenate": lambda ds: ps.concatenate([ds, ds]).shuffle(1, window=9).batch(8),
    "elements": lambda ds: ds,
    "a short batch anywhere": lambda ds: ds.batch(16).shuffle(seed=5),
    "several short batches": lambda ds: ps.concatenate(
        [ds.batch(16), ds[:7].batch(16), ds.windows(3).unbatch().batch(16)]
    ),
    "short batches of two sizes": lambda ds: ps.zip((ds[:22].batch(8), ds[:8].batch(3))),
    "batches of two sizes taken apart": lambda ds: ps.interleave([ds[:16].batch(8).unbatch(), ds]).batch(5),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("epoch", [0, 2])
def test_plans_that_move_bytes_are_copies(film, steps, epoch):
    for data in (film, ps.from_arrays(TABLE), ps.from_arrays(TABLE.T.copy().T), ps.from_arrays(TABLE[::-1, 1:])):
        assert check(steps(data), epoch=epoch)


def test_a_cast_beside_data_of_its_dtype_is_a_copy(film):
    ints = ps.from_arrays(TABLE.astype("int64"))
    assert check(ps.concatenate([film.cast("int64"), ints]).shuffle(1).batch(7))
    assert check(ps.interleave([ints, film.batch(8).cast("int64").unbatch()]).batch(7))
    assert check(ps.mix([film[2:].cast("int64").windows(3), ints.windows(3)], [1, 2]).batch(4))


@pytest.mark.parametrize("shard", [(0, 2), (1, 2), (2, 4)])
def test_a_shard_has_its_rows_alone(film, shard):
    assert check(ps.zip((film, film)).shuffle(seed=1).batch(8, drop_remainder=True), shard)
    assert check(film.windows(4).shuffle(seed=1).batch(8, drop_remainder=True), shard)
    assert check(film[:52].batch(8).shuffle(seed=1), shard)
    assert check(film.windows(4).shuffle(seed=1), shard)


@pytest.mark.parametrize("uneven", ["weights", "mask"])
@pytest.mark.parametrize("shard", [(0, 1), (0, 3), (2, 3), (4, 5)])
def test_a_share_of_uneven_batches_has_its_rows_and_their_marks(film, shard, uneven):
    for data in (film[:53], film[:60]):
        assert check(ps.zip((data, data)).shuffle(seed=1).batch(16), (*shard, uneven))
        assert check(data.windows(4).shuffle(seed=1).batch(8, drop_remainder=True), (*shard, uneven))
        assert check(data.batch(16).shuffle(seed=1), (*shard, uneven))


def test_rows_of_a_source_are_not_shared_out(film):
    """An array that is read whole cannot be cut by copies; workers cut it."""
    assert CopyPlan.of(film._node, (0, 2)) is None
    assert CopyPlan.of(film.batch(8).unbatch()._node, (0, 2)) is None


def test_windows_are_named_by_their_first_row(film):
    plan = CopyPlan.of(film.windows(16).shuffle(1).batch(4)._node, (0, 1))
    assert plan is not None
    assert [len(copy[2]) for copy in plan.block(0, 0, 1)[0][0]] == [4]


@pytest.mark.parametrize(
    "dataset",
    [
        ps.from_arrays(TABLE).map(lambda x: x).batch(4),
        ps.range(10).batch(2),
        ps.from_arrays(TABLE).filter(lambda x: True).batch(4),
        ps.from_arrays(TABLE).cast("int8").cast("float32").batch(4),
    ],
    ids=["map", "range", "filter", "two casts"],
)
def test_plans_that_do_more_are_not(dataset):
    assert CopyPlan.of(dataset._node, (0, 1)) is None
