"""Runs that go on with another number of ranks and another global batch: each element once, in the same order."""

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings, strategies as st

import penstock as ps
from tests.strategies import Csr

DATA = np.arange(144, dtype=np.int64)


def noisy(x: Any, rng: Any) -> Any:
    return x * 1000 + rng.integers(1000)


def x_of(window: Any) -> Any:
    return window["x"]


LENGTHS = 2 + DATA % 2


def sequence_of(x: Any) -> Any:
    return np.full(LENGTHS[x], x)


def tokens_of(row: Any) -> Any:
    return row[0].sum() * 1000 + row[0].max()


def doubled(batch: Any) -> Any:
    return batch * 2


def copies() -> ps.Dataset:
    return ps.from_arrays(DATA).shuffle(seed=3)


PLANS: dict[str, Callable[[int], ps.Dataset]] = {
    "copies": lambda size: copies().batch(size),
    "windows": lambda size: ps.from_arrays(DATA).windows(1).shuffle(seed=3).batch(size),
    "offsets": lambda size: (
        ps.from_arrays({"x": DATA}).windows({"x": [0]}, groups=DATA % 5).shuffle(3).map(x_of).batch(size)
    ),
    "functions": lambda size: ps.range(144).shuffle(seed=3).random_map(noisy, seed=2).batch(size),
    "functions of batches": lambda size: copies().batch(size).map(doubled).cast("float64"),
    "buckets": lambda size: (
        copies().map(np.atleast_1d).bucket_by_length(lengths=DATA * 7 % 50, batch_size=12, padded_shapes=(1,))
    ),
    "packs": lambda size: (
        copies()
        .map(sequence_of, element_spec=ps.ArraySpec((None,), "int64"))
        .pack(5, lengths=LENGTHS, fit="best", split=False)
        .map(tokens_of)
        .batch(size)
    ),
    "padded": lambda size: copies().padded_batch(size, padded_shapes=()),
    "sparse rows": lambda size: ps.from_csr(Csr(DATA[:, None])).shuffle(seed=3).batch(size),
    "rounds": lambda size: ps.from_arrays(DATA[:36]).shuffle(seed=3).repeat(4).batch(size),
    "balanced": lambda size: ps.from_arrays(DATA).sample(balance=DATA % 5, seed=2).batch(size),
    "exact classes": lambda size: ps.from_arrays(DATA).sample(balance=DATA % 4, per_class=3, seed=2).batch(size),
    "stages": lambda size: (
        ps.mix([copies().repeat(), copies().map(np.negative).repeat()], {0: [3, 1], 50: [1, 4]}).take(144).batch(size)
    ),
    "combined": lambda size: (
        ps.concatenate([ps.from_arrays(DATA[:60]), ps.from_arrays(DATA[60:])]).shuffle(1).batch(size)
    ),
}


NAMES = sorted(PLANS)
ORDERS = {
    name: [[row for batch in loader for row in np.ravel(batch).tolist()] for _ in range(3)]
    for name, plan in PLANS.items()
    for loader in [plan(12).loader("inline")]
}

phases = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([12, 24, 36, 60]), st.integers(0, 9)),
    min_size=1,
    max_size=5,
)
uneven_phases = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(6, 60),
        st.integers(0, 9),
        st.sampled_from(["weights", "mask"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", NAMES)
@given(phases=phases)
@settings(max_examples=settings.default.max_examples // 3)
def test_other_ranks_and_another_global_batch_go_on_exactly(name: str, phases: list[tuple[int, int, int]]) -> None:
    """A phase is `(ranks, global batch, batches before the save)`."""
    check(name, [(*phase, "refuse", 1) for phase in phases])


@pytest.mark.parametrize("name", NAMES)
@given(phases=uneven_phases)
@settings(max_examples=settings.default.max_examples // 3)
def test_ranks_and_batches_that_do_not_divide_go_on_exactly(name: str, phases: list[Any]) -> None:
    """A phase is `(ranks, global batch, batches before the save, uneven, micro-batches)`."""
    check(name, phases)


def check(name: str, phases: list[tuple[int, int, int, str, int]]) -> None:
    got: list[float] = []
    epoch, state = 0, None
    for ranks, size, count, uneven, pieces in [*phases, (1, 12, 99, "refuse", 1)]:
        with contextlib.ExitStack() as stack:
            loaders = []
            for rank in range(ranks):
                try:
                    options: Any = {"uneven": uneven, "micro_batches": pieces, "shard": (rank, ranks)}
                    loader = PLANS[name](size).loader(executor="threads", workers=1, prefetch=1, **options)
                    loaders.append(stack.enter_context(loader))
                    if state is not None:
                        loader.set_state(json.loads(state))
                except ps.ArgumentError:  # a short batch has fewer rows than there are shares
                    assert uneven == "weights"
                    reject()
            ends = [iter(loader) for loader in loaders]
            for _ in range(count):
                parts = [list(itertools.islice(batches, pieces)) for batches in ends]
                if not parts[0]:
                    break
                got += rows_of(parts, uneven)
            for batches in ends[: pieces > 1]:  # the first rank stops in the middle of a batch
                next(batches, None)
            saved = {json.dumps(loader.get_state()) for loader in loaders}
            assert len(saved) == 1
            state = saved.pop()
            if len(got) == len(ORDERS[name][epoch]):
                assert got == ORDERS[name][epoch]
                epoch, got = epoch + 1, []
            if epoch == 2:
                return
    assert not got


def rows_of(parts: list[list[Any]], uneven: str) -> list[float]:
    """The rows of a global batch, of which each rank got some pieces; weights and masks are what they should be."""
    if uneven == "refuse":
        return [row for pieces in parts for piece in pieces for row in np.ravel(piece).tolist()]
    pieces = [piece for mine in parts for piece in mine]
    assert {len(mine) for mine in parts} == {len(parts[0])}
    if uneven == "mask":
        assert len({len(rows) for rows, _ in pieces}) == 1
        found = [np.ravel(rows)[mask] for rows, mask in pieces]
        every = np.concatenate([np.ravel(rows) for rows, _ in pieces])
        rows = np.concatenate(found)
        assert set(every.tolist()) == set(rows.tolist())
        return list(rows.tolist())
    sizes = [len(rows) for rows, _ in pieces]
    assert max(sizes) - min(sizes) <= 1
    rows = np.concatenate([np.ravel(rows) for rows, _ in pieces])
    means = [np.mean(np.ravel(rows).astype(float) * weights.astype(float)) for rows, weights in pieces]
    error = 1e-6 * np.abs(rows).max()  # weights are float32, and the mean may be near zero
    np.testing.assert_allclose(np.mean(means), rows.mean(), rtol=0, atol=error)
    return list(rows.tolist())
