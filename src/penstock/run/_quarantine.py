"""Elements that failed and were set aside: they are written to a file and counted, and too many are an error."""

import errno
import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, final

from penstock.base._errors import ElementError
from penstock.base._printable import printable
from penstock.base._trust import require_safe
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Unit
from penstock.plan._text import length_text
from penstock.plan._tolerate import Failure

_log = logging.getLogger("penstock")

_LOGGED_COUNT: Final = 3
"""This number of failures is logged, one by one. After them, failures 10, 100, ... are logged."""


@final
class Quarantine:
    """Takes failures from any thread of this process and writes them to a file, a line of JSON for each.

    A line is appended by one `write`, so loaders of several processes may share a file. Each line names its run: the
    time at which the loader was made, and a random number. The file is not kept open. An
    element that fails in every epoch, or is read twice, has one line for each loader. A stream whose order changes has
    no lasting numbers of elements. Its elements have one line an epoch, and count with those of their epoch alone.

    Memory: some 100 bytes for each element that failed.

    Args:
        path: The file, made when the first element fails. None to keep failures in `kept`, without a log.
        plan: The identity of the plan, for a replay of the elements.
        on_error: How the loader continues.
        limit: How many elements may fail; None for any number.
        limit_text: The limit as the user wrote it.
    """

    def __init__(
        self, path: str | None, plan: str = "", on_error: str = "", limit: int | None = None, limit_text: str = ""
    ) -> None:
        self.path = path
        self.kept: list[Failure] = []
        self._plan = plan
        self._run = f"{time.strftime('%Y-%m-%d %H:%M:%S')}, {os.urandom(4).hex()}"
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
        """How many elements count against the limit."""
        return self._lasting_count + max(self._passing_counts.values(), default=0)

    def add(self, failures: Sequence[Failure]) -> None:
        """Takes the failures of a unit.

        Raises:
            ElementError: More elements failed than the limit allows.
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
                    self._log_failure(failure)
            if self._limit is not None and self._counted > self._limit:
                raise ElementError(
                    f"{length_text(self._counted)} failed, which is more than max_errors={self._limit_text} allows. "
                    f"They are listed in {self.path}; the last: {failures[-1].message}"
                )

    def _write(self, failure: Failure, path: str) -> None:
        about = {"time": time.time(), "run": self._run, "plan": self._plan, "on_error": self._on_error}
        record = about | {name: _shown(value) for name, value in asdict(failure).items()}
        try:
            require_safe(path)
            # No link, and never writable for all, whatever the umask.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o664)
            try:
                require_appendable(os.fstat(descriptor).st_mode)
                os.write(descriptor, _line(record))
            finally:
                os.close(descriptor)
        except OSError as error:  # the training continues
            if not self._has_failed_to_write:
                self._has_failed_to_write = True
                _log.error("%s cannot be written, so elements that fail are only counted: %s", path, str(error))

    def _log_failure(self, failure: Failure) -> None:
        if self.count > _LOGGED_COUNT and str(self.count).strip("0") != "1":
            return
        _log.warning(
            "An element was set aside, the %s so far, see %s%s: %s",
            _ordinal(self.count),
            self.path,
            ", and for those that follow" if self.count >= _LOGGED_COUNT else "",
            failure.message,
        )


def require_appendable(mode: int) -> None:
    """Refuses a pipe, which may block, and a link, which may lead anywhere.

    Raises:
        OSError: It is such.
    """
    if stat.S_ISLNK(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise OSError(errno.EINVAL, "it is a link or a pipe. Name a file")


def why_not_set_aside(program: ParallelProgram, unit: Unit) -> str:
    """Explains why `on_error` did not help against an element that crashed workers."""
    is_whole = program.row_count(unit.epoch, unit.index, unit.length) is None
    if is_whole and not program.node.traits.is_hidden:
        return (
            f"on_error='replace' did not set it aside: batch {unit.index} of epoch {unit.epoch} is made in one piece "
            f"by {program.node.label}, and a worker can leave out a piece, but not an element in it. "
            "on_error='skip' tries elements before they go into a batch, and leaves it out."
        )
    return (
        "on_error='replace' set aside one element that crashed workers, and the element that replaced it crashed them "
        "too. on_error='skip' needs no replacement, and leaves out both."
    )


_UNSAFE: Final = re.compile("[\x85\u2028\u2029\ud800-\udfff]")
"""Characters that end a line for `str.splitlines`, and surrogates, as in names of files that are not UTF-8."""


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def _shown(value: Any) -> Any:
    """Returns a value of a record without secrets."""
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return printable(value, has_lines=True) if isinstance(value, str) else value


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count:,}th")
