"""The pool of worker processes: how it starts, shares, recovers and ends; the environment of its workers."""

import gc
import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.memory._shared import SharedFile
from penstock.run.pool import _pool, _task_queue
from penstock.sources.arrays import RangeSource
from penstock.testing import GatedSource
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

SCALAR = ps.ArraySpec((), "int64")


@pytest.mark.slow
def test_a_refused_function_leaves_no_workers() -> None:
    def broken(x: Any) -> Any:
        raise ValueError("not yet")

    for _ in range(2):
        with pytest.raises(ps.ElementError, match="not yet"):
            ps.range(10).map(broken).batch(2).loader("processes", workers=1)
    gc.collect()
    assert not _pool.registry


@pytest.mark.slow
def test_a_refused_limit_leaves_no_workers() -> None:
    with pytest.raises(ps.MemoryLimitError):
        ps.range(10).map(lambda x: x).batch(2).loader("processes", workers=1, memory_limit=1)
    assert not _pool.registry


@pytest.mark.slow
def test_ctrl_c_while_arrays_are_shared_leaves_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.zeros(1 << 18)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    loader = ps.range(10).map(lambda x: x + table[0]).batch(2).loader("processes", workers=1)
    monkeypatch.setattr(_pool.SharedFile, "put_array", interrupt)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    monkeypatch.undo()
    loader.close()
    del loader


def test_a_system_that_starts_no_process_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(_pool, "WorkerProcess", refuse)
    with pytest.raises(ps.WorkerError, match=r"The system starts no more processes.*executor='threads' needs none"):
        ps.range(10).map(lambda x: x).batch(2).loader("processes", workers=1)


@pytest.mark.slow
def test_a_process_that_cannot_be_started_once_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    child, refused = _pool.WorkerProcess, []

    def once(*arguments: Any) -> Any:
        if not refused:
            refused.append(True)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return child(*arguments)

    monkeypatch.setattr(_pool, "WorkerProcess", once)
    with ps.range(10).map(lambda x: x).batch(5).loader("processes", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_pool_that_cannot_be_had_leaves_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    start, dataset = threading.Thread.start, ps.range(10).batch(2)

    def limited(thread: threading.Thread) -> None:
        if thread.name == "penstock-pool":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(dataset.loader("processes"))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.slow
def test_what_there_is_no_descriptor_left_to_receive_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receive = socket.recv_fds

    def receive_without(*arguments: Any) -> Any:  # as the system does it
        data, descriptors, *rest = receive(*arguments)
        for descriptor in descriptors:
            os.close(descriptor)
        return data, [], *rest

    monkeypatch.setattr(socket, "recv_fds", receive_without)
    large = ps.range(10).map(lambda x: np.zeros(x + 10_000), element_spec=ps.ArraySpec((None,), "float64"))
    with (
        large.loader("processes", workers=1) as loader,
        pytest.raises(
            ps.LoaderError, match=r"sent 78\.3 KiB in a file, and .* as many files open as it may\. Close some"
        ),
    ):
        next(iter(loader))
    caplog.clear()  # its traceback holds the pool


@pytest.mark.slow
def test_a_child_that_a_function_forks_does_no_work_of_the_worker() -> None:
    def forking(x: Any) -> Any:
        if x == 3:
            pid = os.fork()
            if pid == 0:
                raise SystemExit(0)
            os.waitpid(pid, 0)
        return x

    with ps.range(12).map(forking, element_spec=SCALAR).batch(4).loader("processes", workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.slow
def test_a_worker_without_a_descriptor_for_what_it_has_to_hand_over_says_so() -> None:
    def leaking(x: Any) -> Any:
        import resource

        if x == 3:  # as if it had left so many files open
            free = os.open(os.devnull, os.O_RDONLY)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return np.full(100_000, x)

    dataset = ps.range(6).map(leaking, element_spec=ps.ArraySpec((None,), "int64"))
    text = r"Too many open files: a worker has 800,\d{3} bytes to hand over, .* Does a function leave files open\?"
    with dataset.loader("processes", workers=1) as loader:
        batches = iter(loader)
        for number in range(3):
            assert np.array_equal(next(batches), np.full(100_000, number))
        with pytest.raises(OSError, match=text):
            next(batches)


@pytest.mark.slow
def test_no_error_of_many_is_lost() -> None:
    def odd(x: Any) -> Any:
        if x % 2:
            raise ValueError(f"odd {x}")
        return x

    with ps.range(400).map(odd, element_spec=SCALAR).batch(1).loader("processes", workers=3) as loader:
        for index in range(400):
            loader.set_state(loader.get_state() | {"epoch": 0, "position": index})
            if index % 2:
                with pytest.raises(ps.ElementError, match=rf"ValueError: odd {index}\n"):
                    next(iter(loader))
            else:
                assert next(iter(loader)).tolist() == [index]


@pytest.mark.slow
def test_a_slow_unit_of_one_loader_does_not_stop_another() -> None:
    # Thousands of units go by while one worker stays at its unit.
    gate = GatedSource(RangeSource(50), closed={0}, deadline_s=DEADLINE_S)
    slow = ps.from_source(gate).batch(1).loader("processes", workers=2)
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.extend(slow))
    thread.start()
    gate.wait_for_reads({0})
    with ps.range(5_000).map(lambda x: x, element_spec=SCALAR).loader("processes", workers=2) as fast:
        assert [int(x) for x in fast] == list(range(5_000))
    gate.open_gate()
    thread.join()
    assert [batch.tolist() for batch in first] == [[index] for index in range(50)]
    slow.close()


@pytest.mark.slow
def test_a_loader_that_a_finalizer_closes_on_the_pools_thread_does_not_stop_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.loader.CLOSE_WAIT_S", 2 * DEADLINE_S)
    with ps.range(40).batch(2).loader("processes", workers=1) as other:
        batches = iter(other)
        next(batches)
        loader = ps.range(40).batch(2).loader("processes", workers=1)
        next(iter(loader))
        is_closed = threading.Event()
        pool: Any = _pool.registry._entries[""]
        pool.post(lambda: (loader.close(), is_closed.set()))
        assert is_closed.wait(DEADLINE_S)
        assert len(list(batches)) == 19


@pytest.mark.slow
def test_a_plan_that_comes_after_its_loader_was_closed_is_not_kept_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    put, is_there, may_go_on = SharedFile.put_bytes, threading.Event(), threading.Event()

    def put_later(shared: SharedFile, data: bytes) -> Any:
        is_there.set()
        assert may_go_on.wait(DEADLINE_S)
        return put(shared, data)

    def consume(loader: Any) -> None:
        with pytest.raises(ps.LoaderError, match="This loader is closed"):
            iter(loader)

    with ps.range(40).batch(2).loader("processes", workers=1) as other:
        batches = iter(other)
        pool: Any = _pool.registry._entries[""]
        held = len(pool.shared._held)
        monkeypatch.setattr(SharedFile, "put_bytes", put_later)
        loader = ps.range(40).batch(2).loader("processes", workers=1)
        consumer = threading.Thread(target=consume, args=(loader,))
        consumer.start()
        assert is_there.wait(DEADLINE_S)
        loader.close()
        may_go_on.set()
        consumer.join(DEADLINE_S)
        is_looked_at = threading.Event()
        pool.post(is_looked_at.set)
        assert is_looked_at.wait(DEADLINE_S)
        assert (len(pool._tasks), len(pool.shared._held)) == (1, held)
        assert len(list(batches)) == 20


@pytest.mark.slow
def test_workers_follow_to_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seven").write_text("7")
    (tmp_path / "gone").mkdir()
    with ps.range(2).map(lambda x: x).loader("processes", workers=1) as first:
        list(first)
        monkeypatch.chdir(tmp_path / "gone")
        with ps.range(2).map(lambda x: x + len(os.listdir())).loader("processes", workers=1) as second:
            assert [int(x) for x in second] == [0, 1]
        monkeypatch.chdir(tmp_path)
        (tmp_path / "gone").rmdir()  # where the worker is
        with ps.range(2).map(lambda x: x + int(Path("seven").read_text())).loader("processes", workers=1) as third:
            assert [int(x) for x in third] == [7, 8]


@pytest.mark.slow
def test_how_much_memory_workers_keep_is_the_users_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    dataset = ps.range(2).map(lambda x: os.environ["MALLOC_TRIM_THRESHOLD_"])
    with dataset.batch(2).loader("processes", workers=1) as loader:
        assert next(iter(loader)).tolist() == ["4096", "4096"]


@pytest.mark.slow
def test_a_program_whose_directory_was_deleted_has_workers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with ps.range(2).map(lambda x: x + 1).loader("processes", workers=1) as loader:
        assert [int(x) for x in loader] == [1, 2]


def test_a_batch_kept_until_modules_are_taken_apart_notifies_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup = _task_queue.Pipe()
    monkeypatch.setattr(_task_queue, "os", None)
    for _ in range(70_000):  # more than a pipe holds
        wakeup.write()
    monkeypatch.undo()
    assert os.read(wakeup.reader, 1) == b"\0"
