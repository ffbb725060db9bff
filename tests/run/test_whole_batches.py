"""Ranks that get whole batches in turn: batches of unequal size, and of a size that is not known ahead."""

import itertools
import logging
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")

LENGTHS = np.random.default_rng(0).integers(1, 30, 300)


def sequence(number: Any) -> Any:
    return np.full(LENGTHS[number], number)


def boxes(rows: Any) -> Any:
    """A batch with another number of boxes than of images."""
    return {"image": rows, "boxes": np.repeat(rows, rows % 4), "graph": np.array([rows.sum(), 7])}


BOXES = {
    "image": ps.ArraySpec((None,), "int64", (4,)),
    "boxes": ps.ArraySpec((None,), "int64"),
    "graph": ps.ArraySpec((2,), "int64"),
}
PLANS: dict[str, ps.Dataset] = {
    "copies": ps.from_arrays({"x": np.arange(112).reshape(56, 2)}).shuffle(seed=1).batch(3),
    "functions": ps.range(50).shuffle(seed=1).map(lambda x: x * 2).batch(4),
    "buckets": ps.range(300).map(sequence).shuffle(seed=1).bucket_by_length(lengths=LENGTHS, max_tokens=90),
    "padded": ps.range(50).map(sequence).padded_batch(3),
    "boxes": ps.range(57).shuffle(seed=2).batch(4).map(boxes, element_spec=BOXES),
    "ragged": ps.range(50).map(sequence, element_spec=ps.ArraySpec((None,), "int64")).shuffle(1).ragged_batch(3),
    "packs": ps.range(300).map(sequence).shuffle(seed=1).pack(40, lengths=LENGTHS, fit="best").batch(4),
    "windows": ps.from_arrays(np.arange(60)).windows(5).batch(4),
    "random": ps.range(50).random_map(lambda x, rng: x + rng.integers(1000)).batch(3),
    "a stream": ps.range(60).filter(lambda x: x % 3 > 0).map(lambda x: x * 2).batch(3),
    "buckets of a stream": ps.range(100).map(sequence).bucket_by_length(len, [10, 20], [5, 4, 3]),
    "a generator": ps.from_generator(range, 50, element_spec=ps.ArraySpec((), "int64")).batch(4),
}


def taken(dataset: ps.Dataset, count: int, states: Any = None, **options: Any) -> list[list[Any]]:
    """What each of some ranks gets in an epoch."""
    found = []
    for index in range(count):
        with dataset.loader(shard=(index, count), whole_batches=True, **options) as loader:
            if states is not None:
                loader.set_state(states)
            found.append([copy_of(batch) for batch in loader])
    return found


def copy_of(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: np.array(value) for key, value in batch.items()}
    return tuple(map(copy_of, batch)) if isinstance(batch, tuple) else np.array(batch)


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PLANS)
def test_ranks_take_batches_in_turn(name: str, executor: Any) -> None:
    with PLANS[name].loader("inline") as loader:
        want = [copy_of(batch) for batch in loader]
    for count in (1, 2, 3):
        ranks = taken(PLANS[name], count, executor=executor)
        assert {len(mine) for mine in ranks} == {len(want) // count}
        for position, batch in enumerate(want[: len(want) // count * count]):
            assert_same(ranks[position % count][position // count], batch)


def test_the_length_is_that_of_a_rank_and_the_spec_that_of_a_batch() -> None:
    dataset = PLANS["buckets"]
    with dataset.loader(shard=(2, 3), whole_batches=True) as loader:
        assert len(loader) == len(list(loader)) == len(dataset) // 3
        assert loader.element_spec == dataset.element_spec


@pytest.mark.parametrize("name", ["buckets", "copies", "boxes", "a stream"])
def test_a_state_of_some_ranks_goes_on_with_another_number(name: str) -> None:
    want = [copy_of(batch) for batch in PLANS[name].loader("inline")]
    got, state = [], None
    for count, step_count in ((5, 1), (3, 1), (2, 2), (1, 99)):
        ranks, states = [], []
        for index in range(count):
            with PLANS[name].loader("threads", shard=(index, count), whole_batches=True) as loader:
                if state is not None:
                    loader.set_state(state)
                ranks.append([copy_of(batch) for batch in itertools.islice(loader, step_count)])
                states.append(loader.get_state())
        got += [batch for step in zip(*ranks, strict=True) for batch in step]
        assert all(each == states[0] for each in states)
        state = states[0]
        assert state["position"] == (len(got) if len(got) < len(want) else 0)
    for mine, batch in zip(got, want, strict=True):
        assert_same(mine, batch)
    assert state["epoch"] == 1


def test_an_epoch_after_the_rest_of_one_is_whole() -> None:
    dataset = ps.range(20).batch(2)
    with dataset.loader(shard=(0, 3), whole_batches=True) as loader:
        loader.set_state({**loader.get_state(), "position": 5})
        assert loader.rest_count() == 1
        assert [batch.tolist() for batch in loader] == [[10, 11]]
        assert loader.rest_count() == len(loader) == 3
        assert [batch.tolist() for batch in loader] == [[0, 1], [6, 7], [12, 13]]


def test_a_state_with_too_few_batches_for_a_step_begins_the_next_epoch() -> None:
    with ps.range(20).batch(2).loader(shard=(0, 4), whole_batches=True) as loader:
        loader.set_state({**loader.get_state(), "position": 8})
        assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (1, 0)
    with ps.range(20).batch(2).loader(shard=(3, 4), whole_batches=True, uneven="pad") as loader:
        loader.set_state({**loader.get_state(), "position": 8})
        assert [(batch.tolist(), float(weight)) for batch, weight in loader] == [([18, 19], 0.0)]


def test_another_size_of_batches_goes_on_behind_the_last_element() -> None:
    with ps.range(40).batch(3).loader(shard=(0, 2), whole_batches=True) as loader:
        next(iter(loader))
        state = loader.get_state()
    ranks = taken(ps.range(40).batch(5), 3, states=state)
    assert [batch.tolist() for step in zip(*ranks, strict=True) for batch in step] == [
        list(range(first, first + 5)) for first in range(6, 36, 5)
    ]


# The end of an epoch.


def test_the_weights_of_a_last_step_make_the_mean_over_its_batches() -> None:
    dataset = ps.range(14).batch(2)
    ranks = taken(dataset, 4, uneven="pad")
    last = np.float32(4 / 3)
    assert [[weight for _, weight in mine] for mine in ranks] == [[1, last], [1, last], [1, last], [1, 0]]
    losses = [[weight * rows.mean() for rows, weight in mine] for mine in ranks]
    assert np.isclose(np.mean([mine[1] for mine in losses]), np.arange(8, 14).mean())
    assert ranks[3][1][0].tolist() == [12, 13]  # the last batch once more
    with dataset.loader(uneven="pad", whole_batches=True) as loader:
        assert loader.element_spec == (ps.ArraySpec((2,), "int64"), ps.ArraySpec((), "float32"))
        assert {float(weight) for _, weight in loader} == {1.0}


def test_more_ranks_than_batches_are_filled_up_or_refused() -> None:
    ranks = taken(ps.range(6).batch(2), 64, uneven="pad")
    assert [float(weight) for ((_, weight),) in ranks] == [np.float32(64 / 3)] * 3 + [0.0] * 61
    with pytest.raises(
        ps.ArgumentError, match=r"has 3 batches, too few for a whole batch for each of 64 ranks\. .*'pad'"
    ):
        ps.range(6).batch(2).loader(shard=(0, 64), whole_batches=True)


# Micro-batches.


@pytest.mark.parametrize("name", ["buckets", "copies", "a stream"])
def test_micro_batches_are_whole_batches(name: str) -> None:
    """Two ranks with two each make the steps of four ranks."""
    four = taken(PLANS[name], 4)
    two = taken(PLANS[name], 2, micro_batches=2)
    for step in range(len(four[0])):
        for number in range(4):
            assert_same(two[number % 2][step * 2 + number // 2], four[number][step])
    assert {len(mine) for mine in two} == {2 * len(four[0])}


def test_a_state_within_a_step_has_the_step_again() -> None:
    with ps.range(24).batch(2).loader(shard=(0, 2), whole_batches=True, micro_batches=3) as loader:
        found = iter(loader)
        for number in range(4):
            assert loader.get_state()["position"] == (0 if number < 3 else 6)
            assert next(found).tolist() == [4 * number, 4 * number + 1]
        state = loader.get_state()
        loader.set_state(state)
        assert loader.rest_count() == 3
        assert [batch.tolist() for batch in loader] == [[12, 13], [16, 17], [20, 21]]
        assert len(loader) == 6


def test_an_iteration_that_ends_within_a_step_ends_its_epoch() -> None:
    with ps.range(24).batch(2).loader(shard=(0, 2), whole_batches=True, micro_batches=3) as loader:
        next(iter(loader))
        assert [batch[0] for batch in loader] == [0, 4, 8, 12, 16, 20]
        assert loader.get_state()["epoch"] == 2


# Messages.


def test_the_log_says_that_each_rank_reads_all_of_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        PLANS["a stream"].loader("inline", shard=(0, 3), whole_batches=True).close()
        PLANS["copies"].loader("inline", shard=(0, 3), whole_batches=True).close()
    (record,) = caplog.records
    assert record.getMessage() == (
        "batch(3) is a stream, so each of 3 ranks reads all of it, and leaves out the batches of the others. The "
        "elements of 3 batches wait in memory for a step."
    )


def test_errors_of_copied_files_have_that_number(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.zeros((40, 1000)))
    dataset = ps.from_npy(tmp_path / "x.npy").batch(2)
    with dataset.loader("threads", prefetch=1, shard=(1, 4), whole_batches=True) as loader:
        found = iter(loader)
        next(found)
        with open(tmp_path / "x.npy", "r+b") as file:
            file.truncate(100)
        with pytest.raises(ps.SourceError) as caught:
            list(found)
    (note,) = (note for note in caught.value.__notes__ if note.startswith("This was in batch "))
    assert int(note.split()[4]) in (5, 9, 13, 17), note


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_errors_have_the_number_among_the_batches_of_all_ranks(executor: Any) -> None:
    dataset = ps.range(24).map(lambda x: 1 // (x - 14)).batch(2)
    with dataset.loader(executor, workers=1, shard=(1, 3), whole_batches=True) as loader:
        found = iter(loader)
        next(found)
        next(found)
        with pytest.raises(ps.ElementError) as caught:
            next(found)
    assert "This was in batch 7 of epoch 0." in caught.value.__notes__


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (
            PLANS["padded"],
            {"shard": (0, 2)},
            r"whose size is not known ahead\. Give ranks whole batches: whole_batches=True\. Or pad to one: padded",
        ),
        (PLANS["boxes"], {"shard": (0, 2)}, r"whose size is not known ahead\. Give ranks whole batches"),
        (
            ps.range(8).batch(4).map(lambda rows: {"a": rows, "b": rows[:3]}),
            {"shard": (0, 2)},
            r"without a common first axis\. .* give them to ranks whole: whole_batches=True\.",
        ),
        (
            PLANS["copies"],
            {"shard": (0, 2)},
            r"cannot share evenly\. Give ranks whole batches: whole_batches=True\. Or ",
        ),
        (
            PLANS["copies"],
            {"whole_batches": True, "uneven": "mask"},
            "is about rows of a batch, but here ranks share whole",
        ),
        (
            PLANS["copies"],
            {"uneven": "pad"},
            "is about whole batches, but here ranks share rows. Use whole_batches=True",
        ),
        (PLANS["a stream"], {"whole_batches": True, "uneven": "pad"}, "no rank knows which step is the last"),
        (PLANS["copies"], {"whole_batches": True, "shard": (0, 2), "on_error": "skip"}, "ranks may fail differently"),
        (
            ps.range(8).batch(2),
            {"whole_batches": True, "shard": (0, 2), "micro_batches": 3},
            "has 4 batches, too few for 3 whole batches for each of 2 ranks",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(dataset: ps.Dataset, options: Any, message: str) -> None:
    with pytest.raises(ps.ArgumentError, match=message):
        dataset.loader("inline", **options)
