"""Trains a Keras model with two named inputs, weights for elements, and data from two files and memory.

Elements are trees: a dict of inputs is a dict in every batch. Needs Keras with any backend.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import penstock as ps

rng = np.random.default_rng(0)
images = rng.normal(size=(600, 8, 8)).astype("float32")
ages = rng.uniform(0, 1, size=(600, 1)).astype("float32")
targets = images.mean((1, 2))[:, None] + 2 * ages

with tempfile.TemporaryDirectory() as folder:
    np.save(Path(folder) / "images.npy", images)
    np.save(Path(folder) / "ages.npy", ages)

    inputs = ps.from_npy({"image": Path(folder) / "images.npy", "age": Path(folder) / "ages.npy"})
    weights = np.where(ages[:, 0] > 0.5, 2.0, 1.0).astype("float32")
    elements = ps.zip((inputs, ps.from_arrays(targets), ps.from_arrays(weights)))  # x, y, sample_weight
    train, test = elements.split(0.8, 0.2, seed=5)
    print(train.batch(20))

    image = keras.layers.Input((8, 8), name="image")
    age = keras.layers.Input((1,), name="age")
    both = keras.layers.Concatenate()([keras.layers.Flatten()(image), age])
    model = keras.Model({"image": image, "age": age}, keras.layers.Dense(1)(both))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(train.shuffle(seed=1).batch(20).to_keras(), epochs=20, verbose=2)
    error = model.evaluate(test.batch(20).to_keras(training=False), verbose=0)

variance = float(targets.var())
print(f"Mean square error on the test: {error:.4f}; the targets' variance is {variance:.4f}.")
assert error < variance / 5
