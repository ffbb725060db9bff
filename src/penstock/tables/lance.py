"""Lance datasets, by the library `lance` (pylance): rows by number, of one version.

A version is a manifest, a list of data files that never change. So a source is the URI, the number of a version, and a
checksum of its list. Each process opens it again: the library has threads of its own, and does not survive a fork.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, no_path
from penstock.base._printable import printable
from penstock.dataset import Dataset
from penstock.files._remote import is_remote
from penstock.memory._rows import positions_of
from penstock.plan._source import Read, Source
from penstock.plan._source_node import SourceNode
from penstock.tables._columns import RowError, require_valid
from penstock.tables._leaves import Dtypes, Leaf, Nulls, Tabular, chosen, decoded, leaves_of, names_in

_VERB: Final = "from_lance"


def from_lance(
    uri: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    version: int | str | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill_null: Any = None,
    null_masks: Sequence[str] = (),
) -> Dataset:
    """Makes a dataset of the rows of a Lance dataset, by random access.

    An element is a dict of the columns, as of `from_parquet`: numbers, times, text, bytes (uint8 of any size), lists as
    arrays, structs as dicts. Embeddings, which are lists of a fixed size, are arrays of that shape.

    The version is pinned when the dataset is made: rows that are written, changed or deleted later are not seen, and
    the state of a loader holds for this version. If it is cleaned up, or made anew, reading is an error.

    Random access: yes; a batch, or the part of one that a worker reads, is one `take` of the library. Order: that of
    the rows in Lance. Memory: what the library keeps (metadata), and the rows of a read three times.

    Args:
        uri: The folder, or a URL that Lance knows (`s3://`, `gs://`, `az://`), with the credentials of the environment.
        columns: The columns to read, in this order; None for all.
        version: The number or tag of a version; None for the latest.
        dtypes: As for `from_parquet`.
        fill_null: As for `from_parquet`.
        null_masks: As for `from_parquet`.

    Raises:
        ImportError: `lance` is missing (extra `lance`).
        SourceError: There is no such dataset or version, or it is damaged. While reading: a file is missing or damaged,
            or a value is null. The message has the dataset and the row.
        SpecError: No array holds the values of a column.

    Example:
        >>> import lance, pyarrow
        >>> table = pyarrow.table({"word": ["one", "two", "three"], "size": [3, 3, 5]})
        >>> _ = lance.write_dataset(table, "words.lance")
        >>> penstock.from_lance("words.lance")[2]
        {'word': 'three', 'size': np.int64(5)}
    """
    if not isinstance(uri, (str, os.PathLike)):
        raise ArgumentTypeError(f"{_VERB}() needs the folder or URL of one Lance dataset, got {no_path(uri)}")
    if isinstance(version, bool) or not isinstance(version, int | str | None):
        raise ArgumentTypeError(f"{_VERB}(version=) is a number or a tag, got {version!r}.")
    names = None if columns is None else names_in(_VERB, "columns", columns)
    nulls, types = Nulls.of(_VERB, fill_null, null_masks), Dtypes.of(_VERB, dtypes)
    with needs(_VERB, "pylance", "pyarrow"):
        import lance  # noqa: F401
    place = os.fspath(uri).removeprefix("file://")
    place = place if is_remote(place) else os.path.abspath(place)
    dataset = _opened(place, version)
    with _reading(f"{printable(place)}, version {dataset.version},"):
        if not dataset.schema.names:
            raise ValueError("it has no columns")
        count, schema = dataset.count_rows(), dataset.schema.serialize().to_pybytes()
    source = LanceSource(place, dataset.version, _state_of(place, dataset), count, schema, names, nulls, types)
    assert source.leaves  # refuses a column without a spec
    return Dataset(SourceNode(source, _VERB))


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turns errors of the library into ours.

    Raises:
        SourceError: The library cannot read it.
    """
    try:
        yield
    except PenstockError:
        raise
    except BaseException as error:
        # A panic of Rust code, as for damaged files, is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise SourceError(f"{what} cannot be read by Lance: {error}. It is missing, or damaged.") from error


def _opened(uri: str, version: int | str | None) -> Any:
    import lance

    with _reading(printable(uri) + (f", version {version!r}," if version is not None else "")):
        return lance.dataset(uri, version=version)


def _state_of(uri: str, dataset: Any) -> str:
    """Returns a checksum of the list of data files of a version. Their names are unique."""
    with _reading(printable(uri)):
        facts = [repr(each.metadata.to_json()) for each in dataset.get_fragments()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@final
@dataclass(frozen=True)
class LanceSource(Tabular, Source):
    """The rows of a version of a Lance dataset."""

    uri: str
    version: int
    state: str
    """See `_state_of`."""
    count: int
    schema: bytes
    """That of all columns, as Arrow sends it."""
    columns: tuple[str, ...] | None
    nulls: Nulls
    dtypes: Dtypes

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # depends on the URI
        return is_remote(self.uri)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        schema, where = pa.ipc.read_schema(pa.py_buffer(self.schema)), printable(self.uri)
        self.dtypes.require(_VERB, where, schema.names)
        names = chosen(_VERB, "columns", self.columns, where, schema.names)
        if not names:
            raise ArgumentError(f"{_VERB}() needs at least one column of {where}.")
        types = {name: self.dtypes.applied(name, schema.field(name).type) for name in names}
        return leaves_of(_VERB, where, types, self.nulls, self.dtypes)

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        return os.path.basename(printable(self.uri).rstrip("/"))

    def describe(self, index: int) -> str:
        return f"{printable(self.uri)} row {index}"

    def open(self) -> "OpenLanceSource":
        return OpenLanceSource(self)


@final
class OpenLanceSource:
    """Reads rows. The library takes calls of several threads at once."""

    def __init__(self, source: LanceSource) -> None:
        self._source = source
        self._names = list(dict.fromkeys(leaf.origin[0] for leaf in source.leaves))
        self._dataset = _opened(source.uri, source.version)
        if _state_of(source.uri, self._dataset) != source.state:
            raise SourceError(
                f"{printable(source.uri)}, version {source.version}, has other files than when the dataset was made. "
                "It was written anew: make the dataset again."
            )

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests by one call of the library.

        Raises:
            SourceError: A file is missing or damaged, or a value is null. The message has the row.
        """
        indices = np.concatenate([read.indices for read in reads]) if reads else np.empty(0, np.int64)
        if not len(indices):
            return
        source = self._source
        with _reading(f"{printable(source.uri)}, rows {indices.min():,} to {indices.max():,},"):
            table = self._dataset.take(indices.tolist(), columns=self._names).combine_chunks()
            if table.num_rows != len(indices):
                raise ValueError(f"{table.num_rows:,} rows came of {len(indices):,}")
            (batch,) = table.to_batches()
            for column in batch.columns:
                require_valid(column)
        for place, leaf in enumerate(source.leaves):
            first = 0
            try:
                column = decoded(batch, leaf)
                for read in reads:
                    count, array = len(read.indices), read.arrays[place]
                    column.put(np.arange(first, first + count), array, positions_of(read.rows, len(array)))
                    first += count
            except RowError as error:
                error.column = leaf.name
                raise error.at(source.describe(int(indices[first + error.row]))) from None

    def close(self) -> None:
        self._dataset = None
