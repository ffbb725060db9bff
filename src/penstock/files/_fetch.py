"""Requests of remote files: many at once, made ahead in the order of the reads to come, each kept until it is read.

A `Fetcher` belongs to one open source. `announce` takes the ranges that will be read, joins neighbours, and puts the
requests into a queue. `read` copies what has arrived, waits for what is under way, and requests the rest at once,
before all that is announced. Measured against a server with 30 ms of latency (two cores, 2026-11): 128 threads that
call obstore make 3,300 requests of 100 kB a second with 0.9 s of CPU, asyncio in one thread 2,600 with 1.1 s, s3fs with
128 connections 310 with 6 s. So a fetcher is a queue and up to `CONNECTIONS` threads, which start when they are needed.

Memory. Announced requests hold at most `ahead_nbytes` from their start until they are read. An announcement that was
not read `KEPT_ANNOUNCEMENTS` later, as after a seek, is dropped. It costs a request, never a wrong byte.

Order. What readers wait for comes first, in the order of their batches, then what is announced. The requests and bytes
under way begin small, so that the first batch shares neither the connection nor a CPU with all that follows. Each
answer allows one more request, and as many more bytes as it has; a busy one (503, 429) takes a tenth of the requests.

While a reader waits, requests that take three times the median are made again, `HEDGED_SHARE` of them at most; the
first answer counts. So are those that are only announced: their reader then need not wait.

Threads. All state is under `_lock`, which is reentrant, because a finalizer may call `close` on any thread. A request
takes the lock when it is handed to a thread and when it has ended, and the thread that ends one hands out the next.

Each wait, and what ends it. Threads wait for `_ready`, a queue in C: a request that may start, or `close`, wakes one. A
reader waits for all of its requests, once. Each ends by its answer, an error, or the client's timeout and the limits of
`insist`. The reader looks every `LOOK_S` whether its unit is still wanted. The threads are daemons: a request under way
holds up neither `close` nor the end of the process.
"""

import heapq
import itertools
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError, WorkerError
from penstock.base._retries import NOTHING_WANTED, RetryBudget, retry_budget
from penstock.base._threads import start_thread
from penstock.files._remote import insist
from penstock.plan._order import Position

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CONNECTIONS: Final = 128
"""The most requests of a source under way."""
LEAST_CONNECTIONS: Final = 4
FIRST_CONNECTIONS: Final = 32
"""The requests under way at the beginning. With 128 the first batch waited for a CPU: it took 0.25 s on two cores."""
AHEAD_NBYTES: Final = 64 << 20
"""The most bytes that are under way or kept ahead of their reads: 10 Gb/s for 50 ms."""
MEMORY_COUNT: Final = 5
"""The memory for each of these bytes. The client joins the pieces of an answer into a copy, each connection has buffers
of some 0.5 MiB, and the allocator keeps what is freed. At 10 Gb/s and 100 ms the process grows by 289 to 333 MiB."""
CONNECTION_NBYTES: Final = 512 << 10
"""A limit of memory leaves a connection for each of these bytes that may be ahead, and `FIRST_CONNECTIONS` at least."""
FIRST_NBYTES: Final = 8 << 20
"""The bytes under way or kept at the beginning."""
_RECENT_COUNT: Final = 256
"""Answers from which it is known how long requests take: more than are under way."""
PART_NBYTES: Final = 8 << 20
"""Larger ranges are several requests."""
GAP_NBYTES: Final = 2 << 20
"""The most bytes between two ranges that are one request: what a connection of 80 MB/s brings in 30 ms."""
GAP_SHARE: Final = 0.3
"""The largest gap, as a part of the range before it. At most 1.3 times the bytes of large records are read."""
FREE_GAP_NBYTES: Final = 2 << 10
"""Smaller gaps are always read: the headers of a tar file and its padding, between records of any size."""
KEPT_ANNOUNCEMENTS: Final = 4
LOOK_S: Final = 0.02
HEDGED_SHARE: Final = 0.02
HEDGED_NBYTES: Final = 8 << 20
MOST_TRIES: Final = 3
"""The threads that ask for one request at once."""
_BUSY: Final = frozenset({429, 503})
WHOLE: Final = 1 << 40
"""The end of a request for all bytes of a file of unknown size."""


class RangeFile(Protocol):
    """A remote file."""

    path: str

    def fetch(self, start: int, stop: int | None) -> Any:
        """Returns a range, or all bytes, by one request."""


@final
class _Request:
    """One range of a file. A request without an announcement has `serial` 0."""

    __slots__ = (
        "began_s", "data", "error", "held_nbytes", "is_started", "left", "limit_s", "number", "repeat_count", "serial",
        "start", "stop", "tries", "under_way_nbytes", "waits",
    )  # fmt: skip

    def __init__(self, number: int, start: int, stop: int, serial: int, limit_s: float) -> None:
        self.number, self.start, self.stop = number, start, stop
        self.serial, self.limit_s = serial, limit_s
        self.left = 0
        """Announced bytes that were not read yet."""
        self.waits: list[_Wait] = []
        self.is_started = False
        self.held_nbytes = 0
        """Its part of the memory for announced requests."""
        self.under_way_nbytes = 0
        self.tries = 0
        """Threads that are asking."""
        self.began_s = 0.0
        self.repeat_count = 0
        self.data: memoryview | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.data is not None or self.error is not None


@final
class _Wait:
    """The requests that a reader waits for."""

    def __init__(self, requests: list[list[_Request]]) -> None:
        self.requests = requests
        """Those of each span."""
        self.left = 0
        """Those without an answer."""
        self.done = threading.Event()


_start = attrgetter("start")


@final
class Fetcher:
    """Reads ranges of remote files.

    Args:
        open_file: Returns the file with a number. Any thread may call it.
        ahead_nbytes: The most bytes of announced requests. They take `MEMORY_COUNT` times that.
        arrived: Gets the file, the first byte and the bytes of each answer, on the thread that made the request. Must
            not raise.
    """

    def __init__(
        self,
        open_file: Callable[[int], RangeFile],
        ahead_nbytes: int = AHEAD_NBYTES,
        arrived: Callable[[int, int, memoryview], None] | None = None,
    ) -> None:
        self._open_file = open_file
        self._ahead_nbytes = ahead_nbytes
        self._most_connections = min(CONNECTIONS, max(FIRST_CONNECTIONS, ahead_nbytes // CONNECTION_NBYTES))
        self._arrived = arrived
        self._lock = threading.RLock()
        self._ready: SimpleQueue[_Request | None] = SimpleQueue()
        """Requests for the threads. None ends one of them."""
        self._table: dict[int, list[_Request]] = {}
        """The requests of each file that are queued, under way or kept, by start."""
        self._urgent: list[tuple[Position, int, _Request]] = []
        """A heap of the requests that readers wait for: the batch, a number, the request."""
        self._numbers = itertools.count()
        self._ahead: deque[_Request] = deque()
        self._announced: deque[_Request] = deque()
        """In the order of their announcements, until they are old."""
        self._serial = 0
        self._held_nbytes = 0
        self._running = self._thread_count = 0
        self._under_way: set[_Request] = set()
        self._looked_s = 0.0
        """When slow requests were last looked for."""
        self._limit = float(FIRST_CONNECTIONS)
        self._window_nbytes, self._under_way_nbytes = FIRST_NBYTES, 0
        """The bytes that may be under way or kept, and those that are under way."""
        self._recent: deque[float] = deque(maxlen=_RECENT_COUNT)
        """The seconds of the last requests."""
        self._whole_nbytes = 256 << 10
        self._words = memoryview(bytearray(8)).cast("q")
        self._is_closed = False
        self.request_count = self.hedge_count = self.busy_count = self.fetched_nbytes = 0
        self.request_s = 0.0
        self._told = (0, 0, 0.0)
        """The requests, bytes and seconds that budgets of readers have."""

    def announce(self, numbers: Integers, offsets: Integers, sizes: Integers, limit_s: float, width: int = 1) -> None:
        """Requests ranges that this process will read soon, in their order. Joins neighbours. Never waits.

        Args:
            numbers: The file of each range, shape `(n,)`.
            offsets: The first byte of each.
            sizes: The bytes of each.
            limit_s: See `RetryBudget`.
            width: The ranges of an element, which do not matter here.
        """
        if not retry_budget().may_announce or not len(numbers):
            return
        order = np.lexsort((offsets, numbers))
        ends = (offsets + sizes)[order]
        apart = np.concatenate(([True], ~is_joined(numbers[order], offsets[order], sizes[order])))
        firsts = np.flatnonzero(apart)
        segments = zip(
            np.minimum.reduceat(order, firsts).tolist(),  # where the first of its ranges is needed
            numbers[order][firsts].tolist(),
            offsets[order][firsts].tolist(),
            np.maximum.reduceat(ends, firsts).tolist(),
            np.add.reduceat(sizes[order], firsts).tolist(),
            strict=True,
        )
        several = iter(sorted(segments))
        while some := list(itertools.islice(several, FIRST_CONNECTIONS)):  # the first are asked for at once
            with self._lock:
                for _, number, start, stop, nbytes in some:
                    for request in self._cover(number, start, stop, limit_s, self._serial + 1):
                        # Without the gaps, which are not read.
                        request.left += (min(stop, request.stop) - max(start, request.start)) * nbytes // (stop - start)
                thread_count = self._hand_out()
            with suppress(WorkerError):  # a read reports it
                self._start(thread_count)
        with self._lock:
            self._serial += 1
            while self._announced and self._announced[0].serial < self._serial - KEPT_ANNOUNCEMENTS:
                old = self._announced.popleft()
                old.left = 0
                self._drop(old)

    def read(self, wanted: Sequence[tuple[int, int, Bytes]], asker: RetryBudget, spans: Any = None) -> None:
        """Reads ranges: of the file with a number, from an offset on, into memory. `spans` do not matter here.

        Raises:
            SourceError: A file is too short, has changed, or the connection fails.
            UnwantedError: The result is no longer wanted.
        """
        places = [(number, offset, offset + len(place)) for number, offset, place in wanted]
        for (_, offset, place), parts in zip(wanted, self.fetched(places, asker), strict=True):
            copy_parts(parts, offset, place)

    def fetched(
        self, spans: Sequence[tuple[int, int, int]], asker: RetryBudget
    ) -> Iterator[list[tuple[int, memoryview]]]:
        """Yields the parts of each span (file, start, stop), with their starts, when all have arrived.

        Raises as `read`. The first and the last part may be larger than the span.
        """
        with self._lock:
            if self._is_closed:
                raise SourceError("This source is closed, and cannot be read.")
            wait = _Wait([self._cover(*span, asker.limit_s, 0) for span in spans])
            for request in itertools.chain.from_iterable(wait.requests):
                request.waits.append(wait)
                wait.left += not request.is_done
                if not request.is_started:
                    request.is_started = True  # the copy in the queue of announcements is passed over
                    if request.serial and request.stop < WHOLE:
                        request.held_nbytes = request.stop - request.start
                        self._held_nbytes += request.held_nbytes
                    self._want(request, asker.place)
            thread_count = self._hand_out()
        try:
            self._start(thread_count)
            if wait.left:
                self._await(wait, asker)
            for requests in wait.requests:
                for request in requests:
                    asker.repeat_count += request.repeat_count
                    request.repeat_count = 0
                    if request.error is not None:
                        raise request.error
                yield [(request.start, request.data) for request in requests if request.data is not None]
        finally:
            with self._lock:
                for (_, start, stop), requests in zip(spans, wait.requests, strict=True):
                    for request in requests:
                        request.waits.remove(wait)
                        request.left -= min(stop, request.stop) - max(start, request.start)
                        self._drop(request)
                thread_count = self._hand_out()
                # Each request counts for the reader that looks first.
                before, now = self._told, (self.request_count, self.fetched_nbytes, self.request_s)
                self._told = now
            with suppress(WorkerError):  # the requests are of other readers
                self._start(thread_count)
            asker.request_count += now[0] - before[0]
            asker.fetched_nbytes += now[1] - before[1]
            asker.request_s += now[2] - before[2]

    def close(self) -> None:
        """Drops all requests and ends the threads, those that are asking after their answers."""
        with self._lock:
            self._is_closed = True
            self._words[0] = NOTHING_WANTED
            self._table.clear()
            self._urgent.clear()
            self._ahead.clear()
            self._announced.clear()
            for _ in range(self._thread_count):
                self._ready.put(None)

    # With the lock held.

    def _cover(self, number: int, start: int, stop: int, limit_s: float, serial: int) -> list[_Request]:
        """Returns the requests that hold a range. Those that are missing are made, and queued if announced."""
        table = self._table.setdefault(number, [])
        at = bisect_right(table, start, key=_start)
        if at and table[at - 1].stop > start:
            at -= 1
        found = []
        while start < stop:
            if at == len(table) or table[at].start > start:
                end = stop if at == len(table) else min(stop, table[at].start)
                if end < WHOLE:
                    end = start + -(-(end - start) // -(-(end - start) // PART_NBYTES))  # parts of equal size
                table.insert(at, _Request(number, start, end, serial, limit_s))
                if serial:
                    self._ahead.append(table[at])
                    self._announced.append(table[at])
            found.append(table[at])
            start = table[at].stop
            at += 1
        return found

    def _drop(self, request: _Request) -> None:
        """Forgets a request that has no reader, and of which nothing is left to be read."""
        if request.left > 0 or request.waits:
            return
        self._held_nbytes -= request.held_nbytes
        request.held_nbytes = 0
        request.is_started = True
        table = self._table.get(request.number, [])
        at = bisect_right(table, request.start, key=_start) - 1
        if at >= 0 and table[at] is request:
            del table[at]
            if not table:
                del self._table[request.number]

    def _want(self, request: _Request, place: Position) -> None:
        """Queues a request before all that are announced."""
        heapq.heappush(self._urgent, (place, next(self._numbers), request))

    def _hand_out(self) -> int:
        """Hands requests to threads, as many as may be under way. Returns the number of threads to start for them."""
        while self._running < self._limit and (request := self._next()) is not None:
            self._running += 1
            request.tries += 1
            request.began_s = time.monotonic()
            self._under_way.add(request)
            request.under_way_nbytes = self._size(request)
            self._under_way_nbytes += request.under_way_nbytes
            self._ready.put(request)
        started = max(0, self._running - self._thread_count)
        self._thread_count += started
        return started

    def _size(self, request: _Request) -> int:
        return self._whole_nbytes if request.stop == WHOLE else request.stop - request.start

    def _next(self) -> _Request | None:
        if self._urgent:
            return heapq.heappop(self._urgent)[-1]
        while self._ahead and (not self._running or self._under_way_nbytes < self._window_nbytes):
            request = self._ahead[0]
            if not request.is_started:
                size = self._size(request)
                most = min(self._ahead_nbytes, self._window_nbytes)
                if self._held_nbytes and self._held_nbytes + size > most:
                    return None
                self._held_nbytes += size
                request.held_nbytes = size
                request.is_started = True
                return self._ahead.popleft()
            self._ahead.popleft()
        return None

    # Without it.

    def _start(self, count: int) -> None:
        """Starts threads. If the system starts no more, those that run make all requests.

        Raises:
            WorkerError: None runs.
        """
        if not count:
            return
        try:
            start_thread(threading.Thread(target=self._work, args=(count - 1,), name="penstock-fetch", daemon=True))
        except WorkerError:
            with self._lock:
                self._thread_count -= count
                if not self._thread_count:
                    raise

    def _work(self, start_count: int) -> None:
        """Starts the next thread, so that no reader waits for all of them. Makes requests until the end."""
        self._start(start_count)
        while (request := self._ready.get()) is not None:
            self._make(request)
            del request

    def _make(self, request: _Request) -> None:
        asker = RetryBudget(self._words, 1, request.limit_s)
        data, error, began_s = None, None, time.monotonic()
        stop = None if request.stop == WHOLE else request.stop
        try:
            file = self._open_file(request.number)
            fact = f"{file.path} cannot be read" + ("" if stop is None else f" at byte {request.start:,}")
            data = memoryview(insist(lambda: self._asked(file, request), lambda: fact, asker=asker))
            if stop is not None and len(data) != stop - request.start:
                raise SourceError(
                    f"{file.path} ends at byte {request.start + len(data):,} now. Make the dataset again."
                )
        except BaseException as caught:
            error = caught
        taken_s = time.monotonic() - began_s
        with self._lock:
            self._running -= 1
            self._under_way_nbytes -= request.under_way_nbytes
            request.tries -= 1
            if not request.tries:
                self._under_way.discard(request)
            if not request.is_done and (error is None or not request.tries):
                request.data, request.error = data, error
                request.repeat_count += asker.repeat_count
                for wait in request.waits:
                    wait.left -= 1
                    if error is not None or not wait.left:
                        wait.done.set()
            if data is not None:
                self.request_count += 1
                self.fetched_nbytes += len(data)
                self.request_s += taken_s
                if not asker.repeat_count:
                    self._recent.append(taken_s)
                    self._limit = min(self._most_connections, self._limit + 1)
                    self._window_nbytes = min(AHEAD_NBYTES, self._window_nbytes + len(data))
                if stop is None:
                    self._whole_nbytes += (len(data) - self._whole_nbytes) // 16
            if error is not None:
                request.left = 0
                self._drop(request)  # a later read asks again
            thread_count = self._hand_out()
        self._start(thread_count)
        if data is not None and self._arrived is not None:
            self._arrived(request.number, request.start, data)

    def _asked(self, file: RangeFile, request: _Request) -> Any:
        request.began_s = time.monotonic()
        try:
            return file.fetch(request.start, None if request.stop == WHOLE else request.stop)
        except Exception as error:
            with self._lock:
                request.began_s = math.inf  # it pauses, which is not slow
                self.request_count += 1
                if getattr(error, "status", None) in _BUSY:
                    self.busy_count += 1
                    self._limit = max(LEAST_CONNECTIONS, 0.9 * self._limit)
            raise

    def _await(self, wait: _Wait, asker: RetryBudget) -> None:
        began_s = time.monotonic()
        while not wait.done.wait(LOOK_S):
            asker.require_wanted()
            self._hedge(asker.place)
            with self._lock:
                thread_count = self._hand_out()
            self._start(thread_count)  # where the system refused those of another reader, too
        asker.waited_s += time.monotonic() - began_s

    def _hedge(self, place: Position) -> None:
        """Makes slow requests again."""
        now_s = time.monotonic()
        with self._lock:
            if len(self._recent) < 16 or now_s - self._looked_s < LOOK_S:
                return
            self._looked_s = now_s
            took_s = sorted(self._recent)
            median_s, late_s = took_s[len(took_s) // 2], took_s[-1 - len(took_s) // 20]
            latest_s = now_s - max(3 * median_s, late_s)
            for request in self._under_way:
                is_slow = request.tries < MOST_TRIES and not request.is_done and request.began_s < latest_s
                if not is_slow or request.stop - request.start > HEDGED_NBYTES:
                    continue
                if self.hedge_count < HEDGED_SHARE * self.request_count:
                    self.hedge_count += 1
                    request.began_s = now_s  # it waits for a thread now
                    self._want(request, place)
            thread_count = self._hand_out()
        self._start(thread_count)


def copy_parts(parts: Sequence[tuple[int, memoryview]], offset: int, place: Bytes) -> None:
    """Copies bytes from an offset of a file on into memory, from parts of the file with their starts."""
    for start, data in parts:
        skipped, at = max(0, offset - start), max(0, start - offset)
        if at < len(place) and skipped < len(data):
            some = data[skipped : skipped + len(place) - at]
            place[at : at + len(some)] = np.frombuffer(some, np.uint8)


def is_joined(numbers: Integers, offsets: Integers, sizes: Integers) -> npt.NDArray[np.bool_]:
    """Whether each range but the first belongs to the request of the one before, shape `(n - 1,)`.

    Args:
        numbers: The files, sorted, shape `(n,)`.
        offsets: The first bytes, sorted within a file.
        sizes: The bytes.
    """
    gaps = offsets[1:] - offsets[:-1] - sizes[:-1]
    joined: npt.NDArray[np.bool_] = (numbers[1:] == numbers[:-1]) & (
        gaps <= np.clip(GAP_SHARE * sizes[:-1], FREE_GAP_NBYTES, GAP_NBYTES)
    )
    return joined
