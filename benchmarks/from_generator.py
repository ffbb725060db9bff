"""How fast is a Python generator, and does its memory grow with the array that it is given?

Question: a generator that yields the rows of a memmap of 1.2 GB, (20000, 3, 50, 50) float64, 60 kB each, one after the
other, in batches of 32: elements a second, and private + shared memory over the bare imports, workers included, at its
peak and after each of 20 epochs.

Method: `python benchmarks/from_generator.py`. Each contender has a fresh process, in turn, and the same consumer, which
sums every byte. The generator is a function of the memmap, a start and a stop, and `loop` is the same in a plain loop
that copies into batches made once. `penstock` is `from_generator(rows, memmap, 0, 20000).batch(32)` as it is, with the
default executor; `penstock_threads` keeps the generator in the process. `tf_data` is `Dataset.from_generator(rows,
args=[memmap, 0, 20000], output_signature=...)`, which converts the arguments to tensors, with `batch` and `prefetch`;
`tf_data_closure` closes over the memmap instead. `torch` is an `IterableDataset` in a DataLoader without workers,
`torch_worker` with one persistent worker. The rate is that of epochs for at least 2 s, after one that warms up; memory
is that of 20 epochs of 2,000 rows in a second process each, sampled every 20 ms. "growth MiB" is the highest value in
the last five epochs over the highest in epochs 5 to 9.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.

Result, three rounds, medians and spread:

                        elements/s                    first batch ms    private+shared MiB   growth MiB
    loop                144,600 (137,500 to 161,000)    2
    penstock             87,700 (77,900 to 96,700)    281                  33.9                 0.1
    penstock_threads     64,700 (48,500 to 68,000)     12                  11.1                 0.0
    tf_data               3,900 (3,900 to 5,400)    2,735               3,558                   1.6
    tf_data_closure       6,500 (5,000 to 6,800)       34                  19.4                 0.6
    torch                73,900 (73,300 to 92,000)      5                   9.4                 0.0
    torch_worker         11,800 (11,100 to 14,100)     36

penstock is 14.4 times the better of tf.data's two (12.9 to 14.8; 5 were wanted) and 1.05 times the best other (0.95 to
1.32), the DataLoader without workers, which reads when it is asked. Its memory is 22.9 MiB over the ring, that of the
generator's worker process; 48 were wanted. Nothing grows. The first batch waits for that process to start.

Not shown: a generator that does something, where a DataLoader without workers would stop the training for it; steps
after the generator (see `gil_generator`); on `penstock_threads`, that the consumer's Python and the generator's share
an interpreter.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from _harness import MIB, Array, Epoch, Numbers, Options, Target, ratio, read_every_byte, run, time_epochs, value
from _memory import PeakMemory
from _pairs import BATCH_SIZE, FRAME_SHAPE, frames_file

_COUNT = 20_000
_SMALL_COUNT = 2_000
_EPOCH_COUNT = 20


def _rows(frames: Any, start: Any, stop: Any) -> Iterator[Array]:
    for index in range(int(start), int(stop)):
        yield frames[index]


def _frames() -> Any:
    return np.load(frames_file(), mmap_mode="r")


def _loop(count: int) -> Epoch:
    frames = _frames()
    batch = np.empty((BATCH_SIZE, *FRAME_SHAPE))

    def epoch() -> Iterator[tuple[Array]]:
        for number, row in enumerate(_rows(frames, 0, count), 1):
            batch[number % BATCH_SIZE] = row
            if number % BATCH_SIZE == 0:
                yield (batch,)

    return epoch


def _penstock(executor: Any) -> Callable[[int], Epoch]:
    def make(count: int) -> Epoch:
        import penstock as ps

        loader = ps.from_generator(_rows, _frames(), 0, count).batch(BATCH_SIZE).loader(executor=executor)
        return lambda: ((batch,) for batch in loader)

    return make


def _tf_data(*, as_arguments: bool) -> Callable[[int], Epoch]:
    def make(count: int) -> Epoch:
        import tensorflow as tf

        frames, signature = _frames(), tf.TensorSpec(FRAME_SHAPE, tf.float64)
        if as_arguments:
            dataset = tf.data.Dataset.from_generator(_rows, args=[frames, 0, count], output_signature=signature)
        else:
            dataset = tf.data.Dataset.from_generator(lambda: _rows(frames, 0, count), output_signature=signature)
        dataset = dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
        return lambda: ((batch,) for batch in dataset.as_numpy_iterator())

    return make


def _torch(workers: int) -> Callable[[int], Epoch]:
    def make(count: int) -> Epoch:
        import torch
        from torch.utils.data import DataLoader, IterableDataset

        frames = _frames()

        class Rows(IterableDataset):  # type: ignore[misc, unused-ignore]
            def __iter__(self) -> Iterator[Any]:
                return (torch.from_numpy(np.array(row)) for row in _rows(frames, 0, count))

        loader = DataLoader(Rows(), BATCH_SIZE, num_workers=workers, persistent_workers=workers > 0)
        return lambda: ((batch.numpy(),) for batch in loader)

    return make


_MAKERS: dict[str, Callable[[int], Epoch]] = {
    "loop": _loop,
    "penstock": _penstock("auto"),
    "penstock_threads": _penstock("threads"),
    "tf_data": _tf_data(as_arguments=True),
    "tf_data_closure": _tf_data(as_arguments=False),
    "torch": _torch(0),
    "torch_worker": _torch(1),
}
_OTHERS = ["tf_data", "tf_data_closure", "torch", "torch_worker"]


def _speed(name: str) -> Callable[[Options], Numbers]:
    return lambda options: time_epochs(_MAKERS[name](_SMALL_COUNT if options.quick else _COUNT), options)


def _memory(name: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        _import(name)
        peaks: list[float] = []
        with PeakMemory() as memory:
            # The whole file's generator, of which an epoch is a part: arguments are what they are for all of it.
            epoch = _MAKERS[name](_COUNT)
            for _ in range(5 if options.quick else _EPOCH_COUNT):
                _read(epoch(), _SMALL_COUNT // BATCH_SIZE)
                peaks.append(memory.now_mib())
        numbers = {"private+shared MiB": memory.peaks_mib()["private+shared MiB"]}
        if len(peaks) == _EPOCH_COUNT:
            numbers["growth MiB"] = max(peaks[-5:]) - max(peaks[5:10])
        return numbers

    return measure


def _import(name: str) -> None:
    if name.startswith("tf"):
        import tensorflow as tf  # noqa: F401
    elif name.startswith("torch"):
        import torch.utils.data  # noqa: F401
    else:
        import penstock  # noqa: F401


def _read(batches: Iterable[Any], count: int) -> None:
    for number, leaves in enumerate(batches, 1):
        read_every_byte(leaves)
        if number == count:
            break


_CASES = {name: _speed(name) for name in _MAKERS} | {
    f"{name} memory": _memory(name) for name in ("penstock", "penstock_threads", "tf_data", "tf_data_closure", "torch")
}


def _targets(options: Options) -> list[Target]:
    def over_ring(round_: Any) -> float:
        return float(round_["penstock memory"]["private+shared MiB"]) - _projected_mib()

    return [
        Target("penstock / tf.data's from_generator", ratio("penstock", ["tf_data", "tf_data_closure"]), at_least=5.0),
        Target("penstock / the best other", ratio("penstock", _OTHERS), at_least=1.0),
        Target("private + shared MiB over the ring", over_ring, at_most=48.0),
        Target("growth MiB from epoch 10 to 20", value("penstock memory", "growth MiB"), at_most=1.0),
    ]


def _projected_mib() -> float:
    import penstock as ps

    loader = ps.from_generator(_rows, _frames(), 0, _COUNT).batch(BATCH_SIZE).loader()
    nbytes = loader.projected_nbytes
    loader.close()
    return nbytes / MIB


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
