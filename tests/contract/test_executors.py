import pytest

from penstock.testing import ExecutorTests, WorkerDeathTests


class TestInline(ExecutorTests):
    executor = "inline"
    has_workers = False


class TestThreads(ExecutorTests):
    executor = "threads"
    worker_counts = (2,)


@pytest.mark.slow
class TestOtherNumbersOfThreads(TestThreads):
    worker_counts = (1, 7)


class TestProcesses(ExecutorTests):
    executor = "processes"
    worker_counts = (2,)
    starts_processes = True


@pytest.mark.slow
class TestOtherNumbersOfProcesses(TestProcesses):
    worker_counts = (1, 3)


@pytest.mark.faults
class TestDeathsOfProcesses(WorkerDeathTests):
    pass
