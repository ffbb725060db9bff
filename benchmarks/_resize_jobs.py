"""The jobs of `resize.py`: their data, made from an element's number alone, and the events of a run."""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from _harness import Array, bench_dir
from _resize_compare import Unit

SEED = 7
ROW = 256
"""Tokens of a packed row."""
MAX_TOKENS = 1024
"""Tokens of a batch of pictures: the number of captions times the longest."""
PICTURE = (16, 16, 3)


@dataclass(frozen=True)
class Phase:
    """One life of a run: it starts on some ranks, makes steps, saves, goes on a little, and ends."""

    ranks: int
    workers: int
    """Worker processes of each rank."""
    batch: int
    """Units of a step, over all ranks."""
    micro: int
    """In how many parts each rank takes its share of a step."""
    steps: int
    """Steps before the state is saved; those after it are lost with the weights."""
    extra: int = 0
    ending: str = "stop"
    """`stop`: exits at once. `rank`: killed by signal 9 in mid-step. `worker`: a worker is killed before step 2."""


@dataclass(frozen=True)
class Job:
    """What a run trains on."""

    name: str
    title: str
    batch: int
    """Units of a step, except where a phase asks for another size. 0: `ranks * micro` whole batches."""
    other_batches: tuple[int, ...]
    start: Phase
    """How the run begins, and how it goes where nothing happens."""
    least_steps: int
    """Of the run without events, over which the speed is taken: more than what loaders read ahead."""


JOBS = {
    job.name: job
    for job in (
        Job("shuffled", "shuffled batches", 192, (96, 240), Phase(4, 0, 192, 1, 0), 500),
        Job("packed", "three corpora, filtered, mixed, packed", 64, (32, 96), Phase(4, 0, 64, 1, 0), 200),
        Job("pictures", "pictures with captions, a token budget", 0, (), Phase(4, 0, 4, 1, 0), 300),
    )
}


def phases(job: Job, count: int, seed: int) -> list[Phase]:
    """Returns `count` lives of a run, the first as without events: most on 1 to 8 ranks, some on up to 64."""
    rng = np.random.default_rng([seed, zlib.crc32(job.name.encode())])
    found = [replace(job.start, steps=3, extra=1)]
    for number in range(1, count):
        ranks = int(rng.choice([1, 2, 3, 4, 6, 8] if rng.random() < 0.7 else [5, 7, 12, 16, 24, 32, 48, 64]))
        ending = str(rng.choice(["stop", "rank", "worker"]))
        workers = int(rng.integers(3)) if ranks <= 4 else 0
        if ending == "worker" and number % 2:
            ranks, workers = min(ranks, 4), max(workers, 1)
        elif not workers and ending == "worker":
            ending = "stop"
        micro = int(rng.choice([1, 1, 2, 4]))
        batch = job.batch
        if not batch:
            micro = min(micro, 2)
            batch = ranks * micro
        elif rng.random() < 0.15:
            batch = int(rng.choice(job.other_batches))
        if batch % (ranks * micro):
            micro = 1
        steps = int(rng.integers(2, 5))
        found.append(Phase(ranks, workers, batch, micro, steps, int(rng.integers(ending == "rank", 3)), ending))
    return found


def unit(ids: Sequence[int], *arrays: Array) -> Unit:
    """Returns the record of a unit: the numbers of its elements and a digest of its bytes."""
    digest = 0
    for array in arrays:
        digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return tuple(map(int, ids)), digest


# Job "shuffled": an element is its number, to which each contender adds one random number, as its users draw them.
ELEMENT_COUNT = int(os.environ.get("PENSTOCK_RESIZE_ELEMENTS", "98304"))


def elements_of(numbers: Array, draws: Array) -> list[Unit]:
    """Records a batch of the job "shuffled"."""
    return [unit((number,), draw) for number, draw in zip(numbers, draws, strict=True)]


# Job "packed": three corpora in files, and a filter that looks at the tokens.
CORPUS_COUNTS = (60_000, 60_000, 60_000)
WEIGHTS = {0: (6.0, 3.0, 1.0), 4_000: (2.0, 4.0, 4.0)}
"""Shares of rows, by the row from which they hold."""


def document_lengths(corpus: int) -> Array:
    """Returns the tokens of each document of a corpus, `(n,)` int64: log-normal, 1 to `ROW`."""
    drawn = np.random.default_rng(corpus).lognormal(3.7, 0.9, CORPUS_COUNTS[corpus])
    return drawn.clip(1, ROW).astype(np.int64)


def corpus(number: int) -> tuple[Array, Array]:
    """Returns the tokens of a corpus, one document after the other, and where each begins: files, mapped.

    Tokens are int32. Those of a document are its number over all corpora, from 1 on, so that rows say what they hold.
    """
    lengths = document_lengths(number)
    starts = np.cumsum([0, *lengths])
    path = bench_dir() / f"resize-corpus-{number}-{starts[-1]}.npy"
    if not path.exists():
        numbers = np.arange(len(lengths), dtype=np.int32) + sum(CORPUS_COUNTS[:number]) + 1
        unfinished = path.with_suffix(f".{os.getpid()}.npy")
        np.save(unfinished, np.repeat(numbers, lengths))
        unfinished.rename(path)
    return np.load(path, mmap_mode="r"), starts


def is_good(tokens: Array) -> bool:
    """Is the filter of the job "packed", which looks at the tokens: three of four documents pass."""
    return bool(tokens[0] % 4)


def rows_of(rows: Array) -> list[Unit]:
    """Records packed rows, `(n, ROW)`; 0 fills them up."""
    return [unit(np.unique(row[row > 0]).tolist(), row) for row in rows]


# Job "pictures": a picture is made from its number; its caption has a length that is known.
PICTURE_COUNT = 300_000


def caption_lengths() -> Array:
    """Returns the tokens of each caption, `(n,)` int64: 5 to 77."""
    return np.random.default_rng(3).gamma(4, 6, PICTURE_COUNT).clip(5, 77).astype(np.int64)


def picture(index: int) -> Array:
    """Returns a picture, uint8 `PICTURE`."""
    return (
        (np.arange(np.prod(PICTURE), dtype=np.uint32) * 7 + index * 2_654_435_761 % 2**31)
        .astype(np.uint8)
        .reshape(PICTURE)
    )


def augment(image: Array, rng: np.random.Generator) -> Array:
    """Returns the picture, flipped at random and of another brightness, float32."""
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return image * np.float32(rng.uniform(0.8, 1.2))


def batch_of(numbers: Array, images: Array, captions: Array) -> list[Unit]:
    """Records a batch of the job "pictures" as one unit."""
    return [unit(np.asarray(numbers).tolist(), images, captions)]
