"""The executor `threads`: workers share memory and the GIL. For reads, and for functions that release the GIL.

Which thread writes what. `_queue` is the only way in: units, wake-ups and stops, each taken by exactly one worker. A
worker writes its own entry of `_running` and `_done_counts`, and reads no entry of another worker.

Each wait, and what ends it.
- A worker waits in `_queue.get()`. A unit, a wake-up or a stop ends that. `request_stop` puts one stop for each worker,
  and a worker that takes a stop takes nothing more. So every worker gets one.
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
import traceback
import weakref
from collections.abc import Callable
from typing import Final, final

from penstock.base._threads import join_threads, start_thread
from penstock.lower._program import Unit, UnitResult
from penstock.run.executors._executor import Client, Executor

_WAKE: Final = object()
_STOP: Final = object()
_STACK_DEPTH: Final = 8
"""How many of the innermost calls of a stuck worker a message shows."""


@final
class ThreadsExecutor(Executor):
    """Runs units on daemon threads, oldest first.

    Args:
        client: Gives the units.
        worker_count: How many threads.
    """

    name = "threads"
    reach = "thread"

    def __init__(self, client: Client, worker_count: int) -> None:
        self.worker_count = self.queue_target = worker_count
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._running: list[Unit | None] = [None] * worker_count
        self._done_counts = [0] * worker_count
        self._stop = functools.partial(_stop, self._queue, worker_count)
        self._client = weakref.ref(client, self._stop)
        self._threads = [
            threading.Thread(
                target=_work,
                args=(number, self._queue, self._running, self._done_counts, self._client),
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
        return join_threads(self._threads, timeout_s)


def _stop(tasks: "queue.SimpleQueue[object]", worker_count: int, _: object = None) -> None:
    for _ in range(worker_count):
        tasks.put(_STOP)


def _work(
    number: int,
    tasks: "queue.SimpleQueue[object]",
    running: list[Unit | None],
    done_counts: list[int],
    client_ref: Callable[[], Client | None],
) -> None:
    while (task := tasks.get()) is not _STOP and (client := client_ref()) is not None:
        if isinstance(task, Unit):
            running[number] = task
            try:
                result = client.run(task)
            except BaseException as error:  # SystemExit too: a user's function must not end a worker silently
                result = UnitResult(error)
            running[number] = None
            done_counts[number] += 1
            units = client.finished(task, result)
            del result  # the traceback of its error holds this frame
        else:
            units = client.issue()
        for unit in units:
            tasks.put(unit)
        del task, client, units  # what they hold must not live until the next task comes
    client = client_ref()
    if client is not None:
        client.leave()
