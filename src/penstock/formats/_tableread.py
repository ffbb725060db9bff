"""Reads groups of rows of Parquet and Arrow files, with `pyarrow`.

Its readers are not made for several threads, and opening one is cheap. So each call has its own.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from penstock.base._errors import PenstockError, SourceError
from penstock.base._units import size_text
from penstock.formats._arrowsizes import RecordBatch
from penstock.formats._columns import Column, Ragged, RowError, is_list, is_viewed, require_valid
from penstock.formats._folders import Folders, with_folders
from penstock.formats._leaves import (
    Leaf,
    chosen,
    decoded,
    stored_numbers,
)
from penstock.formats._parquetfooter import (
    HEADER_NBYTES,
    PLAIN,
    PREFIXED,
    SHARED,
    ColumnChunk,
    chunk_places,
    form_of,
    leaf_size,
    pages_nbytes,
    stored_chunks,
)
from penstock.formats._tablekinds import Kind, require_kind
from penstock.sources._openfile import File
from penstock.sources._remote import ByteSource

Integers = npt.NDArray[np.int64]
AnyColumn = Column | Ragged

KEPT_NBYTES: Final = 128 << 20
"""Decoded groups that are kept in a process, or two larger neighbouring groups."""
PIECE_NBYTES: Final = 1 << 20
"""A column is decoded in pieces of about this size, and columns one after the other."""
WORK_NBYTES: Final = 24 << 20
"""The most memory that decoding takes beside the group, if it is below `WORK_SHARE` times the group."""
BUFFER_NBYTES: Final = 256 << 10
"""Bytes that are read from a file at once, or a page."""
FIRST_ROWS: Final = 64
"""Rows of text that are decoded at once, while nothing is known of the size of values: they may repeat a long one."""
MOST_ROWS: Final = 1 << 40
"""No group has more."""
_MANY: Final = 1 << 62
_measuring = threading.Lock()
_measured = pa.proxy_memory_pool(pa.default_memory_pool())  # it has to outlive what was made in it


class Footer(NamedTuple):
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


class RemoteFooter(NamedTuple):
    """The kept facts of a remote file, so that reading a group is one request."""

    file: ByteSource
    metadata: Any
    """The parsed footer of Parquet."""


def read_facts(kind: Kind, file: File, columns: Sequence[str] | None) -> Footer:
    """Reads the footer of a file."""
    require_kind(f"from_{kind}", kind, file)
    with opened_table(kind, file) as reader:
        schema = reader.schema_arrow if kind == "parquet" else reader.schema
        wanted = [name for name in schema.names if columns is None or name in columns]
        if twice := [name for name in wanted if wanted.count(name) > 1]:
            chosen(f"from_{kind}", "columns", twice[:1], file.url, schema.names)  # refuses it
        types = {name: schema.field(name).type for name in wanted}
        for each in types.values():
            _require_sound(each)
        if kind == "arrow":
            return Footer(schema.names, types, schema=schema)
        rows = [reader.metadata.row_group(number).num_rows for number in range(reader.num_row_groups)]
        if unlikely := [count for count in rows if not 0 <= count <= MOST_ROWS]:
            raise SourceError(f"{file.url} is damaged: a row group has {unlikely[0]:,} rows.")
        numbers = {path: number for path, number in stored_numbers(schema).items() if path[0] in types}
        return Footer(schema.names, types, rows, stored=stored_chunks(file, numbers, types, len(rows)))


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


def first_batch(
    file: File, leaves: Sequence[Leaf], told: Sequence[RecordBatch], folders: Folders
) -> tuple[bool, float]:
    """Reads the first record batch of a file, to learn the costs of all.

    Args:
        file: The file.
        leaves: The leaves.
        told: What its headers say of its record batches; empty if it is remote.
        folders: The columns that its folders hold.

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
    with _measuring, opened_table("arrow", file, columns, pool=_measured) as reader:
        if not reader.num_record_batches:
            return False, 0.0
        before, batch = _measured.bytes_allocated(), reader.get_batch(0)
        is_mapped, nbytes = not is_copied and _measured.bytes_allocated() == before, 0
        for leaf in leaves:
            column, *fields = leaf.origin
            place = batch.schema.get_field_index(column)
            is_plain = leaf.fill is None and not leaf.masks and not fields and place >= 0
            is_view = is_plain and is_viewed(batch.field(place).type, leaf.spec)
            with suppress(RowError):  # a read reports it
                (made,) = _decoded(reader, 0, file, [leaf], folders, is_mapped=is_mapped)
                nbytes += made.nbytes if isinstance(made, Ragged) or not (is_mapped and is_view) else 0
        return is_mapped, nbytes / max(1, batch.num_rows)


def read_group(
    file: File,
    number: int,
    leaves: Sequence[Leaf],
    footer: RemoteFooter | None,
    facts: Integers,
    folders: Folders,
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
        folders: The columns that the folders of the file hold.

    Raises:
        SourceError: Text takes much more memory than the footer says, or there is another number of rows.
    """
    sizes, forms = facts.T.tolist()
    with ExitStack() as stack:
        reader = stack.enter_context(opened_table("parquet", file, footer=footer))
        numbers = stored_numbers(reader.schema_arrow)
        paths = {
            place: reader.metadata.schema.column(numbers[leaf.origin]).path
            for place, leaf in enumerate(leaves)
            if leaf.origin in numbers
        }
        count = reader.metadata.row_group(number).num_rows
        if file.is_local:
            made: dict[int, tuple[int, str]] = {}
            for place in paths:
                leaf = leaves[place]
                # Small integers are stored in 4 bytes, and some times in 12.
                most = sizes[place] * max(1, 16 // max(1, leaf.spec.dtype.itemsize))
                column = numbers[leaf.origin]
                made[column] = max(made.get(column, (0, "")), (most, leaf.name))
            _require_pages(file, number, made)
        shared = [place for place in paths if forms[place] == SHARED]
        most = {place: FIRST_ROWS for place in paths if forms[place] in (PLAIN, PREFIXED)}
        plain_texts = [place for place in most if forms[place] == PLAIN]
        if plain_texts and count > FIRST_ROWS:
            names = [paths[place] for place in plain_texts]
            with opened_table("parquet", file, footer=footer, shared=names, is_part=True) as probe:
                for place in plain_texts:
                    most[place] = _most_rows(probe, number, paths[place], sizes[place])
        if shared:
            kept = [paths[place] for place in shared]
            reader = stack.enter_context(opened_table("parquet", file, footer=footer, shared=kept))
        found: dict[int, AnyColumn] = {}
        schema = reader.metadata.schema
        times = [place for place in paths if schema.column(numbers[leaves[place].origin]).physical_type == "INT96"]
        together = [[place for place in paths if place not in (*shared, *times)], times, shared]
        for places in [[place] for place in paths] if file.is_local else filter(None, together):
            rows = max(1, count)
            if places[0] not in shared:
                rows = rows * PIECE_NBYTES // max(1, *(sizes[place] for place in places))
                rows = min(rows, *(most.get(place, _MANY) for place in places))
            texts = [place for place in places if place in most]
            row, step = 0, min(rows, FIRST_ROWS) if texts else rows
            names = [paths[place] for place in places]
            wanted: dict[str, Any] = {"row_groups": [number], "columns": names, "use_threads": False}
            batches = reader.iter_batches(max(1, min(step, count)), **wanted)
            if places[0] in times:
                coarse = stack.enter_context(opened_table("parquet", file, footer=footer, unit="us"))
                batches = map(_times, batches, coarse.iter_batches(max(1, min(step, count)), **wanted))
            for batch in batches:
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
                found[place] = decoded(with_folders(pa.record_batch([pa.nulls(count)], [""]), folders), leaf)
    if sum(sizes) >= PIECE_NBYTES:
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


def _require_pages(file: File, number: int, made: Mapping[int, tuple[int, str]]) -> None:
    """Refuses a row group of a local file with pages that are larger than their values can be.

    Args:
        file: The file.
        number: The row group.
        made: For each stored column, the most memory that its values can take, and its name.

    Raises:
        SourceError: They are, or their headers are damaged.
    """
    with file.stream(HEADER_NBYTES) as stream:
        for column, (nbytes, name) in made.items():
            try:
                found = pages_nbytes(stream, chunk_places(file)[number, column].tolist(), file.nbytes)
            except (ValueError, IndexError) as error:
                raise SourceError(
                    f"{file.url} is damaged: in row group {number}, column {name!r}, {error}. Fetch or write it again."
                ) from None
            if found > 2 * nbytes + KEPT_NBYTES:
                raise SourceError(
                    f"{file.url}: row group {number} has {size_text(found)} in its pages of column {name!r}, whose "
                    f"values take {size_text(nbytes)} at most. It is damaged, or made to use up memory: leave the "
                    "column out with columns=[...], or write the file again."
                )


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


def _decoded(
    reader: Any, number: int, file: File, leaves: Sequence[Leaf], folders: Folders, *, is_mapped: bool
) -> list[AnyColumn]:
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
    batch = with_folders(batch, folders)
    found = [decoded(batch, leaf) for leaf in leaves]
    if is_mapped:
        found = [each.in_file(file, *reader.span) if isinstance(each, Ragged) else each for each in found]
    return found


def read_batch(
    file: File, number: int, leaves: Sequence[Leaf], footer: RemoteFooter | None, folders: Folders, *, is_mapped: bool
) -> list[AnyColumn]:
    """Reads a record batch. If it is mapped, no columns are selected: Arrow would copy the whole batch."""
    columns = () if is_mapped else tuple({leaf.origin[0]: None for leaf in leaves})
    with opened_table("arrow", file, columns, footer) as reader:
        found = _decoded(reader, number, file, leaves, folders, is_mapped=is_mapped)
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
def opened_table(
    kind: Kind,
    file: File,
    columns: tuple[str, ...] = (),
    footer: RemoteFooter | None = None,
    pool: Any = None,
    shared: Sequence[str] = (),
    *,
    is_part: bool = False,
    unit: str | None = None,
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
        unit: The unit of times of 12 bytes; None for ns.

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
            buffering |= {"read_dictionary": list(shared) or None, "coerce_int96_timestamp_unit": unit}
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
