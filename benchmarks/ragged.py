"""What does a batch of elements of several lengths cost, end to end, against a collate function of torch.cat?

Question: boxes of images, tokens of documents, and points of clouds lie in memory. How much CPU does a shuffled batch
of them take, as values and offsets, and how many come in a second?

Method: `python benchmarks/ragged.py`. Each case runs in a fresh process, in turn, over the same arrays. The consumer
sums every leaf of a batch. `CPU ms` is of the process and the workers that ended, a batch; `batches/s` is of one epoch
after one that warms up. Boxes: 20,000 images of 8 boxes (Poisson) with a class each, batches of 64. Tokens: 20,000
documents, log-normal, 530 on average, batches of 64. Points: 400 clouds of 10,000 to 30,000 points of four floats,
batches of 8.

Contenders, as their documentation advises. `penstock`: `from_arrays(Ragged(values, offsets))`, on one thread ahead.
`penstock_list`: a list of arrays, one an element. `torch`: a DataLoader whose `collate_fn` calls `torch.cat`, in the
process of the consumer; `torch_workers`: the same on one worker process. `tfdata`: `ragged_batch` of a dataset of
slices of a `tf.RaggedTensor`, shuffled in a buffer as long as the data. `grain`: `batch(batch_fn=)` with
`np.concatenate`.

Machine: two cores of an AMD EPYC that others used too, Linux 6.18, Python 3.11.7, NumPy 2.4.6, torch 2.13, 2026-11-28,
two rounds. Mean and range:

    case           CPU ms: boxes         tokens                points                batches/s: boxes, tokens, points
    penstock       0.26 (0.25 to 0.27)   0.22 (0.22 to 0.23)   0.93 (0.82 to 1.05)   1,082  1,421  365
    penstock_list  0.55 (0.46 to 0.64)   0.34 (0.33 to 0.34)   1.07 (1.04 to 1.09)     567  1,020  340
    torch          0.24 (0.23 to 0.25)   0.22 (0.20 to 0.24)   55.9 (47.8 to 64.0)   1,406  1,773    8
    torch_workers  1.24 (1.09 to 1.40)   0.86 (0.82 to 0.89)   2.24 (2.17 to 2.32)     171    210   74
    tfdata         3.73 (3.21 to 4.25)   3.49 (3.15 to 3.83)   1.86 (1.78 to 1.94)      90    173  203
    grain          1.54 (1.51 to 1.57)   1.48 (1.47 to 1.49)   2.86 (2.67 to 3.04)     257    434  225

Three times a collate function of `torch.cat` was wanted, and is not reached: in the process of the consumer it costs
what ours does, 0.93 and 0.99 of it, because both copy once, and have a few calls of Python an element. A DataLoader
with a worker gives a fifth to a seventh of the batches, for 2.4 to 4.8 times the CPU. (With points the threads of torch
wait for each other on a busy machine, so its number there says nothing.)

What limits it: of 0.19 ms for a batch of boxes, 0.10 are the fill, in which two leaves of 64 elements each are cut,
counted and laid end to end, and 0.07 hand the batch over from the thread. A prototype of 45 lines took offsets from the
source and copied the values of a leaf in one loop of C. Five rounds on the same day, busy, with OMP_NUM_THREADS=1, as
CPU of torch.cat in the process of the consumer, by ours and by the prototype:

    boxes   1.04 (0.72 to 1.12)   1.39
    tokens  0.85 (0.83 to 1.07)   1.08
    points  0.66 (0.46 to 0.93)   0.79

So copying alone is not what limits it, and the prototype is left out. A plan that the copy engine runs (`batch` of
arrays) costs 0.02 to 0.03 ms a batch in all. For ragged batches it would need copies of runs of rows beside those of
rows, and a bound of values that is not `size` times the longest element. An index for each row takes longer than it
saves: 0.4 ms a batch by `take`, of tokens and of points. Points lose where torch has one thread: an array of 2.5 MB for
each batch costs us 109 page faults, and torch none.

What it does not show: files, functions of elements, and kernels that take what comes.
"""

import resource
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, ratio, run

Flat = dict[str, tuple[Array, Array]]
"""Values and offsets of each leaf."""


def _boxes(rng: Any, count: int) -> tuple[Flat, int]:
    offsets = np.cumsum([0, *rng.poisson(8, count)])
    total = int(offsets[-1])
    return {"boxes": (rng.random((total, 4), "f4"), offsets), "classes": (rng.integers(0, 80, total), offsets)}, 64


def _tokens(rng: Any, count: int) -> tuple[Flat, int]:
    offsets = np.cumsum([0, *rng.lognormal(6, 0.8, count).clip(1, 4096).astype(int)])
    return {"tokens": (rng.integers(0, 50_000, int(offsets[-1]), "i4"), offsets)}, 64


def _points(rng: Any, count: int) -> tuple[Flat, int]:
    offsets = np.cumsum([0, *rng.integers(10_000, 30_000, count // 50)])
    return {"points": (rng.random((int(offsets[-1]), 4), "f4"), offsets)}, 8


_DATA = {"boxes": _boxes, "tokens": _tokens, "points": _points}


def _elements(flat: Flat) -> list[dict[str, Array]]:
    count = len(next(iter(flat.values()))[1]) - 1
    return [{name: v[ends[i] : ends[i + 1]] for name, (v, ends) in flat.items()} for i in range(count)]


def _penstock(flat: Flat, size: int) -> Callable[[], Iterable[Any]]:
    import penstock as ps

    ds = ps.from_arrays({name: ps.Ragged(*each) for name, each in flat.items()})
    loader = ds.shuffle(seed=1).ragged_batch(size, drop_remainder=True).loader("threads", workers=1)
    return lambda: (leaf for batch in loader for leaf in batch.values())


def _penstock_list(flat: Flat, size: int) -> Callable[[], Iterable[Any]]:
    import penstock as ps

    spec = {name: ps.ArraySpec((None, *values.shape[1:]), values.dtype) for name, (values, _) in flat.items()}
    ds = ps.from_source(_elements(flat), element_spec=spec)
    loader = ds.shuffle(seed=1).ragged_batch(size, drop_remainder=True).loader("threads", workers=1)
    return lambda: (leaf for batch in loader for leaf in batch.values())


def _torch(flat: Flat, size: int, workers: int = 0) -> Callable[[], Iterable[Any]]:
    import torch
    from torch.utils.data import DataLoader

    elements = [{name: torch.from_numpy(value) for name, value in each.items()} for each in _elements(flat)]

    def collate(members: list[dict[str, Any]]) -> list[Any]:
        found = []
        for name in members[0]:
            values = [each[name] for each in members]
            found.append((torch.cat(values), torch.tensor([0, *map(len, values)]).cumsum(0)))
        return found

    loader: Any = DataLoader(
        elements,  # type: ignore[arg-type]
        size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: ((values.numpy(), ends.numpy()) for batch in loader for values, ends in batch)


def _tfdata(flat: Flat, size: int) -> Callable[[], Iterable[Any]]:
    import tensorflow as tf

    ragged = {name: tf.RaggedTensor.from_row_splits(*each) for name, each in flat.items()}
    count = len(next(iter(flat.values()))[1]) - 1
    ds = tf.data.Dataset.from_tensor_slices(ragged).shuffle(count, seed=1)
    ds = ds.ragged_batch(size, drop_remainder=True).prefetch(4)
    return lambda: ((leaf.flat_values.numpy(), leaf.row_splits.numpy()) for batch in ds for leaf in batch.values())


def _grain(flat: Flat, size: int) -> Callable[[], Iterable[Any]]:
    import grain

    def joined(members: Any) -> Any:
        return [
            (np.concatenate([each[name] for each in members]), np.cumsum([0, *(len(each[name]) for each in members)]))
            for name in members[0]
        ]

    ds = grain.MapDataset.source(_elements(flat)).seed(1).shuffle().batch(size, drop_remainder=True, batch_fn=joined)
    return lambda: (leaf for batch in ds.to_iter_dataset() for leaf in batch)


def _cpu_s() -> float:
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def _case(kind: str, make: Callable[[Flat, int], Callable[[], Iterable[Any]]]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        flat, size = _DATA[kind](np.random.default_rng(0), 2000 if options.quick else 20_000)
        count = (len(next(iter(flat.values()))[1]) - 1) // size
        epoch = make(flat, size)
        numbers: Numbers = {}
        for _ in range(2):  # the first one warms up
            began_s, cpu_s = time.perf_counter(), _cpu_s()
            rows = 0
            for values, offsets in epoch():
                rows += int(offsets[-1])
                values.sum()
            assert rows > 0
            wall_s = time.perf_counter() - began_s
            numbers = {"CPU ms": 1e3 * (_cpu_s() - cpu_s) / count, "batches/s": count / wall_s}
        return numbers

    return measure


_MAKERS = {
    "penstock": _penstock,
    "penstock_list": _penstock_list,
    "torch": _torch,
    "torch_workers": lambda flat, size: _torch(flat, size, workers=1),
    "tfdata": _tfdata,
    "grain": _grain,
}
_CASES = {f"{kind}_{name}": _case(kind, make) for kind in _DATA for name, make in _MAKERS.items()}


def _targets(options: Options) -> list[Target]:
    def times(kind: str) -> list[Target]:
        in_process = lambda round_: round_[f"{kind}_torch"]["CPU ms"] / round_[f"{kind}_penstock"]["CPU ms"]  # noqa: E731
        speed = ratio(f"{kind}_penstock", [f"{kind}_torch_workers"], "batches/s")
        return [
            Target(f"{kind}: CPU of torch.cat in the process of the consumer, by ours", in_process, at_least=3),
            Target(f"{kind}: batches a second, by those of torch.cat on a worker", speed),
        ]

    return [target for kind in _DATA for target in times(kind)]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
