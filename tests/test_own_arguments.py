"""Arrays, lists and dicts that a plan was given are its own: what the program writes to them later changes nothing."""

import array
import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.base._arguments import DATA, own
from penstock.testing import assert_same

LABELS = np.array([0, 0, 1, 2, 2, 2, 1, 0, 1, 2])
LENGTHS = np.array([3, 1, 4, 1, 5, 2, 6, 5, 3, 5])


def numbers() -> ps.Dataset:
    return ps.range(10)


def sequences() -> ps.Dataset:
    return ps.from_source([np.arange(n) for n in LENGTHS], element_spec=ps.ArraySpec((None,), "int64"))


def dicts() -> ps.Dataset:
    return ps.from_arrays({"x": np.arange(10), "y": np.arange(10.0)})


def others() -> ps.Dataset:
    return ps.from_arrays({"x": np.arange(5), "z": np.arange(5.0) + 1})


def parquet() -> str:
    if not Path("t.parquet").exists():
        pq.write_table(pa.table({"x": [1, None, 3], "y": [4, 5, 6]}), "t.parquet")
    return "t.parquet"


def lines(suffix: str) -> str:
    path = Path(f"t.{suffix}")
    path.write_text("x,y\n1,4\n2,5\n" if suffix == "csv" else '{"x": 1, "y": 4}\n{"x": 2, "y": 5}\n')
    return str(path)


def images(count: int = 3) -> list[str]:
    paths = [f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        cv2.imwrite(path, np.full((2, 2, 3), number, np.uint8))
    return paths


class Pair(NamedTuple):
    first: list[int]
    second: int


Made = Callable[[Any], ps.Dataset]
VERBS: dict[str, tuple[Any, Made]] = {
    "positions": (np.array([3, 1, 1]), lambda each: numbers()[each]),
    "positions in a list": ([3, 1, 1], lambda each: numbers()[each]),
    "a mask": (LABELS == 2, lambda each: numbers()[each]),
    "a mask of pandas": (pd.Series(LABELS == 2), lambda each: numbers()[each]),
    "sample(weights)": (np.ones(10), lambda each: numbers().sample(each, count=50)),
    "sample(weights) of integers": (np.ones(10, int), lambda each: numbers().sample(each, count=50)),
    "sample(weights) of a list": ([1.0] * 10, lambda each: numbers().sample(each, count=50)),
    "sample(weights) of pandas": (pd.Series(np.ones(10)), lambda each: numbers().sample(each, count=50)),
    "sample(weights) of a buffer": (array.array("d", [1.0] * 10), lambda each: numbers().sample(each, count=50)),
    "sample(weights) without replacement": (np.ones(10), lambda each: numbers().sample(each, replacement=False)),
    "sample(balance)": (LABELS, lambda each: numbers().sample(balance=each, count=50)),
    "sample(per_class)": ({0: 1, 2: 2}, lambda each: numbers().sample(balance=LABELS, per_class=each)),
    "split(groups)": (LABELS, lambda each: numbers().split(0.5, 0.5, groups=each, seed=1)[1]),
    "split(stratify)": (LABELS, lambda each: numbers().split(0.5, 0.5, stratify=each, seed=1)[1]),
    "k_folds(groups)": (LABELS.tolist(), lambda each: numbers().k_folds(3, groups=each)[1][1]),
    "windows(offsets)": ({"x": [-1, 0, 1]}, lambda each: dicts().windows(each)),
    "windows(offsets) of an array": ({"x": np.arange(3)}, lambda each: dicts().windows(each)),
    "windows(groups)": (LABELS, lambda each: numbers().windows(2, groups=each)),
    "group_by": (LABELS, lambda each: numbers().group_by(each)),
    "group_by of pandas": (pd.Series(LABELS), lambda each: numbers().group_by(each)),
    "batch(lengths)": (LENGTHS, lambda each: sequences().batch(max_tokens=9, lengths=each)),
    "pack(lengths)": (LENGTHS, lambda each: sequences().pack(8, lengths=each)),
    "pack(lengths, fit)": (LENGTHS, lambda each: sequences().pack(8, lengths=each, fit="best")),
    "pack(lengths) of a tree": (
        {"a": LENGTHS.copy(), "b": LENGTHS.copy()},
        lambda each: ps.zip({"a": sequences(), "b": sequences()}).pack({"a": 9, "b": 9}, lengths=each, split=False),
    ),
    "pack(length)": (
        {"a": 9, "b": 9},
        lambda each: ps.zip({"a": sequences(), "b": sequences()}).pack(
            each, lengths={"a": LENGTHS, "b": LENGTHS}, split=False
        ),
    ),
    "bucket_by_length(lengths)": (LENGTHS, lambda each: sequences().bucket_by_length(lengths=each, batch_size=3)),
    "bucket_by_length(boundaries)": ([3, 5], lambda each: sequences().bucket_by_length(len, each, [2, 2, 2])),
    "bucket_by_length(batch_sizes)": ([2, 2, 2], lambda each: sequences().bucket_by_length(len, [3, 5], each)),
    "padded_batch(padded_shapes)": (
        {"a": (9,), "b": (None,)},
        lambda each: ps.zip({"a": sequences(), "b": sequences()}).padded_batch(4, padded_shapes=each),
    ),
    "padded_batch(padding_values)": (
        {"a": np.array(7), "b": np.array(9)},
        lambda each: ps.zip({"a": sequences(), "b": sequences()}).padded_batch(4, padding_values=each),
    ),
    "map(element_spec)": (
        {"x": ps.ArraySpec((), "int64")},
        lambda each: numbers().map(lambda x: {"x": x}, element_spec=each),
    ),
    "flat_map(element_spec)": (
        {"x": ps.ArraySpec((), "int64")},
        lambda each: numbers().flat_map(lambda x: [{"x": x}], element_spec=each),
    ),
    "cast": ({"x": "int8", "y": None}, lambda each: dicts().cast(each)),
    "select": (["x"], lambda each: dicts().select(each)),
    "rename": ({"x": "z"}, lambda each: dicts().rename(each)),
    "join(on)": ({"x": "x"}, lambda each: dicts().join(others(), each, fill=0)),
    "join(on) of a list": (["x"], lambda each: dicts().join(others(), each, fill=0)),
    "join(fill)": ({"z": np.array(7.0)}, lambda each: dicts().join(others(), "x", fill=each)),
    "mix(weights)": (np.array([1.0, 3.0]), lambda each: ps.mix([numbers(), numbers()], each)),
    "mix(weights) by element": (
        {0: [1, 3], 3: np.array([3.0, 1.0])},
        lambda each: ps.mix([numbers(), numbers()], each),
    ),
    "mix(datasets)": ([numbers(), numbers()], lambda each: ps.mix(each, [1, 3])),
    "zip": ({"a": numbers(), "b": {"c": numbers()}}, ps.zip),
    "concatenate": ([numbers(), numbers()], ps.concatenate),
    "interleave": ([numbers(), numbers()], ps.interleave),
    "from_arrays, its dict": ({"x": [1, 2], "y": [3, 4]}, ps.from_arrays),
    "from_generator(element_spec)": (
        {"x": ps.ArraySpec((), "int64")},
        lambda each: ps.from_generator(lambda: ({"x": i} for i in range(3)), element_spec=each),
    ),
    "from_source(element_spec)": (
        {"x": ps.ArraySpec((), "int64")},
        lambda each: ps.from_source([{"x": 1}, {"x": 2}], element_spec=each),
    ),
    "from_image_files(paths)": (["0.png", "1.png"], lambda each: images() and ps.from_image_files(each)),
    "from_image_files(labels)": (np.arange(3), lambda each: ps.from_image_files(images(), each)),
    "from_image_files(labels) of pandas": (
        pd.Series(np.arange(3.0, dtype="float32")),
        lambda each: ps.from_image_files(images(), each),
    ),
    "from_image_files(class_names)": (
        ["a", "b"],
        lambda each: ps.from_image_files(images(), ["b", "a", "b"], class_names=each),
    ),
    "from_files(labels)": (np.arange(3), lambda each: ps.from_files(images(), labels=each)),
    "from_files(labels) of a dict": (
        {"0.png": 5, "1.png": 6, "2.png": 7},
        lambda each: ps.from_files(images(), labels=each),
    ),
    "from_parquet(paths)": ([Path("t.parquet")], lambda each: parquet() and ps.from_parquet(each, fill_null=0)),
    "from_parquet(columns)": (["y"], lambda each: ps.from_parquet(parquet(), columns=each)),
    "from_parquet(dtypes)": ({"y": "float32"}, lambda each: ps.from_parquet(parquet(), dtypes=each, fill_null=0)),
    "from_parquet(fill_null)": ({"x": np.array(9)}, lambda each: ps.from_parquet(parquet(), fill_null=each)),
    "from_parquet(null_masks)": (["x"], lambda each: ps.from_parquet(parquet(), null_masks=each, fill_null=0)),
    "from_csv(dtypes)": ({"x": "int8"}, lambda each: ps.from_csv(lines("csv"), dtypes=each)),
    "from_jsonl(columns)": (["y", "x"], lambda each: ps.from_jsonl(lines("jsonl"), columns=each)),
    "timeseries_dataset_from_array": (
        [0, 1],
        lambda each: ps.timeseries_dataset_from_array(np.arange(9.0), None, 2, batch_size=2)[each],
    ),
    "image.erase(value)": (
        [1.0, 2.0, 3.0],
        lambda each: ps.from_arrays(np.ones((4, 8, 8, 3), "float32")).random_map(ps.image.erase(value=each)),
    ),
    "image.rotate": (
        [-90, 90],
        lambda each: ps.from_arrays(np.eye(8, dtype="float32")[None, ..., None]).random_map(ps.image.rotate(each)),
    ),
}


def spoil(value: Any) -> None:
    """Writes to arrays, and empties lists and dicts, the inner ones first."""
    if isinstance(value, pd.Series):
        value.iloc[:] = np.zeros(len(value), value.dtype)
    elif isinstance(value, array.array):
        value[:] = array.array(value.typecode, [0] * len(value))
    elif isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            spoil(each)
        if not isinstance(value, tuple):
            value.clear()


def elements(ds: ps.Dataset) -> list[Any]:
    return list(ds.take(50))


@pytest.mark.parametrize("name", VERBS)
def test_what_a_program_writes_to_an_argument_later_changes_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, make = VERBS[name]
    given = copy.copy(given) if isinstance(given, (pd.Series, array.array)) else own(given)
    want = elements(make(given))
    ds = make(given)
    state = ds.loader(executor="inline").get_state()
    spoil(given)
    for found, wanted in zip(elements(ds), want, strict=True):
        assert_same(found, wanted)
    with ds.loader(executor="threads", workers=2) as loader:
        assert loader.get_state() == state


def test_only_arguments_that_are_data_stay_the_callers():
    found = set()
    functions = {name: getattr(ps, name) for name in ps.__all__ if name not in ("repack", "from_lance")}
    functions |= {f"Dataset.{name}": each for name, each in vars(ps.Dataset).items() if name[0] != "_"}
    for function, each in functions.items():
        if inspect.isfunction(each):
            assert hasattr(each, "__wrapped__"), function
            found |= {f"{function}({name})" for name in inspect.signature(each).parameters if name in DATA}
    assert found == {
        "Dataset.reduce(initial)",
        "from_arrays(tree)",
        "from_generator(args)",
        "from_source(source)",
        "from_xarray(data)",
        "headroom(loader)",
        "show(data)",
        "timeseries_dataset_from_array(data)",
        "timeseries_dataset_from_array(targets)",
        "write_tfrecord(elements)",
        "zip(tree)",
    }


def test_data_are_not_copied():
    data = np.arange(6)
    ds = ps.from_arrays({"x": data})
    generated = ps.from_generator(iter, data, element_spec=ps.ArraySpec((), "int64"))
    data[:] = 7
    assert {int(each["x"]) for each in ds} == {int(each) for each in generated} == {7}


def test_a_copy_keeps_what_arguments_are():
    size = np.iinfo  # stands for any object
    given = {"a": [1, (2, [3])], "b": np.eye(2), "c": Pair([1], 2), "d": size}
    mine = own(given)
    assert (mine["a"], mine["c"], mine["d"]) == (given["a"], given["c"], size)
    assert mine["a"] is not given["a"]
    assert mine["a"][1][1] is not given["a"][1][1]
    assert isinstance(mine["c"], Pair)
    assert mine["c"].first is not given["c"].first
    assert not np.shares_memory(mine["b"], given["b"])
    for same in ((1, "a", (2,)), (1, 2.5, True, "a", np.float32(1)), ()):
        assert own(same) is same
    for numbers in ([1.5, 2, True, "a"], [np.float32(1), np.int64(2), np.True_], []):
        assert own(numbers) == numbers
        assert own(numbers) is not numbers
