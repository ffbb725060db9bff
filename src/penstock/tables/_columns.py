"""Columns of Arrow as leaves of elements: the spec of a type, and rows of a decoded column into a batch.

Fixed-size values are NumPy views of Arrow's buffers, which may lie in a mapped file. `to_numpy()` would import pandas,
which takes 24 MiB in each process. Values of any size stay Arrow's until rows of them are read.

A null is an error, unless there is a value that stands in for it (`fill`). A list that is null is then an empty one.
"""

import math
import mmap
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock import native
from penstock.base._errors import SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import text_array
from penstock.plan._parted import by_part

Integers = npt.NDArray[np.int64]

MAPPED_NBYTES: Final = 64 << 10
"""Columns of this size and more are memory mappings."""
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())
_WIDE: Final = {"f": "float64", "M": "M8[us]", "m": "m8[us]"}
"""For errors, by the kind of a dtype, another one that holds more."""


class RowError(Exception):
    """A value of a column cannot be given. `at` makes the error that users read.

    Args:
        row: The first row with such a value.
        text: What is wrong, after the name of the column.
    """

    column: str = ""
    """The name of the column, once it is known."""

    def __init__(self, row: int, text: str = "") -> None:
        super().__init__(row, text)
        self.row = row
        self.text = text

    def at(self, where: str) -> SourceError:
        """The error, as users read it, of an element that lies at a place."""
        return SourceError(f"{where} cannot be read: its column {self.column!r} {self.text}")


class NullError(RowError):
    """A column lacks a value.

    Args:
        row: The first row without one.
        is_inner: Whether the value is a list that lacks a value, or has another length than its spec.
    """

    filler: Any = 0
    """A value that the column can hold."""
    is_column = False
    """Whether the whole column is missing."""

    def __init__(self, row: int, *, is_inner: bool = False) -> None:
        super().__init__(row)
        self.is_inner = is_inner

    def at(self, where: str) -> SourceError:
        cause = (
            "its file has no such column, and others do" if self.is_column else "it is null, and arrays have no null"
        )
        return SourceError(
            f"{where} has no value in column {self.column!r}: {cause}. Say what "
            f"stands in for it: fill_null={{{self.column!r}: {self.filler!r}}}, and null_masks=[{self.column!r}] to "
            "know where; or leave the column out with columns=[...]."
        )


def spec_of(name: str, kind: Any) -> ArraySpec:
    """Returns the spec of a column's values.

    Numbers, truth values, times and durations are scalars of the same dtype. A list has a first axis of any size, and a
    list of lists two. A list of fixed size, or a tensor, has its shape. Bytes are uint8, of shape `(None,)` or `(n,)`.

    Raises:
        SpecError: No array holds such values: maps, decimals, times of a day, lists of bytes.
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
        if not is_binary(inmost(kind)):
            inner = spec_of(name, kind.value_type)
            first = kind.list_size if kinds.is_fixed_size_list(kind) else None
            return ArraySpec((first, *inner.shape), inner.dtype)
    elif (dtype := dtype_of(kind)) is not None:
        return ArraySpec((), dtype)
    value = inmost(kind)
    cure = "write the file with its parts as columns of their own."
    if kinds.is_decimal(value) or kinds.is_time(value):
        example = "float64" if kinds.is_decimal(value) else "int64"
        cure = f"read it as another dtype, or as text ('U'): dtypes={{{name!r}: {example!r}}}."
    raise SpecError(
        f"column {name!r} is {kind}, which is no array of numbers, text or bytes. Leave it out with columns=[...], or "
        f"{cure}"
    )


def inmost(kind: Any) -> Any:
    """The type of the values in lists."""
    return inmost(kind.value_type) if is_list(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether values are text."""
    return kind in _TEXTS


def is_binary(kind: Any) -> bool:
    """Whether values are byte strings of any size."""
    return kind in _BYTES


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

    def __reduce__(self) -> Any:
        return Column, (self._values,)

    @property
    def nbytes(self) -> int:
        """The memory of the values."""
        return self._values.nbytes

    def room(self, count: int) -> "Column":
        """Returns memory for `count` rows, which `append` fills."""
        return Column(_memory((count, *self._values.shape[1:]), self._values.dtype))

    def append(self, row: int, rows: "Column | RaggedColumn") -> None:
        """Copies another column behind the first `row` rows."""
        assert isinstance(rows, Column)
        self._values[row : row + len(rows._values)] = rows._values

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array."""
        out[rows] = self._values[indices]


class _Piece(NamedTuple):
    """The values of neighbouring rows, in the form in which rows are read fastest."""

    values: Any
    """An Arrow array; or of byte strings and of lists of values of one shape, these end to end as an array."""
    bounds: npt.NDArray[Any] | None = None
    """Where each row begins in such an array, and the end of the last."""
    places: npt.NDArray[Any] | None = None
    """The number of each row's value, where several rows share one, as in a dictionary of Arrow.

    Text is never repeated in memory: a small file may repeat a long one very often."""

    @classmethod
    def of(cls, values: Any, spec: ArraySpec) -> "_Piece":
        """The form of values without nulls."""
        kind = values.type
        if kinds.is_dictionary(kind):
            return cls.of(values.dictionary, spec)._replace(places=numbers(values.indices))
        if is_binary(kind) and spec.dtype.itemsize:
            _, bounds, data = values.buffers()
            dtype = np.int64 if kinds.is_large_binary(kind) else np.int32
            # An array without values may have no bounds. A buffer is as long as its file says, so it may have more.
            count = values.offset + len(values) + 1
            found = np.frombuffer(bounds, dtype, count)[values.offset :] if len(values) else np.zeros(1, dtype)
            return cls(np.frombuffer(data or b"", np.uint8), found)
        if is_list(kind) and spec.dtype.itemsize and None not in spec.shape[1:]:
            return cls(numbers(values.values, spec.shape[1:]), numbers(values.offsets))
        return cls(values)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self if part is not None)


@final
class RaggedColumn:
    """The values of some rows, each of any size, in the pieces in which they were decoded.

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

    def room(self, count: int) -> "RaggedColumn":
        """Returns an empty column, which `append` fills."""
        return RaggedColumn(self._spec)

    def append(self, row: int, rows: "Column | RaggedColumn") -> None:
        """Puts another column behind the first `row` rows."""
        assert isinstance(rows, RaggedColumn)
        self._firsts.append(row)
        self._pieces += rows._pieces

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array.

        Raises:
            RowError: A value is no text, or no array. Its row is a place among the indices.
        """
        if len(self._pieces) == 1:
            self._put(self._pieces[0], indices, out, rows)
            return
        for number, places, mine in by_part(np.array(self._firsts), indices, np.arange(len(indices))):
            assert isinstance(mine, np.ndarray)
            try:
                self._put(self._pieces[number], places, out, rows[mine])
            except RowError as error:
                error.row = int(mine[error.row])
                raise

    def _put(self, piece: _Piece, places: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        values, bounds, shared = piece
        if shared is not None:
            places = shared[places]
        if bounds is not None:
            limits = bounds[places].tolist(), bounds[places + 1].tolist()
            for row, start, stop in zip(rows.tolist(), *limits, strict=True):
                out[row] = values[start:stop].copy()
        elif self._spec.shape:
            for row, value in zip(rows.tolist(), _arrays(taken(values, places), self._spec), strict=True):
                out[row] = value
        elif shared is None:
            out[rows] = _texts(taken(values, places))
        else:
            words, numbers = np.unique(places, return_inverse=True)
            try:
                out[rows] = np.array(_texts(taken(values, words)), object)[numbers]
            except RowError as error:
                error.row = int(np.argmax(numbers == error.row))
                raise


def taken(values: Any, rows: Integers) -> Any:
    """Some of the values. Where lists of a fixed size hold such lists, `take` gives other values of a part of an array.

    Seen in pyarrow 26.0.1: the place at which the part begins counts for the inner lists, too, and too much.
    """
    kind = values.type
    while is_list(kind):
        if kinds.is_fixed_size_list(kind) and kinds.is_fixed_size_list(kind.value_type):
            return pa.concat_arrays([values.slice(0, 0), *(values.slice(row, 1) for row in rows.tolist())])
        kind = kind.value_type
    return values.take(pa.array(rows))


def _texts(values: Any) -> list[Any]:
    """Texts or byte strings as Python's.

    Raises:
        RowError: One is no text.
    """
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        for row, value in enumerate(values):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise RowError(
                    row,
                    f"is no text in UTF-8: {error.reason} at its byte {error.start}. Write the file with valid text.",
                ) from None
        raise


def _arrays(values: Any, spec: ArraySpec) -> Iterator[npt.NDArray[Any]]:
    """Yields lists as arrays.

    Raises:
        RowError: One is no array.
    """
    for row, value in enumerate(values):
        try:
            yield _array(value.values, spec)
        except RowError as error:
            error.row = row
            raise
        except SpecError as error:
            raise RowError(row, f"is no array of text. {error}") from None


def _array(values: Any, spec: ArraySpec) -> npt.NDArray[Any]:
    """The values of a list as an array.

    Raises:
        RowError: Lists in it differ in length, or one is no text. Its row has no meaning.
    """
    if spec.dtype.itemsize and None not in spec.shape[1:]:
        return numbers(values, spec.shape[1:]).copy()
    if len(spec.shape) == 1:
        return text_array(np.array(_texts(values), object), "U")
    sizes = np.unique(numbers(values.value_lengths()))
    if len(sizes) > 1:
        raise RowError(
            0,
            f"has lists of differing lengths ({sizes[0]} to {sizes[-1]}) in a list, which are no array. Leave the "
            "column out with columns=[...], or write it as one list and the lengths of its parts.",
        )
    inner = _array(values.flatten(), ArraySpec(spec.shape[1:], spec.dtype))
    return inner.reshape(len(values), int(sizes[0]) if len(sizes) else 0, *inner.shape[1:])


def require_valid(values: Any) -> None:
    """Checks what Arrow's readers do not: offsets, the indices of dictionaries, sizes of buffers.

    Text is looked at when it becomes Python's, because that reads all of it.

    Raises:
        ArrowInvalid: A value lies outside of the memory.
    """
    values = getattr(values, "storage", values)
    values.view(_as_bytes(values.type)).validate(full=True)


def _as_bytes(kind: Any) -> Any:
    """A type with byte strings in place of text."""
    if kinds.is_struct(kind):
        return pa.struct([part.with_type(_as_bytes(part.type)) for part in kind])
    if kinds.is_large_list(kind):
        return pa.large_list(_as_bytes(kind.value_type))
    if is_list(kind):
        return pa.list_(_as_bytes(kind.value_type), kind.list_size if kinds.is_fixed_size_list(kind) else -1)
    return dict(zip(_TEXTS, _BYTES, strict=True)).get(kind, kind)


def with_values(kind: Any, value: Any) -> Any:
    """A type with another one in place of the values, those of lists."""
    if not is_list(kind):
        return value
    return pa.list_(with_values(kind.value_type, value), kind.list_size if kinds.is_fixed_size_list(kind) else -1)


def conformed(values: Any, spec: ArraySpec, *, may_round: bool = False, unit: Any = None, name: str = "") -> Any:
    """Returns values in a type that has this spec: other files, or `dtypes=`, may say that it is another than theirs.

    Args:
        values: An array.
        spec: The spec of a value.
        may_round: Whether numbers may lose digits as floats.
        unit: For numbers of times or durations the type that says their unit; None for other values.
        name: The name of the column, for the error.

    Raises:
        RowError: A value does not fit.
    """
    target = _type_for(values.type, spec)
    if target == values.type:
        return values
    values = getattr(values, "storage", values)
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    ways = _ways(values.type, target, unit)
    is_safe = not (may_round and spec.dtype.kind == "f")
    try:
        return _cast(values, ways, is_safe)
    except pa.ArrowException as error:
        row = _first_unfit(values, ways, is_safe)
        words = str(error).strip().partition("\n")[0].rstrip(".")
        wide = _WIDE.get(spec.dtype.kind, "int64")
        other = "" if may_round and np.dtype(wide) == spec.dtype else f'dtypes={{{name!r}: "{wide}"}}, or '
        cure = f'Name another dtype, such as {other}dtypes={{{name!r}: "U"}} for text. Floats that are named may round.'
        raise RowError(row, f"is {values.type} there, and does not fit {spec}: {words}. {cure}") from error


def _ways(kind: Any, target: Any, unit: Any) -> list[Any]:
    """The types that values of a type are cast to, one after the other."""
    if unit is not None:  # Arrow makes no floats of times, and no integers of 32 bits
        whole = pa.int32() if unit.bit_width == 32 else pa.int64()
        return [with_values(kind, unit), with_values(kind, whole), target]
    value = inmost(kind)
    if kinds.is_time(value) and kinds.is_duration(inmost(target)):
        wholes = [pa.int32(), pa.int64()] if kinds.is_time32(value) else [pa.int64()]
        return [*(with_values(kind, each) for each in (*wholes, pa.duration(value.unit))), target]
    return [pa.large_string(), target] if kinds.is_string_view(kind) else [target]


def _cast(values: Any, ways: list[Any], is_safe: bool) -> Any:
    """Casts to one type after the other."""
    for kind in ways:
        made = values.cast(kind, safe=is_safe or kind is not ways[-1])
        require_held(values, made)
        values = made
    return values


def require_held(values: Any, made: Any) -> None:
    """Refuses values that Arrow has cast to others: to infinity, to a day without its time, to a truth value.

    Args:
        values: An array.
        made: What it was cast to.

    Raises:
        ArrowInvalid: A value is not what it was.
    """
    while is_list(made.type) and is_list(values.type):
        values, made = values.flatten(), made.flatten()
    if kinds.is_null(values.type):
        return
    if kinds.is_floating(made.type):
        lost = pc.is_inf(made)
        if not pc.any(lost).as_py():
            return
        if is_text(values.type):
            was_said = pc.match_substring(values, "inf", ignore_case=True)
        else:
            was_said = pc.is_inf(values.cast(pa.float64(), safe=False))
        lost = pc.and_not(lost, was_said)
    elif (kinds.is_boolean(made.type) or kinds.is_date32(made.type)) and not is_text(values.type):
        lost = pc.not_equal(made.cast(values.type, safe=False), values)
    else:
        return
    if pc.any(lost).as_py():
        before, after = (each.filter(lost)[0].as_py() for each in (values, made))
        raise pa.ArrowInvalid(f"{before} would become {after}")


def _first_unfit(values: Any, ways: list[Any], is_safe: bool) -> int:
    """The first value that cannot be cast, of which there is one."""
    first, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            _cast(values.slice(first, half), ways, is_safe)
            first, count = first + half, count - half
        except pa.ArrowException:
            count = half
    return first


def arrow_of(dtype: np.dtype[Any]) -> Any:
    """The type of Arrow for a dtype of scalars."""
    if dtype.kind == "U":
        return pa.large_string()
    if dtype.kind == "M" and np.datetime_data(dtype)[0] == "D":
        return pa.date32()
    return pa.from_numpy_dtype(dtype)


def _type_for(kind: Any, spec: ArraySpec) -> Any:
    """The type nearest to `kind` that has a spec."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return _type_for(kind.storage_type, spec)
    if kinds.is_dictionary(kind):
        inner = _type_for(kind.value_type, spec)
        return kind if inner == kind.value_type and (is_text(inner) or is_binary(inner)) else inner
    is_view = kinds.is_string_view(kind) or kinds.is_binary_view(kind)  # which `take` does not know
    if (is_binary(kind) or kinds.is_fixed_size_binary(kind)) and spec.dtype.kind != "U":
        return pa.large_binary() if is_view or (kinds.is_fixed_size_binary(kind) and spec.shape == (None,)) else kind
    if is_list(kind) or (kinds.is_null(kind) and spec.shape):
        size = -1 if spec.shape[0] is None else spec.shape[0]
        value = kind.value_type if is_list(kind) else kind
        inner = _type_for(value, ArraySpec(spec.shape[1:], spec.dtype))
        is_same = is_list(kind) and inner == value and kinds.is_fixed_size_list(kind) == (size >= 0)
        return kind if is_same else pa.list_(inner, size)
    if spec.dtype.kind == "U":
        return kind if is_text(kind) and not is_view else pa.large_string()
    dtype = dtype_of(kind)
    return kind if dtype is not None and dtype == spec.dtype else arrow_of(spec.dtype)


def is_viewed(kind: Any, spec: ArraySpec) -> bool:
    """Whether the values of a column stay where they are, in the form that they have."""
    return not is_copied(kind) and bool(_type_for(kind, spec) == kind)


def is_copied(kind: Any) -> bool:
    """Whether `column_of` copies values."""
    value = inmost(kind)
    return bool(kinds.is_boolean(value) or kinds.is_date(value) or kinds.is_dictionary(value))


def column_of(values: Any, spec: ArraySpec, name: str = "", first: int = 0) -> Column | RaggedColumn:
    """Decodes an Arrow array. Values that are in memory in the right form are not copied.

    Args:
        values: An array that has the spec; see `conformed`.
        spec: The spec of a value. Dtype `S` makes Python's bytes of byte strings.
        name: The name of the column, for the error.
        first: The row of the first value, for the error.

    Raises:
        NullError: A value is missing.
    """
    try:
        if spec.dtype.itemsize and None not in spec.shape:
            return Column(numbers(values, spec.shape))
        _require_whole(values)
        return RaggedColumn(spec, _Piece.of(values, spec))
    except RowError as error:
        error.column, error.row = name, error.row + first
        if isinstance(error, NullError):
            error.filler = 0 if spec.dtype.itemsize else ""
        raise


def _require_whole(values: Any) -> None:
    """Refuses values of which one is missing, or one in a list.

    Raises:
        NullError: One is.
    """
    if kinds.is_dictionary(values.type) and values.dictionary.null_count:
        values = values.dictionary_decode()
    if values.null_count:
        raise NullError(int(np.argmax(numbers(values.is_null()))))
    if is_list(values.type):
        try:
            _require_whole(values.flatten())
        except NullError as error:
            raise NullError(pc.list_parent_indices(values)[error.row].as_py(), is_inner=True) from None


def numbers(values: Any, shape: tuple[int | None, ...] = ()) -> npt.NDArray[Any]:
    """Returns values of one shape as `(len(values), *shape)`.

    Raises:
        NullError: A value is missing.
    """
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind, count = values.type, len(values)
    if isinstance(kind, pa.FixedShapeTensorType):
        tensors = numbers(values.storage, (math.prod(kind.shape),)).reshape(-1, *kind.shape)
        return tensors.transpose(0, *(axis + 1 for axis in _axes(kind)))
    _require_whole(values)
    if is_list(kind):
        (size,) = shape[:1]
        assert size is not None
        others = np.flatnonzero(numbers(values.value_lengths()) != size)
        if len(others):
            raise NullError(int(others[0]), is_inner=True)
        inner = numbers(values.flatten(), shape[1:])
        return inner.reshape(count, size, *inner.shape[1:])
    if kinds.is_boolean(kind):
        return numbers(values.cast(pa.uint8())).view(np.bool_)
    stored: np.dtype[Any] = np.dtype(np.int32 if kinds.is_date32(kind) else dtype_of(kind))
    if kinds.is_fixed_size_binary(kind):
        stored = np.dtype((np.uint8, (kind.byte_width,)))
    found = np.frombuffer(values.buffers()[1] or b"", stored, count, values.offset * stored.itemsize)
    return found.astype(dtype_of(kind)) if kinds.is_date32(kind) else found


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns an array whose memory goes back to the system when it is freed. The C library would keep most of it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MAPPED_NBYTES:
        return np.empty(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.ndarray(shape, dtype, mmap.mmap(-1, nbytes, **private))
