"""What do a plan, a permutation, an import and a first batch cost?

Question: is building, shuffling and indexing a plan of 10**12 elements as cheap as one of ten (under 10 ms)?
Does the permutation reach 5 million indices a second in blocks, and cost at most 10 us a batch of 32? Does
`import penstock` take under 0.25 s, and the first batch under 50 ms from `iter(loader)`?

Method: `python benchmarks/plan_cost.py`. Each question has a fresh process. `plan` builds four plans over
`ps.range(10**12)`, of zip, windows, shuffle, batch, repeat and shard, and indexes each at the front, in the
middle and at the end, with nothing run before; "again" and "1,000 elements" are the same once the code has
run. `permute_blocks` computes an order of 10**12 in blocks of 4,096 positions, `permute_batches` 32 positions
a call, in their order. `import` is `import penstock` in a new process, NumPy included, the median of 5.
`first_batch` is from `iter(loader)` to the first batch of shuffled pairs in a process that has run no loader
before, with the file in the page cache.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.
Its speed varied by a factor of up to 1.5 from minute to minute; ratios are of the same round.

Result, of three rounds, all as wanted: plans of 10**12 elements built, shuffled and indexed in 4.2 ms (3.9 to
5.7); 17.6 million indices/s in blocks (13.6 to 20.6) and 5.3 us a batch of 32; `import penstock` 171 ms (157
to 221), of which NumPy 81; first batch 7.5 ms after `iter(loader)` (5.9 to 14.9).

Not shown: a plan of thousands of nodes.
"""

import statistics
import subprocess
import sys
import time

import numpy as np
from _harness import Numbers, Options, Target, run, value
from _memory import PeakMemory, warm_pages
from _pairs import BATCH_SIZE, frames_file

_ELEMENT_COUNT = 10**12
_BLOCK_LENGTH = 4096
_IMPORT_COUNT = 5
_TIMED_IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def _plan_s(element_count: int) -> float:
    """Builds four plans over so many elements, and indexes each in three places."""
    import penstock as ps

    began_s = time.perf_counter()
    numbers = ps.range(element_count)
    for dataset in (
        numbers.shuffle(seed=1),
        ps.zip((numbers[:-1], numbers[1:])).shuffle(seed=1).batch(BATCH_SIZE),
        numbers.windows(10).shuffle(seed=1).batch(BATCH_SIZE),
        numbers.shuffle(seed=1).repeat(3).shard(1, 4),
    ):
        for index in (0, len(dataset) // 2, -1):
            dataset[index]
    return time.perf_counter() - began_s


def plan(options: Options) -> Numbers:
    import penstock  # noqa: F401

    with PeakMemory() as memory:
        large_s = _plan_s(_ELEMENT_COUNT)
    again_s, small_s = _plan_s(_ELEMENT_COUNT - 1), _plan_s(1000)
    return {
        "ms": 1e3 * large_s,
        "again ms": 1e3 * again_s,
        "1,000 elements ms": 1e3 * small_s,
        "private+shared MiB": memory.peaks_mib()["private+shared MiB"],
    }


def _permute_s(step: int, position_count: int) -> float:
    """Times the images of the first positions of one order, `step` at a time."""
    from penstock.base._random import permute

    positions = np.arange(position_count, dtype=np.int64)
    permute(positions[:step], _ELEMENT_COUNT, seed=0, epoch=0)
    began_s = time.perf_counter()
    for start in range(0, position_count, step):
        permute(positions[start : start + step], _ELEMENT_COUNT, seed=1, epoch=1)
    return time.perf_counter() - began_s


def permute_blocks(options: Options) -> Numbers:
    position_count = _BLOCK_LENGTH * (200 if options.quick else 2000)
    return {"million indices/s": position_count / 1e6 / _permute_s(_BLOCK_LENGTH, position_count)}


def permute_batches(options: Options) -> Numbers:
    batch_count = 20_000 if options.quick else 200_000
    elapsed_s = _permute_s(BATCH_SIZE, batch_count * BATCH_SIZE)
    return {"us a batch of 32": 1e6 * elapsed_s / batch_count}


def import_time(options: Options) -> Numbers:
    def median_s(package: str) -> float:
        command = [sys.executable, "-c", _TIMED_IMPORT.format(package)]
        runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(1 + _IMPORT_COUNT)]
        return statistics.median(float(done.stdout) for done in runs[1:])  # the first may compile and read

    return {"ms": 1e3 * median_s("penstock"), "NumPy alone ms": 1e3 * median_s("numpy")}


def first_batch(options: Options) -> Numbers:
    import penstock as ps

    path = frames_file()
    warm_pages(path)
    frames = ps.from_npy(path)
    loader = ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(BATCH_SIZE).loader(executor="threads")
    began_s = time.perf_counter()
    next(iter(loader))
    elapsed_s = time.perf_counter() - began_s
    loader.close()
    return {"ms": 1e3 * elapsed_s}


_CASES = {
    "plan": plan,
    "permute_blocks": permute_blocks,
    "permute_batches": permute_batches,
    "import": import_time,
    "first_batch": first_batch,
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("plans of 10**12 elements, ms", value("plan", "ms"), at_most=10),
        Target("million indices/s in blocks", value("permute_blocks", "million indices/s"), at_least=5),
        Target("us a batch of 32 indices", value("permute_batches", "us a batch of 32"), at_most=10),
        Target("import penstock, ms", value("import", "ms"), at_most=250),
        Target("first batch, ms", value("first_batch", "ms"), at_most=50),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
