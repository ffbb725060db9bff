"""Whether threads take turns: with a clock and speeds that are made up."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.run._trials import PAUSES_S
from penstock.run._turns import LEAST_UNITS, Turns

ROWS = 10


class Simulated:
    """Units of ten rows, one after the other, at a speed that depends on whether turns are taken."""

    def __init__(self, by_side: float, in_turn: float, cpus: float = 1.0) -> None:
        self.speeds, self.cpus = (by_side, in_turn), cpus
        self.incidents: list[str] = []
        self.turns = Turns(self.incidents)
        self.now_s = 100.0
        self.taken_s = 0.0
        """How long turns were taken, of all."""

    def run(self, seconds: float, *, has_more: Callable[[], bool] = lambda: True) -> None:
        ends_at = self.now_s + seconds
        while self.now_s < ends_at:
            unit_s = ROWS / self.speeds[self.turns.are_taken]
            self.now_s += unit_s
            self.taken_s += unit_s * self.turns.are_taken
            self.turns.note(ROWS, unit_s * self.cpus, self.now_s, has_more=has_more())


def test_turns_are_taken_where_they_are_faster() -> None:
    loader = Simulated(by_side=6000, in_turn=9000)
    loader.run(1.5)
    assert loader.turns.are_taken
    assert len(loader.incidents) == 1
    assert "is 1.5 times as fast" in loader.incidents[0]
    loader.taken_s = 0
    loader.run(100)
    assert loader.taken_s > 97  # the rest are trials
    assert len(loader.incidents) == 1


def test_turns_are_not_taken_where_they_are_slower_and_trials_become_rare() -> None:
    loader = Simulated(by_side=9000, in_turn=5000)
    loader.run(300)
    assert not loader.turns.are_taken
    assert loader.taken_s < 3
    before = loader.taken_s
    loader.run(PAUSES_S[1] - 1)
    assert loader.taken_s - before < 0.4
    assert not loader.incidents


def test_a_gain_of_some_per_cent_is_not_worth_it() -> None:
    loader = Simulated(by_side=9000, in_turn=9500)
    loader.run(20)
    assert not loader.turns.are_taken


@pytest.mark.parametrize("cpus", [0.2, 1.9])
def test_threads_that_wait_or_that_all_compute_are_not_tried(cpus: float) -> None:
    loader = Simulated(by_side=9000, in_turn=9000, cpus=cpus)
    loader.run(100)
    assert loader.taken_s == 0


def test_units_that_take_long_are_not_tried() -> None:
    loader = Simulated(by_side=ROWS * LEAST_UNITS, in_turn=ROWS * LEAST_UNITS * 2)
    loader.run(100)
    assert loader.taken_s == 0


def test_nothing_is_concluded_where_workers_are_idle() -> None:
    loader = Simulated(by_side=6000, in_turn=9000)
    loader.run(20, has_more=lambda: loader.now_s % 0.05 > 0.01)
    assert loader.taken_s == 0


def test_a_trial_that_is_cut_off_leaves_things_as_they_were() -> None:
    loader = Simulated(by_side=6000, in_turn=9000)
    while not loader.turns.are_taken:  # in the middle of a trial
        loader.run(0.01)
    loader.run(0.001, has_more=lambda: False)
    assert not loader.turns.are_taken
    loader.run(5)
    assert loader.turns.are_taken


def test_turns_are_given_up_when_what_functions_do_changes() -> None:
    loader = Simulated(by_side=6000, in_turn=9000)
    loader.run(5)
    assert loader.turns.are_taken
    loader.speeds, loader.cpus = (20_000.0, 10_000.0), 0.3
    loader.run(PAUSES_S[1] + 10)
    assert not loader.turns.are_taken


def test_a_turn_ends_the_wait_for_it_and_so_does_the_end() -> None:
    turns = Turns([])
    assert not turns.begin()  # nobody waits for anybody
    turns.trials.is_other = True
    assert turns.begin()
    got: list[bool] = []
    others = [threading.Thread(target=lambda: got.append(turns.begin())) for _ in range(2)]
    others[0].start()
    turns.give_back()
    others[0].join(30)
    assert got == [True]
    others[1].start()  # whose turn never comes: the other does not give it back
    turns.is_over = True
    others[1].join(30)
    assert got == [True, False]


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_batches_are_the_same_with_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, give_back = Turns.begin, Turns.give_back
    running: list[int] = [0, 0]  # now, and at most

    def in_turn(turns: Turns) -> bool:
        turns.trials.is_other = True
        is_turn = begin(turns)
        running[0] += is_turn
        running[1] = max(running)
        return is_turn

    def counted_back(turns: Turns) -> None:
        running[0] -= 1
        give_back(turns)

    monkeypatch.setattr(Turns, "begin", in_turn)
    monkeypatch.setattr(Turns, "give_back", counted_back)
    dataset = ps.range(400).map(square).shuffle(1).batch(8)
    with dataset.loader("inline") as inline, dataset.loader("threads", workers=4) as loader:
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in inline]
    assert running == [0, 1]


def square(x: Any) -> Any:
    return x * x


def test_functions_on_several_threads_are_watched_and_plain_reads_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Turns, "note", lambda turns, rows, cpu_s, now_s, has_more: seen.append(rows))
    plain = ps.range(40)
    for dataset, workers in ((plain, 2), (plain.map(square), 1)):
        with dataset.batch(8).loader("threads", workers=workers) as loader:
            list(loader)
    assert not seen
    with plain.map(square).batch(8).loader("threads", workers=2) as loader:
        list(loader)
    assert sum(seen) >= 32  # what is done last may be noted after the end
