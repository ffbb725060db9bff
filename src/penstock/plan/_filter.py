"""Steps after which the number of elements is unknown: `filter` and `flat_map`."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from penstock.base._errors import ElementError, SpecError, is_untouched, words_of
from penstock.base._random import seeded_globals
from penstock.base._spec import Spec
from penstock.memory._rows import copied
from penstock.plan._conform import MisfitError, begun, conformed, observed
from penstock.plan._map import OfFunction
from penstock.plan._node import Access, Elements, Length, OneInput, Traits
from penstock.plan._reader import OpenSources, Reader

_NOTHING = object()
_UNTOLERATED = (
    ". on_error= does not set it aside: some elements made of it may be in batches already, and the number of those "
    "to come is unknown. Do what may fail in a map() before flat_map(), or catch it there and return []."
)


def judged(pair: Spec) -> Spec:
    """The spec of an element, given that of a pair of the element and a verdict."""
    return Spec(pair.leaves[:-1], pair.structure.children()[0])


@dataclass(frozen=True, eq=False)
class Sequential(OneInput):
    """A step whose elements are only available one after the other."""

    access: ClassVar[Access] = "stream"
    """The position of an element depends on all before it."""

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
class FlatMap(Sequential, OfFunction):
    """The elements that a function makes of each element of the input, one after the other."""

    is_tolerated: bool = field(default=False, repr=False)
    """The loader goes on after elements that fail, but not after one that fails here; the message says so."""

    verb = "flat_map"

    @property
    def label(self) -> str:
        """As the user wrote it: `flat_map(read_lines)`."""
        return f"flat_map({self.function_name})"

    @property
    def known_spec(self) -> Spec | None:
        """The declared spec, or the one found; None before."""
        return self.spec if self.declared is not None or "spec" in vars(self) else None

    @cached_property
    def spec(self) -> Spec:
        """The declared spec, or that of the first element. Runs the function to find it."""
        if self.declared is not None:
            return self.declared
        sources = OpenSources(self)
        try:
            for index, value in self._values(Reader(self, sources, isolation=seeded_globals), 0):
                try:
                    return observed(value).loosened() if self.is_loose else observed(value)
                except MisfitError as found:
                    raise self._misfit(found, f"element {index}", None) from None
        finally:
            sources.close()
        raise SpecError(
            f"{self.label} at {self.where} gave no element at all, so what they look like is unknown. Say it: "
            "element_spec=penstock.ArraySpec(shape, dtype), or a tree of them."
        )

    batch_size = 1
    traits = Traits(runs_code=True)
    ends_guards = True

    _scatters = True
    _makes = "gave"

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Runs the function on each element, and checks each result."""
        for index, value in self._values(reader, epoch):
            try:
                leaves = conformed(self.spec, value)
            except MisfitError as found:
                raise self._misfit(found, f"element {index}", self.spec) from None
            yield leaves

    def _values(self, reader: Reader, epoch: int) -> Generator[tuple[int, Any], None, None]:
        """The results of the function, each with the number of its element."""
        source, words = reader.inputs[0], reader.status.words
        words[0], words[1] = reader.number + 1, epoch
        structure = source.spec.structure
        for index, leaves in enumerate(source.sequence(epoch)):
            words[0], words[2] = reader.number + 1, index
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
