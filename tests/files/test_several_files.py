"""Several files of one kind, one after the other, with the number of each."""

import h5py
import numpy as np
import pytest

import penstock as ps

COUNTS = [3, 0, 2]


@pytest.fixture
def folder(tmp_path):
    for number, count in enumerate(COUNTS):
        rows = 10 * number + np.arange(count)
        np.save(tmp_path / f"x-{number}.npy", rows)
        np.save(tmp_path / f"y-{number}.npy", -rows)
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["y"] = rows, -rows
    return tmp_path


WANTED = [
    (10 * number + row, -10 * number - row, number) for number, count in enumerate(COUNTS) for row in range(count)
]


def found(ds):
    return [tuple(int(value) for value in element.values()) for element in ds]


@pytest.mark.parametrize("is_pattern", [True, False])
def test_npy_files_come_one_after_the_other(folder, is_pattern):
    paths = {
        name: str(folder / f"{name}-*.npy") if is_pattern else [folder / f"{name}-{n}.npy" for n in range(3)]
        for name in "xy"
    }
    ds = ps.from_npy(paths, file_key="file")
    assert found(ds) == WANTED
    assert ds.element_spec["file"] == ps.ArraySpec((), "int64")
    assert [int(x) for x in ps.from_npy(paths["x"])] == [x for x, *_ in WANTED]
    batches = ds.shuffle(seed=1).batch(2)
    with batches.loader("threads") as loader:
        assert [each["file"].tolist() for each in loader] == [each["file"].tolist() for each in batches]


def test_hdf5_files_come_one_after_the_other(folder):
    ds = ps.from_hdf5(str(folder / "*.h5"), file_key="file")
    assert found(ds) == WANTED
    assert [int(x) for x in ps.from_hdf5([str(folder / "2.h5"), str(folder / "0.h5")], "x")] == [20, 21, 0, 1, 2]
    windows = ds.windows(2, groups="file")
    assert [w["file"].tolist() for w in windows] == [[0, 0], [0, 0], [2, 2]]


def test_zarr_stores_come_one_after_the_other(tmp_path):
    zarr = pytest.importorskip("zarr")
    for number, count in enumerate(COUNTS[::2]):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        group.create_array("x", data=10 * number + np.arange(count))
    for paths in (str(tmp_path / "*.zarr"), [tmp_path / "0.zarr", tmp_path / "1.zarr"]):
        ds = ps.from_zarr(paths, ["x"], file_key="n")
        assert found(ds) == [(0, 0), (1, 0), (2, 0), (10, 1), (11, 1)]
    with pytest.raises(ps.SourceError, match="no folder and no file matches"):
        ps.from_zarr(str(tmp_path / "*.none"))


@pytest.mark.slow
def test_numbers_of_files_reach_worker_processes(folder, workers_stay):
    ds = ps.from_npy({"x": str(folder / "x-*.npy")}, file_key="file").map(lambda e: {**e, "x": e["x"] + 1}).batch(2)
    with ds.loader("processes", workers=2) as loader:
        assert np.concatenate([batch["file"] for batch in loader]).tolist() == [n for *_, n in WANTED]


def test_files_that_do_not_fit_are_refused(folder):
    with pytest.raises(ps.ArgumentError, match=r"as many of each, but found \[3, 1\]"):
        ps.from_npy({"x": str(folder / "x-*.npy"), "y": folder / "y-0.npy"})
    with pytest.raises(ps.ArgumentError, match=r"^from_npy\(file_key='file'\) adds a value to elements that are dicts"):
        ps.from_npy(str(folder / "x-*.npy"), file_key="file")
    with pytest.raises(ps.ArgumentError, match="or take another key"):
        ps.from_npy({"x": str(folder / "x-*.npy")}, file_key="x")
    with pytest.raises(ps.ArgumentError, match=r"from_hdf5\(\) got no files"):
        ps.from_hdf5([])
    with pytest.raises(ps.SourceError, match="none"):
        ps.from_npy(str(folder / "none-*.npy"))
