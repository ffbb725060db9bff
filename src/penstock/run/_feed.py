"""A stream's beginning: what has to be read in one place, one element after the other, ahead of the workers.

A plan over a stream is cut in two (`plan/_stream.cut`). What is below runs here, on one worker of its own, which
writes elements into *spans*, slots of `size` elements each. What is above is an ordinary program, whose units read
their elements from the spans: any worker, in any order, and again after a failure.

Spans are numbered from the first to the last that this feed ever fills; number `n` lies in slot `n % slot_count`. So a
worker knows where element `i` of an epoch is from one integer, `Run.base`. Spans come free in the order of their
numbers, when the pipeline needs nothing of them any more and nobody writes to them.

Who writes what. Everything below `_lock` is written with that lock held. The pipeline calls in with its own lock held;
so a feed never calls the pipeline with `_lock` held: it wakes the pipeline's executor.

Each wait, and what ends it. None in this file. The worker may wait in the user's generator, which nobody can end (a
thread is left behind, see `DeadlineError`), or for a batch of a stage, see `_stage.py`.
"""

import functools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from penstock.base._random import seeded_globals
from penstock.lower._program import FIRST_UNIT_ROWS, UNIT_S, Program, Unit, run_unit
from penstock.memory._ring import Ring
from penstock.memory._rows import Rows, Window
from penstock.memory._shared import Place, SharedFile
from penstock.memory._times import Times
from penstock.plan._node import Node
from penstock.plan._reader import place_of
from penstock.plan._stream import needed
from penstock.plan._tolerate import Failure
from penstock.report._lanes import Lane
from penstock.run._feed_program import Cursor, FeedProgram, Parallel
from penstock.run._lanes import lane_of
from penstock.run._quarantine import Quarantine, note_end_of_stream
from penstock.run.executors._executor import Client, Executor, clear_own_frames

AHEAD_COUNT: Final = 2
"""Units that wait for the feed's worker or are at it, so that it need not wait for us."""


@final
@dataclass(slots=True, eq=False)
class Run:
    """An epoch of the stream, or the rest of one, being read."""

    epoch: int
    base: int
    """See `Window.base`."""
    filled: int
    """Elements up to here are there, in this epoch's numbers; those before the first span never were."""
    count: int = -1
    """How many elements the epoch has; -1 until its end was seen."""
    origin: tuple[int, int] = (0, 0)
    """See `Unit.origin`."""
    error: BaseException | None = None
    """What element `filled` raised."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.count >= 0 or self.error is not None


@final
@dataclass(slots=True, eq=False)
class _Span:
    number: int
    run: Run
    index: int
    """Among the spans of its epoch."""
    issued: int = 0
    """Rows up to here were given to the worker."""
    pending: int = 0
    """Units of it that are not finished."""
    places: list[Place] = field(default_factory=list)
    """Where text and ragged arrays of it lie for other processes."""


@final
class Feed(Client):
    """Fills spans on one worker, in order, as far as there is room.

    Args:
        program: What it reads.
        make_executor: Makes the executor, of one worker, given its client.
        wake: Called when elements have come, or the end, or an error. Takes no lock.
        shared: Where other processes that are to see the spans find text and ragged arrays; None if there are none.
        quarantine: Takes what was set aside, if the plan has guards.
    """

    def __init__(
        self,
        program: FeedProgram,
        make_executor: Callable[[Client], Executor],
        wake: Callable[[], None],
        shared: SharedFile | None,
        quarantine: Quarantine | None = None,
        timeout_s: float = math.inf,
    ) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._layout = program.layout
        self._quarantine = quarantine
        self._shared = shared
        self._wake = wake
        self._pid = os.getpid()
        self._closed = False
        self._reader: Cursor | None = None
        self._lock = threading.Lock()
        self.current: Run | None = None
        """What is being read."""
        self._spans: deque[_Span] = deque()
        self._next_number = 0
        self._limit: int | None = None
        self._wanted_from = 0
        """The number of the first span of which something is needed."""
        self._units: dict[int, _Span] = {}
        """By generation."""
        self._generation = 0
        self._executor = make_executor(self)
        self.stop_workers = functools.partial(
            _stop,
            weakref.ref(self),
            self._executor.request_stop,
            [weakref.ref(stage) for stage in program.stages.values()],
        )
        """For a finalizer: stops the worker, and holds neither this nor the plan."""
        try:
            self.ring = Ring(
                program.spec,
                program.layout.slot_count,
                1,
                _ignore,
                is_shared=shared is not None or self._executor.is_elsewhere,
                step_count=program.step_count,
            )
            self._executor.begin(program, self.ring)
        except BaseException:
            self._executor.request_stop()
            raise

    # The executor's side: see `Client`.

    def run(self, unit: Unit) -> None:
        """Runs a unit on the calling thread, unless nobody wants it any more."""
        if self._closed or not self._is_wanted(unit):
            return
        if self._reader is None:
            self._reader = self._program.reader(seeded_globals if self._executor.isolates else None)
            self._reader.trace.times = Times(self.ring.times[0])
        try:
            run_unit(self._program, self._reader, unit, self.ring.rows(unit.slot), self.ring.words, self._timeout_s)
        finally:
            self._set_aside(self._reader.trace.failures)

    def _set_aside(self, failures: Sequence[Failure]) -> None:
        if failures and self._quarantine is not None:
            self._quarantine.add(failures)

    def _is_wanted(self, unit: Unit) -> bool:
        with self._lock:
            span = self._units.get(unit.generation)
            return span is not None and span.run is self.current and not span.run.is_over

    def describe(self, unit: Unit, trace: tuple[int, int, int]) -> str:
        """What a worker was at that had a unit, for messages."""
        return place_of(trace, self._program.node) if trace[0] else self._program.describe(unit)

    def received(self, unit: Unit, objects: Sequence[Any], failures: Sequence[Failure]) -> None:
        """Takes text and ragged arrays, and what was set aside, which came from another process."""
        if objects:
            self._program.put_objects(unit, self.ring.rows(unit.slot), objects)
        self._set_aside(failures)

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        """Notes how far the span is, and what follows from that."""
        if error is not None:
            clear_own_frames(error)
        with self._lock:
            span = self._units.pop(unit.generation, None)
            if span is None:
                return  # forgotten, see `begin`
            span.pending -= 1
            run = span.run
            if run is self.current and not run.is_over and not self._closed:
                marks = self._layout.marks(self.ring.rows(unit.slot))
                # In another process, the worker may be at the next unit of this span by now.
                stop, ended = int(marks[0]), bool(marks[1])
                ended &= stop < unit.stop
                stop = min(stop, unit.stop)
                try:
                    self._share(span, max(unit.start, run.filled - span.index * self._layout.size), stop)
                except OSError as failure:  # no memory
                    error, stop = error or failure, unit.start
                run.filled = max(run.filled, span.index * self._layout.size + stop)
                if error is not None:
                    if self._quarantine is not None:
                        note_end_of_stream(error)
                    run.error = error
                elif ended:
                    run.count = run.filled
                if ended or error is not None:
                    self.ring.words[0] = self._generation  # units that wait are not wanted any more
            self._issue()
        self._wake()

    def _share(self, span: _Span, start: int, stop: int) -> None:
        """Puts text and ragged arrays where other processes find them."""
        if self._shared is None or not self._layout.has_objects or start >= stop:
            return
        slot = self._places(span.number)
        data = self._layout.packed(slot, start, stop)
        place = self._shared.put_bytes(data)
        span.places.append(place)
        self._layout.note_place(slot, start, stop, place)

    def look(self) -> bool:
        """Notes what is there of a unit that is not done yet, for a consumer that waits; returns whether it is more."""
        with self._lock:
            run = self.current
            if run is None or run.is_over or self._closed or not self._units:
                return False
            if self._executor.is_elsewhere and self._layout.has_objects:
                return False  # text and ragged arrays come when the unit is done
            generation = min(self._units)
            span = self._units[generation]
            if span.run is not run:
                return False
            marks = self._layout.marks(self._places(span.number))
            stop = min(int(marks[0]), span.issued)
            there = span.index * self._layout.size + stop
            if there <= run.filled:
                return False
            self._share(span, run.filled - span.index * self._layout.size, stop)
            run.filled = there
        self._wake()
        return True

    def leave(self) -> None:
        """Closes the stream, on the thread that read it."""
        if self._reader is not None:
            self._reader.close()

    def pump(self) -> None:
        """Gives the worker what there is to do."""
        with self._lock:
            self._issue()

    def _issue(self) -> None:
        while (
            self.current is not None
            and not self.current.is_over
            and not self._closed
            and len(self._units) < AHEAD_COUNT
        ):
            span = self._spans[-1] if self._spans else None
            if span is None or span.run is not self.current or span.issued == self._layout.size:
                span = self._new_span(self.current)
                if span is None:
                    return
            stop = min(self._layout.size, span.issued + self._unit_rows())
            if self._limit is not None:  # what is behind may never be asked for, and may take for ever
                stop = min(stop, self._limit - span.index * self._layout.size)
                if stop <= span.issued:
                    return
            self._generation += 1
            slot = span.number % self._layout.slot_count
            unit = Unit(span.run.epoch, span.index, span.issued, stop, slot, self._generation, origin=span.run.origin)
            # Noted last: rows count as given to the worker when they were. Ctrl-C in between leaves a unit of which
            # the books know nothing: it is not run, and its rows are given again. Noted first, they would be left out.
            self._executor.submit([unit])
            span.issued, span.pending = stop, span.pending + 1
            self._units[self._generation] = span

    def _places(self, number: int) -> Rows:
        """Where the elements of a span lie, given its number."""
        return self.ring.rows(number % self._layout.slot_count)

    def _unit_rows(self) -> int:
        row_s = self.ring.words[-1] / 1e9
        return max(1, round(UNIT_S / row_s)) if row_s else FIRST_UNIT_ROWS

    def _new_span(self, run: Run) -> _Span | None:
        while self._spans and self._spans[0].number < self._wanted_from and not self._spans[0].pending:
            self._forget(self._spans.popleft())
        oldest = self._spans[0].number if self._spans else self._next_number
        if self._next_number - oldest >= self._layout.slot_count:
            return None
        size = self._layout.size
        span = _Span(self._next_number, run, self._next_number - run.base // size)
        span.issued = max(0, run.filled - span.index * size) if run.filled < (span.index + 1) * size else 0
        marks = self._layout.marks(self._places(span.number))
        marks[0], marks[1] = span.issued, 0  # what is there of the span that lay here before is not of this one
        self._next_number += 1
        self._spans.append(span)
        return span

    def _forget(self, span: _Span) -> None:
        places, span.places = span.places, []  # before, for two threads may close a loader at once
        for place in places if self._shared is not None else ():
            self._shared.release(place)  # type: ignore[union-attr]

    # The pipeline's side, with its lock held.

    def begin(self, epoch: int, element: int, consumed: int = -1, limit: int | None = None) -> None:
        """Begins an epoch at an element, and gives up what was being read before.

        Args:
            epoch: The epoch.
            element: The first that is needed.
            consumed: See `consumed_before`, which said so of this element in an earlier run; -1 to read all before it.
            limit: How many elements of the epoch are ever needed; None for all.
        """
        with self._lock:
            size = self._layout.size
            index = element // size
            run = Run(epoch, (self._next_number - index) * size, element)
            if consumed >= 0:
                run.origin = element, consumed
            if self._executor.worker_count == 0:  # nothing can be under way but what Ctrl-C cut off from its books
                self._units.clear()
                for span in self._spans:
                    span.pending = 0
            self.current, self._limit = run, limit
            self.ring.words[0] = self._generation  # what is under way is not wanted any more
        self._executor.wake()

    def release(self, run: Run, element: int) -> None:
        """Says that of all spans, nothing before this element of a run is needed any more."""
        with self._lock:
            number = (element + run.base) // self._layout.size
            if number <= self._wanted_from:
                return
            self._wanted_from = number
        self._executor.wake()

    def consumed_before(self, run: Run, element: int) -> int:
        """How far the stream's input was read when the elements before this one were there; -1 if nobody knows."""
        if not element:
            return -1
        number, row = divmod(element - 1 + run.base, self._layout.size)
        return int(self._layout.consumed(self._places(number))[row])

    def window(self) -> Window:
        """What a worker of this process reads from."""
        return self._layout.window([self.ring.rows(slot) for slot in range(self._layout.slot_count)])

    # The consumer's.

    def drive(self) -> bool:
        """Runs one unit on the calling thread, if the executor has no worker. Returns whether it did."""
        return self._executor.drive()

    def patience_s(self, timeout_s: float) -> float:
        """How long nothing may come before the pipeline gives up: longer than a stage takes to give up."""
        own = self._executor.patience_s(timeout_s)
        stages = [stage.patience_s(timeout_s) for stage in self._program.stages.values()]
        return 1.5 * max(own, *stages) if stages else own

    def progress(self) -> object:
        """A value that changes whenever the worker gets on."""
        reader = self._reader
        inner = [stage.progress() for stage in self._program.stages.values()]
        return self._executor.progress(), None if reader is None else reader.trace.read(), inner

    def lanes(self, delivered: float, first: int) -> list[Lane]:
        """What its worker did so far, and the workers of its stages; see `Pipeline.lanes`."""
        node, times, executor = self._program.node, self.ring.total_times(), self._executor.name
        own = lane_of(node, times, 1, delivered, is_serial=True, executor=executor, first=first)
        lanes = []
        for number, stage in self._program.stages.items():
            lanes += stage.lanes(delivered, first + number)
        # What it waited for the workers of its stages is no work of its own, and not what the pipeline is as fast as.
        waited_s = sum(stage.waited_s for stage in self._program.stages.values())
        return [replace(own, wall_s=max(own.cpu_s, own.wall_s - waited_s)), *lanes]

    def tasks(self) -> list[str]:
        """Its worker, and those of its stages; see `Executor.tasks`."""
        return [*self._executor.tasks(), *(task for stage in self._program.stages.values() for task in stage.tasks())]

    def place(self) -> str:
        """Where the worker is, for the message of a deadline."""
        reader = self._reader
        return place_of(reader.trace.read(), self._program.node) if reader else self._program.node.label

    def stuck(self) -> list[str]:
        """The stack of the worker, if it is at something."""
        return self._executor.stuck()

    def request_stop(self) -> None:
        """Has the worker stop soon. Takes no lock, so a finalizer may call it."""
        if self._pid == os.getpid():
            self._closed = True
            self.stop_workers()

    def close(self, timeout_s: float) -> bool:
        """Stops, waits for the worker to end, and frees the memory. Returns whether it ended."""
        self.request_stop()
        ends_at = time.monotonic() + timeout_s
        ended = self._executor.join(timeout_s)
        for stage in self._program.stages.values():
            ended &= stage.close(max(0.0, ends_at - time.monotonic()))
        if ended:
            self.leave()
            if self._reader is not None:
                self._reader.trace.times = None  # which is in the ring's memory
            self._reader = None
            for span in self._spans:
                self._forget(span)
            self.ring.release()
        return ended


def _stop(
    feed_ref: "weakref.ref[Feed]", stop_worker: Callable[[], None], stages: "Sequence[weakref.ref[Parallel]]"
) -> None:
    if (ring := getattr(feed_ref(), "ring", None)) is not None:  # its worker has it while it runs a unit
        ring.give_up()
    stop_worker()
    for each in stages:
        if (stage := each()) is not None:
            stage.request_stop()


def _ignore() -> None:
    """Spans do not come back by themselves."""


@final
class Intake:
    """What a pipeline over a stream knows of its feed. Everything is called with the pipeline's lock held.

    Args:
        program: The steps over the feed.
        feed: The feed.
        gives_rest: Whether what is there before an error makes a last, short batch.
    """

    WAIT: Final = "wait"
    END: Final = "end"

    def __init__(self, program: Program, feed: Feed, *, gives_rest: bool) -> None:
        self._program = program
        self._gives_rest = gives_rest
        self.feed = feed
        self._has_begun = False
        self._asked: tuple[Node, int, tuple[int, int]] | None = None

    @property
    def run(self) -> Run | None:
        """What the feed reads, if it is what is looked for; else None."""
        return self.feed.current if self._has_begun else None

    def forget(self) -> None:
        """Says that another epoch is looked for from now on, or the same again."""
        self._has_begun = False

    def _needed(self, node: Node, index: int) -> tuple[int, int]:
        """As `needed`, kept: six questions running are about one batch; they were two fifths of the parent's calls."""
        asked = self._asked
        if asked is None or asked[0] is not node or asked[1] != index:
            self._asked = asked = node, index, needed(node, index)
        return asked[2]

    def begin(self, epoch: int, index: int, consumed: int = -1) -> None:
        """Makes a batch the next that is looked for; see `Feed.begin`."""
        node, limit = self._program.node, None
        if self._program.batch_count:
            limit = needed(node, self._program.batch_count - 1)[1]
        self._has_begun = False  # Ctrl-C may strike in between
        self.feed.begin(epoch, self._needed(node, index)[0], consumed, limit)
        self._has_begun = True

    def look(self, epoch: int, index: int) -> object:
        """Whether a batch can be made: `WAIT`, `END` if the epoch has no such batch, an error, or `(base, length)`."""
        run = self.run
        if run is None or run.epoch != epoch:
            self.begin(epoch, index)
            run = self.run
        assert run is not None
        node = self._program.at(run.count)
        if node.length != math.inf and index >= (node.length or 0):
            return self.END
        if self._needed(node, index)[1] <= run.filled:
            return run.base, run.count
        if run.error is None:
            return self.WAIT
        if self._gives_rest and self._needed(node, index)[0] < run.filled:
            return run.base, run.filled
        return run.error

    def first_needed(self, index: int) -> int:
        """The first element that a batch, and all after it, needs."""
        return self._needed(self._program.node, index)[0]

    def consumed_after(self, run: Run, index: int) -> int:
        """See `Feed.consumed_before`, of the element behind those of a batch."""
        first, stop = self._needed(self._program.at(run.count), index)
        return self.feed.consumed_before(run, stop) if stop > first else -1
