import json
import re

import numpy as np
import pytest

import penstock as ps
from penstock.plan._fold import Fold
from penstock.plan._text import difference, identity, is_line_of, origins, place_of


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


def long_plan(changed: int | None = None, count: int = 60, more: int = 0) -> ps.Dataset:
    """Many steps, of which one may be another one, or more stand in the middle."""
    ds = ps.range(1000)
    for number in range(count):
        ds = ds.shuffle(number + (1000 if number == changed else 0)) if number % 3 else ds.take(900 - number)
        if number == count // 2:
            for _ in range(more):
                ds = ds.repeat(1)
    return ds


def test_identity_of_a_long_plan_is_folded_and_still_tells_plans_apart() -> None:
    a, b = identity(long_plan()._node), identity(long_plan(31)._node)
    assert a != b
    assert " > ...#" in a
    state = {"version": 1, "plan": a, "epoch": 2**60, "position": 2**60}
    assert len(json.dumps(state)) < 500


def test_the_line_of_a_long_plan_is_known_however_it_was_folded() -> None:
    node, other = long_plan()._node, long_plan(31)._node
    for limit in (180, 320, 10_000):
        assert len(identity(node, limit)) <= limit
        assert is_line_of(identity(node, limit), node)
        assert not is_line_of(identity(node, limit), other)


@pytest.mark.parametrize("count", [9, 60, 300])
def test_the_step_of_a_long_plan_that_changed_is_named(count: int) -> None:
    for changed in (each for each in (1, 2, 5, count // 2 + 1, count - 2, count - 1) if each % 3):
        found = difference(identity(long_plan(changed, count)._node), long_plan(None, count)._node)
        wanted = re.match(r"(?:step|one of the steps from) (\d+)(?: to (\d+))? differs: the arguments of ", found)
        assert wanted, found
        first, last = int(wanted[1]), int(wanted[2] or wanted[1])
        assert first <= changed + 2 <= last < first + 5
        assert "the arguments of shuffle changed" in found or count == 300


def test_a_step_more_in_a_long_plan_is_named_where_it_stands() -> None:
    found = difference(identity(long_plan()._node), long_plan(more=1)._node)
    assert found == "step 33 differs: here it is repeat"


def test_what_a_line_has_no_letters_for_is_named_among_others() -> None:
    a, b = identity(long_plan(31)._node), long_plan()._node
    found = difference(re.sub(r":[^ ]+", "", a), b)
    assert found.startswith("the arguments of one of these steps changed: shuffle, take (saved range#")


def test_steps_of_each_input_are_counted_and_a_source_is_one_by_its_place() -> None:
    def both(n: int, seed: int) -> ps.Dataset:
        return ps.concatenate([ps.range(9).shuffle(1), ps.range(n).shuffle(seed)]).batch(2)

    saved = identity(both(5, 2)._node)
    assert difference(saved, both(6, 2)._node).startswith("step 3 differs: the length or spec of range changed (saved ")
    assert difference(saved, both(5, 3)._node).startswith("step 4 differs: the arguments of shuffle changed (saved ")


def different_plan(seed: int = 1, size: int = 4, count: int = 9) -> ps.Dataset:
    return ps.range(count).shuffle(seed).map(np.negative).batch(size)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (plan_of(seed=2), "step 2 differs: the arguments of shuffle changed (saved shuffle#"),
        (plan_of(size=5), "step 4 differs: the arguments of batch changed (saved batch#"),
        (identity(ps.range(9).batch(4)._node), "step 2 differs: it was batch and is shuffle (saved batch#"),
        (plan_of(count=10), "step 1 differs: the length or spec of range changed (saved range#"),
        (plan_of() + " > take#000000", "it had 5 steps, this one has 4 (saved range#"),
        ("", "it had 0 steps, this one has 4 (saved , here range#"),
        ("...#", "the arguments of one of these steps changed: range, shuffle, map, batch (saved ...#"),
        ("a#1 > ...#", "step 1 differs: it was a and is range"),
        ("...#0:x > a#1 > b#2 > c#3 > d#4 > e#5 > f#6", "step 1 differs: here it is range"),
    ],
)
def test_difference_is_the_first_step_that_differs(saved: str, message: str) -> None:
    assert difference(saved, different_plan()._node).startswith(message)


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
