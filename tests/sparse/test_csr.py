import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from penstock.plan._source import Read
from penstock.sources.arrays import ArraySource
from penstock.sparse.h5ad import CategorySource
from penstock.testing import SourceTests

ROWS, COLUMNS = 23, 37
RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((ROWS, COLUMNS)) < 0.3, RNG.integers(1, 99, (ROWS, COLUMNS)), 0).astype("float32")
DENSE[[0, 5, ROWS - 1]] = 0  # rows without values


def csr(dense=DENSE, index_dtype="int32"):
    """A matrix with the attributes of SciPy's."""
    places = [np.flatnonzero(row) for row in dense]
    return SimpleNamespace(
        format="csr",
        shape=dense.shape,
        indptr=np.cumsum([0, *map(len, places)]).astype(index_dtype),
        indices=np.concatenate(places).astype(index_dtype),
        data=np.concatenate([row[place] for row, place in zip(dense, places, strict=True)]),
    )


def saved_npz(path, matrix, save=np.savez, **changes):
    parts = {name: getattr(matrix, name) for name in ("indices", "indptr", "data")}
    save(path, **(parts | {"format": b"csr", "shape": matrix.shape} | changes))
    return path


def write_group(group, matrix, **options):
    for name in ("indptr", "indices", "data"):
        group.create_dataset(name, data=getattr(matrix, name), **options)
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", matrix.shape


def saved_h5(path, matrix=None, **options):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        write_group(file.create_group("X"), matrix or csr(), **options)
    return path


def of_h5(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        return ps.from_csr(file["X"])


HDF5 = {
    "contiguous": {},
    "chunks": {"chunks": (10,), "maxshape": (None,)},
    "compressed": {"chunks": (10,), "compression": "gzip"},
}


def made(kind, folder, dense=DENSE):
    """The dataset of a matrix that is kept in one of the ways."""
    matrix = csr(dense)
    if kind == "memory":
        return ps.from_csr(matrix)
    if kind == "npz":
        return ps.from_csr(saved_npz(folder / "x.npz", matrix))
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(str(folder / "x.zarr"), mode="w")
        for name in ("indptr", "indices", "data"):
            group.create_array(name, data=getattr(matrix, name), chunks=(10,))
        group.attrs["shape"] = matrix.shape
        return ps.from_csr(zarr.open_group(str(folder / "x.zarr"), mode="r"))
    return of_h5(saved_h5(folder / "x.h5", matrix, **HDF5[kind]))


KINDS = ["memory", "npz", *HDF5, "zarr"]
IN_PLACE = ["memory", "npz", "contiguous", "chunks"]


def without_zeros(ds):
    """The source of the same rows as pairs of vectors."""
    source = ds._node.data
    return type(source)(str(source), source.starts, source.indices, source.values, source.shape, is_dense=False)


class TestSparseRows(SourceTests):
    max_pickle_nbytes = 20_000

    @pytest.fixture(params=["memory", "npz", "chunks", "compressed"])
    def source(self, request, tmp_path):
        return made(request.param, tmp_path)._node.data

    @pytest.fixture
    def expected(self):
        return DENSE


class TestSparseVectors(SourceTests):
    max_pickle_nbytes = 20_000

    @pytest.fixture(params=["memory", "npz", "chunks", "compressed"])
    def source(self, request, tmp_path):
        return without_zeros(made(request.param, tmp_path))

    @pytest.fixture
    def expected(self):
        return {
            "indices": [np.flatnonzero(row).astype("int32") for row in DENSE],
            "values": [row[np.flatnonzero(row)] for row in DENSE],
        }


class TestCategories(SourceTests):
    @pytest.fixture
    def source(self, tmp_path):
        codes, words = ps.from_hdf5(saved_h5ad(tmp_path / "x.h5ad"), ["obs/kind/codes"]), ["B", "T"]
        return CategorySource(codes._node.inputs[0].data, ArraySource(np.array(words)))

    @pytest.fixture
    def expected(self):
        return np.array([i % 3 - 1 for i in range(ROWS)], "int32")


@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_engine_reads_what_lies_there_and_sources_the_rest(kind, tmp_path):
    assert (made(kind, tmp_path)._node.data.arrays() is not None) == (kind in IN_PLACE)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_zeros_are_right_whoever_reads_them(kind, tmp_path):
    source = without_zeros(made(kind, tmp_path))
    assert source.suits_one_thread == (kind == "compressed"), "HDF5 has a lock"
    with ps.from_source(source).shuffle(seed=1).csr_batch(5).loader("threads", workers=2) as loader:
        batches = list(loader)
    order = [int(i) for i in ps.range(ROWS).shuffle(seed=1)]
    assert np.concatenate([each["values"] for each in batches]).tolist() == DENSE[order][DENSE[order] != 0].tolist()
    assert np.concatenate([each["indices"] for each in batches]).tolist() == np.nonzero(DENSE[order])[1].tolist()


def test_a_file_that_becomes_shorter_while_it_is_open_is_an_error_with_the_row(tmp_path):
    source = without_zeros(made("npz", tmp_path))
    opened = source.open()
    out = {"indices": np.empty(1, object), "values": np.empty(1, object)}
    reads = [Read(np.array([3]), list(out.values()), slice(0, 1))]
    opened.gather(reads)
    source.rows_in_place.require_same = lambda row: None  # it is cut after this look
    os.truncate(tmp_path / "x.npz", 100)
    with pytest.raises(ps.SourceError, match=r"/x\.npz\[3\] cannot be read: .*x\.npz was shortened"):
        opened.gather(reads)
    opened.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_batches_are_the_rows_with_their_zeros_in_any_order_and_dtype(kind, executor, tmp_path):
    ds = made(kind, tmp_path).shuffle(seed=1).cast("float16").batch(5)
    order = [int(i) for i in ps.range(ROWS).shuffle(seed=1)]
    with ds.loader(executor) as loader:
        for _ in range(2):  # slots are used again: what an earlier batch left is cleared
            batches = [batch.copy() for batch in loader]
            loader.set_state({**loader.get_state(), "epoch": 0, "position": 0})
    assert batches[0].dtype == np.float16
    assert np.array_equal(np.concatenate(batches), DENSE[order])


@pytest.mark.parametrize("dtype", ["bool", "int8", ">i2", "uint64", "float16", ">f8", "complex64", "complex128"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64", ">i4", "uint16"])
def test_any_dtype_of_values_and_of_columns(dtype, index_dtype):
    dense = DENSE.astype(dtype)
    matrix = csr(dense, index_dtype)
    matrix.data, matrix.indices = matrix.data.astype(dtype), matrix.indices.astype(index_dtype)
    ds = ps.from_csr(matrix)
    assert ds.element_spec == ps.ArraySpec((COLUMNS,), dtype)
    with ds.batch(ROWS).loader("threads") as loader:
        assert np.array_equal(next(iter(loader)), dense)


def test_columns_of_a_row_stand_in_any_order():
    matrix = csr()
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        order = start + RNG.permutation(stop - start)
        matrix.indices[start:stop], matrix.data[start:stop] = matrix.indices[order], matrix.data[order]
    assert np.array_equal(ps.from_csr(matrix).batch(ROWS)[0], DENSE)


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (3, 4)])
def test_a_matrix_without_values_is_zeros(shape):
    matrix = SimpleNamespace(
        shape=shape, indptr=np.zeros(shape[0] + 1, "i4"), indices=np.zeros(0, "i4"), data=np.zeros(0)
    )
    ds = ps.from_csr(matrix)
    assert len(ds) == shape[0]
    for element in ds:
        assert element.tolist() == [0] * shape[1]


def test_rows_without_zeros_make_padded_and_csr_batches():
    batch = ps.from_csr(csr(), dense=False).padded_batch(ROWS, padding_values={"indices": -1, "values": 0})[0]
    is_there = batch["indices"] >= 0
    assert np.array_equal(np.cumsum([0, *is_there.sum(axis=1)]), csr().indptr)
    assert np.array_equal(batch["indices"][is_there], csr().indices)
    assert np.array_equal(batch["values"][is_there], csr().data)


@pytest.mark.framework
def test_batches_are_sparse_tensors_of_tensorflow_by_the_code_of_the_page():
    import tensorflow as tf

    page = (Path(__file__).parents[2] / "docs/how-to/sparse.md").read_text()
    code = page[page.index("def as_sparse") :].partition("\n\n\n")[0].replace("2_000", str(COLUMNS))
    names = {"tf": tf}
    exec(code, names)
    rows = ps.zip({"X": ps.from_csr(csr(), dense=False), "kind": ps.range(ROWS)}).shuffle(seed=1).csr_batch(5)
    for x, kind in rows.to_tf().map(names["as_sparse"]):
        assert np.array_equal(tf.sparse.to_dense(x), DENSE[kind])


def test_windows_of_rows_are_the_rows():
    with ps.from_csr(csr()).windows(3, shift=2).batch(4).loader("threads") as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch, np.stack([DENSE[2 * i : 2 * i + 3] for i in range(4)]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "chunks", "compressed"])
def test_worker_processes_read_the_same(kind, tmp_path, workers_stay):
    with made(kind, tmp_path).batch(6).loader("processes", workers=1) as loader:
        assert np.array_equal(np.concatenate([batch.copy() for batch in loader]), DENSE)


# ---------------------------------------------------------------------------------------------- damage


def damaged(kind, folder, **changes):
    """A dataset of a matrix in which a part is another, as from a file that lies."""
    matrix = csr()
    for name, change in changes.items():
        change(getattr(matrix, name))
    if kind == "memory":
        return ps.from_csr(matrix)
    if kind == "npz":
        return ps.from_csr(saved_npz(folder / "x.npz", matrix))
    return of_h5(saved_h5(folder / "x.h5", matrix, **HDF5[kind]))


def put(place, value):
    def change(array):
        array[place] = value

    return change


@pytest.mark.parametrize("kind", ["memory", "npz", "chunks", "compressed"])
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("column", [COLUMNS, 2**31 - 1, -1])
def test_a_column_outside_of_the_matrix_is_an_error_with_the_row(kind, executor, column, tmp_path):
    row = 7
    ds = damaged(kind, tmp_path, indices=put(csr().indptr[row] + 1, column))
    assert np.array_equal(ds[row - 1], DENSE[row - 1])
    text = rf"row {row} of .* cannot be read: it has a value in column {column}, and the matrix has {COLUMNS} columns"
    with pytest.raises(ps.SourceError, match=text), ds.batch(ROWS).loader(executor) as loader:
        list(loader)


@pytest.mark.parametrize("kind", ["memory", "npz", "compressed"])
def test_a_column_that_comes_twice_is_an_error_with_the_row(kind, tmp_path):
    row, at = 7, int(csr().indptr[7])
    ds = damaged(kind, tmp_path, indices=put(at + 2, csr().indices[at]))
    with pytest.raises(ps.SourceError, match=rf"row {row} of .* has column \d+ twice.*sum_duplicates\(\)"):
        ds[row]
    matrix = csr()
    matrix.indices[at + 2] = matrix.indices[at]
    sparse = ps.from_csr(matrix, dense=False)
    with pytest.raises(ps.SourceError, match=rf"row {row} of .* has column \d+ twice"):
        sparse[row]
    matrix.indices[at : at + 3] = [3, 1, 2]  # in any order
    assert sparse[row]["indices"][:3].tolist() == [3, 1, 2]


@pytest.mark.parametrize("kind", ["memory", "npz", "chunks", "compressed"])
@pytest.mark.parametrize("value", [-1, 10**6, 0])
def test_starts_that_decrease_or_point_outside_are_an_error_with_the_row(kind, value, tmp_path):
    ds = damaged(kind, tmp_path, indptr=put(9, value))
    with pytest.raises(ps.SourceError, match=r"row \d+ of .* its indptr goes from .* The matrix is damaged"):
        ds[20]


@pytest.mark.parametrize("kind", ["memory", "npz"])
def test_starts_that_do_not_begin_with_zero_are_an_error(kind, tmp_path):
    matrix = csr()
    matrix.indptr[:2] = 1  # row 0 has no values
    with pytest.raises(ps.SourceError, match=r"row 0 of .* its indptr goes from 1 to 1\. It begins with 0"):
        ps.from_csr(matrix if kind == "memory" else saved_npz(tmp_path / "x.npz", matrix))[20]


def test_numbers_of_hdf5_that_numpy_has_not_are_read_by_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    kind.set_offset(4)
    path = saved_h5(tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        del file["X/indices"]
        space = h5py.h5s.create_simple((len(csr().indices),))
        h5py.h5d.create(file["X"].id, b"indices", kind, space)
        file["X/indices"][...] = csr().indices
    assert np.array_equal(of_h5(path).batch(ROWS)[0], DENSE)


@pytest.mark.parametrize("dense", [True, False])
def test_rows_without_zeros_are_checked_too(dense):
    matrix = csr()
    matrix.indices[3] = 99
    with pytest.raises(ps.SourceError, match=r"row \d of a matrix of 23 x 37 .* column 99"):
        list(ps.from_csr(matrix, dense=dense))


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("kind", ["npz", "chunks"])
@pytest.mark.parametrize("dense", [True, False])
def test_a_file_that_is_cut_replaced_or_gone_is_an_error(kind, executor, dense, tmp_path):
    ds = made(kind, tmp_path)
    ds = ds.batch(4) if dense else ps.from_source(without_zeros(ds)).csr_batch(4)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    with ds.loader(executor) as loader:
        next(iter(loader))
    for change, text in (
        (lambda: path.write_bytes(whole[: len(whole) // 4]), "shorter|shortened|outside of|cannot be opened|damaged"),
        (lambda: (path.rename(tmp_path / "old"), path.write_bytes(whole)), "was replaced|cannot be opened"),
        (path.unlink, "No such file|cannot be opened|is gone"),
    ):
        change()
        with pytest.raises(ps.SourceError, match=text), ds.loader(executor) as loader:
            list(loader)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": b"csc"}, r"format 'csc'.*tocsr\(\)"),
        ({"shape": (ROWS,)}, "a matrix has two sizes"),
        ({"shape": (ROWS + 1, COLUMNS)}, r"24 rows, 24 entries in indptr"),
        ({"indices": np.zeros(3, "i4")}, r"3 column numbers and \d+ values"),
        ({"indices": csr().indices.astype("f4")}, r"indices of \(\) float32|indices is a vector of integers"),
        ({"data": csr().data.astype("S3")}, "data is a vector of numbers"),
        ({"data": csr().data[:, None]}, "data is a vector of numbers"),
    ],
)
def test_archives_with_other_parts_are_refused(changes, text, tmp_path):
    with pytest.raises(ps.PenstockError, match=text):
        ps.from_csr(saved_npz(tmp_path / "x.npz", csr(), **changes))


def test_a_compressed_archive_is_refused_with_what_helps(tmp_path):
    path = saved_npz(tmp_path / "x.npz", csr(), np.savez_compressed)
    with pytest.raises(ps.SourceError, match=r"is compressed, .*save_npz\(path, matrix, compressed=False\)"):
        ps.from_csr(path)


def test_another_archive_and_another_file_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with pytest.raises(ps.SourceError, match=r"has no indptr, indices, data, shape, format.*It has x\."):
        ps.from_csr(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", format=b"coo", row=np.arange(3), col=np.arange(3), data=np.arange(3), shape=(3, 3))
    with pytest.raises(ps.SourceError, match=r"format 'coo'.*tocsr\(\)"):
        ps.from_csr(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"no archive")
    with pytest.raises(ps.SourceError, match=r"b\.npz is no \.npz, or is damaged: BadZipFile"):
        ps.from_csr(tmp_path / "b.npz")
    with pytest.raises(ps.SourceError, match=r"c\.npz cannot be read: No such file"):
        ps.from_csr(tmp_path / "c.npz")


def test_a_member_that_says_it_is_larger_than_its_archive_is_refused(tmp_path):
    path = saved_npz(tmp_path / "x.npz", csr())
    data, count = path.read_bytes(), str(len(csr().data)).encode()
    path.write_bytes(data.replace(b"(" + count + b",), } ", b"(" + count + b"0,), }"))
    with pytest.raises(ps.SourceError, match=r"are there|is truncated"):
        ps.from_csr(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (SimpleNamespace(format="csc", indptr=1, indices=1, data=1), r"format 'csc'.*from_csr\(matrix\.tocsr\(\)\)"),
        (
            SimpleNamespace(format="csr", indptr=np.arange(2), indices=np.arange(1), data=np.arange(1), shape=(3,)),
            r"got an array of shape \(3,\), .*reshape\(1, -1\)",
        ),
        (np.eye(3), r"got an? .*ndarray.*from_arrays\(array\)"),
        (3, r"takes a CSR matrix of SciPy"),
    ],
)
def test_other_objects_are_refused(value, text):
    with pytest.raises(ps.ArgumentTypeError, match=text):
        ps.from_csr(value)


def test_other_groups_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["other/x"] = np.arange(3)
        with pytest.raises(
            ps.SourceError, match=r"x\.h5/other has no indptr, indices, data, attribute shape.*It has x"
        ):
            ps.from_csr(file["other"])
        write_group(file.create_group("X"), csr())
        file["X"].attrs["encoding-type"] = "csc_matrix"
        with pytest.raises(ps.SourceError, match=r"X is 'csc_matrix', and rows are read of csr_matrix"):
            ps.from_csr(file["X"])


# ---------------------------------------------------------------------------------------------- AnnData


def saved_h5ad(path, **options):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        write_group(file.create_group("X"), csr(), **options)
        write_group(file.create_group("layers/counts"), csr(DENSE.astype("int32")))
        file["layers/dense"] = DENSE
        obs = file.create_group("obs")
        obs["total"] = DENSE.sum(axis=1)
        obs["name"] = [f"cell {i}" for i in range(ROWS)]
        kind = obs.create_group("kind")
        kind["codes"] = np.array([i % 3 - 1 for i in range(ROWS)], "int8")
        kind["categories"] = ["B", "T"]
        kind.attrs["encoding-type"] = "categorical"
        nullable = obs.create_group("age")
        nullable["values"], nullable["mask"] = np.arange(ROWS), np.arange(ROWS) == 3
        nullable.attrs["encoding-type"] = "nullable-integer"
    return path


def test_cells_come_with_columns_of_their_table(tmp_path):
    path = saved_h5ad(tmp_path / "x.h5ad", chunks=(10,), maxshape=(None,))
    assert np.array_equal(ps.from_h5ad(path).batch(ROWS)[0], DENSE)
    ds = ps.from_h5ad(path, ["total", "kind", "name"])
    assert ds.class_names == ["B", "T"]
    element = ds[4]
    assert list(element) == ["X", "total", "kind", "name"]
    assert (element["total"], element["kind"], element["name"]) == (DENSE[4].sum(), 0, "cell 4")
    assert ds.element_spec["kind"] == ps.ArraySpec((), "int32")
    with ds.select(["X", "kind"]).batch(ROWS).loader("threads") as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch["X"], DENSE)
    assert batch["kind"].tolist() == [i % 3 - 1 for i in range(ROWS)]


def test_columns_of_old_files_and_of_no_kind_that_is_known(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = saved_h5ad(tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        file["obs/old"], file["obs/__categories/old"] = np.arange(ROWS) % 2, ["no", "yes"]
        file["obs/lost"] = h5py.SoftLink("/nowhere")
        file.create_group("obs/group")
    assert ps.from_h5ad(path, ["old"]).class_names == ["no", "yes"]
    both = ps.from_h5ad(path, ["old", "kind"])
    assert both.shuffle(seed=1).select("kind").batch(2).class_names == ["B", "T"]
    assert both.rename({"old": "new"}).select("new").class_names == ["no", "yes"]
    with pytest.raises(AttributeError, match=r"for one value: ds\.select\(key\)\.class_names"):
        print(both.class_names)
    with pytest.raises(
        ps.ArgumentError, match=r"no column 'lost' in obs\. It has \['age', 'group', 'kind', 'name', 'old',"
    ):
        ps.from_h5ad(path, ["lost"])
    with pytest.raises(ps.ArgumentError, match=r"no column '' in obs"):
        ps.from_h5ad(path, [""])
    with pytest.raises(ps.SourceError, match=r"x\.h5ad has no array obs/group/values\. It is damaged, or no column of"):
        ps.from_h5ad(path, ["group"])


def test_stores_of_zarr_are_read_as_files_are(tmp_path):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    path, store = saved_h5ad(tmp_path / "x.h5ad"), str(tmp_path / "x.zarr")
    root = zarr.open_group(store, mode="w")
    with h5py.File(path) as file:

        def copy(name, item):
            if isinstance(item, h5py.Dataset):
                is_text = h5py.check_string_dtype(item.dtype)
                root.create_array(name, data=item.asstr()[:].astype("T") if is_text else item[:])
            else:
                root.require_group(name).attrs.update({key: np.asarray(item.attrs[key]).tolist() for key in item.attrs})

        file.visititems(copy)
    names = ["total", "kind", "name"]
    ds = ps.from_h5ad([store, path], names)
    assert ds.class_names == ["B", "T"]
    for row in range(ROWS):
        assert all(np.array_equal(ds[row][name], ds[row + ROWS][name]) for name in ["X", *names])
    assert np.array_equal(ps.from_h5ad(store, layer="dense")[4], DENSE[4])
    with pytest.raises(ps.SpecError, match=r"obs/age in .*x\.zarr is 'nullable-integer' with missing values"):
        ps.from_h5ad(store, ["age"])
    with pytest.raises(ps.SourceError, match=r"total is an array, and AnnData writes a group"):
        ps.from_h5ad(f"{store}/obs/total")
    with pytest.raises(ps.SourceError, match=r"no\.zarr cannot be opened|There is no"):
        ps.from_h5ad([store, str(tmp_path / "no.zarr")])


def test_categories_may_be_text_that_could_be_missing(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = saved_h5ad(tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        del file["obs/kind/categories"]
        file["obs/kind/categories/values"], file["obs/kind/categories/mask"] = ["B", "NK"], [False, False]
    assert ps.from_h5ad(path, "kind").class_names == ["B", "NK"]


def test_columns_in_which_values_could_be_missing_and_are_not_are_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = saved_h5ad(tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        file["obs/age/mask"][...] = False
        text = file.create_group("obs/text")  # as pandas 3 has text
        text["values"], text["mask"] = [f"cell {i}" for i in range(ROWS)], np.zeros(ROWS, bool)
        text.attrs["encoding-type"] = "nullable-string-array"
        truth = file.create_group("obs/truth")
        truth["values"], truth["mask"] = np.ones(ROWS, bool), np.ones(ROWS, bool)
        truth.attrs["encoding-type"] = "nullable-boolean"
    element = ps.from_h5ad(path, ["age", "text"])[7]
    assert (element["age"], element["text"]) == (7, "cell 7")
    with h5py.File(path, "r+") as file:
        file["obs/text/mask"][2] = True
    with pytest.raises(ps.SpecError, match=r"with missing values, .*fillna\(\.\.\.\)"):
        ps.from_h5ad(path, ["text"])
    with pytest.raises(ps.SpecError, match=r"'nullable-boolean' with missing values, .*fillna\(\.\.\.\)"):
        ps.from_h5ad(path, ["truth"])


def test_layers_take_the_place_of_the_matrix(tmp_path):
    path = saved_h5ad(tmp_path / "x.h5ad")
    assert ps.from_h5ad(path, layer="counts").element_spec == ps.ArraySpec((COLUMNS,), "int32")
    assert np.array_equal(ps.from_h5ad(path, layer="dense")[3], DENSE[3])
    with pytest.raises(ps.ArgumentError, match=r"has no layers/other\. It has {'layers/': \['counts', 'dense'\]"):
        ps.from_h5ad(path, layer="other")
    with pytest.raises(ps.ArgumentTypeError, match="is an array, and not sparse"):
        ps.from_h5ad(path, layer="dense", dense=False)


def test_matrices_of_obsm_come_by_their_names(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = saved_h5ad(tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        file["obsm/X_pca"] = DENSE[:, :2]
        write_group(file.create_group("obsm/sparse"), csr(DENSE[:, 1:]))
        file.create_group("obsm/table").attrs["encoding-type"] = "dataframe"
        file["obsm/total"] = DENSE
    ds = ps.from_h5ad(path, ["kind"], obsm=["X_pca", "sparse"], dense=False)
    assert list(ds[4]) == ["X", "kind", "X_pca", "sparse"]
    assert ds.class_names == ["B", "T"]
    assert list(ds[4]["X"]) == ["indices", "values"]
    assert np.array_equal(ds[4]["X_pca"], DENSE[4, :2])
    assert np.array_equal(ds[4]["sparse"], DENSE[4, 1:])
    assert list(ps.from_h5ad(path, obsm="X_pca", layer="dense")[4]) == ["X", "X_pca"]
    with pytest.raises(
        ps.ArgumentError, match=r"has no obsm/X_umap\. It has .*'obsm/': \['X_pca', 'sparse', 'table', 't"
    ):
        ps.from_h5ad(path, obsm="X_umap")
    with pytest.raises(
        ps.SourceError, match=r"obsm/table is 'dataframe', and rows are read of csr_matrix.*as an array"
    ):
        ps.from_h5ad(path, obsm="table")
    with pytest.raises(ps.ArgumentError, match=r"'total' is asked for from obs and obsm"):
        ps.from_h5ad(path, "total", obsm="total")
    with pytest.raises(ps.ArgumentError, match=r"'X' is the name of the cell's row"):
        ps.from_h5ad(path, obsm="X")
    with pytest.raises(ps.ArgumentTypeError, match=r"obsm=\) has the names of matrices, as text, got 3"):
        ps.from_h5ad(path, obsm=3)


def test_files_without_a_matrix_have_the_rest(tmp_path):
    h5py = pytest.importorskip("h5py")
    paths = [saved_h5ad(tmp_path / name) for name in ("a.h5ad", "b.h5ad", "c.h5ad")]
    for path in paths:
        with h5py.File(path, "r+") as file:
            file["obsm/X_pca"] = DENSE[:, :2]
            if path != paths[2]:
                del file["X"]
    ds = ps.from_h5ad(paths[:2], ["kind", "total"], obsm=["X_pca"])
    assert len(ds) == 2 * ROWS
    assert list(ds[ROWS + 4]) == ["kind", "total", "X_pca"]
    assert np.array_equal(ds[ROWS + 4]["X_pca"], DENSE[4, :2])
    assert ps.from_h5ad(paths[0], "total")[4] == {"total": DENSE[4].sum()}
    assert list(ps.from_h5ad(paths[0], "total", layer="counts")[4]) == ["X", "total"]
    for options in ({}, {"obs": []}):
        with pytest.raises(ps.SourceError, match=r"a\.h5ad has no X, .*'obsm/': \['X_pca'\]}; .*obs=\[\.\.\.\], obsm="):
            ps.from_h5ad(paths[0], **options)
    with pytest.raises(ps.ArgumentError, match=r"one of .*a\.h5ad and .*c\.h5ad has X, and the other has none"):
        ps.from_h5ad([paths[0], paths[2]], "kind")


def test_columns_that_cannot_be_read_are_errors_with_what_helps(tmp_path):
    path = saved_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(ps.ArgumentError, match=r"no column 'size' in obs\. It has \['age', 'kind', 'name', 'total'\]"):
        ps.from_h5ad(path, ["size"])
    with pytest.raises(ps.SpecError, match=r"obs/age in .* is 'nullable-integer' with missing .*fillna\(\.\.\.\)"):
        ps.from_h5ad(path, "age")
    with pytest.raises(ps.ArgumentError, match="'X' is the name of the cell's row"):
        ps.from_h5ad(path, "X")
    with pytest.raises(ps.ArgumentTypeError, match=r"obs=\) has the names of columns, as text, got True\."):
        ps.from_h5ad(path, True)


def test_a_code_without_a_category_is_an_error_with_the_cell(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = saved_h5ad(tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        file["obs/kind/codes"][3] = 7
    with pytest.raises(ps.SourceError, match=r"kind/codes\[3\] is 7, and there are 2 categories"):
        ps.from_h5ad(path, "kind")[3]


def test_values_in_another_folder_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "other").mkdir()
    saved_h5(tmp_path / "other" / "secret.h5")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write_group(file.create_group("X"), csr())
        del file["X/data"]
        file["X/data"] = h5py.ExternalLink("../other/secret.h5", "X/data")
        with pytest.raises(ps.SourceError, match=r"an external link.*which is not in"):
            ps.from_csr(file["X"])


# ---------------------------------------------------------------------------------------------- several files, AnnData


def name_genes(path, names):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        file["var/index"], file["var"].attrs["_index"] = names, "index"


def test_several_files_are_one_dataset_with_the_categories_of_all(tmp_path):
    h5py = pytest.importorskip("h5py")
    paths = [saved_h5ad(tmp_path / name) for name in ("a.h5ad", "b.h5ad")]
    for path in paths:
        name_genes(path, [f"gene {n}" for n in range(COLUMNS)])
    with h5py.File(paths[1], "r+") as file:
        del file["obs/kind/categories"]
        file["obs/kind/categories"] = ["NK", "B"]
    ds = ps.from_h5ad(paths, ["kind"])
    assert len(ds) == 2 * ROWS
    assert ds.class_names == ["B", "T", "NK"]
    with ds.shuffle(1).batch(2 * ROWS).loader("threads") as loader:
        batch = next(iter(loader))
    order = [int(i) for i in ps.range(2 * ROWS).shuffle(1)]
    assert np.array_equal(batch["X"], np.concatenate([DENSE, DENSE])[order])
    kinds = [["", "B", "T"][i % 3] for i in range(ROWS)] + [["", "NK", "B"][i % 3] for i in range(ROWS)]
    assert [([*ds.class_names, ""])[code] for code in batch["kind"]] == [kinds[i] for i in order]
    same = ps.from_h5ad([paths[0]] * 2, "kind")
    assert same.class_names == ["B", "T"]
    assert np.array_equal(ps.from_h5ad(paths)[ROWS + 2], DENSE[2])


def test_files_with_other_genes_are_refused_with_the_first_of_them(tmp_path):
    paths = [saved_h5ad(tmp_path / name) for name in ("a.h5ad", "b.h5ad")]
    names = [f"gene {n}" for n in range(COLUMNS)]
    name_genes(paths[0], names)
    assert len(ps.from_h5ad(paths)) == 2 * ROWS, "a file need not name its genes"
    name_genes(paths[1], [*names[:-1], "other"])
    with pytest.raises(ps.ArgumentError, match=r"gene 36 of .*b\.h5ad is 'other', and that of .*a\.h5ad is 'gene 36'"):
        ps.from_h5ad(paths)
    h5py = pytest.importorskip("h5py")
    with h5py.File(paths[1], "r+") as file:
        file["X"].attrs["shape"] = (ROWS, COLUMNS + 1)
    with pytest.raises(ps.ArgumentError, match=r"b\.h5ad has 38 genes, and .*a\.h5ad has 37\..*concat_on_disk"):
        ps.from_h5ad(paths)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ([], ps.ArgumentError, "got an empty list of paths"),
        ([3], ps.ArgumentTypeError, r"needs a path, or a list of them, got an int\."),
        (3, ps.ArgumentTypeError, "needs a path"),
        (None, ps.ArgumentTypeError, "needs a path"),
        ({"a.h5ad"}, ps.ArgumentTypeError, "Give a list of paths"),
        (SimpleNamespace(isbacked=False, filename=None), ps.ArgumentError, r"is in memory\. Its rows: from_csr\("),
        (
            SimpleNamespace(isbacked=True, filename="a.h5ad", is_view=True),
            ps.ArgumentError,
            r"a part of the AnnData in a\.h5ad\. Take the part of the dataset: from_h5ad\(path\)\[positions\]",
        ),
    ],
    ids=["empty", "a number in a list", "a number", "none", "a set", "in memory", "a view"],
)
def test_what_is_no_list_of_files_is_refused(value, error, text):
    with pytest.raises(error, match=text):
        ps.from_h5ad(value)


def test_a_backed_object_of_anndata_is_read_from_its_file(tmp_path):
    path = saved_h5ad(tmp_path / "x.h5ad")
    ds = ps.from_h5ad(SimpleNamespace(isbacked=True, filename=path, is_view=False), ["total"])
    assert np.array_equal(ds[4]["X"], DENSE[4])
