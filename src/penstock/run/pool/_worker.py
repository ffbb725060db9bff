"""All that runs in a worker process: it claims units, runs them, and says when they are done.

Started by `_pool.py` as a fresh interpreter that imports penstock and NumPy, and nothing of the user's but what
the functions of a plan ask for. A plan is loaded when its first unit is claimed, so what is wrong with it is
told as that unit's error.

Each wait, and what ends it.
- For a token or a message (`serve`): ended by one, or by the parent's end, which closes both.
- For the message that opens a plan (`_run`): the parent sent it before it queued the first unit of the plan.
- For the board's lock: see `_board.py`.
- To send a message or ring the bell: ended by the parent, which reads them, or by its end.
What ends the worker: the parent closes the control socket; or it kills it; or it dies, and then the system
kills the worker at once, whatever it is doing (Linux), or the next of these waits fails.

SIGINT, SIGTERM and the user's signals are for the parent, which decides. Whoever sends them to a whole group or
container would otherwise take the workers away from a program that wants to finish its work.
"""

import contextlib
import ctypes
import faulthandler
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import cloudpickle

from penstock.base._random import owned_globals
from penstock.base._retries import RetryBudget, UnwantedError, reading_with
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Program, Unit
from penstock.memory._mapping import MemoryFile, map_shared
from penstock.memory._pickles import dumps
from penstock.memory._ring import RingView
from penstock.memory._shared import Place, map_private, read_bytes
from penstock.memory._slot import RingLayout, own_header, ring_header
from penstock.plan._map import Map, learn
from penstock.plan._node import Node, walk
from penstock.plan._reader import WorkerStatus
from penstock.plan._tolerate import FailureFilter
from penstock.run._unit_runner import UnitRunner
from penstock.run.pool._gil import GilClock
from penstock.run.pool._payload import unpack
from penstock.run.pool._remote_error import dump_error
from penstock.run.pool._task_queue import DONE, TOLD, TaskQueue

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGTERM
"""Has a worker write its Python stacks to its control socket, whatever it is doing. Of the signals that nobody else
sends: a worker that ran got SIGSEGV while its frames were walked (seen once in thousands of times, CPython 3.11). That
does no harm to one that is to be replaced."""
PACKET_NBYTES: Final = 1 << 16
"""The most that a message may have; what is larger goes along as a memory file."""
_PR_SET_PDEATHSIG: Final = 1
_FRAMEWORKS: Final = ("jax", "keras", "tensorflow", "torch")


class Opening(NamedTuple):
    """What opens a plan in a worker. With it come the descriptors of the ring, and of the spans of a stream."""

    plan: int
    data: Place
    """The pickled plan, in the pool's shared file: a program, or a `Node` whose specs are asked for."""
    arrays: tuple[Place, ...]
    """Arrays that it refers to."""
    slot_count: int
    """Of the ring."""
    file_nbytes: tuple[int, ...]
    """Of the memory behind the descriptors; none for a plan without a ring."""
    timeout_s: float
    """How long a worker may stand still."""
    directory: str
    """Where the parent was, for functions that open files by relative paths."""
    path: tuple[str, ...]
    """Where the parent finds modules."""


class Closing(NamedTuple):
    """What closes a plan in a worker."""

    plan: int


class Message(NamedTuple):
    """What a worker tells its parent."""

    kind: str
    """`ready`; of a unit: `error`, `objects`, `specs`; of a plan: `imported`, `free` (the GIL)."""
    number: int
    """The place of the unit, or the number of the plan."""
    payload: Any


def main(number: int, parent: int, control: int, board: int, shared: int, tokens: int, bell: int) -> None:
    """Runs a worker until its parent has had enough.

    Args:
        number: The worker's number in its pool.
        parent: The process that started it.
        control: A socket of packets to the parent.
        board: The memory file of the board.
        shared: The memory file of plans and shared arrays.
        tokens: A pipe, read without waiting: a byte for each unit queued.
        bell: A pipe to the parent: a byte when it is to look at the board.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before that
    for descriptor in (control, board, shared, tokens, bell):
        os.set_inheritable(descriptor, False)  # what a function may start has no business with them
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, _ignore)  # a handler, which is not inherited by what a function may start
    faulthandler.register(STACK_SIGNAL, file=control, all_threads=True)
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # what a function prints is not lost if it is killed
    worker = _Worker(number, socket.socket(fileno=control), TaskQueue(board), shared, tokens, bell)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        worker.serve()


def _ignore(signal_number: int, frame: object) -> None:
    """Does nothing."""


@final
class _Worker:
    def __init__(
        self, number: int, control: socket.socket, board: TaskQueue, shared: int, tokens: int, bell: int
    ) -> None:
        self._number = number
        self._control = control
        self._board = board
        self._shared = shared
        self._tokens = tokens
        self._bell = bell
        self._pid = os.getpid()
        self._trace = WorkerStatus(board.trace(number))
        self._plans: dict[int, _Plan] = {}
        self._clocks: dict[int, GilClock] = {}
        """Of plans whose functions are being watched; one worker does it."""
        self._poll = select.poll()
        self._poll.register(tokens, select.POLLIN)
        self._poll.register(control, select.POLLIN)
        self._has_messages = select.poll()
        self._has_messages.register(control, select.POLLIN)

    def serve(self) -> None:
        self._tell("ready", os.getpid(), None)
        while True:
            try:
                if not os.read(self._tokens, 1):
                    return
            except BlockingIOError:
                self._poll.poll()
                if not self._take_messages():
                    return
                continue
            place = self._board.claim(self._number)
            if place is not None:
                self._run(place)

    def _take_messages(self) -> bool:
        """Takes the messages that are there; returns whether the parent wants us to go on."""
        while self._has_messages.poll(0):
            if not self._take_message():
                return False
        return True

    def _take_message(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, PACKET_NBYTES, 2)  # which drops flags (CPython 3.11)
        if not data:
            return False
        message = pickle.loads(data)
        if isinstance(message, Opening):
            self._plans[message.plan] = _Plan(message, descriptors)
        else:
            self._plans.pop(message.plan, None)
            self._clocks.pop(message.plan, None)
        return True

    def _run(self, place: int) -> None:
        number, unit = self._board.entry(place)
        while number not in self._plans:
            if not self._take_message():
                raise BrokenPipeError
        plan = self._plans[number]
        self._trace.words[0] = 0
        self._trace.failures.clear()
        state = DONE
        if unit.generation > plan.words[0]:
            try:
                with reading_with(RetryBudget(plan.words, unit.generation, plan.timeout_s)):  # loading reads too
                    if not plan.is_loaded:
                        self._load(number, plan)
                    with self._watching(number):
                        kind, payload = plan.run(unit, self._trace)
                self._require_own()
                if kind:
                    state = TOLD
                    self._tell(kind, place, payload)
            except UnwantedError:
                self._require_own()
            except BaseException as error:  # SystemExit too: a user's function must not end a worker silently
                self._require_own()
                payload = dump_error(error, f"worker {self._number} (pid {self._pid})"), tuple(self._trace.failures)
                state = TOLD
                self._tell("error", place, payload)
        # Others of a batch that was given up may have been taken from the board: then none is the last.
        if self._board.finish(place, state, plan.words, unit.slot) or unit.generation <= plan.words[0]:
            os.write(self._bell, b"\0")

    def _require_own(self) -> None:
        """Ends a child that a function forked and did not end: there is one of us only."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _load(self, number: int, plan: "_Plan") -> None:
        before, resident, began = set(sys.modules), _resident_nbytes(), time.perf_counter()
        plan.load(self._shared, self._trace, self._number)
        if self._number == 0 and plan.computes:
            self._clocks[number] = GilClock()
            self._clocks[number].start()
        imported = [name for name in _FRAMEWORKS if name in sys.modules and name not in before]
        if imported:
            cost = time.perf_counter() - began, _resident_nbytes() - resident
            self._tell("imported", number, (imported, *cost))

    @contextlib.contextmanager
    def _watching(self, number: int) -> Iterator[None]:
        clock = self._clocks.get(number)
        if clock is None:
            yield
            return
        clock.is_busy = True
        try:
            yield
        finally:
            clock.is_busy = False
            if not clock.is_alive():
                del self._clocks[number]
                if clock.finds_it_free and not self._plans[number].uses_globals:
                    self._tell("free", number, None)

    def _tell(self, kind: str, number: int, payload: Any) -> None:
        self._send(dumps(Message(kind, number, payload)))

    def _send(self, data: bytes) -> None:
        if len(data) <= PACKET_NBYTES:
            self._control.sendall(data)
            return
        try:
            file = MemoryFile(len(data))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: a worker has {len(data):,} bytes to hand over, and no file in memory is left "
                "for them. Does a function leave files open?",
            ) from None
        file.map()[: len(data)] = data
        socket.send_fds(self._control, [pickle.dumps(len(data))], [file.descriptor])
        file.close()


@final
class _Plan:
    """A plan in a worker, loaded when it is first run."""

    def __init__(self, opening: Opening, descriptors: list[int]) -> None:
        self._opening = opening
        self._memories: list[mmap.mmap] = []
        for descriptor, nbytes in zip(descriptors, opening.file_nbytes, strict=True):
            self._memories.append(map_shared(descriptor, nbytes))
            os.close(descriptor)
        self.words = ring_header(self._memories[0], opening.slot_count) if self._memories else own_header()
        self.timeout_s = opening.timeout_s
        self.is_loaded = False
        self._value: Any = None

    def load(self, shared: int, trace: WorkerStatus, number: int) -> None:
        """Unpickles the plan, for the worker of this number. Imports what its functions ask for."""
        sys.path[:] = self._opening.path
        arrays = [map_private(shared, place) for place in self._opening.arrays]
        self._value = unpack(read_bytes(shared, self._opening.data), arrays)
        if isinstance(self._value, Program):
            program, window = self._value, None
            if isinstance(program, ParallelProgram) and (spans := program.spans) is not None:
                window = spans.window(RingLayout(spans.spec, spans.slot_count).slots(self._memories[1]), shared)
            self._runner = UnitRunner(
                program,
                RingView(self._memories[0], program.spec, self._opening.slot_count, program.step_count),
                number,
                isolation=owned_globals,
                status=trace,
                window=window,
                timeout_s=self.timeout_s,
                rows="none" if program.spec.is_bounded else "objects",
            )
        self.is_loaded = True

    @property
    def computes(self) -> bool:
        """Whether it delivers batches that take computation."""
        return not isinstance(self._value, Node) and self._value.computes

    @property
    def uses_globals(self) -> bool:
        """Whether a function draws from global generators, which threads refuse."""
        return any(isinstance(each, Map) and each.memo.learned.uses_globals for each in walk(self._value.node))

    def run(self, unit: Unit, trace: WorkerStatus) -> tuple[str, Any]:
        """Runs a unit; returns the kind and the payload of a message, or two empty ones if there is nothing to say."""
        self._go_there()
        if isinstance(self._value, Node):
            trace.times = None  # those would be another plan's
            takes_any = any(isinstance(each, FailureFilter) for each in walk(self._value))
            learned = learn(self._value, trace, takes_any=takes_any)
            # By value, for a named tuple may be the user's.
            return "specs", cloudpickle.dumps(learned)
        result = self._runner.run(unit)
        if result.error is not None:
            raise result.error
        return ("made", (result.rows, result.failures)) if result.rows or result.failures else ("", None)

    def _go_there(self) -> None:
        # Plans of different times share a worker; and a function may have gone elsewhere.
        if current_directory() != self._opening.directory:
            with contextlib.suppress(OSError):  # it is gone; and most functions do not care
                os.chdir(self._opening.directory)


def current_directory() -> str:
    """Where this process is; nothing where that was deleted meanwhile."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _resident_nbytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
