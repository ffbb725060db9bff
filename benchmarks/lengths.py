"""What do orders by length cost: to build, to find batch 1,000,000, to restore; and how full and fast are packs?

Question: (a) 10 million documents, whose lengths are known, in buckets or packs, anew in each epoch. How long does it
take to build the dataset, to read batch (or row) 1,000,000 first, and to go on there after a restart? (b) 100,000
sentences in rows of 256 tokens: how full are rows, and how many come in a second? (c) Weighted draws, also from more
elements than `torch.multinomial` takes.

Method: `python benchmarks/lengths.py`. Each case runs in a fresh process, in turn. `build` includes the length of the
dataset. `batch` is the first batch that is read; `restore` is `set_state` and the next batch, in a dataset that is
built anew. `MiB` is what the process grew by up to that batch, without the array of lengths that the caller has. Rows
of (b) are timed from the list of sentences to the last batch of 32 rows, plan included. (c) draws a million.
`*_ranks` is the half that the first of two ranks gets, from the array of weights to its last draw; `first` is until its
first draw, and `restore` until the next one after a restart in the middle.

Contenders, as their documentation advises: `torch_buckets` is a batch sampler for a DataLoader, as training scripts
have it: a permutation in runs of 100 batches, each sorted by length, its batches shuffled; a restart makes the list of
the epoch again and takes the rest of it. `lhotse` is a DynamicBucketingSampler over a lazy manifest of 50,000 cuts: it
restores by drawing all batches again, so its numbers are for batch 5,000. `pack_loop` is a loop with NumPy that fills
one row after the other, in order; `pack_first_loop` looks for the first row with room (`argmax`). `pack_grain_*` are
Grain's, with 64 bins. `weighted_torch` is a WeightedRandomSampler of 2**24 - 1 elements; it refuses more. So
`weighted_torch_ranks`, of twice as many, draws as PyTorch's issue 2576 advises: each rank calls `np.random.choice` with
the seed and the epoch, and a DistributedSampler takes the rank's part of that list.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, Grain 0.2.18, Lhotse 1.33, 2026-11-26, two
rounds, quiet.

Result of (a), mean and range:

    case           build ms              batch ms                restore ms              MiB
    buckets        70 (65 to 75)         11.4 (10.4 to 12.3)     9.1 (8.0 to 10.1)       42.8
    packs_best     810 (735 to 886)      11.1 (9.6 to 12.5)      8.6 (8.5 to 8.8)        42.5
    packs_first    1,022 (970 to 1,074)  10.7 (10.6 to 10.7)     13.8 (12.8 to 14.8)     42.5
    packs_cut      331 (303 to 358)      13.6 (13.1 to 14.1)     16.9 (15.7 to 18.1)     43.9
    packs_mixed    755 (688 to 822)      9.0 (7.7 to 10.3)       8.7 (8.2 to 9.3)        44.2
    torch_buckets  256 (252 to 260)      8,465 (7,426 to 9,504)  7,945 (7,361 to 8,529)  795
    lhotse         164 (143 to 185)      10,760 (10,086-11,434)  10,040 (9,777-10,304)   9.2, of 50,000 cuts

A second is met but for first fit, 10 ms nearly: what is left is the order of one block of 65,536 and, for cut rows, the
search of theirs in the blocks before.

Result of (b): `pack_best` and `pack_first` fill 99.8 % of rows, Grain's fits 99.2 %, the loop of first fit 99.5 %, next
fit 91.9 % (its loop 92.1 %). Rows a second: 20,349 (17,697 to 23,002) and 19,350 by best and first fit, which are 1.51
(1.39 to 1.64) and 1.45 times the loop of first fit, and 24 times Grain's 816. The loop of next fit is 4.6 times as fast
as `pack_next`: 89,507 against 18,780.

Result of (c): 0.35 (0.32 to 0.37) of torch's draws, which are a list made at once; 230,366 draws a second from more
elements than torch takes. Two ranks, on a busy machine, two rounds: `weighted_ranks` gives 154,148 and 201,065 draws a
second to its rank, which is 2.5 and 2.3 times `weighted_torch_ranks`. Its first draw comes after 1.6 and 0.4 s (8.2 and
5.7 s), and after a restart, which takes the weights' fingerprint too, in 2.4 and 2.3 s (4.3 and 3.5 s).
"""

import gc
import itertools
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import MIB, Array, Numbers, Options, Target, bench_dir, ratio, run, value

_COUNT, _PLACE = 10_000_000, 1_000_000
_QUICK = 100
"""So many times fewer elements with `--quick`."""
_ROW = 2048
_BATCH = 8
_CUT_COUNT, _CUT_PLACE = 50_000, 5_000
_SENTENCE_COUNT, _SENTENCE_ROW, _ROW_BATCH = 100_000, 256, 32
_WEIGHT_COUNT, _DRAW_COUNT = 2**24 - 1, 1_000_000


def _scaled(count: int, options: Options) -> int:
    return count // _QUICK if options.quick else count


def _lengths(count: int) -> Array:
    """Those of documents: 330 tokens on average, at most a row."""
    return np.random.default_rng(0).lognormal(5.3, 1.0, count).clip(1, _ROW).astype(np.uint32)


class _Documents:
    """A source of documents that are made when they are read."""

    def __init__(self, lengths: Array) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Array:
        return np.full(int(self._lengths[index]), index, np.int32)


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its milliseconds."""
    began_s = time.perf_counter()
    found = call()
    return found, 1e3 * (time.perf_counter() - began_s)


def _penstock(make: Callable[[Any, Array], Any], part_count: int = 1) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        import penstock as ps

        lengths, place = _lengths(_scaled(_COUNT, options)), _scaled(_PLACE, options)
        parts = np.array_split(lengths, part_count)
        spec = ps.ArraySpec((None,), "int32")

        def build() -> Any:
            made = [make(ps.from_source(_Documents(part), element_spec=spec).shuffle(1), part) for part in parts]
            dataset = made[0] if part_count == 1 else ps.mix(made, [1] * part_count)
            assert len(dataset) > place
            return dataset

        ps.range(4).shuffle(1).batch(2).loader("inline").close()  # imports what a loader needs
        before = _resident_mib()
        dataset, build_ms = _timed(build)
        _, batch_ms = _timed(lambda: dataset[place])
        grown = _resident_mib() - before
        with dataset.loader("inline") as loader:
            state = loader.get_state() | {"position": place}
        again = build()
        with again.loader("inline") as loader:

            def restore() -> Any:
                loader.set_state(state)
                return next(iter(loader))

            _, restore_ms = _timed(restore)
        return {"build ms": build_ms, "batch ms": batch_ms, "restore ms": restore_ms, "MiB": grown}

    return measure


def _torch_buckets(options: Options) -> Numbers:
    import torch
    from torch.utils.data import Sampler

    class Buckets(Sampler[list[int]]):
        def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
            self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

        def __len__(self) -> int:
            return len(self.lengths) // self.batch_size

        def __iter__(self) -> Iterator[list[int]]:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.lengths), generator=generator).tolist()
            batches, run_length = [], 100 * self.batch_size
            for first in range(0, len(order), run_length):
                near = sorted(order[first : first + run_length], key=self.lengths.__getitem__)
                batches += [near[at : at + self.batch_size] for at in range(0, len(near), self.batch_size)]
            for number in torch.randperm(len(batches), generator=generator).tolist():
                yield batches[number]

    lengths, place = _lengths(_scaled(_COUNT, options)), _scaled(_PLACE, options)
    before = _resident_mib()
    sampler, build_ms = _timed(lambda: Buckets(lengths.tolist(), _BATCH, 1))
    order = iter(sampler)
    _, batch_ms = _timed(lambda: next(itertools.islice(order, place, None)))
    grown = _resident_mib() - before
    order.close()
    _, restore_ms = _timed(lambda: next(itertools.islice(iter(sampler), place, None)))
    return {"build ms": build_ms, "batch ms": batch_ms, "restore ms": restore_ms, "MiB": grown}


def _manifest(count: int) -> Path:
    path = bench_dir() / f"cuts-{count}.jsonl"
    if not path.exists():
        part = path.with_suffix(".part")
        with open(part, "w") as file:
            for number, length in enumerate(_lengths(count).tolist()):
                cut = {"id": f"{number}", "start": 0.0, "duration": length / 100, "channel": 0, "type": "MonoCut"}
                file.write(json.dumps(cut) + "\n")
        part.rename(path)
    return path


def _lhotse(options: Options) -> Numbers:
    from lhotse import CutSet  # type: ignore[import-not-found, unused-ignore]
    from lhotse.dataset import DynamicBucketingSampler  # type: ignore[import-not-found, unused-ignore]

    path, place = _manifest(_scaled(_CUT_COUNT, options)), _scaled(_CUT_PLACE, options)

    def build() -> Any:
        return DynamicBucketingSampler(CutSet.from_jsonl_lazy(path), max_cuts=_BATCH, shuffle=True, seed=1)

    before = _resident_mib()
    sampler, build_ms = _timed(build)
    _, batch_ms = _timed(lambda: next(itertools.islice(iter(sampler), place, None)))
    grown, state = _resident_mib() - before, sampler.state_dict()
    again = build()

    def restore() -> Any:
        again.load_state_dict(state)
        return next(iter(again))

    _, restore_ms = _timed(restore)
    return {"build ms": build_ms, "batch ms": batch_ms, "restore ms": restore_ms, "MiB": grown}


def _sentences(options: Options) -> list[Array]:
    """Of 29 tokens on average."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(3.2, 0.6, _scaled(_SENTENCE_COUNT, options)).clip(1, _SENTENCE_ROW).astype(int)
    return [rng.integers(1, 30_000, length, dtype=np.int32) for length in lengths.tolist()]


Batches = Iterable[tuple[Array, Array]]
"""Tokens and segments, `(rows, 256)` each."""


def _loop_batches(sentences: list[Array], rows: Iterable[list[int]]) -> Batches:
    """Lays sentences into rows, and stacks these."""
    for several in itertools.batched(rows, _ROW_BATCH) if hasattr(itertools, "batched") else _batched(rows):
        tokens, segments = np.zeros((2, len(several), _SENTENCE_ROW), np.int32)
        for row, members in enumerate(several):
            at = 0
            for number, member in enumerate(members, 1):
                stop = at + len(sentences[member])
                tokens[row, at:stop] = sentences[member]
                segments[row, at:stop] = number
                at = stop
        yield tokens, segments


def _batched(rows: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    rows = iter(rows)
    while several := list(itertools.islice(rows, _ROW_BATCH)):
        yield several


def _next_rows(sentences: list[Array]) -> Iterator[list[int]]:
    members, room = [], _SENTENCE_ROW
    for number, sentence in enumerate(sentences):
        if len(sentence) > room:
            yield members
            members, room = [], _SENTENCE_ROW
        members.append(number)
        room -= len(sentence)
    yield members


def _first_rows(sentences: list[Array]) -> list[list[int]]:
    room = np.full(len(sentences), _SENTENCE_ROW)
    rows: list[list[int]] = [[] for _ in sentences]
    first = count = 0  # no row before `first` has room for anything
    for number, sentence in enumerate(sentences):
        row = first + int(np.argmax(room[first : count + 1] >= len(sentence)))
        rows[row].append(number)
        room[row] -= len(sentence)
        count = max(count, row + 1)
        while room[first] == 0:
            first += 1
    return rows[:count]


def _penstock_batches(fit: Any) -> Callable[[list[Array]], Batches]:
    def batches(sentences: list[Array]) -> Batches:
        import penstock as ps

        source = ps.from_source(sentences, element_spec=ps.ArraySpec((None,), "int32"))
        lengths = np.fromiter(map(len, sentences), np.uint32, len(sentences))
        packed = source.shuffle(1).pack(_SENTENCE_ROW, lengths=lengths, fit=fit, split=False)
        with packed.batch(_ROW_BATCH).loader("threads", workers=2) as loader:
            yield from loader

    return batches


def _grain_batches(name: str) -> Callable[[list[Array]], Batches]:
    def batches(sentences: list[Array]) -> Batches:
        import grain  # type: ignore[import-untyped, unused-ignore]

        pack = getattr(grain.experimental, name)
        source = grain.MapDataset.source(sentences).shuffle(seed=1).map(lambda each: {"tokens": each})
        read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # its advice where nothing is read
        packed = pack(source.to_iter_dataset(read), length_struct={"tokens": _SENTENCE_ROW}, num_packing_bins=64)
        for each in packed.batch(_ROW_BATCH):
            yield each["tokens"], each["tokens_segment_ids"]

    return batches


def _packing(batches: Callable[[list[Array]], Batches]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        sentences = _sentences(options)
        for _ in batches(sentences[:2000]):  # imports and first calls
            pass
        row_count = filled = 0
        began_s = time.perf_counter()
        for tokens, segments in batches(sentences):
            row_count += len(tokens)
            filled += int(np.count_nonzero(segments))
        elapsed_s = time.perf_counter() - began_s
        return {"rows/s": row_count / elapsed_s, "filled %": 100 * filled / (row_count * _SENTENCE_ROW)}

    return measure


def _weights(count: int) -> Array:
    return np.random.default_rng(0).random(count)


def _weighted_penstock(count: int) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        import penstock as ps

        weights, draw_count = _weights(_scaled(count, options)), _scaled(_DRAW_COUNT, options)

        def draw() -> int:
            drawn = ps.range(len(weights)).sample(weights, count=draw_count, seed=1).batch(1024)
            return sum(map(len, drawn.loader("inline")))

        drawn, draw_ms = _timed(draw)
        assert drawn == draw_count
        return {"draws/s": 1e3 * draw_count / draw_ms}

    return measure


def _weighted_torch(options: Options) -> Numbers:
    from torch.utils.data import WeightedRandomSampler

    weights, draw_count = _weights(_scaled(_WEIGHT_COUNT, options)), _scaled(_DRAW_COUNT, options)
    drawn, draw_ms = _timed(lambda: len(list(WeightedRandomSampler(weights, draw_count))))
    assert drawn == draw_count
    return {"draws/s": 1e3 * draw_count / draw_ms}


def _ranks_penstock(options: Options) -> Numbers:
    import penstock as ps

    weights, draw_count = _weights(_scaled(2 * _WEIGHT_COUNT, options)), _scaled(_DRAW_COUNT, options)

    def build() -> Any:
        drawn = ps.range(len(weights)).sample(weights, count=draw_count, seed=1)
        return drawn.batch(1024, drop_remainder=True).loader("inline", shard=(0, 2))

    build().close()  # imports what a loader needs
    loader, build_ms = _timed(build)
    batches = iter(loader)
    _, first_ms = _timed(lambda: next(batches))
    drawn, rest_ms = _timed(lambda: 512 + sum(map(len, batches)))
    state = loader.get_state() | {"epoch": 0, "position": draw_count // 2048}

    def restore() -> Any:
        again = build()
        again.set_state(state)
        return next(iter(again))

    _, restore_ms = _timed(restore)
    elapsed_ms = build_ms + first_ms + rest_ms
    return {"draws/s": 1e3 * drawn / elapsed_ms, "first ms": build_ms + first_ms, "restore ms": restore_ms}


def _ranks_torch(options: Options) -> Numbers:
    from torch.utils.data import DistributedSampler

    weights, draw_count = _weights(_scaled(2 * _WEIGHT_COUNT, options)), _scaled(_DRAW_COUNT, options)

    def draws() -> list[int]:
        drawn = np.random.default_rng((1, 0)).choice(len(weights), draw_count, p=weights / weights.sum())
        own = DistributedSampler(drawn, num_replicas=2, rank=0, shuffle=False)  # type: ignore[arg-type, unused-ignore]
        return drawn[list(own)].tolist()  # type: ignore[no-any-return, unused-ignore]

    def first(place: int) -> Iterator[int]:
        order = itertools.islice(draws(), place, None)
        next(order)
        return order

    order, first_ms = _timed(lambda: first(0))
    drawn, rest_ms = _timed(lambda: 1 + sum(1 for _ in order))
    _, restore_ms = _timed(lambda: first(draw_count // 4))
    return {"draws/s": 1e3 * drawn / (first_ms + rest_ms), "first ms": first_ms, "restore ms": restore_ms}


_CASES = {
    "buckets": _penstock(lambda ds, lengths: ds.bucket_by_length(lengths=lengths, batch_size=_BATCH)),
    "packs_best": _penstock(lambda ds, lengths: ds.pack(_ROW, lengths=lengths, fit="best")),
    "packs_first": _penstock(lambda ds, lengths: ds.pack(_ROW, lengths=lengths, fit="first")),
    "packs_cut": _penstock(lambda ds, lengths: ds.pack(_ROW, lengths=lengths)),
    "packs_mixed": _penstock(lambda ds, lengths: ds.pack(_ROW, lengths=lengths, fit="best"), 2),
    "torch_buckets": _torch_buckets,
    "lhotse": _lhotse,
    "pack_best": _packing(_penstock_batches("best")),
    "pack_first": _packing(_penstock_batches("first")),
    "pack_next": _packing(_penstock_batches("next")),
    "pack_loop": _packing(lambda sentences: _loop_batches(sentences, _next_rows(sentences))),
    "pack_first_loop": _packing(lambda sentences: _loop_batches(sentences, _first_rows(sentences))),
    "pack_grain_best": _packing(_grain_batches("BestFitPackIterDataset")),
    "pack_grain_first": _packing(_grain_batches("FirstFitPackIterDataset")),
    "weighted": _weighted_penstock(_WEIGHT_COUNT),
    "weighted_more": _weighted_penstock(2 * _WEIGHT_COUNT),
    "weighted_torch": _weighted_torch,
    "weighted_ranks": _ranks_penstock,
    "weighted_torch_ranks": _ranks_torch,
}


def _targets(options: Options) -> list[Target]:
    ours = [name for name in _CASES if name.startswith(("buckets", "packs"))]
    grains = ["pack_grain_best", "pack_grain_first"]
    return [
        *(Target(f"{name}: build ms", value(name, "build ms"), at_most=1000) for name in ours),
        *(Target(f"{name}: batch ms", value(name, "batch ms"), at_most=10) for name in ours),
        *(Target(f"{name}: restore ms", value(name, "restore ms"), at_most=10) for name in ours),
        *(Target(f"{name}: fill / Grain's", ratio(name, grains, "filled %"), at_least=1.0) for name in _PACKS),
        *(
            Target(f"{name} / pack_first_loop", ratio(name, ["pack_first_loop"], "rows/s"), at_least=0.9)
            for name in _PACKS
        ),
        Target("pack_next / pack_loop", ratio("pack_next", ["pack_loop"], "rows/s")),
        Target("rows/s / Grain's", ratio("pack_best", grains, "rows/s")),
        Target("draws/s / torch", ratio("weighted", ["weighted_torch"], "draws/s")),
        Target("draws/s of a rank / torch", ratio("weighted_ranks", ["weighted_torch_ranks"], "draws/s")),
    ]


_PACKS = ("pack_best", "pack_first")

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(__file__, _CASES, _targets)
