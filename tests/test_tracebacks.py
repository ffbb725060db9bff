"""A traceback shows the user's frames; the environment variable keeps ours."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

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
