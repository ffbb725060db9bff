"""`Dataset.check`: faults of a dataset, found before the training."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

NEAR = ("inline", "threads")
BUFFER = np.zeros(2)
KEPT: list[Any] = []


class Said:
    """Runs on threads, as functions do that let go of the GIL, so that no process has to be started."""

    releases_gil = True

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


def picky(x: Any) -> Any:
    if int(x) in (3, 10):
        raise ValueError(f"broken {x}")
    return x.astype(float) if int(x) == 5 else x * 10


def reusing(x: Any) -> Any:
    BUFFER[:] = x
    return BUFFER


def keeping(x: Any) -> Any:
    KEPT.append(x)
    return x.sum()


@pytest.mark.slow
def test_a_dataset_without_fault_is_ok() -> None:
    for dataset in (
        ps.range(100).shuffle(1).batch(8),
        ps.range(20).map(Said(lambda x: {"x": x, "text": "é" * int(x)}), element_spec=None).filter(Said(bool)),
        ps.from_arrays(np.zeros((9, 4))).map(Said(lambda x: x[::-1])).batch(2),  # a view of its argument
        ps.from_generator(range(9)).random_map(Said2()).shuffle(window=4).batch(2),
    ):
        result = dataset.check(executors=NEAR)
        assert result.ok, str(result)
        assert result
        assert str(result).endswith("Nothing was found.")
        assert repr(result) == str(result)  # which a notebook shows
    assert result.elements == 5
    assert (result.executor, result.compared) == ("threads", ("inline",))


class Said2:
    releases_gil = True

    def __call__(self, x: Any, rng: np.random.Generator) -> Any:
        return x + rng.random()


def test_elements_that_fail_and_those_of_another_spec_are_listed() -> None:
    result = ps.range(30).map(Said(picky)).batch(4).check(executors=NEAR)
    assert not result
    assert result.elements == 8
    assert [(each.step, each.sources[0][1], each.exception) for each in result.bad] == [
        ("map(Said)", 3, "ValueError"),
        ("map(Said)", 10, "ValueError"),
    ]
    ((misfit),) = result.misfits
    assert misfit.sources == (("range", 5, "the integer 5"),)
    text = str(result)
    assert "Elements that fail: 2\n  map(Said) at test_check.py" in text
    assert "made of the integer 10: ValueError: broken 10" in text
    assert "Elements that are not as element_spec says: 1\n" in text
    assert "returned an array of () float64 for element 5, but its element_spec is () int64" in text


def test_only_the_first_are_looked_at_if_asked() -> None:
    dataset = ps.range(30).map(Said(picky)).batch(3)
    assert not dataset.check(2, executors=()).ok
    assert dataset.check(1, executors=()).ok
    assert dataset.check(1, executors=()).elements == 1
    assert dataset.repeat().check(1, executors=()).ok


def test_steps_after_which_nothing_can_be_left_out_are_no_obstacle() -> None:
    result = ps.range(30).map(Said(picky)).batch(5).shuffle(1).check(executors=())
    assert (result.elements, len(result.bad), len(result.misfits)) == (6, 2, 1)


@pytest.mark.slow
def test_a_generator_that_raises_ends_the_pass() -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise OSError("the tape is torn")

    result = ps.from_generator(broken).map(Said(picky)).batch(2).check(executors=())
    assert (result.elements, len(result.bad), result.ok) == (2, 1, False)
    assert "failed at element 5 of epoch 0: OSError: the tape is torn" in result.ended
    assert result.ended in str(result)


def test_a_dataset_whose_elements_all_fail_is_reported() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("never")

    result = ps.range(3).map(Said(fails)).check(executors=())
    assert (result.elements, result.ok) == (0, False)
    assert "never" in str(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "kind", "is_ok"),
    [
        (reusing, "reuses_memory", False),
        (keeping, "keeps_input", True),
        (lambda x: x + time.perf_counter_ns(), "nondeterministic", False),
        (lambda x: x + np.random.rand(), "uses_globals", True),
    ],
    ids=["reusing", "keeping", "clock", "globals"],
)
def test_faults_of_functions_are_found(function: Any, kind: str, is_ok: bool) -> None:
    for dataset in (ps.from_arrays(np.eye(6, 2)), ps.from_generator([np.full(2, float(i)) for i in range(6)])):
        result = dataset.map(Said(function)).batch(2).check(executors=())
        KEPT.clear()
        kinds = ("nondeterministic", "reuses_memory", "uses_globals", "keeps_input")
        assert [each for each in kinds if getattr(result, each)] == [kind]
        (named,) = getattr(result, kind)
        assert named.startswith("map(Said) at test_check.py:")
        assert (result.ok, named in str(result)) == (is_ok, True)


def test_a_source_whose_second_read_differs_is_reported() -> None:
    class Drawn(list[float]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) + (np.random.rand() if index == 3 else 0)

    numbers = [float(number) for number in range(6)]
    steady = ps.from_source(numbers)
    told = "from_source(Drawn); it draws from np.random or random, which are seeded for map() and filter() alone"
    for source, found in ((ps.from_source(Drawn(numbers)), (told,)), (steady, ())):
        result = ps.zip((source, steady)).batch(2).check(executors=())
        assert result.nondeterministic == found
        assert result.ok == (not found)


@pytest.mark.slow
def test_streams_that_differ_on_restart_are_reported_with_their_generator() -> None:
    def drawn(*_: Any) -> Iterator[Any]:
        yield from np.random.rand(3)

    def timed(*_: Any) -> Iterator[Any]:
        yield time.perf_counter_ns()

    def steady(*_: Any) -> Iterator[Any]:
        yield from (1.5, 2.5)

    elements = ps.range(4).map(float)
    makers = [ps.from_generator, elements.flat_map]
    dataset = ps.zip(tuple(make(fn) for make in makers for fn in (drawn, timed, steady)))
    assert dataset.element_spec  # for which each is begun once, by whoever asks
    np.random.seed(7)
    following = np.random.rand(2000)[4:].tolist()
    np.random.seed(7)
    np.random.rand(4)
    result = dataset.check(executors=())
    drawing = "; it draws from np.random or random, which are seeded for map() and filter() alone"
    assert [re.sub(r" at test_check\.py:\d+", "", each) for each in sorted(result.nondeterministic)] == [
        f"flat_map(drawn){drawing}",
        "flat_map(timed)",
        f"from_generator(drawn){drawing}",
        "from_generator(timed)",
    ]
    assert not result.ok
    assert np.random.rand(1996).tolist() == following


def test_executors_that_deliver_other_elements_are_reported() -> None:
    def where(x: Any) -> Any:
        return x + (threading.current_thread() is threading.main_thread())

    result = ps.range(20).map(Said(where)).batch(4).check(executors=NEAR)
    assert result.differences == ("threads and inline deliver different bytes, first as element 0",)
    assert not result.nondeterministic
    assert not result.ok


def test_objects_that_cannot_travel_are_named_but_are_no_fault() -> None:
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return x + 1

    result = ps.range(8).map(Said(picky)).take(3).map(locked).map(Said(reusing.__call__)).check(executors=())
    assert any("map(locked)" in each and "`lock`" in each for each in result.stays)
    assert "Cannot go to worker processes: map(locked) at test_check.py" in str(result)


@pytest.mark.faults
def test_an_element_that_kills_workers_is_listed_and_not_run_here() -> None:
    def lethal(x: Any) -> Any:
        if int(x) == 38:
            os._exit(3)
        return x

    result = ps.range(40).map(lethal).batch(4).check()
    ((bad),) = result.bad
    assert (bad.step, bad.index, bad.exception) == ("map(lethal)", 38, "WorkerError")
    assert result.elements == 10
    assert "no function was called in this one" in str(result)


@pytest.mark.slow
def test_workers_and_this_process_are_compared() -> None:
    def where(x: Any) -> Any:
        return x + (os.getpid() == PID)

    result = ps.range(8).map(where).batch(4).check(executors=["inline"])
    assert (result.executor, result.compared) == ("processes", ("inline",))
    assert result.differences == ("processes and inline deliver different bytes, first as element 0",)


PID = os.getpid()


def test_arguments_without_a_meaning_are_refused() -> None:
    with pytest.raises(ps.ArgumentError, match=r"this dataset is endless. Say how many: limit=1000"):
        ps.range(3).repeat().check()
    with pytest.raises(ps.ArgumentError, match=r"check\(limit=0\)"):
        ps.range(3).check(0)
    with pytest.raises(ps.ArgumentTypeError, match=r"executors='threads'\) needs a selection"):
        ps.range(3).check(executors="threads")
    with pytest.raises(ps.ArgumentError, match="nothing to load"):
        ps.range(0).check()


@pytest.mark.slow
def test_a_function_over_a_stream_that_would_end_the_program_does_not_end_the_check() -> None:
    def leave(x: Any) -> Any:
        if x == 5:
            sys.exit("I quit")
        return x

    result = ps.from_generator(range(20)).map(leave).batch(4).check()
    assert "failed on element 5 of epoch 0" in str(result)
    assert "SystemExit: I quit" in str(result)
