"""Retry budget and cancellation for reads.

A read of a unit may fail because a server is busy. It is tried again after a pause. The runner of a unit sets the
`RetryBudget` of its thread, and the read asks for it (`retry_budget`). Elsewhere (`ds[i]`, building a dataset) there is
no unit, and the budget has no limit.

Who writes what. A budget belongs to the thread that runs the unit. Threads of a library that read for it, such as
pyarrow's, get it too: they pause by it and add to its counts. A lost count does no harm.

Each wait, and what ends it. There is one, `pause`. Its time ends it, or Ctrl-C on the main thread. If a unit runs, it
also ends within `LOOK_S` after the unit was given up: by a `seek`, because its loader was closed or dropped, or because
the process ends. The first word of a ring, which worker processes share, holds that fact. Shared memory sends no
notification, so `pause` polls it. The word is written before any code waits for a worker to end, and never taken back
for a unit that was issued before.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, final

LOOK_S: Final = 0.02
"""The interval at which a pause checks whether the unit was given up."""
NOTHING_WANTED: Final = 1 << 62
"""In the first word of a ring: every unit is given up."""
_WAS_TOLD: Final = -1


class UnwantedError(BaseException):
    """Ends a unit that was given up; its runner catches it. Not an `Exception`: a guard would note an element."""


@final
class RetryBudget:
    """Limits and counts the retries of a unit, and compares its elements with those of other units.

    Args:
        words: See `ring_header`; None where there is no unit.
        generation: The unit's.
        limit_s: The longest time for retries.
        place: The epoch and number of the unit's batch. Earlier batches are served first.
        room_nbytes: The most memory that may be taken to decode one element, besides its place.
        may_announce: Whether this process reads what it announces, so that a server may be asked before. A worker
            process does not: another may run the unit.
        where: Returns the number of the step that runs, the epoch and the element; see `WorkerStatus`.
        describe: Names the element of such numbers.
    """

    __slots__ = (
        "_describe", "_generation", "_where", "_words", "fetched_nbytes", "limit_s", "may_announce", "needed_nbytes",
        "place", "repeat_count", "request_count", "request_s", "room_nbytes", "waited_s",
    )  # fmt: skip

    def __init__(
        self,
        words: "memoryview[int] | None" = None,
        generation: int = 0,
        limit_s: float = math.inf,
        place: tuple[int, int] = (0, 0),
        room_nbytes: float = math.inf,
        may_announce: bool = True,
        where: Callable[[], tuple[int, int, int]] | None = None,
        describe: Callable[[tuple[int, int, int]], str] = str,
    ) -> None:
        self._where = where
        self._describe = describe
        self._words = words
        self._generation = generation
        self.limit_s: float = limit_s
        self.place = place
        self.room_nbytes = room_nbytes
        self.may_announce = may_announce
        self.repeat_count: int = 0
        """The number of retries."""
        self.waited_s: float = 0.0
        """The time spent waiting for servers, with pauses."""
        self.request_count: int = 0
        self.request_s: float = 0.0
        """The time of all answered requests together."""
        self.fetched_nbytes: int = 0
        """The bytes of answers."""
        self.needed_nbytes: int = 0
        """The part of them that was asked for."""

    def pause(self, seconds: float) -> None:
        """Waits before a retry.

        Raises:
            UnwantedError: The unit was given up.
        """
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            self.require_wanted()
            time.sleep(left_s if self._words is None else min(left_s, LOOK_S))
        self.require_wanted()

    def first_other(self, number: int) -> tuple[str, int, str] | None:
        """Compares a number of this element with that of the first one, for a line in the log.

        All workers of a loader share the first number. Two that write it at once lose one of both, which does no harm.

        Args:
            number: A number that all elements should share: 1 to 2**24 - 1.

        Returns:
            The first element, its number, and this element, if the numbers differ. Once; and None from then on.
        """
        words, (step, epoch, index) = self._words, self._where() if self._where else (0, 0, 0)
        if words is None or not step or words[-2] == _WAS_TOLD:
            return None
        if not words[-2]:
            words[-3], words[-2] = index, number | min(step, 255) << 24 | min(epoch, (1 << 31) - 1) << 32
            return None
        first, first_step, first_epoch = words[-2] & 0xFFFFFF, words[-2] >> 24 & 0xFF, words[-2] >> 32
        if first == number or (first_step, first_epoch, words[-3]) == (step, epoch, index):
            return None
        words[-2] = _WAS_TOLD
        return self._describe((first_step, first_epoch, words[-3])), first, self._describe((step, epoch, index))

    def require_wanted(self) -> None:
        """Raises `UnwantedError` if the unit was given up."""
        if self._words is not None and self._words[0] >= self._generation:
            raise UnwantedError


class _Own(threading.local):
    budget: RetryBudget | None = None


_own = _Own()


def retry_budget() -> RetryBudget:
    """The budget of the unit that the calling thread runs."""
    return _own.budget or RetryBudget()


def exchanged(given: RetryBudget | None) -> RetryBudget | None:
    """Sets the budget of the calling thread, and returns the old one."""
    before, _own.budget = _own.budget, given
    return before


def reading_alone(given: RetryBudget) -> contextlib.AbstractContextManager[None]:
    """Sets the budget of the calling thread for some time, unless it runs a unit."""
    return contextlib.nullcontext() if _own.budget else reading_with(given)


@contextlib.contextmanager
def reading_with(given: RetryBudget) -> Iterator[None]:
    """Sets the budget of the calling thread for some time."""
    before = exchanged(given)
    try:
        yield
    finally:
        exchanged(before)
