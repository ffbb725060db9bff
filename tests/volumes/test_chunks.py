"""Arrays in compressed chunks: a row of chunks is decoded once, for all workers."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan._parted import PartSizes
from penstock.sources.arrays import LEAST_PART_NBYTES, NamedSource
from penstock.testing import SourceTests

COUNT, ROWS, SHAPE = 220, 50, (20, 20)
CONTENT = np.random.default_rng(0).integers(0, 9, (COUNT, *SHAPE)).astype("f4")
HOW = {
    "inline": {"executor": "inline"},
    "threads": {"executor": "threads", "workers": 2},
    "one process": {"executor": "processes", "workers": 1},
    "two processes": {"executor": "processes", "workers": 2},
}
processes = [pytest.param(name, marks=pytest.mark.slow) if "process" in name else name for name in HOW]


def hdf5(path: Path, content: Any = CONTENT, rows: int = ROWS, **options: Any) -> Any:
    """The source of an array of HDF5, two chunks on the second axis."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "a.h5", "w") as file:
        options = {"chunks": (rows, 10, 20), "compression": "gzip"} | options
        return ps.from_arrays(file.create_dataset("x", data=content, **options))._node.data


def zarr(path: Path, content: Any = CONTENT, rows: int = ROWS, **options: Any) -> Any:
    """The source of an array of Zarr in such chunks."""
    zarr = pytest.importorskip("zarr")
    if "compression" in options:
        options = {"compressors": options["compression"]}
    options.pop("maxshape", None)
    options = {"shape": content.shape, "dtype": "f4", "chunks": (rows, 10, 20), "overwrite": True} | options
    array = zarr.create_array(path / "a.zarr", **options)
    array[...] = content
    return ps.from_arrays(array)._node.data


KINDS = {"hdf5": hdf5, "zarr": zarr}


class TestArrays(SourceTests):
    @pytest.fixture
    def expected(self) -> Any:
        return CONTENT

    @pytest.fixture(params=KINDS)
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        return KINDS[request.param](tmp_path)


class Counted(ps.Source):
    """An array that writes a line for each decoding."""

    def __init__(self, inner: Any, log: Path) -> None:
        self.inner, self.log = inner, log
        self.element_spec, self.chunk_shape = inner.element_spec, inner.chunk_shape

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def parts(self) -> PartSizes | None:
        return self.inner.parts

    def open(self) -> "OpenCounted":
        return OpenCounted(self.inner.open(), self.log)


class OpenCounted:
    def __init__(self, opened: Any, log: Path) -> None:
        self.opened, self.log = opened, log

    def decode(self, part: int) -> Any:
        with open(self.log, "a") as file:
            file.write(f"{part}\n")
        return self.opened.decode(part)

    def close(self) -> None:
        self.opened.close()


def tripled(row: Any) -> Any:
    return 3 * row


@pytest.mark.parametrize("how", processes)
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_chunks_is_decoded_once(kind: str, how: str, tmp_path: Path) -> None:
    ds = ps.from_source(Counted(KINDS[kind](tmp_path), tmp_path / "log"))
    ds = ds.shuffle(1, window="chunks").map(tripled).repeat(2).batch(8)
    whole = np.concatenate([batch.copy() for batch in ds])
    (tmp_path / "log").write_text("")
    with ds.loader(**HOW[how]) as loader:
        assert np.concatenate([batch.copy() for batch in loader]).tobytes() == whole.tobytes()
    decoded = Counter(map(int, (tmp_path / "log").read_text().split()))
    assert set(decoded) == set(range(5))
    assert decoded.total() <= 5 + 1  # one to know what the function returns


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_array(kind: str, tmp_path: Path) -> None:
    ds = ps.from_source(KINDS[kind](tmp_path))
    indices = np.array([219, 0, 50, 49, 50, 218])
    assert (np.stack(list(ds[indices])) == CONTENT[indices]).all()
    with ds.shuffle(1).batch(COUNT).loader("threads") as loader:
        (batch,) = loader
        assert sorted(batch.sum((1, 2))) == sorted(CONTENT.sum((1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_rows_of_chunks_if_decoding_them_for_all_is_of_use(kind: str, tmp_path: Path) -> None:
    parts = KINDS[kind](tmp_path).parts
    assert parts.bounds.tolist() == [0, 50, 100, 150, 200, 220]
    assert parts.nbytes.tolist() == [50 * 1600] * 4 + [20 * 1600]
    assert parts.work_nbytes.tolist() == [each + 50 * 800 for each in parts.nbytes.tolist()]
    assert KINDS[kind](tmp_path, rows=LEAST_PART_NBYTES // 1600).parts is None
    assert KINDS[kind](tmp_path, compression=None).parts is None
    assert KINDS[kind](tmp_path, CONTENT[:0], maxshape=(None, 20, 20)).parts is None


def test_text_has_no_parts(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        text = np.full(9000, "abc", object)
        data = file.create_dataset("x", data=text, dtype=h5py.string_dtype(), chunks=(9000,), compression="gzip")
        ds = ps.from_arrays(data)
    assert ds._node.data.parts is None
    assert ds[7] == "abc"


def test_rows_of_chunks_that_are_too_large_to_keep_two_are_no_parts() -> None:
    class Large(NamedSource):
        element_spec = ps.ArraySpec((1 << 20,), "u1")
        chunk_shape, is_packed, count = (65, 4), True, 100

    assert Large().parts is None
    Large.chunk_shape = (64, 4)
    assert Large().parts is not None


@pytest.mark.parametrize("how", processes)
def test_a_broken_chunk_is_the_error_of_its_elements(how: str, tmp_path: Path) -> None:
    source = hdf5(tmp_path)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5") as file:
        offset = file["x"].id.get_chunk_info(4).byte_offset  # the third row of chunks has numbers 4 and 5
    with open(tmp_path / "a.h5", "r+b") as file:
        file.seek(offset)
        file.write(bytes(200))
    ds = ps.from_source(source).map(tripled).batch(10)
    text = r"/x\[100\] to row 149 cannot be read: (.|\n)*in batch 10 of epoch 0"
    taken = []
    with ds.loader(**HOW[how]) as loader, pytest.raises(ps.SourceError, match=text):
        taken.extend(len(batch) for batch in loader)


def test_a_broken_chunk_of_zarr_names_its_rows(tmp_path: Path) -> None:
    ds = ps.from_source(zarr(tmp_path)).map(tripled).batch(10)
    (tmp_path / "a.zarr" / "c" / "2" / "1" / "0").write_bytes(b"nothing that zstd knows")
    text = r"a\.zarr\[100:150, 0:20, 0:20\]: RuntimeError: (.|\n)*in batch 10 of epoch 0"
    with ds.loader("threads") as loader, pytest.raises(ps.SourceError, match=text):
        assert all(len(batch) == 10 for batch in loader)


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2},
        {"zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "dtype": ">f4"},
        {"dtype": ">f4"},
        {"dtype": "u1"},
        {"compressors": "blosc"},
        {"compressors": "gzip"},
        {"filters": "transpose"},
        {"shards": (100, 20, 20)},
        {"fill_value": 7},
    ],
    ids=str,
)
def test_zarr_is_read_as_by_zarr(options: dict[str, Any], tmp_path: Path) -> None:
    """Chunks that numcodecs decodes, and those that only zarr does. The last row of chunks is missing."""
    codecs = pytest.importorskip("zarr").codecs
    made = {
        "blosc": codecs.BloscCodec(),
        "gzip": codecs.GzipCodec(),
        "transpose": [codecs.TransposeCodec(order=(2, 0, 1))],
    }
    source = zarr(tmp_path, rows=100, **{name: made.get(str(value), value) for name, value in options.items()})
    for path in (tmp_path / "a.zarr").rglob("*"):
        if path.is_file() and "2" in (path.parent.parent.name, path.name[:1], path.parent.name):
            path.unlink()
    array = source.find()
    whole = array[...]
    assert (whole[:200] == CONTENT[:200]).all()
    assert (np.stack(list(ps.from_source(source))) == whole).all()
    patches = ps.from_source(source).patches((30, 7, 20), stride=(30, 7, 1))
    assert (patches[3] == whole[30:60, 7:14]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_memory_of_parts_counts_once_however_many_processes_read(tmp_path: Path) -> None:
    source = hdf5(tmp_path)
    one_for_itself = 2 * 50 * 1600 + 50 * 800
    for workers in (1, 3):
        found = []
        for ds in (ps.from_source(source), ps.from_arrays(CONTENT)):
            with ds.map(tripled).batch(10).loader("processes", workers=workers) as loader:
                found.append(loader.projected_nbytes)
                assert sum(map(len, loader)) == COUNT
        assert found[0] - found[1] <= source.parts.room + workers * one_for_itself
