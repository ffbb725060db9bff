"""`from_tfrecord`, `from_tar`, `from_etlcdb`, `write_tfrecord`."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.dataset import Dataset
from penstock.files._diskcache import DiskCache
from penstock.files._recordindex import files_and_folder, require_local
from penstock.plan._source_node import SourceNode

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
        from penstock.records import tfrecord
    files, folder = files_and_folder("from_tfrecord", paths, storage_options, cache, cache_dir)
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
    from penstock.records import tar

    files, folder = files_and_folder("from_tar", paths, storage_options, cache, cache_dir)
    return Dataset(SourceNode(tar.source(files, fields, defaults, folder), "from_tar"))


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
    from penstock.records import etlcdb

    return Dataset(SourceNode(etlcdb.source(directory, part, groups), "from_etlcdb"))


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
        from penstock.records import tfrecord
    tfrecord.write(Path(path), elements, compression)
