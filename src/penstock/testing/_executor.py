"""The contract of an executor, as tests to subclass. Inline is the oracle."""

import itertools
import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.base._errors import DeadlineError, ElementError, LoaderError, WorkerError
from penstock.base._reach import Reach
from penstock.dataset import Dataset
from penstock.functions._constructors import from_source, range as range_of
from penstock.loader import Loader
from penstock.run.executors._registry import EXECUTORS
from penstock.sources.arrays import ArraySource, RangeSource
from penstock.testing._assertions import (
    assert_kept_batches_stay,
    assert_resumes_exactly,
    assert_same,
    copied,
    leaves_no_worker,
)
from penstock.testing._fakes import CountingSource, FailingSource, GatedSource, LethalFunction, LethalSource
from penstock.testing._plans import PLANS

Load = Callable[..., Loader]
TIMEOUT_S = 1.0
"""The deadline of a worker in these tests."""
SLACK_S = 30.0
"""Allowance for a busy machine: starting new workers, and their imports. What hangs takes longer."""

DEATHS = {
    "kill": r"signal 9\b|SIGKILL",
    "segfault": r"signal 11\b|SIGSEGV",
    "exit": r"(status|code|with) 3\b",
}
"""Deaths of a worker, and what the error says about each."""


class OnExecutor:
    """Tests that load on an executor, with several numbers of workers."""

    executor: ClassVar[str] = "inline"
    worker_counts: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Runs each test for each number of workers."""
        if "workers" in metafunc.fixturenames:
            metafunc.parametrize("workers", cls.worker_counts)

    @property
    def reach(self) -> Reach | None:
        """See `ExecutorKind`. The tests of a class share worker processes, because each takes a while to start."""
        return EXECUTORS[self.executor].reach

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls) -> Iterator[dict[int, Loader]]:
        """For each number of workers, a loader that stays open, and keeps the workers alive."""
        loaders: dict[int, Loader] = {}
        yield loaders
        while loaders:
            loaders.popitem()[1].close()

    @pytest.fixture
    def let_go(self, kept: dict[int, Loader]) -> Callable[[], None]:
        """Closes the loaders that are kept open, for tests of what a loader leaves behind."""

        def close() -> None:
            while kept:
                kept.popitem()[1].close()

        return close

    @pytest.fixture
    def load(self, workers: int, kept: dict[int, Loader], request: pytest.FixtureRequest) -> Iterator[Load]:
        """Makes loaders on the executor under test, and closes them."""
        loaders: list[Loader] = []

        def make(dataset: Dataset, **options: Any) -> Loader:
            loaders.append(dataset.loader(executor=self.executor, workers=workers, **options))  # type: ignore[arg-type]
            return loaders[-1]

        if self.reach in ("process", "machine") and workers not in kept and "let_go" not in request.fixturenames:
            loader = make(range_of(8).batch(1))
            next(iter(loader))
            kept[workers] = loaders.pop()
        yield make
        for loader in loaders:
            loader.close()


class ExecutorTests(OnExecutor):
    """The contract of an executor. Subclass it, with its name and the numbers of workers to try."""

    @pytest.mark.parametrize("name", PLANS)
    def test_equals_inline(self, load: Load, name: str) -> None:
        _assert_as_inline(load(PLANS[name]()), PLANS[name]())

    def test_delivers_in_order_whatever_ends_first(self, load: Load, workers: int) -> None:
        # The gate holds the first batch back until other workers have read the rest.
        source = GatedSource(RangeSource(40), closed={0})
        loader = load(from_source(source).batch(1), prefetch=4)
        if workers == 1 or self.reach is None:
            source.open_gate()
            assert [int(batch[0]) for batch in loader] == list(range(40))
            return
        iterator = iter(loader)
        source.wait_for_reads({0, 1, 2, 3})
        source.open_gate()
        assert [int(batch[0]) for batch in iterator] == list(range(40))

    def test_error_arrives_in_its_batchs_place(self, load: Load) -> None:
        source = FailingSource(RangeSource(40), {21: [OSError("disk 21 is gone"), None]})
        loader = load(from_source(source).batch(4))
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(5)] == np.arange(20).reshape(5, 4).tolist()
        with pytest.raises(OSError, match=r"^disk 21 is gone") as caught:
            next(iterator)
        assert "This was in batch 5 of epoch 0." in caught.value.__notes__
        self._assert_says_where(caught.value)
        with pytest.raises(StopIteration):
            next(iterator)

    def test_state_after_an_error_tries_that_batch_again(self, load: Load) -> None:
        # Longer than the ring, so that no worker reads element 5 of the next epoch meanwhile.
        source = FailingSource(RangeSource(40), {5: [OSError("once")]})
        loader = load(from_source(source).batch(4))
        with pytest.raises(OSError, match="once"):
            list(loader)
        loader.set_state(loader.get_state())
        assert [batch.tolist() for batch in loader] == np.arange(4, 40).reshape(9, 4).tolist()

    def test_error_of_a_function_names_the_element(self, load: Load) -> None:
        def fragile(x: Any) -> Any:
            if x == 6:
                raise KeyError("no such frame")
            return x

        loader = load(range_of(8).map(fragile).batch(4))
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(ElementError, match=r"^map\(fragile\) at .* failed on element 6 of epoch 0") as caught:
            next(iterator)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.__cause__.args == ("no such frame",)
        self._assert_says_where(caught.value)
        # The last frame is the user's own line, so that a debugger opens there.
        frame, line = list(traceback.walk_tb(caught.value.__cause__.__traceback__))[-1]
        assert frame.f_code.co_filename == fragile.__code__.co_filename
        assert frame.f_code.co_name == "fragile"
        assert line == fragile.__code__.co_firstlineno + 2

    def _assert_says_where(self, error: BaseException) -> None:
        says = [note for note in error.__notes__ if re.match(r"It was raised in worker \d+ \(pid \d+\)\.$", note)]
        assert len(says) == (self.reach in ("process", "machine")), error.__notes__

    def test_class_of_the_user_is_caught_as_such(self, load: Load) -> None:
        class FrameError(Exception):
            def __init__(self, number: int, path: str) -> None:
                super().__init__(f"frame {number} of {path}")
                self.number = number

        def fragile(x: Any) -> Any:
            if x == 6:
                raise FrameError(int(x), "film.npy")
            return x

        with pytest.raises(ElementError, match=r": FrameError: frame 6 of film\.npy") as caught:
            list(load(range_of(8).map(fragile).batch(4)))
        assert isinstance(caught.value.__cause__, FrameError)
        assert caught.value.__cause__.number == 6

    def test_each_element_is_read_once(self, load: Load) -> None:
        source = CountingSource(RangeSource(40))
        loader = load(from_source(source).shuffle(1).batch(4))
        iterator = iter(loader)
        batches = [copied(next(iterator)) for _ in range(5)]
        del iterator
        reads = source.reads
        # Prefetched batches may belong to the next epoch, but no epoch reads an element twice.
        assert set(np.concatenate(batches).tolist()) <= set(reads)
        assert max(reads.values()) <= 2
        assert sum(reads.values()) <= 4 * (5 + loader.arrangement.options.prefetch + 2)

    @pytest.mark.usefixtures("load")  # keeps workers, although these loaders are not made by it
    @pytest.mark.parametrize("name", PLANS)
    def test_resumes_at_any_position(self, workers: int, name: str) -> None:
        runs = [("inline", 1), (self.executor, workers)]
        assert_resumes_exactly(PLANS[name](), executors=runs, cuts=6)
        assert_resumes_exactly(PLANS[name](), executors=runs[::-1], cuts=6)

    def test_break_ends_the_epoch_and_the_next_one_follows(self, load: Load) -> None:
        dataset = range_of(40).shuffle(6).batch(4)
        loader = load(dataset)
        list(itertools.islice(loader, 3))
        with dataset.loader(executor="inline") as oracle:
            list(oracle)
            for batch, want in zip(loader, oracle, strict=True):
                assert_same(batch, want)

    def test_batches_that_are_kept_never_change(self, load: Load) -> None:
        loader = load(from_source(ArraySource(np.arange(900.0).reshape(100, 9))).shuffle(7).batch(5))
        views = (batch[1:, ::2] for _ in range(4) for batch in loader)
        assert_kept_batches_stay(views, loader.close)

    def test_list_of_all_batches_is_right(self, load: Load) -> None:
        batches = list(load(range_of(200).batch(2)))
        assert [batch.tolist() for batch in batches] == [[i, i + 1] for i in range(0, 200, 2)]

    @pytest.mark.parametrize("taken", [0, 3, 10])
    def test_close_ends_every_thread_and_process(self, load: Load, let_go: Callable[[], None], taken: int) -> None:
        let_go()
        with leaves_no_worker():
            loader = load(range_of(40).shuffle(8).batch(4))
            iterator = iter(loader)
            batches = [next(iterator) for _ in range(taken)]
            loader.close()
        assert len(batches) == taken
        if taken < 10:
            with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
                next(iterator)
        with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
            iter(loader)
        loader.close()


class WorkerDeathTests(OnExecutor):
    """The contract of an executor that replaces its workers. Each test takes some seconds."""

    executor: ClassVar[str] = "processes"
    worker_counts: ClassVar[tuple[int, ...]] = (1, 2)

    @pytest.mark.parametrize("death", DEATHS)
    def test_worker_that_dies_once_changes_nothing(self, load: Load, death: Any) -> None:
        _assert_integers(load(range_of(40).map(LethalFunction({13: [death]})).shuffle(1).batch(4)))

    @pytest.mark.parametrize("death", DEATHS)
    def test_worker_that_dies_while_it_reads_changes_nothing(self, load: Load, death: Any) -> None:
        _assert_integers(load(from_source(LethalSource(RangeSource(40), {13: [death]})).shuffle(1).batch(4)))

    def test_worker_that_dies_while_a_spec_is_found_changes_nothing(self, load: Load) -> None:
        _assert_integers(load(range_of(40).map(LethalFunction({0: ["kill"]})).shuffle(1).batch(4)))

    def test_many_deaths_change_nothing(self, load: Load) -> None:
        table: Any = {3: ["kill"], 4: ["exit", None, "kill"], 11: ["segfault", "kill"], 12: ["kill"]}
        table |= {29: [None, "exit"], 39: ["kill", "kill"]}
        _assert_integers(load(range_of(40).map(LethalFunction(table)).shuffle(1).batch(4)))

    @pytest.mark.parametrize("silence", ["hang", "stop"])
    def test_worker_that_is_silent_once_changes_nothing(self, load: Load, silence: Any) -> None:
        dataset = range_of(40).map(LethalFunction({13: [silence]})).shuffle(1).batch(4)
        _assert_integers(load(dataset, timeout_s=TIMEOUT_S))

    @pytest.mark.parametrize("death", DEATHS)
    def test_element_that_is_always_lethal_is_named(self, load: Load, death: Any) -> None:
        loader = load(range_of(40).map(LethalFunction({13: death})).batch(4))
        error = _error_in_batch_3(loader, WorkerError)
        assert re.search(r"map\(LethalFunction\) at .*\belement 13\b", error), error
        assert re.search(DEATHS[death], error), error

    def test_element_that_is_always_lethal_to_read_is_named(self, load: Load) -> None:
        iterator = iter(load(from_source(LethalSource(RangeSource(8), {3: "kill"})).batch(1)))
        assert [next(iterator).tolist() for _ in range(3)] == [[0], [1], [2]]
        with pytest.raises(WorkerError, match="made of the integer 3") as caught:
            next(iterator)
        assert re.search(DEATHS["kill"], str(caught.value)), caught.value

    @pytest.mark.parametrize("silence", ["hang", "stop"])
    def test_element_that_never_returns_is_named_in_time(self, load: Load, silence: Any) -> None:
        loader = load(range_of(40).map(LethalFunction({13: silence})).batch(4), timeout_s=TIMEOUT_S)
        began_s = time.monotonic()
        error = _error_in_batch_3(loader, DeadlineError)
        assert time.monotonic() - began_s < 2 * TIMEOUT_S + SLACK_S
        assert re.search(r"map\(LethalFunction\) at .*\belement 13\b", error), error
        if silence == "hang":
            assert "_fakes.py" in error, error  # the worker's stack

    def test_deaths_in_one_loader_are_not_seen_by_another(self, load: Load) -> None:
        lethal = load(range_of(40).map(LethalFunction({13: "kill", 20: ["exit"]})).batch(4))
        calm = load(range_of(40).map(LethalFunction({})).shuffle(1).batch(4))
        next(iter(lethal))
        _assert_integers(calm)
        _error_in_batch_3(lethal, WorkerError)

    @pytest.mark.parametrize("fault", ["kill", "hang", "stop"])
    def test_close_leaves_no_process(self, load: Load, let_go: Callable[[], None], workers: int, fault: Any) -> None:
        let_go()
        with leaves_no_worker():
            loader = load(range_of(40).map(LethalFunction({8 * workers + 1: fault})).batch(4))
            assert next(iter(loader)).tolist() == [0, 1, 2, 3]
            began_s = time.monotonic()
            loader.close()
            assert time.monotonic() - began_s < SLACK_S


def _assert_as_inline(loader: Loader, dataset: Dataset) -> None:
    """Asserts that two epochs of a loader are those of an inline one."""
    with dataset.loader(executor="inline") as oracle:
        for _ in range(2):
            for batch, want in zip(loader, oracle, strict=True):
                assert_same(batch, want)


def _assert_integers(loader: Loader) -> None:
    """Asserts two epochs of integers, shuffled with seed 1, in batches of 4."""
    _assert_as_inline(loader, range_of(40).shuffle(1).batch(4))


def _error_in_batch_3(loader: Loader, kind: type[Exception]) -> str:
    """Asserts that the fourth batch is an error, and that all others arrive. Returns the error's text."""
    loader.set_state({**loader.get_state(), "epoch": 0, "position": 0})
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
    with pytest.raises(kind) as caught:
        next(iterator)
    loader.set_state({**loader.get_state(), "position": 4})
    assert [batch.tolist() for batch in loader] == np.arange(16, 40).reshape(6, 4).tolist()
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
