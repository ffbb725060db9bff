"""The text of errors about splits, functions and specs: the fact with its numbers, the cause, the cure."""

import math
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.texts import assert_refused


def frames() -> ps.Dataset:
    return ps.from_arrays(np.zeros((20, 3, 2)))


def ragged() -> ps.Dataset:
    return ps.range(4).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))


def fragile(x: Any) -> Any:
    if x == 3:
        raise KeyError("no such frame")
    return x


def growing(x: Any) -> Any:
    return np.zeros(int(x) + 1)


def turning(x: Any) -> Any:
    return x if x < 2 else {"x": x}


INTEGER = "an integer is needed, not a"
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # Split.
    "split into nothing": (
        lambda: ps.range(9).split(),
        ValueError,
        r"split\(\) got no parts\. Give fractions, split\(0\.8, 0\.2\), or counts, split\(800, 200\)\.",
    ),
    "split below 0": (
        lambda: ps.range(9).split(-0.5, 1.5),
        ValueError,
        r"split\(\) got the part -0\.5\. A part is a fraction from 0 to 1, or a count\.",
    ),
    "split of nan": (lambda: ps.range(9).split(math.nan), ValueError, r"split\(\) got the part nan\. .*"),
    "split of text": (
        lambda: ps.range(9).split("0.5"),
        TypeError,
        r"split\(\) takes fractions or counts, got '0\.5', a str\.",
    ),
    "split of an array": (
        lambda: ps.range(9).split(np.array([0.5, 0.5])),
        TypeError,
        r"split\(\) takes fractions or counts, got array\(\[0\.5, 0\.5\]\), an? .*",
    ),
    "buckets of one number": (
        lambda: ps.range(9).bucket_by_length(abs, 3, [2, 2]),
        TypeError,
        r"bucket_by_length\(boundaries=3\): a list of integers is needed\.",
    ),
    "split by both": (
        lambda: ps.range(9).split(0.5, 0.5, groups=np.arange(9), stratify=np.arange(9)),
        ValueError,
        r"split\(groups=\.\.\., stratify=\.\.\.\): whole groups have the classes that they have\. Give one .*",
    ),
    "split by too few classes": (
        lambda: ps.range(9).split(0.5, 0.5, stratify=[0, 1]),
        ValueError,
        r"split\(stratify=\.\.\.\) needs a value for each element, shape \(9,\), got \(2,\)\.",
    ),
    "split of windows by classes": (
        lambda: ps.range(9).windows(2).split(0.5, 0.5, stratify=np.zeros(8)),
        ValueError,
        r"split\(stratify=\.\.\.\) would deal overlapping windows to different parts, .*, or give groups=.*",
    ),
    "split of both": (
        lambda: ps.range(9).split(0.5, 3),
        TypeError,
        r"split\(0\.5, 3\) mixes fractions and counts\. Use one kind\.",
    ),
    "split above 1": (
        lambda: ps.range(9).split(0.7, 0.7),
        ValueError,
        r"split\(0\.7, 0\.7\): the fractions sum to 1\.4, above 1\.",
    ),
    "split of too many": (
        lambda: ps.range(9).split(8, 2),
        ValueError,
        r"split\(8, 2\) asks for 10 elements, but the dataset has 9\.",
    ),
    "split for ever": (
        lambda: ps.range(9).repeat().split(0.5, 0.5),
        ValueError,
        r"split\(\) needs a known number of elements, but this is endless\. Use take\(n\) first\.",
    ),
    "split of what wanders": (
        lambda: ps.range(9).shuffle().split(0.5, 0.5),
        ValueError,
        (
            r"split\(\) after shuffle\(seed=0\) would let elements wander between the parts, for each epoch has an "
            r"order of its own\. Split first and shuffle each part, or use shuffle\(reshuffle=False\)\."
        ),
    ),
    "split of what is drawn": (
        lambda: ps.range(9).sample([1] * 9).split(0.5, 0.5),
        ValueError,
        (
            r"split\(\) after sample\(\.\.\., seed=0\) would let elements wander between the parts, for each epoch has "
            r"an order of its own\. Split first, and do so in each part\."
        ),
    ),
    "split of windows at random": (
        lambda: ps.range(9).windows(2).split(0.5, 0.5, seed=1),
        ValueError,
        (
            r"split\(seed=\.\.\.\) would deal overlapping windows to different parts, which would then share "
            r"data\. Split "
            r"by range \(no seed\), or give groups=, a label a window\. "
            r"Or split the elements, and make the windows of each part\."
        ),
    ),
    "split of shuffled windows": (
        lambda: ps.range(9).windows(2).shuffle(reshuffle=False).split(0.5, 0.5),
        ValueError,
        (
            r"split\(\) after shuffle\(\) of overlapping windows would make parts that share data\. Put "
            r"split\(\) before shuffle\(\), or give groups=, a label a window\."
        ),
    ),
    "split groups": (
        lambda: ps.range(9).split(0.5, 0.5, groups=[1, 2]),
        ValueError,
        r"split\(groups=\.\.\.\) needs a value for each element, shape \(9,\), got \(2,\)\.",
    ),
    "split groups through windows": (
        lambda: ps.range(5).windows(2).split(0.5, 0.5, groups=[0, 0, 1, 1]),
        ValueError,
        (
            r"split\(groups=\.\.\.\): elements 1 and 2 are of different parts, but share data, for windows "
            r"overlap\. Make "
            r"the windows in the same groups: windows\(groups=\.\.\.\), a label a frame\."
        ),
    ),
    # Functions and specs.
    "map of no function": (lambda: ps.range(3).map(5), TypeError, r"map\(\) needs a function, got 5, an int\."),
    "factory of distortions": (
        lambda: ps.range(3).random_map(ps.image.rotate),
        TypeError,
        (
            r"random_map\(\) got rotate, which makes a function of an element and is none itself\. Call it first: "
            r"random_map\(rotate\(\.\.\.\)\), as in random_map\(rotate\(15\)\)\."
        ),
    ),
    "random_map of one argument": (
        lambda: list(ps.range(3).random_map(lambda e: e)),
        RuntimeError,
        (
            r"random_map\(<lambda>\) at test_messages\.py:\d+ failed on element 0 of epoch 0.*: TypeError: .* takes 1 "
            r"positional argument but 2 were given\. random_map\(\) calls fn\(element, rng\); a "
            r"function of the element alone goes into map\(\)"
        ),
    ),
    "random_map whose own call is wrong": (
        lambda: list(ps.range(3).random_map(lambda e, rng: (lambda: e)(rng))),
        RuntimeError,
        r"random_map\(<lambda>\) at .*: TypeError: .* takes 0 positional arguments but 1 was given",
    ),
    "random_map seed": (
        lambda: ps.range(3).random_map(np.add, seed="1"),
        TypeError,
        rf"random_map\(seed='1'\): {INTEGER} str\.",
    ),
    "spec without dtype": (
        lambda: ps.range(3).map(fragile, element_spec=("float32",)),
        ValueError,
        (
            r"element_spec\[0\] is 'float32', which has no shape and dtype\. Write "
            r"penstock\.ArraySpec\(shape, dtype\), such "
            r'as ArraySpec\(\(28, 28\), "uint8"\)\.'
        ),
    ),
    "cast to no dtype": (
        lambda: ps.range(3).cast("float33"),
        TypeError,
        r"cast\(\) needs dtypes such as 'float32', got 'float33'\.$",
    ),
    "cast by another tree": (
        lambda: frames().cast({"x": "float32"}).element_spec,
        ValueError,
        (
            r"cast\(\{'x': 'float32'\}\) names dtypes by another structure than that of the element, "
            r"\(3, 2\) float64\. Name every leaf, with None for one to keep, or give one dtype for all\."
        ),
    ),
    "concatenate of other shapes": (
        lambda: ps.concatenate([frames(), frames().map(np.sum)]).element_spec,
        ValueError,
        (
            r"concatenate\(\) needs datasets whose elements look the same, but dataset 1 differs from those "
            r"before it: one "
            r"has a leaf of \(3, 2\) float64, the other of \(\) float64\. Use map\(\) or cast\(\) to make "
            r"them alike\."
        ),
    ),
    "interleave of other trees": (
        lambda: ps.interleave([ps.range(3), ps.zip((ps.range(3),))]).element_spec,
        ValueError,
        (
            r"interleave\(\) needs .* dataset 1 differs from those before it: one has the structure \(\) "
            r"int64, the other "
            r"\(\(\) int64,\)\. Use map\(\) or cast\(\) to make them alike\."
        ),
    ),
    "batch of ragged": (
        lambda: ragged().batch(2).element_spec,
        ValueError,
        (
            r"batch\(2\) stacks elements, so they must have one shape, but element is \(None,\) int64: an "
            r"axis of None "
            r"differs from element to element\. Use padded_batch\(\), or bring it to one size with map\(\)\. "
            r"If all have one size, .*, or in Parquet a list of fixed size, such as .*\."
        ),
    ),
    "windows of short batches": (
        lambda: ps.range(5).batch(2).windows(2).element_spec,
        ValueError,
        r"windows\(2\) stacks elements, .* with map\(\)\. Where elements are batches .* drop_remainder=True\.",
    ),
    "unbatch of scalars": (
        lambda: len(ps.range(5).unbatch()),
        ValueError,
        (
            r"unbatch\(\) takes elements apart along their first axis, but here that is \(\) int64: every "
            r"leaf needs a first "
            r"axis, and all the same\."
        ),
    ),
    "unbatch of shuffled batches": (
        lambda: len(ps.range(5).batch(2).shuffle().unbatch()),
        ValueError,
        (
            r"unbatch\(\) needs to know where the short batch is, but after shuffle\(seed=0\) it may be "
            r"anywhere\. Use "
            r"batch\(size, drop_remainder=True\), or unbatch before the batches are rearranged\."
        ),
    ),
    "map of nothing": (
        lambda: ps.range(0).map(fragile).element_spec,
        ValueError,
        (
            r"map\(fragile\) at test_messages\.py:\d+ has no element to run, so what it returns is unknown\. Say it: "
            r"element_spec=penstock\.ArraySpec\(shape, dtype\), or a tree of them\."
        ),
    ),
    # While reading.
    "function that raises": (
        lambda: list(ps.range(5).map(fragile)),
        RuntimeError,
        (
            r"map\(fragile\) at test_messages\.py:\d+ failed on element 3 of epoch 0, made of the integer 3: "
            r"KeyError: 'no such "
            r"frame'"
        ),
    ),
    "other shape": (
        lambda: list(ps.range(5).map(growing)),
        ValueError,
        (
            r"map\(growing\) at test_messages\.py:\d+ returned an array of \(2,\) float64 for element 1, but "
            r"its element_spec is "
            r"\(1,\) float64 \(as found on element 0\)\. Every element of a dataset has one structure, shape "
            r"and dtype: give each the same, or say which axis differs: "
            r"element_spec=ArraySpec\(\(None,\), 'float64'\)\."
        ),
    ),
    "other shape of one of several leaves": (
        lambda: list(ps.range(5).map(lambda i: {"id": i, "boxes": np.zeros((i + 1, 4), "float32")})),
        ValueError,
        (
            r".* returned an array of \(2, 4\) float32 in \['boxes'\] for element 1, .* say which axis differs: "
            r"element_spec=, like the element, with ArraySpec\(\(None, 4\), 'float32'\) at \['boxes'\]\."
        ),
    ),
    "nothing of no axes": (
        lambda: list(ps.range(5).map(lambda i: np.array([]), element_spec=ps.ArraySpec((None, 4), "float64"))),
        ValueError,
        (
            r".* returned an array of \(0,\) float64 \(where nothing is, np\.zeros\(\(0, 4\), 'float64'\) has its "
            r"axes\) for element 0, .*"
        ),
    ),
    "text that grows": (
        lambda: list(ps.range(5).map(lambda i: "x" * int(i)).batch(2).map(lambda batch: batch)),
        ValueError,
        (
            r".* returned an array of \(2,\) <U3 for element 1, .* say which axis differs: element_spec=.*, and "
            r"text of any size is of np\.dtype\('U'\) there, bytes of np\.dtype\('S'\)\."
        ),
    ),
    "other dtype than declared": (
        lambda: list(ps.range(5).map(growing, element_spec=ps.ArraySpec((1,), "float32"))),
        ValueError,
        (
            r".* returned an array of \(1,\) float64 for element 0, but its element_spec is \(1,\) float32 "
            r"\(as declared\)\..*"
        ),
    ),
    "other dtype of one of several leaves": (
        lambda: list(ps.range(5).map(lambda i: {"a": i, "b": {"c": [i, 0.5] if i == 2 else [i, i]}})),
        ValueError,
        r".* returned an array of \(2,\) float64 in \['b'\]\['c'\] for element 2, but its element_spec is .*",
    ),
    "text in one of several leaves": (
        lambda: list(ps.range(5).map(lambda i: (i, "x" if i == 2 else i))),
        ValueError,
        r".* returned a str in \[1\] for element 2, but its element_spec is .*",
    ),
    "other structure": (
        lambda: list(ps.range(5).map(turning)),
        ValueError,
        (
            r"map\(turning\) .* returned the structure \{'x': .*\} for element 2, but its element_spec is \(\) "
            r"int64 \(as found.*"
        ),
    ),
    "nothing returned": (
        lambda: list(ps.range(5).map(lambda x: None)),
        ValueError,
        (
            r"map\(<lambda>\) at .* returned a leaf that is a NoneType, which is not an array of numbers, "
            r"text or bytes \(the function may lack a return\) for element 0\."
        ),
    ),
    "nothing returned for one": (
        lambda: list(ps.range(5).map(lambda x: (x, None if x == 3 else x))),
        ValueError,
        (
            r"map\(<lambda>\) at .* returned a leaf\[1\] that is a NoneType, which is not an array of numbers, "
            r"text or bytes \(None has its place in every element of a dataset, or in none\) for element 3, but its "
            r"element_spec is \(\(\) int64, \(\) int64\) \(as found on element 0\)\."
        ),
    ),
    "something instead of None for one": (
        lambda: list(ps.range(5).map(lambda x: (x, x if x == 3 else None))),
        ValueError,
        (
            r"map\(<lambda>\) at .* returned the structure \(\(\) int64, \(\) int64\) \(None has its place in every "
            r"element of a dataset, or in none\) for element 3, but its element_spec is \(\(\) int64, None\) \(as "
            r"found on element 0\)\."
        ),
    ),
    "ragged list": (
        lambda: list(ps.range(5).map(lambda x: {"boxes": [[1], [1, 2]]})),
        ValueError,
        (
            r"map\(<lambda>\) at .* returned a leaf\['boxes'\] that is a list that is not an array: its parts are of "
            r"several shapes \(return a tuple, \(a, b\), which has an array for each part; what is of several lengths "
            r"is padded, or returned one by one for padded_batch\(\); in map\(batched=\), element_spec= says which "
            r"axis differs\) for element 0\."
        ),
    ),
    "a name in a mapping that is missing": (
        lambda: list(ps.range(5).map(lambda x: UserDict(ids=x) if x else UserDict(ids=x, mask=x))),
        ValueError,
        r"map\(<lambda>\) at .* returned the structure \{'ids': \(\) int64\} for element 1, but its element_spec is .*",
    ),
    "a dtype that loses digits": (
        lambda: list(ps.range(5).map(lambda x: x / 3, element_spec=ps.ArraySpec((), "float32"))),
        ValueError,
        (
            r".* returned an array of \(\) float64 for element 0, but its element_spec is \(\) float32 \(as declared\)"
            r"\. Numbers are cast where none can change, and these could\. Return np\.asarray\(x, 'float32'\); or "
            r"declare ArraySpec\(\(\), 'float64'\) in element_spec=, and write cast\('float32'\) after this step\."
        ),
    ),
    "masked items": (
        lambda: list(ps.range(5).map(lambda x: np.ma.masked_equal([0, int(x)], 3))),
        ValueError,
        r"map\(<lambda>\) at .* returned a leaf that is a masked array, .*\) for element 3, but its element_spec is .*",
    ),
    "text that is no number": (
        lambda: list(ps.from_arrays(np.array(["1", "two"])).cast("float32")),
        RuntimeError,
        (
            r"cast\(float32\) cannot convert \(\) <U3: could not convert string to float: .*'two'.*\. Bring "
            r"the values into "
            r"a form that NumPy converts, with map\(\) before cast\(\)\."
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_text_of_error(name: str) -> None:
    assert_refused(*REFUSED[name])
