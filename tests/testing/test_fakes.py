"""The fakes in several processes. Every other test covers their work in one."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.sources.arrays import RangeSource
from penstock.testing import CountingSource, FailingSource, GatedSource, LethalFunction, LethalSource

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

WORKER = """
import pickle, sys
import numpy as np

fake, elements = pickle.load(sys.stdin.buffer)
assert "pytest" not in sys.modules  # which would be paid for by each worker
for element in elements:
    try:
        if callable(fake):
            fake(np.int64(element))
        else:
            fake.read_into(np.array([element]), np.empty(1, np.int64))
        print(element, flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that reads elements of a fake, one after the other, and prints what happens."""
    processes = []

    def run(fake: Any, *elements: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", WORKER]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        processes[-1].stdin.write(pickle.dumps((fake, elements)))
        processes[-1].stdin.close()
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def output(process: "subprocess.Popen[bytes]") -> list[str]:
    return process.stdout.read().decode().splitlines()


def read(fake: Any, *elements: int) -> None:
    fake.read_into(np.array(elements), np.empty(len(elements), np.int64))


@pytest.mark.slow
def test_reads_of_all_processes_are_counted(start: Start) -> None:
    source = CountingSource(RangeSource(9))
    read(source, 1, 1, 4)
    for process in [start(source, 1, 2), start(source, 2)]:
        output(process)
    assert source.reads == {1: 3, 2: 2, 4: 1}
    assert not source.advised


@pytest.mark.slow
def test_times_are_counted_over_all_processes(start: Start) -> None:
    source = FailingSource(RangeSource(9), {3: [OSError("first"), None, OSError("third")], 5: KeyError("ever")})
    with pytest.raises(OSError, match=r"^first$"):
        read(source, 3)
    assert output(start(source, 3, 3, 3, 5, 5)) == ["3", "OSError third", "3", "KeyError 'ever'", "KeyError 'ever'"]
    read(source, 3)


@pytest.mark.slow
def test_gate_holds_readers_in_other_processes(start: Start) -> None:
    source = GatedSource(RangeSource(9), closed={2})
    held = start(source, 1, 2)
    source.wait_for_reads({1, 2})
    assert held.stdout.readline() == b"1\n"
    assert held.poll() is None
    source.open_gate()
    assert output(held) == ["2"]
    assert output(start(source, 2)) == ["2"]


@pytest.mark.slow
def test_waits_at_a_gate_end(start: Start) -> None:
    source = GatedSource(RangeSource(9), closed={2}, deadline_s=0.2)
    assert output(start(source, 2)) == ["TimeoutError the gate before element 2 was not opened within 0.2 s"]
    with pytest.raises(TimeoutError, match=r"^no worker read elements \[7\] within 0\.2 s$"):
        source.wait_for_reads({2, 7})


@pytest.mark.faults
@pytest.mark.parametrize(
    "make", [lambda table: LethalSource(RangeSource(9), table), LethalFunction], ids=["a source", "a function"]
)
@pytest.mark.parametrize(("fault", "status"), [("kill", -signal.SIGKILL), ("segfault", -signal.SIGSEGV), ("exit", 3)])
def test_lethal_elements_end_their_process(start: Start, make: Any, fault: str, status: int) -> None:
    fake = make({3: [fault, None]})
    first = start(fake, 1, 3, 4)
    assert output(first) == ["1"]
    assert first.wait() == status
    assert output(start(fake, 3, 3)) == ["3", "3"]


@pytest.mark.faults
def test_lethal_elements_stop_or_hang(start: Start) -> None:
    function = LethalFunction({3: ["stop"], 4: "hang"})
    process = start(function, 3, 4)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == b"3\n"
    assert process.poll() is None


@pytest.mark.parametrize("fault", ["kill", "segfault", "exit", "stop", "hang"])
def test_lethal_elements_spare_the_process_that_made_them(fault: Any) -> None:
    match = rf"^element 3 is lethal \('{fault}'\), and this process is no worker$"
    with pytest.raises(RuntimeError, match=match):
        read(LethalSource(RangeSource(9), {3: fault}), 1, 3)


def test_unknown_faults_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^'die' is no fault\. There are kill, exit, segfault, stop, hang\.$"):
        LethalFunction({3: [None, "die"]})  # type: ignore[list-item]


def test_copies_end_with_the_fake(start: Start) -> None:
    source = CountingSource(RangeSource(9))
    copy = pickle.loads(pickle.dumps(source))
    read(copy, 1)
    assert source.reads == {1: 1}
    del source
    with pytest.raises(FileNotFoundError, match=r"^The original of this fake is gone, and its state with it"):
        read(copy, 1)
    with contextlib.ExitStack() as stack:
        for _ in range(4):  # one gets the number of the descriptor
            stack.enter_context(Path(os.devnull).open())
        with pytest.raises(FileNotFoundError, match=r"^The original of this fake is gone, and its state with it"):
            read(copy, 1)
