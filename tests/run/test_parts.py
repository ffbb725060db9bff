"""Row groups are decoded on threads before the batches that need them, in the room that there is."""

import os
import threading

import numpy as np
import pytest

import penstock as ps

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from penstock.plan import _parted  # noqa: E402
from penstock.run.parts._plan import PartPlan  # noqa: E402
from penstock.tables import parquet  # noqa: E402
from tests.run.common import Gate  # noqa: E402
from tests.waits import DEADLINE_S  # noqa: E402

COUNT = 1000


def table(first=0):
    numbers = np.arange(first, first + COUNT)
    nulls = pa.array([None if each % 7 == 0 else float(each) for each in numbers.tolist()])
    return pa.table({"x": numbers, "y": (numbers % 100).astype("i1"), "z": nulls})


@pytest.fixture
def path(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=100)
    return tmp_path / "a.parquet"


def opened(path):
    return ps.from_parquet(path, fill_null={"z": -1.0})


@pytest.fixture
def most_kept(monkeypatch):
    """The share of the room that parts ever had in use, after each decision."""
    found = [0.0]
    loads = PartPlan.loads

    def deciding(self):
        made = loads(self)
        used = sum(self._nbytes[each] for each in (*self._there, *self._loading))
        used += sum(self._work_nbytes[each] for each in self._loading)
        found.append(used / self._room)
        return made

    monkeypatch.setattr(PartPlan, "loads", deciding)
    return found


def rows_of(ds, **options):
    with ds.loader(executor="threads", **options) as loader:
        return [{name: column.copy() for name, column in batch.items()} for batch in loader]


ORDERS = {
    "in order": lambda ds: ds,
    "window": lambda ds: ds.shuffle(seed=1, window=250),
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "two orders": lambda ds: ps.mix([ds, ds.shuffle(seed=2)], [1, 1], seed=3),
    "twice": lambda ds: ds.shuffle(seed=1, window=500).repeat(2),
}


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.parametrize("room", ["all", "some", "one group"])
@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_inline_whatever_the_room(path, order, room, monkeypatch, most_kept):
    if room != "all":
        monkeypatch.setattr(_parted, "ROOM_NBYTES", 1 if room == "one group" else 8 * 12288)
    ds = ORDERS[order](opened(path)).batch(64)
    with ds.loader(executor="inline") as loader:
        expected = [{name: column.copy() for name, column in batch.items()} for batch in loader]
    found = rows_of(ds, workers=2)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, column in other.items():
            np.testing.assert_array_equal(one[name], column)
    assert len(most_kept) > 1, "the table was decoded ahead"
    assert max(most_kept) <= 1


def test_the_next_row_group_is_decoded_before_a_batch_needs_it(path, decoded):
    with opened(path).batch(10).loader(executor="threads", workers=1, prefetch=2) as loader:
        next(iter(loader))
        for _ in range(600):
            if len(decoded) > 1:
                break
            threading.Event().wait(0.05)
        assert len(decoded) > 1, "batches of the first group alone were asked for"


@pytest.mark.parametrize("window", [None, 300])
def test_each_row_group_is_decoded_once(path, decoded, window):
    rows_of(opened(path).shuffle(seed=1, window=window).batch(64))
    assert sorted(decoded) == list(range(10))


def test_the_error_of_a_row_group_comes_in_its_batch(path):
    pq.write_table(table(), path, row_group_size=100)
    ds = ps.from_parquet(path, columns=["x", "z"]).batch(50)
    with ds.loader(executor="threads") as loader, pytest.raises(ps.SourceError, match="row group 0 row 0 has no value"):
        next(iter(loader))
    content = table()
    values = content.column("z").to_pylist()
    values[:205] = [1.0] * 205
    pq.write_table(content.set_column(2, "z", pa.array(values)), path, row_group_size=100)
    ds = ps.from_parquet(path, columns=["x", "z"]).batch(50)
    seen = []
    with ds.loader(executor="threads") as loader:
        batches = iter(loader)
        with pytest.raises(ps.SourceError, match="row group 2 row 10 has no value in column 'z'") as raised:
            seen.extend(int(batch["x"][0]) for batch in batches)
    assert seen == [0, 50, 100, 150]
    assert "This was in batch 4 of epoch 0." in raised.value.__notes__


def test_rows_of_a_mapped_file_that_changed_are_an_error(tmp_path):
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=100)
    ds = ps.from_arrow(path, columns=["x", "y"]).batch(50)
    with ds.loader(executor="threads", prefetch=2) as loader:
        batches = iter(loader)
        assert next(batches)["x"].tolist() == list(range(50))
        os.utime(path, ns=(1, 1))
        with pytest.raises(ps.SourceError, match=r"a\.arrow"):
            for _ in batches:
                pass


def test_what_is_decoded_counts_in_the_report(path):
    with opened(path).batch(50).loader(executor="threads") as loader:
        assert sum(len(batch["x"]) for batch in loader) == COUNT
        report = loader.report() if callable(loader.report) else loader.report
    assert "from_parquet(a.parquet)" in str(report)


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_close_waits_for_no_row_group_that_never_comes_and_ends_a_consumer_that_does(path, monkeypatch):
    monkeypatch.setattr("penstock.loader.CLOSE_WAIT_S", 0.01)
    gate, read_group, caught = Gate(0), parquet.read_group, []
    monkeypatch.setattr(
        parquet, "read_group", lambda file, number, *rest: (gate(number), read_group(file, number, *rest))[1]
    )
    loader = opened(path).batch(10).loader(executor="threads", workers=1)

    def consume():
        with pytest.raises(ps.LoaderError, match=r"^This loader is closed\. Make another one") as raised:
            list(loader)
        caught.append(raised.value)

    consumer = threading.Thread(target=consume)
    consumer.start()
    gate.wait_for(0)
    loader.close()
    consumer.join(DEADLINE_S)
    assert caught, "its row group and those behind it were never decoded"
    gate.open()
    loader.close()
    assert gate.seen == [0], "no further one was begun"


def test_a_row_group_that_fails_takes_no_room_from_those_before_it(path, monkeypatch):
    monkeypatch.setattr(_parted, "ROOM_NBYTES", 1)
    read_group = parquet.read_group

    def reading(file, number, *rest):
        if number == 7:
            raise ps.SourceError("group 7 is lost")
        return read_group(file, number, *rest)

    monkeypatch.setattr(parquet, "read_group", reading)
    ds, seen = opened(path).batch(100), []
    with ds.loader(executor="threads", workers=2) as loader, pytest.raises(ps.SourceError, match="group 7 is lost"):
        seen.extend(int(batch["x"][0]) for batch in loader)
    assert seen == list(range(0, 700, 100))


@pytest.mark.parametrize("dtype", [None, "int32"])
def test_a_shuffle_by_chunks_decodes_one_row_group_after_the_other(path, decoded, dtype, monkeypatch):
    monkeypatch.setattr(_parted, "ROOM_NBYTES", 1)
    ds = opened(path) if dtype is None else opened(path).cast(dtype)
    ds = ds.shuffle(seed=1, window="chunks")
    rows = np.concatenate([batch["x"] for batch in rows_of(ds.batch(64))])
    assert sorted(rows.tolist()) == list(range(COUNT))
    assert decoded[:10] == (rows[::100] // 100).tolist(), "the rows of a group come together, and each is decoded once"
    assert decoded[:10] != sorted(decoded[:10]), "more may be decoded for the next epoch"
    assert rows[:100].tolist() != sorted(rows[:100].tolist())
    assert [int(each["x"]) for each in ds] == rows.tolist()
    with ds.loader(executor="inline") as loader:
        assert [int(each["x"]) for each in loader] == rows.tolist()
