"""Columns of Arrow as leaves of elements: the spec of a type, and rows of a decoded column into a batch.

Fixed-size values are NumPy views of Arrow's buffers, which may lie in a mapped file. They are decoded by hand, because
`to_numpy()` imports pandas, which takes 24 MiB in each process.

A null is an error, unless there is a value that stands in for it (`fill`). A list that is null is then an empty one.
"""

import math
import mmap
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from penstock import native
from penstock.base._errors import SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import text_array

Integers = npt.NDArray[np.int64]

MAPPED_NBYTES: Final = 64 << 10
"""Columns of this size and more are memory mappings."""


class NullError(Exception):
    """A column lacks a value.

    Args:
        row: The first row without one.
        is_inner: Whether the value is a list that lacks a value, or has another length than its spec.
    """

    column: str = ""
    """The name of the column, once it is known."""
    filler: Any = 0
    """A value that the column can hold."""

    def __init__(self, row: int, *, is_inner: bool = False) -> None:
        super().__init__(row)
        self.row = row
        self.is_inner = is_inner

    def at(self, where: str) -> SourceError:
        """The error, as users read it, of an element that lies at a place."""
        return SourceError(
            f"{where} has no value in column {self.column!r}: it is null, and arrays have no such thing. Say what "
            f"stands in for it: fill_null={{{self.column!r}: {self.filler!r}}}, and null_masks=[{self.column!r}] to "
            "know where; or leave the column out with columns=[...]."
        )


def spec_of(name: str, kind: Any) -> ArraySpec:
    """Returns the spec of a column's values.

    Numbers, truth values, times and durations are scalars of the same dtype. A list has a first axis of any size. A
    list of fixed size, or a tensor, has its shape. Bytes are uint8, of shape `(None,)` or `(n,)`.

    Raises:
        SpecError: No array holds such values: maps, decimals, lists of lists of any size, lists of bytes.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return ArraySpec(tuple(kind.shape[axis] for axis in _axes(kind)), spec_of(name, kind.value_type).dtype)
    if isinstance(kind, pa.BaseExtensionType):
        return spec_of(name, kind.storage_type)
    if kinds.is_dictionary(kind):
        return spec_of(name, kind.value_type)
    if is_text(kind):
        return ArraySpec((), np.dtype("U"))
    if kinds.is_fixed_size_binary(kind):
        return ArraySpec((kind.byte_width,), np.dtype(np.uint8))
    if is_binary(kind):
        return ArraySpec((None,), np.dtype(np.uint8))
    if is_list(kind):
        inner = spec_of(name, kind.value_type)
        first = kind.list_size if kinds.is_fixed_size_list(kind) else None
        if (None not in inner.shape and inner.dtype.itemsize) or (inner.shape == () and first is None):
            return ArraySpec((first, *inner.shape), inner.dtype)
    elif (dtype := dtype_of(kind)) is not None:
        return ArraySpec((), dtype)
    raise SpecError(
        f"column {name!r} is {kind}, which is no array of numbers, text or bytes. Leave it out with columns=[...], or "
        "write the file with its parts as columns of their own."
    )


def is_text(kind: Any) -> bool:
    """Whether values are text."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_binary(kind: Any) -> bool:
    """Whether values are byte strings of any size."""
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def is_list(kind: Any) -> bool:
    """Whether values are lists."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def dtype_of(kind: Any) -> np.dtype[Any] | None:
    """Returns the dtype of scalars; None if NumPy has none."""
    if kinds.is_date(kind):
        return np.dtype("M8[D]" if kinds.is_date32(kind) else "M8[ms]")
    if kinds.is_timestamp(kind) or kinds.is_duration(kind):
        return np.dtype(f"{'M' if kinds.is_timestamp(kind) else 'm'}8[{kind.unit}]")
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    return None


def _axes(kind: Any) -> list[int]:
    """Returns the axes of a tensor type in their logical order, as numbers of the physical axes."""
    return list(range(len(kind.shape)) if kind.permutation is None else kind.permutation)


@final
class Column:
    """The decoded values of some rows, each of the same shape.

    Args:
        values: The values, `(rows, *shape)`.
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values
        self.source = native.Engine.memory(values)
        """The values, for copies."""

    @property
    def nbytes(self) -> int:
        """The memory of the values."""
        return self._values.nbytes

    def room(self, count: int) -> "Column":
        """Returns memory for `count` rows, which `append` fills."""
        return Column(_memory((count, *self._values.shape[1:]), self._values.dtype))

    def append(self, row: int, rows: "Column | Ragged") -> None:
        """Copies another column behind the first `row` rows."""
        assert isinstance(rows, Column)
        self._values[row : row + len(rows._values)] = rows._values

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array."""
        out[rows] = self._values[indices]


class _Piece(NamedTuple):
    """The values of neighbouring rows, end to end."""

    bounds: Any
    """The start of each row in the values, and the end of the last: a memoryview, whose items are read fastest."""
    values: Any
    """An array of numbers, a memoryview of bytes, or for lists of text the texts as a `_Piece`."""

    @property
    def nbytes(self) -> int:
        return int(self.bounds.nbytes + self.values.nbytes)

    def texts(self, kind: str) -> Any:
        """The rows as an Arrow array of text (kind `U`) or bytes, for it makes Python's fastest."""
        is_large = self.bounds.itemsize == 8
        if kind == "U":
            form = pa.large_string() if is_large else pa.string()
        else:
            form = pa.large_binary() if is_large else pa.binary()
        buffers = [None, pa.py_buffer(self.bounds), pa.py_buffer(self.values)]
        return pa.Array.from_buffers(form, len(self.bounds) - 1, buffers)

    def copied(self) -> "_Piece":
        first, last = self.bounds[0], self.bounds[-1]
        if isinstance(self.values, _Piece):
            values: Any = _Piece(self.values.bounds[first : last + 1], self.values.values).copied()
        else:
            values = _copy(np.asarray(self.values[first:last]))
        bounds = _copy(np.asarray(self.bounds) - first)
        return _Piece(bounds.data, values.data if isinstance(self.values, memoryview) else values)


@final
class Ragged:
    """The decoded values of some rows, each of any size, in the pieces in which they were decoded.

    Args:
        spec: The spec of a row. Text and byte strings become Python objects when they are read.
        pieces: The values.
    """

    source: None = None
    """See `Column.source`: values of any size are no memory to copy."""

    def __init__(self, spec: ArraySpec, *pieces: _Piece) -> None:
        self._spec, self._pieces, self._firsts = spec, list(pieces), [0] * len(pieces)

    @property
    def nbytes(self) -> int:
        """The memory of the values."""
        return sum(piece.nbytes for piece in self._pieces)

    def room(self, count: int) -> "Ragged":
        """Returns an empty column, which `append` fills."""
        return Ragged(self._spec)

    def append(self, row: int, rows: "Column | Ragged") -> None:
        """Copies another column behind the first `row` rows."""
        assert isinstance(rows, Ragged)
        self._firsts.append(row)
        self._pieces += [piece.copied() for piece in rows._pieces]

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array."""
        dtype, is_list = self._spec.dtype, bool(self._spec.shape)
        numbers = np.searchsorted(self._firsts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            places = indices[mine] - self._firsts[number]
            piece = self._pieces[number]
            values = piece.values
            if not dtype.itemsize:
                values = (values if is_list else piece).texts(dtype.kind)
                if not is_list:
                    out[rows[mine]] = values.take(pa.array(places)).to_pylist()
                    continue
            bounds = np.asarray(piece.bounds)
            limits = bounds[places].tolist(), bounds[places + 1].tolist()
            for row, start, stop in zip(rows[mine].tolist(), *limits, strict=True):
                if dtype.itemsize:
                    out[row] = values[start:stop].copy()
                else:
                    out[row] = text_array(np.array(values[start:stop].to_pylist(), object), "U")


def is_copied(kind: Any) -> bool:
    """Whether `column_of` copies the values of a column instead of viewing them."""
    kind = getattr(kind, "storage_type", kind)
    if kinds.is_dictionary(kind) or not hasattr(kind, "value_type"):
        views = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
        return bool(views or kinds.is_dictionary(kind) or kinds.is_boolean(kind) or kinds.is_date(kind))
    return is_copied(kind.value_type)


def column_of(values: Any, spec: ArraySpec, name: str = "", first: int = 0) -> Column | Ragged:
    """Decodes an Arrow array. Values that are in memory in the right form are not copied.

    Args:
        values: An array.
        spec: The spec of a value. Dtype `S` makes Python's bytes of byte strings.
        name: The name of the column, for the error.
        first: The row of the first value, for the error.

    Raises:
        NullError: A value is missing.
    """
    try:
        if spec.dtype.itemsize and None not in spec.shape:
            return Column(numbers(values, spec.shape))
        return Ragged(spec, _piece(_plain(values), spec))
    except NullError as error:
        error.column, error.filler = name, 0 if spec.dtype.itemsize else ""
        error.row += first
        raise


def _piece(values: Any, spec: ArraySpec) -> _Piece:
    kind = values.type
    if is_text(kind) or is_binary(kind):
        _, bounds, data = values.buffers()
        dtype = np.int64 if kinds.is_large_binary(kind) or kinds.is_large_string(kind) else np.int32
        offsets = np.frombuffer(bounds or bytes(8), dtype)[values.offset : values.offset + len(values) + 1]
        data = np.frombuffer(data or b"", np.uint8)
        return _Piece(offsets.data, data if spec.dtype.itemsize else data.data)
    offsets = numbers(values.offsets, ())
    offsets = offsets - offsets[0]
    inner: Any = values.flatten()
    try:
        inner = numbers(inner, spec.shape[1:]) if spec.dtype.itemsize else _piece(_plain(inner), spec)
    except NullError as error:
        raise NullError(int(np.searchsorted(offsets, error.row, "right")) - 1, is_inner=True) from None
    return _Piece(offsets.data, inner)


def _plain(values: Any) -> Any:
    """Returns values in the form of their storage, without dictionaries and views.

    Raises:
        NullError: A value is missing.
    """
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if values.null_count:
        raise NullError(int(np.argmax(numbers(values.is_null(), ()))))
    if kinds.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if kinds.is_string_view(values.type) or kinds.is_binary_view(values.type):
        return values.cast(pa.large_string() if is_text(values.type) else pa.large_binary())
    return values


def numbers(values: Any, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Returns values of one shape as `(len(values), *shape)`."""
    if isinstance(kind := values.type, pa.FixedShapeTensorType):
        tensors = numbers(values.storage, (math.prod(kind.shape),)).reshape(-1, *kind.shape)
        return tensors.transpose(0, *(axis + 1 for axis in _axes(kind)))
    values = _plain(values)
    kind, count = values.type, len(values)
    data, start = values.buffers()[1] or b"", values.offset
    if kinds.is_fixed_size_binary(kind):
        size = kind.byte_width
        return np.frombuffer(data, np.uint8, count * size, start * size).reshape(count, size)
    if is_list(kind):
        (size,) = shape[:1]
        assert size is not None
        if not kinds.is_fixed_size_list(kind):
            others = np.flatnonzero(np.diff(numbers(values.offsets, ())) != size)
            if len(others):
                raise NullError(int(others[0]), is_inner=True)
        try:
            inner = numbers(values.flatten(), shape[1:])
        except NullError as error:
            raise NullError(error.row // max(1, size), is_inner=True) from None
        return inner.reshape(count, size, *inner.shape[1:])
    if kinds.is_boolean(kind):
        bits = np.frombuffer(data, np.uint8)[start // 8 : (start + count + 7) // 8]
        return np.unpackbits(bits, bitorder="little")[start % 8 :][:count].view(np.bool_)
    dtype = dtype_of(kind)
    stored = np.dtype(np.int32) if kinds.is_date32(kind) else dtype
    assert dtype is not None
    assert stored is not None
    return np.frombuffer(data, stored, count, start * stored.itemsize).astype(dtype, copy=False)


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns an array whose memory goes back to the system when it is freed. The C library would keep most of it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MAPPED_NBYTES:
        return np.empty(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.ndarray(shape, dtype, mmap.mmap(-1, nbytes, **private))


def _copy(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    made = _memory(values.shape, values.dtype)
    made[...] = values
    return made
