"""How fast do batches of tokens for a language model come from a flat file?

Question: 100 million uint16 tokens in a `.npy` (200 MB), in the page cache. A batch is 32 windows of 1,025 tokens at
random places: x and y of shape (32, 1024), int64 tensors of torch, y one token further than x.

Method: `python benchmarks/tokens.py`. Each contender runs in a fresh process, in turn, with the same consumer, which
sums every byte. One epoch of 2,000 batches warms up, then epochs of 2 s are timed.

Contenders, as their documentation advises: `memmap_loop` is the usual loop of small training scripts, which stacks
slices of a memmap that were cast one by one; `memmap_fancy` takes all windows of a batch by one index array;
`torch_0` and `torch_2` are a DataLoader over a dataset of windows, with 0 and 2 workers; `grain` is the same dataset
read by its threads; `penstock` is windows of the file, cast while they are copied, delivered by `to_torch`.

Machine: two cores of an Intel Xeon at 2.8 GHz in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-23.

Result of five rounds, windows/s and their spread:

    penstock      267,800 (245,100 to 279,500)
    memmap_fancy  209,700 (182,500 to 236,800)
    memmap_loop    56,600 (40,300 to 62,900)
    torch_0        39,800 (34,500 to 50,300)
    torch_2        10,600 (8,700 to 13,100)
    grain           8,500 (8,000 to 8,800)

4.55 times the usual loop (4.44 to 6.09; wanted 2), and 1.28 times the best of the others (1.15 to 1.53).

On 2026-11-26, a faster AMD EPYC, quiet, two rounds, windows/s: penstock 752,109 (559,329 to 944,888), memmap_fancy
410,603, memmap_loop 139,078, torch_0 104,132, grain 28,077, torch_2 15,512: 1.83 times the best of the others (1.36 to
2.3).

On 2026-11-29, AMD EPYC, quiet, two rounds, windows/s: penstock 700,000 (688,000 to 713,000), memmap_fancy 314,000
(296,000 to 331,000), memmap_loop 101,000, torch_0 75,900, grain 17,200, torch_2 16,900: 2.24 times the best of the
others (2.08 to 2.41).

Not shown: files larger than the page cache; several files.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _harness import Array, Epoch, Numbers, Options, Target, bench_dir, ratio, run, time_epochs
from _memory import PeakMemory, warm_pages

_TOKEN_COUNT = 100_000_000
_LENGTH = 1024
_BATCH_SIZE = 32
_BATCH_COUNT = 2_000

Batch = tuple[Array, Array]


def _tokens_file() -> Path:
    path = bench_dir() / "tokens.npy"
    if not path.exists():
        rng, part = np.random.default_rng(0), path.with_suffix(".part.npy")
        np.save(part, rng.integers(0, 50_000, _TOKEN_COUNT, dtype=np.uint16))
        part.rename(path)
    return path


def _starts(rng: np.random.Generator) -> Array:
    return rng.integers(0, _TOKEN_COUNT - _LENGTH - 1, _BATCH_SIZE)


def memmap_loop(path: Path) -> Epoch:
    import torch

    tokens, rng = np.load(path, mmap_mode="r"), np.random.default_rng(1)

    def batch() -> Batch:
        starts = _starts(rng).tolist()
        x = torch.stack([torch.from_numpy(tokens[i : i + _LENGTH].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + _LENGTH].astype(np.int64)) for i in starts])
        return x.numpy(), y.numpy()

    return lambda: (batch() for _ in range(_BATCH_COUNT))


def memmap_fancy(path: Path) -> Epoch:
    tokens, rng = np.load(path, mmap_mode="r"), np.random.default_rng(1)
    within = np.arange(_LENGTH + 1)

    def batch() -> Batch:
        windows = tokens[_starts(rng)[:, None] + within].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]

    return lambda: (batch() for _ in range(_BATCH_COUNT))


class _Windows:
    """A map-style dataset of windows at random places."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: Array | None = None
        self._places = np.random.default_rng(1).integers(0, _TOKEN_COUNT - _LENGTH - 1, _BATCH_COUNT * _BATCH_SIZE)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Batch:
        if self._tokens is None:
            self._tokens = np.load(self._path, mmap_mode="r")
        start = int(self._places[index])
        window = self._tokens[start : start + _LENGTH + 1].astype(np.int64)
        return window[:-1], window[1:]


def torch(workers: int) -> Callable[[Path], Epoch]:
    def contender(path: Path) -> Epoch:
        from torch.utils.data import DataLoader

        loader: DataLoader[Batch] = DataLoader(
            _Windows(path),  # type: ignore[arg-type]  # a map-style dataset is anything with these two methods
            batch_size=_BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        return lambda: ((x.numpy(), y.numpy()) for x, y in loader)

    return contender


def grain(path: Path) -> Epoch:
    import grain  # type: ignore[import-untyped, unused-ignore]

    windows = grain.MapDataset.source(_Windows(path)).shuffle(seed=1).batch(_BATCH_SIZE)
    batches = iter(windows.repeat().to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)))
    return lambda: (next(batches) for _ in range(_BATCH_COUNT))


def penstock(path: Path) -> Epoch:
    import penstock as ps

    tokens = ps.from_npy(path)
    pairs = ps.zip((tokens[:-1].windows(_LENGTH), tokens[1:].windows(_LENGTH)))
    batches = pairs.shuffle(seed=1).cast("int64").batch(_BATCH_SIZE).take(_BATCH_COUNT)
    loader = batches.to_torch(executor="threads", workers=2)

    def epoch() -> Iterator[Batch]:
        return ((x.numpy(), y.numpy()) for x, y in loader)

    return epoch


def _case(contender: Callable[[Path], Epoch]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        path = _tokens_file()
        warm_pages(path)
        with PeakMemory() as memory:
            numbers = time_epochs(contender(path), options)
        return numbers | memory.peaks_mib()

    return measure


_CASES = {
    "penstock": _case(penstock),
    "memmap_loop": _case(memmap_loop),
    "memmap_fancy": _case(memmap_fancy),
    "torch_0": _case(torch(0)),
    "torch_2": _case(torch(2)),
    "grain": _case(grain),
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / memmap_loop", ratio("penstock", ["memmap_loop"]), at_least=2.0),
        Target("penstock / best of the others", ratio("penstock", ["memmap_fancy", "torch_0", "torch_2", "grain"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
