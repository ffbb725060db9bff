"""Batches of sparse rows are matrices in compressed rows."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps

ROWS, COLUMNS = 11, 7
RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((ROWS, COLUMNS)) < 0.3, RNG.integers(1, 9, (ROWS, COLUMNS)), 0).astype("float32")
DENSE[[0, 4]] = 0  # rows without values


def rows(dense=DENSE, index_dtype="int32"):
    places = [np.flatnonzero(row) for row in dense]
    matrix = SimpleNamespace(
        format="csr",
        shape=dense.shape,
        indptr=np.cumsum([0, *map(len, places)]),
        indices=np.concatenate(places).astype(index_dtype),
        data=np.concatenate([row[place] for row, place in zip(dense, places, strict=True)]),
    )
    return ps.from_csr(matrix, dense=False)


def dense_of(batch):
    """The rows of a batch with their zeros."""
    starts, found = batch["indptr"], np.zeros((len(batch["indptr"]) - 1, COLUMNS), batch["values"].dtype)
    for row in range(len(found)):
        span = slice(starts[row], starts[row + 1])
        found[row, batch["indices"][span]] = batch["values"][span]
    return found


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("drops", [False, True])
def test_a_batch_has_the_rows_side_by_side(executor, drops):
    ds = rows().shuffle(1).csr_batch(4, drop_remainder=drops)
    order = [row.tolist() for row in ps.from_arrays(DENSE).shuffle(1)]
    with ds.loader(executor) as loader:
        batches = list(loader)
    assert len(batches) == len(ds) == (2 if drops else 3)
    assert [len(each["indptr"]) for each in batches] == [5, 5] + ([] if drops else [4])
    found = np.concatenate([dense_of(each) for each in batches])
    assert found.tolist() == order[: len(found)]
    assert dense_of(ds[1]).tolist() == order[4:8]


@pytest.mark.parametrize("dtype", ["bool", "int8", ">i2", "float16", "float64", "complex64"])
@pytest.mark.parametrize(("index_dtype", "want"), [("int32", "int32"), ("int64", "int64"), ("uint16", "int64")])
def test_values_keep_their_dtype_and_columns_one_that_libraries_take(dtype, index_dtype, want):
    ds = rows(DENSE.astype(dtype), index_dtype).csr_batch(3)
    batch, spec = ds[0], ds.element_spec
    assert batch["values"].dtype == np.dtype(dtype).newbyteorder("=")
    assert batch["indptr"].dtype == batch["indices"].dtype == want
    assert (dense_of(batch) == DENSE[:3].astype(dtype)).all()
    for name, leaf in batch.items():
        assert spec[name].admits(leaf.shape, leaf.dtype), name


def test_other_leaves_are_stacked_and_several_rows_stand_beside_each_other():
    names = ps.from_arrays(np.array([f"cell {n}" for n in range(ROWS)]))
    ds = ps.zip((rows(), {"name": names, "at": ps.range(ROWS), "more": rows(DENSE[::-1])})).csr_batch(4)
    (first, second), spec = ds[2], ds.element_spec
    assert dense_of(first).tolist() == DENSE[8:].tolist()
    assert dense_of(second["more"]).tolist() == DENSE[::-1][8:].tolist()
    assert second["at"].tolist() == [8, 9, 10]
    assert second["name"].tolist() == ["cell 8", "cell 9", "cell 10"]
    assert list(spec[1]) == ["name", "at", "more"]
    assert spec[0]["indptr"] == ps.ArraySpec((None,), "int32")
    assert spec[1]["at"] == ps.ArraySpec((None,), "int64")


def test_rows_of_a_stream_are_put_together_as_they_come():
    ds = rows().filter(lambda row: len(row["values"]) > 0)
    batches = list(ds.csr_batch(4))
    assert np.concatenate([dense_of(each) for each in batches]).tolist() == DENSE[DENSE.any(axis=1)].tolist()
    with ds.csr_batch(4).loader("threads") as loader:
        for batch, same in zip(loader, batches, strict=True):
            assert all((batch[name] == same[name]).all() for name in same)


def test_a_run_goes_on_where_it_was_cut():
    ds = rows().shuffle(3).csr_batch(2)
    with ds.loader("threads") as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state, rest = loader.get_state(), [dense_of(each).tolist() for each in batches]
    with ds.loader("inline") as loader:
        loader.set_state(state)
        assert [dense_of(each).tolist() for each in loader] == rest


@pytest.mark.slow
def test_worker_processes_make_the_same(workers_stay):
    ds = rows().map(lambda row: {"indices": row["indices"], "values": 2 * row["values"]})
    with ds.csr_batch(4).loader("processes", workers=2) as loader:
        assert np.concatenate([dense_of(each) for each in loader]).tolist() == (2 * DENSE).tolist()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ps.range(3), r"^csr_batch\(2\) puts sparse rows side by side, .* but here an element is \(\) int64\."),
        (lambda: ps.from_arrays({"indices": DENSE, "values": DENSE}), r"but here an element is .*Use batch\(\)"),
        (
            lambda: ps.zip({"row": rows(), "x": ragged()}),
            r"^csr_batch\(2\) stacks elements, so they must have one shape, but element\['x'\] is \(None,\) int64",
        ),
    ],
    ids=["numbers", "fixed", "another ragged leaf"],
)
def test_elements_without_sparse_rows_are_refused(make, text):
    with pytest.raises(ps.SpecError, match=text):
        make().csr_batch(2).element_spec  # noqa: B018


def ragged():
    return ps.range(ROWS).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_rows_is_refused(size):
    with pytest.raises(ps.ArgumentError, match=rf"^csr_batch\(size={size}\): it must be at least 1\."):
        rows().csr_batch(size)


def test_a_row_with_another_number_of_columns_than_of_values_is_an_error_with_the_element():
    ds = rows().map(lambda row: row | {"indices": row["indices"][1:]}).csr_batch(4)
    with pytest.raises(ps.SpecError, match=re.escape("csr_batch(4): element 1 has ")):
        ds[0]


def test_ranks_are_told_to_share_rows_before():
    told = r"shard=\(0, 2\) divides .*Give ranks whole batches: whole_batches=True"
    with pytest.raises(ps.ArgumentError, match=told):
        rows().csr_batch(4).loader(shard=(0, 2))
    parts = [rows().shard(rank, 2).csr_batch(2) for rank in range(2)]
    assert sum(len(dense_of(each)) for part in parts for each in part) == ROWS


@pytest.mark.framework
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_scipy_torch_and_jax_take_the_parts_as_they_are():
    sparse, torch, jax_sparse = map(pytest.importorskip, ("scipy.sparse", "torch", "jax.experimental.sparse"))
    batch, shape = rows().csr_batch(4)[1], (4, COLUMNS)
    starts, indices, values = batch["indptr"], batch["indices"], batch["values"]
    matrix = sparse.csr_array((values, indices, starts), shape=shape)
    assert np.shares_memory(matrix.data, values)
    assert matrix.toarray().tolist() == DENSE[4:8].tolist()
    tensors = next(iter(rows().csr_batch(4).skip(1).to_torch()))
    tensor = torch.sparse_csr_tensor(*tensors.values(), shape, check_invariants=True)
    assert tensor.to_dense().tolist() == DENSE[4:8].tolist()
    assert jax_sparse.BCSR((values, indices, starts), shape=shape).todense().tolist() == DENSE[4:8].tolist()
