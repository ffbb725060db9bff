"""Rows of tokens: sequences laid end to end and cut, and batches that have at most so many tokens.

Where the lengths of sequences are known, a row is arithmetic on their sums, or is looked up in its block
(`_blocks.py`), and there is random access. Elsewhere the same rows come as a stream.
"""

import bisect
import itertools
import math
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from penstock import native
from penstock.base import _tree
from penstock.base._errors import ElementError, SpecError
from penstock.base._random import are_firsts, random_words
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Structure
from penstock.memory._rows import Indices, Leaves, Rows, copied, distinct, positions_of, within
from penstock.plan._blocks import COST_BATCHES, Blocks, Buckets, Cost, Packs, in_runs
from penstock.plan._index import mark_of
from penstock.plan._node import (
    Access,
    Demand,
    Elements,
    Grouping,
    Length,
    Memory,
    Node,
    OneInput,
    OneToOne,
    Traits,
)
from penstock.plan._pad import Padding, Stack, holds
from penstock.plan._ragged import EndToEnd, Stacker
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class _OfLengths(Grouping):
    """A step whose elements are made of sequences, by their lengths."""

    lengths: Indices | None = field(repr=False)
    """Those of all elements, which are neighbours in rows; None if they are unknown, or in blocks."""

    @property
    @abstractmethod
    def blocks(self) -> Blocks | None:
        """The blocks whose rows are the elements; None without."""

    @cached_property
    def access(self) -> Access:
        """Random where lengths are known."""
        return "random" if self.has_lengths else "stream"

    takes_any_shape = True
    _scatters = True

    @property
    def goes_by_position(self) -> bool:  # type: ignore[override]
        """Where lengths are known."""
        return self.has_lengths

    @property
    def spread(self) -> float:  # type: ignore[override]
        """That of the blocks."""
        return 1 if self.blocks is None else self.blocks.spread

    @property
    def has_lengths(self) -> bool:
        """Whether lengths are known, by position."""
        return self.lengths is not None or self.blocks is not None

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """Where each epoch has rows of its own."""
        return self.blocks is not None and self.blocks.seed is not None

    @property
    def memory(self) -> Memory:
        """The lengths of blocks, and what a worker keeps of them."""
        return Memory() if self.blocks is None else self.blocks.memory

    @cached_property
    def _mark(self) -> str | None:
        """That of lengths without blocks. Taken when the step is made, so that a state needs no pass over them."""
        return None if self.lengths is None else mark_of(self.lengths)

    def __post_init__(self) -> None:
        """Takes the mark."""
        self._mark  # noqa: B018

    def _known(self, leaf: int) -> Any:
        """The lengths of all elements, of one of the leaves."""
        if self.blocks is None:
            return self.lengths
        return self.blocks.lengths[leaf if len(self.blocks.lengths) > 1 else 0]

    def _read(self, reader: Reader, epoch: int, members: Indices) -> list[list[Any]]:
        """The leaves of some elements, each as a list.

        Raises:
            ElementError: An element has another length than was said.
        """
        columns: list[list[Any]] = reader.inputs[0].columns(epoch, members)
        self.require_lengths(members, columns)
        return columns

    def checked(self, source: Node) -> Node:
        """Elements whose lengths are as said."""
        return _OfSaidLengths(source, self)

    @abstractmethod
    def require_lengths(self, members: Indices, columns: Sequence[Sequence[Any]]) -> None:
        """Refuses elements that have another length than was said, given their leaves, each as a list."""

    def _refuse(self, number: int, found: int, said: int) -> NoReturn:
        raise ElementError(
            f"{self.label}: element {number} has {found} tokens, and lengths= says {said}. Compute lengths from this "
            "dataset, in its order."
        )


@dataclass(frozen=True, eq=False)
class _OfSaidLengths(OneToOne, OneInput):
    """The elements of the input. One that has another length than was said is one that fails."""

    step: _OfLengths

    verb = "lengths"
    takes_any_shape = True
    traits = Traits(is_parallel=True, is_hidden=True)

    @property
    def label(self) -> str:
        """That of the step that the lengths are of."""
        return self.step.label

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements, and compares their lengths."""
        reader.inputs[0].read(epoch, indices, out)
        columns = list(zip(*map(out.leaf_values, out.row_numbers()), strict=True))
        self.step.require_lengths(indices, columns)


class CutPieces(NamedTuple):
    """What some rows are made of, row after row."""

    elements: Indices
    starts: Indices
    """The first token of each."""
    counts: Indices
    """Its tokens; of those that are whole, those of the first leaf."""
    owners: Indices
    """Its row, among those asked for."""


@dataclass(frozen=True, eq=False)
class Pack(_OfLengths):
    """Rows of tokens of sequences that are laid end to end, each with the numbers of its sequences."""

    sizes: tuple[int, ...]
    """The tokens of a row; for each leaf if there is a structure."""
    structure: Structure | None
    splits: bool
    padding_value: Any
    drop_remainder: bool
    positions: bool
    packs: Packs | None
    offsets: bool = False
    """Offsets say where sequences begin, in place of their numbers."""
    waiting: int | None = None
    """The sequences of a stream that wait for the row which they fit best; None if each goes on where it comes."""

    verb = "pack"

    @property
    def memory(self) -> Memory:
        """With the sequences that wait, as far as their size is bounded."""
        return super().memory._replace(sequence_nbytes=(self.waiting or 0) * self.source.spec.nbytes)

    @property
    def blocks(self) -> Packs | None:
        """Where rows are filled out of blocks."""
        return self.packs

    @property
    def label(self) -> str:
        """As the user wrote it, without lengths."""
        sizes = self.sizes[0] if self.structure is None else self.structure.unflatten(self.sizes)
        how = self.packs.fit if self.packs else "next" if self.waiting is None else "best"
        fit = "" if how == "next" else f", fit={how!r}"
        positions = ", positions=True" if self.positions else ""
        offsets = ", offsets=True" if self.offsets else ""
        return f"pack({sizes}{fit}{'' if self.splits else ', split=False'}{positions}{offsets})"

    def settings(self) -> dict[str, Any]:
        """The arguments, and the lengths."""
        facts = {"size": self.sizes[0], "splits": self.splits, "padding": str(self.padding_value)}
        more = {} if self.packs is None else self.packs.settings()
        more |= {name: True for name in ("positions", "offsets") if getattr(self, name)}
        more |= {} if self.waiting is None else {"waiting": self.waiting}
        return {**facts, "drop_remainder": self.drop_remainder, "lengths": self._mark, **more}

    @property
    def remark(self) -> str:
        """How full rows are."""
        if self.packs is not None:
            return self.packs.remark
        if self.lengths is None or not self.length:
            return ""
        return f"{min(1.0, int(self._ends[-1]) / (int(self.length) * self.sizes[0])):.1%} filled"

    @cached_property
    def _ends(self) -> Indices:
        """The tokens up to the end of each sequence."""
        assert self.lengths is not None
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def _cuts(self) -> Indices:
        """The first token of each row, and the end of the last. A sequence that is too long has a row for itself."""
        ends, total, (size,) = self._ends, int(self._ends[-1]) if len(self._ends) else 0, self.sizes
        if self.splits:
            cuts = np.minimum(np.arange(-(-total // size) + 1, dtype=np.int64) * size, total)
        else:
            assert self.lengths is not None
            # For each sequence the one that begins the row after that which it begins.
            after = np.searchsorted(ends, ends - self.lengths + size, "right")
            after = np.maximum(after, np.arange(1, len(ends) + 1)).tolist()
            firsts, at = [], 0
            while at < len(after):
                firsts.append(at)
                at = after[at]
            cuts = np.append((ends - self.lengths)[firsts], total)
        if not total:
            return cuts[:1]
        is_short = len(cuts) > 1 and cuts[-1] - cuts[-2] < size
        return cuts[:-1] if self.drop_remainder and is_short and self.splits else cuts

    def _too_long(self, number: int, length: int) -> ElementError:
        return ElementError(
            f"{self.label}: element {number} has {length} tokens, more than a row. Cut it with map(), or let sequences "
            "go on in the next row: split=True."
        )

    @cached_property
    def length(self) -> Length:
        """The number of rows."""
        if self.packs is not None:
            return self.packs.row_count
        return len(self._cuts) - 1 if self.lengths is not None else 0 if self.source.length == 0 else None

    @cached_property
    def spec(self) -> Spec:
        """The row, like the element; the numbers or offsets of sequences; and places in them, if asked for."""
        spec = self.source.spec
        for place, leaf in zip(_tree.paths(spec.structure), spec.leaves, strict=True):
            if len(leaf.shape) != 1 or leaf.dtype.itemsize == 0:
                raise SpecError(
                    f"{self.label} lays sequences of numbers end to end, but element{place} is {leaf}. Take the "
                    "sequences alone, as with select(), or map()."
                )
            if self.padding_value is None or not holds(leaf.dtype, self.padding_value):
                raise SpecError(
                    f"{self.label}: element{place} is {leaf}, which cannot hold the padding value "
                    f"{self.padding_value!r:.80}."
                )
        if self.structure not in (None, spec.structure):
            raise SpecError(f"{self.label} needs a length for each part of an element, but elements are {spec}.")
        sizes = self.sizes * len(spec.leaves) if self.structure is None else self.sizes
        row = [ArraySpec((size,), leaf.dtype) for size, leaf in zip(sizes, spec.leaves, strict=True)]
        numbers = [ArraySpec((size,), np.int32) for size in self.sizes]
        marks = [ArraySpec((None,), np.int64, (size + 1,)) for size in self.sizes] if self.offsets else numbers
        more = [marks, numbers] if self.positions else [marks]
        trees = [each[0] if self.structure is None else spec.structure.unflatten(each) for each in more]
        return Spec.of((spec.structure.unflatten(row), *trees))

    batch_size = 1

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The sequences that have tokens in the rows, each once."""
        return [Demand(0, epoch, distinct(self._pieces(epoch, indices).elements))]

    def _pieces(self, epoch: int, indices: Indices) -> CutPieces:
        """What some rows are made of."""
        if self.packs is not None:
            parts = []
            for divided, rows, places in self.packs.located(epoch, indices):
                taken, sizes = divided.taken(rows)
                elements = divided.elements[taken].astype(np.int64)
                starts, counts = np.zeros(len(elements), np.int64), self._known(0)[elements].astype(np.int64)
                if divided.starts is not None and divided.counts is not None:
                    starts, counts = divided.starts[taken].astype(np.int64), divided.counts[taken].astype(np.int64)
                parts.append(CutPieces(elements, starts, counts, np.repeat(places, sizes)))
            if len(parts) == 1:
                return parts[0]
            return CutPieces(*map(np.concatenate, zip(*parts, [np.empty(0, np.int64)] * 4, strict=True)))
        assert self.lengths is not None
        starts, stops = self._cuts[indices], self._cuts[indices + 1]
        firsts = np.searchsorted(self._ends, starts, "right")
        sizes = np.searchsorted(self._ends, stops - 1, "right") - firsts + 1
        elements = np.repeat(firsts, sizes) + within(sizes)
        owners = np.repeat(np.arange(len(indices)), sizes)
        begins = self._ends[elements] - self.lengths[elements]
        skips = np.maximum(starts[owners] - begins, 0)
        counts = np.minimum(self._ends[elements], stops[owners]) - begins - skips
        has = counts > 0
        return CutPieces(elements[has], skips[has], counts[has], owners[has])

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the sequences of all rows, each once, and lays their pieces end to end.

        Raises:
            ElementError: A sequence is longer than a row, or has another length than was said.
        """
        pieces = self._pieces(epoch, indices)
        members = distinct(pieces.elements) if self.splits else pieces.elements  # whole ones come once
        columns = self._read(reader, epoch, members)
        self._lay(pieces, _of_each(pieces, members, columns) if self.splits else columns, out)

    takes_stand_ins = False

    def group(self, epoch: int, index: int) -> Indices:
        """The sequences that have tokens in the row."""
        return distinct(self._pieces(epoch, np.array([index])).elements)

    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """The row with these sequences; padding stands at its end."""
        pieces = self._pieces(epoch, np.array([index]))
        row = Rows.allocate(self.spec, 1)
        there = CutPieces(*(each[np.isin(pieces.elements, numbers)] for each in pieces))
        self._lay(there, _of_each(there, numbers, columns), row)
        return row.leaf_values(0)

    def _lay(self, pieces: CutPieces, columns: Sequence[list[Any]], out: Rows) -> None:
        """Lays pieces end to end, in rows of `out`, given the leaves of the sequence of each."""
        elements, starts, counts, owners = pieces
        leaf_count = len(self.source.spec.leaves)
        kinds = (
            [counts]
            if self.structure is None
            else [self._known(leaf)[elements].astype(np.int64) for leaf in range(leaf_count)]
        )
        for size, tokens in zip(self.sizes, kinds, strict=True):
            if (tokens > size).any():
                place = int(np.argmax(tokens > size))
                raise self._too_long(int(elements[place]), int(tokens[place]))
        for piece in np.flatnonzero(counts < self._known(0)[elements]).tolist() if self.splits else ():
            for values in columns:
                values[piece] = values[piece][starts[piece] : starts[piece] + counts[piece]]
        self._write(columns, kinds, positions_of(out.rows, len(out.arrays[0]))[owners], out)

    def _write(self, columns: Sequence[Sequence[Any]], kinds: Sequence[Indices], rows: Indices, out: Rows) -> None:
        """Lays pieces end to end, given the tokens of each, and its row in the arrays of `out`."""
        for leaf, values in enumerate(columns):
            array = out.arrays[leaf]
            marks: list[Any] = list(out.arrays[len(columns) + leaf :: len(kinds)]) if leaf < len(kinds) else []
            if self.offsets and marks:
                marks[0] = None
            filling = np.full((), self.padding_value, array.dtype)
            if not native.lay_rows(values, array, filling, rows, *marks):
                alike = [np.array(value, array.dtype, order="C") for value in values]
                is_laid = native.lay_rows(alike, array, filling, rows, *marks)
                assert is_laid, array.dtype
        if self.offsets:
            firsts = np.flatnonzero(are_firsts(rows))  # pieces of one row stand together
            for kind, tokens in enumerate(kinds, len(columns)):
                for row, mine in zip(rows[firsts].tolist(), np.split(tokens, firsts[1:]), strict=True):
                    self._mark_ends(out, kind, row, mine)

    @staticmethod
    def _mark_ends(out: Rows, leaf: int, row: int, tokens: Indices) -> None:
        """Writes the offsets of the sequences of a row."""
        (places, extent), count = (out.arrays[leaf], out.extents[leaf]), len(tokens)
        assert extent is not None
        extent[row], places[row, 0] = count + 1, 0
        np.cumsum(tokens, out=places[row, 1 : count + 1])

    def require_lengths(self, members: Indices, columns: Sequence[Sequence[Any]]) -> None:
        """Each leaf has the length, or its own."""
        for leaf, column in enumerate(columns):
            found, said = np.fromiter(map(len, column), np.int64, len(members)), self._known(leaf)[members]
            if (found != said).any():
                place = int(np.argmax(found != said))
                self._refuse(int(members[place]), int(found[place]), int(said[place]))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The rows of a stream, each when it is full."""
        arriving = self._arriving(reader.inputs[0].sequence(epoch))
        return self._in_turn(arriving) if self.waiting is None else self._fitted(arriving, self.waiting)

    def _arriving(self, elements: Elements) -> Iterator[tuple[int, Leaves]]:
        """The sequences of a stream with their lengths."""
        for number, leaves in enumerate(elements):
            sizes = {len(leaf) for leaf in leaves}
            if len(sizes) > 1:
                raise ElementError(f"{self.label}: the sequences of element {number} have {sorted(sizes)} tokens.")
            size = sizes.pop()
            if not self.splits and size > self.sizes[0]:
                raise self._too_long(number, size)
            yield size, leaves

    def _in_turn(self, arriving: Iterator[tuple[int, Leaves]]) -> Elements:
        """Rows that each sequence goes to as it comes."""
        (row_size,) = self.sizes
        row: list[Leaves] = []
        filled = 0
        for size, leaves in arriving:
            if not self.splits and filled + size > row_size:
                yield self._laid(row)
                row, filled = [], 0
            start = 0
            while start < size:
                stop = min(size, start + row_size - filled)
                row.append([leaf[start:stop].copy() for leaf in leaves])
                start, filled = stop, filled + stop - start
                if filled == row_size:
                    yield self._laid(row)
                    row, filled = [], 0
        if row and not (self.drop_remainder and self.splits):
            yield self._laid(row)

    def _fitted(self, arriving: Iterator[tuple[int, Leaves]], most: int) -> Elements:
        """Rows of the longest sequences that still fit, of at most so many that wait; of equals, the first to come."""
        (row_size,) = self.sizes
        pieces = (
            (min(row_size, size - start), [leaf[start : start + row_size].copy() for leaf in leaves])
            for size, leaves in arriving
            for start in range(0, size, row_size)
        )
        numbered = enumerate(pieces)
        waiting: list[tuple[int, int]] = []
        """Their lengths and numbers, ascending."""
        held: dict[int, Leaves] = {}
        while True:
            row: list[Leaves] = []
            left = row_size
            while True:
                for number, (size, leaves) in itertools.islice(numbered, most - len(held)):
                    bisect.insort(waiting, (size, number))
                    held[number] = leaves
                at = bisect.bisect_right(waiting, (left, sys.maxsize)) - 1
                if at < 0:
                    break
                size, number = waiting.pop(bisect.bisect_left(waiting, (waiting[at][0], 0)))
                row.append(held.pop(number))
                left -= size
            if not row or (self.drop_remainder and left and not held):
                return
            yield self._laid(row)

    def _laid(self, pieces: Sequence[Leaves]) -> Leaves:
        """The row of some pieces."""
        row = Rows.allocate(self.spec, 1)
        tokens = np.fromiter((len(piece[0]) for piece in pieces), np.int64, len(pieces))
        self._write(list(zip(*pieces, strict=True)), [tokens], np.zeros(len(pieces), np.int64), row)
        return row.leaf_values(0)


def _of_each(pieces: CutPieces, members: Indices, columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The leaves of the sequence of each piece, from those of all sequences, whose numbers ascend."""
    which = np.searchsorted(members, pieces.elements).tolist()
    return [[column[each] for each in which] for column in columns]


def _words(number: int, calls: Iterator[int], count: int) -> Any:
    """Random words for some batches, others at each call."""
    return random_words(count, 0, number, next(calls))


@dataclass(frozen=True, eq=False)
class TokenBatch(_OfLengths):
    """Batches of neighbouring sequences, as large as `limit` tokens allow: padded to the longest, or end to end."""

    limit: int
    padding: Padding | EndToEnd = field(repr=False)
    buckets: Buckets | Packs | None = None
    cost: Cost | None = field(default=None, repr=False, kw_only=True)
    """Has neighbouring batches cost about the same, where there are no buckets."""
    is_declared: bool = field(default=True, repr=False, kw_only=True)
    """Whether axes vary because the spec says so. Otherwise all do, as far as it is known."""

    @property
    def blocks(self) -> Buckets | Packs | None:
        """Where batches are of similar lengths, or fill rows."""
        return self.buckets

    @property
    def is_flat(self) -> bool:
        """Whether sequences lie end to end. Then a batch has the sum of their tokens, and an empty one counts as 1."""
        return isinstance(self.padding, EndToEnd)

    @property
    def takes_stand_ins(self) -> bool:  # type: ignore[override]
        """Unless its length counts towards a sum."""
        return not self.is_flat

    @property
    def verb(self) -> str:
        """The user's."""
        if isinstance(self.padding, EndToEnd):
            return self.padding.verb
        return "batch" if self.buckets is None else "bucket_by_length"

    @property
    def label(self) -> str:
        """As the user wrote it, without lengths."""
        return f"{self.verb}(max_tokens={self.limit})"

    def settings(self) -> dict[str, Any]:
        """The limit and the lengths."""
        if self.buckets is not None:
            return self.buckets.settings() | {"padding": self.padding.facts}
        cost = {"cost": self.cost.mark} if self.cost is not None else {}
        return {"max_tokens": self.limit, "lengths": self._mark, **cost}

    @property
    def held(self) -> Any:
        """The function that says what a batch costs."""
        cost = self.buckets.cost if isinstance(self.buckets, Buckets) else self.cost
        return None if cost is None else cost.function

    @property
    def spread(self) -> float:  # type: ignore[override]
        """The elements of the batches that trade places, or those of a block."""
        if self.cost is None:
            return super().spread
        assert self.lengths is not None
        return COST_BATCHES * math.ceil(len(self.lengths) / max(1, len(self._firsts) - 1))

    @property
    def remark(self) -> str:
        """How much is padding, or how full batches are."""
        return "" if self.buckets is None else self.buckets.remark

    @cached_property
    def _firsts(self) -> Indices:
        """The first sequence of each batch, and the number of all."""
        assert self.lengths is not None
        firsts = [0, *self._cuts(self.lengths.tolist())]
        return np.array([*firsts, len(self.lengths)] if len(self.lengths) else [0], np.int64)

    def _cuts(self, lengths: Iterable[int]) -> Iterator[int]:
        """The sequences that begin a batch, but for the first."""
        longest = first = 0
        for number, length in enumerate(lengths):
            self._require_room(number, length)
            longest = longest + length if self.is_flat else max(longest, length)
            if (1 if self.is_flat else number + 1 - first) * longest > self.limit:
                yield number
                first, longest = number, length

    @cached_property
    def _varying(self) -> list[tuple[int, list[int]]]:
        """The leaves that say how long an element is, each with its axes that vary. If none varies, their first axes.

        Other leaves, such as a label or an embedding, are not made of tokens.
        """
        shapes = [leaf.shape for leaf in self.source.spec.leaves]
        if self.is_flat:
            return [(number, [0]) for number, shape in enumerate(shapes) if shape[:1] == (None,)]
        axes = [[axis for axis, size in enumerate(shape) if size is None] for shape in shapes]
        varying = [(number, of_leaf) for number, of_leaf in enumerate(axes) if of_leaf]
        return varying or [(number, [0]) for number, shape in enumerate(shapes) if shape]

    def _sizes(self, leaves: Sequence[Any]) -> list[list[int]]:
        """The sizes of these axes, leaf by leaf; of one that lies end to end the longest, which alone counts."""
        if self.is_flat:
            return [[max(1, *(len(leaves[number]) for number, _ in self._varying))]]
        return [[leaves[number].shape[axis] for axis in axes] for number, axes in self._varying]

    def _tokens(self, sizes: Iterable[Sequence[int]]) -> int:
        """Those of the longest leaf. If nothing says which of its axes vary, the longest counts."""
        return max(map(math.prod if self.is_declared else max, sizes), default=1)

    def require_lengths(self, members: Indices, columns: Sequence[Sequence[Any]]) -> None:
        """The length is that of the longest leaf: of a leaf with several axes that vary, the size of any, or all.

        Without a declared spec all axes of all leaves vary, and only the lengths tell which one is meant.
        """
        said = self._known(0)[members].astype(np.int64)
        least, is_found = np.zeros_like(said), np.zeros(len(said), bool)
        for number, axes in self._varying:
            if axes == [0]:
                sizes = np.fromiter(map(len, columns[number]), np.int64, len(said))[:, None]
            else:
                sizes = np.array([[value.shape[axis] for axis in axes] for value in columns[number]], np.int64)
                sizes = np.column_stack([sizes, sizes.prod(axis=1)])
            sizes = np.maximum(sizes, int(self.is_flat))
            least = np.maximum(least, sizes.min(axis=1))
            is_found |= (sizes == said[:, None]).any(axis=1)
        wrong = np.flatnonzero(~is_found | (self.is_declared & (said < least)))
        if self._varying and len(wrong):
            place = int(wrong[0])
            found = self._tokens(self._sizes([column[place] for column in columns]))
            self._refuse(int(members[place]), found, int(said[place]))

    def _require_room(self, number: int, length: int) -> None:
        if length > self.limit:
            raise ElementError(
                f"{self.label}: element {number} alone has {length} tokens. Cut it with map(), or give more."
            )

    @cached_property
    def length(self) -> Length:
        """The number of batches."""
        if self.buckets is not None:
            return self.buckets.row_count
        return len(self._firsts) - 1 if self.lengths is not None else 0 if self.source.length == 0 else None

    @cached_property
    def spec(self) -> Spec:
        """Batches of any number of elements."""
        most = self.limit if self.lengths is None else int(np.diff(self._firsts).max(initial=1))
        if self.buckets is not None:
            most = self.buckets.most_elements
        if isinstance(self.padding, EndToEnd):
            return self.padding.spec(self.label, self.source.spec, most, is_exact=False, most=self.limit)
        return self.padding.spec(self.label, self.source.spec, most, is_exact=False)

    batch_size = None

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The sequences of each batch, in order."""
        return [Demand(0, epoch, np.concatenate([np.empty(0, np.int64), *self._members(epoch, indices)]))]

    def _members(self, epoch: int, indices: Indices) -> list[Indices]:
        """The sequences of each batch."""
        if self.buckets is not None:
            return self.buckets.members_of(epoch, indices)
        indices = indices if self.cost is None else self._turns[indices]
        ranges = zip(self._firsts[indices].tolist(), self._firsts[indices + 1].tolist(), strict=True)
        return [np.arange(*each) for each in ranges]

    @cached_property
    def _turns(self) -> Indices:
        """The batch at each position, where neighbours cost about the same."""
        assert self.lengths is not None
        assert self.cost is not None
        firsts, turns = self._firsts[:-1], np.arange(len(self._firsts) - 1)
        longest = np.maximum.reduceat(self.lengths, firsts) if len(firsts) else firsts
        costs = self.cost.of(np.diff(self._firsts), longest)
        for number, start in enumerate(range(0, len(turns), COST_BATCHES)):
            mine, draw = slice(start, start + COST_BATCHES), partial(_words, number, itertools.count())
            turns[mine] = start + in_runs(costs[mine], start, draw, descends=number % 2 > 0)
        return turns

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the sequences of one batch after the other, and pads them, or lays them end to end."""
        for row, index, members in zip(out.row_numbers(), indices.tolist(), self._members(epoch, indices), strict=True):
            if isinstance(self._stacked, Stacker):
                columns = self._in_room(members, self._read(reader, epoch, members))
                self._stacked.write(columns, members.__getitem__, out, row)
                continue
            out.put(row, self.grouped(epoch, index, members, self._read(reader, epoch, members)), are_new=True)

    def group(self, epoch: int, index: int) -> Indices:
        """The sequences of the batch."""
        return self._members(epoch, np.array([index]))[0]

    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """These sequences, padded, or end to end."""
        return self._stacked(self._in_room(numbers, columns), numbers.__getitem__)

    def _in_room(self, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """The sequences, unless it is a single one that is too long."""
        if self.buckets is not None and len(numbers) == 1:
            self._require_room(int(numbers[0]), int(self._known(0)[numbers[0]]))
        return columns

    @cached_property
    def _stacked(self) -> Stack | Stacker:
        return self.padding.stacker(self.label, self.source.spec)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The batches of a stream, each when the next sequence is too many."""
        held: list[Leaves] = []
        largest: list[list[int]] = []
        first = 0
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            sizes = self._sizes(leaves)
            self._require_room(number, self._tokens(sizes))
            merge, count = (int.__add__, 1) if self.is_flat else (max, len(held) + 1)
            padded = [[*map(merge, *each)] for each in zip(largest, sizes, strict=True)] if held else sizes
            if held and count * self._tokens(padded) > self.limit:
                yield self._stacked(zip(*held, strict=True), first.__add__)
                held, first, padded = [], number, sizes
            held.append([copied(leaf) for leaf in leaves])
            largest = padded
        if held:
            yield self._stacked(zip(*held, strict=True), first.__add__)
