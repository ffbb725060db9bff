"""What every executor must do, as tests that the author of one subclasses. Inline is the oracle."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock._constructors import concatenate, from_arrays, from_source, interleave, range as range_of, zip as zip_of
from penstock._dataset import Dataset
from penstock._errors import ElementError, LoaderError
from penstock._loader import Loader
from penstock._tree import Tree
from penstock.sources.arrays import ArraySource, RangeSource
from penstock.testing._compare import assert_same, copied
from penstock.testing._fakes import FailingSource, GatedSource
from penstock.testing._resume import assert_resumes_exactly


def _frames() -> Dataset:
    return from_arrays(np.arange(60 * 4, dtype=np.float32).reshape(60, 2, 2))


def _noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal(size=x.shape).astype(x.dtype)


PLANS: dict[str, Callable[[], Dataset]] = {
    "single elements": lambda: range_of(9),
    "shuffled batches": lambda: _frames().shuffle(seed=1).batch(8),
    "mapped twice": lambda: _frames().random_map(_noisy).random_map(_noisy).batch(7, drop_remainder=True),
    "mapped batches": lambda: _frames().batch(8).map(lambda x: {"x": x, "mean": x.mean((1, 2))}),
    "pairs of neighbours": lambda: zip_of((_frames()[:-1], _frames()[1:])).shuffle(2).batch(16),
    "windows in groups": lambda: _frames().windows(3, stride=2, groups=np.arange(60) // 11).shuffle(3).batch(4),
    "taken apart": lambda: _frames().batch(8).map(np.negative).unbatch().shuffle(4).batch(5),
    "rounds": lambda: _frames().shuffle(5).random_map(_noisy).repeat(2).batch(32),
    "mixed": lambda: concatenate([interleave([_frames(), _frames().map(np.negative)]), _frames()[::7]]).batch(9),
    "cast": lambda: _frames().cast("uint8").batch(16).cast("float64"),
}


class ExecutorTests:
    """The contract of an executor. Subclass it, with its name and the numbers of workers to try."""

    executor: ClassVar[str] = "inline"
    worker_counts: ClassVar[tuple[int, ...]] = (1,)
    has_workers: ClassVar[bool] = True
    """Whether units run elsewhere than on the consumer's thread."""

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Runs each test for each number of workers."""
        if "workers" in metafunc.fixturenames:
            metafunc.parametrize("workers", cls.worker_counts)

    @pytest.fixture
    def load(self, workers: int) -> Iterator[Callable[..., Loader]]:
        """Makes loaders on the executor under test, and closes them."""
        loaders: list[Loader] = []

        def make(dataset: Dataset, **options: Any) -> Loader:
            loaders.append(dataset.loader(executor=self.executor, workers=workers, **options))  # type: ignore[arg-type]
            return loaders[-1]

        yield make
        for loader in loaders:
            loader.close()

    @pytest.mark.parametrize("name", PLANS)
    def test_equals_inline(self, load: Callable[..., Loader], name: str) -> None:
        dataset = PLANS[name]()
        with dataset.loader(executor="inline") as oracle:
            loader = load(dataset)
            for _ in range(2):
                for batch, want in zip(loader, oracle, strict=True):
                    assert_same(batch, want)

    def test_delivers_in_order_whatever_ends_first(self, load: Callable[..., Loader], workers: int) -> None:
        # The first batch is held back until the others were read, as far as there are workers to read them.
        source = GatedSource(RangeSource(40), closed={0})
        loader = load(from_source(source).batch(1), prefetch=4)
        if workers == 1 or not self.has_workers:
            source.open_gate()
            assert [int(batch[0]) for batch in loader] == list(range(40))
            return
        iterator = iter(loader)
        source.wait_for_reads({0, 1, 2, 3})
        source.open_gate()
        assert [int(batch[0]) for batch in iterator] == list(range(40))

    def test_error_arrives_in_its_batchs_place(self, load: Callable[..., Loader]) -> None:
        source = FailingSource(RangeSource(40), {21: [OSError("disk 21 is gone"), None]})
        loader = load(from_source(source).batch(4))
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(5)] == np.arange(20).reshape(5, 4).tolist()
        with pytest.raises(OSError, match=r"^disk 21 is gone") as caught:
            next(iterator)
        assert "This was in batch 5 of epoch 0." in caught.value.__notes__
        with pytest.raises(StopIteration):
            next(iterator)

    def test_state_after_an_error_tries_that_batch_again(self, load: Callable[..., Loader]) -> None:
        # Longer than the ring, so that nobody reads element 5 of the next epoch meanwhile.
        source = FailingSource(RangeSource(40), {5: [OSError("once")]})
        loader = load(from_source(source).batch(4))
        with pytest.raises(OSError, match="once"):
            list(loader)
        loader.set_state(loader.get_state())
        assert [batch.tolist() for batch in loader] == np.arange(4, 40).reshape(9, 4).tolist()

    def test_function_that_raises_is_told_with_its_element(self, load: Callable[..., Loader]) -> None:
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
        assert caught.value.__cause__.__traceback__ is not None

    @pytest.mark.parametrize("name", PLANS)
    def test_resumes_at_any_position(self, workers: int, name: str) -> None:
        runs = [("inline", 1), (self.executor, workers)]
        assert_resumes_exactly(PLANS[name](), executors=runs, cuts=6)
        assert_resumes_exactly(PLANS[name](), executors=runs[::-1], cuts=6)

    def test_break_ends_the_epoch_and_the_next_one_follows(self, load: Callable[..., Loader]) -> None:
        dataset = range_of(40).shuffle(6).batch(4)
        loader = load(dataset)
        list(itertools.islice(loader, 3))
        with dataset.loader(executor="inline") as oracle:
            list(oracle)
            for batch, want in zip(loader, oracle, strict=True):
                assert_same(batch, want)

    def test_batches_that_are_kept_never_change(self, load: Callable[..., Loader]) -> None:
        rng = np.random.default_rng(0)
        kept: list[tuple[Tree, Tree]] = []
        loader = load(from_source(ArraySource(np.arange(900.0).reshape(100, 9))).shuffle(7).batch(5))
        for _ in range(4):
            for batch in loader:
                if rng.random() < 0.4:
                    kept.append((batch[1:, ::2], copied(batch[1:, ::2])))
                if rng.random() < 0.3 and kept:
                    kept.pop(rng.integers(len(kept)))
                for view, copy in kept:
                    assert_same(view, copy)
        loader.close()
        for view, copy in kept:
            assert_same(view, copy)

    def test_list_of_all_batches_is_right(self, load: Callable[..., Loader]) -> None:
        batches = list(load(range_of(200).batch(2)))
        assert [batch.tolist() for batch in batches] == [[i, i + 1] for i in range(0, 200, 2)]

    @pytest.mark.parametrize("taken", [0, 1, 3, 10])
    def test_close_ends_every_thread(self, load: Callable[..., Loader], taken: int) -> None:
        before = set(threading.enumerate())
        loader = load(range_of(40).shuffle(8).batch(4))
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(taken)]
        loader.close()
        assert set(threading.enumerate()) <= before
        assert len(batches) == taken
        if taken < 10:
            with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
                next(iterator)
        with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
            iter(loader)
        loader.close()
