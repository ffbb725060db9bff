"""Sources that count, fail by a table, wait, or kill: fakes for tests of everything that reads.

They travel to worker processes, and a copy is the same fake: what it does is counted here, and a gate that is opened
here opens there. Their state ends with the object that the test has made, so that must live as long as its copies.
"""

import faulthandler
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Literal, NoReturn, TypeVar, final

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.testing._shared import SharedLog, SharedSignal

T = TypeVar("T")

Fault = Literal["kill", "exit", "segfault", "stop", "hang"]
"""What befalls a worker: SIGKILL; `os._exit(3)`; a real segmentation fault; SIGSTOP; a wait that nothing ends."""
_FAULTS = ("kill", "exit", "segfault", "stop", "hang")


class _Wrapper(Source):
    """A source around another, which has a look at what is asked for; several threads and processes read at once."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.element_spec: Tree = inner.element_spec

    def __len__(self) -> int:
        return len(self._inner)

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self._inner}"

    def describe(self, index: int) -> str:
        """As what is wrapped."""
        return self._inner.describe(index)

    def advise(self, indices: Indices) -> None:
        """As what is wrapped."""
        self._inner.advise(indices)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Has a look at the elements that are asked for, then reads them."""
        self._look(indices)
        self._inner.read_into(indices, out)

    def _look(self, indices: Indices) -> None:
        raise NotImplementedError


@final
class CountingSource(_Wrapper):
    """Counts how often each element is read, and is announced, in all processes together."""

    def __init__(self, inner: Source) -> None:
        super().__init__(inner)
        self._reads = SharedLog()
        self._advised = SharedLog()

    @property
    def reads(self) -> Counter[int]:
        """For each element, how often it was read so far."""
        return Counter(self._reads.values().tolist())

    @property
    def advised(self) -> Counter[int]:
        """For each element, how often it was announced so far."""
        return Counter(self._advised.values().tolist())

    def advise(self, indices: Indices) -> None:
        """Counts, and passes it on."""
        self._advised.append(indices)
        super().advise(indices)

    def _look(self, indices: Indices) -> None:
        self._reads.append(indices)


class _Table(Generic[T]):
    """What happens at an element: the same each time, or by a sequence the first, second, ... time."""

    def __init__(self, entries: Mapping[int, T | Sequence[T | None]], single: type) -> None:
        self._entries: dict[int, Any] = dict(entries)
        self._single = single
        """The type of what happens, which tells it from a sequence: a text is one too."""
        self._log = SharedLog()

    def next(self, index: int) -> T | None:
        """What happens at an element now; of two processes that ask at once, one is the first."""
        entry = self._entries.get(index)
        if not isinstance(entry, Sequence) or isinstance(entry, self._single):
            return entry  # type: ignore[return-value]  # a T that is a sequence was recognised by its type
        length = self._log.append(np.array([index], np.int64))
        time = int(np.count_nonzero(self._log.values(length) == index)) - 1
        return entry[time] if time < len(entry) else None


@final
class FailingSource(_Wrapper):
    """Fails by a table.

    Args:
        inner: The source that is read.
        failures: For an element, the exception that reading it raises: one for every time, or a sequence for
            the first, second, ... time, in whichever process, with None for a time that succeeds. After its
            end, reads succeed.

    Example:
        >>> from penstock.sources.arrays import RangeSource
        >>> from penstock.testing import FailingSource
        >>> flaky = penstock.from_source(FailingSource(RangeSource(9), {7: [OSError("gone"), None]}))
        >>> flaky[7]
        Traceback (most recent call last):
        OSError: gone
        A source raised it, asked for 1 element, first the integer 7.
        >>> flaky[7]
        np.int64(7)
    """

    def __init__(self, inner: Source, failures: Mapping[int, Exception | Sequence[Exception | None]]) -> None:
        super().__init__(inner)
        self._table = _Table(failures, Exception)

    def _look(self, indices: Indices) -> None:
        for index in indices.tolist():
            error = self._table.next(index)
            if error is not None:
                raise error


@final
class GatedSource(_Wrapper):
    """Holds readers of some elements at a gate until a test opens it.

    Args:
        inner: The source behind the gate.
        closed: The elements that wait.
        deadline_s: How long anybody waits, reader or test, before that is a `TimeoutError`: no test hangs.
    """

    def __init__(self, inner: Source, closed: Collection[int], deadline_s: float = 10.0) -> None:
        super().__init__(inner)
        self._closed = frozenset(closed)
        self._deadline_s = deadline_s
        self._gate = SharedSignal()
        self._arrivals = SharedLog()
        self._arrival = SharedSignal()
        self._lock = threading.Lock()
        """One thread at a time waits for an arrival, for it takes the signal back."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = threading.Lock()

    def open_gate(self) -> None:
        """Lets everybody pass, now and later."""
        self._gate.give()

    def wait_for_reads(self, elements: Collection[int]) -> None:
        """Waits until each of these elements was asked for; a closed one then has a reader at the gate.

        Raises:
            TimeoutError: One was not asked for within the deadline.
        """
        wanted, ends_at = set(elements), time.monotonic() + self._deadline_s
        with self._lock:
            while missing := wanted - set(self._arrivals.values().tolist()):
                if not self._arrival.wait(ends_at - time.monotonic()):
                    raise TimeoutError(f"no worker read elements {sorted(missing)} within {self._deadline_s} s")
                self._arrival.reset()  # before the look at who arrived

    def _look(self, indices: Indices) -> None:
        for index in indices.tolist():
            self._arrivals.append(np.array([index], np.int64))
            self._arrival.give()
            if index in self._closed and not self._gate.wait(self._deadline_s):
                raise TimeoutError(f"the gate before element {index} was not opened within {self._deadline_s} s")


class _Lethal:
    """Faults by a table, in any process but that which made it."""

    def __init__(self, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        for entry in faults.values():
            for fault in (entry,) if isinstance(entry, str) else entry:
                if fault is not None and fault not in _FAULTS:
                    raise ArgumentError(f"{fault!r} is no fault. There are {', '.join(_FAULTS)}.")
        self._table: _Table[Fault] = _Table(faults, str)
        self._home = os.getpid()

    def meet(self, index: int) -> None:
        """Does what the table says."""
        fault = self._table.next(index)
        if fault is None:
            return
        if os.getpid() == self._home:
            raise RuntimeError(f"element {index} is lethal ({fault!r}), and this process is no worker")
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            _end(fault)


def _end(fault: Fault) -> NoReturn:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segfault":
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # for tests of what a real one does
    elif fault == "exit":
        os._exit(3)
    while True:  # a hang, and workers that wait for the signal
        threading.Event().wait()


@final
class LethalSource(_Wrapper):
    """Kills, or stops, the worker process that reads certain elements, by a table.

    In the process that made it, it raises `RuntimeError` instead: on `inline` or `threads`, no test run dies.

    Args:
        inner: The source that surviving workers read.
        faults: For an element, what befalls the reader: `kill`, `exit`, `segfault`, `stop` or `hang`; one for
            every time, or a sequence for the first, second, ... time, in whichever process, with None for a
            time that is harmless. After its end, all are.
    """

    def __init__(self, inner: Source, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        super().__init__(inner)
        self._faults = _Lethal(faults)

    def _look(self, indices: Indices) -> None:
        for index in indices.tolist():
            self._faults.meet(index)


@final
class LethalFunction:
    """The same, as a function for `map`: of elements that are integers, which it returns.

    Args:
        faults: As those of `LethalSource`.
    """

    def __init__(self, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        self._faults = _Lethal(faults)

    def __call__(self, x: Any) -> Any:
        """Returns the element, if it comes to that."""
        self._faults.meet(int(x))
        return x
