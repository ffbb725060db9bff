"""How batches are cut into units, which the workers share."""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Unit

ROWS = 32


def unit_sizes(dataset: Any, worker_count: int, row_s: float) -> list[int]:
    """Rows of each unit of a batch."""
    units = ParallelProgram(dataset._node).cut(Unit(0, 0, 0, 1, slot=0, generation=1), worker_count, row_s)
    assert [unit.start for unit in units] == [0, *(unit.stop for unit in units)][:-1]
    assert units[-1].stop == ROWS
    return [unit.stop - unit.start for unit in units]


@pytest.mark.parametrize(
    ("worker_count", "row_s", "sizes"),
    [
        (2, 0.0, [4] * 8),  # nothing is known yet
        (2, 1e-3, [8] * 4),  # some 8 ms each
        (3, 1e-3, [5, 5, 6, 5, 5, 6]),  # as many for each worker
        (2, 200e-6, [16] * 2),
        (8, 100e-6, [16] * 2),  # 2 ms each
        (4, 50e-6, [32]),  # for less than 2 ms another worker takes the next batch
        (2, 5.0, [1] * 32),
        (100, 1.0, [1] * 32),
        (0, 50e-6, [32]),  # nobody shares it
    ],
)
def test_rows_of_functions_are_dealt_evenly(worker_count: int, row_s: float, sizes: list[int]) -> None:
    assert unit_sizes(ps.range(1000).map(lambda x: x).batch(ROWS), worker_count, row_s) == sizes


@pytest.mark.parametrize("row_s", [0.0, 1e-6, 1e-3])
def test_a_small_batch_that_is_merely_read_is_one_workers(row_s: float) -> None:
    assert unit_sizes(ps.range(1000).batch(ROWS), 4, row_s) == [32]


@pytest.mark.parametrize(("row_s", "sizes"), [(1e-6, [32]), (1e-3, [8] * 4)])
def test_a_small_batch_that_is_kept_is_one_workers_once_it_is_read(row_s: float, sizes: list[int]) -> None:
    assert unit_sizes(ps.range(1000).map(lambda x: x).cache().batch(ROWS), 2, row_s) == sizes


def test_a_large_batch_that_is_merely_read_is_shared() -> None:
    large = ps.from_arrays(np.zeros((64, 1 << 20), np.uint8)).batch(ROWS)
    assert unit_sizes(large, 2, 1e-3) == [16] * 2
