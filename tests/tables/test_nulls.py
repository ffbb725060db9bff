"""Columns of tables with nulls, structs and lists, in Parquet and Arrow files."""

import datetime as dt
import math
import warnings

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests, assert_same

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

from tests.tables.test_parquet import dataset, saved  # noqa: E402  # it needs pyarrow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NumPy 2.5 wants a unit
    NO_TIME = np.datetime64("NaT")
KINDS = ["a.arrow", "lz4.arrow", "a.parquet"]
NESTED = [
    {
        "id": i,
        "person": {"name": f"n{i}", "place": {"x": i / 2, "y": -i}},
        "words": [f"w{k}" for k in range(i % 4)],
        "turns": [{"role": f"r{k}", "tokens": k} for k in range(i % 3)],
        "pairs": [{"a": i, "b": i / 4}, {"a": -i, "b": 0.0}],
    }
    for i in range(17)
]
PAIRS = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.float32())]), 2)


def nested():
    content = pa.Table.from_pylist(NESTED)
    place = content.column_names.index("pairs")
    return content.set_column(place, "pairs", pa.array([row["pairs"] for row in NESTED], PAIRS))


def as_element(row):
    return {
        "id": np.int64(row["id"]),
        "person": {
            "name": row["person"]["name"],
            "place": {"x": np.float64(row["person"]["place"]["x"]), "y": np.int64(row["person"]["place"]["y"])},
        },
        "words": np.array(row["words"], "U") if row["words"] else np.array([], "U"),
        "turns": {
            "role": np.array([turn["role"] for turn in row["turns"]], "U"),
            "tokens": np.array([turn["tokens"] for turn in row["turns"]], "i8"),
        },
        "pairs": {
            "a": np.array([pair["a"] for pair in row["pairs"]], "i8"),
            "b": np.array([pair["b"] for pair in row["pairs"]], "f4"),
        },
    }


@pytest.mark.parametrize("kind", KINDS)
def test_structs_are_dicts_and_lists_of_structs_are_dicts_of_lists(tmp_path, kind):
    ds = dataset(saved(tmp_path / kind, nested()))
    assert ds.element_spec["person"]["place"] == {"x": ps.ArraySpec((), "f8"), "y": ps.ArraySpec((), "i8")}
    assert ds.element_spec["turns"] == {"role": ps.ArraySpec((None,), "U"), "tokens": ps.ArraySpec((None,), "i8")}
    assert ds.element_spec["pairs"] == {"a": ps.ArraySpec((2,), "i8"), "b": ps.ArraySpec((2,), "f4")}
    for index in (16, 0, 3, 4, 7, *range(17)):
        assert_same(ds[index], as_element(NESTED[index]))
    with ds.shuffle(3).loader(executor="threads", workers=2) as loader:
        found = {int(element["id"]): element["turns"]["role"].tolist() for element in loader}
    assert found == {row["id"]: [turn["role"] for turn in row["turns"]] for row in NESTED}


def test_columns_of_a_struct_that_are_not_read_may_be_of_any_kind(tmp_path):
    odd = pa.array(
        [{"m": [("k", 1)], "d": 1}] * 5, pa.struct([("m", pa.map_(pa.string(), pa.int8())), ("d", pa.int8())])
    )
    content = pa.table({"odd": odd, "list": pa.array([[1, 2]] * 5), "x": np.arange(5)})
    assert dataset(saved(tmp_path / "a.parquet", content), columns=["x", "list"])[3]["x"] == 3
    assert dataset(saved(tmp_path / "a.parquet", content), columns=["list"])[3]["list"].tolist() == [1, 2]


GAPS = [
    {"x": None if i % 3 == 0 else i, "f": None if i % 4 == 0 else i / 2, "t": None if i % 5 == 0 else f"t{i}"}
    for i in range(23)
]


@pytest.mark.parametrize("kind", KINDS)
class TestGaps(SourceTests):
    @pytest.fixture
    def source(self, kind, tmp_path):
        path = saved(tmp_path / kind, pa.Table.from_pylist(GAPS))
        return dataset(path, fill_null={"x": -1, "f": np.nan, "t": "none"}, null_masks=["f"])._node.data

    @pytest.fixture
    def expected(self):
        rows = [tuple(row.values()) for row in GAPS]
        return {
            "x": np.array([-1 if x is None else x for x, _, _ in rows]),
            "f": np.array([np.nan if f is None else f for _, f, _ in rows]),
            "f_is_null": np.array([f is None for _, f, _ in rows]),
            "t": np.array(["none" if t is None else t for _, _, t in rows]),
        }


VALUES = {
    "truth": (pa.array([True, None]), {"fill_null": True}, np.True_),
    "small": (pa.array([1, None], pa.uint8()), {"fill_null": 7}, np.uint8(7)),
    "masked": (pa.array([1.5, None]), {"null_masks": ["v"]}, np.float64(0)),
    "text": (pa.array(["a", None]), {"null_masks": ["v"]}, ""),
    "large text": (pa.array(["a", None], pa.large_string()), {"fill_null": "ä"}, "ä"),
    "view": (pa.array(["a", None], pa.string_view()), {"fill_null": "ä"}, "ä"),
    "kinds": (pa.array(["a", None]).dictionary_encode(), {"fill_null": "b"}, "b"),
    "bytes": (pa.array([b"a", None]), {"fill_null": 0}, np.array([], "u1")),
    "digest": (pa.array([b"ab", None], pa.binary(2)), {"fill_null": 1}, np.array([1, 1], "u1")),
    "time": (
        pa.array([dt.datetime(2020, 1, 1), None]),
        {"fill_null": NO_TIME},
        np.datetime64("NaT", "us"),
    ),
    "day": (
        pa.array([dt.date(2020, 1, 1), None]),
        {"fill_null": np.datetime64("2000-01-01")},
        np.datetime64("2000-01-01", "D"),
    ),
    "list": (pa.array([[1, None], None, [2]]), {"fill_null": -1}, np.array([], "i8")),
    "inner": (pa.array([[9], [1, None]]), {"fill_null": -1}, np.array([1, -1])),
    "fixed": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), {"fill_null": -1}, np.array([-1, -1])),
    "texts": (pa.array([["a"], ["b", None]]), {"fill_null": "c"}, np.array(["b", "c"])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VALUES)
def test_values_stand_in_for_nulls(tmp_path, name, kind):
    column, options, want = VALUES[name]
    if name in ("view", "kinds") and kind == "a.parquet":
        column = column.cast(pa.string())
    ds = dataset(saved(tmp_path / kind, pa.table({"v": column})), **options)
    found = ds[1]["v"]
    assert np.asarray(found).dtype.kind == np.asarray(want).dtype.kind
    np.testing.assert_array_equal(found, want)
    assert "v_is_null" not in ds[1] or (ds[1]["v_is_null"], ds[0]["v_is_null"]) == (True, False)
    filler = "''" if np.asarray(want).dtype.kind == "U" else "0"
    with pytest.raises(
        ps.SourceError, match=rf"row 1 has no value in column 'v': it is null.*fill_null=\{{'v': {filler}\}}"
    ):
        dataset(tmp_path / kind, columns=["v"])[1]


@pytest.mark.parametrize("kind", KINDS)
def test_lists_have_a_mask_of_where_they_are_null(tmp_path, kind):
    columns = {
        "numbers": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
        "pairs": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        "words": pa.array([["a"], None, []], pa.list_(pa.string())),
        "in": pa.array([{"words": ["a"]}, None, {"words": []}], pa.struct([("words", pa.list_(pa.string()))])),
    }
    path = saved(tmp_path / kind, pa.table(columns))
    masks = ["numbers", "pairs", "words", "in.words"]
    found = list(dataset(path, fill_null=None, null_masks=masks))
    for name in masks[:3]:
        assert [bool(each[f"{name}_is_null"]) for each in found] == [False, True, False]
    assert [bool(each["in"]["words_is_null"]) for each in found] == [False, True, False]
    assert [each["numbers"].tolist() for each in found] == [[1, 2], [], []]
    assert [each["pairs"].tolist() for each in found] == [[1, 2], [0, 0], [3, 4]]


def test_nulls_of_structs_are_those_of_their_fields(tmp_path):
    rows = [
        {"s": {"a": 1, "t": [{"u": "x"}]}},
        {"s": None},
        {"s": {"a": None, "t": None}},
        {"s": {"a": 4, "t": [None]}},
    ]
    path = saved(tmp_path / "a.parquet", pa.Table.from_pylist(rows))
    ds = dataset(path, fill_null={"s.a": -1, "s.t.u": "?"}, null_masks=["s.a"])
    assert [int(x["s"]["a"]) for x in ds] == [1, -1, -1, 4]
    assert [bool(x["s"]["a_is_null"]) for x in ds] == [False, True, True, False]
    assert [x["s"]["t"]["u"].tolist() for x in ds] == [["x"], [], [], ["?"]]
    with pytest.raises(ps.SourceError, match=r"row 1 has no value in column 's\.t\.u'"):
        list(dataset(path, fill_null={"s.a": -1}))


def test_what_cannot_stand_in_is_refused(tmp_path):
    path = saved(tmp_path / "a.parquet", pa.table({"x": pa.array([1, None]), "t": ["a", "b"]}))
    with pytest.raises(ps.SpecError, match=r"from_parquet\(fill_null=\): column 'x' is .* which cannot hold 0\.5"):
        dataset(path, fill_null={"x": 0.5})
    with pytest.raises(ps.SpecError, match=r"cannot hold nan\. Read it as a float: dtypes=\{'x': 'float64'\}"):
        dataset(path, fill_null={"x": math.nan})
    with pytest.raises(ps.ArgumentError, match=r"fill_null= or null_masks= name 'y', which is not read. Columns are"):
        dataset(path, fill_null={"y": 1})
    with pytest.raises(ps.ArgumentTypeError, match="a single value stands in for nulls"):
        dataset(path, fill_null=[1])
    with pytest.raises(ps.ArgumentTypeError, match=r"null_masks=.* is a list of names"):
        dataset(path, null_masks="x")
    assert dataset(path, fill_null=0)[1] == {"x": 0, "t": "b"}  # one value: for the columns that can hold it
