"""`penstock demo`: trains a next-frame model on a film of 1.2 GB, and reports the loss, the memory and the time.

The five lines of a user are in `_train`. All else makes the film, measures, and reports.
"""

import itertools
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demos import film
from penstock.demos.film import DemoError, Frames, open_frames
from penstock.demos.model import choose_backend, next_frame_model
from penstock.report._units import mib

SEED = 1
EPOCHS = 3
QUICK_FRAMES = 2_000
EPOCH_PIXELS = 12_000 * 50 * 50
"""The limit of an epoch, in pixels: the whole film, or a part of a larger file."""
BATCH_PIXELS = 1 << 20
"""The limit of a batch: 32 pairs, or fewer of large frames."""
COMPARED_BATCHES = 8
PICTURE_ROWS = 5


def run(data: str | None, epochs: int | None, data_dir: str | None, out: str, *, is_quick: bool = False) -> None:
    """Makes or opens the film, trains, draws the picture, and prints the report.

    Args:
        data: A `.npy` of frames. None for the film, which is made on the first run.
        epochs: At least 1. None for 3, or 1 of a quick run.
        data_dir: The folder of the film. None for the user's cache.
        out: The PNG to write.
        is_quick: Whether to make a film of 120 MB.

    Raises:
        DemoError: Something is missing, or `data` is no film. Raised before training begins.
        SourceError: `data` cannot be read.
    """
    started_at = time.perf_counter()
    out_path = _writable_png(Path(out))
    backend = choose_backend()
    frame_count = QUICK_FRAMES if is_quick else film.FRAME_COUNT
    frames = open_frames(data if data is not None else _film(film.film_path(data_dir, frame_count), frame_count))

    print(f"Loading Keras on {backend} ...", flush=True)
    texts = _train(frames, epochs or (1 if is_quick else EPOCHS), out_path)
    print(f"\npenstock {ps.__version__}, Keras on {backend}, {time.perf_counter() - started_at:.0f} s in all")
    wrapper = textwrap.TextWrapper(110, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False)
    for title, text in texts.items():
        print(wrapper.fill(f"  {title:<11} {text}"))


def _writable_png(path: Path) -> Path:
    """Checks before the training that the picture can be saved. Returns its whole path."""
    if path.suffix.lower() != ".png":
        raise DemoError(f"--out {path}: the picture is a PNG, so its name must end in .png.")
    if not os.access(path.parent, os.W_OK):
        raise DemoError(f"--out {path}: there is no folder {path.parent.resolve()} that can be written to.")
    return path.resolve()


def _film(path: Path, frame_count: int = film.FRAME_COUNT) -> Path:
    if path.exists():
        print(f"Film: {path} (made before; delete it when you like)")
        return path
    print(f"Making a film of {frame_count:,} frames from photographs, once: {path}", flush=True)
    film.make_film(path, frame_count)
    return path


def _train(frames: Frames, epochs: int, out: Path) -> dict[str, str]:
    """Trains and draws. Returns the texts of the report by their titles."""
    pairs = ps.zip((frames.dataset[:-1], frames.dataset[1:]))
    train, validation, test = pairs.split(0.6, 0.2, 0.2)
    size = max(1, min(32, BATCH_PIXELS // frames.pixels))
    epoch_pairs = min(len(train), max(4 * size, EPOCH_PIXELS // frames.pixels))
    training = train.shuffle(seed=SEED).take(epoch_pairs).batch(size).cast("float32")
    validation_batches, test_batches = (
        each.take(max(size, epoch_pairs // 3)).batch(size).cast("float32") for each in (validation, test)
    )
    model = next_frame_model(frames.shape, frames.channels_axis, frames.low, frames.high)
    model.fit(*train.batch(size).cast("float32")[0], verbose=0)  # compiles, so that the speed is that of training

    train_data, validation_data = training.to_keras(), validation_batches.to_keras(training=False)
    verbose = 1 if sys.stdout.isatty() else 2  # a bar, or a line for each epoch
    with train_data.loader as loader, validation_data.loader as other:
        model.fit(train_data, validation_data=validation_data, epochs=epochs, verbose=verbose)
        projected_nbytes, report = loader.projected_nbytes + other.projected_nbytes, loader.report()
    test_error = float(model.evaluate(test_batches.to_keras(training=False), verbose=0))

    value_range = frames.high - frames.low
    copies = test_batches.map(lambda pair: np.square((pair[1] - pair[0]) / value_range))
    copy_error = float(ps.statistics(copies, executor="threads").mean)
    _draw(out, frames, model, test)
    part = "" if epoch_pairs == len(train) else f" ({epoch_pairs:,} of them in each epoch)"
    file_size, ratio = mib(frames.path.stat().st_size), copy_error / test_error if test_error else float("inf")
    return {
        "Data": f"{len(frames.dataset):,} frames {frames.shape} {frames.dataset.element_spec.dtype} in "
        f"{frames.path.name}, {file_size}. Pairs of a frame and the next: {len(train):,} to train{part}, "
        f"{len(validation):,} to validate, {len(test):,} to test.",
        "Speed": f"{report.elements_per_s:,.0f} pairs/s in model.fit, {report.elapsed_s:.0f} s for {epochs} "
        f"epoch{'' if epochs == 1 else 's'}, each shuffled over the whole. Training waited for data "
        f"{report.wait_share:.1%} of the time.",
        # By /proc/self/smaps: of 36 MiB, 23 were the rings of both loaders, and 13 the heap of TensorFlow and Python.
        "Memory": f"at its peak {mib(report.peak_nbytes)} more than before the loaders were made. This is what the "
        f"loaders took, which announced {mib(projected_nbytes)} at most, and what Keras and its backend took to train. "
        f"Keras and its backend had {mib(report.reserved_nbytes)} before. The file has {file_size}.",
        "Result": f"mean square error {test_error:.5f} on pairs that training never saw, "
        f"{f'{ratio:.1f} times less than' if ratio > 1 else 'not less than'} that of copying the last frame, "
        f"{copy_error:.5f}.",
        "Repeatable": _repeatable(training),
        "Picture": os.path.relpath(out) if out.is_relative_to(Path.cwd()) else str(out),
    }


def _repeatable(training: ps.Dataset) -> str:
    """Compares the first batches of two new loaders, one of them without workers."""
    count = min(COMPARED_BATCHES, len(training))
    with training.loader() as one, training.loader("inline") as other:
        pairs = itertools.islice(zip(one, other, strict=True), count)
        is_same = all(np.array_equal(mine, theirs) for mine, theirs in pairs)
    same = "the same first" if is_same else "OTHER batches among the first"
    return f"a second loader with the same seed, without workers, gave {same} {count} batches to the bit."


def _draw(out: Path, frames: Frames, model: Any, test: ps.Dataset) -> None:
    """Draws test pairs, spread evenly over the test and not chosen for their looks, with the errors of both frames.

    Errors are absolute values, on one scale.
    """
    positions = np.linspace(0, len(test) - 1, PICTURE_ROWS + 2).astype(int)[1:-1]
    last, true = test[positions].batch(PICTURE_ROWS).cast("float32")[0]
    predicted = np.clip(np.asarray(model.predict_on_batch(last)), frames.low, frames.high)
    errors = np.abs(np.stack((predicted - true, last - true), axis=1))
    names = ("last frame", "predicted", "the truth", "errors: predicted, copied")
    rows = zip(last, predicted, true, errors / (errors.max() or 1), strict=True)
    ps.show([dict(zip(names, row, strict=True)) for row in rows], out)
