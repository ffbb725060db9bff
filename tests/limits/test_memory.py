"""Memory is bounded, known ahead, and independent of the size of the data. Fresh processes measure it.

Private + shared memory is the kernel's `RssAnon + RssShmem`; pages of files are counted apart.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.limits.cgroups import ENTER, drop_from_page_cache, memory_limit

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

MIB = 1 << 20
FRAME = (3, 50, 50)
FRAME_NBYTES = 60_000

MEASURE = """
import itertools, json, sys
import numpy as np
import penstock as ps

def usage():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    kib = {name: int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem", "RssFile")}
    return (kib["RssAnon"] + kib["RssShmem"]) * 1024, kib["RssFile"] * 1024

base, _ = usage()
peak = file_peak = 0

def sample():
    global peak, file_peak
    now, file = usage()
    peak, file_peak = max(peak, now - base), max(file_peak, file)
"""

PAIRS = """
frames = ps.from_npy(sys.argv[1], mapped=False if "not mapped" in sys.argv else None)
pairs = ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(32)
total = 0.0
"""

TRAIN = (
    MEASURE
    + PAIRS
    + """
with pairs.loader(sys.argv[2]) as loader:
    taken = 0
    while taken < 400:
        for x, y in loader:
            total += float(x[:, 0, 0, 0].sum() - y[:, 0, 0, 0].sum())
            taken += 1
            sample()
            if taken == 400:
                break
    report = loader.report()
print(json.dumps({
    "peak": peak, "file": file_peak, "ring": report.slot_count * report.slot_nbytes, "copied": report.copied,
    "projected": loader.projected_nbytes, "total": total,
}))
"""
)


def measured(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 300 MB, whose frame k begins with the number k."""
    path = tmp_path_factory.mktemp("film") / "film.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(5000, *FRAME))
    for start in range(0, 5000, 500):
        array[start : start + 500] = np.arange(start, start + 500)[:, None, None, None]
    array.flush()
    return path


@pytest.fixture(scope="module")
def endless_film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse file of 120 GB, which takes no room: 2,000,000 frames of zeros."""
    path = tmp_path_factory.mktemp("film") / "sparse.npy"
    header = {"descr": "<f8", "fortran_order": False, "shape": (2_000_000, *FRAME)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 2_000_000 * FRAME_NBYTES)
    if path.stat().st_blocks * 512 > MIB:
        pytest.skip("this file system has no sparse files")
    return path


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_peak_is_the_ring_and_an_allowance_whatever_the_size_of_the_file(
    fresh_python: Run, film: Path, endless_film: Path, executor: str
) -> None:
    """Beside that, pages of a file show that is at most a quarter of the memory, unless it is not mapped."""
    small, large = (measured(fresh_python(TRAIN, str(path), executor)) for path in (film, endless_film))
    read = measured(fresh_python(TRAIN, str(film), executor, "not mapped"))
    for result in (small, large, read):
        assert result["peak"] <= result["ring"] + 48 * MIB
        assert result["file"] <= 64 * MIB + (film.stat().st_size if result is small else 0)
        assert result["copied"] == 0
    assert small["ring"] == large["ring"] <= 6 * (2 * 32 * FRAME_NBYTES + 8192)
    assert small["projected"] == large["projected"]
    assert abs(small["peak"] - large["peak"]) <= 4 * MIB
    assert large["total"] == 0


def test_training_fits_a_third_of_the_file(fresh_python: Run, film: Path) -> None:
    # All counts: the interpreter, the ring, and the pages of the file that this process has the kernel read.
    drop_from_page_cache(film)
    limit = film.stat().st_size // 3
    with memory_limit(limit) as environment:
        script = (
            ENTER
            + TRAIN
            + """
if os.environ["LIMITED_BY"].startswith("/sys/fs/cgroup/memory/"):
    with open(os.path.dirname(os.environ["LIMITED_BY"]) + "/memory.max_usage_in_bytes") as used:
        assert int(used.read()) <= int(os.environ["LIMIT_NBYTES"])
"""
        )
        result = measured(fresh_python(script, str(film), "threads", env=environment))
    assert result["peak"] <= result["ring"] + 48 * MIB
    # Of each pair x is one less than y. An epoch has 157 batches, so 86 full ones are of the third.
    assert result["total"] == -(2 * 4999 + 86 * 32)


MAPPED = (
    MEASURE
    + """
rows = np.load(sys.argv[1], mmap_mode="r")
count, total = rows.shape[0], 0
with ps.from_npy(sys.argv[1]).shuffle(seed=1).batch(256).loader("threads") as loader:
    for epoch in range(2):
        for batch in loader:
            total += int(batch[:, 0].astype(np.int64).sum())
            sample()
    with open("/proc/self/maps") as maps:
        is_mapped = maps.read().count(sys.argv[1]) > 1
print(json.dumps({"peak": peak, "ring": loader.projected_nbytes, "total": total, "mapped": is_mapped}))
"""
)


@pytest.mark.parametrize("limit_share", [0.5, 8])
def test_small_rows_of_a_mapped_file_fit_into_less_memory_than_the_file(
    fresh_python: Run, tmp_path: Path, limit_share: float
) -> None:
    path, count = tmp_path / "rows.npy", 200_000
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(count, 256))
    array[:, 0] = np.arange(count)
    array.flush()
    drop_from_page_cache(path)
    with memory_limit(int(path.stat().st_size * limit_share)) as environment:
        result = measured(fresh_python(ENTER + MAPPED, str(path), env=environment))
    assert result["total"] == 2 * sum(range(count))
    assert result["peak"] <= result["ring"] + 48 * MIB
    assert result["mapped"]


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_memory_is_flat_over_200_epochs(fresh_python: Run, executor: str) -> None:
    done = fresh_python(
        MEASURE
        + """
dataset = ps.from_arrays(np.zeros((96, 100, 100), np.float32)).shuffle(1).random_map(lambda x, rng: x + 1).batch(8)
with dataset.loader(sys.argv[1]) as loader:
    for epoch in range(200):
        for batch in loader:
            pass
        del batch
        if epoch == 19:
            early, _ = usage()
    late, _ = usage()
    state = loader.get_state()
print(json.dumps({"growth": late - early, "epoch": state["epoch"]}))
""",
        executor,
    )
    result = measured(done)
    assert result["epoch"] == 200
    assert result["growth"] <= 1 * MIB


def test_memory_is_flat_over_many_loaders(fresh_python: Run) -> None:
    done = fresh_python(
        MEASURE
        + """
import gc
gc.disable()
data = np.zeros((64, 100, 100), np.float32)
for number in range(120):
    loader = ps.from_arrays(data).shuffle(number).map(lambda x: x + 1).batch(8).loader("threads", workers=2)
    batches = iter(loader)
    next(batches)
    if number % 2:
        loader.close()
    del loader, batches
    if number == 39:
        early, _ = usage()
late, _ = usage()
print(json.dumps({"growth": late - early}))
"""
    )
    # A dropped loader's threads end in their own time; a few rings of 2 MB may still be there.
    assert measured(done)["growth"] <= 8 * MIB


def test_memory_of_a_mapped_run_is_below_what_was_projected(fresh_python: Run, film: Path) -> None:
    done = fresh_python(
        MEASURE
        + PAIRS
        + """
frames = ps.from_npy(sys.argv[1]).shuffle(2).map(lambda x: x.astype(np.float32)).batch(64)
with frames.loader("threads", workers=2) as loader:
    for batch in itertools.islice(loader, 60):
        sample()
    print(json.dumps({"peak": peak, "projected": loader.projected_nbytes}))
""",
        str(film),
    )
    result = measured(done)
    assert result["peak"] <= result["projected"] + 48 * MIB
