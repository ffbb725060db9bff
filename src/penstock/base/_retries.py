"""How long who reads may wait to ask again for what failed for a moment, and what ends that.

A read of a unit may fail because a server is busy, and is tried again after a pause. `run_unit` says on its thread
whose unit that is; what reads asks for the thread's `RetryBudget` (`patience`). Elsewhere (`ds[i]`, a dataset that is
made) there is no unit, and a patience without a limit.

Who writes what. A patience belongs to the thread that runs the unit. Threads of a library that read for it, such as
pyarrow's, are given it: they pause by it, and add to what it counts, where a note that gets lost does no harm.

Each wait, and what ends it. There is one, `pause`: ended by its time; by Ctrl-C, which strikes the main thread; and
where a unit runs, within `LOOK_S`, because nobody wants that any more: it was given up (a `seek`, an iterator that was
left), or its loader was closed or dropped, or the process ends. That is said by the first word of a ring, which worker
processes share: memory rings no bell, so it is looked at. It is written before anybody waits for a worker to end, and
never taken back for a unit that was issued before.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from typing import Final, final

LOOK_S: Final = 0.02
"""How often a pause looks whether the unit is still wanted."""
NOTHING_WANTED: Final = 1 << 62
"""As the first word of a ring: every unit is given up."""


class UnwantedError(BaseException):
    """Ends a unit that nobody wants any more; `run_unit` takes it. No `Exception`, or a guard would note an element."""


@final
class RetryBudget:
    """That of a unit.

    Args:
        words: See `ring_header`; None where there is no unit.
        generation: The unit's.
        limit_s: No longer than this is anything tried again.
    """

    __slots__ = ("_generation", "_words", "limit_s", "repeat_count", "waited_s")

    def __init__(self, words: "memoryview[int] | None" = None, generation: int = 0, limit_s: float = math.inf) -> None:
        self._words = words
        self._generation = generation
        self.limit_s: float = limit_s
        self.repeat_count: int = 0
        """How often something was tried again."""
        self.waited_s: float = 0.0
        """How long servers were waited for, pauses included."""

    def pause(self, seconds: float) -> None:
        """Waits before something is tried again.

        Raises:
            UnwantedError: Nobody wants the unit any more.
        """
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            self._require_wanted()
            time.sleep(left_s if self._words is None else min(left_s, LOOK_S))
        self._require_wanted()

    def _require_wanted(self) -> None:
        if self._words is not None and self._words[0] >= self._generation:
            raise UnwantedError


class _Own(threading.local):
    patience: RetryBudget | None = None


_own = _Own()


def patience() -> RetryBudget:
    """That of the unit which the calling thread runs."""
    return _own.patience or RetryBudget()


def exchanged(given: RetryBudget | None) -> RetryBudget | None:
    """Makes a patience that of the calling thread, and returns the one that was."""
    before, _own.patience = _own.patience, given
    return before


@contextlib.contextmanager
def reading_with(given: RetryBudget) -> Iterator[None]:
    """Makes a patience that of the calling thread for some time."""
    before = exchanged(given)
    try:
        yield
    finally:
        exchanged(before)
