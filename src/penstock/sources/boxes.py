"""Patches of arrays whose library reads boxes of them: HDF5, Zarr, and arrays in memory of any layout."""

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source, SourceAdapter, open_source


@final
class BoxSource(Source):
    """The patch that begins at each item of an array. Patches that would leave the array are not asked for.

    Args:
        inner: The rows of the array. What it opens has `part(box)`, which reads a box, given as slices.
        sizes: The sizes of a patch along all axes.
        keeps_first: Whether a patch has the first axis.
    """

    def __init__(self, inner: Source, sizes: tuple[int, ...], *, keeps_first: bool) -> None:
        spec = inner.element_spec
        assert isinstance(spec, ArraySpec)
        self.inner, self.sizes, self.keeps_first = inner, sizes, keeps_first
        self.shape: tuple[int, ...] = (len(inner), *(size for size in spec.shape if size is not None))
        self.element_spec: Tree = ArraySpec(sizes[0 if keeps_first else 1 :], spec.dtype)
        self.suits_one_thread, self.is_remote = inner.suits_one_thread, inner.is_remote

    def __reduce__(self) -> Any:
        return _box_source, (self.inner, self.sizes, self.keeps_first)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return str(self.inner)

    def describe(self, index: int) -> str:
        place = ", ".join(map(str, np.unravel_index(index, self.shape)))
        return f"the patch at [{place}] of {self.inner}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """The array, and the sizes."""
        return {"the array": self.inner, "the patch": (self.sizes, self.keeps_first)}

    def arrays(self) -> Sequence[npt.NDArray[Any]] | None:
        """The patches as one array, of an array in memory in C order: the copy engine reads them there."""
        (whole,) = self.inner.arrays() or (None,)
        if not isinstance(whole, np.ndarray) or not whole.flags.c_contiguous or not whole.size:
            return None
        last = np.ravel_multi_index([n - size for n, size in zip(self.shape, self.sizes, strict=True)], self.shape)
        first = 0 if self.keeps_first else 1
        shape, strides = (int(last) + 1, *self.sizes[first:]), (whole.itemsize, *whole.strides[first:])
        return (np.lib.stride_tricks.as_strided(whole, shape, strides, writeable=False),)

    @property
    def kept_count(self) -> int:
        """How many chunks are kept: twice those that the patches have which begin in one chunk."""
        axes = zip(self.inner.chunk_shape or (), self.sizes, strict=False)
        return 2 * math.prod(-(-(chunk + size - 1) // chunk) for chunk, size in axes)

    @property
    def kept_nbytes(self) -> int:
        """The chunks that are kept."""
        if self.inner.chunk_shape is None:
            return self.inner.kept_nbytes
        assert isinstance(self.element_spec, ArraySpec)
        return self.kept_count * math.prod(self.inner.chunk_shape) * self.element_spec.dtype.itemsize

    def open(self) -> "OpenBoxes":
        return OpenBoxes(self)


def _box_source(inner: Source, sizes: tuple[int, ...], keeps_first: bool) -> BoxSource:
    return BoxSource(inner, sizes, keeps_first=keeps_first)


@final
class OpenBoxes:
    """Cuts patches out of chunks, which it keeps for a while. One thread at a time, so no chunk is decoded by two."""

    def __init__(self, source: BoxSource) -> None:
        self._source = source
        self._opened = open_source(source.inner, in_parts=False)
        reads: Any = self._opened.inner if isinstance(self._opened, SourceAdapter) else self._opened
        self._part: Callable[[tuple[slice, ...]], npt.NDArray[Any]] = reads.part
        self._lock = threading.Lock()
        self._chunk = lru_cache(source.kept_count)(self._read_chunk)

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads patches, those that begin in one chunk together.

        Raises:
            SourceError: A patch would leave the array.
        """
        source = self._source
        starts = np.stack(np.unravel_index(indices, source.shape), axis=1)
        if (leaves := (starts + source.sizes > source.shape).any(axis=1)).any():
            raise SourceError(f"{source.describe(int(indices[np.argmax(leaves)]))} leaves the array.")
        order = np.arange(len(starts))
        if source.inner.chunk_shape is not None:
            order = np.lexsort((starts // source.inner.chunk_shape).T[::-1])
        with self._lock:
            for row in order.tolist():
                patch = out[row] if source.keeps_first else out[row : row + 1]
                self._fill(starts[row].tolist(), patch)

    def _fill(self, start: list[int], patch: npt.NDArray[Any]) -> None:
        """Writes a patch, of all axes: the part of each chunk that it has."""
        if self._source.inner.chunk_shape is not None:
            fill_box(patch, start, self._source.inner.chunk_shape, self._chunk)
        else:
            patch[...] = self._part(tuple(slice(at, at + size) for at, size in zip(start, patch.shape, strict=True)))

    def _read_chunk(self, place: tuple[int, ...]) -> npt.NDArray[Any]:
        """Reads the chunk with these numbers along the axes."""
        source = self._source
        assert source.inner.chunk_shape is not None
        axes = zip(place, source.inner.chunk_shape, source.shape, strict=True)
        return self._part(tuple(slice(number * n, min(number * n + n, most)) for number, n, most in axes))

    def close(self) -> None:
        """Closes the array, and forgets the chunks."""
        self._chunk.cache_clear()
        if self._opened is not self._source.inner:
            self._opened.close()


def fill_box(
    out: npt.NDArray[Any],
    start: Sequence[int],
    chunk_shape: Sequence[int],
    chunk_of: Callable[[tuple[int, ...]], npt.NDArray[Any]],
) -> None:
    """Writes a box of an array: the part of each chunk that it has.

    Args:
        out: Gets the box.
        start: Where it begins.
        chunk_shape: The sizes of a chunk.
        chunk_of: Returns the chunk with these numbers along the axes.
    """
    ends = [at + size for at, size in zip(start, out.shape, strict=True)]
    spans = [range(at // n, -(-end // n)) for at, end, n in zip(start, ends, chunk_shape, strict=True)]
    for place in itertools.product(*spans):
        chunk = chunk_of(place)
        firsts = [number * n for number, n in zip(place, chunk_shape, strict=True)]
        low = list(map(max, start, firsts))
        high = [min(end, first + n) for end, first, n in zip(ends, firsts, chunk_shape, strict=True)]
        to = tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start, strict=True))
        out[to] = chunk[tuple(slice(a - at, b - at) for a, b, at in zip(low, high, firsts, strict=True))]


def box_text(source: object, box: tuple[slice, ...]) -> str:
    """Names a box for messages: `x.h5/x[0:16, 32:64]`."""
    return f"{source}[{', '.join(f'{each.start}:{each.stop}' for each in box)}]"
