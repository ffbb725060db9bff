"""Guards: the steps that `on_error` adds to a plan, so that a loader goes on after elements that fail.

`lower/_guards.py` adds them where a whole element is about to go into a batch. So an image is replaced, or left out,
together with its label, whichever of its steps failed.

- `Replace` gives another element of the same batch in place of one that fails.
- `CheckedElement` gives pairs of an element and whether it is there; a `Filter` over it leaves out the others.
- `CheckedGroup` (`_filter.py`) does the same for an element that is made of several elements of a stream.
- `Remaining` is a group, such as a batch, of the elements that did not fail, where a step above goes by position.
- `RowsThere` takes such groups apart again, so that each element keeps its position.

The first two read many elements at once, and one by one after a failure. Failures are noted in the worker's
`WorkerStatus` as text: an exception that is kept would keep the rows that it was reading into.
"""

import itertools
import traceback
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import ElementError, PenstockError, WorkerError, lacks_memory, words_of
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows, blank, copied
from penstock.plan._filter import Filter
from penstock.plan._map import Apart, Map, SetAsideError, parts_at
from penstock.plan._node import (
    Access,
    Demand,
    Elements,
    Grouping,
    InPlaceOf,
    Length,
    Memory,
    Node,
    OneInput,
    OneToOne,
    Randomness,
    Traits,
    walk,
    working_memory,
)
from penstock.plan._reader import Gather, Reader
from penstock.plan._stream import Inlet
from penstock.plan._text import sources_of

_NEIGHBOUR_COUNT: Final = 1024
"""Without batches, the number of elements that are tried in place of one that failed."""
_MESSAGE_LENGTH: Final = 2_000
_TRACEBACK_LENGTH: Final = 20_000
"""Longer texts keep their beginning and their end: there may be many failures."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """An element that failed, for the quarantine file and the report."""

    guard: int
    """The guard that found it: `FailureFilter.number`."""
    epoch: int
    index: int
    """The element, at that step."""
    step: str
    """The step that failed: `map(decode)`, or the source."""
    sources: tuple[tuple[str, int, str], ...]
    """Its origin: for each source the constructor, the element's index there, and its description."""
    exception: str
    """The type of the exception; that of the user's code, if it raised one."""
    message: str
    traceback: str
    recurs: bool = True
    """`sources` are the same in every epoch. False for a stream with another order in each epoch."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for an element that fails in every epoch, at any position."""
        recurs = self.recurs and self.sources
        return (self.guard, self.sources) if recurs else (self.guard, self.epoch, self.index)


@dataclass(frozen=True, eq=False)
class FailureFilter(OneToOne, OneInput):
    """A guard: notes elements that fail, and goes on. The user does not see it."""

    number: int
    """Its number among the guards of its plan."""

    traits = Traits(is_parallel=True, is_hidden=True)
    takes_any_shape = True
    is_guard = True

    @property
    def label(self) -> str:
        """That of the guarded step."""
        return self.source.label

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Fills all rows at once; if that fails, one by one. An element that killed workers is not tried again."""
        is_poisoned, reader.status.is_poisoned = reader.status.is_poisoned, False
        if is_poisoned and len(indices) == 1:
            self._note(reader, epoch, int(indices[0]), WorkerError("Workers died of it."))
            self._fill_instead(reader, epoch, int(indices[0]), out)
        elif self._try(reader, epoch, indices, out) is not None:
            for place, index in enumerate(indices.tolist()):
                row = out.take(slice(place, place + 1))
                if not self._succeeds(reader, epoch, index, row):
                    self._fill_instead(reader, epoch, index, row)

    def _try(self, reader: Reader, epoch: int, indices: Indices, out: Rows) -> Exception | None:
        """Fills rows; returns the error if that fails.

        A lack of memory is a fault of the elements only in a process that has a limit of its own.
        """
        try:
            reader.inputs[0].read(epoch, indices, self._places(out))
        except Exception as error:
            if isinstance(error, MemoryError) and reader.status.on_lack is None:
                raise
            return error
        self._pass(out)
        return None

    def _succeeds(self, reader: Reader, epoch: int, index: int, row: Rows) -> bool:
        reader.status.words[0] = 0
        error = self._try(reader, epoch, np.array([index], np.int64), row)
        if error is not None and not isinstance(error, SetAsideError):
            self._note(reader, epoch, index, error)
        return error is None

    def _note(self, reader: Reader, epoch: int, index: int, error: Exception) -> None:
        step, reader.status.words[0] = reader.status.words[0] - reader.number - 1, 0  # counted from here
        nodes = list(walk(self))
        if isinstance(error, WorkerError):  # the parent knows where they died: most likely in a function
            step = next((number for number, node in enumerate(nodes) if isinstance(node, Map)), 0)
        at = nodes[step].label if 0 < step < len(nodes) else ""
        cause = error.__cause__ if isinstance(error, ElementError) and error.__cause__ else error
        sources = tuple(sources_of(self.source, epoch, index))
        message = str(error) if isinstance(error, PenstockError) else words_of(error)
        if reader.status.on_lack is not None and lacks_memory(error):
            message = f"{message.rstrip('.')}. {reader.status.on_lack()}"
        reader.status.failures.append(
            Failure(
                guard=self.number,
                epoch=epoch,
                index=index,
                step=at or (sources[0][0] if sources else self.source.label),
                sources=sources,
                exception=type(cause).__qualname__,
                message=_short(message, _MESSAGE_LENGTH),
                traceback=_short(_traceback(error), _TRACEBACK_LENGTH),
                recurs=not any(isinstance(each, Inlet) and each.randomness.reorders for each in nodes),
            )
        )

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Those that do not fail, to find a spec. Workers read a guarded stream by `fill`."""
        for leaves in reader.inputs[0].sequence(epoch):
            yield self._passed(leaves)

    def _places(self, out: Rows) -> Rows:
        """The places of the input's elements."""
        return out

    def _pass(self, out: Rows) -> None:
        """Marks rows as there."""

    def _passed(self, leaves: Leaves) -> Leaves:
        """Marks an element as there."""
        return leaves

    @abstractmethod
    def _fill_instead(self, reader: Reader, epoch: int, index: int, row: Rows) -> None:
        """Fills the row of an element that failed."""


@dataclass(frozen=True, eq=False)
class Replace(FailureFilter):
    """The input's elements; in place of one that fails, the next of its batch that does not."""

    size: int
    """Elements in a batch; 0 without batches."""

    verb = "replace"
    treats_leaves_alike = True
    redraws = True

    @property
    def randomness(self) -> Randomness:
        """That of the input: which elements fail is no order of an epoch."""
        return self.source.randomness

    def row_count(self, epoch: int, index: int) -> int | None:
        """None: an element is there, or is not."""
        return None

    def _neighbours(self, index: int) -> Iterator[int]:
        """The elements of its batch after it, then those before it; without batches, those of the dataset."""
        length = self.source.length
        first = index - index % self.size if self.size else 0
        stop = first + (self.size or _NEIGHBOUR_COUNT + index + 1)
        if isinstance(length, int):
            stop = min(stop, length)
        yield from range(index + 1, min(stop, index + 1 + _NEIGHBOUR_COUNT))
        yield from range(first, min(index, first + _NEIGHBOUR_COUNT))

    def _fill_instead(self, reader: Reader, epoch: int, index: int, row: Rows) -> None:
        for other in self._neighbours(index):
            if self._succeeds(reader, epoch, other, row):
                return
        whole = "all elements of the batch" if self.size else "it and all that was tried"
        raise ElementError(
            f"on_error='replace' has nothing to put in the place of element {index} of epoch {epoch}, for {whole} "
            f"failed, the last with: {reader.status.failures[-1].message}"
        )


@dataclass(frozen=True, eq=False)
class CheckedElement(FailureFilter):
    """Pairs of an element and whether it is there.

    Over the pairs of a `filter`, it changes the verdict to no; over those that guards made, whether it is there.
    """

    is_over_pairs: bool = False
    """Guards made pairs of the elements of the input: of an element and whether it is there, or of a group and a mask
    of its elements."""

    @property
    def verb(self) -> str:
        """`filter`, or `skip`."""
        return "filter" if self._is_over_verdicts and not self.is_over_pairs else "skip"

    @property
    def _is_over_verdicts(self) -> bool:
        return self.is_over_pairs or self.source.verdict == "bool"

    @cached_property
    def spec(self) -> Spec:
        """Pairs."""
        if self._is_over_verdicts:
            return self.source.spec
        return Spec.of((self.source.spec.tree, ArraySpec((), np.dtype(bool))))

    def _places(self, out: Rows) -> Rows:
        return out if self._is_over_verdicts else out.leaves(0, len(out.arrays) - 1)

    def _pass(self, out: Rows) -> None:
        if not self._is_over_verdicts:
            out.arrays[-1][out.rows] = True

    def _passed(self, leaves: Leaves) -> Leaves:
        return leaves if self._is_over_verdicts else [*leaves, True]

    def _fill_instead(self, reader: Reader, epoch: int, index: int, row: Rows) -> None:
        (number,) = row.row_numbers()
        is_there: Any = False
        if self.spec.leaves[-1].shape:  # a group; the last may be short
            group = next(each for each in walk(self.source) if isinstance(each, Remaining))
            is_there = np.zeros(len(group.members(epoch, index)), bool)
        row.put(number, [*blank(self.spec.leaves[:-1]), is_there])


@dataclass(frozen=True, eq=False)
class LeftOut(Filter):
    """The elements that are there, of pairs that guards made. So a step that moves elements can move pairs instead."""

    @property
    def checked_pairs(self) -> Node:  # type: ignore[override]
        """The pairs."""
        return self.source


@dataclass(frozen=True, eq=False)
class _OfGroups(InPlaceOf, OneInput):
    """A step over the pairs of a guard, in place of a step with groups."""

    whole: Grouping | Apart
    """The step, as the user wrote it."""

    takes_any_shape = True
    ends_guards = True

    @property
    def traits(self) -> Traits:
        """It may ask for an element that is not there."""
        return Traits(is_parallel=self.whole.traits.is_parallel, is_cpu_bound=True, is_hidden=True)

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """As the step."""
        return self.whole.redraws

    @property
    def batch_size(self) -> int | None:
        """That of the step."""
        return self.whole.batch_size

    @property
    def randomness(self) -> Randomness:
        """That of the step."""
        return self.whole.randomness


@dataclass(frozen=True, eq=False)
class Remaining(_OfGroups):
    """Element `i` is group `i` of the elements that did not fail, such as a batch."""

    whole: Grouping
    replaces: bool
    """Others of its group replace an element that failed; else it is missing."""
    has_mask: bool = False
    """Elements are pairs of a group and which of its elements are there."""
    has_verdict: bool = False
    """Elements are pairs of a group and whether there is one. Without any of the two, a group of which no element is
    left fails."""

    @cached_property
    def _step(self) -> Grouping:
        """The step over the pairs, of which there may be another number in each epoch of a stream."""
        return replace(self.whole, source=self.source)

    @property
    def length(self) -> Length:
        """That of the step: positions stay."""
        return self._step.length

    def needs(self, start: int, stop: int) -> tuple[int, int]:
        """As the step."""
        return self._step.needs(start, stop)

    @cached_property
    def spec(self) -> Spec:
        """That of the step, or pairs."""
        shortened = self.whole if self.replaces else self.whole.shortened()
        if self.has_mask:
            return Spec.of((shortened.spec.tree, ArraySpec((None,), bool, (self.whole.batch_size or 0,))))
        return Spec.of((shortened.spec.tree, ArraySpec((), bool))) if self.has_verdict else shortened.spec

    @property
    def memory(self) -> Memory:
        """That of the step, and the group's elements."""
        own, most = self.whole.memory, 2 * self.whole.spec.nbytes
        return own._replace(scratch_nbytes=own.scratch_nbytes + most, sequence_nbytes=own.sequence_nbytes + most)

    def members(self, epoch: int, index: int) -> Indices:
        """The elements of a group, with those that failed."""
        return self._step.group(epoch, index)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements of each group."""
        return [Demand(0, epoch, np.concatenate([self.members(epoch, index) for index in indices.tolist()]))]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads the elements of one group after the other."""
        for row, index in zip(out.row_numbers(), indices.tolist(), strict=True):
            numbers = self.members(epoch, index)
            columns = reader.inputs[0].columns(epoch, numbers)
            out.put(row, self._made(epoch, index, numbers, columns), are_new=True)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The groups of a stream."""
        source, first = reader.inputs[0].sequence(epoch), 0
        for index in itertools.count():
            size = self.needs(index, index + 1)[1] - first
            members = [[copied(leaf) for leaf in leaves] for leaves in itertools.islice(source, size)]
            if members:
                numbers = np.arange(first, first + len(members))
                yield self._made(epoch, index, numbers, list(zip(*members, strict=True)))
            if len(members) < size:
                return
            first += size

    def _made(self, epoch: int, index: int, numbers: Indices, columns: list[Any]) -> Leaves:
        mask = np.array(columns.pop(), bool)
        chosen = np.flatnonzero(mask)
        if len(mask) > len(chosen) == 0 and not self.has_verdict and not self.has_mask:
            raise SetAsideError(
                f"All {len(mask)} elements of element {index} of {self.label} failed, so nothing is left of it."
            )
        leaves = blank(self.whole.spec.leaves)
        if len(chosen):
            if self.replaces and self.whole.takes_stand_ins:
                chosen = chosen[np.searchsorted(chosen, np.arange(len(mask))) % len(chosen)]
                mask[:] = True
            taken = [[column[place] for place in chosen.tolist()] for column in columns]
            leaves = self.whole.grouped(epoch, index, numbers[chosen], taken)
        if self.has_mask:
            return [*leaves, mask]
        return [*leaves, bool(len(chosen))] if self.has_verdict else leaves


@dataclass(frozen=True, eq=False)
class RowsThere(_OfGroups):
    """The elements of groups in their positions, where some of a group are not there.

    The input gives pairs of a group and a mask. With random access, to ask for an element that is not there is an
    error; in order, elements are pairs of an element and whether it is there.
    """

    whole: Apart
    is_placed: bool
    """With random access; else in order."""

    @cached_property
    def access(self) -> Access:
        """As asked for."""
        return "random" if self.is_placed else "stream"

    @property
    def is_numbered(self) -> bool:
        """Whether the number of an element is its position where the user's step has random access."""
        return self.whole.access == "random"

    @property
    def length(self) -> Length:
        """That of the step; in order, unknown."""
        return self.whole.length if self.is_placed else None

    @property
    def traits(self) -> Traits:
        """In order, one worker takes groups apart."""
        return super().traits._replace(is_parallel=False, is_cpu_bound=self.is_placed)

    @cached_property
    def spec(self) -> Spec:
        """An element, or pairs."""
        spec = self.whole.spec
        return spec if self.is_placed else Spec.of((spec.tree, ArraySpec((), bool)))

    @property
    def memory(self) -> Memory:
        """One group."""
        return working_memory(self.source.spec.nbytes)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The groups."""
        return self.whole.demand(epoch, indices)

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Takes elements out of their groups, of which the last stays for the next call.

        Raises:
            SetAsideError: One is not there.
        """
        numbers = out.row_numbers()
        for place, part in parts_at(reader, epoch, indices, self.whole.part_size, self._parts):
            if part is None:
                raise SetAsideError(f"Element {indices[place]} of {self.label} failed, or its whole group did.")
            out.put(numbers[place], part)

    def _parts(self, leaves: Leaves) -> list[Leaves | None]:
        """The elements of a group; None for each that is not there."""
        *leaves, mask = leaves
        parts = iter(self.whole.apart(leaves) if mask.any() else ())
        found = [next(parts, None) if is_there else None for is_there in mask.tolist()]
        # A function of a batch may make more rows than elements. Of some of them, rows have no known positions.
        rest = list(parts)
        return [*found, *rest] if mask.all() else found if not rest else [None] * len(found)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """All elements of each group."""
        for leaves in reader.inputs[0].sequence(epoch):
            for part in self._parts([copied(leaf) for leaf in leaves]):
                yield [*(blank(self.whole.spec.leaves) if part is None else part), part is not None]


def _traceback(error: Exception) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:  # attributes of the user's exception may fail
        return f"<its traceback is not known: it raised {type(failure).__name__}>"


def _short(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[: length // 2]} ... ({len(text):,} characters) ... {text[-length // 2 :]}"
