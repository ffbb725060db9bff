"""The least type that holds the values of two Arrow types, and the types that rows of text show.

A file of text is read once for its types, block by block. pyarrow finds those of a block. It cannot look at lines that
differ in kind (`1` and `"a"`), it crashes on very deep nesting, and it rounds integers of more than 64 bits. So such
blocks of JSON are looked at line by line in Python, and the columns of such blocks of CSV as text.

In what is found here `uint32` stands for integers of which none is negative, which is how `int64` and `uint64` are told
apart at the end (`settled`), and `decimal128(38, 0)` for integers that neither holds.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.types as kinds

from penstock.sources._columns import arrow_of, dtype_of, is_binary, is_list, is_text

Integers = npt.NDArray[np.int64]

MOST_KEYS: Final = 4096
"""An object with more keys in a column is a map, which no array holds."""
_MOST_OPEN: Final = 2000
"""A line with more brackets may be nested too deep for pyarrow, which crashes at some 50,000 levels."""
_MOST_DEEP: Final = 100
_EXACT: Final = float(1 << 53)
"""Integers up to here are floats without a loss."""
_UNITS: Final = ("s", "ms", "us", "ns")
_UNSIGNED, _SIGNED, _LARGE, _HUGE = pa.uint32(), pa.int64(), pa.uint64(), pa.decimal128(38, 0)


def least(first: Any, other: Any, otherwise: Callable[[Any, Any], Any]) -> Any:
    """Returns the least type that holds the values of both.

    Args:
        first: A type.
        other: Another one.
        otherwise: Returns the type where none holds both, or raises an error.
    """
    first, other = plain(first), plain(other)
    if first == other or kinds.is_null(other):
        return first
    if kinds.is_null(first):
        return other
    if kinds.is_struct(first) and kinds.is_struct(other):
        fields = {part.name: part.type for part in first}
        for part in other:
            fields[part.name] = least(fields.get(part.name, pa.null()), part.type, otherwise)
        return pa.struct(list(fields.items()))
    if is_list(first) and is_list(other):
        inner = least(first.value_type, other.value_type, otherwise)
        sizes = {kind.list_size if kinds.is_fixed_size_list(kind) else -1 for kind in (first, other)}
        return pa.list_(inner, sizes.pop() if len(sizes) == 1 else -1)
    if is_text(first) and is_text(other):
        return pa.large_string()
    if _is_bytes(first) and _is_bytes(other):
        return pa.large_binary()
    numbers = [kind for kind in (first, other) if kinds.is_integer(kind) or kinds.is_floating(kind)]
    if _HUGE in (first, other) and numbers:
        return pa.float64() if kinds.is_floating(numbers[0]) else _HUGE
    if kinds.is_time(first) and kinds.is_time(other):
        finer = max(first.unit, other.unit, key=_UNITS.index)
        return pa.time64(finer) if finer in ("us", "ns") else pa.time32(finer)
    held, others = dtype_of(first), dtype_of(other)
    if held is not None and others is not None:
        wider = _wider(held, others)
        zones = {getattr(kind, "tz", None) is not None for kind in (first, other)}
        if wider is not None and len(zones) == 1:
            return pa.timestamp(np.datetime_data(wider)[0], first.tz) if True in zones else arrow_of(wider)
    return otherwise(first, other)


def _wider(first: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """The least dtype that holds both; None if there is none. A truth value is no number."""
    both = {first.kind, other.kind}
    if len(both) == 1 or both <= set("iuf"):
        wider = np.promote_types(first, other)
        return wider if wider.kind != "f" or "f" in both else None
    return None


def plain(kind: Any) -> Any:
    """A type without what says how it is stored: dictionaries, extensions."""
    if kinds.is_dictionary(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return plain(kind.storage_type)
    return kind


def _is_bytes(kind: Any) -> bool:
    return is_binary(kind) or kinds.is_fixed_size_binary(kind)


def settled(kind: Any, huge: Any) -> Any:
    """A type that was found in text, without its marks; `huge` is that of integers of more than 64 bits."""
    if kinds.is_struct(kind):
        return pa.struct([(part.name, settled(part.type, huge)) for part in kind])
    if is_list(kind):
        return pa.list_(settled(kind.value_type, huge))
    return {_UNSIGNED: _SIGNED, _HUGE: huge}.get(kind, kind)


def join(found: dict[str, Any], shown: dict[str, Any], otherwise: Callable[[Any, Any], Any]) -> None:
    """Adds the types that some rows show to those of the rows before; for `otherwise` see `least`."""
    for name, kind in shown.items():
        found[name] = _kept(least(found.get(name, pa.null()), kind, otherwise))


def the_first(first: Any, other: Any) -> Any:
    """For values of JSON that differ in kind, such as text and numbers: those of the other kind are errors."""
    return _HUGE if {first, other} == {_SIGNED, _LARGE} else first


def text(first: Any, other: Any) -> Any:
    """For CSV, where all is text."""
    return _HUGE if {first, other} == {_SIGNED, _LARGE} else pa.string()


def of_json(rows: Sequence[bytes]) -> dict[str, Any]:
    """The types of the values of some lines of JSON. A line that is damaged shows none; it is named when it is read."""
    rows = [row for row in rows if is_object(row)]
    if all(row.count(b"[") + row.count(b"{") <= _MOST_OPEN for row in rows) and rows:
        data = b"\n".join(rows)
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pa_json.read_json(pa.BufferReader(data), reading, pa_json.ParseOptions(newlines_in_values=True))
            if table.num_rows == len(rows):
                return {name: _shown(table[name].combine_chunks()) for name in table.column_names}
        except (pa.ArrowException, ValueError):  # lines that differ in kind, or damaged ones; or a large integer
            pass
    found: dict[str, Any] = {}
    for row in rows:
        try:
            kind = _type_of(json.loads(row.decode()), 0)
        except (ValueError, RecursionError):
            continue
        join(found, {part.name: part.type for part in kind}, the_first)
    return found


def _shown(values: Any) -> Any:
    """The type that an array of values shows.

    Raises:
        ValueError: An integer may have been rounded to a float.
    """
    kind = values.type
    if is_list(kind):
        return pa.list_(_shown(values.flatten()))
    if kinds.is_struct(kind):
        parts = zip(kind, values.flatten(), strict=True)
        return pa.struct([(part.name, _shown(inner)) for part, inner in parts])
    if kinds.is_temporal(kind):
        return pa.string()
    if kinds.is_integer(kind):
        return _SIGNED if (pc.min(values).as_py() or 0) < 0 else _UNSIGNED
    if kinds.is_floating(kind) and is_rounded(values):
        raise ValueError("integers of more than 53 bits")
    return kind


def is_rounded(values: Any) -> bool:
    """Whether floats may be integers that were rounded."""
    limits = pc.min_max(values.filter(pc.is_finite(values))).as_py()
    return max(-(limits["min"] or 0), limits["max"] or 0) >= _EXACT


def _type_of(value: Any, depth: int) -> Any:
    """The type of a value of JSON.

    Raises:
        ValueError: A list holds different kinds, or lists are too deep.
    """
    if depth > _MOST_DEEP:
        raise ValueError("nested too deep")
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return _of_integers(value, value)
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(each, depth + 1)) for name, each in value.items()])
    inner = pa.null()
    for each in value:
        inner = least(inner, _type_of(each, depth + 1), _refused)
    return pa.list_(inner)


def _refused(first: Any, other: Any) -> Any:
    raise ValueError(f"{first} and {other}")


def _of_integers(smallest: int, largest: int) -> Any:
    """The type of integers."""
    if smallest >= -(1 << 63) and largest < 1 << 63:
        return _SIGNED if smallest < 0 else _UNSIGNED
    return _LARGE if smallest >= 0 and largest < 1 << 64 else _HUGE


def _kept(kind: Any) -> Any:
    """A type without objects of too many keys, which are maps."""
    if kinds.is_struct(kind):
        if kind.num_fields > MOST_KEYS:
            return pa.map_(pa.string(), pa.null())
        return pa.struct([(part.name, _kept(part.type)) for part in kind])
    return pa.list_(_kept(kind.value_type)) if is_list(kind) else kind


def is_object(row: bytes) -> bool:
    """Whether a line can be a single object. pyarrow crashes on a bare `null`."""
    row = row.strip(b" \t\r\n")
    return row[:1] == b"{" and row[-1:] == b"}"


def of_csv(rows: Sequence[bytes], width: int, options: dict[str, Any]) -> dict[str, Any]:
    """The types of the columns "0", "1" and so on of rows of CSV. Rows of another width show none.

    Args:
        rows: The rows.
        width: The number of columns.
        options: Options of pyarrow's parser.
    """
    found: dict[str, Any] = {}
    for types in _tried(rows, _csv_parser(options, width)):
        join(found, types, text)
    return found


def _tried(rows: Sequence[bytes], parse: Callable[[bytes, dict[str, Any]], Any]) -> Iterator[dict[str, Any]]:
    """Yields the types of rows; in halves where they cannot be parsed together."""
    try:
        table = parse(b"\n".join(rows), {})
        types = {name: _in_csv(table[name].combine_chunks(), name, rows, parse) for name in table.column_names}
    except (pa.ArrowException, ValueError):
        if len(rows) > 1:
            half = len(rows) // 2
            yield from _tried(rows[:half], parse)
            yield from _tried(rows[half:], parse)
        return
    if table.num_rows:
        yield types


def _in_csv(values: Any, name: str, rows: Sequence[bytes], parse: Callable[[bytes, dict[str, Any]], Any]) -> Any:
    kind = values.type
    if kinds.is_integer(kind):
        return _shown(values)
    if kinds.is_floating(kind) and is_rounded(values):
        texts = parse(b"\n".join(rows), {name: pa.string()})[name].combine_chunks()
        digits = [each for each in texts.filter(values.is_valid()).to_pylist() if each.lstrip("+-").isdigit()]
        if len(digits) == len(values) - values.null_count:
            numbers = [int(each) for each in digits]
            return _of_integers(min(numbers), max(numbers))
        return kind
    return pa.string() if is_binary(kind) or kinds.is_time(kind) else kind


def _csv_parser(options: dict[str, Any], width: int) -> Callable[[bytes, dict[str, Any]], Any]:
    """Returns a function that parses rows to a table with the columns "0", "1" and so on, some of given types."""

    def parse(data: bytes, types: dict[str, Any]) -> Any:
        return pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=[str(number) for number in range(width)]
            ),
            pa_csv.ParseOptions(**options, newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
            # 0 and 1 are numbers. They would be truth values where the others of a block are.
            pa_csv.ConvertOptions(
                column_types=types,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                include_columns=list(types) or None,
            ),
        )

    return parse
