"""Starts threads, says what helps where the system starts no more, and waits for their ends."""

import contextlib
import errno
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.base._errors import WorkerError

LIMITS: Final = (
    "A user's threads and processes are limited (ulimit -u), and those of a container (pids.max), and each takes "
    "address space (ulimit -v). Raise the limit, close loaders that are not needed, or take fewer workers="
)


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        WorkerError: The system starts no more threads.
    """
    with starting_threads():
        thread.start()


@contextlib.contextmanager
def starting_threads() -> Iterator[None]:
    """Explains the errors of calls that start threads.

    Raises:
        WorkerError: The system starts no more threads.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:  # Python's words, or the system's
        if getattr(error, "errno", None) not in (errno.EAGAIN, errno.ENOMEM) and "start new thread" not in str(error):
            raise
        raise WorkerError(
            f"The system starts no more threads: {error}. {LIMITS}; executor='inline' needs none."
        ) from error


def join_threads(threads: Sequence[threading.Thread], timeout_s: float) -> bool:
    """Waits for threads, except for the calling one. Returns whether all ended in time."""
    ends_at = time.monotonic() + timeout_s
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, ends_at - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
