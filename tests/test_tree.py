from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from penstock.base import _tree

Pair = namedtuple("Pair", "left right")


def test_tuples_dicts_and_named_tuples_are_structure():
    leaves, structure = _tree.flatten({"z": (1, 2), "a": Pair(3, {"k": 4})})
    assert leaves == [1, 2, 3, 4]
    assert structure.unflatten("wxyz") == {"z": ("w", "x"), "a": Pair("y", {"k": "z"})}


@pytest.mark.parametrize("leaf", [[1, 2], [(1, 2)], 1, 2.5, True, "text", b"bytes", np.zeros(3), {1, 2}], ids=str)
def test_everything_else_is_a_leaf(leaf):
    leaves, structure = _tree.flatten((leaf,))
    assert leaves == [leaf] if not isinstance(leaf, np.ndarray) else leaves[0] is leaf
    assert structure.num_leaves == 1


def test_none_holds_no_leaf_and_keeps_its_place():
    leaves, structure = _tree.flatten({"a": 1, "b": (None, 2)})
    assert leaves == [1, 2]
    assert structure.unflatten("xy") == {"a": "x", "b": (None, "y")}
    given, as_given = _tree.flatten_values({"a": 3, "b": (None, None)})
    assert _tree.values_like(structure, given, as_given) == [3, None]
    with pytest.raises(ValueError, match="structure"):
        _tree.values_like(structure, *_tree.flatten_values({"a": 3, "b": 4}))


def test_dicts_keep_their_order():
    leaves, structure = _tree.flatten({"b": 1, "a": 2, "c": 3})
    assert leaves == [1, 2, 3]
    assert list(structure.unflatten(leaves)) == ["b", "a", "c"]
    assert _tree.paths(structure) == ["['b']", "['a']", "['c']"]


def test_dict_with_keys_of_several_types_is_no_trouble():
    assert _tree.flatten({"b": 1, 2: 2})[0] == [1, 2]


def test_ordered_dict_is_structure():
    assert _tree.flatten(OrderedDict(b=1, a=2))[0] == [1, 2]


def test_paths_read_as_code():
    assert _tree.paths(_tree.flatten({"x": (1, {"y": 2})})[1]) == ["['x'][0]", "['x'][1]['y']"]
    assert _tree.paths(_tree.flatten(5)[1]) == [""]


def test_nest_puts_structures_into_the_leaves():
    inner, outer = _tree.flatten((0, 0))[1], _tree.flatten({"a": 0, "b": 0})[1]
    assert _tree.nest([inner, _tree.flatten(0)[1]], outer).unflatten([1, 2, 3]) == {"a": (1, 2), "b": 3}


def test_flatten_like_takes_the_same_structure_only():
    structure = _tree.flatten({"x": 0, "y": (0, 0)})[1]
    assert _tree.flatten_like(structure, {"x": [1], "y": (2, None)}) == [[1], 2, None]
    for other in (
        {"x": 1, "y": (2,)},
        {"x": 1},
        (1, 2),
        {"x": 1, "y": 2},
        {"x": (1, 2), "y": (1, 2)},
        {"x": {}, "y": (1, 2)},
    ):
        with pytest.raises(ValueError, match=r".+"):
            _tree.flatten_like(structure, other)


def test_flatten_like_takes_dicts_in_any_order():
    structure = _tree.flatten({"x": 0, "y": 0})[1]
    assert _tree.flatten_like(structure, {"y": 2, "x": 1}) == [1, 2]


def test_tuples_and_dicts_of_a_class_of_their_own_are_leaves():
    class Size(tuple):  # as torch.Size
        __slots__ = ()

    class Named(dict):
        pass

    size, named = Size((3, 4)), Named(a=1)
    leaves, structure = _tree.flatten((size, named))
    assert leaves == [size, named]
    assert _tree.flatten_like(structure, (size, named)) == leaves
    for value in (size, named, [1, 2], 1, None):
        assert not _tree.is_structure(value)
    for value in ((), {}, (1, 2), OrderedDict(a=1), Pair(1, 2)):
        assert _tree.is_structure(value)
