"""What every source must do, as tests that the author of one subclasses."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from penstock import _tree
from penstock._constructors import from_source
from penstock._plan._source import Read, Source
from penstock._spec import Spec
from penstock._tree import Tree
from penstock.testing._compare import assert_fits, assert_same, row_of

_JUNK = 0xA5


class SourceTests:
    """The contract of `penstock.Source`. Subclass it, with two fixtures.

    `source` is a source of at least four elements, `expected` the tree of arrays of the same elements, each leaf
    `(len(source), *shape)`.
    """

    max_pickle_nbytes: ClassVar[int | None] = 10_000
    """A source is a handle and pickles small. None for one whose data are in memory and nowhere else."""

    @pytest.fixture
    def source(self) -> Source:
        """The source under test."""
        raise NotImplementedError("a subclass of SourceTests has a fixture `source`")

    @pytest.fixture
    def expected(self) -> Tree:
        """Its elements."""
        raise NotImplementedError("a subclass of SourceTests has a fixture `expected`")

    def test_length_is_that_of_the_data(self, source: Source, expected: Tree) -> None:
        assert {len(leaf) for leaf in _tree.flatten(expected)[0]} == {len(source)}

    def test_spec_is_that_of_the_data(self, source: Source, expected: Tree) -> None:
        assert_fits(row_of(expected, 0), source.element_spec)
        assert_fits(row_of(expected, len(source) - 1), source.element_spec)

    def test_reads_in_any_order_and_repeated(self, source: Source, expected: Tree) -> None:
        count, rng = len(source), np.random.default_rng(0)
        opened = source.open()
        for indices in (
            np.arange(count),
            np.arange(count)[::-1].copy(),
            np.array([count - 1]),
            np.array([1, 1, 0, 1]),
            rng.integers(0, count, 3 * count),
        ):
            before = indices.copy()
            assert_same(_read(opened, indices), row_of(expected, indices))
            np.testing.assert_array_equal(indices, before)
        _close(source, opened)

    def test_reads_nothing_when_asked_for_nothing(self, source: Source, expected: Tree) -> None:
        opened = source.open()
        assert_same(_read(opened, np.zeros(0, np.int64)), row_of(expected, slice(0, 0)))
        opened.gather([])
        _close(source, opened)

    def test_writes_rows_that_are_not_neighbours(self, source: Source, expected: Tree) -> None:
        opened, indices = source.open(), np.array([2, 0, 3])
        out = _junk(source, 9)
        opened.read_into(indices, row_of(out, slice(1, 7, 2)))
        assert_same(row_of(out, slice(1, 7, 2)), row_of(expected, indices))
        for row in (0, 2, 4, 6, 7, 8):
            assert_same(row_of(out, row), row_of(_junk(source, 9), row))
        _close(source, opened)

    @pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 8, 2), np.array([7, 0, 3, 5])])
    def test_gathers_into_rows_of_a_larger_place(
        self, source: Source, expected: Tree, rows: slice | npt.NDArray[Any]
    ) -> None:
        opened = source.open()
        out, other = _junk(source, 8), _junk(source, 2)
        opened.gather(
            [
                Read(np.array([3, 1, 1, 0]), _tree.flatten(out)[0], rows),
                Read(np.array([2, 3]), _tree.flatten(other)[0], slice(0, 2)),
            ]
        )
        wanted, want = _tree.flatten(_junk(source, 8))[0], row_of(expected, np.array([3, 1, 1, 0]))
        for target, values in zip(wanted, _tree.flatten(want)[0], strict=True):
            target[rows] = values
        assert_same(out, _tree.flatten(out)[1].unflatten(wanted))
        assert_same(other, row_of(expected, slice(2, 4)))
        _close(source, opened)

    def test_serves_several_threads_at_once(self, source: Source, expected: Tree) -> None:
        opened, everybody = source.open(), threading.Barrier(4, timeout=30)

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            everybody.wait()
            for _ in range(20):
                indices = rng.integers(0, len(source), 7)
                assert_same(_read(opened, indices), row_of(expected, indices))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, seed) for seed in range(4)]:
                done.result()
        _close(source, opened)

    def test_can_be_opened_again(self, source: Source, expected: Tree) -> None:
        for _ in range(2):
            opened = source.open()
            assert_same(_read(opened, np.array([1])), row_of(expected, np.array([1])))
            _close(source, opened)

    def test_can_be_closed_without_a_read(self, source: Source) -> None:
        _close(source, source.open())

    def test_pickles_small_and_the_copy_reads_the_same(self, source: Source, expected: Tree) -> None:
        data = pickle.dumps(source)
        if self.max_pickle_nbytes is not None:
            assert len(data) < self.max_pickle_nbytes
        copy = pickle.loads(data)
        assert len(copy) == len(source)
        opened = copy.open()
        assert_same(_read(opened, np.arange(len(copy))), expected)
        _close(copy, opened)

    def test_advice_is_taken_without_complaint(self, source: Source, expected: Tree) -> None:
        opened = source.open()
        for indices in ([], [0], [3, 3, 1], list(range(len(source)))):
            opened.advise(np.array(indices, np.int64))
        assert_same(_read(opened, np.array([0])), row_of(expected, np.array([0])))
        _close(source, opened)

    def test_describes_each_element_by_other_words(self, source: Source) -> None:
        opened = source.open()
        for each in (source, opened):
            assert len({each.describe(index) for index in range(4)}) == 4
        _close(source, opened)

    def test_parts_are_those_of_the_elements(self, source: Source, expected: Tree) -> None:
        parts = source.unstacked()
        if parts is None:  # they cannot be read alone
            return
        leaves, structure = _tree.flatten(expected)
        joined = structure.unflatten([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])
        opened = parts.open()
        indices = np.arange(len(parts))[::-1]
        assert_same(_read(opened, indices), row_of(joined, indices))
        _close(parts, opened)

    def test_is_a_dataset(self, source: Source, expected: Tree) -> None:
        dataset = from_source(source)
        count = len(source)
        for index, element in enumerate(dataset):
            assert_same(element, row_of(expected, index))
        with dataset.shuffle(seed=1).batch(3).loader(executor="threads", workers=2) as loader:
            assert sum(len(_tree.flatten(batch)[0][0]) for batch in loader) == count


def _junk(source: Source, count: int) -> Tree:
    """Places for elements that hold something else."""
    spec = Spec.of(source.element_spec)
    arrays: list[npt.NDArray[Any]] = []
    for leaf in spec.leaves:
        if leaf.nbytes is None:
            arrays.append(np.full(count, "junk", object))
        else:
            shape = (count, *(leaf.max_shape or ()))
            arrays.append(np.frombuffer(bytearray([_JUNK]) * (count * leaf.nbytes), leaf.dtype).reshape(shape))
    return spec.structure.unflatten(arrays)


def _read(opened: Source, indices: npt.NDArray[np.int64]) -> Tree:
    out = _junk(opened, len(indices))
    opened.read_into(indices.astype(np.int64), out)
    return out


def _close(source: Source, opened: Source) -> None:
    if opened is not source:
        opened.close()
