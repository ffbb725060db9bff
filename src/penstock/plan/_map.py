"""Functions of the user: `map` and `random_map`.

A function gets an element that is writable and its own. It returns a tree of arrays, which is copied once, into the
slot of the batch. Each error names the element and the step.
"""

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from penstock.base import _tree
from penstock.base._errors import ElementError, SpecError, is_untouched, type_of, words_of
from penstock.base._random import ElementRng, seeded_globals, watched_torch
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import (
    Indices,
    Leaves,
    Rows,
    blank,
    chunk_count,
    chunk_nbytes,
    copied,
    distinct,
    make_read_only,
    ranges_of,
)
from penstock.plan._chunks import Chunks
from penstock.plan._conform import MisfitError, conformed, observed, text_of
from penstock.plan._node import (
    ClearAfter,
    Demand,
    Elements,
    Memory,
    Node,
    OneInput,
    OneToOne,
    Randomness,
    Traits,
    allow_depth,
    finite_length,
    upwards,
    walk,
    working_memory,
)
from penstock.plan._reader import Gather, OpenSources, Reader, WorkerStatus
from penstock.plan._text import origins

Part = TypeVar("Part")
PROBE_COUNT = 64
"""The number of elements that are tried to find a function's spec, if elements may fail."""


class Learned(NamedTuple):
    """Facts about a function, found by running it."""

    spec: Spec | None = None
    """The spec of what it returns; None before it ran."""
    uses_globals: bool = False
    """It draws from `np.random` or `random`, which belong to the whole process."""
    uses_torch: bool = False
    """It draws from torch's global generator, or seeds it."""


@final
class Memo:
    """Holds what was learnt about a function.

    This is the one part of a plan that changes: a later value knows more. It has to be shared: a function runs once to
    find its spec, in a worker if there is one, and the dataset, all datasets made from it and all plans that `lower`
    makes of them then know it. The facts describe the function and its input, which no rewrite of a plan changes. They
    travel to workers with the step.
    """

    __slots__ = ("learned",)

    def __init__(self) -> None:
        self.learned = Learned()


class Learner(ABC):
    """A step whose spec may be known only after code of the user ran."""

    memo: Memo

    @property
    @abstractmethod
    def is_learnt(self) -> bool:
        """Whether nothing has to be run to know the spec of what the user's code gives."""

    @abstractmethod
    def learn_by(self, firsts: dict[int, Leaves], *, takes_any: bool = False) -> Learned:
        """Runs the code on element 0, if nothing has, and returns what was learnt. Steps before it are learnt.

        Args:
            firsts: See `WorkerStatus`.
            takes_any: Elements may fail: then the first element that does not fail is taken.
        """


def learn(plan: Node, status: WorkerStatus, *, takes_any: bool) -> dict[int, Learned]:
    """Runs the functions and generators of a plan whose spec is unknown, once each, from the data upwards.

    Args:
        plan: The plan.
        status: Where the function that runs is noted.
        takes_any: Elements may fail: then the first element that does not fail shows the spec.

    Returns:
        The facts, by the step's number in the order of `walk`.
    """
    allow_depth(plan)
    numbers = {id(node): number for number, node in enumerate(walk(plan))}
    found = {}
    firsts: dict[int, Leaves] = {}
    for node in upwards(plan):
        if isinstance(node, Learner) and not node.is_learnt:
            status.words[0] = numbers[id(node)] + 1
            found[numbers[id(node)]] = node.learn_by(firsts, takes_any=takes_any)
    return found


def adopt(plan: Node, found: dict[int, Learned]) -> None:
    """Notes in a plan what `learn` found in another process."""
    for number, node in enumerate(walk(plan)):
        if isinstance(node, Learner) and number in found:
            node.memo.learned = found[number]


def judged(pair: Spec) -> Spec:
    """The spec of an element, given that of a pair of the element and a verdict."""
    return Spec(pair.leaves[:-1], pair.structure.children()[0])


class SetAsideError(ElementError):
    """An element is made of one that failed, which a guard of `on_error` has noted."""


def _varying(spec: ArraySpec, short: dict[int, int]) -> ArraySpec:
    """Marks the batch axis as varying: a function of a short batch returns a short one."""
    if not spec.shape or spec.shape[0] not in short:
        return spec
    rest = spec.shape[1:]
    if None in rest:
        return ArraySpec((None, *rest), spec.dtype)
    return ArraySpec((None, *rest), spec.dtype, (short[spec.shape[0]], *rest))  # type: ignore[arg-type]  # no None


def _hint(error: BaseException, arguments: tuple[Any, ...]) -> str:
    """The remedy for a function that takes other arguments than it gets; empty for errors inside it."""
    if not isinstance(error, TypeError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return ""
    element, text, is_random = arguments[0], str(error), len(arguments) == 2
    lacks = "required positional argument" in text
    if is_random and lacks:
        return ". random_map() calls fn(element, rng), and nothing else is known there: not the epoch, nor the batch"
    if is_random and " argument" in text and " given" in text:
        return ". random_map() calls fn(element, rng); a function of the element alone goes into map()"
    if lacks and text.endswith("'rng'"):
        return ". A function of the element and random numbers goes into random_map()"
    if lacks and isinstance(element, tuple):
        parts = ", ".join(f"e[{place}]" for place in range(min(len(element), 4)))
        return f". A function gets one element, here a tuple of {len(element)}: lambda e: ({parts})"
    return ""


def _as_loose(leaf: ArraySpec, given: ArraySpec) -> ArraySpec:
    """A leaf of a function that declares `keeps_shapes`: an axis varies if it varies in the input."""
    if None not in given.shape or len(given.shape) != len(leaf.shape) or leaf.varies:
        return leaf
    return ArraySpec(
        tuple(None if one is None else size for one, size in zip(given.shape, leaf.shape, strict=True)), leaf.dtype
    )


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, for people."""
    # A partial or a callable object has no name; the name of the wrapped function says most.
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__qualname__", None)
    return (name if isinstance(name, str) else type(inner).__qualname__).rpartition("<locals>.")[2]


@dataclass(frozen=True, eq=False)
class OfFunction(OneInput):
    """A step that calls a function of the user."""

    function: Callable[..., Any]
    declared: Spec | None
    """The spec that the user gave; None to find it by running the function."""
    where: str = field(repr=False)
    """The user's line: `train.py:41`."""
    is_loose: bool = field(default=False, repr=False, kw_only=True)
    """Whether a step that pads follows: then a found spec has axes of any size."""

    takes_any_shape = True
    _makes = "returned"

    @property
    def held(self) -> Callable[..., Any]:
        """The function."""
        return self.function

    def loosened(self) -> "OfFunction":
        """Finds the size of elements no more, unless the user declared it."""
        return self if self.declared is not None else replace(self, is_loose=True)

    @property
    def function_name(self) -> str:
        """The function's qualified name, or that of its type."""
        return function_name(self.function)

    def settings(self) -> dict[str, Any]:
        """A function is identified by its name: a fix in it must not invalidate checkpoints."""
        return {"function": self.function_name}

    def _misfit(self, found: MisfitError, elements: str, spec: Spec | None) -> SpecError:
        return SpecError(
            f"{self.label} at {self.where} {self._makes} {found} for {elements}"
            f"{text_of(found, spec, is_declared=self.declared is not None)}"
        )


@dataclass(frozen=True, eq=False)
class OnWorkers(OfFunction, Learner):
    """A step whose function workers call side by side."""

    memo: Memo = field(default_factory=Memo, repr=False, kw_only=True)
    batched: int | None = field(default=None, kw_only=True)
    """Elements of the input are groups of so many elements of the user's, stacked; None if they are the user's."""

    def learn_by(self, firsts: dict[int, Leaves], *, takes_any: bool = False) -> Learned:
        """Runs the function on element 0, if nothing has, and returns what was learnt.

        Raises:
            ElementError: The function failed.
            SpecError: It returned something else than arrays, or there is no element.
        """
        if self.memo.learned.spec is None:
            sources = OpenSources(self.source)
            try:
                reader = Reader(self.source, sources, isolation=seeded_globals)
                reader.status.takes_any, reader.status.firsts = takes_any, firsts
                self.memo.learned = self._learn_from(reader)
            finally:
                sources.close()
        return self.memo.learned

    def _learn_from(self, reader: Reader) -> Learned:
        """Runs the function on an element of the input."""
        raise NotImplementedError(f"{self.verb} has one spec, whatever its function returns")

    def _failure(self, error: BaseException, epoch: int, index: int, hint: str) -> ElementError:
        return ElementError(
            f"{self.label} at {self.where} failed on {self.elements_at(index)} of epoch {epoch}"
            f"{origins(self, epoch, index)}: {words_of(error)}{hint}"
        )

    def elements_at(self, index: int) -> str:
        """One, or those of a group."""
        if self.batched is None:
            return super().elements_at(index)
        stop = (index + 1) * self.batched
        count = self.source.inputs[0].length
        return f"elements {index * self.batched} to {(min(stop, count) if isinstance(count, int) else stop) - 1}"

    @property
    def is_hidden(self) -> bool:
        """Whether the step after it is shown in its place."""
        return False

    @property
    def traits(self) -> Traits:
        """Workers run functions."""
        return Traits(is_parallel=True, is_cpu_bound=True, may_hold_gil=not self.releases_gil, is_hidden=self.is_hidden)

    @property
    def memory(self) -> Memory:
        """Input elements, read some at a time."""
        return working_memory(chunk_nbytes(self.source.spec))

    @property
    def releases_gil(self) -> bool:
        """Whether the function has an attribute of this name, so threads can run it side by side."""
        return getattr(self.function, "releases_gil", False) is True


@dataclass(frozen=True, eq=False)
class Apart(OneInput):
    """A step that takes elements of its input apart."""

    gives_groups = False

    @property
    @abstractmethod
    def part_size(self) -> int:
        """The number of parts of an element; the last may have fewer."""

    @abstractmethod
    def apart(self, leaves: Leaves) -> list[Leaves]:
        """The leaves of each part of an element."""

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those of the elements that are taken apart."""
        below = self.source.chunks
        return None if below is None else below.apart(self.part_size, finite_length(self))

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements that have the parts."""
        return [Demand(0, epoch, distinct(indices // self.part_size))]

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first part of an element that is clear of this one's."""
        return ask(self.source, index // self.part_size) * self.part_size


def parts_at(
    reader: Reader, epoch: int, indices: Indices, size: int, apart: Callable[[Leaves], Sequence[Part]]
) -> Iterator[tuple[int, Part | None]]:
    """Takes elements of the input apart, of which the last stays for the next call.

    Args:
        reader: Reads the step that takes them apart.
        epoch: The epoch.
        indices: The parts that are wanted.
        size: The number of parts of an element.
        apart: Returns the parts of an element.

    Yields:
        For each part its place among those that are wanted, and the part; None where its element has fewer.
    """
    owners = indices // size
    for owner in distinct(owners).tolist():
        parts = apart(reader.kept(epoch, owner).leaf_values(0))
        for place in np.flatnonzero(owners == owner).tolist():
            number = int(indices[place]) - owner * size
            yield place, parts[number] if number < len(parts) else None


@dataclass(frozen=True, eq=False)
class OfMade(OneInput):
    """A step that takes apart what a hidden step below it made. The user sees one step."""

    @property
    @abstractmethod
    def maker(self) -> OnWorkers:
        """The step that made it: the input, or below guards."""

    @property
    def verb(self) -> str:
        """The user's."""
        return self.maker.verb

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return self.maker.label

    def settings(self) -> dict[str, Any]:
        """Those of the function."""
        return self.maker.settings()


@dataclass(frozen=True, eq=False)
class Map(OneToOne, OnWorkers):
    """Element `i` is `function` of the input's element `i`."""

    seed: int | None = None
    """For `random_map`; None for `map`, whose function gets no random numbers."""
    verdict: str | None = None
    """If the step yields pairs of the element and a verdict: the verdict's dtype. Else None."""
    has_mask: bool = field(default=False, repr=False, kw_only=True)
    """Elements of the input are pairs of a group and a mask, and so are those of this step: the function gets the
    group alone. Guards of `on_error` make them."""

    takes_each_once = True
    fails_alone = True

    def over_pairs(self, pairs: Node) -> Node | None:
        """Runs the function on elements that are there."""
        return self.over(pairs, has_mask=True) if self.verdict is None else None

    @property
    def verb(self) -> str:
        """`map` or `random_map`; or that of the step that uses the verdicts."""
        if self.verdict is not None:
            return "filter" if self.verdict == "bool" else "bucket_by_length"
        return "map" if self.seed is None else "random_map"

    @property
    def label(self) -> str:
        """As the user wrote it: `random_map(warp, seed=3)`."""
        seed = f", seed={self.seed}" if self.seed else ""
        batched = f", batched={self.batched}" if self.batched else ""
        return f"{self.verb}({self.function_name}{seed}{batched})"

    def settings(self) -> dict[str, Any]:
        """The function's name, and the seed or the number of elements."""
        batched = {"batched": self.batched} if self.batched else {}
        return {**super().settings(), "seed": self.seed, **batched}

    @cached_property
    def randomness(self) -> Randomness:
        """`random_map` is one deeper than its input, so two of them in a row draw different numbers."""
        below = self.source.randomness
        return below._replace(depth=below.depth + (self.seed is not None))

    @property
    def is_learnt(self) -> bool:
        """Whether it asks for verdicts, or the spec was declared or found."""
        return self.verdict is not None or self.declared is not None or self.memo.learned.spec is not None

    @property
    def is_pointwise(self) -> bool:  # type: ignore[override]
        """Without a verdict; a `random_map` draws by position."""
        return self.seed is None and self.verdict is None

    def loosened(self) -> "Map":
        """Pairs of an element and a verdict are as large as elements are."""
        return self if self.verdict is not None or self.declared is not None else replace(self, is_loose=True)

    @property
    def is_hidden(self) -> bool:
        """Where it asks for verdicts, or is given groups."""
        return self.verdict is not None or self.batched is not None

    @property
    def batch_size(self) -> int | None:
        """That of the batches it gets, if what it makes of them is as long."""
        size = self.source.batch_size
        if size == 1 or self.verdict is not None:
            return size
        leaves = self.known_spec.leaves if self.known_spec else ()
        return size if {(leaf.max_shape or (0,))[0] for leaf in leaves} == {size} else None

    @property
    def known_spec(self) -> Spec | None:
        """The declared or found spec; None before."""
        if not self.is_learnt or (self._asks_input and self.source.known_spec is None):
            return None
        return self.spec

    @property
    def _asks_input(self) -> bool:
        """Whether the spec follows from that of the input, too."""
        return self.verdict is not None or self.has_mask or self.batched is not None

    @cached_property
    def spec(self) -> Spec:
        """The declared or found spec. Runs the function on element 0, if nothing has."""
        if self.verdict is not None:
            return Spec.of((self.source.spec.tree, ArraySpec((), np.dtype(self.verdict))))
        if self.declared is not None:
            made = self.declared if self.batched is None else self._of_batches(self.declared)
        else:
            if self.memo.learned.spec is None:
                learn(self, WorkerStatus(), takes_any=False)
            spec = self.memo.learned.spec
            assert spec is not None
            made = self._of_batches(spec.loosened() if self.is_loose else spec)
        return Spec.of((made.tree, self.source.spec.leaves[-1])) if self.has_mask else made

    def _of_batches(self, spec: Spec) -> Spec:
        """Marks the first axis as varying where that of the input's batches does.

        What was declared or learnt may be of batches that all have one size, and guards below leave elements out.
        """
        leaves = (leaf for leaf in self.source.spec.leaves if leaf.shape[:1] == (None,) and leaf.max_shape)
        sizes = {leaf.max_shape[0]: leaf.max_shape[0] for leaf in leaves}  # type: ignore[index]
        return Spec(tuple(_varying(leaf, sizes) for leaf in spec.leaves), spec.structure) if sizes else spec

    def learn_by(self, firsts: dict[int, Leaves], *, takes_any: bool = False) -> Learned:
        first = None if takes_any else firsts.get(id(self.source))
        if first is not None and self.memo.learned.spec is None:  # a reader of all steps below would cost more
            box = Rows.allocate(self.source.spec, 1)
            box.put(0, first)
            element = self.source.spec.structure.unflatten(box.leaf_values(0))
            self.memo.learned = self._learn_with(element, 0, firsts)
        return super().learn_by(firsts, takes_any=takes_any)

    def _learn_from(self, reader: Reader) -> Learned:
        if self.length == 0:
            raise SpecError(
                f"{self.label} at {self.where} has no element to run, so what it returns is unknown. "
                "Say it: element_spec=penstock.ArraySpec(shape, dtype), or a tree of them."
            )
        if reader.status.takes_any:
            return self._first_of(reader)
        return self._learn_with(reader.element(0, 0), 0, reader.status.firsts)

    def _first_of(self, reader: Reader) -> Learned:
        """Learns from the first element that does not fail."""
        first, index = None, 0
        for index, element in enumerate(reader.attempts(PROBE_COUNT)):
            try:
                if isinstance(element, Exception):
                    raise element
                return self._learn_with(element, index, reader.status.firsts)
            except SetAsideError:
                continue
            except Exception as error:
                first = first or error
        if first is None:
            self.source.spec  # noqa: B018  # raises the cause, if all elements failed before this step
            raise SpecError(f"{self.label} at {self.where} has no element to run, so what it returns is unknown.")
        if index:
            first.add_note(
                f"And so did all of the first {index + 1} elements. on_error= sets elements aside, but none was left "
                "that says what the function returns."
            )
        raise first

    def _learn_with(self, element: Tree, index: int, firsts: dict[int, Leaves]) -> Learned:
        short = self._short_axes(element)
        count = None if self.batched is None else len(_tree.flatten(element)[0][0])
        with seeded_globals() as globals_, watched_torch() as used_torch:
            globals_.seed(0, self.randomness.depth, 0, self.randomness.number_of(index))
            value = self._run(element, self._new_rng(), globals_, 0, index, None)
            drew, drew_torch = globals_.used(), used_torch()
        try:
            spec = observed(value)
        except MisfitError as found:
            raise self._misfit(found, self.elements_at(index), self.known_spec) from None
        if count is not None:
            self._require_group((leaf.shape for leaf in spec.leaves), count, index)
        leaves = tuple(_varying(leaf, short) for leaf in spec.leaves)
        given = self.source.spec.leaves[: -1 if self.has_mask else None]
        if getattr(self.function, "keeps_shapes", False) is True and len(leaves) == len(given):
            leaves = tuple(map(_as_loose, leaves, given))
        if index == 0 and not self.has_mask and not self.is_learnt:
            firsts[id(self)] = [copied(leaf) for leaf in conformed(spec, value)]
        before = self.memo.learned
        return Learned(Spec(leaves, spec.structure), drew or before.uses_globals, drew_torch or before.uses_torch)

    def _short_axes(self, element: Tree) -> dict[int, int]:
        """For each first axis that varies: its size in this element, and the largest that it can have."""
        leaves = zip(_tree.flatten(element)[0], self.source.spec.leaves, strict=True)
        return {len(leaf): spec.max_shape[0] for leaf, spec in leaves if spec.varies and spec.max_shape}

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads input elements into scratch memory, some at a time, and runs the function on each."""
        source = reader.inputs[0]
        rng = reader.memo("rng", self._new_rng)
        if (first := reader.status.firsts.get(id(self))) is not None and epoch == 0:
            for place in np.flatnonzero(indices == 0).tolist():
                out.put(out.row_numbers()[place], first)
            others = np.flatnonzero(indices)
            indices, out = indices[others], out.take(others)
        for start, stop in ranges_of(len(indices), chunk_count(source.spec)):
            chunk, rows = indices[start:stop], out.take(slice(start, stop)) if stop - start < len(indices) else out
            if reader.isolation is None:
                self._fill_chunk(reader, rng, None, epoch, chunk, rows)
                continue
            with reader.isolation() as globals_:
                self._fill_chunk(reader, rng, globals_, epoch, chunk, rows)
                if not self.memo.learned.uses_globals and globals_.used():
                    # Its numbers depend on earlier draws of this worker. Run it again, seeded.
                    self.memo.learned = self.memo.learned._replace(uses_globals=True)
                    self._fill_chunk(reader, rng, globals_, epoch, chunk, rows)

    def _fill_chunk(
        self,
        reader: Reader,
        rng: ElementRng | None,
        globals_: seeded_globals | None,
        epoch: int,
        chunk: Indices,
        out: Rows,
    ) -> None:
        source, count, spec = reader.inputs[0], len(chunk), self.spec
        box = source.scratch(count)
        reader.status.words[0] = 0  # while its input is read, no element of it runs
        source.read(epoch, chunk, box)
        words, times, started = reader.status.words, reader.status.times, time.perf_counter()
        words[0], words[1] = reader.number + 1, epoch
        elements = box.elements(source.spec.structure, count, is_writeable=self.verdict is None)
        is_seeded = rng is not None or (globals_ is not None and self.memo.learned.uses_globals)
        # The plainest function is called here: calls of our own take longer than its work, if that is small.
        function = None if is_seeded or self._asks_input else self.function
        arrays = out.arrays if out.is_plain else ()
        for row, index, element in zip(out.row_numbers(), chunk.tolist(), elements, strict=True):
            words[2] = index
            if function is None:
                leaves = self._run(element, rng, globals_, epoch, index, spec)
            else:
                try:
                    leaves = function(element)
                except BaseException as error:
                    if is_untouched(error):
                        raise
                    raise self._failure(error, epoch, index, _hint(error, (element,))) from error
                try:
                    leaves = conformed(spec, leaves)
                except MisfitError as found:
                    raise self._misfit(found, self.elements_at(index), self.known_spec) from None
            if arrays:
                number = 0  # as in `put`
                for places in arrays:
                    places[row] = leaves[number]
                    number += 1  # noqa: SIM113
            else:
                out.put(row, leaves)
            del element, leaves  # or it looks as if the function had kept the scratch memory
        if times is not None:
            times.note(reader.number, count, time.perf_counter() - started)

    def _new_rng(self) -> ElementRng | None:
        """The generator for the function of `random_map`."""
        return None if self.seed is None else ElementRng(self.seed, self.randomness.depth)

    def _judged(self, value: Any, index: int) -> Any:
        try:
            found = np.asarray(value)
            if found.shape != () or found.dtype.kind not in "biu":
                raise TypeError
            return found.astype(self.verdict)
        except (TypeError, ValueError):
            want = "True or False" if self.verdict == "bool" else "an integer"
            raise SpecError(
                f"{self.label} at {self.where} needs a function that returns {want}, but it returned "
                f"{type_of(value)} for element {index}: {value!r:.80}."
            ) from None

    def _require_group(self, shapes: Iterable[tuple[int | None, ...]], count: int, index: int) -> None:
        """Refuses a result of a group that has another number of elements."""
        found = {shape[0] if shape else None for shape in shapes}
        if found != {count}:
            other = next(iter(found - {count}))
            what = "a value without a first axis" if other is None else f"{other} along the first axis"
            raise wrong_count(self, count, index, what)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Runs the function on each element of a stream."""
        source, rng = reader.inputs[0], self._new_rng()
        structure, words = source.spec.structure, reader.status.words

        def run(leaves: Leaves, globals_: seeded_globals | None, index: int) -> Leaves:
            own = [copied(leaf) for leaf in leaves]
            own = own if self.verdict is None else make_read_only(own)
            return self._run(structure.unflatten(own), rng, globals_, epoch, index, self.spec)  # type: ignore[no-any-return]

        first = reader.status.firsts.get(id(self)) if epoch == 0 else None
        if first is not None:
            yield first
        for index, leaves in enumerate(source.sequence(epoch)):
            if index == 0 and first is not None:
                continue
            words[0], words[1], words[2] = reader.number + 1, epoch, index
            try:
                with reader.isolation() if reader.isolation else contextlib.nullcontext() as globals_:
                    value = run(leaves, globals_, index)
                    if globals_ is not None and not self.memo.learned.uses_globals and globals_.used():
                        self.memo.learned = self.memo.learned._replace(uses_globals=True)
                        value = run(leaves, globals_, index)  # on another copy: it may have changed the first
            except Exception:
                if not reader.status.takes_any:
                    raise
                continue
            yield value

    def _run(
        self,
        element: Tree,
        rng: ElementRng | None,
        globals_: seeded_globals | None,
        epoch: int,
        index: int,
        spec: Spec | None,
    ) -> Any:
        """Runs the function on one element; returns the leaves of what it returned, or without a spec that itself."""
        if self.has_mask:
            return self._run_masked(element, rng, globals_, epoch, index, spec)
        if globals_ is not None and self.memo.learned.uses_globals:
            globals_.seed(0, self.randomness.depth, epoch, self.randomness.number_of(index))
        arguments = (element,) if rng is None else (element, rng.at(epoch, self.randomness.number_of(index)))
        count = None if self.batched is None else len(_tree.flatten(element)[0][0])
        try:
            value = self.function(*arguments)
        except BaseException as error:
            if is_untouched(error):
                raise
            raise self._failure(error, epoch, index, _hint(error, arguments)) from error
        if spec is None:
            return value
        if self.verdict is not None:
            value = element, self._judged(value, index)
        try:
            return self._leaves_of(value, spec, count, index)
        except MisfitError as found:
            raise self._misfit(found, self.elements_at(index), self.known_spec) from None

    def _run_masked(
        self,
        pair: Tree,
        rng: ElementRng | None,
        globals_: seeded_globals | None,
        epoch: int,
        index: int,
        spec: Spec | None,
    ) -> Any:
        """The same for the elements of a group that are there; the mask goes along."""
        group, mask = pair
        if not np.any(mask):
            if spec is None:
                raise SetAsideError(f"{self.elements_at(index)} failed before {self.label}.")
            return [*blank(spec.leaves[:-1]), mask]
        own = None if spec is None else judged(spec)
        found = self._unmasked._run(group, rng, globals_, epoch, index, own)
        return found if spec is None else [*found, mask]

    @cached_property
    def _unmasked(self) -> "Map":
        return replace(self, has_mask=False)

    def _leaves_of(self, value: Any, spec: Spec, count: int | None, index: int) -> Leaves:
        """The leaves of what the function returned, of a group with `count` elements.

        Raises:
            MisfitError, SpecError: It is not as the spec says, or has another number of elements.
        """
        leaves = conformed(spec, value)
        if count is not None:
            self._require_group(map(np.shape, leaves), count, index)
        return leaves


def wrong_count(step: OnWorkers, count: int, index: int, what: str) -> SpecError:
    """The error for a group of which a function made another number of elements."""
    return SpecError(
        f"{step.label} at {step.where} got {count} elements, {step.elements_at(index)}, and returned {what}. The "
        "function has to return one for each. If it makes more or fewer: map(batched=, keeps_count=False), which gives "
        "a stream."
    )
