"""Columns that are names of folders, as Hive, Spark and pyarrow write partitions: `label=3/part-0.parquet`.

Names and values mean what they mean to pyarrow's `HivePartitioning`, which needs the types first: they are URL-encoded,
and int32 if all values of a column are, else text.

Only folders below what the user asked for count, as with `pyarrow.parquet.read_table(base)`: below the fixed folder of
a pattern, or the common folder of a list. A program may live in a folder such as `lr=0.1`, which is no column of its
data.
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from penstock.base._errors import SourceError
from penstock.files._openfile import File, expanded
from penstock.files._remote import is_remote
from penstock.files._store import fixed_folder

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder of rows that have no value."""
Folders = Mapping[str, Any]
"""The columns that the folders of a file hold, each a `pyarrow.Scalar`."""


_PATH: Final = re.compile(r"[^/]*/.*?(?=\?|::|$)")
"""The path of a URL, without its query, and without the archive that the file is in."""


def depth_of(paths: Sequence[str]) -> int:
    """Returns how many folders paths and patterns have in common. Those below it may be columns."""
    fixed = set()
    for each in paths:
        for path in expanded(each.removeprefix("file://").removeprefix("local://")):
            folder = os.path.dirname(path) if os.path.exists(path) else fixed_folder(f"{path}*")
            fixed.add(_parts(f"{folder}/" if is_remote(path) else folder))
    return len(list(itertools.takewhile(lambda names: len({*names}) == 1, zip(*fixed, strict=False))))


def _parts(path: str) -> tuple[str, ...]:
    """The names of the folders in a path or URL, and its last."""
    found = _PATH.match(path) if is_remote(path) else None
    return tuple(filter(None, (found[0] if found else os.path.abspath(path)).split("/")))


def folders_of(files: Sequence[File], depth: int) -> tuple[Folders, ...]:
    """Returns the columns that the folders of each file hold, without the first `depth` folders.

    Raises:
        SourceError: A name is no text in UTF-8.
    """
    found = [_named(file, depth) for file in files]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        values = pa.array([each.get(name) for each in found], pa.string())
        try:
            columns[name] = values.cast(pa.null() if values.null_count == len(values) else pa.int32())
        except pa.ArrowInvalid:
            columns[name] = values
    return tuple({name: columns[name][number] for name in each} for number, each in enumerate(found))


def _named(file: File, depth: int) -> dict[str, str | None]:
    """The values that the folders of a file hold, by name; of several folders of one name the first counts."""
    found: dict[str, str | None] = {}
    for folder in _parts(file.url)[depth:-1]:
        name, is_named, value = folder.partition("=")
        if name and is_named:
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
