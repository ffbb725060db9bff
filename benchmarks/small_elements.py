"""What does an element of a few bytes cost, beside what is done with it?

Question: a table in memory, 1,000,000 rows of 21 float32, of which 20 are the features and one the target: two views of
it. Batches of 256, shuffled over all of it anew each epoch: as the rows are, and with a Python function that scales the
features of each row, which takes under a microsecond.

Method: `python benchmarks/small_elements.py`. Fresh processes in turn; a consumer that sums every byte; endless epochs,
of which the first second is not counted, then 3 s. `loop` is NumPy: a permutation, and `table[indices]`; `loop_map`
calls the function on each row and stacks. `torch` is a DataLoader over a `TensorDataset`, or a map-style dataset with
the function, without workers; `torch_batches` gets the indices of a batch at a time (`BatchSampler` as the sampler);
`torch_2` has two persistent workers. `tf` is `from_tensor_slices`, `shuffle(100_000)`, `batch`, `prefetch`; `tf_map`
has the function in `numpy_function` with AUTOTUNE, `tf_ops_map` as an operation of TensorFlow's, which is what its
guides ask for. `grain` is a `MapDataset` of indices, batched by its iterator's threads. penstock chooses how to run by
itself: for rows the consumer, once it has tried that and two threads; for the function two worker processes.
`penstock_inline` has neither.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, TensorFlow 2.21, torch
2.13, grain 0.2, 2026-11-22.

Result, medians and their spread, rows/s: of four rounds in the left column, but grain's and those on the right, which
are of three rounds some hours before:

    loop             6,940,000 (6,323,000 to 7,736,000)     loop_map      314,000 (289,000 to 359,000)
    penstock         3,062,000 (2,714,000 to 3,495,000)     penstock_map  245,000 (221,000 to 255,000)
    penstock_inline  3,499,000 (3,383,000 to 3,699,000)     torch_map     179,000 (143,000 to 229,000)
    torch_batches    1,645,000 (1,317,000 to 1,815,000)     torch_2_map    84,000 (74,000 to 87,000)
    tf                 356,000 (308,000 to 390,000)         tf_ops_map     31,000 (22,000 to 31,000)
    torch              261,000 (248,000 to 273,000)         tf_map          5,300 (4,000 to 5,400)
    grain                2,500 (2,300 to 2,600)             grain_map       2,600 (2,400 to 3,100)

Rows: 1.97 (1.72 to 2.06) times the best of the others, a DataLoader that gets whole batches of indices, 8.6 times
tf.data and 0.44 (0.40 to 0.50) of the loop. A batch takes 84 us, and 37 in the loop. It was 0.80 of the DataLoader
before hands could change. The function: 1.37 (1.11 to 1.55) times the best of the others, 0.77 (0.71 to
0.78) of the loop.

Not shown: that a consumer is busy too (`small_steps`); tables that do not fit into memory (`rows`).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, ratio, run, time_steady

_ROW_COUNT = 1_000_000
_QUICK_ROW_COUNT = 20_000
_BATCH_SIZE = 256

Batches = Iterator[tuple[Array, Array]]
Row = tuple[Array, Any]
Contender = Callable[[Array], Batches]


def _scaled(row: Row) -> Row:
    return row[0] * np.float32(2), row[1]


def loop(table: Array) -> Batches:
    for indices in _shuffled(len(table)):
        rows = table[indices]
        yield rows[:, :-1], rows[:, -1].copy()  # one piece, for the consumer


def loop_map(table: Array) -> Batches:
    for indices in _shuffled(len(table)):
        features, targets = zip(*(_scaled((table[index, :-1], table[index, -1])) for index in indices), strict=True)
        yield np.stack(features), np.stack(targets)


def _shuffled(count: int) -> Iterator[Array]:
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(count)
        yield from (order[start : start + _BATCH_SIZE] for start in range(0, count - _BATCH_SIZE + 1, _BATCH_SIZE))


def penstock(function: Callable[[Row], Row] | None, executor: Any = "auto") -> Contender:
    def batches(table: Array) -> Batches:
        import penstock as ps

        dataset = ps.from_arrays((table[:, :-1], table[:, -1])).shuffle(seed=1)
        if function is not None:
            dataset = dataset.map(function)
        return iter(dataset.batch(_BATCH_SIZE).repeat().loader(executor))

    return batches


def torch(function: Callable[[Row], Row] | None, *, whole_batches: bool = False, workers: int = 0) -> Contender:
    def batches(table: Array) -> Batches:
        import torch
        from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

        class Mapped(Dataset):  # type: ignore[misc, unused-ignore]
            def __len__(self) -> int:
                return len(table)

            def __getitem__(self, index: int) -> Row:
                assert function is not None
                return function((table[index, :-1], table[index, -1]))

        rows = torch.from_numpy(table)
        dataset = TensorDataset(rows[:, :-1], rows[:, -1]) if function is None else Mapped()
        sampler = RandomSampler(dataset, num_samples=1000 * len(table))
        if whole_batches:
            loader = DataLoader(dataset, sampler=BatchSampler(sampler, _BATCH_SIZE, drop_last=True), batch_size=None)
        else:
            options = {"num_workers": workers, "persistent_workers": workers > 0}
            loader = DataLoader(dataset, batch_size=_BATCH_SIZE, sampler=sampler, **options)
        return ((features.numpy(), targets.numpy()) for features, targets in loader)

    return batches


def tf(function: Callable[[Any], Any] | None, *, as_ops: bool = False) -> Contender:
    def batches(table: Array) -> Batches:
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((table[:, :-1], table[:, -1])).shuffle(100_000, seed=1).repeat()
        if as_ops:
            dataset = dataset.map(lambda x, y: (x * 2, y), num_parallel_calls=tf.data.AUTOTUNE)
        elif function is not None:

            def call(features: Any, target: Any) -> Any:
                run = lambda x, y: function((x, y))  # noqa: E731
                return tf.numpy_function(run, (features, target), (tf.float32, tf.float32))

            dataset = dataset.map(call, num_parallel_calls=tf.data.AUTOTUNE)
        batched: Batches = dataset.batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
        return batched

    return batches


def grain(function: Callable[[Row], Row] | None) -> Contender:
    def batches(table: Array) -> Batches:
        import grain  # type: ignore[import-untyped, unused-ignore]

        rows = grain.MapDataset.range(len(table)).shuffle(seed=1).repeat()
        rows = rows.map(lambda index: (function or tuple)((table[index, :-1], table[index, -1])))
        return iter(rows.to_iter_dataset().batch(_BATCH_SIZE))

    return batches


def _case(contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        count = _QUICK_ROW_COUNT if options.quick else _ROW_COUNT
        table = np.random.default_rng(0).standard_normal((count, 21), "float32")
        return time_steady(contender(table), options)

    return measure


_OTHERS = {"torch": torch(None), "torch_batches": torch(None, whole_batches=True), "tf": tf(None), "grain": grain(None)}
_OTHERS_MAP = {
    "torch_map": torch(_scaled),
    "torch_2_map": torch(_scaled, workers=2),
    "tf_map": tf(_scaled),
    "grain_map": grain(_scaled),
}
_CASES = {
    name: _case(contender)
    for name, contender in itertools.chain(
        {"loop": loop, "penstock": penstock(None), "penstock_inline": penstock(None, "inline"), **_OTHERS}.items(),
        {"loop_map": loop_map, "penstock_map": penstock(_scaled), **_OTHERS_MAP}.items(),
        {"tf_ops_map": tf(None, as_ops=True)}.items(),
    )
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("rows: penstock / loop", ratio("penstock", ["loop"])),
        Target("rows: penstock / the best of the others", ratio("penstock", list(_OTHERS)), at_least=1.0),
        Target("rows: penstock, inline / the best of the others", ratio("penstock_inline", list(_OTHERS))),
        Target("a function: penstock / loop", ratio("penstock_map", ["loop_map"])),
        Target("a function: penstock / the best of the others", ratio("penstock_map", list(_OTHERS_MAP)), at_least=1.0),
        Target("a function: penstock / TensorFlow's operations", ratio("penstock_map", ["tf_ops_map"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
