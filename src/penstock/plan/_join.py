"""Values of another dataset that has the same keys: `join`."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import ArgumentError
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows
from penstock.plan._index import mark_of
from penstock.plan._node import Called, Demand, Memory, OneInput, Reorder
from penstock.plan._pad import holds
from penstock.plan._reader import Gather, Reader

Keys = npt.NDArray[Any]
_KINDS: Final = {"b": "bools", "i": "integers", "u": "integers", "U": "text", "S": "bytes"}
_MOST_COMPARED: Final = 10_000
"""The keys among which one like a missing one is looked for."""


@dataclass(frozen=True, eq=False)
class Lookup(Called, Reorder, OneInput):
    """The elements at a list of positions, any of them any number of times, beside others to which they belong."""

    positions: Indices
    """-1 for a blank."""
    fills: bool = False
    """Whether there may be blanks."""
    value: Any = None
    """What they are filled with, see `blank_of`."""

    spread = math.inf
    overlap = "none"
    """Several elements may have one partner. They are told apart by what they have of their own."""

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """The copy engine has no blanks."""
        return not self.fills

    @property
    def treats_leaves_alike(self) -> bool:  # type: ignore[override]
        """Unless blanks have values by the names of leaves."""
        return not isinstance(self.value, dict)

    def settings(self) -> dict[str, Any]:
        """Which positions, and what blanks are."""
        return {"positions": mark_of(self.positions), **({"fill": str(self.value)} if self.fills else {})}

    @cached_property
    def _blank(self) -> Leaves:
        return blank_of(self.spec, self.value)

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.positions)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """A look-up in the list."""
        places = self.positions[indices]
        rows = None if (places >= 0).all() else np.flatnonzero(places >= 0)
        return [Demand(0, epoch, places if rows is None else places[rows], rows)]

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Blanks are written here."""
        (need,) = self.demand(epoch, indices)
        if need.rows is not None:
            blanks = out.take(np.flatnonzero(self.positions[indices] < 0))
            for row in blanks.row_numbers():
                blanks.put(row, self._blank)
            if not len(need.indices):
                return
            out = out.take(need.rows)
        reader.inputs[0].fill_place(self.spec, need.epoch, need.indices, out, gather)

    def row_count(self, epoch: int, index: int) -> int | None:
        """None where there may be blanks."""
        return super().row_count(epoch, index) if not self.fills else None

    @property
    def memory(self) -> Memory:
        """The list."""
        return super().memory._replace(kept_nbytes=self.positions.nbytes)


def partners(call: str, keys: Sequence[Keys], others: Sequence[Keys], there: str = "the other dataset") -> Indices:
    """Finds the element of another dataset with the same key, for each element.

    Args:
        call: The call in the user's words: `join(on='user')`.
        keys: The values that make up the key of each element, `(n,)` each.
        others: Those of the other dataset, `(m,)` each.
        there: What the other dataset is called in messages.

    Returns:
        Their positions, `(n,)`; -1 where none has the key.

    Raises:
        ArgumentError: Keys are no integers, text or bytes, or of different kinds; or a key of the other dataset comes
            twice.
    """
    count, numbers = len(keys[0]), np.zeros(len(keys[0]) + len(others[0]), np.int64)
    for mine, its in zip(keys, others, strict=True):
        both = _together(call, mine, its, there)
        parts = np.unique(both, return_inverse=True)[1].ravel()
        numbers = numbers * (int(parts.max(initial=0)) + 1) + parts
        if len(keys) > 1:
            numbers = np.unique(numbers, return_inverse=True)[1].ravel()
    theirs = numbers[count:]
    owners = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    owners[theirs[::-1]] = np.arange(len(theirs))[::-1]
    again = np.flatnonzero(owners[theirs] != np.arange(len(theirs)))
    if len(again):
        second = int(again[0])
        raise ArgumentError(
            f"{call}: elements {owners[theirs[second]]} and {second} of {there} have the same key, "
            f"{_key_text(others, second)}, so it is unknown which of them belongs to it; {len(again)} come again. Make "
            f"one element of all with the same key: {'other' if 'other' in there else 'ds'}.group_by(key)."
        )
    return owners[numbers[:count]]


def require_partners(call: str, keys: Sequence[Keys], found: Indices) -> None:
    """Refuses keys that the other dataset lacks.

    Raises:
        ArgumentError: Names the first.
    """
    alone = np.flatnonzero(found < 0)
    if len(alone):
        first = int(alone[0])
        raise ArgumentError(
            f"{call}: element {first} has the key {_key_text(keys, first)}, which no element of the other dataset has; "
            f"so have {len(alone)} of {len(found)}. how='inner' leaves them out, and fill=0 gives them values."
        )


def require_found(call: str, keys: Keys, found: Indices, labels: Keys) -> None:
    """Refuses keys that a dataset lacks.

    Raises:
        ArgumentError: Names the first, and keys that are like it.
    """
    alone = np.flatnonzero(found < 0)
    if len(alone):
        key, alike = keys[alone[0]].item(), []
        if isinstance(key, str):
            alike = difflib.get_close_matches(key, labels[:_MOST_COMPARED].tolist())
        elif isinstance(key, int):
            distances = np.abs(labels.astype(np.float64) - key)
            alike = labels[np.argsort(distances, kind="stable")[:3]].tolist()
        raise ArgumentError(
            f"{call}: no element has the key {key!r:.80}"
            + (f"; {len(alone)} of the {len(found)} keys are missing" if len(found) > 1 else "")
            + (f". There is {', '.join(f'{each!r:.80}' for each in alike)}." if alike else ".")
        )


def _together(call: str, here: Keys, its: Keys, there: str) -> Keys:
    kinds = [_KINDS.get(each.dtype.kind, str(each.dtype)) for each in (here, its)]
    if not set(kinds) <= set(_KINDS.values()):
        raise ArgumentError(f"{call}: keys are integers, bools, text or bytes, and these are {' and '.join(kinds)}.")
    if kinds[0] != kinds[1]:
        raise ArgumentError(
            f"{call}: keys are {kinds[0]} here and {kinds[1]} in {there}, so none would be the same. Make "
            "them alike: cast(), or map()."
        )
    if "u" in (here.dtype.kind, its.dtype.kind) and here.dtype != its.dtype:
        here, its = (np.array(each.tolist(), object) for each in (here, its))  # no float has all 64 bits
    return np.concatenate((here, its))


def _key_text(keys: Sequence[Keys], index: int) -> str:
    values = [each[index].item() for each in keys]
    return f"{(values[0] if len(values) == 1 else tuple(values))!r:.80}"


def blank_of(spec: Spec, fill: Any) -> Leaves:
    """The leaves of an element without content: axes of any size are empty, and the rest has a value.

    Args:
        spec: Its spec.
        fill: The value of all leaves, or if elements are dicts of each by name; 0 or empty text where there is none.

    Raises:
        ArgumentError: There is no such name, or a leaf cannot hold its value.
    """
    tree = spec.tree if isinstance(spec.tree, dict) else {"": spec.tree}
    if isinstance(fill, dict) and spec.tree is tree and (strange := [name for name in fill if name not in tree]):
        raise ArgumentError(f"join(fill=...): the other dataset has no {strange[0]!r:.80}; it has {list(tree)}.")
    leaves = []
    for name, part in tree.items():
        value = fill.get(name) if isinstance(fill, dict) else fill
        leaves += [_filled(name, leaf, value) for leaf in _tree.flatten(part)[0]]
    return leaves


def _filled(name: str, leaf: ArraySpec, value: Any) -> Any:
    """A leaf of one value; a number is no text, which is empty then."""
    shape, is_text = tuple(size or 0 for size in leaf.shape), leaf.dtype.kind in "US"
    if value is None or (is_text and not isinstance(value, str if leaf.dtype.kind == "U" else bytes)):
        value = (b"" if leaf.dtype.kind == "S" else "") if is_text else np.zeros((), leaf.dtype)[()]
    if leaf.dtype.itemsize == 0:
        return np.full(shape, value, object) if shape else value
    if not holds(leaf.dtype, value):
        raise ArgumentError(f"join(fill=...): {name!r} is {leaf}, which cannot hold {value!r:.80}.")
    return np.full(shape, value, leaf.dtype)
