"""Which parts are decoded, kept and dropped: tables of events and decisions."""

from collections.abc import Sequence

import numpy as np
import pytest

from penstock.run.parts._plan import PartPlan, Want

Batches = Sequence[Sequence[int]]


def plan_of(nbytes: Sequence[int], room: int, *, work: int = 0, most_loads: int = 2) -> PartPlan:
    return PartPlan(np.array(nbytes), np.full(len(nbytes), work), room, most_loads)


class Driver:
    """Runs batches one after the other, each of which ends at once; decodings end when a batch waits for them."""

    def __init__(self, plan: PartPlan, batches: Batches, *, sight: int = 100, is_wide: bool = False) -> None:
        self.plan = plan
        self.decoded: list[int] = []
        """Parts in the order in which they were decoded into a place."""
        self.alone: list[int] = []
        """Parts that batches decoded alone."""
        self.most = 0
        """The most memory of parts that were there."""
        coming = [[Want(part, is_wide) for part in parts] for parts in batches]
        for number, parts in enumerate(batches):
            while plan.sight_count < sight and coming:
                plan.want(coming.pop(0))
            loads = plan.loads()
            while not plan.is_ready:
                assert loads, f"batch {number} waits for nothing"
                for load in loads:
                    self.decoded.append(load.part)
                    plan.decoded(load.part, load.nbytes, is_there=True)
                loads = plan.loads()
            for load in loads:
                self.decoded.append(load.part)
                plan.decoded(load.part, load.nbytes, is_there=True)
            self.most = max(self.most, sum(plan._nbytes[part] for part in plan._there))
            self.alone += [part for part in parts if part not in plan._there]
            plan.begin(number)
            plan.end(number)


IN_ORDER = [[number // 4] for number in range(20)]
WINDOW = [sorted({number // 4, number // 4 + 1}) for number in range(16)]


@pytest.mark.parametrize(
    ("batches", "room", "decoded", "alone"),
    [
        (IN_ORDER, 20, [0, 1, 2, 3, 4], []),
        (IN_ORDER, 10, [0, 1, 2, 3, 4], []),
        (WINDOW, 20, [0, 1, 2, 3, 4], []),
        (WINDOW, 50, [0, 1, 2, 3, 4], []),
        ([[0], [1], [2], [0], [1], [2]], 30, [0, 1, 2], []),
        ([[0], [1], [2]], 30, [], [0, 1, 2]),  # nobody would share them
        ([[0, 1, 2, 3, 4]] * 4, 30, [0, 1, 2], [3, 4] * 4),  # a batch that wants more than there is room for
        ([[0, 1], [0, 2], [0, 3], [0, 4]], 10, [0], [1, 2, 3, 4]),
    ],
)
def test_each_part_is_decoded_once_as_far_as_there_is_room(batches, room, decoded, alone):
    driver = Driver(plan_of([10] * 5, room), batches)
    assert (driver.decoded, driver.alone) == (decoded, alone)
    assert driver.most <= room


def test_units_of_one_batch_share_a_part():
    driver = Driver(plan_of([10] * 3, 30), [[0], [1], [2]], is_wide=True)
    assert (driver.decoded, driver.alone) == ([0, 1, 2], [])


def test_a_part_that_is_larger_than_the_room_is_decoded_alone_and_the_others_are_not():
    driver = Driver(plan_of([10, 100, 10], 30), [[0, 1], [1, 2], [0, 2]])
    assert (driver.decoded, driver.alone) == ([0, 2], [1, 1])


def test_of_a_full_shuffle_over_more_parts_than_fit_half_stay():
    generator = np.random.default_rng(1)
    batches = [sorted(set(generator.integers(0, 20, 8).tolist())) for _ in range(300)]
    driver = Driver(plan_of([10] * 20, 100), batches, sight=40)
    uses = sum(map(len, batches))
    assert len(driver.decoded) + len(driver.alone) < 0.4 * uses, "LRU decodes half of them"
    assert driver.most <= 100


def test_the_parts_of_a_rare_source_do_not_displace_those_that_are_wanted_sooner():
    rare = [[0, 9] if number % 10 == 0 else [0] for number in range(40)]
    driver = Driver(plan_of([10] * 10, 10), rare, sight=5)
    assert driver.decoded == [0]
    assert driver.alone == [9] * 4


def test_decoding_takes_memory_too():
    plan = plan_of([10] * 4, 40, work=10, most_loads=4)
    for part in range(4):
        plan.want([Want(part, True)])
    assert [load.part for load in plan.loads()] == [0, 1], "each takes 20 while it is decoded"
    plan.decoded(0, 10, is_there=True)
    assert [load.part for load in plan.loads()] == []
    plan.decoded(1, 10, is_there=True)
    assert [load.part for load in plan.loads()] == [2]


def test_what_running_batches_read_stays():
    plan = plan_of([10] * 2, 10)
    for part in (0, 1):
        plan.want([Want(part, True)])
    (load,) = plan.loads()
    plan.decoded(load.part, 10, is_there=True)
    assert plan.is_ready
    plan.begin(7)
    assert (plan.loads(), plan.is_ready, plan.dropped) == ([], False, [])
    plan.end(7)
    assert [load.part for load in plan.loads()] == [1]
    assert plan.dropped == [0]


def test_a_part_that_cannot_be_decoded_is_left_to_those_that_need_it():
    plan = plan_of([10] * 2, 20)
    for _ in range(3):
        plan.want([Want(0, True)])
    (load,) = plan.loads()
    plan.decoded(load.part, 0, is_there=False)
    for number in range(3):
        assert (plan.loads(), plan.is_ready) == ([], True)
        plan.begin(number)


def test_a_part_that_is_larger_than_was_known_gets_a_larger_place():
    plan = plan_of([10, 10], 50)
    for _ in range(3):
        plan.want([Want(0, True)])
    assert [load.nbytes for load in plan.loads()] == [10]
    plan.decoded(0, 35, is_there=False)
    assert [load.nbytes for load in plan.loads()] == [35]
    plan.decoded(0, 35, is_there=True)
    assert plan.is_ready


def test_a_seek_keeps_what_is_there_and_what_is_under_way():
    plan = plan_of([10] * 3, 30)
    for part in (0, 1):
        plan.want([Want(part, True)])
    plan.loads()
    plan.decoded(0, 10, is_there=True)
    plan.begin_anew()
    plan.decoded(1, 10, is_there=True)
    for part in (1, 0, 2):
        plan.want([Want(part, True)])
    assert [load.part for load in plan.loads()] == [2]
    assert plan.is_ready


def test_places_are_taken_again():
    plan = plan_of([10, 20, 30, 10], 40)
    for part in (0, 1, 3):
        plan.want([Want(part, True)])
    assert [(load.part, load.place) for load in plan.loads()] == [(0, 0), (1, 10)]
    plan.decoded(0, 10, is_there=True)
    plan.decoded(1, 20, is_there=True)
    assert [(load.part, load.place) for load in plan.loads()] == [(3, 30)]
    plan.decoded(3, 10, is_there=True)
    for number in range(3):
        plan.begin(number)
        plan.end(number)
    plan.want([Want(2, True)])
    assert [(load.part, load.place) for load in plan.loads()] == [(2, 10)], "two neighbours went"


@pytest.mark.parametrize("room", [10, 25, 40, 70, 200])
@pytest.mark.parametrize("seed", range(10))
def test_every_batch_begins_whatever_the_order_and_the_sizes(seed, room):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 30, 12).tolist()
    batches = [sorted(set(generator.integers(0, 12, generator.integers(0, 6)).tolist())) for _ in range(60)]
    driver = Driver(plan_of(sizes, room, work=3), batches, sight=7, is_wide=bool(seed % 2))
    assert driver.most <= room
