"""The rows of a sparse matrix in compressed rows (CSR): two spans of numbers each, and a scatter.

A matrix is three vectors. Row `i` has `values[starts[i] : starts[i + 1]]` in the columns `indices[...]` of the same
span. Each vector is a source of numbers. Where both long ones lie as plain bytes, in memory or in files, the copy
engine reads spans and scatters them (`native/sparse.cpp`). Otherwise, such as from compressed chunks, their sources
read the spans of some rows together, and the engine scatters them from memory.

Trust. Files say where a row begins and which column a value has. The starts are checked when they are read, all at
once. Columns are checked in the moment in which they are used.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import PenstockError, SourceError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, positions_of, ranges_of
from penstock.plan._source import Read, Source, open_source
from penstock.sources._localfile import LocalFile
from penstock.sources._mapped import mapping_options
from penstock.sources.arrays import ArraySource, copies_of
from penstock.sources.files import FileSource
from penstock.sources.npy import EngineRows, StridedFile, require_same

_PIECE_COUNT: Final = 1 << 16
"""Numbers of a whole vector that are read together."""
_SPANS_NBYTES: Final = 4 << 20
"""Spans that are read together, at least one row."""


@final
@dataclass(frozen=True)
class Numbers:
    """One of the three vectors."""

    source: Source
    """Reads numbers by position. A method `pieces` says where they lie in a file, as `Hdf5Source.pieces`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one number."""
        spec = self.source.element_spec
        assert isinstance(spec, ArraySpec)
        return spec.dtype

    @cached_property
    def file(self) -> "tuple[StridedFile, Indices, int] | None":
        """The file and the pieces; None if the numbers are in memory, or only the source can read them."""
        if hasattr(self.source, "pieces"):
            return self.source.pieces()  # type: ignore[no-any-return]
        if isinstance(self.source, FileSource) and self.source.handle.has_whole_rows:
            handle = self.source.handle
            if handle.strides == (handle.dtype.itemsize,):
                return handle, np.array([handle.offset]), max(1, len(self.source))
        return None

    @cached_property
    def array(self) -> npt.NDArray[Any] | None:
        """The array, if the numbers are in memory."""
        return np.ascontiguousarray(self.source.arrays()[0]) if isinstance(self.source, ArraySource) else None

    def __reduce__(self) -> Any:
        return Numbers, (self.source,)  # without what was found

    def opened(self) -> native.Vector:
        """The vector for the copy engine."""
        if self.array is not None:
            memory = native.Engine.memory(self.array.view(np.uint8))
            return memory, np.zeros(1, np.int64), max(1, len(self.array)), self.dtype
        assert self.file is not None
        handle, places, length = self.file
        size = os.stat(handle.path).st_size
        mapped, give_back_nbytes = mapping_options(0, True, size)
        memory = native.Engine.file(
            handle.path,
            0,
            size,
            1,
            mapped=mapped if handle.mapped is None else handle.mapped,
            give_back_nbytes=give_back_nbytes,
        )
        return memory, places, length, self.dtype


def in_place(source: Source) -> FileSource | None:
    """The same numbers read from their file, if they lie there in one piece."""
    found = Numbers(source).file
    if found is None or len(found[1]) != 1:
        return None
    return FileSource(replace(found[0], offset=int(found[1][0])))


def read_all(source: Source) -> npt.NDArray[Any]:
    """Reads all numbers of a source.

    Raises:
        SourceError: There are more than memory holds, or than NumPy counts.
    """
    count, (spec,) = len(source), Spec.of(source.element_spec).leaves
    opened = open_source(source)
    try:
        out = np.empty(count, spec.dtype if spec.dtype.itemsize else object)
        for first, stop in ranges_of(count, _PIECE_COUNT):
            opened.read_into(np.arange(first, stop), out[first:stop])
    except (MemoryError, ValueError) as error:
        raise SourceError(f"{source} cannot be read: {error}. If its file is damaged, write it again.") from error
    finally:
        if opened is not source:
            opened.close()
    return out


@final
class SparseRows(EngineRows):
    """A sparse matrix whose vectors the copy engine reads. It stands for an array `(rows, columns)` in `Source.arrays`.

    Args:
        source: The matrix.
    """

    def __init__(self, source: "SparseSource") -> None:
        self._source = source
        self.shape = source.shape
        self.dtype = source.values.dtype
        self.files = [each.file[0] for each in (source.indices, source.values) if each.file is not None]

    def opened(self, name: object, row: int = 0) -> native.Source:
        """Opens it for the copy engine.

        Raises:
            SourceError: A file is gone, or shorter than the matrix.
        """
        source = self._source
        try:
            self.require_same(row)
            vectors = source.indices.opened(), source.values.opened()
            return native.Engine.sparse(source.bounds, *vectors, self.shape[1], name=name)
        except IndexError as error:
            raise source.fault(row, f"{error}. The file is damaged, or was cut; write it again.") from error

    def require_same(self, row: int) -> None:
        """Refuses files that are gone, or were replaced.

        Raises:
            SourceError: Names the row.
        """
        for file in self.files:
            require_same(file, row)

    def error_of(self, error: native.CopyError) -> SourceError:
        """The error of a row that could not be read, as users read it.

        Raises:
            SourceError: It is that a file is gone, or was replaced.
        """
        row, source = error.element, self._source
        if error.errno == errno.EDOM:
            return source.outside(row, error.found_nbytes)
        if error.errno == errno.EEXIST:
            return source.twice(row, error.found_nbytes)
        for file in self.files:
            require_same(file, row)
            if (size := os.stat(file.path).st_size) < file.st_size:
                return file.is_shorter(row, size)
        return source.fault(row, f"{os.strerror(error.errno or errno.EIO)}. The disk fails; see the system's log.")


@final
class SparseSource(Source):
    """The rows of a sparse matrix.

    Args:
        name: The matrix, in messages.
        starts: Where each row begins, and where the last ends.
        indices: The column numbers.
        values: The values.
        shape: The number of rows and of columns.
        is_dense: Whether elements are rows with their zeros. Otherwise they are dicts of two vectors.
    """

    def __init__(
        self, name: str, starts: Numbers, indices: Numbers, values: Numbers, shape: tuple[int, int], is_dense: bool
    ) -> None:
        self._name = name
        self.starts, self.indices, self.values = starts, indices, values
        self.shape = shape
        self.is_dense = is_dense
        self.element_spec: Tree = ArraySpec(shape[1:], values.dtype)
        if not is_dense:
            self.element_spec = {
                "indices": ArraySpec((None,), indices.dtype.newbyteorder("=")),
                "values": ArraySpec((None,), values.dtype.newbyteorder("=")),
            }
        self.is_remote = indices.source.is_remote or values.source.is_remote

    @property
    def suits_one_thread(self) -> bool:  # type: ignore[override]  # depends on who reads the vectors
        return self.rows_in_place is None and self.values.source.suits_one_thread

    def __reduce__(self) -> Any:
        # Without what was found.
        return SparseSource, (self._name, self.starts, self.indices, self.values, self.shape, self.is_dense)

    def __len__(self) -> int:
        return self.shape[0]

    def __str__(self) -> str:
        return self._name

    def describe(self, index: int) -> str:
        return f"row {index} of {self._name}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """The three vectors."""
        vectors = {"starts": self.starts.source, "indices": self.indices.source, "values": self.values.source}
        return vectors | {"shape": self.shape, "dense": self.is_dense}

    @property
    def local_files(self) -> Sequence[str]:
        files = [each.file[0].path for each in (self.indices, self.values) if each.file is not None]
        return tuple(dict.fromkeys(files))

    @property
    def kept_nbytes(self) -> int:
        """Where rows begin, twice for the copy engine, and what the vectors keep."""
        return 16 * (len(self) + 1) + sum(each.source.kept_nbytes for each in (self.indices, self.values))

    @cached_property
    def bounds(self) -> Indices:
        """Where each row begins, int64, checked.

        Raises:
            SourceError: The starts do not begin with 0, decrease, or point outside of the vectors.
        """
        starts = read_all(self.starts.source).astype(np.int64)
        room = min(len(self.indices.source), len(self.values.source))
        wrong = np.flatnonzero((starts[1:] < starts[:-1]) | (starts[1:] > room))
        if starts[0] or len(wrong):
            row = 0 if starts[0] else int(wrong[0])
            span = starts[row : row + 2].tolist()
            raise self.fault(
                row,
                f"its indptr goes from {span[0]} to {span[-1]}. It begins with 0, never falls, and there are {room:,} "
                "values. The matrix is damaged, or was not written to its end; write it again.",
            )
        return starts

    def fault(self, row: int, text: str) -> SourceError:
        """The error of a row."""
        return SourceError(f"{self.describe(row)} cannot be read: {text}")

    def outside(self, row: int, column: int) -> SourceError:
        """The error of a row with a column that the matrix has not."""
        return self.fault(
            row,
            f"it has a value in column {column}, and the matrix has {self.shape[1]} columns. The matrix is damaged; "
            "write it again.",
        )

    def twice(self, row: int, column: int) -> SourceError:
        """The error of a row that has a column twice."""
        return self.fault(
            row,
            f"it has column {column} twice. SciPy adds such values, and here none would be right. Add them before: "
            "matrix.sum_duplicates().",
        )

    def arrays(self) -> Sequence[SparseRows] | None:
        """The matrix, if the copy engine reads all of it."""
        return (self.rows_in_place,) if self.is_dense and self.rows_in_place is not None else None

    @cached_property
    def rows_in_place(self) -> SparseRows | None:
        """The matrix, if its numbers lie in memory or as plain bytes in files."""
        vectors = self.indices, self.values
        return SparseRows(self) if all(each.array is not None or each.file is not None for each in vectors) else None

    def open(self) -> "OpenSparse":
        return OpenSparse(self)


@final
class OpenSparse:
    """Reads rows: dense ones that lie in place by the copy engine, others by the spans of some rows at a time.

    Spans are read in place if they lie there, else by the sources of the vectors. Several threads may read: each call
    holds the engine's source and the files while it runs.
    """

    def __init__(self, source: SparseSource) -> None:
        self._source, self._rows = source, source.rows_in_place
        self._matrix: native.Source | None = None
        self._numbers = source.indices, source.values
        self._vectors = [
            None if each.file is not None else open_source(each.source, in_parts=False) for each in self._numbers
        ]
        self._files: dict[str, LocalFile] = {}
        self._is_closed = False

    def gather(self, reads: Sequence[Read]) -> None:
        """Executes reads.

        Raises:
            SourceError: A row cannot be read, or is damaged. Names it.
        """
        reads = [read for read in reads if len(read.indices)]
        if reads and self._rows is not None:
            matrix = self._engine_source(int(reads[0].indices[0]))
            if self._source.is_dense:
                try:
                    native.copy(copies_of(matrix, reads))
                except native.CopyError as error:
                    raise self._rows.error_of(error) from error
                return
        for read in reads:
            places = positions_of(read.rows, len(read.arrays[0]))
            for rows, ends, columns, values in self._spans(read.indices):
                self._require_once(read.indices[rows], ends, columns)
                here = places[rows]
                if self._source.is_dense:
                    read.arrays[0][here] = 0
                    read.arrays[0][np.repeat(here, np.diff(ends)), columns] = values
                    continue
                spans = list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
                for out, found in zip(read.arrays, (columns, values), strict=True):
                    native_order = found.astype(found.dtype.newbyteorder("="), copy=False)
                    for place, (begin, end) in zip(here.tolist(), spans, strict=True):
                        span = native_order[begin:end]
                        out[place] = span if read.may_borrow else span.copy()

    def _engine_source(self, row: int) -> native.Source:
        """The matrix for the copy engine, after a look at whether names still mean the same files."""
        assert self._rows is not None
        if self._is_closed:
            raise self._source.fault(row, "it was closed.")
        if self._matrix is None:  # two threads may both open it: the files are the same, and one source is dropped
            self._matrix = self._rows.opened(str(self._source), row)
        self._rows.require_same(row)
        return self._matrix

    def _require_once(self, indices: Indices, ends: Indices, columns: npt.NDArray[Any]) -> None:
        """Refuses columns that the matrix has not, and those that come twice."""
        wrong = np.flatnonzero((columns < 0) | (columns >= self._source.shape[1]))
        if len(wrong):
            row = int(indices[np.searchsorted(ends, wrong[0], "right") - 1])
            raise self._source.outside(row, int(columns[wrong[0]]))
        falls = columns[1:] <= columns[:-1]
        falls[ends[(ends > 0) & (ends < len(columns))] - 1] = False  # from one row to the next
        for number in np.unique(np.searchsorted(ends, np.flatnonzero(falls), "right") - 1).tolist():
            found, counts = np.unique(columns[ends[number] : ends[number + 1]], return_counts=True)
            if counts.max() > 1:
                raise self._source.twice(int(indices[number]), int(found[np.argmax(counts)]))

    def _spans(self, indices: Indices) -> Iterator[tuple[slice, Indices, npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yields some of the rows that are asked for, where their spans end, and the numbers of their spans."""
        source = self._source
        starts = source.bounds[indices]
        sizes = source.bounds[indices + 1] - starts
        item_nbytes = 8 + source.indices.dtype.itemsize + source.values.dtype.itemsize
        most = max(1, _SPANS_NBYTES // max(1, item_nbytes * int(sizes.max(initial=1))))
        for first, stop in ranges_of(len(indices), most):
            ends = np.concatenate(([0], np.cumsum(sizes[first:stop])))
            found = [np.empty(int(ends[-1]), vector.dtype) for vector in self._numbers]
            for vector, opened, out in zip(self._numbers, self._vectors, found, strict=True):
                if vector.array is not None:
                    spans = zip(starts[first:stop].tolist(), sizes[first:stop].tolist(), strict=True)
                    np.concatenate([vector.array[start : start + size] for start, size in spans], out=out)
                elif opened is None:
                    self._copy(vector, indices[first:stop], starts[first:stop], ends, out)
                elif len(out):
                    firsts = np.repeat(starts[first:stop] - ends[:-1], sizes[first:stop])
                    opened.read_into(np.arange(ends[-1]) + firsts, out)
            yield slice(first, stop), ends, found[0], found[1]

    def _copy(self, vector: Numbers, rows: Indices, starts: Indices, ends: Indices, out: npt.NDArray[Any]) -> None:
        """Copies spans of a vector that lies in a file."""
        assert vector.file is not None
        handle = vector.file[0]
        file = self._files.get(handle.path)
        if file is None:
            file = self._files[handle.path] = LocalFile(handle.path)
        spans, offsets, sizes = _places_of(vector, starts, starts + np.diff(ends))
        begins = np.cumsum(sizes) - sizes
        done, _, error = native.read_parts(file.descriptor, offsets, out.view(np.uint8), begins, sizes)
        if done < len(offsets):
            row = int(rows[spans[done]])
            if error:
                raise self._source.fault(row, f"{os.strerror(error)}. The disk fails; see the system's log.")
            raise handle.is_shorter(row, os.fstat(file.descriptor).st_size)

    def advise(self, indices: Indices) -> None:
        """Announces rows, so that the kernel fetches their spans. Never fails."""
        if len(indices) and self._rows is not None and self._rows.files:
            with suppress(OSError, PenstockError):
                native.announce([self._engine_source(int(indices[0]))], indices)

    def close(self) -> None:
        """Closes the vectors."""
        self._is_closed, self._matrix = True, None
        self._files.clear()
        for vector, opened in zip(self._numbers, self._vectors, strict=True):
            if opened is not None and opened is not vector.source:
                opened.close()


def _places_of(vector: Numbers, starts: Indices, ends: Indices) -> tuple[Indices, Indices, Indices]:
    """Where spans of a vector lie in its file: for each piece that one touches its number, the place, and the bytes."""
    assert vector.file is not None
    _, places, length = vector.file
    item, firsts = vector.dtype.itemsize, starts // length
    counts = np.where(ends > starts, (ends - 1) // length - firsts + 1, 0)
    spans = np.repeat(np.arange(len(starts)), counts)
    pieces_of = np.arange(len(spans)) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[spans]
    begins = np.maximum(starts[spans], pieces_of * length)
    stops = np.minimum(ends[spans], (pieces_of + 1) * length)
    return spans, places[pieces_of] + (begins - pieces_of * length) * item, (stops - begins) * item
