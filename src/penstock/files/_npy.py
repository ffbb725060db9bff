"""`from_npy`: rows of `.npy` files, here and behind URLs."""

import os
from dataclasses import replace
from typing import Any

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.files import remote_npy
from penstock.files._diskcache import DiskCache
from penstock.files._remote import is_remote
from penstock.files._several import one_after_another, several_of
from penstock.functions._constructors import placed_leaves
from penstock.plan._source import Source
from penstock.sources import files, npy


def from_npy(
    path_or_tree: Tree,
    *,
    mapped: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
    file_key: str | None = None,
) -> Dataset:
    """Makes a dataset of the rows of `.npy` files: one after the other, and side by side.

    Reads headers only. C and Fortran order, every dtype of fixed size, also structured ones, format versions 1 to 3.
    Rows go from the page cache straight into the batch. A file that is shortened or replaced meanwhile is an error that
    names the row.

    An element is one row: `(3, 50, 50)` for a file of `(20000, 3, 50, 50)`, same dtype. Several files of one kind come
    one after the other, as by `concatenate`, and `file_key` gives each row the number of its file. `windows(groups=)`
    with that key makes windows none of which reaches into another file.

    Random access: yes. Rows of a Fortran-ordered file are scattered over the whole file, and slow to read.
    Memory: none of its own. The pages of a mapped file show as resident memory of the process; the kernel drops them
    when something else needs the memory.

    Args:
        path_or_tree: A path or a URL (`s3://`, `https://`), or a tree of these: `{"x": "x.npy", "y": "y.npy"}`. A
            remote file must be in C order. In place of a path a glob pattern, whose files are sorted by name, or a list
            of paths; then every leaf of the tree has as many.
        mapped: False reads with `pread`, and no page of the file shows as memory of the process. True maps the file,
            which is faster, most for small rows. None maps it if a plan only moves data. If the file is larger than a
            quarter of the memory, it does so for rows below 2 KiB, and gives the pages back from time to time.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.
        file_key: The name under which elements, which are dicts, have the number of their file, int64, from 0 on.

    Raises:
        ArgumentTypeError: A leaf is no path, or `mapped` is no bool.
        SourceError: It is no `.npy` file, truncated, or holds Python objects (which are never unpickled).
        ArgumentError: Files side by side have different numbers of rows, all are listed; or there are not as many of
            each. Elements are no dicts, and so have no place for a `file_key`, or have it already.
        SpecError: Files one after the other have rows of other shapes or dtypes.

    Example:
        >>> np.save("frames.npy", np.zeros((20, 3, 50, 50)))
        >>> penstock.from_npy("frames.npy")
        from_npy(frames.npy): 20 elements, (3, 50, 50) float64, random
        >>> np.save("shard-0.npy", np.zeros(2)); np.save("shard-1.npy", np.ones(1))
        >>> penstock.from_npy({"x": "shard-*.npy"}, file_key="file")[2]
        {'x': np.float64(1.0), 'file': np.int64(1)}
    """
    if mapped is not None and not isinstance(mapped, bool):
        raise ArgumentTypeError(f"from_npy(mapped=) takes True, False or None, got {mapped!r}.")
    cache = DiskCache.of("from_npy", cache)
    leaves, structure = _tree.flatten(path_or_tree)
    lists = [several_of("from_npy", leaf, storage_options, cache) for leaf in leaves]
    if any(paths is not None for paths in lists):
        counts = {1 if paths is None else len(paths) for paths in lists}
        if len(counts) > 1:
            found = [1 if paths is None else len(paths) for paths in lists]
            raise ArgumentError(f"from_npy() puts files side by side, so there are as many of each, but found {found}.")
        columns = [[leaf] if paths is None else paths for leaf, paths in zip(leaves, lists, strict=True)]
        each = [structure.unflatten(paths) for paths in zip(*columns, strict=True)]
    else:
        each = [path_or_tree]
    return one_after_another(
        "from_npy", each, file_key, lambda tree: _npy_sources(tree, mapped, storage_options, cache)
    )


def _npy_sources(tree: Tree, mapped: bool | None, storage_options: Any, cache: DiskCache | None) -> Tree:
    """The sources of `.npy` files side by side."""
    leaves, structure = _tree.flatten(tree)
    found: list[Source] = []
    for leaf, place in placed_leaves(leaves, structure):
        if not isinstance(leaf, (str, os.PathLike)):
            raise ArgumentTypeError(f"from_npy() needs a path{place and ' at '}{place}, got {no_path(leaf)}")
        made: Source
        if isinstance(leaf, str) and is_remote(leaf):
            made = remote_npy.source(leaf, storage_options, cache)
        else:
            made = files.FileSource(replace(npy.describe(leaf), mapped=mapped))
        found.append(made)
    return structure.unflatten(found)
