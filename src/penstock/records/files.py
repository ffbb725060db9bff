"""Files of any kind: the bytes and the path of each, with or without a label."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError
from penstock.base._printable import printable, without_secrets
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.files import _openfile, _wholefiles
from penstock.files._diskcache import DiskCache
from penstock.files._folder_labels import named_labels
from penstock.files._listing import FileList
from penstock.files._remote import is_remote
from penstock.files._store import StorageOptions
from penstock.files._wholefiles import Bytes, Labels, Objects, OpenWholeFiles, WholeFiles
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode

_NUMBERS: Final = (
    (int, re.compile(r"-?(0|[1-9][0-9]{0,17})")),
    (float, re.compile(r"-?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")),
)
"""Of a number with more digits before the point, such as an identifier, a float would keep the first ones alone."""

Path = str | os.PathLike[str]


def from_files(
    paths: Path | Iterable[Path],
    labels: "npt.ArrayLike | Mapping[Path, Any] | Callable[[str], Any] | Path | None" = None,
    *,
    class_names: Iterable[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of files of any kind, here or behind URLs: sound, films, pictures, text, formats of your own.

    An element is a dict of `"path"`, an absolute path or a URL without secrets, as text, and `"bytes"`, all of the
    file, uint8 of shape `(None,)`; with labels also of `"label"`. Decode the bytes in `map`, by
    `penstock.image.decode(element["bytes"])` or with any library that takes bytes. An error there names the file.

    Opens no file before the first read; of a URL it asks for the size. A file is read when its element is requested, in
    one piece: cut large files before, or read them by a format of their own. `select(["path", "label"])` opens none.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 16 bytes a file and its name, and the labels, shared by worker processes; for each worker the largest file.
    A `memory_limit` refuses a larger one before it is read. A file has less than 4 GiB.

    Args:
        paths: A path, a pattern (`"words/*/*.wav"`; `**` for all folders below), or any iterable of paths. URLs
            (`s3://`, `gs://`, `https://`, `hf://`) are paths too.
        labels: A label for each file:

            - `"inferred"`: its folder, as a class. `ds.class_names` has the names of the folders, sorted, or in the
              order of `class_names`.
            - the path of a CSV file (`"labels.csv"`). Its first row names the columns. Paths are in the first column,
              labels in the one with the name `label`, or in the second of two.
            - a mapping from paths to labels. Here and in a CSV, a path is a whole one or the end of one, from a folder
              or the name of the file on: `"cat/1.wav"`. Others are passed over.
            - a function that gets the path of a file, absolute or a URL, and returns its label
            - numbers or text, shape `(n,)` or `(n, ...)`, in the order of the files
        class_names: The names of the classes, for `ds.class_names`. A text label becomes its place there, int32.
        storage_options: See `from_tar`.
        cache: Keeps files behind URLs on a local disk; see `DiskCache`.

    Raises:
        ArgumentError: There are no paths, a file has no label or several, a label is no class, or URLs and local paths
            are mixed.
        ArgumentTypeError: An item is no path, or labels are Python objects.
        SourceError: A pattern fits no file; the table of labels is missing or no CSV. While reading: a file is missing,
            or too large. The message has the file.

    Example:
        >>> import pathlib
        >>> for name in ("cat/1.txt", "dog/1.txt", "dog/2.txt"):
        ...     path = pathlib.Path("words", name)
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     _ = path.write_text(name)
        >>> ds = penstock.from_files("words/*/*.txt", labels="inferred")
        >>> ds.class_names
        ['cat', 'dog']
        >>> ds.map(lambda element: (len(element["bytes"]), element["label"])).batch(3)[0]
        (array([9, 9, 9]), array([0, 1, 1], dtype=int32))
    """
    verb = "from_files"
    cache = DiskCache.of(verb, cache)
    files, objects, options = _wholefiles.found(verb, paths, storage_options, cache, needs_sizes=True)
    if labels is None:
        if class_names is not None:
            raise ArgumentError(f"{verb}(class_names=...) names labels, and there are none: labels='inferred'.")
        return Dataset(SourceNode(ContentsSource(files, options=options, objects=objects), verb))
    if isinstance(labels, str) and labels == "inferred":
        labels = [os.path.basename(os.path.dirname(_absolute(files, path))) for path in files]
        class_names = sorted(set(labels)) if class_names is None else class_names
    elif isinstance(labels, (str, os.PathLike)):
        if not {".", "/"} & {*os.fspath(labels)}:
            raise ArgumentError(
                f"{verb}(labels={labels!r}): 'inferred', from the folders; the path of a CSV file; a dict or a "
                "function of paths; or a label for each file."
            )
        labels = _by_path(files, *_table(os.fspath(labels), options))
    elif isinstance(labels, Mapping):
        labels = _by_path(files, labels)
    elif callable(labels):
        labels = [labels(_absolute(files, path)) for path in files]
    values, names = named_labels(verb, labels, len(files), class_names)
    return Dataset(SourceNode(ContentsSource(files, Labels(values), names, options, objects), verb))


@final
@dataclass(frozen=True, eq=False)
class ContentsSource(WholeFiles):
    """The bytes of files, with labels if there are any."""

    files: FileList
    labels: Labels | None = None
    classes: tuple[str, ...] | None = None
    options: StorageOptions | None = None
    objects: Objects | None = None
    has_bytes: bool = True

    @property
    def element_spec(self) -> Tree:
        spec: dict[str, Any] = {"path": ArraySpec((), np.dtype("U"))}
        if self.has_bytes:
            spec["bytes"] = ArraySpec((None,), np.dtype(np.uint8))
        return spec if self.labels is None else {**spec, "label": self.labels.element_spec}

    def selected(self, names: Sequence[str]) -> "ContentsSource":
        """Without bytes, no file is opened."""
        return replace(self, has_bytes="bytes" in names)

    def open(self) -> "OpenFilesSource":
        return OpenFilesSource(self)


@final
class OpenFilesSource(OpenWholeFiles):
    """Reads files into memory of their elements."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, one file after the other. Raises as `contents`."""
        source = self._source
        for read in reads:
            outs = dict(zip(source.element_spec, read.arrays, strict=True))
            rows = np.arange(len(outs["path"]))[read.rows]
            if "label" in outs:
                source.labels.read_into(read.indices, outs["label"], rows)
            for row, index in zip(rows.tolist(), read.indices.tolist(), strict=True):
                path = _absolute(source.files, source.describe(index))
                outs["path"][row] = without_secrets(path) if source.is_remote else path
            if "bytes" in outs:
                for row, data in zip(rows.tolist(), self.contents(read.indices), strict=True):
                    outs["bytes"][row] = data

    def _take(self, nbytes: int) -> Bytes:
        """The memory of an element, which belongs to the caller."""
        return np.empty(nbytes, np.uint8)


def _absolute(files: FileList, path: str) -> str:
    return path if is_remote(path) else os.path.normpath(os.path.join(files.base, path))


def _by_path(files: FileList, labels: Mapping[Any, Any], name: str = "from_files(labels=...)") -> list[Any]:
    """Returns the label of each file, whose key is its path or an end of it; the longest such key.

    Raises:
        ArgumentTypeError: A key is no path.
        ArgumentError: A file has no label, or two files have one key.
    """
    if strange := [key for key in labels if not isinstance(key, (str, os.PathLike))]:
        raise ArgumentTypeError(f"from_files(labels=...) has the key {strange[0]!r:.80}, and keys are paths.")
    of = {os.fspath(key).removeprefix("./"): label for key, label in labels.items()}
    values, missing, owners = [], [], dict[str, str]()
    for path in (_absolute(files, each) for each in files):
        parts = path.split("/")
        ends = ("/".join(parts[first:]) for first in range(len(parts)))
        key = next((end for end in ends if end in of), None)
        if key is None:
            missing.append(path)
            continue
        if (other := owners.setdefault(key, path)) != path:
            both = f"{printable(other)} and {printable(path)}"
            raise ArgumentError(f"{name} has one label, of {key!r}, for {both}. Name their folders too.")
        values.append(of[key])
    if missing:
        shown = f"It has paths such as {next(iter(of))!r}, which" if of else "It is empty. Its paths"
        raise ArgumentError(
            f"{name} has no label for {len(missing):,} of {len(files):,} files, such as {printable(missing[0])}. "
            f"{shown} are whole paths, or their ends from a folder or the name on."
        )
    return values


def _table(path: str, options: StorageOptions | None) -> tuple[dict[str, Any], str]:
    """Reads the labels of a CSV file: numbers, if all are, or text. Also returns its name.

    Raises:
        SourceError: It is missing, or no such table. The message has the line.
    """
    (file,) = _openfile.find("from_files(labels=)", path, None if options is None else options.values)
    try:
        text = file.head(file.nbytes).decode("utf-8-sig")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = [name.strip() for name in next(rows, [])]
        column = names.index("label") if "label" in names else 1
        if len(names) < 2 or not column or (len(names) > 2 and "label" not in names):
            raise SourceError(
                f"{file.url} has the columns {names}. Paths are in the first one, labels in the one with the name "
                "'label', or in the second of two. Rename it, or give a dict: labels={path: label, ...}."
            )
        found: dict[str, str] = {}
        for row in rows:
            if len(row) != len(names) and row:
                raise SourceError(f"{file.url} line {rows.line_num} has {len(row)} fields, and {len(names)} columns.")
            if row and found.setdefault(row[0], row[column]) != row[column]:
                raise SourceError(f"{file.url} line {rows.line_num} has another label for {row[0]!r} than one before.")
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{file.url} is no CSV file in UTF-8: {error}.") from error
    for kind, pattern in _NUMBERS:  # `007` and `nan` are text
        if all(pattern.fullmatch(value) for value in found.values()):
            return {key: kind(value) for key, value in found.items()}, file.url
    return dict(found), file.url
