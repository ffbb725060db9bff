"""Are ten everyday jobs, of which none is made to suit us, faster than what people use for them?

Questions, each with batches that are shuffled anew in each epoch:

- `hdf5`: frames (3, 50, 50) float32 and their numbers, 20,000 in an HDF5 file, a chunk a frame; batches of 32.
- `series`: 500,000 windows of 100 steps of a series in memory, 16 float32 each, and the value to predict; 256.
- `sentences`: a list of 100,000 arrays of 8 to 511 int32, padded to the longest of their batch; 64.
- `cuts`: the same, of an object of the user's that cuts them out of one array.
- `table`: 1,000,000 rows of 10 float32 columns and a label in a Parquet file, row groups of 50,000; 256.
- `tar`: 20,000 small images as `.npy`, (32, 32, 3) uint8, and their classes, in 8 tar files; a Python function parses
  them; 64.
- `jsonl` and `csv`: 200,000 lines of a number, a sentence of some 90 characters, a float and a label; 256. The text
  counts as its length.
- `nulls`: the table with a tenth of each column null, filled with 0.
- `pack`: the sentences, put into rows of 2,048 one after the other, with the number of the sentence beside each word;
  16. In order, as the loop does it.

Method: `python benchmarks/everyday.py`. Fresh processes in turn; a consumer that sums every byte; endless epochs, of
which the first second is not counted, then 3 s; files are in the page cache. penstock chooses how to run by itself.

`*_torch` is a DataLoader over a map-style dataset with default collation (`pad_sequence` for sentences), without
workers, `*_torch_2` with two persistent ones; `*_batches` gets the indices of a batch at a time, by `__getitems__`.
`series_keras` is Keras's `timeseries_dataset_from_array`. `sentences_tf` is `from_tensor_slices` of a ragged tensor,
`shuffle(10_000)`, `padded_batch`, `prefetch`. `table_arrow` is no library, but 100,000 rows at a time by pyarrow's
`iter_batches`, mixed within and cut by NumPy; `table_hf` a `datasets.Dataset`, which copies the file into an Arrow file
first and maps that, and is asked for the rows of a batch; `table_hf_stream` its streaming form with
`shuffle(buffer_size=100_000)`; `table_penstock` is shuffled over the whole, `table_penstock_window` by
`shuffle(window=100_000)`. `tar_webdataset` shuffles shards and a buffer of 1,000, `_2` on two workers of its loader.

`jsonl_hf` and `csv_hf` are a `datasets.Dataset` of the file, asked for the rows of a batch, `*_hf_numpy` the same with
`with_format("numpy")`; `*_hf_torch` is a DataLoader over it, which asks for batches too (`__getitems__`), and
`*_hf_columns_torch` one that hands on the columns of a batch as they are. `pack_loop` fills each row by a Python
loop over sentences that copies parts of them with NumPy, `pack_lists` by one over lists of numbers, as tokenizers
return them; `pack_penstock_stream` is not told the lengths.

`cuts_penstock_inline` makes batches where they are asked for, as `torch` does.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, TensorFlow 2.21, torch
2.13, datasets 5.2, pyarrow 26, h5py 3.14, webdataset 1.0, 2026-11-23.

Result of three rounds, medians and their spread, samples/s; series are of three rounds some minutes later, sentences
and cuts of five rounds some hours later, in an unsteadier time (with ten rounds of `sentences_penstock` and
`sentences_torch` alone after it: 229,800, 164,800 to 264,700, and 271,700, 210,600 to 288,500):

    hdf5_penstock          13,450 (3,922 to 13,507)    sentences_penstock         174,300 (156,100 to 235,900)
    hdf5_torch              3,954 (3,834 to 4,426)     sentences_torch            237,900 (228,200 to 254,100)
    hdf5_torch_2            5,405 (4,426 to 5,555)     sentences_torch_2           45,800 (39,100 to 54,000)
    hdf5_torch_batches      2,539 (2,517 to 2,550)     sentences_tf                34,100 (25,600 to 39,900)
    hdf5_torch_2_batches    3,707 (3,704 to 4,002)     cuts_penstock              114,700 (107,500 to 131,700)
                                                       cuts_penstock_inline       191,400 (174,600 to 219,600)
                                                       cuts_torch                 197,800 (171,000 to 218,400)

    series_penstock       692,900 (565,400 to 721,600) table_penstock             261,300 (255,800 to 275,200)
    series_keras           10,200 (9,900 to 12,200)    table_penstock_window      606,800 (563,300 to 651,400)
    series_torch          185,500 (177,700 to 217,300) table_hf                    29,000 (28,800 to 30,000)
    series_torch_batches  453,900 (256,000 to 528,000) table_hf_stream             90,000 (84,900 to 90,500)
                                                       table_arrow              5,295,000 (4,690,000 to 5,628,000)
    tar_penstock           26,600 (25,700 to 28,200)
    tar_webdataset          8,500 (8,200 to 8,700)
    tar_webdataset_2       10,300 (7,600 to 11,700)

Beside the best of the others: HDF5 2.5 (0.71, in a round in which the machine stood still, to 3.04), series 1.59 (1.31
to 2.21), sentences 0.73 (0.67 to 1.03; in the ten rounds 0.90, 0.60 to 1.03), cuts 0.58 (0.51 to 0.71), inline 1.01
(0.88 to 1.11), the table 3.06 (2.83 to 3.08), in windows 6.7 (6.6 to 7.2), tar 2.5 (2.4 to 3.1). Where we lose: an
object of the user's that is in memory already is read by the thread that waits for it in less time than by two that
hold the GIL in turn; what that hides from a model is not shown here. And a NumPy loop over 100,000 rows at a time is
8.6 times as fast as our windows, for it cuts 256 rows of eleven columns in 48 us.

On 2026-11-24, two cores of an Intel Xeon at 2.8 GHz, four rounds: sentences_penstock 100,900 (99,200 to 102,900),
sentences_torch 132,700 (100,700 to 171,400), which is 0.80 of it (0.58 to 1.02; wanted 1.2). `inline` is as fast as the
DataLoader; the rest is the way from the thread that holds the GIL to the consumer that wants it.

On 2026-11-25, AMD EPYC, with vectors that are padded in one native call, three rounds: sentences_penstock 142,600
(135,400 to 165,900), sentences_torch 156,000 (143,700 to 157,400), which is 0.99 of it (0.86 to 1.06; wanted 1.2). In
three rounds in turn with the tree before, 1.08, 1.16 and 1.33 times that.

On 2026-11-25, AMD EPYC in an unsteady time, three rounds, samples/s: nulls_penstock 148,100 (111,100 to 201,200),
nulls_without 146,000 (119,000 to 195,700), which is 0.93 of without (0.76 to 1.38; wanted 0.9). Some hours later:

    pack_penstock          18,600 (17,400 to 20,400)   pack_loop              33,100 (27,100 to 36,700)
    pack_penstock_stream    2,700 (2,000 to 2,800)     pack_lists              4,000 (3,500 to 4,100)

Packed rows are 0.56 of the loop (0.56 to 0.64; wanted 5) and 4.7 times that over lists; as a stream 0.67 of that over
lists. `pack_loop` copies with NumPy and has no reader, check or hand-over. A stream reads one sentence at a time, which
costs some 25 us each.

On 2026-11-26, a faster AMD EPYC, quiet, three rounds, samples/s: JSON Lines 526,912 (514,123 to 527,849), Hugging Face
254,567, a DataLoader over it 212,981; CSV 558,087 (547,307 to 574,696), 257,267 and 215,515. Text is converted once
(design/0034), as the others do: 2.07 (1.98 to 2.12) and 2.17 (2.11 to 2.24) times the best of the others; wanted 1.5.

On 2026-11-29, AMD EPYC, quiet, one round, elements/s: JSON Lines 475,900, Hugging Face 210,000, a DataLoader over it
175,200; CSV 368,300, 209,300, 164,100; the table 1,626,000, in windows 3,248,000, Hugging Face 30,200, pyarrow and
NumPy 5,371,000; pack_penstock 41,600, pack_penstock_stream 6,240, pack_loop 64,200, pack_lists 7,330.

Not shown: the same with a decoder or a model beside it, which costs every contender the same; files that are not in
the page cache; remote files.
"""

import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, run, time_steady

_FRAME_COUNT, _FRAME_SHAPE = 20_000, (3, 50, 50)
_WINDOW_COUNT, _WINDOW = 500_000, 100
_SENTENCE_COUNT, _LONGEST = 100_000, 512
_ROW_COUNT, _COLUMN_COUNT, _GROUP_COUNT = 1_000_000, 10, 50_000
_SHARD_COUNT, _SHARD_SIZE = 8, 2_500
_LINE_COUNT, _PACKED = 200_000, 2_048

Batches = Iterator[Sequence[Array]]
Contender = Callable[[], Batches]


def _made(name: str, make: Callable[[Path], object]) -> Path:
    """The path of a file or folder, made once."""
    path = bench_dir() / name
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.part")
        make(unfinished)
        unfinished.rename(path)
    return path


def _forever(epoch: Callable[[], Iterable[Sequence[Array]]]) -> Batches:
    return itertools.chain.from_iterable(epoch() for _ in itertools.count())


def _penstock(dataset: Any, executor: Any = "auto") -> Batches:
    batches: Batches = iter(dataset.repeat().loader(executor))
    return batches


def _torch(dataset: Any, batch_size: int, workers: int, collate: Any = None) -> Batches:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
    )
    return _forever(lambda: ([leaf.numpy() for leaf in batch] for batch in loader))


def _tensors(arrays: Sequence[Array]) -> list[Any]:
    import torch

    return [torch.from_numpy(array) for array in arrays]


# HDF5


def _hdf5_file() -> Path:
    def make(path: Path) -> None:
        import h5py

        rng = np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            x = file.create_dataset("x", (_FRAME_COUNT, *_FRAME_SHAPE), "f4", chunks=(1, *_FRAME_SHAPE))
            for start in range(0, _FRAME_COUNT, 1000):
                x[start : start + 1000] = rng.random((1000, *_FRAME_SHAPE), "f4")
            file["y"] = np.arange(_FRAME_COUNT)

    return _made("frames.h5", make)


class _Frames:
    """A map-style dataset that opens its file where it is read, as many an answer has it."""

    def __init__(self) -> None:
        self._file: Any = None

    @property
    def file(self) -> Any:
        import h5py

        self._file = self._file or h5py.File(_hdf5_file())
        return self._file

    def __len__(self) -> int:
        return _FRAME_COUNT

    def __getitem__(self, index: int) -> tuple[Array, Any]:
        return self.file["x"][index], self.file["y"][index]


class _FramesByBatch(_Frames):
    def __getitems__(self, indices: list[int]) -> tuple[Array, Array]:
        order = np.sort(indices)  # h5py reads increasing indices alone
        return self.file["x"][order], self.file["y"][order]


def hdf5_penstock() -> Batches:
    import h5py

    import penstock as ps

    file = h5py.File(_hdf5_file())
    return _penstock(ps.from_arrays((file["x"], file["y"])).shuffle(seed=1).batch(32))


def hdf5_torch(workers: int) -> Contender:
    return lambda: _torch(_Frames(), 32, workers)


def hdf5_torch_batches(workers: int) -> Contender:
    return lambda: _torch(_FramesByBatch(), 32, workers, _tensors)


# Windows of a series


def _series() -> tuple[Array, Array]:
    series = np.random.default_rng(0).random((_WINDOW_COUNT + 2 * _WINDOW - 1, 16), "f4")
    return series[:-_WINDOW], series[_WINDOW:, 0].copy()


class _Windows:
    def __init__(self) -> None:
        import torch

        self.x, self.y = map(torch.from_numpy, _series())

    def __len__(self) -> int:
        return len(self.x) - _WINDOW + 1

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index : index + _WINDOW], self.y[index]


class _WindowsByBatch(_Windows):
    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        import torch

        starts = torch.as_tensor(indices)
        return self.x[starts[:, None] + torch.arange(_WINDOW)], self.y[starts]


def series_penstock() -> Batches:
    import penstock as ps

    x, y = _series()
    dataset = ps.timeseries_dataset_from_array(x, y, _WINDOW, batch_size=256, shuffle=True, seed=1)
    return _penstock(dataset)


def series_keras() -> Batches:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    x, y = _series()
    dataset = keras.utils.timeseries_dataset_from_array(x, y, _WINDOW, batch_size=256, shuffle=True, seed=1)
    batches: Batches = dataset.repeat().as_numpy_iterator()
    return batches


def series_torch() -> Batches:
    return _torch(_Windows(), 256, 0)


def series_torch_batches() -> Batches:
    return _torch(_WindowsByBatch(), 256, 0, lambda batch: batch)


# Sentences


class _Cuts:
    """Sentences that lie in one array, and are cut out when they are asked for."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.bounds = np.concatenate([[0], np.cumsum(rng.integers(8, _LONGEST, _SENTENCE_COUNT))])
        self.words = rng.integers(0, 30_000, self.bounds[-1]).astype(np.int32)

    def __len__(self) -> int:
        return _SENTENCE_COUNT

    def __getitem__(self, index: int) -> Array:
        return self.words[self.bounds[index] : self.bounds[index + 1]]


def _sentences() -> list[Array]:
    cuts = _Cuts()
    return [cuts[number].copy() for number in range(_SENTENCE_COUNT)]


def sentences_penstock(make: Callable[[], Any], executor: Any = "auto") -> Contender:
    def batches() -> Batches:
        import penstock as ps

        sentences = ps.from_source(make(), element_spec=ps.ArraySpec((None,), "int32"))
        return ((batch,) for batch in _penstock(sentences.shuffle(seed=1).padded_batch(64), executor))

    return batches


def sentences_torch(make: Callable[[], Any], workers: int) -> Contender:
    def batches() -> Batches:
        import torch

        def padded(members: Sequence[Array]) -> list[Any]:
            return [torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, members)), batch_first=True)]

        return _torch(make(), 64, workers, padded)

    return batches


def sentences_tf() -> Batches:
    import tensorflow as tf

    sentences = _Cuts()
    ragged = tf.RaggedTensor.from_row_splits(sentences.words, sentences.bounds)
    dataset = tf.data.Dataset.from_tensor_slices(ragged).shuffle(10_000).map(lambda row: row)  # no longer ragged
    dataset = dataset.repeat().padded_batch(64).prefetch(tf.data.AUTOTUNE)
    return ((batch,) for batch in dataset.as_numpy_iterator())


# A table


def _parquet_file() -> Path:
    def make(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rng = np.random.default_rng(0)
        columns = {f"c{number}": rng.random(_ROW_COUNT, "f4") for number in range(_COLUMN_COUNT)}
        pq.write_table(pa.table({**columns, "y": np.arange(_ROW_COUNT) % 10}), path, row_group_size=_GROUP_COUNT)

    return _made("table.parquet", make)


def _parquet_file_with_nulls() -> Path:
    def make(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rng = np.random.default_rng(1)
        table = pq.read_table(_parquet_file())
        columns = {
            name: pa.array(table[name].to_numpy(), mask=rng.random(_ROW_COUNT) < 0.1) for name in table.column_names
        }
        pq.write_table(pa.table(columns), path, row_group_size=_GROUP_COUNT)

    return _made("nulls.parquet", make)


def nulls_penstock() -> Batches:
    import penstock as ps

    dataset = ps.from_parquet(_parquet_file_with_nulls(), fill_null=0).shuffle(seed=1)
    return (list(batch.values()) for batch in _penstock(dataset.batch(256)))  # type: ignore[attr-defined]


def table_penstock(**options: int) -> Contender:
    def batches() -> Batches:
        import penstock as ps

        dataset = ps.from_parquet(_parquet_file()).shuffle(seed=1, **options)
        return (list(batch.values()) for batch in _penstock(dataset.batch(256)))  # type: ignore[attr-defined]

    return batches


def table_arrow() -> Batches:
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)

    def epoch() -> Batches:
        for rows in pq.ParquetFile(_parquet_file()).iter_batches(100_000):
            columns = [column.to_numpy() for column in rows.columns]
            order = rng.permutation(len(rows))
            for start in range(0, len(order), 256):
                yield [column[order[start : start + 256]] for column in columns]

    return _forever(epoch)


def _hf(*, streaming: bool) -> Any:
    import datasets

    datasets.disable_progress_bars()
    folder = str(bench_dir() / "hugging face")
    return datasets.load_dataset(
        "parquet", data_files=str(_parquet_file()), cache_dir=folder, split="train", streaming=streaming
    ).with_format("numpy")


def table_hf() -> Batches:
    dataset, rng = _hf(streaming=False), np.random.default_rng(1)

    def epoch() -> Batches:
        order = rng.permutation(len(dataset))
        for start in range(0, len(order), 256):
            yield list(dataset[order[start : start + 256]].values())

    return _forever(epoch)


def table_hf_stream() -> Batches:
    dataset = _hf(streaming=True).shuffle(seed=1, buffer_size=100_000).batch(256)
    return _forever(lambda: (list(batch.values()) for batch in dataset))


# Tar files


def _shards() -> list[str]:
    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        path.mkdir(exist_ok=True)
        for shard in range(_SHARD_COUNT):
            with tarfile.open(path / f"{shard:04d}.tar", "w") as file:
                for number in range(_SHARD_SIZE):
                    image = io.BytesIO()
                    np.save(image, rng.integers(0, 256, (32, 32, 3), np.uint8))
                    for suffix, content in (("npy", image.getvalue()), ("cls", str(number % 10).encode())):
                        member = tarfile.TarInfo(f"{shard:02d}{number:06d}.{suffix}")
                        member.size = len(content)
                        file.addfile(member, io.BytesIO(content))

    return sorted(map(str, _made("small-images", make).glob("*.tar")))


def tar_penstock() -> Batches:
    import penstock as ps

    def parsed(sample: dict[str, Any]) -> tuple[Array, int]:
        return np.load(io.BytesIO(sample["npy"].data)), int(sample["cls"].tobytes())

    return _penstock(ps.from_tar(_shards()).shuffle(seed=1).map(parsed).batch(64))


def tar_webdataset(workers: int) -> Contender:
    def batches() -> Batches:
        import webdataset as wds  # type: ignore[import-untyped, unused-ignore]

        dataset = wds.WebDataset(_shards(), shardshuffle=_SHARD_COUNT, resampled=True).shuffle(1000)
        dataset = dataset.decode().to_tuple("npy", "cls").batched(64)
        loader = wds.WebLoader(dataset, num_workers=workers, batch_size=None) if workers else dataset
        return ([np.asarray(leaf) for leaf in batch] for batch in loader)

    return batches


# Lines of text


def _text_file(kind: str) -> Path:
    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        words = [f"word{number}" for number in range(1000)]
        with open(path, "w") as file:
            if kind == "csv":
                file.write("id,text,score,label\n")
            for number in range(_LINE_COUNT):
                text = " ".join(words[word] for word in rng.integers(0, 1000, rng.integers(4, 20)))
                score, label = round(float(rng.random()), 6), int(rng.integers(10))
                row = {"id": number, "text": text, "score": score, "label": label}
                file.write(f"{json.dumps(row)}\n" if kind == "jsonl" else f"{number},{text},{score},{label}\n")

    return _made(f"lines.{kind}", make)


def _text_leaves(columns: dict[str, Any]) -> list[Array]:
    return [
        np.fromiter(map(len, column), np.int64) if name == "text" else np.asarray(column)
        for name, column in columns.items()
    ]


def text_penstock(kind: str) -> Contender:
    def batches() -> Batches:
        import penstock as ps

        read: Any = ps.from_jsonl if kind == "jsonl" else ps.from_csv
        dataset = read(_text_file(kind)).shuffle(seed=1).batch(256)
        return map(_text_leaves, _penstock(dataset))  # type: ignore[arg-type]

    return batches


def _hf_text(kind: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    files, folder = str(_text_file(kind)), str(bench_dir() / "hugging face")
    return datasets.load_dataset(kind.replace("jsonl", "json"), data_files=files, cache_dir=folder, split="train")


def text_hf(kind: str, form: str | None = None) -> Contender:
    def batches() -> Batches:
        dataset, rng = _hf_text(kind).with_format(form), np.random.default_rng(1)

        def epoch() -> Batches:
            order = rng.permutation(len(dataset))
            for start in range(0, len(order), 256):
                yield _text_leaves(dataset[order[start : start + 256]])

        return _forever(epoch)

    return batches


def text_hf_torch(kind: str, workers: int) -> Contender:
    def batches() -> Batches:
        from torch.utils.data import DataLoader

        loader = DataLoader(_hf_text(kind), 256, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        return _forever(lambda: map(_text_leaves, loader))

    return batches


def text_hf_columns_torch(kind: str, workers: int) -> Contender:
    """The DataLoader hands on the columns of a batch, which it would otherwise take apart and collate again."""

    def batches() -> Batches:
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            _Columns(_hf_text(kind).with_format("numpy")),  # type: ignore[arg-type]  # it has what is called
            256,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_as_they_are,
        )
        return _forever(lambda: map(_text_leaves, loader))

    return batches


class _Columns:
    """A dataset that gives the columns of a batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: list[int]) -> Any:
        return self._dataset[indices]


def _as_they_are(batch: Any) -> Any:
    return batch


# Packed sentences


def pack_penstock(*, with_lengths: bool) -> Contender:
    def batches() -> Batches:
        import penstock as ps

        sentences = _sentences()
        lengths = list(map(len, sentences)) if with_lengths else None
        dataset = ps.from_source(sentences, element_spec=ps.ArraySpec((None,), "int32"))
        return _penstock(dataset.pack(_PACKED, lengths=lengths, drop_remainder=True).batch(16))

    return batches


def _batches_of_16(rows: Callable[[], Iterator[Any]], stack: Callable[[Any], Array]) -> Batches:
    def epoch() -> Batches:
        of_epoch = rows()
        while batch := list(itertools.islice(of_epoch, 16)):
            yield [stack(leaf) for leaf in zip(*batch, strict=True)]

    return _forever(epoch)


def pack_loop() -> Batches:
    sentences = _sentences()

    def rows() -> Iterator[tuple[Array, Array]]:
        row, segments, filled, number = np.zeros(_PACKED, np.int32), np.zeros(_PACKED, np.int32), 0, 0
        for sentence in sentences:
            number, start = number + 1, 0
            while start < len(sentence):
                count = min(len(sentence) - start, _PACKED - filled)
                row[filled : filled + count] = sentence[start : start + count]
                segments[filled : filled + count] = number
                filled, start = filled + count, start + count
                if filled == _PACKED:
                    yield row, segments
                    row, segments, filled = np.zeros_like(row), np.zeros_like(row), 0
                    number = int(start < len(sentence))

    return _batches_of_16(rows, np.stack)


def pack_lists() -> Batches:
    sentences = [sentence.tolist() for sentence in _sentences()]

    def rows() -> Iterator[tuple[list[int], list[int]]]:
        words: list[int] = []
        numbers: list[int] = []
        for number, sentence in enumerate(sentences, 1):
            words += sentence
            numbers += [number] * len(sentence)
            while len(words) >= _PACKED:
                first = numbers[0] - 1
                yield words[:_PACKED], [number - first for number in numbers[:_PACKED]]
                del words[:_PACKED], numbers[:_PACKED]

    return _batches_of_16(rows, lambda leaf: np.array(leaf, np.int32))


_JOBS: dict[str, dict[str, Contender]] = {
    "hdf5": {
        "penstock": hdf5_penstock,
        "torch": hdf5_torch(0),
        "torch_2": hdf5_torch(2),
        "torch_batches": hdf5_torch_batches(0),
        "torch_2_batches": hdf5_torch_batches(2),
    },
    "series": {
        "penstock": series_penstock,
        "keras": series_keras,
        "torch": series_torch,
        "torch_batches": series_torch_batches,
    },
    "sentences": {
        "penstock": sentences_penstock(_sentences),
        "torch": sentences_torch(_sentences, 0),
        "torch_2": sentences_torch(_sentences, 2),
        "tf": sentences_tf,
    },
    "cuts": {
        "penstock": sentences_penstock(_Cuts),
        "penstock_inline": sentences_penstock(_Cuts, "inline"),
        "torch": sentences_torch(_Cuts, 0),
    },
    "table": {
        "penstock": table_penstock(),
        "penstock_window": table_penstock(window=100_000),
        "arrow": table_arrow,
        "hf": table_hf,
        "hf_stream": table_hf_stream,
    },
    "tar": {
        "penstock": tar_penstock,
        "webdataset": tar_webdataset(0),
        "webdataset_2": tar_webdataset(2),
    },
    **{
        kind: {
            "penstock": text_penstock(kind),
            "hf": text_hf(kind),
            "hf_numpy": text_hf(kind, "numpy"),
            "hf_torch": text_hf_torch(kind, 0),
            "hf_torch_2": text_hf_torch(kind, 2),
            "hf_columns_torch": text_hf_columns_torch(kind, 0),
            "hf_columns_torch_2": text_hf_columns_torch(kind, 2),
        }
        for kind in ("jsonl", "csv")
    },
    "nulls": {"penstock": nulls_penstock, "without": table_penstock()},
    "pack": {
        "penstock": pack_penstock(with_lengths=True),
        "penstock_stream": pack_penstock(with_lengths=False),
        "loop": pack_loop,
        "lists": pack_lists,
    },
}


def _case(contender: Contender) -> Callable[[Options], Numbers]:
    return lambda options: time_steady(contender(), options)


_CASES = {
    f"{job}_{name}": _case(contender) for job, contenders in _JOBS.items() for name, contender in contenders.items()
}


def _others(job: str) -> list[str]:
    ours = ("penstock", "penstock_inline", "penstock_stream", "penstock_window", "arrow")
    return [f"{job}_{name}" for name in _JOBS[job] if name not in ours]


_WANTED = dict.fromkeys(_JOBS, 1.0) | {"jsonl": 1.5, "csv": 1.5, "nulls": 0.9, "pack": 5.0}
"""Of each job: our speed by that of the best of the others."""


def _targets(options: Options) -> list[Target]:
    return [
        *(
            Target(f"{job}: penstock / the best of the others", ratio(f"{job}_penstock", _others(job)), at_least=wanted)
            for job, wanted in _WANTED.items()
        ),
        Target("cuts: inline / the best of the others", ratio("cuts_penstock_inline", _others("cuts"))),
        Target("table: in windows / the best of the others", ratio("table_penstock_window", _others("table"))),
        Target("table: in windows / pyarrow and NumPy", ratio("table_penstock_window", ["table_arrow"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
