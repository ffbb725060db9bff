"""The records of the ETL Character Database: the places of code and image, and the packing of pixels.

From the pages "File formats" of the database (etlcdb.db.aist.go.jp). All records of a file have one size, and no gap
between them. Bits count from the highest of a byte. The words of 36 bits of ETL2 to ETL5 follow one another without a
gap. An image is rows of pixels from the top, with ink high and paper low.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.sources._jis import Code

Bytes = npt.NDArray[np.uint8]

# Bytes that are unpacked at once. They and their pixels stay in the core's cache.
_BLOCK_NBYTES: Final = 64 << 10


@final
@dataclass(frozen=True)
class Layout:
    """The record of one part of the database."""

    record_nbytes: int
    image_at: int
    """The first byte of the image."""
    height: int
    width: int
    bits: Literal[1, 4, 6]
    """Bits of one pixel."""
    code: Code
    """The code of characters."""
    code_at: tuple[int, ...]
    """The bytes of the code, at most four, the most significant first."""
    dummy_count: int = 0
    """Records without a character at the start of each file."""

    @property
    def image_nbytes(self) -> int:
        return self.height * self.width * self.bits // 8


# M, K, C, B and G are the database's names of the types. Types M and C have a name in letters beside the code.
_M_KATAKANA: Final = Layout(2052, 32, 63, 64, 4, "M katakana", (6, 2, 3))
_M_HIRAGANA: Final = Layout(2052, 32, 63, 64, 4, "M hiragana", (6, 2, 3))
_C_KATAKANA: Final = Layout(2952, 216, 76, 72, 4, "C katakana", (9, 18, 19, 20))
_C_HIRAGANA: Final = Layout(2952, 216, 76, 72, 4, "C hiragana", (9, 18, 19, 20))

LAYOUTS: Final = {
    "ETL1": _M_KATAKANA,
    "ETL2": Layout(2745, 45, 60, 60, 6, "CO-59", (21, 22)),
    "ETL3": _C_KATAKANA,
    "ETL4": _C_HIRAGANA,
    "ETL5": _C_KATAKANA,
    "ETL6": _M_KATAKANA,
    "ETL7": _M_HIRAGANA,
    "ETL8B": Layout(512, 8, 63, 64, 1, "JIS X 0208", (2, 3), dummy_count=1),
    "ETL8G": Layout(8199, 60, 127, 128, 4, "JIS X 0208", (2, 3)),
    "ETL9B": Layout(576, 8, 63, 64, 1, "JIS X 0208", (2, 3), dummy_count=1),
    "ETL9G": Layout(8199, 64, 127, 128, 4, "JIS X 0208", (2, 3)),
}
"""The layout of each part."""


def codes_of(records: Bytes, layout: Layout) -> npt.NDArray[np.uint32]:
    """Returns the code of each record, `(n,)`, of records `(n, record_nbytes)`."""
    codes = np.zeros(len(records), np.uint32)
    for position in layout.code_at:
        codes <<= np.uint32(8)
        codes |= records[:, position]
    return codes


def unpack(records: Bytes, numbers: npt.NDArray[np.int64], layout: Layout, out: Bytes) -> None:
    """Unpacks images: 1-bit pixels to 0 and 255, 4-bit ones to multiples of 17, 6-bit ones to 0 to 255, rounded.

    NumPy runs without the GIL for nearly all of the time. Memory: about 1 MiB.

    Args:
        records: Records, `(any, record_nbytes)`.
        numbers: The records to unpack, `(n,)`.
        layout: Their layout.
        out: Their pixels, `(n, height * width)`, each row C-contiguous.
    """
    into = {1: _unpack_1, 4: _unpack_4, 6: _unpack_6}[layout.bits]
    count = max(1, _BLOCK_NBYTES // layout.record_nbytes)
    for first in range(0, len(numbers), count):
        block = records[numbers[first : first + count]]
        into(block[:, layout.image_at : layout.image_at + layout.image_nbytes], out[first : first + count])


def _unpack_1(packed: Bytes, out: Bytes) -> None:
    np.negative(np.unpackbits(packed, axis=1), out=out)  # modulo 256, -1 is 255


def _unpack_4(packed: Bytes, out: Bytes) -> None:
    # Two pixels as one number of 16 bits, the left one in the lower byte, which comes first in memory.
    pairs = packed.astype("<u2")
    left = pairs >> 4
    pairs &= 15
    pairs <<= 8
    pairs |= left
    np.multiply(pairs, 17, out=out.view("<u2"))


def _unpack_6(packed: Bytes, out: Bytes) -> None:
    # Four pixels in three bytes.
    first, second, third = (packed[:, k::3] for k in range(3))
    levels = (first >> 2, (first & 3) << 4 | second >> 4, (second & 15) << 2 | third >> 6, third & 63)
    for k, level in enumerate(levels):
        out[:, k::4] = _LEVELS_6[level]


_LEVELS_6: Final[npt.NDArray[Any]] = np.rint(np.arange(64) * (255 / 63)).astype(np.uint8)
