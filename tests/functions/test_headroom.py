"""What a training loop could gain from a faster input."""

import collections
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from penstock.functions import _headroom


@pytest.fixture
def sleep(monkeypatch):
    """Lets time pass. Nothing else does."""
    now_s = 1.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(_headroom, "time", SimpleNamespace(perf_counter=lambda: now_s))
    return sleep


def slow(count, sleep, seconds=0.004):
    for number in range(count):
        sleep(1.0 if number < 3 else seconds)  # the first ones compile, or start workers
        yield number


def test_input_and_work_are_told_apart(sleep):
    loop = ps.headroom(slow(100, sleep), batches=20, warm_up=5)
    assert str(loop) == "Nothing is known yet: train on all batches of this object first."
    seen = []
    for batch in loop:
        sleep(0.002)
        seen.append(batch)
    assert seen == [*range(25), *[24] * 21]
    assert (loop.batches, loop.batch_s, loop.repeat_s) == (20, pytest.approx(0.006), pytest.approx(0.002))
    assert loop.gain == pytest.approx(3)
    assert str(loop) == repr(loop)
    assert str(loop) == (
        "20 batches of the loader took 6.0 ms each, and one batch, repeated, 2.0 ms. With the fastest input this loop "
        "would be 3.00 times as fast: input takes 67% of its time."
    )


def test_an_input_that_is_ready_is_not_the_limit(sleep):
    loop = ps.headroom(slow(100, sleep, 0.00001), batches=20)
    for _ in loop:
        sleep(0.002)
    assert str(loop).endswith("2.0 ms. The input is not the limit: a faster one would gain nothing.")


@pytest.mark.parametrize(("count", "timed"), [(0, 0), (9, 0), (11, 0), (12, 2), (50, 40)])
def test_a_loader_that_ends_early_gives_what_it_has(sleep, count, timed):
    loop = ps.headroom(slow(count, sleep), batches=1000)
    assert sum(1 for _ in loop) == count + (timed + 1 if timed else 0)
    assert loop.batches == timed
    few = f"Nothing is known: the loader ended after {count} batch"
    assert str(loop).startswith(few if not timed else f"{timed} batches of the loader took")
    assert timed or str(loop).endswith("warm_up=10 needs 12. Give it more batches, or headroom(loader, warm_up=1).")


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.UserDict])
@pytest.mark.parametrize("outer", [lambda batch: batch, lambda batch: (batch, 1)], ids=["alone", "in a tuple"])
def test_a_step_may_take_parts_out_of_a_batch(kind, outer):
    loop, count = ps.headroom([outer(kind(x=1, labels=number)) for number in range(20)], batches=5), 0
    for batch in loop:
        batch = batch[0] if isinstance(batch, tuple) else batch
        assert type(batch) is kind
        assert batch.pop("labels") == min(count, 14)
        count += 1
    assert count == 21


def test_no_time_at_all_is_no_division_by_zero(sleep):
    loop = ps.headroom([1] * 20, batches=5)
    list(loop)
    assert np.isnan(loop.gain)
    assert "The input is not the limit" in str(loop)


def test_it_can_be_iterated_again_and_is_unknown_meanwhile(sleep):
    loop = ps.headroom([1] * 40, batches=20)
    for _ in range(2):
        assert sum(1 for _ in loop) == 51
        assert loop.batches == 20
    next(iter(loop))
    assert loop.batches == 0


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_the_repeated_batch_of_a_loader_stays_what_it_is(executor):
    with (
        ps.range(400)
        .map(lambda x: np.full(1000, x), element_spec=ps.ArraySpec((1000,), "int64"))
        .batch(4)
        .loader(executor) as loader
    ):
        loop = ps.headroom(loader, batches=20, warm_up=2)
        seen = [(batch.copy(), time.perf_counter())[0] for batch in loop]
        assert [int(batch[0, 0]) for batch in seen] == [*range(0, 88, 4), *[84] * 21]
        assert all((batch == batch[:, :1]).all() for batch in seen)
        assert int(next(iter(loader))[0, 0]) == 0, "the loader is as after any loop that ended early"


def test_the_iterator_is_let_go_before_the_repeats():
    ended = []

    def batches():
        try:
            yield from itertools.count()
        finally:
            ended.append(len(seen))

    seen = []

    class Loader:
        def __iter__(self):
            return batches()

    for batch in ps.headroom(Loader(), batches=2, warm_up=1):
        seen += [batch]
    assert (seen, ended) == ([0, 1, 2, 2, 2, 2], [3])


def test_what_is_no_loader_is_refused():
    with pytest.raises(ps.ArgumentTypeError, match=r"takes what your training loop iterates, such as .*, got .*int"):
        ps.headroom(3)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batches": 1}, ps.ArgumentError, r"headroom\(batches=1\): it must be at least 2"),
        ({"warm_up": 0}, ps.ArgumentError, r"headroom\(warm_up=0\): it must be at least 1"),
        ({"batches": 2.5}, ps.ArgumentTypeError, r"headroom\(batches=2.5\): an integer is needed"),
    ],
)
def test_wrong_numbers_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        ps.headroom([], **options)


@pytest.mark.framework
@pytest.mark.keras
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # as of any generator
def test_fit_takes_it_as_a_generator():
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    batches = [(np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32"))] * 40
    loop = ps.headroom(batches, batches=20, warm_up=5)
    model.fit(iter(loop), shuffle=False, verbose=0)
    assert loop.batches == 20
    assert "of the loader took" in str(loop)
