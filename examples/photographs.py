"""Trains Keras on a folder of photographs that are decoded and distorted as they are needed.

The folder holds cut-outs of four photographs of scikit-image, a class each. Training sees the left part of each
photograph, and validation the right part. Needs Keras, scikit-image and the extra `image`.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import cv2
import keras
import numpy as np
from skimage import data

import penstock as ps
from penstock.image import brightness, compose, flip, rotate, scale

SIDE = 96


def cut_out(photograph, folder, count, rng):
    """Writes squares of a photograph, at random places and of random sizes, as JPEGs."""
    folder.mkdir(parents=True)
    for number in range(count):
        size = int(rng.uniform(0.5, 0.9) * min(photograph.shape[:2]))
        top, left = (int(rng.integers(0, whole - size + 1)) for whole in photograph.shape[:2])
        square = photograph[top : top + size, left : left + size]
        cv2.imwrite(str(folder / f"{number:03d}.jpg"), cv2.resize(square, (200, 200))[..., ::-1])


with tempfile.TemporaryDirectory() as name:
    folder, rng = Path(name), np.random.default_rng(0)
    for photograph in (data.chelsea, data.coffee, data.rocket, data.astronaut):
        image, border = photograph(), int(0.6 * photograph().shape[1])
        cut_out(image[:, :border], folder / "training" / photograph.__name__, 60, rng)
        cut_out(image[:, border:], folder / "validation" / photograph.__name__, 20, rng)

    options = {"image_size": (SIDE, SIDE), "batch_size": None}
    train = ps.image_dataset_from_directory(folder / "training", seed=1, **options)
    validation = ps.image_dataset_from_directory(folder / "validation", shuffle=False, **options)
    # Only the image, leaf 0, is distorted: in another way in each epoch.
    distort = compose(flip(), rotate(10), scale(0.1), brightness(0.2), on=0, border="reflect")
    batches = train.random_map(distort, seed=2).batch(32, drop_remainder=True).to_keras()

    layers = keras.layers
    model = keras.Sequential([layers.Input((SIDE, SIDE, 3)), layers.Rescaling(1 / 255)])
    for filters in (16, 32, 64):
        model.add(layers.Conv2D(filters, 3, strides=2, use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.8))
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(len(train.class_names)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(batches, validation_data=validation.batch(32).to_keras(training=False), epochs=10, verbose=2)

    print(batches.loader.report())
    accuracy = model.evaluate(validation.batch(32).to_keras(training=False), verbose=0, return_dict=True)["accuracy"]

print(f"{accuracy:.0%} of cut-outs that training never saw are given to the right photograph; chance is 25%.")
assert accuracy > 0.4
