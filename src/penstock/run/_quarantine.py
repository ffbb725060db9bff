"""Elements that failed and were set aside: written down as it happens, counted, and too many refused."""

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, final

from penstock.base._errors import DeadlineError, ElementError, WorkerError
from penstock.lower._analysis import analyse
from penstock.lower._batches import BatchProgram, ParallelProgram
from penstock.lower._program import Unit
from penstock.plan._text import length_text
from penstock.plan._tolerate import Failure

_log = logging.getLogger("penstock")

_TOLD_COUNT: Final = 3
"""So many failures are logged, one by one; after them, each tenfold number."""


@final
class Quarantine:
    """Where failures go: from any thread of this process, to a file, a line of JSON each.

    A line is appended by one `write`, so that loaders of several processes may share a file. Nothing is kept open. An
    element that fails in every epoch, or is read twice, has one line a loader. Of a stream whose order changes, nobody
    can say that it is the same: it has one line an epoch, and counts with those of its epoch alone.

    Memory: some 100 bytes for each element that failed.

    Args:
        path: The file; made when the first element fails. None to keep failures in `kept`, and tell nobody.
        plan: The plan's identity, for whoever runs them again.
        on_error: How the loader goes on.
        limit: How many elements may fail; None for any number.
        limit_text: That, as the user said it.
    """

    def __init__(
        self, path: str | None, plan: str = "", on_error: str = "", limit: int | None = None, limit_text: str = ""
    ) -> None:
        self.path = path
        self.kept: list[Failure] = []
        self._plan = plan
        self._on_error = on_error
        self._limit = limit
        self._limit_text = limit_text
        self._lock = threading.Lock()  # held for a few lines and a write; never by a finalizer
        self._keys: set[bytes] = set()
        self._lasting_count = 0
        self._passing_counts: Counter[int] = Counter()  # by epoch
        self._has_failed_to_write = False

    @property
    def count(self) -> int:
        """How many elements were set aside."""
        return len(self._keys)

    @property
    def _counted(self) -> int:
        """How many count, where a number of them is allowed."""
        return self._lasting_count + max(self._passing_counts.values(), default=0)

    def add(self, failures: Sequence[Failure]) -> None:
        """Takes what failed in a unit.

        Raises:
            ElementError: That is more than was allowed.
        """
        with self._lock:
            for failure in failures:
                key = hashlib.blake2b(repr(failure.key).encode(errors="surrogatepass"), digest_size=16).digest()
                if key in self._keys:
                    continue
                self._keys.add(key)
                if failure.recurs:
                    self._lasting_count += 1
                else:
                    self._passing_counts[failure.epoch] += 1
                if self.path is None:
                    self.kept.append(failure)
                else:
                    self._write(failure, self.path)
                    self._tell(failure)
            if self._limit is not None and self._counted > self._limit:
                raise ElementError(
                    f"{length_text(self._counted)} failed, which is more than max_errors={self._limit_text} allows. "
                    f"They are listed in {self.path}; the last: {failures[-1].message}"
                )

    def _write(self, failure: Failure, path: str) -> None:
        record = {"time": time.time(), "plan": self._plan, "on_error": self._on_error, **asdict(failure)}
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, _line(record))
            finally:
                os.close(descriptor)
        except OSError as error:  # which is no reason to end a night's training
            if not self._has_failed_to_write:
                self._has_failed_to_write = True
                _log.error("%s cannot be written, so elements that fail are only counted: %s", path, str(error))

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


def is_guarded(program: BatchProgram[Any]) -> bool:
    """Whether an element that workers die of can be set aside: a unit is done again without it."""
    return not program.is_serial and bool(analyse(program.node).guards)


def note_end_of_stream(error: BaseException) -> None:
    """Says why `on_error` does not help against what ends the process that reads a stream, or stands still there."""
    if isinstance(error, (WorkerError, DeadlineError)):
        error.add_note(
            "on_error= does not set it aside: what a stream was to give after that, nobody knows. Do what may end a "
            "process in a map(), of which an element that does is set aside."
        )


def why_not_set_aside(program: BatchProgram[Any], unit: Unit) -> str:
    """Why `on_error` did not help against what workers died of, though they were told to leave it out."""
    is_whole = isinstance(program, ParallelProgram) and program.row_count(unit.epoch, unit.index, unit.length) is None
    if is_whole and not program.node.traits.is_hidden:
        return (
            f"on_error='replace' did not set it aside: batch {unit.index} of epoch {unit.epoch} is made in one piece "
            f"by {program.node.label}, and a worker can be told to leave out a piece, but not an element in it. "
            "on_error='skip' looks at elements before they go into a batch, and leaves it out."
        )
    return (
        "on_error='replace' set aside one element that workers died of, and they died of the one that was to stand in "
        "its place, too. on_error='skip' needs none, and leaves out both."
    )


_UNSAFE: Final = re.compile("[\x85\u2028\u2029\ud800-\udfff]")
"""Ends of lines to `str.splitlines`; and halves of pairs, as in names of files that are no UTF-8, which are no text."""


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count:,}th")
