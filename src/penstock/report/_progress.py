"""A line with the progress of long work: on a terminal, in a notebook, and now and then in the log.

The line is written here, because a bar of another package would be one more to install, and fills a log file.
"""

import contextlib
import logging
import os
import shutil
import sys
import time
import uuid
from typing import Any, Final, Self, final

_log = logging.getLogger("penstock")

FIRST_S: Final = 0.5
"""Shorter work shows nothing."""
INTERVAL_S: Final = 0.1
"""Between two drawings."""
LOG_INTERVAL_S: Final = 30.0
"""Between two lines of the log."""
_CLEAR: Final = "\r\x1b[K"
"""Moves to the start of the line and clears it, on every terminal other than `dumb`."""


@final
class ProgressLine:
    """Shows the progress of long work on stderr, if that is a terminal, and below the cell of a notebook.

    The line appears after half a second and is removed at the end. Elsewhere the log has a line every half minute, at
    level INFO. One thread advances it. An error of the terminal is not raised.

    Example:
        >>> with ProgressLine("Keeping", total=3) as progress:
        ...     progress.advance(2)
        >>> progress.done
        2
    """

    def __init__(self, title: str, *, total: int | None = None) -> None:
        self.done = 0
        self._title, self._total = title, total
        self._is_drawn = False
        self._display = ""
        """The name of the line in a notebook, once it is there."""
        self._due_at = time.monotonic() + FIRST_S
        self._log_at = time.monotonic() + LOG_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            self._write("")

    def advance(self, count: int = 1) -> None:
        """Counts finished elements."""
        self.done += count
        if (now := time.monotonic()) >= self._due_at:
            self._due_at, self._is_drawn = now + INTERVAL_S, True
            done = min(self.done, self._total or self.done)  # the last batch may be counted as a full one
            of = f" of {self._total:,} elements, {done / self._total:.0%}" if self._total else " elements"
            self._write(f"{self._title}: {done:,}{of}")

    def _write(self, line: str) -> None:
        if (notebook := _notebook()) is not None:
            with contextlib.suppress(Exception):  # of the notebook, or its connection
                shown: dict[str, Any] = {"raw": True, "update": bool(self._display)}
                self._display = self._display or uuid.uuid4().hex
                notebook.display({"text/plain": line}, display_id=self._display, **shown)
            return
        # AttributeError: there is no stderr. The others: it is closed, or its other end has gone.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
                # A character in the last column moves some terminals to the next line, which would stay.
                sys.stderr.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
                sys.stderr.flush()
                return
        if line and (now := time.monotonic()) >= self._log_at:
            self._log_at = now + LOG_INTERVAL_S
            _log.info("%s.", line)


def _notebook() -> Any:
    """Returns the module `IPython.display` in the process of a notebook; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None
