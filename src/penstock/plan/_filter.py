"""Steps after which nobody knows how many elements there are: `filter` and `flat_map`."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from penstock.base._errors import ElementError, SpecError, is_untouched, words_of
from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, copied
from penstock.plan._conform import MisfitError, begun, conformed, observed, text_of
from penstock.plan._map import function_name
from penstock.plan._node import Access, Demand, Length, Node
from penstock.plan._reader import OpenSources, Reader

if TYPE_CHECKING:
    from penstock.memory._rows import Rows
    from penstock.plan._reader import Gather


_NOTHING = object()
_UNTOLERATED = (
    ". on_error= does not set it aside: some of what was made of this element may be in batches already, and nobody "
    "knows how much was to come. Do what may fail in a map() before flat_map(), or catch it there and return []."
)


def judged(pair: Spec) -> Spec:
    """What elements look like, of which there are pairs of an element and what was said of it."""
    return Spec(pair.leaves[:-1], pair.structure.children()[0])


class Sequential(Node):
    """A step whose elements can only be had one after the other."""

    @property
    def access(self) -> Access:
        """Where an element is depends on all before it."""
        return "stream"

    def _find_length(self) -> Length:
        return None if self.inputs[0].length != 0 else 0

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Nobody knows."""
        return ()

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Streams are not read by index."""
        raise NotImplementedError(f"{self.label} has no random access")


@final
@dataclass(frozen=True, eq=False)
class Filter(Sequential):
    """The elements of which a function says True. The input gives pairs of an element and the verdict."""

    source: Node

    @property
    def verb(self) -> str:
        """`filter`."""
        return "filter"

    @property
    def label(self) -> str:
        """As the user wrote it: `filter(is_sharp)`."""
        return self.source.label

    def settings(self) -> dict[str, Any]:
        """None: the input has them."""
        return {}

    @property
    def known_spec(self) -> Spec | None:
        """That of the elements before it."""
        return self.spec if self.source.known_spec else None

    def _find_spec(self) -> Spec:
        return judged(self.source.spec)

    def sequence(self, reader: Reader, epoch: int) -> Generator[Leaves, None, None]:
        """Leaves out the others. Over random access, it can begin where it was."""
        if self.source.access == "stream":
            yield from (leaves[:-1] for leaves in reader.inputs[0].sequence(epoch) if leaves[-1])
            return
        _, first = reader.origin
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch, first), first + 1):
            if leaves[-1]:
                reader.consumed = number
                yield leaves[:-1]


@final
@dataclass(frozen=True, eq=False)
class FlatMap(Sequential):
    """The elements that a function makes of each element of the input, one after the other."""

    source: Node
    function: Callable[[Any], Iterable[Any]]
    declared: Spec | None
    """What the user said that elements look like; None to find out from the first."""
    where: str
    """The user's line: `train.py:41`."""
    is_tolerated: bool = False
    """Whether the loader goes on after elements that fail: not after one that fails here, which is to be said."""

    @property
    def verb(self) -> str:
        """`flat_map`."""
        return "flat_map"

    @property
    def label(self) -> str:
        """As the user wrote it: `flat_map(read_lines)`."""
        return f"flat_map({function_name(self.function)})"

    def settings(self) -> dict[str, Any]:
        """A function is known by its name alone."""
        return {"function": function_name(self.function)}

    @property
    def known_spec(self) -> Spec | None:
        """What was declared or found; None before."""
        return self.declared or self.__dict__.get("spec")

    def _find_spec(self) -> Spec:
        return self._probed if self.declared is None else self.declared

    @property
    def batch_size(self) -> int:
        """What a function makes are elements."""
        return 1

    @property
    def scatters(self) -> bool:
        """A function makes as many elements as it likes."""
        return True

    @cached_property
    def _probed(self) -> Spec:
        sources = OpenSources(self.source)
        try:
            reader = Reader(self.source, sources, isolation=seeded_globals)
            for index, value in self._values(reader, 0):
                try:
                    return observed(value)
                except MisfitError as found:
                    raise self._misfit(found, index, None) from None
        finally:
            sources.close()
        raise SpecError(
            f"{self.label} at {self.where} gave no element at all, so what they look like is unknown. Say it: "
            "element_spec=penstock.ArraySpec(shape, dtype), or a tree of them."
        )

    def sequence(self, reader: Reader, epoch: int) -> Generator[Leaves, None, None]:
        """Runs the function on each element, and looks at everything that it gives."""
        reader.trace.words[0], reader.trace.words[1] = reader.number + 1, epoch
        for index, value in self._values(reader.inputs[0], epoch, reader):
            try:
                leaves = conformed(self.spec, value)
            except MisfitError as found:
                raise self._misfit(found, index, self.spec) from None
            yield leaves

    def _values(
        self, source: Reader, epoch: int, reader: Reader | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """What the function gives, with the number of the element that it was made of."""
        structure = source.spec.structure
        for index, leaves in enumerate(source.sequence(epoch)):
            if reader is not None:
                reader.trace.words[0], reader.trace.words[2] = reader.number + 1, index
            made = None
            while True:
                try:
                    if made is None:
                        made = begun(self.function, structure.unflatten([copied(leaf) for leaf in leaves]))
                    value = next(made, _NOTHING)
                    if value is _NOTHING:
                        break
                except BaseException as error:
                    if is_untouched(error):
                        raise
                    raise ElementError(
                        f"{self.label} at {self.where} failed on element {index} of epoch {epoch}: "
                        f"{words_of(error)}{_UNTOLERATED if self.is_tolerated else ''}"
                    ) from error
                yield index, value

    def _misfit(self, found: MisfitError, index: int, spec: Spec | None) -> SpecError:
        return SpecError(
            f"{self.label} at {self.where} gave {found} for element {index}"
            f"{text_of(found, spec, is_declared=self.declared is not None)}"
        )
