"""The interface that a loader uses to get its batches, whatever fills them."""

import _thread
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from penstock.base._errors import DeadlineError, LoaderError
from penstock.base._tree import Tree
from penstock.lower._program import Position
from penstock.memory._ring import Ring
from penstock.report._lanes import Lane

END_OF_EPOCH: Final = object()
"""Taken in place of a batch when the epoch has no further batch."""
CLOSED: Final = "This loader is closed. Make another one: dataset.loader(...)."
STARTED_ELSEWHERE: Final = (
    "This loader was made in another process, and its workers did not come along with fork(). Make the loader in the "
    "process that iterates it."
)


class DeliveryBase(ABC):
    """Delivers batches in order. Knows whether it is open, and to which process it belongs."""

    ring: Ring
    consumed: int = -1
    """Streams: how far the input was read for the batch that was taken last; -1 if unknown."""
    rest: tuple[int, BaseException] | None = None
    """The batch that was taken last has only the rows before an error: their number, and the error; else None."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self.process_ends = False
        """The process ends, which is why `request_stop` was called."""

    @property
    @abstractmethod
    def stop_workers(self) -> Callable[[], object]:
        """For a finalizer: stops the workers, and holds neither this object nor the plan."""

    @abstractmethod
    def seek(self, position: Position, consumed: int = -1) -> None:
        """Makes this the next batch. Work under way is kept if it leads there.

        Args:
            position: The batch.
            consumed: Streams: `consumed` after the batch before it, in another run; -1 if unknown.
        """

    @abstractmethod
    def take(self, position: Position, timeout_s: float) -> Tree:
        """Waits for a batch and hands it out. One consumer at a time; the caller sees to that.

        Returns `END_OF_EPOCH` if the epoch, whose length was not known, has no such batch.

        Args:
            position: The batch: the one after the last that was taken, or the last that was sought.
            timeout_s: How long workers may stand still.

        Raises:
            DeadlineError: Nothing moved for `timeout_s`. The message names the elements under way.
            LoaderError: The loader was closed meanwhile.
            Exception: The error of an element of this batch.
        """

    @abstractmethod
    def progress(self) -> object:
        """Returns a value that changes when a worker moves on."""

    def deadline_s(self, timeout_s: float) -> float:
        """Returns how long a standstill lasts before `take` gives up."""
        return timeout_s

    def wait_for(
        self, wait: Callable[[float], bool], timeout_s: float, error: Callable[[float], DeadlineError]
    ) -> None:
        """Waits until `wait(seconds)` returns True, or for the deadline.

        The deadline passes in quarters. A slow batch is no error as long as a worker moves on. Quarters are counted and
        not clocked, because the whole process may have been stopped meanwhile.

        Raises:
            DeadlineError: Made by `error`. This delivery stops.
        """
        before, silent_count = self.progress(), 0
        while not wait(min(self.deadline_s(timeout_s) / 4, threading.TIMEOUT_MAX)):
            now = self.progress()
            silent_count = silent_count + 1 if now == before else 0
            before = now
            if silent_count >= 4:
                try:
                    raise error(timeout_s)
                finally:
                    self.request_stop()

    @abstractmethod
    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """Returns what the workers did so far: those that fill batches, then those that make their inputs.

        Args:
            delivered: For a part of a plan: the batches that the workers of the whole filled so far.
            first: For a part of a plan: the place of its last step in the whole, counted from the end.
        """

    def tasks(self) -> list[str]:
        """Returns the workers that run Python; see `Executor.tasks`."""
        return []

    def pids(self) -> list[int]:
        """Returns the worker processes among them."""
        return sorted(int(task) for task in self.tasks() if task.isdecimal())

    def require_open(self) -> None:
        """Refuses to continue in a child of fork(), or after `close`. Takes no lock.

        Raises:
            LoaderError: Says which.
            SystemExit: The process ends, and this is not its main thread.
        """
        if self._pid != os.getpid():
            raise LoaderError(STARTED_ELSEWHERE)
        if self._closed:
            if self.process_ends and threading.current_thread() is not threading.main_thread():
                raise SystemExit  # a daemon thread of the user ends silently
            raise LoaderError(CLOSED) from None

    def pass_on_interrupt(self) -> None:
        """Raises a Ctrl-C that struck while a batch was dropped, where Python loses it."""
        error = self.ring.interrupts.pop()
        if threading.current_thread() is threading.main_thread():
            raise error
        _thread.interrupt_main()

    def request_stop(self) -> None:
        """Makes everything stop soon. Takes no lock, so a finalizer may call it. Calling it again does no harm."""
        if self._pid == os.getpid():
            self._closed = True  # and the rest again, if it was closed: Ctrl-C may have struck here
            self.stop_workers()

    def close(self, timeout_s: float) -> bool:
        """Stops, waits for the workers to end, and frees the memory and the sources.

        Returns:
            Whether all workers ended. One that is stuck keeps what it works on.
        """
        if self._pid != os.getpid():  # a child of fork(): the workers belong to the parent
            return True
        self.request_stop()
        return self._join(timeout_s)

    @abstractmethod
    def _join(self, timeout_s: float) -> bool:
        """Waits for the workers after `request_stop`, and frees everything if they ended; see `close`."""
