"""Shares of batches that do not divide, and batches that come in parts."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.report._counters import Counters
from penstock.run._position import RunPosition
from penstock.testing import assert_same

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")


def shares(dataset: ps.Dataset, count: int, **options: Any) -> list[list[Any]]:
    """What each of some ranks gets in an epoch."""
    found = []
    for index in range(count):
        with dataset.loader(shard=(index, count), **options) as loader:
            found.append(list(loader))
    return found


def test_weights_make_the_mean_over_ranks_the_mean_over_the_batch() -> None:
    parts = shares(ps.range(8).batch(8), 6, uneven="weights", executor="inline")
    assert [rows.tolist() for ((rows, _),) in parts] == [[0], [1], [2, 3], [4], [5], [6, 7]]
    assert [weights.tolist() for ((_, weights),) in parts] == [[0.75], [0.75], [1.5, 1.5], [0.75], [0.75], [1.5, 1.5]]
    assert np.mean([np.mean(rows * weights) for ((rows, weights),) in parts]) == np.arange(8).mean()


def test_weights_of_equal_shares_are_one() -> None:
    ((rows, weights),) = shares(ps.range(8).batch(8), 2, uneven="weights", executor="inline")[1]
    assert rows.tolist() == [4, 5, 6, 7]
    assert weights.tolist() == [1, 1, 1, 1]
    assert weights.dtype == np.float32


def test_a_mask_fills_up_the_last_batch_with_its_own_rows() -> None:
    first, second = shares(ps.range(7).batch(5), 2, uneven="mask", executor="inline")
    assert [(rows.tolist(), mask.tolist()) for rows, mask in first] == [
        ([0, 1, 2], [True, True, True]),
        ([5, 6, 5], [True, True, False]),
    ]
    assert [(rows.tolist(), mask.tolist()) for rows, mask in second] == [
        ([3, 4, 0], [True, True, False]),
        ([6, 5, 6], [False, False, False]),
    ]


def test_one_process_gets_pairs_as_well() -> None:
    with ps.range(5).batch(4).loader("inline", uneven="mask") as loader:
        assert loader.element_spec == (ps.ArraySpec((4,), "int64"), ps.ArraySpec((4,), "bool"))
        assert [mask.tolist() for _, mask in loader] == [[True] * 4, [True, False, False, False]]
    with ps.range(5).batch(4).loader("inline", uneven="weights") as loader:
        assert loader.element_spec[1] == ps.ArraySpec((None,), "float32")
        assert [weights.tolist() for _, weights in loader] == [[1] * 4, [1]]


def named(x: Any) -> Any:
    return {"name": f"row {x}", "x": np.full(3, x)}


PLANS = {
    "copies": ps.from_arrays({"x": np.arange(56).reshape(28, 2), "y": np.arange(28.0)}).shuffle(seed=1).batch(8),
    "functions": ps.range(28).shuffle(seed=1).map(named).batch(8),
    "batches in one piece": ps.range(28).batch(8).map(lambda rows: rows * 2),
    "casts": ps.range(28).batch(8).cast("float32"),
    "a stream": ps.range(28).filter(lambda x: True).map(named).batch(8),
    "a generator": ps.from_generator(range, 28, element_spec=ps.ArraySpec((), "int64")).batch(8),
}


@pytest.mark.parametrize("uneven", ["mask", "weights"])
@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PLANS)
def test_every_executor_gives_the_same(name: str, executor: Any, uneven: str) -> None:
    if uneven == "weights" and PLANS[name].length is None:
        pytest.skip("a stream of unknown length takes a mask")
    for index in range(3):
        options: Any = {"uneven": uneven, "shard": (index, 3)}
        with (
            PLANS[name].loader("inline", **options) as oracle,
            PLANS[name].loader(executor, workers=2, **options) as loader,
        ):
            assert loader.element_spec == oracle.element_spec
            for _ in range(2):
                for found, want in zip(loader, oracle, strict=True):
                    assert_same(found, want)


def test_ranks_of_a_stream_get_equally_many_batches() -> None:
    parts = shares(PLANS["a stream"], 3, uneven="mask", executor="inline")
    assert {len(mine) for mine in parts} == {4}
    found = [x for batches in zip(*parts, strict=True) for rows, mask in batches for x in rows["x"][mask, 0].tolist()]
    assert found == list(range(28))


def broken(x: Any) -> Any:
    if x % 5 == 3:
        raise ValueError("broken")
    return x


@pytest.mark.parametrize("uneven", ["mask", "weights"])
def test_elements_that_fail_are_replaced_in_shares_too(uneven: str, tmp_path: Path) -> None:
    dataset = ps.range(28).map(broken).batch(8)
    options: Any = {"on_error": "replace", "quarantine": tmp_path / "bad.jsonl", "executor": "inline"}
    with dataset.loader(**options) as loader:
        whole = [batch.tolist() for batch in loader]
    parts = shares(dataset, 3, uneven=uneven, **options)
    for number, want in enumerate(whole):
        rows = [part[number] for part in parts]
        assert [x for row, mark in rows for x in row[mark > 0].tolist()] == want


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (
            ps.range(8).batch(8),
            {"uneven": "fill"},
            r"uneven='fill' is not known\. Use 'refuse', 'weights' .*, or 'mask'",
        ),
        (ps.range(8).batch(8), {"micro_batches": 0}, "micro_batches=0 is below 1"),
        (
            ps.range(8).batch(8),
            {"shard": (0, 6)},
            r"8 elements, which 6 shards cannot share evenly.*uneven='weights'; for evaluation uneven='mask'",
        ),
        (
            ps.range(10).batch(8),
            {"shard": (0, 4), "uneven": "weights"},
            "A batch has 2 elements, too few for 4 shards: a share would be empty.*uneven='mask', which fills up",
        ),
        (
            ps.range(8).batch(8),
            {"shard": (0, 2), "micro_batches": 3},
            "8 elements, which 2 shards of 3 micro-batches each cannot .* Or use a batch size that 6 divides",
        ),
        (
            ps.range(8),
            {"uneven": "mask"},
            r"uneven='mask' divides the rows of each batch, but elements .* Put batch\(\)",
        ),
        (ps.range(8), {"micro_batches": 2}, "micro_batches=2 divides the rows of each batch, but elements"),
        (PLANS["a stream"], {"uneven": "weights"}, "stream of unknown length.*or uneven='mask'"),
    ],
)
def test_what_has_no_meaning_is_refused(dataset: ps.Dataset, options: Any, message: str) -> None:
    with pytest.raises(ps.ArgumentError, match=message):
        dataset.loader("inline", **options)


def cut(rows: Any) -> Any:
    return rows[:5] if rows[0] else rows


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": (1, 2)}, "A batch has 5 elements, which 2 shards cannot share evenly"),
        ({"micro_batches": 2}, "A batch has 5 elements, which 2 parts cannot share evenly"),
        (
            {"shard": (0, 6), "uneven": "weights"},
            "A batch has 5 elements, which 6 shards cannot share without an empty",
        ),
    ],
)
def test_shares_of_what_a_function_makes_of_a_batch_are_equal_or_refused(
    executor: Any, options: Any, message: str
) -> None:
    dataset = ps.range(16).batch(8).map(cut, element_spec=ps.ArraySpec((None,), "int64", (8,)))
    with dataset.loader(executor, workers=1, **options) as loader:
        found = iter(loader)
        assert len(next(found)) == (2 if "uneven" in options else 4)
        if "micro_batches" in options:
            next(found)
        with pytest.raises(ps.SpecError, match=message) as caught:
            next(found)
    assert "This was in batch 1 of epoch 0." in caught.value.__notes__


def test_a_function_that_declares_what_it_makes_of_short_batches_is_not_judged_by_these() -> None:
    full, twice = ps.ArraySpec((8,), "int64"), ps.ArraySpec((None,), "int64", (16,))
    padded = ps.range(11).batch(8).map(lambda rows: np.resize(rows, 8), element_spec=full)
    doubled = ps.range(11).batch(8).map(lambda rows: np.repeat(rows, 2), element_spec=twice)
    assert [[len(rows) for rows in mine] for mine in shares(padded, 4, executor="inline")] == [[2, 2]] * 4
    assert [[len(rows) for rows in mine] for mine in shares(doubled, 2, executor="inline")] == [[8, 3]] * 2


# Micro-batches.


@pytest.mark.parametrize("name", ["copies", "batches in one piece"])
def test_a_batch_comes_in_parts_and_the_state_counts_whole_ones(name: str) -> None:
    dataset = PLANS[name].take(3)
    with dataset.loader("threads") as whole, dataset.loader("threads", micro_batches=4, prefetch=1) as loader:
        assert len(loader) == 12
        assert loader.element_spec == ps.Dataset(dataset._node).loader("inline", shard=(0, 4)).element_spec
        for epoch in range(2):
            pieces = iter(loader)
            for position, batch in enumerate(whole):
                mine = []
                for _ in range(4):
                    state = loader.get_state()
                    assert (state["epoch"], state["position"]) == (epoch, position)
                    mine.append(next(pieces))
                leaves = [list(piece.values()) if isinstance(piece, dict) else [piece] for piece in mine]
                wanted = list(batch.values()) if isinstance(batch, dict) else [batch]
                for number, want in enumerate(wanted):
                    assert np.array_equal(np.concatenate([leaf[number] for leaf in leaves]), want)
            assert next(pieces, None) is None


def test_a_state_within_a_batch_has_the_batch_again() -> None:
    with ps.range(24).batch(8).loader("inline", micro_batches=2) as loader:
        pieces = iter(loader)
        first = [next(pieces).tolist() for _ in range(3)]
        loader.set_state(loader.get_state())
        assert next(iter(loader)).tolist() == first[2]
        next(iter(loader))
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        assert loader.get_state()["epoch"] == 2  # a break within the first batch ends the epoch, too


def test_weights_of_parts_are_those_of_their_share() -> None:
    parts = shares(ps.range(11).batch(11), 2, uneven="weights", micro_batches=3, executor="inline")
    assert [[rows.tolist() for rows, _ in mine] for mine in parts] == [[[0], [1, 2], [3, 4]], [[5, 6], [7, 8], [9, 10]]]
    means = [np.mean([np.mean(rows * weights) for rows, weights in mine]) for mine in parts]
    np.testing.assert_allclose(np.mean(means), 5)


def test_the_report_counts_the_elements_of_a_part() -> None:
    with ps.range(64).batch(16).loader("inline", shard=(0, 2), micro_batches=2) as loader:
        list(loader)
        report = loader.report()
    assert (report.batches, report.elements_per_batch) == (8, 4)


@pytest.mark.parametrize(("owner", "name"), [(Counters, "delivered"), (RunPosition, "step")])
def test_ctrl_c_between_the_parts_of_a_batch_loses_none_and_repeats_none(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ps.range(18).batch(6).loader("inline", micro_batches=3) as loader:
        iterator = iter(loader)
        found = []
        for _ in range(6):
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(owner, name, _interrupted)  # each part, or the last one, on its way out
                found += next(iterator).tolist()
                continue
            found += next(iterator).tolist()
        assert found == list(range(12))
        assert loader.get_state()["position"] == 2


def _interrupted(*_: object, **__: object) -> float:
    raise KeyboardInterrupt
