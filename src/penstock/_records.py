"""Datasets of files of records, and the writer of such files."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from penstock._dataset import Dataset
from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._diskcache import DiskCache

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def from_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, Any] | Literal["auto"] | None = None,
    defaults: Mapping[str, Any] | None = None,
    compression: Literal["auto", "gzip", "zlib"] | None = "auto",
    check_crc: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the records of TFRecord files, one file after the other. TensorFlow is not needed.

    An element is the bytes of a record, uint8 of shape `(None,)`. With `features`, which describes the records as in
    `tf.io.parse_example`, it is a dict of arrays:

    | feature is | spec | element |
    |---|---|---|
    | a `float_list` | `float32`, `()`, `(n,)`, `(h, w)` or `(None,)` | its values, in that shape |
    | an `int64_list` | `int64`, the same | its values |
    | a `bytes_list` of one | any dtype of numbers, the same | its bytes, as `np.frombuffer` reads them |
    | a `bytes_list` | `"U"` or `"S"`, `()`, `(n,)` or `(None,)` | text (UTF-8), or byte strings |

    The call examines names and sizes. When the length is first needed, the heads of all records are read. The result
    is kept in a hidden file beside each file, or in `$XDG_CACHE_HOME/penstock` if that cannot be written. It is made
    again when a file has changed. Compressed files have no random access, so they are decompressed there once, which
    takes as much disk as their content.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 8 bytes a record in each process; 2 MiB and the largest record for each worker.

    Args:
        paths: A path, a pattern (`"train-*.tfrecord"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        features: Names and `ArraySpec`s, or TensorFlow's `FixedLenFeature`s, `FixedLenSequenceFeature`s and
            `VarLenFeature`s; other features are not read. `"auto"`: those of the first record, with bytes as uint8 of
            shape `(None,)`.
        defaults: Values of features that records may lack.
        compression: `"auto"` detects it.
        check_crc: False skips the checksums, and finds no flipped bit.
        cache_dir: The folder for the results, instead of beside the files.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ImportError: `google-crc32c` is missing (extra `tfrecord`), or `obstore` or `fsspec` for a URL (extra `remote`).
        SourceError: A file is missing. While reading: it is damaged or cut off. The message has file, record and byte.
        SpecError: While reading: a record lacks a feature, or has it in another shape. The message has the record.

    Example:
        >>> write_tfrecord("digits.tfrecord", [{"x": np.eye(2, dtype="uint8"), "label": np.int64(i)} for i in range(3)])
        >>> spec = {"x": penstock.ArraySpec((2, 2), "uint8"), "label": penstock.ArraySpec((), "int64")}
        >>> penstock.from_tfrecord("digits.tfrecord", features=spec).batch(3)[0]["label"]
        array([0, 1, 2])
    """
    with needs("from_tfrecord", "tfrecord"):
        from penstock.sources import tfrecord
    _require_local("from_tfrecord(cache_dir)", cache_dir)
    files = _openfile.find("from_tfrecord", paths, storage_options, cache)
    source = tfrecord.source(files, features, defaults, compression, check_crc, cache_dir)
    return Dataset(SourceNode(source, "from_tfrecord"))


def from_tar(
    paths: Paths,
    *,
    fields: Sequence[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the samples of tar files, one file after the other, in WebDataset's form.

    Consecutive members with one key are a sample. The key of `train/0001.seg.png` is `train/0001`, and its field is
    `seg.png`. An element is a dict of the fields in lower case, uint8 of shape `(None,)`, and of the key as
    `"__key__"`. Decode the fields in `map`.

    Reads the headers of the first sample, and all headers when the length is first needed. The result is kept in a
    hidden file beside each, or in `$XDG_CACHE_HOME/penstock`, and made again when a file has changed.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 16 bytes a member and its key in each process; 2 MiB and the largest member for each worker.

    Args:
        paths: A path, a pattern (`"train-*.tar"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        fields: The fields to read; None for those of the first sample. Every sample must have them.
        cache_dir: The folder for the results, instead of beside the files.
        storage_options: Options of the client for URLs, as a dict: those of
            [obstore](https://developmentseed.org/obstore) for `s3://`, `gs://`, `az://` and `https://`, such as
            `region`, `endpoint`, `access_key_id` and `skip_signature`; else those of the file system of `fsspec`. None
            for what the environment says. They are in no log, state or pickle.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        SourceError: A file is missing, compressed, damaged or cut off, or has links or sparse members. While reading:
            a sample lacks a field.

    Example:
        >>> import io, tarfile
        >>> with tarfile.open("two.tar", "w") as tar:
        ...     for name in ("a.txt", "a.cls", "b.txt", "b.cls"):
        ...         member = tarfile.TarInfo(name)
        ...         member.size = 1
        ...         tar.addfile(member, io.BytesIO(b"7"))
        >>> penstock.from_tar("two.tar", fields=["cls"])[1]
        {'__key__': 'b', 'cls': array([55], dtype=uint8)}
    """
    from penstock.sources import tar

    _require_local("from_tar(cache_dir)", cache_dir)
    source = tar.source(_openfile.find("from_tar", paths, storage_options, cache), fields, cache_dir)
    return Dataset(SourceNode(source, "from_tar"))


def from_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the rows of Parquet files, one file after the other.

    An element is a dict of the columns: numbers, truth values and times as scalars of the same dtype, lists as arrays
    `(None,)` and those of fixed size `(n,)`, text as text, bytes as uint8 of shape `(None,)`. Nothing is cast.

    Reads the footer of the first file, and all footers when the length is first needed. A row group is the smallest
    unit of decoding. Up to 128 MiB of decoded row groups are kept, so smaller data are decoded once, in any order. A
    random order over larger data decodes many row groups for every batch. So shuffle within a window of a few row
    groups (`shuffle(window=...)`), or `materialize` first.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: in each process that reads, 128 MiB of decoded row groups, or two larger neighbours. They are part of the
    projected memory. With a `memory_limit` fewer are kept, at least one.

    Args:
        paths: A path, a pattern (`"train-*.parquet"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        columns: The columns to read, in this order; None for all.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ImportError: `pyarrow` is missing (extra `parquet`), or `obstore` or `fsspec` for a URL (extra `remote`).
        SourceError: A file is missing, has another format, or is damaged. While reading: a value is null. The message
            has the file, row group, row and column.
        SpecError: A column is a struct, map or decimal; or the files differ.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "name": ["a", "b"]}), "two.parquet")
        >>> penstock.from_parquet("two.parquet")[1]
        {'x': np.float64(1.5), 'name': 'b'}
    """
    with needs("from_parquet", "parquet"):
        from penstock.sources import parquet
    return _table(parquet, "from_parquet", "parquet", paths, columns, storage_options, cache)


def from_arrow(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the rows of Arrow files (Feather, version 2), like `from_parquet`.

    Files are mapped. Only the requested rows of uncompressed batches come into memory, and random order costs no more
    than order. Such a file must not be shortened while it is read: the process would die.

    Example:
        >>> import pyarrow, pyarrow.feather
        >>> pyarrow.feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), "three.arrow", compression="uncompressed")
        >>> penstock.from_arrow("three.arrow").batch(2)[0]
        {'x': array([1, 2])}
    """
    with needs("from_arrow", "parquet"):
        from penstock.sources import parquet
    return _table(parquet, "from_arrow", "arrow", paths, columns, storage_options, cache)


def _table(
    parquet: Any, verb: str, kind: str, paths: Paths, columns: Sequence[str] | None, storage_options: Any, cache: Any
) -> Dataset:
    files = _openfile.find(verb, paths, storage_options, cache)
    parquet.require_kind(verb, kind, files)
    return Dataset(SourceNode(parquet.source(verb, kind, files, columns), verb))


def write_tfrecord(
    path: str | os.PathLike[str],
    elements: Iterable[Any],
    *,
    compression: Literal["gzip", "zlib"] | None = None,
) -> None:
    """Writes elements as the records of a TFRecord file, which TensorFlow reads too.

    Bytes, and arrays `(n,)` of uint8, become records as they are. A dict of arrays, numbers, text and bytes becomes a
    `tf.train.Example`: float32 a `float_list`, int64 an `int64_list`, text and byte strings a `bytes_list`. Arrays of
    other dtypes become one byte string of their content, because Examples have no other numbers. So
    `from_tfrecord(path, features=ds.element_spec)` reads the same elements, to the bit.

    The file gets its name when it is complete. Memory: one element.

    Args:
        path: A path on this machine.
        elements: A dataset, or any iterable of elements.
        compression: None, `"gzip"` or `"zlib"`.

    Raises:
        ArgumentError: The dataset is endless, or the path is a URL.
        SpecError: An element is none of these. The message has its number.

    Example:
        >>> write_tfrecord("squares.tfrecord", penstock.range(5).map(lambda i: {"i": i, "square": i * i}))
        >>> penstock.from_tfrecord("squares.tfrecord", features="auto")[3]
        {'i': np.int64(3), 'square': np.int64(9)}
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"write_tfrecord() needs a path, got {no_path(path)}")
    _require_local("write_tfrecord(path)", path)
    if isinstance(elements, Dataset) and elements.length == math.inf:
        raise ArgumentError("write_tfrecord() got an endless dataset. Cut it with take(n).")
    with needs("write_tfrecord", "tfrecord"):
        from penstock.sources import tfrecord
    tfrecord.write(Path(path), elements, compression)


def _require_local(what: str, path: str | os.PathLike[str] | None) -> None:
    """Refuses a URL, which would create a directory `s3:` here."""
    if isinstance(path, str) and "://" in path:
        raise ArgumentError(f"{what}: {path!r} is an URL, and files are written on this machine. Copy them there then.")
