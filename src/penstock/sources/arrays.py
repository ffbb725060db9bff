"""Arrays in memory as a source, and objects that are indexed like a list."""

import itertools
import logging
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base import _tree
from penstock.base._errors import (
    ArgumentTypeError,
    ElementError,
    SourceError,
    SpecError,
    is_untouched,
    type_of,
    words_of,
)
from penstock.base._positions import TableRows
from penstock.base._spec import ArraySpec, Spec, is_masked, loses_masks, loses_zeros
from penstock.base._tree import Tree
from penstock.memory._rows import Indices, chunk_count, have_dtype, ranges_of
from penstock.plan._conform import MisfitError, conformed, observed, text_of
from penstock.plan._parted import ROOM_NBYTES, PartSizes
from penstock.plan._source import Read, Source
from penstock.sources.boxes import BoxSource

_log = logging.getLogger("penstock")

_RAGGED: Final = (
    " If axes differ from element to element, say so with None, in a tree like the element: "
    "from_source(items, element_spec=penstock.ArraySpec((None,), dtype))."
)

_IN_TURN: Final = "concatenate([from_arrays(array) for array in arrays])"

# Without fillna(), pandas 3 cuts each text of a column with a missing value to its first character.
_TEXT_OF_PANDAS: Final = "table['name'].fillna('').to_numpy('U')"

# Characters of a text in a message. A longer text shows its beginning and its end, where paths differ.
_MAX_TEXT: Final = 120

LEAST_PART_NBYTES: Final = 64 << 10
"""The least rows of chunks that are decoded for all workers: handing over a smaller one takes as long as decoding."""

_NDIM: Final = operator.attrgetter("ndim")

# Elements of an object that are read before they are written. They may be large.
_AT_ONCE: Final = 64


@final
class ArraySource(Source):
    """The rows of an array in memory. The array is not copied, and must not change while it is read."""

    def __init__(self, array: npt.NDArray[Any], dtype: np.dtype[Any] | None = None) -> None:
        # Without a subclass: rows of `np.matrix` have two axes, and other classes refuse a change of dtype.
        self._array = array = np.asarray(array, dtype)
        self._rows = native.Engine.memory(array)
        self.element_spec: Tree = ArraySpec(array.shape[1:], array.dtype)

    def __reduce__(self) -> Any:
        # The memory layout may differ where it arrives. NumPy may change the byte order of what it pickles.
        return ArraySource, (self._array, self._array.dtype)

    def __len__(self) -> int:
        return len(self._array)

    def __str__(self) -> str:
        return f"array of {ArraySpec(self._array.shape, self._array.dtype)}"

    def describe(self, index: int) -> str:
        """Names the row, and its text, which may be the name of a file that a function reads."""
        row = f"row {index} of {self}"
        if self._array.ndim == 1 and self._array.dtype.kind == "U":
            row += f", {_shortened(str(self._array[index]))!r}"
        return row

    def unstacked(self) -> "ArraySource | None":
        """Returns the parts of the rows, if that takes no copy."""
        array = self._array
        if array.ndim < 2 or 0 in array.shape[:2] or array.strides[0] != array.shape[1] * array.strides[1]:
            return None
        return ArraySource(array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]))

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource:
        return BoxSource(self, sizes, keeps_first=keeps_first)

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """A box of the array."""
        return self._array[box]

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Copies rows."""
        out[...] = self._array[indices]

    def arrays(self) -> Sequence[npt.NDArray[Any]]:
        """The array."""
        return (self._array,)

    def gather(self, reads: Sequence[Read]) -> None:
        native.copy(copies_of(self._rows, reads) if self._array.size else ())


def copies_of(source: native.Source, reads: Sequence[Read]) -> list[tuple[Any, ...]]:
    """Returns reads of one leaf as copies for the engine."""
    copies: list[tuple[Any, ...]] = []
    for read in reads:
        (out,), rows = read.arrays, read.rows
        place = (out[rows], None) if isinstance(rows, slice) else (out, rows)
        copies.append((source, read.indices, *place, None))
    return copies


def _shortened(text: str) -> str:
    """Returns at most `_MAX_TEXT` characters of a text. The end of a long path tells most."""
    return text if len(text) <= _MAX_TEXT else text[:20] + "..." + text[23 - _MAX_TEXT :]


@final
class RangeSource(Source):
    """The integers from 0 on, int64 scalars."""

    element_spec: Tree = ArraySpec((), np.dtype(np.int64))

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return str(self._count)

    def describe(self, index: int) -> str:
        return f"the integer {index}"

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        out[...] = indices


@final
@dataclass(frozen=True)
class NumberSource(Source):
    """One integer as every element: the number of the file that they are of, int64."""

    number: int
    count: int

    element_spec = ArraySpec((), np.int64)

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        return f"file {self.number}"

    def arrays(self) -> Sequence[npt.NDArray[Any]]:
        """An array of one integer, without a place for each."""
        return (np.broadcast_to(np.int64(self.number), (self.count,)),)

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        out[...] = self.number


@final
class SequenceSource(Source):
    """Any object with `len(obj)` and `obj[i]`: a list, a map-style torch dataset.

    Reads many elements by `__getitems__`, if the object has it. Several threads read at once.

    Args:
        items: The object.
        declared: Spec of its elements; None to infer it from element 0 when it is first needed.
    """

    may_hold_gil = True

    def __init__(self, items: Any, declared: Spec | None = None) -> None:
        self._items = items
        self._spec = declared
        self._is_declared = declared is not None
        self._is_loose = False

    def __len__(self) -> int:
        return len(self._items)

    def __str__(self) -> str:
        return str(self._items) if isinstance(self._items, TableRows) else type(self._items).__name__

    @property
    def _is_list(self) -> bool:
        return type(self._items) in (list, tuple)

    @property
    def suits_one_thread(self) -> bool:  # type: ignore[override]  # another object may wait for something
        return self._is_list

    def describe(self, index: int) -> str:
        """Names the object's type and the index; for a list also the element's text, often the name of a file."""
        place = f"{self}[{index}]"
        if not self._is_list or index >= len(self._items):
            return place  # reading an element may take long, or fail again
        text = next((leaf for leaf in _tree.flatten(self._items[index])[0] if isinstance(leaf, str)), None)
        return place if text is None else f"{place}, {_shortened(str.__str__(text))!r}"  # also of enumerations

    @property
    def element_spec(self) -> Tree:
        return self._known_spec().tree

    def _known_spec(self) -> Spec:
        if self._spec is None:
            if len(self) == 0:
                raise SpecError(
                    f"{self} is empty, so the look of its elements is unknown. Give it elements, or say it: "
                    "from_source(items, element_spec=penstock.ArraySpec(shape, dtype)), or a tree of them."
                )
            item = self._get([0])[0]
            try:
                found = observed(_by_name(item, None))
            except MisfitError as misfit:
                raise self._misfit(misfit, 0) from None
            found = Spec.of(_of_any_length(item, found.tree))
            self._spec = found.loosened() if self._is_loose else found
        return self._spec

    def loosened(self) -> "SequenceSource":
        if self._is_declared:
            return self
        loose = SequenceSource(self._items)
        loose._is_loose = True
        return loose

    def read_into(self, indices: Indices, out: Tree) -> None:
        arrays = _tree.flatten_like(self._known_spec().structure, out)
        self._fill(Read(indices, arrays, slice(0, len(indices))))

    def gather(self, reads: Sequence[Read]) -> None:
        for read in reads:
            self._fill(read)

    def _fill(self, read: Read) -> None:
        """Reads some elements at a time, or all in one call of `__getitems__`."""
        spec, numbers = self._known_spec(), read.indices.tolist()
        rows = range(*read.rows.indices(len(read.arrays[0]))) if isinstance(read.rows, slice) else read.rows.tolist()
        step = len(numbers) if hasattr(self._items, "__getitems__") else min(_AT_ONCE, chunk_count(spec))
        for start, stop in ranges_of(len(numbers), max(1, step)):
            columns = self._columns(numbers[start:stop], spec)
            for array, column, rank in zip(read.arrays, columns, spec.free_ranks, strict=True):
                # Copies, because another object than a list may use its memory again, and a function may write to them.
                is_own = array.dtype.hasobject and not (read.may_borrow and self._is_list)
                for row, leaf in zip(rows[start:stop], _copies(column, rank) if is_own else column, strict=True):
                    array[row] = leaf

    def _columns(self, numbers: list[int], spec: Spec) -> list[Sequence[Any]]:
        """The leaves of elements: for each leaf a list."""
        items = self._get(numbers)
        if spec.is_lone and spec.free_ranks[0] >= 0:  # text, or arrays of any size; `conformed` takes ten times as long
            dtype, rank = spec.leaves[0].dtype, spec.free_ranks[0]
            if set(map(type, items)) == {np.ndarray} and have_dtype(items, dtype) and set(map(_NDIM, items)) == {rank}:
                return [items]
        elements, has_dicts = [], isinstance(spec.tree, dict) and any(isinstance(x, dict) for x in spec.tree.values())
        for index, item in zip(numbers, items, strict=True):
            try:
                elements.append(conformed(spec, _by_name(item, spec.tree) if has_dicts else item))
            except MisfitError as found:
                raise self._misfit(found, index) from None
        return list(zip(*elements, strict=True))

    def _misfit(self, found: MisfitError, index: int) -> SpecError:
        return SpecError(
            f"{self.describe(index)} gave {found}{text_of(found, self._spec, is_declared=self._is_declared)}"
        )

    def _get(self, indices: list[int]) -> Sequence[Any]:
        try:
            if hasattr(self._items, "__getitems__"):
                items = list(self._items.__getitems__(indices))
                if len(items) != len(indices):
                    raise ValueError(f"__getitems__() gave {len(items)} elements for {len(indices)} indices")
                return items
            return [self._items[index] for index in indices]
        except BaseException as error:
            if is_untouched(error):
                raise
            raise ElementError(
                f"{self} failed on elements {indices[:4]}{'...' if len(indices) > 4 else ''}: {words_of(error)}"
            ) from error


def _is_list_of_dicts(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(x) is dict and x.keys() == value[0].keys() for x in value)


def _by_name(value: Any, spec: Tree) -> Any:
    """An element whose lists of dicts, as JSON has them, are dicts of lists; empty ones as far as the spec says so."""
    if _is_list_of_dicts(value):
        within = spec if isinstance(spec, dict) else {}
        return {name: [_by_name(each[name], within.get(name)) for each in value] for name in value[0]}
    if isinstance(spec, dict) and type(value) is list and not value:
        leaves, structure = _tree.flatten(spec)
        return structure.unflatten([np.empty([size or 0 for size in leaf.shape], leaf.dtype) for leaf in leaves])
    if type(value) is not dict:
        return value
    return {name: _by_name(each, spec.get(name) if isinstance(spec, dict) else None) for name, each in value.items()}


def _of_any_length(value: Any, spec: Tree) -> Tree:
    """The spec of an element, in which such lists may have any length, and their texts any size."""
    if _is_list_of_dicts(value):
        leaves, structure = _tree.flatten(spec)
        kinds = [np.dtype(leaf.dtype.kind) if leaf.dtype.kind in "US" else leaf.dtype for leaf in leaves]
        loose = [ArraySpec((None, *x.shape[1:]), kind) for x, kind in zip(leaves, kinds, strict=True)]
        return structure.unflatten(loose)
    if type(value) is not dict or not isinstance(spec, dict):
        return spec
    return {name: _of_any_length(each, spec[name]) for name, each in value.items()}


def _copies(column: Sequence[Any], rank: int) -> Sequence[Any]:
    """Copies of the arrays of a column; vectors in one piece of memory."""
    if rank == 1 and all(type(leaf) is np.ndarray for leaf in column):
        whole = np.concatenate(column, dtype=column[0].dtype)  # else it has the byte order of the machine
        bounds = itertools.accumulate(map(len, column), initial=0)
        return [whole[start:stop] for start, stop in itertools.pairwise(bounds)]
    return [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in column]


def as_array(leaf: object, place: str) -> npt.NDArray[Any]:
    """Returns a leaf given to `from_arrays` as an array with a first axis.

    Raises:
        ArgumentTypeError: It is no array, holds Python objects, or has no first axis; or it is a group of arrays, of
            which NumPy would take the names.
    """
    if isinstance(leaf, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"from_arrays() got {os.fspath(leaf)!r} at {place or 'the top'}, and takes arrays, not the names of files. "
            "from_npy(path) reads a .npy file; files of HDF5 and Zarr are given open: h5py.File(path)['x'], "
            "zarr.open(path)['x']."
        )
    if hasattr(leaf, "keys") and not hasattr(leaf, "__array__"):  # a group of HDF5 or Zarr, an archive of np.load
        names = [str(name) for name in leaf]  # type: ignore[attr-defined]
        raise ArgumentTypeError(
            f"from_arrays() got {type_of(leaf)} at {place or 'the top'}, which has arrays by name: "
            f"{', '.join(names[:8])}{', ...' * (len(names) > 8)}. Give one of them, file[{(names or ['x'])[0]!r}], or "
            "all in a tree, dict(file)."
        )
    try:
        array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, or tensors on a device
        cure = _RAGGED if isinstance(leaf, (list, tuple)) else " Give what numpy.asarray() takes."
        if isinstance(leaf, list) and isinstance(leaf[0], np.ndarray):
            cure += f" Rows of one array after the other's: {_IN_TURN}."
        raise ArgumentTypeError(
            f"from_arrays() got {type_of(leaf)} that makes no array at {place or 'the top'}: "
            f"{str(error).rstrip('.')}.{cure}"
        ) from error
    if isinstance(leaf, list) and leaf and isinstance(leaf[0], np.memmap):
        _log.warning(
            "from_arrays() has read a list of memmaps into memory, %s bytes, as one array of shape %s, whose elements "
            "are whole memmaps. Their rows one after the other, read when they are needed: %s.",
            f"{array.nbytes:,}",
            array.shape,
            _IN_TURN,
        )
    if loses_zeros(leaf, array):
        raise ArgumentTypeError(
            f"from_arrays() got {type_of(leaf)} at {place or 'the top'} with text or bytes that end in a zero, and "
            "arrays of NumPy drop zeros at the end. from_source() takes the list as it is."
        )
    if is_masked(array) or loses_masks(leaf, array):
        raise ArgumentTypeError(
            f"from_arrays() got a masked array at {place or 'the top'}, and a batch has no masks: masked items would "
            "be delivered as they lie in memory. Fill it, array.filled(0), and give the mask, array.mask, as a leaf of "
            "its own if it is needed."
        )
    if array.dtype.hasobject:
        cure = (
            "Give an array of numbers or text, such as array.astype('U') or array.astype('float32'), or use "
            "from_source()."
        )
        if array.dtype.names:
            cure = "Give its fields as columns: {'x': array['x'], 'name': array['name'].astype('U')}."
        elif hasattr(leaf, "columns"):
            cure = f"Give the columns of a table: {{'x': table['x'].to_numpy(), 'name': {_TEXT_OF_PANDAS}}}."
        elif array.dtype.kind == "T":  # NumPy casts it only to a dtype with a size
            cure = "Give text of one size: np.array(array.tolist())."
        elif hasattr(leaf, "to_numpy"):  # astype of pandas has no text
            cure = f"Give numbers or text: table['x'].to_numpy('float32'), {_TEXT_OF_PANDAS}."
        elif hasattr(leaf, "tocsr"):
            cure = "Rows of a sparse matrix: from_csr(matrix.tocsr())."
        got = "Python objects" if array.ndim or array is leaf else type_of(leaf)
        raise ArgumentTypeError(f"from_arrays() got {got} at {place or 'the top'} (dtype {array.dtype}). {cure}")
    require_rows(array, leaf, place)
    return array


def require_rows(array: Any, leaf: object, place: str, *, is_text: bool = False) -> None:
    """Refuses an array without a first axis, of values without bytes, or with rows of no fixed size that are no text.

    Raises:
        ArgumentTypeError: It has no first axis, or its values have no bytes.
        SpecError: It holds Python objects, such as arrays of any size in HDF5.
    """
    if not array.shape:  # None where an HDF5 dataset is empty
        raise ArgumentTypeError(
            f"from_arrays() got the single value {leaf!r} at {place or 'the top'}. Every leaf needs a first axis that "
            "counts elements."
        )
    if not array.dtype.itemsize:
        raise ArgumentTypeError(
            f"from_arrays() got values of no bytes at all at {place or 'the top'} (dtype {array.dtype}), so there is "
            "nothing to read. Leave them out, or give them a dtype that has a size, such as 'U1' for empty text."
        )
    if array.dtype.hasobject and not is_text:
        raise SpecError(
            f"from_arrays() got {leaf!r} at {place or 'the top'}, whose values are of any size (dtype {array.dtype}) "
            "and have no place in a batch. Arrays can be read one by one: from_source(data, "
            "element_spec=penstock.ArraySpec((None,), dtype))."
        )


class NamedSource(Source):
    """Rows of data of another library, which each process opens again by their names.

    If chunks are compressed, those with the same place on the first axis are a part: `open` returns an object with
    `decode(part)`, too.
    """

    count: int
    chunk_nbytes: int = 0
    """The memory of a chunk; 0 for an array in one piece."""
    is_packed: bool = False
    """Whether each chunk is compressed, so that it is decoded as a whole."""

    @property
    def parts(self) -> PartSizes | None:
        """The rows of chunks; None if they are not compressed, too small to gain anything, or too large to keep two."""
        spec, rows = self.element_spec, self.chunk_shape[0] if self.chunk_shape else 0
        if not self.is_packed or rows < 2 or not self.count:
            return None
        assert isinstance(spec, ArraySpec)
        if not spec.dtype.itemsize:  # text
            return None
        bounds = np.append(np.arange(0, self.count, rows), self.count)
        nbytes = spec.nbytes * np.diff(bounds)
        if not LEAST_PART_NBYTES <= nbytes[0] <= ROOM_NBYTES // 2:
            return None
        return PartSizes.of(bounds, nbytes, nbytes + self.chunk_nbytes)

    def rows_of(self, part: int) -> tuple[int, int]:
        """Returns the first row of a part, and the one behind its last."""
        assert self.chunk_shape is not None
        return part * self.chunk_shape[0], min((part + 1) * self.chunk_shape[0], self.count)

    def __len__(self) -> int:
        return self.count

    def describe(self, index: int) -> str:
        return f"{self}[{index}]"

    def require_same(self, now: Any, found: ArraySpec) -> None:
        """Refuses an array in a file that has changed. New rows at its end are allowed.

        Args:
            now: The array.
            found: The spec of its rows.

        Raises:
            SourceError: It has fewer rows, or other rows.
        """
        cure = "when the dataset was made. Make the dataset again."
        if now.shape[0] < self.count:
            raise SourceError(f"{self} has {now.shape[0]} rows now; it had {self.count} {cure}")
        if found != self.element_spec:
            raise SourceError(f"A row of {self} is {found} now; it was {self.element_spec} {cure}")
