"""The least type that holds the values of two Arrow types, and the types that rows of text show.

A file of text is read once for its types, block by block. pyarrow finds those of a block. It cannot look at lines that
differ in kind (`1` and `"a"`), it crashes on very deep nesting, and it rounds integers of more than 64 bits. So such
blocks of JSON are looked at line by line in Python, and the columns of such blocks of CSV as text.

In what is found here types stand for what numbers are (`_NUMBERS`): whether some are negative, whether some are beyond
`int64`, whether some are integers that float64 does not hold, and whether some are floats. `settled` makes types of
them. Integers that float64 does not hold and floats have no common type (`rounded`).
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.types as kinds

from penstock.formats._columns import arrow_of, dtype_of, is_binary, is_list, is_text, numbers

Integers = npt.NDArray[np.int64]

MOST_KEYS: Final = 4096
"""An object with more keys in a column is a map, which no array holds."""
_MOST_OPEN: Final = 2000
"""A line with more brackets may be nested too deep for pyarrow, which crashes at some 50,000 levels."""
_MOST_DEEP: Final = 100
_EXACT: Final = float(1 << 53)
"""Integers up to here are floats without a loss."""
_UNITS: Final = ("s", "ms", "us", "ns")
_NEGATIVE, _BEYOND, _INEXACT, _FLOATS = 1, 2, 4, 8
_NUMBERS: Final = {
    0: pa.uint32(),
    _NEGATIVE: pa.int64(),
    _BEYOND: pa.uint64(),
    _NEGATIVE | _BEYOND: pa.decimal128(20, 0),
    _FLOATS: pa.float64(),
    # Decimals stand for the others. pyarrow finds none in text.
    **{_INEXACT | facts: pa.decimal128(21 + facts, 0) for facts in range(4)},
    _INEXACT | _FLOATS: pa.decimal128(25, 0),
}
_FACTS: Final = {kind: facts for facts, kind in _NUMBERS.items()}
_LONG: Final = re.compile(rb"[\[:,\s]-?[0-9]{16,}[\s,\]}]")
"""An integer in JSON that may be beyond 2**53."""
_LONG_TEXT, _INTEGER_TEXT = r"^\s*[+-]?[0-9]{16,}\s*$", r"^\s*[+-]?[0-9]+\s*$"


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
    if (facts := _FACTS.get(kind)) is None:
        return kind
    if facts & _FLOATS:
        return pa.float64()
    return (pa.uint64(), huge)[facts & _NEGATIVE] if facts & _BEYOND else pa.int64()


def rounded(name: str, kind: Any, huge: Any) -> str | None:
    """The name of a column, or of a field in it, of which float64 would round integers; None if there is none.

    Args:
        name: The name of the column.
        kind: Its type, as it was found in text.
        huge: See `settled`.
    """
    if kinds.is_struct(kind):
        return next(filter(None, (rounded(f"{name}.{part.name}", part.type, huge) for part in kind)), None)
    if is_list(kind):
        return rounded(name, kind.value_type, huge)
    is_inexact = _FACTS.get(kind, 0) & _INEXACT and settled(kind, huge) == pa.float64()
    return name if is_inexact else None


def join(found: dict[str, Any], shown: dict[str, Any], otherwise: Callable[[Any, Any], Any]) -> None:
    """Adds the types that some rows show to those of the rows before; for `otherwise` see `least`."""
    for name, kind in shown.items():
        found[name] = _kept(least(found.get(name, pa.null()), kind, otherwise))


def the_first(first: Any, other: Any) -> Any:
    """For values of JSON that differ in kind, such as text and numbers: those of the other kind are errors."""
    return first if (found := _of_both(first, other)) is None else found


def text(first: Any, other: Any) -> Any:
    """For CSV, where all is text."""
    return pa.string() if (found := _of_both(first, other)) is None else found


def _of_both(first: Any, other: Any) -> Any:
    """The type that stands for the numbers of two; None if one is no number."""
    if first not in _FACTS or other not in _FACTS:
        return None
    facts = _FACTS[first] | _FACTS[other]
    return _NUMBERS[facts & (_FLOATS | _INEXACT) if facts & _FLOATS else facts]


def of_json(rows: Sequence[bytes]) -> dict[str, Any]:
    """The types of the values of some lines of JSON. A line that is damaged shows none; it is named when it is read."""
    rows = [row for row in rows if is_object(row)]
    if all(row.count(b"[") + row.count(b"{") <= _MOST_OPEN for row in rows) and rows:
        data = b"\n".join(rows)
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pa_json.read_json(pa.BufferReader(data), reading, pa_json.ParseOptions(newlines_in_values=True))
            if table.num_rows == len(rows):
                return _of_table(table, rows, data)
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


def _of_table(table: Any, rows: Sequence[bytes], data: bytes) -> dict[str, Any]:
    """The types of the columns of lines of JSON, which pyarrow has parsed; `data` are the lines together.

    It rounds integers among floats, and those beyond `int64`. So a column with large floats is looked at in the lines,
    if they have long integers at all.

    Raises:
        ValueError: Python cannot parse a line.
    """
    found, values = {}, list[Any]()
    for name in table.column_names:
        column = table[name].combine_chunks()
        if _has_large(column) and _LONG.search(data):
            values = values or [json.loads(row) for row in rows]
            found[name] = _of_values([value.get(name) for value in values])
        else:
            found[name] = _shown(column)
    return found


def _of_values(values: Sequence[Any]) -> Any:
    """The least type of values of JSON."""
    there = set(map(type, values)) - {type(None)}
    if there <= {int, float}:
        integers = [value for value in values if type(value) is int]
        found = _of_integers(integers) if integers else pa.float64()
        return _of_both(found, pa.float64()) if float in there else found
    found = pa.null()
    for value in values:
        found = least(found, _type_of(value, 0), the_first)
    return found


def _has_large(values: Any) -> bool:
    """Whether floats in an array may be integers that were rounded."""
    kind = values.type
    if is_list(kind):
        return _has_large(values.flatten())
    if kinds.is_struct(kind):
        return any(map(_has_large, values.flatten()))
    return bool(kinds.is_floating(kind) and is_rounded(values))


def _shown(values: Any) -> Any:
    """The type that an array of values shows, of which no integer was rounded."""
    kind = values.type
    if is_list(kind):
        return pa.list_(_shown(values.flatten()))
    if kinds.is_struct(kind):
        parts = zip(kind, values.flatten(), strict=True)
        return pa.struct([(part.name, _shown(inner)) for part, inner in parts])
    if kinds.is_temporal(kind):
        return pa.string()
    if kinds.is_integer(kind):
        limits = pc.min_max(values).as_py()
        smallest, largest = limits["min"] or 0, limits["max"] or 0
        facts = _NEGATIVE if smallest < 0 else 0
        if max(-smallest, largest) > _EXACT:
            sizes = np.abs(numbers(values.drop_null(), ()))
            facts |= _INEXACT * bool((sizes >> 53 >= np.maximum(1, sizes & -sizes)).any())  # as in _is_exact
        return _NUMBERS[facts]
    return kind


def is_rounded(values: Any) -> bool:
    """Whether floats may be integers that were rounded."""
    limits = pc.min_max(values.filter(pc.is_finite(values))).as_py()
    return max(-(limits["min"] or 0), limits["max"] or 0) >= _EXACT


def _type_of(value: Any, depth: int) -> Any:
    """The type of a value of JSON.

    Raises:
        ValueError: It is nested too deep.
    """
    if depth > _MOST_DEEP:
        raise ValueError("nested too deep")
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return _of_integers([value])
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(each, depth + 1)) for name, each in value.items()])
    inner = pa.null()
    for each in value:
        inner = least(inner, _type_of(each, depth + 1), the_first)
    return pa.list_(inner)


def _of_integers(values: Sequence[int]) -> Any:
    """The type that stands for integers, of which there is one at least."""
    smallest, largest = min(values), max(values)
    facts = _NEGATIVE if smallest < 0 else 0
    if smallest < -(1 << 63) or largest >= 1 << 64:
        facts |= _NEGATIVE | _BEYOND
    elif largest >= 1 << 63:
        facts |= _BEYOND
    if max(-smallest, largest) > _EXACT and not all(map(_is_exact, values)):
        facts |= _INEXACT
    return _NUMBERS[facts]


def _is_exact(value: int) -> bool:
    """Whether float64 holds an integer."""
    size = abs(value)
    return size < 1 << 1024 and size >> 53 < max(1, size & -size)  # its lowest bit is one of the 53 that are kept


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
        texts = parse(b"\n".join(rows), {name: pa.string()})[name].combine_chunks().filter(values.is_valid())
        if not pc.any(pc.match_substring_regex(texts, _LONG_TEXT)).as_py():
            return kind
        digits = texts.filter(pc.match_substring_regex(texts, _INTEGER_TEXT)).to_pylist()
        found = _of_integers([int(each) for each in digits])
        return found if len(digits) == len(texts) else _of_both(found, kind)
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
