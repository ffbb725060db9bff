"""The executor `inline`: everything on the caller's thread, when it is asked for. The reference for all others."""

from collections import deque
from typing import final

from penstock._run._executor import Client, Executor
from penstock._run._lower import Unit


@final
class InlineExecutor(Executor):
    """Runs a unit when its batch is waited for. There is nothing to stop and nobody to wait for."""

    worker_count = 1
    isolates = True

    def __init__(self, client: Client) -> None:
        self._client = client
        self._units: deque[Unit] = deque()

    def submit(self, unit: Unit) -> None:
        """Keeps the unit until `drive`."""
        self._units.append(unit)

    def wake(self) -> None:
        """Nothing to wake: slots that came back are looked for at each `next`."""

    def drive(self) -> bool:
        """Runs the oldest unit."""
        if not self._units:
            return False
        unit = self._units.popleft()
        try:
            self._client.run(unit)
        except Exception as error:
            self._client.finished(unit, error)
        except BaseException:
            self._units.appendleft(unit)  # Ctrl-C is the caller's, and the unit is still to be done
            raise
        else:
            self._client.finished(unit, None)
        return True

    def request_stop(self) -> None:
        """Forgets the units."""
        self._units.clear()

    def join(self, timeout_s: float) -> bool:
        """There are no workers."""
        return True
