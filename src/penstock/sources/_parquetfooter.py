"""The footer of a Parquet file, as far as it says how large columns are and whether they are encrypted.

pyarrow reads it too, but ends the process where the facts about a column chunk are damaged or encrypted, when it is
asked for them. The form is Thrift's compact protocol; see `parquet.thrift` of the Parquet format.
"""

from typing import Any, Final, NamedTuple

from penstock.base._errors import SourceError

_FALSE, _BYTES, _LIST, _SET, _STRUCT = 2, 8, 9, 10, 12
_INTEGERS: Final = (4, 5, 6)
_MOST_DEEP: Final = 64
# The numbers of fields.
_ROW_GROUPS, _COLUMNS, _META_DATA, _CRYPTO = 4, 1, 3, 8
_PHYSICAL, _ENCODINGS, _PATH, _VALUES, _UNCOMPRESSED = 1, 2, 3, 5, 6
_FACTS: Final[dict[int, Any]] = {each: {} for each in (_PHYSICAL, _ENCODINGS, _PATH, _VALUES, _UNCOMPRESSED)}
_WANTED: Final[dict[int, Any]] = {_ROW_GROUPS: {_COLUMNS: {_META_DATA: _FACTS, _CRYPTO: {}}}}


class Chunk(NamedTuple):
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


def chunks(url: str, footer: bytes) -> list[list[Chunk]]:
    """Returns the column chunks of each row group.

    Raises:
        SourceError: The footer is damaged.
    """
    try:
        content, _ = _fields(footer, 0, _WANTED)
        return [[_chunk(each) for each in group[_COLUMNS]] for group in content.get(_ROW_GROUPS, ())]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{url} is damaged: its footer cannot be read.") from error


def _chunk(column: dict[int, Any]) -> Chunk:
    if _META_DATA not in column:
        return Chunk((), False, False, (), 0, 0, True)
    facts = column[_META_DATA]
    path = tuple(str(name, "utf-8") for name in facts[_PATH])
    counts = int(facts[_VALUES]), int(facts[_UNCOMPRESSED])
    if min(counts) < 0:
        raise ValueError("negative")
    return Chunk(
        path, facts[_PHYSICAL] == 6, facts[_PHYSICAL] == 7, tuple(facts[_ENCODINGS]), *counts, _CRYPTO in column
    )


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
