"""Once `cache` holds all that functions make, an `auto` loader goes on without the functions, and without workers
for them; what it delivers is the same, and it is where it was."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
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


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_epoch_after_the_one_that_filled_it_runs_on_threads(tmp_path: Path, on_disk: bool) -> None:
    ds = kept(tmp_path if on_disk else None).shuffle(seed=3).batch(5)
    inline, auto = ds.loader(executor="inline"), ds.loader(workers=2)
    with inline, auto:
        nbytes = auto.projected_nbytes
        first = epochs(auto, 1)
        assert executor_of(auto) == "processes"
        assert auto._pipeline is not None
        assert len(auto._pipeline.pids()) == 2
        held = next(iter(auto))
        before = [leaf.copy() for leaf in held]
        assert (executor_of(auto), auto._pipeline.pids(), leftovers.children()) == ("threads", [], set())
        assert "The cache holds every element" in str(auto.report())
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


def test_an_epoch_that_was_left_early_leaves_it_as_it_is(tmp_path: Path) -> None:
    with kept(tmp_path).batch(1).loader(workers=1, prefetch=1) as loader:
        for _ in loader:
            break
        iter(loader)
        assert executor_of(loader) == "processes"
        epochs(loader, 2)
        assert executor_of(loader) == "threads"


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
