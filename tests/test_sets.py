"""`make test`: what failed runs once more, alone; all sets run; one summary stands at the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sets import MOST_ALONE
from tests.waits import PROGRAM_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PYTEST_INI = """
[pytest]
addopts = --import-mode=importlib -p no:cacheprovider -p xdist
faulthandler_timeout = 4
faulthandler_exit_on_timeout = true
"""
# A test that fails in the first process and passes in the next: a file marks that the first was there.
ONCE = """
import os, pathlib, pytest, signal, threading

def once(name):
    mark = pathlib.Path("marks", name)
    mark.parent.mkdir(exist_ok=True)
    first = not mark.exists()
    mark.touch()
    return first
"""
MAKEFILE = """
PY = "{python}"
PYTEST = $(PY) -m pytest
test-%:
	NAME=$* $(PYTEST) {arguments} test_$*.py
test-broken:
	exit 7
test-later:
	$(PYTEST) {arguments} test_last.py
	exit 8
"""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.sets", *arguments]


def _environment(**more: str) -> dict[str, str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return outer | {"PYTHONPATH": f"{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | more


def _run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        _command(*arguments),
        cwd=folder,
        env=_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROGRAM_S,
    )
    return done.returncode, done.stdout


def _set(folder: Path, program: str, *arguments: str, **environment: str) -> tuple[int, str, dict[str, Any]]:
    (folder / "pytest.ini").write_text(PYTEST_INI)
    (folder / "test_a.py").write_text(ONCE + program)
    status, out = _run(folder, "one", "a", *arguments, "test_a.py", **environment)
    result = json.loads((folder / "build/tests/a/result.json").read_text())
    return status, out, result


def test_what_fails_once_is_listed_and_what_fails_twice_fails(tmp_path: Path) -> None:
    status, out, result = _set(
        tmp_path,
        """
def test_good(): pass
def test_chance():
    print("printed words")
    assert not once("chance"), "the first time"
@pytest.mark.parametrize("x", ["-a[b]::c/é '$(HOME)' \\n \\0"])
def test_odd(x): assert not once("odd")
def test_bad(): assert False, "always"
@pytest.fixture
def torn():
    yield
    assert not once("torn"), "torn down"
def test_torn(torn): pass
@pytest.fixture
def unset(): assert not once("unset"), "not set up"
def test_unset(unset): pass
def test_skipped():
    if not once("skipped"): pytest.skip("now")
    assert False
def test_crash():
    if once("crash"): os.kill(os.getpid(), signal.SIGKILL)
def test_hang():
    if once("hang"): threading.Event().wait()
def test_hangs(): threading.Event().wait()
""",
        "--numprocesses=2",
    )
    assert status == 1
    assert "7 failed, 2 passed, 2 errors in" in out  # pytest's own line stays
    assert "Timeout (0:00:04)!" in out  # and the stacks
    assert (result["passed"], result["fault"]) == (7, "")

    def texts(outcome: str, name: str) -> list[str]:
        return [(tmp_path / path).read_text() for path in result[outcome].pop(f"test_a.py::test_{name}")]

    first, second = texts("once", "chance")
    assert "the first time" in first
    assert "printed words" in first
    assert "1 passed" in second
    assert "torn down" in texts("once", "torn")[0]
    assert "not set up" in texts("once", "unset")[0]
    assert "crashed while running" in texts("once", "crash")[0]
    first, second = texts("once", "hang")
    assert "crashed while running" in first
    assert "The output of the whole set: build/tests/a/output.txt" in first
    assert "1 passed" in second
    assert [name.partition("[")[0] for name in result["once"]] == ["test_a.py::test_odd"]
    assert all("AssertionError: always" in text for text in texts("failed", "bad"))
    assert "1 skipped" in texts("failed", "skipped")[1]  # which is no pass
    assert "Timeout (0:00:04)!" in texts("failed", "hangs")[1]
    assert result["failed"] == {}


def test_a_second_run_that_does_not_end_fails(tmp_path: Path) -> None:
    program = """
def test_stops():
    assert not once("stops")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    status, _, result = _set(tmp_path, program, "--numprocesses=0", TESTS_ALONE_DEADLINE_S="3", TESTS_GRACE_S="0.1")
    assert status == 1
    assert "it still ran after 3 s" in (tmp_path / result["failed"]["test_a.py::test_stops"][1]).read_text()


@pytest.mark.parametrize(
    ("program", "arguments", "fault"),
    [
        ("raise RuntimeError", ["--numprocesses=2"], "could not be collected: test_a.py"),
        ("", ["--numprocesses=1"], "no tests were found"),
        ("def test(): pass", ["--unknown"], "pytest refused its arguments"),
        (
            "def test(): os._exit(1)",
            ["--numprocesses=0"],
            "pytest ended early, with status 1, in or after test_a.py::test",
        ),
        (
            "def test(): os._exit(0)",
            ["--numprocesses=0"],
            "pytest ended early, with status 0, in or after test_a.py::test",
        ),
        ("def test(): os.kill(os.getpid(), 9)", ["--numprocesses=0"], "pytest was killed by signal 9"),
        ("def test(): os.kill(os.getpid(), 19)", ["--numprocesses=0"], "ended by us: it still ran after 3 s"),
    ],
)
def test_a_set_that_ends_in_another_way_fails(tmp_path: Path, program: str, arguments: list[str], fault: str) -> None:
    environment = {"TESTS_SET_DEADLINE_S": "3", "TESTS_GRACE_S": "0.1"} if "still ran" in fault else {}
    status, out, result = _set(tmp_path, program, *arguments, **environment)
    assert (status, result["fault"], result["once"]) == (1, fault, {}), out


def test_many_failures_do_not_run_again(tmp_path: Path) -> None:
    program = f"""
@pytest.mark.parametrize("x", range({MOST_ALONE + 1}))
def test_many(x): assert not once(f"many{{x}}")
"""
    status, out, result = _set(tmp_path, program, "--numprocesses=0")
    assert status == 1
    assert (len(result["failed"]), result["once"]) == (MOST_ALONE + 1, {})
    assert result["fault"] == f"more than {MOST_ALONE} tests failed, so none was run again"
    assert "Once more" not in out


def _sets(folder: Path, processes: str = "--numprocesses=0", **programs: str) -> None:
    (folder / "pytest.ini").write_text(PYTEST_INI)
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, arguments=processes))
    for name, program in programs.items():
        (folder / f"test_{name}.py").write_text(ONCE + program)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_all_sets_run_and_one_summary_stands_at_the_end(tmp_path: Path) -> None:
    _sets(
        tmp_path,
        first="def test_bad(): assert False, 'always'\ndef test_good(): pass",
        second="def test_chance(): assert not once(os.environ['NAME'])",
        empty="",
        last="def test_good(): pass",
    )
    status, out = _run(tmp_path, "all", "make", "first", "second+broken+empty", "last", "later")
    assert status == 1
    summary = out[out.rindex("\nset ") :].splitlines()[1:]
    rows = {line.split()[0]: line.split(maxsplit=4)[1:3] + line.split(maxsplit=4)[4:] for line in summary[1:7]}
    assert rows == {
        "first": ["1", "1"],
        "second": ["1", "0"],
        "broken": ["0", "0", "did not start: make ended with status 2"],
        "empty": ["0", "0", "no tests were found"],
        "last": ["1", "0"],
        "later": ["1", "0", "what follows the tests failed: make ended with status 2"],
    }
    assert out.index("== broken at the same time") < out.rindex("\n== broken\n") < out.index("no tests ran in")
    assert summary[7:] == [
        "",
        "Failed: 1",
        "  first: test_first.py::test_bad",
        "    build/tests/first/1-first.txt  build/tests/first/1-second.txt",
        "",
        "Failed once, then passed alone: 1",
        "  second: test_second.py::test_chance",
        "    build/tests/second/1-first.txt  build/tests/second/1-second.txt",
        "",
        "All sets: 4 passed, 1 failed, 1 failed once, 3 sets in error",
    ]


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("check", ["True", "False"])
def test_a_full_disk_is_named_where_a_set_failed(tmp_path: Path, check: str) -> None:
    _sets(tmp_path, first=f"def test(): assert {check}")
    for needed, full in {"1000000": True, "0": False}.items():
        status, out = _run(tmp_path, "all", "make", "first", TESTS_DISK_FREE_GB=needed)
        assert status == (check == "False")
        assert ("The disk of build/tests had only" in out) is (full and status == 1)
        assert ("They need 1000000 GB." in out) is (full and status == 1)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_all_sets_pass_if_what_failed_once_passes_alone_in_the_same_environment(tmp_path: Path) -> None:
    program = """
def test_chance():
    assert os.environ["NAME"] == "first"
    assert ("PYTEST_XDIST_WORKER" in os.environ) == once("first")
    assert not once("second")
def test_other(): pass
"""
    _sets(tmp_path, "--numprocesses=1", first=program)
    status, out = _run(tmp_path, "all", "make", "first")
    assert status == 0, out
    assert out.endswith("\nAll sets: 2 passed, 0 failed, 1 failed once, 0 sets in error\n")


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_processes_and_says_what_ran(tmp_path: Path, number: signal.Signals) -> None:
    waiting = """
def test_good(): pass
def test_waits():
    os.mkfifo("made")
    os.rename("made", "fifo")
    open("fifo", "w").write(str(os.getpid()))
    threading.Event().wait()
"""
    _sets(tmp_path, first=waiting, other="def test_waits(): threading.Event().wait()", last="def test_good(): pass")
    (tmp_path / "pytest.ini").write_text(PYTEST_INI.replace("timeout = 4", f"timeout = {PROGRAM_S:.0f}"))
    with subprocess.Popen(
        _command("all", "make", "first+other", "last"),
        cwd=tmp_path,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        deadline = threading.Timer(PROGRAM_S, process.kill)
        deadline.start()
        while not (tmp_path / "fifo").exists():
            assert process.poll() is None
            time.sleep(0.01)
        worker = int((tmp_path / "fifo").read_text())
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out = process.communicate()[0].decode()
        deadline.cancel()
    assert process.returncode == 130, out
    assert not Path(f"/proc/{worker}").exists()
    summary = out[out.rindex("\nset ") :]
    assert "interrupted\n" in summary
    assert "not run\n" in summary
    assert out.endswith("All sets: 1 passed, 0 failed, 0 failed once, 3 sets in error\n")
