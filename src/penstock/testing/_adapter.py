"""The contract of an adapter to a framework, as tests to subclass. An inline loader is the oracle."""

import gc
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from penstock.base import _tree
from penstock.base._errors import ElementError, LoaderError
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.functions._constructors import from_arrays, range as range_of, zip as zip_of
from penstock.report._memory import memory_now
from penstock.testing._assertions import assert_fits, assert_kept_batches_stay, assert_same, copied, leaves_no_worker

Adapt = Callable[..., Any]
ToNumpy = Callable[[Any], Tree]

BATCH_COUNT = 7
"""Batches in an epoch of the datasets below. The last is short."""
ALLOWED_MIB = 4.0
"""Growth of resident memory over 900 epochs, 3,600 batches of 64 KiB. Keeping one in fifty would take 4.5 MiB."""


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
    "an input that is not given": ({"image": _IMAGES, "text": None}, _LABELS),
    "nested": ({"image": _IMAGES, "both": (_LABELS, Pair(_IMAGES, _LABELS))}, _LABELS),
}
"""Elements of every structure: float32 `(2, 3)` and int32 `()`."""


class OnAdapter:
    """The use of the adapter under test. A subclass defines two fixtures and may replace the methods.

    `make_adapter(dataset, **options)` makes the adapter, with the options of `Dataset.loader` and `training`.
    `to_numpy(batch)` makes a tree of NumPy arrays of a batch. They need not be copies.
    """

    @pytest.fixture
    def make_adapter(self) -> Adapt:
        """Makes the adapter under test."""
        raise NotImplementedError("a subclass of AdapterTests has a fixture `make_adapter`")

    @pytest.fixture
    def to_numpy(self) -> ToNumpy:
        """Converts one of its batches."""
        raise NotImplementedError("a subclass of AdapterTests has a fixture `to_numpy`")

    def epoch(self, adapter: Any) -> Iterator[Any]:
        """Iterates the adapter once, as its framework does."""
        return iter(adapter)

    def count(self, adapter: Any) -> int | None:
        """The number of batches that it reports. None if it reports none."""
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
    def adapt(self, make_adapter: Adapt) -> Iterator[Adapt]:
        """Makes adapters, on two threads by default, and closes them."""
        adapters: list[Any] = []

        def make(dataset: Dataset, **options: Any) -> Any:
            adapters.append(make_adapter(dataset, **{"executor": "threads", "workers": 2} | options))
            return adapters[-1]

        yield make
        while adapters:  # drops them, so that a test sees what they leave behind
            self.close(adapters.pop())

    def expected(self, dataset: Dataset, epochs: int = 1, **options: Any) -> list[Tree]:
        """The batches of an inline loader, in the dtypes in which they arrive."""
        found = []
        with dataset.loader(executor="inline", **options) as loader:
            for batch in itertools.chain(*itertools.repeat(loader, epochs)):
                leaves, structure = _tree.flatten(batch)
                arrays = [np.array(leaf, self.arrives_as(np.asarray(leaf).dtype)) for leaf in leaves]
                found.append(structure.unflatten(arrays))
        return found

    def assert_delivers(self, adapter: Any, to_numpy: ToNumpy, expected: list[Tree], epochs: int = 1) -> list[Tree]:
        """Asserts that some epochs of an adapter are these batches. Returns copies of them."""
        found = [copied(to_numpy(batch)) for _ in range(epochs) for batch in self.epoch(adapter)]
        for batch, want in zip(found, expected, strict=True):
            assert_same(batch, want)
        return found


class AdapterTests(OnAdapter):
    """The contract of an adapter: the batches, their times, and the loader's state after each."""

    structures: ClassVar[tuple[str, ...]] = tuple(STRUCTURES)
    """The names of the `STRUCTURES` that the framework takes."""
    dtypes: ClassVar[tuple[str, ...]] = (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64"),
    )
    """The dtypes that the framework has."""
    function_error: ClassVar[type[BaseException]] = ElementError
    """The class of an error of the user's function."""
    closed_error: ClassVar[type[BaseException]] = LoaderError
    """What iterating raises after `close`."""

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Runs tests for each structure or dtype."""
        if "structure" in metafunc.fixturenames:
            metafunc.parametrize("structure", cls.structures)
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", cls.dtypes)

    # Batches.

    def test_batches_are_the_loaders_in_order_epoch_by_epoch(
        self, adapt: Adapt, to_numpy: ToNumpy, structure: str
    ) -> None:
        dataset = _shuffled(structure)
        expected = self.expected(dataset, 3)
        found = self.assert_delivers(adapt(dataset), to_numpy, expected, epochs=3)
        assert list(map(_shape_of, found)) == list(map(_shape_of, expected))

    def test_batches_are_as_the_spec_says(self, adapt: Adapt, to_numpy: ToNumpy, structure: str) -> None:
        adapter = adapt(_shuffled(structure))
        for batch in self.epoch(adapter):
            assert_fits(to_numpy(batch), self.element_spec(adapter))

    def test_every_bit_arrives(self, adapt: Adapt, to_numpy: ToNumpy, dtype: str) -> None:
        values = _extremes(np.dtype(dtype), self.arrives_as(np.dtype(dtype)))
        dataset = from_arrays(values.reshape(-1, 2)).batch(3)
        adapter = adapt(dataset)
        for batch in self.assert_delivers(adapter, to_numpy, self.expected(dataset)):
            assert_fits(batch, self.element_spec(adapter))

    def test_batches_of_two_sizes_side_by_side_arrive_and_so_does_a_share_of_each(
        self, adapt: Adapt, to_numpy: ToNumpy
    ) -> None:
        one, other = from_arrays(_IMAGES).shuffle(1), from_arrays(_LABELS[:10])
        dataset = zip_of((one.batch(6, drop_remainder=True), other.repeat().batch(4))).cast("float32")
        for options in ({}, {"shard": (1, 2)}):
            expected = self.expected(dataset, 2, **options)
            found = self.assert_delivers(adapt(dataset, **options), to_numpy, expected, epochs=2)
            sizes = {tuple(map(len, batch)) for batch in found}
            assert sizes == {(3, 2) if options else (6, 4)}

    def test_functions_run_on_workers(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = range_of(20).random_map(lambda x, rng: (x + rng.normal()).astype("float32")).batch(6)
        adapter = adapt(dataset, executor="processes", workers=1)
        self.assert_delivers(adapter, to_numpy, self.expected(dataset, 2), epochs=2)

    def test_shards_take_rows(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = from_arrays(_IMAGES[:24]).shuffle(1).batch(6)
        for shard in ((0, 2), (1, 2)):
            self.assert_delivers(adapt(dataset, shard=shard), to_numpy, self.expected(dataset, shard=shard))

    def test_ranks_take_whole_batches_of_unequal_size(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = from_arrays(_IMAGES).shuffle(1).batch(6)  # the last of 5 batches has 2 elements
        for count, index in ((5, 4), (2, 1)):
            options: dict[str, Any] = {"shard": (index, count), "whole_batches": True}
            expected = self.expected(dataset, **options)
            found = self.assert_delivers(adapt(dataset, **options), to_numpy, expected)
            assert list(map(len, found)) == ([2] if count == 5 else [6, 6])

    # What adapters have in common.

    def test_state_and_report_are_those_of_the_loader(self, adapt: Adapt) -> None:
        adapter = adapt(_shuffled("tuple"))
        assert len(adapter) == len(adapter.loader)
        adapter.set_state(adapter.get_state() | {"epoch": 2})
        assert adapter.get_state() == adapter.loader.get_state()
        assert adapter.get_state()["epoch"] == 2
        assert str(adapter.report()) == str(adapter.loader.report())
        with pytest.raises(TypeError):
            adapter[0]
        adapter.close()

    # Their number.

    def test_reports_the_number_of_batches(self, adapt: Adapt) -> None:
        assert self.count(adapt(_shuffled("tuple"))) == BATCH_COUNT

    def test_endless_dataset_has_no_count_and_is_iterated(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = from_arrays(_LABELS).shuffle(1).repeat().batch(4)
        adapter = adapt(dataset)
        assert self.count(adapter) is None
        for number, batch in enumerate(itertools.islice(self.epoch(adapter), 2 * BATCH_COUNT)):
            assert_same(to_numpy(batch), dataset[number])

    def test_stream_has_no_count_and_resumes_with_the_next_batch(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = from_arrays(_LABELS).shuffle(1).filter(lambda label: label % 5 != 0).batch(3)
        expected = self.expected(dataset, 2)
        first = adapt(dataset)
        assert self.count(first) is None
        assert_same(copied(to_numpy(next(self.epoch(first)))), expected[0])
        second = adapt(dataset)
        second.loader.set_state(first.loader.get_state())
        self.assert_delivers(second, to_numpy, expected[1:], epochs=2)

    def test_break_is_followed_by_the_next_epoch(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = _shuffled("tuple")
        adapter = adapt(dataset)
        for taken in (1, 3, BATCH_COUNT - 1, BATCH_COUNT):
            assert len(list(itertools.islice(self.epoch(adapter), taken))) == taken
        self.assert_delivers(adapter, to_numpy, self.expected(dataset, 5)[4 * BATCH_COUNT :])

    def test_every_pass_is_epoch_0_unless_it_trains(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        dataset = _shuffled("tuple")
        adapter = adapt(dataset, training=False)
        next(self.epoch(adapter))
        self.assert_delivers(adapter, to_numpy, self.expected(dataset) * 2, epochs=2)

    # State.

    @pytest.mark.parametrize("taken", [0, 1, 4, BATCH_COUNT - 1, BATCH_COUNT, BATCH_COUNT + 2])
    def test_resumes_with_the_next_batch(self, adapt: Adapt, to_numpy: ToNumpy, taken: int) -> None:
        dataset = _shuffled("tuple")
        first = adapt(dataset)
        for _ in range(taken // BATCH_COUNT):
            assert len(list(self.epoch(first))) == BATCH_COUNT
        assert len(list(itertools.islice(self.epoch(first), taken % BATCH_COUNT))) == taken % BATCH_COUNT
        state = json.loads(json.dumps(first.loader.get_state()))
        assert (state["epoch"], state["position"]) == divmod(taken, BATCH_COUNT)

        second = adapt(dataset)
        second.loader.set_state(state)
        end = (taken // BATCH_COUNT + 2) * BATCH_COUNT
        self.assert_delivers(second, to_numpy, self.expected(dataset, 3)[taken:end], epochs=2)

    def test_state_follows_each_batch(self, adapt: Adapt) -> None:
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

    # Memory.

    def test_batches_that_are_kept_never_change(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        adapter = adapt(_shuffled("nested"))
        batches = itertools.chain.from_iterable(self.epoch(adapter) for _ in range(8))
        assert_kept_batches_stay(batches, lambda: self.close(adapter), to_numpy)

    def test_all_batches_can_be_kept(self, adapt: Adapt, to_numpy: ToNumpy) -> None:
        batches = list(self.epoch(adapt(range_of(200).cast("int32").batch(2))))
        assert [to_numpy(batch).tolist() for batch in batches] == [[i, i + 1] for i in range(0, 200, 2)]

    def test_batches_that_are_dropped_give_their_slots_back(self, adapt: Adapt) -> None:
        adapter = adapt(from_arrays(np.zeros((96, 64, 64), np.float32)).batch(4))
        for _ in range(3):
            for batch in self.epoch(adapter):
                del batch
        report = adapter.loader.report()
        assert report.batches == 72
        assert report.copied == 0

    # Errors and the end.

    def test_error_of_a_function_arrives_in_its_place_and_names_the_element(
        self, adapt: Adapt, to_numpy: ToNumpy
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
    def test_close_ends_every_thread_and_process(self, make_adapter: Adapt, executor: str, taken: int) -> None:
        with leaves_no_worker():
            adapter = make_adapter(_shuffled("tuple"), executor=executor, workers=1)
            batches = self.epoch(adapter)
            kept = [next(batches) for _ in range(taken)]
            self.close(adapter)
            self.close(adapter)
        assert len(kept) == taken
        with pytest.raises(self.closed_error, match="This loader is closed"):
            next(self.epoch(adapter))


class AdapterMemoryTests(OnAdapter):
    """Tests that an adapter keeps no memory. They measure their own process. Linux only."""

    def test_memory_is_flat_over_1000_epochs(self, adapt: Adapt) -> None:
        adapter = adapt(from_arrays(np.ones((16, 64, 64), np.float32)).shuffle(1).batch(4))
        resident = {}
        for number in range(1000):
            for batch in self.epoch(adapter):
                del batch
            if number in (99, 999):
                gc.collect()
                resident[number] = memory_now().here_nbytes / 2**20
        assert adapter.loader.report().copied == 0
        assert resident[999] - resident[99] <= ALLOWED_MIB, f"MiB by the number of the epoch: {resident}"


def _shuffled(structure: str) -> Dataset:
    return from_arrays(STRUCTURES[structure]).shuffle(seed=3).batch(4)


def _shape_of(batch: Tree) -> Any:
    """Types and keys of a tree, in their order. A framework may treat trees with another order of keys as equal."""
    if isinstance(batch, dict):
        return [(key, _shape_of(value)) for key, value in batch.items()]
    if isinstance(batch, tuple):
        return type(batch), [_shape_of(value) for value in batch]
    return None


def _extremes(dtype: np.dtype[Any], arriving: np.dtype[Any]) -> npt.NDArray[Any]:
    """The extreme values that both a dtype and the arriving one can hold: an even number of them."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype), np.iinfo(arriving)
        low, high = max(each.min for each in bounds), min(each.max for each in bounds)
        values: list[Any] = [low, high, 0, 1, high - 1, 100]
    elif dtype.kind == "b":
        values = [True, False, False, True]
    else:
        limits = np.finfo(arriving)
        values = [0.0, -0.0, np.nan, np.inf, -np.inf, limits.tiny, limits.max, 1 / 3]
    return np.array(values, dtype)
