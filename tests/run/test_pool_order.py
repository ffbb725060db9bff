"""The pool hands on the units of one worker in the order in which that worker did them."""

from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.mark.slow
def test_streams_continue_over_thousands_of_units() -> None:
    def rows() -> Any:
        for number in range(20):
            yield np.full(50, number), "text" * number

    spec = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), np.dtype("U")))
    dataset = ps.from_generator(rows, element_spec=spec).filter(lambda x: True).map(lambda x: x, element_spec=spec)
    with dataset.loader("processes", workers=2) as loader:
        for _ in range(240):
            assert [(int(array[0]), len(text)) for array, text in loader] == [(n, 4 * n) for n in range(20)]


@pytest.mark.slow
def test_text_of_units_that_end_while_the_pool_looks_belongs_to_its_element() -> None:
    # A worker sends its text before its answer, and the pool may look in between.
    with ps.range(12_000).map(lambda x: f"n{x}").batch(6).loader("processes", workers=4) as loader:
        for number, batch in enumerate(loader):
            assert batch.tolist() == [f"n{6 * number + row}" for row in range(6)]
