"""Streams: elements that come one after the other, without random access.

`Generate` is the start of a stream. `Inlet` is the border between steps that workers run side by side, above it, and
steps that one worker runs, below it (`run/_feed.py`). To the steps above it looks like a source with random access, of
which a window is available.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.base._errors import ElementError, SpecError, StateError, is_untouched, words_of
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, Leaves, Rows, copied
from penstock.plan._conform import MisfitError, begun, conformed, text_of
from penstock.plan._map import Learned, Learner, Memo
from penstock.plan._node import Access, Elements, Length, Node, OneInput, OneToOne, Start, Traits
from penstock.plan._reader import Gather, Reader

_NOTHING = object()
_OF_A_TUPLE = type(iter(()))


def _hint(elements: Iterator[Any]) -> str:
    """The remedy for a function that returns one element, as the `step` of a simulator does."""
    if not isinstance(elements, _OF_A_TUPLE):
        return ""
    return " It returned a tuple, whose parts are taken for elements: a generator yields each, one after the other."


class StreamSource(ABC):
    """The source of a stream: it can be started again for each epoch.

    Like a `Source`, it is a *handle*: cheap to make, and without open resources. The iterator that `iterate` returns is
    open. One thread at a time uses it, and closes it (`close()`, if it has one) at the end.

    An iterator with `get_state()`, which returns its position as a non-negative integer, and `set_state(integer)` is
    resumed by these. Any other is started again, and elements are skipped.
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
        """Whether the user gave the spec, so finding it reads nothing."""
        return True

    def loosened(self) -> "StreamSource":
        """The same elements, with axes of any size if the spec is found on the first."""
        return self

    @abstractmethod
    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Begins an epoch.

        Each element is a tree of arrays, valid until the next one is requested. Errors are reported with the number of
        the element.
        """

    @abstractmethod
    def describe(self, index: int) -> str:
        """An element in the user's terms: `element 7 of readings`. For messages."""


@dataclass(frozen=True, eq=False)
class Generate(Start, Learner):
    """The step at the bottom of a stream: elements as a source gives them."""

    data: StreamSource
    where: str = field(repr=False)
    """The user's line: `train.py:41`."""
    memo: Memo = field(default_factory=Memo, repr=False, kw_only=True)

    access: ClassVar[Access] = "stream"
    traits = Traits(runs_code=True)

    @property
    def held(self) -> StreamSource:
        """The source."""
        return self.data

    def loosened(self) -> "Generate":
        """As the source can."""
        data = self.data.loosened()
        return self if data is self.data else replace(self, data=data, memo=Memo())

    @property
    def length(self) -> Length:
        """As the source says."""
        return self.data.length

    @property
    def known_spec(self) -> Spec | None:
        """The declared or found spec."""
        return self.spec if self.is_learnt else None

    @property
    def is_learnt(self) -> bool:
        """Whether the spec was declared or found."""
        return self.data.is_declared or self.memo.learned.spec is not None

    @property
    def spec(self) -> Spec:
        """As the source says. May begin an epoch and read its first element, once."""
        spec = self.learn_by({}).spec
        assert spec is not None
        return spec

    def learn_by(self, firsts: dict[int, Leaves], *, takes_any: bool = False) -> Learned:
        """Asks the source, if nothing has, and returns what was learnt."""
        if self.memo.learned.spec is None:
            try:
                self.memo.learned = Learned(Spec.of(self.data.element_spec))
            except BaseException as error:  # of the user's function, of which this reads the first element
                if is_untouched(error):
                    raise
                raise self._failure(error, 0, 0) from error
        return self.memo.learned

    def _failure(self, error: BaseException, index: int, epoch: int) -> ElementError:
        return ElementError(
            f"{self.label} at {self.where} failed at element {index} of epoch {epoch}: {words_of(error)}"
        )

    def settings(self) -> dict[str, Any]:
        """The name, and the length if the user gave it: the length of an epoch may differ between runs."""
        return {"name": self.label, "length": self.length}

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Begins an epoch, and checks every element."""
        words, spec = reader.status.words, self.spec
        elements, (index, consumed) = None, reader.origin
        try:
            while True:
                words[0], words[1], words[2] = reader.number + 1, epoch, index
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
                    raise self._failure(error, index, epoch) from error
                try:
                    leaves = conformed(spec, value)
                except MisfitError as found:
                    raise SpecError(
                        f"{self.label} at {self.where} gave {found} as element {index} of epoch {epoch}"
                        f"{text_of(found, spec, is_declared=self.data.is_declared)}{_hint(elements)}"
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
            elements.set_state(consumed)  # from `get_state`
        return elements


@dataclass(frozen=True, eq=False)
class Promised(OneToOne, OneInput):
    """A stream with a length that the user gave; another length is an error."""

    count: int | float
    where: str = field(repr=False)
    """The user's line: `train.py:41`."""

    takes_any_shape = True
    treats_leaves_alike = True

    @property
    def verb(self) -> str:
        """That of the stream."""
        return self.source.verb

    @property
    def label(self) -> str:
        """That of the stream, and the length."""
        return f"{self.source.label}, length={self.count}"

    def settings(self) -> dict[str, Any]:
        """The length."""
        return {"length": self.count}

    @property
    def length(self) -> Length:
        """The given one."""
        return self.count

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The last element is yielded when the stream has ended. The reader counts whether that is too soon."""
        elements = reader.inputs[0].sequence(epoch)
        for number, leaves in enumerate(elements, 1):
            if number == self.count:
                leaves = [copied(leaf) for leaf in leaves]
            if number == self.count and next(elements, None) is not None:
                raise SpecError(
                    f"{self.source.label} at {self.where} gives more elements than length={self.count}. Correct the "
                    f"length, leave it out, or cut with take({self.count})."
                )
            yield leaves


@dataclass(frozen=True, eq=False)
class Inlet(Node):
    """Stands for a step of a stream that runs elsewhere. Its elements lie in a window that workers see.

    It holds facts about that step instead of the step, because it travels to workers and the step may not.
    """

    stands_for: str
    """The label of that step."""
    facts: Mapping[str, Any]
    """Its length (infinity until its end has been seen), spec, batch size and randomness."""

    traits = Traits(reads_spans=True)

    def __post_init__(self) -> None:
        vars(self).update(self.facts)  # in place of the cached properties

    @property
    def verb(self) -> str:
        """That of the step."""
        return self.stands_for.partition("(")[0]

    @property
    def label(self) -> str:
        """That of the step."""
        return self.stands_for

    @property
    def data(self) -> "Inlet":
        """Itself: it describes elements for messages."""
        return self

    def describe(self, index: int) -> str:
        """An element of the step."""
        return f"element {index} of {self.stands_for}"

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Copies from the window."""
        assert reader.window is not None
        reader.window.read(indices, out)
