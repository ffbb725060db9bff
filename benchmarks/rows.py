"""How fast are shuffled rows of any size copied into batches, beside one thread of NumPy?

Question: batches of shuffled rows from a `.npy` in the page cache, and from an array in memory, for rows from a table
of 84 bytes to pairs of frames of 60 kB. What part of the speed of a plain loop is left, what does it cost in processor
time, and how even are the gaps between batches?

Method: `python benchmarks/rows.py`. Each case has a process of its own. The floor and penstock take turns of 0.1 s in
it, 20 times. The consumer copies every byte of a batch into its own array. `part` is the median over the turns of
penstock's speed over the floor's. `CPU, part` is the processor time of all threads for a batch over that of the floor;
`memcpy, part` over that of copying as many bytes once, twice for the consumer included. `gap` is the 99th percentile of
the time between batches over its median, for penstock and for the floor.

Contenders: `floor` is `np.take` of a `np.memmap` (or of the array) into four buffers that are made once, in the
consumer's thread. penstock is `shuffle().batch()` on two threads. A name with `memory` reads an array in memory; one
with `given back` is a file that must not stay resident: penstock then gives the pages of its mapping back every 64 MiB,
as it does for files larger than a quarter of the memory. Here that share is set to 0.

Result: see the end of this text.

Not shown: a cold page cache (`shuffled_pairs.py --cold`); a training step beside it (`small_steps.py`).
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, run, value

_SIZES = {"pairs of 60 kB": (60_000, 32, 6_000), "8 kB": (8192, 256, 40_000), "2 kB": (2048, 256, 150_000)}
_SIZES |= {"784 B": (784, 256, 300_000), "84 B": (84, 256, 1_000_000)}
_TURNS, _TURN_S = 20, 0.1

Batches = Iterator[tuple[Array, ...]]


def _file(nbytes: int, count: int) -> Path:
    path = bench_dir() / f"rows-{nbytes}.npy"
    if not path.exists():
        part = path.with_suffix(".part.npy")
        np.save(part, np.random.default_rng(0).integers(0, 255, (count, nbytes), np.uint8))
        part.rename(path)
    return path


def _floor(array: Array, leaf_count: int, batch_size: int) -> Iterable[tuple[Array, ...]]:
    buffers = itertools.cycle([np.zeros((leaf_count, batch_size, array.shape[1]), np.uint8) for _ in range(4)])
    rng, count = np.random.default_rng(1), len(array) - (leaf_count - 1)
    while True:
        order = rng.permutation(count)
        for start in range(0, count - batch_size + 1, batch_size):
            indices, out = order[start : start + batch_size], next(buffers)
            for leaf in range(leaf_count):
                np.take(array, indices + leaf, axis=0, out=out[leaf], mode="clip")
            yield tuple(out)


def _penstock(rows: Any, leaf_count: int, batch_size: int) -> Iterable[tuple[Array, ...]]:
    import penstock as ps

    dataset = ps.zip((rows[:-1], rows[1:])) if leaf_count == 2 else ps.zip((rows,))
    loader = dataset.shuffle(seed=1).batch(batch_size, drop_remainder=True).loader("threads", workers=2)
    while True:
        yield from loader


class _Clock:
    """Takes batches for some turns, and keeps the time and the processor time of each turn, and all gaps."""

    def __init__(self, batches: Iterable[tuple[Array, ...]], sink: Array) -> None:
        self._batches, self._sink = iter(batches), sink
        self.turns: list[tuple[float, float]] = []
        self.gaps: list[float] = []

    def turn(self) -> None:
        count, cpu = 0, time.process_time()
        start = last = time.perf_counter()
        while last - start < _TURN_S:
            for place, leaf in zip(self._sink, next(self._batches), strict=True):
                np.copyto(place, leaf)
            now = time.perf_counter()
            if count:  # the first batch of a turn was made ahead
                self.gaps.append(now - last)
            last = now
            count += 1
        self.turns.append(((last - start) / count, (time.process_time() - cpu) / count))

    def unevenness(self) -> float:
        return float(np.percentile(self.gaps, 99) / np.median(self.gaps))


def _measure(name: str, place: str) -> Numbers:
    import penstock as ps
    from penstock.sources import _mapped

    nbytes, batch_size, count = _SIZES[name]
    leaf_count = 2 if "pairs" in name else 1
    path = _file(nbytes, count)
    if place == "given back":
        _mapped.RESIDENT_SHARE = 0.0  # type: ignore[misc]
    array = np.load(path) if place == "memory" else np.load(path, mmap_mode="r")
    rows = ps.from_arrays(array) if place == "memory" else ps.from_npy(path)
    array.sum()
    sink = np.zeros((leaf_count, batch_size, nbytes), np.uint8)
    floor = _Clock(_floor(array, leaf_count, batch_size), sink)
    ours = _Clock(_penstock(rows, leaf_count, batch_size), sink)
    for _ in range(_TURNS):
        floor.turn()
        ours.turn()
    times = np.array(ours.turns[1:]), np.array(floor.turns[1:])
    (_, cpu_s), (floor_s, floor_cpu_s) = (np.median(each, axis=0) for each in times)
    copies = max(1, (256 << 20) // sink.nbytes)
    source = np.ones_like(sink)
    start = time.process_time()
    for _ in range(copies):
        np.copyto(sink, source)
    memcpy_s = 2 * (time.process_time() - start) / copies
    return {
        "floor us": 1e6 * floor_s,
        "part": float(np.median(times[1][:, 0] / times[0][:, 0])),
        "CPU, part": cpu_s / floor_cpu_s,
        "memcpy, part": cpu_s / memcpy_s,
        "gap": ours.unevenness(),
        "floor gap": floor.unevenness(),
    }


def _case(name: str, place: str) -> Callable[[Options], Numbers]:
    return lambda options: _measure(name, place)


_CASES = {name: _case(name, "file") for name in _SIZES}
_CASES |= {f"{name}, memory": _case(name, "memory") for name in ("2 kB", "784 B", "84 B")}
_CASES |= {f"{name}, given back": _case(name, "given back") for name in ("8 kB", "2 kB")}
_LEAST = {"pairs of 60 kB": 1.0, "8 kB": 1.3, "2 kB": 1.2, "784 B": 0.9, "84 B, memory": 0.5}
_LEAST |= {"8 kB, given back": 0.9, "2 kB, given back": 0.8}


def _targets(options: Options) -> list[Target]:
    parts = [Target(f"{name}, of the floor", value(name, "part"), at_least=least) for name, least in _LEAST.items()]
    return [*parts, Target("pairs of 60 kB, gap", value("pairs of 60 kB", "gap"), at_most=2.5)]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
