"""Delivery of batches in order: it starts and stops everything, waits for batches, and hands them out.

Which thread writes what. `_lock` guards the scheduler and, for a stream, the schedule of its spans. A worker that
finished a unit takes it, a worker that was woken, and the consumer. No code of the user runs with the lock held, and
nothing waits. A finalizer may run at any bytecode, also inside a locked region, so it takes no lock: it puts the slot
into `Ring.free` and wakes the executor. The executor then calls `issue` on a thread that holds nothing.

Guarantees, beside those of the scheduler.
- A slot that comes back becomes work as soon as a worker would be idle, whether or not the consumer asks for a batch.
- Ctrl-C costs nothing. It can strike the consumer between any two bytecodes of `take`, also between the removal of a
  batch from the order and its hand-out. So `take` is passed the position of the batch, and seeks it if another is next.
  A seek also finds slots that Ctrl-C lost (`Ring.reclaim`). Units are issued on workers, where no interrupt comes.
- If the reader of a stream fills the batches, there are no units, and the consumer has the scheduler look. The
  scheduler moves its position on before it takes a slot. So a batch that Ctrl-C loses there is sought, too.

Each wait, and what ends it. The consumer waits in `_listen`. A batch ends it, an error in the place of a batch, the
end of the epoch, `close`, Ctrl-C, or the deadline. It waits for a token in `_tokens`, which a thread puts when the
batch may be ready. One token too many makes it look once more. `_join` waits for workers, at most as long as it is
told. Workers wait for units: see the executors.
"""

import contextlib
import functools
import itertools
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from penstock.base._errors import DeadlineError, WorkerError
from penstock.base._tree import Tree
from penstock.lower._analysis import guards_of
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Position, Unit, UnitResult
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.memory._rows import Window
from penstock.memory._shared import SharedFile
from penstock.memory._slot import note_time
from penstock.plan._node import walk
from penstock.plan._text import place_of
from penstock.plan._tolerate import Failure
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._feed import Feed
from penstock.run._lanes import lane_of
from penstock.run._quarantine import Quarantine, why_not_set_aside
from penstock.run._scheduler import PendingBatch, Scheduler
from penstock.run._unit_runner import LocalClient
from penstock.run.executors._executor import Client, Executor, clear_own_frames
from penstock.run.parts._feed import PartFeed

LOOK_S: Final = 0.02
"""How often a consumer that waits looks for elements of a stream that arrived in the middle of a unit."""
MakeFeed = Callable[[Callable[[], None], SharedFile | None, threading.Lock], Feed]
MakeParts = Callable[[Callable[[], None], threading.Lock], PartFeed]


@final
class Delivery(DeliveryBase, LocalClient):
    """Fills the slots of a ring by an executor, ahead of the consumer, and delivers batches in order.

    Args:
        program: The program of the batches.
        slot_count: Slots in the ring.
        make_executor: Makes the executor, given its client; None if the feed fills the slots of its own ring.
        make_feed: For a program above a stream: makes its feed.
        make_parts: For sources with parts: makes what decodes them ahead.
        timeout_s: How long a worker may stand still.
        gives_rest: Whether rows before an error are delivered: as a short batch, or see `rest`.
        quarantine: Receives the elements that are set aside, if the plan has guards.
    """

    def __init__(
        self,
        program: ParallelProgram,
        slot_count: int,
        make_executor: Callable[[Client], Executor] | None,
        make_feed: MakeFeed | None = None,
        make_parts: MakeParts | None = None,
        *,
        timeout_s: float = math.inf,
        gives_rest: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        DeliveryBase.__init__(self)
        LocalClient.__init__(self, program, timeout_s, threading.Lock())
        self._program: ParallelProgram = program
        self._quarantine = quarantine
        self._gives_rest = gives_rest
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._crashes: dict[tuple[int, int], BaseException] = {}
        """Errors of elements that crash workers, by generation and row, until they are set aside."""
        self._feed: Feed | None = None
        self._parts: PartFeed | None = None
        self._is_filled_by_feed = make_executor is None
        self._stops: list[Callable[[], None]] = []
        sets_aside = bool(guards_of(program.node))  # the unit of such an element runs again without it
        wake: Callable[[], None] = functools.partial(_wake, self._tokens)
        shared: SharedFile | None = None
        try:
            # Made last: from here on, workers may call.
            if make_executor is not None:
                self._executor = make_executor(self)
                self._stops.append(self._executor.request_stop)
                wake, shared = self._executor.wake, self._executor.shared
            if make_feed is not None:
                self._feed = make_feed(wake, shared, self._lock)
                self._stops.append(self._feed.stop_workers)
            if make_parts is not None:
                self._parts = make_parts(wake, self._lock)
                self._stops.append(self._parts.stop_workers)
            if self._feed is not None and make_executor is None:
                self._executor, self.ring = self._feed.executor, self._feed.ring
            else:
                self.ring = Ring(
                    program.spec,
                    slot_count,
                    wake,
                    is_shared=self._executor.reach != "thread",
                    step_count=program.step_count,
                )
            self._scheduler = Scheduler(
                program,
                self.ring.free,
                *((self._feed.schedule, self._feed.consumed_at) if self._feed else ()),
                parts=self._parts,
                spans_are_batches=self._is_filled_by_feed,
                gives_rest=gives_rest,
                redoes_crashes=self._executor.reach != "thread" and quarantine is not None and sets_aside,
            )
            if make_executor is not None:
                inputs = self._feed.ring if self._feed else self._parts.memory if self._parts else None
                self._executor.begin(program, self.ring, inputs)
        except BaseException:  # no memory, no descriptor, Ctrl-C, or closed meanwhile: nothing else stops the workers
            self.stop_workers()
            raise

    @property
    def stop_workers(self) -> Callable[[], None]:
        """For a finalizer: stops the workers, and holds neither this object nor the plan."""
        stops = self._stops
        return lambda: [stop() for stop in stops]  # type: ignore[return-value]

    # The executor's side: see `Client`.

    def _issue(self) -> list[Unit]:
        """Returns units for the slots that are free, as far as workers would be idle."""
        executor = self._executor
        units = self._scheduler.issue(executor.queue_target, executor.worker_count, self.ring.header[-1] / 1e9)
        if self._feed is not None and self._feed.schedule.is_stirred:
            self._feed.stir()
        if self._parts is not None and self._parts.is_stirred:
            self._parts.stir()
        if self._scheduler.is_head_ready:
            _wake(self._tokens)
        return units

    def _is_wanted(self, unit: Unit) -> bool:
        return self._scheduler.is_wanted(unit)

    def _inputs(self) -> Window | PartMemory | None:
        if self._feed is not None:
            return self._feed.window()
        return None if self._parts is None else self._parts.memory

    def finished(self, unit: Unit, result: UnitResult) -> list[Unit]:
        """Takes the result of a unit. The last unit of a batch makes the batch ready."""
        error = result.error
        try:
            self._store(unit, result)
        except Exception as failure:  # too many elements failed, or the user's objects cannot be stored
            error = failure
        crashed = isinstance(error, (WorkerError, DeadlineError))
        if error is not None:
            clear_own_frames(error)  # before the lock, because freed objects may run code of the user
            if unit.is_poisoned and crashed:
                error.add_note(why_not_set_aside(self._program, unit))
        with self._lock:
            again = self._scheduler.finished(unit, error, crashed=crashed)
            if again and again[0].is_poisoned and error is not None:
                self._crashes[unit.generation, unit.start] = error
            return again + self._issue()

    def _store(self, unit: Unit, result: UnitResult) -> None:
        """Stores rows that the unit could not write into the slot itself, and the elements that it set aside."""
        if result.rows:
            self._program.put_rows(unit, self.ring.rows(unit.slot), result.rows)
            if result.seconds:
                note_time(self.ring.header, unit.stop - unit.start, result.seconds)
        if result.failures and self._quarantine is not None:
            failures: Sequence[Failure] = result.failures
            if unit.is_poisoned:  # the worker did not try the element, so the crash is its error
                crash = self._crashes.pop((unit.generation, unit.start))
                known = replace(failures[0], exception=type(crash).__name__, message=str(crash), traceback="")
                failures = [known, *failures[1:]]
            self._quarantine.add(failures)

    # The consumer's side.

    def seek(self, position: Position, consumed: int = -1) -> None:
        """See `DeliveryBase.seek`."""
        self.require_open()
        with self._lock:
            self._seek(position, consumed)

    def _seek(self, position: Position, consumed: int = -1) -> None:
        if self._scheduler.head_position == position:
            return
        self._scheduler.abandon()
        if not self._is_filled_by_feed:  # else these are no generations of units
            self.ring.give_up(self._scheduler.given_up)
        # Slots of ready batches come back now, the others with the last unit of their batch.
        self.ring.reclaim(self._scheduler.busy_slots)
        self._executor.wake()  # a worker that looks now waits for the lock
        self._scheduler.start(position, consumed)
        if self._feed is not None:
            self._feed.stir()

    def take(self, position: Position, timeout_s: float) -> Tree:
        """See `DeliveryBase.take`."""
        self.require_open()  # before the lock: in a child of fork() the lock may never be released
        if self.ring.interrupts:
            self.pass_on_interrupt()
        while (batch := self._head_if_ready(position)) is None:
            self.wait_for(self._listen, timeout_s, self._deadline_error)
        if batch.is_end:
            self._executor.wake()  # batches behind the next end may be issued now
            return END_OF_EPOCH
        self.rest = None  # it may be that of a batch whose hand-out Ctrl-C cut off
        if not batch.errors:
            self.consumed = batch.consumed
            return self.ring.hand_out(batch.slot)
        row_count, error = batch.first_error
        if self._gives_rest and batch.slot >= 0 and row_count:
            self.rest = row_count, error
            return self.ring.hand_out(batch.slot)
        if batch.slot >= 0:
            self.ring.give_back(batch.slot)
        try:
            raise error
        finally:
            # The traceback holds this frame. A frame that held the error would keep both, and so the loader, until the
            # garbage collector comes.
            del error, batch

    def _head_if_ready(self, position: Position) -> PendingBatch | None:
        with self._lock:
            if self._closed:
                self.require_open()
            if self._scheduler.head_position != position:
                self._seek(position)
            if self._is_filled_by_feed:
                self._issue()
            return self._scheduler.take() if self._scheduler.is_head_ready else None

    def _listen(self, seconds: float) -> bool:
        """Waits for a token. Returns whether one came."""
        feed = None if self._is_filled_by_feed else self._feed
        for _ in range(1 if feed is None else math.ceil(seconds / LOOK_S)):
            with contextlib.suppress(queue.Empty):
                self._tokens.get(timeout=seconds if feed is None else min(seconds, LOOK_S))
                return True
            if feed is not None:
                feed.look()
        return False

    # Reports.

    def deadline_s(self, timeout_s: float) -> float:
        """Returns how long a standstill lasts before this gives up: as long as those take that are waited for."""
        own = self._executor.deadline_s(timeout_s)
        if self._feed is None:
            return own
        feed = self._feed.deadline_s(timeout_s)
        return max(own, feed) if self._scheduler.unfinished_count else feed

    def progress(self) -> object:
        """Returns a value that changes when a worker moves on."""
        inner = [each.progress() for each in (self._feed, self._parts) if each is not None]
        return self._executor.progress(), self.statuses(), inner

    def _deadline_error(self, timeout_s: float) -> DeadlineError:
        with self._lock:
            name = self._program.name(*self._scheduler.waiting_for)
        # The others read.
        places = [place_of(status, self._program.node) for status in self.statuses() if status[0]]
        stacks = self._executor.stuck()
        if self._feed is not None:
            places.append(self._feed.place())
        if self._feed is not None and not self._is_filled_by_feed:
            stacks += self._feed.executor.stuck()
        if self._parts is not None:
            stacks += self._parts.stuck()
        at = "; ".join(places) or "the sources"
        return DeadlineError(
            f"No worker got on for timeout_s={timeout_s:g} s, while {name} was waited "
            f"for. They are at: {at}.\n{''.join(stacks)}If that is how long it takes, raise "
            "timeout_s. The loader is closed; a thread that never returns cannot be stopped and stays behind."
        )

    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """See `DeliveryBase.lanes`."""
        executor, rows = self._executor, 0 if delivered else self._program.rows_per_batch
        stream_first = first + len(list(walk(self._program.node))) - 1  # below a chain of steps, and an inlet
        if self._feed is not None and self._is_filled_by_feed:
            reader, *stages = self._feed.lanes(delivered, stream_first, rows)
            return [replace(reader, first=first), *stages]  # it runs the step above, too
        times = self.ring.total_times()
        if self._parts is not None:
            times = times + self._parts.ring.total_times()
        own = lane_of(
            self._program.node,
            times,
            executor.available_count,
            delivered,
            rows_per_batch=rows,
            reach=executor.reach,
            first=first,
        )
        return [own, *(self._feed.lanes(own.batches, stream_first) if self._feed else [])]

    def tasks(self) -> list[str]:
        """Returns the workers of all parts; see `Executor.tasks`."""
        inner = [each.tasks() for each in (self._feed, self._parts) if each is not None]
        return sorted({*self._executor.tasks(), *itertools.chain(*inner)})

    # The end.

    def request_stop(self) -> None:
        """See `DeliveryBase.request_stop`."""
        if self._pid == os.getpid():
            self._closed = True
            self._scheduler.close()
            self.ring.give_up()
            super().request_stop()
            if self._feed is not None:
                self._feed.request_stop()
            if self._parts is not None:
                self._parts.request_stop()
            self._tokens.put(None)

    def _join(self, timeout_s: float) -> bool:
        ends_at = time.monotonic() + timeout_s
        ended = self._executor.join(timeout_s)
        if self._feed is not None:
            ended &= self._feed.close(max(0.0, ends_at - time.monotonic()))
        if self._parts is not None:
            ended &= self._parts.close(max(0.0, ends_at - time.monotonic()))
        if ended:
            self._program.sources.close()
            self.ring.release()
            self._close_runners()
        return ended


def _wake(tokens: "queue.SimpleQueue[None]") -> None:
    """Makes a consumer that waits look. Called after the change that it looks for; takes no lock."""
    if tokens.empty():  # one that is there already is taken after this change, too
        tokens.put(None)
