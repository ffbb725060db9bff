"""The footer of a Parquet file and the headers of its pages, as far as they say how large columns are.

pyarrow reads them too, but ends the process where the facts about a column chunk are damaged or encrypted, when it is
asked for them; and it makes room for as much as the header of a page says. The form is Thrift's compact protocol; see
`parquet.thrift` of the Parquet format.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError, SpecError
from penstock.formats._columns import spec_of
from penstock.formats._leaves import Leaf
from penstock.sources._openfile import File

_FALSE, _BYTES, _LIST, _SET, _STRUCT = 2, 8, 9, 10, 12
_INTEGERS: Final = (4, 5, 6)
_DAMAGE: Final = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What values of another form raise."""
_MOST: Final = 1 << 44
_MOST_DEEP: Final = 64
# The numbers of fields.
_ROW_GROUPS, _COLUMNS, _META_DATA, _CRYPTO = 4, 1, 3, 8
_PHYSICAL, _ENCODINGS, _PATH, _VALUES, _UNCOMPRESSED = 1, 2, 3, 5, 6
_DATA_PAGE, _DICTIONARY_PAGE = 9, 11
_FACTS: Final[dict[int, Any]] = {each: {} for each in (_PHYSICAL, _ENCODINGS, _PATH, _VALUES, _UNCOMPRESSED)}
_WANTED: Final[dict[int, Any]] = {_ROW_GROUPS: {_COLUMNS: {_META_DATA: _FACTS, _CRYPTO: {}}}}

_PLACES: Final[dict[int, Any]] = {
    _ROW_GROUPS: {_COLUMNS: {_META_DATA: {each: {} for each in (_VALUES, _DATA_PAGE, _DICTIONARY_PAGE)}}}
}
_PLACED_FILES: Final = 16
"""Files whose column chunks are found once, as they are read one after the other."""
# Of the header of a page: its bytes when it is decompressed, and in the file; and how many values two kinds have.
_EXPANDED, _STORED, _DATA, _DATA_2, _COUNT = 2, 3, 5, 8, 1
_PAGE: Final[dict[int, Any]] = {_EXPANDED: {}, _STORED: {}, _DATA: {_COUNT: {}}, _DATA_2: {_COUNT: {}}}
HEADER_NBYTES, _MOST_HEADER_NBYTES = 256, 16 << 20
"""Most headers are shorter; with long texts as the least and the largest value they are longer."""

TAIL_NBYTES: Final = 64 << 10
"""The end of a file that is requested at once; most footers are smaller."""
_COLUMN_KEY: Final = re.compile(
    rb"(?:\x2c|\x0c\x04)(?:\x19|\x09\x02)[\x08\x18\x28\x38\x48\x58\x68\x78\x88\x98\xa8\xb8\xc8\xd8\xe8\xf8]"
)
"""In a footer: how the key of an encrypted column may begin. Other things may too."""
_PLAIN_DICTIONARY, _DELTA_LENGTHS, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 6, 7, 8
DICTIONARY_NBYTES: Final = 2 << 20
"""Writers limit dictionaries to a MiB. Chunks with much more than that also have text outside of the dictionary, which
takes ten times as long to read into one."""
SHARED, PLAIN, PREFIXED = 1, 2, 3
"""The forms of text: in a dictionary, as it is, and with common prefixes."""


class ColumnChunk(NamedTuple):
    """The values of a column in a row group."""

    path: tuple[str, ...]
    is_of_bytes: bool
    """Whether values are bytes or text of any size."""
    is_of_fixed_bytes: bool
    encodings: tuple[int, ...]
    value_count: int
    nbytes: int
    """Of its pages, when they are decompressed."""
    is_encrypted: bool


def _chunks(url: str, footer: bytes) -> list[list[ColumnChunk]]:
    """Returns the column chunks of each row group.

    Raises:
        SourceError: The footer is damaged.
    """
    with _damage_of(url):
        content, _ = _fields(footer, 0, _WANTED)
        return [[_chunk(each) for each in group[_COLUMNS]] for group in content.get(_ROW_GROUPS, ())]


@contextmanager
def _damage_of(url: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise SourceError(f"{url} is damaged: its footer cannot be read.") from error


def _chunk(column: dict[int, Any]) -> ColumnChunk:
    if _META_DATA not in column:
        return ColumnChunk((), False, False, (), 0, 0, True)
    facts = column[_META_DATA]
    path = tuple(str(name, "utf-8") for name in facts[_PATH])
    counts = int(facts[_VALUES]), int(facts[_UNCOMPRESSED])
    if not 0 <= min(counts) <= max(counts) <= _MOST:
        raise ValueError("no such size")
    return ColumnChunk(
        path, facts[_PHYSICAL] == 6, facts[_PHYSICAL] == 7, tuple(facts[_ENCODINGS]), *counts, _CRYPTO in column
    )


def _footer(file: File) -> bytes:
    with file.stream() as stream:
        stream.seek(max(0, file.nbytes - TAIL_NBYTES))
        tail = stream.read()
        size = min(int.from_bytes(tail[-8:-4], "little"), file.nbytes - 8)
        if size > len(tail) - 8:
            stream.seek(file.nbytes - 8 - size)
            tail = stream.read()
        return tail[-8 - size : -8]


@lru_cache(_PLACED_FILES)
def chunk_places(file: File) -> npt.NDArray[np.int64]:
    """Returns the first byte and the number of values of each column chunk: shape `(row groups, columns, 2)`.

    Raises:
        SourceError: The footer is damaged.
    """
    with _damage_of(file.url):
        content, _ = _fields(_footer(file), 0, _PLACES)
        places = [[_place(column.get(_META_DATA, {})) for column in group[_COLUMNS]] for group in content[_ROW_GROUPS]]
        return np.array(places, np.int64).reshape(len(places), -1, 2)


def _place(facts: dict[int, Any]) -> tuple[int, int]:
    if not facts:  # it is encrypted
        return 0, 0
    begin = min(facts[each] for each in (_DATA_PAGE, _DICTIONARY_PAGE) if facts.get(each) or each == _DATA_PAGE)
    return int(begin), int(facts[_VALUES])


def stored_chunks(
    file: File, numbers: Mapping[tuple[str, ...], int], types: Mapping[str, Any], group_count: int
) -> Mapping[tuple[str, ...], Sequence[ColumnChunk]]:
    """Returns what the footer says of the column chunks, if they are of any size, or may be encrypted.

    Raises:
        SourceError: One of the columns is encrypted, or the footer is damaged.
    """
    footer = _footer(file)
    if all(map(_is_of_one_size, types.values())) and _COLUMN_KEY.search(footer) is None:
        return {}
    groups = _chunks(file.url, footer)
    if len(groups) != group_count:
        raise SourceError(
            f"{file.url} is damaged: its footer has {len(groups)} row groups, and pyarrow finds {group_count}."
        )
    if any(len(group) <= max(numbers.values(), default=-1) for group in groups):
        raise SourceError(f"{file.url} is damaged: a row group in its footer lacks a column.")
    found = {path: [group[number] for group in groups] for path, number in numbers.items()}
    for path, each in found.items():
        if any(chunk.is_encrypted for chunk in each):
            raise SourceError(
                f"{file.url}: column {path[0]!r} is encrypted, and penstock has no keys. Leave it out with "
                "columns=[...], or write the file without encryption."
            )
    return found


def pages_nbytes(stream: BinaryIO, chunk: Sequence[int], file_nbytes: int) -> int:
    """Returns the bytes of the pages of a column chunk when they are decompressed, as the headers of the pages say.

    Args:
        stream: The file.
        chunk: Its first byte, and the number of its values. Where they end, readers stop, whatever else it has.
        file_nbytes: The bytes of the file.

    Raises:
        ValueError: A header is damaged, or its page does not lie in the file.
    """
    (at, value_count), total = chunk, 0
    while value_count > 0:
        size, expanded, stored, count = _page(stream, at)
        at += size + stored
        if min(expanded, stored) < 0 or at > file_nbytes:
            raise ValueError(f"a page says that it has {stored:,} bytes, and {expanded:,} when it is decompressed")
        total += expanded
        value_count -= max(0, count)
    return total


def _page(stream: BinaryIO, at: int) -> tuple[int, int, int, int]:
    """Returns the bytes of the header of a page, those of the page decompressed and in the file, and its values."""
    nbytes = HEADER_NBYTES
    while True:
        stream.seek(at)
        data = stream.read(nbytes)
        try:
            page, size = _fields(data, 0, _PAGE)
            counts = (page[kind][_COUNT] for kind in (_DATA, _DATA_2) if kind in page)
            return size, int(page[_EXPANDED]), int(page[_STORED]), int(next(counts, 0))
        except _DAMAGE as error:
            if not isinstance(error, IndexError) or len(data) < nbytes or nbytes >= _MOST_HEADER_NBYTES:
                raise ValueError("the header of a page cannot be read") from error
        nbytes *= 16


def form_of(chunk: ColumnChunk) -> int:
    """How the values of a column chunk may repeat long text, as the footer says; 0 if they are no text."""
    if not chunk.is_of_bytes:
        return 0
    if _DELTA_BYTE_ARRAY in chunk.encodings:
        return PREFIXED
    # Arrow reads no pages with lengths into a dictionary.
    is_shared = {_PLAIN_DICTIONARY, _RLE_DICTIONARY} & set(chunk.encodings) and _DELTA_LENGTHS not in chunk.encodings
    return SHARED if is_shared and chunk.nbytes <= 8 * chunk.value_count + DICTIONARY_NBYTES else PLAIN


def leaf_size(leaf: Leaf, row_count: int, stored: Sequence[ColumnChunk] | None, number: int) -> int:
    """Returns the bytes of a leaf of a row group: exact for numbers, an estimate for text, bytes and lists."""
    spec = leaf.spec
    if spec.is_bounded:
        return row_count * (spec.nbytes or 0)
    nbytes = 8 * (row_count + 1)
    if stored is None:
        return nbytes
    chunk = stored[number]
    if chunk.is_of_bytes:
        return nbytes + chunk.nbytes + 8 * chunk.value_count * len(spec.shape)
    of_bytes = chunk.is_of_fixed_bytes and spec.dtype == np.uint8
    return nbytes + chunk.value_count * spec.dtype.itemsize * (spec.shape[-1] or 1 if of_bytes else 1)


def _is_of_one_size(kind: Any) -> bool:
    try:
        return spec_of("", kind).is_bounded
    except SpecError:
        return False


# The values of the compact protocol. Each function takes the bytes and a place, and returns the place behind.


def _fields(data: bytes, at: int, wanted: dict[int, Any], depth: int = 0) -> tuple[dict[int, Any], int]:
    """Reads the wanted fields of a struct. `wanted` has for structs, and for lists of them, what is wanted in them."""
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if number not in wanted:
            at = _skipped(data, at, kind, depth)
        elif kind == _STRUCT:
            found[number], at = _fields(data, at, wanted[number], depth + 1)
        elif kind in _INTEGERS:
            found[number], at = _integer(data, at)
        elif kind == _LIST:
            found[number], at = _list(data, at, wanted[number], depth + 1)
        else:
            raise ValueError("another type")
    return found, at + 1


def _list(data: bytes, at: int, wanted: dict[int, Any], depth: int) -> tuple[list[Any], int]:
    count, kind, at = _list_head(data, at)
    found: list[Any] = []
    for _ in range(count):
        value: Any
        if kind == _STRUCT:
            value, at = _fields(data, at, wanted, depth)
        elif kind == _BYTES:
            size, at = _unsigned(data, at)
            value, at = data[at : at + size], at + size
        elif kind in _INTEGERS:
            value, at = _integer(data, at)
        else:
            raise ValueError("another type")
        found.append(value)
    return found, at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    head = data[at]
    count, at = _unsigned(data, at + 1) if head >> 4 == 15 else (head >> 4, at + 1)
    if count > len(data) - at:
        raise IndexError("too short")
    return count, head & 15, at


def _skipped(data: bytes, at: int, kind: int, depth: int) -> int:
    if kind in _INTEGERS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BYTES:
        size, at = _unsigned(data, at)
        return at + size
    if kind <= _FALSE:
        return at
    if kind == 3:
        return at + 1
    if kind == 7:
        return at + 8
    if depth > _MOST_DEEP:
        raise ValueError("too deep")
    if kind == _STRUCT:
        while head := data[at]:
            at += 1
            if head < 16:
                at = _integer(data, at)[1]
            at = _skipped(data, at, head & 15, depth + 1)
        return at + 1
    if kind in (_LIST, _SET):
        count, kind, at = _list_head(data, at)
        for _ in range(count):
            at = at + 1 if kind <= _FALSE else _skipped(data, at, kind, depth + 1)
        return at
    raise ValueError("no such type")  # and no map is in a footer


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 127
    shift = 7
    while data[at] > 127:
        at += 1
        value |= (data[at] & 127) << shift
        shift += 7
        if shift > 70:
            raise ValueError("too long")
    return value, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
