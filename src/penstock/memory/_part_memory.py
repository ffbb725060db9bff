"""Memory for decoded parts, which some workers fill and all read: of this process, or shared by processes.

Which process writes what. The process that decides (`run/parts/_feed.py`) gives each part a place, and alone writes the
table that says which parts may be read. A worker that decodes a part writes it into its place, before the table says
so. A place gets another part when no unit reads the one in it any more. So nothing is read while it is written.

A worker that is killed while it writes leaves bytes that nobody reads. Nothing has a name, so nothing is left behind.
"""

import mmap
import pickle
from typing import Any, Final, final

import numpy as np

from penstock.memory._mapping import MemoryFile
from penstock.memory._pickles import dumps

_ALIGNMENT_NBYTES: Final = 64
_WORDS: Final = 2
"""Words of the table for each part: a number that is new for each use of a place, or 0; and the place."""


@final
class HeldParts:
    """Parts in this process, for its threads."""

    file: None = None

    def __init__(self) -> None:
        self.version = 0
        """Another number after each change."""
        self._values: dict[int, Any] = {}

    def put(self, number: int, place: int, room: int, value: Any, nbytes: int) -> int:
        """Keeps a part. Returns its memory."""
        self._values[number] = value
        self.version += 1
        return nbytes

    @property
    def count(self) -> int:
        """How many parts are there."""
        return len(self._values)

    def get(self, number: int) -> Any:
        """Returns a part; None if it is not there."""
        return self._values.get(number)

    def publish(self, number: int, place: int) -> None:
        """The part may be read. It may be since `put`."""

    def drop(self, number: int) -> None:
        """The part is not read any more."""
        self._values.pop(number, None)
        self.version += 1

    def release(self) -> None:
        """Frees all."""
        self._values.clear()


@final
class SharedParts:
    """Parts in memory that processes share.

    Args:
        part_count: How many parts there are.
        room: Bytes for them.
        memory: In a worker, the memory; None to make it.
    """

    def __init__(self, part_count: int, room: int, memory: mmap.mmap | None = None) -> None:
        self._data_at = _up(8 * _WORDS * part_count)
        self.file = MemoryFile(self._data_at + room) if memory is None else None
        """The memory, for workers to map; None in a worker."""
        self._memory: Any = memory or self.file.map()  # type: ignore[union-attr]
        self._table = np.frombuffer(self._memory, np.int64, _WORDS * part_count).reshape(-1, _WORDS)
        self._use_count = 0
        self._read: dict[int, tuple[int, Any]] = {}
        """The parts that this process has read: the number of the use of their place, and what was decoded."""

    def put(self, number: int, place: int, room: int, value: Any, nbytes: int) -> int:
        """Writes a part into its place, if it fits. Returns the bytes that it takes there."""
        buffers: list[pickle.PickleBuffer] = []
        head = dumps(value, 5, buffers.append)
        pieces = [memoryview(head), *(buffer.raw() for buffer in buffers)]
        sizes = np.array([len(pieces), *(piece.nbytes for piece in pieces)], np.int64)
        ends = np.cumsum([_up(sizes.nbytes), *(_up(piece.nbytes) for piece in pieces)])
        if ends[-1] <= room:
            target, first = memoryview(self._memory), self._data_at + place
            target[first : first + sizes.nbytes] = sizes.tobytes()
            for piece, start in zip(pieces, (first + ends[:-1]).tolist(), strict=True):
                target[start : start + piece.nbytes] = piece
        return int(ends[-1])

    def get(self, number: int) -> Any:
        """Returns a part; None if it is not there. Its arrays cannot be written to."""
        use, place = self._table[number].tolist()
        if use == 0:
            return None
        if (found := self._read.get(number)) is None or found[0] != use:
            self._read = {other: each for other, each in self._read.items() if self._table[other, 0] == each[0]}
            found = self._read[number] = use, self._load(self._data_at + place)
        return found[1]

    def _load(self, first: int) -> Any:
        count = int(np.frombuffer(self._memory, np.int64, 1, first)[0])
        sizes = np.frombuffer(self._memory, np.int64, 1 + count, first)
        memory, start, pieces = memoryview(self._memory).toreadonly(), first + _up(sizes.nbytes), []
        for nbytes in sizes[1:].tolist():
            pieces.append(memory[start : start + nbytes])
            start += _up(nbytes)
        return pickle.loads(pieces[0], buffers=pieces[1:])

    def publish(self, number: int, place: int) -> None:
        """The part may be read. Called by the process that decides."""
        self._use_count += 1
        self._table[number] = self._use_count, place

    def drop(self, number: int) -> None:
        """The part is not read any more, by any process."""
        self._table[number] = 0

    def release(self) -> None:
        """Drops the mapping, and closes the file. Releasing again does nothing."""
        self._read.clear()
        self._table, self._memory = self._table[:0].copy(), None
        if self.file is not None:
            self.file.close()


PartMemory = HeldParts | SharedParts


def _up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
