"""`penstock demo augment`: trains on characters of which half are distorted by Python functions, in worker processes.

What a user would write is in `batches_of` and `_fit`; all else renders the characters, measures, and reports.
"""

import gc
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demos import picture
from penstock.demos.augment_report import Accuracy, Outcome
from penstock.demos.backend import choose_backend, load_backend
from penstock.demos.characters import (
    HIRAGANA,
    KANJI,
    SIDE,
    Characters,
    characters_path,
    font_path,
    make_characters,
)
from penstock.demos.distort import distort
from penstock.demos.measure import fingerprints, training_clock, writable_png
from penstock.demos.memory import MemoryWatch, cpu_s
from penstock.demos.model import character_model, warm_up
from penstock.demos.report import Run, heading
from penstock.report._memory import memory_now, worker_pids

BATCH_SIZE = 256
COMPARED_BATCHES = 4
SERIAL_ROUNDS = 5
PICTURE_PAIRS = 24


def run(epochs: int, data_dir: str | None, out: str, names: str = HIRAGANA + KANJI) -> Outcome:
    """Renders the characters, trains with and without distortion, draws the picture, returns what was measured.

    Args:
        epochs: At least 1.
        data_dir: The folder where the characters are kept; None for the user's cache.
        out: The PNG to write.
        names: The characters.

    Raises:
        DemoError: Something is missing. Known before training begins.
    """
    started_at = time.perf_counter()
    out_path = writable_png(Path(out))
    backend = choose_backend()
    font_path()  # the picture needs it, too
    characters = _characters(characters_path(data_dir), names)

    load_backend(backend)
    outcome = _train(characters, epochs, out_path)
    print(f"\n{heading(backend, time.perf_counter() - started_at)}\n{outcome}")
    return outcome


def _characters(path: Path, names: str) -> Characters:
    if path.exists():
        print(f"Characters: {path} (made before; delete it when you like)")
    else:
        print(f"Rendering {len(names)} characters, once: {path}", flush=True)
        make_characters(path, names)
    return Characters(path, names)


def batches_of(train: ps.Dataset) -> ps.Dataset:
    """Batches of which half are distorted and half are as they are, in an order of its own each, new every epoch."""
    distorted = train.shuffle(seed=2).random_map(distort, seed=3)
    return ps.interleave([train.shuffle(seed=1), distorted]).batch(BATCH_SIZE, drop_remainder=True)


def _fit(model: Any, batches: ps.Dataset, epochs: int, **options: Any) -> Any:
    """Trains; returns the adapter, whose loader is still open."""
    data = batches.to_keras()
    model.fit(data, epochs=epochs, verbose=1 if sys.stdout.isatty() else 2, **options)  # a bar, or a line an epoch
    return data


def _train(characters: Characters, epochs: int, out: Path) -> Outcome:
    train, validation = characters.split()
    batches = batches_of(train)
    plain = validation.batch(BATCH_SIZE)
    distorted = validation.random_map(distort, seed=4).batch(BATCH_SIZE)
    shape, class_count = (SIDE, SIDE), len(characters.names)

    model = character_model(shape, class_count)
    warm_up(model, *batches[0])
    gc.collect()
    before = memory_now()

    with MemoryWatch() as watch:
        print("Batches alone, without training ...", flush=True)
        alone = _alone(batches)
        print("Training on batches that are half distorted:", flush=True)
        clock, validation_data = training_clock(), distorted.to_keras(training=False)
        used_s = {pid: cpu_s(pid) for pid in worker_pids()}
        started_at = time.perf_counter()
        data = _fit(model, batches, epochs, validation_data=validation_data, callbacks=[clock])
        fit_s = time.perf_counter() - started_at
        used_s = {pid: cpu_s(pid) - used_s.get(pid, 0.0) for pid in worker_pids()}
        projected_nbytes = data.loader.projected_nbytes + validation_data.loader.projected_nbytes
        report = data.loader.report()
        data.loader.close()
        validation_data.loader.close()
        augmented = _accuracy(model, distorted, plain)

    serial_s = _serial_s(train)
    print("Training the same model without distortion, to compare:", flush=True)
    other, other_clock = character_model(shape, class_count), training_clock()
    warm_up(other, *batches[0])
    undistorted = ps.interleave([train.shuffle(seed=1), train.shuffle(seed=2)])
    _fit(other, undistorted.batch(BATCH_SIZE, drop_remainder=True), epochs, callbacks=[other_clock]).loader.close()
    unaugmented = _accuracy(other, distorted, plain)

    _draw(
        out,
        characters,
        model,
        validation,
        f"named right: {augmented.distorted:.1%} of all that are distorted, {augmented.plain:.1%} as they are",
    )
    return Outcome(
        characters=characters,
        counts=(len(train), len(validation)),
        batch_size=BATCH_SIZE,
        epochs=epochs,
        epoch_batches=len(batches),
        fit_s=fit_s,
        worker_cpu_s=tuple(used_s.values()),
        serial_s=serial_s,
        alone=alone,
        plain_train_s=other_clock.train_s,
        augmented=augmented,
        unaugmented=unaugmented,
        run=Run(
            train_s=clock.train_s,
            loader=report,
            before=before,
            peak=watch.peak,
            projected_nbytes=projected_nbytes,
            fingerprints=fingerprints(batches, COMPARED_BATCHES),
            compared_batches=min(COMPARED_BATCHES, len(batches)),
            picture=out,
        ),
    )


def _alone(batches: ps.Dataset) -> ps.Report:
    """Reads an epoch and does nothing with it."""
    with batches.loader() as loader:
        for _ in loader:
            pass
        return loader.report()


def _serial_s(train: ps.Dataset) -> float:
    """Seconds in which a plain loop on one core distorts half a batch: the best of some rounds."""
    elements, rng = [train[i] for i in range(BATCH_SIZE // 2)], np.random.default_rng(0)
    times = []
    for _ in range(SERIAL_ROUNDS):
        started_at = time.perf_counter()
        for element in elements:
            distort(element, rng)
        times.append(time.perf_counter() - started_at)
    return min(times)


def _accuracy(model: Any, distorted: ps.Dataset, plain: ps.Dataset) -> Accuracy:
    def of(batches: ps.Dataset) -> float:
        data = batches.to_keras(training=False)
        accuracy = float(model.evaluate(data, verbose=0, return_dict=True)["accuracy"])
        data.loader.close()
        return accuracy

    return Accuracy(of(distorted), of(plain))


def _draw(out: Path, characters: Characters, model: Any, validation: ps.Dataset, summary: str) -> None:
    """Draws validation's characters that are spread evenly over it, not chosen for their looks."""
    # A prime stride: neighbours in the file are neighbours in a dictionary, and every size is to be seen.
    chosen = [index * 607 % len(validation) for index in range(PICTURE_PAIRS)]
    pairs = ps.interleave([validation, validation.random_map(distort, seed=4)])
    images, labels = (
        np.stack(side) for side in zip(*(pairs[2 * i + half] for i in chosen for half in (0, 1)), strict=True)
    )
    predicted = np.asarray(model.predict_on_batch(images)).argmax(-1)
    picture.draw_characters(
        out,
        images,
        truth=[characters.names[label] for label in labels],
        predicted=[characters.names[label] for label in predicted],
        font=font_path(),
        summary=summary,
    )
