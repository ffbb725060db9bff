import math
from typing import Any

import numpy as np
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


# Random numbers after `shard`.


def drawn(_: Any, rng: Any) -> int:
    return int(rng.integers(1 << 40))


@pytest.mark.parametrize(
    "whole",
    [
        ps.range(20),
        ps.range(10).map(lambda x: x * 2),
        ps.range(20).filter(lambda x: x % 3 > 0),
        ps.from_generator(range, 11, element_spec=ps.ArraySpec((), "int64")),
    ],
    ids=["random access", "a function", "a filter", "a generator"],
)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_shard_draws_what_the_whole_dataset_draws_for_its_elements(whole: ps.Dataset, executor: Any) -> None:
    with whole.random_map(drawn).loader(executor) as loader:
        want = [int(x) for x in loader] + [int(x) for x in loader]
    for index in range(3):
        with whole.shard(index, 3).random_map(drawn).loader(executor) as loader:
            assert [int(x) for x in loader] == want[: len(want) // 2][index::3]
            assert [int(x) for x in loader] == want[len(want) // 2 :][index::3]


def test_no_two_shards_draw_the_same_whatever_is_between() -> None:
    found = [
        int(x)
        for outer in range(2)
        for inner in range(3)
        for x in ps.range(48).shard(outer, 2).shard(inner, 3).shuffle(1).take(6).repeat(2).batch(2).random_map(drawn)
    ]
    assert len(set(found)) == len(found) == 36
    one = ps.range(48).shard(1, 2)
    both = ps.zip((one, ps.range(24))).random_map(drawn)
    assert [int(x) for x in both] == [int(x) for x in one.random_map(drawn)]


@pytest.mark.parametrize("read", [list, lambda ds: list(ds.loader())], ids=["iterated", "loaded"])
def test_rows_that_are_read_alone_draw_as_rows_of_whole_elements(read: Any) -> None:
    arrays = ps.from_arrays(np.zeros((12, 2, 3)))
    alone = arrays.shard(1, 2).shard(1, 3).unbatch().random_map(drawn)
    whole = arrays.map(np.copy).shard(1, 2).shard(1, 3).unbatch().random_map(drawn)
    assert list(map(int, read(alone))) == list(map(int, read(whole)))
    assert len(set(map(int, read(alone)))) == 4


def test_a_cache_that_is_complete_changes_no_numbers() -> None:
    plan = ps.range(10).shard(1, 3).map(lambda x: x * 2)
    with plan.random_map(drawn).loader("inline") as loader:
        want = [[int(x) for x in loader] for _ in range(3)]
    with plan.cache().random_map(drawn).loader(workers=1) as loader:
        assert [[int(x) for x in loader] for _ in range(3)] == want


def test_global_generators_are_seeded_by_the_number_in_all_shards() -> None:
    whole = [float(x) for x in ps.range(9).map(lambda x: np.random.rand())]
    shard = [float(x) for x in ps.range(9).shard(2, 4).map(lambda x: np.random.rand())]
    assert shard == whole[2::4]


def test_a_plan_without_a_shard_draws_by_position() -> None:
    assert [int(x) for x in ps.range(9)[2::4].random_map(drawn)] == [int(x) for x in ps.range(2).random_map(drawn)]
