"""The files of the ETL Character Database: finding and checking them, and reading their records.

From the pages "File formats" of the database (etlcdb.db.aist.go.jp). All records of a file have one size, and no gap
between them. Bits count from the highest of a byte. The words of 36 bits of ETL2 to ETL5 follow one another without a
gap. An image is rows of pixels from the top, with ink high and paper low.
"""

import glob
import os
import re
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.files import _recordindex
from penstock.files._openfile import File, described
from penstock.records._jis import Code

Bytes = npt.NDArray[np.uint8]


class EtlLayout(NamedTuple):
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
_M_KATAKANA: Final = EtlLayout(2052, 32, 63, 64, 4, "M katakana", (6, 2, 3))
_M_HIRAGANA: Final = EtlLayout(2052, 32, 63, 64, 4, "M hiragana", (6, 2, 3))
_C_KATAKANA: Final = EtlLayout(2952, 216, 76, 72, 4, "C katakana", (9, 18, 19, 20))
_C_HIRAGANA: Final = EtlLayout(2952, 216, 76, 72, 4, "C hiragana", (9, 18, 19, 20))

LAYOUTS: Final = {
    "ETL1": _M_KATAKANA,
    "ETL2": EtlLayout(2745, 45, 60, 60, 6, "CO-59", (21, 22)),
    "ETL3": _C_KATAKANA,
    "ETL4": _C_HIRAGANA,
    "ETL5": _C_KATAKANA,
    "ETL6": _M_KATAKANA,
    "ETL7": _M_HIRAGANA,
    "ETL8B": EtlLayout(512, 8, 63, 64, 1, "JIS X 0208", (2, 3), dummy_count=1),
    "ETL8G": EtlLayout(8199, 60, 127, 128, 4, "JIS X 0208", (2, 3)),
    "ETL9B": EtlLayout(576, 8, 63, 64, 1, "JIS X 0208", (2, 3), dummy_count=1),
    "ETL9G": EtlLayout(8199, 64, 127, 128, 4, "JIS X 0208", (2, 3)),
}
"""The layout of each part."""


def unpacked(records: Bytes, layout: EtlLayout) -> Bytes:
    """Unpacks images: 1-bit pixels to 0 and 255, 4-bit ones to multiples of 17, 6-bit ones to 0 to 255, rounded.

    NumPy runs without the GIL for nearly all of the time.

    Args:
        records: Records, `(n, record_nbytes)`.
        layout: Their layout.

    Returns:
        Their pixels, `(n, height * width)`.
    """
    packed = records[:, layout.image_at : layout.image_at + layout.image_nbytes]
    if layout.bits == 1:
        return np.negative(np.unpackbits(packed, axis=1))  # modulo 256, -1 is 255
    if layout.bits == 4:
        # Two pixels as one number of 16 bits, the left one in the lower byte, which comes first in memory.
        pairs = packed.astype("<u2")
        left = pairs >> 4
        pairs &= 15
        pairs <<= 8
        pairs |= left
        pairs *= 17
        return pairs.view(np.uint8)
    # Four pixels in three bytes.
    first, second, third = (packed[:, k::3] for k in range(3))
    levels = (first >> 2, (first & 3) << 4 | second >> 4, (second & 15) << 2 | third >> 6, third & 63)
    return _LEVELS_6[np.stack(levels, axis=-1)].reshape(len(records), -1)


_LEVELS_6: Final[Bytes] = np.rint(np.arange(64) * (255 / 63)).astype(np.uint8)


# `ETL8B2C1`, `ETL1C_01`, `ETL9G_50`, also in lower case; not `ETL10`, `ETL8B.zip` or, below, `ETL8INFO`.
_NAME: Final = re.compile(r"(ETL(?:[1-7](?!\d)|[89][BG]))[A-Z0-9_-]*(?:\.\d+)?")
_CO59: Final = "EUC_CO59.DAT"
# The folder of the database, that of a part, and one more that some programs create when they unpack.
_DEPTH: Final = 3
_CHUNK_NBYTES: Final = 4 << 20


def look(directory: str) -> tuple[dict[str, list[str]], list[str]]:
    """Finds the files of each part, and tables of CO-59, in a directory and its folders."""
    parts: dict[str, list[str]] = {}
    tables = []
    for depth in range(_DEPTH):
        for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*/" * depth, "*"))):
            name = os.path.basename(path).upper()
            match = _NAME.fullmatch(name)
            if match and "INFO" not in name and os.path.isfile(path):
                parts.setdefault(match[1], []).append(path)
            elif name == _CO59:
                tables.append(path)
    return parts, tables


def tables_in(directory: str) -> list[str]:
    """Finds tables of CO-59 in a directory, but not in its folders."""
    paths = glob.glob(os.path.join(glob.escape(directory), "*"))
    return [path for path in paths if os.path.basename(path).upper() == _CO59]


def apart(paths: list[str]) -> tuple[File, ...]:
    """Returns files sorted by name.

    Raises:
        SourceError: Two have the same name.
    """
    by_name: dict[str, str] = {}
    for path in paths:
        other = by_name.setdefault(os.path.basename(path).upper(), path)
        if other is not path:
            raise SourceError(
                f"{other} and {path} have the same name, so one is a copy of the other, and with both every character "
                "would come twice, also in training and validation. Give the folder of one, or remove the other."
            )
    return tuple(described(path) for _, path in sorted(by_name.items()))


def check(file: File, part: str) -> None:
    """Refuses a file that does not consist of whole records.

    Raises:
        SourceError: With the file's name and size.
    """
    layout = LAYOUTS[part]
    count, rest = divmod(file.nbytes, layout.record_nbytes)
    if rest or count <= layout.dummy_count:
        what = f"{count:,} records of {layout.record_nbytes:,} bytes and {rest:,} bytes more"
        raise SourceError(
            f"{file.url} has {file.nbytes:,} bytes: {what if rest else 'no character'}. A file of {part} is whole "
            f"records{', the first without a character' * bool(layout.dummy_count)}. It was cut off when it was copied "
            "or unpacked, or it is something else; unpack it again from the archive."
        )


def read_codes(file: File, layout: EtlLayout) -> npt.NDArray[np.uint32]:
    """Reads the codes of all records of a file except the dummies, 4 MiB at a time."""
    nbytes = layout.record_nbytes
    codes = np.zeros(file.nbytes // nbytes, np.uint32)
    weights = 256 ** np.arange(len(layout.code_at), dtype=np.uint32)[::-1]
    buffer = np.empty((max(1, _CHUNK_NBYTES // nbytes), nbytes), np.uint8)
    tell = _recordindex.progress(f"Reading the labels of {file.url}", file.nbytes)
    with file.stream() as stream:
        for first in range(0, len(codes), len(buffer)):
            records = buffer[: len(codes) - first]
            got = stream.readinto(records.data)
            if got < records.nbytes:
                raise SourceError(f"{file.url} ends at byte {first * nbytes + got:,} of {file.nbytes:,} now.")
            codes[first : first + len(records)] = records[:, layout.code_at] @ weights
            tell(first * nbytes + got)
    return codes[layout.dummy_count :]
