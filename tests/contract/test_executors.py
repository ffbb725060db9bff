from collections.abc import Iterator

import pytest

from penstock.run.executors._registry import EXECUTORS, ExecutorKind
from penstock.testing import ExecutorTests, WorkerDeathTests
from tests.run.pipe_executor import PipeExecutor


class TestInline(ExecutorTests):
    executor = "inline"
    has_workers = False


class TestThreads(ExecutorTests):
    executor = "threads"
    worker_counts = (2,)


@pytest.mark.slow
class TestMoreThreads(TestThreads):
    worker_counts = (7,)


class TestProcesses(ExecutorTests):
    executor = "processes"
    worker_counts = (2,)
    starts_processes = True


@pytest.mark.slow
class TestOverAPipe(ExecutorTests):
    """An executor that shares no memory with its workers."""

    executor = "pipe"
    worker_counts = (2,)
    starts_processes = True

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _registered(cls) -> Iterator[None]:
        EXECUTORS["pipe"] = ExecutorKind(PipeExecutor, reads_spans=False)
        yield
        del EXECUTORS["pipe"]


@pytest.mark.slow
class TestOneProcess(TestProcesses):
    worker_counts = (1,)


@pytest.mark.faults
class TestDeathsOfProcesses(WorkerDeathTests):
    worker_counts = (2,)
