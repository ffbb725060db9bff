"""The executor `threads`: workers that share memory and the GIL. For reads and for code that lets go of it.

Who writes what. `_queue` is the only way in: units, wake-ups and stops, each taken by exactly one worker.
A worker writes its own entry of `_running` and `_done_counts`, and reads nothing of another. Whether they work side by
side is decided in `_turns.py`. Where the consumer runs the units (`_driving.py`), that is `_own`, an executor `inline`
within this one, and workers wait; it changes only while no unit is unfinished, so either the one or the others have
units. `is_driven` is written by the consumer, with the client's lock held.

Each wait, and what ends it.
- A worker waits in `_queue.get()`: ended by a unit, by a wake-up, or by its stop. `request_stop` puts one
  stop a worker, and a worker that takes a stop takes nothing more, so every worker gets one.
- Where they take turns, it waits for its turn: see `_turns.py`.
- `join` waits for the threads: ended by their end, or by its timeout. A thread cannot be killed: one that
  never returns from a user's function is left behind, a daemon, which does not keep the process alive.

Threads hold their client only while they have something to do for it, and the executor not at all. For the client
holds the plan, the plan the user's functions, those their globals, and these perhaps the very loader whose end
would stop the threads. So whoever drops the loader stops them, or whoever drops all of that together: the end of the
client is a stop, too, also of one whose making was cut off by Ctrl-C or an error before anybody knew of its threads.
`SimpleQueue.put` is reentrant, so `wake` and `request_stop` may be called by a finalizer at any bytecode.
"""

import functools
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from typing import Final, final

from penstock.lower._program import Program, Unit
from penstock.memory._ring import Ring
from penstock.run._feed_program import FeedProgram
from penstock.run._turns import Turns
from penstock.run.executors._executor import Client, Executor, start_thread
from penstock.run.executors._inline import InlineExecutor

_WAKE: Final = object()
_STOP: Final = object()
_STACK_DEPTH: Final = 8
"""How many of the innermost calls of a stuck worker are shown."""


@final
class ThreadsExecutor(Executor):
    """Runs units on daemon threads, oldest first.

    Args:
        client: The pipeline.
        worker_count: How many threads.
        incidents: Gets a line for each thing that people should know.
    """

    isolates = False

    def __init__(self, client: Client, worker_count: int, incidents: list[str]) -> None:
        self.worker_count = self.queue_target = worker_count
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._running: list[Unit | None] = [None] * worker_count
        self._done_counts = [0] * worker_count
        self._turns = Turns(incidents)
        self._own = InlineExecutor(client)
        self._stop = functools.partial(_stop, self._queue, self._turns, worker_count)
        self._client = client_ref = weakref.ref(client, self._stop)
        self._threads = [
            threading.Thread(
                target=_work,
                args=(number, self._queue, self._running, self._done_counts, self._turns, client_ref),
                name=f"penstock-{number}",
                daemon=True,
            )
            for number in range(worker_count)
        ]
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException:  # the system allows no more threads, or Ctrl-C: nobody else would stop those that run
            self.request_stop()
            raise

    @property
    def takes_turns(self) -> bool:  # type: ignore[override]  # found out while it runs
        """Whether its threads run one at a time now."""
        return self._turns.are_taken

    def begin(self, program: Program | FeedProgram, ring: Ring, spans: Ring | None = None) -> None:
        """Learns whether there are functions, of which threads may hinder each other."""
        self._turns.are_useful = (
            self.worker_count > 1 and isinstance(program, Program) and program.computes and not program.keeps
        )

    def change_hands(self) -> None:
        """Has the consumer run units as `inline` does, or the threads again."""
        # In this order: where Ctrl-C strikes in between, it is done again.
        self.queue_target = self.worker_count if self.is_driven else self._own.queue_target
        self.is_driven = not self.is_driven
        self.wake()

    def drive(self) -> bool:
        """Runs one, if that is the consumer's."""
        return self.is_driven and self._own.drive()

    def forget(self) -> None:
        """Forgets those that are the consumer's."""
        self._own.forget()

    def submit(self, units: Sequence[Unit]) -> None:
        """Queues the units."""
        if self.is_driven:
            self._own.submit(units)
            return
        for unit in units:
            self._queue.put(unit)

    def wake(self) -> None:
        """Has one worker look for slots that came back; the consumer looks by itself."""
        if not self.is_driven:
            self._queue.put(_WAKE)

    def progress(self) -> object:
        """Units done and running; what a worker does within a unit is the client's to know."""
        return tuple(self._done_counts), tuple(self._running)

    def tasks(self) -> list[str]:
        """Its threads."""
        return [f"self/task/{thread.native_id}" for thread in self._threads]

    def stuck(self) -> list[str]:
        """What each running worker was given, and its Python stack."""
        client, frames = self._client(), sys._current_frames()
        reports = []
        for thread, unit in zip(self._threads, self._running, strict=True):
            frame = frames.get(thread.ident or -1)
            if client is not None and unit is not None and frame is not None:
                stack = "".join(traceback.format_stack(frame, limit=_STACK_DEPTH))
                reports.append(f"{thread.name} is at {client.describe(unit, (0, 0, 0))}\n{stack}")
        return reports

    def request_stop(self) -> None:
        """Queues a stop for each worker."""
        self._stop()
        self._own.request_stop()

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads, but not for the one that this is called on."""
        ends_at = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _stop(tasks: "queue.SimpleQueue[object]", turns: Turns, worker_count: int, _: object = None) -> None:
    turns.is_over = True
    for _ in range(worker_count):
        tasks.put(_STOP)


def _work(
    number: int,
    tasks: "queue.SimpleQueue[object]",
    running: list[Unit | None],
    done_counts: list[int],
    turns: Turns,
    client_ref: "weakref.ref[Client]",
) -> None:
    while (task := tasks.get()) is not _STOP and (client := client_ref()) is not None:
        if not isinstance(task, Unit):
            client.pump()
            del client
            continue
        is_turn = turns.begin()
        running[number] = task
        cpu_began = time.thread_time() if turns.are_useful else 0.0
        error: BaseException | None = None
        try:
            client.run(task)
        except BaseException as caught:
            # SystemExit too: a user's function must not end a worker silently.
            error = caught
        running[number] = None
        done_counts[number] += 1
        if is_turn:
            turns.give_back()
        client.finished(task, error)
        if turns.are_useful:
            cpu_s, now_s = time.thread_time() - cpu_began, time.perf_counter()
            turns.note(task.stop - task.start, cpu_s, now_s, has_more=not tasks.empty())
        del task, error, client  # what they hold must not live until the next unit comes
    client = client_ref()
    if client is not None:
        client.leave()
