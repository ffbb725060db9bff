"""How many shuffled samples a second come from an array on disk?

Question: (x[i], x[i + 1]) from a (20000, 3, 50, 50) float64 `.npy`, 1.2 GB, in batches of 32, shuffled over
the whole array anew each epoch. Warm: the file is in the page cache, so memory bandwidth and overhead decide.
Cold (`--cold`): none of it is, so the disk and what it is asked for decide.

Method: `python benchmarks/shuffled_pairs.py [--cold]`. Each contender has a fresh process, in turn, and the
same consumer, which sums every byte. Warm, the file is read before each, one epoch warms up, and the epochs
of the next 2 s are timed. Cold, the file's pages are dropped before each (`mincore` confirms it) and the
first epoch is timed, start of workers included. An epoch of pairs needs each byte of the file from the disk
once, for a row is in the page cache when its other pair comes; so a plain read of the file, `sequential`, is
19,999 samples too. It reads pieces of 1 MiB, nobody sums them, and it is the median of three, each after the
pages were dropped: one alone varies by a factor of two on a virtual disk. Memory is the peak over the bare
imports, children included.

Contenders, as their documentations advise: `floor` is one thread and `np.take` into two buffers made once;
`bare_threads` and `bare_threads_16` are no library, but 2 and 16 threads that `preadv` a pair a call into three slots
made once, with no more Python than that;
`memmap_fancy` is `mm[indices]`; `torch_*` is a DataLoader with 0 or 2 (persistent) workers, an element a call
and default collation, or a batch a call by `__getitems__`; `tf_data` is shuffled indices and a parallel
`numpy_function`; `grain_threads` batches before `to_iter_dataset`, with one thread that reads up to 16
batches ahead, the fastest of 1 to 16 threads here (16, the default, reach a third of it, and its default of
500 batches ahead may take 1.9 GB); `grain_mp` moves that to 2 processes; `spdl` is an SPDL pipeline that is given the
indices of a batch, and has two threads. Left out: tf.data's
`from_generator`, which has never been near any of them.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.
Its speed varied by a factor of up to 1.5 from minute to minute; ratios are of the same round.

Result, of three rounds each, samples/s and their spread:

                      warm                        cold
    penstock          58,450 (48,622 to 63,587)   13,327 (12,786 to 16,675)
    floor             94,103 (91,547 to 97,752)   11,418 (11,267 to 11,770)
    memmap_fancy      20,659 (17,828 to 24,142)    7,680 (7,234 to 7,807)
    torch_0           20,677 (17,994 to 41,884)    7,205 (6,949 to 8,060)
    torch_0_getitems  20,842 (19,625 to 21,325)    8,108 (7,032 to 8,442)
    torch_2            6,089 (5,361 to 6,530)      4,687 (4,504 to 4,692)
    torch_2_getitems   5,514 (5,461 to 5,594)      4,331 (4,140 to 4,528)
    tf_data           18,642 (17,415 to 19,254)    8,815 (7,818 to 9,822)
    grain_threads     15,437 (11,066 to 17,127)    6,935 (6,781 to 7,558)
    grain_mp           7,097 (6,251 to 7,721)      3,955 (3,865 to 4,017)
    sequential                                    26,553 (24,466 to 35,958)

Warm, 2.48 times the best of torch, tf.data and Grain (1.52 to 2.74; wanted 2.2), and 0.64 of the floor (0.52
to 0.65; wanted 1.0). The floor copies with the processor's widest loads from a mapping into one pair of
buffers that its cache holds, and reads them on the same core. Ours are copied by the kernel, into slots that
another core has read, and what the second core gains is lost again to caches that empty one another (the same
read takes 1.4 times as much processor time beside another) and to waiting for the GIL. Cold, 1.64 times the
best of them (1.51 to 1.70; wanted 3) and 0.50 of a sequential read (0.46 to 0.52; wanted 0.9): why
announced reads of 120 kB reach 0.7 to 1.0 GB/s where a sequential read has 1.4 to 2.1 is not settled.

On 2026-11-23, with the copy engine, two cores of an Intel Xeon at 2.8 GHz, warm, five rounds: penstock 37,400 (36,800
to 48,600), floor 48,600 (38,600 to 50,800), spdl 16,000 (14,600 to 18,500), torch_0_getitems 15,600 (10,900 to
17,500), tf_data 10,200 (7,800 to 15,700), grain_threads 8,900 (8,600 to 12,500). That is 0.92 of the floor (0.74 to
0.97), and 2.34 times the best of the others (2.02 to 2.81; wanted 3.5). Here the floor has one pair of buffers, which
stays in the cache of its core. With four buffers and a consumer that copies (`rows.py`) penstock has 1.27 of it.

Cold, on 2026-11-23 before the copy engine, three rounds: penstock 14,548 (4,727 to 15,868), tf_data 11,938 (9,296 to
15,531), sequential 38,971 (32,418 to 39,531), in an hour when the disk gave 2.2 GB/s from front to back. Why one of
the rounds was three times slower is not known.

On 2026-11-24, on the Xeon, with blocks that are announced while the one before is read, five rounds: penstock 11,600
(10,600 to 14,100), bare_threads_16 10,800 (9,800 to 13,200), so 1.03 of it (0.89 to 1.19). Three rounds of
bare_threads_16 beside a sequential read: 0.46 of it (0.40 to 0.57). So 0.9 of the bare loop is met, and 0.9 of a
sequential read is out of reach of reads in random order on this disk, whoever makes them: 64 threads gave no more
than 16. Blocks of 16 to 128 MiB and one to eight threads that announce made no difference beyond noise.

On 2026-11-25, AMD EPYC, warm, three rounds: penstock 45,200 (45,000 to 47,100), floor 75,300 (71,700 to 79,100),
tf_data 17,400 (17,100 to 18,300), spdl 14,500 (13,300 to 14,800), torch_0_getitems 13,400 (12,400 to 14,000). That
is 0.60 of the floor, whose one pair of buffers stays in its cache, and 2.6 times the best of the others (2.46 to 2.75).

Private and shared memory over bare imports: penstock 24 MiB, floor 3.8, torch_0_getitems 8.2, spdl 28, tf_data 96 to
171, grain_threads 11 to 18. Resident pages of the file: 1 MiB with penstock, 1,145 to 1,150 with all that map it.

On 2026-11-26, a faster AMD EPYC, quiet, warm, two rounds, samples/s: penstock 89,822 (78,030 to 101,615), floor
110,139, grain_threads 41,361, tf_data 29,120, torch_0_getitems 27,889, spdl 24,746: 2.16 times the best of the others
(2.05 to 2.28), 0.85 (0.62 to 1.09) of the floor.

On 2026-11-29, AMD EPYC, quiet, warm, two rounds, samples/s: penstock 79,000 (72,900 to 85,200), floor 116,600, tf_data
29,200 (26,100 to 32,200), torch_0_getitems 22,800, spdl 22,700, grain_threads 14,900: 2.72 times the best of the others
(2.64 to 2.79). Then files of at most a quarter of the memory were mapped for rows of any size. In turn, two rounds:
103,300 and 106,700 of the floor's 121,600 and 126,800, which is 0.85 and 0.84, where `pread` had 0.61 and 0.63. Cold,
three rounds in turn: 20,800 (20,300 to 21,400) where `pread` had 17,900 (17,200 to 22,700). All pages of the file show
as resident memory now; `mapped=False` shows none. Mapped, all contenders again, two rounds: penstock 109,200 (106,800
to 111,600), floor 118,800, spdl 25,200 (24,800 to 25,600), torch_0_getitems 23,800, tf_data 20,000 (15,800 to 24,200),
grain_threads 12,700: 4.33 times the best of torch, tf.data and Grain (4.3 to 4.35), and 0.92 of the floor (0.90 to
0.94).

Not shown: a decode or an augmentation, which costs every contender the same; a file larger than the page cache, where
each row of an epoch may be read twice; a disk with other latencies (in a virtual machine the host may have cached what
the guest dropped).
"""

import gc
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _harness import MIB, Array, Epoch, Numbers, Options, Target, ratio, run, time_epochs
from _memory import PeakMemory, drop_pages, resident_part, warm_pages
from _pairs import BATCH_SIZE, FRAME_SHAPE, PAIR_COUNT, PairsByIndex, frames_file, grain_batches, torch_loader

_SEQUENTIAL_COUNT = 3

Batch = tuple[Array, Array]


def _shuffled_indices(rng: np.random.Generator) -> Iterator[Array]:
    order = rng.permutation(PAIR_COUNT)
    for start in range(0, PAIR_COUNT, BATCH_SIZE):
        yield order[start : start + BATCH_SIZE]


def floor(path: Path) -> Epoch:
    frames = np.load(path, mmap_mode="r")
    rng = np.random.default_rng(1)
    x, y = np.empty((2, BATCH_SIZE, *FRAME_SHAPE))

    def epoch() -> Iterator[Batch]:
        for indices in _shuffled_indices(rng):
            count = len(indices)
            # mode="clip" lets `take` write into `out` directly; "raise" would buffer it.
            np.take(frames, indices, axis=0, out=x[:count], mode="clip")
            np.take(frames, indices + 1, axis=0, out=y[:count], mode="clip")
            yield x[:count], y[:count]

    return epoch


def bare_threads(count: int) -> Callable[[Path], Epoch]:
    def contender(path: Path) -> Epoch:
        frames = np.load(path, mmap_mode="r")
        offset, nbytes = frames.offset, frames[0].nbytes
        slots = np.zeros((3, 2, BATCH_SIZE, *FRAME_SHAPE))
        rows = [[[memoryview(row).cast("B") for row in slot[:, each]] for each in range(BATCH_SIZE)] for slot in slots]
        descriptor = os.open(path, os.O_RDONLY)
        rng = np.random.default_rng(1)
        tasks: list[queue.SimpleQueue[tuple[int, list[int]]]] = [queue.SimpleQueue() for _ in range(count)]
        done: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work(number: int) -> None:
            while True:
                slot, indices = tasks[number].get()
                for place in range(number, len(indices), count):
                    os.preadv(descriptor, rows[slot][place], offset + indices[place] * nbytes)
                done.put(slot)

        for number in range(count):
            threading.Thread(target=work, args=(number,), daemon=True).start()

        def epoch() -> Iterator[Batch]:
            batches = [indices.tolist() for indices in _shuffled_indices(rng)]
            left = [0, 0, 0]
            for ahead in range(len(batches) + 2):
                if ahead < len(batches):
                    left[ahead % 3] = count
                    for each in tasks:
                        each.put((ahead % 3, batches[ahead]))
                if ahead >= 2:
                    slot, size = (ahead - 2) % 3, len(batches[ahead - 2])
                    while left[slot]:
                        left[done.get()] -= 1
                    yield slots[slot, 0, :size], slots[slot, 1, :size]

        return epoch

    return contender


def memmap_fancy(path: Path) -> Epoch:
    pairs = PairsByIndex(path)
    rng = np.random.default_rng(1)
    return lambda: (pairs[indices] for indices in _shuffled_indices(rng))


def torch(workers: int, *, getitems: bool) -> Callable[[Path], Epoch]:
    def contender(path: Path) -> Epoch:
        loader = torch_loader(PairsByIndex(path), workers, getitems=getitems)
        return lambda: ((x.numpy(), y.numpy()) for x, y in loader)

    return contender


def tf_data(path: Path) -> Epoch:
    import tensorflow as tf

    pairs = PairsByIndex(path)
    dataset = (
        tf.data.Dataset.range(PAIR_COUNT)
        .shuffle(PAIR_COUNT, seed=1)
        .batch(BATCH_SIZE)
        .map(
            lambda indices: tf.numpy_function(pairs.__getitem__, [indices], [tf.float64, tf.float64]),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
    )
    epoch: Epoch = dataset.as_numpy_iterator
    return epoch


def grain(workers: int) -> Callable[[Path], Epoch]:
    def contender(path: Path) -> Epoch:
        import grain  # type: ignore[import-untyped, unused-ignore]
        from absl import flags

        flags.FLAGS.mark_as_parsed()  # mp_prefetch reads absl's flags, which are parsed in an absl app alone
        pairs = grain_batches(PairsByIndex(path))
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1 if workers else 16)
        # Endless, with another order in each epoch: one iterator keeps threads and processes alive.
        dataset = pairs.repeat().to_iter_dataset(options)
        if workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        batches = iter(dataset)
        return lambda: (next(batches) for _ in range(len(pairs)))

    return contender


def spdl(path: Path) -> Epoch:
    from spdl.pipeline import PipelineBuilder

    pairs = PairsByIndex(path)
    rng = np.random.default_rng(1)

    def epoch() -> Iterator[Batch]:
        pipeline = (
            PipelineBuilder()
            .add_source(_shuffled_indices(rng))
            .pipe(pairs.__getitem__, concurrency=2)
            .add_sink(2)
            .build(num_threads=2)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def penstock(path: Path) -> Epoch:
    import penstock as ps

    frames = ps.from_npy(path)
    pairs = ps.zip((frames[:-1], frames[1:]))
    loader = pairs.shuffle(seed=1).batch(BATCH_SIZE).loader(executor="threads", workers=2)
    epoch: Epoch = loader.__iter__
    return epoch


def _import_framework(name: str) -> None:
    if name == "penstock":
        import penstock  # noqa: F401
    elif name.startswith("torch"):
        import torch.utils.data  # noqa: F401
    elif name == "tf_data":
        import tensorflow as tf  # noqa: F401
    elif name.startswith("grain"):
        import grain  # noqa: F401
    elif name == "spdl":
        import spdl.pipeline  # noqa: F401


def _case(name: str, contender: Callable[[Path], Epoch]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        path = frames_file()
        _import_framework(name)
        prepare = drop_pages if options.cold else warm_pages
        prepare(path)
        gc.collect()
        with PeakMemory() as memory:
            numbers = time_epochs(contender(path), options)
        if options.cold:
            read_mib = resident_part(path) * path.stat().st_size / MIB
            numbers["read MiB/s"] = read_mib * numbers["samples/s"] / PAIR_COUNT
        return numbers | memory.peaks_mib()

    return measure


def _sequential(options: Options) -> Numbers:
    path = frames_file()
    elapsed_s = statistics.median(_read_s(path, options) for _ in range(_SEQUENTIAL_COUNT))
    return {"samples/s": PAIR_COUNT / elapsed_s, "read MiB/s": path.stat().st_size / MIB / elapsed_s}


def _read_s(path: Path, options: Options) -> float:
    prepare = drop_pages if options.cold else warm_pages
    prepare(path)
    buffer = bytearray(1 << 20)
    began_s = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began_s


_OTHERS: dict[str, Callable[[Path], Epoch]] = {
    "torch_0": torch(0, getitems=False),
    "torch_0_getitems": torch(0, getitems=True),
    "torch_2": torch(2, getitems=False),
    "torch_2_getitems": torch(2, getitems=True),
    "tf_data": tf_data,
    "grain_threads": grain(0),
    "grain_mp": grain(2),
    "spdl": spdl,
}
_CONTENDERS = {
    "penstock": penstock,
    "floor": floor,
    "bare_threads": bare_threads(2),
    "bare_threads_16": bare_threads(16),
    "memmap_fancy": memmap_fancy,
    **_OTHERS,
}
_CASES = {name: _case(name, contender) for name, contender in _CONTENDERS.items()}
_CASES["sequential"] = _sequential


def _targets(options: Options) -> list[Target]:
    best = Target(
        "penstock / best of torch, tf.data, Grain",
        ratio("penstock", list(_OTHERS)),
        at_least=3.0 if options.cold else 2.2,
    )
    if options.cold:
        plain = ["sequential", "bare_threads_16"]
        return [
            best,
            Target("penstock / the better of a sequential read and 16 bare threads", ratio("penstock", plain), 0.9),
            Target("bare_threads_16 / sequential", ratio("bare_threads_16", ["sequential"])),
        ]
    return [
        best,
        Target("penstock / floor", ratio("penstock", ["floor"]), at_least=1.0),
        Target("penstock / bare threads", ratio("penstock", ["bare_threads"])),
        *(Target(f"{name} / floor", ratio(name, ["floor"])) for name in ("bare_threads", "memmap_fancy", *_OTHERS)),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
