"""Batches are the consumer's as long as it holds them, in any form, and their slots are used again after."""

import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.run.common import assert_ended, mapping_count, name_rings, workers

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.fixture(autouse=True)
def _rings_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    name_rings(monkeypatch)


EXECUTORS = pytest.mark.parametrize("executor", ["inline", "threads"])


def rows(count: int = 240) -> np.ndarray[Any, Any]:
    return np.arange(count * 12, dtype=np.float32).reshape(count, 4, 3)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def a_view(batch: Any, dice: random.Random) -> Any:
    """A view of a view of a batch, such as consumers keep."""
    kinds: list[Callable[[Any], Any]] = [
        lambda a: a,
        lambda a: a[1:][:, ::2],
        lambda a: a.transpose(2, 0, 1)[0],
        lambda a: a.reshape(-1)[5:17].view(np.uint8),
        lambda a: np.asarray(memoryview(a))[..., 1],
    ]
    return dice.choice(kinds)(batch)


@EXECUTORS
@pytest.mark.parametrize("seed", range(4))
def test_batches_that_are_kept_never_change(executor: Any, seed: int) -> None:
    dice = random.Random(seed)
    kept: list[tuple[Any, Any]] = []
    with ps.from_arrays(rows()).shuffle(seed).batch(5).loader(executor, prefetch=1 + seed) as loader:
        for _ in range(2):
            for batch in loader:
                if dice.random() < 0.5:
                    view = a_view(batch, dice)
                    kept.append((view, view.copy()))
                while kept and dice.random() < 0.4:
                    kept.pop(dice.randrange(len(kept)))
                for view, copy in kept:
                    assert np.array_equal(view, copy)
    for view, copy in kept:
        assert np.array_equal(view, copy)


@EXECUTORS
def test_list_of_a_loader_is_right_if_larger(executor: Any) -> None:
    dataset = ps.from_arrays({"x": rows(), "i": np.arange(240)}).shuffle(3).batch(7)
    with dataset.loader(executor) as loader:
        for want, got in zip(dataset, list(loader), strict=True):
            assert np.array_equal(want["x"], got["x"])
            assert np.array_equal(want["i"], got["i"])
        # Of six slots four may be kept.
        assert loader.report().copied == len(loader) - 4


@EXECUTORS
def test_no_batch_is_copied_for_a_consumer_that_keeps_none(executor: Any) -> None:
    with ps.from_arrays(rows()).batch(4).loader(executor) as loader:
        for _ in range(3):
            for _batch in loader:
                pass
        assert loader.report().copied == 0
        assert loader.report().batches == 180


@EXECUTORS
def test_the_same_memory_comes_back(executor: Any) -> None:
    with ps.from_arrays(rows()).batch(4).loader(executor) as loader:
        seen = {address(batch) for _ in range(3) for batch in loader}
        assert len(seen) <= 6
        before = mapping_count()
        seen |= {address(batch) for _ in range(3) for batch in loader}
        assert len(seen) <= 6
        assert mapping_count() == before == 1


@EXECUTORS
def test_copies_end_when_the_consumer_lets_go(executor: Any) -> None:
    with ps.from_arrays(rows()).batch(2).loader(executor) as loader:
        kept = list(loader)
        copied = loader.report().copied
        assert copied == len(kept) - 4
        kept.clear()
        for batch in loader:
            del batch
        assert loader.report().copied == copied


@EXECUTORS
def test_batches_are_aligned_and_writable_and_writing_harms_nobody(executor: Any) -> None:
    data = rows()
    with ps.from_arrays({"x": data, "i": np.arange(240, dtype=np.int8)}).batch(3).loader(executor) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                assert np.array_equal(batch["x"], data[3 * number : 3 * number + 3])
                for leaf in batch.values():
                    assert address(leaf) % 64 == 0
                    leaf[...] = 77
    assert np.array_equal(data, rows())


@EXECUTORS
def test_batches_outlive_close_and_the_loader(executor: Any) -> None:
    loader = ps.from_arrays(rows()).batch(10).loader(executor)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3)]
    loader.close()
    threads = workers()
    del loader, iterator
    assert_ended(threads)
    assert np.array_equal(np.concatenate(kept), rows()[:30])
    assert mapping_count() == 1
    kept.clear()
    assert mapping_count() == 0


@EXECUTORS
@pytest.mark.parametrize("end", ["close", "drop"])
def test_memory_is_free_at_once_when_a_loader_ends(executor: Any, end: str) -> None:
    gc.collect()
    gc.disable()  # nothing may wait for the collector
    try:
        loader = ps.from_arrays(rows()).shuffle(1).map(lambda x: x * 2).batch(10).loader(executor)
        iterator = iter(loader)
        next(iterator)
        threads = workers()
        assert mapping_count() == 1
        if end == "close":
            loader.close()
        else:
            del loader, iterator
            assert_ended(threads)
        assert mapping_count() == 0
    finally:
        gc.enable()


@EXECUTORS
def test_an_error_that_is_kept_keeps_neither_ring_nor_threads(executor: Any) -> None:
    def fragile(x: Any) -> Any:
        if x[0, 0] > 100:
            raise ValueError("too large")
        return x

    gc.collect()
    gc.disable()
    try:
        loader = ps.from_arrays(rows()).map(fragile).batch(10).loader(executor, prefetch=1)
        with pytest.raises(ps.ElementError) as caught:
            list(loader)
        loader.close()
        assert mapping_count() == 0
        assert not workers()
        cause = caught.value.__cause__
        assert cause is not None
        user_frame = cause.__traceback__  # ours are dropped
        assert user_frame is not None
        assert user_frame.tb_frame.f_locals["x"].shape == (4, 3)  # a debugger sees what the function got
    finally:
        gc.enable()


@EXECUTORS
def test_a_dropped_error_frees_its_loader_at_once(executor: Any) -> None:
    def fragile(x: Any) -> Any:
        if x == 9:
            raise ValueError("nine")
        return x

    def run() -> None:
        for _ in ps.range(40).map(fragile).batch(2).loader(executor):
            pass

    gc.collect()
    gc.disable()
    try:
        try:
            run()
        except ps.ElementError:
            threads = workers()
        assert_ended(threads)
        assert mapping_count() == 0
    finally:
        gc.enable()


@EXECUTORS
def test_text_is_the_consumers_own(executor: Any) -> None:
    words = np.array([f"{number:03}" for number in range(60)])
    dataset = ps.range(60).map(lambda i: f"{int(i):03}" * (1 + int(i) % 3)).batch(4)
    with dataset.loader(executor, prefetch=1) as loader, ps.from_arrays(words).batch(4).loader(executor) as plain:
        kept = list(loader)
        assert [batch.tolist() for batch in kept] == [batch.tolist() for batch in dataset]
        assert [text for batch in plain for text in batch.tolist()] == words.tolist()


def test_what_a_function_keeps_does_not_change(tmp_path: Any) -> None:
    kept: list[tuple[Any, Any]] = []

    def keeper(x: Any) -> Any:
        kept.append((x[1:], x[1:].copy()))
        return x + 1

    np.save(tmp_path / "rows.npy", rows())
    with ps.from_npy(tmp_path / "rows.npy").shuffle(1).map(keeper).batch(8).loader("threads", workers=3) as loader:
        for _ in range(2):
            for _batch in loader:
                pass
    assert len(kept) >= 2 * 240
    for view, copy in kept:
        assert np.array_equal(view, copy)
