"""Reads characters: half of every batch distorted and half as it is, in float16, into Keras's `fit`.

    python examples/characters.py
    python examples/characters.py --etl path/to/etlcdb --part ETL8B --epochs 20 --picture batch.png

Without files of the ETL Character Database, hiragana and kanji are rendered from a font, in five sizes, two weights
and two places each. Validation sees a size that training never sees; of the ETL files, it sees other elements. Both are
split off before anything is distorted. Needs Keras, Pillow, the extras `image` and `show`, and, for the font, the
package matplotlib-fontja.
"""

import argparse
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import penstock as ps
from penstock.image import blur, compose, one_of, rotate, scale, sharpen, shear, sine_warp, smooth

HIRAGANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
KANJI = "一右雨円王音下火花貝学気九休玉金空月犬見五口校左三山子四糸字耳七車手十出女小上森人水正生青夕石赤千川先早草足"

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--etl", help="folder of the ETL Character Database; without it characters are rendered")
parser.add_argument("--part", help="of the database, such as ETL8B")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--picture", help="PNG to write: a batch as it is trained on")
arguments = parser.parse_args()


def rendered(names, sizes=(36, 40, 48, 52, 44)):
    """Images (64, 64, 1) uint8, light on black, with their labels and sizes."""
    # The font IPAexGothic. The package itself is not imported, because that would change Matplotlib's settings.
    (package,) = importlib.util.find_spec("matplotlib_fontja").submodule_search_locations
    random = np.random.default_rng(0)
    images, labels, heights = [], [], []
    for size in sizes:
        font = ImageFont.truetype(str(Path(package, "fonts", "ipaexg.ttf")), size)
        for weight in (0, 0, 1, 1):
            for label, name in enumerate(names):
                image = Image.new("L", (64, 64))
                place = tuple(random.integers(28, 37, 2).tolist())
                ImageDraw.Draw(image).text(place, name, fill=255, font=font, anchor="mm", stroke_width=weight)
                images.append(np.asarray(image)[..., None])
                labels.append(label)
                heights.append(size)
    return np.stack(images), np.array(labels, "int32"), np.array(heights)


if arguments.etl:
    characters = ps.from_etlcdb(arguments.etl, part=arguments.part, groups=("hiragana", "kanji"))
    names = characters.class_names
    # By element and at random: in a file all of one character come together.
    train, validation = characters.split(0.8, 0.2, seed=0)
else:
    names = list(HIRAGANA + KANJI)
    images, labels, heights = rendered(names)
    characters = ps.from_arrays((images, labels))
    # By size: renderings of one size and weight are nearly the same image, and one in each part would be a leak.
    train, validation = characters.split(0.8, 0.2, groups=heights)

distort = compose(
    rotate(12), shear(0.2), scale(0.15), sine_warp(2, (24, 64)), one_of(blur(1.2), sharpen(1), smooth(1)), on=0
)
train = train.shuffle(seed=1)
half = ps.interleave([train, train.random_map(distort, seed=2)])  # one as it is, one distorted, and so on
batches = half.batch(64, drop_remainder=True).cast(("float16", None))
clean = validation.batch(100).cast(("float16", None))
hard = validation.random_map(distort, seed=3).batch(100).cast(("float16", None))  # the same distortions each time

half.batch(32).show(arguments.picture, count=32, class_names=names)

layers = keras.layers
shape = characters.element_spec[0].shape
model = keras.Sequential([layers.Input(shape, dtype="float16"), layers.Rescaling(1 / 255)])
for filters, size in ((16, 5), (32, 3), (64, 3)):
    model.add(layers.Conv2D(filters, size, strides=2, padding="same", use_bias=False))
    model.add(layers.BatchNormalization(momentum=0.9))
    model.add(layers.ReLU())
model.add(layers.Flatten())
model.add(layers.Dense(len(names)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])

data = batches.to_keras()
model.fit(data, validation_data=clean.to_keras(training=False), epochs=arguments.epochs, verbose=2)
print(data.loader.report())
for what, part in (("as they are", clean), ("distorted", hard)):
    accuracy = model.evaluate(part.to_keras(training=False), verbose=0, return_dict=True)["accuracy"]
    print(
        f"{accuracy:.1%} of characters that training never saw are named right, {what}; chance is {1 / len(names):.1%}"
    )
    assert arguments.etl or accuracy > 0.5
