"""Zarr arrays as a source: the array object itself is a handle, for its store is a name.

Where a chunk is not there Zarr gives the fill value. So an array that is gone, or that is looked for in another
directory, would be read as zeros: it is looked at again wherever it is opened, under its absolute path.
"""

import os
from typing import Any, final

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from penstock._errors import SourceError
from penstock._plan._node import Indices
from penstock._plan._source import Source
from penstock._spec import ArraySpec
from penstock.sources._openfile import stamp


@final
class ZarrSource(Source):
    """Rows of a Zarr array. It pickles with its store, which for local files is a path."""

    def __init__(self, array: Any) -> None:
        self._array = _found_from_anywhere(array)
        self.element_spec = ArraySpec(array.shape[1:], array.dtype)

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __str__(self) -> str:
        return str(self._array.store_path)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The array; in a directory, its files by path, size and time of their last change."""
        store = self._array.store
        if not isinstance(store, LocalStore):
            return {"the array": self._array}
        folder = os.path.join(store.root, self._array.path)
        files: list[tuple[str, int, int]] = []
        for where, _, names in os.walk(folder):
            paths = [os.path.join(where, name) for name in names]
            files.extend((os.path.relpath(path, folder), *stamp(path)) for path in paths)
        return {"the array": str(self), "its files": sorted(files)}

    def open(self) -> "ZarrSource":
        """Looks whether the array is still there.

        Raises:
            SourceError: It is gone, or shorter.
        """
        try:
            now = zarr.open_array(self._array.store_path, mode="r")
        except (OSError, KeyError, ValueError) as error:
            raise SourceError(f"{self} cannot be opened again: {error}. Put it back.") from error
        if now.shape[0] < len(self):
            raise SourceError(
                f"{self} has {now.shape[0]} rows now; it had {len(self)} when the dataset was made. Make the dataset "
                "again."
            )
        return self

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


def _found_from_anywhere(array: Any) -> Any:
    """The same array; by its absolute path, if its store is a directory."""
    store = array.store
    if not isinstance(store, LocalStore) or store.root.is_absolute():
        return array
    return zarr.open_array(LocalStore(store.root.absolute(), read_only=True), path=array.path, mode="r")
