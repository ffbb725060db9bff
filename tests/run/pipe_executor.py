"""A complete executor that shares no memory with its workers: each is a subprocess at the end of a pipe.

A unit goes to the worker as integers, and its rows come back in `UnitResult`. This file is the worker's program too.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, BinaryIO

from penstock.base._errors import WorkerError
from penstock.base._random import owned_globals
from penstock.base._threads import start_thread
from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._mapping import private
from penstock.memory._ring import Ring, RingView
from penstock.memory._slot import RingLayout
from penstock.run._unit_runner import UnitRunner
from penstock.run.executors._executor import Client, Executor
from penstock.run.executors._request import ExecutorRequest
from penstock.run.pool._payload import pack, unpack
from penstock.run.pool._remote_error import dump_error, load_error

WAKE, STOP = object(), object()
_idle: "list[Worker]" = []
_users: set[int] = set()  # workers wait for the next executor, and end with the last


class PipeExecutor(Executor):
    """Runs units in subprocesses. A thread for each sends units and waits for results."""

    name = "pipe"
    reach = "machine"

    def __init__(self, client: Client, request: ExecutorRequest) -> None:
        self.worker_count = self.queue_target = request.worker_count
        self._timeout_s = request.timeout_s
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done_counts = [0] * request.worker_count
        self._client = weakref.ref(client, lambda _: self.request_stop())
        self._threads: list[threading.Thread] = []

    def begin(self, program: Program, ring: Ring, inputs: object = None) -> None:
        payload = pack(program.node, program)
        opening = pickle.dumps(pickle.dumps((sys.path, payload.data, payload.arrays, self._timeout_s)))
        _users.add(id(self))
        for number in range(self.worker_count):
            arguments = self._tasks, number, opening, self._client, self._done_counts
            self._threads.append(threading.Thread(target=serve, args=arguments, daemon=True))
            start_thread(self._threads[-1])

    def wake(self) -> None:
        self._tasks.put(WAKE)

    def progress(self) -> object:
        return tuple(self._done_counts)

    def request_stop(self) -> None:
        for _ in range(self.worker_count):
            self._tasks.put(STOP)

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads, and with the last executor for the workers."""
        for thread in self._threads:
            thread.join(timeout_s)
        _users.discard(id(self))
        while _idle and not _users:
            _idle.pop().end()
        return not any(thread.is_alive() for thread in self._threads)


def serve(tasks: Any, number: int, opening: bytes, client_ref: Any, done_counts: list[int]) -> None:
    worker = _idle.pop() if _idle else Worker()
    worker.open(opening)
    while (task := tasks.get()) is not STOP and (client := client_ref()) is not None:
        if task is WAKE:
            units = client.issue()
        else:
            units = client.finished(task, worker.run(task, client))
            done_counts[number] += 1
        for unit in units:
            tasks.put(unit)
        del task, client
    _idle.append(worker)


class Worker:
    """The parent's end of the pipe to a worker, which it replaces when it dies."""

    _process: Any = None

    def open(self, opening: bytes) -> None:
        if self._process is None:
            pipe, root = subprocess.PIPE, Path(__file__).parents[2]
            self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, cwd=root)
        self._opening = opening
        self._send(opening)

    def _send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, unit: Unit, client: Client) -> UnitResult:
        try:
            self._send(pickle.dumps(tuple(unit)))
            dumped, *rest = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            code, self._process = self._process.wait(), None
            self.open(self._opening)
            return UnitResult(WorkerError(f"A worker ended with {code} at {client.describe(unit, (0, 0, 0))}."))
        return UnitResult(None if dumped is None else load_error(dumped), *rest)


def work(calls: BinaryIO, answers: BinaryIO) -> None:
    runner: Any = None
    with contextlib.suppress(EOFError):
        while True:
            message = pickle.load(calls)
            if isinstance(message, bytes):
                runner = opened(*pickle.loads(message))
                continue
            error, *rest = runner.run(Unit(*message)._replace(slot=0, generation=1))
            dumped = None if error is None else dump_error(error, f"worker 0 (pid {os.getpid()})")
            pickle.dump((dumped, *rest), answers)
            answers.flush()


def opened(path: list[str], data: bytes, arrays: Any, timeout_s: float) -> UnitRunner:
    sys.path[:] = path
    program = unpack(data, arrays)
    layout = RingLayout(program.spec, 1, program.step_count)
    slot = RingView(private(layout.nbytes), layout)
    return UnitRunner(program, slot, isolation=owned_globals, timeout_s=timeout_s, reach="machine")


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print must not get into the pipe
    work(sys.stdin.buffer, pipe)
