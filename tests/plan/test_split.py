import itertools
import logging
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

import penstock as ps


def values(ds):
    return [int(x) for x in ds]


def frames_of(part):
    """Which elements below any window of a part is made of."""
    return {int(frame) for window in part for frame in np.ravel(window)}


def test_parts_are_ranges_in_order_and_leave_nothing_out():
    train, val, test = ps.range(10).split(0.6, 0.2, 0.2)
    assert values(train) + values(val) + values(test) == list(range(10))
    assert [len(part) for part in (train, val, test)] == [6, 2, 2]


@given(st.integers(0, 10**6), st.lists(st.integers(0, 100), min_size=1, max_size=6).filter(sum))
def test_part_k_ends_at_the_rounded_sum_of_the_first_k_fractions(count, shares):
    # In hundredths of hundreds: decimals as a user writes them, whose sum may be below 1.
    parts = [share / 1000 for share in shares]
    ends, found = [], 0
    for part in ps.range(count).split(*parts):
        found += len(part)
        ends.append(found)
    sums = [Fraction(sum(shares[: k + 1]), 1000) for k in range(len(shares))]
    assert ends == [math.floor(count * total + Fraction(1, 2)) for total in sums]


@pytest.mark.parametrize(
    ("count", "parts", "lengths"),
    [
        (10, (0.25, 0.75), (3, 7)),
        (10, (0.1, 0.2, 0.7), (1, 2, 7)),
        (10, (0.7, 0.2, 0.1), (7, 2, 1)),
        (10, (1 / 3, 1 / 3, 1 / 3), (3, 4, 3)),
        (10, (0.33, 0.33, 0.34), (3, 4, 3)),
        (10**18 + 1, (0.9, 0.1), (9 * 10**17 + 1, 10**17)),
        (10, (1.0,), (10,)),
        (10, (0.5, 0.2), (5, 2)),
        (10, (0.0, 1.0), (0, 10)),
        (0, (0.5, 0.5), (0, 0)),
        (10, (7, 3), (7, 3)),
        (10, (3, 3), (3, 3)),
        (10, (np.int64(4), np.int32(6)), (4, 6)),
        (10, (np.float64(0.5), np.float32(0.5)), (5, 5)),
        (10, (0.5, 0), (5, 0)),
    ],
    ids=str,
)
def test_lengths_of_parts(count, parts, lengths):
    assert tuple(len(part) for part in ps.range(count).split(*parts)) == lengths


@pytest.mark.parametrize("seed", [0, 1, -5])
def test_seed_deals_elements_at_random_and_each_once(seed):
    train, test = ps.range(50).split(0.8, 0.2, seed=seed)
    assert sorted(values(train) + values(test)) == list(range(50))
    assert values(train) != list(range(40))
    assert values(train) == values(ps.range(50).split(0.8, 0.2, seed=seed)[0])
    with train.loader(executor="inline") as loader:
        assert values(loader) == values(loader)


@given(
    st.lists(st.integers(0, 6), max_size=80),
    st.lists(st.integers(0, 10), min_size=1, max_size=5).filter(sum),
    st.sampled_from([None, 0, 7]),
)
def test_each_part_has_its_share_of_each_class_of_what_is_left(classes, shares, seed):
    fractions = [share / 10 / max(1, math.ceil(sum(shares) / 10)) for share in shares]
    ds = ps.range(len(classes))
    parts = [values(part) for part in ds.split(*fractions, stratify=classes, seed=seed)]
    assert [len(part) for part in parts] == [len(part) for part in ds.split(*fractions)]
    left = set(range(len(classes)))
    for part in parts:
        assert part == sorted(part)
        for label in {classes[i] for i in left}:
            of_class = [i for i in left if classes[i] == label]
            due = Fraction(len(of_class) * len(part), len(left))
            found = [i for i in part if classes[i] == label]
            assert math.floor(due) <= len(found) <= math.ceil(due)
            if seed is None:
                assert found == sorted(of_class)[: len(found)]
        assert left.issuperset(part)
        left -= set(part)


def test_classes_are_dealt_by_the_seed_alone():
    labels = np.array(["cat", "dog"] * 40 + ["owl"] * 20)
    (train, test), again, other = (ps.range(100).split(0.8, 0.2, stratify=labels, seed=seed) for seed in (1, 1, 2))
    assert values(test) == values(again[1]) != values(other[1])
    assert np.unique(labels[values(test)], return_counts=True)[1].tolist() == [8, 8, 4]
    assert values(train) != values(ps.range(100).split(0.8, 0.2, stratify=labels)[0])
    assert [int(x) for x in train.batch(80)[0]] == values(train)


def test_of_classes_of_one_element_each_part_has_some_at_random():
    found = [values(ps.range(10).split(8, 2, stratify=np.arange(10), seed=seed)[1]) for seed in range(60)]
    assert {len(each) for each in found} == {2}
    assert set(itertools.chain(*found)) == set(range(10))


def test_groups_stay_together():
    labels = np.array(["b", "a", "c", "a", "b", "c", "d", "d", "d", "d"])
    for seed in (None, 0, 1, 2):
        parts = ps.range(10).split(0.5, 0.5, groups=labels, seed=seed)
        found = [set(labels[values(part)]) for part in parts]
        assert not found[0] & found[1]
        assert sorted(values(parts[0]) + values(parts[1])) == list(range(10))
        assert all(values(part) == sorted(values(part)) for part in parts)


def test_groups_without_a_seed_go_in_the_order_of_their_first_element():
    labels = [3, 3, 1, 1, 2, 2]
    assert [values(part) for part in ps.range(6).split(2, 4, groups=labels)] == [[0, 1], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    "windows",
    [
        lambda ds: ds.windows(4),
        lambda ds: ds.windows(4, shift=3),
        lambda ds: ds.windows(3, stride=5),
        lambda ds: ds.windows(2).windows(3),
        lambda ds: ds.windows(3).map(np.negative).batch(2),
        lambda ds: ds.windows(4)[::2],
        lambda ds: ds.windows(4)[::-1],
        lambda ds: ds.windows(3, groups=np.arange(120) // 25),
        lambda ds: ps.concatenate([ds[:50].windows(3), ds[50:].windows(3)]),
        lambda ds: ps.concatenate([ds[:90].windows(3), ds[90:].windows(3)]),
        lambda ds: ps.interleave([ds[:30].windows(3), ds[30:].windows(3)]),
        lambda ds: ds.windows(4, groups=np.arange(120) // 20).split(51, 51, groups=np.arange(102) // 17 % 2)[0],
        lambda ds: ds.windows(3).batch(4, drop_remainder=True).unbatch(),
        lambda ds: ps.zip({"x": ds.windows(3), "y": ds.windows(3)}).map(lambda e: e["x"] + 0 * e["y"]),
        lambda ds: ps.mix([ds[:50].windows(3), ds[50:].windows(3)], [3, 2], seed=1),
        lambda ds: ds.windows(4, groups=np.arange(120) // 7).padded_batch(2),
    ],
    ids=["plain", "shift", "stride", "nested", "batched", "every second", "backwards", "groups", "concatenated",
         "concatenated unevenly", "interleaved", "split before", "unbatched", "zipped", "mixed", "padded"],
)  # fmt: skip
@pytest.mark.parametrize("parts", [(0.6, 0.2, 0.2), (0.5, 0.5), (0.1, 0.9), (0.73, 0.04, 0.23)], ids=str)
def test_parts_of_windows_share_nothing_underneath(windows, parts):
    found = [frames_of(part) for part in windows(ps.range(120)).split(*parts)]
    assert found[0]
    assert sum(map(len, found)) == len(set().union(*found))


def test_parts_of_windows_share_nothing_beside_an_endless_dataset():
    def count():
        yield from itertools.count(1000)

    def endless():
        return ps.from_generator(count, element_spec=ps.ArraySpec((), "int64"), length=math.inf).windows(3)

    for join in (ps.interleave, ps.concatenate, lambda datasets: ps.mix(datasets, [1, 1])):
        found = [frames_of(part) for part in join([ps.range(20).windows(3), endless()]).take(30).split(0.3, 0.4, 0.3)]
        assert all(found)
        assert sum(map(len, found)) == len(set().union(*found))


@pytest.mark.parametrize(("count", "is_told"), [(3000, True), (100, False)])
def test_counts_that_look_like_per_cent_are_told(count, is_told, caplog):
    parts = ps.range(count).split(80, 20)
    assert [len(part) for part in parts] == [80, 20]
    assert (
        "leaves out the other 2900 of 3000. If these are per cent, write split(0.8, 0.2)." in caplog.text
    ) == is_told


@pytest.mark.parametrize(("parts", "is_told"), [((0.75,), True), ((0.5, 0.25), False), ((3,), False)])
def test_a_lone_fraction_is_told_to_be_one_part(parts, is_told, caplog):
    assert len(ps.range(8).split(*parts)) == len(parts)
    assert ("For both, write split(0.75, 0.25)." in caplog.text) == is_told


def test_later_parts_lose_their_first_windows_and_the_log_says_how_many(caplog):
    caplog.set_level(logging.INFO, "penstock")
    train, test = ps.range(20).windows(4).split(10, 7)
    assert (len(train), len(test)) == (10, 4)
    assert test[0].tolist() == [13, 14, 15, 16]
    assert "left out 3 windows after position 10" in caplog.text


def test_windows_that_do_not_overlap_lose_none():
    train, test = ps.range(20).windows(4, shift=4).split(0.6, 0.4)
    assert (len(train), len(test)) == (3, 2)


def test_windows_are_split_between_groups_without_a_loss():
    groups = np.arange(40) // 10
    train, test = ps.range(40).windows(4, groups=groups).split(14, 14)
    assert (len(train), len(test)) == (14, 14)


def test_pairs_made_by_zip_of_slices_share_the_border_frame():
    frames = ps.range(11)
    first, second = ps.zip((frames[:-1], frames[1:])).split(0.5, 0.5)
    assert first[-1] == (4, 5)
    assert second[0] == (5, 6)


@pytest.mark.parametrize("groups", [None, [0] * 3 + [1] * 5])
def test_overlapping_windows_are_not_dealt_at_random(groups):
    ds = ps.range(8).windows(3, groups=groups)
    with pytest.raises(ps.ArgumentError, match="would deal overlapping windows to different parts"):
        ds.split(0.5, 0.5, seed=1)
    assert len(ds.split(0.5, 0.5, groups=np.zeros(len(ds)), seed=1)[0]) in (0, len(ds))


def test_windows_that_were_shuffled_are_not_split():
    with pytest.raises(ps.ArgumentError, match=r"after shuffle\(\) of overlapping windows"):
        ps.range(8).windows(3).shuffle(1, reshuffle=False).split(0.5, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "scattered"),
    [
        ("interleave", lambda ds: ps.interleave([ds[:20].windows(3), ds[20:].windows(3)], block_length=2)),
        ("interleave", lambda ds: ps.interleave([ds[:20].windows(3), ds[20:].windows(3)], cycle_length=1).take(20)),
        ("shuffle", lambda ds: ds.windows(3).shuffle(1, reshuffle=False).materialize("kept")),
        ("flat_map", lambda ds: ds.windows(3).flat_map(lambda x: [x, x]).materialize("kept")),
        ("bucket_by_length", lambda ds: ds.windows(3).bucket_by_length(np.sum, [50], [2, 2]).materialize("kept")),
    ],
    ids=["blocks", "cycle", "kept", "flat", "buckets"],
)
def test_windows_that_may_be_anywhere_are_not_split(verb, scattered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ds = scattered(ps.range(40))
    with pytest.raises(ps.ArgumentError, match=rf"after {verb}\(\) of overlapping.* Put split\(\) before {verb}\(\)"):
        ds.split(0.5, 0.5)


def test_what_is_repeated_is_not_split_when_it_is_kept_either(tmp_path):
    with pytest.raises(ps.ArgumentError, match="after repeat"):
        ps.range(8).repeat(2).materialize(tmp_path).split(0.5, 0.5)


def test_groups_that_cut_through_overlapping_windows_are_refused():
    ds = ps.range(8).windows(3)
    with pytest.raises(
        ps.ArgumentError, match=r"elements 2 and 3 are of different parts, but share data.*windows\(groups="
    ):
        ds.split(0.5, 0.5, groups=[0, 0, 0, 1, 1, 1])


def test_groups_of_the_windows_themselves_are_a_right_split():
    labels = np.arange(40) // 10
    ds = ps.range(40).windows(3, groups=labels)
    parts = ds.split(0.5, 0.5, groups=np.arange(32) // 8, seed=3)
    found = [frames_of(part) for part in parts]
    assert not found[0] & found[1]


def test_dataset_that_is_shuffled_anew_each_epoch_is_not_split():
    for ds in (ps.range(9).shuffle(1), ps.range(9).shuffle(1).map(np.negative).batch(2)):
        with pytest.raises(ps.ArgumentError, match="Split first and shuffle each part"):
            ds.split(0.5, 0.5)
    assert len(ps.range(9).shuffle(1, reshuffle=False).split(0.5, 0.5)[0]) == 5


def test_split_of_a_split():
    rest, test = ps.range(100).split(0.8, 0.2)
    train, val = rest.split(0.75, 0.25)
    assert values(train) + values(val) + values(test) == list(range(100))


def test_split_of_10_to_the_12_elements_holds_none_of_them():
    train, test = ps.range(10**12).split(0.9, 0.1, seed=3)
    assert len(train) == 9 * 10**11
    assert int(train[5]) != int(test[5])


def named(label):
    return {"label": f"class {label}", "x": 0.0}


named.releases_gil = True  # it runs on threads, which start at once
LABELLED = {"x": np.zeros((12, 3)), "label": np.arange(12) % 3}


@pytest.mark.parametrize(
    ("dataset", "leaf"),
    [
        (ps.from_arrays(LABELLED), "label"),
        (ps.from_arrays(LABELLED).shuffle(3, reshuffle=False)[2:], "label"),
        (ps.from_arrays((LABELLED["x"], LABELLED["label"])), 1),
        (ps.from_arrays((LABELLED["x"], LABELLED["label"])), -1),
        (ps.from_arrays(LABELLED["label"]).map(named), "label"),
    ],
    ids=["arrays", "order", "tuple", "last", "function"],
)
def test_labels_may_be_a_leaf(dataset, leaf):
    labels = np.array([element[leaf] for element in dataset])
    for options in ({"stratify": leaf, "seed": 5}, {"groups": leaf}):
        want = dataset.split(0.5, 0.5, **{name: labels if value is leaf else value for name, value in options.items()})
        for part, expected in zip(dataset.split(0.5, 0.5, **options), want, strict=True):
            assert [x[leaf] for x in part] == [x[leaf] for x in expected]
    assert len(dataset.cast(None).windows(2, groups=leaf)) == len(dataset.windows(2, groups=labels))


def test_a_leaf_is_read_without_the_others():
    class Blind(ps.Source):
        element_spec = ps.ArraySpec((3,), "float32")

        def __len__(self):
            return 4

        def read_into(self, indices, out):
            raise AssertionError("read")

    both = ps.zip({"x": ps.from_source(Blind()), "label": ps.from_arrays(np.array([0, 0, 1, 1]))})
    train, _ = both.split(0.5, 0.5, stratify="label")
    assert len(train) == 2


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda ds: ds.split(0.5, 0.5, stratify="klass"),
            r"split\(stratify='klass'\): elements have no such leaf. They",
        ),
        (
            lambda ds: ds.split(0.5, 0.5, groups="x"),
            r"split\(groups='x'\): a label or length is one number or text, and this leaf",
        ),
        (lambda ds: ds.windows(2, groups=3), r"windows\(groups=3\): elements have no such leaf"),
        (
            lambda ds: ds.shuffle(1).windows(2, groups="label"),
            r"reads the labels of epoch 0, and shuffle\(seed=1\) before it",
        ),
    ],
)
def test_leaves_that_are_no_labels_are_refused(use, text):
    with pytest.raises(ps.ArgumentError, match=text):
        use(ps.from_arrays(LABELLED))


def test_a_part_that_no_group_fits_is_reported(caplog):
    groups = np.repeat(np.arange(6), 20)
    assert [len(part) for part in ps.range(120).split(5, 1, groups=groups)] == [0, 0]
    assert "split(5, 1, groups=...) leaves part 0 empty: groups stay whole" in caplog.text
    caplog.clear()
    assert [len(part) for part in ps.range(120).split(0.5, 0.5, groups=groups)] == [60, 60]
    assert not caplog.text
