"""The contract of a source, as tests to subclass."""

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from penstock.base import _tree
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.functions._constructors import from_source, range as range_of
from penstock.plan._source import Read, Source, open_source
from penstock.testing._assertions import assert_fits, assert_same, row_of

_JUNK = 0xA5
_NO_OBJECT = "nothing was written here"


class SourceTests:
    """The contract of `penstock.Source`. Subclass it, with two fixtures.

    `source` is an argument for `from_source`, of four or more elements. `expected` has the same elements as a tree of
    arrays, each leaf `(len(source), *shape)`. Where leaves differ in size, it is a list of them.

    Example:
        >>> class TestSquares(penstock.testing.SourceTests):
        ...     @pytest.fixture
        ...     def source(self): return Squares()
        ...     @pytest.fixture
        ...     def expected(self): return np.arange(5) ** 2
    """

    max_pickle_nbytes: ClassVar[int | None] = 10_000
    """A source is a handle and pickles small. None for a source whose data are only in memory."""

    @pytest.fixture
    def source(self) -> Any:
        """The source under test."""
        raise NotImplementedError("a subclass of SourceTests has a fixture `source`")

    @pytest.fixture
    def expected(self) -> Tree:
        """Its elements."""
        raise NotImplementedError("a subclass of SourceTests has a fixture `expected`")

    @pytest.fixture
    def handle(self, source: Any) -> Source:
        """The source as a dataset holds it. An object that is no `Source` is wrapped."""
        node = from_source(source)._node
        assert isinstance(node.opens, Source)
        return node.opens

    @pytest.fixture
    def elements(self, handle: Source, expected: Tree) -> Tree:
        """The expected elements, in arrays such as a source fills."""
        leaves, structure = _tree.flatten(expected)
        spec = Spec.of(handle.element_spec)
        assert structure == spec.structure, f"expected has the structure {structure}, element_spec {spec.structure}"
        return structure.unflatten([_rows(*pair) for pair in zip(leaves, spec.leaves, strict=True)])

    def test_length_is_that_of_the_data(self, handle: Source, elements: Tree) -> None:
        lengths = {len(leaf) for leaf in _tree.flatten(elements)[0]}
        assert lengths == {len(handle)}, f"len(source) is {len(handle)}, and the length of `expected` {lengths}"

    def test_spec_is_that_of_the_data(self, handle: Source, elements: Tree) -> None:
        assert_fits(row_of(elements, 0), handle.element_spec)
        assert_fits(row_of(elements, len(handle) - 1), handle.element_spec)

    def test_reads_in_any_order_and_repeated(self, handle: Source, elements: Tree) -> None:
        count, rng = len(handle), np.random.default_rng(0)
        with _opened(handle) as opened:
            for indices in (
                np.arange(count),
                np.arange(count)[::-1],
                np.array([count - 1]),
                np.array([1, 1, 0, 1]),
                rng.integers(0, count, 3 * count),
            ):
                _assert_reads(opened, indices, elements)

    def test_reads_nothing_for_no_indices(self, handle: Source, elements: Tree) -> None:
        with _opened(handle) as opened:
            _assert_reads(opened, np.zeros(0, np.int64), elements)
            opened.gather([])

    def test_writes_rows_that_are_not_neighbours(self, handle: Source, elements: Tree) -> None:
        with _opened(handle) as opened:
            indices, out = np.array([2, 0, 3]), _junk(handle, 9)
            opened.read_into(indices.copy(), row_of(out, slice(1, 7, 2)))
            assert_same(row_of(out, slice(1, 7, 2)), row_of(elements, indices))
            for row in (0, 2, 4, 6, 7, 8):
                assert_same(row_of(out, row), row_of(_junk(handle, 9), row))

    @pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 8, 2), np.array([7, 0, 3, 5])])
    def test_gathers_into_rows_of_a_larger_place(
        self, handle: Source, elements: Tree, rows: slice | npt.NDArray[Any]
    ) -> None:
        out, other = _junk(handle, 8), _junk(handle, 2)
        with _opened(handle) as opened:
            opened.gather(
                [
                    Read(np.array([3, 1, 1, 0]), _tree.flatten(out)[0], rows),
                    Read(np.array([2, 3]), _tree.flatten(other)[0], slice(0, 2)),
                ]
            )
        wanted, want = _tree.flatten(_junk(handle, 8))[0], row_of(elements, np.array([3, 1, 1, 0]))
        for target, values in zip(wanted, _tree.flatten(want)[0], strict=True):
            target[rows] = values
        assert_same(out, _tree.flatten(out)[1].unflatten(wanted))
        assert_same(other, row_of(elements, slice(2, 4)))

    def test_keeps_no_hold_on_its_outputs(self, handle: Source, elements: Tree) -> None:
        # After the read the memory is a batch that the user keeps, or it is used again.
        indices = np.array([1, 3])
        with _opened(handle) as opened:
            first = _read(opened, indices)
            _read(opened, np.array([2, 0]))
            with _noted("The next read changed the output of this one."):
                assert_same(first, row_of(elements, indices))
            for leaf, junk in zip(_tree.flatten(first)[0], _tree.flatten(_junk(handle, 2))[0], strict=True):
                leaf[...] = junk
            with _noted("The memory of an earlier read has changed since. A source must not read from it."):
                _assert_reads(opened, indices, elements)

    def test_serves_several_threads_at_once(self, handle: Source, elements: Tree) -> None:
        everybody = threading.Barrier(4, timeout=30)

        def work(opened: Source, seed: int) -> None:
            rng = np.random.default_rng(seed)
            everybody.wait()
            for _ in range(10):
                _assert_reads(opened, rng.integers(0, len(handle), 7), elements)
            for _ in range(3):
                indices, out = rng.integers(0, len(handle), 5), _junk(handle, 5)
                with _interrupted():
                    opened.read_into(indices, out)
                assert_same(out, row_of(elements, indices))

        with _opened(handle) as opened, ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, opened, seed) for seed in range(4)]:
                done.result()

    def test_can_be_opened_again(self, handle: Source, elements: Tree) -> None:
        for _ in range(2):
            with _opened(handle) as opened:
                _assert_reads(opened, np.array([1]), elements)

    def test_can_be_open_several_times_at_once(self, handle: Source, elements: Tree) -> None:
        # Two loaders, for training and validation, open it at the same time.
        with _opened(handle) as second:
            with _opened(handle) as first:
                _assert_reads(first, np.array([1]), elements)
                _assert_reads(second, np.array([2]), elements)
            with _noted("An earlier opened form was closed; this one must still read."):
                _assert_reads(second, np.array([0, 1]), elements)

    def test_can_be_closed_without_a_read(self, handle: Source) -> None:
        with _opened(handle):
            pass

    def test_closes_the_files_that_it_opens(self, handle: Source, elements: Tree) -> None:
        counts = []
        for _ in range(12):
            with _opened(handle) as opened:
                _assert_reads(opened, np.array([1]), elements)
            counts.append(_open_file_count())
        assert len(set(counts)) < 12, f"open files of this process after open() and close(), again and again: {counts}"

    def test_pickles_small_and_the_copy_reads_the_same(self, handle: Source, elements: Tree) -> None:
        data = pickle.dumps(handle)
        if self.max_pickle_nbytes is not None:
            assert len(data) < self.max_pickle_nbytes, f"the source pickles to {len(data):,} bytes: it holds data"
        with _opened(handle) as opened, _noted("The source has been opened. The resources belong to the opened form."):
            _assert_reads(opened, np.array([1]), elements)
            again = pickle.dumps(handle)
        for each in (data, again):
            copy = pickle.loads(each)
            assert len(copy) == len(handle)
            with _opened(copy) as opened:
                _assert_reads(opened, np.arange(len(copy)), elements)

    def test_takes_any_advice(self, handle: Source, elements: Tree) -> None:
        with _opened(handle) as opened:
            for numbers in ([], [0], [3, 3, 1], list(range(len(handle)))):
                indices = np.array(numbers, np.int64)
                opened.advise(indices)
                assert indices.tolist() == numbers, "advise() changed the indices that it was given"
            _assert_reads(opened, np.array([0]), elements)

    def test_knows_its_cache_ahead_and_reads_the_same_with_less(self, handle: Source, elements: Tree) -> None:
        before = handle.kept_nbytes
        assert before >= 0, f"kept_nbytes is {before}"
        less = handle.with_cache_limit(before // 2)
        assert less.kept_nbytes <= before, (
            f"with_cache_limit({before // 2}) gives a source that keeps {less.kept_nbytes}"
        )
        with _opened(less) as opened:
            _assert_reads(opened, np.arange(len(handle))[::-1], elements)
        assert handle.kept_nbytes == before, (
            "kept_nbytes is known ahead. It is the same after reading and with_cache_limit()."
        )

    def test_describes_each_element_differently(self, handle: Source) -> None:
        with _opened(handle) as opened:
            for each in (handle, opened):
                words = [each.describe(index) for index in range(4)]
                assert len(set(words)) == 4, f"describe() of elements 0 to 3: {words}"

    def test_parts_are_those_of_the_elements(self, handle: Source, elements: Tree) -> None:
        parts = handle.unstacked()
        if parts is None:  # they cannot be read alone
            return
        leaves, structure = _tree.flatten(elements)
        joined = structure.unflatten([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])
        count = len(_tree.flatten(joined)[0][0])
        assert len(parts) == count, f"unstacked() has {len(parts)} elements, and the elements {count} parts"
        assert_fits(row_of(joined, 0), parts.element_spec)
        with _opened(parts) as opened:
            _assert_reads(opened, np.arange(count)[::-1], joined)

    def test_is_a_dataset(self, source: Any, handle: Source, elements: Tree) -> None:
        dataset = from_source(source)
        for index, element in enumerate(dataset):
            assert_same(element, row_of(elements, index))
        shuffled, order = dataset.shuffle(seed=1), [int(index) for index in range_of(len(handle)).shuffle(seed=1)]
        is_stacked = all(leaf.is_bounded for leaf in Spec.of(handle.element_spec).leaves)
        with (shuffled.batch(3) if is_stacked else shuffled).loader(executor="threads", workers=2) as loader:
            found = list(loader)
        wanted = [order[at : at + 3] for at in range(0, len(order), 3)] if is_stacked else order
        for each, indices in zip(found, wanted, strict=True):
            assert_same(each, row_of(elements, indices))


def _rows(leaf: Any, spec: ArraySpec) -> npt.NDArray[Any]:
    """Makes one array of a leaf of all elements. It holds objects where their sizes differ."""
    if spec.is_bounded:
        return np.asarray(leaf)
    rows = np.empty(len(leaf), object)
    for number, row in enumerate(leaf):
        rows[number] = row
    return rows


def _junk(source: Source, count: int) -> Tree:
    """Makes places for elements, filled with other values."""
    spec = Spec.of(source.element_spec)
    arrays: list[npt.NDArray[Any]] = []
    for leaf in spec.leaves:
        if leaf.nbytes is None:
            arrays.append(np.full(count, _NO_OBJECT, object))
        else:
            shape = (count, *(leaf.max_shape or ()))
            arrays.append(np.frombuffer(bytearray([_JUNK]) * (count * leaf.nbytes), leaf.dtype).reshape(shape))
    return spec.structure.unflatten(arrays)


def _is_junk(row: Any) -> bool:
    if isinstance(row, np.ndarray | np.generic):
        data = row.tobytes()
        return bool(data) and data == bytes([_JUNK]) * len(data)
    return isinstance(row, str) and row == _NO_OBJECT


def _read(opened: Source, indices: npt.NDArray[np.int64]) -> Tree:
    out, given = _junk(opened, len(indices)), indices.copy()
    with _noted(f"read_into() was asked for {indices}: indices come in any order, may repeat, and may be none."):
        opened.read_into(given, out)
    assert given.tolist() == indices.tolist(), f"read_into() changed its indices from {indices} to {given}"
    return out


def _assert_reads(opened: Source, indices: npt.NDArray[np.int64], elements: Tree) -> None:
    out = _read(opened, indices)
    try:
        assert_same(out, row_of(elements, indices))
    except AssertionError as error:
        error.add_note(f"read_into() was asked to write the elements {indices}, in this order.")
        leaves, structure = _tree.flatten(out)
        for place, leaf in zip(_tree.paths(structure), leaves, strict=True):
            if rows := [number for number, row in enumerate(leaf) if _is_junk(row)]:
                error.add_note(
                    f"It has not written out{place}[row] for rows {rows}. It must write into out[...] itself."
                )
        raise


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[Source]:
    """Opens a source, and closes the opened form if it is another object."""
    opened = open_source(source)
    try:
        yield opened
    finally:
        if opened is not source:
            opened.close()


@contextlib.contextmanager
def _noted(text: str) -> Iterator[None]:
    """Adds a note to an exception."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Lets other threads run after each line of Python, so that state shared between calls fails."""

    def let_go(*_: Any) -> Any:
        time.sleep(0)
        return let_go

    before = sys.gettrace()
    sys.settrace(let_go)
    try:
        yield
    finally:
        sys.settrace(before)


def _open_file_count() -> int:
    """The number of open files of this process. 0 where unknown."""
    return len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
