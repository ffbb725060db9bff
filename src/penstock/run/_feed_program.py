"""What a feed runs: elements of a stream, one after the other, into the rows of spans.

A unit is rows `[start, stop)` of a span, and the span's number in its epoch: a pure function of the plan and these
integers, as all units are, if what the stream gives depends on the epoch alone. So it can be done again: whoever does
it begins the epoch anew, and skips what was there before. Done in order by one worker, it goes on where it was.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, final

from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.lower._program import Outcome, Unit
from penstock.memory._rows import Leaves, Rows, Window
from penstock.memory._spans import SpanLayout
from penstock.plan._node import Node, walk
from penstock.plan._reader import OpenSources, Reader, WorkerStatus
from penstock.report._lanes import Lane


class Parallel(Protocol):
    """A part of what a feed reads that workers make; see `_stage.py`."""

    def sequence(self, epoch: int, start: int) -> Generator[Leaves, None, None]:
        """Gives the elements of an epoch, one after the other, from one on where there is random access."""

    def progress(self) -> object:
        """A value that changes whenever its workers get on."""

    def patience_s(self, timeout_s: float) -> float:
        """How long it waits for its workers before it gives up."""

    @property
    def waited_s(self) -> float:
        """How long the feed waited for its elements, so far."""

    def lanes(self, delivered: float, first: int) -> list[Lane]:
        """What its workers did so far; see `Pipeline.lanes`."""

    def tasks(self) -> list[str]:
        """Its workers; see `Executor.tasks`."""

    def request_stop(self) -> None:
        """Has its workers stop soon, and whoever waits for them. Takes no lock."""

    def close(self, timeout_s: float) -> bool:
        """Stops, and waits for its workers. Returns whether they ended."""


@final
class FeedProgram:
    """What runs in one place, made ready: the counterpart of `Program`.

    Args:
        node: The part of the plan that is read one element after the other.
        size: Elements in a span.
        slot_count: Spans.
        stages: Parts of it that are made in parallel, by the numbers of their nodes.
    """

    computes = False
    is_serial = False

    def __init__(self, node: Node, size: int, slot_count: int, stages: Mapping[int, Parallel]) -> None:
        self.node = node
        self.layout = SpanLayout(node.spec, size, slot_count)
        self.stages = stages

    @property
    def step_count(self) -> int:
        """As of `Program`."""
        return len(list(walk(self.node)))

    @property
    def spec(self) -> Spec:
        """What a slot holds."""
        return self.layout.spec

    def reader(
        self, isolation: type[seeded_globals] | None, trace: WorkerStatus | None = None, window: Window | None = None
    ) -> "Cursor":
        """Makes what the worker reads by; it has no window, being the one who fills it."""
        reader = Reader(self.node, OpenSources(self.node), isolation=isolation, trace=trace)
        for each in _readers(reader):
            if each.number in self.stages:
                each.stage = self.stages[each.number].sequence
        return Cursor(reader)

    def run(self, cursor: "Cursor", unit: Unit, out: Rows) -> None:
        """Writes rows `[start, stop)` of a span, as far as there are elements; begins anew if it has to.

        Raises:
            Exception: What the stream raised. The elements before are there.
        """
        rows, consumed, marks = self.layout.rows(out), self.layout.consumed(out), self.layout.marks(out)
        origin = unit.index * self.layout.size
        marks[1] = cursor.row_count = 0
        try:
            cursor.seek(unit.epoch, origin + unit.start, unit.origin)
        finally:
            # Where it ended, or failed, may be before this unit, and before this span: the unit before this may not
            # have been looked at yet, and never is if Ctrl-C cut that off. So this one says the same again.
            marks[0] = cursor.index - origin
        for row in range(unit.start, unit.stop):
            leaves = cursor.next()
            if leaves is None:
                marks[1] = 1
                return
            rows.put(row, leaves)
            consumed[row] = cursor.consumed
            marks[0] = row + 1
            cursor.row_count += 1

    def rows_done(self, cursor: "Cursor", unit: Unit) -> int:
        """As of `Program`: as many as there were, though more were asked for."""
        return cursor.row_count

    def objects(self, unit: Unit, out: Rows) -> list[Any]:
        """What a unit wrote of leaves that have no place in the slot, text and ragged arrays: a list of values each."""
        return [array[unit.start : unit.stop] for array in self.layout.objects(out)]

    def put_objects(self, unit: Unit, out: Rows, objects: Sequence[Any]) -> None:
        """Puts what `objects` returned, in another process, where it belongs."""
        for array, values in zip(self.layout.objects(out), objects, strict=True):
            array[unit.start : unit.stop] = values

    def describe(self, unit: Unit) -> str:
        """What a unit is of, for messages."""
        first = unit.index * self.layout.size + unit.start
        return f"elements from {first} on of {self.node.label}, in epoch {unit.epoch}"


def _readers(reader: Reader) -> Iterator[Reader]:
    yield reader
    for each in reader.inputs:
        yield from _readers(each)


@final
class Cursor:
    """A stream that is being read by a worker, and where it is.

    The stream's own frames hold the reader and not this, so that it is closed when this is dropped.
    """

    def __init__(self, reader: Reader) -> None:
        self.trace = reader.trace
        self._reader = reader
        self._epoch = -1
        self._elements: Generator[Leaves, None, None] | None = None
        self.index = 0
        self.row_count = 0
        """Elements that the unit that was run last wrote, if it was of a feed."""
        self.outcome = Outcome(0, False, -1)
        """Of the unit that was run last, if it was of a `Serial` program."""

    @property
    def consumed(self) -> int:
        """How far the stream's input was read; see `Reader.consumed`."""
        return self._reader.consumed

    def close(self) -> None:
        """Closes the stream: runs what the user's generator has in its `finally:`.

        Where the consumer reads it itself, the loader may be closed while it is in the midst of it: by another thread,
        by a signal's handler, by the generator. Then the stream closes when that call has returned, and what the
        consumer finds missing after it, the closed loader does not tell.
        """
        elements, self._elements = self._elements, None
        if elements is not None and not elements.gi_running:  # type: ignore[attr-defined]  # it is a generator's own
            elements.close()

    def seek(self, epoch: int, index: int, origin: tuple[int, int]) -> None:
        """Goes to an element, or as far as there are any: on from where it is, or from the origin."""
        if self._elements is None or epoch != self._epoch or index < self.index or self.index < origin[0]:
            self.close()
            self._reader.origin = origin
            self._elements, self._epoch, self.index = self._reader.sequence(epoch), epoch, origin[0]
        while self.index < index and self.next() is not None:
            pass

    def next(self) -> Leaves | None:
        """The next element, or None behind the last."""
        assert self._elements is not None
        try:
            leaves = next(self._elements, None)
        except BaseException:
            self._elements = None  # it is at its end now, which is not that of the epoch
            raise
        self.index += leaves is not None
        return leaves
