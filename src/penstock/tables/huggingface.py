"""Datasets of Hugging Face (`datasets.Dataset`) as a source: rows of the Arrow files that hold them.

Rows are read from the columns of the dataset's Arrow tables, which are mapped files, without the Python objects that
`dataset[i]` makes. The memory of such a file is the page cache's.

File names travel to workers, with the steps that made a table of each file (`select_columns`, `rename_column`). So a
worker process maps the files itself, with `pyarrow` alone: importing `datasets` takes a second. Tables in memory, and
tables that were cast, are pickled.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base import _tree
from penstock.base._errors import ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._files import lasting_stamp, open_file
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.base._trust import is_inside
from penstock.files._openfile import bounds_of, described
from penstock.memory._rows import Indices
from penstock.plan._parted import by_part
from penstock.sources.arrays import NamedSource
from penstock.tables._columns import (
    Column,
    NullError,
    RaggedColumn,
    RowError,
    column_of,
    is_binary,
    is_copied,
    require_valid,
    spec_of,
    taken,
)
from penstock.tables._leaves import Leaf, field_of, tree_of


@final
@dataclass(frozen=True)
class MappedTable:
    """An Arrow table in a file, and the steps that changed it."""

    path: str
    replays: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    """Names of methods of `pyarrow.Table`, with their arguments."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """The file by path, size, time of the last change and a mark of its content, and the steps."""
        return {"the file": (self.path, *lasting_stamp(self.path)), "what was done to it": self.replays}

    def open(self) -> pa.Table:
        """Maps the file.

        Raises:
            SourceError: It is missing, or no longer an Arrow stream.
        """
        try:
            with pa.memory_map(self.path) as file:
                table = pa.ipc.open_stream(file).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise SourceError(f"{self.path} cannot be opened again: {error}") from error
        for name, arguments, options in self.replays:
            table = getattr(table, name)(*arguments, **options)
        return table


Table: TypeAlias = tuple[tuple[Any, ...], ...]
"""Tables one below the other, each made of tables side by side: `MappedTable`, or a table itself."""


def _files_of(table: Table) -> list[str]:
    """The files of a table."""
    return [os.path.abspath(block.path) for row in table for block in row if isinstance(block, MappedTable)]


@final
class _OpenTable:
    """An open table, and its files as they were when they were mapped."""

    def __init__(self, table: Table) -> None:
        self._files = [
            [described(path, f"{path} cannot be opened again") for path in _files_of((row,))] for row in table
        ]
        rows = [_side_by_side(row) for row in table]
        self._bounds = bounds_of(len(each) for each in rows)
        self._has_files = any(self._files)
        self.table = pa.concat_tables(rows, promote_options="default")

    def require_unchanged(self, rows: Indices) -> None:
        """Refuses rows of a file that is another now. A mapped file that is shorter ends the process when it is read.

        Raises:
            SourceError: Names the file.
        """
        if not self._has_files:
            return
        for number, _, _ in by_part(self._bounds, rows, slice(0, len(rows))):
            for file in self._files[number]:
                with suppress(FileNotFoundError):  # then the mapping still has all of it
                    if not file.is_unchanged():
                        file.open()  # raises


@final
class HuggingFaceSource(NamedSource):
    """The rows of a `datasets.Dataset`."""

    suits_one_thread = True

    def __init__(
        self, name: str, count: int, leaves: Sequence[Leaf], table: Table, order: Table | None, files_in: str | None
    ) -> None:
        self._name = name
        self._folders = sorted({os.path.dirname(path) for path in _files_of(table)}) if files_in is None else [files_in]
        """Those that may have the files that rows name."""
        self.count = count
        self._leaves = leaves
        self.element_spec: Tree = tree_of(leaves)
        self._table = table
        self._order = order

    def __str__(self) -> str:
        return self._name

    def open(self) -> "OpenHuggingFaceSource":
        return OpenHuggingFaceSource(self)


@final
class OpenHuggingFaceSource:
    """Reads rows of mapped files. The mappings end with the last reference to this object."""

    def __init__(self, source: HuggingFaceSource) -> None:
        self._source = source
        _, self._structure = _tree.flatten(source.element_spec)
        self._table = _OpenTable(source._table)
        table, folders = self._table.table, source._folders
        self._columns = [_Chunks(leaf, table.column(leaf.path[0]).chunks, folders) for leaf in source._leaves]
        # `select`, `shuffle` and `sort` leave the row in the table for each element.
        self._orders = None if source._order is None else _OpenTable(source._order)
        order = self._orders and self._orders.table.column(0).chunks
        self._order = order and _Chunks(Leaf(("row",), ArraySpec((), np.dtype(np.uint64))), order)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Copies rows, column by column and chunk by chunk.

        Raises:
            SourceError: A file has changed since it was mapped, or a value cannot be read.
            SpecError: A value is missing.
        """
        if not len(indices):
            return
        rows = indices
        if self._order and self._orders is not None:
            self._orders.require_unchanged(indices)
            found = np.empty(len(indices), np.uint64)
            self._order.read_into(indices, found)
            rows = found.astype(np.int64)
        self._table.require_unchanged(rows)
        for column, array in zip(self._columns, _tree.flatten_like(self._structure, out), strict=True):
            try:
                column.read_into(rows, array)
            except RowError as error:
                where = f"Column {column.leaf.name} of {self._source.describe(int(indices[error.row]))}"
                if not isinstance(error, NullError):
                    raise SourceError(f"{where} {error.text}") from error.__cause__
                if error.is_inner:
                    raise SpecError(
                        f"{where} has missing values (None) in it, or is not of {column.leaf.spec}."
                    ) from None
                raise SpecError(
                    f"{where} is missing (None), which has no place in a batch. Give it a value, or leave such "
                    "elements out: dataset.filter(lambda element: element[...] is not None) of Hugging Face."
                ) from None


@final
class _Chunks:
    """The chunks of a column, each checked when it is first read."""

    def __init__(self, leaf: Leaf, chunks: list[pa.Array], folders: Sequence[str] = ()) -> None:
        self.leaf = leaf
        self._folders = folders
        self._bounds = bounds_of(len(chunk) for chunk in chunks)
        self._chunks = chunks
        self._checked: dict[int, tuple[Any, Column | RaggedColumn | None]] = {}
        """The values of the leaf in each chunk that was read; decoded, if that is no copy, and none is missing."""

    def read_into(self, rows: Indices, out: npt.NDArray[Any]) -> None:
        """Reads rows of the column.

        Raises:
            RowError: A value is missing, or is no text. Its row is a place among `rows`.
        """
        for chunk, inside, places in by_part(self._bounds, rows, np.arange(len(rows))):
            assert isinstance(places, np.ndarray)
            try:
                self._read_chunk(chunk, inside, out, places)
            except RowError as error:
                error.row = int(places[error.row])
                raise

    def _read_chunk(self, number: int, rows: Indices, out: npt.NDArray[Any], places: Indices) -> None:
        leaf = self.leaf
        if number not in self._checked:
            values = self._chunks[number]
            for name in leaf.path[1:]:
                values = field_of(values, name)
            try:
                require_valid(values)
            except (pa.ArrowException, ValueError) as error:
                raise SourceError(f"Column {leaf.name} of this dataset is damaged in its file: {error}") from error
            values, view = getattr(values, "storage", values), None
            if not (pa.types.is_struct(values.type) or is_copied(values.type)):
                with suppress(RowError):  # a value is missing
                    view = column_of(values, leaf.spec)
            self._checked[number] = values, view
        values, view = self._checked[number]
        if view is not None:
            view.put(rows, out, places)
            return
        some = taken(values, rows)
        if not pa.types.is_struct(some.type):
            column_of(some, leaf.spec).put(np.arange(len(rows)), out, places)
            return
        # A file, because other structs are dicts of their fields.
        for row, (place, value) in enumerate(zip(places.tolist(), some.to_pylist(), strict=True)):
            out[place] = _file_bytes(row, value, self._folders)


def _file_bytes(row: int, value: dict[str, Any] | None, folders: Sequence[str]) -> bytes:
    """Returns the bytes of a file that is in the table, or in one of some folders."""
    if value is not None and value["bytes"] is not None:
        return bytes(value["bytes"])
    if value is None or value["path"] is None:
        raise NullError(row)
    if not is_inside(value["path"], folders):
        raise RowError(
            row,
            f"is in {value['path']}, which is not in {' or '.join(folders) or 'the dataset'}. A dataset that names "
            "files can make a program read any of them. If you trust it, name a folder that has them: "
            "from_source(dataset, files_in=folder).",
        )
    try:
        with open_file(os.path.realpath(value["path"])) as file:
            return file.read()
    except OSError as error:
        raise RowError(row, f"is a file that cannot be read: {error}") from error


def from_dataset(dataset: Any, files_in: str | None = None) -> HuggingFaceSource:
    """Describes a `datasets.Dataset` by its files. Rows may name others, in a folder.

    Raises:
        ArgumentTypeError: It is several datasets.
        SpecError: It has a transform, or a column without a spec: objects, lists of differing shapes, or images
            with decoding.
    """
    if isinstance(dataset, dict):
        raise ArgumentTypeError(
            f"from_source() got {type_of(dataset)}, several datasets: {', '.join(map(repr, dataset))}. "
            f"Choose one: from_source(dataset[{next(iter(dataset), 'train')!r}])."
        )
    form = dataset.format
    if form["type"] == "custom":
        raise SpecError(
            "This dataset of Hugging Face has a transform (set_transform), which from_source() would not run. "
            "Put the function into map(): from_source(dataset.with_format(None)).map(fn)."
        )
    if form["format_kwargs"]:
        raise SpecError(
            f"This dataset of Hugging Face converts with {form['format_kwargs']}, which from_source() would not do. "
            "Use from_source(dataset.with_format(None)).cast(dtype)."
        )
    table = dataset.data
    leaves = [
        leaf
        for name in form["columns"]
        for leaf in _leaves(table.schema.field(name).type, dataset.features[name], (name,))
    ]
    if not leaves:
        raise SpecError("This dataset of Hugging Face has no columns.")
    # There is no public name for the order that `select`, `shuffle` and `sort` leave behind.
    order = dataset._indices
    name = dataset.info.dataset_name or "datasets.Dataset"
    return HuggingFaceSource(
        f"{name}[{dataset.split}]" if dataset.split else name,
        len(dataset),
        leaves,
        _by_file(table),
        None if order is None else _by_file(order),
        files_in,
    )


def is_dataset(source: object) -> bool:
    """Whether it is a `datasets.Dataset`, or several in a dict. `datasets` must be imported."""
    import datasets  # not above: a worker process does not need it

    return isinstance(source, (datasets.Dataset, datasets.DatasetDict, datasets.IterableDatasetDict))


def _leaves(kind: pa.DataType, feature: Any, path: tuple[str, ...]) -> Iterator[Leaf]:
    """Yields the leaves of a column, or of a field of a struct."""
    if hasattr(feature, "decode_example"):  # images and sound are files in the table; JSON is text
        is_file = pa.types.is_struct(kind)
        if feature.decode:
            name = type(feature).__name__
            raise SpecError(
                f"Column {'.'.join(path)} of this dataset is to be decoded as {name}, one element after the other, and "
                "its shape is not known ahead. Decode it in map(), which is parallel: from_source(dataset.cast_column("
                f"{path[0]!r}, datasets.{name}(decode=False))) gives {'the bytes of each file' if is_file else 'text'}."
            )
        if is_file:
            yield Leaf(path, ArraySpec((), np.dtype("S")))
            return
    if pa.types.is_struct(kind) and not isinstance(kind, pa.BaseExtensionType):
        features = feature if isinstance(feature, dict) else {}
        for each in kind:
            yield from _leaves(each.type, features.get(each.name), (*path, each.name))
        return
    if hasattr(kind, "shape"):  # Array2D to Array5D
        yield Leaf(path, ArraySpec(tuple(kind.shape), np.dtype(kind.value_type)))
        return
    kind = getattr(kind, "storage_type", kind)
    try:
        spec = ArraySpec((), np.dtype("S")) if is_binary(kind) else spec_of(".".join(path), kind)
        if None in spec.shape[1:]:
            raise SpecError(f"{spec} has two axes of any length")
    except SpecError:
        raise SpecError(
            f"Column {'.'.join(path)} of this dataset is {kind}, which has no spec here. Numbers have one, and lists "
            "of them of which at most the first axis is of any length, times, text, lists of text, and bytes. Use "
            "dataset.cast_column() of Hugging Face, such as to Value('int64'), List(Value('float32'), length=64) or "
            "Array2D((None, 3), 'float32'), or dataset.remove_columns()."
        ) from None
    yield Leaf(path, spec)


def _by_file(table: Any) -> Table:
    """Returns a table of `datasets` by its files, if it has files."""
    rows = table.blocks if hasattr(table, "blocks") else [[table]]
    return tuple(tuple(map(_block, row)) for row in rows)


def _block(table: Any) -> Any:
    if not hasattr(table, "path"):
        return table.table
    # The metadata, which give columns a meaning, were read before.
    replays = tuple(replay for replay in table.replays if replay[0] != "replace_schema_metadata")
    if any(name in ("cast", "flatten") for name, *_ in replays):  # `datasets` has its own of these
        return table
    return MappedTable(table.path, replays)


def _side_by_side(row: tuple[Any, ...]) -> pa.Table:
    """Opens tables, and puts their columns together."""
    first, *others = (
        block.open() if isinstance(block, MappedTable) else getattr(block, "table", block) for block in row
    )  # a cast table is one of `datasets`
    for other in others:
        for name in other.column_names:
            first = first.append_column(name, other.column(name))
    return first
