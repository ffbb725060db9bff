"""How much memory does a loader take, and does it grow with the file?

Question: the peak of private + shared memory over the bare imports, and of resident file pages, while
shuffled pairs of (3, 50, 50) float64 frames are read in batches of 32: from 1.2 GB, and from 120 GB.

Method: `python benchmarks/memory.py`. Each file has a fresh process; `import penstock` comes before the base
is taken. Two epochs of the 1.2 GB file; 3,000 batches (500 with `--quick`) of the first epoch of the 120 GB
one, which is sparse: (2000000, 3, 50, 50), all holes, zeros that take no disk. `RssAnon + RssShmem` and
`RssFile` of /proc/self/status are sampled every 20 ms. "over projected" is the peak without
`loader.projected_nbytes`, the ring and the permutation's blocks.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.

Result, of one round: 23.9 MiB private and shared over bare imports for 1.2 GB and 24.9 MiB for 120 GB, where
the ring is 22 MiB and 26 MiB were projected; 20 MiB of resident file pages in both, of which 1 MiB over bare
imports. All as wanted.

Not shown: the page cache itself, which is the kernel's and not counted in any process.
"""

import os
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

from _harness import MIB, Numbers, Options, Target, npy_file, read_every_byte, run, value
from _memory import PeakMemory
from _pairs import BATCH_SIZE, FRAME_SHAPE, PAIR_COUNT, frames_file

_LARGE_FRAME_COUNT = 2_000_000
_OVERHEAD_MIB = 48
_FILE_PAGES_MIB = 64
_FILES = ("1.2 GB", "120 GB")


def _sparse_file() -> Path:
    return npy_file("sparse.npy", (_LARGE_FRAME_COUNT, *FRAME_SHAPE), "float64", sparse=True)


def _case(file: Callable[[], Path], batch_count: Callable[[Options], int]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        path = file()
        import penstock as ps

        with PeakMemory() as memory:
            frames = ps.from_npy(path)
            pairs = ps.zip((frames[:-1], frames[1:]))
            loader = pairs.shuffle(seed=1).batch(BATCH_SIZE).loader(executor="threads", workers=2)
            epochs = chain.from_iterable(loader for _ in iter(int, 1))
            for batch in islice(epochs, batch_count(options)):
                read_every_byte(batch)
            projected_mib = loader.projected_nbytes / MIB
            loader.close()
        peaks = memory.peaks_mib()
        with open(path, "rb") as data:  # the holes of the sparse file fill the page cache with zeros
            os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {
            "private+shared MiB": peaks["private+shared MiB"],
            "projected MiB": projected_mib,
            "over projected MiB": peaks["private+shared MiB"] - projected_mib,
            "file MiB in all": memory.peak_file / MIB,
            "file MiB over imports": peaks["file MiB"],
        }

    return measure


_CASES = {
    "1.2 GB": _case(frames_file, lambda options: 2 * -(-PAIR_COUNT // BATCH_SIZE)),
    "120 GB": _case(_sparse_file, lambda options: 500 if options.quick else 3000),
}


def _targets(options: Options) -> list[Target]:
    memory = [
        Target(
            f"{name}: private + shared MiB over the ring",
            value(name, "over projected MiB"),
            at_most=_OVERHEAD_MIB,
        )
        for name in _FILES
    ]
    pages = [
        Target(f"{name}: resident file MiB", value(name, "file MiB in all"), at_most=_FILE_PAGES_MIB) for name in _FILES
    ]
    return [
        *memory,
        *pages,
        Target(
            "120 GB - 1.2 GB: private + shared MiB",
            lambda round_: round_["120 GB"]["private+shared MiB"] - round_["1.2 GB"]["private+shared MiB"],
            at_most=4.0,
        ),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
