"""`penstock demo images` from end to end, on a few files, and the folder that it makes."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.demos import photographs
from penstock.demos.images_report import Outcome
from penstock.demos.one_pass import Pass
from penstock.demos.report import Run
from penstock.report._memory import Memory

MIB = 1 << 20

# What the command does, with fewer files and smaller batches. The warning is that in `pyproject.toml`.
SCRIPT = """
import warnings
warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
from penstock.demos import images, one_pass
apart = one_pass._measured
one_pass._measured = lambda name, folder, *rest: (
    # Keras is loaded here already.
    apart(name, folder, *rest) if name == "penstock" else one_pass.read(name, str(folder), *rest)
)
images.BATCH_SIZE = 16
images.PICTURE_COUNT = 9
images.run(2, "data", "out.png", counts=(12, 4))
"""


@pytest.mark.framework
def test_demo_trains_on_a_folder_compares_reports_and_draws(fresh_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fresh_python(SCRIPT, timeout_s=120, env={"TMPDIR": str(tmp_path), "KERAS_BACKEND": "tensorflow"})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = done.stdout.partition("penstock 0")[2]
    data, speed, memory, result, keras, repeatable, picture = (
        " ".join(text.split())
        for text in re.split(r"^  (?:Data|Speed|Memory|Result|Keras|Repeatable|Picture) ", report, flags=re.MULTILINE)[
            1:
        ]
    )
    assert data.startswith("192 JPEGs in photographs-1, ")
    assert re.search(r"^[\d,]+ images/s in model\.fit, .* beside it\. Training waited for data \d+\.\d% of", speed)
    assert re.search(r"From the second epoch to the end of training it grew by \d+ MiB\.$", memory)
    assert re.search(r"^\d+\.\d% of validation's images are given to the right photograph\. Chance: 8\.3%\.$", result)
    assert re.search(r"in [\d.]+ s \([\d.]+ s of processor time\); penstock's in [\d.]+ s \([\d.]+ s\)\. Memory", keras)
    assert re.search(r"gave the same first 8 batches to the bit: SHA-256 [0-9a-f]{12}\.$", repeatable)
    assert picture == "out.png"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == ["data", "out.png"]
    assert os.listdir(tmp_path / "data") == ["photographs-1"]


@pytest.mark.framework
def test_the_folder_is_jpegs_in_folders_of_their_class_and_whole_or_not_there(tmp_path):
    from PIL import Image

    path = tmp_path / "folder"
    photographs.make_folder(path, counts=(2, 1))
    assert sorted(part.name for part in path.iterdir()) == ["training", "validation"]
    for part, count in (("training", 2), ("validation", 1)):
        assert sorted(folder.name for folder in (path / part).iterdir()) == sorted(photographs.CLASSES)
        for folder in (path / part).iterdir():
            assert sorted(file.name for file in folder.iterdir()) == [f"{number:04}.jpg" for number in range(count)]
            with Image.open(folder / "0000.jpg") as image:
                assert (image.size, image.mode) == (photographs.SIZE, "RGB")
                assert np.asarray(image).std() > 3

    def fail(done: int, count: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        photographs.make_folder(tmp_path / "other", counts=(1, 1), on_progress=fail)
    assert [left.name for left in tmp_path.iterdir()] == ["folder"]


@pytest.mark.framework
@pytest.mark.faults
def test_ctrl_c_while_the_folder_is_made_leaves_nothing_and_is_status_130(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "penstock.cli", "demo", "images", "--data-dir", str(tmp_path / "cache")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any("Cutting JPEGs" in line for line in iter(process.stdout.readline, ""))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "\nInterrupted. Nothing is left behind.\n"), err
    assert [path.name for path in tmp_path.rglob("*") if path.name != "cache"] == []


def test_what_training_and_validation_see_has_no_pixel_in_common():
    rng = np.random.default_rng(0)
    for size in ((451, 300), (1411, 1411), (512, 512)):
        training = [photographs.box(size, "training", rng) for _ in range(300)]
        validation = [photographs.box(size, "validation", rng) for _ in range(300)]
        assert max(right for _, _, right, _ in training) <= min(left for left, _, _, _ in validation)
        for left, top, right, bottom in training + validation:
            assert 0 <= left < right <= size[0]
            assert 0 <= top < bottom <= size[1]
            assert (right - left) / (bottom - top) == pytest.approx(4 / 3, abs=0.03)


@pytest.fixture
def outcome(tmp_path):
    resident_nbytes = [400 * MIB + number * MIB for number in range(60)] + [455 * MIB] * 40
    loader = ps.Report(
        batches=100,
        elements_per_batch=32,
        elapsed_s=10.0,
        wait_s=1.0,
        first_batch_s=0.1,
        copied=0,
        executor="threads",
        workers=2,
        projected_nbytes=20 * MIB,
        slot_count=6,
        slot_nbytes=MIB,
        shared_nbytes=0,
        note="",
    )
    return Outcome(
        folder=tmp_path,
        file_nbytes=90 * MIB,
        counts=(1600, 400),
        class_names=["cat", "dog"],
        image_nbytes=MIB // 2,
        batch_size=32,
        epochs=2,
        epoch_batches=50,
        accuracy=0.9,
        resident_nbytes=resident_nbytes,
        passes={"penstock": Pass(4.0, 7.5, 30 * MIB), "keras": Pass(6.0, 11.0, 300 * MIB)},
        run=Run(
            train_s=10.0,
            loader=loader,
            before=Memory(380 * MIB, 0),
            peak=Memory(440 * MIB, 20 * MIB),
            projected_nbytes=20 * MIB,
            fingerprints=("ab" * 32, "ab" * 32),
            compared_batches=8,
            picture=Path.cwd() / "out.png",
        ),
    )


def test_report_says_speed_memory_and_how_keras_reads_the_same_folder(outcome):
    text = " ".join(str(outcome).split())
    assert "2,000 JPEGs in " in text
    assert "a class each; 1,600 from the left of each to train, 400 from the right to validate." in text
    assert "320 images/s in model.fit, 10 s for 2 epochs, decoded and distorted by 2 threads beside it." in text
    assert "all images, decoded, would have 1,000 MiB." in text
    assert "From the second epoch to the end of training it grew by 9 MiB." in text
    assert "90.0% of validation's images are given to the right photograph. Chance: 50.0%." in text
    assert "in 6.0 s (11.0 s of processor time); penstock's in 4.0 s (7.5 s). Memory grew by 300 MiB and 30" in text


def test_without_tensorflow_nothing_is_compared_and_the_report_says_why(outcome):
    text = " ".join(str(dataclasses.replace(outcome, passes={"penstock": Pass(4.0, 7.5, 0)})).split())
    assert "Keras not compared: its image_dataset_from_directory needs TensorFlow" in text
