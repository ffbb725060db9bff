"""Python generators and other iterables as streams."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._positions import require_elements, require_order
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.plan._conform import MisfitError, observed
from penstock.plan._map import function_name
from penstock.plan._stream import StreamSource


@final
class GeneratorSource(StreamSource):
    """The elements that a function yields in each epoch, or those of an object that can be iterated repeatedly.

    Args:
        function: A function that returns an iterator, or an iterable that is no iterator itself.
        args: Its arguments.
        element_spec: Spec of the elements; None to infer it from the first element.
        shards: The arguments of all shards. If this one has no element, the spec comes from another.
    """

    def __init__(
        self, function: Any, args: tuple[Any, ...], element_spec: Tree, shards: Sequence[tuple[Any, ...]] = ()
    ) -> None:
        self._function = function
        self._args = args
        self._shards = shards
        self._declared = element_spec
        self._found: Tree = None
        self._is_loose = False
        self._last: Any = None
        """The last iterator, to recognise it."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None, "_shards": ()}  # neither has a use in another process

    def fingerprint_parts(self) -> dict[str, Any]:
        """The function and its arguments, without the inferred spec."""
        return {"the generator": self._function, "its arguments": self._args, "element_spec": self._declared}

    @property
    def is_declared(self) -> bool:
        return self._declared is not None

    @property
    def element_spec(self) -> Tree:
        if self._declared is not None:
            return self._declared
        if self._found is None:
            others = (GeneratorSource(self._function, args, None) for args in self._shards if args is not self._args)
            found = (source._look_at_first() for source in itertools.chain([self], others))
            self._found = next((spec for spec in found if spec is not None), None)
        if self._found is None:
            raise SpecError(
                f"{self} gave no element, so what elements look like is unknown. Say it: element_spec="
                "penstock.ArraySpec(shape, dtype), or a tree of them."
            )
        return Spec.of(self._found).loosened().tree if self._is_loose else self._found

    def loosened(self) -> "GeneratorSource":
        loose = copy.copy(self)
        loose._is_loose = True
        return loose

    def _look_at_first(self) -> Tree:
        elements = self.iterate(0)
        try:
            for value in itertools.islice(elements, 1):
                return observed(value).tree
        except MisfitError as found:
            raise SpecError(
                f"{self} gives {found} as its first element. Elements are trees (tuples, dicts) of arrays, numbers and "
                "text."
            ) from None
        finally:
            if hasattr(elements, "close"):
                elements.close()
        return None

    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Calls the function. It is not passed the epoch."""
        made = self._function(*self._args) if callable(self._function) else self._function
        require_elements(made)
        try:
            elements: Iterator[Tree] = iter(made)
        except TypeError:
            raise ArgumentTypeError(
                f"{self} returned {type_of(made)}, which cannot be iterated. Give a generator function (with yield), "
                "or one that returns an iterable."
            ) from None
        if elements is self._last:
            raise ArgumentError(
                f"{self} returned the same iterator as before, which can be iterated once: its elements are gone. Make "
                "a new one at each call: from_generator(read, path), where read(path) opens the file and yields."
            )
        self._last = elements
        return elements

    def describe(self, index: int) -> str:
        return f"element {index} of from_generator({self})"

    def __str__(self) -> str:
        return function_name(self._function)


def require_again(function: Any) -> None:
    """Refuses an object that can be iterated only once.

    Raises:
        ArgumentTypeError: It is an iterator, or cannot be iterated, or not in an order.
    """
    if isinstance(function, Iterator):
        raise ArgumentTypeError(
            f"from_generator() needs something that can be begun again for every epoch, but {type_of(function)} can be "
            "iterated once. Give the function that makes it, and its arguments: from_generator(read, path), not "
            "from_generator(read(path))."
        )
    if not isinstance(function, Mapping):  # whose keys are its elements, as in Python
        cure = "Give a list, such as sorted(values); a table goes to from_arrays()."
        require_order("from_generator()", function, cure)
    if not callable(function) and not hasattr(function, "__iter__"):
        raise ArgumentTypeError(
            f"from_generator() needs a generator function or an iterable, got {function!r:.80}, {type_of(function)}."
        )
