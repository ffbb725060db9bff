"""Damage to small files: flipped bits, cuts, splices, false lengths, other words, moved and doubled structures."""

import random
import re
from collections.abc import Callable

_NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 65_535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40)
_LARGEST = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8)
# Where structures of binary formats begin: lines, pages, chunks, segments, blocks, frames.
_MARKS = re.compile(
    rb"\n|PAR1|ARROW1|\xff\xff\xff\xff|\x93NUMPY|\x1f\x8b\x08|IHDR|PLTE|IDAT|IEND|tEXt|VP8[ LX]|ALPH|ANM[FN]"
    rb"|\xff[\xc0-\xfe]|[!,](?=[\xf9\xff\x00])|OHDR|OCHK|TREE|SNOD|HEAP|FRHP|FADB|BTHD|BTLF|GCOL|ustar|\{|\[|\"",
    re.DOTALL,
)
_HEADS = (
    b"PAR1", b"PARE", b"ARROW1\0\0", b"FEA1", b"\x93NUMPY\x01\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a",
    b"BM", b"II*\0", b"MM\0*", b"RIFF\0\0\0\0WEBP", b"\x1f\x8b\x08\0", b"\x78\x9c", b"\x28\xb5\x2f\xfd", b"BZh9",
    b"\xfd7zXZ\0", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\x80\x05", b"%PDF",
    b"\x7fELF", b"#!/bin/sh\n",
)  # fmt: skip
_WORDS = re.compile(rb"[A-Za-z_]+|-?\d+(?:\.\d+)?|[^\sA-Za-z_\d]|\s+")
_TOKENS = (
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 19, b"9" * 40, b"-9223372036854775809",
    b"18446744073709551616", b"1.5", b"''", b'"', b'""', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"[]",
    b"{}", b",", b":", b"\r", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"../", b"/",
    b"\x1b[2J", b"None", b"True", b"(", b")", b"|O", b"<f8", b"|V0", b"O", b"<U0", b"x" * 300, b"1970-01-01",
    b"2024-02-30",
)  # fmt: skip


def _flip(data: bytearray, rng: random.Random, other: bytes) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))


def _cut_end(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_out(data: bytearray, rng: random.Random, other: bytes) -> None:
    start = rng.randrange(len(data))
    del data[start : start + _size(rng, len(data))]


def _extend(data: bytearray, rng: random.Random, other: bytes) -> None:
    tail = (bytes(_size(rng, 2048)), rng.randbytes(_size(rng, 2048)), bytes(data), other)
    data += rng.choice(tail)[:4096]


def _repeat(data: bytearray, rng: random.Random, other: bytes) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + _size(rng, 256)]


def _move(data: bytearray, rng: random.Random, other: bytes) -> None:
    start, size = rng.randrange(len(data)), _size(rng, 256)
    part = data[start : start + size]
    del data[start : start + size]
    place = rng.randrange(len(data) + 1)
    data[place:place] = part


def _blank(data: bytearray, rng: random.Random, other: bytes) -> None:
    start, size = rng.randrange(len(data)), _size(rng, 256)
    data[start : start + size] = bytes([rng.choice((0, 32, 255))]) * len(data[start : start + size])


def _splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    if not other:
        return
    start, place = rng.randrange(len(other)), rng.randrange(len(data))
    if rng.random() < 0.5:
        data[place:] = other[start:]
    else:
        part = other[start : start + _size(rng, 256)]
        data[place : place + len(part)] = part


def _false_length(data: bytearray, rng: random.Random, other: bytes) -> None:
    """Puts a number of 1 to 8 bytes in the place of another, at any byte: most binary formats begin with lengths."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    if len(data) < width:
        return
    place = rng.randrange(min(len(data) - width + 1, rng.choice((16, 128, len(data)))))
    now = int.from_bytes(data[place : place + width], order)  # type: ignore[arg-type]
    near = (now + 1, now - 1, now * 2, now + 8, now + 256, len(data), len(data) - 1, len(data) + 1, -1, -8)
    number = rng.choice((*_NUMBERS, *_LARGEST, *near)) % (1 << 8 * width)
    data[place : place + width] = number.to_bytes(width, order)  # type: ignore[arg-type]


def _swap_numbers(data: bytearray, rng: random.Random, other: bytes) -> None:
    """Exchanges two numbers of 1 to 8 bytes, such as lengths."""
    width = rng.choice((1, 2, 4, 8, 8))
    count = min(len(data), rng.choice((64, 512, len(data)))) // width
    if not count:
        return
    start = rng.randrange(min(width, len(data) - count * width + 1))
    one, two = (start + width * rng.randrange(count) for _ in range(2))
    data[one : one + width], data[two : two + width] = data[two : two + width], data[one : one + width]


def _borders(data: bytearray, rng: random.Random) -> list[int]:
    """Three places in order at which structures begin or end."""
    found = [each.start() - rng.choice((0, 0, 4)) for each in _MARKS.finditer(data)]
    found += [0, len(data), *range(512, len(data), 512)]
    return sorted(max(0, rng.choice(found)) for _ in range(3))


def _cut_at_border(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[_borders(data, rng)[2] :]


def _double_section(data: bytearray, rng: random.Random, other: bytes) -> None:
    start, stop, place = _borders(data, rng)
    data[place:place] = data[start:stop][:4096]


def _swap_sections(data: bytearray, rng: random.Random, other: bytes) -> None:
    start, middle, stop = _borders(data, rng)
    data[start:stop] = data[middle:stop] + data[start:middle]


def _delete_section(data: bytearray, rng: random.Random, other: bytes) -> None:
    start, stop, _ = _borders(data, rng)
    del data[start:stop]


def _join(data: bytearray, rng: random.Random, other: bytes) -> None:
    """Puts whole files one behind the other."""
    data[:] = rng.choice((other + data, data + other, data + data))[: 1 << 16]


def _other_format(data: bytearray, rng: random.Random, other: bytes) -> None:
    """Gives the file the beginning of another format, or puts one before it."""
    head = rng.choice(_HEADS)
    data[: rng.choice((0, len(head)))] = head


def _other_token(data: bytearray, rng: random.Random, other: bytes) -> None:
    words = list(_WORDS.finditer(data))
    if not words:
        return
    word = rng.choice(words)
    new = rng.choice((rng.choice(_TOKENS), rng.choice(words).group(), word.group() * 2))
    data[word.start() : word.end()] = new


def _insert_token(data: bytearray, rng: random.Random, other: bytes) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.choice(_TOKENS)


_ANY: tuple[Callable[[bytearray, random.Random, bytes], None], ...] = (
    _flip, _flip, _set_byte, _cut_end, _cut_out, _extend, _repeat, _move, _blank, _splice, _false_length, _false_length,
    _swap_numbers, _cut_at_border, _double_section, _swap_sections, _delete_section, _join, _other_format,
)  # fmt: skip
_TEXT = (_other_token, _other_token, _other_token, _insert_token)


def _size(rng: random.Random, most: int) -> int:
    return rng.choice((1, 1, 2, 4, 8, 16, rng.randint(1, max(1, most))))


def mutated(data: bytes, rng: random.Random, other: bytes, *, is_text: bool) -> bytes:
    """Returns damaged content.

    Args:
        data: The content.
        rng: Decides.
        other: Another file of the format, for splices.
        is_text: Whether words are exchanged as well; in binary files less often.
    """
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not result:
            break
        words = rng.random() < (0.6 if is_text else 0.1)
        rng.choice(_TEXT if words else _ANY)(result, rng, other)
    return bytes(result)
