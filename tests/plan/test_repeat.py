import math
from itertools import chain

import numpy as np
import pytest

import penstock as ps
from penstock.dataset import Dataset
from penstock.plan._node import Reorder
from penstock.plan._stream import Generate, StreamSource


def values(ds):
    return [int(x) for x in ds]


def test_round_r_of_epoch_e_is_epoch_e_times_k_plus_r_of_the_input():
    once, thrice = ps.range(6).shuffle(1), ps.range(6).shuffle(1).repeat(3)
    with once.loader(executor="inline") as short, thrice.loader(executor="inline") as long:
        rounds = [values(short) for _ in range(6)]
        epochs = [values(long) for _ in range(2)]
    assert epochs == [[*chain(*rounds[:3])], [*chain(*rounds[3:])]]
    assert len({tuple(each) for each in rounds}) == 6


def test_augmentation_is_fresh_in_each_round():
    ds = ps.from_arrays(np.zeros(4)).random_map(lambda x, rng: rng.random()).repeat(3)
    assert len({float(x) for x in ds}) == 12


def test_order_is_kept_where_the_shuffle_keeps_it():
    ds = ps.range(6).shuffle(1, reshuffle=False).repeat(2)
    assert values(ds)[:6] == values(ds)[6:]


def test_repeats_within_repeats_count_on():
    once = ps.range(5).shuffle(2)
    assert values(once.repeat(2).repeat(2)) == values(once.repeat(4))


def test_batches_cross_the_border_of_a_repeat():
    assert [b.tolist() for b in ps.range(3).repeat(2).batch(2)] == [[0, 1], [2, 0], [1, 2]]


@pytest.mark.parametrize("count", [1, 3, None])
def test_where_one_element_comes_from_is_what_is_said_of_many(count):
    node = ps.range(7).batch(3).repeat(count)._node
    for epoch in range(3):
        for index in range(3 * (count or 4)):
            assert node.demand_one(epoch, index) == Reorder.demand_one(node, epoch, index)


def test_repeat_of_nothing_and_no_times_is_empty():
    assert values(ps.range(5).repeat(0)) == []
    assert values(ps.range(0).repeat(3)) == []


def test_endless_dataset_is_indexed_far_out():
    ds = ps.range(3).repeat()
    assert ds.length == math.inf
    assert bool(ds)
    assert int(ds[10**15]) == 10**15 % 3
    with pytest.raises(TypeError):
        len(ds)


def test_positions_beyond_those_that_there_are_are_refused_and_not_an_overflow():
    endless, many = ps.range(3).repeat(), ps.range(3).repeat(2**63)
    assert int(endless[2**62 - 1]) == (2**62 - 1) % 3
    assert int(endless.skip(2**62 - 1)[0]) == (2**62 - 1) % 3
    assert many.length == 3 * 2**63
    assert values(many.take(4)) == [0, 1, 2, 0]
    assert endless.take(2**70).length == 2**70
    for ds, index in ((endless, 2**62), (endless, 2**70), (many, -1)):
        with pytest.raises(
            ps.ElementIndexError, match=rf"^Index {index} is too far off: positions go up to 2\*\*62 - 1"
        ):
            ds[index]
    with pytest.raises(ps.ArgumentError, match=rf"^\[{2**62}\] is not possible here: positions go up to 2\*\*62 - 1"):
        endless.skip(2**62)
    with pytest.raises(
        ps.ArgumentError, match=r"^shuffle\(\) puts fewer than 2\*\*62 elements in order.*before repeat"
    ):
        many.shuffle(1)


def test_rounds_of_an_endless_dataset_are_epochs_of_the_input():
    once = ps.range(6).shuffle(1)
    assert values(once.repeat().take(12)) == values(once.repeat(2))


# Rounds without an element.


def rounds(*counts):
    """A stream that has so many elements in each of its epochs, and then those of the last."""

    class Rounds(StreamSource):
        element_spec = ps.ArraySpec((), "int64")

        def iterate(self, epoch):
            return iter(range(counts[min(epoch, len(counts) - 1)]))

        def describe(self, index):
            return f"element {index} of rounds"

    return Dataset(Generate(Rounds(), "rounds", "train.py:41"))


def test_an_empty_round_is_left_out():
    ds = rounds(2, 0, 1, 0, 0, 3).repeat()
    assert ds.length == math.inf
    assert values(ds.take(7)) == [0, 1, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("before", [0, 1, 4])
def test_ten_empty_rounds_in_a_row_are_an_error_wherever_they_begin(before):
    few, many = rounds(*[1] * before, *[0] * 9, 1), rounds(*[1] * before, *[0] * 10, 1)
    assert values(few.repeat().take(before + 2)) == [0] * (before + 2)
    epoch = iter(many.repeat())
    assert [int(next(epoch)) for _ in range(before)] == [0] * before
    text = (
        rf"^repeat\(\) found no element in 10 rounds in a row, up to round {before + 9} of epoch 0: rounds at "
        r"train\.py:41 gave nothing, and repeat\(\) would read it for ever\. Let it keep some elements, or say how "
        r"often: repeat\(count\) ends with its last round\.$"
    )
    with pytest.raises(ps.SpecError, match=text):
        next(epoch)


def test_a_counted_repeat_may_have_empty_rounds_and_ends_with_its_last(caplog):
    assert values(rounds(2, 0, 1).repeat(3)) == [0, 1, 0]
    assert values(rounds(0).repeat(50)) == []
    assert not caplog.records


EMPTY = {
    "index": lambda: ps.range(9)[np.zeros(9, bool)],
    "map": lambda: ps.range(9)[np.zeros(9, bool)].shuffle(1).map(lambda x: x),
    "take": lambda: ps.range(9).take(0),
    "take of an endless one": lambda: ps.range(9).repeat().take(0),
    "batch": lambda: ps.range(3).batch(8, drop_remainder=True),
    "windows": lambda: ps.range(3).windows(8),
    "zip": lambda: ps.zip((ps.range(0), ps.range(3).repeat())),
    "a stream": lambda: ps.from_generator(lambda: iter(()), element_spec=ps.ArraySpec((), "int64"), length=0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_endless_repeat_of_nothing_is_refused(name):
    with pytest.raises(ps.SpecError, match=r"repeat\(\) gives elements without end, but .* has none"):
        EMPTY[name]().repeat()
    assert list(EMPTY[name]().repeat(3)) == []


def test_an_endless_repeat_of_a_kept_stream_without_elements_is_an_error_before_and_after_it_was_read():
    empty = ps.from_generator(lambda: iter(()), element_spec=ps.ArraySpec((), "int64")).cache(limit=999)
    repeated = empty.repeat()
    for _ in range(2):
        with pytest.raises(ps.SpecError, match=r"found no element in 10 rounds|without end, but .* has none"):
            next(iter(repeated))
        assert values(empty) == []


@pytest.mark.parametrize("parts", [np.zeros((3, 0)), np.zeros((3, 0, 2))], ids=["vectors", "matrices"])
def test_endless_elements_without_parts_are_an_error(parts):
    made = ps.from_generator(lambda: iter(parts), element_spec=ps.ArraySpec(parts.shape[1:], "float64"))
    for ds in (ps.from_arrays(parts), made):
        assert values(ds.unbatch()) == []
        with pytest.raises(ps.SpecError, match=r"unbatch\(\) would look for a part for ever: elements are"):
            next(iter(ds.repeat().unbatch()))


def test_endless_dataset_is_one_endless_epoch():
    with ps.range(4).shuffle(3).repeat().batch(3).loader() as loader:
        assert loader.length == math.inf
        iterator = iter(loader)
        found = [next(iterator).tolist() for _ in range(8)]
        assert loader.get_state()["epoch"] == 0
        assert loader.get_state()["position"] == 8
    assert [*chain(*found)] == values(ps.range(4).shuffle(3).repeat(6))


def test_an_endless_part_of_a_plan_has_other_rounds_in_another_epoch():
    shuffled = ps.range(4).shuffle(3).repeat()
    pairs = ps.zip((ps.range(8), shuffled))
    with pairs.loader(executor="inline") as loader:
        first, second = [[int(right) for _, right in loader] for _ in range(2)]
    assert first == [int(right) for _, right in pairs]
    assert first != second
    assert sorted(first) == sorted(second)


def test_split_of_a_repeat_is_refused_because_parts_would_share_elements():
    with pytest.raises(ps.ArgumentError, match=r"^split\(\) after repeat\(\) would put the same element into several"):
        ps.range(4).repeat(2).split(0.5, 0.5)
    assert len(ps.range(4).repeat(1).split(0.5, 0.5)) == 2
