"""Several files of one kind: by pattern or list, one after the other, with the number of each."""

import glob
import os
from collections.abc import Callable, Sequence
from typing import Any

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.files import _openfile
from penstock.functions._constructors import concatenate, side_by_side
from penstock.plan._source_node import SourceNode
from penstock.sources import arrays


def several_of(verb: str, paths: Any, storage_options: Any = None, cache: Any = None) -> list[Any] | None:
    """The paths of a list, or the files that a pattern matches; None for a path."""
    if isinstance(paths, list):
        return [each for path in paths for each in several_of(verb, path, storage_options, cache) or [path]]
    path = os.fspath(paths) if isinstance(paths, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not glob.has_magic(path) or os.path.exists(path):
        return None
    return [file.url for file in _openfile.find(verb, path, storage_options, cache)]


def one_after_another(verb: str, items: Sequence[Any], file_key: str | None, sources: Callable[[Any], Tree]) -> Dataset:
    """Makes a dataset of the elements of several files, one file after the other, with the number of each.

    Args:
        verb: The constructor.
        items: The files.
        file_key: The name of the number; None for elements without.
        sources: Makes the tree of the sources of one file.

    Raises:
        ArgumentError: There is no file; or elements are no dicts, or have the name already.
    """
    if not items:
        raise ArgumentError(f"{verb}() got no files.")
    parts = []
    for number, item in enumerate(items):
        tree = sources(item)
        leaves, structure = _tree.flatten(tree)
        if file_key is not None:
            if not isinstance(tree, dict) or file_key in tree:
                raise ArgumentError(
                    f"{verb}(file_key={file_key!r:.80}) adds a value to elements that are dicts without it, but here "
                    f"they are {structure.unflatten([each.element_spec for each in leaves])!r:.200}. Give arrays by "
                    "name, a single one in a list or a dict; or take another key."
                )
            count = len(leaves[0]) if leaves else 0
            leaves, structure = _tree.flatten({**tree, file_key: arrays.NumberSource(number, count)})
        parts.append(side_by_side(verb, [SourceNode(each, verb) for each in leaves], structure))
    return parts[0] if len(parts) == 1 else concatenate(parts)


def folder_of(verb: str, files_in: Any) -> str | None:
    """Returns the absolute path of the folder of a `files_in=`; None for None."""
    if files_in is None or isinstance(files_in, (str, os.PathLike)):
        return None if files_in is None else os.path.abspath(files_in)
    raise ArgumentTypeError(f"{verb}(files_in=) is the path of a folder, got {no_path(files_in)}")
