"""Memory of streams stays within projection and allowance, and flat over epochs. Fresh processes measure it."""

from pathlib import Path

import pytest

from tests.limits.test_memory import MIB, Run, film, measured

__all__ = ["film"]  # a fixture

pytestmark = pytest.mark.slow

EPOCHS = """
import json, os, sys
import numpy as np
import penstock as ps
from penstock.testing._assertions import child_processes

def usage():
    # Proportional, so that what several processes map counts once.
    total = 0
    for pid in [os.getpid(), *child_processes()]:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            lines = dict(line.split(":", 1) for line in rollup if ":" in line)
        total += sum(int(lines[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
    return total * 1024

base, peaks = usage(), []

def frames(film, start, stop):
    for index in range(start, stop):
        yield film[index]

def first_pixel(frame):
    frame[...] += 1
    return frame

film = np.load(sys.argv[1], mmap_mode="r")
ds = ps.from_generator(frames, film, 0, 1000)
if sys.argv[3] == "mapped":
    ds = ds.map(first_pixel)
if sys.argv[3] == "window":
    ds = ds.map(first_pixel).filter(lambda frame: True).shuffle(window=100)
workers = 'auto' if sys.argv[2] == 'inline' else 2
with ds.batch(32).loader(sys.argv[2], workers=workers) as loader:
    for epoch in range(12):
        for batch in loader:
            assert batch.sum() >= 0
        peaks.append(usage() - base)
    report = loader.report()
print(json.dumps({
    "peak": max(peaks), "projected": loader.projected_nbytes, "copied": report.copied,
    "growth": max(peaks[9:]) - max(peaks[3:6]),
}))
"""

WORKER_NBYTES = 45 * MIB
"""The allowance for a worker process."""


@pytest.mark.parametrize(
    ("executor", "plan", "worker_count"),
    [
        ("inline", "plain", 0),
        ("threads", "plain", 0),
        ("processes", "plain", 1),
        ("threads", "mapped", 0),
        ("processes", "mapped", 3),
        ("threads", "window", 0),
        ("processes", "window", 3),
    ],
)
def test_a_stream_takes_what_was_announced_and_does_not_grow(
    fresh_python: Run, film: Path, executor: str, plan: str, worker_count: int
) -> None:
    result = measured(fresh_python(EPOCHS, str(film), executor, plan))
    assert result["peak"] <= result["projected"] + 48 * MIB + worker_count * WORKER_NBYTES, result
    assert result["growth"] <= 4 * MIB, result
    assert result["copied"] == 0
    assert result["projected"] < 60 * MIB, result  # of 60 MB that the generator gives in an epoch, and 300 of the file


CAPTURES = """
import os, pathlib
import numpy as np
import penstock as ps
from penstock.testing._assertions import child_processes

def private_mib(process):
    lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024

def measure(nbytes, workers):
    table = np.ones(nbytes, np.uint8)
    dataset = ps.range(512).map(lambda i: table[i::512].sum(dtype=np.int64)).batch(8)
    with dataset.loader("processes", workers=workers) as loader:
        assert sum(int(batch.sum()) for batch in loader) == nbytes
        return max(private_mib(process) for process in child_processes()), private_mib(os.getpid())

measure(1 << 20, 1)  # what is imported and allocated once
few, parent = measure(1 << 20, 4)
many, parent_of_many = measure(128 << 20, 4)
assert many - few < 4, (few, many)
assert parent_of_many - parent < 128 + 8, (parent, parent_of_many)  # the user's own array
assert many < 45, many
"""


def test_all_workers_share_one_copy_of_an_array_that_a_function_captures(fresh_python: Run) -> None:
    done = fresh_python(CAPTURES)
    assert (done.returncode, done.stderr) == (0, "")
