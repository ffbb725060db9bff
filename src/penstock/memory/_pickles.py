"""Pickles that keep arrays as they are.

NumPy's own pickles convert most arrays to the machine's byte order. The array that arrives then has another dtype.
"""

import io
import pickle
from typing import Any, final

import numpy as np


def dumps(value: object, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """As `pickle.dumps`. `pickle.loads` then restores the dtypes of the value."""
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


def reduced(array: Any) -> Any:
    """Implements `reducer_override` for an array: foreign byte order travels as if it were the machine's."""
    dtype = array.dtype
    if type(array) is not np.ndarray or dtype.isnative or dtype.names:  # the fields of records stay as they are
        return NotImplemented
    return np.ndarray.view, (array.view(dtype.newbyteorder("=")), dtype)


@final
class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return reduced(obj) if isinstance(obj, np.ndarray) else NotImplemented
