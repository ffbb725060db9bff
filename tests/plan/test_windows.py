import math

import numpy as np
import pytest

import penstock as ps
from penstock.lower._copies import CopyPlan
from penstock.lower._rewrite import with_rows
from penstock.testing import CountingSource, assert_resumes_exactly


def lists(ds):
    return [x.tolist() for x in ds]


def test_windows_are_neighbours():
    assert lists(ps.range(5).windows(3)) == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_shift_is_from_window_to_window_and_stride_within_one():
    assert lists(ps.range(10).windows(3, shift=4)) == [[0, 1, 2], [4, 5, 6]]
    assert lists(ps.range(8).windows(3, stride=2, shift=2)) == [[0, 2, 4], [2, 4, 6]]


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (2, 0), (3, 1), (4, 2)])
def test_windows_that_do_not_fit_are_left_out(count, expected):
    assert len(ps.range(count).windows(3)) == expected


def test_no_window_crosses_a_group():
    ds = ps.range(9).windows(2, groups=["a"] * 3 + ["b"] + ["a"] * 2 + ["c"] * 3)
    assert lists(ds) == [[0, 1], [1, 2], [2, 4], [4, 5], [6, 7], [7, 8]]
    assert lists(ds.batch(6))[0] == lists(ds)
    assert ds[4].tolist() == [6, 7]


def test_shift_starts_anew_in_each_group():
    assert lists(ps.range(9).windows(2, shift=2, groups=[0] * 5 + [1] * 4)) == [[0, 1], [2, 3], [5, 6], [7, 8]]


@pytest.mark.parametrize(
    "labels",
    [
        [np.nan, np.nan, 1.0, 1.0],
        np.array(["NaT", "NaT", "2026-01-01", "2026-01-01"], "M8[D]"),
        [None, None, "a", "b"],
        np.array([None, float("nan"), 1, 2], object),
    ],
    ids=["nan", "NaT", "None", "objects"],
)
def test_labels_that_are_no_value_are_refused(labels):
    for use in (
        lambda: ps.range(4).windows(2, groups=labels),
        lambda: ps.range(4).split(0.5, 0.5, groups=labels),
        lambda: ps.range(4).split(0.5, 0.5, stratify=labels),
        lambda: ps.range(4).sample(balance=labels),
    ):
        with pytest.raises(
            ps.ArgumentError, match=r"=\.\.\.\) has the label (nan|NaT|None) for element 0, and 2 such in all"
        ):
            use()


def test_groups_of_a_stream_are_refused_for_that():
    with pytest.raises(ps.ArgumentTypeError, match=r"windows\(groups=\) needs random access, but filter\(bool\)"):
        ps.range(4).filter(bool).windows(2, groups=[0, 0, 1, 1])


def test_groups_too_short_for_a_window_give_none():
    assert lists(ps.range(4).windows(3, groups=[0, 1, 2, 3])) == []


def test_a_label_that_comes_back_is_the_same_group():
    assert lists(ps.range(5).windows(2, groups=[0, 0, 1, 0, 0])) == [[0, 1], [1, 3], [3, 4]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", ["int64", "U1", object, "M8[D]"])
def test_windows_by_group_are_those_of_the_elements_sorted_by_group(dtype, seed):
    labels = np.random.default_rng(seed).integers(0, 4, 30)
    order = np.argsort(labels, kind="stable")
    of = {int(x[0]): x.tolist() for x in ps.from_arrays(order).windows(3, shift=2, stride=2, groups=labels[order])}
    ds = ps.range(30).windows(
        3, shift=2, stride=2, groups=labels.astype(str if dtype is object else dtype).astype(dtype)
    )
    assert len(of) == len(ds) > 0
    assert sorted(lists(ds)) == sorted(of.values())
    firsts = [labels[x[0]] for x in lists(ds)]
    appearance = [label for label in dict.fromkeys(labels.tolist()) if label in firsts]
    assert list(dict.fromkeys(firsts)) == appearance  # by group, in the order of their first elements
    with ds.shuffle(1).batch(2).loader("threads") as loader:
        assert sorted(x.tolist() for batch in loader for x in batch) == sorted(of.values())


def test_rows_of_groups_in_turn_have_windows_at_once_by_index():
    ds = ps.range(10**6).windows(4, groups=np.arange(10**6) % 3)
    assert ds[0].tolist() == [0, 3, 6, 9]
    assert ds[len(ds) - 1].tolist() == [999_989, 999_992, 999_995, 999_998]
    assert str(ds).splitlines()[1].strip().startswith("range(1000000)")  # the order is no step of its own


def test_windows_of_groups_in_turn_know_their_order_in_a_checkpoint():
    first, second = (ps.range(4).windows(2, groups=groups).loader("inline") for groups in ([0, 1, 0, 1], [0, 1, 1, 0]))
    with first, second, pytest.raises(ps.StateError, match="windows"):
        second.set_state(first.get_state())


def test_parts_of_windows_of_groups_in_turn_share_nothing():
    ds = ps.range(40).windows(3, groups=np.arange(40) % 2)
    train, val = ds.split(0.5, 0.5)
    assert not {int(x) for w in train for x in w} & {int(x) for w in val for x in w}
    nested = ps.range(40).windows(2).windows(2, groups=np.arange(39) % 2)  # inner windows share data across groups
    with pytest.raises(ps.ArgumentError, match="overlapping windows would make parts that share data"):
        nested.split(0.5, 0.5)


def test_windows_of_trees_stack_each_leaf():
    ds = ps.from_arrays({"x": np.arange(10).reshape(5, 2), "t": np.arange(5)}).windows(2)
    assert ds.element_spec == {"x": ps.ArraySpec((2, 2), "int64"), "t": ps.ArraySpec((2,), "int64")}
    assert ds[1]["x"].tolist() == [[2, 3], [4, 5]]


def test_windows_of_windows():
    assert ps.range(5).windows(3).windows(2)[1].tolist() == [[1, 2, 3], [2, 3, 4]]


def test_windows_of_what_is_shuffled_are_neighbours_in_that_order():
    order = [int(x) for x in ps.range(6).shuffle(2)]
    assert lists(ps.range(6).shuffle(2).windows(2)) == [order[i : i + 2] for i in range(5)]


def test_windows_of_an_endless_dataset_are_endless():
    ds = ps.range(3).repeat().windows(2)
    assert ds.length == math.inf
    assert ds[2].tolist() == [2, 0]


def test_elements_without_data_can_be_stacked():
    assert ps.from_arrays(np.zeros((4, 3, 0))).windows(2).batch(2)[0].shape == (2, 2, 3, 0)


def test_labels_for_another_number_of_elements_are_refused():
    with pytest.raises(ps.ArgumentError, match=r"a value for each element, shape \(5,\), got \(4,\)"):
        ps.range(5).windows(2, groups=[0, 0, 1, 1])


# A last window for what the shift leaves over.


def test_a_tail_is_a_last_window_that_ends_with_its_group():
    assert lists(ps.range(8).windows(3, shift=2, tail=True)) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [5, 6, 7]]
    assert lists(ps.range(7).windows(3, shift=2, tail=True)) == [
        [0, 1, 2],
        [2, 3, 4],
        [4, 5, 6],
    ]  # nothing is left over
    assert lists(ps.range(9).windows(2, stride=3, shift=4, tail=True)) == [[0, 3], [4, 7], [5, 8]]
    visits = ps.range(11).windows(4, shift=2, groups=[0, 1] * 5 + [2], tail=True)  # users in turn; one has a short past
    assert lists(visits) == [[0, 2, 4, 6], [2, 4, 6, 8], [1, 3, 5, 7], [3, 5, 7, 9]]


@pytest.mark.parametrize("length", [10, None])
def test_a_stream_has_the_same_tail(length):
    stream = ps.from_generator(range, 10, length=length).windows(4, shift=5, tail=True)
    assert (
        lists(stream)
        == lists(ps.range(10).windows(4, shift=5, tail=True))
        == [[0, 1, 2, 3], [5, 6, 7, 8], [6, 7, 8, 9]]
    )
    assert stream.length == (3 if length else None)
    assert lists(ps.from_generator(range, 3).windows(4, tail=True)) == []


def test_parts_of_windows_with_a_tail_share_nothing():
    train, val = ps.range(10).windows(4, shift=4, tail=True).split(2, 1)
    assert (lists(train), lists(val)) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [])


# Offsets by name.

EPISODES = np.array([0, 1, 0, 1, 0, 1, 1, 0])  # two robots write into one log
STEPS = {"image": np.arange(8), "action": np.arange(8) * 10, "episode": EPISODES}


def clips(**options):
    return ps.from_arrays(STEPS).windows({"image": [-1, 0], "action": range(3)}, groups="episode", **options)


def test_each_value_has_offsets_of_its_own_within_its_group():
    assert [clip["image"].tolist() for clip in clips()] == [
        [0, 0], [0, 2], [2, 4], [4, 7], [1, 1], [1, 3], [3, 5], [5, 6],
    ]  # fmt: skip
    assert clips()[1]["action"].tolist() == [20, 40, 70]
    assert clips()[2]["action"].tolist() == [40, 70, 70]
    assert [int(clip["episode"]) for clip in clips()] == [0] * 4 + [1] * 4  # without offsets: as it was
    spec = clips().element_spec
    assert spec["image"] == ps.ArraySpec((2,), "int64")
    assert spec["is_pad"]["action"] == ps.ArraySpec((3,), "bool")


def test_a_mask_says_where_the_edge_of_a_group_is_repeated():
    for clip, at in zip(clips(), [0, 2, 4, 7, 1, 3, 5, 6], strict=True):
        place, count = np.flatnonzero(EPISODES[:at] == EPISODES[at]).size, 4
        for name, offsets in {"image": [-1, 0], "action": range(3)}.items():
            assert clip["is_pad"][name].tolist() == [not 0 <= place + each < count for each in offsets]


def test_offsets_may_lie_beyond_every_edge_and_come_twice():
    ds = ps.zip({"x": ps.range(3)}).windows({"x": [-9, 9, 1, 1]})
    assert [clip["x"].tolist() for clip in ds] == [[0, 2, 1, 1], [0, 2, 2, 2], [0, 2, 2, 2]]
    assert ds[0]["is_pad"]["x"].tolist() == [True, True, False, False]
    assert list(ds[0]) == ["x", "is_pad"]


def test_shift_leaves_out_anchors_and_tail_keeps_the_last_of_a_group():
    assert [int(c["image"][1]) for c in clips(shift=2)] == [0, 4, 1, 5]
    assert [int(c["image"][1]) for c in clips(shift=2, tail=True)] == [0, 4, 7, 1, 5, 6]


def test_a_value_is_read_where_its_own_offsets_lie_and_nowhere_else():
    images, actions = (CountingSource(ps.from_arrays(STEPS[name])._node.data) for name in ("image", "action"))
    steps = ps.zip({"image": ps.from_source(images), "action": ps.from_source(actions)})
    clip = steps.windows({"image": [-2, 0], "action": range(3)})[3]
    assert (clip["image"].tolist(), clip["action"].tolist()) == ([1, 3], [30, 40, 50])
    assert (dict(images.reads), dict(actions.reads)) == ({1: 1, 3: 1}, {3: 1, 4: 1, 5: 1})
    steps.windows({"image": [-2, 0], "action": [0]}).select("action", "is_pad")[3]
    assert sum(images.reads.values()) == 2


class Table:
    """Rows of columns of which some can be read alone."""

    def __init__(self, columns):
        self.columns, self.element_spec = columns, {name: ps.ArraySpec((), "int64") for name in columns}

    def __len__(self):
        return 8

    def selected(self, names):
        return Table({name: self.columns[name] for name in names})

    def read_into(self, indices, out):
        for name, (values, asked) in self.columns.items():
            out[name][...] = values[indices]
            asked.append(len(indices))


def test_labels_in_a_column_are_read_without_the_other_columns():
    columns = {name: (values, []) for name, values in STEPS.items()}
    ps.from_source(Table(columns)).windows({"image": [0]}, groups="episode")
    assert [name for name, (_, asked) in columns.items() if sum(asked)] == ["episode"]


def test_windows_by_name_are_copied_by_the_engine_and_resume():
    ds = clips().shuffle(3).batch(2)
    assert CopyPlan.of(with_rows(ds._node), (0, 1)) is not None
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])


def test_windows_by_name_of_an_endless_dataset_are_endless():
    ds = ps.zip({"x": ps.range(3)}).repeat().windows({"x": [-1, 1]})
    assert ds.length == math.inf
    assert (ds[0]["x"].tolist(), ds[5]["x"].tolist()) == ([0, 1], [1, 0])


def test_parts_of_windows_by_name_share_no_element_whichever_value_it_gives():
    steps = ps.zip({"past": ps.range(40), "next": ps.range(40)}).windows({"past": [-3, 0], "next": [0, 2]})
    train, val = steps.split(0.5, 0.5)
    used, other = ({int(x) for clip in part for name in ("past", "next") for x in clip[name]} for part in (train, val))
    assert not used & other
    assert len(train) + len(val) == 40 - 5
    with pytest.raises(ps.ArgumentError, match=r"split\(seed=\.\.\.\) would deal overlapping windows"):
        steps.split(0.5, 0.5, seed=1)
    apart = ps.zip({"x": ps.range(40)}).windows({"x": [0, 1, 2]}, shift=3)
    assert len(apart.split(0.5, 0.5, seed=1)[0]) == 7


def test_states_tell_offsets_groups_and_tails_apart():
    base = ps.zip({"x": ps.range(9)})
    ways = [{"x": [0, 1]}, {"x": [0, 2]}, {"x": [0, 1], "shift": 2}, {"x": [0, 1], "groups": [0] * 4 + [1] * 5}]
    states = set()
    for options in ways:
        with base.windows({"x": options["x"]}, **{k: v for k, v in options.items() if k != "x"}).loader(
            "inline"
        ) as one:
            states.add(one.get_state()["plan"])
    with (
        ps.range(9).windows(3, shift=2).loader("inline") as one,
        ps.range(9).windows(3, shift=2, tail=True).loader("inline") as two,
    ):
        states |= {one.get_state()["plan"], two.get_state()["plan"]}
    assert len(states) == 6


@pytest.mark.parametrize(
    ("of", "offsets", "options", "message"),
    [
        (
            ps.range(4),
            {"x": [0]},
            {},
            r"finds values by their names, but elements are \(\) int64\. Make dicts of them: ",
        ),
        (STEPS, {"x": [0]}, {}, r"windows\(\{'x': \.\.\.\}\): elements have no such value; they have \['image', "),
        (STEPS, {"image": 3}, {}, r"windows\(\{'image': 3\}\): a list of integers is needed, such as \[-1, 0\], and "),
        (STEPS, {"image": [0.5]}, {}, r"offsets are integers, .*0\.5 is no offset\. .* multiply"),
        (STEPS, {"image": []}, {}, r"offsets are integers, such as \[-1, 0\], and there are none\."),
        (STEPS, {}, {}, r"windows\(\{\}\) has no offsets\. Give some names theirs"),
        (STEPS, {"image": [0]}, {"stride": 2}, r"stride=2\): the offsets say how far apart\."),
        (
            {"is_pad": np.zeros(3)},
            {"is_pad": [0]},
            {},
            r"makes the value 'is_pad', and elements have one already\. Rename",
        ),
    ],
    ids=str,
)
def test_offsets_that_have_no_meaning_are_refused(of, offsets, options, message):
    ds = of if isinstance(of, ps.Dataset) else ps.from_arrays(of)
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError), match=message):
        ds.windows(offsets, **options)


def test_offsets_over_a_stream_are_refused():
    with pytest.raises(ps.ArgumentTypeError, match=r"windows\(\{name: offsets\}\) needs random access, but from_gen"):
        ps.from_generator(lambda: iter([{"x": 1}])).windows({"x": [0]})


def test_none_stays_none_with_offsets_and_without():
    ds = ps.range(3).map(lambda x: {"none": None, "x": x, "y": {"none": None, "x": x}})
    ds = ds.windows({"none": [0, 1], "y": [0, -1]}).batch(3)
    with ds.loader(executor="threads") as loader:
        for batch in (ds[0], *loader):
            assert (batch["none"], batch["y"]["none"], batch["x"].tolist()) == (None, None, [0, 1, 2])
            assert batch["y"]["x"].tolist() == [[0, 0], [1, 0], [2, 1]]
            pads = batch["is_pad"]
            assert pads["none"].tolist() == [[False, False], [False, False], [False, True]]
            assert pads["y"].tolist() == [[False, True], [False, False], [False, False]]


def test_a_value_whose_shape_varies_may_stay_without_offsets_but_has_none():
    ragged = ps.zip(
        {"x": ps.range(4), "words": ps.range(4).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))}
    )
    clip = ragged.windows({"x": [0, 1]})[2]
    assert (clip["x"].tolist(), clip["words"].tolist()) == ([2, 3], [0, 1])
    with pytest.raises(ps.SpecError, match=r"windows\(\[0, 1\]\) stacks elements, so they must have one shape"):
        ragged.windows({"words": [0, 1]})[2]
