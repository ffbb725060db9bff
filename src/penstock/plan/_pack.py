"""Rows of tokens: sequences laid end to end and cut, and batches that have at most so many tokens.

Where the lengths of sequences are known, a row is arithmetic on their sums, and there is random access. Elsewhere the
same rows come as a stream.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._errors import ElementError, SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows, copied
from penstock.plan._index import mark_of
from penstock.plan._node import Access, Demand, Elements, Length, OneInput
from penstock.plan._pad import Padding, Stack
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class _OfLengths(OneInput):
    """A step whose elements are neighbouring sequences, by their lengths."""

    lengths: Indices | None = field(repr=False)
    """Those of all elements of the input; None if they are unknown."""

    @cached_property
    def access(self) -> Access:
        """Random where lengths are known."""
        return "stream" if self.lengths is None else "random"

    takes_any_shape = True
    _scatters = True

    @property
    def needs_index(self) -> bool:
        """Lengths are given by position."""
        return self.lengths is not None

    def _read(self, reader: Reader, epoch: int, members: Indices) -> list[list[Any]]:
        """The leaves of some elements, each as a list.

        Raises:
            ElementError: An element has another length than was said.
        """
        assert self.lengths is not None
        source = reader.inputs[0]
        box = source.borrowed(len(members))
        source.read(epoch, members, box)
        columns = list(box.columns(len(members)))
        wanted = self.lengths[members]
        for leaf, column in zip(self.source.spec.leaves, columns, strict=True):
            if leaf.shape[:1] != (None,):
                continue
            found = np.fromiter(map(len, column), np.int64, len(column))
            if (found != wanted).any():
                place = int(np.argmax(found != wanted))
                raise ElementError(
                    f"{self.label}: element {members[place]} has {found[place]} tokens, and lengths= says "
                    f"{wanted[place]}. Compute lengths from this dataset, in its order."
                )
        return columns


def _stacked_length(leaves: Sequence[Any]) -> int:
    return max((len(leaf) for leaf in leaves if np.ndim(leaf)), default=1)


@dataclass(frozen=True, eq=False)
class Pack(_OfLengths):
    """Rows of `size` tokens of sequences that are laid end to end, each with the numbers of its sequences."""

    size: int
    splits: bool
    padding_value: Any
    drop_remainder: bool

    verb = "pack"

    @property
    def label(self) -> str:
        """As the user wrote it, without lengths."""
        return f"pack({self.size}{'' if self.splits else ', split=False'})"

    def settings(self) -> dict[str, Any]:
        """The arguments, and the lengths."""
        facts = {"size": self.size, "splits": self.splits, "padding": str(self.padding_value)}
        mark = None if self.lengths is None else mark_of(self.lengths)
        return {**facts, "drop_remainder": self.drop_remainder, "lengths": mark}

    @cached_property
    def _ends(self) -> Indices:
        """The tokens up to the end of each sequence."""
        assert self.lengths is not None
        return np.cumsum(self.lengths, dtype=np.int64)

    @cached_property
    def _cuts(self) -> Indices:
        """The first token of each row, and the end of the last."""
        ends, total = self._ends, int(self._ends[-1]) if len(self._ends) else 0
        if self.splits:
            cuts = np.arange(0, total + self.size, self.size, dtype=np.int64)
            cuts[-1] = min(cuts[-1], total)
        else:
            assert self.lengths is not None
            if len(too_long := np.flatnonzero(self.lengths > self.size)):
                raise self._too_long(int(too_long[0]), int(self.lengths[too_long[0]]))
            # For each sequence the one that begins the row after that which it begins.
            after = np.searchsorted(ends, ends - self.lengths + self.size, "right").tolist()
            firsts, at = [], 0
            while at < len(after):
                firsts.append(at)
                at = after[at]
            cuts = np.append((ends - self.lengths)[firsts], total)
        if not total:
            return cuts[:1]
        is_short = len(cuts) > 1 and cuts[-1] - cuts[-2] < self.size
        return cuts[:-1] if self.drop_remainder and is_short and self.splits else cuts

    def _too_long(self, number: int, length: int) -> ElementError:
        return ElementError(
            f"{self.label}: element {number} has {length} tokens, more than a row. Cut it with map(), or let sequences "
            "go on in the next row: split=True."
        )

    @cached_property
    def length(self) -> Length:
        """The number of rows."""
        return len(self._cuts) - 1 if self.lengths is not None else 0 if self.source.length == 0 else None

    @cached_property
    def spec(self) -> Spec:
        """A pair of the row, like the element, and the numbers of sequences."""
        spec = self.source.spec
        for place, leaf in zip(_tree.paths(spec.structure), spec.leaves, strict=True):
            if len(leaf.shape) != 1 or leaf.dtype.itemsize == 0:
                raise SpecError(
                    f"{self.label} lays sequences of numbers end to end, but element{place} is {leaf}. Take the "
                    "sequences alone, as with select(), or map()."
                )
        row = spec.structure.unflatten([ArraySpec((self.size,), leaf.dtype) for leaf in spec.leaves])
        return Spec.of((row, ArraySpec((self.size,), np.dtype(np.int32))))

    batch_size = 1

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The sequences that have tokens in the rows."""
        return [Demand(0, epoch, self._members(indices)[0])]

    def _members(self, indices: Indices) -> tuple[Indices, Indices]:
        """The sequences in some rows, each once; and the first one of each row."""
        starts, stops = self._cuts[indices], self._cuts[indices + 1]
        firsts = np.searchsorted(self._ends, starts, "right")
        counts = np.searchsorted(self._ends, stops - 1, "right") - firsts + 1
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(np.repeat(firsts, counts) + within), firsts

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the sequences of all rows once, and lays them end to end; each row is a part of that."""
        assert self.lengths is not None
        members, firsts = self._members(indices)
        laid = [np.concatenate(column) for column in self._read(reader, epoch, members)]
        sizes = self.lengths[members]
        laid.append(np.repeat(np.cumsum(sizes > 0, dtype=np.int32), sizes))  # the number of each token's sequence
        skips = self._cuts[indices] - (self._ends[firsts] - self.lengths[firsts])
        starts = (np.cumsum(sizes) - sizes)[np.searchsorted(members, firsts)] + skips
        counts = self._cuts[indices + 1] - self._cuts[indices]
        segments, fillings = out.arrays[-1], [*[self.padding_value] * (len(laid) - 1), 0]
        for row, start, count in zip(out.row_numbers(), starts.tolist(), counts.tolist(), strict=True):
            for places, tokens, filling in zip(out.arrays, laid, fillings, strict=True):
                places[row, :count] = tokens[start : start + count]
                places[row, count:] = filling
            segments[row, :count] -= segments[row, 0] - 1

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The rows of a stream, each when it is full."""
        row, filled, segment = self._empty(), 0, 0
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            sizes = {len(leaf) for leaf in leaves}
            if len(sizes) > 1:
                raise ElementError(f"{self.label}: the sequences of element {number} have {sorted(sizes)} tokens.")
            size, start = sizes.pop(), 0
            if not self.splits and size > self.size:
                raise self._too_long(number, size)
            if not self.splits and filled + size > self.size:
                yield row
                row, filled, segment = self._empty(), 0, 0
            while start < size:
                count, segment = min(size - start, self.size - filled), segment + 1
                for places, leaf in zip(row, leaves, strict=False):
                    places[filled : filled + count] = leaf[start : start + count]
                row[-1][filled : filled + count] = segment
                start, filled = start + count, filled + count
                if filled == self.size:
                    yield row
                    row, filled, segment = self._empty(), 0, 0
        if filled and not (self.drop_remainder and self.splits):
            yield row

    def _empty(self) -> Leaves:
        """A row without sequences."""
        leaves = self.spec.leaves[:-1]
        return [*(np.full(self.size, self.padding_value, leaf.dtype) for leaf in leaves), np.zeros(self.size, np.int32)]


@dataclass(frozen=True, eq=False)
class TokenBatch(_OfLengths):
    """Batches of neighbouring sequences, padded to the longest, as large as `limit` tokens allow."""

    limit: int
    padding: Padding = field(repr=False)

    verb = "batch"

    @property
    def label(self) -> str:
        """As the user wrote it, without lengths."""
        return f"batch(max_tokens={self.limit})"

    def settings(self) -> dict[str, Any]:
        """The limit and the lengths."""
        return {"max_tokens": self.limit, "lengths": None if self.lengths is None else mark_of(self.lengths)}

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
            longest = max(longest, length)
            if (number + 1 - first) * longest > self.limit:
                yield number
                first, longest = number, length

    def _require_room(self, number: int, length: int) -> None:
        if length > self.limit:
            raise ElementError(
                f"{self.label}: element {number} alone has {length} tokens. Cut it with map(), or give more."
            )

    @cached_property
    def length(self) -> Length:
        """The number of batches."""
        return len(self._firsts) - 1 if self.lengths is not None else 0 if self.source.length == 0 else None

    @cached_property
    def spec(self) -> Spec:
        """Padded batches of any number of elements."""
        most = self.limit if self.lengths is None else int(np.diff(self._firsts).max(initial=1))
        return self.padding.spec(self.label, self.source.spec, most, is_exact=False)

    batch_size = None

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The sequences of each batch, in order."""
        ranges = zip(self._firsts[indices].tolist(), self._firsts[indices + 1].tolist(), strict=True)
        return [Demand(0, epoch, np.concatenate([np.empty(0, np.int64), *(np.arange(*each) for each in ranges)]))]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the sequences of one batch after the other, and pads them."""
        for row, index in zip(out.row_numbers(), indices.tolist(), strict=True):
            members = np.arange(self._firsts[index], self._firsts[index + 1])
            columns = self._read(reader, epoch, members)
            out.put(row, self._stacked(columns, int(members[0])), are_new=True)

    @cached_property
    def _stacked(self) -> Stack:
        return self.padding.stacker(self.label, self.source.spec)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The batches of a stream, each when the next sequence is too many."""
        held: list[Leaves] = []
        first = longest = 0
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            length = _stacked_length(leaves)
            self._require_room(number, length)
            if held and (len(held) + 1) * max(longest, length) > self.limit:
                yield self._stacked(zip(*held, strict=True), first)
                held, first, longest = [], number, 0
            held.append([copied(leaf) for leaf in leaves])
            longest = max(longest, length)
        if held:
            yield self._stacked(zip(*held, strict=True), first)
