"""The first elements of a generator that stays in this process, for workers that find what functions make of them."""

import io
import pickle
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import PenstockError
from penstock.base._random import seeded_globals
from penstock.base._tree import Tree
from penstock.plan._node import Elements
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._stream import Generate, StreamSource

HEADS_NBYTES: Final = 256 << 20
"""What the heads of a plan take at most, and one element more of each. Workers share them: once more."""


class MoreNeededError(PenstockError):
    """A worker needs more elements of a generator than came with it."""


@final
class Head(StreamSource):
    """The first elements of a generator, which travel in its place.

    Args:
        step: The generator. Its spec becomes known here.
        chunks: Pickled elements of all heads of a plan. As arrays they are memory that workers share.
    """

    def __init__(self, step: Generate, chunks: list[npt.NDArray[np.uint8]]) -> None:
        self._spec = step.spec
        self._text = str(step.data)
        self.length = step.length
        self._chunks = chunks
        self._places: list[tuple[int, int, int]] = []
        """Of its elements: a chunk, the first byte and the last."""
        self._count = 0
        self._is_all = False
        self._error: Exception | None = None
        self._rest: Elements | None = Reader(step, OpenSources(step), isolation=seeded_globals).sequence(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rest": None, "_error": None}

    @property
    def element_spec(self) -> Tree:
        return self._spec.tree

    def read(self, count: int, chunk: io.BytesIO, stop: int) -> bool:
        """Reads on until it has this number of elements.

        Args:
            count: The number.
            chunk: Takes the elements. It is the next of the chunks.
            stop: The size of the chunk at which this ends earlier.

        Returns:
            Whether a larger number may give more elements.

        Raises:
            Exception: The generator failed before, and the elements until then are too few.
        """
        if self._error is not None:
            raise self._error
        assert self._rest is not None
        start = chunk.tell()
        try:
            while self._count < count and chunk.tell() < stop and not self._is_all:
                leaves = next(self._rest, None)
                if leaves is None:
                    self._is_all = True
                else:
                    pickle.dump(leaves, chunk, protocol=5)
                    self._count += 1
        except Exception as error:  # perhaps of an element that no function needs
            self._error = error
        self._places.append((len(self._chunks), start, chunk.tell()))
        return not self._is_all and chunk.tell() < stop

    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Yields the elements.

        Raises:
            MoreNeededError: There are more in the generator.
        """
        for number, start, stop in self._places:
            part = io.BytesIO(self._chunks[number][start:stop].data)
            while part.tell() < stop - start:
                yield self._spec.structure.unflatten(pickle.load(part))
        if not self._is_all:
            raise MoreNeededError(f"{self._text} has more elements than the first {self._count}.")

    def close(self) -> None:
        """Closes the generator."""
        close = getattr(self._rest, "close", None)
        if close is not None:
            close()

    def describe(self, index: int) -> str:
        return f"element {index} of {self._text}"

    def __str__(self) -> str:
        return self._text
