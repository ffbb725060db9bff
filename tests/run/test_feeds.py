"""Streams being run: how long they are, what generators do, states, and memory."""

import gc
import itertools
import json
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.memory._ring import Ring
from penstock.testing import assert_same
from tests.run.feeds import BEGUN, ENDED, EVERY_EXECUTOR, INT64, Watched, batches_of, lists, stream
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers", "leaves_nothing_behind")


# How long a stream is.


@pytest.mark.parametrize("count", [1, 2, 3, 256, 257, 1000])
@EVERY_EXECUTOR
def test_every_element_of_every_epoch_comes_once_and_the_last_batch_is_ragged(executor: str, count: int) -> None:
    with stream(Watched(count)).batch(3).loader(executor) as loader:
        for _ in range(3):
            assert lists(loader) == batches_of(3, count)


@EVERY_EXECUTOR
def test_an_empty_generator_is_an_empty_epoch_and_is_not_begun_again_and_again(executor: str) -> None:
    nothing = Watched(0)
    with stream(nothing).batch(3).loader(executor, prefetch=3) as loader:
        for epoch in range(1, 4):
            assert lists(loader) == []
            assert loader.get_state()["epoch"] == epoch
    assert nothing.times(BEGUN) <= 7


@EVERY_EXECUTOR
def test_a_filter_that_drops_everything_leaves_an_empty_epoch(executor: str) -> None:
    with ps.range(3000).filter(lambda x: x < 0).batch(3).loader(executor) as loader:
        assert [lists(loader) for _ in range(3)] == [[], [], []]


@EVERY_EXECUTOR
def test_a_filter_that_drops_everything_but_the_last_leaves_the_last(executor: str) -> None:
    with stream(Watched(3000)).filter(lambda x: x == 2999).batch(3).loader(executor) as loader:
        assert [lists(loader) for _ in range(3)] == [[[2999]]] * 3


@EVERY_EXECUTOR
def test_a_generator_without_end_is_read_as_far_as_somebody_asks(executor: str) -> None:
    forever = Watched(None)
    with stream(forever).batch(4).loader(executor, prefetch=2) as loader:
        for _ in range(2):
            assert lists(itertools.islice(loader, 100)) == batches_of(4, 400)
    assert forever.times(BEGUN) == forever.times(ENDED) <= 2


@EVERY_EXECUTOR
def test_an_endless_length_is_told_and_kept(executor: str) -> None:
    with stream(Watched(None), length=float("inf")).batch(4).loader(executor) as loader:
        assert loader.length == float("inf")
        assert lists(itertools.islice(loader, 3)) == batches_of(4, 12)


@EVERY_EXECUTOR
def test_more_elements_than_31_bits_can_count_are_a_length_like_any_other(executor: str) -> None:
    with stream(Watched((1 << 31) + 5), length=(1 << 31) + 5).batch(4).loader(executor) as loader:
        assert len(loader) == (1 << 29) + 2
        assert lists(itertools.islice(loader, 2)) == batches_of(4, 8)


# What generators do.


@EVERY_EXECUTOR
def test_a_generator_may_use_its_buffer_again_and_yield_what_cannot_be_written(executor: str) -> None:
    def buffered() -> Iterator[Any]:
        buffer = np.zeros((2, 2), np.float32)
        for i in range(100):
            buffer.flags.writeable = True
            buffer[:] = i
            buffer.flags.writeable = False
            yield buffer, {"text": "x" * (i % 5), "row": buffer[0, : i % 3]}

    spec = (
        ps.ArraySpec((2, 2), "float32"),
        {"text": ps.ArraySpec((), np.dtype("U")), "row": ps.ArraySpec((None,), "float32")},
    )

    def add(element: Any) -> Any:
        array, rest = element
        array += 1
        rest["row"] += 1
        return array, rest

    plain = ps.from_generator(buffered, element_spec=spec)
    for dataset in (plain, plain.filter(lambda x: True), plain.shuffle(window=1), plain.repeat(1)):
        with dataset.map(add, element_spec=spec).loader(executor) as loader:
            for i, (array, rest) in enumerate(loader):
                assert array.tolist() == [[i + 1] * 2] * 2
                assert rest["text"] == "x" * (i % 5)
                assert rest["row"].tolist() == [i + 1] * (i % 3)


@EVERY_EXECUTOR
def test_what_an_iterable_holds_is_not_changed_by_functions_after_it(executor: str) -> None:
    mine = [np.arange(i) for i in range(5)]
    spec = ps.ArraySpec((None,), "int64")

    def negate(x: Any) -> Any:
        x *= -1
        return x

    held = ps.from_generator(mine, element_spec=spec)
    with held.filter(lambda x: len(x) > 1).map(negate, element_spec=spec).loader(executor) as loader:
        assert lists(loader) == [[0, -1], [0, -1, -2], [0, -1, -2, -3]]
    with held.loader(executor) as loader:
        for row in loader:
            row[:] = 7
    assert [row.tolist() for row in mine] == [list(range(i)) for i in range(5)]
    assert all(row.flags.writeable for row in mine)


def test_a_generator_may_look_at_its_own_loader() -> None:
    looked: list[Any] = []

    def curious() -> Iterator[int]:
        for i in range(30):
            looked.append((loader.get_state()["epoch"], loader.projected_nbytes, str(loader.report()), repr(loader)))
            yield i

    for executor in ("inline", "threads"):
        with stream(curious).batch(4).loader(executor) as loader:
            assert lists(loader) == batches_of(4, 30)
    assert len(looked) >= 60


@EVERY_EXECUTOR
def test_a_generator_may_read_another_loader(executor: str) -> None:
    def nested() -> Iterator[Any]:
        with stream(range(20)).batch(3).loader("threads", workers=2) as inner:
            for batch in inner:
                yield from batch.tolist()

    with stream(nested).batch(4).loader(executor) as loader:
        assert [lists(loader) for _ in range(2)] == [batches_of(4, 20)] * 2


@EVERY_EXECUTOR
def test_a_database_cursor_is_a_generator(executor: str, tmp_path: Any) -> None:
    import sqlite3

    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table samples (x integer, name text)")
        connection.executemany("insert into samples values (?, ?)", [(i, "n" * (i % 3)) for i in range(50)])
    connection.close()

    def rows(path: str, least: int) -> Iterator[Any]:
        connection = sqlite3.connect(path)
        try:
            yield from connection.execute("select x, name from samples where x >= ? order by x", (least,))
        finally:
            connection.close()

    with ps.from_generator(rows, str(path), 10).loader(executor, prefetch=1) as loader:
        for _ in range(2):
            assert [(int(x), name) for x, name in loader] == [(i, "n" * (i % 3)) for i in range(10, 50)]
        next(iter(loader))  # and is broken off in the middle


# Several of them.


@pytest.mark.parametrize("shards", [1, 2, 3, 40])
@EVERY_EXECUTOR
def test_the_order_is_the_same_for_any_number_of_workers(executor: str, shards: int) -> None:
    if executor == "processes" and shards > 3:
        pytest.skip("that many places to run in take their time to start")

    def part(index: int, count: int) -> Iterator[int]:
        yield from range(index, 31, count)

    dataset = ps.from_generator(part, shards=shards, element_spec=INT64) if shards > 1 else stream(range(31))
    dataset = dataset.map(lambda x: x + 0, element_spec=INT64).batch(4)
    for workers in {"inline": (1,), "threads": (1, 2, 5), "processes": (1, 2)}[executor]:
        with dataset.loader(executor, workers=workers) as loader:
            assert [lists(loader) for _ in range(2)] == [batches_of(4, 31)] * 2


def test_shards_are_read_at_the_same_time() -> None:
    # Each waits before its first element until the others have begun.
    barrier, met = threading.Barrier(3), threading.Event()

    def part(index: int, count: int) -> Iterator[int]:
        if not met.is_set():
            barrier.wait(DEADLINE_S)
            met.set()
        yield from range(index, 30, count)

    with ps.from_generator(part, shards=3, element_spec=INT64).batch(10).loader("threads", workers=1) as loader:
        assert lists(loader) == batches_of(10, 30)


@pytest.mark.slow
def test_shards_have_a_process_each_where_processes_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers_of_processes(shard: int, count: int) -> Iterator[int]:
        yield os.getpid()

    monkeypatch.setattr("penstock.run._choose.usable_cpu_count", lambda: 1)
    dataset = ps.from_generator(numbers_of_processes, shards=3, element_spec=INT64).batch(3)
    with dataset.loader("processes", workers=1) as loader:
        assert len({*lists(loader)[0], os.getpid()}) == 4
    with dataset.loader() as loader:
        assert lists(loader) == [[os.getpid()] * 3]


class Meeting:
    """A barrier for `count` threads. Element 0 passes: a loader tries it alone."""

    def __init__(self, count: int) -> None:
        self._count, self._there, self._changed = count, set[int](), threading.Condition()

    def wait(self, element: int) -> None:
        if element == 0:
            return
        with self._changed:
            self._there.add(threading.get_ident())
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self._there) >= self._count, 10), "nobody else came"


def test_functions_after_one_generator_run_side_by_side() -> None:
    met = Meeting(3)

    def work(x: Any) -> Any:
        met.wait(x)
        return x

    dataset = ps.from_generator(range(96), element_spec=INT64).map(work, element_spec=INT64).batch(48)
    with dataset.loader("threads", workers=3) as loader:
        assert lists(loader) == batches_of(48, 96)


@EVERY_EXECUTOR
def test_two_loaders_of_one_dataset_do_not_meet(executor: str) -> None:
    dataset = stream(Watched(60)).filter(lambda x: x % 2 == 0).batch(4)
    with dataset.loader(executor) as one, dataset.loader(executor) as two:
        first = iter(one)
        ahead = lists(itertools.islice(first, 3))
        assert lists(two) == lists(dataset)
        assert ahead + lists(first) == lists(dataset)


@EVERY_EXECUTOR
def test_many_datasets_in_one_plan_each_have_their_own_generator(executor: str) -> None:
    def steps(fn: Any) -> ps.Dataset:
        return stream(range(40)).map(fn, element_spec=INT64).filter(lambda x: x % 3 != 0)

    deep = steps(lambda x: x).flat_map(lambda x: [x] * 2, element_spec=INT64).map(lambda x: x, element_spec=INT64)
    dataset = ps.zip((deep.filter(lambda x: x % 2 == 0), ps.range(1000).filter(lambda x: x > 7).shuffle(3, window=9)))
    want = lists(pair[1] for pair in dataset), lists(pair[0] for pair in dataset)
    with dataset.loader(executor) as loader:
        pairs = [(int(x), int(y)) for x, y in loader]
        assert ([y for _, y in pairs], [x for x, _ in pairs]) == want
        assert len(lists(pair[0] for pair in itertools.islice(loader, 3))) == 3


# States.


@EVERY_EXECUTOR
def test_a_state_beyond_the_end_of_an_unknown_length_is_an_empty_rest(executor: str) -> None:
    with stream(range(10)).batch(2).loader(executor) as loader:
        for position in (5, 6, 1000):
            loader.set_state(loader.get_state() | {"epoch": 3, "position": position})
            assert lists(loader) == []
            assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (4, 0)
        assert lists(loader) == batches_of(2, 10)


@EVERY_EXECUTOR
def test_a_loader_is_sought_forwards_and_backwards_in_mid_epoch(executor: str) -> None:
    dataset = (
        stream(Watched(400))
        .filter(lambda x: x % 3 != 1)
        .shuffle(2, window=7)
        .random_map(lambda x, rng: x + rng.random(), element_spec=ps.ArraySpec((), "float64"))
        .batch(4)
    )
    with dataset.loader("inline") as loader:
        epochs = [lists(loader) for _ in range(2)]
    assert epochs[0] == lists(dataset) != epochs[1]
    with dataset.loader(executor, prefetch=2) as loader:
        for epoch, position in ((0, 0), (0, 30), (1, 3), (0, 60), (1, 66), (1, 0), (0, 2), (0, 29)):
            state = loader.get_state() | {"epoch": epoch, "position": position}
            loader.set_state(json.loads(json.dumps(state)))
            assert lists(itertools.islice(loader, 3)) == epochs[epoch][position : position + 3]


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("cursor", [50, 64, 96, 1 << 40])
def test_a_cursor_beyond_the_end_ends_the_epoch(executor: Any, cursor: int) -> None:
    ds = ps.range(50).filter(lambda x: x % 2 == 0).batch(4)
    with ds.loader(executor=executor, timeout_s=DEADLINE_S) as loader:
        state = loader.get_state() | {"position": 3, "cursor": [cursor]}
        loader.set_state(state)
        assert list(loader) == []
        assert sum(len(batch) for batch in loader) == 25


@pytest.mark.parametrize("position", [1 << 41, (1 << 62) - 1])
def test_a_position_that_no_stream_has_is_refused(position: int) -> None:
    loader = ps.from_generator(range, 9).batch(4).loader(executor="inline")
    with loader, pytest.raises(ps.StateError, match=str(position)):
        loader.set_state(loader.get_state() | {"position": position})


def test_a_cursor_for_an_iterator_that_cannot_seek_is_refused() -> None:
    with ps.from_generator(range, 9).batch(4).loader(executor="inline") as loader:
        loader.set_state(loader.get_state() | {"position": 1, "cursor": [4]})
        with pytest.raises(ps.StateError, match=r"cursor.*from_generator\(range\).*set_state"):
            list(loader)


# Memory.


def _grown(loader: ps.Loader, epoch_count: int) -> int:
    """By how many bytes Python's memory grows over so many epochs."""
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(epoch_count):
        list(loader)
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.slow
@EVERY_EXECUTOR
def test_memory_is_flat_over_many_epochs(executor: str) -> None:
    def rows() -> Iterator[Any]:
        for i in range(20):
            yield np.full(100, i), "text" * i  # small, for how many of them wait differs from epoch to epoch

    spec = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), np.dtype("U")))
    dataset = ps.from_generator(rows, element_spec=spec).filter(lambda x: True).map(lambda x: x, element_spec=spec)
    with dataset.loader(executor) as loader:
        for _ in range(5):
            list(loader)
        tracemalloc.start()
        try:
            grown = [_grown(loader, epoch_count=10) for _ in range(6)]
        finally:
            tracemalloc.stop()
    # A message of a worker under way takes 64 KiB, and Python keeps some freed objects, up to 5,000 bytes in 10 epochs:
    # 10 bytes an epoch over 600. An element that stays is 1,000 bytes each epoch.
    assert min(grown) < 8_000, f"{grown} bytes in 10 epochs each"


@EVERY_EXECUTOR
def test_threads_and_begun_generators_do_not_grow_with_epochs(executor: str) -> None:
    watched = Watched(10)
    with stream(watched).filter(lambda x: x > 2).batch(3).loader(executor) as loader:
        list(loader)
        threads = threading.active_count()  # of which those of an earlier loader may end
        for _ in range(50):
            assert lists(loader) == batches_of(3, 3, 10)
            assert watched.times(BEGUN) - watched.times(ENDED) <= 1
        assert threading.active_count() <= threads
    assert watched.times(BEGUN) <= 60


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_objects_that_a_generator_captured_are_freed(executor: str) -> None:
    class Large:
        def __init__(self) -> None:
            self.data = np.zeros(1000)

    def run() -> Any:
        large = Large()

        def generator() -> Iterator[Any]:
            for i in range(20):
                yield large.data[i]

        with ps.from_generator(generator).batch(3).loader(executor) as loader:
            for _ in range(3):
                assert len(list(loader)) == 7
            next(iter(loader))
        return weakref.ref(large)

    gc.collect()
    found = [run() for _ in range(5)]
    gc.collect()
    assert [reference() for reference in found] == [None] * 5


def _worded(i: Any) -> dict[str, Any]:
    return {"raw": b"x" + bytes(i % 3), "text": "é" * (i % 4), "row": np.full(i % 5, i, "int16"), "i": np.int8(i)}


_WORDED = {
    "raw": ps.ArraySpec((), "S"),
    "text": ps.ArraySpec((), "U"),
    "row": ps.ArraySpec((None,), "int16"),
    "i": ps.ArraySpec((), "int8"),
}


@EVERY_EXECUTOR
@pytest.mark.parametrize("leaves", ["all", "text alone"])
def test_what_workers_hand_to_a_filter_is_what_functions_made(executor: str, leaves: str) -> None:
    names = list(_WORDED) if leaves == "all" else ["raw", "text", "i"]

    def made(i: Any) -> dict[str, Any]:
        return {name: leaf for name, leaf in _worded(i).items() if name in names}

    kept = ps.range(50).map(made, element_spec={name: _WORDED[name] for name in names}).filter(lambda e: e["i"] % 7)
    with kept.loader(executor) as loader:
        for _ in range(2):
            elements = list(loader)
            assert [int(element["i"]) for element in elements] == [i for i in range(50) if i % 7]
            for element in elements:
                want = made(int(element["i"]))
                assert {name: np.asarray(element[name]).tolist() for name in names[2:]} == {
                    name: np.asarray(want[name]).tolist() for name in names[2:]
                }
                assert (element["raw"], element["text"]) == (want["raw"], want["text"])


@pytest.mark.parametrize("spec", [ps.ArraySpec((None,), "int16"), ps.ArraySpec((), "U"), ps.ArraySpec((), "int16")])
def test_elements_are_handed_to_a_filter_some_at_a_time(monkeypatch: pytest.MonkeyPatch, spec: ps.ArraySpec) -> None:
    taken = []

    def counted(ring: Ring, slot: int, hand_out: Callable[..., Any] = Ring.hand_out) -> Any:
        taken.append(slot)
        return hand_out(ring, slot)

    def made(i: Any) -> Any:
        return str(i) if spec.dtype.kind == "U" else np.full(3, i, "int16") if spec.shape else np.int16(i)

    monkeypatch.setattr(Ring, "hand_out", counted)
    with ps.range(96).map(made, element_spec=spec).filter(lambda _: True).loader("inline") as loader:
        assert len(list(loader)) == 96
    assert len(taken) <= 96 + 96 // 16 + 1  # the loader's own elements, and what they were handed over in


@pytest.mark.slow
def test_ragged_elements_keep_their_byte_order() -> None:
    dtypes = {"float": ">f4", "time": ">M8[s]"}
    spec = {name: ps.ArraySpec((None,), dtype) for name, dtype in dtypes.items()}
    rows = [{name: np.arange(i).astype(dtype) for name, dtype in dtypes.items()} for i in range(5)]

    def same(row: Any) -> Any:
        return row

    read = ps.from_source(rows, element_spec=spec)
    stream = ps.from_generator(lambda: iter(rows), element_spec=spec)
    mapped = stream.map(same, element_spec=spec)
    # Handed over by workers, by the reader of a stream, and by workers to a step that sees a stream in order.
    copied = mapped.flat_map(lambda row: [row], element_spec=spec)
    for dataset in (read, stream, mapped, mapped.filter(lambda row: True), copied):
        with dataset.loader("processes", workers=1) as loader:
            for row, want in zip(loader, rows, strict=True):
                assert_same(row, want)
    with mapped.padded_batch(5).loader("processes", workers=1) as loader:
        (batch,) = loader
        for name in dtypes:
            assert_same(batch[name][4], rows[4][name])
