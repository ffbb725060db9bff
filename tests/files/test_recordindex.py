"""What is kept beside the files: of TFRecord here, for tar files use the same."""

import bz2
import gzip
import logging
import lzma
import os
import shutil
import stat
import zlib

import numpy as np
import pytest

import penstock as ps
from penstock.base import _atomic, _trust
from penstock.files import _kept, _recordindex
from penstock.files._openfile import find

pytest.importorskip("google_crc32c")


def index_of(path):
    return path.with_name(f".{path.name}.index")


def test_nothing_is_read_before_the_length_is_needed(tmp_path):
    ps.write_tfrecord(tmp_path / "ds", [{"x": np.float32(i)} for i in range(4)])
    ds = ps.from_tfrecord(tmp_path / "ds", features="auto")
    assert ds.element_spec == {"x": ps.ArraySpec((), "float32")}
    assert os.listdir(tmp_path) == ["ds"]
    assert len(ds) == 4
    assert sorted(os.listdir(tmp_path)) == [".ds.index", "ds"]


def test_index_is_used_again_and_not_when_the_file_has_changed(tmp_path, monkeypatch):
    from penstock.records import tfrecord

    built = []
    offsets = tfrecord.offsets_of
    monkeypatch.setattr(tfrecord, "offsets_of", lambda *files: built.append(files) or offsets(*files))
    path = tmp_path / "ds"
    ps.write_tfrecord(path, [b"abc"] * 5)
    assert [len(ps.from_tfrecord(path)) for _ in range(3)] == [5] * 3
    assert len(built) == 1
    ps.write_tfrecord(path, [b"abcd"] * 6)
    assert len(ps.from_tfrecord(path)) == 6
    assert len(built) == 2


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_broken_index_is_made_again(tmp_path, damage):
    path = tmp_path / "ds"
    ps.write_tfrecord(path, [b"abc"] * 5)
    assert len(ps.from_tfrecord(path)) == 5
    whole = bytearray(index_of(path).read_bytes())
    whole[whole.index(b"offsets")] ^= 1
    index_of(path).write_bytes(bytes(whole) if damage is None else damage)
    assert len(ps.from_tfrecord(path)) == 5
    assert index_of(path).read_bytes() not in (b"", b"nonsense", bytes(whole))


def test_flipped_bits_anywhere_in_an_index_change_no_record(tmp_path):
    path = tmp_path / "ds"
    records = [b"abc" * i for i in range(5)]
    ps.write_tfrecord(path, records)
    assert len(ps.from_tfrecord(path)) == 5
    whole = index_of(path).read_bytes()
    for place in range(0, len(whole), 7):  # names are longer
        index_of(path).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert [each.tobytes() for each in ps.from_tfrecord(path)] == records


def test_index_goes_to_a_cache_where_the_directory_is_read_only(tmp_path, monkeypatch):
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    ps.write_tfrecord(data / "ds", [b"abc"] * 5)
    ps.write_tfrecord(data / "gz", [b"abc"] * 7, compression="gzip")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    complete = _kept.complete

    def refuse_in_data(path, mode, **options):
        if path.parent == data:
            raise PermissionError(13, "Permission denied")
        return complete(path, mode, **options)

    monkeypatch.setattr(_kept, "complete", refuse_in_data)
    for _ in range(2):
        assert len(ps.from_tfrecord(data / "ds")) == 5
        assert len(ps.from_tfrecord(data / "gz")) == 7
    assert sorted(os.listdir(data)) == ["ds", "gz"]
    assert len(os.listdir(cache / "penstock")) == 4  # two indexes, and the content with its note


def test_index_that_cannot_be_kept_is_said_and_works(tmp_path, monkeypatch, caplog):
    def refuse(path, mode, **options):
        raise PermissionError(13, "Permission denied")

    ps.write_tfrecord(tmp_path / "ds", [b"abc"] * 5)
    ps.write_tfrecord(tmp_path / "gz", [b"abc"] * 5, compression="gzip")
    monkeypatch.setattr(_kept, "complete", refuse)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert ps.from_tfrecord(tmp_path / "ds")[4].tobytes() == b"abc"
    assert "The index of" in caplog.text
    with pytest.raises(ps.SourceError, match=r"gz is compressed, .*Permission denied.*Give a cache_dir with room"):
        len(ps.from_tfrecord(tmp_path / "gz"))


def test_content_of_an_older_file_is_replaced(tmp_path):
    for count in (3, 8):
        ps.write_tfrecord(tmp_path / "gz", [b"abc"] * count, compression="gzip")
        assert len(ps.from_tfrecord(tmp_path / "gz", cache_dir=tmp_path / "cache")) == count
        assert len(list((tmp_path / "cache").glob(".gz*.content"))) == 1
    assert os.listdir(tmp_path / "cache") != []
    assert sorted(os.listdir(tmp_path)) == ["cache", "gz"]


def test_file_has_no_name_before_it_is_complete(tmp_path):
    def records():
        yield b"abc"
        assert [name for name in os.listdir(tmp_path) if "part" not in name] == []
        yield b"def"

    ps.write_tfrecord(tmp_path / "file", records())
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


# Content copies.


def lines_of(path, **options):
    return list(ps.from_text(path, **options))


@pytest.fixture
def packed(tmp_path):
    """A compressed file of 1,000 lines, of which a copy is kept."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"line %d\n" % number for number in range(1000))))
    assert lines_of(path) == LINES
    return path


LINES = [f"line {number}" for number in range(1000)]


def copy_of(path):
    (copy,) = path.parent.glob(f".{path.name}.????????.content")
    return copy


@pytest.mark.parametrize("change", ["cut", "longer", "empty", "other bytes", "no note", "link"])
def test_a_copy_that_is_not_whole_is_made_again(packed, change, tmp_path):
    copy = copy_of(packed)
    whole = copy.read_bytes()
    if change == "cut":
        os.truncate(copy, whole.index(b"line 505\n"))
    elif change == "longer":
        copy.write_bytes(whole + b"forged\n")
    elif change == "empty":
        copy.write_bytes(b"")
    elif change == "other bytes":
        copy.write_bytes(whole.replace(b"line 7\n", b"l1ne 7\n"))
        os.utime(copy, ns=(1, 1))
    elif change == "no note":
        copy.with_name(f"{copy.name}.sum").unlink()
        copy.write_bytes(b"forged\n" * 10)
    else:
        (tmp_path / "forged").write_bytes(whole.replace(b"7", b"8"))
        copy.unlink()
        copy.symlink_to(tmp_path / "forged")
    assert lines_of(packed) == LINES
    assert copy.read_bytes() == whole
    assert not copy.is_symlink()


def test_a_copy_is_synced_before_it_is_used(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(_atomic.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert lines_of(path) == ["one", "two"]
    assert 8 in synced


def test_a_copy_and_an_index_are_readable_for_those_who_can_read_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for mode in (0o600, 0o640):
        folder = tmp_path / f"{mode}"
        folder.mkdir()
        path = folder / "a.txt.gz"
        path.write_bytes(gzip.compress(b"one\n"))
        path.chmod(mode)
        assert lines_of(path) == ["one"]
        kept = [each for each in folder.iterdir() if each != path]
        assert len(kept) == 3
        assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {mode & ~_umask()}
        assert lines_of(path, cache_dir=tmp_path / "private") == ["one"]
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "private").iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_copy_that_a_stranger_may_have_forged_is_not_used(tmp_path, mode, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    shared = tmp_path / "shared"
    shared.mkdir()
    path = shared / "a.txt.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert lines_of(path) == LINES
    copy, forged = copy_of(path), b"forged\n" * 1000
    copy.write_bytes(forged)
    facts = np.array([len(forged), copy.stat().st_mtime_ns])
    state = f"content {path.stat().st_size} {path.stat().st_mtime_ns} {path.stat().st_ctime_ns}"
    copy.with_name(f"{copy.name}.sum").write_bytes(b"".join(_kept.index_bytes(state, {"facts": facts})))
    shared.chmod(mode)
    if mode == 0o1777:  # as if this were another user's process, and /tmp no such folder
        monkeypatch.setattr(_trust, "_trusted", lambda: (4242,))
        monkeypatch.setattr(_trust, "_way", lambda path, way=_trust._way: [x for x in way(path) if x[0] != "/tmp"])
    assert lines_of(path) == (["forged"] * 1000 if mode == 0o755 else LINES)
    assert copy.read_bytes() == forged or mode == 0o1777  # where root may replace it
    assert list(tmp_path.glob("home/penstock/*.content")) or mode != 0o777


def test_the_name_of_a_file_is_no_pattern(tmp_path):
    for name in ("*.gz", "b.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"one\n"))
        assert lines_of(tmp_path / name if name == "b.gz" else [str(tmp_path / name)]) == ["one"]
    kept = sorted(os.listdir(tmp_path))
    (tmp_path / "*.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert lines_of([str(tmp_path / "*.gz")]) == ["one", "two"]
    assert [name for name in kept if name.startswith(".b.gz")] == [
        name for name in sorted(os.listdir(tmp_path)) if name.startswith(".b.gz")
    ]


def test_a_file_of_the_user_with_the_name_of_an_index_is_kept(tmp_path, caplog):
    ps.write_tfrecord(tmp_path / "ds", [b"abc"] * 5)
    index_of(tmp_path / "ds").write_text("my own notes")
    assert len(ps.from_tfrecord(tmp_path / "ds")) == 5
    (spared,) = tmp_path.glob(".ds.index.other-*")
    assert spared.read_text() == "my own notes"
    assert f"is no index, and is kept as {spared}" in caplog.text


def test_a_link_with_the_name_of_an_index_is_neither_read_nor_followed(tmp_path):
    ps.write_tfrecord(tmp_path / "ds", [b"abc"] * 5)
    assert len(ps.from_tfrecord(tmp_path / "ds")) == 5
    os.rename(index_of(tmp_path / "ds"), tmp_path / "victim")
    before = (tmp_path / "victim").read_bytes()
    index_of(tmp_path / "ds").symlink_to(tmp_path / "victim")
    assert len(ps.from_tfrecord(tmp_path / "ds", cache_dir=None)) == 5
    assert (tmp_path / "victim").read_bytes() == before


def test_processes_that_copy_at_once_take_the_copies_for_the_same_file(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    first = ps.from_text(path)
    assert len(first) == 2
    os.unlink(copy_of(path))  # as if the other process had looked before it was there
    assert len(ps.from_text(path)) == 2
    assert list(first) == ["one", "two"]


def test_copies_in_other_encodings_stay(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("é\n".encode("latin-1")))
    assert lines_of(path, encoding="latin-1") == ["é"]
    first = ps.from_text(path, encoding="latin-1")
    assert lines_of(path, encoding="cp1252") == ["é"]
    assert list(first) == ["é"]


def zstd(content):
    return pytest.importorskip("pyarrow").compress(content, "zstd", asbytes=True)


PACKS = {"gzip": gzip.compress, "zlib": zlib.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstd}
MEMBERS = [b"line 0\nline 1\n", b"line 2\n"]


@pytest.mark.parametrize("kind", PACKS)
def test_compressed_content_comes_in_bounded_pieces(tmp_path, kind):
    padding = b"" if kind == "zstd" else bytes(700)
    for name, contents in (("one", [bytes(5 << 20)]), ("several", [b"ab" * 700_000, b"", b"c" * (1 << 20), b"d"])):
        (tmp_path / name).write_bytes(b"".join(map(PACKS[kind], contents)) + padding)
        (file,) = find("test", tmp_path / name)
        found = list(_recordindex.pieces(file, kind))
        assert max(map(len, found)) <= 1 << 20
        assert b"".join(found) == b"".join(contents)


@pytest.mark.parametrize("place", ["local", "remote"])
@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz", "zstd"])
def test_compressed_text_is_known_by_its_first_bytes(tmp_path, kind, place):
    content = b"".join(map(PACKS[kind], MEMBERS))
    path, options = tmp_path / "a.txt", {"cache_dir": tmp_path}
    if place == "remote":
        path = f"memory://compressed/{kind}"
        pytest.importorskip("fsspec").filesystem("memory").pipe(f"/compressed/{kind}", content)
    else:
        path.write_bytes(content)
    assert lines_of(path, **options) == LINES[:3]
    assert list(ps.from_text(path, by="file", **options)) == ["line 0\nline 1\nline 2\n"]
    if place == "local":
        with pytest.raises(ps.SourceError, match="is no text in utf-8"):
            lines_of(path, compression=None)


def test_a_frame_of_zstandard_that_holds_no_data_is_skipped(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"  # pzstd begins files so
    (tmp_path / "a").write_bytes(skipped + zstd(MEMBERS[0]) + skipped + zstd(MEMBERS[1]))
    assert lines_of(tmp_path / "a") == LINES[:3]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz", "zstd"])
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_text_that_is_cut_off_or_damaged_in_its_compression_is_named(tmp_path, kind):
    whole = PACKS[kind](np.random.default_rng(0).bytes(200_000))
    (tmp_path / "a").write_bytes(whole[:-20])
    with pytest.raises(ps.SourceError, match=rf"a is truncated: its {kind} data do not end within [0-9,]+ bytes"):
        lines_of(tmp_path / "a")
    (tmp_path / "a").write_bytes(whole + b"no member")
    with pytest.raises(ps.SourceError, match=r"a is damaged: it cannot be decompressed .* around byte [0-9,]+ of"):
        lines_of(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.lz4", b"\x04\x22\x4d\x18" + bytes(9), "LZ4"),
        ("a.csv.zip", b"PK\x03\x04" + bytes(9), "ZIP"),
        ("a.txt.br", b"\x0b\x02\x80one", "Brotli"),
    ],
)
def test_a_compression_that_is_not_read_is_named(tmp_path, name, content, form):
    (tmp_path / name).write_bytes(content)
    for read in (ps.from_text, ps.from_jsonl, ps.from_csv):
        with pytest.raises(ps.SourceError, match=f"is compressed by {form}, which is not read here. Decompress it, or"):
            list(read(tmp_path / name))


def swapped(path, content, how):
    """Writes a file anew, of the same size and time of the last change."""
    before = path.stat()
    new = path if how == "in place" else path.with_name("new")
    if how == "deleted before":
        path.unlink()
        new = path
    new.write_bytes(content)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    if new != path:
        os.replace(new, path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


HOW = ["replaced", "in place", "deleted before"]


def as_jsonl(number):
    return b"".join(b'{"x": %d}\n' % (number if row == 700 else row % 10) for row in range(1000))


def as_records(number):
    return b"".join(b"%d\n" % (number if row == 700 else row % 10) for row in range(1000))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", ["lines", "packed", "jsonl", "csv"])
def test_a_file_of_the_same_size_and_time_is_another(tmp_path, form, how):
    path = tmp_path / "a"
    content = {
        "lines": as_records,
        "packed": lambda number: gzip.compress(as_records(number), 0, mtime=0),
        "jsonl": as_jsonl,
        "csv": lambda number: b"x\n" + as_records(number),
    }[form]
    read = {"csv": ps.from_csv, "lines": ps.from_text, "packed": ps.from_text}.get(form, ps.from_jsonl)
    path.write_bytes(content(7))
    os.utime(path, (1, 1))
    for number, there in enumerate(["7", "8", "9"]):
        if number:
            swapped(path, content(int(there)), how)
        found = read(path)[700]
        assert str(found if read is ps.from_text else found["x"]) == there


def test_a_dataset_of_a_file_that_was_replaced_is_refused_and_of_one_whose_mode_changed_is_not(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(as_records(7))
    ds, other = ps.from_text(path), ps.from_text(path)
    assert len(ds) == len(other) == 1000
    path.chmod(0o600)
    os.link(path, tmp_path / "b")
    assert ds[700] == "7"
    swapped(path, as_records(8), "replaced")
    assert ds[700] == "7"  # it is open
    with pytest.raises(ps.SourceError, match=r"a has changed since the dataset was made: 2,000 bytes then, 2,000 now"):
        other[700]


def test_a_copy_of_a_folder_is_read_and_a_run_goes_on_with_it(tmp_path):
    def loader_of(folder):
        return ps.from_jsonl(folder / "a").shuffle(1).batch(100).loader(executor="inline")

    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").write_bytes(as_jsonl(7))
    with loader_of(tmp_path / "one") as loader:
        epoch = iter(loader)
        next(epoch)
        state = loader.get_state()
        right = [each["x"].tolist() for each in epoch]
    shutil.copytree(tmp_path / "one", tmp_path / "two")  # keeps the times, with indexes of other files
    with loader_of(tmp_path / "two") as loader:
        loader.set_state(state)
        assert [each["x"].tolist() for each in loader] == right


def test_a_copy_that_another_process_replaced_by_its_equal_is_read(packed, tmp_path):
    ds = ps.from_text(packed)
    assert len(ds) == 1000
    copy = copy_of(packed)
    shutil.copy2(copy, tmp_path / "other")
    os.replace(tmp_path / "other", copy)
    made_ns = index_of(copy).stat().st_mtime_ns
    assert list(ds[5:7]) == LINES[5:7]
    assert lines_of(packed) == LINES
    assert index_of(copy).stat().st_mtime_ns == made_ns
