"""Datasets written as tar shards, and read again."""

import errno
import os

import numpy as np
import pytest

import penstock as ps

PAGES = [bytes([number]) * (100 + number) for number in range(20)]


def pages() -> ps.Dataset:
    return ps.range(20).map(lambda i: {"__key__": f"page/{i:03}", "bin": PAGES[i], "label": i})


def test_shards_hold_the_elements_in_order(tmp_path):
    names = ps.repack(pages(), tmp_path / "out", shard_nbytes=10_000)
    assert len(names) > 2
    assert names == sorted(str(each) for each in (tmp_path / "out").iterdir() if each.suffix == ".tar")
    assert len(os.listdir(tmp_path / "out")) == len(names)
    again = ps.from_tar(f"{tmp_path}/out/*.tar", fields=["bin"])
    assert [each["bin"].tobytes() for each in again] == PAGES
    assert again[3]["__key__"] == "page/003"


def test_fields_that_are_no_bytes_are_npy_content(tmp_path):
    import io

    ps.repack(ps.from_arrays({"x": np.eye(3), "txt": np.array(["a", "b", "ö"])}), tmp_path / "out")
    read = ps.from_tar(f"{tmp_path}/out/*.tar")
    assert np.array_equal(np.load(io.BytesIO(read[1]["x"].tobytes())), [0, 1, 0])
    assert read[2]["txt"].tobytes().decode() == "ö"
    assert read[2]["__key__"] == "000000002"


def test_a_repacked_dataset_can_be_repacked(tmp_path):
    ps.repack(pages(), tmp_path / "a")
    ps.repack(ps.from_tar(f"{tmp_path}/a/*.tar").shuffle(seed=1), tmp_path / "b", shard_nbytes=4096)
    read = ps.from_tar(f"{tmp_path}/b/*.tar")
    assert sorted(each["bin"].tobytes() for each in read) == sorted(PAGES)
    assert [each["__key__"] for each in read] != sorted(each["__key__"] for each in read)


def test_an_error_on_the_way_leaves_whole_shards(tmp_path):
    def fail(i):
        if i == 15:
            raise ValueError("broken")
        return {"bin": PAGES[i]}

    with pytest.raises(Exception, match="broken"):
        ps.repack(ps.range(20).map(fail, element_spec={"bin": ps.ArraySpec((), "S")}), tmp_path, shard_nbytes=2000)
    names = os.listdir(tmp_path)
    assert names
    assert all(name.endswith(".tar") for name in names)
    assert [each["bin"].tobytes() for each in ps.from_tar(f"{tmp_path}/*.tar")] == PAGES[
        : len(ps.from_tar(f"{tmp_path}/*.tar"))
    ]


@pytest.mark.parametrize(
    ("element", "said"),
    [
        (np.int64(1), "writes dicts of fields"),
        ({"__key__": "a"}, "writes dicts of fields"),
        ({"JPG": b"a"}, "cannot name a file for field 'JPG'"),
        ({"a/b": b"a"}, "cannot name a file for field 'a/b'"),
        ({"__key__": "a.b", "x": b"a"}, "key 'a.b'"),
    ],
)
def test_elements_that_are_no_samples_are_refused(tmp_path, element, said):
    with pytest.raises(ps.ArgumentTypeError, match=said):
        ps.repack(ps.range(1).map(lambda i: element), tmp_path / "out")
    assert not (tmp_path / "out").exists() or not os.listdir(tmp_path / "out")


def test_two_at_once_do_not_mix_their_shards(tmp_path):
    def beside(element):
        with pytest.raises(ps.ArgumentError, match=r"another program writes shards into .*out now"):
            ps.repack(pages(), tmp_path / "out")
        return element

    paths = ps.repack(pages().map(beside), tmp_path / "out")
    assert len(ps.from_tar(paths)) == len(pages())


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out/000000\.tar"):
        ps.repack(pages(), tmp_path / "out")
    assert not os.listdir(tmp_path / "out")


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ps.ArgumentError, match="endless"):
        ps.repack(pages().repeat(), tmp_path)
    with pytest.raises(ps.ArgumentError, match="without elements"):
        ps.repack(pages().take(0), tmp_path)
    with pytest.raises(ps.ArgumentError, match="a number of bytes"):
        ps.repack(pages(), tmp_path, shard_nbytes=0)
    with pytest.raises(ps.ArgumentError, match="writes into folders, and s3"):
        ps.repack(pages(), "https://host/folder")
    ps.repack(pages(), tmp_path)
    with pytest.raises(ps.ArgumentError, match="holds tar files"):
        ps.repack(pages(), tmp_path)
    with pytest.raises(ps.ArgumentTypeError, match="a folder or a URL"):
        ps.repack(pages(), 3)
    with pytest.raises(ps.ArgumentTypeError, match="a dataset"):
        ps.repack([1], tmp_path)
