"""Pickles that keep arrays as they are.

NumPy's own bring most arrays in the other order of bytes to the machine's, so that what arrived had another dtype than
what was sent.
"""

import io
import pickle
from typing import Any, final

import numpy as np


def dumps(value: object, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """As `pickle.dumps`; what `pickle.loads` makes of it has the dtypes of the value."""
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


def reduced(array: Any) -> Any:
    """What `reducer_override` returns for an array: one in the other order of bytes travels as if in the machine's."""
    dtype = array.dtype
    if type(array) is not np.ndarray or dtype.isnative or dtype.names:  # the fields of records stay as they are
        return NotImplemented
    return np.ndarray.view, (array.view(dtype.newbyteorder("=")), dtype)


@final
class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return reduced(obj) if isinstance(obj, np.ndarray) else NotImplemented
