"""`make test`: what failed runs once more, alone; all sets run; one summary stands at the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.sets import MOST_ALONE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PYTEST_INI = """
[pytest]
addopts = --import-mode=importlib -p no:cacheprovider -p xdist
faulthandler_timeout = 2
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
PY = {python}
PYTEST = $(PY) -m pytest
test-%:
	NAME=$* $(PYTEST) {arguments} test_$*.py
test-broken:
	exit 7
"""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.sets", *arguments]


def _environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | more


def _run(folder: Path, *arguments: str, timeout_s: float = 120, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        _command(*arguments),
        cwd=folder,
        env=_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    return done.returncode, done.stdout


def _set(folder: Path, program: str, *arguments: str, **environment: str) -> tuple[int, str, dict]:
    (folder / "pytest.ini").write_text(PYTEST_INI)
    (folder / "test_a.py").write_text(ONCE + program)
    status, out = _run(folder, "one", "a", *(arguments or ["--numprocesses=2"]), "test_a.py", **environment)
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
""",
    )
    assert status == 1
    assert "3 failed, 2 passed, 2 errors in" in out  # pytest's own line stays
    assert list(result["failed"]) == ["test_a.py::test_bad"]
    assert len(result["once"]) == 4, result
    assert (result["passed"], result["fault"]) == (5, "")
    texts = [(tmp_path / path).read_text() for path in result["once"]["test_a.py::test_chance"]]
    assert "the first time" in texts[0]
    assert "printed words" in texts[0]
    assert "1 passed" in texts[1]
    texts = [(tmp_path / path).read_text() for path in result["failed"]["test_a.py::test_bad"]]
    assert all("AssertionError: always" in text for text in texts)
    assert "torn down" in (tmp_path / result["once"]["test_a.py::test_torn"][0]).read_text()
    assert "not set up" in (tmp_path / result["once"]["test_a.py::test_unset"][0]).read_text()


def test_a_set_in_which_tests_fail_once_passes(tmp_path: Path) -> None:
    status, out, result = _set(
        tmp_path,
        """
def test_environment(): assert os.environ["KERAS_BACKEND"] == "jax" and not once("keras")
def test_alone():
    assert not once("alone")
    assert "PYTEST_XDIST_WORKER" not in os.environ
""",
        "--numprocesses=2",
        "-m",
        "not framework",
        KERAS_BACKEND="jax",
    )
    assert (status, result["failed"]) == (0, {}), out
    assert list(result["once"]) == ["test_a.py::test_environment", "test_a.py::test_alone"]


@pytest.mark.parametrize("processes", ["--numprocesses=1", "--numprocesses=2"])
def test_a_process_that_crashes_or_hangs_fails_its_test_only(tmp_path: Path, processes: str) -> None:
    status, out, result = _set(
        tmp_path,
        """
def test_crash():
    if once("crash"): os.kill(os.getpid(), signal.SIGKILL)
def test_hang():
    if once("hang"): threading.Event().wait()
def test_hangs(): threading.Event().wait()
def test_good(): pass
""",
        processes,
    )
    assert status == 1
    assert "Timeout (0:00:02)!" in out
    assert result["fault"] == ""
    assert result["passed"] == 3
    assert sorted(result["once"]) == ["test_a.py::test_crash", "test_a.py::test_hang"]
    first, second = ((tmp_path / path).read_text() for path in result["failed"]["test_a.py::test_hangs"])
    assert "crashed while running" in first
    assert "The output of the whole set: build/tests/a/output.txt" in first
    assert "Timeout (0:00:02)!" in second


def test_a_second_run_that_does_not_end_fails(tmp_path: Path) -> None:
    program = """
def test_stops():
    assert not once("stops")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    status, _, result = _set(tmp_path, program, TESTS_ALONE_DEADLINE_S="3", TESTS_GRACE_S="0.1")
    assert status == 1
    assert "it still ran after 3 s" in (tmp_path / result["failed"]["test_a.py::test_stops"][1]).read_text()


def test_a_second_run_that_is_skipped_is_no_pass(tmp_path: Path) -> None:
    program = """
def test_skipped():
    if not once("skipped"): pytest.skip("now")
    assert False
"""
    status, _, result = _set(tmp_path, program)
    assert (status, list(result["failed"])) == (1, ["test_a.py::test_skipped"])


@pytest.mark.parametrize(
    ("program", "arguments", "fault"),
    [
        ("raise RuntimeError", ["--numprocesses=2"], "could not be collected: test_a.py"),
        ("raise RuntimeError", ["--numprocesses=0"], "could not be collected: test_a.py"),
        ("", ["--numprocesses=2"], "no tests were found"),
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
    status, out, result = _set(tmp_path, program)
    assert status == 1
    assert (len(result["failed"]), result["once"]) == (MOST_ALONE + 1, {})
    assert result["fault"] == f"more than {MOST_ALONE} tests failed, so none was run again"
    assert "Once more" not in out


def _sets(folder: Path, **programs: str) -> None:
    (folder / "pytest.ini").write_text(PYTEST_INI)
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, arguments="--numprocesses=1"))
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
    status, out = _run(tmp_path, "all", "make", "first", "second", "broken", "empty", "last")
    assert status == 1
    summary = out[out.rindex("\nset ") :].splitlines()[1:]
    rows = {line.split()[0]: line.split(maxsplit=4)[1:3] + line.split(maxsplit=4)[4:] for line in summary[1:6]}
    assert rows == {
        "first": ["1", "1"],
        "second": ["1", "0"],
        "broken": ["0", "0", "did not start: make ended with status 2"],
        "empty": ["0", "0", "no tests were found"],
        "last": ["1", "0"],
    }
    assert summary[6:] == [
        "",
        "Failed: 1",
        "  first: test_first.py::test_bad",
        "    build/tests/first/1-first.txt  build/tests/first/1-second.txt",
        "",
        "Failed once, then passed alone: 1",
        "  second: test_second.py::test_chance",
        "    build/tests/second/1-first.txt  build/tests/second/1-second.txt",
        "",
        "All sets: 3 passed, 1 failed, 1 failed once, 2 sets in error",
    ]


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_all_sets_pass_if_what_failed_once_passes(tmp_path: Path) -> None:
    _sets(tmp_path, first="def test_chance(): assert not once('first')", last="def test_good(): pass")
    status, out = _run(tmp_path, "all", "make", "first", "last")
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
    _sets(tmp_path, first=waiting, last="def test_good(): pass")
    (tmp_path / "pytest.ini").write_text(PYTEST_INI.replace("timeout = 2", "timeout = 60"))
    with subprocess.Popen(
        _command("all", "make", "first", "last"),
        cwd=tmp_path,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        while not (tmp_path / "fifo").exists():
            assert process.poll() is None
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
    assert out.endswith("All sets: 1 passed, 0 failed, 0 failed once, 2 sets in error\n")
