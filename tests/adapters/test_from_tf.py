"""`from_tf`: a `tf.data.Dataset` as a stream of ours, and round trips through both."""

import collections
import gc
import itertools
import math

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same

pytestmark = pytest.mark.framework

Pair = collections.namedtuple("Pair", ["x", "y"])
RNG = np.random.default_rng(0)


@pytest.fixture
def tf():
    import tensorflow as tf

    gc.freeze()  # its modules, which the collection need not look at
    yield tf
    gc.collect()
    tf.convert_to_tensor(np.zeros(1)).numpy()  # TensorFlow drops references to arrays at such a moment


def test_spec_and_length_are_those_of_tensorflow(tf):
    images = tf.data.Dataset.from_tensor_slices(
        Pair(np.zeros((10, 4, 3), "float32"), {"label": np.zeros(10, "uint8"), "name": np.array(["a"] * 10)})
    )
    ours = ps.from_tf(images.batch(4))
    assert ours.element_spec == Pair(
        ps.ArraySpec((None, 4, 3), "float32"),
        {"label": ps.ArraySpec((None,), "uint8"), "name": ps.ArraySpec((None,), "S")},
    )
    assert ours.access == "stream"
    assert ps.from_tf(images.batch(4, drop_remainder=True)).element_spec.x == ps.ArraySpec((4, 4, 3), "float32")
    assert ours.length == 3
    assert ps.from_tf(images.repeat()).length == math.inf
    assert ps.from_tf(images.filter(lambda pair: pair.y["label"] > 0)).length is None


def test_elements_are_views_of_tensors(tf):
    from penstock.adapters._tfsource import TfSource

    source = TfSource(tf.data.Dataset.range(3).map(lambda i: tf.fill((100,), i)))
    elements = list(source.iterate(0))
    assert [element[0] for element in elements] == [0, 1, 2]
    assert not any(element.flags.owndata or element.flags.writeable for element in elements)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tf: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])), r"RaggedTensor.*to_tensor"),
        (
            lambda tf: tf.data.Dataset.from_tensors({"a": tf.sparse.from_dense([[1, 0]])}),
            r"SparseTensor at \['a'\].*to_dense",
        ),
        (lambda tf: tf.data.Dataset.range(4).window(2), r"Dataset, which is no tensor.*window\.batch\(size\)"),
        (lambda tf: tf.data.Dataset.range(4).map(tf.data.experimental.Optional.from_value), r"Optional.*no tensor"),
        (
            lambda tf: tf.data.Dataset.range(2).map(lambda i: tf.numpy_function(lambda i: i, [i], tf.int64)),
            r"does not know how many axes the tensor has\. .*ensure_shape",
        ),
    ],
)
def test_what_is_no_tensor_of_known_rank_is_refused_with_the_cure(tf, make, says):
    with pytest.raises(ps.SpecError, match=says):
        ps.from_tf(make(tf))


def test_only_a_dataset_of_tf_data_will_do(tf):
    with pytest.raises(ps.ArgumentTypeError, match=r"from_tf\(\) needs a tf\.data\.Dataset, got a list\."):
        ps.from_tf([1, 2])


def test_a_dataset_of_a_graph_is_refused_with_the_cure(tf):
    made = []

    @tf.function
    def make():
        made.append(tf.data.Dataset.range(3).map(lambda x: x * 2))
        return tf.constant(0)

    @tf.function(autograph=False)  # which would make another error of ours
    def use():
        ps.from_tf(tf.data.Dataset.range(3))

    make()
    with tf.Graph().as_default():
        made.append(tf.data.Dataset.range(3))
    for dataset in made:
        with pytest.raises(ps.ArgumentError, match=r"within a tf\.function.*outside"):
            ps.from_tf(dataset)
    with pytest.raises(ps.ArgumentError, match=r"within a tf\.function.*outside"):
        use()


def test_a_string_is_bytes_and_one_that_numpy_would_cut_is_refused(tf):
    strings = tf.data.Dataset.from_tensor_slices(["to", "bé", "", "or"])
    assert list(ps.from_tf(strings)) == [b"to", "bé".encode(), b"", b"or"]
    assert [batch.tolist() for batch in ps.from_tf(strings.batch(3))] == [[b"to", "bé".encode(), b""], [b"or"]]
    raw = tf.data.Dataset.from_tensor_slices([b"ab\0", b"c"])
    assert list(ps.from_tf(raw)) == [b"ab\0", b"c"]
    with pytest.raises(ps.PenstockError, match=r"ends in a zero byte.*unbatch"):
        list(ps.from_tf(raw.batch(2)))


def test_an_error_of_tensorflow_names_the_element(tf):
    def fragile(i):
        tf.debugging.assert_less(i, tf.constant(3, tf.int64), "no such frame")
        return i

    with pytest.raises(ps.ElementError, match=r"from_tf at test_from_tf\.py:\d+ failed at element 3 .*no such frame"):
        list(ps.from_tf(tf.data.Dataset.range(8).map(fragile)))


DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_is_equal_to_the_bit(tf, dtype):
    bits = RNG.integers(0, 256, 16 * 3 * np.dtype(dtype).itemsize, dtype="uint8")
    values = (bits % 2 if dtype == "bool" else bits).view(dtype).reshape(16, 3)
    ds = ps.from_arrays(Pair(values, {"b": values[:, 0], "a": np.arange(16)})).shuffle(1).batch(5)
    made = ds.to_tf(executor="threads", workers=1, training=False)
    back = ps.from_tf(made)
    assert back.element_spec == ds.element_spec
    assert back.length == len(ds)
    elements = list(back)
    assert len(elements) == 4
    for mine, theirs in zip(elements, ds, strict=True):
        assert type(mine) is Pair
        assert mine.x.tobytes() == theirs.x.tobytes()
        assert_same(mine, theirs)
    made.loader.close()


def test_round_trip_from_tensorflow_is_equal_to_the_bit(tf):
    theirs = tf.data.Dataset.from_tensor_slices({"x": RNG.normal(size=(10, 3)), "name": [f"é{i}" for i in range(10)]})
    made = ps.from_tf(theirs).to_tf(executor="threads", workers=1)
    assert made.element_spec == theirs.element_spec
    assert made.cardinality() == theirs.cardinality()
    for _ in range(2):
        for mine, want in zip(made, theirs, strict=True):
            np.testing.assert_array_equal(mine["x"].numpy(), want["x"].numpy())
            assert mine["name"].numpy() == want["name"].numpy()
    made.loader.close()


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_what_follows_runs_on_workers_in_order(tf, executor):
    theirs = tf.data.Dataset.range(20).map(lambda i: tf.cast(i, tf.float32))
    ds = ps.from_tf(theirs).map(lambda x: x * 2).filter(lambda x: x % 3 != 0).batch(4)
    with ds.loader(executor=executor, workers=1 if executor == "inline" else 2) as loader:
        for _ in range(2):
            found = np.concatenate([batch.copy() for batch in loader])
            np.testing.assert_array_equal(found, [2.0 * i for i in range(20) if 2 * i % 3])


MANY = """
import gc
import numpy as np, tensorflow as tf, penstock as ps
from tensorflow.python.ops import script_ops

def resident_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

theirs = tf.data.Dataset.from_tensor_slices(np.ones((16, 128, 128), "float32")).map(lambda x: x + 1).batch(4)
ds = ps.from_tf(theirs)
for number in range(1, 291):
    for batch in ds:
        del batch
    if number in (50, 130, 210, 290):
        gc.collect()
        print(resident_mib(), script_ops._py_funcs.size())
"""


def test_memory_is_flat_over_many_epochs(turns, tmp_path):
    """Three times 80 epochs of 4 batches of 256 KiB: one in a hundred that is kept, or 10 KiB an epoch, grows in each.

    What else lives in the interpreter grows now and then, but not each time.
    """
    script = tmp_path / "many.py"
    script.write_text(MANY)
    run = turns.run(script, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    sizes, functions = zip(*(line.split() for line in run.stdout.splitlines()), strict=True)
    assert len(set(functions)) == 1
    assert min(float(late) - float(early) for early, late in itertools.pairwise(sizes)) <= 0.7, run.stdout
