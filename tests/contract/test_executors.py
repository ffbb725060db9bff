from penstock.testing import ExecutorTests


class TestInline(ExecutorTests):
    executor = "inline"
    has_workers = False


class TestThreads(ExecutorTests):
    executor = "threads"
    worker_counts = (1, 2, 7)
