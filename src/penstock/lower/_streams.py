"""Programs for streams, which one worker reads in order: `FeedProgram` and `SerialProgram`.

A `FeedProgram` writes elements into the rows of spans, from which the units of a `ParallelProgram` read them. A unit is
rows `[start, stop)` of a span. It is a pure function of the plan and these integers, if the stream depends on its epoch
alone. So a unit can run again: the worker starts the epoch again and skips the elements before it.

A `SerialProgram` writes elements straight into batches. `from_generator(...).batch(32)` needs no spans, since workers
have nothing to do side by side, and each element is copied once. A unit is a whole batch.
"""

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, final

from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.lower._batches import BatchProgram
from penstock.lower._program import Outcome, Program, Unit
from penstock.memory._rows import Leaves, Rows
from penstock.memory._spans import SpanLayout
from penstock.plan._batch import Batch
from penstock.plan._node import Node
from penstock.plan._reader import OpenSources, Reader, WorkerStatus


class ElementSequence(Protocol):
    """A part of a feed whose elements workers make ahead."""

    def sequence(self, epoch: int, start: int) -> Generator[Leaves, None, None]:
        """Yields the elements of an epoch, from `start` on where there is random access."""


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
        self.outcome = Outcome(0, is_last=False, consumed=-1)
        """The outcome of the last unit of a `SerialProgram`."""

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
class FeedProgram(Program):
    """The part of a stream that one worker reads in order.

    Args:
        node: That part of the plan.
        size: Elements in a span.
        slot_count: Spans.
    """

    def __init__(self, node: Node, size: int, slot_count: int) -> None:
        self.node = node
        self.layout = SpanLayout(node.spec, size, slot_count)

    @property
    def spec(self) -> Spec:
        """The spec of the slot that holds a span."""
        return self.layout.spec

    def reader(
        self,
        isolation: type[seeded_globals] | None,
        status: WorkerStatus | None = None,
        inputs: Mapping[int, ElementSequence] | None = None,
    ) -> Cursor:
        """Makes the cursor of the worker. Parts come from stages, by their places in the order of `uses`."""
        sources = OpenSources(self.node, self.source_share)
        reader = Reader(self.node, sources, isolation=isolation, status=status)
        for place, each in enumerate(_uses(reader)):
            if inputs and place in inputs:
                each.stage = inputs[place].sequence
        return Cursor(reader)

    def close(self, reader: Cursor) -> None:
        """Closes the stream."""
        reader.close()

    def run(self, reader: Cursor, unit: Unit, out: Rows) -> int:
        """Writes rows `[start, stop)` of a span, as far as there are elements.

        Raises:
            Exception: The error of the stream. The elements before it are written.
        """
        rows, consumed, marks = self.layout.rows(out), self.layout.consumed(out), self.layout.marks(out)
        first = unit.index * self.layout.size
        marks[1] = 0
        try:
            reader.seek(unit.epoch, first + unit.start, unit.origin)
        finally:
            # The stream may have ended or failed before this unit, and before this span. Then the unit before this one
            # reported it, but its report is lost if Ctrl-C struck. So this unit reports the same place again.
            marks[0] = reader.index - first
            marks[2] = unit.generation  # last: from here on the marks are of this unit
        for row in range(unit.start, unit.stop):
            leaves = reader.next()
            if leaves is None:
                marks[1] = 1
                return row - unit.start
            rows.put(row, leaves)
            consumed[row] = reader.consumed
            marks[0] = row + 1
        return unit.stop - unit.start

    def take_rows(self, unit: Unit, out: Rows, *, is_shared: bool) -> list[Any]:
        """Returns text and ragged arrays of a unit. A feed runs on this machine, where the rest is shared memory."""
        return [array[unit.start : unit.stop] for array in self.layout.objects(out)]

    def put_rows(self, unit: Unit, out: Rows, rows: Sequence[Any]) -> None:
        """Writes into a span what `take_rows` returned in another process."""
        for array, values in zip(self.layout.objects(out), rows, strict=True):
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


@final
class SerialProgram(BatchProgram):
    """A stream that one worker writes straight into batches, in order.

    The end of an epoch is known when a unit finds less than a batch. The unit reports that in its `Outcome`.

    Args:
        node: The plan: a step that needs its elements in order, or batches of one.
        same_epoch: Every epoch is epoch 0 again.
    """

    is_serial = True

    def __init__(self, node: Node, *, same_epoch: bool = False) -> None:
        super().__init__(node, same_epoch=same_epoch)
        self._batch = node if isinstance(node, Batch) else None
        self._size = node.size if isinstance(node, Batch) else 1

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(SerialProgram, same_epoch=self.same_epoch)
        return make, (self.node,), {"room_nbytes": self.room_nbytes, "source_share": self.source_share}

    @property
    def rows_per_batch(self) -> int:
        """Elements in a full batch."""
        return self._size

    def first_element(self, index: int) -> int:
        """Returns the number of the first element of a batch."""
        return index * self._size

    def reader(
        self, isolation: type[seeded_globals] | None, status: WorkerStatus | None = None, inputs: None = None
    ) -> Cursor:
        """Makes the cursor of the worker."""
        reader = Reader(self.node, self.sources, isolation=isolation, status=status)
        return Cursor(reader if self._batch is None else reader.inputs[0])

    def close(self, reader: Cursor) -> None:
        """Closes the stream."""
        reader.close()

    def run(self, reader: Cursor, unit: Unit, out: Rows) -> int:
        """Fills a slot as far as there are elements.

        Raises:
            Exception: The error of the stream. The elements before it are written, and the outcome counts them.
        """
        count, is_last = 0, False
        rows = out if self._batch is None else out.parts()
        out.set_extents(self._size)
        try:
            reader.seek(unit.epoch, unit.index * self._size, unit.origin)
            while count < self._size and (leaves := reader.next()) is not None:
                rows.put(count, leaves)
                count += 1
            is_last = count < self._size
        finally:
            if is_last and self._batch is not None and self._batch.drop_remainder:
                count = 0
            reader.outcome = Outcome(count, is_last, reader.consumed)
        if self._batch is not None and count:
            out.set_filled(count)
        return count

    def outcome(self, reader: Cursor) -> Outcome:
        """Returns the outcome of the last unit."""
        return reader.outcome

    def describe(self, unit: Unit) -> str:
        """Describes a unit for messages."""
        return f"batch {unit.index} of epoch {unit.epoch}, elements from {unit.index * self._size} on"
