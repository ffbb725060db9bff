"""Elements drawn by weights."""

import math
import pickle
from typing import Any

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
        ([1, 2, 3, 4, 5, 6, 10**400], {}, r"sample\(weights=\.\.\.\): int too large to convert to float"),
        (WEIGHTS, {"replacement": False, "count": 5}, "only 4 elements have a weight"),
    ],
)
def test_wrong_weights_are_refused(weights, options, text):
    with pytest.raises(ps.ArgumentError, match=text):
        ps.range(7).sample(weights, **options)


@pytest.mark.parametrize("weights", [list("1234567"), np.ones(7) + 2j, np.ones(7, "m8[s]"), [1, 2, 3, 4, 5, 6, {}]])
def test_weights_that_are_no_numbers_are_refused(weights):
    with pytest.raises(ps.ArgumentTypeError, match=r"weights are numbers, a float each, and "):
        ps.range(7).sample(weights)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("scale", [2.0**1019, 2.0**-1070])
def test_weights_of_any_size_draw_as_their_proportions_say(scale, replacement):
    weights = np.array([1.0, 2, 4, 0, 8, 1, 0])
    large, plain = (ps.range(7).sample(each, replacement=replacement) for each in (weights * scale, weights))
    assert [int(x) for x in large] == [int(x) for x in plain]


def test_streams_and_endless_datasets_are_refused():
    with pytest.raises(ps.ArgumentTypeError, match=r"sample\(\) needs random access"):
        ps.range(3).filter(lambda x: True).sample([1, 2, 3])
    with pytest.raises(ps.ArgumentError, match=r"sample\(\) needs a known number of elements"):
        ps.range(3).repeat().sample([1, 2, 3])
    with pytest.raises(ps.ArgumentError, match="wander"):
        ps.range(3).sample([1, 2, 3]).split(0.5, 0.5)


# Classes.

LABELS = np.array(["cat"] * 40 + ["dog"] * 7 + ["owl"] * 2 + ["bat"] * 15)


def animals() -> Any:
    return ps.from_arrays({"number": np.arange(64), "label": LABELS})


@pytest.mark.parametrize("balance", ["label", LABELS], ids=["leaf", "array"])
def test_balanced_classes_come_equally_often(balance: Any) -> None:
    with animals().sample(balance=balance, count=8000).batch(8000).loader("inline") as loader:
        (batch,) = loader
    _, counts = np.unique(batch["label"], return_counts=True)
    np.testing.assert_allclose(counts / 8000, 0.25, atol=0.02)
    owls = np.bincount(batch["number"], minlength=64)[47:49]  # within a class, all equally
    np.testing.assert_allclose(owls / owls.sum(), 0.5, atol=0.05)


def groups_of(ds: Any, size: int, epochs: int = 1) -> list[Any]:
    with ds.batch(size).loader("threads") as loader:
        return [{name: part.copy() for name, part in batch.items()} for _ in range(epochs) for batch in loader]


def test_each_batch_has_the_exact_number_of_each_class() -> None:
    groups = groups_of(animals().sample(balance="label", per_class=3), 12, epochs=2)
    assert len(groups) == 2 * 5
    for group in groups:
        assert group["label"].tolist() == ["bat"] * 3 + ["cat"] * 3 + ["dog"] * 3 + ["owl"] * 3
        assert len(set(group["number"].tolist())) == 12 - 1  # there are two owls
    assert not (groups[0]["number"] == groups[5]["number"]).all()


def test_all_of_a_class_come_before_one_comes_again() -> None:
    groups = groups_of(animals().sample(balance="label", per_class=2, count=8 * 20), 8)
    for label, size in (("cat", 40), ("dog", 7), ("bat", 15), ("owl", 2)):
        order = [int(n) for group in groups for n, name in zip(*group.values(), strict=True) if name == label]
        of_pass = size - size % 2
        for start in range(0, len(order) - of_pass + 1, of_pass):
            assert len(set(order[start : start + of_pass])) == of_pass
        assert set(order) == {i for i, name in enumerate(LABELS) if name == label}  # another one sits out each time


def test_numbers_may_differ_by_label() -> None:
    groups = groups_of(animals().sample(balance="label", per_class={"owl": 1, "cat": 6}), 7)
    assert len(groups) == 9
    assert all(group["label"].tolist() == ["owl"] + ["cat"] * 6 for group in groups)


def test_episodes_have_some_of_the_classes_each_equally_often() -> None:
    labels = np.repeat(np.arange(20), 30)
    ds = ps.from_arrays({"label": labels, "number": np.arange(600)}).sample(balance="label", per_class=5, class_count=6)
    episodes = groups_of(ds, 30, epochs=30)
    assert len(episodes) == 30 * 20
    seen = np.zeros(20, int)
    for episode in episodes:
        by_class = episode["label"].reshape(6, 5)
        assert (by_class == by_class[:, :1]).all()
        assert len(set(by_class[:, 0].tolist())) == 6
        assert len(set(episode["number"].tolist())) == 30
        seen[by_class[:, 0]] += 1
    np.testing.assert_allclose(seen / seen.sum(), 1 / 20, rtol=0.15)


@pytest.mark.parametrize("ways", [2, 5, 10, 3, 4, 7])
def test_classes_come_equally_often_exactly_where_their_count_divides(ways: int) -> None:
    labels = np.repeat(np.arange(10), 7)
    groups, round_count = 10 // ways, 300
    count = round_count * groups * ways
    ds = ps.from_arrays(labels).sample(balance=labels, per_class=1, class_count=ways, count=count).batch(count)
    rounds = ds[0].reshape(round_count, groups * ways)
    assert all(len(set(each)) == groups * ways for each in rounds.tolist())
    found = np.bincount(rounds.ravel(), minlength=10)
    if 10 % ways == 0:
        assert set(found.tolist()) == {round_count}
    else:  # some sit out each round, others each time
        assert abs(found / (count / 10) - 1).max() < 0.15


def test_an_element_of_balanced_groups_is_found_in_constant_time() -> None:
    labels = np.arange(1_000_000) % 1000
    ds = ps.range(1_000_000).sample(balance=labels, per_class=4, class_count=16, count=10**12)
    last = ds[10**12 - 64 :]
    assert [int(x) % 1000 for x in last][::4] == [int(x) % 1000 for x in last][3::4]
    assert len({int(x) for x in last}) == 64


@pytest.mark.parametrize("options", [{}, {"class_count": 3}])
def test_a_run_of_balanced_groups_resumes_exactly(options: Any) -> None:
    ds = animals().sample(balance="label", per_class=2, **options).batch(6)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 3)])


def test_states_tell_classes_and_numbers_apart() -> None:
    ways = [{"per_class": 2}, {"per_class": 3}, {"per_class": 2, "class_count": 2}, {"per_class": {"cat": 2}}, {}]
    plans = set()
    for options in ways:
        with animals().sample(balance="label", count=24, **options).loader("inline") as loader:
            plans.add(loader.get_state()["plan"])
    with animals().sample(balance=LABELS[::-1], count=24, per_class=2).loader("inline") as loader:
        plans.add(loader.get_state()["plan"])
    assert len(plans) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sample\(\) draws by weights, sample\(weights\), or by class, sample\(balance=labels\)\."),
        ({"weights": "number", "balance": "label"}, r"draws by weights, .* or by class"),
        ({"weights": "number", "per_class": 2}, r"sample\(per_class=, class_count=\) are for sample\(balance=labels\)"),
        ({"balance": "label", "class_count": 2}, r"sample\(class_count=\) needs the number of elements of each"),
        ({"balance": "label", "per_class": 2**70}, r"it must be at most 2,147,483,648\."),
        ({"balance": "label", "per_class": 0}, r"sample\(per_class=0\): it must be at least 1\."),
        ({"balance": "label", "per_class": 1.5}, r"sample\(per_class=1\.5\): an integer is needed, not a float"),
        ({"balance": "label", "per_class": 1, "class_count": 5}, r"sample\(class_count=5\): there are 4 classes\."),
        ({"balance": "label", "per_class": {"cow": 1}}, r"no element has the label 'cow'; there are \['bat', 'cat', "),
        ({"balance": [0, 1] * 32, "per_class": {"cat": 1}}, r"there are \[0, 1\]\. Labels are numbers here\."),
        ({"balance": "label", "per_class": {}}, r"sample\(per_class=\{\}\) names no class\."),
        ({"balance": "label", "per_class": {"cat": 1}, "class_count": 1}, r"the labels say which classes\."),
        ({"balance": "label", "per_class": 1, "replacement": False}, r"a class that has no element left begins again"),
        ({"balance": LABELS[:3], "per_class": 1}, r"sample\(balance=\.\.\.\) needs a value for each element"),
        ({"balance": "kind", "per_class": 1}, r"sample\(balance='kind'\): elements have no such leaf"),
    ],
    ids=str,
)
def test_classes_without_a_meaning_are_refused(options: Any, message: str) -> None:
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError), match=message):
        animals().sample(**options)


def test_classes_of_nothing_are_refused() -> None:
    with pytest.raises(ps.ArgumentError, match=r"the dataset is empty, so it has no classes"):
        ps.range(0).sample(balance=[], per_class=1)


@pytest.mark.parametrize("how", [{"weights": [1, 2]}, {"balance": [0, 1]}, {"balance": [0, 1], "per_class": 1}])
def test_what_is_drawn_is_known_to_come_from_anywhere(how: dict[str, Any]) -> None:
    assert ps.range(2).sample(**how)._node.spread == math.inf


def test_a_draw_makes_no_pass_over_all_weights(monkeypatch):
    weights = ps.range(7).sample(WEIGHTS)._node.weights
    first = weights.drawn(np.arange(9), 0, 0).tolist()
    monkeypatch.setattr(np, "flatnonzero", None)
    monkeypatch.setattr(np, "cumsum", None)
    assert weights.drawn(np.arange(9), 0, 0).tolist() == first
