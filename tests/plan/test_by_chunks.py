"""`shuffle(window="chunks")`: elements that begin in one chunk come together, whatever stands before the shuffle."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock as ps
from penstock.plan._chunks import Chunks
from penstock.plan._node import walk
from penstock.plan._text import identity
from tests.plan.test_patches import ARRAY, CHUNKS, SHAPE, arrays_of
from tests.strategies import Chunked, Parted


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
    from penstock.volumes.hdf5 import OpenHdf5Source

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
    from penstock.volumes.hdf5 import OpenHdf5Source

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


# ---------------------------------------------------------------------------------------------- after other steps


class Decoding(Parted):
    """Numbers of which two parts are kept. It notes each part that it decodes."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.decoded = []

    def read_into(self, indices, out):
        for part in (np.searchsorted(self.part_bounds, indices, side="right") - 1).tolist():
            if part not in self.decoded[-2:]:
                self.decoded.append(part)
        super().read_into(indices, out)


def numbers():
    """A source of a hundred numbers in parts of ten."""
    return Decoding([10] * 10)


def parts_of(ds):
    return [first // 10 for first in firsts_of(ds)]


def runs_of(parts):
    return [part for part, _ in itertools.groupby(parts)]


STEPS = {
    "nothing": lambda ds: ds,
    "first part of a split by shares": lambda ds: ds.split(0.75, 0.25)[0],
    "second part of a split by shares": lambda ds: ds.split(0.75, 0.25)[1],
    "split by counts": lambda ds: ds.split(30, 40, 30)[1],
    "split by classes": lambda ds: ds.split(0.5, 0.5, stratify=np.arange(100) % 3, seed=1)[1],
    "split by groups": lambda ds: ds.split(0.5, 0.5, groups=np.arange(100) // 4, seed=1)[0],
    "split of chunks in an order": lambda ds: ds.shuffle(3, window="chunks", reshuffle=False).split(0.75, 0.25)[0],
    "take": lambda ds: ds.take(35),
    "skip": lambda ds: ds.skip(35),
    "shard": lambda ds: ds.shard(1, 3),
    "slice backwards": lambda ds: ds[80:3:-2],
    "indices that ascend": lambda ds: ds[np.arange(7, 90, 3)],
    "mask": lambda ds: ds[np.arange(100) % 7 > 3],
    "map": lambda ds: ds.map(lambda x: x),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x),
    "cast": lambda ds: ds.cast("float32"),
    "select and rename": lambda ds: ps.zip({"x": ds}).rename({"x": "y"}).select("y").map(lambda e: e["y"]),
    "zip": lambda ds: ps.zip((ps.range(100), ds)),
    "concatenate": lambda ds: ps.concatenate([ds.take(20), ds.skip(60)]),
    "cache": lambda ds: ds.cache(),
    "several": lambda ds: ds.skip(5).map(lambda x: x).split(0.6, 0.4)[0].shard(0, 2).cast("int32"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_each_part_is_decoded_once_after_steps_that_keep_its_elements_together(step):
    ds = step(ps.from_source(numbers()))
    plain, found = firsts_of(ds), firsts_of(ds.shuffle(1, window="chunks"))
    assert sorted(found) == sorted(plain)
    assert found != plain
    assert sorted(runs_of(x // 10 for x in found)) == sorted(set(parts_of(ds)))
    fresh = numbers()
    batches = step(ps.from_source(fresh)).shuffle(1, window="chunks").batch(4)
    assert batches.element_spec is not None  # runs the function
    fresh.decoded.clear()
    with batches.loader("inline") as loader:
        assert sum(batch[0].size if isinstance(batch, tuple) else batch.size for batch in loader) == len(found)
    assert sorted(fresh.decoded) == sorted(set(parts_of(ds)))


def test_a_part_that_two_folds_have_comes_in_two_pieces():
    train, _ = ps.from_source(numbers()).k_folds(4)[1]
    assert sorted(runs_of(parts_of(train.shuffle(1, window="chunks")))) == [0, 1, 2, 5, 6, 7, 7, 8, 9]


CROSSING = {
    "batch": lambda ds: ds.batch(4),
    "padded_batch": lambda ds: ds.padded_batch(4),
    "windows": lambda ds: ds.windows(3, shift=2),
    "windows with a tail": lambda ds: ds.windows(3, shift=4, tail=True),
    "windows of groups": lambda ds: ds.windows(3, groups=np.arange(100) // 25),
    "windows by name": lambda ds: ps.zip({"x": ds}).windows({"x": [0, 1, 2]}).map(lambda e: e["x"]),
}


@pytest.mark.parametrize("step", CROSSING.values(), ids=CROSSING)
def test_groups_of_elements_that_begin_in_one_part_come_together(step):
    ds = step(ps.from_source(numbers()))
    shuffled = ds.shuffle(1, window="chunks")
    assert sorted(firsts_of(shuffled)) == firsts_of(ds)
    assert runs_of(parts_of(shuffled)) != list(range(10))
    assert sorted(runs_of(parts_of(shuffled))) == list(range(10))


@pytest.mark.parametrize(
    "step", [lambda ds: ds.batch(4).unbatch(), lambda ds: ds.map(lambda x: x, batched=4)], ids=["unbatch", "map"]
)
def test_elements_that_are_taken_apart_stay_with_the_part_in_which_their_group_begins(step):
    shuffled = step(ps.from_source(numbers())).shuffle(1, window="chunks")
    found = firsts_of(shuffled)
    assert sorted(found) == list(range(100))
    assert sorted(runs_of([x // 4 * 4 // 10 for x in found])) == list(range(10))


def test_a_part_of_a_split_may_end_within_a_part_of_the_source():
    train, test = ps.from_source(Parted([4, 0, 4, 4])).split(0.5, 0.5)
    assert {frozenset(each) for each in halves(firsts_of(train.shuffle(1, window="chunks")), 4)} == {
        frozenset({0, 1, 2, 3}), frozenset({4, 5}),
    }  # fmt: skip
    assert {frozenset(each) for each in halves(firsts_of(test.shuffle(1, window="chunks")), 8)} == {
        frozenset({6, 7}), frozenset({8, 9, 10, 11}),
    }  # fmt: skip


def halves(found, border):
    """The elements below a border and those from it on, as they follow each other."""
    return [list(each) for _, each in itertools.groupby(found, key=lambda x: x >= border)]


ORDERS = {
    "parts": (
        lambda: ps.from_source(Parted([3, 0, 2, 4, 1])),
        "from_source#f33e23 > shuffle#442c1e",
        [[9, 7, 5, 6, 8, 3, 4, 1, 2, 0], [5, 8, 7, 6, 1, 2, 0, 4, 3, 9]],
    ),
    "rows": (
        lambda: ps.from_source(Chunked(np.arange(24).reshape(4, 6), (2, 3))),
        "from_source#201c3e > shuffle#cacccc",
        [[2, 3, 0, 1], [1, 0, 3, 2]],
    ),
    "patches": (
        lambda: ps.from_source(Chunked(np.arange(24).reshape(4, 6), (2, 3))).patches((2, 2), stride=1),
        "from_source#b558da > patches#f705fe > shuffle#361b32",
        [
            [13, 14, 11, 12, 10, 3, 9, 8, 4, 0, 1, 5, 2, 6, 7],
            [11, 10, 12, 0, 5, 1, 7, 2, 6, 4, 8, 9, 3, 13, 14],
        ],
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_seed_is_a_promise_and_so_is_its_line_in_a_state(name):
    make, line, orders = ORDERS[name]
    node = make().shuffle(5, window="chunks")._node
    assert identity(node) == line
    for epoch, order in enumerate(orders):
        (need,) = node.demand(epoch, np.arange(len(order)))
        assert need.indices.tolist() == order


@pytest.mark.parametrize(
    "cut", [lambda ds: ds[5:70], lambda ds: ds.split(0.5, 0.5)[1].take(11), lambda ds: ds.skip(30)], ids=range(3)
)
def test_patches_are_cut_by_position_also_where_chunks_have_several_axes(cut):
    ds = cut(ps.from_source(Chunked(ARRAY, CHUNKS)).patches((2, 3, 3)))
    found = firsts_of(ds.shuffle(1, window="chunks"))
    assert sorted(found) == firsts_of(ds)
    runs = runs_of(map(chunk_of, found))
    assert len(runs) == len(set(runs)) == len(set(map(chunk_of, firsts_of(ds))))
    assert runs != sorted(runs)


def test_patches_of_several_arrays_come_by_chunks():
    arrays = [ARRAY, ARRAY[:, :5, :4] + ARRAY.size]
    ds = ps.concatenate([ps.from_source(Chunked(each, CHUNKS)).patches((2, 2, 2)).skip(3) for each in arrays])
    found = firsts_of(ds.shuffle(1, window="chunks"))
    assert sorted(found) == firsts_of(ds)
    places = [(int(x >= ARRAY.size), *np.argwhere(arrays[int(x >= ARRAY.size)] == x)[0] // CHUNKS) for x in found]
    assert len(runs_of(places)) == len(set(places))
    arrays_mixed = runs_of(number for number, *_ in runs_of(places))
    assert len(arrays_mixed) > 2


def test_rows_of_chunks_are_read_by_chunk_after_steps(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    from penstock.volumes.hdf5 import OpenHdf5Source

    reads = []
    part = OpenHdf5Source.part
    monkeypatch.setattr(OpenHdf5Source, "part", lambda self, box: reads.append(box) or part(self, box))
    ds = arrays_of("chunks", tmp_path).map(np.copy)
    ds = ps.concatenate([ds[:3], ds[6:]]).shuffle(seed=1, window="chunks")
    assert len({id(each.opens) for each in walk(ds._node) if each.opens is not None}) == 1
    assert ds.element_spec.shape == (12, 9)  # runs the function
    reads.clear()
    with ds.batch(3).loader("inline") as loader:
        assert sum(map(len, loader)) == 7
    assert len(reads) == len({str(box) for box in reads}) == 27


def test_the_plan_that_fills_a_cache_stays_as_it_is():
    ds = ps.from_source(Chunked(ARRAY, CHUNKS)).cache()
    assert ds.shuffle(1, window="chunks")._node.source is ds._node
    assert ds.map(np.copy).shuffle(1, window="chunks")._node.source.source is ds._node


def test_data_beside_in_an_order_of_their_own_stay_as_they_are():
    other = ps.from_source(Chunked(ARRAY, CHUNKS)).shuffle(2)
    shuffled = ps.zip((ps.from_source(Chunked(ARRAY, CHUNKS)), other)).shuffle(1, window="chunks")
    assert shuffled._node.source.inputs[1] is other._node


def test_a_row_group_is_decoded_once_for_each_part_of_a_split(tmp_path, decoded):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "a.parquet", row_group_size=10)
    train, test = ps.from_parquet(tmp_path / "a.parquet").split(0.75, 0.25)
    for ds, groups in ((train, range(8)), (test, range(7, 10))):
        shuffled = ds.shuffle(1, window="chunks").batch(4)
        with shuffled.loader("inline") as loader:
            found = [int(x) for batch in loader for x in batch["x"]]
        assert sorted(found) == [int(each["x"]) for each in ds]
        assert len(runs_of(x // 10 for x in found)) == len(groups)
        decoded.clear()
        with shuffled.loader("threads", workers=2) as loader:
            assert [int(x) for batch in loader for x in batch["x"]] == found
        assert sorted(decoded[: len(groups)]) == [*groups]  # two threads decode side by side


# ---------------------------------------------------------------------------------------------- refusals


REFUSED = {
    "split with a seed": (
        lambda ds: ds.split(0.8, 0.2, seed=7)[0].map(lambda x: x),
        r"after split\(seed=7\)\. Split by range, .* shuffle\(seed=7, window='chunks', reshuffle=False\)\.split",
    ),
    "shuffle": (lambda ds: ds.shuffle(2), r"after shuffle\(seed=2\)\. Leave out shuffle\(seed=2\)\.$"),
    "shuffle by chunks": (lambda ds: ds.shuffle(2, window="chunks"), r"Leave out shuffle\(seed=2, window='chunks'\)\."),
    "indices": (lambda ds: ds[[3, 1]], r"after index\(2 integers\)\. Sort the indices\."),
    "repeat": (lambda ds: ds.repeat(2), r"Put shuffle\(window='chunks'\) before repeat\(2\), or give a number"),
    "filter": (
        lambda ds: ds.filter(bool),
        r"after filter\(bool\)\. Put shuffle\(window='chunks'\) before filter",
    ),
    "stream beside": (lambda ds: ps.zip((ds.filter(bool), ds)), r"after filter\(bool\)"),
    "interleave": (lambda ds: ps.interleave([ds, ds]), r"before interleave"),
    "no chunks": (
        lambda ds: ps.concatenate([ds, ps.range(3).map(lambda x: x)]),
        r"stored in chunks.*range\(3\) has none\. Give a number: shuffle\(window=4096\)\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_step_after_which_chunks_are_not_known(name):
    step, text = REFUSED[name]
    with pytest.raises(ps.ArgumentError, match=text):
        step(ps.from_source(numbers())).shuffle(1, window="chunks")


@pytest.mark.parametrize("step", [lambda ds: ds[::2], lambda ds: ds.shard(0, 2), lambda ds: ds.batch(2)], ids=range(3))
def test_steps_with_gaps_after_patches_along_several_axes_are_refused(step):
    with pytest.raises(ps.ArgumentError, match=r"cannot tell which these are after .*\. Put shuffle"):
        step(ps.from_source(Chunked(ARRAY, CHUNKS)).patches((2, 3, 3))).shuffle(1, window="chunks")


@pytest.mark.parametrize("bounds", [[], [1, 5], [0, 4], [0, 4, 2, 5]], ids=str)
def test_bounds_that_are_none_of_the_elements_are_refused(bounds):
    class Wrong(Parted):
        part_bounds = np.array(bounds, np.int64)

    with pytest.raises(
        ps.SourceError, match=r"^part_bounds of from_source.* begin with 0, never descend, and end with 5"
    ):
        ps.from_source(Wrong([2, 3])).shuffle(1, window="chunks")


def test_any_object_may_say_its_parts():
    class Plain:
        element_spec = ps.ArraySpec((), "int64")
        part_bounds = np.array([0, 4, 8])

        def __len__(self):
            return 8

        def read_into(self, indices, out):
            out[...] = indices

    found = firsts_of(ps.from_source(Plain()).shuffle(1, window="chunks"))
    assert sorted(found) == list(range(8))
    assert len({x // 4 for x in found[:4]}) == 1


def test_what_has_no_element_is_given_back(tmp_path):
    assert firsts_of(ps.from_source(numbers()).take(0).shuffle(1, window="chunks")) == []


# ---------------------------------------------------------------------------------------------- arithmetic


def chunk_numbers(chunks):
    """The chunk of each element."""
    found = {}
    for number, size in enumerate(chunks.sizes):
        members = chunks.elements(number, np.arange(size)).tolist()
        assert members == sorted(members)
        found |= dict.fromkeys(members, number)
    assert sorted(found) == list(range(len(found))) == list(range(int(chunks.sizes.sum())))
    return [found[each] for each in range(len(found))]


def grouping(labels):
    """What is alike, by its first place."""
    return [labels.index(each) for each in labels]


axes = st.integers(1, 5).flatmap(
    lambda n: st.sets(st.integers(1, n), max_size=2).map(lambda cuts: np.array(sorted({0, n, *cuts})))
)
grids = st.lists(axes, min_size=1, max_size=3).map(lambda firsts: Chunks.of_grid(*firsts))


@given(st.lists(grids, min_size=1, max_size=3), st.data())
def test_chunks_of_elements_are_those_of_lists(several, data):
    chunks = Chunks.joined(several)
    want = [(number, each) for number, one in enumerate(several) for each in chunk_numbers(one)]
    assert grouping(chunk_numbers(chunks)) == grouping(want)
    for _ in range(3):
        chosen = data.draw(st.slices(len(want)))
        start, stop, step = chosen.indices(len(want))
        cut = chunks.sliced(start, step, len(range(start, stop, step)))
        if cut is None:
            assert step != 1
        else:
            want, chunks = want[chosen], cut
            assert grouping(chunk_numbers(chunks)) == grouping(want)
    if chunks.bounds is not None:
        mask = data.draw(st.lists(st.booleans(), min_size=len(want), max_size=len(want)))
        places = np.flatnonzero(mask)
        assert grouping(chunk_numbers(chunks.chosen(places))) == grouping(list(itertools.compress(want, mask)))
        thrice = [each for each in want for _ in range(3)][: 3 * len(want) - 1]
        assert grouping(chunk_numbers(chunks.apart(3, len(thrice)))) == grouping(thrice)


def test_every_place_of_a_grid_is_in_one_chunk():
    chunks = Chunks.of_grid(np.array([0, 2, 3]), np.array([0, 1, 4]))
    assert chunks.sizes.tolist() == [2, 6, 1, 3]
    found = [chunks.elements(chunk, np.arange(size)).tolist() for chunk, size in enumerate(chunks.sizes)]
    assert found == [[0, 4], [1, 2, 3, 5, 6, 7], [8], [9, 10, 11]]
