"""The idea of the library: a node says what element `index` of epoch `epoch` is.

A plan is a graph of nodes. Each node is a frozen dataclass that knows its inputs, its length, its spec, and which
elements of its inputs an element needs (`demand`). A node knows nothing about a run: no executor, no worker, no batch
that asked. From that follow random access through every step, a checkpoint that is a position, and work that can be
repeated.

A plan never changes. Code that needs another plan, as everything in `lower/` does, builds new nodes. Cached properties
hold values that the fields determine.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._printable import printable
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._traits import Traits as Traits

if TYPE_CHECKING:
    from penstock.plan._chunks import Chunks
    from penstock.plan._source import Openable

# Classes of `_reader.py`, which imports this file. Concrete nodes name them.
Reader = Any
Gather = Any

Access = Literal["random", "stream"]
Elements = Generator[Leaves, None, None]
"""The elements of a stream, as lists of leaves."""
Length = int | float | None
"""An int, `math.inf`, or None if it is unknown."""
Pairs = tuple[tuple[str, str], ...]
"""Names of values in dicts, and their new names."""
Overlap = Literal["none", "near", "anywhere"]
"""Whether elements share data: not at all; with neighbours, see `clear_after`; or with elements at any position."""


CALLS: Final = 500
"""Calls of a program that may stand above a plan."""
CALLS_PER_STEP: Final = 12
"""Calls of Python in each other for a step, at most, also where it is pickled."""


class Demand(NamedTuple):
    """Elements of one input that some elements of a node are made of."""

    input: int
    """The number of the input."""
    epoch: int
    """The epoch of the input. It differs from the node's only below `repeat`."""
    indices: Indices
    """The input's elements, shape `(n,)`."""
    rows: Indices | slice | None = None
    """The positions of these elements among those asked for; None if they map one to one, in order."""


class Memory(NamedTuple):
    """Bytes of memory besides the slots, known before the run."""

    scratch_nbytes: int = 0
    """Of each worker that reads this step by index."""
    sequence_nbytes: int = 0
    """The part of the one worker that reads this step as a stream."""
    kept_nbytes: int = 0
    """Shared by all workers, and kept between epochs."""
    order_nbytes: int = 0
    """Of tables of a computed order, which all steps of a process have in common."""


def working_memory(nbytes: int) -> Memory:
    """The memory of a step that holds as much to read by index as to read a stream."""
    return Memory(nbytes, nbytes)


class Randomness(NamedTuple):
    """What differs from epoch to epoch."""

    depth: int = 0
    """The number of `random_map` steps from here to the data, this one included."""
    reorders: bool = False
    """The order of elements differs."""
    first: int = 0
    stride: int = 1
    """Random numbers of element `i` are those of number `first + i * stride`, so that shards draw different ones."""

    def number_of(self, index: int) -> int:
        """The number by which an element draws."""
        return (self.first + index * self.stride) % 2**64


class Node(ABC):
    """One step of a plan."""

    inputs: tuple["Node", ...] = ()
    """The nodes that this one reads."""

    # Facts that rewrites of plans ask for (`lower/`). Each default is the careful answer: a step that says nothing is
    # right, and misses what the fact would allow. `tests/properties/test_facts.py` tries each claim.

    moves: bool = False
    """`fill` is arithmetic on indices alone, so the copy engine can fill batches. A cast counts: it converts."""
    stacks: int = 0
    """How many axes elements have more than those of the input: 1 for a batch, -1 where elements are taken apart."""
    converts: bool = False
    """Elements are those of the input in other dtypes."""
    takes_rows: bool = False
    """It reads rows of elements of the input alone, and its elements have as many axes as these."""
    keeps_neighbours: bool = False
    """Neighbouring elements are neighbours in each input, in the same order."""
    takes_any_shape: bool = False
    """Elements of one input may differ in shape."""
    treats_leaves_alike: bool = False
    """To choose leaves before this step or after it gives the same elements."""
    is_pointwise: bool = False
    """Element `i` is made of element `i` of each input and of nothing else: not of `i`, the epoch, or neighbours."""
    redraws: bool = False
    """Which elements of the inputs an element takes depends on the epoch, or on which of them fail. So the order
    changes, unless `randomness` says otherwise."""
    takes_each_once: bool = False
    """In an epoch each element of each input goes into one element, and into no other."""
    notes_inputs: bool = False
    """The number in a worker's status is that of an element of its input, not of its own."""
    ends_guards: bool = False
    """Guards of `on_error` in steps after it do not cover the steps below: those have their own, or are kept."""
    goes_by_position: bool = True
    """Positions of input elements decide which of them it gives, or how it puts them together. So where elements fail,
    the others keep their positions below it. False where later elements may move up."""
    is_guard: bool = False
    """It notes elements that fail in the steps below it, and goes on."""
    is_sharded: bool = False
    """Inputs that are streams are read at the same time, each by its own worker."""
    fails_alone: bool = False
    """It runs a function for each element, of which guards leave out or replace those that fail."""
    gives_inputs: bool = False
    """Its elements are elements of the inputs, unchanged."""
    is_beside: bool = False
    """Element `i` has the leaves of element `i` of each input, one input after the other."""
    checked_pairs: "Node | None" = None
    """Pairs that guards made, of an element and whether it is there, of which it gives the elements that are there."""
    gives_cursor: bool = False
    """In order, it notes how far it got in its input (`Reader.consumed`), and can go on from there."""
    fixes: Mapping[str, Any] = {}
    """Fields by which it keeps its spec over a stream of another length."""
    remainder: int = 0
    """The number of elements of the input in the last element, if that is a short batch; else 0."""
    padded_nbytes: int = 0
    """The size to which it pads elements; 0 if it pads none, or each batch to its own size."""
    rows: "Node | None" = None
    """Of a source: a plan of the rows of its elements, if it reads them alone."""
    verdict: str | None = None
    """If elements are pairs of an element and a verdict of the user's function: the verdict's dtype. Else None."""

    @property
    def held(self) -> Any:
        """The object of the user that this step holds, a function or a source; None if it holds none."""
        return None

    @property
    @abstractmethod
    def verb(self) -> str:
        """The user's name for this step: `shuffle`, `map`."""

    @property
    def label(self) -> str:
        """This step as the user wrote it, for messages and for `repr`: `map(decode)`."""
        settings = (str(value) for value in self.settings().values() if value is not None)
        return f"{self.verb}({', '.join(settings)})"

    def elements_at(self, index: int) -> str:
        """An element of this step in the user's terms, for messages."""
        return f"element {index}"

    def settings(self) -> dict[str, Any]:
        """The arguments that identify this step in a checkpoint, without its inputs; values print short."""
        return arguments(self)

    @cached_property
    def length(self) -> Length:
        """The number of elements of one epoch; by default that of the first input.

        Reads no data. `unbatch` may run a mapped function, to find the number of rows of an element.
        """
        return self.inputs[0].length

    @cached_property
    def spec(self) -> Spec:
        """Structure, shapes and dtypes of an element; by default those of the first input.

        May run a mapped function on element 0, once.
        """
        return self.inputs[0].spec

    @property
    def known_spec(self) -> Spec | None:
        """The spec, or None if finding it would run a user's function."""
        is_known = "spec" in vars(self) or all(node.known_spec is not None for node in self.inputs)
        return self.spec if is_known else None

    @cached_property
    def access(self) -> Access:
        """`"random"` if any element can be read by its index, else `"stream"`."""
        return "random" if all(node.access == "random" for node in self.inputs) else "stream"

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements of the inputs that the given elements need. Arithmetic only.

        Empty for a step without inputs, and for a step of a stream that sees its input in order.
        """
        return ()

    def needs(self, start: int, stop: int) -> tuple[int, int]:
        """The range of the input's elements that a range of elements needs; asked of steps that are `is_parallel`.

        Python's integers: a length may be larger than NumPy's, and a batch larger than memory.
        """
        return start, stop

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Writes the given elements into rows of `out`, or makes `gather` do so when it runs."""
        raise NotImplementedError(f"{self.label} has no random access")

    def row_count(self, epoch: int, index: int) -> int | None:
        """The number of parts in which element `index` can be filled, along its first axis; None for none.

        A batch has one part for each element in it, so several workers can fill one batch.
        """
        return None

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Writes the given rows of one element into rows of `out`, where a row is one part."""
        raise NotImplementedError(f"{self.verb} has no rows")

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Yields the elements of an epoch of a stream one after the other, as lists of leaves.

        An element is valid until the next one is requested. A caller that keeps it must copy it.
        """
        raise NotImplementedError(f"{self.verb} of a stream")

    def over(self, *inputs: "Node", **changes: Any) -> "Node":
        """The same step over other inputs; itself if nothing changes."""
        if inputs == self.inputs and not changes:
            return self
        changes |= {"source": inputs[0]} if isinstance(self, OneInput) else {"sources": inputs}
        made: Node = replace(self, **changes)  # type: ignore[type-var]  # every concrete node is a dataclass
        return made

    def over_pairs(self, pairs: "Node") -> "Node | None":
        """This step over pairs of an element and whether it is there, of which it makes such pairs.

        None if the elements that are there may move up instead.
        """
        return None

    @cached_property
    def gives_groups(self) -> bool:
        """Whether elements are groups, such as batches, or made of some."""
        return any(each.gives_groups for each in self.inputs)

    def loosened(self) -> "Node":
        """This step, with elements of any size where it finds their size on the first; itself if it does not."""
        return self

    def narrowed(self, pairs: Pairs, narrow: "Callable[[Node, Pairs], Node]") -> "Node | None":
        """A plan of some values of elements that are dicts, where each input has values of its own.

        Args:
            pairs: Their names here, and those in the new plan, in its order.
            narrow: Does the same for an input.

        Returns:
            None if the step must see whole elements. The caller checks that length and order are as here.
        """
        return None

    @property
    def opens(self) -> "Openable | None":
        """The resource that a run opens for this step, once in each process; None if it needs none."""
        return None

    @cached_property
    def batch_size(self) -> int | None:
        """The number of elements in a full batch; 1 if elements are no batches, None if it is unknown.

        Asked when specs are known, because a function may change it.
        """
        sizes = {node.batch_size for node in history(self)}
        return sizes.pop() if len(sizes) == 1 else None if sizes else 1

    @property
    def traits(self) -> Traits:
        """How a run treats this step."""
        return Traits()

    @property
    def memory(self) -> Memory:
        """The memory that this step takes."""
        return Memory()

    @cached_property
    def randomness(self) -> Randomness:
        """What differs from epoch to epoch."""
        return randomness_below(self)

    def unshuffled(self) -> "tuple[Node, int, bool] | None":
        """The plan of this step with the elements in an order that stays, each once; None if there is none.

        Asked by a step above that takes the shuffle over, where this one gives another order to each epoch. With the
        plan come the seed of this step's order, and whether that order only moves elements within a window.
        """
        return None

    @property
    def remark(self) -> str:
        """What `print(ds)` and reports say of the elements: `97.1% filled`. Empty for nothing."""
        return ""

    @cached_property
    def overlap(self) -> Overlap:
        """Whether elements share data."""
        found = {node.overlap for node in history(self)} - {"none"}
        return "none" if not found else "anywhere" if self._scatters or "anywhere" in found else "near"

    @cached_property
    def chunks(self) -> "Chunks | None":
        """The elements by the part of a source in which they begin, such as a row group.

        None if no source has parts, or if this step leaves no arithmetic for them.
        """
        return None

    spread: float = 1
    """How far apart in the input two neighbours of the output may lie: 1 if the order stays, inf if anywhere."""

    _scatters = False
    """Whether elements that share data may be anywhere after this step."""

    def clear_after(self, index: int, ask: "ClearAfter") -> int:
        """See the function `clear_after`; called if elements share data with neighbours.

        Args:
            index: An element.
            ask: Answers for the nodes before this one.
        """
        return max(ask(node, index) for node in history(self))


@dataclass(frozen=True, eq=False)
class Start(Node):
    """A step without inputs: the elements of a source."""

    data: Any
    name: str
    """The constructor that the user called: `from_npy`."""

    @property
    def verb(self) -> str:
        """The constructor."""
        return self.name

    @property
    def label(self) -> str:
        """The constructor, and what the source says of itself."""
        says_what: bool = type(self.data).__str__ is not object.__str__  # type: ignore[comparison-overlap]
        return printable(f"{self.name}({self.data})") if says_what else self.name


@dataclass(frozen=True, eq=False)
class OneInput(Node):
    """A step with one input."""

    source: Node

    @cached_property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        """The source."""
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Grouping(OneInput):
    """A step whose elements are groups of elements of the input, such as batches.

    It says which, and makes a group of any elements, so that `on_error` can leave out or replace one of a group.
    """

    gives_groups = True
    takes_stand_ins = True
    """Another element of its group can replace one, whatever their sizes are."""

    @abstractmethod
    def group(self, epoch: int, index: int) -> Indices:
        """The input's elements that element `index` is made of, where positions say that; shape `(n,)`."""

    @abstractmethod
    def grouped(self, epoch: int, index: int, numbers: Indices, columns: Sequence[Sequence[Any]]) -> Leaves:
        """Makes element `index` of some elements: those of its group that did not fail, or that replace others.

        Args:
            epoch: The epoch.
            index: The element.
            numbers: The input's elements, shape `(n,)`.
            columns: For each leaf, its values in these elements.
        """

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Makes one group after the other."""
        for row, index in zip(out.row_numbers(), indices.tolist(), strict=True):
            numbers = self.group(epoch, index)
            columns = reader.inputs[0].columns(epoch, numbers)
            out.put(row, self.grouped(epoch, index, numbers, columns), are_new=True)

    def shortened(self) -> "Grouping":
        """This step, with a place for groups that some elements are missing from."""
        return self

    def checked(self, source: Node) -> Node:
        """The input's elements, of which those fail that this step refuses."""
        return source


@dataclass(frozen=True, eq=False)
class ManyInputs(Node):
    """A step with any number of inputs."""

    sources: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        """The sources."""
        return self.sources


@dataclass(frozen=True, eq=False)
class Called:
    """A step that several verbs make. It stands before the other base classes."""

    name: str
    """The verb that the user called."""
    text: str
    """Its arguments, for `repr`."""

    @property
    def verb(self) -> str:
        """The verb that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"{self.name}({self.text})"


class InPlaceOf:
    """Steps that stand in place of one of the user's, with its name. It comes before the other base classes."""

    whole: Any
    """The step, as the user wrote it."""

    @property
    def verb(self) -> str:
        """That of the step."""
        return self.whole.verb  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """That of the step."""
        return self.whole.label  # type: ignore[no-any-return]


class OneToOne(Node):
    """A step whose element `i` is made of element `i` of each input."""

    goes_by_position = False

    @cached_property
    def chunks(self) -> "Chunks | None":
        """Those of the first input that has some, unless one is a stream."""
        if self.access == "stream":
            return None
        return next((each.chunks for each in self.inputs if each.chunks is not None), None)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The same elements of every input."""
        return [Demand(number, epoch, indices) for number in range(len(self.inputs))]

    def unshuffled(self) -> tuple[Node, int, bool] | None:
        """This step over its inputs, if all of these have one order."""
        found = [each.unshuffled() for each in self.inputs]
        first = found[0] if found else None
        if first is None or any(each is None or each[1:] != first[1:] for each in found):
            return None
        return self.over(*(each[0] for each in found if each is not None)), *first[1:]


class Reorder(Node):
    """A step that gives elements of its inputs unchanged, in another order or number.

    A concrete class is a `@dataclass(frozen=True, eq=False)` and defines `demand`; reading follows from it, also of
    rows of elements alone. `demand` asks inputs for their lengths and specs only. The class also defines `length` if
    that is not the input's, `clear_after` if elements move or repeat, and `sequence` if it takes streams.
    """

    moves = True
    gives_inputs = True
    takes_any_shape = True
    treats_leaves_alike = True

    def over_pairs(self, pairs: Node) -> Node | None:
        """Moves pairs as elements."""
        return self.over(pairs) if self.goes_by_position else None

    @cached_property
    def spec(self) -> Spec:
        """The inputs' specs, merged."""
        first, *rest = self.inputs
        spec = first.spec
        for number, node in enumerate(rest, 1):
            other = node.spec
            try:
                spec = spec.merged(other)
            except SpecError as error:
                raise SpecError(self._unlike(number, str(error))) from None
        return spec

    def _unlike(self, number: int, difference: str) -> str:
        sizes = ""
        if "leaf of (" in difference and "None" in difference:
            sizes = " If sizes may differ: map(lambda e: e, element_spec=first.element_spec)."
        return (
            f"{self.verb}() needs datasets whose elements look the same, but dataset {number} differs from those "
            f"before it: {difference}. Use map() or cast() to make them alike.{sizes}"
        )

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Each input writes its elements into their rows.

        Raises:
            SpecError: `demand` leaves out elements, so rows would have no content.
        """
        count = 0
        for need in self.demand(epoch, indices):
            rows = out if need.rows is None else out.take(need.rows)
            reader.inputs[need.input].fill_place(self.spec, need.epoch, need.indices, rows, gather)
            count += len(need.indices)
        if count != len(indices):
            raise SpecError(
                f"{located(self)} says where {count} of {len(indices)} elements come from, and the others would have "
                "no content. It has fewer elements than its length says."
            )

    @property
    def memory(self) -> Memory:
        """One element of each input whose places are smaller than those here: it is read first, then copied."""
        places = [leaf.max_shape for leaf in self.spec.leaves]
        others = [each.spec for each in self.inputs if [leaf.max_shape for leaf in each.spec.leaves] != places]
        return working_memory(sum(spec.nbytes for spec in others))

    def row_count(self, epoch: int, index: int) -> int | None:
        """That of the input's element."""
        if not self.spec.is_sized:
            return None  # batches beside ragged elements go into places of another kind, whole
        number, epoch, index = self.demand_one(epoch, index)
        return self.inputs[number].row_count(epoch, index)

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """The input writes the rows of its element."""
        number, epoch, index = self.demand_one(epoch, index)
        reader.inputs[number].fill_rows(epoch, index, rows, out, gather)

    def demand_one(self, epoch: int, index: int) -> tuple[int, int, int]:
        """`demand` of one element: the input's number, and its epoch and index there."""
        (need,) = self.demand(epoch, np.array([index], np.int64))
        return need.input, need.epoch, int(need.indices[0])


def randomness_below(node: Node) -> Randomness:
    """That of a node which draws nothing itself: the inputs', and whether it redraws."""
    below = [each.randomness for each in node.inputs]
    reorders = node.redraws or any(each.reorders for each in below)
    widest = max(below, key=lambda each: each.stride, default=Randomness())
    return widest._replace(depth=max((each.depth for each in below), default=0), reorders=reorders)


def located(node: Node) -> str:
    """The step and the user's line, if it has one: `map(decode) at train.py:41`."""
    where = getattr(node, "where", "")
    return f"{node.label} at {where}" if where else node.label


def history(node: Node) -> tuple[Node, ...]:
    """The inputs of a node; for a complete cache, which reads no input any more, the plan that it was made by."""
    origin: Node | None = getattr(node, "origin", None)
    return node.inputs if origin is None else (origin,)


def walk(node: Node, below: Callable[[Node], Sequence[Node]] = lambda each: each.inputs) -> Iterator[Node]:
    """Yields each node of a plan once, from the last step to the data.

    The place of a node in this order is its number, in `WorkerStatus` and in reports.

    Args:
        node: The last step.
        below: Returns the nodes before one: its inputs, or its `history`.
    """
    seen: set[int] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            stack.extend(reversed(below(each)))


def upwards(node: Node) -> Iterator[Node]:
    """Yields each node of a plan once, each after its inputs."""
    seen: set[int] = set()
    stack = [(node, False)]
    while stack:
        each, has_inputs = stack.pop()
        if has_inputs:
            yield each
        elif id(each) not in seen:
            seen.add(id(each))
            stack.append((each, True))
            stack.extend((below, False) for below in reversed(each.inputs))


def allow_depth(plan: Node) -> None:
    """Lets Python nest calls as deep as a plan is, because each step calls the one below it. Its limit never falls."""
    depths: dict[int, int] = {}
    for each in upwards(plan):
        depths[id(each)] = 1 + max((depths[id(below)] for below in each.inputs), default=0)
    needed = CALLS + CALLS_PER_STEP * depths[id(plan)]
    if needed > sys.getrecursionlimit():
        sys.setrecursionlimit(needed)


def arguments(node: Node) -> dict[str, Any]:
    """The fields of a node by name, without its inputs and without fields that elements do not depend on (`repr`)."""
    return {
        field.name: getattr(node, field.name)
        for field in fields(node)  # type: ignore[arg-type]  # every concrete node is a dataclass
        if field.name not in ("source", "sources") and field.repr
    }


POSITION_LIMIT: Final = 1 << 62
"""Positions are below it, so arithmetic on them fits into 64 bits."""


def finite_length(node: Node) -> int:
    """The length of a node that is known to end; checked where the step that needs it was written."""
    assert isinstance(node.length, int)
    return node.length


@dataclass(frozen=True, eq=False)
class _OfLength(OneInput):
    """Its input with another length, to ask the step after it for its own."""

    count: int | float

    verb = "of_length"

    @property
    def length(self) -> Length:
        """The given one."""
        return self.count


def most_elements(node: Node) -> int | float:
    """The most elements of an epoch of a stream: its length, or the one that it would have over an endless stream.

    Workers find the end of an epoch by this arithmetic, so they read nothing that no element is made of:
    `take(6).skip(6)` is empty whatever the stream is. Reading in order ends at the same place.
    """
    if node.length is not None:
        return node.length
    if not (node.traits.is_parallel and isinstance(node, OneInput)):
        return math.inf
    most = node.over(_OfLength(node.source, most_elements(node.source))).length
    return math.inf if most is None else most


ClearAfter = Callable[[Node, int], int]


def clear_after(node: Node, index: int) -> int:
    """The first index above `index` whose element shares no data with elements up to `index`."""
    known: dict[tuple[int, int], int] = {}  # a node may be used many times

    def ask(each: Node, at: int) -> int:
        if each.overlap == "none":
            return at + 1
        if each.overlap == "anywhere":
            return finite_length(each)
        if (id(each), at) not in known:
            known[id(each), at] = each.clear_after(at, ask)
        return known[id(each), at]

    return ask(node, index)
