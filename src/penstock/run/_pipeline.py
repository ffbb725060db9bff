"""What runs when, and delivery in order: the one place that starts and stops things.

Who writes what. Everything below `_lock` in `__init__` is written with that lock held, by whoever has
something to say: a worker that finished a unit, a worker that was woken by a slot that came back, or the
consumer. No user code runs, and nothing is waited for, with the lock held. A finalizer may run at any
bytecode, in the middle of a locked region too, and so takes no lock: it puts the slot into `Ring.free` and
wakes the executor, which calls `pump` on a thread that holds nothing.

Guarantees.
- Batches are delivered in the order of positions, each once, whatever order units finish in.
- Every slot that came back becomes work at once, whether or not the consumer asks for a batch: by `pump`.
- Batches are issued late, when a worker would have nothing to do, and into the slot that came back last. So a
  consumer that keeps up uses three or four slots, still warm in the cache: measured 2026-11, reads of 60 kB
  rows into 6 slots in turn take 1.4 times as long as into one.
- A position is either at or after `_cursor`, or in `_order`, or delivered. `seek` gives up what is in
  flight up to a generation: units of earlier ones are not begun, and the slot comes back with its last unit.
- Ctrl-C costs nothing. It can strike the consumer between any two bytecodes of `take`, and so between taking
  a batch from `_order` and handing it out. So `take` is told which batch it is to deliver, and seeks it if
  another is next; and seeking finds slots that nobody has any more (`Ring.reclaim`). Units are issued where
  no interrupt comes, on workers; where the consumer runs them itself, it begins anew if the books do not
  add up (`_restart`). So the books are written in an order in which whatever is cut off is missing, and never
  there without its work: a batch is ready last of all (`_complete`), and rows of a stream count as given to its
  worker after they were (`Feed._issue`).
- Who runs units may change between workers and the consumer (`_driving.py`). Whoever does has all of them: from the
  moment on in which the other is wanted, no batch is issued until none is under way, and then the consumer changes
  hands, with the lock held (`_drive`). If it waits meanwhile, the last unit rings for it.

Each wait, and what ends it. There is one, the consumer's in `take`: ended by a batch, by an error (which is
delivered in a batch's place), by the last unit before hands change, by `close`, or by the deadline. It waits for
a token in `_bell`, which is put when the batch that it waits for is ready; a token too many makes it look once
more, no harm. Workers wait for units: see the executor.

Why a batch always comes: a lease is only given if slots remain (`Ring.hand_out`), so at least one slot is
never the user's; it is free, and then `pump` issues the next batch, or it is being filled by units that an
executor finishes or fails, or it is filled and delivered.
"""

import _thread
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, final

from penstock.base._errors import DeadlineError, LoaderError, WorkerError
from penstock.base._random import seeded_globals
from penstock.base._tree import Tree
from penstock.lower._program import Outcome, Position, Program, Unit, run_unit
from penstock.memory._ring import Ring
from penstock.memory._shared import SharedFile
from penstock.memory._times import Times
from penstock.plan._node import walk
from penstock.plan._reader import Reader, place_of
from penstock.plan._tolerate import Failure
from penstock.report._lanes import Lane
from penstock.run._driving import Driving
from penstock.run._feed import Feed, Intake, Run
from penstock.run._feed_program import Cursor
from penstock.run._lanes import lane_of
from penstock.run._pending import Announcer, PendingBatch
from penstock.run._quarantine import Quarantine, is_guarded, note_end_of_stream, why_not_set_aside
from penstock.run.executors._executor import Client, Executor, clear_own_frames

LOOK_S: Final = 0.02
"""How often a consumer that waits for a stream looks whether there is more of it."""
END_OF_EPOCH: Final = object()
"""In the place of a batch: there is none."""
CLOSED: Final = "This loader is closed. Make another one: dataset.loader(...)."
STARTED_ELSEWHERE: Final = (
    "This loader was made in another process, and its workers did not come along with fork(). Make the loader in the "
    "process that iterates it."
)


@final
class Pipeline:
    """Fills the slots of a ring by an executor, ahead of the consumer, and delivers batches in order.

    Args:
        program: The plan, ready to run.
        slot_count: Slots in the ring.
        spare_count: Slots that a hand-out must leave unleased.
        make_executor: Makes the executor, given its client.
        make_feed: For a plan over a stream: makes its feed, given what to call when elements have come, and where to
            put text for other processes, if they are to see them.
        timeout_s: How long a worker may stand still.
        gives_rest: Whether what is there before an error is delivered: as a short batch, or see `rest`.
        quarantine: Takes what was set aside, if the plan has guards; see `_tolerate.py`.
        may_drive: Whether it is tried if the consumer had better fill batches itself; see `_driving.py`.
    """

    def __init__(
        self,
        program: Program,
        slot_count: int,
        spare_count: int,
        make_executor: Callable[[Client], Executor],
        make_feed: Callable[[Callable[[], None], SharedFile | None], Feed] | None = None,
        *,
        timeout_s: float = math.inf,
        gives_rest: bool = False,
        quarantine: Quarantine | None = None,
        may_drive: bool = False,
    ) -> None:
        self._program = program
        batch_nbytes = program.spec.nbytes if program.spec.is_bounded else None
        self._driving = Driving(slot_count + 2, batch_nbytes) if may_drive else None
        self._timeout_s = timeout_s
        self._quarantine = quarantine
        self._is_guarded = quarantine is not None and is_guarded(program)
        self._pid = os.getpid()
        self._local = threading.local()
        self._own_reader: Reader | Cursor | None = None
        """The consumer's, whichever thread it is on: there is one at a time."""
        self._readers: list[Reader | Cursor] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False
        self._gives_rest = gives_rest
        self.rest: tuple[int, BaseException] | None = None
        """Of the batch that was taken last, if it failed, and the rest is given: how many rows are there, and why no
        more."""
        self.consumed = -1
        """Of a stream: how far its input was read for the batch that was taken last; -1 if nobody knows."""
        self.process_ends = False
        """Why it was closed: set before `request_stop`, at the end of the process."""
        self._lock = threading.Lock()
        self._is_awaited = False
        self._given_up = 0
        """The last generation of which nothing is wanted any more."""
        self._cursor: Position | None = None
        self._resumed: tuple[int, tuple[int, int]] = (-1, (0, 0))
        """The epoch that was sought in its middle, and `Unit.origin` for it."""
        self._announcer = Announcer(program)
        self._generation = 0
        self._unfinished_units = 0
        self._fillings: dict[int, PendingBatch] = {}
        self._order: deque[PendingBatch] = deque()
        self._deaths: dict[tuple[int, int], BaseException | None] = {}
        """What was said of units whose one element workers died of, by generation and row."""
        # Made last: from here on, workers may call.
        self._executor = make_executor(self)
        self._intake: Intake | None = None
        self._stops = [self._executor.request_stop]
        try:
            self._announces = make_feed is None and not program.is_serial and program.announces
            if make_feed is not None:
                feed = make_feed(self._executor.wake, self._executor.shared)
                self._stops.append(feed.stop_workers)
                self._intake = Intake(program, feed, gives_rest=gives_rest)
            self._ring = Ring(
                program.spec,
                slot_count,
                spare_count,
                self._executor.wake,
                is_shared=self._executor.is_elsewhere,
                step_count=program.step_count,
            )
            self._executor.begin(program, self._ring, self._intake.feed.ring if self._intake else None)
        except BaseException:  # no memory, no descriptor, Ctrl-C, closed meanwhile: nobody else would stop the workers
            self.stop_workers()
            raise

    @property
    def stop_workers(self) -> Callable[[], None]:
        """For a finalizer: stops the workers, and holds neither this nor the plan."""
        stops = self._stops
        return lambda: [stop() for stop in stops]  # type: ignore[return-value]

    # The executor's side: see `Client`.

    def run(self, unit: Unit) -> None:
        """Runs a unit on the calling thread, unless nobody wants it any more."""
        filling = self._fillings[unit.generation]
        if self._closed or filling.generation <= self._given_up or filling.failed_before(unit):
            return
        # A consumer may come on another thread for each epoch; what readers keep is to stay within what was projected,
        # and a stream goes on where it is.
        is_own = self._executor.is_driven
        reader: Any = self._own_reader if is_own else getattr(self._local, "reader", None)
        if reader is None:
            reader = self._program.reader(
                seeded_globals if self._executor.isolates else None,
                window=self._intake.feed.window() if self._intake else None,
            )
            if is_own:
                self._own_reader = reader
            else:
                self._local.reader = reader
            self._readers.append(reader)
            reader.trace.times = Times(self._ring.times[(len(self._readers) - 1) % len(self._ring.times)])
        try:
            run_unit(self._program, reader, unit, self._ring.rows(unit.slot), self._ring.words, self._timeout_s)
        finally:  # what was set aside before an error is told of, too
            if reader.trace.failures and self._quarantine is not None:
                self._quarantine.add(reader.trace.failures)

    def describe(self, unit: Unit, trace: tuple[int, int, int]) -> str:
        """What a worker was at that had a unit, for messages."""
        return place_of(trace, self._program.node) if trace[0] else self._program.describe(unit)

    def received(self, unit: Unit, objects: Sequence[Any], failures: Sequence[Failure]) -> None:
        """Puts text and ragged arrays, which came from another process, into the slot's place for objects."""
        if objects:
            self._program.put_objects(unit, self._ring.rows(unit.slot), objects)
        if unit.is_condemned and failures:  # what it is said to have failed with there, nobody has seen
            death = self._deaths.pop((unit.generation, unit.start))
            told = replace(failures[0], exception=type(death).__name__, message=str(death), traceback="")
            failures = [told, *failures[1:]]
        if failures and self._quarantine is not None:
            self._quarantine.add(failures)

    def finished(self, unit: Unit, error: BaseException | None) -> None:
        """Counts a unit of its batch; the last one makes the batch ready."""
        if error is not None:
            clear_own_frames(error)  # before the lock: what it lets go of may run code of the user
        with self._lock:
            filling = self._fillings[unit.generation]
            row = unit.start
            if error is not None and self._sets_aside(error, unit):
                if unit.stop - unit.start > 1:
                    self._repeat_by_rows(filling, unit)
                else:
                    self._deaths[unit.generation, unit.start] = error
                    self._executor.submit([unit._replace(is_condemned=True)])
                return
            if error is not None and self._gives_rest and not self._closed:
                if self._program.is_serial:
                    row = Outcome.read(self._ring.words, unit.slot).row_count
                elif unit.stop - unit.start > 1:
                    self._repeat_by_rows(filling, unit)
                    return
            if error is not None:
                if unit.is_condemned and isinstance(error, (WorkerError, DeadlineError)):
                    error.add_note(why_not_set_aside(self._program, unit))
                elif self._program.is_serial and self._quarantine is not None:
                    note_end_of_stream(error)
                filling.errors.append((row, error))
            if filling.remaining > 1:
                filling.remaining -= 1
            else:
                self._complete(filling)
            self._unfinished_units -= 1
            self._pump()

    def _complete(self, filling: PendingBatch) -> None:
        """Makes a batch ready whose last unit is done, or gives its slot back if nobody wants it any more."""
        del self._fillings[filling.generation]
        if self._intake is not None:
            self._release_inputs()
        if filling.generation <= self._given_up:
            self._ring.free.append(filling.slot)
            return
        if self._program.is_serial and not self._closed:
            self._go_on_after(filling)
        # Not before all is known of it: where Ctrl-C strikes above, it never becomes ready, see `_restart`.
        filling.remaining = 0
        if self._is_awaited and filling is self._order[0]:
            self._is_awaited = False
            self._bell.put(None)

    def _go_on_after(self, filling: PendingBatch) -> None:
        """Looks at what came of a unit that reads a stream: whether its epoch ended, or failed, and nothing follows."""
        outcome = Outcome.read(self._ring.words, filling.slot)
        filling.consumed = outcome.consumed
        if not filling.errors and not outcome.is_last:
            return
        # What was issued beyond it is not wanted. Units are done in order: none of it is ready.
        self._given_up = self._ring.words[0] = self._generation
        while self._order[-1] is not filling:
            self._order.pop()
        self._cursor = None
        if filling.errors:
            return
        position = filling.epoch, filling.index
        if not outcome.row_count:
            filling.is_end = True
            self._ring.free.append(filling.slot)
        elif self._program.batch_count is None:
            position = filling.epoch, filling.index + 1
            self._order.append(PendingBatch(*position, slot=-1, generation=self._generation, remaining=0, is_end=True))
        self._cursor = self._program.next_position(*position, is_last=True)

    def _sets_aside(self, error: BaseException, unit: Unit) -> bool:
        """Whether workers died of what a guard is to set aside: one element of this unit, or the only one."""
        is_lethal = isinstance(error, (WorkerError, DeadlineError)) and self._executor.is_elsewhere
        return is_lethal and self._is_guarded and not unit.is_condemned and not self._closed

    def _repeat_by_rows(self, filling: PendingBatch, unit: Unit) -> None:
        """Does a unit that failed again, row by row: what is before the row that fails is to be delivered."""
        units = [unit._replace(start=row, stop=row + 1) for row in range(unit.start, unit.stop)]
        filling.remaining += len(units) - 1
        self._unfinished_units += len(units) - 1
        self._executor.submit(units)

    def leave(self) -> None:
        """Closes what the calling worker reads a stream by."""
        reader = getattr(self._local, "reader", None)
        if isinstance(reader, Cursor):
            reader.close()

    def pump(self) -> None:
        """Issues batches into the slots that are free, as far as workers would be idle."""
        with self._lock:
            self._pump()

    def _pump(self) -> None:
        if self._driving is not None and self._changes_hands:
            # What is under way comes to its end first, and then the consumer sees to it: see `_drive`.
            if self._is_awaited and not self._unfinished_units:
                self._bell.put(None)
            return
        while self._cursor is not None and self._unfinished_units < self._executor.queue_target and not self._closed:
            if self._program.is_serial and sum(filling.is_end for filling in self._order) > 1:
                return  # or epochs without a batch would be begun for ever
            found = (0, -1) if self._intake is None else self._intake.look(*self._cursor)
            if found is Intake.WAIT:
                self._release_inputs()  # it may wait for room
                return
            if found is Intake.END and any(filling.is_end for filling in self._order):
                return  # or epochs without a batch would be begun for ever
            if not isinstance(found, tuple):
                self._conclude(self._cursor, found)
                continue
            try:
                slot = self._ring.free.pop()
            except IndexError:
                return
            self._issue(self._cursor, slot, *found)

    def _conclude(self, position: Position, found: object) -> None:
        """Puts the end of an epoch, or the error that its stream raised, in the place of a batch."""
        self._generation += 1
        filling = PendingBatch(*position, slot=-1, generation=self._generation, remaining=0, is_end=found is Intake.END)
        if isinstance(found, BaseException):
            filling.errors.append((0, found))
            self._cursor = None  # until somebody seeks what follows
        else:
            self._go_to(self._program.next_position(*position, is_last=True))
        self._order.append(filling)
        if self._is_awaited and filling is self._order[0]:
            self._is_awaited = False
            self._bell.put(None)

    def _go_to(self, position: Position) -> None:
        self._cursor = position
        if self._intake is not None and position[1] == 0:
            self._intake.forget()

    def _needs(self, position: Position | None) -> tuple[Run, int] | None:
        """The first element of a stream that a batch reads, and in which reading."""
        if self._intake is None or self._intake.run is None or position is None:
            return None
        return self._intake.run, self._intake.first_needed(position[1])

    def _release_inputs(self) -> None:
        """Tells the feed what is not needed any more."""
        if self._intake is None:
            return
        needs = [filling.needs for filling in self._fillings.values()]
        found = [need for need in (*needs, self._needs(self._cursor)) if need is not None]
        if found:
            self._intake.feed.release(*min(found, key=lambda need: need[0].base + need[1]))

    def _issue(self, position: Position, slot: int, base: int = 0, length: int = -1) -> None:
        needs = None if self._intake is None else self._needs(position)
        self._go_to(self._program.next_position(*position))
        self._generation += 1
        units = self._program.units(
            *position,
            slot=slot,
            generation=self._generation,
            worker_count=0 if self._executor.is_driven else self._executor.worker_count,
            row_s=self._ring.words[-1] / 1e9,
            announce=self._announcer.after(position) if self._announces else (0, 0, 0),
            base=base,
            length=length,
            origin=self._resumed[1] if self._resumed[0] == position[0] else (0, 0),
        )
        filling = PendingBatch(*position, slot, self._generation, len(units))
        if needs is not None and self._intake is not None:
            filling.needs = needs
            filling.consumed = self._intake.consumed_after(needs[0], position[1])
        self._fillings[self._generation] = filling
        self._order.append(filling)
        self._unfinished_units += len(units)
        self._executor.submit(units)

    # The consumer's side.

    def seek(self, position: Position, consumed: int = -1) -> None:
        """Makes this the next batch to be delivered; what is in flight is kept if it leads there.

        Args:
            position: The batch.
            consumed: Of a stream: what `consumed` was after the batch before it, in another run; -1 if nobody knows.
        """
        self.require_open()
        if self._driving is not None:
            self._driving.pause()
        with self._lock:
            self._seek(position, consumed)

    def _seek(self, position: Position, consumed: int = -1) -> None:
        head = (self._order[0].epoch, self._order[0].index) if self._order else self._cursor
        if head == position:
            return
        # It is where to go on from only when nothing else is left to do: or whoever seeks it again, after Ctrl-C struck
        # here, would find itself there, with slots that nobody has and nobody woken.
        self._cursor = None
        self._given_up = self._ring.words[0] = self._generation
        self._order.clear()
        self._announcer.forget()
        self._resumed = (
            (position[0], (self._program.first_element(position[1]), consumed)) if consumed >= 0 else (-1, (0, 0))
        )
        # Batches that were ready give their slots back now, the others when their last unit is done.
        self._ring.reclaim({filling.slot for filling in self._fillings.values()})
        if self._intake is not None:
            self._intake.begin(*position, consumed)
        self._executor.wake()  # whoever looks then waits for the lock
        self._cursor = position
        self._release_inputs()

    def take(self, position: Position, timeout_s: float) -> Tree:
        """Waits for a batch and hands it out. One consumer at a time; the caller sees to that.

        Returns `END_OF_EPOCH` if the epoch, whose length nobody knew, has no such batch.

        Args:
            position: The batch: the one that follows the last one taken, or was sought since.
            timeout_s: How long no worker may get on before that is an error.

        Raises:
            DeadlineError: Nothing moved for `timeout_s`; says which elements were being worked on.
            LoaderError: The loader was closed meanwhile.
            Exception: What a unit of this batch raised.
        """
        self.require_open()  # before the lock: in a child of fork(), nobody may be there to release it
        if self._ring.strikes:
            self._pass_on_strike()
        has_restarted, began_s = False, 0.0 if self._driving is None else time.perf_counter()
        while (filling := self._head_if_ready(position)) is None:
            if self._drive(position):
                self._drive_on()
                continue
            if self._executor.is_driven and not has_restarted:
                has_restarted = True
                self._restart(position)
            else:
                if self._driving is not None and not self._unfinished_units:
                    self._executor.wake()  # Ctrl-C may have cut off who was to do it when hands changed
                self._wait(timeout_s)
        if filling.is_end:
            self._executor.wake()  # what comes after the next end may be looked at now
            return END_OF_EPOCH
        if self._driving is not None:
            self._driving.note(began_s, time.perf_counter())
        self.rest = None  # or that of a batch whose hand-out Ctrl-C cut off
        if not filling.errors:
            self.consumed = filling.consumed
            return self._ring.hand_out(filling.slot)
        error = filling.first_error()
        if self._gives_rest and filling.slot >= 0 and filling.first_row:
            self.rest = filling.first_row, error
            return self._ring.hand_out(filling.slot)
        if filling.slot >= 0:
            self._ring.give_back(filling.slot)
        try:
            raise error
        finally:
            # The traceback holds this frame; a frame that holds the error would keep both, and so the loader,
            # until the garbage collector comes.
            del error, filling

    def _pass_on_strike(self) -> None:
        """Has Ctrl-C strike now that struck while a batch was dropped."""
        error = self._ring.strikes.pop()
        if threading.current_thread() is threading.main_thread():
            raise error
        _thread.interrupt_main()

    def _head_if_ready(self, position: Position) -> PendingBatch | None:
        with self._lock:
            if self._closed:
                self.require_open()
            head = self._order[0] if self._order else None
            if head is None or (head.epoch, head.index) != position:
                self._seek(position)
                head = self._order[0] if self._order else None
            if head is not None and not head.remaining:
                self._is_awaited = False
                while not self._bell.empty():  # a consumer that did the work itself did not wait for it
                    self._bell.get_nowait()
                return self._order.popleft()
            self._is_awaited = True
            return None

    def _wait(self, timeout_s: float) -> None:
        # The bell rings for the batch. The silence between is listened to in quarters of the deadline, for a
        # slow batch is no error as long as somebody gets on with it.
        before, silence = self.progress(), 0
        while True:
            try:
                return self._listen(min(self.patience_s(timeout_s) / 4, threading.TIMEOUT_MAX))
            except queue.Empty:
                now = self.progress()
                silence = silence + 1 if now == before else 0
                before = now
                if silence >= 4:  # counted, not clocked: the whole process may have been stopped meanwhile
                    try:
                        raise self._deadline_error(timeout_s) from None
                    finally:
                        self.request_stop()

    def _listen(self, seconds: float) -> None:
        """Waits for the bell; raises `queue.Empty` if it does not ring."""
        if self._intake is None:
            return self._bell.get(timeout=seconds)
        for _ in range(math.ceil(seconds / LOOK_S)):
            try:
                return self._bell.get(timeout=min(seconds, LOOK_S))
            except queue.Empty:
                # A stream may have given some elements and be slow with the next, in the middle of a unit.
                self._intake.feed.look()
        raise queue.Empty

    def _restart(self, position: Position) -> None:
        """Forgets what is under way, where the consumer runs all units itself and there is nothing to do.

        Ctrl-C struck it in the middle of its books, between two bytecodes: a unit was done and not counted off, or
        counted and not queued.
        """
        with self._lock:
            self._begin_anew(position)

    def _begin_anew(self, position: Position) -> None:
        self._executor.forget()  # a worker that was woken before may have issued some this very moment
        self._fillings.clear()
        self._order.clear()
        self._unfinished_units = 0
        self._cursor = None
        self._seek(position)

    @property
    def _changes_hands(self) -> bool:
        """Whether somebody else is to run the units than who does now."""
        assert self._driving is not None
        return self._driving.is_wanted is not self._executor.is_driven

    def _drive(self, position: Position) -> bool:
        """Runs one unit on the calling thread, if that is who runs them; of the feed, if nothing else can be done."""
        if self._driving is not None and self._changes_hands:
            with self._lock:
                if not self._unfinished_units:
                    if self._executor.is_driven:  # workers would never find what Ctrl-C cut off: see `_restart`
                        self._begin_anew(position)
                    self._executor.change_hands()
        return self._executor.drive() or (self._intake is not None and self._intake.feed.drive())

    def _drive_on(self) -> None:
        """Fills the batches after it in the same go, as far as slots are free: each of them has one unit."""
        if self._driving is not None:
            for _ in range(self._driving.go_count - 1):
                if not self._executor.drive():
                    return

    def patience_s(self, timeout_s: float) -> float:
        """How long nobody may get on before this gives up: as long as those take who are waited for."""
        own = self._executor.patience_s(timeout_s)
        if self._intake is None:
            return own
        feed = self._intake.feed.patience_s(timeout_s)
        return max(own, feed) if self._unfinished_units else feed

    def progress(self) -> object:
        """A value that changes whenever anybody gets on."""
        traces = [reader.trace.read() for reader in list(self._readers)]
        return self._executor.progress(), traces, self._intake and self._intake.feed.progress()

    def _deadline_error(self, timeout_s: float) -> DeadlineError:
        with self._lock:
            running = [(filling.epoch, filling.index) for filling in self._order if filling.remaining]
        epoch, index = running[0] if running else self._cursor or (0, 0)
        traces = [reader.trace.read() for reader in list(self._readers)]
        places = [place_of(trace, self._program.node) for trace in traces if trace[0]]  # the others are reading
        stacks = self._executor.stuck()
        if self._intake is not None:
            places.append(self._intake.feed.place())
            stacks += self._intake.feed.stuck()
        at = "; ".join(places) or "the sources"
        return DeadlineError(
            f"No worker got on for timeout_s={timeout_s:g} s, while batch {index} of epoch {epoch} was waited "
            f"for. They are at: {at}.\n{''.join(stacks)}If that is how long it takes, raise "
            "timeout_s. The loader is closed; a thread that never returns cannot be stopped and stays behind."
        )

    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """What the workers did so far: those that fill batches first, then those that what these read is made by.

        Args:
            delivered: Of a part of a plan: the batches that the user's workers filled so far.
            first: Of a part of a plan: the place of its last step in the whole, counted from the end.
        """
        times = self._ring.total_times()
        is_driven = self._executor.is_driven
        own = lane_of(
            self._program.node,
            times,
            1 if is_driven else self._executor.hand_count,
            delivered,
            rows_per_batch=0 if delivered else self._program.rows_per_batch,
            is_serial=self._program.is_serial,
            executor="inline" if is_driven else self._executor.name,
            first=first,
            takes_turns=self._executor.takes_turns or (is_driven and self._executor.worker_count > 0),
        )
        if self._intake is None:
            return [own]
        above_count = len(list(walk(self._program.node))) - 1  # one after the other, and an inlet
        return [own, *self._intake.feed.lanes(own.batches, first + above_count)]

    def tasks(self) -> list[str]:
        """The workers of all parts; see `Executor.tasks`."""
        return sorted({*self._executor.tasks(), *(self._intake.feed.tasks() if self._intake else [])})

    def pids(self) -> list[int]:
        """The worker processes among them."""
        return sorted(int(task) for task in self.tasks() if task.isdecimal())

    @property
    def copied_count(self) -> int:
        """How many batches were handed out as private copies."""
        return self._ring.copied_count

    def require_open(self) -> None:
        """Refuses to go on in a child of fork(), or after `close`. Takes no lock.

        Raises:
            LoaderError: Says which.
            SystemExit: The process ends, and this is not its main thread.
        """
        if self._pid != os.getpid():
            raise LoaderError(STARTED_ELSEWHERE)
        if self._closed:
            if self.process_ends and threading.current_thread() is not threading.main_thread():
                raise SystemExit  # a daemon thread of the user: it is to end, and without a word
            raise LoaderError(CLOSED)

    # The end.

    def request_stop(self) -> None:
        """Has everything stop soon. Takes no lock, so a finalizer may call it; calling it again does nothing."""
        if self._pid != os.getpid():
            return
        self._closed = True  # and the rest again, if it was: Ctrl-C may have struck here
        self._ring.give_up()
        self.stop_workers()
        if self._intake is not None:
            self._intake.feed.request_stop()
        self._bell.put(None)

    def close(self, timeout_s: float) -> bool:
        """Stops, waits for the workers to end, and frees the memory and the sources.

        Returns:
            Whether all workers ended. One that is stuck in a user's function keeps what it works on.
        """
        if self._pid != os.getpid():  # a child of fork(): the workers, and what they are in the middle of, are not its
            return True
        self.request_stop()
        ends_at = time.monotonic() + timeout_s
        ended = self._executor.join(timeout_s)
        if self._intake is not None:
            ended &= self._intake.feed.close(max(0.0, ends_at - time.monotonic()))
        if ended:
            self._program.sources.close()
            self._ring.release()
            for reader in self._readers:
                reader.trace.times = None  # which is in the ring's memory
                if isinstance(reader, Cursor):
                    reader.close()
            self._readers.clear()
            self._own_reader = None
        return ended
