"""Text as one Arrow file: one pass finds the least types of all rows, another parses them, in bounded memory.

DuckDB parses JSON, and pyarrow CSV (design/0034). The file has the values that elements have: cast, and with what
stands in for nulls.
"""

import codecs
import csv
import io
import itertools
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as kinds

from penstock.base._errors import PenstockError, SourceError, SpecError
from penstock.base._units import size_text
from penstock.files._openfile import File
from penstock.files._recordindex import Compressed, found_compression, in_utf_8, progress
from penstock.sources._localfile import LocalFile
from penstock.tables._columns import RowError, inmost, is_list, is_text, with_values
from penstock.tables._leasttypes import least
from penstock.tables._leaves import Dtypes, Leaf, Nulls, chosen, differences, leaves_of, values_of

PART_NBYTES: Final = 32 << 20
"""Values of this size become a record batch. A batch of shuffled rows costs some 0.1 ms for each that it touches."""
NOTE: Final = b"penstock"
"""In the metadata of the last record batch: the paths of the leaves, the rows of each file, what the log says."""
_ROW_NBYTES: Final = 16 << 20
"""The largest row of CSV. That of JSON is the same, which is DuckDB's default."""
_MOST_KEYS: Final = 4096
"""An object with more keys in a column is text: its keys are data."""
_ROWS: Final = 2048
"""Rows that DuckDB hands over at once: one of its vectors."""
_EXACT: Final = float(1 << 53)
"""Integers up to here are floats without a loss."""
_NUMBER: Final = re.compile(r"[-+.0-9eE]{5,}")
"""A number that a float may round or not hold, in text."""
_CONFIG: Final[dict[str, Any]] = {
    "threads": 1,  # with several, streamed rows can come in another order (2.0.1, seen with CSV)
    "memory_limit": "512MB",
    "arrow_large_buffer_size": True,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_TEXT: Final = pa.large_string()
_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
"""DuckDB's names of the types that are found; others are text."""
_STRUCTURES: Final = {name: kind for kind, name in _NAMES.items()} | {
    "NULL": pa.null(),
    "UBIGINT": pa.int64(),
    "HUGEINT": pa.int64(),
}
"""What types are called in the structure of JSON. The names of integers say only which signs they have."""
_NULLS: Final = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null",
)  # fmt: skip
"""Fields of CSV without quotes that stand for null, but in a column of text, as in pyarrow and pandas."""
_TRUTHS: Final = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = f"{_DAY}[ T][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}})?"
_PART: Final = r"[.][0-9]{1,9}"
_ZONE: Final = "(Z|[-+][0-9]{2}(:?[0-9]{2})?)"
_FIELDS: Final = {
    1: (r"[ \t]*-?(0|[1-9][0-9]*)[ \t]*", pa.int64()),
    2: (r"[ \t]*(" + "|".join(itertools.chain(*_TRUTHS)) + r")[ \t]*", None),
    4: (_DAY, pa.date32()),
    8: (_TIME, pa.timestamp("s")),
    16: (_TIME + _PART, pa.timestamp("ns")),
    32: (_TIME + _ZONE, pa.timestamp("s", "UTC")),
    64: (_TIME + _PART + _ZONE, pa.timestamp("ns", "UTC")),
    128: (r"(?i)[ \t]*-?((0|[1-9][0-9]*)([.][0-9]*)?|[.][0-9]+|inf|infinity)(e[-+]?[0-9]+)?[ \t]*", None),
}
"""What a field of CSV may be: a pattern, and the type that its text must then fit. Other fields are text."""
_LARGE: Final = 128
"""Integers that int64 does not hold are floats."""
_OTHER: Final = 256
_FOUND: Final = (
    {0: pa.null(), 1: pa.int64(), 2: pa.bool_(), 4: pa.date32(), 128: pa.float64(), 129: pa.float64()}
    | dict.fromkeys((8, 12), pa.timestamp("s"))
    | dict.fromkeys((16, 20, 24, 28), pa.timestamp("ns"))
    | {32: pa.timestamp("s", "UTC"), 64: pa.timestamp("ns", "UTC"), 96: pa.timestamp("ns", "UTC")}
)
"""The type that holds fields of these kinds."""


@final
@dataclass(frozen=True)
class Format:
    """How rows are written."""

    kind: Literal["jsonl", "csv"]
    delimiter: str = ""
    quote: str = ""
    names: tuple[str, ...] | None = None
    """The columns of CSV without a header."""
    encoding: str = "utf-8"

    @property
    def verb(self) -> str:
        """The user's function."""
        return f"from_{self.kind}"

    def types(self, connection: Any, path: str) -> dict[str, Any]:
        """The least types of the columns of a file; null for a column without a value.

        Raises:
            ValueError: The file cannot be parsed. Also `duckdb.Error`.
        """
        if self.kind == "jsonl":
            types: dict[str, Any] = {}
            # json_group_structure keeps what it has seen in memory.
            query = "SELECT DISTINCT json_structure(json) FROM read_ndjson_objects($path)"
            reader = connection.sql(query, params={"path": path}).to_arrow_reader(_ROWS)
            for found in itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in reader):
                structure = json.loads(found)
                if not isinstance(structure, dict) and structure != "JSON":  # which it says of {}
                    raise duckdb.Error("not each line is a JSON object")
                _join(types, {} if structure == "JSON" else {name: _type_of(each) for name, each in structure.items()})
            return types
        names, skipped = self._header(path)
        codes = [0] * len(names)
        for batch in self._csv(path, len(names), skipped, dict.fromkeys(range(len(names)), _TEXT), are_null=True):
            for place, values in enumerate(batch.columns):
                if codes[place] in _FOUND:  # else it is text, whatever follows
                    codes[place] |= _kinds_of(values)
        self._require_end_of_quotes(path)
        return {name: _FOUND.get(code, _TEXT) for name, code in zip(names, codes, strict=True)}

    def rows(
        self, connection: Any, path: str, own: Mapping[str, Any], types: Mapping[str, Any], numbers: Collection[str]
    ) -> Iterator[Any]:
        """Yields the rows of a file as record batches.

        Args:
            connection: DuckDB's.
            path: The file.
            own: Its columns, and the types of their values.
            types: The columns to read, and as which types. Those that are null in the file may be left out.
            numbers: Those that the user reads as numbers, times or truth values. As text, they may be null.

        Raises:
            ValueError: A row cannot be parsed. Also `duckdb.Error`.
        """
        if self.kind == "jsonl":
            query = "FROM read_json($path, format='newline_delimited', columns=$columns)"
            columns = {name: _sql(kind) for name, kind in types.items()}
            found = connection.sql(query, params={"path": path, "columns": columns})
            for batch in found.to_arrow_reader(_ROWS):
                read = zip(batch.columns, types.values(), strict=True)
                yield pa.record_batch([_with_bytes(values, kind) for values, kind in read], list(types))
            return
        places, (_, skipped) = {name: place for place, name in enumerate(own)}, self._header(path)
        names = [name for name in places if name in types and (types[name] == _TEXT or own[name] != pa.null())]
        for batch in self._csv(path, len(own), skipped, {places[name]: types[name] for name in names}):
            arrays = dict(zip(names, batch.columns, strict=False))
            for name in numbers:
                if name in arrays and arrays[name].type == _TEXT:
                    trimmed = pc.utf8_trim_whitespace(arrays[name])
                    is_null = pc.is_in(trimmed, pa.array(_NULLS, _TEXT))
                    arrays[name] = pc.if_else(is_null, pa.scalar(None, _TEXT), trimmed)
            yield pa.record_batch(list(arrays.values()), names) if names else batch

    def _header(self, path: str) -> tuple[Sequence[str], int]:
        """The columns of CSV, and how many rows lie before the values; -1 if there are none."""
        quoting: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = enumerate(csv.reader(file, delimiter=self.delimiter, **quoting), 1)
            skipped, names = (
                (0, self.names) if self.names else next(((place, row) for place, row in rows if row), (0, []))
            )
            if not any(line.strip("\r\n") for line in file):
                skipped = -1
        if self.names is not None:
            return self.names, skipped
        if "\ufffd" in "".join(names):
            raise ValueError("its header is no utf-8")
        if others := [each for each in ";\t|" if len(names) == 1 and each in names[0]]:
            raise ValueError(
                f"it has one column, {names[0]!r}, so its fields are not separated by {self.delimiter!r}. Write "
                f"delimiter={others[0]!r}, or names=[...] if this is a row"
            )
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"two columns have the name {twice[0]!r}, and an element is a dict")
        return names, skipped

    def _require_end_of_quotes(self, path: str) -> None:
        """Refuses CSV that ends within quotes, which pyarrow takes for the end of the field.

        Raises:
            csv.Error: It does.
        """
        if not self.quote:
            return
        with open(path, "rb") as data:
            count = sum(part.count(self.quote.encode()) for part in iter(lambda: data.read(_ROW_NBYTES), b""))
        if count % 2:  # there may be one in the middle of a field without quotes
            with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
                try:
                    for _ in csv.reader(file, delimiter=self.delimiter, quotechar=self.quote, strict=True):
                        pass
                except csv.Error as error:
                    if "unexpected end" in str(error):
                        raise csv.Error("it ends within quotes, so it is cut, or a quote is missing") from None

    def _csv(
        self, path: str, count: int, skipped: int, types: Mapping[int, Any], *, are_null: bool = False
    ) -> Iterator[Any]:
        """Yields record batches of columns of CSV.

        Args:
            path: The file.
            count: How many columns it has.
            skipped: See `_header`.
            types: The columns, by number, and their types; none for rows without a value that counts.
            are_null: Whether fields of text may be null.
        """
        if skipped < 0:
            return
        with pa_csv.open_csv(
            path,
            pa_csv.ReadOptions(
                use_threads=False,  # so that errors have the number of the row
                block_size=_ROW_NBYTES,
                column_names=[f"c{place}" for place in range(count)],
                skip_rows_after_names=skipped,
            ),
            pa_csv.ParseOptions(delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types={f"c{place}": kind for place, kind in (types or {0: _TEXT}).items()},
                include_columns=[f"c{place}" for place in types or [0]],
                null_values=_NULLS,
                true_values=_TRUTHS[0],
                false_values=_TRUTHS[1],
                strings_can_be_null=are_null,
                quoted_strings_can_be_null=False,
            ),
        ) as reader:
            yield from reader


@final
@dataclass(frozen=True)
class Text:
    """Files of text, and what the user says of their rows: all that decides what the Arrow file has."""

    files: tuple[File, ...]
    format: Format
    columns: tuple[str, ...] | None
    dtypes: Dtypes
    nulls: Nulls
    compression: Compressed

    @property
    def where(self) -> str:
        """The files, for messages."""
        more = len(self.files) - 1
        return self.files[0].url + f" and {more} more" * (more > 0)

    def arrow_file(self) -> Iterator[bytes]:
        """Yields an Arrow file of the leaves of all rows.

        Raises:
            SourceError: A row cannot be parsed, or a value cannot be read as its dtype. The message has the file, and
                the line or the row.
            SpecError: No array holds a column, or all of it is null and nothing stands in for it; or float64 would
                round integers.
        """
        tell = progress(f"Converting {self.where}", sum(file.nbytes for file in self.files))
        with duckdb.connect(config=_CONFIG) if self.format.kind == "jsonl" else nullcontext() as connection:
            there = []
            for file in self.files:
                with self._opened(file) as path:
                    there.append(self.format.types(connection, path))
            types, leaves, remark = self._found(there)
            empty = pa.RecordBatch.from_pylist([], pa.schema(list(types.items())))
            schema = pa.schema([(leaf.name, _values(empty, leaf, lambda _: self.where).type) for leaf in leaves])
            group, counts, sink = [_leaves_of(empty, leaves, schema, "", 0)], [0] * len(there), _Sink()
            nbytes = 0
            with pa.ipc.new_file(sink, schema) as writer:
                for number, (file, own) in enumerate(zip(self.files, there, strict=True)):
                    with self._opened(file) as path:
                        large = set[str]()
                        for batch in self.format.rows(connection, path, own, types, self._numbers):
                            for name, values in zip(batch.schema.names, batch.columns, strict=True):
                                large.update(self._large(name, values))
                            group.append(_leaves_of(batch, leaves, schema, file.url, counts[number]))
                            counts[number] += batch.num_rows
                            nbytes += group[-1].nbytes
                            if nbytes >= PART_NBYTES:
                                writer.write_batch(_joined(group))
                                del group[1:]
                                nbytes = 0
                                yield sink.taken()
                        for name in sorted(large):
                            self._require_exact(name, file, connection, path, own)
                    tell(sum(each.nbytes for each in self.files[: number + 1]))
                note = {"paths": {leaf.name: leaf.path for leaf in leaves}, "rows": counts, "remark": remark}
                writer.write_batch(_joined(group), custom_metadata={NOTE: json.dumps(note)})
            yield sink.taken()

    def _found(self, there: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], tuple[Leaf, ...], str]:
        """The types as which columns are read, the leaves, and what the log says of files that differ."""
        verb, dtypes, every = self.format.verb, self.dtypes, dict[str, Any]()
        for own in there:
            _join(every, own)
        if not every:
            raise SourceError(f"{verb}(): {self.where} has no columns, so it has no elements.")
        dtypes.require(verb, self.where, list(every))
        names = chosen(verb, "columns", self.columns, self.where, list(every))
        types = {name: dtypes.applied(name, every[name]) for name in names}
        leaves = leaves_of(verb, self.where, types, self.nulls, dtypes)
        shown = [{name: dtypes.applied(name, kind) for name, kind in own.items()} for own in there]
        return (
            {name: self._read_as(name, every[name]) for name in names},
            leaves,
            differences(verb, self.files, shown, types),
        )

    def _read_as(self, name: str, kind: Any) -> Any:
        """The type as which a column, or a field of it, is parsed. pyarrow makes the dtypes that are named of it.

        Args:
            name: Its name, with dots.
            kind: The type that is found.
        """
        value, dtype = inmost(kind), self.dtypes.by_name.get(name)
        if dtype is None:
            if not kinds.is_struct(value):
                return kind
            return with_values(
                kind, pa.struct([(part.name, self._read_as(f"{name}.{part.name}", part.type)) for part in value])
            )
        wanted, read = np.dtype(dtype), _TEXT
        if wanted.kind == "S":
            read = pa.large_binary()
        elif wanted == np.uint64:
            read = _TEXT
        elif kinds.is_null(value) or (wanted.kind != "U" and kinds.is_temporal(value)):
            read = value
        elif wanted.kind == "f" and (kinds.is_integer(value) or kinds.is_floating(value)):
            read = pa.float64()
        elif not is_text(value) if wanted.kind == "b" else wanted.kind in "ium" and kinds.is_integer(value):
            read = value
        return with_values(kind, read)

    @cached_property
    def _numbers(self) -> set[str]:
        """The columns that are no text, as the user says."""
        return {name for name, dtype in self.dtypes.named if np.dtype(dtype).kind not in "US"}

    @contextmanager
    def _opened(self, file: File) -> Iterator[str]:
        """Gives a path at which DuckDB finds the text in UTF-8, and adds the file to its errors.

        It is that of a descriptor, so no name means a pattern, a compression or a partition.
        """
        compression = found_compression(file, self.compression)
        with ExitStack() as stack:
            if file.is_local and compression is None and self.format.encoding == "utf-8":
                opened = file.open()
                assert isinstance(opened, LocalFile)
                descriptor = opened.descriptor
                stack.callback(file.open)  # refuses a file that has changed meanwhile
            else:
                copy = stack.enter_context(tempfile.TemporaryFile())
                copy.writelines(in_utf_8(file, compression, self.format.encoding))
                copy.flush()
                descriptor = copy.fileno()
            path = f"/dev/fd/{descriptor}"
            try:
                yield path
            except PenstockError:
                raise
            except (duckdb.Error, csv.Error, ValueError, RecursionError) as error:
                raise SourceError(f"{self.format.verb}(): {file.url}: {self._words(error, file, path)}") from error

    def _words(self, error: Exception, file: File, path: str) -> str:
        """What is wrong with a file, and what helps."""
        words = re.split(r"\n\s*(?:Possible|Try|LINE 1|file =)", str(error))[0].replace(path, file.url)
        words, cure = " ".join(re.sub(r"(\S{99})\S{99,}", r"\1...", words).split()).rstrip("."), ""
        if isinstance(error, duckdb.Error) and not isinstance(error, duckdb.OperationalError):
            cure = ' Mend it. A column of other values can be read as text: dtypes={"x": "U"}.'
            if self.format.kind == "jsonl":  # DuckDB miscounts the lines of damaged JSON
                words = _first_fault(path) or words
        elif "parse error" in words:
            cure = " Mend that row."
        elif "straddl" in words:
            cure = f" A row has at most {size_text(_ROW_NBYTES)}; perhaps a quote is missing."
        if "utf-8" in words or "UTF8" in words:
            cure = " Name the encoding with encoding=, such as 'latin-1'."
        return f"{words}.{cure}"

    def _large(self, name: str, values: Any) -> Iterator[str]:
        """Yields the columns and fields of floats that may be rounded integers, or larger than float64 holds."""
        kind = values.type
        if is_list(kind):
            yield from self._large(name, values.flatten())
        elif kinds.is_struct(kind):
            for part, inner in zip(kind, values.flatten(), strict=True):
                yield from self._large(f"{name}.{part.name}", inner)
        elif kinds.is_floating(kind) and (pc.max(pc.abs(values)).as_py() or 0) >= self._most(name):
            yield name

    def _most(self, name: str) -> float:
        """Floats below it are what the text says, or as the user allows."""
        may_round = any(name == each and np.dtype(dtype).kind == "f" for each, dtype in self.dtypes.named)
        return math.inf if may_round else _EXACT

    def _require_exact(self, name: str, file: File, connection: Any, path: str, own: Mapping[str, Any]) -> None:
        """Looks at the text of a column with large floats.

        Raises:
            SpecError: It has an integer that float64 rounds, or a number that it does not hold.
        """
        column, row = name.partition(".")[0], 0
        for batch in self.format.rows(connection, path, own, {column: _TEXT}, ()):
            for text in batch.column(0).to_pylist():
                for number in _NUMBER.findall(text or ""):
                    if _is_lost(number, self._most(name)):
                        cure = f'Say that it may: dtypes={{{name!r}: "float64"}}; or read' * math.isfinite(
                            float(number)
                        )
                        raise SpecError(
                            f"{self.format.verb}(): no type holds column {name!r} of {self.where}: {file.url} row "
                            f"{row} has {number[:40]}, which float64 would make {float(number):.0f}. "
                            f'{cure or "Read"} it as text: dtypes={{{name!r}: "U"}}.'
                        )
                row += 1


def _first_fault(path: str) -> str:
    """The first line that is no JSON object, and why; empty if there is none."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if isinstance(json.loads(line.removeprefix(codecs.BOM_UTF8).strip() or "{}"), dict):
                    continue
                fault = "it is another value"
            except (ValueError, RecursionError) as error:
                fault = str(error)
            return f"line {number} is no JSON object: {fault}. It begins with {line[:60]!r}"
    return ""


def _is_lost(number: str, most: float) -> bool:
    """Whether float64 does not hold a number in text, or rounds an integer of `most` or more."""
    try:
        return float(number) in (math.inf, -math.inf) or (
            number.lstrip("+-").isdigit() and int(number) != float(number) and abs(float(number)) >= most
        )
    except ValueError:  # it is no number
        return False


def _join(types: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds the types of more rows to those of some. Values that differ in kind are text."""
    for name, kind in more.items():
        types[name] = _of_few_keys(least(types.get(name, pa.null()), kind, lambda *_: _TEXT))


def _of_few_keys(kind: Any) -> Any:
    value = inmost(kind)
    return _TEXT if kinds.is_struct(value) and value.num_fields > _MOST_KEYS else kind


def _type_of(structure: Any, *, is_in_list: bool = False) -> Any:
    """The type of a value of JSON, by the structure that DuckDB finds."""
    if isinstance(structure, list):
        return pa.list_(_type_of(structure[0], is_in_list=True))
    if structure == "JSON":  # an object without keys, or values of a list that differ in kind
        structure = "VARCHAR" if is_in_list else {}
    if isinstance(structure, str):
        return _STRUCTURES.get(structure, _TEXT)
    if len(structure) > _MOST_KEYS:
        return _TEXT
    return pa.struct([(name, _type_of(each, is_in_list=is_in_list)) for name, each in structure.items()])


def _kinds_of(values: Any) -> int:
    """What the fields of a column of CSV are: the sum of their codes in `_FIELDS`, or `_OTHER` beside some."""
    values, found = values.drop_null(), 0
    for code, (pattern, kind) in _FIELDS.items():
        is_such = pc.match_substring_regex(values, f"^({pattern})$")
        if not (such := values.filter(is_such)):
            continue
        found |= code
        try:
            if kind is not None:
                pc.utf8_trim_whitespace(such).cast(kind)
        except pa.ArrowInvalid:
            if code != 1:
                return _OTHER
            found |= _LARGE
        if not (values := values.filter(pc.invert(is_such))):
            break
    return found | _OTHER if len(values) else found


def _with_bytes(values: Any, kind: Any) -> Any:
    """Text as bytes, where they are asked for."""
    return values.cast(kind) if "binary" in str(kind) else values


def _sql(kind: Any) -> str:
    """DuckDB's name of a type."""
    if kinds.is_struct(kind) and kind.num_fields:
        parts = (f'"{part.name.replace(chr(34), chr(34) * 2)}" {_sql(part.type)}' for part in kind)
        return f"STRUCT({', '.join(parts)})"
    return f"{_sql(kind.value_type)}[]" if is_list(kind) else _NAMES.get(kind, "VARCHAR")


def _leaves_of(batch: Any, leaves: Sequence[Leaf], schema: Any, file: str, first: int) -> Any:
    """The leaves of some rows, of which `first` is the first.

    Raises:
        SourceError: A value cannot be read as its dtype. The message has the file and the row.
    """
    columns = [
        _values(batch, leaf, lambda row: f"{file} row {first + row}").cast(field.type)
        for leaf, field in zip(leaves, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _values(batch: Any, leaf: Leaf, named: Callable[[int], str]) -> Any:
    """The values of a leaf; `named` says where a row is, for the error of one that cannot be read."""
    try:
        return values_of(batch, leaf)
    except RowError as error:
        raise error.at(named(error.row)) from None


def _joined(batches: Sequence[Any]) -> Any:
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.record_batch(list(map(pa.concat_arrays, columns)), schema=batches[0].schema)


class _Sink(io.RawIOBase):
    """Takes what pyarrow writes, until it is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._nbytes += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._nbytes

    def taken(self) -> bytes:
        """What was written since the last call."""
        made = b"".join(self._parts)
        self._parts.clear()
        return made
