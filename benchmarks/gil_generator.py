"""What part of two cores is left for a function that holds the GIL, if a generator says what to do?

Question: a generator yields indices, and a `map` after it makes an element of each, by a function of pure Python that
takes about 1 ms and never lets go of the GIL; batches of 8 in the generator's order, two cores. The speed, as a part of
twice that of a plain loop.

Method: `python benchmarks/gil_generator.py`; as `gil_bound.py`, whose function it is. `penstock` is
`from_generator(indices).map(function).batch(8)` on two worker processes, with the generator in one of its own.
`tf_data` is `Dataset.from_generator` and a `py_function` with `num_parallel_calls=AUTOTUNE`, in order. `torch` is an
`IterableDataset` that every one of two workers reads for itself, and of which each skips what is the other's, as its
documentation advises; its batches are in no order of the generator. `bare_pair` is two processes that run the function
and deliver nothing.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-22. Its
speed varies by a tenth and more from run to run; ratios are of the same round.

Result, three rounds, medians and spread, as parts of twice serial (612 elements/s, 577 to 704):

    penstock   0.84 (0.74 to 0.95)    1,037 elements/s (1,032 to 1,093)
    bare_pair  0.89 (0.79 to 1.09)    1,105 (1,083 to 1,262)
    torch                               825 (728 to 829)
    tf_data                             349 (340 to 386)

Wanted: 0.9 of twice serial, and 3 times tf.data. Both are not met: the machine gave 0.89 to two processes that deliver
nothing, of which penstock reaches 0.94 (0.87 to 0.95). It is 2.97 times tf.data (2.83 to 3.04); in five more rounds,
without torch, 0.84 of twice serial (0.74 to 1.06) and 2.87 times tf.data (2.57 to 3.11), and in four in the evening
0.86 (0.64 to 0.90), where the bare pair had 0.96 (0.90 to 1.04), and 2.91 times tf.data (2.12 to 3.06). Of 1,860 us of
CPU that an element takes in all, the function has 1,760 in the two workers, the parent 98, the generator's process 5.

On 2026-11-23, on another such machine, five rounds: 0.94 of twice serial (0.76 to 1.17; serial 556 elements/s, 524 to
695), the bare pair 0.97 (0.83 to 1.07), penstock 0.98 of that (0.86 to 1.1). 2.46 times tf.data (2.33 to 3.01), which
had 414 (376 to 449): there the bare pair, with nothing to deliver, would be 2.66 times tf.data, so 3 was out of
reach. Of 13,600 to 14,600 us of CPU that a batch takes, the parent has 570; workers wait for nobody.

Not shown: the start of workers (a first batch after 493 ms here, of three processes); a function that lets go of the
GIL.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from _contenders import bare_pair, serial
from _harness import Array, Epoch, Numbers, Options, Target, part_of_twice, ratio, run, time_steady
from _jobs import hold_gil

_BATCH_SIZE = 8


def _indices() -> Iterator[int]:
    yield from itertools.count()


def _penstock() -> Epoch:
    import penstock as ps

    dataset = ps.from_generator(_indices).map(hold_gil).batch(_BATCH_SIZE)
    return lambda: ((batch,) for batch in dataset.loader(executor="processes", workers=2))


def _tf_data() -> Epoch:
    import tensorflow as tf

    spec = hold_gil(0)

    def make(index: Any) -> Any:
        value = tf.py_function(lambda each: hold_gil(each.numpy()), [index], spec.dtype)
        return tf.ensure_shape(value, spec.shape)

    dataset = (
        tf.data.Dataset.from_generator(_indices, output_signature=tf.TensorSpec((), tf.int64))
        .map(make, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(_BATCH_SIZE)
        .prefetch(tf.data.AUTOTUNE)
    )
    return lambda: ((batch,) for batch in dataset.as_numpy_iterator())


def _torch() -> Epoch:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Elements(IterableDataset):  # type: ignore[misc, unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            mine = itertools.islice(_indices(), info.id, None, info.num_workers)
            return (torch.from_numpy(hold_gil(index)) for index in mine)

    loader = DataLoader(Elements(), _BATCH_SIZE, num_workers=2, prefetch_factor=2)
    return lambda: ((batch.numpy(),) for batch in loader)


_MAKERS: dict[str, Callable[[], Epoch]] = {
    "serial": lambda: serial(hold_gil, _BATCH_SIZE),
    "penstock": _penstock,
    "tf_data": _tf_data,
    "torch": _torch,
}
_UNORDERED = {"torch"}


def _case(name: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        seen: list[Array] = []
        numbers = time_steady(_noting_indices(_MAKERS[name]()(), seen), options)
        indices = np.concatenate(seen)
        if len(np.unique(indices)) != len(indices):
            raise RuntimeError(f"{name} delivered an element twice.")
        if name not in _UNORDERED and not np.array_equal(indices, np.arange(len(indices))):
            raise RuntimeError(f"{name} did not keep the order: {indices[:32].tolist()} ...")
        return numbers

    return measure


def _noting_indices(batches: Iterable[Any], seen: list[Array]) -> Iterator[Any]:
    for leaves in batches:
        seen.append(leaves[0][:, 0].copy())
        yield leaves


def _bare_pair(options: Options) -> Numbers:
    return bare_pair(hold_gil, 0.5 if options.quick else 3.0)


_CASES = {name: _case(name) for name in _MAKERS} | {"bare_pair": _bare_pair}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock, of twice serial", part_of_twice("penstock"), at_least=0.9),
        Target("bare pair, of twice serial", part_of_twice("bare_pair")),
        Target("penstock / tf.data", ratio("penstock", ["tf_data"]), at_least=3.0),
        Target("penstock / the bare pair", ratio("penstock", ["bare_pair"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
