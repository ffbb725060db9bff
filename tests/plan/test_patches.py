import itertools
import os

import numpy as np
import pytest

import penstock as ps
from penstock.plan._patches import Patches
from penstock.verbs import _check

SHAPE = (10, 12, 9)
ARRAY = np.arange(np.prod(SHAPE), dtype="int32").reshape(SHAPE)
CHUNKS = (4, 5, 3)


def arrays_of(kind, folder, array=ARRAY, chunks=CHUNKS):
    """A dataset of the rows of an array that is kept in one of the ways."""
    if kind == "memory":
        return ps.from_arrays(array)
    if kind == "Fortran":
        return ps.from_arrays(np.asfortranarray(array))
    if kind == "npy":
        np.save(folder / "x.npy", array)
        return ps.from_npy(folder / "x.npy")
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        made = zarr.create_array(str(folder / "x.zarr"), shape=array.shape, dtype=array.dtype, chunks=chunks)
        made[...] = array
        return ps.from_arrays(zarr.open_array(str(folder / "x.zarr"), mode="r"))
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=chunks if kind == "chunks" else None)
    return ps.from_hdf5(folder / "x.h5", "x")


KINDS = ["memory", "Fortran", "npy", "hdf5", "chunks", "zarr"]
CASES = {
    "tiles": (((4, 5, 3),), {}, (4, 5, 3), (4, 5, 3)),
    "overlapping": (((4, 7),), {"stride": (3, 2)}, (4, 7, 9), (3, 2, 1)),
    "of each row": (((5, 4),), {"axes": (1, 2), "stride": 2}, (None, 5, 4), (1, 2, 2)),
    "last axis": ((2,), {"axes": -1}, (None, 12, 2), (1, 1, 2)),
    "gaps": (((2, 2, 2),), {"stride": 4}, (2, 2, 2), (4, 4, 4)),
}


def expected(sizes, strides, array=ARRAY):
    full = tuple(size or 1 for size in sizes)
    starts = itertools.product(
        *(range(0, n - size + 1, by) for n, size, by in zip(array.shape, full, strides, strict=True))
    )
    found = [array[tuple(slice(at, at + n) for at, n in zip(start, full, strict=True))] for start in starts]
    return np.stack(found) if sizes[0] else np.stack(found)[:, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_patches_are_the_parts_of_the_array_in_the_order_of_their_places(kind, case, executor, tmp_path):
    given, options, sizes, strides = CASES[case]
    ds, want = arrays_of(kind, tmp_path).patches(*given, **options), expected(sizes, strides)
    assert (len(ds), ds.element_spec) == (len(want), ps.ArraySpec(want.shape[1:], "int32"))
    assert np.array_equal(ds[len(want) // 2], want[len(want) // 2])
    with ds.batch(7).loader(executor) as loader:
        assert np.array_equal(np.concatenate([batch.copy() for batch in loader]), want)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "npy", "zarr"])
def test_worker_processes_cut_the_same(kind, tmp_path, workers_stay):
    ds = arrays_of(kind, tmp_path).patches((4, 5, 3))
    ds = ds if kind == "memory" else ds.shuffle(seed=1)
    with ds.batch(4).loader("processes", workers=1) as loader:
        found = np.concatenate([batch.copy() for batch in loader])
    assert np.array_equal(found, np.stack(list(ds)))


def test_arrays_side_by_side_are_cut_alike(tmp_path):
    labels = (ARRAY % 7).astype("uint8")
    ds = ps.zip({"x": arrays_of("npy", tmp_path), "y": ps.from_arrays(labels)}).patches((4, 4, 4), stride=3)
    assert ds.element_spec == {"x": ps.ArraySpec((4, 4, 4), "int32"), "y": ps.ArraySpec((4, 4, 4), "uint8")}
    for element in ds:
        assert np.array_equal(element["x"] % 7, element["y"])


def test_random_crops_are_some_of_all_and_others_in_each_epoch(tmp_path):
    ds = arrays_of("npy", tmp_path).patches((4, 4, 4), stride=1).shuffle(seed=1).take(8).batch(8)
    with ds.loader("threads") as loader:
        epochs = [{int(crop[0, 0, 0]) for crop in next(iter(loader))} for _ in range(2)]
    assert len(epochs[0]) == 8
    assert epochs[0] != epochs[1]


def test_tiles_share_nothing_and_overlapping_patches_are_not_split_at_random():
    ds = ps.from_arrays(ARRAY)
    train, val = ds.patches((5, 4, 3)).split(0.5, 0.5, seed=1)
    assert not set(np.concatenate(list(train)).ravel()) & set(np.concatenate(list(val)).ravel())
    with pytest.raises(ps.ArgumentError, match="patches"):
        ds.patches((5, 4, 3), stride=2).split(0.5, 0.5, seed=1)


def test_what_is_printed_is_what_was_written():
    assert "patches((4, 5, 3))" in repr(ps.from_arrays(ARRAY).patches((4, 5, 3)))
    text = repr(ps.from_arrays(ARRAY).patches((5, 4), axes=(1, 2), stride=2))
    assert "patches((5, 4), stride=2, axes=(1, 2))" in text


@pytest.mark.parametrize(
    ("given", "options", "error", "text"),
    [
        ((0,), {}, ps.ArgumentError, "at least 1 is possible"),
        (("a",), {}, ps.ArgumentTypeError, "is an integer or a tuple of them, got 'a'"),
        ((2.5,), {}, ps.ArgumentTypeError, "is an integer or a tuple of them"),
        (((2, 2, 2, 2),), {}, ps.ArgumentError, r"the array has 3 axes, \(10, 12, 9\)"),
        (((2, 2),), {"axes": (1, 1)}, ps.ArgumentError, "each is named once"),
        (((2, 2),), {"axes": (0, 3)}, ps.ArgumentError, "the array has 3 axes"),
        (((2, 2),), {"axes": (0, -4)}, ps.ArgumentError, "at least -3 is possible"),
        (((2, 2),), {"axes": 1}, ps.ArgumentError, "has 2 sizes, 2 strides and 1 axes"),
        (((2, 2),), {"stride": (1, 1, 1)}, ps.ArgumentError, "has 2 sizes, 3 strides and 2 axes"),
        (((11, 2),), {}, ps.ArgumentError, r"a patch of \(11, 2, 9\) is larger than the array, \(10, 12, 9\)"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(given, options, error, text):
    with pytest.raises(error, match=text):
        ps.from_arrays(ARRAY).patches(*given, **options)


def test_an_array_without_values_has_no_patches():
    with pytest.raises(ps.ArgumentError, match=r"the array has the shape \(3, 0\), and no value"):
        ps.from_arrays(np.empty((3, 0))).patches(2)


@pytest.mark.parametrize(
    "step",
    [lambda ds: ds.map(np.copy), lambda ds: ds[2:], lambda ds: ds.batch(2), lambda ds: ds.shuffle()],
    ids=["map", "slice", "batch", "shuffle"],
)
def test_another_step_before_is_refused(step):
    with pytest.raises(ps.ArgumentError, match=r"comes directly after from_npy\(\).*and not after"):
        step(ps.from_arrays(ARRAY)).patches((2, 2))


def test_parts_that_cannot_be_read_alone_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(ARRAY))
    with pytest.raises(ps.ArgumentError, match=r"cannot be read alone\. It takes arrays in memory, \.npy files in C"):
        ps.from_npy(tmp_path / "x.npy").patches((2, 2))


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_error_names_the_place_of_the_patch(executor, tmp_path):
    ds = arrays_of("npy", tmp_path).patches((5, 6, 9))
    os.truncate(tmp_path / "x.npy", 600)
    with (
        pytest.raises(ps.SourceError, match=r"x\.npy\[0, 0, 0\] cannot be read: .*shortened"),
        ds.loader(executor) as all,
    ):
        list(all)


def test_a_patch_that_would_leave_the_array_has_no_values(tmp_path):
    source = arrays_of("chunks", tmp_path).patches((4, 5, 3))._node.source.data
    with pytest.raises(ps.SourceError, match=r"the patch at \[0, 0, 7\] of .*x\.h5/x leaves the array\."):
        source.open().read_into(np.arange(6, 8), np.empty((2, 4, 5, 3), "int32"))
    assert not _other_results(arrays_of("chunks", tmp_path).shuffle(1, window="chunks"))


def _other_results(ds):
    """What `check` finds of sources alone."""
    found = {"nondeterministic": [], "differences": []}
    _check._call_functions(ds._node, found)
    return found["nondeterministic"]


def test_a_patch_that_begins_at_each_place_is_counted():
    node = Patches(None, (2, 3), (1, 2), (4, 8), "")
    assert node.grid == (3, 3)
    (need,) = node.demand(0, np.arange(9))
    assert need.indices.tolist() == [8 * i + 2 * j for i in range(3) for j in range(3)]
