"""`reduce`: what is folded, in which order, and what is kept of it."""

import collections
import errno
import functools
import json
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base import _atomic

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers")

EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
RAGGED = ps.ArraySpec((None,), "int64")


def joined(state: tuple[int, ...], element: Any) -> tuple[int, ...]:
    return (*state, int(element))


def plans() -> dict[str, ps.Dataset]:
    return {
        "by index": ps.range(150).shuffle(3),
        "functions": ps.range(150).shuffle(3).map(lambda x: x + 1),
        "stream": ps.range(300).filter(lambda x: bool(x % 2)),
        "generator": ps.from_generator(lambda: iter(range(150)), element_spec=ps.ArraySpec((), "int64")).shuffle(
            window=9
        ),
        "nothing": ps.range(0),
        "nothing left": ps.range(9).filter(lambda x: False),
    }


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", plans())
def test_elements_are_folded_in_order(name: str, executor: str) -> None:
    ds, want = plans()[name], functools.reduce(joined, plans()[name], ())
    assert ds.reduce(joined, (), executor=executor) == want
    assert ds.reduce(joined, (), combine=operator.add, executor=executor) == want


@pytest.mark.parametrize("executor", EXECUTORS)
def test_states_are_of_blocks_of_64_whatever_the_workers(executor: str) -> None:
    def folded(ends: list[int], x: Any) -> list[int]:
        return [*ends[:-1], int(x)] if ends else [int(x)]

    for ds in (ps.range(150), ps.range(150).filter(lambda x: True)):
        for workers in (1, 3) if executor != "inline" else ("auto",):
            found = ds.reduce(folded, [], combine=operator.add, executor=executor, workers=workers)
            assert found == [63, 127, 149]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_elements_of_any_size_are_folded(executor: str) -> None:
    ragged = ps.range(150).map(lambda i: np.arange(i % 7), element_spec=RAGGED)
    text = ps.from_arrays(np.array(["a b", "b", "c b a"] * 50)).map(str, element_spec=ps.ArraySpec((), "U"))

    def words(counts: Any, line: str) -> Any:
        counts.update(line.split())
        return counts

    for combine in (None, max):
        assert ragged.reduce(lambda most, x: max(most, len(x)), 0, combine=combine, executor=executor) == 6
    for combine in (None, operator.add):
        start: Any = collections.Counter()
        found = text.reduce(words, start, combine=combine, executor=executor)
        assert found == {"a": 100, "b": 150, "c": 50}
        assert not start  # it is not changed


def test_elements_may_be_kept_and_changed() -> None:
    ds = ps.from_arrays({"x": np.arange(150).reshape(50, 3), "y": np.arange(50)})

    def kept(state: list[Any], element: Any) -> list[Any]:
        element["x"] += 1
        return [*state, element]

    for combine in (None, operator.add):
        found = ds.reduce(kept, [], combine=combine, executor="threads", prefetch=1)
        assert [each["x"].tolist() for each in found] == [[3 * i + 1, 3 * i + 2, 3 * i + 3] for i in range(50)]
        assert [int(each["y"]) for each in found] == list(range(50))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_the_function_names_the_element(executor: str) -> None:
    def fails(total: int, x: Any) -> int:
        if x == 107:
            raise ValueError("odd one")
        return total + int(x)

    for combine in (None, operator.add):
        for ds in (ps.range(150), ps.range(150).filter(lambda x: True)):
            with pytest.raises(
                ps.ElementError, match=r"^reduce\(fails\) at test_reduce.py:\d+ failed on element 107 of"
            ):
                ds.reduce(fails, 0, combine=combine, executor=executor)


@pytest.mark.parametrize("combine", [None, operator.add], ids=["in order", "in blocks"])
def test_elements_that_fail_are_left_out_or_replaced(combine: Any, tmp_path: Path) -> None:
    def fails(x: Any) -> Any:
        if x in (0, 70):
            raise ValueError
        return x

    ds = ps.range(100).map(fails)
    options: dict[str, Any] = {"combine": combine, "executor": "inline", "quarantine": tmp_path / "q"}
    assert ds.reduce(joined, (), on_error="skip", **options) == (*range(1, 70), *range(71, 100))
    assert ds.reduce(joined, (), on_error="replace", **options) == (1, *range(1, 70), 71, *range(71, 100))
    with pytest.raises(ps.ElementError, match=r"map\(fails\)"):
        ds.reduce(joined, (), **options)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("combine", [None, operator.add], ids=["in order", "in blocks"])
def test_a_state_that_cannot_be_made_is_an_error_and_not_that_of_other_elements(combine: Any, on_error: str) -> None:
    def fails(state: Any, x: Any) -> Any:
        if x == 3:
            raise ValueError
        return (*state, int(x))

    with pytest.raises(ps.ElementError, match=r"reduce\(fails\) at .* failed on element 3 of epoch 0"):
        ps.range(200).reduce(fails, (), combine=combine, on_error=on_error, executor="inline")


@pytest.mark.parametrize("combine", [None, operator.add], ids=["in order", "in blocks"])
def test_progress_is_told_up_to_the_last_element(combine: Any) -> None:
    told: list[tuple[int, int | None]] = []
    options: dict[str, Any] = {"combine": combine, "progress": lambda *each: told.append(each), "executor": "inline"}
    ps.range(150).reduce(joined, (), **options)
    assert told[-1] == (150, 150)
    assert told == sorted(told)
    ps.range(150).filter(lambda x: True).reduce(joined, (), **options)
    assert told[-1][1] is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda ds: ds.repeat().reduce(joined, ()), ps.ArgumentError, r"endless dataset would never end\. Use take"),
        (lambda ds: ds.reduce(joined, (), shard=(0, 2)), ps.ArgumentError, r"ds\.shard\(rank, count\)\.reduce"),
        (lambda ds: ds.reduce(3, ()), ps.ArgumentTypeError, r"reduce\(\) needs a function, got 3"),
        (lambda ds: ds.reduce(joined, (), combine=0), ps.ArgumentTypeError, r"reduce\(\) needs a function, got 0"),
        (lambda ds: ds.reduce(joined, (), path=3), ps.ArgumentTypeError, r"reduce\(path=3\): the path of a file"),
        (lambda ds: ds.reduce(joined, (), path="x", key=3), ps.ArgumentTypeError, r"reduce\(key=3\): text is needed"),
        (lambda ds: ds.reduce(joined, set(), path="x"), ps.ArgumentTypeError, r"path=\) keeps numbers, .* not a set"),
    ],
)
def test_what_cannot_be_folded_is_refused(call: Callable[[ps.Dataset], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(ps.range(5))


# What is kept.


def test_a_result_is_read_from_its_file_as_long_as_all_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def total(state: Any, x: Any) -> Any:
        return {"sum": state["sum"] + int(x), "ends": (state["ends"][0], np.array([x]))}

    def run(ds: ps.Dataset, **options: Any) -> Any:
        seen.clear()
        start = {"sum": 0, "ends": (b"\0", None)}
        return ds.reduce(
            total,
            start,
            path=tmp_path / "new" / "sum",
            progress=lambda *_: seen.append(1),
            executor="inline",
            **options,
        )

    ds = ps.range(9)
    first = run(ds)
    assert seen
    again = run(ds)
    assert not seen
    assert (again["sum"], again["ends"][0], again["ends"][1].tolist()) == (36, b"\0", [8])
    assert again["ends"][1].dtype == first["ends"][1].dtype
    assert (tmp_path / "new" / "sum").stat().st_mode & 0o133 == 0
    with caplog.at_level("INFO", "penstock"):
        assert run(ps.range(8))["sum"] == 28
    assert "has a result of another dataset: step 1 was range" in caplog.text
    assert run(ps.range(8))["sum"] == 28
    assert not seen
    run(ps.range(8), key="v1")
    assert seen
    run(ps.range(3), key="v1")
    assert not seen


@pytest.mark.parametrize("key", [None, "v1"])
def test_a_result_that_lacks_elements_is_not_taken_for_that_of_all(tmp_path: Path, key: str | None) -> None:
    def fails(x: Any) -> Any:
        if x == 2:
            raise ValueError
        return x

    def run(on_error: str) -> Any:
        return (
            ps.range(4)
            .map(fails)
            .reduce(
                joined,
                (),
                path=tmp_path / "x",
                key=key,
                executor="inline",
                quarantine=tmp_path / "q",
                on_error=on_error,
            )
        )

    assert run("skip") == run("skip") == (0, 1, 3)
    assert len(run("replace")) == 4
    with pytest.raises(ps.ElementError, match=r"map\(fails\)"):
        run("raise")


@pytest.mark.parametrize("change", ["function", "initial", "combine"])
def test_another_function_or_another_beginning_is_another_result(tmp_path: Path, change: str) -> None:
    def add(step: int) -> Any:
        return lambda a, b: int(a) + int(b) + 0 * step

    def run(fn: int = 1, initial: int = 0, combine: int = 1) -> bool:
        told: list[int] = []
        ps.range(5).reduce(
            add(fn), initial, combine=add(combine), path=tmp_path / "x", progress=lambda *_: told.append(1),
            executor="inline",
        )  # fmt: skip
        return bool(told)

    assert [run(), run()] == [True, False]
    changed = {{"function": "fn"}.get(change, change): 2}
    assert [run(**changed), run(**changed), run()] == [True, False, True]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"format": 1}', b"\xff", b'{"format": "penstock result 1"}'])
def test_a_file_of_something_else_is_neither_read_nor_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ps.SourceError, match=r"x holds no result of reduce\(\), and is not overwritten"):
        ps.range(5).reduce(joined, (), path=tmp_path / "x", executor="inline")
    assert (tmp_path / "x").read_bytes() == content


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    ps.range(5).reduce(lambda state, x: state + x, np.zeros(3), path=path, executor="inline")
    kept = json.loads(path.read_text())
    for broken in (
        ["array"],
        ["array", "O", [1], "AAAAAAAAAAA="],
        ["array", "<f8", [9], "AAAA"],
        ["what", 1],
        [[]],
        [],
    ):
        path.write_text(json.dumps(kept | {"result": broken}))
        with pytest.raises(ps.SourceError, match="holds no result"):
            ps.range(5).reduce(lambda state, x: state + x, np.zeros(3), path=path, executor="inline")


def test_a_file_that_others_may_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    ps.range(5).reduce(joined, (), path=path, executor="inline")
    path.chmod(0o666)
    with pytest.raises(ps.SourceError, match=r"reduce\(\) cannot use .*x: everybody can write to"):
        ps.range(5).reduce(joined, (), path=path, executor="inline")
    path.unlink()
    path.symlink_to(tmp_path / "y")
    with pytest.raises(ps.SourceError, match=r"reduce\(\) cannot use .*x is a link"):
        ps.range(5).reduce(joined, (), path=path, executor="inline")
    os.mkdir(tmp_path / "open")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ps.SourceError, match=r"reduce\(\) cannot use .*: everybody can write"):
        ps.range(5).reduce(lambda state, x: 1 // 0, (), path=tmp_path / "open" / "x")


@pytest.mark.parametrize("cause", ["No space left on device", "Permission denied"])
def test_a_result_that_cannot_be_kept_is_returned_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC if "space" in cause else errno.EACCES, cause)

    monkeypatch.setattr(_atomic, "complete", refuse)
    assert ps.range(5).reduce(joined, (), path=tmp_path / "x", executor="inline") == (0, 1, 2, 3, 4)
    assert ps.statistics(ps.range(5), path=tmp_path / "y", executor="inline").mean == 2
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        f"reduce() cannot keep its result in {tmp_path / name}, and returns it: {cause}." for name in ("x", "y")
    ]


def test_a_result_of_a_kind_that_cannot_be_kept_is_returned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = ps.range(3).reduce(lambda _, x: {int(x)}, None, path=tmp_path / "x", executor="inline")
    assert (made, list(tmp_path.iterdir())) == ({2}, [])
    assert "reduce(path=) keeps numbers, text, arrays" in caplog.text


def test_what_cannot_be_looked_into_needs_a_key(tmp_path: Path) -> None:
    file = open(os.devnull)  # noqa: SIM115
    try:
        with pytest.raises(ps.ArgumentTypeError, match=r"^reduce\(\) cannot tell this dataset .* key='v1'"):
            ps.range(5).reduce(lambda n, x: n + bool(file), 0, path=tmp_path / "x", executor="inline")
        assert ps.range(5).reduce(lambda n, x: n + bool(file), 0, path=tmp_path / "x", key="v1", executor="inline") == 5
    finally:
        file.close()


def test_a_function_that_returns_nothing_is_told_to_return_the_state() -> None:
    with pytest.raises(ps.ElementError, match=r"element 1 .*It had returned None for the element before: return the s"):
        ps.range(3).reduce(lambda state, x: state.append(x), [])
