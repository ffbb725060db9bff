"""The agent: the actor by which one node of a Ray cluster works for a loader on another.

It holds a pool of worker processes and, for each program, a small ring that these write to. The user's functions run in
the workers alone, so the agent itself does not crash or hang with them. It does not unpickle the plan either.

Which thread does what. Ray calls `work` on `SHARE_COUNT` threads, and everything else on one more. A thread of `work`
owns a slot. Ray writes what `work` returned into its object store on that same thread, before the thread takes the next
call. So the views of the slot that `work` returns stay as they are until then.

Each wait, and what ends it. `work` waits for the program, which `open` or `close` ends, and for its units. The pool
finishes every unit, with an error if need be. If the trainer ends, is killed, or calls `ray.kill`, Ray kills this
process, and the system its workers with it.
"""

import importlib.metadata
import platform
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._spec import ArraySpec, Spec
from penstock.lower._batches import put_into, taken_from
from penstock.lower._program import Unit, UnitResult
from penstock.memory._ring import Ring
from penstock.plan._tolerate import Failure
from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import PoolClient, join
from penstock.run.pool._remote_error import dump_error

SHARE_COUNT: Final = 2
"""Shares that an agent holds: its workers run one while the other arrives, or leaves."""
CALL_THREAD: Final = "control"
"""Ray's name for the thread that makes all calls but `work`."""
REQUIRED: Final = ("penstock-data", "numpy", "optree", "cloudpickle")
"""Packages that a node must have in the trainer's version."""
COMPARED: Final = (
    *("opencv-python-headless", "opencv-python", "simplejpeg", "pillow", "scipy", "scikit-image"),
    *("pyarrow", "h5py", "zarr", "google-crc32c", "torch", "torchvision", "tensorflow", "jax", "keras"),
)
"""Packages whose results depend on their version. Their versions are compared where both nodes have them."""


class AgentOpening(NamedTuple):
    """What an agent needs to run units of a program."""

    number: int
    leaves: tuple[ArraySpec, ...]
    """The leaves of a slot."""
    step_count: int
    timeout_s: float


class Answer(NamedTuple):
    """What came of a share."""

    errors: list[bytes | None]
    """For each unit its error, by `dump_error`."""
    failures: list[Sequence[Failure]]
    """For each unit the elements that it set aside."""
    rows: list[Any]
    """The rows of all units together; see `Program.take_rows`. Views of the object store, where they are large."""
    row_s: float
    """How long a worker takes for a row."""
    times: npt.NDArray[np.int64]
    """What the time words of the workers grew by; see `Times`."""
    lines: list[str]
    """Events of the worker processes, for people."""


def versions() -> dict[str, str]:
    """Returns the versions that trainer and agents compare."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in (*REQUIRED, *COMPARED):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@final
class DumpedError(Exception):
    """An error of a worker on its way to the trainer, which alone unpickles it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


@final
class Agent:
    """Runs shares of batches on this node. The methods are Ray's to call.

    Args:
        trainer: The versions at the trainer.
        worker_count: Worker processes; 0 where those of the trainer do the work, and this keeps CPUs for them.
    """

    def __init__(self, trainer: dict[str, str], worker_count: int) -> None:
        here = versions()
        names = {"Python", *REQUIRED, *(here.keys() & trainer.keys())}
        self._differences = [
            f"{name} {here.get(name, '(missing)')}, and the trainer has {trainer.get(name, 'none')}"
            for name in sorted(names)
            if here.get(name) != trainer.get(name)
        ]
        self._worker_count = worker_count
        self._base: PoolClient | None = None
        self._programs: dict[int, Future[_Program | None]] = {}
        """By number; None after `close`."""

    def start(self) -> list[str]:
        """Starts the workers, unless versions differ. Returns the differences."""
        if not self._differences and self._worker_count:
            self._base = join(self._worker_count, [])
        return self._differences

    def progress(self) -> int:
        """Returns a number that grows while workers get on."""
        return self._base.pool.progress if self._base is not None else 0

    def open(self, opening: AgentOpening, payload: tuple[bytes, tuple[npt.NDArray[Any], ...]]) -> None:
        """Opens a program. Its arrays come from the object store, once a node, and workers share a copy of them."""
        future = self._future(opening.number)
        if not future.done():
            future.set_result(_Program(opening, payload, self._worker_count))

    def close(self, number: int) -> None:
        """Gives up the units of a program, and frees what it holds. Does not wait."""
        future = self._future(number)
        if not future.done():
            future.set_result(None)
        elif (program := future.result()) is not None:
            self._programs[number] = Future()
            self._programs[number].set_result(None)
            program.leave()

    def work(self, number: int, place: Any, units: list[tuple[Any, ...]]) -> Answer | None:
        """Runs units of a batch. Returns None if the program was closed.

        Args:
            number: That of the program.
            place: The rows of all units in a slot; see `ParallelProgram.slot_rows`.
            units: The units, as tuples.
        """
        program = self._future(number).result()
        return None if program is None else program.work(place, [Unit(*unit) for unit in units])

    def _future(self, number: int) -> "Future[_Program | None]":
        return self._programs.setdefault(number, Future())  # one operation: several threads may ask


@final
class _Share:
    """Units under way that lie in one slot."""

    def __init__(self, place: Any, units: Sequence[Unit]) -> None:
        self.place, self.start = place, units[0].start
        self.results: dict[int, UnitResult | None] = dict.fromkeys([unit.start for unit in units])
        self.remaining = len(units)
        self.is_done = threading.Event()


@final
class _Program:
    """A program in an agent: its ring, and what its workers know of it. It receives what comes of units."""

    def __init__(
        self, opening: AgentOpening, payload: tuple[bytes, tuple[npt.NDArray[Any], ...]], worker_count: int
    ) -> None:
        # The structure does not matter here, and may be a class of the user's.
        self._spec = Spec.of(tuple(opening.leaves))
        self._ring = Ring(self._spec, SHARE_COUNT, None, is_shared=True, step_count=opening.step_count)
        self._times = self._ring.total_times()
        self._slots: dict[int, int] = {}
        """By thread."""
        self._shares: dict[int, _Share] = {}
        """By slot."""
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._client = join(worker_count, self._lines)
        plan = PlanPayload(*payload)
        # Not kept here: the client drops it at the end, and then nothing holds the ring in a circle.
        self._client.open(plan, self._ring, opening.timeout_s, self).load_error = DumpedError
        self._generation = 0
        self._has_left = False

    def work(self, place: Any, units: Sequence[Unit]) -> Answer | None:
        """Runs units, and returns their rows as views of the slot of this thread."""
        with self._lock:
            if self._has_left:  # the pool would not answer
                return None
            slot = self._slots.setdefault(threading.get_ident(), len(self._slots))
            self._generation += 1
            own = [unit._replace(slot=slot, generation=self._generation) for unit in units]
            share = self._shares[slot] = _Share(place, own)
            pool, task = self._client.pool, self._client.tasks[0]
            pool.post(lambda: pool.submit(task, own))
        share.is_done.wait()
        with self._lock:
            times = self._ring.total_times()
            grown, self._times = times - self._times, times
            lines = self._lines.copy()
            del self._lines[: len(lines)]
        results = [share.results[unit.start] or UnitResult() for unit in own]
        return Answer(
            [_dumped(result.error) for result in results],
            [result.failures for result in results],
            taken_from(self._spec, self._ring.rows(slot), place),
            self._ring.header[-1] / 1e9,
            grown,
            lines,
        )

    def leave(self) -> None:
        """Gives up all units. Those that were submitted are finished by the pool."""
        with self._lock:
            self._has_left = True
            self._client.leave()

    # For the pool; see `Receiver`.

    def describe(self, unit: Unit, status: tuple[int, int, int]) -> str:
        """Returns a mark in place of words, for only the trainer knows the plan; see `_fleet.py`."""
        return f"<unit {unit.start}: {status[0]} {status[1]} {status[2]}>"

    def finished(self, unit: Unit, result: UnitResult) -> Sequence[Unit]:
        """Takes the result of a unit."""
        share = self._shares[unit.slot]
        if result.rows:  # Python objects, which no shared memory holds
            place = share.place
            if place != 0:
                first = place[1].start + unit.start - share.start
                place = 0, slice(first, first + unit.stop - unit.start)
            put_into(self._ring.rows(unit.slot), place, result.rows)
        share.results[unit.start] = result
        share.remaining -= 1
        if not share.remaining:
            share.is_done.set()
        return ()


def _dumped(error: BaseException | None) -> bytes | None:
    if error is None or isinstance(error, DumpedError):
        return None if error is None else error.data
    return dump_error(error, "the pool of an agent")
