"""Datasets of files of records, and the writer of such files."""

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from penstock._constructors import folder_of
from penstock._dataset import Dataset
from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.formats._recordindex import require_local
from penstock.plan._source import Source
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._diskcache import DiskCache

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def from_tfrecord(
    paths: Paths,
    *,
    features: Mapping[str, Any] | Literal["auto"] | None = None,
    defaults: Mapping[str, Any] | None = None,
    compression: Literal["auto", "gzip", "zlib", "bz2", "xz", "zstd"] | None = "auto",
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
        ImportError: `google-crc32c` or `protobuf` is missing (extra `tfrecord`), or `obstore` or `fsspec` for a URL
            (extra `remote`).
        SourceError: A file is missing. While reading: it is damaged or cut off. The message has file, record and byte.
        SpecError: While reading: a record lacks a feature, or has it in another shape. The message has the record.

    Example:
        >>> write_tfrecord("digits.tfrecord", [{"x": np.eye(2, dtype="uint8"), "label": np.int64(i)} for i in range(3)])
        >>> spec = {"x": penstock.ArraySpec((2, 2), "uint8"), "label": penstock.ArraySpec((), "int64")}
        >>> penstock.from_tfrecord("digits.tfrecord", features=spec).batch(3)[0]["label"]
        array([0, 1, 2])
    """
    with needs("from_tfrecord", "google-crc32c", "protobuf"):
        from penstock.formats import tfrecord
    files, folder = _found("from_tfrecord", paths, storage_options, cache, cache_dir)
    source = tfrecord.source(files, features, defaults, compression, check_crc, folder)
    return Dataset(SourceNode(source, "from_tfrecord"))


def from_tar(
    paths: Paths,
    *,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    defaults: Mapping[str, bytes | str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the samples of tar files, one file after the other, in WebDataset's form.

    Consecutive members with one key are a sample. The key of `train/0001.seg.png` is `train/0001`, and its field is
    `seg.png`. An element is a dict of the fields in lower case, uint8 of shape `(None,)`, and of the key as
    `"__key__"`. Decode the fields in `map`.

    Two members of one name in a sample are an error, as in WebDataset (`duplicate file name in tar file`). Each file
    has samples of its own: one key at the end of a file and at the start of the next is two samples, as in open_clip.

    Reads the headers of the first sample, and all headers when the length is first needed. The result is kept in a
    hidden file beside each, or in `$XDG_CACHE_HOME/penstock`, and made again when a file has changed.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 16 bytes a member and its key in each process; 2 MiB and the largest member for each worker.

    Args:
        paths: A path, a pattern (`"train-*.tar"`, `"train-{000..127}.tar"`), a URL (`s3://`, `gs://`, `https://`), or a
            list of these.
        fields: The fields to read; None for those of the first sample. `"jpg;png"` is whichever a sample has, the first
            if it has both; a dict also names it: `{"image": "jpg;png", "text": "txt"}`. Upper and lower case are
            the same. Every sample must have one.
        defaults: What fields have in samples without them, such as `{"txt": b""}`.
        cache_dir: The folder for the results, instead of beside the files.
        storage_options: Options of the client for URLs, as a dict: those of
            [obstore](https://developmentseed.org/obstore) for `s3://`, `gs://`, `az://` and `https://`, such as
            `region`, `endpoint`, `access_key_id` and `skip_signature`; else those of the file system of `fsspec`. None
            for what the environment says. They are in no log, state or pickle.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        SourceError: A file is missing, compressed, damaged or cut off, or has two members of one name in a sample. Or a
            field is a link or sparse, so that its content lies elsewhere. While reading: a sample lacks a field.
            Folders, devices, members without a field in their names, and bytes after the end that are no tar file are
            passed over.

    Example:
        >>> import io, tarfile
        >>> with tarfile.open("two.tar", "w") as tar:
        ...     for name in ("a.txt", "a.cls", "b.txt", "b.cls"):
        ...         member = tarfile.TarInfo(name)
        ...         member.size = 1
        ...         tar.addfile(member, io.BytesIO(b"7"))
        >>> penstock.from_tar("two.tar", fields=["cls"])[1]
        {'__key__': 'b', 'cls': array([55], dtype=uint8)}
        >>> penstock.from_tar("two.tar", fields={"label": "class;cls"})[0]
        {'__key__': 'a', 'label': array([55], dtype=uint8)}
    """
    from penstock.formats import tar

    files, folder = _found("from_tar", paths, storage_options, cache, cache_dir)
    return Dataset(SourceNode(tar.source(files, fields, defaults, folder), "from_tar"))


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
        from penstock.formats import parquet
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
        from penstock.formats import parquet
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
        from penstock.formats import _textarrow, rowtext
    asked = _openfile.asked("from_jsonl", paths)
    files, folder = _found("from_jsonl", asked, storage_options, cache, cache_dir)
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
        from penstock.formats import _textarrow, rowtext
    form = _textarrow.Format("csv", delimiter, quote, None if names is None else tuple(names), encoding)
    asked = _openfile.asked("from_csv", paths)
    files, folder = _found("from_csv", asked, storage_options, cache, cache_dir)
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
    from penstock.formats import lines

    files, folder = _found("from_text", paths, storage_options, cache, cache_dir)
    return Dataset(SourceNode(lines.text_source(files, by, encoding, compression, folder), "from_text"))


def from_etlcdb(
    directory: str | os.PathLike[str], *, part: str | None = None, groups: str | Iterable[str] | None = None
) -> Dataset:
    """Makes a dataset of the handwritten characters of a part of the ETL Character Database, ETL1 to ETL9.

    An element is `(image, label)`. The image is uint8 `(height, width, 1)`, light ink on black. The label is int32, a
    place in `class_names` of the dataset: the existing characters in the order of their code points.

    | part | characters | image | levels |
    |---|---|---|---|
    | `"ETL1"`, `"ETL6"` | katakana, digits, latin, symbols | `(63, 64, 1)` | 16 |
    | `"ETL2"` | printed: kanji, hiragana, katakana, latin, symbols | `(60, 60, 1)` | 64 |
    | `"ETL3"` | digits, latin, symbols | `(76, 72, 1)` | 16 |
    | `"ETL4"`, `"ETL5"` | hiragana; katakana | `(76, 72, 1)` | 16 |
    | `"ETL7"` | hiragana, and the two sound marks | `(63, 64, 1)` | 16 |
    | `"ETL8B"`, `"ETL9B"` | kanji, hiragana | `(63, 64, 1)` | 2 |
    | `"ETL8G"`, `"ETL9G"` | kanji, hiragana | `(127, 128, 1)` | 16 |

    Levels are spread over 0 to 255. Digits and letters are named in their narrow form, and records with the same code
    are one class. Records of ETL8B and ETL9B that hold no character are left out. ETL2 needs the table of its codes,
    `euc_co59.dat`, in the directory too.

    The call examines names and sizes of files, and reads no file. The codes of all records are read when `class_names`,
    an element, or with `groups` the length is first needed. That takes one pass over the files. The result, 4 bytes a
    record, is kept in a hidden file beside each, or in `$XDG_CACHE_HOME/penstock` if that cannot be written.

    Random access: yes. Order: files by name, and the records of each file. In most parts the records of one character
    are neighbours, so shuffle, and split with a seed.
    Memory: 4 bytes an element in each process, 12 with `groups`; 3 MiB for each worker.

    Args:
        directory: The unpacked folder of the database or of one part, with its folders. Files are recognised by their
            names (`ETL1C_01`, `ETL8B2C1`), in upper or lower case. Other files, such as `ETL8INFO`, are ignored.
        part: The part; optional if there is only one.
        groups: The characters: some of `"kanji"`, `"hiragana"`, `"katakana"`, `"digits"`, `"latin"` and `"symbols"`.
            None for all.

    Raises:
        ArgumentError: There is no such part or group, or there are several parts and `part` is None.
        SourceError: There are no such files, or a file is not whole records. While reading: a record has an unknown
            code, or the groups have no character. The message has the file and the record.

    Example:
        >>> record = bytes([0, 1, 0x24, 0x22]) + b"A   " + bytes(504)  # of a blank sheet, after the dummy
        >>> with open("ETL8B2C1", "wb") as file: _ = file.write(bytes(512) + record)
        >>> penstock.from_etlcdb(".").class_names
        ['あ']
    """
    from penstock.formats import etlcdb

    return Dataset(SourceNode(etlcdb.source(directory, part, groups), "from_etlcdb"))


def source_of(dataset: Any, files_in: str | os.PathLike[str] | None = None) -> Source | None:
    """What `from_source` does with objects of modules called `datasets`; None if they are not Hugging Face's."""
    if "datasets.arrow_dataset" not in sys.modules:  # it is another library, or a file of the user's
        return None
    from penstock.formats import huggingface

    if not huggingface.is_dataset(dataset):
        return None
    return huggingface.from_dataset(dataset, folder_of("from_source", files_in))


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
    require_local("write_tfrecord(path)", path)
    if isinstance(elements, Dataset) and elements.length == math.inf:
        raise ArgumentError("write_tfrecord() got an endless dataset. Cut it with take(n).")
    with needs("write_tfrecord", "google-crc32c", "protobuf"):
        from penstock.formats import tfrecord
    tfrecord.write(Path(path), elements, compression)


def _found(
    verb: str, paths: Paths, storage_options: Any, cache: Any, cache_dir: str | os.PathLike[str] | None
) -> tuple[tuple[_openfile.File, ...], str | None]:
    """Returns the files, and the folder for their indexes as an absolute path."""
    if cache_dir is not None:
        require_local(f"{verb}(cache_dir)", cache_dir)
        cache_dir = os.path.abspath(cache_dir)
    return _openfile.find(verb, paths, storage_options, cache), cache_dir
