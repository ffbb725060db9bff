"""Memory of streams, measured in fresh processes: what was announced and an allowance, and flat over many epochs."""

from pathlib import Path

import pytest

from tests.limits.test_memory import MIB, Run, film, measured

__all__ = ["film"]  # a fixture

pytestmark = pytest.mark.limits

EPOCHS = """
import json, os, sys
import numpy as np
import penstock as ps
from penstock.testing._runs import child_processes

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
with ds.batch(32).loader(sys.argv[2], workers=2) as loader:
    for epoch in range(20):
        for batch in loader:
            assert batch.sum() >= 0
        peaks.append(usage() - base)
    report = loader.report()
print(json.dumps({
    "peak": max(peaks), "projected": loader.projected_nbytes, "copied": report.copied,
    "growth": max(peaks[15:]) - max(peaks[5:10]),
}))
"""

WORKER_NBYTES = 45 * MIB
"""What is allowed for a worker process; see "Memory words" in the documentation."""


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
