"""A saved epoch that goes on with batches of another size."""

import json
from typing import Any

import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


def plan(size: int, *, drop_remainder: bool = False) -> ps.Dataset:
    return ps.range(100).shuffle(seed=1).map(lambda x: x + 1).batch(size, drop_remainder=drop_remainder)


def state_after(dataset: ps.Dataset, count: int) -> dict[str, Any]:
    with dataset.loader("inline") as loader:
        for _ in zip(range(count), loader, strict=False):
            pass
        return loader.get_state()


def epoch(number: int) -> list[int]:
    with plan(10).loader("inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": number})
        return numbers(loader)


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_the_rest_of_the_epoch_has_other_batches_and_the_next_one_is_whole(executor: Any) -> None:
    with plan(16).loader(executor) as loader:
        loader.set_state(state_after(plan(10), 3))
        assert len(loader) == 7
        rest = list(loader)
        assert [len(batch) for batch in rest] == [16, 16, 16, 16, 6]
        assert numbers(rest) == epoch(0)[30:]
        assert loader.get_state() == state_after(plan(16), 0) | {"epoch": 1}
        assert numbers(loader) == epoch(1)
        assert len(loader) == 7
        assert loader.report().batches


def test_states_of_a_cut_epoch_say_where_it_was_cut() -> None:
    with plan(16).loader("inline") as loader:
        loader.set_state(state_after(plan(10), 3))
        batches = iter(loader)
        next(batches)
        state = loader.get_state()
        assert {name: state[name] for name in ("epoch", "position", "batch", "cut")} == {
            "epoch": 0,
            "position": 1,
            "batch": 16,
            "cut": 30,
        }
        rest = numbers(batches)
    for size in (16, 10, 7):
        with plan(size).loader("inline") as loader:
            loader.set_state(json.loads(json.dumps(state)))
            assert numbers(loader) == rest == epoch(0)[46:]


def test_a_break_in_a_cut_epoch_ends_it() -> None:
    with plan(16).loader("inline") as loader:
        loader.set_state(state_after(plan(10), 3))
        next(iter(loader))
        assert numbers(loader) == epoch(1)
        assert "cut" not in loader.get_state()


def test_an_evaluation_that_was_cut_begins_again_whole() -> None:
    torch_like = plan(16).loader("inline")
    torch_like.progress.same_epoch = True
    torch_like.set_state(state_after(plan(10), 3))
    assert numbers(torch_like) == epoch(0)[30:]
    assert numbers(torch_like) == epoch(0)
    torch_like.close()


def test_what_no_batch_holds_is_dropped_as_ever() -> None:
    state = state_after(plan(20), 4)
    with plan(16, drop_remainder=True).loader("inline") as loader:
        with pytest.raises(ps.StateError, match="the arguments of batch changed"):
            loader.set_state(state)
        state = state_after(plan(20, drop_remainder=True), 4)
        loader.set_state(state)
        assert [len(batch) for batch in loader] == [16]
    with plan(30, drop_remainder=True).loader("inline") as loader:
        loader.set_state(state)
        assert loader.get_state()["epoch"] == 1
        assert numbers(loader) == epoch(1)[:90]


def test_a_share_that_does_not_divide_the_rest_is_refused_and_changes_nothing() -> None:
    with plan(20).loader("inline", shard=(0, 4)) as loader:
        next(iter(loader))
        before = loader.get_state()
        with pytest.raises(ps.ArgumentError, match="The last batch has 10 elements, which 4 shards cannot share"):
            loader.set_state(state_after(plan(30), 1))
        assert loader.get_state() == before
        assert len(numbers(loader)) == 25


@pytest.mark.parametrize(
    "after",
    [
        lambda ds: ds.random_map(lambda x, rng: x, seed=1),
        lambda ds: ds.shuffle(seed=2),
        lambda ds: ds.repeat(2),
        lambda ds: ds.take(5),
    ],
    ids=["random_map", "shuffle", "repeat", "take"],
)
def test_steps_that_depend_on_the_number_of_a_batch_are_refused(after: Any) -> None:
    state = state_after(after(plan(10)), 3)
    assert "batch" not in state
    with pytest.raises(ps.StateError, match="the arguments of batch changed"):
        after(plan(16)).loader("inline").set_state(state)


def test_a_stream_is_refused() -> None:
    def stream(size: int) -> ps.Dataset:
        return ps.range(100).filter(lambda x: x % 3 > 0).batch(size)

    with pytest.raises(ps.StateError, match="the arguments of batch changed"):
        stream(16).loader("inline").set_state(state_after(stream(10), 3))
    state = state_after(plan(16), 0) | {"cut": 30}
    with pytest.raises(
        ps.StateError, match=r"Only random access.*on_error='skip', filter\(\) and generators make a stream"
    ):
        plan(16).loader("inline", on_error="skip", quarantine="x.jsonl").set_state(state)


def test_a_state_without_the_size_of_its_batches_is_refused() -> None:
    state = state_after(plan(10), 3)
    del state["batch"]
    with pytest.raises(ps.StateError, match="the arguments of batch changed"):
        plan(16).loader("inline").set_state(state)


def test_the_end_of_a_stream_is_the_next_epoch_once_a_cache_knows_its_length() -> None:
    dataset = ps.from_generator(lambda: range(4)).cache(limit=1000)
    with dataset.loader(executor="inline") as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
        state = loader.get_state()
        list(loader)
    assert (state["epoch"], state["position"]) == (0, 4)
    with dataset.loader(executor="inline") as loader:
        loader.set_state(state)
        assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (1, 0)
        assert len(list(loader)) == 4
