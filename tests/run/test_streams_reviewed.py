"""What a reviewer found of streams: read ahead, states that cannot be, what is counted."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

RAGGED = ps.ArraySpec((None,), "float64")


def test_ragged_elements_whose_size_nobody_knows_are_read_no_further_than_batches_need() -> None:
    given: list[int] = []

    def rows() -> Iterator[Any]:
        for number in itertools.count():
            given.append(number)
            yield np.zeros(number % 7)

    ds = ps.from_generator(rows, element_spec=RAGGED).map(lambda row: row + 1, element_spec=RAGGED).padded_batch(2)
    with ds.loader(executor="threads", workers=1, prefetch=1) as loader:
        batches = iter(loader)
        for taken in range(1, 20):
            next(batches)
            # What was taken, what waits in 3 slots, and four spans of a batch each. (The first element was looked at
            # before, in a reading of its own, to see what the function does.)
            assert max(given) + 1 <= 2 * (taken + 3 + 4), taken


def test_a_bucket_of_elements_of_one_size_has_a_place_in_the_ring() -> None:
    ds = ps.range(40).map(lambda x: np.zeros(1000)).bucket_by_length(lambda row: 1, [5], [4, 8])
    assert ds.element_spec.max_shape == (8, 1000)
    with ds.loader(executor="inline") as loader:
        assert loader.projected_nbytes > 6 * 8 * 1000 * 8
        assert [len(batch) for batch in loader] == [4] * 10


def test_a_windowed_shuffle_takes_a_stream_one_element_at_a_time_after_its_first_window() -> None:
    given: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            given.append(number)
            yield number

    elements = iter(ps.from_generator(numbers).shuffle(window=10))
    next(elements)
    assert len(given) <= 1 + 10  # the spec looked at one


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("cursor", [50, 64, 96, 1 << 40])
def test_a_cursor_beyond_the_end_ends_the_epoch(executor: Any, cursor: int) -> None:
    ds = ps.range(50).filter(lambda x: x % 2 == 0).batch(4)
    with ds.loader(executor=executor, timeout_s=5) as loader:
        state = loader.get_state() | {"position": 3, "cursor": [cursor]}
        loader.set_state(state)
        assert list(loader) == []
        assert sum(len(batch) for batch in loader) == 25


@pytest.mark.parametrize("position", [1 << 41, (1 << 62) - 1])
def test_a_position_that_no_stream_has_is_refused(position: int) -> None:
    loader = ps.from_generator(range, 9).batch(4).loader(executor="inline")
    with loader, pytest.raises(ps.StateError, match=str(position)):
        loader.set_state(loader.get_state() | {"position": position})


def test_a_cursor_for_an_iterator_that_cannot_go_anywhere_is_refused_in_words() -> None:
    with ps.from_generator(range, 9).batch(4).loader(executor="inline") as loader:
        loader.set_state(loader.get_state() | {"position": 1, "cursor": [4]})
        with pytest.raises(ps.StateError, match=r"cursor.*from_generator\(range\).*set_state"):
            list(loader)


def test_a_deadline_names_the_batch_that_was_waited_for() -> None:
    gate = threading.Event()

    def stuck() -> Iterator[int]:
        yield from range(6)
        gate.wait(30)

    ds = ps.from_generator(stuck).map(lambda x: x).batch(2)
    with ds.loader(executor="threads", timeout_s=0.4) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(ps.DeadlineError, match="while batch 3 of epoch 0 was waited for"):
            next(batches)
        gate.set()


@pytest.mark.slow
def test_streams_go_on_where_the_board_begins_again() -> None:
    """Units have places on a board of 4,096, a circle: those of a stream are heard of in order all the same."""

    def rows() -> Any:
        for number in range(20):
            yield np.full(50, number), "text" * number

    spec = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), np.dtype("U")))
    dataset = ps.from_generator(rows, element_spec=spec).filter(lambda x: True).map(lambda x: x, element_spec=spec)
    with dataset.loader("processes", workers=2) as loader:
        for _ in range(240):
            assert [(int(array[0]), len(text)) for array, text in loader] == [(n, 4 * n) for n in range(20)]
