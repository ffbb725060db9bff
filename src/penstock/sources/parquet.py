"""Parquet files and Arrow files (Feather, version 2) as sources with random access, with `pyarrow`.

Both formats hold rows in groups: row groups, record batches. A group is the smallest unit of decoding. Decoded groups
are kept for the next rows, up to a limit that is known ahead (`TableSource.kept_nbytes`). See
`design/0019-kept-groups.md`.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import native
from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.base._spec import ArraySpec
from penstock.plan._source import Read
from penstock.sources._blocks import CachedFile
from penstock.sources._columns import Column, NullError, Ragged, is_copied
from penstock.sources._leaves import (
    Leaf,
    Nulls,
    Tabular,
    chosen,
    decoded,
    leaves_of,
    names_in,
    stored_numbers,
    tree_of,
)
from penstock.sources._openfile import File, FilesSource, block_reader, bounds_of, for_each, placed
from penstock.sources._remote import ByteSource, RemoteFile

Kind = Literal["parquet", "arrow"]
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
_measuring = threading.Lock()
_measured = pa.proxy_memory_pool(pa.default_memory_pool())  # it has to outlive what was made in it
_MAGIC: Final = {b"PAR1": "parquet", b"ARRO": "arrow"}


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


@final
@dataclass(frozen=True)
class TableSource(Tabular, FilesSource):
    """The rows of Parquet or Arrow files, one file after the other. Reads footers when the length is first needed."""

    reads_ahead = False
    kind: Kind
    files: tuple[File, ...]
    columns: tuple[str, ...]
    nulls: Nulls

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element."""
        return self._leaves(_schema(self.kind, self.files[0]), self.files[0])

    def _leaves(self, schema: Any, file: File) -> tuple[Leaf, ...]:
        if missing := [name for name in self.columns if name not in schema.names]:
            raise SpecError(f"{file.url} has no column {missing[0]!r}; it has {schema.names}.")
        return self.nulls.applied(f"from_{self.kind}", leaves_of(schema, self.columns))

    @cached_property
    def groups(self) -> _Groups:
        """The places of the rows, from the footers."""
        leaves, first = self.leaves, self.files[0]
        is_mapped, row_nbytes = _first_batch(first, leaves) if self.kind == "arrow" else (False, 0.0)

        def sizes_of(file: File) -> list[tuple[int, int]]:
            """The rows of each group, and their bytes."""
            if (found := self._leaves(_schema(self.kind, file), file)) != leaves:
                raise SpecError(f"{file.url} has the columns {tree_of(found)}, but {first.url} has {tree_of(leaves)}.")
            with _opened(self.kind, file, () if is_mapped else self.columns[:1]) as reader:
                if self.kind == "parquet":
                    groups = list(map(reader.metadata.row_group, range(reader.num_row_groups)))
                    numbers = _stored_numbers(reader, leaves)
                    return [(group.num_rows, sum(_leaf_sizes(group, leaves, numbers))) for group in groups]
                counts = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
            pa.default_memory_pool().release_unused()
            return [(count, int(count * row_nbytes)) for count in counts]

        sizes = for_each(self.files, sizes_of)
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
        )

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

    def describe(self, index: int) -> str:
        return self.describe_row(*placed(self.bounds, index))

    def describe_row(self, group: int, row: int) -> str:
        """Names the file, the row group and the row in it."""
        name = "row group" if self.kind == "parquet" else "record batch"
        return f"{self.files[self.groups.files[group]].name} {name} {self.groups.numbers[group]} row {row}"

    def open(self) -> "OpenTableSource":
        return OpenTableSource(self)


class _Decoded:
    """A group. The first thread that needs it decodes it under the lock."""

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.Lock()
        self.columns: list[AnyColumn] | None = None
        self.nbytes = nbytes
        """Its memory, and until it is decoded also that of the decoding."""


class _Footer(NamedTuple):
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
        self._room = source.kept_nbytes
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
        bounds = self._groups.bounds
        numbers = [np.searchsorted(bounds, read.indices, "right") - 1 for read in reads]
        wanted = np.unique(np.concatenate([np.empty(0, np.int64), *numbers]))
        parts = []
        for read, groups in zip(reads, numbers, strict=True):
            order = np.argsort(groups, kind="stable")
            ends = np.searchsorted(groups[order], wanted, "right").tolist()
            rows = np.arange(len(read.arrays[0]))[read.rows][order]
            parts.append((read.arrays, read.indices[order], rows, [0, *ends]))
            self._row_count += len(rows)
        thread = threading.get_ident()
        # Decoded groups first, because those that are decoded now may take their place.
        for place, group in sorted(enumerate(wanted.tolist()), key=lambda each: each[1] not in self._decoded):
            try:
                columns = self._columns(group, thread)
                copies: list[tuple[Any, ...]] = []
                for arrays, indices, rows, ends in parts:
                    mine = slice(ends[place], ends[place + 1])
                    inside, out_rows = indices[mine] - bounds[group], rows[mine]
                    for column, array in zip(columns, arrays, strict=True):
                        if column.source is None:
                            column.put(inside, array, out_rows)
                        else:
                            copies.append((column.source, inside, array, out_rows, None))
                native.copy(copies)
            finally:
                self._leave(thread)

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
        room = self._room - sum(each.nbytes for each in self._decoded.values())
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
                columns = _read_group(file, number, source.leaves, footer)
            else:
                columns = _read_batch(file, number, source.leaves, footer, is_mapped=self._groups.is_mapped)
        except NullError as error:
            raise error.at(source.describe_row(group, error.row)) from None
        nbytes = int(self._groups.nbytes[group])
        if source.kind == "parquet":  # text may be larger than its file said
            nbytes = max(nbytes, sum(column.nbytes for column in columns))
        return columns, nbytes

    def _remote_file(self, place: int) -> RemoteFile:
        opened = self._source.files[place].open()
        assert isinstance(opened, RemoteFile)
        return opened

    def _read_footer(self, place: int) -> _Footer:
        """Reads the footer of a remote file, through its cache if it has one."""
        kind, file = self._source.kind, self._source.files[place]
        remote: ByteSource = self._remote_file(place)
        if self._blocks is not None:
            remote = CachedFile(self._blocks, place, file.url)
        with _opened(kind, file, footer=_Footer(remote, None)) as reader:
            return _Footer(remote, reader.metadata if kind == "parquet" else None)

    def _warn_of_waste(self) -> None:
        """Warns if groups are decoded for a few of their rows each."""
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

    def close(self) -> None:
        self._decoded.clear()
        self._footer.cache_clear()
        if self._blocks is not None:
            self._blocks.close()


def source(kind: Kind, files: tuple[File, ...], columns: Any, fill_null: Any, null_masks: Any) -> TableSource:
    """Makes a source from the arguments of `penstock.from_parquet`. Reads the footer of the first file."""
    verb = f"from_{kind}"
    _require_kind(verb, kind, files[0])
    names = None if columns is None else names_in(verb, "columns", columns)
    wanted = chosen(verb, "columns", names, files[0].url, _schema(kind, files[0]).names)
    if not wanted:
        raise ArgumentError(f"{verb}() needs at least one column of {files[0].url}.")
    made = TableSource(kind, files, wanted, Nulls.of(verb, fill_null, null_masks))
    assert made.element_spec  # refuses a column without a spec
    return made


# Calls of pyarrow, for either format. Its readers are not made for several threads, and opening one is cheap. So each
# call has its own.


def _schema(kind: Kind, file: File) -> Any:
    with _opened(kind, file) as reader:
        return reader.schema_arrow if kind == "parquet" else reader.schema


def _stored_numbers(reader: Any, leaves: Sequence[Leaf]) -> list[int]:
    """Returns the number of the column of Parquet that holds each leaf."""
    numbers = stored_numbers(reader.schema_arrow)
    return [numbers[leaf.origin] for leaf in leaves]


def _leaf_sizes(group: Any, leaves: Sequence[Leaf], numbers: Sequence[int]) -> list[int]:
    """Returns the bytes of each leaf of a row group: exact for numbers, an estimate for text, bytes and lists."""
    return [
        _leaf_size(group.column(number), group.num_rows, leaf.spec)
        for leaf, number in zip(leaves, numbers, strict=True)
    ]


def _leaf_size(column: Any, row_count: int, spec: ArraySpec) -> int:
    if spec.is_bounded:
        return row_count * (spec.nbytes or 0)
    nbytes = 8 * (row_count + 1)
    if column.physical_type == "BYTE_ARRAY":
        return nbytes + int(column.total_uncompressed_size) + 8 * int(column.num_values) * len(spec.shape)
    of_bytes = column.physical_type == "FIXED_LEN_BYTE_ARRAY" and spec.dtype == np.uint8
    return nbytes + int(column.num_values) * spec.dtype.itemsize * (spec.shape[-1] or 1 if of_bytes else 1)


def _first_batch(file: File, leaves: Sequence[Leaf]) -> tuple[bool, float]:
    """Reads the first record batch of a file, to learn the costs of all.

    Returns:
        Whether batches are viewed in a mapped file, because it is local and not compressed; and the bytes of a row.
    """
    with _measuring, _opened("arrow", file, pool=_measured) as reader:
        if not reader.num_record_batches:
            return False, 0.0
        before, batch = _measured.bytes_allocated(), reader.get_batch(0)
        is_mapped, nbytes = file.is_local and _measured.bytes_allocated() == before, 0
        for leaf in leaves:
            column, *fields = leaf.origin
            is_view = leaf.fill is None and not fields and not is_copied(batch.schema.field(column).type)
            if not (is_mapped and is_view):
                with suppress(NullError):  # a read reports it
                    nbytes += decoded(batch, leaf).nbytes
        return is_mapped, nbytes / max(1, batch.num_rows)


def _read_group(file: File, number: int, leaves: Sequence[Leaf], footer: _Footer | None) -> list[AnyColumn]:
    """Decodes a row group, leaf by leaf and in pieces, because the work in progress takes memory too.

    A remote file gets one request for all leaves.
    """
    with _opened("parquet", file, footer=footer) as reader:
        group = reader.metadata.row_group(number)  # asking for its schema would keep it until a garbage collection
        numbers = _stored_numbers(reader, leaves)
        count, sizes = max(1, group.num_rows), _leaf_sizes(group, leaves, numbers)
        found: dict[int, AnyColumn] = {}
        for places in [[place] for place in range(len(leaves))] if file.is_local else [list(range(len(leaves)))]:
            row, rows = 0, count * PIECE_NBYTES // max(1, *(sizes[place] for place in places))
            names = [group.column(numbers[place]).path_in_schema for place in places]
            for batch in reader.iter_batches(max(1, min(rows, count)), [number], columns=names, use_threads=False):
                for place in places:
                    part = decoded(batch, leaves[place], row)
                    if place not in found:
                        found[place] = part.room(count)
                    found[place].append(row, part)
                row += batch.num_rows
                del batch, part
    if sum(sizes) >= PIECE_NBYTES:
        pa.default_memory_pool().release_unused()
    return [found[place] for place in range(len(leaves))]


def _read_batch(
    file: File, number: int, leaves: Sequence[Leaf], footer: _Footer | None, *, is_mapped: bool
) -> list[AnyColumn]:
    """Reads a record batch. If it is mapped, no columns are selected: Arrow would copy the whole batch."""
    columns = () if is_mapped else tuple({leaf.origin[0]: None for leaf in leaves})
    with _opened("arrow", file, columns, footer) as reader:
        batch = reader.get_batch(number)
        found = [decoded(batch, leaf) for leaf in leaves]
    if not is_mapped:
        pa.default_memory_pool().release_unused()
    return found


@contextmanager
def _opened(
    kind: Kind, file: File, columns: tuple[str, ...] = (), footer: _Footer | None = None, pool: Any = None
) -> Iterator[Any]:
    """Opens a file with pyarrow.

    Raises:
        SourceError: The file has changed, or pyarrow cannot read it. Also for errors of the body.
    """
    try:
        opened = file.open() if footer is None else footer.file  # refuses a changed file
        if kind == "parquet":
            data = file.url if file.is_local else file.stream(opened=opened)
            metadata = None if footer is None else footer.metadata
            # A local file is read page by page; a server gets one request for everything.
            buffering = {"pre_buffer": False, "buffer_size": BUFFER_NBYTES} if file.is_local else {"pre_buffer": True}
            with pq.ParquetFile(data, metadata=metadata, page_checksum_verification=True, **buffering) as reader:
                yield reader
            return
        # Mapped: an uncompressed batch is not copied, and only the pages of the requested rows are loaded.
        with pa.memory_map(file.url) if file.is_local else file.stream(opened=opened) as data:
            options = pa.ipc.IpcReadOptions(use_threads=False)  # workers already use all cores
            if columns:
                names = pa.ipc.open_file(data).schema.names
                options.included_fields = [names.index(name) for name in columns]
            yield pa.ipc.open_file(data, options=options, memory_pool=pool)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, (SourceError, SpecError)):
            raise
        raise SourceError(f"{file.url} cannot be read: {str(error).rstrip('.')}.") from error


def _require_kind(verb: str, kind: Kind, file: File) -> None:
    """Refuses a file of another format, by its first bytes, and names the right function.

    Raises:
        SourceError: The format is another.
    """
    head = file.head(4)
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
    raise SourceError(f"{verb}(): {file.url} starts with {head!r} and is no {kind.capitalize()} file. {cure}")
