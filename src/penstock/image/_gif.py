"""The first frame of a GIF, cut out of the file, so that no codec looks at the others."""

import struct
from typing import NamedTuple

from penstock.image._formats import truncated


class FirstFrame(NamedTuple):
    """A GIF of one frame, whose canvas is the frame: one around it might be of gigabytes."""

    data: bytes
    height: int
    width: int


def first_frame(data: memoryview) -> FirstFrame:
    """Returns the first frame of a GIF, of which `data` is all the bytes; what follows it is not looked at.

    Raises:
        ImageError: The file ends, or has its end mark, before the first frame does.
    """
    try:
        at = 13 + _table_nbytes(data[10])
        while data[at] != 0x2C:  # an image
            if data[at] != 0x21:  # an extension
                raise IndexError
            at = _after_blocks(data, at + 2)
        width, height, flags = struct.unpack_from("<HHB", data, at + 5)
        end = _after_blocks(data, at + 10 + _table_nbytes(flags) + 1)
    except (IndexError, struct.error):
        raise truncated(data, "within the first frame of the GIF") from None
    alone = bytearray(data[:end]) + b";"
    struct.pack_into("<HH", alone, 6, width, height)
    alone[11] = 0  # the colour around the frame, of which there is nothing: OpenCV refuses one beyond the palette
    struct.pack_into("<HH", alone, at + 1, 0, 0)
    return FirstFrame(bytes(alone), height, width)


def _table_nbytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: memoryview, at: int) -> int:
    """Where the chain of blocks that begins at `at` has ended; each begins with its length, and one of none is last."""
    while data[at]:
        at += data[at] + 1
    return at + 1
