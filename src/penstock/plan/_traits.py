"""How a run treats a step, in one value. A source says its part of it by members of the same names."""

from collections.abc import Iterable
from typing import NamedTuple


class Traits(NamedTuple):
    """How a run treats a step, or several."""

    is_parallel: bool = False
    """Over a stream, several workers run this step at once: it needs positions, and at most neighbouring elements.
    Its `needs` says which."""
    is_cpu_bound: bool = False
    """Elements take computation: a function or decoding."""
    may_hold_gil: bool = False
    """It runs code that may hold the GIL."""
    is_remote: bool = False
    """It waits for a server."""
    reads_ahead: bool = False
    """It has requested what will be read, so that it seldom waits."""
    suits_one_thread: bool = False
    """Several threads read no faster than one."""
    is_hidden: bool = False
    """It is a part of the step after it, and the user did not write it."""
    is_cached: bool = False
    """It reads a cache."""
    reads_spans: bool = False
    """It stands for a stream: units read elements from spans."""
    runs_code: bool = False
    """To read it in order runs the user's code, which workers cannot share."""

    @classmethod
    def any_of(cls, several: Iterable["Traits"]) -> "Traits":
        """What holds for one step at least."""
        return cls(*map(any, zip(*several, strict=True)))
