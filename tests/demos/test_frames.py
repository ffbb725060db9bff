"""The demo from end to end, on small films of the user."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.demos.film import open_frames
from penstock.demos.model import next_frame_model
from tests.waits import DEADLINE_S


def _bars(high: float) -> np.ndarray:
    """A soft bar that moves to the right by two pixels a frame, (120, 24), from 0 to `high`."""
    x = np.arange(24)
    return np.stack([high * np.exp(-(((x - 2 * number) % 24 - 12) ** 2) / 20) for number in range(120)])


def _film(shape: tuple[int, ...], across: int, dtype: str, high: float = 1.0, low: float = 0.0) -> np.ndarray:
    """120 frames of a shape, over whose axis `across` a bar moves."""
    bars = _bars(high).reshape(120, *(24 if axis == across else 1 for axis in range(len(shape))))
    return np.broadcast_to(bars + low, (120, *shape)).astype(dtype)


FILMS = {
    "film like the demo's": _film((3, 20, 24), 2, "float64"),
    "grey bytes": _film((20, 24), 1, "uint8", high=255),
    "four channels last, below zero": _film((20, 24, 4), 1, "float32", high=50, low=-10),
}


@pytest.mark.parametrize(
    ("name", "channels_axis", "value_range"),
    [
        ("film like the demo's", 0, (0, 1)),
        ("grey bytes", None, (0, 255)),
        ("four channels last, below zero", 2, (-10, 40)),
    ],
)
def test_axes_and_range_are_found(name, channels_axis, value_range, tmp_path):
    np.save(tmp_path / "my.npy", FILMS[name])
    frames = open_frames(tmp_path / "my.npy")
    assert (frames.channels_axis, frames.pixels) == (channels_axis, 480)
    assert (frames.low, frames.high) == pytest.approx(value_range, abs=0.05)


@contextlib.contextmanager
def _demo(folder, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "penstock.commands.cli", "demo", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.keras
@pytest.mark.parametrize("name", FILMS)
def test_untrained_model_copies_the_last_frame_in_the_units_of_the_data(name, tmp_path):
    np.save(tmp_path / "my.npy", FILMS[name])
    frames = open_frames(tmp_path / "my.npy")
    model = next_frame_model(frames.shape, frames.channels_axis, frames.low, frames.high)
    batch = FILMS[name][:4].astype("float32")
    np.testing.assert_allclose(np.asarray(model.predict_on_batch(batch)), batch, rtol=1e-4, atol=1e-4)
    # The loss does not depend on the units.
    expected = np.square((batch[1:] - batch[:-1]) / (frames.high - frames.low)).mean()
    assert model.test_on_batch(batch[:-1], batch[1:]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.framework  # the model's tests and those of the adapter run on each backend
def test_demo_trains_on_a_users_film_reports_and_draws(turns, tmp_path, tmp_path_factory):
    np.save(tmp_path / "my.npy", FILMS["grey bytes"])
    script = tmp_path_factory.mktemp("script") / "demo.py"  # other tests run the command itself
    script.write_text(
        "import sys, penstock.commands.cli as c; sys.exit(c.main(['demo', '--data', 'my.npy', '--epochs', '3']))"
    )
    done = turns.run(script, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = done.stdout.partition("penstock 0")[2]
    data, speed, memory, result, repeatable, picture = (
        " ".join(text.split())
        for text in re.split(r"^  (?:Data|Speed|Memory|Result|Repeatable|Picture) ", report, flags=re.MULTILINE)[1:]
    )
    assert data.startswith("120 frames (")
    assert data.endswith("71 to train, 24 to validate, 24 to test.")
    assert re.search(r"^[\d,]+ pairs/s in model\.fit, .* waited for data \d+\.\d% of the time\.$", speed)
    assert re.search(
        r"^at its peak \d+ MiB more than before the loaders were made\. This is what the loaders took, which announced "
        r"\d+ MiB at most, and what Keras and its backend took to train\. ",
        memory,
    )
    assert re.search(r"[\d.]+ times less than that of copying the last frame", result)
    assert repeatable.endswith("gave the same first 3 batches to the bit.")
    assert picture == "penstock-demo.png"
    assert (tmp_path / "penstock-demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == ["my.npy", "penstock-demo.png"]


@pytest.mark.framework
@pytest.mark.faults
@pytest.mark.parametrize("moment", ["Loading Keras", "Epoch 3/1000"])
def test_ctrl_c_at_any_moment_is_status_130_and_leaves_nothing(moment, tmp_path):
    np.save(tmp_path / "my.npy", FILMS["grey bytes"])
    with _demo(tmp_path, "--data", "my.npy", "--epochs", "1000") as process:
        assert process.stdout is not None
        assert any(moment in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert err.endswith("\nInterrupted. Nothing is left behind.\n")  # after notes of TensorFlow
    assert os.listdir(tmp_path) == ["my.npy"]
