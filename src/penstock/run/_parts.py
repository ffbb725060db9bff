"""Decodes the parts of a table before the batches that need them, on threads.

Which thread writes what. The consumer's thread alone has the state here; threads that decode return what they decoded
through futures. `stop` may be called by any thread, and by finalizers: queues alone are touched.

Each wait, and what ends it. A thread waits for a part, or for the stop, which it passes on. The consumer waits for a
token (`_copy_delivery.py`): each decoding puts one when it ends, and so does `stop`. One token too many makes it look
once more. A thread that never returns from a read stays behind; it is a daemon thread.

A part stays in memory while a job reads it, or a batch of the computed blocks needs it, as far as there is room. Parts
are decoded in the order in which batches need them. So the first batch that waits always gets its parts: either there
is room, or a part that is not needed before is dropped, or a decoding ends.
"""

import contextlib
import functools
import queue
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import final

import numpy as np

from penstock import native
from penstock.base._threads import join_threads, start_thread
from penstock.memory._rows import Indices
from penstock.sources.parted import PartReader

_Decoded = Future[tuple[Sequence[native.Source], float]]
"""The columns of a part, and the seconds that it took to decode them."""
_Calls = queue.SimpleQueue[tuple[int, _Decoded] | None]
"""Parts to decode; None for the stop."""


@final
class PartLoader:
    """The decoded parts of a table.

    Args:
        reader: The open table.
        thread_count: Threads that decode.
        tokens: Gets a token when a decoding ends.
    """

    def __init__(self, reader: PartReader, thread_count: int, tokens: "queue.SimpleQueue[None]") -> None:
        self.reader = reader
        self.busy_s = 0.0
        """The time that decoding took."""
        self.decoded_count = 0
        self._calls: _Calls = queue.SimpleQueue()
        self._tokens = tokens
        self._threads: list[threading.Thread] = []
        self._thread_count = thread_count
        self._there: dict[int, Sequence[native.Source]] = {}
        self._loading: dict[int, _Decoded] = {}
        self._failed: dict[int, BaseException] = {}
        self._jobs: dict[int, int] = {}
        """The last job that reads each part."""
        self._needed: Counter[int] = Counter()
        """How many batches that are not submitted need each part."""
        self._ahead: deque[int] = deque()
        """Parts that will be needed, in order."""
        self._columns: list[native.Source] | None = None
        self._bounds: list[int] = reader.bounds.tolist()
        self._keeps_all = int(reader.nbytes.sum()) + int(reader.work_nbytes.max(initial=0)) <= reader.room

    def note(self, rows: Sequence[Indices]) -> tuple[int, ...]:
        """Notes which rows a batch needs, behind those before it; returns their parts, unless all parts are there."""
        reader = self.reader
        reader.request(sum(map(len, rows)))
        if self._keeps_all and not reader.is_mapped and len(self._there) == len(reader.nbytes):
            return ()
        parts: set[int] = set()
        for each in rows:
            if len(each):
                first, last = (bisect_right(self._bounds, int(end)) - 1 for end in (each.min(), each.max()))
                if last - first > 1:
                    parts.update(np.unique(self.parts_of(each)).tolist())
                else:
                    parts.update((first, last))
        self._ahead.extend(part for part in parts if not self._needed[part])
        self._needed.update(parts)
        return tuple(sorted(parts))

    def parts_of(self, rows: Indices) -> Indices:
        """The part of each row."""
        return np.searchsorted(self.reader.bounds, rows, "right") - 1

    def forget(self) -> None:
        """Forgets which batches need parts, and what failed. No job is under way."""
        self._needed.clear()
        self._ahead.clear()
        self._jobs.clear()
        self._failed.clear()

    def groups(self, parts: Sequence[int]) -> list[list[int]]:
        """Divides parts into those for which there is room at once: nearly always one list."""
        found: list[list[int]] = [[]]
        room, work = self.reader.room, int(self.reader.work_nbytes.max(initial=0))
        nbytes = 0
        for part, size in zip(parts, self.reader.nbytes[list(parts)].tolist(), strict=True):
            if found[-1] and nbytes + size + work > room:
                found.append([])
                nbytes = 0
            found[-1].append(part)
            nbytes += size
        return found

    def are_there(self, parts: Sequence[int], done_job: int) -> bool:
        """Returns whether parts are decoded. Begins with those that are not, and then with those ahead.

        Args:
            parts: What is needed first.
            done_job: No job up to this one is under way.

        Raises:
            Exception: The error of one of these parts.
        """
        if self._loading:
            self._collect()
        missing = [part for part in parts if part not in self._there]
        for part in missing:
            if part in self._failed:
                raise self._failed[part]
            if not self._begin(part, done_job, set(parts)):
                return False
        while self._ahead and len(self._loading) <= self._thread_count:
            if not self._begin(self._ahead[0], done_job, None):
                break
            self._ahead.popleft()
        return not missing

    def submitted(self, parts: Sequence[int], job: int) -> None:
        """Notes that a job reads parts which a batch needed."""
        for part in parts:
            self._jobs[part] = job
            self._needed[part] -= 1

    def columns(self) -> list[native.Source]:
        """The columns, of which those parts can be read that are there."""
        if self._columns is None:
            parts = [self._there.get(part) for part in range(len(self.reader.nbytes))]
            counts = {len(part) for part in parts if part is not None}
            self._columns = [
                native.Engine.parts(
                    self.reader.bounds, [None if part is None else part[number] for part in parts], name=self.reader
                )
                for number in range(counts.pop() if counts else 0)
            ]
        return self._columns

    @property
    def stop(self) -> Callable[[], object]:
        """Begins no further part, and ends the threads; for a finalizer, so it does not hold this object."""
        return functools.partial(_stop, self._calls, self._tokens)

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads after `stop`, and drops the parts if they ended. Returns whether they did."""
        if ended := join_threads(self._threads, timeout_s):
            self._columns = None
            self._there.clear()
            self._loading.clear()
        return ended

    def _collect(self) -> None:
        """Takes what was decoded."""
        for part, future in list(self._loading.items()):
            if not future.done():
                continue
            del self._loading[part]
            self.decoded_count += 1
            if (error := future.exception()) is not None:
                self._failed[part] = error
                continue
            self._there[part], seconds = future.result()
            self.busy_s += seconds
            self._columns = None

    def _begin(self, part: int, done_job: int, first: set[int] | None) -> bool:
        """Begins to decode a part if there is room, or can be.

        Args:
            part: The part.
            done_job: See `are_there`.
            first: What is needed first, for which all else may go; None for a part that is needed later.
        """
        if part in self._there or part in self._loading or part in self._failed:
            return True
        nbytes, work_nbytes = self.reader.nbytes, self.reader.work_nbytes
        need = int(nbytes[part] + work_nbytes[part])
        left = self.reader.room - int(nbytes[list(self._there)].sum())
        left -= sum(int(nbytes[each] + work_nbytes[each]) for each in self._loading)
        if left < need <= left + sum(int(work_nbytes[each]) for each in self._loading):
            return False  # there is room as soon as these are decoded
        for other in self._dropped(done_job, first) if left < need else ():
            del self._there[other]
            self._columns = None
            left += int(nbytes[other])
            if left >= need:
                break
        # A group alone may be larger than the room, if its file said less of it.
        if left < need and (self._there or self._loading):
            return False
        if len(self._loading) >= len(self._threads) < self._thread_count:
            call = self._calls, self.reader.read_part, self._tokens
            thread = threading.Thread(target=_decode, args=call, name="penstock-decode", daemon=True)
            start_thread(thread)
            self._threads.append(thread)
        future: _Decoded = Future()
        self._calls.put((part, future))
        self._loading[part] = future
        return True

    def _dropped(self, done_job: int, first: set[int] | None) -> Iterator[int]:
        """Parts that may be dropped, the earliest decoded first."""
        idle = [part for part in self._there if self._jobs.get(part, done_job) <= done_job]
        yield from [part for part in idle if self._needed[part] <= 0]
        if first is not None:
            yield from [part for part in reversed(idle) if part in self._there and part not in first]


def _decode(
    calls: _Calls, read_part: Callable[[int], Sequence[native.Source]], tokens: "queue.SimpleQueue[None]"
) -> None:
    while (call := calls.get()) is not None:
        part, future = call
        began = perf_counter()
        try:
            future.set_result((read_part(part), perf_counter() - began))
        except BaseException as error:
            future.set_exception(error)
        del call, future  # what was decoded is the consumer's
        tokens.put(None)
    calls.put(None)  # for the next thread


def _stop(calls: _Calls, tokens: "queue.SimpleQueue[None]") -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            calls.get_nowait()
    calls.put(None)
    tokens.put(None)
