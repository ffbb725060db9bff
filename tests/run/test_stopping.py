"""Every way to stop ends every thread and frees the memory; nothing waits for what does not come."""

import errno
import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import loader as _loader
from penstock.memory import _ring
from penstock.run import _copy_delivery, _delivery, _inline
from penstock.run._crew import Crew
from tests.run.common import Gate, assert_ended, mapping_count, name_rings, workers
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

WORKERS = pytest.mark.parametrize("count", [1, 2, 7])


@pytest.fixture(autouse=True)
def _rings_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    name_rings(monkeypatch)


def loader_of(count: int, **options: Any) -> Any:
    return ps.range(200).shuffle(1).batch(2).loader("threads", workers=count, **options)


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Any:
    """Dropping is enough, the collector need not come."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@WORKERS
@pytest.mark.parametrize("taken", [0, 1, 50, 100])
def test_close_ends_and_frees_everything_before_it_returns(count: int, taken: int) -> None:
    loader = loader_of(count)
    list(itertools.islice(loader, taken))
    loader.close()
    assert not workers()
    assert mapping_count() == 0
    loader.close()
    with pytest.raises(ps.LoaderError, match=r"^This loader is closed\. Make another one"):
        iter(loader)


def test_close_of_a_loader_that_never_ran() -> None:
    loader = loader_of(2)
    assert not workers()
    loader.close()
    loader.close()
    assert loader.get_state()["position"] == 0


@WORKERS
def test_close_while_the_workers_are_started_ends_them(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, make = loader_of(count), Crew.make_executor

    def close_behind(crew: Crew, client: Any) -> Any:
        executor = make(crew, client)
        loader.close()  # as another thread does
        return executor

    monkeypatch.setattr(Crew, "make_executor", close_behind)
    with pytest.raises(ps.LoaderError, match="closed"):
        iter(loader)
    assert_ended(workers())


@WORKERS
def test_ctrl_c_before_anybody_knows_of_the_workers_ends_them(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = _loader.start

    def cut_off(arrangement: Any) -> None:
        start(arrangement)
        raise KeyboardInterrupt

    monkeypatch.setattr(_loader, "start", cut_off)
    with pytest.raises(KeyboardInterrupt):
        iter(loader_of(count))
    assert_ended(workers())


@WORKERS
def test_with_block_ends_everything_whatever_leaves_it(count: int) -> None:
    def train() -> None:
        with loader_of(count) as loader:
            for batch in loader:
                raise ZeroDivisionError(batch.shape)

    with pytest.raises(ZeroDivisionError):
        train()
    assert not workers()
    assert mapping_count() == 0


@WORKERS
def test_break_and_drop_end_everything(count: int) -> None:
    for _ in loader_of(count):
        threads = workers()
        break
    assert len(threads) == count
    assert_ended(threads)
    del _
    assert mapping_count() == 0


@WORKERS
def test_an_exception_in_the_consumer_ends_everything(count: int) -> None:
    threads: list[threading.Thread] = []

    def train() -> None:
        for batch in loader_of(count):
            threads.extend(workers())
            assert batch.shape == (3,), "the consumer's own mistake"

    with pytest.raises(AssertionError):
        train()
    assert_ended(threads)
    assert mapping_count() == 0


def test_an_iterator_keeps_its_loader_and_nothing_else_does() -> None:
    loader = loader_of(2)
    gone = weakref.ref(loader)
    iterator = iter(loader)
    del loader
    next(iterator)
    assert gone() is not None
    threads = workers()
    del iterator
    assert gone() is None
    assert_ended(threads)


def test_dropping_the_dataset_harms_no_loader() -> None:
    dataset = ps.from_arrays(np.arange(50)).batch(5)
    loader = dataset.loader("threads")
    del dataset
    assert sum(int(batch.sum()) for batch in loader) == 1225
    loader.close()


def test_a_loader_in_a_cycle_ends_when_the_collector_comes() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.loader = loader_of(2)
            self.me = self
            self.batches = iter(self.loader)
            next(self.batches)

    Trainer()
    threads = workers()
    assert threads
    gc.collect()
    assert_ended(threads)


def test_close_ends_a_consumer_that_waits() -> None:
    gate = Gate(1)
    loader = ps.range(8).map(gate).batch(1).loader("threads", workers=1)
    iterator = iter(loader)
    next(iterator)
    caught: list[str] = []

    def consume() -> None:
        try:
            next(iterator)
        except ps.LoaderError as error:
            caught.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    gate.wait_for(1)
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join(DEADLINE_S)  # before the worker can go on
    assert caught == ["This loader is closed. Make another one: dataset.loader(...)."]
    gate.open()
    closer.join(DEADLINE_S)
    assert not workers()


def test_close_ends_the_workers_below_steps_that_run_inline() -> None:
    here = threading.Lock()  # which cannot travel
    gate = Gate(40)

    def drawing(x: Any) -> Any:
        with here:
            return x + np.random.randint(9)

    def held(x: Any) -> Any:
        with here:
            pass
        return gate(x)

    int64 = ps.ArraySpec((), "int64")
    loader = ps.range(99).map(held, element_spec=int64).filter(bool).map(drawing, element_spec=int64).batch(2).loader()
    next(iter(loader))
    gate.wait_for(40)
    closer = threading.Thread(target=loader.close)
    closer.start()
    gate.open()
    closer.join(DEADLINE_S)
    assert not workers()
    assert mapping_count() == 0


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.loader.CLOSE_WAIT_S", 0.05)
    gate = Gate(1, 2, 3)
    loader = ps.range(8).map(gate).batch(1).loader("threads", workers=3)
    iter(loader)
    gate.wait_for(1, 2, 3)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < DEADLINE_S / 2  # and not when the gate gives up
    threads = workers()
    assert len(threads) == 3  # nobody can stop them
    gate.open()
    assert_ended(threads)


def test_close_may_be_called_by_a_worker() -> None:
    def last_straw(x: Any) -> Any:
        if x == 5:
            loader.close()
        return x

    loader = ps.range(20).map(last_straw, element_spec=ps.ArraySpec((), "int64")).batch(1).loader("threads")
    with pytest.raises(ps.LoaderError, match="closed"):
        list(loader)
    threads = workers()
    assert_ended(threads)
    loader.close()


def test_a_unit_that_ends_after_its_inline_loader_was_closed_ends_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, run, outcomes = Gate(3), _inline.UnitRunner.run, []
    caught: list[BaseException] = []

    def noting(self: Any, unit: Any) -> Any:
        result = run(self, unit)
        outcomes.append(result.error)
        return result

    def consume() -> None:
        try:
            list(loader)
        except ps.LoaderError as error:
            caught.append(error)

    monkeypatch.setattr(_inline.UnitRunner, "run", noting)
    loader = ps.range(8).map(gate, element_spec=ps.ArraySpec((), "int64")).batch(2).loader("inline")
    consumer = threading.Thread(target=consume)
    consumer.start()
    gate.wait_for(3)
    loader.close()
    gate.open()
    consumer.join(DEADLINE_S)
    assert outcomes == [None, None]
    assert "closed" in str(caught[0])


def test_close_while_another_thread_takes_is_an_error_and_no_crash() -> None:
    kinds: list[type[BaseException]] = []

    def consume(iterator: Any) -> None:
        try:
            for batch in iterator:
                batch += 1
        except BaseException as error:
            kinds.append(type(error))

    for _ in range(30):
        loader = loader_of(2)
        iterator = iter(loader)
        next(iterator)
        consumer = threading.Thread(target=consume, args=(iterator,))
        consumer.start()
        loader.close()
        consumer.join(DEADLINE_S)
        assert not consumer.is_alive()
    assert set(kinds) <= {ps.LoaderError}
    assert not workers()


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize("end", ["request_stop", "close"])
def test_a_loader_of_copies_that_is_closed_while_it_begins_or_goes_on_says_so(
    end: str, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, calls = _copy_delivery.CopyPlan.block, itertools.count()

    def closing(self: Any, *arguments: int) -> Any:
        found = block(self, *arguments)
        if next(calls) == moment:  # as another thread does it at this moment, at first or to the end
            loader._delivery.request_stop() if end == "request_stop" else loader.close()
        return found

    monkeypatch.setattr(_copy_delivery, "BLOCK_ROWS", 8)
    monkeypatch.setattr(_copy_delivery.CopyPlan, "block", closing)
    loader = ps.from_arrays(np.arange(200)).batch(2).loader("threads", workers=2)
    with pytest.raises(ps.LoaderError, match=r"^This loader is closed\. Make another one"):
        list(loader)
    loader.close()


def test_many_loaders_at_once_and_dropped_by_other_threads() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:

        def use() -> None:
            for _ in range(10):
                for number, batch in enumerate(loader_of(2)):
                    assert batch.shape == (2,)
                    if number == 7:
                        break

        users = [threading.Thread(target=use) for _ in range(6)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    finally:
        sys.setswitchinterval(interval)
    assert_ended(workers())
    assert mapping_count() == 0


def test_a_loader_made_and_used_in_a_thread_ends_with_it() -> None:
    def use() -> None:
        iterator = iter(loader_of(2))
        next(iterator)

    user = threading.Thread(target=use)
    user.start()
    user.join()
    assert_ended(workers())


class Closable(ps.Source):
    """Counts what is open."""

    element_spec = ps.ArraySpec((), "int64")

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __len__(self) -> int:
        return 40

    def open(self) -> "Closable":
        self._log.append("open")
        return Closable(self._log)

    def close(self) -> None:
        self._log.append("close")

    def read_into(self, indices: Any, out: Any) -> None:
        out[...] = indices


def _drop(loader: Any) -> None:
    next(iter(loader))


def _close(loader: Any) -> None:
    next(iter(loader))
    loader.close()


def _never_run(loader: Any) -> None:
    loader.close()


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("end", [_drop, _close, _never_run])
def test_sources_are_opened_once_and_closed_once(executor: Any, end: Callable[[Any], None]) -> None:
    log: list[str] = []
    loader = ps.from_source(Closable(log)).batch(2).loader(executor)
    end(loader)
    threads = workers()
    del loader
    assert_ended(threads)
    assert log == ["open", "close"]


def test_files_are_closed_with_the_loader(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100, 10)))
    loader = ps.from_npy(tmp_path / "x.npy").batch(4).loader("threads")
    next(iter(loader))
    assert open_count(tmp_path) == 1
    loader.close()
    assert open_count(tmp_path) == 0


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_loader_that_is_closed_while_another_thread_starts_it_ends(
    executor: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, may_go_on = threading.Event(), threading.Event()
    make = _delivery.Ring

    def make_later(*arguments: Any, **options: Any) -> Any:
        ring = make(*arguments, **options) if moment == "between" else None
        is_there.set()
        assert may_go_on.wait(DEADLINE_S)
        return ring or make(*arguments, **options)

    errors: list[BaseException] = []

    def consume() -> None:
        try:
            iter(loader)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(_inline if executor == "inline" else _delivery, "Ring", make_later)
    loader = ps.range(20).batch(2).loader(executor)
    consumer = threading.Thread(target=consume)
    consumer.start()
    assert is_there.wait(DEADLINE_S)
    loader.close()
    may_go_on.set()
    consumer.join(DEADLINE_S)
    (error,) = errors
    with pytest.raises(ps.LoaderError, match=r"^This loader is closed\. Make another one"):
        raise error
    del error
    errors.clear()  # tracebacks hold the ring
    assert not workers()
    assert mapping_count() == 0


def open_count(directory: Path) -> int:
    links = [link for link in Path("/proc/self/fd").glob("*") if link.is_symlink()]
    return sum(str(link.readlink()).startswith(str(directory)) for link in links)


def test_a_ring_that_cannot_be_had_leaves_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_ring, "private", refuse)
    loader = loader_of(3)
    with pytest.raises(OSError, match="Too many open files"):
        iter(loader)
    assert_ended(workers())
    monkeypatch.undo()
    assert len(list(loader)) == 100
    loader.close()


@pytest.mark.slow
def test_worker_processes_start_again_after_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring, "MemoryFile", _refused)
    loader = ps.range(8).map(abs).batch(2).loader("processes", workers=1)
    with pytest.raises(ps.MemoryLimitError, match="The system gives no"):
        iter(loader)
    monkeypatch.undo()
    assert len(list(loader)) == 4
    loader.close()


def _refused(nbytes: int) -> Any:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_threads_that_cannot_be_had_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        iter(loader_of(3))
    assert_ended(started)
