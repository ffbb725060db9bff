"""The program whose units decode parts of sources for the workers of a plan: `PartProgram`.

A unit is one part: `index` is its number among those of all sources, `base` its place, and `length` the size of that.
Its result is the number of bytes that the part takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, final

import numpy as np

from penstock.base._random import seeded_globals
from penstock.base._spec import ArraySpec, Spec
from penstock.lower._analysis import PartedSource
from penstock.lower._program import Program, Unit
from penstock.memory._part_memory import PartMemory
from penstock.memory._ring import RingView
from penstock.memory._rows import Rows
from penstock.plan._parted import PartCache
from penstock.plan._reader import OpenSources, WorkerStatus
from penstock.plan._source import inner_of


def cache_of(opened: Any) -> PartCache:
    """The decoded parts of what a source with parts opened."""
    cache: PartCache = inner_of(opened).part_cache
    return cache


@final
@dataclass(frozen=True)
class DecodeReader:
    """What a worker that decodes parts has open."""

    caches: Sequence[PartCache]
    """The open sources."""
    memory: PartMemory
    """Where decoded parts go."""
    status: WorkerStatus
    """Where the worker writes what it is working on."""
    own: Sequence[OpenSources]
    """The sources that close with this reader."""


@final
@dataclass(frozen=True, eq=False)
class PartProgram(Program):
    """Decodes parts."""

    sources: Sequence[PartedSource]
    plan_step_count: int
    """The steps of their plan."""
    opened: Sequence[PartCache] | None = None
    """The sources, if they are open in this process; else each worker opens them."""

    @cached_property
    def spec(self) -> Spec:
        """The bytes that a part takes."""
        return Spec.of(ArraySpec((1,), np.dtype(np.int64)))

    @property
    def step_count(self) -> int:
        """The steps of the plan, one of which is the source."""
        return self.plan_step_count

    @cached_property
    def _firsts(self) -> list[int]:
        return [each.first for each in self.sources]

    def room(self, share: float) -> int:
        """Returns the memory for parts, if sources keep this share of theirs."""
        return sum(each.sizes.room_of(share) for each in self.sources)

    def own_nbytes(self, share: float, process_count: int) -> int:
        """Returns what workers take beside the room: to decode parts alone, and parts until they are in shared memory.

        If there is room for all parts, none is decoded alone.
        """
        sizes = [each.sizes for each in self.sources]
        needed = sum(int(each.nbytes.sum()) for each in sizes) + max(int(each.work_nbytes.max()) for each in sizes)
        alone_nbytes = 0 if needed <= self.room(share) else sum(each.least_room for each in sizes)
        if not process_count:
            return alone_nbytes
        largest = max(int(each.nbytes.max()) for each in sizes)
        return min(process_count, self.part_count) * max(alone_nbytes, largest)

    @property
    def part_count(self) -> int:
        """The parts of all sources."""
        return sum(len(each.sizes.nbytes) for each in self.sources)

    def reader(
        self, isolation: type[seeded_globals] | None, status: WorkerStatus | None = None, inputs: Any = None
    ) -> DecodeReader:
        """Opens the sources, unless they are open."""
        caches, own = self.opened, []
        if caches is None:
            own = [OpenSources(each.node) for each in self.sources]
            caches = [cache_of(opened[each.source]) for opened, each in zip(own, self.sources, strict=True)]
        return DecodeReader(caches, inputs, status or WorkerStatus(), own)

    def close(self, reader: DecodeReader) -> None:
        """Nothing: sources close when the reader is dropped."""

    def run(self, reader: DecodeReader, unit: Unit, memory: RingView) -> int:
        """Decodes a part."""
        which, part = self._placed(unit.index)
        began = perf_counter()
        value, nbytes = reader.caches[which].decode(part)
        memory.rows(unit.slot).arrays[0][0] = reader.memory.put(unit.index, unit.base, unit.length, value, nbytes)
        if reader.status.times is not None:
            reader.status.times.note(self.sources[which].step, 0, perf_counter() - began)
        return 0

    def describe(self, unit: Unit) -> str:
        """Names the first element of a part."""
        which, part = self._placed(unit.index)
        each = self.sources[which]
        return each.source.describe(int(each.sizes.bounds[part]))

    def take_rows(self, unit: Unit, out: Rows, *, is_shared: bool) -> list[Any]:
        """Nothing: what a part takes is in its slot."""
        return []

    def put_rows(self, unit: Unit, out: Rows, rows: Sequence[Any]) -> None:
        """Nothing."""

    def _placed(self, number: int) -> tuple[int, int]:
        which = int(np.searchsorted(self._firsts, number, "right")) - 1
        return which, number - self._firsts[which]
