"""Programs that a test starts and signals; afterwards nothing of them may be left."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.leftovers import not_of_others, shared_names
from tests.waits import DEADLINE_S, PROGRAM_S

WARNINGS = ("-W", "error", "-W", "ignore:unclosed file:ResourceWarning")
"""A signal may strike between `open` and `with` in Python's own code; the file is then closed when it is dropped."""

_OF_OTHERS = ("torchinductor_",)
"""Prefixes of temporary files that libraries keep."""


class Program:
    """A script in its own interpreter, which runs until a signal ends it.

    The script and its descendants have their own directory for temporary files, which identifies them.

    Args:
        script: The code. It prints `ready` on a line when the test may continue.
        directory: An empty directory for temporary files.
        options: Arguments of the interpreter, before the script.
        arguments: Arguments of the script.
        prefix: A command that starts the interpreter.
    """

    def __init__(
        self,
        script: str,
        directory: Path,
        options: Sequence[str] = ("-c",),
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._shared_before = shared_names()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *WARNINGS, "-X", "faulthandler", *options, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(directory)},
            start_new_session=True,  # so that it has a group that can be interrupted
        )
        self.pid = self.process.pid
        self.await_line("ready")

    def await_line(self, line: str) -> None:
        """Waits until the program prints this line, and fails if it prints another."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PROGRAM_S)[0]:
            self.abort(f"did not say {line!r}")
        said = self.process.stdout.readline()
        if said != f"{line}\n":
            self.abort(f"said {said!r}, not {line!r}")

    def abort(self, why: str) -> None:
        """Fails the test, with every thread's stack."""
        self.process.send_signal(signal.SIGABRT)
        out, err = self.process.communicate()
        raise AssertionError(f"The program {why}.\n{out}\n{err}")

    def workers(self) -> list[int]:
        """Returns its live worker processes."""
        return [process for process in self.relatives() if b"penstock worker" in _read(process, "cmdline")]

    def relatives(self) -> list[int]:
        """Returns its live descendants and itself."""
        mark = f"TMPDIR={self._directory}".encode()
        found = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [process for process in found if mark in _read(process, "environ").split(b"\0")]

    def end(self, number: int, *, to_group: bool = False) -> tuple[int, str]:
        """Sends a signal, and waits for the ends of all processes; returns the status and stderr."""
        relatives = self.relatives()
        if to_group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)
        try:
            await_end(relatives)
        except TimeoutError as error:
            self.abort(f"did not end: {error}")
        status, _, err = self.wait()
        return status, err

    def wait(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Waits for the program and its descendants; returns the status, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.abort("did not end")
        await_end(self.relatives())
        return self.process.returncode, out, err

    def assert_nothing_left(self) -> None:
        """Asserts that it has ended and left no process, temporary file or named shared memory."""
        assert self.process.poll() is not None, "it runs"
        files = [name for name in os.listdir(self._directory) if not name.startswith(_OF_OTHERS)]
        left = self.relatives(), files, sorted(not_of_others(shared_names() - self._shared_before))
        assert left == ([], [], []), f"Left behind: {left}"

    def kill(self) -> None:
        """Kills it and its descendants."""
        for process in self.relatives():
            os.kill(process, signal.SIGKILL)
        self.process.communicate()


def await_end(processes: Iterable[int], deadline_s: float = DEADLINE_S) -> None:
    """Waits until processes have ended; they need not be children.

    Raises:
        TimeoutError: One did not end within the deadline.
    """
    ends_at_s = time.monotonic() + deadline_s
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        if not select.select([descriptor], [], [], max(0.0, ends_at_s - time.monotonic()))[0]:
            raise TimeoutError(f"process {process} still runs: {_read(process, 'cmdline')!r}")
        os.close(descriptor)


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""
