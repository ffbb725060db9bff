"""Rows of an array in a file, read into memory that the caller gives, many at a time.

Reads are calls of `pread` by the copy engine, on the calling thread and without the GIL. The file is not mapped here:
worker processes would show its pages as their memory.

Threads. `gather` and `advise` may be called by several threads at once: reads name their own offset. The source of the
engine owns a descriptor, and each call holds the source while it runs. So `close` closes the descriptor when the last
call under way has ended, and no read goes to another file with the same number. Opening and closing take a lock.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from penstock import native
from penstock.base._errors import SourceError
from penstock.sources.npy import StridedFile

Read: TypeAlias = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64] | slice]
"""`(indices, out, rows)`: row `indices[k]` of the file goes to `out[rows[k]]`."""


@final
class FileRows:
    """An open `StridedFile`.

    Args:
        handle: The array. The file is opened at the first read.
    """

    def __init__(self, handle: StridedFile) -> None:
        self.handle = handle
        self._source: native.Source | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def gather(self, reads: Iterable[Read]) -> None:
        """Executes reads.

        Raises:
            SourceError: The file is gone, was replaced or shortened, or cannot be read. Names the row.
        """
        reads = [read for read in reads if len(read[0])]
        if not reads or not self.handle.row_nbytes:
            return
        source = self._opened(int(reads[0][0][0]))
        try:
            native.copy([_copy(source, *read) for read in reads])
        except native.CopyError as error:
            raise read_error(self.handle, error) from error

    def advise(self, indices: NDArray[np.int64]) -> None:
        """Announces rows that will be read soon, so that the kernel fetches them. Never fails."""
        if len(indices) and self.handle.row_nbytes:
            with suppress(OSError):
                native.announce(self._opened(int(indices[0])), indices)

    def describe(self, index: int) -> str:
        """Names one row as a message should: `ds.npy[777]`."""
        return self.handle.describe(index)

    def close(self) -> None:
        """Closes the file when calls under way have ended; a later call is an error."""
        with self._lock:
            self._is_closed = True
            self._source = None

    def __reduce__(self) -> Any:
        raise TypeError(f"FileRows of {self.handle.path} is open in one process; send its handle and open that.")

    def _opened(self, element: int) -> native.Source:
        """Returns the source after a look at whether the name still means the same file (1 us)."""
        source = self._source
        if source is None:
            with self._lock:
                if self._is_closed:
                    raise SourceError(f"{self.describe(element)} cannot be read: {self.handle.path} was closed.")
                source = self._source = self._source or file_source(self.handle, element, mapped=False)
        require_same(self.handle, element)
        return source


def _copy(
    source: native.Source, indices: NDArray[np.int64], out: NDArray[Any], rows: NDArray[np.int64] | slice
) -> tuple[Any, ...]:
    return (source, indices, out[rows], None, None) if isinstance(rows, slice) else (source, indices, out, rows, None)


def file_source(file: StridedFile, element: int, *, mapped: native.Mapped, name: object = None) -> native.Source:
    """Opens an array in a file for the copy engine.

    Raises:
        SourceError: The file is gone, or shorter than its array. Names the element.
    """
    inner = None
    if file.runs[0] != file.row_nbytes:
        inner = (file.dtype.itemsize, file.row_shape, file.strides[1:])
    try:
        size = os.stat(file.path).st_size
        if size < file.extent[1]:
            raise file.is_shorter(element, size)
        return native.Engine.file(
            file.path,
            file.offset,
            file.shape[0],
            file.row_nbytes,
            file.strides[0],
            mapped=mapped,
            inner=inner,
            name=file.path if name is None else name,
        )
    except SourceError:
        raise
    except OSError as error:
        raise file.is_gone(element, error) from error


def require_same(file: StridedFile, element: int) -> None:
    """Refuses a file that is gone, or was replaced by another of the same name.

    Raises:
        SourceError: Names the element.
    """
    try:
        status = os.stat(file.path)
    except OSError as error:
        raise file.is_gone(element, error) from error
    if status.st_ino != file.st_ino or status.st_dev != file.st_dev:
        raise file.is_replaced(element, status.st_ino)


def read_error(file: StridedFile, error: native.CopyError) -> SourceError:
    """The error of an element that could not be read, as users read it."""
    if error.errno:
        return file.is_unreadable(error.element, error)
    return file.is_shorter(error.element, os.stat(file.path).st_size)
