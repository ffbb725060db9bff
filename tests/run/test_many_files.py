"""Many files, or columns, that are read as one array in parts."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock import native
from penstock.lower._copies import CopyPlan, Joined
from penstock.sources.npy import StridedFile

ROWS = 7
pytestmark = pytest.mark.skipif(native.implementation() != "native", reason="NumPy's engine has no threads")


def saved(directory: Path, count: int, width: int = 4) -> list[Path]:
    paths = [directory / f"{number}.npy" for number in range(count)]
    for number, path in enumerate(paths):
        np.save(path, number * 100.0 + np.arange(ROWS * width).reshape(ROWS, width))
    return paths


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def many(tmp_path: Path) -> ps.Dataset:
    return ps.concatenate([ps.from_npy(path) for path in saved(tmp_path, 300)])


@pytest.fixture
def wide(tmp_path: Path) -> ps.Dataset:
    """Rows that are read and not mapped."""
    return ps.concatenate([ps.from_npy(path) for path in saved(tmp_path, 140, 5000)])


def numbers_of(ds: ps.Dataset) -> list[type]:
    plan = CopyPlan.of(ds._node, (0, 1))
    assert plan is not None
    return [type(array) for array in plan.arrays]


def test_datasets_that_are_dealt_from_are_one_array(tmp_path: Path) -> None:
    parts = [ps.from_npy(path) for path in saved(tmp_path, 5)]
    pairs = [ps.zip({"x": part, "y": ps.from_arrays(np.arange(ROWS))}) for part in parts]
    for combine in (ps.concatenate, ps.interleave, lambda each: ps.mix(each, [1] * 5)):
        assert numbers_of(combine(parts).shuffle(1).batch(4)) == [Joined]
        assert numbers_of(combine(pairs).shuffle(1).batch(4)) == [Joined, Joined]
        assert numbers_of(combine([part.cast("float32") for part in parts]).batch(4)) == [Joined]
    nested = ps.concatenate([ps.interleave(parts[:2]), parts[2]])
    assert numbers_of(nested.batch(4)) == [Joined, StridedFile]  # an interleave is no array
    assert numbers_of(ps.concatenate([ps.concatenate(parts[:2]), parts[2]]).batch(4)) == [Joined]


def test_arrays_of_other_rows_or_dtypes_are_not_joined(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 1)
    file = ps.from_npy(path)
    other = ps.from_arrays(np.zeros((3, 4), "float32"))
    assert Joined not in numbers_of(ps.concatenate([file.cast("float32"), other]).batch(4))
    assert numbers_of(ps.concatenate([file, ps.from_arrays(np.zeros((3, 4)))]).batch(4)) == [Joined]


@pytest.mark.parametrize("dataset", ["many", "wide"])
def test_many_files_keep_few_descriptors_and_give_the_rows_of_each(
    dataset: str, request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(dataset)
    file_count, width = len(ds) // ROWS, ds.element_spec.shape[0]
    expected = np.arange(file_count)[:, None, None] * 100.0 + np.arange(ROWS * width).reshape(ROWS, width)
    before = descriptors()
    with ds.shuffle(seed=1).batch(70).loader(executor="threads") as loader:
        for _ in range(2):
            rows = np.concatenate(list(loader))
            assert descriptors() - before <= 128 + 8
            assert np.array_equal(rows[np.argsort(rows[:, 0], kind="stable")], np.sort(expected.reshape(-1, width), 0))
    assert descriptors() == before


@pytest.mark.parametrize("dataset", ["many", "wide"])
@pytest.mark.parametrize("change", ["replaced", "made again", "deleted", "shortened"])
def test_a_file_that_changes_is_an_error_that_names_its_row(
    dataset: str, change: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    ds = request.getfixturevalue(dataset)
    path = tmp_path / f"{len(ds) // ROWS - 1}.npy"
    with ds.batch(10).loader(executor="threads", prefetch=1) as loader:
        batches: Iterator[object] = iter(loader)
        next(batches)
        content = path.read_bytes()
        if change == "shortened":
            os.truncate(path, 200)
        elif change == "replaced":
            other = tmp_path / "other"
            other.write_bytes(content)
            other.rename(path)
        else:
            path.unlink()
            if change == "made again":
                path.write_bytes(content)
        with pytest.raises(ps.SourceError, match=rf"{path}\[\d\] cannot be read: .*{path.name}") as caught:
            list(batches)
    assert "This was in batch" in caught.value.__notes__[0]


def test_columns_are_announced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {path.stem: path for path in saved(tmp_path, 6)}
    asked: list[int] = []

    class Counted(native.Engine):  # type: ignore[misc]
        def advise(self, sources: list[native.Source], rows: np.ndarray) -> None:
            asked.append(len(sources))

    monkeypatch.setattr("penstock.run._copy_delivery.Engine", Counted)
    with ps.from_npy(columns).shuffle(1).batch(4).loader(executor="threads") as loader:
        next(iter(loader))
    assert set(asked) == {6}
