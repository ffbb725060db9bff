import itertools
import os

import numpy as np
import pytest

import penstock as ps
from penstock import _check
from penstock.plan._patches import Chunks, Patches

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


# ---------------------------------------------------------------------------------------------- by chunks


def firsts_of(ds):
    return [int(np.ravel(element)[0]) for element in ds]


def chunk_of(first):
    return tuple(at // n for at, n in zip(np.unravel_index(first, SHAPE), CHUNKS, strict=True))


@pytest.mark.parametrize("kind", ["chunks", "zarr"])
@pytest.mark.parametrize("sizes", [(4, 5, 3), (2, 3, 3), (1, 1, 1), (3, 4, 2)])
def test_elements_that_begin_in_a_chunk_come_together_and_each_comes_once(kind, sizes, tmp_path):
    plain = arrays_of(kind, tmp_path).patches(sizes)
    ds = plain.shuffle(seed=1, window="chunks")
    found = firsts_of(ds)
    assert sorted(found) == firsts_of(plain)
    assert found != firsts_of(plain)
    runs = [chunk for chunk, _ in itertools.groupby(map(chunk_of, found))]
    assert len(runs) == len(set(runs))
    assert runs != sorted(runs)


@pytest.mark.parametrize("rows", [False, True])
def test_each_chunk_is_read_once(rows, tmp_path, monkeypatch):
    """Batches end within chunks, and the next ones begin there."""
    pytest.importorskip("h5py")
    from penstock.sources.hdf5 import OpenHdf5Source

    reads = []
    part = OpenHdf5Source.part
    monkeypatch.setattr(OpenHdf5Source, "part", lambda self, box: reads.append(box) or part(self, box))
    ds = arrays_of("chunks", tmp_path)
    ds = ds if rows else ds.patches((2, 5, 3))
    batches = ds.cast("float32").shuffle(seed=1, window="chunks").batch(3)
    with batches.loader("inline") as loader:
        found = np.concatenate([batch.copy() for batch in loader])
    assert len(reads) == len({str(box) for box in reads}) == (27 if rows else 18)
    assert sorted(firsts_of(found)) == firsts_of(ds)
    reads.clear()
    with batches.loader("threads", workers=2) as loader:
        assert sum(map(len, loader)) == len(ds)
    assert len(reads) <= 2 * (27 if rows else 18)  # threads begin the next epoch


def test_chunks_that_overlapping_patches_share_are_kept_for_a_while(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    from penstock.sources.hdf5 import OpenHdf5Source

    reads = []
    part = OpenHdf5Source.part
    monkeypatch.setattr(OpenHdf5Source, "part", lambda self, box: reads.append(box) or part(self, box))
    ds = arrays_of("chunks", tmp_path).patches((3, 3, 3), stride=1)
    with ds.shuffle(seed=1, window="chunks").batch(16).loader("threads") as loader:
        assert sum(len(batch) for batch in loader) == len(ds) == 8 * 10 * 7
    assert len(reads) <= 3 * 3 * 3 * 8


def test_kept_chunks_are_counted_before_the_run(tmp_path):
    ds = arrays_of("chunks", tmp_path).patches((4, 5, 3))
    assert ds._node.source.data.kept_nbytes == 2 * (2 * 2 * 2) * (4 * 5 * 3) * 4


def test_the_order_differs_in_each_epoch_and_a_run_continues_in_it(tmp_path):
    ds = arrays_of("zarr", tmp_path).patches((2, 2, 3)).shuffle(seed=3, window="chunks").batch(4)
    with ds.loader("threads") as loader:
        epochs = [[firsts_of(batch) for batch in loader] for _ in range(2)]
        state = {**loader.get_state(), "epoch": 1, "position": 5}
    assert epochs[0] != epochs[1]
    with ds.loader("inline") as loader:
        loader.set_state(state)
        assert [firsts_of(batch) for batch in loader] == epochs[1][5:]
    fixed = arrays_of("chunks", tmp_path).patches((2, 2, 3)).shuffle(seed=3, window="chunks", reshuffle=False)
    with fixed.batch(len(fixed)).loader("inline") as loader:
        assert firsts_of(next(iter(loader))) == firsts_of(next(iter(loader)))


@pytest.mark.slow
def test_worker_processes_take_the_same_chunks(tmp_path, workers_stay):
    ds = arrays_of("zarr", tmp_path).patches((2, 2, 3)).shuffle(seed=3, window="chunks")
    found = firsts_of(ds)
    with ds.batch(5).loader("processes", workers=1) as loader:
        assert [first for batch in loader for first in firsts_of(batch)] == found


def test_arrays_side_by_side_come_in_the_chunks_of_the_first(tmp_path):
    ds = ps.zip((arrays_of("chunks", tmp_path), arrays_of("zarr", tmp_path, ARRAY * 2, (10, 12, 9))))
    for rows in (ds, ds.patches((2, 5, 3))):
        shuffled = list(rows.shuffle(seed=1, window="chunks"))
        assert len(shuffled) == len(rows)
        for x, y in shuffled:
            assert np.array_equal(2 * x, y)


def test_text_in_chunks_comes_beside_numbers(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("n", data=np.arange(9), chunks=(4,))
        file.create_dataset("s", data=[f"text {i}" for i in range(9)], chunks=(3,))
    for names in (["n", "s"], ["s", "n"]):
        found = list(ps.from_hdf5(tmp_path / "x.h5", names).shuffle(seed=1, window="chunks"))
        assert sorted(int(each["n"]) for each in found) == list(range(9))
        assert all(each["s"] == f"text {each['n']}" for each in found)


@pytest.mark.parametrize("kind", ["memory", "npy", "hdf5"])
def test_data_without_chunks_are_refused(kind, tmp_path):
    with pytest.raises(ps.ArgumentError, match=r"stored in chunks.*has none\. Give a number: shuffle\(window=4096\)"):
        arrays_of(kind, tmp_path).shuffle(seed=1, window="chunks")


def test_chunks_behind_another_step_are_refused(tmp_path):
    for step in (lambda ds: ds.map(np.copy), lambda ds: ds[1:], lambda ds: ds.batch(2)):
        with pytest.raises(ps.ArgumentError, match="directly after"):
            step(arrays_of("chunks", tmp_path)).shuffle(window="chunks")


def test_every_place_of_a_grid_is_in_one_chunk():
    chunks = Chunks((np.array([0, 2, 3]), np.array([0, 1, 4])))
    assert chunks.sizes.tolist() == [2, 6, 1, 3]
    places = [chunks.places(chunk, np.arange(size)) for chunk, size in enumerate(chunks.sizes)]
    assert places[1].tolist() == [1, 2, 3, 5, 6, 7]
    assert sorted(np.concatenate(places)) == list(range(12))


def test_a_patch_that_begins_at_each_place_is_counted():
    node = Patches(None, (2, 3), (1, 2), (4, 8), "")
    assert node.grid == (3, 3)
    (need,) = node.demand(0, np.arange(9))
    assert need.indices.tolist() == [8 * i + 2 * j for i in range(3) for j in range(3)]
