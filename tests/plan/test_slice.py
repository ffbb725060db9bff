import math

import pytest

import penstock as ps


def values(ds):
    return [int(x) for x in ds]


@pytest.mark.parametrize(
    "chosen",
    [
        slice(None), slice(2, 5), slice(-3, None), slice(None, -1), slice(None, None, -1), slice(8, 1, -3),
        slice(5, 2), slice(20, 30), slice(-99, 99, 2), slice(0, 0), slice(None, None, 99),
    ],
    ids=str,
)  # fmt: skip
def test_slice_is_that_of_a_list(chosen):
    ds = ps.range(10)[chosen]
    assert isinstance(ds, ps.Dataset)
    assert values(ds) == list(range(10))[chosen]
    assert len(ds) == len(range(10)[chosen])


def test_take_and_skip_divide_a_dataset():
    ds = ps.range(7)
    assert values(ds.take(3)) + values(ds.skip(3)) == values(ds)
    assert values(ds.take(99)) == values(ds)
    assert values(ds.take(0)) == values(ds.skip(99)) == []


def test_shards_are_every_countth_element_and_lose_none():
    shards = [ps.range(10).shard(k, 3) for k in range(3)]
    assert [values(shard) for shard in shards] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_slice_after_shuffle_is_of_the_shuffled_order():
    ds = ps.range(10).shuffle(4)
    assert values(ds[2:5]) == values(ds)[2:5]


def test_endless_dataset_is_sliced_from_its_start():
    endless = ps.range(3).repeat()
    assert endless[4:].length == endless.skip(2).length == endless[::2].length == math.inf
    assert values(endless[1:8:2]) == [1, 0, 2, 1]
    assert values(endless.shard(1, 2).take(3)) == [1, 0, 2]


@pytest.mark.parametrize("chosen", [slice(-3, None), slice(None, -1), slice(None, None, -1)], ids=str)
def test_endless_dataset_has_no_end_to_count_from(chosen):
    with pytest.raises(ps.ArgumentError, match="a dataset without an end cannot be counted from its end"):
        ps.range(3).repeat()[chosen]
