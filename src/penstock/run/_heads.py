"""The first elements of a generator that stays in this process, for workers that find what functions make of them."""

import itertools
from collections.abc import Iterator
from typing import Any, Final, final

from penstock.base._errors import PenstockError
from penstock.base._random import seeded_globals
from penstock.base._tree import Tree
from penstock.memory._rows import copied
from penstock.plan._node import Elements
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._stream import Generate, StreamSource

HEAD_COUNTS: Final = tuple(1 << doubling for doubling in range(13))
"""The numbers of elements that are tried in turn. A function after `filter` may need any number of them."""


class MoreNeededError(PenstockError):
    """A worker needs more elements of a generator than came with it."""


@final
class Head(StreamSource):
    """The first elements of a generator, which travel in its place.

    Args:
        step: The generator. Its spec becomes known here.
    """

    def __init__(self, step: Generate) -> None:
        self._spec = step.spec
        self._text = str(step.data)
        self.length = step.length
        self._elements: list[Tree] = []
        self._is_all = False
        self._error: Exception | None = None
        self._rest: Elements | None = Reader(step, OpenSources(step), isolation=seeded_globals).sequence(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rest": None, "_error": None}

    @property
    def element_spec(self) -> Tree:
        return self._spec.tree

    def read(self, count: int) -> None:
        """Reads on until it has this number of elements.

        Raises:
            Exception: The generator failed before, and the elements until then are too few.
        """
        if self._error is not None:
            raise self._error
        assert self._rest is not None
        try:
            for leaves in itertools.islice(self._rest, count - len(self._elements)):
                self._elements.append(self._spec.structure.unflatten([copied(leaf) for leaf in leaves]))
            self._is_all = len(self._elements) < count
        except Exception as error:  # perhaps of an element that no function needs
            self._error = error

    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Yields the elements.

        Raises:
            MoreNeededError: There are more in the generator.
        """
        yield from self._elements
        if not self._is_all:
            raise MoreNeededError(f"{self._text} has more elements than the first {len(self._elements)}.")

    def close(self) -> None:
        """Closes the generator."""
        close = getattr(self._rest, "close", None)
        if close is not None:
            close()

    def describe(self, index: int) -> str:
        return f"element {index} of {self._text}"

    def __str__(self) -> str:
        return self._text
