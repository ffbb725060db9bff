import threading

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

xarray = pytest.importorskip("xarray")
pandas = pytest.importorskip("pandas")

COUNT = 11
VALUES = np.random.default_rng(0).normal(size=(3, COUNT, 4)).astype("f4")
GRID = xarray.Dataset(
    {"t": (("y", "time", "x"), VALUES), "n": ("time", np.arange(COUNT)), "area": ("y", [1.0, 2, 3])},
    {"time": np.arange("2020-01", "2020-12", dtype="M8[M]").astype("M8[ns]"), "lat": ("y", [5.0, 6, 7])},
)


def opened(kind, folder, **chunks):
    """The grid in memory, in a file, or of dask."""
    if kind == "memory":
        return GRID
    if kind == "dask":
        pytest.importorskip("dask")
        return GRID.chunk(chunks or {"time": 4, "x": 3})
    if kind == "zarr":
        pytest.importorskip("zarr")
        GRID.to_zarr(folder / "grid.zarr", encoding={"t": {"chunks": (3, 4, 2)}}, zarr_format=2)
        return xarray.open_zarr(folder / "grid.zarr", chunks=None)
    pytest.importorskip("scipy")
    GRID.to_netcdf(folder / "grid.nc", engine="scipy")
    return xarray.open_dataset(folder / "grid.nc", engine="scipy")


KINDS = ["memory", "dask", "zarr", "file"]


class TestVariable(SourceTests):
    @pytest.fixture(params=["zarr", "file"])
    def kind(self, request):
        return request.param

    @pytest.fixture
    def source(self, kind, tmp_path):
        return ps.from_xarray(opened(kind, tmp_path)["t"], "time")._node.data

    @pytest.fixture
    def expected(self):
        return VALUES.transpose(1, 0, 2)


class TestDask(TestVariable):
    max_pickle_nbytes = None  # the graph has the values here
    test_serves_several_threads_at_once = None  # its trace of each line of dask takes half a minute

    @pytest.fixture
    def kind(self):
        return "dask"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_elements_are_positions_of_variables_that_have_the_dimension(kind, executor, tmp_path):
    ds = ps.from_xarray(opened(kind, tmp_path), "time", coords=["time"])
    spec = ds.element_spec
    assert list(spec) == ["n", "t", "time"] or list(spec) == ["t", "n", "time"]
    assert spec["t"] == ps.ArraySpec((3, 4), "f4")
    assert spec["time"].dtype.kind == "M"
    with ds.shuffle(1).batch(4).loader(executor) as loader:
        for batch in loader:
            rows = batch["n"].astype(int)
            assert np.array_equal(batch["t"], VALUES.transpose(1, 0, 2)[rows])
            assert np.array_equal(batch["time"], GRID["time"].values[rows])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_worker_processes_open_files_again(kind, tmp_path, workers_stay):
    with ps.from_xarray(opened(kind, tmp_path)["t"], "time").batch(4).loader("processes", workers=1) as loader:
        assert np.array_equal(np.concatenate([batch.copy() for batch in loader]), VALUES.transpose(1, 0, 2))


def test_a_variable_of_a_file_travels_as_a_name(tmp_path):
    import pickle

    big = GRID.isel(x=np.zeros(9000, int))
    big.to_netcdf(tmp_path / "big.nc", engine="scipy")
    source = ps.from_xarray(xarray.open_dataset(tmp_path / "big.nc", engine="scipy")["t"], "time")._node.data
    assert len(pickle.dumps(source)) < 10_000
    assert source.describe(3).startswith("t[3]")
    whole = ps.from_xarray(xarray.open_dataset(tmp_path / "big.nc", engine="scipy"), "time")
    assert str(tmp_path / "big.nc/t") in str(whole)


def test_a_read_takes_its_rows_alone_and_no_thread_of_dask(tmp_path):
    dask = pytest.importorskip("dask.array")
    read = []

    def block(block_info=None):
        read.append((block_info[None]["chunk-location"], threading.current_thread()))
        return np.zeros((4, 2))

    data = xarray.DataArray(dask.map_blocks(block, chunks=((4,) * 5, (2,)), dtype="f8"), dims=("time", "x"))
    ds = ps.from_xarray(data, "time")
    assert read == []
    assert ds[9].tolist() == [0, 0]
    assert read == [((2, 0), threading.current_thread())]


@pytest.mark.parametrize("kind", KINDS)
def test_patches_are_boxes(kind, tmp_path):
    ds = ps.from_xarray(opened(kind, tmp_path)["t"], "time").patches((4, 2, 2), stride=(3, 1, 2))
    assert len(ds) == 3 * 2 * 2
    assert np.array_equal(ds[7], VALUES.transpose(1, 0, 2)[3:7, 1:3, 2:])
    if kind in ("dask", "zarr"):
        chunked = ps.from_xarray(opened("dask", tmp_path), "time").shuffle(1, window="chunks").batch(2)
        with chunked.loader("threads") as loader:
            assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(COUNT))


def test_a_cache_needs_a_key_unless_dask_names_the_array(tmp_path):
    file = ps.from_xarray(opened("file", tmp_path)["t"], "time")
    with pytest.raises(
        ps.ArgumentTypeError, match=r"holds the variable t of a file, of which xarray does not tell the"
    ):
        list(file.cache(tmp_path / "a"))
    assert len(list(file.cache(tmp_path / "b", key="v1"))) == COUNT
    assert len(list(ps.from_xarray(opened("dask", tmp_path)["t"], "time").cache(tmp_path / "c"))) == COUNT


def test_an_array_alone_has_its_coordinates_beside_it():
    ds = ps.from_xarray(GRID["t"], "time", coords="time")
    assert list(ds.element_spec) == ["t", "time"]
    assert list(ps.from_xarray(GRID["time"], "time", coords=["time"]).element_spec) == ["data", "time"]
    assert ps.from_xarray(xarray.DataArray(np.eye(2)), "dim_1", coords=[])[0].tolist() == [1, 0]


def test_a_file_that_is_cut_is_told_with_its_rows(tmp_path):
    data = opened("file", tmp_path)
    ds = ps.from_xarray(data, "time")
    data.close()
    content = (tmp_path / "grid.nc").read_bytes()
    (tmp_path / "grid.nc").write_bytes(content[: len(content) // 4])
    with pytest.raises(ps.SourceError, match=r"grid\.nc/\w+\[.* cannot be read: "):
        ds[9]


def test_arrays_of_any_size_that_a_backend_calls_numbers_are_refused():
    class Ragged(xarray.backends.BackendArray):
        shape, dtype = (3,), np.dtype("i4")

        def __getitem__(self, key):
            return np.array([np.arange(2), np.arange(3), None], object)[key.tuple]

    indexing = xarray.core.indexing
    variable = xarray.Variable("i", indexing.LazilyIndexedArray(Ragged()), encoding={"source": "a.nc"})
    with pytest.raises(ps.SourceError, match=r"rows\[0.* cannot be read: its values are arrays of any size"):
        ps.from_xarray(xarray.Dataset({"rows": variable}), "i")[0]


@pytest.mark.parametrize(
    ("data", "dim", "coords", "error", "text"),
    [
        (
            np.eye(2),
            "time",
            [],
            ps.ArgumentTypeError,
            r"takes a Dataset or a DataArray of xarray, got an ndarray\. Arr",
        ),
        (GRID, "z", [], ps.ArgumentError, r"from_xarray\(dim='z'\): the data have the dimensions \['y', 'time', 'x'\]"),
        (GRID.drop_vars(["t", "n"]), "time", [], ps.ArgumentError, r"no variable has it\. They are \['area'\]"),
        (GRID, "time", True, ps.ArgumentTypeError, r"coords=\) is a list of names, such as \['time'\], got a bool"),
        ("grid.nc", "time", [], ps.ArgumentTypeError, r"got a str\. Open the file: xarray\.open_dataset\(path\)"),
        (GRID, "time", ["lon"], ps.ArgumentError, r"coords=\): 'lon' is none of the coordinates \['time', 'lat'\]"),
        (GRID, "time", ["lat"], ps.ArgumentError, r"'lat' has no dimension 'time', so it is the same for all elements"),
        (
            xarray.DataArray(np.array([{}, 2], object), dims="i"),
            "i",
            [],
            ps.SpecError,
            r"'data' has values of dtype object, which have no fixed size .*data\['data'\]\.astype\('U'\)",
        ),
        (
            xarray.Dataset({"kind": ("i", pandas.Categorical(["a", "b"]))}),
            "i",
            [],
            ps.SpecError,
            r"'kind' has values of dtype category, .* data\.drop_vars\('kind'\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(data, dim, coords, error, text):
    with pytest.raises(error, match=text):
        ps.from_xarray(data, dim, coords=coords)
