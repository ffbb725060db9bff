"""HDF5 datasets (`h5py`) as a source: reopened by file name and path inside the file, wherever they are read.

HDF5 runs one call at a time in a process, and a handle must not cross to another. So the handle of a source
is two names; `open` opens the file read-only and reads under h5py's own lock.
"""

import os
from dataclasses import dataclass
from typing import Any, final

import h5py
import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentTypeError, SourceError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources._openfile import stamp
from penstock.sources.arrays import require_same_rows


@final
@dataclass(frozen=True)
class Hdf5Source(Source):
    """Rows of an HDF5 dataset."""

    path: str
    """The file."""
    name: str
    """The dataset's path in the file."""
    element_spec: ArraySpec
    count: int

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        return f"{self.path}{self.name}"

    def describe(self, index: int) -> str:
        """File, dataset and row."""
        return f"{self}[{index}]"

    def fingerprint_parts(self) -> dict[str, Any]:
        """The file by path, size and time of its last change, where it is one of this machine, and what is read."""
        state = stamp(self.path) if os.path.exists(self.path) else ()
        return {"the file": (self.path, *state), "the rows": (self.name, self.element_spec, self.count)}

    def open(self) -> "OpenHdf5Source":
        """Opens the file for reading."""
        return OpenHdf5Source(self)


@final
class OpenHdf5Source:
    """An `Hdf5Source` with its file open from the first read on."""

    def __init__(self, source: Hdf5Source) -> None:
        self._source = source
        self._file: h5py.File | None = None
        self._data: Any = None

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads each run of neighbouring rows in one call, in file order, so that a chunk is decoded once."""
        data = self._opened()
        if not len(indices):
            return
        order = np.argsort(indices, kind="stable")
        sorted_ = indices[order]
        breaks = np.flatnonzero(np.diff(sorted_) > 1) + 1
        for run in np.split(order, breaks):
            first, last = int(indices[run[0]]), int(indices[run[-1]])
            try:
                rows = data[first : last + 1]
            except OSError as error:
                raise SourceError(f"{self._source.describe(first)} to row {last} cannot be read: {error}") from error
            out[run] = rows[indices[run] - first]

    def _opened(self) -> Any:
        with h5py._hl.base.phil:  # h5py's own lock: two threads must not both open
            if self._data is None:
                try:
                    self._file = h5py.File(self._source.path, "r")
                    self._data = self._file[self._source.name]
                except (OSError, KeyError) as error:
                    raise SourceError(
                        f"{self._source} cannot be opened again: {error}. It has to be in a file on a disk that no "
                        "other process, and nobody here when workers read it, has open for writing."
                    ) from error
                if not isinstance(self._data, h5py.Dataset) or not self._data.shape:
                    raise SourceError(f"{self._source} has no rows now. Make the dataset again.")
                require_same_rows(self._source, len(self._source), self._source.element_spec, self._data)
        return self._data

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def from_dataset(data: Any) -> Hdf5Source:
    """Describes an open `h5py.Dataset` by names.

    Raises:
        ArgumentTypeError: It has no name.
    """
    if data.name is None:
        raise ArgumentTypeError(
            f"from_arrays() got {data!r}, which has no name, so nobody finds it again in its file. Make it with one: "
            "file.create_dataset('x', ...)."
        )
    spec = ArraySpec(data.shape[1:], data.dtype)
    name = data.file.filename
    # Whoever opens it again may be in another directory. What is no path, such as an URL, stays as it is.
    return Hdf5Source(os.path.abspath(name) if os.path.exists(name) else name, data.name, spec, len(data))


def is_dataset(leaf: object) -> bool:
    """Whether a leaf is an `h5py.Dataset`.

    Raises:
        ArgumentTypeError: Its file is closed already.
    """
    if isinstance(leaf, h5py.Dataset) and not leaf:
        raise ArgumentTypeError(
            "from_arrays() got a dataset of an HDF5 file that is closed. Call from_arrays() while it is open; "
            "afterwards it may be closed."
        )
    return isinstance(leaf, h5py.Dataset)
