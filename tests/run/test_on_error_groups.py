"""`on_error` where elements come in groups: each element has a guard of its own, and positions stay.

A group is a batch of any kind, a row of `pack`, or what a function of many elements gets at once.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan._batch import Bundle
from penstock.plan._fold import Fold
from penstock.plan._node import Grouping

pytestmark = pytest.mark.usefixtures("workers_stay", "leaves_nothing_behind")

COUNT = 40
LENGTHS = np.arange(COUNT) % 5 + 1
INT64 = ps.ArraySpec((), "int64")
TOKENS = ps.ArraySpec((None,), "int64")
SPARSE = {"indices": ps.ArraySpec((None,), "int32"), "values": ps.ArraySpec((None,), "int64")}
EXECUTORS = [("inline", 1), ("threads", 3), ("processes", 2)]
Step = Callable[[ps.Dataset], ps.Dataset]


inline = pytest.mark.parametrize("load", EXECUTORS[:1], ids=["inline"], indirect=True)


@pytest.fixture(params=EXECUTORS, ids=lambda run: run[0])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[Any]]:
    executor, workers = request.param

    def load(dataset: ps.Dataset, on_error: Any) -> list[Any]:
        where = tmp_path / "bad.jsonl"
        with dataset.loader(executor, workers=workers, on_error=on_error, quarantine=where) as loader:
            return list(loader)

    return load


def numbers(bad: int | None, spec: Any = INT64) -> ps.Dataset:
    """Elements from 1 on, so that padding is none of them: numbers, sequences of one number, or sparse rows."""

    def make(x: Any) -> Any:
        if int(x) + 1 == bad:
            raise ValueError("broken")
        tokens = np.full(LENGTHS[int(x)], x + 1)
        if spec is SPARSE:
            return {"indices": np.arange(len(tokens), dtype="int32"), "values": tokens}
        return tokens if spec is TOKENS else x + 1

    return ps.range(COUNT).map(make, element_spec=spec)


GROUPS: dict[str, tuple[Any, Step]] = {
    "Batch": (INT64, lambda ds: ds.batch(4).take(9)),
    "PaddedBatch": (TOKENS, lambda ds: ds.padded_batch(4).take(9)),
    "PaddedBatch of similar lengths": (TOKENS, lambda ds: ds.bucket_by_length(lengths=LENGTHS, batch_size=4).take(9)),
    "RaggedBatch of sparse rows": (SPARSE, lambda ds: ds.csr_batch(4).take(9)),
    "RaggedBatch": (TOKENS, lambda ds: ds.ragged_batch(4).take(9)),
    "TokenBatch end to end": (TOKENS, lambda ds: ds.ragged_batch(max_tokens=20, lengths=LENGTHS)),
    "TokenBatch end to end of a shuffle": (
        TOKENS,
        lambda ds: ds.shuffle(1).ragged_batch(max_tokens=20, lengths=LENGTHS),
    ),
    "Group": (INT64, lambda ds: ds.group_by(np.arange(COUNT) // 4)),
    "TokenBatch": (TOKENS, lambda ds: ds.batch(max_tokens=20, lengths=LENGTHS)),
    "TokenBatch of similar lengths": (TOKENS, lambda ds: ds.bucket_by_length(lengths=LENGTHS, max_tokens=20)),
    "TokenBatch of a shuffle": (TOKENS, lambda ds: ds.shuffle(1).bucket_by_length(lengths=LENGTHS, max_tokens=20)),
    "Pack": (TOKENS, lambda ds: ds.pack(16, lengths=LENGTHS)),
    "Pack with offsets": (TOKENS, lambda ds: ds.pack(16, lengths=LENGTHS, offsets=True)),
    "Pack that fits best": (TOKENS, lambda ds: ds.pack(16, lengths=LENGTHS, fit="best")),
    "Pack of whole sequences": (TOKENS, lambda ds: ds.pack(16, lengths=LENGTHS, split=False)),
}
"""For each step with groups its elements, and a plan. A step after a batch goes by position, so no element moves up."""


def elements_of(group: Any) -> list[int]:
    """The elements in a group, each once for each of its rows."""
    if isinstance(group, ps.Ragged):
        group = np.split(group.values, group.offsets[1:-1])
    group = group[0] if isinstance(group, tuple) else group
    if isinstance(group, dict):
        group = [group["values"][start:stop] for start, stop in zip(group["indptr"], group["indptr"][1:], strict=False)]
    rows = [set(np.ravel(row).tolist()) - {0} for row in group]
    return sorted(x for row in rows for x in row)


def test_every_step_with_groups_is_in_the_table() -> None:
    def classes(base: type) -> Iterator[type]:
        for each in base.__subclasses__():
            yield each
            yield from classes(each)

    # No user sees a `Bundle`. `reduce` has no guards: another state in place of one that failed would lose elements.
    hidden = {"Batching", "_OfLengths", Bundle.__name__, Fold.__name__}
    steps = {each.__name__ for each in classes(Grouping) if each.__module__.startswith("penstock.")}
    assert steps - hidden == {name.split()[0] for name in GROUPS}


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("name", GROUPS)
def test_one_element_of_a_group_is_left_out_or_replaced_alone(load: Any, on_error: Any, name: str) -> None:
    spec, step = GROUPS[name]
    bad = 3 if "shuffle" in name else 10
    wanted = [elements_of(each) for each in step(numbers(None, spec))]
    found = [elements_of(each) for each in load(step(numbers(bad, spec)), on_error)]
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        rest = [x for x in want if x != bad]
        # A row of so many tokens has no place for a sequence of another length.
        if rest == want or on_error == "skip" or "Pack" in name or "end to end" in name:
            assert have == rest
        else:
            assert len(have) == len(want)
            assert set(have) == set(rest)


@pytest.mark.parametrize("name", [name for name in GROUPS if "Token" in name or "Pack" in name])
def test_an_element_of_another_length_than_was_said_is_left_out_alone(load: Any, name: str) -> None:
    _, step = GROUPS[name]

    def lengthen(tokens: Any) -> Any:
        return np.append(tokens, 10) if 10 in tokens else tokens

    wanted = [elements_of(each) for each in step(numbers(None, TOKENS))]
    found = load(step(numbers(None, TOKENS).map(lengthen, element_spec=TOKENS)), "skip")
    assert [elements_of(each) for each in found] == [[x for x in each if x != 10] for each in wanted]


def test_a_group_of_which_nothing_is_left_is_left_out(load: Any) -> None:
    def fail(x: Any) -> Any:
        if x in (4, 5, 6, 7):
            raise ValueError("broken")
        return x

    batches = ps.range(12).map(fail).batch(4).take(3)
    assert [batch.tolist() for batch in load(batches, "skip")] == [[0, 1, 2, 3], [8, 9, 10, 11]]


# Positions stay. A failed element is missing where it was, for every step above that goes by position.


def tokenize(many: Any) -> Any:
    if (many == 9).any():
        raise ValueError("broken")
    return many * 1


def ragged(many: Any) -> Any:
    return [np.full(int(x) % 3 + 1, x) for x in tokenize(many)]


def first_of(tokens: Any) -> Any:
    return tokens[0]


def one_by_one(x: Any) -> Any:
    if x == 5:
        raise ValueError("broken")
    return x


GIVES_GROUPS: dict[str, Step] = {
    "map(batched=)": lambda ds: ds.map(tokenize, batched=4),
    "map(batched=), ragged": lambda ds: ds.map(ragged, batched=4, element_spec=TOKENS).map(
        first_of, element_spec=INT64
    ),
    "batch().map().unbatch()": lambda ds: ds.batch(4).map(tokenize).unbatch(),
    "two functions": lambda ds: ds.batch(4).map(tokenize).map(lambda many: many + 0).unbatch(),
}
BY_POSITION: dict[str, Step] = {
    "take": lambda ds: ds.take(20),
    "skip": lambda ds: ds.skip(20),
    "slice": lambda ds: ds[5:30:3],
    "shard": lambda ds: ds.shard(1, 3),
    "split": lambda ds: ds.split(0.5, 0.5)[1],
    "split(seed=)": lambda ds: ds.split(0.5, 0.5, seed=1)[0],
    "backwards": lambda ds: ds[::-1],
    "index array": lambda ds: ds[np.array([30, 8, 3, 12])],
    "mask": lambda ds: ds[np.arange(COUNT) % 3 == 0],
    "shuffle": lambda ds: ds.shuffle(1),
    "shuffle(window=)": lambda ds: ds.shuffle(1, window=6),
    "sample": lambda ds: ds.sample(np.ones(COUNT), seed=1, count=30),
    "windows": lambda ds: ds.windows(3).map(first_of),
    "windows(groups=)": lambda ds: ds.windows(2, groups=np.arange(COUNT) // 10).map(first_of),
    "take after a function": lambda ds: ds.map(lambda x: x + 0).take(20),
    "take after cast": lambda ds: ds.cast("float32").take(20),
    "repeat and take": lambda ds: ds.take(20).repeat(2),
    "zip": lambda ds: ps.zip((ds, ps.range(COUNT))).map(first_of),
    "mix": lambda ds: ps.mix([ds, ps.range(100 + COUNT)[100:]], [1, 1]),
}
STREAMS = (
    "take",
    "skip",
    "slice",
    "shard",
    "shuffle(window=)",
    "windows",
    "take after a function",
    "take after cast",
    "mix",
)


def with_one_on_each_executor(verbs: Iterable[str]) -> list[Any]:
    """Each way to make groups with each verb, inline; and the first on all executors."""
    pairs = itertools.product(EXECUTORS, GIVES_GROUPS, verbs)
    return [
        pytest.param(run, name, verb, id=f"{run[0]}-{name}-{verb}")
        for run, name, verb in pairs
        if run[0] == "inline" or name == "map(batched=)"
    ]


@pytest.mark.parametrize(("load", "name", "verb"), with_one_on_each_executor(BY_POSITION), indirect=["load"])
def test_what_fails_is_missing_where_it_was_with_random_access(load: Any, name: str, verb: str) -> None:
    step = BY_POSITION[verb]
    found = np.concatenate(load(step(GIVES_GROUPS[name](ps.range(COUNT).map(one_by_one))).batch(4), "skip")).tolist()
    lost = {5, 8, 9, 10, 11}
    if verb.startswith("windows"):
        span = 3 if verb == "windows" else 2
        assert found == [x for x in step(ps.range(COUNT)) if not lost & set(range(x, x + span))]
    else:
        assert found == [x for x in step(ps.range(COUNT)) if x not in lost]


def counted() -> Iterator[int]:
    yield from range(COUNT)


@pytest.mark.parametrize(("load", "name", "verb"), with_one_on_each_executor(STREAMS), indirect=["load"])
def test_what_fails_is_missing_where_it_was_in_a_stream(load: Any, name: str, verb: str) -> None:
    step, source = BY_POSITION[verb], ps.from_generator(counted, element_spec=INT64)
    found = np.concatenate(load(step(GIVES_GROUPS[name](source.map(one_by_one))).batch(4), "skip")).tolist()
    lost = {5, 8, 9, 10, 11}
    if verb == "windows":
        assert found == [x for x in step(source) if not lost & set(range(x, x + 3))]
    else:
        assert found == [x for x in step(source) if x not in lost]


@inline
def test_elements_of_validation_do_not_get_into_training(load: Any) -> None:
    for made in GIVES_GROUPS.values():
        train, validation = made(ps.range(COUNT)).split(0.5, 0.5)
        seen = {int(x) for batch in load(train.batch(4), "skip") for x in batch}
        assert seen == set(range(20)) - set(range(8, 12))
        assert not seen & {int(x) for batch in load(validation.batch(4), "skip") for x in batch}


def test_a_batch_is_short_where_a_step_after_it_goes_by_position_and_else_elements_move_up(load: Any) -> None:
    batches = ps.range(14).map(one_by_one).batch(4)
    assert [batch.tolist() for batch in load(batches, "skip")] == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11, 12], [13]]
    by_position = [batch.tolist() for batch in load(batches.skip(1), "skip")]
    assert by_position == [[4, 6, 7], [8, 9, 10, 11], [12, 13]]
    shuffled = {int(batch[-1]): batch.tolist() for batch in load(batches.shuffle(1), "skip")}
    assert shuffled == {3: [0, 1, 2, 3], 7: [4, 6, 7], 11: [8, 9, 10, 11], 13: [12, 13]}
    of_stream = ps.from_generator(counted, element_spec=INT64).map(one_by_one).batch(4)
    assert [batch.tolist() for batch in load(of_stream.take(2), "skip")] == [[0, 1, 2, 3], [4, 6, 7]]


@inline
def test_a_batch_in_a_batch_is_left_out_whole_where_a_step_goes_by_position(load: Any) -> None:
    nested = ps.range(16).map(one_by_one).batch(2).batch(4).take(1)
    assert [batch.tolist() for batch in load(nested, "skip")] == [[[0, 1], [2, 3], [6, 7]]]


BY_INDEX: dict[str, Step] = {
    "map(batched=)": lambda ds: ds.map(tokenize, batched=4),
    "batch().map().unbatch()": lambda ds: ds.batch(4).map(tokenize).unbatch().take(39),
}


@pytest.mark.parametrize("step", BY_INDEX.values(), ids=BY_INDEX)
def test_a_group_that_fails_names_its_origins_and_is_run_again(load: Any, step: Step, tmp_path: Path) -> None:
    ds = step(ps.range(COUNT).shuffle(seed=1)).batch(4)
    load(ds, "skip")
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    (failure,) = (line for line in lines if line["epoch"] == 0)  # workers read ahead
    assert [source[0] for source in failure["sources"]] == ["range"] * len(failure["sources"])
    group = ps.range(COUNT).shuffle(seed=1)[:].batch(4)[failure["index"]].tolist()
    assert 9 in group
    assert {source[1] for source in failure["sources"]} <= set(group)
    assert all("broken" in str(again.error) for again in ps.replay(tmp_path / "bad.jsonl", ds))


@inline
def test_an_element_in_a_group_is_run_again_alone(load: Any, tmp_path: Path) -> None:
    ds = ps.range(COUNT).shuffle(seed=1).map(one_by_one).map(lambda many: many, batched=4).take(39).batch(4)
    load(ds, "skip")
    (again,) = ps.replay(tmp_path / "bad.jsonl", ds)
    assert again.failure["sources"] == [["range", 5, "the integer 5"]]
    assert "broken" in str(again.error)


@inline
def test_one_of_a_stream_that_failed_does_not_hinder_others_from_being_run_again(load: Any, tmp_path: Path) -> None:
    def total(many: Any) -> Any:
        if 15 in many:
            raise ValueError("fifteen")
        return many.sum()

    ds = ps.range(16).map(one_by_one).batch(4).map(total)
    load(ds, "skip")
    replayed = ps.replay(tmp_path / "bad.jsonl", ds)
    assert "broken" in str(next(replayed).error)
    with pytest.raises(ps.ArgumentError, match="came from a stream"):
        next(replayed)


@inline
def test_a_function_after_groups_is_run_again(load: Any, tmp_path: Path) -> None:
    def not_odd(x: Any) -> Any:
        if x in (5, 20):
            raise ValueError("odd")
        return x

    ds = ps.range(40).shuffle(seed=1).map(tokenize, batched=4).map(not_odd).batch(4)
    load(ds, "skip")
    again = list(ps.replay(tmp_path / "bad.jsonl", ds))
    assert sorted(str(each.error).rpartition(": ")[2] for each in again) == ["broken", "odd", "odd"]


@inline
def test_a_function_of_whole_batches_gets_whole_ones_unless_a_step_goes_by_position(load: Any) -> None:
    ds = ps.range(12).map(one_by_one).batch(4).map(lambda many: many.reshape(4) * 10).unbatch()
    assert np.concatenate(load(ds.batch(3), "skip")).tolist() == [0, 10, 20, 30, 40, 60, 70, 80]
    assert np.concatenate(load(ds.take(12).batch(3), "skip")).tolist() == [0, 10, 20, 30, 80, 90, 100, 110]


@inline
def test_batches_of_shuffled_batches_have_one_shape(load: Any) -> None:
    ds = ps.range(12).map(one_by_one).batch(2).shuffle(0).batch(5)
    (found,) = load(ds, "skip")
    assert sorted(found.ravel().tolist()) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]


@inline
def test_positions_stay_in_a_stream_under_replace(load: Any) -> None:
    source = ps.from_generator(counted, element_spec=INT64, length=COUNT).take(12).map(tokenize, batched=3)
    assert np.concatenate(load(source.skip(6).batch(6), "replace")).tolist() == [6, 7, 8, 6, 6, 6]
    windows = [[x, x + 1] for x in range(8)]
    assert np.concatenate(load(source.windows(2).batch(6), "replace"))[:8].tolist() == windows


@inline
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_streams_that_zip_combines_are_left_out_together_whatever_their_steps_are(load: Any, on_error: Any) -> None:
    source = ps.from_generator(counted, element_spec=INT64)
    for each, bad in [
        (ps.concatenate([source.map(one_by_one), ps.range(8)]), {5}),
        (source.map(tokenize, batched=3), {9, 10, 11}),
        (source.map(one_by_one).shuffle(1, window=1), {5}),
    ]:
        found = load(ps.zip((each, ps.range(20))).batch(20), on_error)
        assert {int(x) for batch in found for x in batch[1]} == set(range(20)) - bad
        assert [len(batch[0]) for batch in found] == [20 - len(bad) * (on_error == "skip")]


@inline
def test_a_function_that_makes_more_rows_than_elements_keeps_them_where_nothing_fails(load: Any) -> None:
    ds = ps.range(8).batch(2).map(lambda many: np.repeat(many, 2)).unbatch().take(12).batch(4)
    assert np.concatenate(load(ds, "skip")).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
