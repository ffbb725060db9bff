"""Children that the user forks: what this process holds then is in their hands, too, for as long as they run."""

import contextlib
import os
from collections.abc import Callable
from typing import final


@final
class Inherited:
    """What a child of `fork` holds; made before it. Takes no lock.

    The child has one end of a pipe, as have those that it forks itself. Nobody writes to it: the kernel closes it with
    the last of them, or with `exec`, after which nothing is held any more.

    Args:
        held: What is kept until this is dropped.
    """

    def __init__(self, held: object) -> None:
        self._held = held
        self._reader = self._writer = -1
        with contextlib.suppress(OSError):  # too many files are open: nobody learns of the child's end
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)

    def forked(self, *, is_child: bool) -> None:
        """Leaves each of the two with its own end; the child's is open as long as it runs."""
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
        # By a default and not by a module, which may be taken apart by now.
        for descriptor in (self._reader, self._writer):
            if descriptor >= 0:
                close(descriptor)
