"""How large the record batches of an Arrow file are when they are decompressed, from their headers.

pyarrow does not say it before it decompresses a batch, and a small file may claim a large one. The headers are
FlatBuffers; see `File.fbs` and `Message.fbs` of the Arrow format.
"""

import struct
from collections.abc import Collection
from typing import Any, BinaryIO, Final, NamedTuple

from penstock.base._errors import SourceError
from penstock.formats._columns import buffers_of

MOST_RATIO: Final = 40_000
"""No compression of Arrow makes data smaller by more: Zstandard has blocks of 128 KiB in 4 bytes."""

HEADER_NBYTES: Final = 64 << 20
"""The most bytes of a footer, and of the header of a record batch. One of 1,000,000 columns has less."""

_MOST_ROWS: Final = 1 << 40


class RecordBatch(NamedTuple):
    """What the header of a record batch says."""

    rows: int
    nbytes: int
    """Of its buffers, when they are decompressed."""
    is_compressed: bool


def record_batches(
    url: str, file: BinaryIO, nbytes: int, schema: Any = None, names: Collection[str] = ()
) -> list[RecordBatch]:
    """Returns what the headers say of each record batch, with the bytes of all dictionaries.

    Args:
        url: The name of the file, for the error.
        file: The file.
        nbytes: Its size.
        schema: The schema of the file; None to count all columns.
        names: The columns to count.

    Raises:
        SourceError: The headers are damaged.
    """
    try:
        file.seek(nbytes - 10)
        (size,) = struct.unpack("<i", file.read(4))
        _require_size(size)
        file.seek(nbytes - 10 - size)
        footer = file.read(size)
        root = _Table(footer, *struct.unpack_from("<I", footer))
        dictionaries, batches = (_blocks(root, field, nbytes) for field in (2, 3))
        shared = sum(_decoded(file, nbytes, *block).nbytes for block in dictionaries)
        found = [_decoded(file, nbytes, *block, schema, names) for block in batches]
        if any(not 0 <= each.rows <= _MOST_ROWS for each in found):
            raise ValueError("a record batch of so many rows cannot be")
        return [each._replace(nbytes=shared + each.nbytes) for each in found]
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise SourceError(f"{url} is damaged: its headers cannot be read ({error}).") from error


class _Table:
    """A table of a FlatBuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back

    def place(self, field: int) -> int:
        """Where a field lies; 0 if it is missing."""
        if self._fields < 0:
            raise ValueError("a table without fields")
        (size,) = struct.unpack_from("<H", self.data, self._fields)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, self._fields + 4 + 2 * field)
        return self.at + offset if offset else 0

    def table(self, field: int) -> "_Table":
        """The table in a field."""
        at = self.place(field)
        (offset,) = struct.unpack_from("<I", self.data, at)
        return _Table(self.data, at + offset)

    def structs(self, field: int, form: str) -> list[tuple[int, ...]]:
        """The structs in a field."""
        if not (at := self.place(field)):
            return []
        (offset,) = struct.unpack_from("<I", self.data, at)
        (count,) = struct.unpack_from("<I", self.data, at + offset)
        width = struct.calcsize(form)
        if count * width > len(self.data):
            raise ValueError("too many structs")
        return [struct.unpack_from(form, self.data, at + offset + 4 + width * number) for number in range(count)]


def _blocks(root: _Table, field: int, nbytes: int) -> list[tuple[int, int]]:
    """The place and the size of the header of each block."""
    blocks = root.structs(field, "<qi4xq")
    if any(min(block) < 0 or sum(block) > nbytes for block in blocks):
        raise ValueError("a block lies outside of the file")
    return [(offset, size) for offset, size, _ in blocks]


def _require_size(size: int) -> None:
    if not 0 <= size <= HEADER_NBYTES:
        raise ValueError(f"a header of {size:,} bytes cannot be")


def _chosen(batch: "_Table", count: int, schema: Any, names: Collection[str]) -> list[bool]:
    """Whether each buffer of a record batch belongs to the columns; all do if they are laid out otherwise."""
    variadic = iter([each for (each,) in batch.structs(4, "<q")])
    chosen: list[bool] = []
    for part in () if schema is None else schema:
        chosen += [part.name in names] * buffers_of(part.type, variadic)
    return chosen if len(chosen) == count else [True] * count


def _decoded(
    file: BinaryIO, nbytes: int, offset: int, size: int, schema: Any = None, names: Collection[str] = ()
) -> RecordBatch:
    _require_size(size)
    file.seek(offset)
    header = file.read(size)
    skipped = 8 if header[:4] == b"\xff\xff\xff\xff" else 4
    content = header[skipped:]
    message = _Table(content, *struct.unpack_from("<I", content))
    batch = message.table(2)
    if content[message.place(1)] == 2:  # a dictionary
        batch = batch.table(1)
    buffers, at = batch.structs(2, "<qq"), batch.place(0)
    rows: int = struct.unpack_from("<q", content, at)[0] if at else 0
    if any(start < 0 or not 0 <= length <= nbytes for start, length in buffers):
        raise ValueError("a buffer lies outside of the file")
    chosen = _chosen(batch, len(buffers), schema, names)
    buffers = [each for each, is_chosen in zip(buffers, chosen, strict=True) if is_chosen]
    if not batch.place(3):
        return RecordBatch(rows, sum(length for _, length in buffers), is_compressed=False)
    total = 0
    for start, length in buffers:
        if length >= 8:
            file.seek(offset + size + start)
            (claimed,) = struct.unpack("<q", file.read(8))
            if claimed > MOST_RATIO * length:
                raise ValueError(f"{length:,} bytes are said to be {claimed:,} when they are decompressed")
            total += claimed if claimed >= 0 else length
    return RecordBatch(rows, total, is_compressed=True)
