"""MosaicML Streaming's MDS: shards of samples, and `index.json`, which describes them.

A shard has, in little-endian numbers of 4 bytes: the number of samples, the first byte of each and the end of the last;
then a description, which is not used, and the samples. A sample has the sizes of its columns that have no fixed one,
and then their values. A compressed shard is one compressed file.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock._dataset import Dataset
from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, no_path, type_of
from penstock.base._positions import require_order
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.formats import _recordindex
from penstock.formats._example import row_numbers
from penstock.formats._mdsindex import Described, Form, MdsColumn, form_of, shards_of, text_of
from penstock.formats._recordindex import RecordFiles, RecordFilesReader
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._diskcache import DiskCache
from penstock.sources._kept import Arrays, kept
from penstock.sources._openfile import File, bounds_of, placed, rows_of
from penstock.sources._store import StorageOptions

_INDEX: Final = "index.json"
_CODECS: Final = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}
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
    Streaming has decompressed is read as it is. Sizes are compared with the index, hashes are not.

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
        ImportError: Shards are compressed by another format than gzip, and `pyarrow` is missing (extra `mds`).
        SourceError: A file is missing, is no such index, has another size than its index says, or names files outside
            its folder. Or a column is a pickle (`pkl`), which would run code; leave it out by `columns`. While reading:
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
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(several, Iterable):
        raise ArgumentTypeError(f"{verb}() needs a folder, a pattern or a list of folders, got {no_path(paths)}")
    require_order(f"{verb}()", several, "Give a list, such as sorted(folders).")
    if cache_dir is not None:
        _recordindex.require_local(f"{verb}(cache_dir)", cache_dir)
        cache_dir = os.path.abspath(cache_dir)
    if isinstance(columns, str) or not isinstance(columns, Sequence | None):
        raise ArgumentTypeError(f"{verb}(columns=) is a list of names, got {type_of(columns)}.")
    options, cache = StorageOptions.of(verb, storage_options), DiskCache.of(verb, cache)
    indexes = _openfile.find(verb, [_index_of(each) for each in several], storage_options)
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
    chosen = [_file_of(index, shard) for index, shard in pairs]
    if any(codec not in (None, "gzip") for _, _, codec in chosen):
        with needs(verb, "pyarrow"):
            import pyarrow as pa  # noqa: F401
    cure = f" {_INDEX} names it. Copy the folder again."
    files = _openfile.known([url for url, _, _ in chosen], options, cache, cure)
    for file, (_, nbytes, _), (index, _) in zip(files, chosen, pairs, strict=True):
        if file.nbytes != nbytes:
            raise SourceError(
                f"{file.url} has {file.nbytes:,} bytes, and {index.url} says {nbytes:,}. It is cut off, or one of both "
                "is of another dataset: copy the folder again."
            )
    facts = zip(pairs, chosen, strict=True)
    shards = tuple(_Shard(shard.samples, shard.raw_nbytes, codec) for (_, shard), (_, _, codec) in facts)
    return Dataset(SourceNode(MdsSource(files, shards, there, wanted, cache_dir), verb))


class _Shard(NamedTuple):
    samples: int
    nbytes: int
    """The bytes of its content, when it is decompressed."""
    codec: str | None


def _index_of(path: Any) -> Any:
    """Returns the path of an index; what is no path as it is."""
    if not isinstance(path, (str, os.PathLike)):
        return path
    text = os.fspath(path)
    return text if text.endswith(".json") else f"{text.rstrip('/')}/{_INDEX}"


def _chosen(url: str, there: Sequence[MdsColumn], names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of the columns to read.

    Raises:
        ArgumentError: There is no such column, or one comes twice.
        SourceError: A column cannot be read.
    """
    encodings = {column.name: column.encoding for column in there}
    wanted = tuple(encodings if names is None else names)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ArgumentError(f"from_mds(columns={list(wanted)}): at least one, and each once.")
    if unknown := [name for name in wanted if name not in encodings]:
        raise ArgumentError(f"from_mds(columns=): {url} has no column {unknown[0]!r}; it has {list(encodings)}.")
    others = [name for name, encoding in encodings.items() if form_of(encoding) is not None]
    for name in wanted:
        if encodings[name] == "pkl":
            raise SourceError(
                f"{url}: the column {name!r} is a pickle (pkl), which runs whatever code it contains when it is read. "
                f"Leave it out: columns={others}. If you trust it, read it once with Streaming "
                "(allow_unsafe_types=True), and write it again as json, ndarray or bytes."
            )
        if name not in others:
            raise SourceError(
                f"{url}: the column {name!r} has the encoding {encodings[name]!r:.80}, which is not read. Leave it "
                f"out: columns={others}. Or write it again as bytes, str, json, a number or ndarray."
            )
    return wanted


def _file_of(index: File, shard: Described) -> tuple[str, int, str | None]:
    """Returns the path of a shard, its bytes and its compression. Of a folder here, what is decompressed comes first.

    Raises:
        SourceError: It is compressed in a way that is not read.
    """
    folder = index.url.rpartition("/")[0]
    raw = f"{folder}/{shard.name}"
    if shard.zipped is None or (index.is_local and os.path.exists(raw)):
        return raw, shard.raw_nbytes, None
    name, nbytes, compression = shard.zipped
    if compression not in _CODECS:
        raise SourceError(
            f"{index.url}: {name} is compressed by {compression!r:.40}, which is not read, but {', '.join(_CODECS)} "
            "are. Write it again with compression='zstd', or let Streaming decompress it."
        )
    return f"{folder}/{name}", nbytes, _CODECS[compression]


def _unpacked(file: File, shard: _Shard) -> Iterator[bytes]:
    """Yields the content of a compressed shard. A few bytes may decompress to any number, so they are counted.

    Raises:
        SourceError: It is damaged, or has more or less content than the index says.
    """
    total = 0
    for piece in _recordindex.pieces(file, shard.codec):
        total += len(piece)
        if total > shard.nbytes:
            break
        yield piece
    if total != shard.nbytes:
        raise SourceError(
            f"{file.url} has {f'more than {shard.nbytes:,}' if total > shard.nbytes else f'{total:,}'} bytes when it "
            f"is decompressed, and its index says {shard.nbytes:,}. One of both is damaged or of another dataset: copy "
            "the folder again."
        )


@final
@dataclass(frozen=True)
class MdsSource(RecordFiles):
    """The samples of shards, one shard after the other."""

    files: tuple[File, ...]
    shards: tuple[_Shard, ...]
    """What the index says of each file."""
    columns: tuple[MdsColumn, ...]
    wanted: tuple[str, ...]
    """The columns of an element."""
    cache_dir: str | None

    compression = None
    index_kind = "mds"

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:  # is kept
        return bounds_of(shard.samples for shard in self.shards)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """What the values of the columns of an element are."""
        encodings = {column.name: column.encoding for column in self.columns}
        return tuple(form for name in self.wanted if (form := form_of(encodings[name])) is not None)

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

    def _kept(self, file: File) -> None:
        return None

    def _indexed(self, file: File) -> tuple[File, Arrays]:
        shard = self._shard_of[file.url]
        content = file
        if shard.codec is not None:
            content = _recordindex.decompressed(
                file, shard.codec, self.cache_dir, unpacked=lambda: _unpacked(file, shard)
            )

        def find() -> Arrays:
            return self.find_records(content, shard)

        # The table of a file here is read as fast as a copy of it.
        found = find() if content.is_local else kept(content, self.index_kind, self.cache_dir, find)
        if len(found["offsets"]) != shard.samples + 1:  # the index is another one
            found = find()
        return content, found

    @cached_property
    def _shard_of(self) -> dict[str, _Shard]:
        return {file.url: shard for file, shard in zip(self.files, self.shards, strict=True)}

    def find_records(self, content: File, shard: _Shard | None = None) -> Arrays:
        """Reads the table of a shard.

        Raises:
            SourceError: It differs from the index, or its samples do not follow one another up to its end.
        """
        shard = shard or self._shard_of[content.url]
        table_nbytes = 4 * (shard.samples + 2)
        head = np.frombuffer(content.head(table_nbytes).ljust(table_nbytes, b"\0"), "<u4")
        if head[0] != shard.samples:
            raise SourceError(
                f"{content.url} says that it has {head[0]:,} samples, and its index says {shard.samples:,}. One of "
                "both is damaged or of another dataset: copy the folder again."
            )
        offsets = head[1:].astype(np.int64)
        steps = np.diff(offsets, prepend=table_nbytes)
        if (steps < 0).any() or offsets[-1] != content.nbytes:
            raise SourceError(
                f"{content.url} is damaged: its samples lie from byte {offsets[0]:,} to {offsets[-1]:,}, in no order "
                f"or not behind their table, which ends at {table_nbytes:,}, up to the end at {content.nbytes:,}. "
                "Copy or write it again."
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
            except ValueError as error:  # that of text is one too
                raise SourceError(
                    f"{self.describe(index)} is damaged: its column {name!r} {error}. Copy or write the shard again."
                ) from None
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
        for read, (members, data, starts), sizes in self.requests(reads):
            rows = row_numbers(rows_of(read.rows, members))
            facts = rows, read.indices[members].tolist(), starts.tolist(), sizes.tolist()
            for row, element, start, size in zip(*facts, strict=True):
                values = self._source.values(data[start : start + size].data, element)
                for (name, spec), array, value in zip(self._specs, read.arrays, values, strict=True):
                    if spec.dtype.itemsize and (value.dtype != spec.dtype or value.ndim != len(spec.shape)):
                        raise SourceError(
                            f"{self._source.describe(element)} has {value.ndim} axes of {value.dtype} in column "
                            f"{name!r}, and the first sample {len(spec.shape)} of {spec.dtype}. Leave it out with "
                            "columns=[...], or write all with one dtype and as many axes."
                        )
                    array[row] = value
