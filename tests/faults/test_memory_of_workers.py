"""Workers that take too much memory, and machines without named shared memory."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from tests.limits.cgroups import ENTER, memory_limit

pytestmark = pytest.mark.faults

Run = Callable[..., subprocess.CompletedProcess[str]]

GREEDY = """
import numpy as np
import penstock as ps
from penstock.testing._assertions import child_processes

def greedy(x):
    return x + int(np.ones(NBYTES, np.uint8)[-1]) * 0 if x == 13 else x

loader = ps.range(40).map(greedy).batch(4).loader("processes", workers=2)
iterator = iter(loader)
assert [next(iterator).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
try:
    next(iterator)
except ps.PenstockError as error:
    print(type(error).__name__, type(error.__cause__).__name__, error)
loader.set_state(loader.get_state() | {"epoch": 0, "position": 4})
assert [batch.tolist() for batch in loader] == np.arange(16, 40).reshape(6, 4).tolist()
loader.close()
assert not child_processes()
"""


def test_an_allocation_that_is_refused_is_an_error_of_its_element(fresh_python: Run) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2 << 30,) * 2)\n"
    done = fresh_python(limit + GREEDY.replace("NBYTES", str(4 << 30)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ElementError "), done.stdout
    assert "MemoryError" in done.stdout
    assert "map(greedy) at" in done.stdout
    assert "on element 13 of epoch 0" in done.stdout


def test_an_element_for_which_the_system_kills_is_named_with_the_memory_before(fresh_python: Run) -> None:
    with memory_limit(600 << 20) as environment:
        if not environment["LIMITED_BY"]:
            pytest.skip("this system allows no memory cgroup")
        done = fresh_python(ENTER + GREEDY.replace("NBYTES", str(1 << 30)), env=environment)  # below its own limit
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WorkerError "), done.stdout
    assert "was killed by signal 9 (SIGKILL), with a peak memory of " in done.stdout
    assert "map(greedy) at" in done.stdout
    assert "on element 13 of epoch 0" in done.stdout
    assert "most often the system running out of memory" in done.stdout


# /dev/shm: never used, so what it has does not matter.

SHARES = """
import os, sys
import numpy as np
import penstock as ps
table = np.arange(1 << 20, dtype=np.float64)  # shared memory too
dataset = ps.range(64).map(lambda i: np.full((300, 1000), table[i])).batch(16)  # 38.4 MB
total = sum(float(batch.sum()) for batch in dataset.loader("processes", workers=2, prefetch=1))
assert total == 300_000 * 64 * 63 / 2, total
"""
NO_SPACE = "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo full > /dev/shm/full"
NO_DIRECTORY = """
mkdir -p "$TMPDIR/dev" && mount --rbind /dev "$TMPDIR/dev" && mount -t tmpfs tmpfs /dev &&
for name in null zero urandom; do touch /dev/$name && mount --bind "$TMPDIR/dev/$name" /dev/$name; done &&
! test -e /dev/shm
"""


@pytest.mark.parametrize("mounts", [NO_SPACE, NO_DIRECTORY], ids=["without space", "absent"])
def test_batches_need_no_shared_memory_with_a_name(fresh_python: Run, tmp_path: Path, mounts: str) -> None:
    if any(
        Path(path).resolve().is_relative_to("/dev") for path in (ps.__file__, sys.prefix, sys.base_prefix, tmp_path)
    ):
        pytest.skip("the interpreter, the package or the temporary files lie in /dev, which this test hides")
    command = next((each for each in (["unshare", "-m"], ["unshare", "-rm"]) if _works([*each, "true"])), None)
    env = {"TMPDIR": str(tmp_path)}
    if command is None or not _works([*command, "sh", "-c", mounts], env):
        pytest.skip("this system allows no mounts of its own to a process")
    done = fresh_python(SHARES, prefix=[*command, "sh", "-c", f'{mounts}\nexec "$@"', "sh"], env=env)
    assert (done.returncode, done.stderr) == (0, "")


def _works(command: list[str], env: dict[str, str] | None = None) -> bool:
    done = shutil.which(command[0]) and subprocess.run(command, capture_output=True, env=os.environ | (env or {}))
    return bool(done) and done.returncode == 0


def test_few_descriptors_are_enough(fresh_python: Run) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64,) * 2); assert {os.cpu_count()}\n"
    done = fresh_python(limit + SHARES.replace("workers=2", "workers=8"))
    assert (done.returncode, done.stderr) == (0, "")
