"""Columns of text that are kept: the same elements as by lines, and when they are made, used and left."""

import json
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.testing import assert_resumes_exactly, assert_same

pytest.importorskip("pyarrow")

from penstock.formats import _textcolumns, rowtext

ROWS = [{"id": i, "x": i / 8, "text": f"ä{i}" * (i % 3), "ids": list(range(i % 4))} for i in range(200)]


@pytest.fixture(autouse=True)
def columns_of_small_files():
    """Files of any size have columns, in several record batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowtext, "LEAST_NBYTES", 0)
        patch.setattr(rowtext, "_PARSED_NBYTES", 300)
        patch.setattr(_textcolumns, "PART_NBYTES", 1000)
        patch.setattr(_textcolumns, "MOST_GROWTH", 10_000)
        yield


@pytest.fixture
def parsed(monkeypatch):
    """The number of rows of each call of the parser."""
    counts = []
    parse = rowtext.Format.parse

    def counted(self, data, *options):
        counts.append(sum(map(bool, data.splitlines())))
        return parse(self, data, *options)

    monkeypatch.setattr(rowtext.Format, "parse", counted)
    return counts


def jsonl(path, rows=ROWS):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def kept_in(folder):
    return sorted(folder.glob(".*.columns"))


def outcome(read):
    """The value, or the error's class and text."""
    try:
        return read()
    except ps.PenstockError as error:
        return type(error), str(error)


VALUES = {
    "integers": st.integers(-5, 300),
    "large": st.integers(0, 2**63 - 1),
    "floats": st.floats(-1e6, 1e6, width=32),
    "truths": st.booleans(),
    "texts": st.text("aä \"\\,\n'0", max_size=5),
    "mixed": st.one_of(st.integers(0, 9), st.text("ab", max_size=2)),
    "lists": st.lists(st.integers(0, 9), max_size=3),
    "words": st.lists(st.text("aä", max_size=2), max_size=3),
    "deep": st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=2), max_size=2),
    "objects": st.fixed_dictionaries({"p": st.integers(0, 9)}, optional={"q": st.text("ab", max_size=2)}),
    "many": st.lists(st.fixed_dictionaries({"p": st.integers(0, 9), "q": st.text("ab", max_size=2)}), max_size=2),
    "times": st.sampled_from(["2020-01-01", "2021-02-03 04:05:06", "x"]),
}
DTYPES = {"integers": "int16", "floats": "float16", "truths": "U", "mixed": "U", "lists": "uint8", "large": "float32"}


@st.composite
def tables(draw):
    """Rows, and options of the constructor."""
    kinds = {f"c{number}": draw(st.sampled_from(sorted(VALUES))) for number in range(draw(st.integers(1, 4)))}
    may_lack = draw(st.booleans())
    value = {name: st.none() | VALUES[kind] if may_lack else VALUES[kind] for name, kind in kinds.items()}
    rows = draw(st.lists(st.fixed_dictionaries(value), min_size=1, max_size=12))
    if may_lack:
        rows = [{name: each for name, each in row.items() if each is not None or draw(st.booleans())} for row in rows]
    named = {name: DTYPES[kind] for name, kind in kinds.items() if kind in DTYPES and draw(st.booleans())}
    options = {"dtypes": named, "fill_null": draw(st.sampled_from([None, 0, -1.5, "none", {"c0": 7}]))}
    flat = [name for name, kind in kinds.items() if kind not in ("objects", "many")]
    return rows, options | {"null_masks": flat[:1] if draw(st.booleans()) else []}


@settings(max_examples=25, deadline=None)
@given(tables(), st.sampled_from(["jsonl", "csv", "latin-1", "utf-16", "two files"]))
def test_elements_and_errors_are_those_of_lines(table, kind):
    rows, options = table
    with tempfile.TemporaryDirectory() as folder:
        path, encoding = Path(folder) / "a.txt", kind if kind in ("latin-1", "utf-16") else "utf-8"
        if kind == "csv":
            names = list(dict.fromkeys(name for row in rows for name in row)) or ["c0"]
            fields = [[json.dumps(row.get(name, "")).strip('"').replace('"', '""') for name in names] for row in rows]
            lines = [",".join(names), *(",".join(f'"{field}"' for field in row) for row in fields)]
        else:
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        parts = [lines] if kind != "two files" else [lines[: len(lines) // 2], lines[len(lines) // 2 :]]
        paths = [path.with_suffix(f".{number}") for number in range(len(parts))]
        for each, part in zip(paths, parts, strict=True):
            each.write_text("".join(f"{line}\n" for line in part), encoding=encoding)

        def made(index):
            verb = ps.from_csv if kind == "csv" else ps.from_jsonl
            return verb(paths, encoding=encoding, index=index, **options)

        expected, found = outcome(lambda: made("lines")), outcome(lambda: made("columns"))
        if isinstance(expected, tuple):
            assert found == expected
            return
        assert found.element_spec == expected.element_spec
        for number in range(len(expected)):
            by_line, by_column = (outcome(lambda ds=ds: ds[number]) for ds in (expected, found))  # noqa: B023
            if isinstance(by_line, dict):
                assert_same(by_column, by_line)
            else:
                assert by_column == by_line
        if all(isinstance(outcome(lambda n=n: expected[n]), dict) for n in range(len(expected))):
            assert found._node.data.table is not None
            order = np.random.default_rng(0).permutation(len(expected))
            for by_line, by_column in zip(expected[order], found[order], strict=True):
                assert_same(by_column, by_line)


def test_text_is_parsed_once_and_processes_that_come_later_map_the_same_file(tmp_path, parsed):
    path = jsonl(tmp_path / "a.jsonl")
    ds = ps.from_jsonl(path)
    assert "columns" not in repr(ds)
    assert (len(ds), parsed, kept_in(tmp_path)) == (200, [], [])  # nothing is parsed before elements are read
    assert_same(ds[7], {"id": np.int64(7), "x": np.float64(0.875), "text": "ä7", "ids": np.arange(3)})
    assert sum(parsed) == 200
    del parsed[:]
    (kept,) = kept_in(tmp_path)
    assert kept.stat().st_mode & 0o077 == path.stat().st_mode & 0o077 & tmp_path.stat().st_mode
    assert [int(row["id"]) for row in ps.from_jsonl(path).shuffle(1)] != list(range(200))
    assert repr(ps.from_jsonl(path)).endswith(f"columns kept in {kept.stat().st_size / 1024:.1f} KiB")
    assert parsed == []


def test_columns_of_numbers_are_copied_by_the_engine_and_a_run_resumes_exactly(tmp_path, parsed):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl")).select("x", "id")
    with ds.shuffle(1).batch(32).loader() as loader:
        found = np.concatenate([batch["id"] for batch in loader])
        assert loader.report().executor == "threads"
    assert sorted(found.tolist()) == list(range(200))
    assert sum(parsed) == 200  # all columns, of which others are selected later
    assert len(kept_in(tmp_path)) == 1
    assert_resumes_exactly(ds.shuffle(seed=3).batch(16), executors=[("inline", 1), ("threads", 2)])


def test_a_file_that_changes_is_parsed_again_and_the_older_columns_are_deleted(tmp_path):
    paths = jsonl(tmp_path / "a.jsonl"), jsonl(tmp_path / "b.jsonl", [{"id": 1, "x": 0.5, "text": "b", "ids": []}])
    assert len(list(ps.from_jsonl(paths))) == 201
    (old,) = kept_in(tmp_path)
    jsonl(paths[1], [{"id": -1, "x": 0.5, "text": "changed", "ids": []}])
    assert ps.from_jsonl(paths)[200]["text"] == "changed"
    (new,) = kept_in(tmp_path)
    assert new != old
    assert ps.from_jsonl(paths[0])[0]["id"] == 0  # other files are another table
    assert len(kept_in(tmp_path)) == 2


def test_what_decides_how_lines_are_parsed_decides_which_columns_are_used(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}])
    assert [row["a"] for row in ps.from_jsonl(path, fill_null=-1)] == [1, -1, 3]
    assert [row["a"] for row in ps.from_jsonl(path, fill_null=-2)] == [1, -2, 3]
    assert [row["b"] for row in ps.from_jsonl(path, fill_null=-2, columns=["b"])] == [-2, 2, 4]
    assert ps.from_jsonl(path, fill_null=-1, dtypes={"a": "float32"})[0]["a"].dtype == np.float32
    assert len(kept_in(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "note", "link"])
def test_damaged_columns_and_links_are_not_used(tmp_path, damage, parsed):
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
    del parsed[:]
    for found, row in zip(ps.from_jsonl(path), expected, strict=True):
        assert_same(found, row)
    assert sum(parsed) == 200
    assert not kept.is_symlink()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"id": "no", "x": 1, "text": "", "ids": []}', "a.jsonl line 201 does not fit"),
        ('{"id": null, "x": 1, "text": "", "ids": []}', "a.jsonl line 201 has no value in column 'id'"),
        ('{"id": 1', "a.jsonl line 201 does not fit"),
    ],
)
def test_a_line_that_cannot_be_read_leaves_all_to_lines_and_is_named_when_it_is_read(
    tmp_path, line, text, parsed, caplog
):
    path = jsonl(tmp_path / "a.jsonl")
    with open(path, "a") as file:
        file.write(f"{line}\n")
    caplog.set_level("INFO", "penstock")
    ds = ps.from_jsonl(path)
    assert ds[7]["id"] == 7
    assert "so lines are parsed when they are read" in caplog.text
    assert text in caplog.text
    with pytest.raises(ps.SourceError, match=text):
        ds[200]
    del parsed[:]
    assert ps.from_jsonl(path)[8]["id"] == 8
    assert parsed == [1]  # the reason is kept, so nobody tries again
    assert "columns kept" not in repr(ds)


def test_lists_of_unequal_lists_are_refused_with_file_and_line(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"x": [[1], [2]]}, {"x": [[1], [2, 3]]}])
    texts = []
    for index in ("columns", "lines"):
        ds = ps.from_jsonl(path, index=index)
        assert ds[0]["x"].shape == (2, 1)
        with pytest.raises(ps.SourceError, match=r"a\.jsonl line 2 cannot be read: its column 'x' has lists") as caught:
            ds[1]
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_lines_are_parsed_when_they_are_read_if_the_user_says_so_or_columns_are_too_large(
    tmp_path, monkeypatch, parsed
):
    path = jsonl(tmp_path / "a.jsonl")
    assert ps.from_jsonl(path, index="lines")[3]["id"] == 3
    monkeypatch.setattr(rowtext, "MOST_NBYTES", 10)
    assert ps.from_jsonl(path)[3]["id"] == 3
    monkeypatch.undo()
    monkeypatch.setattr(rowtext, "MOST_NBYTES", 1 << 30)
    monkeypatch.setattr(rowtext, "LEAST_NBYTES", 1 << 20)
    assert ps.from_jsonl(path)[3]["id"] == 3
    assert kept_in(tmp_path) == []
    with pytest.raises(ps.ArgumentError, match=r"from_csv\(index='rows'\): it is 'columns' or 'lines'"):
        ps.from_csv(path, index="rows")


def test_columns_that_are_much_larger_than_the_text_are_not_kept(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "penstock")
    monkeypatch.setattr(_textcolumns, "MOST_GROWTH", 4)
    rows = [{f"c{number}": 0} for number in range(40)]
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl", rows), fill_null=0)
    assert sum(int(value) for row in ds for value in row.values()) == 0
    assert "they would take more than 4 times its" in caplog.text
    assert kept_in(tmp_path)[0].stat().st_size < 1000


def test_columns_that_cannot_be_written_are_left(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "penstock")

    def full(*_):
        raise OSError(28, "No space left on device")

    path = jsonl(tmp_path / "a.jsonl")
    len(ps.from_jsonl(path))  # the index is there
    monkeypatch.setattr("penstock.formats._recordindex.write", full)
    assert ps.from_jsonl(path)[3]["id"] == 3
    assert "cannot be kept" in caplog.text
    assert "No space left on device" in caplog.text


def test_a_source_that_was_sent_uses_what_is_there_and_makes_nothing(tmp_path, parsed):
    from penstock.base._travel import Journey, packing_for

    path = jsonl(tmp_path / "a.jsonl")
    data = ps.from_jsonl(path)._node.data
    assert data.table is not None
    with packing_for(Journey()):
        packed = pickle.dumps(data)
    assert pickle.loads(packed).table is not None
    for each in kept_in(tmp_path):
        os.unlink(each)
    del parsed[:]
    sent = pickle.loads(packed)
    assert (sent.table, parsed) == (None, [])
    assert ps.Dataset(ps.from_source(sent)._node)[5]["id"] == 5
    assert kept_in(tmp_path) == []


def test_a_kept_file_that_changes_under_a_run_is_an_error_that_names_it(tmp_path):
    ds = ps.from_jsonl(jsonl(tmp_path / "a.jsonl"))
    opened = ds._node.data.open()
    (kept,) = kept_in(tmp_path)
    kept.write_bytes(kept.read_bytes()[:-64])
    out = [
        np.empty(1, leaf.spec.dtype if leaf.spec.dtype.itemsize and not leaf.spec.shape else object)
        for leaf in ds._node.data.leaves
    ]
    with pytest.raises(ps.SourceError, match=r"\.columns.*changed|changed.*\.columns"):
        opened.gather([rowtext.Read(np.array([3]), out, slice(0, 1))])


def test_remote_text_is_fetched_and_parsed_once(tmp_path, parsed):
    from tests.servers import serving

    with serving() as server:
        server.files["a.jsonl"] = jsonl(tmp_path / "a.jsonl").read_bytes()
        url = f"http://{server.address}/a.jsonl"
        assert ps.from_jsonl(url, cache_dir=tmp_path / "kept")[7]["id"] == 7
        ds = ps.from_jsonl(url, cache_dir=tmp_path / "kept")
        server.begin_with(lambda number, headers: None)
        assert sorted(int(row["id"]) for row in ds.shuffle(1)) == list(range(200))
        assert server.requests == []
    assert sum(parsed) == 200


@pytest.mark.slow
def test_worker_processes_map_the_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(rowtext, "LEAST_NBYTES", 1 << 20)  # as in a worker
    path = jsonl(tmp_path / "a.jsonl", [{"id": number, "text": "a" * 6000} for number in range(200)])
    assert ps.from_jsonl(path)[3]["id"] == 3

    def with_maps(row):
        maps = Path("/proc/self/maps").read_text().splitlines()
        return row["id"], len(row["text"]), any(line.endswith(".columns") for line in maps)

    ds = ps.from_jsonl(path).map(with_maps)
    with ds.batch(50).loader("processes", workers=1) as loader:
        found = [tuple(map(int, row)) for batch in loader for row in zip(*batch, strict=True)]
    assert found == [(number, 6000, True) for number in range(200)]
