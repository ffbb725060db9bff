"""The demos' networks: small ones, for two cores without a GPU."""

from typing import Any

import numpy as np
import numpy.typing as npt


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


def character_model(shape: tuple[int, int], class_count: int) -> Any:
    """Makes a compiled Keras model from a grey uint8 image of the given shape to a score for each character."""
    from keras import layers

    image = layers.Input(shape, dtype="uint8")
    maps = layers.Rescaling(1 / 255)(layers.Reshape((*shape, 1))(image))
    return _classifier(image, layers.Flatten()(_shrunk(maps, ((16, 5, 2), (32, 3, 2), (64, 3, 2)))), class_count)


def photograph_model(shape: tuple[int, int, int], class_count: int) -> Any:
    """Makes a compiled Keras model from a float32 image of 0 to 255 to a score for each class."""
    from keras import layers

    image = layers.Input(shape)
    maps = _shrunk(layers.Rescaling(1 / 255)(image), ((24, 5, 4), (48, 3, 2), (96, 3, 2)))
    return _classifier(image, layers.GlobalAveragePooling2D(data_format="channels_last")(maps), class_count)


def _shrunk(maps: Any, convolutions: tuple[tuple[int, int, int], ...]) -> Any:
    """Convolutions one after another, each (filters, size, strides), with normalised batches."""
    import keras
    from keras import layers

    for number, (filters, size, strides) in enumerate(convolutions):
        convolution = layers.Conv2D(
            filters,
            size,
            strides=strides,
            padding="same",
            use_bias=False,
            data_format="channels_last",
            kernel_initializer=keras.initializers.GlorotUniform(number),
        )
        # 0.9: the averages of an evaluation follow within the few dozen batches of an epoch.
        maps = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(convolution(maps)))
    return maps


def _classifier(image: Any, features: Any, class_count: int) -> Any:
    """A compiled model from an input to a score for each class, of its features."""
    import keras
    from keras import layers

    model = keras.Model(
        image, layers.Dense(class_count, kernel_initializer=keras.initializers.GlorotUniform(3))(features)
    )
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def warm_up(model: Any, inputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> None:
    """Trains and evaluates on one batch, so that the framework has the memory it needs; then undoes it."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]
    # Not `train_on_batch`: that traces a step with sample weights, and `fit` would trace another one without.
    model.fit(inputs, targets, batch_size=len(inputs), epochs=20, verbose=0)
    model.evaluate(inputs, targets, batch_size=len(inputs), verbose=0)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
