"""`to_keras(uneven=)`: shares of batches that do not divide, on the backend that KERAS_BACKEND names.

The oracle is Keras with arrays of the rows that a process has.
"""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.adapters.keras_models import BACKEND, arrays, recording_model

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("auto_workers_stay", "leaves_nothing_behind")]

X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
Y = (X[:, :1] * 3 + np.arange(30, dtype=np.float32)[:, None]).astype(np.float32)


def model_of(**options: Any) -> Any:
    """A model with the same weights each time."""
    import keras

    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((2,)), layer])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"], weighted_metrics=["mse"], **options)
    return model


def batches(count: int, size: int = 8) -> ps.Dataset:
    return ps.from_arrays((X[:count], Y[:count])).batch(size)


def shares(count: int, size: int, ranks: int) -> list[list[np.ndarray[Any, Any]]]:
    """The rows that each rank gets, batch by batch."""
    part = -(-size // ranks)
    firsts = range(0, count, size)
    return [
        [np.arange(count)[first : first + size][rank * part : (rank + 1) * part] for first in firsts]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("uneven", ["mask", "weights"])
def test_one_process_trains_and_measures_as_on_arrays(uneven: str) -> None:
    options = {"run_eagerly": True} if uneven == "weights" else {}  # to compile both takes long
    ours, theirs = model_of(**options), model_of(**options)
    held_out = batches(29).to_keras(training=False, uneven=uneven)
    found = ours.fit(batches(13).to_keras(uneven=uneven), validation_data=held_out, epochs=2, verbose=0)
    wanted = theirs.fit(
        X[:13], Y[:13], batch_size=8, shuffle=False, validation_data=(X[:29], Y[:29]), epochs=2, verbose=0,
        validation_batch_size=8,
    )  # fmt: skip
    assert set(found.history) == set(wanted.history)
    for name, values in wanted.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5, err_msg=name)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    predicted = ours.predict(held_out, verbose=0)
    np.testing.assert_allclose(predicted, theirs.predict(X[:29], batch_size=8, verbose=0), rtol=1e-5)


def test_filled_rows_are_not_divided_by() -> None:
    x = np.arange(28, dtype=np.float32)[:, None]
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(loss="mse")
    adapter = ps.from_arrays((x, 0 * x)).batch(10).to_keras(training=False, uneven="mask")
    assert model.evaluate(adapter, verbose=0) == pytest.approx(247.5)  # with two more rows 231


@pytest.mark.parametrize("count", [16, 13, 10, 9], ids=lambda count: f"{count} rows")
def test_what_ranks_measure_is_of_their_own_rows_and_together_of_all(count: int) -> None:
    model = model_of(run_eagerly=True)
    sums, predicted = np.zeros(3), []
    for rank, mine in enumerate(shares(count, 8, 2)):
        rows = np.concatenate(mine)
        adapter = batches(count).to_keras(training=False, uneven="mask", shard=(rank, 2), executor="inline")
        found = model.evaluate(adapter, verbose=0)
        np.testing.assert_allclose(found, model.evaluate(X[rows], Y[rows], batch_size=4, verbose=0), rtol=1e-5)
        predicted.append(model.predict(adapter, verbose=0))
        np.testing.assert_allclose(predicted[-1], model.predict(X[rows], verbose=0), rtol=1e-5)
        sums += np.multiply(found, len(rows))
    assert len(np.concatenate(predicted)) == count
    np.testing.assert_allclose(sums / count, model.evaluate(X[:count], Y[:count], verbose=0), rtol=1e-5)


def test_steps_of_ranks_are_equally_many_in_training_and_those_without_rows_weigh_nothing() -> None:
    models = [recording_model() for _ in range(2)]
    for rank, model in enumerate(models):
        history = model.fit(
            batches(10).to_keras(uneven="mask", shard=(rank, 2), executor="inline"), epochs=2, verbose=0
        )
        assert np.isfinite(history.history["loss"]).all()
    weights = [[each.tolist() for each in arrays(model.trained, 2)] for model in models]
    assert weights == [[[1] * 4, [1] * 2] * 2, [[1] * 4, [0]] * 2]


def test_weights_make_the_mean_over_ranks_that_of_one_process_in_every_step() -> None:
    models = [recording_model() for _ in range(3)]
    for rank, model in enumerate(models):
        model.fit(batches(29).to_keras(uneven="weights", shard=(rank, 3), executor="inline"), verbose=0)
    steps = zip(
        *(zip(arrays(model.trained, 1), arrays(model.trained, 2), strict=True) for model in models), strict=True
    )
    means = [np.mean([np.mean(y[:, 0] * weights) for y, weights in step]) for step in steps]
    np.testing.assert_allclose(means, [Y[first : min(29, first + 8)].mean() for first in range(0, 29, 8)], rtol=1e-5)


def test_a_stream_and_parts_of_batches_are_measured_as_arrays() -> None:
    model = model_of(run_eagerly=True)
    stream = ps.from_arrays((X[:13], Y[:13])).filter(lambda pair: True).batch(8)
    wanted = model.evaluate(X[:13], Y[:13], verbose=0)
    for ds, options in ((stream, {}), (batches(13), {"micro_batches": 4}), (stream, {"micro_batches": 2})):
        adapter = ds.to_keras(training=False, uneven="mask", executor="inline", **options)
        np.testing.assert_allclose(model.evaluate(adapter, verbose=0), wanted, rtol=1e-5)
        assert len(model.predict(adapter, verbose=0)) == 13


def test_steps_end_with_the_rows_of_a_rank() -> None:
    model = model_of(run_eagerly=True)
    adapter = batches(26).to_keras(training=False, uneven="mask", shard=(1, 2), executor="inline")  # 4, 4, 4, 0
    with pytest.warns(UserWarning, match="ran out of data"):
        assert len(model.predict(adapter, steps=4, verbose=0)) == 12
    assert len(model.predict(adapter, steps=2, verbose=0)) == 8


def test_a_rank_without_rows_is_refused_or_has_nothing_to_predict() -> None:
    with pytest.raises(
        ps.ArgumentError, match=r"at most 5 elements, of which shard=\(3, 4\) would get none: shares are"
    ):
        batches(10, 5).to_keras(uneven="mask", shard=(3, 4))
    adapter = batches(2).to_keras(training=False, uneven="mask", shard=(1, 2), executor="inline")
    with pytest.raises(ps.ArgumentError, match=r"predict\(\) has nothing .* no batch with a row for shard=\(1, 2\)"):
        model_of(run_eagerly=True).predict(adapter, verbose=0)


def test_several_inputs_and_outputs_are_measured_as_arrays() -> None:
    import keras

    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    both = keras.ops.concatenate(list(inputs.values()), axis=-1)
    outputs = {name: keras.layers.Dense(1, name=name, kernel_initializer="ones")(both) for name in ("p", "q")}
    model = keras.Model(inputs, outputs)
    losses, metrics = {"p": "mse", "q": "mae"}, {"p": ["mae"], "q": ["mse"]}
    model.compile(loss=losses, weighted_metrics=metrics, run_eagerly=True)  # traced, TensorFlow's means are wrong
    x, y = {"a": X[:13, :1], "b": X[:13, 1:]}, {"p": Y[:13], "q": -Y[:13]}
    wanted = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    model.compile(loss=losses, weighted_metrics=metrics)
    for uneven in ("mask", "weights"):
        adapter = ps.from_arrays((x, y)).batch(8).to_keras(training=False, uneven=uneven)
        assert model.evaluate(adapter, verbose=0, return_dict=True) == pytest.approx(wanted, rel=1e-5)


W = np.random.default_rng(1).uniform(0, 3, 30).astype(np.float32)


@pytest.mark.parametrize(("uneven", "kind"), [("mask", "sample weights"), ("weights", "integers"), ("mask", "classes")])
def test_weights_of_elements_count_as_on_arrays(uneven: str, kind: str) -> None:
    labels, weights = (np.arange(30) % 3).astype(np.float32)[:, None], W
    if kind == "integers":
        weights = (np.arange(30) % 4).astype(np.uint8)
    if kind == "classes":
        weights = np.array([0.5, 2.0, 1.0], np.float32)[labels[:, 0].astype(int)]
        ds, options = ps.from_arrays((X, labels)), {"class_weight": {0: 0.5, 1: 2.0}}
    else:
        ds, options = ps.from_arrays((X, labels, weights)), {}
    ours, theirs = model_of(run_eagerly=True), model_of(run_eagerly=True)
    found = ours.fit(ds.take(13).batch(8).to_keras(uneven=uneven, executor="inline", **options), verbose=0)
    wanted = theirs.fit(
        X[:13], labels[:13], sample_weight=weights[:13], batch_size=8, shuffle=False, verbose=0
    )  # fmt: skip
    measured = ds.take(29).batch(8).to_keras(training=False, uneven=uneven, executor="inline", **options)
    np.testing.assert_allclose(
        ours.evaluate(measured, verbose=0),
        theirs.evaluate(X[:29], labels[:29], sample_weight=weights[:29], batch_size=8, verbose=0),
        rtol=1e-5,
    )
    for name, values in wanted.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5, err_msg=name)


def test_weights_of_each_step_and_of_ranks_without_rows_are_multiplied() -> None:
    steps = np.arange(60, dtype=np.float32).reshape(10, 3, 2) + 1
    models = [recording_model() for _ in range(2)]
    for rank, model in enumerate(models):
        ds = ps.from_arrays((steps, steps[..., :1], steps[..., 0])).batch(8)
        model.fit(ds.to_keras(uneven="mask", shard=(rank, 2), executor="inline"), verbose=0)
    found = [arrays(model.trained, 2) for model in models]
    wanted = [[steps[:4, :, 0], steps[8:, :, 0]], [steps[4:8, :, 0], 0 * steps[8:9, :, 0]]]
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


SEVERAL_DEVICES = """
import keras, numpy as np, penstock as ps

x = np.random.default_rng(0).normal(size=(42, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True) + np.arange(42, dtype="float32")[:, None]
pairs = ps.from_arrays((x, y))

def model_of(**metrics):
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(0.01), "mse", **metrics)
    return model

one = model_of(weighted_metrics=["mae"])
wanted = one.evaluate(x, y, batch_size=8, verbose=0)
one.fit(x, y, batch_size=8, shuffle=False, verbose=0)
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = model_of(weighted_metrics=["mae"])
held_out = pairs.batch(8).to_keras(training=False, uneven="mask")
np.testing.assert_allclose(model.evaluate(held_out, verbose=0), wanted, rtol=1e-5)
np.testing.assert_allclose(
    model.evaluate(pairs.batch(8).map(lambda pair: pair).to_keras(training=False, uneven="mask"), verbose=0),
    wanted, rtol=1e-5,
)
model.fit(pairs.batch(8).to_keras(uneven="mask"), validation_data=held_out, verbose=0)
for found, want in zip(model.get_weights(), one.get_weights()):
    np.testing.assert_allclose(found, want, rtol=1e-4)
w = np.arange(42, dtype="float32") % 5
weighed = ps.from_arrays((x, y, w)).batch(8)
kernel, bias = model.get_weights()
errors = (x @ kernel + bias - y)[:, 0]
np.testing.assert_allclose(
    model.evaluate(weighed.to_keras(training=False, uneven="mask"), verbose=0),
    [np.mean(w * errors**2), np.average(np.abs(errors), weights=w)], rtol=1e-4,
)
model.fit(weighed.to_keras(uneven="mask"), verbose=0)
exact = pairs.take(40).batch(8).to_keras(training=False, uneven="mask")  # nothing to fill up
assert len(model.predict(exact, verbose=0)) == 40
assert model_of(metrics=["mae"]).evaluate(exact, steps=2, verbose=0)

stream = pairs.filter(lambda pair: True).batch(8).to_keras(training=False, uneven="mask")
for call in (
    lambda: model.predict(held_out, verbose=0),
    lambda: model_of(metrics=["mae"]).evaluate(held_out, verbose=0),
    lambda: model.evaluate(stream, verbose=0),
    lambda: model.evaluate(held_out, steps=3, verbose=0),
):
    try:
        call()
        print("measured")
    except ps.ArgumentError as error:
        print(error)

# What is refused is what the plan gives.
def padded(batch):
    return tuple(np.resize(part, (8, *part.shape[1:])) for part in batch)

def twice(batch):
    return tuple(np.repeat(part, 2, axis=0) for part in batch)

full = (ps.ArraySpec((8, 3), "float32"), ps.ArraySpec((8, 1), "float32"))
any_rows = (ps.ArraySpec((None, 3), "float32"), ps.ArraySpec((None, 1), "float32"))
for plan in (
    pairs.batch(8).map(padded, element_spec=full),
    pairs.batch(8).map(twice, element_spec=any_rows),
    pairs.batch(8).map(lambda batch: batch),
    pairs.take(40).batch(8).map(lambda batch: tuple(part[:6] for part in batch), element_spec=any_rows),
):
    try:
        model.fit(plan.to_keras(), verbose=0)
        print("trained")
    except ps.ArgumentError as error:
        print(error)
"""


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution shares batches out on JAX")
def test_on_several_devices_weights_make_means_right_or_the_call_is_refused(fresh_python: Any) -> None:
    done = fresh_python(
        SEVERAL_DEVICES, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    start = "uneven='mask' fills batches up with rows that do not count, keras.distribution needs these, and "
    cures = (
        "batch(size, drop_remainder=True)",
        "compile(weighted_metrics=)",
        "a known number of elements",
        "a whole ep",
    )
    whys = ("predict() would return", "compile(metrics=) counts", "the number of elements", "the number of elements")
    for text, why, cure in zip(said, whys, cures, strict=False):
        assert text.startswith(start + why)
        assert cure in text
    text = (
        "keras.distribution.DataParallel makes 4 equal parts of each batch, and one has {} elements. Use batch(size, "
    )
    assert said[4:6] == ["trained"] * 2
    assert said[6].startswith(text.format(2))
    assert said[7].startswith(text.format(6))


def test_whole_batches_are_trained_on_and_a_rank_without_one_takes_a_step_that_weighs_nothing() -> None:
    models = [recording_model() for _ in range(3)]
    for rank, model in enumerate(models):
        options: dict[str, Any] = {"whole_batches": True, "shard": (rank, 3), "executor": "inline"}
        model.fit(batches(29).to_keras(uneven="pad", **options), verbose=0)
        adapter = batches(29).to_keras(uneven="pad", training=False, **options)
        rows = np.concatenate([np.arange(29)[first : first + 8] for first in range(8 * rank, 29, 24)])
        np.testing.assert_allclose(
            model.evaluate(adapter, verbose=0), model.evaluate(X[rows], Y[rows], verbose=0), 1e-5
        )
        assert len(model.predict(adapter, verbose=0)) == len(rows)
    sizes = [[len(y) for y in arrays(model.trained, 1)] for model in models]
    assert sizes == [[8, 5], [8, 5], [8, 5]]  # the last batch, once more
    weights = [[set(each.tolist()) for each in arrays(model.trained, 2)] for model in models]
    assert weights == [[{1}, {3}], [{1}, {0}], [{1}, {0}]]


def test_whole_batches_of_padded_sequences_have_a_weight_for_each_row() -> None:
    ragged = ps.range(10).map(lambda i: (np.ones((i % 3 + 1, 2), "float32"), np.float32(i)))
    adapter = ragged.padded_batch(3).to_keras(whole_batches=True, shard=(1, 3), uneven="pad", executor="inline")
    (x, y, weights), (_, _, last) = list(adapter.get_numpy_iterator())
    assert (x.shape, y.tolist(), weights.tolist()) == ((3, 3, 2), [3, 4, 5], [1, 1, 1])
    assert last.tolist() == [0]
