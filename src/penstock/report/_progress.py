"""A line on the terminal with the progress of long work. A log, a pipe or a notebook shows none."""

import os
import sys
import time
from types import TracebackType
from typing import Final, Self, TextIO, final

FIRST_S: Final = 0.5
"""Shorter work shows nothing."""
INTERVAL_S: Final = 0.1
"""Between two drawings."""
_CLEAR: Final = "\r\x1b[K"
"""Moves to the start of the line and clears it, on every terminal other than `dumb`."""


@final
class Progress:
    """Shows the progress of long work on stderr, if that is a terminal.

    The line is drawn at most ten times a second, from half a second on, and removed at the end. A call of `advance`
    costs about 0.1 us. One thread advances it. An error of the terminal ends the line, and is not raised.

    Args:
        title: The work: `"Listing"`.
        total: The number of things, or None if unknown.
        unit: The things, in the plural: `"files"`.

    Example:
        >>> with Progress("Listing", unit="files") as progress:
        ...     for name in ("a.npy", "b.npy"):
        ...         progress.advance()
        >>> progress.done
        2
    """

    def __init__(self, title: str, *, total: int | None = None, unit: str = "elements") -> None:
        self.done = 0
        self._title, self._total, self._unit = title, total, unit
        self._stream = _terminal()
        self._is_drawn = False
        self._started_at = time.monotonic()
        self._due_at = self._started_at + FIRST_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_drawn:
            self._write("")
        self._stream = None

    def advance(self, count: int = 1) -> None:
        """Counts finished things."""
        self.done += count
        if self._stream is not None and (now := time.monotonic()) >= self._due_at:
            self._due_at = now + INTERVAL_S
            self._is_drawn = True
            self._write(self._line(now - self._started_at))

    def _line(self, elapsed_s: float) -> str:
        rate = self.done / elapsed_s
        of = "" if self._total is None else f" of {self._total:,}"
        line = f"{self._title}: {self.done:,}{of} {self._unit}, {rate:,.0f}/s"
        if self._total and self.done:
            left_s = max(0, self._total - self.done) / rate
            line += f", {self.done / self._total:.0%}, {_duration(left_s)} left"
        return line

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            # A character in the last column moves some terminals to the next line, which would never be cleared. A
            # terminal that does not know its width reports 0.
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._stream.write(_CLEAR + line[: columns - 1])
            self._stream.flush()
        except (OSError, ValueError):  # it was closed, or its other end has gone
            self._stream = None


def _terminal() -> TextIO | None:
    """Returns stderr if it is a terminal that can clear a line."""
    try:
        return sys.stderr if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        return None


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
