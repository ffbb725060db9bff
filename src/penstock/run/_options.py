"""The options of a loader, checked."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, final

from penstock.base._arguments import as_float, as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.base._trust import require_safe
from penstock.lower._analysis import Analysis
from penstock.lower._guards import OnError
from penstock.lower._share import Uneven
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._text import identity, length_words
from penstock.run._quarantine import Quarantine, require_appendable
from penstock.run._shard import shard_of
from penstock.run.executors._registry import EXECUTORS, executor_names

MOST_WORKERS: Final = 4096


@final
@dataclass(frozen=True)
class LoaderOptions:
    """How a dataset is run. See `Dataset.loader` for each."""

    executor: Literal["auto", "inline", "threads", "processes", "ray"] = "auto"
    workers: int | Literal["auto"] = "auto"
    prefetch: int = 4
    memory_limit: int | None = None
    timeout_s: float = 300.0
    on_error: OnError = "raise"
    shard: tuple[int, int] = (0, 1)
    max_errors: int | float | None = None
    quarantine: str | os.PathLike[str] = "penstock-quarantine.jsonl"
    ray_options: Mapping[str, Any] | None = None
    uneven: Uneven = "refuse"
    micro_batches: int = 1
    whole_batches: bool = False
    batch_axis: Any = None

    def __post_init__(self) -> None:
        if self.executor != "auto" and not EXECUTORS.knows(self.executor):
            cure = f" For so many workers: workers={self.executor}." if (as_int(self.executor) or 0) > 0 else ""
            raise ArgumentError(f"executor={self.executor!r} is not known. Use {executor_names()}.{cure}")
        if self.workers != "auto":
            if as_int(self.workers) == 0:
                raise ArgumentError("workers=0 is below 1. Without workers, on the caller's thread: executor='inline'.")
            self._set("workers", _integer("workers", self.workers))
            if self.workers > MOST_WORKERS:
                raise ArgumentError(
                    f"workers={self.workers}: at most {MOST_WORKERS:,}. More than the CPUs help only where they wait, "
                    "as for a server."
                )
            if self.executor == "inline" and self.workers != 1:
                raise ArgumentError(f"executor='inline' has no workers, but workers={self.workers} was asked for.")
        self._set("prefetch", _integer("prefetch", self.prefetch))
        if self.memory_limit is not None:
            self._set("memory_limit", _integer("memory_limit", self.memory_limit, "bytes, such as 2 * 2**30"))
        seconds = as_float(self.timeout_s)
        if seconds is None:
            raise ArgumentTypeError(f"timeout_s={self.timeout_s!r} is not a number of seconds.")
        if not seconds > 0:
            raise ArgumentError(f"timeout_s={self.timeout_s!r} is not a time above zero, in seconds.")
        self._set("timeout_s", seconds)
        if self.on_error not in ("raise", "skip", "replace"):
            raise ArgumentError(
                f"on_error={self.on_error!r} is not known. Use 'raise', 'skip' (leave out elements that fail), or "
                "'replace' (put another one of the batch in their place)."
            )
        self._check_max_errors()
        self._set("shard", shard_of(self.shard))
        if self.uneven not in ("refuse", "weights", "mask", "pad"):
            raise ArgumentError(
                f"uneven={self.uneven!r} is not known. Use 'refuse', 'weights' (shares that differ by an element, with "
                "a weight for each element), or 'mask' (equal shares that are filled up, with a mask). With "
                "whole_batches=True, 'pad' (a last step that is filled up, with a weight for each batch)."
            )
        if self.uneven != "refuse" and self.whole_batches != (self.uneven == "pad"):
            cure = "whole_batches=True" if self.uneven == "pad" else "uneven='pad', or leave whole_batches= out"
            raise ArgumentError(
                f"uneven={self.uneven!r} is about {'whole batches' if self.uneven == 'pad' else 'rows of a batch'}, "
                f"but here ranks share {'rows' if self.uneven == 'pad' else 'whole batches'}. Use {cure}."
            )
        self._set("micro_batches", _integer("micro_batches", self.micro_batches))
        if self.on_error == "skip" and self.shard[1] > 1:
            raise ArgumentError(
                f"on_error='skip' leaves out what fails, and {self.shard[1]} ranks may fail differently: each would "
                "get other batches, and another number of them. Use on_error='replace' in all ranks, which keeps both."
            )
        if self.ray_options is not None and self.executor != "ray":
            raise ArgumentError(f"ray_options= is for executor='ray', and this is executor={self.executor!r}.")
        if not isinstance(self.ray_options, Mapping | None):
            raise ArgumentTypeError(
                f"ray_options={self.ray_options!r} is no dict of options of Ray's actors, such as {{'num_cpus': 4}}."
            )

    def _set(self, name: str, value: object) -> None:
        """Replaces a NumPy number by a Python number."""
        object.__setattr__(self, name, value)

    def _check_max_errors(self) -> None:
        most = self.max_errors
        if most is not None:
            number, count = as_float(most), as_int(most)
            if number is None:
                raise ArgumentTypeError(f"max_errors={most!r} is no number: a count, or a fraction such as 0.01.")
            if not (number >= 0 and (count is not None or number <= 1)):
                raise ArgumentError(f"max_errors={most!r} is neither a count from 0 on nor a fraction from 0.0 to 1.0.")
            if self.on_error == "raise":
                raise ArgumentError(
                    f"max_errors={most!r} says how many elements may fail, but on_error='raise' ends with the first. "
                    "Use on_error='replace' or 'skip'."
                )
            self._set("max_errors", number if count is None else count)
        if not isinstance(self.quarantine, (str, os.PathLike)):
            raise ArgumentTypeError(f"quarantine needs a path, got {no_path(self.quarantine)}")

    def make_quarantine(self, node: Node, analysis: Analysis) -> Quarantine:
        """Makes the file for elements that fail.

        Args:
            node: The plan as the user wrote it.
            analysis: The plan with guards.

        Raises:
            ArgumentError: `max_errors` is a fraction, and the length is unknown; there is no folder for the file; or
                other users can plant one there.
        """
        limit = self.max_errors
        if isinstance(limit, float):
            lengths = [each.inputs[0].length for each in analysis.guards]
            if not all(isinstance(length, int) for length in lengths):
                raise ArgumentError(
                    f"max_errors={limit} is a fraction, but the number of elements is unknown: the dataset is "
                    f"{length_words(node.length)}. Give a count, such as max_errors=100."
                )
            limit = math.floor(limit * max((length for length in lengths if isinstance(length, int)), default=0))
        path = os.path.abspath(self.quarantine)
        if not os.path.isdir(os.path.dirname(path)):
            raise ArgumentError(f"quarantine={str(self.quarantine)!r}: there is no folder {os.path.dirname(path)}.")
        try:
            require_safe(path)
            if os.path.lexists(path):
                require_appendable(os.lstat(path).st_mode)
        except OSError as error:
            raise ArgumentError(f"quarantine={str(self.quarantine)!r}: {error.strerror}.") from None
        return Quarantine(path, identity(node), self.on_error, limit, str(self.max_errors))


OPTIONS: Final = tuple(field.name for field in fields(LoaderOptions))
"""The names of the options."""


def _integer(name: str, value: object, unit: str = "") -> int:
    """An option as a Python integer from 1, limited to the largest count."""
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"{name}={value!r} is not an integer{f' ({unit})' if unit else ''}.")
    if number < 1:
        raise ArgumentError(f"{name}={number} is below 1.")
    return min(number, POSITION_LIMIT - 1)
