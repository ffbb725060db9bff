"""Damage to small files: flipped bits, cuts, splices, false lengths, other words."""

import random
import re
from collections.abc import Callable

_NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 65_535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40)
_LARGEST = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8)
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
