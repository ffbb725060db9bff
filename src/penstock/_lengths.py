"""The lengths that `pack`, `batch` and `bucket_by_length` take, and the step whose elements they are of."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock._labels import Labels, values_of
from penstock.base import _tree
from penstock.base._errors import ArgumentError
from penstock.base._tree import Structure
from penstock.plan._cautions import reordering
from penstock.plan._node import POSITION_LIMIT, Node


class KnownLengths(NamedTuple):
    """Lengths, checked."""

    node: Node
    """The step that they are of. Its order stays: a shuffle that differs from epoch to epoch is left out."""
    lengths: list[npt.NDArray[Any]]
    """Integers from 0 on, shape `(n,)`: of each leaf, or one for all."""
    seed: int | None
    """That of the shuffle which was left out; None if none was."""
    is_local: bool
    """That shuffle moves elements only within windows."""


def lengths_of(node: Node, call: str, lengths: Any, structure: Structure | None = None) -> KnownLengths:
    """Returns the lengths of the elements of a plan.

    Args:
        node: The plan, which has random access.
        call: The call in the user's words: `pack(lengths=...)`.
        lengths: An array, or the key or place of a leaf; with a structure, a tree of these.
        structure: That of elements whose leaves have lengths of their own.

    Raises:
        ArgumentError: These are no lengths, or the order of elements changes otherwise than by a shuffle.
    """
    seed, is_local = None, True
    if node.randomness.reorders:
        below = node.unshuffled()
        if below is None or below[0].randomness.reorders:
            raise ArgumentError(
                f"{call}: lengths are those of elements by position, but after {_reordering(node).label} the element "
                "at a position changes with each epoch, and not by a shuffle alone. Put this step before it, as in "
                f"mix([a.pack(...), b.pack(...)]){reordering(node)[1]}."
            )
        node, seed, is_local = below
    if structure is None:
        return KnownLengths(node, [_checked(node, call, lengths)], seed, is_local)
    given, found = _tree.flatten_until(lengths, lambda x: not isinstance(x, (dict, tuple, type(None))))
    if found != structure:
        raise ArgumentError(
            f"{call}: there is not one for each of the row's lengths. Give lengths in the same tree, as in "
            'pack({"inputs": 512, "targets": 128}, lengths={"inputs": ..., "targets": ...}).'
        )
    return KnownLengths(node, [_checked(node, call, each) for each in given], seed, is_local)


def _reordering(node: Node) -> Node:
    """The step whose order is not that of a shuffle alone."""
    while (below := next((each for each in node.inputs if _is_mixed(each)), None)) is not None:
        node = below
    return node


def _is_mixed(node: Node) -> bool:
    return node.randomness.reorders and node.unshuffled() is None


def _checked(node: Node, call: str, lengths: Labels) -> npt.NDArray[Any]:
    known = values_of(node, call, lengths)
    if known.dtype.kind not in "iu" and known.size:
        raise ArgumentError(
            f"{call}: lengths are integers from 0 on, got {known.dtype}. Convert whole numbers: "
            "np.asarray(lengths).astype(int). Of text, count the tokens of each element: [len(tokens(e)) for e in ds]."
        )
    if known.dtype.kind == "i" and known.min(initial=0) < 0:
        first = int(np.argmax(known < 0))
        raise ArgumentError(
            f"{call}: lengths are integers from 0 on, but that of element {first} is {known[first]}. Compute lengths "
            "from this dataset, in its order: [len(element) for element in ds]."
        )
    if known.size and (total := float(known.sum(dtype=np.float64))) >= POSITION_LIMIT:
        longest = int(np.argmax(known))
        raise ArgumentError(
            f"{call}: the lengths come to {total:.3g} tokens, more than a dataset has; the longest is "
            f"{known[longest]}, of element {longest}. Compute lengths from this dataset, in its order: [len(element) "
            "for element in ds]."
        )
    return known if known.size else known.astype(np.int64)
