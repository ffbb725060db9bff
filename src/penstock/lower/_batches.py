"""The program whose units fill batches: `ParallelProgram`.

The batches come from a plan with random access, or from the steps above a stream, whose elements lie in spans. Workers
fill rows of one batch side by side.
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import ArgumentError, ElementError, SpecError
from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.lower._analysis import Analysis, analyse
from penstock.lower._parts import cache_of
from penstock.lower._program import Position, Program, Unit
from penstock.lower._rewrite import closed, needed
from penstock.lower._share import Share, most_rows
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import RingView
from penstock.memory._rows import Rows, Window
from penstock.memory._spans import SpanLayout
from penstock.plan._batch import are_side_by_side, remainders
from penstock.plan._batch_axis import require_batch_first
from penstock.plan._node import Node, walk
from penstock.plan._order import ReadOrder
from penstock.plan._own_batches import OwnBatches
from penstock.plan._own_rows import not_shared
from penstock.plan._pad import padding_verb
from penstock.plan._reader import Gather, OpenSources, Reader, WorkerStatus
from penstock.plan._source import key_of
from penstock.plan._text import length_text, origins

ANNOUNCED_BATCHES: Final = 16
"""The most batches that are announced to the kernel ahead of their reads."""
REMOTE_BATCHES: Final = 32
MOST_ANNOUNCED: Final = 1024
"""The least and the most batches whose reads a server is asked for ahead. The source bounds the memory."""
ANNOUNCED_NBYTES: Final = 64 << 20
"""The most page cache that announcements may ask for. One batch is always announced."""
UNIT_NBYTES: Final = 4 << 20
"""A unit of plain reads has at least this size, or is a whole batch."""
UNIT_S: Final = 8e-3
LEAST_UNIT_S: Final = 2e-3
"""The duration of a unit with functions, and the least one. Its overhead of 150 to 400 us is small beside that."""
SERVER_UNIT_S: Final = 0.25
"""The duration of a unit that asks a server. A request is small beside that."""
FIRST_UNIT_ROWS: Final = 4
"""The most rows in a unit while the duration of a row is unknown."""
NO_BATCHES: Final = (0, 0, 0)
_WHOLE: Final = Share()
_WHOLE_CURE: Final = "Give ranks whole batches: whole_batches=True."


@final
class Announcements:
    """Which batches a unit announces to the sources: many at once, every few batches.

    Args:
        program: The program of the batches.
    """

    def __init__(self, program: "ParallelProgram") -> None:
        self._program = program
        self.reset()

    def reset(self) -> None:
        """Nothing is announced any more."""
        self._last: Position = (0, 0)
        self._count = 0
        """How many batches after the next one are announced; `_last` is the last of them."""

    def after(self, position: Position) -> tuple[int, int, int]:
        """Returns `(epoch, index)` of the first batch after a position to announce, and a count. Positions follow."""
        program = self._program
        if not program.announces:
            return NO_BATCHES
        most = program.announced_count
        self._count = max(0, self._count - 1)
        count = min(most, program.batch_count or most) - self._count
        if self._count > most // 2 or count <= 0:
            return NO_BATCHES
        last = self._last if self._count else position
        first = program.next_position(*last)
        for _ in range(count):
            last = program.next_position(*last)
        self._last, self._count = last, self._count + count
        return *first, count


def taken_from(spec: Spec, out: Rows, place: Any, *, is_shared: bool = False) -> list[Any]:
    """Returns rows of a slot, see `ParallelProgram.take_rows`. `place` is that of `slot_rows`."""
    leaves = zip(out.arrays, spec.leaves, strict=True)
    taken = [None if is_shared and leaf.is_bounded else array[place] for array, leaf in leaves]
    return taken if is_shared else [*taken, *(None if extent is None else int(extent[0]) for extent in out.extents)]


def put_into(out: Rows, place: Any, rows: Sequence[Any]) -> None:
    """Writes what `taken_from` returned into a slot. `place` is that of `slot_rows`."""
    for array, value in zip(out.arrays, rows, strict=False):
        if value is not None:
            array[place] = value
    for extent, size in zip(out.extents, rows[len(out.arrays) :], strict=False):
        if extent is not None:
            extent[0] = size


@final
@dataclass(frozen=True, eq=False)
class ParallelProgram(Program):
    """A program whose units fill batches, the elements that the loader delivers.

    Batches are cut into rows, which workers fill side by side.
    """

    shard: Share = _WHOLE
    """The rows of each batch that are delivered."""
    _: KW_ONLY
    same_epoch: bool = False
    """Every epoch is epoch 0 again, for evaluation."""
    spans: SpanLayout | None = None
    """Where the elements of the stream below the plan lie, if there is one."""
    is_inner: bool = False
    """The plan is a part of the user's, and its batches do not appear in messages."""
    _announcing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    """Held while reads are announced to a server. Units that would read them wait, so requests keep their order."""

    def __post_init__(self) -> None:
        if self.shard.divides:
            require_shares(self.node, self.shard)

    @cached_property
    def sources(self) -> OpenSources:
        """The sources of the plan, opened for this process at the first use.

        Raises:
            SourceError: A file is gone, or was replaced.
        """
        return OpenSources(self.node, self.source_share)

    @cached_property
    def spec(self) -> Spec:
        """The spec of what is delivered of a batch."""
        return self.shard.spec(self.node.spec)

    @cached_property
    def _most_rows(self) -> int:
        return most_rows(self.node.spec)

    @cached_property
    def _facts(self) -> Analysis:
        return analyse(self.node)

    @property
    def is_cpu_bound(self) -> bool:
        """Whether units call functions, and do not only read."""
        return self._facts.traits.is_cpu_bound

    @cached_property
    def batch_count(self) -> int | None:
        """Batches in an epoch; None if that is unknown or infinite."""
        return self.node.length if isinstance(self.node.length, int) else None

    @cached_property
    def announced_count(self) -> int:
        """How many batches are announced to sources before they are read: after a window shuffle, two windows."""
        if not self._facts.traits.is_remote:
            return max(1, min(ANNOUNCED_BATCHES, ANNOUNCED_NBYTES // max(1, self.node.spec.nbytes)))
        window = max((spread for spread in self._facts.spreads if spread < math.inf), default=0)
        count = math.ceil(2 * window / self._facts.batch_size)
        return max(REMOTE_BATCHES, min(count, MOST_ANNOUNCED))

    @cached_property
    def announces(self) -> bool:
        """Whether a source wants announcements of the reads that follow."""
        return self.spans is None and any(each.is_advised for each in self._opened)

    @property
    def _opened(self) -> list[Any]:
        return [self.sources[node.opens] for node in walk(self.node) if node.opens is not None]

    @cached_property
    def _followed(self) -> list[tuple[Any, ReadOrder]]:
        """Open sources that keep what is wanted soonest, each with its order."""
        if self.spans is not None:
            return []
        found = {key_of(each.opens): each.opens for each in walk(self.node) if each.opens is not None}
        opens = [each for each in found.values() if self.sources[each].follows_order]
        return [(self.sources[each], ReadOrder(self.node, each, self.batch_count)) for each in opens]

    @cached_property
    def _slot_row_count(self) -> int:
        """Rows for which a slot has room, the same for each leaf; else 0."""
        rooms = {leaf.max_shape[0] if leaf.max_shape else 0 for leaf in self.spec.leaves}
        return rooms.pop() if len(rooms) == 1 else 0

    @property
    def rows_per_batch(self) -> int:
        """Rows that the units of a full batch have together."""
        rows = self.row_count(0, 0)
        if rows is None:
            return 1
        first, last = self.shard_rows(rows)
        return max(1, last - first)

    def next_position(self, epoch: int, index: int, *, is_last: bool = False) -> Position:
        """Returns the position after a batch, in the same epoch or at the start of the next."""
        if index + 1 != self.batch_count and not is_last:
            return epoch, index + 1
        return (0 if self.same_epoch else epoch + 1), 0

    def at(self, length: int) -> Node:
        """Returns the plan for an epoch of a stream with `length` elements; -1 if the end is not known yet.

        Until the end is known, the arithmetic of the plan treats the stream as endless. Its answers for elements that
        exist stay right when the end is known.
        """
        return self.node if length < 0 else self._closed(length)

    @cached_property
    def _closed(self) -> Callable[[int], Node]:
        return functools.lru_cache(1)(functools.partial(closed, self.node))

    def rest(self, index: int, filled: int) -> tuple[int, int]:
        """Returns how many rows of a batch the first elements of a stream make, and how many elements these need.

        A row may be made of several elements: then those that do not make a row are left out.

        Args:
            index: The batch.
            filled: How many elements of the stream are there.
        """
        (source,) = self.node.inputs
        first = index * self.rows_per_batch
        stops = (needed(source, first + row)[1] for row in range(self.rows_per_batch))
        found = list(itertools.takewhile(lambda stop: stop <= filled, stops))
        return len(found), found[-1] if found else 0

    def shortage(self, epoch: int, index: int, length: int) -> SpecError:
        """Returns the error for a batch that needs elements beyond the end of a stream of `length` elements."""
        node, start, stop = self.at(length), index, index + 1
        needed_count = needed(node, index)[1]
        while node.inputs:  # down to the step that asks for more than its input has
            start, stop = node.needs(start, stop)
            if stop > (node.inputs[0].length or 0):
                break
            (node,) = node.inputs
        return SpecError(
            f"B{self.name(epoch, index)[1:]} needs {needed_count} elements of a stream that ended after {length}. "
            f"{node.label} has fewer elements than its length says."
        )

    def shard_rows(self, row_count: int) -> tuple[int, int]:
        """Returns the rows of a batch of `row_count` that this shard delivers; see `Share.rows`."""
        return self.shard.rows(row_count, self._most_rows) if not self.shard.is_whole else (0, row_count)

    def row_count(self, epoch: int, index: int, length: int = -1) -> int | None:
        """Returns into how many rows a batch can be cut; None if it is made in one piece."""
        return self.at(length).row_count(epoch, index)

    def cut(self, unit: Unit, worker_count: int, row_s: float = 0.0) -> list[Unit]:
        """Cuts a batch into units of about equal size. The cut does not change what is delivered.

        Args:
            unit: The whole batch, without rows.
            worker_count: How many workers share the batch; 0 if the caller fills it.
            row_s: Measured seconds for a row; 0 if unknown.
        """
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        if rows is None:
            return [unit]
        first, last = self.shard_rows(rows)
        count = self._unit_count(last - first, worker_count, row_s)
        # Not `_replace`: each call would leave a tuple in CPython's list of free tuples, up to 2,000 of them.
        epoch, index, _, _, slot, generation, announce, base, length, *_ = unit
        bounds = [first + (last - first) * number // count for number in range(count + 1)]
        return [
            Unit(epoch, index, start, stop, slot, generation, announce if start == first else NO_BATCHES, base, length)
            for start, stop in itertools.pairwise(bounds)
        ]

    def _unit_count(self, row_count: int, worker_count: int, row_s: float) -> int:
        """Returns into how many units a batch is cut.

        Functions: units of `UNIT_S`, and equally many for each worker, so that all workers finish a batch together. If
        these would be shorter than `LEAST_UNIT_S`, fewer.

        Plain reads: one unit up to `UNIT_NBYTES`. A unit costs some 100 us of Python, which threads cannot run side by
        side.

        Servers: one unit, or units of `SERVER_UNIT_S` if there are functions. A server takes as long for one row as for
        many.
        """
        if worker_count == 0 or row_count < 2:
            return 1
        share = -(-row_count // worker_count)
        is_short = self._facts.traits.is_cached and 0 < row_s * row_count < UNIT_S / 4  # rows come from the cache now
        row_nbytes = self.node.spec.nbytes // row_count
        most = UNIT_NBYTES // max(1, row_nbytes)
        if self._facts.traits.is_remote:
            if self.is_cpu_bound and row_s:
                most = min(most, round(SERVER_UNIT_S / row_s))
        elif self.is_cpu_bound and not is_short:
            if not row_s:
                most = min(share, FIRST_UNIT_ROWS)
            elif (least := round(LEAST_UNIT_S / row_s)) > share:
                return -(-row_count // least)  # other workers make other batches
            else:
                most = min(share, max(1, round(UNIT_S / row_s)))
            return min(row_count, -(-row_count // (most * worker_count)) * worker_count)
        return -(-row_count // max(share, most))

    def reader(
        self,
        isolation: type[seeded_globals] | None,
        status: WorkerStatus | None = None,
        inputs: Window | PartMemory | None = None,
    ) -> Reader:
        """Makes the reader of one worker. Elements of a stream come from a window, decoded parts from their memory."""
        window = inputs if isinstance(inputs, Window) else None
        if isinstance(inputs, PartMemory):
            for each in self._facts.parted:
                cache_of(self.sources[each.source]).follow(inputs, each.first)
        return Reader(self.node, self.sources, isolation=isolation, status=status, window=window)

    @property
    def part_count(self) -> int:
        """The parts of all sources."""
        return sum(len(each.sizes.nbytes) for each in self._facts.parted)

    def run(self, reader: Reader, unit: Unit, memory: RingView) -> int:
        """Fills the rows of a unit, and announces the reads that follow.

        Raises:
            Exception: The error of a source or a function, with a note that names the batch.
        """
        try:
            if self.spans is not None:
                reader = self._reader_at(reader, unit)
            for source, order in self._followed:
                last = self._announced(*unit.announce)[-1:] or [(unit.epoch, unit.index)]
                source.follow(order, (unit.epoch, unit.index), last[0])
            # A server is asked before this unit waits for it. The kernel may be slow to take announcements.
            if self._facts.traits.is_remote:
                with self._announcing:
                    self._announce_with(reader, unit)
            self._fill(reader, unit, memory.rows(unit.slot))
            if unit.announce[2] and not self._facts.traits.is_remote:
                self._announce(reader, *unit.announce)
        except StopIteration as error:  # it would end the consumer's loop as if the epoch were complete
            raise ElementError(f"A source raised StopIteration in {self.name(unit.epoch, unit.index)}.") from error
        except Exception as error:
            if not self.is_inner:
                error.add_note(f"This was in {self.name(unit.epoch, unit.index)}.")
            raise
        return unit.stop - unit.start

    def _reader_at(self, reader: Reader, unit: Unit) -> Reader:
        assert reader.window is not None
        reader.window.base = unit.base
        if unit.length < 0:
            return reader
        kept: dict[int, Reader] = reader.memo("closed", dict)
        if unit.length not in kept:
            kept.clear()
            kept[unit.length] = reader.over(self.at(unit.length))
        return kept[unit.length]

    def _fill(self, reader: Reader, unit: Unit, out: Rows) -> None:
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        if rows is None:
            self._fill_whole(reader, unit, out)
            return
        parts = np.arange(unit.start, unit.stop, dtype=np.int64)
        first, last = self.shard_rows(rows)  # the rows of a shard begin at the start of the slot
        places = out.inside()
        if unit.stop - unit.start != self._slot_row_count:
            places = places.take(slice(unit.start - first, unit.stop - first))
        gather = Gather()
        mine = self._marked(places, rows, unit.start, unit.stop)
        reader.fill_rows(unit.epoch, unit.index, parts if mine is places else parts % rows, mine, gather)
        gather.run()
        out.set_filled(last - first)

    def _fill_whole(self, reader: Reader, unit: Unit, out: Rows) -> None:
        box = out if self.shard.is_whole else reader.scratch(1)
        reader.read(unit.epoch, np.array([unit.index], np.int64), box)
        if not self.shard.divides:
            return
        counts = {
            len(array[0]) if extent is None else int(extent[0])
            for array, extent in zip(box.arrays, box.extents, strict=True)
        }
        for count in sorted(counts):
            self._require_shares(count)
        if len(counts) > 1:
            raise SpecError(
                f"A batch has leaves of {_listed(counts)} rows, and shards divide only rows that belong together. Give "
                "these leaves one number of rows, or take the rows of this process in a map()."
            )
        if self.shard.is_whole:
            return
        first, last = self.shard_rows(count)
        places = out.inside().take(slice(0, last - first))
        mine = self._marked(places, count, first, last)
        taken = slice(first, last) if mine is places else np.arange(first, last) % max(1, count)
        for target, whole in zip(mine.arrays, box.arrays, strict=True):
            target[places.rows] = whole[0, taken]
        out.set_filled(last - first)

    def _require_shares(self, row_count: int) -> None:
        """Refuses what `_check_shard` cannot know: a function after `batch` makes as many rows as it likes."""
        count, uneven, micro_count = self.shard.count, self.shard.uneven, self.shard.micro_count
        parts = count * micro_count
        if uneven == "mask" or (row_count >= parts if uneven == "weights" else row_count % parts == 0):
            return
        raise not_shared(row_count, count, parts, uneven=uneven == "weights")

    def _marked(self, places: Rows, row_count: int, first: int, last: int) -> Rows:
        """Writes the weights or the mask of rows `[first, last)`, and returns the places of the other leaves."""
        if self.shard.uneven == "refuse":
            return places
        places.arrays[-1][places.rows] = self._marks[self.shard.mark_rows(row_count, first, last)]
        return places.leaves(0, len(places.arrays) - 1)

    @cached_property
    def _marks(self) -> Any:
        return self.shard.marks(self._most_rows)

    def _announce_with(self, reader: Reader, unit: Unit) -> None:
        """Announces also the unit's own batch, if nothing was announced before."""
        epoch, index, count = unit.announce
        if count and (epoch, index) == self.next_position(unit.epoch, unit.index):
            epoch, index, count = unit.epoch, unit.index, count + 1
        self._announce(reader, epoch, index, count)

    def _announce(self, reader: Reader, epoch: int, index: int, count: int) -> None:
        for each, group in itertools.groupby(self._announced(epoch, index, count), lambda position: position[0]):
            reader.advise(each, np.array([index for _, index in group], np.int64))

    def _announced(self, epoch: int, index: int, count: int) -> list[Position]:
        positions = []
        for _ in range(count):
            positions.append((epoch, index))
            epoch, index = self.next_position(epoch, index)
        return positions

    def name(self, epoch: int, index: int) -> str:
        """A batch for messages, by its number among those of all ranks: `batch 3 of epoch 0`."""
        if isinstance(self.node, OwnBatches):
            (index,) = self.node.numbers(np.array([index])).tolist()
        return f"batch {index} of epoch {epoch}"

    def describe(self, unit: Unit) -> str:
        """Describes a unit for messages: `batch 3 of epoch 0, made of row 96 of ds.npy`."""
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        batch = self.name(unit.epoch, unit.index)
        if rows is None or rows <= 1:
            return f"{batch}{origins(self.node, unit.epoch, unit.index)}"
        made_of = origins(self.node, unit.epoch, unit.index, slice(min(unit.start, rows - 1), unit.stop))
        return f"{batch}, elements {unit.start} to {unit.stop - 1} of it{made_of}"

    def take_rows(self, unit: Unit, out: Rows, *, is_shared: bool) -> list[Any]:
        """Returns the rows of a unit: an entry for each leaf, then the extents of leaves of varying length."""
        return taken_from(self.spec, out, self.slot_rows(unit), is_shared=is_shared)

    def put_rows(self, unit: Unit, out: Rows, rows: Sequence[Any]) -> None:
        """Writes into a slot what `take_rows` returned in another process."""
        put_into(out, self.slot_rows(unit), rows)

    def slot_rows(self, unit: Unit) -> Any:
        """Returns the index of a unit's rows in the arrays of its slot: `(0, slice)`, or 0 for all."""
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        if rows is None:
            return 0
        first, _ = self.shard_rows(rows)
        return 0, slice(unit.start - first, unit.stop - first)


def require_shares(node: Node, share: Share, *, stands_alone: bool = True) -> None:
    """Refuses batches that cannot be shared out. The specs of the plan must be known.

    Args:
        node: The batches.
        share: The rows of each that are delivered.
        stands_alone: Whether no batches of another size stand beside them, for which `uneven=` has no meaning.

    Raises:
        ArgumentError: Says which batch, and the cure.
    """
    require_batch_first(node)
    count, uneven, micro_count = share.count, share.uneven, share.micro_count
    leaves, name = node.spec.leaves, f"shard={share[:2]}"
    sizes = {leaf.max_shape[0] if leaf.max_shape else 0 for leaf in leaves}
    if count == 1:
        name = f"uneven={uneven!r}" if micro_count == 1 else f"micro_batches={micro_count}"
    if 0 in sizes or (len(sizes) > 1 and not are_side_by_side(node)):
        cure = "without a common first axis. Put batch() last."
        if any(leaf.shape and not leaf.is_bounded for leaf in leaves):
            cure = f"whose size is not known ahead. {_WHOLE_CURE} Or pad to one: {padding_verb(node)}(padded_shapes=)."
        elif all(leaf.shape for leaf in leaves):
            cure += " If these are batches, give them to ranks whole: whole_batches=True."
        raise ArgumentError(
            f"{name} divides the rows of each batch, but elements of this dataset are {node.spec}, {cure}"
        )
    if len(sizes) > 1 and uneven != "refuse":
        raise ArgumentError(
            f"uneven={uneven!r} gives each row of a batch one number, but batches of {_listed(sizes)} elements stand "
            "side by side here. Use batch sizes that the shards divide, with drop_remainder=True, and leave uneven= "
            "out."
        )
    if uneven == "mask":
        return
    short = remainders(node) if any(leaf.varies for leaf in leaves) else set()
    parts, shares = count * micro_count, f"{count} shards"
    if micro_count > 1:
        shares = f"{micro_count} micro-batches" if count == 1 else f"{shares} of {micro_count} micro-batches each"
    if not isinstance(node.length, int) and any(leaf.varies for leaf in leaves):
        raise ArgumentError(
            "This dataset is a stream of unknown length. Its last batch may have any number of elements, which "
            f"{shares} cannot share evenly. {_WHOLE_CURE} Or use drop_remainder=True, or uneven='mask'."
        )
    if uneven == "weights":
        if (least := min(short | sizes)) < parts:
            raise ArgumentError(
                f"A batch has {length_text(least)}, too few for {shares}: a share would be empty. {_WHOLE_CURE} Or use "
                "drop_remainder=True, or uneven='mask', which fills up."
            )
        return
    if uneven_rows := [rows for rows in (*sorted(sizes), *sorted(short)) if rows % parts]:
        is_full = uneven_rows[0] in sizes
        batch, drops = ("A batch", "") if is_full else ("The last batch", " and drop_remainder=True")
        cure = "Or let shares differ by an element: uneven='weights'; for evaluation uneven='mask'."
        raise ArgumentError(
            f"{batch} has {length_text(uneven_rows[0])}, which {shares} cannot share evenly. {_WHOLE_CURE} Or use a "
            f"batch size that {parts} divides{drops}.{' ' + cure if stands_alone else ''}"
        )


def _listed(sizes: set[int]) -> str:
    return " and ".join(map(str, sorted(sizes)))
