"""`penstock demo`: trains a next-frame model on a film of 1.2 GB, and says what that took.

The five lines that a user would write are in `_train`; all else makes the film, measures, and reports.
"""

import gc
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demos import film, picture
from penstock.demos.backend import choose_backend, load_backend
from penstock.demos.data import Frames, open_frames
from penstock.demos.frames_report import Outcome
from penstock.demos.measure import fingerprints, training_clock, writable_png
from penstock.demos.memory import MemoryWatch
from penstock.demos.model import next_frame_model, warm_up
from penstock.demos.report import Run, heading
from penstock.report._memory import memory_now

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
    out_path = writable_png(Path(out))
    backend = choose_backend()
    frames = open_frames(data if data is not None else _film(film.film_path(data_dir)))

    load_backend(backend)
    outcome = _train(frames, epochs, out_path)
    print(f"\n{heading(backend, time.perf_counter() - started_at)}\n{outcome}")
    return outcome


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
        clock = training_clock()
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
        test_error=test_error,
        copy_error=copy_error,
        run=Run(
            train_s=clock.train_s,
            loader=report,
            before=before,
            peak=watch.peak,
            projected_nbytes=projected_nbytes,
            fingerprints=fingerprints(training, COMPARED_BATCHES),
            compared_batches=min(COMPARED_BATCHES, len(training)),
            picture=out,
        ),
    )


def _spread(dataset: ps.Dataset, limit: int) -> ps.Dataset:
    """Thins a dataset out, evenly, to at most about twice `limit` elements."""
    return dataset[:: max(1, len(dataset) // max(1, limit))]


def _copy_error(batches: ps.Dataset, value_range: float) -> float:
    """The mean square error of taking each frame for the next one."""
    total, count = 0.0, 0
    with batches.loader() as loader:
        for last, true in loader:
            total += float(np.square((true - last) / value_range).sum(dtype=np.float64))
            count += last.size
    return total / count


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
