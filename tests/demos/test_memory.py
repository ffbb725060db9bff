"""What the demo says about memory is what this process has."""

import subprocess
import sys

import numpy as np

from penstock.demos.memory import MemoryWatch, cpu_s
from penstock.memory._mapping import MemoryFile
from penstock.report._memory import memory_now, worker_pids

NBYTES = 64 << 20


def test_peak_holds_private_memory_that_was_freed_since():
    with MemoryWatch() as watch:
        before = watch.peak
        block = np.ones(NBYTES, "uint8")
    del block
    assert 0.9 * NBYTES < watch.peak.private_nbytes - before.private_nbytes < 1.5 * NBYTES


def test_a_ring_is_shared_memory():
    with MemoryWatch() as watch:
        before = watch.peak
        ring = np.frombuffer(MemoryFile(NBYTES).map(), "uint8")
        ring[:] = 1
    del ring
    assert 0.9 * NBYTES < watch.peak.shared_nbytes - before.shared_nbytes < 1.5 * NBYTES


def test_worker_processes_count_for_themselves():
    here = memory_now()
    script = f"block = b'1' * {NBYTES}\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        with MemoryWatch() as watch:
            assert worker.pid in worker_pids()
        assert cpu_s(worker.pid) > 0
        worker.communicate(b"\n")
    assert 0.9 * NBYTES < max(watch.peak.worker_nbytes) < 1.5 * NBYTES
    assert watch.peak.here_nbytes < here.nbytes + 0.5 * NBYTES
    assert worker.pid not in worker_pids()
    assert cpu_s(worker.pid) == 0
