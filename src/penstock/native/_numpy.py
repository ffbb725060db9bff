"""The copy engine in NumPy: the oracle of the native one in tests, and its substitute where that is not built.

It checks what would give wrong elements. What would read or write other memory in the native engine, NumPy itself
refuses. It has no engine: plans that only move bytes run on worker threads, which need the interpreter for each copy.
"""

import errno
import itertools
import math
import operator
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.native._dtypes import dtypes_of
from penstock.native._errors import CopyError

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]


_FOLD: Final = np.uint64(32)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)

Words = NDArray[np.uint64]


def permute_now(values: Words, n: int, a: int, b: int, tweaks: Words, rounds: Words) -> None:
    """See `permute`. A value that leaves `[0, n)` goes through the network again, until it is back."""
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


def deal(keys: Words, places: Rows, ends: Rows, before: Rows, /) -> None:
    """See `native.deal`."""
    counts = np.diff(ends, prepend=0)
    kind_of = np.repeat(np.arange(len(ends)), counts)
    rows = enumerate(zip(keys.tolist(), places.tolist(), strict=True))
    for (low, high), same in itertools.groupby(rows, lambda row: row[1][0]):
        words = np.random.Philox(key=low | high << 64).random_raw(len(kind_of))
        kinds = kind_of[np.argsort(words, kind="stable")]
        seen = np.empty_like(kinds)
        seen[np.argsort(kinds, kind="stable")] = np.arange(len(kinds)) - np.repeat(ends - counts, counts)
        for row, (_, place) in same:
            places[row], before[row] = kinds[place], seen[place]


@dataclass(eq=False)
class Source:
    """Elements that can be copied, see `Engine.memory` and `Engine.file`."""

    name: object
    count: int
    row_nbytes: int
    read: Callable[[int], Bytes]
    """The bytes of one element."""
    span: Callable[[int, int, int], Bytes] | None = None
    """Of elements of one byte: the bytes from a place, so many of them, for the element of that number."""
    number_nbytes: int | None = None
    """The bytes of a value of a sparse matrix, which a conversion takes."""


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
    return Source(name, len(array), row_nbytes, lambda row: _bytes_of(array[row : row + 1]), span)


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
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    is_empty = 0 in shape
    low = 0 if is_empty else sum(min(0, each) for each in reach)
    nbytes = 0 if is_empty else sum(max(0, each) for each in reach) + item_nbytes - low
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

    source = Source(name, count, row_nbytes, read, span if (row_nbytes, stride) == (1, 1) else None)
    weakref.finalize(source, os.close, file)
    return source


Vector = tuple[Source, Rows, int, int, int]
"""Numbers: a source of bytes, the first byte of each piece, the numbers of a piece, the bytes of one, and the end."""


def sparse_source(starts: Rows, indices: Vector, values: Vector, code: int, columns: int, name: object) -> Source:
    """See `Engine.sparse`."""
    given = np.dtype(np.int64) if code == 0 else dtypes_of(code)[0]
    item_nbytes = values[3]

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

    return Source(name, len(starts) - 1, columns * item_nbytes, read, number_nbytes=item_nbytes)


def _numbers(vector: Vector, first: int, end: int, row: int) -> Bytes:
    source, places, length, item_nbytes, _ = vector
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


def lay_rows(
    values: Sequence[Any],
    out: NDArray[Any],
    filling: NDArray[Any],
    rows: Rows | None = None,
    numbers: NDArray[np.int32] | None = None,
    places: NDArray[np.int32] | None = None,
    /,
) -> bool:
    """See `native.lay_rows`."""
    for value in values:
        if getattr(value, "dtype", "") != out.dtype or value.ndim != 1 or not value.flags.c_contiguous:
            return False
    several = range(len(out)) if rows is None else rows.tolist()
    before, number, at = None, 0, 0
    for row, value in zip(several, values, strict=True):
        number, at = (number, at) if row == before else (0, 0)
        number, end = number + 1, at + len(value)
        for each, laid, rest in ((out, value, filling), (numbers, number, 0), (places, np.arange(len(value)), 0)):
            if each is not None:
                each[row, at:end] = laid
                each[row, end:] = rest
        before, at = row, end
    return True


def read_parts(descriptor: int, offsets: Rows, memory: Bytes, starts: Rows, sizes: Rows) -> tuple[int, int, int]:
    """See `native.read_parts`."""
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
    kinds = len(capacity)
    table = sizes.reshape(kinds, len(rows)).T
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
    count = len(rows)
    kinds = sizes.size // count if count else 1
    left, table = room.reshape(kinds, -1), sizes.reshape(kinds, count).T.astype(np.int64)
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
    places[:] = np.argsort(keys, kind="stable")


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


def copy_now(copies: Iterable[tuple[Any, ...]], /) -> None:
    """See `penstock.native.copy`."""
    for task in [_task(*copy) for copy in copies]:
        task()


def announce_now(sources: Iterable[Source], rows: Rows, /) -> None:
    """Does nothing, but for a look at the rows."""
    for source in sources:
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
    out = out if isinstance(out, np.ndarray) else np.asarray(memoryview(out))
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
    if code and source.number_nbytes not in (None, dtypes_of(code)[0].itemsize):
        raise ValueError(f"the conversion is of other numbers than those of {source.name}")
    out_nbytes = out.itemsize * math.prod(out.shape[1:])
    types = None if code is None or code == 0 else dtypes_of(code)
    if source.row_nbytes * (types[1].itemsize if types else 1) != out_nbytes * (types[0].itemsize if types else 1):
        raise ValueError(
            f"elements of {source.name} have {source.row_nbytes} bytes, which do not fit rows of {out_nbytes} bytes"
        )

    def run() -> int:
        for row, place in zip(rows.tolist(), out_rows.tolist(), strict=True):
            data = source.read(row)
            if types:
                with np.errstate(all="ignore"):
                    data = data.view(types[0]).astype(types[1]).view(np.uint8)
            if len(data):
                _row_bytes(out, place)[: len(data)] = data
        return int(rows.size * out_nbytes)

    return run


def _row_bytes(out: NDArray[Any], place: int) -> Bytes:
    """The bytes of one row, as a view."""
    return out[place : place + 1].reshape(-1).view(np.uint8)
