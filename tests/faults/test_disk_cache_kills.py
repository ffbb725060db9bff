"""Processes that share a disk cache, and die while they fill it: no wrong byte, one download, nothing left behind.

`PENSTOCK_KILLS` is the number of processes to kill.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget
from penstock.files import _blocks
from penstock.files._diskcache import CacheFolder, disk_nbytes

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("PENSTOCK_KILLS", "9"))
FILE_COUNT, FILE_NBYTES, RANGE_NBYTES = 5, 1_000_000, 40_000
RANGES = [(number, start) for number in range(FILE_COUNT) for start in range(0, FILE_NBYTES, RANGE_NBYTES)]


class File:
    """A remote file. Each request is a line in a log that processes share."""

    options, version, nbytes = None, "tag", FILE_NBYTES

    def __init__(self, number: int, log: Path) -> None:
        self.path = self.url = f"s3://bucket/{number}"
        self._log, self._data = log, np.random.default_rng(number).bytes(FILE_NBYTES)

    def fetch(self, start: int, stop: int | None) -> bytes:
        with open(self._log, "a") as log:
            log.write(f"{self.path} {start}\n")
        return self._data[start:stop]


def read_all(folder: Path, limit: int, seed: int) -> None:
    """Reads all ranges in an order of its own, and compares their bytes."""
    cache, files = ps.DiskCache(folder, limit), [File(number, folder / "log") for number in range(FILE_COUNT)]
    opened = cache.open()
    assert opened is not None
    sizes = np.full(FILE_COUNT, FILE_NBYTES)
    reader = _blocks.BlockReader(cache, opened, files.__getitem__, sizes, files.__getitem__, 1 << 27)
    order = random.Random(seed).sample(RANGES, len(RANGES))
    for at in range(0, len(order), 10):
        some = np.array(order[at : at + 10])
        ranges = some[:, 0], some[:, 1], np.full(len(some), RANGE_NBYTES)
        reader.announce(*ranges, 60.0)
        wanted = [(number, start, np.zeros(RANGE_NBYTES, np.uint8)) for number, start in some.tolist()]
        reader.read(wanted, RetryBudget(), reader.spans(*ranges, 1))
        for number, start, place in wanted:
            assert place.tobytes() == files[number]._data[start : start + RANGE_NBYTES]
    reader.close()


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from penstock.files import _blocks
from penstock.files import _fetch
from test_disk_cache_kills import read_all
_blocks.PATIENCE_S, _fetch.HEDGED_SHARE = 3600.0, 0.0  # a busy machine must not make second requests
folder, limit, seed, rounds = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(rounds)):
    read_all(Path(folder), int(limit), int(seed) + number)
"""


def started(folder: Path, limit: int, seed: int, rounds: int = 1) -> "subprocess.Popen[str]":
    script = SCRIPT.format(here=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(limit), str(seed), str(rounds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: "subprocess.Popen[str]") -> None:
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said


def checked(folder: Path) -> Iterator[int]:
    """Opens the cache as the next start does; yields the size of each block."""
    opened = CacheFolder(str(folder))
    assert not os.listdir(opened._writing)
    folders = {name for name in os.listdir(opened.path) if len(name) == 16}
    blocks, _ = opened.blocks(folders)
    for name in blocks:
        assert os.path.getsize(f"{opened.path}/{name.path}") == name.stop - name.start + 16
        yield disk_nbytes(name)
    assert sum(map(disk_nbytes, blocks)) == opened.nbytes
    left = Counter(os.path.basename(root) for root, _, names in os.walk(opened.path) for name in names)
    assert left.total() == len(blocks) + 1  # and the file of the locks


def test_four_processes_download_each_block_once(tmp_path: Path) -> None:
    processes = [started(tmp_path, 10**9, seed) for seed in (1, 1, 1, 2)]
    for process in processes:
        go(process)
    for process in processes:
        end(process)
    assert len(list(checked(tmp_path))) == len(RANGES)
    asked = Counter((tmp_path / "log").read_text().splitlines())
    assert max(asked.values()) == 1


def test_four_processes_stay_within_the_limit(tmp_path: Path) -> None:
    limit = len(RANGES) * 45_056 // 2
    processes = [started(tmp_path, limit, seed, rounds=2) for seed in range(4)]
    for process in processes:
        go(process)
    for process in processes:
        end(process)
    assert sum(checked(tmp_path)) <= limit


def test_killed_at_any_moment_no_byte_is_wrong_and_nothing_is_left(tmp_path: Path) -> None:
    rng, kills, round_ = random.Random(5), 0, 0
    while kills < KILLS:
        folder = tmp_path / str(round_)
        folder.mkdir()
        limit = 10**9 if round_ % 2 else len(RANGES) * 45_056 // 2
        processes = [started(folder, limit, seed, rounds=3) for seed in (1, 1, 2, 3)]
        for process in processes:
            go(process)
        for process in processes[1:]:
            # A part of the data is there: so many lines of the log, at another moment each time.
            wanted = rng.randrange(1, len(RANGES))
            while process.poll() is None and lines_of(folder / "log") < wanted:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
        end(processes[0])  # claims of the dead hold nobody up
        list(checked(folder))
        read_all(folder, limit, 9)
        list(checked(folder))
        round_ += 1


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
