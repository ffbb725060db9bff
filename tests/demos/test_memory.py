"""What the demo says about memory is what this process has."""

import numpy as np

from penstock._memory._mapping import anonymous
from penstock.demos.memory import MemoryWatch

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
        ring = np.frombuffer(anonymous(NBYTES), "uint8")
        ring[:] = 1
    del ring
    assert 0.9 * NBYTES < watch.peak.shared_nbytes - before.shared_nbytes < 1.5 * NBYTES
