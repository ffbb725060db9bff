import math
import os
import tracemalloc
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base._random import seeded_globals
from penstock.plan._reader import OpenSources, Reader


def lists(ds):
    return [x.tolist() for x in ds]


@pytest.mark.parametrize(
    ("count", "size", "drop", "length"),
    [(6, 3, False, 2), (7, 3, False, 3), (7, 3, True, 2), (2, 3, False, 1), (2, 3, True, 0), (0, 3, False, 0)],
)
def test_length_is_rounded_up_or_down(count, size, drop, length):
    ds = ps.range(count).batch(size, drop_remainder=drop)
    assert len(ds) == length == len(lists(ds))


def test_only_the_last_batch_is_short():
    assert lists(ps.range(7).batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert lists(ps.range(7).batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]


def test_first_axis_varies_only_if_a_batch_is_short():
    assert ps.range(6).batch(3).element_spec == ps.ArraySpec((3,), "int64")
    assert ps.range(7).batch(3).element_spec == ps.ArraySpec((None,), "int64")
    assert ps.range(7).batch(3, drop_remainder=True).element_spec == ps.ArraySpec((3,), "int64")
    assert ps.range(7).repeat().batch(3).element_spec == ps.ArraySpec((3,), "int64")


def test_batches_of_batches():
    assert ps.range(8).batch(2).batch(2)[1].tolist() == [[4, 5], [6, 7]]


def test_batch_of_a_batch_that_may_be_short_is_refused_with_the_cure():
    with pytest.raises(ps.SpecError, match=r"batch\(2\) stacks elements.*\(None,\) int64.*drop_remainder=True\.$"):
        _ = ps.range(7).batch(3).batch(2).element_spec


def test_short_batch_stays_short_wherever_it_is_put():
    ds = ps.range(7).batch(3)
    assert lists(ds[::-1]) == [[6], [3, 4, 5], [0, 1, 2]]
    assert sorted(lists(ds.shuffle(1))) == sorted(lists(ds))
    assert lists(ds.repeat(2)) == lists(ds) * 2


def test_unbatch_undoes_batch():
    for size in (1, 2, 3, 7, 9):
        ds = ps.range(7).batch(size).unbatch()
        assert [int(x) for x in ds] == list(range(7))
        assert len(ds) == 7
        assert ds.element_spec == ps.ArraySpec((), "int64")


def test_unbatch_of_a_part_of_what_has_no_end():
    rows = ps.from_arrays(np.arange(6).reshape(3, 2)).repeat()
    ds = rows.skip(1).unbatch()
    assert ds.length == math.inf
    assert [int(ds[i]) for i in range(6)] == [2, 3, 4, 5, 0, 1]
    assert [int(x) for x in rows.take(4).unbatch()] == [0, 1, 2, 3, 4, 5, 0, 1]


def test_unbatch_takes_rows_of_any_element_apart():
    ds = ps.from_arrays(np.arange(12).reshape(2, 3, 2)).unbatch()
    assert lists(ds) == np.arange(12).reshape(6, 2).tolist()
    assert ds[4].tolist() == [8, 9]


def _saved(folder, array):
    np.save(folder / "ds.npy", array)
    return np.load(folder / "ds.npy", mmap_mode="r")


FILMS = np.arange(6 * 4 * 3, dtype="float32").reshape(6, 4, 3)
STACKS = {
    "an array": lambda folder: FILMS,
    "a file": lambda folder: _saved(folder, FILMS),
    "a file in Fortran order": lambda folder: _saved(folder, np.asfortranarray(FILMS)),
    "some of a file": lambda folder: _saved(folder, FILMS)[1:5, :, 1:],
    "every other of a file": lambda folder: _saved(folder, FILMS)[::2],
    "parts of a file": lambda folder: _saved(folder, FILMS)[:, 1:3],
    "a file backwards": lambda folder: _saved(folder, FILMS)[::-1],
    "an array backwards": lambda folder: FILMS[::-1, ::-1],
    "one again and again": lambda folder: np.broadcast_to(FILMS[0], FILMS.shape),
    "columns": lambda folder: FILMS[..., 1],
}


@pytest.mark.parametrize("stacks", STACKS)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_parts_are_the_same_read_alone_or_not(stacks, executor, tmp_path):
    array = STACKS[stacks](tmp_path)
    parts = np.asarray(array).reshape(-1, *array.shape[2:])
    ds = ps.zip({"x": ps.from_arrays(array), "i": ps.from_arrays(np.arange(len(parts)).reshape(array.shape[:2]))})
    for chosen, begin in (
        (ds, 0),
        (ds[1:], array.shape[1]),
        (ds.cast({"x": "float16", "i": "int32"}).skip(1), array.shape[1]),
    ):
        unbatched = chosen.unbatch()
        assert len(unbatched) == len(parts) - begin
        assert (unbatched[-1]["x"] == parts[-1]).all()
        with unbatched.shuffle(seed=1).batch(5).loader(executor) as loader:
            for batch in loader:
                np.testing.assert_array_equal(batch["x"], parts[batch["i"]])
        assert unbatched.batch(4).unbatch().element_spec == unbatched.element_spec


def test_nothing_has_no_parts():
    ds = ps.from_arrays(np.zeros((4, 3)))
    for nothing in (ds[:0], ds[:0][:0], ds.take(0).skip(1)):
        assert len(nothing.unbatch()) == 0
        assert list(nothing.unbatch()) == []


def test_parts_without_values_are_counted():
    array = np.zeros((3, 2, 0), "float32")
    for stacked in (array, array[:, ::-1]):
        assert [part.shape for part in ps.from_arrays(stacked).unbatch()] == [(0,)] * 6


def test_a_part_of_a_large_element_is_read_alone(tmp_path):
    films = np.lib.format.open_memmap(tmp_path / "films.npy", "w+", "float64", (3, 10**7, 2))  # 480 MB, of holes
    films[2, 1234] = 5, 6
    films.flush()
    ds = ps.from_npy(tmp_path / "films.npy").unbatch()
    assert repr(ds).splitlines()[1] == "from_npy(films.npy): 3 elements, (10000000, 2) float64, random"
    with ds.batch(8).loader(memory_limit=2**20) as loader:
        assert loader.projected_nbytes < 2**20
        assert next(iter(loader)).shape == (8, 2)
    assert ds[2 * 10**7 + 1234].tolist() == [5, 6]
    os.truncate(tmp_path / "films.npy", 1000)
    with pytest.raises(ps.SourceError, match=r"films\.npy\[2, 1234\]"):
        ds[2 * 10**7 + 1234]


def test_unbatch_runs_a_function_once_a_batch_when_read_in_order():
    ran = []
    ds = ps.range(6).batch(3).map(lambda x: ran.append(x[0]) or x, element_spec=ps.ArraySpec((3,), "int64")).unbatch()
    assert [int(x) for x in ds] == list(range(6))
    assert ran == [0, 3]


@pytest.mark.parametrize(
    "between",
    [lambda ds: ds, lambda ds: ds.map(np.negative).cast("float32"), lambda ds: ps.zip((ds, ds))],
    ids=["nothing", "map and cast", "zip"],
)
def test_unbatch_finds_the_short_batch_through_steps_that_keep_order(between):
    ds = between(ps.range(7).batch(3)).unbatch()
    assert len(ds) == len(list(ds)) == 7


def test_unbatch_refuses_a_short_batch_that_may_be_anywhere():
    with pytest.raises(ps.SpecError, match=r"where the short batch is, but after shuffle\(seed=0\) it may be anywhere"):
        len(ps.range(7).batch(3).shuffle().unbatch())


def test_unbatch_refuses_batches_that_end_unlike():
    with pytest.raises(ps.SpecError, match="where the short batch is, but after zip"):
        len(ps.zip((ps.range(5).batch(4), ps.range(6).batch(4))).unbatch())


@pytest.mark.parametrize("arrays", [np.zeros(3), {"x": np.zeros((3, 2)), "y": np.zeros((3, 4))}])
def test_unbatch_refuses_elements_without_a_common_axis(arrays):
    with pytest.raises(ps.SpecError, match=r"every leaf needs a first axis, and all the same\."):
        len(ps.from_arrays(arrays).unbatch())


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("access", ["random", "stream"])
def test_unbatch_takes_padded_batches_apart(access, executor):
    spec = {"r": ps.ArraySpec((None,), "int64"), "s": ps.ArraySpec((), "U")}
    ragged = ps.range(8).map(lambda i: {"r": np.arange(i % 3), "s": "e" * int(i)}, element_spec=spec)
    if access == "stream":
        ragged = ragged.filter(lambda _: True)
    ds = ragged.padded_batch(4, drop_remainder=True).unbatch()
    assert ds.element_spec == spec
    assert ds.length == (8 if access == "random" else None)
    with ds.padded_batch(8).loader(executor) as loader:
        (all_of_it,) = loader
    assert all_of_it["r"].tolist() == [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    assert all_of_it["s"].tolist() == ["e" * i for i in range(8)]


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_unbatch_takes_what_has_an_unknown_number_of_rows_apart_in_a_stream(executor):
    films = ps.from_generator(
        lambda: (np.full((k, 2), k) for k in (2, 0, 3)), element_spec=ps.ArraySpec((None, 2), "int64")
    )
    ds = films.unbatch()
    assert ds.element_spec == ps.ArraySpec((2,), "int64")
    assert ds.length is None
    with ds.batch(5).loader(executor) as loader:
        assert [x[:, 0].tolist() for x in loader] == [[2, 2, 3, 3, 3]]


@pytest.mark.parametrize(("count", "drop", "length"), [(20, False, 20), (22, True, 20), (22, False, None)])
def test_unbatch_knows_the_length_of_a_stream_whose_batches_are_all_as_large(count, drop, length):
    numbers = ps.from_generator(range, count, length=count)
    ds = numbers.batch(4, drop_remainder=drop).unbatch()
    assert ds.length == length
    assert [int(x) for x in ds] == list(range(length or count))
    with ds.batch(8).loader("inline") as loader:
        assert sum(map(len, loader)) == (length or count)


def test_unbatch_of_unknown_numbers_of_rows_says_how_to_have_random_access():
    ds = ps.range(3).map(lambda i: np.zeros((i, 2)), element_spec=ps.ArraySpec((None, 2), "float64"))
    with pytest.raises(ps.SpecError, match=r"how many rows each element has.*\(None, 2\) float64.*use flat_map"):
        len(ds.unbatch())
    assert len(list(ds.flat_map(lambda rows: rows))) == 3


def test_unbatch_refuses_leaves_of_unlike_numbers_of_rows():
    spec = (ps.ArraySpec((None,), "float64"), ps.ArraySpec((None,), "float64"))
    ds = ps.from_generator([(np.zeros(2), np.zeros(2)), (np.zeros(3), np.zeros(2))], element_spec=spec).unbatch()
    with pytest.raises(ps.SpecError, match=r"the leaves of element 1 of epoch 0 of from_generator.* have 2 and 3 rows"):
        list(ds)


def test_unbatch_of_an_endless_dataset_is_endless():
    ds = ps.range(4).batch(2).repeat().unbatch()
    assert ds.length == math.inf
    assert int(ds[6]) == 2


def test_text_of_fixed_size_is_stacked():
    assert ps.from_arrays(np.array(["a", "bcd"])).batch(2)[0].tolist() == ["a", "bcd"]


def test_a_batch_far_larger_than_the_data_takes_no_time_or_memory_for_what_is_not_there():
    tracemalloc.start()
    try:
        members, places = ps.range(20).batch(10**7)._node.members(np.array([0]))
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert members.tolist() == places.tolist() == [*range(20)]
    assert peak_nbytes < 100_000
    assert ps.range(20).batch(10**7)[0].tolist() == [*range(20)]


def test_unbatch_reads_element_after_element_in_the_same_memory():
    parts = ps.range(6).map(lambda index: np.full(100_000, index, np.float64)).unbatch()
    node = parts[::40_000].batch(15)._node
    reader = Reader(node, OpenSources(node), isolation=seeded_globals)
    reader.element(0, 0)
    tracemalloc.start()
    try:
        batch = reader.element(0, 0)
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert peak_nbytes < 1.5 * 8 * 100_000, "what the function returns, and no second one to put it into"


def test_unbatch_refuses_a_function_that_drops_rows():
    dataset = ps.range(10).batch(4).map(lambda batch: batch[batch % 5 != 4]).unbatch()
    with pytest.raises(
        ps.SpecError, match=r"unbatch\(\) counts on 4 rows in element 1 of map\(<lambda>\), but it has 3"
    ):
        list(dataset)


def rows_of(number: Any) -> Any:
    return {"x": np.full((int(number) % 3 + 1, 2), number), "text": "a" * int(number), "y": number}


def rows_from_generator() -> Any:
    yield from (rows_of(number) for number in range(7))


class Rows:
    """An object with elements of many sizes."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return rows_of(index)


UNDECLARED = {
    "map": lambda: ps.range(7).map(rows_of),
    "generator": lambda: ps.from_generator(rows_from_generator),
    "object": lambda: ps.from_source(Rows()),
    "list": lambda: ps.from_source([rows_of(number) for number in range(7)]),
    "flat_map": lambda: ps.range(7).flat_map(lambda number: [rows_of(number)]),
    "steps above": lambda: (
        ps.from_generator(rows_from_generator).map(lambda e: e).filter(lambda e: True).cast(None).shuffle(window=1)
    ),
    "columns": lambda: ps.range(7).map(rows_of).rename({"x": "z"}).rename({"z": "x"}).select("x", "text", "y"),
    "zip": lambda: ps.zip({"a": ps.from_source(Rows()), "b": ps.range(7)}).map(lambda e: e["a"])[:7],
}


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("kind", UNDECLARED)
def test_elements_of_any_size_need_no_declaration_before_a_step_that_pads(kind: str, executor: Any) -> None:
    ragged = UNDECLARED[kind]()
    with ragged.padded_batch(3).loader(executor) as loader:
        batches = list(loader)
    assert [batch["x"].shape for batch in batches] == [(3, 3, 2), (3, 3, 2), (1, 1, 2)]
    assert batches[0]["x"][1].tolist() == [[1, 1], [1, 1], [0, 0]]
    assert batches[0]["text"].tolist() == ["", "a", "aa"]
    bucketed = ragged.bucket_by_length(lambda e: len(e["x"]), [2], [2, 4])
    with bucketed.loader(executor) as loader:
        assert sum(len(batch["y"]) for batch in loader) == 7
    assert ragged.element_spec["x"].shape == (1, 2)


def test_drawn_elements_of_any_size_need_no_declaration_before_a_step_that_pads() -> None:
    drawn = ps.from_source(Rows()).sample(range(1, 8), replacement=False)
    assert sorted(size for batch in drawn.padded_batch(3) for size in batch["y"].tolist()) == [
        rows_of(number)["y"] for number in range(7)
    ]


def test_axes_that_are_declared_stay_before_a_step_that_pads() -> None:
    number = ps.ArraySpec((), "int64")
    spec = {"x": ps.ArraySpec((None, 2), "int64"), "text": ps.ArraySpec((), np.dtype("U")), "y": number}
    declared = ps.range(7).map(rows_of, element_spec=spec).padded_batch(3)
    assert declared.element_spec["x"].shape == (None, None, 2)
    assert ps.range(7).map(rows_of).padded_batch(3).element_spec["x"].shape == (None, None, None)
    assert ps.range(6).batch(2).map(lambda x: x).batch(3).element_spec.shape == (3, 2)
