import io
import logging
import os
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget, UnwantedError, reading_with, retry_budget
from penstock.files import _fetch, _openfile, _remote, _wholefiles
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Unit
from penstock.run import _choose as _choice
from penstock.run.pool._payload import pack, unpack
from tests.waits import DEADLINE_S

fsspec = pytest.importorskip("fsspec")
store = pytest.importorskip("obstore.store")
from tests.servers import WebFileSystem, serving  # noqa: E402

RECORDS = [b"%d " % number * 50 for number in range(60)]


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_remote, "PAUSES_S", (0.001,) * 6)
    # The rules of these tests count requests by their reads.
    monkeypatch.setattr(_openfile.Fetcher, "announce", lambda *_: None)
    fsspec.register_implementation("web", WebFileSystem, clobber=True)
    with serving() as server:
        ps.write_tfrecord(tmp_path / "records", RECORDS)
        server.files["records"] = (tmp_path / "records").read_bytes()
        yield server


def url_of(server, name="records", protocol="web"):
    return f"{protocol}://{server.address}/{name}"


def records(server):
    ds = ps.from_tfrecord(url_of(server))
    assert len(ds) == len(RECORDS)
    return ds


def first_byte(headers):
    return int(headers.get("Range", "bytes=0-")[6:].partition("-")[0])


def as_bytes(elements):
    return [element.tobytes() for element in elements]


@pytest.mark.parametrize(
    ("verdict", "executor"),
    [
        *((verdict, "threads") for verdict in (429, 503, "reset", "cut")),
        *((verdict, "inline") for verdict in (408, 500, 502, 504)),
    ],
)
def test_what_fails_for_a_moment_is_asked_for_again_and_counted(server, tmp_path, verdict, executor):
    ds = records(server)
    server.begin_with(lambda number, headers: verdict if number % 3 == 1 else None)
    with ds.loader(executor, on_error="replace", quarantine=tmp_path / "q") as loader:
        assert as_bytes(loader) == RECORDS
        report = loader.report()
    assert report.set_aside == 0
    assert 15 < report.repeats < 45  # every third of 60 and those themselves
    assert f" {report.repeats} requests were repeated after temporary failures of a server" in str(report)


@pytest.mark.parametrize(("verdict", "said"), [(400, "400"), (401, "401"), (403, "403"), (404, "404"), (416, "416")])
def test_what_fails_for_good_is_asked_for_once(server, verdict, said):
    ds = records(server)
    server.begin_with(lambda number, headers: verdict if headers["Range"] else None)
    with pytest.raises(ps.SourceError, match=rf"records cannot be read at byte 0: .*{said}") as told:
        ds[0]
    assert "tries" not in str(told.value)
    assert [method for method, _ in server.requests] == ["HEAD", "GET"]


def test_server_that_goes_on_failing_is_told_with_the_tries(server, caplog):
    ds = records(server)
    server.begin_with(lambda number, headers: 503 if headers["Range"] else None)
    with (
        caplog.at_level(logging.INFO, "penstock"),
        pytest.raises(ps.SourceError, match=r"records cannot be read at byte 0 after 7 tries in 0 s: HTTPError: .*503"),
    ):
        ds[0]
    assert len(server.requests) == 1 + 7
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING", "INFO", "INFO", "INFO"]
    assert "Service Unavailable. It is tried again in 0.0 s." in caplog.messages[0]


def test_looking_for_a_file_is_tried_again_too(server):
    server.begin_with(lambda number, headers: 503 if number < 2 else None)
    (file,) = _openfile.find("test", url_of(server))
    assert file.nbytes == len(server.files["records"])
    server.begin_with(lambda number, headers: "reset" if number < 2 else None)
    assert file.head(3) == server.files["records"][:3]
    server.begin_with(lambda number, headers: 500 if number < 3 else None)
    fetcher = fetcher_of(file)
    ((_, data),) = next(fetcher.fetched([(0, 0, _fetch.WHOLE)], retry_budget()))
    assert bytes(data) == server.files["records"]
    fetcher.close()


def test_file_that_has_changed_is_told_at_once(server):
    ds = records(server)
    server.answer_headers = {"ETag": '"2"'}
    server.begin_with(lambda number, headers: None)
    with pytest.raises(ps.SourceError, match=r"records has changed since the dataset was made"):
        ds[0]
    assert len(server.requests) == 1


def fetcher_of(file):
    return _fetch.Fetcher(lambda number: _remote.RemoteFile(file.url))


def test_of_several_ranges_those_that_failed_come_again(server):
    (file,) = _openfile.find("test", url_of(server))
    failed = set()

    def rule(number, headers):
        is_first = (at := first_byte(headers)) not in failed and at in (100, 300)
        failed.add(at)
        return 503 if is_first else None

    server.begin_with(rule)
    places = [np.zeros(10, np.uint8) for _ in range(4)]
    fetcher, asker = fetcher_of(file), RetryBudget()
    fetcher.read([(0, 100 * number, place) for number, place in enumerate(places)], asker)
    fetcher.close()
    content = server.files["records"]
    assert [place.tobytes() for place in places] == [content[at : at + 10] for at in (0, 100, 200, 300)]
    ranges = sorted(first_byte({"Range": wanted}) for _, wanted in server.requests)
    assert ranges == [0, 100, 100, 200, 300, 300]
    assert asker.repeat_count == 2


@pytest.mark.parametrize("announces", [True, False])
def test_what_is_announced_is_requested_by_the_process_that_reads_it(server, announces, monkeypatch):
    monkeypatch.undo()  # the rule of the other tests
    (file,) = _openfile.find("test", url_of(server))
    server.begin_with(lambda number, headers: None)
    fetcher, (offset, size) = fetcher_of(file), np.array([[100], [10]])
    with reading_with(RetryBudget(may_announce=announces)):
        fetcher.announce(np.zeros(1, np.int64), offset, size, 60.0)
    assert bool(fetcher._ahead or fetcher._under_way or fetcher.request_count) == announces
    place = np.zeros(10, np.uint8)
    fetcher.read([(0, 100, place)], RetryBudget())
    assert place.tobytes() == server.files["records"][100:110]
    assert fetcher.request_count == 1
    fetcher.close()


def test_a_loader_hears_of_the_failure_before_its_timeout(server, monkeypatch):
    monkeypatch.setattr(_remote, "PAUSES_S", (0.001, 10 * DEADLINE_S))
    ds = records(server)
    server.begin_with(lambda number, headers: 503 if headers["Range"] else None)
    with (
        ds.loader("threads", timeout_s=DEADLINE_S) as loader,
        pytest.raises(ps.SourceError, match=r"after 2 tries in 0 s:"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(("asked", "count"), [("0", 3), ("3600", 2), ("Wed, 21 Oct 2015 07:28:00 GMT", 3)])
def test_pause_that_a_server_asks_for_is_kept_or_too_long(server, asked, count):
    file = _remote.RemoteFile(url_of(server))
    server.answer_headers = {"Retry-After": asked}
    server.begin_with(lambda number, headers: {0: 503, 1: 429}.get(number))
    with reading_with(RetryBudget(limit_s=60)):
        if count == 3:
            file.read_into(0, memoryview(bytearray(10)))
        else:
            with pytest.raises(ps.SourceError, match=r"at byte 0: HTTPError"):
                file.read_into(0, memoryview(bytearray(10)))
            count = 1
    assert len(server.requests) == count


def test_the_pause_that_a_server_asks_for_has_a_limit_without_a_loader(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(RetryBudget, "pause", lambda self, seconds: pauses.append(seconds))
    file = _remote.RemoteFile(url_of(server))
    for asked, count in (("299", 1), ("301", 0), ("9" * 400, 0)):
        pauses.clear()
        server.answer_headers = {"Retry-After": asked}
        server.begin_with(lambda number, headers: {0: 503}.get(number))
        if count:
            file.read_into(0, memoryview(bytearray(10)))
        else:
            with pytest.raises(ps.SourceError, match=r"The server asks for a pause of .* s, which is not waited for"):
                file.read_into(0, memoryview(bytearray(10)))
        assert pauses == [299.0] * count


def other_range(first, last, size, shift=0, more=0, status=206, place=None):
    """Status, the range of an answer's body, and what the answer says about it."""
    return (
        status,
        first + shift,
        last + 1 + shift + more,
        place or f"bytes {first + shift}-{last + shift + more}/{size}",
    )


WRONG_RANGES = {
    "another": lambda first, last, size: other_range(first, last, size, shift=10),
    "longer": lambda first, last, size: other_range(first, last, size, more=10),
    "shorter": lambda first, last, size: other_range(first, last, size, more=-10),
    "from the start": lambda first, last, size: (206, 0, last + 1, f"bytes 0-{last}/{size}"),
    "without a range": lambda first, last, size: (206, first, last + 1, ""),
    "all": lambda first, last, size: (200, 0, size, ""),
    "others of the same number": lambda first, last, size: (200, 0, last + 1 - first, ""),
    "fewer than it says": lambda first, last, size: (206, first, last - 9, f"bytes {first}-{last}/{size}"),
    "more than it says": lambda first, last, size: (206, first, last + 11, f"bytes {first}-{last}/{size}"),
}


@pytest.mark.parametrize("way", ["obstore", "fsspec"])
@pytest.mark.parametrize("kind", WRONG_RANGES)
def test_an_answer_with_another_range_is_an_error(server, monkeypatch, way, kind):
    if way == "fsspec":
        monkeypatch.setitem(fsspec.config.conf, "http", {"block_size": 1 << 20})
    url = url_of(server, protocol="http")
    file = _remote.RemoteFile(url, _remote.facts_of(url, None, "its size"))
    place = bytearray(50)
    assert file.read_into(100, memoryview(place)) == 50
    assert bytes(place) == server.files["records"][100:150]
    server.answer_with = WRONG_RANGES[kind]
    with pytest.raises(ps.SourceError, match=r"records (does not come in parts|cannot be read at byte 100)"):
        file.read_into(100, memoryview(place))
    fetcher = _fetch.Fetcher(lambda number: file)
    with pytest.raises(ps.SourceError, match=r"records (does not come in parts|cannot be read at byte 100)"):
        fetcher.read([(0, 100, np.zeros(50, np.uint8))], RetryBudget())
    fetcher.close()


@pytest.mark.parametrize("way", ["obstore", "fsspec"])
def test_an_answer_that_ends_with_its_file_is_right(server, monkeypatch, way):
    if way == "fsspec":
        monkeypatch.setitem(fsspec.config.conf, "http", {"block_size": 1 << 20})
    url, content = url_of(server, protocol="http"), server.files["records"]
    for state in (None, _remote.facts_of(url, None, "its size")):
        place = bytearray(50)
        assert _remote.RemoteFile(url, state).read_into(len(content) - 20, memoryview(place)) == 20
        assert bytes(place[:20]) == content[-20:]


NAMES = {  # in an URL, and in the request for it
    "a b": "a%20b", "a%20b": "a%20b", "100%": "100%25", "%C3%BC": "%C3%BC", "%e6%97%a5": "%E6%97%A5",
    "\u00fc": "%C3%BC", "a%23b": "a%23b", "a%2Fb": "a%2Fb", "a%2Bb": "a%2Bb", "a+b": "a+b", "%FF": "%FF",
    "a//b": "a//b", "a[1]": "a[1]",
}  # fmt: skip


def test_a_server_is_asked_for_the_name_in_the_url(server):
    server.files |= {name: name.encode() for name in NAMES.values()}
    ds = ps.from_files([url_of(server, name, "http") for name in NAMES])
    assert [element["bytes"].tobytes().decode() for element in ds] == list(NAMES.values())


class Shelves(fsspec.AbstractFileSystem):
    """`shelves://top`: a tree whose listings fail by a table. fsspec's own `glob` leaves out folders that fail."""

    protocol = "shelves"
    cachable = False
    errors = ()

    def ls(self, path, detail=True, **options):
        if path == "top/b" and self.errors:
            raise self.errors.pop()
        folders = {"top": ["a", "b", "c.txt"], "top/a": ["1.txt", "1.bin"], "top/b": ["deep", "2.txt"]}
        folders |= {"top/b/deep": ["3.txt"]}
        if path not in folders:
            raise FileNotFoundError(path)
        return [
            {"name": f"{path}/{name}", "size": 1, "type": "file" if "." in name else "directory"}
            for name in folders[path]
        ]

    def info(self, path, **options):
        if "*" in path:
            raise FileNotFoundError(path)
        return {"name": path, "size": 1, "type": "file", "ETag": "1"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("*/*.txt", ["a/1.txt", "b/2.txt"]), ("**/*.txt", ["a/1.txt", "b/2.txt", "b/deep/3.txt", "c.txt"]), ("no/*", [])],
)
def test_a_folder_whose_listing_fails_is_not_left_out(server, monkeypatch, pattern, names):
    fsspec.register_implementation("shelves", Shelves, clobber=True)
    url = f"shelves://top/{pattern}"
    if not names:
        with pytest.raises(ps.SourceError, match=r"No file fits the pattern shelves://top/no/\*"):
            ps.from_files(url)
        return
    monkeypatch.setattr(Shelves, "errors", [ConnectionResetError("for a moment")])
    assert [path.removeprefix("shelves://top/") for path in ps.from_files(url).file_paths] == names
    monkeypatch.setattr(Shelves, "errors", [PermissionError("not for you")])
    with pytest.raises(ps.SourceError, match=r"shelves://top/.* cannot be looked for: PermissionError: not for you"):
        ps.from_files(url)


def test_a_refused_method_is_not_a_missing_file(server):
    server.rule = lambda number, headers: 405
    with pytest.raises(ps.SourceError, match=r"records cannot be read: Object.*405 Method Not Allowed") as caught:
        ps.from_files([url_of(server, protocol="http")])
    assert "not there" not in str(caught.value)


def test_an_answer_may_take_long_as_long_as_bytes_come(server, monkeypatch):
    given, from_url = [], store.from_url
    monkeypatch.setattr(store, "from_url", lambda *a, **b: given.append(b["client_options"]) or from_url(*a, **b))
    for options, limits in ((None, {"read_timeout": "30s", "timeout": "15m"}), ({"timeout": "9s"}, {"timeout": "9s"})):
        storage_options = None if options is None else {"client_options": options}
        ps.from_files([url_of(server, protocol="http")], storage_options=storage_options)
        assert limits.items() <= given.pop().items()
    monkeypatch.setattr("obstore.put", lambda *_: None)
    monkeypatch.setattr(_remote, "matches", lambda *_: [])
    ps.repack(ps.from_arrays({"txt": [b"one"]}), "s3://bucket/a", storage_options={"skip_signature": True})
    assert given.pop()["read_timeout"] == "15m"


def test_a_late_answer_is_said_to_be_late(server, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(_remote, "PAUSES_S", ())
    ds = ps.from_tfrecord(url_of(server, protocol="http"), storage_options={"client_options": {"read_timeout": "50ms"}})
    server.rule = lambda number, headers: gate.wait(DEADLINE_S) and None
    with pytest.raises(ps.SourceError, match=r"records cannot be read at byte .*: it timed out\.$"):
        ds[0]
    gate.set()


@pytest.fixture
def pausing(monkeypatch):
    """Pauses are endless; set when one begins."""
    begun, original = threading.Event(), RetryBudget.pause
    monkeypatch.setattr(_remote, "PAUSES_S", (1e6,))
    monkeypatch.setattr(RetryBudget, "pause", lambda self, seconds: begun.set() or original(self, seconds))
    return begun


@pytest.mark.parametrize("how", ["close", "drop", "seek"])
@pytest.mark.parametrize(("is_stream", "well_until"), [(False, 500), (True, 2000)])
def test_pause_ends_when_nobody_wants_the_unit_any_more(server, pausing, how, is_stream, well_until):
    ds = records(server)
    if is_stream:
        ds = ds.filter(lambda element: True)
    before = set(threading.enumerate())
    loader = ds.loader("threads", workers=1, timeout_s=1e9)
    server.begin_with(lambda number, headers: 503 if first_byte(headers) > well_until else None)
    iterator = iter(loader)
    assert next(iterator).tobytes() == RECORDS[0]
    assert pausing.wait(DEADLINE_S)
    workers = [each for each in set(threading.enumerate()) - before if each.name.startswith("penstock-")]
    if how == "close":
        loader.close()
    elif how == "seek":
        server.begin_with(lambda number, headers: None)
        assert as_bytes(loader) == RECORDS  # by the one worker, in the next epoch
        loader.close()
    del loader, iterator, ds
    for thread in workers:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_pause_inline_ends_with_its_loader(server, pausing):
    loader = records(server).loader("inline", timeout_s=1e9)
    server.begin_with(lambda number, headers: 503 if headers["Range"] else None)
    thread = threading.Thread(target=lambda: pausing.wait(DEADLINE_S) and loader.close())
    thread.start()
    with pytest.raises(ps.LoaderError, match=r"This loader is closed"):
        next(iter(loader))
    thread.join()


@pytest.mark.parametrize("is_main", [False, True])
def test_files_that_are_looked_at_together_end_together(is_main, monkeypatch):
    begun, ended = threading.Event(), []

    def look(name):
        if name == "fails":
            assert begun.wait(DEADLINE_S)
            raise KeyboardInterrupt if is_main else ps.SourceError("It is gone.")
        begun.set()
        try:
            retry_budget().pause(1e6)
        except UnwantedError:
            ended.append(name)
            raise

    with pytest.raises(KeyboardInterrupt if is_main else ps.SourceError):
        _openfile.for_each(["fails", "waits"], look)
    assert ended == ["waits"]
    assert _openfile.for_each([3, 1, 2], lambda number: number + 1) == [4, 2, 3]


def in_zip(path, name, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return f"zip://{name}::file://{path}"


def tar_of(*texts):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return file.getvalue()


def test_files_of_one_name_in_several_file_systems_are_not_taken_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [[b"a0", b"a1"], [b"b0", b"b1"]]
    urls = [in_zip(tmp_path / f"{number}.zip", "s.tar", tar_of(*part)) for number, part in enumerate(texts)]
    (batch,) = ps.from_tar(urls).padded_batch(4)
    assert as_bytes(batch["txt"]) == [b"a0", b"a1", b"b0", b"b1"]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: ps.write_tfrecord("s3://bucket/a", [b""]), r"write_tfrecord\(path\): 's3://bucket/a'"),
        (lambda: ps.from_tfrecord("a", cache_dir="s3://bucket"), r"from_tfrecord\(cache_dir\): 's3://bucket'"),
        (lambda: ps.from_tar("a", cache_dir="s3://bucket"), r"from_tar\(cache_dir\): 's3://bucket'"),
    ],
)
def test_nothing_is_written_to_an_url(tmp_path, monkeypatch, call, what):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps.ArgumentError, match=rf"{what} is an URL, and files are written on this machine"):
        call()
    assert os.listdir() == []


# What other processes know of fsspec.


def in_memory(tmp_path):
    fsspec.filesystem("memory").pipe("/of_test_remote/records", (tmp_path / "records").read_bytes())
    return ps.from_tfrecord("memory://of_test_remote/records")


def test_what_lies_in_memory_stays_on_threads(server, tmp_path):
    ds = in_memory(tmp_path).map(len)
    with ds.loader() as loader:
        assert list(loader) == [len(record) for record in RECORDS]
        report = loader.report()
    assert report.executor == "threads"
    assert "It runs on threads, not on processes: from_tfrecord(records)" in report.note
    assert "what memory:// holds is in the memory of this process alone" in report.note
    with pytest.raises(ps.TravelError, match=r'what memory:// holds .* of this process alone\).* executor="threads"'):
        ds.loader(executor="processes")
    pictures = ps.from_image_files(["memory://pets/a.png"], image_size=(4, 4))
    with pytest.raises(ps.TravelError, match=r"what memory:// holds is in the memory of this process alone"):
        pictures.loader(executor="processes")


def test_zarr_array_in_memory_stays_on_threads():
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array("memory://arrays/a", shape=(4, 2), dtype="f4", overwrite=True)
    array[:] = 1
    ds = ps.from_arrays(array)
    assert ds._node.traits.is_remote
    with ds.map(lambda row: -row).batch(4).loader() as loader:
        assert loader.report().executor == "threads"
        np.testing.assert_array_equal(next(iter(loader)), -np.ones((4, 2)))


def test_row_of_a_zarr_array_is_asked_for_again(monkeypatch):
    zarr = pytest.importorskip("zarr")
    monkeypatch.setattr(_remote, "PAUSES_S", (0.001,) * 6)
    array = zarr.create_array("memory://arrays/b", shape=(4, 2), dtype="f4", overwrite=True)
    array[:] = 1
    asked, original = [], type(array.store).get

    async def get(self, *args, **options):
        asked.append(args)
        if len(asked) == 1:
            raise ConnectionResetError("gone for a moment")
        return await original(self, *args, **options)

    # One worker: of several, the one at the next epoch's batch may be the one that is told to come again.
    with ps.from_arrays(array).batch(4).loader("threads", workers=1) as loader:
        monkeypatch.setattr(type(array.store), "get", get)
        np.testing.assert_array_equal(next(iter(loader)), np.ones((4, 2)))
        assert loader.report().repeats == 1


def test_file_system_of_the_program_stays_on_threads(server):
    with pytest.raises(ps.TravelError, match=r"WebFileSystem, which this program registered for web://, is no install"):
        records(server).loader(executor="processes")


def test_what_a_program_set_of_fsspec_travels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ps.write_tfrecord(tmp_path / "records", RECORDS)
    urls = [in_zip(tmp_path / f"{part}.zip", "records", (tmp_path / "records").read_bytes()) for part in "ab"]
    monkeypatch.setattr(fsspec.config, "conf", {"zip": {"allowZip64": False}, "s3": {"secret": "of another"}})
    node = ps.from_tfrecord(urls)._node
    payload = pack(node, node)
    assert b"of another" not in payload.data
    monkeypatch.setattr(fsspec.config, "conf", {"file": {"auto_mkdir": True}})
    there = unpack(payload.data, [])
    assert fsspec.config.conf == {"zip": {"allowZip64": False}}
    assert there.data.files == node.data.files


@pytest.fixture
def http(server):
    """That of fsspec, which is installed, so that worker processes know it too."""
    pytest.importorskip("aiohttp")
    yield server
    fsspec.get_filesystem_class("http").clear_instance_cache()


@pytest.mark.slow
def test_worker_processes_ask_again_with_the_options_of_the_program(http, monkeypatch):
    monkeypatch.setattr(fsspec.config, "conf", {"http": {"headers": {"X-Key": "k"}}})
    failed = []

    def rule(number, headers):
        if headers["X-Key"] != "k":
            return 403
        if first_byte(headers) in (0, 116) or first_byte(headers) in failed:
            return None
        failed.append(first_byte(headers))
        return 503 if len(failed) in (3, 5) else None

    http.begin_with(rule)
    ds = ps.from_tfrecord(url_of(http, protocol="http"))
    with ds.loader("processes", workers=1) as loader:
        assert as_bytes(loader) == RECORDS
        assert loader.report().repeats == 2


@pytest.mark.slow
def test_pause_in_a_worker_process_ends_with_its_loader(http):
    ds = ps.from_tfrecord(url_of(http, protocol="http"))
    failed = threading.Event()
    with ds.loader("processes", workers=1) as loader:
        http.begin_with(lambda number, headers: (failed.set() or 503) if first_byte(headers) > 500 else None)
        next(iter(loader))
        pids = loader._delivery.pids()
        assert failed.wait(DEADLINE_S)
        began = time.monotonic()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert time.monotonic() - began < 20  # and not the half minute of all pauses


# A server that takes long to answer: few requests, and many at once.


@pytest.mark.parametrize(("row_s", "count"), [(0.0, 1), (0.001, 1), (0.02, 2), (0.1, 4), (10.0, 4)])
def test_batch_of_a_server_is_shared_where_its_functions_take_long(server, row_s, count):
    ds = records(server).map(len, element_spec=ps.ArraySpec((), "int64")).batch(20)
    for node in (ds._node, ds.shuffle(seed=1)._node):
        units = ParallelProgram(node).cut(Unit(0, 0, 0, 1, slot=0, generation=1), 4, row_s)
        assert len(units) == count


def test_what_a_server_took_is_not_what_a_row_takes(server, monkeypatch):
    def read_late(self, wanted, asker, spans=None):
        asker.waited_s += 3600.0  # as if it had
        return original(self, wanted, asker, spans)

    original = _fetch.Fetcher.read
    monkeypatch.setattr(_fetch.Fetcher, "read", read_late)
    with records(server).map(len).batch(20).loader("threads", workers=1) as loader:
        list(loader)
        assert loader._delivery.ring.header[-1] == 0


class Distant(ps.Source):
    """Waits for a server at each read."""

    element_spec = ps.ArraySpec((), np.dtype(np.int64))
    is_remote = True

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


def test_more_threads_than_cpus_wait_for_a_server_that_is_not_asked_ahead(server, monkeypatch):
    monkeypatch.setattr(_choice, "usable_cpu_count", lambda: 2)
    records_ = records(server)
    waits = ps.from_source(Distant())
    for ds, workers, count in ((records_, "auto", 2), (waits, "auto", 8), (waits, 3, 3), (ps.range(5), "auto", 2)):
        with ds.loader("threads", workers=workers) as loader:
            assert loader.report().workers == count


def test_pictures_of_a_unit_are_fetched_at_once(server, monkeypatch):
    pytest.importorskip("cv2")
    import cv2

    pictures = [np.full((4, 4, 3), number, np.uint8) for number in range(5)]
    for number, picture in enumerate(pictures):
        server.files[f"{number}.png"] = cv2.imencode(".png", picture)[1].tobytes()
    monkeypatch.setattr(_wholefiles, "_FETCHED_COUNT", 3)
    ds = ps.from_image_files([url_of(server, f"{number}.png") for number in range(5)], image_size=(4, 4))
    server.begin_with(lambda number, headers: 503 if number == 1 else None)
    np.testing.assert_array_equal(ds.batch(5)[0], pictures)
    assert len(server.requests) == 5 + 1


def test_of_files_whose_index_is_kept_nothing_is_read(server):
    records(server)
    server.begin_with(lambda number, headers: None)
    records(server)
    assert {wanted for _, wanted in server.requests} == {""}


def test_a_row_group_is_one_request(server, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({name: np.arange(90.0) for name in "abc"}), tmp_path / "t", row_group_size=10)
    server.files["t"] = (tmp_path / "t").read_bytes()
    ds = ps.from_parquet(url_of(server, "t"))
    assert len(ds) == 90
    server.begin_with(lambda number, headers: 503 if number == 3 else None)
    with ds.batch(10).loader("inline") as loader:
        assert np.concatenate([batch["b"] for batch in loader]).tolist() == list(range(90))
    # It is looked at once, and its footer is read; the request that failed is made again.
    assert len([each for each in server.requests if each[0] == "HEAD"]) == 1
    assert len(server.requests) <= 1 + 2 + 9 + 1


def test_files_of_the_hub_of_hugging_face_are_found_and_read_as_others(monkeypatch, tmp_path):
    """A file system in memory stands for that of `huggingface_hub`, which fsspec finds by the protocol."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.registry import _registry

    class Hub(MemoryFileSystem):
        protocol = "hf"
        store = {}  # noqa: RUF012  # as in the base class
        pseudo_dirs = [""]  # noqa: RUF012

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix("hf:/"))

    monkeypatch.setitem(_registry, "hf", Hub)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hub = fsspec.filesystem("hf", skip_instance_cache=True)
    for number in range(3):
        hub.pipe(f"/datasets/me/words/{number}.txt", b"%d\n" % number)
    url = "hf://datasets/me/words/{0..2}.txt"
    assert [each["bytes"].tobytes() for each in ps.from_files(url)] == [b"0\n", b"1\n", b"2\n"]
    assert list(ps.from_text("hf://datasets/me/words/*.txt")) == ["0", "1", "2"]
    with pytest.raises(ps.SourceError, match=r"hf://datasets/me/words/9\.txt cannot be read"):
        ps.from_files("hf://datasets/me/words/9.txt")
