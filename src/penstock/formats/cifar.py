"""The binary version of CIFAR-10 and CIFAR-100: records of one label or two, and an image in three planes."""

import os
from collections.abc import Iterable
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

_PIXELS_NBYTES: Final = 3 * 32 * 32
_LABELS: Final = {_PIXELS_NBYTES + 1: ("label",), _PIXELS_NBYTES + 2: ("coarse_label", "label")}
"""The labels of a record by its bytes, in their order."""


def from_cifar(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Dataset:
    """Makes a dataset of the binary files of CIFAR-10 or CIFAR-100, one file after the other.

    An element is a dict: `"image"`, uint8 `(32, 32, 3)`, and `"label"`, uint8; of CIFAR-100 also `"coarse_label"`. The
    names of the classes are the lines of `batches.meta.txt`, or of `fine_label_names.txt`, beside the files.

    Reads no file: sizes tell which of both it is. Random access: yes. Order: that of the given paths; the files of a
    pattern by name. Memory: none of its own; pages of the files show as memory of the process.

    Args:
        paths: A path on this machine, a pattern (`"cifar-10-batches-bin/data_batch_*.bin"`), or a list of these.

    Raises:
        ArgumentError: A path is a URL.
        SourceError: A file is missing, is not whole records, or is of the Python version, which is a pickle.
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
    labels = next((labels for nbytes, labels in _LABELS.items() if file.nbytes and not file.nbytes % nbytes), None)
    if labels is None:
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
    uint8, record = np.dtype(np.uint8), len(labels) + _PIXELS_NBYTES
    count = file.nbytes // record
    tree: dict[str, Any] = {
        "image": strided(file, len(labels), (count, 32, 32, 3), uint8, (record, 32, 1, 32 * 32)),
        **{name: strided(file, at, (count,), uint8, (record,)) for at, name in enumerate(labels)},
    }
    leaves, structure = _tree.flatten(tree)
    return side_by_side("from_cifar", [SourceNode(each, "from_cifar") for each in leaves], structure)
