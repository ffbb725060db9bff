"""A traceback shows the user's frames; the environment variable keeps ours."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.texts import assert_no_chance_context

HERE = Path(__file__).name


def deeper(x: Any) -> Any:
    return 1 // (int(x) - 3)


def fails(x: Any) -> Any:
    return deeper(x)


def stream() -> Iterator[int]:
    for x in range(9):
        yield fails(x)


def files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


WAYS: dict[str, Callable[[], Any]] = {
    "index": lambda: ps.range(9).map(fails, element_spec=ps.ArraySpec((), "int64")).batch(3)[1],
    "iteration": lambda: list(ps.range(9).map(fails)),
    "stream": lambda: list(ps.from_generator(stream)),
    "spec": lambda: ps.range(9).skip(3).map(fails).element_spec,
    "inline": lambda: list(ps.range(9).map(fails).loader("inline")),
    "threads": lambda: list(ps.range(9).map(fails).loader("threads", workers=1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_traceback_has_the_frames_of_the_user(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ps.ElementError, match="ZeroDivisionError") as caught:
        WAYS[way]()
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert set(files(cause)) == {HERE}
    assert len([file for file in files(caught.value) if file != HERE]) <= 2
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "full")
    with pytest.raises(ps.ElementError) as caught:
        WAYS[way]()
    assert files(caught.value)[-1] in ("_map.py", "_stream.py")


def test_a_refused_call_has_the_frame_of_the_call() -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        ps.range(3).split(2, 2)
    assert [file for file in files(caught.value) if file != HERE] in ([], ["_arguments.py"])


SCALAR = ps.ArraySpec((), "int64")
RAISES: dict[str, Callable[[], Any]] = WAYS | {
    "index of a spec that is not known": lambda: ps.range(9).skip(3).map(fails)[0],
    "index below a cache": lambda: ps.range(9).skip(3).map(fails).cache("kept")[0],
    "another file than element 0": lambda: ps.from_image_files(["a.png"], image_size=(2, 2))[0],
    "a label": lambda: ps.range(9).map(lambda x: {"x": fails(x)}, element_spec={"x": SCALAR}).group_by("x"),
    "rows inline": lambda: list(ps.range(9).skip(3).map(fails, element_spec=SCALAR).batch(3).loader("inline")),
    "rows inline, left out": lambda: list(
        ps.range(9).map(fails, element_spec=SCALAR).batch(3).loader("inline", on_error="skip", max_errors=0)
    ),
    "rows of a filter": lambda: list(ps.range(9).skip(3).filter(fails).batch(3).loader("inline")),
    "rows on threads": lambda: list(ps.range(9).map(fails, element_spec=SCALAR).batch(3).loader("threads")),
    "another structure": lambda: ps.range(2).map(lambda x: {"a": x} if x == 0 else {"b": x})[1],
    "another dtype of a dataclass": lambda: ps.range(2).map(lambda x: Box(x if x == 0 else "text"))[1],
    "a loader that is closed": lambda: iterated_after_close(ps.range(9).batch(3).loader("threads")),
}


@dataclasses.dataclass
class Box:
    content: Any


def iterated_after_close(loader: ps.Loader) -> None:
    batches = iter(loader)
    next(batches)
    loader.close()
    next(batches)


@pytest.mark.parametrize("way", RAISES)
def test_no_error_that_is_not_the_cause_stands_above_another(way: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(b"no image")
    with pytest.raises(ps.PenstockError) as caught:
        RAISES[way]()
    assert_no_chance_context(caught.value)
