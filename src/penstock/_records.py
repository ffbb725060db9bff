"""The functions that make datasets of files of records, and write such files."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from penstock._dataset import Dataset
from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.plan._source import SourceNode
from penstock.sources import _openfile

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def from_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, Any] | Literal["auto"] | None = None,
    defaults: Mapping[str, Any] | None = None,
    compression: Literal["auto", "gzip", "zlib"] | None = "auto",
    check_crc: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Makes a dataset of the records of TFRecord files, one file after the other. TensorFlow is not needed.

    An element is the bytes of a record, uint8 of shape `(None,)`; with `features`, which says what the records hold
    as `tf.io.parse_example` does, a dict of arrays:

    | feature is | spec | element |
    |---|---|---|
    | a `float_list` | `float32`, `()`, `(n,)`, `(h, w)` or `(None,)` | its values, in that shape |
    | an `int64_list` | `int64`, the same | its values |
    | a `bytes_list` of one | any dtype of numbers, the same | its bytes, as `np.frombuffer` reads them |
    | a `bytes_list` | `"U"` or `"S"`, `()`, `(n,)` or `(None,)` | text (UTF-8), or byte strings |

    Reads nothing but names and sizes. When the length is first needed, the heads of all records are read, and what
    is found is kept for the next time: in a hidden file beside each file, or where that cannot be written in
    `$XDG_CACHE_HOME/penstock`. It is made anew when a file has changed. Compressed files are decompressed there,
    once, because there is no random access within them: that takes as much disk as their content.

    Random access: yes. Order: that of the paths given, and of the names that a pattern finds.
    Memory: 8 bytes a record in each process; 2 MiB and the largest record for each worker.

    Args:
        paths: A path, a pattern (`"train-*.tfrecord"`), an URL that `fsspec` knows (`s3://`), or a list of these.
        features: Names and `ArraySpec`s, or TensorFlow's `FixedLenFeature`s, `FixedLenSequenceFeature`s and
            `VarLenFeature`s; others are not read. `"auto"`: those of the first record, whose bytes are uint8 of shape
            `(None,)`.
        defaults: Values of features that records may lack.
        compression: `"auto"` finds it out.
        check_crc: False leaves the checksums alone, and finds no flipped bit.
        cache_dir: Where to keep what is found out, instead of beside the files.

    Raises:
        ImportError: `google-crc32c` is missing (extra `tfrecord`), or `fsspec` for an URL (extra `remote`).
        SourceError: A file is not there; later: it is damaged or cut off. File, record and byte are named.
        SpecError: When it is read: a record lacks a feature, or has it in another shape; the record is named.

    Example:
        >>> write_tfrecord("digits.tfrecord", [{"x": np.eye(2, dtype="uint8"), "label": np.int64(i)} for i in range(3)])
        >>> spec = {"x": penstock.ArraySpec((2, 2), "uint8"), "label": penstock.ArraySpec((), "int64")}
        >>> penstock.from_tfrecord("digits.tfrecord", features=spec).batch(3)[0]["label"]
        array([0, 1, 2])
    """
    with needs("from_tfrecord", "tfrecord"):
        from penstock.sources import tfrecord
    _require_local("from_tfrecord(cache_dir)", cache_dir)
    files = _openfile.find("from_tfrecord", paths)
    source = tfrecord.source(files, features, defaults, compression, check_crc, cache_dir)
    return Dataset(SourceNode(source, "from_tfrecord"))


def from_tar(
    paths: Paths,
    *,
    fields: Sequence[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Makes a dataset of the samples of tar files, one file after the other, in WebDataset's form.

    Members that follow one another and have one key are a sample: the key of `train/0001.seg.png` is `train/0001`,
    and `seg.png` its field. An element is a dict of the fields in lower case, uint8 of shape `(None,)`, and of the key
    as `"__key__"`. Decode them in `map`.

    Reads the headers of the first sample, and those of all when the length is first needed; what is found is kept in a
    hidden file beside each, or in `$XDG_CACHE_HOME/penstock`, and made anew when a file has changed.

    Random access: yes. Order: that of the paths given, and of the names that a pattern finds.
    Memory: 16 bytes a member and its key in each process; 2 MiB and the largest member for each worker.

    Args:
        paths: A path, a pattern (`"train-*.tar"`), an URL that `fsspec` knows (`s3://`), or a list of these.
        fields: Those to read; None for those of the first sample. Every sample must have them.
        cache_dir: Where to keep what is found out, instead of beside the files.

    Raises:
        SourceError: A file is not there, compressed, damaged or cut off, or holds links or sparse members; when
            it is read: a sample lacks a field.

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
    source = tar.source(_openfile.find("from_tar", paths), fields, cache_dir)
    return Dataset(SourceNode(source, "from_tar"))


def from_parquet(paths: Paths, *, columns: Sequence[str] | None = None) -> Dataset:
    """Makes a dataset of the rows of Parquet files, one file after the other.

    An element is a dict of the columns: numbers, truth values and times as scalars of the same dtype, lists as arrays
    `(None,)` and those of fixed size `(n,)`, text as text, bytes as uint8 of shape `(None,)`. Nothing is cast.

    Reads the footer of the first file, and those of all when the length is first needed. A row group is the least
    that can be decoded. What was decoded is kept, up to 128 MiB: so much data are decoded once, in any order. Of more,
    in random order over all of them, many row groups are decoded for every batch. So shuffle within a window of a few
    row groups (`shuffle(window=...)`), or `materialize` first.

    Random access: yes. Order: that of the paths given, and of the names that a pattern finds.
    Memory: decoded row groups, 128 MiB of them or two neighbours that are larger, in each process that reads; all
    where they are less. They are part of what a loader projects. With a `memory_limit` less is kept, one at least.

    Args:
        paths: A path, a pattern (`"train-*.parquet"`), an URL that `fsspec` knows (`s3://`), or a list of these.
        columns: Those to read, in this order; None for all.

    Raises:
        ImportError: `pyarrow` is missing (extra `parquet`), or `fsspec` for an URL (extra `remote`).
        SourceError: A file is not there, not of this format, or damaged; when it is read: a value is null. File, row
            group, row and column are named.
        SpecError: A column is a struct, map or decimal; or the files differ.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "name": ["a", "b"]}), "two.parquet")
        >>> penstock.from_parquet("two.parquet")[1]
        {'x': np.float64(1.5), 'name': 'b'}
    """
    with needs("from_parquet", "parquet"):
        from penstock.sources import parquet
    return _table(parquet, "from_parquet", "parquet", paths, columns)


def from_arrow(paths: Paths, *, columns: Sequence[str] | None = None) -> Dataset:
    """Makes a dataset of the rows of Arrow files (Feather, version 2), as `from_parquet` does of Parquet's.

    Files are mapped: of batches that are not compressed only the rows that are read come into memory, and random
    order costs no more than order. Such a file must not be shortened while it is read: the process would die.

    Example:
        >>> import pyarrow, pyarrow.feather
        >>> pyarrow.feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), "three.arrow", compression="uncompressed")
        >>> penstock.from_arrow("three.arrow").batch(2)[0]
        {'x': array([1, 2])}
    """
    with needs("from_arrow", "parquet"):
        from penstock.sources import parquet
    return _table(parquet, "from_arrow", "arrow", paths, columns)


def _table(parquet: Any, verb: str, kind: str, paths: Paths, columns: Sequence[str] | None) -> Dataset:
    files = _openfile.find(verb, paths)
    parquet.require_kind(verb, kind, files)
    return Dataset(SourceNode(parquet.source(verb, kind, files, columns), verb))


def write_tfrecord(
    path: str | os.PathLike[str],
    elements: Iterable[Any],
    *,
    compression: Literal["gzip", "zlib"] | None = None,
) -> None:
    """Writes elements as the records of a TFRecord file, which TensorFlow reads too.

    Bytes, and arrays `(n,)` of uint8, become records as they are; a dict of arrays, numbers, text and bytes becomes a
    `tf.train.Example`: float32 a `float_list`, int64 an `int64_list`, text and byte strings a `bytes_list`. Arrays of
    every other dtype become one byte string of their content, since Examples have no other numbers. So
    `from_tfrecord(path, features=ds.element_spec)` gives back what was written, to the bit.

    The file gets its name when it is complete. Memory: one element.

    Args:
        path: Where to write, on this machine.
        elements: A dataset, or anything that gives elements.
        compression: None, `"gzip"` or `"zlib"`.

    Raises:
        ArgumentError: The dataset is endless, or the path is an URL.
        SpecError: An element is none of these; its number is given.

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
        from penstock.sources import _tfframes
    _tfframes.write(Path(path), elements, compression)


def _require_local(what: str, path: str | os.PathLike[str] | None) -> None:
    """Refuses an URL, in whose place a directory `s3:` would be made here."""
    if isinstance(path, str) and "://" in path:
        raise ArgumentError(f"{what}: {path!r} is an URL, and files are written on this machine. Copy them there then.")
