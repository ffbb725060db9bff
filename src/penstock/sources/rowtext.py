"""Rows of text: JSON Lines and CSV as sources with random access. pyarrow parses the rows of each request together."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NoReturn, final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.types as kinds

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._spec import Spec
from penstock.memory._rows import Indices
from penstock.plan._source import Read
from penstock.sources import _recordindex
from penstock.sources._columns import NullError, is_list
from penstock.sources._leaves import Leaf, Nulls, Tabular, chosen, decoded, leaves_of, names_in
from penstock.sources._openfile import File
from penstock.sources._recordindex import Arrays, Compressed, RecordFilesReader, compressed
from penstock.sources.lines import MARK, LineFiles, Rules

HEAD_NBYTES: Final = 1 << 20
"""The types of columns are those of the rows in the first bytes of the first file."""


@final
@dataclass(frozen=True)
class Format:
    """How rows are written."""

    kind: Literal["jsonl", "csv"]
    delimiter: str = ""
    quote: str = ""
    names: tuple[str, ...] | None = None
    """The columns of CSV without a header."""

    @property
    def verb(self) -> str:
        """The user's function."""
        return f"from_{self.kind}"

    @property
    def rules(self) -> Rules:
        """What a record is."""
        is_csv = self.kind == "csv"
        return Rules(False, False, self.delimiter, self.quote, has_header=is_csv and self.names is None)

    def parse(self, data: bytes, names: Sequence[str], schema: Any, columns: Sequence[str] | None) -> Any:
        """Parses rows.

        Args:
            data: Rows, with the ends of lines between them.
            names: All columns of CSV.
            schema: The types of columns; None to find them, without rows of CSV that have other columns.
            columns: The columns to parse; None for all.

        Raises:
            ArrowInvalid: A row is damaged, or a value is not of its type.
        """
        whole: dict[str, Any] = {"use_threads": False, "block_size": len(data) + 1}
        file = pa.BufferReader(data)
        if self.kind == "jsonl":
            others = "infer" if columns is None else "ignore"
            parsing = pa_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior=others
            )
            return pa_json.read_json(file, pa_json.ReadOptions(**whole), parsing)
        return pa_csv.read_csv(
            file,
            pa_csv.ReadOptions(**whole, column_names=names),
            pa_csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                newlines_in_values=True,
                invalid_row_handler=None if schema else lambda _: "skip",
            ),
            pa_csv.ConvertOptions(column_types=schema, include_columns=columns),
        )

    def names_of(self, header: bytes) -> list[str]:
        """The columns that a header names."""
        text = io.StringIO(header.decode("utf-8", "replace"), newline="")
        quoting: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        return next(csv.reader(text, delimiter=self.delimiter, **quoting), [])


@final
@dataclass(frozen=True)
class RowSource(Tabular, LineFiles):
    """The rows of files of text, one file after the other."""

    files: tuple[File, ...]
    format: Format
    columns: tuple[str, ...] | None
    dtypes: tuple[tuple[str, str], ...]
    nulls: Nulls
    compression: Compressed
    cache_dir: str | None

    is_cpu_bound = True

    @property
    def rules(self) -> Rules:
        return self.format.rules

    @cached_property
    def _head(self) -> tuple[tuple[str, ...], Any]:
        """The columns of CSV, and the schema of the chosen columns, from the first rows."""
        return self._inferred(self.files[0])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element."""
        schema = self._head[1]
        return self.nulls.applied(self.format.verb, leaves_of(schema, schema.names))

    def parse(self, data: bytes) -> Any:
        """Parses the chosen columns of rows; see `Format.parse`."""
        names, schema = self._head
        return self.format.parse(data, names, schema, schema.names)

    def open(self) -> "OpenRowSource":
        return OpenRowSource(self)

    def _indexed(self, file: File) -> tuple[File, Arrays]:
        content, arrays = super()._indexed(file)
        names = self._head[0]
        if self.rules.has_header and (found := self.format.names_of(arrays["header"].tobytes())) != list(names):
            raise SpecError(f"{file.url} has the columns {found}, but {self.files[0].url} has {list(names)}.")
        return content, arrays

    def _inferred(self, file: File) -> tuple[tuple[str, ...], Any]:
        data, verb = self._first_rows(file), self.format.verb
        if self.format.kind == "jsonl" and data.lstrip()[:1] == b"[":
            raise SourceError(
                f"from_jsonl(): {file.url} is one JSON array, and JSON Lines have an object on each line. Write it so: "
                "for each in json.load(open(old)): print(json.dumps(each), file=new)."
            )
        names = self.format.names or ()
        if self.rules.has_header:
            _, ends = self.rules.ends(data)
            end = int(ends[0]) if len(ends) else len(data)
            names, data = tuple(self.format.names_of(data[:end])), data[end:]
            if others := [each for each in ";\t|" if len(names) == 1 and each in names[0]]:
                raise SourceError(
                    f"from_csv(): {file.url} has one column, {names[0]!r}, so its fields are not separated by "
                    f"{self.format.delimiter!r}. Write delimiter={others[0]!r}, or names=[...] if this is a row."
                )
        wanted = dict(self.dtypes)
        try:
            found = self.format.parse(data, names, None, None).schema if data.strip() else pa.schema([])
        except (pa.ArrowException, ValueError) as error:
            # A line that is damaged is named when it is read.
            rows = [row for row in data.split(b"\n") if _is_object(row)] if self.format.kind == "jsonl" else []
            try:
                found = self.format.parse(b"\n".join(rows), names, None, None).schema
            except (pa.ArrowException, ValueError):
                raise SourceError(f"{file.url} is no file for {verb}(). In its first rows: {_words(error)}.") from error
        there = found.names if self.format.kind == "jsonl" else list(names)
        chosen(verb, "dtypes", tuple(wanted), file.url, there)
        columns = chosen(verb, "columns", self.columns, file.url, there)
        kinds_of = {name: found.field(name).type if name in found.names else pa.string() for name in columns}
        types = {name: _typed(kind, wanted.get(name), self.format.kind) for name, kind in kinds_of.items()}
        if unseen := [name for name, kind in types.items() if kinds.is_null(kind)]:
            raise SpecError(
                f"{verb}(): column {unseen[0]!r} has no value in the first rows of {file.url}, so its type is unknown. "
                f'Say it: dtypes={{{unseen[0]!r}: "float64"}}, or leave it out with columns=[...].'
            )
        return names, pa.schema(types)

    def _first_rows(self, file: File) -> bytes:
        """The first whole rows of a file."""
        data = b""
        for piece in _recordindex.pieces(file, self.compression_of(file)):
            data += piece
            if len(data) >= HEAD_NBYTES and len(ends := self.rules.ends(data)[1]) > 1:
                last = max(1, int(np.searchsorted(ends, HEAD_NBYTES, "right")) - 1)
                data = data[: int(ends[last])]
                break
        return data.removeprefix(MARK)


@final
class OpenRowSource(RecordFilesReader):
    """Reads rows; files are opened at their first read. Threads share it and nothing else: each call parses alone."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, and parses the rows of each piece of memory together.

        Raises:
            SourceError: A row is damaged, a value is not of its column's type, or is null. The message has the file and
                the line.
        """
        for read, (members, data, at), sizes in self.requests(reads):
            view = data.data
            rows = [view[start : start + size] for start, size in zip(at.tolist(), sizes.tolist(), strict=True)]
            batch = self._parsed(b"\n".join(rows), len(rows))
            if batch is None:
                self._refuse(read.indices[members], rows)
            places, every = np.arange(len(read.arrays[0]))[read.rows][members], np.arange(len(rows))
            for leaf, array in zip(self._source.leaves, read.arrays, strict=True):
                try:
                    decoded(batch, leaf).put(every, array, places)
                except NullError as error:
                    raise error.at(self._source.describe(int(read.indices[members[error.row]]))) from None

    def _parsed(self, data: bytes, count: int) -> Any:
        """Parses rows to a record batch. Returns None if they are not as many, or damaged."""
        try:
            table = self._source.parse(data)
        except (pa.ArrowException, ValueError):
            return None
        return table.combine_chunks().to_batches()[0] if table.num_rows == count else None

    def _refuse(self, elements: Indices, rows: Sequence[memoryview]) -> NoReturn:
        """Finds the row that cannot be parsed."""
        source = self._source
        for element, row in zip(elements.tolist(), map(bytes, rows), strict=True):
            try:
                count = source.parse(row).num_rows
                fault = "" if count == 1 else f"it has {count} rows, and not one"
            except (pa.ArrowException, ValueError) as error:
                fault = _words(error)
            if fault:
                raise SourceError(
                    f"{source.describe(element)} does not fit {Spec.of(source.element_spec)}, the types of the first "
                    f"rows: {fault}. It begins with {row[:60]!r}. Name another type, as with "
                    'dtypes={"x": "float64"}, or "U" for text; or mend the line.'
                )
        raise SourceError(f"{source}: some rows cannot be parsed together, and each can alone.")


def source(
    form: Format,
    files: tuple[File, ...],
    columns: Any,
    dtypes: Any,
    fill_null: Any,
    null_masks: Any,
    compression: Compressed,
    cache_dir: str | None,
) -> RowSource:
    """Makes a source from the arguments of `penstock.from_jsonl` and `from_csv`. Reads the first rows."""
    verb = form.verb
    for name, value in (("delimiter", form.delimiter), ("quote", form.quote)):
        if not isinstance(value, str) or len(value.encode()) > 1:
            raise ArgumentError(f"{verb}({name}={value!r}): it is one character of ASCII.")
    if dtypes is not None and not isinstance(dtypes, Mapping):
        raise ArgumentTypeError(f"{verb}(dtypes=) is a dict of names and dtypes, got {type_of(dtypes)}.")
    named = tuple((name, np.dtype(dtype).str) for name, dtype in (dtypes or {}).items())
    nulls = Nulls.of(verb, fill_null, null_masks)
    wanted = None if columns is None else names_in(verb, "columns", columns)
    made = RowSource(files, form, wanted, named, nulls, compressed(verb, compression), cache_dir)
    if not made.leaves:
        raise SourceError(f"{verb}(): {files[0].url} has no columns, so it has no elements.")
    return made


def _typed(kind: Any, dtype: str | None, form: str) -> Any:
    """The type to parse a column to: of a dtype, in lists that of their values. JSON has text, and no times."""
    if is_list(kind):
        return pa.list_(_typed(kind.value_type, dtype, form))
    if dtype is not None:
        return pa.string() if dtype[1] == "U" else pa.from_numpy_dtype(np.dtype(dtype))
    if kinds.is_struct(kind):
        return pa.struct([(part.name, _typed(part.type, None, form)) for part in kind])
    return pa.string() if form == "jsonl" and kinds.is_temporal(kind) else kind


def _is_object(row: bytes) -> bool:
    try:
        return isinstance(json.loads(row), dict)
    except ValueError:
        return False


def _words(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
