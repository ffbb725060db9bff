"""Ranks compare what they are about to deliver. The real tables are in `tests/adapters/test_ranks.py`."""

import logging
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps


class Store:
    """What torch keeps for all ranks. It counts requests."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.numbers: Counter[str] = Counter()
        self.request_count = 0

    def add(self, key: str, amount: int) -> int:
        self.request_count += 1
        self.numbers[key] += amount
        return self.numbers[key]

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self.request_count += 1
        assert expected == ""
        return self.values.setdefault(key, value).encode()


Enter = Callable[..., None]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def enter(store: Store, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Makes this process a rank, one after the other: `enter(rank, size)`."""
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)

    def enter(rank: int, size: int = 2) -> None:
        torch = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: rank,
            get_world_size=lambda: size,
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", torch)
        c10d = SimpleNamespace(_get_default_store=lambda: store)
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)

    return enter


def mesh_of(ranks: list[int], rank: int) -> Any:
    return SimpleNamespace(shape=(len(ranks),), get_coordinate=lambda: (ranks.index(rank),), mesh=np.array(ranks))


def run(dataset: ps.Dataset, shard: Any = "auto", position: int = 0) -> int:
    with dataset.loader(shard=shard, executor="inline") as loader:
        if position:
            loader.set_state(loader.get_state() | {"position": position})
        return len(list(loader))


DATA = ps.range(48).shuffle(seed=1).batch(4)


def test_ranks_that_agree_are_asked_once_a_run(store: Store, enter: Enter) -> None:
    for rank in (1, 0):
        enter(rank)
        with DATA.loader(shard="auto", executor="inline") as loader:
            for _ in range(3):
                list(loader)
    assert store.request_count == 4
    assert len(store.values) == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ps.range(48).shuffle(seed=2).batch(4), r"plan is shuffle#\w+ in rank 1 and shuffle#\w+ in rank 0"),
        (ps.range(48).shuffle(seed=1).batch(4).take(9), r"plan is take#\w+ in rank 1 and nothing more in rank 0"),
    ],
    ids=["seed", "step"],
)
def test_another_dataset_is_told_by_its_step(enter: Enter, other: ps.Dataset, message: str) -> None:
    enter(1)
    run(other)
    enter(0)
    with pytest.raises(ps.LoaderError, match=rf"Ranks 1 and 0 are about to train on different data: {message}"):
        run(DATA)


def test_a_state_that_one_rank_has_not_got_is_told(enter: Enter) -> None:
    enter(0)
    run(DATA)
    enter(1)
    with pytest.raises(ps.LoaderError, match=r"position is 0 in rank 0 and 3 in rank 1.*the same state in all of them"):
        run(DATA, position=3)


def test_a_state_is_compared_again(enter: Enter) -> None:
    loaders = []
    for rank in (0, 1):
        enter(rank)
        loaders.append(DATA.loader(shard="auto", executor="inline"))
        next(iter(loaders[rank]))
    for rank in (0, 1):
        enter(rank)
        loaders[rank].set_state(loaders[rank].get_state() | {"position": 2 + rank})
        if rank == 0:
            next(iter(loaders[0]))
    with pytest.raises(ps.LoaderError, match="position is 2 in rank 0 and 3 in rank 1"):
        iter(loaders[1])
    for loader in loaders:
        loader.close()


def test_a_rank_that_never_comes_is_not_waited_for(enter: Enter) -> None:
    enter(2, 3)
    assert run(DATA.take(3).unbatch().batch(3)) == 4


def test_shares_that_were_given_as_numbers_are_not_compared(store: Store, enter: Enter) -> None:
    enter(0)
    run(DATA, shard=(0, 2))
    assert not store.request_count


def test_a_store_of_another_kind_stops_no_run(
    store: Store, enter: Enter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("Tried to call pure virtual function")

    monkeypatch.setattr(store, "add", refuse)
    enter(0)
    with caplog.at_level(logging.DEBUG, "penstock"):
        assert run(DATA) == 12
    assert "Ranks are not compared: Tried to call" in caplog.text


def test_groups_of_a_mesh_are_compared_for_themselves(enter: Enter) -> None:
    """Stages of a pipeline may read different datasets."""
    for ranks, dataset in (([0, 2], DATA), ([1, 3], DATA.take(5))):
        for rank in ranks:
            enter(rank, 4)
            run(dataset, shard=mesh_of(ranks, rank))
    enter(2, 4)
    run(DATA, shard=mesh_of([0, 2], 2))
    enter(0, 4)
    with pytest.raises(ps.LoaderError, match="plan is nothing more in rank 2 and take#"):
        run(DATA.take(5), shard=mesh_of([0, 2], 0))
