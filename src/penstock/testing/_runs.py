"""What suites of executors share: loaders on the one under test, and who else is alive."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock._constructors import range as range_of
from penstock._dataset import Dataset
from penstock._loader import Loader


class OnExecutor:
    """Tests that load on an executor, with several numbers of workers."""

    executor: ClassVar[str] = "inline"
    worker_counts: ClassVar[tuple[int, ...]] = (1,)
    has_workers: ClassVar[bool] = True
    """Whether units run elsewhere than on the consumer's thread."""
    starts_processes: ClassVar[bool] = False
    """Whether workers are processes. The tests of a class then share them, for each takes a while to start."""

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Runs each test for each number of workers."""
        if "workers" in metafunc.fixturenames:
            metafunc.parametrize("workers", cls.worker_counts)

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls) -> Iterator[dict[int, Loader]]:
        """For each number of workers, a loader that stays open, so that its workers do."""
        loaders: dict[int, Loader] = {}
        yield loaders
        for loader in loaders.values():
            loader.close()

    @pytest.fixture
    def let_go(self, kept: dict[int, Loader]) -> Callable[[], None]:
        """Closes the loaders that are kept open; for tests of what is left in the end."""

        def close() -> None:
            while kept:
                kept.popitem()[1].close()

        return close

    @pytest.fixture
    def load(
        self, workers: int, kept: dict[int, Loader], request: pytest.FixtureRequest
    ) -> Iterator[Callable[..., Loader]]:
        """Makes loaders on the executor under test, and closes them."""
        loaders: list[Loader] = []

        def make(dataset: Dataset, **options: Any) -> Loader:
            loaders.append(dataset.loader(executor=self.executor, workers=workers, **options))  # type: ignore[arg-type]
            return loaders[-1]

        if self.starts_processes and workers not in kept and "let_go" not in request.fixturenames:
            loader = make(range_of(8).batch(1))
            next(iter(loader))
            kept[workers] = loaders.pop()
        yield make
        for loader in loaders:
            loader.close()


def child_processes() -> set[int]:
    """The processes that this one has started and that are alive, or dead and not yet waited for. Linux."""
    children = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == os.getpid():
            children.add(int(stat.parent.name))
    return children
