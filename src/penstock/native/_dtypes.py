"""Conversions between numeric types, as the integers that both implementations take."""

from typing import Final

import numpy as np
from numpy.typing import DTypeLike

KINDS: Final = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""In the order of `Kind` in core.hpp."""


def conversion(source: DTypeLike, out: DTypeLike) -> int | None:
    """Returns the number that makes a copy convert like `astype`; None if the bytes stay as they are.

    Args:
        source: Type of the source's numbers.
        out: Type of the destination's.

    Raises:
        TypeError: The engine does not convert this pair. Examples: complex numbers, text, what becomes big-endian.
    """
    source, out = np.dtype(source), np.dtype(out)
    if source == out:
        return None
    names = [f"{dtype.kind}{dtype.itemsize}" for dtype in (source, out)]
    if not set(names) <= set(KINDS) or not out.isnative:
        raise TypeError(f"the copy engine does not convert {source} to {out}")
    first, second = (KINDS.index(name) + 1 for name in names)
    return first | second << 4 | (not source.isnative) << 8


def dtypes_of(code: int) -> tuple[np.dtype, np.dtype]:
    """Returns the types of a conversion, the inverse of `conversion`.

    Raises:
        ValueError: The number is no conversion.
    """
    if not (0 < code < 1 << 9 and 0 < code & 15 <= len(KINDS) and 0 < code >> 4 & 15 <= len(KINDS)):
        raise ValueError(f"{code} is not a conversion")
    source, out = np.dtype(KINDS[(code & 15) - 1]), np.dtype(KINDS[(code >> 4 & 15) - 1])
    return source.newbyteorder() if code & 256 else source, out
