"""The demo's network, a small one for two cores without a GPU, and the framework that runs it."""

import importlib
import importlib.util
import os
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import install
from penstock.base._interrupts import ctrl_c_stays
from penstock.demos.film import DemoError

BACKENDS = ("tensorflow", "torch", "jax")
INSTALL = install("keras", "tensorflow", "matplotlib", "scikit-image")


def choose_backend() -> str:
    """Sets and returns `KERAS_BACKEND`: the user's choice, or else the first of `BACKENDS` that is installed.

    Call it before Keras is imported. It imports nothing itself.

    Raises:
        DemoError: Keras, or every backend, is missing.
    """
    if importlib.util.find_spec("keras") is None:
        raise DemoError(f"The demo trains with Keras, which is not installed: {INSTALL}")
    asked = os.environ.get("KERAS_BACKEND")
    installed = [name for name in ([asked] if asked else BACKENDS) if importlib.util.find_spec(name)]
    if not installed and asked:
        raise DemoError(f"KERAS_BACKEND={asked} is asked for, but {asked} is not installed: pip install {asked}")
    if not installed:
        raise DemoError(
            f"Keras needs one of {', '.join(BACKENDS)}, and none is installed: {INSTALL}. Without a GPU, "
            "tensorflow-cpu is smaller: pip install tensorflow-cpu"
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    return installed[0]


def load_backend(name: str) -> None:
    """Imports the backend and Keras, which takes seconds.

    TensorFlow (2.21) writes notes about its own build straight to descriptor 2 while it is imported, at any log level.
    They are printed only if the import fails.
    """
    # The first call finds the folder of temporary files by writing one. Ctrl-C in the middle of a library's first call
    # would leave it there.
    tempfile.gettempdir()
    print(f"Loading Keras on {name} ...", flush=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        try:
            os.dup2(notes.fileno(), 2)
            with ctrl_c_stays():
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

    frame = layers.Input(shape)
    # TensorFlow has convolutions on CPUs for channels last only.
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


def warm_up(model: Any, inputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> None:
    """Trains and evaluates on one batch, so that the framework allocates its memory. Then restores all variables."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]
    # `train_on_batch` would trace a step with sample weights, and `fit` another one without.
    model.fit(inputs, targets, batch_size=len(inputs), epochs=20, verbose=0)
    model.evaluate(inputs, targets, batch_size=len(inputs), verbose=0)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
