"""A worker process as its parent sees it: its start, messages to and from it, its end and the cause of that.

Only the thread of a pool uses it, and nothing here waits.
"""

import contextlib
import errno
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

from penstock.base._units import size_text
from penstock.memory._mapping import MemoryFile, map_shared
from penstock.run.pool._interpreter import WORKER_OF, interpreter
from penstock.run.pool._memory_limit import NO_MEMORY, words_of_limit
from penstock.run.pool._worker import PACKET_NBYTES, STACK_SIGNAL, Closing, Message, Opening

_THREAD_COUNTS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Libraries read here how many threads to start: as many as a worker's share of the CPUs."""
_HEAP: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MIMALLOC_ARENA_EAGER_COMMIT": "0",
}
"""Makes glibc keep up to 128 MiB of freed memory for the next element. Arrays above 32 MiB, its largest threshold, go
back to the system. Measured 2026-11, NumPy augmentations: 546 pictures/s before, 883 with it.

The last one is for the heap of Arrow, which else takes a gigabyte of the limit of memory when it is first used. Parquet
is decoded as fast with it; with the heap of glibc (`ARROW_DEFAULT_MEMORY_POOL=system`) it took 1.4 times as long."""
_PICKLE: Final = pickle.dumps(None)[:1]
"""The first byte of a message. Anything else is text of faulthandler."""


@final
class WorkerProcess:
    """One worker process.

    Args:
        number: Its number in the pool; a replacement has that of the one before.
        channels: The descriptors that all workers share, in the order of the arguments of `main`.
        thread_count: How many threads BLAS and the like may start in it.

    Raises:
        OSError: The system starts no more processes, or is a Linux before 5.3.
    """

    def __init__(self, number: int, channels: Sequence[int], thread_count: int) -> None:
        self.number = number
        self.is_ready = False
        self.silent_at = 0.0
        """When the pool noticed that the worker's end of the socket is closed; 0 before."""
        self.is_silent = False
        self.is_polled = True
        """Whether the pool still waits for messages."""
        self.ending: str | None = None
        """How it ended, once it is reaped: `was killed by signal 9 (SIGKILL)`."""
        self.was_stopped = False
        self.stack = ""
        """The stack that it wrote when it was asked for it."""
        self.asked_at = 0.0
        """When it was asked for its stack, before it is killed; 0 while it is well."""
        self.started_at = time.monotonic()
        self.seen: object = None
        """Its state at the last look."""
        self.seen_at = 0.0
        self.outbox: deque[tuple[bytes, Sequence[MemoryFile]]] = deque()
        """Messages for which there was no room."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(self.socket.close)
            arguments = (number, os.getpid(), theirs.fileno(), *channels)
            script = (
                f"import sys; sys.path[:] = {[path for path in sys.path if type(path) is str]!r}; "
                f"from penstock.run.pool._worker import main; main{arguments}"
            )
            self._process = subprocess.Popen(
                [interpreter(), "-P", "-X", f"utf8={sys.flags.utf8_mode}", "-c", script, f"penstock worker {number}"],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *channels),
                env=_HEAP | os.environ | _thread_counts(thread_count) | {WORKER_OF: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is for the parent
            )
            self.pidfd = os.pidfd_open(self._process.pid)
            on_error.pop_all()
        self.pid = self._process.pid
        self._limit_nbytes: int = resource.RLIM_INFINITY
        self._own_peak_nbytes = 0
        self._inherited_nbytes = _peak_nbytes(os.getpid())
        self.socket.setblocking(False)

    def __str__(self) -> str:
        return f"Worker {self.number} (pid {self.pid})"

    def send(self, message: Opening | Closing, files: Sequence[MemoryFile] = ()) -> None:
        """Sends a message and the descriptors of files, now or once `flush` finds room."""
        self.outbox.append((pickle.dumps(message), files))
        self.flush()

    def flush(self) -> bool:
        """Sends the messages that wait; returns whether all of them went."""
        if self.ending is not None or self.is_silent:
            self.outbox.clear()
        try:
            while self.outbox:
                data, files = self.outbox[0]
                if all(file.descriptor >= 0 for file in files):  # else closed meanwhile, and a closing follows
                    socket.send_fds(self.socket, [data], [file.descriptor for file in files])
                self.outbox.popleft()
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):  # it ended, which is noticed elsewhere
            self.outbox.clear()
        return True

    def messages(self) -> Iterator[Message]:
        """Takes the messages that are there, and keeps the text of a stack in `stack`."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, PACKET_NBYTES + 1024, 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.is_silent = True
                return
            if not data.startswith(_PICKLE):
                self.stack += data.decode(errors="replace")
                continue
            value: Any = pickle.loads(data)
            if isinstance(value, int) and not descriptors:
                raise OSError(
                    errno.EMFILE,
                    f"{self} sent {size_text(value)} in a file, and this process has as many files open as it may. "
                    "Close some, or allow more (ulimit -n)",
                )
            for descriptor in descriptors:
                value = pickle.loads(map_shared(descriptor, value))
                os.close(descriptor)
            yield value

    @property
    def standstill(self) -> str:
        """Where it stood still, for messages."""
        return "was stopped, by SIGSTOP." if self.was_stopped else f"was here:\n{_user_lines(self.stack)}\n"

    def look_at_memory(self) -> None:
        """Notes its memory, which the system does not report after its end."""
        self._own_peak_nbytes = max(self._own_peak_nbytes, _peak_nbytes(self.pid))

    def ask_for_stack(self) -> None:
        """Makes it write its stack, unless it was stopped (SIGSTOP). The pool kills it afterwards."""
        self.asked_at = time.monotonic()
        with contextlib.suppress(OSError):
            self.was_stopped = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        self._signal(STACK_SIGNAL)

    def kill(self) -> None:
        """Ends it, whatever it is doing."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # By descriptor: if the user's code reaps all children, the system may have given the number to another process.
        with contextlib.suppress(ProcessLookupError):
            if self.ending is None:
                signal.pidfd_send_signal(self.pidfd, number)

    def dismiss(self) -> None:
        """Makes it end after its unit."""
        with contextlib.suppress(OSError):  # it has ended
            self.socket.shutdown(
                socket.SHUT_RDWR
            )  # closing is not enough: a child that the user forked may have a copy
        self.socket.close()

    def reap(self) -> bool:
        """Reaps it if it has ended, and closes what was open for it; returns whether it has ended."""
        if self.ending is not None:
            return True
        peak_nbytes = 0
        with contextlib.suppress(ProcessLookupError):
            self._limit_nbytes, _ = resource.prlimit(self.pid, resource.RLIMIT_DATA)  # until it is reaped
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            peak_nbytes = usage.ru_maxrss * 1024  # it counts what the process was before exec(), a copy of this one
            if peak_nbytes <= self._inherited_nbytes:
                peak_nbytes = self._own_peak_nbytes
            code: int | None = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # the user's code may have waited for all children
            code = None
        self._process.returncode = self._code = code if code is not None else 0
        self.socket.close()
        os.close(self.pidfd)
        self.ending = _ending(code, peak_nbytes)
        return True

    def likely_cause(self) -> str:
        """The likely cause of its end, for messages."""
        if self._code == -signal.SIGKILL:
            return "SIGKILL is most often the system running out of memory."
        if self._code == NO_MEMORY:
            return f"It got no memory, and earlier elements held it. {words_of_limit(self._limit_nbytes)}"
        if self._code == -signal.SIGABRT and self._limit_nbytes != resource.RLIM_INFINITY:
            return f"Compiled code aborts when it gets no memory. {words_of_limit(self._limit_nbytes)}"
        if self._code < 0:
            return "A crash like that comes from compiled code."
        return "Something there ends the process, such as os._exit()."


def _ending(code: int | None, peak_nbytes: int) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    memory = f", with a peak memory of {size_text(peak_nbytes)}," if peak_nbytes else ""
    return f"was killed by signal {-code}{name}{memory}"


def _peak_nbytes(pid: int) -> int:
    """Peak resident memory of a living process; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _thread_counts(count: int) -> dict[str, str]:
    return {
        name: value if (value := os.environ.get(name, "")).isdigit() and 0 < int(value) <= count else str(count)
        for name in _THREAD_COUNTS
    }


def _user_lines(stack: str) -> str:
    """A stack without the frames of this package, which are below each of the user's."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    ours = tuple(os.path.join(package, room, "") for room in ("base", "lower", "memory", "plan", "run"))
    return "\n".join(line for line in stack.strip().splitlines() if not any(room in line for room in ours))
