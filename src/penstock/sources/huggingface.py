"""Datasets of Hugging Face (`datasets.Dataset`) as a source: rows of Arrow tables, by the files that hold them.

What is read. The columns of the dataset's Arrow tables, which are mapped files (see `_arrow.py`), without the Python
objects that `dataset[i]` makes of them. What such a file has in memory is the page cache's.

What travels. Names of files and the steps that made a table of each (`select_columns`, `rename_column`), so that a
worker process maps the files itself, with `pyarrow` alone: `datasets` takes a second to import. Tables in memory, and
tables that were cast, are pickled as they are.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import pyarrow as pa

from penstock.base import _tree
from penstock.base._errors import ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources._arrow import Column, Leaf, by_chunk
from penstock.sources._openfile import stamp

_ROW = Leaf(("row",), ArraySpec((), np.dtype(np.uint64)))


@final
@dataclass(frozen=True)
class MappedTable:
    """An Arrow table, as a file and what was done to it since."""

    path: str
    replays: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    """Names of methods of `pyarrow.Table`, with their arguments."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """The file by path, size and time of its last change, and what was done to it."""
        return {"the file": (self.path, *stamp(self.path)), "what was done to it": self.replays}

    def open(self) -> pa.Table:
        """Maps the file.

        Raises:
            SourceError: It is gone, or no Arrow stream any more.
        """
        try:
            with pa.memory_map(self.path) as file:
                table = pa.ipc.open_stream(file).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise SourceError(f"{self.path} cannot be opened again: {error}") from error
        for name, arguments, options in self.replays:
            table = getattr(table, name)(*arguments, **options)
        return table


@final
@dataclass(frozen=True)
class JoinedTable:
    """Tables one below the other, each of them of tables side by side."""

    blocks: tuple[tuple["Table", ...], ...]

    def open(self) -> pa.Table:
        """Joins them; nothing is copied."""
        rows = []
        for first, *others in ([_opened(block) for block in row] for row in self.blocks):
            for other in others:
                for name in other.column_names:
                    first = first.append_column(name, other.column(name))
            rows.append(first)
        return pa.concat_tables(rows, promote_options="default")


Table: TypeAlias = MappedTable | JoinedTable | pa.Table
"""A table by its files, or itself."""


@final
class HuggingFaceSource(Source):
    """Rows of a `datasets.Dataset`."""

    def __init__(
        self, name: str, count: int, leaves: tuple[Leaf, ...], element_spec: Tree, table: Table, order: Table | None
    ) -> None:
        self._name = name
        self._count = count
        self._leaves = leaves
        self.element_spec = element_spec
        self._table = table
        self._order = order

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return self._name

    def describe(self, index: int) -> str:
        """The dataset and the row."""
        return f"{self}[{index}]"

    def open(self) -> "OpenHuggingFaceSource":
        """Maps the files."""
        return OpenHuggingFaceSource(
            self, self._leaves, _opened(self._table), None if self._order is None else _opened(self._order)
        )


@final
class OpenHuggingFaceSource:
    """A `HuggingFaceSource` with its files mapped; they stay so until nobody has it any more."""

    def __init__(
        self, source: HuggingFaceSource, leaves: tuple[Leaf, ...], table: pa.Table, order: pa.Table | None
    ) -> None:
        self._source = source
        _, self._structure = _tree.flatten(source.element_spec)
        self._columns = [Column(leaf, table.column(leaf.path[0]).chunks) for leaf in leaves]
        # What `select`, `shuffle` and `sort` leave behind: for each element its row in the table.
        self._order = None if order is None else Column(_ROW, order.column(0).chunks)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Copies rows, column by column and chunk by chunk."""
        if not len(indices):
            return

        def refuse(leaf: Leaf, place: int, text: str) -> SpecError:
            return SpecError(f"Column {leaf} of {self._source.describe(int(indices[place]))} {text}")

        rows = indices
        if self._order is not None:
            found = np.empty(len(indices), np.uint64)
            self._order.read_into(by_chunk(indices, self._order.ends), found, refuse)
            rows = found.astype(np.int64)
        # Most often the chunks of all columns have the same ends.
        ends, parts = self._columns[0].ends, by_chunk(rows, self._columns[0].ends)
        for column, array in zip(self._columns, _tree.flatten_like(self._structure, out), strict=True):
            if not np.array_equal(ends, column.ends):
                ends, parts = column.ends, by_chunk(rows, column.ends)
            column.read_into(parts, array, refuse)


def from_dataset(dataset: Any) -> HuggingFaceSource:
    """Describes a `datasets.Dataset` by its files.

    Raises:
        ArgumentTypeError: It is several datasets.
        SpecError: It has a transform, or a column that has no spec: of objects, dates, lists of differing shapes, or
            images that are to be decoded.
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
    leaves = {name: _leaves(table.schema.field(name).type, dataset.features[name], (name,)) for name in form["columns"]}
    if not leaves:
        raise SpecError("This dataset of Hugging Face has no columns.")
    flat, structure = _tree.flatten(leaves)
    spec = Spec(tuple(leaf.spec for leaf in flat), structure)
    # There is no public name for the order that `select`, `shuffle` and `sort` leave behind.
    order = dataset._indices
    name = dataset.info.dataset_name or "datasets.Dataset"
    return HuggingFaceSource(
        f"{name}[{dataset.split}]" if dataset.split else name,
        len(dataset),
        tuple(flat),
        spec.tree,
        _by_file(table),
        None if order is None else _by_file(order),
    )


def is_dataset(source: object) -> bool:
    """Whether it is a `datasets.Dataset`, or several in a dict; asked where `datasets` is imported already."""
    import datasets  # not above: a worker process, which has the files alone, does not need it

    return isinstance(source, (datasets.Dataset, datasets.DatasetDict, datasets.IterableDatasetDict))


def _leaves(kind: pa.DataType, feature: Any, path: tuple[str, ...]) -> Tree:
    """The tree of leaves of a column, or of a field of a struct."""
    if hasattr(feature, "decode_example"):  # images, sound: files inside the table; JSON, which is text
        is_file = pa.types.is_struct(kind)
        if feature.decode:
            name = type(feature).__name__
            raise SpecError(
                f"Column {'.'.join(path)} of this dataset is to be decoded as {name}, one element after the other, and "
                "nobody knows its shape ahead. Decode it in map(), which is parallel: from_source(dataset.cast_column("
                f"{path[0]!r}, datasets.{name}(decode=False))) gives {'the bytes of each file' if is_file else 'text'}."
            )
        if is_file:
            return Leaf(path, ArraySpec((), np.dtype("S")), is_file=True)
    if pa.types.is_struct(kind) and not isinstance(kind, pa.BaseExtensionType):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return {field.name: _leaves(field.type, _part(feature, field.name), (*path, field.name)) for field in fields}
    shape: list[int | None] = []
    declared = getattr(kind, "shape", None)  # of Array2D to Array5D
    value = kind
    while (value := getattr(value, "storage_type", value)) and isinstance(
        value, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
    ):
        shape.append(value.list_size if isinstance(value, pa.FixedSizeListType) else None)
        value = value.value_type
    spec_shape = tuple(declared or shape)
    dtype = _dtype(value)
    if dtype is None or None in spec_shape[1:] or (spec_shape and dtype.itemsize == 0):
        raise SpecError(
            f"Column {'.'.join(path)} of this dataset is {kind}, which has no spec here. Numbers have one, and lists "
            "of them of which at most the first axis is of any length, text, and bytes. Use dataset.cast_column() of "
            "Hugging Face, such as to Value('int64'), List(Value('float32'), length=64) or Array2D((None, 3), "
            "'float32'), or dataset.remove_columns()."
        )
    return Leaf(path, ArraySpec(spec_shape, dtype))


def _part(feature: Any, name: str) -> Any:
    return feature.get(name) if isinstance(feature, dict) else None


def _dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.dtype("U")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.dtype("S")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    return None


def _by_file(table: Any) -> Table:
    """A table of `datasets`, by its files where it has some."""
    if hasattr(table, "blocks"):
        return JoinedTable(tuple(tuple(_by_file(block) for block in row) for row in table.blocks))
    if not hasattr(table, "path"):
        return table.table
    # Its metadata, which say what a column means, were read.
    replays = tuple(replay for replay in table.replays if replay[0] != "replace_schema_metadata")
    if any(name in ("cast", "flatten") for name, *_ in replays):  # of which `datasets` has its own
        return table
    return MappedTable(table.path, replays)


def _opened(table: Table) -> pa.Table:
    if isinstance(table, (MappedTable, JoinedTable)):
        return table.open()
    return getattr(table, "table", table)  # what was cast is a table of `datasets`
