"""The idea of the library: a node says what element `index` of epoch `epoch` is.

A plan is a tree of nodes, each a frozen dataclass that knows its inputs, its length, its spec, and which
elements of its inputs an element needs (`demand`). Nothing about a run is in here: not the executor, not
the number of workers, not the batch that asked. From that follow random access through every step, a
checkpoint that is a position, and work that can be done again.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, Rows

if TYPE_CHECKING:
    from penstock.plan._reader import Gather, Reader
    from penstock.plan._source import Openable

Access = Literal["random", "stream"]
Length = int | float | None
"""An int, `math.inf`, or None where nobody knows."""


class Demand(NamedTuple):
    """Elements of one input that some elements of a node are made of."""

    input: int
    """Which of the node's inputs."""
    epoch: int
    """The epoch of the input; another than the node's only below `repeat`."""
    indices: Indices
    """The input's elements, shape `(n,)`."""
    rows: Indices | slice | None = None
    """Which of the elements asked for they are; None where one element is one element, in order."""


class Node(ABC):
    """One step of a plan. Final classes below; this one is abstract and holds what they share."""

    @cached_property
    def inputs(self) -> tuple["Node", ...]:
        """The nodes that this one reads: its field `source`, or its field `sources`, or none."""
        source: Node | None = getattr(self, "source", None)
        sources: tuple[Node, ...] = getattr(self, "sources", ())
        return sources if source is None else (source,)

    @property
    def shown(self) -> tuple["Node", ...]:
        """The nodes below it where a plan is printed: its inputs, or what the user wrote in their place."""
        return self.inputs

    @property
    def made_by(self) -> tuple["Node", ...]:
        """The nodes whose work this is: its inputs, also where it keeps their work and needs them no more."""
        return self.inputs

    @property
    @abstractmethod
    def verb(self) -> str:
        """The user's name for this step: `shuffle`, `map`."""

    @cached_property
    def length(self) -> Length:
        """The number of elements of one epoch. Never reads data, but where it says so."""
        return self._find_length()

    @abstractmethod
    def _find_length(self) -> Length: ...

    @cached_property
    def spec(self) -> Spec:
        """Structure, shapes and dtypes of an element. May run a mapped function on element 0, once."""
        return self._find_spec()

    @abstractmethod
    def _find_spec(self) -> Spec: ...

    @abstractmethod
    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Which elements of the inputs the given elements need; arithmetic alone."""

    def announced(self, reader: "Reader", epoch: int, indices: Indices) -> Iterable[Demand]:
        """Which elements of the inputs will be read for the given ones, as far as is known now."""
        return self.demand(epoch, indices)

    @abstractmethod
    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Writes the given elements into rows of `out`, or has `gather` do so when it runs."""

    def part_count(self, epoch: int, index: int) -> int | None:
        """The number of parts that element `index` can be filled in, along its first axis; None for none.

        A batch has one part for each element in it, so that several workers can fill the same batch.
        """
        return None

    def fill_parts(
        self, reader: "Reader", epoch: int, index: int, parts: Indices, out: "Rows", gather: "Gather"
    ) -> None:
        """Writes the given parts of one element into rows of `out`, where a row is one part."""
        raise NotImplementedError(f"{self.verb} has no parts")

    def sequence(self, reader: "Reader", epoch: int) -> Generator["Leaves", None, None]:
        """Gives the elements of an epoch one after the other, as lists of leaves; asked of streams alone.

        What it gives is good until the next one is asked for, and must be copied by whoever keeps it.
        """
        raise NotImplementedError(f"{self.verb} of a stream")

    # What a plan is asked about itself.

    @property
    def is_parallel(self) -> bool:
        """Whether, over a stream, workers run this step side by side.

        Such a step needs to know positions alone, and elements that follow each other. Other steps see a stream's
        elements in one place, one after the other.
        """
        return False

    @property
    def may_hold_gil(self) -> bool:
        """Whether it runs Python of the user's, of which nobody knows whether threads can run it side by side."""
        return False

    @property
    def computes(self) -> bool:
        """Whether an element takes computation, a function or decoding, and is not merely read."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether it waits for a server."""
        return False

    @property
    def access(self) -> Access:
        """`"random"` if any element can be had by its index, else `"stream"`."""
        return "random" if all(node.access == "random" for node in self.inputs) else "stream"

    @property
    def known_spec(self) -> Spec | None:
        """The spec, or None if finding it would run a user's function."""
        return self.spec if all(node.known_spec for node in self.inputs) else None

    @property
    def label(self) -> str:
        """This step as a user wrote it, for messages and for `repr`: `map(decode)`."""
        settings = (str(value) for value in self.settings().values() if value is not None)
        return f"{self.verb}({', '.join(settings)})"

    def settings(self) -> dict[str, Any]:
        """The arguments that make this step what it is, without its inputs; values print short."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]  # every concrete node is a dataclass
            if field.name not in ("source", "sources")
        }

    def fingerprint_parts(self) -> dict[str, Any]:
        """What elements depend on, by name; see `base/_fingerprint.py`. Not the user's line."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]  # every concrete node is a dataclass
            if field.name not in ("where", "traits")
        }

    @property
    def batch_size(self) -> int | None:
        """How many elements a full batch has, if this step gives batches; 1 if not, and None where nobody knows."""
        sizes = {node.batch_size for node in self.made_by}
        return sizes.pop() if len(sizes) == 1 else None if sizes else 1

    @property
    def opens(self) -> "Openable | None":
        """What a run opens for this step, once a process, and reads by; None where it needs nothing."""
        return None

    @property
    def kept_nbytes(self) -> int:
        """Bytes that all workers share for this step, and that stay between epochs; known before the run."""
        return 0

    @property
    def is_hidden(self) -> bool:
        """Whether this is a part of the step after it, of which a user knows nothing."""
        return False

    @property
    def random_depth(self) -> int:
        """How many `random_map` steps are on the way from here to the data, this one included."""
        return max((node.random_depth for node in self.inputs), default=0)

    @property
    def changes_order(self) -> bool:
        """Whether the order of elements differs from epoch to epoch."""
        return any(node.changes_order for node in self.inputs)

    @property
    def overlaps(self) -> bool:
        """Whether elements may share data with their neighbours, as windows do."""
        return any(node.overlaps for node in self.inputs)

    @property
    def scatters(self) -> bool:
        """Whether nobody can say which element of its inputs an element is, or is made of."""
        return False

    def clear_after(self, index: int) -> int:
        """The first index above `index` whose element shares no data with elements up to `index`."""
        return max((node.clear_after(index) for node in self.inputs), default=index + 1)

    @property
    def scratch_nbytes(self) -> int:
        """Bytes that one worker keeps for this step besides the slots; known before the run."""
        return 0

    @property
    def held_nbytes(self) -> int:
        """The same where `sequence` gives its elements; asked of the part of a stream that is read in one place."""
        return self.scratch_nbytes


class OneToOne(Node):
    """A step whose element `i` is made of element `i` of each input."""

    def _find_length(self) -> Length:
        return self.inputs[0].length

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The same elements of every input."""
        return [Demand(number, epoch, indices) for number in range(len(self.inputs))]


class Reorder(Node):
    """A step that gives elements of its inputs as they are, in another order or number.

    A concrete class says which, by `demand`; reading follows from that.
    """

    def _find_spec(self) -> Spec:
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
        """What is said where the elements of an input do not look like those of the inputs before it."""
        return (
            f"{self.verb}() needs datasets whose elements look the same, but dataset {number} differs from those "
            f"before it: {difference}. Use map() or cast() to make them alike."
        )

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Has each input write its elements into the rows that they belong to."""
        for need in self.demand(epoch, indices):
            rows = out if need.rows is None else out.take(need.rows)
            reader.inputs[need.input].fill_place(self.spec, need.epoch, need.indices, rows, gather)

    @property
    def scratch_nbytes(self) -> int:
        """An element of each input whose places are smaller than those here: it is read first, and then put there."""
        places = [leaf.max_shape for leaf in self.spec.leaves]
        return sum(each.spec.nbytes for each in self.inputs if [leaf.max_shape for leaf in each.spec.leaves] != places)

    def part_count(self, epoch: int, index: int) -> int | None:
        """That of the input's element."""
        if any(leaf.max_shape is None for leaf in self.spec.leaves):
            return None  # batches beside ragged elements: they are put into places of another kind, whole
        number, epoch, index = self.demand_one(epoch, index)
        return self.inputs[number].part_count(epoch, index)

    def fill_parts(
        self, reader: "Reader", epoch: int, index: int, parts: Indices, out: "Rows", gather: "Gather"
    ) -> None:
        """Has the input write the parts of its element."""
        number, epoch, index = self.demand_one(epoch, index)
        reader.inputs[number].fill_parts(epoch, index, parts, out, gather)

    def demand_one(self, epoch: int, index: int) -> tuple[int, int, int]:
        """Where one element comes from: the input's number, and its epoch and index there. What `demand` says."""
        (need,) = self.demand(epoch, np.array([index], np.int64))
        return need.input, need.epoch, int(need.indices[0])


def walk(node: Node) -> Iterator[Node]:
    """A plan's nodes, from the last step to the data; one that is used twice comes twice."""
    yield node
    for each in node.inputs:
        yield from walk(each)


def makers(node: Node) -> Iterator[Node]:
    """As `walk`, with the nodes whose work is kept and that are not needed any more."""
    yield node
    for each in node.made_by:
        yield from makers(each)


POSITION_LIMIT: Final = 1 << 62
"""Positions are below it, so that arithmetic on them fits into 64 bits."""


def finite_length(node: Node) -> int:
    """The length of a node that is known to end; checked where the step that needs it was written."""
    assert isinstance(node.length, int)
    return node.length


def clear_within(node: Node, index: int) -> int:
    """The node's `clear_after`, and no later than its end."""
    clear = node.clear_after(index)
    return min(clear, node.length) if isinstance(node.length, int) else clear


def total(lengths: Sequence[Length]) -> Length:
    """The sum of lengths: unknown if one is unknown, infinite if one is infinite."""
    return None if None in lengths else sum(length for length in lengths if length is not None)
