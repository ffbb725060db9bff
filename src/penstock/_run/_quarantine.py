"""Elements that failed and were set aside: written down as it happens, counted, and too many refused."""

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, final

from penstock._errors import ElementError
from penstock._plan._tolerate import Failure

_log = logging.getLogger("penstock")

_TOLD_COUNT: Final = 3
"""So many failures are logged, one by one; after them, each tenfold number."""


@final
class Quarantine:
    """Where failures go: from any thread of this process, to a file, a line of JSON each.

    A line is appended by one `write`, so that loaders of several processes may share a file. Nothing is kept open. An
    element that fails in every epoch, or is read twice, has one line a loader.

    Args:
        path: The file; made when the first element fails.
        plan: The plan's identity, for whoever runs them again.
        on_error: How the loader goes on.
        limit: How many elements may fail; None for any number.
        limit_text: That, as the user said it.
    """

    def __init__(self, path: str, plan: str, on_error: str, limit: int | None, limit_text: str) -> None:
        self.path = path
        self._plan = plan
        self._on_error = on_error
        self._limit = limit
        self._limit_text = limit_text
        self._lock = threading.Lock()  # held for a few lines and a write; never by a finalizer
        self._keys: set[Any] = set()
        self._has_failed_to_write = False

    @property
    def count(self) -> int:
        """How many elements were set aside."""
        return len(self._keys)

    def add(self, failures: Sequence[Failure]) -> None:
        """Takes what failed in a unit.

        Raises:
            ElementError: That is more than was allowed.
        """
        with self._lock:
            for failure in failures:
                if failure.key in self._keys:
                    continue
                self._keys.add(failure.key)
                self._write(failure)
                self._tell(failure)
            if self._limit is not None and self.count > self._limit:
                raise ElementError(
                    f"{self.count} elements failed, which is more than max_errors={self._limit_text} allows. They are "
                    f"listed in {self.path}; the last: {failures[-1].message}"
                )

    def _write(self, failure: Failure) -> None:
        record = {"time": time.time(), "plan": self._plan, "on_error": self._on_error, **asdict(failure)}
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:  # which is no reason to end a night's training
            if not self._has_failed_to_write:
                self._has_failed_to_write = True
                _log.error("%s cannot be written, so elements that fail are only counted: %s", self.path, str(error))

    def _tell(self, failure: Failure) -> None:
        if self.count > _TOLD_COUNT and str(self.count).strip("0") != "1":
            return
        _log.warning(
            "An element was set aside, the %s so far, see %s%s: %s",
            _ordinal(self.count),
            self.path,
            ", and for those that follow" if self.count >= _TOLD_COUNT else "",
            failure.message,
        )


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count:,}th")
