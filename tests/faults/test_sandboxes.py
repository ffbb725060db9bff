"""Systems that refuse memory files, CPU affinity, threads or `/proc`."""

import errno
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget
from penstock.files._fetch import Fetcher
from penstock.memory._mapping import MemoryFile
from penstock.run._cpus import usable_cpu_count

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls are Linux's")


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Has a call of `os` answer as a filter of system calls does."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, refused)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_workers_run_where_memory_files_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    refuse(monkeypatch, "memfd_create", number)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = MemoryFile(10)
    file.map()[:3] = b"abc"
    assert file.map()[:3] == b"abc"
    file.close()
    with ps.range(100).map(lambda x: x + 1).batch(10).loader("processes", workers=1) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(1, 101))
        assert not list(tmp_path.iterdir())


def test_a_full_disk_in_their_place_is_told_before_anybody_is_killed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "memfd_create", errno.EPERM)
    take = os.posix_fallocate

    def full(descriptor: int, offset: int, nbytes: int) -> None:
        if nbytes > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        take(descriptor, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    dataset = ps.range(100).map(lambda x: np.full(1 << 14, x)).batch(10)
    with (
        dataset.loader("processes", workers=1) as loader,
        pytest.raises(ps.MemoryLimitError, match=r"no .* MiB for 6 slots .*: No space left on device\. Use a smaller"),
    ):
        next(iter(loader))


def test_other_failures_of_memory_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "memfd_create", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        MemoryFile(10)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_cpus_are_counted_where_the_affinity_is_not_told(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse(monkeypatch, "sched_getaffinity", number)
    monkeypatch.setattr("penstock.run._cpus.cpu_quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cpu_count() == 3
    with ps.range(10).batch(5).loader("threads") as loader:
        assert len(list(loader)) == 2
        assert str(loader.report())


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_limit_of_threads_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("penstock-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(
        ps.WorkerError, match=r"no more threads: can't start new thread.*ulimit -u.*'inline' needs none"
    ):
        list(ps.range(10).batch(2).loader(executor))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource")])
def test_a_limit_of_threads_of_the_copy_engine_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(thread_count: int) -> None:
        raise error

    monkeypatch.setattr("penstock.run._copy_delivery.Engine", refused)
    with pytest.raises(ps.WorkerError, match=r"starts no more threads: .*ulimit -u.*'inline' needs none"):
        list(ps.from_arrays(np.arange(10)).batch(2).loader("threads"))


def test_a_limit_of_threads_while_files_are_indexed_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("penstock-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    for name in ("a", "b"):
        ps.write_tfrecord(tmp_path / name, [b"abc"])
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ps.WorkerError, match=r"starts no more threads: can't start new thread.*ulimit -u"):
        len(ps.from_tfrecord([tmp_path / "a", tmp_path / "b"]))


def test_requests_are_made_by_the_threads_that_the_system_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start, most = threading.Thread.start, 0

    def limited(thread: threading.Thread) -> None:
        nonlocal most
        if thread.name == "penstock-fetch":
            most -= 1
            if most < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    class File:
        path = "memory"

        def fetch(self, first: int, stop: int | None) -> bytes:
            return bytes(range(first, stop or first))

    monkeypatch.setattr(threading.Thread, "start", limited)
    fetcher = Fetcher(lambda number: File())
    places = [np.zeros(4, np.uint8) for _ in range(20)]
    wanted = [(number, number, place) for number, place in enumerate(places)]
    numbers, sizes = np.arange(20), np.full(20, 4)
    fetcher.announce(numbers, numbers, sizes, 10.0)
    with pytest.raises(ps.WorkerError, match=r"starts no more threads: can't start new thread.*ulimit -u"):
        fetcher.read(wanted, RetryBudget())
    most = 2
    fetcher.read(wanted, RetryBudget())
    fetcher.close()
    assert [place[0] for place in places] == list(range(20))


@pytest.mark.parametrize(
    ("call", "number"), [("memfd_create", errno.EPERM), ("open", errno.EMFILE), ("fsync", errno.EFBIG)]
)
def test_a_cache_in_memory_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    dataset = ps.range(10).map(lambda x: x * 2).cache()
    refuse(monkeypatch, call, number)
    with pytest.raises(ps.SourceError, match=rf"in memory here: .*{os.strerror(number)}.*cache\(path\)"):
        list(dataset.loader("inline"))


def test_a_cache_in_memory_does_not_touch_the_files_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset, other = ps.range(10).map(lambda x: x * 2).cache(), tmp_path / "other"
    other.write_bytes(b"kept")
    stat = os.stat
    # As where /proc counts processes otherwise, and so has those of another under this number.
    monkeypatch.setattr(os, "stat", lambda path, **of: stat(other if str(path).startswith("/proc/") else path, **of))
    with pytest.raises(ps.SourceError, match=r"/proc is that of other processes.*cache\(path\)"):
        list(dataset.loader("inline"))
    assert other.read_bytes() == b"kept"


def test_an_index_is_kept_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ps.write_tfrecord(tmp_path / "a.tfrecord", [b"abc", b"defg"])
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: not str(path).startswith("/proc") and exists(path))
    refuse(monkeypatch, "link", errno.ENOENT)
    assert len(ps.from_tfrecord(tmp_path / "a.tfrecord", features=None)) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == [".a.tfrecord.index", "a.tfrecord"]


def test_a_user_without_a_home_reads_record_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # a user without an entry, as in a container
    ps.write_tfrecord(tmp_path / "a.tfrecord", [b"abc", b"defg"])
    assert len(ps.from_tfrecord(tmp_path / "a.tfrecord", features=None)) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == [".a.tfrecord.index", "a.tfrecord"]
