"""Columns of Arrow tables, read into memory that is given.

A column is a row of chunks. A chunk of numbers of one shape is a NumPy view of Arrow's memory, which may be a mapped
file, made when it is first needed; rows are copied from it straight to where they belong. What has no such view is read
by Arrow: bits, chunks with values that are missing, text.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base._errors import SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices


@final
@dataclass(frozen=True)
class Leaf:
    """One leaf of an element: where it is in a row, and what it looks like."""

    path: tuple[str, ...]
    """The column, and the fields of structs below it."""
    spec: ArraySpec
    is_file: bool = False
    """Whether it is `{"bytes": ..., "path": ...}`, of which the bytes are the leaf."""

    def __str__(self) -> str:
        return ".".join(self.path)


Refuse = Callable[[Leaf, int, str], SpecError]
"""Makes the error for a leaf of the element at a place among those that are read, from what is wrong with it."""


class Part(NamedTuple):
    """Rows of one chunk that are read."""

    chunk: int
    rows: Indices
    """Their numbers in the chunk."""
    places: Indices
    """Where they belong."""


def by_chunk(rows: Indices, ends: Indices) -> list[Part]:
    """Divides rows of a column by the chunks that they are in."""
    chunks = np.searchsorted(ends, rows, side="right")
    order = np.argsort(chunks, kind="stable")
    cuts = [0, *(np.flatnonzero(np.diff(chunks[order])) + 1).tolist(), len(rows)]
    parts = []
    for start, stop in itertools.pairwise(cuts):
        places = order[start:stop]
        chunk = int(chunks[places[0]])
        parts.append(Part(chunk, rows[places] - (ends[chunk - 1] if chunk else 0), places))
    return parts


class _Lists(NamedTuple):
    """The lists of a chunk, of any lengths: list `i` is `values[bounds[i] : bounds[i + 1]]`."""

    values: npt.NDArray[Any]
    bounds: npt.NDArray[Any]


@final
class Column:
    """The chunks of a column, and views of those that were read.

    Args:
        leaf: What it is.
        chunks: Its pieces.
    """

    def __init__(self, leaf: Leaf, chunks: list[pa.Array]) -> None:
        self.ends: Indices = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)
        """For each chunk, the number of the row after its last."""
        self._leaf = leaf
        self._chunks = chunks
        self._views: dict[int, npt.NDArray[Any] | _Lists | None] = {}
        self._is_ragged = leaf.spec.shape[:1] == (None,)
        self._shape = tuple(size for size in leaf.spec.shape if size is not None)
        """Of a row; of one entry of a list, where lists are of any length."""

    def read_into(self, parts: list[Part], out: npt.NDArray[Any], refuse: Refuse) -> None:
        """Writes rows to where they belong."""
        for part in parts:
            view = self._view(part.chunk)
            if isinstance(view, np.ndarray):
                out[part.places] = view[part.rows]
            elif isinstance(view, _Lists):
                for place, row in zip(part.places.tolist(), part.rows.tolist(), strict=True):
                    out[place] = view.values[view.bounds[row] : view.bounds[row + 1]].copy()
            elif (values := self._taken(part)) is not None:
                out[part.places] = values
            else:
                chunk = self._chunks[part.chunk]
                for place, row in zip(part.places.tolist(), part.rows.tolist(), strict=True):
                    out[place] = self._row(chunk.slice(row, 1), functools.partial(refuse, self._leaf, place))

    def _view(self, number: int) -> npt.NDArray[Any] | _Lists | None:
        """A chunk's values where they lie; None where Arrow has to read them."""
        if number not in self._views:
            inner = _inner(self._chunks[number], self._leaf.path[1:])
            self._views[number] = None if inner is None or inner.null_count else self._viewed(inner)
        return self._views[number]

    def _viewed(self, chunk: pa.Array) -> npt.NDArray[Any] | _Lists | None:
        if self._leaf.is_file or self._leaf.spec.dtype.kind not in "iuf":
            return None
        if not self._is_ragged:
            return _numbers(chunk, self._shape)
        bounds = np.asarray(chunk.offsets)
        values = _numbers(chunk.flatten(), self._shape)
        return None if values is None else _Lists(values, bounds - bounds[0])

    def _taken(self, part: Part) -> npt.NDArray[Any] | None:
        """Rows of one shape, read by Arrow: of bits, or of a chunk with values that are missing elsewhere."""
        inner = _inner(self._chunks[part.chunk], self._leaf.path[1:])
        if inner is None or self._is_ragged or not self._leaf.spec.is_bounded:
            return None
        return _numbers(inner.take(pa.array(part.rows)), self._shape)

    def _row(self, row: pa.Array, refuse: Callable[[str], SpecError]) -> Any:
        """One row, read by Arrow: text, bytes, files, and what others of its chunk lack."""
        leaf, inner = self._leaf, _inner(row, self._leaf.path[1:])
        if inner is None or inner.null_count:
            raise refuse(
                "is missing (None), which has no place in a batch. Give it a value, or leave such elements out: "
                "dataset.filter(lambda element: element[...] is not None) of Hugging Face."
            )
        if leaf.is_file:
            return _file_bytes(inner[0].as_py(), refuse)
        if not self._is_ragged and not leaf.spec.is_bounded:
            return inner[0].as_py()
        values = _numbers(inner.flatten() if self._is_ragged else inner, self._shape)
        if values is None:
            raise refuse(f"has missing values (None) in it, or is not of {leaf.spec}.")
        return values.copy() if self._is_ragged else values[0]


def _inner(array: pa.Array, names: tuple[str, ...]) -> pa.Array | None:
    """A field of structs in structs; None if some struct is missing."""
    for name in names:
        if array.null_count:
            return None
        array = array.field(name)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _numbers(array: pa.Array, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Lists of one shape as `(len(array), *shape)`; None where a value is missing, or a list of another length.

    A view of Arrow's memory, but for bits.
    """
    count = len(array)
    for size in shape:
        if array.null_count:
            return None
        if not isinstance(array, pa.FixedSizeListArray) and (np.diff(array.offsets) != size).any():
            return None
        array = array.flatten()
    if array.null_count:
        return None
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(count, *shape)


def _file_bytes(value: dict[str, Any], refuse: Callable[[str], SpecError]) -> bytes:
    """The bytes of a file that is in the table, or beside it."""
    if value["bytes"] is not None:
        return bytes(value["bytes"])
    if value["path"] is None:
        raise refuse("has neither the bytes of a file nor its path.")
    try:
        with open(value["path"], "rb") as file:
            return file.read()
    except OSError as error:
        raise SourceError(f"{refuse('is a file')} that cannot be read: {error}") from error
