"""`cache`: elements are made once, kept, and read from the cache afterwards.

In every epoch the step gives the elements of epoch 0 of its input. Elements that are kept are read like those of a
file, together with all reads of a batch. The input makes the others, and they are written when they are complete. The
cache (`CacheHandle`, in `sources/`) guarantees that an element is either complete and right, or absent.

With random access, elements are kept one by one, in any order, by any worker. An epoch of a stream is kept as a whole,
by the first worker that reads it from its beginning to its end: parts of two readings may not fit together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.base._errors import PenstockError
from penstock.base._printable import printable
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, Rows, chunk_count
from penstock.plan._chunks import Chunks
from penstock.plan._node import Demand, Elements, Length, Memory, Node, OneInput, Randomness, Traits, history
from penstock.plan._reader import Gather, Reader
from penstock.plan._source import Openable

ABSENT: Final = 0
SUSPECT: Final = 1
"""It may have been written before the machine went down, so its checksum must be compared."""
HELD: Final = 2

Asked = Callable[[], npt.NDArray[np.bool_] | None] | None
"""See `CacheHandle.complete`."""


class OpenCache(Openable):
    """Elements that are kept, as one process sees them. All threads share one. This one keeps none."""

    is_full = False
    """All elements are held. It may be noticed late."""

    length = 0
    """The number of elements of a complete epoch."""

    def look(self, indices: Indices) -> npt.NDArray[np.uint8]:
        """Returns `ABSENT`, `SUSPECT` or `HELD` for each element."""
        return np.full(len(indices), ABSENT, np.uint8)

    def missing(self, indices: Indices) -> Indices:
        """The elements that are not there; announces nothing."""
        return indices[:0] if self.is_full else indices[self.look(indices) == ABSENT]

    def read(self, reader: Reader, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements that are held into rows, or makes `gather` do so when it runs."""

    def check(self, indices: Indices, out: Rows) -> npt.NDArray[np.bool_]:
        """Reads suspect elements into rows, now, and returns which of them are right. Those are held afterwards."""
        return np.zeros(len(indices), np.bool_)

    def write(self, indices: Indices, rows: Rows) -> None:
        """Keeps complete elements, as far as there is room."""

    def whole(self) -> "OpenCache | None":
        """The epoch of a stream that is kept, for access by index; None while it is incomplete."""
        return None

    def recorder(self) -> "Recorder | None":
        """Begins to write an epoch of a stream; None if another worker writes one, or there is no room."""
        return None

    def stretch(self, start: int, stop: int) -> int:
        """The end of a range from `start` of about `CHUNK_NBYTES`: at least one element, at most `stop`."""
        return stop

    def damaged(self, index: int) -> PenstockError:
        """The error for an element that is wrong and cannot be made again here."""
        return PenstockError(f"Element {index} is not kept.")


class Recorder(Protocol):
    """An epoch of a stream that is being written."""

    def put(self, leaves: Leaves) -> None:
        """Takes the next element."""

    def finish(self) -> None:
        """Marks the epoch as complete."""

    def close(self) -> None:
        """Ends it. An unfinished epoch is discarded."""


class CacheHandle(Openable, ABC):
    """A cache, as a handle that travels."""

    @abstractmethod
    def open(self) -> OpenCache:
        """Returns the form that reads and writes."""

    @abstractmethod
    def memory(self, spec: Spec, length: Length) -> Memory:
        """The memory in each process, to know which elements are there, and the memory that all processes share."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The fingerprint of the plan that makes the elements."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """The elements that it has."""
        return {"what is kept": self.fingerprint}

    @abstractmethod
    def complete(self, asked: Asked = None) -> "Whole | None":
        """Returns facts about the cache if it has all elements that a plan reads, else None. Runs no function.

        Args:
            asked: Returns the elements that the plan reads, a bool each, or None for all. Called if some are absent.
        """


class Whole(NamedTuple):
    """Facts about a complete cache: one that has all elements that a plan reads, so its input is not needed."""

    spec: Spec
    length: int


@dataclass(frozen=True, eq=False)
class CacheStep(Node):
    """A step that reads a cache."""

    store: CacheHandle
    text: str
    """The user's arguments: `'frames', limit=4096`."""

    verb = "cache"
    traits = Traits(is_cached=True)

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return printable(f"cache({self.text})")

    def settings(self) -> dict[str, Any]:
        """None: the place of a cache does not change elements."""
        return {}

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those by which it is filled, also once it is complete: an order is no matter of what is kept."""
        return next((each.chunks for each in history(self)), None)

    @property
    def opens(self) -> CacheHandle:
        """The cache."""
        return self.store

    @property
    def memory(self) -> Memory:
        """As the cache says."""
        return self.store.memory(self.spec, self.length)


@dataclass(frozen=True, eq=False)
class Cache(CacheStep, OneInput):
    """Element `i` is the input's element `i` of epoch 0, made once."""

    ends_guards = True
    takes_each_once = True

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The same elements of epoch 0."""
        return [Demand(0, 0, indices)]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements that are kept; the input makes the others now, and they are kept."""
        store: OpenCache = reader.source
        absent = _read_held(store, reader, indices, out, gather)
        if not len(absent):
            return
        missing, rows = indices[absent], out.take(absent)
        reader.inputs[0].read(0, missing, rows)  # now, before they are written
        store.write(missing, rows)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Yields the epoch that is kept; or the input's, and writes it."""
        store: OpenCache = reader.source
        whole = store.whole()
        if whole is not None:
            yield from _kept(self.spec, reader, whole)
            return
        # If elements that fail are left out, to find a spec, the epoch is not to be kept.
        recorder = None if reader.status.takes_any else store.recorder()
        try:
            for number, leaves in enumerate(reader.inputs[0].sequence(0), 1):
                if recorder is not None:
                    recorder.put(leaves)
                if recorder is not None and number == self.length:
                    recorder.finish()  # now: a caller that knows the length requests no more
                    recorder.close()
                    recorder = None
                yield leaves
            if recorder is not None:
                recorder.finish()
        finally:
            if recorder is not None:
                recorder.close()


@dataclass(frozen=True, eq=False)
class CompleteCache(CacheStep):
    """A complete cache: it is like a file, and reads no input."""

    text: str = field(repr=False)
    whole: Whole = field(repr=False)
    origin: Node | None = field(repr=False)
    """The plan that the elements were made by; None in a worker, because its functions may not travel."""
    before: Randomness = field(repr=False)
    """That of its input."""

    def __reduce__(self) -> tuple[Any, ...]:
        return CompleteCache, (self.store, self.text, self.whole, None, self.before)

    @property
    def randomness(self) -> Randomness:
        """Steps after it draw as they did while it was filled."""
        return self.before

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.whole.length

    @property
    def spec(self) -> Spec:
        """As recorded."""
        return self.whole.spec

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements from the cache."""
        store: OpenCache = reader.source
        absent = _read_held(store, reader, indices, out, gather)
        if len(absent):
            raise store.damaged(int(indices[absent[0]]))


def _read_held(store: OpenCache, reader: Reader, indices: Indices, out: Rows, gather: Gather) -> Indices:
    """Reads elements that a cache has; returns the positions of the others."""
    state = None if store.is_full else store.look(indices)
    if state is None or state.min(initial=HELD) == HELD:
        store.read(reader, indices, out, gather)
        return indices[:0]
    held = (state == HELD).nonzero()[0]
    if len(held):
        store.read(reader, indices[held], out.take(held), gather)
    suspect = (state == SUSPECT).nonzero()[0]
    if len(suspect):
        state[suspect[~store.check(indices[suspect], out.take(suspect))]] = ABSENT
    absent: Indices = (state == ABSENT).nonzero()[0]
    return absent


def _kept(spec: Spec, reader: Reader, whole: OpenCache) -> Elements:
    box, stop = Rows.allocate(spec, min(chunk_count(spec), whole.length)), 0
    while stop < whole.length:
        start, stop = stop, whole.stretch(stop, min(stop + len(box.arrays[0]), whole.length))
        indices, gather = np.arange(start, stop), Gather()
        rows = box.take(slice(0, stop - start))
        absent = _read_held(whole, reader, indices, rows, gather)
        if len(absent):
            raise whole.damaged(int(indices[absent[0]]))
        gather.run()
        for row in range(stop - start):
            yield box.leaf_values(row)
