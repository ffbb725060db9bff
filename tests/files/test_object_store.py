"""Objects in a real implementation of S3: moto's server. Threads and worker processes read the same."""

import io
import itertools
import logging
import pickle
import tarfile
import threading
import time
import urllib.request

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget, UnwantedError
from penstock.commands.cli import main
from penstock.files import _fetch, _openfile, _remote, _store
from tests.waits import DEADLINE_S

obstore = pytest.importorskip("obstore")
moto = pytest.importorskip("moto.server")

KEYS = {"AWS_ACCESS_KEY_ID": "known", "AWS_SECRET_ACCESS_KEY": "hidden-secret", "AWS_REGION": "us-east-1"}
EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]


class S3:
    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.call("PUT", "bucket")
        self.store = obstore.store.from_url(
            "s3://bucket",
            endpoint=endpoint,
            access_key_id="known",
            secret_access_key="s",
            client_options={"allow_http": True},
        )

    def call(self, method, path, data=None):
        request = urllib.request.Request(
            f"{self.endpoint}/{path}", data=data, method=method, headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.read()

    def put(self, key, data):
        obstore.put(self.store, key, data)


@pytest.fixture(autouse=True)
def _no_second_requests(monkeypatch):
    monkeypatch.setattr(_fetch, "HEDGED_SHARE", 0.0)  # nor on a busy machine


@pytest.fixture(scope="module")
def server():
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_remote, "PAUSES_S", (0.001,) * 6)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3 = S3(server)
    yield s3
    s3.call("POST", "moto-api/reset")


def tar_of(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def content_of(number):
    return bytes([number % 256]) * (1000 + number)


def shards(s3, count=3, each=4):
    for shard in range(count):
        numbers = range(shard * each, (shard + 1) * each)
        s3.put(f"train/{shard:04}.tar", tar_of(*((f"{number}.bin", content_of(number)) for number in numbers)))
    return count * each


def read(ds, executor, **options):
    with ds.map(len_and_first).loader(executor, workers=2 if executor != "inline" else "auto", **options) as loader:
        return [(int(size), int(first)) for size, first in loader]


def len_and_first(element):
    return np.int64(len(element["bin"])), np.int64(element["bin"][0])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("pattern", ["*", "[0-9]*", "*?"])
def test_files_of_a_pattern_are_read_on_each_executor(s3, executor, pattern):
    if executor == "processes" and pattern != "*":
        pytest.skip("The pattern makes no difference to workers.")
    count = shards(s3)
    ds = ps.from_tar(f"s3://bucket/train/{pattern}.tar")
    assert read(ds, executor) == [(1000 + number, number) for number in range(count)]


def test_repacked_objects_are_read_from_the_store(s3):
    count = shards(s3)
    names = ps.repack(ps.from_tar("s3://bucket/train/*.tar").shuffle(seed=1), "s3://bucket/new", shard_nbytes=5000)
    assert len(names) > 1
    assert names[0] == "s3://bucket/new/000000.tar"
    ds = ps.from_tar("s3://bucket/new/*.tar")
    assert sorted(read(ds, "threads")) == [(1000 + number, number) for number in range(count)]
    with pytest.raises(ps.ArgumentError, match="s3://bucket/new holds tar files"):
        ps.repack(ds, "s3://bucket/new")


def test_windows_are_announced_whole(s3, monkeypatch):
    shards(s3, count=2, each=100)
    many, made = ps.from_tar("s3://bucket/train/*.tar"), []
    fetch = _store.ObjectFile.fetch
    monkeypatch.setattr(_store.ObjectFile, "fetch", lambda *given: made.append(given[1:]) or fetch(*given))
    with many.shuffle(seed=1, window=100).map(len_and_first).batch(4).loader("threads", workers=2) as loader:
        sizes = np.concatenate([batch[0] for batch in loader])
    assert sorted(sizes.tolist()) == [1000 + number for number in range(200)]
    assert len(made) < 20


@pytest.mark.parametrize("executor", EXECUTORS)
def test_report_counts_requests_and_bytes(s3, executor):
    count = shards(s3)
    ds = ps.from_tar("s3://bucket/train/*.tar").map(len_and_first)
    with ds.loader(executor, workers=2 if executor != "inline" else "auto") as loader:
        sizes = [int(size) for size, _ in loader]
        traffic = loader.report().traffic
    assert sum(sizes) == sum(1000 + number for number in range(count))
    assert sum(sizes) <= traffic.needed_nbytes <= 2 * sum(sizes)  # the next epoch may have begun
    assert 0 < traffic.requests <= 2 * count
    assert sum(sizes) / 2 < traffic.nbytes <= 3 * sum(sizes)
    assert traffic.request_s > 0


@pytest.mark.parametrize("executor", EXECUTORS)
def test_another_file_in_the_folder_changes_nothing(s3, executor):
    count = shards(s3)
    ds = ps.from_tar("s3://bucket/train/*.tar")
    s3.put("train/other", b"x")
    assert len(read(ds.shuffle(seed=1), executor)) == count


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["replaced", "cut", "deleted"])
def test_object_that_changes_while_it_is_read_is_an_error_that_names_it(s3, executor, kind):
    shards(s3)
    ds = ps.from_tar("s3://bucket/train/*.tar").map(len_and_first)
    with ds.loader(executor, workers=1 if executor != "inline" else "auto", prefetch=1, timeout_s=DEADLINE_S) as loader:
        assert len(loader) == 12
        before = bytes(obstore.get(s3.store, "train/0002.tar").bytes())
        if kind == "deleted":
            obstore.delete(s3.store, "train/0002.tar")
        else:
            s3.put("train/0002.tar", before[:2000] if kind == "cut" else before[::-1])
        what = "it is not there" if kind == "deleted" else "has changed since the dataset was made"
        with pytest.raises(ps.SourceError, match=rf"s3://bucket/train/0002\.tar.*{what}"):
            list(loader)


@pytest.mark.parametrize(("nbytes", "share"), [(100_000, 0.05), (500, 1.3)])
def test_index_of_a_tar_reads_heads(s3, monkeypatch, nbytes, share):
    members = [(f"{number}.bin", bytes(nbytes)) for number in range(30)]
    members[7:7] = [(f"{'long/' * 40}name.bin", bytes(nbytes))]
    data = tar_of(*members)
    s3.put("large.tar", data)
    fetched, original = [], _store.ObjectFile.fetch

    def fetch(self, start, stop):
        fetched.append(stop - start)
        return original(self, start, stop)

    monkeypatch.setattr(_store.ObjectFile, "fetch", fetch)
    ds = ps.from_tar("s3://bucket/large.tar")
    assert len(ds) == 31
    assert sum(fetched) <= share * len(data)
    assert len(fetched) < 100 * share + 60
    assert ds[7]["__key__"].startswith("long/")
    assert len(ds[30]["bin"]) == nbytes


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_of_a_npy_file_are_read(s3, tmp_path, executor):
    x, y = np.arange(600.0).reshape(100, 2, 3), np.arange(100, dtype=">i2")
    for name, array in (("x", x), ("y", y), ("z", np.asfortranarray(x)), ("empty", np.zeros((5, 0)))):
        np.save(tmp_path / name, array)
        s3.put(f"{name}.npy", (tmp_path / f"{name}.npy").read_bytes())
    ds = ps.from_npy({"x": "s3://bucket/x.npy", "y": "s3://bucket/y.npy"})
    np.testing.assert_array_equal(ds[99]["x"], x[99])
    order = [int(i) for i in ps.range(100).shuffle(seed=1)]
    with ds.shuffle(seed=1).batch(10).loader(executor) as loader:
        batches = list(loader)
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), x[order])
    np.testing.assert_array_equal(np.concatenate([batch["y"] for batch in batches]), y[order])
    assert ps.from_npy("s3://bucket/empty.npy").batch(5)[0].shape == (5, 0)
    with pytest.raises(ps.SourceError, match=r"s3://bucket/z\.npy is in Fortran order: a row is scattered"):
        ps.from_npy("s3://bucket/z.npy")
    s3.put("cut.npy", (tmp_path / "x.npy").read_bytes()[:-5])
    with pytest.raises(ps.SourceError, match=r"cut\.npy is truncated: shape \(100, 2, 3\)"):
        ps.from_npy("s3://bucket/cut.npy")


def test_image_files_are_read(s3):
    cv2 = pytest.importorskip("cv2")
    picture = np.arange(48, dtype="uint8").reshape(4, 4, 3)
    for number in range(5):
        s3.put(f"pictures/{number}.png", cv2.imencode(".png", picture + number)[1].tobytes())
    ds = ps.from_image_files("s3://bucket/pictures/*.png", image_size=(4, 4))
    with ds.batch(2).loader("threads") as loader:
        images = np.concatenate(list(loader))
    np.testing.assert_array_equal(images, [picture[..., ::-1] + number for number in range(5)])


@pytest.mark.parametrize("folder", ["s3://bucket/pets", "s3://bucket/pets/"])
def test_folder_of_images_is_that_of_this_machine(s3, tmp_path, folder):
    cv2 = pytest.importorskip("cv2")
    for number, name in enumerate(["dog/b.png", "dog/a/z.png", "cat/c.PNG", "cat/readme.txt", "beside.png"]):
        content = cv2.imencode(".png", np.full((4, 4, 3), number, np.uint8))[1].tobytes()
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        s3.put(f"pets/{name}", content)
        s3.put(f"petshop/{name}", content)
    for options in (
        {},
        {"class_names": ["dog", "cat"]},
        {"labels": None},
        {"validation_split": 0.4, "subset": "training"},
    ):
        made = [
            ps.image_dataset_from_directory(place, image_size=(4, 4), batch_size=2, seed=1, verbose=False, **options)
            for place in (folder, str(tmp_path))
        ]
        assert made[0].class_names == made[1].class_names
        for there, here in zip(*made, strict=True):
            for left, right in zip(there, here, strict=True) if isinstance(there, tuple) else [(there, here)]:
                np.testing.assert_array_equal(left, right)


def test_tables_and_records_are_read(s3, tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"x": np.arange(90.0)}), tmp_path / "t", row_group_size=10)
    ps.write_tfrecord(tmp_path / "r", [b"%d" % number for number in range(50)])
    for name in "tr":
        s3.put(name, (tmp_path / name).read_bytes())
    rows = ps.from_parquet("s3://bucket/t").shuffle(seed=1, window=20)
    assert sorted(float(row["x"]) for row in rows) == list(range(90))
    records = ps.from_tfrecord("s3://bucket/r")
    assert [record.tobytes() for record in records] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("kind", ["tar", "npy", "tfrecord", "parquet", "arrow", "images", "folder"])
def test_second_epoch_comes_from_the_disk_cache(s3, tmp_path, kind, monkeypatch):
    cache, made = ps.DiskCache(tmp_path / "kept", 10**8), tmp_path / "file"
    if kind == "tar":
        shards(s3)
        ds = ps.from_tar("s3://bucket/train/*.tar", cache=cache).map(len_and_first)
    elif kind == "npy":
        np.save(tmp_path / "x.npy", np.arange(6000.0).reshape(100, 60))
        s3.put("x.npy", (tmp_path / "x.npy").read_bytes())
        ds = ps.from_npy("s3://bucket/x.npy", cache=cache)
    elif kind == "tfrecord":
        ps.write_tfrecord(made, [b"%d" % number for number in range(50)])
        s3.put("r", made.read_bytes())
        ds = ps.from_tfrecord("s3://bucket/r", cache=cache)
    elif kind in ("parquet", "arrow"):
        pa = pytest.importorskip("pyarrow")
        table = pa.table({"x": np.arange(90.0)})
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, made, row_group_size=10)
        else:
            pytest.importorskip("pyarrow.feather").write_feather(table, made, chunksize=10)
        s3.put("t", made.read_bytes())
        ds = getattr(ps, f"from_{kind}")("s3://bucket/t", cache=cache)
    else:
        cv2 = pytest.importorskip("cv2")
        for number in range(4):
            image = np.full((4, 4, 3), number, np.uint8)
            s3.put(f"pets/{number % 2}/{number}.png", cv2.imencode(".png", image)[1].tobytes())
        if kind == "images":
            ds = ps.from_image_files("s3://bucket/pets/*/*.png", image_size=(4, 4), cache=cache)
        else:
            ds = ps.image_dataset_from_directory("s3://bucket/pets", image_size=(4, 4), batch_size=None, cache=cache)
    asked, original = [], obstore.get
    monkeypatch.setattr(obstore, "get", lambda *given, **options: asked.append(given) or original(*given, **options))
    epochs, folder = [], cache.open()
    for _ in range(2):
        with ds.loader("threads") as loader:
            epochs.append([str(element) for element in loader])
            ends_s = time.monotonic() + DEADLINE_S
            while folder._claimed:  # the threads of the fetcher store what arrived
                assert time.monotonic() < ends_s
                time.sleep(0.001)
        first, asked[:] = list(asked), []
        assert bool(first) == (len(epochs) == 1)
    assert epochs[0] == epochs[1]


def test_replaced_object_is_read_anew_in_spite_of_a_cache(s3, tmp_path):
    cache = ps.DiskCache(tmp_path, 10**8)
    shards(s3, count=1)
    old = ps.from_tar("s3://bucket/train/*.tar", cache=cache)
    read(old.take(2), "threads")
    s3.put("train/0000.tar", tar_of(*((f"{number}.bin", content_of(number + 7)) for number in range(4))))
    new = ps.from_tar("s3://bucket/train/*.tar", cache=cache)
    assert read(new, "threads") == [(1007 + number, 7 + number) for number in range(4)]


def test_missing_bucket_and_missing_object_are_named(s3):
    with pytest.raises(ps.SourceError, match=r"s3://bucket/none\.tar cannot be read: it is not there"):
        ps.from_tar("s3://bucket/none.tar")
    with pytest.raises(
        ps.SourceError, match=r"s3://nobucket/\*\.tar cannot be looked for: .*NoSuchBucket|is not there"
    ):
        ps.from_tar("s3://nobucket/*.tar")
    with pytest.raises(ps.SourceError, match=r"No file fits the pattern s3://bucket/none-\*"):
        ps.from_tar("s3://bucket/none-*")


def test_wrong_keys_are_named_and_not_shown(s3, monkeypatch):
    shards(s3)
    s3.call("POST", "moto-api/reset-auth", b"0")
    try:
        with pytest.raises(ps.SourceError, match=r"s3://bucket/train/0000\.tar cannot be read: .*403") as told:
            ps.from_tar("s3://bucket/train/0000.tar", storage_options={"secret_access_key": "hidden-secret"})
        assert "hidden" not in str(told.value)
        assert told.value.__cause__ is None or "hidden" not in str(told.value.__cause__)
    finally:
        s3.call("POST", "moto-api/reset-auth", b"inf")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_storage_options_reach_workers_and_no_text_or_pickle(s3, executor, monkeypatch):
    count = shards(s3)
    for name in ("AWS_ENDPOINT_URL", *KEYS):
        monkeypatch.delenv(name)
    options = {
        "endpoint": s3.endpoint, "access_key_id": "known", "secret_access_key": "hidden-secret", "region": "us-east-1",
    }  # fmt: skip
    ds = ps.from_tar("s3://bucket/train/*.tar", storage_options=options)
    assert len(read(ds, executor)) == count
    with ds.loader("inline") as loader:
        shown = [repr(ds), repr(ds._node), repr(loader.get_state()), str(loader.report())]
    assert not any("hidden" in text for text in shown)
    with pytest.raises(TypeError, match=r"storage_options= may hold keys, which do not belong into a pickle"):
        pickle.dumps(ds)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nonsense": "x"}, r"storage_options= of s3://bucket: .*nonsense.* those of obstore, such as 'region'"),
        ({"region": 3}, r"storage_options= of s3://bucket: "),
        (["x"], r"from_tar\(storage_options=\) is a dict of names and values, got"),
    ],
)
def test_wrong_options_are_refused(s3, options, said):
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError), match=said):
        ps.from_tar("s3://bucket/a.tar", storage_options=options)


def test_many_shards_are_listed_once_and_read_in_any_order(s3, monkeypatch):
    count = shards(s3, count=50, each=1)
    heads = []
    original = obstore.head
    monkeypatch.setattr(obstore, "head", lambda *given: heads.append(given) or original(*given))
    ds = ps.from_tar("s3://bucket/train/*.tar").shuffle(seed=1)
    assert len(read(ds, "threads")) == count
    assert not heads


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket", "it names no object"),
        ("s3://bucket/", "it names no object"),
        ("s3:///a", "Unable to recognise URL"),
    ],
)
def test_an_url_without_an_object_or_a_bucket_is_refused(s3, url, said):
    with pytest.raises(ps.SourceError, match=rf"{url} cannot be read: .*{said}[^\n]*$"):
        ps.from_tar(url)


def test_arrays_of_several_objects_follow_each_other(s3):
    for number, name in enumerate(("a.npy", "b.npy")):
        np.save(file := io.BytesIO(), np.arange(3) + 10 * number)
        s3.put(f"several/{name}", file.getvalue())
    assert list(ps.from_npy("s3://bucket/several/*.npy")) == [0, 1, 2, 10, 11, 12]


def test_marks_of_folders_are_no_files(s3):
    for key in ("marked/", "marked/train/", "marked/empty/"):  # as consoles of object stores make folders
        s3.call("PUT", f"bucket/{key}", b"")
    s3.put("marked/train/a.bin", b"a")
    s3.put("marked/nothing", b"")
    files = ps.from_files("s3://bucket/marked/**")
    assert [path.rpartition("/marked/")[2] for path in files.file_paths] == ["nothing", "train/a.bin"]


class Gated:
    """A remote file in memory that answers when it may, and counts."""

    def __init__(self, nbytes=1000, path="gated"):
        self.path, self.data, self.asked, self.errors = path, np.arange(nbytes).astype("uint8").tobytes(), [], []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def fetch(self, start, stop):
        self.begun.set()
        self.asked.append((start, stop))
        assert self.gate.wait(DEADLINE_S)
        if self.errors:
            raise self.errors.pop(0)
        return self.data[start:stop]


@pytest.fixture
def gated(monkeypatch):
    monkeypatch.setattr(_fetch, "FREE_GAP_NBYTES", 0)
    file = Gated()
    fetcher = _fetch.Fetcher(lambda number: file, 400)
    yield file, fetcher
    file.gate.set()
    fetcher.close()


def ranges(*spans):
    starts, sizes = np.array(spans, np.int64).T
    return np.zeros(len(spans), np.int64), starts, sizes


def got(fetcher, start, size):
    place = np.zeros(size, np.uint8)
    fetcher.read([(0, start, place)], RetryBudget())
    return place.tobytes()


def test_announced_ranges_are_joined_kept_within_their_memory_and_read_once(gated):
    file, fetcher = gated
    fetcher.announce(*ranges((0, 100), (120, 100), (400, 150), (800, 150)), 60.0)
    assert got(fetcher, 120, 100) == file.data[120:220]
    assert got(fetcher, 0, 100) == file.data[0:100]
    assert got(fetcher, 400, 150) == file.data[400:550]
    assert got(fetcher, 800, 150) == file.data[800:950]
    assert sorted(file.asked) == [(0, 220), (400, 550), (800, 950)]
    assert fetcher._held_nbytes == 0
    assert not fetcher._table


def test_what_does_not_fit_waits_until_something_is_read(gated):
    file, fetcher = gated
    fetcher.announce(*ranges((0, 300), (500, 300)), 60.0)
    assert file.begun.wait(DEADLINE_S)
    assert got(fetcher, 0, 150) == file.data[:150]
    assert file.asked == [(0, 300)]
    assert got(fetcher, 500, 300) == file.data[500:800]  # it is needed now, whatever is kept
    assert file.asked == [(0, 300), (500, 800)]


def test_announcements_that_nobody_reads_are_dropped(gated):
    file, fetcher = gated
    for start in range(0, 700, 100):
        fetcher.announce(*ranges((start, 50)), 60.0)
    assert got(fetcher, 600, 50) == file.data[600:650]
    with fetcher._lock:
        assert fetcher._held_nbytes <= 50 * _fetch.KEPT_ANNOUNCEMENTS
        assert {request.start for table in fetcher._table.values() for request in table} == {200, 300, 400, 500}


def test_ranges_across_requests_are_put_together(gated, monkeypatch):
    file, fetcher = gated
    monkeypatch.setattr(_fetch, "PART_NBYTES", 100)
    fetcher.announce(*ranges((50, 200)), 60.0)
    assert got(fetcher, 0, 1000) == file.data
    assert all(stop - start <= 100 for start, stop in file.asked)


def test_failed_request_is_an_error_and_is_asked_again_later(gated):
    file, fetcher = gated
    file.errors.append(_store.StoreError(403, "refused"))
    with pytest.raises(ps.SourceError, match="gated cannot be read at byte 0: refused"):
        got(fetcher, 0, 10)
    assert got(fetcher, 0, 10) == file.data[:10]


def test_busy_answers_lower_the_requests_under_way(gated, monkeypatch):
    file, fetcher = gated
    monkeypatch.setattr(_remote, "PAUSES_S", (0.0,) * 6)
    file.errors += [_store.StoreError(503, "slow down")] * 4
    assert got(fetcher, 0, 10) == file.data[:10]
    assert fetcher.busy_count == 4
    assert fetcher._limit == pytest.approx(_fetch.FIRST_CONNECTIONS * 0.9**4)
    assert got(fetcher, 10, 10) == file.data[10:20]
    assert fetcher._limit == pytest.approx(_fetch.FIRST_CONNECTIONS * 0.9**4 + 1)


def test_first_read_is_not_delayed_by_announced_requests(monkeypatch):
    monkeypatch.setattr(_fetch, "FREE_GAP_NBYTES", 0)
    file = Gated()
    fetcher = _fetch.Fetcher(lambda number: file)
    file.gate.clear()
    fetcher.announce(*ranges(*((start, 2) for start in range(0, 800, 10))), 60.0)
    assert fetcher._running == _fetch.FIRST_CONNECTIONS
    file.gate.set()
    assert got(fetcher, 0, 2) == file.data[0:2]
    assert got(fetcher, 790, 2) == file.data[790:792]
    for start in range(0, 800, 10):  # each answer allows one more
        got(fetcher, start, 2)
    assert _fetch.FIRST_CONNECTIONS + 80 <= fetcher._limit <= _fetch.CONNECTIONS
    fetcher.close()


def test_a_limit_of_memory_leaves_fewer_connections():
    assert _fetch.Fetcher(lambda number: Gated())._most_connections == _fetch.CONNECTIONS
    assert _fetch.Fetcher(lambda number: Gated(), 24 << 20)._most_connections == 48
    assert _fetch.Fetcher(lambda number: Gated(), 1 << 20)._most_connections == _fetch.FIRST_CONNECTIONS


def test_requests_of_earlier_batches_come_first(gated, monkeypatch):
    monkeypatch.setattr(_fetch, "FIRST_CONNECTIONS", 1)
    file = Gated()
    file.gate.clear()
    fetcher = _fetch.Fetcher(lambda number: file)
    fetcher.announce(*ranges((900, 10)), 60.0)
    assert file.begun.wait(DEADLINE_S)
    readers = []
    for batch, start in ((5, 500), (3, 300), (4, 400)):
        asker = RetryBudget(place=(0, batch))
        wanted = [(0, start, np.zeros(10, np.uint8))]
        readers.append(threading.Thread(target=fetcher.read, args=(wanted, asker)))
        readers[-1].start()
    while len(fetcher._urgent) < 3:
        time.sleep(0.001)
    file.gate.set()
    for reader in readers:
        reader.join(DEADLINE_S)
    fetcher.close()
    assert [start for start, _ in file.asked if start >= 300][:2] == [900, 300]
    assert fetcher._limit > 1


def test_bytes_under_way_begin_small(monkeypatch):
    monkeypatch.setattr(_fetch, "FIRST_NBYTES", 100)
    monkeypatch.setattr(_fetch, "FREE_GAP_NBYTES", 0)
    file = Gated()
    file.gate.clear()
    fetcher = _fetch.Fetcher(lambda number: file)
    fetcher.announce(*ranges(*((start, 60) for start in range(0, 1000, 100))), 60.0)
    assert fetcher._running == 1
    file.gate.set()
    assert got(fetcher, 900, 60) == file.data[900:960]
    fetcher.close()


def test_slow_request_is_made_twice(monkeypatch):
    monkeypatch.setattr(_fetch, "HEDGED_SHARE", 0.02)
    file = Gated()
    stuck, free = threading.Event(), file.gate
    original = file.fetch

    def fetch(start, stop):
        if start == 500 and not stuck.is_set():
            stuck.set()
            assert free.wait(DEADLINE_S)
        return original(start, stop)

    file.fetch = fetch
    fetcher = _fetch.Fetcher(lambda number: file)
    for start in range(100):
        got(fetcher, start, 1)
    free.clear()
    file.gate = threading.Event()
    file.gate.set()
    assert got(fetcher, 500, 10) == file.data[500:510]
    assert fetcher.hedge_count == 1
    free.set()
    fetcher.close()


def test_reader_leaves_when_its_unit_is_given_up(gated):
    file, fetcher = gated
    file.gate.clear()
    words = memoryview(bytearray(8)).cast("q")
    words[0] = 5
    with pytest.raises(UnwantedError):
        fetcher.read([(0, 0, np.zeros(10, np.uint8))], RetryBudget(words, 1))


def test_whole_files_of_unknown_size_are_kept_ahead_too(gated):
    file, fetcher = gated
    numbers = np.array([0, 1])
    fetcher.announce(numbers, np.zeros_like(numbers), np.full(2, _fetch.WHOLE), 60.0)
    spans = [(number, 0, _fetch.WHOLE) for number in (1, 0)]
    assert [bytes(parts[0][1]) for parts in fetcher.fetched(spans, RetryBudget())] == [file.data, file.data]
    assert len(file.asked) == 2
    assert _openfile.AHEAD_NBYTES == _fetch.AHEAD_NBYTES


@pytest.mark.parametrize("path", ["s3://bucket/train/0000.tar", "s3://bucket/train/*.tar"])
def test_inspect_describes_objects(s3, capsys, path):
    shards(s3, each=30)
    s3.put("other/readme", b"text")
    assert main(["inspect", path]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path} is {'3 .tar files' if '*' in path else 'a .tar file'}")
    assert f'ps.from_tar("{path}")' in said


def test_inspect_names_what_is_wrong_with_a_url(s3, capsys):
    s3.put("one/readme.md", b"text")
    assert main(["inspect", "s3://bucket/one/readme.md"]) == 1
    assert "begins with b'text'" in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", "s3://bucket/none/"]) == 1
    assert "s3://bucket/none/ cannot be read: it is not there" in capsys.readouterr().err
    assert main(["inspect", "s3://bucket/none.tar"]) == 1
    assert "s3://bucket/none.tar" in capsys.readouterr().err


@pytest.mark.parametrize("executor", EXECUTORS)
def test_image_that_is_replaced_is_an_error_that_names_it(s3, tmp_path, executor):
    cv2 = pytest.importorskip("cv2")
    for number in range(6):
        _, content = cv2.imencode(".png", np.full((8, 8, 3), number, np.uint8))
        s3.put(f"folder/a/{number}.png", content.tobytes())
    ds = ps.image_dataset_from_directory(
        "s3://bucket/folder", labels=None, image_size=(8, 8), batch_size=None, shuffle=False, verbose=False
    )
    with ds.loader(executor) as loader:
        assert len(list(loader)) == 6
        s3.put("folder/a/3.png", content.tobytes())
        epochs = itertools.chain.from_iterable(loader for _ in range(3))  # the next may have been fetched before
        with pytest.raises(ps.SourceError, match=r"s3://bucket/folder/a/3\.png has changed since the dataset was made"):
            list(epochs)


@pytest.mark.parametrize("kind", ["UnauthenticatedError", "PermissionDeniedError", "GenericError"])
def test_keys_that_are_set_after_a_refusal_count(kind, monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_store, "_needs_boto3", lambda given: False)

    def refused():
        raise getattr(obstore.exceptions, kind)("no: " + _store._METADATA[0] * (kind == "GenericError"))

    client = _store._place("s3://bucket/key", None)[0]
    assert _store._place("s3://bucket/other", None)[0] is client
    with pytest.raises(_store.StoreError):
        _store._asked(refused)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    assert _store._place("s3://bucket/key", None)[0] is not client


def test_a_variable_that_changes_counts_and_one_client_serves_while_none_does(monkeypatch):
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    first = _store._place("s3://bucket/key", None)[0]
    monkeypatch.setenv("UNRELATED", "1")
    assert _store._place("s3://bucket/other", None)[0] is first
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    assert _store._place("s3://bucket/key", None)[0] is not first
