"""`penstock demo augment` from end to end, on a few characters, and what its report says."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

# The command, with fewer characters and smaller batches.
SCRIPT = """
import functools, sys
from penstock import cli
from penstock.demos import augment, characters
augment.BATCH_SIZE = 32
augment.run = functools.partial(augment.run, names=characters.HIRAGANA[:12])
sys.exit(cli.main(["demo", "augment", "--epochs", sys.argv[1], "--data-dir", "data", "--out", "out.png"]))
"""


@contextlib.contextmanager
def _started(folder, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, so that what it leaves can be found."""
    with subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _is_anything_left(process: subprocess.Popen[str]) -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.keras
def test_demo_trains_on_characters_reports_and_draws(tmp_path):
    with _started(tmp_path, "-c", SCRIPT, "2") as process:
        out, err = process.communicate(timeout=120)
        assert not _is_anything_left(process)
    assert (process.returncode, err) == (0, ""), err
    report = out.partition("penstock 0")[2]
    data, speed, workers, memory, result, repeatable, picture = (
        " ".join(text.split())
        for text in re.split(
            r"^  (?:Data|Speed|Workers|Memory|Result|Repeatable|Picture) ", report, flags=re.MULTILINE
        )[1:]
    )
    assert data.startswith(
        "288 images (64, 64) uint8 of 12 characters in characters-1.npy, 1 MiB: 240 in 5 sizes to train"
    )
    assert re.search(r"^[\d,]+ characters/s in model\.fit, .* waited for data \d+\.\d% of the time\. A batch", speed)
    assert re.search(r"distorts half a batch in \d+ ms; the loader, .* every \d+ ms, [\d.]+ times as fast\.$", workers)
    assert re.search(r"^at its peak \d+ MiB more than before the loaders were made", memory)
    assert re.search(r"^of validation's characters, distorted, [\d.]+% are named right; .* Chance: 8\.3%\.$", result)
    assert re.search(r"gave the same first 4 batches to the bit: SHA-256 [0-9a-f]{12}\.$", repeatable)
    assert picture == "out.png"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    # Compiled kernels are torch's to keep there.
    assert sorted(name for name in os.listdir(tmp_path) if not name.startswith("torchinductor")) == ["data", "out.png"]


@pytest.mark.framework
@pytest.mark.faults
@pytest.mark.parametrize("moment", ["Batches alone", "Epoch 1/1000"])
def test_ctrl_c_at_any_moment_is_status_130_and_leaves_nothing(moment, tmp_path):
    with _started(tmp_path, "-c", SCRIPT, "1000") as process:
        assert process.stdout is not None
        assert any(moment in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert not _is_anything_left(process)
    assert (process.returncode, err) == (130, "\nInterrupted. Nothing is left behind.\n"), err
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(tmp_path / "data") == ["characters-1.npy"]
