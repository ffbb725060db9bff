"""Makes training windows of several time series, and splits them without a leak.

Three stations measured every hour; the file holds one after another. A window is 24 hours to look at and 1 to predict.
No window may cross from one station to the next, and none of the test may share an hour with training.
"""

import tempfile
from pathlib import Path

import numpy as np

import penstock as ps

HOURS = {"north": 500, "south": 300, "west": 200}
LENGTH = 25

station = np.repeat(np.arange(len(HOURS)), list(HOURS.values()))
hour = np.arange(len(station))
measured = np.stack([np.sin(hour * 2 * np.pi / 24), station], axis=1).astype("float32")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "measured.npy"
    np.save(path, measured)  # (1000, 2): a value, and here, to check with, the station

    series = ps.zip((ps.from_npy(path), ps.range(len(measured))))
    windows = series.windows(LENGTH, groups=station)
    print(windows)
    assert len(windows) == sum(count - LENGTH + 1 for count in HOURS.values())

    # By time: parts are ranges, and the later one loses those windows that share an hour with the earlier.
    train, test = windows.split(0.8, 0.2)
    seen = {int(hour) for _, hours in train for hour in hours}
    assert all(int(hour) not in seen for _, hours in test for hour in hours)
    assert all(len(set(values[:, 1])) == 1 for values, _ in windows)
    left_out = len(windows) - len(train) - len(test)
    print(f"{len(train)} windows to train, {len(test)} to test, {left_out} between them left out.")

    # The last hour is what is to be predicted.
    pairs = train.map(lambda window: (window[0][:-1, 0], window[0][-1, 0]))
    with pairs.shuffle(seed=1).batch(32).loader() as loader:
        x, y = next(iter(loader))
    print(f"The first batch: x {x.shape} {x.dtype}, y {y.shape} {y.dtype}.")
    assert x.shape == (32, LENGTH - 1)
    assert np.allclose(x[:, 0], y, atol=1e-4)  # a day earlier it was the same
