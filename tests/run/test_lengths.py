"""A length is a promise. An epoch that ends before its length is an error; a row that nobody wrote is never handed out.

Iterating the dataset and every executor say the same: the same batches, and then the same error.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.dataset import Dataset
from penstock.lower._batches import ParallelProgram
from penstock.memory._rows import Rows
from penstock.plan._index import EMPTY_ROUND_COUNT
from penstock.plan._node import Demand, Elements, Length, OneInput, OneToOne, Reorder, Traits
from penstock.plan._reader import Reader
from penstock.plan._stream import Generate, StreamSource

INT64 = ps.ArraySpec((), "int64")
EXECUTORS = ["inline", "threads"]


def values(epoch: Any, most: int = 100) -> tuple[list[Any], str]:
    """What an epoch gives, and the error at its end."""
    found: list[Any] = []
    try:
        found.extend(batch.tolist() for batch in itertools.islice(epoch, most))
    except ps.PenstockError as error:
        return found, str(error)
    return found, ""


def assert_same_on(executor: Any, ds: ps.Dataset, batches: list[Any], error: str, **options: Any) -> None:
    with ds.loader(executor, **options) as loader:
        for _ in range(2):  # the second epoch finds rows of the first in every slot
            found, text = values(loader)
            assert found == batches
            assert error in text
            assert bool(text) == bool(error)


def above(x: Any) -> bool:
    return bool(x > 1000)


def same(x: Any) -> Any:
    return x


def keep(x: Any) -> bool:
    return True


def endless_nothing() -> ps.Dataset:
    return ps.range(5).filter(above).repeat()


def up_to(count: int) -> Iterator[int]:
    yield from range(count)


def breaks_at(count: int) -> Iterator[int]:
    yield from range(count)
    raise OSError("gone")


def stream(count: int, length: Length = None) -> ps.Dataset:
    return ps.from_generator(up_to, count, element_spec=INT64, length=length)


# Endless repeats.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_repeat_that_finds_nothing_is_an_error_and_its_batch_is_not_filled_with_zeros(executor: Any) -> None:
    mixed = ps.mix([endless_nothing(), ps.range(100).repeat()], [1, 3], seed=1).take(1024)
    for ds in (mixed.batch(8), mixed.map(same, element_spec=INT64).batch(8), mixed.padded_batch(8)):
        assert len(ds) == 128
        assert values(ds)[0] == []
        assert f"repeat() found no element in {EMPTY_ROUND_COUNT} rounds in a row" in values(ds)[1]
        assert_same_on(executor, ds, [], "repeat() found no element")
    assert_same_on(executor, mixed, list(range(6)), "filter(above) gave nothing")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_shards_have_no_rows_in_the_middle_that_nobody_wrote(executor: Any) -> None:
    ds = ps.mix([endless_nothing(), ps.range(100).repeat()], [1, 3], seed=1).take(1024).batch(4)
    for index in range(2):
        mine = [[2 * index, 2 * index + 1]]
        assert_same_on(executor, ds, mine, "repeat() found no element", shard=(index, 2))
    with_mask = ds.loader(executor, shard=(0, 2), uneven="mask")
    with with_mask as loader, pytest.raises(ps.SpecError, match=r"^repeat\(\) found no element"):
        assert [[rows.tolist() for rows in batch] for batch in loader] == [[[0, 1], [True, True]]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_zip_with_a_repeat_that_finds_nothing_is_an_error(executor: Any) -> None:
    ds = ps.zip((ps.range(16), endless_nothing())).map(lambda pair: pair[0], element_spec=INT64).batch(8)
    assert len(ds) == 2
    assert values(ds)[0] == []
    assert_same_on(executor, ds, [], "repeat() found no element")


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_generator_that_is_drained_after_a_round_is_an_error_at_the_element_where_it_ends(executor: Any) -> None:
    def drains() -> Iterator[int]:
        while left:
            yield left.pop()

    left = [3, 2, 1]
    ds = ps.from_generator(drains, element_spec=INT64).repeat().batch(2)
    assert ds.length == math.inf
    with ds.loader(executor) as loader:
        found, text = values(loader)
    assert found == [[1, 2]]
    assert "repeat() found no element" in text
    assert f"up to round {EMPTY_ROUND_COUNT} of epoch 0: from_generator(" in text


# Lengths that are said.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "steps",
    [
        lambda ds: ds.batch(4),
        lambda ds: ds.padded_batch(4),
        lambda ds: ds.map(same, element_spec=INT64).batch(4),
        lambda ds: ds.batch(4).map(same, element_spec=ps.ArraySpec((4,), "int64")),
        lambda ds: ds.map(same, element_spec=INT64).filter(keep).batch(4),
        lambda ds: ps.interleave([ds, ds]).batch(8).map(lambda x: x[::2], element_spec=ps.ArraySpec((4,), "int64")),
        lambda ds: ps.zip((ds, ds)).map(lambda pair: pair[1], element_spec=INT64).batch(4),
        lambda ds: ds.batch(4, drop_remainder=True),
        lambda ds: ds.batch(2).unbatch().batch(4),
        lambda ds: ds.take(100).cache(limit=1 << 20).batch(4),
    ],
    ids=["batch", "padded", "map", "map-after", "stage", "interleave", "zip", "drop", "unbatch", "cache"],
)
def test_a_stream_that_ends_before_its_length_is_an_error_after_its_last_full_batch(executor: Any, steps: Any) -> None:
    ds = steps(stream(7, length=16))
    want = [[0, 1, 2, 3]]
    error = "ended after 7 elements of epoch 0, but its length is 16"
    assert (values(ds)[0], error in values(ds)[1]) == (want, True)
    with ds.loader(executor) as loader:
        for epoch in range(2):
            found, text = values(loader)
            assert found == want
            at = 0 if "cache" in repr(ds) else epoch
            assert f"ended after 7 elements of epoch {at}, but its length is 16" in text


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("length", [None, 64])
def test_a_stream_that_breaks_off_gives_what_came_before_and_then_its_error(executor: Any, length: Any) -> None:
    # Workers make 32 elements at a time for the filter. The last of them are missing.
    broken = ps.from_generator(breaks_at, 42, element_spec=INT64, length=length)
    whole = ps.ArraySpec((None,), "int64", (4,))
    for ds, want in (
        (broken.map(same, element_spec=INT64).filter(keep), list(range(42))),
        (broken.batch(4).map(same, element_spec=whole).filter(keep), np.arange(40).reshape(10, 4).tolist()),
    ):
        for epoch in (ds, ds.loader(executor)):
            found, text = values(epoch)
            assert found == want
            assert text.endswith("failed at element 42 of epoch 0: OSError: gone")


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
def test_worker_processes_say_the_same() -> None:
    mixed = ps.mix([endless_nothing(), ps.range(100).repeat()], [1, 3], seed=1).take(1024)
    short = stream(7, length=16).map(same, element_spec=INT64)
    broken = ps.from_generator(breaks_at, 42, element_spec=INT64, length=64).map(same, element_spec=INT64)
    for ds, want, error in (
        (mixed.batch(8), [], "repeat() found no element in 10 rounds in a row, up to round 9 of epoch 0"),
        (mixed.map(same, element_spec=INT64).batch(4), [[0, 1, 2, 3]], "repeat() found no element in 10 rounds"),
        (short.batch(4), [[0, 1, 2, 3]], "ended after 7 elements of epoch 0, but its length is 16"),
        (broken.filter(keep), list(range(42)), "failed at element 42 of epoch 0: OSError: gone"),
    ):
        with ds.loader("processes", workers=1) as loader:
            found, text = values(loader)
        assert found == want
        assert error in text


def test_a_stream_of_unknown_length_ends_with_a_short_batch() -> None:
    ds = stream(7).batch(4)
    assert ds.length is None
    assert_same_on("threads", ds, [[0, 1, 2, 3], [4, 5, 6]], "")


class Counted(StreamSource):
    """A stream of a user's that says another length than it has."""

    element_spec = INT64
    travels = False

    def __init__(self, count: int, length: Length) -> None:
        self.count, self.length = count, length

    def iterate(self, epoch: int) -> Iterator[Any]:
        return iter(range(self.count))

    def describe(self, index: int) -> str:
        return f"element {index} of counted"


def of_source(count: int, length: Length) -> ps.Dataset:
    return Dataset(Generate(Counted(count, length), "counted", "train.py:41"))


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("length", [8, math.inf])
def test_a_source_that_ends_before_its_length_is_named(executor: Any, length: Length) -> None:
    for ds in (of_source(5, length).batch(4), of_source(5, length).map(same, element_spec=INT64).batch(4)):
        error = f" at train.py:41 ended after 5 elements of epoch 0, but its length is {length}. Batches, steps"
        found, text = values(ds)
        assert found == [[0, 1, 2, 3]]
        assert text.startswith("counted")
        assert error in text
        with ds.loader(executor) as loader:
            assert values(loader) == (found, text)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_no_more_elements_are_given_than_a_source_says(executor: Any) -> None:
    ds = of_source(9, 8).batch(4)
    assert values(ds) == ([[0, 1, 2, 3], [4, 5, 6, 7]], "")
    assert_same_on(executor, ds, [[0, 1, 2, 3], [4, 5, 6, 7]], "")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("count", [0, 3])
def test_no_executor_reads_behind_the_last_element_that_is_taken(executor: Any, count: int) -> None:
    # Of a stream of unknown length, whose next element may be long in coming, or an error.
    ds = ps.from_generator(breaks_at, count, element_spec=INT64).take(count)
    assert values(ds) == (list(range(count)), "")
    assert_same_on(executor, ds, list(range(count)), "")
    assert_same_on(executor, ds.map(same, element_spec=INT64), list(range(count)), "")


FEWER = {
    "take and skip": (lambda ds: ds.take(9).skip(9), []),
    "functions between": (lambda ds: ds.take(9).map(same, element_spec=INT64).skip(9), []),
    "slices": (lambda ds: ds.take(9)[2:7].skip(1).take(100), [3, 4, 5, 6]),
    "dropped batch": (lambda ds: ds.take(8).batch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]]),
    "dropped padded batch": (lambda ds: ds.take(8).padded_batch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]]),
    "dropped batch of batches": (
        lambda ds: ds.take(8).batch(2, drop_remainder=True).batch(3, drop_remainder=True),
        [[[0, 1], [2, 3], [4, 5]]],
    ),
    "functions of batches": (
        lambda ds: ds.take(8).batch(3, drop_remainder=True).map(np.sum, element_spec=INT64),
        [3, 12],
    ),
    "below a filter": (lambda ds: ds.map(same, element_spec=INT64).take(9).skip(9).filter(keep), []),
    "below unbatch": (lambda ds: ds.take(8).batch(3, drop_remainder=True).unbatch(), list(range(6))),
    "below repeat": (lambda ds: ds.take(8).batch(3, drop_remainder=True).repeat(2), [[0, 1, 2], [3, 4, 5]] * 2),
    "in interleave": (lambda ds: ps.interleave([ds.take(9).skip(9), stream(3)]), [0, 1, 2]),
    "in concatenate": (lambda ds: ps.concatenate([stream(2, 2), stream(3, 3), ds.take(9).skip(9)]), [0, 1, 0, 1, 2]),
    "in zip": (
        lambda ds: ps.zip((ds.take(8).batch(3, drop_remainder=True), ps.range(2))).map(lambda pair: pair[1]),
        [0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("steps", "want"), FEWER.values(), ids=FEWER)
@pytest.mark.parametrize("length", [None, 7], ids=["breaks", "ends"])
def test_neither_an_executor_nor_reading_in_order_reads_what_no_element_is_made_of(
    executor: Any, steps: Any, want: list[Any], length: Any
) -> None:
    # They are known by arithmetic, although the length of the stream is not.
    bad = ps.from_generator(breaks_at if length is None else up_to, 7, element_spec=INT64, length=length and 8)
    ds = steps(bad.filter(keep))
    assert values(ds) == (want, "")
    assert_same_on(executor, ds, want, "")


# Steps that somebody wrote, and that claim a length.


@dataclass(frozen=True, eq=False)
class Claims(OneToOne, OneInput):
    """Passes its input on, and claims another length."""

    claimed: Length
    workers_run_it: bool = False

    verb = "claims"

    @property
    def length(self) -> Length:
        return self.claimed

    @property
    def traits(self) -> Traits:
        return Traits(is_parallel=self.workers_run_it)

    def fill(self, reader: Reader, epoch: int, indices: Any, out: Rows, gather: Any) -> None:
        reader.inputs[0].fill(epoch, indices, out, gather)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        yield from reader.inputs[0].sequence(epoch)


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("claimed", [8, math.inf])
@pytest.mark.parametrize("workers_run_it", [False, True])
def test_a_step_that_claims_another_length_is_named(executor: Any, claimed: Any, workers_run_it: bool) -> None:
    ds = Dataset(Claims(stream(6)._node, claimed, workers_run_it)).batch(4)
    assert ds.element_spec == ps.ArraySpec((4,), "int64")
    found, text = values(ds)
    assert found == [[0, 1, 2, 3]]
    assert text.startswith("claims(")
    assert "ended after 6 elements of epoch 0" in text
    with ds.loader(executor) as loader:
        found, text = values(loader)
    assert found == [[0, 1, 2, 3]]
    if workers_run_it:
        assert text.startswith("Batch 1 of epoch 0 needs 8 elements of a stream that ended after 6. claims(")
    else:
        assert text.startswith("claims(")
        assert "ended after 6 elements of epoch 0" in text


def test_a_batch_that_needs_more_of_a_stream_than_it_has_is_an_error_and_no_wait() -> None:
    @dataclass(frozen=True, eq=False)
    class Later(Claims):
        verb = "later"

        def needs(self, start: int, stop: int) -> tuple[int, int]:
            return start + 3, stop + 3

    ds = Dataset(Later(stream(6)._node, 6, workers_run_it=True)).batch(2)
    with ds.loader("threads") as loader:
        found, text = values(loader)
    assert len(found) == 1
    assert text.startswith("Batch 1 of epoch 0 needs 7 elements of a stream that ended after 6. later(")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("source", [ps.range(8), ps.from_arrays(np.arange(8))], ids=["units", "copies"])
def test_a_step_that_does_not_say_where_elements_come_from_gives_no_rows_without_content(
    executor: Any, source: ps.Dataset
) -> None:
    @dataclass(frozen=True, eq=False)
    class Forgets(Reorder, OneInput):
        verb = "forgets"

        def demand(self, epoch: int, indices: Any) -> Any:
            return [Demand(0, epoch, indices[indices < 6], np.flatnonzero(indices < 6))]

    with Dataset(Forgets(source._node)).batch(4).loader(executor) as loader:
        found, text = values(loader)
    assert found in ([], [[0, 1, 2, 3]])  # copies are computed many batches at once
    assert text.startswith("forgets() says where ")
    assert "elements come from, and the others would have no content" in text


# The place.


def test_a_place_of_fixed_size_that_is_not_full_is_refused() -> None:
    spec = ps.range(8).batch(4)._node.spec
    box = Rows.allocate(spec, 2)
    box.set_filled(4)
    box.take(slice(0, 1)).set_filled(np.array([4]))
    for counts in (3, np.array([4, 3])):
        with pytest.raises(
            ps.SpecError, match=r"^3 elements were written into a batch of 4, and the others have no co"
        ):
            box.set_filled(counts)
    varying = Rows.allocate(ps.range(7).batch(4)._node.spec, 2)
    varying.set_filled(np.array([4, 3]))
    assert varying.extents[0] is not None
    assert varying.extents[0].tolist() == [4, 3]


def test_a_batch_that_steps_made_too_short_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelProgram, "row_count", lambda self, epoch, index, length=-1: 3)
    for executor in ("inline", "threads"):
        ds = ps.range(8).map(same, element_spec=INT64).batch(4)
        with ds.loader(executor) as loader, pytest.raises(ps.SpecError, match=r"^3 elements were written into a batch"):  # type: ignore[arg-type]
            next(iter(loader))


@pytest.mark.parametrize(
    "read",
    [
        lambda ds, path: ds.materialize(path),
        lambda ds, path: list(ds.unbatch()),
        lambda ds, path: list(ds.cache(path / "kept")),
    ],
    ids=["materialize", "unbatch", "cache"],
)
def test_whatever_reads_a_dataset_finds_the_same_error(read: Any, tmp_path: Any) -> None:
    ds = ps.mix([endless_nothing(), ps.range(100).repeat()], [1, 3], seed=1).take(16).batch(8)
    with pytest.raises(ps.SpecError, match=r"^repeat\(\) found no element"):
        read(ds, tmp_path)
