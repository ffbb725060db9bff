"""Conversions between numeric types, as the integers that both implementations take."""

from typing import Final

import numpy as np
from numpy.typing import DTypeLike

KINDS: Final = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
"""In the order of `Kind` in core.hpp."""


def conversion(source: DTypeLike, out: DTypeLike) -> int | None:
    """Returns the number that makes a copy convert like `astype`; None if the bytes stay as they are.

    Args:
        source: Type of the source's numbers.
        out: Type of the destination's.

    Raises:
        TypeError: The engine does not convert this pair, such as text or dates.
    """
    source, out = np.dtype(source), np.dtype(out)
    if source == out:
        return None
    codes = [_kind(dtype) for dtype in (source, out)]
    if None in codes:
        raise TypeError(f"the copy engine does not convert {source} to {out}")
    is_swapped = [not dtype.isnative for dtype in (source, out)]
    first, second = (code + 1 for code in codes if code is not None)
    return first | second << 4 | is_swapped[0] << 8 | is_swapped[1] << 9


def can_convert(source: DTypeLike, out: DTypeLike) -> bool:
    """Returns whether `conversion` accepts the two types."""
    source, out = np.dtype(source), np.dtype(out)
    return source == out or (_kind(source) is not None and _kind(out) is not None)


def dtypes_of(code: int) -> tuple[np.dtype, np.dtype]:
    """Returns the types of a conversion, the inverse of `conversion`.

    Raises:
        ValueError: The number is no conversion.
    """
    if not (0 < code < 1 << 10 and 0 < code & 15 <= len(KINDS) and 0 < code >> 4 & 15 <= len(KINDS)):
        raise ValueError(f"{code} is not a conversion")
    source, out = np.dtype(KINDS[(code & 15) - 1]), np.dtype(KINDS[(code >> 4 & 15) - 1])
    return source.newbyteorder() if code & 256 else source, out.newbyteorder() if code & 512 else out


def _kind(dtype: np.dtype) -> int | None:
    name = f"{dtype.kind}{dtype.itemsize}"
    return KINDS.index(name) if name in KINDS else None
