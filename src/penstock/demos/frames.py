"""`penstock demo`: trains a next-frame model on a film of 1.2 GB, and reports the loss, the memory and the time.

The five lines of a user are in `_train`. All else makes the film, measures, and reports.
"""

import hashlib
import io
import itertools
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.base import _atomic
from penstock.demos import film
from penstock.demos.film import DemoError, Frames, open_frames
from penstock.demos.model import choose_backend, load_backend, next_frame_model, warm_up
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
TITLES = (
    "last frame\n(model sees this)",
    "next frame,\npredicted",
    "next frame,\nthe truth",
    "error of the\nprediction",
    "error of copying\nthe last frame",
)


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

    load_backend(backend)
    texts = _train(frames, epochs or (1 if is_quick else EPOCHS), out_path)
    print(f"\npenstock {ps.__version__}, Keras on {backend}, {time.perf_counter() - started_at:.0f} s in all")
    wrapper = textwrap.TextWrapper(110, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False)
    for title, text in texts.items():
        print(wrapper.fill(f"  {title:<11} {text}"))


def _writable_png(path: Path) -> Path:
    """Checks before the training that the picture can be saved. Returns its whole path."""
    if path.suffix.lower() != ".png":
        raise DemoError(f"--out {path}: the picture is a PNG, so its name must end in .png.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise DemoError(f"--out {path}: there is no folder {path.parent.resolve()} that can be written to.")
    return path.resolve()


def _film(path: Path, frame_count: int = film.FRAME_COUNT) -> Path:
    if path.exists():
        print(f"Film: {path} (made before; delete it when you like)")
        return path
    print(f"Making a film of {frame_count:,} frames from photographs, once: {path}", flush=True)

    def progress(done_nbytes: int, nbytes: int) -> None:
        if 4 * done_nbytes % nbytes == 0:
            print(f"  {done_nbytes / 1e9:.2f} of {nbytes / 1e9:.2f} GB, {100 * done_nbytes // nbytes} %", flush=True)

    film.make_film(path, frame_count, on_progress=progress)
    return path


def _train(frames: Frames, epochs: int, out: Path) -> dict[str, str]:
    """Trains and draws. Returns the texts of the report by their titles."""
    pairs = ps.zip((frames.dataset[:-1], frames.dataset[1:]))
    train, validation, test = pairs.split(0.6, 0.2, 0.2)
    size = max(1, min(32, BATCH_PIXELS // frames.pixels))
    epoch_pairs = min(len(train), max(4 * size, EPOCH_PIXELS // frames.pixels))
    training = train.shuffle(seed=SEED).take(epoch_pairs).batch(size).cast("float32")
    validation_batches, test_batches = (
        # Thinned out, evenly, to at most about twice a third of an epoch.
        each[:: max(1, len(each) // max(1, epoch_pairs // 3))].batch(size).cast("float32")
        for each in (validation, test)
    )
    model = next_frame_model(frames.shape, frames.channels_axis, frames.low, frames.high)
    warm_up(model, *train.batch(size).cast("float32")[0])

    train_data, validation_data = training.to_keras(), validation_batches.to_keras(training=False)
    verbose = 1 if sys.stdout.isatty() else 2  # a bar, or a line for each epoch
    model.fit(train_data, validation_data=validation_data, epochs=epochs, verbose=verbose)
    projected_nbytes = train_data.loader.projected_nbytes + validation_data.loader.projected_nbytes
    report = train_data.loader.report()
    train_data.loader.close()
    validation_data.loader.close()
    test_error = float(model.evaluate(test_batches.to_keras(training=False), verbose=0))

    copy_error = _copy_error(test_batches, frames.high - frames.low)
    summary = f"mean square error over all of the test: predicted {test_error:.5f}, copied {copy_error:.5f}"
    _draw(out, frames, model, test, summary)
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
    count, digests = min(COMPARED_BATCHES, len(training)), []
    for loader in (training.loader(), training.loader("inline")):
        with loader:
            data = [frames.tobytes() for pair in itertools.islice(loader, count) for frames in pair]
            digests.append(hashlib.sha256(b"".join(data)).hexdigest()[:12])
    if digests[0] != digests[1]:
        return f"NO. Two loaders with one seed gave other batches: SHA-256 {', '.join(digests)}."
    same = f"gave the same first {count} batches to the bit: SHA-256 {digests[0]}."
    return f"a second loader with the same seed, without workers, {same}"


def _copy_error(batches: ps.Dataset, value_range: float) -> float:
    """Returns the mean square error of taking each frame for the next one."""
    total, count = 0.0, 0
    with batches.loader() as loader:
        for last, true in loader:
            total += float(np.square((true - last) / value_range).sum(dtype=np.float64))
            count += last.size
    return total / count


def _draw(out: Path, frames: Frames, model: Any, test: ps.Dataset, summary: str) -> None:
    """Draws test pairs, spread evenly over the test and not chosen for their looks, with the errors of both frames.

    Errors are means over the channels, in absolute value, on one scale. Below each is its root mean square.
    """
    # Pyplot would choose a window system, and keep the figure.
    from matplotlib.figure import Figure

    rows = PICTURE_ROWS
    positions = [len(test) * (2 * row + 1) // (2 * rows) for row in range(rows)]
    sides = [np.stack(side).astype("float32") for side in zip(*(test[i] for i in positions), strict=True)]
    last, true, predicted = (frames.images(side) for side in (*sides, np.asarray(model.predict_on_batch(sides[0]))))
    errors = {3: np.abs(predicted - true), 4: np.abs(last - true)}
    brightest = max(float(np.quantile(errors[4].mean(-1), 0.99)), 1e-6)
    aspect = float(np.clip(last.shape[1] / last.shape[2], 0.3, 2.0))
    figure = Figure(figsize=(9.0, 1.4 + (0.2 + 1.55 * aspect) * rows), dpi=105, layout="constrained", facecolor="white")
    figure.suptitle("penstock demo: the next frame", fontsize=13, fontweight="bold")
    axes = figure.subplots(rows, 5, squeeze=False)
    for row, position in enumerate(positions):
        for column, shown in enumerate((last, predicted, true)):
            axes[row, column].imshow(np.clip(shown[row], 0, 1), cmap="gray", vmin=0, vmax=1)
        for column, error in errors.items():
            scale = axes[row, column].imshow(error[row].mean(-1), cmap="magma", vmin=0, vmax=brightest)
            axes[row, column].set_xlabel(f"RMS {np.sqrt(np.square(error[row]).mean()):.3f}", fontsize=8.5)
        axes[row, 0].set_ylabel(f"frame {len(frames.dataset) - len(test) - 1 + position:,}", fontsize=8.5)
    for ax, title in zip(axes[0], TITLES, strict=True):
        ax.set_title(title, fontsize=9)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    bar = figure.colorbar(scale, ax=axes[:, 3:], shrink=0.5, aspect=36, extend="max")
    bar.set_label("absolute error, where frames are 0 to 1", fontsize=8.5)
    figure.supxlabel(summary, fontsize=9.5, color="0.25")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    _atomic.write(out, png.getvalue())
