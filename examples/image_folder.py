"""Reads a folder of photographs as Keras's `image_dataset_from_directory` does, batch by batch and any batch alone.

Splits are Keras's for the same seed; no file is opened before its batch, and a file that is no image is named.
Needs OpenCV and simplejpeg: the extra `image`.
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np

import penstock as ps

rng = np.random.default_rng(0)

with tempfile.TemporaryDirectory() as folder:
    for number in range(300):
        path = Path(folder, ("circles", "squares")[number % 2], f"{number:03d}.jpg")
        path.parent.mkdir(exist_ok=True)
        picture = rng.integers(0, 60, (150, 200, 3), "uint8")
        x, y, size = (int(rng.integers(60, 100)) for _ in range(3))
        if number % 2:
            cv2.rectangle(picture, (x - size // 2, y - size // 2), (x + size // 2, y + size // 2), (200, 220, 240), -1)
        else:
            cv2.circle(picture, (x, y), size // 2, (200, 220, 240), -1)
        cv2.imwrite(str(path), picture)

    train, validation = ps.image_dataset_from_directory(
        folder, image_size=(64, 64), validation_split=0.2, subset="both", seed=1, label_mode="binary", dtype="uint8"
    )
    print(train)
    assert not set(train.file_paths) & set(validation.file_paths)

    images, labels = validation[1]  # the second batch, and nothing else
    first = validation.file_paths[32]
    assert train.class_names[int(labels[0, 0])] == Path(first).parent.name

    count = 0
    with train.loader() as loader:
        for images, labels in loader:
            assert images.shape[1:] == (64, 64, 3)
            count += len(labels)
    assert count == 240

    Path(first).write_text("Moved to another disk.")
    try:
        validation[1]
    except ps.SourceError as error:
        said = str(error)
    assert Path(first).name in said

print(f"{count} images to train came, {len(validation.file_paths)} are kept apart; a bad file is named.")
