"""Elements drawn by weights."""

import pickle

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes_exactly

WEIGHTS = [0, 1, 2, 5, 0, 8, 0]


def drawn(epoch=0, count=20_000, **options):
    ds = ps.range(7).sample(WEIGHTS, count=count, **options)
    with ds.batch(1000).loader(executor="inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": epoch})
        return np.concatenate(list(loader))


def test_elements_come_as_often_as_their_weights_say():
    counts = np.bincount(drawn(), minlength=7) / 20_000
    np.testing.assert_allclose(counts, np.array(WEIGHTS) / 16, atol=0.015)
    assert not (drawn() == drawn(epoch=1)).all()
    assert not (drawn() == drawn(seed=1)).all()
    assert (drawn() == drawn()).all()
    neighbours = np.mean(drawn()[1:] == drawn()[:-1])  # each is drawn alone
    assert abs(neighbours - np.sum(np.square(np.array(WEIGHTS) / 16))) < 0.02


def test_without_replacement_each_comes_once_and_heavy_ones_early():
    weights = np.where(np.arange(1000) < 500, 1.0, 9.0)
    weights[::10] = 0
    ds = ps.range(1000).sample(weights, replacement=False)
    order = [int(x) for x in ds]
    assert sorted(order) == np.flatnonzero(weights).tolist()
    heavy = np.array(order) >= 500
    assert heavy[:100].mean() > 0.8
    assert heavy[-100:].mean() < 0.2
    some = ps.range(1000).sample(weights, replacement=False, count=50)
    assert [int(x) for x in some] == order[:50]
    assert int(pickle.loads(pickle.dumps(ds))[7]) == order[7]


@pytest.mark.parametrize("replacement", [True, False])
def test_a_run_resumes_exactly(replacement):
    ds = ps.range(40).sample(np.arange(40), replacement=replacement).batch(6)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 3)])


def test_a_state_of_other_weights_is_refused():
    one, two = (ps.range(7).sample(w).batch(2) for w in (WEIGHTS, WEIGHTS[::-1]))
    with one.loader(executor="inline") as loader:
        state = loader.get_state()
    with two.loader(executor="inline") as other, pytest.raises(ps.StateError, match="sample"):
        other.set_state(state)


@pytest.mark.parametrize(
    ("weights", "options", "text"),
    [
        ([1, 2], {}, r"sample\(weights=\.\.\.\) needs a value for each element, shape \(7,\), got \(2,\)"),
        ([1, 2, 3, 4, 5, 6, -1], {}, "none below 0"),
        ([0] * 7, {}, "not all 0"),
        ([1, 2, 3, 4, 5, 6, np.inf], {}, "weights are finite"),
        (WEIGHTS, {"replacement": False, "count": 5}, "only 4 elements have a weight"),
    ],
)
def test_wrong_weights_are_refused(weights, options, text):
    with pytest.raises(ps.ArgumentError, match=text):
        ps.range(7).sample(weights, **options)


def test_streams_and_endless_datasets_are_refused():
    with pytest.raises(ps.ArgumentTypeError, match=r"sample\(\) needs random access"):
        ps.range(3).filter(lambda x: True).sample([1, 2, 3])
    with pytest.raises(ps.ArgumentError, match=r"sample\(\) needs a known number of elements"):
        ps.range(3).repeat().sample([1, 2, 3])
    with pytest.raises(ps.ArgumentError, match="wander"):
        ps.range(3).sample([1, 2, 3]).split(0.5, 0.5)
