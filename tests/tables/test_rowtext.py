"""JSON Lines and CSV: text is converted once, to an Arrow file."""

import csv
import functools
import gzip
import json
import os
import pickle
import random
import re
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests, assert_resumes_exactly, assert_same
from tests.texts import words_of_encodings

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from penstock.tables import _textarrow, rowtext

ROWS = [
    {
        "id": i,
        "score": i / 4,
        "text": f'ä{i}, "quoted" {{}}' * (i % 3),
        "ids": list(range(i % 4)),
        "turns": [{"role": "user", "text": f"t{k}"} for k in range(i % 3)],
        "meta": {"is_good": i % 2 == 0},
    }
    for i in range(23)
]


def as_element(row):
    return {
        "id": np.int64(row["id"]),
        "score": np.float64(row["score"]),
        "text": row["text"],
        "ids": np.array(row["ids"], "i8"),
        "turns": {key: np.array([turn[key] for turn in row["turns"]], "U") for key in ("role", "text")},
        "meta": {"is_good": np.bool_(row["meta"]["is_good"])},
    }


def written(path, *texts, newline="\n", end="\n"):
    """Writes lines; some files end without one."""
    path.write_bytes((newline.join(texts) + end).encode())
    return path


def jsonl(path, rows=ROWS, **options):
    return written(path, *(json.dumps(row, ensure_ascii=row.get("id", 1) % 2 == 0) for row in rows), **options)


def kept_in(folder):
    return sorted(folder.glob(".*.columns"))


@pytest.fixture
def converted(monkeypatch):
    """The files of each conversion."""
    made = []
    arrow_file = _textarrow.Text.arrow_file
    monkeypatch.setattr(_textarrow.Text, "arrow_file", lambda text: made.append(text.where) or arrow_file(text))
    return made


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(_textarrow, "PART_NBYTES", 1000)
    monkeypatch.setattr(_textarrow, "_ROWS", 10)


class TestJsonl(SourceTests):
    @pytest.fixture(params=["one", "gzip", "zstd", "blank lines", "many batches"])
    def source(self, request, tmp_path, monkeypatch):
        if request.param in ("gzip", "zstd"):
            zstd = functools.partial(pytest.importorskip("pyarrow").compress, codec="zstd", asbytes=True)
            content = jsonl(tmp_path / "a.jsonl").read_bytes()
            (tmp_path / "a.packed").write_bytes((gzip.compress if request.param == "gzip" else zstd)(content))
            return ps.from_jsonl(tmp_path / "a.packed", columns=["score", "id"])._node.data
        if request.param == "many batches":
            monkeypatch.setattr(_textarrow, "PART_NBYTES", 1)
        newline = "\r\n\r\n\n" if request.param == "blank lines" else "\n"
        jsonl(tmp_path / "a.jsonl", ROWS[:9], newline=newline, end="")
        jsonl(tmp_path / "b.jsonl", ROWS[9:], newline=newline)
        paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        return ps.from_jsonl(paths, columns=["score", "id"])._node.data

    @pytest.fixture
    def expected(self):
        return {"score": np.arange(23) / 4, "id": np.arange(23)}


class TestCsv(SourceTests):
    @pytest.fixture(params=["header", "names", "tabs"])
    def source(self, request, tmp_path):
        texts = [f'"a ""{i}"", \n\n{i}"' if i % 3 == 0 else f"b{i}" for i in range(17)]
        between = "\t" if request.param == "tabs" else ","
        rows = [between.join([str(i), text, "yes" if i % 2 else "no", str(i / 8)]) for i, text in enumerate(texts)]
        header = between.join(["id", "text", '"a, b"', "x"])
        head = [] if request.param == "names" else [header]
        written(tmp_path / "a.csv", *head, *rows[:5], "", "")
        written(tmp_path / "b.csv", *head, *rows[5:], end="")
        names = ["id", "text", "c", "x"] if request.param == "names" else None
        return ps.from_csv(f"{tmp_path}/*.csv", names=names, delimiter=between, columns=["id", "text", "x"])._node.data

    @pytest.fixture
    def expected(self):
        texts = np.array([f'a "{i}", \n\n{i}' if i % 3 == 0 else f"b{i}" for i in range(17)])
        return {"id": np.arange(17), "text": texts, "x": np.arange(17) / 8}


def test_objects_are_dicts_and_lists_of_objects_are_dicts_of_lists(tmp_path):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl"))
    assert ds.element_spec["turns"]["role"] == ps.ArraySpec((None,), "U")
    for index, row in enumerate(ROWS):
        assert_same(ds[index], as_element(row))
    with ds.shuffle(seed=1).loader(executor="threads", workers=2) as loader:
        for element in loader:
            assert_same(element, as_element(ROWS[element["id"]]))


def test_a_run_resumes_exactly(tmp_path):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl"), columns=["id", "text"]).shuffle(seed=3).batch(4)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])


@pytest.mark.slow
def test_worker_processes_map_the_columns(tmp_path):
    def with_maps(row):
        maps = Path("/proc/self/maps").read_text().splitlines()
        return row["id"], len(row["text"]), any(line.endswith(".columns") for line in maps)

    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl", [{"id": i, "text": "a" * 6000} for i in range(200)]))
    with ds.map(with_maps).batch(50).loader("processes", workers=1) as loader:
        found = [tuple(map(int, row)) for batch in loader for row in zip(*batch, strict=True)]
    assert found == [(number, 6000, True) for number in range(200)]


def test_a_mark_of_utf_8_is_no_text(tmp_path):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a").write_bytes(mark + b"x,y\n1,2\n")
    assert ps.from_csv(tmp_path / "a")[0] == {"x": 1, "y": 2}
    (tmp_path / "a").write_bytes(mark + b'{"x": 1}')
    assert ps.from_jsonl(tmp_path / "a")[0] == {"x": 1}


def test_files_without_rows(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(ps.SourceError, match=r"from_jsonl\(\): .* has no columns, so it has no elements"):
        ps.from_jsonl(tmp_path / "a")
    written(tmp_path / "a", "x,y", end="")
    with pytest.raises(ps.SpecError, match="column 'x' has no value in any row"):
        ps.from_csv(tmp_path / "a")
    ds = ps.from_csv(tmp_path / "a", dtypes={"x": "int64", "y": "U"})
    assert len(ds) == 0
    assert ds.element_spec == {"x": ps.ArraySpec((), "i8"), "y": ps.ArraySpec((), "U")}


@pytest.mark.parametrize("seed", range(12))
def test_records_of_csv_are_those_of_the_module_csv(tmp_path, seed):
    """With ends of lines in quotes."""
    rng = random.Random(seed)
    fields = ["a", "d'", "5 in", '"e\nf"', '"g"', '"h""i"', '"j,\r\nk"', '""""', '"\n"']
    rows = [[rng.choice(fields) for _ in range(3)] for _ in range(20)]
    text = "\n".join(",".join(row) for row in rows) + rng.choice(["", "\n", "\n\n"])
    (tmp_path / "a.csv").write_text(text, newline="")
    with open(tmp_path / "a.csv", newline="") as file:
        expected = [row for row in csv.reader(file) if row]
    ds = ps.from_csv(tmp_path / "a.csv", names=["x", "y", "z"], dtypes={"x": "U", "y": "U", "z": "U"})
    assert [[element["x"], element["y"], element["z"]] for element in ds] == expected
    index = rng.randrange(20)
    assert list(ds[index].values()) == expected[index]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"x": 3', r"a\.jsonl.* line 4"),
        ('{"x": "a"}', r"a\.jsonl row 2 .*column 'x' .* does not fit \(\) int64"),
        ('{"x": 1.5}', r"a\.jsonl row 2 .*column 'x' .* does not fit \(\) int64: .*1\.5"),
        ("7", r"a\.jsonl: line 4 is no JSON object: it is another value"),
        ("null", r"a\.jsonl: line 4 is no JSON object"),
        ("[1]", r"a\.jsonl: line 4 is no JSON object"),
        ('{"x": ' + "[" * 10**5 + "]" * 10**5 + "}", r"a\.jsonl"),
        ('{"x": 1, "x": 2}', r"a\.jsonl.* in line 3.*duplicate key"),
        ('{"x": 1} {"x": 2}', r"a\.jsonl.* line 4"),
        ("\xff", r"a\.jsonl.* line 4"),
    ],
)
def test_a_line_that_cannot_be_converted_is_named_and_is_an_error_for_all(tmp_path, line, text):
    path = tmp_path / "a.jsonl"
    path.write_bytes(f'{{"x": 1}}\n\n{{"x": 2}}\n{line}\n{{"x": 4}}'.encode("latin-1"))
    with pytest.raises(ps.SourceError, match=text):
        ps.from_jsonl(path, columns=["x"], dtypes={"x": "int64"})
    assert kept_in(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("1", r"a\.csv.*Row #3: Expected 2 columns, got 1"),
        ("1,b,c", r"a\.csv.*Row #3: Expected 2 columns, got 3"),
        ("1,b,", r"a\.csv.*Row #3: Expected 2 columns, got 3"),
        ("1.5,b", r"a\.csv row 1 .*column 'x' .* does not fit \(\) int64: .*1\.5"),
        ("\xff,b", r"a\.csv.*Row #3: .*encoding="),
        ('1,"b', r"a\.csv.*it ends within quotes"),
    ],
)
def test_a_row_that_cannot_be_converted_is_named(tmp_path, line, text):
    path = tmp_path / "a.csv"
    path.write_bytes(f'x,y\n1,"a\nb"\n{line}'.encode("latin-1"))
    with pytest.raises(ps.SourceError, match=text):
        ps.from_csv(path, dtypes={"x": "int64"})


def test_a_null_is_an_error_where_it_is_read(tmp_path):
    for ds in (
        ps.from_csv(written(tmp_path / "a.csv", "x,y", "1,a", ",b")),
        ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1, "y": "a"}', '{"y": "b"}')),
    ):
        with pytest.raises(ps.SourceError, match=r"a\.\w+ row 1 has no value in column 'x'.* fill_null=\{'x': 0\}"):
            ds[1]
        assert ds.select("y")[1] == {"y": "b"}


def test_a_quote_has_no_meaning_if_the_user_says_so(tmp_path):
    assert ps.from_csv(written(tmp_path / "a.csv", "x,y", '2,"c', "3,d"), quote="")[0] == {"x": 2, "y": '"c'}


def test_types_are_those_of_the_rows_or_as_said(tmp_path):
    path = written(
        tmp_path / "a.jsonl", '{"a": 1, "t": "2020-01-01 00:00:00", "l": [1], "n": null}', '{"a": 1.5, "l": [2]}'
    )
    with pytest.raises(
        ps.SpecError, match=r"a\.jsonl: column 'n' has no value in any row.*dtypes=\{'n': \"float64\"\}"
    ):
        ps.from_jsonl(path)
    ds = ps.from_jsonl(path, dtypes={"a": "float32", "l": "int16", "n": "U"}, fill_null={"n": "?", "t": ""})
    assert ds.element_spec == {
        "a": ps.ArraySpec((), "f4"),
        "t": ps.ArraySpec((), "U"),
        "l": ps.ArraySpec((None,), "i2"),
        "n": ps.ArraySpec((), "U"),
    }
    assert (ds[0]["t"], ds[1]["t"], ds[1]["n"]) == ("2020-01-01 00:00:00", "", "?")
    path = written(tmp_path / "a.csv", "zip,other,id,day,is", "01234,1234,2023_01,2020-02-01,true")
    assert ps.from_csv(path, dtypes={"other": str})[0] == {
        "zip": "01234",
        "other": "1234",
        "id": "2023_01",
        "day": np.datetime64("2020-02-01"),
        "is": np.True_,
    }


@pytest.mark.parametrize("text", ["01/02/2020", "1.2.2020", "10:00", "1,5", "0x10", "1e", "yes", "t", "2020-1-2", "٣"])
def test_what_is_no_number_truth_value_or_date_in_any_country_is_text(tmp_path, text):
    path = written(tmp_path / "a.csv", "x;y", f"{text};1")
    assert ps.from_csv(path, delimiter=";")[0] == {"x": text, "y": 1}


def test_every_dtype_that_numbers_have_can_be_read_from_text(tmp_path):
    csv = written(tmp_path / "a.csv", "x", "5", "7")
    rows = written(tmp_path / "a.jsonl", '{"x": 5, "s": {"l": [5]}}', '{"x": 7, "s": {"l": [7]}}')
    for dtype in ("u1", "i2", "i4", "u8", "f2", "f4", "m8[s]", "m8[ns]"):
        want = np.array([5, 7], dtype)
        for found in (
            [element["x"] for element in ps.from_csv(csv, dtypes={"x": dtype})],
            [element["x"] for element in ps.from_jsonl(rows, columns=["x"], dtypes={"x": dtype})],
            [element["s"]["l"][0] for element in ps.from_jsonl(rows, columns=["s"], dtypes={"s.l": dtype})],
        ):
            assert [each.dtype for each in found] == [want.dtype] * 2
            np.testing.assert_array_equal(found, want)


def test_times_in_csv_are_numbers_or_refused_as_the_user_says(tmp_path):
    path = written(tmp_path / "a.csv", "t,d", "1970-01-01 00:00:01,1970-01-03")
    for dtype in ("int64", "int32", "float64"):
        assert ps.from_csv(path, dtypes={"t": dtype, "d": dtype})[0] == {"t": 1, "d": 2}
    with pytest.raises(
        ps.SpecError, match=r"from_csv\(dtypes=\): column 't' of .*a\.csv is timestamp\[s\], of which no"
    ):
        ps.from_csv(path, dtypes={"t": "bool"})


def test_wrong_arguments_are_refused(tmp_path):
    path = written(tmp_path / "a.csv", "x,y", "1,2")
    with pytest.raises(
        ps.ArgumentError, match=r"from_csv\(columns=\): .*a\.csv has no column 'z'; it has \['x', 'y'\]"
    ):
        ps.from_csv(path, columns=["z"])
    with pytest.raises(ps.ArgumentError, match="has no column 'z'"):
        ps.from_csv(path, dtypes={"z": "i4"})
    with pytest.raises(ps.ArgumentError, match=r"delimiter='ab'.: it is one character of ASCII"):
        ps.from_csv(path, delimiter="ab")
    with pytest.raises(ps.ArgumentError, match=r"compression='lz4'.: it is one of 'auto'"):
        ps.from_csv(path, compression="lz4")
    with pytest.raises(ps.ArgumentError, match="the column 'x' would come twice"):
        ps.from_csv(path, columns=["x", "x"])
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_csv(path, encoding="rot13")
    with pytest.raises(ps.SourceError, match="line 1 is no JSON object: it is another value"):
        ps.from_jsonl(written(tmp_path / "a.json", '[{"x": 1}]'))
    with pytest.raises(ps.SourceError, match=r"a\.csv.*Row #1: Expected 3 columns, got 2"):
        ps.from_csv(path, names=["a", "b", "c"])


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_csv_with_another_delimiter_is_refused_with_the_line_to_write(tmp_path, between):
    path = written(tmp_path / "a.csv", f"x{between}y", f"1{between}2")
    with pytest.raises(ps.SourceError, match=re.escape(f"has one column, {f'x{between}y'!r}")) as caught:
        ps.from_csv(path)
    assert f"Write delimiter={between!r}" in str(caught.value)
    assert ps.from_csv(path, delimiter=between)[0] == {"x": 1, "y": 2}
    assert ps.from_csv(path, names=["text"])[0] == {"text": f"x{between}y"}


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_rows_end_in_any_end_of_a_line(tmp_path, newline):
    rows = ["a,b", "1,2", "", "3,4", "5,6"]
    ds = ps.from_csv(written(tmp_path / "a.csv", *rows, newline=newline, end=newline))
    assert [(int(e["a"]), int(e["b"])) for e in ds] == [(1, 2), (3, 4), (5, 6)]
    assert len(ps.from_csv(written(tmp_path / "a.csv", *rows, newline=newline, end=""))) == 3
    path = written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2}', "", '{"x": 3}', newline=newline, end=newline)
    if newline != "\r":  # which is a blank in JSON
        assert [int(e["x"]) for e in ps.from_jsonl(path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([None, None], [0, 0]),
        ([None, None, None], [0, 0, 0]),
        ([[None, None], [None, None]], [[0, 0], [0, 0]]),
        ([{"c": None}, {"c": None}], {"c": [0, 0]}),
        ({"c": [None, None]}, {"c": [0, 0]}),
        (None, 0),
    ],
)
def test_lists_that_hold_nothing_but_null_are_filled(tmp_path, value, expected):
    path = written(tmp_path / "a.jsonl", json.dumps({"x": value, "y": 1}), json.dumps({"x": value, "y": 2}))
    for element in ps.from_jsonl(path, fill_null=0):
        found = element["x"]
        as_lists = {name: each.tolist() for name, each in found.items()} if isinstance(found, dict) else found.tolist()
        assert as_lists == expected


@pytest.mark.parametrize("count", [100, 80_000])
def test_types_are_the_least_that_hold_every_row(tmp_path, count):
    rows = [{"x": i, "tags": [], "o": {"a": i}, "n": None} for i in range(count)]
    rows += [{"x": 0.5, "late": "here", "tags": ["t"], "o": {"b": True}, "n": [1]}]
    path = written(tmp_path / "a.jsonl", *map(json.dumps, rows))
    ds = ps.from_jsonl(
        path, columns=["late", "x", "tags", "o", "n"], fill_null={"late": "", "o.a": -1, "o.b": False, "n": 0}
    )
    assert ds.element_spec == {
        "late": ps.ArraySpec((), "U"),
        "x": ps.ArraySpec((), "f8"),
        "tags": ps.ArraySpec((None,), "U"),
        "o": {"a": ps.ArraySpec((), "i8"), "b": ps.ArraySpec((), "?")},
        "n": ps.ArraySpec((None,), "i8"),
    }
    last = ds[count]
    assert (last["x"], last["late"], last["tags"].tolist(), last["n"].tolist()) == (0.5, "here", ["t"], [1])
    assert (ds[7]["x"], ds[7]["late"], ds[7]["tags"].tolist(), ds[7]["n"].tolist()) == (7.0, "", [], [])
    texts = ["x,n,t", *(f"{i},,2020-01-0{i % 9 + 1}" for i in range(count)), "0.5,7,2020-01-01 10:00:00", "1,,"]
    ds = ps.from_csv(written(tmp_path / "a.csv", *texts), fill_null={"n": -1, "t": np.datetime64("NaT", "s")})
    assert {name: spec.dtype for name, spec in ds.element_spec.items()} == {"x": "f8", "n": "i8", "t": "M8[s]"}
    assert tuple(ds[count].values()) == (0.5, 7, np.datetime64("2020-01-01T10:00:00"))
    ds = ps.from_csv(written(tmp_path / "a.csv", "x,is", *(f"{i % 2},{i % 2}" for i in range(count)), "b,true"))
    assert (ds[1], ds[count]) == ({"x": "1", "is": "1"}, {"x": "b", "is": "true"})


@pytest.mark.parametrize("numbers", [[1, 2**63 - 1, -5], [1.5, 2.0**70], [2.0**70]])
def test_large_numbers_keep_all_their_digits(tmp_path, numbers):
    for ds in (
        ps.from_jsonl(written(tmp_path / "a.jsonl", *(json.dumps({"x": each}) for each in numbers))),
        ps.from_csv(written(tmp_path / "a.csv", "x", *map(str, numbers))),
    ):
        assert ds.element_spec == {"x": ps.ArraySpec((), "int64" if -5 in numbers else "float64")}
        assert [element["x"].item() for element in ds] == numbers


@pytest.mark.parametrize("numbers", [[2**64 - 1, 2**53 + 1], [2**63 + 1], [2**64 + 1, 1], [2**70 + 1, 0.5]])
def test_integers_beyond_int64_are_refused_and_a_dtype_leads_to_them(tmp_path, numbers):
    for verb, path in (
        (ps.from_jsonl, written(tmp_path / "a.jsonl", *(f'{{"x": {each}}}' for each in numbers))),
        (ps.from_csv, written(tmp_path / "a.csv", "x", *map(str, numbers))),
    ):
        with pytest.raises((ps.SourceError, ps.SpecError), match=r"a\.\w+.*dtypes="):
            verb(path)
        assert [element["x"] for element in verb(path, dtypes={"x": "U"})] == list(map(str, numbers))
        assert [element["x"] for element in verb(path, dtypes={"x": float})] == list(map(float, numbers))
        if max(numbers) < 2**64:
            assert [element["x"] for element in verb(path, dtypes={"x": "uint64"})] == numbers


SHORT, LONG = "0.5", "9007199254740993"  # the second is 2**53 + 1


@pytest.mark.parametrize(
    "texts", [[LONG, SHORT], [SHORT, LONG], [SHORT, "-" + LONG, "1e20"], [str(2**63 - 1), "1", "2e3"]]
)
def test_integers_that_float64_rounds_are_refused_among_floats(tmp_path, texts):
    csv = written(tmp_path / "a.csv", "x,i", *(f"{text},1234567890123456789" for text in texts))
    rows = [f'{{"x": {text}, "s": {{"l": [{text}]}}, "i": 1234567890123456789}}' for text in texts]
    lines_there = written(tmp_path / "a.jsonl", *rows)
    text = r"no type holds column '{}' of .*a\.{}: .*float64 would make.* dtypes=\{{'{}': \"float64\"\}}; or .*\"U\""
    for verb, path, name in (
        (ps.from_csv, csv, "x"),
        (ps.from_jsonl, lines_there, "x"),
        (ps.from_jsonl, lines_there, "s.l"),
    ):
        column = name[0]
        with pytest.raises(ps.SpecError, match=text.format(name, path.suffix[1:], name)):
            verb(path, columns=[column])
        with pytest.raises((ps.SpecError, ps.SourceError), match=path.name):
            verb(path, columns=[column], dtypes={name: "int64"})
        found = [element[column] for element in verb(path, dtypes={name: "float64"}, columns=[column, "i"])]
        assert [each["l"].tolist() if name == "s.l" else each for each in found] == [
            [float(each)] if name == "s.l" else float(each) for each in texts
        ]
        if name == "x":
            found = [element[column] for element in verb(path, dtypes={name: "U"}, columns=[column])]
            assert LONG not in texts or LONG in found
        assert verb(path, columns=["i"])[0] == {"i": 1234567890123456789}


def test_integers_that_float64_rounds_are_refused_beside_a_file_of_floats(tmp_path):
    written(tmp_path / "0.csv", "x", LONG)
    written(tmp_path / "1.csv", "x", SHORT)
    written(tmp_path / "0.jsonl", f'{{"x": {LONG}}}')
    written(tmp_path / "1.jsonl", f'{{"x": {SHORT}}}')
    for verb, pattern in ((ps.from_csv, "*.csv"), (ps.from_jsonl, "*.jsonl")):
        with pytest.raises(ps.SpecError, match=r"no type holds column 'x' of .*0\..* and 1 more"):
            verb(f"{tmp_path}/{pattern}")
        assert [element["x"] for element in verb(f"{tmp_path}/{pattern}", dtypes={"x": float})] == [2.0**53, 0.5]


@pytest.mark.parametrize("texts", [[str(2**60), SHORT], ["1e20", "-1E300"], [str(2**53), SHORT]])
def test_large_numbers_that_float64_holds_are_floats(tmp_path, texts):
    for ds in (
        ps.from_jsonl(written(tmp_path / "a.jsonl", *(f'{{"x": {text}}}' for text in texts))),
        ps.from_csv(written(tmp_path / "a.csv", "x", *texts)),
    ):
        assert ds.element_spec == {"x": ps.ArraySpec((), "f8")}
        assert [element["x"] for element in ds] == list(map(float, texts))


def test_objects_may_be_empty_and_have_other_keys(tmp_path):
    rows = [{"o": {}, "e": {}, "l": [{}]}, {"o": {"a": 1}, "e": {}}, {}, {"o": {"b": {"c": "x"}}, "l": [{"k": 1}]}]
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl", rows), columns=["o", "e"], fill_null={"o.a": 0, "o.b.c": ""})
    assert list(ds) == [{"o": {"a": a, "b": {"c": c}}} for a, c in ((0, ""), (1, ""), (0, ""), (0, "x"))]
    written(tmp_path / "a.jsonl", '{"x": {}, "y": {"z": {}}}')
    with pytest.raises(ps.SpecError, match=r"\['x', 'y'\] hold objects without fields, .*columns="):
        ps.from_jsonl(tmp_path / "a.jsonl")


def test_zero_stands_in_for_a_truth_value_that_is_null(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"x": null, "o": {"b": null}}', '{"x": true, "o": {"b": true}}')
    for filler in (0, {"x": 0, "o.b": 0}, False):
        ds = ps.from_jsonl(path, fill_null=filler)
        assert ds.element_spec == {"x": ps.ArraySpec((), "bool"), "o": {"b": ps.ArraySpec((), "bool")}}
        assert list(ds) == [{"x": False, "o": {"b": False}}, {"x": True, "o": {"b": True}}]


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        ("1", '"a"', ["1", "a"]),
        ('"a"', "1.5", ["a", "1.5"]),
        ("true", "1", ["true", "1"]),
        ("[1]", "1", ["[1]", "1"]),
        ("1", '{"a": 1}', ["1", '{"a":1}']),
        ("[1, 2]", '["a"]', [["1", "2"], ["a"]]),
        ('[1, "b"]', "[]", [["1", "b"], []]),
        ("{}", "1", ["{}", "1"]),
    ],
)
def test_values_of_two_kinds_are_text(tmp_path, first, second, texts):
    lines = f'{{"id": 1, "x": {first}}}', f'{{"id": 2, "x": {second}}}'
    together = written(tmp_path / "a.jsonl", *lines)
    apart = [written(tmp_path / f"{number}.jsonl", line) for number, line in enumerate(lines)]
    for ds in (ps.from_jsonl(together), ps.from_jsonl(apart)):
        assert [element["x"].tolist() if isinstance(texts[0], list) else element["x"] for element in ds] == texts
        assert [element["id"] for element in ds] == [1, 2]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_files_may_lack_rows_or_columns_and_one_line_of_the_log_says_so(tmp_path, kind, caplog):
    if kind == "jsonl":
        written(tmp_path / "0.jsonl", "", end="")
        written(tmp_path / "1.jsonl", '{"x": 1}', '{"x": 2}')
        written(tmp_path / "2.jsonl", '{"y": "b", "x": 2.5}')
    else:
        written(tmp_path / "0.csv", "x,y", end="")
        written(tmp_path / "1.csv", "x", "1", "2")
        written(tmp_path / "2.csv", "y,x", "b,2.5")
    for _ in range(2):  # converted, and kept from before
        ds = (ps.from_jsonl if kind == "jsonl" else ps.from_csv)(f"{tmp_path}/*.{kind}", fill_null={"y": ""})
        assert [(float(e["x"]), e["y"]) for e in ds] == [(1, ""), (2, ""), (2.5, "b")]
        assert [float(each) for each in ds.select("x").batch(3)[0]["x"]] == [1, 2, 2.5]
        assert [float(ds[index]["x"]) for index in (2, 0, 1)] == [2.5, 1, 2]
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"from_{kind}(): files differ. ")
        assert f"1.{kind} has column 'x' as int64, read as double" in line
        assert f"{0 if kind == 'jsonl' else 1}.{kind} has no column 'y', which is null then" in line


def test_large_files_are_converted_when_the_spec_is_first_needed(tmp_path, monkeypatch, converted):
    monkeypatch.setattr(rowtext, "HEAD_NBYTES", 4)
    made = [
        ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2}'), columns=["x"]),
        ps.from_csv(written(tmp_path / "a.csv", "x,y", "1,2"), columns=["y"]),
    ]
    assert converted == []
    assert [len(each) for each in made] == [2, 1]
    assert len(converted) == 2


@pytest.mark.parametrize(("encoding", "word"), words_of_encodings().items())
def test_text_may_have_another_encoding(tmp_path, encoding, word):
    (tmp_path / "a.csv").write_bytes(f'{word},b\n"{word}\n,",1\nx,2\n'.encode(encoding))
    (tmp_path / "a.jsonl").write_bytes(f'{{"{word}": "{word}"}}\n{{"{word}": "x"}}\n'.encode(encoding))
    assert [tuple(e.values()) for e in ps.from_csv(tmp_path / "a.csv", encoding=encoding)] == [
        (f"{word}\n,", 1),
        ("x", 2),
    ]
    assert [e[word] for e in ps.from_jsonl(tmp_path / "a.jsonl", encoding=encoding)] == [word, "x"]
    assert ps.from_csv(tmp_path / "a.csv", encoding=encoding).select("b")[1] == {"b": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_rows_keep_their_order_in_a_large_file(tmp_path, kind):
    path, count = tmp_path / f"a.{kind}", 200_000
    with open(path, "w") as file:
        file.write("id,text,score,label\n" * (kind == "csv"))
        row = "{},some words that are here to take room,{},{}\n"
        row = row if kind == "csv" else '{{"id":{},"text":"some words to take room","score":{},"label":{}}}\n'
        file.writelines(row.format(number, number / 8, number % 10) for number in range(count))
    ds = (ps.from_csv if kind == "csv" else ps.from_jsonl)(path).select("id", "score")
    found = [(batch["id"], batch["score"]) for batch in ds.batch(100_000)]
    ids, scores = map(np.concatenate, zip(*found, strict=True))
    assert (ids == np.arange(count)).all()
    assert (scores == np.arange(count) / 8).all()


def test_a_header_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("é,b\n1,2\n".encode("latin-1"))
    with pytest.raises(ps.SourceError, match=r"a\.csv: its header is no utf-8\. Name the encoding with encoding="):
        ps.from_csv(tmp_path / "a.csv")


@pytest.mark.parametrize("size", [3 << 20, 48 << 20])
def test_a_row_may_have_16_mib(tmp_path, size):
    path = written(tmp_path / "a.csv", "x,y", "a" * size + ",1", "b,2")
    if size < 16 << 20:
        assert [len(each["x"]) for each in ps.from_csv(path)] == [size, 1]
        return
    with pytest.raises(ps.SourceError, match=r"a\.csv: .*A row has at most 16 MiB") as caught:
        len(ps.from_csv(path))
    assert len(str(caught.value)) < 1000


def test_rows_wider_than_the_header_are_refused(tmp_path):
    with pytest.raises(ps.SourceError, match=r"a\.csv.*Row #4: Expected 2 columns, got 3"):
        ps.from_csv(written(tmp_path / "a.csv", "", "", "a,b", "1,2,3"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_number_that_its_dtype_cannot_hold_is_an_error_and_text_leads_to_it(tmp_path, kind):
    path, values = tmp_path / f"a.{kind}", ["1.5", "1e40", "-70000"]
    if kind == "csv":
        path.write_text("\n".join(["x", *values]))
    else:
        path.write_text("\n".join(f'{{"x": {value}}}' for value in values))
    read = functools.partial(ps.from_csv if kind == "csv" else ps.from_jsonl, path)
    assert [each["x"] for each in read()] == [1.5, 1e40, -70000]
    with pytest.raises(ps.SourceError, match=r"row [12] .*does not fit .*1e\+40 would become inf.*\"float64\""):
        read(dtypes={"x": "float32"})
    with pytest.raises(ps.SourceError, match=r"would become -?inf"):
        read(dtypes={"x": "float16"})
    assert len(read(dtypes={"x": "U"})) == 3


@pytest.mark.parametrize("value", ["1e400", "-1e999", "9" * 400])
def test_a_number_beyond_float64_is_an_error_and_infinity_is_none(tmp_path, value):
    (tmp_path / "a.csv").write_text(f"x,y\n1.5,1\ninf,2\n-Infinity,3\n{value},4\n")
    with pytest.raises((ps.SourceError, ps.SpecError), match=r"a\.csv.*dtypes="):
        ps.from_csv(tmp_path / "a.csv", dtypes={"x": "float64"})
    assert ps.from_csv(tmp_path / "a.csv", dtypes={"x": "U"})[3]["x"] == value
    (tmp_path / "a.jsonl").write_text(f'{{"x": 1.5}}\n{{"x": {value}}}\n')
    with pytest.raises((ps.SourceError, ps.SpecError), match=r"a\.jsonl"):
        ps.from_jsonl(tmp_path / "a.jsonl", dtypes={"x": "float64"})
    (tmp_path / "a.csv").write_text("x,y\n1.5,1\ninf,2\n-Infinity,3\n")
    assert [each["x"] for each in ps.from_csv(tmp_path / "a.csv")] == [1.5, float("inf"), float("-inf")]


def test_text_is_converted_once_and_later_datasets_map_the_same_file(tmp_path, converted):
    path = jsonl(tmp_path / "a.jsonl")
    assert_same(ps.from_jsonl(path)[7], as_element(ROWS[7]))
    (kept,) = kept_in(tmp_path)
    assert kept.stat().st_mode & 0o077 == path.stat().st_mode & 0o077 & tmp_path.stat().st_mode
    assert [int(row["id"]) for row in ps.from_jsonl(path).shuffle(1)] != list(range(23))
    assert f"columns kept in {kept.stat().st_size / 1024:.1f} KiB" in repr(ps.from_jsonl(path))
    assert len(converted) == 1


@pytest.mark.usefixtures("small_batches")
def test_columns_of_numbers_are_copied_by_the_engine_and_a_run_resumes_exactly(tmp_path, converted):
    rows = [{"id": i, "x": i / 8, "text": f"ä{i}" * (i % 3)} for i in range(200)]
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl", rows)).select("x", "id")
    with ds.shuffle(1).batch(32).loader() as loader:
        found = np.concatenate([batch["id"] for batch in loader])
        assert loader.report().executor == "threads"
    assert sorted(found.tolist()) == list(range(200))
    assert len(converted) == 1  # all columns, of which others are selected later
    assert_resumes_exactly(ds.shuffle(seed=3).batch(16), executors=[("inline", 1), ("threads", 2)])


def test_a_file_that_changes_is_converted_again_in_place_of_the_older_columns(tmp_path):
    paths = jsonl(tmp_path / "a.jsonl"), jsonl(tmp_path / "b.jsonl", ROWS[:1])
    assert len(list(ps.from_jsonl(paths))) == 24
    jsonl(paths[1], [{**ROWS[0], "text": "changed"}])
    assert ps.from_jsonl(paths)[23]["text"] == "changed"
    assert len(kept_in(tmp_path)) == 1
    assert ps.from_jsonl(paths[0])[0]["id"] == 0  # other files are another table
    assert len(kept_in(tmp_path)) == 2


def test_what_decides_how_lines_are_read_decides_which_columns_are_used(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}])
    assert [row["a"] for row in ps.from_jsonl(path, fill_null=-1)] == [1, -1, 3]
    assert [row["a"] for row in ps.from_jsonl(path, fill_null=-2)] == [1, -2, 3]
    assert [row["b"] for row in ps.from_jsonl(path, fill_null=-2, columns=["b"])] == [-2, 2, 4]
    assert ps.from_jsonl(path, fill_null=-1, dtypes={"a": "float32"})[0]["a"].dtype == np.float32
    assert len(kept_in(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "note", "link"])
def test_damaged_columns_and_links_are_not_used(tmp_path, damage, converted):
    path = jsonl(tmp_path / "a.jsonl")
    expected = list(ps.from_jsonl(path))
    (kept,) = kept_in(tmp_path)
    content = kept.read_bytes()
    if damage == "cut":
        kept.write_bytes(content[:-20])
    elif damage == "changed":
        kept.write_bytes(content[:500] + b"?" + content[501:])
    elif damage == "note":
        kept.with_name(f"{kept.name}.sum").write_bytes(b"00000000[]\n")
    else:
        kept.rename(tmp_path / "other")
        kept.symlink_to(tmp_path / "other")
    for found, row in zip(ps.from_jsonl(path), expected, strict=True):
        assert_same(found, row)
    assert len(converted) == 2
    assert not kept.is_symlink()


def test_lists_of_unequal_lists_are_refused_with_file_and_row(tmp_path):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl", [{"x": [[1], [2]]}, {"x": [[1], [2, 3]]}]))
    assert ds[0]["x"].shape == (2, 1)
    with pytest.raises(ps.SourceError, match=r"a\.jsonl row 1 cannot be read: its column 'x' has lists"):
        ds[1]


def test_columns_that_cannot_be_written_are_an_error_with_the_cure(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.files._recordindex.write", full)
    with pytest.raises(ps.SourceError, match=r"No space left on device.* cache_dir .*from_text\(paths\)\.map"):
        ps.from_jsonl(jsonl(tmp_path / "a.jsonl"))


def test_another_machine_converts_the_text_again(tmp_path, converted):
    from penstock.base._travel import Journey, packing_for

    data = ps.from_jsonl(jsonl(tmp_path / "a.jsonl"))._node.data
    for journey, count in ((Journey(), 1), (Journey(leaves_machine=True), 2)):
        with packing_for(journey):
            packed = pickle.dumps(data)
        if count == 2:
            for each in kept_in(tmp_path):
                os.unlink(each)
        assert ps.Dataset(ps.from_source(pickle.loads(packed))._node)[5]["id"] == 5
        assert len(converted) == count


def test_a_kept_file_that_changes_under_a_run_is_an_error_that_names_it(tmp_path):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl"))
    assert ds[0]["id"] == 0
    (kept,) = kept_in(tmp_path)
    kept.write_bytes(kept.read_bytes()[:-64])
    with pytest.raises(ps.SourceError, match=r"\.columns.*changed|changed.*\.columns"):
        ds[3]


def test_remote_text_is_fetched_and_converted_once(tmp_path, converted):
    from tests.servers import serving

    with serving() as server:
        server.files["a.jsonl"] = jsonl(tmp_path / "a.jsonl").read_bytes()
        url = f"http://{server.address}/a.jsonl"
        assert ps.from_jsonl(url, cache_dir=tmp_path / "kept")[7]["id"] == 7
        ds = ps.from_jsonl(url, cache_dir=tmp_path / "kept")
        server.begin_with(lambda number, headers: None)
        assert sorted(int(row["id"]) for row in ds.shuffle(1)) == list(range(23))
        assert server.requests == []
    assert len(converted) == 1


@pytest.mark.parametrize("name", ["[x].csv", "a*b?.csv", "label=3/a.csv", "a.csv.gz", "q\"'.csv"])
def test_names_of_files_mean_nothing_to_the_parser(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    assert ps.from_csv(written(path, "x", "1"))[0] == {"x": 1}


def test_many_columns_of_csv_are_read(tmp_path):
    count = 800
    row = ",".join(str(number % 256) for number in range(count))
    ds = ps.from_csv(written(tmp_path / "a.csv", ",".join(f"p{number}" for number in range(count)), *[row] * 100))
    assert len(ds) == 100
    assert [int(value) for value in ds[99].values()] == [number % 256 for number in range(count)]


def test_times_with_a_zone_are_in_utc(tmp_path):
    path = written(tmp_path / "a.csv", "a,b", "2024-01-01T10:00:00Z,2024-01-01 10:00:00.5+02:00")
    assert ps.from_csv(path)[0] == {
        "a": np.datetime64("2024-01-01T10:00:00"),
        "b": np.datetime64("2024-01-01T08:00:00.500000000"),
    }
    assert ps.from_csv(path, columns=["a"], dtypes={"a": "M8[ms]"})[0] == {"a": np.datetime64("2024-01-01T10:00", "ms")}


def test_numbers_are_no_times_and_truth_values_no_numbers(tmp_path):
    path = written(tmp_path / "a.csv", "n,t,x", "1700000000,true,1.0")
    for name, dtype in (("n", "M8[s]"), ("t", "int64"), ("x", "int64")):
        with pytest.raises(ps.SourceError, match=rf"a\.csv row 0 .*column '{name}' .* does not fit"):
            ps.from_csv(path, dtypes={name: dtype})


@pytest.mark.parametrize("verb", [ps.from_csv, ps.from_jsonl])
def test_bytes_of_a_column_are_those_of_its_text(tmp_path, verb):
    rows = ("x", "200", "a1") if verb is ps.from_csv else ('{"x": 200}', '{"x": "a1"}')
    ds = verb(written(tmp_path / "a", *rows), dtypes={"x": "S"})
    assert [bytes(each["x"]) for each in ds] == [b"200", b"a1"]


def test_integers_as_named_may_have_blanks_around_them_and_nulls(tmp_path):
    path = written(tmp_path / "a.csv", "x,y", " 18446744073709551615 ,1", "NA,2", ",3")
    ds = ps.from_csv(path, dtypes={"x": "uint64"}, fill_null={"x": 7})
    assert [int(each["x"]) for each in ds] == [2**64 - 1, 7, 7]


def test_quotes_within_fields_and_blanks_before_them_are_text(tmp_path):
    path = written(tmp_path / "a.csv", "x,y", '1, "a"', '2,"b" ', '3,c"d', '4,"e"f')
    assert [each["y"] for each in ps.from_csv(path)] == [' "a"', "b ", 'c"d', "ef"]


def test_an_object_of_a_great_many_keys_is_text(tmp_path):
    rows = [json.dumps({"id": i, "m": {f"k{i}_{k}": 1 for k in range(50)}}) for i in range(200)]
    ds = ps.from_jsonl(written(tmp_path / "a.jsonl", *rows))
    assert json.loads(ds[199]["m"]) == {f"k199_{k}": 1 for k in range(50)}
