from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

HOURS = np.arange(40.0).reshape(20, 2)
GOALS = np.arange(100, 120)


def windows(*args: Any, **options: Any) -> Any:
    return ps.timeseries_dataset_from_array(*args, **{"batch_size": None, **options})


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, range(18)),
        ({"sequence_stride": 4}, range(0, 18, 4)),
        ({"sampling_rate": 5}, range(10)),
        ({"sampling_rate": 2, "sequence_stride": 3, "start_index": 1, "end_index": 19}, range(1, 15, 3)),
    ],
)
def test_window_and_target_begin_at_the_same_row(options: dict[str, int], starts: range) -> None:
    ds = windows(HOURS, GOALS, 3, **options)
    rate = options.get("sampling_rate", 1)
    assert len(ds) == len(starts)
    for (window, target), start in zip(ds, starts, strict=True):
        np.testing.assert_array_equal(window, HOURS[start : start + 3 * rate : rate])
        assert target == GOALS[start]


def test_targets_may_be_fewer_or_none() -> None:
    assert len(windows(HOURS, GOALS[:7], 3)) == 7
    assert len(windows(HOURS, GOALS[:7], 3, sequence_stride=3)) == 3
    np.testing.assert_array_equal(windows(HOURS, None, 3)[-1], HOURS[-3:])


def test_data_may_be_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "hours.npy", HOURS)
    memmap = np.load(tmp_path / "hours.npy", mmap_mode="r")
    for data in (memmap, tmp_path / "hours.npy", ps.from_arrays(HOURS), HOURS.tolist(), tuple(HOURS.tolist())):
        window, target = windows(data, GOALS, 4)[3]
        np.testing.assert_array_equal(window, HOURS[3:7])
        assert target == GOALS[3]


def test_batches_and_shuffle_are_those_of_datasets() -> None:
    ds = windows(HOURS, GOALS, 3, batch_size=8, shuffle=True, seed=5)
    assert [len(targets) for _, targets in ds] == [8, 8, 2]
    targets = np.concatenate([targets for _, targets in ds])
    assert sorted(targets.tolist()) == GOALS[:18].tolist() != targets.tolist()
    for batch, goals in ds:
        np.testing.assert_array_equal(batch[:, 0, 0], 2.0 * (goals - 100))
    same, other = (windows(HOURS, GOALS, 3, shuffle=True, seed=seed)[0] for seed in (5, 6))
    assert same[1] == targets[0] != other[1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sequence_length": 0}, "sequence_length=0.: it must be at least 1"),
        ({"sequence_length": 21}, "a window spans 21 rows, but there are 20 of them and 20 targets"),
        ({"sampling_rate": 0}, "sampling_rate=0.: it must be at least 1"),
        ({"sampling_rate": 20}, "sampling_rate=20.: it must be below the 20 rows"),
        ({"sequence_stride": 0}, "sequence_stride=0"),
        ({"sequence_stride": 20}, "sequence_stride=20.: it must be below the 20 rows"),
        ({"start_index": -1}, "start_index=-1"),
        ({"start_index": 20}, "start_index=20, end_index=None"),
        ({"end_index": 20}, "start_index=None, end_index=20"),
        ({"end_index": -2}, "end_index=-2"),
        ({"end_index": 0}, "end_index=0"),
        ({"start_index": 8, "end_index": 8}, "the first is below the second"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"targets": GOALS[:15], "start_index": 10}, "8 windows from row 10 on, but targets for 5 of them"),
    ],
)
def test_mistakes_are_said_at_the_call(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ps.ArgumentError, match=complaint):
        ps.timeseries_dataset_from_array(**{"data": HOURS, "targets": GOALS, "sequence_length": 3, **options})
