"""Batches are filled ahead while the consumer is busy with something else: as many as there are slots, and no more."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources.arrays import RangeSource
from penstock.testing import CountingSource, GatedSource
from tests.run.common import Gate

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

WORKERS = pytest.mark.parametrize("workers", [1, 2, 7])


class Watched:
    """A source at which one can wait for reads; nothing is held."""

    def __init__(self) -> None:
        self._gate = GatedSource(RangeSource(400), closed=())
        self._counter = CountingSource(self._gate)  # outside, so that what was waited for is counted
        self.dataset = ps.from_source(self._counter)
        self.wait_for_reads = self._gate.wait_for_reads

    def seen(self) -> set[int]:
        return set(self._counter.reads)


@WORKERS
@pytest.mark.parametrize("prefetch", [1, 2, 4, 9])
def test_all_free_slots_are_filled_while_nobody_asks(workers: int, prefetch: int) -> None:
    source = Watched()
    with source.dataset.batch(2).loader("threads", workers=workers, prefetch=prefetch) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        # One of prefetch + 2 slots is in the consumer's hand.
        source.wait_for_reads(range(2 * (prefetch + 2)))
        assert batch.tolist() == [0, 1]


@WORKERS
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_never_more_is_read_than_there_are_slots(workers: int, prefetch: int) -> None:
    source = CountingSource(RangeSource(400))
    with ps.from_source(source).batch(2).loader("threads", workers=workers, prefetch=prefetch) as loader:
        for number, batch in enumerate(loader):
            # Before this one, `number` batches were handed out, and their slots may all be back.
            assert max(source.reads) < 2 * (number + prefetch + 2)
            del batch
    assert loader.report().copied == 0


@WORKERS
def test_exactly_prefetch_batches_are_ahead_of_a_consumer_that_keeps_two(workers: int) -> None:
    source = Watched()
    with source.dataset.batch(2).loader("threads", workers=workers, prefetch=3) as loader:
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]
        source.wait_for_reads(range(2 * 5))
        assert source.seen() == set(range(2 * 5))
        del kept


@WORKERS
def test_a_dropped_batch_makes_work_though_nobody_asks(workers: int) -> None:
    source = Watched()
    with source.dataset.batch(1).loader("threads", workers=workers, prefetch=1) as loader:
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]
        source.wait_for_reads({2})
        for element in (3, 4):  # of three slots two are kept: one comes back, and one batch more is read
            assert element not in source.seen()
            del kept[0]
            source.wait_for_reads({element})


@WORKERS
def test_iter_alone_begins_to_read(workers: int) -> None:
    source = Watched()
    loader = source.dataset.batch(1).loader("threads", workers=workers)
    assert not source.seen()
    iter(loader)
    source.wait_for_reads(range(6))
    loader.close()


def test_the_next_epoch_is_begun_while_this_one_ends() -> None:
    gate = Gate()
    with ps.range(4).map(gate).batch(1).loader("threads", workers=1, prefetch=2) as loader:
        for _ in loader:
            pass
        gate.wait_for(0)
        again = iter(loader)
        assert [int(batch[0]) for batch in again] == [0, 1, 2, 3]


def test_inline_reads_nothing_ahead() -> None:
    source = CountingSource(RangeSource(40))
    with ps.from_source(source).batch(2).loader("inline", prefetch=8) as loader:
        iterator = iter(loader)
        assert not source.reads
        for number in range(5):
            next(iterator)
            assert sorted(source.reads) == list(range(2 * number + 2))


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_all_workers_fill_the_next_batch_together(workers: int) -> None:
    # One is held in the first unit, which is 4 elements; the others do all the rest of that batch.
    gate = Gate(1)
    size = 4 * workers
    with ps.range(8 * size).map(gate).batch(size).loader("threads", workers=workers) as loader:
        iterator = iter(loader)
        gate.wait_for(1, *range(4, size))
        assert not {2, 3} & set(gate.seen)
        gate.open()
        assert next(iterator).tolist() == list(range(size))


def test_no_batch_is_begun_before_all_of_the_one_before_it() -> None:
    gate = Gate(1)

    def after_the_other(x):
        if int(x) == 4:
            gate.wait_for(1)  # or the worker that is held might come to its elements only now, among these
        return gate(x)

    with ps.range(64).map(after_the_other).batch(16).loader("threads", workers=2) as loader:
        iterator = iter(loader)
        gate.wait_for(16)
        # Element 0 came once more, for the spec.
        assert gate.seen[: gate.seen.index(16)][-12:] == list(range(4, 16))
        gate.open()
        assert next(iterator).tolist() == list(range(16))


def test_ragged_elements_of_unknown_size_are_read_no_further_than_batches_need() -> None:
    given: list[int] = []

    def rows() -> Iterator[Any]:
        for number in itertools.count():
            given.append(number)
            yield np.zeros(number % 7)

    spec = ps.ArraySpec((None,), "float64")
    ds = ps.from_generator(rows, element_spec=spec).map(lambda row: row + 1, element_spec=spec).padded_batch(2)
    with ds.loader(executor="threads", workers=1, prefetch=1) as loader:
        batches = iter(loader)
        for taken in range(1, 20):
            next(batches)
            # The batches taken, those in 3 slots, and four spans of a batch each. (The loader read the first element
            # before, with an iterator of its own, to try the function.)
            assert max(given) + 1 <= 2 * (taken + 3 + 4), taken
