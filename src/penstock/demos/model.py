"""The demo's network, a small one for two cores without a GPU, and the framework that runs it."""

import importlib.util
import os
from typing import Any

from penstock.base._arguments import install
from penstock.demos.film import DemoError

BACKENDS = ("tensorflow", "torch", "jax")


def choose_backend() -> str:
    """Sets and returns `KERAS_BACKEND`: the user's choice, or else the first of `BACKENDS` that is installed.

    Call it before Keras is imported. It imports nothing itself.

    Raises:
        DemoError: Keras, or every backend, is missing.
    """
    asked = os.environ.get("KERAS_BACKEND")
    backends = (asked,) if asked else BACKENDS
    found = next(filter(importlib.util.find_spec, backends), None)
    if found is None or importlib.util.find_spec("keras") is None:
        packages = install("keras", backends[0], "matplotlib", "scikit-image")
        raise DemoError(
            f"The demo trains with Keras on {' or '.join(backends)}, which is not installed: {packages}. "
            "Without a GPU, tensorflow-cpu is smaller than tensorflow."
        )
    os.environ["KERAS_BACKEND"] = found
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow writes notes about its build to stderr
    return found


def next_frame_model(shape: tuple[int, ...], channels_axis: int | None, low: float, high: float) -> Any:
    """Makes a compiled Keras model from a frame to the next, both of the given shape, in the data's own units.

    Untrained it copies the last frame, because the last convolution begins at zero. Its loss is the mean square error
    in units of the range, so that it does not depend on whether frames are 0 to 1 or 0 to 255.

    Args:
        shape: The shape of a frame, without a batch axis.
        channels_axis: The axis that holds channels: 0, 2, or None without channels.
        low: The darkest value.
        high: The brightest value.
    """
    import keras
    from keras import layers

    def error(true: Any, predicted: Any) -> Any:
        return keras.ops.mean(keras.ops.square((true - predicted) / (high - low)))

    def convolution(filters: int, size: int, seed: int, **options: Any) -> Any:
        # The seeds are here because `keras.utils.set_random_seed` imports TensorFlow on any backend.
        options = {"kernel_initializer": keras.initializers.GlorotUniform(seed)} | options
        return layers.Conv2D(filters, size, padding="same", data_format="channels_last", **options)

    # TensorFlow has convolutions on CPUs for channels last only.
    to_image, to_frame = layers.Identity(), layers.Identity()
    if channels_axis is None:
        to_image, to_frame = layers.Reshape((*shape, 1)), layers.Reshape(shape)
    elif channels_axis == 0:
        to_image, to_frame = layers.Permute((2, 3, 1)), layers.Permute((3, 1, 2))
    frame = layers.Input(shape)
    image = layers.Rescaling(1 / (high - low), offset=-low / (high - low))(to_image(frame))
    change = convolution(16, 5, seed=1, activation="relu")(image)
    change = convolution(16, 3, seed=2, activation="relu")(change)
    change = convolution(image.shape[-1], 3, seed=3, kernel_initializer="zeros")(change)
    image = layers.Rescaling(high - low, offset=low)(layers.Add()([image, change]))
    model = keras.Model(frame, to_frame(image))
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss=error)
    return model
