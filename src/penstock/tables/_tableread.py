"""Reads groups of rows of Parquet and Arrow files, with `pyarrow`.

Its readers are not made for several threads, and opening one is cheap. So each call has its own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from penstock.base._errors import PenstockError, SourceError, SpecError
from penstock.files._openfile import File
from penstock.files._remote import ByteSource
from penstock.tables._columns import Column, RaggedColumn, RowError, is_viewed, require_valid, spec_of
from penstock.tables._folders import Folders, with_folders
from penstock.tables._leaves import Leaf, chosen, decoded, stored_numbers

Integers = npt.NDArray[np.int64]
AnyColumn = Column | RaggedColumn
Kind = Literal["parquet", "arrow"]

PIECE_NBYTES: Final = 1 << 20
"""A column is decoded in pieces of about this size, and columns one after the other."""
WORK_NBYTES: Final = 24 << 20
"""The most memory that decoding takes beside the group, if it is below `WORK_SHARE` times the group."""
BUFFER_NBYTES: Final = 256 << 10
"""Bytes that are read from a file at once, or a page."""
DICTIONARY_NBYTES: Final = 2 << 20
"""Writers limit dictionaries to a MiB. Chunks with much more than that also have text outside of the dictionary, which
takes ten times as long to read into one."""
FOOTERS_NBYTES: Final = 4 << 20
"""The footers of local files that a process keeps, as they are stored. Parsed, they take eight times as much."""
MOST_FOOTERS: Final = 256

_footers: Final[dict[File, Any]] = {}
"""The parsed footers of Parquet, by file and state of the file."""


class ColumnChunk(NamedTuple):
    """The values of a column in a row group."""

    is_of_bytes: bool
    """Whether values are bytes or text."""
    is_shared: bool
    """Whether they are text in a dictionary, which rows share."""
    value_count: int
    nbytes: int
    """Of its pages, when they are decompressed."""

    @classmethod
    def of(cls, chunk: Any) -> "ColumnChunk":
        """The facts of a column chunk of pyarrow."""
        kind, count, nbytes = chunk.physical_type, chunk.num_values, chunk.total_uncompressed_size
        has_dictionary = any("DICTIONARY" in each for each in chunk.encodings)
        is_shared = kind == "BYTE_ARRAY" and has_dictionary and nbytes <= 8 * count + DICTIONARY_NBYTES
        return cls("BYTE_ARRAY" in kind, is_shared, count, nbytes)


class Footer(NamedTuple):
    """What the footer of a file says."""

    names: Sequence[str]
    """Its columns."""
    types: dict[str, Any]
    """The types of those that are read."""
    rows: Sequence[int] = ()
    """The rows of each row group."""
    stored: Mapping[tuple[str, ...], Mapping[int, ColumnChunk]] = {}
    """By the path of a leaf, what is known of its values in each row group; of values of one size nothing need be."""

    def nbytes(self, leaves: Sequence[Leaf]) -> list[int]:
        """The memory of the leaves in each row group."""
        return [
            sum(_leaf_nbytes(leaf, rows, self.stored.get(leaf.origin, {}).get(number)) for leaf in leaves)
            for number, rows in enumerate(self.rows)
        ]


def _leaf_nbytes(leaf: Leaf, row_count: int, chunk: ColumnChunk | None) -> int:
    """Returns the bytes of a leaf of a row group: exact for numbers, an estimate for text, bytes and lists."""
    spec = leaf.spec
    if spec.is_bounded:
        return row_count * (spec.nbytes or 0)
    nbytes = 8 * (row_count + 1)
    if chunk is None:
        return nbytes
    if chunk.is_of_bytes:
        return nbytes + chunk.nbytes + 8 * chunk.value_count * len(spec.shape)
    return nbytes + chunk.value_count * spec.dtype.itemsize


class RemoteFooter(NamedTuple):
    """The kept facts of a remote file, so that reading a group is one request."""

    file: ByteSource
    metadata: Any
    """The parsed footer of Parquet."""


def read_facts(kind: Kind, file: File, columns: Sequence[str] | None) -> Footer:
    """Reads the footer of a file."""
    with opened_table(kind, file) as reader:
        schema = reader.schema_arrow if kind == "parquet" else reader.schema
        named = set(schema.names if columns is None else columns)
        wanted = [name for name in schema.names if name in named]
        if twice := [name for name, count in Counter(wanted).items() if count > 1]:
            chosen(f"from_{kind}", "columns", twice[:1], file.url, schema.names)  # refuses it
        types = {name: schema.field(name).type for name in wanted}
        numbers = stored_numbers(schema)  # here, where a name that is no text names the file
        if kind == "arrow":
            return Footer(schema.names, types)
        groups = [reader.metadata.row_group(number) for number in range(reader.num_row_groups)]
        if wanted and groups and _is_signed(file, reader.metadata):
            # Asked for an encrypted column chunk, pyarrow ends the process; reading one is an error.
            next(reader.iter_batches(1, [0], columns=wanted), None)
        ragged = {name for name, each in types.items() if not _is_of_one_size(each)}
        stored = {
            path: {place: ColumnChunk.of(group.column(number)) for place, group in enumerate(groups)}
            for path, number in numbers.items()
            if path[0] in ragged
        }
        return Footer(schema.names, types, [group.num_rows for group in groups], stored=stored)


def _is_signed(file: File, metadata: Any) -> bool:
    """Whether a signature follows the footer of Parquet, so that columns may be encrypted."""
    with file.stream() as stream:
        stream.seek(file.nbytes - 8)
        return bool(int.from_bytes(stream.read(4), "little") != metadata.serialized_size)


def _is_of_one_size(kind: Any) -> bool:
    with suppress(SpecError):
        return spec_of("", kind).is_bounded
    return False


def first_batch(file: File, leaves: Sequence[Leaf], folders: Folders, *, is_mapped: bool) -> tuple[bool, float]:
    """Reads the first record batch of a file, to learn the costs of all.

    Args:
        file: The file.
        leaves: The leaves.
        folders: The columns that its folders hold.
        is_mapped: Whether batches are viewed in a mapped file if that can be, which is so without compression.

    Returns:
        Whether they are, and the bytes of a row.
    """
    with opened_table("arrow", file, () if is_mapped else _names(leaves)) as reader:
        if not reader.num_record_batches:
            return False, 0.0
        batch = reader.get_batch(0)
        buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer)
        if not is_mapped or all(buffer.parent is not None for buffer in buffers):  # it is part of the mapping
            nbytes, copied = 0, list[Leaf]()
            types = {part.name: part.type for part in batch.schema}
            for leaf in leaves:
                column, *fields = leaf.origin
                is_plain = leaf.fill is None and not leaf.masks and not fields and column in types
                if not (is_mapped and is_plain and is_viewed(types[column], leaf.spec)):
                    copied.append(leaf)
            whole = _whole(batch, file, 0, copied, folders)
            for leaf in copied:
                with suppress(RowError):  # a read reports it
                    nbytes += decoded(whole, leaf).nbytes
            return is_mapped, nbytes / max(1, batch.num_rows)
    return first_batch(file, leaves, folders, is_mapped=False)


def batch_rows(file: File, *, is_mapped: bool) -> list[int]:
    """Returns the rows of each record batch. Where they are copied, of a single column."""
    with opened_table("arrow", file) as reader:
        schema, count = reader.schema, reader.num_record_batches
    least = next((part.name for part in schema if kinds.is_primitive(part.type)), schema.names[0])
    with opened_table("arrow", file, () if is_mapped else (least,)) as reader:
        found = [reader.get_batch(number).num_rows for number in range(count)]
    pa.default_memory_pool().release_unused()
    return found


def _names(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(leaf.origin[0] for leaf in leaves))


def read_group(
    file: File,
    number: int,
    leaves: Sequence[Leaf],
    footer: RemoteFooter | None,
    folders: Folders,
) -> list[AnyColumn]:
    """Decodes a row group, leaf by leaf and in pieces, because the work in progress takes memory too.

    A remote file gets one request for all leaves, and one for text that rows share.

    Args:
        file: The file.
        number: The row group in it.
        leaves: The leaves.
        footer: The kept facts of a remote file.
        folders: The columns that the folders of the file hold.

    Raises:
        SourceError: There is another number of rows than the footer says, or pyarrow cannot read them.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(opened_table("parquet", file, footer=footer))
        metadata, numbers = reader.metadata, stored_numbers(reader.schema_arrow)
        group = metadata.row_group(number)
        count, paths, sizes = group.num_rows, dict[int, str](), dict[int, int]()
        shared, times, others = list[int](), list[int](), list[int]()
        for place, leaf in enumerate(leaves):
            if leaf.origin not in numbers:
                continue
            column, chunk = numbers[leaf.origin], None
            if not leaf.spec.is_bounded:
                chunk = ColumnChunk.of(group.column(column))
            stored = metadata.schema.column(column)
            paths[place], sizes[place] = stored.path, _leaf_nbytes(leaf, count, chunk)
            alike = times if stored.physical_type == "INT96" else shared if chunk and chunk.is_shared else others
            alike.append(place)
        if shared:
            words = [paths[place] for place in shared]
            reader = stack.enter_context(opened_table("parquet", file, footer=footer, shared=words))
        found: dict[int, AnyColumn] = {}
        for places in [[place] for place in paths] if file.is_local else filter(None, (others, times, shared)):
            step = max(1, count)
            if places[0] not in shared:
                step = max(1, min(step, step * PIECE_NBYTES // max(1, *(sizes[place] for place in places))))
            names = [paths[place] for place in places]
            wanted: dict[str, Any] = {"row_groups": [number], "columns": names, "use_threads": False}
            batches = reader.iter_batches(step, **wanted)
            if places[0] in times:
                coarse = stack.enter_context(opened_table("parquet", file, footer=footer, unit="us"))
                batches = map(_times, batches, coarse.iter_batches(step, **wanted))
            row = 0
            for batch in batches:
                for place in places:
                    part = decoded(batch, leaves[place], row)
                    if place not in found:
                        found[place] = part.room(count)
                    found[place].append(row, part)
                row += batch.num_rows
                del batch, part
            if row != count:
                raise SourceError(
                    f"{file.url} is damaged: the pages of row group {number} have another number of rows ({row:,}) "
                    f"than its footer says ({count:,})."
                )
        for place, leaf in enumerate(leaves):
            if place not in found:  # the file lacks it, or has no rows
                found[place] = decoded(with_folders(pa.record_batch([pa.nulls(count)], [""]), folders), leaf)
    if sum(sizes.values()) >= PIECE_NBYTES:
        pa.default_memory_pool().release_unused()
    return [found[place] for place in range(len(leaves))]


def _times(fine: Any, coarse: Any) -> Any:
    """A batch of times of 12 bytes: in ns, or in µs if one is before 1677 or after 2262, which pyarrow makes others of.

    Args:
        fine: The times in ns.
        coarse: The same in µs.

    Raises:
        ArrowInvalid: Neither unit holds all times of a column.
    """
    columns = []
    for name, times, others in zip(fine.schema.names, fine.columns, coarse.columns, strict=True):
        try:
            others.cast(times.type)
            columns.append(times)
        except pa.ArrowInvalid:
            if not others.cast(times.type, safe=False).equals(times):
                raise pa.ArrowInvalid(
                    f"column {name!r} has times beyond 1677 to 2262, and times with digits below µs, together"
                ) from None
            columns.append(others)
    return pa.record_batch(columns, fine.schema.names)


def _whole(batch: Any, file: File, number: int, leaves: Sequence[Leaf], folders: Folders) -> Any:
    """Returns a record batch with the columns of the folders, after a check of those that the leaves need.

    Raises:
        SourceError: The batch is damaged.
    """
    for name in {leaf.origin[0] for leaf in leaves} & set(batch.schema.names):
        try:
            require_valid(batch.column(name))
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                f"{file.url} is damaged: column {name!r} of record batch {number} is not what it should be. {error}"
            ) from error
    return with_folders(batch, folders)


def read_batch(
    file: File, number: int, leaves: Sequence[Leaf], footer: RemoteFooter | None, folders: Folders, *, is_mapped: bool
) -> list[AnyColumn]:
    """Reads a record batch. If it is mapped, no columns are selected: Arrow would copy the whole batch."""
    with opened_table("arrow", file, () if is_mapped else _names(leaves), footer) as reader:
        batch = _whole(reader.get_batch(number), file, number, leaves, folders)
        found: list[AnyColumn] = [decoded(batch, leaf) for leaf in leaves]
        del batch
    if not is_mapped:
        pa.default_memory_pool().release_unused()
    return found


def _keep(file: File, metadata: Any) -> None:
    """Keeps a footer, and drops the oldest. Without a lock, which a child of fork() could find taken."""
    _footers[file] = metadata
    while (kept := list(_footers.items())) and (
        len(kept) > MOST_FOOTERS or sum(each.serialized_size for _, each in kept) > FOOTERS_NBYTES
    ):
        _footers.pop(kept[0][0], None)


@contextmanager
def opened_table(
    kind: Kind,
    file: File,
    columns: tuple[str, ...] = (),
    footer: RemoteFooter | None = None,
    shared: Sequence[str] = (),
    unit: str | None = None,
) -> Iterator[Any]:
    """Opens a file with pyarrow.

    Args:
        kind: Its format.
        file: The file.
        columns: The columns of Arrow to read; empty for all.
        footer: The kept facts of a remote file.
        shared: The columns of Parquet whose text stays in dictionaries.
        unit: The unit of times of 12 bytes; None for ns.

    Raises:
        SourceError: The file has changed, or pyarrow cannot read it. Also for errors of the body.
    """
    try:
        opened = file.open() if footer is None else footer.file  # refuses a changed file
        if kind == "parquet":
            data = file.url if file.is_local else file.stream(opened=opened)
            metadata = _footers.get(file) if footer is None else footer.metadata
            # A local file is read page by page; a server gets one request for everything.
            buffering: dict[str, Any] = {"pre_buffer": True}
            if file.is_local:
                buffering = {"pre_buffer": False, "buffer_size": BUFFER_NBYTES}
            buffering |= {"read_dictionary": list(shared) or None, "coerce_int96_timestamp_unit": unit}
            with pq.ParquetFile(data, metadata=metadata, page_checksum_verification=True, **buffering) as reader:
                if metadata is None and file.is_local:
                    _keep(file, reader.metadata)
                yield reader
            return
        # Mapped: an uncompressed batch is not copied, and only the pages of the requested rows are loaded.
        with pa.memory_map(file.url) if file.is_local else file.stream(opened=opened) as data:
            options = pa.ipc.IpcReadOptions(use_threads=False)  # workers already use all cores
            if columns:
                places = {name: place for place, name in enumerate(pa.ipc.open_file(data).schema.names)}
                options.included_fields = [places[name] for name in columns if name in places]
            yield pa.ipc.open_file(data, options=options)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, PenstockError):
            raise
        cure = ""
        if kind == "arrow" and "Not an Arrow file" in str(error):
            cure = (
                " A stream of Arrow has no random access, as little as Feather of version 1: write it again with "
                "pyarrow.ipc.new_file()."
            )
        raise SourceError(f"{file.url} cannot be read: {str(error).rstrip('.')}.{cure}") from error
