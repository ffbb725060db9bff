"""Complaints about the streams of other libraries, by their numbers in the list of complaints, as tests of this one."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

INT64 = ps.ArraySpec((), "int64")
EXECUTORS = ("inline", "threads")


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


class Meeting:
    """Where so many threads must come at the same time, once; not for element 0, which is tried out alone."""

    def __init__(self, count: int) -> None:
        self._count, self._there, self._changed = count, set[int](), threading.Condition()

    def wait(self, element: int) -> None:
        if element == 0:
            return
        with self._changed:
            self._there.add(threading.get_ident())
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self._there) >= self._count, 10), "nobody else came"


@pytest.mark.slow
def test_4_a_memmap_that_a_generator_is_given_is_not_copied(fresh_python: Callable[..., Any], tmp_path: Any) -> None:
    script = """
import resource, sys
import numpy as np, penstock as ps
path, executor = sys.argv[1:]
mm = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(40_000, 1_000))  # 320 MB, sparse
mm[39_999] = 7
del mm
mm = np.load(path, mmap_mode="r")

def pairs(array, start, stop):
    assert isinstance(array, np.memmap)
    for i in range(start, stop):
        yield array[i], array[i + 1]

ds = ps.from_generator(pairs, mm, 39_000, 39_999).batch(32)
with ds.loader(executor) as loader:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last = None
    for x, y in loader:
        last = y[-1, 0]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert last == 7
    print(f"{grown:.0f} MiB")
    assert grown < 48 + loader.projected_nbytes / 2**20, grown
"""
    for executor in EXECUTORS:
        done = fresh_python(script, str(tmp_path / "large.npy"), executor)
        assert done.returncode == 0, done.stderr


def test_5_a_window_holds_its_elements_and_says_so(executor: str) -> None:
    def large() -> Iterator[Any]:
        for i in range(60):
            yield np.full(10_000, i)

    dataset = ps.from_generator(large, element_spec=ps.ArraySpec((10_000,), "int64"))
    with dataset.loader(executor) as plain, dataset.shuffle(window=20).loader(executor) as shuffled:
        assert shuffled.projected_nbytes - plain.projected_nbytes >= 20 * 80_000 * 0.9
        assert sorted(int(row[0]) for row in shuffled) == list(range(60))
        # And it does not wait for the whole window anew in each epoch: indices of random access need none at all.
    with ps.range(60).shuffle(1).loader(executor) as none:
        assert none.projected_nbytes < 8 << 20


def test_6_what_a_generator_captured_is_let_go(executor: str) -> None:
    import gc
    import weakref

    class Large:
        def __init__(self) -> None:
            self.data = np.zeros(1000)

    def run() -> Any:
        large = Large()

        def generator() -> Iterator[Any]:
            for i in range(20):
                yield large.data[i]

        with ps.from_generator(generator).batch(3).loader(executor) as loader:
            for _ in range(3):
                assert len(list(loader)) == 7
            next(iter(loader))
        return weakref.ref(large)

    gc.collect()
    found = [run() for _ in range(5)]
    gc.collect()
    assert [reference() for reference in found] == [None] * 5


def test_10_functions_after_a_generator_run_side_by_side() -> None:
    met = Meeting(2)

    def heavy(x: Any) -> Any:
        met.wait(x)
        return x * 2

    dataset = ps.from_generator(range(64), element_spec=INT64).map(heavy, element_spec=INT64).batch(32)
    with dataset.loader("threads", workers=2) as loader:
        assert lists(loader) == (np.arange(64) * 2).reshape(2, 32).tolist()


def test_12_a_run_over_a_filter_and_a_random_crop_resumes_in_mid_epoch(executor: str) -> None:
    def crop(x: Any, rng: np.random.Generator) -> Any:
        start = rng.integers(0, 5)
        return x[start : start + 4]

    def frames() -> Iterator[Any]:
        for i in range(90):
            yield np.arange(i, i + 9)

    dataset = (
        ps.from_generator(frames, element_spec=ps.ArraySpec((9,), "int64"))
        .filter(lambda x: x[0] % 4 != 1)
        .shuffle(3, window=10)
        .random_map(crop, element_spec=ps.ArraySpec((4,), "int64"))
        .batch(5)
    )
    with dataset.loader("inline") as loader:
        whole = [lists(loader) for _ in range(2)]
    assert whole[0] != whole[1]
    for epoch, cut in ((0, 1), (0, 13), (1, 0), (1, 7)):
        with dataset.loader(executor) as loader:
            for _ in range(epoch):
                list(loader)
            lists(itertools.islice(loader, cut))
            state = json.dumps(loader.get_state())
        with dataset.loader(executor) as loader:
            loader.set_state(json.loads(state))
            assert lists(loader) == whole[epoch][cut:]


def test_20_shapes_are_known_before_anything_runs_and_a_mismatch_is_named(executor: str) -> None:
    def samples() -> Iterator[Any]:
        for i in range(50):
            yield {"image": np.zeros((4, 4, 3), np.uint8), "label": np.int32(i)}

    dataset = ps.from_generator(samples).batch(8, drop_remainder=True)
    want = {"image": ps.ArraySpec((8, 4, 4, 3), "uint8"), "label": ps.ArraySpec((8,), "int32")}
    assert dataset.element_spec == want
    with dataset.loader(executor) as loader:
        assert loader.element_spec == want
        assert len(list(loader)) == 6

    def cropped(x: Any) -> Any:
        return {**x, "image": x["image"][: 4 if x["label"] < 40 else 3]}

    text = r"map\(cropped\) at test_streams.py:\d+ returned .*\(3, 4, 3\) uint8.* for element 40"
    with (
        ps.from_generator(samples).map(cropped).batch(8).loader(executor) as loader,
        pytest.raises(ps.SpecError, match=text),
    ):
        list(loader)


def test_24_a_stream_never_runs_out_of_epochs(executor: str) -> None:
    dataset = ps.from_generator(range(10), element_spec=INT64).filter(lambda x: x != 3).batch(4)
    with dataset.loader(executor) as loader:
        assert loader.length is None
        for _ in range(10):
            assert lists(loader) == [[0, 1, 2, 4], [5, 6, 7, 8], [9]]
    with ps.from_generator(range(10), element_spec=INT64, length=10).batch(4).loader(executor) as loader:
        assert len(loader) == 3


def test_29_an_epoch_of_a_stream_is_as_long_as_the_stream_whatever_the_workers() -> None:
    def part(index: int, count: int) -> Iterator[int]:
        yield from range(index, 101, count)

    dataset = ps.from_generator(part, shards=4, element_spec=INT64).map(lambda x: x, element_spec=INT64).batch(10)
    for executor, workers in (("inline", 1), ("threads", 1), ("threads", 3), ("threads", 5)):
        with dataset.loader(executor, workers=workers) as loader:
            for _ in range(2):
                assert [len(batch) for batch in loader] == [10] * 10 + [1]


def test_31_fewer_shards_than_workers_starve_nobody() -> None:
    met = Meeting(3)

    def work(x: Any) -> Any:
        met.wait(x)
        return x

    dataset = ps.from_generator(range(96), element_spec=INT64).map(work, element_spec=INT64).batch(48)
    with dataset.loader("threads", workers=3) as loader:
        assert len(list(loader)) == 2


def test_32_no_worker_drops_a_remainder_of_its_own() -> None:
    dataset = ps.from_generator(range(103), element_spec=INT64).filter(lambda x: x % 2 == 0).batch(8)
    for executor, workers in (("inline", 1), ("threads", 1), ("threads", 2), ("threads", 7)):
        with dataset.loader(executor, workers=workers) as loader:
            assert sum(len(batch) for batch in loader) == 52
        with dataset.loader(executor, workers=workers) as loader:
            assert len(list(loader)) == 7


def test_47_what_has_no_random_access_says_so_and_names_the_way_out() -> None:
    dataset = ps.from_generator(range(10), element_spec=INT64).map(lambda x: x * x, element_spec=INT64)
    assert dataset.access == "stream"
    with pytest.raises(
        TypeError, match=r"needs random access, but from_generator\(range\).*next\(iter\(ds\.skip\(i\)\)\)"
    ):
        dataset[7]
    assert int(next(iter(dataset.skip(7)))) == 49
    # The way to have both: indices with random access, and the work in map().
    assert int(ps.range(10).map(lambda x: x * x)[7]) == 49


# 24 again, in Keras: epochs of a stream whose length nobody knows.


def trained_on(epochs: int) -> list[Any]:
    """The first column of each batch that training should see."""
    with samples().loader("inline") as loader:
        return [batch[0][:, 0].tolist() for _ in range(epochs) for batch in loader]


def samples(count: int = 10) -> ps.Dataset:
    """Batches of 4 of `(x, y)`, x `(n, 2)`, y `(n, 1)`, float32, each epoch in its own order, of unknown length."""

    def rows() -> Iterator[Any]:
        for i in range(count):
            yield np.array([i, -i], np.float32), np.array([i], np.float32)

    return ps.from_generator(rows).filter(lambda xy: xy[1][0] != 5).shuffle(1, window=4).batch(4)


def seen(batches: Any) -> list[Any]:
    from tests.adapters.keras_models import arrays

    return [batch[:, 0].tolist() for batch in arrays(batches)]


@pytest.mark.keras
@pytest.mark.parametrize("executor", EXECUTORS)
def test_24_keras_trains_and_validates_on_whole_epochs_of_a_stream(executor: str) -> None:
    from tests.adapters.keras_models import recording_model

    model = recording_model()
    history = model.fit(
        samples().to_keras(executor=executor),
        validation_data=samples().to_keras(training=False, executor=executor),
        epochs=3,
        verbose=0,
    )
    assert len(history.history["loss"]) == len(history.history["val_loss"]) == 3
    assert seen(model.trained) == trained_on(3)
    assert seen(model.tested) == trained_on(1) * 3


@pytest.mark.keras
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_24_steps_per_epoch_run_on_into_the_streams_next_epoch(steps: int) -> None:
    from tests.adapters.keras_models import recording_model

    adapter, model = samples().to_keras(), recording_model()
    model.fit(adapter, epochs=3, steps_per_epoch=steps, verbose=0)
    model.fit(adapter, epochs=1, steps_per_epoch=steps, verbose=0)
    assert seen(model.trained) == trained_on(8)[: 4 * steps]


@pytest.mark.keras
def test_24_an_endless_stream_trains_by_steps_and_is_refused_without() -> None:
    from tests.adapters.keras_models import compiled_model, recording_model

    model = recording_model()
    model.fit(samples().repeat().to_keras(), epochs=2, steps_per_epoch=5, verbose=0)
    assert len(model.trained) == 10
    with pytest.raises(ps.ArgumentError, match=r"endless.*steps_per_epoch"):
        compiled_model().fit(samples().repeat().to_keras(), verbose=0)


@pytest.mark.keras
def test_24_evaluate_and_predict_see_a_stream_once_each_time() -> None:
    from tests.adapters.keras_models import recording_model

    adapter, model = samples().to_keras(training=False), recording_model()
    for _ in range(2):
        model.evaluate(adapter, verbose=0)
        assert model.predict(adapter, verbose=0).shape == (9, 1)
    assert seen(model.tested) == trained_on(1) * 2


@pytest.mark.keras
def test_24_an_error_in_a_stream_ends_fit_with_its_own_words_and_fit_goes_on_after() -> None:
    from tests.adapters.keras_models import compiled_model

    broken = [True]

    def rows() -> Iterator[Any]:
        for i in range(12):
            if i == 9 and broken:
                raise OSError("the disk is gone")
            yield np.ones(2, np.float32), np.ones(1, np.float32)

    adapter, model = ps.from_generator(rows).batch(4).to_keras(executor="threads"), compiled_model()
    with pytest.raises(Exception, match=r"(?s)failed at element 9 of epoch 0.*the disk is gone"):
        model.fit(adapter, epochs=2, verbose=0)
    broken.clear()
    assert len(model.fit(adapter, epochs=2, verbose=0).history["loss"]) == 2
