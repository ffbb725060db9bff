"""What the user's objects have at a position: columns, tables, mappings and sets."""

import datetime as dt
import sys
from collections import UserDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import penstock as ps
from tests.texts import assert_refused


@pytest.fixture(scope="module")
def pd() -> Any:
    import pandas as pd

    return pd


@pytest.fixture(scope="module")
def pa() -> Any:
    import pyarrow as pa

    return pa


MOVED: dict[str, Callable[[Any], Any]] = {
    "sample": lambda s: s.sample(frac=1, random_state=1),
    "sort_values": lambda s: s.sort_values(),
    "backwards": lambda s: s[::-1],
    "filter": lambda s: s[s > 15],
    "other labels": lambda s: s.set_axis(list("abcdef")),
    "labels twice": lambda s: s.set_axis([0, 0, 1, 1, 2, 2]),
    "as it is": lambda s: s,
}


@pytest.mark.parametrize("move", MOVED)
@pytest.mark.parametrize("make", [ps.from_source, ps.from_arrays])
def test_a_series_is_read_by_position_whatever_its_labels(pd: Any, make: Callable[[Any], Any], move: str) -> None:
    series = MOVED[move](pd.Series([30, 10, 50, 20, 60, 40]))
    ds = make(series)
    assert [int(x) for x in ds] == series.tolist()
    assert ds[len(series) - 1] == series.iloc[-1]
    with ds.shuffle(seed=1).batch(2).loader("threads") as loader:
        assert sorted(x for batch in loader for x in batch.tolist()) == sorted(series.tolist())


def test_parts_put_one_after_the_other_by_concat_are_read_by_position(pd: Any) -> None:
    parts = pd.concat([pd.Series([1, 2]), pd.Series([3])])
    pairs = ps.zip((ps.from_source(parts), ps.from_source(["a", "b", "c"])))
    assert [(int(x), str(name)) for x, name in pairs] == [(1, "a"), (2, "b"), (3, "c")]


def test_objects_in_a_series_are_elements_of_any_length(pd: Any) -> None:
    sentences = pd.Series([np.arange(3), np.arange(1), np.arange(2)])[::-1]
    ds = ps.from_source(sentences, element_spec=ps.ArraySpec((None,), "int64"))
    assert [x.tolist() for x in ds] == [[0, 1], [0], [0, 1, 2]]
    assert list(ps.from_source(pd.Series(["a", "bcd"])[::-1])) == ["bcd", "a"]


def test_a_table_has_a_dict_of_its_columns_as_element(pd: Any) -> None:
    table = pd.DataFrame({"x": [1, 2, 3], "name": ["a", "bc", "d"], 7: [0.5, 1.5, 2.5]}).sort_values(
        "x", ascending=False
    )
    for make in (ps.from_arrays, ps.from_source):
        assert make(table)[0] == {"x": 3, "name": "d", 7: 2.5}
        assert [element["x"] for element in make(table)] == [3, 2, 1]
    inside = ps.from_arrays({"in": table[["x"]], "y": table["x"] % 2})
    assert inside.batch(3)[0]["in"]["x"].tolist() == [3, 2, 1]
    assert inside.element_spec == {"in": {"x": ps.ArraySpec((), "int64")}, "y": ps.ArraySpec((), "int64")}
    assert ps.from_source(table, element_spec=ps.from_source(table).element_spec).take(1)[0]["name"] == "d"


def test_a_row_of_a_table_that_fits_no_spec_is_named(pd: Any) -> None:
    table = pd.DataFrame({"x": [[1], [2, 3]]})
    with pytest.raises(ps.SpecError, match=r"^DataFrame\[1\] gave an array of \(2,\) int64 in \['x'\]"):
        list(ps.from_source(table))


def test_tables_without_columns_or_with_two_of_one_name_are_refused(pd: Any) -> None:
    assert_refused(
        lambda: ps.from_arrays(pd.DataFrame([[1, 2]], columns=["x", "x"])),
        ValueError,
        r"A DataFrame has 2 columns named 'x', and an element is a dict\. Give each a name of its own\.",
    )
    with pytest.raises(ps.ArgumentError, match="has no columns"):
        ps.from_arrays({"x": pd.DataFrame(index=[0, 1])})


def test_numbers_of_a_column_are_not_copied(pd: Any) -> None:
    series = pd.Series(np.arange(6.0))
    source: Any = ps.from_arrays(series[::2])._node.data
    assert np.shares_memory(source.arrays()[0], series.to_numpy())


def test_a_series_of_a_memmap_is_read_from_its_file_or_memory_alike(pd: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6))
    series = pd.Series(np.load(tmp_path / "x.npy", mmap_mode="r"), copy=False)[::-1]
    assert [int(x) for x in ps.from_arrays(series)] == [5, 4, 3, 2, 1, 0]


TIMES = ["2026-01-01", "2026-05-01"]
KEPT: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Int8": (lambda pd: pd.Series([1, 2], dtype="Int8"), np.array([1, 2], "i1")),
    "Float32": (lambda pd: pd.Series([1, 2], dtype="Float32"), np.array([1, 2], "f4")),
    "boolean": (lambda pd: pd.Series([True, False], dtype="boolean"), np.array([True, False])),
    "int64[pyarrow]": (lambda pd: pd.Series([1, 2], dtype="int64[pyarrow]"), np.array([1, 2])),
    "text": (lambda pd: pd.Series(["a", "bcd"]), np.array(["a", "bcd"])),
    "text as objects": (lambda pd: pd.Series(["a", "bcd"], dtype=object), np.array(["a", "bcd"])),
    "text of Arrow": (lambda pd: pd.Series(["a", "bcd"], dtype="string[pyarrow]"), np.array(["a", "bcd"])),
    "categories of text": (lambda pd: pd.Series(["b", "a"], dtype="category"), np.array(["b", "a"])),
    "categories of numbers": (lambda pd: pd.Series([20, 10], dtype="category"), np.array([20, 10])),
    "an index": (lambda pd: pd.Index(["a", "b"]), np.array(["a", "b"])),
    "an array": (lambda pd: pd.array([3, 4]), np.array([3, 4])),
    "NaN": (lambda pd: pd.Series([1, None]), np.array([1, np.nan])),
    "sparse": (lambda pd: pd.Series(pd.arrays.SparseArray([0, 7])), np.array([0, 7])),
    "times": (lambda pd: pd.Series(np.array(TIMES, "M8[s]")), np.array(TIMES, "M8[s]")),
    "NaT": (lambda pd: pd.Series(np.array(["2026-01-01", "NaT"], "M8[s]")), np.array(["2026-01-01", "NaT"], "M8[s]")),
    "no text": (lambda pd: pd.Series([], dtype="str"), np.array([], "U1")),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_column_of_any_kind_is_its_values(pd: Any, name: str) -> None:
    column, values = KEPT[name][0](pd), KEPT[name][1]
    ds = ps.from_arrays({"x": column})
    assert ds.element_spec == {"x": ps.ArraySpec((), values.dtype)}
    np.testing.assert_array_equal([element["x"] for element in ds], values)


LACKS = r"lacks 1 of 2 values, the first at position 1, and arrays have no such thing\. Fill them, "
OBJECTS = r"holds Python objects, for which NumPy has no dtype\. Make numbers, times or text of it"
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "Int64": (lambda pd: pd.Series([1, None], dtype="Int64"), rf"a Series of Int64 {LACKS}column\.fillna\(0\) or .*"),
    "boolean": (lambda pd: pd.Series([True, None], dtype="boolean"), rf"a Series of boolean {LACKS}.*"),
    "text": (lambda pd: pd.Series(["a", None]), rf"a Series of str {LACKS}.* column\.fillna\(''\), and give .*isna.*"),
    "objects": (lambda pd: pd.Series(["a", None], dtype=object), rf"a Series of object {LACKS}.*"),
    "categories": (lambda pd: pd.Series(["a", None], dtype="category"), rf"a Series of category {LACKS}.*"),
    "Arrow in pandas": (
        lambda pd: pd.Series([1, None], dtype="int64[pyarrow]"),
        rf"a Series of int64\[pyarrow\] {LACKS}.*",
    ),
    "a mix": (
        lambda pd: pd.Series(["a", 1], dtype=object),
        rf"a Series of object {OBJECTS}, such as column\.astype\(.*",
    ),
    "lists": (lambda pd: pd.Series([[1], [2, 3]]), rf".* {OBJECTS}.* from_source\(column, element_spec=.*"),
    "dates": (
        lambda pd: pd.Series([dt.date(2026, 1, 1)] * 2),
        rf".*{OBJECTS}.*column\.astype\('datetime64\[s\]'\).*",
    ),
    "periods": (lambda pd: pd.Series(pd.period_range("2026", periods=2, freq="D")), rf".* of period\[D\] {OBJECTS}.*"),
    "zones": (
        lambda pd: pd.Series(pd.to_datetime(TIMES).tz_localize("Europe/Berlin")),
        rf".*{OBJECTS}, such as times in UTC: column\.dt\.tz_convert\(None\)\. .*",
    ),
    "zeros": (lambda pd: pd.Series(["a", "b\0"]), "a Series has text that ends in a zero, .*"),
    "pairs": (lambda pd: pd.MultiIndex.from_tuples([(1, 2), (3, 4)]), rf"a MultiIndex of object {OBJECTS}.*"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_that_no_array_holds_is_refused_with_the_cure(pd: Any, name: str) -> None:
    make, text = REFUSED[name]
    assert_refused(lambda: ps.from_arrays({"x": make(pd)}), TypeError, rf"from_arrays\(\) at \['x'\]: {text}")


def test_missing_values_are_refused_where_a_series_is_read_as_a_source(pd: Any) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"^from_source\(\): a Series of Int64 lacks 1 of 2 values"):
        ps.from_source(pd.Series([1, None], dtype="Int64"))


def test_columns_and_tables_of_arrow_are_read_as_those_of_pandas(pa: Any) -> None:
    table = pa.table({"x": [1, 2, 3], "name": pa.array(["a", "bc", "a"]).dictionary_encode()})
    for given in (table, table.to_batches()[0]):
        for make in (ps.from_arrays, ps.from_source):
            assert make(given)[1] == {"x": 2, "name": "bc"}
    assert list(ps.from_source(pa.chunked_array([[1], [2, 3]]))) == [1, 2, 3]
    assert [x.tolist() for x in ps.from_source(pa.array([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    for column in (pa.array([1, None]), pa.array([1.5, None]), pa.chunked_array([["a"], [None]])):
        with pytest.raises(ps.ArgumentTypeError, match=rf"{LACKS}column\.fill_null\(0\)"):
            ps.from_arrays(column)


class _Column:
    """A column of a library with the interface of pandas."""

    def __init__(self) -> None:
        self.iloc = [30, 10]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, label: int) -> int:
        raise KeyError(label)

    def keys(self) -> list[int]:
        return [8, 9]


def test_a_column_of_another_library_is_read_by_its_iloc() -> None:
    assert list(ps.from_source(_Column())) == [30, 10]


class _Keyed(list[int]):
    def keys(self) -> list[int]:
        return [1, 0]


class _Named(list[int]):
    keys = ("a", "b")


@pytest.mark.parametrize(
    "value",
    [{0: 5, 1: 6}, {1: 5, 0: 6}, {"x": 1}, defaultdict(int), defaultdict(int, {0: 1}), UserDict({0: 1}), _Keyed([1])],
    ids=repr,
)
def test_what_has_keys_is_refused_with_the_cure(value: Any) -> None:
    before = dict(value) if not isinstance(value, list) else {}
    assert_refused(
        lambda: ps.from_source(value),
        TypeError,
        rf"from_source\(\) asks for source\[0\], source\[1\], \.\.\., and an? {type(value).__name__} takes the index "
        r"for a name\. .* are list\(source\.values\(\)\)\. .* go to from_arrays\(\{.*\}\)\. If its \[i\] is a position "
        r"after all: penstock\.range\(len\(source\)\)\.map\(lambda i: source\[int\(i\)\]\)\.",
    )
    assert before == (dict(value) if not isinstance(value, list) else {})


def test_an_attribute_of_the_name_keys_says_nothing() -> None:
    assert list(ps.from_source(_Named([3, 4]))) == [3, 4]


GROUPS = ["a", "b", "a", "b", "c", "c"]


def test_labels_and_weights_in_a_series_are_taken_by_position(pd: Any) -> None:
    def moved(values: Any) -> Any:
        return pd.Series(values, index=[5, 4, 3, 2, 1, 0])

    ds = ps.range(6)
    for groups in (moved(GROUPS), moved(GROUPS).astype("category")):
        for given, plain in zip(ds.split(0.5, 0.5, groups=groups), ds.split(0.5, 0.5, groups=GROUPS), strict=True):
            assert list(given) == list(plain)
        for given, plain in zip(ds.split(0.5, 0.5, stratify=groups), ds.split(0.5, 0.5, stratify=GROUPS), strict=True):
            assert list(given) == list(plain)
    assert {int(x) for x in ds.sample(moved([0, 0, 1, 0, 0, 0]))} == {2}
    lengths = [2, 1, 1, 2, 1, 1]
    ragged = ps.from_source([np.ones(n) for n in lengths], element_spec=ps.ArraySpec((None,), "float64"))
    assert len(ragged.batch(max_tokens=2, lengths=moved(lengths))) == 4
    assert len(ragged.pack(2, lengths=moved(lengths).astype("Int64"))) == 4
    assert_refused(
        lambda: ds.split(0.5, 0.5, groups=moved([1, 1, None, 2, 2, 2]).astype("Int64")),
        TypeError,
        r"split\(groups=\.\.\.\): a Series of Int64 lacks 1 of 6 values, the first at position 2, .*",
    )


def test_integers_that_no_float_tells_apart_are_labels_of_their_own() -> None:
    big = 2**63 + 1
    for labels in ([big, 5, big + 1, 5], [np.uint64(big), np.int64(5), np.uint64(big + 1), np.int64(5)]):
        assert [each.tolist() for each in ps.range(4).group_by(labels)] == [[0], [1, 3], [2]]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([1, "1", 1, "1"], r"labels of several kinds: beside text there is an int, 1, of which NumPy would make text"),
        (["a", b"a", "a", "b"], "beside text there is a bytes, b'a'"),
        (
            np.ma.masked_array([0, 9, 1, 1], [False, True, False, False]),
            "1 of 4 values are masked, so they have no label",
        ),
        ([2**63, -1, 2**63 + 1, -1], rf"has integers from -1 to {2**63 + 1}, which no dtype of NumPy holds together"),
    ],
)
def test_labels_that_one_array_would_make_alike_are_refused(labels: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=text):
        ps.range(4).group_by(labels)
    with pytest.raises(ps.ArgumentTypeError, match=text):
        ps.range(4).split(0.5, 0.5, groups=labels)
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(ps.ArgumentTypeError, match=text):
        ps.from_files(tmp_path / "*", labels)


def test_labels_of_images_in_a_series_are_taken_by_position(pd: Any, tmp_path: Path) -> None:
    for name in "abc":
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.zeros((2, 2, 3), "uint8"))
    words = pd.Series(["x", "y", "x"], index=[2, 0, 1])
    ds = ps.from_image_files(sorted(tmp_path.iterdir()), words)
    assert [str(label) for _, label in ds] == ["x", "y", "x"]
    labels = pd.Series([7, 8, 9], index=[2, 0, 1])
    ds = ps.image_dataset_from_directory(tmp_path, labels=labels, shuffle=False, batch_size=None, verbose=False)
    assert [int(label) for _, label in ds] == [7, 8, 9]


def test_targets_of_a_time_series_are_taken_by_position_and_a_table_is_its_rows(pd: Any) -> None:
    table, targets = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]}), pd.Series([7, 8], index=[1, 0])
    ds = ps.timeseries_dataset_from_array(table, targets, 2, batch_size=None)
    assert [(x.tolist(), int(y)) for x, y in ds] == [([[1, 4], [2, 5]], 7), ([[2, 5], [3, 6]], 8)]


UNORDERED = "whose order is another one in each process"
NAMES = "of which iteration gives names, not values"
LISTS: dict[str, tuple[Callable[[], Any], str]] = {
    "weights": (lambda: ps.mix([ps.range(3)] * 2, {1: 0.3, 2: 0.7}), rf"mix\(weights=\) got a dict, {NAMES}\. .*"),  # type: ignore[arg-type]
    "datasets": (lambda: ps.interleave({ps.range(3)}), rf"interleave\(\) got a set, {UNORDERED}\. .* in a list\."),
    "paths": (
        lambda: ps.from_image_files({"a.png", "b.png"}, [0, 1]),
        rf"from_image_files\(\) got a set, {UNORDERED}.*",
    ),
    "files": (
        lambda: ps.from_tfrecord({"a", "b"}),
        rf"from_tfrecord\(\) got a set, {UNORDERED}\. .* sorted\(paths\)\.",
    ),
    "classes": (
        lambda: ps.from_image_files(["a.png"], ["dog"], class_names={"dog": 1, "cat": 0}),
        rf"from_image_files\(class_names=\) got a dict, {NAMES}\. Give a list, in the order of the classes\.",
    ),
    "a stream": (lambda: ps.from_generator({"a", "b"}), rf"from_generator\(\) got a set, {UNORDERED}\. .*"),
    "names": (
        lambda: ps.from_arrays({"x": [1], "y": [2]}).select({"x", "y"}),
        rf"select\(\) got a set, {UNORDERED}\. .*",
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_set_or_a_dict_is_no_list(name: str) -> None:
    call, text = LISTS[name]
    assert_refused(call, TypeError, text)


def test_a_table_is_no_stream_of_its_names(pd: Any) -> None:
    assert_refused(
        lambda: ps.from_generator(pd.DataFrame({"x": [1]})),
        TypeError,
        rf"from_generator\(\) got a DataFrame, {NAMES}\. .*; a table goes to from_arrays\(\)\.",
    )


def test_folders_of_classes_are_named_in_an_order(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / "a.png"), np.zeros((2, 2, 3), "uint8"))
    for names in ({"dogs", "cats"}, {"dogs": 1, "cats": 0}):
        with pytest.raises(ps.ArgumentTypeError, match=r"\(class_names=\) got a (set|dict), .* in the order of the"):
            ps.image_dataset_from_directory(tmp_path, class_names=names)  # type: ignore[arg-type]


def test_a_library_that_is_still_being_imported_has_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", type(sys)("polars"))
    assert list(ps.from_source([1, 2])) == [1, 2]


@pytest.mark.slow
def test_tables_are_not_looked_for_by_importing_pandas(fresh_python: Callable[..., Any]) -> None:
    script = (
        "import sys, penstock as ps; list(ps.from_source([1])); list(ps.from_arrays([1])); ps.range(2).split(0.5, 0.5, "
        "groups=[0, 1]); assert not {'pandas', 'pyarrow', 'polars'} & sys.modules.keys()"
    )
    assert fresh_python(script).returncode == 0


@pytest.mark.slow
def test_rows_of_a_table_reach_worker_processes_and_a_cache(pd: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [1, 2, 3], "name": ["a", "bc", "d"]})[::-1]
    for ds in (ps.from_source(table), ps.from_arrays(table)):
        doubled = ds.map(lambda row: {"x": row["x"] * 2, "n": len(str(row["name"]))})
        with doubled.batch(3).loader("processes", workers=1) as loader:
            assert [batch["x"].tolist() for batch in loader] == [[6, 4, 2]]
        for _ in range(2):
            assert [int(row["n"]) for row in doubled.cache(tmp_path)] == [1, 2, 1]


# Tables that a function of the user returns.

MAKERS: dict[str, Callable[[Callable[[Any], Any]], ps.Dataset]] = {
    "map": lambda make: ps.range(2).map(make),
    "random_map": lambda make: ps.range(2).random_map(lambda x, rng: make(x)),
    "flat_map": lambda make: ps.range(2).flat_map(lambda x: [make(x)]),
    "from_generator": lambda make: ps.from_generator(lambda: map(make, range(2))),
    "from_source": lambda make: ps.from_source([make(0), make(1)]),
    "in a tuple": lambda make: ps.range(2).map(lambda x: (make(x), 1)).map(lambda pair: pair[0]),
    "declared": lambda make: ps.range(2).map(
        make, element_spec={"id": ps.ArraySpec((2,), "int32"), "p": ps.ArraySpec((2,), "float64")}
    ),
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_a_table_that_a_function_returns_is_a_dict_of_its_columns(maker: Any, pd: Any, pa: Any) -> None:
    def table(x: Any) -> Any:
        return pd.DataFrame({"id": np.array([x, 2**24 + 1], np.int32), "p": [0.5, x]}, index=[7, 3])

    for make in (table, lambda x: pa.Table.from_pandas(table(x), preserve_index=False)):
        ds = maker(make)
        for number, element in enumerate(ds):
            assert list(element) == ["id", "p"]
            assert element["id"].tolist() == [number, 2**24 + 1]
            assert element["id"].dtype == np.int32
            assert element["p"].tolist() == [0.5, number]
        with ds.batch(2).loader("threads") as loader:
            assert next(iter(loader))["p"].tolist() == [[0.5, 0], [0.5, 1]]


def test_a_table_of_many_elements_is_taken_apart_by_columns(pd: Any) -> None:
    ds = ps.range(5).map(lambda x: pd.DataFrame({"x": x, "half": x / 2}), batched=3)
    assert [(int(each["x"]), float(each["half"])) for each in ds] == [(x, x / 2) for x in range(5)]


def test_text_and_categories_of_a_table_are_arrays_of_text(pd: Any) -> None:
    ds = ps.range(1).map(lambda x: pd.DataFrame({"t": ["a", "né"], "c": pd.Categorical(["u", "v"])}))
    assert {name: array.tolist() for name, array in ds[0].items()} == {"t": ["a", "né"], "c": ["u", "v"]}


def test_a_table_is_a_matrix_where_a_spec_says_so(pd: Any) -> None:
    ds = ps.range(1).map(lambda x: pd.DataFrame({"a": [1, 2], "b": [3, 4]}), element_spec=ps.ArraySpec((2, 2), "int64"))
    assert ds[0].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda pd: pd.DataFrame({"a": pd.array([1, None], "Int64")}),
            "its column 'a': a Series of Int64 lacks 1 of 2 v",
        ),
        (lambda pd: pd.DataFrame([[1, 2]], columns=["a", "a"]), "A DataFrame has 2 columns named 'a'"),
        (lambda pd: pd.DataFrame(), "A DataFrame has no columns"),
        (lambda pd: pd.DataFrame({"a": [[1], [1, 2]]}), "its column 'a': a Series of object holds Python objects"),
    ],
    ids=["missing", "twice", "none", "objects"],
)
def test_a_table_without_a_meaning_is_refused_with_its_column(make: Any, text: str, pd: Any) -> None:
    ds = ps.range(2).map(lambda x: make(pd))
    with pytest.raises(ps.SpecError) as caught:
        ds[0]
    assert f"returned a table, which is no dict of arrays ({text}" in str(caught.value)


@pytest.mark.parametrize(
    "ds",
    [
        lambda table: ps.range(2).flat_map(lambda x: table),
        lambda table: ps.range(2).flat_map(lambda x: table, element_spec=ps.ArraySpec((), "U")),
        lambda table: ps.from_generator(lambda: table),
        lambda table: ps.from_generator(lambda: table, element_spec=ps.ArraySpec((), "U")),
    ],
    ids=["flat_map", "flat_map with a spec", "generator", "generator with a spec"],
)
def test_the_names_of_a_table_are_not_taken_for_elements(ds: Any, pd: Any) -> None:
    table = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    with pytest.raises(ps.ElementError, match=r"it returned a DataFrame, of which iteration gives names, .*\[table\]"):
        list(ds(table))
