"""Whether two elements are the same to the bit, and whether an element is what its spec says."""

from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._spec import Spec, leaf_of, spec_of_leaf
from penstock.base._tree import Tree


def assert_same(element: Tree, expected: Tree) -> None:
    """Asserts that two elements have one structure and leaves of the same dtype, shape and bits.

    A NumPy scalar and an array of shape `()` are the same; a NaN is the same as a NaN of the same bits.
    """
    leaves, structure = _tree.flatten(element)
    wanted, wanted_structure = _tree.flatten(expected)
    assert structure == wanted_structure, f"the structure is {structure}, not {wanted_structure}"
    for place, leaf, want in zip(_tree.paths(structure), leaves, wanted, strict=True):
        _assert_same_leaf(leaf, want, f"element{place}")


def _assert_same_leaf(leaf: Any, want: Any, name: str) -> None:
    found, want = np.asarray(leaf), np.asarray(want)
    assert found.dtype == want.dtype, f"{name} has dtype {found.dtype}, not {want.dtype}"
    assert found.shape == want.shape, f"{name} has shape {found.shape}, not {want.shape}"
    if found.dtype.hasobject:  # text or ragged leaves of several elements
        for row, (value, wanted) in enumerate(zip(found.ravel(), want.ravel(), strict=True)):
            kind = next((each for each in (str, bytes, np.ndarray) if isinstance(wanted, each)), type(wanted))
            text = f"{name}[{row}] is {value!r:.80}"
            assert isinstance(value, kind), f"{text}, of type {type(value).__name__}, not {kind.__name__}"
            if isinstance(wanted, np.ndarray):
                _assert_same_leaf(value, wanted, f"{name}[{row}]")
            else:
                assert value == wanted, f"{text}, not {wanted!r:.80}"
    elif found.tobytes() != want.tobytes():
        np.testing.assert_array_equal(found, want, err_msg=name)
        raise AssertionError(f"{name} is equal, but not to the bit")


def assert_fits(element: Tree, element_spec: Tree) -> None:
    """Asserts that an element has the structure, shapes and dtypes of an `element_spec`."""
    leaves, structure = _tree.flatten(element)
    spec = Spec.of(element_spec)
    assert structure == spec.structure, f"the structure is {structure}, not {spec.structure}"
    for leaf, want in zip(leaves, spec.leaves, strict=True):
        if isinstance(leaf, np.generic) and want.dtype.itemsize:
            # A scalar has lost the padding of its text and the order of its bytes.
            leaf = np.asarray(leaf).astype(want.dtype, casting="safe")
        found = spec_of_leaf(leaf_of(leaf))
        shape = [size or 0 for size in found.shape]
        assert want.admits(shape, found.dtype), f"a leaf is {found}, and its spec {want}"


def copied(element: Tree) -> Tree:
    """An element with memory of its own, for looking at after its slot has come back."""
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([np.array(leaf) for leaf in leaves])


def row_of(arrays: Tree, index: Any) -> Tree:
    """The row, or rows, of every array of a tree."""
    leaves, structure = _tree.flatten(arrays)
    return structure.unflatten([leaf[index] for leaf in leaves])
