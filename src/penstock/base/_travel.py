"""Where an object goes that is being packed for workers. Its `__reduce__` asks `journey()`; pickle does the rest.

Some objects mean something else in another process, or on another machine: a file of this machine is known there by
its content, options of a client go to workers but into no other pickle, and a cache that is being written stays. Each
class says so in its own `__reduce__`. Outside of a journey, as in `pickle.dumps` of a user, `journey()` is None.
"""

import contextlib
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, eq=False)
class Journey:
    """One packing of objects for workers."""

    leaves_machine: bool = False
    """Whether they go to other machines, which have none of this one's files, inodes, times and memory."""
    found: dict[Hashable, Any] = field(default_factory=dict)
    """What classes have found out for all of their objects, by keys of their own."""


class _Thread(threading.local):
    journey: Journey | None = None


_own = _Thread()


def journey() -> Journey | None:
    """The journey that the calling thread packs for; None if there is none."""
    return _own.journey


def leaves_machine() -> bool:
    """Whether the calling thread packs for other machines."""
    return _own.journey is not None and _own.journey.leaves_machine


@contextlib.contextmanager
def packing_for(given: Journey) -> Iterator[None]:
    """Sets the journey of the calling thread for some time."""
    before, _own.journey = _own.journey, given
    try:
        yield
    finally:
        _own.journey = before
