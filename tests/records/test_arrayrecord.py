import itertools
import shutil
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.records._example import encoded
from penstock.testing import SourceTests

module = pytest.importorskip("array_record.python.array_record_module")

RECORDS = [b"", *(bytes([k]) * 50 * k for k in range(1, 9))]


def written(path, records=RECORDS, options="group_size:1"):
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


class TestArrayRecord(SourceTests):
    @pytest.fixture
    def source(self, tmp_path):
        for number in range(2):
            written(tmp_path / f"part-{number}", RECORDS[5 * number :][:5])
        return ps.from_arrayrecord(f"{tmp_path}/part-*")._node.data

    @pytest.fixture
    def expected(self):
        return [np.frombuffer(record, "u1") for record in RECORDS]


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:4", "group_size:1,uncompressed", "group_size:3,transpose:true", "brotli"]
)
def test_every_way_of_writing(tmp_path, options):
    ds = ps.from_arrayrecord(written(tmp_path / "a", options=options))
    assert ds.element_spec == ps.ArraySpec((None,), "uint8")
    assert [each.tobytes() for each in ds] == RECORDS
    assert ds[-1].flags.writeable


def examples(path, count=5):
    return written(path, [encoded({"x": np.float32([k, k / 2]), "n": np.int64(k)}) for k in range(count)])


@pytest.mark.parametrize("features", ["auto", {"x": ps.ArraySpec((2,), "float32"), "n": ps.ArraySpec((), "int64")}])
def test_examples_become_dicts(tmp_path, features):
    ds = ps.from_arrayrecord(examples(tmp_path / "a"), features=features)
    assert ds.element_spec == {"n": ps.ArraySpec((), "int64"), "x": ps.ArraySpec((2,), "float32")}
    batch = ds.batch(5)[0]
    assert batch["n"].tolist() == [0, 1, 2, 3, 4]
    assert batch["x"].tolist() == [[k, k / 2] for k in range(5)]
    assert ds.select(["n"])[3] == {"n": 3}


def test_a_record_that_is_no_example_is_named(tmp_path):
    file = written(tmp_path / "a", [encoded({"n": np.int64(1)}), b"\xff" * 9])
    ds = ps.from_arrayrecord(file, features={"n": ps.ArraySpec((), "int64")})
    with pytest.raises(ps.SourceError, match=r"/a record 1 is no tf"):
        ds.batch(2)[0]
    with pytest.raises(ps.SourceError, match=r"/b record 0 is no tf\.train\.Example"):
        ps.from_arrayrecord(written(tmp_path / "b", [b"\xff"]), features="auto").element_spec  # noqa: B018
    with pytest.raises(ps.SpecError, match=r"features='auto' learns from the first record, but there is none in c"):
        ps.from_arrayrecord(written(tmp_path / "c", []), features="auto").element_spec  # noqa: B018
    with pytest.raises(ps.ArgumentError, match=r"defaults= are for features, which have to be named"):
        ps.from_arrayrecord(file, features="auto", defaults={"n": 1})


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],  # opens with no records and no error
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"x" * len(data),
        lambda data: data[:65536] + bytes(65536),
    ],
    ids=["empty", "head", "half", "cut", "longer", "other", "no end"],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    file = written(tmp_path / "a.array_record")
    file.write_bytes(damage(file.read_bytes()))
    text = r"/a\.array_record is no ArrayRecord file, or is cut off or damaged: .*\. Write or copy it again"
    with pytest.raises(ps.SourceError, match=text):
        len(ps.from_arrayrecord(file))


def test_a_damaged_record_is_named_and_the_others_are_read(tmp_path):
    records = [np.random.default_rng(k).bytes(1000) for k in range(6)]
    file = written(tmp_path / "a", records)
    data = bytearray(file.read_bytes())
    data[data.index(records[3][100:200]) + 7] ^= 1
    file.write_bytes(data)
    ds = ps.from_arrayrecord(file)
    with pytest.raises(ps.SourceError, match=r"/a record 3 is damaged: .*hash mismatch.*Write or copy the file again"):
        ds._node.data.read_into(np.arange(6), np.empty(6, object))
    assert [ds[k].tobytes() for k in (0, 1, 2, 4, 5)] == [records[k] for k in (0, 1, 2, 4, 5)]


def test_a_file_without_records_has_no_elements(tmp_path):
    written(tmp_path / "a", [])
    written(tmp_path / "b")
    assert len(ps.from_arrayrecord(tmp_path / "a")) == 0
    assert [each.tobytes() for each in ps.from_arrayrecord([tmp_path / "a", tmp_path / "b"])] == RECORDS


def test_a_file_that_changed_meanwhile_is_refused(tmp_path):
    ds = ps.from_arrayrecord(written(tmp_path / "a"))
    assert len(ds) == 9
    shutil.copy(written(tmp_path / "b", [np.random.default_rng(0).bytes(70_000)] * 2), tmp_path / "a")
    with pytest.raises(ps.SourceError, match=r"/a has changed since the dataset was made"):
        ds[0]


def test_paths_are_checked(tmp_path):
    with pytest.raises(
        ps.ArgumentError, match=r"from_arrayrecord\(\) reads files of this machine, and s3://b/a is a UR"
    ):
        ps.from_arrayrecord(iter(["s3://b/a"]))
    with pytest.raises(ps.ArgumentTypeError, match=r"from_arrayrecord\(\) needs paths, got an int"):
        ps.from_arrayrecord([3])
    with pytest.raises(ps.SourceError, match=r"a\.array_record"):
        ps.from_arrayrecord(tmp_path / "a.array_record")


def test_more_files_than_are_held_open(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.records.arrayrecord._MAX_OPEN", 2)
    for number in range(5):
        written(tmp_path / f"part-{number}", [bytes([number, k]) for k in range(2)])
    ds = ps.from_arrayrecord(f"{tmp_path}/part-*")
    assert sorted(each.tobytes() for each in ds.shuffle(seed=1)) == [bytes([n, k]) for n in range(5) for k in range(2)]


def test_a_missing_library_is_named(monkeypatch):
    for name in ("array_record.python", "array_record.python.array_record_module"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "array_record", None)
    with pytest.raises(
        ImportError, match=r"^from_arrayrecord\(\) needs array_record[a-z_.]*: pip install array_record protobuf\."
    ):
        ps.from_arrayrecord("a")


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
def test_worker_processes_resume_in_the_middle(tmp_path):
    ds = ps.from_arrayrecord(written(tmp_path / "a", [bytes([k]) for k in range(24)])).map(lambda record: record[0])
    batches = ds.shuffle(seed=1).batch(4)
    with batches.loader("processes", 2) as loader:
        found = [batch.tolist() for batch in itertools.islice(loader, 2)]
        state = loader.get_state()
    with batches.loader("processes", 2) as loader:
        loader.set_state(state)
        found += [batch.tolist() for batch in loader]
    assert found == [batch.tolist() for batch in batches]
