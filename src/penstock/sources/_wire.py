"""The bytes of `tf.train.Example`s: a walk over one record, and the parts to write one.

Every value of a protocol buffer has a tag: the number of its field and its form. The forms are a varint (0), 8 bytes
(1), 4 bytes (5), and a length with that many bytes (2). A varint is an integer in pieces of seven bits, the lowest
first.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MISSING, BYTES, FLOAT, INT64, MANY = 0, 1, 2, 3, 4
"""The kind of a feature in a record: the number of the field of `Feature`, or several byte strings."""
LISTS: Final = {BYTES: "bytes_list", FLOAT: "float_list", INT64: "int64_list", MANY: "bytes_list"}
"""Names of kinds for messages."""

Payloads = list[tuple[int, int]]


class DamagedError(Exception):
    """The bytes are no Example."""


class Found(NamedTuple):
    """A feature of one record."""

    kind: int
    start: int
    end: int
    values: list[bytes] | bytes | None = None
    """Values that are not contiguous: several byte strings, or unpacked numbers in packed form."""


ABSENT: Final = Found(MISSING, 0, 0)


def walk(view: memoryview, start: int, end: int) -> tuple[dict[bytes, Found], Payloads]:
    """Returns the features of the record at `view[start:end]`, and the places of all values.

    Raises:
        DamagedError: The record is no Example.
    """
    found: dict[bytes, Found] = {}
    payloads: Payloads = []
    for number, wire, at, stop in _fields(view, start, end):
        if number != 1 or wire != 2:
            continue
        for inner, inner_wire, entry, entry_end in _fields(view, at, stop):
            if inner == 1 and inner_wire == 2:
                _walk_entry(view, entry, entry_end, found, payloads)
    return found, payloads


def is_sequence(record: bytes) -> bool:
    """Whether it is a `tf.train.SequenceExample` with lists: its context lies where an Example has its features.

    Raises:
        DamagedError: It is neither.
    """
    return any(number == 2 and wire == 2 for number, wire, *_ in _fields(memoryview(record), 0, len(record)))


def _walk_entry(view: memoryview, start: int, end: int, found: dict[bytes, Found], payloads: Payloads) -> None:
    name, value = b"", ABSENT
    for number, wire, at, stop in _fields(view, start, end):
        if wire != 2:
            continue
        if number == 1:
            name = bytes(view[at:stop])
        elif number == 2:
            for kind, kind_wire, list_at, list_end in _fields(view, at, stop):
                if kind_wire == 2 and kind in (BYTES, FLOAT, INT64):
                    value = _walk_list(view, kind, list_at, list_end, payloads)
    found[name] = value  # the last of equal names counts, as always in protocol buffers


def _walk_list(view: memoryview, kind: int, start: int, end: int, payloads: Payloads) -> Found:
    parts = [(wire, at, stop) for number, wire, at, stop in _fields(view, start, end) if number == 1]
    payloads += [(at, stop) for _, at, stop in parts]
    if len(parts) == 1 and parts[0][0] == 2:
        return Found(kind, parts[0][1], parts[0][2])
    if kind == BYTES:
        return Found(MANY, start, end, [bytes(view[at:stop]) for _, at, stop in parts])
    # Numbers with a tag each, or in several packs. Their bytes are those of one pack.
    return Found(kind, start, end, b"".join(bytes(view[at:stop]) for _, at, stop in parts))


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of a message: number, form, and start and end of the content."""
    while at < end:
        tag, at = _read_varint(view, at, end)
        wire = tag & 7
        if wire == 2:
            nbytes, at = _read_varint(view, at, end)
            stop = at + nbytes
        elif wire == 0:
            stop = _read_varint(view, at, end)[1]
        elif wire in (1, 5):
            stop = at + (8 if wire == 1 else 4)
        else:
            raise DamagedError(f"it has a field of wire type {wire}")
        if stop > end:
            raise DamagedError("a field goes beyond the end of what it is in")
        yield tag >> 3, wire, at, stop
        at = stop


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("an integer is cut off or too long")


def field(number: int, content: bytes) -> bytes:
    """Returns a field that begins with its length."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Returns an int64 as a varint; a negative one takes ten bytes."""
    if 0 <= value < 0x80:
        return bytes([value])
    (value,) = struct.unpack("<Q", struct.pack("<q", value))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
