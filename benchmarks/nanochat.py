"""How fast are documents packed into rows of 2,049 tokens, and what is lost: nanochat's loader and ours?

Question: nanochat trains on rows that start with a BOS token. Its loader keeps 1,000 tokenized documents in a list,
takes the longest that fits until none does, and fills the row with the beginning of the shortest, whose rest is lost.
How many rows a second does that give, how many places are empty, and how many tokens are lost; against
`examples/integrations/nanochat_loader.py`?

Method: `python benchmarks/nanochat.py`. 20,000 documents of 660 tokens on average (log-normal); one in twenty is longer
than a row. A batch is 32 rows, as int64 tensors of inputs and targets. Each case runs in a fresh process, in turn, with
one thread for torch's own operations. The consumer reads all inputs and targets. `packer_*` begin with documents that
are tokenized and in memory: lists of numbers, as tokenizers return them, and a flat array. `text_*` begin with Parquet
files of the text and a BPE tokenizer of 14,743 tokens (tiktoken, `pip install tiktoken`): `text_nanochat` tokenizes 128
documents at a time with four threads, as nanochat does; `text_penstock` tokenizes all once, in worker processes, which
is `first s` together with the first batch, then reads the file of tokens. `packer_nanochat` and `text_nanochat` are
timed after 30,000 documents, when their lists hold what they will hold later: mostly documents that are longer than a
row.

Contender: the algorithm that nanochat's documentation describes, written anew for this file; nanochat is no package. In
60 batches of `text_nanochat`, its rows were those of nanochat's own loader (commit 92d63d4) to the bit, which took 0.91
of the CPU time.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, torch 2.13.0, tiktoken 0.14.0, 2026-11-28,
busy with other work, so CPU time says more than the clock.

Result of three rounds, median and range:

    case             rows/s                    rows/CPU s                empty %  lost %             first s
    packer_penstock  13,190 (8,289 to 28,457)  30,321 (26,289 to 31,072)  0.022    0                  0.06
    packer_nanochat  937 (642 to 943)          1,626 (1,345 to 1,732)     0        8.7 (8.4 to 8.7)   6.7
    text_penstock    3,824 (3,511 to 6,015)    16,330 (13,954 to 16,506)  0.023    0                  19.6
    text_nanochat    231 (217 to 442)          744 (651 to 859)           0        8.2 (8.1 to 8.2)   6.1

The packer: 14 times nanochat's rows a second (8.9 to 44), 18.6 times by CPU time (15.2 to 23.1; wanted 10). From text,
after the first pass: 16.2 times (13.6 to 16.5).

Where we lose: the first batch of a corpus waits until all of it is tokenized, here 19.6 s against 6.1 s, which grows
with the corpus, and tokens take two bytes each on the disk. One place in 4,500 is empty; nanochat leaves none, because
it throws tokens away: 8 to 9 % here, and about 35 % as its documentation says.
"""

import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, run, value

_DOCUMENT_COUNT, _FILE_COUNT = 20_000, 4
_WORD_COUNT = 8_000
_BATCH_SIZE, _LENGTH = 32, 2048
_BUFFER_SIZE, _TOKENIZED_AT_ONCE = 1_000, 128
_WARM_UP_COUNT = 30_000
"""Documents."""
_TIMED_S, _QUICK_S = 4.0, 1.0
_BOS = 1

Documents = Iterable[list[int]]


def _words() -> list[str]:
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    return ["".join(rng.choice(letters, size)) for size in rng.integers(2, 8, _WORD_COUNT)]


def _documents() -> list[Array]:
    """The numbers of the words of each document."""
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(6.0, 1.0, _DOCUMENT_COUNT).clip(20, 20_000).astype(int)
    return [(rng.zipf(1.2, length) - 1) % _WORD_COUNT for length in lengths]


def _text_files() -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = bench_dir() / "nanochat"
    if not folder.exists():
        words, documents = np.array(_words()), _documents()
        part = folder.with_suffix(".part")
        part.mkdir()
        for number in range(_FILE_COUNT):
            texts = [" " + " ".join(words[each]) for each in documents[number::_FILE_COUNT]]
            table = pa.table({"text": texts})
            pq.write_table(table, part / f"shard_{number}.parquet", row_group_size=1024)
        part.rename(folder)
    return sorted(map(str, folder.glob("*.parquet")))


class _Tokenizer:
    """With the methods of nanochat's. Each word, and each beginning of one, is a token."""

    def __init__(self) -> None:
        import tiktoken  # type: ignore[import-not-found, unused-ignore]

        starts = dict.fromkeys(f" {word}"[:end] for word in _words() for end in range(2, len(word) + 2))
        tokens = [bytes([value]) for value in range(256)] + [start.encode() for start in sorted(starts, key=len)]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        self._encoding = tiktoken.Encoding("words", pat_str=r" ?\w+", mergeable_ranks=ranks, special_tokens={})

    def get_bos_token_id(self) -> int:
        return _BOS

    def encode(self, text: Any, prepend: int | None = None, num_threads: int = 8) -> Any:
        if isinstance(text, str):
            return self._encoding.encode_ordinary(text)
        found = self._encoding.encode_ordinary_batch(text, num_threads=num_threads)
        return found if prepend is None else [[prepend, *ids] for ids in found]


class _Counts:
    """Tokens of documents that the loop took, and those of them that it laid into rows."""

    taken = laid = documents = 0


def _nanochat_batches(groups: Iterator[Documents], counts: _Counts) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets, packed from a list of documents."""
    import torch

    waiting: list[list[int]] = []
    rows = torch.empty((_BATCH_SIZE, _LENGTH + 1), dtype=torch.long)
    while True:
        for row in rows:
            at = 0
            while at <= _LENGTH:
                while len(waiting) < _BUFFER_SIZE:
                    waiting += next(groups)
                room, chosen, longest = _LENGTH + 1 - at, -1, 0
                for number, document in enumerate(waiting):
                    size = len(document)
                    if longest < size <= room:
                        chosen, longest = number, size
                if chosen < 0:  # the beginning of the shortest
                    chosen = min(range(len(waiting)), key=lambda number: len(waiting[number]))
                document = waiting.pop(chosen)
                laid = min(room, len(document))
                row[at : at + laid] = torch.tensor(document[:laid])
                at += laid
                counts.taken += len(document)
                counts.laid += laid
                counts.documents += 1
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _timed(batches: Iterator[tuple[Any, ...]], options: Options) -> Numbers:
    """The rows a second, and which part of the places has no token of a document."""
    limit_s = _QUICK_S if options.quick else _TIMED_S
    count = filled = 0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < limit_s:
        inputs, targets, *_ = next(batches)
        assert inputs.shape == targets.shape == (_BATCH_SIZE, _LENGTH)
        assert int(inputs.sum()) > 0
        filled += int((targets >= 0).sum())
        count += len(inputs)
    elapsed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return {"rows/s": count / elapsed_s, "rows/CPU s": count / cpu_s, "empty %": 100 - 100 * filled / (count * _LENGTH)}


def _nanochat(groups: Callable[[], Iterator[Documents]]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        counts = _Counts()
        batches = _nanochat_batches(groups(), counts)
        began_s = time.perf_counter()
        next(batches)
        first_s = time.perf_counter() - began_s
        while counts.documents < (_WARM_UP_COUNT // 10 if options.quick else _WARM_UP_COUNT):
            next(batches)
        counts.taken = counts.laid = 0
        numbers = _timed(batches, options)
        return numbers | {"lost %": 100 - 100 * counts.laid / counts.taken, "first s": first_s}

    return measure


def _tokenized_groups() -> Iterator[Documents]:
    documents = [[_BOS, *each.tolist()] for each in _documents()]
    while True:
        for at in range(0, len(documents), _TOKENIZED_AT_ONCE):
            yield documents[at : at + _TOKENIZED_AT_ONCE]


def _text_groups() -> Iterator[Documents]:
    import pyarrow.parquet as pq

    tokenizer = _Tokenizer()
    while True:
        for path in _text_files():
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                texts = file.read_row_group(group).column("text").to_pylist()
                for at in range(0, len(texts), _TOKENIZED_AT_ONCE):
                    yield tokenizer.encode(texts[at : at + _TOKENIZED_AT_ONCE], prepend=_BOS, num_threads=4)


def _example(folder: str) -> Any:
    """The loader of the example, beside what it imports of nanochat."""
    names = {"get_base_dir": lambda: folder, "get_dist_info": lambda: (False, 0, 0, 1)}
    names["list_parquet_files"] = lambda: [*_text_files(), "the last one is for validation"]
    for name in ("nanochat", "nanochat.common", "nanochat.dataset"):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "integrations"))
    import nanochat_loader  # type: ignore[import-not-found, unused-ignore]

    return nanochat_loader


def _penstock(is_text: bool) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            example, tokenizer = _example(folder), _Tokenizer() if is_text else None
            if not is_text:
                pieces = [
                    np.concatenate(([_BOS], each[at : at + _LENGTH]))
                    for each in _documents()
                    for at in range(0, len(each), _LENGTH)
                ]
                tokens, ends = np.concatenate(pieces).astype(np.uint16), np.cumsum([0, *map(len, pieces)])
                example.tokenized = lambda *_: (tokens, ends)
            _text_files()
            began_s = time.perf_counter()
            make = example.tokenizing_distributed_data_loader_with_state_bos_bestfit
            batches = make(tokenizer, _BATCH_SIZE, _LENGTH, "train", device="cpu")
            next(batches)
            first_s = time.perf_counter() - began_s
            numbers = _timed(batches, options)
            batches.close()
        return numbers | {"lost %": 0.0, "first s": first_s}

    return measure


_CASES = {
    "packer_penstock": _penstock(is_text=False),
    "packer_nanochat": _nanochat(_tokenized_groups),
    "text_penstock": _penstock(is_text=True),
    "text_nanochat": _nanochat(_text_groups),
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("packer: rows/s / nanochat's", ratio("packer_penstock", ["packer_nanochat"], "rows/s"), at_least=10.0),
        Target("packer: rows/CPU s / nanochat's", ratio("packer_penstock", ["packer_nanochat"], "rows/CPU s")),
        Target("text, after the first pass: rows/s / nanochat's", ratio("text_penstock", ["text_nanochat"], "rows/s")),
        Target("packer: % of places that are empty", value("packer_penstock", "empty %"), at_most=0.1),
    ]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(__file__, _CASES, _targets)
