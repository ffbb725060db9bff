"""Signals to busy workers do not change the batches."""

import contextlib
import itertools
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing._shared import SharedLog
from tests.faults.programs import await_end
from tests.leftovers import not_of_others, shared_names, worker_processes
from tests.waits import DEADLINE_S

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]

COUNT = 1600
SIZE = 8
KILL_COUNT = 12


class Traced:
    """A function that logs its process and computes for about 0.1 ms."""

    def __init__(self) -> None:
        self._log = SharedLog()

    def __call__(self, x: Any) -> Any:
        self._log.append(np.array([os.getpid()], np.int64))
        total = 0
        for i in range(2000):
            total += i
        return x * 3 + total * 0

    def pids(self) -> list[int]:
        """The processes that ran it, in order."""
        return [int(pid) for pid in self._log.values()]

    def last_alive(self) -> int | None:
        alive = worker_processes()
        return next((pid for pid in reversed(self.pids()) if pid in alive), None)


def batches_of(function: Callable[[Any], Any], count: int = COUNT) -> ps.Dataset:
    return ps.range(count).map(function).random_map(lambda x, rng: (x, rng.random())).shuffle(1).batch(SIZE)


@pytest.fixture(scope="module")
def oracle() -> list[Any]:
    with batches_of(Traced()).loader(executor="inline") as loader:
        return [tuple(leaf.copy() for leaf in batch) for batch in loader]


def assert_epoch(batches: Any, want: list[Any], after: Callable[[int], object] = lambda number: None) -> None:
    """Asserts that an epoch is what it should be, and calls `after` with each batch's number."""
    number = -1
    for number, (batch, expected) in enumerate(zip(batches, want, strict=True)):
        assert all(np.array_equal(leaf, other) for leaf, other in zip(batch, expected, strict=True)), number
        after(number)
    assert number == len(want) - 1


def test_random_kills_in_an_epoch_change_nothing(oracle: list[Any]) -> None:
    # Between two kills are more batches than slots, so none hits one unit three times; that would be an error.
    rng, traced = random.Random(1), Traced()
    gaps = [rng.randint(5, 6) for _ in range(KILL_COUNT)]
    moments = {sum(gaps[: i + 1]) for i in range(KILL_COUNT)}
    timers, killed = [], []

    def kill() -> None:
        pid = traced.last_alive()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # the timer before was quicker
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    def after(number: int) -> None:
        if number in moments:
            timers.append(threading.Timer(rng.uniform(0, 0.003), kill))
            timers[-1].start()

    with batches_of(traced).loader(executor="processes", workers=2, prefetch=1) as loader:
        assert_epoch(loader, oracle, after)
        for timer in timers:
            timer.join()
        told = loader.report().note
    hit = len(set(killed))  # some moments come while a worker is starting, or hit one that is dead and not reaped yet
    assert hit >= KILL_COUNT // 2
    more = re.search(r"And (\d+) more such lines", told)
    assert told.count("A new worker ") + int(more[1] if more else 0) >= hit - 5, told
    assert "was killed by signal 9 (SIGKILL)" in told


@pytest.fixture
def heeds_signals() -> Iterator[None]:
    """Workers inherit what is ignored here. A shell makes commands in the background ignore some."""
    ignored = [kind for kind in (signal.SIGQUIT, signal.SIGHUP) if signal.getsignal(kind) is signal.SIG_IGN]
    for kind in ignored:
        signal.signal(kind, signal.SIG_DFL)
    yield
    for kind in ignored:
        signal.signal(kind, signal.SIG_IGN)


@pytest.mark.usefixtures("heeds_signals")
def test_a_worker_that_is_killed_by_any_signal_is_replaced(oracle: list[Any]) -> None:
    traced = Traced()
    moments = {
        5: signal.SIGSEGV,
        45: signal.SIGBUS,
        85: signal.SIGABRT,
        125: signal.SIGQUIT,
        165: signal.SIGHUP,
    }

    killed: list[int] = []

    def living() -> int | None:
        """A worker that was not killed yet: the last one that ran the function, if it is one of them."""
        alive = [pid for pid in worker_processes() if pid not in killed]
        return next((pid for pid in [*reversed(traced.pids()), *alive] if pid in alive), None)

    def after(batch: int) -> None:
        if batch in moments:
            ends_at = time.monotonic() + DEADLINE_S
            while (pid := living()) is None:  # a new one is being started
                assert time.monotonic() < ends_at
            os.kill(pid, moments[batch])
            killed.append(pid)

    with batches_of(traced).loader(executor="processes", workers=2) as loader:
        assert_epoch(loader, oracle, after)
        assert len(killed) == len(moments)
        ends_at = time.monotonic() + DEADLINE_S  # the epoch may end before the last one is replaced
        while len([pid for pid in worker_processes() if pid not in killed]) != 2:
            assert time.monotonic() < ends_at
            time.sleep(0.01)


def test_all_workers_killed_at_once_are_replaced(oracle: list[Any]) -> None:
    def after(batch: int) -> None:
        if batch % 100 == 50:
            for pid in worker_processes():
                os.kill(pid, signal.SIGKILL)

    with batches_of(Traced()).loader(executor="processes", workers=3) as loader:
        assert_epoch(loader, oracle, after)


def test_workers_killed_while_nobody_asks_are_replaced_too(oracle: list[Any]) -> None:
    with batches_of(Traced()).loader(executor="processes", workers=2) as loader:
        next(iter(loader))
        for pid in worker_processes():
            os.kill(pid, signal.SIGKILL)
            await_end([pid])
        loader.set_state(loader.get_state() | {"epoch": 0, "position": 0})
        assert_epoch(loader, oracle)


def test_a_worker_that_is_stopped_at_a_unit_is_replaced_in_its_time() -> None:
    log = SharedLog()

    def stop_once(x: Any) -> Any:
        if int(x) == 50 and not len(log.values()):
            log.append(np.array([1], np.int64))
            os.kill(os.getpid(), signal.SIGSTOP)
        return x * 3

    with ps.range(200).map(stop_once).batch(SIZE).loader("processes", workers=2, timeout_s=1.0) as loader:
        assert np.concatenate(list(loader)).tolist() == [x * 3 for x in range(200)]
        told = loader.report().note
    assert re.search("did not get on for timeout_s=1 s with .* It was stopped, by SIGSTOP.", told)


def test_a_worker_that_is_stopped_between_two_units_changes_nothing(oracle: list[Any]) -> None:
    traced = Traced()

    def after(batch: int) -> None:
        if batch == 100:
            os.kill(traced.pids()[-1], signal.SIGSTOP)

    # The other one may have done everything before anybody finds out.
    with batches_of(traced).loader(executor="processes", workers=2, timeout_s=1.0) as loader:
        assert_epoch(loader, oracle, after)


def test_all_workers_stopped_at_once_are_replaced_in_their_time(oracle: list[Any]) -> None:
    def after(batch: int) -> None:
        if batch == 100:
            for pid in worker_processes():
                os.kill(pid, signal.SIGSTOP)

    with batches_of(Traced()).loader(executor="processes", workers=2, timeout_s=1.0) as loader:
        assert_epoch(loader, oracle, after)


def test_close_does_not_wait_for_stopped_workers() -> None:
    loader = batches_of(Traced()).loader(executor="processes", workers=2)
    next(iter(loader))
    for pid in worker_processes():
        os.kill(pid, signal.SIGSTOP)
    loader.close()
    assert not worker_processes()


def test_a_worker_that_goes_on_after_a_stop_is_the_same(oracle: list[Any]) -> None:
    traced = Traced()

    def after(batch: int) -> None:
        if batch == 100:
            stopped = traced.pids()[-1]
            os.kill(stopped, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (stopped, signal.SIGCONT)).start()

    with batches_of(traced).loader(executor="processes", workers=2) as loader:
        assert_epoch(loader, oracle, after)
    assert len(set(traced.pids())) == 2


def test_what_a_scheduler_sends_to_everybody_does_not_end_a_worker(oracle: list[Any]) -> None:
    traced, numbers = Traced(), itertools.cycle([signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])

    def after(batch: int) -> None:
        if batch % 10 == 0:
            number = next(numbers)
            for pid in set(traced.pids()):
                os.kill(pid, number)

    with batches_of(traced).loader(executor="processes", workers=2) as loader:
        assert_epoch(loader, oracle, after)
        assert "new worker" not in loader.report().note
        assert worker_processes() >= set(traced.pids())
    assert len(set(traced.pids())) == 2


def test_workers_are_in_sessions_of_their_own() -> None:
    with batches_of(Traced()).loader(executor="processes", workers=2) as loader:
        next(iter(loader))
        workers = worker_processes()
        assert len(workers) == 2
        assert all(os.getsid(pid) == os.getpgid(pid) == pid for pid in workers)


@pytest.fixture
def _no_signals_of_children() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_no_signals_of_children")
def test_a_program_that_ignores_its_childrens_ends_loses_nothing(oracle: list[Any]) -> None:
    # The system then reaps workers itself, so how they ended stays unknown.
    traced = Traced()

    def after(batch: int) -> None:
        if batch in (50, 150):
            os.kill(traced.pids()[-1], signal.SIGKILL)

    with batches_of(traced).loader(executor="processes", workers=2) as loader:
        assert_epoch(loader, oracle, after)


def test_nothing_of_killed_workers_is_left_in_shared_memory(oracle: list[Any]) -> None:
    before = shared_names()
    with batches_of(Traced()).loader(executor="processes", workers=2) as loader:
        for number, _ in enumerate(loader):
            if number == 20:
                for pid in worker_processes():
                    os.kill(pid, signal.SIGKILL)
            if number == 30:
                assert not not_of_others(shared_names() - before)
                break
    assert not not_of_others(shared_names() - before)
