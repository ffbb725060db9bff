"""How adapters move batches ahead: order, errors and state, without a framework. The moves are the test's own."""

import pytest

import penstock as ps
from penstock.adapters._epochs import Epoch

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


class Moves:
    """Logs the moves that began and finished, by their first elements."""

    def __init__(self, bad_begin=None, bad_finish=None):
        self.begun, self.finished = [], []
        self._bad_begin, self._bad_finish = bad_begin, bad_finish

    def begin(self, batch):
        number = int(batch[0])
        if number == self._bad_begin:
            raise MemoryError("no room")
        self.begun.append(number)
        return batch

    def finish(self, batch):
        number = int(batch[0])
        if number == self._bad_finish:
            raise MemoryError("no room after all")
        self.finished.append(number)
        return number


@pytest.fixture
def loader():
    with ps.range(12).batch(2).loader(executor="threads", workers=1) as made:
        yield made


def epoch(loader, moves, ahead_count):
    return Epoch(loader, moves.begin, moves.finish, ahead_count)


def position(loader):
    state = loader.get_state()
    return state["epoch"], state["position"]


@pytest.mark.parametrize("ahead_count", [0, 1, 2, 9])
def test_batches_come_in_order_and_the_state_counts_those_alone(loader, ahead_count):
    moves = Moves()
    for round_number in range(2):
        batches = epoch(loader, moves, ahead_count)
        for number in range(6):
            assert next(batches) == 2 * number
            assert position(loader) == ((round_number, number + 1) if number < 5 else (round_number + 1, 0))
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(batches)
        assert position(loader) == (round_number + 1, 0)


def test_the_first_batch_waits_for_no_other_and_the_next_are_moved_ahead(loader):
    moves = Moves()
    batches = epoch(loader, moves, 2)
    next(batches)
    assert (moves.begun, moves.finished) == ([0], [0])
    next(batches)
    assert (moves.begun, moves.finished) == ([0, 2, 4, 6], [0, 2])
    next(batches)
    assert (moves.begun, moves.finished) == ([0, 2, 4, 6, 8], [0, 2, 4])


def test_making_an_iterator_draws_nothing(loader):
    moves = Moves()
    epoch(loader, moves, 2)
    assert (moves.begun, position(loader)) == ([], (0, 0))


@pytest.mark.parametrize("moves", [Moves(bad_begin=8), Moves(bad_finish=8)], ids=["begin", "finish"])
@pytest.mark.parametrize("ahead_count", [0, 1, 9])
def test_an_error_of_a_move_comes_in_its_batchs_place_and_that_batch_can_be_tried_again(loader, moves, ahead_count):
    batches = epoch(loader, moves, ahead_count)
    assert [next(batches) for _ in range(4)] == [0, 2, 4, 6]
    with pytest.raises(MemoryError, match="no room"):
        next(batches)
    assert position(loader) == (0, 4)
    with pytest.raises(StopIteration):
        next(batches)
    loader.set_state(loader.get_state())
    assert list(epoch(loader, Moves(), ahead_count)) == [8, 10]


def test_an_error_of_the_pipeline_comes_in_its_batchs_place():
    def fragile(x):
        if x == 9:
            raise KeyError("no such frame")
        return x

    with ps.range(12).map(fragile).batch(2).loader(executor="threads", workers=1) as loader:
        batches = epoch(loader, Moves(), 3)
        assert [next(batches) for _ in range(4)] == [0, 2, 4, 6]
        with pytest.raises(ps.ElementError, match="element 9 of epoch 0"):
            next(batches)
        assert position(loader) == (0, 4)


@pytest.mark.parametrize("taken", [1, 3, 4, 6])
def test_an_older_iterator_delivers_nothing_more_not_even_what_was_moved(loader, taken):
    older = epoch(loader, Moves(), 2)
    for _ in range(taken):
        next(older)
    newer = epoch(loader, Moves(), 2)
    assert next(newer) == 0
    with pytest.raises(ps.LoaderError, match=r"A newer iterator, or set_state\(\), has taken over this adapter"):
        next(older)
    assert position(loader) == (1, 1)
    assert next(newer) == 2


def test_what_was_moved_is_not_delivered_after_close(loader):
    batches = epoch(loader, Moves(), 2)
    next(batches)
    next(batches)
    loader.close()
    with pytest.raises(ps.LoaderError, match="This loader is closed"):
        next(batches)


def test_a_break_is_followed_by_the_next_epoch_wherever_it_was_drawn_to(loader):
    for taken in (1, 3, 5, 6):
        batches = epoch(loader, Moves(), 2)
        for _ in range(taken):
            next(batches)
    assert position(loader) == (4, 0)


def test_an_interrupt_in_a_move_loses_no_batch_without_a_word(loader):
    class Interrupted(Moves):
        def begin(self, batch):
            if int(batch[0]) == 4 and 4 not in self.begun:
                self.begun.append(4)
                raise KeyboardInterrupt
            return super().begin(batch)

    batches = epoch(loader, Interrupted(), 1)
    assert next(batches) == 0
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(ps.LoaderError, match=r"An interrupt struck .* loader\.set_state\(loader\.get_state\(\)\)"):
        next(batches)
    loader.set_state(loader.get_state())
    assert list(epoch(loader, Moves(), 1)) == [2, 4, 6, 8, 10]
