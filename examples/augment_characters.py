"""Distorts half of every batch with Pillow, in worker processes, while Keras trains.

Pillow holds the GIL for images as small as these, so threads would not help. Workers are processes that import
penstock, NumPy and what the function uses: this script is not run again in them, and needs no `__main__` guard.
Needs Keras and Pillow.
"""

import os
import string

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

import penstock as ps

NAMES = string.ascii_uppercase
SIDE, COPIES = 32, 30


def distort(element, rng):
    """Rotates, shears and blurs an image, and leaves its label."""
    image, label = element
    distorted = Image.fromarray(image).rotate(rng.uniform(-25, 25), Image.Resampling.BILINEAR)
    shear = (1, rng.uniform(-0.2, 0.2), 0, rng.uniform(-0.2, 0.2), 1, 0)
    distorted = distorted.transform(distorted.size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR)
    return np.asarray(distorted.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.5)))), label


# Letters in sizes of 14 to 23 pixels, off the centre by some.
random = np.random.default_rng(0)
labels = np.tile(np.arange(len(NAMES)), COPIES)
images = np.zeros((len(labels), SIDE, SIDE), "uint8")
for number, label in enumerate(labels):
    drawn, place, font = Image.new("L", (SIDE, SIDE)), 16 + random.integers(-3, 4, 2), random.integers(14, 24)
    ImageDraw.Draw(drawn).text(tuple(place), NAMES[label], 255, ImageFont.load_default(font), anchor="mm")
    images[number] = drawn
glyphs = ps.from_arrays((images, labels))  # elements (image, label); from_npy, if they were on disk
train, validation = glyphs.split(0.9, 0.1)
distorted = train.shuffle(seed=2).random_map(distort, seed=3)
batches = ps.interleave([train.shuffle(seed=1), distorted]).batch(64)  # half as they are, half distorted
hard = validation.random_map(distort, seed=4).batch(64)  # the same distortions each time

layers, loss = keras.layers, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model = keras.Sequential([layers.Input((SIDE, SIDE)), layers.Rescaling(1 / 255), layers.Reshape((SIDE, SIDE, 1))])
model.add(layers.Conv2D(16, 5, strides=2, activation="relu"))
model.add(layers.Conv2D(32, 3, strides=2, activation="relu"))
model.add(layers.Flatten())
model.add(layers.Dense(len(NAMES)))
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
data = batches.to_keras()
model.fit(data, validation_data=hard.to_keras(training=False), epochs=8, verbose=2)

accuracy = model.evaluate(hard.to_keras(training=False), verbose=0, return_dict=True)["accuracy"]
print(data.loader.report())
print(f"{accuracy:.0%} of distorted letters that training never saw are named right; chance is {1 / len(NAMES):.0%}.")
assert accuracy > 0.2
