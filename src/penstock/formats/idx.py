"""idx files, in which MNIST and its relatives come.

They have two zeros, a code of the dtype, the number of axes, the size of each axis (4 bytes); then the values. Numbers
are big-endian, rows are in C order.
"""

import math
import os
from typing import Any, Final

import numpy as np

from penstock._constructors import side_by_side
from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._errors import ArgumentError, SourceError
from penstock.base._tree import Tree
from penstock.formats import _recordindex
from penstock.plan._source import Source
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._openfile import File
from penstock.sources.files import FileSource
from penstock.sources.npy import StridedFile, is_possible
from penstock.sources.remote_npy import RemoteArray

_DTYPES: Final = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MOST_AXES: Final = 8


def from_idx(
    path_or_tree: Tree,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Makes a dataset of the rows of an idx file, as MNIST has, or of several side by side, like `from_npy`.

    An element is one row: `(28, 28)` uint8 for the images of MNIST, `()` uint8 for its labels. A file that is
    compressed with gzip, as MNIST is distributed, is decompressed once beside it, as by `from_tfrecord`.

    Reads headers. Random access: yes. Order: that of the file. Memory: none of its own.

    Args:
        path_or_tree: A path or a URL, or a tree of these.
        cache_dir: The folder for decompressed copies, instead of beside the files.
        storage_options: See `from_tar`.

    Raises:
        SourceError: A file is missing, no idx file, or cut off. The message has the file.
        ArgumentError: Files have different numbers of rows; all are listed.

    Example:
        >>> with open("labels.idx", "wb") as file: _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
        >>> penstock.from_idx({"label": "labels.idx"})[0]
        {'label': np.uint8(7)}
    """
    leaves, structure = _tree.flatten(path_or_tree)
    if cache_dir is not None:
        _recordindex.require_local("from_idx(cache_dir)", cache_dir)
        cache_dir = os.path.abspath(cache_dir)
    nodes = []
    for leaf in leaves:
        file, *more = _openfile.find("from_idx", [leaf], storage_options)
        if more:
            raise ArgumentError(
                f"from_idx() reads one file for each leaf, and {len(more) + 1:,} fit {leaf}. One after the other: "
                "concatenate([from_idx(path) for path in paths])."
            )
        nodes.append(SourceNode(_source(file, cache_dir), "from_idx"))
    return side_by_side("from_idx", nodes, structure)


def _source(file: File, cache_dir: str | None) -> Source:
    if file.head(2) == b"\x1f\x8b":
        file = _recordindex.decompressed(file, "gzip", cache_dir)
    head = file.head(4)
    axis_count = head[3] if len(head) == 4 else 0
    offset = 4 + 4 * axis_count
    head = file.head(offset)
    if head[:2] != b"\0\0" or len(head) < offset or not 1 <= axis_count <= _MOST_AXES or head[2] not in _DTYPES:
        raise SourceError(
            f"{file.url} is no idx file: it begins with {head[:4]!r}, where there are two zeros, a dtype (8, 9, or 11 "
            f"to 14) and a number of axes (at most {_MOST_AXES}). Give the file of MNIST as it was downloaded."
        )
    shape, dtype = tuple(np.frombuffer(head, ">u4", offset=4).tolist()), np.dtype(_DTYPES[head[2]])
    if (nbytes := offset + math.prod(shape) * dtype.itemsize) != file.nbytes or not is_possible(shape, dtype):
        raise SourceError(
            f"{file.url} has {file.nbytes:,} bytes, and an array {shape} of {dtype} takes {nbytes:,} with its header. "
            "It is cut off, or damaged: download it again."
        )
    if not file.is_local:
        return RemoteArray((file,), offset, shape, dtype)
    return strided(file, offset, shape, dtype, None)


def strided(
    file: File, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> FileSource:
    """Returns a source of an array in a local file; strides are those of C order for None."""
    state = os.stat(file.url)
    steps = strides or tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    # Scattered rows are mapped: a read of each byte would take long.
    mapped = None if strides is None else True
    return FileSource(
        StridedFile(file.url, offset, shape, dtype, steps, state.st_dev, state.st_ino, file.nbytes, mapped=mapped)
    )
