"""What streams mean, one after the other; and what of them is refused, and how."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.texts import assert_refused

INT64 = ps.ArraySpec((), "int64")
ROW = ps.ArraySpec((None,), "int64")
ROW_OF_FLOATS = ps.ArraySpec((None,), "float32")


def numbers(*bounds: int, **options: Any) -> ps.Dataset:
    return ps.from_generator(range, *bounds, element_spec=INT64, **options)


def rows(*lengths: int) -> ps.Dataset:
    return ps.from_generator(lambda: map(np.arange, lengths), element_spec=ROW)


def lists(dataset: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in dataset]


# Where streams come from.


@pytest.mark.parametrize("iterable", [range(3), [0, 1, 2], (0, 1, 2), {0: "a", 1: "b", 2: "c"}, np.arange(3)], ids=repr)
def test_whatever_can_be_iterated_again_is_a_stream(iterable: Any) -> None:
    dataset = ps.from_generator(iterable)
    assert (dataset.access, dataset.length, dataset.element_spec) == ("stream", None, INT64)
    assert lists(dataset) == lists(dataset) == [0, 1, 2]


def test_a_function_may_return_anything_that_can_be_iterated() -> None:
    for made in (lambda: [0, 1], lambda: iter((0, 1)), lambda: (i for i in range(2)), lambda: ps.range(2)):
        assert lists(ps.from_generator(made)) == [0, 1]


RECORD = ps.ArraySpec((), [("number", "i4"), ("weight", "f4")])


@pytest.mark.parametrize(
    "make",
    [
        lambda records: records,
        lambda records: records.batch(3).unbatch(),
        lambda records: records.shuffle(seed=1, window=4),
        lambda records: records.windows(2, shift=2).unbatch(),
        lambda records: records.flat_map(lambda record: [record]),
    ],
    ids=["elements", "batch", "shuffle", "windows", "flat_map"],
)
@pytest.mark.parametrize("executor", [None, "inline", "threads"])
def test_records_that_a_generator_writes_into_one_array_are_not_the_last(make: Any, executor: Any) -> None:
    def written() -> Iterator[Any]:
        place = np.zeros(1, RECORD.dtype)
        for number in range(6):
            place["number"] = number
            yield place[0]  # a view, as no other scalar of NumPy is

    dataset = make(ps.from_generator(written, element_spec=RECORD))
    found = list(dataset) if executor is None else list(dataset.loader(executor))
    assert sorted(int(record["number"]) for record in found) == [*range(6)]


def test_a_function_may_change_the_records_of_a_generator() -> None:
    def double(record: Any) -> Any:
        record["number"] *= 2
        return record

    table = np.array([(1, 0), (2, 0)], RECORD.dtype)
    doubled = ps.from_generator(lambda: iter(table), element_spec=RECORD).map(double)
    for _ in range(2):
        assert [int(record["number"]) for record in doubled] == [2, 4]
    for record in ps.from_generator(lambda: iter(table), element_spec=RECORD):
        record["number"] = 7
    assert table["number"].tolist() == [1, 2]


def test_lines_of_a_file_are_text(tmp_path: Any) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\n\nthrée\n")

    def lines(path: Any) -> Iterator[str]:
        with open(path, encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)

    dataset = ps.from_generator(lines, path)
    assert list(dataset) == list(dataset) == ["one", "", "thrée"]


def test_building_and_printing_begins_no_generator_and_the_spec_begins_one() -> None:
    begun = []

    def watched(n: int) -> Iterator[int]:
        begun.append(n)
        yield from range(n)

    dataset = ps.from_generator(watched, 4).map(lambda x: x).batch(2).shuffle(window=3)
    assert "from_generator(watched)" in repr(dataset)
    assert begun == []
    assert dataset.element_spec == ps.ArraySpec((None,), "int64")
    assert len(begun) <= 2
    declared = ps.from_generator(watched, 4, element_spec=INT64)
    begun.clear()
    assert declared.batch(2).element_spec == ps.ArraySpec((None,), "int64")
    assert begun == []


def test_arguments_arrive_as_the_objects_that_they_are() -> None:
    array, seen = np.arange(4), []

    def each(array: Any) -> Iterator[Any]:
        seen.append(array)
        yield from array

    assert lists(ps.from_generator(each, array)) == [0, 1, 2, 3]
    assert all(one is array for one in seen)


def test_shards_are_dealt_in_turn_and_those_that_ended_are_passed_over() -> None:
    def part(index: int, count: int, least: int) -> Iterator[int]:
        yield from range(100 * index, 100 * index + least + 2 * index)

    dataset = ps.from_generator(part, 1, shards=3, element_spec=INT64)
    assert lists(dataset) == [0, 100, 200, 101, 201, 102, 202, 203, 204]


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_shard_without_elements_looks_like_the_others(executor: Any) -> None:
    def read(index: int, count: int, files: list[list[int]]) -> Iterator[int]:
        for file in files[index::count]:
            yield from file

    dataset = ps.from_generator(read, [[], [1, 2], [3]], shards=5)
    assert dataset.element_spec == INT64
    with dataset.batch(2).loader(executor) as loader:
        assert lists(loader) == [[1, 3], [2]]


def test_shards_that_look_unlike_are_told_with_the_cure() -> None:
    dataset = ps.from_generator(lambda index, _: iter([np.zeros(index)]), shards=2)
    with pytest.raises(
        ps.SpecError,
        match=r"from_generator\(<lambda>\), shards=2: all shards need elements that look the same, but the first of "
        r"shard 1 differs.* \(0,\) float64, the other of \(1,\) float64\. An axis that differs is None in "
        r"element_spec=\.",
    ):
        list(dataset)
    spec = ps.ArraySpec((None,), "float64")
    assert lists(ps.from_generator(lambda index, _: iter([np.zeros(index)]), shards=2, element_spec=spec)) == [[], [0]]


def test_a_dataset_of_several_of_which_one_gives_nothing_says_that_and_no_more() -> None:
    with pytest.raises(ps.SpecError, match=r"^range gave no element, .* Say it: element_spec=.*, or a tree of them\.$"):
        list(ps.concatenate([ps.range(2), ps.from_generator(range, 0)]))


# What steps mean.


STEPS: list[tuple[str, Callable[[ps.Dataset], Any], list[Any]]] = [
    ("filter", lambda ds: ds.filter(lambda x: x % 3 == 0), [0, 3, 6]),
    ("filter-numpy", lambda ds: ds.filter(lambda x: np.bool_(x > 6)), [7]),
    ("flat_map", lambda ds: ds.take(4).flat_map(lambda x: [x] * x), [1, 2, 2, 3, 3, 3]),
    ("flat_map-dataset", lambda ds: ds.take(4).flat_map(ps.range), [0, 0, 1, 0, 1, 2]),
    ("map", lambda ds: ds.map(lambda x: x * x), [0, 1, 4, 9, 16, 25, 36, 49]),
    ("take-more", lambda ds: ds.take(100), [*range(8)]),
    ("take-none", lambda ds: ds.take(0), []),
    ("skip", lambda ds: ds.skip(6), [6, 7]),
    ("skip-all", lambda ds: ds.skip(100), []),
    ("slice", lambda ds: ds[1:6:2], [1, 3, 5]),
    ("shard", lambda ds: ds.shard(1, 3), [1, 4, 7]),
    ("repeat", lambda ds: ds.take(2).repeat(3), [0, 1] * 3),
    ("repeat-ever", lambda ds: ds.take(2).repeat().take(5), [0, 1, 0, 1, 0]),
    ("batch", lambda ds: ds.batch(3), [[0, 1, 2], [3, 4, 5], [6, 7]]),
    ("batch-drop", lambda ds: ds.batch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]]),
    ("unbatch", lambda ds: ds.batch(3).unbatch(), [*range(8)]),
    ("take-unbatch", lambda ds: ds.batch(3).take(2).unbatch(), [*range(6)]),
    ("skip-unbatch", lambda ds: ds.batch(3).skip(1).unbatch(), [*range(3, 8)]),
    ("windows", lambda ds: ds.windows(3, shift=2, stride=2), [[0, 2, 4], [2, 4, 6]]),
    ("windows-none", lambda ds: ds.take(2).windows(3), []),
    ("concatenate", lambda ds: ps.concatenate([ds.take(2), ds.skip(6), ps.range(1)]), [0, 1, 6, 7, 0]),
    ("zip", lambda ds: ps.zip((ds, ds.map(lambda x: x + 1))).map(lambda xy: xy[0] * xy[1]).take(4), [0, 2, 6, 12]),
    ("interleave", lambda ds: ps.interleave([ds.take(1), ds.take(3), ds.take(2)]), [0, 0, 0, 1, 1, 2]),
    ("block", lambda ds: ps.interleave([ds.take(3), ds.skip(4)], block_length=2), [0, 1, 4, 5, 2, 6, 7]),
    ("shuffle-1", lambda ds: ds.shuffle(5, window=1), [*range(8)]),
]


@pytest.mark.parametrize(("step", "want"), [case[1:] for case in STEPS], ids=[case[0] for case in STEPS])
def test_what_a_step_makes_of_a_stream(step: Callable[[ps.Dataset], ps.Dataset], want: list[Any]) -> None:
    for start in (numbers(8), numbers(8, length=8)):
        dataset = step(start)
        assert lists(dataset) == want
        assert dataset.length in (None, len(want))
        if dataset.length != 0:  # of which there is nothing to load, and the loader says so
            with dataset.loader("inline") as loader:
                assert lists(loader) == want


def test_a_cycle_deals_as_tf_data_does() -> None:
    # A place whose input has ended passes its turn; the next input begins when the turn comes again.
    def dealt(lengths: list[int], cycle: int, block: int) -> list[int]:
        parts = [numbers(100 * k, 100 * k + n) for k, n in enumerate(lengths)]
        return lists(ps.interleave(parts, cycle_length=cycle, block_length=block))

    # As tensorflow 2.20 says of `Dataset.interleave` of the same ranges.
    assert dealt([1, 3, 2], 2, 1) == [0, 100, 101, 200, 102, 201]
    assert dealt([2, 4, 4], 2, 2) == [0, 1, 100, 101, 102, 103, 200, 201, 202, 203]
    assert dealt([3, 0, 4, 2], 2, 2) == [0, 1, 2, 200, 201, 300, 301, 202, 203]
    assert dealt([5, 1, 3, 2], 3, 1) == [0, 100, 200, 1, 201, 2, 300, 202, 3, 301, 4]


@pytest.mark.parametrize("dtype", [">i4", np.dtype("u1, >f8", align=True)], ids=["byte order", "padding"])
def test_what_is_stacked_has_the_dtype_of_its_elements(dtype: Any) -> None:
    stream = ps.from_generator([np.zeros(2, dtype)] * 5, element_spec=ps.ArraySpec((2,), dtype))
    for made in (stream.batch(2), stream.windows(2), stream.padded_batch(2), stream.batch(2).unbatch()):
        assert {element.dtype for element in made} == {np.dtype(dtype)}


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_numbers_of_another_byte_order_pass_through_every_step(executor: Any) -> None:
    data = np.arange(4, dtype=">i4")
    spec = ps.ArraySpec((), ">i4")
    for dataset in (ps.from_arrays(data), ps.from_generator(lambda: iter(data), element_spec=spec)):
        for made in (
            dataset.filter(lambda x: x >= 0),
            dataset.map(lambda x: x, element_spec=spec),
            dataset.flat_map(lambda x: [x], element_spec=spec),
            dataset.bucket_by_length(lambda x: x, [], [1]).unbatch(),
        ):
            assert made.element_spec == spec
            with made.loader(executor=executor, workers=1) as loader:
                assert lists(loader) == lists(made) == [0, 1, 2, 3]


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_empty_list_is_of_the_dtype_that_was_declared(executor: Any) -> None:
    spec = {"boxes": ps.ArraySpec((None,), "int32"), "words": ps.ArraySpec((None,), "U")}

    def found(i: int) -> dict[str, Any]:
        return {"boxes": [] if i % 2 else np.ones(2, "int32"), "words": ["a"] * (i % 2)}

    for dataset in (
        ps.range(4).map(found, element_spec=spec),
        ps.from_generator(lambda: map(found, range(4)), element_spec=spec),
        ps.range(4).flat_map(lambda i: [found(i)], element_spec=spec),
    ):
        with dataset.loader(executor=executor) as loader:
            elements = list(loader)
        assert [element["boxes"].tolist() for element in elements] == [[1, 1], [], [1, 1], []]
        assert {element["boxes"].dtype for element in elements} == {np.dtype("int32")}
        assert [element["words"].tolist() for element in elements] == [[], ["a"], [], ["a"]]
    corners = ps.range(3).map(lambda i: [[1, 2, 3, 4]] * i, element_spec=ps.ArraySpec((None, 4), "int64"))
    with corners.loader(executor=executor) as loader:
        assert [element.shape for element in loader] == [(0, 4), (1, 4), (2, 4)]
    with pytest.raises(ps.SpecError, match=r"an array of \(1,\) float64 in \['boxes'\]"):
        ps.range(1).map(lambda _: {"boxes": [1.5], "words": []}, element_spec=spec)[0]


def test_padding_is_to_the_largest_of_the_batch_or_to_what_was_said() -> None:
    ragged = rows(1, 3, 0, 2)
    assert lists(ragged.padded_batch(2, padding_values=9)) == [[[0, 9, 9], [0, 1, 2]], [[9, 9], [0, 1]]]
    fixed = ragged.padded_batch(3, padded_shapes=(4,), drop_remainder=True)
    assert fixed.element_spec == ps.ArraySpec((3, 4), "int64")
    assert lists(fixed) == [[[0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]]]
    with pytest.raises(ps.ElementError, match=r"padded_batch\(2\): element 1 is \(3,\), larger than its padded shape"):
        list(ragged.padded_batch(2, padded_shapes=(2,)))


def test_an_element_that_is_too_large_has_its_own_number_wherever_its_batch_is() -> None:
    lengths = [1, 1, 1, 7, 2, 2, 1, 1]
    ragged = ps.from_source([np.zeros(n) for n in lengths], element_spec=ps.ArraySpec((None,), "float64"))
    for options in (
        {"length_fn": len, "boundaries": [3], "batch_sizes": [6, 2]},
        {"length_fn": len, "boundaries": [2], "batch_sizes": [6, 3]},
        {"lengths": lengths, "batch_size": 2},
        {"lengths": lengths, "max_tokens": 8},
    ):
        with pytest.raises(
            ps.ElementError, match=r"bucket_by_length\(.*\): element 3 is \(7,\), larger than its padded"
        ):
            list(ragged.bucket_by_length(**options, padded_shapes=(5,)))


def test_none_pads_with_zero_and_text_with_nothing() -> None:
    words = np.array([b"ab", b"cd"])
    specs = {"n": ps.ArraySpec((None,), "float32"), "word": ps.ArraySpec((None,), "S2")}
    pairs = ps.range(3).map(lambda i: {"n": np.ones(i, "float32"), "word": words[:i]}, element_spec=specs)
    for values in ({}, {"padding_values": None}, {"padding_values": {"n": None, "word": None}}):
        (batch,) = pairs.padded_batch(3, **values)
        assert batch["n"].tolist() == [[0, 0], [1, 0], [1, 1]]
        assert batch["word"].tolist() == [[b"", b""], [b"ab", b""], [b"ab", b"cd"]]
    (batch,) = pairs.padded_batch(3, padding_values={"n": -1, "word": None}, padded_shapes={"n": (3,), "word": None})
    assert batch["n"].tolist() == [[-1, -1, -1], [1, -1, -1], [1, 1, -1]]
    assert batch["word"].shape == (3, 2)


def test_padding_values_are_those_of_their_leaves() -> None:
    pairs = ps.zip({"b": rows(1, 2), "a": rows(2, 1).map(lambda x: x.astype("f4"), element_spec=ROW_OF_FLOATS)})
    (batch,) = pairs.padded_batch(2, padding_values={"b": 7, "a": 0.5})
    assert {name: leaf.tolist() for name, leaf in batch.items()} == {"b": [[0, 7], [0, 1]], "a": [[0, 1], [0, 0.5]]}
    for values in ({"a": 0.5, "b": 7}, (7, 0.5), {}, {"b": 7}):
        with pytest.raises(ps.SpecError, match=r"padding_values has another structure than .* one for each"):
            assert pairs.padded_batch(2, padding_values=values).element_spec
    with pytest.raises(ps.SpecError, match=r"element\['b'\] is \(None,\) int64, which cannot hold .* 0\.5"):
        assert pairs.padded_batch(2, padding_values=0.5).element_spec
    with pytest.raises(ps.ArgumentTypeError, match=r"needs shapes such as \(None, 3\), got -1"):
        rows(1).padded_batch(2, padded_shapes=(-1,))


@pytest.mark.parametrize("value", [math.nan, -1, "text", 256, 1j])
def test_a_padding_value_that_the_dtype_cannot_hold_is_refused_where_something_is_padded(value: Any) -> None:
    spec = ps.ArraySpec((None,), "uint8")
    stream = ps.from_generator(lambda: [np.zeros(2, "uint8")], element_spec=spec)
    with pytest.raises(ps.SpecError, match="cannot hold the padding value"):
        assert stream.padded_batch(2, padding_values=value).element_spec
    even = ps.from_arrays(np.zeros((2, 3), "uint8"))
    assert lists(even.padded_batch(2, padding_values=value)) == [[[0, 0, 0]] * 2]
    with pytest.raises(ps.SpecError, match="cannot hold the padding value"):
        assert even.padded_batch(2, padded_shapes=(4,), padding_values=value).element_spec


def test_buckets_are_given_when_they_are_full_and_the_rest_shortest_first() -> None:
    lengths = [5, 1, 2, 6, 3, 1, 9]
    short = rows(*lengths).bucket_by_length(len, [3, 6], [2, 2, 3])
    assert [batch.shape for batch in short] == [(2, 2), (2, 5), (1, 1), (2, 9)]
    dropped = rows(*lengths).bucket_by_length(len, [3, 6], [2, 2, 3], drop_remainder=True)
    assert [batch.shape for batch in dropped] == [(2, 2), (2, 5)]


def test_a_mix_ends_where_an_input_that_is_exhausted_has_its_turn() -> None:
    mixed = lists(ps.mix([numbers(1000, 2000), numbers(10)], [3, 1], seed=4))
    assert [x for x in mixed if x < 1000] == [*range(10)]
    large = [x for x in mixed if x >= 1000]
    assert large == [*range(1000, 1000 + len(large))]
    assert mixed == lists(ps.mix([ps.range(2000).skip(1000), ps.range(10)], [3, 1], seed=4))


def test_weights_of_a_mix_may_be_numpys() -> None:
    expected = lists(ps.mix([ps.range(200)] * 2, [3, 1]))
    for dtype in ("int64", "float32"):
        assert lists(ps.mix([ps.range(200)] * 2, np.array([3, 1], dtype))) == expected


def test_each_epoch_of_a_repeat_is_shuffled_anew_unless_told_otherwise() -> None:
    rounds = np.array(lists(numbers(40).shuffle(1, window=8).repeat(2))).reshape(2, 40)
    assert rounds[0].tolist() != rounds[1].tolist()
    assert sorted(rounds[1].tolist()) == [*range(40)]
    same = np.array(lists(numbers(40).shuffle(1, window=8, reshuffle=False).repeat(2))).reshape(2, 40)
    assert same[0].tolist() == same[1].tolist()


def test_numbers_drawn_for_an_element_are_those_of_its_place_in_the_stream() -> None:
    def draw(x: Any, rng: np.random.Generator) -> Any:
        return rng.integers(1 << 40)

    assert lists(numbers(10).random_map(draw, seed=3)) == lists(ps.range(10).random_map(draw, seed=3))


def test_lengths_are_told_where_they_are_known() -> None:
    known = numbers(10, length=10)
    assert len(known) == 10
    assert len(known.batch(4)) == 3
    assert len(known.take(4).repeat(3).skip(1)) == 11
    assert known.repeat().length == math.inf
    assert len(ps.zip((known, ps.range(10)))) == 10
    assert ps.zip((numbers(10), ps.range(7))).length is None
    for unknown, cure in (
        (
            known.filter(lambda x: True),
            r"filter\(<lambda>\) gives shows .* materialize\(path\) after it counts them; or put what",
        ),
        (
            known.flat_map(lambda x: [x]),
            r"flat_map\(<lambda>\) gives shows .* materialize\(path\) after it counts them; or put what",
        ),
        (numbers(10).filter(bool).batch(2), r"from_generator\(\w+\) gives shows .* from_generator\(length=\)"),
        (numbers(10).take(20).batch(2).take(9), r"from_generator\(\w+\) gives shows .* from_generator\(length=\)"),
    ):
        assert unknown.length is None
        for counted in (unknown, unknown.loader(executor="inline")):
            with pytest.raises(TypeError, match=rf"unknown length, so it has no len\(\)\. How many elements {cure}"):
                len(counted)
    with pytest.raises(TypeError, match=r"on_error='skip' leaves out .*; 'replace' keeps the length\."):
        len(ps.range(10).loader(executor="inline", on_error="skip"))
    assert bool(numbers(0))


@pytest.mark.slow
def test_how_to_learn_a_length_depends_on_who_does_not_know_it(tmp_path: Any) -> None:
    kept = ps.range(10).filter(lambda x: x % 3 == 0)
    for call in (lambda: len(kept.batch(2)), lambda: kept.map(np.negative).split(0.5, 0.5)):
        with pytest.raises(
            (TypeError, ValueError), match=r"unknown length.* filter\(<lambda>\) .*materialize\(path\) after it"
        ):
            call()
    assert [lists(part) for part in kept.materialize(tmp_path).split(0.5, 0.5)] == [[0, 3], [6, 9]]
    with pytest.raises(TypeError, match=r"say it there, as from_generator\(length=\) does"):
        len(numbers(3).batch(2))


def test_an_element_is_the_readers_own() -> None:
    buffer = np.zeros(2)

    def same() -> Iterator[Any]:
        for i in range(3):
            buffer[:] = i
            yield buffer

    kept = list(ps.from_generator(same))
    for element in kept:
        element += 1
    assert lists(kept) == [[1, 1], [2, 2], [3, 3]]
    assert buffer.tolist() == [2, 2]


def test_scalars_are_numpy_scalars_to_every_function_and_to_who_iterates() -> None:
    # As with random access: they can be hashed, formatted and multiplied with a list.
    names = {i: f"{i:03d}" for i in range(5)}

    def known(x: Any) -> bool:
        return bool(names[x]) and isinstance(x, np.int64)

    def named(x: Any) -> str:
        return names[x]

    text = ps.ArraySpec((), np.dtype("U"))
    for start in (numbers(5), numbers(5).batch(2).unbatch(), numbers(5).shuffle(window=1), ps.range(5)):
        for dataset in (
            start.map(named, element_spec=text),
            start.filter(known).map(named, element_spec=text),
            start.flat_map(lambda x: [named(x)], element_spec=text),
            start.random_map(lambda x, rng: named(x), element_spec=text),
        ):
            assert list(dataset) == [*names.values()]
            with dataset.loader("inline") as loader:
                assert list(loader) == [*names.values()]
        assert all(known(x) for x in start)


# What is refused.


def gives_something_else() -> Iterator[Any]:
    yield 1
    yield "one"


def fails_at_once() -> Iterator[Any]:
    raise OSError("no disk")


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: ps.from_generator(iter([1])),
        TypeError,
        (
            r"from_generator\(\) needs something that can be begun again.*"
            r"but a list_iterator can be iterated once\. Give the function that makes it.*"
        ),
    ),
    (lambda: ps.from_generator(i for i in range(2)), TypeError, r".*but a generator can be iterated once\..*"),
    (
        lambda: ps.from_generator(7),
        TypeError,
        (
            r"from_generator\(\) needs a generator function or an iterable, got 7, an "
            r"int\."
        ),
    ),
    (lambda: numbers(1, length=-1), ValueError, r"from_generator\(length=-1\): it must be at least 0\."),
    (lambda: numbers(1, length=2.0), TypeError, r"from_generator\(length=2\.0\): an integer is needed, not a float\."),
    (
        lambda: numbers(1, shards=2**70),
        ValueError,
        r"from_generator\(shards=\d+\): at most 4,096, for each has a process\.",
    ),
    (lambda: numbers(1, shards=0), ValueError, r"from_generator\(shards=0\): it must be at least 1\."),
    (lambda: ps.from_generator([1], shards=2), TypeError, r"from_generator\(shards=2\) needs a function, got a list\."),
    (
        lambda: ps.from_generator(range, 0).element_spec,
        ValueError,
        (
            r"range gave no element, so what elements look like "
            r"is unknown\. Say it: element_spec=.*"
        ),
    ),
    (lambda: ps.from_generator(lambda: [{}]).element_spec, ValueError, r".*no array at all as its first element\..*"),
    (lambda: ps.from_generator(lambda: [object()]).element_spec, ValueError, r".*a leaf that is an object.*"),
    (lambda: ps.from_generator(lambda: 7).element_spec, TypeError, r".* returned an int, which cannot be iterated\..*"),
    (
        lambda: ps.from_generator(fails_at_once).element_spec,
        ps.ElementError,
        r"from_generator\(fails_at_once\) at test_streams\.py:\d+ failed at element 0 of epoch 0: OSError: no disk",
    ),
    (
        lambda: list(ps.from_generator(gives_something_else)),
        ValueError,
        (
            r"from_generator\(gives_something_else\) at test_streams\.py:\d+ gave a str as element 1 of epoch 0, "
            r"but its element_spec is \(\) int64 \(as found on "
            r"element 0\)\. Every element of a dataset has one structure, shape and dtype.*"
        ),
    ),
    (
        lambda: list(ps.from_generator(lambda: (np.zeros(3), 1.0))),
        ValueError,
        r".* \(\) float64 as element 1 of .* It returned a tuple, whose parts are taken for elements: .*",
    ),
    (
        lambda: numbers(9)[3],
        TypeError,
        (
            r"\[3\] needs random access, but from_generator\(range\) gives elements one after "
            r"the other: this dataset is a stream\. Take it as it comes: next\(iter\(ds\.skip\(i\)\)\)\. "
            r"Or keep its elements: materialize\(path\) has random access\."
        ),
    ),
    (
        lambda: ps.range(9).filter(bool).batch(2)[0],
        TypeError,
        (
            r"\[0\] needs random access, but filter\(bool\) gives "
            r"elements one after the other.*"
        ),
    ),
    (
        lambda: numbers(9).shuffle(),
        TypeError,
        (
            r"shuffle\(\) needs random access, but from_generator\(range\) .* Give "
            r"window=, and that many elements are held and shuffled among themselves\. "
            r"Or keep its elements: materialize\(path\) has random access\."
        ),
    ),
    (lambda: numbers(9)[::-1], ValueError, r".*a stream cannot be read backwards\."),
    (lambda: numbers(9)[-3:], ValueError, r".*of unknown length cannot be counted from its end\."),
    (
        lambda: numbers(9).split(0.5, 0.5),
        ValueError,
        (
            r"split\(\) needs a known number of elements, but this is .*unknown "
            r"length\..*"
        ),
    ),
    (
        lambda: numbers(9, length=9).split(0.5, 0.5, seed=1),
        TypeError,
        r"split\(groups=, stratify=, seed=\) needs random access.*",
    ),
    (lambda: numbers(9, length=9).windows(2, groups=[0] * 9), TypeError, r"windows\(groups=\) needs random access.*"),
    (lambda: numbers(9).shuffle(window=0), ValueError, r"shuffle\(window=0\): it must be at least 1\."),
    (lambda: ps.range(9).filter("x"), TypeError, r"filter\(\) needs a function, got 'x', a str\."),
    (
        lambda: list(numbers(9).filter(lambda x: x * 0.5)),
        ValueError,
        (
            r"filter\(<lambda>\) at test_streams\.py:\d+ needs a "
            r"function that returns True or False, but it returned a float64 for element 0: .*"
        ),
    ),
    (
        lambda: list(numbers(9).filter(lambda x: None)),
        ValueError,
        (
            r".*True or False, but it returned a NoneType for "
            r"element 0: None\."
        ),
    ),
    (lambda: list(numbers(9).filter(lambda x: np.array([x]))), ValueError, r".*it returned an ndarray for element 0.*"),
    (
        lambda: list(numbers(2).bucket_by_length(lambda x: "a", [1], [1, 1])),
        ValueError,
        (
            r"bucket_by_length\(<lambda>\).*"
            r"returns an integer, but it returned a str for element 0: 'a'\."
        ),
    ),
    (
        lambda: numbers(2).flat_map(lambda x: []).element_spec,
        ValueError,
        (
            r"flat_map\(<lambda>\) at test_streams\.py:\d+ "
            r"gave no element at all.*element_spec=.*"
        ),
    ),
    (
        lambda: list(numbers(3).flat_map(lambda x: [x] if x < 2 else ["no"])),
        ValueError,
        (
            r"flat_map\(<lambda>\).* gave a "
            r"str for element 2, but its element_spec is \(\) int64 .*"
        ),
    ),
    (
        lambda: list(numbers(3).flat_map(lambda x: 7)),
        RuntimeError,
        (
            r"flat_map\(<lambda>\).* failed on element 0 of epoch 0.*"
            r": TypeError: 'int' object is not iterable"
        ),
    ),
    (
        lambda: rows(1, 2).batch(2).element_spec,
        ValueError,
        (
            r"batch\(2\) stacks elements, so they must have one shape, "
            r".*"
        ),
    ),
    (
        lambda: rows(1).padded_batch(2, padded_shapes=(None, 3)).element_spec,
        ValueError,
        (
            r"padded_batch\(2\): "
            r"padded_shapes is \(None, 3\), but element is \(None,\) int64\."
        ),
    ),
    (
        lambda: ps.zip((rows(1), ps.range(1))).bucket_by_length(len, [3], [1, 1]),
        ValueError,
        r".*is a tuple, whose len is always 2, .* Say of which part: lambda element: len\(element\[0\]\)\.",
    ),
    (
        lambda: ps.zip({"ids": rows(1)}).bucket_by_length(len, [3], [1, 1]),
        ValueError,
        r".*is a dict, whose len is always 1, .* lambda element: len\(element\['ids'\]\)\.",
    ),
    (
        lambda: rows(1).bucket_by_length(len, [3, 2], [1, 1, 1]),
        ValueError,
        r".*boundaries=\[3, 2\]\): they must ascend\.",
    ),
    (
        lambda: rows(1).bucket_by_length(len, [3], [1]),
        ValueError,
        (
            r"bucket_by_length\(\) has 1 boundaries, and so 2 "
            r"buckets, but got 1 batch_sizes\."
        ),
    ),
    (lambda: ps.interleave([numbers(1)], cycle_length=0), ValueError, r"interleave\(cycle_length=0\): .*at least 1\."),
    (lambda: ps.interleave([numbers(1)], block_length=0), ValueError, r"interleave\(block_length=0\): .*at least 1\."),
    (lambda: ps.mix([numbers(1)], [1, 2]), ValueError, r"mix\(\) got 1 datasets and 2 weights\."),
    (lambda: ps.mix([numbers(1)] * 2, [1, 0]), ValueError, r"mix\(weights=\[1, 0\]\): 0 is not a number above zero\."),
    (lambda: ps.mix([numbers(1)] * 2, [1, 1e308]), ValueError, r"mix\(.*\): 1e\+308 is too large\."),
    (lambda: ps.mix([numbers(1)] * 2, [1, 10**400]), ValueError, r"mix\(.*\): 1000.* is too large\."),
    (
        lambda: ps.mix([numbers(1)] * 2),  # type: ignore[call-arg]
        TypeError,
        r"mix\(\) needs weights\. A number above zero for each dataset: .* It takes datasets, weights, seed\.",
    ),
    (
        lambda: ps.mix([numbers(1)] * 2, None),  # type: ignore[arg-type]
        TypeError,
        r"mix\(weights=None\): a list of numbers is needed, .* 2 datasets; for equal parts, \[1, 1\]\.",
    ),
    (lambda: ps.mix([numbers(1)] * 2, [1, math.nan]), ValueError, r"mix\(.*\): nan is not a number above zero\."),
    (
        lambda: ps.zip((numbers(1, length=1), ps.range(2))),
        ValueError,
        r"zip\(\) puts elements side by side.*, or repeat\(\) the shorter\.",
    ),
    (lambda: ps.concatenate([numbers(1, length=math.inf), ps.range(2)]), ValueError, r".*dataset 0 is endless.*"),
    (lambda: numbers(1, length=math.inf).repeat(), ValueError, r"repeat\(\) needs.*It is endless already\."),
    (
        lambda: list(numbers(3, length=5)),
        ValueError,
        (
            r"from_generator\(range\).* at test_streams\.py:\d+ ended after 3 "
            r"elements of epoch 0, but its length is 5\. .* Correct the length where it is given\."
        ),
    ),
    (
        lambda: list(numbers(9, length=5)),
        ValueError,
        r"from_generator\(range\).* gives more elements than length=5\..*",
    ),
    (
        lambda: numbers(9).batch(4).loader(shard=(0, 2)),
        ValueError,
        (
            r"This dataset is a stream of unknown length\. Its last batch may "
            r"have any number of elements, which 2 shards cannot share evenly\. Give ranks whole batches: "
            r"whole_batches=True\. Or use drop_remainder=True, or uneven='mask'\."
        ),
    ),
]


@pytest.mark.parametrize(("call", "builtin", "text"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_is_refused_and_how(call: Callable[[], Any], builtin: type[Exception], text: str) -> None:
    assert_refused(call, builtin, text)


def test_a_shard_of_full_batches_of_unknown_length_is_allowed() -> None:
    full = numbers(10).batch(4, drop_remainder=True)
    halves = []
    for index in range(2):
        with full.loader("inline", shard=(index, 2)) as loader:
            halves.append(lists(loader))
    assert halves == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_counts_beyond_those_of_numpy_are_counts(executor: Any) -> None:
    few, endless = numbers(6), numbers(6).repeat()
    for ds in (
        few.take(10**40),
        few[: 10**40],
        few.batch(4).take(2**62),
        endless.batch(4).take(2**61)[:2],
        few.repeat(1).batch(4),
    ):
        with ds.loader(executor) as loader:
            assert lists(itertools.islice(loader, 2)) == lists(itertools.islice(ds, 2))
    for size in (2**45, 10**40):
        assert lists(few.batch(size)) == [[0, 1, 2, 3, 4, 5]]
        with (
            few.batch(size).loader(executor) as loader,
            pytest.raises(ps.MemoryLimitError, match="smaller prefetch or batch"),
        ):
            next(iter(loader))


def test_a_row_of_a_pack_that_is_larger_than_memory_is_an_error_of_memory() -> None:
    rows = ps.from_generator(lambda: [np.arange(3)], element_spec=ps.ArraySpec((None,), "int64")).pack(2**62)
    with pytest.raises((MemoryError, ValueError), match=r"too big|allocate"):
        next(iter(rows))


def test_an_error_in_the_middle_of_an_iteration_leaves_what_came_before() -> None:
    taken = list(itertools.islice(ps.from_generator(gives_something_else), 1))
    assert taken == [1]


# Where an element came from, in messages.


@pytest.mark.parametrize("length", [None, 20])
@pytest.mark.parametrize(
    "step",
    [
        lambda each: each.shuffle(seed=1, window=5),
        lambda each: each.repeat(2),
        lambda each: ps.concatenate([each, each]),
        lambda each: ps.interleave([each, each]),
        lambda each: ps.interleave([each, each, each], cycle_length=2, block_length=2),
        lambda each: ps.mix([each, each], [1, 1]),
        lambda each: each.filter(lambda x: x != 3),
        lambda each: each.windows(2).map(lambda pair: pair[0]),
        lambda each: each.batch(4).unbatch(),
    ],
    ids=["window", "repeat", "concatenate", "interleave", "cycle", "mix", "filter", "windows", "unbatch"],
)
def test_an_error_behind_a_step_of_a_stream_is_the_same_wherever_it_is_met(step: Any, length: int | None) -> None:
    def fragile(x: Any) -> Any:
        if x == 13:
            raise ValueError("no 13")
        return x

    dataset = step(numbers(20, length=length)).map(fragile)
    with pytest.raises(ps.ElementError) as iterated:
        list(dataset)
    with dataset.batch(2).loader("inline") as loader, pytest.raises(ps.ElementError) as loaded:
        list(loader)
    assert str(iterated.value) == str(loaded.value)
    assert str(iterated.value).endswith(": ValueError: no 13")
    assert isinstance(iterated.value.__cause__, ValueError)


def test_functions_one_after_the_other_that_all_fail_are_told_by_the_first() -> None:
    def broken(x: Any) -> Any:
        raise ValueError("all wrong")

    dataset = numbers(50).map(broken).map(lambda x: x).batch(8)
    with pytest.raises(ps.ElementError, match=r"map\(broken\) .* ValueError: all wrong") as caught:
        dataset.loader("inline", on_error="skip")
    assert "so did all of the first" in caught.value.__notes__[0]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_function_of_verdicts_is_not_run_to_find_a_spec(executor: Any) -> None:
    def fails(_: Any) -> bool:
        raise AssertionError("there is no element")

    def one() -> Iterator[int]:
        yield 1

    empty = ps.from_generator(one).skip(2)
    for dataset in (empty.filter(fails), empty.bucket_by_length(fails, [3], [2, 2])):
        with dataset.loader(executor) as loader:
            assert list(loader) == []
