"""How a plan is read: one `Reader` for each node and worker.

A plan is shared and never changes. What changes while it is read is here: scratch memory, the random generator, and the
element that a worker is at. One worker (a thread, a process, or the caller of `ds[i]`) has its own readers, so nothing
in this file takes a lock. `OpenSources` alone is shared by the workers of one process; it is filled before they start
and is read-only afterwards.
"""

import itertools
import math
import operator
import os
import sys
import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import PenstockError, SpecError
from penstock.base._printable import printable
from penstock.base._random import seeded_globals
from penstock.base._retries import RetryBudget
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.memory._budget import LYING_HEADER, not_given
from penstock.memory._rows import Indices, Leaves, Rows, Window, chunk_count, copied, places_of, ranges_of
from penstock.memory._slot import own_header
from penstock.memory._times import Times
from penstock.plan._node import Elements, Node, allow_depth, located, most_elements, walk
from penstock.plan._source import Openable, Read, Source, inner_of, key_of, limited, open_source
from penstock.plan._text import largest_element, length_text, place_of

T = TypeVar("T")
_READER: Final = operator.itemgetter(1)


@final
class Gather:
    """Reads collected over a plan, so each source gets all of its reads in one call."""

    __slots__ = ("wanted",)

    def __init__(self) -> None:
        self.wanted: dict[int, tuple[Source, list[tuple[Read, Reader]]]] = {}
        """Each source with its reads and their readers, by the source's id: a user's source may have no hash."""

    def add(self, reader: "Reader", indices: Indices, out: Rows, source: Source | None = None) -> None:
        """Notes that elements `indices` of a source belong into `out`.

        Args:
            reader: The reader that wants them.
            indices: The elements.
            out: The rows.
            source: The open source; by default that of the reader.
        """
        source = reader.source if source is None else source
        assert source is not None
        self.wanted.setdefault(id(source), (source, []))[1].append(
            (Read(indices, out.arrays, out.rows, out.borrows), reader)
        )

    def run(self) -> None:
        """Reads everything that was noted; after it, the rows hold their elements."""
        counted: set[Reader] = set()
        for source, wanted in self.wanted.values():
            reads, began = [read for read, _ in wanted], time.perf_counter()
            try:
                source.gather(reads)
            except Exception as error:
                reader = wanted[-1][1]
                reader.status.words[0] = reader.number + 1  # for the guard that notes it
                if isinstance(error, PenstockError):
                    raise
                # The error of a user's own source does not say which elements were requested.
                indices = np.concatenate([read.indices for read in reads])
                first = printable(source.describe(int(indices[0]))) if len(indices) else "none"
                error.add_note(f"A source raised it, asked for {length_text(len(indices))}, first {first}.")
                raise
            if (times := wanted[0][1].status.times) is None:  # all readers are of one worker
                continue
            # A step may read several sources, as a cache does for each leaf. Its elements count with the first.
            spent_s, total = time.perf_counter() - began, 0
            for read in reads:
                total += len(read.indices)
            for read, reader in wanted:
                count = len(read.indices)
                times.note(reader.number, 0 if reader in counted else count, spent_s * count / (total or 1))
            if len(self.wanted) > 1:
                counted.update(map(_READER, wanted))


@final
class OpenSources:
    """The sources of a plan, opened in this process; equal sources are opened once.

    Args:
        node: The plan.
        share: The part of their memory that they keep; see `limited`.
    """

    def __init__(self, node: Node, share: float = 1.0) -> None:
        self._opened: dict[Hashable, tuple[Openable, Any]] = {}
        self._pid = os.getpid()
        for each in walk(node):
            if (source := each.opens) is not None and (key := key_of(source)) not in self._opened:
                if isinstance(source, Source):
                    less = limited(source, share)
                    self._opened[key] = less, (opened := open_source(less))
                    if less.parts is not None:
                        inner_of(opened).part_cache.limit(share)
                else:
                    self._opened[key] = source, source.open()

    def __getitem__(self, source: Openable) -> Any:
        return self._opened[key_of(source)][1]

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:  # held here: `__del__` may run when `os` is gone
        """Closes what `open` returned, once. A source that is its own open form stays as it is.

        Not in a child of fork(): threads of the sources are missing there, and may have had their locks.
        """
        opened, self._opened = self._opened, {}
        if self._pid != getpid():
            return
        for source, opened_source in opened.values():
            if opened_source is not source:
                opened_source.close()

    def __del__(self) -> None:
        # A loader or a dataset was dropped without a call to close().
        self.close()


@final
class WorkerStatus:
    """The step and element that a worker is at. The worker writes it; a waiting consumer reads it.

    It is three integers because it may lie in memory of another process. The other attributes pass facts between the
    guards of a plan and the code that runs a unit; see `_tolerate.py`.
    """

    __slots__ = ("failures", "firsts", "is_poisoned", "on_lack", "takes_any", "times", "words")

    def __init__(self, words: "memoryview[int] | None" = None) -> None:
        self.words: memoryview[int] = memoryview(array("q", bytes(24))) if words is None else words
        """The step's number in the order of `walk` plus one, or 0 before the first; the epoch; the element."""
        self.firsts: dict[int, Leaves] = {}
        """While specs are learnt: element 0 of epoch 0 of steps whose functions ran, by the step's id."""
        self.failures: list[Any] = []
        """The `Failure`s that were set aside in this unit."""
        self.is_poisoned: bool = False
        """Workers died of the one element of this unit, so it is not tried again."""
        self.takes_any: bool = False
        """The caller needs some elements of a stream, so those that fail are skipped."""
        self.on_lack: Callable[[], str] | None = None
        """Called when an element gets no memory, where the process has a limit of its own. Says what to say of it, or
        ends the process if earlier elements hold the memory."""
        self.times: Times | None = None
        """The worker's times; None if they are not reported."""

    def read(self) -> tuple[int, int, int]:
        """The words. The worker may move on meanwhile, so they may be of two moments."""
        step, epoch, index = self.words
        return step, epoch, index


@final
class Reader:
    """A node being read by one worker: the node, the readers of its inputs, and scratch memory.

    A node with random access that is used several times in a plan has one reader: each call ends before the next
    begins. A stream has a reader for each use, because each use reads it at its own position.
    """

    def __init__(
        self,
        node: Node,
        sources: OpenSources,
        *,
        isolation: type[seeded_globals] | None,
        status: WorkerStatus | None = None,
        window: Window | None = None,
        numbers: dict[int, int] | None = None,
        shared: "dict[int, Reader] | None" = None,
    ) -> None:
        """Makes a reader, and those of all nodes below.

        Args:
            node: The node.
            sources: The open sources of the plan.
            isolation: How global generators are seeded, if one element runs at a time in this process; else None.
            status: The worker's status.
            window: Where an `Inlet` reads.
            numbers: The places of all nodes in the order of `walk`, by id; None to find them.
            shared: Readers of nodes with random access that were made for this use of a stream, by id.
        """
        if numbers is None:
            allow_depth(node)
            numbers = {id(each): number for number, each in enumerate(walk(node))}
        shared = {} if shared is None or node.access == "stream" else shared
        self.status: WorkerStatus = status or WorkerStatus()
        self.window: Window | None = window
        self.number: int = numbers[id(node)]
        self.isolation: type[seeded_globals] | None = isolation
        self._node = node
        self._as_ours: Spec | None = None
        """The last spec that `fill_place` was asked for, if its leaves lie in the same places as those of the node."""
        self._sources = sources  # they close themselves when no reader holds them
        self.inputs: list[Reader] = []
        for each in node.inputs:
            reader = shared.get(id(each))
            if reader is None:
                reader = Reader(
                    each,
                    sources,
                    isolation=isolation,
                    status=self.status,
                    window=window,
                    numbers=numbers,
                    shared=shared,
                )
                if node.access == "random":
                    shared[id(each)] = reader
            self.inputs.append(reader)
        self.source: Any = None if node.opens is None else sources[node.opens]
        self.stage: Callable[[int, int], Elements] | None = None
        """`stage(epoch, start)` yields elements from `start` on, where workers make them ahead."""
        self.consumed: int = -1
        """For a sequence that can start in the middle: how far its input was read for the last element."""
        self.origin: tuple[int, int] = (0, 0)
        """`(element, consumed)`: where such a sequence starts; `(0, 0)` is the beginning."""
        self._memo: dict[str, Any] = {}

    def over(self, node: Node) -> "Reader":
        """A reader of another plan, by the same worker."""
        return Reader(node, self._sources, isolation=self.isolation, status=self.status, window=self.window)

    @cached_property
    def budget(self) -> RetryBudget:
        """That of elements which no unit reads. It compares all elements of this reader."""
        return RetryBudget(own_header(), 1, where=self.status.read, describe=partial(place_of, plan=self._node))

    @property
    def is_stream(self) -> bool:
        """Whether elements are only available one after the other."""
        return self._node.access == "stream"

    @property
    def label(self) -> str:
        """The step, as the user wrote it."""
        return self._node.label

    @property
    def spec(self) -> Spec:
        """The spec of the node that is read."""
        return self._node.spec

    def fill(self, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """See `Node.fill`."""
        self._node.fill(self, epoch, indices, out, gather)

    def read(self, epoch: int, indices: Indices, out: Rows) -> None:
        """Fills rows now."""
        gather = Gather()
        self._node.fill(self, epoch, indices, out, gather)
        gather.run()

    def chunks(self, epoch: int, indices: Indices, out: Rows) -> Iterator[tuple[Indices, Rows, Rows]]:
        """Reads elements into scratch memory, some at a time.

        Yields:
            Some of the elements, their rows of `out`, and the memory that holds them.
        """
        for start, stop in ranges_of(len(indices), chunk_count(self.spec)):
            box, chunk = self.scratch(stop - start), indices[start:stop]
            self.read(epoch, chunk, box)
            yield chunk, out.take(slice(start, stop)), box

    def fill_place(self, spec: Spec, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Fills rows whose places were made for `spec`, in which an axis may vary that does not vary here."""
        if spec is not self._as_ours:
            if places_of(spec) != places_of(self.spec):
                box = self.scratch(len(indices))
                self.read(epoch, indices, box)
                out.copy_from(box, len(indices))
                return
            self._as_ours = spec
        self.fill(epoch, indices, out, gather)

    def fill_rows(self, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """See `Node.fill_rows`."""
        self._node.fill_rows(self, epoch, index, rows, out, gather)

    def sequence(self, epoch: int, start: int = 0) -> Elements:
        """Yields the elements of an epoch one after the other; see `Node.sequence`.

        Args:
            epoch: The epoch.
            start: The first element, if there is random access.
        """
        if self.stage is not None:
            return self.stage(epoch, start)
        if self._node.access == "random":
            return self._read_from(epoch, start)
        elements, most = self._node.sequence(self, epoch), most_elements(self._node)
        return elements if self._node.length is None and most == math.inf else self._counted(elements, most, epoch)

    def _counted(self, elements: Elements, most: int | float, epoch: int) -> Elements:
        """The elements of a stream, never more than there can be; if its length is known, fewer are an error."""
        length, count = self._node.length, self.origin[0]
        for leaves in itertools.islice(elements, None if most > sys.maxsize else int(most) - count):
            yield leaves
            count += 1  # by hand: `enumerate` makes a tuple an element
        if length is not None and count != length:
            raise SpecError(
                f"{located(self._node)} ended after {length_text(count)} of epoch {epoch}, but its length is {length}. "
                "Batches, steps and progress count on a length, so an epoch that ends before is an error. Correct the "
                "length where it is given."
            )

    def _read_from(self, epoch: int, index: int) -> Elements:
        box = self._allocated(self.spec, 1)
        while index < (self._node.length or 0):
            self.read(epoch, np.array([index], np.int64), box)
            yield box.leaf_values(0)
            index += 1

    def element(self, epoch: int, index: int) -> Tree:
        """Reads one element into memory of its own; an element of a stream, from its beginning."""
        if self._node.access == "stream":
            for leaves in itertools.islice(self.sequence(epoch), index, None):
                return self.spec.structure.unflatten([copied(leaf) for leaf in leaves])
            raise SpecError(
                f"{self._node.label} gave no element {index}, so what it looks like is unknown. Say it: element_spec="
                "penstock.ArraySpec(shape, dtype), or a tree of them."
            )
        box = self._allocated(self.spec, 1)
        self.read(epoch, np.array([index], np.int64), box)
        return self.spec.structure.unflatten(box.leaf_values(0))

    def attempts(self, count: int) -> Iterator[Tree | Exception]:
        """Yields some elements of epoch 0, or the errors of those that fail. A stream leaves out those that fail."""
        self.status.takes_any = True
        stream = self.sequence(0) if self.is_stream else None
        for index in range(count if stream is not None else int(min(self._node.length or 0, count))):
            try:
                if stream is None:
                    element = self.element(0, index)
                elif (leaves := next(stream, None)) is None:
                    return
                else:
                    element = self.spec.structure.unflatten([copied(leaf) for leaf in leaves])
            except Exception as error:
                element = error
            yield element

    def advise(self, epoch: int, indices: Indices) -> None:
        """Announces to the sources that these elements will be read, in one call for each source."""
        wanted: dict[int, tuple[Openable, list[Indices]]] = {}  # by id, as in `Gather`
        self._collect(epoch, indices, wanted)
        for source, parts in wanted.values():
            source.advise(np.concatenate(parts) if len(parts) > 1 else parts[0])

    def _collect(self, epoch: int, indices: Indices, wanted: dict[int, tuple[Openable, list[Indices]]]) -> None:
        if self.source is not None:
            wanted.setdefault(id(self.source), (self.source, []))[1].append(indices)
            if not self.inputs or not len(indices := self.source.missing(indices)):
                return
        for need in self._node.demand(epoch, indices):
            self.inputs[need.input]._collect(need.epoch, need.indices, wanted)

    def memo(self, name: str, make: Callable[[], T]) -> T:
        """Returns the value that this reader keeps under a name, made at the first call."""
        if name not in self._memo:
            self._memo[name] = make()
        return self._memo[name]  # type: ignore[no-any-return]

    def scratch(self, count: int) -> Rows:
        """Memory for `count` elements of this node, the same at each call unless other code holds it.

        A function may keep what it was given. So this looks at the reference counts before it gives the memory out
        again. If a view of the memory is left, the memory belongs to its holder, and new memory is made.
        """
        return self._reusable("scratch", self.spec, count)

    def borrowed(self, count: int) -> Rows:
        """The same for elements that are only read: arrays of any size may stay the source's own."""
        box = self._reusable("borrowed", self.spec, count)
        box.borrows = True
        return box

    def columns(self, epoch: int, indices: Indices) -> list[list[Any]]:
        """Reads elements, and returns for each leaf those of the elements, which are only read."""
        box = self.borrowed(len(indices))
        self.read(epoch, indices, box)
        return list(box.columns(len(indices)))

    def row_scratch(self, count: int) -> Rows:
        """The same for `count` parts of an element."""
        return self._reusable("row_scratch", self.spec.unstacked(), count)

    def kept(self, epoch: int, index: int) -> Rows:
        """One element of this node's first input: read now, or left from the call before."""
        if self._memo.get("kept_at") != (epoch, index):
            self._memo.pop("kept_at", None)  # if reading fails, the memory holds neither element
            self._memo.pop("kept", None)  # its `leaves` hold the memory
            source = self.inputs[0]
            # Not the input's scratch memory, which another step that reads it would overwrite.
            self._memo["kept"] = box = self._reusable("kept_scratch", source.spec, 1)
            source.read(epoch, np.array([index], np.int64), box)
            self._memo["kept_at"] = (epoch, index)
        return self._memo["kept"]  # type: ignore[no-any-return]

    def _reusable(self, name: str, spec: Spec, count: int) -> Rows:
        box: Rows | None = self._memo.get(name)
        if box is None or len(box.arrays[0]) < count or _holders(box.arrays) > _UNSHARED:
            self._memo[name] = box = self._allocated(spec, count)
        return box.first(count)

    def _allocated(self, spec: Spec, count: int) -> Rows:
        try:
            return Rows.allocate(spec, count)
        except (MemoryError, ValueError) as error:  # more than there is; more than NumPy can count
            _, step = largest_element(self._node)
            made_of = f", made of {step}" if self._node.inputs else ""
            what = f"{length_text(count)} of {located(self._node)}, {spec}{made_of}"
            raise not_given(count * spec.nbytes, what, str(error).rstrip("."), LYING_HEADER) from error


def _holders(arrays: Sequence[npt.NDArray[Any]]) -> int:
    return max(map(sys.getrefcount, arrays), default=0)


# `_holders` of arrays without another holder. Measured, because interpreters count differently.
_UNSHARED = _holders([np.empty(1)])
