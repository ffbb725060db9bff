"""Data, models and callbacks that the tests of the Keras adapter share."""

import os

import numpy as np

import penstock as ps

BACKEND = os.environ["KERAS_BACKEND"]


def numbered(count=10, batch_size=4, seed=1):
    """Batches `(x, y)`, x `(n, 2)` and y `(n, 1)`, float32; no two samples alike, each epoch in its own order."""
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2) / 100
    return ps.from_arrays((x, x[:, :1] * 2)).shuffle(seed).batch(batch_size)


def delivered(ds, epochs=1):
    """Returns the `x` of all batches of this many epochs, by the inline loader."""
    with ds.loader(executor="inline") as loader:
        return [batch[0].copy() for _ in range(epochs) for batch in loader]


def recording_model(layers=None):
    """A compiled model, of layers or of one that is not yet built, and lists of what its steps were given.

    These are its train, test and predict steps.
    """
    import keras

    class Recording(keras.Sequential):
        def __init__(self):
            super().__init__(layers or [keras.layers.Dense(1)])
            self.trained, self.tested, self.predicted = [], [], []

        # JAX's steps get the state first; on each backend the data come last.
        def train_step(self, *args):
            self.trained.append(args[-1])
            return super().train_step(*args)

        def test_step(self, *args):
            self.tested.append(args[-1])
            return super().test_step(*args)

        def predict_step(self, *args):
            self.predicted.append(args[-1])
            return super().predict_step(*args)

    model = Recording()
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def compiled_model(**options):
    """A model that is traced or compiled, and not yet built."""
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def arrays(batches, part=0):
    """The x of recorded batches, or another part."""
    import keras

    return [keras.ops.convert_to_numpy(batch[part]) for batch in batches]


def at(adapter):
    state = adapter.loader.get_state()
    return state["epoch"], state["position"]


def watching(adapter, every_batch, every_epoch=None):
    """A callback that notes where the adapter's loader says it is."""
    import keras

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            every_batch.append(at(adapter))

        def on_epoch_end(self, epoch, logs=None):
            if every_epoch is not None:
                every_epoch.append(at(adapter))

    return Watching()


def assert_same(found, expected):
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
