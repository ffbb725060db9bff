import numpy as np
import pytest

import penstock as ps
from penstock.base._spec import Spec, leaf_of, spec_of_leaf


def test_dtype_may_be_anything_numpy_takes():
    assert ps.ArraySpec([2, 3], "float32") == ps.ArraySpec((2, 3), np.float32)
    assert ps.ArraySpec((), [("a", "i4")]).dtype.names == ("a",)


def test_axes_of_a_dtype_are_the_last_of_the_shape():
    assert ps.ArraySpec((2,), "(3,)i4") == ps.ArraySpec((2, 3), "i4")
    assert ps.ArraySpec((None,), "(3,4)i4", (2,)).max_shape == (2, 3, 4)


def test_sizes_become_integers_of_python_and_are_such():
    spec = ps.ArraySpec((None, np.int64(2)), "uint8", (np.uint8(3), np.int64(2)))
    assert repr(spec) == "ArraySpec((None, 2), uint8)"
    assert {type(size) for size in spec.max_shape} == {int}
    with pytest.raises(TypeError, match=r"^ArraySpec\(3, \.\.\.\): a shape is a tuple of integers, such as \(28, 28\)"):
        ps.ArraySpec(3, "uint8")
    with pytest.raises(TypeError, match=r"^ArraySpec\(\(2\.0,\), \.\.\.\): a shape is a tuple of integers"):
        ps.ArraySpec((2.0,), "uint8")
    with pytest.raises(ValueError, match=r"^ArraySpec\(\(-1, 3\), \.\.\.\): sizes are from 0 on, and None for an axis"):
        ps.ArraySpec((-1, 3), "uint8")


def test_nbytes_is_that_of_the_largest():
    assert ps.ArraySpec((3, 50, 50), "float64").nbytes == 60000
    assert ps.ArraySpec((None, 28, 28), "float32", max_shape=(32, 28, 28)).nbytes == 32 * 28 * 28 * 4
    assert ps.ArraySpec((), "uint8").nbytes == 1
    assert ps.ArraySpec((None, 2), "uint8").nbytes is None
    assert ps.ArraySpec((3,), "U").nbytes is None


def test_largest_shape_is_no_part_of_equality():
    assert ps.ArraySpec((None,), "i4", max_shape=(3,)) == ps.ArraySpec((None,), "i4")
    assert hash(ps.ArraySpec((None,), "i4", max_shape=(3,))) == hash(ps.ArraySpec((None,), "i4"))


@pytest.mark.parametrize("largest", [(3,), (3, 3), (None, 2), (3, 2, 1)])
def test_largest_shape_is_one_that_there_can_be(largest):
    with pytest.raises(ValueError, match=r"the largest shape has a size for each axis, and the same where that is not"):
        ps.ArraySpec((None, 2), "i4", max_shape=largest)


OF_A_LARGEST_SIZE = {
    "first": ((None,), (5,), lambda i: np.arange(i % 5)),
    "last": ((2, None), (2, 5), lambda i: np.arange(i % 5 * 2).reshape(2, -1)),
    "all": ((None, None), (3, 5), lambda i: np.ones((i % 3, i % 5), int)),
}


@pytest.mark.parametrize("axes", OF_A_LARGEST_SIZE)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_largest_shape_changes_nothing_in_elements(axes, executor):
    shape, largest, make = OF_A_LARGEST_SIZE[axes]
    spec = ps.ArraySpec(shape, "int64", max_shape=largest)
    for dataset in (
        ps.from_source([make(i) for i in range(8)], element_spec=spec),
        ps.range(8).map(make, element_spec=spec),
        ps.from_generator(lambda: map(make, range(8)), element_spec=spec),
    ):
        for found in (dataset, dataset.loader(executor)):
            for element, number in zip(found, range(8), strict=True):
                np.testing.assert_array_equal(element, make(number), strict=True)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (ps.ArraySpec((None, 28), "float32"), "ArraySpec((None, 28), float32)"),
        (ps.ArraySpec((), "U"), "ArraySpec((), text)"),
        (ps.ArraySpec((), "S"), "ArraySpec((), bytes)"),
        (ps.ArraySpec((2,), "U7"), "ArraySpec((2,), <U7)"),
    ],
    ids=str,
)
def test_repr_names_shape_and_dtype(spec, text):
    assert repr(spec) == text


@pytest.mark.parametrize(
    ("spec", "shape", "dtype", "admitted"),
    [
        (ps.ArraySpec((2, 3), "f4"), (2, 3), "f4", True),
        (ps.ArraySpec((2, 3), "f4"), (2, 3), "f8", False),
        (ps.ArraySpec((2, 3), "f4"), (3, 2), "f4", False),
        (ps.ArraySpec((2, 3), "f4"), (2,), "f4", False),
        (ps.ArraySpec((2,), ">f4"), (2,), "<f4", False),
        (ps.ArraySpec((None, 3), "f4", (4, 3)), (4, 3), "f4", True),
        (ps.ArraySpec((None, 3), "f4", (4, 3)), (0, 3), "f4", True),
        (ps.ArraySpec((None, 3), "f4", (4, 3)), (5, 3), "f4", False),
        (ps.ArraySpec((None, 3), "f4"), (99, 3), "f4", True),
        (ps.ArraySpec((), "U"), (), "U9", True),
        (ps.ArraySpec((), "U"), (), "S9", False),
    ],
)
def test_what_a_spec_admits(spec, shape, dtype, admitted):
    assert spec.admits(shape, np.dtype(dtype)) is admitted


def test_spec_prints_as_the_tree_it_is():
    spec = Spec.of({"x": ps.ArraySpec((3,), "f4"), "y": (ps.ArraySpec((), "U"),)})
    assert str(spec) == "{'x': (3,) float32, 'y': (() text,)}"


def test_spec_takes_anything_with_a_shape_and_a_dtype():
    assert Spec.of((np.zeros((2, 3)),)).tree == (ps.ArraySpec((2, 3), "float64"),)


def test_stacked_and_unstacked_are_opposites():
    spec = Spec.of((ps.ArraySpec((3,), "f4"), ps.ArraySpec((), "i8")))
    assert spec.stacked(5).unstacked() == spec
    assert spec.stacked(5).nbytes == 5 * spec.nbytes
    assert spec.stacked(5, exact=False).tree[0] == ps.ArraySpec((None, 3), "f4")
    assert spec.stacked(5, exact=False).nbytes == 5 * spec.nbytes


def test_merged_spec_has_the_larger_place():
    short, long = (Spec.of(ps.ArraySpec((None, 2), "f4", (size, 2))) for size in (3, 5))
    assert short.merged(long).leaves[0].max_shape == (5, 2)
    fixed = Spec.of(ps.ArraySpec((4, 2), "f4"))
    assert fixed.merged(short).leaves[0].shape == (None, 2)
    assert fixed.merged(short).leaves[0].max_shape == (4, 2)
    assert fixed.merged(Spec.of(ps.ArraySpec((None, 2), "f4"))).leaves[0].nbytes is None


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ([1, 2], ps.ArraySpec((2,), "int64")),
        (1, ps.ArraySpec((), "int64")),
        (1.0, ps.ArraySpec((), "float64")),
        (False, ps.ArraySpec((), "bool")),
        ("abc", ps.ArraySpec((), "U")),
        (b"abc", ps.ArraySpec((), "S")),
        (["abc", "d"], ps.ArraySpec((2,), "U3")),
        (np.float32(2), ps.ArraySpec((), "float32")),
    ],
)
def test_leaves_are_what_numpy_makes_of_them(value, spec):
    assert spec_of_leaf(leaf_of(value)) == spec


@pytest.mark.parametrize("value", [[[1], [1, 2]], None, {1, 2}, object(), np.array([None])])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(ps.SpecError, match=r"^an? \w+( that is|, which is) not an array"):
        leaf_of(value)


@pytest.mark.parametrize("value", [[b"a\0"], ["a", "b\0"], [["a"], ["\0"]]])
def test_lists_of_which_an_array_would_drop_zeros_are_refused(value):
    with pytest.raises(ps.SpecError, match="one ends in a zero"):
        leaf_of(value)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_arrays\(\) got a list at the top .* that end in a zero"):
        ps.from_arrays(value)


def test_lists_of_masked_arrays_are_refused():
    value = [np.ma.array([1, 2]), np.ma.array([1, 2], mask=[False, True])]
    with pytest.raises(ps.SpecError, match=r"^a list of masked arrays, and a batch has no masks"):
        leaf_of(value)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_arrays\(\) got a masked array at the top"):
        ps.from_arrays(value)
    assert leaf_of([np.ma.array([1, 2])]).tolist() == [[1, 2]]


def test_python_objects_have_no_place():
    with pytest.raises(
        ps.SpecError, match=r'^\(2,\) object holds Python objects, .* np\.dtype\("U"\) of any number\.$'
    ):
        ps.ArraySpec((2,), object)


def test_leaf_without_shape_and_dtype_is_refused_with_its_place():
    with pytest.raises(
        ps.SpecError, match=r"^element_spec\['x'\]\[1\] is 'float32', which has no shape and dtype\. Write"
    ):
        Spec.of({"x": (ps.ArraySpec((), "i4"), "float32")})
