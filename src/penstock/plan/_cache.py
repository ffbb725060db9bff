"""`cache`: elements that were made once are kept, and read from there after.

The step gives what its input gives in epoch 0, in every epoch. Elements that are kept are read like those of a file,
together with all reads of a batch; others are made by the input, and written when they are complete. What keeps them
(`CacheHandle`, in `sources/`) sees to it that an element is either there, whole and right, or not there.

Over random access elements are kept one by one, in any order, by any worker. Over a stream an epoch is kept as a whole:
whoever reads it first from its beginning to its end writes it down, for part of one reading and part of another might
not belong together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import PenstockError
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, Rows, chunk_count
from penstock.plan._node import Demand, Length, Node
from penstock.plan._reader import Gather
from penstock.plan._source import Openable

if TYPE_CHECKING:
    from penstock.plan._reader import Reader

ABSENT: Final = 0
SUSPECT: Final = 1
"""It is there, but may have been written before the machine went down: to be compared with its checksum."""
HELD: Final = 2

Asked = Callable[[], npt.NDArray[np.bool_] | None] | None
"""See `CacheHandle.complete`."""


class OpenCache(Openable, ABC):
    """Elements that are kept, as one process sees them; serves any number of threads at once."""

    is_full = False
    """Whether all elements are held, so that nobody needs to ask. It may be noticed late."""

    @abstractmethod
    def look(self, indices: Indices) -> npt.NDArray[np.uint8]:
        """Says of each element whether it is `ABSENT`, `SUSPECT` or `HELD`."""

    @abstractmethod
    def read(self, reader: "Reader", indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements that are held into rows, or has `gather` do so when it runs."""

    @abstractmethod
    def check(self, indices: Indices, out: Rows) -> npt.NDArray[np.bool_]:
        """Reads elements that are suspect into rows, now, and says which of them are right. They are held after it."""

    @abstractmethod
    def write(self, indices: Indices, rows: Rows) -> None:
        """Keeps elements that are complete in their rows, as far as there is room."""

    @abstractmethod
    def whole(self) -> "OpenCache | None":
        """Of a stream: the epoch that is kept, for access by index; None while it is not whole."""

    @abstractmethod
    def recorder(self) -> "Recorder | None":
        """Of a stream: begins to write an epoch down; None if somebody else is at it, or there is no room for it."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Of what is whole: the number of elements."""

    @abstractmethod
    def stretch(self, start: int, stop: int) -> int:
        """Where a stretch from `start` on ends, of about `CHUNK_NBYTES` and one element at least; `stop` at most."""

    @abstractmethod
    def damaged(self, index: int) -> PenstockError:
        """The error that says that an element is not right, and cannot be made again from here."""


class Recorder(Protocol):
    """An epoch of a stream being written down."""

    def put(self, leaves: Leaves) -> None:
        """Takes the next element."""

    def finish(self) -> None:
        """Says that this was all: from now on it is whole."""

    def close(self) -> None:
        """Ends it. What was not finished is of no use to anybody."""


class CacheHandle(Openable, ABC):
    """Where elements are kept, as a handle that travels."""

    @abstractmethod
    def open(self) -> OpenCache:
        """Returns the form that reads and writes."""

    @abstractmethod
    def scratch_nbytes(self, spec: Spec, length: Length) -> int:
        """Bytes that each process keeps to know which elements are there."""

    @abstractmethod
    def kept_nbytes(self, spec: Spec, length: Length) -> int:
        """Bytes of memory that all processes share."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What the elements depend on."""

    @abstractmethod
    def complete(self, asked: Asked = None) -> "Whole | None":
        """What is there, if that is all that is asked for, so that nothing before it is needed. Runs no function.

        Args:
            asked: Says which elements those are, if not all of them are there: a bool each, or None for all.
        """


class Whole:
    """Facts about a cache that has all that is asked for, so that its input is not needed."""

    def __init__(self, spec: Spec, length: int) -> None:
        self.spec = spec
        self.length = length


@final
@dataclass(frozen=True, eq=False)
class Cache(Node):
    """Element `i` is the input's element `i` of epoch 0, made once."""

    before: Node | None
    """The input; None where this travels without it."""
    store: CacheHandle
    text: str
    """The user's arguments: `'frames', limit=4096`."""
    all: Whole | None = None
    """Of a cache that had all that is asked for when this step was made: it reads nothing else, and is like a file."""

    @property
    def verb(self) -> str:
        """`cache`."""
        return "cache"

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"cache({self.text})"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The input, where it is needed."""
        return () if self.all or self.before is None else (self.before,)

    @property
    def made_by(self) -> tuple[Node, ...]:
        """The input, needed or not."""
        return () if self.before is None else (self.before,)

    def __reduce__(self) -> tuple[Any, ...]:
        # What is complete travels without the functions that made it, which may not travel.
        return Cache, (None if self.all else self.before, self.store, self.text, self.all)

    def settings(self) -> dict[str, Any]:
        """None: where it is kept changes nothing."""
        return {}

    def fingerprint_parts(self) -> dict[str, Any]:
        """Those of what was made; a step that keeps it changes nothing."""
        return {"what is kept": self.store.fingerprint} if self.all else {}

    @property
    def opens(self) -> CacheHandle:
        """Where elements are kept."""
        return self.store

    def _find_length(self) -> Length:
        return self.all.length if self.all else self.inputs[0].length

    @property
    def known_spec(self) -> Spec | None:
        """That of the input."""
        return self.all.spec if self.all else self.inputs[0].known_spec

    def _find_spec(self) -> Spec:
        return self.all.spec if self.all else self.inputs[0].spec

    @property
    def random_depth(self) -> int:
        """None: it has no random steps before it."""
        return 0

    @property
    def overlaps(self) -> bool:
        """As the input."""
        return any(node.overlaps for node in self.made_by)

    def clear_after(self, index: int) -> int:
        """As the input."""
        return max((node.clear_after(index) for node in self.made_by), default=index + 1)

    @property
    def scratch_nbytes(self) -> int:
        """What is known of each element, and some of them where a stream is read or written."""
        return self.store.scratch_nbytes(self.spec, self.length)

    @property
    def kept_nbytes(self) -> int:
        """The memory that elements are kept in."""
        return self.store.kept_nbytes(self.spec, self.length)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The same elements of epoch 0."""
        return [Demand(number, 0, indices) for number in range(len(self.inputs))]

    def announced(self, reader: "Reader", epoch: int, indices: Indices) -> Iterable[Demand]:
        """Those that are not kept yet; the cache announces the others itself."""
        if not self.inputs or reader.source.is_full:
            return ()
        missing = indices[reader.source.look(indices) == ABSENT]
        return self.demand(0, missing) if len(missing) else ()

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads what is kept; has the input make the rest now, and keeps it."""
        store: OpenCache = reader.source
        if store.is_full:
            store.read(reader, indices, out, gather)
            return
        state = store.look(indices)
        if state.min(initial=HELD) == HELD:
            store.read(reader, indices, out, gather)
            return
        held = (state == HELD).nonzero()[0]
        if len(held):
            store.read(reader, indices[held], out.take(held), gather)
        suspect = (state == SUSPECT).nonzero()[0]
        if len(suspect):
            state[suspect[~store.check(indices[suspect], out.take(suspect))]] = ABSENT
        absent = (state == ABSENT).nonzero()[0]
        if not len(absent):
            return
        if not self.inputs:
            raise store.damaged(int(indices[absent[0]]))
        missing, rows, reads = indices[absent], out.take(absent), Gather()
        reader.inputs[0].fill(0, missing, rows, reads)
        reads.run()  # before they are written
        store.write(missing, rows)

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """Gives the epoch that is kept; or the input's, and writes that down."""
        store: OpenCache = reader.source
        whole = store.whole()
        if whole is not None:
            yield from self._kept(reader, whole)
            return
        # An epoch from which elements that fail are left out, as where a function is tried, is not to be kept.
        recorder = None if reader.trace.takes_any else store.recorder()
        try:
            for number, leaves in enumerate(reader.inputs[0].sequence(0), 1):
                if recorder is not None:
                    recorder.put(leaves)
                if recorder is not None and number == self.length:
                    recorder.finish()  # now, for whoever knows how many there are asks for no more
                    recorder.close()
                    recorder = None
                yield leaves
            if recorder is not None:
                recorder.finish()
        finally:
            if recorder is not None:
                recorder.close()

    def _kept(self, reader: "Reader", whole: OpenCache) -> Generator[Leaves, None, None]:
        box, stop = Rows.allocate(self.spec, min(chunk_count(self.spec), whole.length)), 0
        while stop < whole.length:
            start, stop = stop, whole.stretch(stop, min(stop + len(box.arrays[0]), whole.length))
            indices, gather = np.arange(start, stop), Gather()
            rows = box.take(slice(0, stop - start))
            if (whole.look(indices) == HELD).all():
                whole.read(reader, indices, rows, gather)
                gather.run()
            elif not (right := whole.check(indices, rows)).all():
                raise whole.damaged(int(indices[~right][0]))
            for row in range(stop - start):
                yield box.leaf_values(row)
