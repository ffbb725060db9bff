import math
from collections import namedtuple

import numpy as np
import pytest

import penstock as ps
from penstock.base._random import seeded_globals
from penstock.plan._reader import OpenSources, Reader

Pair = namedtuple("Pair", "left right")


def values(ds):
    return [int(x) for x in ds]


def test_zip_puts_elements_into_the_tree_it_was_given():
    ds = ps.zip({"z": ps.range(3), "a": (ps.range(3)[::-1], Pair(ps.range(3), ps.range(3)))})
    assert ds[0] == {"z": 0, "a": (2, Pair(0, 0))}
    assert list(ds[0]) == ["z", "a"]
    assert isinstance(ds[0]["a"][1], Pair)
    assert ds.element_spec["a"][1].left == ps.ArraySpec((), "int64")


def test_stacks_of_a_zip_are_taken_apart_in_the_same_memory():
    stacks = ps.from_arrays(np.arange(12).reshape(4, 3)).map(lambda row: row)
    node = ps.zip((stacks, stacks)).unbatch()._node
    reader = Reader(node, OpenSources(node), isolation=seeded_globals)
    places = [reader.kept(0, index).arrays[0].ctypes.data for index in range(4)]
    assert len(set(places)) == 1
    assert reader.kept(0, 3).arrays[0].tolist() == [[9, 10, 11]]


def test_zip_of_trees_nests_them():
    ds = ps.zip((ps.from_arrays({"x": np.zeros((2, 3)), "y": np.ones(2)}), ps.range(2)))
    x, y = ds.batch(2)[0]
    assert x["x"].shape == (2, 3)
    assert y.tolist() == [0, 1]


def test_zip_refuses_unequal_lengths_and_lists_all():
    with pytest.raises(ps.ArgumentError) as caught:
        ps.zip((ps.range(3), {"x": ps.range(4), "y": ps.range(5).repeat()}))
    assert "they are [0]: 3 elements, [1]['x']: 4 elements, [1]['y']: endless." in str(caught.value)


def test_endless_dataset_takes_the_length_of_the_others():
    ds = ps.zip((ps.range(5), ps.range(2).repeat()))
    assert [(int(x), int(y)) for x, y in ds] == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]
    assert ps.zip((ps.range(2).repeat(), ps.range(3).repeat())).length == math.inf


def test_zip_of_one_dataset_is_still_a_tree():
    assert ps.zip((ps.range(2),))[1] == (1,)


def test_concatenate_is_end_to_end_and_passes_over_empty_ones():
    ds = ps.concatenate([ps.range(2), ps.range(0), ps.range(3), ps.range(0)])
    assert values(ds) == [0, 1, 0, 1, 2]
    assert [int(ds[i]) for i in (-1, 2, 1)] == [2, 0, 1]


def test_last_of_a_concatenation_may_be_endless():
    ds = ps.concatenate([ps.range(2), ps.range(1).repeat()])
    assert ds.length == math.inf
    assert int(ds[10**12]) == 0


def test_concatenation_of_unlike_elements_says_which_and_how():
    ds = ps.concatenate([ps.range(2), ps.range(2), ps.range(2).cast("float32")])
    with pytest.raises(ps.SpecError, match=r"dataset 2 differs .* leaf of \(\) int64, the other of \(\) float32"):
        _ = ds.element_spec


def test_interleave_deals_until_all_are_exhausted():
    ds = ps.interleave([ps.range(4), ps.range(0), ps.range(2).map(lambda x: x + 10), ps.range(3)])
    assert values(ds) == [0, 10, 0, 1, 11, 1, 2, 2, 3]
    assert [int(ds[i]) for i in range(len(ds))] == values(ds)


def test_interleave_with_an_endless_dataset_goes_on_with_it():
    ds = ps.interleave([ps.range(2), ps.range(3).map(lambda x: x + 10).repeat()])
    assert ds.length == math.inf
    assert values(ds.take(7)) == [0, 10, 1, 11, 12, 10, 11]


def test_interleave_of_one_dataset_is_that_dataset():
    assert values(ps.interleave([ps.range(3)])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (ps.concatenate, [[0, 1], [2, 3], [0, 1, 2], [3, 4, 5], [6]]),
        (ps.interleave, [[0, 1], [0, 1, 2], [2, 3], [3, 4, 5], [6]]),
    ],
)
def test_batches_of_other_sizes_come_whole(join, expected):
    ds = join([ps.range(4).batch(2), ps.range(7).batch(3)])
    assert [x.tolist() for x in ds] == expected
    assert ds.element_spec == ps.ArraySpec((None,), "int64")
    with ds.loader(executor="threads", workers=2) as loader:
        assert [x.tolist() for x in loader] == expected
    assert [x.tolist() for x in ds.map(np.negative)] == [[-i for i in batch] for batch in expected]


def test_fixed_elements_beside_short_batches_come_whole():
    ds = ps.concatenate([ps.from_arrays(np.full((2, 2), 7)), ps.range(4).batch(3)])
    assert [x.tolist() for x in ds] == [[7, 7], [7, 7], [0, 1, 2], [3]]


def test_fixed_elements_beside_ragged_ones_come_whole():
    ragged = ps.range(3).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))
    ds = ps.concatenate([ps.from_arrays(np.full((2, 2), 7)), ragged])
    assert [x.tolist() for x in ds] == [[7, 7], [7, 7], [], [0], [0, 1]]


@pytest.mark.usefixtures("auto_workers_stay")
def test_datasets_that_are_put_end_to_end_one_by_one_are_one_step():
    ds = ps.range(2)
    for _ in range(1000):
        ds = ps.concatenate([ds, ps.range(2)])
    assert ds.length == 2002
    assert [int(x) for x in (ds[0], ds[1001], ds[-1])] == [0, 1, 1]
    with ds.shuffle(seed=1).batch(500).loader("processes") as loader:
        assert np.sort(np.concatenate(list(loader))).tolist() == [0] * 1001 + [1] * 1001
    both = ps.concatenate([ps.range(1), ps.concatenate([ps.range(2), ps.range(3)])])
    assert (
        both.loader("inline").get_state()
        == ps.concatenate([ps.range(1), ps.range(2), ps.range(3)]).loader("inline").get_state()
    )


def test_what_is_endless_among_parts_is_told_by_the_number_that_the_user_gave():
    endless = ps.concatenate([ps.range(1), ps.range(1), ps.range(2).repeat()])
    assert endless.length == math.inf
    with pytest.raises(ps.ArgumentError, match=r"concatenate\(\): dataset 0 is endless"):
        ps.concatenate([endless, ps.range(1)])


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_batches_and_ragged_elements_concatenate(executor):
    spec = ps.ArraySpec((None,), "int64")
    ragged = ps.range(3).map(lambda i: np.arange(int(i)), element_spec=spec)
    dataset = ps.concatenate([ps.range(8).batch(4), ragged])
    with dataset.loader(executor=executor) as loader:
        assert [x.tolist() for x in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [], [0], [0, 1]]


def test_batches_with_room_for_more_rows_stand_beside_full_ones_with_as_many():
    short = ps.range(2).batch(3)  # has room for three rows
    for ds in (ps.zip((ps.range(2).batch(2), short)), ps.zip((short, ps.range(2).batch(2)))):
        for executor in ("inline", "threads"):
            with ds.loader(executor=executor) as loader:
                ((left, right),) = loader
            assert left.tolist() == right.tolist() == [0, 1]
