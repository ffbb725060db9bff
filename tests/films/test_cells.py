"""Films behind URLs: what is requested, when, and how often."""

import numpy as np
import pytest

import penstock as ps
from benchmarks._object_server import Behaviour, serving
from penstock.base._retries import RetryBudget, reading_with
from penstock.films._cells import CELL_NBYTES, Cells, FilmStream
from tests.films.test_videos import decoded, written

pytest.importorskip("obstore")


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(Behaviour(latency_s=0.0)) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def film(store, tmp_path):
    """A film of several cells."""
    path = written(tmp_path / "a.mp4", 96, size=(480, 640), gop=4)
    store.put("b/a.mp4", path.read_bytes())
    assert path.stat().st_size > 3 * CELL_NBYTES
    return path


def epochs(ds, count=1, **options):
    with ds.batch(8).loader("threads", workers=2, **options) as loader:
        return [np.concatenate([batch["frame"] for batch in loader]) for _ in range(count)]


def test_the_frames_are_those_of_the_film_and_each_cell_is_requested_once(store, film):
    ds = ps.from_videos("s3://b/a.mp4").shuffle(seed=1)
    frames, orders = decoded(film), [[int(i) for i in ps.range(96).shuffle(seed=1)]]
    len(ds)  # has found the frames
    store.set(Behaviour())
    (found,) = epochs(ds)
    assert (found == frames[orders[0]]).all()
    stats = store.stats()
    assert stats["bytes"] == film.stat().st_size  # each cell once
    assert stats["GET"] <= -(-film.stat().st_size // CELL_NBYTES)


def test_with_little_memory_cells_are_requested_again(store, film):
    ds = ps.from_videos("s3://b/a.mp4")
    frames, source = decoded(film), ds._node.data.with_cache_limit(1 << 20)
    opened = source.open()
    for order in (range(96), [*range(95, -1, -7), *range(3, 96, 11)]):
        for frame in order:
            out = np.empty((1, 480, 640, 3), np.uint8)
            wanted = np.array([frame])
            opened.advise(wanted)
            opened._read(wanted, out, np.array([0]))
            assert (out[0] == frames[frame]).all()
    opened.close()


def test_a_disk_cache_keeps_cells_for_the_next_run(store, film, tmp_path):
    cache = ps.DiskCache(tmp_path / "blocks", 1 << 30)
    first = epochs(ps.from_videos("s3://b/a.mp4", cache=cache))[0]
    again = ps.from_videos("s3://b/a.mp4", cache=cache)  # has read the head
    store.set(Behaviour())
    assert (epochs(again)[0] == first).all()
    assert store.stats().get("bytes", 0) == 0


def test_announced_cells_are_not_waited_for(store, film):
    (file,) = ps.from_videos("s3://b/a.mp4")._node.data.files
    cells = Cells([file], 1 << 24)
    store.set(Behaviour(latency_s=0.05))
    asker = RetryBudget(memoryview(bytearray(8)).cast("q"), generation=1)
    with reading_with(asker):
        cells.announce([(0, CELL_NBYTES + 5, 2 * CELL_NBYTES), (0, 0, 10)])
        data = [cells.read(0, cell) for cell in (1, 2, 0)]
        assert b"".join([data[2], *data[:2]]) == film.read_bytes()[: 3 * CELL_NBYTES]
        assert store.stats()["GET"] == 1  # neighbours are one request
        stream = FilmStream(cells, 0)
        stream.seek(file.nbytes - 7)
        assert stream.read(100) == film.read_bytes()[-7:]
    cells.files.close()


def test_a_read_that_fails_is_one_error_and_prints_nothing(store, film, capfd):
    ds = ps.from_videos("s3://b/a.mp4")
    len(ds)
    store.put("b/a.mp4", film.read_bytes()[::-1])
    with pytest.raises(ps.SourceError, match=r"s3://b/a\.mp4 has changed since"):
        epochs(ds)
    assert "dropped" not in capfd.readouterr().err
