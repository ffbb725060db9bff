import gc
import threading
import time
from pathlib import Path

import pytest

PROGRAM = """
import penstock as ps

train = ps.range(500).map(lambda x: x * 2).batch(50)   # the function's globals hold the loader
loader = train.loader(executor=EXECUTOR)
for batch in loader:
    break
"""


def is_gone() -> bool:
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
    for thread in threads:
        thread.join(0.05)
    return not threads and "memfd:penstock" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_loader_that_its_own_functions_globals_hold_goes_with_them(executor: str) -> None:
    exec(compile(PROGRAM, "program", "exec"), {"EXECUTOR": executor})
    deadline = time.monotonic() + 10
    while not is_gone():
        assert time.monotonic() < deadline
