"""Programs of every kind load on worker processes, and what they say at module level runs once."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waits import PROGRAM_S

Run = Callable[..., subprocess.CompletedProcess[str]]

BODY = """
import penstock as ps
print("once")
FACTOR = 3

class Scaler:
    def __call__(self, x):
        return x * FACTOR

def augment(x):
    return Scaler()(x) + (lambda y: y + 1)(0)

with ps.range(6).map(augment).batch(3).loader("processes", workers=1) as loader:
    print([batch.tolist() for batch in loader])
"""
SAID = "once\n[[1, 4, 7], [10, 13, 16]]\n"


def run(arguments: list[Any], text: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        **options,
    )


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["script", *(pytest.param(kind, marks=SLOW) for kind in ("-c", "standard input", "-m"))]
)
def test_a_program_without_a_main_guard_loads_in_processes(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(BODY)
    arguments, text = {
        "script": ([tmp_path / "train.py"], None),
        "-c": (["-c", BODY], None),
        "standard input": (["-"], BODY),
        "-m": (["-m", "train"], None),
    }[kind]
    done = run(arguments, text, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, SAID, "")


@pytest.mark.slow
@pytest.mark.parametrize("is_on", [0, 1])
def test_files_are_text_of_one_encoding_here_and_in_workers(is_on: int) -> None:
    program = """
import locale, sys, numpy as np, penstock as ps
def encoding(x):
    return np.array(locale.getencoding() + str(sys.flags.utf8_mode))
with ps.range(1).map(encoding).loader("processes", workers=1) as loader:
    print([str(each) for each in loader] == [str(encoding(0))], sys.flags.utf8_mode)
"""
    done = run(["-X", f"utf8={is_on}", "-c", program], env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"})
    assert (done.returncode, done.stdout) == (0, f"True {is_on}\n"), done.stderr


@pytest.mark.slow
def test_a_program_without_a_main_guard_whose_functions_are_in_a_module_beside_it(tmp_path: Path) -> None:
    head, body = BODY.split("FACTOR = 3")
    functions, rest = body.split("with ps.range")
    (tmp_path / "mylib.py").write_text("print('imported')\nFACTOR = 3" + functions)
    (tmp_path / "train.py").write_text(head + "from mylib import augment\nwith ps.range" + rest)
    done = run([tmp_path / "train.py"])
    assert (done.returncode, done.stdout) == (0, SAID.replace("once\n", "once\nimported\n")), done.stderr


@pytest.mark.slow
def test_an_interactive_session_loads_in_processes() -> None:
    ours, theirs = pty.openpty()
    session = subprocess.Popen(
        [sys.executable, "-i", "-q"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    os.close(theirs)
    os.write(ours, "\n".join([*_typed(BODY), "", "exit()", ""]).encode())
    out, _ = session.communicate(timeout=PROGRAM_S)
    os.close(ours)
    assert "[[1, 4, 7], [10, 13, 16]]" in out, out
    assert out.count("once") == 1, out
    assert session.returncode == 0


def _typed(program: str) -> list[str]:
    """A program as it is typed: an empty line ends a block, and no other is there."""
    lines = [line for line in program.splitlines() if line]
    typed = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        typed += [line, ""] if line.startswith(" ") and not following.startswith(" ") else [line]
    return typed


@pytest.mark.slow
def test_a_notebooks_cells_load_in_processes(fresh_python: Run) -> None:
    # As IPython does it: each cell compiled alone, under a name that is no file, into one namespace of __main__.
    head, tail = BODY.split("with ps.range")
    done = fresh_python(
        "import __main__\n"
        f"for number, cell in enumerate([{head!r}, {'with ps.range' + tail!r}]):\n"
        "    exec(compile(cell, f'<ipython-input-{number}>', 'exec'), __main__.__dict__)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, SAID, "")


@pytest.mark.slow
def test_an_error_in_a_notebooks_cell_is_told_with_its_line(fresh_python: Run) -> None:
    cell = "import penstock as ps\ndef broken(x):\n    return [0, 1, 2, 3][x]\n"
    cell += "list(ps.range(6).map(broken).loader('processes'))"
    done = fresh_python(f"exec(compile({cell!r}, '<ipython-input-7>', 'exec'), globals())")
    assert done.returncode == 1
    assert "<ipython-input-7>" in done.stderr
    assert "line 3, in broken" in done.stderr
    assert "on element 4 of epoch 0" in done.stderr


TEST = """
import penstock as ps
print("once")

def helper(x):
    return x * 3 + 1

def test_loads(tmp_path):
    with ps.range(6).map(lambda x: helper(x)).batch(3).loader("processes", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 4, 7], [10, 13, 16]]
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_a_test_of_pytest_loads_in_processes(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    done = run(["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--import-mode={mode}", tmp_path / "test_it.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("once") == 1
