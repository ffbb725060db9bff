"""The rows of a `.npy` file behind a URL, as a source. Rows that are neighbours in the file are one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.files import _openfile
from penstock.files._openfile import File, FilesSource, RecordReader, bounds_of
from penstock.memory._rows import Indices
from penstock.plan._parted import rows_of
from penstock.plan._source import Read
from penstock.sources import npy

Integers = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class RemoteArray(FilesSource):
    """The rows of an array in a remote file."""

    files: tuple[File, ...]
    """One file."""
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def element_spec(self) -> ArraySpec:
        return ArraySpec(self.shape[1:], self.dtype)

    @property
    def bounds(self) -> Integers:
        return bounds_of([self.shape[0]])

    def describe(self, index: int) -> str:
        return f"row {index} of {self.files[0]}"

    def open(self) -> "OpenRemoteArray":
        return OpenRemoteArray(self)


@final
class OpenRemoteArray(RecordReader):
    """Reads rows."""

    def __init__(self, source: RemoteArray) -> None:
        super().__init__(source.files, source.ahead_nbytes)
        self._source = source
        self._row_nbytes = source.element_spec.nbytes or 0

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests.

        Raises:
            SourceError: The file has changed, or its server fails.
        """
        if not self._row_nbytes:
            return
        for read, (members, data, starts), _ in self.requests(reads):
            rows = np.lib.stride_tricks.sliding_window_view(data, self._row_nbytes)[starts].view(self._source.dtype)
            read.arrays[0][rows_of(read.rows, members)] = rows.reshape(-1, *self._source.shape[1:])

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        offsets = self._source.offset + elements * self._row_nbytes
        return np.zeros_like(elements), offsets, np.full_like(elements, self._row_nbytes)


def source(url: str, storage_options: Any, cache: Any) -> RemoteArray:
    """Makes a source of a `.npy` file. Reads its header.

    Raises:
        SourceError: As `npy.describe`, or the array is in Fortran order.
    """
    file, *others = _openfile.find("from_npy", [url], storage_options, cache)
    if others:
        raise SourceError(f"{url} stands for {len(others) + 1:,} files. from_npy() reads one file. {npy.SEVERAL_FILES}")
    with file.scan() as stream:
        array = npy.described(stream, str(file), url, (0, 0, file.nbytes))
    if not array.has_whole_rows:
        raise SourceError(
            f"{url} is in Fortran order: a row is scattered over the whole file, and every element of it would be a "
            "request. Save it in C order: np.save(path, np.ascontiguousarray(array))."
        )
    return RemoteArray((file,), array.offset, array.shape, array.dtype)
