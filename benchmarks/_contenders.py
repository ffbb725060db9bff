"""A function of an element, run on two worker processes by each library as its documentation advises.

A contender takes the function and a batch size, imports what it needs, and returns an `Epoch`: each call makes a
loader of its own, with new workers where the library has no others, and iterates over endless batches in order.

Workers are started as each library does it by default on Linux: PyTorch, Keras and SPDL fork, Grain spawns, Ray has
its own.
"""

import functools
import itertools
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from _harness import Array, Epoch, Numbers

ELEMENT_COUNT = 1 << 30
"""More than anybody reads: no epoch ends while it is measured."""

_RAY_ELEMENT_COUNT = 12_000
_RAY_BLOCK_COUNT = 120
"""About 100 ms a block and worker: by default it would be four blocks for all, and the first batch after seconds."""

Element = Callable[[Any], Array]
"""An element by its index, which is any integer of NumPy, TensorFlow or Python."""

Contender = Callable[[Element, int], Epoch]
"""Makes the epochs of a function of an element and a batch size."""


def _stacked(element: Element, indices: Iterable[int]) -> Array:
    return np.stack([element(index) for index in indices])


def serial(element: Element, batch_size: int) -> Epoch:
    """One thread, and nothing between it and the consumer."""

    def epoch() -> Iterator[tuple[Array]]:
        for start in itertools.count(0, batch_size):
            yield (_stacked(element, range(start, start + batch_size)),)

    return epoch


def penstock(element: Element, batch_size: int, workers: int = 2) -> Epoch:
    """`map`, `batch`, and a loader with processes."""
    import penstock as ps

    dataset = ps.range(ELEMENT_COUNT).map(element).batch(batch_size)
    return lambda: ((batch,) for batch in dataset.loader(executor="processes", workers=workers))


def torch(
    element: Element,
    batch_size: int,
    workers: int = 2,
    worker_init_fn: Callable[[int], None] | None = None,
    *,
    in_order: bool = True,
) -> Epoch:
    """A map-style dataset and a DataLoader: default collation, persistent workers, two batches ahead a worker."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Elements(Dataset):  # type: ignore[misc, unused-ignore]
        def __len__(self) -> int:
            return ELEMENT_COUNT

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.from_numpy(element(index))

    def epoch() -> Iterator[tuple[Array]]:
        loader = DataLoader(
            Elements(),
            batch_size=batch_size,
            num_workers=workers,
            persistent_workers=True,
            worker_init_fn=worker_init_fn,
            in_order=in_order,
        )
        for batch in loader:
            yield (batch.numpy(),)

    return epoch


def grain(element: Element, batch_size: int, workers: int = 2) -> Epoch:
    """A `MapDataset` of batches, and `mp_prefetch`; each worker has one thread that is two batches ahead."""
    import grain  # type: ignore[import-untyped, unused-ignore]
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # mp_prefetch reads absl's flags, which are parsed in an absl app alone
    batches = grain.MapDataset.range(ELEMENT_COUNT).map(element).batch(batch_size)
    # Its documentation would have no thread where nothing is read, its default is 16 of them. One, two batches ahead,
    # is as fast as none where the function holds the GIL, and 1.5 times as fast as either with large batches.
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    dataset = batches.to_iter_dataset(read).mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))

    def epoch() -> Iterator[tuple[Array]]:
        iterator = iter(dataset)
        try:
            for batch in iterator:
                yield (batch,)
        finally:
            iterator.close()

    return epoch


def keras(element: Element, batch_size: int, workers: int = 2) -> Epoch:
    """A `PyDataset` with `use_multiprocessing=True`, read through the adapter that `fit` makes of it."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    class Batches(keras.utils.PyDataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__(workers=workers, use_multiprocessing=True)

        def __len__(self) -> int:
            return ELEMENT_COUNT // batch_size

        def __getitem__(self, batch: int) -> tuple[Array]:
            start = batch * batch_size
            return (_stacked(element, range(start, start + batch_size)),)

    def epoch() -> Iterator[tuple[Array]]:
        adapter = PyDatasetAdapter(Batches())
        adapter.on_epoch_begin()
        yield from adapter.get_numpy_iterator()

    return epoch


def tf_data(element: Element, batch_size: int) -> Epoch:
    """`py_function` in a parallel `map`; its functions run in threads of this process."""
    import tensorflow as tf

    spec = element(0)

    def run(index: Any) -> Any:
        value = tf.py_function(lambda each: element(each.numpy()), [index], spec.dtype)
        return tf.ensure_shape(value, spec.shape)

    dataset = (
        tf.data.Dataset.range(ELEMENT_COUNT)
        .map(run, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )
    return lambda: ((batch,) for batch in dataset.as_numpy_iterator())


def ray(element: Element, batch_size: int, workers: int = 2) -> Epoch:
    """Ray Data on a local cluster of so many CPUs; batches come in no certain order, which is its default.

    It makes tasks of blocks of the whole length, so its epoch is short enough to end.
    """
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.range(_RAY_ELEMENT_COUNT, override_num_blocks=_RAY_BLOCK_COUNT)
    dataset = dataset.map(lambda row: {"value": element(row["id"])})

    def epoch() -> Iterator[tuple[Array]]:
        for batch in dataset.iter_batches(batch_size=batch_size, batch_format="numpy"):
            yield (batch["value"],)

    return epoch


def spdl(element: Element, batch_size: int, workers: int = 2) -> Epoch:
    """A pipeline with a region of worker processes, for functions that hold the GIL; batches come in no certain order.

    A worker is given a list of indices and makes the batch of them, so that a batch is one message each way.
    """
    from spdl.pipeline import PipelineBuilder
    from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

    def epoch() -> Iterator[tuple[Array]]:
        pipeline = (
            PipelineBuilder()
            .add_source(range(ELEMENT_COUNT))
            .aggregate(batch_size)
            .to(ProcessPoolExecutorConfig(max_workers=workers))
            .pipe(functools.partial(_stacked, element))
            .to(MAIN_PROCESS)
            .add_sink(2)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            for batch in pipeline:
                yield (batch,)

    return epoch


def spdl_arena(element: Element, batch_size: int) -> Epoch:
    """A pipeline of two threads in a process of its own; batches come in shared memory, in no certain order.

    That is what its documentation advises for large batches: a pool of segments, whose arrays are not copied again.
    """
    from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess

    def epoch() -> Iterator[tuple[Array]]:
        config = (
            PipelineBuilder()
            .add_source(range(ELEMENT_COUNT))
            .aggregate(batch_size)
            .pipe(functools.partial(_stacked, element), concurrency=2)
            .add_sink(2)
            .get_config()
        )
        pool = SharedMemorySegmentPool(segment_size=batch_size * element(0).nbytes + (1 << 20), count=8)
        for batch in run_pipeline_in_subprocess(config, num_threads=2, arena=pool):
            yield (batch,)

    return epoch


def bare_pair(element: Element, duration_s: float) -> Numbers:
    """Returns the rate of two forked processes that run the function and deliver nothing: what the machine can do."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)

    def work(sender: Connection) -> None:
        count = 0
        together.wait()
        began_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - began_s) < duration_s:
            element(count)
            count += 1
        sender.send(count / elapsed_s)

    rates = []
    for receiver, sender in [context.Pipe(duplex=False) for _ in range(2)]:
        context.Process(target=work, args=(sender,)).start()
        rates.append(receiver)
    return {"samples/s": sum(receiver.recv() for receiver in rates)}
