"""ArrayRecord files, which Grain and TFDS write, by the library `array_record`.

A file is chunks of Riegeli, each of a few records and compressed alone, and at its end the places of all chunks. The
library checks each chunk by a hash. It opens a damaged file without an error, and reports no records.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.dataset import Dataset
from penstock.files import _openfile
from penstock.files._openfile import File, FilesSource, bounds_of, for_each
from penstock.files._remote import is_remote
from penstock.plan._parted import by_part
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode
from penstock.records._example import first_features, read_example
from penstock.records._features import Feature, Featured, wanted_of

_MAX_OPEN: Final = 64
_OPTIONS: Final = {"options": "readahead_buffer_size:0", "file_reader_buffer_size": 32 << 10}
"""Of a reader: those for random access."""

Path = str | os.PathLike[str]


def from_arrayrecord(
    paths: Path | Iterable[Path],
    *,
    features: Mapping[str, Any] | Literal["auto"] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Dataset:
    """Makes a dataset of the records of ArrayRecord files, one file after the other.

    An element is the bytes of a record, uint8 of shape `(None,)`. With `features` it is a dict of arrays, from a
    `tf.train.Example` in each record, as in `from_tfrecord`.

    The end of each file, which has the places of its records, is read when the length is first needed. A read of
    several records of a file is one call of the library, which decompresses on threads of its own. Files that were
    written with a `group_size` above 1 are decompressed in groups of so many records, also for one of them: shuffle
    these within a window.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 16 bytes a record of the 64 files that were read last, in each process; twice the records of a read.

    Args:
        paths: A path, a pattern (`"train-*.array_record"`), or a list of these. Files behind URLs are not read.
        features: Names and `ArraySpec`s, or `"auto"` for those of the first record; see `from_tfrecord`.
        defaults: Values of features that records may lack.

    Raises:
        ImportError: `array_record` or `protobuf` is missing (extra `arrayrecord`).
        ArgumentError: A path is a URL.
        SourceError: A file is missing, empty, damaged, cut off, or no ArrayRecord file. While reading: a record is
            damaged. The message has the file and the record.
        SpecError: While reading: a record lacks a feature, or has it in another shape. The message has the record.

    Example:
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> writer = ArrayRecordWriter("words.array_record", "group_size:1")
        >>> for word in (b"one", b"two", b"three"): writer.write(word)
        >>> writer.close()
        >>> penstock.from_arrayrecord("words.array_record")[2].tobytes()
        b'three'
    """
    verb = "from_arrayrecord"
    with needs(verb, "array_record", "protobuf"):
        import array_record.python.array_record_module  # noqa: F401
    asked = _openfile.asked(verb, paths)
    if urls := [path for path in asked if is_remote(path)]:
        raise ArgumentError(
            f"{verb}() reads files of this machine, and {urls[0]} is a URL. Copy the files here, or write the records "
            "as TFRecord, which is read over a network: ps.write_tfrecord(path, ps.from_arrayrecord(copy))."
        )
    source = ArrayRecordSource(_openfile.find(verb, asked), *wanted_of(features, defaults))
    return Dataset(SourceNode(source, verb))


def _reader(file: File) -> Any:
    """Opens a file.

    Raises:
        SourceError: It is missing, has changed, is damaged, or no ArrayRecord file.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    file.open()
    try:
        reader = ArrayRecordReader(file.url, **_OPTIONS)
        if not reader.ok():
            reader.close()  # raises the reason
            raise RuntimeError("the library does not say why")
    except (RuntimeError, ValueError) as error:
        raise SourceError(
            f"{file.url} is no ArrayRecord file, or is cut off or damaged: {error}. Write or copy it again."
        ) from error
    return reader


@final
@dataclass(frozen=True)
class ArrayRecordSource(Featured, FilesSource):
    """The records of ArrayRecord files, one file after the other."""

    reads_ahead = False
    files: tuple[File, ...]
    features: tuple[Feature, ...] | None
    is_auto: bool

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        return bounds_of(for_each(self.files, lambda file: _reader(file).num_records()))

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        return self.index

    def learned(self) -> tuple[Feature, ...]:
        if not len(self):
            raise SpecError(f"features='auto' learns from the first record, but there is none in {self}.")
        (record,) = OpenArrayRecordSource(self, None).records(*_openfile.placed(self.bounds, 0))
        return first_features(self.describe(0), record)

    def open(self) -> "OpenArrayRecordSource":
        return OpenArrayRecordSource(self, self.wanted)


@final
class OpenArrayRecordSource:
    """Reads records. A reader serves any number of threads; one that is dropped ends with its last read."""

    def __init__(self, source: ArrayRecordSource, features: tuple[Feature, ...] | None) -> None:
        self._source = source
        self._features = features
        self._reader = lru_cache(_MAX_OPEN)(lambda number: _reader(source.files[number]))

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, a call of the library for the records of a file.

        Raises:
            SourceError: A record is damaged, or no Example. The message has its file and number.
            SpecError: A feature is missing, or does not fit its spec.
        """
        for read in reads:
            for number, inside, rows in by_part(self._source.bounds, read.indices, read.rows):
                places, rows = inside.tolist(), np.arange(len(read.arrays[0]))[rows].tolist()
                for place, row, record in zip(places, rows, self.records(number, *places), strict=True):
                    if self._features is None:
                        read.arrays[0][row] = np.frombuffer(record, np.uint8).copy()
                    else:
                        name = partial(self._describe, number, place)
                        read_example(self._features, record, read.arrays, row, name)

    def records(self, number: int, *inside: int) -> list[bytes]:
        """Reads records of a file.

        Raises:
            SourceError: One is damaged.
        """
        reader = self._reader(number)
        try:
            found: list[bytes] = reader.read(inside)
            if len(found) == len(inside) and reader.ok():
                return found
            fault: Any = f"{len(found):,} records came of {len(inside):,}"
        except (RuntimeError, ValueError) as error:
            fault = error
        if len(inside) > 1:  # which one
            return [record for each in inside for record in self.records(number, each)]
        raise SourceError(f"{self._describe(number, inside[0])} is damaged: {fault}. Write or copy the file again.")

    def _describe(self, number: int, record: int) -> str:
        return self._source.describe(int(self._source.bounds[number]) + record)

    def close(self) -> None:
        """Closes each file as soon as no read of it is under way."""
        self._reader.cache_clear()
