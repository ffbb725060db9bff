"""Trains a small Keras model on spoken commands: files in class folders, decoded, cropped, and made spectrograms.

    python examples/speech_commands.py

The words are made here: tones that rise, fall or stay, in noise, half a second to a second long. Training crops at
random places in each epoch; validation takes the whole second. Needs Keras and the extra `audio`.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import soundfile

import penstock as ps
from penstock import audio

RATE = 8_000
WORDS = {"down": -1, "stay": 0, "up": 1}


def write_words(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for word, direction in WORDS.items():
        (folder / word).mkdir()
        for number in range(count):
            size = int(rng.integers(RATE // 2, RATE))
            pitch = np.linspace(1, 1 + direction * 0.6, size) * rng.uniform(900, 1_300)
            samples = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + rng.normal(size=size) * 0.03
            soundfile.write(folder / word / f"{number}.wav", samples, RATE)


def main() -> None:
    keras.utils.set_random_seed(1)
    crop = audio.RandomCrop(0.9, sample_rate=RATE, mono=True)
    whole = audio.Decoding(RATE, mono=True, duration=0.9)
    spectrogram = audio.Spectrogram(256, 128, mel_bands=32, sample_rate=RATE)
    with tempfile.TemporaryDirectory() as folder:
        write_words(Path(folder), 60)
        words = ps.from_files(f"{folder}/*/*.wav", labels="inferred")
        train, val = words.split(0.8, 0.2, stratify=[each["label"] for each in words], seed=1)
        crops = train.shuffle(seed=1).random_map(
            lambda e, rng: (spectrogram(crop(e["bytes"], rng)), e["label"]), seed=2
        )
        tests = val.map(lambda e: (spectrogram(whole(e["bytes"])), e["label"]))
        shape = tests.element_spec[0].shape
        model = keras.Sequential(
            [
                keras.layers.Input(shape),
                keras.layers.LayerNormalization(),
                keras.layers.Conv1D(32, 5, activation="relu"),
                keras.layers.MaxPooling1D(2),
                keras.layers.Conv1D(32, 5, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(len(WORDS), activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        validation = tests.batch(12).to_keras(training=False, executor="threads")
        model.fit(crops.batch(16).to_keras(executor="threads"), validation_data=validation, epochs=6, verbose=2)
        _, accuracy = model.evaluate(validation, verbose=0)
    print(f"{accuracy:.0%} of words that training never heard are named right.")
    assert accuracy > 0.8


if __name__ == "__main__":
    main()
