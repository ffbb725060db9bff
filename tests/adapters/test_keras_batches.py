"""What a batch is to Keras, whose memory it is, and how an adapter ends, on the backend that KERAS_BACKEND names."""

import collections
import gc
import re
import threading
import warnings
import weakref
from typing import Any, NamedTuple

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
from tests.waits import DEADLINE_S

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("leaves_nothing_behind")]


# Forms of batches.


def test_x_alone_may_be_a_leaf_or_a_dict():
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    model = recording_model()
    assert model.predict(ps.from_arrays(x).batch(4).to_keras(training=False), verbose=0).shape == (6, 1)
    found = ps.from_arrays({"b": x, "a": x}).batch(4).to_keras().get_numpy_iterator()
    assert [list(batch) for batch in found] == [["b", "a"]] * 2


@pytest.mark.parametrize(
    ("others", "x"), [(("image",), "e['image']"), (("a", "b"), "{'a': e['a'], 'b': e['b']}")], ids=["one", "two"]
)
def test_targets_among_the_inputs_are_refused_with_the_pair_to_write(others: tuple[str, ...], x: str):
    columns = dict.fromkeys((*others, "label"), np.zeros((6, 2), np.float32))
    batches = ps.from_arrays(columns).batch(4)
    with pytest.raises(ps.SpecError, match=re.escape(f"after it: map(lambda e: ({x}, e['label'])). For a train_step")):
        batches.to_keras()
    with batches.to_keras(training=False), batches.map(lambda e: (e,)).to_keras() as adapter:
        assert adapter.length == 2


def test_x_may_be_bfloat16_of_ml_dtypes():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
    wanted, model = x.astype(bfloat16).astype(np.float32), recording_model()
    found = model.predict(ps.from_arrays(x).cast(bfloat16).batch(4).to_keras(training=False), verbose=0)
    np.testing.assert_array_equal(found, model.predict(wanted, verbose=0))


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


def test_an_optional_input_and_weights_may_be_none():
    import keras

    class Added(keras.layers.Layer):
        def call(self, image, text=None):
            return image if text is None else image + text

        def compute_output_shape(self, image_shape, text_shape=None):
            return image_shape

    inputs = {"image": keras.Input((2,), name="image"), "text": keras.Input((2,), name="text", optional=True)}
    added = Added()(inputs["image"], inputs["text"])
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="identity")(added))
    model.compile(keras.optimizers.SGD(0.0), "mae")
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    for text, factor in ((None, 1), (x, 2)):
        ds = ps.from_arrays(({"image": x, "text": text}, 0 * x, None)).batch(4)
        found = model.fit(ds.to_keras(), validation_data=ds.to_keras(training=False), verbose=0).history
        assert found["loss"] == found["val_loss"] == [pytest.approx(factor * x.mean(), rel=1e-5)]
        assert model.evaluate(ds.to_keras(training=False), verbose=0) == pytest.approx(factor * x.mean(), rel=1e-5)
        predicted = model.predict(ds.to_keras(training=False), verbose=0)
        np.testing.assert_allclose(predicted, factor * x, rtol=1e-6)


def test_batches_of_two_sizes_side_by_side_train_and_are_measured():
    import keras

    inputs = {"many": keras.Input((2,), name="many"), "few": keras.Input((2,), name="few")}
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model(inputs, {name: layer(each) for name, each in inputs.items()})
    model.compile(keras.optimizers.SGD(0.0), {"many": "mse", "few": "mae"})
    x = np.arange(32, dtype=np.float32).reshape(16, 2) / 10
    many, few = (ps.from_arrays({"x": x[:count], "y": x[:count, :1]}) for count in (16, 4))
    both = ps.zip({"many": many.batch(8), "few": few.batch(2)})
    ds = both.map(lambda e: ({name: part["x"] for name, part in e.items()}, {name: p["y"] for name, p in e.items()}))
    found = model.fit(ds.to_keras(), verbose=0).history
    assert found["many_loss"] == pytest.approx([float((x[:, 1] ** 2).mean())], rel=1e-5)
    assert found["few_loss"] == pytest.approx([float(x[:4, 1].mean())], rel=1e-5)
    measured = model.evaluate(ds.to_keras(training=False), verbose=0, return_dict=True)
    assert measured["few_loss"] == pytest.approx(found["few_loss"][0], rel=1e-5)


def of_two_outputs():
    """Inputs, targets, and a model with an output for each of these."""
    import keras

    x = np.arange(20, dtype=np.float32).reshape(10, 2) / 10
    y = {"a": x[:, :1] ** 2, "b": np.ones((10, 1), np.float32)}
    inputs = keras.Input((2,))
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in y})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    return x, y, model


def test_losses_of_several_outputs_are_means_of_samples_with_a_short_batch_too():
    x, y, model = of_two_outputs()
    ds = ps.from_arrays((x, y)).batch(4)
    means = {f"{name}_loss": np.mean((made - y[name]) ** 2) for name, made in model.predict(x, verbose=0).items()}
    for _ in range(2):
        said = model.evaluate(ds.to_keras(training=False), verbose=0, return_dict=True)
        assert {name: said[name] for name in means} == pytest.approx(means, rel=1e-4)


def test_a_named_tuple_is_a_tuple():
    class Pair(NamedTuple):
        x: Any
        y: Any

    x, y, model = of_two_outputs()
    plain = ps.from_arrays((x, y)).batch(4)
    measured = [
        model.evaluate(ds.to_keras(training=False, uneven=uneven), verbose=0)
        for ds in (plain, plain.map(lambda e: Pair(*e)))
        for uneven in ("refuse", "mask")
    ]
    np.testing.assert_allclose(measured, measured[:1] * 4, rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("label image", "take 'label' of this named tuple for x: .* second: map(lambda e: (e.image, e.label))."),
        ("image text y", "'y' .* for sample_weight: .* map(lambda e: ((e.image, e.text), e.y))."),
    ],
)
def test_a_named_tuple_with_the_targets_in_another_place_is_refused(names, text):
    kind = collections.namedtuple("Sample", names)
    with pytest.raises(ps.SpecError, match=re.escape(text).replace(r"\.\*", ".*")):
        ps.from_arrays(kind(*[np.zeros((6, 2))] * len(kind._fields))).batch(2).to_keras(training=False)


@pytest.mark.skipif(BACKEND != "jax", reason="the other backends have 64 bits")
def test_integers_that_do_not_fit_32_bits_are_refused_and_not_wrapped():
    ids, model = np.arange(8)[:, None], recording_model()
    assert model.predict(ps.from_arrays(ids).batch(4).to_keras(training=False), verbose=0).shape == (8, 1)
    ids[6] = 2**40
    with pytest.raises(ps.SpecError, match=r"batch\[0\] has values from 4 to 1099511627776, which do not fit int32"):
        model.fit(ps.from_arrays((ids, ids)).batch(4).to_keras(), verbose=0)
    assert len(model.trained) == 1


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


@pytest.mark.parametrize("form", ["integers", "a column", "floats", "one-hot"])
def test_class_weight_makes_the_sample_weights_that_keras_makes(form):
    classes = np.arange(10) % 3
    forms = {
        "integers": classes,
        "a column": classes[:, None].astype(np.uint8),
        "floats": classes.astype(np.float32),
        "one-hot": np.eye(3, dtype=np.float32)[classes],
    }
    y, x, table = forms[form], np.zeros((10, 2), np.float32), {0: 0.5, 2: 7.0}
    import keras

    ours, theirs = recording_model([keras.layers.Dense(3)]), recording_model([keras.layers.Dense(3)])
    for model in (ours, theirs):
        model.compile("sgd", "mse" if form == "one-hot" else "sparse_categorical_crossentropy", run_eagerly=True)
    element = (x, y, None) if form == "floats" else (x, y)
    ours.fit(ps.from_arrays(element).batch(4).to_keras(class_weight=table), verbose=0)
    theirs.fit(x, y, batch_size=4, shuffle=False, class_weight=table, verbose=0)
    assert_same(arrays(ours.trained, 2), arrays(theirs.trained, 2))


def test_class_weight_of_tags_and_of_numbers_is_refused_in_the_batch_that_shows_it():
    import keras

    tags = np.eye(3, dtype=np.float32)[np.arange(10) % 3]
    tags[6] = 1
    amounts = np.arange(10, dtype=np.float32)
    amounts[6] = 0.5
    for y, text in (
        (tags, r"has y = \[1.0, 1.0, 1.0\], which is not one-hot"),
        (amounts, "has y = 0.5, which is no cl"),
    ):
        model = recording_model([keras.layers.Dense(y[0].size)])
        adapter = ps.from_arrays((np.zeros((10, 2), np.float32), y)).batch(4).to_keras(class_weight={1: 2.0})
        with pytest.raises(ps.SpecError, match=f"element 2 of batch 1 of epoch 0 {text}"):
            model.fit(adapter, verbose=0)
        assert len(model.trained) == 1


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
        (
            ps.from_arrays((np.zeros((6, 4)), np.zeros((6, 2)))),
            "its leaves have no common first axis. Put batch() last",
        ),
        (ps.range(3), "its leaves have no common first axis. Put batch() last: dataset.batch(32).to_keras()"),
        (ps.from_arrays((np.zeros((3, 2)), np.zeros(3))), "is ((2,) float64, () float64): its leaves have no common"),
        (ps.from_arrays((np.zeros(3),) * 4).batch(2), "is a tuple of 4: "),
        (ps.from_arrays((np.zeros(3), np.array(["a", "b", "a"]))).batch(2), "Give each class a number before batch()"),
        (ps.from_arrays(np.zeros(3, ">f4")).batch(2), "in the order of another machine: use cast('float32')"),
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
    slots = adapter.loader._delivery.ring.memory
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
    ring = adapter.loader._delivery.ring
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
        assert loader._delivery.ring.leased_count == 1
        assert len(list(found)) == 9
        assert np.array_equal(alias, kept)
        del alias
        gc.collect()
        assert loader._delivery.ring.leased_count == 0
        del found


def test_dropping_the_adapter_ends_its_loader_and_its_threads():
    before = set(threading.enumerate())
    # A function runs on threads of Python; a plan that only moves bytes has none.
    adapter, model = numbered().map(lambda batch: batch).to_keras(executor="threads", workers=2), compiled_model()
    model.fit(adapter, validation_data=numbered().to_keras(training=False), epochs=2, verbose=0)
    model.predict(adapter, verbose=0)
    workers = set(threading.enumerate()) - before
    assert workers
    loader = weakref.ref(adapter.loader)
    del adapter
    gc.collect()
    assert loader() is None
    for worker in workers:
        worker.join(DEADLINE_S)
    assert not any(worker.is_alive() for worker in workers)
    assert model.built


def test_an_error_in_the_pipeline_leaves_fit_as_what_it_is_and_the_next_fit_begins_an_epoch():
    failures = [True]

    def decode(x):
        if x == 6 and failures:
            failures.clear()
            raise KeyError("no such label")
        return np.float32([x]), np.float32([x])

    # One worker: with two, the next epoch's element 6 may be read ahead before this one's.
    adapter, model = ps.range(8).map(decode).batch(4).to_keras(workers=1), recording_model()
    with pytest.raises(
        ps.ElementError, match=r"map\(decode\) at test_keras_batches.py:\d+ failed on element 6"
    ) as caught:
        model.fit(adapter, epochs=1, verbose=0)
    assert at(adapter) == (0, 1)
    # Keras drops the `__cause__` on the way out of `fit`. A note still has it.
    assert any('raise KeyError("no such label")' in note for note in caught.value.__notes__)
    # What stands last is the step with its element, and what can be done.
    first, *others = caught.value.__notes__
    assert re.search(r"\nThat was the cause of this:\nElementError: map\(decode\) at .* failed on element 6 .*$", first)
    assert others[-1].startswith("To go on without elements that fail: on_error='replace'.")
    assert isinstance(caught.value.__context__, KeyError)
    del caught
    model.fit(adapter, epochs=1, verbose=0)
    assert [x.ravel().tolist() for x in arrays(model.trained)] == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert at(adapter) == (2, 0)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("failing", [0, 6])
def test_an_error_in_the_pipeline_leaves_the_model_its_weights(verb, failing):
    import keras

    def decode(x):
        if x == failing:
            raise KeyError("no such label")
        return np.float32([x]), np.float32([x])

    ours, theirs = (keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]) for _ in range(2))
    for model in (ours, theirs):
        model.compile("sgd", "mse", run_eagerly=True, steps_per_execution=1 if BACKEND == "torch" else 2)
        model.set_weights([np.ones((1, 1)), np.ones(1)])
    with pytest.raises(ps.ElementError, match=f"failed on element {failing}"):
        getattr(ours, verb)(ps.range(8).map(decode).batch(4).to_keras(executor="inline"), verbose=0)
    if verb == "fit" and failing:
        x = np.arange(4, dtype=np.float32)[:, None]
        theirs.train_on_batch(x, x)
    for found, wanted in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
def test_a_strategy_of_tensorflow_is_refused():
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = compiled_model()
    adapter = numbered().to_keras()
    text = r"does not work with a model made in the scope of a tf\.distribute .* Give fit\(\) dataset\.to_tf\(\)"
    with pytest.raises(ps.ArgumentError, match=text):
        model.fit(adapter, verbose=0)


@pytest.mark.parametrize(
    ("dtype", "cure", "backends"),
    [
        ("<U4", "Leave it out, or make numbers of it, with map()", ("jax", "torch")),
        ("S4", "Leave it out, or make numbers of it, with map()", ("jax", "torch")),
        ("M8[s]", "Use cast('int64')", ("tensorflow", "jax", "torch")),
        ([("a", "f4")], "Take its fields apart with map(), such as {'a': x['a']}", ("tensorflow", "jax", "torch")),
        ("longdouble", "Use cast('float32')", ("tensorflow", "jax", "torch")),
        ("uint64", "", ()),
    ],
)
def test_a_dtype_that_the_backend_does_not_have_is_refused_with_its_place(dtype, cure, backends):
    x = {"id": np.zeros((4, 1), dtype), "x": np.zeros((4, 2), "float32")}
    batches = ps.from_arrays((x, np.zeros(4, "float32"))).batch(2)
    if BACKEND not in backends:
        assert batches.to_keras().batch_size == 2
        return
    with pytest.raises(
        ps.SpecError, match=re.escape(f"Keras on {BACKEND} has no dtype for element[0]['id'], which is")
    ):
        batches.to_keras()
    with pytest.raises(ps.SpecError, match=re.escape(f"{cure}.")):
        batches.to_keras()


def test_nothing_of_ours_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter = numbered().to_keras()
        model = compiled_model()
        model.fit(adapter, validation_data=numbered().to_keras(training=False), epochs=2, verbose=0)
        model.fit(adapter, steps_per_epoch=2, epochs=4, verbose=0)
    ignored = "__array__ implementation doesn't accept a copy keyword"  # Keras on torch, see pyproject.toml
    assert [str(each.message) for each in caught if ignored not in str(each.message)] == []
