"""`penstock demo images`: trains on a folder of JPEGs that are decoded and distorted as they are needed.

What a user would write is in `_datasets` and in the middle of `_train`; all else makes the folder, measures, and
reports.
"""

import gc
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demos import one_pass, picture
from penstock.demos.backend import choose_backend, load_backend
from penstock.demos.errors import DemoError
from penstock.demos.images_report import Outcome
from penstock.demos.measure import curves, fingerprints, training_clock, writable_png
from penstock.demos.memory import MemoryWatch
from penstock.demos.model import photograph_model, warm_up
from penstock.demos.photographs import TRAINING_COUNT, VALIDATION_COUNT, folder_path, make_folder
from penstock.demos.report import Run, heading
from penstock.report._memory import memory_now

SIDE = 180
BATCH_SIZE = 32
COMPARED_BATCHES = 8
PICTURE_COUNT = 18


def run(
    epochs: int, data_dir: str | None, out: str, counts: tuple[int, int] = (TRAINING_COUNT, VALIDATION_COUNT)
) -> Outcome:
    """Makes the folder, trains, compares with Keras's own reading, draws the picture, returns what was measured.

    Args:
        epochs: At least 1.
        data_dir: The folder where the folder of images is kept; None for the user's cache.
        out: The PNG to write.
        counts: Files of a class, for training and validation, where they are made.

    Raises:
        DemoError: Something is missing. Known before training begins.
    """
    started_at = time.perf_counter()
    out_path = writable_png(Path(out))
    for package, name in (("cv2", "OpenCV"), ("PIL", "Pillow")):
        if importlib.util.find_spec(package) is None:
            raise DemoError(f'The demo needs {name}, which is not installed: pip install "penstock[demo,tensorflow]"')
    backend = choose_backend()
    folder = _folder(folder_path(data_dir), counts)

    load_backend(backend)
    outcome = _train(folder, epochs, out_path)
    print(f"\n{heading(backend, time.perf_counter() - started_at)}\n{outcome}")
    return outcome


def _folder(path: Path, counts: tuple[int, int]) -> Path:
    if path.exists():
        print(f"Photographs: {path} (made before; delete it when you like)")
        return path
    print(f"Cutting JPEGs out of photographs, once: {path}", flush=True)
    make_folder(path, counts=counts)
    return path


def _datasets(folder: Path) -> tuple[ps.Dataset, ps.Dataset]:
    """Single images of 0 to 255 and their labels, distorted anew in each epoch; and batches to validate on."""
    size = (SIDE, SIDE)
    train = ps.image_dataset_from_directory(folder / "training", image_size=size, batch_size=None, seed=1)
    validation = ps.image_dataset_from_directory(
        folder / "validation", image_size=size, batch_size=BATCH_SIZE, shuffle=False
    )
    distort = ps.image.compose(
        ps.image.flip(), ps.image.rotate(10), ps.image.scale(0.1), ps.image.brightness(0.2), on=0, border="reflect"
    )
    return train.random_map(distort, seed=2), validation


def _train(folder: Path, epochs: int, out: Path) -> Outcome:
    train, validation = _datasets(folder)
    batches = train.batch(BATCH_SIZE, drop_remainder=True)
    names = train.class_names or []

    model = photograph_model((SIDE, SIDE, 3), len(names))
    warm_up(model, *batches[0])
    gc.collect()
    before = memory_now()

    with MemoryWatch() as watch:
        print("Training on images that are decoded and distorted as they are needed:", flush=True)
        clock, curve = training_clock(), curves()
        data, validation_data = batches.to_keras(), validation.to_keras(training=False)
        model.fit(
            data,
            validation_data=validation_data,
            epochs=epochs,
            callbacks=[clock, curve],
            verbose=1 if sys.stdout.isatty() else 2,  # a bar, or a line an epoch
        )
        projected_nbytes = data.loader.projected_nbytes + validation_data.loader.projected_nbytes
        report = data.loader.report()
        data.loader.close()
        validation_data.loader.close()

    print("Reading the folder without training, here and by Keras, each in a process of its own ...", flush=True)
    passes = one_pass.measure(folder / "training", SIDE, BATCH_SIZE)
    _draw(out, model, batches, validation, names, curve)
    return Outcome(
        folder=folder,
        file_nbytes=sum(path.stat().st_size for path in folder.glob("*/*/*.jpg")),
        counts=(len(train), len(validation.unbatch())),
        class_names=names,
        image_nbytes=int(np.prod((SIDE, SIDE, 3))) * 4,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        epoch_batches=len(batches),
        accuracy=curve.validation[-1],
        resident_nbytes=curve.resident_nbytes,
        passes=passes,
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


def _draw(out: Path, model: Any, batches: ps.Dataset, validation: ps.Dataset, names: list[str], curve: Any) -> None:
    """Draws the first batch of training, and validation's images that are spread evenly over it."""
    chosen = np.linspace(0, len(validation.unbatch()) - 1, PICTURE_COUNT).astype(int)
    images, labels = zip(*(validation.unbatch()[int(index)] for index in chosen), strict=True)
    answers = np.asarray(model.predict_on_batch(np.stack(images))).argmax(-1)
    seen, seen_labels = batches[0]
    picture.draw_photographs(
        out,
        seen[:PICTURE_COUNT],
        [names[label] for label in seen_labels[:PICTURE_COUNT]],
        np.stack(images),
        truth=[names[label] for label in labels],
        predicted=[names[answer] for answer in answers],
        accuracy=curve.accuracy,
        validation=curve.validation,
        resident_nbytes=curve.resident_nbytes,
    )
