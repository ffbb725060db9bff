"""Guards: the steps that `on_error` adds to a plan, so that a loader goes on after elements that fail.

`lower/_guards.py` adds them where a whole element is about to go into a batch. So an image is replaced, or left out,
together with its label, whichever of its steps failed.

- `Replace` gives another element of the same batch in place of one that fails.
- `CheckedElement` gives pairs of an element and whether it is there; a `Filter` over it leaves out the others.
- `CheckedGroup` does the same for an element that is made of several elements of a stream.

The first two read many elements at once, and one by one after a failure. Failures are noted in the worker's
`WorkerStatus` as text: an exception that is kept would keep the rows that it was reading into.
"""

import itertools
import traceback
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import ElementError, PenstockError, WorkerError, words_of
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._filter import Sequential
from penstock.plan._map import Map
from penstock.plan._node import Elements, Node, OneInput, OneToOne, Traits, walk
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
        """Fills rows; returns the error if that fails. A lack of memory is not a fault of the elements."""
        try:
            reader.inputs[0].read(epoch, indices, self._places(out))
        except MemoryError:
            raise
        except Exception as error:
            return error
        self._pass(out)
        return None

    def _succeeds(self, reader: Reader, epoch: int, index: int, row: Rows) -> bool:
        reader.status.words[0] = 0
        error = self._try(reader, epoch, np.array([index], np.int64), row)
        if error is not None:
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
        reader.status.failures.append(
            Failure(
                guard=self.number,
                epoch=epoch,
                index=index,
                step=at or (sources[0][0] if sources else self.source.label),
                sources=sources,
                exception=type(cause).__qualname__,
                message=_short(str(error) if isinstance(error, PenstockError) else words_of(error), _MESSAGE_LENGTH),
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

    def part_count(self, epoch: int, index: int) -> int | None:
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
    """Pairs of an element and whether it is there. Over the pairs of a `filter`, it changes the verdict to no."""

    @property
    def verb(self) -> str:
        """`filter`, or `skip`."""
        return "filter" if self._is_over_verdicts else "skip"

    @property
    def _is_over_verdicts(self) -> bool:
        return isinstance(self.source, Map) and self.source.verdict == "bool"

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
        row.put(number, [*_blank(self.spec.leaves[:-1]), False])


@dataclass(frozen=True, eq=False)
class CheckedGroup(Sequential):
    """Pairs of an element that is made of several elements of a stream, and whether all of these are there.

    A window with a broken element in it is left out, and no window closes the gap. Elements that `zip` puts together
    stay together. The source is the step over inputs of which some are a `CheckedElement`.
    """

    whole: Node
    """The same step over elements, as the user wrote it."""

    @property
    def verb(self) -> str:
        """That of the step."""
        return self.whole.verb

    @property
    def label(self) -> str:
        """That of the step."""
        return self.whole.label

    @cached_property
    def spec(self) -> Spec:
        """Pairs."""
        return Spec.of((self.whole.spec.tree, ArraySpec((), np.dtype(bool))))

    @cached_property
    def _verdicts(self) -> tuple[int, ...]:
        """The leaves that say whether an element is there: the last of each checked input."""
        stops = itertools.accumulate(len(each.spec.leaves) for each in self.source.inputs)
        pairs = zip(self.source.inputs, stops, strict=True)
        return tuple(stop - 1 for each, stop in pairs if isinstance(each, CheckedElement))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Combines all verdicts."""
        for leaves in reader.inputs[0].sequence(epoch):
            is_there = all(np.all(leaves[place]) for place in self._verdicts)
            yield [*(leaf for place, leaf in enumerate(leaves) if place not in self._verdicts), is_there]


def _blank(leaves: tuple[ArraySpec, ...]) -> Leaves:
    """Leaves of an element that is left out."""
    return [
        np.zeros([size or 0 for size in leaf.shape], leaf.dtype)
        if leaf.dtype.itemsize
        else np.full([size or 0 for size in leaf.shape], leaf.dtype.type(), object)[()]
        for leaf in leaves
    ]


def _traceback(error: Exception) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:  # attributes of the user's exception may fail
        return f"<its traceback is not known: it raised {type(failure).__name__}>"


def _short(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[: length // 2]} ... ({len(text):,} characters) ... {text[-length // 2 :]}"
