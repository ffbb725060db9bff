"""Text, JSON Lines and CSV: records by an index of lines."""

import functools
import gzip
import json
import random
import re

import numpy as np
import pytest

import penstock as ps
from penstock.formats import lines
from penstock.testing import SourceTests, assert_resumes_exactly, assert_same

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
    return written(path, *(json.dumps(row, ensure_ascii=row["id"] % 2 == 0) for row in rows), **options)


class TestText(SourceTests):
    @pytest.fixture(params=["lines", "files", "small windows"])
    def source(self, request, tmp_path, monkeypatch):
        if request.param == "small windows":
            monkeypatch.setattr(lines, "_WINDOW_NBYTES", 2)
        if request.param == "files":
            for number in range(7):
                written(tmp_path / f"{number}.txt", f"file {number}", "ä" * number, end="")
            return ps.from_text(f"{tmp_path}/*.txt", by="file")._node.data
        written(tmp_path / "a.txt", "one", "", "ä two", " three ", end="")
        written(tmp_path / "b.txt", "four", "five", "six", newline="\r\n", end="\r\n")
        return ps.from_text([tmp_path / "a.txt", tmp_path / "b.txt"])._node.data

    @pytest.fixture
    def expected(self, request):
        if request.node.callspec.params["source"] == "files":
            return np.array([f"file {number}\n" + "ä" * number for number in range(7)])
        return np.array(["one", "", "ä two", " three ", "four", "five", "six"])


class TestJsonl(SourceTests):
    @pytest.fixture(params=["one", "gzip", "zstd", "blank lines", "kept columns"])
    def source(self, request, tmp_path, monkeypatch):
        if request.param == "kept columns":
            monkeypatch.setattr("penstock.formats.rowtext.LEAST_NBYTES", 0)
        if request.param in ("gzip", "zstd"):
            zstd = functools.partial(pytest.importorskip("pyarrow").compress, codec="zstd", asbytes=True)
            content = jsonl(tmp_path / "a.jsonl").read_bytes()
            (tmp_path / "a.packed").write_bytes((gzip.compress if request.param == "gzip" else zstd)(content))
            return ps.from_jsonl(tmp_path / "a.packed", columns=["score", "id"])._node.data
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
def test_worker_processes_read_lines_and_rows(tmp_path):
    paths = jsonl(tmp_path / "a.jsonl"), written(tmp_path / "a.csv", "x,y", "1,2", "3,4", "5,6")
    both = ps.zip((ps.from_jsonl(paths[0]).take(3), ps.from_csv(paths[1]), ps.from_text(paths[1]).skip(1)))
    with both.map(lambda e: (e[0]["id"], e[1]["x"], len(e[2]))).loader(executor="processes", workers=1) as loader:
        assert [tuple(map(int, element)) for element in loader] == [(0, 1, 3), (1, 3, 3), (2, 5, 3)]


def test_an_index_is_kept_and_made_again_for_a_changed_file(tmp_path):
    path = written(tmp_path / "a.txt", "one", "two")
    assert len(ps.from_text(path)) == 2
    kept = (tmp_path / ".a.txt.index").read_bytes()
    assert len(ps.from_text(path)) == 2
    assert (tmp_path / ".a.txt.index").read_bytes() == kept
    written(path, "one", "two", "three")
    assert list(ps.from_text(path)) == ["one", "two", "three"]
    assert len(ps.from_csv(path, names=["x"], quote="")) == 3  # another index of the same file
    assert len(ps.from_text(path, cache_dir=tmp_path / "kept")) == 3
    assert (tmp_path / "kept").is_dir()


def test_a_mark_of_utf_8_is_no_text(tmp_path):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a").write_bytes(mark + b"one\ntwo\n")
    assert list(ps.from_text(tmp_path / "a")) == ["one", "two"]
    assert list(ps.from_text(tmp_path / "a", by="file")) == ["one\ntwo\n"]
    (tmp_path / "a").write_bytes(mark + b"x,y\n1,2\n")
    assert ps.from_csv(tmp_path / "a")[0] == {"x": 1, "y": 2}
    (tmp_path / "a").write_bytes(mark + b'{"x": 1}')
    assert ps.from_jsonl(tmp_path / "a")[0] == {"x": 1}


def test_empty_files_have_no_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert len(ps.from_text(tmp_path / "a")) == 0
    assert list(ps.from_text([tmp_path / "a", written(tmp_path / "b", "one")])) == ["one"]
    assert list(ps.from_text(tmp_path / "a", by="file")) == [""]
    with pytest.raises(ps.SourceError, match=r"from_jsonl\(\): .* has no columns, so it has no elements"):
        ps.from_jsonl(tmp_path / "a")
    written(tmp_path / "a", '{"x": {}, "y": [{}]}')
    with pytest.raises(ps.SpecError, match=r"\['x', 'y'\] hold objects without fields, .*columns="):
        ps.from_jsonl(tmp_path / "a")
    written(tmp_path / "a", "x,y", end="")
    assert len(ps.from_csv(tmp_path / "a")) == 0


@pytest.mark.parametrize("seed", range(12))
def test_records_of_csv_are_those_of_the_module_csv(tmp_path, seed, monkeypatch):
    """With ends of lines in quotes, and quotes in the middle of fields, which mean nothing there."""
    import csv

    rng = random.Random(seed)
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", rng.choice([1, 7, 64, 1 << 20]))
    plain = ["a", 'b"c', "d'", "5 in"]
    quoted = ['"e\nf"', '"g"', '"h""i"', '"j,\r\nk"', '""""', '"\n"']
    rows = [[rng.choice(plain + quoted) for _ in range(3)] for _ in range(20)]
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
        ('{"x": 3', r"a\.jsonl line 4 does not fit .*JSON parse error: Missing a comma"),
        (
            '{"x": 1.5}',
            r"a\.jsonl line 4 does not fit \{'x': \(\) int64\}: .*1\.5.*dtypes=",
        ),
        ('{"x": "a"}', r"a\.jsonl line 4 does not fit"),
        ("null", r"a\.jsonl line 4 does not fit .* no JSON object, which begins with \{"),
        ("  null", r"a\.jsonl line 4 does not fit .* no JSON object, which begins with \{"),
        ('{"x": 1} null', r"a\.jsonl line 4 does not fit .* it has 2 rows, and not one"),
        ("7", r"a\.jsonl line 4 does not fit .* no JSON object"),
        ("   ", r"a\.jsonl line 4 does not fit .* no JSON object"),
        ("[" * 10**5, r"a\.jsonl line 4 does not fit .*JSON parse error"),
        ('{"x": ' + "[" * 10**5 + "]" * 10**5 + "}", r"a\.jsonl line 4 does not fit .*JSON parse error"),
        ('{"x": 1, "x": 2}', r"a\.jsonl line 4 does not fit .* was specified twice"),
        ("[1]", r"a\.jsonl line 4 does not fit .*JSON parse error: .* object to array"),
        ('{"x": 1} {"x": 2}', r"a\.jsonl line 4 does not fit .* it has 2 rows, and not one"),
        ('{"y": 1}', r"a\.jsonl line 4 has no value in column 'x'.* fill_null=\{'x': 0\}"),
        ('{"x": null}', r"a\.jsonl line 4 has no value in column 'x'"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path, line, text):
    path = written(tmp_path / "a.jsonl", '{"x": 1}', "", '{"x": 2}', line, '{"x": 4}')
    ds = ps.from_jsonl(path, columns=["x"], dtypes={"x": "int64"})
    assert len(ds) == 4
    assert [ds[index]["x"] for index in (0, 1, 3)] == [1, 2, 4]
    with pytest.raises(ps.SourceError, match=text):
        ds[2]
    with pytest.raises(ps.SourceError, match=text), ds.batch(4).loader(executor="threads") as loader:
        next(iter(loader))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("1", r"a\.csv line 4 does not fit .*Expected 2 columns, got 1"),
        ("1,b,c", r"a\.csv line 4 does not fit .*Expected 2 columns, got 3"),
        ("1.5,b", r"a\.csv line 4 does not fit \{'x': \(\) int64.* invalid value '1\.5'.*dtypes="),
        (",b", r"a\.csv line 4 has no value in column 'x'"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, line, text):
    ds = ps.from_csv(written(tmp_path / "a.csv", "x,y", '1,"a', 'b"', line), dtypes={"x": "int64"})
    assert ds[0] == {"x": 1, "y": "a\nb"}
    with pytest.raises(ps.SourceError, match=text):
        ds[1]


@pytest.mark.parametrize(
    ("name", "line", "cure"),
    [
        (
            "csv",
            "1,b,c",
            r"Expected 2 columns, got 3.* another number of fields than the header\. A delimiter .* quotes\.$",
        ),
        ("csv", "1", r"Expected 2 columns, got 1.* another number of fields than the header\."),
        ("csv", "z,b", r"invalid value 'z'.* Name another type, as with dtypes=.* or mend the line\.$"),
        (
            "jsonl",
            '{"x": 1, "x": 2}',
            r"specified twice\. It begins .*\. Mend the line: each key stands once in an object\.",
        ),
        (
            "jsonl",
            "null",
            r"no JSON object.*\. Mend the line, or write the file again with one JSON object on each line\.$",
        ),
        ("jsonl", '{"x": 3', r"Missing a comma.*\. Mend the line, or write"),
        ("jsonl", '{"x": 1} {"x": 2}', r"has 2 rows.*\. Mend the line, or write"),
        ("jsonl", '{"x": "a"}', r"changed from number to string\. .*Name another type, as with dtypes="),
        ("jsonl", '{"x": 1.5}', r"parse:1\.5\. .*Name another type, as with dtypes="),
    ],
)
def test_the_remedy_is_that_of_the_fault(tmp_path, name, line, cure):
    path = (
        written(tmp_path / "a.csv", "x,y", "1,a", line)
        if name == "csv"
        else written(tmp_path / "a.jsonl", "", '{"x": 1}', line)
    )
    ds = (ps.from_csv if name == "csv" else ps.from_jsonl)(path, columns=["x"], dtypes={"x": "int64"})
    with pytest.raises(ps.SourceError, match=rf"a\.{name} line 3 does not fit .*{cure}") as caught:
        ds[1]
    assert not re.search(r"[Rr]ow #?\d", str(caught.value))
    assert ("dtypes=" in str(caught.value)) == ("dtypes=" in cure)


def test_a_quote_that_is_not_closed_is_named(tmp_path):
    path = written(tmp_path / "a.csv", "x,y", '1,"a', 'b"', '2,"c', "3,d")
    with pytest.raises(ps.SourceError, match=r"a\.csv line 4 opens a quote that is not closed .* quote=''"):
        len(ps.from_csv(path))
    assert ps.from_csv(written(path, "x,y", '2,"c', "3,d"), quote="")[0] == {"x": 2, "y": '"c'}


def test_a_damaged_line_among_the_first_is_named_when_it_is_read(tmp_path):
    ds = ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2', '{"x": 3}'))
    with ds.batch(3).loader(on_error="replace", quarantine=tmp_path / "q") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 3, 3]]
    with pytest.raises(ps.SourceError, match=r"a\.jsonl line 2 does not fit"):
        ds[1]


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
    path = written(tmp_path / "a.csv", "zip,day,is", "01234,2020-02-01,true")
    assert ps.from_csv(path, dtypes={"zip": str})[0] == {
        "zip": "01234",
        "day": np.datetime64("2020-02-01"),
        "is": np.True_,
    }


def test_every_dtype_that_numbers_have_can_be_read_from_text(tmp_path):
    csv = written(tmp_path / "a.csv", "x", "5", "7")
    rows = written(tmp_path / "a.jsonl", '{"x": 5, "s": {"l": [5]}}', '{"x": 7, "s": {"l": [7]}}')
    for dtype in ("u1", "i2", "i4", "f2", "f4", "m8[s]", "m8[ns]"):
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
    with pytest.raises(ps.SourceError, match="is one JSON array, and JSON Lines have an object on each line"):
        ps.from_jsonl(written(tmp_path / "a.json", '[{"x": 1}]'))
    with pytest.raises(ps.ArgumentError, match=r"by='word'.: it is 'line' or 'file'"):
        ps.from_text(path, by="word")
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_text(path, encoding="utf-9")
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_csv(path, encoding="rot13")
    (tmp_path / "c.txt").write_bytes("ok\nä\n".encode("latin-1"))
    with pytest.raises(
        ps.SourceError, match=r"c\.txt line 2 is no text in utf-8: .* in column 1, at its byte 0\. Name the encoding"
    ):
        list(ps.from_text(tmp_path / "c.txt"))
    assert list(ps.from_text(tmp_path / "c.txt", encoding="latin-1")) == ["ok", "ä"]


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_csv_with_another_delimiter_is_refused_with_the_line_to_write(tmp_path, between):
    path = written(tmp_path / "a.csv", f"x{between}y", f"1{between}2")
    with pytest.raises(ps.SourceError, match=re.escape(f"has one column, {f'x{between}y'!r}")) as caught:
        ps.from_csv(path)
    assert f"Write delimiter={between!r}" in str(caught.value)
    assert ps.from_csv(path, delimiter=between)[0] == {"x": 1, "y": 2}
    assert ps.from_csv(path, names=["text"])[0] == {"text": f"x{between}y"}


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("window", [1, 3, 1 << 20])
def test_rows_end_in_any_end_of_a_line(tmp_path, monkeypatch, newline, window):
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", window)
    rows = ["a,b", "1,2", "", "3,4", "5,6"]
    ds = ps.from_csv(written(tmp_path / "a.csv", *rows, newline=newline, end=newline))
    assert [(int(e["a"]), int(e["b"])) for e in ds] == [(1, 2), (3, 4), (5, 6)]
    assert len(ps.from_csv(written(tmp_path / "a.csv", *rows, newline=newline, end=""))) == 3
    path = written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2}', "", '{"x": 3}', newline=newline, end=newline)
    assert [int(e["x"]) for e in ps.from_jsonl(path)] == [1, 2, 3]


def test_ends_of_lines_may_be_mixed(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'a,b\r1,2\n"3\r",4\r\n5,x\r6,7,8\r')
    ds = ps.from_csv(tmp_path / "a.csv")
    assert [tuple(e.values()) for e in ds.take(3)] == [("1", "2"), ("3\r", "4"), ("5", "x")]
    with pytest.raises(ps.SourceError, match=r"a\.csv line 6 does not fit .*Expected 2 columns, got 3"):
        ds[3]


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
@pytest.mark.parametrize("index", ["columns", "lines"])
def test_lists_that_hold_nothing_but_null_are_filled(tmp_path, value, expected, index):
    """Of these pyarrow's parser makes an array whose lists are longer than its values."""
    path = written(tmp_path / "a.jsonl", json.dumps({"x": value, "y": 1}), json.dumps({"x": value, "y": 2}))
    ds = ps.from_jsonl(path, fill_null=0, index=index)
    for element in ds:
        found = element["x"]
        as_lists = {name: each.tolist() for name, each in found.items()} if isinstance(found, dict) else found.tolist()
        assert as_lists == expected


def test_types_are_the_least_that_hold_every_row(tmp_path, monkeypatch):
    from penstock.formats import rowtext

    monkeypatch.setattr(rowtext, "_BLOCK_NBYTES", 64)  # rows are looked at block by block
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", 256)
    rows = [{"x": i, "tags": [], "o": {"a": i}, "n": None} for i in range(100)]
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
    assert (ds[100]["x"], ds[100]["late"], ds[100]["tags"].tolist(), ds[100]["n"].tolist()) == (0.5, "here", ["t"], [1])
    assert (ds[7]["x"], ds[7]["late"], ds[7]["tags"].tolist(), ds[7]["n"].tolist()) == (7.0, "", [], [])
    with pytest.raises(ps.SourceError, match=r"a\.jsonl line 101 does not fit .*0\.5"):
        ps.from_jsonl(path, columns=["x"], dtypes={"x": "int64"})[100]
    texts = ["x,n,t", *(f"{i},,2020-01-0{i % 9 + 1}" for i in range(100)), "0.5,7,2020-01-01 10:00:00", "1,,"]
    ds = ps.from_csv(written(tmp_path / "a.csv", *texts), fill_null={"n": -1, "t": np.datetime64("NaT", "s")})
    assert {name: spec.dtype for name, spec in ds.element_spec.items()} == {"x": "f8", "n": "i8", "t": "M8[s]"}
    assert tuple(ds[100].values()) == (0.5, 7, np.datetime64("2020-01-01T10:00:00"))
    ds = ps.from_csv(written(tmp_path / "a.csv", "x,is", *(f"{i % 2},{i % 2}" for i in range(100)), "b,true"))
    assert (ds[1], ds[100]) == ({"x": "1", "is": "1"}, {"x": "b", "is": "true"})


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([1, 2**63 - 1, -5], "int64"),
        ([1, 2**53 + 1, 2**64 - 1], "uint64"),
        ([2**63, 7], "uint64"),
        ([1.5, 2**70], "float64"),
        ([2**64, 1.5], "float64"),
    ],
)
def test_large_integers_keep_all_their_digits(tmp_path, monkeypatch, numbers, dtype, block):
    from penstock.formats import rowtext

    monkeypatch.setattr(rowtext, "_BLOCK_NBYTES", block)
    for ds in (
        ps.from_jsonl(written(tmp_path / "a.jsonl", *(json.dumps({"x": each}) for each in numbers))),
        ps.from_csv(written(tmp_path / "a.csv", "x", *map(str, numbers))),
    ):
        assert ds.element_spec == {"x": ps.ArraySpec((), dtype)}
        assert [element["x"].item() for element in ds] == numbers


SHORT, LONG = "0.5", "9007199254740993"  # the second is 2**53 + 1


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("texts", "is_json_only"),
    [
        ([LONG, SHORT], False),
        ([SHORT, LONG], False),
        ([SHORT, "-" + LONG, "1e20"], False),
        ([str(2**63 - 1), "1", "2e3"], False),
        ([str(2**64 - 1), SHORT], False),
        ([str(2**70 + 1)], True),  # text in CSV
        ([str(2**63), "-" + LONG], True),
    ],
)
def test_integers_that_float64_rounds_are_refused_among_floats(tmp_path, monkeypatch, texts, is_json_only, block):
    from penstock.formats import rowtext

    monkeypatch.setattr(rowtext, "_BLOCK_NBYTES", block)
    csv = written(tmp_path / "a.csv", "x,i", *(f"{text},1234567890123456789" for text in texts))
    rows = [f'{{"x": {text}, "s": {{"l": [{text}]}}, "i": 1234567890123456789}}' for text in texts]
    lines_there = written(tmp_path / "a.jsonl", *rows)
    text = r"no type holds column '{}' of .*a\.{}: .*beyond 2\*\*53.* dtypes=\{{'{}': \"float64\"\}}; or .*\"U\""
    for verb, path, name in (
        (ps.from_csv, csv, "x"),
        (ps.from_jsonl, lines_there, "x"),
        (ps.from_jsonl, lines_there, "s.l"),
    ):
        column = name[0]
        if verb is ps.from_csv and is_json_only:
            assert [element["x"] for element in verb(path)] == texts
            continue
        with pytest.raises(ps.SpecError, match=text.format(name, path.suffix[1:], name)):
            verb(path, columns=[column])
        found = [element[column] for element in verb(path, dtypes={name: "float64"}, columns=[column, "i"])]
        assert [each["l"].tolist() if name == "s.l" else each for each in found] == [
            [float(each)] if name == "s.l" else float(each) for each in texts
        ]
        found = (
            [element[column] for element in verb(path, dtypes={name: "U"}, columns=[column])] if name == "x" else texts
        )
        assert list(map(float, found)) == list(map(float, texts))
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


@pytest.mark.parametrize("texts", [[str(2**60), SHORT], [str(2**70), SHORT], ["1e20", "-1E300"], [str(2**53), SHORT]])
def test_large_numbers_that_float64_holds_are_floats(tmp_path, texts):
    for ds in (
        ps.from_jsonl(written(tmp_path / "a.jsonl", *(f'{{"x": {text}}}' for text in texts))),
        ps.from_csv(written(tmp_path / "a.csv", "x", *texts)),
    ):
        assert ds.element_spec == {"x": ps.ArraySpec((), "f8")}
        assert [element["x"] for element in ds] == list(map(float, texts))


def test_a_large_float_sends_no_other_column_to_python(tmp_path, monkeypatch):
    from penstock.formats import _leasttypes

    monkeypatch.setattr(_leasttypes, "_type_of", lambda *_: pytest.fail("a line is looked at in Python"))
    rows = [f'{{"x": {i}e20, "i": {10**17 + i}, "s": {{"a": [{i}]}}}}' for i in range(50)]
    ds = ps.from_jsonl(written(tmp_path / "a.jsonl", *rows))
    assert ds.element_spec["i"] == ps.ArraySpec((), "i8")
    assert ds[7]["x"] == 7e20
    loads = _leasttypes.json.loads
    monkeypatch.setattr(_leasttypes.json, "loads", lambda row: pytest.fail("a line is parsed in Python"))
    written(tmp_path / "b.jsonl", *(f'{{"x": {i}e20, "i": {i}}}' for i in range(50)))
    assert ps.from_jsonl(tmp_path / "b.jsonl").element_spec["x"] == ps.ArraySpec((), "f8")
    monkeypatch.setattr(_leasttypes.json, "loads", loads)


def test_values_of_another_kind_are_errors_or_text(tmp_path, caplog):
    path = written(
        tmp_path / "a.jsonl", '{"x": 1}', '{"x": "a"}', '{"x": [1, {"b": null}]}', '{"x": null}', '{"x": 0.5}'
    )
    ds = ps.from_jsonl(path, fill_null=0)
    assert ds.element_spec == {"x": ps.ArraySpec((), "f8")}
    assert [float(ds[index]["x"]) for index in (0, 3, 4)] == [1, 0, 0.5]
    with pytest.raises(ps.SourceError, match=r"a\.jsonl line 2 does not fit .* from number to string.* \"U\" for text"):
        ds[1]
    ds = ps.from_jsonl(path, dtypes={"x": "U"}, fill_null="?")
    assert [element["x"] for element in ds] == ["1", "a", '[1, {"b": null}]', "?", "0.5"]
    assert not caplog.records


def test_zero_stands_in_for_a_truth_value_that_is_null(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"x": null, "o": {"b": null}}', '{"x": true, "o": {"b": true}}')
    for filler in (0, {"x": 0, "o.b": 0}, False):
        ds = ps.from_jsonl(path, fill_null=filler)
        assert ds.element_spec == {"x": ps.ArraySpec((), "bool"), "o": {"b": ps.ArraySpec((), "bool")}}
        assert list(ds) == [{"x": False, "o": {"b": False}}, {"x": True, "o": {"b": True}}]


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        ("1", '"a"', "from number to string"),
        ('"a"', "1", "from string to number"),
        ("true", "1", "from boolean to number"),
        ("[1]", "1", "from array to number"),
        ("1", "[1]", "from number to array"),
        ("1", '{"a": 1}', "from number to object"),
        ("[1]", '["a"]', "from number to string"),
    ],
)
def test_values_of_two_kinds_name_file_line_and_both_kinds_or_are_text(tmp_path, first, second, kinds):
    path = written(tmp_path / "a.jsonl", f'{{"x": {first}}}', f'{{"x": {second}}}')
    ds = ps.from_jsonl(path)
    assert len(ds[0]) == 1
    with pytest.raises(ps.SourceError, match=rf"a\.jsonl line 2 does not fit .* changed {kinds}.* \"U\" for text"):
        ds[1]
    assert len(list(ps.from_jsonl(path, dtypes={"x": "U"}))) == 2


def test_a_list_of_two_kinds_hides_no_other_column(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"id": 1, "x": [1, "a"]}', '{"id": 2, "x": [2, "b"]}')
    with pytest.raises(ps.SourceError, match=r"a\.jsonl line 1 does not fit .* from number to string.* \"U\" for text"):
        ps.from_jsonl(path)[0]
    assert list(ps.from_jsonl(path, columns=["id"])) == [{"id": 1}, {"id": 2}]
    assert ps.from_jsonl(path, dtypes={"x": "U"})[1]["x"].tolist() == ["2", "b"]


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
    ds = (ps.from_jsonl if kind == "jsonl" else ps.from_csv)(f"{tmp_path}/*.{kind}", fill_null={"y": ""})
    assert [(float(e["x"]), e["y"]) for e in ds] == [(1, ""), (2, ""), (2.5, "b")]
    assert [float(each) for each in ds.select("x").batch(3)[0]["x"]] == [1, 2, 2.5]
    assert [float(ds[index]["x"]) for index in (2, 0, 1)] == [2.5, 1, 2]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"from_{kind}(): files differ. ")
    assert f"1.{kind} has column 'x' as int64, read as double" in line
    assert "has no column 'y'" in line


def test_types_are_kept_with_the_index_and_made_again_if_it_is_damaged(tmp_path, monkeypatch):
    from penstock.formats import _leasttypes

    path = written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2.5}')
    looked = []
    of_json = _leasttypes.of_json
    monkeypatch.setattr(_leasttypes, "of_json", lambda rows: looked.append(len(rows)) or of_json(rows))
    for _ in range(2):
        assert ps.from_jsonl(path).element_spec == {"x": ps.ArraySpec((), "f8")}
    assert looked == [2]
    index = tmp_path / ".a.jsonl.index"
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    assert len(ps.from_jsonl(path)) == 2
    assert looked == [2, 2]


def test_a_large_file_is_read_when_its_spec_is_first_needed(tmp_path, monkeypatch):
    from penstock.formats import rowtext

    monkeypatch.setattr(rowtext, "HEAD_NBYTES", 4)
    made = [
        ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1}', '{"y": 2}'), columns=["x"]),
        ps.from_csv(written(tmp_path / "a.csv", "x,y", "1,2"), columns=["y"]),
    ]
    assert not list(tmp_path.glob(".*"))
    assert [len(each) for each in made] == [2, 1]
    assert len(list(tmp_path.glob(".*.index"))) == 2
    with pytest.raises(ps.ArgumentError, match="has no column 'z'"):
        ps.from_jsonl(tmp_path / "a.jsonl", columns=["z"])


@pytest.mark.parametrize(
    "encoding",
    [
        "latin-1",
        "cp1252",
        "utf-16",
        "utf-16-be",
        "utf-32",
        "shift_jis",
        "iso2022_jp",
        "hz",
        "utf-7",
        "utf-8-sig",
        "cp037",
    ],
)
def test_text_may_have_another_encoding(tmp_path, encoding):
    word = "が→日" if encoding in ("shift_jis", "iso2022_jp") else "日本" if encoding == "hz" else "é"
    (tmp_path / "a.csv").write_bytes(f'{word},b\n"{word}\n,",1\nx,2\n'.encode(encoding))
    (tmp_path / "a.jsonl").write_bytes(f'{{"{word}": "{word}"}}\n{{"{word}": "x"}}\n'.encode(encoding))
    assert [tuple(e.values()) for e in ps.from_csv(tmp_path / "a.csv", encoding=encoding)] == [
        (f"{word}\n,", 1),
        ("x", 2),
    ]
    assert [e[word] for e in ps.from_jsonl(tmp_path / "a.jsonl", encoding=encoding)] == [word, "x"]
    assert list(ps.from_text(tmp_path / "a.csv", encoding=encoding)) == [f"{word},b", f'"{word}', ',",1', "x,2"]
    assert ps.from_csv(tmp_path / "a.csv", encoding=encoding).select("b")[1] == {"b": 2}


@pytest.mark.parametrize("verb", [ps.from_csv, ps.from_jsonl, ps.from_text])
def test_bytes_that_are_no_text_are_named_with_file_line_and_column(tmp_path, verb):
    good, bad = ('{"x": "a"}', '{"x": "é"}') if verb is ps.from_jsonl else ("x,y", "é,1")
    (tmp_path / "a").write_bytes(f"{good}\n{good}\n{bad}\n{good}".encode("latin-1"))
    ds = verb(tmp_path / "a")
    place = {ps.from_csv: (1, 1), ps.from_jsonl: (2, 8), ps.from_text: (2, 1)}[verb]
    with pytest.raises(
        ps.SourceError, match=rf"a line 3 is no text in utf-8: .* in column {place[1]}, .* encoding=, such as 'latin-1'"
    ):
        ds[place[0]]
    assert ds[0] is not None
    (tmp_path / "a").write_bytes((good + "\n").encode("utf-16"))
    with pytest.raises(ps.SourceError, match=r"a.*(is no text in utf-8: .* such as 'utf-16'|it begins with b'\\xff)"):
        list(verb(tmp_path / "a"))
    (tmp_path / "a").write_bytes((good + "\n" + good).encode("utf-16-le") + b"\x00")
    with pytest.raises(ps.SourceError, match=r"a line 2 is no text in utf-16-le: truncated data\."):
        list(verb(tmp_path / "a", encoding="utf-16-le"))


def test_rows_wider_than_the_header_and_lines_that_are_no_objects_are_told_truly(tmp_path):
    ds = ps.from_csv(written(tmp_path / "a.csv", "", "", "a,b", "1,2,3"))
    with pytest.raises(ps.SourceError, match=r"a\.csv line 4 does not fit .*Expected 2 columns, got 3"):
        ds[0]
    for content in ("null", "[]", "7", '"a"'):
        with pytest.raises(ps.SourceError, match=r"a\.jsonl.* (is no JSON object|is one JSON array)"):
            ps.from_jsonl(written(tmp_path / "a.jsonl", content))
    (tmp_path / "a.csv").write_bytes("a,b\n1,2\n".encode("utf-16-le"))
    with pytest.raises(ps.SourceError, match=r"The header of .*a\.csv has zeros in it: .*encoding='utf-16'"):
        ps.from_csv(tmp_path / "a.csv")


def test_a_header_that_is_too_long_for_names_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("x" * 200_000 + "\n")
    with pytest.raises(
        ps.SourceError, match=r"The header of .*a\.csv has 200,001 characters, and cannot be read: field"
    ):
        ps.from_csv(tmp_path / "a.csv")
    assert ps.from_csv(tmp_path / "a.csv", names=["text"])[0] == {"text": "x" * 200_000}


@pytest.mark.parametrize("window", [16, 1 << 20])
def test_a_record_that_does_not_end_is_refused_before_it_takes_the_memory(tmp_path, monkeypatch, window):
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", window)
    monkeypatch.setattr(lines, "RECORD_NBYTES", 1000)
    most = []
    ends = lines.Rules.ends
    monkeypatch.setattr(lines.Rules, "ends", lambda self, data, **kw: most.append(len(data)) or ends(self, data, **kw))
    rows = [f"{number},x" for number in range(5000)]
    path = written(tmp_path / "a.csv", "a,b", *rows[:7], '8,"stray', *rows)
    text = r"a\.csv line 9 begins a record of [\d,]+ bytes or more, and .* has at most 1,000\. A quote .*: quote=''\."
    with pytest.raises(ps.SourceError, match=text):
        ps.from_csv(path, dtypes={"a": "U"})
    assert max(most[1:]) <= max(2016, window)  # the first one is the head of the file
    assert len(ps.from_csv(path, quote="")) == 5008
    long = written(tmp_path / "a.jsonl", '{"x": 1}', json.dumps({"x": "a" * 2000}))
    with pytest.raises(
        ps.SourceError, match=r"a\.jsonl line 2 begins a record of .*most 1,000\. Write shorter lines\.$"
    ):
        ps.from_jsonl(long)
    with pytest.raises(ps.SourceError, match=r"a\.jsonl line 2 begins .*, or read whole files: by='file'\."):
        len(ps.from_text(long))
    assert len(ps.from_text(long, by="file")[0]) == long.stat().st_size
    written(long, "b" * 999, "c" * 999, "")
    assert len(ps.from_text(long)) == 3


def test_a_long_line_is_looked_at_in_linear_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", 1 << 10)
    seen = []
    line_ends = lines.Rules._line_ends
    monkeypatch.setattr(
        lines.Rules, "_line_ends", lambda self, data, last: seen.append(len(data)) or line_ends(self, data, last)
    )
    size = 1 << 18
    path = written(tmp_path / "a.jsonl", json.dumps({"x": "a" * size}), '{"x": "b"}')
    assert [len(each["x"]) for each in ps.from_jsonl(path)] == [size, 1]
    assert sum(seen) < 6 * size


@pytest.mark.parametrize("index", ["columns", "lines"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_number_that_its_dtype_cannot_hold_is_an_error_and_text_leads_to_it(tmp_path, monkeypatch, kind, index):
    monkeypatch.setattr("penstock.formats.rowtext.LEAST_NBYTES", 0)
    path, values = tmp_path / f"a.{kind}", ["1.5", "1e40", "-70000"]
    if kind == "csv":
        path.write_text("\n".join(["x", *values]))
    else:
        path.write_text("\n".join(f'{{"x": {value}}}' for value in values))
    read = functools.partial(ps.from_csv if kind == "csv" else ps.from_jsonl, path, index=index)
    assert [each["x"] for each in read()] == [1.5, 1e40, -70000]
    with pytest.raises(ps.SourceError, match=r"line [23] .*does not fit .*1e\+40 would become inf.*\"float64\""):
        list(read(dtypes={"x": "float32"}))
    with pytest.raises(ps.SourceError, match=r"would become -?inf"):
        list(read(dtypes={"x": "float16"}))
    assert [str(each["x"]) for each in read(dtypes={"x": "U"})][::2] == [values[0], values[2]]


@pytest.mark.parametrize("value", ["1e400", "-1e999", "9" * 400])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_number_beyond_float64_is_an_error_and_infinity_is_none(tmp_path, value, is_named):
    (tmp_path / "a.csv").write_text(f"x,y\n1.5,1\ninf,2\n-Infinity,3\n{value},4\n")
    dtypes = {"x": "float64"} if is_named or "e" not in value else None  # integers so long are text
    ds = ps.from_csv(tmp_path / "a.csv", dtypes=dtypes)
    assert [each["x"] for each in ds.take(3)] == [1.5, float("inf"), float("-inf")]
    words = r"a\.csv line 5 cannot be read: .*column 'x' .* would become .*inf\. Name another dtype, such as dtypes="
    for read in (lambda: ds[3], lambda: list(ds.batch(4))):
        with pytest.raises(ps.SourceError, match=words + r"""\{'x': "U"\} for text\.$"""):
            read()
    assert ps.from_csv(tmp_path / "a.csv", dtypes={"x": "U"})[3]["x"] == value
    if "e" in value:
        (tmp_path / "a.jsonl").write_text(f'{{"x": 1.5}}\n{{"x": {value}}}\n')
        with pytest.raises(ps.SourceError, match=r"a\.jsonl line 2 "):
            list(ps.from_jsonl(tmp_path / "a.jsonl", dtypes={"x": "float64"}))
