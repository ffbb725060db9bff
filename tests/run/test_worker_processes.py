"""What worker processes are and what they cost: descriptors, threads, CPUs, starts."""

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.run._cpus import usable_cpu_count
from penstock.sources.arrays import RangeSource
from penstock.testing import GatedSource
from tests.leftovers import worker_processes

pytestmark = pytest.mark.usefixtures("workers_stay", "leaves_nothing_behind")

WORKERS = 2


def ask(question: Any) -> list[Any]:
    """What a function returns in workers, as text."""
    dataset = ps.range(64).map(lambda x: str(question())).batch(1)
    with dataset.loader(executor="processes", workers=WORKERS) as loader:
        return sorted({str(batch[0]) for batch in loader})


def descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("leaf_count", [1, 30])
@pytest.mark.parametrize("prefetch", [2, 20])
def test_a_loader_has_two_descriptors_whatever_it_delivers(leaf_count: int, prefetch: int) -> None:
    # The ring's, and the copy that Python's mmap keeps of it. (The pool's own: some, and two for each worker.)
    data = {str(number): np.arange(200.0).reshape(50, 4) for number in range(leaf_count)}
    dataset = ps.from_arrays(data).map(lambda tree: tree).batch(4)
    before = descriptor_count()
    with dataset.loader(executor="processes", workers=WORKERS, prefetch=prefetch) as loader:
        counts = [descriptor_count() - before for _ in loader]
    # The fewest: other threads open something for a moment, to give back the loader before or to look at the memory of
    # a worker, and all of these batches may fall into one.
    assert min(counts) <= 2


def test_threads_of_libraries_are_a_share_of_the_cpus() -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
    share = str(max(1, usable_cpu_count() // WORKERS))
    assert ask(lambda: [os.environ.get(name) for name in names]) == [str([share] * len(names))]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways to keep memory")
def test_the_memory_of_a_functions_arrays_is_there_for_its_next_element() -> None:
    # 10 MiB an element, which glibc by itself gives back to the system each time: 2,560 pages that are made anew.
    def faults(x: Any) -> Any:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        kept = [np.ones(1 << 18) for _ in range(5)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before + 0 * len(kept)

    with ps.range(64).map(faults).batch(64).loader(executor="processes", workers=WORKERS) as loader:
        assert np.median(next(iter(loader))) < 100


def test_workers_import_no_framework_and_nothing_of_multiprocessing() -> None:
    found = ask(lambda: sorted({"keras", "tensorflow", "torch", "jax", "multiprocessing", "pytest"} & set(sys.modules)))
    assert found == ["[]"]


def test_workers_are_fresh_interpreters_and_no_forks() -> None:
    assert worker_processes()
    for process in worker_processes():
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        assert os.path.samefile(command[0], sys.executable)
    assert ask(lambda: __import__("__main__").__dict__.get("__file__")) == ["None"]


def test_epochs_and_loaders_start_no_new_workers() -> None:
    before = worker_processes()
    for _ in range(3):
        with ps.range(8).map(lambda x: x + 1).batch(2).loader(executor="processes", workers=WORKERS) as loader:
            for _ in range(3):
                list(loader)
    assert worker_processes() == before


def test_a_plan_is_pickled_once_for_all_workers_and_epochs() -> None:
    count = [0]

    class Counted:
        def __call__(self, x: Any) -> Any:
            return x

        def __getstate__(self) -> dict[str, Any]:
            count[0] += 1
            return {}

    dataset = ps.range(8).map(Counted(), element_spec=ps.ArraySpec((), "int64")).batch(2)
    with dataset.loader(executor="processes", workers=WORKERS) as loader:
        packed = count[0]
        for _ in range(5):
            list(loader)
    assert count[0] == packed <= 2


def test_global_random_numbers_repeat_in_no_worker_and_no_epoch_and_the_parents_are_untouched() -> None:
    np.random.seed(7)
    before = np.random.get_state()[1].tolist()
    with (
        ps.range(64).map(lambda x: np.random.random()).batch(8).loader(executor="processes", workers=WORKERS) as loader
    ):
        drawn = np.concatenate([batch.copy() for _ in range(3) for batch in loader])
    assert len(np.unique(drawn)) == len(drawn) == 192
    assert np.random.get_state()[1].tolist() == before


def test_all_workers_fill_the_next_batch_together() -> None:
    # Nobody makes a whole batch: they come evenly, the first one soon, and memory does not grow with workers.
    source = GatedSource(RangeSource(2 * WORKERS), closed=range(WORKERS))
    dataset = ps.from_source(source).map(lambda x: x, element_spec=ps.ArraySpec((), "int64")).batch(WORKERS)
    with dataset.loader(executor="processes", workers=WORKERS) as loader:
        iterator = iter(loader)
        source.wait_for_reads(range(WORKERS))  # each of them by a worker, which waits at the gate
        source.open_gate()
        assert [batch.tolist() for batch in iterator] == np.arange(2 * WORKERS).reshape(2, WORKERS).tolist()


def test_a_function_may_return_the_same_buffer_each_time() -> None:
    class Buffered:
        def __init__(self) -> None:
            self.buffer = np.zeros(3)

        def __call__(self, x: Any) -> Any:
            self.buffer[:] = x
            return self.buffer

    with ps.range(40).map(Buffered()).batch(4).loader(executor="processes", workers=2) as loader:
        batches = [batch.copy() for batch in loader]
    assert np.concatenate(batches).tolist() == [[float(i)] * 3 for i in range(40)]


@pytest.mark.slow
def test_a_pool_has_two_descriptors_for_each_worker(fresh_python: Any) -> None:
    done = fresh_python("""
import os
import penstock as ps
from penstock.testing._assertions import child_processes
counts = []
with ps.range(8).loader("processes", workers=1) as first:
    next(iter(first))
    for workers in (1, 2, 5):
        with ps.range(8).loader("processes", workers=workers) as loader:
            next(iter(loader))
            assert len(child_processes()) == workers
            fewest = min(len(os.listdir("/proc/self/fd")) for _ in range(200))  # another thread may look at a worker
            counts.append(fewest - 2 * workers)
    assert len(child_processes()) == 5  # one pool, as large as its largest loader
assert len(set(counts)) == 1, counts
assert not child_processes()
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_cpus_are_those_that_this_process_may_use(fresh_python: Any) -> None:
    done = fresh_python(
        "import os\n"
        "cpu = min(os.sched_getaffinity(0))\n"
        "os.sched_setaffinity(0, {cpu})\n"
        "import penstock as ps\n"
        "with ps.range(4).map(lambda x: len(os.sched_getaffinity(0))).loader() as loader:\n"
        "    found = [int(x) for x in loader]\n"
        "    print(loader.report().executor, loader.report().workers, found)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "processes 1 [1, 1, 1, 1]\n", "")
