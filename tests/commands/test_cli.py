"""The command line: what it prints, what it refuses, and its exit statuses."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.commands import cli
from tests.waits import DEADLINE_S


def _exit_status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    return exit_.value.code


def test_version(capsys):
    assert _exit_status("--version") == 0
    assert capsys.readouterr().out == f"penstock {ps.__version__}\n"


def test_it_is_run_by_python_too(fresh_python):
    done = fresh_python(
        "import runpy, sys; sys.argv = ['penstock', '--version']; runpy.run_module('penstock', run_name='__main__')"
    )
    assert (done.stdout, done.returncode) == (f"penstock {ps.__version__}\n", 0)


def test_help_names_the_demo_and_the_demo_its_options(capsys):
    assert _exit_status("--help") == 0
    assert "train on a film, and report" in capsys.readouterr().out
    assert _exit_status("demo", "--help") == 0
    out = capsys.readouterr().out
    options = ("--quick", "--data", "--epochs", "--data-dir", "--out", "penstock-demo.png")
    assert all(option in out for option in options)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("dmeo",), "invalid choice: 'dmeo'"),
        (("demo", "movies"), "unrecognized arguments: movies"),
        (("demo", "--epochs", "0"), "argument --epochs: '0' is no integer from 1 on"),
        (("demo", "--epochs", "1.5"), "argument --epochs: '1.5' is no integer from 1 on"),
    ],
)
def test_a_senseless_command_line_is_status_2(arguments, complaint, capsys):
    assert _exit_status(*arguments) == 2
    assert complaint in capsys.readouterr().err


def test_importing_the_command_line_brings_no_framework(fresh_python):
    done = fresh_python(
        "import sys, penstock.commands.cli, penstock.demos.frames\n"
        "print(sorted({'jax', 'keras', 'matplotlib', 'skimage', 'tensorflow', 'torch'} & sys.modules.keys()))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# The backend is looked for, and not imported, before data are opened; here one is always found.
@pytest.fixture
def demo(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("penstock.demos.model.importlib.util.find_spec", lambda name: object())
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        status = cli.main(["demo", *arguments])
        return status, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.zeros((100, 5)), "penstock demo: my.npy is (100, 5) float64, which is no film. The demo trains on numbers"),
        (np.zeros((100, 8, 8), "complex64"), "my.npy is (100, 8, 8) complex64, which is no film."),
        (np.zeros((3, 8, 8)), "my.npy is (3, 8, 8) float64, which is no film. The demo trains on numbers"),
        (np.full((30, 8, 8), 7.0), "with values from 7 to 7, on which a model cannot train."),
        (np.full((30, 8, 8), np.nan), "with values from nan to nan, on which a model cannot train."),
    ],
)
def test_data_that_are_no_film_are_refused_with_their_shape(demo, array, complaint):
    np.save("my.npy", array)
    status, err = demo("--data", "my.npy")
    assert status == 1
    assert complaint in err
    assert "Traceback" not in err


def test_a_file_that_is_no_npy_is_refused_with_its_name(demo, tmp_path):
    (tmp_path / "my.npy").write_bytes(b"GIF89a, and so on, for longer than a header of a npy file would be")
    status, err = demo("--data", "my.npy")
    assert status == 1
    assert err.startswith("penstock demo: ")
    assert "my.npy" in err
    assert "not a .npy file" in err


def test_a_missing_file_is_refused_with_its_name(demo):
    status, err = demo("--data", "nowhere.npy")
    assert status == 1
    assert "nowhere.npy" in err


def test_a_picture_that_could_not_be_saved_is_refused_before_anything_else(demo, tmp_path):
    status, err = demo("--data", "my.npy", "--out", "no/such/folder/a.png")
    assert status == 1
    assert err == (
        f"penstock demo: --out no/such/folder/a.png: there is no folder {tmp_path}/no/such/folder that can be "
        "written to.\n"
    )
    assert "its name must end in .png" in demo("--out", "a.jpg")[1]


@pytest.mark.parametrize(
    ("there", "asked", "missing", "package"),
    [
        ((), None, "tensorflow or torch or jax", "tensorflow"),
        (("keras",), None, "tensorflow or torch or jax", "tensorflow"),
        (("keras", "torch"), "jax", "jax", "jax"),
    ],
)
def test_missing_keras_or_a_missing_backend_are_named_with_their_cure(
    there, asked, missing, package, demo, monkeypatch
):
    monkeypatch.setattr(
        "penstock.demos.model.importlib.util.find_spec", lambda name: object() if name in there else None
    )
    monkeypatch.setenv("KERAS_BACKEND", asked or "")
    status, err = demo()
    assert status == 1
    assert err.startswith(
        f"penstock demo: The demo trains with Keras on {missing}, which is not installed: pip install keras {package} "
        "matplotlib scikit-image."
    )


def test_the_first_backend_that_is_installed_is_taken(demo, monkeypatch):
    monkeypatch.setattr("penstock.demos.model.importlib.util.find_spec", lambda name: name in ("keras", "jax") or None)
    monkeypatch.setenv("KERAS_BACKEND", "")
    from penstock.demos import model

    assert model.choose_backend() == "jax"


@pytest.mark.slow
def test_who_reads_only_the_first_line_gets_no_complaint_about_the_others(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((9, 4)))
    command = [sys.executable, "-m", "penstock", "inspect", "a.npy"]
    for unbuffered in ("", "1"):  # it is noticed at the first line after, or at the end
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        reader, writer = os.pipe()
        os.close(reader)  # before there is anybody who could write
        try:
            run = subprocess.run(
                command, cwd=tmp_path, env=env, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=DEADLINE_S
            )
        finally:
            os.close(writer)
        assert (run.stderr, run.returncode) == (b"", 141)


@pytest.mark.slow
@pytest.mark.parametrize("json_", [False, True])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_names_that_the_terminal_cannot_show_are_no_error(encoding, json_, tmp_path):
    name = os.fsdecode("ä".encode() + b"\xff.npy")  # no text in any encoding, as old archives have it
    np.save(tmp_path / name, np.zeros((9, 4)))
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "inspect", name, *(["--json"] if json_ else [])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (run.stderr, run.returncode) == (b"", 0)
    if json_:
        assert json.loads(run.stdout)["path"] == name
    else:
        assert b"\\udcff.npy is a .npy file" in run.stdout


def test_ctrl_c_is_status_130_and_no_traceback(demo, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.demos.frames.open_frames", interrupt)
    assert demo("--data", "my.npy") == (130, "\nInterrupted. Nothing is left behind.\n")
