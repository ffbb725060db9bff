import errno
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock import native
from penstock.base._retries import retry_budget
from penstock.files import _fetch, _openfile, _remote

CONTENTS = [np.random.default_rng(n).bytes(3000 * n + 1) for n in range(3)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, content in enumerate(CONTENTS):
        (folder / str(number)).write_bytes(content)
    return _openfile.find("test", f"{folder}/*")


@st.composite
def ranges(draw):
    """Ranges of one file do not overlap, or are equal; so are those of records."""
    number = draw(st.integers(0, 2))
    cuts = sorted(draw(st.lists(st.integers(0, len(CONTENTS[number])), min_size=2, max_size=9)))
    k = draw(st.integers(0, len(cuts) - 2))
    return [(number, a, b - a) for a, b in itertools.pairwise(cuts)][k:]


@settings(max_examples=30)
@given(st.lists(ranges(), max_size=4), st.randoms(), st.sampled_from([1, 100, 5000]), st.sampled_from([0, 50, 4096]))
def test_ranges_are_what_the_files_hold(files, lists, random, chunk_nbytes, gap_nbytes):
    wanted = [each for part in lists for each in part]
    wanted += wanted[:3]
    random.shuffle(wanted)
    numbers, offsets, sizes = np.array(wanted, np.int64).reshape(-1, 3).T
    before = _openfile._CHUNK_NBYTES, _openfile._GAP_NBYTES
    _openfile._CHUNK_NBYTES, _openfile._GAP_NBYTES = chunk_nbytes, gap_nbytes
    try:
        opened, found = _openfile.OpenFiles(files), {}
        opened.announce(numbers, offsets, sizes)
        for members, data, starts in opened.chunks(numbers, offsets, sizes):
            for member, start in zip(members.tolist(), starts.tolist(), strict=True):
                assert member not in found
                found[member] = data[start : start + int(sizes[member])].tobytes()
            assert len(data) <= chunk_nbytes + max(size + gap_nbytes for _, _, size in wanted)
    finally:
        _openfile._CHUNK_NBYTES, _openfile._GAP_NBYTES = before
        opened.close()
    assert [found[k] for k in range(len(wanted))] == [CONTENTS[n][at : at + size] for n, at, size in wanted]


def test_neighbours_come_in_one_read(files, monkeypatch):
    reads = []
    opened = _openfile.OpenFiles(files)
    original = native.read_parts

    def read_parts(descriptor, offsets, memory, starts, sizes):
        reads.extend(zip(offsets.tolist(), sizes.tolist(), strict=True))
        return original(descriptor, offsets, memory, starts, sizes)

    monkeypatch.setattr(native, "read_parts", read_parts)
    order = np.random.default_rng(0).permutation(50)
    list(opened.chunks(np.full(50, 2), order * 100, np.full(50, 90)))
    assert reads == [(0, 4990)]


def test_large_range_does_not_keep_its_memory(files, monkeypatch):
    monkeypatch.setattr(_openfile, "_KEPT_NBYTES", 1000)
    monkeypatch.setattr(_openfile, "_CHUNK_NBYTES", 500)
    opened = _openfile.OpenFiles(files)
    for size in (300, 5000, 300):
        for _ in opened.chunks(np.array([2]), np.array([0]), np.array([size])):
            pass
        assert opened._memory._own.memory is None or len(opened._memory._own.memory) <= 1000


def test_read_beyond_the_end_names_file_and_byte(files):
    opened = _openfile.OpenFiles(files)
    with pytest.raises(
        ps.SourceError, match=r"1 ends at byte 3,001 now, in the middle of what is wanted; it had 3,001"
    ):
        list(opened.chunks(np.array([1]), np.array([2990]), np.array([100])))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_device_that_fails_is_named(tmp_path, monkeypatch, number):
    (tmp_path / "records").write_bytes(b"abc")
    (file,) = _openfile.known([str(tmp_path / "records")])

    def failing(*given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(ps.SourceError, match=rf"records cannot be read at byte 0: {os.strerror(number)}\. The disk"):
        file.head(3)


def test_order_is_that_given_and_of_names_within_a_pattern(tmp_path):
    for name in ("b1", "a2", "a10", "c"):
        (tmp_path / name).touch()
    (tmp_path / "a_folder").mkdir()
    found = _openfile.find("test", [f"{tmp_path}/c", f"{tmp_path}/a*", tmp_path / "b1"])
    assert [file.name for file in found] == ["c", "a10", "a2", "b1"]


def test_name_with_brackets_is_a_name_where_there_is_one(tmp_path, monkeypatch):
    (tmp_path / "a[1]").touch()
    monkeypatch.chdir(tmp_path)
    (found,) = _openfile.find("test", "a[1]")
    assert found.url == os.path.join(tmp_path, "a[1]")


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
def test_text_that_no_path_can_have_is_refused(path):
    for paths in (path, [path]):
        with pytest.raises(ps.ArgumentError, match=r"'a.*b' is no path of a file"):
            _openfile.find("from_x", paths)
        with pytest.raises(ps.ArgumentError, match=r"'a.*b' is no path of a file"):
            ps.from_files(paths)


def test_directory_is_refused_with_the_cure(tmp_path):
    (tmp_path / "[1]").mkdir()
    (tmp_path / "[1]" / "a").touch()
    with pytest.raises(
        ps.SourceError, match=r"\[1\] is a directory\. Name the files in it, as by the pattern"
    ) as caught:
        _openfile.find("from_x", tmp_path / "[1]")
    pattern = str(caught.value).split("'")[1]
    assert [file.name for file in _openfile.find("from_x", pattern)] == ["a"]


class ServerError(Exception):
    """No `OSError`, as those of aiohttp and botocore are none."""


@pytest.fixture
def server():
    """A file system that answers as servers do: `served.answer` makes, of a range, what it gives or raises."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Served(MemoryFileSystem):
        protocol = "served"
        cachable = False
        mark = '"first"'

        def info(self, path, **options):
            return {"name": path, "size": 1000, "type": "file", "ETag": Served.mark}

        def ukey(self, path):
            return path

        def cat_file(self, path, start=None, end=None, **options):
            return Served.answer(start, end)

    fsspec.register_implementation("served", Served, clobber=True)
    return Served


def whole(url):
    fetcher = _fetch.Fetcher(lambda number: _remote.RemoteFile(url))
    try:
        ((_, data),) = next(fetcher.fetched([(0, 0, _fetch.WHOLE)], retry_budget()))
        return bytes(data)
    finally:
        fetcher.close()


def read_in_a_range():
    files = _openfile.find("test", "served://there/file")
    return [bytes(chunk.data) for chunk in _openfile.OpenFiles(files).chunks(*(np.array([n]) for n in (0, 10, 20)))]


def read_as_a_stream():
    with _openfile.find("test", "served://there/file")[0].stream(100) as stream:
        stream.seek(10)
        return [stream.read(20)]


def read_as_a_whole():
    return [whole("served://there/file")[10:30]]


READS = [read_in_a_range, read_as_a_stream, read_as_a_whole]


@pytest.mark.parametrize("read", READS)
def test_what_a_server_gives_is_read(server, read):
    server.answer = lambda start, end: bytes(range(200))[start:end]
    assert read() == [bytes(range(10, 30))]


@pytest.mark.parametrize("read", READS)
def test_what_a_server_raises_names_the_file_and_what_it_said(server, read):
    def answer(start, end):
        raise ServerError("503, message='Service Unavailable'")

    server.answer = answer
    with pytest.raises(
        ps.SourceError, match=r"^served://there/file cannot be read.*: ServerError: 503, message"
    ) as told:
        read()
    assert isinstance(told.value.__cause__, ServerError)


@pytest.mark.parametrize("read", READS[:2])
def test_whole_file_in_place_of_a_part_is_refused_with_the_cure(server, read):
    server.answer = lambda start, end: bytes(1000)
    with pytest.raises(
        ps.SourceError, match=r"does not come in parts: \d+ bytes.*1,000 came.* Fetch it to this machine first"
    ):
        read()


def test_file_that_is_not_found_says_why(server, monkeypatch):
    def refused(self, path, **options):
        raise FileNotFoundError(path) from ServerError("403, message='Forbidden'")

    monkeypatch.setattr(server, "info", refused)
    with pytest.raises(ps.SourceError, match=r"cannot be read: FileNotFoundError: .*\(ServerError: 403, message='Forb"):
        _openfile.find("test", "served://there/file")


def test_file_that_a_worker_cannot_open_says_what_workers_do_not_know(server):
    def refused(self, path, **options):
        raise PermissionError("no key")

    (file,) = _openfile.find("test", "served://there/file")
    server.info = refused
    with pytest.raises(ps.SourceError, match=r"file cannot be opened: .* environment .* use executor='threads'\.$"):
        file.head(10)


def test_file_of_the_same_size_whose_mark_has_changed_is_another(server):
    server.answer = lambda start, end: bytes(1000)[start:end]
    (file,) = _openfile.find("test", "served://there/file")
    file.head(10)
    server.mark = '"second"'
    with pytest.raises(
        ps.SourceError, match=r"has changed since the dataset was made: 1,000 bytes then, 1,000 now, and"
    ):
        file.head(10)


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("a-{0..3}.tar", ["a-0.tar", "a-1.tar", "a-2.tar", "a-3.tar"]),
        ("{098..101}", ["098", "099", "100", "101"]),
        ("{0..10..2}{0..1}", ["{0..10..2}0", "{0..10..2}1"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{02..0}", ["02", "01", "00"]),
        ("s3://{a,b}/{00..01}*", ["s3://a/00*", "s3://a/01*", "s3://b/00*", "s3://b/01*"]),
        ("{,x}", ["", "x"]),
        ("{1}{..}{a..b}{}", ["{1}{..}{a..b}{}"]),
        ("{a..b,c}", ["a..b", "c"]),
        ("{1..2,3}", ["1..2", "3"]),
    ],
)
def test_braces_stand_for_several_paths(path, paths):
    assert list(_openfile.expanded(path)) == paths


def test_braces_are_files_in_the_given_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a-08", "a-09", "a-10", "{a,b}", "a"):
        (tmp_path / name).write_bytes(b"")
    assert [file.name for file in _openfile.find("test", "a-{08..10}")] == ["a-08", "a-09", "a-10"]
    assert [file.name for file in _openfile.find("test", ["a-{10..08}", "a"])] == ["a-10", "a-09", "a-08", "a"]
    assert [file.name for file in _openfile.find("test", "{a,b}")] == ["{a,b}"]
    with pytest.raises(ps.SourceError, match=r"/a-11 cannot be read: No such file"):
        _openfile.find("test", "a-{09..11}")
