"""Contenders of `resize.py`: penstock, torch with a position of one's own, and Grain; the others are in other files."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from _harness import Array, bench_dir
from _resize_compare import Unit
from _resize_jobs import (
    CORPUS_COUNTS,
    ELEMENT_COUNT,
    MAX_TOKENS,
    PICTURE_COUNT,
    ROW,
    SEED,
    WEIGHTS,
    Phase,
    augment,
    batch_of,
    caption_lengths,
    corpus,
    elements_of,
    is_good,
    picture,
    rows_of,
)
from _resize_runs import Contender, NotOfferedError, Ranks


def kept(number: int) -> Array:
    """Returns which documents of a corpus the filter keeps, `(n,)` bool: a file, made once by reading all of them."""
    path = bench_dir() / f"resize-kept-{number}-{CORPUS_COUNTS[number]}.npy"
    if not path.exists():
        tokens, starts = corpus(number)
        found = [is_good(tokens[start:stop]) for start, stop in itertools.pairwise(starts.tolist())]
        unfinished = path.with_suffix(f".{os.getpid()}.npy")
        np.save(unfinished, np.array(found))
        unfinished.rename(path)
    loaded: Array = np.load(path)
    return loaded


def taken(iterators: Iterable[Iterator[Any]], count: int) -> list[Any]:
    """Returns for each rank the function that takes `count` batches."""
    return [lambda each=each: [next(each) for _ in range(count)] for each in iterators]


def recorded(job: str) -> Callable[[Any], list[Unit]]:
    """Returns the function that records a batch of a job: its arrays in a tuple."""
    record = {"shuffled": elements_of, "packed": rows_of, "pictures": batch_of}[job]
    return lambda part: record(*part)  # type: ignore[operator]


def _dataset(job: str, batch: int) -> Any:
    """Returns the dataset of a job in penstock."""
    import penstock as ps

    if job == "shuffled":
        drawn = ps.range(ELEMENT_COUNT).random_map(lambda number, rng: (number, rng.random()), seed=SEED)
        return drawn.shuffle(seed=SEED).batch(batch, drop_remainder=True)
    if job == "packed":
        rows = []
        for number in range(len(CORPUS_COUNTS)):
            tokens, starts = corpus(number)
            keep = kept(number)
            documents = ps.from_arrays(ps.Ragged(tokens, starts))[keep].shuffle(seed=number)
            rows.append(documents.pack(ROW, lengths=np.diff(starts)[keep], fit="best").repeat())
        return ps.mix(rows, WEIGHTS, seed=SEED).batch(batch)
    lengths = caption_lengths()

    def pair(index: Array, rng: np.random.Generator) -> dict[str, Array]:
        caption = np.full(lengths[index], index, np.int32)
        return {"number": index, "image": augment(picture(int(index)), rng), "caption": caption}

    spec = {
        "number": ps.ArraySpec((), "int64"),
        "image": ps.ArraySpec((16, 16, 3), "float32"),
        "caption": ps.ArraySpec((None,), "int32"),
    }
    pictures = ps.range(PICTURE_COUNT).random_map(pair, seed=SEED, element_spec=spec)
    return pictures.shuffle(seed=SEED).bucket_by_length(lengths=lengths, max_tokens=MAX_TOKENS)


def _penstock(job: str, phase: Phase, state: Any) -> Ranks:
    ds = _dataset(job, phase.batch)
    options: dict[str, Any] = {"micro_batches": phase.micro}
    options |= {"executor": "processes", "workers": phase.workers} if phase.workers else {"executor": "inline"}
    is_uneven = bool(phase.batch % phase.ranks)
    if job == "pictures":
        options["whole_batches"] = True
    elif is_uneven:
        options["uneven"] = "weights"
    loaders = [ds.loader(shard=(rank, phase.ranks), **options) for rank in range(phase.ranks)]
    if state is not None:
        for loader in loaders:
            loader.set_state(state)

    def record(part: Any) -> list[Unit]:
        if is_uneven:
            part = part[0]
        if job == "packed":
            part = part[:1]  # the other is the segments
        return recorded(job)(part.values() if job == "pictures" else part)

    return Ranks(taken(map(iter, loaders), phase.micro), record, loaders[0].get_state)


class _ByHand:
    """A map-style dataset of torch whose items are whole parts, by lists of numbers."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.corpora = [corpus(number)[0] for number in range(len(CORPUS_COUNTS))] if job == "packed" else []

    def __getitem__(self, numbers: Any) -> tuple[Array, ...]:
        if self.job == "shuffled":
            draws = np.array([np.random.default_rng([SEED, int(number)]).random() for number in numbers])
            return np.asarray(numbers), draws
        if self.job == "packed":
            rows = np.zeros((len(numbers), ROW), np.int32)
            for row, members in zip(rows, numbers, strict=True):
                start = 0
                for number, first, length in members:
                    row[start : start + length] = self.corpora[number][first : first + length]
                    start += length
            return (rows,)
        images = [augment(picture(number), np.random.default_rng([SEED, number])) for number in numbers]
        lengths = caption_lengths_once()[numbers]
        captions = np.zeros((len(numbers), lengths.max()), np.int32)
        for caption, number, length in zip(captions, numbers, lengths, strict=True):
            caption[:length] = number
        return np.array(numbers), np.stack(images), captions


caption_lengths_once = cache(caption_lengths)


def _order_by_hand(job: str) -> Any:
    """Returns the units of the epoch in their order: the whole of it, made at every start."""
    rng = np.random.default_rng(SEED)
    if job == "shuffled":
        return rng.permutation(ELEMENT_COUNT)
    if job == "packed":
        rows = [_packed_by_hand(number, rng) for number in range(len(CORPUS_COUNTS))]
        starts = [*WEIGHTS, 60_000]
        shares = [np.array(weights) / sum(weights) for weights in WEIGHTS.values()]
        counts = np.diff(starts)
        turns = np.concatenate([rng.choice(3, count, p=share) for count, share in zip(counts, shares, strict=True)])
        used = [0, 0, 0]
        order = []
        for turn in turns:
            order.append(rows[turn][used[turn] % len(rows[turn])])
            used[turn] += 1
        return order
    lengths = caption_lengths()
    order = rng.permutation(PICTURE_COUNT)
    batches, batch = [], []
    for start in range(0, PICTURE_COUNT, 65_536):
        block = order[start : start + 65_536]
        for number in block[np.argsort(lengths[block], kind="stable")].tolist():
            if (len(batch) + 1) * lengths[number] > MAX_TOKENS:
                batches.append(batch)
                batch = []
            batch.append(number)
    return [batches[place] for place in rng.permutation(len(batches))]


def _packed_by_hand(number: int, rng: np.random.Generator) -> list[list[tuple[int, int, int]]]:
    """Returns rows of documents by best fit: lists of rows by the room they have, and a bit for each list with any."""
    starts = corpus(number)[1].tolist()
    rows: list[list[tuple[int, int, int]]] = []
    by_room: list[list[int]] = [[] for _ in range(ROW + 1)]
    bits = 0
    for index in rng.permutation(np.flatnonzero(kept(number))).tolist():
        length = starts[index + 1] - starts[index]
        if above := bits >> length:
            room = length + (above & -above).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                bits ^= 1 << room
        else:
            room, row = ROW, len(rows)
            rows.append([])
        rows[row].append((number, starts[index], length))
        if left := room - length:
            by_room[left].append(row)
            bits |= 1 << left
    return [rows[place] for place in rng.permutation(len(rows))]


def _as_it_is(part: Any) -> Any:
    return part


def _torch_by_hand(job: str, phase: Phase, state: Any) -> Ranks:
    from torch.utils.data import DataLoader

    order, dataset = _order_by_hand(job), _ByHand(job)
    position = [state["position"] if state else 0]

    def parts_of(rank: int) -> Iterator[Any]:
        for start in range(position[0], len(order) - phase.batch + 1, phase.batch):
            if job == "pictures":
                yield from order[start + rank : start + phase.batch : phase.ranks]
            else:
                share = [start + phase.batch * each // phase.ranks for each in (rank, rank + 1)]
                mine = range(*share)
                for part in range(phase.micro):
                    first, last = (len(mine) * each // phase.micro for each in (part, part + 1))
                    yield order[mine[0] + first : mine[0] + last]

    loaders = [
        iter(DataLoader(dataset, None, sampler=parts_of(rank), num_workers=phase.workers, collate_fn=_as_it_is))
        for rank in range(phase.ranks)
    ]
    ranks = taken(loaders, phase.micro)

    def last_part(take: Callable[[], list[Any]] = ranks[-1]) -> list[Any]:
        found = take()
        position[0] += phase.batch
        return found

    ranks[-1] = last_part
    return Ranks(ranks, recorded(job), lambda: {"epoch": 0, "position": position[0]})


def _draw(number: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return number, rng.random()


def _grain(job: str, phase: Phase, state: Any) -> Ranks:
    import grain

    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=phase.workers) if phase.workers else None
    if job == "shuffled":
        ds = grain.MapDataset.range(ELEMENT_COUNT).seed(SEED).shuffle().random_map(_draw)
        batch = (
            phase.batch - phase.batch % phase.ranks
        )  # it refuses ranks that do not divide a batch, but not other sizes
        shards = [grain.sharding.ShardOptions(rank, phase.ranks) for rank in range(phase.ranks)]
        iterators = [
            iter(grain.experimental.ElasticIterator(ds, batch, shard, multiprocessing_options=workers))
            for shard in shards
        ]
        if state is not None:
            for iterator in iterators:
                iterator.set_state(state)
        return Ranks(taken(iterators, 1), recorded(job), iterators[0].get_state)
    return _grain_packed(phase, state, workers)


class _GrainDocument:
    def __init__(self, number: int) -> None:
        self._tokens, self._starts = corpus(number)

    def __call__(self, index: int) -> dict[str, Array]:
        return {"tokens": np.array(self._tokens[self._starts[index] : self._starts[index + 1]])}


def _is_good_in_grain(element: dict[str, Array]) -> bool:
    return is_good(element["tokens"])


def _grain_packed(phase: Phase, state: Any, workers: Any) -> Ranks:
    """Packs each rank's documents by best fit. A state belongs to its rank, so ranks and batches may not change."""
    import grain

    def documents(number: int, count: int) -> Any:
        return grain.MapDataset.range(count).seed(SEED).shuffle().map(_GrainDocument(number)).filter(_is_good_in_grain)

    if state is not None and (len(state["ranks"]), state["batch"]) != (phase.ranks, phase.batch):
        # What it says to a run that wants to be elastic.
        grain.experimental.ElasticIterator(documents(0, 9), phase.batch, grain.sharding.ShardOptions(0, phase.ranks))
    if phase.batch % phase.ranks:
        raise NotOfferedError("ranks do not divide the batch")
    iterators = []
    for rank in range(phase.ranks):
        rows = []
        for number, count in enumerate(CORPUS_COUNTS):
            mine = documents(number, count)[rank :: phase.ranks].to_iter_dataset()
            rows.append(
                grain.experimental.BestFitPackIterDataset(mine, length_struct={"tokens": ROW}, num_packing_bins=64)
            )
        mixed = grain.IterDataset.mix(rows, WEIGHTS[0]).batch(phase.batch // phase.ranks)
        iterators.append(iter(mixed.mp_prefetch(workers) if workers else mixed))
    if state is not None:
        for iterator, each in zip(iterators, state["ranks"], strict=True):
            iterator.set_state(each)
    return Ranks(
        taken(iterators, 1),
        lambda part: rows_of(part[0]["tokens"] if isinstance(part, tuple) else part["tokens"]),
        lambda: {"ranks": [iterator.get_state() for iterator in iterators], "batch": phase.batch},
    )


OWN_CONTENDERS = (
    Contender("penstock", "penstock-data", ("penstock",), _penstock),
    Contender("torch by hand", "torch", ("torch",), _torch_by_hand),
    Contender("Grain", "grain", ("grain",), _grain, ("shuffled", "packed"), "no batches by a budget of tokens"),
)
