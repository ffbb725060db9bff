"""Parquet files and Arrow files (Feather, version 2) as sources of random access, with `pyarrow`.

Both hold rows in groups: row groups, record batches. A group is the least that can be decoded, so the last ones that
were read are kept, decoded, for the rows that are asked for next.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError, type_of
from penstock._plan._source import Gathering, Read
from penstock._spec import ArraySpec
from penstock._tree import Tree
from penstock.sources._columns import Column, NullError, column_of, spec_of
from penstock.sources._openfile import File, FilesSource, for_each, placed
from penstock.sources._remote import RemoteFile

Kind = Literal["parquet", "arrow"]
Integers = npt.NDArray[np.int64]

_log = logging.getLogger("penstock")

KEPT_GROUPS: Final = 4
"""So many groups are kept decoded in a process: the one that is read, and those of its neighbours' units."""
WASTED_GROUPS: Final = 32
"""After so many groups were decoded, it is looked at how much of them was asked for."""
USED_SHARE: Final = 0.05
"""A smaller part of the decoded rows is said to be a waste."""
KEPT_FOOTERS: Final = 64
"""So many footers of files behind URLs are kept in a process."""
_MAGIC: Final = {b"PAR1": "parquet", b"ARRO": "arrow"}


class _Groups(NamedTuple):
    """The groups of all files; arrays of shape `(groups,)`."""

    files: Integers
    """The file of each."""
    numbers: Integers
    """Its number in the file."""
    bounds: Integers
    """Its first row, and the number of all rows, shape `(groups + 1,)`."""


@final
@dataclass(frozen=True)
class TableSource(FilesSource):
    """Rows of Parquet or Arrow files, one file after the other. Footers are read when the length is first needed."""

    kind: Kind
    files: tuple[File, ...]
    columns: tuple[str, ...]

    @cached_property
    def element_spec(self) -> Tree:
        """A dict of the columns."""
        return self._specs(self.files[0])

    def _specs(self, file: File) -> dict[str, ArraySpec]:
        schema = _schema(self.kind, file)
        if missing := [name for name in self.columns if name not in schema.names]:
            raise SpecError(f"{file.url} has no column {missing[0]!r}; it has {schema.names}.")
        return {name: spec_of(name, schema.field(name).type) for name in self.columns}

    @cached_property
    def groups(self) -> _Groups:
        """Where the rows are; read from the footers."""
        spec = self.element_spec

        def counts_of(file: File) -> list[int]:
            if (found := self._specs(file)) != spec:
                raise SpecError(f"{file.url} has the columns {found}, but {self.files[0].url} has {spec}.")
            return _counts(self.kind, file, self.columns)

        counts = for_each(self.files, counts_of)
        sizes = np.array([size for each in counts for size in each], np.int64)
        return _Groups(
            np.repeat(np.arange(len(counts)), [len(each) for each in counts]),
            np.array([number for each in counts for number in range(len(each))], np.int64),
            np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        )

    def __len__(self) -> int:
        return int(self.groups.bounds[-1])

    def describe(self, index: int) -> str:
        """File, row group and the row in it."""
        return self.describe_row(*placed(self.groups.bounds, index))

    def describe_row(self, group: int, row: int) -> str:
        """File, row group and the row in it."""
        name = "row group" if self.kind == "parquet" else "record batch"
        return f"{self.files[self.groups.files[group]].name} {name} {self.groups.numbers[group]} row {row}"

    def open(self) -> "OpenTableSource":
        """The form that reads."""
        return OpenTableSource(self)


class _Decoded:
    """A group, decoded by the first thread that needs it while others wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.columns: list[Column] | None = None


class _Footer(NamedTuple):
    """What is kept of a file behind an URL, so that a group of it is one request."""

    file: RemoteFile
    metadata: Any
    """That of Parquet, parsed."""


@final
class OpenTableSource(Gathering[TableSource]):
    """A `TableSource` that reads. Keeps the last `KEPT_GROUPS` groups decoded, and no file open.

    Of files behind URLs the last `KEPT_FOOTERS` footers are kept too: each takes some requests, one after the other.
    """

    def __init__(self, source: TableSource) -> None:
        super().__init__(source)
        self._groups = source.groups
        self._lock = threading.Lock()
        self._decoded: dict[int, _Decoded] = {}
        self._decoded_count = self._row_count = 0
        """Groups that were decoded, and rows that were asked for."""
        self._footers: dict[int, _Footer] = {}

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests group by group, so that each is decoded once.

        Raises:
            SourceError: A file was changed or is damaged, or a value is missing; the row and column are named.
        """
        bounds = self._groups.bounds
        parts = [(read, np.searchsorted(bounds, read.indices, "right") - 1) for read in reads]
        for group in np.unique(np.concatenate([np.empty(0, np.int64), *(groups for _, groups in parts)])).tolist():
            columns = self._columns(group)
            for read, groups in parts:
                mine = np.flatnonzero(groups == group)
                if len(mine):
                    self._row_count += len(mine)  # of threads, one may lose another's: it is about orders of magnitude
                    rows = _rows(read)[mine]
                    for column, array in zip(columns, read.arrays, strict=True):
                        column.put(read.indices[mine] - bounds[group], array, rows)

    def _columns(self, group: int) -> list[Column]:
        with self._lock:
            decoded = self._decoded.pop(group, None) or _Decoded()
            self._decoded[group] = decoded  # the last to go
            while len(self._decoded) > KEPT_GROUPS:
                self._decoded.pop(next(iter(self._decoded)))
        with decoded.lock:
            if decoded.columns is None:
                decoded.columns = self._decode(group)
            return decoded.columns

    def _decode(self, group: int) -> list[Column]:
        self._decoded_count += 1
        source, place = self._source, int(self._groups.files[group])
        if self._decoded_count == WASTED_GROUPS and source.kind == "parquet":
            self._tell_waste()
        file = source.files[place]
        with _told(file):
            footer = None if file.is_local else self._footer(place)
            table = _read_group(source.kind, file, int(self._groups.numbers[group]), source.columns, footer)
        found = []
        for name in source.columns:
            try:
                found.append(column_of(table.column(name)))
            except NullError as error:
                raise SourceError(
                    f"{source.describe_row(group, error.row)} has no value in column {name!r}: it is null, and arrays "
                    "have no such thing. Fill it where the file is written, or leave the column out with columns=[...]."
                ) from None
        return found

    def _tell_waste(self) -> None:
        """Says so if groups are decoded for a few of their rows each."""
        group_rows = len(self._source) / len(self._groups.files)
        if self._row_count < USED_SHARE * WASTED_GROUPS * group_rows:
            _log.warning(
                "%s: %d row groups, of %s rows on average, were decoded for %s rows. A row group is the least that can "
                "be decoded, and these rows lie all over the file. Shuffle within a few row groups: "
                "shuffle(seed, window=%d). Or write the file anew, as .npy or with smaller row groups.",
                self._source,
                WASTED_GROUPS,
                f"{group_rows:,.0f}",
                f"{self._row_count:,}",
                2 * group_rows,
            )

    def _footer(self, place: int) -> _Footer:
        """That of a file behind an URL. Two threads may both read it, and one of the two is kept."""
        with self._lock:
            footer = self._footers.get(place)
        if footer is not None:
            return footer
        footer = _footer(self._source.kind, self._source.files[place])
        with self._lock:
            self._footers[place] = footer
            while len(self._footers) > KEPT_FOOTERS:
                self._footers.pop(next(iter(self._footers)))
        return footer

    def close(self) -> None:
        """Lets go of what is kept."""
        self._decoded.clear()
        self._footers.clear()


def source(verb: str, kind: Kind, files: tuple[File, ...], columns: Any) -> TableSource:
    """Makes a source of what a user asked for; see `penstock.from_parquet`. Reads the footer of the first file."""
    names = _schema(kind, files[0]).names
    if columns is None:
        columns = names
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ArgumentTypeError(f"{verb}(columns=) is a list of names, got {type_of(columns)}.")
    if unknown := [name for name in columns if name not in names]:
        raise ArgumentError(f"{verb}(columns=): {files[0].url} has no column {unknown[0]!r}; it has {names}.")
    asked, there = Counter(columns), Counter(names)
    if twice := [name for name in asked if asked[name] > 1 or there[name] > 1]:
        raise ArgumentError(
            f"{verb}(): the column {twice[0]!r} would come twice, and an element is a dict. Name each once with "
            f"columns=[...]; of columns that have one name in the file none can be read. {files[0].url} has {names}."
        )
    if not columns:
        raise ArgumentError(f"{verb}() needs at least one column; {files[0].url} has {names}.")
    made = TableSource(kind, files, tuple(columns))
    assert made.element_spec  # a column that no spec can have is refused here
    return made


# What pyarrow does, for either format. Its readers are not made for several threads, and to open one is cheap: so each
# call has its own.


def _schema(kind: Kind, file: File) -> Any:
    with _told(file), _opened(kind, file) as reader:
        return reader.schema_arrow if kind == "parquet" else reader.schema


def _counts(kind: Kind, file: File, columns: tuple[str, ...]) -> list[int]:
    """Rows of each group. Of Arrow files, one column is looked at, which is decompressed if it is compressed."""
    with _told(file), _opened(kind, file, columns[:1]) as reader:
        if kind == "parquet":
            return [reader.metadata.row_group(number).num_rows for number in range(reader.num_row_groups)]
        return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]


def _footer(kind: Kind, file: File) -> _Footer:
    remote = file.open()
    assert isinstance(remote, RemoteFile)
    with _opened(kind, file, footer=_Footer(remote, None)) as reader:
        return _Footer(remote, reader.metadata if kind == "parquet" else None)


def _read_group(kind: Kind, file: File, number: int, columns: tuple[str, ...], footer: _Footer | None) -> Any:
    with _opened(kind, file, columns, footer) as reader:
        return reader.read_row_group(number, columns=list(columns)) if kind == "parquet" else reader.get_batch(number)


@contextmanager
def _opened(kind: Kind, file: File, columns: tuple[str, ...] = (), footer: _Footer | None = None) -> Iterator[Any]:
    opened = file.open() if footer is None else footer.file  # it must be what it was
    if kind == "parquet":
        data = file.url if file.is_local else file.stream(opened=opened)
        metadata = None if footer is None else footer.metadata
        with pq.ParquetFile(data, metadata=metadata, page_checksum_verification=True) as reader:
            yield reader
        return
    # Mapped: a batch that is not compressed is not copied, and only the pages of rows that are read are loaded.
    with pa.memory_map(file.url) if file.is_local else file.stream(opened=opened) as data:
        options = None
        if columns:
            names = pa.ipc.open_file(data).schema.names
            options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
        yield pa.ipc.open_file(data, options=options)


@contextmanager
def _told(file: File) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, (SourceError, SpecError)):
            raise
        raise SourceError(f"{file.url} cannot be read: {str(error).rstrip('.')}.") from error


def require_kind(verb: str, kind: Kind, files: tuple[File, ...]) -> None:
    """Looks at the first bytes of the first file, and says where it belongs if not here.

    Raises:
        SourceError: It is of another format.
    """
    head = files[0].head(4)
    found = _MAGIC.get(head)
    if found == kind:
        return
    cure = "Is it complete?"
    if found:
        cure = f"It is for from_{found}()."
    elif head == b"\xff\xff\xff\xff":
        cure = "It is a stream of Arrow, which has no random access; write it with pyarrow.ipc.new_file()."
    elif head == b"FEA1":
        cure = "It is Feather of version 1; write it again with pyarrow.feather.write_feather()."
    raise SourceError(f"{verb}(): {files[0].url} starts with {head!r} and is no {kind.capitalize()} file. {cure}")


def _rows(read: Read) -> Integers:
    if isinstance(read.rows, slice):
        return np.arange(*read.rows.indices(len(read.arrays[0])), dtype=np.int64)
    return read.rows
