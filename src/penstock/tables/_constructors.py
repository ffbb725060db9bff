"""`from_parquet`, `from_arrow`, `from_csv`, `from_jsonl`, `from_text`; and datasets of Hugging Face."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock.base._arguments import needs
from penstock.dataset import Dataset
from penstock.files import _openfile
from penstock.files._diskcache import DiskCache
from penstock.files._recordindex import files_and_folder
from penstock.files._several import folder_of
from penstock.plan._source import Source
from penstock.plan._source_node import SourceNode

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def from_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill_null: Any = None,
    null_masks: Sequence[str] = (),
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the rows of Parquet files, one file after the other.

    An element is a dict of the columns: numbers, truth values and times as scalars of the same dtype, lists as arrays
    `(None,)` and those of fixed size `(n,)`, text as text, bytes as uint8 of shape `(None,)`. A list of lists is an
    array `(None, None)`, so its lists are as long as each other in each row. A struct is a dict of its fields, and a
    list of structs is a dict of lists.

    The types are the least that hold the columns of all files, as float64 holds int64; a column that a file lacks is
    null there. The log has one line about files that differ. Nothing else is cast, except by `dtypes`.

    Folders named `label=3` are columns too, as Hive, Spark and pyarrow write them: int32, or text if a value is no
    integer. Only folders below the fixed part of a pattern count, as in `"h/**/*.parquet"`, or below the folder that
    all paths of a list have in common; a single file has none. A column in the file counts more than a folder of its
    name.

    The call reads the footers of all files. A row group is the smallest unit of decoding. Up to 128 MiB of decoded row
    groups are kept, so smaller data are decoded once, in any order. A random order over larger data decodes many row
    groups for every batch. So shuffle within a window of a few row groups (`shuffle(window=...)`), or `materialize`
    first.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: in each process that reads, 128 MiB of decoded row groups, or two larger neighbours. They are part of the
    projected memory. With a `memory_limit` fewer are kept, at least one.

    Args:
        paths: A path, a pattern (`"train-*.parquet"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        columns: The columns to read, in this order; None for all.
        dtypes: Dtypes of columns, such as `{"price": "float64", "address.zip": "U"}`; of a list, that of its values.
            They are needed for decimals (as floats, integers or `"U"`, text) and for times of a day (as numbers,
            durations or text), which NumPy has no dtype for. Numbers of times and durations count the finest unit of
            all files, such as microseconds since 1970. Floats may be rounded. A value that the dtype cannot hold is an
            error: a number that would be infinite, a time beyond the years of its unit, a day that would lose its time.
            Times of 12 bytes, as Spark and Impala write them, are `M8[ns]`, which ends in 2262: name `"M8[us]"`.
        fill_null: What stands in for nulls: a value for all columns that can hold it, or a dict of one for each
            column, such as `{"age": -1, "address.city": ""}`. In lists it stands in for their values, and a list that
            is null becomes an empty one. None makes a null an error.
        null_masks: Names of columns. Beside each there is another leaf, such as `"age_is_null"`: a bool, True where the
            column is null. What stands in for nulls is then 0 or empty text, unless `fill_null` says otherwise.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ImportError: `pyarrow` is missing (extra `parquet`), or `obstore` or `fsspec` for a URL (extra `remote`).
        SourceError: A file is missing, has another format, or is damaged; or a column is encrypted. While reading: a
            value is null, is no text in UTF-8, or does not fit its dtype. The message has the file, row group, row and
            column.
        ArgumentError: A name is no column.
        SpecError: A column is a map, or a decimal without a dtype; or all of it is null and nothing stands in for it;
            or cannot hold its `fill_null`; or no type holds that of all files.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "name": ["a", "b"]}), "two.parquet")
        >>> penstock.from_parquet("two.parquet")[1]
        {'x': np.float64(1.5), 'name': 'b'}
        >>> pyarrow.parquet.write_table(pyarrow.table({"age": [7, None]}), "gap.parquet")
        >>> penstock.from_parquet("gap.parquet", fill_null=-1, null_masks=["age"])[1]
        {'age': np.int64(-1), 'age_is_null': np.True_}
    """
    with needs("from_parquet", "pyarrow"):
        from penstock.tables import parquet
    asked = _openfile.asked("from_parquet", paths)
    files = _openfile.find("from_parquet", asked, storage_options, cache)
    source = parquet.source("parquet", files, asked, columns, dtypes, fill_null, null_masks)
    return Dataset(SourceNode(source, "from_parquet"))


def from_arrow(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill_null: Any = None,
    null_masks: Sequence[str] = (),
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the rows of Arrow files (Feather, version 2), like `from_parquet`.

    Files are mapped. Only the requested rows of uncompressed batches come into memory, and random order costs no more
    than order. A file that is shortened or replaced while it is read is an error that names it.

    Example:
        >>> import pyarrow, pyarrow.feather
        >>> pyarrow.feather.write_feather(pyarrow.table({"x": [1, 2, 3]}), "three.arrow", compression="uncompressed")
        >>> penstock.from_arrow("three.arrow").batch(2)[0]
        {'x': array([1, 2])}
    """
    with needs("from_arrow", "pyarrow"):
        from penstock.tables import parquet
    asked = _openfile.asked("from_arrow", paths)
    files = _openfile.find("from_arrow", asked, storage_options, cache)
    source = parquet.source("arrow", files, asked, columns, dtypes, fill_null, null_masks)
    return Dataset(SourceNode(source, "from_arrow"))


def from_jsonl(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill_null: Any = None,
    null_masks: Sequence[str] = (),
    encoding: str = "utf-8",
    compression: Literal["auto", "gzip", "zlib", "bz2", "xz", "zstd"] | None = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    r"""Makes a dataset of the lines of JSON Lines files, one file after the other. Each line is a JSON object.

    An element is a dict of its values: numbers as int64 or float64, truth values, text, lists as arrays `(None,)`. An
    object in it is a dict, and a list of objects is a dict of lists. Text that looks like a time stays text. Blank
    lines are left out. A list of lists is an array `(None, None)`, so its lists are as long as each other in each line.
    A line has at most 16 MiB, as a record of `from_csv`.

    The types are the least that hold all lines of all files: numbers are float64 if one of them has a point, and values
    that differ in kind, such as numbers and text, are text. A key that a line or a file lacks is null there. Integers
    beyond 2**53 that float64 would round have no common type with floats, and integers of 2**63 and more none at all:
    name one by `dtypes`. The log has one line about files that differ.

    The text is converted once, by DuckDB: when the spec, the length or an element is first needed, and at once if the
    files have below 1 MiB. The result is an Arrow file beside the first file, or in `$XDG_CACHE_HOME/penstock` if that
    folder cannot be written. It is read as by `from_arrow`, and made again when a file has changed. It takes about as
    much disk as the text; the log and `print(ds)` say how much. Other `columns`, `dtypes` or nulls are another file.
    What is compressed, behind a URL or not in UTF-8 is written to a temporary file meanwhile. A line that cannot be
    converted is an error for all elements. Without room for the result use `from_text(paths).map(json.loads)`.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: as `from_arrow`, and 8 bytes a line for each column of text. During the conversion some 500 MiB.

    Args:
        paths: A path, a pattern (`"train-*.jsonl"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        columns: The keys to read, in this order; None for all.
        dtypes: Dtypes of columns in place of those found, such as `{"score": "float32"}`; `"U"` is text. Of a list, the
            dtype of its values.
        fill_null: What stands in for nulls and for missing keys, as for `from_parquet`.
        null_masks: As for `from_parquet`.
        encoding: As for `open`.
        compression: `"auto"` detects gzip, bzip2, xz and Zstandard by the first bytes of a file.
        cache_dir: The folder for the result, instead of beside the files.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ImportError: `duckdb` or `pyarrow` is missing (extra `text`), or `obstore` or `fsspec` for a URL (extra
            `remote`).
        SourceError: A file is missing; or, at the conversion, a line is no JSON object, is no text in this encoding, or
            has a value that its dtype cannot hold. The message has the file, and the line or the row. While reading: a
            value is null.
        SpecError: All values of a column are null and nothing stands in for them, or no array holds it. The message has
            the file.

    Example:
        >>> with open("two.jsonl", "w") as file:
        ...     print('{"text": "one", "ids": [1, 2]}', '{"text": "two", "ids": []}', sep="\n", file=file)
        >>> penstock.from_jsonl("two.jsonl")[0]
        {'text': 'one', 'ids': array([1, 2])}
    """
    with needs("from_jsonl", "duckdb", "pyarrow"):
        from penstock.tables import _textarrow, rowtext
    asked = _openfile.asked("from_jsonl", paths)
    files, folder = files_and_folder("from_jsonl", asked, storage_options, cache, cache_dir)
    form = _textarrow.Format("jsonl", encoding=encoding)
    source = rowtext.source(form, files, asked, columns, dtypes, fill_null, null_masks, compression, folder)
    return Dataset(SourceNode(source, "from_jsonl"))


def from_csv(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quote: str = '"',
    dtypes: Mapping[str, Any] | None = None,
    fill_null: Any = None,
    null_masks: Sequence[str] = (),
    encoding: str = "utf-8",
    compression: Literal["auto", "gzip", "zlib", "bz2", "xz", "zstd"] | None = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    r"""Makes a dataset of the rows of CSV files, one file after the other, without their headers.

    An element is a dict of the columns: numbers as int64 or float64, truth values (`true`, `false`), dates and times
    as in ISO 8601, else text. Numbers with leading zeros are text. A field in quotes may have delimiters and ends of
    lines. A line ends in LF, CR LF or CR, and all lines of a file in the same. Blank lines are left out. An empty
    field, `NA` or `null` is null, but text stays as it is. A row has as many fields as the header.

    Conversion, types, random access, order and memory: as `from_jsonl`. Headers may differ: columns are read by their
    names.

    Args:
        paths: A path, a pattern (`"train-*.csv"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        columns: The columns to read, in this order; None for all.
        names: The names of the columns of files without a header. None for the first row of each file.
        delimiter: The character between fields.
        quote: The character around fields; empty if none has a meaning.
        dtypes: Dtypes of columns in place of those found, such as `{"zip": "U"}`; `"U"` is text.
        fill_null: As for `from_parquet`.
        null_masks: As for `from_parquet`.
        encoding: As for `open`.
        compression: `"auto"` detects gzip, bzip2, xz and Zstandard by the first bytes of a file.
        cache_dir: As for `from_jsonl`.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ImportError, SourceError: As `from_jsonl`.
        SpecError: As `from_jsonl`.

    Example:
        >>> with open("two.csv", "w") as file:
        ...     print("name,size", '"a, b",1', "c,2", sep="\n", file=file)
        >>> penstock.from_csv("two.csv")[0]
        {'name': 'a, b', 'size': np.int64(1)}
    """
    with needs("from_csv", "duckdb", "pyarrow"):
        from penstock.tables import _textarrow, rowtext
    form = _textarrow.Format("csv", delimiter, quote, None if names is None else tuple(names), encoding)
    asked = _openfile.asked("from_csv", paths)
    files, folder = files_and_folder("from_csv", asked, storage_options, cache, cache_dir)
    source = rowtext.source(form, files, asked, columns, dtypes, fill_null, null_masks, compression, folder)
    return Dataset(SourceNode(source, "from_csv"))


def from_text(
    paths: Paths,
    *,
    by: Literal["line", "file"] = "line",
    encoding: str = "utf-8",
    compression: Literal["auto", "gzip", "zlib", "bz2", "xz", "zstd"] | None = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    r"""Makes a dataset of the lines of text files, or of whole files, one after the other.

    An element is text of any size. A line comes without its end; a blank line is empty text.

    When the length is first needed, all lines are looked for. The result is kept as by `from_tfrecord`, and compressed
    files are decompressed as there.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 8 bytes a line in each process; 2 MiB and the largest line or file for each worker.

    Args:
        paths: A path, a pattern (`"train-*.txt"`), a URL (`s3://`, `gs://`, `https://`), or a list of these.
        by: `"line"`, or `"file"` for one element a file.
        encoding: As for `open`. Where lines cannot be found in it, as in UTF-16, the text is written again in UTF-8, as
            compressed files are decompressed.
        compression: `"auto"` detects gzip, bzip2, xz and Zstandard by the first bytes of a file.
        cache_dir: The folder for the results, instead of beside the files.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ArgumentError: Python knows no such encoding.
        SourceError: A file is missing. While reading: bytes are no text in this encoding. The message has the file, the
            number of the line and the column.

    Example:
        >>> with open("two.txt", "w") as file:
        ...     print("first", "second", sep="\n", file=file)
        >>> list(penstock.from_text("two.txt"))
        ['first', 'second']
    """
    from penstock.tables import lines

    files, folder = files_and_folder("from_text", paths, storage_options, cache, cache_dir)
    return Dataset(SourceNode(lines.text_source(files, by, encoding, compression, folder), "from_text"))


def source_of(dataset: Any, files_in: str | os.PathLike[str] | None = None) -> Source | None:
    """What `from_source` does with objects of modules called `datasets`; None if they are not Hugging Face's."""
    if "datasets.arrow_dataset" not in sys.modules:  # it is another library, or a file of the user's
        return None
    from penstock.tables import huggingface

    if not huggingface.is_dataset(dataset):
        return None
    return huggingface.from_dataset(dataset, folder_of("from_source", files_in))
