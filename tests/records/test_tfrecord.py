import gzip
import itertools
import os
import struct
import zipfile
import zlib

import numpy as np
import pytest

import penstock as ps
from penstock.plan._source import open_source
from penstock.records._example import encoded
from penstock.testing import SourceTests

google_crc32c = pytest.importorskip("google_crc32c")

RNG = np.random.default_rng(0)
SPEC = {
    "image": ps.ArraySpec((6, 5), "uint8"),
    "label": ps.ArraySpec((), "int64"),
    "x": ps.ArraySpec((3,), "float32"),
    "name": ps.ArraySpec((), "U"),
}


def field(number, content):
    """A field of a protocol buffer, of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def elements(count, first=0):
    return [
        {
            "image": RNG.integers(0, 256, (6, 5), dtype="uint8"),
            "label": np.int64((i - 3) * 10 ** (i % 17)),
            "x": RNG.random(3, dtype="float32"),
            "name": "ä" * (i % 5),
        }
        for i in range(first, first + count)
    ]


def stacked(rows):
    return {name: np.array([row[name] for row in rows], object if name == "name" else None) for name in rows[0]}


def frame_of(data):
    def masked(checksum):
        return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF

    length = struct.pack("<Q", len(data))
    crc = google_crc32c.value
    return length + struct.pack("<I", masked(crc(length))) + data + struct.pack("<I", masked(crc(data)))


class TestExamples(SourceTests):
    @pytest.fixture(params=["three files", "gzip"])
    def written(self, request, tmp_path):
        rows = elements(23)
        cuts = [0, 9, 9, 23] if request.param == "three files" else [0, 23]
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            compression = request.param if request.param == "gzip" else None
            ps.write_tfrecord(tmp_path / f"{number}.tfrecord", rows[start:stop], compression=compression)
        return rows

    @pytest.fixture
    def source(self, written, tmp_path):
        return ps.from_tfrecord(f"{tmp_path}/*.tfrecord", features=SPEC)._node.data

    @pytest.fixture
    def expected(self, written):
        return stacked(written)


def test_records_of_any_size_come_in_any_order_and_repeated(tmp_path):
    records = [RNG.bytes(n) for n in (5, 0, 5, 5, 4096, 1, 3_000_000, 5, 5)]
    ps.write_tfrecord(tmp_path / "raw", records)
    opened = open_source(ps.from_tfrecord(tmp_path / "raw")._node.data)
    for indices in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 6, 6, 1, 0, 6], [5], [2, 2]):
        out = np.full(len(indices), "junk", object)
        opened.read_into(np.array(indices), out)
        assert [each.tobytes() for each in out] == [records[i] for i in indices]
        assert {each.dtype for each in out} == {np.dtype(np.uint8)}
    opened.close()


def test_bytes_are_written_as_they_are(tmp_path):
    records = [b"abc\0\0", b"", bytes(range(256))]
    ps.write_tfrecord(tmp_path / "raw", records)
    assert (tmp_path / "raw").read_bytes() == b"".join(map(frame_of, records))
    assert [each.tobytes() for each in ps.from_tfrecord(tmp_path / "raw")] == records


def test_dataset_comes_back_to_the_bit(tmp_path):
    original = ps.from_arrays(
        {
            name: RNG.integers(0, 100, (11, 2, 3)).astype(name)
            for name in ("f8", "f4", "i8", "i4", "u1", "f2", "bool", ">i2")
        }
    )
    ps.write_tfrecord(tmp_path / "all", original)
    again = ps.from_tfrecord(tmp_path / "all", features=original.element_spec)
    assert again.element_spec == original.element_spec
    for got, want in zip(again, original, strict=True):
        for name, leaf in want.items():
            assert got[name].dtype == leaf.dtype
            assert got[name].tobytes() == leaf.tobytes()


def test_features_of_no_values_come_back(tmp_path):
    element = {"n": np.zeros(0, "int64"), "x": np.zeros((0, 3), "f4"), "b": np.zeros((2, 0), "u1")}
    ps.write_tfrecord(tmp_path / "ds", [element] * 9)
    ds = ps.from_tfrecord(tmp_path / "ds", features={k: ps.ArraySpec(v.shape, v.dtype) for k, v in element.items()})
    batch = ds.batch(9)[0]
    assert {name: leaf.shape for name, leaf in batch.items()} == {"n": (9, 0), "x": (9, 0, 3), "b": (9, 2, 0)}


def test_byte_strings_that_end_in_zeros_are_written_whole_and_never_read_without(tmp_path):
    parts = [b"ab\0\0", b"\0", b"c"]
    ps.write_tfrecord(tmp_path / "ds", [{"parts": parts}])
    (record,) = ps.from_tfrecord(tmp_path / "ds")
    assert all(field(1, part) in record.tobytes() for part in parts)
    for features in ("auto", {"parts": ps.ArraySpec((None,), "S")}, {"parts": ps.ArraySpec((None,), "U")}):
        with pytest.raises(ps.SpecError, match="ends in a zero, and arrays of NumPy drop zeros"):
            list(ps.from_tfrecord(tmp_path / "ds", features=features).loader(executor="inline"))


def test_features_are_not_learnt_from_a_sequence(tmp_path):
    lists = field(2, field(1, field(1, b"steps") + field(2, b"")))  # as in TensorFlow's feature_lists
    ps.write_tfrecord(tmp_path / "ds", [encoded({"n": np.int64(5)}) + lists])
    assert ps.from_tfrecord(tmp_path / "ds", features={"n": ps.ArraySpec((), "int64")})[0] == {"n": 5}
    with pytest.raises(ps.SpecError, match=r"ds record 0 is a tf\.train\.SequenceExample, .* in map\(\)"):
        ps.from_tfrecord(tmp_path / "ds", features="auto")[0]


def test_features_are_learnt_from_the_first_record(tmp_path):
    ps.write_tfrecord(
        tmp_path / "ds",
        [
            {
                "n": np.int64(-1),
                "v": np.arange(3),
                "x": np.float32(2),
                "w": np.ones(2, "f4"),
                "b": b"a\0",
                "s": ["a", "bc"],
            }
        ]
        * 2,
    )
    ds = ps.from_tfrecord(tmp_path / "ds", features="auto")
    assert {name: str(spec) for name, spec in ds.element_spec.items()} == {
        "b": "(None,) uint8",
        "n": "() int64",
        "s": "(2,) bytes",
        "v": "(3,) int64",
        "w": "(2,) float32",
        "x": "() float32",
    }
    element = ds[1]
    assert element["n"] == -1
    assert element["b"].tobytes() == b"a\0"
    assert element["s"].tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("bit", [0, 7 * 8, 8 * 8, 12 * 8, 12 * 8 + 999, -32, -1])
def test_each_flipped_bit_is_found_and_named(tmp_path, bit):
    records = [bytes(RNG.integers(0, 256, 200, dtype="uint8")) for _ in range(10)]
    path = tmp_path / "ds.tfrecord"
    ps.write_tfrecord(path, records)
    ds, unchecked = ps.from_tfrecord(path), ps.from_tfrecord(path, check_crc=False)
    assert len(ds) == len(unchecked) == 10  # the index is that of before
    status, nbytes = path.stat(), 216
    whole = bytearray(path.read_bytes())
    at = 6 * nbytes + (bit // 8 if bit >= 0 else nbytes + bit // 8)
    whole[at] ^= 1 << bit % 8
    path.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk does it
    with pytest.raises(
        ps.SourceError, match=r"ds\.tfrecord record 6 is damaged: .* starts at byte 1,296 of .*ds\.tfrecord"
    ):
        list(ds[4:8])
    assert len(list(ds[:6])) == 6
    assert len(list(unchecked[5:8])) == 3


@pytest.mark.faults
def test_every_flipped_bit_is_found_and_every_cut(tmp_path):
    records = [RNG.bytes(n) for n in (20, 0, 33)]
    path = tmp_path / "ds"
    ps.write_tfrecord(path, records)
    assert len(ps.from_tfrecord(path)) == 3
    status, whole = path.stat(), path.read_bytes()
    ends = np.cumsum([len(record) + 16 for record in records])
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        damaged = np.searchsorted(ends, bit // 8, "right")
        for cache_dir in (None, tmp_path / str(bit)):  # with the index of before, and without one
            with pytest.raises(ps.SourceError, match=f"record {damaged} "):
                list(ps.from_tfrecord(path, cache_dir=cache_dir))
    for nbytes in set(range(1, len(whole))) - set(ends.tolist()):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(ps.SourceError, match="is truncated: record"):
            len(ps.from_tfrecord(path))


def test_damaged_length_is_named_when_records_are_looked_for(tmp_path):
    path = tmp_path / "ds"
    ps.write_tfrecord(path, [b"abc"] * 5)
    whole = bytearray(path.read_bytes())
    whole[2 * 19] ^= 4
    path.write_bytes(whole)
    with pytest.raises(ps.SourceError, match=r"record 2 on, at byte 38 of 95\. .*checksum of its length does not fit"):
        len(ps.from_tfrecord(path))


@pytest.mark.parametrize("left", [1, 5, 11, 15, 18])
def test_truncated_file_is_named(tmp_path, left):
    path = tmp_path / "ds"
    ps.write_tfrecord(path, [b"abc"] * 5)
    path.write_bytes(path.read_bytes()[: 4 * 19 + left])
    with pytest.raises(
        ps.SourceError, match=rf"ds is truncated: record 4 starts at byte 76 and is cut off at byte {76 + left}"
    ):
        len(ps.from_tfrecord(path))


def test_file_that_is_no_tfrecord_is_named(tmp_path):
    (tmp_path / "ds").write_bytes(b"Once upon a time there was a file of text.")
    with pytest.raises(ps.SourceError, match=r"ds cannot be read from record 0 on.* no TFRecord file"):
        len(ps.from_tfrecord(tmp_path / "ds"))


@pytest.mark.parametrize("kind", [None, "gzip"])
def test_a_record_that_takes_more_memory_than_the_limit_is_refused_by_its_name(tmp_path, kind):
    ps.write_tfrecord(tmp_path / "a", [b"small", bytes(70 << 20)], compression=kind)
    ds = ps.from_tfrecord(tmp_path / "a", check_crc=False).map(len).batch(1)
    with ds.loader("inline", memory_limit=90 << 20) as loader:
        assert next(iter(loader)) == 5
    with (
        ds.loader("inline", memory_limit=60 << 20) as loader,
        pytest.raises(ps.SourceError, match=r"a record 1 has 70\.0 MiB, above the 64 MiB that memory_limit leaves"),
    ):
        list(loader)


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_damaged_compression_is_named(tmp_path, kind):
    path = tmp_path / "gz"
    ps.write_tfrecord(path, [RNG.bytes(1000) for _ in range(50)], compression=kind)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(ps.SourceError, match=rf"gz is truncated: its {kind} data do not end"):
        len(ps.from_tfrecord(path))
    path.write_bytes(whole[:20000] + bytes(2000) + whole[22000:])
    with pytest.raises(ps.SourceError, match=r"gz is damaged: it cannot be decompressed"):
        len(ps.from_tfrecord(path))
    assert os.listdir(tmp_path) == ["gz"]


def test_compressed_files_are_those_of_other_programs(tmp_path):
    content = b"".join(map(frame_of, [b"abc", b"", b"defg"]))
    (tmp_path / "a").write_bytes(gzip.compress(content[:20]) + gzip.compress(content[20:]))
    (tmp_path / "b").write_bytes(zlib.compress(content))
    (tmp_path / "c").write_bytes(content)
    ds = ps.from_tfrecord([tmp_path / name for name in "abc"])
    assert [each.tobytes() for each in ds] == [b"abc", b"", b"defg"] * 3


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_file_that_was_replaced_meanwhile_is_refused(tmp_path):
    path = tmp_path / "ds"
    ps.write_tfrecord(path, [b"abc"] * 5)
    ds = ps.from_tfrecord(path)
    assert len(ds) == 5
    ps.write_tfrecord(path, [b"abcd"] * 5)
    with pytest.raises(ps.SourceError, match=r"ds has changed since the dataset was made: 95 bytes then, 100 now"):
        ds[0]
    path.unlink()
    with pytest.raises(ps.SourceError, match=r"ds cannot be opened: No such file or directory"):
        ds[0]


def test_empty_files_have_no_records(tmp_path):
    for name in "abc":
        (tmp_path / name).touch()
    ps.write_tfrecord(tmp_path / "b", [b"x", b"y"])
    ds = ps.from_tfrecord([tmp_path / name for name in "abc"])
    assert [each.tobytes() for each in ds] == [b"x", b"y"]
    assert len(ps.from_tfrecord(tmp_path / "a")) == 0
    with pytest.raises(ps.SpecError, match="learns from the first record, but there is none in a"):
        ps.from_tfrecord(tmp_path / "a", features="auto").element_spec  # noqa: B018


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_more_files_than_may_be_open_at_once(tmp_path, monkeypatch):
    from penstock.files import _openfile

    monkeypatch.setattr(_openfile, "_MAX_OPEN", 3)
    for number in range(10):
        ps.write_tfrecord(tmp_path / f"{number}.tfrecord", [struct.pack("<q", 5 * number + k) for k in range(5)])
    ds = ps.from_tfrecord(f"{tmp_path}/*.tfrecord").map(lambda raw: raw.view("<i8")[0])
    with ds.shuffle(1).batch(7).loader(executor="threads", workers=2) as loader:
        assert sorted(np.concatenate(list(loader))) == list(range(50))


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_worker_processes_open_the_files_themselves(tmp_path):
    rows = elements(40)
    ps.write_tfrecord(tmp_path / "ds", rows)
    ds = ps.from_tfrecord(tmp_path / "ds", features={"label": SPEC["label"], "x": SPEC["x"]})
    with ds.batch(8).loader(executor="processes", workers=1) as loader:
        batches = list(loader)
    assert np.concatenate([batch["label"] for batch in batches]).tolist() == [row["label"] for row in rows]
    assert np.concatenate([batch["x"] for batch in batches]).tobytes() == b"".join(row["x"].tobytes() for row in rows)


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_file_in_an_archive(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for content in ("a", "a", "b"):
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            ps.write_tfrecord(tmp_path / content, [content.encode()] * 9)
            archive.write(tmp_path / content, "ds")
        url = f"zip://ds::file://{tmp_path}/all.zip"
        assert [each.tobytes() for each in ps.from_tfrecord(url)] == [content.encode()] * 9


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_a_pattern_finds_files_through_caches_and_in_archives(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        ps.write_tfrecord(tmp_path / "in" / name, [name.encode()])
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "in" / "a", "in/a")
        archive.write(tmp_path / "in" / "b", "in/b")
    fsspec.filesystem("memory").pipe("/all.zip", (tmp_path / "all.zip").read_bytes())
    for pattern in (
        "zip://in/*::all.zip",
        "zip://*/[ab]::memory://all.zip",
        f"simplecache::file://{tmp_path}/in/*",
        "simplecache::zip://in/*::memory://all.zip",
        f"local://{tmp_path}/in/*",
    ):
        ds = ps.from_tfrecord(pattern)
        assert [each.tobytes() for each in ds] == [b"a", b"b"]
        first = pattern.replace("*/[ab]", "in/a").replace("in/*", "in/a").removeprefix("local://")
        assert ds._node.data.files[0].url == first  # what fetches it is still there
    fsspec.filesystem("memory").rm("/all.zip")


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_files_in_an_archive_through_a_cache(tmp_path, monkeypatch):
    cached = pytest.importorskip("fsspec.implementations.cached")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("a", "b"):
            ps.write_tfrecord(tmp_path / name, [name.encode()])
            archive.write(tmp_path / name, name)
    ds = ps.from_tfrecord(f"simplecache::zip://?::file://{tmp_path}/all.zip")
    assert [each.tobytes() for each in ds] == [b"a", b"b"]
    cached.SimpleCacheFileSystem.clear_instance_cache()  # with it the archive is closed


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_files_behind_an_url(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ps.write_tfrecord(tmp_path / "a", [RNG.bytes(n) for n in (10, 100_000, 10)])
    ps.write_tfrecord(tmp_path / "b", [RNG.bytes(20)] * 9, compression="gzip")
    system = fsspec.filesystem("memory")
    for name in "ab":
        system.pipe(f"/records/{name}.tfrecord", (tmp_path / name).read_bytes())
    local = ps.from_tfrecord([tmp_path / "a", tmp_path / "b"])
    for _ in range(2):
        remote = ps.from_tfrecord("memory://records/*.tfrecord")
        order = [11, 0, 5, 1, 2]
        assert len(remote) == 12
        assert [remote[i].tobytes() for i in order] == [local[i].tobytes() for i in order]
        assert [each.tobytes() for each in remote] == [each.tobytes() for each in local]
    system.pipe("/records/a.tfrecord", b"")
    with pytest.raises(ps.SourceError, match=r"memory:///records/a\.tfrecord ends at byte 0 now"):
        list(remote)
    system.rm("/records", recursive=True)
    with pytest.raises(ps.SourceError, match=r"No file fits the pattern memory://records/\*"):
        ps.from_tfrecord("memory://records/*")


@pytest.mark.parametrize(
    ("paths", "error", "text"),
    [
        (3, ps.ArgumentTypeError, r"from_tfrecord\(\) needs a path, a pattern or a list of paths, got an int"),
        ([3], ps.ArgumentTypeError, r"from_tfrecord\(\) needs paths, got an int"),
        (b"a", ps.ArgumentTypeError, r"got a bytes\. os\.fsdecode\(path\) makes text of it"),
        ([], ps.ArgumentError, r"from_tfrecord\(\) got no files"),
        ("nowhere-*", ps.SourceError, r"No file fits the pattern nowhere-\*"),
        ("nowhere", ps.SourceError, r"nowhere cannot be read: No such file or directory"),
        ("~/nowhere-*", ps.SourceError, r"No file fits the pattern ~/nowhere-\*\. .*os\.path\.expanduser\(path\)\.$"),
        ("~/nowhere", ps.SourceError, r"cannot be read: No such file .*os\.path\.expanduser\(path\)\.$"),
    ],
)
def test_wrong_paths_are_refused(paths, error, text):
    with pytest.raises(error, match=text):
        ps.from_tfrecord(paths)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"compression": "lz4"},
            ps.ArgumentError,
            r"compression='lz4'\): it is one of 'auto', None, 'gzip', 'zlib', 'bz2',",
        ),
        ({"defaults": {"a": 1}}, ps.ArgumentError, r"have to be named"),
        ({"features": ["a"]}, ps.ArgumentTypeError, r"is a dict of names and specs, or 'auto', not a list"),
        ({"features": {}}, ps.ArgumentError, r"names no feature"),
        ({"features": {"a": 3}}, ps.ArgumentTypeError, r"feature 'a' is an int, and neither an ArraySpec"),
        ({"features": {"a": ps.ArraySpec((2, None), "f4")}}, ps.SpecError, r"only the first axis can vary"),
        (
            {"features": {"a": ps.ArraySpec((None, 0), "f4")}},
            ps.SpecError,
            r"no value tells how long the first axis is",
        ),
        ({"features": SPEC, "defaults": {"lable": 1}}, ps.ArgumentError, r"'lable', which is not among the features"),
        ({"features": SPEC, "defaults": {"label": "a"}}, ps.ArgumentError, r"is another kind"),
        (
            {"features": SPEC, "defaults": {"x": 1e40}},
            ps.ArgumentError,
            r"has 1e\+40, which \(3,\) float32 cannot hold",
        ),
        ({"features": SPEC, "defaults": {"x": [1, 2.0]}}, ps.ArgumentError, r"has shape \(2,\), and \(3,\) float32"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, error, text):
    ps.write_tfrecord(tmp_path / "ds", [])
    with pytest.raises(error, match=text):
        ps.from_tfrecord(tmp_path / "ds", **options)


def test_endless_dataset_is_refused(tmp_path):
    with pytest.raises(ps.ArgumentError, match=r"write_tfrecord\(\) got an endless dataset\. Cut it with take\(n\)"):
        ps.write_tfrecord(tmp_path / "ds", ps.range(3).repeat())


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ((1, 2), r"Element 1 cannot be written: A record is made of bytes, or of a dict of features, not of a tuple"),
        ({"a": {"b": 1}}, r"Feature 'a' is a dict: a dict of arrays"),
        ({"a": [1, [2]]}, r"Feature 'a' is a list that is not an array"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_no_file(tmp_path, element, text):
    with pytest.raises(ps.SpecError, match=text):
        ps.write_tfrecord(tmp_path / "ds", [b"", element])
    assert os.listdir(tmp_path) == []


@pytest.mark.framework
@pytest.mark.parametrize("kind", [None, "gzip", "zlib"])
def test_tensorflow_reads_what_is_written_here_and_the_reverse(tmp_path, kind):
    import tensorflow as tf

    rows = elements(50)
    ps.write_tfrecord(tmp_path / "ours", rows, compression=kind)
    theirs = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([3], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    options = tf.io.TFRecordOptions(compression_type=(kind or "").upper())
    with tf.io.TFRecordWriter(str(tmp_path / "theirs"), options) as writer:
        records = tf.data.TFRecordDataset(str(tmp_path / "ours"), compression_type=(kind or "").upper())
        for row, raw in zip(rows, records.as_numpy_iterator(), strict=True):
            parsed = tf.io.parse_single_example(raw, theirs)
            assert parsed["image"].numpy() == row["image"].tobytes()
            assert parsed["label"].numpy() == row["label"]
            assert parsed["x"].numpy().tobytes() == row["x"].tobytes()
            assert parsed["name"].numpy().decode() == row["name"]
            example = tf.train.Example.FromString(raw)
            writer.write(example.SerializeToString())
    again = ps.from_tfrecord(tmp_path / "theirs", features=SPEC)
    for got, want in zip(again, rows, strict=True):
        assert {name: np.asarray(leaf).tobytes() for name, leaf in got.items()} == {
            name: np.asarray(leaf).tobytes() for name, leaf in want.items()
        }
    as_tensorflow_says = ps.from_tfrecord(tmp_path / "theirs", features=theirs)
    assert as_tensorflow_says[7]["label"] == rows[7]["label"]
    assert as_tensorflow_says[7]["image"] == rows[7]["image"].tobytes()
    assert as_tensorflow_says[7]["x"].tobytes() == rows[7]["x"].tobytes()


@pytest.mark.framework
def test_features_of_any_length_are_what_tensorflow_makes_of_them(tmp_path):
    import tensorflow as tf

    spec = {
        "v": tf.io.VarLenFeature(tf.int64),
        "f": tf.io.VarLenFeature(tf.float32),
        "b": tf.io.VarLenFeature(tf.string),
    }
    defaulted = {"d": tf.io.FixedLenFeature([2], tf.int64, default_value=[7, -7])}
    raws = []
    for i in range(60):
        lists = {
            "v": tf.train.Feature(int64_list=tf.train.Int64List(value=[(-1) ** k * 3**k for k in range(i % 41)])),
            "f": tf.train.Feature(float_list=tf.train.FloatList(value=RNG.random(i % 4))),
            "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x\0y" * k for k in range(i % 3)])),
            "d": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, 2**60])),
        }
        for name in ["v", "f", "b", "d"][: i % 7]:
            if i % 5 == 0:
                del lists[name]
        raws.append(tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString())
    ps.write_tfrecord(tmp_path / "ds", raws)
    ds = ps.from_tfrecord(tmp_path / "ds", features=spec | defaulted)
    assert [each.tobytes() for each in ps.from_tfrecord(tmp_path / "ds")] == raws
    opened = open_source(ds._node.data)
    out = {
        "v": np.empty(60, object),
        "f": np.empty(60, object),
        "b": np.empty(60, object),
        "d": np.empty((60, 2), "i8"),
    }
    opened.read_into(np.arange(60), out)  # all at once, so that those laid out alike are found
    opened.close()
    for i, raw in enumerate(raws):
        want = tf.io.parse_single_example(raw, spec | defaulted)
        for name in "vfb":
            values = tf.sparse.to_dense(want[name]).numpy()
            assert out[name][i].tolist() == values.tolist()
        assert out["d"][i].tolist() == want["d"].numpy().tolist()


@pytest.mark.framework
def test_sequences_are_what_tensorflow_makes_of_them(tmp_path):
    import tensorflow as tf

    spec = {"v": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True, default_value=7)}
    lists = [[], [1, 2], [3, 4, 5, 6]]
    raws = [encoded({"v": np.array(values, np.int64)}) for values in lists] + [encoded({"w": np.int64(1)})]
    ps.write_tfrecord(tmp_path / "ds", raws)
    for raw, element in zip(raws, ps.from_tfrecord(tmp_path / "ds", features=spec), strict=True):
        np.testing.assert_array_equal(element["v"], tf.io.parse_single_example(raw, spec)["v"].numpy())
    for made_of_others in (
        tf.io.SparseFeature("i", "v", tf.int64, 10),
        tf.io.RaggedFeature(tf.int64, "v"),
        tf.io.RaggedFeature(tf.int64, partitions=[tf.io.RaggedFeature.RowLengths("n")]),
    ):
        with pytest.raises(
            ps.SpecError, match=r"feature 'a' is a .*Feature that is made of other features\. Name each"
        ):
            ps.from_tfrecord(tmp_path / "ds", features={"a": made_of_others})
