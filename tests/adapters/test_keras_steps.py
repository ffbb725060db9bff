"""Numbers of steps that Keras is given, and where an epoch ends, on the backend that KERAS_BACKEND names.

The oracle is Keras with its own data: arrays, and a `PyDataset`.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.adapters.keras_models import (
    BACKEND,
    arrays,
    assert_same,
    at,
    compiled_model,
    delivered,
    numbered,
    recording_model,
)

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("auto_workers_stay", "leaves_nothing_behind")]

COUNT, SIZE = 30, 10
X = np.arange(COUNT, dtype=np.float32)[:, None]
Y = np.zeros_like(X)
PAIRS = ps.from_arrays((X, Y)).batch(SIZE)


def stream() -> ps.Dataset:
    """The same batches, of unknown number."""

    def rows() -> Iterator[Any]:
        yield from zip(X, Y, strict=True)

    return ps.from_generator(rows).batch(SIZE)


def identity() -> Any:
    """A model that returns its input, so the loss is the mean of squares."""
    import keras

    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def own_data() -> Any:
    """The same batches as Keras's own kind of dataset."""
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return COUNT // SIZE

        def __getitem__(self, number: int) -> Any:
            rows = slice(number * SIZE, (number + 1) * SIZE)
            return X[rows], Y[rows]

    return Batches()


def warned(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and how often Keras warned that the data ran out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, sum("ran out of data" in str(each.message) for each in caught)


ADAPTERS = {
    "for training": PAIRS.to_keras,
    "of epoch 0": lambda: PAIRS.to_keras(training=False),
    "a stream": lambda: stream().to_keras(training=False, executor="inline"),
}


@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
def test_evaluate_and_predict_stop_at_the_end_of_the_data_as_keras_does(make: Any) -> None:
    model, adapter = identity(), make()
    for steps in (2, 3, 4, 7):
        loss, warnings_count = warned(lambda steps=steps: model.evaluate(adapter, steps=steps, verbose=0))
        assert (loss, warnings_count) == warned(
            lambda steps=steps: model.evaluate(X, Y, batch_size=SIZE, steps=steps, verbose=0)
        )
        assert (loss, warnings_count) == warned(lambda steps=steps: model.evaluate(own_data(), steps=steps, verbose=0))
        assert warnings_count == (steps > 3)
        assert loss == pytest.approx(123.5 if steps == 2 else 285.1667)
        found, warnings_count = warned(lambda steps=steps: model.predict(adapter, steps=steps, verbose=0))
        assert found[:, 0].tolist() == X[: SIZE * steps, 0].tolist()
        assert warnings_count == (steps > 3)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no steps_per_execution on torch")
@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
def test_several_steps_an_execution_stop_there_too(make: Any) -> None:
    model = identity()
    model.compile("sgd", "mse", steps_per_execution=2, run_eagerly=True)
    for steps in (None, 7):
        assert warned(lambda steps=steps: model.evaluate(make(), steps=steps, verbose=0)) == (
            pytest.approx(285.1667),
            int(steps is not None),
        )
        assert len(warned(lambda steps=steps: model.predict(make(), steps=steps, verbose=0))[0]) == COUNT


@pytest.mark.parametrize("make", [lambda: PAIRS, stream], ids=["known", "a stream"])
def test_validation_stops_there_in_each_epoch(make: Any) -> None:
    model = recording_model()
    held_out = make().to_keras(training=False, executor="inline")
    history, warnings_count = warned(
        lambda: model.fit(
            numbered().map(lambda pair: (pair[0][:, :1], pair[1])).to_keras(executor="inline"),
            validation_data=held_out,
            validation_steps=5,
            validation_freq=2,
            epochs=4,
            verbose=0,
        )
    )
    assert len(history.history["val_loss"]) == warnings_count == 2
    assert_same(arrays(model.tested), delivered(PAIRS) * 2)


def test_training_by_steps_runs_on_while_validation_by_steps_stops() -> None:
    ds = numbered()
    model, adapter = recording_model(), ds.to_keras()
    _, warnings_count = warned(
        lambda: model.fit(
            adapter,
            validation_data=ds.to_keras(training=False),
            steps_per_epoch=5,
            validation_steps=4,
            epochs=2,
            verbose=0,
        )
    )
    assert_same(arrays(model.trained), delivered(ds, 4)[:10])
    assert_same(arrays(model.tested), delivered(ds) * 2)
    assert warnings_count == 2
    assert at(adapter) == (3, 1)


def test_measuring_by_steps_after_set_state_ends_with_the_rest_of_the_epoch() -> None:
    adapter, model = PAIRS.to_keras(), identity()
    adapter.set_state(adapter.get_state() | {"position": 1})
    found, warnings_count = warned(lambda: model.predict(adapter, steps=3, verbose=0))
    assert found[:, 0].tolist() == X[SIZE:, 0].tolist()
    assert warnings_count == 1
    assert at(adapter) == (1, 0)


def test_an_endless_dataset_is_measured_by_steps_from_its_beginning() -> None:
    adapter, model = PAIRS.unbatch().repeat().batch(SIZE).to_keras(training=False), identity()
    for _ in range(2):
        found, warnings_count = warned(lambda: model.predict(adapter, steps=4, verbose=0))
        assert found[:, 0].tolist() == [*X[:, 0].tolist(), *X[:SIZE, 0].tolist()]
        assert warnings_count == 0


def test_predict_with_a_model_that_is_not_built_begins_with_the_first_batch_of_the_epoch() -> None:
    adapter, model = PAIRS.to_keras(), compiled_model()
    assert len(model.predict(adapter, verbose=0)) == COUNT
    assert at(adapter) == (1, 0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="what its trainer makes of the end of an iterator")
def test_the_last_execution_of_a_stream_may_be_short_and_callbacks_see_it() -> None:
    import keras
    import tensorflow as tf

    def ends(x: Any) -> list[int]:
        found: list[int] = []
        watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda number, logs: found.append(number))
        model = compiled_model(steps_per_execution=2)
        warned(lambda: model.fit(x, epochs=2, verbose=0, callbacks=[watch]))
        return found

    theirs = tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE).filter(lambda x, y: True)
    assert ends(stream().to_keras(executor="inline")) == ends(theirs) == [1, 3] * 2
