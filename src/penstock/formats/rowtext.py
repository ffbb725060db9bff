"""Rows of text: JSON Lines and CSV as sources with random access. pyarrow parses the rows of each request together."""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NoReturn, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.types as kinds

from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.base._spec import Spec
from penstock.base._units import size_text
from penstock.formats import _leasttypes, _recordindex
from penstock.formats._columns import RowError, column_of, is_list
from penstock.formats._folders import depth_of, folders_of
from penstock.formats._leasttypes import is_object, join, rounded, settled
from penstock.formats._leaves import (
    Dtypes,
    Leaf,
    Nulls,
    Tabular,
    chosen,
    decoded,
    leaves_of,
    log_differences,
    log_once,
    names_in,
    values_of,
)
from penstock.formats._recordindex import Compressed, RecordFilesReader, compressed
from penstock.formats._textcolumns import LEAST_NBYTES, MOST_NBYTES, UnfitError, kept_columns, narrowed
from penstock.formats.lines import MARK, LineFiles, LineWindow, Rules, encoding_of, not_text
from penstock.formats.parquet import TableSource
from penstock.memory._rows import Indices
from penstock.plan._source import Read
from penstock.sources._kept import Arrays
from penstock.sources._openfile import File, FilesSource
from penstock.sources.parted import PartedArray

HEAD_NBYTES: Final = 1 << 20
"""Files of this size in all are looked at when the dataset is made, so that errors come early."""
_TYPES_VERSION: Final = 2
_BLOCK_NBYTES: Final = 1 << 20
"""Rows of this size, or one row, are looked at together for their types."""
_PARSED_NBYTES: Final = 4 << 20
"""Rows of this size, or one row, are parsed together for the columns that are kept."""


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

    @property
    def rules(self) -> Rules:
        """What a record is."""
        has_header = self.kind == "csv" and self.names is None
        return Rules(False, False, self.delimiter, self.quote, has_header, ends_by_return=True)

    @property
    def parsing(self) -> dict[str, Any]:
        """Options of pyarrow's parser of CSV."""
        return {"delimiter": self.delimiter, "quote_char": self.quote or False}

    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        """Parses rows.

        Args:
            data: Rows, with the ends of lines between them.
            names: All columns of CSV.
            schema: The columns to parse, with their types.

        Raises:
            ArrowInvalid: A row is damaged, or a value is not of its type.
        """
        whole: dict[str, Any] = {"use_threads": False, "block_size": len(data) + 1}
        file = pa.BufferReader(data)
        if self.kind == "jsonl":
            parsing = pa_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
            )
            return pa_json.read_json(file, pa_json.ReadOptions(**whole), parsing)
        return pa_csv.read_csv(
            file,
            pa_csv.ReadOptions(**whole, column_names=names),
            pa_csv.ParseOptions(**self.parsing, newlines_in_values=True),
            pa_csv.ConvertOptions(column_types=schema, include_columns=schema.names, include_missing_columns=True),
        )

    def names_of(self, url: str, header: bytes, encoding: str) -> tuple[str, ...]:
        """The columns that the header of a file names.

        Raises:
            SourceError: It is no text, or has a name of more than 131,072 characters.
        """
        try:
            text = header.decode(encoding)
        except UnicodeDecodeError as error:
            raise not_text(f"The header of {url}", header, error) from error
        if "\0" in text:
            raise SourceError(
                f"The header of {url} has zeros in it: {text[:40]!r}. It may be another encoding, such as "
                "encoding='utf-16'."
            )
        quoting: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, **quoting)
        try:
            return tuple(next(rows, []))
        except csv.Error as error:  # a name is longer than its module reads
            raise SourceError(
                f"The header of {url} has {len(text):,} characters, and cannot be read: {error}. If it is a "
                "row, say names=[...]."
            ) from error


@final
@dataclass(frozen=True)
class RowSource(Tabular, LineFiles):
    """The rows of files of text, one file after the other."""

    files: tuple[File, ...]
    format: Format
    columns: tuple[str, ...] | None
    dtypes: Dtypes
    nulls: Nulls
    compression: Compressed
    cache_dir: str | None
    keeps_columns: bool
    """Whether the columns of the rows may be kept; see `table`."""

    @property
    def is_cpu_bound(self) -> bool:  # type: ignore[override]  # parsing is, and mapped columns are not
        return not self._suits_columns

    @property
    def encoding(self) -> str:  # type: ignore[override]  # part of the format
        return self.format.encoding

    @property
    def rules(self) -> Rules:
        return self.format.rules

    @property
    def index_kind(self) -> str:
        form = self.format
        width = "" if form.names is None else len(form.names)
        return f"{self.rules} types {_TYPES_VERSION} {form.kind} {form.encoding} {width}"

    def find_records(self, content: File) -> Arrays:
        """Finds the records, and the types of their columns: "types", a schema with the columns of CSV by number."""
        form, types, encoding = self.format, dict[str, Any](), self.content_encoding
        width: int | None = None if form.names is None else len(form.names)

        def see(header: bytes, window: LineWindow) -> None:
            nonlocal width
            if form.kind == "jsonl":
                for rows in _blocks(window, encoding):
                    join(types, _leasttypes.of_json(rows), _leasttypes.the_first)
                return
            if width is None and header:
                width = len(form.names_of(content.url, header, encoding))
            for rows in _blocks(window, encoding):
                join(types, _leasttypes.of_csv(rows, width or 0, form.parsing), _leasttypes.text)

        places = self.rules.places(content, see)
        return {**places, "types": np.frombuffer(pa.schema(list(types.items())).serialize(), np.uint8)}

    @cached_property
    def _types(self) -> dict[str, Any]:
        """The columns of all files, with the least types that hold all rows, or as the user says.

        Raises:
            SpecError: A column has integers that float64 rounds, and floats.
        """
        form, there, is_blind = self.format, list[dict[str, Any]](), True
        for file, found, header in zip(self.files, self.index.found, self.headers(), strict=True):
            try:
                schema = pa.ipc.read_schema(pa.BufferReader(found["types"]))
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise SourceError(
                    f"{file.url}: the index of its lines is damaged ({error}). Delete the hidden file "
                    f".{file.name}.index."
                ) from error
            types = {name: schema.field(name).type for name in schema.names}
            is_blind = is_blind and not types
            if form.kind == "csv":
                if twice := [name for name in self.columns or header if header.count(name) > 1]:
                    chosen(form.verb, "columns", twice[:1], file.url, header)  # refuses it
                types = {name: types.get(str(number), pa.null()) for number, name in enumerate(header)}
            there.append(types)
        every: dict[str, Any] = {}
        for types in there:
            join(every, types, _leasttypes.the_first if form.kind == "jsonl" else _leasttypes.text)
        if not every:
            raise SourceError(
                f"{form.verb}(): {self._where} has no columns, so it has no elements.{self._first_fault()}"
            )
        self.dtypes.require(form.verb, self._where, list(every))
        names = chosen(form.verb, "columns", self.columns, self._where, list(every))
        if form.kind == "csv" and is_blind:  # no row, or none that can be parsed: reading it names the cause
            every = dict.fromkeys(every, pa.string())
        huge = pa.float64() if form.kind == "jsonl" else pa.string()
        every = {name: self.dtypes.applied(name, every[name]) for name in names}
        if inexact := next(filter(None, (rounded(name, kind, huge) for name, kind in every.items())), None):
            raise SpecError(
                f"{form.verb}(): no type holds column {inexact!r} of {self._where}: it has integers beyond 2**53, "
                "which float64 rounds, and floats or integers of more than 64 bits. Say that they may be rounded: "
                f'dtypes={{{inexact!r}: "float64"}}; or read them as text: dtypes={{{inexact!r}: "U"}}.'
            )
        types = {name: settled(kind, huge) for name, kind in every.items()}
        if not self.is_part:
            applied = ({name: self.dtypes.applied(name, kind) for name, kind in each.items()} for each in there)
            shown = [{name: settled(kind, huge) for name, kind in each.items()} for each in applied]
            log_differences(form.verb, self.files, shown, types)
        return types

    def _first_fault(self) -> str:
        if not len(self):
            return ""
        number, start, size = (int(each[0]) for each in self.index.ranges(np.zeros(1, np.int64)))
        with self.index.files[number].stream() as stream:
            stream.seek(start)
            return f" {self.describe(0)} is no JSON object with keys: it begins with {stream.read(min(size, 60))!r}."

    @property
    def _where(self) -> str:
        more = len(self.files) - 1
        return self.files[0].url + f" and {more} more" * (more > 0)

    def headers(self) -> list[tuple[str, ...]]:
        """The columns of CSV of each file."""
        form = self.format
        if not self.rules.has_header:
            return [form.names or ()] * len(self.files)
        return [
            form.names_of(file.url, found["header"].tobytes(), self.content_encoding)
            for file, found in zip(self.files, self.index.found, strict=True)
        ]

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element."""
        return leaves_of(self.format.verb, self._where, self._types, self.nulls, self.dtypes)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns of JSON that the user wants as text, whose values may be of other kinds."""
        named = [name for name, dtype in self.dtypes.named if np.dtype(dtype).kind == "U"]
        return tuple(name for name in named if name in self._types and self.format.kind == "jsonl")

    @cached_property
    def table(self) -> TableSource | None:
        """The columns of all rows as they were parsed once; None if each row is parsed when it is read.

        They are made when they are first needed, in the process that made the source. Others, to which it was sent, use
        those that are there.
        """
        found, most = self._table(makes=not self.was_sent), self.most_kept_nbytes
        return found if found is None or most is None else found.with_cache_limit(most)

    def _table(self, *, makes: bool) -> TableSource | None:
        if not self._suits_columns:
            return None
        if self.whole is not None:
            table = self.whole.table if makes else self.whole._table(makes=False)
            found = None if table is None else narrowed(table, self.leaves)
        else:
            types = {name: str(kind) for name, kind in self._types.items()}
            make = self._columns if makes else None
            kind = f"{self.index_kind} {self.format} {self.compression} {types}"
            text_nbytes = sum(file.nbytes for file in self.index.files)
            if text_nbytes > MOST_NBYTES:  # it is compressed in the files
                return None
            found = kept_columns(self.format.verb, self.files, kind, self.cache_dir, self.leaves, text_nbytes, make)
        if found is None or len(found) != len(self):
            return None
        found.__dict__["origin"] = self
        return found

    def _columns(self) -> Iterator[tuple[list[Any], int]]:
        """See `OpenRowSource.columns`."""
        with closing(OpenRowSource(self)) as opened:
            yield from opened.columns()

    @property
    def remark(self) -> str:
        """What `print(ds)` says of the columns that are kept by now."""
        table = self._table(makes=False)
        return "" if table is None else f"columns kept in {size_text(table.files[0].nbytes)}"

    @property
    def _suits_columns(self) -> bool:
        nbytes = sum(file.nbytes for file in self.files)
        return self.keeps_columns and LEAST_NBYTES < nbytes <= MOST_NBYTES

    # No fields, because elements do not depend on these.

    @cached_property
    def whole(self) -> "RowSource | None":
        """The source of all columns, of which this one has some."""
        return None

    @cached_property
    def was_sent(self) -> bool:
        """Whether the source comes from another process."""
        return False

    @cached_property
    def most_kept_nbytes(self) -> int | None:
        """The limit of `with_cache_limit`; None for none."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("table", None)
        return {**state, "was_sent": True}

    def selected(self, names: Sequence[str]) -> "RowSource":
        made: RowSource = super().selected(names)
        made.__dict__["whole"] = self if self.whole is None else self.whole
        made.__dict__["was_sent"] = self.was_sent
        return made

    @property
    def kept_nbytes(self) -> int:
        return super().kept_nbytes if self.table is None else self.table.kept_nbytes

    def with_cache_limit(self, nbytes: int) -> FilesSource:
        if self.table is None:
            return super().with_cache_limit(nbytes)
        made = replace(self)
        made.__dict__.update({**self.__dict__, "most_kept_nbytes": nbytes})
        del made.__dict__["table"]
        return made

    def arrays(self) -> Sequence[PartedArray] | None:
        if self.table is None or self.table.arrays() is None:
            return None
        return [PartedArray(self, number, leaf.spec) for number, leaf in enumerate(self.leaves)]

    def open(self) -> Any:
        return OpenRowSource(self) if self.table is None else self.table.open()

    def require_head(self) -> None:
        """Refuses files of another format by the first bytes of the first file. Small files are read now.

        Raises:
            SourceError: The first file is in another format.
        """
        form, file = self.format, self.files[0]
        wanted = {*(self.columns or ()), *(name for name, _ in self.dtypes.named)}
        data = next(_recordindex.pieces(file, self.compression_of(file)), b"")
        if self.recoded:
            data = data.decode(self.recoded, "ignore").encode()
        data = data.removeprefix(MARK)
        if form.kind == "jsonl" and data.lstrip()[:1] == b"[":
            raise SourceError(
                f"from_jsonl(): {file.url} is one JSON array, and JSON Lines have an object on each line. Write it so: "
                "for each in json.load(open(old)): print(json.dumps(each), file=new)."
            )
        known: set[str] = set()
        if form.kind == "csv":
            known = set(form.names or self._head_names(data))
        elif wanted:
            for row in filter(is_object, data.splitlines()):
                with suppress(ValueError, RecursionError):
                    known |= json.loads(row).keys()
        is_small = sum(each.nbytes for each in self.files) <= HEAD_NBYTES
        if (is_small and not any(map(self.compression_of, self.files))) or not wanted <= known:
            assert self.leaves

    def _head_names(self, data: bytes) -> tuple[str, ...]:
        """The columns of CSV, from the first bytes of the first file."""
        form, file, data = self.format, self.files[0], data.lstrip(b"\r\n")
        ends = self.rules.ends(data)[1]
        names = form.names_of(file.url, data[: int(ends[0])] if len(ends) else data, self.content_encoding)
        if others := [each for each in ";\t|" if len(names) == 1 and each in names[0]]:
            raise SourceError(
                f"from_csv(): {file.url} has one column, {names[0]!r}, so its fields are not separated by "
                f"{form.delimiter!r}. Write delimiter={others[0]!r}, or names=[...] if this is a row."
            )
        return names


@final
class OpenRowSource(RecordFilesReader):
    """Reads rows; files are opened at their first read. Threads share it and nothing else: each call parses alone."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        headers = source.headers()
        self._headers = list(dict.fromkeys(headers))
        self._header_of = np.array([self._headers.index(header) for header in headers])
        """The header of each file."""
        kind = source.format.kind
        self._schema = pa.schema([(name, _parsable(kind, each)) for name, each in source._types.items()])

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, and parses the rows of each piece of memory together.

        Raises:
            SourceError: A row is damaged, a value is not of its column's type, or is null. The message has the file and
                the line.
        """
        for elements, rows, header, (read, members) in self._rows(reads):
            places, every = np.arange(len(read.arrays[0]))[read.rows][members], np.arange(len(rows))
            batch = self._batch(elements, rows, header)
            for leaf, array in zip(self._source.leaves, read.arrays, strict=True):
                try:
                    decoded(batch, leaf).put(every, array, places)
                except RowError as error:
                    raise self._at(error, leaf, elements) from None

    def columns(self) -> Iterator[tuple[list[Any], int]]:
        """Yields the values of the leaves of all rows, some rows after the others, and the bytes of their text.

        Raises:
            UnfitError: A row is damaged, a value is not of its column's type, or is null.
            SourceError: A file cannot be read.
        """
        tell = _recordindex.progress(f"Parsing the rows of {self._source}", sum(f.nbytes for f in self._index.files))
        done = 0
        for span in self._spans():
            pieces = []
            for elements, rows, header, _ in self._rows([Read(span, [span], slice(0, len(span)))]):
                try:
                    batch = self._batch(elements, rows, header)
                    values = [self._checked(batch, leaf, elements) for leaf in self._source.leaves]
                except SourceError as error:
                    raise UnfitError(str(error)) from error
                assert (np.diff(elements) == 1).all()
                pieces.append((int(elements[0]), values, sum(map(len, rows))))
            for _, values, nbytes in sorted(pieces, key=lambda piece: piece[0]):
                yield values, nbytes
                done += nbytes
            tell(done)

    def _checked(self, batch: Any, leaf: Leaf, elements: Indices) -> Any:
        """The values of a leaf, each of which can be read.

        Raises:
            SourceError: One cannot.
        """
        try:
            values = values_of(batch, leaf)
            column_of(values, leaf.spec, leaf.name)
        except RowError as error:
            raise self._at(error, leaf, elements) from None
        return values

    def _spans(self) -> Iterator[Indices]:
        """Yields the elements of each file, about `_PARSED_NBYTES` at a time."""
        index = self._index
        for number, (first, last) in enumerate(itertools.pairwise(index.bounds.tolist())):
            offsets = index.offsets[first + number : last + number + 1]
            limits = np.arange(offsets[0], offsets[-1], _PARSED_NBYTES)
            cuts = np.unique([0, *np.searchsorted(offsets[:-1], limits).tolist(), last - first])
            for start, stop in itertools.pairwise(cuts.tolist()):
                yield np.arange(first + start, first + stop)

    def _at(self, error: RowError, leaf: Leaf, elements: Indices) -> SourceError:
        """The error of a value, which names the file and the line."""
        error.column = leaf.name
        return error.at(self._source.describe(int(elements[error.row])))

    def _rows(
        self, reads: Sequence[Read]
    ) -> Iterator[tuple[Indices, list[memoryview], Sequence[str], tuple[Read, Indices]]]:
        """Reads all requests. Yields elements, their rows and their header, of one request and its members."""
        for read, (members, data, at), sizes in self.requests(reads):
            view, elements = data.data, read.indices[members]
            for header, mine in self._by_header(elements):
                spans = zip(at[mine].tolist(), sizes[mine].tolist(), strict=True)
                yield (
                    elements[mine],
                    [view[start : start + size] for start, size in spans],
                    header,
                    (read, members[mine]),
                )

    def _batch(self, elements: Indices, rows: Sequence[memoryview], header: Sequence[str]) -> Any:
        """Parses rows to a record batch.

        Raises:
            SourceError: A row is damaged, or a value is not of its column's type.
        """
        texts = self._texts_of(elements, rows)
        batch = self._parsed(texts, header)
        if batch is None:
            self._refuse(elements, texts, header)
        return batch

    def _by_header(self, elements: Indices) -> Iterator[tuple[Sequence[str], Any]]:
        """Yields each header, and the members of the elements that lie under it."""
        if len(self._headers) == 1:
            yield self._headers[0], np.arange(len(elements))
            return
        numbers = self._header_of[np.searchsorted(self._source.bounds, elements, "right") - 1]
        for number in np.unique(numbers).tolist():
            yield self._headers[number], np.flatnonzero(numbers == number)

    def _texts_of(self, elements: Indices, rows: Sequence[memoryview]) -> list[bytes]:
        """Returns rows in UTF-8.

        Raises:
            SourceError: One is no text in its encoding. The message has the line and the column.
        """
        source = self._source
        together = b"\n".join(rows)
        if source.content_encoding != "utf-8":
            return [source.text(element, row).encode() for element, row in zip(elements.tolist(), rows, strict=True)]
        if not together.isascii():
            try:
                str(together, "utf-8")
            except UnicodeDecodeError:
                for element, row in zip(elements.tolist(), rows, strict=True):
                    source.text(element, row)
        return list(map(bytes, rows))

    def _parse(self, rows: Sequence[bytes], header: Sequence[str]) -> Any:
        """Parses rows to a table.

        Raises:
            ValueError: One is damaged. `ArrowInvalid` is one too.
        """
        form = self._source.format
        # A row alone is parsed for the words of its error. pyarrow crashes on a bare null.
        is_safe = all(map(is_object, rows)) or (len(rows) == 1 and rows[0].lstrip()[:1] in (b"{", b"["))
        if form.kind == "jsonl" and not is_safe:
            raise ValueError("it is no JSON object, which begins with { and ends with }")
        texts = self._source.texts
        try:
            table = form.parse(b"\n".join(rows), header, self._schema)
            for place, name in enumerate(table.column_names) if form.kind == "csv" else ():  # JSON refuses such numbers
                if kinds.is_floating(table.schema.field(name).type) and pc.any(pc.is_inf(table[name])).as_py():
                    text = form.parse(b"\n".join(rows), header, pa.schema([(name, pa.string())]))[name]
                    text = pc.if_else(pc.is_null(table[name]), None, pc.utf8_trim_whitespace(text))
                    table = table.set_column(place, name, text)  # `conformed` says which numbers are too large
            return table
        except pa.ArrowException:
            if not texts:
                raise
        # Some values may be no text, which pyarrow does not convert.
        others = pa.schema([each for each in self._schema if each.name not in texts])
        table, values = form.parse(b"\n".join(rows), header, others), [json.loads(row) for row in rows]
        for name in texts:
            kind = self._schema.field(name).type
            table = table.append_column(name, pa.array([_as_text(each.get(name), kind) for each in values], kind))
        return table

    def _parsed(self, rows: Sequence[bytes], header: Sequence[str]) -> Any:
        """Parses rows to a record batch. Returns None if they are not as many, or damaged."""
        try:
            table = self._parse(rows, header)
        except (pa.ArrowException, ValueError, RecursionError):
            return None
        return table.combine_chunks().to_batches()[0] if table.num_rows == len(rows) else None

    def _refuse(self, elements: Indices, rows: Sequence[bytes], header: Sequence[str]) -> NoReturn:
        """Finds the row that cannot be parsed."""
        source = self._source
        for element, row in zip(elements.tolist(), rows, strict=True):
            try:
                count = self._parse([row], header).num_rows
                fault = "" if count == 1 else f"it has {count} rows, and not one"
            except (pa.ArrowException, ValueError, RecursionError) as error:
                fault = _words(error)
            if fault:
                raise SourceError(
                    f"{source.describe(element)} does not fit {Spec.of(source.element_spec)}: {fault}. It begins with "
                    f"{row[:60]!r}. {_cure(source.format.kind, fault)}"
                )
        raise SourceError(f"{source}: some rows cannot be parsed together, and each can alone.")


def source(
    form: Format,
    files: tuple[File, ...],
    asked: Sequence[str],
    columns: Any,
    dtypes: Any,
    fill_null: Any,
    null_masks: Any,
    compression: Compressed,
    cache_dir: str | None,
    index: str,
) -> RowSource:
    """Makes a source from the arguments of `penstock.from_jsonl`, `asked` being its paths. Reads small files whole."""
    verb = form.verb
    for name, value in (("delimiter", form.delimiter), ("quote", form.quote)):
        if not isinstance(value, str) or len(value.encode()) > 1:
            raise ArgumentError(f"{verb}({name}={value!r}): it is one character of ASCII.")
    if index not in ("columns", "lines"):
        raise ArgumentError(f"{verb}(index={index!r}): it is 'columns' or 'lines'.")
    form = replace(form, encoding=encoding_of(verb, form.encoding))
    nulls = Nulls.of(verb, fill_null, null_masks)
    wanted = None if columns is None else names_in(verb, "columns", columns)
    found = Dtypes.of(verb, dtypes)
    keeps = index == "columns"
    made = RowSource(files, form, wanted, found, nulls, compressed(verb, compression), cache_dir, keeps)
    made.require_head()
    if folder := next((each for folders in folders_of(files, depth_of(asked)) for each in folders), None):
        log_once(
            f"{verb}(): files lie in folders such as {folder}=..., and elements have no column {folder!r}, as those of "
            "from_parquet() have. Make a dataset of each folder, add the value in map(), and concatenate() them.",
            files,
        )
    return made


def _blocks(window: LineWindow, encoding: str) -> Iterator[list[bytes]]:
    """Yields the records of a window in blocks, in UTF-8."""
    cuts = np.searchsorted(
        window.ends, np.arange(_BLOCK_NBYTES, len(window.data) + _BLOCK_NBYTES, _BLOCK_NBYTES), "right"
    )
    first = 0
    for last in [*cuts.tolist(), len(window.ends)]:
        last = max(last, min(first + 1, len(window.ends)))
        if last > first:
            spans = zip(window.starts[first:last].tolist(), window.ends[first:last].tolist(), strict=True)
            rows = [window.data[start:end] for start, end in spans]
            yield rows if encoding == "utf-8" else [row.decode(encoding, "replace").encode() for row in rows]
        first = last


def _parsable(form: str, kind: Any) -> Any:
    """The type as which pyarrow parses values of a type; `decoded` casts them."""
    if kinds.is_struct(kind):
        return pa.struct([(part.name, _parsable(form, part.type)) for part in kind])
    if is_list(kind):
        return pa.list_(_parsable(form, kind.value_type))
    if kinds.is_floating(kind):
        return pa.float64()
    # Of lists that hold nothing but null, pyarrow 26 makes an array that is not sound.
    return pa.int64() if form == "jsonl" and (kinds.is_duration(kind) or kinds.is_null(kind)) else kind


def _as_text(value: Any, kind: Any) -> Any:
    """A value of JSON as text, or as lists of texts if that is the type."""
    if is_list(kind) and isinstance(value, list):
        return [_as_text(each, kind.value_type) for each in value]
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(error: Exception) -> str:
    """What is wrong with a row, without its number among the rows that were parsed: it was alone."""
    words = str(error).strip().partition("\n")[0].rstrip(".")
    return re.sub(r"\bRow #1: |\.? in row 0$|\bline 1 (?=column \d)", "", words)


def _cure(kind: str, fault: str) -> str:
    """The remedy for a row that cannot be parsed, by pyarrow's words."""
    if re.search(r"conversion error|Failed to convert|Column\(/.*changed from", fault):  # a value of another type
        return 'Name another type, as with dtypes={"x": "float64"}, or "U" for text; or mend the line.'
    if re.search(r"Expected \d+ columns?, got", fault):
        return (
            "Mend the line: it has another number of fields than the header. A delimiter within a field needs quotes."
        )
    if "specified twice" in fault:
        return "Mend the line: each key stands once in an object. Or leave the column out with columns=[...]."
    return "Mend the line" + ("." if kind == "csv" else ", or write the file again with one JSON object on each line.")
