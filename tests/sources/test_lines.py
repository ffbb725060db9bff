"""Text, JSON Lines and CSV: records by an index of lines."""

import gzip
import json
import random
import re

import numpy as np
import pytest

import penstock as ps
from penstock.sources import lines
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
    @pytest.fixture(params=["one", "gzip", "blank lines"])
    def source(self, request, tmp_path):
        if request.param == "gzip":
            (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(tmp_path / "a.jsonl").read_bytes()))
            return ps.from_jsonl(tmp_path / "a.jsonl.gz", columns=["score", "id"])._node.data
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
            r"a\.jsonl line 4 does not fit \{'x': \(\) int64\}, the types of the first rows: .*1\.5.*dtypes=",
        ),
        ('{"x": "a"}', r"a\.jsonl line 4 does not fit"),
        ("[1]", r"a\.jsonl line 4 does not fit .*JSON parse error: .* object to array"),
        ('{"x": 1} {"x": 2}', r"a\.jsonl line 4 does not fit .* it has 2 rows, and not one"),
        ('{"y": 1}', r"a\.jsonl line 4 has no value in column 'x'.* fill_null=\{'x': 0\}"),
        ('{"x": null}', r"a\.jsonl line 4 has no value in column 'x'"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path, monkeypatch, line, text):
    from penstock.sources import rowtext

    monkeypatch.setattr(rowtext, "HEAD_NBYTES", 8)
    ds = ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1}', "", '{"x": 2}', line, '{"x": 4}'))
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
        ("1.5,b", r"a\.csv line 4 does not fit \{'x': \(\) int64.* invalid value '1\.5'.*dtypes="),
        (",b", r"a\.csv line 4 has no value in column 'x'"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, monkeypatch, line, text):
    from penstock.sources import rowtext

    monkeypatch.setattr(rowtext, "HEAD_NBYTES", 8)
    ds = ps.from_csv(written(tmp_path / "a.csv", "x,y", '1,"a', 'b"', line))
    assert ds[0] == {"x": 1, "y": "a\nb"}
    with pytest.raises(ps.SourceError, match=text):
        ds[1]


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
    with pytest.raises(ps.SourceError, match=r"a\.jsonl is no file for from_jsonl\(\)\. In its first rows: JSON parse"):
        ps.from_jsonl(written(tmp_path / "a.jsonl", '{"x": 1}', '{"x": "a"}'))


def test_types_are_those_of_the_first_rows_or_as_said(tmp_path):
    path = written(
        tmp_path / "a.jsonl", '{"a": 1, "t": "2020-01-01 00:00:00", "l": [1], "n": null}', '{"a": 1.5, "l": [2]}'
    )
    with pytest.raises(
        ps.SpecError, match=r"column 'n' has no value in the first rows of .*dtypes=\{'n': \"float64\"\}"
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
    with pytest.raises(ps.ArgumentError, match=r"compression='bz2'.: it is one of 'auto'"):
        ps.from_csv(path, compression="bz2")
    with pytest.raises(ps.ArgumentError, match="the column 'x' would come twice"):
        ps.from_csv(path, columns=["x", "x"])
    written(tmp_path / "b.csv", "y,x", "1,2")
    with pytest.raises(ps.SpecError, match=r"b\.csv has the columns \['y', 'x'\], but .*a\.csv has \['x', 'y'\]"):
        len(ps.from_csv([path, tmp_path / "b.csv"]))
    with pytest.raises(ps.SourceError, match="is one JSON array, and JSON Lines have an object on each line"):
        ps.from_jsonl(written(tmp_path / "a.json", '[{"x": 1}]'))
    with pytest.raises(ps.ArgumentError, match=r"by='word'.: it is 'line' or 'file'"):
        ps.from_text(path, by="word")
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_text(path, encoding="utf-9")
    with pytest.raises(ps.ArgumentError, match="by='file'"):
        ps.from_text(path, encoding="utf-16")
    (tmp_path / "c.txt").write_bytes("ok\nä\n".encode("latin-1"))
    with pytest.raises(
        ps.SourceError, match=r"c\.txt line 2 is no text in utf-8: .* at its byte 0\. Name the encoding"
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
