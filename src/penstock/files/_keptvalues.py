"""Values of all elements that are kept beside files: the keys of `join`, the labels of `split`, lengths.

They are in a file beside the first of these (`_kept.py`), so that other processes and runs need not read them. They
belong to the plan of the source, with the state of each file. What a function makes is read anew.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentTypeError
from penstock.files._kept import kept, kept_before
from penstock.files._openfile import File, FilesSource
from penstock.plan._fields import Fields
from penstock.plan._fingerprint import fingerprint_of, table
from penstock.plan._node import Node, finite_length, walk
from penstock.plan._source_node import SourceNode

_LEAST_KEPT: Final = 65_536
"""The values of shorter sources are not kept: they are read in a fraction of a second."""


def kept_with_files(node: Node, name: str, what: list[str], build: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Values of all elements, kept beside the first file of a plan, until a file or a step before is another.

    Values of a plan without files, or with a step that nothing tells from another, are made anew.

    Args:
        node: The plan.
        name: The kind of values.
        what: Tells the values from others of the same files. Values of another plan replace those that are kept.
        build: Makes them.
    """
    sources = [each.data for each in walk(node) if isinstance(each, SourceNode) and isinstance(each.data, FilesSource)]
    files = [file for source in sources for file in source.files]
    if not files:
        return build()
    try:
        kind = f"{name} {fingerprint_of(table(node, verb=name))}"
    except ArgumentTypeError:
        return build()
    store, ending = _store(sources[0], kind, files, name, what)
    return kept(*store, lambda: {name: build()}, ending, files[1:])[name]


def kept_keys(one: Node, all_of: Callable[[Node], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The same; of steps that only move the elements of files from what is kept of these."""
    places, node = np.arange(finite_length(one)), one
    while node.inputs:
        is_moved = (node.moves and not node.stacks) or isinstance(node, Fields)
        needs = list(node.demand(0, places)) if is_moved else []
        if len(needs) != 1 or needs[0].rows is not None:
            return all_of(one)
        places, node = needs[0].indices, node.inputs[needs[0].input]
    if not (isinstance(node, SourceNode) and isinstance(node.data, FilesSource) and len(node.spec.leaves) == 1):
        return all_of(one)
    kind = None
    with contextlib.suppress(ArgumentTypeError):  # nothing tells it from another
        kind = f"keys {fingerprint_of(table(node))}"
    if kind is None:
        return all_of(one)
    source, files = node, node.data.files
    store, name = _store(node.data, kind, files, "keys", list(node.spec.tree))
    found = kept_before(*store, name)
    if found is None:
        if not max(_LEAST_KEPT, len(places)) <= source.length <= 2 * len(places):
            return all_of(one)
        found = kept(*store, lambda: {"keys": all_of(source)}, name, files[1:])
    values = found["keys"]
    return values if one is node else values[places]


def _store(
    source: Any, kind: str, files: Sequence[File], name: str, what: list[str]
) -> tuple[tuple[File, str, str | None], str]:
    """Where values of files are kept: the first arguments of `kept`, and the ending of the name."""
    states = hashlib.sha256(" ".join(file.state for file in files).encode()).hexdigest()[:16]
    words = "\n".join([*what, *(file.url for file in files)])
    ending = f"{hashlib.sha256(words.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}.{name}"
    return (files[0], f"{kind} {states}", getattr(source, "cache_dir", None)), ending
