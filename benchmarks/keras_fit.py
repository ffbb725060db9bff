"""How close does `model.fit` come to the speed of the model alone?

Question: a small convolutional next-frame model on Keras's TensorFlow backend, (3, 50, 50) float32 pairs in
shuffled batches of 32 from a float64 `.npy` of 1.2 GB in the page cache. What part of the model's own speed
is left when the data come from each library?

Method: `python benchmarks/keras_fit.py`. Each contender has a fresh process, in turn; the first epoch of
`fit` traces the model and warms up, the second is timed, from `on_epoch_begin` to `on_epoch_end`. `limit` is
the same model fed one batch for ever: a constant, repeated inside the TensorFlow runtime. An epoch is 624
batches (200 with `--quick`), none of them short. Each casts to float32 in its own way. Memory is the peak
over the bare imports, the model's share included.

Contenders, as their documentations advise: `tf_data` is shuffled indices and a parallel `numpy_function`;
`pydataset` is `keras.utils.PyDataset` with 2 workers (threads); `torch_0_getitems` is a DataLoader that reads
and collates a batch a call, `torch_2` one with 2 persistent workers and an element a call; `grain` batches
before `to_iter_dataset`, one thread ahead; `from_generator` is `tf.data.Dataset.from_generator` over a
generator that shuffles globally, batched and prefetched by tf.data.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.
Its speed varied by a factor of up to 1.5 from minute to minute; ratios are of the same round.

Result, of two rounds of 200 batches (`--quick`): penstock 0.95 of the limit (0.72 to 1.18: in one round the
machine slowed down under the limit) and 1.41 times the best of the others (1.39 to 1.43). Of the limit:
tf_data 0.67, torch_0_getitems 0.63, grain 0.62, pydataset 0.62, from_generator 0.50, torch_2 0.45. Samples/s:
limit 4,102, penstock 3,618, tf_data 2,549.
On 2026-11-23, five rounds of 624 batches: penstock 0.84 of the limit (0.79 to 0.91; wanted 0.85) and 1.38 times the
best of the others (1.24 to 1.45; wanted 1.2); tf_data 0.63 (0.37 to 0.70), pydataset 0.60 (0.52 to 0.62). In two
rounds of all before these: 0.80 (0.68 to 0.91) and 1.20 (1.18 to 1.22), grain 0.57, from_generator 0.61,
torch_0_getitems 0.55, torch_2 0.41. A step takes 7.6 ms of CPU of the model's own and 1.3 of two threads that read
and cast, on cores that are idle for a fifth of it. These threads at other priorities (nice 5 and 19, SCHED_BATCH,
SCHED_IDLE), three rounds in turn: no difference from noise.
On 2026-11-23, with the copy engine, two cores of an Intel Xeon at 2.8 GHz, five rounds of 200 batches (`--quick`, of
these three alone): 0.975 of the limit (0.935 to 1.11; wanted 0.85) and 1.44 times tf_data (1.15 to 2.06; wanted 1.3).

On 2026-11-26, a faster AMD EPYC, quiet, two rounds of 200 batches, of three: penstock 1.04 (0.96 to 1.11) of the limit,
tf_data 0.68 (0.62 to 0.74); samples/s 6,643, 4,350, limit 6,474.

On 2026-11-29, AMD EPYC, quiet, one round, parts of the limit (7,530 samples/s): penstock 0.92, tf_data 0.56, grain
0.55, torch_0_getitems 0.26. An hour before, when rows of 60 kB were not mapped: penstock 0.78, torch_0_getitems 0.61,
grain 0.60, tf_data 0.58, pydataset 0.52, from_generator 0.29.

Not shown: a large model, which hides any loader; a GPU; another backend.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, ratio, run
from _memory import PeakMemory, warm_pages
from _pairs import BATCH_SIZE, FRAME_SHAPE, PAIR_COUNT, PairsByIndex, frames_file, grain_batches, torch_loader

_STEP_COUNT = PAIR_COUNT // BATCH_SIZE
_QUICK_STEP_COUNT = 200

FitData = tuple[Any, int | None]
"""What `fit` gets as `x`, and `steps_per_epoch` where `x` is endless."""

Contender = Callable[[Path, int], FitData]
"""Makes the data of an epoch of so many samples from the file."""


def limit(path: Path, sample_count: int) -> FitData:
    import tensorflow as tf

    batch = PairsByIndex(path, "float32")[np.arange(BATCH_SIZE)]
    return tf.data.Dataset.from_tensors(batch).repeat().prefetch(tf.data.AUTOTUNE), sample_count // BATCH_SIZE


def penstock(path: Path, sample_count: int) -> FitData:
    import penstock as ps

    frames = ps.from_npy(path)
    pairs = ps.zip((frames[:-1], frames[1:])).take(sample_count)
    train = pairs.cast("float32").shuffle(seed=1).batch(BATCH_SIZE)
    return train.to_keras(executor="threads", workers=2), None


def tf_data(path: Path, sample_count: int) -> FitData:
    import tensorflow as tf

    pairs = PairsByIndex(path, "float32")

    def read(indices: Any) -> tuple[Any, Any]:
        x, y = tf.numpy_function(pairs.__getitem__, [indices], [tf.float32, tf.float32])
        shape = (None, *FRAME_SHAPE)
        return tf.ensure_shape(x, shape), tf.ensure_shape(y, shape)

    indices = tf.data.Dataset.range(sample_count).shuffle(sample_count, seed=1).batch(BATCH_SIZE)
    return indices.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE), None


def pydataset(path: Path, sample_count: int) -> FitData:
    import keras

    pairs = PairsByIndex(path, "float32")

    class Pairs(keras.utils.PyDataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__(workers=2)
            self.rng = np.random.default_rng(1)
            self.order = self.rng.permutation(sample_count)

        def __len__(self) -> int:
            return sample_count // BATCH_SIZE

        def __getitem__(self, batch: int) -> tuple[Array, Array]:
            return pairs[self.order[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]]

        def on_epoch_end(self) -> None:
            self.order = self.rng.permutation(sample_count)

    return Pairs(), None


def torch(workers: int, *, getitems: bool) -> Contender:
    def contender(path: Path, sample_count: int) -> FitData:
        return torch_loader(PairsByIndex(path, "float32", sample_count), workers, getitems=getitems), None

    return contender


def grain(path: Path, sample_count: int) -> FitData:
    import grain  # type: ignore[import-untyped, unused-ignore]

    batches = grain_batches(PairsByIndex(path, "float32", sample_count))
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)), None


def from_generator(path: Path, sample_count: int) -> FitData:
    import tensorflow as tf

    pairs = PairsByIndex(path, "float32")
    rng = np.random.default_rng(1)

    def generate() -> Iterator[tuple[Array, Array]]:
        for index in rng.permutation(sample_count):
            yield pairs[index]

    spec = tf.TensorSpec(FRAME_SHAPE, tf.float32)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=(spec, spec))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(sample_count))
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE), None


def next_frame_model() -> Any:
    """Returns a compiled model of some thousand parameters, light enough that the data matter."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(FRAME_SHAPE),
            layers.Permute((2, 3, 1)),  # TensorFlow convolves on a CPU with channels last alone
            layers.Conv2D(16, 5, strides=5, activation="relu"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2DTranspose(3, 5, strides=5),
            layers.Permute((3, 1, 2)),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


def _case(contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import keras

        class EpochTimes(keras.callbacks.Callback):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.elapsed_s: list[float] = []

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.began_s = time.perf_counter()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.elapsed_s.append(time.perf_counter() - self.began_s)

        path = frames_file()
        warm_pages(path)
        keras.utils.set_random_seed(1)
        times = EpochTimes()
        sample_count = BATCH_SIZE * (_QUICK_STEP_COUNT if options.quick else _STEP_COUNT)
        with PeakMemory() as memory:
            data, steps = contender(path, sample_count)
            next_frame_model().fit(data, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[times])
        numbers = {"samples/s": sample_count / times.elapsed_s[1], "first epoch s": times.elapsed_s[0]}
        return numbers | memory.peaks_mib()

    return measure


_OTHERS: dict[str, Contender] = {
    "tf_data": tf_data,
    "pydataset": pydataset,
    "torch_0_getitems": torch(0, getitems=True),
    "torch_2": torch(2, getitems=False),
    "grain": grain,
    "from_generator": from_generator,
}
_CASES = {name: _case(run_) for name, run_ in {"limit": limit, "penstock": penstock, **_OTHERS}.items()}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / limit", ratio("penstock", ["limit"]), at_least=0.85),
        Target("penstock / best of the others", ratio("penstock", list(_OTHERS)), at_least=1.2),
        *(Target(f"{name} / limit", ratio(name, ["limit"])) for name in _OTHERS),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
