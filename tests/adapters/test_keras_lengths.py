"""Batches whose sizes differ, padded or gathered by length, on the backend that KERAS_BACKEND names.

The oracle is the inline loader, as in test_keras.py: training, evaluation and prediction see the same batches.
"""

import re

import numpy as np
import pytest

import penstock as ps
from tests.adapters.keras_models import arrays, assert_same, at, recording_model, watching

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("auto_workers_stay", "leaves_nothing_behind")]

COUNT = 22
SEQUENCE = (ps.ArraySpec((None,), "int32"), ps.ArraySpec((), "float32"))


def sentence(number):
    """Tokens, 1 to 7 of them, and a target."""
    return np.arange(number % 7 + 1, dtype=np.int32) + 1, np.float32(number % 3)


def sentences(seed=1):
    return ps.range(COUNT).shuffle(seed).map(sentence, element_spec=SEQUENCE)


FORMS = {
    "padded_batch": lambda ds: ds.padded_batch(4),
    "drop_remainder": lambda ds: ds.padded_batch(4, drop_remainder=True),
    "padded_shapes": lambda ds: ds.padded_batch(4, padded_shapes=((7,), ())),
    "bucket_by_length": lambda ds: ds.bucket_by_length(lambda e: len(e[0]), [4], [8, 4]),
}
FORMS_BY_NAME = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def layers():
    import keras

    return [
        keras.layers.Embedding(10, 4, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]


def recorder():
    return recording_model(layers())


def model_of(*inputs, **options):
    import keras

    model = keras.Sequential([*inputs, *layers()])
    model.compile("sgd", "mse", **options)
    return model


def delivered(ds, epochs=1):
    """All batches of so many epochs, inline, each a tuple of arrays."""
    with ds.loader(executor="inline") as loader:
        return [tuple(np.copy(leaf) for leaf in batch) for _ in range(epochs) for batch in loader]


@FORMS_BY_NAME
def test_training_sees_every_batch_of_every_epoch_as_it_is(form):
    ds = form(sentences())
    model, expected = recorder(), delivered(ds, 2)
    model.fit(ds.to_keras(), epochs=2, verbose=0)
    for part in 0, 1:
        assert_same(arrays(model.trained, part), [batch[part] for batch in expected])
    half = len(expected) // 2
    assert [batch[0].tolist() for batch in expected[:half]] != [batch[0].tolist() for batch in expected[half:]]


@FORMS_BY_NAME
def test_evaluate_and_predict_see_epoch_0_the_short_batch_too(form):
    ds = form(sentences())
    adapter, model, expected = ds.to_keras(training=False), recorder(), delivered(ds)
    for _ in range(2):
        model.evaluate(adapter, verbose=0)
        predicted = model.predict(adapter, verbose=0)
    assert_same(arrays(model.tested), [x for x, _ in expected] * 2)
    assert_same(arrays(model.predicted), [x for x, _ in expected] * 2)
    assert predicted.shape == (sum(len(x) for x, _ in expected), 1)


# Two pairs of four: JAX compiles for each new length, half a second each.
@pytest.mark.parametrize(
    ("form", "says_length"),
    [("padded_batch", True), ("bucket_by_length", False)],
    ids=["padded_batch, Input((None,))", "bucket_by_length, no Input"],
)
def test_a_compiled_model_trains_on_it_as_it_does_batch_by_batch(form, says_length):
    import keras

    ds = FORMS[form](sentences())
    inputs = [keras.Input((None,), dtype="int32")] if says_length else []
    keras.utils.set_random_seed(7)
    model = model_of(*inputs)
    history = model.fit(ds.to_keras(), validation_data=ds.to_keras(training=False), epochs=2, verbose=0)
    keras.utils.set_random_seed(7)
    oracle = model_of(keras.Input((None,), dtype="int32"), run_eagerly=True)
    for x, y in delivered(ds, 2):
        oracle.train_on_batch(x, y)
    for ours, theirs in zip(model.get_weights(), oracle.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert np.isfinite(history.history["val_loss"]).all()


def test_class_weight_and_sample_weights_reach_batches_of_any_length():
    labelled = ps.range(COUNT).map(
        lambda i: (np.arange(i % 7 + 1) + 1, i % 2),
        element_spec=(ps.ArraySpec((None,), "int64"), ps.ArraySpec((), "int64")),
    )
    weighted = labelled.map(
        lambda e: (*e, np.float32(5 if e[1] else 1)),
        element_spec=(ps.ArraySpec((None,), "int64"), ps.ArraySpec((), "int64"), ps.ArraySpec((), "float32")),
    )
    by_class, by_sample = recorder(), recorder()
    for _ in range(2):
        by_class.fit(labelled.padded_batch(4).to_keras(class_weight={1: 5.0}), verbose=0)
        by_sample.fit(weighted.padded_batch(4).to_keras(), verbose=0)
    expected = [np.where(y == 1, 5, 1) for _, y, _ in delivered(weighted.padded_batch(4))] * 2
    assert_same(arrays(by_class.trained, 2), expected)
    assert_same(arrays(by_sample.trained, 2), expected)


def test_the_rest_of_an_epoch_of_buckets_is_trained_on_after_set_state():
    ds = FORMS["bucket_by_length"](sentences())
    whole = delivered(ds, 2)
    adapter, model, places = ds.to_keras(), recorder(), []
    adapter.loader.set_state(ds.loader().get_state() | {"position": 2})
    model.fit(adapter, epochs=2, verbose=0, callbacks=[watching(adapter, places)])
    assert_same(arrays(model.trained), [x for x, _ in whole[2:]])
    assert at(adapter) == (2, 0)
    assert places[0] == (0, 3)


@pytest.mark.parametrize("form", ["bucket_by_length", "filter"])
def test_a_state_of_the_end_of_an_epoch_goes_on_with_the_next_one_or_says_how(form):
    import keras

    forms = FORMS | {"filter": lambda ds: ds.filter(lambda e: True).padded_batch(4)}  # whose states have a cursor
    ds = forms[form](sentences())
    whole, half = delivered(ds, 2), len(delivered(ds))
    with ds.loader("inline") as loader:
        state = [loader.get_state() for _ in loader][-1]
    assert (state["epoch"], state["position"]) == (0, half)
    adapter = ds.to_keras()
    adapter.loader.set_state(state)
    initial_epoch = 0
    if keras.backend.backend() == "jax":
        with pytest.raises(ps.StateError, match=r"'epoch': 1, 'position': 0.*fit\(initial_epoch=1\)"):
            recorder().fit(adapter, epochs=2, verbose=0)
        state = {**state, "epoch": 1, "position": 0}
        state.pop("cursor", None)
        adapter.loader.set_state(state)
        initial_epoch = 1
    model = recorder()
    model.fit(adapter, initial_epoch=initial_epoch, epochs=2, verbose=0)
    assert_same(arrays(model.trained), [x for x, _ in whole[half:]])
    assert at(adapter) == (2, 0)


def make_batch(number):
    """3 rows, and 2 in the last batch."""
    rows = 3 if number < 4 else 2
    return np.full((rows, 2), number, np.float32), np.full(rows, number, np.float32)


def test_a_function_may_make_batches_of_as_many_rows_as_it_likes():
    import keras

    spec = (ps.ArraySpec((None, 2), "float32"), ps.ArraySpec((None,), "float32"))
    ds = ps.range(5).map(make_batch, element_spec=spec)
    adapter, model = ds.to_keras(), recording_model([keras.layers.Dense(1)])
    assert (adapter.num_batches, adapter.batch_size, adapter.has_partial_batch) == (5, None, True)
    model.fit(adapter, epochs=1, verbose=0)
    assert_same(arrays(model.trained), [x for x, _ in delivered(ds)])


@pytest.mark.parametrize(
    ("form", "size", "has_partial"),
    [
        ("padded_batch", 4, True),
        ("drop_remainder", 4, False),
        ("padded_shapes", 4, True),
        ("bucket_by_length", 8, True),
    ],
)
def test_sizes_of_padded_batches_are_known_before_anything_is_read(form, size, has_partial):
    adapter = FORMS[form](sentences()).to_keras()
    assert (adapter.batch_size, adapter.has_partial_batch) == (size, has_partial)
    assert adapter.loader.report().batches == 0


def test_what_is_read_to_build_a_model_is_not_delivered():
    adapter = FORMS["padded_batch"](sentences()).to_keras()
    model_of().fit(adapter, epochs=0, verbose=0)
    assert adapter.loader._delivery is None
    assert at(adapter) == (0, 0)


def test_a_model_for_one_length_trains_on_batches_that_all_have_it():
    import keras

    spec = (ps.ArraySpec((None,), "float32"), ps.ArraySpec((), "float32"))
    ds = ps.range(10).map(lambda i: (np.full(11, i, np.float32), np.float32(i)), element_spec=spec).padded_batch(4)
    model = recording_model([keras.Input((11,)), keras.layers.Dense(1)])
    model.fit(ds.to_keras(), verbose=0)
    assert_same(arrays(model.trained), [x for x, _ in delivered(ds)])


def test_an_element_that_fails_while_a_model_is_built_is_set_aside_in_training(tmp_path):
    def fragile(number):
        if number == 1:
            raise ValueError("broken")
        return sentence(number)

    ds = ps.range(8).map(fragile, element_spec=SEQUENCE).padded_batch(4)
    adapter, model = ds.to_keras(on_error="replace", quarantine=tmp_path / "broken.jsonl"), recorder()
    model.fit(adapter, verbose=0)
    assert [len(x) for x in arrays(model.trained)] == [4, 4]
    assert adapter.loader.report().set_aside == 1


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((None, 2), (3,)), "is ((None, 2) float32, (3,) float32): its leaves have no common first axis. Put batch()"),
        (((None, 2), (3,)), "its element_spec has None as first axis of all leaves, or of none"),
        (((4, None), (3,)), "is ((4, None) float32, (3,) float32): its leaves have no common first axis. Put batch()"),
        (((None,), ()), "is ((None,) float32, () float32): its leaves have no common first axis. Put batch() last"),
    ],
)
def test_leaves_whose_first_axes_differ_are_refused(shapes, message):
    spec = tuple(ps.ArraySpec(shape, "float32") for shape in shapes)
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ps.range(5).map(make_batch, element_spec=spec).to_keras()
