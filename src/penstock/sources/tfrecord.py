"""TFRecord files as a source with random access: records of bytes, or `tf.train.Example`s as dicts of arrays.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). The places of
the records are found once, from their heads, and kept (see `_recordindex`): 8 bytes a record. A compressed file has no
random access, so its content is written beside it once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Read
from penstock.sources import _recordindex, _tfframes
from penstock.sources._example import ExampleError, ExampleReader, row_numbers
from penstock.sources._features import Feature, features_of, inferred
from penstock.sources._openfile import File, FilesSource, RecordReader, bounds_of, for_each, placed, rows_of
from penstock.sources._tfframes import HEAD_NBYTES, TAIL_NBYTES, compression_of, first_record, offsets_of
from penstock.sources._wire import DamagedError, is_sequence, walk

Compression = Literal["auto", "gzip", "zlib"] | None
Integers = npt.NDArray[np.int64]

_OPTIONS: Final = ("auto", None, "gzip", "zlib")


def source(
    files: tuple[File, ...],
    features: Any,
    defaults: Any,
    compression: Any,
    check_crc: bool,
    cache_dir: str | os.PathLike[str] | None,
) -> "TFRecordSource":
    """Makes a source from the arguments of `penstock.from_tfrecord`."""
    if compression not in _OPTIONS:
        raise ArgumentError(f"compression={compression!r}: it is one of {', '.join(map(repr, _OPTIONS))}.")
    if defaults and (features is None or features == "auto"):
        raise ArgumentError("defaults= are for features, which have to be named: features={...}.")
    is_auto = isinstance(features, str) and features == "auto"
    wanted = None if features is None or is_auto else features_of(features, defaults)
    where = None if cache_dir is None else os.path.abspath(cache_dir)
    return TFRecordSource(files, wanted, is_auto, compression, check_crc, where)


class _Index(NamedTuple):
    """The places of the records of all files."""

    files: list[File]
    """The files to read: the given ones, or their decompressed content."""
    bounds: Integers
    """See `bounds_of`."""
    offsets: Integers
    """The start of each record and the end of the last, file after file, shape `(records + files,)`."""


@final
@dataclass(frozen=True)
class TFRecordSource(FilesSource):
    """The records of TFRecord files, one file after the other. The index is read or made when it is first needed."""

    files: tuple[File, ...]
    features: tuple[Feature, ...] | None
    """The features of Examples; None for the bytes of records, uint8 of shape `(None,)`."""
    is_auto: bool
    """Whether the features are those of the first record."""
    compression: Compression
    check_crc: bool
    cache_dir: str | None

    @cached_property
    def wanted(self) -> tuple[Feature, ...] | None:
        """The features, read from the first record if necessary."""
        return self._inferred() if self.is_auto else self.features

    @cached_property
    def element_spec(self) -> Tree:
        if self.wanted is None:
            return ArraySpec((None,), np.dtype(np.uint8))
        return {feature.name: feature.spec for feature in self.wanted}

    @cached_property
    def index(self) -> _Index:
        """The places of the records."""
        files, offsets = zip(*for_each(self.files, self._indexed), strict=True)
        return _Index(list(files), bounds_of(len(each) - 1 for each in offsets), np.concatenate(offsets))

    def _compression(self, file: File) -> _recordindex.Compression | None:
        return compression_of(file) if self.compression == "auto" else self.compression

    def _indexed(self, file: File) -> tuple[File, Integers]:
        compression = self._compression(file)
        content = _recordindex.decompressed(file, compression, self.cache_dir) if compression else file
        arrays = _recordindex.kept(content, "tfrecord", self.cache_dir, lambda: {"offsets": offsets_of(content, file)})
        return content, arrays["offsets"]

    def __len__(self) -> int:
        return int(self.index.bounds[-1])

    def describe(self, index: int) -> str:
        number, record = placed(self.index.bounds, index)
        return f"{self.files[number].name} record {record}"

    def open(self) -> "OpenTFRecordSource":
        return OpenTFRecordSource(self)

    def _inferred(self) -> tuple[Feature, ...]:
        for file in self.files:
            record = first_record(file, self._compression(file))
            if record is None:
                continue
            name = f"{file.name} record 0"
            try:
                found, _ = walk(memoryview(record), 0, len(record))
                has_lists = is_sequence(record)
            except DamagedError as error:
                raise SourceError(f"{name} is no tf.train.Example: {error}.") from error
            if has_lists:
                raise SpecError(
                    f"{name} is a tf.train.SequenceExample, whose lists of features are not read here. Name features "
                    "of its context with features={...}, or leave features= out and parse the records in map()."
                )
            if not found:
                raise SourceError(f"{name} is a tf.train.Example without features.")
            return tuple(inferred(each.decode(), found[each], record) for each in sorted(found))
        raise SpecError(f"features='auto' learns from the first record, but there is none in {self}.")


@final
class OpenTFRecordSource(RecordReader):
    """Reads records; files are opened at their first read."""

    def __init__(self, source: TFRecordSource) -> None:
        super().__init__(source.index.files)
        self._source = source
        self._index = source.index
        self._examples = None if source.wanted is None else ExampleReader(source.wanted)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Records that are neighbours in a file are one read.

        Raises:
            SourceError: A record is damaged, or no Example. The message has its file, number and byte.
            SpecError: A feature is missing, or does not fit its spec.
        """
        for read, (members, data, at), sizes in self.requests(reads):
            elements, starts, ends = read.indices[members], at + HEAD_NBYTES, at + sizes - TAIL_NBYTES
            if self._source.check_crc:
                self._check(elements, data, starts, ends)
            self._write(elements, data, starts, ends, read.arrays, rows_of(read.rows, members))

    def _write(
        self,
        elements: Indices,
        data: npt.NDArray[np.uint8],
        starts: Integers,
        ends: Integers,
        arrays: Sequence[npt.NDArray[Any]],
        rows: Integers | slice,
    ) -> None:
        if self._examples is None:
            for row, start, end in zip(row_numbers(rows), starts.tolist(), ends.tolist(), strict=True):
                arrays[0][row] = data[start:end].copy()
            return
        try:
            self._examples.read(data, starts, ends, arrays, rows)
        except ExampleError as error:
            kind = SourceError if error.is_damaged else SpecError
            raise kind(f"{self._source.describe(int(elements[error.row]))}: {error}.") from None

    def _check(self, elements: Indices, data: npt.NDArray[np.uint8], starts: Integers, ends: Integers) -> None:
        """Compares all bytes of the records with their checksums."""
        wrong = _tfframes.check(data, starts, ends)
        if wrong is None:
            return
        k, what = wrong
        element = int(elements[k])
        number = placed(self._index.bounds, element)[0]
        file, content = self._source.files[number], self._index.files[number]
        offset = int(self.ranges(elements[k : k + 1])[1][0])
        raise SourceError(
            f"{self._source.describe(element)} is damaged: {what}. It starts at byte {offset:,} of {file.url}"
            f"{', decompressed' * (file != content)}. Bits have changed since it was written; restore the file from a "
            "copy."
        )

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        index = self._index
        numbers = (np.searchsorted(index.bounds, elements, "right") - 1).astype(np.int64)
        places = elements + numbers
        offsets = index.offsets[places]
        return numbers, offsets, index.offsets[places + 1] - offsets
