"""What does `model.fit` pay for small batches of data that are in memory anyway?

Question: the first program of many people: 30,000 pictures of 28x28, float32, and their labels, in memory, in shuffled
batches of 32, and a network with one hidden layer of 64. `fit(x, y)` needs no library; what is left of its speed with
each of those that data of other sizes will need?

Method: `python benchmarks/small_fit.py`. Fresh processes in turn, on each backend of Keras. The first two epochs of
`fit` trace and warm up, then as many as end within 6 s are timed, five at least; the rate is that of the median one.
`arrays` is `fit(x, y, batch_size=32)`; `penstock` is `to_keras()`, which chooses how to run by itself; `pydataset` a
`keras.utils.PyDataset` that indexes the arrays by a batch of shuffled numbers, without workers; `tf_slices` is
`from_tensor_slices`, `shuffle` over all, `batch` and `prefetch`; `tf_generator` is `from_generator` over shuffled
samples, `batch` and `prefetch`; `dataloader` is a DataLoader that gets the numbers of a batch at a time.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, Keras 3.15 on TensorFlow
2.21, JAX 0.10 and torch 2.13, 2026-11-23.

Result of two rounds, us a step and their spread:

                    tensorflow                jax                torch
    arrays            854 (804 to 903)        266 (248 to 283)   1,749 (1,684 to 1,815)
    penstock          630 (610 to 649)        289 (275 to 302)   1,814 (1,747 to 1,881)
    pydataset       1,293 (1,195 to 1,392)    260 (252 to 267)   1,923 (1,889 to 1,958)
    tf_slices         825 (801 to 848)
    tf_generator    7,447 (6,059 to 8,836)
    dataloader                                                   1,681 (1,664 to 1,699)

TensorFlow: 1.35 (1.32 to 1.39) times as fast as `arrays` and 1.31 times the best of the others. JAX: 0.92 (0.90 to
0.94) of `arrays`, 0.90 (0.88 to 0.92) of the best. torch: 0.97 (0.90 to 1.04) and 0.93 (0.88 to 0.97), that of a
DataLoader which gets whole batches of numbers. Before the consumer filled several batches in one go, and tried it for
short steps too, JAX and torch took a fifth to a quarter longer than `arrays`.

Not shown: what does not fit in memory (`keras_fit`); functions of the user's; a GPU.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, ratio, run

_COUNT = 30_000
_BATCH_SIZE = 32
_STEP_COUNT = math.ceil(_COUNT / _BATCH_SIZE)
_CLASS_COUNT = 10
_WARM_UP_COUNT = 2
_LEAST_COUNT = 5
_RUN_S = 6.0
_QUICK_RUN_S = 1.0

Contender = Callable[[Array, Array], Any]
"""Makes what `fit` gets as `x` of the pictures and their labels."""


def penstock(x: Array, y: Array) -> Any:
    import penstock as ps

    return ps.from_arrays((x, y)).shuffle(1).batch(_BATCH_SIZE).to_keras()


def pydataset(x: Array, y: Array) -> Any:
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(1)
            self.on_epoch_end()

        def __len__(self) -> int:
            return _STEP_COUNT

        def __getitem__(self, index: int) -> tuple[Array, Array]:
            numbers = self.order[index * _BATCH_SIZE : (index + 1) * _BATCH_SIZE]
            return x[numbers], y[numbers]

        def on_epoch_end(self) -> None:
            self.order = self.rng.permutation(_COUNT)

    return Batches()


def tf_slices(x: Array, y: Array) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.shuffle(_COUNT).batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def tf_generator(x: Array, y: Array) -> Any:
    import tensorflow as tf

    rng = np.random.default_rng(1)

    def generate() -> Iterator[tuple[Array, Any]]:
        for number in rng.permutation(_COUNT):
            yield x[number], y[number]

    signature = tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec((), y.dtype)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(_COUNT))
    return dataset.batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def dataloader(x: Array, y: Array) -> Any:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sampler = BatchSampler(RandomSampler(dataset), _BATCH_SIZE, drop_last=False)
    return DataLoader(dataset, sampler=sampler, batch_size=None)


def _case(backend: str, contender: Contender | None) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        os.environ["KERAS_BACKEND"] = backend
        import keras

        class Epochs(keras.callbacks.Callback):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.took_s: list[float] = []

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.began_s = time.perf_counter()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.took_s.append(time.perf_counter() - self.began_s)
                timed = self.took_s[_WARM_UP_COUNT:]
                self.model.stop_training = len(timed) >= _LEAST_COUNT and sum(timed) >= run_s

        run_s = _QUICK_RUN_S if options.quick else _RUN_S
        keras.utils.set_random_seed(1)
        rng = np.random.default_rng(0)
        x = rng.random((_COUNT, 28, 28), dtype=np.float32)
        y = rng.integers(0, _CLASS_COUNT, _COUNT)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((28, 28)),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(_CLASS_COUNT, activation="softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        epochs = Epochs()
        given = {"x": x, "y": y, "batch_size": _BATCH_SIZE} if contender is None else {"x": contender(x, y)}
        model.fit(**given, epochs=1000, verbose=0, callbacks=[epochs])
        took_s = float(np.median(epochs.took_s[_WARM_UP_COUNT:]))
        return {"samples/s": _COUNT / took_s, "us a step": 1e6 * took_s / _STEP_COUNT}

    return measure


_OTHERS: dict[str, dict[str, Contender]] = {
    "tensorflow": {"tf_slices": tf_slices, "tf_generator": tf_generator, "pydataset": pydataset},
    "jax": {"pydataset": pydataset},
    "torch": {"dataloader": dataloader, "pydataset": pydataset},
}
_CASES = {
    f"{backend}_{name}": _case(backend, contender)
    for backend, others in _OTHERS.items()
    for name, contender in {"arrays": None, "penstock": penstock, **others}.items()
}


def _targets(options: Options) -> list[Target]:
    return [
        target
        for backend, others in _OTHERS.items()
        for target in (
            Target(f"{backend}: penstock / arrays", ratio(f"{backend}_penstock", [f"{backend}_arrays"])),
            Target(
                f"{backend}: penstock / best of the others",
                ratio(f"{backend}_penstock", [f"{backend}_{name}" for name in others]),
                at_least=1.0,
            ),
        )
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, case_timeout_s=180)
