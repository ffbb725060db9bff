"""MosaicML Streaming's MDS: shards of samples, and `index.json`, which describes them.

A shard has, in little-endian numbers of 4 bytes: the number of samples, the first byte of each and the end of the last;
then a description, which is not used, and the samples. A sample has the sizes of its columns that have no fixed one,
and then their values. A compressed shard is one compressed file.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.files import _openfile, _recordindex
from penstock.files._diskcache import DiskCache
from penstock.files._kept import Arrays
from penstock.files._openfile import File, bounds_of, placed
from penstock.files._recordindex import Compression, RecordFiles, RecordFilesReader, RecordPlaces
from penstock.files._store import StorageOptions
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode
from penstock.records._mdsindex import Described, Form, MdsColumn, shards_of, text_of

_INDEX: Final = "index.json"
_CODECS: Final[dict[str, Any]] = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}
"""Compressions by the names that Streaming has for them."""
Path = str | os.PathLike[str]


def from_mds(
    paths: Path | Iterable[Path],
    *,
    columns: Sequence[str] | None = None,
    cache_dir: Path | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the samples of MosaicML Streaming's folders (MDS), by random access. Streaming is not needed.

    An element is a dict of the columns:

    - `int` and the dtypes of numbers (`uint8` to `float64`): scalars of this dtype, of `int` int64
    - `ndarray`: arrays. Where their columns name a dtype and a shape, all have these. Else the first sample says the
      dtype and the number of axes, and each axis may have any size.
    - `str`: text. `json`, `str_int`, `str_float`, `str_decimal`: the text as it is stored; `json.loads` it in `map`.
    - `bytes`, `jpeg`, `png`, `pil`: the bytes as they are stored, uint8 of shape `(None,)`. `penstock.image.decode`
      takes those of a JPEG or PNG. `pil` has the width, the height and the length of the mode (uint32 each), the mode,
      and the pixels. `jpegarray` and `jpeg_array` have the number of images, the size of each (uint32), and the JPEGs;
      `list[jpeg]`, `list[png]` and `list[pil]` the same behind four bytes of zero.

    Reads each `index.json`. The table of each shard is read when an element is first needed. A compressed shard is
    decompressed once beside it, as by `from_tfrecord`, all of them when an element is first needed: a folder that
    Streaming has decompressed is read as it is; zstd and brotli need `pyarrow` (extra `mds`). Hashes are not compared.

    Random access: yes. Order: that of the given paths, and of the shards in each index.
    Memory: 8 bytes a sample in each process; 2 MiB and the largest sample for each worker.

    Args:
        paths: A folder with `index.json`, such as `"data/train"`, a URL of one (`"s3://bucket/train"`), a pattern, or a
            list of these.
        columns: The columns to read, in this order; None for all.
        cache_dir: The folder for decompressed shards, instead of beside the files.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        SourceError: A file is missing, is no such index, or names files outside its folder. Or a column is a pickle
            (`pkl`), which would run code; leave it out by `columns`. While reading: a shard differs from its index, or
            a sample is damaged. The message has the file.
        ArgumentError: A name is no column.

    Example:
        >>> import json, pathlib
        >>> pathlib.Path("train").mkdir()
        >>> samples = [np.int64(number).tobytes() + word for number, word in ((7, b"one"), (8, b"seven"))]
        >>> samples = [np.uint32(len(each) - 8).tobytes() + each for each in samples]
        >>> ends = np.cumsum([16, *map(len, samples)]).astype("u4")  # behind the number of samples and this table
        >>> shard = np.uint32(2).tobytes() + ends.tobytes() + b"".join(samples)
        >>> nbytes = pathlib.Path("train/shard.00000.mds").write_bytes(shard)
        >>> columns = {"column_names": ["n", "word"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}
        >>> raw = {"basename": "shard.00000.mds", "bytes": nbytes, "hashes": {}}
        >>> about = {"format": "mds", "version": 2, "samples": 2, "raw_data": raw, "zip_data": None}
        >>> index = {"version": 2, "shards": [about | columns]}
        >>> _ = pathlib.Path("train/index.json").write_text(json.dumps(index))
        >>> penstock.from_mds("train")[1]
        {'n': np.int64(8), 'word': 'seven'}
    """
    verb = "from_mds"
    if cache_dir is not None:
        _recordindex.require_local(f"{verb}(cache_dir)", cache_dir)
        cache_dir = os.path.abspath(cache_dir)
    if isinstance(columns, str) or not isinstance(columns, Sequence | None):
        raise ArgumentTypeError(f"{verb}(columns=) is a list of names, got {type_of(columns)}.")
    options, cache = StorageOptions.of(verb, storage_options), DiskCache.of(verb, cache)
    indexes = _openfile.find(verb, [_index_of(each) for each in _openfile.asked(verb, paths)], storage_options)
    pairs = [(index, shard) for index in indexes for shard in shards_of(index)]
    if not pairs:
        raise SourceError(f"{indexes[0].url} has no shards. Its writing failed, or was not finished: write it again.")
    first, there = pairs[0][0], pairs[0][1].columns
    for index, shard in pairs:
        if shard.columns != there:
            raise SourceError(
                f"{index.url}: {shard.name} has the columns {text_of(shard.columns)}, and the first shard of "
                f"{first.url} has {text_of(there)}. Make a dataset of each, map() them to one form, and "
                "concatenate([...]) them."
            )
    wanted = _chosen(first.url, there, columns)
    urls, codecs = zip(*(_file_of(index, shard) for index, shard in pairs), strict=True)
    files = _openfile.known(urls, options, cache, f" {_INDEX} names it. Copy the folder again.")
    counts = tuple(shard.samples for _, shard in pairs)
    return Dataset(SourceNode(MdsSource(files, counts, codecs, there, wanted, cache_dir), verb))


def _index_of(path: str) -> str:
    return path if path.endswith(".json") else f"{path.rstrip('/')}/{_INDEX}"


def _chosen(url: str, there: Sequence[MdsColumn], names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of the columns to read.

    Raises:
        ArgumentError: There is no such column, or one comes twice.
        SourceError: A column cannot be read.
    """
    forms = {column.name: column.form for column in there}
    wanted = tuple(forms if names is None else names)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ArgumentError(f"from_mds(columns={list(wanted)}): at least one, and each once.")
    if unknown := [name for name in wanted if name not in forms]:
        raise ArgumentError(f"from_mds(columns=): {url} has no column {unknown[0]!r}; it has {list(forms)}.")
    if strange := [column for column in there if column.name in wanted and column.form is None]:
        others = [name for name, form in forms.items() if form is not None]
        raise SourceError(
            f"{url}: the column {strange[0].name!r} has the encoding {strange[0].encoding!r:.80}, which is not read; a "
            f"pickle (pkl) runs whatever code it contains. Leave it out: columns={others}. Or read it once with "
            "Streaming, and write it again as bytes, str, json, a number or ndarray."
        )
    return wanted


def _file_of(index: File, shard: Described) -> tuple[str, Compression | None]:
    """Returns the path of a shard and its compression. Of a folder here, what is decompressed comes first.

    Raises:
        SourceError: It is compressed in a way that is not read.
    """
    folder = index.url.rpartition("/")[0]
    raw = f"{folder}/{shard.name}"
    if shard.zipped is None or (index.is_local and os.path.exists(raw)):
        return raw, None
    if shard.compression not in _CODECS:
        raise SourceError(
            f"{index.url}: {shard.zipped} is compressed by {shard.compression!r:.40}, which is not read, but "
            f"{', '.join(_CODECS)} are. Write it again with compression='zstd', or let Streaming decompress it."
        )
    return f"{folder}/{shard.zipped}", _CODECS[shard.compression]


@final
@dataclass(frozen=True)
class MdsSource(RecordFiles):
    """The samples of shards, one shard after the other."""

    files: tuple[File, ...]
    counts: tuple[int, ...]
    """The samples of each file, as the index says."""
    codecs: tuple[Compression | None, ...]
    columns: tuple[MdsColumn, ...]
    wanted: tuple[str, ...]
    """The columns of an element."""
    cache_dir: str | None

    compression = None
    index_kind = ""

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        return bounds_of(self.counts)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """What the values of the columns of an element are."""
        forms = {column.name: column.form for column in self.columns}
        return tuple(form for name in self.wanted if (form := forms[name]) is not None)

    @cached_property
    def element_spec(self) -> Tree:
        """Where columns do not say it, arrays have the dtype and the axes of the first sample.

        Raises:
            SourceError: There are no samples, or the first one is damaged.
        """
        specs = [form.spec for form in self.forms]
        if None in specs:
            values = self.values(self._first(), 0)
            known = zip(specs, values, strict=True)
            specs = [ArraySpec((None,) * value.ndim, value.dtype) if spec is None else spec for spec, value in known]
        return dict(zip(self.wanted, specs, strict=True))

    def _first(self) -> memoryview:
        """Reads the first sample."""
        if not len(self):
            raise SourceError(f"There are no samples in {self}, so nothing says which axes its arrays have.")
        (number,), (offset,), (size,) = (each.tolist() for each in self.index.ranges(np.zeros(1, np.int64)))
        place = memoryview(bytearray(size))
        return place[: self.index.files[number].open().read_into(offset, place)]

    def compression_of(self, file: File) -> Compression | None:
        return self._codec_of[file]

    @cached_property
    def _codec_of(self) -> dict[File, Compression | None]:
        return dict(zip(self.files, self.codecs, strict=True))

    def make_index(self) -> RecordPlaces:
        """The places of the samples.

        Raises:
            SourceError: A shard has another number of samples than the index says.
        """
        found = super().make_index()
        for file, said, offsets in zip(self.files, self.counts, found.found, strict=True):
            if (count := len(offsets["offsets"]) - 1) != said:
                raise SourceError(
                    f"{file.url} says that it has {count:,} samples, and its index says {said:,}. One of both is "
                    "damaged or of another dataset: copy the folder again."
                )
        return found

    def find_records(self, content: File) -> Arrays:
        """Reads the table of a shard.

        Raises:
            SourceError: Its samples do not follow one another up to its end.
        """
        count = int.from_bytes(content.head(4), "little")
        table_nbytes = 4 * (count + 2)
        table = content.head(table_nbytes)
        is_whole = len(table) == table_nbytes
        offsets = np.frombuffer(table, "<u4")[1:].astype(np.int64) if is_whole else np.zeros(1, np.int64)
        if (np.diff(offsets, prepend=table_nbytes) < 0).any() or offsets[-1] != content.nbytes:
            raise SourceError(
                f"{content.url} is damaged or cut off: its {count:,} samples do not lie one after the other between "
                f"their table and its end at byte {content.nbytes:,}. Copy or write it again."
            )
        return {"offsets": offsets}

    def describe(self, index: int) -> str:
        number, sample = placed(self.bounds, index)
        return f"{self.files[number]} sample {sample}"

    @cached_property
    def _size_count(self) -> int:
        """The sizes that a sample begins with."""
        return sum(column.nbytes is None for column in self.columns)

    def values(self, sample: memoryview, index: int) -> list[Any]:
        """Returns the values of a sample, in memory of their own.

        Raises:
            SourceError: It is damaged. The message has the shard, the sample and the column.
        """
        total, at = len(sample), 4 * self._size_count
        sizes = iter(struct.unpack_from(f"<{self._size_count}I", sample) if total >= at else ())
        parts = {}
        for column in self.columns:
            size = next(sizes, 0) if column.nbytes is None else column.nbytes
            parts[column.name] = sample[at : at + size]
            at += size
        if at != total:
            raise SourceError(
                f"{self.describe(index)} is damaged: it has {total:,} bytes, and its columns take {at:,}. Copy or "
                "write the shard again."
            )
        values = []
        for name, form in zip(self.wanted, self.forms, strict=True):
            try:
                values.append(form.value(parts[name]))
            except (ValueError, LookupError) as error:
                raise SourceError(
                    f"{self.describe(index)} is damaged: its column {name!r}: {error!r}. Copy or write the shard again."
                ) from error
        return values

    def open(self) -> "OpenMdsSource":
        return OpenMdsSource(self)


@final
class OpenMdsSource(RecordFilesReader):
    """Reads samples."""

    def __init__(self, source: MdsSource) -> None:
        super().__init__(source)
        self._specs = list(source.element_spec.items())

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Samples that are neighbours in a shard are one read.

        Raises:
            SourceError: A sample is damaged, or has an array of another dtype or with other axes than the first.
        """
        for read, row, element, record in self.records(reads):
            values = self._source.values(record.data, element)
            for (name, spec), array, value in zip(self._specs, read.arrays, values, strict=True):
                if spec.dtype.itemsize and (value.dtype != spec.dtype or value.ndim != len(spec.shape)):
                    raise SourceError(
                        f"{self._source.describe(element)} has {value.ndim} axes of {value.dtype} in column {name!r}, "
                        f"and the first sample {len(spec.shape)} of {spec.dtype}. Leave it out with columns=[...], or "
                        "write all with one dtype and as many axes."
                    )
                array[row] = value
