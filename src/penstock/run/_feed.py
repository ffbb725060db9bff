"""A stream's beginning, which one worker reads in order, ahead of the workers that fill batches.

A plan over a stream is cut in two (`lower/_rewrite.cut`). The part below the cut runs here, on one worker of its own.
The worker writes elements into spans (`_span_schedule.py`). The part above is an ordinary program. Its units read their
elements from the spans, on any worker, in any order, and again after a failure. If nothing is left to do above, spans
are batches, and the delivery hands them out.

Which thread writes what. The feed shares the one lock of its `Delivery`. With it held, the feed changes the schedule of
the spans, and so does the delivery's scheduler. The feed calls nothing of the delivery. It wakes the executor of the
delivery, whose worker then asks for units; or the consumer, if there is no such executor.

Each wait, and what ends it. `close` waits for the worker, at most as long as it is told. The worker may wait to ask a
server again: `Ring.give_up` ends that. It may wait in the user's generator, which nothing can end: then a thread is
left behind, see `DeadlineError`. Or it waits for a batch of a stage, see `_stage_reader.py`.
"""

import functools
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from penstock.base._errors import DeadlineError, WorkerError
from penstock.base._reach import Reach
from penstock.lower._batches import FIRST_UNIT_ROWS, UNIT_S
from penstock.lower._program import Unit, UnitResult
from penstock.lower._streams import FeedProgram
from penstock.memory._ring import Ring
from penstock.memory._rows import Window
from penstock.memory._shared import Place, SharedFile
from penstock.memory._spans import SpanLayout
from penstock.plan._node import Elements, Node
from penstock.plan._text import place_of
from penstock.report._lanes import Lane
from penstock.run._lanes import lane_of
from penstock.run._quarantine import Quarantine
from penstock.run._span_schedule import SpanSchedule
from penstock.run._stage_reader import StageReader, close_stages
from penstock.run._unit_runner import LocalClient
from penstock.run.executors._executor import Client, Executor, clear_own_frames

AHEAD_COUNT: Final = 2
"""Units under way, so that the worker of the feed need not wait for the next."""


@final
class Feed(LocalClient):
    """Fills spans on one worker, in order, as far as there is room.

    Args:
        program: The part of the stream that the feed reads.
        stages: The parts of it that run on workers, by their places in the order of `uses`.
        make_executor: Makes the executor, of one worker.
        wake: Wakes the executor of the delivery, or its consumer. Takes no lock.
        shared: Where other processes that read the spans find text and ragged arrays; None if there are none.
        lock: The lock of the delivery.
        quarantine: Receives the elements that are set aside, if the plan has guards.
        timeout_s: How long the worker may stand still.
    """

    def __init__(
        self,
        program: FeedProgram,
        stages: Mapping[int, StageReader],
        make_executor: Callable[[Client], Executor],
        wake: Callable[[], None],
        shared: SharedFile | None,
        lock: threading.Lock,
        quarantine: Quarantine | None,
        timeout_s: float,
    ) -> None:
        super().__init__(program, timeout_s, lock)
        self._program: FeedProgram = program
        self._stages = stages
        self._layout = program.layout
        self._spans = program.layout if isinstance(program.layout, SpanLayout) else None
        """None if spans are batches."""
        self._quarantine = quarantine
        self._shared = shared
        self._wake = wake
        self._closed = False
        self._places: defaultdict[int, list[Place]] = defaultdict(list)
        """For each slot, where text and ragged arrays of its span lie for other processes."""
        self.executor = executor = make_executor(self)
        self.stop_workers = functools.partial(
            _stop, weakref.ref(self), executor.request_stop, [weakref.ref(stage) for stage in stages.values()]
        )
        """For a finalizer: stops the worker, and holds neither this object nor the plan."""
        try:
            slot_count = self._layout.slot_count
            self.ring = Ring(
                program.spec,
                slot_count,
                executor.wake,
                is_shared=shared is not None or executor.reach != "thread",
                step_count=program.step_count,
            )
            # A unit takes its slot when it is issued. So with one under way, a thread fills batches into the slot that
            # came back last, which may still be in the cache. It gets the next unit where it hands this one in.
            is_alone = self._spans is None and executor.reach == "thread"
            self.schedule = SpanSchedule(self._layout.size, self.ring.free, 1 if is_alone else AHEAD_COUNT)
            executor.begin(program, self.ring)
        except BaseException:
            executor.request_stop()
            raise

    # The executor's side: see `Client`.

    def _inputs(self) -> Mapping[int, Callable[[int, int], Elements]]:
        return {place: stage.sequence for place, stage in self._stages.items()}

    def _issue(self) -> list[Unit]:
        if self._closed:
            return []
        row_count = self._layout.size  # a batch is handed out whole
        if self._spans is not None:
            row_s = self.ring.header[-1] / 1e9
            row_count = max(1, round(UNIT_S / row_s)) if row_s else FIRST_UNIT_ROWS
        units = self.schedule.issue(row_count)
        while self.schedule.freed:
            self._release_places(self.schedule.freed.pop())
        return units

    def _is_wanted(self, unit: Unit) -> bool:
        with self._lock:
            return not self._closed and self.schedule.is_wanted(unit)

    def finished(self, unit: Unit, result: UnitResult) -> list[Unit]:
        """Counts the elements that arrived, and returns the next units."""
        error = result.error
        try:
            if result.rows:
                self._program.put_rows(unit, self.ring.rows(unit.slot), result.rows)
            if result.failures and self._quarantine is not None:
                self._quarantine.add(result.failures)
        except Exception as failure:
            error = failure
        if error is not None:
            clear_own_frames(error)
            if self._quarantine is not None and isinstance(error, (WorkerError, DeadlineError)):
                error.add_note(
                    "on_error= does not set it aside, because the elements of a stream after that are not known. Do "
                    "what may end a process in a map(): then on_error= sets the element aside."
                )
        with self._lock:
            ended = False
            if self.schedule.is_wanted(unit) and not self._closed:
                marks = self.ring.marks(unit.slot)
                # In another process the worker may be working on the next unit of this span.
                stop = min(marks[0], unit.stop)
                ended = bool(marks[1]) and stop < unit.stop
                try:
                    self._arrived(unit, stop)
                except OSError as failure:  # no memory
                    error, ended = error or failure, False
            self.schedule.finished(unit, ended=ended, error=error)
            if self.schedule.given_up:
                self.ring.give_up(self.schedule.given_up)
            units = self._issue()
        self._wake()
        return units

    def _arrived(self, unit: Unit, stop: int) -> None:
        """Notes that elements of a unit have arrived. Puts text and ragged arrays where other processes find them."""
        start = self.schedule.first_new_row(unit)
        if self._shared is not None and self._spans is not None and self._spans.has_objects and start < stop:
            slot = self.ring.rows(unit.slot)
            place = self._shared.put_bytes(self._spans.packed(slot, start, stop))
            self._places[unit.slot].append(place)
            self._spans.note_place(slot, start, stop, place)
        self.schedule.arrived(unit, stop)

    def _release_places(self, slot: int) -> None:
        places = self._places.pop(slot, [])  # removed first, because two threads may close a loader at once
        for place in places if self._shared is not None else ():
            self._shared.release(place)  # type: ignore[union-attr]

    # The delivery's side.

    def stir(self) -> None:
        """Has the worker look at the schedule, which changed. Called with the lock held.

        If Ctrl-C strikes in it, the schedule is still stirred, and the next worker of the delivery does it again.
        """
        self.executor.wake()  # the worker waits for the lock
        self.ring.give_up(self.schedule.given_up)
        self.schedule.is_stirred = False

    def consumed_at(self, place: int) -> int:
        """Returns how far the input of the stream was read for the element at a place."""
        slot = self.schedule.slot_of(place)
        if self._spans is None:
            return self.ring.marks(slot)[3]
        return int(self._spans.consumed(self.ring.rows(slot))[place % self._spans.size])

    def window(self) -> Window | None:
        """Returns what a worker of this process reads from."""
        if self._spans is None:
            return None
        return self._spans.window([self.ring.rows(slot) for slot in range(self._spans.slot_count)])

    def look(self) -> None:
        """Notes the elements of a unit that still runs, for a consumer that waits. The next element may be slow."""
        with self._lock:
            unit = self.schedule.oldest()
            if unit is None or self._closed or self._spans is None:
                return
            if self.executor.reach != "thread" and self._spans.has_objects:
                return  # text and ragged arrays of another process come with the end of the unit
            marks = self.ring.marks(unit.slot)
            stop = min(marks[0], unit.stop)
            if marks[2] != unit.generation or stop <= self.schedule.first_new_row(unit):
                return
            self._arrived(unit, stop)
        self._wake()

    def deadline_s(self, timeout_s: float) -> float:
        """Returns how long nothing may arrive before the delivery gives up: longer than a stage takes to give up."""
        own = self.executor.deadline_s(timeout_s)
        inner = [stage.delivery.deadline_s(timeout_s) for stage in self._stages.values()]
        return 1.5 * max(own, *inner) if inner else own

    def progress(self) -> object:
        """Returns a value that changes when the worker moves on."""
        inner = [stage.delivery.progress() for stage in self._stages.values()]
        return self.executor.progress(), self.statuses(), inner

    def lanes(self, delivered: float, first: int, rows_per_batch: int = 0) -> list[Lane]:
        """Returns what the worker did, and the workers of the stages; see `lane_of`."""
        return feed_lanes(
            self._program.node, self.ring, self._stages, delivered, first, rows_per_batch, reach=self.executor.reach
        )

    def tasks(self) -> list[str]:
        """Returns the worker, and those of the stages; see `Executor.tasks`."""
        return [*self.executor.tasks(), *(task for stage in self._stages.values() for task in stage.delivery.tasks())]

    def place(self) -> str:
        """Describes where the worker is, for the message of a deadline."""
        statuses = self.statuses()
        return place_of(statuses[0], self._program.node) if statuses else self._program.node.label

    def request_stop(self) -> None:
        """Makes the worker stop soon. Takes no lock, so a finalizer may call it."""
        self._closed = True
        self.stop_workers()

    def close(self, timeout_s: float) -> bool:
        """Waits for the worker to end after `request_stop`, and frees the memory. Returns whether it ended."""
        ends_at = time.monotonic() + timeout_s
        ended = self.executor.join(timeout_s)
        ended &= close_stages(self._stages.values(), max(0.0, ends_at - time.monotonic()))
        if ended:
            self._close_runners()
            for slot in list(self._places):
                self._release_places(slot)
            self.ring.release()
        return ended


def feed_lanes(
    node: Node,
    ring: Ring,
    stages: Mapping[int, StageReader],
    delivered: float,
    first: int,
    rows_per_batch: int = 0,
    *,
    reach: Reach | None,
) -> list[Lane]:
    """Returns what the one reader of a stream did, then what its stages did; see `lane_of`."""
    times = ring.total_times()
    own = lane_of(node, times, 1, delivered, rows_per_batch=rows_per_batch, reach=reach, first=first)
    # Waiting for the workers of stages is no work of its own, and does not limit the speed of the pipeline.
    waited_s = sum(stage.waited_s for stage in stages.values())
    lanes = [lane for stage in stages.values() for lane in stage.lanes(own.batches, first)]
    return [replace(own, wall_s=max(own.cpu_s, own.wall_s - waited_s)), *lanes]


def _stop(
    feed_ref: "weakref.ref[Feed]", stop_worker: Callable[[], None], stages: "Sequence[weakref.ref[StageReader]]"
) -> None:
    if (ring := getattr(feed_ref(), "ring", None)) is not None:  # ends a wait to ask a server again
        ring.give_up()
    stop_worker()
    for each in stages:
        if (stage := each()) is not None:
            stage.delivery.request_stop()
