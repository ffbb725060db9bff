"""Every example runs, as `__main__` of another process; what it says of itself it asserts itself."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.turns import needs_an_interpreter

FOLDER = Path(__file__).parents[2] / "examples"

# Warnings are errors, but for the one in `pyproject.toml`, which is Keras's on torch.
RUN = """
import runpy, sys, warnings
warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
del sys.argv[0]  # as a script sees it
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _case(name: str, said: str, *marks: pytest.MarkDecorator):
    return pytest.param(name, said, marks=marks, id=name)


def _unless_installed(library: str) -> pytest.MarkDecorator:
    """Skips an example whose library is none of our extras."""
    missing = importlib.util.find_spec(library) is None
    return pytest.mark.skipif(missing, reason=f"{library} is not installed")


CASES = [
    _case("resume.py", "All 20 batches are those of a run without a crash"),
    _case("windows.py", "742 windows to train, 176 to test, 10 between them left out."),
    _case("random_augmentation.py", "With threads and without: the same batches."),
    _case("hdf5_and_zarr.py", "500 elements came"),
    _case("generator.py", "27 batches of long takes came in each of 2 epochs; resumed in the middle, the same."),
    _case("image_folder.py", "240 images to train came, 60 are kept apart; a bad file is named."),
    _case("tfrecord.py", "800 records of 4 files came, in an order over all of them."),
    _case("ray_cluster.py", "All 50 batches from Ray are those of one process", pytest.mark.cluster),
    # On one backend: tests/adapters run on each.
    _case("next_frame.py", "Mean square error on the test", pytest.mark.framework),
    _case("several_inputs.py", "Mean square error on the test", pytest.mark.framework),
    _case(
        "augment_characters.py", "of distorted letters that training never saw are named right", pytest.mark.framework
    ),
    _case("characters.py", "of characters that training never saw are named right, distorted", pytest.mark.framework),
    _case("photographs.py", "are given to the right photograph; chance is 25%.", pytest.mark.framework),
    _case("speech_commands.py", "of words that training never heard are named right.", pytest.mark.framework),
    _case("jax_loop.py", "No batch was seen twice, and none was left out.", pytest.mark.framework),
    _case("tfdata.py", "Resumed after batch 30: the same losses.", pytest.mark.framework),
    _case("torch_loop.py", "None of the 160 batches that were kept has changed.", pytest.mark.framework),
    _case("report_picture.py", "50 batches in a picture.", pytest.mark.framework),
    _case("distortions.py", "23 distortions of a photograph.", pytest.mark.framework),
    _case(
        "albumentations_map.py",
        "Albumentations in two worker processes and without: the same pictures",
        pytest.mark.framework,
    ),
    _case(
        "torchvision_map.py",
        "torchvision in two worker processes and without: the same tensors.",
        pytest.mark.framework,
        # What PyPI has is built for torch with CUDA, and cannot be imported beside the CPU's that we test with.
        _unless_installed("torchvision"),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), CASES)
def test_example_runs_and_says_what_it_showed(name, said, fresh_python, turns, tmp_path, request):
    # Ray's sockets have long names.
    env = {"TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}
    if needs_an_interpreter((FOLDER / name).read_text()) or request.node.get_closest_marker("cluster"):
        done = fresh_python(RUN, str(FOLDER / name), env=env)
    else:
        done = turns.run(FOLDER / name, cwd=FOLDER.parent, env=env)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    # Compiled kernels are torch's to keep there; TensorFlow has traced functions there until its process ends.
    others = ("torchinductor", "__pycache__", "__autograph_generated_file")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(others)] == []


def test_every_example_is_run():
    assert {case.values[0] for case in CASES} == {path.name for path in FOLDER.glob("*.py")}


def test_every_example_says_what_it_shows():
    for path in FOLDER.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
