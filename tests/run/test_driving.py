"""Whether the consumer fills batches itself: with a clock that is made up, and with hands that change often."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import penstock as ps
from penstock.run._delivery import Delivery
from penstock.run._driving import GO_COUNT, LEAST_SHARE, MOST_NBYTES, SHORT_STEP_S, WINDOW_COUNT, Driving
from penstock.run._trials import PAUSES_S
from penstock.run.executors._consumer_or_threads import ConsumerOrThreadsExecutor

SKIPPED_COUNT = 8


class Simulated:
    """A consumer that works for `use_s` a batch, and waits as long as it takes those who fill it.

    Args:
        use_s: With whom: workers, or itself.
        wait_s: The same.
    """

    def __init__(self, use_s: tuple[float, float], wait_s: tuple[float, float]) -> None:
        self.use_s, self.wait_s = use_s, wait_s
        self.driving = Driving(SKIPPED_COUNT, batch_nbytes=1 << 10)
        self.now_s = 100.0
        self.driven_count = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            wanted = self.driving.is_wanted
            self.driven_count += wanted
            began_s = self.now_s + self.use_s[wanted]
            self.now_s = began_s + self.wait_s[wanted]
            self.driving.note(began_s, self.now_s)


TRIAL = 6 * (SKIPPED_COUNT + 100)


def test_a_consumer_that_waits_less_so_fills_batches_itself() -> None:
    consumer = Simulated(use_s=(400e-6, 250e-6), wait_s=(100e-6, 150e-6))
    consumer.run(2 * TRIAL)
    assert consumer.driving.is_wanted
    consumer.driven_count = 0
    consumer.run(100_000)
    assert consumer.driven_count > 97_000  # the rest are trials


def test_a_consumer_that_would_wait_longer_leaves_it_to_workers() -> None:
    consumer = Simulated(use_s=(1e-3, 1e-3), wait_s=(100e-6, 300e-6))
    consumer.run(100_000)
    assert not consumer.driving.is_wanted
    assert consumer.driven_count < 1_000
    assert consumer.now_s > 100 + PAUSES_S[1]


def test_a_consumer_whose_short_steps_take_less_so_fills_batches_itself() -> None:
    consumer = Simulated(use_s=(1.8e-3, 1.5e-3), wait_s=(20e-6, 150e-6))
    consumer.run(2 * TRIAL)
    assert consumer.driving.is_wanted


def test_nothing_is_tried_where_nobody_waits_and_steps_take_long() -> None:
    consumer = Simulated(use_s=(2 * SHORT_STEP_S, 0.0), wait_s=(LEAST_SHARE * SHORT_STEP_S, 0.0))
    consumer.run(10_000)
    assert consumer.driven_count == 0


def test_what_was_found_is_found_again_when_the_consumer_becomes_slow() -> None:
    consumer = Simulated(use_s=(400e-6, 250e-6), wait_s=(100e-6, 150e-6))
    consumer.run(2 * TRIAL)
    assert consumer.driving.is_wanted
    consumer.use_s, consumer.wait_s = (1e-3, 1e-3), (20e-6, 150e-6)
    consumer.run(100_000)
    assert not consumer.driving.is_wanted


def test_a_pause_is_in_no_window() -> None:
    consumer = Simulated(use_s=(2 * SHORT_STEP_S, 0.0), wait_s=(0.0, 0.0))
    for _ in range(1000):
        consumer.run(WINDOW_COUNT // 2)
        consumer.driving.pause()
        consumer.wait_s = (1.0, 0.0)
        consumer.run(1)
        consumer.wait_s = (0.0, 0.0)
    assert consumer.driven_count == 0


def test_short_epochs_are_windows_together() -> None:
    consumer = Simulated(use_s=(400e-6, 250e-6), wait_s=(100e-6, 150e-6))
    for _ in range(3 * TRIAL // SKIPPED_COUNT):
        consumer.run(SKIPPED_COUNT)
        consumer.driving.pause()
        consumer.now_s += 10
    assert consumer.driving.is_wanted


@pytest.fixture
def hands_change(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has hands change with every other batch; returns who was wanted for each."""
    seen = [False]
    wanted = itertools.cycle([True, True, False, False])

    def note(_: Driving, began_s: float, now_s: float) -> None:
        assert now_s >= began_s > 0
        seen.append(next(wanted))

    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: seen[-1], lambda *_: None), raising=False)
    monkeypatch.setattr(Driving, "note", note)
    return seen


def test_batches_of_unknown_size_are_tried_for_short_steps_alone() -> None:
    for batch_nbytes, is_tried in ((None, False), (1 << 10, True)):
        consumer = Simulated(use_s=(2 * SHORT_STEP_S, 0.0), wait_s=(SHORT_STEP_S, 0.0))
        consumer.driving = Driving(SKIPPED_COUNT, batch_nbytes)
        consumer.run(10_000)
        assert (consumer.driven_count > 0) is is_tried
    consumer = Simulated(use_s=(400e-6, 250e-6), wait_s=(100e-6, 150e-6))
    consumer.driving = Driving(SKIPPED_COUNT, None)
    consumer.run(2 * TRIAL)
    assert consumer.driving.is_wanted
    assert consumer.driving.go_count == 1


TABLE = np.arange(60).reshape(20, 3)
SENTENCES = [np.arange(length) for length in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9)]
PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "a table": lambda: ps.from_arrays((TABLE[:, :2], TABLE[:, 2])).shuffle(seed=1).batch(3),
    "a range, cut and joined": lambda: ps.concatenate([ps.range(9)[::-1], ps.range(7)]).batch(2, drop_remainder=True),
    "windows": lambda: ps.from_arrays(TABLE).windows(4, shift=2).cast("float32").batch(2),
    "sentences": lambda: (
        ps.from_source(SENTENCES, element_spec=ps.ArraySpec((None,), "int64")).shuffle(seed=1).padded_batch(3)
    ),
    "elements of a list": lambda: ps.from_source([(row, {"name": f"row {i}"}) for i, row in enumerate(TABLE)]),
    "elements": lambda: ps.from_arrays({"x": TABLE, "name": np.array([f"row {i}" for i in range(20)])}),
}


def listed(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [(name, np.asarray(leaf).tolist()) for name, leaf in batch.items()]
    return [np.asarray(leaf).tolist() for leaf in (batch if isinstance(batch, tuple) else (batch,))]


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.parametrize("plan", PLANS)
def test_batches_are_the_same_whoever_fills_them(plan: str, hands_change: list[bool]) -> None:
    dataset = PLANS[plan]()
    with dataset.loader("inline") as oracle:
        want = [[listed(batch) for batch in oracle] for _ in range(4)]
    with dataset.loader() as loader:
        assert [listed(batch) for batch in loader] == want[0]
        kept = list(itertools.islice(loader, 4))  # the ring is short of slots meanwhile
        assert [listed(batch) for batch in kept] == want[1][:4]
        state = loader.get_state()
        assert [listed(batch) for batch in loader] == want[2]
        loader.set_state(state)
        assert [listed(batch) for batch in loader] == want[1][4:]
        assert [listed(batch) for batch in kept] == want[1][:4]
    assert {True, False} <= set(hands_change[1:])


def test_workers_have_nothing_to_do_while_the_consumer_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    with ps.range(40).batch(2).loader() as loader:
        assert sum(len(batch) for batch in loader) == 40
        assert loader.report().lanes[0].executor == "inline"
        assert loader.report().executor == "threads"
        assert loader._pipeline is not None
        assert loader._pipeline._executor.progress() == (
            (0,) * loader.report().workers,
            (None,) * loader.report().workers,
        )


@pytest.mark.parametrize(("row_nbytes", "count"), [(8, GO_COUNT), (MOST_NBYTES // 6, 3), (MOST_NBYTES // 2, 1)])
def test_the_consumer_fills_some_small_batches_in_one_go(
    row_nbytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    filled: list[int] = []
    run = Delivery.run
    monkeypatch.setattr(Delivery, "run", lambda self, unit: (filled.append(unit.index), run(self, unit))[1])
    array = np.arange(24 * row_nbytes, dtype=np.uint8).reshape(24, row_nbytes)
    with ps.from_arrays(array).batch(2).loader(prefetch=6) as loader:
        for number, batch in enumerate(loader):
            assert np.array_equal(batch, array[2 * number : 2 * number + 2])
            assert filled[: number + 1] == list(range(number + 1))
            assert len(filled) == (number // count + 1) * count, "an epoch of 12 batches is whole goes"


def test_batches_of_unknown_size_are_filled_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    filled: list[int] = []
    run = Delivery.run
    monkeypatch.setattr(Delivery, "run", lambda self, unit: (filled.append(unit.index), run(self, unit))[1])
    with PLANS["sentences"]().loader(prefetch=6) as loader:
        for number, _ in enumerate(loader):
            assert filled == list(range(number + 1))


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_an_element_that_does_not_fit_is_told_in_its_turn(
    on_error: Literal["raise", "replace"], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    items = [*range(5), "five", *range(6, 12)]
    with ps.from_source(items).batch(2).loader(on_error=on_error, quarantine=tmp_path / "bad") as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        if on_error == "raise":
            with pytest.raises(ps.SpecError, match=r"^list\[5\], 'five' gave a str, but"):
                next(batches)
        else:
            assert next(batches)[0] == 4
            assert [batch.tolist() for batch in batches] == [[6, 7], [8, 9], [10, 11]]
        assert loader.report().lanes[0].executor == "inline"


@pytest.mark.parametrize("executor", ["auto", "inline"])
def test_a_consumer_that_comes_on_another_thread_each_epoch_has_one_reader(
    executor: Literal["auto", "inline"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    sums = []
    with ps.range(40).batch(2).loader(executor) as loader:
        for _ in range(8):
            thread = threading.Thread(target=lambda: sums.append(sum(int(batch.sum()) for batch in loader)))
            thread.start()
            thread.join()
        assert sums == [780] * 8
        assert loader._pipeline is not None
        assert len(loader._pipeline._runners.statuses()) == 1


@pytest.mark.parametrize("executor", ["auto", "inline"])
def test_a_loader_that_is_closed_while_its_consumer_fills_a_batch_says_so(
    executor: Literal["auto", "inline"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driving, "is_wanted", property(lambda _: True, lambda *_: None), raising=False)
    loader = ps.range(40).batch(2).loader(executor)
    issue, consumer = Delivery.issue, threading.current_thread()

    def issue_and_close(self: Delivery) -> Any:
        units = issue(self)
        if threading.current_thread() is consumer:  # another thread closes it this very moment
            closer = threading.Thread(target=loader.close)
            closer.start()
            closer.join()
        return units

    monkeypatch.setattr(Delivery, "issue", issue_and_close)
    with pytest.raises(ps.LoaderError, match="closed"):
        next(iter(loader))


def has_a_say(loader: ps.Loader) -> bool:
    with loader:
        next(iter(loader))
        assert loader._pipeline is not None
        return isinstance(loader._pipeline._executor, ConsumerOrThreadsExecutor)


class ItemsOfTheUser:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class ArrayOfTheUser:
    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.ones(self.shape, np.int64)


def test_it_is_tried_only_where_arrays_in_memory_are_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", TABLE)

    def half(x: Any) -> Any:
        return x / 2

    half.releases_gil = True  # type: ignore[attr-defined]
    table = ps.from_arrays(TABLE)
    assert has_a_say(table.batch(2).loader())
    assert has_a_say(ps.zip((table, ps.range(20))).repeat(2).batch(2).loader(on_error="replace"))
    cached = table.map(half).cache()
    assert not has_a_say(cached.batch(2).loader("threads"))
    for _ in cached:
        pass
    assert has_a_say(cached.batch(2).loader())
    on_disk = table.map(half).cache(tmp_path / "cache")
    for _ in on_disk:
        pass
    assert not has_a_say(on_disk.batch(2).loader())
    large = ps.from_arrays(np.zeros((4, MOST_NBYTES // 2 + 8), np.uint8))
    assert not has_a_say(large.batch(2).loader())
    assert not has_a_say(table.batch(2).loader("threads"))
    assert not has_a_say(table.batch(2).loader("inline"))
    assert not has_a_say(table.map(half).batch(2).loader())
    assert not has_a_say(table.filter(lambda row: True).batch(2).loader("threads"))
    assert not has_a_say(ps.from_npy(tmp_path / "table.npy").batch(2).loader())
    assert has_a_say(ps.from_source(TABLE.tolist()).batch(2).loader())
    assert has_a_say(ps.from_source([(row, str(row), 1, np.int64(2)) for row in TABLE]).batch(2).loader())
    sentences = ps.from_source(SENTENCES, element_spec=ps.ArraySpec((None,), "int64"))
    assert has_a_say(sentences.padded_batch(2).loader())
    assert not has_a_say(ps.from_source(ItemsOfTheUser()).batch(2).loader())
    assert not has_a_say(ps.from_source([np.int64(2), ArrayOfTheUser()]).batch(1).loader())
    alternating = [np.int64(2), ArrayOfTheUser()] * 500
    assert not has_a_say(ps.from_source(alternating).batch(1).loader())
    assert not has_a_say(ps.from_source([[ArrayOfTheUser(2)], [ArrayOfTheUser(2)]]).batch(1).loader())
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert not has_a_say(ps.from_source([mapped, mapped]).batch(2).loader())
    assert not has_a_say(ps.from_generator(lambda: iter(TABLE)).batch(2).loader("threads"))
