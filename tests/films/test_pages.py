"""Films behind URLs: what is requested, when, and how often."""

import numpy as np
import pytest

import penstock as ps
from benchmarks._object_server import Behaviour, serving
from penstock.base._retries import RetryBudget, UnwantedError, reading_with
from penstock.files._openfile import find
from penstock.films._pages import PAGE_NBYTES, FilmStream, Pages
from penstock.lower._analysis import analyse
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
    """A film of several pages."""
    path = written(tmp_path / "a.mp4", 96, size=(480, 640), gop=4)
    store.put("b/a.mp4", path.read_bytes())
    assert path.stat().st_size > 3 * PAGE_NBYTES
    return path


def epochs(ds, count=1, **options):
    with ds.batch(8).loader("threads", workers=2, **options) as loader:
        return [np.concatenate([batch["frame"] for batch in loader]) for _ in range(count)]


def test_the_frames_are_those_of_the_film_and_each_page_is_requested_once(store, film):
    ds = ps.from_videos("s3://b/a.mp4").shuffle(seed=1)
    frames, orders = decoded(film), [[int(i) for i in ps.range(96).shuffle(seed=1)]]
    len(ds)  # has found the frames
    store.set(Behaviour())
    (found,) = epochs(ds)
    assert (found == frames[orders[0]]).all()
    stats = store.stats()
    assert stats["bytes"] == film.stat().st_size  # each page once
    assert stats["GET"] <= -(-film.stat().st_size // PAGE_NBYTES)


def test_with_little_memory_pages_are_requested_again(store, film):
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


def test_a_disk_cache_keeps_pages_for_the_next_run(store, film, tmp_path):
    cache = ps.DiskCache(tmp_path / "blocks", 1 << 30)
    first = epochs(ps.from_videos("s3://b/a.mp4", cache=cache))[0]
    again = ps.from_videos("s3://b/a.mp4", cache=cache)  # has read the head
    store.set(Behaviour())
    assert (epochs(again)[0] == first).all()
    assert store.stats().get("bytes", 0) == 0


def test_announced_pages_are_not_waited_for(store, film):
    (file,) = ps.from_videos("s3://b/a.mp4")._node.data.files
    pages = Pages([file], 1 << 24)
    store.set(Behaviour(latency_s=0.05))
    asker = RetryBudget(memoryview(bytearray(8)).cast("q"), generation=1)
    with reading_with(asker):
        pages.announce([(0, PAGE_NBYTES + 5, 2 * PAGE_NBYTES), (0, 0, 10)])
        data = [pages.read(0, page) for page in (1, 2, 0)]
        assert b"".join([data[2], *data[:2]]) == film.read_bytes()[: 3 * PAGE_NBYTES]
        assert store.stats()["GET"] == 1  # neighbours are one request
        stream = FilmStream(pages, 0, [])
        stream.seek(file.nbytes - 7)
        assert stream.read(100) == film.read_bytes()[-7:]
    pages.files.close()


def test_a_read_that_fails_is_one_error_and_prints_nothing(store, film, capfd):
    ds = ps.from_videos("s3://b/a.mp4")
    len(ds)
    store.put("b/a.mp4", film.read_bytes()[::-1])
    with pytest.raises(ps.SourceError, match=r"s3://b/a\.mp4 has changed since"):
        epochs(ds)
    assert "dropped" not in capfd.readouterr().err


@pytest.fixture
def pages(store):
    """A file of 40 pages, of which 40 are kept, and no request yet."""
    store.put("b/raw.mp4", np.random.default_rng(0).bytes(40 * PAGE_NBYTES - 5))
    pages = Pages(find("from_videos", "s3://b/raw.mp4"), 40 * PAGE_NBYTES - 5)
    store.set(Behaviour())
    yield pages
    pages.files.close()


def test_who_reads_on_gets_more_pages_at_once_and_who_jumps_gets_one(store, pages):
    stream = FilmStream(pages, 0, [])
    while stream.read(1 << 20):
        pass
    stats = store.stats()
    assert stats["GET"] <= 7
    assert stats["bytes"] == 40 * PAGE_NBYTES - 5
    other = Pages(pages.files.files, 1 << 20)
    jumping = FilmStream(other, 0, [])
    for page in (30, 3, 20):
        jumping.seek(page * PAGE_NBYTES)
        jumping.read(9)
    other.files.close()
    assert store.stats()["bytes"] == stats["bytes"] + 3 * PAGE_NBYTES


def test_pages_that_are_announced_again_hold_memory_until_they_are_read_once(store, pages):
    for _ in range(4):
        pages.announce([(0, 0, 3 * PAGE_NBYTES - 1)])
    for page in range(3):
        pages.read(0, page, 16)  # announced ones alone
    assert store.stats()["GET"] == 1
    assert pages.files._far._held_nbytes == 0
    assert not pages.files._far._table


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_the_first_frames_of_a_long_group_do_not_cost_the_group(store, tmp_path, limit):
    path = written(tmp_path / "a.mp4", 96, size=(480, 640), gop=96, crf="1", bf="0", preset="ultrafast")
    count = path.stat().st_size // PAGE_NBYTES
    assert count > 24  # 16 are kept
    store.put("b/a.mp4", path.read_bytes())
    source = ps.from_videos("s3://b/a.mp4")._node.data
    opened = (source if limit is None else source.with_cache_limit(limit)).open()
    store.set(Behaviour())
    out = np.empty((1, 480, 640, 3), np.uint8)
    for frame in range(8):
        opened._read(np.array([frame]), out, np.array([0]))
    opened.close()
    stats = store.stats()
    assert stats["GET"] <= 6
    assert stats["bytes"] < count // 2 * PAGE_NBYTES


@pytest.mark.parametrize("error", [UnwantedError, KeyboardInterrupt, ps.SourceError])
@pytest.mark.parametrize("read", [0, 2])
def test_what_ends_a_read_comes_through_the_decoder_as_it_is(store, film, capfd, monkeypatch, error, read):
    ds = ps.from_videos("s3://b/a.mp4")
    len(ds)
    reads, given = iter(range(1000)), error("This one.")

    def failing(pages, *place):
        if next(reads) >= read:
            raise given
        return real(pages, *place)

    real = Pages.read
    monkeypatch.setattr(Pages, "read", failing)
    opened, out = ds._node.data.open(), np.empty((1, 480, 640, 3), np.uint8)
    with pytest.raises(error) as caught:
        opened._read(np.array([90]), out, np.array([0]))
    assert caught.value is given
    opened.close()
    assert "pyio" not in capfd.readouterr().err


@pytest.mark.parametrize(("name", "codec", "is_known"), [("a.mp4", "libx264", True), ("a.avi", "libx264", False)])
def test_films_read_ahead_where_the_places_of_frames_are_known(store, tmp_path, name, codec, is_known):
    path = written(tmp_path / name, codec=codec)
    store.put(f"b/{name}", path.read_bytes())
    ds = ps.from_videos(f"s3://b/{name}")
    assert ds._node.data.reads_ahead == is_known
    assert analyse(ds._node).waits != is_known
    assert ([each["frame"] for each in ds] == decoded(path)).all()
