"""Parquet files and Arrow files (Feather, version 2) as sources with random access, with `pyarrow`.

Both formats hold rows in groups: row groups, record batches. A group is the smallest unit of decoding. Decoded groups
are kept for the next rows, up to a limit that is known ahead (`TableSource.kept_nbytes`); `design/0019-kept-groups.md`.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from penstock import native
from penstock.base._errors import ArgumentError, PenstockError, SourceError, SpecError
from penstock.formats._arrowsizes import RecordBatch, record_batches
from penstock.formats._columns import Column, Ragged, RowError, is_list, is_viewed, require_valid
from penstock.formats._leasttypes import least, plain
from penstock.formats._leaves import (
    Dtypes,
    Leaf,
    Nulls,
    Tabular,
    chosen,
    decoded,
    leaves_of,
    log_differences,
    names_in,
    require_casts,
    stored_numbers,
)
from penstock.formats._parquetfooter import PLAIN, PREFIXED, SHARED, ColumnChunk, form_of, leaf_size, stored_chunks
from penstock.formats._tablekinds import Kind, require_kind
from penstock.memory._rows import positions_of
from penstock.plan._source import Read
from penstock.sources._blocks import CachedFile
from penstock.sources._openfile import File, FilesSource, block_reader, bounds_of, by_part, for_each, placed, stamp
from penstock.sources._remote import ByteSource, RemoteFile
from penstock.sources.parted import PartedArray

Integers = npt.NDArray[np.int64]
AnyColumn = Column | Ragged

_log = logging.getLogger("penstock")

KEPT_NBYTES: Final = 128 << 20
"""Decoded groups that are kept in a process, or two larger neighbouring groups."""
PIECE_NBYTES: Final = 1 << 20
"""A column is decoded in pieces of about this size, and columns one after the other."""
WORK_NBYTES: Final = 24 << 20
"""The most memory that decoding takes beside the group, if it is below `WORK_SHARE` times the group."""
WORK_SHARE: Final = 4
BUFFER_NBYTES: Final = 256 << 10
"""Bytes that are read from a file at once, or a page."""
COLUMN_NBYTES: Final = 4 << 10
"""The least memory of a column of a group: Python objects."""
WASTED_GROUPS: Final = 32
"""After this many decoded groups their use is checked."""
USED_SHARE: Final = 0.05
"""If a smaller part of the decoded rows was requested, a warning says so."""
KEPT_FOOTERS: Final = 64
"""Footers of remote files that are kept in a process."""
FIRST_ROWS: Final = 64
"""Rows of text that are decoded at once, while nothing is known of the size of values: they may repeat a long one."""
MOST_ROWS: Final = 1 << 40
"""No group has more."""
HEADER_NBYTES: Final = 4 << 10
"""Bytes that are read at once for the headers of record batches."""
_MANY: Final = 1 << 62
_measuring = threading.Lock()
_measured = pa.proxy_memory_pool(pa.default_memory_pool())  # it has to outlive what was made in it


class _Groups(NamedTuple):
    """The groups of all files; arrays of shape `(groups,)`."""

    files: Integers
    """The file of each group."""
    numbers: Integers
    """Its number in the file."""
    bounds: Integers
    """The rows of the groups; see `bounds_of`."""
    nbytes: Integers
    """The memory of each decoded group. For text and bytes an estimate."""
    work_nbytes: Integers
    """The additional memory of its decoding."""
    is_mapped: bool
    """Whether rows are read from a mapped file without decoding."""
    facts: Integers
    """Of each leaf in a row group of Parquet its bytes, and how its text may repeat, shape `(groups, leaves, 2)`."""


class _Footer(NamedTuple):
    """What the footer of a file says."""

    names: Sequence[str]
    """Its columns."""
    types: dict[str, Any]
    """The types of those that are read."""
    rows: Sequence[int] = ()
    """The rows of each row group."""
    schema: Any = None
    """Of Arrow: all columns and their types."""
    stored: Mapping[tuple[str, ...], Sequence[ColumnChunk]] = {}
    """By the path of a leaf, what is known of its values in each row group; of values of one size nothing need be."""

    def facts(self, leaves: Sequence[Leaf]) -> Integers:
        """See `_Groups.facts`."""
        found = np.zeros((len(self.rows), len(leaves), 2), np.int64)
        for place, leaf in enumerate(leaves):
            stored = self.stored.get(leaf.origin)
            for number, rows in enumerate(self.rows):
                form = 0 if stored is None or leaf.spec.is_bounded else form_of(stored[number])
                found[number, place] = leaf_size(leaf, rows, stored, number), form
        return found


@final
@dataclass(frozen=True)
class TableSource(Tabular, FilesSource):
    """The rows of Parquet or Arrow files, one file after the other. Reads footers when the length is first needed."""

    reads_ahead = False
    kind: Kind
    files: tuple[File, ...]
    columns: tuple[str, ...] | None
    nulls: Nulls
    dtypes: Dtypes

    @cached_property
    def index(self) -> Sequence[_Footer]:
        """What the footers of the files say. It does not travel: a group is read with its own footer."""
        return for_each(self.files, lambda file: _read_facts(self.kind, file, self.columns))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element: the least types that hold the columns of all files, or as the user says.

        Raises:
            SpecError: No type holds those of two files.
        """
        verb, first = f"from_{self.kind}", self.files[0]
        every: dict[str, Any] = {}
        for file, facts in zip(self.files, self.index, strict=True):

            def refuse(one: Any, other: Any, file: File = file) -> NoReturn:
                raise SpecError(f"{one} there, and {other} in {file.url}")

            for name, kind in facts.types.items():
                try:
                    every[name] = least(
                        every.get(name, pa.null()), self.dtypes.applied(name, kind, has_more=True), refuse
                    )
                except SpecError as error:
                    raise SpecError(
                        f"{verb}(): no type holds column {name!r} of all files: {first.url} and files after it have "
                        f'{error}. Say one, such as dtypes={{{name!r}: "U"}} for text; or leave it out with '
                        "columns=[...]."
                    ) from None
        there = list(dict.fromkeys(name for facts in self.index for name in facts.names))
        self.dtypes.require(verb, str(self), there)
        names = chosen(verb, "columns", self.columns, self._where, there)
        if not names:
            raise ArgumentError(f"{verb}() needs at least one column of {self._where}.")
        types = {name: every[name] for name in names}
        if not self.is_part:
            applied = (
                {n: plain(self.dtypes.applied(n, kind, has_more=True)) for n, kind in facts.types.items()}
                for facts in self.index
            )
            log_differences(verb, self.files, list(applied), types)
        leaves = leaves_of(verb, self._where, types, self.nulls, self.dtypes)
        if self.dtypes.named:
            known: list[dict[str, Any]] = []
            for file, facts in zip(self.files, self.index, strict=True):
                if facts.types not in known:
                    known.append(facts.types)
                    require_casts(verb, file.url, facts.types, leaves)
        return leaves

    @property
    def _where(self) -> str:
        more = len(self.files) - 1
        return self.files[0].url + f" and {more} more" * (more > 0)

    @cached_property
    def groups(self) -> _Groups:
        """The places of the rows, from the footers."""
        leaves, first = self.leaves, self.files[0]
        is_mapped, row_nbytes, told = False, 0.0, list[RecordBatch]()

        def said(file: File) -> list[RecordBatch]:
            """What the headers of a file say of its record batches: their rows, and the bytes of what is read."""
            with file.stream(HEADER_NBYTES) as stream:
                schema = self.index[self.files.index(file)].schema
                return record_batches(file.url, stream, file.nbytes, schema, self._names)

        if self.kind == "arrow":
            told = said(first) if first.is_local else []
            is_mapped, row_nbytes = _first_batch(first, leaves, told)

        def batches_of(file: File) -> list[tuple[int, int]]:
            """The rows of each record batch, and their bytes."""
            if file.is_local:
                # A batch that is much larger than those like the first one is as large as its headers say.
                found = told if file is first else said(file)
                sizes = [int(each.rows * row_nbytes) for each in found]
                return [
                    (rows, nbytes if is_mapped or most <= 2 * nbytes + KEPT_NBYTES else most)
                    for nbytes, (rows, most, _) in zip(sizes, found, strict=True)
                ]
            names = [name for name in self.index[self.files.index(file)].types if name in self._names]
            with _opened("arrow", file, () if is_mapped else tuple(names[:1])) as reader:
                counts = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
            pa.default_memory_pool().release_unused()
            return [(count, int(count * row_nbytes)) for count in counts]

        if self.kind == "arrow":
            sizes, facts = for_each(self.files, batches_of), np.empty(0, np.int64)
        else:
            facts = np.concatenate([each.facts(leaves) for each in self.index])
            totals = iter(facts[:, :, 0].sum(axis=1).tolist())
            sizes = [[(rows, next(totals)) for rows in each.rows] for each in self.index]
        counts, decoded = np.array([size for each in sizes for size in each], np.int64).reshape(-1, 2).T
        nbytes = np.maximum(decoded, COLUMN_NBYTES * len(leaves))
        work_nbytes = np.minimum(WORK_SHARE * nbytes, WORK_NBYTES)
        if self.is_remote:  # a group is fetched whole
            work_nbytes = work_nbytes + nbytes
        return _Groups(
            np.repeat(np.arange(len(sizes)), [len(each) for each in sizes]),
            np.array([number for each in sizes for number in range(len(each))], np.int64),
            bounds_of(counts),
            nbytes,
            work_nbytes,
            is_mapped,
            facts.reshape(len(counts), len(leaves) if self.kind == "parquet" else 0, 2),
        )

    @property
    def _names(self) -> set[str]:
        return {leaf.origin[0] for leaf in self.leaves}

    @cached_property
    def room(self) -> int | None:
        """The limit of `with_cache_limit`; None for the default.

        No field, because elements do not depend on it: caches stay valid, and sources of the same rows are equal.
        """
        return None

    @property
    def kept_nbytes(self) -> int:
        """The groups that are kept, and the memory to decode one."""
        nbytes, work = self.groups.nbytes, self.groups.work_nbytes
        if not len(nbytes):
            return 0
        room = self.room
        if room is None:
            room = max(KEPT_NBYTES, int(max(nbytes[:-1] + nbytes[1:], default=0)))
        return max(int((nbytes + work).max()), min(room, int(nbytes.sum())) + int(work.max()))

    def with_cache_limit(self, nbytes: int) -> "TableSource":
        """Returns the same rows with a lower limit, which holds at least one group."""
        if nbytes >= self.kept_nbytes:
            return self
        made = replace(self)
        made.__dict__.update(self.__dict__, room=max(0, nbytes - int(self.groups.work_nbytes.max())))
        return made

    @property
    def bounds(self) -> Integers:
        return self.groups.bounds

    @property
    def part_bounds(self) -> Integers:
        return self.bounds

    def describe(self, index: int) -> str:
        return self.describe_row(*placed(self.bounds, index))

    def describe_row(self, group: int, row: int) -> str:
        """Names the file, the row group and the row in it."""
        name = "row group" if self.kind == "parquet" else "record batch"
        return f"{self.files[self.groups.files[group]].name} {name} {self.groups.numbers[group]} row {row}"

    def arrays(self) -> Sequence[PartedArray] | None:
        """The columns, if their values have one size and the files are local. Servers need a worker that waits."""
        if (
            not native.HAS_PARTS
            or self.is_remote
            or any(leaf.spec.dtype.itemsize == 0 or None in leaf.spec.shape for leaf in self.leaves)
        ):
            return None
        return [PartedArray(self, number, leaf.spec) for number, leaf in enumerate(self.leaves)]

    def open(self) -> "OpenTableSource":
        return OpenTableSource(self)


class _Decoded:
    """A group. The first thread that needs it decodes it under the lock."""

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.columns: list[AnyColumn] | None = None
        self.nbytes = nbytes
        """Its memory, and until it is decoded also that of the decoding."""


class _Remote(NamedTuple):
    """The kept facts of a remote file, so that reading a group is one request."""

    file: ByteSource
    metadata: Any
    """The parsed footer of Parquet."""


@final
class OpenTableSource:
    """Reads rows. Keeps decoded groups of `kept_nbytes` in all, and no file open.

    Of remote files it keeps the last `KEPT_FOOTERS` footers too, because reading one takes several requests in turn.

    Threads. A thread uses one group at a time, and none while it waits for room. So the groups in use are released
    sooner or later, and every wait for room ends: `_leave` and the end of a decoding notify it. All state is under
    `_let_go`, apart from counters, where a lost update does no harm.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._groups = source.groups
        self.bounds, self.nbytes, self.work_nbytes = self._groups.bounds, self._groups.nbytes, self._groups.work_nbytes
        self.is_mapped = self._groups.is_mapped
        self.room = source.kept_nbytes
        self._let_go = threading.Condition()
        self._decoded: dict[int, _Decoded] = {}
        """Groups by number, the last used at the end."""
        self._used: dict[int, int] = {}
        """The group that each thread uses."""
        self._decoded_count = self._row_count = 0
        """Groups that were decoded, and rows that were requested."""
        self._blocks = block_reader(source.files, self._remote_file, 0)
        self._footer = lru_cache(KEPT_FOOTERS)(self._read_footer)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests group by group, so that each group is decoded once.

        Raises:
            SourceError: A file was changed or is damaged, or a value is missing. The message has the row and column.
        """
        wanted: dict[int, list[tuple[Any, Integers, Integers | slice]]] = defaultdict(list)
        for indices, arrays, places, _ in reads:
            self._row_count += len(indices)
            for group, inside, rows in by_part(self._groups.bounds, indices, places):
                wanted[group].append((arrays, inside, rows))
        thread = threading.get_ident()
        # Decoded groups first, because those that are decoded now may take their place.
        for group in sorted(wanted, key=lambda each: (each not in self._decoded, each)):
            try:
                columns = self._columns(group, thread)
                copies: list[tuple[Any, ...]] = []
                for arrays, inside, rows in wanted[group]:
                    for column, array, leaf in zip(columns, arrays, self._source.leaves, strict=True):
                        if column.source is not None:
                            to, at = (array[rows], None) if isinstance(rows, slice) else (array, rows)
                            copies.append((column.source, inside, to, at, None))
                            continue
                        try:
                            column.put(inside, array, positions_of(rows, len(array)))
                        except RowError as error:
                            error.column = leaf.name
                            raise error.at(self._source.describe_row(group, int(inside[error.row]))) from None
                try:
                    native.copy(copies)
                except native.CopyError as error:
                    self.require_same(group)
                    raise SourceError(f"{self._source.describe_row(group, 0)} cannot be read: {error}") from error
                if self._groups.is_mapped:  # what lies behind the end of a file is zeros, up to the end of the page
                    self.require_same(group)
            finally:
                self._leave(thread)

    def read_part(self, part: int) -> list[native.Source]:
        """See `PartReader`. What is decoded is the caller's, and counts to nothing here."""
        columns, _ = self._decode(part)
        return [column.source for column in columns if column.source is not None]

    def read_error(self, error: native.CopyError) -> SourceError:
        """See `PartReader`."""
        part, row = placed(self.bounds, max(0, error.element))
        try:
            self.require_same(part)
        except SourceError as changed:
            return changed
        return SourceError(f"{self._source.describe_row(part, row)} cannot be read: {error}")

    def request(self, row_count: int) -> None:
        """See `PartReader`."""
        self._row_count += row_count

    def require_same(self, group: int) -> None:
        """Refuses a file that has changed.

        Raises:
            SourceError: It has.
        """
        file = self._source.files[self._groups.files[group]]
        if file.is_local:
            with suppress(OSError):
                nbytes, changed = stamp(file.url)
                if nbytes == file.nbytes and (not file.version.isdigit() or changed == int(file.version)):
                    return
            file.open()

    def _columns(self, group: int, thread: int) -> list[AnyColumn]:
        """Returns a group's columns, which stay until the thread has left them."""
        decoded = self._entry(group, thread)
        with decoded.lock:
            if decoded.columns is None:
                decoded.columns, nbytes = self._decode(group)
                with self._let_go:
                    decoded.nbytes = nbytes
                    self._let_go.notify_all()
            return decoded.columns

    def _leave(self, thread: int) -> None:
        with self._let_go:
            self._used.pop(thread, None)
            self._let_go.notify_all()

    def _entry(self, group: int, thread: int) -> _Decoded:
        """Returns a group's entry, after others were evicted, or released by the threads that use them."""
        with self._let_go:
            self._used.pop(thread, None)  # left by a call that Ctrl-C ended
            while (decoded := self._decoded.pop(group, None)) is None:
                if self._has_room(group):
                    decoded = _Decoded(int(self._groups.nbytes[group] + self._groups.work_nbytes[group]))
                    break
                self._let_go.wait()
            self._decoded[group] = decoded  # the last to be evicted
            self._used[thread] = group
            return decoded

    def _has_room(self, group: int) -> bool:
        """Whether a group can be decoded now. Evicts others, the least recently used first."""
        need = self._groups.nbytes[group] + self._groups.work_nbytes[group]
        room = self.room - sum(each.nbytes for each in self._decoded.values())
        used = set(self._used.values())
        under_way = (other for other in used if self._decoded[other].columns is None)
        if room < need <= room + sum(self._groups.work_nbytes[other] for other in under_way):
            return False  # there is room as soon as these are decoded, without an eviction
        for other in list(self._decoded):
            if room < need and other not in used:
                room += self._decoded.pop(other).nbytes
        # With no group in use there is nothing to wait for: a group may be larger than its file said.
        return bool(room >= need or not used)

    def _decode(self, group: int) -> tuple[list[AnyColumn], int]:
        """Returns the columns of a group, and their memory."""
        self._decoded_count += 1
        source, place = self._source, int(self._groups.files[group])
        if self._decoded_count == WASTED_GROUPS and source.kind == "parquet":
            self._warn_of_waste()
        file, number = source.files[place], int(self._groups.numbers[group])
        footer = None if file.is_local else self._footer(place)
        try:
            if source.kind == "parquet":
                columns = _read_group(file, number, source.leaves, footer, self._groups.facts[group])
            else:
                columns = _read_batch(file, number, source.leaves, footer, is_mapped=self._groups.is_mapped)
        except RowError as error:
            raise error.at(source.describe_row(group, error.row)) from None
        nbytes = int(self._groups.nbytes[group])
        if source.kind == "parquet":  # text may be larger than its file said
            nbytes = max(nbytes, sum(column.nbytes for column in columns))
        return columns, nbytes

    def _remote_file(self, place: int) -> RemoteFile:
        opened = self._source.files[place].open()
        assert isinstance(opened, RemoteFile)
        return opened

    def _read_footer(self, place: int) -> _Remote:
        """Reads the footer of a remote file, through its cache if it has one."""
        kind, file = self._source.kind, self._source.files[place]
        remote: ByteSource = self._remote_file(place)
        if self._blocks is not None:
            remote = CachedFile(self._blocks, place, file.url)
        with _opened(kind, file, footer=_Remote(remote, None)) as reader:
            return _Remote(remote, reader.metadata if kind == "parquet" else None)

    def _warn_of_waste(self) -> None:
        """Warns if groups are decoded for a few of their rows each."""
        group_rows = len(self._source) / len(self._groups.files)
        if self._groups.nbytes.sum() <= self.room:
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

    def close(self) -> None:
        self._decoded.clear()
        self._footer.cache_clear()
        if self._blocks is not None:
            self._blocks.close()


def source(
    kind: Kind, files: tuple[File, ...], columns: Any, dtypes: Any, fill_null: Any, null_masks: Any
) -> TableSource:
    """Makes a source from the arguments of `penstock.from_parquet`. Reads the footers of all files."""
    verb = f"from_{kind}"
    names = None if columns is None else names_in(verb, "columns", columns)
    made = TableSource(kind, files, names, Nulls.of(verb, fill_null, null_masks), Dtypes.of(verb, dtypes))
    assert made.leaves  # refuses a column without a spec
    return made


# Calls of pyarrow, for either format. Its readers are not made for several threads, and opening one is cheap. So each
# call has its own.


def _read_facts(kind: Kind, file: File, columns: Sequence[str] | None) -> _Footer:
    """Reads the footer of a file."""
    require_kind(f"from_{kind}", kind, file)
    with _opened(kind, file) as reader:
        schema = reader.schema_arrow if kind == "parquet" else reader.schema
        wanted = [name for name in schema.names if columns is None or name in columns]
        if twice := [name for name in wanted if wanted.count(name) > 1]:
            chosen(f"from_{kind}", "columns", twice[:1], file.url, schema.names)  # refuses it
        types = {name: schema.field(name).type for name in wanted}
        for each in types.values():
            _require_sound(each)
        if kind == "arrow":
            return _Footer(schema.names, types, schema=schema)
        rows = [reader.metadata.row_group(number).num_rows for number in range(reader.num_row_groups)]
        if unlikely := [count for count in rows if not 0 <= count <= MOST_ROWS]:
            raise SourceError(f"{file.url} is damaged: a row group has {unlikely[0]:,} rows.")
        numbers = {path: number for path, number in stored_numbers(schema).items() if path[0] in types}
        return _Footer(schema.names, types, rows, stored=stored_chunks(file, numbers, types))


def _require_sound(kind: Any) -> None:
    """Reads the names of all fields of a type, and its sizes.

    Raises:
        ValueError: A name is no text, or a size is below 0.
    """
    sizes: list[int] = []
    if isinstance(kind, pa.BaseExtensionType):
        sizes += kind.shape if isinstance(kind, pa.FixedShapeTensorType) else ()
        kind = kind.storage_type
    if kinds.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
    if min(sizes, default=0) < 0:
        raise ValueError(f"its schema has lists of {min(sizes)} values")
    for number in range(kind.num_fields):
        _ = kind.field(number).name
        _require_sound(kind.field(number).type)


def _first_batch(file: File, leaves: Sequence[Leaf], told: Sequence[RecordBatch]) -> tuple[bool, float]:
    """Reads the first record batch of a file, to learn the costs of all.

    Args:
        file: The file.
        leaves: The leaves.
        told: What its headers say of its record batches; empty if it is remote.

    Returns:
        Whether batches are viewed in a mapped file, because it is local and not compressed; and the bytes of a row.
    """
    if told:
        rows, nbytes, _ = told[0]
        if nbytes > file.nbytes + KEPT_NBYTES:  # compressed, and too large to be looked at
            return False, nbytes / max(1, rows)
    # Arrow copies a whole batch of which columns are selected, so a batch that may be mapped is looked at whole.
    is_copied = not file.is_local or (bool(told) and told[0].is_compressed)
    columns = tuple({leaf.origin[0]: None for leaf in leaves}) if is_copied else ()
    with _measuring, _opened("arrow", file, columns, pool=_measured) as reader:
        if not reader.num_record_batches:
            return False, 0.0
        before, batch = _measured.bytes_allocated(), reader.get_batch(0)
        is_mapped, nbytes = not is_copied and _measured.bytes_allocated() == before, 0
        for leaf in leaves:
            column, *fields = leaf.origin
            place = batch.schema.get_field_index(column)
            is_view = leaf.fill is None and not fields and place >= 0 and is_viewed(batch.field(place).type, leaf.spec)
            with suppress(RowError):  # a read reports it
                (made,) = _decoded(reader, 0, file, [leaf], is_mapped=is_mapped)
                nbytes += made.nbytes if isinstance(made, Ragged) or not (is_mapped and is_view) else 0
        return is_mapped, nbytes / max(1, batch.num_rows)


def _read_group(
    file: File, number: int, leaves: Sequence[Leaf], footer: _Remote | None, facts: Integers
) -> list[AnyColumn]:
    """Decodes a row group, leaf by leaf and in pieces, because the work in progress takes memory too.

    A remote file gets one request for all leaves, and one for text that rows share; and before these small ones, to
    learn how long the text of each column is, because the footer does not say it.

    Args:
        file: The file.
        number: The row group in it.
        leaves: The leaves.
        footer: The kept facts of a remote file.
        facts: See `_Groups.facts`.

    Raises:
        SourceError: Text takes much more memory than the footer says, or there is another number of rows.
    """
    sizes, forms = facts.T.tolist()
    with ExitStack() as stack:
        reader = stack.enter_context(_opened("parquet", file, footer=footer))
        numbers = stored_numbers(reader.schema_arrow)
        paths = {
            place: reader.metadata.schema.column(numbers[leaf.origin]).path
            for place, leaf in enumerate(leaves)
            if leaf.origin in numbers
        }
        count = reader.metadata.row_group(number).num_rows
        shared = [place for place in paths if forms[place] == SHARED]
        most = {place: FIRST_ROWS for place in paths if forms[place] in (PLAIN, PREFIXED)}
        plain_texts = [place for place in most if forms[place] == PLAIN]
        if plain_texts and count > FIRST_ROWS:
            names = [paths[place] for place in plain_texts]
            with _opened("parquet", file, footer=footer, shared=names, is_part=True) as probe:
                for place in plain_texts:
                    most[place] = _most_rows(probe, number, paths[place], sizes[place])
        if shared:
            kept = [paths[place] for place in shared]
            reader = stack.enter_context(_opened("parquet", file, footer=footer, shared=kept))
        found: dict[int, AnyColumn] = {}
        together = [[place for place in paths if place not in shared], shared]
        for places in [[place] for place in paths] if file.is_local else filter(None, together):
            rows = max(1, count)
            if places[0] not in shared:
                rows = rows * PIECE_NBYTES // max(1, *(sizes[place] for place in places))
                rows = min(rows, *(most.get(place, _MANY) for place in places))
            texts = [place for place in places if place in most]
            row, step = 0, min(rows, FIRST_ROWS) if texts else rows
            names = [paths[place] for place in places]
            for batch in reader.iter_batches(max(1, min(step, count)), [number], columns=names, use_threads=False):
                if row + batch.num_rows > count:
                    raise _other_rows(file, number, row + batch.num_rows, count)
                for place in places:
                    part = decoded(batch, leaves[place], row)
                    if place not in found:
                        found[place] = part.room(count)
                    if place in texts:  # as many rows again, or what there is room for
                        row_nbytes = max(1, part.nbytes // batch.num_rows)
                        step = min(step, max(1, WORK_NBYTES // row_nbytes))
                    found[place].append(row, part)
                    if found[place].nbytes > 2 * sizes[place] + KEPT_NBYTES:
                        raise SourceError(
                            f"{file.url}: row group {number} takes {found[place].nbytes >> 20:,} MiB and more for "
                            f"column {leaves[place].name!r}, and its footer says {sizes[place] >> 20:,} MiB: it "
                            "repeats long texts. Leave the column out with columns=[...], or write smaller row groups."
                        )
                row += batch.num_rows
                if texts:
                    step = min(2 * step, rows)
                    reader.reader.set_batch_size(max(1, step))
                del batch, part
            if row != count:
                raise _other_rows(file, number, row, count)
        for place, leaf in enumerate(leaves):
            if place not in found:  # the file lacks it, or has no rows
                found[place] = decoded(pa.record_batch([pa.nulls(count)], [""]), leaf)
    if sum(sizes) >= PIECE_NBYTES:
        pa.default_memory_pool().release_unused()
    return [found[place] for place in range(len(leaves))]


def _other_rows(file: File, number: int, found: int, said: int) -> SourceError:
    return SourceError(
        f"{file.url} is damaged: the pages of row group {number} have another number of rows ({found:,}) than its "
        f"footer says ({said:,})."
    )


def _most_rows(probe: Any, number: int, path: str, nbytes: int) -> int:
    """The rows of text that can be decoded at once if each has the longest one that the column may repeat.

    The footer names no dictionary, but the pages are what counts. Where it does name one, text is read into one, which
    does not repeat it.

    Args:
        probe: The open file, whose text stays in dictionaries.
        number: The row group.
        path: The column.
        nbytes: The memory of the column, as the footer says.
    """
    try:
        batch = next(probe.iter_batches(FIRST_ROWS, [number], columns=[path], use_threads=False), None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PenstockError):
            raise
        return FIRST_ROWS  # Arrow makes no dictionary of common prefixes; damage shows itself again
    values = None if batch is None else batch.column(0)
    while values is not None and not kinds.is_dictionary(values.type):
        if kinds.is_struct(values.type):
            values = values.field(0)
        else:
            values = values.values if is_list(values.type) else None
    if values is None:
        return FIRST_ROWS
    sizes = pc.binary_length(values.dictionary)
    if (pc.sum(sizes).as_py() or 0) > nbytes:  # more than is stored: they have common prefixes
        return FIRST_ROWS
    return WORK_NBYTES // max(1, pc.max(sizes).as_py() or 1)


def _decoded(reader: Any, number: int, file: File, leaves: Sequence[Leaf], *, is_mapped: bool) -> list[AnyColumn]:
    """Decodes a record batch. Of values of any size in a mapped file it takes the places.

    Raises:
        SourceError: The batch is damaged.
    """
    batch = reader.get_batch(number)
    for name in {leaf.origin[0] for leaf in leaves} & set(batch.schema.names):
        try:
            require_valid(batch.column(name))
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                f"{file.url} is damaged: column {name!r} of record batch {number} is not what it should be. {error}"
            ) from error
    found = [decoded(batch, leaf) for leaf in leaves]
    if is_mapped:
        found = [each.in_file(file, *reader.span) if isinstance(each, Ragged) else each for each in found]
    return found


def _read_batch(
    file: File, number: int, leaves: Sequence[Leaf], footer: _Remote | None, *, is_mapped: bool
) -> list[AnyColumn]:
    """Reads a record batch. If it is mapped, no columns are selected: Arrow would copy the whole batch."""
    columns = () if is_mapped else tuple({leaf.origin[0]: None for leaf in leaves})
    with _opened("arrow", file, columns, footer) as reader:
        found = _decoded(reader, number, file, leaves, is_mapped=is_mapped)
    if not is_mapped:
        pa.default_memory_pool().release_unused()
    return found


@final
class _Batches:
    """An open Arrow file."""

    def __init__(self, reader: Any, mapped: Any) -> None:
        self.schema, self.num_record_batches, self.get_batch = (
            reader.schema,
            reader.num_record_batches,
            reader.get_batch,
        )
        self.span = (0, 0)
        """The addresses of a mapped file."""
        if mapped is not None:
            mapped.seek(0)
            whole = mapped.read_buffer(mapped.size())
            self.span = whole.address, whole.address + whole.size


@contextmanager
def _opened(
    kind: Kind,
    file: File,
    columns: tuple[str, ...] = (),
    footer: _Remote | None = None,
    pool: Any = None,
    shared: Sequence[str] = (),
    *,
    is_part: bool = False,
) -> Iterator[Any]:
    """Opens a file with pyarrow.

    Args:
        kind: Its format.
        file: The file.
        columns: The columns of Arrow to read; empty for all.
        footer: The kept facts of a remote file.
        pool: The memory of Arrow's values.
        shared: The columns of Parquet whose text stays in dictionaries.
        is_part: Whether few pages of a row group are read, also from a server.

    Raises:
        SourceError: The file has changed, or pyarrow cannot read it. Also for errors of the body.
    """
    try:
        opened = file.open() if footer is None else footer.file  # refuses a changed file
        if kind == "parquet":
            data = file.url if file.is_local else file.stream(opened=opened)
            metadata = None if footer is None else footer.metadata
            # A local file is read page by page; a server gets one request for everything.
            buffering: dict[str, Any] = {"pre_buffer": True}
            if file.is_local or is_part:
                buffering = {"pre_buffer": False, "buffer_size": BUFFER_NBYTES}
            buffering["read_dictionary"] = list(shared) or None
            with pq.ParquetFile(data, metadata=metadata, page_checksum_verification=True, **buffering) as reader:
                yield reader
            return
        # Mapped: an uncompressed batch is not copied, and only the pages of the requested rows are loaded.
        with pa.memory_map(file.url) if file.is_local else file.stream(opened=opened) as data:
            options = pa.ipc.IpcReadOptions(use_threads=False)  # workers already use all cores
            if columns:
                names = pa.ipc.open_file(data).schema.names
                options.included_fields = [names.index(name) for name in columns if name in names]
            yield _Batches(pa.ipc.open_file(data, options=options, memory_pool=pool), data if file.is_local else None)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, PenstockError):
            raise
        raise SourceError(f"{file.url} cannot be read: {str(error).rstrip('.')}.") from error
