import shutil

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

zarr = pytest.importorskip("zarr")

X = np.arange(66, dtype="f4").reshape(11, 6)


@pytest.fixture(params=[2, 3])
def store(request, tmp_path):
    group = zarr.open_group(tmp_path / "pairs.zarr", mode="w", zarr_format=request.param)
    group.create_array("x", data=X, chunks=(4, 3))
    group.create_array("labels/y", data=np.arange(11))
    return tmp_path / "pairs.zarr"


class TestZarrStore(SourceTests):
    @pytest.fixture
    def source(self, store):
        return ps.from_zarr(store, "x")._node.data

    @pytest.fixture
    def expected(self):
        return X


def test_elements_are_rows_of_all_arrays(store):
    ds = ps.from_zarr(store)
    assert ds.element_spec == {"labels/y": ps.ArraySpec((), "int64"), "x": ps.ArraySpec((6,), "f4")}
    with ds.shuffle(1).batch(4).loader("threads") as loader:
        for batch in loader:
            assert np.array_equal(batch["x"], X[batch["labels/y"]])
    assert np.array_equal(ps.from_zarr(str(store), ["x"])[3]["x"], X[3])
    assert np.array_equal(ps.from_zarr(store / "x")[3], X[3])
    assert ps.from_zarr(zarr.open_group(store, mode="r"), "labels/y")[3] == 3
    assert np.array_equal(ps.from_zarr(store, "x").patches((4, 3))[3], X[4:8, 3:])


def test_a_zip_and_a_url_are_stores_too(store, tmp_path):
    shutil.make_archive(str(tmp_path / "pairs"), "zip", store)
    assert np.array_equal(ps.from_zarr(tmp_path / "pairs.zip", "x")[3], X[3])
    pytest.importorskip("fsspec").filesystem("memory").put(f"{store}/", f"{tmp_path}/pairs.zarr", recursive=True)
    ds = ps.from_zarr(f"memory:/{tmp_path}/pairs.zarr")
    assert np.array_equal(ds[3]["x"], X[3])


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        (
            "z",
            ps.ArgumentError,
            r"pairs\.zarr has no array 'z'; it has \['labels/y', 'short', 'single', 'x'\]",
        ),
        ("labels", ps.ArgumentError, r"has no array 'labels'; it has \['labels/y'"),
        ([3], ps.ArgumentTypeError, r"from_zarr\(names=\) has the paths of arrays in the store, as text, got 3"),
        (
            ["x", "short"],
            ps.ArgumentError,
            r"lengths must be equal, but they are \['x'\]: 11 elements, \['short'\]: 2",
        ),
        ("single", ps.ArgumentTypeError, r"from_arrays\(\) got the single value"),
    ],
)
def test_names_that_do_not_fit_are_refused(store, names, error, text):
    group = zarr.open_group(store)
    group.create_array("short", data=np.arange(2))
    group.create_array("single", data=np.array(2))
    with pytest.raises(error, match=text):
        ps.from_zarr(store, names)


@pytest.mark.parametrize("version", [2, 3])
def test_numbers_that_xarray_packed_are_said_once(tmp_path, version, caplog):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    fill = {"fill_value": -1} if version == 2 else {}
    names = {"_ARRAY_DIMENSIONS": ["time"]} if version == 2 else {"_FillValue": -1}
    group.create_array("t", data=np.arange(3, dtype="i2"), **fill).attrs.update(names | {"scale_factor": 0.1})
    nan = {"_ARRAY_DIMENSIONS": ["time"]} if version == 2 else {"_FillValue": "AAAAAAAA+H8="}
    group.create_array("f", data=np.ones(3), fill_value=np.nan).attrs.update(nan)
    group.create_array("own", data=np.arange(3), fill_value=7)
    list(ps.from_zarr(tmp_path / "a.zarr"))
    ps.from_zarr(tmp_path / "a.zarr" / "t")
    ps.from_arrays(group["t"])
    ps.from_zarr(tmp_path / "a.zarr", ["f", "own"])
    calls = ["from_zarr() gives", "from_zarr() gives", "from_arrays() gives"]
    assert len(caplog.records) == 3
    for record, call in zip(caplog.records, calls, strict=True):
        assert record.getMessage().startswith(call)
        assert "a.zarr, with scale_factor, _FillValue. from_xarray(" in record.getMessage().replace("/t,", ",")


def test_arrays_that_are_not_named_are_not_opened(store):
    zarr.open_group(store).create_array("labels/bad", data=X)
    for path in (store / "labels" / "bad").glob("*arr*"):
        path.write_text("{")
    assert np.array_equal(ps.from_zarr(store, "x")[3], X[3])
    assert list(ps.from_zarr(store, ["/x", "labels/y/"])[3]) == ["/x", "labels/y/"]
    with pytest.raises(ps.SourceError, match=r"pairs\.zarr/labels/bad cannot be opened: "):
        ps.from_zarr(store, ["x", "labels/bad"])
    with pytest.raises(ps.SourceError, match=r"arrays of .*pairs\.zarr cannot be listed: .*One is damaged.*names=\["):
        ps.from_zarr(store)
    for name in ("gone", "", "/", "labels"):
        with pytest.raises(ps.SourceError, match=r"arrays of .*pairs\.zarr cannot be listed"):
            ps.from_zarr(store, name)


def test_what_is_no_store_is_named(store, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"no zip")
    for name in ("gone", "empty", "file"):
        with pytest.raises(ps.SourceError, match=rf"/{name} cannot be opened as a Zarr store: ."):
            ps.from_zarr(tmp_path / name)
    with pytest.raises(ps.ArgumentError, match=r"names=\.\.\.\) chooses arrays of a group, and .*/x is one array"):
        ps.from_zarr(store / "x", "y")
    with pytest.raises(ps.ArgumentTypeError, match=r"from_zarr\(\) needs a path, or an open group, got an int"):
        ps.from_zarr(5)
    zarr.open_group(tmp_path / "none.zarr", mode="w")
    with pytest.raises(ps.SourceError, match=r"none\.zarr has no arrays\."):
        ps.from_zarr(tmp_path / "none.zarr")
    for path in (store / "x").glob("*arr*"):
        path.write_text("{")
    with pytest.raises(ps.SourceError, match=r"pairs\.zarr"):
        ps.from_zarr(store)
