"""Arrays in files as a source: a handle that travels, and rows that are read straight into the batch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from penstock.base._spec import ArraySpec
from penstock.plan._source import Read, Source
from penstock.sources._filerows import FileRows
from penstock.sources._openfile import stamp
from penstock.sources.npy import StridedFile


@final
@dataclass(frozen=True)
class FileSource(Source):
    """The rows of an array in a file. Equal handles are one source."""

    handle: StridedFile

    @property
    def element_spec(self) -> ArraySpec:
        return ArraySpec(self.handle.row_shape, self.handle.dtype)

    def __len__(self) -> int:
        return self.handle.shape[0]

    def __str__(self) -> str:
        return os.path.basename(self.handle.path)

    def describe(self, index: int) -> str:
        return self.handle.describe(index)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The file by path, size and time of the last change, and the places of the rows."""
        handle = self.handle
        return {
            "the file": (handle.path, *stamp(handle.path)),
            "the rows": (handle.offset, handle.shape, handle.dtype, handle.strides),
        }

    def unstacked(self) -> "FileSource | None":
        parts = self.handle.unstacked()
        return None if parts is None else FileSource(parts)

    def arrays(self) -> Sequence[StridedFile]:
        """The array in the file."""
        return (self.handle,)

    def open(self) -> "OpenFileSource":
        return OpenFileSource(FileRows(self.handle))


@final
class OpenFileSource:
    """Reads rows; the file is opened at the first read."""

    def __init__(self, rows: FileRows) -> None:
        self._rows = rows
        self.advise = rows.advise
        self.close = rows.close

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Rows that are neighbours in the file are one read."""
        self._rows.gather([(read.indices, read.arrays[0], read.rows) for read in reads])


def from_memmap(array: np.ndarray[Any, Any]) -> FileSource | None:
    """Returns the file of a memmap or of a view of one; None if there is no file to open again."""
    handle = StridedFile.of_memmap(array)
    return None if handle is None else FileSource(handle)
