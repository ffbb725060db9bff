from collections.abc import Iterator

import pytest

from penstock.run.executors._executor import Executor
from penstock.run.executors._processes import ProcessesExecutor
from penstock.run.executors._registry import EXECUTORS, ExecutorKind
from penstock.run.executors._threads import ThreadsExecutor
from penstock.testing import ExecutorTests, WorkerDeathTests
from tests.run.pipe_executor import PipeExecutor

PIPE = ExecutorKind(PipeExecutor, "machine")


@pytest.mark.parametrize("executor", [ThreadsExecutor, ProcessesExecutor, PipeExecutor])
def test_an_entry_has_the_reach_of_its_executor(executor: type[Executor]) -> None:
    assert (EXECUTORS | {"pipe": PIPE})[executor.name].reach == executor.reach


class TestInline(ExecutorTests):
    executor = "inline"


class TestThreads(ExecutorTests):
    executor = "threads"
    worker_counts = (2,)


@pytest.mark.slow
class TestMoreThreads(TestThreads):
    worker_counts = (7,)


class TestProcesses(ExecutorTests):
    executor = "processes"
    worker_counts = (2,)


@pytest.mark.slow
class TestOverAPipe(ExecutorTests):
    """An executor that shares no memory with its workers."""

    executor = "pipe"
    worker_counts = (2,)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _registered(cls) -> Iterator[None]:
        EXECUTORS["pipe"] = PIPE
        yield
        del EXECUTORS["pipe"]


@pytest.mark.slow
class TestOneProcess(TestProcesses):
    worker_counts = (1,)


@pytest.mark.faults
class TestDeathsOfProcesses(WorkerDeathTests):
    worker_counts = (2,)
