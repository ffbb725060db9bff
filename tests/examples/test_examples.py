"""Every example runs, in a process of its own; what it says of itself it asserts itself."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"

# Warnings are errors, but for the one in `pyproject.toml`, which is Keras's on torch.
RUN = """
import runpy, sys, warnings
warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def _case(name: str, said: str, *marks: pytest.MarkDecorator):
    return pytest.param(name, said, marks=marks, id=name)


CASES = [
    _case("resume.py", "All 20 batches are those of a run without a crash"),
    _case("windows.py", "742 windows to train, 176 to test, 10 between them left out."),
    _case("random_augmentation.py", "With threads and without: the same batches."),
    _case("hdf5_and_zarr.py", "500 elements came"),
    _case("generator.py", "27 batches of long takes came in each of 2 epochs; resumed in the middle, the same."),
    _case("tfrecord.py", "800 records of 4 files came, in an order over all of them."),
    _case("next_frame.py", "Mean square error on the test", pytest.mark.keras),
    _case("several_inputs.py", "Mean square error on the test", pytest.mark.keras),
    _case("augment_characters.py", "of distorted letters that training never saw are named right", pytest.mark.keras),
    _case("jax_loop.py", "No batch was seen twice, and none was left out.", pytest.mark.framework),
    _case("tfdata.py", "Resumed after batch 30: the same losses.", pytest.mark.framework),
    _case("torch_loop.py", "None of the 160 batches that were kept has changed.", pytest.mark.framework),
]


@pytest.mark.parametrize(("name", "said"), CASES)
def test_example_runs_and_says_what_it_showed(name, said, fresh_python, tmp_path):
    done = fresh_python(RUN, str(FOLDER / name), timeout_s=120, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    # Compiled kernels are torch's to keep there.
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []


def test_every_example_is_run():
    assert {case.values[0] for case in CASES} == {path.name for path in FOLDER.glob("*.py")}


def test_every_example_says_what_it_shows():
    for path in FOLDER.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
