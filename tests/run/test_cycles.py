import gc
import threading
import time
from pathlib import Path

import pytest

from tests.waits import DEADLINE_S

PROGRAM = """
import penstock as ps

train = ps.range(500).map(lambda x: x * 2).batch(50)   # the function's globals hold the loader
loader = train.loader(executor=EXECUTOR)
for batch in loader:
    break
"""


def held() -> set[str]:
    """The threads and the shared memory of loaders that this process has."""
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
    for thread in threads:
        thread.join(0.05)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {f"thread {each.ident}" for each in threads if each.is_alive()} | {
        line.split()[0] for line in maps if "memfd:penstock" in line
    }


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_loader_that_its_own_functions_globals_hold_goes_with_them(executor: str) -> None:
    before = held()  # another test's, which a traceback may keep
    exec(compile(PROGRAM, "program", "exec"), {"EXECUTOR": executor})
    deadline = time.monotonic() + DEADLINE_S
    while held() - before:
        assert time.monotonic() < deadline
