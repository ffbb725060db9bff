"""`benchmarks/resize.py` notices what a run loses, and penstock loses nothing in a small copy of its jobs."""

import dataclasses
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SIZES = {"ELEMENT_COUNT": 6144, "CORPUS_COUNTS": (3000, 3000, 3000), "PICTURE_COUNT": 6000}


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns what the benchmark consists of, with jobs of a few thousand elements."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PENSTOCK_BENCH_DIR", str(tmp_path))
    parts = SimpleNamespace(
        **{part: importlib.import_module(f"_resize_{part}") for part in ("compare", "jobs", "contenders")}
    )
    for name, size in SIZES.items():
        monkeypatch.setattr(parts.jobs, name, size)
        monkeypatch.setattr(parts.contenders, name, size)
    weights = {0: (6.0, 3.0, 1.0), 100: (2.0, 4.0, 4.0)}
    monkeypatch.setattr(parts.contenders, "WEIGHTS", weights)
    return parts


def step(*numbers: int, bits: int = 0) -> Any:
    """A step of elements with the same bytes."""
    return [((number,), bits) for number in numbers]


@pytest.mark.parametrize(
    ("trained", "wanted"),
    [
        ([step(1, 2), step(3, 4), step(5, 6)], (0, 0, 0, 0, 0)),
        ([step(2, 1), step(4, 3)], (0, 0, 0, 0, 0)),  # ranks add their gradients up
        ([step(1, 2, 3), step(4, 5, 6)], (0, 0, 0, 0, 0)),  # another size of steps
        ([step(1, 2), step(5, 4), step(6, 7)], (1, 0, 2, 2, 0)),
        ([step(1, 2), step(1, 2), step(3, 4)], (2, 2, 4, 2, 0)),
        ([step(1, 2), step(3, 4, bits=1), step(5, 6)], (0, 0, 0, 1, 2)),
    ],
    ids=["same", "another order in a step", "other steps", "one lost", "a step again", "other bits"],
)
def test_the_comparison_counts_what_differs(resize: Any, trained: Any, wanted: Sequence[int]) -> None:
    reference = [step(1, 2), step(3, 4), step(5, 6), step(7, 8)]
    found = resize.compare.compare(reference, trained)
    assert dataclasses.astuple(found) == tuple(wanted)
    assert bool(found) is any(wanted)


def test_a_document_in_two_rows_is_no_repetition(resize: Any) -> None:
    rows = [[((1, 2), 5)], [((2, 3), 6)]]
    assert not resize.compare.compare(rows, rows)
    assert resize.compare.compare(rows, [rows[0], rows[0]]).repeated == 1  # 1; 2 is in two rows anyway


@pytest.mark.parametrize("job", ["shuffled", "packed", "pictures"])
def test_penstock_loses_nothing_on_other_ranks_and_batches(resize: Any, job: str) -> None:
    trained = run(resize, job)
    start = resize.jobs.JOBS[job].start
    count = sum(map(len, trained))
    reference = run_phase(resize, job, dataclasses.replace(start, steps=count // start.batch + 1), None)[0]
    assert not resize.compare.compare(reference, trained)
    assert len(trained) > 12


def test_a_state_that_is_one_batch_ahead_loses_it(resize: Any) -> None:
    start = resize.jobs.JOBS["shuffled"].start
    phase = dataclasses.replace(start, steps=2)
    before, state = run_phase(resize, "shuffled", phase, None)
    after, _ = run_phase(resize, "shuffled", phase, state | {"position": state["position"] + 1})
    reference, _ = run_phase(resize, "shuffled", dataclasses.replace(start, steps=6), None)
    found = resize.compare.compare(reference, before + after)
    assert (found.lost, found.repeated, found.steps) == (192, 0, 2)


def run(resize: Any, job: str) -> Any:
    """Runs six lives of penstock in this process, without workers: on up to 7 ranks, some of which divide nothing."""
    trained: Any = []
    state = None
    for index, ranks in enumerate([4, 3, 7, 1, 5, 2]):
        phase = resize.jobs.JOBS[job].start
        batch = ranks if job == "pictures" else phase.batch // (1 + index % 2)
        steps, state = run_phase(resize, job, dataclasses.replace(phase, ranks=ranks, batch=batch, steps=3), state)
        trained += steps
    return trained


def run_phase(resize: Any, job: str, phase: Any, state: Any) -> Any:
    """Returns the steps and the state of one life; it makes another step after its state, as a run that is killed."""
    ranks = resize.contenders._penstock(job, phase, state)
    steps = [
        [unit for part in ranks.parts for batch in part() for unit in ranks.record(batch)] for _ in range(phase.steps)
    ]
    saved = pickle.loads(pickle.dumps(ranks.state()))
    for part in ranks.parts:
        part()
    return steps, saved


@pytest.mark.faults
def test_the_command_kills_ranks_and_workers_of_penstock(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import _resize_jobs, resize
def endings(seed):
    return {{phase.ending for phase in _resize_jobs.phases(_resize_jobs.JOBS["shuffled"], 4, seed)}}
seed = next(seed for seed in range(1000) if endings(seed) == {{"stop", "rank", "worker"}})
sys.argv = ["resize", "--only=penstock", "--jobs=shuffled", "--events=4", f"--seed={{seed}}", "--json=out.json"]
resize.main()
"""
    environment = {"PENSTOCK_BENCH_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["shuffled"]["penstock"]
    assert "failed" not in found, found
    assert (found["lives"], found["refused"], found["died"], found["stopped"]) == (4, 0, 0, "")
    assert [found[key] for key in ("lost", "repeated", "moved", "steps", "bits")] == [0] * 5
    assert not any(found["control"].values())
    assert found["state"] < 500
    assert "penstock" in done.stdout
