"""Times that users would notice: one of some fresh processes is as quick, the first where nothing else runs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.limits

Run = Callable[..., subprocess.CompletedProcess[str]]


def is_once_within(limit_s: float, fresh_python: Run, script: str, *arguments: str) -> bool:
    for _ in range(20):
        done = fresh_python(script, *arguments)
        assert done.returncode == 0, done.stderr
        if float(json.loads(done.stdout)) < limit_s:
            return True
    return False


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_the_first_batch_comes_at_once(fresh_python: Run, tmp_path: Path, executor: str) -> None:
    # 50 ms on a quiet machine.
    np.save(tmp_path / "frames.npy", np.zeros((2000, 3, 50, 50)))
    script = """
import json, sys, time
import penstock as ps
frames = ps.from_npy(sys.argv[1])
loader = ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(32).loader(sys.argv[2])
began = time.perf_counter()
next(iter(loader))
print(json.dumps(time.perf_counter() - began))
loader.close()
"""
    assert is_once_within(0.15, fresh_python, script, str(tmp_path / "frames.npy"), executor)


def test_a_plan_over_a_trillion_elements_costs_nothing(fresh_python: Run) -> None:
    script = """
import json, time
import penstock as ps
began = time.perf_counter()
dataset = ps.range(10**12).shuffle(seed=1).repeat(3).batch(32)
dataset[10**9], dataset[-1], str(dataset), len(dataset)
print(json.dumps(time.perf_counter() - began))
"""
    assert is_once_within(0.05, fresh_python, script)


def test_close_is_quick(fresh_python: Run) -> None:
    script = """
import json, time
import penstock as ps
loader = ps.range(10**9).shuffle(seed=1).map(lambda x: x).batch(32).loader("threads")
next(iter(loader))
began = time.perf_counter()
loader.close()
print(json.dumps(time.perf_counter() - began))
"""
    assert is_once_within(0.15, fresh_python, script)
