"""What every adapter to a framework must do, as tests that the author of one subclasses. Inline is the oracle."""

import gc
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from penstock._constructors import from_arrays, range as range_of
from penstock._dataset import Dataset
from penstock.base import _tree
from penstock.base._errors import ElementError, LoaderError
from penstock.base._tree import Tree
from penstock.testing._compare import assert_fits, assert_same, copied
from penstock.testing._runs import child_processes

BATCH_COUNT = 7
"""Batches in an epoch of the datasets below; the last is short."""
ALLOWED_MIB = 4.0
"""Growth of resident memory over 900 epochs, 3,600 batches of 64 KiB: if one in fifty were kept it would be 4.5 MiB."""


class Pair(NamedTuple):
    """An element with names."""

    image: Any
    label: Any


_IMAGES = np.arange(26 * 6, dtype=np.float32).reshape(26, 2, 3) / 7
_LABELS = np.arange(26, dtype=np.int32) * 3

STRUCTURES: dict[str, Tree] = {
    "array": _IMAGES,
    "tuple": (_IMAGES, _LABELS),
    "dict": {"second": _IMAGES, "first": _LABELS},
    "named tuple": Pair(_IMAGES, _LABELS),
    "nested": ({"image": _IMAGES, "both": (_LABELS, Pair(_IMAGES, _LABELS))}, _LABELS),
}
"""Elements of every structure; float32 `(2, 3)` and int32 `()`."""


class OnAdapter:
    """What suites of adapters share: how to use the one under test. Two fixtures are needed, methods may be replaced.

    `make_adapter` makes the adapter: `make_adapter(dataset, **options)`, with the options of `Dataset.loader` and
    `training`. `to_numpy` makes a tree of NumPy arrays of a batch, which need not be copies.
    """

    @pytest.fixture
    def make_adapter(self) -> Callable[..., Any]:
        """Makes the adapter under test."""
        raise NotImplementedError("a subclass of AdapterTests has a fixture `make_adapter`")

    @pytest.fixture
    def to_numpy(self) -> Callable[[Any], Tree]:
        """Looks at one of its batches."""
        raise NotImplementedError("a subclass of AdapterTests has a fixture `to_numpy`")

    def epoch(self, adapter: Any) -> Iterator[Any]:
        """Iterates the adapter once, as its framework does."""
        return iter(adapter)

    def count(self, adapter: Any) -> int | None:
        """The number of batches that it says it has; None if it does not say."""
        try:
            return len(adapter)
        except TypeError:
            return None

    def element_spec(self, adapter: Any) -> Tree:
        """Its spec of batches, as `ArraySpec`s."""
        return adapter.element_spec

    def arrives_as(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in which leaves of a dtype arrive."""
        return dtype

    def close(self, adapter: Any) -> None:
        """Ends its workers."""
        adapter.loader.close()

    @pytest.fixture
    def adapt(self, make_adapter: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Makes adapters, on two threads unless told otherwise, and closes them."""
        adapters: list[Any] = []

        def make(dataset: Dataset, **options: Any) -> Any:
            adapters.append(make_adapter(dataset, **{"executor": "threads", "workers": 2} | options))
            return adapters[-1]

        yield make
        while adapters:  # drops them, so that a test can look at what is left
            self.close(adapters.pop())

    def delivered(self, dataset: Dataset, epochs: int = 1, **options: Any) -> list[Tree]:
        """What so many epochs should bring: the batches of an inline loader, in the dtypes in which they arrive."""
        with dataset.loader(executor="inline", **options) as loader:
            return [self._arriving(batch) for _ in range(epochs) for batch in loader]

    def _arriving(self, batch: Tree) -> Tree:
        leaves, structure = _tree.flatten(batch)
        return structure.unflatten([np.array(leaf, self.arrives_as(np.asarray(leaf).dtype)) for leaf in leaves])


class AdapterTests(OnAdapter):
    """The contract of an adapter: what the user gets, when, and where the loader then says it is."""

    structures: ClassVar[tuple[str, ...]] = tuple(STRUCTURES)
    """Those that the framework takes, of `STRUCTURES`."""
    dtypes: ClassVar[tuple[str, ...]] = (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64"),
    )
    """Those that the framework has."""
    function_error: ClassVar[type[BaseException]] = ElementError
    """How an error of the user's function arrives."""
    closed_error: ClassVar[type[BaseException]] = LoaderError
    """What iterating raises after `close`."""

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Runs tests for each structure or dtype."""
        if "structure" in metafunc.fixturenames:
            metafunc.parametrize("structure", cls.structures)
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", cls.dtypes)

    # What arrives.

    def test_batches_are_the_loaders_in_order_epoch_by_epoch(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree], structure: str
    ) -> None:
        dataset = _shuffled(structure)
        adapter, found = adapt(dataset), []
        for _ in range(3):
            found += [copied(to_numpy(batch)) for batch in self.epoch(adapter)]
        for batch, want in zip(found, self.delivered(dataset, 3), strict=True):
            assert_same(batch, want)
            assert _shape_of(batch) == _shape_of(want)

    def test_batches_are_as_the_spec_says(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree], structure: str
    ) -> None:
        adapter = adapt(_shuffled(structure))
        for batch in self.epoch(adapter):
            assert_fits(to_numpy(batch), self.element_spec(adapter))

    def test_every_bit_arrives(self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree], dtype: str) -> None:
        values = _extremes(np.dtype(dtype), self.arrives_as(np.dtype(dtype)))
        dataset = from_arrays(values.reshape(-1, 2)).batch(3)
        adapter = adapt(dataset)
        found = [copied(to_numpy(batch)) for batch in self.epoch(adapter)]
        for batch, want in zip(found, self.delivered(dataset), strict=True):
            assert_same(batch, want)
            assert_fits(batch, self.element_spec(adapter))

    def test_functions_run_on_workers(self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]) -> None:
        dataset = range_of(20).random_map(lambda x, rng: (x + rng.normal()).astype("float32")).batch(6)
        adapter = adapt(dataset, executor="processes", workers=1)
        found = [copied(to_numpy(batch)) for _ in range(2) for batch in self.epoch(adapter)]
        for batch, want in zip(found, self.delivered(dataset, 2), strict=True):
            assert_same(batch, want)

    def test_rows_are_shared_out(self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]) -> None:
        dataset = from_arrays(_IMAGES[:24]).shuffle(1).batch(6)
        for share in ((0, 2), (1, 2)):
            adapter = adapt(dataset, shard=share)
            found = [copied(to_numpy(batch)) for batch in self.epoch(adapter)]
            for batch, want in zip(found, self.delivered(dataset, shard=share), strict=True):
                assert_same(batch, want)

    # How many, and when.

    def test_says_how_many_batches_there_are(self, adapt: Callable[..., Any]) -> None:
        assert self.count(adapt(_shuffled("tuple"))) == BATCH_COUNT

    def test_endless_dataset_has_no_count_and_is_iterated(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        dataset = from_arrays(_LABELS).shuffle(1).repeat().batch(4)
        adapter = adapt(dataset)
        assert self.count(adapter) is None
        for number, batch in enumerate(itertools.islice(self.epoch(adapter), 2 * BATCH_COUNT)):
            assert_same(to_numpy(batch), dataset[number])

    def test_stream_has_no_count_and_resumes_with_the_batch_after_those_that_were_taken(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        dataset = from_arrays(_LABELS).shuffle(1).filter(lambda label: label % 5 != 0).batch(3)
        wanted = self.delivered(dataset, 2)
        first = adapt(dataset)
        assert self.count(first) is None
        assert_same(copied(to_numpy(next(self.epoch(first)))), wanted[0])
        second = adapt(dataset)
        second.loader.set_state(first.loader.get_state())
        found = [copied(to_numpy(batch)) for _ in range(2) for batch in self.epoch(second)]
        for batch, want in zip(found, wanted[1:], strict=True):
            assert_same(batch, want)

    def test_break_is_followed_by_the_next_epoch(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        dataset = _shuffled("tuple")
        adapter = adapt(dataset)
        for taken in (1, 3, BATCH_COUNT - 1, BATCH_COUNT):
            assert len(list(itertools.islice(self.epoch(adapter), taken))) == taken
        found = [copied(to_numpy(batch)) for batch in self.epoch(adapter)]
        for batch, want in zip(found, self.delivered(dataset, 5)[4 * BATCH_COUNT :], strict=True):
            assert_same(batch, want)

    def test_every_pass_is_epoch_0_unless_it_trains(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        dataset = _shuffled("tuple")
        adapter = adapt(dataset, training=False)
        next(self.epoch(adapter))
        for _ in range(2):
            found = [copied(to_numpy(batch)) for batch in self.epoch(adapter)]
            for batch, want in zip(found, self.delivered(dataset), strict=True):
                assert_same(batch, want)

    # Where it is.

    @pytest.mark.parametrize("taken", [0, 1, 4, BATCH_COUNT - 1, BATCH_COUNT, BATCH_COUNT + 2])
    def test_resumes_with_the_batch_after_those_that_were_taken(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree], taken: int
    ) -> None:
        dataset = _shuffled("tuple")
        first = adapt(dataset)
        for _ in range(taken // BATCH_COUNT):
            assert len(list(self.epoch(first))) == BATCH_COUNT
        assert len(list(itertools.islice(self.epoch(first), taken % BATCH_COUNT))) == taken % BATCH_COUNT
        state = json.loads(json.dumps(first.loader.get_state()))
        assert (state["epoch"], state["position"]) == divmod(taken, BATCH_COUNT)

        second = adapt(dataset)
        second.loader.set_state(state)
        found = [copied(to_numpy(batch)) for _ in range(2) for batch in self.epoch(second)]
        wanted = self.delivered(dataset, 3)[taken:]
        for batch, want in zip(found, wanted, strict=False):
            assert_same(batch, want)
        assert len(found) == 2 * BATCH_COUNT - taken % BATCH_COUNT

    def test_state_is_after_each_batch_that_was_taken(self, adapt: Callable[..., Any]) -> None:
        adapter = adapt(_shuffled("tuple"))
        for epoch in range(2):
            for number, _ in enumerate(self.epoch(adapter), 1):
                state = adapter.loader.get_state()
                assert (state["epoch"], state["position"]) in {
                    (epoch, number),
                    (epoch + number // BATCH_COUNT, number % BATCH_COUNT),
                }
            state = adapter.loader.get_state()
            assert (state["epoch"], state["position"]) == (epoch + 1, 0)

    # Whose memory.

    def test_batches_that_are_kept_never_change(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        dice = np.random.default_rng(0)
        adapter = adapt(_shuffled("nested"))
        kept: list[tuple[Any, Tree]] = []
        for _ in range(8):
            for batch in self.epoch(adapter):
                if dice.random() < 0.4:
                    kept.append((batch, copied(to_numpy(batch))))
                if kept and dice.random() < 0.3:
                    kept.pop(dice.integers(len(kept)))
                del batch
                for mine, copy in kept:
                    assert_same(to_numpy(mine), copy)
        self.close(adapter)
        for mine, copy in kept:
            assert_same(to_numpy(mine), copy)

    def test_all_batches_can_be_kept(self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]) -> None:
        batches = list(self.epoch(adapt(range_of(200).cast("int32").batch(2))))
        assert [to_numpy(batch).tolist() for batch in batches] == [[i, i + 1] for i in range(0, 200, 2)]

    def test_batches_that_are_dropped_give_their_slots_back(self, adapt: Callable[..., Any]) -> None:
        adapter = adapt(from_arrays(np.zeros((96, 64, 64), np.float32)).batch(4))
        for _ in range(3):
            for batch in self.epoch(adapter):
                del batch
        report = adapter.loader.report()
        assert report.batches == 72
        assert report.copied == 0

    # What goes wrong, and how it ends.

    def test_error_of_a_function_arrives_in_its_place_and_names_the_element(
        self, adapt: Callable[..., Any], to_numpy: Callable[[Any], Tree]
    ) -> None:
        def fragile(x: Any) -> Any:
            if x == 13:
                raise KeyError("no such frame")
            return np.float32(x)

        adapter = adapt(range_of(40).map(fragile).batch(4))
        for _ in range(2):
            batches = self.epoch(adapter)
            assert [to_numpy(next(batches)).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
            with pytest.raises(self.function_error, match=r"element 13 of epoch \d(.|\n)*no such frame"):
                next(batches)

    @pytest.mark.parametrize("executor", ["threads", "processes"])
    @pytest.mark.parametrize("taken", [0, 2, BATCH_COUNT])
    def test_close_ends_every_thread_and_process(
        self, make_adapter: Callable[..., Any], executor: str, taken: int
    ) -> None:
        threads, children = set(threading.enumerate()), child_processes()
        adapter = make_adapter(_shuffled("tuple"), executor=executor, workers=1)
        batches = self.epoch(adapter)
        kept = [next(batches) for _ in range(taken)]
        self.close(adapter)
        self.close(adapter)
        assert set(threading.enumerate()) <= threads
        assert child_processes() <= children
        assert len(kept) == taken
        with pytest.raises(self.closed_error, match="This loader is closed"):
            next(self.epoch(adapter))


class AdapterMemoryTests(OnAdapter):
    """Tests that an adapter keeps no memory. They measure their own process; Linux only."""

    def test_memory_is_flat_over_1000_epochs(self, adapt: Callable[..., Any]) -> None:
        adapter = adapt(from_arrays(np.ones((16, 64, 64), np.float32)).shuffle(1).batch(4))
        resident = {}
        for number in range(1000):
            for batch in self.epoch(adapter):
                del batch
            if number in (99, 999):
                gc.collect()
                resident[number] = _resident_mib()
        assert adapter.loader.report().copied == 0
        assert resident[999] - resident[99] <= ALLOWED_MIB, f"MiB after so many epochs: {resident}"


def _shuffled(structure: str) -> Dataset:
    return from_arrays(STRUCTURES[structure]).shuffle(seed=3).batch(4)


def _shape_of(batch: Tree) -> Any:
    """Types and keys of a tree, in their order, which a framework may change and call it the same."""
    if isinstance(batch, dict):
        return [(key, _shape_of(value)) for key, value in batch.items()]
    if isinstance(batch, tuple):
        return type(batch), [_shape_of(value) for value in batch]
    return None


def _extremes(dtype: np.dtype[Any], arriving: np.dtype[Any]) -> npt.NDArray[Any]:
    """Values of a dtype at the ends of what it and the dtype that arrives can hold; an even number of them."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype), np.iinfo(arriving)
        low, high = max(each.min for each in bounds), min(each.max for each in bounds)
        values: list[Any] = [low, high, 0, 1, high - 1, 100]
    elif dtype.kind == "b":
        values = [True, False, False, True]
    else:
        bounds_of_float = np.finfo(arriving)
        values = [0.0, -0.0, np.nan, np.inf, -np.inf, bounds_of_float.tiny, bounds_of_float.max, 1 / 3]
    return np.array(values, dtype)


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
