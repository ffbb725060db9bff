"""Elements as trees: what counts as structure, and what as a leaf.

Tuples, named tuples and dicts (insertion order kept) are structure. So is `None`, which stands where an element has no
leaf: an optional input that is not given. Everything else is a leaf: arrays, numbers, strings, and lists, which NumPy
turns into arrays. Trees are `optree`'s; this file fixes the meaning of a leaf in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import optree

Tree = Any
"""A tree of anything. The type of the leaves is said in words where it matters."""

Structure = optree.PyTreeSpec
"""A tree without its leaves. `structure.unflatten(leaves)` gives the tree back."""

_NAMESPACE = "penstock"
# The mode is kept by an open context manager: entered once for our own namespace and never left. The name
# keeps it alive, for dropping it would close it.
_insertion_order = optree.dict_insertion_ordered(True, namespace=_NAMESPACE)
_insertion_order.__enter__()


def _is_list(value: object) -> bool:
    return type(value) is list


def _is_value(value: object) -> bool:
    return value is None or type(value) is list


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """Returns the leaves of a tree, depth first, and its structure."""
    leaves, structure = optree.tree_flatten(tree, is_leaf=_is_list, none_is_leaf=False, namespace=_NAMESPACE)
    return leaves, structure


def flatten_until(tree: Tree, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Structure]:
    """Like `flatten`, for trees whose leaves look like structure."""
    leaves, structure = optree.tree_flatten(tree, is_leaf=is_leaf, none_is_leaf=False, namespace=_NAMESPACE)
    return leaves, structure


def flatten_values(tree: Tree) -> tuple[list[Any], Structure]:
    """Like `flatten`, for an argument with a value for each leaf of an element, of which None is one."""
    return flatten_until(tree, _is_value)


def values_like(structure: Structure, values: Sequence[Any], given: Structure) -> list[Any]:
    """Returns the values for the leaves of an element, without those that stand where the element has None.

    Args:
        structure: The element's.
        values: What `flatten_values` returned.
        given: The structure that it returned.

    Raises:
        ValueError: They have another structure.
    """
    numbers, full = flatten_values(structure.unflatten(range(structure.num_leaves)))
    if full != given:
        raise ValueError("another structure")
    return [value for value, number in zip(values, numbers, strict=True) if number is not None]


def text_of_structure(structure: Structure) -> str:
    """Returns the structure as text for fingerprints. It is that of 0.1, so that saved states and kept caches hold."""
    text, end = repr(structure), f", namespace={_NAMESPACE!r})"
    return f"{text.removesuffix(end)}, NoneIsLeaf{end}" if text.endswith(end) else text


def flatten_like(structure: Structure, tree: Tree) -> list[Any]:
    """Returns the leaves of a tree that must have this structure; about five times as fast as `flatten`.

    Raises:
        ValueError: The tree has another structure.
    """
    leaves: list[Any] = structure.flatten_up_to(tree)
    for leaf in leaves:
        # `isinstance` takes longest where it is not: an array is looked at no further.
        if type(leaf) is not np.ndarray and is_structure(leaf):
            raise ValueError(f"expected a leaf, got a {type(leaf).__name__}")
    return leaves


def as_plain(tree: Tree) -> Tree:
    """Replaces mappings of other classes, such as a tokenizer's result, and dataclasses by dicts, if it has any."""
    kind = type(tree)
    if isinstance(tree, Mapping) and not hasattr(tree, "__array__"):
        plain = {key: as_plain(tree[key]) for key in tree}
        changed = not is_structure(tree) or any(plain[key] is not tree[key] for key in plain)
        return plain if changed else tree
    if isinstance(tree, tuple) and is_structure(tree):
        parts = [as_plain(each) for each in tree]
        if all(part is each for part, each in zip(parts, tree, strict=True)):
            return tree
        return kind(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "__array__"):
        return {field.name: as_plain(getattr(tree, field.name)) for field in fields(tree)}
    return tree


def is_structure(value: Any) -> bool:
    """Whether a value holds leaves, and is none: not so of a tuple or dict of a class of its own, as `torch.Size`."""
    may_be = isinstance(value, (tuple, dict))
    return may_be and not optree.tree_is_leaf(value, namespace=_NAMESPACE)


def paths(structure: Structure) -> list[str]:
    """Returns each leaf's place as code: `['image'][0]`, or an empty text for a lone leaf."""
    return ["".join(f"[{key!r}]" for key in path) for path in structure.paths()]


def nest(structures: Sequence[Structure], outer: Structure) -> Structure:
    """Returns the structure of `outer` with each leaf replaced by the structure in its place."""
    inner = [structure.unflatten([0] * structure.num_leaves) for structure in structures]
    return flatten(outer.unflatten(inner))[1]
