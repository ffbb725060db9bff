"""The demo's network: two small convolutions that learn what to add to a frame to get the next one."""

import importlib
import importlib.util
import os
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.demos.film import DemoError

BACKENDS = ("tensorflow", "torch", "jax")


def choose_backend() -> str:
    """Sets and returns `KERAS_BACKEND`: the user's own, or else the first of `BACKENDS` that is installed.

    To be called before Keras is imported. Imports nothing itself.

    Raises:
        DemoError: Keras, or every backend, is missing.
    """
    if importlib.util.find_spec("keras") is None:
        raise DemoError('The demo trains with Keras, which is not installed: pip install "penstock[demo,tensorflow]"')
    asked = os.environ.get("KERAS_BACKEND")
    installed = [name for name in ([asked] if asked else BACKENDS) if importlib.util.find_spec(name)]
    if not installed:
        raise DemoError(
            f"KERAS_BACKEND={asked} is asked for, but {asked} is not installed: pip install {asked}"
            if asked
            else f"Keras needs one of {', '.join(BACKENDS)}, and none is installed: "
            'pip install "penstock[demo,tensorflow]", or where there is no GPU, pip install tensorflow-cpu'
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    return installed[0]


def load_backend(name: str) -> None:
    """Imports the backend and Keras; that takes seconds.

    TensorFlow (2.21) writes notes about its own build straight to descriptor 2 while it is imported, whatever its log
    level. They are shown only if the import fails.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            importlib.import_module(name)
            importlib.import_module("keras")
        except Exception:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def next_frame_model(shape: tuple[int, ...], channels_axis: int | None, low: float, high: float) -> Any:
    """Makes a compiled Keras model from a frame to the next, both of the given shape, in the data's own units.

    Untrained it copies the last frame: the last convolution begins at zero. Its loss is the mean square error in
    units of the range, so that it does not depend on whether frames are 0 to 1 or 0 to 255.

    Args:
        shape: Of one frame, without a batch axis.
        channels_axis: Which axis of it holds channels: 0, 2, or None where there is none.
        low: The darkest value.
        high: The brightest.
    """
    import keras
    from keras import layers

    def error(true: Any, predicted: Any) -> Any:
        return keras.ops.mean(keras.ops.square((true - predicted) / (high - low)))

    def convolution(filters: int, size: int, seed: int, **options: Any) -> Any:
        # Seeds here, because `keras.utils.set_random_seed` imports TensorFlow on any backend.
        options = {"kernel_initializer": keras.initializers.GlorotUniform(seed)} | options
        return layers.Conv2D(filters, size, padding="same", data_format="channels_last", **options)

    frame = layers.Input(shape)
    # Channels last, for that is what TensorFlow has on CPUs.
    if channels_axis is None:
        image = layers.Reshape((*shape, 1))(frame)
    else:
        image = layers.Permute((2, 3, 1))(frame) if channels_axis == 0 else frame
    image = layers.Rescaling(1 / (high - low), offset=-low / (high - low))(image)
    change = convolution(16, 5, seed=1, activation="relu")(image)
    change = convolution(16, 3, seed=2, activation="relu")(change)
    change = convolution(image.shape[-1], 3, seed=3, kernel_initializer="zeros")(change)
    image = layers.Rescaling(high - low, offset=low)(layers.Add()([image, change]))
    if channels_axis is None:
        image = layers.Reshape(shape)(image)
    elif channels_axis == 0:
        image = layers.Permute((3, 1, 2))(image)
    model = keras.Model(frame, image)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss=error)
    return model


def warm_up(model: Any, frames: npt.NDArray[np.float32], targets: npt.NDArray[np.float32]) -> None:
    """Trains and evaluates on one batch, so that the framework has the memory it needs; then undoes it."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]
    # Not `train_on_batch`: that traces a step with sample weights, and `fit` would trace another one without.
    model.fit(frames, targets, batch_size=len(frames), epochs=20, verbose=0)
    model.evaluate(frames, targets, batch_size=len(frames), verbose=0)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
