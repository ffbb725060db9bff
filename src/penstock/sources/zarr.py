"""Zarr arrays as a source: the array object itself is a handle, for its store is a name."""

from typing import Any, final

import numpy as np
import numpy.typing as npt
import zarr

from penstock._errors import SourceError
from penstock._plan._node import Indices
from penstock._plan._source import Source
from penstock._spec import ArraySpec


@final
class ZarrSource(Source):
    """Rows of a Zarr array. It pickles with its store, which for local files is a path."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.element_spec = ArraySpec(array.shape[1:], array.dtype)

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __str__(self) -> str:
        return str(self._array.store_path)

    def describe(self, index: int) -> str:
        """The store and the row."""
        return f"{self}[{index}]"

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads the rows in one call, so that each chunk is decoded once."""
        rows, places = np.unique(indices, return_inverse=True)
        try:
            out[...] = self._array.oindex[rows][places]
        except (OSError, KeyError, ValueError, RuntimeError) as error:  # codecs raise what they like
            raise SourceError(f"{self.describe(int(rows[0]))} and {len(rows) - 1} more rows: {error}") from error


def is_array(leaf: object) -> bool:
    """Whether a leaf is a `zarr.Array`."""
    return isinstance(leaf, zarr.Array)
