"""`to_tf`: a real `tf.data.Dataset`, in fit, in strategies and in further steps of tf.data."""

import collections
import gc
import itertools
import math
import threading
import weakref

import numpy as np
import pytest

import penstock as ps
from penstock.testing import AdapterTests

pytestmark = [pytest.mark.framework, pytest.mark.usefixtures("leaves_nothing_behind")]

Example = collections.namedtuple("Example", ["x", "y"])


@pytest.fixture(autouse=True)
def _threads_of_tensorflow_are_not_ours(monkeypatch):
    """Python keeps a record of a thread of TensorFlow on which a loader began, and never learns that it ended."""
    everybody = threading.enumerate
    foreign = threading._DummyThread
    monkeypatch.setattr(threading, "enumerate", lambda: [one for one in everybody() if not isinstance(one, foreign)])


class _Tf:
    """How the contract's tests use it."""

    @pytest.fixture
    def make_adapter(self):
        return lambda dataset, **options: dataset.to_tf(**options)

    @pytest.fixture
    def to_numpy(self):
        import tensorflow as tf

        return lambda batch: tf.nest.map_structure(lambda tensor: None if tensor is None else tensor.numpy(), batch)

    def count(self, adapter):
        count = int(adapter.cardinality())
        return count if count >= 0 else None

    def element_spec(self, adapter):
        import tensorflow as tf

        def array_spec(spec):
            is_tensor = isinstance(spec, tf.TensorSpec)  # None has a spec of its own, which is private
            return ps.ArraySpec(tuple(spec.shape), spec.dtype.as_numpy_dtype) if is_tensor else None

        return tf.nest.map_structure(array_spec, adapter.element_spec)

    @pytest.fixture(autouse=True)
    def _tensorflow_lets_go(self):
        yield
        let_go()


class TestTf(_Tf, AdapterTests):
    @property  # for TensorFlow is imported by the tests that need it, and not where these are collected
    def function_error(self):
        import tensorflow as tf

        return tf.errors.UnknownError

    closed_error = function_error


def let_go():
    """TensorFlow drops references to NumPy arrays when it next makes a tensor of one."""
    import tensorflow as tf

    gc.collect()
    tf.convert_to_tensor(np.zeros(1)).numpy()


@pytest.fixture
def tf():
    import tensorflow as tf

    yield tf
    let_go()


def numbered(count=10, size=4, seed=1):
    """Batches `(x, y)` of float32, each epoch in its own order."""
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2) / 100
    return ps.from_arrays((x, x[:, :1] * 2)).shuffle(seed).batch(size)


def delivered(ds, epochs=1):
    with ds.loader(executor="inline") as loader:
        return [batch[0].tolist() for _ in range(epochs) for batch in loader]


# The kind of dataset.


def test_it_is_a_dataset_of_tf_data_with_static_shapes_and_cardinality(tf):
    images = ps.from_arrays(Example(np.zeros((10, 3, 2), "float32"), {"b": np.zeros(10, "int32"), "a": np.ones(10)}))
    short, full = images.batch(4).to_tf(workers=1), images.batch(4, drop_remainder=True).to_tf(workers=1)
    assert isinstance(short, tf.data.Dataset)
    assert short.element_spec == Example(
        tf.TensorSpec((None, 3, 2), tf.float32),
        {"b": tf.TensorSpec((None,), tf.int32), "a": tf.TensorSpec((None,), tf.float64)},
    )
    assert full.element_spec.x.shape == (4, 3, 2)
    assert (len(short), len(full)) == (3, 2)
    assert int(short.map(lambda example: example.x + 1).prefetch(2).cardinality()) == 3
    assert list(next(iter(short)).y) == ["b", "a"]
    endless = images.repeat().batch(4).to_tf(workers=1)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    assert endless.loader.length == math.inf
    assert int(endless.take(5).cardinality()) == 5
    for each in (short, full, endless):
        each.loader.close()


def test_text_is_strings_of_tensorflow(tf):
    words = ["to", "bé", "", "or not"]
    for text in (words, np.array(words), [word.encode() for word in words]):
        source = ps.from_arrays(text) if isinstance(text, np.ndarray) else ps.from_source(text)
        for ds, shape in ((source, ()), (source.batch(2), (2,)), (source.batch(3), (None,))):
            made = ds.to_tf(workers=1)
            assert made.element_spec == tf.TensorSpec(shape, tf.string)
            found = [word for element in made for word in np.atleast_1d(element.numpy())]
            assert found == [word.encode() for word in words]
            made.loader.close()


def test_dtypes_that_tensorflow_does_not_have_are_refused_with_the_cure():
    days = np.array(["2026-11-20"], "M8[D]")
    records = np.zeros(1, [("a", "i4"), ("b", "f8")])
    for array, cure in [
        (days, r"TensorFlow has no dtype for element, which is \(\) datetime64\[D\]\. Use cast\('int64'\)"),
        (np.zeros(1, ">f4"), r"use cast\('float32'\)"),
        (records, r"Take its fields apart with map\(\), such as \{'a': x\['a'\]\}"),
        (np.zeros(1, "g"), r"float128. .*cast\('float32'\)"),
    ]:
        with pytest.raises(ps.SpecError, match=cure):
            ps.from_arrays(array).to_tf(workers=1)
    made = ps.from_arrays(records).map(lambda x: {name: x[name] for name in x.dtype.names}).to_tf(executor="threads")
    assert {name: spec.dtype.name for name, spec in made.element_spec.items()} == {"a": "int32", "b": "float64"}
    made.loader.close()


# Memory.


def test_a_tensor_is_the_memory_of_a_slot_which_comes_back(tf):
    made = ps.from_arrays(np.ones((48, 32), "float32")).batch(8).to_tf(executor="threads", workers=1)
    loader = made.loader
    batches = iter(made)
    tensor = next(batches)
    pipeline = loader._delivery
    assert pipeline.ring.leased_count == 1
    del tensor
    let_go()
    assert pipeline.ring.leased_count == 0
    assert len(list(batches)) == 5
    loader.close()


def test_steps_of_tf_data_do_not_write_into_batches(tf):
    rows = np.arange(96, dtype=np.float32).reshape(24, 4)
    made = ps.from_arrays(rows).batch(4).to_tf(executor="threads", workers=2)
    both = made.map(lambda x: (x, -(x + 1) * 2)).prefetch(2)
    for _ in range(5):
        kept = list(both)
        np.testing.assert_array_equal(np.concatenate([x for x, _ in kept]), rows)
        np.testing.assert_array_equal(np.concatenate([y for _, y in kept]), -(rows + 1) * 2)
    del kept
    made.loader.close()


def test_the_loader_ends_with_the_last_dataset_that_was_made_of_it(tf):
    made = numbered().to_tf(workers=1)
    loader = weakref.ref(made.loader)
    # Not converted: on Python 3.13 TensorFlow fails at this, and keeps the frames of that, which hold the dataset.
    derived = made.map(tf.autograph.experimental.do_not_convert(lambda x, y: x)).prefetch(1)
    del made
    assert len(list(derived)) == 3
    batches = iter(derived)
    del derived
    next(batches)
    gc.collect()
    assert loader() is not None
    del batches
    gc.collect()
    assert loader() is None


def test_what_tensorflow_keeps_of_a_dataset_that_is_gone_says_so(tf):
    made = numbered().to_tf(workers=1)
    variant, spec = made._variant_tensor, made.element_spec
    del made
    gc.collect()
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    with pytest.raises(tf.errors.UnknownError, match=r"to_tf\(\) made is gone.* Keep what it returned"):
        next(iter(_VariantDataset(variant, spec)))


# Order and position.


def test_state_is_that_of_the_loop_and_the_first_epoch_after_it_is_the_rest(tf):
    ds = numbered()
    made = ds.to_tf(workers=1)
    steps = made.map(lambda x, y: (x + 1, y)).filter(lambda x, y: True)
    for taken, _ in enumerate(steps, 1):
        assert made.loader.get_state()["position"] == taken % 3  # tf.data reads nothing ahead
        if taken == 2:
            state = made.loader.get_state()
    assert made.counters() == made.loader.counters()
    made.loader.close()
    again = ds.to_tf(workers=1)
    again.loader.set_state(state)
    assert [x.numpy().tolist() for _ in range(2) for x, _ in again.map(lambda x, y: (x, y))] == delivered(ds, 2)[2:]
    again.loader.close()


def test_what_tf_data_was_told_to_read_ahead_counts_as_delivered(tf):
    made = numbered(40).to_tf(workers=1)
    ahead = made.prefetch(3)
    batches = iter(ahead)
    next(batches)
    del batches
    gc.collect()
    assert 1 <= made.loader.get_state()["position"] <= 5
    assert [x.numpy().tolist() for x, _ in ahead] == delivered(numbered(40), 2)[10:]
    made.loader.close()


def test_an_older_iterator_is_told_that_a_newer_one_took_over(tf):
    made = numbered().to_tf(workers=1)
    older = iter(made)
    next(older)
    newer = iter(made)
    assert next(newer)[0].numpy().tolist() == delivered(numbered(), 2)[3]
    with pytest.raises(tf.errors.UnknownError, match=r"A newer iterator, or set_state\(\), has taken over"):
        next(older)
    assert len(list(newer)) == 2
    made.loader.close()


def test_an_iterator_that_was_not_read_begins_no_epoch(tf):
    made = numbered().to_tf(workers=1)
    iter(made)
    iter(made)
    assert made.loader._delivery is None
    assert [x.numpy().tolist() for x, _ in made] == delivered(numbered())
    made.loader.close()


def test_an_error_in_a_function_has_its_traceback_in_the_text_and_the_next_epoch_goes_on(tf):
    def fragile(x):
        if x == 5:
            raise KeyError("no frame 5")
        return np.float32(x)

    made = ps.range(8).map(fragile).batch(2).to_tf(executor="threads", workers=1)
    for _ in range(2):
        with pytest.raises(tf.errors.OpError) as caught:
            list(made)
        assert "map(fragile) at test_tf.py" in str(caught.value)
        assert "element 5" in str(caught.value)
        assert "in fragile" in str(caught.value)
        assert "KeyError: 'no frame 5'" in str(caught.value)
    del caught
    made.loader.close()


# In training. Keras 3.15 warns of shuffle=True, its own default, whenever it is given a tf.data.Dataset.


def model(tf):
    keras = tf.keras
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


@pytest.fixture
def on_tensorflow(tf):
    import keras

    if keras.backend.backend() != "tensorflow":
        pytest.skip("a tf.data.Dataset in fit is for the TensorFlow backend")
    return tf


def test_fit_trains_as_on_the_batches_one_by_one(on_tensorflow):
    tf, ds, held_out = on_tensorflow, numbered(), numbered(7, 3, seed=5)
    train, test = ds.to_tf(workers=1), held_out.to_tf(training=False, workers=1)
    fitted = model(tf)
    history = fitted.fit(train, validation_data=test, epochs=3, shuffle=False, verbose=0)
    oracle, losses = model(tf), []
    with ds.loader("inline") as loader:
        for _ in range(3):
            for x, y in loader:
                oracle.train_on_batch(x.copy(), y.copy())
            losses.append(oracle.evaluate(held_out.to_keras(training=False, workers=1), verbose=0))
    for mine, theirs in zip(fitted.get_weights(), oracle.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(history.history["val_loss"], losses, rtol=1e-6)
    assert train.loader.get_state()["epoch"] == 3
    for each in (train, test):
        each.loader.close()


def test_fit_counts_steps_of_an_endless_dataset(on_tensorflow):
    endless = ps.from_arrays((np.ones((10, 2), "float32"), np.ones((10, 1), "float32"))).repeat().batch(4)
    made = endless.to_tf(workers=1)
    history = model(on_tensorflow).fit(made, epochs=3, steps_per_epoch=4, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 3
    assert made.loader.get_state()["position"] == 12
    made.loader.close()


STRATEGY = """
import numpy as np, tensorflow as tf, keras, penstock as ps

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x = np.arange(40, dtype="float32").reshape(20, 2)
made = ps.from_arrays((x, x[:, :1])).batch(8).to_tf(workers=1)
shared = strategy.experimental_distribute_dataset(made)
assert int(shared.cardinality) == 3, shared.cardinality
for _ in range(2):
    rows = []
    for batch, _ in shared:
        parts = strategy.experimental_local_results(batch)
        assert len(parts) == 2
        rows += [part.numpy() for part in parts]
    np.testing.assert_array_equal(np.concatenate(rows), x)
assert made.loader.get_state()["epoch"] == 2
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(made, epochs=2, shuffle=False, verbose=0)
# In a strategy Keras draws a batch first, for its shape, and drops the rest of that epoch.
assert made.loader.get_state()["epoch"] == 2 + 1 + 2
print("done")
"""


def test_a_strategy_shares_out_each_batch(fresh_python):
    run = fresh_python(STRATEGY, env={"PYTHONWARNINGS": "default", "KERAS_BACKEND": "tensorflow"})
    assert run.returncode == 0, run.stderr
    assert run.stdout == "done\n"


# The end.

LEFT_OPEN = """
import sys
import penstock as ps

def main(executor, ahead):
    global batches, made
    ds = ps.range(10_000_000).map(lambda x: x * 2).batch(64)
    made = ds.to_tf(executor=executor, workers=1)
    batches = iter(made.prefetch(int(ahead)) if int(ahead) else made)
    print(next(batches).numpy()[1])

main(*sys.argv[1:])
"""


@pytest.mark.faults
@pytest.mark.parametrize(("executor", "ahead"), [("threads", "4"), ("processes", "0")])
def test_a_program_that_ends_in_an_epoch_ends(fresh_python, executor, ahead):
    run = fresh_python(LEFT_OPEN, executor, ahead, env={"PYTHONWARNINGS": "default"})
    assert run.returncode == 0, run.stderr
    assert run.stdout == "2\n"
    assert "Traceback" not in run.stderr


MANY = """
import gc, itertools
import numpy as np, tensorflow as tf, penstock as ps
from tensorflow.python.ops import script_ops

def resident_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

made = ps.from_arrays(np.ones((16, 128, 128), "float32")).shuffle(1).batch(4).to_tf(executor="threads", workers=1)
steps = made.map(lambda x: x + 1).prefetch(1)
for number in range(1, 251):
    for batch in itertools.islice(steps, 3) if number % 2 else steps:
        del batch
    if number in (50, 150, 250):
        gc.collect()
        print(resident_mib(), script_ops._py_funcs.size())
assert made.loader.report().copied == 0
"""


def test_memory_and_registered_functions_are_flat_over_250_epochs_half_of_them_broken_off(turns, tmp_path):
    """Twice 100 epochs of 3 or 4 batches of 256 KiB: one in a hundred that is kept, or 10 KiB an epoch, grows in both.

    What else lives in the interpreter grows now and then, but not each time.
    """
    script = tmp_path / "many.py"
    script.write_text(MANY)
    run = turns.run(script, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    sizes, functions = zip(*(line.split() for line in run.stdout.splitlines()), strict=True)
    assert len(set(functions)) == 1
    assert min(float(late) - float(early) for early, late in itertools.pairwise(sizes)) <= 0.8, run.stdout


def test_an_index_is_refused_with_what_to_write():
    batches = ps.range(9).batch(3).to_tf()
    with pytest.raises(TypeError, match=r"so they have no \[1\]\. The dataset has one batch by its number"):
        batches[1]
    batches.close()
