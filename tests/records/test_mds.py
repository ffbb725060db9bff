import bz2
import gzip
import json
import shutil
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.files._openfile import File
from penstock.testing import SourceTests

NUMBERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
CODES = dict(zip(NUMBERS, [8, 16, 32, 64, 9, 17, 33, 65, 18, 34, 66], strict=True))


def stored(encoding, value):
    """The bytes of a value, as Streaming writes them."""
    if encoding == "str":
        return value.encode()
    if encoding == "int" or encoding in NUMBERS:
        return np.array(value, "int64" if encoding == "int" else encoding).tobytes()
    if encoding.startswith("ndarray"):
        _, *about = encoding.split(":")
        head = b"" if about else bytes([CODES[value.dtype.name]])
        return head + (b"" if len(about) == 2 else shape_of(value)) + value.tobytes()
    return value


def shape_of(array):
    width = next(k for k in range(4) if max(array.shape, default=0) < 1 << (8 << k))
    return bytes([array.ndim << 2 | width]) + np.array(array.shape, f"<u{1 << width}").tobytes()


def size_of(encoding):
    if encoding.count(":") == 2:
        return (
            int(np.prod([int(n) for n in encoding.split(":")[2].split(",")]))
            * np.dtype(encoding.split(":")[1]).itemsize
        )
    return 8 if encoding == "int" else np.dtype(encoding).itemsize if encoding in NUMBERS else None


def packed(content, compression):
    if compression in ("gz", "bz2"):
        return (gzip if compression == "gz" else bz2).compress(content)
    pa = pytest.importorskip("pyarrow")
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, {"zstd": "zstd", "br": "brotli"}[compression]) as stream:
        stream.write(content)
    return out.getvalue().to_pybytes()


def written(folder, columns, samples, compression=None, shard_size=3):
    """Writes a folder as Streaming's `MDSWriter` does: `columns` are encodings by name."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes, shards = [size_of(each) for each in columns.values()], []
    for number, at in enumerate(range(0, len(samples), shard_size)):
        records = []
        for sample in samples[at : at + shard_size]:
            parts = [stored(encoding, sample[name]) for name, encoding in columns.items()]
            lengths = [len(part) for part, size in zip(parts, sizes, strict=True) if size is None]
            records.append(np.array(lengths, "<u4").tobytes() + b"".join(parts))
        about = b'{"compression": null}'
        ends = np.cumsum([4 * (len(records) + 2) + len(about), *map(len, records)]).astype("<u4").tobytes()
        content = np.uint32(len(records)).tobytes() + ends + about + b"".join(records)
        name = f"shard.{number:05}.mds"
        shard = {"column_names": [*columns], "column_encodings": [*columns.values()], "column_sizes": sizes}
        shard |= {"format": "mds", "version": 2, "samples": len(records), "compression": None, "zip_data": None}
        shard |= {"raw_data": {"basename": name, "bytes": len(content), "hashes": {}}}
        if compression is None:
            (folder / name).write_bytes(content)
        else:
            kind, zipped = compression.partition(":")[0], packed(content, compression.partition(":")[0])
            shard |= {"compression": compression}
            shard |= {"zip_data": {"basename": f"{name}.{kind}", "bytes": len(zipped), "hashes": {}}}
            (folder / f"{name}.{kind}").write_bytes(zipped)
        shards.append(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}, sort_keys=True))
    return folder


def about(folder, change):
    """Changes the index."""
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


COLUMNS = {"n": "int", "s": "str", "a": "ndarray:int16"}
SAMPLES = [{"n": k - 3, "s": "tä" * k, "a": np.arange(k, dtype="<i2")} for k in range(8)]


class TestMds(SourceTests):
    @pytest.fixture(params=["here", "remote"])
    def source(self, request, tmp_path):
        folder = written(tmp_path / "train", COLUMNS, SAMPLES)
        if request.param == "here":
            return ps.from_mds(folder)._node.data
        system = pytest.importorskip("fsspec").filesystem("memory")
        for file in folder.iterdir():
            system.pipe(f"/mds/{file.name}", file.read_bytes())
        return ps.from_mds("memory://mds", cache_dir=tmp_path)._node.data

    @pytest.fixture
    def expected(self):
        return {name: [sample[name] for sample in SAMPLES] for name in COLUMNS}


@pytest.mark.parametrize("compression", ["zstd", "zstd:7", "gz", "br", "bz2"])
def test_every_compression(tmp_path, compression):
    folder = written(tmp_path / "train", COLUMNS, SAMPLES, compression)
    ds = ps.from_mds(folder, columns=["s", "n"])
    assert list(ds) == [{"s": each["s"], "n": each["n"]} for each in SAMPLES]
    names = [each.name for each in folder.glob(".*.content")]
    assert len(names) == 3


def test_a_shard_that_streaming_has_decompressed_is_read_as_it_is(tmp_path):
    raw, zipped = written(tmp_path / "raw", COLUMNS, SAMPLES), written(tmp_path / "zip", COLUMNS, SAMPLES, "gz")
    for file in raw.glob("shard*"):
        shutil.copy(file, zipped)
    for file in zipped.glob("*.gz"):
        file.unlink()
    assert [each["n"] for each in ps.from_mds(zipped)] == list(range(-3, 5))


@pytest.mark.parametrize("encoding", ["int", *NUMBERS])
def test_numbers_have_their_dtypes(tmp_path, encoding):
    ds = ps.from_mds(written(tmp_path / "x", {"x": encoding}, [{"x": k} for k in (1, 7)]))
    assert ds.element_spec == {"x": ps.ArraySpec((), "int64" if encoding == "int" else encoding)}
    assert [each["x"] for each in ds] == [1, 7]


@pytest.mark.parametrize(
    ("encoding", "array", "shape"),
    [
        *(("ndarray", np.arange(6, dtype=dtype).reshape(2, 3), (None, None)) for dtype in NUMBERS),
        ("ndarray", np.arange(300, dtype="u1"), (None,)),
        ("ndarray", np.float32(3)[...], ()),
        ("ndarray", np.zeros((0, 4), "f4"), (None, None)),
        ("ndarray:float64", np.arange(4.0), (None,)),
        ("ndarray:uint8:2,3", np.arange(6, dtype="u1").reshape(2, 3), (2, 3)),
    ],
)
def test_arrays_have_the_shape_and_dtype_of_the_column_or_of_the_first_sample(tmp_path, encoding, array, shape):
    ds = ps.from_mds(written(tmp_path / "x", {"x": encoding}, [{"x": array}] * 2))
    assert ds.element_spec["x"] == ps.ArraySpec(shape, array.dtype)
    assert ds[1]["x"].dtype == array.dtype
    assert np.array_equal(ds[1]["x"], array)


@pytest.mark.parametrize("encoding", ["bytes", "jpeg", "jpeg_array", "jpegarray", "png", "pil", "list[jpeg]"])
def test_pictures_are_the_bytes_as_stored(tmp_path, encoding):
    ds = ps.from_mds(written(tmp_path / "x", {"x": encoding}, [{"x": b"abc"}, {"x": b""}]))
    assert [each["x"].tobytes() for each in ds] == [b"abc", b""]


@pytest.mark.parametrize("encoding", ["json", "str_int", "str_float", "str_decimal"])
def test_values_in_text_stay_text(tmp_path, encoding):
    ds = ps.from_mds(written(tmp_path / "x", {"x": encoding}, [{"x": b"12"}]))
    assert ds[0] == {"x": "12"}


def test_several_folders_are_one_after_the_other(tmp_path):
    for number in range(2):
        written(tmp_path / f"part-{number}", {"x": "int"}, [{"x": 10 * number + k} for k in range(4)])
    want = [0, 1, 2, 3, 10, 11, 12, 13]
    assert [each["x"] for each in ps.from_mds(f"{tmp_path}/part-*")] == want
    assert [each["x"] for each in ps.from_mds([tmp_path / "part-0/index.json", f"{tmp_path}/part-1/"])] == want


def test_pickled_columns_are_refused_and_others_are_read(tmp_path):
    folder = written(tmp_path / "x", {"x": "pkl", "n": "int"}, [{"x": b"cos\nsystem\n.", "n": 5}])
    with pytest.raises(
        ps.SourceError, match=r"the column 'x' has the encoding 'pkl', .* pickle .*runs .* columns=\['n'\]"
    ):
        ps.from_mds(folder)
    assert ps.from_mds(folder, columns=["n"])[0] == {"n": 5}


def test_unknown_encodings_and_compressions_are_refused(tmp_path):
    folder = written(tmp_path / "x", {"x": "other", "n": "int"}, [{"x": b"", "n": 5}])
    with pytest.raises(
        ps.SourceError, match=r"'x' has the encoding 'other', which is not read; .* Leave it out: .*'n'"
    ):
        ps.from_mds(folder)
    folder = written(tmp_path / "y", {"n": "int"}, [{"n": 5}], "gz")
    about(folder, lambda index: index["shards"][0].update(compression="snappy"))
    with pytest.raises(ps.SourceError, match=r"mds\.gz is compressed by 'snappy', which is not read, but zstd, gz, br"):
        ps.from_mds(folder)


def test_columns_are_checked(tmp_path):
    folder = written(tmp_path / "x", COLUMNS, SAMPLES)
    with pytest.raises(
        ps.ArgumentError, match=r"from_mds\(columns=\): .*index\.json has no column 'm'; it has \['n', "
    ):
        ps.from_mds(folder, columns=["m"])
    with pytest.raises(ps.ArgumentError, match=r"from_mds\(columns=\['n', 'n'\]\): at least one, and each once"):
        ps.from_mds(folder, columns=["n", "n"])
    with pytest.raises(ps.ArgumentTypeError, match=r"from_mds\(columns=\) is a list of names, got a str"):
        ps.from_mds(folder, columns="n")
    with pytest.raises(ps.ArgumentTypeError, match=r"from_mds\(\) needs a path, a pattern or a list of paths, got"):
        ps.from_mds(3)


def test_folders_of_other_columns_are_refused(tmp_path):
    written(tmp_path / "a", {"x": "int"}, [{"x": 1}])
    written(tmp_path / "b", {"x": "str"}, [{"x": "1"}])
    with pytest.raises(ps.SourceError, match=r"b/index\.json: .*mds has the columns {'x': 'str'}, .*a/index\.json has"):
        ps.from_mds(tmp_path / "*")


def test_pyarrow_is_needed_for_its_compressions_only(tmp_path, monkeypatch):
    gz, zstd = (written(tmp_path / kind, COLUMNS, SAMPLES, kind) for kind in ("gz", "zstd"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(ps.from_mds(gz)) == 8
    with pytest.raises(ImportError, match=r"compressed by zstd needs pyarrow: pip install pyarrow\."):
        ps.from_mds(zstd)[0]


def raw(**facts):
    return lambda index: index["shards"][0]["raw_data"].update(facts)


def shard(**facts):
    return lambda index: index["shards"][0].update(facts)


LIES = {
    "no list": (lambda index: index.pop("shards"), r"is no index of MDS, or damaged: KeyError\('shards'\)"),
    "no shards": (lambda index: index.update(shards=[]), "has no shards. Its writing failed"),
    "no description": (lambda index: index.update(shards=[3]), "is no index of MDS, or damaged: TypeError"),
    "format": (shard(format="csv"), "the format is csv of version 2, and mds of version 2 is read"),
    "many": (shard(samples=10**9), "mds says that it has 3 samples, and its index says 1,000,000,000"),
    "too many": (
        shard(samples=10**30),
        r"index\.json is no index of MDS, or damaged: ValueError\('a shard has 10{30} sam",
    ),
    "negative": (shard(samples=-1), r"index\.json is no index of MDS, or damaged: ValueError\('a shard has -1 samples"),
    "fewer": (shard(samples=1), "shard.00000.mds says that it has 3 samples, and its index says 1"),
    "above": (raw(basename="../x.mds"), "the file '../x.mds' lies outside the folder of the index"),
    "elsewhere": (raw(basename="/etc/passwd"), "the file '/etc/passwd' lies outside the folder"),
    "a URL": (raw(basename="http://x/y"), "the file 'http://x/y' lies outside the folder"),
    "half a pair": (raw(basename="\ud800"), "is no index of MDS, or damaged: UnicodeEncodeError"),
    "no file": (lambda index: index["shards"][0].pop("raw_data"), r"or damaged: KeyError\('raw_data'\)"),
    "names": (shard(column_names=["n"]), r"or damaged: ValueError\(.zip\(\) argument 2 is longer"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lying_index_is_named(tmp_path, kind):
    folder, (lie, text) = written(tmp_path / "x", COLUMNS, SAMPLES), LIES[kind]
    about(folder, lie)
    with pytest.raises(ps.SourceError, match=text) as caught:
        ps.from_mds(folder)[1]
    assert str(folder) in str(caught.value)


def test_a_lying_index_is_an_error_at_every_access(tmp_path):
    folder = written(tmp_path / "x", COLUMNS, SAMPLES)
    about(folder, shard(samples=2))
    ds = ps.from_mds(folder)
    for read in (lambda: ds[1], lambda: ds[1], lambda: list(ds)):
        with pytest.raises(ps.SourceError, match=r"mds says that it has 3 samples, and its index says 2\."):
            read()


def test_the_compression_of_a_shard_is_found_without_a_look_at_the_others(tmp_path, monkeypatch):
    source = ps.from_mds(written(tmp_path / "x", COLUMNS, SAMPLES * 9, "gz", shard_size=1))._node.data
    compared, equal = [], File.__eq__
    monkeypatch.setattr(File, "__eq__", lambda *pair: compared.append(pair) or equal(*pair))
    assert {source.compression_of(file) for file in source.files} == {"gzip"}
    assert len(compared) <= len(source.files)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"[]", b"\xff", b"{"])
def test_what_is_no_index_is_named(tmp_path, content):
    folder = written(tmp_path / "x", COLUMNS, SAMPLES)
    (folder / "index.json").write_bytes(content)
    with pytest.raises(ps.SourceError, match=r"x/index\.json is no index of MDS, or damaged: "):
        ps.from_mds(folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ps.SourceError, match=r"x/index\.json"):
        ps.from_mds(tmp_path / "x")
    folder = written(tmp_path / "x", COLUMNS, SAMPLES)
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(
        ps.SourceError, match=r"x/shard\.00001\.mds cannot be read: No such file .*\. index\.json names it"
    ):
        ps.from_mds(folder)


DAMAGE = {
    "cut": (lambda data: data[:-1], r"shard\.00000\.mds is damaged or cut off: its 3 samples do not lie"),
    "cut table": (lambda data: data[:9], r"shard\.00000\.mds is damaged or cut off: its 3 samples do not lie"),
    "empty": (lambda data: b"", r"shard\.00000\.mds is damaged or cut off"),
    "count": (lambda data: b"\2" + data[1:12] + data[16:], r"00000\.mds is damaged or cut off: its 2 samples"),
    "table": (lambda data: data[:8] + b"\xff" * 4 + data[12:], r"00000\.mds is damaged or cut off: its 3 samples"),
    "in its table": (
        lambda data: data[:4] + b"\4\0\0\0" + data[8:],
        r"00000\.mds is damaged or cut off: its 3 samples",
    ),
    "sizes": (lambda data: data[:41] + b"\xff" * 4 + data[45:], r"shard\.00000\.mds sample 0 is damaged: it has 18"),
    "text": (lambda data: data.replace(b"\xc3", b"\xff"), r"sample 1 is damaged: its column 's': UnicodeDecodeError"),
    "axes": (
        lambda data: data.replace(b"\4\1\0\0", b"\5\1\0\0"),
        r"sample 1 is damaged: its column 'a': ValueError\('buffer size must be",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(tmp_path, kind):
    folder, (damage, text) = written(tmp_path / "x", COLUMNS, SAMPLES), DAMAGE[kind]
    file = folder / "shard.00000.mds"
    damaged = damage(file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    with pytest.raises(ps.SourceError, match=text):
        list(ps.from_mds(folder))


def test_arrays_that_differ_from_the_first_are_named(tmp_path):
    samples = [{"x": np.zeros(2)}, {"x": np.zeros(2, "f4")}, {"x": np.zeros((2, 2))}]
    ds = ps.from_mds(written(tmp_path / "x", {"x": "ndarray"}, samples))
    with pytest.raises(
        ps.SourceError, match=r"mds sample 1 has 1 axes of float32 in column 'x', and the first .* 1 of"
    ):
        ds[1]
    with pytest.raises(ps.SourceError, match=r"mds sample 2 has 2 axes of float64 in column 'x'"):
        ds[2]


@pytest.mark.parametrize("compression", ["gz", "zstd", "br", "bz2"])
def test_damaged_compressed_shards_are_named(tmp_path, compression):
    folder = written(tmp_path / "x", {"x": "bytes"}, [{"x": np.random.default_rng(0).bytes(4000)}], compression)
    (file,) = folder.glob("shard*")
    data = bytearray(file.read_bytes())
    data[5:50] = bytes(45)
    file.write_bytes(data)
    with pytest.raises(
        ps.SourceError, match=rf"shard\.00000\.mds.*{compression}.* (damaged|truncated)|is damaged or cut off"
    ):
        ps.from_mds(folder)[0]


def test_a_shard_that_changed_meanwhile_is_refused(tmp_path):
    folder = written(tmp_path / "x", COLUMNS, SAMPLES)
    ds = ps.from_mds(folder)
    assert len(ds) == 8
    file = folder / "shard.00000.mds"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ps.SourceError, match=r"shard\.00000\.mds has changed since the dataset was made"):
        list(ds)


def test_pictures_decode(tmp_path):
    cv2 = pytest.importorskip("cv2")
    picture = np.random.default_rng(0).integers(0, 255, (4, 5, 3)).astype("u1")
    png = cv2.imencode(".png", picture[..., ::-1])[1].tobytes()
    ds = ps.from_mds(written(tmp_path / "x", {"image": "png"}, [{"image": png}]))
    assert (ds.map(lambda each: ps.image.decode(each["image"]))[0] == picture).all()
