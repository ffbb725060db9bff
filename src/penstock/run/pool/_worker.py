"""All that runs in a worker process: it takes units, runs them, and answers when they are done.

The parent starts it as a fresh interpreter that imports penstock and NumPy, and of the user's modules only what the
functions of a plan need. A task is loaded when its first unit is claimed, so an error in loading it is that unit's.

Each wait, and what ends it.
- For a unit or a message (`_wait`): ended by one, or by the parent's end, which closes both.
- For the message that opens a task (`_task`): the parent sent it before the first unit of the task.
- To send a message or an answer: ended by the parent, which reads it, or by the parent's end.
- To send a log record: see `_logs.py`.
What ends the worker: the parent closes the control socket, or kills the worker, or dies. If the parent dies, the system
kills the worker at once, whatever it is doing (Linux); or else the next of these waits fails.

SIGINT, SIGTERM and the user's signals are for the parent, which decides. If they are sent to a whole group or
container, the workers stay, so that the program can finish its work.
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
from typing import Any, Final, NamedTuple, final

import cloudpickle

from penstock import native
from penstock.base._errors import PenstockError, TravelError, lacks_memory, words_of
from penstock.base._random import owned_globals
from penstock.base._retries import RetryBudget, UnwantedError, reading_with
from penstock.lower._analysis import guards_of
from penstock.lower._batches import ParallelProgram
from penstock.lower._parts import PartProgram
from penstock.lower._program import Program, Unit, UnitResult
from penstock.memory._mapping import MemoryFile, map_shared
from penstock.memory._part_memory import SharedParts
from penstock.memory._pickles import dumps
from penstock.memory._ring import RingView
from penstock.memory._rows import Window
from penstock.memory._shared import Place, map_private, read_bytes
from penstock.memory._slot import RingLayout, count_place, own_header, ring_header
from penstock.plan._map import learn
from penstock.plan._node import Node
from penstock.plan._reader import WorkerStatus
from penstock.run._unit_runner import UnitRunner
from penstock.run.pool._interpreter import WORKER_OF, begin_worker, loading
from penstock.run.pool._logs import Sender, follow_levels
from penstock.run.pool._memory_limit import MemoryLimit, room_of
from penstock.run.pool._payload import unpack
from penstock.run.pool._remote_error import dump_error
from penstock.run.pool._task_queue import ANSWER, TAKING, UNIT, own_words, unpacked, worker_words

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGTERM
"""Makes a worker write its Python stacks to its control socket, whatever it is doing. It is a signal without
another use, because walking the frames of a worker that runs can crash it (seen once in thousands of times, CPython
3.11). That does no harm to a worker that is about to be replaced."""
PACKET_NBYTES: Final = 1 << 16
"""The largest message. A larger one goes along as a memory file."""
_PR_SET_PDEATHSIG: Final = 1


class Opening(NamedTuple):
    """Opens a task in a worker. With it come the descriptors of the ring, and of what units read that others made."""

    task: int
    data: Place
    """What was pickled, in the pool's shared file: a program or a `Probe`."""
    arrays: tuple[Place, ...]
    """Arrays that it refers to."""
    slot_count: int
    """Slots of the ring."""
    file_nbytes: tuple[int, ...]
    """Sizes of the memory behind the descriptors; none for a task without a ring."""
    timeout_s: float
    """How long a worker may stand still."""
    directory: str
    """The parent's working directory, for functions that open files by relative paths."""
    path: tuple[str, ...]
    """Where the parent finds modules."""
    levels: Place
    """The pickled levels of the parent's loggers, in the pool's shared file."""


class Closing(NamedTuple):
    """Closes a task in a worker."""

    task: int


class Probe(NamedTuple):
    """A plan whose specs are asked for."""

    plan: Node
    room_nbytes: float
    """See `Program`."""


class Message(NamedTuple):
    """A message from a worker to its parent."""

    kind: str
    """`ready`; of a unit: `error`, `made`."""
    number: int
    """The number of the job."""
    payload: Any


def main(
    number: int, parent: int, control: int, units: int, answers: int, words: int, wakeup: int, logs: int, shared: int
) -> None:
    """Runs a worker until its parent dismisses it.

    Args:
        number: The worker's number in its pool.
        parent: The process that started it.
        control: A socket of packets to the parent.
        units: The pipe of units, read without waiting.
        answers: The pipe of answers.
        words: The memory file of claims and statuses; see `_task_queue.py`.
        wakeup: The pipe that wakes the parent, written without waiting.
        logs: The socket for log records.
        shared: The memory file of plans and shared arrays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before that
    os.environ.pop(WORKER_OF, None)
    begin_worker()
    for descriptor in (control, units, answers, words, wakeup, logs, shared):
        os.set_inheritable(descriptor, False)  # or processes that a function starts would keep them open
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, lambda *_: None)  # a handler: SIG_IGN would be inherited by what a function starts
    faulthandler.register(STACK_SIGNAL, file=control, all_threads=True)
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # what a function prints is not lost if it is killed
    Sender(logs, number).install()
    worker = _Worker(number, socket.socket(fileno=control), units, answers, worker_words(words), wakeup, shared)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        worker.serve()


@final
class _Worker:
    def __init__(
        self,
        number: int,
        control: socket.socket,
        units: int,
        answers: int,
        words: "memoryview[int]",
        wakeup: int,
        shared: int,
    ) -> None:
        self._number = number
        self._control = control
        self._units = units
        self._answers = answers
        self._wakeup = wakeup
        self._shared = shared
        self._pid = os.getpid()
        self._claim, status = own_words(words, number)
        self._status = WorkerStatus(status)
        self._tasks: dict[int, _OpenTask] = {}
        self._limit = MemoryLimit()
        self._poll = select.poll()
        self._poll.register(units, select.POLLIN)
        self._poll.register(control, select.POLLIN)
        self._has_messages = select.poll()
        self._has_messages.register(control, select.POLLIN)

    def serve(self) -> None:
        self._send("ready", os.getpid(), None)
        units, claim, where = self._units, self._claim, self._status.words
        while True:
            where[0] = 0
            claim[0] = TAKING
            try:
                data = os.read(units, UNIT.size)
            except BlockingIOError:
                claim[0] = 0
                if not self._wait():
                    return
                continue
            if not data:
                return
            number, task_number, unit = unpacked(data)
            claim[0] = number
            task = self._tasks.get(task_number) or self._task(task_number)
            self._answer(number, task, unit.slot, has_message=self._run(number, task, unit))

    def _answer(self, number: int, task: "_OpenTask", slot: int, *, has_message: bool) -> None:
        """Answers a unit, and wakes the parent if it was the last one of its slot. In this order: see `_task_queue`."""
        os.write(self._answers, ANSWER.pack(number, self._number, has_message))
        if native.count_down(task.header, count_place(slot), 1) <= 0:
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
                os.write(self._wakeup, b"\0")

    def _wait(self) -> bool:
        """Waits for a unit or a message; returns whether the parent wants this worker to go on."""
        self._poll.poll()
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
            self._tasks[message.task] = _OpenTask(message, descriptors)
        else:
            self._tasks.pop(message.task, None)
            self._set_limit()
        return True

    def _task(self, number: int) -> "_OpenTask":
        while number not in self._tasks:
            if not self._take_message():
                raise BrokenPipeError
        return self._tasks[number]

    def _run(self, number: int, task: "_OpenTask", unit: Unit) -> bool:
        """Runs a unit. Sends its rows, failures or error, and returns whether there are any."""
        self._status.failures.clear()
        if unit.generation <= task.header[0]:
            return False
        result = None
        try:
            if not task.is_loaded:
                self._load(task, unit)
            result = task.run(unit, self._status)
            self._require_own()
            if result.error is not None:
                raise result.error
            if result.rows or result.failures:
                self._send("made", number, (result.rows, result.failures))
                return True
        except UnwantedError:
            self._require_own()
        except BaseException as error:  # SystemExit too: a user's function must not end a worker silently
            self._require_own()
            if self._status.on_lack is not None and lacks_memory(error):
                with contextlib.suppress(Exception):  # it may be a frozen dataclass
                    error.add_note(self._status.on_lack())
            dumped = dump_error(error, f"worker {self._number} (pid {self._pid})")
            self._send("error", number, (dumped, tuple(self._status.failures)))
            return True
        finally:
            del result  # its error holds this frame
        return False

    def _require_own(self) -> None:
        """Ends a child that a function forked and did not end: there is only one of us."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _load(self, task: "_OpenTask", unit: Unit) -> None:
        with reading_with(RetryBudget(task.header, unit.generation, task.timeout_s)):  # loading may read files
            self._limit.lift()
            try:
                task.load(self._shared, self._status, self._number)
            finally:
                self._set_limit()

    def _set_limit(self) -> None:
        self._limit.set(task.room_nbytes for task in self._tasks.values() if task.is_loaded)
        self._status.on_lack = self._limit.on_lack if self._limit.is_set else None

    def _send(self, kind: str, number: int, payload: Any) -> None:
        data = dumps(Message(kind, number, payload))
        if len(data) <= PACKET_NBYTES:
            self._control.sendall(data)
            return
        try:
            file = MemoryFile(len(data))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: a worker has {len(data):,} bytes to hand over, and cannot open another file in "
                "memory for them. Does a function leave files open?",
            ) from None
        file.map()[: len(data)] = data
        socket.send_fds(self._control, [pickle.dumps(len(data))], [file.descriptor])
        file.close()


@final
class _OpenTask:
    """A task in a worker, loaded when its first unit runs."""

    def __init__(self, opening: Opening, descriptors: list[int]) -> None:
        self._opening = opening
        self._memories: list[mmap.mmap] = []
        for descriptor, nbytes in zip(descriptors, opening.file_nbytes, strict=True):
            self._memories.append(map_shared(descriptor, nbytes))
            os.close(descriptor)
        self.number = opening.task
        self.header = ring_header(self._memories[0], opening.slot_count) if self._memories else own_header()
        self.timeout_s = opening.timeout_s
        self.is_loaded = False
        self.room_nbytes = 0.0
        """See `room_of`, once it is loaded."""
        self._value: Any = None

    def load(self, shared: int, status: WorkerStatus, number: int) -> None:
        """Unpickles the plan, for the worker of this number. Imports what its functions need."""
        sys.path[:] = self._opening.path
        levels = pickle.loads(read_bytes(shared, self._opening.levels))
        follow_levels(*levels)
        arrays = [map_private(shared, place) for place in self._opening.arrays]
        try:
            with loading():
                self._value = unpack(read_bytes(shared, self._opening.data), arrays)
        except PenstockError:
            raise
        except Exception as error:
            raise TravelError(
                f"A worker process cannot make an object again that came with the functions of this dataset: "
                f"{words_of(error)}. Make it inside the function, or use executor='threads'."
            ) from error
        follow_levels(*levels)  # modules may set others when they are imported
        if isinstance(self._value, Program):
            program = self._value
            inputs: Window | SharedParts | None = None
            if isinstance(program, ParallelProgram) and (spans := program.spans) is not None:
                inputs = spans.window(RingLayout(spans.spec, spans.slot_count).slots(self._memories[1]), shared)
            elif len(self._memories) > 1 and isinstance(program, (ParallelProgram, PartProgram)):
                inputs = SharedParts(program.part_count, 0, self._memories[1])
            self._runner = UnitRunner(
                program,
                RingView(self._memories[0], RingLayout(program.spec, self._opening.slot_count, program.step_count)),
                number,
                isolation=owned_globals,
                status=status,
                inputs=inputs,
                timeout_s=self.timeout_s,
                reach="process",
            )
        self.room_nbytes = room_of(self._value.room_nbytes)
        self.is_loaded = True

    def run(self, unit: Unit, status: WorkerStatus) -> UnitResult:
        """Runs a unit. Its result carries objects that have no place in the slot, or the pickled specs of a plan."""
        # Tasks of different times share a worker, and a function may change the directory.
        if current_directory() != self._opening.directory:
            with contextlib.suppress(OSError):  # it is gone, and most functions do not need it
                os.chdir(self._opening.directory)
        if isinstance(self._value, Probe):
            plan = self._value.plan
            status.times = None  # those would be another task's
            learned = learn(plan, status, takes_any=bool(guards_of(plan)))
            return UnitResult(rows=(cloudpickle.dumps(learned),))  # by value, for a named tuple may be the user's
        return self._runner.run(unit)


def current_directory() -> str:
    """The working directory of this process; empty where that was deleted meanwhile."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
