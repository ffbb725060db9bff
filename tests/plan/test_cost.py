"""Batches of sequences in an order in which neighbours cost about the same: `cost=`."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan import _blocks

LENGTHS = np.clip(np.exp(np.random.default_rng(0).normal(5, 0.8, 100_000)).astype(int), 1, 4096)
FEW = LENGTHS[:3000] // 8 + 1


def sequence(number: Any) -> Any:
    return np.full(FEW[number], number)


def attention(rows: Any, length: Any) -> Any:
    return rows * (length + length**2 / 1000)


def buckets(lengths: Any, cost: Any, limit: int = 16384) -> ps.Dataset:
    return ps.range(len(lengths)).map(np.zeros).shuffle(seed=1).bucket_by_length(
        lengths=lengths, max_tokens=limit, cost=cost
    )  # fmt: skip


def stays(lengths: Any, cost: Any, limit: int = 16384) -> ps.Dataset:
    return ps.range(len(lengths)).map(np.zeros).bucket_by_length(lengths=lengths, max_tokens=limit, cost=cost)


def neighbours(lengths: Any, cost: Any, limit: int = 16384) -> ps.Dataset:
    return ps.range(len(lengths)).map(np.zeros).batch(lengths=lengths, max_tokens=limit, cost=cost)


pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")

KINDS = [buckets, stays, neighbours]


def members(dataset: ps.Dataset, epoch: int) -> list[Any]:
    node: Any = dataset._node
    return list(node._members(epoch, np.arange(len(dataset))))


def ratios(dataset: ps.Dataset, cost: Callable[[Any, Any], Any], ranks: int, epoch: int) -> Any:
    """The largest cost of a step over its mean cost, for each step."""
    each = [(len(mine), LENGTHS[mine].max()) for mine in members(dataset, epoch)]
    costs = cost(*np.array(each).T)[: len(each) // ranks * ranks].reshape(-1, ranks)
    return costs.max(axis=1) / costs.mean(axis=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [0, 3])
def test_the_batches_of_a_step_of_8_ranks_have_about_as_many_tokens(kind: Any, epoch: int) -> None:
    found = ratios(kind(LENGTHS, operator.mul), operator.mul, 8, epoch)
    assert np.median(found) < 1.03
    assert np.quantile(found, 0.99) < 1.10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 16, 24])
def test_attention_costs_about_the_same_whatever_the_number_of_ranks(kind: Any, ranks: int) -> None:
    found = ratios(kind(LENGTHS, attention, 4096), attention, ranks, 1)
    assert np.median(found) < 1.03
    assert np.mean(found) < 1.06


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_batches_and_padding_are_those_without_a_cost_in_another_order(kind: Any, epoch: int) -> None:
    plain, ordered = kind(LENGTHS, None), kind(LENGTHS, attention)
    mine = [tuple(each.tolist()) for each in members(ordered, epoch)]
    assert sorted(mine) == sorted(tuple(each.tolist()) for each in members(plain, epoch))
    assert mine != [tuple(each.tolist()) for each in members(plain, epoch)]
    assert len(ordered) == len(plain)


def test_epochs_have_other_orders_and_lengths_come_mixed() -> None:
    dataset = buckets(LENGTHS, operator.mul, 4096)
    first, second = (np.array([LENGTHS[mine].max() for mine in members(dataset, epoch)]) for epoch in (0, 1))
    assert (first != second).mean() > 0.5
    assert abs(np.corrcoef(first, np.arange(len(first)))[0, 1]) < 0.3


@pytest.mark.parametrize("first", [0, 1, 100, 191, 192, 5000])
@pytest.mark.parametrize("count", [0, 1, 7, 64, 192, 193, 1000])
def test_an_order_in_runs_is_a_permutation_whose_aligned_powers_of_two_are_neighbours(first: int, count: int) -> None:
    costs = np.random.default_rng(1).permutation(count).astype(float)
    words = np.random.default_rng(2)
    order = _blocks.in_runs(costs, first, lambda many: words.integers(0, 2**32, many, np.uint32), descends=False)
    assert sorted(order.tolist()) == list(range(count))
    for size in (2, 8, 64, 192):
        begin = -first % size
        for start in range(begin, count - size + 1, size):
            mine = costs[order[start : start + size]]
            assert mine.max() - mine.min() == size - 1


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["bucket_by_length", "batch"])
def test_ranks_read_it_with_any_executor_and_go_on_with_others(executor: Any, verb: str) -> None:
    sequences = ps.range(3000).map(sequence, element_spec=ps.ArraySpec((None,), "int64"))
    if verb == "bucket_by_length":
        sequences = sequences.shuffle(seed=2)
    dataset = getattr(sequences, verb)(lengths=FEW, max_tokens=512, cost=lambda rows, length: rows * length**2)
    want = [dataset[index] for index in range(16)]
    ranks = []
    for rank in range(3):
        with dataset.loader(executor, shard=(rank, 3), whole_batches=True) as loader:
            epoch = iter(loader)
            ranks.append([np.array(next(epoch)) for _ in range(2)])
            state = loader.get_state()
    for rank in range(4):
        with dataset.loader(executor, shard=(rank, 4), whole_batches=True) as loader:
            loader.set_state(state)
            assert np.array_equal(next(iter(loader)), want[6 + rank])
    for number in range(6):
        assert np.array_equal(ranks[number % 3][number // 3], want[number])


def test_a_state_belongs_to_its_cost() -> None:
    with buckets(FEW, operator.mul).loader("inline") as loader:
        state = loader.get_state()
    with buckets(FEW, lambda rows, length: rows * length).loader("inline") as loader:
        loader.set_state(state)  # a function has no name: what it returns tells it apart
    for other in (attention, None):
        with (
            buckets(FEW, other).loader("inline") as loader,
            pytest.raises(ps.StateError, match="bucket_by_length changed"),
        ):
            loader.set_state(state)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: ps.range(8).batch(2, cost=operator.mul),
            ps.ArgumentError,
            r"batch\(cost=\) orders batches by what they",
        ),
        (
            lambda: ps.range(8).batch(max_tokens=4, cost=operator.mul),
            ps.ArgumentError,
            r"Write batch\(lengths=\.\.\., max_",
        ),
        (
            lambda: ps.range(8).bucket_by_length(lengths=range(8), batch_size=2, cost=operator.mul),
            ps.ArgumentError,
            r"Write bucket_by_length\(lengths=\.\.\., max_tokens=\.\.\., cost=\.\.\.\)",
        ),
        (
            lambda: ps.range(8).bucket_by_length(len, [2], [2, 2], cost=operator.mul),
            ps.ArgumentError,
            "orders batches by",
        ),
        (lambda: neighbours(range(8), 3), ps.ArgumentTypeError, r"batch\(\) needs a function, got 3"),
        (
            lambda: neighbours(range(8), lambda rows, length: 5),
            ps.ArgumentError,
            r"cost= returned int64 \(\) for 60 batches\. It takes arrays, .* a finite number for each: cost=lambda",
        ),
        (lambda: neighbours(range(8), lambda rows, length: rows / 0.0), ps.ArgumentError, "a finite number for each"),
    ],
)
def test_what_is_no_cost_is_refused(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message), np.errstate(all="ignore"):
        make()
