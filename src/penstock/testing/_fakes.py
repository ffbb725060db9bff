"""Sources that count, fail by a table, wait, or kill: fakes for tests of everything that reads.

A copy in a worker process is the same fake: its reads count here, and a gate that opens here opens there. The state
ends with the object that the test made, so that object must live as long as its copies.
"""

import faulthandler
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, final, get_args

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.testing._shared import SharedLog, SharedSignal

T = TypeVar("T")

Fault = Literal["kill", "exit", "segfault", "stop", "hang"]
"""Ends or stops a worker: SIGKILL; `os._exit(3)`; a segmentation fault; SIGSTOP; a wait that nothing ends."""


class _Wrapper(Source):
    """A source around another, which sees the indices of each read. Several threads and processes read at once."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.element_spec: Tree = inner.element_spec

    def __len__(self) -> int:
        return len(self._inner)

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self._inner}"

    def describe(self, index: int) -> str:
        """Describes the element of the inner source."""
        return self._inner.describe(index)

    def advise(self, indices: Indices) -> None:
        """Passes the announcement on."""
        self._inner.advise(indices)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Looks at the indices, then reads."""
        self._look(indices)
        self._inner.read_into(indices, out)

    def _look(self, indices: Indices) -> None:
        raise NotImplementedError


@final
class CountingSource(_Wrapper):
    """Counts the reads and announcements of each element, in all processes together."""

    def __init__(self, inner: Source) -> None:
        super().__init__(inner)
        self._reads = SharedLog()
        self._advised = SharedLog()

    @property
    def reads(self) -> Counter[int]:
        """The number of reads of each element."""
        return Counter(self._reads.values().tolist())

    @property
    def advised(self) -> Counter[int]:
        """The number of announcements of each element."""
        return Counter(self._advised.values().tolist())

    def advise(self, indices: Indices) -> None:
        """Counts, and passes it on."""
        self._advised.append(indices)
        super().advise(indices)

    def _look(self, indices: Indices) -> None:
        self._reads.append(indices)


class _Table(Generic[T]):
    """The fate of elements: the same each time, or a sequence for the first, second, ... time."""

    def __init__(self, entries: Mapping[int, T | Sequence[T | None]], single: type) -> None:
        self._entries: dict[int, Any] = dict(entries)
        self._single = single
        """The type of one fate, which tells it from a sequence: a text is one too."""
        self._log = SharedLog()

    def next(self, index: int) -> T | None:
        """Returns the fate of an element now. Of two processes that ask at once, one is the first."""
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
        failures: The exception that reading an element raises: one for every time, or a sequence for the first,
            second, ... time, in any process. None is a time that succeeds. After the sequence, reads succeed.

    Example:
        >>> from penstock.sources.arrays import RangeSource
        >>> from penstock.testing import FailingSource
        >>> flaky = penstock.from_source(FailingSource(RangeSource(9), {7: [OSError("gone"), None]}))
        >>> try:
        ...     flaky[7]
        ... except OSError as error:
        ...     print(error)
        gone
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
    """Holds readers of some elements at a gate until a test opens it. One thread waits for reads.

    Args:
        inner: The source behind the gate.
        closed: The elements whose readers wait.
        deadline_s: After this time a waiting reader or test gets a `TimeoutError`, so that no test hangs.
    """

    def __init__(self, inner: Source, closed: Collection[int], deadline_s: float = 30.0) -> None:
        super().__init__(inner)
        self._closed = frozenset(closed)
        self._deadline_s = deadline_s
        self._gate = SharedSignal()
        self._arrivals = SharedLog()
        self._arrival = SharedSignal()

    def open_gate(self) -> None:
        """Lets all readers pass, now and later."""
        self._gate.give()

    def wait_for_reads(self, elements: Collection[int]) -> None:
        """Waits until each of these elements is asked for. A closed one then has a reader at the gate.

        Raises:
            TimeoutError: One was not asked for within the deadline.
        """
        wanted, ends_at = set(elements), time.monotonic() + self._deadline_s
        while missing := wanted - set(self._arrivals.values().tolist()):
            if not self._arrival.wait(ends_at - time.monotonic()):
                raise TimeoutError(f"no worker read elements {sorted(missing)} within {self._deadline_s} s")
            self._arrival.reset()  # before the next look at the arrivals

    def _look(self, indices: Indices) -> None:
        for index in indices.tolist():
            self._arrivals.append(np.array([index], np.int64))
            self._arrival.give()
            if index in self._closed and not self._gate.wait(self._deadline_s):
                raise TimeoutError(f"the gate before element {index} was not opened within {self._deadline_s} s")


class _Lethal:
    """Faults by a table, in every process but the one that made it."""

    def __init__(self, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        known = get_args(Fault)
        for fault in (each for entry in faults.values() for each in ((entry,) if isinstance(entry, str) else entry)):
            if fault is not None and fault not in known:
                raise ArgumentError(f"{fault!r} is no fault. There are {', '.join(known)}.")
        self._table: _Table[Fault] = _Table(faults, str)
        self._home = os.getpid()

    def meet(self, index: int) -> None:
        fault = self._table.next(index)
        if fault is None:
            return
        if os.getpid() == self._home:
            raise RuntimeError(f"element {index} is lethal ({fault!r}), and this process is no worker")
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "segfault":
            faulthandler._sigsegv()  # type: ignore[attr-defined]  # a real one
        elif fault == "exit":
            os._exit(3)
        while True:  # a hang, or the moment before the signal
            threading.Event().wait()


@final
class LethalSource(_Wrapper):
    """Kills or stops the worker process that reads certain elements, by a table.

    In the process that made it, it raises `RuntimeError` instead. So on `inline` and `threads` no test run dies.

    Args:
        inner: The source that surviving workers read.
        faults: The fault of an element, `kill`, `exit`, `segfault`, `stop` or `hang`: one for every time, or a
            sequence for the first, second, ... time, in any process. None is a harmless time, as are all later ones.
    """

    def __init__(self, inner: Source, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        super().__init__(inner)
        self._faults = _Lethal(faults)

    def _look(self, indices: Indices) -> None:
        for index in indices.tolist():
            self._faults.meet(index)


@final
class LethalFunction:
    """A function for `map` that returns its integers, and kills or stops the worker process at certain ones.

    Args:
        faults: As those of `LethalSource`.
    """

    def __init__(self, faults: Mapping[int, Fault | Sequence[Fault | None]]) -> None:
        self._faults = _Lethal(faults)

    def __call__(self, x: Any) -> Any:
        """Returns the element, if the table lets it."""
        self._faults.meet(int(x))
        return x
