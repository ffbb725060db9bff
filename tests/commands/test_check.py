"""`penstock check` and `penstock materialize`."""

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.commands.cli import main

pytestmark = pytest.mark.usefixtures("slow_tests_share_workers", "leaves_nothing_behind")

PROGRAM = """
import numpy as np
import penstock as ps

def invert(x):
    return 12 // x

def well():
    return ps.range(12).map(lambda x: x + 1)

def batched():
    return ps.range(12).batch(4).shuffle().cast("float32")

def unbatched():
    return batched().unbatch()

def broken():
    return ps.range(12).map(lambda x: invert(int(x) - 3))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_a_faultless_dataset_is_reported_as_such(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("rows.npy", np.arange(12).reshape(4, 3))
    assert main(["check", "rows.npy"]) == 0
    assert "4 elements" in capsys.readouterr().out


@pytest.mark.slow
def test_batches_are_called_batches(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:batched"]) == 0
    assert capsys.readouterr().out.startswith("Checked 3 batches on ")
    assert main(["check", f"{program}:unbatched"]) == 0
    assert capsys.readouterr().out.startswith("Checked 12 elements on ")


@pytest.mark.slow
def test_broken_elements_are_listed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:broken"]) == 1
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said
    assert "element 3" in said
    assert main(["check", f"{program}:broken", "--limit", "3"]) == 0


def test_all_elements_are_kept(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # what is there is found
        assert main(["materialize", f"{program}:well", "kept", "--executor", "threads", "--workers", "2"]) == 0
        assert "kept in kept" in capsys.readouterr().out
    assert Path("kept").is_dir()
    assert [int(x) for x in ps.range(12).map(lambda x: x + 1).materialize("other", executor="inline")] == [
        *range(1, 13)
    ]


def test_an_interrupt_reports_that_finished_elements_are_kept(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ps.Dataset, "materialize", interrupt)
    assert main(["materialize", f"{program}:well", "kept"]) == 130
    assert capsys.readouterr().err == (
        "\nInterrupted. The elements made so far are kept. The same command continues.\n"
    )


@pytest.mark.parametrize("command", [["check", "nowhere.npy"], ["materialize", "nowhere.npy", "kept"]])
def test_missing_targets_are_named(command: list[str], program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    assert "no file or folder nowhere.npy" in capsys.readouterr().err
