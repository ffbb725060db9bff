"""TFRecord files as a source with random access: records of bytes, or `tf.train.Example`s as dicts of arrays.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). A checksum is
a CRC32C that is rotated and shifted, so that data with checksums in them are no special case. The places of the records
are found once, from their heads, and kept (see `files/_kept.py`): 8 bytes a record. A compressed file has no random
access, so its content is written beside it once.
"""

import functools
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import google_crc32c
import numpy as np
import numpy.typing as npt

from penstock.base._atomic import complete
from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.files import _recordindex
from penstock.files._kept import Arrays
from penstock.files._openfile import File
from penstock.files._recordindex import (
    Compressed,
    Compression,
    RecordFiles,
    RecordFilesReader,
    compressed,
)
from penstock.plan._source import Read
from penstock.records._example import encoded, first_features, read_example
from penstock.records._features import Feature, Featured, wanted_of

Integers = npt.NDArray[np.int64]

HEAD_NBYTES: Final = 12
"""Bytes of a length and its checksum, before the data."""
TAIL_NBYTES: Final = 4
"""Bytes of the checksum after the data."""
_HEAD = struct.Struct("<QI")
_MASK: Final = 0xA282EAD8
_KNOWN_HEADS: Final = 4096


def source(
    files: tuple[File, ...],
    features: Any,
    defaults: Any,
    compression: Any,
    check_crc: bool,
    cache_dir: str | None,
) -> "TFRecordSource":
    """Makes a source from the arguments of `penstock.from_tfrecord`."""
    wanted, is_auto = wanted_of(features, defaults)
    return TFRecordSource(files, wanted, is_auto, compressed("from_tfrecord", compression), check_crc, cache_dir)


@final
@dataclass(frozen=True)
class TFRecordSource(Featured, RecordFiles):
    """The records of TFRecord files, one file after the other."""

    index_kind = "tfrecord"

    files: tuple[File, ...]
    features: tuple[Feature, ...] | None
    is_auto: bool
    compression: Compressed
    check_crc: bool
    cache_dir: str | None

    def compression_of(self, file: File) -> Compression | None:
        return compression_of(file) if self.compression == "auto" else self.compression

    def find_records(self, content: File) -> Arrays:
        return {"offsets": offsets_of(content)}

    def open(self) -> "OpenTFRecordSource":
        return OpenTFRecordSource(self)

    def learned(self) -> tuple[Feature, ...]:
        for file in self.files:
            record = first_record(file, self.compression_of(file))
            if record is not None:
                return first_features(f"{file} record 0", record)
        raise SpecError(f"features='auto' learns from the first record, but there is none in {self}.")


@final
class OpenTFRecordSource(RecordFilesReader):
    """Reads records."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Records that are neighbours in a file are one read.

        Raises:
            SourceError: A record is damaged, or no Example. The message has its file, number and byte.
            SpecError: A feature is missing, or does not fit its spec.
        """
        source = self._source
        for read, row, element, data in self.records(reads):
            record = data.tobytes()
            content = record[HEAD_NBYTES:-TAIL_NBYTES]
            if source.check_crc:
                self._check(element, record, content)
            if source.wanted is None:
                read.arrays[0][row] = np.frombuffer(content, np.uint8).copy()
            else:
                read_example(source.wanted, content, read.arrays, row, partial(source.describe, element))

    def _check(self, element: int, record: bytes, content: bytes) -> None:
        """Compares all bytes of a record with their checksums."""
        if record[:HEAD_NBYTES] == _head(len(content)) and record[-TAIL_NBYTES:] == _packed(content):
            return
        (number,), (offset,), _ = self.ranges(np.array([element]))
        raise SourceError(
            f"{self._source.describe(element)} is damaged: its checksum does not fit. It starts at byte {offset:,} of "
            f"{self._index.files[number].url}. Bits have changed since it was written; restore the file from a copy."
        )


def _packed(data: bytes) -> bytes:
    """Returns the checksum of some bytes as it is stored."""
    checksum = google_crc32c.value(data)
    return struct.pack("<I", (checksum >> 15 | checksum << 17) + _MASK & 0xFFFFFFFF)


@functools.lru_cache(_KNOWN_HEADS)
def _head(nbytes: int) -> bytes:
    """Returns the head of a record of this size."""
    length = struct.pack("<Q", nbytes)
    return length + _packed(length)


def _length(head: bytes, where: Callable[[], str]) -> int:
    nbytes: int = _HEAD.unpack(head)[0]
    if _head(nbytes) != head:
        raise SourceError(f"{where()}: the checksum of its length does not fit.")
    return nbytes


def compression_of(file: File) -> Compression | None:
    """Returns the compression of a file, by its first bytes. A valid head of a record means none."""
    head = file.head(HEAD_NBYTES)
    if len(head) == HEAD_NBYTES and _head(_HEAD.unpack(head)[0]) == head:
        return None
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) > 1 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return None


def offsets_of(file: File) -> Integers:
    """Reads the heads of all records, and skips the data of large ones.

    Raises:
        SourceError: A length is damaged, the last record is cut off, or it is no TFRecord file.
    """
    size, at = file.nbytes, 0
    tell = _recordindex.progress(f"Looking for the records of {file.url}", size)
    offsets = array("q", [0])

    def where() -> str:
        return (
            f"{file.url} cannot be read from record {len(offsets) - 1} on, at byte {at:,} of {size:,}. It is damaged "
            "there, or it is no TFRecord file, or compressed in another way"
        )

    # Of a server, neighbouring heads are read in large pieces, because a request takes longer than their bytes.
    with file.scan() if file.is_local else file.stream() as stream:
        while at < size:
            if len(offsets) % _KNOWN_HEADS == 0:
                tell(at)
            stream.seek(at)
            head = stream.read(HEAD_NBYTES)
            if len(head) < HEAD_NBYTES:
                raise _truncated(file, len(offsets) - 1, at, size)
            end = at + _length(head, where) + HEAD_NBYTES + TAIL_NBYTES
            if end > size:
                raise _truncated(file, len(offsets) - 1, at, size)
            at = end
            offsets.append(at)
    return np.frombuffer(offsets, np.int64)


def _truncated(file: File, record: int, at: int, size: int) -> SourceError:
    return SourceError(
        f"{file.url} is truncated: record {record} starts at byte {at:,} and is cut off at byte {size:,}. Its writing "
        "was not finished, or its copying; write or copy it again."
    )


def first_record(file: File, compression: Compression | None) -> bytes | None:
    """Reads the first record and little more.

    Raises:
        SourceError: The file is damaged or truncated.
    """
    content = bytearray()
    for piece in _recordindex.pieces(file, compression):
        content += piece
        if len(content) < HEAD_NBYTES:
            continue
        head = bytes(content[:HEAD_NBYTES])
        end = HEAD_NBYTES + _length(head, lambda: f"{file.url} is damaged in record 0, or no TFRecord file")
        if end <= len(content):
            return bytes(content[HEAD_NBYTES:end])
        if end > file.nbytes and not compression:
            break
    if content:
        raise _truncated(file, 0, 0, file.nbytes)
    return None


def write(path: Path, elements: Iterable[Any], compression: Compression | None) -> int:
    """Writes elements for `penstock.write_tfrecord`."""
    if compression not in (None, "gzip", "zlib"):
        raise ArgumentError(f"compression={compression!r}: it is one of None, 'gzip', 'zlib'.")
    machine = zlib.compressobj(wbits={"gzip": 31, "zlib": 15}[compression]) if compression else None
    count = 0
    with complete(path) as out:
        for element in elements:
            try:
                data = encoded(element)
            except SpecError as error:
                raise SpecError(f"Element {count} cannot be written: {error}") from None
            for part in (_head(len(data)), data, _packed(data)):
                out.write(machine.compress(part) if machine else part)
            count += 1
        if machine:
            out.write(machine.flush())
    return count
