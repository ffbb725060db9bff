"""State that a fake shares with its copies in other processes: a log and a signal. Linux only.

Both are anonymous: a memory file and a pipe. A pickled copy opens them again by the maker's descriptor under `/proc`.
So they end with the maker's object, or with its process, and leave nothing. Processes share no lock, so a killed one
leaves none locked: the kernel itself appends.
"""

import contextlib
import os
import select
import weakref
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from penstock.memory._rows import Indices

_GONE = "The original of this fake is gone, and its state with it. Keep the original as long as its copies are used."


class _Handle:
    """A descriptor of the maker's process. Other processes may open it as long as the maker's object lives."""

    def __init__(self, descriptor: int) -> None:
        self._path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._identity = _identity(descriptor)
        weakref.finalize(self, os.close, descriptor)

    @contextlib.contextmanager
    def open(self, flags: int) -> Iterator[int]:
        """Opens a descriptor that shares neither offset nor flags with another.

        Raises:
            FileNotFoundError: The maker's object is gone.
        """
        try:
            descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise FileNotFoundError(_GONE) from error
        try:
            if _identity(descriptor) != self._identity:  # its number was used again
                raise FileNotFoundError(_GONE)
            yield descriptor
        finally:
            os.close(descriptor)


@final
class SharedLog:
    """A list of integers to which any process appends."""

    def __init__(self) -> None:
        self._file = _Handle(os.memfd_create("penstock-log"))

    def append(self, values: Indices) -> int:
        """Appends int64 values, all or none. Returns the length of the log up to the last of them."""
        with self._file.open(os.O_WRONLY | os.O_APPEND) as descriptor:
            os.write(descriptor, values.tobytes())
            return os.lseek(descriptor, 0, os.SEEK_CUR) // 8

    def values(self, stop: int | None = None) -> Indices:
        """Returns the values so far, or the first `stop` of them: int64, shape `(n,)`."""
        with self._file.open(os.O_RDONLY) as descriptor:
            nbytes = os.fstat(descriptor).st_size if stop is None else stop * 8
            return np.frombuffer(os.pread(descriptor, nbytes, 0), np.int64)


@final
class SharedSignal:
    """A signal between processes, without polling."""

    def __init__(self) -> None:
        self._ends = [_Handle(end) for end in os.pipe()]

    def give(self) -> None:
        """Ends all waits, now and later, until the next reset."""
        with self._ends[1].open(os.O_WRONLY) as descriptor, contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"\0")  # a full pipe is a given signal

    def wait(self, timeout_s: float) -> bool:
        """Waits for the signal. Returns whether it was given."""
        with self._ends[0].open(os.O_RDONLY) as descriptor:
            return bool(select.select([descriptor], [], [], max(0.0, timeout_s))[0])

    def reset(self) -> None:
        """Takes the signal back."""
        with self._ends[0].open(os.O_RDONLY) as descriptor, contextlib.suppress(BlockingIOError):
            os.read(descriptor, 1 << 16)


def _identity(descriptor: int) -> Any:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
