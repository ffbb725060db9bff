"""The interpreter that runs scripts in turn tells how each ended, and keeps nothing of one for the next."""

from pathlib import Path

import pytest

from tests.turns import Turns, needs_an_interpreter

pytestmark = pytest.mark.slow


def test_each_script_is_alone_and_its_end_is_told(tmp_path: Path) -> None:
    turns, count = Turns(["-W", "error"]), 0

    def run(text: str, **options: float) -> tuple[int, str, str]:
        nonlocal count
        count += 1
        script = tmp_path / f"{count}.py"
        script.write_text(text)
        done = turns.run(script, cwd=tmp_path, env={"PLACE": str(count)}, **options)
        return done.returncode, done.stdout, done.stderr

    show = "import os, sys; print(os.environ['PLACE'], os.getcwd(), sys.argv, __name__, 'left' in globals())"
    assert run(f"left = 1\n{show}") == (0, f"1 {tmp_path} ['{tmp_path / '1.py'}'] __main__ True\n", "")
    assert run(f"{show}; os.chdir('/')") == (0, f"2 {tmp_path} ['{tmp_path / '2.py'}'] __main__ False\n", "")
    assert run("import sys; sys.exit()") == (0, "", "")
    assert run("import sys; sys.exit(3)") == (3, "", "")
    status, out, err = run("print('before')\n1 / 0")
    assert (status, out) == (1, "before\n")
    assert err.endswith("ZeroDivisionError: division by zero\n")
    status, _, err = run("import warnings; warnings.warn('old')")
    assert status == 1
    assert err.endswith("UserWarning: old\n")
    status, _, err = run("import threading\nthreading.Event().wait()", timeout_s=3.0)
    assert status < 0
    assert '7.py", line 2 in <module>' in err
    assert run("import os; os._exit(5)")[0] == 5
    assert run("import atexit, os; atexit.register(lambda: os._exit(6)); print('well')") == (0, "well\n", "")
    with pytest.raises(AssertionError, match=r"After \['9\.py'\] the interpreter ended with status 6"):
        turns.close()
    turns.close()  # nothing is left to end


def test_a_script_that_sets_a_variable_for_a_library_needs_an_interpreter_of_its_own() -> None:
    assert needs_an_interpreter("import os\nos.environ['XLA_FLAGS'] = 'x'\nimport jax\n")
    assert not needs_an_interpreter("import os\nprint(os.environ['XLA_FLAGS'])\n")
