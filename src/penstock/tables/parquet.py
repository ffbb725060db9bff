"""Parquet files and Arrow files (Feather, version 2) as sources with random access, with `pyarrow`.

Both formats hold rows in groups: row groups, record batches. A group is the smallest unit of decoding. Decoded groups
are kept for the next rows, up to a limit that is known ahead (`TableSource.kept_nbytes`); `design/0019-kept-groups.md`.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np
import pyarrow as pa

from penstock import native
from penstock.base._errors import ArgumentError, SourceError, SpecError
from penstock.files._blocks import CachedFile
from penstock.files._openfile import File, FilesSource, block_reader, bounds_of, for_each, placed
from penstock.files._remote import ByteSource, RemoteFile
from penstock.memory._rows import positions_of
from penstock.plan._parted import PartCache, PartSizes, by_part
from penstock.plan._source import Read, Source
from penstock.sources.parted import PartedArray
from penstock.tables._columns import RowError
from penstock.tables._folders import Folders, depth_of, folders_of
from penstock.tables._leasttypes import least, plain
from penstock.tables._leaves import (
    Dtypes,
    Leaf,
    Nulls,
    Tabular,
    chosen,
    leaves_of,
    log_differences,
    names_in,
    require_casts,
)
from penstock.tables._tableread import (
    WORK_NBYTES,
    AnyColumn,
    Footer,
    Integers,
    Kind,
    RemoteFooter,
    batch_rows,
    first_batch,
    opened_table,
    read_batch,
    read_facts,
    read_group,
)

_log = logging.getLogger("penstock")

WORK_SHARE: Final = 4
COLUMN_NBYTES: Final = 4 << 10
"""The least memory of a column of a group: Python objects."""
WASTED_GROUPS: Final = 32
"""After this many decoded groups their use is checked."""
USED_SHARE: Final = 0.05
"""If a smaller part of the decoded rows was requested, a warning says so."""
KEPT_FOOTERS: Final = 64
"""Footers of remote files that are kept in a process."""


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
    columns: tuple[str, ...] | None
    nulls: Nulls
    dtypes: Dtypes
    depth: int
    """The folders that all files have in common, which are no columns."""

    @cached_property
    def index(self) -> Sequence[Footer]:
        """What the footers and folders of the files say. It does not travel: a group is read with its own footer."""
        found = for_each(self.files, lambda file: read_facts(self.kind, file, self.columns))
        for number, (facts, folders) in enumerate(zip(found, self.folders, strict=True)):
            if more := {name: value.type for name, value in folders.items() if name not in facts.names}:
                types = {name: kind for name, kind in more.items() if self.columns is None or name in self.columns}
                found[number] = facts._replace(names=[*facts.names, *more], types=facts.types | types)
        return found

    @cached_property
    def folders(self) -> Sequence[Folders]:
        """The columns that the folders of each file hold."""
        return folders_of(self.files, self.depth)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element: the least types that hold the columns of all files, or as the user says.

        Raises:
            SpecError: No type holds those of two files.
        """
        verb, first = f"from_{self.kind}", self.files[0]
        every: dict[str, Any] = {}
        for file, facts in zip(self.files, self.index, strict=True):
            for name, kind in facts.types.items():
                mine = self.dtypes.applied(name, kind)
                try:
                    every[name] = least(every.get(name, pa.null()), mine, _refuse)
                except SpecError as error:
                    raise SpecError(
                        f"{verb}(): no type holds column {name!r} of all files: {first.url} and files after it have "
                        f'{error} in {file.url}. Say one, such as dtypes={{{name!r}: "U"}} for text; or leave it out '
                        "with columns=[...]."
                    ) from None
        there = list(dict.fromkeys(name for facts in self.index for name in facts.names))
        self.dtypes.require(verb, str(self), there)
        names = chosen(verb, "columns", self.columns, self._where, there)
        if not names:
            raise ArgumentError(f"{verb}() needs at least one column of {self._where}.")
        types = {name: every[name] for name in names}
        if not self.is_part:
            applied = (
                {n: plain(self.dtypes.applied(n, kind)) for n, kind in facts.types.items()} for facts in self.index
            )
            log_differences(verb, self.files, list(applied), types)
        leaves = leaves_of(verb, self._where, types, self.nulls, self.dtypes)
        for file, facts in zip(self.files, self.index, strict=True):
            require_casts(verb, file.url, facts.types, leaves)
        return leaves

    @property
    def _where(self) -> str:
        more = len(self.files) - 1
        return self.files[0].url + f" and {more} more" * (more > 0)

    @cached_property
    def groups(self) -> _Groups:
        """The places of the rows, from the footers."""
        leaves, is_mapped, row_nbytes = self.leaves, False, 0.0
        rows: list[Sequence[int]] = [each.rows for each in self.index]
        if self.kind == "arrow":
            first = self.files[0]
            is_mapped, row_nbytes = first_batch(first, leaves, self.folders[0], is_mapped=first.is_local)
            rows = for_each(self.files, lambda file: batch_rows(file, is_mapped=is_mapped))
        counts = np.array([count for each in rows for count in each], np.int64)
        decoded = (counts * row_nbytes).astype(np.int64)
        if self.kind == "parquet":
            decoded = np.array([size for each in self.index for size in each.nbytes(leaves)], np.int64)
        nbytes = np.maximum(decoded, COLUMN_NBYTES * len(leaves))
        work_nbytes = np.minimum(WORK_SHARE * nbytes, WORK_NBYTES)
        if self.is_remote:  # a group is fetched whole
            work_nbytes = work_nbytes + nbytes
        return _Groups(
            np.repeat(np.arange(len(rows)), [len(each) for each in rows]),
            np.array([number for each in rows for number in range(len(each))], np.int64),
            bounds_of(counts),
            nbytes,
            work_nbytes,
            is_mapped,
        )

    @property
    def bounds(self) -> Integers:
        return self.groups.bounds

    @property
    def part_bounds(self) -> Integers:
        return self.bounds

    @property
    def parts(self) -> PartSizes | None:
        """Those of the groups; None if they lie in mapped files, where nothing is decoded."""
        return None if self.groups.is_mapped else self.part_sizes

    @cached_property
    def part_sizes(self) -> PartSizes:
        """The sizes of the groups."""
        groups = self.groups
        return PartSizes.of(groups.bounds, groups.nbytes, groups.work_nbytes)

    @property
    def kept_nbytes(self) -> int:
        """The groups that are kept, and the memory to decode one."""
        return self.part_sizes.room

    def describe(self, index: int) -> str:
        return self.describe_row(*placed(self.bounds, index))

    @cached_property
    def origin(self) -> Source | None:
        """The source of the same elements whose names these rows have; None if they have their own."""
        return None

    def describe_row(self, group: int, row: int) -> str:
        """Names the file, the row group and the row in it."""
        if self.origin is not None:
            return self.origin.describe(int(self.bounds[group]) + row)
        name = "row group" if self.kind == "parquet" else "record batch"
        return f"{self.files[self.groups.files[group]]} {name} {self.groups.numbers[group]} row {row}"

    def arrays(self) -> Sequence[PartedArray] | None:
        """The columns, if their values have one size and the files are local. Servers need a worker that waits."""
        if self.is_remote or any(leaf.spec.dtype.itemsize == 0 or None in leaf.spec.shape for leaf in self.leaves):
            return None
        return [PartedArray(self, number, leaf.spec) for number, leaf in enumerate(self.leaves)]

    def open(self) -> "OpenTableSource":
        return OpenTableSource(self)


@final
class OpenTableSource:
    """Reads rows. Keeps decoded groups of `kept_nbytes` in all, and no file open.

    Of remote files it keeps the last `KEPT_FOOTERS` footers too, because reading one takes several requests in turn.
    Any number of threads may use it. It counts for a warning, where a lost update does no harm.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._groups = source.groups
        self.is_mapped = self._groups.is_mapped
        self.part_cache = PartCache(self._decode, source.part_sizes)
        self._row_count = 0
        """Rows that were requested."""
        self._has_warned = False
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
        cache = self.part_cache
        # Decoded groups first, because those that are decoded now may take their place.
        for group in sorted(wanted, key=lambda each: (not cache.is_there(each), each)):
            with cache.use(group) as columns:
                self._put(group, columns, wanted[group])
        if cache.late_count >= WASTED_GROUPS and not self._has_warned and self._source.kind == "parquet":
            self._has_warned = True
            self._warn_of_waste(cache.late_count)

    def _put(self, group: int, columns: list[AnyColumn], wanted: list[tuple[Any, Integers, Integers | slice]]) -> None:
        """Copies rows of a group, which are there."""
        if self._groups.is_mapped:  # what lies behind the end of a file ends the process, or is zeros
            self.require_same(group)
        copies: list[tuple[Any, ...]] = []
        for arrays, inside, rows in wanted:
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

    def read_error(self, error: native.CopyError) -> SourceError:
        """See `OpenParts`."""
        part, row = placed(self._groups.bounds, max(0, error.element))
        try:
            self.require_same(part)
        except SourceError as changed:
            return changed
        return SourceError(f"{self._source.describe_row(part, row)} cannot be read: {error}")

    def require_same(self, group: int) -> None:
        """Refuses a file that has changed.

        Raises:
            SourceError: It has.
        """
        file = self._source.files[self._groups.files[group]]
        if file.is_local:
            with suppress(OSError):
                if file.is_unchanged():
                    return
            file.open()

    def _decode(self, group: int) -> tuple[list[AnyColumn], int]:
        """Returns the columns of a group, and their memory."""
        source, place = self._source, int(self._groups.files[group])
        file, number = source.files[place], int(self._groups.numbers[group])
        footer, folders = None if file.is_local else self._footer(place), source.folders[place]
        try:
            if source.kind == "parquet":
                columns = read_group(file, number, source.leaves, footer, folders)
            else:
                columns = read_batch(file, number, source.leaves, footer, folders, is_mapped=self._groups.is_mapped)
        except RowError as error:
            raise error.at(source.describe_row(group, error.row)) from None
        nbytes = int(self._groups.nbytes[group])
        if not self.is_mapped:  # text may be larger than its file said
            nbytes = max(nbytes, sum(column.nbytes for column in columns))
        return columns, nbytes

    def _remote_file(self, place: int) -> RemoteFile:
        opened = self._source.files[place].open()
        assert isinstance(opened, RemoteFile)
        return opened

    def _read_footer(self, place: int) -> RemoteFooter:
        """Reads the footer of a remote file, through its cache if it has one."""
        kind, file = self._source.kind, self._source.files[place]
        remote: ByteSource = self._remote_file(place)
        if self._blocks is not None:
            remote = CachedFile(self._blocks, place, file.url)
        with opened_table(kind, file, footer=RemoteFooter(remote, None)) as reader:
            return RemoteFooter(remote, reader.metadata if kind == "parquet" else None)

    def _warn_of_waste(self, group_count: int) -> None:
        """Warns if groups are decoded for a few of their rows each."""
        group_rows = len(self._source) / len(self._groups.files)
        if self._groups.nbytes.sum() <= self.part_cache.sizes.room:
            return  # each is decoded once
        if self._row_count < USED_SHARE * group_count * group_rows:
            _log.warning(
                "%s: %d row groups, of %s rows on average, were decoded for %s rows. A row group is the least that can "
                "be decoded, and these rows lie all over the file. Shuffle within a few row groups: "
                "shuffle(seed, window=%d). Or write the rows down once, in order, where any of them can be read alone: "
                "ds = ds.materialize(path).",
                self._source,
                group_count,
                f"{group_rows:,.0f}",
                f"{self._row_count:,}",
                2 * group_rows,
            )

    def close(self) -> None:
        self.part_cache.clear()
        self._footer.cache_clear()
        if self._blocks is not None:
            self._blocks.close()


def _refuse(one: Any, other: Any) -> NoReturn:
    raise SpecError(f"{one} there, and {other}")


def source(
    kind: Kind,
    files: tuple[File, ...],
    asked: Sequence[str],
    columns: Any,
    dtypes: Any,
    fill_null: Any,
    null_masks: Any,
) -> TableSource:
    """Makes a source from the arguments of `penstock.from_parquet`, `asked` being its paths. Reads all footers."""
    verb = f"from_{kind}"
    names = None if columns is None else names_in(verb, "columns", columns)
    nulls, found = Nulls.of(verb, fill_null, null_masks), Dtypes.of(verb, dtypes)
    made = TableSource(kind, files, names, nulls, found, depth_of(asked))
    assert made.leaves  # refuses a column without a spec
    return made
