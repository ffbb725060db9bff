import numpy as np
import pytest

import penstock as ps
from penstock.base._random import seeded_globals
from penstock.plan._reader import OpenSources, Reader


def test_every_leaf_is_cast():
    ds = ps.from_arrays({"x": np.arange(6).reshape(3, 2), "y": np.arange(3.0)}).cast("float32")
    assert ds[1]["x"].dtype == ds[1]["y"].dtype == np.float32
    assert ds.element_spec == {"x": ps.ArraySpec((2,), "float32"), "y": ps.ArraySpec((), "float32")}


def test_tree_of_dtypes_casts_leaf_by_leaf_and_none_keeps():
    ds = ps.from_arrays((np.arange(3), np.arange(3) + 0.7, np.arange(3))).cast(("uint8", None, bool))
    assert [leaf.dtype.name for leaf in ds[1]] == ["uint8", "float64", "bool"]
    assert ds[2] == (2, 2.7, True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "complex64", bool, ">i4", "U8"])
def test_values_are_converted_as_astype_does(dtype):
    values = np.array([[0.0, 1.9], [-2.5, 100.0], [3.0, 7.5]]) if np.dtype(dtype) != "uint8" else np.ones((3, 2))
    np.testing.assert_array_equal(ps.from_arrays(values).cast(dtype).batch(3)[0], values.astype(dtype))


def test_cast_of_a_batch_is_a_batch_of_casts():
    ds = ps.range(7)
    before, after = ds.cast("float32").batch(3), ds.batch(3).cast("float32")
    assert before.element_spec == after.element_spec
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_beyond_a_short_batch_is_not_converted():
    # It was never written, and may hold anything: NaN among it would be a warning, which is an error here.
    node = ps.from_arrays(np.arange(5.0)).batch(4).cast("int32")._node
    reader = Reader(node, OpenSources(node), isolation=seeded_globals)
    reader.inputs[0].scratch(1).arrays[0][...] = np.nan
    assert reader.element(0, 1).tolist() == [4]


@pytest.mark.parametrize(("value", "dtype"), [(1e6, "float16"), (1e6, ">f2"), (1e300 + 1e300j, "complex64")])
def test_numbers_that_become_infinite_are_converted_without_a_warning(value, dtype):
    ds = ps.from_arrays(np.full((8, 3), value)).cast(dtype)
    with np.errstate(over="ignore"):
        expected = np.full((4, 3), value).astype(dtype)
    np.testing.assert_array_equal(ds[0], expected[0])
    with ds.batch(4).loader("threads", workers=1) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch, expected)


def test_dtypes_of_another_structure_are_refused():
    with pytest.raises(
        ps.SpecError, match=r"cast\(\('uint8', None\)\) names dtypes by another structure than .* \(\) int64"
    ):
        _ = ps.range(3).cast(("uint8", None)).element_spec


def test_values_that_cannot_be_converted_are_named():
    ds = ps.from_arrays(np.array(["1", "two"])).cast("float32")
    assert ds[0] == np.float32(1)
    with pytest.raises(
        ps.ElementError, match=r"^cast\(float32\) cannot convert \(\) <U3: .*'two'.*with map\(\)"
    ) as caught:
        _ = ds[1]
    assert isinstance(caught.value.__cause__, ValueError)


def test_cast_to_text_of_any_size_is_refused():
    with pytest.raises(ps.SpecError, match=r"cannot make <U0 of \(\) int64: text and bytes of any size"):
        ps.range(3).cast("U")[1]
    assert ps.range(3).cast("U20")[1] == "1"
