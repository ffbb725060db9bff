"""Columns of Arrow as leaves of elements: which spec a type has, and rows of a decoded column into a batch."""

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from penstock._errors import SpecError
from penstock._spec import ArraySpec

Integers = npt.NDArray[np.int64]


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

    @abstractmethod
    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array."""


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
    if kinds.is_string_view(kind):  # which has no take()
        return _Texts(values.cast(pa.large_string()))
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _Texts(values)
    if kinds.is_binary_view(kind):
        values = values.cast(pa.large_binary())
        kind = values.type
    if kinds.is_fixed_size_binary(kind):
        return _Fixed(_fixed_bytes(values))
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        _, bounds, data = values.buffers()
        dtype = np.int64 if kinds.is_large_binary(kind) else np.int32
        offsets = np.frombuffer(bounds, dtype)[values.offset : values.offset + len(values) + 1]
        return _Lists(np.frombuffer(data or b"", np.uint8), offsets)
    if kinds.is_fixed_size_list(kind):
        return _Fixed(_numbers(values))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        offsets = values.offsets.to_numpy() - values.offsets[0].as_py()
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
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _fixed_bytes(values: Any) -> npt.NDArray[np.uint8]:
    """Byte strings of one size, shape `(n, size)`."""
    size, count = values.type.byte_width, len(values)
    return np.frombuffer(values.buffers()[1] or b"", np.uint8, count * size, values.offset * size).reshape(count, size)


def _require_values(values: Any) -> None:
    if values.null_count:
        raise NullError(int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))))


@final
class _Fixed(Column):
    """Values of one shape."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        out[rows] = self.values[indices]


@final
class _Lists(Column):
    """Values whose first axis is of any size: those of all rows one after the other, and where each starts."""

    def __init__(self, values: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        self._values, self._offsets = values, offsets

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        for row, index in zip(rows.tolist(), indices.tolist(), strict=True):
            out[row] = self._values[self._offsets[index] : self._offsets[index + 1]].copy()


@final
class _Texts(Column):
    """Texts, as Arrow holds them: they become objects when they are asked for."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        out[rows] = self._values.take(pa.array(indices)).to_pylist()
