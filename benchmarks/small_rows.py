"""Can rows too small for a system call each be read at the speed of memory?

Question: (64, 64) float16 rows, 8 kB each, from a `.npy` of 100,000, 819 MB, in the page cache; batches of
256, shuffled over the whole array anew each epoch. A system call a row costs more here than the copy.

Method: `python benchmarks/small_rows.py`. As in `shuffled_pairs`: fresh processes in turn, one epoch to warm
up, then the epochs of 2 s, a consumer that sums every byte. `floor` is one thread and `np.take` into a buffer
made once; `memmap_fancy` is `mm[indices]`, a new 2 MB array a batch. penstock runs two threads.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20. Its speed
varied by a factor of up to 1.5 from minute to minute; ratios are of the same round.

Result, of three rounds: 513,000 rows/s (508,000 to 543,000), the floor 834,000; 0.62 of the floor (0.55 to 0.63), where
0.8 was wanted. The limit is the copy in the kernel, 2 us a row of which half is the way to the page and back, and no
call that copies there is without it; np.take of a mapping takes 1 us, dies if the file shrinks, and counts the file as
the process's memory. See design/0006.

Result of 2026-11-22, three rounds, on a slower day: 408,000 (363,000 to 467,000), the floor 824,000 (813,000 to
825,000); 0.50 of it (0.44 to 0.58). `penstock_kept` is the same with `cache()` in memory: 599,000 (497,000 to 607,000),
0.74 of the floor (0.60 to 0.74), for 782 MiB that are the process's own.

In the evening, with less Python a batch, four rounds: 464,000 (416,000 to 507,000), the floor 834,000 (793,000 to
913,000); 0.56 of it (0.51 to 0.57).
On 2026-11-23, four rounds and five of the floor: 505,000 (474,000 to 528,000), the floor 936,000 (867,000 to
990,000); 0.53 of it (0.50 to 0.56), and 0.94 (0.77 to 0.98) where rows are kept in memory.

Not shown: a cold page cache, where 8 kB rows are bound by the disk's operations a second.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _harness import Array, Epoch, Numbers, Options, Target, npy_file, ratio, run, time_epochs
from _memory import PeakMemory, warm_pages

_ROW_COUNT = 100_000
_ROW_SHAPE = (64, 64)
_BATCH_SIZE = 256

Batch = tuple[Array]


def _shuffled_indices(rng: np.random.Generator) -> Iterator[Array]:
    order = rng.permutation(_ROW_COUNT)
    for start in range(0, _ROW_COUNT, _BATCH_SIZE):
        yield order[start : start + _BATCH_SIZE]


def floor(path: Path) -> Epoch:
    rows = np.load(path, mmap_mode="r")
    rng = np.random.default_rng(1)
    out = np.empty((_BATCH_SIZE, *_ROW_SHAPE), "float16")

    def epoch() -> Iterator[Batch]:
        for indices in _shuffled_indices(rng):
            # mode="clip" lets `take` write into `out` directly; "raise" would buffer it.
            np.take(rows, indices, axis=0, out=out[: len(indices)], mode="clip")
            yield (out[: len(indices)],)

    return epoch


def memmap_fancy(path: Path) -> Epoch:
    rows = np.load(path, mmap_mode="r")
    rng = np.random.default_rng(1)
    return lambda: ((np.asarray(rows[indices]),) for indices in _shuffled_indices(rng))


def penstock(path: Path) -> Epoch:
    import penstock as ps

    dataset = ps.from_npy(path).shuffle(seed=1).batch(_BATCH_SIZE)
    loader = dataset.loader(executor="threads", workers=2)
    return lambda: ((rows,) for rows in loader)


def penstock_kept(path: Path) -> Epoch:
    import penstock as ps

    dataset = ps.from_npy(path).cache().shuffle(seed=1).batch(_BATCH_SIZE)
    loader = dataset.loader(executor="threads", workers=2)
    return lambda: ((rows,) for rows in loader)


def _case(contender: Callable[[Path], Epoch]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        path = npy_file("rows.npy", (_ROW_COUNT, *_ROW_SHAPE), "float16")
        warm_pages(path)
        with PeakMemory() as memory:
            numbers = time_epochs(contender(path), options)
        return numbers | memory.peaks_mib()

    return measure


_CASES = {
    "penstock": _case(penstock),
    "penstock_kept": _case(penstock_kept),
    "floor": _case(floor),
    "memmap_fancy": _case(memmap_fancy),
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / floor", ratio("penstock", ["floor"]), at_least=0.8),
        Target("penstock, kept in memory / floor", ratio("penstock_kept", ["floor"])),
        Target("memmap_fancy / floor", ratio("memmap_fancy", ["floor"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
