"""Text as one Arrow file: DuckDB finds the least types of all rows, then parses them, in bounded memory (design/0034).

The file has the values that elements have: cast, and with what stands in for nulls.
"""

import codecs
import csv
import io
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock.base._errors import PenstockError, SourceError, SpecError
from penstock.formats._columns import RowError, is_list
from penstock.formats._leasttypes import least
from penstock.formats._leaves import Dtypes, Leaf, Nulls, chosen, differences, leaves_of, values_of
from penstock.formats._recordindex import Compressed, found_compression, in_utf_8, progress
from penstock.sources._openfile import File, LocalFile

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
    "threads": 1,  # of several the rows of CSV came in another order (2.0.1), whatever preserve_insertion_order said
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
    "list_contains(['', '#N/A', '#N/A N/A', '#NA', '-1.#IND', '-1.#QNAN', '-NaN', '-nan', '1.#IND', '1.#QNAN', 'N/A', "
    "'NA', 'NULL', 'NaN', 'n/a', 'nan', 'null'], {0})"
)
"""Whether a field of CSV that is no text stands for null, as in pyarrow and pandas."""
_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = f"{_DATE}[ T][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}})?"
_CASES: Final = {
    1: "TRY_CAST({0} AS BIGINT)::VARCHAR = trim({0})",
    2: "lower({0}) IN ('true', 'false')",
    4: f"regexp_full_match({{0}}, '{_DATE}') AND TRY_CAST({{0}} AS DATE) IS NOT NULL",
    8: f"regexp_full_match({{0}}, '{_TIME}') AND TRY_CAST({{0}} AS TIMESTAMP_S) IS NOT NULL",
    16: f"regexp_full_match({{0}}, '{_TIME}[.][0-9]{{1,9}}') AND TRY_CAST({{0}} AS TIMESTAMP_NS) IS NOT NULL",
    32: r"regexp_full_match(trim({0}), '(?i)[-+]?((0|[1-9][0-9]*)([.][0-9]*)?|[.][0-9]+|inf|infinity)(e[-+]?[0-9]+)?')",
}
"""What a field of CSV is, as a condition of SQL; other fields are text. DuckDB's own sniffer takes `0x10` for 16, `t`
for true and `01/02/2020` for a date, and passes over lines that do not suit it."""
_FOUND: Final = (
    {0: pa.null(), 1: pa.int64(), 2: pa.bool_(), 4: pa.date32(), 32: pa.float64(), 33: pa.float64()}
    | dict.fromkeys((8, 12), pa.timestamp("s"))
    | dict.fromkeys((16, 20, 24, 28), pa.timestamp("ns"))
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
            for (found,) in connection.sql(query, params={"path": path}).fetchall():
                structure = json.loads(found)
                if not isinstance(structure, dict) and structure != "JSON":  # which it says of {}
                    raise duckdb.Error("not each line is a JSON object")
                _join(types, {} if structure == "JSON" else {name: _type_of(each) for name, each in structure.items()})
            return types
        names, _ = self._header(path)
        cases = " ".join(f"WHEN {case} THEN {code}" for code, case in _CASES.items())
        case = f"bit_or(CASE WHEN {{0}} IS NULL OR {_NULLS} THEN 0 {cases} ELSE 64 END)"
        found = self._csv(
            connection, path, [case.replace("{0}", f"c{place}") for place in range(len(names))]
        ).fetchall()[0]
        return {name: _FOUND.get(code or 0, _TEXT) for name, code in zip(names, found, strict=True)}

    def rows(self, connection: Any, path: str, own: Mapping[str, Any], types: Mapping[str, Any]) -> Iterator[Any]:
        """Yields the rows of a file as record batches.

        Args:
            connection: DuckDB's.
            path: The file.
            own: Its columns, and the types of their values.
            types: The columns to read, and as which types. Those that are null in the file may be left out.

        Raises:
            duckdb.Error: A row cannot be parsed.
        """
        names = list(types)
        if self.kind == "jsonl":
            query = "FROM read_json($path, format='newline_delimited', columns=$columns)"
            columns = {name: _sql(kind) for name, kind in types.items()}
            found = connection.sql(query, params={"path": path, "columns": columns})
        else:
            names = [name for name in own if name in types and (types[name] == _TEXT or own[name] != pa.null())]
            fields = []
            for name in names:
                field = f"c{list(own).index(name)}"
                is_text = _TEXT in (own[name], types[name])
                typed = f"CASE WHEN NOT {_NULLS.format(field)} THEN {field} END::{_sql(types[name])}"
                fields.append(f"coalesce({field}, '')" if is_text else typed)
            found = self._csv(connection, path, fields or ["NULL"])
        for batch in found.to_arrow_reader(_ROWS):
            yield pa.record_batch(batch.columns[: len(names)], names) if names else batch

    def _header(self, path: str) -> tuple[Sequence[str], dict[str, Any]]:
        """The columns of CSV, the rows to skip, and how the first row ends: quoted fields may have other ends."""
        quoting: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        last = ""
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:

            def lines() -> Iterator[str]:
                nonlocal last
                for line in file:
                    last = line
                    yield line

            rows = csv.reader(lines(), delimiter=self.delimiter, **quoting)
            skipped, names = next(((place, row) for place, row in enumerate(rows, 1) if row), (0, []))
        end = last[len(last.rstrip("\r\n")) :].encode("unicode_escape").decode()
        options = {"new_line": end} if end else {}
        if self.names is not None:
            return self.names, options | {"skip": 0}
        if "\ufffd" in "".join(names):
            raise ValueError("its header is no utf-8")
        if others := [each for each in ";\t|" if len(names) == 1 and each in names[0]]:
            raise ValueError(
                f"it has one column, {names[0]!r}, so its fields are not separated by {self.delimiter!r}. Write "
                f"delimiter={others[0]!r}, or names=[...] if this is a row"
            )
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two columns have the name {twice[0]!r}, and an element is a dict")
        return names, options | {"skip": skipped}

    def _csv(self, connection: Any, path: str, fields: Sequence[str]) -> Any:
        """Selects expressions of the columns `c0`, `c1` and so on of CSV."""
        names, options = self._header(path)
        options |= {"columns": {f"c{place}": "VARCHAR" for place in range(len(names))}}
        options |= {"delim": self.delimiter, "quote": self.quote, "escape": self.quote}
        options |= {"allow_quoted_nulls": False, "max_line_size": _ROW_NBYTES}
        query = (
            f"SELECT {', '.join(fields)} FROM read_csv($path, auto_detect=false, header=false, "
            f"{', '.join(f'{name}=${name}' for name in options)})"
        )
        if len(names) == 1:  # else DuckDB leaves blank lines out itself
            query += " WHERE c0 IS NOT NULL"
        return connection.sql(query, params={"path": path, **options})


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
        with duckdb.connect(config=_CONFIG) as connection:
            there = []
            for file in self.files:
                with self._opened(file) as path:
                    there.append(self.format.types(connection, path))
            types, leaves, remark = self._found(there)
            empty = pa.RecordBatch.from_pylist([], pa.schema(list(types.items())))
            schema = pa.schema([(leaf.name, values_of(empty, leaf).type) for leaf in leaves])
            group, counts, sink = [_leaves_of(empty, leaves, schema, "", 0)], [0] * len(there), _Sink()
            nbytes = 0
            with pa.ipc.new_file(sink, schema) as writer:
                for number, (file, own) in enumerate(zip(self.files, there, strict=True)):
                    with self._opened(file) as path:
                        large = set[str]()
                        for batch in self.format.rows(connection, path, own, types):
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
        # Others are cast from what is found: DuckDB rounds floats to integers.
        kinds_of = {name: np.dtype(dtype) for name, dtype in dtypes.named}
        parsed = Dtypes(
            tuple(
                (name, "float64" if dtype.kind == "f" else "U")
                for name, dtype in kinds_of.items()
                if dtype.kind in "fU" or dtype == np.uint64
            )
        )
        types = {name: dtypes.applied(name, every[name]) for name in names}
        leaves = leaves_of(verb, self.where, types, self.nulls, dtypes)
        shown = [{name: dtypes.applied(name, kind) for name, kind in own.items()} for own in there]
        return (
            {name: parsed.applied(name, every[name]) for name in names},
            leaves,
            differences(verb, self.files, shown, types),
        )

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
        if isinstance(error, duckdb.Error):
            cure = ' Mend it. A column of other values can be read as text: dtypes={"x": "U"}.'
            if self.format.kind == "jsonl":  # DuckDB miscounts the lines of damaged JSON
                words = _first_fault(path) or words
        if "utf-8" in words:
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
        for batch in self.format.rows(connection, path, own, {column: _TEXT}):
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
        types[name] = least(types.get(name, pa.null()), kind, lambda *_: _TEXT)


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
    columns = []
    for leaf, field in zip(leaves, schema, strict=True):
        try:
            columns.append(values_of(batch, leaf).cast(field.type))
        except RowError as error:
            raise error.at(f"{file} row {first + error.row}") from None
    return pa.record_batch(columns, schema=schema)


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
