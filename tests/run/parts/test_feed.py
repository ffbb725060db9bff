"""Parts are decoded once, for all workers, whichever decodes them."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan._parted import PartCache, PartSizes

COUNT, PART = 240, 20
ROWS = np.arange(COUNT * 3).reshape(COUNT, 3)


class Parted(ps.Source):
    """Rows in parts. Each decoding is a line of a file.

    Args:
        log: The file.
        room: How many parts there is room for.
        dies_at: The part whose first decoding kills its process.
        fails_at: The part that cannot be decoded.
    """

    element_spec = ps.ArraySpec((3,), "int64")

    def __init__(self, log: Path, room: int = 4, dies_at: int = -1, fails_at: int = -1) -> None:
        self.log, self.room, self.dies_at, self.fails_at = log, room, dies_at, fails_at

    def __len__(self) -> int:
        return COUNT

    @property
    def parts(self) -> PartSizes:
        bounds = np.arange(0, COUNT + 1, PART)
        nbytes = np.full(COUNT // PART, PART * 24)
        return PartSizes(bounds, nbytes, nbytes, self.room * PART * 24 + PART * 24)

    @property
    def part_bounds(self) -> Any:
        return self.parts.bounds

    @property
    def kept_nbytes(self) -> int:
        return self.parts.room

    def open(self) -> "OpenParted":
        return OpenParted(self)

    def describe(self, index: int) -> str:
        return f"row {index}"


class OpenParted:
    def __init__(self, source: Parted) -> None:
        self.source = source
        self.part_cache = PartCache(self.decode, source.parts)

    def decode(self, part: int) -> tuple[Any, int]:
        with open(self.source.log, "a") as file:
            file.write(f"{part}\n")
        if part == self.source.dies_at and Counter(self.source.log.read_text().split())[str(part)] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if part == self.source.fails_at:
            raise ps.SourceError(f"row {part * PART} cannot be read: it is broken.")
        rows = ROWS[part * PART : (part + 1) * PART].copy()
        return rows, rows.nbytes

    def read_into(self, indices: Any, out: Any) -> None:
        for part in np.unique(indices // PART).tolist():
            mine = np.flatnonzero(indices // PART == part)
            with self.part_cache.use(part) as rows:
                out[mine] = rows[indices[mine] - part * PART]


def doubled(row: Any) -> Any:
    return 2 * row


def run(ds: ps.Dataset, log: Path, **options: Any) -> tuple[Any, Counter[int]]:
    """The rows of an epoch, and how often each part was decoded. The next epoch is begun ahead."""
    with ds.loader(**options) as loader:
        batches = [batch.copy() for batch in loader]
    return np.concatenate(batches), Counter(map(int, log.read_text().split()))


HOW = {
    "inline": {"executor": "inline"},
    "threads": {"executor": "threads", "workers": 2},
    "one process": {"executor": "processes", "workers": 1},
    "two processes": {"executor": "processes", "workers": 2},
    "eight processes": {"executor": "processes", "workers": 8},
}
ORDERS = {
    "in order": lambda ds: ds,
    "by parts": lambda ds: ds.shuffle(3, window="chunks"),
    "two sources": lambda ds: ps.zip((ds, ds.map(doubled))).map(lambda pair: pair[0] + pair[1]),
}
processes = [pytest.param(name, marks=pytest.mark.slow) if "process" in name else name for name in HOW]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").touch()
    return tmp_path / "log"


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.parametrize("how", processes)
@pytest.mark.parametrize("order", ORDERS)
def test_each_part_is_decoded_once(how: str, order: str, log: Path) -> None:
    ds = ORDERS[order](ps.from_source(Parted(log))).map(doubled).repeat(3).batch(8)
    whole = np.concatenate([batch.copy() for batch in ds])
    log.write_text("")
    rows, decoded = run(ds, log, **HOW[how])
    assert rows.tobytes() == whole.tobytes()
    assert set(decoded) == set(range(COUNT // PART))
    ahead = 5  # one to know what functions return, and as many as there is room for, of the next epoch
    assert decoded.total() <= 3 * COUNT // PART + ahead


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.slow
def test_a_decoder_that_dies_costs_one_decoding(log: Path) -> None:
    ds = ps.from_source(Parted(log, dies_at=5)).shuffle(3, window="chunks").map(doubled).batch(8)
    rows, decoded = run(ds, log, executor="processes", workers=2)
    assert sorted(rows[:, 0].tolist()) == sorted((2 * ROWS[:, 0]).tolist())
    assert decoded[5] >= 2
    assert decoded.total() <= COUNT // PART + 6


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.parametrize("how", processes)
def test_a_part_that_cannot_be_decoded_is_the_error_of_its_elements(how: str, log: Path) -> None:
    ds = ps.from_source(Parted(log, fails_at=5)).map(doubled).batch(PART)
    taken = []
    with (
        ds.loader(**HOW[how]) as loader,  # type: ignore[arg-type]
        pytest.raises(ps.SourceError, match=r"row 100 cannot be read: it is broken\.(.|\n)*in batch 5 of epoch 0"),
    ):
        taken.extend(len(batch) for batch in loader)
    with ds.loader(**HOW[how], on_error="skip") as loader:  # type: ignore[arg-type]
        assert len(list(loader)) == 11


@pytest.mark.parametrize("how", processes)
def test_of_a_full_shuffle_over_more_parts_than_fit_some_stay(how: str, log: Path) -> None:
    ds = ps.from_source(Parted(log, room=6)).shuffle(3).map(doubled).batch(4)
    rows, decoded = run(ds, log, **HOW[how])
    assert sorted(rows[:, 0].tolist()) == sorted((2 * ROWS[:, 0]).tolist())
    assert decoded.total() < 0.8 * COUNT


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.parametrize("how", processes)
def test_a_run_goes_on_anywhere(how: str, log: Path) -> None:
    ds = ps.from_source(Parted(log)).shuffle(3, window="chunks").map(doubled).batch(8)
    whole = [batch.copy() for batch in ds]
    with ds.loader(**HOW[how]) as loader:  # type: ignore[arg-type]
        for position in (20, 3, 11):
            loader.set_state({**loader.get_state(), "position": position})
            assert next(iter(loader)).tobytes() == whole[position].tobytes()
