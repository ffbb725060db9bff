"""The columns of text, which is parsed once: an Arrow file of the leaves of all elements, kept as an index is.

The values that elements have are kept: parsed by the code that reads lines, cast, and with what stands in for nulls. So
a table of them gives the same elements. If a row cannot be read, the reason is kept in place of columns, and lines are
parsed when they are read; the error is then that of the line.
"""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from penstock.base._errors import SourceError
from penstock.base._units import size_text
from penstock.formats import _recordindex
from penstock.formats._columns import is_list, is_text
from penstock.formats._leaves import Dtypes, Leaf, Nulls
from penstock.formats.parquet import TableSource
from penstock.sources._openfile import File

LEAST_NBYTES: Final = 1 << 20
"""Less text is parsed when it is read."""
MOST_NBYTES: Final = 4 << 30
"""More text too, because columns take about as much disk."""
MOST_GROWTH: Final = 4
"""Columns that take more than this many times the text are not kept: most of their values are missing in it."""
PART_NBYTES: Final = 32 << 20
"""Text of this size becomes a record batch. A batch of shuffled rows costs some 0.1 ms for each that it touches."""
_VERSION: Final = 1
_FAULT: Final = b"penstock: why no columns are kept"

_log = logging.getLogger("penstock")


class UnfitError(Exception):
    """The text cannot be kept as columns."""


def kept_columns(
    verb: str,
    files: Sequence[File],
    kind: str,
    cache_dir: str | None,
    leaves: Sequence[Leaf],
    text_nbytes: int,
    make: Callable[[], Iterable[tuple[list[Any], int]]] | None,
) -> TableSource | None:
    """Returns the table of the columns of text, kept from before or made now; None if there is none.

    Args:
        verb: The user's function.
        files: The files of text.
        kind: What the values depend on beside the files and the leaves.
        cache_dir: See `_kept.kept`.
        leaves: The leaves.
        text_nbytes: The bytes of the text, which may be compressed in the files.
        make: Yields the values of the leaves of some neighbouring rows as Arrow arrays, and the bytes of their text;
            raises `UnfitError`. None to make none.
    """
    names = [leaf.name for leaf in leaves]
    if len(set(names)) < len(names):  # a key with a dot, and a field of an object
        return None
    where = files[0].url + f" and {len(files) - 1} more" * (len(files) > 1)
    facts = [
        (leaf.path, str(leaf.spec), repr(leaf.fill), leaf.may_round, str(leaf.unit), leaf.masks) for leaf in leaves
    ]
    kind = f"columns {_VERSION} {kind} {facts}"
    found = _recordindex.kept_content(files, kind, cache_dir, "columns")
    if found is None:
        if make is None:
            return None
        try:
            try:
                most = MOST_GROWTH * text_nbytes
                found = _recordindex.keep_content(
                    files, kind, cache_dir, lambda: _arrow_file(names, make(), most), "columns"
                )
                _log.info("The columns of %s are kept in %s, %s.", where, found.url, size_text(found.nbytes))
            except UnfitError as error:
                told = [_file_of_reason(str(error))]
                found = _recordindex.keep_content(files, kind, cache_dir, lambda: iter(told), "columns")
        except SourceError:
            raise
        except OSError as error:
            _log.info("The columns of %s cannot be kept (%s), so lines are parsed when they are read.", where, error)
            return None
    no_folders = found.url.count("/")
    table = TableSource("arrow", (found,), None, Nulls.of(verb, None, ()), Dtypes.of(verb, None), no_folders)
    if (reason_found := (table.index[0].schema.metadata or {}).get(_FAULT)) is not None:
        if make is not None:
            reason = reason_found.decode()
            _log.info("The columns of %s are not kept, so lines are parsed when they are read: %s", where, reason)
        return None
    return narrowed(table, leaves)


def narrowed(table: TableSource, leaves: Sequence[Leaf]) -> TableSource:
    """The same table with some of its columns, those of these leaves."""
    made = replace(table, columns=tuple(leaf.name for leaf in leaves))
    made.__dict__["index"] = table.index
    made.__dict__["leaves"] = tuple(Leaf((leaf.name,), leaf.spec) for leaf in leaves)
    return made


def _arrow_file(names: Sequence[str], parts: Iterable[tuple[list[Any], int]], most_nbytes: int) -> Iterator[bytes]:
    """Yields an Arrow file of the values, in record batches of the size of `PART_NBYTES`."""
    sink, writer, total = _Sink(), None, 0
    for group in _grouped(parts):
        columns = [pa.concat_arrays(arrays) for arrays in zip(*group, strict=True)]
        batch = pa.record_batch(columns, names)
        total += batch.nbytes
        if total > most_nbytes:
            raise UnfitError(
                f"they would take more than {MOST_GROWTH} times its {size_text(most_nbytes // MOST_GROWTH)}."
            )
        if writer is None:
            writer = pa.ipc.new_file(sink, batch.schema)
        writer.write_batch(batch)
        yield sink.taken()
    if writer is None:
        raise UnfitError("there is no row.")
    writer.close()
    yield sink.taken()


def _grouped(parts: Iterable[tuple[list[Any], int]]) -> Iterator[list[list[Any]]]:
    group, size = list[list[Any]](), 0
    for arrays, nbytes in parts:
        group.append([_large(values) for values in arrays])
        size += nbytes
        if size >= PART_NBYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _large(values: Any) -> Any:
    """Values whose type does not depend on which of them are null, with offsets of 64 bits.

    Raises:
        UnfitError: Text is no UTF-8.
    """
    kind = _large_type(values.type)
    try:
        made = values if kind == values.type else values.cast(kind)
        made.validate(full=True)
    except pa.ArrowException as error:
        raise UnfitError(str(error)) from error
    return made


def _large_type(kind: Any) -> Any:
    if is_list(kind) and not pa.types.is_fixed_size_list(kind):
        return pa.large_list(_large_type(kind.value_type))
    return pa.large_string() if is_text(kind) else kind


def _file_of_reason(reason: str) -> bytes:
    sink = _Sink()
    pa.ipc.new_file(sink, pa.schema([], {_FAULT: reason})).close()
    return sink.taken()


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
