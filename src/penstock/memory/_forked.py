"""Children that the user forks. A child holds what this process holds at that moment, for as long as it runs."""

import contextlib
import os
from collections.abc import Callable
from typing import final


@final
class Inherited:
    """Objects that a forked child holds. It is made before the fork. Takes no lock.

    The child, and each child that it forks, has one end of a pipe. Nothing is written to the pipe. The kernel closes it
    with the last of them, or with `exec`, and then nothing is held any more.

    Args:
        held: Kept alive until this object is dropped.
    """

    def __init__(self, held: object) -> None:
        self._held = held
        self._reader = self._writer = -1
        with contextlib.suppress(OSError):  # too many files are open, so the child's end stays unknown
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)

    def forked(self, *, is_child: bool) -> None:
        """Leaves each process its own end of the pipe. The child's end is open as long as the child runs."""
        other = self._reader if is_child else self._writer
        if is_child:
            self._reader = -1
        self._writer = -1
        if other >= 0:
            os.close(other)

    @property
    def is_over(self) -> bool:
        """Whether the child has ended."""
        try:
            return self._reader >= 0 and os.read(self._reader, 1) == b""
        except BlockingIOError:
            return False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is a default, because the module may be torn down by now.
        for descriptor in (self._reader, self._writer):
            if descriptor >= 0:
                close(descriptor)
