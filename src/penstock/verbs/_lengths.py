"""The lengths that `pack`, `batch` and `bucket_by_length` take, and the step whose elements they are of."""

from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError
from penstock.base._extensions import CALLS, needed
from penstock.base._spec import ArraySpec
from penstock.base._tree import Structure
from penstock.loader import Loader, LoaderOptions
from penstock.lower._loose import loosened
from penstock.lower._rewrite import ValueAt, with_rows, with_value
from penstock.plan._batch import Batch
from penstock.plan._cautions import reordering
from penstock.plan._fields import named
from penstock.plan._lengths import LengthOf
from penstock.plan._node import POSITION_LIMIT, Node, finite_length, walk
from penstock.report._progress import ProgressLine, Told
from penstock.verbs._labels import Labels, values_of

_BATCH_SIZE: Final = 256
"""The lengths that come back from workers at once. Some batches are read ahead for nothing at the end."""


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


def measured(node: Node, call: str, key: Any, progress: Told | None, options: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Reads all elements, on workers, and returns the length of each; see `Dataset.lengths`.

    Raises:
        ArgumentError: The order changes from epoch to epoch, there is no such leaf, or it has no axis.
    """
    if node.randomness.reorders:
        steps, keeps = reordering(node)
        raise ArgumentError(
            f"{call} has the lengths of elements by position, and {steps} before it changes the order in each epoch. "
            f"Put it before {steps}{keeps}: bucket_by_length(lengths=) and pack(lengths=) after a shuffle take the "
            "lengths of the elements before."
        )
    one, is_count = loosened(node), False
    if key is not None:
        part = _part(one, call, key)
        is_count = _is_count(part)
        one = named(one, [key]) if isinstance(one.spec.tree, dict) else with_value(one, key)
    shapes = [leaf.shape for leaf in one.spec.leaves]
    leaves = [number for number, shape in enumerate(shapes) if shape[:1] == (None,)]
    leaves = leaves or [number for number, shape in enumerate(shapes) if shape]
    if not leaves and not is_count:
        return _no_length(call, one.spec)
    plan = with_rows(one) if is_count else LengthOf(with_rows(one), tuple(leaves))
    if node.length == 0:
        return np.empty(0, np.int64)

    def read() -> npt.NDArray[np.int64]:
        found: list[npt.NDArray[np.int64]] = []
        with (
            ProgressLine("Reading lengths", total=finite_length(node), told=progress) as line,
            Loader(Batch(plan, _BATCH_SIZE, False), LoaderOptions(**options), same_epoch=True) as loader,
        ):
            for batch in loader:
                (counts,) = _tree.flatten(batch)[0]
                found.append(np.array(counts, np.int64))
                line.advance(len(counts))
        return np.concatenate(found)

    return needed(CALLS, "kept_with_files")(  # type: ignore[no-any-return]
        plan, "lengths", [str(key), *(each.label for each in walk(plan))], read
    )


def without_count(node: Node, key: Any) -> Node:
    """The elements without the leaf that says their length, if `lengths=` names one that is an integer."""
    number = as_int(key)
    if not isinstance(key, str) and number is None:
        return node
    tree = loosened(node).spec.tree
    if not _is_count(ValueAt(key)(tree)):
        return node
    if isinstance(tree, dict):
        return named(node, [name for name in tree if name != key])
    return node if number is None or len(tree) != 2 else with_value(node, 1 - number % 2)


def _part(node: Node, call: str, key: Any) -> Any:
    try:
        return ValueAt(key)(node.spec.tree)
    except (LookupError, TypeError):
        raise ArgumentError(f"{call}: elements have no such leaf. They are {node.spec}.") from None


def _is_count(part: Any) -> bool:
    return isinstance(part, ArraySpec) and part.shape == () and part.dtype.kind in "iu"


def _no_length(call: str, part: Any) -> NoReturn:
    raise ArgumentError(
        f"{call}: a length is the size of the first axis of a leaf, or an integer that a leaf has, and this is {part}. "
        "Of text, count tokens: map(tokenize) before it."
    )


def _reordering(node: Node) -> Node:
    """The step whose order is not that of a shuffle alone."""
    while (below := next((each for each in node.inputs if _is_mixed(each)), None)) is not None:
        node = below
    return node


def _is_mixed(node: Node) -> bool:
    return node.randomness.reorders and node.unshuffled() is None


def _checked(node: Node, call: str, lengths: Labels) -> npt.NDArray[Any]:
    is_leaf = isinstance(lengths, str) or as_int(lengths) is not None
    node = loosened(node) if is_leaf else node
    part = _part(node, call, lengths) if is_leaf else None
    # An integer that no function makes is read with the others of its column, see `values_of`.
    is_made = _is_count(part) and any(each.traits.is_cpu_bound for each in walk(node))
    if isinstance(part, ArraySpec) and (part.shape or is_made):
        known = measured(node, call, lengths, None, {})
    else:
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
