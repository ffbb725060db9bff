import struct

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

LENGTHS = [3, 0, 5, 1, 300]


def written(stem, dtype="<u2", lengths=LENGTHS, first=0, modes=False):
    """Writes a corpus of the numbers from `first` on, as Megatron's `IndexedDatasetBuilder` does."""
    code = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}[dtype]
    ends = np.cumsum([0, *lengths]) * np.dtype(dtype).itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), 3)
    parts = [np.array(lengths, "<i4"), ends[:-1].astype("<i8"), np.array([0, 2, len(lengths)], "<i8")]
    parts += [np.zeros(len(lengths), "i1")] * modes
    stem.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    np.arange(first, first + sum(lengths)).astype(dtype).tofile(stem.with_suffix(".bin"))
    return stem


class TestMegatron(SourceTests):
    @pytest.fixture
    def source(self, tmp_path):
        for number in range(2):
            written(tmp_path / f"part-{number}", first=400 * number)
        return ps.from_megatron(tmp_path / "part-*")._node.data

    @pytest.fixture
    def expected(self):
        return [
            part.astype("u2")
            for first in (0, 400)
            for part in np.split(np.arange(first, first + sum(LENGTHS)), np.cumsum(LENGTHS)[:-1])
        ]


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"])
@pytest.mark.parametrize("modes", [False, True])
def test_every_dtype_and_modes(tmp_path, dtype, modes):
    ds = ps.from_megatron(written(tmp_path / "corpus", dtype, [2, 4], modes=modes))
    assert ds.element_spec == ps.ArraySpec((None,), dtype)
    assert [each.tolist() for each in ds] == [[0, 1], [2, 3, 4, 5]]
    assert ds[0].dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", ["corpus", "corpus.bin", "corpus.idx", "corp*"])
def test_a_corpus_is_named_by_either_file_or_by_none(tmp_path, name):
    written(tmp_path / "corpus", lengths=[1, 2])
    assert [each.tolist() for each in ps.from_megatron(f"{tmp_path}/{name}")] == [[0], [1, 2]]


def test_packed_rows_of_a_corpus(tmp_path):
    written(tmp_path / "corpus", lengths=[2, 3, 4])
    ds = ps.from_megatron(tmp_path / "corpus")
    lengths = np.fromfile(tmp_path / "corpus.idx", "<i4", len(ds), offset=34)
    assert ds.pack(5, lengths=lengths).batch(2)[0][0].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 0]]


DAMAGE = {
    "empty": (lambda idx, bin: (b"", bin), r"c\.idx is no index of Megatron, or damaged: it begins with b''"),
    "mark": (lambda idx, bin: (b"X" + idx[1:], bin), r"c\.idx is no index of Megatron"),
    "version": (lambda idx, bin: (idx[:9] + b"\2" + idx[10:], bin), r"c\.idx is no index of Megatron"),
    "dtype": (lambda idx, bin: (idx[:17] + b"\x09" + idx[18:], bin), r"c\.idx is no index of Megatron"),
    "cut head": (lambda idx, bin: (idx[:30], bin), r"c\.idx does not describe .*c\.bin: its 5 sequences do not lie"),
    "cut": (lambda idx, bin: (idx[:90], bin), r"c\.idx does not describe .*c\.bin: its 5 sequences do not lie"),
    "count": (lambda idx, bin: (idx[:18] + b"\xff" * 8 + idx[26:], bin), r"its 18,446,744,073,709,551,615 sequences"),
    "negative": (lambda idx, bin: (idx[:37] + b"\xff" + idx[38:], bin), r"c\.idx does not describe .*c\.bin"),
    "gap": (lambda idx, bin: (idx[:62] + b"\x01" + idx[63:], bin), r"c\.idx does not describe .*c\.bin"),
    "short": (lambda idx, bin: (idx, bin[:-1]), r"one after the other up to byte 617\. One is cut off, damaged or of"),
    "long": (lambda idx, bin: (idx, bin + b"x"), r"one after the other up to byte 619\. One is cut off, damaged or of"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_before_a_token_is_read(tmp_path, kind):
    damage, text = DAMAGE[kind]
    written(tmp_path / "c")
    idx, tokens = damage((tmp_path / "c.idx").read_bytes(), (tmp_path / "c.bin").read_bytes())
    (tmp_path / "c.idx").write_bytes(idx)
    (tmp_path / "c.bin").write_bytes(tokens)
    with pytest.raises(ps.SourceError, match=text):
        len(ps.from_megatron(tmp_path / "c"))


def test_corpora_of_several_dtypes_are_refused(tmp_path):
    written(tmp_path / "a", "<u2")
    written(tmp_path / "b", "<i4")
    with pytest.raises(ps.SourceError, match=r"b\.idx has tokens of int32, and .*a\.idx of uint16\. Make a dataset of"):
        ps.from_megatron(tmp_path / "*")


def test_a_missing_file_is_named(tmp_path):
    written(tmp_path / "c")
    (tmp_path / "c.idx").unlink()
    with pytest.raises(ps.SourceError, match=r"/c\.idx cannot be read: No such file"):
        ps.from_megatron(tmp_path / "c")
    with pytest.raises(ps.ArgumentTypeError, match=r"^from_megatron\(\) needs paths, got an int"):
        ps.from_megatron([3])
    with pytest.raises(
        ps.ArgumentTypeError, match=r"^from_megatron\(\) needs a path, a pattern or a list of paths, got"
    ):
        ps.from_megatron(3)


def test_a_corpus_that_changed_meanwhile_is_refused(tmp_path):
    ds = ps.from_megatron(written(tmp_path / "c"))
    assert len(ds) == 5
    written(tmp_path / "c", lengths=[4, 4])
    with pytest.raises(ps.SourceError, match=r"c\.bin has changed since the dataset was made"):
        ds[2]


def test_corpora_behind_urls(tmp_path):
    system = pytest.importorskip("fsspec").filesystem("memory")
    written(tmp_path / "c", lengths=[2, 1])
    for ending in ("bin", "idx"):
        system.pipe(f"/corpora/c.{ending}", (tmp_path / f"c.{ending}").read_bytes())
    assert [each.tolist() for each in ps.from_megatron("memory://corpora/*")] == [[0, 1], [2]]
