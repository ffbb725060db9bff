"""Memory of a folder of images does not grow through the first epoch, as it does with tf.data."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.image.pictures import write
from tests.limits.test_memory import MEASURE, MIB, measured

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

EPOCHS = (
    """
import penstock.image
"""
    + MEASURE
    + """
dataset = ps.image_dataset_from_directory(sys.argv[1], image_size=(180, 180), seed=1, verbose=False)
taken, early, kept = 0, 0, []
with dataset.loader("threads", workers=2) as loader:
    for epoch in range(2):
        for images, labels in loader:
            taken += len(labels)
            # Some are held at first, so that no slot is used for the first time when it is late.
            kept = [*kept, images] if taken <= 6 * 32 else []
            sample()
            if taken == 50 * 32:
                early = peak
    report = loader.report()
print(json.dumps({
    "taken": taken, "peak": peak, "growth": peak - early, "ring": report.slot_count * report.slot_nbytes,
    "projected": loader.projected_nbytes,
}))
"""
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 names of 60 JPEGs of about 500x375, in 10 folders."""
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(60):
        y, x = np.mgrid[: 375 - number % 7, : 500 - number % 5]
        write(folder / "originals" / f"{number}.jpg", np.stack([x // 2, y // 2, (x + y) // 4], -1).astype(np.uint8))
    for number in range(3000):
        (folder / "all" / f"{number % 10}").mkdir(parents=True, exist_ok=True)
        os.link(folder / "originals" / f"{number % 60}.jpg", folder / "all" / f"{number % 10}" / f"{number}.jpg")
    return folder / "all"


def test_memory_is_the_ring_and_an_allowance_and_flat(fresh_python: Run, photographs: Path) -> None:
    result = measured(fresh_python(EPOCHS, str(photographs)))
    assert result["taken"] == 6000
    assert result["peak"] <= result["ring"] + 64 * MIB
    assert result["growth"] <= 4 * MIB  # after the first 50 batches
    assert result["ring"] <= result["projected"] <= result["ring"] + 8 * MIB
