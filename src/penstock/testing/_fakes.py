"""Sources that count, fail by a table, or wait: fakes for tests of everything that reads."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import final

from penstock._plan._node import Indices
from penstock._plan._source import Source
from penstock._tree import Tree


class _Wrapper(Source):
    """A source around another, with a lock for what it notes: several threads read at once."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.element_spec = inner.element_spec

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
        for index in indices.tolist():
            self._look(index)
        self._inner.read_into(indices, out)

    def _look(self, index: int) -> None:
        raise NotImplementedError


@final
class CountingSource(_Wrapper):
    """Counts how often each element is read, and is announced."""

    def __init__(self, inner: Source) -> None:
        super().__init__(inner)
        self.reads: Counter[int] = Counter()
        """For each element, how often it was read."""
        self.advised: Counter[int] = Counter()
        """For each element, how often it was announced."""

    def advise(self, indices: Indices) -> None:
        """Counts, and passes it on."""
        with self._lock:
            self.advised.update(indices.tolist())
        super().advise(indices)

    def _look(self, index: int) -> None:
        with self._lock:
            self.reads[index] += 1


@final
class FailingSource(_Wrapper):
    """Fails by a table.

    Args:
        inner: What is read where nothing fails.
        failures: For an element, the exception that reading it raises: one for every time, or a sequence for
            the first, second, ... time, with None for a time that succeeds. After its end, reads succeed.

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
        self._failures = failures
        self._times: Counter[int] = Counter()

    def _look(self, index: int) -> None:
        with self._lock:
            time = self._times[index]
            self._times[index] += 1
        plan = self._failures.get(index)
        error = plan if plan is None or isinstance(plan, Exception) else dict(enumerate(plan)).get(time)
        if error is not None:
            raise error


@final
class GatedSource(_Wrapper):
    """Holds readers of some elements at a gate until a test opens it.

    Args:
        inner: What is read behind the gate.
        closed: The elements that wait.
        deadline_s: How long anybody waits, reader or test, before that is a `TimeoutError`: no test hangs.
    """

    def __init__(self, inner: Source, closed: Collection[int], deadline_s: float = 10.0) -> None:
        super().__init__(inner)
        self._closed = frozenset(closed)
        self._deadline_s = deadline_s
        self._gate = threading.Event()
        self._passed = threading.Condition(self._lock)
        self._arrived: set[int] = set()

    def open_gate(self) -> None:
        """Lets everybody pass, now and later."""
        self._gate.set()

    def wait_for_reads(self, elements: Collection[int]) -> None:
        """Waits until each of these elements was asked for; a closed one then has a reader at the gate.

        Raises:
            TimeoutError: One was not asked for within the deadline.
        """
        with self._passed:
            if not self._passed.wait_for(lambda: self._arrived >= set(elements), self._deadline_s):
                missing = sorted(set(elements) - self._arrived)
                raise TimeoutError(f"nobody read elements {missing} within {self._deadline_s} s")

    def _look(self, index: int) -> None:
        with self._passed:
            self._arrived.add(index)
            self._passed.notify_all()
        if index in self._closed and not self._gate.wait(self._deadline_s):
            raise TimeoutError(f"the gate before element {index} was not opened within {self._deadline_s} s")
