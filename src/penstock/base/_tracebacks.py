"""Tracebacks without our frames: where a user's function fails, its own frames and ours would be one to ten."""

import os
from contextlib import suppress
from types import TracebackType

from penstock.base._errors import PenstockError

VARIABLE = "PENSTOCK_TRACEBACK"
"""The environment variable that keeps all frames, if it is `full`."""


def shorten(error: Exception) -> None:
    """Drops our frames from the tracebacks of an error of ours and its causes; those that have no others stay.

    The error must be raised again by `raise` alone, which adds no frame.
    """
    if not isinstance(error, PenstockError) or os.environ.get(VARIABLE) == "full":
        return
    each: BaseException | None = error
    seen: set[int] = set()
    with suppress(Exception):  # a class of the user's may have attributes of these names that fail
        while each is not None and id(each) not in seen:
            seen.add(id(each))
            found = None
            for part in _parts(each.__traceback__):
                if not _is_ours(part):
                    found = TracebackType(found, part.tb_frame, part.tb_lasti, part.tb_lineno)
            if found is not None or each is error:
                each.__traceback__ = found
            each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _parts(traceback: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback, the innermost first."""
    parts = []
    while traceback is not None:
        parts.append(traceback)
        traceback = traceback.tb_next
    return parts[::-1]


def _is_ours(part: TracebackType) -> bool:
    name = part.tb_frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.partition(".")[0] == "penstock"
