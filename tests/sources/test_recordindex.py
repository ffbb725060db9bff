"""What is kept beside the files: of TFRecord here, for tar files use the same."""

import logging
import os

import numpy as np
import pytest

import penstock as ps

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
    from penstock.sources import tfrecord

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
    from penstock.sources import _recordindex

    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    ps.write_tfrecord(data / "ds", [b"abc"] * 5)
    ps.write_tfrecord(data / "gz", [b"abc"] * 7, compression="gzip")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    complete = _recordindex.complete

    def refuse_in_data(path):
        if path.parent == data:
            raise PermissionError(13, "Permission denied")
        return complete(path)

    monkeypatch.setattr(_recordindex, "complete", refuse_in_data)
    for _ in range(2):
        assert len(ps.from_tfrecord(data / "ds")) == 5
        assert len(ps.from_tfrecord(data / "gz")) == 7
    assert sorted(os.listdir(data)) == ["ds", "gz"]
    assert len(os.listdir(cache / "penstock")) == 3


def test_index_that_cannot_be_kept_is_said_and_works(tmp_path, monkeypatch, caplog):
    from penstock.sources import _recordindex

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    ps.write_tfrecord(tmp_path / "ds", [b"abc"] * 5)
    ps.write_tfrecord(tmp_path / "gz", [b"abc"] * 5, compression="gzip")
    monkeypatch.setattr(_recordindex, "complete", refuse)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert ps.from_tfrecord(tmp_path / "ds")[4].tobytes() == b"abc"
    assert "The index of" in caplog.text
    with pytest.raises(ps.SourceError, match=r"gz is compressed, .*Permission denied.*Give a cache_dir with room"):
        len(ps.from_tfrecord(tmp_path / "gz"))


def test_content_of_an_older_file_is_removed(tmp_path):
    for count in (3, 8):
        ps.write_tfrecord(tmp_path / "gz", [b"abc"] * count, compression="gzip")
        assert len(ps.from_tfrecord(tmp_path / "gz", cache_dir=tmp_path / "cache")) == count
        assert len(list((tmp_path / "cache").glob(".gz*.content"))) == 1
    assert os.listdir(tmp_path / "cache") != []
    assert sorted(os.listdir(tmp_path)) == ["cache", "gz"]


def test_file_has_no_name_before_it_is_complete(tmp_path, monkeypatch):
    from penstock.base import _atomic

    def records():
        yield b"abc"
        assert [name for name in os.listdir(tmp_path) if "part" not in name] == []
        yield b"def"

    for number, nameless in enumerate((_atomic._nameless, lambda folder, mode: None)):
        monkeypatch.setattr(_atomic, "_nameless", nameless)
        ps.write_tfrecord(tmp_path / f"{number}", records())
        assert os.listdir(tmp_path) == [f"{number}"]
        assert (tmp_path / f"{number}").stat().st_mode & 0o777 == 0o666 & ~_umask()
        (tmp_path / f"{number}").unlink()


def _umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask
