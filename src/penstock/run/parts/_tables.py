"""The tables that batches are copied from: threads decode their parts ahead, as `_plan.py` decides.

Which thread writes what. The consumer's thread alone calls what is here. It shares the lock of the feed with the
threads that decode, and they put a token into a queue when something has changed.
"""

import functools
import math
import queue
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from penstock import native
from penstock.base._errors import SourceError
from penstock.lower._analysis import PartedSource
from penstock.lower._batches import ParallelProgram
from penstock.lower._copies import Copy
from penstock.lower._parts import PartProgram
from penstock.memory._part_memory import HeldParts
from penstock.memory._times import Noted
from penstock.plan._parted import by_part
from penstock.plan._source import inner_of
from penstock.run.executors._threads import ThreadsExecutor
from penstock.run.parts._feed import PartFeed
from penstock.run.parts._plan import Want
from penstock.sources.parted import OpenParts, PartedArray

MOST_AHEAD_ROWS: Final = 1 << 18
"""Rows whose indices are computed ahead, so that the next part of a table is decoded before it is needed."""
Parts = tuple[int, ...]
"""Parts of all tables, numbered one table after the other."""


@final
class Tables:
    """The tables of a plan that only moves bytes.

    Args:
        program: The program of the batches.
        arrays: The arrays that are copied from. Some are columns of tables.
        thread_count: Threads that decode.
        tokens: Gets a token when a decoding ends.
    """

    def __init__(
        self, program: ParallelProgram, arrays: Sequence[Any], thread_count: int, tokens: "queue.SimpleQueue[None]"
    ) -> None:
        self._opened: list[OpenParts] = []
        self._columns: dict[int, tuple[int, int]] = {}
        """For the number of an array its table, and the number of its column there."""
        self._sources: dict[int, tuple[int, native.Source]] = {}
        """For the number of an array its source, and the version of the parts there."""
        self._firsts = [0]
        sources: list[PartedSource] = []
        for number, array in enumerate(arrays):
            if isinstance(array, PartedArray):
                opened = inner_of(program.sources[array.source])
                if opened not in self._opened:
                    self._opened.append(opened)
                    sizes = opened.part_cache.sizes
                    sources.append(PartedSource(0, program.node, array.source, sizes, self._firsts[-1]))
                    self._firsts.append(self._firsts[-1] + len(sizes.nbytes))
                self._columns[number] = self._opened.index(opened), array.number
        self._caches = [opened.part_cache for opened in self._opened]
        decoding = PartProgram(program.node, sources, program.step_count, self._caches)
        room = decoding.room(program.source_share)
        self._lock = threading.Lock()
        self.feed = PartFeed(
            decoding,
            None,
            room,
            lambda client: ThreadsExecutor(client, thread_count),
            functools.partial(tokens.put, None),
            self._lock,
            math.inf,
        )
        assert isinstance(self.feed.memory, HeldParts)
        self._there = self.feed.memory
        for cache, first in zip(self._caches, self._firsts, strict=False):
            cache.follow(self._there, first)
        all_sizes = [each.sizes for each in sources]
        self.ahead_rows = min(
            MOST_AHEAD_ROWS, *(int(each.bounds[-1]) // max(1, len(each.nbytes)) for each in all_sizes)
        )
        """Rows whose indices are computed ahead."""
        nbytes = sum(int(each.nbytes.sum()) for each in all_sizes)
        nbytes += max(int(each.work_nbytes.max(initial=0)) for each in all_sizes)
        self._stays = nbytes <= room and not any(opened.is_mapped for opened in self._opened)
        """Whether all parts fit, and nothing has to be asked of them again."""

    @property
    def busy_s(self) -> float:
        """The time that decoding took."""
        return Noted.of(self.feed.ring.total_times()).wall_s

    def want(self, copies: list[Copy]) -> Parts:
        """Notes what a batch wants, behind those before it. Returns its parts; none if all parts are there for good."""
        if self._stays and self._there.count == self._firsts[-1]:
            return ()
        parts: set[int] = set()
        seen: set[tuple[int, int]] = set()
        for array, _, rows, _, _ in copies:
            if array not in self._columns or not len(rows):
                continue
            table, _ = self._columns[array]
            if (table, id(rows)) not in seen:  # columns of a table have the same rows
                seen.add((table, id(rows)))
                bounds = self._caches[table].sizes.bounds
                found = np.searchsorted(bounds, (rows.min(), rows.max()), "right") - 1
                if found[1] - found[0] > 1:
                    found = np.unique(np.searchsorted(bounds, rows, "right") - 1)
                parts.update((self._firsts[table] + found).tolist())
        with self._lock:
            self.feed.plan.want(Want(part, is_wide=True) for part in parts)
        return tuple(parts)

    def is_ready(self) -> bool:
        """Returns whether the next batch may begin, and has threads decode what it waits for, and what is behind."""
        with self._lock:
            is_ready = self.feed.is_ready()
            if self.feed.is_stirred:
                self.feed.stir()
        return is_ready

    def are_there(self, parts: Parts) -> bool:
        """Returns whether all parts are there that the next batch needs. Else `copy_alone` copies their rows."""
        return all(self._there.get(part) is not None for part in parts)

    def begin(self, batch: int) -> None:
        """The next batch begins, under a number of its own."""
        with self._lock:
            self.feed.begin(batch)

    def end(self, batch: int) -> None:
        """A batch that began reads no part any more."""
        with self._lock:
            self.feed.end(batch)

    def forget(self) -> None:
        """A seek: no batch is under way, and nothing is known of the next ones."""
        with self._lock:
            self.feed.plan.end_all()
            self.feed.plan.begin_anew()

    def column(self, array: int) -> native.Source:
        """Returns the source of an array. Those rows can be read whose parts are there."""
        version = self._there.version
        if (found := self._sources.get(array)) is None or found[0] != version:
            table, number = self._columns[array]
            bounds, first = self._caches[table].sizes.bounds, self._firsts[table]
            parts = [self._there.get(part) for part in range(first, first + len(bounds) - 1)]
            sources = [None if part is None else part[number].source for part in parts]
            found = self._sources[array] = version, native.Engine.parts(bounds, sources, name=array)
        return found[1]

    def copy_alone(self, copies: Sequence[Copy], views: Sequence[tuple[Any, int | None]]) -> None:
        """Copies the rows of a batch on this thread, part by part. Decodes those that are not there, one at a time.

        Args:
            copies: The copies, from tables alone.
            views: For each the rows that it writes to, and the code of the conversion.

        Raises:
            SourceError: A part cannot be decoded.
        """
        wanted: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
        for (array, _, rows, places, first), (view, code) in zip(copies, views, strict=True):
            table, number = self._columns[array]
            to = slice(first, first + len(rows)) if places is None else places
            for part, inside, at in by_part(self._caches[table].sizes.bounds, rows, to):
                target = (view[at], None) if isinstance(at, slice) else (view, at)
                wanted[table, part].append((number, inside, *target, code))
        for (table, part), theirs in sorted(wanted.items(), key=lambda each: each[0]):
            with self._caches[table].use(part) as columns:
                native.copy([(columns[number].source, *rest) for number, *rest in theirs])

    def require_same(self, parts: Parts) -> None:
        """Refuses what was read of a mapped file that has changed: it may be zeros, or other rows.

        Raises:
            SourceError: It has.
        """
        for part in parts:
            table = bisect_right(self._firsts, part) - 1
            if self._opened[table].is_mapped:
                self._opened[table].require_same(part - self._firsts[table])

    def read_error(self, array: int, error: native.CopyError) -> SourceError:
        """The error of a row that could not be copied."""
        return self._opened[self._columns[array][0]].read_error(error)
