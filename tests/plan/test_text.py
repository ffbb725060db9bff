import json
import re

import numpy as np
import pytest

import penstock as ps
from penstock.plan._fold import Fold
from penstock.plan._text import difference, identity, origins, place_of


def test_repr_is_the_plan_as_a_tree():
    frames = ps.from_arrays(np.zeros((20, 3, 5)))
    ds = ps.zip({"x": frames[:-1], "y": frames[1:]}).shuffle(seed=1).batch(8)
    assert repr(ds) == (
        "batch(8): 3 elements, {'x': (None, 3, 5) float64, 'y': (None, 3, 5) float64}, random\n"
        "shuffle(seed=1): 19 elements, {'x': (3, 5) float64, 'y': (3, 5) float64}, random\n"
        "zip: 19 elements, {'x': (3, 5) float64, 'y': (3, 5) float64}, random\n"
        "├─ slice(:-1): 19 elements, (3, 5) float64, random\n"
        "│  from_arrays(array of (20, 3, 5) float64): 20 elements, (3, 5) float64, random\n"
        "└─ slice(1:): 19 elements, (3, 5) float64, random\n"
        "   from_arrays(array of (20, 3, 5) float64): 20 elements, (3, 5) float64, random"
    )


@pytest.mark.parametrize(
    ("verb", "label"),
    [
        (lambda ds: ds.shuffle(3, window=4, reshuffle=False), "shuffle(seed=3, window=4, reshuffle=False)"),
        (lambda ds: ds.windows(3, shift=2, stride=1), "windows(3, shift=2)"),
        (lambda ds: ds.windows(1, groups=[0] * 5), "windows(1, groups=...)"),
        (lambda ds: ds.batch(2, drop_remainder=True), "batch(2, drop_remainder=True)"),
        (lambda ds: ds.repeat(), "repeat()"),
        (lambda ds: ds.repeat(2), "repeat(2)"),
        (lambda ds: ds.take(2), "take(2)"),
        (lambda ds: ds.skip(2), "skip(2)"),
        (lambda ds: ds.shard(0, 2), "shard(0, 2)"),
        (lambda ds: ds[::-1], "slice(::-1)"),
        (lambda ds: ds.split(0.5, 0.5)[1], "split(1 of (0.5, 0.5))"),
        (lambda ds: ds.cast("float32"), "cast(float32)"),
        (lambda ds: ds.map(str.upper), "map(str.upper)"),
        (lambda ds: ds.random_map(np.add, seed=3), "random_map(add, seed=3)"),
        (lambda ds: ps.concatenate([ds]), "concatenate()"),
        (lambda ds: ps.interleave([ds]), "interleave()"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_step_reads_as_it_was_written(verb, label):
    assert repr(verb(ps.range(5))).splitlines()[0].startswith(f"{label}: ")


def test_repr_runs_no_function():
    def bomb(x):
        raise AssertionError("ran")

    ds = ps.range(4).map(bomb)
    for plan in (ds, ds.batch(2), ds.shuffle(), ds.unbatch(), ds.unbatch().map(bomb)):
        assert "spec is known when element 0 has run" in repr(plan)
    assert "unbatch(): unknown length" in repr(ds.unbatch().map(bomb))


def test_repr_reads_no_data():
    class Closed(ps.Source):
        element_spec = ps.ArraySpec((2,), "f4")

        def __len__(self):
            return 3

        def read_into(self, indices, out):
            raise AssertionError("read")

        def open(self):
            raise AssertionError("opened")

    assert "(2, 2) float32" in repr(ps.from_source(Closed()).shuffle().windows(2).batch(1))


def test_repr_of_a_plan_that_is_wrong_says_what_is_wrong():
    text = repr(ps.range(5).batch(2).batch(2).shuffle())
    assert text.startswith("shuffle(seed=0): is wrong: batch(2) stacks elements")
    assert text.endswith("range(5): 5 elements, () int64, random")


@pytest.mark.parametrize("count", [1, 1000, 10**12])
def test_lengths_read_as_people_write_them(count):
    expected = {1: "1 element,", 1000: "1,000 elements,", 10**12: "1,000,000,000,000 elements,"}[count]
    assert f": {expected}" in repr(ps.range(count))


def test_identity_is_a_step_and_six_digits_each():
    line = identity(ps.zip((ps.range(9), ps.range(9))).shuffle(1).batch(2)._node)
    steps = r"\[range#_{6} \| range#_{6}\] > zip#_{6} > shuffle#_{6} > batch#_{6}".replace("_", "[0-9a-f]")
    assert re.fullmatch(steps, line)


def plan_of(seed=1, size=4, fn=np.negative, count=9):
    return identity(ps.range(count).shuffle(seed).map(fn).batch(size)._node)


def test_identity_is_that_of_the_plan_and_not_of_the_objects():
    assert plan_of() == plan_of()
    assert len({plan_of(), plan_of(seed=2), plan_of(size=5), plan_of(fn=np.abs), plan_of(count=10)}) == 5


def test_function_is_known_by_its_name_alone():
    def build(body):
        def augment(x):
            return body(x)

        return identity(ps.range(3).map(augment)._node)

    assert build(np.negative) == build(np.abs)


def test_identity_of_a_file_is_that_of_its_data_wherever_it_lies(tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((4, 2)))
    a, b = (identity(ps.from_npy(tmp_path / name)._node) for name in ("a.npy", "b.npy"))
    assert a == b


def test_identity_of_a_long_plan_is_folded_and_still_tells_plans_apart():
    def long(seed):
        ds = ps.range(100)
        for number in range(60):
            ds = ds.shuffle(seed).take(50) if number == 30 else ds.shuffle(number)
        return ds

    a, b = identity(long(1)._node), identity(long(2)._node)
    assert a != b
    assert " > ...#" in a
    state = {"version": 1, "plan": a, "epoch": 2**60, "position": 2**60}
    assert len(json.dumps(state)) < 500
    found = difference(a, b, long(2)._node)
    assert found.startswith("the arguments of one of these steps changed: shuffle, take (saved ...#")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (plan_of(seed=2), "step 2 differs: the arguments of shuffle changed (saved shuffle#"),
        (plan_of(size=5), "step 4 differs: the arguments of batch changed (saved batch#"),
        (identity(ps.range(9).batch(4)._node), "step 2 differs: it was shuffle and is batch (saved shuffle#"),
        (plan_of(count=10), "step 1 differs: the length or spec of range changed (saved range#"),
        (plan_of() + " > take#000000", "it had 4 steps, this one has 5 (saved range#"),
    ],
    ids=["seed", "size", "verb", "data", "number"],
)
def test_difference_is_the_first_step_that_differs(other, message):
    assert difference(plan_of(), other, ps.range(3)._node).startswith(message)


def test_a_wide_element_and_many_datasets_are_printed_in_part():
    wide = repr(ps.from_arrays({f"x{number:02d}": np.zeros(3) for number in range(50)}))
    assert wide.startswith("zip: 3 elements, ['x00']: () float64, ['x01']: () float64, ")
    assert "and 38 more leaves, random" in wide
    assert "['x12']: " not in wide
    lines = repr(ps.concatenate([ps.range(3)] * 100)).split("\n")
    assert len(lines) == 18
    assert lines[16:] == ["├─ ... 84 more", "└─ range(3): 3 elements, () int64, random"]


def test_of_a_part_of_a_batch_its_own_elements_are_named() -> None:
    batches = ps.range(40).map(lambda x: x).batch(8).cast("int32")
    assert origins(batches._node, 0, 2) == ", made of the integer 16, the integer 17"
    assert origins(batches._node, 0, 2, slice(3, 4)) == ", made of the integer 19"
    pairs = ps.zip((batches, batches[::-1]))._node
    assert origins(pairs, 0, 2, slice(7, 8)) == ", made of the integer 23, the integer 23"


def test_what_a_worker_was_folding_is_an_element_of_the_input() -> None:
    fold = Fold(ps.range(200)._node, 64, False, max, None, "train.py:1")
    assert place_of((1, 0, 150), fold) == "reduce(max) at train.py:1 on element 150 of epoch 0, made of the integer 150"
