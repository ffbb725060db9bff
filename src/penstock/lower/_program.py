"""Units of work, and the protocol of the programs that they belong to.

A program is a plan that is ready to run. A unit is rows `[start, stop)` of one batch. Its result is a pure function of
the program and the integers in the unit. So a unit can run in any worker, in any order, and again after a failure.
Units of a stream run in order on one worker, each where the one before it stopped. One can run again, too: the worker
starts the epoch anew and skips.

There are three: `ParallelProgram` for plans with random access and for steps above a stream, `FeedProgram` for streams
that one worker reads in order, and `PartProgram` for parts of sources that are decoded ahead.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.memory._ring import RingView
from penstock.memory._rows import Rows
from penstock.plan._node import Node, walk
from penstock.plan._order import Position as Position
from penstock.plan._reader import WorkerStatus
from penstock.plan._tolerate import Failure


class Unit(NamedTuple):
    """Rows `[start, stop)` of batch `index` of epoch `epoch`, to be written into a slot."""

    epoch: int
    index: int  # type: ignore[assignment]  # replaces a method of tuples that is not used here
    start: int
    stop: int
    slot: int
    generation: int
    """Number of this use of a slot. Results of abandoned generations are not delivered."""
    announce: tuple[int, int, int] = (0, 0, 0)
    """Batches that the unit announces to the sources when it is done: `(epoch, index)` of the first, and a count."""
    base: int = 0
    """Streams: where the elements of the epoch lie, see `Window.base`."""
    length: int = -1
    """Streams: elements in the epoch if that was known when the unit was made, else -1."""
    origin: tuple[int, int] = (0, 0)
    """Feeds: where to start if the worker has to start again; see `Reader.origin`."""
    is_poisoned: bool = False
    """The one element of the unit crashed workers. It is set aside without being tried."""


class UnitResult(NamedTuple):
    """The report of a finished unit. Rows that it wrote into its slot are not in it."""

    error: BaseException | None = None
    rows: Sequence[Any] = ()
    """Arrays of the slot that the unit could not write itself, see `Program.take_rows`. Empty if there are none."""
    failures: Sequence[Failure] = ()
    """Elements that were set aside."""
    seconds: float = 0.0
    """Duration, from an executor that does not share the header of the ring; else 0."""


@dataclass(frozen=True, eq=False)
class Program(ABC):
    """A plan that is ready to run. `UnitRunner` runs its units, with one reader for each worker.

    The type of readers is the program's own. Each has the `status` of its worker. A program does not change: workers
    share it, and its copies in other processes are the same.
    """

    node: Node
    room_nbytes: float = field(default=math.inf, kw_only=True)
    """See `RetryBudget`."""
    source_share: float = field(default=1.0, kw_only=True)
    """The part of their memory that sources keep when they are opened."""

    def __reduce__(self) -> Any:
        # Without what it found out here: in the other process, sources are opened again.
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return functools.partial(type(self), **given), ()

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """The contents of a slot."""

    @property
    def step_count(self) -> int:
        """The number of steps whose time is measured."""
        return len(list(walk(self.node)))

    @abstractmethod
    def reader(
        self, isolation: type[seeded_globals] | None, status: WorkerStatus | None = None, inputs: Any = None
    ) -> Any:
        """Makes the reader of one worker.

        Args:
            isolation: How global random generators are seeded for each element; None where they are not.
            status: Where the worker writes what it is working on.
            inputs: What the worker reads from rings that others fill; of the program's own type.
        """

    @abstractmethod
    def run(self, reader: Any, unit: Unit, memory: RingView) -> int:
        """Fills the rows of a unit. Returns how many elements it wrote, for the measurement of time."""

    def close(self, reader: Any) -> None:
        """Closes what a reader holds open."""

    @abstractmethod
    def describe(self, unit: Unit) -> str:
        """Describes a unit for messages: `batch 3 of epoch 0, made of row 96 of ds.npy`."""

    @abstractmethod
    def take_rows(self, unit: Unit, out: Rows, *, is_shared: bool) -> list[Any]:
        """Returns what a unit wrote, one entry for each array of the slot.

        Args:
            unit: The unit.
            out: Its slot.
            is_shared: Whether the parent shares the memory of the slot. Then entries of arrays in it are None. Text and
                ragged arrays are Python objects, which no shared memory holds.
        """

    @abstractmethod
    def put_rows(self, unit: Unit, out: Rows, rows: Sequence[Any]) -> None:
        """Writes into a slot what `take_rows` returned in another process."""
