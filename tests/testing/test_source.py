"""The suite of sources finds faults: each source here has one, and one test of the suite reports it."""

import inspect
import os
import threading
from typing import ClassVar

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests, assert_same

ROWS = np.arange(12 * 6, dtype="float32").reshape(12, 2, 3) * 1.5
RAGGED = np.empty(12, object)
RAGGED[:] = [np.arange(size, dtype="int32") + size for size in range(12)]


class Right(ps.Source):
    element_spec = ps.ArraySpec((2, 3), "float32")

    def __len__(self):
        return 12

    def read_into(self, indices, out):
        out[...] = ROWS[indices]


class Sorts(Right):
    def read_into(self, indices, out):
        out[...] = ROWS[np.sort(indices)]


class ReadsRepeatedOnce(Right):
    def read_into(self, indices, out):
        for index in np.unique(indices):
            out[list(indices).index(index)] = ROWS[index]


class ReturnsThem(Right):
    def read_into(self, indices, out):
        return ROWS[indices]


class ForgetsTheLast(Right):
    def read_into(self, indices, out):
        out[:-1] = ROWS[indices[:-1]]


class SortsTheIndicesInPlace(Right):
    def read_into(self, indices, out):
        out[...] = ROWS[indices]
        indices.sort()


class CannotReadNothing(Right):
    def read_into(self, indices, out):
        first = indices.min()
        out[...] = ROWS[first:][indices - first]


class WantsThemInOrder(Right):
    def read_into(self, indices, out):
        if (np.diff(indices) <= 0).any():
            raise TypeError("Indexing elements must be in increasing order")
        super().read_into(indices, out)


class WantsOneBlock(Right):
    def read_into(self, indices, out):
        out.ravel()[...] = ROWS[indices].ravel()


class RemembersPlaces(Right):
    def __init__(self):
        self.known = {}

    def read_into(self, indices, out):
        for row, index in enumerate(indices.tolist()):
            out[row] = self.known.get(index, ROWS[index])
            self.known[index] = out[row]


class WritesLater(Right):
    def __init__(self):
        self.last = None

    def read_into(self, indices, out):
        out[...] = ROWS[indices]
        if self.last is not None and self.last.shape == out.shape:
            self.last[...] = out
        self.last = out


class HasOneScratch(Right):
    def __init__(self):
        self.scratch = np.empty((2, 3), "float32")

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            self.scratch[...] = ROWS[index]
            out[row] = self.scratch


class HasOnePosition(Right):
    def __init__(self):
        self.at = 0

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            self.at = index
            out[row] = ROWS[self.at]


class IsOpenOnce(Right):
    def __init__(self):
        self.opened = None

    def open(self):
        if self.opened is None or self.opened.is_closed:
            self.opened = Closable()
        return self.opened


class Closable(Right):
    is_closed = False

    def read_into(self, indices, out):
        if self.is_closed:
            raise ValueError("read of closed file")
        super().read_into(indices, out)

    def close(self):
        self.is_closed = True


class LeavesFilesOpen(Right):
    descriptors: ClassVar[list[int]] = []

    def open(self):
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))
        return Right()


class KeepsItsFile(Right):
    lock = None

    def read_into(self, indices, out):
        self.lock = threading.Lock()  # stands for an open file: does not pickle
        super().read_into(indices, out)


class HoldsData(Right):
    def __init__(self):
        self.rows = np.zeros(100_000)


class SortsAdvice(Right):
    def advise(self, indices):
        indices.sort()


class HasOneName(Right):
    def describe(self, index):
        return "a row"


class LosesParts(Right):
    def unstacked(self):
        return Parts()


class Parts(ps.Source):
    element_spec = ps.ArraySpec((3,), "float32")

    def __len__(self):
        return 20

    def read_into(self, indices, out):
        out[...] = ROWS.reshape(-1, 3)[indices]


class ReusesAnArray(Right):
    """Of ragged leaves, each is an array that is kept."""

    element_spec = ps.ArraySpec((None,), "int32")

    def __init__(self):
        self.scratch = np.empty(1000, "int32")

    def read_into(self, indices, out):
        at = 0
        for row, index in enumerate(indices):
            out[row] = self.scratch[at : at + index]
            out[row][...] = RAGGED[index]
            at += index


class HasAnotherDtype(Right):
    element_spec = ps.ArraySpec((None,), "int32")

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            out[row] = RAGGED[index].astype("int64")


WRONG = [
    (Sorts, "reads_in_any_order_and_repeated", r"read_into\(\) was asked to write the elements \[11 +10 +9"),
    (ReadsRepeatedOnce, "reads_in_any_order_and_repeated", r"has not written out\[row\] for rows \[1, 3\]"),
    (ReturnsThem, "reads_in_any_order_and_repeated", r"has not written out\[row\] for rows \[0, 1, 2.*itself"),
    (ForgetsTheLast, "reads_in_any_order_and_repeated", r"has not written out\[row\] for rows \[11\]"),
    (SortsTheIndicesInPlace, "reads_in_any_order_and_repeated", r"read_into\(\) changed its indices"),
    (HasAnotherDtype, "reads_in_any_order_and_repeated", r"element\[0\] has dtype int64, not int32"),
    (
        WantsThemInOrder,
        "reads_in_any_order_and_repeated",
        r"(?s)increasing order.*for \[11 .*: indices come in any order",
    ),
    (CannotReadNothing, "reads_nothing_for_no_indices", "zero-size array"),
    (WantsOneBlock, "writes_rows_that_are_not_neighbours", "Arrays are not equal"),
    (RemembersPlaces, "keeps_no_hold_on_its_outputs", "must not read from it"),
    (WritesLater, "keeps_no_hold_on_its_outputs", "The next read changed the output of this one"),
    (ReusesAnArray, "keeps_no_hold_on_its_outputs", "The next read changed the output of this one"),
    (HasOneScratch, "serves_several_threads_at_once", "Arrays are not equal"),
    (HasOnePosition, "serves_several_threads_at_once", "Arrays are not equal"),
    (IsOpenOnce, "can_be_open_several_times_at_once", r"(?s)closed file.*earlier opened form was closed"),
    (LeavesFilesOpen, "closes_the_files_that_it_opens", r"open files of this process after open\(\) and close\(\)"),
    (KeepsItsFile, "pickles_small_and_the_copy_reads_the_same", r"(?s)cannot pickle.*has been opened"),
    (HoldsData, "pickles_small_and_the_copy_reads_the_same", r"pickles to 800,\d+ bytes"),
    (SortsAdvice, "takes_any_advice", r"advise\(\) changed the indices"),
    (HasOneName, "describes_each_element_differently", r"\['a row', 'a row'"),
    (LosesParts, "parts_are_those_of_the_elements", r"unstacked\(\) has 20 elements, and the elements 24 parts"),
]


@pytest.mark.parametrize(("kind", "name", "says"), WRONG, ids=lambda each: getattr(each, "__name__", None))
def test_suite_finds_each_fault(kind, name, says):
    source = kind()
    test = getattr(SourceTests(), f"test_{name}")
    given = {"handle": source, "elements": RAGGED if kind in (ReusesAnArray, HasAnotherDtype) else ROWS}
    try:
        with pytest.raises(Exception, match=says):
            test(**{each: given[each] for each in inspect.signature(test).parameters})
    finally:
        while LeavesFilesOpen.descriptors:
            os.close(LeavesFilesOpen.descriptors.pop())


class TestRight(SourceTests):
    """A source without these faults passes."""

    @pytest.fixture
    def source(self):
        return Right()

    @pytest.fixture
    def expected(self):
        return ROWS


def test_ragged_leaves_are_compared_by_their_values():
    assert_same({"x": RAGGED}, {"x": RAGGED.copy()})
    other = RAGGED.copy()
    other[3] = other[3] + 1
    with pytest.raises(AssertionError, match=r"element\['x'\]\[3\]"):
        assert_same({"x": other}, {"x": RAGGED})
    other[3] = [3, 4, 5]
    with pytest.raises(AssertionError, match=r"element\['x'\]\[3\] is \[3, 4, 5\], of type list, not ndarray"):
        assert_same({"x": other}, {"x": RAGGED})
