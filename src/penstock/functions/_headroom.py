"""`penstock.headroom`: what a training loop could gain from a faster input, at most."""

import copy
import math
import time
from collections import UserDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, final

from penstock.base._errors import ArgumentTypeError, type_of
from penstock.report._units import ms, plural
from penstock.verbs._asked import integer

LEAST_GAIN: Final = 1.05
"""A smaller gain is within what two measurements of one loop differ by."""


@final
class Headroom:
    """Batches to train on, and then what was measured: see `penstock.headroom`. `print` it for a sentence."""

    def __init__(self, loader: Iterable[Any], count: int, warm_up: int) -> None:
        self._loader, self._count, self._warm_up = loader, count, warm_up
        self.batches = 0
        """Batches of the loader that were timed. As many repeats followed."""
        self.batch_s = math.nan
        """Seconds from one batch of the loader to the next, on average: the input, and the work on it."""
        self.repeat_s = math.nan
        """The same while one batch was repeated, which needs no input."""
        self._ended_after: int | None = None
        """The batches of a loader that had too few of them."""

    @property
    def gain(self) -> float:
        """How many times as fast the loop could be with the fastest input. `nan` before the end."""
        return self.batch_s / self.repeat_s if self.repeat_s else math.nan

    def __iter__(self) -> Iterator[Any]:
        self.batches, self.batch_s, self.repeat_s, self._ended_after = 0, math.nan, math.nan, None
        batches = iter(self._loader)
        last, count, began = None, 0, time.perf_counter()
        for batch in batches:
            last = _parts_of(batch)
            yield batch
            count += 1
            if count == self._warm_up:
                began = time.perf_counter()
            if count == self._warm_up + self._count:
                break
        ended, timed = time.perf_counter(), count - self._warm_up
        if timed < 2:
            self._ended_after = count
            return
        del batches  # its workers end, where it has some, and take no CPU from the repeats
        yield _parts_of(last)  # the first one after a pause says little
        again = time.perf_counter()
        for _ in range(timed):
            yield _parts_of(last)
        self.batches, self.batch_s = timed, (ended - began) / timed
        self.repeat_s = (time.perf_counter() - again) / timed

    def __str__(self) -> str:
        if self._ended_after is not None:
            return (
                f"Nothing is known: the loader ended after {plural(self._ended_after, 'batch')}, and warm_up="
                f"{self._warm_up} needs {self._warm_up + 2}. Give it more batches, or headroom(loader, warm_up=1)."
            )
        if not self.batches:
            return "Nothing is known yet: train on all batches of this object first."
        times = (
            f"{plural(self.batches, 'batch')} of the loader took {ms(self.batch_s)} each, and one batch, repeated, "
            f"{ms(self.repeat_s)}."
        )
        if not self.gain >= LEAST_GAIN:  # not a number where no time passed
            return f"{times} The input is not the limit: a faster one would gain nothing."
        return (
            f"{times} With the fastest input this loop would be {self.gain:.2f} times as fast: input takes "
            f"{1 - 1 / self.gain:.0%} of its time."
        )

    __repr__ = __str__


def _parts_of(batch: Any) -> Any:
    """The batch in a dict, list or tuple of its own: a step may take parts out, as `batch.pop("labels")` does."""
    if type(batch) is tuple:
        return tuple(map(_parts_of, batch))
    return copy.copy(batch) if isinstance(batch, (dict, UserDict, list)) else batch


def headroom(loader: Iterable[Any], *, batches: int = 100, warm_up: int = 10) -> Headroom:
    """Measures how much faster your training could be with the fastest input, before you change anything.

    Put it around what your training loop iterates, of any library: a DataLoader, a `tf.data.Dataset`, a Grain loader, a
    `Loader` of penstock, a list. It gives some batches of it, and then repeats the last of these, which costs nothing.
    The difference is the most that any input could gain. Where it is small, the model is the limit.

        loop = penstock.headroom(loader)
        for batch in loop:
            train_step(batch)
        print(loop)

    The loop ends after `warm_up + batches` batches, or where the loader does, and as many repeats. They train your
    model, and repeats teach it nothing: do not keep it. What a step writes into the last batch stays in its repeats.
    The time is that between two batches, so that it holds for programs that compute on a GPU too: where steps run ahead
    of Python, over 100 batches it is their speed.

    Random access: none. Order: that of the loader. Memory: that of the loader, and one batch. The loader's iterator
    is let go before the repeats, so that its workers do not compute beside them.

    Args:
        loader: What your loop iterates. It is iterated once each time that the result is.
        batches: The number of batches to time.
        warm_up: The number of batches before that, in which frameworks compile and workers start.

    Returns:
        Batches to iterate; then `gain`, `batch_s` and `repeat_s` are known, and `print` says them in a sentence.

    Raises:
        ArgumentTypeError: `loader` cannot be iterated, or a number is no integer.
        ArgumentError: `batches` is below 2, or `warm_up` below 1.

    Example:
        >>> loop = penstock.headroom([np.zeros(4)] * 40, batches=20)
        >>> len([batch.shape for batch in loop])
        51
        >>> loop.batches
        20
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise ArgumentTypeError(
            f"headroom() takes what your training loop iterates, such as a DataLoader, got {type_of(loader)}."
        )
    batches = integer("headroom", "batches", batches, 2)
    warm_up = integer("headroom", "warm_up", warm_up, 1)
    return Headroom(loader, batches, warm_up)
