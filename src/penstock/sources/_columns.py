"""Columns of Arrow as leaves of elements: which spec a type has, and rows of a decoded column into a batch."""

import math
import mmap
from abc import ABC, abstractmethod
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec

Integers = npt.NDArray[np.int64]

MAPPED_NBYTES: Final = 64 << 10
"""So large a column is memory of its own."""


class NullError(Exception):
    """A column lacks a value."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row
        """Which row."""


def spec_of(name: str, kind: Any) -> ArraySpec:
    """Returns the spec of a column's values.

    Numbers, truth values, times and durations are scalars of the same dtype; a list has a first axis of any size, and
    one of fixed size, or a tensor, its shape; text is text; bytes are uint8, of shape `(None,)` or `(n,)`.

    Raises:
        SpecError: There is no such array: structs, maps, decimals, lists of text.
    """
    if kinds.is_dictionary(kind):
        return spec_of(name, kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType):
        return ArraySpec(tuple(kind.shape[axis] for axis in _axes(kind)), spec_of(name, kind.value_type).dtype)
    if isinstance(kind, pa.BaseExtensionType):
        return spec_of(name, kind.storage_type)
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return ArraySpec((), np.dtype("U"))
    if kinds.is_fixed_size_binary(kind):
        return ArraySpec((kind.byte_width,), np.dtype(np.uint8))
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return ArraySpec((None,), np.dtype(np.uint8))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        inner = spec_of(name, kind.value_type)
        if None not in inner.shape and inner.dtype.itemsize:
            first = kind.list_size if kinds.is_fixed_size_list(kind) else None
            return ArraySpec((first, *inner.shape), inner.dtype)
    elif kinds.is_date32(kind):
        return ArraySpec((), np.dtype("M8[D]"))
    elif kinds.is_date64(kind):
        return ArraySpec((), np.dtype("M8[ms]"))
    elif kinds.is_timestamp(kind) or kinds.is_duration(kind):
        return ArraySpec((), np.dtype(f"{'M' if kinds.is_timestamp(kind) else 'm'}8[{kind.unit}]"))
    elif kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        return ArraySpec((), np.dtype(kind.to_pandas_dtype()))
    raise SpecError(
        f"column {name!r} is {kind}, which is no array of numbers, text or bytes. Leave it out with columns=[...], or "
        "write the file with its parts as columns of their own."
    )


def _axes(kind: Any) -> list[int]:
    """The axes of a tensor in the order in which it has them, as numbers of those that lie in memory."""
    return list(range(len(kind.shape)) if kind.permutation is None else kind.permutation)


class Column(ABC):
    """The values of some rows, decoded."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that they take."""

    @abstractmethod
    def room(self, count: int, value_count: int) -> "Column":
        """New memory for so many rows of this kind, and about so many values of lists, to be filled by `append`."""

    @abstractmethod
    def append(self, row: int, rows: Any) -> None:
        """Copies the rows of another column of this kind, behind the `row` rows that were copied before."""

    @abstractmethod
    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array."""


@final
class Builder:
    """Makes one column of Arrow arrays that come one after the other, and keeps none of them.

    Args:
        count: The rows in all.
        value_count: The values in all, of lists; the bytes, of text. A guess will do.
    """

    def __init__(self, count: int, value_count: int) -> None:
        self._count, self._value_count = count, value_count
        self._row = 0
        self.column: Column | None = None
        """What was made of them; None before the first."""

    def add(self, values: Any) -> None:
        """Takes the next rows.

        Raises:
            NullError: A value is missing.
        """
        try:
            part = column_of(values)
        except NullError as error:
            raise NullError(self._row + error.row) from None
        self.column = self.column or part.room(self._count, self._value_count)
        self.column.append(self._row, part)
        self._row += len(values)


def is_copied(kind: Any) -> bool:
    """Whether `column_of` makes other memory of a column, or of what its lists hold."""
    if kinds.is_dictionary(kind) or not hasattr(kind, "value_type"):
        views = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
        return bool(views or kinds.is_dictionary(kind) or kinds.is_boolean(kind) or kinds.is_date(kind))
    return is_copied(kind.value_type)


def column_of(values: Any) -> Column:
    """Decodes an Arrow array; what is in memory already in the right form is not copied.

    Raises:
        NullError: A value is missing.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    if kinds.is_dictionary(kind):
        _require_values(values)
        values = values.dictionary_decode()
        kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        shape = tuple(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else None
        inner = column_of(values.storage)
        if shape is not None and isinstance(inner, _Fixed):
            return _Fixed(inner.values.reshape(-1, *shape).transpose(0, *(axis + 1 for axis in _axes(kind))))
        return inner
    _require_values(values)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        values = values.cast(pa.large_string() if kinds.is_string_view(kind) else pa.large_binary())
        kind = values.type
    if kinds.is_fixed_size_binary(kind):
        return _Fixed(_fixed_bytes(values))
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    if is_text or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        _, bounds, data = values.buffers()
        dtype = np.int64 if kinds.is_large_binary(kind) or kinds.is_large_string(kind) else np.int32
        offsets = np.frombuffer(bounds or bytes(8), dtype)[values.offset : values.offset + len(values) + 1]
        return (_Texts if is_text else _Lists)(np.frombuffer(data or b"", np.uint8), offsets)
    if kinds.is_fixed_size_list(kind):
        return _Fixed(_numbers(values))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        offsets = _numbers(values.offsets)
        offsets = offsets - offsets[0]
        try:
            return _Lists(_numbers(values.flatten()), offsets)
        except NullError as error:
            raise NullError(int(np.searchsorted(offsets, error.row, "right")) - 1) from None
    return _Fixed(_numbers(values))


def _numbers(values: Any) -> npt.NDArray[Any]:
    """An array of the values' spec, for what has a fixed size."""
    _require_values(values)
    if kinds.is_fixed_size_list(values.type):
        size = values.type.list_size
        try:
            inner = _numbers(values.flatten())
        except NullError as error:
            raise NullError(error.row // size) from None
        return inner.reshape(len(values), size, *inner.shape[1:])
    if kinds.is_fixed_size_binary(values.type):
        return _fixed_bytes(values)
    # By hand, for to_numpy() imports pandas, which takes 24 MiB in each process.
    data, count = values.buffers()[1] or b"", len(values)
    if kinds.is_boolean(values.type):
        bits = np.frombuffer(data, np.uint8)[values.offset // 8 : (values.offset + count + 7) // 8]
        return np.unpackbits(bits, bitorder="little")[values.offset % 8 :][:count].view(np.bool_)
    dtype = spec_of("", values.type).dtype
    stored = np.dtype(np.int32) if kinds.is_date32(values.type) else dtype
    return np.frombuffer(data, stored, count, values.offset * stored.itemsize).astype(dtype, copy=False)


def _fixed_bytes(values: Any) -> npt.NDArray[np.uint8]:
    """Byte strings of one size, shape `(n, size)`."""
    size, count = values.type.byte_width, len(values)
    return np.frombuffer(values.buffers()[1] or b"", np.uint8, count * size, values.offset * size).reshape(count, size)


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array whose memory goes back to the system when it is let go of: the C library would keep most of it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MAPPED_NBYTES:
        return np.empty(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.ndarray(shape, dtype, mmap.mmap(-1, nbytes, **private))


def _require_values(values: Any) -> None:
    if values.null_count:
        raise NullError(int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))))


@final
class _Fixed(Column):
    """Values of one shape."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def room(self, count: int, value_count: int) -> "_Fixed":
        return _Fixed(_memory((count, *self.values.shape[1:]), self.values.dtype))

    def append(self, row: int, rows: "_Fixed") -> None:
        self.values[row : row + len(rows.values)] = rows.values

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        out[rows] = self.values[indices]


class _Lists(Column):
    """Values whose first axis is of any size: those of all rows one after the other, and where each starts."""

    def __init__(self, values: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        self._values, self._offsets = values, offsets

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._offsets.nbytes

    def room(self, count: int, value_count: int) -> "_Lists":
        values = _memory((value_count, *self._values.shape[1:]), self._values.dtype)
        offsets = _memory((count + 1,), np.dtype(np.int64))
        offsets[0] = 0
        return type(self)(values, offsets)

    def append(self, row: int, rows: "_Lists") -> None:
        first, last = int(rows._offsets[0]), int(rows._offsets[-1])
        at = int(self._offsets[row])
        if (end := at + last - first) > len(self._values):
            larger = _memory((max(end, len(self._values) * 3 // 2), *self._values.shape[1:]), self._values.dtype)
            larger[:at] = self._values[:at]
            self._values = larger
        self._values[at:end] = rows._values[first:last]
        self._offsets[row : row + len(rows._offsets)] = rows._offsets + np.int64(at - first)

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        for row, index in zip(rows.tolist(), indices.tolist(), strict=True):
            out[row] = self._values[self._offsets[index] : self._offsets[index + 1]].copy()


@final
class _Texts(_Lists):
    """Texts, as their bytes: they become objects when they are asked for."""

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        starts, stops = self._offsets[indices].tolist(), self._offsets[indices + 1].tolist()
        data = memoryview(self._values.data)
        for row, start, stop in zip(rows.tolist(), starts, stops, strict=True):
            out[row] = str(data[start:stop], "utf-8")
