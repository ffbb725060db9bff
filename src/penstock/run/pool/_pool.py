"""The worker processes of this process: one pool, which its loaders share.

Who writes what. Everything in a `Pool` belongs to its one thread, which starts workers, queues units, takes what
is done, and replaces who died. Others speak to it by `post`: a call for the thread to make, put into a queue
that takes no lock, so finalizers may post too. Units are queued on this thread as well: a pipeline looks for
slots when it is told of a unit, or by `post`.

Guarantees.
- The pool knows who holds which unit (see `_board.py`). When a worker died, its unit is done again by another, and
  not before the system has reaped it, so nobody writes to a slot of which nobody knows.
- A unit that is the death of its worker again and again, or makes workers stand still, is an error that names the
  element (see `_blame.py`). A worker that stands still is killed after it wrote its stack.
- Workers that cannot even start are an error too, after `START_COUNT` in a row.
- The workers end with the last tenant. If this process is killed, the system ends them (see `_worker.py`).
- If the thread itself fails, by a bug, every unit fails with what it raised: no consumer is left waiting.

Each wait, and what ends it. There is one, in `_turn`: for a post, the bell of the workers, a message, or the end
of one of them; and while units are running, for a tick, which looks after workers that stand still. Nothing else
waits: the board's lock is tried (and a millisecond later again), messages to a worker that does not read them are kept.
"""

import contextlib
import copy
import logging
import os
import queue
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

from penstock.base._errors import LoaderError, WorkerError
from penstock.memory._budget import mib
from penstock.memory._mapping import MemoryFile
from penstock.memory._shared import SharedFile
from penstock.memory._slot import own_header
from penstock.plan._reader import WorkerStatus
from penstock.run._cpus import usable_cpu_count
from penstock.run.executors._executor import start_thread
from penstock.run.pool._child import Channels, Child
from penstock.run.pool._client import Job, Plan, PoolClient
from penstock.run.pool._crashes import blame, note_idle
from penstock.run.pool._remote_error import load_error
from penstock.run.pool._task_queue import BOARD_NBYTES, CLAIMED, DONE, MAX_WORKER_COUNT, QUEUED, TOLD, Entry, TaskQueue
from penstock.run.pool._worker import Closing, Message

START_COUNT: Final = 3
"""How many workers in a row may end before they are ready."""
FRUITLESS_COUNT: Final = 10
"""How many ends for each worker may follow each other while nothing gets done."""
START_S: Final = 60.0
"""How long a worker may take until it is ready."""
GRACE_S: Final = 1.0
"""How long a worker that is to end may take for its unit, and for writing its stack."""
_RETRY_S: Final = 0.001
_TICK_S: Final = 1.0

_log = logging.getLogger("penstock")


@final
class _Bell:
    """A pipe with a byte for each ring, which wakes those who wait for one. It is closed when it is dropped.

    Functions of modules are held by defaults: a batch that the program kept rings as modules are taken apart, and in a
    child of fork() it may be dropped as late.

    Args:
        waits: Whether who rings waits for room, or knows that it was rung often enough.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self._both: tuple[int, ...] = ()
        self._both = self.descriptor, self.button = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self.button, waits)

    def ring(self, count: int = 1, write: Callable[[int, bytes], int] = os.write) -> None:
        try:  # noqa: SIM105
            write(self.button, bytes(count))
        except BlockingIOError:
            pass

    def answer(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 16)

    def close(self, close: Callable[[int], None] = os.close) -> None:
        both, self._both = self._both, ()
        for descriptor in both:
            close(descriptor)

    __del__ = close


@final
class Pool:
    """Worker processes, and the thread that looks after them. `PoolClient` is the way in."""

    def __init__(self) -> None:
        self.tenant_count = 1
        """Guarded by the registry."""
        self.shared = SharedFile()
        self.progress = 0
        """Grows while workers get on."""
        self._mail: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._doorbell = _Bell()
        """For this thread. It is open as long as anybody may ring it."""
        self._board_file = MemoryFile(BOARD_NBYTES)
        self._board = TaskQueue(self._board_file.descriptor)
        self._tokens = _Bell()
        """For the workers: one for each unit queued."""
        self._bell = _Bell(waits=True)
        """For this thread, by the workers."""
        self._channels = Channels(
            self._board_file.descriptor, self.shared.descriptor, self._tokens.descriptor, self._bell.button
        )
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._ending: list[Child] = []
        """Those whose end was noticed, until they are reaped and their units are seen to."""
        self._plans: dict[int, Plan] = {}
        self._jobs: dict[int, Job] = {}
        """By their places on the board."""
        self._waiting: deque[Job] = deque()
        """For places on the board."""
        self._failing: list[Job] = []
        """Queued when nothing works any more."""
        self._told: dict[int, Message] = {}
        self._leaving: list[PoolClient] = []
        self._worker_count = 1
        self._failed_start_count = 0
        """In a row."""
        self._fruitless_death_count = 0
        """Ends of workers since something got done."""
        self._failure: Exception | None = None
        """Why nothing works any more."""
        self._last: PoolClient | None = None
        self._numbers = iter(range(1, 1 << 62))
        self._lock_seen: tuple[int | None, float] = (None, 0.0)
        self._retries = False
        """Whether something could not be done just now, and is to be tried again in a moment."""
        self._looked_at = 0.0
        self._thread = threading.Thread(target=self._run, name="penstock-pool", daemon=True)
        start_thread(self._thread)

    # For everybody.

    def post(self, call: Callable[[], None]) -> None:
        """Has the pool's thread make a call. Takes no lock, so finalizers may do it."""
        self._mail.put(call)
        self._doorbell.ring()

    @property
    def is_current_thread(self) -> bool:
        """Whether the pool's own thread asks."""
        return threading.current_thread() is self._thread

    def new_number(self) -> int:
        """A number for a plan."""
        return next(self._numbers)

    # Everything below is the pool's thread.

    def _run(self) -> None:
        self._selector.register(self._doorbell.descriptor, selectors.EVENT_READ, self._take_mail)
        self._selector.register(self._bell.descriptor, selectors.EVENT_READ, self._answer_bell)
        while self.tenant_count:
            try:
                self._turn()
            except BaseException as error:  # a bug of ours; nobody may wait for ever because of it
                if self._failure is None:
                    _log.exception("The pool of worker processes failed.")
                self._fail(LoaderError(f"The pool of worker processes failed: {type(error).__name__}: {error}."))
                time.sleep(_RETRY_S)  # should it fail again and again
        self._end()

    def _turn(self) -> None:
        events = self._selector.select(self._patience_s())
        self._retries = False
        for key, _ in events:
            key.data()
        if self._failing:
            assert self._failure is not None
            failing, self._failing = self._failing, []
            for job in failing:
                self._settle(job, copy.copy(self._failure))  # whose traceback is its own
        if self._ending:
            self._bury()
        for child in self._children.values():
            self._retries |= not child.flush()
        if self._waiting:
            self._fill_board()
        if self._leaving:
            self._see_off()
        if time.monotonic() >= self._looked_at + _TICK_S / 8:
            self._look_after()

    def _patience_s(self) -> float | None:
        if self._retries or self._failing:
            return _RETRY_S
        if any(child.asked_at or child.silent_at for child in self._children.values()) or self._lacks_workers:
            return GRACE_S / 8
        timeouts = [plan.timeout_s for plan in self._plans.values() if plan.unfinished_count or plan.closed_at]
        return min([_TICK_S, *(timeout / 8 for timeout in timeouts)]) if timeouts else None

    def _take_mail(self) -> None:
        self._doorbell.answer()
        with contextlib.suppress(queue.Empty):
            while True:
                self._mail.get_nowait()()

    # Tenants and plans.

    def require(self, worker_count: int) -> None:
        """Starts workers until there are that many."""
        self._worker_count = max(self._worker_count, min(worker_count, MAX_WORKER_COUNT))
        for number in range(self._worker_count):
            if number not in self._children and self._failure is None:
                self._start(number)

    @property
    def _lacks_workers(self) -> bool:
        return self._failure is None and len(self._children) < self._worker_count

    def open(self, tenant: PoolClient, plan: Plan) -> None:
        """Tells every worker of a plan, unless its tenant was let go while it was made."""
        if plan not in tenant.plans:  # and with it the plan
            return
        if tenant.gone.is_set():  # and had no plan then
            tenant.plans.remove(plan)
            self.close(plan)
            return
        self._plans[plan.number] = plan
        for child in self._children.values():
            child.tell(plan.opening, plan.files)

    def queue(self, jobs: list[Job]) -> None:
        """Queues units, in order."""
        if self._failure is not None:
            self._failing.extend(jobs)  # not at once: who queues may hold a lock that its receiver takes
            return
        self._waiting.extend(jobs)
        self._fill_board()

    def leave(self, tenant: PoolClient) -> None:
        """Closes what a tenant has open, and lets it go."""
        if tenant in self._leaving or tenant.gone.is_set() or tenant is self._last:
            return
        for plan in tenant.plans:
            plan.closed_at = time.monotonic()
        self._leaving.append(tenant)

    def close(self, plan: Plan) -> None:
        """Forgets a plan of which no unit is unfinished."""
        self._plans.pop(plan.number, None)
        for child in self._children.values():
            child.tell(Closing(plan.number))
        for place in plan.places:
            self.shared.release(place)
        plan.words, plan.files = own_header(), ()

    def _see_off(self) -> None:
        """Lets tenants go of which nothing runs any more."""
        for tenant in self._leaving[:]:
            for plan in tenant.plans[:]:
                if plan.unfinished_count:
                    self._cancel(plan)
                if not plan.unfinished_count:
                    self.close(plan)
                    tenant.plans.remove(plan)
            if not tenant.plans:
                self._leaving.remove(tenant)
                if _registry.left(self):
                    self._last = tenant  # who is gone when the workers are
                else:
                    tenant.gone.set()

    def _cancel(self, plan: Plan) -> None:
        """Takes what was given up from the board; what is at work may end within the grace."""
        for job in [job for job in self._waiting if job.plan is plan]:
            self._waiting.remove(job)
            self._settle(job, None)
        queued = []
        if self._lock():
            queued = [place for place in self._board.places(QUEUED) if self._jobs[place].plan is plan]
            for place in queued:
                self._board.free(place)
            self._board.unlock()
        for place in queued:
            self._settle(self._jobs.pop(place), None)
        if plan.unfinished_count and time.monotonic() - plan.closed_at > GRACE_S:
            for place in self._board.places(CLAIMED):
                owner = self._board.owner(place)
                if self._jobs[place].plan is plan and owner in self._children:
                    self._children[owner].kill()

    # Units.

    def _lock(self) -> bool:
        """Takes the board's lock, or notes that it is to be tried again in a moment."""
        if self._board.try_lock():
            self._lock_seen = (None, 0.0)
            return True
        self._retries = True
        holder, since = self._lock_seen
        found = self._board.lock_holder()
        if found is None or found != holder:
            self._lock_seen = (found, time.monotonic())
        elif time.monotonic() - since > GRACE_S:  # for a few instructions: whoever takes that long was stopped
            for child in self._children.values():
                if child.pid == found:
                    child.kill()
        return False

    def _fill_board(self) -> None:
        if not self._lock():
            return
        count = 0
        while self._waiting:
            job = self._waiting[0]
            place = self._board.push(Entry(job.plan.number, job.unit))
            if place is None:
                break
            self._jobs[place] = job
            self._waiting.popleft()
            count += 1
        self._board.unlock()
        self._tokens.ring(count)

    def _answer_bell(self) -> None:
        self._bell.answer()
        self._collect()

    def _collect(self) -> None:
        """Takes from the board what is done.

        A stream is read by one worker in order, and is to be heard of in order. But a look at the board takes time:
        what it found may have been done after something that it had passed when that was still CLAIMED. So it only
        says how far to go. What the one worker of a pool did before anything that was found, a second look finds.
        """
        seen = [*self._board.places(TOLD), *self._board.places(DONE)]
        if not seen:
            return
        last = max(self._jobs[place].number for place in seen)
        # TOLD is looked for once: what becomes TOLD later has its message later too.
        told, done = self._board.places(TOLD), self._board.places(DONE)
        for place in told:
            if place not in self._told:
                self._take_messages(self._children[self._board.owner(place)])
        for place in sorted([*told, *done], key=lambda place: self._jobs[place].number):
            if self._jobs[place].number > last:
                break  # for the next time: if its worker is to ring the bell, it does so after we answered it
            if (child := self._children.get(self._board.owner(place))) is not None:
                child.done_count += 1
            job, message = self._jobs.pop(place), self._told.pop(place, None)
            assert (message is None) == (place not in told)
            self._board.free(place)
            self.progress += 1
            self._fruitless_death_count = 0
            error: BaseException | None = None
            if message is not None and not job.plan.closed_at:
                try:
                    if message.kind == "error":
                        dumped, failures = message.payload
                        error = load_error(dumped)
                        if failures:  # what was set aside before
                            job.plan.receiver.told(job.unit, ((), failures))
                    else:
                        job.plan.receiver.told(job.unit, message.payload)
                except Exception as caught:  # of the user's, who may have put something odd into what is told
                    error = caught
            self._settle(job, error)

    def _settle(self, job: Job, error: BaseException | None) -> None:
        # Counted before the receiver looks for slots: see `ProcessesExecutor.wake`.
        job.plan.unfinished_count -= 1
        job.plan.receiver.finished(job.unit, error)

    def pids(self) -> list[int]:
        """The processes of the workers, on any thread."""
        return [child.pid for child in self._children.copy().values()]  # a copy is one operation

    # Workers.

    def _start(self, number: int) -> None:
        self._board.trace(number)[0] = 0
        try:
            child = Child(number, self._channels, max(1, usable_cpu_count() // self._worker_count))
        except OSError as error:
            self._count_failed_start(f"The system starts no more processes: {error}.")
            return
        self._children[number] = child
        child.is_listened_to = True
        self._selector.register(child.socket, selectors.EVENT_READ, lambda: self._take_messages(child))
        if child.pidfd is not None:
            self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._end_noticed(child))
        for plan in self._plans.values():
            child.tell(plan.opening, plan.files)

    def _take_messages(self, child: Child) -> None:
        for message in child.messages():
            if message.kind == "ready":
                child.is_ready = True
                self._failed_start_count = 0
            elif message.kind in ("imported", "free"):
                self._note(message)
            else:
                self._told[message.number] = message
        if child.is_silent and child.is_listened_to:
            child.is_listened_to = False
            self._selector.unregister(child.socket)
            child.silent_at = time.monotonic()  # it ends; if not, `_look_after` ends it
            if child.pidfd is None:
                self._end_noticed(child)

    def _note(self, message: Message) -> None:
        plan = self._plans.get(message.number)
        if plan is None:
            return
        if message.kind == "free":
            plan.note(
                "executor='threads' would have done as well: the functions let go of the GIL, as a thread beside them "
                "in a worker found."
            )
            return
        names, seconds, nbytes = message.payload
        imports = f"A function makes each worker import {' and '.join(names)}"
        plan.note(
            f"{imports}, which took {seconds:.1f} s and {mib(nbytes)} in one. Import what it needs from there inside "
            "of it, or do without.",
            topic=imports,
            is_warning=True,
        )

    def _end_noticed(self, child: Child) -> None:
        self._ending.append(child)
        if child.pidfd is not None:
            self._selector.unregister(child.pidfd)
        self._take_messages(child)
        if child.is_listened_to:
            child.is_listened_to = False
            self._selector.unregister(child.socket)

    def _bury(self) -> None:
        """Reaps workers that ended, gives their units to others, and replaces them."""
        for child in self._ending[:]:
            if not child.reap():
                self._retries = True
                continue
            self._collect()  # now that it finishes nothing more
            if child.lost is None:
                child.lost = self._blame(child)
            if child.lost and not self._lock():
                continue
            for place in child.lost:
                self._board.requeue(place)
            if child.lost:
                self._board.unlock()
            self._ending.remove(child)
            del self._children[child.number]
            self._tokens.ring(len(child.lost) + 1)  # it may have taken one along
            self._count_death(child)
            if self._failure is None and len(self._leaving) < self.tenant_count:
                self._start(child.number)

    def _blame(self, child: Child) -> list[int]:
        """Fails the units that one worker too many has died of; returns the places of those to be done again."""
        lost = []
        trace = WorkerStatus(self._board.trace(child.number)).read()
        held = [place for place in self._board.places(CLAIMED) if self._board.owner(place) == child.number]
        for place in held:
            self._told.pop(place, None)  # said, and not finished: another worker says it again
            error = blame(child, self._jobs[place], trace)
            if error is None:
                lost.append(place)
            else:
                self._board.free(place)
                self._settle(self._jobs.pop(place), error)
                self._fruitless_death_count = 0
        if child.is_ready and not held:
            for plan in self._plans.values():
                note_idle(child, plan)
        return lost

    def _count_death(self, child: Child) -> None:
        if not child.is_ready:
            self._count_failed_start(f"{child} {child.ending} while it started.")
        self._fruitless_death_count += 1
        if self._fruitless_death_count >= FRUITLESS_COUNT * self._worker_count:
            self._fail(
                WorkerError(
                    f"{child} {child.ending}, the last of {self._fruitless_death_count} workers that ended in a row "
                    "while nothing got done. executor='threads' needs none."
                )
            )

    def _count_failed_start(self, text: str) -> None:
        self._failed_start_count += 1
        if self._failed_start_count >= START_COUNT and not any(c.is_ready for c in self._children.values()):
            self._fail(
                WorkerError(
                    f"{text} It was start number {self._failed_start_count} in a row that failed; what they wrote is "
                    f"above, on stderr. Workers are started with {sys.executable}, and import penstock and NumPy. "
                    "executor='threads' needs none."
                )
            )

    def _look_after(self) -> None:
        """Looks for workers that stand still."""
        now = time.monotonic()
        paused_s = max(0.0, now - self._looked_at - 2 * _TICK_S)  # this process was stopped, and perhaps all of them
        self._looked_at = now
        self._collect()
        if self._lacks_workers and not self._ending:
            self.require(self._worker_count)
        for child in self._children.values():
            child.seen_at += paused_s
            child.look_at_memory()
            is_mute = child.silent_at and now - child.silent_at > GRACE_S
            if is_mute or (child.asked_at and (child.was_stopped or now - child.asked_at > GRACE_S / 2)):
                child.kill()
        if self._plans and self._lock():
            self._board.unlock()
        held = {self._board.owner(place): place for place in self._board.places(CLAIMED)}
        queued = self._board.places(QUEUED)
        for child in self._children.values():
            # One that has no unit stands still too, if it takes none of those that wait: somebody stopped it.
            place = held.get(child.number, queued[0] if queued else None)
            if place is None or (not child.is_ready and now - child.started_at < START_S):
                child.seen = None
                continue
            job, at = self._jobs[place], place if child.number in held else None
            seen = (at, at and job.unit.generation, child.done_count, *self._board.trace(child.number))
            if seen != child.seen:
                child.seen, child.seen_at = seen, now
                child.asked_at, child.stack = 0.0, ""  # it got on after all
                self.progress += 1  # within a unit
            elif not child.asked_at and now - child.seen_at >= job.plan.timeout_s:
                child.ask_for_stack()
        if queued:
            self._tokens.ring(1)  # one that was stopped may have taken it along

    # The end.

    def _fail(self, error: Exception) -> None:
        """Fails everything, now and later; new loaders get another pool."""
        self._failure = self._failure or error
        _registry.discard(self)
        for child in self._children.values():
            child.kill()
        self._failing.extend([*self._jobs.values(), *self._waiting])
        self._jobs.clear()
        self._waiting.clear()
        for state in (QUEUED, CLAIMED, DONE, TOLD):
            for place in self._board.places(state):
                self._board.free(place)

    def _end(self) -> None:
        """Ends the workers, kindly at first, and frees everything."""
        try:
            self._dismiss()
        finally:
            last, self._last = self._last, None  # which holds this: whoever drops it drops the doorbell
            if last is not None:
                last.gone.set()

    def _dismiss(self) -> None:
        children = list(self._children.values())
        for child in children:
            child.dismiss()
        ends_at = time.monotonic() + GRACE_S
        while children := [child for child in children if not child.reap()]:
            if time.monotonic() > ends_at + GRACE_S:
                break  # not even SIGKILL ends a process in some waits for a disk or a network
            if time.monotonic() > ends_at:
                for child in children:
                    child.kill()
            time.sleep(0.002)
        self._selector.close()
        self._tokens.close()
        self._bell.close()
        self._board_file.close()
        self.shared.close()
        self._plans.clear()
        self._board.close()


@final
class _Registry:
    """The pool of this process, while it has tenants."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """After fork(): whoever held the lock did not come along, nor did the pool's thread."""
        self._lock, self._pool = threading.Lock(), None

    def join(self) -> Pool:
        """Returns the pool, which has one more tenant."""
        with self._lock:
            if self._pool is None:
                self._pool = Pool()
            else:
                self._pool.tenant_count += 1
            return self._pool

    def discard(self, pool: Pool) -> None:
        """Gives new tenants another pool."""
        with self._lock:
            if self._pool is pool:
                self._pool = None

    def left(self, pool: Pool) -> bool:
        """Takes a tenant off; returns whether it was the last one."""
        with self._lock:
            pool.tenant_count -= 1
            if pool.tenant_count:
                return False
            if self._pool is pool:
                self._pool = None
            return True


_registry = _Registry()


def join(worker_count: int, incidents: list[str]) -> PoolClient:
    """Gets a right to the workers of this process, which are started if there are none.

    Args:
        worker_count: How many there must be at least.
        incidents: Gets a line for each thing that happens to them, for people.
    """
    tenant = PoolClient(_registry.join(), incidents)
    tenant.pool.post(lambda: tenant.pool.require(worker_count))
    return tenant


def join_alone(incidents: list[str]) -> PoolClient:
    """Gets a right to a worker that nobody else gives anything to do."""
    tenant = PoolClient(Pool(), incidents)
    tenant.pool.post(lambda: tenant.pool.require(1))
    return tenant
