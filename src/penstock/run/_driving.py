"""Whether workers fill batches ahead, or the consumer fills each when it asks for it: whichever is faster, by trial.

To hand a batch from thread to thread takes 100 to 300 us: a wake-up or two, and waits for the GIL, which a worker's
Python takes from the consumer's in the middle of a step. PendingBatch one takes longer as a rule, and often waits for a
disk. But a batch of some hundred rows of a table in memory is filled within 100 us. There, the consumer had better do
it itself; see design/0018-small-batches.md.

Where it is tried: arrays in memory, or lists of them, and no function, so that nothing can hang, and nothing of the
user's runs on the consumer's thread; batches that one copies in a fraction of a millisecond; and where a step takes
some milliseconds at most, or `next` a part of the time that counts, be it that nobody is done or that another thread
has the GIL. How large a batch of padded elements is, nobody knows ahead: there it is tried for short steps alone.

It fills some in one go then: Python that runs once between two training steps comes from memory, three times as slow as
when it is repeated at once.

Who writes what: the consumer alone, see `Pipeline.take`, without a lock. Workers read `is_wanted` (`Pipeline._pump`);
one that has not seen it yet issues what the consumer then waits for before it changes hands.
"""

from typing import Final, final

from penstock.run._trials import Trials

MOST_NBYTES: Final = 1 << 20
"""Larger batches are for workers."""
GO_COUNT: Final = 4
"""Batches that a consumer fills in one go: so many at most, and together `MOST_NBYTES`, so that no step waits long."""
LEAST_SHARE: Final = 1 / 25
"""Where `next` takes less of the time from batch to batch, nothing is to be gained."""
SHORT_STEP_S: Final = 5e-3
"""But a worker's Python takes the GIL in the middle of such a step, which no waiting in `next` shows."""
LEAST_GAIN: Final = 1.05
WINDOW_COUNT: Final = 16
WINDOW_S: Final = 0.04
"""Batches that are timed together: so many at least, and for so long."""


@final
class Driving:
    """Decides who fills the next batches.

    Args:
        skipped_count: Batches after a change that say nothing, for they were filled before it.
        batch_nbytes: What a batch has; None where each has its own, and may be large.
    """

    def __init__(self, skipped_count: int, batch_nbytes: int | None) -> None:
        self._is_bounded = batch_nbytes is not None
        self.go_count = 1 if batch_nbytes is None else max(1, min(GO_COUNT, MOST_NBYTES // max(1, batch_nbytes)))
        """So many batches the consumer fills in one go, where there are slots for them."""
        self.is_wanted = False
        """Whether the consumer is to fill batches itself."""
        self._trials = Trials(LEAST_GAIN)
        self._skipped_count = skipped_count
        self._last_s = 0.0
        self._count = 0
        self._window_s = 0.0
        self._wait_s = 0.0

    def pause(self) -> None:
        """The consumer turns to something else, as between epochs; that time says nothing."""
        self._last_s = 0.0

    def note(self, began_s: float, now_s: float) -> None:
        """Takes notice of a batch that is handed out.

        Args:
            began_s: When it was asked for.
            now_s: When it was there.
        """
        last_s, self._last_s = self._last_s, now_s
        if not last_s:
            return
        self._count += 1
        if self._count <= self._skipped_count:
            return
        self._window_s += now_s - last_s
        self._wait_s += now_s - began_s
        batch_count = self._count - self._skipped_count
        if batch_count >= WINDOW_COUNT and self._window_s >= WINDOW_S:
            self._end_window(batch_count, now_s)
            self._count, self._window_s, self._wait_s = 0, 0.0, 0.0

    def _end_window(self, batch_count: int, now_s: float) -> None:
        if self._trials.are_on:
            self._trials.note(batch_count / self._window_s, now_s)
        elif self.is_wanted or self._may_gain(batch_count):
            self._trials.begin(now_s)
        self.is_wanted = self._trials.is_other

    def _may_gain(self, batch_count: int) -> bool:
        if self._window_s < SHORT_STEP_S * batch_count:
            return True
        return self._is_bounded and self._wait_s > LEAST_SHARE * self._window_s
