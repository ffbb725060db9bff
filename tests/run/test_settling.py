"""Once `cache` holds all that functions make, an `auto` loader goes on without the functions, and without workers
for them; what it delivers is the same, and it is where it was."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.lower._rewrite import _asked
from tests import leftovers

COUNT = 24


def image(i: Any) -> Any:
    return np.full((5, 3), i, "float32"), np.int64(i) * 2


def kept(path: Any = None, **options: Any) -> ps.Dataset:
    return ps.range(COUNT).map(image).cache(path, **options)


def epochs(loader: ps.Loader, count: int) -> list[list[tuple[bytes, bytes]]]:
    return [[(x.tobytes(), y.tobytes()) for x, y in loader] for _ in range(count)]


def executor_of(loader: ps.Loader) -> str:
    return loader.report().executor


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_epoch_after_the_one_that_filled_it_runs_on_threads(tmp_path: Path, on_disk: bool) -> None:
    ds = kept(tmp_path if on_disk else None).shuffle(seed=3).batch(5)
    inline, auto = ds.loader(executor="inline"), ds.loader(workers=2)
    others = leftovers.children()  # such as the resource tracker of multiprocessing, once any test has started it
    with inline, auto:
        nbytes = auto.projected_nbytes
        first = epochs(auto, 1)
        assert executor_of(auto) == "processes"
        assert auto._delivery is not None
        assert len(auto._delivery.pids()) == 2
        held = next(iter(auto))
        before = [leaf.copy() for leaf in held]
        assert (executor_of(auto), auto._delivery.pids(), leftovers.children() - others) == ("threads", [], set())
        assert "The cache has all that is asked for" in str(auto.report())
        assert auto.report().batches == 1  # what is said is of the time since then
        rest = epochs(auto, 2)
        assert all((now == then).all() for now, then in zip(held, before, strict=True))
        assert auto.projected_nbytes == nbytes
        expected = epochs(inline, 4)
    assert [first[0], *rest] == [expected[0], *expected[2:]]


def test_a_later_run_starts_no_process_and_needs_no_function(tmp_path: Path) -> None:
    calls: list[int] = []
    lock = threading.Lock()  # which cannot travel to another process

    def function(i: Any) -> Any:
        with lock:
            calls.append(int(i))
        return image(i)

    def dataset() -> ps.Dataset:
        return ps.range(COUNT).map(function).cache(tmp_path, key="images").batch(4)

    with dataset().loader(executor="inline") as loader:
        (expected,) = epochs(loader, 1)
    calls.clear()
    with dataset().loader() as loader:
        assert executor_of(loader) == "threads"
        assert "function" not in str(loader.report())
        assert epochs(loader, 2) == [expected, expected]
    assert calls == []


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
def test_where_it_goes_on_is_where_it_was(tmp_path: Path) -> None:
    ds = kept(tmp_path).shuffle(seed=1).batch(4)
    with ds.loader(executor="inline") as inline:
        expected = epochs(inline, 3)
    with ds.loader(workers=1) as loader:
        epochs(loader, 1)
        loader.set_state({**loader.get_state(), "epoch": 1, "position": 4})
        assert epochs(loader, 2) == [expected[1][4:], expected[2]]
        assert executor_of(loader) == "threads"
        assert (loader.get_state()["epoch"], loader.get_state()["position"]) == (3, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize(
    ("ds", "options"),
    [
        pytest.param(kept, {"executor": "processes"}, id="processes were asked for"),
        pytest.param(lambda path: kept(path, limit=COUNT * 50), {}, id="not all has room"),
        pytest.param(lambda path: kept(path).map(lambda each: (each[0] + 1, each[1])), {}, id="a function is left"),
        pytest.param(
            lambda path: ps.zip((kept(path), ps.range(COUNT).map(image))), {}, id="another branch has a function"
        ),
        pytest.param(kept, {"on_error": "skip"}, id="a stream"),
    ],
)
def test_it_stays_on_processes(tmp_path: Path, ds: Any, options: dict[str, Any]) -> None:
    with ds(tmp_path).loader(workers=1, **options) as loader:
        first = list(loader)
        second = list(loader)
        assert executor_of(loader) == "processes"
    for one, other in zip(first, second, strict=True):
        assert repr(one) == repr(other)


PLANS = {
    "a part of a split": lambda ds: ds.split(0.5, 0.3, 0.2)[1].shuffle(seed=1).batch(3),
    "a slice, backwards": lambda ds: ds[18:3:-2].batch(3),
    "neighbours": lambda ds: ps.zip((ds[:7], ds[1:8])).batch(2),
    "windows": lambda ds: ds.take(9).windows(3, shift=2).shuffle(seed=2).batch(2),
    "a short last batch that is dropped": lambda ds: ds.take(10).shuffle(seed=1).batch(4, drop_remainder=True),
    "some batches": lambda ds: ds.batch(4)[1:3],
    "some of a new order": lambda ds: ds.take(8).shuffle(seed=1)[:3].batch(3),
    "rounds": lambda ds: ds.skip(20).shuffle(seed=1).repeat(3).batch(5),
    "without an end": lambda ds: ds.take(4).repeat().batch(3),
    "one after the other": lambda ds: ps.concatenate([ds[2:4], ds[10:12]]).batch(2),
    "mixed": lambda ds: ps.mix([ds[:6], ds[12:]], [1, 2]).batch(2),
    "out of batches": lambda ds: ds.batch(6)[1:3].unbatch().batch(5),
}


@pytest.mark.parametrize("name", PLANS)
def test_no_epoch_asks_for_more_than_is_said(name: str) -> None:
    cache = (
        ps.range(COUNT).map(image, element_spec=(ps.ArraySpec((5, 3), "float32"), ps.ArraySpec((), "int64"))).cache()
    )
    plan = PLANS[name](cache)
    said = _asked(plan._node, cache._node)
    assert said is not None
    asked: set[int] = set()
    with plan.loader(executor="inline") as loader:
        for _ in range(4):
            for batch, _ in zip(loader, range(20), strict=False):
                asked.update(int(x) // 2 for x in np.ravel(_labels(batch)))
    assert asked <= set(said.nonzero()[0].tolist())
    if name not in ("a short last batch that is dropped", "some of a new order"):  # of which four epochs may lack some
        assert asked == set(said.nonzero()[0].tolist())


def _labels(batch: Any) -> Any:
    return np.concatenate([np.ravel(each[1] if isinstance(each, tuple) else batch[1]) for each in batch])


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("name", [name for name in PLANS if name != "without an end"])
def test_a_plan_that_asks_for_a_part_needs_no_more(name: str, tmp_path: Path) -> None:
    plan = PLANS[name](kept(tmp_path))
    count = 12  # epochs, in which all will have been asked for
    with plan.loader(executor="inline") as loader:
        expected = [repr(list(loader)) for _ in range(count)]
    for file in tmp_path.glob("*/*"):
        file.unlink()
    with PLANS[name](kept(tmp_path)).loader(workers=1) as loader:
        assert [repr(list(loader)) for _ in range(count)] == expected
        assert executor_of(loader) == "threads"


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
def test_an_epoch_that_was_left_early_leaves_it_as_it_is(tmp_path: Path) -> None:
    with kept(tmp_path).batch(1).loader(workers=1, prefetch=1) as loader:
        for _ in loader:
            break
        iter(loader)
        assert executor_of(loader) == "processes"
        epochs(loader, 2)
        assert executor_of(loader) == "threads"


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
def test_elements_that_failed_keep_the_function(tmp_path: Path) -> None:
    def function(i: Any) -> Any:
        if i == 7:
            raise ValueError("no")
        return image(i)

    ds = ps.range(COUNT).map(function).cache(tmp_path / "kept").batch(4)
    with ds.loader(workers=1, on_error="replace", quarantine=tmp_path / "bad.jsonl") as loader:
        (first, second) = epochs(loader, 2)
        assert first == second
        assert executor_of(loader) == "processes"
        assert loader.report().set_aside == 1


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("damage", ["no mark", "another life"])
def test_what_a_cache_does_not_vouch_for_is_made_again(tmp_path: Path, damage: str) -> None:
    ds = kept(tmp_path).batch(4)
    with ds.loader(executor="inline") as loader:
        (expected,) = epochs(loader, 1)
    (index,) = tmp_path.glob("*/index.npy")
    marks = np.load(index, mmap_mode="r+")
    marks[9] = 0 if damage == "no mark" else marks[9] ^ 2
    del marks
    with kept(tmp_path).batch(4).loader(workers=1) as loader:
        assert executor_of(loader) == "processes"
        assert epochs(loader, 2) == [expected, expected]
        assert executor_of(loader) == "threads"
