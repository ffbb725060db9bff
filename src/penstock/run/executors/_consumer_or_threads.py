"""Threads that fill batches, or the consumer in their place, whichever is faster.

The copy engine replaces this file, with `_driving.py` and `_trials.py`. `_driving.py` decides which of the two runs the
units. This file changes between them: only while no unit is under way, so that one or the other has all of them.

Which thread writes what. The consumer writes `is_driven`. It sets it when the client is idle (`Client.when_idle`), and
clears it in `forget`, when the client starts again. Threads read `queue_target`. It is 0 while a change is due, so that
no further unit is issued. The client wakes a waiting consumer when the last unit is done.
"""

import time
from typing import final

from penstock.run._driving import Driving
from penstock.run.executors._executor import Client
from penstock.run.executors._inline import InlineExecutor
from penstock.run.executors._threads import ThreadsExecutor


@final
class ConsumerOrThreadsExecutor(ThreadsExecutor):
    """Runs units on threads, or on the consumer's thread while that is faster.

    Args:
        client: Gives the units.
        worker_count: How many threads.
        events: Receives a line for each event that the report shows.
        slot_count: Slots of the ring.
        batch_nbytes: The size of a batch; None if it varies and may be large.
    """

    def __init__(
        self, client: Client, worker_count: int, events: list[str], slot_count: int, batch_nbytes: int | None
    ) -> None:
        self.driving = Driving(slot_count + 2, batch_nbytes)
        self._own = InlineExecutor(client)
        super().__init__(client, worker_count, events)

    @property
    def queue_target(self) -> int:
        """0 while the other side is to run the units."""
        if self.driving.is_wanted is not self.is_driven:
            return 0
        return self._own.queue_target if self.is_driven else self.worker_count

    @queue_target.setter
    def queue_target(self, value: int) -> None:
        pass

    @property
    def takes_turns(self) -> bool:  # type: ignore[override]
        """Whether one thread runs at a time, the consumer or a worker."""
        return self.is_driven or super().takes_turns

    def wake(self) -> None:
        """Makes one thread ask for units. The consumer asks by itself."""
        if not self.is_driven:
            super().wake()

    def drive(self, timeout_s: float) -> bool:
        """Runs some units, if the consumer is to run them."""
        client = self._client()
        if self.driving.is_wanted is not self.is_driven and client is not None:
            if self.is_driven:
                return False  # the client starts again, and `forget` hands over to the threads
            if not client.when_idle(self._take_over):
                return False
        if not self.is_driven:
            if client is not None and client.when_idle(lambda: None):
                self.wake()  # Ctrl-C may have cut off a wake-up during the change
            return False
        if not self._own.drive(timeout_s):
            return False
        for _ in range(self.driving.go_count - 1):
            if not self._own.drive(timeout_s):
                break
        return True

    def _take_over(self) -> None:
        self.is_driven = True

    def forget(self) -> None:
        """Drops the consumer's units, and hands over to the threads if they are to run them."""
        self._own.forget()
        self.is_driven = self.driving.is_wanted

    def batch_taken(self, asked_s: float) -> None:
        """Measures how fast the consumer gets batches."""
        self.driving.note(asked_s, time.perf_counter())

    def pause(self) -> None:
        """Leaves the time up to now out of the measurement."""
        self.driving.pause()

    def request_stop(self) -> None:
        """Stops the threads, and drops the consumer's units."""
        super().request_stop()
        self._own.request_stop()
