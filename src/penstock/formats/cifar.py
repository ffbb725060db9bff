"""The binary version of CIFAR-10 and CIFAR-100: records of one label or two, and an image in three planes."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from penstock._constructors import concatenate, side_by_side
from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._errors import ArgumentError, SourceError
from penstock.formats.idx import strided
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._openfile import File
from penstock.sources.files import FileSource
from penstock.sources.sparse import read_all

_UINT8: Final = np.dtype(np.uint8)
_PIXELS_NBYTES: Final = 3 * 32 * 32
_LABELS: Final = {"label": 10}, {"coarse_label": 20, "label": 100}
"""The labels of a record of each version, in their order, and the numbers of classes."""


def from_cifar(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Dataset:
    """Makes a dataset of the binary files of CIFAR-10 or CIFAR-100, one file after the other.

    An element is a dict: `"image"`, uint8 `(32, 32, 3)`, and `"label"`, uint8; of CIFAR-100 also `"coarse_label"`. The
    names of the classes are the lines of `batches.meta.txt`, or of `fine_label_names.txt`, beside the files.

    Reads no file: sizes tell which of both it is. Where a size fits both, the labels are read, and tell it.
    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: none of its own; pages of the files show as memory of the process.

    Args:
        paths: A path on this machine, a pattern (`"cifar-10-batches-bin/data_batch_*.bin"`), or a list of these.

    Raises:
        ArgumentError: A path is a URL.
        SourceError: A file is missing, is not whole records, may be either version, or is of the Python version, which
            is a pickle.
        SpecError: While reading: files of both are mixed.

    Example:
        >>> with open("test_batch.bin", "wb") as file: _ = file.write(bytes([3]) + bytes(1024) + bytes([255]) * 2048)
        >>> ds = penstock.from_cifar("test_batch.bin")
        >>> ds[0]["image"][0, 0], ds[0]["label"]
        (array([  0, 255, 255], dtype=uint8), np.uint8(3))
    """
    return concatenate([_rows(file) for file in _openfile.find("from_cifar", paths)])


def _rows(file: File) -> Dataset:
    if not file.is_local:
        raise ArgumentError(f"from_cifar() reads files of this machine, and {file.url} is a URL. Download it: 180 MB.")
    fitting = [labels for labels in _LABELS if file.nbytes and not file.nbytes % (len(labels) + _PIXELS_NBYTES)]
    if len(fitting) > 1:
        fitting = [labels for labels in fitting if _has(file, labels)] or fitting
    if len(fitting) > 1:
        raise SourceError(
            f"{file.url} has {file.nbytes:,} bytes, which are whole records of CIFAR-10 (3,073 bytes) and of CIFAR-100 "
            "(3,074), and its labels tell not which. Write its records into two files, of another size each: "
            f"data = open({file.url!r}, 'rb').read(); open('a.bin', 'wb').write(data[:3073]); "
            "open('b.bin', 'wb').write(data[3073:]), with 3,074 for CIFAR-100."
        )
    if not fitting:
        cause = "It is cut off, or another file: download it again."
        if file.head(1) == b"\x80":
            cause = (
                "It is of the Python version, a pickle, which runs whatever code it contains. Download the binary "
                "version (cifar-10-binary.tar.gz)."
            )
        raise SourceError(
            f"{file.url} has {file.nbytes:,} bytes, which are no whole records of CIFAR-10 (3,073 bytes) or CIFAR-100 "
            f"(3,074). {cause}"
        )
    (labels,) = fitting
    record = len(labels) + _PIXELS_NBYTES
    images = strided(file, len(labels), (file.nbytes // record, 32, 32, 3), _UINT8, (record, 32, 1, 32 * 32))
    tree: dict[str, Any] = {"image": images, **_labels(file, labels)}
    leaves, structure = _tree.flatten(tree)
    return side_by_side("from_cifar", [SourceNode(each, "from_cifar") for each in leaves], structure)


def _labels(file: File, labels: Mapping[str, int]) -> dict[str, FileSource]:
    record = len(labels) + _PIXELS_NBYTES
    return {name: strided(file, at, (file.nbytes // record,), _UINT8, (record,)) for at, name in enumerate(labels)}


def _has(file: File, labels: Mapping[str, int]) -> bool:
    """Whether the labels of all records are classes of a version."""
    return all((read_all(source) < labels[name]).all() for name, source in _labels(file, labels).items())
