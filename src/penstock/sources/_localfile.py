"""A file of this machine, open for positioned reads."""

import os
from collections.abc import Callable

from penstock.base._errors import DISK_FAILS, SourceError
from penstock.base._files import open_descriptor
from penstock.base._retries import RetryBudget


class LocalFile:
    """A descriptor that is closed when the last reference to this object is dropped."""

    def __init__(self, path: str | bytes, flags: int = os.O_RDONLY) -> None:
        self.path = os.fsdecode(path)
        self.descriptor = -1
        self.descriptor = open_descriptor(path, flags)

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        total = 0
        while total < len(place):
            try:
                count = os.preadv(self.descriptor, [place[total:]], offset + total)
            except OSError as error:
                raise unreadable(self.path, offset + total, error.errno or 0) from error
            if not count:
                break
            total += count
        return total

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # Bound here, because `os` may be empty while the interpreter ends.
        if getattr(self, "descriptor", -1) >= 0:
            _close(self.descriptor)


def unreadable(path: str, offset: int, number: int) -> SourceError:
    """The error of a local file whose read fails with an error of the system, by its number."""
    return SourceError(f"{path} cannot be read at byte {offset:,}: {os.strerror(number)}. {DISK_FAILS}")
