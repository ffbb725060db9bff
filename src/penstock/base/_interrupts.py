"""Ctrl-C stays Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ctrl_c_stays() -> Iterator[None]:
    """Raises KeyboardInterrupt for whatever comes out of the body after Ctrl-C.

    Code that it strikes may raise something else in its place: an extension module in the middle of its import raises
    `TypeError: expected a message argument`, for one. On other threads than the main one this does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    struck = False

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        struck = True
        before(number, frame)

    signal.signal(signal.SIGINT, strike)
    try:
        yield
    except Exception as error:
        if struck:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
