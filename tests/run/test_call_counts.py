"""How many Python functions run for one batch: a count that no clock and no other program disturbs."""

import sys
import threading

import numpy as np
import pytest

import penstock as ps
from penstock import native

BATCH_COUNT = 200


def _pairs(folder):
    """Neighbouring frames of a file."""
    np.save(folder / "frames.npy", np.ones((2000, 30), np.float32))
    frames = ps.from_npy(folder / "frames.npy")
    return ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(32, drop_remainder=True)


def _table():
    return ps.from_arrays({"x": np.zeros((100_000, 20), np.float32), "y": np.zeros(100_000, np.float32)})


def _rows(folder):
    return _table().shuffle(seed=1).batch(256, drop_remainder=True)


def _wide(folder):
    """Narrow columns, in batches of which a few fill a block of indices."""
    columns = ps.from_arrays({f"x{number}": np.zeros(100_000, np.float32) for number in range(11)})
    return columns.shuffle(seed=1, window=50_000).batch(1024)


def _windows(folder):
    return ps.from_arrays(np.zeros(1_000_000, np.uint16)).windows(1025, shift=64).shuffle(seed=1).batch(32)


def _function(folder):
    return _table().map(lambda e: (e["x"] * 2, e["y"])).shuffle(seed=1).batch(32, drop_remainder=True)


def _calls(dataset, executor):
    """Python functions that this process runs for a batch, on all threads, in steady state."""
    count, is_on = 0, False

    def profile(frame, event, argument):
        nonlocal count
        count += is_on and event == "call"

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with dataset.repeat().loader(executor=executor) as loader:
            batches = iter(loader)
            for _ in range(50):
                next(batches)
            is_on = True
            for _ in range(BATCH_COUNT):
                next(batches)
            is_on = False
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return count / BATCH_COUNT


# The bounds are what was counted, and at most two more, for what is done once in a while. A change that lowers a count
# lowers its bound. Functions on threads and in processes are not here: how they divide a batch depends on the time.
@pytest.mark.skipif(native.implementation() != "native", reason="NumPy's engine makes the copies in Python")
@pytest.mark.parametrize(
    ("make", "executor", "most"),
    [
        (_pairs, "threads", 21),
        (_rows, "threads", 15),
        (_wide, "threads", 21),
        (_windows, "threads", 15),
        (_rows, "inline", 92),
        (_function, "inline", 201),
    ],
)
def test_a_batch_takes_no_more_calls_than_before(make, executor, most, tmp_path):
    assert _calls(make(tmp_path), executor) <= most
