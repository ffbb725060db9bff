"""Rows that fill batches up, before Keras gets them; what Keras makes of them is tested in `test_keras_uneven.py`."""

import re
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.adapters._filled import FilledUp
from penstock.base._tree import flatten
from penstock.plan._batch import element_count


def loader_of(count: int, size: int, shard: tuple[int, int] = (0, 1), **options: Any) -> Any:
    return ps.range(count).batch(size).loader("inline", uneven="mask", shard=shard, **options)


@pytest.mark.parametrize(
    ("count", "size", "ranks", "parts"), [(13, 8, 1, 1), (13, 8, 3, 1), (26, 8, 2, 2), (9, 8, 4, 1)]
)
def test_what_is_left_of_all_shares_is_every_row_once(count: int, size: int, ranks: int, parts: int) -> None:
    found: list[int] = []
    for rank in range(ranks):
        with loader_of(count, size, (rank, ranks), micro_batches=parts) as loader:
            filled = FilledUp(loader)
            left = [filled.left(flatten(batch)[0], keeps_one=False) for batch in loader]
        assert filled.fills_up
        assert filled.may_be_empty or None not in left
        for rows, weights in filter(None, left):
            assert len(rows) == len(weights)
            assert (weights == 1).all()
            assert weights.dtype == np.float32
            found += rows.tolist()
    assert sorted(found) == list(range(count))


def test_a_step_without_rows_keeps_one_that_weighs_nothing() -> None:
    with loader_of(10, 8, (1, 2)) as loader:
        steps = [FilledUp(loader).left(flatten(batch)[0], keeps_one=True) for batch in loader]
    assert [(rows.tolist(), weights.tolist()) for rows, weights in steps] == [([4, 5, 6, 7], [1] * 4), ([8], [0])]


def test_weights_of_an_evaluation_make_its_mean_over_all_rows_the_mean_of_those_that_count() -> None:
    totals = []
    for rank in range(2):
        with loader_of(13, 8, (rank, 2)) as loader:
            filled = FilledUp(loader)
            scale = filled.scale("evaluate", None, None, 0)
            steps = [filled.weighed(flatten(batch)[0], scale) for batch in loader]
        totals.append([np.mean(rows * weights) for rows, weights in steps])
    assert np.mean(totals) == pytest.approx(6)


BATCHES = ps.range(10).batch(4)


@pytest.mark.parametrize(
    "dataset",
    [
        BATCHES.sample(np.array([1.0, 1.0, 8.0])),
        BATCHES.take(2).repeat(2).take(3),
        ps.concatenate([BATCHES.skip(2), BATCHES.take(2)]),
        BATCHES.repeat(2).shuffle(1).take(3),
        ps.mix([BATCHES, BATCHES], [1, 1]).take(3),
    ],
    ids=["sample", "repeat", "concatenate", "shuffle", "mix"],
)
def test_the_number_of_elements_is_unknown_where_batches_are_chosen_again(dataset: ps.Dataset) -> None:
    assert dataset.length == BATCHES.length
    assert element_count(dataset._node) is None
    with (
        dataset.loader("inline", uneven="mask", shard=(0, 2)) as loader,
        pytest.raises(ps.ArgumentError, match="the number of elements that it measures on is not known ahead"),
    ):
        FilledUp(loader).scale("evaluate", None, None, 0)


@pytest.mark.parametrize(
    "dataset",
    [
        BATCHES,
        BATCHES.shuffle(1),
        BATCHES.shuffle(1, window=2),
        BATCHES.cast("int32").map(lambda x: x + 1),
        BATCHES.cache(limit=1 << 20).repeat(1),
        BATCHES[::-1].take(5),
        ps.zip((BATCHES, ps.range(9).sample(np.ones(9), count=3))),
    ],
    ids=["batch", "shuffle", "window", "cast and map", "cache", "backwards", "zip"],
)
def test_the_number_of_elements_is_known_where_each_batch_comes_once(dataset: ps.Dataset) -> None:
    assert element_count(dataset._node) == 10


def test_weights_in_training_make_the_mean_of_each_batch_that_of_its_rows() -> None:
    with loader_of(13, 8) as loader:
        filled = FilledUp(loader)
        assert filled.scale("fit", None, None, 0) is None
        steps = [filled.weighed(flatten(batch)[0], None) for batch in loader]
    assert [np.mean(rows * weights) for rows, weights in steps] == pytest.approx([3.5, 10])


@pytest.mark.parametrize(
    ("dataset", "asked", "message"),
    [
        (ps.range(13).batch(8), ("predict", None, None, 0), "predict() would return rows for these, too. Or make bat"),
        (ps.range(13).batch(8), ("evaluate", None, 1, 0), "is not known ahead. Let a step batch() make the batches"),
        (ps.range(13).batch(8), ("evaluate", None, None, 1), "is not known ahead"),
        (ps.range(13).batch(8).repeat(2), ("evaluate", None, None, 0), "is not known ahead"),
        (ps.range(13).filter(bool).batch(8), ("evaluate", None, None, 0), "is not known ahead"),
    ],
)
def test_what_weights_cannot_make_right_is_refused(dataset: ps.Dataset, asked: Any, message: str) -> None:
    with (
        dataset.loader("inline", uneven="mask") as loader,
        pytest.raises(ps.ArgumentError, match=re.escape(message)) as caught,
    ):
        FilledUp(loader).scale(*asked)
    assert str(caught.value).startswith(
        "uneven='mask' fills batches up with rows that do not count, keras.distribution"
    )


def test_training_in_several_processes_is_refused_where_each_would_need_the_rows_of_the_others() -> None:
    with (
        loader_of(13, 8, (0, 2)) as loader,
        pytest.raises(ps.ArgumentError, match="does not know how many there are in the others"),
    ):
        FilledUp(loader).scale("fit", None, None, 0)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict"])
def test_batches_that_need_no_filling_weigh_one(verb: str) -> None:
    with loader_of(16, 8, (1, 2)) as loader:
        assert FilledUp(loader).scale(verb, None, 1, 1) == 1


def test_a_shard_without_rows_is_refused() -> None:
    text = "Batches have at most 5 elements, of which shard=(3, 4) would get none: shares are of 2. Use"
    with loader_of(10, 5, (3, 4)) as loader, pytest.raises(ps.ArgumentError, match=re.escape(text)):
        FilledUp(loader)
