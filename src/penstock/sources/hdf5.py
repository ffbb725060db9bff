"""HDF5 datasets (`h5py`) as a source: reopened in each process by file name and path in the file.

HDF5 runs one call at a time in a process, and an open object must not cross to another process. So a source is two
names. `open` gives an object that opens the file read-only and reads under h5py's own lock.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import h5py
import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentTypeError, SourceError, home_cure
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.sources._openfile import stamp
from penstock.sources.arrays import NamedSource


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Opens a file for a look.

    Raises:
        SourceError: It is missing, or no HDF5 file.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise SourceError(f"{os.fspath(path)} cannot be opened: {error}.{home_cure(os.fspath(path))}") from error
    with file:
        yield file


def names_in(file: h5py.File) -> list[str]:
    """Returns the paths of all arrays in a file."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


@final
@dataclass(frozen=True)
class Hdf5Source(NamedSource):
    """The rows of an HDF5 dataset."""

    path: str
    """The file."""
    name: str
    """The dataset's path in the file."""
    element_spec: ArraySpec
    count: int
    suits_one_thread = True  # HDF5 has one lock

    def __str__(self) -> str:
        return f"{self.path}{self.name}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """A local file by path, size and time of the last change, and the dataset in it."""
        state = stamp(self.path) if os.path.exists(self.path) else ()
        return {"the file": (self.path, *state), "the rows": (self.name, self.element_spec, self.count)}

    def open(self) -> "OpenHdf5Source":
        return OpenHdf5Source(self)


@final
class OpenHdf5Source:
    """Reads rows; the file is opened at the first read."""

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
        breaks = np.flatnonzero(np.diff(indices[order]) > 1) + 1
        for run in np.split(order, breaks):
            first, last = int(indices[run[0]]), int(indices[run[-1]])
            try:
                rows = data[first : last + 1]
            except OSError as error:
                raise SourceError(f"{self._source.describe(first)} to row {last} cannot be read: {error}") from error
            out[run] = rows[indices[run] - first]

    def _opened(self) -> Any:
        source = self._source
        with h5py._hl.base.phil:  # h5py's own lock, so that one thread opens the file
            if self._data is None:
                try:
                    self._file = h5py.File(source.path, "r")
                    data = self._file[source.name]
                except (OSError, KeyError) as error:
                    raise SourceError(
                        f"{source} cannot be opened again: {error}. It has to be in a file on a disk that is not open "
                        "for writing, neither in another process nor, with worker processes, in this one."
                    ) from error
                if not isinstance(data, h5py.Dataset) or not data.shape:
                    raise SourceError(f"{source} has no rows now. Make the dataset again.")
                source.require_same(data)
                self._data = data
        return self._data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def from_dataset(data: Any) -> Hdf5Source:
    """Describes an open `h5py.Dataset` by names.

    Raises:
        ArgumentTypeError: It has no name.
    """
    if data.name is None:
        raise ArgumentTypeError(
            f"from_arrays() got {data!r}, which has no name, so it cannot be found again in its file. Make it with "
            "one: file.create_dataset('x', ...)."
        )
    spec = ArraySpec(data.shape[1:], data.dtype)
    name = data.file.filename
    # Another process may have another current directory. A name that is no path, such as a URL, stays as it is.
    return Hdf5Source(os.path.abspath(name) if os.path.exists(name) else name, data.name, spec, len(data))


def is_dataset(leaf: object) -> bool:
    """Whether a leaf is an `h5py.Dataset`.

    Raises:
        ArgumentTypeError: Its file is closed.
    """
    if isinstance(leaf, h5py.Dataset) and not leaf:
        raise ArgumentTypeError(
            "from_arrays() got a dataset of an HDF5 file that is closed. Call from_arrays() while it is open; "
            "afterwards it may be closed."
        )
    return isinstance(leaf, h5py.Dataset)
