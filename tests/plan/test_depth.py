"""A plan of very many steps is built, learnt, printed, pickled and run, in a fresh program."""

import subprocess
import sys

import pytest

PROGRAM = """
import pickle
import penstock as ps

def more(x):
    return x + 1

ds = ps.range(10_000)
for number in range(COUNT):
    ds = STEP
made = pickle.loads(pickle.dumps(ds))
assert str(ds) and ds.element_spec and made.element_spec
first = int(made[0])
for executor, workers in (("inline", 1), ("threads", 2), ("processes", 1)):
    with made.batch(4).loader(executor=executor, workers=workers) as loader:
        assert int(next(iter(loader))[0]) == first
        loader.get_state()
assert first == COUNT, first
"""
STEPS = {
    "slices": (1000, "ds[1:]"),
    "maps": (400, "ds.map(more)"),
    "both": (150, "ds[1:] if number % 2 else ds.map(more)"),
}


LEARNT = """
import penstock as ps

ds = ps.range(10_000)
for _ in range(1000):
    ds = STEP
assert ds.element_spec
"""


@pytest.mark.parametrize("step", ["ds.map(lambda x: x + 1)", "ds[1:]"])
def test_the_spec_of_very_many_steps_is_found_before_anything_else_is_asked(step, fresh_python):
    found = fresh_python(LEARNT.replace("STEP", step))
    assert found.returncode == 0, found.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_a_plan_of_very_many_steps_runs(kind):
    count, step = STEPS[kind]
    program = PROGRAM.replace("COUNT", str(count)).replace("STEP", step)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
