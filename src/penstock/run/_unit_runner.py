"""Runs the units of one program on one worker. All executors use it: inline, threads, feeds and worker processes.

A `UnitRunner` belongs to one worker, so nothing here takes a lock. It writes to the header and the time words of a
ring, which other workers write too. A note that another worker overwrites costs nothing: see `note_time`, `Times`.
"""

import math
import threading
import time
from abc import abstractmethod
from functools import partial
from typing import Any, final

from penstock.base._random import seeded_globals
from penstock.base._reach import Reach
from penstock.base._retries import RetryBudget, UnwantedError, exchanged
from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._ring import Ring, RingView
from penstock.memory._slot import note_time
from penstock.memory._times import Times
from penstock.plan._reader import WorkerStatus
from penstock.plan._text import place_of
from penstock.run.executors._executor import Client, Executor


@final
class UnitRunner:
    """Runs units of a program, one after the other.

    Args:
        program: The program.
        memory: Where units write.
        number: The worker's number among those of the program.
        isolation: How global random generators are seeded for each element; None where they are not.
        status: Where the worker writes what it is working on.
        inputs: What units read from rings that others fill; see `Program.reader`.
        timeout_s: How long a worker may stand still.
        reach: What the worker shares with the process that takes its results. This decides which rows a result carries.
    """

    def __init__(
        self,
        program: Program,
        memory: RingView,
        number: int = 0,
        *,
        isolation: type[seeded_globals] | None,
        status: WorkerStatus | None = None,
        inputs: Any = None,
        timeout_s: float = math.inf,
        reach: Reach = "thread",
    ) -> None:
        self._program = program
        self._memory = memory
        self._timeout_s = timeout_s
        self._reach = reach
        self._carries_rows = reach == "machine" or (reach == "process" and not program.spec.is_bounded)
        self._reader = program.reader(isolation, status, inputs)
        self.status: WorkerStatus = self._reader.status
        self._describe = partial(place_of, plan=program.node)
        self.times: Times | None = Times(memory.times[number % len(memory.times)])

    def run(self, unit: Unit) -> UnitResult:
        """Runs a unit and measures it.

        A unit that is abandoned while it waits to repeat a read ends early, without an error.

        Raises:
            BaseException: An error that is no `Exception`, such as `KeyboardInterrupt`. The unit may run again.
        """
        status, header = self.status, self._memory.header
        times = status.times = self.times
        began = time.perf_counter()
        if times is not None:
            times.begin()
        status.words[0] = 0
        status.failures.clear()
        status.is_poisoned = unit.is_poisoned
        place = unit.epoch, unit.index
        budget = RetryBudget(
            header,
            unit.generation,
            self._timeout_s,
            place,
            self._program.room_nbytes,
            self._reach == "thread",
            status.read,
            self._describe,
        )
        before: RetryBudget | None = None
        rows: Any = ()
        error: Exception | None = None
        count = 0
        try:
            before = exchanged(budget)
            count = self._program.run(self._reader, unit, self._memory)
            if self._carries_rows:
                out = self._memory.rows(unit.slot)
                rows = self._program.take_rows(unit, out, is_shared=self._reach == "process")
        except UnwantedError:
            pass
        except Exception as caught:
            error = caught
        finally:
            exchanged(before)
            wall_s = time.perf_counter() - began
            # A server takes as long for many rows as for one, so waiting for it says nothing about the size of units.
            seconds = max(0.0, wall_s - budget.waited_s)
            note_time(header, unit.stop - unit.start, seconds)
            if times is not None:
                times.end(wall_s, count)
                if budget.needed_nbytes or budget.waited_s:
                    times.note_traffic(budget)
        try:
            return UnitResult(error, rows, tuple(status.failures), seconds if self._reach == "machine" else 0.0)
        finally:
            del error  # its traceback holds this frame

    def close(self) -> None:
        """Closes what the worker holds open, and drops its views of the ring."""
        self.times = self.status.times = None
        self._program.close(self._reader)


class LocalClient(Client):
    """What `Delivery` and `Feed` have in common: a lock, and runners for the units that run in this process.

    Each worker thread has a runner.

    Args:
        program: The program of the units.
        timeout_s: How long a worker may stand still.
        lock: Guards what decides which units run.
    """

    ring: Ring
    _executor: Executor

    def __init__(self, program: Program, timeout_s: float, lock: threading.Lock) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._lock = lock
        self._runners: dict[int, UnitRunner] = {}
        """By thread. Each adds and removes its own."""

    @abstractmethod
    def _issue(self) -> list[Unit]:
        """Returns units to run, with the lock held."""

    @abstractmethod
    def _is_wanted(self, unit: Unit) -> bool:
        """Returns whether the result of a unit matters."""

    def _inputs(self) -> Any:
        """Returns what units of this process read from rings that others fill; see `Program.reader`."""
        return None

    def issue(self) -> list[Unit]:
        """See `Client`."""
        with self._lock:
            return self._issue()

    def run(self, unit: Unit) -> UnitResult:
        """Runs a unit on the calling thread, unless it is not wanted any more."""
        if not self._is_wanted(unit):
            return UnitResult()
        key = threading.get_ident()
        runner = self._runners.get(key)
        if runner is None:
            runner = self._runners[key] = UnitRunner(
                self._program,
                self.ring,
                len(self._runners),
                isolation=None,  # other threads run elements at the same time
                inputs=self._inputs(),
                timeout_s=self._timeout_s,
            )
        return runner.run(unit)

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """See `Client`."""
        return place_of(status, self._program.node) if status[0] else self._program.describe(unit)

    def statuses(self) -> list[tuple[int, int, int]]:
        """Returns what each worker of this process is working on."""
        return [runner.status.read() for runner in self._runners.copy().values()]  # a copy is one operation

    def leave(self) -> None:
        """Closes the runner of the calling thread."""
        if (runner := self._runners.pop(threading.get_ident(), None)) is not None:
            runner.close()

    def _close_runners(self) -> None:
        for runner in self._runners.copy().values():
            runner.close()
        self._runners.clear()
