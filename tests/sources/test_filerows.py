import dataclasses
import errno
import gc
import itertools
import os
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock import native
from penstock.base._errors import SourceError
from penstock.plan._source import Read
from penstock.sources import _mapped
from penstock.sources.files import FileRows
from penstock.sources.npy import StridedFile, describe
from tests.native.engines import MODULES


@pytest.fixture(params=["native", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations of the copy engine; the tests that take it hold for each."""
    if request.param == "numpy":
        for name in ("copy", "announce", "Engine"):
            monkeypatch.setattr(native, name, getattr(MODULES["numpy"], name))
    elif native.implementation() != "native":
        pytest.skip("the extension is not built")
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ds.npy"


def saved(path: Path, array: np.ndarray) -> FileRows:
    np.save(path, array)
    return FileRows(describe(path))


def numbered(shape: tuple[int, ...], dtype: str = "i4", order: str = "C") -> np.ndarray:
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape, order=order)


def taken(rows: FileRows, indices: object) -> np.ndarray:
    indices = np.asarray(indices, np.int64)
    out = np.empty((len(indices), *rows.handle.row_shape), rows.handle.dtype)
    rows.gather([Read(indices, [out], slice(0, len(indices)))])
    return out


DTYPES: list[Any] = ["f8", ">i4", "?", "S3", "<U10", "M8[s]", [("a", "i1"), ("b", ">f4", (2,))]]


@pytest.mark.parametrize("dtype", ["f8", ">i4", [("a", "i1"), ("b", ">f4", (2,))]])
@given(data=st.data())
@settings(max_examples=30)
def test_rows_a_little_apart_are_those_of_numpy(tmp_path_factory: Any, dtype: Any, data: st.DataObject) -> None:
    array = np.arange(30_000).astype("i4" if isinstance(dtype, list) else dtype).reshape(10_000, 3)
    array = np.resize(array.view(np.uint8).ravel(), (10_000, 3 * np.dtype(dtype).itemsize)).view(dtype)
    rows = saved(tmp_path_factory.mktemp("near") / "ds.npy", array)
    windows = st.tuples(st.integers(0, 5_000), st.integers(1, 40), st.integers(-3, 60))
    found = [
        np.arange(count) * step + start for start, count, step in data.draw(st.lists(windows, min_size=1, max_size=30))
    ]
    indices = np.concatenate([[7, 9, 11], *found]) % len(array)
    out = np.zeros((len(indices), *array.shape[1:]), array.dtype)
    places = np.random.default_rng(0).permutation(len(indices)) if data.draw(st.booleans()) else slice(0, len(indices))
    rows.gather([Read(indices, [out], places)])
    assert out[places].tobytes() == array[indices].tobytes()
    rows.close()


@pytest.mark.parametrize("part", [slice(None, None, -1), slice(None, None, 3), slice(None, None, -3)])
def test_rows_a_little_apart_of_a_part_of_a_file(path: Path, part: slice) -> None:
    np.save(path, numbered((999, 4)))
    array = np.load(path, mmap_mode="r")[part]
    handle = StridedFile.of_memmap(array)
    assert handle is not None
    rows = FileRows(handle)
    for indices in (np.arange(0, 300, 3), np.arange(300, 0, -3), np.array([5, 7, 9, 9, 2, 330])):
        np.testing.assert_array_equal(taken(rows, indices), array[indices])


@pytest.mark.parametrize("shape", [(40,), (9000,), (40, 3, 5), (40, 0), (40, 1, 4), (1, 4), (700, 2)])
def test_rows_are_those_of_numpy(tmp_path: Path, way: str, shape: tuple[int, ...]) -> None:
    for number, (dtype, order) in enumerate(itertools.product(DTYPES, "CF")):
        _assert_rows_are_those_of_numpy(tmp_path / f"{number}.npy", shape, dtype, order)


def _assert_rows_are_those_of_numpy(path: Path, shape: tuple[int, ...], dtype: Any, order: Any) -> None:
    rng = np.random.default_rng(0)
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    content = rng.integers(0, 2, nbytes, np.uint8)
    if np.dtype(dtype).kind == "U":
        content.view(f"{np.dtype(dtype).str[0]}u4")[...] %= 1 << 20  # characters
    array = np.frombuffer(content.tobytes(), dtype).reshape(shape)
    rows = saved(path, np.asarray(array, order=order))
    reads: list[Read] = []
    expected = []
    for count in (0, 1, 30, 600):
        indices = rng.integers(0, len(array), count)
        out = np.zeros((count + 3, *shape[1:]), dtype)
        want = out.copy()
        where = slice(1, 1 + count) if count == 30 else rng.permutation(count + 3)[:count]
        want[where] = array[indices]
        reads.append(Read(indices, [out], where))
        expected.append(want)
    rows.gather(reads)
    for read, want in zip(reads, expected, strict=True):
        (out,) = read.arrays
        assert out.tobytes() == want.tobytes(), (dtype, order)
        out[...] = np.zeros((), dtype)
    for read, want in zip(reads, expected, strict=True):
        rows.gather([read])
        assert read.arrays[0].tobytes() == want.tobytes(), (dtype, order)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_any_requests_together_are_each_as_if_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3), "row shape"))
    array = numbered((20, *shape), order=data.draw(st.sampled_from("CF")))
    path = tmp_path_factory.getbasetemp() / "any.npy"
    rows = saved(path, array)
    reads = []
    for _ in range(data.draw(st.integers(1, 3), "reads")):
        indices = data.draw(st.lists(st.integers(0, 19), max_size=40), "indices")
        where = data.draw(st.permutations(range(len(indices))), "rows")
        out = np.full((len(indices), *shape), -1, array.dtype)
        reads.append(Read(np.array(indices, np.int64), [out], np.array(where, np.int64)))
    rows.gather(reads)
    for indices, (out,), where, _ in reads:
        np.testing.assert_array_equal(out[where], array[indices])


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "step": lambda mm: mm[::2],
    "columns": lambda mm: mm[:, 1:3],
    "transposed": lambda mm: mm.T,
    "tail": lambda mm: mm[5:],
    "reversed": lambda mm: mm[::-1],
    "reversed both ways": lambda mm: mm[::-3, ::-1],
    "broadcast": lambda mm: np.broadcast_to(mm[3], (9, *mm.shape[1:])),
    "windows": lambda mm: np.lib.stride_tricks.sliding_window_view(mm, 3, axis=0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_a_memmap_are_read_as_they_are(path: Path, way: str, view: Callable[[np.ndarray], np.ndarray]) -> None:
    np.save(path, numbered((30, 4, 6)))
    expected = view(np.load(path, mmap_mode="r"))
    handle = StridedFile.of_memmap(expected)
    assert handle is not None
    indices = np.random.default_rng(0).integers(0, len(expected), 100)
    rows = FileRows(handle)
    np.testing.assert_array_equal(taken(rows, indices), expected[indices])
    for index in range(len(expected)):
        np.testing.assert_array_equal(taken(rows, [index]), expected[[index]])


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_file_shortened_while_open_names_the_first_missing_element(path: Path, way: str) -> None:
    rows = saved(path, numbered((1000, 100)))
    assert taken(rows, [999, 0]).shape == (2, 100)
    os.truncate(path, 128 + 400 * 600 + 1)
    assert (taken(rows, [599, 3, 100, 0])[:, 0] == [59900, 300, 10000, 0]).all()
    message = r"ds\.npy\[%d\] .* was shortened .* from 400,128 to 240,129 bytes; its array ends at byte 400,128"
    with pytest.raises(SourceError, match=message % 900):
        taken(rows, [5, 900, 600, 10, 100])
    with pytest.raises(SourceError, match=message % 600):
        taken(rows, range(500, 1000))
    with pytest.raises(SourceError, match=message % 600):
        taken(rows, [600])


def test_fortran_file_shortened_while_open_is_an_error(path: Path, way: str) -> None:
    rows = saved(path, numbered((1000, 100), order="F"))
    taken(rows, [1])
    os.truncate(path, 300_000)
    with pytest.raises(SourceError, match=r"ds\.npy\[77\] .* from 400,128 to 300,000 bytes"):
        taken(rows, [77])


def test_file_shortened_before_it_is_opened_is_an_error(path: Path) -> None:
    rows = saved(path, numbered((1000, 100)))
    os.truncate(path, 400_000)
    with pytest.raises(SourceError, match=r"ds\.npy\[3\] .* from 400,128 to 400,000 bytes"):
        taken(rows, [3])


@pytest.mark.parametrize("opened_before", [True, False])
def test_replaced_file_is_an_error(path: Path, opened_before: bool) -> None:
    rows = saved(path, numbered((10, 10)))
    if opened_before:
        taken(rows, [1])
    np.save(path.with_name("new.npy"), numbered((10, 10)))
    os.replace(path.with_name("new.npy"), path)
    message = rf"ds\.npy\[7\] .* was replaced .*inode {rows.handle.st_ino} then, \d+ now.* Make the dataset again"
    with pytest.raises(SourceError, match=message):
        taken(rows, [7, 1])


@pytest.mark.parametrize("opened_before", [True, False])
def test_deleted_file_is_an_error(path: Path, opened_before: bool) -> None:
    rows = saved(path, numbered((10, 10)))
    if opened_before:
        taken(rows, [1])
    path.unlink()
    with pytest.raises(SourceError, match=r"ds\.npy\[7\] .*: No such file or directory.*put it back"):
        taken(rows, [7, 1])
    rows.advise(np.array([1]))


def test_a_limit_of_open_files_is_not_taken_for_a_missing_file(path: Path) -> None:
    rows = saved(path, numbered((10, 10)))
    text = str(rows.handle.is_gone(7, OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    assert re.search(r"Too many open files\. The system allows .*ulimit -n, or join small files\.$", text)
    assert "put it back" not in text


def test_changes_in_place_are_read(path: Path, way: str) -> None:
    rows = saved(path, numbered((10, 10)))
    taken(rows, [1])
    np.load(path, mmap_mode="r+")[1] = 5
    assert (taken(rows, [1]) == 5).all()


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_threads_at_once_get_the_same_bytes(path: Path, way: str) -> None:
    array = numbered((3000, 50))
    rows = saved(path, array)
    wrong: list[int] = []
    start = threading.Barrier(8)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(20):
            indices = rng.integers(0, 3000, 300)
            rows.advise(indices)
            if not (taken(rows, indices) == array[indices]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def open_count(path: Path) -> int:
    return sum(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_descriptor_is_there_from_the_first_read_to_close_or_the_end(path: Path) -> None:
    rows = saved(path, numbered((10, 10)))
    assert open_count(path) == 0
    taken(rows, [1])
    assert open_count(path) == 1
    rows.close()
    assert open_count(path) == 0
    rows = FileRows(rows.handle)
    taken(rows, [1])
    del rows
    gc.collect()
    assert open_count(path) == 0


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_closed_is_closed(path: Path) -> None:
    rows = saved(path, numbered((10, 10)))
    rows.close()
    rows.close()
    with pytest.raises(SourceError, match=r"ds\.npy\[1\] cannot be read: .* was closed"):
        taken(rows, [1])
    rows.advise(np.array([1]))


@pytest.mark.parametrize(
    ("errno_", "text"),
    [(errno.EIO, "Input/output error"), (errno.ESTALE, "Stale file handle"), (0, "Input/output error")],  # 0: SIGBUS
)
def test_an_error_of_the_device_names_the_element(
    path: Path, monkeypatch: pytest.MonkeyPatch, errno_: int, text: str
) -> None:
    rows = saved(path, numbered((10, 10)))

    def failing(_: object) -> None:
        raise native.CopyError("ds", 4, errno_, 40, 0)

    monkeypatch.setattr(native, "copy", failing)
    with pytest.raises(SourceError, match=rf"ds\.npy\[4\] cannot be read: {text}, in .*ds\.npy.*system's log"):
        taken(rows, [4])


def test_advice_for_any_rows_does_no_harm(path: Path, way: str) -> None:
    rows = saved(path, numbered((1000, 100), order="F"))
    for indices in ([], [3], [999, 0, 3, 3], list(range(0, 1000, 7))):
        rows.advise(np.array(indices, np.int64))
    np.testing.assert_array_equal(taken(rows, [3]), numbered((1000, 100), order="F")[[3]])


def test_an_open_file_does_not_travel_but_its_handle_does(path: Path) -> None:
    rows = saved(path, numbered((10, 10)))
    with pytest.raises(TypeError, match="send its handle"):
        pickle.dumps(rows)
    assert (taken(FileRows(pickle.loads(pickle.dumps(rows.handle))), [2]) == numbered((10, 10))[2]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_reads_by_the_same_descriptor(path: Path, fresh_python: Callable[..., object]) -> None:
    np.save(path, numbered((1000, 10)))
    script = """
import os, sys, numpy as np
from penstock.plan._source import Read
from penstock.sources import _mapped
from penstock.sources.files import FileRows
from penstock.sources.npy import describe
rows = FileRows(describe(sys.argv[1]))
indices = np.arange(0, 1000, 7)
def right():
    out = np.zeros((len(indices), 10), "i4")
    rows.gather([Read(indices, [out], slice(0, len(indices)))])
    return (out[:, 0] == indices * 10).all()
assert right()
child = os.fork()
if child == 0:
    os._exit(0 if right() else 1)
assert os.waitpid(child, 0)[1] == 0
assert right()
"""
    done = fresh_python(script, str(path))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_resident_memory_does_not_grow_with_what_is_read(path: Path, fresh_python: Callable[..., object]) -> None:
    saved(path, np.zeros((1, 4096), np.float16))
    handle = describe(path)
    os.truncate(path, 128 + 8192 * 40_000)  # 328 MB, sparse
    handle = dataclasses.replace(handle, shape=(40_000, 4096), st_size=path.stat().st_size)
    script = """
import pickle, sys, numpy as np
from penstock.plan._source import Read
from penstock.sources import _mapped
from penstock.sources.files import FileRows
def resident_kib():
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem"))
rows = FileRows(pickle.loads(bytes.fromhex(sys.argv[1])))
out = np.ones((256, 4096), np.float16)
order = np.random.default_rng(0).permutation(40_000)
rows.gather([Read(order[:256], [out], slice(0, 256))])
before = resident_kib()
for start in range(0, 39_936, 256):
    rows.gather([Read(order[start : start + 256], [out], slice(0, 256))])
assert not out.any()
print(resident_kib() - before)
"""
    done = fresh_python(script, pickle.dumps(handle).hex())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2048


@pytest.mark.skipif(native.implementation() != "native" or not Path("/proc/self/maps").exists(), reason="who maps")
@pytest.mark.parametrize(
    ("mapped", "row_nbytes", "share", "is_mapped"),
    [
        (None, 800, 1, True),
        (None, 8_000, 1, True),
        (None, 40_000, 1, True),
        (None, 800, 0, True),
        (None, 8_000, 0, False),
        (True, 40_000, 0, True),
        (False, 800, 1, False),
    ],
)
def test_a_file_is_mapped_as_was_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mapped: bool | None,
    row_nbytes: int,
    share: float,
    is_mapped: bool,
) -> None:
    monkeypatch.setattr(_mapped, "RESIDENT_SHARE", share)
    path = tmp_path / "rows.npy"
    rows = np.random.default_rng(0).integers(0, 255, (40, row_nbytes), np.uint8)
    np.save(path, rows)
    with ps.from_npy(path, mapped=mapped).batch(8).loader("threads") as loader:
        batches = iter(loader)
        assert np.array_equal(next(batches), rows[:8])
        assert (str(path) in Path("/proc/self/maps").read_text()) is is_mapped
        assert np.array_equal(np.concatenate(list(batches)), rows[8:])


def test_mapped_is_a_bool() -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"from_npy\(mapped=\) takes True, False or None, got 'auto'"):
        ps.from_npy("x.npy", mapped="auto")  # type: ignore[arg-type]
