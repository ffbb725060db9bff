"""Elements that kill workers, mostly where failed elements are set aside."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import LethalFunction

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]

FIRST = 200
"""So many elements come before a lethal one. Of the next epoch, fewer are read ahead, or it would kill there too."""
LETHAL, BROKEN = FIRST + 5, (FIRST + 3, FIRST + 10, FIRST + 11)


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_an_element_that_kills_workers_is_set_aside(tmp_path: Path, on_error: Any) -> None:
    def lethal(x: Any) -> Any:
        if int(x) == LETHAL:
            os._exit(7)
        if int(x) in BROKEN:
            raise ValueError(f"broken {x}")
        return x * 10

    path = tmp_path / "bad.jsonl"
    dataset = ps.range(FIRST + 16).map(lethal).batch(4)
    with dataset.loader("processes", 2, prefetch=1, on_error=on_error, quarantine=path) as loader:
        batches = [batch.tolist() for batch in loader]
    if on_error == "skip":
        good = [x for x in range(FIRST + 16) if x not in (LETHAL, *BROKEN)]
        assert np.concatenate(batches).tolist() == [x * 10 for x in good]
    else:
        wanted = [[0, 1, 2, 0], [4, 6, 6, 7], [8, 9, 8, 8], [12, 13, 14, 15]]
        assert batches[FIRST // 4 :] == [[(FIRST + x) * 10 for x in row] for row in wanted]
    records = {record["sources"][0][1]: record for record in map(json.loads, path.read_text().splitlines())}
    assert sorted(records) == sorted([LETHAL, *BROKEN])
    assert records[LETHAL]["exception"] == "WorkerError"
    assert "ended with exit status 7" in records[LETHAL]["message"]


def lethal_rows(x: Any) -> Any:
    if int(x) == LETHAL:
        os._exit(7)
    return np.arange(int(x) % 3 + 1)


def lengths(dataset: ps.Dataset, path: Path, on_error: Any) -> list[int]:
    with dataset.loader("processes", 2, prefetch=1, on_error=on_error, quarantine=path) as loader:
        return [int(np.count_nonzero(row + 1)) for batch in loader for row in batch]


SPEC = ps.ArraySpec((None,), "int64")


def padded() -> ps.Dataset:
    return ps.range(FIRST + 8).map(lethal_rows, element_spec=SPEC).padded_batch(4, padding_values=-1)


def test_an_element_that_kills_workers_is_left_out_before_it_is_padded(tmp_path: Path) -> None:
    found = lengths(padded(), tmp_path / "bad.jsonl", "skip")
    assert found == [x % 3 + 1 for x in range(FIRST + 8) if x != LETHAL]


def test_what_cannot_be_replaced_in_a_batch_of_one_piece_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ps.WorkerError, match=r"at map\(lethal_rows\) at .* on element 205 of epoch 0") as caught:
        lengths(padded(), tmp_path / "bad.jsonl", "replace")
    (note,) = caught.value.__notes__
    assert "batch 51 of epoch 0 is made in one piece by padded_batch(4)" in note
    assert "on_error='skip' tries elements before they go into a batch" in note


def test_what_was_to_stand_in_for_a_lethal_element_and_is_lethal_too_is_an_error_that_says_so(tmp_path: Path) -> None:
    def lethal(x: Any) -> Any:
        if int(x) in (LETHAL, LETHAL + 1):
            os._exit(7)
        return x

    dataset = ps.range(FIRST + 8).map(lethal).batch(4)
    options: dict[str, Any] = {"on_error": "replace", "quarantine": tmp_path / "bad.jsonl"}
    with dataset.loader("processes", 2, prefetch=1, **options) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(FIRST // 4 + 1)][-1] == [200, 201, 202, 203]
        with pytest.raises(ps.WorkerError, match="on element 206 of epoch 0") as caught:
            next(batches)
    assert "the element that replaced it crashed them too" in caught.value.__notes__[0]


FLAT_MAP = """
import os, sys
import penstock as ps

def burst(x):
    if x == 5:
        os._exit(3)
    return [x, x + 100]

def lethal_stream():
    yield from range(10)
    os._exit(3)

DATASETS = {
    "flat_map": lambda: ps.range(16).flat_map(burst),
    "flat_map with a step after it": lambda: ps.range(16).flat_map(burst).map(lambda x: x),
    "zip": lambda: ps.zip((ps.from_generator(lethal_stream, length=16), ps.range(16))).map(lambda pair: pair[0]),
}
_, name, on_error, path = sys.argv
with DATASETS[name]().batch(4).loader(prefetch=1, on_error=on_error, quarantine=path) as loader:
    batches = iter(loader)
    print(next(batches).tolist(), next(batches).tolist())
    try:
        next(batches)
    except ps.WorkerError as error:
        print(error, error.__notes__)
"""


@pytest.mark.parametrize(
    ("on_error", "name", "batches", "place"),
    [
        ("replace", "flat_map", [[0, 100, 1, 101], [2, 102, 3, 103]], "flat_map(burst) at <string>:15 on element 5"),
        (
            "skip",
            "flat_map with a step after it",
            [[0, 100, 1, 101], [2, 102, 3, 103]],
            "flat_map(burst) at <string>:16 on element 5",
        ),
        ("skip", "zip", [[0, 1, 2, 3], [4, 5, 6, 7]], "from_generator(lethal_stream) at <string>:17 on element 10"),
    ],
)
def test_what_ends_the_process_that_reads_a_stream_ends_no_other(
    fresh_python: Any, tmp_path: Path, on_error: str, name: str, batches: Any, place: str
) -> None:
    done = fresh_python(FLAT_MAP, name, on_error, str(tmp_path / "bad.jsonl"))
    assert done.returncode == 0, done.stderr
    first, told = done.stdout.splitlines()
    assert first == f"{batches[0]} {batches[1]}"
    assert "ended with exit status 3" in told
    assert place in told
    assert "third worker in a row" in told  # and no more of them
    assert "on_error= does not set it aside, because the elements of a stream after that are not known." in told
    deaths = done.stderr.count("A new worker does its work again.")
    # flat_map runs on workers: a unit that killed three is done again element by element, also in the next epoch.
    assert deaths == 2 if name == "zip" else 2 <= deaths <= 12


def test_a_generator_that_ends_its_process_is_not_tried_more_often_for_on_error(tmp_path: Path) -> None:
    def numbers() -> Any:
        yield from range(6)
        os._exit(3)

    dataset = ps.from_generator(numbers, element_spec=ps.ArraySpec((), "int64")).batch(4)
    with dataset.loader(on_error="skip", quarantine=tmp_path / "bad.jsonl") as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(ps.WorkerError, match="third worker in a row that ended there") as caught:
            next(batches)
        assert loader.report().note.count("A new worker does its work again.") == 2
    (note,) = caught.value.__notes__
    assert note.startswith(
        "on_error= does not set it aside, because the elements of a stream after that are not known."
    )


def test_a_worker_that_dies_at_a_function_of_a_stream_costs_nothing() -> None:
    lethal = LethalFunction({37: ["kill", None]})
    dataset = ps.from_generator(range(100)).map(lethal).batch(4)
    with dataset.loader("processes", workers=2) as loader:
        assert [batch.tolist() for batch in loader] == np.arange(100).reshape(25, 4).tolist()
