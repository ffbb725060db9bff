"""From a plan to units of work: the bridge between what is wanted and how it happens.

A unit is rows `[start, stop)` of one batch. It is a pure function of the plan and those integers, so it can
run anywhere, in any order, and again.
"""

import functools
import itertools
import math
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ElementError
from penstock.base._random import seeded_globals
from penstock.base._retries import RetryBudget, UnwantedError, exchanged
from penstock.base._spec import Spec
from penstock.memory._rows import Rows, Window
from penstock.memory._slot import note_time, outcome_words
from penstock.memory._spans import SpanLayout
from penstock.plan._batch import remainders
from penstock.plan._cache import Cache
from penstock.plan._node import Node, walk
from penstock.plan._reader import Gather, OpenSources, Reader, WorkerStatus
from penstock.plan._source import Openable
from penstock.plan._stream import closed
from penstock.plan._text import origins

ANNOUNCED_BATCHES = 16
"""How many batches ahead, at most, the kernel is told what will be read."""
ANNOUNCED_NBYTES = 64 << 20
"""And how much memory of the page cache that may ask for; one batch is always announced."""


Position = tuple[int, int]
"""`(epoch, index)` of a batch."""

UNIT_NBYTES = 4 << 20
"""A unit of plain reads is at least this much, or a whole batch."""
UNIT_S = 8e-3
"""A unit of functions takes about this long: what it costs besides, some 90 us, is little beside it."""
SERVER_UNIT_S = 0.25
"""And about this long where a server is asked: a request is then little beside it."""
FIRST_UNIT_ROWS = 4
"""And has no more rows than this while nobody knows how long one takes."""


class Unit(NamedTuple):
    """Rows `[start, stop)` of batch `index` of epoch `epoch`, to be written into a slot."""

    epoch: int
    index: int  # type: ignore[assignment]  # in the place of a method of tuples, which nobody wants here
    start: int
    stop: int
    slot: int
    generation: int
    """Which filling of a slot it belongs to; of fillings that were given up, nothing is delivered."""
    announce: tuple[int, int, int] = (0, 0, 0)
    """Batches to come that this unit tells the sources about when it is done: `(epoch, index)` of the first, and
    how many."""
    base: int = 0
    """Of a stream: where the epoch's elements lie, see `Window.base`."""
    length: int = -1
    """Of a stream: how many elements its epoch has, if that was known when this unit was made; else -1."""
    origin: tuple[int, int] = (0, 0)
    """Of a feed: where to begin, if it has to begin anew; see `Reader.origin`."""
    is_condemned: bool = False
    """Whether its one element is to be set aside, and not tried: workers died of it."""


class Outcome(NamedTuple):
    """What came of a unit that reads a stream from where the one before it ended."""

    row_count: int
    """Elements that are there."""
    is_last: bool
    """Whether the epoch ended with them."""
    consumed: int
    """How far the stream's input was read; see `Reader.consumed`."""

    def write(self, words: "memoryview[int]", slot: int) -> None:
        """Notes it in the words of a ring."""
        place = outcome_words(words, slot)
        for number, value in enumerate(self):
            place[number] = value

    @classmethod
    def read(cls, words: "memoryview[int]", slot: int) -> "Outcome":
        """What was noted of a slot."""
        row_count, is_last, consumed = outcome_words(words, slot)
        return cls(row_count, bool(is_last), consumed)


def run_unit(
    program: Any, reader: Any, unit: Unit, out: Rows, words: "memoryview[int]", timeout_s: float = math.inf
) -> None:
    """Runs a unit of any kind of program, and notes in the ring's words how long it took, and what came of it.

    Of one that is given up while it waits to try something again, the end is as good as any: nothing is raised.

    Args:
        program: What it is of.
        reader: The worker's.
        unit: The unit.
        out: Where it writes.
        words: Those of the ring.
        timeout_s: How long the loader waits for a worker that does not get on.

    Raises:
        Exception: What the unit raised.
    """
    trace = reader.trace
    times = trace.times
    began = time.perf_counter()
    if times is not None and began >= times.due_s:
        times.sample()
    trace.words[0] = 0
    trace.failures.clear()
    trace.is_condemned = unit.is_condemned
    patience, before = RetryBudget(words, unit.generation, timeout_s), None
    try:
        before = exchanged(patience)
        program.run(reader, unit, out)
    except UnwantedError:
        pass
    finally:
        exchanged(before)
        # Where the loader was closed meanwhile, this memory is ours alone, and nobody will look at it.
        if program.is_serial:
            reader.outcome.write(words, unit.slot)
        ended = time.perf_counter()
        # A server takes as long for many rows as for one: that says nothing of how to cut batches.
        note_time(words, unit.stop - unit.start, max(0.0, ended - began - patience.waited_s))
        if times is not None:
            times.end(began, ended, program.rows_done(reader, unit))
            if patience.repeat_count:
                times.note_repeats(patience.repeat_count)


class Program:
    """A plan made ready to run: its length, what a slot holds, and how batches are cut into units.

    Args:
        node: The plan. Its elements are what the loader delivers, called batches here.
        shard: `(index, count)`: deliver rows `[index * size / count, (index + 1) * size / count)` of each.
        same_epoch: Every epoch is epoch 0 again, for evaluation.
        spans: Of a plan over a stream: where its elements lie.
        is_inner: It is a part of a plan, of whose batches the user knows nothing.
    """

    is_serial = False
    """Whether units must be done in order, and say what came of them."""

    def __init__(
        self,
        node: Node,
        shard: tuple[int, int],
        *,
        same_epoch: bool = False,
        spans: SpanLayout | None = None,
        is_inner: bool = False,
    ) -> None:
        self.node = node
        self.is_inner = is_inner
        self.spans = spans
        self.shard = shard
        self.same_epoch = same_epoch
        self._closed: dict[int, Node] = {}
        self.sources = OpenSources(node)
        if shard[1] > 1:
            self._check_shard()

    def __reduce__(self) -> tuple[Any, ...]:
        # Sources are opened again where this arrives.
        make = functools.partial(Program, same_epoch=self.same_epoch, spans=self.spans, is_inner=self.is_inner)
        return make, (self.node, self.shard)

    def first_element(self, index: int) -> int:
        """Of a serial program: the number of the first element of a batch."""
        return 0

    @cached_property
    def batch_count(self) -> int | None:
        """Batches in an epoch; None for an epoch without an end."""
        return self.node.length if isinstance(self.node.length, int) else None

    @cached_property
    def step_count(self) -> int:
        """Steps of which workers note how long they take."""
        return len(list(walk(self.node)))

    @cached_property
    def _most_rows(self) -> int:
        """The rows that a slot has a place for; 0 where they have no size, or there are none."""
        shape = self.spec.leaves[0].max_shape
        return shape[0] if shape else 0

    @property
    def _opened(self) -> list[Any]:
        """What the steps read by in this process."""
        return [self.sources[node.opens] for node in walk(self.node) if node.opens is not None]

    @cached_property
    def announces(self) -> bool:
        """Whether a source wants to be told what will be read."""
        # Asked of the object and not of its class: what a source opens may hand on what it does not have itself.
        return any(getattr(each.advise, "__func__", None) is not Openable.advise for each in self._opened)

    @property
    def rows_per_batch(self) -> int:
        """Rows that the units of a full batch have, all together."""
        rows = self.row_count(0, 0)
        if rows is None:
            return 1
        first, last = self.shard_rows(rows)
        return max(1, last - first)

    @property
    def spec(self) -> Spec:
        """What is delivered: the plan's spec, or a shard's part of it."""
        return self.node.spec if self.shard[1] == 1 else self.node.spec.divided(self.shard[1])

    def _check_shard(self) -> None:
        count = self.shard[1]
        sizes = {leaf.max_shape[0] if leaf.max_shape else 0 for leaf in self.node.spec.leaves}
        size = sizes.pop() if len(sizes) == 1 else None
        if not size:
            unknown = any(leaf.shape and not leaf.is_bounded for leaf in self.node.spec.leaves)
            raise ArgumentError(
                f"shard={self.shard} divides the rows of each batch, but elements of this dataset are "
                f"{self.node.spec}, "
                + (
                    "whose size nobody knows ahead. Pad to one: padded_batch(padded_shapes=). Or take the rows of "
                    f"this process in a map() of the batch: array[{self.shard[0]}::{count}]."
                    if unknown
                    else "without a common first axis. Put batch() last."
                )
            )
        if self.node.length == math.inf and any(leaf.varies for leaf in self.node.spec.leaves):
            raise ArgumentError(
                f"Of a stream of unknown length the last batch may have any number of elements, which {count} shards "
                "cannot share evenly. Use drop_remainder=True."
            )
        short = remainders(self.node) if any(leaf.varies for leaf in self.node.spec.leaves) else set()
        for rows, which in ((size, "A batch"), *((rows, "The last batch") for rows in sorted(short))):
            if rows % count:
                cure = ""
                if which != "A batch":
                    cure = (
                        " and drop_remainder=True. To measure on each element once, share out elements: "
                        f"dataset.shard(index, {count}), before batch() and in place of shard="
                    )
                raise ArgumentError(
                    f"{which} has {rows} elements, which {count} shards cannot share evenly. Use a batch size "
                    f"that {count} divides{cure}."
                )

    def at(self, length: int) -> Node:
        """The plan for an epoch of a stream that has so many elements; -1 while that is not known.

        To the arithmetic of a plan, a stream whose end has not been seen is endless. What it says of elements that
        are there holds when the end is seen.
        """
        if length < 0:
            return self.node
        if length not in self._closed:
            self._closed = {length: closed(self.node, length)}  # replaced as a whole: other threads may be reading it
        return self._closed.get(length) or closed(self.node, length)

    def shard_rows(self, row_count: int) -> tuple[int, int]:
        """The rows of a batch of `row_count` that this shard delivers."""
        index, count = self.shard
        if count == 1:
            return 0, row_count
        return index * row_count // count, (index + 1) * row_count // count

    def row_count(self, epoch: int, index: int, length: int = -1) -> int | None:
        """How many rows a batch can be cut along; None if it is made in one piece."""
        return self.at(length).part_count(epoch, index)

    def units(
        self,
        epoch: int,
        index: int,
        slot: int,
        generation: int,
        worker_count: int,
        row_s: float = 0.0,
        announce: tuple[int, int, int] = (0, 0, 0),
        base: int = 0,
        length: int = -1,
        origin: tuple[int, int] = (0, 0),
    ) -> list[Unit]:
        """Cuts a batch into units, to be shared by workers. How does not change what is delivered.

        Args:
            epoch: The batch's epoch.
            index: The batch.
            slot: Where it is to be written.
            generation: Of this filling of the slot.
            worker_count: How many workers share it; 0 if nobody does.
            row_s: How long a row took so far; 0 if that is not known.
            announce: See `Unit.announce`.
            base: See `Unit.base`.
            length: See `Unit.length`.
            origin: See `Unit.origin`.
        """
        rows = self.row_count(epoch, index, length)
        if rows is None:
            return [Unit(epoch, index, 0, 1, slot, generation, announce, base, length, origin)]
        first, last = self.shard_rows(rows)
        count = self._unit_count(last - first, worker_count, row_s)
        if count == 1:
            return [Unit(epoch, index, first, last, slot, generation, announce, base, length)]
        bounds = [first + (last - first) * number // count for number in range(count + 1)]
        return [
            Unit(epoch, index, start, stop, slot, generation, announce if start == first else (0, 0, 0), base, length)
            for start, stop in itertools.pairwise(bounds)
        ]

    def _unit_count(self, row_count: int, worker_count: int, row_s: float) -> int:
        """How many units a batch is cut into, which are equal but for a row.

        Rows that take unlike times, as those of functions do, are dealt some milliseconds at a time, and as many units
        to each worker, so that all end with a batch together. Plain reads go to one worker a batch while that is below
        a millisecond: a unit costs some 100 us of Python, which threads cannot do side by side.

        Rows that a server has to be asked for go to one worker as well, also where there are functions, and to several
        where these take long: a unit is some requests, and the server takes as long for one row as for many.
        """
        if worker_count == 0 or row_count < 2:
            return 1
        share = -(-row_count // worker_count)
        is_short = self.keeps and 0 < row_s * row_count < UNIT_S / 4  # read, and not made any more
        row_nbytes = self.node.spec.nbytes // row_count
        most = UNIT_NBYTES // max(1, row_nbytes)
        if self.is_remote:
            if self.computes and row_s:
                most = min(most, round(SERVER_UNIT_S / row_s))
        elif self.computes and not is_short:
            most = min(share, max(1, round(UNIT_S / row_s)) if row_s else FIRST_UNIT_ROWS)
            return min(row_count, -(-row_count // (most * worker_count)) * worker_count)
        return -(-row_count // max(share, most))

    @cached_property
    def computes(self) -> bool:
        """Whether elements take computation, and are not merely read."""
        return any(node.computes for node in walk(self.node))

    @cached_property
    def is_remote(self) -> bool:
        """Whether a source waits for a server."""
        return is_remote(self.node)

    @cached_property
    def is_in_memory(self) -> bool:
        """Whether batches are copied from memory: no function runs, and nothing is waited for."""
        return not self.computes and all(getattr(each, "is_in_memory", False) is True for each in self._opened)

    @cached_property
    def keeps(self) -> bool:
        """Whether what functions make is kept somewhere, so that they are not run each time."""
        return any(isinstance(node, Cache) for node in walk(self.node))

    @cached_property
    def announced_count(self) -> int:
        """How many batches ahead sources are told of."""
        return max(1, min(ANNOUNCED_BATCHES, ANNOUNCED_NBYTES // max(1, self.node.spec.nbytes)))

    def next_position(self, epoch: int, index: int, *, is_last: bool = False) -> Position:
        """What follows a batch: the next, or the first of the next epoch."""
        if index + 1 != self.batch_count and not is_last:
            return epoch, index + 1
        return (0 if self.same_epoch else epoch + 1), 0

    def reader(
        self, isolation: type[seeded_globals] | None, trace: WorkerStatus | None = None, window: Window | None = None
    ) -> Reader:
        """Makes the readers of one worker."""
        return Reader(self.node, self.sources, isolation=isolation, trace=trace, window=window)

    def run(self, reader: Reader, unit: Unit, out: Rows) -> None:
        """Runs a unit: fills its rows of the slot, then announces reads to come.

        Raises:
            Exception: What a source or a function raised, with a note of the batch.
        """
        try:
            self._run(reader, unit, out)
        except StopIteration as error:  # it would end the consumer's loop as if all had been delivered
            raise ElementError(f"A source raised StopIteration{_place(unit)}.") from error
        except Exception as error:
            if not self.is_inner:
                error.add_note(f"This was{_place(unit)}.")
            raise

    def rows_done(self, reader: Reader, unit: Unit) -> int:
        """The rows of a unit that was run just now, to be counted."""
        return unit.stop - unit.start

    def describe(self, unit: Unit) -> str:
        """What a unit is of, for messages: `batch 3 of epoch 0, made of row 96 of ds.npy`."""
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        batch = f"batch {unit.index} of epoch {unit.epoch}"
        if rows is None or rows <= 1:
            return f"{batch}{origins(self.node, unit.epoch, unit.index)}"
        some = slice(unit.start, unit.stop)
        made_of = origins(self.node, unit.epoch, unit.index, some)
        return f"{batch}, elements {unit.start} to {unit.stop - 1} of it{made_of}"

    def objects(self, unit: Unit, out: Rows) -> list[Any]:
        """What a unit wrote of leaves that have no place in the slot, text and ragged arrays: one value a leaf."""
        return [array[self._rows_of(unit)] for array in self._object_arrays(out)]

    def put_objects(self, unit: Unit, out: Rows, objects: Sequence[Any]) -> None:
        """Puts what `objects` returned, in another process, where it belongs."""
        for array, value in zip(self._object_arrays(out), objects, strict=True):
            array[self._rows_of(unit)] = value

    def _object_arrays(self, out: Rows) -> list[npt.NDArray[Any]]:
        return [array for array, leaf in zip(out.arrays, self.spec.leaves, strict=True) if not leaf.is_bounded]

    def _rows_of(self, unit: Unit) -> Any:
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        if rows is None:
            return 0
        first, _ = self.shard_rows(rows)
        return 0, slice(unit.start - first, unit.stop - first)

    def _run(self, reader: Reader, unit: Unit, out: Rows) -> None:
        gather = Gather()
        if self.spans is not None:
            reader = self._reader_at(reader, unit)
        rows = self.row_count(unit.epoch, unit.index, unit.length)
        if rows is None:
            self._run_whole(reader, unit, out, gather)
        else:
            parts = np.arange(unit.start, unit.stop, dtype=np.int64)
            first, last = self.shard_rows(rows)  # a shard's rows begin where the slot begins
            places = out.parts()
            if unit.stop - unit.start != self._most_rows:
                places = places.take(slice(unit.start - first, unit.stop - first))
            reader.fill_parts(unit.epoch, unit.index, parts, places, gather)
            gather.run()
            out.set_extents(last - first)
        if unit.announce[2]:
            self._announce(reader, *unit.announce)

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

    def _announce(self, reader: Reader, epoch: int, index: int, count: int) -> None:
        positions = []
        for _ in range(count):
            positions.append((epoch, index))
            epoch, index = self.next_position(epoch, index)
        for each, group in itertools.groupby(positions, lambda position: position[0]):
            reader.advise(each, np.array([index for _, index in group], np.int64))

    def _run_whole(self, reader: Reader, unit: Unit, out: Rows, gather: Gather) -> None:
        index = np.array([unit.index], np.int64)
        if self.shard[1] == 1:
            reader.fill(unit.epoch, index, out, gather)
            gather.run()
            return
        box = reader.scratch(1)
        reader.fill(unit.epoch, index, box, gather)
        gather.run()
        count = next((int(extent[0]) for extent in box.extents if extent is not None), len(box.arrays[0][0]))
        first, last = self.shard_rows(count)
        places = out.parts().take(slice(0, last - first))
        for target, whole in zip(places.arrays, box.arrays, strict=True):
            target[places.rows] = whole[0, first:last]
        out.set_extents(last - first)


def is_remote(node: Node) -> bool:
    """Whether a source of a plan waits for a server."""
    return any(each.is_remote for each in walk(node))


def _place(unit: Unit) -> str:
    return f" in batch {unit.index} of epoch {unit.epoch}"
