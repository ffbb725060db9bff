"""The program for streams, which one worker reads in order: `FeedProgram`.

It writes elements into the rows of spans, from which the units of a `ParallelProgram` read them. A unit is rows
`[start, stop)` of a span. It is a pure function of the plan and these integers, if the stream depends on its epoch
alone. So a unit can run again: the worker starts the epoch again and skips the elements before it.

If workers have nothing to do side by side, as in `from_generator(...).batch(32)`, a span is a batch as it is handed
out. So each element is copied once.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.lower._program import Program, Unit
from penstock.memory._ring import RingView
from penstock.memory._rows import Leaves, Rows
from penstock.memory._spans import BatchLayout, SpanLayout, objects_of
from penstock.plan._node import Elements
from penstock.plan._reader import OpenSources, Reader, WorkerStatus


@final
class Cursor:
    """The reader of a stream, and its place in it.

    The frames of the stream hold the `Reader` and not this object. So the stream closes when this object is dropped.
    """

    def __init__(self, reader: Reader) -> None:
        self.status = reader.status
        self._reader = reader
        self._epoch = -1
        self._elements: Generator[Leaves, None, None] | None = None
        self.index = 0

    @property
    def consumed(self) -> int:
        """How far the input of the stream was read; see `Reader.consumed`."""
        return self._reader.consumed

    def close(self) -> None:
        """Closes the stream, which runs the `finally:` blocks of the user's generator.

        A consumer that reads the stream itself may be inside it when the loader is closed: by another thread, by a
        signal handler, or by the generator. Then the stream closes when that call has returned.
        """
        elements, self._elements = self._elements, None
        if elements is not None and not elements.gi_running:  # type: ignore[attr-defined]  # an attribute of generators
            elements.close()

    def seek(self, epoch: int, index: int, origin: tuple[int, int]) -> None:
        """Goes to an element, or to the end if that comes first. Starts again at `origin` to go back."""
        if self._elements is None or epoch != self._epoch or index < self.index or self.index < origin[0]:
            self.close()
            self._reader.origin = origin
            self._elements, self._epoch, self.index = self._reader.sequence(epoch), epoch, origin[0]
        while self.index < index and self.next() is not None:
            pass

    def next(self) -> Leaves | None:
        """Returns the next element, or None after the last."""
        assert self._elements is not None
        try:
            leaves = next(self._elements, None)
        except BaseException:
            self._elements = None  # the generator has ended, which is not the end of the epoch
            raise
        self.index += leaves is not None
        return leaves


@final
@dataclass(frozen=True, eq=False)
class FeedProgram(Program):
    """The part of a stream that one worker reads in order."""

    layout: SpanLayout | BatchLayout
    """What it writes: spans, or batches."""

    @property
    def spec(self) -> Spec:
        """The spec of the slot that holds a span."""
        return self.layout.spec

    def reader(
        self,
        isolation: type[seeded_globals] | None,
        status: WorkerStatus | None = None,
        inputs: Mapping[int, Callable[[int, int], Elements]] | None = None,
    ) -> Cursor:
        """Makes the cursor of the worker. Parts come from stages (`Reader.stage`), by their places in `uses`."""
        sources = OpenSources(self.node, self.source_share)
        reader = Reader(self.node, sources, isolation=isolation, status=status)
        for place, each in enumerate(_uses(reader)):
            if inputs and place in inputs:
                each.stage = inputs[place]
        return Cursor(reader)

    def close(self, reader: Cursor) -> None:
        """Closes the stream."""
        reader.close()

    def run(self, reader: Cursor, unit: Unit, memory: RingView) -> int:
        """Writes rows `[start, stop)` of a span, as far as there are elements, and marks how far; see `marks_of`.

        Raises:
            Exception: The error of the stream. The elements before it are written.
        """
        layout, out, marks = self.layout, memory.rows(unit.slot), memory.marks(unit.slot)
        rows, first = layout.rows(out), unit.index * layout.size
        consumed = layout.consumed(out) if isinstance(layout, SpanLayout) else None
        marks[1] = 0
        try:
            reader.seek(unit.epoch, first + unit.start, unit.origin)
        finally:
            # The stream may have ended or failed before this unit, and before this span. Then the unit before this one
            # reported it, but its report is lost if Ctrl-C struck. So this unit reports the same place again.
            marks[0] = reader.index - first
            marks[2] = unit.generation  # last: from here on the marks are of this unit
        try:
            for row in range(unit.start, unit.stop):
                leaves = reader.next()
                if leaves is None:
                    marks[1] = 1
                    break
                rows.put(row, leaves)
                if consumed is not None:
                    consumed[row] = reader.consumed
                marks[0] = row + 1
            marks[3] = reader.consumed
        finally:
            if isinstance(layout, BatchLayout):
                layout.set_filled(out, marks[0])
        return max(0, marks[0] - unit.start)

    def take_rows(self, unit: Unit, out: Rows, *, is_shared: bool) -> list[Any]:
        """Returns text and ragged arrays of a unit. A feed runs on this machine, where the rest is shared memory."""
        return [array[unit.start : unit.stop] for array in objects_of(self.layout.rows(out))]

    def put_rows(self, unit: Unit, out: Rows, rows: Sequence[Any]) -> None:
        """Writes into a span what `take_rows` returned in another process."""
        for array, values in zip(objects_of(self.layout.rows(out)), rows, strict=True):
            array[unit.start : unit.stop] = values

    def describe(self, unit: Unit) -> str:
        """Describes a unit for messages."""
        first = unit.index * self.layout.size + unit.start
        return f"elements from {first} on of {self.node.label}, in epoch {unit.epoch}"


def _uses(reader: Reader) -> Iterator[Reader]:
    """Yields the readers of the nodes of `uses`, in the same order."""
    yield reader
    if reader.is_stream:
        for each in reader.inputs:
            yield from _uses(each)
