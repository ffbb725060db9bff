import gzip
import os

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx(array):
    code = CODES[array.dtype.str.removeprefix("|")]
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (9, 28, 28)).astype("u1")
LABELS = np.arange(9, dtype="u1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(IMAGES)))
    (tmp_path / "labels").write_bytes(idx(LABELS))
    return tmp_path


class TestIdx(SourceTests):
    @pytest.fixture(params=["plain", "gzip", "remote"])
    def source(self, request, folder):
        content = idx(IMAGES)
        if request.param == "remote":
            pytest.importorskip("fsspec").filesystem("memory").pipe("/idx/images", content)
            return ps.from_idx("memory://idx/images")._node.data
        (folder / "images").write_bytes(content)
        return ps.from_idx("images" if request.param == "plain" else "images.gz")._node.data

    @pytest.fixture
    def expected(self):
        return IMAGES


def test_images_and_labels_are_side_by_side(folder):
    ds = ps.from_idx({"image": "images.gz", "label": "labels"})
    assert ds.element_spec == {"image": ps.ArraySpec((28, 28), "uint8"), "label": ps.ArraySpec((), "uint8")}
    batch = ds.batch(9)[0]
    assert (batch["image"] == IMAGES).all()
    assert (batch["label"] == LABELS).all()
    assert any(name.startswith(".images.gz.") for name in os.listdir(folder))


@pytest.mark.parametrize("dtype", CODES)
def test_every_dtype(tmp_path, dtype):
    values = np.arange(6).astype(dtype).reshape(3, 2)
    (tmp_path / "x").write_bytes(idx(values))
    ds = ps.from_idx(tmp_path / "x")
    assert ds.element_spec == ps.ArraySpec((2,), dtype)
    assert ds.batch(3)[0].tolist() == values.tolist()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", r"/x is no idx file: it begins with b''"),
        (b"\0\0\x08", r"/x is no idx file: it begins with b'\\x00\\x00\\x08'"),
        (b"\0\1" + idx(LABELS)[2:], r"/x is no idx file"),
        (
            b"\0\0\x0a" + idx(LABELS)[3:],
            r"where there are two zeros, a dtype \(8, 9, or 11 to 14\) and a number of axes",
        ),
        (b"\0\0\x08\0", r"b'\\x00\\x00\\x08\\x00', where there"),
        (b"\0\0\x08\xff" + b"\1" * 2000, r"a number of axes \(at most 8\)\. Give the file of MNIST"),
        (idx(IMAGES)[:-1], r"/x has 7,071 bytes, and an array \(9, 28, 28\) of uint8 takes 7,072 with its header"),
        (idx(LABELS) + b"x", r"/x has 18 bytes, and an array \(9,\) of uint8 takes 17"),
        (b"\0\0\x08\x02" + b"\xff" * 8, r"takes 18,446,744,065,119,617,037 with its header\. It is cut off"),
        (gzip.compress(idx(IMAGES))[:-20], r"/x is truncated: its gzip data do not end"),
        (b"\0\0\x08\x04" + b"\0\0\0\7" + b"\xff" * 8 + b"\0" * 4, r"It is cut off, or damaged"),
    ],
    ids=range(11),
)
def test_damage_is_named(tmp_path, content, text):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ps.SourceError, match=text):
        ps.from_idx(tmp_path / "x")


def test_wrong_arguments_are_refused(folder):
    with pytest.raises(ps.ArgumentTypeError, match=r"from_idx\(\) needs paths, got an int"):
        ps.from_idx({"image": 3})
    with pytest.raises(
        ps.ArgumentError, match=r"reads one file for each leaf, and 2 fit \*\. One after the other: concat"
    ):
        ps.from_idx("*")
    (folder / "two").write_bytes(idx(LABELS[:2]))
    with pytest.raises(ps.ArgumentError, match=r"from_idx\(\) puts elements side by side.* x: 9, y: 2|.*9.*2"):
        ps.from_idx({"x": "labels", "y": "two"})
