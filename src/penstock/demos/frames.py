"""`penstock demo`: trains a next-frame model on a film of 1.2 GB, and says what that took.

The five lines that a user would write are in `_train`; all else makes the film, measures, and reports.
"""

import gc
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock._tree import flatten
from penstock.demos import film, picture
from penstock.demos.data import Frames, open_frames
from penstock.demos.film import DemoError
from penstock.demos.memory import MemoryWatch, memory_now
from penstock.demos.model import choose_backend, load_backend, next_frame_model, warm_up
from penstock.demos.report import Outcome

SEED = 1
EPOCH_PIXELS = 12_000 * 50 * 50
"""In each epoch come as many pairs as have so many pixels: all of the film's, or a part of a larger file's."""
BATCH_PIXELS = 1 << 20
"""A batch is 32 pairs, or fewer of large frames."""
COMPARED_BATCHES = 8
PICTURE_ROWS = 5


def run(data: str | None, epochs: int, data_dir: str | None, out: str) -> Outcome:
    """Makes or opens the film, trains, draws the picture, and returns what was measured.

    Args:
        data: A `.npy` of frames; None for the film, which is made where it does not exist.
        epochs: At least 1.
        data_dir: The folder where the film is kept; None for the user's cache.
        out: The PNG to write.

    Raises:
        DemoError: Something is missing, or `data` is no film. Known before training begins.
        SourceError: `data` cannot be read.
    """
    started_at = time.perf_counter()
    out_path = _writable(Path(out))
    backend = choose_backend()
    frames = open_frames(data if data is not None else _film(film.film_path(data_dir)))

    # Python finds out where temporary files go by writing one, when a library first asks. Ctrl-C in between would
    # leave it there.
    tempfile.gettempdir()
    print(f"Loading Keras on {backend} ...", flush=True)
    load_backend(backend)
    outcome = _train(frames, epochs, out_path)
    print(
        f"\npenstock {ps.__version__}, Keras on {backend}, {time.perf_counter() - started_at:.0f} s in all\n{outcome}"
    )
    return outcome


def _writable(path: Path) -> Path:
    """Finds out now, and not after training, whether the picture can be saved."""
    if path.suffix.lower() != ".png":
        raise DemoError(f"--out {path}: the picture is a PNG, so its name must end in .png.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise DemoError(f"--out {path}: there is no folder {path.parent.resolve()} that can be written to.")
    return path.resolve()


def _film(path: Path) -> Path:
    if path.exists():
        print(f"Film: {path} (made before; delete it when you like)")
        return path
    print(f"Making a film of {film.FRAME_COUNT:,} frames from photographs, once: {path}", flush=True)
    in_terminal, announced = sys.stdout.isatty(), -1

    def progress(done_nbytes: int, nbytes: int) -> None:
        nonlocal announced
        percent = 100 * done_nbytes // nbytes
        if percent // (1 if in_terminal else 25) > announced:
            announced = percent // (1 if in_terminal else 25)
            end = "\r" if in_terminal and percent < 100 else "\n"
            print(f"  {done_nbytes / 1e9:.2f} of {nbytes / 1e9:.2f} GB, {percent} %", end=end, flush=True)

    film.make_film(path, on_progress=progress)
    return path


def _train(frames: Frames, epochs: int, out: Path) -> Outcome:
    pairs = ps.zip((frames.dataset[:-1], frames.dataset[1:]))
    train, validation, test = pairs.split(0.6, 0.2, 0.2)
    size = max(1, min(32, BATCH_PIXELS // frames.pixels))
    epoch_pairs = min(len(train), max(4 * size, EPOCH_PIXELS // frames.pixels))
    training = train.shuffle(seed=SEED).take(epoch_pairs).batch(size).cast("float32")

    model = next_frame_model(frames.shape, frames.channels_axis, frames.low, frames.high)
    warm_up(model, *train.batch(size).cast("float32")[0])
    gc.collect()
    before = memory_now()

    with MemoryWatch() as watch:
        train_data = training.to_keras()
        validation_data = _spread(validation, epoch_pairs // 3).batch(size).cast("float32").to_keras(training=False)
        clock = _training_clock()
        model.fit(
            train_data,
            validation_data=validation_data,
            epochs=epochs,
            callbacks=[clock],
            verbose=1 if sys.stdout.isatty() else 2,  # a bar, or a line an epoch
        )
        projected_nbytes = train_data.loader.projected_nbytes + validation_data.loader.projected_nbytes
        report = train_data.loader.report()
        train_data.loader.close()
        validation_data.loader.close()
        test_batches = _spread(test, epoch_pairs // 3).batch(size).cast("float32")
        test_error = float(model.evaluate(test_batches.to_keras(training=False), verbose=0))

    copy_error = _copy_error(test_batches, frames.high - frames.low)
    summary = f"mean square error over all of the test: predicted {test_error:.5f}, copied {copy_error:.5f}"
    _draw(out, frames, model, test, summary)
    return Outcome(
        frames=frames,
        pairs=(len(train), len(validation), len(test)),
        epoch_pairs=epoch_pairs,
        epochs=epochs,
        train_s=clock.train_s,
        loader=report,
        test_error=test_error,
        copy_error=copy_error,
        before=before,
        peak=watch.peak,
        projected_nbytes=projected_nbytes,
        fingerprints=(_fingerprint(training, "threads"), _fingerprint(training, "inline")),
        compared_batches=min(COMPARED_BATCHES, len(training)),
        picture=out,
    )


def _spread(dataset: ps.Dataset, limit: int) -> ps.Dataset:
    """Thins a dataset out, evenly, to at most about twice `limit` elements."""
    return dataset[:: max(1, len(dataset) // max(1, limit))]


def _training_clock() -> Any:
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


def _copy_error(batches: ps.Dataset, value_range: float) -> float:
    """The mean square error of taking each frame for the next one."""
    total, count = 0.0, 0
    with batches.loader() as loader:
        for last, true in loader:
            total += float(np.square((true - last) / value_range).sum(dtype=np.float64))
            count += last.size
    return total / count


def _fingerprint(batches: ps.Dataset, executor: Any) -> str:
    """SHA-256 of the first batches that a new loader gives."""
    digest = hashlib.sha256()
    with batches.loader(executor=executor) as loader:
        for _, batch in zip(range(COMPARED_BATCHES), loader, strict=False):
            for leaf in flatten(batch)[0]:
                digest.update(leaf.data)
    return digest.hexdigest()


def _draw(out: Path, frames: Frames, model: Any, test: ps.Dataset, summary: str) -> None:
    """Draws test pairs that are spread evenly over the test, not chosen for their looks."""
    positions = [len(test) * (2 * row + 1) // (2 * PICTURE_ROWS) for row in range(PICTURE_ROWS)]
    last, true = (np.stack(side).astype("float32") for side in zip(*(test[i] for i in positions), strict=True))
    predicted = np.asarray(model.predict_on_batch(last))
    first = len(frames.dataset) - len(test) - 1
    picture.draw(
        out,
        *(frames.images(side) for side in (last, true, predicted)),
        labels=[f"frame {first + position:,}" for position in positions],
        summary=summary,
    )
