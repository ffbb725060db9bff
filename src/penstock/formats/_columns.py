"""Columns of Arrow as leaves of elements: the spec of a type, and rows of a decoded column into a batch.

Fixed-size values are NumPy views of Arrow's buffers, which may lie in a mapped file. They are decoded by hand, because
`to_numpy()` imports pandas, which takes 24 MiB in each process.

A null is an error, unless there is a value that stands in for it (`fill`). A list that is null is then an empty one.
"""

import errno
import math
import mmap
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock import native
from penstock.base._errors import SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import text_array
from penstock.sources._openfile import unreadable

Integers = npt.NDArray[np.int64]

MOST_PADDED_NBYTES: Final = 128 << 20
"""The largest array of text that is padding for the most part."""
MAPPED_NBYTES: Final = 64 << 10
"""Columns of this size and more are memory mappings."""
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
    if kinds.is_decimal(value) or kinds.is_time(value):
        dtypes = "an integer, or" if kinds.is_time(value) else "a float, or"
        example = "int64" if kinds.is_time(value) else "float64"
        raise SpecError(
            f"column {name!r} is {kind}, for which NumPy has no dtype. Read it as {dtypes} as text ('U'): "
            f"dtypes={{{name!r}: {example!r}}}. Or leave it out with columns=[...]."
        )
    raise SpecError(
        f"column {name!r} is {kind}, which is no array of numbers, text or bytes. Leave it out with columns=[...], or "
        "write the file with its parts as columns of their own."
    )


def inmost(kind: Any) -> Any:
    """The type of the values in lists."""
    return inmost(kind.value_type) if is_list(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether values are text."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_binary(kind: Any) -> bool:
    """Whether values are byte strings of any size."""
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def is_list(kind: Any) -> bool:
    """Whether values are lists."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def buffers_of(kind: Any, variadic: Iterator[int]) -> int:
    """How many buffers the values of a type have in a record batch; `variadic` has the additional ones of views."""
    if isinstance(kind, pa.BaseExtensionType):
        return buffers_of(kind.storage_type, variadic)
    own = kind.num_buffers
    if kinds.is_null(kind) or kinds.is_run_end_encoded(kind):
        own = 0
    elif kinds.is_union(kind):
        own -= 1
    elif kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        own += next(variadic, 0)
    return int(own) + sum(buffers_of(kind.field(number).type, variadic) for number in range(kind.num_fields))


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


class ArrowFile(Protocol):
    """A file of this machine; see `File`."""

    @property
    def url(self) -> str: ...
    def open(self) -> Any: ...


@final
class _InFile:
    """Values of a piece that are read from a file when they are needed.

    They may lie in a mapping, but only the copy engine survives a file that becomes shorter.

    Args:
        file: What `open` opens: a file of this machine.
        place: The first byte of the values.
        like: The values, which are not touched.
    """

    nbytes = 0

    def __init__(self, file: ArrowFile, place: int, like: npt.NDArray[Any], *, is_text: bool) -> None:
        self._file, self._place, self._is_text = file, place, is_text
        self._dtype, self._shape = like.dtype, like.shape[1:]
        self._size = like.dtype.itemsize * math.prod(self._shape)

    def read(self, starts: Integers, counts: Integers) -> Any:
        """Reads `counts[k]` values from `starts[k]` on, end to end.

        Raises:
            SourceError: The file has changed, or its device fails.
        """
        sizes, offsets = counts * self._size, self._place + starts * self._size
        places = np.concatenate(([0], np.cumsum(sizes)))
        memory = np.empty(int(places[-1]), np.uint8)
        opened = self._file.open()
        done, _, error = native.read_parts(opened.descriptor, offsets, memory, places[:-1].copy(), sizes)
        if done < len(sizes):
            self._file.open()  # says how it has changed
            raise unreadable(self._file.url, int(offsets[done]), error or errno.EIO)
        return memory.data if self._is_text else memory.view(self._dtype).reshape(-1, *self._shape)


class _Piece(NamedTuple):
    """The values of neighbouring rows, end to end."""

    bounds: Any
    """The start of each row in the values, and the end of the last: a memoryview, whose items are read fastest."""
    values: Any
    """An array of numbers, a memoryview of bytes, or for lists of text the texts as a `_Piece`."""
    kinds: Any = None
    """Where several rows share a text, as in a dictionary of Arrow: the number of each row's one, an array.

    Text is never repeated in memory: a small file may repeat a long one very often."""

    @property
    def nbytes(self) -> int:
        return int(self.bounds.nbytes + self.values.nbytes + (0 if self.kinds is None else self.kinds.nbytes))

    def texts(self, kind: str) -> Any:
        """The rows as an Arrow array of text (kind `U`) or bytes, for it makes Python's fastest."""
        is_large = self.bounds.itemsize == 8
        if kind == "U":
            form = pa.large_string() if is_large else pa.string()
        else:
            form = pa.large_binary() if is_large else pa.binary()
        buffers = [None, pa.py_buffer(self.bounds), pa.py_buffer(self.values)]
        found = pa.Array.from_buffers(form, len(self.bounds) - 1, buffers)
        return found if self.kinds is None else pa.DictionaryArray.from_arrays(pa.array(self.kinds), found)

    def of(self, places: Integers) -> "tuple[_Piece, Integers]":
        """Returns a piece in memory that has the values of some rows, and their places in it."""
        if self.kinds is not None:
            kinds_there, shared = np.unique(self.kinds[places], return_inverse=True)
            piece, own = _Piece(self.bounds, self.values).of(kinds_there.astype(np.int64))
            return piece, own[shared]
        if not self._is_far:
            return self, places
        bounds = np.asarray(self.bounds)
        starts, counts = bounds[places].astype(np.int64), (bounds[places + 1] - bounds[places]).astype(np.int64)
        made = np.concatenate(([0], np.cumsum(counts)))
        if isinstance(self.values, _InFile):
            values = self.values.read(starts, counts)
        else:
            rows = np.arange(made[-1]) + np.repeat(starts - made[:-1], counts)
            values, _ = self.values.of(rows)
        return _Piece(made.data, values), np.arange(len(places))

    @property
    def _is_far(self) -> bool:
        return isinstance(self.values, _InFile) or (isinstance(self.values, _Piece) and self.values._is_far)

    def in_file(self, file: ArrowFile, base: int, stop: int) -> "_Piece":
        """The same piece, whose values are read from a file that is mapped at `[base, stop)`."""
        bounds = _copy(np.asarray(self.bounds)).data
        if self.kinds is not None:  # copied, because it is small and read in part by Arrow
            return self.copied()
        if isinstance(self.values, _Piece):
            return _Piece(bounds, self.values.in_file(file, base, stop))
        values = np.asarray(self.values)
        address = values.__array_interface__["data"][0]
        if not (values.nbytes and base <= address < stop and values.flags.c_contiguous):
            return _Piece(bounds, self.values)
        is_text = isinstance(self.values, memoryview)
        return _Piece(bounds, _InFile(file, address - base, values, is_text=is_text))

    def copied(self) -> "_Piece":
        first, last = self.bounds[0], self.bounds[-1]
        if isinstance(self.values, _Piece) and self.values.kinds is not None:
            values: Any = self.values._replace(kinds=self.values.kinds[first:last]).copied()
        elif isinstance(self.values, _Piece):
            values = _Piece(self.values.bounds[first : last + 1], self.values.values).copied()
        else:
            values = _copy(np.asarray(self.values[first:last]))
        bounds = _copy(np.asarray(self.bounds) - first)
        own_kinds = None if self.kinds is None else _copy(np.asarray(self.kinds))
        return _Piece(bounds.data, values.data if isinstance(self.values, memoryview) else values, own_kinds)


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

    def in_file(self, file: ArrowFile, base: int, stop: int) -> "Ragged":
        """The same column, whose values are read from a file that is mapped at `[base, stop)`."""
        return Ragged(self._spec, *(piece.in_file(file, base, stop) for piece in self._pieces))

    def room(self, count: int) -> "Ragged":
        """Returns an empty column, which `append` fills."""
        return Ragged(self._spec)

    def append(self, row: int, rows: "Column | Ragged") -> None:
        """Copies another column behind the first `row` rows."""
        assert isinstance(rows, Ragged)
        self._firsts.append(row)
        self._pieces += [piece.copied() for piece in rows._pieces]

    def put(self, indices: Integers, out: npt.NDArray[Any], rows: Integers) -> None:
        """Writes the values `indices` to rows of a leaf's array.

        Raises:
            RowError: A value is no text, or no array. Its row is a place among the indices.
        """
        numbers = np.searchsorted(self._firsts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            whole = self._pieces[number]
            piece, places = whole.of(indices[mine] - self._firsts[number])
            try:
                self._put(piece, places, out, rows[mine], is_shared=whole.kinds is not None)
            except RowError as error:
                error.row = int(mine[error.row])
                raise

    def _put(self, piece: _Piece, places: Integers, out: npt.NDArray[Any], rows: Integers, *, is_shared: bool) -> None:
        dtype, is_list = self._spec.dtype, bool(self._spec.shape)
        if not dtype.itemsize and not is_list:
            kinds_there, shared = (places, None) if not is_shared else np.unique(places, return_inverse=True)
            texts = piece.texts(dtype.kind).take(pa.array(kinds_there))
            try:
                found = texts.to_pylist()
            except UnicodeDecodeError:
                _refuse_text(piece.texts(dtype.kind).take(pa.array(places)))
            out[rows] = found if shared is None else np.array(found, object)[shared]
            return
        bounds = np.asarray(piece.bounds)
        limits = bounds[places].tolist(), bounds[places + 1].tolist()
        if dtype.itemsize and isinstance(piece.values, np.ndarray):
            for row, start, stop in zip(rows.tolist(), *limits, strict=True):
                out[row] = piece.values[start:stop].copy()
            return
        values = piece.values if dtype.itemsize or len(self._spec.shape) > 1 else piece.values.texts("U")
        for place, (row, start, stop) in enumerate(zip(rows.tolist(), *limits, strict=True)):
            try:
                out[row] = _array(values, start, stop, self._spec)
            except RowError as error:
                error.row = place
                raise
            except UnicodeDecodeError as error:
                raise RowError(place, f"is no text in UTF-8: {error.reason}.") from None
            except SpecError as error:
                raise RowError(place, f"is no array of text. {error}") from None


def _refuse_text(texts: Any) -> NoReturn:
    """Raises the error of the first value that is no text."""
    for place, data in enumerate(texts.view(pa.large_binary() if texts.type == pa.large_string() else pa.binary())):
        try:
            str(data.as_py(), "utf-8")
        except UnicodeDecodeError as error:
            raise RowError(
                place, f"is no text in UTF-8: {error.reason} at its byte {error.start}. Write the file with valid text."
            ) from None
    raise AssertionError("all values are text")


def _array(values: Any, start: int, stop: int, spec: ArraySpec) -> npt.NDArray[Any]:
    """The values `[start, stop)` of lists as an array.

    Raises:
        RowError: Lists in it differ in length. Its row has no meaning.
    """
    if isinstance(values, np.ndarray):
        return values[start:stop].copy()
    if len(spec.shape) == 1:
        texts = (values if isinstance(values, pa.Array) else values.texts("U"))[start:stop].to_pylist()
        sizes = list(map(len, texts))
        padded = 4 * len(texts) * max(sizes, default=0)
        if padded > MOST_PADDED_NBYTES and padded > 32 * sum(sizes):
            raise RowError(
                0,
                f"has {len(texts):,} texts of which one has {max(sizes):,} characters: {padded >> 20:,} MiB as an "
                "array of NumPy, where all are as long as the longest. Leave the column out with columns=[...].",
            )
        return text_array(np.array(texts, object), "U")
    bounds = np.asarray(values.bounds[start : stop + 1])
    widths = np.unique(np.diff(bounds))
    if len(widths) > 1:
        raise RowError(
            0,
            f"has lists of differing lengths ({widths[0]} to {widths[-1]}) in a list, which are no array. Leave the "
            "column out with columns=[...], or write it as one list and the lengths of its parts.",
        )
    inner = _array(values.values, int(bounds[0]), int(bounds[-1]), ArraySpec(spec.shape[1:], spec.dtype))
    return inner.reshape(stop - start, int(widths[0]) if len(widths) else 0, *inner.shape[1:])


def is_copied(kind: Any) -> bool:
    """Whether `column_of` copies the values of a column instead of viewing them."""
    kind = getattr(kind, "storage_type", kind)
    if kinds.is_dictionary(kind) or not hasattr(kind, "value_type"):
        views = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
        return bool(views or kinds.is_dictionary(kind) or kinds.is_boolean(kind) or kinds.is_date(kind))
    return is_copied(kind.value_type)


def require_valid(values: Any) -> None:
    """Checks what Arrow's readers do not: offsets, the indices of dictionaries, sizes of buffers.

    Text is looked at when it becomes Python's, because that reads all of it.

    Raises:
        ArrowInvalid: A value lies outside of the memory.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        require_valid(values.storage)
        return
    values.validate()
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        values.view(pa.binary() if kinds.is_string(kind) else pa.large_binary()).validate(full=True)
    elif kinds.is_struct(kind):
        for number in range(kind.num_fields):
            require_valid(values.field(number))
    elif kinds.is_dictionary(kind):
        pa.DictionaryArray.from_arrays(values.indices, pa.nulls(len(values.dictionary)), safe=False).validate(full=True)
        require_valid(values.dictionary)
    elif is_list(kind):
        if not kinds.is_fixed_size_list(kind):
            form = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
            form.from_arrays(values.offsets, pa.nulls(len(values.values))).validate(full=True)
        require_valid(values.values)
    else:
        values.validate(full=True)


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
    if kinds.is_time(values.type) and kinds.is_duration(target):
        of_day = values.type.unit
        values = values.view(pa.int32() if kinds.is_time32(values.type) else pa.int64()).cast(pa.int64())
        values = values.view(pa.duration(of_day))
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    ways = _ways(values.type, target, unit)
    is_safe = not (may_round and spec.dtype.kind == "f")
    try:
        return _cast(values, ways, is_safe)
    except pa.ArrowException as error:
        row = _first_unfit(values, ways, is_safe)
        words = str(error).strip().partition("\n")[0].rstrip(".")
        wide = _WIDE.get(spec.dtype.kind, "int64")
        other = "" if np.dtype(wide) == spec.dtype else f'dtypes={{{name!r}: "{wide}"}}, or '
        cure = f'Name another dtype, such as {other}dtypes={{{name!r}: "U"}} for text.'
        if spec.dtype.kind == "f" and not may_round and "would become" not in words:
            cure = (
                f'Say that it may be rounded: dtypes={{{name!r}: "{spec.dtype}"}}; or read the column as text: '
                f'dtypes={{{name!r}: "U"}}.'
            )
        raise RowError(row, f"is {values.type} there, and does not fit {spec}: {words}. {cure}") from error


def is_castable(kind: Any, spec: ArraySpec, unit: Any = None) -> bool:
    """Whether some values of a type can be given by `conformed`, and have this spec then."""
    target = _type_for(kind, spec)
    try:
        if spec_of("", target) != spec:
            return False
        value = inmost(kind)
        while kinds.is_dictionary(value):
            value = value.value_type
        if kinds.is_time(value) and kinds.is_duration(inmost(target)):
            return not is_list(kind)
        _cast(pa.nulls(0, value), _ways(value, inmost(target), unit), is_safe=True)
    except (SpecError, pa.ArrowException):
        return False
    return True


def _ways(kind: Any, target: Any, unit: Any) -> list[Any]:
    """The types that values of a type are cast to, one after the other."""
    if unit is not None:  # Arrow makes no floats of times, and no integers of 32 bits
        whole = pa.int32() if unit.bit_width == 32 else pa.int64()
        return [with_values(kind, unit), with_values(kind, whole), target]
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
        if kinds.is_dictionary(values.type):
            values = values.dictionary_decode()
        if kinds.is_floating(values.type):
            lost = pc.and_(lost, pc.is_finite(values))
        elif is_text(values.type):
            lost = pc.and_not(lost, pc.match_substring_regex(values, r"(?i)^\s*[+-]?inf(inity)?\s*$"))
    elif (kinds.is_boolean(made.type) or kinds.is_date32(made.type)) and not is_text(values.type):
        lost = pc.not_equal(made.cast(values.type, safe=False), values)
    else:
        return
    if pc.any(lost).as_py():
        before, after = (str(each.filter(lost).slice(0, 1)).strip("[\n ]") for each in (values, made))
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
        inner = _type_for(kind.storage_type, spec)
        return kind if inner == kind.storage_type else inner
    if kinds.is_dictionary(kind):
        inner = _type_for(kind.value_type, spec)
        return kind if inner == kind.value_type else inner
    is_bytes = is_binary(kind) or kinds.is_fixed_size_binary(kind)
    if is_bytes and spec.dtype.kind != "U":
        if kinds.is_fixed_size_binary(kind) and spec.dtype == np.uint8 and spec.shape == (None,):
            return pa.large_binary()
        return kind
    if is_list(kind) or (kinds.is_null(kind) and spec.shape):
        size = -1 if spec.shape[0] is None else spec.shape[0]
        value = kind.value_type if is_list(kind) else kind
        inner = _type_for(value, ArraySpec(spec.shape[1:], spec.dtype))
        is_same = is_list(kind) and inner == value and kinds.is_fixed_size_list(kind) == (size >= 0)
        return kind if is_same else pa.list_(inner, size)
    if spec.dtype.kind == "U":
        return kind if is_text(kind) else pa.large_string()
    dtype = dtype_of(kind)
    return kind if dtype is not None and dtype == spec.dtype else arrow_of(spec.dtype)


def is_viewed(kind: Any, spec: ArraySpec) -> bool:
    """Whether the values of a column stay where they are."""
    return not is_copied(kind) and bool(_type_for(kind, spec) == kind)


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
        return Ragged(spec, _piece(values, spec))
    except RowError as error:
        error.column, error.row = name, error.row + first
        if isinstance(error, NullError):
            error.filler = 0 if spec.dtype.itemsize else ""
        raise


def _piece(values: Any, spec: ArraySpec) -> _Piece:
    is_shared = kinds.is_dictionary(values.type) and not (values.null_count or values.dictionary.null_count)
    if is_shared and (is_text(values.type.value_type) or is_binary(values.type.value_type)):
        indices = numbers(values.indices, ())
        outside = (indices < 0) | (indices >= len(values.dictionary))
        if outside.any():
            raise RowError(int(np.argmax(outside)), "has an index outside of its dictionary: the file is damaged.")
        return _piece(values.dictionary, spec)._replace(kinds=indices)
    values = _plain(values)
    kind = values.type
    if is_text(kind) or is_binary(kind):
        _, bounds, data = values.buffers()
        dtype = np.int64 if kinds.is_large_binary(kind) or kinds.is_large_string(kind) else np.int32
        # An array without values may have no bounds. A buffer is as long as its file says, and so may have more bytes.
        last = values.offset + len(values) + 1
        offsets = np.frombuffer(bounds, dtype, last)[values.offset :] if len(values) else np.zeros(1, dtype)
        data = np.frombuffer(data or b"", np.uint8)
        return _Piece(offsets.data, data if spec.dtype.itemsize else data.data)
    if kinds.is_fixed_size_list(kind):
        offsets = np.arange(len(values) + 1) * kind.list_size
    else:
        offsets = numbers(values.offsets, ())
        offsets = offsets - offsets[0]
    inner: Any = values.flatten()
    below = ArraySpec(spec.shape[1:], spec.dtype)
    try:
        is_fixed = spec.dtype.itemsize and None not in below.shape
        inner = numbers(inner, below.shape) if is_fixed else _piece(inner, below)
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
