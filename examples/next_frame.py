"""Trains a Keras model to predict the next frame of a film that stays on disk.

`x` is a frame and `y` the one after it. Nothing is loaded before training: each batch is read when its turn comes,
in an order that is shuffled over the whole file. Needs Keras with any backend.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import penstock as ps

# A bright bar moves to the right by a pixel a frame, and comes back in from the left.
film = np.zeros((400, 1, 16, 16))
for number, frame in enumerate(film):
    frame[0, 4:12] = np.roll(np.arange(16) < 5, number)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "film.npy"
    np.save(path, film)

    frames = ps.from_npy(path)  # (400, 1, 16, 16) float64, on disk
    pairs = ps.zip((frames[:-1], frames[1:]))  # x is a frame, y the next; nothing is read
    train, validation, test = pairs.split(0.6, 0.2, 0.2)

    model = keras.Sequential(
        [
            keras.layers.Input((1, 16, 16)),
            keras.layers.Flatten(),
            keras.layers.Dense(256),
            keras.layers.Reshape((1, 16, 16)),
        ]
    )
    model.compile("adam", "mse")
    model.fit(
        train.shuffle(seed=1).batch(32).cast("float32").to_keras(),
        validation_data=validation.batch(32).cast("float32").to_keras(training=False),
        epochs=20,
        verbose=2,
    )
    error = model.evaluate(test.batch(32).cast("float32").to_keras(training=False), verbose=0)

copied = float(np.square(film[1:] - film[:-1]).mean())
print(f"Mean square error on the test: {error:.4f}; copying the last frame would have {copied:.4f}.")
assert error < copied / 2
