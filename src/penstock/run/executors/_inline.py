"""The executor `inline` runs everything on the caller's thread, on demand. It is the reference for all others.

At most one batch is issued at a time. So if Ctrl-C strikes between `finished`, which returns units, and the queue, then
nothing is under way, which `drive` reports. The client then starts again at its position.
"""

import contextlib
import weakref
from collections import deque
from typing import final

from penstock.lower._program import Unit
from penstock.run.executors._executor import Client, Executor


@final
class InlineExecutor(Executor):
    """Runs a unit when its batch is waited for. It has nothing to stop and nothing to wait for."""

    name = "inline"
    worker_count = 0
    queue_target = 1
    is_driven = True

    def __init__(self, client: Client) -> None:
        # The client owns this object. Without a cycle, the memory of a dropped loader is free at once.
        self._client: Client = weakref.proxy(client)
        self._units: deque[Unit] = deque()

    def wake(self) -> None:
        """Does nothing: `drive` asks for units."""

    def drive(self, timeout_s: float) -> bool:
        """Runs the oldest unit. A unit that Ctrl-C interrupts stays in the queue."""
        if not self._units:
            self._units.extend(self._client.issue())
        try:
            unit = self._units[0]
        except IndexError:
            return False
        result = self._client.run(unit)
        with contextlib.suppress(IndexError):  # another thread closed the loader
            self._units.popleft()
        self._units.extend(self._client.finished(unit, result))
        del result  # the traceback of its error holds this frame
        return True

    def forget(self) -> None:
        """Drops the units."""
        self._units.clear()

    def request_stop(self) -> None:
        """Drops the units."""
        self._units.clear()

    def join(self, timeout_s: float) -> bool:
        """Returns at once: there are no workers."""
        return True
