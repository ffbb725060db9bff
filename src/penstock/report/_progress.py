"""A bar with the progress of long work: on a terminal, in a notebook, and now and then a line in the log.

tqdm draws the bar. It is imported when a bar is drawn, because its import takes as long as much of this package.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Self, final

_log = logging.getLogger("penstock")

Told = Callable[[int, int | None], None]
"""`progress(done, total)`: elements so far, and in all if that is known."""

FIRST_S: Final = 0.5
"""Shorter work shows nothing."""
LOG_INTERVAL_S: Final = 30.0
"""Between two lines of the log."""


@final
class ProgressLine:
    """Shows the progress of long work on stderr, if that is a terminal, and below the cell of a notebook.

    The bar appears after half a second and is removed at the end. Elsewhere the log has a line every half minute, at
    level INFO. One thread advances it. An error of the terminal is not raised.

    Args:
        title: What is done.
        total: How many elements there are, if that is known.
        told: Called in place of all that, with the elements so far and `total`.

    Example:
        >>> with ProgressLine("Keeping", total=3) as progress:
        ...     progress.advance(2)
        >>> progress.done
        2
    """

    def __init__(self, title: str, *, total: int | None = None, told: Told | None = None) -> None:
        self.done = 0
        self._title, self._total, self._told = title, total, told
        self._is_shown = _is_shown()
        self._bar: Any = None
        self._due_at = time.monotonic() + FIRST_S
        self._log_at = time.monotonic() + LOG_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        """Counts finished elements."""
        self.done += count
        now = time.monotonic()
        done = min(self.done, self._total or self.done)  # the last batch may be counted as a full one
        if self._told is not None:
            self._told(done, self._total)
        elif self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif self._is_shown and now >= self._due_at:
            self._bar = _bar(self._title, self._total, done)
        elif not self._is_shown and now >= self._log_at:
            self._log_at = now + LOG_INTERVAL_S
            of = f" of {self._total:,} elements, {done / self._total:.0%}" if self._total else " elements"
            _log.info("%s: %s%s.", self._title, f"{done:,}", of)


def _is_shown() -> bool:
    """Whether this process has a terminal, or is that of a notebook."""
    with contextlib.suppress(AttributeError, ValueError):  # there is no stderr, or it is closed
        return "ipykernel.zmqshell" in sys.modules or sys.stderr.isatty()
    return False


def _bar(title: str, total: int | None, done: int) -> Any:
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread, which would stay: `miniters=1` has each update look at the clock

    return Bar(desc=title, total=total, initial=done, unit=" elements", leave=False, miniters=1, file=sys.stderr)
