import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._errors import SourceError
from penstock.sources.npy import StridedFile, describe

DTYPES = ["f8", ">i4", "?", "f2", "c16", "S3", "<U10", "M8[s]", [("a", "i1"), ("b", ">f4", (2,))], "V5"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ds.npy"


def saved(path: Path, array: np.ndarray) -> StridedFile:
    np.save(path, array)
    return describe(path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7,), (4, 3, 5), (3, 0), (5, 1, 2), (0, 2)])
def test_header_is_read_as_numpy_reads_it(path: Path, dtype: object, order: str, shape: tuple[int, ...]) -> None:
    handle = saved(path, np.zeros(shape, dtype, order=order))
    array = np.load(path)
    assert (handle.path, handle.shape, handle.dtype) == (str(path), array.shape, array.dtype)
    assert handle.offset == path.stat().st_size - array.nbytes
    assert handle.row_nbytes * len(array) == array.nbytes
    if array.size:
        strides = np.memmap(path, array.dtype, "r", handle.offset, shape, order=order).strides
        assert all(a == b for a, b, n in zip(handle.strides, strides, shape, strict=True) if n > 1)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_the_format(path: Path, version: tuple[int, int]) -> None:
    fields = [("größe" if version == (3, 0) else "size", "f4")]
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.zeros((3, 2), fields), version=version)
    assert describe(path).dtype == np.dtype(fields)


def test_shape_written_by_python_2(path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(24))
    with pytest.warns(UserWarning, match="created on Python 2"):
        assert describe(path).shape == (2, 3)


def test_handle_is_small_equal_and_survives_pickling(path: Path) -> None:
    handle = saved(path, np.zeros((100, 50)))
    copy = pickle.loads(pickle.dumps(handle))
    assert copy == handle
    assert hash(copy) == hash(describe(path))
    assert len(pickle.dumps(handle)) < 600


def test_relative_path_becomes_absolute(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(path, np.zeros(3))
    monkeypatch.chdir(path.parent)
    assert describe("ds.npy").path == str(path)


@pytest.mark.parametrize(
    ("strides", "is_whole"),
    [((400, 40, 4), True), ((4, 40, 400), False), ((800, 80, 4), False), ((0, 40, 4), True), ((0, 40, -4), False)],
)
def test_rows_are_whole_if_their_bytes_are_next_to_each_other(strides: tuple[int, ...], is_whole: bool) -> None:
    handle = StridedFile("/x", 0, (9, 10, 10), np.dtype("f4"), strides, 0, 0, 0)
    assert handle.has_whole_rows == is_whole


def test_extent_covers_negative_strides() -> None:
    handle = StridedFile("/x", 1000, (3, 4), np.dtype("f4"), (-100, 4), 0, 0, 0)
    assert handle.extent == (800, 1016)


VIEWS = {
    "whole": lambda mm: mm,
    "tail": lambda mm: mm[5:],
    "step": lambda mm: mm[::2],
    "reversed": lambda mm: mm[::-1],
    "columns": lambda mm: mm[:, 1:3],
    "reversed columns": lambda mm: mm[3:, ::-2],
    "transposed": lambda mm: mm.T,
    "view of a view": lambda mm: mm[2:][::3, 1],
    "plain array": lambda mm: np.asarray(mm)[1:],
    "other dtype": lambda mm: mm.view("u2"),
    "broadcast": lambda mm: np.broadcast_to(mm[3], (4, *mm.shape[1:])),
    "windows": lambda mm: np.lib.stride_tricks.sliding_window_view(mm, 3, axis=0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("offset", [0, 128, 4096, 5000])
def test_view_of_a_memmap_is_found_in_the_file(path: Path, view: object, offset: int) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(offset + 12 * 5 * 4 * 4))
    expected = view(np.memmap(path, "i4", "r", offset, (12, 5, 4)))  # type: ignore[operator]
    handle = StridedFile.of_memmap(expected)
    assert handle is not None
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    found = np.ndarray(handle.shape, handle.dtype, whole, handle.offset, handle.strides)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["r", "r+", "w+"])
def test_memmap_in_shared_modes_is_its_file(path: Path, mode: str) -> None:
    path.write_bytes(bytes(80))
    assert StridedFile.of_memmap(np.memmap(path, "f8", mode, shape=(10,))) is not None


def test_what_is_not_a_file_any_more_has_no_handle(path: Path) -> None:
    path.write_bytes(bytes(80))
    mm = np.memmap(path, "f8", "r")
    assert StridedFile.of_memmap(np.zeros(3)) is None
    assert StridedFile.of_memmap(mm[[1, 2]]) is None
    assert StridedFile.of_memmap(np.asarray(mm[[1, 2]])) is None
    assert StridedFile.of_memmap(mm.copy()) is None
    assert StridedFile.of_memmap(np.memmap(path, "f8", "c")) is None
    path.unlink()
    assert StridedFile.of_memmap(mm) is None
    path.write_bytes(bytes(79))
    assert StridedFile.of_memmap(mm) is None


def bytes_of(array: np.ndarray, path: Path) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def test_empty_file_is_said_to_be_empty(path: Path) -> None:
    path.touch()
    with pytest.raises(SourceError, match=r"/ds\.npy is not a \.npy file that can be read: .* got 0\. Give a file"):
        describe(path)


def test_another_format_is_named_by_its_first_bytes(path: Path) -> None:
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(SourceError, match=r"not a \.npy file that can be read: .*got b'\\x89HDF.*np\.save"):
        describe(path)


def test_npz_is_told_apart(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(SourceError, match=r"got b'PK.*of an archive by np\.savez, save each array alone"):
        describe(path)


@pytest.mark.parametrize("length", [3, 6, 9, 40])
def test_truncated_header_says_how_much_is_there(path: Path, length: int) -> None:
    path.write_bytes(bytes_of(np.zeros(3), path)[:length])
    with pytest.raises(SourceError, match=r"not a \.npy file that can be read: EOF: .*expected \d+ bytes got \d+\."):
        describe(path)


def test_truncated_data_says_which_rows_are_whole(path: Path) -> None:
    path.write_bytes(bytes_of(np.zeros((10, 100)), path)[:-1000])
    message = (
        r"shape \(10, 100\) of float64 takes 8,000 bytes after the header and 7,000 are there, so 8 of 10 "
        r"rows are whole\."
    )
    with pytest.raises(SourceError, match=message):
        describe(path)


def test_truncated_fortran_data_has_no_whole_row(path: Path) -> None:
    path.write_bytes(bytes_of(np.asfortranarray(np.zeros((10, 100))), path)[:-1])
    with pytest.raises(SourceError, match="7,999 are there, so no row is whole, because it is in Fortran order"):
        describe(path)


@pytest.mark.parametrize("dtype", [object, [("a", "f8"), ("b", object)]])
def test_objects_are_refused_and_never_unpickled(path: Path, dtype: object) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(path.parent / "exploded"),)

    array = np.zeros(2, dtype)
    array[0] = (1, Bomb()) if array.dtype.names else Bomb()
    np.save(path, array, allow_pickle=True)
    with pytest.raises(SourceError, match=r"holds Python objects .*np\.stack\(list\(objects\)\)"):
        describe(path)
    assert not (path.parent / "exploded").exists()


def test_single_value_is_refused(path: Path) -> None:
    with pytest.raises(SourceError, match=r"single value \(shape \(\)\).*np\.save\('.*/ds\.npy', value\[None\]\)"):
        saved(path, np.array(1.0))


@pytest.mark.parametrize("descr", ["<U0", "|S0", "|V0"])
def test_values_of_no_bytes_are_refused(path: Path, descr: str) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (3,)})
    with pytest.raises(SourceError, match=r"holds values of no bytes at all \(dtype .*\), .* such as 'U1'"):
        describe(path)


@pytest.mark.parametrize(("version", "text"), [(b"\x09\x00", r"9\.0"), (b"\x01\x80", r"1\.128")])
def test_unknown_version_is_refused(path: Path, version: bytes, text: str) -> None:
    path.write_bytes(b"\x93NUMPY" + version + bytes(100))
    expected = rf"it is of version {text}, and 1\.0, 2\.0 and 3\.0 are known"
    with pytest.raises(SourceError, match=expected):
        describe(path)


@pytest.mark.parametrize(
    "header",
    [
        b"no literal",
        b"{'descr': '<f4'}",
        b"{'descr': '<f4', 'fortr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        b"{'descr': 'x9', 'fortran_order': False, 'shape': (2,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        b"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
        b"{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (2,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (4722366482869645213696, 0)}",
        b"[1]",
        b"(" * 5000,
    ],
)
def test_damaged_header_is_shown(path: Path, header: bytes) -> None:
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(24))
    with pytest.raises(SourceError, match=r"/ds\.npy is not a \.npy file that can be read: .*np\.save"):
        describe(path)


def test_absurd_header_length_is_refused(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + bytes(100))
    with pytest.raises(SourceError, match="expected 2147483648 bytes got 100"):
        describe(path)


def test_missing_file_is_named(path: Path) -> None:
    with pytest.raises(SourceError, match=r"ds\.npy cannot be read: No such file or directory\.$"):
        describe(path)


@pytest.mark.parametrize("verb", ["from_npy", "from_tar"])
def test_a_pipe_is_refused_and_not_waited_for(verb, tmp_path):
    os.mkfifo(tmp_path / "data")
    with pytest.raises(ps.SourceError, match=r"data is a pipe, a socket or a device, .* Write what it gives to a file"):
        list(getattr(ps, verb)(tmp_path / "data"))
