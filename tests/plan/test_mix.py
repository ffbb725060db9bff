"""Datasets mixed in proportions, which may change at some elements."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes_exactly
from tests.strategies import mixed

INT64 = ps.ArraySpec((), "int64")


def numbered(count: int, length: int | None = None) -> list[ps.Dataset]:
    """Datasets whose elements say which it is, and which element."""
    return [ps.from_arrays(np.arange(length or 20_000) * 10 + number) for number in range(count)]


def values(ds: ps.Dataset) -> np.ndarray:
    with ds.batch(2048).loader("inline") as loader:
        return np.concatenate(list(loader))


def inputs(ds: ps.Dataset) -> np.ndarray:
    return values(ds) % 10


STAGES = {0: [9, 1, 0], 2500: [1, 1, 1], 5000: [0, 0, 1], 6000: [1, 2, 3]}


def test_weights_change_at_an_element_and_shares_are_exact_in_whole_blocks() -> None:
    found = inputs(ps.mix(numbered(3), STAGES, seed=3).take(6000 + 1024))
    parts = [found[:1024], found[:2500], found[2500:5000], found[5000:6000], found[6000:]]
    counts = [np.bincount(part, minlength=3).tolist() for part in parts]
    assert [counts[0], *counts[3:]] == [[922, 102, 0], [0, 0, 1000], [171, 341, 512]]
    # The last block before a change is cut off, so its shares are as even as its order is.
    assert np.abs(np.subtract(counts[1:3], [[2250, 250, 0], [833, 833, 833]])).max() < 12
    assert found.tolist() == list(itertools.islice(mixed({k: tuple(w) for k, w in STAGES.items()}, 3), 6000 + 1024))


def test_each_dataset_goes_on_where_it_was_when_weights_change() -> None:
    found = values(ps.mix(numbered(3), STAGES, seed=3).take(8000))
    for number in range(3):
        mine = found[found % 10 == number] // 10
        np.testing.assert_array_equal(mine, np.arange(len(mine)))


def test_a_far_element_after_many_changes_is_found_by_arithmetic() -> None:
    parts = [ps.from_arrays(np.full(10, number)).repeat() for number in (0, 1)]
    ds = ps.mix(parts, {1000 * k: [k + 1, 1] for k in range(300)}, seed=1)
    assert 0 < values(ds[10**15 : 10**15 + 1024 * 2]).sum() < 20
    assert "299000" not in str(ds)  # not all of the weights
    assert ds.length == math.inf


NOTHING = (
    r"dataset 1, .*, has no element\. A mix ends at the turn of an exhausted dataset, here after %s\. Leave it out"
)


def test_a_dataset_without_elements_that_has_a_turn_is_refused() -> None:
    many, none = ps.range(1000), ps.range(1000)[np.zeros(1000, bool)]
    for parts in ([many, none], [many.repeat(), none.shuffle(1)], [many.filter(bool), none]):
        with pytest.raises(ps.SpecError, match=NOTHING % "1 element"):
            ps.mix(parts, [9, 1])
    with pytest.raises(ps.SpecError, match=NOTHING % "500 elements"):
        ps.mix([many, none], {0: [1, 0], 500: [0, 1]})
    # Its weight is too small for a turn.
    assert len(ps.mix([many, none], [10**6, 1])) == 1000
    assert len(ps.mix([many, many, none], {0: [1, 1, 0], 300: [1, 1, 1e-9]})) > 1990


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_stream_without_elements_is_an_error_at_its_first_turn(executor) -> None:
    for stream in (
        ps.range(9).filter(lambda x: x > 9),
        ps.from_generator(lambda: iter(()), element_spec=INT64),
        ps.range(9).flat_map(lambda _: [], element_spec=INT64),
    ):
        mixed = ps.mix([ps.range(1000), stream], [9, 1])
        assert mixed.length is None
        with pytest.raises(ps.SpecError, match=NOTHING % "1 element"):
            list(mixed)
        with mixed.batch(1).loader(executor=executor) as loader, pytest.raises(ps.SpecError, match="has no element"):
            list(loader)
    # One that ends later ends the mix.
    assert 0 < len(list(ps.mix([ps.range(1000), ps.range(9).filter(lambda x: x > 4)], [9, 1]))) < 100


def test_a_mix_ends_where_an_exhausted_dataset_has_its_turn_in_any_stage() -> None:
    one, two = ps.from_arrays(np.zeros(100, int)), ps.from_arrays(np.ones(50, int))
    for stages in ({0: (1, 1), 60: (0, 1)}, {0: (1, 1), 60: (1, 0)}, {0: (0, 1), 40: (1, 0)}, {0: (3, 1), 9: (1, 9)}):
        left, length = [100, 50], 0
        for number in mixed(stages, 0):
            left[number] -= 1
            if left[number] < 0:
                break
            length += 1
        assert len(ps.mix([one, two], stages)) == length == len(list(ps.mix([one, two], stages)))
    assert ps.mix([one, two.repeat()], {0: [1, 1], 60: [0, 1]}).length == math.inf
    assert ps.mix([one, ps.from_generator(range, 9, element_spec=INT64)], {0: [1, 1], 60: [1, 0]}).length is None


def test_a_stream_is_mixed_by_the_same_stages() -> None:
    streams = [ps.from_generator(range, k, 10 * 900, 10, element_spec=INT64) for k in range(3)]
    random = ps.mix(numbered(3, 900), STAGES, seed=5)
    assert values(ps.mix(streams, STAGES, seed=5)).tolist() == values(random).tolist()


def test_a_run_over_a_change_of_weights_resumes_exactly() -> None:
    ds = ps.mix(numbered(2, 90), {0: [1, 1], 7: [3, 1], 30: [0, 1]}, seed=2).batch(6)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])


def test_a_weight_that_is_too_small_for_any_turn_is_said(caplog: pytest.LogCaptureFixture) -> None:
    large, small = ps.range(9), ps.range(9)
    for weights in ([10**6, 400], {0: [1, 0], 99: [10**6, 400]}):
        assert not (values(ps.mix([large, small.map(lambda x: x + 100)], weights).take(9)) > 99).any()
    assert [text.split(":")[0] for text in caplog.messages] == [
        "Dataset 1 of mix([1000000, 400]) never has its turn",
        "Dataset 1 of mix({0",
    ]
    caplog.clear()
    ps.mix([large, small], [10**6, 1000])
    ps.mix([large, small], {0: [1, 1], 99: [1, 0]})
    ps.mix([large, small], [10**6, 1], temperature=3)
    assert not caplog.messages


def test_states_tell_stages_apart() -> None:
    ways: list[Any] = [[1, 1], {0: [1, 1], 50: [1, 2]}, {0: [1, 1], 51: [1, 2]}, {0: [1, 1], 50: [1, 3]}, {0: [1, 1]}]
    plans = []
    for weights in ways:
        with ps.mix(numbered(2), weights).loader("inline") as loader:
            plans.append(loader.get_state()["plan"])
    assert len(set(plans)) == 4
    assert plans[0] == plans[4]  # the same thing


def test_parts_of_a_mix_of_windows_share_nothing_across_a_change_of_weights() -> None:
    parts = [ps.from_arrays(np.arange(start, start + 200)).windows(4) for start in (0, 1000)]
    ds = ps.mix(parts, {0: [1, 1], 30: [0, 1], 60: [1, 1], 100: [1, 3]}, seed=2)
    for cut in (10, 29, 31, 61, 90):
        train, val = ds.split(cut, len(ds) - cut)
        used, other = ({int(x) for window in part for x in window} for part in (train, val))
        assert not used & other
        assert len(val) > 50


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1, [900, 90, 10]), (2, [703, 223, 74]), (1e9, [334, 333, 333]), (0.5, [990, 10, 0])]
)
def test_a_temperature_brings_shares_closer_to_each_other(temperature: float, shares: list[int]) -> None:
    ds = ps.mix(numbered(3), {0: [900, 90, 10], 1024: [1, 1, 1]}, temperature=temperature)
    found = np.bincount(inputs(ds.take(1024)), minlength=3)
    weights = np.array([900, 90, 10]) ** (1 / temperature)
    assert np.abs(found - weights / weights.sum() * 1024).max() < 1
    assert np.abs(found / 1.024 - shares).max() <= 1
    assert f"temperature={temperature:g}" in str(ds) or temperature == 1


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({5: [1, 1]}, {}, r"by the element from which they hold, and element 0 has none; there are \[5\]\."),
        ({}, {}, r"element 0 has none; there are \[\]\."),
        ({0: [1, 0], 9: [1, 0]}, {}, r"dataset 1 has weight 0 in all of them\. Leave it out\."),
        ({0: [1, 1], 9: [0, 0]}, {}, r"mix\(weights=\[0, 0\]\): one of them is above zero\."),
        ({0: [1, -1]}, {}, r"mix\(weights=\[1, -1\]\): -1 is not a number above zero\."),
        ({0: [1]}, {}, r"mix\(\) got 2 datasets and 1 weights\."),
        ({0: 1}, {}, r"mix\(weights=\) got a dict"),
        ({0.5: [1, 1]}, {}, r"mix\(weights=0\.5\): an integer is needed, not a float"),
        ({-1: [1, 1]}, {}, r"mix\(weights=-1\): it must be at least 0\."),
        ([1, 0], {}, r"mix\(weights=\[1, 0\]\): 0 is not a number above zero\."),
        ([1, 1], {"temperature": 0}, r"mix\(temperature=0\): it is a number above zero; 1 keeps the weights\."),
        ([1, 1], {"temperature": "hot"}, r"mix\(temperature='hot'\): it is a number above zero"),
        ([1, 1], {"temperature": math.inf}, r"mix\(temperature=inf\)"),
    ],
    ids=str,
)
def test_weights_without_a_meaning_are_refused(weights: Any, options: Any, message: str) -> None:
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError), match=message):
        ps.mix([ps.range(9), ps.range(9)], weights, **options)
