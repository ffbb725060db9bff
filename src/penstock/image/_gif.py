"""The first frame of a GIF, cut out of the file, so that no codec reads the others."""

import struct
from typing import NamedTuple

from penstock.image._formats import truncated


class FirstFrame(NamedTuple):
    """A GIF of one frame, whose canvas is the frame. A larger canvas might take gigabytes."""

    data: bytes
    height: int
    width: int


def first_frame(data: memoryview) -> FirstFrame:
    """Returns the first frame of a GIF. The rest of the file is not read.

    Args:
        data: All bytes of the file.

    Raises:
        ImageError: The file, or its end mark, comes before the end of the first frame.
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
    alone[11] = 0  # the background colour, unused: OpenCV refuses one beyond the palette
    struct.pack_into("<HH", alone, at + 1, 0, 0)
    return FirstFrame(bytes(alone), height, width)


def _table_nbytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: memoryview, at: int) -> int:
    """Returns the end of a chain of blocks. Each begins with its length, and an empty block is the last."""
    while data[at]:
        at += data[at] + 1
    return at + 1
