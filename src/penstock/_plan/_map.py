"""Functions of the user: `map` and `random_map`.

A function gets an element that is writable and its own, and returns a tree of arrays, which is copied once:
into the slot of the batch. Everything that can go wrong in it is told with the element and the step.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from penstock import _tree
from penstock._errors import ElementError, PenstockError, SpecError, type_of
from penstock._plan._node import Indices, Node, OneToOne, walk
from penstock._plan._reader import Gather, OpenSources, Reader, Rows, Trace, chunk_count, chunk_nbytes, pieces
from penstock._plan._text import origins
from penstock._random import ElementRng, seeded_globals
from penstock._spec import ArraySpec, Spec, leaf_of, spec_of_leaf

if TYPE_CHECKING:
    from penstock._tree import Tree


def find_specs(plan: Node, trace: Trace) -> dict[int, tuple[Spec, bool]]:
    """Runs the functions whose spec is unknown on element 0, from the data upwards.

    Returns:
        For each by its number in the order of `walk`: the spec, and whether it draws from global generators.
    """
    found = {}
    for number, node in reversed(list(enumerate(walk(plan)))):
        if isinstance(node, Map) and node.known_spec is None:
            trace.words[0] = number + 1
            found[number] = (node.spec, node.traits.uses_globals)
    return found


def adopt_specs(plan: Node, found: dict[int, tuple[Spec, bool]]) -> None:
    """Makes what `find_specs` found elsewhere known here."""
    for number, node in enumerate(walk(plan)):
        if isinstance(node, Map) and number in found:
            node.__dict__["_probed"], node.traits.uses_globals = found[number]


def _varying(spec: ArraySpec, short: dict[int, int]) -> ArraySpec:
    """A function of a batch returns a shorter one for a short batch: an axis that was the batch's varies."""
    if not spec.shape or spec.shape[0] not in short:
        return spec
    rest = spec.shape[1:]
    return ArraySpec((None, *rest), spec.dtype, (short[spec.shape[0]], *rest))  # type: ignore[arg-type]  # no None


@final
class Traits:
    """What was learnt about a function by running it. It is the one thing about a plan that may change."""

    __slots__ = ("uses_globals",)

    def __init__(self) -> None:
        self.uses_globals = False
        """It draws from `np.random` or `random`, which belong to the whole process."""


@final
@dataclass(frozen=True, eq=False)
class Map(OneToOne):
    """Element `i` is `function` of the input's element `i`."""

    source: Node
    function: Callable[..., Any]
    declared: Spec | None
    """What the user said that elements look like; None to find out by running element 0."""
    seed: int | None
    """For `random_map`; None for `map`, whose function gets no random numbers."""
    where: str
    """The user's line: `train.py:41`."""
    traits: Traits = field(default_factory=Traits, repr=False)

    @property
    def verb(self) -> str:
        """`map` or `random_map`."""
        return "map" if self.seed is None else "random_map"

    @property
    def function_name(self) -> str:
        """The function's qualified name, or that of its type."""
        # A partial or a callable object has no name of its own; that of what it wraps says most.
        inner = getattr(self.function, "func", self.function)
        return str(getattr(inner, "__qualname__", type(inner).__qualname__)).rpartition("<locals>.")[2]

    @property
    def label(self) -> str:
        """As the user wrote it: `random_map(warp, seed=3)`."""
        seed = f", seed={self.seed}" if self.seed else ""
        return f"{self.verb}({self.function_name}{seed})"

    def settings(self) -> dict[str, Any]:
        """A function is known by its name alone: mending a bug in it must not lose the run."""
        return {"function": self.function_name, "seed": self.seed}

    @property
    def random_depth(self) -> int:
        """One more than below for `random_map`, so that two steps in a row draw other numbers."""
        return self.source.random_depth + (self.seed is not None)

    @property
    def known_spec(self) -> Spec | None:
        """What was declared or found; None before."""
        return self.declared or self.__dict__.get("spec")

    @property
    def scratch_nbytes(self) -> int:
        """Input elements, read some at a time."""
        return chunk_nbytes(self.source.spec)

    def _find_spec(self) -> Spec:
        if self.declared is not None:
            return self.declared
        if self.length == 0:
            raise SpecError(
                f"{self.label} at {self.where} has no element to run, so what it returns is unknown. "
                "Say it: element_spec=penstock.ArraySpec(shape, dtype), or a tree of them."
            )
        return self._probed

    def uses_globals(self) -> bool:
        """Whether the function draws from `np.random` or `random`; runs it on element 0, if nothing has yet."""
        if self.length:
            # A spec that was declared says nothing of that. What fails here fails again in its place.
            with contextlib.suppress(Exception):
                self._probed  # noqa: B018  # asked for what it does, once
        return self.traits.uses_globals

    @cached_property
    def _probed(self) -> Spec:
        """The spec of what the function returns for element 0."""
        sources = OpenSources(self.source)
        try:
            return self._spec_from(Reader(self.source, sources, isolation=seeded_globals))
        finally:
            sources.close()

    def _spec_from(self, reader: Reader) -> Spec:
        element = reader.element(0, 0)
        short = self._short_axes(element)
        with seeded_globals() as globals_:
            globals_.seed(0, self.random_depth, 0, 0)
            value = self._call(self._arguments(ElementRng(self.seed or 0, self.random_depth), 0, 0, element), 0, 0)
            self.traits.uses_globals |= globals_.used()
        leaves, structure = _tree.flatten(value)
        if not leaves:
            raise self._misfit("no array at all", 0)
        places = _tree.paths(structure)
        specs = []
        for leaf, place in zip(leaves, places, strict=True):
            try:
                specs.append(spec_of_leaf(leaf_of(leaf)))
            except SpecError as error:
                raise self._misfit(f"a leaf{place} that is {error}", 0) from None
        return Spec(tuple(_varying(spec, short) for spec in specs), structure)

    def _short_axes(self, element: "Tree") -> dict[int, int]:
        """For each first axis that varies, its size in this element and the largest that it can have."""
        leaves = zip(_tree.flatten(element)[0], self.source.spec.leaves, strict=True)
        return {len(leaf): spec.max_shape[0] for leaf, spec in leaves if spec.varies and spec.max_shape}

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads input elements into scratch memory, some at a time, and runs the function on each."""
        source = reader.inputs[0]
        rng = None if self.seed is None else reader.memo("rng", self._new_rng)
        for start, stop in pieces(len(indices), chunk_count(source.spec)):
            chunk, rows = indices[start:stop], out.take(slice(start, stop))
            if reader.isolation is None:
                self._fill_chunk(reader, rng, None, epoch, chunk, rows)
                continue
            with reader.isolation() as globals_:
                self._fill_chunk(reader, rng, globals_, epoch, chunk, rows)
                if not self.traits.uses_globals and globals_.used():
                    # Found out in the act: what it drew depends on who drew before. Again, seeded.
                    self.traits.uses_globals = True
                    self._fill_chunk(reader, rng, globals_, epoch, chunk, rows)

    def _fill_chunk(
        self,
        reader: Reader,
        rng: ElementRng | None,
        globals_: "seeded_globals | None",
        epoch: int,
        chunk: Indices,
        out: Rows,
    ) -> None:
        source = reader.inputs[0]
        box = source.scratch(len(chunk))
        gather = Gather()
        source.fill(epoch, chunk, box, gather)
        gather.run()
        structure, trace = source.spec.structure, reader.trace.words
        trace[0], trace[1] = reader.number + 1, epoch
        for place, (row, index) in enumerate(zip(out.row_numbers(), chunk.tolist(), strict=True)):
            trace[2] = index
            if globals_ is not None and self.traits.uses_globals:
                globals_.seed(0, self.random_depth, epoch, index)
            element = structure.unflatten(box.leaf_values(place))
            self._put(self._call(self._arguments(rng, epoch, index, element), epoch, index), out, row, index)
            del element  # or the scratch memory looks as if the function had kept it

    def _new_rng(self) -> ElementRng:
        return ElementRng(self.seed or 0, self.random_depth)

    def _arguments(self, rng: ElementRng | None, epoch: int, index: int, element: "Tree") -> tuple[Any, ...]:
        return (element,) if rng is None or self.seed is None else (element, rng.at(epoch, index))

    def _call(self, arguments: tuple[Any, ...], epoch: int, index: int) -> "Tree":
        try:
            return self.function(*arguments)
        except PenstockError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() would end the training, or a worker, without a word
            raise ElementError(
                f"{self.label} at {self.where} failed on element {index} of epoch {epoch}"
                f"{origins(self, epoch, index)}: {type(error).__name__}: {error}"
            ) from error

    def _put(self, value: "Tree", out: Rows, row: int, index: int) -> None:
        spec = self.spec
        try:
            leaves = _tree.flatten_like(spec.structure, value)
        except ValueError:
            raise self._misfit(f"the structure {_tree.flatten(value)[1]}", index) from None
        for leaf, want, array, extent in zip(leaves, spec.leaves, out.arrays, out.extents, strict=True):
            try:
                found = leaf if type(leaf) is np.ndarray and not leaf.dtype.hasobject else leaf_of(leaf)
            except SpecError as error:
                raise self._misfit(f"a leaf that is {error}", index) from None
            if isinstance(found, np.ndarray):
                if not want.admits(found.shape, found.dtype):
                    raise self._misfit(f"an array of {spec_of_leaf(found)}", index)
                if extent is not None:
                    extent[row] = len(found)
                    array[row, : len(found)] = found
                elif want.is_bounded:
                    array[row] = found
                else:
                    array[row] = found.copy()  # a leaf without a place of its own must not alias scratch
            elif want.dtype.itemsize == 0 and want.shape == () and want.dtype.kind == spec_of_leaf(found).dtype.kind:
                # Plain text: an enumeration of the user's is text too, but none that others know.
                array[row] = str.__str__(found) if isinstance(found, str) else bytes(found)
            else:
                raise self._misfit(f"{type_of(found)}", index)

    def _misfit(self, found: str, index: int) -> SpecError:
        known = self.known_spec
        expected = "" if known is None else f", but its element_spec is {known}"
        if known is not None:
            expected += " (as declared)" if self.declared else " (as found on element 0)"
        return SpecError(
            f"{self.label} at {self.where} returned {found} for element {index}{expected}. "
            "Every element of a dataset has one structure, shape and dtype: make the function return it."
        )
