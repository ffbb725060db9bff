"""Which batches Keras sees and when, and where the loader says it is, on the backend that KERAS_BACKEND names.

The oracle is the inline loader: training must see the same batches, in the same order. A model that runs eagerly
records what its steps were given.
"""

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
    watching,
)

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("leaves_nothing_behind")]


# What training sees.


def test_training_sees_every_epoch_whole_once_and_in_order_and_validation_is_epoch_0():
    ds, held_out = numbered(), numbered(7, 3, seed=5)
    model = recording_model()
    model.fit(ds.to_keras(), validation_data=held_out.to_keras(training=False), epochs=3, verbose=0)
    assert_same(arrays(model.trained), delivered(ds, 3))
    assert_same(arrays(model.tested), delivered(held_out) * 3)


def test_an_adapter_is_not_iterated_and_says_what_is():
    text = r"given to fit\(\), .*, and is not iterated\. To look at batches: ds\[0\], or for batch in ds\.loader"
    with pytest.raises(ps.ArgumentTypeError, match=text):
        next(iter(ps.range(9).batch(3).to_keras()))


def test_an_adapter_says_what_stands_for_the_state_of_a_torch_loader():
    with pytest.raises(AttributeError, match=r"makes has no 'load_state_dict': set_state\(state\)\."):
        numbered().to_keras().load_state_dict({})


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda ds: ds, id="dataset"),
        pytest.param(lambda ds: ds.loader(), id="loader"),
        pytest.param(
            lambda ds: ds.to_torch(),
            id="to_torch",
            marks=pytest.mark.skipif(
                BACKEND != "torch", reason="Keras asks it for the same; torch takes long to import"
            ),
        ),
        pytest.param(lambda ds: ds.to_jax(), id="to_jax"),
    ],
)
def test_fit_of_what_is_not_an_adapter_for_keras_says_what_is(make):
    with pytest.raises(AttributeError, match=r"has no shape: .* Keras takes fit\((ds|dataset)\.to_keras\(\)\)"):
        compiled_model().fit(make(numbered()), verbose=0)


@pytest.mark.parametrize("steps", [None, 2])
def test_to_measure_on_the_adapter_that_is_trained_on_is_refused_before_it_costs_an_epoch(steps):
    adapter, model = numbered().to_keras(), compiled_model()
    with pytest.raises(ps.ArgumentError, match=r"would take .* an epoch from training\. .*to_keras\(training=False\)"):
        model.fit(adapter, validation_data=adapter, epochs=2, steps_per_epoch=steps, verbose=0)
    assert at(adapter) == (0, 0)


def test_so_is_a_callback_that_measures_on_it():
    import keras

    class Measuring(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(adapter, verbose=0)

    adapter = numbered().to_keras()
    with pytest.raises(ps.ArgumentError, match=r"would take .* an epoch from training"):
        compiled_model().fit(adapter, epochs=2, verbose=0, callbacks=[Measuring()])
    assert at(adapter) == (1, 0)


def test_one_after_the_other_it_may_be_trained_and_measured_on_in_a_fit_of_the_users_own():
    adapter, model = numbered().to_keras(), compiled_model()

    def fit(x):
        model.fit(x, verbose=0)
        model.evaluate(x, verbose=0)

    fit(adapter)
    assert at(adapter) == (2, 0)


def test_an_adapter_of_epoch_0_alone_may_be_trained_and_measured_on():
    ds = numbered()
    adapter, model = ds.to_keras(training=False), recording_model()
    model.fit(adapter, validation_data=adapter, epochs=2, verbose=0)
    assert_same(arrays(model.trained), delivered(ds) * 2)
    assert_same(arrays(model.tested), delivered(ds) * 2)


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
    assert adapter.loader._delivery is None


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


@pytest.mark.parametrize("steps", [-1, 2.5, np.float64(3)])
def test_steps_that_are_no_number_of_batches_are_refused(steps):
    text = r"Keras was given .*(-1|2\.5|3\.0).* steps .* is no number of batches\. Write a whole number"
    model, held_out = compiled_model(), numbered().to_keras(training=False)
    with pytest.raises(ps.ArgumentError, match=text):
        model.fit(numbered().to_keras(), steps_per_epoch=steps, verbose=0)
    with pytest.raises(ps.ArgumentError, match=text):
        model.predict(held_out, steps=steps, verbose=0)


def test_evaluate_and_predict_start_with_epoch_0_each_time():
    ds = numbered()
    adapter, model = ds.to_keras(training=False), recording_model()
    for _ in range(2):
        model.evaluate(adapter, verbose=0)
        predicted = model.predict(adapter, verbose=0)
    assert_same(arrays(model.tested), delivered(ds) * 2)
    assert_same(arrays(model.predicted), delivered(ds) * 2)
    kernel, bias = model.layers[0].get_weights()
    expected = np.concatenate(delivered(ds)) @ kernel + bias
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-6)  # terms of 1 that nearly cancel out


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


SEVERAL_DEVICES = """
import keras, numpy as np, penstock as ps

keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
pairs = ps.from_arrays((np.ones((42, 3), "float32"), np.ones((42, 1), "float32")))
for plan, options in (
    (pairs.batch(10), {}),
    (pairs.batch(8), {}),
    (pairs.batch(8), {"steps_per_epoch": 5}),
    (pairs.batch(8, drop_remainder=True), {}),
    (pairs.take(40).batch(16), {}),
    (pairs.batch(8), {"steps_per_epoch": 5, "epochs": 2}),
    (pairs.filter(lambda pair: True).batch(8), {}),
):
    try:
        model.fit(plan.to_keras(), verbose=0, **options)
        print("trained")
    except ps.ArgumentError as error:
        print(error)
"""


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution shares batches out on JAX")
def test_batches_that_devices_do_not_divide_are_refused_before_the_first_where_they_are_known(fresh_python):
    done = fresh_python(
        SEVERAL_DEVICES, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    text = (
        "keras.distribution.DataParallel makes 4 equal parts of each batch, and one has {} elements. Use batch(size, "
    )
    full, short, *others, running_on, of_unknown_length = done.stdout.splitlines()
    assert full.startswith(text.format(10))
    assert short.startswith(text.format(2))
    assert others == ["trained"] * 3
    assert running_on.startswith(text.format(2))
    assert of_unknown_length.startswith(text.format(2))


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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on each backend")
@pytest.mark.parametrize(("verb", "cure"), [("evaluate", ""), ("predict", "; for the order of the data, leave out")])
def test_measuring_on_an_adapter_for_training_is_one_line_in_the_log(verb, cure, caplog):
    model = compiled_model()
    ds, flipped = numbered(), numbered(8).random_map(lambda batch, rng: batch)
    model.fit(ds.to_keras(), validation_data=flipped.to_keras(training=False), verbose=0)
    plain = ps.from_arrays((np.zeros((8, 2), "float32"), np.zeros((8, 1), "float32"))).batch(4)
    getattr(model, verb)(plain.to_keras(), verbose=0)
    assert not [record for record in caplog.records if record.name == "penstock"]  # TensorFlow logs, too
    adapter = flipped.to_keras()
    for _ in range(2):
        getattr(model, verb)(adapter, verbose=0)
    (record,) = [record for record in caplog.records if record.name == "penstock"]
    text = f"{verb}() reads another epoch in each call, for this adapter was made for training: shuffle(seed=1) and "
    assert record.getMessage().startswith(text)
    assert f"Write to_keras(training=False), which is epoch 0 in every call{cure}" in record.getMessage()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on each backend")
def test_validation_on_an_adapter_for_training_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model, train = compiled_model(), numbered()
    model.fit(train.to_keras(), validation_data=train.to_keras(), epochs=2, verbose=0)  # a shuffle changes no mean
    assert not [record for record in caplog.records if record.name == "penstock"]
    distorted = numbered(8).random_map(lambda batch, rng: batch)
    model.fit(train.to_keras(), validation_data=distorted.to_keras(), epochs=2, verbose=0)
    (record,) = [record for record in caplog.records if record.name == "penstock"]  # TensorFlow logs, too
    assert record.getMessage().startswith("Validation reads another epoch in each call, for this adapter was made for")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on each backend")
def test_a_batch_size_that_keras_does_not_use_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    from keras.src.trainers.epoch_iterator import EpochIterator  # what fit, evaluate and predict make first

    train = numbered()
    EpochIterator(train.to_keras(), batch_size=4)
    EpochIterator(train.to_keras())
    assert not [record for record in caplog.records if record.name == "penstock"]
    EpochIterator(train.to_keras(), batch_size=8)
    (record,) = [record for record in caplog.records if record.name == "penstock"]
    assert record.getMessage().endswith("batch_size=8, for the dataset has made its batches. Write batch(8) there.")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on each backend")
def test_layers_with_a_seed_in_a_function_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    import keras

    crop = keras.Sequential([keras.layers.RandomCrop(2, 2), keras.layers.RandomFlip()])
    images = ps.from_arrays(np.zeros((4, 4, 4, 3), "float32"))
    spec = ps.ArraySpec((None, None, 3), "float32")  # so that no worker runs the function, and imports Keras for it
    for layer, names in ((crop, "(RandomCrop)"), (keras.layers.RandomFlip(), "")):
        caplog.clear()
        mapped = images.map(lambda image, layer=layer: np.asarray(layer(image)), element_spec=spec).padded_batch(2)
        mapped.loader("processes", workers=1).close()
        assert ("holds a random generator" in caplog.text) == bool(names)
        assert names in caplog.text


def test_names_beside_what_is_predicted_are_told_to_be_left_out() -> None:
    named = ps.from_arrays((np.zeros((4, 2), "float32"), np.array(["a", "b", "c", "d"]))).batch(2)
    with pytest.raises(ps.SpecError, match=r"targets of this dataset are text, .* predict\(\) needs no targets: map\("):
        named.to_keras(training=False)
