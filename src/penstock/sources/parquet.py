"""Parquet files and Arrow files (Feather, version 2) as sources of random access, with `pyarrow`.

Both hold rows in groups: row groups, record batches. A group is the least that can be decoded, so those that were read
are kept, decoded, for the rows that are asked for next: as many as there is room for, which is known ahead
(`TableSource.kept_nbytes`). See `design/0019-kept-groups.md`.
"""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.plan._source import Read
from penstock.sources._columns import Builder, Column, NullError, column_of, is_copied, spec_of
from penstock.sources._openfile import File, FilesSource, for_each, placed
from penstock.sources._remote import RemoteFile

Kind = Literal["parquet", "arrow"]
Integers = npt.NDArray[np.int64]

_log = logging.getLogger("penstock")

KEPT_NBYTES: Final = 128 << 20
"""So much is kept decoded in a process, and two neighbouring groups where these are larger."""
PIECE_NBYTES: Final = 1 << 20
"""A column is decoded in pieces of about this much, and one after the other."""
WORK_NBYTES: Final = 24 << 20
"""What decoding a group takes besides, at most, and no more than `WORK_SHARE` times the group."""
WORK_SHARE: Final = 4
BUFFER_NBYTES: Final = 256 << 10
"""So much of a file is read at one time, or a page."""
COLUMN_NBYTES: Final = 4 << 10
"""A column of a group takes this much at least: objects of Python."""
WASTED_GROUPS: Final = 32
"""After so many groups were decoded, it is looked at how much of them was asked for."""
USED_SHARE: Final = 0.05
"""A smaller part of the decoded rows is said to be a waste."""
KEPT_FOOTERS: Final = 64
"""So many footers of files behind URLs are kept in a process."""
_measuring = threading.Lock()
_measured = pa.proxy_memory_pool(pa.default_memory_pool())  # it has to outlive what was made in it
_MAGIC: Final = {b"PAR1": "parquet", b"ARRO": "arrow"}


class _Groups(NamedTuple):
    """The groups of all files; arrays of shape `(groups,)`."""

    files: Integers
    """The file of each."""
    numbers: Integers
    """Its number in the file."""
    bounds: Integers
    """Its first row, and the number of all rows, shape `(groups + 1,)`."""
    nbytes: Integers
    """What it takes decoded. Of text and bytes this is a guess."""
    work_nbytes: Integers
    """And what it takes besides while it is decoded."""
    is_mapped: bool
    """Whether nothing has to be decoded: the rows are read where a mapped file has them."""


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
        first, is_mapped, row_nbytes = self.files[0], False, 0.0
        if self.kind == "arrow":
            is_mapped = _is_mapped(first)
            row_nbytes = _batch_row_nbytes(first, self.columns, is_mapped=is_mapped)

        def sizes_of(file: File) -> list[tuple[int, int]]:
            if (found := self._specs(file)) != spec:
                raise SpecError(f"{file.url} has the columns {found}, but {first.url} has {spec}.")
            if self.kind == "parquet":
                return _group_sizes(file, spec)
            return _batch_sizes(file, () if is_mapped else self.columns, row_nbytes)

        sizes = for_each(self.files, sizes_of)
        counts, decoded = np.array([size for each in sizes for size in each], np.int64).reshape(-1, 2).T
        nbytes = np.maximum(decoded, COLUMN_NBYTES * len(spec))
        work_nbytes = np.minimum(WORK_SHARE * nbytes, WORK_NBYTES)
        if self.is_remote:  # it is fetched whole
            work_nbytes = work_nbytes + nbytes
        return _Groups(
            np.repeat(np.arange(len(sizes)), [len(each) for each in sizes]),
            np.array([number for each in sizes for number in range(len(each))], np.int64),
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            nbytes,
            work_nbytes,
            is_mapped,
        )

    @cached_property
    def room(self) -> int | None:
        """How much may be kept, where that was said by `with_cache_limit`; None for as much as is good.

        No field: elements do not depend on it, so caches of them stay good, and sources of the same rows are one.
        """
        return None

    @property
    def kept_nbytes(self) -> int:
        """All groups, or those that there is room for; and what it takes to decode one."""
        nbytes, work = self.groups.nbytes, self.groups.work_nbytes
        if not len(nbytes):
            return 0
        room = self.room
        if room is None:
            room = max(KEPT_NBYTES, int(max(nbytes[:-1] + nbytes[1:], default=0)))
        return max(int((nbytes + work).max()), min(room, int(nbytes.sum())) + int(work.max()))

    def with_cache_limit(self, nbytes: int) -> "TableSource":
        """The same rows with less room for them, for one group at least."""
        if nbytes >= self.kept_nbytes:
            return self
        made = replace(self)
        made.__dict__.update(self.__dict__, room=max(0, nbytes - int(self.groups.work_nbytes.max())))
        return made

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

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.columns: list[Column] | None = None
        self.nbytes = nbytes
        """What it takes, and while it is decoded what that takes besides."""


class _Footer(NamedTuple):
    """What is kept of a file behind an URL, so that a group of it is one request."""

    file: RemoteFile
    metadata: Any
    """That of Parquet, parsed."""


@final
class OpenTableSource:
    """A `TableSource` that reads. Keeps groups decoded, of `kept_nbytes` in all, and no file open.

    Of files behind URLs the last `KEPT_FOOTERS` footers are kept too: each takes some requests, one after the other.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._groups = source.groups
        self._room = source.kept_nbytes
        self._let_go = threading.Condition()
        self._decoded: dict[int, _Decoded] = {}
        """Groups by number, those that were asked for last behind the others."""
        self._used: dict[int, int] = {}
        """The group that each thread is at."""
        self._waiting = 0
        """How many threads may wait for another to let go of its group."""
        self._lock = threading.Lock()
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
        wanted = np.unique(np.concatenate([np.empty(0, np.int64), *(groups for _, groups in parts)])).tolist()
        # First those that are there: what is decoded after it may take their place.
        if len(wanted) > 1:
            wanted.sort(key=lambda group: group not in self._decoded)
        thread = threading.get_ident()
        for group in wanted:
            try:
                columns = self._columns(group, thread)
                for read, groups in parts:
                    mine = np.flatnonzero(groups == group)
                    if len(mine):
                        self._row_count += len(mine)  # of threads, one may lose another's: only its size matters
                        rows, members = _rows(read)[mine], read.indices[mine] - bounds[group]
                        for column, array in zip(columns, read.arrays, strict=True):
                            column.put(members, array, rows)
            finally:
                self._leave(thread)

    def _columns(self, group: int, thread: int) -> list[Column]:
        """A group's columns, which stay until the thread has left them."""
        decoded = self._entry(group, thread)
        with decoded.lock:
            if decoded.columns is None:
                decoded.columns, nbytes = self._decode(group)
                with self._let_go:
                    decoded.nbytes = nbytes
                    self._let_go.notify_all()
            return decoded.columns

    def _leave(self, thread: int) -> None:
        self._used.pop(thread, None)
        if self._waiting:  # who begins to wait says so first, and then looks at what is used
            with self._let_go:
                self._let_go.notify_all()

    def _entry(self, group: int, thread: int) -> _Decoded:
        """That of a group, for which others have to go, or to be let go of by the threads that use them."""
        with self._let_go:
            self._used.pop(thread, None)  # that of a call which Ctrl-C has ended
            self._waiting += 1
            try:
                while (decoded := self._decoded.pop(group, None)) is None:
                    if self._has_room(group):
                        decoded = _Decoded(int(self._groups.nbytes[group] + self._groups.work_nbytes[group]))
                        break
                    self._let_go.wait(1)
            finally:
                self._waiting -= 1
            self._decoded[group] = decoded  # the last to go
            self._used[thread] = group
            return decoded

    def _has_room(self, group: int) -> bool:
        """Whether a group can be decoded now. Others go for it, those first that were not asked for the longest."""
        need = self._groups.nbytes[group] + self._groups.work_nbytes[group]
        room = self._room - sum(each.nbytes for each in self._decoded.values())
        used = set(self._used.values())
        under_way = (other for other in used if self._decoded[other].columns is None)
        if room < need <= room + sum(self._groups.work_nbytes[other] for other in under_way):
            return False  # but when these are decoded there is, and nothing has to go
        for other in list(self._decoded):
            if room < need and other not in used:
                room += self._decoded.pop(other).nbytes
        # A thread has one group at most and waits without any, so those that are used are let go of. Where none is,
        # there is nothing to wait for: one may turn out larger than its file said.
        return bool(room >= need or not used)

    def _decode(self, group: int) -> tuple[list[Column], int]:
        """The columns of a group, and what they take."""
        self._decoded_count += 1
        source, place = self._source, int(self._groups.files[group])
        if self._decoded_count == WASTED_GROUPS and source.kind == "parquet":
            self._tell_waste()
        file, number = source.files[place], int(self._groups.numbers[group])
        spec = source.element_spec
        with _told(file):
            footer = None if file.is_local else self._footer(place)
            try:
                if source.kind == "parquet":
                    columns = _read_group(file, number, spec, footer)
                else:
                    columns = _read_batch(file, number, spec, footer, is_mapped=self._groups.is_mapped)
            except _ColumnError as error:
                raise SourceError(
                    f"{source.describe_row(group, error.row)} has no value in column {error.name!r}: it is null, and "
                    "arrays have no such thing. Fill it where the file is written, or leave the column out with "
                    "columns=[...]."
                ) from None
        nbytes = int(self._groups.nbytes[group])
        if source.kind == "parquet":  # text may be larger than its file said
            nbytes = max(nbytes, sum(column.nbytes for column in columns))
        return columns, nbytes

    def _tell_waste(self) -> None:
        """Says so if groups are decoded for a few of their rows each."""
        group_rows = len(self._source) / len(self._groups.files)
        if self._groups.nbytes.sum() <= self._room:
            return  # each is decoded once
        if self._row_count < USED_SHARE * WASTED_GROUPS * group_rows:
            _log.warning(
                "%s: %d row groups, of %s rows on average, were decoded for %s rows. A row group is the least that can "
                "be decoded, and these rows lie all over the file. Shuffle within a few row groups: "
                "shuffle(seed, window=%d). Or write the rows down once, in order, where any of them can be read alone: "
                "ds = ds.materialize(path).",
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


def _group_sizes(file: File, spec: Mapping[str, ArraySpec]) -> list[tuple[int, int]]:
    """Rows of each row group, and the bytes that they take."""
    with _told(file), _opened("parquet", file) as reader:
        groups = map(reader.metadata.row_group, range(reader.num_row_groups))
        return [(group.num_rows, sum(_column_sizes(group, spec).values())) for group in groups]


def _column_sizes(group: Any, spec: Mapping[str, ArraySpec]) -> dict[str, int]:
    """The bytes of each column of a row group: of numbers exactly, of text and bytes about what they take there."""
    sizes = {name: group.num_rows * (each.nbytes or 0) for name, each in spec.items()}
    ragged = [name for name, each in spec.items() if not each.is_bounded or None in each.shape]
    if ragged:
        columns = [group.column(number) for number in range(group.num_columns)]
        paths = [f"{column.path_in_schema}." for column in columns]
        for name in ragged:
            column = next(each for each, path in zip(columns, paths, strict=True) if path.startswith(f"{name}."))
            sizes[name] = 8 * (group.num_rows + 1) + _values_nbytes(column, spec[name])
    return sizes


def _values_nbytes(column: Any, spec: ArraySpec) -> int:
    if column.physical_type == "BYTE_ARRAY":
        return int(column.total_uncompressed_size)
    of_bytes = column.physical_type == "FIXED_LEN_BYTE_ARRAY" and spec.dtype == np.uint8
    return int(column.num_values) * spec.dtype.itemsize * (spec.shape[-1] or 1 if of_bytes else 1)


def _batch_sizes(file: File, columns: tuple[str, ...], row_nbytes: float) -> list[tuple[int, int]]:
    """Rows of each record batch, and the bytes that they take."""
    with _told(file), _opened("arrow", file, columns[:1]) as reader:
        counts = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    pa.default_memory_pool().release_unused()
    return [(count, int(count * row_nbytes)) for count in counts]


def _is_mapped(file: File) -> bool:
    """Whether record batches of a file, by its first, are seen where they lie: in a file here, and not compressed."""
    return file.is_local and not _allocated_nbytes(file, (), lambda batch: 0)[1]


def _batch_row_nbytes(file: File, columns: tuple[str, ...], *, is_mapped: bool) -> float:
    """What a row takes, by the first record batch of a file."""

    def copied_nbytes(batch: Any) -> int:
        nbytes = 0
        for name in columns:
            if is_copied(batch.schema.field(name).type):
                with suppress(NullError):  # which is told to those who read it
                    nbytes += column_of(batch.column(name)).nbytes
        return nbytes

    count, nbytes = _allocated_nbytes(file, () if is_mapped else columns, copied_nbytes)
    return nbytes / max(1, count)


def _allocated_nbytes(file: File, columns: tuple[str, ...], more: Callable[[Any], int]) -> tuple[int, int]:
    """The rows of the first record batch of a file, and the memory that it takes to have it, and `more` of it."""
    with _measuring, _told(file), _opened("arrow", file, columns, pool=_measured) as reader:
        if not reader.num_record_batches:
            return 0, 0
        before = _measured.bytes_allocated()
        batch = reader.get_batch(0)
        nbytes, count = _measured.bytes_allocated() - before, batch.num_rows
        nbytes += more(batch) if count else 0
    del batch, reader
    pa.default_memory_pool().release_unused()
    return count, nbytes


def _footer(kind: Kind, file: File) -> _Footer:
    remote = file.open()
    assert isinstance(remote, RemoteFile)
    with _opened(kind, file, footer=_Footer(remote, None)) as reader:
        return _Footer(remote, reader.metadata if kind == "parquet" else None)


class _ColumnError(Exception):
    """A column lacks a value."""

    def __init__(self, name: str, row: int) -> None:
        super().__init__(name, row)
        self.name, self.row = name, row


def _read_group(file: File, number: int, spec: Mapping[str, ArraySpec], footer: _Footer | None) -> list[Column]:
    """A row group: column by column and in pieces, for what is under way takes memory, too.

    A file behind an URL is asked once for all columns.
    """
    with _opened("parquet", file, footer=footer) as reader:
        group = reader.metadata.row_group(number)  # its schema is not asked for, which would keep it until a collection
        count, sizes = max(1, group.num_rows), _column_sizes(group, spec)
        builders = {}
        for name, each in spec.items():
            entry_nbytes = math.prod(size for size in each.shape if size is not None) * max(1, each.dtype.itemsize)
            builders[name] = Builder(count, sizes[name] // max(1, entry_nbytes))
        for names in [[name] for name in spec] if file.is_local else [list(spec)]:
            rows = count * PIECE_NBYTES // max(1, *(sizes[name] for name in names))
            for batch in reader.iter_batches(max(1, min(rows, count)), [number], columns=names, use_threads=False):
                for name in names:
                    with _named(name):
                        builders[name].add(batch.column(name))
            batch = None
        found = [builder.column for builder in builders.values() if builder.column is not None]
    if sum(sizes.values()) >= PIECE_NBYTES:
        pa.default_memory_pool().release_unused()
    return found


def _read_batch(
    file: File, number: int, spec: Mapping[str, ArraySpec], footer: _Footer | None, *, is_mapped: bool
) -> list[Column]:
    """A record batch. Where it is mapped no columns are chosen: to have some alone, Arrow copies all."""
    with _opened("arrow", file, () if is_mapped else tuple(spec), footer) as reader:
        batch, found = reader.get_batch(number), []
        for name in spec:
            with _named(name):
                found.append(column_of(batch.column(name)))
    if not is_mapped:
        pa.default_memory_pool().release_unused()
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except NullError as error:
        raise _ColumnError(name, error.row) from None


@contextmanager
def _opened(
    kind: Kind, file: File, columns: tuple[str, ...] = (), footer: _Footer | None = None, pool: Any = None
) -> Iterator[Any]:
    opened = file.open() if footer is None else footer.file  # it must be what it was
    if kind == "parquet":
        data = file.url if file.is_local else file.stream(opened=opened)
        metadata = None if footer is None else footer.metadata
        # Of a file here a page after the other is read; a server is asked for all that is wanted.
        buffering = {"pre_buffer": False, "buffer_size": BUFFER_NBYTES} if file.is_local else {"pre_buffer": True}
        with pq.ParquetFile(data, metadata=metadata, page_checksum_verification=True, **buffering) as reader:
            yield reader
        return
    # Mapped: a batch that is not compressed is not copied, and only the pages of rows that are read are loaded.
    with pa.memory_map(file.url) if file.is_local else file.stream(opened=opened) as data:
        options = pa.ipc.IpcReadOptions(use_threads=False)  # ours are at it already
        if columns:
            names = pa.ipc.open_file(data).schema.names
            options.included_fields = [names.index(name) for name in columns]
        yield pa.ipc.open_file(data, options=options, memory_pool=pool)


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
