"""The executor `inline`: everything on the caller's thread, when it is asked for. The reference for all others."""

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from typing import final

from penstock.lower._program import Unit
from penstock.run.executors._executor import Client, Executor


@final
class InlineExecutor(Executor):
    """Runs a unit when its batch is waited for. There is nothing to stop and nobody to wait for."""

    worker_count = 0
    queue_target = 1
    isolates = True
    is_driven = True

    def __init__(self, client: Client) -> None:
        # The client owns this: without a cycle, the memory of a loader that is dropped is free at once.
        self._client: Client = weakref.proxy(client)
        self._units: deque[Unit] = deque()

    def submit(self, units: Sequence[Unit]) -> None:
        """Keeps the units until `drive`."""
        self._units.extend(units)

    def wake(self) -> None:
        """Nothing to wake: `drive` looks for slots that came back."""

    def drive(self) -> bool:
        """Runs the oldest unit. One that Ctrl-C interrupts stays to be done."""
        if not self._units:
            self._client.pump()
        try:
            unit = self._units[0]
        except IndexError:  # closed meanwhile
            return False
        error: Exception | None = None
        try:
            self._client.run(unit)
        except Exception as caught:
            error = caught
        with contextlib.suppress(IndexError):  # closed meanwhile
            self._units.popleft()
        self._client.finished(unit, error)
        del error  # its traceback holds this frame
        return True

    def forget(self) -> None:
        """Forgets the units."""
        self._units.clear()

    def request_stop(self) -> None:
        """Nobody but the consumer has to stop."""
        self.forget()

    def join(self, timeout_s: float) -> bool:
        """There are no workers."""
        return True
