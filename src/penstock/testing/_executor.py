"""What every executor must do, as tests that the author of one subclasses. Inline is the oracle."""

import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock._constructors import from_source, range as range_of
from penstock._loader import Loader
from penstock.base._errors import ElementError, LoaderError
from penstock.base._tree import Tree
from penstock.sources.arrays import ArraySource, RangeSource
from penstock.testing._compare import assert_same, copied
from penstock.testing._fakes import CountingSource, FailingSource, GatedSource
from penstock.testing._plans import PLANS
from penstock.testing._resume import assert_resumes_exactly
from penstock.testing._runs import OnExecutor, child_processes


class ExecutorTests(OnExecutor):
    """The contract of an executor. Subclass it, with its name and the numbers of workers to try."""

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
        self._assert_says_where(caught.value)
        with pytest.raises(StopIteration):
            next(iterator)

    def test_state_after_an_error_tries_that_batch_again(self, load: Callable[..., Loader]) -> None:
        # Longer than the ring, so that no worker reads element 5 of the next epoch meanwhile.
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
        assert caught.value.__cause__.args == ("no such frame",)
        self._assert_says_where(caught.value)
        # The user's own line is what is read last, and can be stepped into.
        frame = caught.value.__cause__.__traceback__
        assert frame is not None
        while frame.tb_next is not None:
            frame = frame.tb_next
        assert frame.tb_frame.f_code.co_filename == fragile.__code__.co_filename
        assert frame.tb_frame.f_code.co_name == "fragile"
        assert frame.tb_lineno == fragile.__code__.co_firstlineno + 2

    def _assert_says_where(self, error: BaseException) -> None:
        says = [note for note in error.__notes__ if re.match(r"It was raised in worker \d+ \(pid \d+\)\.$", note)]
        assert len(says) == self.starts_processes, error.__notes__

    def test_class_of_the_user_is_caught_as_such(self, load: Callable[..., Loader]) -> None:
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

    def test_each_element_is_read_once(self, load: Callable[..., Loader]) -> None:
        source = CountingSource(RangeSource(40))
        loader = load(from_source(source).shuffle(1).batch(4))
        iterator = iter(loader)
        batches = [copied(next(iterator)) for _ in range(5)]
        del iterator
        reads = source.reads
        # The fourth batch after these may be of the next epoch, but no epoch reads an element twice.
        assert set(np.concatenate(batches).tolist()) <= set(reads)
        assert max(reads.values()) <= 2
        assert sum(reads.values()) <= 4 * (5 + loader._options.prefetch + 2)

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

    @pytest.mark.parametrize("taken", [0, 3, 10])
    def test_close_ends_every_thread_and_process(
        self, load: Callable[..., Loader], let_go: Callable[[], None], taken: int
    ) -> None:
        let_go()
        before, children = set(threading.enumerate()), child_processes()
        loader = load(range_of(40).shuffle(8).batch(4))
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(taken)]
        loader.close()
        assert set(threading.enumerate()) <= before
        assert child_processes() <= children
        assert len(batches) == taken
        if taken < 10:
            with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
                next(iterator)
        with pytest.raises(LoaderError, match=r"^This loader is closed\. Make another one"):
            iter(loader)
        loader.close()
