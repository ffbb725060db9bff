"""Steps after which the number of elements is unknown: `filter` and `flat_map`."""

import itertools
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from penstock.base._errors import SpecError, is_untouched, type_of
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._pickles import dumps
from penstock.memory._rows import Indices, Leaves, Rows, copied
from penstock.plan._conform import MisfitError, begun, column, conformed, observed, rows_of
from penstock.plan._map import Learned, OfMade, OnWorkers, judged, learn
from penstock.plan._node import (
    Access,
    Elements,
    InPlaceOf,
    Length,
    Node,
    OneInput,
    OneToOne,
    Traits,
    walk,
)
from penstock.plan._reader import Gather, Reader, WorkerStatus

MOST_NBYTES: Final = 1 << 20
MOST_COUNT: Final = 1 << 14
"""What a worker makes of one element for `flat_map`, if the function returns an iterator. One thread makes the rest."""
_NOTHING = object()


@dataclass(frozen=True, eq=False)
class Sequential(OneInput):
    """A step whose elements are only available one after the other."""

    access: ClassVar[Access] = "stream"
    """The position of an element depends on all before it."""
    goes_by_position = False

    @cached_property
    def length(self) -> Length:
        """Unknown."""
        return None if self.inputs[0].length != 0 else 0


@dataclass(frozen=True, eq=False)
class Filter(Sequential):
    """The elements for which a function returns True. The input yields pairs of an element and the verdict."""

    verb = "filter"
    takes_any_shape = True
    ends_guards = True

    @property
    def label(self) -> str:
        """As the user wrote it: `filter(is_sharp)`."""
        return self.source.label

    def settings(self) -> dict[str, Any]:
        """None: the input has them."""
        return {}

    @property
    def gives_cursor(self) -> bool:  # type: ignore[override]
        """Over random access."""
        return self.source.access == "random"

    @cached_property
    def spec(self) -> Spec:
        """That of the elements before it."""
        return judged(self.source.spec)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Leaves out the others. Over random access, it can start where it was."""
        if self.source.access == "stream":
            yield from (leaves[:-1] for leaves in reader.inputs[0].sequence(epoch) if leaves[-1])
            return
        _, first = reader.origin
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch, first), first + 1):
            if leaves[-1]:
                reader.consumed = number
                yield leaves[:-1]


@dataclass(frozen=True, eq=False)
class CheckedGroup(InPlaceOf, Sequential):
    """Pairs of an element that is made of several elements of a stream, and whether all of these are there.

    A window with a broken element in it is left out, and no window closes the gap. Elements that `zip` puts together
    stay together. The source is the step over inputs of which some give pairs.
    """

    whole: Node
    """The same step over elements, as the user wrote it."""
    are_pairs: tuple[bool, ...]
    """For each input of the source whether its elements are pairs."""

    @cached_property
    def spec(self) -> Spec:
        """Pairs."""
        return Spec.of((self.whole.spec.tree, ArraySpec((), np.dtype(bool))))

    @cached_property
    def _verdicts(self) -> tuple[int, ...]:
        """The leaves that say whether an element is there: the last of each checked input."""
        stops = itertools.accumulate(len(each.spec.leaves) for each in self.source.inputs)
        return tuple(itertools.compress((stop - 1 for stop in stops), self.are_pairs))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Combines all verdicts."""
        for leaves in reader.inputs[0].sequence(epoch):
            is_there = all(np.all(leaves[place]) for place in self._verdicts)
            yield [*(leaf for place, leaf in enumerate(leaves) if place not in self._verdicts), is_there]


@dataclass(frozen=True, eq=False)
class Expand(OneToOne, OnWorkers):
    """Pairs of an element and, as a pickle, the elements that a function makes of it; what `FlatMap` takes apart.

    Of an iterator it takes `MOST_NBYTES` at most. The element is there for the rest of them, which `FlatMap` makes.
    """

    takes_each_once = True
    is_hidden = True

    @property
    def verb(self) -> str:
        """The user's."""
        return "flat_map" if self.batched is None else "map"

    def settings(self) -> dict[str, Any]:
        """The function's name, and the number of elements."""
        groups = {"batched": self.batched, "keeps_count": False} if self.batched else {}
        return super().settings() | groups

    @property
    def label(self) -> str:
        """As the user wrote it: `flat_map(read_lines)`."""
        groups = "" if self.batched is None else f", batched={self.batched}, keeps_count=False"
        return f"{self.verb}({self.function_name}{groups})"

    @cached_property
    def spec(self) -> Spec:
        """Pairs."""
        return Spec.of((self.source.spec.tree, ArraySpec((), "S")))

    @property
    def known_spec(self) -> Spec | None:
        """Pairs, if it is known what the function makes."""
        return self.spec if self.is_learnt and self.source.known_spec else None

    @property
    def is_learnt(self) -> bool:
        """Whether the spec of what the function makes was declared or found."""
        return self.declared is not None or self.memo.learned.spec is not None

    @cached_property
    def made_spec(self) -> Spec:
        """The spec of what the function makes. Runs it to find that, if nothing has."""
        if self.declared is not None:
            return self.declared
        learn(self, WorkerStatus(), takes_any=False)
        spec = self.memo.learned.spec
        assert spec is not None
        return spec.loosened() if self.is_loose else spec

    def _learn_from(self, reader: Reader) -> Learned:
        return Learned(self._first(reader))

    def _first(self, reader: Reader) -> Spec:
        for index, leaves in enumerate(reader.sequence(0)):
            for value in self.made(reader.spec.structure.unflatten([copied(leaf) for leaf in leaves]), 0, index):
                try:
                    return observed(value)
                except MisfitError as found:
                    raise self._misfit(found, self.elements_at(index), None) from None
        raise SpecError(
            f"{self.label} at {self.where} gave no element at all, so what they look like is unknown. Say it: "
            "element_spec=penstock.ArraySpec(shape, dtype), or a tree of them."
        )

    _makes = "gave"

    def made(self, element: Tree, epoch: int, index: int, hint: str = "") -> Iterator[Any]:
        """What the function makes of an element, one after the other; unchecked.

        Raises:
            ElementError: It failed.
        """
        made = None
        while True:
            try:
                if made is None:
                    made = begun(self._all, element)
                value = next(made, _NOTHING)
            except BaseException as error:
                if is_untouched(error):
                    raise
                raise self._failure(error, epoch, index, hint) from error
            if value is _NOTHING:
                return
            yield value

    def _all(self, element: Tree) -> Any:
        result = self.function(element)
        if self.batched is not None:
            return rows_of(result)
        if isinstance(result, Mapping):
            raise TypeError(
                f"it returned {type_of(result)}, which is one element, and of which iteration gives names. Return a "
                "list of elements, or yield each"
            )
        return result

    def checked(self, values: Iterator[Any], index: int) -> Elements:
        """The leaves of what the function makes.

        Raises:
            SpecError: One is not as the spec says.
        """
        spec = self.made_spec
        for value in values:
            try:
                yield conformed(spec, value)
            except MisfitError as found:
                raise self._misfit(found, self.elements_at(index), spec) from None

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Runs the function on each element. Where it fails, `FlatMap` comes upon that once more, in its place."""
        source, words, times = reader.inputs[0], reader.status.words, reader.status.times
        structure = source.spec.structure
        for chunk, rows, box in source.chunks(epoch, indices, out):
            words[0], words[1], started = reader.number + 1, epoch, time.perf_counter()
            for place, (row, index) in enumerate(zip(rows.row_numbers(), chunk.tolist(), strict=True)):
                words[2] = index
                leaves = box.leaf_values(place)
                element = structure.unflatten([copied(leaf) for leaf in leaves])
                out.put(row, [*leaves, self._packed(element, index)])
                del leaves, element  # or it looks as if the function had kept the scratch memory
            if times is not None:
                times.note(reader.number, len(chunk), time.perf_counter() - started)
            words[0] = 0  # while input is read, no element of it runs

    def _packed(self, element: Tree, index: int) -> bytes:
        made: list[Leaves] = []
        room, is_done = MOST_NBYTES, False
        try:
            result = self._all(element)
            is_there = self.batched is not None or isinstance(result, (list, tuple, np.ndarray))
            for leaves in self.checked(begun(lambda: result), index):
                if is_there:
                    made.append(leaves)
                    continue
                made.append([copied(leaf) for leaf in leaves])
                room -= sum(map(_nbytes, leaves))
                if room < 0 or len(made) == MOST_COUNT:
                    break
            else:
                is_done = True
        except BaseException as error:
            if is_untouched(error):
                raise
        columns = zip(self.made_spec.leaves, zip(*made, strict=True), strict=True) if made else ()
        return dumps((len(made), [column(*each) for each in columns], is_done))

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The same for each element of a stream."""
        structure = self.source.spec.structure
        for index, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            element = structure.unflatten([copied(leaf) for leaf in leaves])
            yield [*leaves, self._packed(element, index)]


@dataclass(frozen=True, eq=False)
class FlatMap(Sequential, OfMade):
    """The elements that a function makes of each element of the input, one after the other."""

    is_tolerated: bool = field(default=False, repr=False)
    """The loader goes on after elements that fail, but not after one that fails here; the message says so."""

    takes_any_shape = True
    batch_size = 1
    traits = Traits(runs_code=True)
    ends_guards = True
    _scatters = True

    @cached_property
    def maker(self) -> Expand:
        """The step that made them: the input, or below guards."""
        return next(each for each in walk(self.source) if isinstance(each, Expand))

    @property
    def known_spec(self) -> Spec | None:
        """The declared spec, or the one found; None before."""
        return self.spec if self.maker.is_learnt else None

    @property
    def spec(self) -> Spec:
        """The declared spec, or that of the first element. May run the function."""
        return self.maker.made_spec

    @property
    def _untolerated(self) -> str:
        """What a message says of `on_error`."""
        empty = "[]" if self.maker.batched is None else "no elements"
        return (
            f". on_error= does not set it aside: some elements made of it may be in batches already, and the number of "
            f"those to come is unknown. Do what may fail in a map() before it, or catch it there and return {empty}."
        )

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Takes apart what workers made. Without workers, or where that is not all, runs the function."""
        step, expand, words = self.maker, reader.inputs[0], reader.status.words
        hint = self._untolerated if self.is_tolerated else ""
        structure, by_workers = step.source.spec.structure, expand.stage is not None or step is not self.source
        count = 0
        for index, leaves in enumerate((expand if by_workers else expand.inputs[0]).sequence(epoch)):
            words[0], words[1], words[2] = expand.number + 1, epoch, index
            if by_workers:
                count, columns, is_done = pickle.loads(leaves[-1])
                yield from map(list, zip(*columns, strict=True))
                if is_done:
                    continue
                leaves = leaves[:-1]
            element = structure.unflatten([copied(leaf) for leaf in leaves])
            yield from step.checked(itertools.islice(step.made(element, epoch, index, hint), count, None), index)
            words[0] = expand.number + 1


def _nbytes(leaf: Any) -> int:
    return leaf.nbytes if isinstance(leaf, (np.ndarray, np.generic)) else len(leaf)
