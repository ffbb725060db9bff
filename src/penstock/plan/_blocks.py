"""Blocks of positions that are divided into rows by the lengths of elements, for `bucket_by_length` and `pack`.

A block is some 65,536 elements. Which elements are in it never changes, and how many rows they make does not either. So
every epoch has the same number of rows, and row `i` is found without those before it. After a shuffle that differs from
epoch to epoch, the rows of a block differ too: elements trade places with others, wherever both fit. What an epoch does
to a block is a function of (seed, epoch, block). See design/0032-order-by-length.md.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import ArgumentError
from penstock.base._random import hashed, random_words
from penstock.memory._rows import Indices, within
from penstock.plan._index import mark_of
from penstock.plan._node import Memory

_log = logging.getLogger("penstock")

BLOCK_LENGTH: Final = 65_536
"""The most elements in a block."""
_KEPT_BLOCKS: Final = 4
"""The divided blocks that a process keeps of an order that differs from epoch to epoch: the readers of one epoch need
one or two of them. Of an order that stays, all are kept."""
_WINDOWS: Final = (16, 1024)
"""Sequences trade places with those that are so near by length: long ones find partners near, short ones far."""
_BATCH_WINDOW: Final = 8
"""Elements of batches trade places with those of at most so many batches. Of 65,536 lengths in batches of 32, two leave
12 % of the pairs of a batch together in the next epoch, and 0.6 % is padding; eight leave 3 %, and 2.2 % is padding. Of
3,000 lengths, two leave as many, and 12 % is padding."""
_RUNS: Final = (192, 64, 32, 16, 8, 4, 2, 1)
"""Batches of similar cost stand together in runs of so many, each of which consists of the next smaller ones. 192 is a
multiple of the usual numbers of ranks. Longer runs have costs that differ more; shorter ones divide more steps."""
COST_BATCHES: Final = 10 * _RUNS[0]
"""Batches of neighbours trade places with at most so many."""
_NO_LIMIT: Final = 2**32 - 1
_FITS: Final = {"next": native.NEXT, "first": native.FIRST, "best": native.BEST}

Lengths = npt.NDArray[np.uint32]
Fit = Literal["next", "first", "best"]
Draw = Callable[[int], Lengths]
"""Returns so many random words."""


@final
@dataclass(frozen=True, eq=False)
class Cost:
    """What batches cost, by a function of the user: `cost(rows, length)`."""

    function: Callable[[Indices, Indices], Any]

    def of(self, rows: Indices, length: Indices) -> npt.NDArray[np.float64]:
        """The costs of some batches, by their numbers of elements and their longest elements.

        Raises:
            ArgumentError: The function returned something else than a number for each.
        """
        found = np.asarray(self.function(rows, length))
        if found.shape != rows.shape or found.dtype.kind not in "biuf" or not np.isfinite(found).all():
            raise ArgumentError(
                f"cost= returned {found.dtype} {found.shape} for {len(rows)} batches. It takes arrays, the number of "
                "elements of each batch and the length of its longest, and returns a finite number for each: "
                "cost=lambda rows, length: rows * length**2."
            )
        return found.astype(np.float64)

    @cached_property
    def mark(self) -> str:
        """Digits that functions are told apart by: those of costs, for a function has no name that stays."""
        rows, length = (each.ravel() for each in np.meshgrid(1 << np.arange(0, 12, 2), 1 << np.arange(0, 20, 2)))
        return mark_of(self.of(rows, length).astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        """The function alone."""
        return {"function": self.function}


def in_runs(costs: npt.NDArray[np.float64], first: int, draw: Draw, *, descends: bool) -> Indices:
    """An order of batches in which neighbours cost about the same, whatever the number of ranks that share them.

    Batches are sorted by cost and cut into runs, and these into smaller runs, see `_RUNS`. On each level the runs of a
    larger one come in a random order. So any `2**k` batches that begin at a multiple of `2**k` are neighbours by cost.
    The first and the last run may be shorter, and stay where they are.

    Args:
        costs: Those of the batches, shape `(n,)`.
        first: The place of the first of them in the epoch, from which multiples count.
        draw: Makes random words.
        descends: Whether the first run is the dearest. Blocks that follow each other take turns, so that the end of one
            and the beginning of the next cost about the same.
    """
    ranked = np.argsort(costs, kind="stable")[:: -1 if descends else 1]
    places, keys = first % _RUNS[0] + np.arange(len(costs)), []
    for size in _RUNS:
        runs = places // size - first % _RUNS[0] // size
        sizes = np.bincount(runs)
        drawn = draw(len(sizes)).astype(np.int64) * len(sizes) + np.arange(len(sizes))  # no two are equal
        drawn[:1][sizes[:1] < size] = -1
        drawn[-1:][sizes[-1:] < size] = np.iinfo(np.int64).max
        keys.append(drawn[runs])
    return ranked[np.lexsort(keys[::-1])]


def as_lengths(verb: str, known: Sequence[npt.NDArray[Any]]) -> Lengths:
    """The lengths of elements as blocks have them.

    Raises:
        ArgumentError: One is 2**32 or more.
    """
    for each in known:
        if int(each.max(initial=0)) > _NO_LIMIT:
            first = int(np.argmax(each))
            raise ArgumentError(
                f"{verb}(lengths=...): lengths are below 2**32, but that of element {first} is {each[first]}. Compute "
                "lengths from this dataset, in its order."
            )
    table = np.empty((len(known), len(known[0])), np.uint32)
    for mine, each in zip(table, known, strict=True):
        mine[:] = each
    return table


def are_long(known: Iterable[npt.NDArray[Any]], sizes: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Which elements are longer than their row, shape `(n,)`; None if none is."""
    pairs = list(zip(known, sizes, strict=True))
    if all(int(each.max(initial=0)) <= size for each, size in pairs):
        return None
    found: npt.NDArray[np.bool_] = np.logical_or.reduce([each > size for each, size in pairs])
    return found


def _count_of(chosen: npt.NDArray[np.bool_] | None) -> int:
    return 0 if chosen is None else int(np.count_nonzero(chosen))


def caution_long(call: str, known: Sequence[npt.NDArray[Any]], sizes: Sequence[int]) -> None:
    """Logs how many elements are longer than their row."""
    is_long = are_long(known, sizes)
    if is_long is not None:
        first = int(np.argmax(is_long))
        text = (
            "%s: %d of %d elements are longer than that, the first is element %d. Each is an error where it is read; "
        )
        text += "loader(on_error='skip') leaves it out. To leave them out here: ds[lengths <= %d]."
        _log.warning(text, call, np.count_nonzero(is_long), len(is_long), first, sizes[0])


class Pieces(NamedTuple):
    """What a block is divided into: parts of its elements, each in a row."""

    elements: Indices | None
    """The element of each, by its number in the block; None if each is one."""
    rows: Lengths
    starts: Lengths | None = None
    """The first token of each, and the number of tokens of each; None if elements are whole."""
    counts: Lengths | None = None


class Divided(NamedTuple):
    """The rows of a block."""

    elements: npt.NDArray[Any]
    """Those of the input, row after row; of 32 bits where these are enough."""
    bounds: Indices
    """Where each row begins, and where the last one ends."""
    starts: Lengths | None
    counts: Lengths | None

    def taken(self, rows: Indices) -> tuple[Indices, Indices]:
        """The places of some rows' pieces, row after row; and the number of pieces of each."""
        sizes = self.bounds[rows + 1] - self.bounds[rows]
        return np.repeat(self.bounds[rows], sizes) + within(sizes), sizes


@dataclass(frozen=True, eq=False)
class Blocks(ABC):
    """The blocks of an input. Its elements have an order that stays."""

    lengths: Lengths
    """Shape `(kinds, n)`: of each element, of each kind."""
    seed: int | None
    """Of the order in each epoch; None for the order of the input."""
    is_local: bool
    """Blocks are neighbours. Otherwise a block has one of each few neighbours."""

    def __post_init__(self) -> None:
        """Takes the mark of the lengths now, so that a state is found, or taken, without a pass over them."""
        self._mark  # noqa: B018

    @property
    def _shuffle_text(self) -> str:
        return "" if self.seed is None else f", shuffled within blocks (seed={self.seed})"

    def settings(self) -> dict[str, Any]:
        """The lengths, and the order."""
        return {"lengths": self._mark, "seed": self.seed, "is_local": self.is_local}

    @cached_property
    def _mark(self) -> str:
        return mark_of(*self.lengths)

    @property
    def block_length(self) -> int:
        """The number of elements in a block."""
        return BLOCK_LENGTH

    @property
    def _keeps_last(self) -> bool:
        """Whether the last row stays the last: it is short."""
        return False

    @abstractmethod
    def _divide(self, lengths: Lengths, draw: Draw | None) -> Pieces:
        """Divides a block into rows. Their number depends on the lengths alone."""

    def _costs(self, found: Pieces, lengths: Lengths, count: int) -> npt.NDArray[np.float64] | None:
        """What each row of a block costs; None where rows come in an order that does not ask."""
        return None

    @property
    def _element_count(self) -> int:
        return int(self.lengths.shape[1])

    @cached_property
    def _full_count(self) -> int:
        """The blocks of full length. One that is shorter may follow."""
        return self._element_count // self.block_length

    def _members(self, block: int) -> Indices:
        """The elements of a block, ascending.

        The input is cut into runs of as many neighbours as there are blocks, and a full block has one of each. The rest
        of the elements lengthen some runs by one, at even distances, and are the last block.
        """
        size, full, count = self.block_length, self._full_count, self._element_count
        rest = count - full * size
        if self.seed is None or self.is_local or full == 0:
            return np.arange(block * size, min((block + 1) * size, count), dtype=np.int64)
        firsts, widths, shifts = self._runs
        if block == full:
            longer = -((-np.arange(1, rest + 1) * size) // rest) - 1
            firsts, widths, shifts = firsts[longer], widths[longer], shifts[longer]
        turned = block + shifts  # less than twice the width
        turned -= np.where(turned < widths, 0, widths)
        return firsts + turned

    @cached_property
    def _runs(self) -> tuple[Indices, Indices, Indices]:
        """The first element of each run, its length, and a random place in it."""
        size, full = self.block_length, self._full_count
        firsts = np.arange(size + 1) * full + np.arange(size + 1) * (self._element_count - full * size) // size
        assert self.seed is not None
        widths = np.diff(firsts)
        return firsts[:-1], widths, hashed(np.arange(size), self.seed) % widths

    def _lengths_of(self, members: Indices) -> Lengths:
        return np.array([each.take(members) for each in self.lengths])

    @cached_property
    def counts(self) -> Indices:
        """The number of rows of each block."""
        blocks = range(-(-self._element_count // self.block_length))
        return np.array([self._row_count(block) for block in blocks], np.int64)

    @abstractmethod
    def _row_count(self, block: int) -> int: ...

    @cached_property
    def row_count(self) -> int:
        """The number of rows, in every epoch."""
        return int(self.counts.sum())

    @cached_property
    def _order(self) -> Callable[[int], tuple[Indices, Indices]]:
        """For an epoch: the blocks in its order, and the rows before each. One that is not full stays the last."""

        def order(epoch: int) -> tuple[Indices, Indices]:
            blocks = np.arange(len(self.counts))
            if self.seed is not None:
                blocks[: self._full_count] = np.argsort(self._draw(self._full_count, epoch, -1), kind="stable")
            return blocks, np.cumsum(self.counts[blocks]) - self.counts[blocks]

        return lru_cache(2)(order)

    def _draw(self, count: int, epoch: int, *place: int) -> Lengths:
        assert self.seed is not None
        return random_words(count, self.seed, epoch, *place)

    @cached_property
    def block(self) -> Callable[[int, int], Divided]:
        """The rows of a block in an epoch."""
        return lru_cache(None if self.seed is None else _KEPT_BLOCKS)(self._divided)

    def _divided(self, epoch: int, block: int) -> Divided:
        members, calls = self._members(block), iter(range(1 << 30))

        def draw(count: int) -> Lengths:
            return self._draw(count, epoch, block, next(calls))

        found = self._divide(self._lengths_of(members), None if self.seed is None else draw)
        count = int(self.counts[block])
        if (costs := self._costs(found, self._lengths_of(members), count)) is not None:
            blocks, before = self._order(epoch)
            (place,) = np.flatnonzero(blocks == block).tolist()
            name = self.seed or 0, epoch
            descends = bool((place + random_words(1, *name, -2)[0]) % 2)
            order = in_runs(
                costs,
                int(before[place]),
                lambda many: random_words(many, *name, block, next(calls)),
                descends=descends,
            )
        else:
            if self.seed is None:  # rows come in the order of their first elements
                keys = np.empty(count, np.uint32)
                keys[found.rows[::-1]] = np.arange(len(found.rows), dtype=np.uint32)[::-1]
            else:
                keys = draw(count)
            order = _places_of(keys[: count - (self._keeps_last and block == len(self.counts) - 1)])
        places = np.arange(count, dtype=np.uint32)
        places[order] = np.arange(len(order), dtype=np.uint32)
        rows = places.take(found.rows)
        pieces = _places_of(rows)
        bounds = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
        starts, counts = (None if each is None else each.take(pieces) for each in (found.starts, found.counts))
        small = np.uint32 if self._element_count <= 1 << 32 else np.int64
        elements = pieces if found.elements is None else found.elements.take(pieces)
        return Divided(members.astype(small).take(elements), bounds, starts, counts)

    def located(self, epoch: int, rows: Indices) -> list[tuple[Divided, Indices, Indices]]:
        """The blocks that have some rows; for each also their numbers in it, and their places among those asked for."""
        epoch = 0 if self.seed is None else epoch
        blocks, before = self._order(epoch)
        which = np.searchsorted(before, rows, "right") - 1
        found = []
        for number in sorted(set(which.tolist())):
            places = np.flatnonzero(which == number)
            found.append((self.block(epoch, int(blocks[number])), rows[places] - before[number], places))
        return found

    def members_of(self, epoch: int, rows: Indices) -> list[Indices]:
        """The elements of some rows, where these are whole."""
        found: list[Indices] = [np.empty(0, np.int64)] * len(rows)
        for divided, numbers, places in self.located(epoch, rows):
            for row, place in zip(numbers.tolist(), places.tolist(), strict=True):
                found[place] = divided.elements[divided.bounds[row] : divided.bounds[row + 1]].astype(np.int64)
        return found

    @property
    def spread(self) -> float:
        """The elements among which those of a row are."""
        return self.block_length if self.seed is None or self.is_local else math.inf

    @property
    def memory(self) -> Memory:
        """The lengths; and for each worker the blocks that it keeps: 12 bytes a piece, and 8 a row."""
        count = self._element_count
        kept = 1.0 if self.seed is None or count == 0 else min(1.0, _KEPT_BLOCKS * self.block_length / count)
        return Memory(int(kept * (12 * count + 20 * self.row_count)), kept_nbytes=self.lengths.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        """The arguments, and what takes a pass over all lengths."""
        return {
            name: value
            for name, value in vars(self).items()
            if name in (*self.__match_args__, "_mark", "counts", "_is_sorted")
        }


def _places_of(keys: Lengths) -> Indices:
    """The stable order of keys."""
    places = np.empty(len(keys), np.int64)
    native.order_keys(np.ascontiguousarray(keys), places)
    return places


def _by_length(lengths: Lengths) -> Indices:
    """The order from the longest to the shortest; equal ones in their own order."""
    return _places_of(lengths.max(initial=0) - lengths)


@final
@dataclass(frozen=True, eq=False)
class Buckets(Blocks):
    """Batches of elements of similar length: of `size` each, or of as many as `max_tokens` allow."""

    size: int | None
    max_tokens: int | None
    cost: Cost | None = None
    """Has neighbours cost about the same."""

    def settings(self) -> dict[str, Any]:
        """The sizes, too."""
        cost = {"cost": self.cost.mark} if self.cost is not None else {}
        return super().settings() | {"size": self.size, "max_tokens": self.max_tokens} | cost

    def _costs(self, found: Pieces, lengths: Lengths, count: int) -> npt.NDArray[np.float64] | None:
        if self.cost is None:
            return None
        longest = np.zeros(count, np.uint32)
        np.maximum.at(longest, found.rows, lengths[0])
        return self.cost.of(np.bincount(found.rows, minlength=count), longest.astype(np.int64))

    @cached_property
    def block_length(self) -> int:
        """A multiple of the size, so that no block but the last has a short batch."""
        size = self.size or 1
        return max(1, BLOCK_LENGTH // size) * size

    @property
    def _keeps_last(self) -> bool:
        return self.size is not None and self._element_count % self.size > 0

    def _row_count(self, block: int) -> int:
        if self.size is None:
            (lengths,) = self._lengths_of(self._members(block))
            return len(self._sizes(np.maximum(np.sort(lengths)[::-1], 1)))
        size = self.block_length
        return -(-min(size, self._element_count - block * size) // self.size)

    def _divide(self, lengths: Lengths, draw: Draw | None) -> Pieces:
        order = _by_length(lengths[0])
        tokens = np.maximum(lengths[0][order], 1)
        sizes = self._sizes(tokens)
        rows = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
        if draw is not None and len(rows):
            limit = None if self.max_tokens is None else np.minimum(self.max_tokens // sizes, _NO_LIMIT)
            most = np.full(len(sizes), _NO_LIMIT, np.int64) if limit is None else limit.astype(np.int64)
            window = len(rows) * max(2, min(_BATCH_WINDOW, len(sizes) // 128)) // len(sizes)
            native.trade_rows(tokens, rows, most, False, window, draw(len(rows)))
        found = np.empty(len(rows), np.uint32)
        found[order] = rows
        return Pieces(None, found)

    def _sizes(self, tokens: Lengths) -> Indices:
        """The number of elements of each batch."""
        if self.size is not None:
            full, rest = divmod(len(tokens), self.size)
            return np.array([self.size] * full + [rest] * (rest > 0), np.int64)
        assert self.max_tokens is not None
        most = np.maximum(min(self.max_tokens, _NO_LIMIT) // tokens, 1).data
        firsts, at = [], 0
        while at < len(tokens):
            firsts.append(at)
            at += most[at]
        return np.diff(np.array([*firsts, len(tokens)])).astype(np.int64)

    @cached_property
    def most_elements(self) -> int:
        """A bound of the elements of a batch."""
        most = self.size or self.max_tokens // max(1, int(self.lengths.min(initial=1)))  # type: ignore[operator]
        return max(1, min(most, self._element_count))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The elements at some positions, in the order of their batches."""
        assert self.size is not None
        batches, numbers = np.divmod(positions, self.size)
        found = np.empty(len(positions), np.int64)
        for divided, rows, places in self.located(epoch, batches):
            found[places] = divided.elements[divided.bounds[rows] + numbers[places]]
        return found

    @property
    def remark(self) -> str:
        """How much is padding, and which shuffle is taken over."""
        return f"{self.padded_share:.1%} padding{self._shuffle_text}"

    @cached_property
    def padded_share(self) -> float:
        """The part of the tokens that only fill up, in the first block of epoch 0."""
        if not self.row_count:
            return 0.0
        found = self.block(0, 0)
        lengths = self.lengths[0][found.elements].astype(np.int64)
        longest = np.maximum.reduceat(lengths, found.bounds[:-1])
        return float(1 - lengths.sum() / max(1, (longest * np.diff(found.bounds)).sum()))


@final
@dataclass(frozen=True, eq=False)
class Packs(Blocks):
    """Rows with room for so many tokens of each kind."""

    capacity: tuple[int, ...]
    fit: Fit
    splits: bool

    def __post_init__(self) -> None:
        """Refuses rows that are too large to look for room in."""
        if max(self.capacity) > native.MOST_CAPACITY and not (self.fit == "next" and self.splits):
            raise ArgumentError(
                f"pack(length={max(self.capacity)}): with fit='first' or 'best', with several lengths, or with "
                f"split=False after a shuffle, a row has at most {native.MOST_CAPACITY:,} tokens. Make rows shorter."
            )
        super().__post_init__()

    def settings(self) -> dict[str, Any]:
        """How rows are filled, too."""
        return super().settings() | {"capacity": self.capacity, "fit": self.fit, "splits": self.splits}

    def _divide(self, lengths: Lengths, draw: Draw | None) -> Pieces:
        if self.fit == "next" and self.splits:
            return self._cut(lengths[0], draw)
        elements, starts, sizes = self._whole(lengths)
        rows = self._fitted(sizes, draw)
        return Pieces(elements, rows) if starts is None else Pieces(elements, rows, starts, sizes[0])

    def _whole(self, lengths: Lengths) -> tuple[Indices | None, Lengths | None, Lengths]:
        """The pieces that stay whole: their elements (None: all), their first tokens (None: none is cut), and sizes."""
        elements, starts, sizes, (size, *_) = None, None, lengths, self.capacity
        has_tokens = lengths.any(axis=0)
        if not has_tokens.all():
            elements = np.flatnonzero(has_tokens)
            sizes = lengths.take(elements, axis=1)
        if self.splits and int(sizes.max(initial=0)) > size:
            (tokens,) = sizes
            parts = -(-tokens.astype(np.int64) // size)
            owners = np.repeat(np.arange(len(tokens)), parts)
            starts = (within(parts) * size).astype(np.uint32)
            sizes = np.minimum(tokens.take(owners) - starts, np.uint32(size))[None]
            elements = owners if elements is None else elements.take(owners)
        return elements, starts, sizes

    def _row_count(self, block: int) -> int:
        lengths = self._lengths_of(self._members(block))
        if self.fit == "next" and self.splits:
            return -(-int(lengths.sum(dtype=np.int64)) // self.capacity[0])
        return self._count(lengths, self._is_sorted)

    def _cut(self, lengths: Lengths, draw: Draw | None) -> Pieces:
        """Lays the elements end to end, and cuts."""
        order = None if draw is None else _places_of(draw(len(lengths)))
        tokens, size = lengths if order is None else lengths.take(order), self.capacity[0]
        ends = np.cumsum(tokens, dtype=np.int64)
        begins, after = ends - tokens, ends // size
        firsts = np.concatenate([[0], after[:-1]])  # the row that each begins in
        parts = np.where(tokens > 0, after - firsts + (after * size < ends), 0)
        owners = np.repeat(np.arange(len(tokens)), parts)
        rows = firsts.take(owners) + within(parts)
        begins = begins.take(owners)
        places = np.maximum(begins, rows * size)
        counts = np.diff(places, append=ends[-1:])
        elements = owners if order is None else order.take(owners)
        return Pieces(elements, rows.astype(np.uint32), (places - begins).astype(np.uint32), counts.astype(np.uint32))

    def _fitted(self, sizes: Lengths, draw: Draw | None) -> Lengths:
        """The row of each piece. One that is too long has a row for itself."""
        order, long_count = self._longest_first(sizes), _count_of(are_long(sizes, self.capacity))
        fitting, rows = order[long_count:], np.empty(len(order), np.uint32)
        ordered = sizes.take(fitting, axis=1)
        if self._is_sorted:
            mine, count = self._laid(ordered)
        else:
            comes = np.sort(fitting) if long_count else slice(None)
            rows[comes], count = self._laid(sizes[:, comes])
            mine = rows.take(fitting)
        if draw is not None and len(fitting):
            taken = [np.bincount(mine, weights=each, minlength=count) for each in ordered]
            room = np.array(self.capacity)[:, None] - np.array(taken, np.int64)
            for window in _WINDOWS:
                native.trade_rows(ordered, mine, room, True, window, draw(len(mine)))
        rows[fitting] = mine
        rows[order[:long_count]] = count + np.arange(long_count)
        return rows

    def _longest_first(self, sizes: Lengths) -> Indices:
        """The order from the longest to the shortest, by the kind that they take the largest part of."""
        if len(sizes) == 1:
            return _by_length(sizes[0])
        parts = (sizes / np.array(self.capacity)[:, None]).max(axis=0)
        return _by_length(np.ceil(np.minimum(parts, 2) * 2**30).astype(np.uint32))

    def _laid(self, sizes: Lengths) -> tuple[Lengths, int]:
        """The row of each piece, laid one after the other, and the number of rows."""
        rows = np.empty(sizes.shape[1], np.uint32)
        count = native.fit_rows(np.ascontiguousarray(sizes), np.array(self.capacity, np.uint32), rows, _FITS[self.fit])
        return rows, count

    def _count(self, lengths: Lengths, is_sorted: bool) -> int:
        """The number of rows of some elements, from the longest on or as they come."""
        row_count = 0
        if self.splits:  # parts that are as large as a row have one each
            full, lengths = np.divmod(lengths, np.uint32(self.capacity[0]))
            row_count = int(full.sum(dtype=np.int64))
        is_laid = lengths.any(axis=0)
        if (is_long := are_long(lengths, self.capacity)) is not None:
            row_count += _count_of(is_long)
            is_laid &= ~is_long
        laid = lengths if is_laid.all() else lengths[:, is_laid]
        if is_sorted:
            laid = laid.take(self._longest_first(laid), axis=1)
        return row_count + self._laid(laid)[1]

    @cached_property
    def _is_sorted(self) -> bool:
        """Whether sequences go from the longest to the shortest, or as they come: what fills the first block better."""
        if self.fit == "next" or not self.lengths.size:
            return False
        lengths = self._lengths_of(self._members(0))
        return self._count(lengths, is_sorted=True) < self._count(lengths, is_sorted=False)

    @property
    def most_elements(self) -> int:
        """A bound of the elements of a row."""
        return max(1, min(self.capacity[0], self._element_count))

    @cached_property
    def filled_share(self) -> float:
        """The part of the rows' room that has tokens, over all kinds; what is too long does not count."""
        tokens, rows = int(self.lengths.sum(dtype=np.int64)), self.row_count
        is_long = None if self.splits else are_long(self.lengths, self.capacity)
        if is_long is not None:
            tokens -= int(self.lengths[:, is_long].sum(dtype=np.int64))
            rows -= int(is_long.sum())
        return tokens / max(1, rows * sum(self.capacity))

    @property
    def remark(self) -> str:
        """How full rows are, and which shuffle is taken over."""
        return f"{self.filled_share:.1%} filled{self._shuffle_text}"
