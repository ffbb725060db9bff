"""Arrays in files as a source: a handle that travels, and rows that are read straight into the batch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.plan._source import Read, Source
from penstock.sources._filerows import FileRows
from penstock.sources._openfile import stamp
from penstock.sources.npy import StridedFile


@final
@dataclass(frozen=True)
class FileSource(Source):
    """Rows of an array that lies in a file. Equal handles are one source."""

    handle: StridedFile

    @property
    def element_spec(self) -> ArraySpec:
        """One row."""
        return ArraySpec(self.handle.row_shape, self.handle.dtype)

    def __len__(self) -> int:
        return self.handle.shape[0]

    def __str__(self) -> str:
        return os.path.basename(self.handle.path)

    def describe(self, index: int) -> str:
        """The file's name and the row."""
        return self.handle.describe(index)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The file by path, size and time of its last change, and where in it the rows lie."""
        handle = self.handle
        return {
            "the file": (handle.path, *stamp(handle.path)),
            "the rows": (handle.offset, handle.shape, handle.dtype, handle.strides),
        }

    def unstacked(self) -> "FileSource | None":
        """The parts of the rows, where they lie one after the other."""
        parts = self.handle.unstacked()
        return None if parts is None else FileSource(parts)

    def arrays(self) -> Sequence[StridedFile]:
        """The array in the file."""
        return (self.handle,)

    def open(self) -> "OpenFileSource":
        """The form that reads; the file itself is opened at the first read."""
        return OpenFileSource(self)


@final
class OpenFileSource:
    """A `FileSource` with its file open."""

    def __init__(self, source: FileSource) -> None:
        self._rows = FileRows(source.handle)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests at once: rows that are neighbours in the file come in one call."""
        self._rows.gather([(read.indices, read.arrays[0], read.rows) for read in reads])

    def advise(self, indices: Indices) -> None:
        """Has the kernel fetch the rows, unless they are in memory already."""
        self._rows.advise(indices)

    def close(self) -> None:
        """Closes the file."""
        self._rows.close()


def from_memmap(array: np.ndarray[Any, Any]) -> FileSource | None:
    """The file behind a memmap or a view of one; None where there is none to read again."""
    handle = StridedFile.of_memmap(array)
    return None if handle is None else FileSource(handle)
