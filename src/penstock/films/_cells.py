"""Bytes of remote films, requested before the decoder asks for them, in cells of equal size.

A decoder reads 32 KiB at a time, and decides itself what it reads next. So what it will need is announced by cells of
the file, and read by whole cells: a cell is one request, whoever asks first. With a disk cache, cells are its blocks.
Some cells stay in memory, because neighbouring groups of pictures, which are in one, are wanted at other times.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from penstock.base._files import Readable
from penstock.files._openfile import File, OpenFiles
from penstock.memory._rows import Indices

CELL_NBYTES: Final = 256 << 10
"""About what eight frames of 480x640 take. Cells of 1 MiB would bring three times the bytes."""
_LEAST_KEPT: Final = 16


@final
class Cells:
    """Reads films. Any number of threads may use it.

    Args:
        files: The films.
        nbytes: The bytes that are kept. Half as many may be requested ahead.
    """

    def __init__(self, files: Sequence[File], nbytes: int) -> None:
        self.files = OpenFiles(files, nbytes // 2)
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], bytes] = {}
        """By file and number; the latest last. So heads of films stay, which a decoder that is opened again reads."""
        self._most = max(_LEAST_KEPT, nbytes // CELL_NBYTES)

    def announce(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Requests the bytes from a first to a last one of files, in this order. Never waits."""
        keys = (
            (number, cell)
            for number, first, last in ranges
            for cell in range(first // CELL_NBYTES, last // CELL_NBYTES + 1)
        )
        if missing := [each for each in dict.fromkeys(keys) if each not in self._kept]:
            self.files.announce(*self._places(missing))

    def load(self, number: int, first: int, last: int) -> None:
        """Reads the cells that hold bytes of a file, if their place is known."""
        for cell in range(first // CELL_NBYTES, last // CELL_NBYTES + 1) if first >= 0 else ():
            self.read(number, cell)

    def _places(self, keys: list[tuple[int, int]]) -> tuple[Indices, Indices, Indices]:
        """The file, first byte and bytes of each cell."""
        each = ((number, at := cell * CELL_NBYTES, self.files.files[number].nbytes - at) for number, cell in keys)
        numbers, offsets, sizes = np.array([*each]).T
        return numbers, offsets, np.minimum(sizes, CELL_NBYTES)

    def read(self, number: int, cell: int) -> bytes:
        """Returns a cell of a file; waits for its request."""
        key = number, cell
        if (data := self._kept.get(key)) is None:
            (chunk,) = self.files.chunks(*self._places([key]))
            data = chunk.data.tobytes()
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = data
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return data


@final
class FilmStream(Readable):
    """A film for FFmpeg, read by cells."""

    def __init__(self, cells: Cells, number: int) -> None:
        super().__init__(cells.files.files[number].nbytes)
        self._cells, self._number = cells, number

    def readinto(self, buffer: Any) -> int:
        """Reads up to the end of a cell."""
        if self._at >= self._nbytes:
            return 0
        cell, at = divmod(self._at, CELL_NBYTES)
        try:
            some = self._cells.read(self._number, cell)[at : at + len(buffer)]
        except BaseException:
            self._nbytes = 0  # FFmpeg asks again, and PyAV would print the second error
            raise
        buffer[: len(some)] = some
        self._at += len(some)
        return len(some)
