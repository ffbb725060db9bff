"""Arrays in files as a source: a handle that travels, and rows that are read straight into the batch.

Reads are calls of `pread` by the copy engine, on the calling thread and without the GIL. The file is not mapped here:
worker processes would show its pages as their memory.

Threads. `gather` and `advise` may be called by several threads at once: reads name their own offset. The source of the
engine owns a descriptor, and each call holds the source while it runs. So `close` closes the descriptor when the last
call under way has ended, and no read goes to another file with the same number. Opening and closing take a lock.
"""

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from penstock import native
from penstock.base._errors import DISK_FAILS, SourceError
from penstock.base._files import lasting_stamp
from penstock.base._spec import ArraySpec
from penstock.plan._source import Read, Source
from penstock.sources._mapped import mapping_options
from penstock.sources.arrays import copies_of
from penstock.sources.npy import StridedFile, require_same


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
        """The file by path, size, time of the last change and a mark of its content, and the places of the rows."""
        handle = self.handle
        return {
            "the file": (handle.path, *lasting_stamp(handle.path)),
            "the rows": (handle.offset, handle.shape, handle.dtype, handle.strides),
        }

    @property
    def local_files(self) -> Sequence[str]:
        return (self.handle.path,)

    def unstacked(self) -> "FileSource | None":
        parts = self.handle.unstacked()
        return None if parts is None else FileSource(parts)

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> "FileSource | None":
        parts = self.handle.patched(sizes, keeps_first=keeps_first)
        return None if parts is None else FileSource(parts)

    def arrays(self) -> Sequence[StridedFile]:
        """The array in the file."""
        return (self.handle,)

    def open(self) -> "FileRows":
        return FileRows(self.handle)


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

    def gather(self, reads: Sequence[Read]) -> None:
        """Executes reads.

        Raises:
            SourceError: The file is gone, was replaced or shortened, or cannot be read. Names the row.
        """
        reads = [read for read in reads if len(read.indices)]
        if not reads or not self.handle.row_nbytes:
            return
        source = self._opened(int(reads[0].indices[0]))
        try:
            native.copy(copies_of(source, reads))
        except native.CopyError as error:
            raise read_error(self.handle, error) from error

    def advise(self, indices: NDArray[np.int64]) -> None:
        """Announces rows that will be read soon, so that the kernel fetches them. Never fails."""
        if len(indices) and self.handle.row_nbytes:
            with suppress(OSError):
                native.announce([self._opened(int(indices[0]))], indices)

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
                    raise self.handle.fault(element, f"{self.handle.path} was closed.")
                source = self._source = self._source or file_source(self.handle, element, may_map=False)
        require_same(self.handle, element)
        return source


def file_source(file: StridedFile, element: int, *, may_map: bool, name: object = None) -> native.Source:
    """Opens an array in a file for the copy engine, as the user said, or in the fastest way.

    Raises:
        SourceError: The file is gone, was replaced, or is shorter than its array. Names the element.
    """
    inner = None if file.has_whole_rows else (file.dtype.itemsize, file.row_shape, file.strides[1:])
    try:
        size = require_same(file, element).st_size
        if size < file.extent[1]:
            raise file.is_shorter(element, size)
        name = file.path if name is None else name
        places = file.offset, file.shape[0], file.row_nbytes, file.strides[0]
        mapped, give_back_nbytes = bool(file.mapped), 0
        if file.mapped is None and may_map:
            mapped, give_back_nbytes = mapping_options(file.row_nbytes, inner is None, size)
        return native.Engine.file(
            file.path, *places, mapped=mapped, give_back_nbytes=give_back_nbytes, inner=inner, name=name
        )
    except SourceError:
        raise
    except OSError as error:
        raise file.is_gone(element, error) from error


def read_error(file: StridedFile, error: native.CopyError) -> SourceError:
    """The error of an element that could not be read, as users read it."""
    if error.errno == errno.ESTALE:
        try:
            require_same(file, error.element)
        except SourceError as found:
            return found
    try:
        size = os.stat(file.path).st_size
    except OSError as gone:
        return file.is_gone(error.element, gone)
    if not error.errno and size < file.extent[1]:
        return file.is_shorter(error.element, size)
    # A page of a mapped file that the disk cannot give comes without a number.
    return file.fault(error.element, f"{os.strerror(error.errno or errno.EIO)}, in {file.path}. {DISK_FAILS}")


def from_memmap(array: np.ndarray[Any, Any]) -> FileSource | None:
    """Returns the file of a memmap or of a view of one; None if there is no file to open again."""
    handle = StridedFile.of_memmap(array)
    return None if handle is None else FileSource(handle)
