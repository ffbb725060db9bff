"""How a plan is read: one `Reader` a node and worker, and the places that elements are written into.

A plan is shared by everybody and never changes. What changes while it is read is here: scratch memory, the
generator of random numbers, the note of which element is being worked on. One worker (a thread, a process,
or whoever calls `ds[i]`) has readers of its own, so nothing in this file takes a lock. `OpenSources` alone
is shared by the workers of one process; it is filled before they start and only looked up after.
"""

import itertools
import sys
import time
from array import array
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import PenstockError, SpecError
from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, Leaves, Rows, Window, copied
from penstock.memory._times import SHORT_UNIT_S, Times
from penstock.plan._node import Node, walk
from penstock.plan._source import Openable, Read, Source, key_of, open_source
from penstock.plan._text import origins

T = TypeVar("T")


@final
class Gather:
    """Reads that are wanted, collected over a plan so that each source sees all of its own at once."""

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted: dict[int, tuple[Source, list[tuple[Read, Reader]]]] = {}
        """The reads, and who wants each, by source: by its id, for a user's own may have no hash."""

    def add(self, reader: "Reader", indices: Indices, out: Rows, source: Source | None = None) -> None:
        """Notes that the elements `indices` of the open source of a reader, or of another, belong into `out`."""
        source = reader.source if source is None else source
        assert source is not None
        self._wanted.setdefault(id(source), (source, []))[1].append((Read(indices, out.arrays, out.rows), reader))

    def run(self) -> None:
        """Reads everything that was noted; after it, the rows hold their elements."""
        counted: set[Reader] = set()
        for source, wanted in self._wanted.values():
            reads, began = [read for read, _ in wanted], time.perf_counter()
            try:
                source.gather(reads)
            except Exception as error:
                reader = wanted[-1][1]
                reader.trace.words[0] = reader.number + 1  # for the guard that notes it
                if isinstance(error, PenstockError):
                    raise
                # A user's own source, whose error does not say what was asked of it.
                indices = np.concatenate([read.indices for read in reads])
                first = source.describe(int(indices[0])) if len(indices) else "none"
                plural = "" if len(indices) == 1 else "s"
                error.add_note(f"A source raised it, asked for {len(indices)} element{plural}, first {first}.")
                raise
            if (times := wanted[0][1].trace.times) is None:  # that of the worker, of which all readers are
                continue
            seconds = time.perf_counter() - began
            # A step that reads several sources, as a cache does for each leaf, has its elements counted with the first.
            for read, reader in wanted:
                if reader not in counted:
                    times.count(reader.number, len(read.indices))
            if times.is_sampled or seconds >= SHORT_UNIT_S:
                _note(times, wanted, seconds)
            if len(self._wanted) > 1:
                counted.update(reader for _, reader in wanted)


def _note(times: Times, wanted: "list[tuple[Read, Reader]]", seconds: float) -> None:
    """Notes how long a source took, shared among the steps that read it by their elements."""
    total = sum(len(read.indices) for read, _ in wanted)
    for read, reader in wanted:
        times.note(reader.number, 0, seconds * len(read.indices) / total if total else 0.0)


@final
class OpenSources:
    """The sources of a plan, opened in this process; equal sources are opened once."""

    def __init__(self, node: Node) -> None:
        self._opened: dict[Hashable, tuple[Openable, Any]] = {}
        for each in walk(node):
            if (source := each.opens) is not None and (key := key_of(source)) not in self._opened:
                self._opened[key] = source, open_source(source) if isinstance(source, Source) else source.open()

    def __getitem__(self, source: Openable) -> Any:
        return self._opened[key_of(source)][1]

    def close(self) -> None:
        """Closes what `open` opened, once; a source that is its own open form stays as it is."""
        opened, self._opened = self._opened, {}
        for source, opened_source in opened.values():
            if opened_source is not source:
                opened_source.close()

    def __del__(self) -> None:
        # A loader that was dropped, or a dataset that was looked into.
        self.close()


@final
class WorkerStatus:
    """Which element of which step a worker is at. Written by the worker, read by whoever asks why it waits.

    Three integers, for they may lie in memory that another process looks at. And what goes between the guards of a plan
    and the one who runs a unit: see `_tolerate.py`.
    """

    __slots__ = ("failures", "is_condemned", "takes_any", "times", "words")

    def __init__(self, words: "memoryview[int] | None" = None) -> None:
        self.words: memoryview[int] = memoryview(array("q", bytes(24))) if words is None else words
        """The step's number in the order of `walk` plus one, or 0 before the first; the epoch; the element."""
        self.failures: list[Any] = []
        """What failed in this unit and was set aside: `Failure`s."""
        self.is_condemned: bool = False
        """Whether the one element of this unit is not to be tried: workers died of it."""
        self.takes_any: bool = False
        """Whether who reads a stream wants to see some elements, and may be given others for those that fail."""
        self.times: Times | None = None
        """What the worker notes of its time, if somebody wants to know."""

    def read(self) -> tuple[int, int, int]:
        """The words, of one moment or of two: the worker may move on meanwhile."""
        step, epoch, index = self.words
        return step, epoch, index


def place_of(words: tuple[int, int, int], plan: Node) -> str:
    """What a trace says: `map(decode) at train.py:41 on element 7 of epoch 0, made of row 96 of ds.npy`."""
    step, epoch, index = words
    if not step:
        return "nothing yet"
    node = list(walk(plan))[step - 1]
    where = f" at {node.where}" if hasattr(node, "where") else ""
    return f"{node.label}{where} on element {index} of epoch {epoch}{origins(node, epoch, index)}"


@final
class Reader:
    """A node being read by one worker: the node, the readers of its inputs, and scratch memory."""

    __slots__ = (
        "_as_ours",
        "_memo",
        "_node",
        "_sources",
        "consumed",
        "inputs",
        "isolation",
        "number",
        "origin",
        "source",
        "stage",
        "trace",
        "window",
    )

    def __init__(
        self,
        node: Node,
        sources: OpenSources,
        *,
        isolation: type[seeded_globals] | None,
        trace: WorkerStatus | None = None,
        window: "Window | None" = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.trace: WorkerStatus = trace or WorkerStatus()
        self.window: Window | None = window
        """Where an `Inlet` reads."""
        numbers = numbers or itertools.count()
        self.number: int = next(numbers)
        """The node's place in the order of `walk`."""
        self.isolation: type[seeded_globals] | None = isolation
        """How global generators are seeded, where one element runs at a time in this process; None elsewhere."""
        self._node = node
        self._as_ours: Spec | None = None
        """The spec that `fill_place` was last asked for and whose places are those of the node's own."""
        self._sources = sources  # which close themselves when nobody reads any more
        self.inputs: list[Reader] = [
            Reader(each, sources, isolation=isolation, trace=self.trace, window=window, numbers=numbers)
            for each in node.inputs
        ]
        self.source: Any = None if node.opens is None else sources[node.opens]
        self.stage: Callable[[int, int], Generator[Leaves, None, None]] | None = None
        """Gives the elements of an epoch from one on, where others make them in parallel."""
        self.consumed: int = -1
        """Of a sequence that can begin in the middle: how far its input was read for the last element."""
        self.origin: tuple[int, int] = (0, 0)
        """An element, and what `consumed` was before it: where such a sequence is to begin."""
        self._memo: dict[str, Any] = {}

    def over(self, node: Node) -> "Reader":
        """A reader of another plan, by the same worker."""
        return Reader(node, self._sources, isolation=self.isolation, trace=self.trace, window=self.window)

    @property
    def spec(self) -> Spec:
        """The spec of the node that is read."""
        return self._node.spec

    def fill(self, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """See `Node.fill`."""
        self._node.fill(self, epoch, indices, out, gather)

    def fill_place(self, spec: Spec, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Fills rows whose places were made for `spec`, in which an axis may vary that does not vary here."""
        if spec is not self._as_ours:
            if _places(spec) != _places(self.spec):
                self._fill_other(epoch, indices, out)
                return
            self._as_ours = spec
        self.fill(epoch, indices, out, gather)

    def _fill_other(self, epoch: int, indices: Indices, out: Rows) -> None:
        box, reads = self.scratch(len(indices)), Gather()
        self.fill(epoch, indices, box, reads)
        reads.run()
        out.copy_from(box, len(indices))

    def fill_parts(self, epoch: int, index: int, parts: Indices, out: Rows, gather: Gather) -> None:
        """See `Node.fill_parts`."""
        self._node.fill_parts(self, epoch, index, parts, out, gather)

    def sequence(self, epoch: int, start: int = 0) -> Generator[Leaves, None, None]:
        """Gives the elements of an epoch one after the other; see `Node.sequence`.

        Args:
            epoch: The epoch.
            start: Which element to begin with, where there is random access.
        """
        if self.stage is not None:
            return self.stage(epoch, start)
        if self._node.access == "stream":
            return self._node.sequence(self, epoch)
        return self._read_from(epoch, start)

    def _read_from(self, epoch: int, index: int) -> Generator[Leaves, None, None]:
        box = Rows.allocate(self.spec, 1)
        while index < (self._node.length or 0):
            gather = Gather()
            self.fill(epoch, np.array([index], np.int64), box, gather)
            gather.run()
            yield box.leaf_values(0)
            index += 1

    def element(self, epoch: int, index: int) -> Tree:
        """Reads one element into memory of its own; of a stream, from its beginning."""
        if self._node.access == "stream":
            for leaves in itertools.islice(self.sequence(epoch), index, None):
                return self.spec.structure.unflatten([copied(leaf) for leaf in leaves])
            raise SpecError(
                f"{self._node.label} gave no element {index}, so what it looks like is unknown. Say it: element_spec="
                "penstock.ArraySpec(shape, dtype), or a tree of them."
            )
        box = Rows.allocate(self.spec, 1)
        gather = Gather()
        self.fill(epoch, np.array([index], np.int64), box, gather)
        gather.run()
        return self.spec.structure.unflatten(box.leaf_values(0))

    def advise(self, epoch: int, indices: Indices) -> None:
        """Announces to the sources that these elements will be read; each source hears of all at once."""
        wanted: dict[int, tuple[Openable, list[Indices]]] = {}  # by id, as in `Gather`
        self._collect(epoch, indices, wanted)
        for source, parts in wanted.values():
            source.advise(np.concatenate(parts) if len(parts) > 1 else parts[0])

    def _collect(self, epoch: int, indices: Indices, wanted: dict[int, tuple[Openable, list[Indices]]]) -> None:
        if self.source is not None:
            wanted.setdefault(id(self.source), (self.source, []))[1].append(indices)
        for need in self._node.announced(self, epoch, indices):
            self.inputs[need.input]._collect(need.epoch, need.indices, wanted)

    def memo(self, name: str, make: Callable[[], T]) -> T:
        """Returns what this node's reader keeps under a name, made when first asked for."""
        if name not in self._memo:
            self._memo[name] = make()
        return self._memo[name]  # type: ignore[no-any-return]

    def scratch(self, count: int) -> Rows:
        """Memory for `count` elements of this node, the same at each call as long as nobody else holds it.

        A function may keep what it was given. So before the memory is given out again, its reference
        counts are looked at: if anybody still has a view of it, it is theirs, and new memory is made.
        """
        return self._reusable("scratch", self.spec, count)

    def part_scratch(self, count: int) -> Rows:
        """The same for `count` parts of an element."""
        return self._reusable("part_scratch", self.spec.unstacked(), count)

    def kept(self, epoch: int, index: int) -> Rows:
        """One element of this node's first input, read now or still there from the call before."""
        if self._memo.get("kept_at") != (epoch, index):
            self._memo.pop("kept_at", None)  # if reading fails, what is in the memory is neither
            self._memo.pop("kept", None)  # before `scratch`, for its `leaves` hold the memory, too
            source, gather = self.inputs[0], Gather()
            self._memo["kept"] = box = source.scratch(1)
            source.fill(epoch, np.array([index], np.int64), box, gather)
            gather.run()
            self._memo["kept_at"] = (epoch, index)
        return self._memo["kept"]  # type: ignore[no-any-return]

    def _reusable(self, name: str, spec: Spec, count: int) -> Rows:
        box: Rows | None = self._memo.get(name)
        if box is None or len(box.arrays[0]) < count or _holders(box.arrays) > _UNSHARED:
            self._memo[name] = box = Rows.allocate(spec, count)
        return box.take(slice(0, count))


def _places(spec: Spec) -> list[tuple[tuple[int, ...] | None, bool]]:
    return [(leaf.max_shape, leaf.varies) for leaf in spec.leaves]


def _holders(arrays: Sequence[npt.NDArray[Any]]) -> int:
    return max((sys.getrefcount(array) for array in arrays), default=0)


# What `_holders` says of arrays that nobody else holds. Measured, for interpreters differ in what they count.
_UNSHARED = _holders([np.empty(1)])
