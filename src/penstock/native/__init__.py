"""The copy engine: native threads that copy elements into batches without the interpreter.

Copies are made in C++ if that was built. Otherwise, or with `PENSTOCK_NATIVE=0` in the environment, NumPy makes them
(`_numpy.py`), on the calling thread alone: there is no `Engine` then. `implementation()` says which.

A *source* holds elements: an array in memory, or rows of a file. A *job* is a list of *copies*, often
one batch. A copy is a tuple `(source, rows, destination, destination_rows, conversion)`:

- `rows`: the elements to copy, int64, shape `(n,)`.
- `destination`: a writable array (or buffer) whose first axis counts rows. Each row is contiguous; the distance between
  rows is free. The engine writes bytes: shape and dtype of a row are the caller's business, only the size must fit. The
  bytes are undefined if it shares memory with the source. Where the same array is written often, `Engine.memory(array)`
  takes its place, so that it is examined once.
- `destination_rows`: the rows to write, int64, shape `(n,)`; None for 0, 1, 2, ...
- `conversion`: what `conversion(source_dtype, destination_dtype)` returned; None to copy bytes.

See design/0021-copy-engine.md for the reasons.
"""

import atexit
import logging
import math
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.typing import NDArray

from penstock.native import _numpy
from penstock.native._dtypes import conversion as conversion
from penstock.native._errors import CopyError as CopyError

if TYPE_CHECKING:
    from penstock.native._engine import Engine as _Threads

    _implementation = _numpy
else:
    try:
        if os.environ.get("PENSTOCK_NATIVE") == "0":
            raise ModuleNotFoundError
        from penstock.native import _engine as _implementation

        _Threads = _implementation.Engine
    except ImportError:
        _implementation, _Threads = _numpy, object

Source = _implementation.Source
Vector = tuple[Any, NDArray[np.int64], int, np.dtype[Any]]
"""Numbers in pieces of one length, for `Engine.sparse`: `(source, places, piece_length, dtype)`.

- `source`: a source whose elements are bytes.
- `places`: the first byte of each piece, int64.
- `piece_length`: the numbers of a piece; the last may have fewer.
- `dtype`: that of a number.
"""
count_down: Final = _implementation.count_down
"""Subtracts from a word of shared memory in one step, and returns what is left: `count_down(words, place, count)`.

Threads and processes that count down the same word see a sequence of differences, in one order for all of them; what a
caller wrote before is there for those that count after it. NumPy's engine writes and returns 0 at once.
"""
fit_rows: Final = _implementation.fit_rows
"""Lays elements into rows, one after the other: `fit_rows(sizes, capacity, rows, fit)` returns the number of rows.

`sizes` has shape `(kinds, n)`, or `(n,)`: each element takes so much of each kind of room. A row has `capacity`, shape
`(kinds,)`, the first at most `MOST_CAPACITY`. `rows`, shape `(n,)`, gets the row of each. `fit` is `NEXT`: the last row
or a new one; `FIRST`: the first row that has room; or `BEST`: the one with the least room that is enough. With several
kinds that is the least sum of their shares, among 256 rows; if none of these has room of each kind, the first that has.
The GIL is free meanwhile.
"""
trade_rows: Final = _implementation.trade_rows
"""Lets elements in rows trade places: `trade_rows(sizes, rows, room, is_sum, window, words)`.

Each element in turn draws one of the `window` elements from itself on, by a word of 32 random bits. They change rows if
both fit. `room`, shape `(kinds, rows)`, is the room left in each row (`is_sum`), or the largest size that may be in it.
Sizes are as in `fit_rows`. The GIL is free meanwhile.
"""
order_keys: Final = _implementation.order_keys
"""Writes the order of keys: `order_keys(keys, places)`, both of shape `(n,)`.

`places` gets the place of the smallest key, of the next one, and so on; of equal keys, that of the first one first. The
GIL is free meanwhile.
"""
NEXT, FIRST, BEST, MOST_CAPACITY = _numpy.NEXT, _numpy.FIRST, _numpy.BEST, _numpy.MOST_CAPACITY
copy: Final = _implementation.copy_now
"""Executes copies on the calling thread, without the GIL if they may take long: `copy(copies)`.

CopyError: an element could not be read.
"""
announce: Final = _implementation.announce_now
"""Tells the kernel, on the calling thread, that some rows of files will be read: `announce(sources, rows)`."""
read_parts: Final = _implementation.read_parts
"""Reads parts of a file, without the GIL for all of them: `read_parts(descriptor, offsets, memory, starts, sizes)`.

`offsets` are the first bytes of the parts in the file, shape `(n,)`; `memory` is a writable array of bytes, `starts`
are their first bytes there, and `sizes` their bytes. Returns the number of parts that were read. If that is not all:
the bytes of the next one, and the error number of the system, or 0 where the file ends.
"""
lay_rows: Final = _implementation.lay_rows
"""Lays vectors into rows, and a number behind them: `lay_rows(values, out, filling, rows, numbers, places)`.

`values` are arrays; `out` is C-contiguous, of two axes, and no array of Python objects; `filling` is the number, an
array of the same dtype without axes. `rows`, shape `(len(values),)`, has the row of each value: those of a row follow
each other, and lie end to end. Without it, or with None, `out` has a row for each value. If they are given, `numbers`
and `places`, of int32 and the shape of `out`, get the number of the value at each place of these rows, from 1 on, and
the place within it; behind them 0. Returns False if a value is something else than a C-contiguous vector of the dtype
of `out`; the rows then have no content.
"""
permute: Final = _implementation.permute_now
"""Replaces values in `[0, n)` by their images under a keyed bijection: `permute(values, n, a, b, tweaks, rounds)`.

`values` has shape `(k,)`, each below `n`. `a` and `b`, at most 2**31, are the sizes of the halves, `a * b // 2 <= n <=
a * b`. `tweaks` has shape `(k,)`, or `(1,)` for all values; and `rounds` a multiplier and an addend for each round of
the network, shape `(2 * rounds,)`. The GIL is free meanwhile.
"""
deal: Final = _implementation.deal
"""Deals cards to places of many orders: `deal(keys, places, ends, before)`.

The first card of an order is the number of the least word that NumPy's generator Philox draws with its key, and so on;
of equal words, the first is the lesser. The cards below `ends[0]` are of kind 0, those below `ends[1]` of kind 1, and
so on; `ends[-1]` is the number of cards, at most 4,096.

`keys` has the lower and the upper 64 bits for the order of each place, shape `(k, 2)`. `places`, shape `(k,)`, gets the
kind of the card at each place, and `before` the number of places before it in its order that have this kind. Places
of one order that follow each other share the work. The GIL is free meanwhile.
"""
outlast_interpreter: Final = _implementation.outlast_interpreter
"""Lets threads that are in C++ code wait for the end of the process, once the interpreter ends.

Python before 3.14 would end them where they take the GIL again, in a way that ends the whole program by signal 6. The
main thread calls it at the end of the program.
"""
return_slot: Final = _implementation.return_slot
"""Ends a lease, as the callback of a weak reference: `return_slot(leases, free, on_free, interrupts, slot, lease, _)`.

It appends `slot` to `free`, removes `lease` from `leases`, and calls `on_free` unless that is None. What Ctrl-C raises
within `on_free` is appended to `interrupts`, since Python drops it. Native, so that no Ctrl-C strikes before.
"""

_MOST_NBYTES: Final = (2**63 - 1) // 4
"""A larger row overflows."""
_logger: Final = logging.getLogger("penstock")
_engines: Final[weakref.WeakSet["Engine"]] = weakref.WeakSet()
_has_logged = False


def implementation() -> str:
    """Returns `"native"` or `"numpy"`."""
    return "numpy" if _implementation is _numpy else "native"


def has_engine() -> bool:
    """Whether there are threads that copy. Without, the log says why, once."""
    global _has_logged  # noqa: PLW0603
    is_native = implementation() == "native"
    if not is_native and not _has_logged and os.environ.get("PENSTOCK_NATIVE") != "0":
        _has_logged = True
        _logger.warning(
            "The copy engine was not compiled when penstock was installed, so NumPy makes the copies, slower. "
            "Install a C++ compiler, and then this package again, from its sources."
        )
    return is_native


@final
class Engine(_Threads):
    """Threads that execute copies, job after job, in the order of submission.

    Several threads share a job by rows, so that the earliest job ends first. All methods may be called by any thread,
    and by finalizers. In a child made by fork the engine does nothing: `close` returns, everything else raises
    RuntimeError.

    These methods are called once a batch. They are inherited, so there is no Python in between:

    `submit(job_number, copies)` queues a job. Numbers increase. Rows are copied, so their arrays may change afterwards;
    the destinations must stay untouched until the job is done. Everything is checked first: IndexError names the source
    and the element, ValueError the sizes that do not fit, and the job is not queued.

    `wait(job_number, timeout_s=None)` returns True if the job is done, and False after the timeout. The GIL is free
    meanwhile, and Ctrl-C interrupts within 50 ms. CopyError: an element could not be read. LookupError: the job is not
    under way, because it was not submitted, waited for before, or cancelled, or because the engine was closed.

    `is_done(job_number)` returns whether `wait` would return or raise at once.

    `cancel(up_to, timeout_s=None)` drops all jobs up to this number. True: no thread writes into their destinations any
    more. False: after the timeout, some thread still does.

    `advise(sources, rows)` tells the kernel that these rows of each source will be read. It never waits. If too many
    calls are queued, it drops the oldest.

    `close(timeout_s=None)` ends the threads after the parts that they copy, and drops the jobs that are not done.
    False: a thread still hangs in a read; it is left alone, with the memory that it writes to. May be called again.

    `stats()` returns a dict: `nbytes` copied, `jobs` done, `cpu_ns` and `busy_ns` of the engine's threads. `busy_ns` is
    time by the clock.

    Args:
        thread_count: Threads that copy. Threads that announce reads come on top, with the first `advise`.
    """

    def __init__(self, thread_count: int) -> None:
        self.thread_count = thread_count
        _engines.add(self)

    @staticmethod
    def memory(array: Any, *, name: object = "an array") -> Source:
        """Makes a source of an array in memory, which it keeps alive.

        Args:
            array: Its first axis counts elements. Any strides, any dtype without Python objects.
            name: For errors.
        """
        return _implementation.memory_source(array, name)

    @staticmethod
    def file(
        path: str | os.PathLike[str] | int,
        offset: int,
        count: int,
        row_nbytes: int,
        row_stride: int | None = None,
        *,
        mapped: bool = True,
        give_back_nbytes: int = 0,
        inner: tuple[int, Sequence[int], Sequence[int]] | None = None,
        name: object = None,
    ) -> Source:
        """Makes a source of rows in a file. Sources in the same file share its descriptor and its mapping.

        At most 128 files of a process keep descriptors. Others are opened for each use.
        If the file is deleted or replaced by another of its name, copies fail with ESTALE.

        Args:
            path: The file by its absolute path, or an open descriptor, which is duplicated.
            offset: Byte of the file at which element 0 starts.
            count: Elements.
            row_nbytes: Bytes of an element.
            row_stride: Bytes from one element to the next, also fewer than `row_nbytes` (windows) or negative.
            mapped: True to read through a mapping, False with `pread`.
            give_back_nbytes: Whenever this number of bytes was copied, the mapping gives its pages back; 0 for never.
            inner: For elements that are not contiguous: item size, shape and strides in bytes.
            name: For errors; the path if None.

        Raises:
            OSError: The file cannot be opened.
        """
        item_nbytes, shape, strides = inner or (1, (row_nbytes,), (1,))
        if item_nbytes * math.prod(shape) != row_nbytes:
            raise ValueError(f"elements of {item_nbytes} x {tuple(shape)} bytes do not have {row_nbytes} bytes")
        fd, path_or_none = (path, None) if isinstance(path, int) else (-1, os.fspath(path))
        return _implementation.file_source(
            path_or_none,
            fd,
            offset,
            count,
            row_nbytes if row_stride is None else row_stride,
            item_nbytes,
            tuple(shape),
            tuple(strides),
            mapped,
            give_back_nbytes,
            path if name is None else name,
        )

    @staticmethod
    def parts(bounds: NDArray[np.int64], sources: Sequence[Source | None], *, name: object = "parts") -> Source:
        """Makes a source of elements that lie in several sources, one after the other, such as row groups, or files.

        Copies of columns that have the same `bounds` and rows are divided among the parts once. The error of an element
        in a part that is not there is IndexError.

        Args:
            bounds: The first element of each part and the number of all elements, shape `(parts + 1,)`.
            sources: That of each part; None where it is not there.
            name: For errors.

        Raises:
            ValueError: A part has another number of elements, or elements of another size, or is sparse.
        """
        return _implementation.parts_source(bounds, tuple(sources), name)  # type: ignore[attr-defined,no-any-return]

    @staticmethod
    def sparse(
        starts: NDArray[np.int64], indices: Vector, values: Vector, columns: int, *, name: object = "a sparse matrix"
    ) -> Source:
        """Makes a source of the rows of a sparse matrix, which are copied with zeros between their values.

        Row `i` has its values in the columns `indices[starts[i] : starts[i + 1]]`, in any order. Columns are checked in
        the moment in which they are used, because files may change. A conversion is of the values.

        A copy fails with CopyError, whose `errno` is EDOM for column number `found_nbytes` of `expected_nbytes`
        columns, and EEXIST for a column that a row has twice.

        Args:
            starts: Shape `(rows + 1,)`, from 0 or more on, and not decreasing; copied.
            indices: The column numbers, of any type of integers.
            values: Numbers of 1, 2, 4, 8 or 16 bytes.
            columns: The number of columns.
            name: For errors.

        Raises:
            ValueError: The starts decrease, or the numbers have too few pieces.
            IndexError: A piece lies outside of its source.
        """
        kind, starts = np.dtype(indices[3]), _own(starts)
        if kind.kind not in "iu":
            raise TypeError(f"column numbers are integers, not {kind}")
        if not len(starts) or starts[0] < 0 or columns < 0 or (starts[1:] < starts[:-1]).any():
            raise ValueError("the starts of a sparse matrix's rows decrease, or there are none")
        if columns * np.dtype(values[3]).itemsize > _MOST_NBYTES:
            raise ValueError("the elements of a source are too large")
        first, second = (_checked(vector, int(starts[-1])) for vector in (indices, values))
        return _implementation.sparse_source(starts, first, second, conversion(kind, np.int64) or 0, columns, name)


def _own(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """A copy that stays as it was checked."""
    if getattr(numbers, "dtype", None) != np.int64:
        raise TypeError(f"an array of int64 is needed, not {numbers!r}")
    return numbers.copy()


def _checked(vector: Vector, count: int) -> tuple[Any, NDArray[np.int64], int, int, int]:
    """A vector of a sparse matrix, with the bytes of a number and the end of its last piece."""
    source, places, length, dtype = vector
    nbytes, piece_count = np.dtype(dtype).itemsize, -(-count // max(1, length))
    starts = _own(places)[:piece_count]
    if nbytes not in (1, 2, 4, 8, 16) or length < 1 or piece_count > len(starts):
        raise ValueError("the pieces of a sparse matrix's numbers do not match their count")
    counts = np.minimum(length, count - np.arange(piece_count) * length)
    outside = np.flatnonzero((starts < 0) | (starts > source.count) | (counts > (source.count - starts) // nbytes))
    if len(outside):
        raise IndexError(f"piece {outside[0]} lies outside of {source.name}")
    return source, starts, length, nbytes, int((starts + counts * nbytes).max(initial=0))


@atexit.register
def _close_all() -> None:
    """Ends all threads before the interpreter frees what they write to."""
    for engine in list(_engines):
        engine.close(5.0)
