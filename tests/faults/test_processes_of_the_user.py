"""Loaders in programs with their own threads and processes. Each program leaves nothing behind."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.programs import Program, await_end

pytestmark = pytest.mark.faults

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Program]

BATCHES = """
import concurrent.futures, multiprocessing, os, signal, sys, threading
import numpy as np
import penstock as ps
from penstock.testing._assertions import child_processes

def numbered(count=200):
    return ps.range(count).map(lambda x: x * 3).shuffle(1).batch(8)

def digest(executor='processes'):
    with numbered().loader(executor, workers=2 if executor == 'processes' else 'auto') as loader:
        return [batch.tolist() for batch in loader]
"""

KINDS = {
    "a thread": """
found = []
thread = threading.Thread(target=lambda: found.append(digest()))
thread.start()
thread.join()
assert found == [digest('inline')]
""",
    "many threads at once": """
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda _: digest(), range(16)))
assert found == [digest('inline')] * 16
""",
    "a forked process": """
import warnings
warnings.simplefilter('ignore', DeprecationWarning)
with numbered().loader('processes', workers=2) as loader:
    iterator = iter(loader)
    first = next(iterator).tolist()
    with multiprocessing.get_context('fork').Pool(2) as pool:
        assert pool.map(lambda_digest := digest, ['processes', 'processes']) == [digest('inline')] * 2
    assert [first] + [batch.tolist() for batch in iterator] == digest('inline')
""",
    "a forked process that outlives the loader": """
loader = numbered().loader('processes', workers=2)
next(iter(loader))
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
workers = child_processes() - {child}
import time
from penstock.run.pool import _pool
_pool.GRACE_S = 90  # after which workers are killed
began = time.monotonic()
loader.close()
assert time.monotonic() - began < 45  # they end by themselves, although their sockets live on in the child
assert child_processes() == {child}
os.close(writer)
os.waitpid(child, 0)
""",
    "two loaders in turn, as train and validation": """
with numbered().loader('processes', workers=2) as train:
    next(iter(train))
    workers = child_processes()
    assert len(workers) == 2
    with numbered().loader('processes', workers=2) as validation:
        for _ in range(3):
            for one, other in zip(train, validation, strict=True):
                assert one.shape == other.shape
    assert child_processes() == workers
    assert [batch.tolist() for batch in train] != []
    assert child_processes() == workers
""",
    "waits for all children": """
import logging
logging.disable()  # that they ended is said
def reap():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return
with numbered(4000).loader('processes', workers=2) as loader:
    thread = threading.Thread(target=reap)
    for number, batch in enumerate(loader):
        if number == 3:
            thread.start()
        if number in (10, 100):
            os.kill(max(child_processes()), signal.SIGKILL)
assert number == 499
thread.join()
""",
}


@pytest.mark.parametrize("script", KINDS.values(), ids=KINDS)
def test_a_loader_works_beside(fresh_python: Run, script: str) -> None:
    done = fresh_python(BATCHES + script + "\nassert not child_processes()\n")
    assert (done.returncode, done.stderr) == (0, "")


SPAWNS = """
import multiprocessing, os, sys
import penstock as ps
from penstock.testing._assertions import child_processes

def train(rank):
    dataset = ps.range(64).map(lambda x: x * 3).shuffle(1).batch(8)
    with dataset.loader("processes", workers=1, shard=(rank, 2)) as loader:
        found = [batch.tolist() for batch in loader]
    with dataset.loader("inline", shard=(rank, 2)) as oracle:
        assert found == [batch.tolist() for batch in oracle]
    assert not child_processes()
    return rank

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(train, range(2)))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_loader_works_in_a_process_that_the_user_started(fresh_python: Run, tmp_path: Path, method: str) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(SPAWNS)
    done = fresh_python(script, method)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", "")


RANK = """
import penstock as ps
for number, _ in enumerate(ps.range(8).map(lambda x: x).repeat().batch(4).loader("processes", workers=1)):
    if number == 3:
        print("ready", flush=True)
"""
LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
rank.wait()
"""


def test_a_rank_that_is_killed_takes_its_workers_along(start: Start) -> None:
    program = start(LAUNCHER, arguments=[RANK])
    workers = program.workers()
    assert len(workers) == 1
    for process in set(program.relatives()) - set(workers):
        os.kill(process, signal.SIGKILL)
    program.wait()
    await_end(workers)
