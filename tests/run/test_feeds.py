"""Streams being run: what generators give, however they end, and what is left of them."""

import itertools
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import LethalFunction
from penstock.testing._shared import SharedLog, SharedSignal
from tests.run.common import DEADLINE_S

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

EXECUTORS = ("inline", "threads")
INT64 = ps.ArraySpec((), "int64")
BEGUN, ENDED, BLOCKED = -1, -2, -3


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Watched:
    """A generator function of integers that notes what befalls it, in whichever process it runs.

    Args:
        count: How many it yields; None for without end.
        fails_at: The number of the element in whose place it raises, as long as `broken` is given.
        blocks_at: The number of the element before which it waits for the gate.
    """

    def __init__(self, count: int | None, fails_at: int | None = None, blocks_at: int | None = None) -> None:
        self._count, self._fails_at, self._blocks_at = count, fails_at, blocks_at
        self._log, self.gate, self.broken, self.blocked = SharedLog(), SharedSignal(), SharedSignal(), SharedSignal()
        self.broken.give()

    def __call__(self) -> Iterator[int]:
        self._note(BEGUN)
        try:
            for i in itertools.count() if self._count is None else range(self._count):
                if i == self._fails_at and self.broken.wait(0):
                    raise KeyError(f"record {i}")
                if i == self._blocks_at and not self.gate.wait(0):
                    self._note(BLOCKED)
                    self.blocked.give()
                    assert self.gate.wait(DEADLINE_S), "nobody opened the gate"
                yield i
        finally:
            self._note(ENDED)

    def _note(self, event: int) -> None:
        self._log.append(np.array([event], np.int64))

    def times(self, event: int) -> int:
        return int((self._log.values() == event).sum())


def stream(watched: Any, **options: Any) -> ps.Dataset:
    return ps.from_generator(watched, element_spec=INT64, **options)


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


def batches_of(size: int, *numbers: int) -> list[list[int]]:
    values = list(range(*numbers))
    return [values[start : start + size] for start in range(0, len(values), size)]


# How long a stream is.


@pytest.mark.parametrize("count", [1, 2, 3, 256, 257, 1000])
def test_every_element_of_every_epoch_comes_once_and_the_last_batch_is_ragged(executor: str, count: int) -> None:
    with stream(Watched(count)).batch(3).loader(executor) as loader:
        for _ in range(3):
            assert lists(loader) == batches_of(3, count)


def test_an_empty_generator_is_an_empty_epoch_and_is_not_begun_again_and_again(executor: str) -> None:
    nothing = Watched(0)
    with stream(nothing).batch(3).loader(executor, prefetch=3) as loader:
        for epoch in range(1, 4):
            assert lists(loader) == []
            assert loader.get_state()["epoch"] == epoch
    assert nothing.times(BEGUN) <= 7


def test_a_filter_that_drops_everything_leaves_an_empty_epoch(executor: str) -> None:
    with ps.range(3000).filter(lambda x: x < 0).batch(3).loader(executor) as loader:
        assert [lists(loader) for _ in range(3)] == [[], [], []]


def test_a_filter_that_drops_everything_but_the_last_leaves_the_last(executor: str) -> None:
    with stream(Watched(3000)).filter(lambda x: x == 2999).batch(3).loader(executor) as loader:
        assert [lists(loader) for _ in range(3)] == [[[2999]]] * 3


def test_a_generator_without_end_is_read_as_far_as_somebody_asks(executor: str) -> None:
    forever = Watched(None)
    with stream(forever).batch(4).loader(executor, prefetch=2) as loader:
        for _ in range(2):
            assert lists(itertools.islice(loader, 100)) == batches_of(4, 400)
    assert forever.times(BEGUN) == forever.times(ENDED) <= 2


def test_an_endless_length_is_told_and_kept(executor: str) -> None:
    with stream(Watched(None), length=float("inf")).batch(4).loader(executor) as loader:
        assert loader.length == float("inf")
        assert lists(itertools.islice(loader, 3)) == batches_of(4, 12)


def test_more_elements_than_31_bits_can_count_are_a_length_like_any_other(executor: str) -> None:
    with stream(Watched((1 << 31) + 5), length=(1 << 31) + 5).batch(4).loader(executor) as loader:
        assert len(loader) == (1 << 29) + 2
        assert lists(itertools.islice(loader, 2)) == batches_of(4, 8)


# Errors: those before arrive, then the error, then the next epoch.


def test_an_element_of_another_shape_is_named(executor: str) -> None:
    def uneven() -> Iterator[Any]:
        for i in range(1000):
            yield np.zeros(3 if i != 777 else 4)

    got: list[Any] = []
    text = (
        r"(?s)from_generator\(uneven\) at test_feeds.py:\d+ gave an array of \(4,\) float64 as element 777 of epoch 0"
    )
    with ps.from_generator(uneven).batch(10).loader(executor) as loader:
        with pytest.raises(ps.SpecError, match=text):
            got.extend(loader)
        assert len(got) == 77


def test_a_generator_that_raises_is_named_with_its_element_and_the_next_epoch_works(executor: str) -> None:
    fragile = Watched(1000, fails_at=500)
    with stream(fragile).batch(7).loader(executor) as loader:
        got: list[Any] = []
        with pytest.raises(
            ps.ElementError, match=r"failed at element 500 of epoch 0: KeyError: 'record 500'"
        ) as caught:
            got.extend(lists([batch])[0] for batch in loader)
        assert got == batches_of(7, 1000)[:71]
        assert isinstance(caught.value.__cause__, KeyError)
        assert loader.get_state()["position"] == 71
        fragile.broken.reset()
        assert lists(loader) == batches_of(7, 1000)
    assert fragile.times(BEGUN) == fragile.times(ENDED)


def test_the_state_after_an_error_resumes_at_the_failing_batch(executor: str) -> None:
    fragile = Watched(100, fails_at=50)
    with stream(fragile).batch(7).loader(executor) as loader:
        for _ in range(3):
            with pytest.raises(ps.ElementError, match="element 50 of epoch 0"):
                list(loader)
            assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (0, 7)
            loader.set_state(loader.get_state())
        fragile.broken.reset()
        assert lists(loader) == batches_of(7, 100)[7:]


def test_a_function_that_raises_on_an_element_of_a_stream_names_its_number(executor: str) -> None:
    def decode(x: Any) -> Any:
        if x == 1021:
            raise ValueError("bad record")
        return x

    odd = ps.from_generator(lambda: range(1, 4000, 2), element_spec=INT64)
    text = r"map\(decode\) at test_feeds.py:\d+ failed on element 510 of epoch 1.*ValueError: bad record"
    with odd.map(decode, element_spec=INT64).batch(4).loader(executor) as loader:
        loader.set_state(loader.get_state() | {"epoch": 1})
        got: list[Any] = []
        with pytest.raises(ps.ElementError, match=text):
            got.extend(loader)
        assert len(got) == 127


@pytest.mark.parametrize("verb", ["filter", "flat_map", "bucket_by_length"])
def test_a_function_that_decides_names_its_element_too(executor: str, verb: str) -> None:
    def judge(x: Any) -> Any:
        if x == 70:
            raise ValueError("cannot say")
        return {"filter": True, "flat_map": [x], "bucket_by_length": 1}[verb]

    numbers = stream(Watched(200))
    dataset = {
        "filter": lambda: numbers.filter(judge),
        "flat_map": lambda: numbers.flat_map(judge, element_spec=INT64),
        "bucket_by_length": lambda: numbers.bucket_by_length(judge, [5], [10, 10]),
    }[verb]()
    text = rf"{verb}\(judge.* at test_feeds.py:\d+ failed on element 70 of epoch 0.*ValueError: cannot say"
    with dataset.loader(executor) as loader:
        got: list[Any] = []
        with pytest.raises(ps.ElementError, match=text):
            got.extend(loader)
        assert len(got) == (7 if verb == "bucket_by_length" else 70)


@pytest.mark.parametrize("where", ["helper", "function", "flat_map", "filter", "map"])
def test_a_stop_iteration_that_is_a_mistake_does_not_look_like_the_end(executor: str, where: str) -> None:
    def helper(x: Any) -> Any:
        return next(iter(())) if x == 5 else x

    def generator() -> Iterator[Any]:
        for i in range(9):
            yield helper(i)

    def function() -> Any:
        return iter([helper(5)])

    numbers = stream(range(9))
    dataset = {
        "helper": lambda: stream(generator),
        "function": lambda: stream(function),
        "flat_map": lambda: numbers.flat_map(lambda x: [helper(x)], element_spec=INT64),
        "filter": lambda: numbers.filter(lambda x: helper(x) == x),
        "map": lambda: numbers.map(helper, element_spec=INT64),
    }[where]()
    number = 0 if where == "function" else 5
    with (
        dataset.batch(2).loader(executor) as loader,
        pytest.raises(ps.ElementError, match=rf"element {number} of epoch 0.*StopIteration"),
    ):
        list(loader)


@pytest.mark.parametrize("length", [3, 30])
def test_a_wrong_length_is_an_error_on_every_executor(executor: str, length: int) -> None:
    text = "gives more elements than length=3" if length == 3 else "ended after 9 elements of epoch 0, but length=30"
    with stream(range(9), length=length).loader(executor) as loader, pytest.raises(ps.SpecError, match=text):
        list(loader)


# Deadlines, and the end of generators.


def test_a_generator_that_waits_for_ever_is_named_by_the_deadline() -> None:
    stuck = Watched(100, blocks_at=42)
    loader = stream(stuck).batch(5).loader("threads", timeout_s=0.3)
    got: list[Any] = []
    with pytest.raises(ps.DeadlineError, match=r"(?s)element 42 of Watched.*timeout_s=0\.3|timeout_s=0\.3.*element 42"):
        got.extend(loader)
    assert len(got) == 8
    stuck.gate.give()
    loader.close()
    assert stuck.times(BLOCKED) == 1


def test_a_stream_that_gives_nothing_for_long_but_gets_on_is_no_matter_for_the_deadline() -> None:
    sparse = ps.from_generator(itertools.count, element_spec=INT64).filter(lambda x: x % 30_000 == 29_999)
    with sparse.loader("threads", workers=2, timeout_s=0.1) as loader:
        assert int(next(iter(loader))) == 29_999


def test_closing_ends_a_consumer_that_waits_and_the_thread_when_the_generator_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock._loader.CLOSE_WAIT_S", 0.01)
    stuck = Watched(100, blocks_at=3)
    loader = stream(stuck).batch(5).loader("threads")
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            list(loader)
        except ps.LoaderError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert stuck.blocked.wait(DEADLINE_S)
    loader.close()
    consumer.join(DEADLINE_S)
    assert not consumer.is_alive()
    assert len(caught) == 1
    stuck.gate.give()  # the fixture waits for the thread


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_generator_that_was_broken_off_runs_its_finally_block(executor: str, taken: int, way: str) -> None:
    watched = Watched(None)
    loader = stream(watched).batch(4).loader(executor, prefetch=1)
    iterator = iter(loader)
    lists(itertools.islice(iterator, taken))
    if way == "close":
        loader.close()
    threads = [one for one in threading.enumerate() if one.name.startswith("penstock-")]
    del loader, iterator
    for thread in threads:
        thread.join(DEADLINE_S)
    assert watched.times(BEGUN) == watched.times(ENDED) <= 1


def test_a_break_ends_the_generator_before_the_next_begins(executor: str) -> None:
    watched = Watched(50)
    with stream(watched).batch(4).loader(executor, prefetch=2) as loader:
        for epoch in range(6):
            assert lists(itertools.islice(loader, epoch)) == batches_of(4, 50)[:epoch]
            assert watched.times(BEGUN) - watched.times(ENDED) <= 1
        assert lists(loader) == batches_of(4, 50)
    assert watched.times(BEGUN) == watched.times(ENDED)


def test_an_iteration_without_a_loader_that_is_dropped_ends_the_generator() -> None:
    watched = Watched(None)
    for step in (stream(watched), stream(watched).filter(lambda x: x > 3).batch(2), stream(watched).shuffle(window=8)):
        assert len(list(itertools.islice(step, 3))) == 3
    assert watched.times(BEGUN) == watched.times(ENDED) == 3


@pytest.mark.parametrize("where", ["generator", "function"])
def test_ctrl_c_costs_nothing(executor: str, where: str) -> None:
    # On the main thread it strikes in the middle of the generator, which then is lost; elsewhere while the consumer
    # waits, or has just been given a batch, which then is lost.
    armed, begun, answered = SharedSignal(), threading.Event(), threading.Event()
    armed.give()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(x: Any) -> None:
        if x == 50 and armed.wait(0):
            armed.reset()
            assert threading.get_ident() == main or begun.wait(DEADLINE_S)
            signal.pthread_kill(main, signal.SIGINT)
            assert threading.get_ident() == main or answered.wait(DEADLINE_S)

    def generator() -> Iterator[int]:
        for i in range(100):
            if where == "generator":
                interrupt(i)
            yield i

    def function(x: Any) -> Any:
        if where == "function":
            interrupt(x)
        return x

    with stream(generator).map(function, element_spec=INT64).batch(4).loader(executor, prefetch=1) as loader:
        iterator, got = iter(loader), []
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it strikes anywhere in it
            begun.set()
            got.extend(batch.tolist() for batch in iterator)
            answered.wait(DEADLINE_S)
        answered.set()
        at = loader.get_state()["position"]
        assert got == batches_of(4, 100)[: len(got)]
        assert len(got) in (at - 1, at)
        assert lists(iterator) == batches_of(4, 100)[at:]
        assert lists(loader) == batches_of(4, 100)


# What generators do.


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


def test_a_generator_may_read_another_loader(executor: str) -> None:
    def nested() -> Iterator[Any]:
        with stream(range(20)).batch(3).loader("threads", workers=2) as inner:
            for batch in inner:
                yield from batch.tolist()

    with stream(nested).batch(4).loader(executor) as loader:
        assert [lists(loader) for _ in range(2)] == [batches_of(4, 20)] * 2


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


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 40])
def test_the_order_is_the_same_for_any_number_of_workers(shards: int) -> None:
    def part(index: int, count: int) -> Iterator[int]:
        yield from range(index, 31, count)

    dataset = ps.from_generator(part, shards=shards, element_spec=INT64) if shards > 1 else stream(range(31))
    dataset = dataset.map(lambda x: x + 0, element_spec=INT64).batch(4)
    runs = [
        (executor, workers) for executor in EXECUTORS for workers in (1, 2, 5) if workers == 1 or executor != "inline"
    ]
    for executor, workers in runs:
        with dataset.loader(executor, workers=workers) as loader:
            assert [lists(loader) for _ in range(2)] == [batches_of(4, 31)] * 2


def test_shards_are_read_at_the_same_time() -> None:
    # Each waits before its first element until the others have begun.
    barrier = threading.Barrier(3)

    def part(index: int, count: int) -> Iterator[int]:
        barrier.wait(DEADLINE_S)
        yield from range(index, 30, count)

    with ps.from_generator(part, shards=3, element_spec=INT64).batch(10).loader("threads", workers=1) as loader:
        assert lists(loader) == batches_of(10, 30)


def test_a_shard_that_raises_is_named_and_the_next_epoch_works(executor: str) -> None:
    armed = SharedSignal()
    armed.give()

    def part(index: int, count: int) -> Iterator[int]:
        for i in range(index, 100, count):
            if i == 50 and armed.wait(0):
                raise OSError("shard gone")
            yield i

    with ps.from_generator(part, shards=4, element_spec=INT64).batch(5).loader(executor) as loader:
        got: list[Any] = []
        with pytest.raises(ps.ElementError, match=r"part.* failed at element 12 of epoch 0: OSError: shard gone"):
            got.extend(lists([batch])[0] for batch in loader)
        assert got == batches_of(5, 100)[:10]
        armed.reset()
        assert lists(loader) == batches_of(5, 100)


def test_two_loaders_of_one_dataset_do_not_meet(executor: str) -> None:
    dataset = stream(Watched(60)).filter(lambda x: x % 2 == 0).batch(4)
    with dataset.loader(executor) as one, dataset.loader(executor) as two:
        first = iter(one)
        ahead = lists(itertools.islice(first, 3))
        assert lists(two) == lists(dataset)
        assert ahead + lists(first) == lists(dataset)


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


def test_a_state_beyond_the_end_of_an_unknown_length_is_an_empty_rest(executor: str) -> None:
    with stream(range(10)).batch(2).loader(executor) as loader:
        for position in (5, 6, 1000):
            loader.set_state(loader.get_state() | {"epoch": 3, "position": position})
            assert lists(loader) == []
            assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (4, 0)
        assert lists(loader) == batches_of(2, 10)


def test_a_loader_is_sought_forwards_and_backwards_in_mid_epoch(executor: str) -> None:
    dataset = stream(Watched(400)).filter(lambda x: x % 3 != 1).shuffle(2, window=7).batch(4)
    whole = lists(dataset)
    with dataset.loader(executor, prefetch=2) as loader:
        for position in (0, 30, 3, 60, 66, 1, 2, 29):
            loader.set_state(loader.get_state() | {"epoch": 0, "position": position})
            assert lists(itertools.islice(loader, 3)) == whole[position : position + 3]


# Memory.


@pytest.mark.slow
def test_memory_is_flat_over_many_epochs(executor: str) -> None:
    def rows() -> Iterator[Any]:
        for i in range(20):
            yield np.full(500, i), "text" * i

    spec = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), np.dtype("U")))
    dataset = ps.from_generator(rows, element_spec=spec).filter(lambda x: True).map(lambda x: x, element_spec=spec)
    with dataset.loader(executor) as loader:
        for _ in range(10):
            list(loader)
        tracemalloc.start()
        try:
            for _ in range(10):
                list(loader)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(60):
                list(loader)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < 30_000, f"{grown} bytes in 60 epochs"


def test_threads_and_begun_generators_do_not_grow_with_epochs(executor: str) -> None:
    watched = Watched(10)
    with stream(watched).filter(lambda x: x > 2).batch(3).loader(executor) as loader:
        list(loader)
        threads = threading.active_count()
        for _ in range(50):
            assert lists(loader) == batches_of(3, 3, 10)
            assert watched.times(BEGUN) - watched.times(ENDED) <= 1
        assert threading.active_count() == threads
    assert watched.times(BEGUN) <= 60


@pytest.mark.faults
@pytest.mark.skipif("processes" not in EXECUTORS, reason="streams do not run in worker processes yet")
def test_a_worker_that_dies_at_a_function_of_a_stream_costs_nothing() -> None:
    lethal = LethalFunction({37: ["kill", None]})
    with stream(range(100)).map(lethal, element_spec=INT64).batch(4).loader("processes", workers=2) as loader:
        assert lists(loader) == batches_of(4, 100)
