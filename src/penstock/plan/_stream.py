"""Streams: elements that come one after the other, and cannot be had by index.

`Generate` is where a stream begins. `Inlet` is where a program that workers run side by side takes over from what is
read in one place (`run/_feed.py`): to the steps above it, it looks like a source with random access, of which a
window is there.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from penstock.base._errors import ElementError, SpecError, StateError, is_untouched, words_of
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, Leaves, copied
from penstock.plan._conform import MisfitError, begun, conformed, text_of
from penstock.plan._node import Access, Demand, Length, Node, OneToOne

if TYPE_CHECKING:
    from penstock.memory._rows import Rows
    from penstock.plan._reader import Gather, Reader


_NOTHING = object()
_OF_A_TUPLE = type(iter(()))


def _hint(elements: Iterator[Any]) -> str:
    """What a function that returns one element, as the `step` of a simulator, is to be instead."""
    if not isinstance(elements, _OF_A_TUPLE):
        return ""
    return " It returned a tuple, whose parts are taken for elements: a generator yields each, one after the other."


class StreamSource(ABC):
    """Where a stream's elements come from: something that can be begun anew for each epoch.

    Like a `Source`, it is a *handle*: cheap to make, and without anything open. What `iterate` returns is open; it is
    used by one thread at a time, and closed (`close()`, if it has one) when it is not needed any more.

    An iterator with `get_state()`, a non-negative integer that says where it is, and `set_state(integer)`, which goes
    there, is resumed by these; any other by beginning anew and skipping.
    """

    length: Length = None
    """The number of elements of an epoch, if it is known without reading them."""
    travels: bool = True
    """Whether it may be run in another process."""

    @property
    @abstractmethod
    def element_spec(self) -> Tree:
        """The tree of `ArraySpec` of an element. May begin an epoch and read its first element, once."""

    @property
    def is_declared(self) -> bool:
        """Whether the user said what elements look like, so that asking for it reads nothing."""
        return True

    @abstractmethod
    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Begins an epoch.

        Each element is a tree of arrays, good until the next one is asked for. What it raises is told with the
        element's number.
        """

    @abstractmethod
    def describe(self, index: int) -> str:
        """An element in the user's terms: `element 7 of readings`. For messages."""


@final
@dataclass(frozen=True, eq=False)
class Generate(Node):
    """The step at the bottom of a stream: elements as a source gives them."""

    data: StreamSource
    name: str
    """The user's verb: `from_generator`."""
    where: str
    """The user's line: `train.py:41`."""

    @property
    def verb(self) -> str:
        """The constructor that the user called."""
        return self.name

    @property
    def label(self) -> str:
        """The verb, and what the source says of itself."""
        return f"{self.name}({self.data})" if type(self.data).__str__ is not object.__str__ else self.name

    @property
    def access(self) -> Access:
        """Elements come one after the other."""
        return "stream"

    def _find_length(self) -> Length:
        return self.data.length

    @property
    def known_spec(self) -> Spec | None:
        """What was declared, or found."""
        return self.spec if self.data.is_declared else self.__dict__.get("spec")

    def _find_spec(self) -> Spec:
        try:
            return Spec.of(self.data.element_spec)
        except BaseException as error:  # of the user's function, which is begun to look at its first element
            if is_untouched(error):
                raise
            raise ElementError(
                f"{self.label} at {self.where} failed at element 0 of epoch 0: {words_of(error)}"
            ) from error

    def settings(self) -> dict[str, Any]:
        """What it is called, and how long it is if that was said: an epoch's length may differ from run to run."""
        return {"name": self.label, "length": self.length}

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Nothing: there are no inputs."""
        return ()

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Streams are not read by index."""
        raise NotImplementedError(f"{self.label} has no random access")

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """Begins an epoch, and looks at every element."""
        trace = reader.trace.words
        elements, (index, consumed) = None, reader.origin
        try:
            while True:
                trace[0], trace[1], trace[2] = reader.number + 1, epoch, index
                try:
                    if elements is None:
                        elements = self._begin(epoch, index, consumed)
                        tell = getattr(elements, "get_state", None)
                    value = next(elements, _NOTHING)
                    if value is _NOTHING:
                        break
                    if tell is not None:
                        reader.consumed = operator.index(tell())
                except BaseException as error:
                    if is_untouched(error):
                        raise
                    raise ElementError(
                        f"{self.label} at {self.where} failed at element {index} of epoch {epoch}: {words_of(error)}"
                    ) from error
                try:
                    leaves = conformed(self.spec, value)
                except MisfitError as found:
                    raise SpecError(
                        f"{self.label} at {self.where} gave {found} as element {index} of epoch {epoch}"
                        f"{text_of(found, self.spec, is_declared=self.data.is_declared)}{_hint(elements)}"
                    ) from None
                yield leaves
                index += 1
        finally:
            close = getattr(elements, "close", None)
            if close is not None:
                close()

    def _begin(self, epoch: int, index: int, consumed: int) -> Iterator[Any]:
        elements = begun(self.data.iterate, epoch)
        if index:
            if not hasattr(elements, "set_state"):
                raise StateError(
                    f"The state has a cursor, by which {self.label} at {self.where} is to go to element {index}, but "
                    "it gives an iterator without set_state(). Give one that has it, as when the state was saved."
                )
            elements.set_state(consumed)  # it told where it was
        return elements


@final
@dataclass(frozen=True, eq=False)
class Promised(OneToOne):
    """A stream of which the user said how long it is; another length is an error."""

    source: Node
    count: int | float
    where: str
    """The user's line: `train.py:41`."""

    @property
    def verb(self) -> str:
        """That of the stream."""
        return self.source.verb

    @property
    def label(self) -> str:
        """That of the stream, and what was said."""
        return f"{self.source.label}, length={self.count}"

    @property
    def is_parallel(self) -> bool:
        """It counts."""
        return False

    def settings(self) -> dict[str, Any]:
        """What was said."""
        return {"length": self.count}

    def _find_length(self) -> Length:
        return self.count

    def _find_spec(self) -> Spec:
        return self.source.spec

    @property
    def known_spec(self) -> Spec | None:
        """That of the stream."""
        return self.source.known_spec

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Streams are not read by index."""
        raise NotImplementedError(f"{self.label} has no random access")

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """Counts; the last element is given when it is known that it is."""
        elements, index = reader.inputs[0].sequence(epoch), 0
        for leaves in elements:
            index += 1
            if index == self.count:
                leaves = [copied(leaf) for leaf in leaves]
            if index == self.count and next(elements, None) is not None:
                raise SpecError(
                    f"{self.source.label} at {self.where} gives more elements than length={self.count}. Correct the "
                    f"length, leave it out, or cut with take({self.count})."
                )
            yield leaves
        if index < self.count:
            raise SpecError(
                f"{self.source.label} at {self.where} ended after {index} elements of epoch {epoch}, but "
                f"length={self.count} was said. Correct the length, or leave it out."
            )


@final
@dataclass(frozen=True, eq=False)
class Inlet(Node):
    """Stands for a stream step whose elements are made elsewhere, and lie in a window that workers see."""

    stands_for: str
    """The label of that step."""
    known: Spec
    """What elements look like."""
    count: Length
    """How many there are: infinity until the end has been seen."""
    depth: int
    """The step's `random_depth`."""
    differs: bool
    """Whether its elements may be others in another epoch, or in another order."""
    size: int | None
    """The step's `batch_size`."""

    @property
    def verb(self) -> str:
        """That of the step that it stands for."""
        return self.stands_for.partition("(")[0]

    @property
    def label(self) -> str:
        """The step that it stands for."""
        return self.stands_for

    def _find_length(self) -> Length:
        return self.count

    def _find_spec(self) -> Spec:
        return self.known

    @property
    def known_spec(self) -> Spec:
        """Found before."""
        return self.known

    @property
    def random_depth(self) -> int:
        """As in the plan that this is a part of."""
        return self.depth

    @property
    def batch_size(self) -> int | None:
        """As in the plan that this is a part of."""
        return self.size

    @property
    def changes_order(self) -> bool:
        """As far as one can tell: what is left of other elements stands in other places, too."""
        return self.differs

    @property
    def data(self) -> "Inlet":
        """Itself, which describes an element for messages."""
        return self

    def describe(self, index: int) -> str:
        """An element of the step."""
        return f"element {index} of {self.stands_for}"

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Nothing that is here."""
        return ()

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Copies from the window."""
        assert reader.window is not None
        reader.window.read(indices, out)


def cut(node: Node, count: Length) -> tuple[Node, Node]:
    """Cuts a stream into what workers run side by side, and what runs in one place.

    Args:
        node: The last step of a stream.
        count: The length of the part that runs in one place; infinity while that is not known.

    Returns:
        The steps from the end, over an `Inlet`; and the step that it stands for.
    """
    if not (node.is_parallel and node.access == "stream"):
        differs = node.changes_order or node.random_depth > 0
        return Inlet(node.label, node.spec, count, node.random_depth, differs, node.batch_size), node
    (source,) = node.inputs
    above, below = cut(source, count)
    clone = replace(node, source=above)  # type: ignore[type-var]  # every concrete node is a dataclass
    clone.__dict__["spec"] = node.spec  # whose places are what batches lie in, however long the stream turns out
    return clone, below


def closed(node: Node, length: int) -> Node:
    """The steps over an inlet, for an epoch that turned out to have so many elements."""
    if isinstance(node, Inlet):
        return replace(node, count=length)
    (source,) = node.inputs
    clone = replace(node, source=closed(source, length))  # type: ignore[type-var]
    clone.__dict__["spec"] = node.spec
    return clone


def needed(node: Node, index: int) -> tuple[int, int]:
    """Which elements `[first, stop)` of the inlet below a step one of its elements needs."""
    indices = np.array([index], np.int64)
    while node.inputs:
        (need,) = node.demand(0, indices)
        (node,) = node.inputs
        indices = need.indices
    return (int(indices[0]), int(indices[-1]) + 1) if len(indices) else (0, 0)
