"""Programs that a test starts, sends signals to, and finds nothing left of."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.leftovers import not_of_others, shared_names

DEADLINE_S = 60.0
"""How long anybody waits for what must come, on a busy machine."""

WARNINGS = ("-W", "error", "-W", "ignore:unclosed file:ResourceWarning")
"""Where a signal strikes between `open` and `with`, in Python's own code, the file is closed when it is dropped."""

_OF_OTHERS = ("torchinductor_",)
"""Temporary files that libraries keep."""


class Program:
    """A script in an interpreter of its own, which runs until it is told to end.

    It and all that it starts have a directory of their own for temporary files, by which they are known.

    Args:
        script: What it runs; it says `ready` on a line of its own when the test may go on.
        directory: An empty one, for temporary files.
        options: More arguments of the interpreter, before the script.
        arguments: Of the script.
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
        """Waits until the program says a line; it says nothing else."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], DEADLINE_S)[0]:
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
        """Its worker processes, without those that have ended."""
        return [process for process in self.relatives() if b"penstock worker" in _read(process, "cmdline")]

    def relatives(self) -> list[int]:
        """All processes that it started, and they did, and so on, that live; and itself."""
        mark = f"TMPDIR={self._directory}".encode()
        found = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [process for process in found if mark in _read(process, "environ").split(b"\0")]

    def end(self, number: int, *, to_group: bool = False) -> tuple[int, str, float]:
        """Sends a signal; returns the status, what was written to stderr, and the seconds until all were gone."""
        relatives = self.relatives()
        began_s = time.monotonic()
        if to_group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)
        try:
            await_end(relatives)
        except TimeoutError as error:
            self.abort(f"did not end: {error}")
        seconds = time.monotonic() - began_s
        status, _, err = self.wait()
        return status, err, seconds

    def wait(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Waits for the end of it and of all that it started; returns the status and what it wrote."""
        try:
            out, err = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.abort("did not end")
        await_end(self.relatives())
        return self.process.returncode, out, err

    def assert_nothing_left(self) -> None:
        """Asserts that it has ended, and that there is no process, temporary file or named memory of it."""
        assert self.process.poll() is not None, "it runs"
        files = [name for name in os.listdir(self._directory) if not name.startswith(_OF_OTHERS)]
        left = self.relatives(), files, sorted(not_of_others(shared_names() - self._shared_before))
        assert left == ([], [], []), f"Left behind: {left}"

    def kill(self) -> None:
        """Ends it and all that is left of it, whatever they do."""
        for process in self.relatives():
            os.kill(process, signal.SIGKILL)
        self.process.communicate()


def await_end(processes: Iterable[int], deadline_s: float = DEADLINE_S) -> None:
    """Waits until processes, whosever they are, have ended.

    Raises:
        TimeoutError: One did not, within the deadline.
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
