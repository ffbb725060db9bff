"""The executor `threads`: workers share memory and the GIL. For reads, and for functions that release the GIL.

Which thread writes what. `_queue` is the only way in: units, wake-ups and stops, each taken by exactly one worker. A
worker writes its own entry of `_running` and `_done_counts`, and reads no entry of another worker.

Each wait, and what ends it.
- A worker waits in `_queue.get()`. A unit, a wake-up or a stop ends that. `request_stop` puts one stop for each worker,
  and a worker that takes a stop takes nothing more. So every worker gets one.
- A worker may wait for its turn: see `_turns.py`.
- `join` waits for the end of the threads, or for its timeout. A thread cannot be killed. One that never returns from a
  user's function stays behind. It is a daemon thread, so it does not keep the process alive.

A thread holds the client only while it works for it, and never the executor. The client holds the plan, the plan holds
the user's functions, and these may hold the loader whose end stops the threads. So the threads stop when the loader is
dropped. They also stop when the client is collected, even if Ctrl-C or an error cut off its construction. `wake` and
`request_stop` only call `SimpleQueue.put`, which is reentrant, so a finalizer may call them at any bytecode.
"""

import functools
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, Final, final

from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._ring import Ring
from penstock.run._turns import Turns
from penstock.run.executors._executor import Client, Executor, start_thread

_WAKE: Final = object()
_STOP: Final = object()
_STACK_DEPTH: Final = 8
"""How many of the innermost calls of a stuck worker a message shows."""


class ThreadsExecutor(Executor):
    """Runs units on daemon threads, oldest first.

    Args:
        client: Gives the units.
        worker_count: How many threads.
        events: Receives a line for each event that the report shows.
    """

    name = "threads"
    isolates = False

    def __init__(self, client: Client, worker_count: int, events: list[str]) -> None:
        self.worker_count = self.queue_target = worker_count
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._running: list[Unit | None] = [None] * worker_count
        self._done_counts = [0] * worker_count
        self._turns = Turns(events)
        self._stop = functools.partial(_stop, self._queue, self._turns, worker_count)
        self._client = weakref.ref(client, self._stop)
        self._threads = [
            threading.Thread(
                target=_Worker(number, self._queue, self._running, self._done_counts, self._turns, self._client).work,
                name=f"penstock-{number}",
                daemon=True,
            )
            for number in range(worker_count)
        ]
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException:  # the system allows no more threads, or Ctrl-C struck: stop those that run
            self.request_stop()
            raise

    @property
    def takes_turns(self) -> bool:  # type: ignore[override]  # it changes at run time
        """Whether threads run one at a time at present."""
        return self._turns.are_taken

    def begin(self, program: Program[Any], ring: Ring, spans: Ring | None = None) -> None:
        """Learns whether the program has functions, in which threads may hinder each other."""
        self._turns.are_useful = self.worker_count > 1 and program.computes and not program.keeps

    def wake(self) -> None:
        """Makes one thread ask for units."""
        self._queue.put(_WAKE)

    def progress(self) -> object:
        """Returns the units that are done and those that run."""
        return tuple(self._done_counts), tuple(self._running)

    def tasks(self) -> list[str]:
        """Returns the threads."""
        return [f"self/task/{thread.native_id}" for thread in self._threads]

    def stuck(self) -> list[str]:
        """Returns the unit and the Python stack of each thread that runs one."""
        client, frames = self._client(), sys._current_frames()
        reports = []
        for thread, unit in zip(self._threads, self._running, strict=True):
            frame = frames.get(thread.ident or -1)
            if client is not None and unit is not None and frame is not None:
                stack = "".join(traceback.format_stack(frame, limit=_STACK_DEPTH))
                reports.append(f"{thread.name} is at {client.describe(unit, (0, 0, 0))}\n{stack}")
        return reports

    def request_stop(self) -> None:
        """Queues a stop for each thread."""
        self._stop()

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads, except for the calling one."""
        ends_at = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _stop(tasks: "queue.SimpleQueue[object]", turns: Turns, worker_count: int, _: object = None) -> None:
    turns.is_over = True
    for _ in range(worker_count):
        tasks.put(_STOP)


@final
class _Worker:
    """What one thread works with."""

    def __init__(
        self,
        number: int,
        tasks: "queue.SimpleQueue[object]",
        running: list[Unit | None],
        done_counts: list[int],
        turns: Turns,
        client: Callable[[], Client | None],
    ) -> None:
        self._number = number
        self._tasks = tasks
        self._running = running
        self._done_counts = done_counts
        self._turns = turns
        self._client = client

    def work(self) -> None:
        """Runs units until a stop comes, or until the client is gone."""
        while (task := self._tasks.get()) is not _STOP and (client := self._client()) is not None:
            for unit in self._run(client, task) if isinstance(task, Unit) else client.issue():
                self._tasks.put(unit)
            del task, client  # what they hold must not live until the next task comes
        client = self._client()
        if client is not None:
            client.leave()

    def _run(self, client: Client, unit: Unit) -> Any:
        is_turn = self._turns.begin()
        self._running[self._number] = unit
        cpu_began = time.thread_time() if self._turns.are_useful else 0.0
        try:
            result = client.run(unit)
        except BaseException as error:  # SystemExit too: a user's function must not end a worker silently
            result = UnitResult(error)
        self._running[self._number] = None
        self._done_counts[self._number] += 1
        if is_turn:
            self._turns.give_back()
        units = client.finished(unit, result)
        del result  # the traceback of its error holds this frame
        if self._turns.are_useful:
            cpu_s, now_s = time.thread_time() - cpu_began, time.perf_counter()
            has_more = bool(units) or not self._tasks.empty()
            self._turns.note(unit.stop - unit.start, cpu_s, now_s, has_more=has_more)
        return units
