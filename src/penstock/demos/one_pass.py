"""Reads a folder of images for some epochs and does nothing with them, in a process of its own: by us, or by Keras.

Run as a script by `measure`; prints what it measured as JSON. Both get the folder after it was trained on, so its files
are in the page cache.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demos.errors import DemoError
from penstock.demos.memory import MemoryWatch
from penstock.report._memory import memory_now

EPOCHS = 3
"""That are measured, after one that is not."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """What reading took."""

    elapsed_s: float
    """Of the fastest epoch but the first: the least disturbed by whatever else runs."""
    processor_s: float
    """Of all threads in an epoch, the least: this hardly depends on what else runs."""
    growth_nbytes: int
    """Resident memory at its most, over that before the dataset was made."""


def measure(folder: Path, side: int, batch_size: int) -> dict[str, Pass]:
    """Has each reader that is installed read a folder, one after the other.

    Raises:
        DemoError: One of them failed; holds what it wrote.
    """
    readers = ["penstock", *["keras"] * bool(importlib.util.find_spec("tensorflow"))]
    return {name: _measured(name, folder, side, batch_size) for name in readers}


def _measured(name: str, folder: Path, side: int, batch_size: int) -> Pass:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.demos.one_pass", name, str(folder), str(side), str(batch_size)],
        env=os.environ | {"KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"Reading {folder} by {name} failed:\n{done.stderr.strip()}")
    return Pass(**json.loads(done.stdout.splitlines()[-1]))


def read(name: str, folder: str, side: int, batch_size: int) -> Pass:
    """Reads the folder here."""
    if name == "keras":
        import keras

        make: Any = keras.utils.image_dataset_from_directory
    else:
        make = ps.image_dataset_from_directory
    before_nbytes = memory_now().nbytes
    with MemoryWatch() as watch:
        dataset = make(folder, image_size=(side, side), batch_size=batch_size, seed=1, verbose=False)
        batches = dataset if name == "keras" else dataset.loader()
        _epoch(batches)
        elapsed_s, processor_s = map(min, zip(*(_epoch(batches) for _ in range(EPOCHS)), strict=True))
    return Pass(elapsed_s, processor_s, watch.peak.nbytes - before_nbytes)


def _epoch(batches: Any) -> tuple[float, float]:
    """Reads all; returns the seconds that this took, and those of processor time."""
    started_at, used_s = time.perf_counter(), time.process_time()
    for images, _ in batches:
        np.asarray(images).sum()  # every byte is read
    return time.perf_counter() - started_at, time.process_time() - used_s


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(read(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
