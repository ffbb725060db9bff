"""Programs that cannot start worker processes of themselves, and those that would start them without end."""

import multiprocessing.spawn
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.run.pool import _interpreter
from penstock.run.pool._interpreter import WORKER_OF, interpreter, why_no_interpreter
from penstock.run.pool._process import WorkerProcess


def refuse(*_: object) -> None:
    raise AssertionError("a worker process was started")


@pytest.fixture(params=["frozen", "embedded", "started as a worker", "without a name"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that is no Python. Returns what the error says of it."""
    path = {"embedded": "/opt/app/uwsgi", "without a name": ""}.get(request.param, sys.executable)
    monkeypatch.setattr(sys, "executable", path)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(path))
    monkeypatch.setattr(WorkerProcess, "__init__", refuse)
    if request.param == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        return f"This program is frozen, so a worker process would run all of {path} again"
    if request.param == "started as a worker":
        monkeypatch.setenv(WORKER_OF, str(os.getppid()))
        return f"This process was started as a worker process, and {path} ran the program instead"
    return f"Worker processes are started with sys.executable, and {path!r} is no Python by its name"


def test_a_program_that_is_no_python_starts_no_worker_processes(program: str) -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        ps.range(4).map(lambda x: x).batch(2).loader("processes")
    assert f"executor='processes' cannot run here. {program}" in str(caught.value)
    assert "Use executor='threads', or name a Python of this version" in str(caught.value)


def test_auto_is_threads_in_a_program_that_is_no_python_and_says_so(
    program: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ps.range(4).map(lambda x: x + 1).batch(2).loader() as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
        assert program in str(loader.report())
    assert "It runs on threads, not on processes: " in caplog.text
    generated = ps.from_generator(lambda: iter(range(4)), element_spec=ps.ArraySpec((), int))
    with generated.batch(2).loader() as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("name", "is_python"),
    [(name, True) for name in (
        "python", "python3", "python3.12", "python3.13t", "python3.11d", "python3-intel64", "python3.11-config-x86_64",
        "python.exe", "pythonw.exe", "Python", "Python3", "python_d.exe", "pypy", "pypy3", "pypy3.10.exe", "pypy3.10-c",
        "hython", "hython3.11", "mayapy", "mayapy.exe", "mayapy2025", "ipython", "ipython3", "bpython", "graalpy",
        "vtkpython", "pvpython", "py", "micropython", "rustpython", "x86_64-linux-gnu-python3.11", "debian-python3",
        "venv_python", "python3.11.bin", "python311", "cpython", "py.exe", "jpython", "stackless-python",
    )]
    + [(name, False) for name in (
        "spyder", "spyder3", "copyq", "happy", "numpyro", "pyinstaller-app", "pycharm", "uwsgi", "pytorch-serve",
        "python-editor", "happy3", "copy", "pythonista", "papyrus", "app", "scrapy", "pytest", "therapy.exe", "spy",
    )],
)  # fmt: skip
def test_a_python_is_known_by_its_name(name: str, is_python: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", f"/opt/python3/{name}")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(sys.executable))
    assert (why_no_interpreter() == "") == is_python


@pytest.mark.parametrize("kind", ["frozen", "embedded"])
def test_a_program_that_corrects_sys_executable_runs_that(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # multiprocessing was imported before, and keeps the program's own path.
    python = sys.executable
    monkeypatch.setattr(sys, "frozen", kind == "frozen", raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/app/program")
    monkeypatch.setattr(_interpreter, "_AT_START", "/opt/app/program")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/opt/app/program")
    assert interpreter() == "/opt/app/program"
    assert why_no_interpreter()
    monkeypatch.setattr(sys, "executable", python)
    assert interpreter() == python
    assert not why_no_interpreter()


@pytest.mark.slow
def test_a_frozen_program_runs_the_python_that_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    for owner, name in ((sys, "executable"), (_interpreter, "_AT_START")):
        monkeypatch.setattr(owner, name, str(tmp_path / "app"))
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(python))
    assert interpreter() == python
    with ps.range(4).map(lambda x: os.environ.get(WORKER_OF, "none")).batch(2).loader("processes", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [["none"] * 2] * 2


STEPS = """
import threading
import penstock as ps

def helper(x):
    return x * 2

def scale(x):
    from steps import helper
    return helper(x)

dataset = ps.range(20).map(scale).batch(10)

def train(dataset=dataset, **options):
    with dataset.loader(workers=2, **options) as loader:
        return [batch.tolist() for batch in loader]
"""
ENDLESS = {
    "a loader": "train(executor='processes')",
    "auto": "train()",
    "a stream": "train(ps.from_generator(lambda: iter(range(20))).map(scale).batch(5), executor='processes')",
    "elements that may fail": "train(executor='processes', on_error='skip')",
    "materialize": "dataset.materialize('copy')",
    "reduce": "dataset.reduce(lambda total, batch: total + batch.sum(), 0)",
    "headroom": "list(ps.headroom(dataset.loader('processes'), batches=2, warm_up=1))",
    "a generator that imports": """
def generate():
    import steps
    yield from range(4)
train(ps.from_generator(generate).batch(2), executor='processes')
""",
    "a thread": """
failed = []
def run():
    try:
        train(executor='processes')
    except ps.PenstockError as error:
        failed.append(error)
thread = threading.Thread(target=run)
thread.start()
thread.join()
if failed:
    raise failed[0]
""",
    "another module": "import more",
    "a file that is executed as a module": """
def scale(x):
    import importlib.util
    spec = importlib.util.spec_from_file_location("again", "steps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.helper(x)
train(ps.range(20).map(scale).batch(10), executor='processes')
""",
}
MORE = "import steps\nsteps.train(executor='processes')\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_worker_process_that_imports_a_module_starts_no_workers_for_it(
    kind: str,
    fresh_python: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "steps.py").write_text(f"{STEPS}\n{ENDLESS[kind]}\n")
    (tmp_path / "more.py").write_text(MORE)
    monkeypatch.chdir(tmp_path)
    done = fresh_python("import steps")
    module = {"another module": "more", "a file that is executed as a module": "again"}.get(kind, "steps")
    assert done.returncode == 1
    assert (
        f"A loader starts worker processes while the module {module} is imported, and this is a worker process "
        "already. Its workers would do the same, without end. Run the loader inside a function that only the program "
        'calls, or below `if __name__ == "__main__":`.'
    ) in done.stderr


@pytest.mark.slow
def test_a_worker_process_that_makes_an_object_again_starts_no_workers_for_it(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = fresh_python(
        """
import penstock as ps

class Doubling:
    def __call__(self, x):
        return 2 * x

    def __reduce__(self):
        return make, ()

def make():
    with ps.range(20).map(Doubling()).batch(10).loader(executor="processes", workers=2) as loader:
        list(loader)

make()
"""
    )
    assert "while an object that came with a function is made again" in done.stderr


@pytest.mark.slow
def test_check_at_the_import_of_a_module_ends_and_says_why(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps.py").write_text(f"{STEPS}\nprint(dataset.check())\n")
    monkeypatch.chdir(tmp_path)
    done = fresh_python("import steps")
    assert "A loader starts worker processes while the module steps is imported" in done.stdout
    assert not done.stderr


@pytest.mark.slow
def test_a_function_in_a_worker_process_runs_a_loader_with_workers() -> None:
    def total(x: int) -> int:
        with ps.range(4).map(lambda y: y + x).batch(2).loader("processes", workers=1) as loader:
            return sum(int(batch.sum()) for batch in loader)

    with ps.range(3).map(total).batch(3).loader("processes", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[6, 10, 14]]


@pytest.mark.slow
def test_a_module_below_a_guard_may_be_imported_by_its_workers(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = "if __name__ == '__main__':\n    print(train(executor='processes'))\n"
    (tmp_path / "steps.py").write_text(f"{STEPS}\n{guarded}")
    monkeypatch.chdir(tmp_path)
    done = fresh_python(tmp_path / "steps.py")
    assert done.stdout == f"{[[2 * x for x in range(first, first + 10)] for first in (0, 10)]}\n", done.stderr
