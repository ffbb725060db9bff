"""`unbatch` reads the rows that it needs, and no more of an element, through every step that only moves elements."""

import math
import os
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.lower._copies import CopyPlan
from penstock.lower._rewrite import with_rows
from penstock.plan._node import walk
from penstock.run.pool._payload import pack
from penstock.sources.arrays import ArraySource
from penstock.testing import CountingSource

FRAMES = 4
ARRAY = np.arange(10 * FRAMES * 3).reshape(10, FRAMES, 3)


class Films(CountingSource):
    """Counts the films that are read whole, and the frames that are read alone."""

    def __init__(self):
        super().__init__(ArraySource(ARRAY))
        self.frames = CountingSource(ArraySource(ARRAY.reshape(-1, 3)))

    def unstacked(self):
        return self.frames


MOVES = {
    "nothing": lambda films: films,
    "take and skip": lambda films: films.skip(2).take(5),
    "every other": lambda films: films[::2],
    "backwards": lambda films: films[::-1],
    "an array": lambda films: films[np.array([7, 1, 1, 3])],
    "a mask": lambda films: films[np.arange(10) % 3 > 0],
    "split": lambda films: films.split(0.5, 0.5)[1],
    "split by a seed": lambda films: films.split(0.5, 0.5, seed=1)[1],
    "split by groups": lambda films: films.split(0.5, 0.5, groups=np.arange(10) // 2, seed=1)[0],
    "shard": lambda films: films.shard(1, 3),
    "shuffle": lambda films: films.shuffle(1),
    "shuffle in windows": lambda films: films.shuffle(1, window=3),
    "repeat": lambda films: films.shuffle(1).repeat(2),
    "repeat without end": lambda films: films.repeat().skip(9).take(4),
    "concatenate": lambda films: ps.concatenate([films[5:], films[:3]]),
    "interleave": lambda films: ps.interleave([films, films[:3]]),
    "mix": lambda films: ps.mix([films, films.repeat()], [1, 2]),
    "zip": lambda films: ps.zip((films, films.shuffle(3))),
    "zip with one that does not end": lambda films: ps.zip({"a": films, "b": films[:3].repeat()}),
    "select": lambda films: ps.zip({"a": films, "b": films}).select("b"),
    "rename": lambda films: ps.zip({"a": films}).rename({"a": "b"}),
    "cast": lambda films: films.cast("float32"),
    "sample": lambda films: films.sample(np.arange(10.0)),
    "sample of each class": lambda films: films.sample(balance=np.arange(10) % 2, per_class=2),
    "join": lambda films: (
        ps.zip({"key": ps.range(10)})
        .join(ps.zip({"key": ps.from_arrays(np.arange(10)[::-1].copy()), "film": films}), on="key")
        .select("film")
    ),
    "windows by name": lambda films: ps.zip({"film": films, "i": ps.range(10)}).windows({"i": [0, 1]}).select("film"),
    "a chain": lambda films: ps.concatenate(
        [films.split(0.5, 0.5, seed=1)[1].shuffle(2).repeat(2), films[::-2].cast("int64")]
    ).shuffle(3)[::3],
}


def leaves(element):
    return list(element.values()) if isinstance(element, dict) else [*element] if type(element) is tuple else [element]


def frames_of(step):
    """The expected frames: the rows of whole films."""
    return [[leaf[row] for leaf in leaves(film)] for film in step(ps.from_arrays(ARRAY)) for row in range(FRAMES)]


@pytest.mark.parametrize("step", MOVES.values(), ids=MOVES)
def test_a_frame_is_read_alone(step):
    films, expected = Films(), frames_of(step)
    frames = step(ps.from_source(films)).unbatch()
    assert len(frames) == len(expected)
    for index, want in enumerate(expected):
        np.testing.assert_array_equal(leaves(frames[index]), want)
    assert films.frames.reads.total() == len(expected) * sum(leaf.shape == (3,) for leaf in expected[0])
    assert not films.reads


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", MOVES.values(), ids=MOVES)
def test_workers_read_frames_and_no_films(step, executor, workers_stay):
    films, expected = Films(), frames_of(step)
    ds = step(ps.from_source(films)).unbatch()
    with ds.shuffle(seed=5).batch(6).loader(executor, workers=2 if executor != "inline" else "auto") as loader:
        found = [row for batch in loader for row in zip(*leaves(batch), strict=True)]
    order = [int(index) for index in ps.range(len(expected)).shuffle(seed=5)]
    np.testing.assert_array_equal(found, [expected[index] for index in order])
    assert films.frames.reads
    assert not films.reads


@pytest.mark.parametrize("step", MOVES.values(), ids=MOVES)
def test_the_copy_engine_moves_the_frames(step):
    expected = frames_of(step)
    ds = step(ps.from_arrays(ARRAY)).unbatch().batch(FRAMES)
    assert CopyPlan.of(with_rows(ds._node), (0, 1)) is not None
    with ds.loader("threads") as loader:
        found = [row for batch in loader for row in zip(*leaves(batch), strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_windows_of_frames_read_their_frames_alone():
    films = Films()
    (train, _) = ps.from_source(films).split(0.5, 0.5, seed=1)
    clips = train.unbatch().windows(2, shift=2, groups=np.repeat(np.arange(5), FRAMES)).shuffle(seed=2)
    assert clips[3].shape == (2, 3)
    assert films.frames.reads.total() == 2
    assert not films.reads


def test_windows_of_frames_are_copied_as_one_row():
    ds = ps.from_arrays({"x": ARRAY, "y": ARRAY}).cast("float32").skip(1).unbatch().windows(3).batch(2)
    plan = CopyPlan.of(with_rows(ds._node), (0, 1))
    assert plan is not None
    assert [len(rows) for _, _, rows, _, _ in plan.block(0, 0, 1)[0][0]] == [2, 2]


def test_frames_of_films_that_are_taken_apart_twice_are_read_alone():
    films = ARRAY.reshape(5, 2, FRAMES, 3)
    ds = ps.from_arrays(films).shuffle(1).unbatch().shuffle(2).unbatch()
    pairs = [pair for film in ps.from_arrays(films).shuffle(1) for pair in film]
    order = [int(index) for index in ps.range(10).shuffle(2)]
    np.testing.assert_array_equal(list(ds), [row for index in order for row in pairs[index]])
    assert "unbatch" not in [node.verb for node in walk(with_rows(ds._node))]


def test_films_that_never_end_give_frames_without_end():
    ds = ps.from_arrays(ARRAY).shuffle(1).repeat().unbatch()
    assert ds.length == with_rows(ds._node).length == math.inf
    assert [ds[FRAMES * 57 + row].tolist() for row in range(FRAMES)] == ps.from_arrays(ARRAY).shuffle(1).repeat()[
        57
    ].tolist()


@pytest.mark.parametrize("place", ["before the shuffle", "after it", "beside"])
def test_a_function_gets_whole_films(place):
    films = Films()
    ds = ps.from_source(films)
    ds = {
        "before the shuffle": lambda: ds.map(np.negative).shuffle(1),
        "after it": lambda: ds.shuffle(1).map(np.negative),
        "beside": lambda: ps.zip((ds, ds.map(np.negative))),
    }[place]()
    assert np.abs(leaves(ds.unbatch()[5])[0]).tolist() in ARRAY.reshape(-1, 3).tolist()
    assert films.reads
    assert not films.frames.reads


def test_no_more_memory_is_projected_than_for_frames(tmp_path):
    films = np.lib.format.open_memmap(tmp_path / "films.npy", "w+", "float64", (4, 10**7, 2))  # 640 MB, of holes
    films[2, 1234] = 5, 6
    films.flush()
    ds = ps.from_npy(tmp_path / "films.npy")
    ds = ps.concatenate([ds.shuffle(1), ds[::-1]])[np.array([5, 4])].unbatch()
    with ds.batch(8).loader(memory_limit=2**23) as loader:
        assert next(iter(loader)).shape == (8, 2)
    assert ds[1234].tolist() == [5, 6]


def test_a_failed_read_names_the_frame_in_its_file(tmp_path):
    np.save(tmp_path / "films.npy", ARRAY)
    ds = ps.from_npy(tmp_path / "films.npy").split(0.5, 0.5, seed=1)[0][::-1].unbatch()
    film, row = divmod(int(np.flatnonzero((ARRAY.reshape(-1, 3) == ds[6]).all(1))[0]), FRAMES)
    os.truncate(tmp_path / "films.npy", 128)
    with pytest.raises(ps.SourceError, match=rf"films\.npy\[{film}, {row}\]"):
        ds[6]


def test_a_failed_function_names_the_frame_that_it_got():
    def fail(frame):
        raise ValueError("no")

    ds = ps.from_arrays(ARRAY)[::-1].unbatch().map(fail, element_spec=ps.ArraySpec((3,), "int64"))
    with pytest.raises(ps.ElementError, match=r"element 5 of epoch 0, made of row 33 of array of \(40, 3\) int64"):
        ds[5]


def test_arrays_travel_to_workers_once():
    array = np.zeros((10, FRAMES, 10_000))
    ds = ps.from_arrays(array)
    plan = with_rows(ps.concatenate([ds.shuffle(1), ds[::-1]]).unbatch()._node)
    payload = pack(plan, plan)
    assert len(payload.data) + sum(each.nbytes for each in payload.arrays) < 1.5 * array.nbytes


def test_failed_frames_are_left_out_alone(tmp_path):
    films = Films()
    films.frames = ps.testing.FailingSource(films.frames, {5: ValueError("broken")})
    ds = ps.from_source(films)[::-1].unbatch().batch(FRAMES)
    with ds.loader("threads", on_error="skip", quarantine=tmp_path / "q") as loader:
        counts = Counter(len(batch) for batch in loader)
    assert counts.total() == 10
    assert sum(size * count for size, count in counts.items()) == 39


def test_rows_of_what_a_batch_is_made_of_are_none_of_its_own():
    x = np.arange(16.0).reshape(8, 2)
    ds = ps.from_arrays((x, x[:, :1] * 2)).shuffle(1).batch(4).unbatch()  # elements have first axes of 2 and 1
    expected = list(ps.from_arrays((x, x[:, :1] * 2)).shuffle(1))
    with ds.batch(8).loader(executor="inline") as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch[0], [each[0] for each in expected])
    np.testing.assert_array_equal(batch[1], [each[1] for each in expected])
