"""Columns that are names of folders, as Hive, Spark and pyarrow write partitions."""

import logging
import shutil

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from tests.tables.test_parquet import dataset, saved  # noqa: E402  # it needs pyarrow

LABELS = [3, 4]
KINDS = ["a.parquet", "a.arrow", "lz4.arrow"]


def partitioned(folder, kind, names):
    """Writes a file of three rows in each folder, `x` from 0 on."""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        saved(folder / name / kind, pa.table({"x": np.arange(3) + 3 * number}))
    return f"{folder}/**/{kind}"


class TestFolders(SourceTests):
    @pytest.fixture(params=KINDS)
    def source(self, request, tmp_path):
        return dataset(partitioned(tmp_path, request.param, ["label=3", "label=4"]))._node.data

    @pytest.fixture
    def expected(self):
        return {"x": np.arange(6), "label": np.repeat(LABELS, 3).astype("i4")}


@pytest.mark.parametrize(
    "names",
    [
        ["m=01", "m=007", "m=-5"],
        ["m=1", "m=4294967296"],
        ["m=1.5", "m=2"],
        ["m=1", "m=__HIVE_DEFAULT_PARTITION__"],
        ["m=a%20b%2Fc", "m=%C3%A9"],
        ["m%20n=1", "m%20n=x"],
        ["m=", "m=1"],
        ["m=a=b"],
        ["m=1", "plain"],
        ["m=1/m=2"],
        ["a=1/b=x", "a=2/b=y"],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["a.parquet", "a.arrow"])
def test_names_and_values_are_those_of_pyarrow(tmp_path, names, kind):
    pads = pytest.importorskip("pyarrow.dataset")
    ds = dataset(partitioned(tmp_path, kind, names), fill_null={"m": -1} if "plain" in names else None)
    if any("HIVE" in name for name in names):
        ds = dataset(f"{tmp_path}/**/{kind}", fill_null=-1)
    table = pads.dataset(tmp_path, format=kind[2:].replace("arrow", "ipc"), partitioning="hive").to_table()
    right = sorted(table.to_pylist(), key=lambda row: row["x"])
    right = [{name: -1 if value is None else value for name, value in row.items()} for row in right]
    found = [{name: leaf if isinstance(leaf, str) else leaf.item() for name, leaf in each.items()} for each in ds]
    assert sorted(found, key=lambda row: row["x"]) == right
    for field in table.schema:
        spec = ps.ArraySpec((), "U") if field.type == pa.string() else ps.ArraySpec((), field.type.to_pandas_dtype())
        assert ds.element_spec[field.name] == spec


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_folders_are_as_others_are(tmp_path, kind):
    pattern = partitioned(tmp_path, kind, ["label=3/s=a", "label=4/s=b"])
    assert [each["label"].dtype for each in dataset(pattern, columns=["label"])] == [np.dtype("i4")] * 6
    (element,) = dataset(pattern, columns=["s", "x"], dtypes={"x": "f4"}).skip(5)
    assert (list(element), element["s"], element["x"].dtype) == (["s", "x"], "b", np.float32)
    assert [each["label"] for each in dataset(pattern, dtypes={"label": "U"})] == ["3"] * 3 + ["4"] * 3
    assert [each["label"].dtype for each in dataset(pattern, dtypes={"label": "i8"})] == [np.dtype("i8")] * 6
    assert next(iter(dataset(pattern).select("label").batch(6)))["label"].tolist() == [3] * 3 + [4] * 3
    paths = [tmp_path / "label=4" / "s=b" / kind, tmp_path / "label=3" / "s=a" / kind]
    assert [(int(each["x"]), int(each["label"]), each["s"]) for each in dataset(paths)][::3] == [
        (3, 4, "b"),
        (0, 3, "a"),
    ]
    with pytest.raises(ps.ArgumentError, match=r"has no column 'z'; it has \['x', 'label', 's'\]"):
        dataset(pattern, columns=["z"])
    with dataset(pattern).shuffle(1).batch(6).loader(executor="threads") as loader:
        (batch,) = loader
    order = np.argsort(batch["x"])
    assert batch["label"][order].tolist() == [3] * 3 + [4] * 3
    assert batch["s"][order].tolist() == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_value_are_null(tmp_path, kind):
    pattern = partitioned(tmp_path, kind, ["label=3", "label=__HIVE_DEFAULT_PARTITION__"])
    with pytest.raises(ps.SourceError, match=r"row 0 has no value in column 'label': it is null"):
        dataset(pattern)[5]
    found = [(each["label"].item(), bool(each["label_is_null"])) for each in dataset(pattern, null_masks=["label"])]
    assert sorted(found) == [(0, True)] * 3 + [(3, False)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_the_file_counts_more_than_its_folder(tmp_path, kind):
    (tmp_path / "x=9").mkdir()
    saved(tmp_path / "x=9" / kind, pa.table({"x": [1, 2]}))
    assert [each["x"] for each in dataset(f"{tmp_path}/*/{kind}")] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_only_folders_below_what_was_asked_for_are_columns(tmp_path, kind, monkeypatch):
    base = tmp_path / "lr=0.1" / "run"
    partitioned(base, kind, ["label=3/s=a", "label=3/s=b", "label=4/s=a"])
    files = [base / each / kind for each in ("label=3/s=a", "label=3/s=b", "label=4/s=a")]

    def columns(paths):
        return [name for name in dataset(paths).element_spec if name != "x"]

    def asked(pattern):
        return f"{base}/{pattern}/{kind}"

    assert columns(asked("**")) == columns(asked("*/*")) == columns(asked("label=*/*")) == ["label", "s"]
    assert columns(files) == columns([*map(str, files)]) == ["label", "s"]
    assert columns([asked("label=3/*"), asked("label=4/*")]) == columns(asked("label={3,4}/s=a")) == ["label", "s"]
    assert columns(asked("label=3/**")) == columns(files[:2]) == columns(asked("label=3/s={a,b}")) == ["s"]
    assert columns(asked("label=3/s=a/**")) == columns(files[:1]) == columns(str(files[0])) == []
    assert columns([files[0], files[0]]) == columns([f"file://{files[0]}"]) == []
    monkeypatch.chdir(base)
    assert columns(f"**/{kind}") == columns(f"./*/*/{kind}") == columns(f"../run/**/{kind}") == ["label", "s"]
    assert columns(f"file://{base}/**/{kind}") == ["label", "s"]
    monkeypatch.chdir(base / "label=3")
    assert columns(f"**/{kind}") == columns(["s=a/" + kind, "s=b/" + kind]) == ["s"]
    assert columns(f"../**/{kind}") == columns([files[2], "s=a/" + kind]) == ["label", "s"]
    assert columns(f"s=a/{kind}") == []


def test_a_folder_without_a_name_is_no_column(tmp_path):
    ds = dataset(partitioned(tmp_path, "a.parquet", ["=b", "=/m=1"]), fill_null=-1)
    assert [(int(each["x"]), int(each["m"])) for each in ds] == [(n, 1 if n > 2 else -1) for n in (3, 4, 5, 0, 1, 2)]
    assert list(ds.element_spec) == ["x", "m"]


def test_brackets_in_the_name_of_a_file_that_is_there_are_no_pattern(tmp_path):
    folder = tmp_path / "[1]" / "label=3"
    folder.mkdir(parents=True)
    assert list(dataset(saved(folder / "a.parquet", pa.table({"x": [1, 2]}))).element_spec) == ["x"]


def test_folders_of_urls_are_columns(tmp_path):
    pattern = partitioned(tmp_path, "a.parquet", ["label=3", "label=4"])
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for label in LABELS:
        memory.pipe(f"/lr=1/hive/label={label}/a.parquet", (tmp_path / f"label={label}" / "a.parquet").read_bytes())
    base, right = "memory://lr=1/hive", [each["label"] for each in ps.from_parquet(pattern)]
    files = [f"{base}/label={label}/a.parquet" for label in LABELS]
    for paths in (
        f"{base}/**/*.parquet",
        files,
        f"{base}/label={{3,4}}/a.parquet",
        f"simplecache::{base}/**/*.parquet",
    ):
        ds = ps.from_parquet(paths)
        assert (list(ds.element_spec), [each["label"] for each in ds]) == (["x", "label"], right)
    for paths in (files[0], files[:1], f"{base}/label=3/*.parquet"):
        assert list(ps.from_parquet(paths).element_spec) == ["x"]


def test_folders_of_an_archive_are_columns_and_those_above_it_are_not(tmp_path):
    pytest.importorskip("fsspec")
    partitioned(tmp_path / "h", "a.parquet", ["label=3", "label=4"])
    (tmp_path / "lr=1").mkdir()
    archive = shutil.make_archive(str(tmp_path / "lr=1" / "h"), "zip", tmp_path / "h")
    for inside in ("**/*", "*/*"):
        ds = ps.from_parquet(f"zip://{inside}.parquet::{archive}")
        assert [int(each["label"]) for each in ds] == [3, 3, 3, 4, 4, 4]
        assert list(ds.element_spec) == ["x", "label"]


@pytest.mark.slow
def test_worker_processes_know_the_folders(tmp_path):
    ds = dataset(partitioned(tmp_path, "a.parquet", ["label=3", "label=4"]))
    with ds.batch(6).loader(executor="processes", workers=1) as loader:
        assert [batch["label"].tolist() for batch in loader] == [[3, 3, 3, 4, 4, 4]]


@pytest.mark.parametrize("read", [ps.from_csv, ps.from_jsonl])
def test_folders_that_are_no_columns_of_text_are_told_once(tmp_path, caplog, read):
    (tmp_path / "label=3").mkdir()
    (tmp_path / "label=3" / "a").write_text('{"x":1}\n' if read is ps.from_jsonl else "x\n1\n")
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            assert list(read(f"{tmp_path}/*/a")[0]) == ["x"]
            assert list(read(tmp_path / "label=3" / "a")[0]) == ["x"]
    (said,) = (each.message for each in caplog.records)
    assert "files lie in folders such as label=..., and elements have no column 'label'" in said
