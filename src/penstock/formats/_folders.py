"""Columns that are names of folders, as Hive, Spark and pyarrow write partitions: `label=3/part-0.parquet`.

Names and values mean what they mean to pyarrow's `HivePartitioning`, which needs the types first: they are URL-encoded,
and int32 if all values of a column are, else text. All folders of a path count, also of a single file: a dataset of one
folder has the columns of one of all folders.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from penstock.base._errors import SourceError
from penstock.sources._openfile import File

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder of rows that have no value."""
Folders = Mapping[str, Any]
"""The columns that the folders of a file hold, each a `pyarrow.Scalar`."""


def folders_of(files: Sequence[File]) -> tuple[Folders, ...]:
    """Returns the columns that the folders of each file hold.

    Raises:
        SourceError: A name is no text in UTF-8.
    """
    found = [_named(file) for file in files]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        values = pa.array([each.get(name) for each in found], pa.string())
        try:
            columns[name] = values.cast(pa.null() if values.null_count == len(values) else pa.int32())
        except pa.ArrowInvalid:
            columns[name] = values
    return tuple({name: columns[name][number] for name in each} for number, each in enumerate(found))


def _named(file: File) -> dict[str, str | None]:
    """The values that the folders of a file hold, by name; of several folders of one name the first counts."""
    found: dict[str, str | None] = {}
    for folder in os.path.dirname(file.url.partition("?")[0]).split("/"):
        name, is_named, value = folder.partition("=")
        if is_named:
            try:
                name, value = unquote(name, errors="strict"), unquote(value, errors="strict")
            except UnicodeDecodeError as error:
                raise SourceError(f"{file.url}: the folder {folder} is a column whose value is no UTF-8.") from error
            found.setdefault(name, None if value == NULL else value)
    return found


def with_folders(batch: Any, folders: Folders) -> Any:
    """Returns a record batch with the columns of folders that it lacks. A column in the file counts more."""
    names = [name for name in folders if name not in batch.schema.names]
    if not names:
        return batch
    columns = [*batch.columns, *(_repeated(folders[name], batch.num_rows) for name in names)]
    return pa.record_batch(columns, [*batch.schema.names, *names])


def _repeated(value: Any, count: int) -> Any:
    """A column of one value. Text is in memory once."""
    if not value.is_valid:
        return pa.nulls(count, value.type)
    if value.type != pa.string():
        return pa.repeat(value, count)
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([value.as_py()]))
