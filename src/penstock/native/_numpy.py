"""The copy engine in NumPy: the oracle of the native one in tests, and its substitute where that is not built.

One thread executes the jobs in their order. It needs the interpreter for every copy, so it is slower, and `advise` does
nothing.
"""

import errno
import itertools
import math
import operator
import os
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.native._dtypes import dtypes_of
from penstock.native._errors import CopyError

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]


_FOLD: Final = np.uint64(32)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)

_MOST_NBYTES: Final = (2**63 - 1) // 4
"""A larger row overflows."""

Words = NDArray[np.uint64]


def permute_now(values: Words, n: int, a: int, b: int, tweaks: Words, rounds: Words) -> None:
    """See `permute`. A value that leaves `[0, n)` goes through the network again, until it is back."""
    if any(each.dtype.itemsize != 8 or each.dtype.hasobject for each in (values, tweaks, rounds)):
        raise TypeError("expected an array of 64-bit numbers")
    is_right = 0 < a <= 1 << 31 and 0 < b <= 1 << 31 and a * b // 2 <= n <= a * b
    if not is_right or tweaks.size not in (1, values.size) or (values >= n).any():
        raise ValueError("these are no values of a permutation")
    values[...] = _network(values, a, b, tweaks, rounds)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        again = _network(values[outside], a, b, tweaks if tweaks.size == 1 else tweaks[outside], rounds)
        values[outside] = again
        outside = outside[again >= n]


def _network(values: Words, a: int, b: int, tweaks: Words, rounds: Words) -> Words:
    """Permutes `[0, a * b)`, `a` and `b` at most 2**31; `tweaks` has shape (1,) or (k,).

    A value is a pair (left, right) in `[0, a) x [0, b)`. Rounds in turn add a keyed hash of one to the
    other, modulo `a` or `b`; as each can be subtracted again, the whole is a bijection. The hash is a
    keyed multiplication and addition, a fold, a second multiplication, and its upper 32 bits scaled down
    to the modulus.
    """
    moduli = (np.uint64(a), np.uint64(b))
    left = values // moduli[1]
    right = values - left * moduli[1]
    source, target = right, left
    for i, (multiplier, addend) in enumerate(rounds.reshape(-1, 2)):
        modulus = moduli[i % 2]
        hashed = source * multiplier + (tweaks * multiplier + addend)
        hashed ^= hashed >> _FOLD
        hashed = ((hashed * _ODD >> _FOLD) * modulus) >> _FOLD
        target += hashed
        # Below the modulus this difference wraps to a huge number, so the minimum is the remainder.
        np.minimum(target, target - modulus, out=target)
        source, target = target, source
    return left * moduli[1] + right


class Source:
    """Elements that can be copied, see `Engine.memory` and `Engine.file`."""

    def __init__(
        self,
        name: object,
        count: int,
        row_nbytes: int,
        access: str,
        read: Callable[[int], Bytes],
        span: Callable[[int, int, int], Bytes] | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self.row_nbytes = row_nbytes
        self.access = access
        self.read: Final = read
        """The bytes of one element."""
        self.span: Final = span
        """Of elements of one byte: the bytes from a place, so many of them, for the element of that number."""
        self.number_nbytes = row_nbytes
        """The bytes that a conversion takes; of a sparse matrix, those of one of its values."""
        self.array: NDArray[Any] | None = None
        """The array in memory."""
        self.missing: Callable[[Rows], int | None] = lambda _: None
        """A part that some elements lie in, and that is not there."""


def memory_source(array: Any, name: object) -> Source:
    """See `Engine.memory`."""
    array = array if isinstance(array, np.ndarray) else np.asarray(memoryview(array))
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects cannot be copied as bytes")
    if array.ndim < 1:
        raise ValueError(f"a source needs 1 to 64 axes, not {array.ndim}")
    row_nbytes = array.itemsize * math.prod(array.shape[1:])
    span = None
    if array.ndim == 1 and array.itemsize == 1:
        span = lambda place, nbytes, _: _bytes_of(array[place : place + nbytes])  # noqa: E731
    source = Source(name, len(array), row_nbytes, "memory", lambda row: _bytes_of(array[row : row + 1]), span)
    source.array = array
    return source


def parts_source(bounds: Rows, sources: Sequence[Source | None], name: object) -> Source:
    """See `Engine.parts`."""
    if getattr(bounds, "dtype", None) != np.dtype(np.int64):
        raise TypeError(f"bounds must be an array of int64, not {bounds!r}")
    bounds = bounds.copy()
    is_right = len(bounds) == len(sources) + 1 > 1 and bounds[0] == 0 and (bounds[1:] >= bounds[:-1]).all()
    sizes = zip(sources, np.diff(bounds).tolist(), strict=False)
    is_right = is_right and all(part is None or (part.array is not None and part.count == n) for part, n in sizes)
    if not is_right or len({part.row_nbytes for part in sources if part is not None}) > 1:
        raise ValueError("the parts are no sources in memory of such sizes, one for each two bounds")

    def part_of(rows: Any) -> Any:
        return np.searchsorted(bounds, rows, "right") - 1

    def read(row: int) -> Bytes:
        part = int(part_of(row))
        return sources[part].read(row - int(bounds[part]))  # type: ignore[union-attr]  # see `missing`

    row_nbytes = next((part.row_nbytes for part in sources if part is not None), 0)
    source = Source(name, int(bounds[-1]), row_nbytes, "memory", read)
    source.missing = lambda rows: next((part for part in np.unique(part_of(rows)).tolist() if not sources[part]), None)
    return source


def file_source(
    path: Any,
    fd: int,
    offset: int,
    count: int,
    stride: int,
    item_nbytes: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_mapped: bool,
    give_back_nbytes: int,
    name: object,
) -> Source:
    """See `Engine.file`; here, every element is read with `pread`."""
    row_nbytes = item_nbytes * math.prod(shape)
    is_right = len(shape) == len(strides) and count >= 0 and item_nbytes > 0 and all(n >= 0 for n in shape)
    if not is_right or row_nbytes > _MOST_NBYTES:
        raise ValueError("the sizes of a file's rows are negative, too large, or do not match")
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    is_empty = 0 in shape
    low = 0 if is_empty else sum(min(0, each) for each in reach)
    nbytes = 0 if is_empty else sum(max(0, each) for each in reach) + item_nbytes - low
    ends = (offset, offset + stride * max(0, count - 1))
    if count > 0 and (min(ends) + low < 0 or max(ends) + low + nbytes > 2 * _MOST_NBYTES):
        raise ValueError("elements would lie before the file's first byte, or too far behind it")
    file = _opened(path, fd)
    dtype = np.dtype((np.void, item_nbytes))
    has_name = os.fstat(file).st_nlink > 0

    def read(row: int) -> Bytes:
        data = part(offset + row * stride + low, nbytes, row)
        return _bytes_of(np.ndarray(shape, dtype, data, -low, strides) if nbytes else np.empty(0, np.uint8))

    def part(start: int, nbytes: int, row: int) -> bytearray:
        if has_name and not os.fstat(file).st_nlink:
            raise CopyError(name, row, errno.ESTALE, nbytes, 0)
        data = bytearray(nbytes)
        view, found = memoryview(data), start
        while view:
            try:
                length = os.preadv(file, [view], found)
            except OSError as error:
                raise CopyError(name, row, error.errno or 0, nbytes, found - start) from None
            if not length:
                raise CopyError(name, row, 0, nbytes, found - start)
            found, view = found + length, view[length:]
        return data

    def span(place: int, nbytes: int, row: int) -> Bytes:
        return np.frombuffer(part(offset + place, nbytes, row), np.uint8)

    source = Source(name, count, row_nbytes, "read", read, span if (row_nbytes, stride) == (1, 1) else None)
    weakref.finalize(source, os.close, file)
    return source


Vector = tuple[Source, Rows, int, int]
"""Numbers: a source of bytes, the first byte of each piece, the numbers of a piece, and the bytes of a number."""


def sparse_source(starts: Rows, indices: Vector, values: Vector, code: int, columns: int, name: object) -> Source:
    """See `Engine.sparse`."""
    for rows, what in ((starts, "starts"), (indices[1], "places"), (values[1], "places")):
        if getattr(rows, "dtype", None) != np.dtype(np.int64):
            raise TypeError(f"{what} must be an array of int64, not {rows!r}")
    starts = starts.copy()
    if not len(starts) or starts[0] < 0 or columns < 0 or (starts[1:] < starts[:-1]).any():
        raise ValueError("the starts of a sparse matrix's rows decrease, or there are none")
    _check_vector(indices, int(starts[-1]))
    _check_vector(values, int(starts[-1]))
    given = np.dtype(np.int64) if code == 0 else dtypes_of(code)[0]
    if (code and dtypes_of(code)[1] != np.int64) or given.itemsize != indices[3]:
        raise ValueError("the column numbers of a sparse matrix are not converted to int64")
    item_nbytes = values[3]
    if columns * item_nbytes > _MOST_NBYTES:
        raise ValueError("the elements of a source are too large")

    def read(row: int) -> Bytes:
        first, end = int(starts[row]), int(starts[row + 1])
        places = _numbers(indices, first, end, row).view(given)
        places = places.astype(np.int64)
        outside = places[(places < 0) | (places >= columns)]
        if len(outside):
            raise CopyError(name, row, errno.EDOM, columns, int(outside[0]))
        found, counts = np.unique(places, return_counts=True)
        if (counts > 1).any():
            raise CopyError(name, row, errno.EEXIST, columns, int(found[counts > 1][0]))
        out = np.zeros((columns, item_nbytes), np.uint8)
        out[places] = _numbers(values, first, end, row).reshape(-1, item_nbytes)
        return out.reshape(-1)

    source = Source(name, len(starts) - 1, columns * item_nbytes, indices[0].access, read)
    source.number_nbytes = item_nbytes
    return source


def _check_vector(vector: Vector, count: int) -> None:
    source, places, length, item_nbytes = vector
    if not isinstance(source, Source):
        raise TypeError(f"expected a source of this engine, not {source!r}")
    piece_count = -(-count // max(1, length))
    if item_nbytes not in (1, 2, 4, 8, 16) or length < 1 or source.span is None or piece_count > len(places):
        raise ValueError("the pieces of a sparse matrix's numbers do not match their count")
    for piece, place in enumerate(places[:piece_count].tolist()):
        nbytes = min(length, count - piece * length) * item_nbytes
        if place < 0 or place > source.count - nbytes:
            raise IndexError(f"piece {piece} lies outside of {source.name}")


def _numbers(vector: Vector, first: int, end: int, row: int) -> Bytes:
    source, places, length, item_nbytes = vector
    assert source.span is not None
    parts = [np.empty(0, np.uint8)]
    while first < end:
        count = min(end - first, length - first % length)
        place = int(places[first // length]) + first % length * item_nbytes
        parts.append(source.span(place, count * item_nbytes, row))
        first += count
    return np.concatenate(parts)


def _opened(path: Any, fd: int) -> int:
    """Opens a file with places, or duplicates its descriptor: no pipe, whose opening would wait for a writer."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    file = os.dup(fd) if path is None else os.open(path, flags)
    mode = os.fstat(file).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        os.close(file)
        error = errno.EISDIR if stat.S_ISDIR(mode) else errno.ESPIPE
        raise OSError(error, os.strerror(error), path)
    return file


def pad_rows(values: Sequence[Any], out: NDArray[Any], filling: NDArray[Any]) -> bool:
    """See `native.pad_rows`."""
    fits = out.ndim == 2 and len(out) == len(values) and out.flags.carray and not out.dtype.hasobject
    if not fits or filling.shape or filling.dtype.itemsize != out.itemsize:
        raise ValueError("the rows or the number that fills them do not fit the values")
    for value in values:
        if getattr(value, "dtype", None) is not out.dtype or value.ndim != 1 or not value.flags.c_contiguous:
            return False
    for row, value in zip(out, values, strict=True):
        row[: len(value)] = value
        row[len(value) :] = filling
    return True


def read_parts(descriptor: int, offsets: Rows, memory: Bytes, starts: Rows, sizes: Rows) -> tuple[int, int, int]:
    """See `native.read_parts`."""
    if not (memory.ndim == memory.itemsize == 1 and memory.flags.carray and not memory.dtype.hasobject):
        raise ValueError("parts are read into a writable array of bytes with one axis")
    is_outside = (starts < 0) | (sizes < 0) | (starts > len(memory)) | (sizes > len(memory) - starts)
    if not len(offsets) == len(starts) == len(sizes) or is_outside.any():
        raise ValueError("the parts lie outside of the memory")
    for done, (offset, start, size) in enumerate(zip(offsets.tolist(), starts.tolist(), sizes.tolist(), strict=True)):
        place, got = memory.data[start : start + size], 0
        if offset < 0 < size:
            return done, 0, errno.EINVAL  # -1 would be the present place for preadv()
        while got < size:
            try:
                step = os.preadv(descriptor, [place[got:]], offset + got)
            except OSError as error:
                return done, got, error.errno or errno.EIO
            if not step:
                return done, got, 0
            got += step
    return len(offsets), 0, 0


NEXT, FIRST, BEST = 0, 1, 2
"""How `fit_rows` looks for a row."""
_FIT_TRIES: Final = 256
_FIT_SHARES: Final = 1 << 16
MOST_CAPACITY: Final = 1 << 24
"""The largest room of a row."""

Numbers = NDArray[np.uint32]


def fit_rows(sizes: Numbers, capacity: Numbers, rows: Numbers, fit: int, /) -> int:
    """See `native.fit_rows`."""
    _require_words(np.uint32, sizes, capacity, rows)
    is_right = capacity.size > 0 and sizes.size == capacity.size * rows.size and 0 <= fit < 3
    table = sizes.reshape(len(capacity), len(rows)).T if is_right else sizes
    if not is_right or capacity[0] > MOST_CAPACITY or (table > capacity).any():
        raise ValueError("these sizes do not fit into rows")
    kinds = len(capacity)
    shares = max(1, _FIT_SHARES // kinds)

    def total(sizes: list[int]) -> int:
        return sizes[0] if kinds == 1 else sum(n * shares // max(1, most) for n, most in zip(sizes, full, strict=True))

    full: list[int] = capacity.tolist()
    room: list[list[int]] = []
    # The rows that have so much room, the last one to get there last.
    lists: dict[int, list[int]] = {}
    for i, size in enumerate(table.tolist()):
        if fit == NEXT:
            asked = [len(room) - 1] if room else []
        elif fit == FIRST:
            asked = list(range(len(room)))
        else:
            need = total(size)
            near = (reversed(lists[at]) for at in sorted(lists) if at >= need)
            asked = list(itertools.islice(itertools.chain.from_iterable(near), 1 if kinds == 1 else _FIT_TRIES))
            asked += range(len(room)) if kinds > 1 else []
        row = next((row for row in asked if all(map(operator.le, size, room[row]))), len(room))
        if row == len(room):
            room.append(full)
        elif fit == BEST:
            lists[total(room[row])].remove(row)
        room[row] = list(map(operator.sub, room[row], size))
        lists.setdefault(total(room[row]), []).append(row)
        rows[i] = row
    return len(room)


def trade_rows(sizes: Numbers, rows: Numbers, room: Rows, is_sum: bool, window: int, words: Numbers, /) -> None:
    """See `native.trade_rows`."""
    _require_words(np.uint32, sizes, rows, words)
    _require_words(np.int64, room)
    count = len(rows)
    kinds = sizes.size // count if count else 1
    left = room.reshape(kinds, -1) if kinds and room.size % kinds == 0 else room[None]
    is_right = kinds > 0 and sizes.size == kinds * count and len(words) == count and 0 < window < 1 << 32
    if not is_right or left.shape[0] != kinds or (rows >= left.shape[1]).any() or (abs(room) >= 1 << 32).any():
        raise ValueError("these are no elements in rows")
    table = sizes.reshape(kinds, -1).T.astype(np.int64)
    for i, word in enumerate(words.tolist()):
        j = i + (word * min(window, count - i) >> 32)
        one, two = rows[i], rows[j]
        more = table[i] - table[j]
        if one == two:
            continue
        if is_sum:
            if (left[:, one] + more >= 0).all() and (left[:, two] - more >= 0).all():
                left[:, one] += more
                left[:, two] -= more
                rows[i], rows[j] = two, one
        elif (table[j] <= left[:, one]).all() and (table[i] <= left[:, two]).all():
            rows[i], rows[j] = two, one


def order_keys(keys: Numbers, places: Rows, /) -> None:
    """See `native.order_keys`."""
    _require_words(np.uint32, keys)
    _require_words(np.int64, places)
    if keys.shape != places.shape:
        raise ValueError("there is not one place for each key")
    places[:] = np.argsort(keys, kind="stable")


def _require_words(dtype: Any, *arrays: NDArray[Any]) -> None:
    nbytes = np.dtype(dtype).itemsize
    if any(each.dtype.itemsize != nbytes or each.dtype.hasobject for each in arrays):
        raise TypeError(f"expected an array of {8 * nbytes}-bit numbers")


def outlast_interpreter() -> None:
    """Does nothing: Python alone cannot keep such a thread from ending the program."""


def count_down(words: "memoryview[int]", place: int, count: int, /) -> int:
    """Writes 0 and returns it: Python alone cannot subtract in one step. So each caller takes itself for the last."""
    words[place] = 0
    return 0


def return_slot(
    leases: dict[int, Any],
    free: deque[int],
    on_free: Callable[[], None] | None,
    interrupts: list[BaseException],
    slot: int,
    lease: int,
    _: object,
) -> None:
    """See `native.return_slot`. A Ctrl-C that strikes before the first line is lost, and the slot stays leased."""
    try:
        free.append(slot)  # before the lease ends, so that `reclaim` sees the slot in one of the two
        leases.pop(lease, None)
        if on_free is not None:
            on_free()
    except BaseException as error:  # Ctrl-C strikes when a call returns, and the slot is free
        leases.pop(lease, None)  # else the slot would seem leased twice after its next hand-out
        interrupts.append(error.with_traceback(None))
        if on_free is not None:
            on_free()


def _bytes_of(array: NDArray[Any]) -> Bytes:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


class Engine:
    """See `penstock.native.Engine`."""

    def __init__(self, thread_count: int) -> None:
        if not 1 <= thread_count <= 256:
            raise ValueError(f"an engine has 1 to 256 threads, not {thread_count}")
        self.thread_count = thread_count
        self._process = os.getpid()
        self._lock = threading.RLock()  # a finalizer may call `close` in the middle of any method
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "penstock-copy")
        self._executor.submit(int)  # starts its thread, or fails, here
        self._jobs: dict[int, Future[int]] = {}
        self._last: int | None = None
        self._is_closed = False
        self._stats = dict.fromkeys(("nbytes", "jobs", "cpu_ns", "busy_ns", "waits", "wait_ns", "announced"), 0)

    def submit(self, job_number: int, copies: Iterable[tuple[Any, ...]], /) -> None:
        self._refuse_forked()
        job_number = operator.index(job_number)
        tasks = [_task(*copy) for copy in copies]
        with self._lock:
            if self._is_closed:
                raise ValueError("the engine is closed")
            if self._last is not None and job_number <= self._last:
                raise ValueError("job numbers must increase from one submission to the next")
            assert self._executor is not None
            self._last = job_number
            self._jobs[job_number] = self._executor.submit(self._run, tasks)

    def _run(self, tasks: list[Callable[[], int]]) -> int:
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        nbytes = sum(task() for task in tasks)
        self._stats["busy_ns"] += time.perf_counter_ns() - began_ns
        self._stats["cpu_ns"] += time.thread_time_ns() - began_cpu_ns
        self._stats["nbytes"] += nbytes
        self._stats["jobs"] += 1
        return nbytes

    def wait(self, job_number: int, timeout_s: float | None = None, /) -> bool:
        self._refuse_forked()
        job = self._jobs.get(job_number)
        unknown = f"job {job_number} is not under way: not submitted, waited for before, or cancelled"
        if job is None:
            raise LookupError(unknown)
        try:
            job.exception(timeout_s)
        except TimeoutError:
            return False
        except CancelledError:
            raise LookupError(unknown) from None
        if self._jobs.pop(job_number, None) is None:
            raise LookupError(unknown)
        job.result()
        return True

    def is_done(self, job_number: int, /) -> bool:
        self._refuse_forked()
        job = self._jobs.get(job_number)
        return job is None or job.done()

    def cancel(self, up_to: int, timeout_s: float | None = None, /) -> bool:
        self._refuse_forked()
        for number in [each for each in self._jobs if each <= up_to]:
            job = self._jobs[number]
            if not job.cancel():
                try:
                    job.exception(timeout_s)
                except TimeoutError:
                    return False
            self._jobs.pop(number, None)
        return True

    def advise(self, source: Source, rows: Rows, /) -> None:
        self._refuse_forked()
        _refuse_outside(rows, source.count, source.name, "element")

    def close(self, timeout_s: float | None = None, /) -> bool:
        if os.getpid() != self._process:
            return True
        with self._lock:
            self._is_closed = True
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        self._jobs.clear()
        return True

    def stats(self) -> dict[str, int]:
        self._refuse_forked()
        return dict(self._stats)

    def _refuse_forked(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("this engine belongs to the process that was forked; make another one here")


def copy_now(copies: Iterable[tuple[Any, ...]], /) -> None:
    """See `penstock.native.copy`."""
    for task in [_task(*copy) for copy in copies]:
        task()


def announce_now(source: Source, rows: Rows, /) -> None:
    """See `penstock.native.announce`."""
    _refuse_outside(rows, source.count, source.name, "element")


def _refuse_outside(rows: Rows, count: int, name: object, what: str) -> None:
    if getattr(rows, "dtype", None) != np.dtype(np.int64):
        raise TypeError(f"rows must be an array of int64, not {rows!r}")
    if rows.ndim != 1:
        raise ValueError(f"rows must have one axis, not {rows.ndim}")
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise IndexError(f"{what} {outside[0]} is out of range: {name} has {count}")


def _task(source: Source, rows: Rows, out: Any, out_rows: Rows | None, code: int | None) -> Callable[[], int]:
    """Checks one copy, and returns the function that executes it."""
    if not isinstance(source, Source):
        raise TypeError(f"expected a source of this engine, not {source!r}")
    out = out.array if isinstance(out, Source) else out
    out = out if isinstance(out, np.ndarray) else np.asarray(memoryview(out))
    if out.dtype.hasobject:
        raise TypeError("a destination cannot hold Python objects")
    if not out.ndim:
        raise ValueError("a destination needs an axis of rows")
    if not out.flags.writeable:
        raise ValueError("a destination must be writable")
    if out.nbytes and not out[:1].flags.c_contiguous:  # not `out[0]`: a record has no flags of its own
        raise ValueError("the rows of a destination must be C-contiguous")
    _refuse_outside(rows, source.count, source.name, "element")
    if out_rows is None:
        if len(rows) > len(out):
            raise IndexError(f"a destination's row for {len(rows) - 1} is out of range: {source.name} has {len(out)}")
        out_rows = np.arange(len(rows))
    else:
        _refuse_outside(out_rows, len(out), source.name, "destination row")
        if len(out_rows) != len(rows):
            raise ValueError(f"{len(rows)} rows have {len(out_rows)} destination rows")
    rows, out_rows = rows.copy(), out_rows.copy()
    if code and source.number_nbytes != source.row_nbytes and dtypes_of(code)[0].itemsize != source.number_nbytes:
        raise ValueError(f"the conversion is of other numbers than those of {source.name}")
    out_nbytes = out.itemsize * math.prod(out.shape[1:])
    types = None if code is None or code == 0 else dtypes_of(code)
    if source.row_nbytes * (types[1].itemsize if types else 1) != out_nbytes * (types[0].itemsize if types else 1):
        raise ValueError(
            f"elements of {source.name} have {source.row_nbytes} bytes, which do not fit rows of {out_nbytes} bytes"
        )

    if (part := source.missing(rows)) is not None:
        raise IndexError(f"part {part} of {source.name} is not there")

    def run() -> int:
        for row, place in zip(rows.tolist(), out_rows.tolist(), strict=True):
            data = source.read(row)
            if types:
                with np.errstate(all="ignore"):
                    numbers = data.view(types[0])
                    if types[0].kind == "c" and types[1].kind not in "bc":
                        numbers = numbers.real  # without the warning that the imaginary part is lost
                    data = numbers.astype(types[1]).view(np.uint8)
            if len(data):
                _row_bytes(out, place)[: len(data)] = data
        return int(rows.size * out_nbytes)

    return run


def _row_bytes(out: NDArray[Any], place: int) -> Bytes:
    """The bytes of one row, as a view."""
    return out[place : place + 1].reshape(-1).view(np.uint8)
