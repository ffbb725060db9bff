"""What `join` and `group_by` do at the call: they read keys, and build a plan by them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._positions import as_labels
from penstock.base._tree import flatten
from penstock.memory._rows import Indices
from penstock.plan._combine import Merged
from penstock.plan._fields import named
from penstock.plan._group import Group
from penstock.plan._index import Select
from penstock.plan._join import Lookup, blank_of, partners, require_found, require_partners
from penstock.plan._node import Node
from penstock.plan._pick import Pick
from penstock.plan._windows import grouped
from penstock.verbs._labels import Labels, array_of, labels_of

On = str | Sequence[str] | Mapping[str, str]


def joined(left: Node, right: Node, on: On, how: str, fill: Any) -> Merged:
    """Builds the elements of one dataset with the values of the elements of another that have the same keys.

    Raises:
        ArgumentError: See `Dataset.join`.
        ArgumentTypeError: `on` is no name, list of names or dict of names.
    """
    pairs = _pairs(on)
    call = f"join(on={on!r:.80})"
    if how not in ("left", "inner"):
        raise ArgumentError(f"join(how={how!r:.80}): it is 'left' or 'inner'.")
    if how == "inner" and fill is not None:
        raise ArgumentError("join(how='inner', fill=...): an inner join leaves out what it would fill.")
    for node, names, which in ((left, list(pairs), "elements"), (right, list(pairs.values()), "the others")):
        tree = node.spec.tree
        if not isinstance(tree, dict):
            raise ArgumentError(
                f"{call} finds keys by their names, but {which} are {node.spec}. Make dicts of them: "
                'zip({"x": ...}), or map(lambda element: {"x": element}).'
            )
        if missing := [name for name in names if name not in tree]:
            raise ArgumentError(f"{call}: {which} have no {missing[0]!r:.80}; they have {list(tree)}.")
    names = [name for name in right.spec.tree if name not in pairs.values()]
    if twice := [name for name in names if name in left.spec.tree]:
        raise ArgumentError(
            f"{call}: both have {twice[0]!r}. Rename one, other.rename({{{twice[0]!r}: ...}}), or leave it out: "
            "other.select(...)."
        )
    if not any(flatten(right.spec.tree[name])[0] for name in names):
        raise ArgumentError(f"{call}: the others have nothing but the key, so they add nothing.")
    keys = [labels_of(left, "join(on=...)", name) for name in pairs]
    others = [labels_of(right, "join(on=...) of the other dataset", name) for name in pairs.values()]
    found = partners(call, keys, others)
    values: Node = named(right, names)
    if how == "inner":
        kept = np.flatnonzero(found >= 0)
        if len(kept) < len(found):
            left, found = Select(left, "join", "inner", kept, is_hidden=True), found[kept]
    elif fill is None:
        require_partners(call, keys, found)
    else:
        values = with_empty_groups(values)
        blank_of(values.spec, fill)  # refuses what does not fit
    text = f"on={on!r:.80}" + (", how='inner'" if how == "inner" else "")
    return Merged((left, Lookup(values, "join", text, found, fill is not None, fill)), "join", text)


def positions_of(node: Node, keys: Any, on: str | int) -> Indices:
    """Finds the element that has a key, for each key.

    Raises:
        ArgumentError: See `Dataset.positions_of`.
    """
    call = f"positions_of(on={on!r:.80})"
    wanted = array_of(as_labels(keys, call))
    labels = labels_of(node, "positions_of(on=...)", on)
    if not wanted.size:  # a list without keys is of float64 to NumPy
        return np.empty(wanted.shape, np.int64)
    found = partners(call, [wanted.ravel()], [labels], "this dataset")
    require_found(call, wanted.ravel(), found, labels)
    return found.reshape(wanted.shape)


def with_empty_groups(node: Node) -> Node:
    """The same elements, where groups that all have one size are of any: the blank of a group has no element."""
    if isinstance(node, Group):
        return node.shortened()
    return node.over(*map(with_empty_groups, node.inputs)) if node.takes_any_shape else node


def _pairs(on: Any) -> dict[str, str]:
    """The names of keys: here, and in the other dataset."""
    names = {on: on} if isinstance(on, str) else on
    if not isinstance(names, Mapping):
        if not isinstance(names, Sequence):
            raise ArgumentTypeError(f"join(on={on!r:.80}): a name is needed, or several, and this is {type_of(on)}.")
        names = {name: name for name in names}
    if not names or not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise ArgumentTypeError(
            f"join(on={on!r:.80}): it is a name, a list of names, or a dict of names here and there."
        )
    if len(set(names.values())) < len(names):
        raise ArgumentError(f"join(on={on!r:.80}) has a name of the other dataset twice.")
    return dict(names)


def groups_of(node: Node, key: Labels) -> Node:
    """Builds an element for each label, of all elements that have it."""
    order, sizes = grouped(labels_of(node, "group_by(...)", key))
    if order is not None:
        node = Select(node, "group_by", "...", order, is_hidden=True)
    bounds = np.append(0, np.cumsum(sizes)).astype(np.int64)
    tree = node.spec.tree
    if not (isinstance(key, str) and isinstance(tree, dict)):
        return Group(node, bounds)
    first = Pick(named(node, [key]), "group_by", "...", bounds[:-1])
    others = [name for name in tree if name != key]
    if all(not flatten(tree[name])[0] for name in others):  # None holds nothing to group
        return first
    return Merged((first, Group(named(node, others), bounds)), "group_by", repr(key))
