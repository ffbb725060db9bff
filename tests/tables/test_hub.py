"""Datasets of the Hugging Face Hub, by its own libraries, from a server on this machine."""

import io
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from tests.hub import serving

pytestmark = pytest.mark.framework

NAME = "robots/pets"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(monkeypatch, tmp_path / "hf") as server:
        yield server


def parquet(first, last):
    file = io.BytesIO()
    numbers = np.arange(first, last)
    pq.write_table(pa.table({"x": numbers, "name": [f"n{i}" for i in numbers]}), file, row_group_size=4)
    return file.getvalue()


def tar(count):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for number in range(count):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = 1
            out.addfile(member, io.BytesIO(str(number).encode()))
    return file.getvalue()


SHARDED = {
    "data/train-00000-of-00002.parquet": parquet(0, 10),
    "data/train-00001-of-00002.parquet": parquet(10, 25),
    "data/test-00000-of-00001.parquet": parquet(25, 30),
}


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_split_is_the_files_whose_names_say_so(hub, executor):
    hub.commit(NAME, SHARDED)
    ds = ps.from_hub(NAME)
    assert [int(each["x"]) for each in ds] == list(range(25))
    with ds.shuffle(seed=1).batch(5).loader(executor) as loader:
        assert sorted(np.concatenate([batch["x"] for batch in loader]).tolist()) == list(range(25))
    assert [each["name"] for each in ps.from_hub(NAME, split="test", columns=["name"])] == [
        f"n{i}" for i in range(25, 30)
    ]


def test_a_readme_says_which_files_a_split_has(hub):
    readme = """---
configs:
- config_name: default
  data_files:
  - split: few
    path: "b/*.csv"
- config_name: other
  sep: ";"
  data_files:
  - split: train
    path: "c.csv"
---
"""
    hub.commit(
        NAME, {"README.md": readme.encode(), "b/1.csv": b"x,y\n1,2\n", "b/2.csv": b"x,y\n3,4\n", "c.csv": b"x;y\n5;6\n"}
    )
    assert [int(each["y"]) for each in ps.from_hub(NAME, split="few")] == [2, 4]
    assert [int(each["y"]) for each in ps.from_hub(NAME, config="other")] == [6]
    with pytest.raises(ps.ArgumentError, match=r"robots/pets has no split 'train'\. It has 'few'\."):
        ps.from_hub(NAME)
    with pytest.raises(ps.ArgumentError, match=r"config='third'.*'default', 'other'"):
        ps.from_hub(NAME, config="third")


@pytest.mark.parametrize(
    ("path", "content", "elements"),
    [
        ("train.jsonl", b'{"x": 1}\n{"x": 2}\n', [{"x": 1}, {"x": 2}]),
        ("train.tsv", b"x\ty\n1\t2\n", [{"x": 1, "y": 2}]),
        ("train.txt", b"a\nb\n", ["a", "b"]),
    ],
)
def test_the_format_chooses_the_constructor(hub, path, content, elements):
    hub.commit(NAME, {path: content})
    assert list(ps.from_hub(NAME)) == elements


def test_webdataset_and_other_formats(hub):
    hub.commit(NAME, {"train/a.tar": tar(3)})
    assert [bytes(each["txt"]) for each in ps.from_hub(NAME, fields=["txt"])] == [b"0", b"1", b"2"]
    hub.commit("robots/films", {"train/a.mp4": b"film"})
    with pytest.raises(
        ps.SourceError, match=r"format videofolder, which .* hf://datasets/robots/films@[0-9a-f]{40}/train/a"
    ):
        ps.from_hub("robots/films")


def test_a_dataset_stays_at_its_commit_and_its_state_is_refused_by_the_next(hub):
    commit = hub.commit(NAME, SHARDED)
    ds = ps.from_hub(NAME).batch(4)
    with ds.loader() as loader:
        next(iter(loader))
        state = loader.get_state()
    hub.commit(NAME, SHARDED | {"data/train-00001-of-00002.parquet": parquet(100, 115)})
    assert [int(each) for batch in ds for each in batch["x"]] == list(range(25))
    reason = "the length, spec or commit of from_parquet changed"
    with pytest.raises(ps.StateError, match=reason), ps.from_hub(NAME).batch(4).loader() as loader:
        loader.set_state(state)
    with ps.from_hub(NAME, revision=commit).batch(4).loader() as loader:
        loader.set_state(state)
        assert next(iter(loader))["x"].tolist() == [4, 5, 6, 7]


def readme(**options):
    lines = [f"  {word}: {value}" for word, value in options.items()]
    return "\n".join(["---", "configs:", "- config_name: default", "  data_files: '*.*'", *lines, "---"]).encode()


@pytest.mark.parametrize(
    ("name", "content", "option", "said"),
    [
        ("a.csv", b"1,2\n3,4\n", {"header": "null"}, "header=None"),
        ("a.csv", b"x\n1,2\n3,4\n", {"skiprows": 1}, "skiprows=1"),
        ("a.json", b'{"data": [{"x": 1}]}', {"field": "data"}, "field='data'"),
        ("a.txt", b"a\nb\n\nc\n", {"sample_by": "paragraph"}, "sample_by='paragraph'"),
    ],
)
def test_ways_of_reading_that_a_readme_asks_for_are_refused(hub, name, content, option, said):
    hub.commit(NAME, {name: content, "README.md": readme(**option)})
    with pytest.raises(ps.SourceError, match=rf"says {said} about its files, .*hf://.*{name} and 0 more"):
        ps.from_hub(NAME)


def test_columns_and_separators_of_a_readme_are_taken(hub):
    hub.commit(NAME, {"a.parquet": parquet(0, 3), "README.md": readme(columns="[x]")})
    assert [dict(each) for each in ps.from_hub(NAME)] == [{"x": 0}, {"x": 1}, {"x": 2}]
    hub.commit("robots/b", {"a.csv": b"x;y\n1;2\n", "README.md": readme(sep="';'")})
    assert [dict(each) for each in ps.from_hub("robots/b")] == [{"x": 1, "y": 2}]


def test_a_name_that_reads_as_a_pattern_is_refused(hub):
    hub.commit(NAME, {"train/x1.parquet": parquet(3, 5), "train/x[1].parquet": parquet(0, 3)})
    with pytest.raises(ps.SourceError, match=r"x\[1\].parquet reads as a pattern"):
        ps.from_hub(NAME)


def test_arguments_are_those_of_the_constructor(hub):
    hub.commit(NAME, SHARDED)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_parquet\(\) has no argument colums=.*columns"):
        ps.from_hub(NAME, colums=["x"])
    with pytest.raises(ps.ArgumentTypeError, match=r"from_hub\(storage_options=\) is a dict"):
        ps.from_hub(NAME, storage_options="x")


def test_branches_and_the_copy_in_parquet(hub):
    hub.commit(NAME, {"README.md": b"made by code"})
    hub.commit(NAME, {"default/train/0000.parquet": parquet(0, 3)}, "refs/convert/parquet")
    assert len(ps.from_hub(NAME, revision="refs/convert/parquet")) == 3
    with pytest.raises(
        ps.SourceError, match=r"robots/pets on the Hub cannot be opened.*revision='refs/convert/parquet'"
    ):
        ps.from_hub(NAME)
    with pytest.raises(ps.SourceError, match="'nowhere' doesn't exist"):
        ps.from_hub(NAME, revision="nowhere")


def test_a_private_dataset_needs_a_token(hub):
    hub.commit(NAME, SHARDED)
    hub.private.add(NAME)
    for name in (NAME, "robots/none"):  # the Hub does not say which of both it is
        with pytest.raises(ps.SourceError, match=rf"{name} on the Hub cannot be opened: .*hf auth login"):
            ps.from_hub(name)
    ds = ps.from_hub(NAME, split="test", storage_options={"token": "hf_secret"})
    assert [int(each["x"]) for each in ds] == list(range(25, 30))
    assert "hf_secret" not in repr(ds._node.opens)


def test_a_commit_is_listed_once_however_many_files_it_has(hub):
    hub.commit(NAME, {f"data/train-{i:05}-of-00040.parquet": parquet(i, i + 1) for i in range(40)})
    before = len(hub.requests)
    assert len(ps.from_hub(NAME)) == 40
    asked = [target for _, target, _ in hub.requests[before:] if "/api/" in target]
    assert len(asked) < 20, asked


def test_a_range_is_one_request_of_its_size(hub):
    hub.commit(NAME, {"train.txt": b"line\n" * 2_000_000})
    url = ps.from_hub(NAME)._node.opens.files[0].url
    from penstock.files._openfile import described

    place = memoryview(bytearray(100))
    file = described(url)
    before = len(hub.requests)
    assert file.open().read_into(5_000_000, place) == 100
    assert [asked for *_, asked in hub.requests[before:]] == ["bytes=5000000-5000099"]
    assert bytes(place) == b"line\n" * 20


def test_names_are_owner_and_name(hub):
    for name in ("pets", "a/b/c", "hf://datasets/a/b"):
        with pytest.raises(ps.ArgumentError, match="needs owner and name"):
            ps.from_hub(name)
    with pytest.raises(ps.ArgumentTypeError, match="needs the owner and name"):
        ps.from_hub(3)


def test_a_folder_of_the_same_name_is_not_read_in_its_place(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    (tmp_path / NAME / "train.txt").write_text("a\n")
    hub.commit(NAME, SHARDED)
    with pytest.raises(ps.SourceError, match="is also a folder or a copy on this machine"):
        ps.from_hub(NAME)


def test_without_the_library_the_error_has_the_line_of_pip(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"from_hub\(\) needs datasets: pip install datasets fsspec"):
        ps.from_hub(NAME)
