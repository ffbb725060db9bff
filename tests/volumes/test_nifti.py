import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget, reading_with
from penstock.testing import SourceTests

nibabel = pytest.importorskip("nibabel")

VOLUMES = np.random.default_rng(0).integers(-900, 900, (5, 7, 6, 4)).astype("int16")
AFFINE = np.array([[2, 0, 0, -5], [0, 3, 0, 6], [0, 0, 4, 7], [0, 0, 0, 1.0]])


def save(path, array, *, kind=nibabel.Nifti1Image, slope=None, dtype=None):
    image = kind(array, AFFINE, dtype=array.dtype)
    image.set_data_dtype(dtype or array.dtype)
    if slope:
        image.header.set_slope_inter(*slope)
    nibabel.save(image, path)
    return path


@pytest.fixture
def scans(tmp_path):
    """Five files: plain, compressed, scaled, big-endian NIfTI-2, and a pair."""
    big = nibabel.Nifti2Image(VOLUMES[3], AFFINE, nibabel.Nifti2Header(endianness=">"))
    save(tmp_path / "0.nii", VOLUMES[0])
    save(tmp_path / "1.nii.gz", VOLUMES[1])
    save(tmp_path / "2.nii", VOLUMES[2].astype("float64") / 3, dtype="int16")
    nibabel.save(big, tmp_path / "3.nii")
    save(tmp_path / "4.img", VOLUMES[4], kind=nibabel.Nifti1Pair)
    return [tmp_path / name for name in ("0.nii", "1.nii.gz", "2.nii", "3.nii", "4.img")]


def values(path, dtype=np.float32):
    return nibabel.load(path).get_fdata(dtype=dtype)


class TestVolumes(SourceTests):
    @pytest.fixture(params=["volumes", "shapes", "fields"])
    def kind(self, request):
        return request.param

    @pytest.fixture
    def source(self, kind, scans, tmp_path):
        if kind == "shapes":
            save(tmp_path / "0.nii", np.ones((2, 6, 4), "int16"))
        options = {"affine": True, "header": True} if kind == "fields" else {}
        return ps.from_nifti(scans[:3] + scans[4:], **options)._node.data

    @pytest.fixture
    def expected(self, kind, source, scans):
        scans = scans[:3] + scans[4:]
        found = [values(path) for path in scans]
        if kind != "fields":
            return found if kind == "shapes" else np.stack(found)
        headers = np.array([nibabel.load(path).header.structarr.copy() for path in scans])
        return {"volume": np.stack(found), "affine": np.stack([AFFINE] * 4), "header": headers}


def test_values_are_those_of_nibabel(scans):
    for dtype in ("float32", "float64"):
        for path, found in zip(scans, ps.from_nifti(scans, dtype=dtype), strict=True):
            assert found.dtype == dtype
            assert np.array_equal(found, values(path, np.dtype(dtype)))
    for path in scans:
        want = np.asarray(nibabel.load(path).dataobj)
        found = ps.from_nifti(path, dtype=None)[0]
        assert found.dtype == want.dtype.newbyteorder("=")
        assert np.array_equal(found, want)
    assert ps.from_nifti(scans, dtype=None).element_spec == ps.ArraySpec((7, 6, 4), "float64")  # one is scaled
    element = ps.from_nifti(scans[3], affine=True, header=True)[0]
    assert np.array_equal(element["affine"], AFFINE)
    assert element["header"]["dim"][1:4].tolist() == [7, 6, 4]


LARGE = 614_454_277  # a label of the Allen atlas of the mouse


@pytest.mark.parametrize(
    ("dtype", "value", "wanted", "fits"),
    [
        ("int32", LARGE, "float32", False),
        ("uint32", LARGE, "float32", False),
        ("int64", LARGE, "float32", False),
        ("float64", LARGE, "float32", False),
        ("int32", -LARGE, "float32", False),
        ("int32", 1 << 25, "float32", True),
        ("int32", LARGE, "float64", True),
        ("int32", LARGE, None, True),
        ("int64", (1 << 53) + 1, "float64", False),
        ("int64", (1 << 53) + 1, None, True),
        ("int64", LARGE, "int32", True),
        ("int64", 1 << 40, "int32", False),
        ("uint8", 200, "int8", False),
        ("int16", 2049, "float16", False),
        ("int16", 2048, "float16", True),
        ("int64", -(2**63), "float16", False),
        ("float64", 1e40, "float32", False),
        ("float64", -1e40, "float32", False),
        ("float64", 1e40, "float64", True),
        ("float64", np.inf, "float32", True),
        ("float64", np.nan, "float32", True),
        ("float64", LARGE + 0.5, "float32", True),
        ("float32", 70000, "float16", False),
        ("complex128", 1e40 + 1j, "complex64", False),
        ("complex128", 1 + 1j, "complex64", True),
    ],
)
def test_values_come_as_they_are_or_are_an_error(tmp_path, dtype, value, wanted, fits):
    labels = np.ones((4, 3, 2), dtype)
    labels[2, 1, 1] = value
    ds = ps.from_nifti(save(tmp_path / "a.nii", labels), dtype=wanted)
    for read in (lambda: ds[0], lambda: ds.patches((4, 3, 2), axes=(1, 2, 3))[0]):
        if not fits:
            with pytest.raises(
                ps.SpecError, match=r"a\.nii \(element 0\) has the value .*, which .* cannot hold\. .*=None"
            ):
                read()
            continue
        found = read()
        assert found.dtype == (wanted or dtype)
        want = labels.astype(found.dtype)
        assert np.array_equal(found, want, equal_nan=True)
    if value == LARGE:
        assert ps.from_nifti(tmp_path / "a.nii", dtype=None).cast("float32")[0][2, 1, 1] == np.float32(LARGE)


def test_labels_that_a_header_scales_are_not_rounded_either(tmp_path):
    path = save(tmp_path / "a.nii", np.ones((4, 3, 2), "int16"))
    content = bytearray(path.read_bytes())
    content[112:120] = struct.pack("<2f", 2, (1 << 24) + 2)  # to 2**24 + 4
    path.write_bytes(content)
    assert ps.from_nifti(path)[0].max() == (1 << 24) + 4
    content[112:120] = struct.pack("<2f", 1, 1 << 24)  # to 2**24 + 1
    path.write_bytes(content)
    with pytest.raises(ps.SpecError, match=r"has the value 16777217\.0, which float32 cannot hold"):
        ps.from_nifti(path)[0]
    assert ps.from_nifti(path, dtype=None)[0].max() == (1 << 24) + 1


def test_files_of_several_orientations_are_said_once(scans, tmp_path, caplog):
    ps.from_nifti(scans)
    assert not caplog.text
    nibabel.save(nibabel.Nifti1Image(VOLUMES[0], AFFINE * [[-1], [1], [1], [1]]), tmp_path / "left.nii")
    ds = ps.from_nifti([*scans, tmp_path / "left.nii"])
    list(ds)
    (record,) = caplog.records
    assert record.getMessage().startswith("from_nifti(): the axes of volumes point to RAS in 5 (first in ")
    assert "LAS in 1 (first in " in record.getMessage()
    assert "nibabel.as_closest_canonical" in record.getMessage()


def test_shapes_that_differ_are_none_in_the_spec(scans, tmp_path):
    save(tmp_path / "0.nii", np.ones((9, 6, 4), "int16"))
    ds = ps.from_nifti(str(tmp_path / "[01].nii*"))
    assert str(ds) == "from_nifti(0.nii and 1 more): 2 elements, (None, 6, 4) float32, random"
    with ds.padded_batch(2).loader("threads") as loader:
        assert next(iter(loader)).shape == (2, 9, 6, 4)
    with pytest.raises(ps.ArgumentError, match=r"have different shapes, \(None, 6, 4\) float32: concatenate\(\) the"):
        ds.patches((2, 2), axes=(1, 2))


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_patches_are_parts_of_volumes(scans, executor):
    scans = [scans[0], *scans[2:]]
    want = np.stack([values(path) for path in scans])
    ds = ps.from_nifti(scans).patches((3, 2, 4), stride=(2, 2, 1), axes=(1, 2, 3))
    assert len(ds) == 4 * 3 * 3
    with ds.shuffle(1).batch(5).loader(executor) as loader:
        found = sorted(patch.tobytes() for batch in loader for patch in batch)
    places = [(n, x, y) for n in range(4) for x in (0, 2, 4) for y in (0, 2, 4)]
    assert found == sorted(want[n, x : x + 3, y : y + 2].tobytes() for n, x, y in places)
    assert np.array_equal(ps.from_nifti(scans).patches((2, 7))[1], want[2:])


def test_patches_read_little(tmp_path, monkeypatch):
    read, path = [], save(tmp_path / "large.nii", np.zeros((64, 64, 32), "int16"))
    fileslice = nibabel.arrayproxy.fileslice
    monkeypatch.setattr(
        nibabel.arrayproxy, "fileslice", lambda *given, **options: read.append(given[1]) or fileslice(*given, **options)
    )
    ps.from_nifti(path).patches((8, 8, 4), axes=(1, 2, 3))[11]
    assert read == [(slice(0, 8), slice(8, 16), slice(12, 16))]


def test_compressed_volumes_have_no_patches(scans):
    with pytest.raises(ps.ArgumentError, match=r"1\.nii\.gz is compressed, so parts of it cannot be read alone\. Wri"):
        ps.from_nifti(scans).patches((2, 2), axes=(1, 2))
    with pytest.raises(ps.ArgumentError, match=r"not after from_nifti.* Its elements are no single arrays\."):
        ps.from_nifti(scans[0], affine=True).patches((2, 2), axes=(1, 2))


@pytest.mark.slow
def test_worker_processes_read_the_same(scans, workers_stay):
    with ps.from_nifti(scans).batch(2).loader("processes", workers=1) as loader:
        found = np.concatenate([batch.copy() for batch in loader])
    assert np.array_equal(found, np.stack([values(path) for path in scans]))


DAMAGES = {
    "cut": (lambda data: data[:-1], r"0\.nii \(element 0\) cannot be read: Expected 336 bytes, got 335 bytes"),
    "a part of a header": (lambda data: data[:200], r"0\.nii is no NIfTI file"),
    "empty": (lambda data: b"", r"0\.nii is no NIfTI file"),
    "gzip": (gzip.compress, r"0\.nii is no NIfTI file, or its name says otherwise"),
    "another kind": (lambda data: b"no volume" * 99, r"nibabel\.save\(nibabel\.load\(path\), 'scan\.nii'\)"),
    "zeros": (lambda data: bytes(len(data)), r"0\.nii is no NIfTI file"),
    "large": (
        lambda data: data[:42] + struct.pack("<h", 32767) + data[44:],
        r"0\.nii .*cannot be read: Expected",
    ),
    "below zero": (lambda data: data[:42] + struct.pack("<h", -3) + data[44:], r"0\.nii"),
    "zero": (
        lambda data: data[:42] + struct.pack("<h", 0) + data[44:],
        r"0\.nii cannot be read: its shape is \(0, 6, 4\)",
    ),
    "no type": (lambda data: data[:70] + struct.pack("<h", 999) + data[72:], r"0\.nii cannot be read"),
    "nowhere": (lambda data: data[:108] + struct.pack("<f", np.nan) + data[112:], r"0\.nii cannot be read"),
    "far away": (lambda data: data[:108] + struct.pack("<f", 1e9) + data[112:], r"0\.nii \(element 0\) cannot be read"),
}


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_files_are_named(scans, damage, text):
    scans[0].write_bytes(damage(scans[0].read_bytes()))
    with pytest.raises(ps.SourceError, match=text):
        ps.from_nifti(scans)[0]


def test_damage_of_compressed_values_is_told_at_the_read(scans):
    data = gzip.decompress(scans[1].read_bytes())
    scans[1].write_bytes(gzip.compress(data[:-9]))
    with pytest.raises(ps.SourceError, match=r"1\.nii\.gz \(element 1\) cannot be read: "):
        ps.from_nifti(scans)[1]


def test_a_name_that_says_gzip_and_a_pair_without_its_half_are_told(scans, tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(scans[0].read_bytes())
    with pytest.raises(ps.SourceError, match=r"a\.nii\.gz is no NIfTI file, or its name says otherwise"):
        ps.from_nifti(tmp_path / "a.nii.gz")
    nibabel.save(nibabel.Nifti1Pair(np.ones((2, 2, 2), "int16"), np.eye(4)), tmp_path / "a.img")
    (tmp_path / "a.img").unlink()
    with pytest.raises(ps.SourceError, match=r"a\.hdr .*cannot be read: .*No such file"):
        ps.from_nifti(tmp_path / "a.hdr")[0]


def test_a_mask_that_bzip2_packs_better_than_gzip_could_is_read(tmp_path):
    save(tmp_path / "a.nii.bz2", np.zeros((64, 64, 64), "uint8"))
    assert not ps.from_nifti(tmp_path / "a.nii.bz2")[0].any()


def test_a_file_of_freesurfer_is_no_file_with_a_wrong_name(tmp_path):
    nibabel.save(nibabel.MGHImage(VOLUMES[0], AFFINE), tmp_path / "a.mgz")
    with pytest.raises(ps.SourceError, match=r"a\.mgz is no NIfTI file, .* nibabel\.save\("):
        ps.from_nifti(tmp_path / "a.mgz")


def test_a_file_that_changes_is_told(scans):
    ds = ps.from_nifti(scans)
    tiles = ps.from_nifti(scans[0]).patches((2, 2), axes=(1, 2))
    assert tiles[0].shape == (2, 2, 4)
    save(scans[0], np.ones((7, 6, 5), "int16"))
    for each in (ds, tiles):
        with pytest.raises(
            ps.SourceError, match=r"0\.nii \(element 0\) is \(7, 6, 5\) now; it was \(7, 6, 4\) float32"
        ):
            each[0]
    Path(scans[0]).unlink()
    with pytest.raises(ps.SourceError, match=r"0\.nii cannot be read: No such file"):
        ds[0]


def test_a_volume_above_the_limit_is_refused_before_it_is_read(scans):
    ds = ps.from_nifti(scans)
    with (
        reading_with(RetryBudget(room_nbytes=1000)),
        pytest.raises(
            ps.SourceError, match=r"0\.nii \(element 0\) takes while it is read 1008 bytes, above the 1000 b"
        ),
    ):
        ds[0]


@pytest.mark.parametrize(
    ("given", "options", "error", "text"),
    [
        (["0.nii", "4d.nii"], {}, ps.SpecError, r"4d\.nii has other axes than .*0\.nii: \(7, 6, 4, 2\), \(7, 6, 4\)"),
        (["0.nii", "3.nii"], {"header": True}, ps.SpecError, r"3\.nii has other fields in the header than"),
        (
            ["2.nii"],
            {"dtype": "int16"},
            ps.SpecError,
            r"2\.nii has values of float64, which it cannot hold\. dtype=None",
        ),
        (["colours.nii"], {}, ps.SpecError, r"colours\.nii has values of .*which it cannot hold"),
        ([], {}, ps.ArgumentError, r"from_nifti\(\) got no files"),
        (["0.nii"], {"dtype": "no"}, ps.ArgumentTypeError, r"from_nifti\(dtype=\) is a dtype or None, got 'no'"),
        (["0.nii"], {"affine": "no"}, ps.ArgumentTypeError, r"from_nifti\(affine='no'\)"),
        (5, {}, ps.ArgumentTypeError, r"from_nifti\(\) needs paths, got an int"),
        (
            ["https://host/a.nii"],
            {},
            ps.ArgumentError,
            r"reads files of this machine, and https://host/a\.nii is a URL",
        ),
        (["gone.nii"], {}, ps.SourceError, r"gone\.nii cannot be read: No such file"),
    ],
)
def test_what_does_not_fit_is_refused(scans, tmp_path, monkeypatch, given, options, error, text):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "4d.nii", np.zeros((7, 6, 4, 2), "int16"))
    save(tmp_path / "colours.nii", np.zeros((7, 6, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")]))
    with pytest.raises(error, match=text):
        ps.from_nifti(given, **options)
