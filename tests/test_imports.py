"""What `import penstock` costs and brings with it, each time in a fresh process."""

import json

import pytest

REPORT = """
import json, sys, threading, time
began_s = time.perf_counter()
import penstock
took_s = time.perf_counter() - began_s
roots = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"took_s": took_s, "roots": roots, "threads": threading.active_count()}))
"""

FRAMEWORKS = {"jax", "keras", "tensorflow", "torch"}
OTHERS = {"h5py", "hypothesis", "matplotlib", "pytest", "skimage", "zarr"}


def imported(fresh_python):
    done = fresh_python(REPORT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_import_brings_no_optional_library(fresh_python):
    assert (FRAMEWORKS | OTHERS).isdisjoint(imported(fresh_python)["roots"])


def test_import_starts_no_thread(fresh_python):
    assert imported(fresh_python)["threads"] == 1


@pytest.mark.limits
def test_import_takes_a_third_of_a_second_at_most(fresh_python):
    imported(fresh_python)  # compiles and reads from disk what the next ones find warm
    # 0.19 to 0.30 s on the machine that this was written on; a quarter of it is NumPy. A framework would be seconds.
    assert min(imported(fresh_python)["took_s"] for _ in range(5)) < 0.35
