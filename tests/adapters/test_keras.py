"""What Keras sees of a dataset, on the backend that KERAS_BACKEND names.

The oracle is the inline loader: training must see the same batches, in the same order. A model that runs eagerly
records what its steps were given.
"""

import gc
import math
import os
import re
import threading
import warnings
import weakref

import numpy as np
import pytest

import penstock as ps

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("leaves_nothing_behind")]

BACKEND = os.environ["KERAS_BACKEND"]


@pytest.fixture(scope="module", autouse=True)
def _quick_to_collect():
    import keras  # noqa: F401

    gc.collect()
    gc.freeze()  # a framework's modules are hundreds of thousands of objects, and each test collects three times
    yield
    gc.unfreeze()


def numbered(count=10, batch_size=4, seed=1):
    """Batches `(x, y)`, x `(n, 2)` and y `(n, 1)`, float32; no two samples alike, each epoch in its own order."""
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2) / 100
    return ps.from_arrays((x, x[:, :1] * 2)).shuffle(seed).batch(batch_size)


def delivered(ds, epochs=1):
    """What an inline loader delivers in so many epochs: `[x of the first batch, ...]`."""
    with ds.loader(executor="inline") as loader:
        return [batch[0].copy() for _ in range(epochs) for batch in loader]


def recording_model():
    """A compiled model, not yet built, and the lists of what its train, test and predict steps were given."""
    import keras

    class Recording(keras.Sequential):
        def __init__(self):
            super().__init__([keras.layers.Dense(1)])
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


# What training sees.


def test_training_sees_every_epoch_whole_once_and_in_order_and_validation_is_epoch_0():
    ds, held_out = numbered(), numbered(7, 3, seed=5)
    model = recording_model()
    model.fit(ds.to_keras(), validation_data=held_out.to_keras(training=False), epochs=3, verbose=0)
    assert_same(arrays(model.trained), delivered(ds, 3))
    assert_same(arrays(model.tested), delivered(held_out) * 3)


def test_a_second_fit_goes_on_with_new_epochs_whatever_keras_calls_them():
    ds = numbered()
    adapter, model = ds.to_keras(), recording_model()
    model.fit(adapter, epochs=2, verbose=0)
    model.fit(adapter, epochs=5, initial_epoch=3, verbose=0)
    assert_same(arrays(model.trained), delivered(ds, 4))


def test_an_epoch_of_one_batch_is_trained_on_once():
    ds = numbered(4, 4)
    model = recording_model()
    model.fit(ds.to_keras(), epochs=3, verbose=0)
    assert_same(arrays(model.trained), delivered(ds, 3))


def test_building_a_model_reads_nothing():
    adapter, model = numbered().to_keras(), recording_model()
    model.fit(adapter, epochs=0, verbose=0)
    assert BACKEND == "tensorflow" or model.built  # which builds in its first step
    assert adapter.loader.report().batches == 0
    assert adapter.loader._pipeline is None


def test_a_fit_that_stopped_early_is_followed_by_the_next_epoch():
    import keras

    ds = numbered()
    adapter, model = ds.to_keras(), recording_model()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    model.fit(adapter, epochs=1, verbose=0, callbacks=[Stop()])
    model.fit(adapter, epochs=1, verbose=0)
    expected = delivered(ds, 2)
    assert_same(arrays(model.trained), expected[:1] + expected[3:])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_per_epoch_run_on_into_the_next_epoch_and_the_next_fit(steps):
    ds = numbered()
    adapter, model = ds.to_keras(), recording_model()
    model.fit(adapter, epochs=3, steps_per_epoch=steps, verbose=0)
    model.fit(adapter, epochs=1, steps_per_epoch=steps, verbose=0)
    assert_same(arrays(model.trained), delivered(ds, 7)[: 4 * steps])


def test_validation_steps_are_the_first_batches_of_epoch_0_each_time():
    held_out = numbered(10, 3, seed=5)
    model = recording_model()
    model.fit(
        numbered().to_keras(),
        validation_data=held_out.to_keras(training=False),
        validation_steps=2,
        epochs=3,
        verbose=0,
    )
    assert_same(arrays(model.tested), delivered(held_out)[:2] * 3)


def test_an_endless_dataset_trains_by_steps():
    ds = ps.from_arrays(tuple(np.arange(12.0, dtype=np.float32).reshape(2, 6, 1))).shuffle(3).repeat().batch(4)
    adapter, model = ds.to_keras(), recording_model()
    assert adapter.num_batches is None
    model.fit(adapter, epochs=2, steps_per_epoch=2, verbose=0)
    assert_same(arrays(model.trained), [ds[i][0] for i in range(4)])


def test_an_endless_dataset_without_steps_is_refused():
    adapter = numbered(8).unbatch().repeat().batch(4).to_keras()
    with pytest.raises(ps.ArgumentError, match=r"This dataset is endless.*steps_per_epoch=1000"):
        compiled_model().fit(adapter, verbose=0)


def test_evaluate_and_predict_start_with_epoch_0_each_time():
    ds = numbered()
    adapter, model = ds.to_keras(training=False), recording_model()
    for _ in range(2):
        model.evaluate(adapter, verbose=0)
        predicted = model.predict(adapter, verbose=0)
    assert_same(arrays(model.tested), delivered(ds) * 2)
    assert_same(arrays(model.predicted), delivered(ds) * 2)
    kernel, bias = model.layers[0].get_weights()
    np.testing.assert_allclose(predicted, np.concatenate(delivered(ds)) @ kernel + bias, rtol=1e-4)


def test_a_compiled_model_trains_as_it_does_on_arrays():
    import keras

    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)

    def trained(*args, **kwargs):
        keras.utils.set_random_seed(7)
        return compiled_model().fit(*args, epochs=2, verbose=0, **kwargs).history["loss"]

    ds = ps.from_arrays((x, y)).batch(8)
    np.testing.assert_allclose(trained(ds.to_keras()), trained(x, y, batch_size=8, shuffle=False), rtol=1e-5)


# Where it is.


def test_the_state_in_a_callback_is_the_position_after_the_batches_that_were_trained_on():
    adapter, batches, epochs = numbered().to_keras(), [], []
    compiled_model().fit(adapter, epochs=2, verbose=0, callbacks=[watching(adapter, batches, epochs)])
    assert batches == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert epochs == [(1, 0), (2, 0)]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no steps_per_execution on torch")
def test_steps_per_execution_stop_at_the_end_of_an_epoch():
    adapter, batches = numbered(18).to_keras(), []
    compiled_model(steps_per_execution=2).fit(adapter, epochs=2, verbose=0, callbacks=[watching(adapter, batches)])
    assert batches == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]


def test_the_first_epoch_after_set_state_is_the_rest_of_the_saved_one():
    ds = numbered()
    adapter, epochs = ds.to_keras(), []
    state = ds.loader().get_state() | {"epoch": 4, "position": 1}
    adapter.loader.set_state(state)
    model = recording_model()
    model.fit(adapter, epochs=2, verbose=0, callbacks=[watching(adapter, [], epochs)])
    assert epochs == [(5, 0), (6, 0)]
    assert_same(arrays(model.trained), delivered(ds, 6)[4 * 3 + 1 :])


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no steps_per_execution on torch")
def test_the_rest_of_an_epoch_may_end_within_an_execution():
    ds = numbered(20)
    adapter, batches = ds.to_keras(), []
    adapter.loader.set_state(adapter.loader.get_state() | {"position": 2})
    compiled_model(steps_per_execution=2).fit(adapter, epochs=2, verbose=0, callbacks=[watching(adapter, batches)])
    assert batches == [(0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_run_that_was_cut_anywhere_and_resumed_sees_what_one_that_was_not_would_have_seen(cut):
    import keras

    ds = numbered()

    class Cut(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal state
            if len(first.trained) == cut:
                state = adapter.loader.get_state()
                self.model.stop_training = True

    adapter, first = ds.to_keras(), recording_model()
    state = adapter.loader.get_state()
    if cut:
        first.fit(adapter, epochs=3, verbose=0, callbacks=[Cut()])
    resumed, second = ds.to_keras(), recording_model()
    resumed.loader.set_state(state)
    second.fit(resumed, epochs=2, verbose=0)
    seen = arrays(first.trained) + arrays(second.trained)
    assert_same(seen, delivered(ds, 5)[: len(seen)])
    assert at(resumed) == (state["epoch"] + 2, 0)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX on accelerators")
@pytest.mark.parametrize("steps", [None, 2])
def test_where_keras_draws_a_batch_ahead_of_training_the_state_does_not_count_it(monkeypatch, steps):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # which is all that Keras asks
    ds = numbered()
    adapter, model, batches = ds.to_keras(), recording_model(), []
    for _ in range(2):
        model.fit(adapter, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[watching(adapter, batches)])
    count = 4 * (steps or 3)
    assert batches == [divmod(number, 3) for number in range(1, count + 1)]
    assert_same(arrays(model.trained), delivered(ds, 4)[:count])


# Forms of batches.


def test_x_alone_may_be_a_leaf_or_a_dict():
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    model = recording_model()
    assert model.predict(ps.from_arrays(x).batch(4).to_keras(training=False), verbose=0).shape == (6, 1)
    found = ps.from_arrays({"b": x, "a": x}).batch(4).to_keras().get_numpy_iterator()
    assert [list(batch) for batch in found] == [["b", "a"]] * 2


def test_several_inputs_and_outputs_and_weights_reach_the_model():
    import keras

    a, b = keras.Input((2,), name="a"), keras.Input((1,), name="b")
    layer = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
    model = keras.Model({"a": a, "b": b}, layer(keras.ops.concatenate([a, b], axis=-1)))
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    rng = np.random.default_rng(0)
    inputs = {"a": rng.normal(size=(6, 2)).astype(np.float32), "b": rng.normal(size=(6, 1)).astype(np.float32)}
    y, weights = rng.normal(size=(6, 1)).astype(np.float32), np.arange(6, dtype=np.float32)
    adapter = ps.from_arrays((inputs, y, weights)).batch(4).to_keras(training=False)
    found = model.evaluate(adapter, verbose=0, return_dict=True)
    off = np.abs(inputs["a"].sum(axis=1) + inputs["b"][:, 0] - y[:, 0])
    np.testing.assert_allclose(found["mae"], (off * weights).sum() / weights.sum(), rtol=1e-4)


def test_class_weight_is_what_keras_makes_of_it_for_arrays():
    import keras

    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    y = (np.arange(12) % 3 == 0).astype(np.int64)
    weights = {1: 5.0}

    def trained(*args, **kwargs):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(*args, epochs=2, verbose=0, **kwargs).history["loss"]

    ours = trained(ps.from_arrays((x, y)).batch(4).to_keras(class_weight=weights))
    theirs = trained(x, y, batch_size=4, shuffle=False, class_weight=weights)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(
    ("argument", "cure"),
    [
        ({"class_weight": {0: 2.0}}, r"class_weight=.*Give it to to_keras\(class_weight=...\)"),
        ({"y": np.zeros(10)}, r"y=.*second part of the element, \(x, y\), before batch\(\)"),
        ({"sample_weight": np.zeros(10)}, r"sample_weight=.*third part"),
    ],
)
def test_arguments_of_fit_that_keras_would_drop_are_refused(argument, cure):
    with pytest.raises(ps.ArgumentError, match=f"Keras does not use {cure}"):
        compiled_model().fit(numbered().to_keras(), verbose=0, **argument)


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (ps.range(3), "its leaves have no common first axis. Put batch() last: dataset.batch(32).to_keras()"),
        (ps.from_arrays((np.zeros((3, 2)), np.zeros(3))), "is ((2,) float64, () float64): its leaves have no common"),
        (ps.from_arrays((np.zeros(3),) * 4).batch(2), "is a tuple of 4: "),
        (ps.from_arrays(np.zeros(3, ">f4")).batch(2), "no framework takes. Use cast('float32')"),
    ],
)
def test_datasets_that_are_not_batches_for_keras_are_refused(ds, message):
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ds.to_keras()


@pytest.mark.parametrize(
    ("count", "drop_remainder", "batches", "partial"), [(12, False, 3, None), (10, False, 3, 2), (10, True, 2, None)]
)
def test_sizes_are_known_before_anything_is_read(count, drop_remainder, batches, partial):
    adapter = ps.from_arrays(np.zeros(count)).batch(4, drop_remainder=drop_remainder).to_keras()
    assert (adapter.num_batches, adapter.batch_size) == (batches, 4)
    assert (adapter.has_partial_batch, adapter.partial_batch_size) == (partial is not None, partial)


def test_a_shard_of_a_batch_is_a_batch():
    adapter = ps.from_arrays(np.zeros(12)).batch(8).to_keras(shard=(1, 2))
    assert (adapter.batch_size, adapter.partial_batch_size) == (4, 2)


# Memory and the end.


def address(tensor):
    """Where what a step was given begins: a tensor, or NumPy's array on JAX."""
    if BACKEND == "tensorflow":
        tensor = np.from_dlpack(tensor)
    return tensor.data_ptr() if BACKEND == "torch" else tensor.ctypes.data


def test_what_training_gets_is_the_memory_of_a_slot():
    adapter, model = numbered(16).to_keras(), recording_model()
    model.fit(adapter, epochs=1, verbose=0)
    slots = adapter.loader._pipeline._ring._memory
    begin = np.frombuffer(slots, np.uint8).ctypes.data
    assert adapter.loader.report().copied == 0
    assert all(begin <= address(batch[0]) < begin + len(slots) for batch in model.trained)


def test_batches_that_a_model_keeps_never_change():
    ds = numbered(40)
    model = recording_model()
    model.fit(ds.to_keras(), epochs=4, verbose=0)  # 40 batches, all of them kept, six slots
    assert_same(arrays(model.trained), delivered(ds, 4))


def test_a_framework_s_array_keeps_its_slot_until_it_is_gone():
    adapter = numbered(40).to_keras()
    ask = {"tensorflow": "get_tf_dataset", "jax": "get_jax_iterator", "torch": "get_torch_dataloader"}[BACKEND]
    x, y = next(iter(getattr(adapter, ask)()))
    ring = adapter.loader._pipeline._ring
    assert ring.leased_count == 1
    del y
    gc.collect()
    assert ring.leased_count == 1
    del x
    gc.collect()
    assert ring.leased_count == 0


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's own")
def test_a_batch_that_jax_put_on_the_cpu_without_a_copy_keeps_its_slot():
    import jax

    with numbered(40).loader() as loader:
        found = iter(loader)
        alias = jax.device_put(next(found)[0])
        assert alias.unsafe_buffer_pointer() % 64 == 0
        kept = np.array(alias)
        gc.collect()
        assert loader._pipeline._ring.leased_count == 1
        assert len(list(found)) == 9
        assert np.array_equal(alias, kept)
        del alias
        gc.collect()
        assert loader._pipeline._ring.leased_count == 0
        del found


def test_dropping_the_adapter_ends_its_loader_and_its_threads():
    before = set(threading.enumerate())
    adapter, model = numbered().to_keras(workers=2), compiled_model()
    model.fit(adapter, validation_data=numbered().to_keras(training=False), epochs=2, verbose=0)
    model.predict(adapter, verbose=0)
    workers = set(threading.enumerate()) - before
    assert workers
    loader = weakref.ref(adapter.loader)
    del adapter
    gc.collect()
    assert loader() is None
    for worker in workers:
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)
    assert model.built


def test_an_error_in_the_pipeline_leaves_fit_as_what_it_is_and_the_next_fit_begins_an_epoch():
    failures = [True]

    def decode(x):
        if x == 6 and failures:
            failures.clear()
            raise KeyError("no such label")
        return np.float32([x]), np.float32([x])

    adapter, model = ps.range(8).map(decode).batch(4).to_keras(), recording_model()
    with pytest.raises(ps.ElementError, match=r"map\(decode\) at test_keras.py:\d+ failed on element 6") as caught:
        model.fit(adapter, epochs=1, verbose=0)
    assert at(adapter) == (0, 1)
    # Keras drops the `__cause__` on the way out of `fit`. What it was is said by a note.
    assert any('raise KeyError("no such label")' in note for note in caught.value.__notes__)
    assert isinstance(caught.value.__context__, KeyError)
    del caught
    model.fit(adapter, epochs=1, verbose=0)
    assert [x.ravel().tolist() for x in arrays(model.trained)] == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert at(adapter) == (2, 0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
def test_a_strategy_of_tensorflow_is_refused():
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = compiled_model()
    adapter = numbered().to_keras()
    with pytest.raises(ps.ArgumentError, match=r"does not work with a model made in the scope of a tf\.distribute"):
        model.fit(adapter, verbose=0)


def test_a_rest_then_whole_number_is_an_ordinary_number_but_for_that_question():
    from penstock.adapters.keras import RestThenWhole

    count = RestThenWhole(5, 2)
    assert (count, int(count), list(range(0, count, 2)), math.isfinite(count)) == (5, 5, [0, 2, 4], True)
    assert [seen >= count for seen in (0, 1, 2)] == [False, False, True]
    assert [seen >= count for seen in (0, 1, 2, 3, 4, 5)] == [False] * 5 + [True]


def test_nothing_of_ours_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter = numbered().to_keras()
        model = compiled_model()
        model.fit(adapter, validation_data=numbered().to_keras(training=False), epochs=2, verbose=0)
        model.fit(adapter, steps_per_epoch=2, epochs=4, verbose=0)
    ignored = "__array__ implementation doesn't accept a copy keyword"  # Keras on torch, see pyproject.toml
    assert [str(each.message) for each in caught if ignored not in str(each.message)] == []
