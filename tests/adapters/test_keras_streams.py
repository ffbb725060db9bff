"""Streams of unknown length in `fit`, `evaluate` and `predict`, on the backend that KERAS_BACKEND names."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.adapters.keras_models import arrays, compiled_model, recording_model

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("auto_workers_stay", "leaves_nothing_behind")]


def trained_on(epochs: int) -> list[Any]:
    """The first column of each batch that training should see."""
    with samples().loader("inline") as loader:
        return [batch[0][:, 0].tolist() for _ in range(epochs) for batch in loader]


def samples(count: int = 10) -> ps.Dataset:
    """Batches of 4 of `(x, y)`, x `(n, 2)`, y `(n, 1)`, float32, each epoch in its own order, of unknown length."""

    def rows() -> Iterator[Any]:
        for i in range(count):
            yield np.array([i, -i], np.float32), np.array([i], np.float32)

    return ps.from_generator(rows).filter(lambda xy: xy[1][0] != 5).shuffle(1, window=4).batch(4)


def seen(batches: Any) -> list[Any]:
    return [batch[:, 0].tolist() for batch in arrays(batches)]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_training_and_validation_see_whole_epochs(executor: str) -> None:
    model = recording_model()
    history = model.fit(
        samples().to_keras(executor=executor),
        validation_data=samples().to_keras(training=False, executor=executor),
        epochs=3,
        verbose=0,
    )
    assert len(history.history["loss"]) == len(history.history["val_loss"]) == 3
    assert seen(model.trained) == trained_on(3)
    assert seen(model.tested) == trained_on(1) * 3


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_per_epoch_continue_into_the_next_epoch(steps: int) -> None:
    adapter, model = samples().to_keras(), recording_model()
    model.fit(adapter, epochs=3, steps_per_epoch=steps, verbose=0)
    model.fit(adapter, epochs=1, steps_per_epoch=steps, verbose=0)
    assert seen(model.trained) == trained_on(8)[: 4 * steps]


def test_an_endless_stream_needs_steps_per_epoch() -> None:
    model = recording_model()
    model.fit(samples().repeat().to_keras(), epochs=2, steps_per_epoch=5, verbose=0)
    assert len(model.trained) == 10
    with pytest.raises(ps.ArgumentError, match=r"endless.*steps_per_epoch"):
        compiled_model().fit(samples().repeat().to_keras(), verbose=0)


def test_evaluate_and_predict_see_one_epoch_each_time() -> None:
    adapter, model = samples().to_keras(training=False), recording_model()
    for _ in range(2):
        model.evaluate(adapter, verbose=0)
        assert model.predict(adapter, verbose=0).shape == (9, 1)
    assert seen(model.tested) == trained_on(1) * 2


def test_an_error_in_a_stream_ends_fit_and_a_later_fit_works() -> None:
    broken = [True]

    def rows() -> Iterator[Any]:
        for i in range(12):
            if i == 9 and broken:
                raise OSError("the disk is gone")
            yield np.ones(2, np.float32), np.ones(1, np.float32)

    adapter, model = ps.from_generator(rows).batch(4).to_keras(executor="threads"), compiled_model()
    with pytest.raises(Exception, match=r"(?s)failed at element 9 of epoch 0.*the disk is gone"):
        model.fit(adapter, epochs=2, verbose=0)
    broken.clear()
    assert len(model.fit(adapter, epochs=2, verbose=0).history["loss"]) == 2
