"""What the kernel holds in memory is read from there, and nobody can make it shorter under a mapping."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._spec import Spec
from penstock.sources import _cacheopen, npy
from penstock.sources._cachefiles import MemoryFiles
from penstock.sources.arrays import ArraySource
from penstock.sources.npy import mapped, seal_size

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")

ROWS = np.arange(600, dtype="<i4").reshape(100, 6)


@pytest.fixture
def descriptor() -> Iterator[int]:
    """Of a `.npy` file in memory, which takes seals and has none."""
    number = os.memfd_create("rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(number, "wb", closefd=False) as file:
        np.save(file, ROWS)
    yield number
    os.close(number)


def path_of(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def test_a_sealed_file_is_mapped_and_keeps_its_size(descriptor: int) -> None:
    file = npy.describe(path_of(descriptor))
    assert mapped(file) is None  # anybody could make it shorter still
    seal_size(descriptor)
    rows = mapped(file)
    assert rows is not None
    assert not rows.flags.writeable
    assert (rows == ROWS).all()
    with pytest.raises(PermissionError):
        os.truncate(path_of(descriptor), 200)
    os.pwrite(descriptor, np.int32(-1).tobytes(), file.offset)  # what is written later is seen
    assert rows[0, 0] == -1


def test_a_file_on_a_disk_takes_no_seal_and_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    with path.open("r+b") as file:
        seal_size(file.fileno())
    os.truncate(path, 200)
    np.save(path, ROWS)
    assert mapped(npy.describe(path)) is None


def test_a_cache_in_memory_is_read_through_a_mapping_and_one_on_disk_is_not(tmp_path: Path) -> None:
    memory = MemoryFiles(Spec.of(ps.ArraySpec((6,), "<i4")), 100, None)
    (rows,) = memory.files.leaves
    assert rows is not None
    assert isinstance(_cacheopen._rows_of(rows), ArraySource)
    for file in (rows, memory.files.index):
        with pytest.raises(PermissionError):
            os.truncate(file.path, 0)
    list(ps.from_arrays(ROWS).cache(tmp_path))
    (path,) = tmp_path.glob("*/0.npy")
    assert not isinstance(_cacheopen._rows_of(npy.describe(path)), ArraySource)


def test_a_stream_in_memory_is_sealed_when_all_is_there() -> None:
    memory = MemoryFiles(Spec.of(ps.ArraySpec((6,), "<i4")), None, 1 << 20)
    cache = _cacheopen.OpenCacheFiles(memory.files)
    for rows in (ROWS[:40], ROWS):  # the first reading ends early, and the second begins anew
        recorder = cache.recorder()
        assert recorder is not None
        for row in rows:
            recorder.put([row])
        if len(rows) == len(ROWS):
            recorder.finish()
        recorder.close()
    whole = cache.whole()
    assert whole is not None
    assert whole.length == 100
    (file,) = whole.files.leaves
    assert file is not None
    kept = mapped(file)
    assert kept is not None
    assert (kept == ROWS).all()
    cache.close()
