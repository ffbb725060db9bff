"""Caches of streams: read once, then random access."""

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same
from tests.plan.test_cache import EXECUTORS, RAGGED, Pair, Stream, numbers, ragged, where, workers_of

__all__ = ["where"]  # a fixture

pytestmark = pytest.mark.usefixtures("workers_stay")


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_stream_is_read_once_and_then_has_random_access(executor: Any, tmp_path: Path) -> None:
    stream = Stream(50)
    kept = ps.from_generator(stream).cache(tmp_path)
    assert kept.access == "stream"
    with kept.batch(8).loader(executor=executor) as loader:
        for _ in range(3):
            assert [int(y) for batch in loader for y in batch["y"]] == list(range(50))
    assert stream.given <= 51  # and one to see what they look like
    begun = stream.begun
    again = ps.from_generator(stream).cache(tmp_path)
    assert (again.access, len(again), int(again[-1]["y"])) == ("random", 50, 49)
    assert "cache(" in repr(again)
    assert "from_generator" not in repr(again)
    with again.shuffle(1).batch(8).loader(executor=executor) as loader:
        order = [int(y) for batch in loader for y in batch["y"]]
    assert order != sorted(order)
    assert sorted(order) == list(range(50))
    assert stream.begun == begun
    assert (np.load(next(tmp_path.glob("*/0.npy"))) == np.arange(50)[:, None]).all()


def _words() -> Iterator[Any]:
    for number in range(20):
        yield ragged(number)


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_stream_with_functions_is_kept_on_every_executor(executor: Any, where: dict[str, Any]) -> None:
    kept = ps.from_generator(_words, element_spec=RAGGED).map(lambda x: x[0], element_spec=RAGGED[0]).cache(**where)
    with kept.loader(executor=executor, workers=workers_of(executor)) as loader:
        for _ in range(2):
            assert [element.tolist() for element in loader] == [list(range(number)) for number in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_stream_whose_length_was_said_is_begun_once(executor: Any, where: dict[str, Any], tmp_path: Path) -> None:
    def words() -> Iterator[Any]:
        with (tmp_path / "begun").open("a") as begun:
            begun.write("x")
        yield from map(ragged, range(20))

    # A loader knows how many there are, and asks for no more.
    kept = ps.from_generator(words, element_spec=RAGGED, length=20).cache(**where)
    with kept.loader(executor=executor, workers=1) as loader:
        for _ in range(3):
            for number, element in enumerate(loader):
                assert_same(element, ragged(number))
    assert (tmp_path / "begun").read_text() == "x"


def test_of_a_stream_that_was_not_read_to_its_end_nothing_is_used(tmp_path: Path) -> None:
    stream = Stream(5000)
    elements = iter(ps.from_generator(stream).cache(tmp_path))
    for _ in range(4000):
        next(elements)
    elements.close()
    again = ps.from_generator(stream).cache(tmp_path)
    assert again.access == "stream"
    assert [int(element["y"]) for element in again] == list(range(5000))
    assert len(ps.from_generator(stream).cache(tmp_path)) == 5000


def test_two_readers_of_a_stream_do_not_write_at_once(tmp_path: Path) -> None:
    stream = Stream(2500)
    kept = ps.from_generator(stream).cache(tmp_path)
    one, other = iter(kept), iter(kept)
    for _ in range(2000):
        assert int(next(one)["y"]) == int(next(other)["y"])
    assert len(list(other)) == 500  # who did not write
    assert ps.from_generator(stream).cache(tmp_path).access == "stream"
    assert len(list(one)) == 500
    assert ps.from_generator(stream).cache(tmp_path).access == "random"


def test_a_stream_beyond_its_limit_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ps.from_generator(Stream(20_000)).cache(tmp_path, limit=50_000)
    for _ in range(2):
        assert sum(1 for _ in kept) == 20_000
    assert "limit=50,000 bytes is reached, and a stream is kept whole or not" in caplog.text
    assert sum(file.stat().st_blocks for file in tmp_path.rglob("*.npy")) * 512 < 50_000


def test_a_stream_in_memory_needs_a_limit_or_a_length() -> None:
    with pytest.raises(ps.ArgumentError, match=r"needs limit=, in bytes, because it is not known ahead how many"):
        ps.from_generator(Stream(3)).cache().loader()
    kept = ps.from_generator(Stream(3), length=3).cache()
    assert [int(element["y"]) for element in kept] == [0, 1, 2]


def _large() -> Iterator[Any]:
    for number in range(100):
        yield np.full((number % 3 + 1) << 17, number, "uint8")


def test_a_stream_of_large_ragged_elements_is_kept_and_read_some_at_a_time(where: dict[str, Any]) -> None:
    options = where if "path" in where else {"limit": 30 << 20}
    kept = ps.from_generator(_large, element_spec=ps.ArraySpec((None,), "uint8")).cache(**options)
    peaks = []
    with kept.loader(executor="inline") as loader:
        for _ in range(2):  # it is made and written, and then read
            tracemalloc.start()
            sizes = [len(x) for x in loader]
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert sizes == [len(x) for x in _large()]
    assert max(peaks) < 8 << 20  # of 25 MiB


def _pairs() -> Iterator[Any]:
    for number in range(5):
        yield Pair(number, "text")


def test_structure_of_a_class_of_the_user_is_asked_of_the_stream(tmp_path: Path) -> None:
    list(ps.from_generator(_pairs).cache(tmp_path))
    kept = ps.from_generator(_pairs).cache(tmp_path)
    assert kept.access == "random"
    assert_same(kept[3], Pair(np.int64(3), "text"))


def test_a_dtype_from_outside_numpy_is_asked_of_the_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for _ in range(2):
        kept = ps.from_generator(lambda: (np.full(2, x, bfloat16) for x in range(5))).cache(tmp_path / "kept")
        assert [(row.dtype, row.tolist()) for row in kept] == [(np.dtype(bfloat16), [x, x]) for x in range(5)]
    assert kept.access == "random"
    assert not caplog.records


def test_a_filter_is_random_access_once_it_is_kept(tmp_path: Path) -> None:
    for access in ("stream", "random"):
        kept = ps.range(20).filter(lambda x: x % 3 == 0).cache(tmp_path)
        assert kept.access == access
        assert numbers(kept.batch(4), executor="threads") == [0, 3, 6, 9, 12, 15, 18]


def test_elements_of_a_stream_that_is_kept_cannot_be_left_out(tmp_path: Path) -> None:
    kept = ps.from_generator(Stream(9)).map(lambda x: x["y"]).cache(tmp_path)
    with pytest.raises(
        ps.ArgumentError, match=r"keeps an epoch of a stream for all epochs and runs to come.*\[\] where"
    ):
        kept.batch(3).loader(on_error="skip")


def test_materialize_into_a_new_folder_needs_no_fingerprint(tmp_path: Path) -> None:
    lock = threading.Lock()
    for ds in (
        ps.from_generator(lambda: iter([3, 4] if lock else [])),
        ps.range(2).map(lambda x: x + (3 if lock else 0)),
    ):
        place = tmp_path / ds.access
        kept = ds.materialize(place, executor="threads")
        assert (kept.access, len(kept), int(kept[1])) == ("random", 2, 4)
        with pytest.raises(
            ps.ArgumentTypeError, match=r"materialize\(\) found files in .* give key='v1' in both calls"
        ):
            ds.materialize(place)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_stream_that_is_kept_in_memory_has_random_access_at_once(executor: Any) -> None:
    reads = 0

    def numbers() -> Iterator[int]:
        nonlocal reads
        reads += 1
        yield from range(10)

    kept = ps.from_generator(numbers, element_spec=ps.ArraySpec((), "int64")).cache(limit=1 << 20)
    squares = kept.map(lambda x: x * x)
    assert (kept.access, kept.length) == ("stream", None)
    with kept.loader(executor) as loader:
        batches = iter(loader)
        next(batches)
        assert kept.access == "stream"
        assert [int(x) for x in batches] == list(range(1, 10))
        state = loader.get_state()
    assert (kept.access, len(kept), int(kept[7])) == ("random", 10, 7)
    assert sorted(int(x) for x in kept.shuffle(1)) == list(range(10))
    with kept.shuffle(1).batch(3).loader(executor) as loader:
        assert sum(map(len, loader)) == 10
    with kept.loader(executor) as loader:
        loader.set_state(state)
        assert [int(x) for x in loader] == list(range(10))
    assert [int(x) for x in squares] == [x * x for x in range(10)]  # a stream still, which reads the cache
    assert reads == 1


def test_a_stream_of_text_that_is_kept_in_memory_has_random_access() -> None:
    def words() -> Iterator[Any]:
        yield from ({"text": "é" * i, "row": np.arange(i)} for i in range(5))

    spec = {"text": ps.ArraySpec((), np.dtype("U")), "row": ps.ArraySpec((None,), "int64")}
    kept = ps.from_generator(words, element_spec=spec).cache(limit=1 << 20)
    assert len(list(kept)) == 5
    assert kept[-1]["text"] == "éééé"
    assert kept[2]["row"].tolist() == [0, 1]
