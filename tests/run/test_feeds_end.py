"""Streams that go wrong, wait for ever, or are broken off: what comes before, what is said, what is left."""

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.memory._ring import Ring
from penstock.memory._shared import SharedFile
from penstock.testing._shared import SharedSignal
from tests.run.common import interrupted_at
from tests.run.feeds import BEGUN, BLOCKED, ENDED, EVERY_EXECUTOR, INT64, Watched, batches_of, lists, stream
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers", "leaves_nothing_behind")


# Errors: those before arrive, then the error, then the next epoch.


@EVERY_EXECUTOR
def test_an_element_of_another_shape_is_named(executor: str) -> None:
    def uneven() -> Iterator[Any]:
        for i in range(1000):
            yield np.zeros(3 if i != 777 else 4)

    got: list[Any] = []
    text = (
        r"from_generator\(uneven\) at test_feeds_end.py:\d+ gave an array of \(4,\) float64 as element 777 of epoch 0"
    )
    with ps.from_generator(uneven).batch(10).loader(executor) as loader:
        with pytest.raises(ps.SpecError, match=text):
            got.extend(loader)
        assert len(got) == 77


@EVERY_EXECUTOR
def test_a_shape_that_differs_from_the_spec_is_named_with_its_element(executor: str) -> None:
    def samples() -> Iterator[Any]:
        for i in range(50):
            yield {"image": np.zeros((4, 4, 3), np.uint8), "label": np.int32(i)}

    dataset = ps.from_generator(samples).batch(8, drop_remainder=True)
    want = {"image": ps.ArraySpec((8, 4, 4, 3), "uint8"), "label": ps.ArraySpec((8,), "int32")}
    assert dataset.element_spec == want
    with dataset.loader(executor) as loader:
        assert loader.element_spec == want
        assert len(list(loader)) == 6

    def cropped(x: Any) -> Any:
        return {**x, "image": x["image"][: 4 if x["label"] < 40 else 3]}

    text = r"map\(cropped\) at test_feeds_end.py:\d+ returned .*\(3, 4, 3\) uint8.* for element 40"
    with (
        ps.from_generator(samples).map(cropped).batch(8).loader(executor) as loader,
        pytest.raises(ps.SpecError, match=text),
    ):
        list(loader)


@EVERY_EXECUTOR
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


@EVERY_EXECUTOR
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


@EVERY_EXECUTOR
def test_a_function_that_raises_on_an_element_of_a_stream_names_its_number(executor: str) -> None:
    def decode(x: Any) -> Any:
        if x == 1021:
            raise ValueError("bad record")
        return x

    odd = ps.from_generator(lambda: range(1, 4000, 2), element_spec=INT64)
    text = r"map\(decode\) at test_feeds_end.py:\d+ failed on element 510 of epoch 1.*ValueError: bad record"
    with odd.map(decode, element_spec=INT64).batch(4).loader(executor) as loader:
        loader.set_state(loader.get_state() | {"epoch": 1})
        got: list[Any] = []
        with pytest.raises(ps.ElementError, match=text):
            got.extend(loader)
        assert len(got) == 127


@pytest.mark.parametrize("verb", ["filter", "flat_map", "bucket_by_length"])
@EVERY_EXECUTOR
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
    text = rf"{verb}\(judge.* at test_feeds_end.py:\d+ failed on element 70 of epoch 0.*ValueError: cannot say"
    with dataset.loader(executor) as loader:
        got: list[Any] = []
        with pytest.raises(ps.ElementError, match=text):
            got.extend(loader)
        assert len(got) == (7 if verb == "bucket_by_length" else 70)


@pytest.mark.parametrize("where", ["helper", "function", "flat_map", "filter", "map"])
@EVERY_EXECUTOR
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
@EVERY_EXECUTOR
def test_a_wrong_length_is_an_error_on_every_executor(executor: str, length: int) -> None:
    text = "gives more elements than length=3" if length == 3 else "ended after 9 elements of epoch 0, but its length"
    with stream(range(9), length=length).loader(executor) as loader, pytest.raises(ps.SpecError, match=text):
        list(loader)


@EVERY_EXECUTOR
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


# Deadlines, and the end of generators.


def test_a_generator_that_waits_for_ever_is_named_by_the_deadline() -> None:
    stuck = Watched(100, blocks_at=42)
    loader = stream(stuck).batch(5).loader("threads", timeout_s=1.0)
    got: list[Any] = []
    with pytest.raises(ps.DeadlineError, match=r"(?s)element 42 of Watched.*timeout_s=1|timeout_s=1.*element 42"):
        got.extend(loader)
    assert len(got) == 8
    stuck.gate.give()
    loader.close()
    assert stuck.times(BLOCKED) == 1


def test_a_deadline_names_the_batch_that_was_waited_for() -> None:
    gate = threading.Event()

    def stuck() -> Iterator[int]:
        yield from range(6)
        gate.wait(DEADLINE_S)

    ds = ps.from_generator(stuck).map(lambda x: x).batch(2)
    with ds.loader(executor="threads", timeout_s=1.0) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(ps.DeadlineError, match="while batch 3 of epoch 0 was waited for"):
            next(batches)
        gate.set()


def test_a_stream_that_gives_nothing_for_long_but_gets_on_is_no_matter_for_the_deadline() -> None:
    # Each element takes a fiftieth of the deadline, on a busy machine more; all take longer than it, with two workers.
    pause = threading.Event()
    sparse = stream(range(120)).filter(lambda x: pause.wait(0.03) or x == 119)
    began_s = time.monotonic()
    with sparse.loader("threads", workers=2, timeout_s=1.5) as loader:
        assert int(next(iter(loader))) == 119
    assert time.monotonic() - began_s > 1.5


def consuming(loader: Any) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that reads a loader, and the error that ends it."""
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            list(loader)
        except ps.LoaderError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    return consumer, caught


def test_closing_ends_a_consumer_that_waits_and_the_thread_when_the_generator_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.loader.CLOSE_WAIT_S", 0.01)
    stuck = Watched(100, blocks_at=3)
    loader = stream(stuck).batch(5).loader("threads")
    consumer, caught = consuming(loader)
    assert stuck.blocked.wait(DEADLINE_S)
    loader.close()
    consumer.join(DEADLINE_S)
    assert not consumer.is_alive()
    assert len(caught) == 1
    stuck.gate.give()  # the fixture waits for the thread


STREAMS: dict[str, Callable[[Any], ps.Dataset]] = {
    "alone": stream,
    "with a function": lambda function: stream(function).map(lambda x: x),
    "with a filter": lambda function: stream(function).filter(lambda x: True),
}


@pytest.mark.parametrize("plan", STREAMS)
def test_closing_an_inline_loader_whose_consumer_is_in_the_generator_is_no_error(plan: str) -> None:
    stuck = Watched(100, blocks_at=3)
    loader = STREAMS[plan](stuck).batch(2).loader("inline")
    consumer, caught = consuming(loader)
    assert stuck.blocked.wait(DEADLINE_S)
    try:
        loader.close()
    finally:
        stuck.gate.give()
        consumer.join(DEADLINE_S)
    assert "closed" in str(caught[0])
    assert stuck.times(BEGUN) == stuck.times(ENDED)


@pytest.mark.parametrize("plan", STREAMS)
def test_an_inline_loader_that_is_closed_while_its_consumer_is_in_its_books_says_so(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, consumer, left = Ring.rows, threading.current_thread(), 0
    loader: ps.Loader

    def rows_and_close(self: Ring, slot: int) -> Any:
        nonlocal left
        left -= threading.current_thread() is consumer
        if left == 0:  # another thread closes it this very moment
            closer = threading.Thread(target=loader.close)
            closer.start()
            closer.join()
        return rows(self, slot)

    monkeypatch.setattr(Ring, "rows", rows_and_close)
    place = 0
    while left <= 0:
        left = place = place + 1
        with STREAMS[plan](Watched(5)).batch(2).loader("inline") as loader, contextlib.suppress(ps.LoaderError):
            assert lists(loader) == batches_of(2, 5)
    assert place > 3, "nobody closed it where the work is"


@pytest.mark.parametrize("plan", STREAMS)
def test_a_generator_that_closes_its_own_inline_loader_ends_it(plan: str) -> None:
    has_returned = []

    def generator() -> Iterator[int]:
        yield from range(3)
        loader.close()
        has_returned.append(True)
        yield 3

    loader = STREAMS[plan](generator).batch(2).loader("inline")
    with pytest.raises(ps.LoaderError, match="closed"):
        list(loader)
    assert has_returned == [True]


@pytest.mark.parametrize("plan", STREAMS)
def test_a_stream_goes_on_where_it_is_when_its_consumer_comes_on_another_thread(plan: str) -> None:
    watched = Watched(12)

    def on_a_thread(call: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(call().tolist()))
        thread.start()
        thread.join(DEADLINE_S)
        return found

    with STREAMS[plan](watched).batch(2).loader("inline") as loader:
        iterator, begun = iter(loader), watched.times(BEGUN)
        assert [on_a_thread(lambda: next(iterator)) for _ in range(6)] == [[one] for one in batches_of(2, 12)]
        assert watched.times(BEGUN) <= begun + 2  # of a feed, the next epoch has begun
        for _ in range(3):
            assert on_a_thread(lambda: next(iter(loader))) == [[0, 1]]
            assert watched.times(BEGUN) - watched.times(ENDED) <= 1


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("way", ["close", "drop"])
@EVERY_EXECUTOR
def test_a_generator_that_was_broken_off_runs_its_finally_block(executor: str, taken: int, way: str) -> None:
    watched = Watched(None)
    before = set(threading.enumerate())
    loader = stream(watched).batch(4).loader(executor, prefetch=1)
    iterator = iter(loader)
    lists(itertools.islice(iterator, taken))
    if way == "close":
        loader.close()
    threads = set(threading.enumerate()) - before
    del loader, iterator
    for thread in threads:
        thread.join(DEADLINE_S)
    assert watched.times(BEGUN) == watched.times(ENDED) <= 1


@EVERY_EXECUTOR
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


# Where it strikes between `open` and `with`, in Python's own code, the file is closed when it is dropped.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("executor", ["inline", "threads"])
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


def test_an_interrupt_anywhere_in_a_seek_costs_nothing() -> None:
    dataset = stream(range(40)).map(abs, element_spec=INT64).batch(4)
    with dataset.loader("threads", workers=1, prefetch=1, timeout_s=DEADLINE_S) as loader:
        step, in_a_row = 0, 0
        while in_a_row < 3:
            step += 1
            in_a_row = 0 if interrupted_at(step, lambda: iter(loader)) else in_a_row + 1
            assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    assert step > 20


@pytest.mark.slow
def test_two_threads_may_close_a_stream_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ps.range(100).map(lambda x: f"n{x}").filter(lambda text: True).map(lambda text: text + "!")
    loader = texts.batch(4).loader("processes", workers=1)
    next(iter(loader))
    release, is_there, may_go_on = SharedFile.release, threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def release_later(shared: SharedFile, place: Any) -> None:
        if threading.current_thread() is first:
            is_there.set()
            assert may_go_on.wait(DEADLINE_S)
        release(shared, place)

    def close() -> None:
        try:
            loader.close()
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(SharedFile, "release", release_later)
    first, second = threading.Thread(target=close), threading.Thread(target=close)
    first.start()
    assert is_there.wait(DEADLINE_S)
    second.start()
    second.join(DEADLINE_S)
    may_go_on.set()
    first.join(DEADLINE_S)
    assert not errors
