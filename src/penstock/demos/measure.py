"""What every demo does around its training: finds out early, measures, compares."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any, Literal

import penstock as ps
from penstock.base._tree import flatten
from penstock.demos.errors import DemoError
from penstock.report._memory import memory_now


def writable_png(path: Path) -> Path:
    """Finds out now, and not after training, whether the picture can be saved; returns its whole path."""
    if path.suffix.lower() != ".png":
        raise DemoError(f"--out {path}: the picture is a PNG, so its name must end in .png.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise DemoError(f"--out {path}: there is no folder {path.parent.resolve()} that can be written to.")
    return path.resolve()


def training_clock() -> Any:
    """Makes a Keras callback that measures, in `train_s`, the time of training without that of validation."""
    import keras

    class Clock(keras.callbacks.Callback):
        train_s = 0.0
        _since: float | None = None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._since = time.perf_counter()

        def on_test_begin(self, logs: Any = None) -> None:
            self._stop()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._stop()

        def _stop(self) -> None:
            if self._since is not None:
                self.train_s += time.perf_counter() - self._since
                self._since = None

    return Clock()


def curves() -> Any:
    """Makes a Keras callback that keeps, of each batch of training, `accuracy` and `resident_nbytes` of this process.

    `accuracy` is Keras's: the mean over the epoch so far. `validation` is that of each epoch.
    """
    import keras

    class Curves(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.accuracy: list[float] = []
            self.validation: list[float] = []
            self.resident_nbytes: list[int] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.accuracy.append(float(logs["accuracy"]))
            self.resident_nbytes.append(memory_now().nbytes)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.validation.append(float(logs["val_accuracy"]))

    return Curves()


def fingerprints(batches: ps.Dataset, count: int) -> tuple[str, str]:
    """SHA-256 of the first `count` batches that two new loaders give, with workers and without."""
    return _fingerprint(batches, count, "auto"), _fingerprint(batches, count, "inline")


def _fingerprint(batches: ps.Dataset, count: int, executor: Literal["auto", "inline"]) -> str:
    digest = hashlib.sha256()
    with batches.loader(executor=executor) as loader:
        for _, batch in zip(range(count), loader, strict=False):
            for leaf in flatten(batch)[0]:
                digest.update(leaf.data)
    return digest.hexdigest()
