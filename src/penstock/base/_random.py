"""Randomness as arithmetic: orders that are computed, never stored, and generators keyed by element.

Everything here is a pure function of its arguments. An order is a bijection on `[0, n)` that is evaluated at
the positions asked for, so a shuffle of 10**12 elements costs no memory and no wait. Orders use NumPy's
integer arithmetic and the raw output of the Philox bit generator alone, both fixed by definition: an order
is the same on every platform and NumPy version, and golden files hold it to that.

Two constructions, by the length of what is shuffled:

- Up to `EXACT_LIMIT` positions: sorting random 64-bit words. Every permutation is equally likely.
- Above: a generalised Feistel network with cycle walking (J. Black and P. Rogaway, "Ciphers with Arbitrary
  Finite Domains", CT-RSA 2002). Its halves are not powers of two but `a` and `b` near `sqrt(n)` with
  `n <= a * b < n + a`, so hardly an element walks; over the next power of two up to half of them would, and
  the last stragglers of each block would cost more than the block.

Threads: the functions may be called from any thread; NumPy releases the GIL inside. Two threads that miss
the same block both compute it, which wastes a fraction of a millisecond and nothing else. `ElementRng` and
`seeded_globals` belong to one thread each.
"""

import contextlib
import ctypes
import functools
import hashlib
import math
import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from penstock import native

EXACT_LIMIT: Final = 4096
"""Longest stretch (in positions) that is permuted by sorting random words, exactly uniformly."""

BLOCK_LENGTH: Final = 4096
"""Most positions in a cached block: enough to spread the cost of NumPy calls, few enough to wait for."""

BLOCK_CACHE_NBYTES: Final = 4 * 1024 * 1024
"""Most bytes of blocks that the process keeps, over all orders and epochs: 128 blocks of 32 KiB."""

ROUND_COUNT: Final = 10
"""Feistel rounds. Statistics of pairs over 400 orders of 5,000 tell 6 rounds from chance, but not 7."""

_CACHED_BLOCKS_PER_CALL: Final = 4
_CHUNK_LENGTH: Final = 16384
_SORTED_LENGTH: Final = 64
"""Of many short orders, the longest (in places) that are sorted: a network over so few is no even choice."""
_WATCHED_SEED: Final = 0x57A7C4ED

_Words = NDArray[np.uint64]
_Positions = NDArray[np.int64]


def permute(indices: _Positions, n: int, *, seed: int, epoch: int) -> _Positions:
    """Maps positions of a shuffled dataset to the indices of the elements that stand there.

    The map is a bijection on `[0, n)`, keyed by `seed`, `epoch` and `n`. Positions may come in any order and
    number, repeated or not. Those that lie in a few blocks of 4,096 are looked up in blocks kept for later
    calls; scattered ones are computed alone, without a block around each.

    Memory: O(len(indices)), whatever `n` is, and the cache of at most `BLOCK_CACHE_NBYTES`.

    Args:
        indices: Positions in `[0, n)`, shape (k,), int64.
        n: Number of elements, `1 <= n < 2**62`.
        seed: Any integer, negative or of any size.
        epoch: Any integer.

    Returns:
        Indices in `[0, n)`, shape (k,), int64; a new array.

    Raises:
        IndexError: A position lies outside `[0, n)`.
    """
    return _image(indices, n, seed, epoch, n)


def local_permute(indices: _Positions, n: int, *, seed: int, epoch: int, window: int) -> _Positions:
    """Like `permute`, but an element moves by less than `window` positions.

    The range is cut into windows of `window` positions. Each window is permuted with a key of its own. The cuts
    are shifted by a random offset in each epoch, so the first and the last window may be shorter. An element
    that could not pass a border in one epoch can pass it in another. `window >= n` is the full shuffle: it
    equals `permute`. Neighbouring positions share a window, so reads stay as local as the window is.

    Memory: as `permute`. Scattered positions with `window <= 4096` cost a whole window each in time.

    Args:
        indices: Positions in `[0, n)`, shape (k,), int64.
        n: Number of elements, `1 <= n < 2**62`.
        seed: Any integer, negative or of any size.
        epoch: Any integer.
        window: Positions in a window, at least 1; 1 leaves every element in its place.

    Returns:
        Indices in `[0, n)`, shape (k,), int64; a new array.

    Raises:
        IndexError: A position lies outside `[0, n)`.
    """
    return _image(indices, n, seed, epoch, min(window, n))


def permute_each(places: _Positions, sizes: _Positions, orders: _Positions, *, seed: int, epoch: int) -> _Positions:
    """Maps places of many short orders, each of a length and a key of its own, in a few calls.

    The map of one order is a bijection on `[0, size)`, keyed by `seed`, `epoch`, its number and the next power of two.
    Up to 64 it comes from sorting random words. Above, it is the same Feistel network over that power, so all orders of
    about one size take one call, and at most two passes on average.

    Args:
        places: A place in its order, in `[0, size)`, shape (k,), int64.
        sizes: The length of that order, at least 1 and below 2**62.
        orders: Its number, any int64.
        seed: Any integer.
        epoch: Any integer.

    Returns:
        Places in `[0, size)`, shape (k,), int64; a new array.
    """
    words = np.random.Philox(key=_key("orders", seed, epoch)).random_raw(1 + 2 * ROUND_COUNT)
    tweaks, rounds = _mix(orders.astype(np.uint64) + words[:1]), words[1:].copy()
    rounds[::2] |= np.uint64(1)
    widths = np.left_shift(1, np.frexp(sizes - 1)[1].astype(np.int64))
    out = places.astype(np.uint64)
    for width in np.unique(widths).tolist():
        left = np.flatnonzero(widths == width)
        if width <= _SORTED_LENGTH:
            keys, row = np.unique(tweaks[left], return_inverse=True)
            drawn = _mix(_mix(np.add.outer(keys, rounds[:1] * np.arange(1, width + 1, dtype=np.uint64))))
            column = np.arange(width)
            lengths = np.zeros(len(keys), np.int64)
            lengths[row] = sizes[left]
            drawn[column >= lengths[:, None]] = np.iinfo(np.uint64).max
            out[left] = np.argsort(drawn, axis=1, kind="stable")[row, places[left]].view(np.uint64)
            continue
        a = math.isqrt(width - 1) + 1
        while left.size:
            values = out[left]
            native.permute(values, width, a, -(-width // a), tweaks[left], rounds)
            out[left] = values
            left = left[values >= sizes[left].view(np.uint64)]
    return out.view(np.int64)


def are_firsts(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each number is the first of its kind, where equal numbers follow each other."""
    found = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=found[1:])
    return found


def deal(places: _Positions, orders: _Positions, counts: Sequence[int], *, seed: int) -> tuple[_Positions, _Positions]:
    """Deals cards to places of many short orders, in one call.

    Order `j` is `permute(arange(n), n, seed=seed + (j << 64), epoch=0)`, and `n` the sum of `counts`. Its first
    `counts[0]` elements are cards of kind 0, the next `counts[1]` of kind 1, and so on.

    Args:
        places: A place in its order, in `[0, n)`, shape (k,), int64.
        orders: The number of its order, from 0 on.
        counts: The number of cards of each kind; their sum is from 1 to `EXACT_LIMIT`.
        seed: Any integer.

    Returns:
        For each place the kind of its card, and the number of places before it in its order that have the same kind.
    """
    by_order = np.argsort(orders, kind="stable")
    ordered, dealt, before = orders[by_order], places[by_order], np.empty_like(places)
    is_first, size = are_firsts(ordered), sum(counts)
    names = (f"penstock.draws:{seed + (order << 64):x}:0:{size:x}:{size:x}" for order in ordered[is_first].tolist())
    keys = np.frombuffer(b"".join(map(_digest, names)), "<u8").astype(np.uint64).reshape(-1, 2)
    native.deal(keys[np.cumsum(is_first) - 1], dealt, np.cumsum(counts), before)
    kinds, ranks = np.empty_like(dealt), np.empty_like(before)
    kinds[by_order], ranks[by_order] = dealt, before
    return kinds, ranks


class _Order:
    """One order: a range of `n` positions cut into windows, each permuted by its own key. Immutable.

    A full shuffle is the case of one window. Below, a *place* is a position plus `shift`, so that window `j`
    covers the places `[j * window, (j + 1) * window)` as far as they lie in `[shift, shift + n)`.
    """

    def __init__(self, n: int, seed: int, epoch: int, window: int) -> None:
        assert 1 <= window <= n < 2**62, (n, window)
        name = (seed, epoch, n, window)
        words = np.random.Philox(key=_key("order", *name)).random_raw(2 + 2 * ROUND_COUNT)
        self.n = n
        self.window = window
        self.shift = 0 if window == n else int(words[0]) * window >> 64
        self.last_window = (n - 1 + self.shift) // window
        self.is_exact = window <= EXACT_LIMIT
        # A block of an exact order is a whole number of windows.
        self.block_length = BLOCK_LENGTH // window * window if self.is_exact else BLOCK_LENGTH
        self._draws_key = _key("draws", *name)
        self._salt = words[1:2]
        self._rounds = words[2:].copy()
        self._rounds[::2] |= np.uint64(1)

    def block_bounds(self, position: int) -> tuple[int, int]:
        """Gives the positions `[start, stop)` of the block that holds `position`."""
        start = (position + self.shift) // self.block_length * self.block_length - self.shift
        return max(start, 0), min(start + self.block_length, self.n)

    def compute(self, positions: _Positions) -> _Positions:
        """Computes the images of exactly these positions, all in `[0, n)`, without the cache."""
        evaluate = self._sort if self.is_exact else self._encipher
        if positions.size <= _CHUNK_LENGTH:
            return evaluate(positions)
        # In chunks, the working arrays stay in the processor's cache.
        out = np.empty(positions.shape, np.int64)
        for start in range(0, positions.size, _CHUNK_LENGTH):
            out[start : start + _CHUNK_LENGTH] = evaluate(positions[start : start + _CHUNK_LENGTH])
        return out

    def _sort(self, positions: _Positions) -> _Positions:
        """Images under the exact construction: word `v` of one random stream belongs to place `v`."""
        places = positions + self.shift
        windows, row = np.unique(places // self.window, return_inverse=True)
        column = places % self.window
        out = np.empty(positions.shape, np.int64)
        row_count = _CHUNK_LENGTH // self.window + 2  # a chunk of neighbours, in one go
        for top in range(0, windows.size, row_count):
            some = windows[top : top + row_count]
            here = slice(None) if some.size == windows.size else (row >= top) & (row < top + row_count)
            ranks = np.argsort(self._draw(some), axis=1, kind="stable")
            out[here] = ranks[row[here] - top, column[here]] + some[row[here] - top] * self.window
        out -= self.shift
        return out

    def _draw(self, windows: _Positions) -> _Words:
        """Gives the words of these windows (ascending), shape (len(windows), window).

        Places outside the range get the word that keeps them where they are under a stable sort: the lowest
        before the range, the highest after it. The places inside are permuted uniformly.
        """
        words = np.empty((windows.size, self.window), np.uint64)
        row = 0
        for run in np.split(windows, np.flatnonzero(np.diff(windows) != 1) + 1):
            # One step of Philox's counter yields four words.
            counter, skipped = divmod(int(run[0]) * self.window, 4)
            count = run.size * self.window
            raw = np.random.Philox(key=self._draws_key, counter=counter).random_raw(skipped + count)
            words[row : row + run.size] = raw[skipped:].reshape(run.size, self.window)
            row += run.size
        if windows[0] == 0:
            words[0, : self.shift] = 0
        if windows[-1] == self.last_window:
            words[-1, self.n + self.shift - self.last_window * self.window :] = np.iinfo(np.uint64).max
        return words

    def _encipher(self, positions: _Positions) -> _Positions:
        """Images under the Feistel network. Windows differ by a word that is mixed into every round."""
        if self.window == self.n:
            return self._walk(positions.astype(np.uint64), self.n, self._salt).view(np.int64)
        low, high = ((int(each) + self.shift) // self.window for each in (positions.min(), positions.max()))
        is_inside = low > 0 and high < self.last_window  # and such windows are no exact ones
        if is_inside and low == high:  # as in most calls
            tweak = _mix(np.array([low], np.uint64) + self._salt)
            start = low * self.window - self.shift
            images = self._walk((positions - start).view(np.uint64), self.window, tweak).view(np.int64)
            images += start
            return images
        places = positions + self.shift
        windows = places // self.window
        first = np.maximum(windows * self.window, self.shift)
        tweaks = _mix(windows.astype(np.uint64) + self._salt)
        offsets = (places - first).view(np.uint64)
        end = self.n + self.shift
        if is_inside:
            images = self._walk(offsets, self.window, tweaks).view(np.int64)
            images += first
            return images - self.shift
        out = np.empty(positions.shape, np.uint64)
        # All windows but the two at the ends have the same length. Those two may be short enough to be exact.
        for stream, here, length in (
            (0, windows == 0, min(self.window, end) - self.shift),
            (1, (windows > 0) & (windows < self.last_window), self.window),
            (2, (windows > 0) & (windows == self.last_window), end - self.last_window * self.window),
        ):
            if not here.any():
                continue
            if length <= EXACT_LIMIT:
                words = np.random.Philox(key=self._draws_key, counter=stream << 64).random_raw(length)
                out[here] = np.argsort(words, kind="stable").view(np.uint64)[offsets[here].view(np.int64)]
            else:
                out[here] = self._walk(offsets[here], length, tweaks[here])
        images = out.view(np.int64)
        images += first - self.shift
        return images

    def _walk(self, values: _Words, n: int, tweaks: _Words) -> _Words:
        """Replaces values in `[0, n)` by their images under the Feistel network."""
        a = math.isqrt(n - 1) + 1
        native.permute(values, n, a, -(-n // a), tweaks, self._rounds)
        return values


def _image(positions: _Positions, n: int, seed: int, epoch: int, window: int) -> _Positions:
    """Chooses between the cached blocks and the computation; both give the same."""
    if positions.size == 0:
        return np.empty(0, np.int64)
    order = _order(n, seed, epoch, window)
    head = int(positions[0])
    start, stop = order.block_bounds(head)
    offsets = positions - start
    # As unsigned, what lies before the block is huge too: one pass finds both sides, in half the time of `max()`.
    if 0 <= head < n and int(np.maximum.reduce(offsets.view(np.uint64))) < stop - start:
        return _block(order, start).take(offsets)
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= n:
        raise IndexError(f"Positions {low} to {high} were asked of an order of {n} positions.")
    if positions.size >= BLOCK_LENGTH:
        return order.compute(positions)
    first, last = ((each + order.shift) // order.block_length for each in (low, high))
    if last - first >= _CACHED_BLOCKS_PER_CALL:
        return order.compute(positions)
    out = np.empty(positions.shape, np.int64)
    for number in range(first, last + 1):
        start, stop = order.block_bounds(max(number * order.block_length - order.shift, 0))
        here = (positions >= start) & (positions < stop)
        if here.any():
            out[here] = _block(order, start).take(positions[here] - start)
    return out


@functools.lru_cache(maxsize=BLOCK_CACHE_NBYTES // (BLOCK_LENGTH * 8))
def _order(n: int, seed: int, epoch: int, window: int) -> _Order:
    return _Order(n, seed, epoch, window)


@functools.lru_cache(maxsize=BLOCK_CACHE_NBYTES // (BLOCK_LENGTH * 8))
def _block(order: _Order, start: int) -> _Positions:
    """Images of the block of positions that begins at `start`; read-only, for all threads share it."""
    block = order.compute(np.arange(*order.block_bounds(start), dtype=np.int64))
    block.flags.writeable = False
    return block


def hashed(numbers: _Positions, seed: int) -> _Positions:
    """Gives a number from 0 to 2**32 - 1 for each number, shape (k,), int64, keyed by `seed`."""
    salt = np.uint64(_key("hash", seed) & 0xFFFFFFFFFFFFFFFF)
    return (_mix(numbers.astype(np.uint64) + salt) >> np.uint64(32)).view(np.int64)


def random_words(count: int, *name: int) -> NDArray[np.uint32]:
    """Gives words of 32 random bits, shape (count,), that depend on the integers in `name` alone."""
    words = np.random.Philox(key=_key("words", *name)).random_raw(-(-count // 2))
    return words.astype("<u8", copy=False).view("<u4")[:count].astype(np.uint32, copy=False)


def _mix(words: _Words) -> _Words:
    """A bijection on 64-bit words whose every output bit depends on every input bit; works in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def _key(purpose: str, *numbers: int) -> int:
    """Gives 128 bits that depend on the purpose and on integers of any size and sign, in this order."""
    # In hexadecimal, because Python refuses to write very long integers in decimal.
    text = ":".join((f"penstock.{purpose}", *(f"{number:x}" for number in numbers)))
    return int.from_bytes(_digest(text), "little")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


_MT19937_NBYTES: Final = 625 * 4
"""624 words and a position."""


class ElementRng:
    """Gives each element a random generator that depends on (seed, depth, epoch, index) and nothing else.

    One Philox generator is re-keyed for each element (1 us) rather than made anew (15 us). The key is a hash
    of (seed, depth); epoch and index are the two upper words of the 256-bit counter and drawing counts in the
    two lower ones, so streams of different elements cannot overlap: that takes 2**130 words.

    Not safe for threads, by design: one for each worker.
    """

    def __init__(self, seed: int, depth: int) -> None:
        """Keys the generator.

        Args:
            seed: The step's seed, any integer.
            depth: Which of the random steps with this seed it is, any integer.
        """
        key = _key("element", seed, depth)
        self._philox = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._philox)
        # Lists, whose numbers NumPy reads one by one three times as fast as those of arrays.
        self._counter = [0, 0, 0, 0]
        # Whatever an element left behind (words drawn and unused, half a word) is overwritten by this state.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": [key % 2**64, key >> 64]},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """Gives the generator of one element, at the beginning of its stream.

        It is the same object each time: a generator kept beyond the element continues with another element's
        stream after the next call.

        Args:
            epoch: In `[0, 2**64)`.
            index: The element's position in the step's input, in `[0, 2**64)`.
        """
        self._counter[2] = index
        self._counter[3] = epoch
        self._philox.state = self._state
        return self._generator


class seeded_globals:  # noqa: N801 - it is used as a statement, as `contextlib.suppress` is
    """Lends the global generators `np.random` and `random` to functions that draw from them.

    Both states are saved on entry and restored on exit, exceptions included. Between, `seed` sets both for
    one element and `used` says whether anything has drawn from them. The generators belong to the process, so only one
    thread may run functions of users meanwhile.

    Cost (one core of an AMD EPYC): 25 us to enter, call `used` once and leave if nothing has drawn, else 130 us.
    `seed` takes 15 us.
    """

    def __enter__(self) -> Self:
        self._numpy, self._python = _numpy_state(), random.getstate()
        # The second of two numbers that `randn` made is in no memory that is compared.
        self._has_spare = bool(self._numpy[1]["has_gauss"])
        self._words = _global_words()
        return self

    def __exit__(self, *_: object) -> None:
        global _last_read  # noqa: PLW0603
        words, state = self._numpy
        if state["has_gauss"] or words != _numpy_words():
            np.random.set_state(state)
            _last_read = self._numpy
        random.setstate(self._python)

    def seed(self, seed: int, depth: int, epoch: int, index: int) -> None:
        """Sets both generators to states that depend on these four integers alone."""
        key = _key("globals", seed, depth, epoch, index)
        np.random.seed([key >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
        random.seed(key)
        self._words, self._has_spare = _global_words(), False

    def used(self) -> bool:
        """Whether either generator was drawn from, or set otherwise, since entry or the last `seed`."""
        has_lost_spare = self._has_spare and not np.random.get_state(legacy=False)["has_gauss"]
        return has_lost_spare or self._words != _global_words()


class owned_globals(seeded_globals):  # noqa: N801 - as its base
    """The same for a process that runs no other code: nothing is saved and restored, which takes most of the time."""

    _is_seeded = False

    def __enter__(self) -> Self:
        if not owned_globals._is_seeded:  # which also discards the second of two numbers that `randn` made
            np.random.seed(0)
            owned_globals._is_seeded = True
        self._words, self._has_spare = _global_words(), False
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the generators as they are."""


@contextlib.contextmanager
def watched_torch() -> Iterator[Callable[[], bool]]:
    """Reports whether a function draws from torch's global generator or seeds it, and restores the generator.

    Threads share that generator with each other and with the training, so no seed makes their numbers reproducible.
    """
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        yield lambda: False
        return
    saved = generator.get_state()
    # No function uses this seed. A function that seeds the generator with a fixed number is therefore noticed.
    generator.manual_seed(_WATCHED_SEED)
    watched = generator.get_state()
    try:
        yield lambda: not generator.get_state().equal(watched)
    finally:
        generator.set_state(saved)


def _global_words() -> tuple[bytes, Any]:
    """The memory of NumPy's global generator, and that of Python's."""
    return _numpy_words(), _python_words()


def _python_words() -> Any:
    """The memory of Python's global generator (0.5 us), or its state (12 us)."""
    generator: Any = random._inst  # it has no public name
    if not _knows_python_words:
        return generator.getstate()
    return ctypes.string_at(id(generator) + object.__basicsize__, _MT19937_NBYTES), generator.gauss_next


def _finds_python_words() -> bool:
    """Whether the memory of Python's global generator is its position and 624 words, as `getstate` returns them."""
    generator: Any = random._inst
    base: Any = type(generator).__base__
    if sys.implementation.name != "cpython" or base.__basicsize__ < object.__basicsize__ + _MT19937_NBYTES:
        return False
    words = ctypes.string_at(id(generator) + object.__basicsize__, _MT19937_NBYTES)
    position, *numbers = struct.unpack("=i624I", words)
    return bool((*numbers, position) == generator.getstate()[1])


def _numpy_words() -> bytes:
    """The memory of NumPy's global generator (0.5 us), or what stands for it."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in the stubs
    if not isinstance(generator, np.random.MT19937):  # the user put another one there
        return repr(generator.state).encode()
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_NBYTES)


_knows_python_words: Final = _finds_python_words()

_last_read: tuple[bytes, Any] = b"", None
"""NumPy's global generator when it was last asked for its state: its memory, and the state. Replaced as a whole."""


def _numpy_state() -> tuple[bytes, Any]:
    """The memory of NumPy's global generator, and its state, which takes 35 us to ask for if the memory has changed.

    A number that `randn` made as one of two, and has not given out yet, is not in that memory. Making it changes the
    memory; and while there is one, NumPy is asked.
    """
    global _last_read  # noqa: PLW0603
    words, known = _numpy_words(), _last_read
    if words != known[0] or known[1]["has_gauss"]:
        _last_read = known = words, np.random.get_state(legacy=False)
    return known
