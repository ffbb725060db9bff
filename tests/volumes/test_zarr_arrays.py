import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

zarr = pytest.importorskip("zarr")


def saved(path, array, chunks):
    stored = zarr.create_array(store=str(path), shape=array.shape, chunks=chunks, dtype=array.dtype)
    stored[...] = array
    return zarr.open_array(str(path), mode="r")


class TestZarr(SourceTests):
    @pytest.fixture(params=[(3, 2, 3), (1, 4, 3)], ids=str)
    def expected(self):
        return np.arange(132, dtype="f4").reshape(11, 4, 3)

    @pytest.fixture
    def source(self, request, expected, tmp_path):
        chunks = request.node.callspec.params["expected"]
        return ps.from_arrays(saved(tmp_path / "ds.zarr", expected, chunks))._node.data


@pytest.mark.parametrize("version", [2, 3])
def test_a_chunk_that_is_larger_than_the_limit_is_refused_before_it_is_decoded(tmp_path, version):
    made = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(10, 4), dtype="f8", chunks=(4 << 20, 4), zarr_format=version
    )
    ds = ps.from_arrays(made)
    text = r"128 MiB of it is what sources keep.* or chunks \(chunks=\.\.\.\).*keeps most is .*a\.zarr"
    with pytest.raises(ps.MemoryLimitError, match=text):
        ds.batch(2).loader("inline", memory_limit=100 << 20)
    with ds.batch(2).loader("inline", memory_limit=200 << 20) as loader:
        assert loader.projected_nbytes >= 128 << 20


def test_array_is_read_in_the_loader(tmp_path):
    array = np.arange(40).reshape(20, 2)
    ds = ps.from_arrays({"x": saved(tmp_path / "ds.zarr", array, (4, 2)), "y": np.arange(20)})
    with ds.shuffle(1).batch(6).loader(executor="threads", workers=2) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["x"], array[batch["y"]])


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c16", ">M8[s]"])
@pytest.mark.parametrize("version", [2, 3])
def test_array_in_another_byte_order_is_read_through_what_made_it(tmp_path, dtype, version):
    values = np.arange(12).reshape(6, 2).astype(dtype)
    made = zarr.create_array(str(tmp_path / "ds.zarr"), data=values, chunks=(4, 1), zarr_format=version)
    for array in (made, zarr.open_array(str(tmp_path / "ds.zarr"), mode="r")):
        ds = ps.from_arrays(array)
        np.testing.assert_array_equal(ds.batch(6)[0], values)
        assert ds[5].dtype == ds.element_spec.dtype


def test_damaged_chunk_is_told_with_its_rows(tmp_path):
    ds = ps.from_arrays(saved(tmp_path / "ds.zarr", np.arange(40.0).reshape(20, 2), (4, 2)))
    for chunk in (tmp_path / "ds.zarr" / "c" / "2").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"\xff" * chunk.stat().st_size)
    assert ds[0].tolist() == [0, 1]
    with pytest.raises(ps.SourceError, match=r"ds\.zarr\[9\]: "):
        ds[9]
    with pytest.raises(ps.SourceError, match=r"ds\.zarr\[8\] and 2 more rows: "):
        list(ds[8:11].batch(3))


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_array_is_found_from_another_directory(tmp_path, monkeypatch, version, executor):
    monkeypatch.chdir(tmp_path)
    array = zarr.open_group("all.zarr", mode="w", zarr_format=version).create_array("a/x", shape=(6,), dtype="i8")
    array[...] = np.arange(6)
    ds = ps.from_arrays(array)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where Zarr would find no chunk, and give zeros
    with ds.batch(4).loader(executor=executor, workers=1) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(6))


def test_array_that_is_gone_or_shorter_is_named(tmp_path):
    ds = ps.from_arrays(saved(tmp_path / "ds.zarr", np.arange(10), (4,)))
    shutil.rmtree(tmp_path / "ds.zarr")
    with pytest.raises(ps.SourceError, match=r"ds\.zarr cannot be opened again: .* Put it back\.$"):
        ds[0]
    saved(tmp_path / "ds.zarr", np.arange(7), (4,))
    with pytest.raises(ps.SourceError, match=r"has 7 rows now; it had 10 when .* Make the dataset again\.$"):
        ds[0]


def test_array_that_is_gone_after_it_was_read_is_not_read_as_zeros(tmp_path):
    ds = ps.from_arrays(saved(tmp_path / "ds.zarr", np.arange(10), (4,)))
    assert list(ds) == list(range(10))
    zarr.open_array(tmp_path / "ds.zarr").resize((20,))
    assert list(ds) == list(range(10))
    zarr.open_array(tmp_path / "ds.zarr").resize((7,))
    with pytest.raises(ps.SourceError, match=r"has 7 rows now; it had 10 when"):
        ds[0]
    shutil.rmtree(tmp_path / "ds.zarr")
    with pytest.raises(ps.SourceError, match=r"ds\.zarr cannot be opened again: "):
        ds[0]


@pytest.mark.parametrize("fill", [0, np.nan, 7.5])
def test_array_that_is_gone_from_another_store_is_not_read_as_its_fill_value(fill):
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store=store, shape=(10, 2), chunks=(4, 2), dtype="f8", fill_value=fill)
    array[:5] = np.arange(1, 11).reshape(5, 2)
    ds = ps.from_arrays(zarr.open_array(store, mode="r+"))
    np.testing.assert_array_equal(ds.batch(10)[0], array[...])  # no chunk for the last rows, and that is right
    source, out = ds._node.data.open(), np.empty((2, 2))
    source.read_into(np.array([1, 3]), out)
    np.testing.assert_array_equal(out, [[3, 4], [7, 8]])
    store._store_dict.clear()
    with pytest.raises(ps.SourceError, match=r"cannot be opened again: .* Put it back\.$"):
        source.read_into(np.array([1, 3]), out)


class UnableStore(zarr.storage.MemoryStore):
    """Raises no `OSError`, as stores over HTTP do not."""

    is_able = True

    async def get(self, key, prototype, byte_range=None):
        if not self.is_able:
            raise UnableError("503")
        return await super().get(key, prototype, byte_range)


class UnableError(Exception):
    pass


def test_what_a_store_raises_names_the_array_and_the_rows():
    store = UnableStore()
    zarr.create_array(store=store, shape=(10,), chunks=(4,), dtype="f8")[...] = 1
    ds = ps.from_arrays(zarr.open_array(store, mode="r+"))
    source = ds._node.data.open()
    store.is_able = False
    with pytest.raises(ps.SourceError, match=r"\[3\] and 1 more rows: UnableError: 503"):
        source.read_into(np.array([3, 4]), np.empty(2))
    with pytest.raises(ps.SourceError, match=r"cannot be opened again: 503\. Put it back\."):
        ds[3]


def test_array_that_was_made_anew_is_read_as_it_is_now(tmp_path):
    ds = ps.from_arrays(saved(tmp_path / "ds.zarr", np.arange(10), (4,)))
    assert ds[1] == 1
    shutil.rmtree(tmp_path / "ds.zarr")
    saved(tmp_path / "ds.zarr", np.arange(100, 110), (7,))
    assert list(ds) == list(range(100, 110))
    shutil.rmtree(tmp_path / "ds.zarr")
    saved(tmp_path / "ds.zarr", np.ones((10, 2)), (7, 2))
    with pytest.raises(ps.SourceError, match=r"A row of .*ds\.zarr is \(2,\) float64 now; it was \(\) int64 when"):
        ds[0]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_zip_file_is_found_from_another_directory(tmp_path, monkeypatch, executor):
    monkeypatch.chdir(tmp_path)
    with zarr.storage.ZipStore("all.zip", mode="w") as store:
        zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,))
    with zarr.storage.ZipStore("all.zip", mode="r") as store:
        ds = ps.from_arrays(zarr.open_group(store, mode="r")["x"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with ds.batch(4).loader(executor=executor) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(6))
    (tmp_path / "all.zip").write_bytes(b"PK\3\4 no more")
    with (
        pytest.raises(ps.SourceError, match=r"all\.zip/x cannot be opened again: File is not a zip file"),
        ds.batch(4).loader(executor=executor) as loader,
    ):
        next(iter(loader))


def test_zip_file_that_is_still_written_to_is_read_and_left_open(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "all.zip", mode="w") as store:
        ds = ps.from_arrays(zarr.create_array(store, name="x", data=np.arange(6), chunks=(2,)))
        with ds.batch(3).loader("inline") as loader:
            assert np.concatenate(list(loader)).tolist() == list(range(6))
        zarr.create_array(store, name="y", data=np.arange(6), chunks=(2,))
        assert list(ds) == list(range(6))


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_text_of_any_size_is_read_as_text(tmp_path, version):
    values = np.array([["a", "bcdé"], ["", "x" * 100], ["y", "z"]])
    array = zarr.create_array(str(tmp_path / "ds.zarr"), shape=(3, 2), chunks=(2, 2), dtype=str, zarr_format=version)
    array[...] = values
    ds = ps.from_arrays(zarr.open_array(str(tmp_path / "ds.zarr"), mode="r"))
    assert ds.element_spec == ps.ArraySpec((2,), "U")
    assert [row.tolist() for row in ds] == values.tolist()
    with ds.shuffle(0).batch(3).loader() as loader:
        assert sorted(next(iter(loader)).tolist()) == sorted(values.tolist())


def test_array_without_a_first_axis_is_refused(tmp_path):
    array = zarr.create_array(store=str(tmp_path / "ds.zarr"), shape=(), dtype="f4")
    with pytest.raises(ps.ArgumentTypeError, match=r"got the single value <Array .*first axis"):
        ps.from_arrays(array)


PICKLE = {"id": "pickle", "protocol": 5}


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("codecs", [([{"id": "vlen-utf8"}], PICKLE), ([{"id": "vlen-utf8"}, PICKLE], None)])
def test_chunks_that_are_pickles_are_refused(codecs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("a.zarr")
    filters, compressor = codecs
    about = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C"}
    Path("a.zarr/.zarray").write_text(json.dumps({**about, "filters": filters, "compressor": compressor}))
    Path("a.zarr/0").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        ps.SourceError, match=r"a\.zarr/ has chunks that are pickles, .* run whatever code .*write it again as num"
    ):
        ps.from_arrays(zarr.open_array("a.zarr", mode="r"))
    assert os.listdir() == ["a.zarr"]
