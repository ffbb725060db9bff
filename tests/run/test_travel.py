"""Functions that cannot travel, or be made again in a worker: threads under `auto`, an error under `processes`."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import penstock as ps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_stay")]


class Homebound:
    """As a layer of Keras whose class is not registered: it pickles, and is made again in its own process alone."""

    def __reduce__(self) -> Any:
        return _again, (os.getpid(),)

    def __call__(self, x: Any) -> Any:
        return x * 2


def _again(pid: int) -> Homebound:
    if os.getpid() != pid:
        raise ValueError("Could not locate class 'Homebound'")
    return Homebound()


def lambda_with(value: Any) -> Callable[[Any], Any]:
    return lambda x: x * 2 if value else x


def generator_with(value: Any) -> Callable[[], Iterator[int]]:
    def count() -> Iterator[int]:
        yield from (i * 2 for i in range(8) if value)

    return count


FILES: list[IO[str]] = []
"""Closed at the end of a test: when the last reference goes is not for a test to say."""


def opened(path: Path) -> IO[str]:
    FILES.append(path.open("w"))
    return FILES[-1]


@pytest.fixture(autouse=True)
def _files_are_closed() -> Iterator[None]:
    yield
    while FILES:
        FILES.pop().close()


CURE = r"Make it inside the function, .*or use executor=['\"]threads['\"]\."
AGAIN = rf"cannot make an object again .*: ValueError: Could not locate class 'Homebound'\. {CURE}"
STAYING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a layer": (lambda _: Homebound(), AGAIN),
    "a function with a layer": (lambda _: lambda_with(Homebound()), AGAIN),
    "a lock": (lambda _: lambda_with(threading.Lock()), rf"holds the variable `value`, a lock, which cannot .*{CURE}"),
    "an open file": (
        lambda path: lambda_with(opened(path / "open")),
        r"holds the variable `value`, a TextIOWrapper, which cannot travel to a worker process \(TypeError: an open .*",
    ),
    "a generator": (
        lambda _: lambda_with(iter(i for i in range(3))),
        rf"the variable `value`, a generator, which {CURE[:0]}.*",
    ),
}


@pytest.mark.parametrize("spec", [None, ps.ArraySpec((), "int64")], ids=["unknown spec", "declared spec"])
@pytest.mark.parametrize("name", STAYING)
def test_what_cannot_travel_runs_on_threads_under_auto_and_says_so(
    name: str, spec: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, text = STAYING[name]
    ds = ps.range(8).map(make(tmp_path), element_spec=spec).batch(4)
    for _ in range(2):  # what a first loader has learnt changes nothing
        caplog.clear()
        with ds.loader() as loader:
            assert [batch.tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14]]
            report = loader.report()
        assert report.executor == "threads"
        assert report.note.startswith("It runs on threads, not on processes: ")
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [report.note]
    with pytest.raises(ps.TravelError, match=text), ds.loader("processes", workers=1) as loader:
        list(loader)


def test_the_error_of_the_library_is_the_cause() -> None:
    with pytest.raises(ps.TravelError) as caught, ps.range(2).map(Homebound()).loader("processes", workers=1) as loader:
        list(loader)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_generator_that_cannot_be_made_again_is_read_on_a_thread_under_auto(caplog: pytest.LogCaptureFixture) -> None:
    ds = ps.from_generator(generator_with(Homebound()), element_spec=ps.ArraySpec((), "int64")).batch(8)
    with ds.loader() as loader:
        assert [batch.tolist() for batch in loader] == [list(range(0, 16, 2))]
        assert "The stream is read on a thread of this process, not in one of its own: " in loader.report().note
    (record,) = caplog.records
    assert "Could not locate class 'Homebound'" in record.getMessage()


@pytest.mark.framework
def test_a_layer_of_a_class_that_keras_does_not_know_in_a_worker_runs_on_threads(
    fresh_python: Callable[..., Any],
) -> None:
    script = """
import numpy as np, keras, penstock as ps

class Double(keras.layers.Layer):
    def call(self, x):
        return x * 2

layer = Double()
ds = ps.from_arrays(np.ones((4, 2), "float32")).map(lambda x: np.asarray(layer(x))).batch(4)
with ds.loader(workers=1) as loader:
    assert [batch.tolist() for batch in loader] == [[[2, 2]] * 4]
    print(loader.report().executor, loader.report().note)
"""
    done = fresh_python(script, env={"KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stderr
    executor, _, note = done.stdout.partition(" ")
    assert executor == "threads", done.stdout
    assert note.startswith("It runs on threads, not on processes: ")
