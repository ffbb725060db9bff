"""Pickles that keep arrays as they are.

NumPy's own pickles convert most arrays to the machine's byte order. The array that arrives then has another dtype.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any, final

import numpy as np


def dumps(
    value: object,
    protocol: int = pickle.DEFAULT_PROTOCOL,
    buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None,
) -> bytes:
    """As `pickle.dumps`. `pickle.loads` then restores the dtypes of the value."""
    file = io.BytesIO()
    _BufferPickler(file, protocol, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


def reduced(array: Any) -> Any:
    """Implements `reducer_override` for an array: foreign byte order travels as if it were the machine's."""
    dtype = array.dtype
    if type(array) is not np.ndarray or dtype.isnative or dtype.names:  # the fields of records stay as they are
        return NotImplemented
    return np.ndarray.view, (array.view(dtype.newbyteorder("=")), dtype)


class TooLargeError(Exception):
    """A pickle has grown beyond its limit."""


@final
class Sink:
    """A file for a pickle that ends before it takes memory.

    Args:
        limit_nbytes: The largest size. A write beyond it raises `TooLargeError`.
        is_kept: Whether `pieces` keeps what is written, or it is only counted.
    """

    def __init__(self, limit_nbytes: int, *, is_kept: bool = True) -> None:
        self.pieces: list[bytes] = []
        self.nbytes = 0
        self._limit_nbytes, self._is_kept = limit_nbytes, is_kept

    def write(self, data: Any) -> None:
        """Appends, or raises."""
        self.nbytes += memoryview(data).nbytes
        if self.nbytes > self._limit_nbytes:
            raise TooLargeError(f"more than {self._limit_nbytes >> 20} MiB")
        if self._is_kept:
            self.pieces.append(bytes(data))


@final
class _BufferPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return reduced(obj) if isinstance(obj, np.ndarray) else NotImplemented
