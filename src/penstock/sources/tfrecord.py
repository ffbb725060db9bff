"""TFRecord files as a source of random access: records of bytes, or `tf.train.Example`s as dicts of arrays.

A record is its length (8 bytes), a checksum of that (4), the data, and a checksum of those (4). Where records are is
found once, from their heads, and kept (see `_recordindex`): 8 bytes a record. A compressed file is decompressed once
beside it, for compressed data have no random access.
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
from penstock.sources._example import ExampleError, ExampleReader
from penstock.sources._features import Feature, features_of, inferred
from penstock.sources._openfile import File, FilesSource, OpenFiles, for_each, placed
from penstock.sources._tfframes import HEAD_NBYTES, TAIL_NBYTES, compression_of, first_record, offsets_of
from penstock.sources._wire import BYTES, INT64, MANY, DamagedError, is_sequence, walk

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
    """Makes a source of what a user asked for; see `penstock.from_tfrecord`."""
    if compression not in _OPTIONS:
        raise ArgumentError(f"compression={compression!r}: it is one of {', '.join(map(repr, _OPTIONS))}.")
    if defaults and (features is None or features == "auto"):
        raise ArgumentError("defaults= are of features, which have to be named: features={...}.")
    is_auto = isinstance(features, str) and features == "auto"
    wanted = None if features is None or is_auto else features_of(features, defaults)
    where = None if cache_dir is None else os.path.abspath(cache_dir)
    return TFRecordSource(files, wanted, is_auto, compression, check_crc, where)


class _Index(NamedTuple):
    """Where the records of all files are."""

    files: list[File]
    """Those that are read: the files themselves, or their content without compression."""
    bounds: Integers
    """The first record of each file and the number of all, shape `(files + 1,)`."""
    offsets: Integers
    """The byte at which each record starts and the last ends, file after file, shape `(records + files,)`."""


@final
@dataclass(frozen=True)
class TFRecordSource(FilesSource):
    """Records of TFRecord files, one file after the other. The index is looked up or made when it is first needed."""

    files: tuple[File, ...]
    features: tuple[Feature, ...] | None
    """The features of Examples; None for records as they are, uint8 of shape `(None,)`."""
    is_auto: bool
    """The features are those of the first record."""
    compression: Compression
    check_crc: bool
    cache_dir: str | None

    @cached_property
    def wanted(self) -> tuple[Feature, ...] | None:
        """The features, read from the first record where they are to be found out."""
        return self._inferred() if self.is_auto else self.features

    @cached_property
    def element_spec(self) -> Tree:
        """A dict of the features, or bytes."""
        if self.wanted is None:
            return ArraySpec((None,), np.dtype(np.uint8))
        return {feature.name: feature.spec for feature in self.wanted}

    @cached_property
    def index(self) -> _Index:
        """Where the records are."""
        parts = for_each(self.files, self._indexed)
        counts = [len(offsets) - 1 for _, offsets in parts]
        bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        return _Index([file for file, _ in parts], bounds, np.concatenate([offsets for _, offsets in parts]))

    def _indexed(self, file: File) -> tuple[File, Integers]:
        compression = compression_of(file) if self.compression == "auto" else self.compression
        content = _recordindex.decompressed(file, compression, self.cache_dir) if compression else file
        arrays = _recordindex.kept(content, "tfrecord", self.cache_dir, lambda: {"offsets": offsets_of(content, file)})
        return content, arrays["offsets"]

    def __len__(self) -> int:
        return int(self.index.bounds[-1])

    def __getstate__(self) -> dict[str, Any]:
        # Where it arrives the index is looked up again: it is a file, and may be large.
        return {name: value for name, value in self.__dict__.items() if name != "index"}

    def describe(self, index: int) -> str:
        """The file, and the number of the record in it."""
        number, record = placed(self.index.bounds, index)
        return f"{self.files[number].name} record {record}"

    def open(self) -> "OpenTFRecordSource":
        """The form that reads; files are opened when they are first read."""
        return OpenTFRecordSource(self)

    def _inferred(self) -> tuple[Feature, ...]:
        for file in self.files:
            compression = compression_of(file) if self.compression == "auto" else self.compression
            record = first_record(file, compression)
            if record is None:
                continue
            try:
                found, _ = walk(memoryview(record), 0, len(record))
                has_lists = is_sequence(record)
            except DamagedError as error:
                raise SourceError(f"{file.name} record 0 is no tf.train.Example: {error}.") from error
            if has_lists:
                raise SpecError(
                    f"{file.name} record 0 is a tf.train.SequenceExample, whose lists of features are not read here. "
                    "Name features of its context with features={...}, or leave features= out and parse the records in "
                    "map()."
                )
            features = []
            for name, each in sorted(found.items()):
                values = each.values
                if each.kind == INT64:
                    content = values if isinstance(values, bytes) else record[each.start : each.end]
                    count = sum(byte < 0x80 for byte in content)
                else:
                    count = len(values) if isinstance(values, list) else 1
                nbytes = len(values) if isinstance(values, bytes) else each.end - each.start
                kind = BYTES if each.kind == MANY and count == 1 else each.kind
                features.append(inferred(name.decode(), kind, nbytes, count))
            if not features:
                raise SourceError(f"{file.name} record 0 is a tf.train.Example without features.")
            return tuple(features)
        raise SpecError(f"features='auto' learns from the first record, but there is none in {self}.")


@final
class OpenTFRecordSource:
    """A `TFRecordSource` that reads."""

    def __init__(self, source: TFRecordSource) -> None:
        self._source = source
        self._index = source.index
        self._files = OpenFiles(self._index.files)
        self._examples = None if source.wanted is None else ExampleReader(source.wanted)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests at once: records that are neighbours in a file come in one call.

        Raises:
            SourceError: A record is damaged, or no Example; its file, number and byte are named.
            SpecError: A feature is missing, or is not what its spec says.
        """
        elements = reads[0].indices if len(reads) == 1 else np.concatenate([_NONE, *(read.indices for read in reads)])
        if not len(elements):
            return
        numbers, offsets, sizes = self._ranges(elements)
        firsts = np.cumsum([0, *(len(read.indices) for read in reads)])
        for members, data, at in self._files.chunks(numbers, offsets, sizes):
            starts, ends = at + HEAD_NBYTES, at + sizes[members] - TAIL_NBYTES
            if self._source.check_crc:
                self._check(elements[members], data, starts, ends)
            for number, read in enumerate(reads):
                mine: Any = slice(None)
                if len(reads) > 1:
                    mine = np.flatnonzero((members >= firsts[number]) & (members < firsts[number + 1]))
                    if not len(mine):
                        continue
                rows = _composed(read.rows, members[mine] - firsts[number])
                self._write(elements[members[mine]], data, starts[mine], ends[mine], read.arrays, rows)

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
            numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
            for row, start, end in zip(numbers, starts.tolist(), ends.tolist(), strict=True):
                arrays[0][row] = data[start:end].copy()
            return
        try:
            self._examples.read(data, starts, ends, arrays, rows)
        except ExampleError as error:
            kind = SourceError if error.is_damaged else SpecError
            raise kind(f"{self._source.describe(int(elements[error.row]))}: {error}.") from None

    def _check(self, elements: Indices, data: npt.NDArray[np.uint8], starts: Integers, ends: Integers) -> None:
        """Compares every bit of the records with their checksums."""
        wrong = _tfframes.check(data, starts, ends)
        if wrong is None:
            return
        k, what = wrong
        element = int(elements[k])
        number = placed(self._index.bounds, element)[0]
        file, content = self._source.files[number], self._index.files[number]
        offset = int(self._ranges(elements[k : k + 1])[1][0])
        raise SourceError(
            f"{self._source.describe(element)} is damaged: {what}. It starts at byte {offset:,} of {file.url}"
            f"{', decompressed' * (file != content)}. Bits have changed since it was written; restore the file from a "
            "copy."
        )

    def _ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        """The file of each record, the byte at which it starts, and its bytes with all that frames it."""
        index = self._index
        numbers = np.searchsorted(index.bounds, elements, "right") - 1
        places = elements + numbers
        offsets = index.offsets[places]
        return numbers.astype(np.int64), offsets, index.offsets[places + 1] - offsets

    def advise(self, indices: Indices) -> None:
        """Has the kernel fetch the records, unless they are in memory already."""
        self._files.advise(*self._ranges(indices))

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


_NONE = np.empty(0, np.int64)


def _composed(rows: Integers | slice, members: Integers) -> Integers | slice:
    """The rows of some members: a slice where they are neighbours, for that is faster."""
    if isinstance(rows, slice):
        step = rows.step or 1
        first, count = int(members[0]), len(members)
        if step == 1 and int(members[-1]) - first == count - 1 and bool((members[1:] > members[:-1]).all()):
            return slice(rows.start + first, rows.start + first + count)
        return np.asarray(members * step + rows.start, np.int64)
    return rows[members]
