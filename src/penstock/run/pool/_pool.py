"""The worker processes of this process: one pool, which its loaders share.

Which thread writes what: see `_dispatcher.py`. The pool's thread starts workers, sends units, takes answers, and
replaces workers that died.

Guarantees, beside those of a dispatcher.
- The pool knows which worker holds which unit (see `_task_queue.py`). When a worker died, another one does its unit
  again, but not before the system has reaped the dead one. So no dead worker writes to a slot.
- A unit that kills its workers again and again, or makes them hang, is an error that names the element (`_crashes.py`).
  A worker that hangs is killed after it wrote its stack.
- Workers that cannot even start are an error too, after `START_COUNT` in a row.
- The workers end with the last client. If this process is killed, the system ends them (see `_worker.py`).

One turn of the thread waits, then takes the answers and hands each to its receiver, which submits the next units, and
sends all of these at once.

Each wait, and what ends it. There is one, in `_turn`: for a post, the last answer of a slot, a message, or the end of a
worker. While units are running it also ends with a tick, which looks for workers that hang. What could not be done at
once is tried again a millisecond later: to reap a worker, to find the unit of a dead one, to send a message. Units that
find no room in the queue wait for room. The end waits for the workers, which it kills after `GRACE_S`, and for the
threads of log records (see `_logs.py`).
"""

import itertools
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

from penstock.base._errors import WorkerError
from penstock.base._retries import NOTHING_WANTED
from penstock.base._threads import LIMITS, start_thread
from penstock.lower._program import UnitResult
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import Ring
from penstock.memory._shared import SharedFile
from penstock.run._cpus import usable_cpu_count
from penstock.run._dispatcher import EMPTY, RETRY_S, Dispatcher, DispatcherClient, Job, Receiver
from penstock.run.pool._crashes import HANG_LIMIT, attribute, note_idle_crash
from penstock.run.pool._interpreter import interpreter
from penstock.run.pool._logs import LogReader
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._process import WorkerProcess
from penstock.run.pool._registry import Registry
from penstock.run.pool._task_queue import GROUP_COUNT, MAX_WORKER_COUNT, TAKING, TaskQueue
from penstock.run.pool._tasks import PoolTask
from penstock.run.pool._worker import Closing, Message

START_COUNT: Final = 3
"""How many workers in a row may end before they are ready."""
FRUITLESS_COUNT: Final = 10
"""How many ends for each worker may follow each other while nothing gets done."""
START_S: Final = 60.0
"""How long a worker may take until it is ready."""
GRACE_S: Final = 1.0
"""How long a worker that is to end may take for its unit, and for writing its stack."""
_TICK_S: Final = 1.0

_log = logging.getLogger("penstock")


@final
class Pool(Dispatcher[PoolTask]):
    """Worker processes, and the thread that looks after them. `PoolClient` is the way in."""

    def __init__(self) -> None:
        super().__init__("penstock-pool", registry)
        self.shared = SharedFile()
        self._queue = TaskQueue()
        self._logs = LogReader()
        self._wakeup = self._queue.wakeup
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        """What to call when a descriptor is ready."""
        self._workers: dict[int, WorkerProcess] = {}
        self._ending: list[WorkerProcess] = []
        """Those whose end was noticed, until they are reaped and their units are seen to."""
        self._jobs: dict[int, Job[PoolTask]] = {}
        """Sent and not answered, by number."""
        self._waiting: deque[Job[PoolTask]] = deque()
        """For the end of the turn, and for room in the queue."""
        self._messages: dict[int, Message] = {}
        """Of units, by the number of the job, until the unit is answered."""
        self._leaving: list[DispatcherClient[PoolTask]] = []
        self._worker_count = 1
        self._failed_start_count = 0
        """In a row."""
        self._fruitless_crash_count = 0
        """Ends of workers since something got done."""
        self._is_full = False
        """Whether units wait for room in the queue."""
        self._retries = False
        """Whether something could not be done just now, and is tried again in a moment."""
        self._is_watching = False
        """Whether a worker has little time left, or is missing."""
        self._looked_at = 0.0
        self._listen(self._wakeup.reader, self._wakeup.read)
        try:
            start_thread(self._thread)
        except BaseException:
            self._logs.close()
            raise

    # For everybody.

    def post(self, call: Callable[[], object]) -> None:
        """See `Dispatcher`."""
        super().post(call)
        self._wakeup.write()  # a full pipe wakes as well as one byte more

    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in self._workers.copy().values()]  # a copy is one operation

    # Everything below is the pool's thread.

    def _note_bug(self) -> str:
        if self._failure is None:
            _log.exception("The pool of worker processes failed.")
        return "The pool of worker processes"

    def _listen(self, descriptor: int, handler: Callable[[], object], event: int = select.POLLIN) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, event)

    def _ignore(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)

    def _turn(self) -> None:
        timeout_s = self._timeout_s()
        events = self._poll.poll(None if timeout_s is None else 1e3 * timeout_s)
        self._retries = False
        for descriptor, _ in events:
            if (handler := self._handlers.get(descriptor)) is not None:  # or an earlier one dropped it
                handler()
        self._take_answers()
        self._take_posts()
        self._settle_failing()
        for worker in self._ending[:]:
            self._bury(worker)
        if self._leaving:
            self._see_off()
        if self._waiting or self._is_full:
            self._send_units()
        for worker in self._workers.values():
            self._retries |= bool(worker.outbox) and not worker.flush()
        if time.monotonic() >= self._looked_at + _TICK_S / 8:
            self._look_after()

    def _timeout_s(self) -> float | None:
        if self._retries or self._failing:
            return RETRY_S
        if self._is_watching:
            return GRACE_S / 8
        if not (self._jobs or self._waiting or self._leaving):
            return None
        return min([_TICK_S, *(task.timeout_s / 8 for task in self._tasks.values())])

    # Clients and tasks.

    def require(self, worker_count: int) -> None:
        """Starts workers until there are that many."""
        self._worker_count = max(self._worker_count, min(worker_count, MAX_WORKER_COUNT))
        for number in range(self._worker_count):
            if number not in self._workers and self._failure is None:
                self._start(number)

    def open(self, client: "PoolClient", task: PoolTask) -> None:
        """Sends a task to every worker, unless its client left while it was made."""
        if task not in client.tasks:  # it left, and with it the task
            return
        if client.is_gone.is_set():  # it left, and had no task then
            client.tasks.remove(task)
            task.close()
            return
        self._tasks[task.number] = task
        for worker in self._workers.values():
            worker.send(task.opening, task.files)

    def close(self, task: PoolTask) -> None:
        """Forgets a task without unfinished units."""
        self._tasks.pop(task.number, None)
        for worker in self._workers.values():
            worker.send(Closing(task.number))
        task.close()

    def _await_worker(self, task: PoolTask, jobs: Sequence[Job[PoolTask]]) -> None:
        task.count([job.unit for job in jobs])
        self._waiting += jobs

    def leave(self, client: DispatcherClient[PoolTask]) -> None:
        """See `Dispatcher`."""
        if client in self._leaving or client.is_gone.is_set() or client is self._last:
            return
        for task in client.tasks:
            task.closed_at = time.monotonic()
            task.wake_each()
        self._take_answers()  # those that woke nobody before
        self._leaving.append(client)

    def _see_off(self) -> None:
        """Lets clients go that have no running units."""
        for client in self._leaving[:]:
            for task in client.tasks[:]:
                if task.unfinished_count:
                    self._cancel(task)
                if not task.unfinished_count:
                    self.close(task)
                    client.tasks.remove(task)
            if not client.tasks:
                self._leaving.remove(client)
                self._let_go(client)

    def _cancel(self, task: PoolTask) -> None:
        """Drops the units of a task that no worker has taken. A unit that runs may end within the grace."""
        self._take_back()
        for job in [job for job in self._waiting if job.task is task]:
            self._waiting.remove(job)
            self._settle(job, EMPTY)
        if time.monotonic() - task.closed_at > GRACE_S:
            for number, worker in self._workers.items():
                held = self._jobs.get(self._queue.claim(number))
                if held is not None and held.task is task:
                    worker.kill()

    # Units.

    def _send_units(self) -> None:
        """Sends the units that wait, as far as there is room."""
        waiting = self._waiting
        while waiting:
            group = list(itertools.islice(waiting, GROUP_COUNT))
            if not self._queue.send([(job.number, job.task.number, job.unit) for job in group]):
                break
            for job in group:
                self._jobs[job.number] = job
                waiting.popleft()
        if bool(waiting) != self._is_full:
            self._is_full = not self._is_full
            if self._is_full:
                self._listen(self._queue.room_descriptor, lambda: None, select.POLLOUT)
            else:
                self._ignore(self._queue.room_descriptor)

    def _take_back(self) -> None:
        """Makes units wait again that no worker has taken."""
        self._waiting.extendleft([self._jobs.pop(number) for number in reversed(self._queue.take_back())])

    def _take_answers(self) -> None:
        """Hands the units that are done to their receivers, those of one worker in its order."""
        for number, worker, has_message in self._queue.answers():
            if has_message and number not in self._messages:
                self._take_messages(self._workers[worker])
            message = self._messages.pop(number, None)
            if (job := self._jobs.pop(number, None)) is None:  # the pool failed
                continue
            self.progress += 1
            self._fruitless_crash_count = 0
            result = EMPTY
            if message is not None and not job.task.closed_at:
                content, failures = message.payload
                is_error = message.kind == "error"
                result = (
                    UnitResult(job.task.load_error(content), (), failures)
                    if is_error
                    else UnitResult(None, content, failures)
                )
            self._settle(job, result)

    # Workers.

    def _start(self, number: int) -> None:
        self._queue.forget(number)
        try:
            channels = *self._queue.descriptors, self._logs.descriptor, self.shared.descriptor
            worker = WorkerProcess(number, channels, max(1, usable_cpu_count() // self._worker_count))
        except OSError as error:
            self._is_watching = True
            self._count_failed_start(f"The system starts no more processes: {error}. {LIMITS}.")
            return
        self._workers[number] = worker
        self._listen(worker.socket.fileno(), lambda: self._take_messages(worker))
        self._listen(worker.pidfd, lambda: self._notice_end(worker))
        for task in self._tasks.values():
            worker.send(task.opening, task.files)

    def _take_messages(self, worker: WorkerProcess) -> None:
        for message in worker.messages():
            if message.kind == "ready":
                worker.is_ready = True
                self._failed_start_count = 0
            else:
                self._messages[message.number] = message
        if worker.is_silent and worker.is_polled:
            worker.is_polled = False
            self._ignore(worker.socket.fileno())
            worker.silent_at = time.monotonic()  # it ends; if not, `_look_after` ends it
            self._is_watching = True

    def _notice_end(self, worker: WorkerProcess) -> None:
        self._ending.append(worker)
        self._ignore(worker.pidfd)
        self._take_messages(worker)
        if worker.is_polled:
            worker.is_polled = False
            self._ignore(worker.socket.fileno())

    def _bury(self, worker: WorkerProcess) -> None:
        """Reaps a worker that ended, gives its unit to another, and replaces it; or has this tried again."""
        if not worker.reap():
            self._retries = True
            return
        for task in self._tasks.values():
            task.wake_each()  # it may have answered a unit, and not counted it
        if (held := self._held_by(worker)) is None:
            self._retries = True
            return
        self._ending.remove(worker)
        del self._workers[worker.number]
        for job in held:
            self._messages.pop(job.number, None)  # sent, but the unit is not finished: another worker sends it again
            error = attribute(worker, job, self._queue.status(worker.number))
            if error is None:
                self._take_back()
                self._waiting.appendleft(job)
            else:
                self._fruitless_crash_count = 0
                self._settle(job, UnitResult(error))
        if worker.is_ready and not held:
            for task in self._tasks.values():
                note_idle_crash(worker, task)
        self._count_crash(worker)
        if self._failure is None and len(self._leaving) < self.client_count:
            self._start(worker.number)

    def _held_by(self, worker: WorkerProcess) -> list[Job[PoolTask]] | None:
        """Removes the unit of a dead worker from the jobs and returns it; None if it is not known yet."""
        claim = self._queue.claim(worker.number)
        self._take_answers()  # now that it writes nothing more
        if claim != TAKING:
            job = self._jobs.pop(claim, None)
            return [] if job is None else [job]
        # It may have taken a unit, but not begun it. Then that unit is neither in the queue nor in a claim. The order
        # matters: with an empty queue, claims only end, and each answer comes before the end of its claim.
        self._take_back()
        claims = {self._queue.claim(number) for number, each in self._workers.items() if each.ending is None}
        if TAKING in claims:
            return None
        self._take_answers()
        self._waiting.extendleft([self._jobs.pop(number) for number in self._jobs.keys() - claims])
        return []

    def _count_crash(self, worker: WorkerProcess) -> None:
        if not worker.is_ready:
            self._count_failed_start(f"{worker} {worker.ending} while it started.")
        self._fruitless_crash_count += 1
        if self._fruitless_crash_count >= FRUITLESS_COUNT * self._worker_count:
            self._fail(
                WorkerError(
                    f"{worker} {worker.ending}, the last of {self._fruitless_crash_count} workers that ended in a row "
                    "while nothing got done. executor='threads' needs none."
                )
            )

    def _count_failed_start(self, text: str) -> None:
        self._failed_start_count += 1
        if self._failed_start_count >= START_COUNT and not any(each.is_ready for each in self._workers.values()):
            self._fail(
                WorkerError(
                    f"{text} It was start number {self._failed_start_count} in a row that failed; what they wrote is "
                    f"above, on stderr. Workers are started with {interpreter()}, and import penstock and NumPy. "
                    "executor='threads' needs none."
                )
            )

    def _look_after(self) -> None:
        """Looks for workers that stand still, and starts those that are missing."""
        now = time.monotonic()
        paused_s = max(0.0, now - self._looked_at - 2 * _TICK_S)  # this process was stopped, and perhaps all of them
        self._looked_at = now
        if not self._ending:
            self.require(self._worker_count)
        claims = {number: self._queue.claim(number) for number in self._workers}
        held = set(claims.values())
        queued = next((job for number, job in self._jobs.items() if number not in held), None)
        for worker in self._workers.values():
            worker.seen_at += paused_s
            worker.look_at_memory()
            is_mute = worker.silent_at and now - worker.silent_at > GRACE_S
            if is_mute or (worker.asked_at and (worker.was_stopped or now - worker.asked_at > GRACE_S / 2)):
                worker.kill()
            # A worker without a unit hangs too, if it takes none of the queued ones: it was stopped.
            job = self._jobs.get(claims[worker.number], queued)
            if job is None or (not worker.is_ready and now - worker.started_at < START_S):
                worker.seen = None
                continue
            seen = claims[worker.number], self._queue.status(worker.number)
            if seen != worker.seen:
                worker.seen, worker.seen_at = seen, now
                worker.asked_at, worker.stack = 0.0, ""  # it got on after all
                self.progress += 1  # within a unit
            elif not worker.asked_at and now - worker.seen_at >= job.task.timeout_s:
                worker.ask_for_stack()
        is_short = self._failure is None and len(self._workers) < self._worker_count
        self._is_watching = is_short or any(each.asked_at or each.silent_at for each in self._workers.values())

    # The end.

    def _give_up(self) -> Iterable[Job[PoolTask]]:
        for worker in self._workers.values():
            worker.kill()
        jobs = [*self._jobs.values(), *self._waiting]
        self._jobs.clear()
        self._waiting.clear()
        return jobs

    def _end(self) -> None:
        """Ends the workers, and frees everything."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.dismiss()
        ends_at = time.monotonic() + GRACE_S
        while workers := [worker for worker in workers if not worker.reap()]:
            if time.monotonic() > ends_at + GRACE_S:
                break  # not even SIGKILL ends a process in some waits for a disk or a network
            if time.monotonic() > ends_at:
                for worker in workers:
                    worker.kill()
            time.sleep(0.002)
        self._handlers.clear()  # which hold this object
        self._queue.close()
        self.shared.close()
        self._tasks.clear()
        self._logs.close()


@final
class PoolClient(DispatcherClient[PoolTask]):
    """A loader's right to the workers; see `DispatcherClient`."""

    def __init__(self, pool: Pool, lines: list[str]) -> None:
        super().__init__(pool, lines)
        self.pool = pool

    def open(
        self,
        payload: PlanPayload,
        ring: Ring | None,
        timeout_s: float,
        receiver: Receiver,
        inputs: Ring | PartMemory | None = None,
        *,
        wakes_each: bool = False,
    ) -> PoolTask:
        """Opens a task in the workers; see `PoolTask`."""
        task = PoolTask(payload, ring, timeout_s, receiver, inputs, self.pool.shared, self.notes, wakes_each=wakes_each)
        self.tasks.append(task)
        self.pool.post(lambda: self.pool.open(self, task))
        return task

    def close(self, task: PoolTask) -> None:
        """Closes a task without unfinished units."""
        self.tasks.remove(task)
        self.pool.post(lambda: self.pool.close(task))

    def leave(self) -> None:
        """See `DispatcherClient`. Units that wait within a read end."""
        if not self.has_left and self._pid == os.getpid():
            for task in self.tasks:
                task.header[0] = NOTHING_WANTED
        super().leave()


registry: Final[Registry[Pool]] = Registry()


def join(worker_count: int, lines: list[str]) -> PoolClient:
    """Returns a right to the workers of this process, which are started if there are none.

    Args:
        worker_count: How many there must be at least.
        lines: Gets a line for each thing that happens to them, for people.
    """
    client = PoolClient(registry.join(Pool), lines)
    client.pool.post(lambda: client.pool.require(worker_count))
    return client


def join_alone(lines: list[str]) -> PoolClient:
    """Returns the only right to a worker of its own."""
    client = PoolClient(Pool(), lines)
    client.pool.post(lambda: client.pool.require(1))
    return client


def pool_deadline_s(timeout_s: float) -> float:
    """How long the pool may take, at most, until it gives up a unit of which workers do not get on."""
    return (HANG_LIMIT + 1) * timeout_s + START_S
