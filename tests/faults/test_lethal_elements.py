"""Elements that workers die of, where what fails is set aside."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_an_element_that_kills_workers_is_set_aside(tmp_path: Path, on_error: Any) -> None:
    def lethal(x: Any) -> Any:
        if int(x) == 5:
            os._exit(7)
        if int(x) in (3, 10, 11):
            raise ValueError(f"broken {x}")
        return x * 10

    path = tmp_path / "bad.jsonl"
    with ps.range(16).map(lethal).batch(4).loader("processes", 2, on_error=on_error, quarantine=path) as loader:
        batches = [batch.tolist() for batch in loader]
    if on_error == "skip":
        assert [x for batch in batches for x in batch] == [x * 10 for x in range(16) if x not in (3, 5, 10, 11)]
    else:
        assert batches == [[0, 10, 20, 0], [40, 60, 60, 70], [80, 90, 80, 80], [120, 130, 140, 150]]
    records = {record["sources"][0][1]: record for record in map(json.loads, path.read_text().splitlines())}
    assert sorted(records) == [3, 5, 10, 11]
    assert records[5]["exception"] == "WorkerError"
    assert "ended with exit status 7" in records[5]["message"]
