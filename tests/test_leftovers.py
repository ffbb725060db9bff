"""What a test left behind is told from what others have."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from tests.leftovers import not_of_others, shared_names, worker_processes
from tests.waits import DEADLINE_S


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and /dev/shm")
def test_a_name_in_shared_memory_that_a_foreign_process_has_open_is_no_leftover() -> None:
    name = f"penstock-tests-{os.getpid()}"
    script = f"exec 9>/dev/shm/{name}; echo $$; read line"
    foreign = ["setsid", "--fork", "sh", "-c", script]  # its parent ends, so that it is nobody's child
    with subprocess.Popen(foreign, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ended = os.pidfd_open(int(process.stdout.readline()))
            process.wait()
            assert name in shared_names()
            assert not_of_others({name}) == set()
            process.stdin.write("end\n")
            process.stdin.flush()
            assert select.select([ended], [], [], DEADLINE_S)[0]
            os.close(ended)
            assert not_of_others({name}) == {name}
        finally:
            Path(f"/dev/shm/{name}").unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay", "leaves_nothing_behind")
def test_a_shared_worker_that_was_replaced_is_no_leftover() -> None:
    before = worker_processes()
    os.kill(max(before), signal.SIGKILL)
    with ps.range(8).loader("processes", workers=2) as loader:
        assert [int(each) for each in loader] == [*range(8)]
    while worker_processes() == before or len(worker_processes()) < 2:
        select.select([], [], [], 0.01)
