"""Any plan, whether or not its streams keep their lengths: no row is handed out that nobody wrote.

Memory is poisoned before it is filled (`conftest.py`), and the model says which rows there are. So a row that nobody
wrote differs from the model, and looks like nothing else.

`PENSTOCK_PLANS` is the number of plans for each test.
"""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import penstock as ps
from penstock.base import _tree
from penstock.base._tree import Tree
from penstock.testing import assert_fits, assert_same
from tests.properties.conftest import POISON
from tests.properties.streams import dealt, uneven_streams
from tests.strategies import INT64, MOVES, Plan, _batches, plans

PLANS = int(os.environ.get("PENSTOCK_PLANS", "12"))
MOST = 40
EPOCHS = range(2)
PROMISE = "ended after "
CAUSES = (PROMISE, "repeat() found no element in 10 rounds", "OSError: broken")
RUNS = st.sampled_from([("inline", 1), ("threads", 1), ("threads", 3)])
Given = tuple[list[Tree], str]


def read(epoch: Iterable[Tree]) -> Given:
    """What an epoch gives, each element as it is handed out, and the error at its end."""
    given: list[Tree] = []
    try:
        given.extend(itertools.islice(epoch, MOST))
    except (ps.SpecError, ps.ElementError) as error:
        return given, str(error)
    return given, ""


def assert_written(plan: Plan, epoch: int, found: Given) -> None:
    given, error = found
    want = plan.elements(epoch)
    for element, wanted in zip(given, want, strict=False):
        assert_same(element, wanted)
    assert len(given) <= len(want)
    if error:
        assert any(cause in error for cause in CAUSES), error
    else:
        assert len(given) == len(want)
        assert plan.dataset.length in (None, len(want))


def loader_of(plan: Plan, run: tuple[Any, int], prefetch: int) -> ps.Loader:
    # A complete cache says that there is nothing, and then a loader is refused.
    assume("cache" not in repr(plan.dataset) or plan.elements(0))
    return plan.dataset.loader(run[0], workers=run[1], prefetch=prefetch)


def first_line(text: str) -> str:
    return text.partition("\n")[0]


@given(plan=uneven_streams(max_steps=6), run=RUNS, prefetch=st.integers(1, 3))
@settings(max_examples=PLANS)
def test_iterating_and_every_executor_give_the_written_rows_and_then_the_same_error(
    plan: Plan, run: tuple[str, int], prefetch: int
) -> None:
    in_order = read(plan.dataset)
    assert_written(plan, 0, in_order)
    for element in in_order[0]:
        assert_fits(element, plan.dataset.element_spec)
    with loader_of(plan, run, prefetch) as loader:
        for epoch in EPOCHS:
            found = read(loader)
            assert_written(plan, epoch, found)
            if epoch == 0:
                assert len(found[0]) == len(in_order[0])
                assert first_line(found[1]) == first_line(in_order[1])
            if found[1]:
                break


def has_rows(plan: Plan) -> bool:
    return plan.is_uniform and not plan.has_text and bool(plan.elements(0))


@given(
    plan=uneven_streams(max_steps=4).filter(has_rows),
    size=st.integers(1, 3),
    run=RUNS,
    uneven=st.sampled_from(["weights", "mask"]),
)
@settings(max_examples=PLANS)
def test_shards_give_the_written_rows_of_each_batch(plan: Plan, size: int, run: tuple[Any, int], uneven: Any) -> None:
    batches = plan.dataset.batch(2 * size)
    whole = read(batches)
    shares = []
    try:
        batches.loader("inline", shard=(0, 2), uneven=uneven).close()
    except ps.ArgumentError:  # weights need shares of a known size
        uneven = "mask"
    for index in range(2):
        with batches.loader(run[0], workers=run[1], shard=(index, 2), uneven=uneven) as loader:
            shares.append(read(loader))
    assert [len(share) for share, _ in shares] == [len(whole[0])] * 2
    assert {first_line(error) for _, error in shares} == {first_line(whole[1])}
    for batch, *mine in zip(whole[0], *(share for share, _ in shares), strict=True):
        rows = [_tree.flatten(part[0])[0] for part in mine]
        for leaf, *halves in zip(_tree.flatten(batch)[0], *rows, strict=True):
            together = np.concatenate(halves)
            if uneven == "mask":
                together = together[np.concatenate([part[1] for part in mine])]
            assert_same(together, leaf)


@given(plan=plans(verbs=MOVES), prefetch=st.integers(1, 3))
@settings(max_examples=PLANS)
def test_the_copy_engine_gives_the_written_rows(plan: Plan, prefetch: int) -> None:
    with loader_of(plan, ("threads", 2), prefetch) as loader:
        for epoch in EPOCHS:
            assert_written(plan, epoch, read(loader))


@pytest.mark.parametrize("count", [7, 10, 12])
def test_the_model_has_no_short_batch_where_the_length_says_that_none_is(count: int) -> None:
    numbers = ps.from_generator(dealt, 0, 1, count, element_spec=INT64, length=12)
    plan = _batches(2, _batches(3, Plan(numbers, lambda epoch: [np.int64(i) for i in range(count)])))
    assert len(plan.elements(0)) == count // 6
    given, error = read(plan.dataset)
    assert_written(plan, 0, (given, error))
    assert (PROMISE in error) == (count < 12)


def test_a_row_that_nobody_wrote_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # The check of the check: half of each batch is not written.
    ds = ps.range(8).map(lambda x: x, element_spec=ps.ArraySpec((), "int64")).batch(4)
    monkeypatch.setattr("penstock.plan._batch.Batch.fill_rows", lambda *args: None)
    with ds.loader("threads", workers=1) as loader:
        poison = int(np.frombuffer(bytes([POISON]) * 8, np.int64)[0])
        assert [batch.tolist() for batch in loader] == [[poison] * 4] * 2
