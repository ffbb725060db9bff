"""The executor `inline`: a batch is filled on the caller's thread when it is asked for. It is the oracle of the others.

It shares neither their scheduler nor their delivery. Nothing is under way between two calls of `take`. So Ctrl-C needs
no care: the slot that it cut off is neither free nor leased, and `Ring.reclaim` finds it.

The elements of a stream are read when a batch needs them, into one span, which is used again in turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from penstock.base._random import seeded_globals
from penstock.base._tree import Tree
from penstock.lower._batches import Announcements, ParallelProgram
from penstock.lower._program import Position, Unit, UnitResult
from penstock.lower._rewrite import needed
from penstock.lower._streams import FeedProgram
from penstock.memory._ring import Ring
from penstock.memory._spans import SpanLayout
from penstock.plan._node import Node, walk
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._feed import feed_lanes
from penstock.run._lanes import lane_of
from penstock.run._quarantine import Quarantine
from penstock.run._stage_reader import StageReader, close_stages
from penstock.run._unit_runner import UnitRunner
from penstock.run.executors._executor import clear_own_frames


@final
class InlineDelivery(DeliveryBase):
    """Fills each batch when it is taken.

    Args:
        program: The program of the batches.
        stream: The part below it that is read in order, if the plan is a stream. Its one span holds what a batch needs.
        stages: Parts of that which run apart, by their places in the order of `uses`; they were started.
        slot_count: Slots in the ring.
        timeout_s: How long reads of a server are repeated.
        gives_rest: Whether rows before an error are delivered; see `rest`.
        quarantine: Receives the elements that are set aside, if the plan has guards.
    """

    def __init__(
        self,
        program: ParallelProgram,
        stream: FeedProgram | None,
        stages: Mapping[int, StageReader],
        *,
        slot_count: int,
        timeout_s: float,
        gives_rest: bool,
        quarantine: Quarantine | None,
    ) -> None:
        super().__init__()
        self._gives_rest = gives_rest
        self._program = program
        self._quarantine = quarantine
        self._next: Position | None = None
        self._generation = 0
        self._announcements = Announcements(program)
        self.ring = Ring(program.spec, slot_count, None, step_count=program.step_count)
        self._stream = None if stream is None else _Stream(stream, stages, timeout_s)
        window = None if self._stream is None else self._stream.window
        self._runner = UnitRunner(program, self.ring, isolation=seeded_globals, inputs=window, timeout_s=timeout_s)

    @property
    def stop_workers(self) -> Callable[[], object]:
        """There are none; those of stages stop when they are dropped (`_stage_reader.py`)."""
        return bool

    def seek(self, position: Position, consumed: int = -1) -> None:
        """See `DeliveryBase.seek`."""
        self.require_open()
        if position != self._next:
            self._start(position, consumed)

    def _start(self, position: Position, consumed: int = -1) -> None:
        self._next = None
        self._announcements.reset()
        if self._stream is not None:
            first, _ = needed(self._program.node, position[1])
            self._stream.begin(position[0], first, consumed)
        self._next = position  # last: if Ctrl-C strikes before, this is done again

    def take(self, position: Position, timeout_s: float) -> Tree:
        """See `DeliveryBase.take`."""
        self.require_open()
        if self.ring.interrupts:
            self.pass_on_interrupt()
        if position != self._next:  # Ctrl-C struck in the middle of `_start`, or after the batch was made
            self._start(position)
        self.rest = None
        epoch, index = position
        length = -1
        if self._stream is not None:
            # Before it reads: `take(3)` needs no fourth element, which may be long in coming, or be an error.
            length = self._stream.length
            if not self._is_behind(length, index):
                length = self._read(self._stream, index)
            if self._is_behind(length, index):
                self._go_to(self._program.next_position(epoch, index, is_last=True))
                return END_OF_EPOCH
            if needed(self._program.at(length), index)[1] > self._stream.filled:
                raise self._program.shortage(epoch, index, length)
        if not self.ring.free:
            self.ring.reclaim(set())
        slot = self.ring.free.pop()
        self._generation += 1
        announce = self._announcements.after(position)
        (unit,) = self._program.cut(Unit(epoch, index, 0, 1, slot, self._generation, announce, length=length), 0)
        try:
            self._fill(unit)
        except Exception:
            self.ring.give_back(slot)
            raise
        if self._stream is not None:
            self.consumed = self._stream.consumed(self._program.at(length), index)
        batch = self.ring.hand_out(slot)
        self._go_to(self._program.next_position(epoch, index))
        return batch

    def _is_behind(self, length: int, index: int) -> bool:
        """Whether a batch is behind the last one, in an epoch of a stream of this length; -1 if that is not known."""
        count = self._program.at(length).length
        return count is None or index >= count

    def _read(self, stream: "_Stream", index: int) -> int:
        """Reads what a batch needs. Returns how many elements the epoch has; -1 if that is not known yet.

        The rest before an error of the stream is delivered as the end of an epoch; the error itself comes with it.
        """
        while (result := stream.step(self._program, index)) is not None:
            try:
                self._finish(result)
            except Exception as error:
                row_count, length = self._program.rest(index, stream.filled) if self._gives_rest else (0, 0)
                if not row_count:
                    raise
                self.rest = row_count, error
                return length
        return stream.length

    def _fill(self, unit: Unit) -> None:
        """Fills the rows of a batch. If the rest is given, those before the first that fails."""
        try:
            self._finish(self._runner.run(unit))
            return
        except Exception:
            if not self._gives_rest or unit.stop - unit.start < 2:
                raise
        for row in range(unit.start, unit.stop):
            try:
                self._finish(self._runner.run(unit._replace(start=row, stop=row + 1)))
            except Exception as error:
                if row == unit.start:
                    raise
                self.rest = row, error
                return

    def _go_to(self, position: Position) -> None:
        self._next = None if position[1] == 0 and self._stream is not None else position

    def _finish(self, result: UnitResult) -> None:
        """Sets failures aside, and raises the error of a unit."""
        self.require_open()  # `close`, on another thread, makes a unit end early
        error = result.error
        if error is not None:
            clear_own_frames(error)
        if result.failures and self._quarantine is not None:
            self._quarantine.add(result.failures)
        try:
            if error is not None:
                raise error
        finally:
            del error, result  # its traceback holds this frame

    # The loader's questions.

    def progress(self) -> object:
        """What the caller's thread is working on."""
        return self._runner.status.read()

    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """See `DeliveryBase.lanes`."""
        node, rows = self._program.node, self._program.rows_per_batch
        times = self.ring.total_times()
        own = lane_of(node, times, 1, 0, rows_per_batch=rows, reach=None, first=first)
        if self._stream is None:
            return [own]
        above_count = len(list(walk(node))) - 1  # a chain of steps, and an inlet
        stream, *stages = self._stream.lanes(own.batches, first + above_count)
        if self._program.is_cpu_bound:
            return [own, stream, *stages]
        both = replace(stream, wall_s=stream.wall_s + own.wall_s, cpu_s=stream.cpu_s + own.cpu_s)
        return [both, *stages]  # steps that move what was read are no work of their own

    def _join(self, timeout_s: float) -> bool:
        ended = self._stream is None or self._stream.close(timeout_s)
        self._runner.close()
        self._program.sources.close()
        self.ring.release()
        return ended


@final
class _Stream:
    """The elements of a stream that a batch needs, in one span: element `i` lies in row `i % size`.

    Args:
        program: The steps that are read in order.
        stages: See `InlineDelivery`.
        timeout_s: See `InlineDelivery`.
    """

    def __init__(self, program: FeedProgram, stages: Mapping[int, StageReader], timeout_s: float) -> None:
        self._program = program
        self._stages = stages
        assert isinstance(program.layout, SpanLayout)
        self._layout = program.layout
        self._ring = Ring(program.spec, program.layout.slot_count, None, step_count=program.step_count)
        self.window = self._layout.window([self._ring.rows(0)])
        inputs = {place: stage.sequence for place, stage in stages.items()}
        self._runner = UnitRunner(program, self._ring, isolation=seeded_globals, inputs=inputs, timeout_s=timeout_s)
        self._generation = 0
        self.begin(0, 0, -1)

    def begin(self, epoch: int, first: int, consumed: int) -> None:
        """Goes to an element of an epoch; see `DeliveryBase.seek`."""
        self._epoch = epoch
        self.filled = first
        """Elements up to this number were read."""
        self._origin = (first, consumed) if consumed >= 0 else (0, 0)
        self.length = -1
        """The number of elements of the epoch; -1 until its end is seen."""

    def step(self, program: ParallelProgram, index: int) -> UnitResult | None:
        """Reads towards what a batch needs. Returns the result, or None if nothing is left to read."""
        _, stop = needed(program.at(self.length), index)
        if self.filled >= stop or self.length >= 0:
            return None
        size = self._layout.size
        span, row = divmod(self.filled, size)
        self._generation += 1
        end = min(size, row + stop - self.filled)
        result = self._runner.run(Unit(self._epoch, span, row, end, 0, self._generation, origin=self._origin))
        filled, is_last = self._ring.marks(0)[:2]
        self.filled = span * size + filled
        if is_last:
            self.length = self.filled
        return result

    def consumed(self, node: Node, index: int) -> int:
        """Returns how far the input was read for a batch; -1 if it needed nothing."""
        first, stop = needed(node, index)
        return int(self._layout.consumed(self._ring.rows(0))[(stop - 1) % self._layout.size]) if stop > first else -1

    def lanes(self, delivered: float, first: int) -> list[Lane]:
        """See `DeliveryBase.lanes`."""
        return feed_lanes(self._program.node, self._ring, self._stages, delivered, first, reach=None)

    def close(self, timeout_s: float) -> bool:
        """Closes the stream and its stages, and frees the span. Returns whether the workers of the stages ended."""
        ended = close_stages(self._stages.values(), timeout_s)
        self._runner.close()
        self.window.release()
        self._ring.release()
        return ended
