"""An interpreter that runs scripts in turn, because importing a framework takes longer than most of them run.

Each script runs as `__main__`, in a folder and with variables of its own, with warnings as errors. At the end the
interpreter ends as any other: with all that the scripts left.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.waits import DEADLINE_S, PROGRAM_S

SETS_A_VARIABLE = re.compile(r"^os\.environ\[", re.MULTILINE)


def needs_an_interpreter(text: str) -> bool:
    """Whether a script sets a variable that a library reads when it is first imported."""
    return SETS_A_VARIABLE.search(text) is not None


class Turns:
    """A process that runs scripts, one after the other. It starts again after one that hung."""

    def __init__(self, options: Sequence[str]) -> None:
        self._command = [sys.executable, *options, "-X", "faulthandler", "-m", "tests.turns"]
        self._process: subprocess.Popen[str] | None = None
        self._names: list[str] = []

    def run(
        self, script: Path, *, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = PROGRAM_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script. Returns its status and output; after the deadline, the status of a kill and all stacks."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._names.append(script.name)
        process.stdin.write(json.dumps([str(script), str(cwd), env or {}]) + "\n")
        process.stdin.flush()
        if select.select([self._answers], [], [], timeout_s)[0] and (line := self._answers.readline()):
            return subprocess.CompletedProcess(script, *json.loads(line))
        process.send_signal(signal.SIGABRT)  # which faulthandler answers with the stacks
        status, text = self._end()
        return subprocess.CompletedProcess(script, status, "", text)

    def close(self) -> None:
        """Ends the process as the end of a script does, and raises an error if it does not end so."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            status, text = self._end()
            assert status == 0, f"After {self._names} the interpreter ended with status {status}:\n{text}"

    def start(self) -> None:
        """Starts the process, if it does not run."""
        if self._process is not None:
            return
        answers, writer = os.pipe()
        self._names.clear()
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by _end
        self._process = subprocess.Popen(
            [*self._command, str(writer)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[writer],
            text=True,
            start_new_session=True,
        )
        os.close(writer)
        self._answers = os.fdopen(answers)

    def _end(self) -> tuple[int, str]:
        """Waits for the end of the process. Returns its status, and what it wrote besides the scripts' output."""
        process, self._process = self._process, None
        assert process is not None
        with self._answers, self._output:
            try:
                status = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                status = process.wait(DEADLINE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started
            if process.stdin is not None:
                process.stdin.close()
            self._output.seek(0)
            return status, self._output.read()


def _run(script: str, cwd: str, env: dict[str, str]) -> tuple[int, str, str]:
    out, err, status, before = io.StringIO(), io.StringIO(), 0, dict(os.environ)
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None  # as TMPDIR says
    sys.argv[:] = [script]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        status = 1
        err.write(traceback.format_exc())
    os.environ.clear()
    os.environ.update(before)
    gc.collect()
    return status, out.getvalue(), err.getvalue()


def main(writer: Any) -> None:
    """Runs each script that a line of standard input names."""
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
    with contextlib.suppress(ImportError):  # torch with CUDA has it: imported behind TensorFlow, it ends the process
        importlib.import_module("triton")
    with open(int(writer), "w", buffering=1) as answers:
        answers.writelines(json.dumps(_run(*json.loads(line))) + "\n" for line in sys.stdin)


if __name__ == "__main__":
    main(sys.argv[1])
