"""Measured memory: private memory, shared memory, and worker processes."""

import subprocess
import sys

import numpy as np

from penstock.memory._mapping import MemoryFile
from penstock.report._memory import memory_now, worker_pids

NBYTES = 64 << 20


def test_peak_holds_private_memory_that_was_freed_since(fresh_python):
    # An interpreter of its own: threads that other tests left give memory back meanwhile.
    script = f"""
import numpy as np
from penstock.report._memory import Peak
peak = Peak()
block = np.ones({NBYTES}, "uint8")
peak.look(())
del block
peak.look(())
print(peak.nbytes)
"""
    done = fresh_python(script)
    assert done.returncode == 0, done.stderr
    assert 0.9 * NBYTES < int(done.stdout) < 1.5 * NBYTES


def test_a_ring_is_shared_memory():
    before = memory_now()
    ring = np.frombuffer(MemoryFile(NBYTES).map(), "uint8")
    ring[:] = 1
    after = memory_now()
    del ring
    assert 0.5 * NBYTES < after.shared_nbytes - before.shared_nbytes < 1.5 * NBYTES


def test_worker_processes_count_for_themselves():
    here = memory_now()
    script = f"block = b'1' * {NBYTES}\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert worker.pid in worker_pids()
        with_worker = memory_now([worker.pid])
        worker.communicate(b"\n")
    assert 0.9 * NBYTES < max(with_worker.worker_nbytes) < 1.5 * NBYTES
    assert with_worker.here_nbytes < here.nbytes + 0.5 * NBYTES
    assert worker.pid not in worker_pids()
