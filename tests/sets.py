"""Runs the sets of tests, and once more, alone, each test that failed; then one summary stands at the end.

    python -m tests.sets all MAKE SET SET+SET ...  what `make test` runs: `MAKE test-SET` for each set
    python -m tests.sets one SET ARGUMENT ...      what that runs in place of pytest: `pytest ARGUMENT ...`

A test that fails and then passes alone, in a fresh process, does not fail its set. The summary counts and lists it,
with both outputs: a failure by chance is often a fault of the library. All sets run, whatever the sets before them did.

A set fails without second runs if it ends in another way than by tests that failed: no test was found, a file could not
be collected, pytest itself ended early, or more than `MOST_ALONE` tests failed.

Outputs are in `build/tests/SET/`: `output.txt` of the whole set, `N-first.txt` and `N-second.txt` of a test.

pytest runs in a process group of its own, so that a run that hangs ends with all its processes. Ctrl-C is passed on,
and the summary still stands at the end.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:  # it is installed for the first set
    import pytest

RESULTS = Path("build/tests")
# So many failures at once are no chance, and alone they would take an hour.
MOST_ALONE = 20
# For what hangs outside of tests; `faulthandler_timeout` ends a test that hangs, and prints its stacks.
SET_DEADLINE_S = float(os.environ.get("TESTS_SET_DEADLINE_S", "3600"))
ALONE_DEADLINE_S = float(os.environ.get("TESTS_ALONE_DEADLINE_S", "420"))
# Bytes that are free at each time of a run whose tests have room: the film of the demo has 1.2 GB.
DISK_FREE = 1e9 * float(os.environ.get("TESTS_DISK_FREE_GB", "2"))
GRACE_S = float(os.environ.get("TESTS_GRACE_S", "20"))  # between a gentle signal and SIGKILL
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 128 + signal.SIGINT
INTERRUPTED = "interrupted"
TESTS_FAILED = 1  # these are statuses of pytest
FAULTS = {
    2: "a file could not be collected, or the run was interrupted",
    3: "pytest failed",
    4: "pytest refused its arguments",
    5: "no tests were found",
}


@dataclasses.dataclass
class Result:
    """What a set did. `once` and `failed` are the tests that failed once and twice, with the paths of their outputs."""

    passed: int = 0
    once: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    failed: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    fault: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not (self.failed or self.fault)


# One set.


def run_set(name: str, arguments: Sequence[str]) -> int:
    """Runs one set, then alone what failed; writes `result.json`, and returns the exit status."""
    folder = RESULTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = Result()
    start_s = time.monotonic()
    _first_runs(folder, arguments, result)
    if not result.fault:
        _second_runs(folder, arguments, result)
    result.seconds = time.monotonic() - start_s
    (folder / "result.json").write_text(json.dumps(dataclasses.asdict(result)))
    return STOPPED if result.fault == INTERRUPTED else int(not result.good)


def _first_runs(folder: Path, arguments: Sequence[str], result: Result) -> None:
    status, record = _pytest(folder / "output.txt", SET_DEADLINE_S, arguments, echo=True)
    result.passed = len(record.passed)
    for number, (test, text) in enumerate(record.failed.items(), 1):
        first = folder / f"{number}-first.txt"
        text = f"{test}\n\n{text}\n\nThe output of the whole set: {folder}/output.txt\n"
        first.write_text(text, encoding="utf-8", errors="backslashreplace")
        result.failed[test] = [str(first)]
    if record.uncollected:
        result.fault = f"could not be collected: {', '.join(dict.fromkeys(record.uncollected))}"
    elif isinstance(status, str):
        result.fault = status
    elif status < 0:
        result.fault = f"pytest was killed by signal {-status}"
    elif status in FAULTS:
        result.fault = FAULTS[status]
    elif not record.ended or (status == TESTS_FAILED and not record.failed):
        result.fault = f"pytest ended early, with status {status}, in or after {record.last or 'no test'}"
    elif status not in {0, TESTS_FAILED}:
        result.fault = f"pytest ended with status {status}"
    if len(result.failed) > MOST_ALONE:
        result.fault = result.fault or f"more than {MOST_ALONE} tests failed, so none was run again"


def _second_runs(folder: Path, arguments: Sequence[str], result: Result) -> None:
    for number, (test, outputs) in enumerate(list(result.failed.items()), 1):
        second = folder / f"{number}-second.txt"
        outputs.append(str(second))
        _say(f"Once more, alone: {test}")
        status, record = _pytest(second, ALONE_DEADLINE_S, [*arguments, "--numprocesses=0", f"--alone={test}"])
        if status == 0 and record.passed == {test}:
            result.once[test] = result.failed.pop(test)
            result.passed += 1
        if status == INTERRUPTED:
            result.fault = INTERRUPTED
            return
        _say(f"  {'passed' if test in result.once else 'failed again'}: {second}")


def _pytest(
    output: Path, deadline_s: float, arguments: Sequence[str], *, echo: bool = False
) -> tuple[int | str, "Record"]:
    """Runs pytest. Returns its exit status, or why it was ended, and what the plugin recorded."""
    record = output.with_suffix(".jsonl")
    command = [sys.executable, "-m", "pytest", "-p", "tests.sets", f"--record={record.absolute()}", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
    )
    copying = threading.Thread(target=_copy, args=(process.stdout, output, echo), daemon=True)
    copying.start()
    status: int | str
    try:
        status = process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        status = f"ended by us: it still ran after {deadline_s:.0f} s"
        _end(process, signal.SIGABRT)  # which faulthandler answers with the stacks
    except KeyboardInterrupt:
        status = INTERRUPTED
        _end(process, signal.SIGINT)  # which pytest answers with its summary
    copying.join(5)  # what the tests left running may hold the pipe
    if isinstance(status, str):
        with output.open("a") as file:
            file.write(f"\n{status}\n")
    return status, Record.read(record)


def _copy(pipe: IO[bytes], output: Path, echo: bool) -> None:
    with output.open("wb", buffering=0) as file:
        while piece := os.read(pipe.fileno(), 1 << 16):
            file.write(piece)
            if echo:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()


def _end(process: subprocess.Popen[bytes], gently: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, gently)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# The plugin of that pytest. It records each event at once, so that what happened is known if the process ends.


@dataclasses.dataclass
class Record:
    """What happened in one run of pytest. `failed` has the output of each test, by the test's name."""

    passed: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    uncollected: list[str] = dataclasses.field(default_factory=list)
    last: str = ""
    ended: bool = False

    @staticmethod
    def read(path: Path) -> "Record":
        record = Record()
        for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith("\n"):  # pytest was killed while it wrote
                break
            event, test, text = json.loads(line)
            record.last = test or record.last
            if event == "passed":
                record.passed.add(test)
            elif event == "failed":
                record.failed[test] = f"{record.failed[test]}\n\n{text}" if test in record.failed else text
            elif event == "uncollected":
                record.uncollected.append(test)
            record.ended |= event == "ended"
        record.passed -= record.failed.keys()  # its fixture failed later
        return record


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def _write(self, event: str, test: str = "", text: str = "") -> None:
        self._file.write(json.dumps([event, test, text]) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("started", nodeid)

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        if report.failed:
            parts = [f"In {report.when}:" if report.when != "call" else "", report.longreprtext]
            parts += [f"-- {title}\n{content}" for title, content in report.sections]
            self._write("failed", report.nodeid, "\n\n".join(part for part in parts if part))
        elif report.when == "call" and report.passed:
            self._write("passed", report.nodeid)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        if report.failed:
            self._write("uncollected", report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._write("ended")


def pytest_addoption(parser: "pytest.Parser") -> None:
    parser.addoption("--record", type=Path, help="Write what happens to this file, for tests/sets.py.")
    parser.addoption("--alone", help="Run this test only, whatever paths are given.")


def pytest_configure(config: "pytest.Config") -> None:
    if config.option.record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.option.record))
    if config.option.alone:
        config.args = [config.option.alone]


# All sets.


def run_all(make: str, groups: Sequence[str]) -> int:
    """Runs each set by `make test-NAME`, prints the summary, and returns the exit status.

    Sets that are joined by `+` run at the same time. The output of the first is seen as it comes, that of the others
    after it.
    """
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    results = {name: Result(fault="not run") for group in groups for name in group.split("+")}
    disk = _LeastFree()
    interrupted = False
    for group in groups:
        names = group.split("+")
        if len(names) > 1:  # not at the same time: what they need is installed into one folder
            interrupted = any(_wait([_make(make, name, "true")]) for name in names)
        processes = []
        for name in names if not interrupted else ():
            output = None if name == names[0] else RESULTS / f"{name}.txt"
            _say(f"== {name}" if output is None else f"== {name} at the same time; its output follows")
            processes.append(_make(make, name, f"$(PY) -m tests.sets one {name}", output))
        interrupted = _wait(processes) or interrupted
        for name, process in zip(names, processes, strict=False):
            path = RESULTS / name / "result.json"
            if path.exists():
                results[name] = Result(**json.loads(path.read_text()))
                interrupted = interrupted or results[name].fault == INTERRUPTED
                if results[name].good and process.returncode:
                    results[name].fault = f"what follows the tests failed: make ended with status {process.returncode}"
            else:
                results[name] = Result(fault=f"did not start: make ended with status {process.returncode}")
            if name != names[0]:
                _say(f"== {name}\n{(RESULTS / f'{name}.txt').read_text(errors='replace')}")
        if interrupted:
            break
    good = all(result.good for result in results.values())
    for line in disk.short() if not good else ():
        _say(f"\n{line}")
    _say("\n".join(_summary(results)))
    return STOPPED if interrupted else int(not good)


def _make(make: str, name: str, pytest: str, output: Path | None = None) -> subprocess.Popen[bytes]:
    command = [make, "--no-print-directory", f"test-{name}", f"PYTEST={pytest}"]
    with output.open("wb") if output else contextlib.nullcontext() as file:
        errors = file and subprocess.STDOUT
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=errors, process_group=0)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Waits for the processes. Returns whether we were interrupted, and so interrupted them."""
    interrupted = False
    for process in processes:
        try:
            process.wait()
        except KeyboardInterrupt:
            interrupted = True
            for each in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, signal.SIGINT)  # make waits after SIGINT, and ends at once after SIGTERM
            process.wait()
    return interrupted


def _summary(results: dict[str, Result]) -> Iterator[str]:
    width = max(map(len, results)) + 2
    yield f"\n{'set':{width}}{'passed':>8}{'failed':>8}{'seconds':>9}"
    for name, result in results.items():
        row = f"{name:{width}}{result.passed:8}{len(result.failed):8}{result.seconds:9.0f}"
        yield f"{row}   {result.fault}".rstrip()
    for title, kind in (("Failed", "failed"), ("Failed once, then passed alone", "once")):
        tests = [
            (name, test, paths) for name, result in results.items() for test, paths in getattr(result, kind).items()
        ]
        if tests:
            yield f"\n{title}: {len(tests)}"
        for name, test, outputs in tests[:MOST_ALONE]:
            yield f"  {name}: {test}"
            yield f"    {'  '.join(outputs)}"
        if len(tests) > MOST_ALONE:
            yield f"  and {len(tests) - MOST_ALONE} more, see {RESULTS}/*/output.txt"
    passed = sum(result.passed for result in results.values())
    counts = {
        "passed": passed,
        "failed": sum(len(result.failed) for result in results.values()),
        "failed once": sum(len(result.once) for result in results.values()),
        "sets in error": sum(bool(result.fault) for result in results.values()),
    }
    yield "\nAll sets: " + ", ".join(f"{count} {what}" for what, count in counts.items())


class _LeastFree:
    """Watches the disks that tests write to: where one is full, anything may fail, with any message."""

    def __init__(self) -> None:
        self._least = {folder: shutil.disk_usage(folder).free for folder in (str(RESULTS), tempfile.gettempdir())}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:  # ends with the process
        while True:
            for folder, least in self._least.items():
                self._least[folder] = min(least, shutil.disk_usage(folder).free)
            time.sleep(1)

    def short(self) -> Iterator[str]:
        """Names each disk that had too little room for the tests at some time of the run."""
        for folder, least in self._least.items():
            if least < DISK_FREE:
                yield (
                    f"The disk of {folder} had only {least / 1e9:.1f} GB free at some time of this run, which can make "
                    f"tests fail. They need {DISK_FREE / 1e9:.0f} GB."
                )


def _say(line: str) -> None:
    print(line, flush=True)


def _stop(*_: object) -> None:
    for number in STOPS:  # once is enough, and pytest needs time to end
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Runs the command in the file's docstring."""
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    command, first, *rest = arguments
    return run_all(first, rest) if command == "all" else run_set(first, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
