"""The cache of remote files on disk: right bytes or none, one download, a limit, and nothing left behind."""

import errno
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

import penstock as ps
from penstock.base import _atomic
from penstock.base._errors import SourceError
from penstock.base._retries import RetryBudget, UnwantedError
from penstock.files import _blocks, _diskcache, _fetch
from penstock.files._blocks import Block, BlockReader
from penstock.plan._order import ReadOrder
from tests.waits import DEADLINE_S

LIMIT = 10**9


@dataclass(frozen=True)
class State:
    url: str = "s3://bucket/a.tar"
    nbytes: int = 1_000_000
    version: str = '"tag"'
    options: object = None


def content(state):
    return np.random.default_rng(len(state.url + state.version)).integers(0, 256, state.nbytes, np.uint8)


class File:
    """A remote file in memory, which counts."""

    def __init__(self, state, log):
        self.path, self.log, self.data = state.url, log, content(state).tobytes()

    def fetch(self, start, stop):
        self.log.append((self.path, start, stop))
        return self.data[start:stop]


class Remote:
    """Remote files, and readers of them through a cache."""

    def __init__(self, folder, *states, limit=LIMIT):
        self.cache, self.states, self.log, self.readers = ps.DiskCache(folder, limit), states or (State(),), [], []
        self.others = set()
        self.files = [File(state, self.log) for state in self.states]

    def reader(self):
        folder = self.cache.open()
        sizes = np.array([state.nbytes for state in self.states])
        made = BlockReader(self.cache, folder, self.states.__getitem__, sizes, self.files.__getitem__, 1 << 27)
        self.readers.append(made)
        return made

    def read(self, reader, *ranges, width=1):
        numbers, offsets, sizes = np.array(ranges, np.int64).T
        places = [np.zeros(size, np.uint8) for size in sizes.tolist()]
        wanted = list(zip(numbers.tolist(), offsets.tolist(), places, strict=True))
        reader.read(wanted, RetryBudget(), reader.spans(numbers, offsets, sizes, width))
        for number, offset, place in wanted:
            assert place.tobytes() == self.files[number].data[offset : offset + len(place)]
        self.settle(reader)

    def settle(self, reader):
        """Waits until the threads of the fetcher have stored what arrived."""
        ends_s = time.monotonic() + DEADLINE_S
        while self.cache.open()._claimed - self.others - {reader._name(block) for block in reader._requested}:
            assert time.monotonic() < ends_s
            time.sleep(0.001)

    def close(self):
        for reader in self.readers:
            reader.close()
        self.readers.clear()


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setattr(_fetch, "HEDGED_SHARE", 0.0)  # a busy machine must not make second requests
    monkeypatch.setattr(_blocks, "PATIENCE_S", 3600.0)
    made = []

    def make(*states, folder="cache", limit=LIMIT):
        made.append(Remote(tmp_path / folder, *states, limit=limit))
        return made[-1]

    yield make
    for each in made:
        each.close()


def kept(remote):
    root = remote.cache.open().path
    return sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.count("-") == 2
    )


RANGES = [(0, 100, 50), (0, 65_500, 100), (0, 200_000, 40_000), (0, 999_990, 10), (0, 300_000, 90_000)]


def test_second_read_needs_no_request(remote):
    here = remote()
    here.read(here.reader(), *RANGES)
    assert here.log
    here.log.clear()
    reader = here.reader()
    here.read(reader, *RANGES)
    here.read(reader, (0, 131_000, 50), (0, 210_000, 20_000))  # in a cell that is there, and in a range
    assert not [each for each in here.log if each[1] < 131_000]
    assert reader.hit_count >= len(RANGES)


@pytest.mark.parametrize("noted", [2**63 - 1, -(2**63)])
def test_a_damaged_count_of_bytes_counts_for_nothing(tmp_path, noted):
    path = _diskcache.CacheFolder(str(tmp_path)).path
    with open(f"{path}/state", "r+b") as file:
        file.write(noted.to_bytes(8, "little", signed=True))
    folder = _diskcache.CacheFolder(str(tmp_path))
    assert folder.reserve(10, 1000)
    assert folder.nbytes == 10


def test_ranges_are_blocks_of_their_own_and_small_ones_lie_in_cells(remote):
    here = remote()
    here.read(here.reader(), *RANGES)
    spans = sorted(tuple(map(int, os.path.basename(path).split("-")[1:])) for path in kept(here))
    cells = [(0, 65_536), (65_536, 131_072), (983_040, 1_000_000)]
    assert spans == sorted([*cells, (200_000, 240_000), (300_000, 390_000)])


def test_ranges_of_an_element_that_are_neighbours_are_one_block(remote):
    here = remote()
    here.read(here.reader(), (0, 150_000, 5), (0, 100_000, 49_000), (0, 250_000, 5), (0, 200_000, 49_000), width=2)
    spans = sorted(tuple(map(int, os.path.basename(path).split("-")[1:])) for path in kept(here))
    assert spans == [(100_000, 150_005), (200_000, 250_005)]


def test_large_ranges_are_cut_into_blocks(remote, monkeypatch):
    monkeypatch.setattr(_blocks, "PART_NBYTES", 40_000)
    here = remote()
    here.read(here.reader(), (0, 10_000, 100_000))
    here.log.clear()
    here.read(here.reader(), (0, 10_000, 100_000))
    assert len(kept(here)) == 3
    assert not here.log


def test_announced_blocks_are_stored_and_read(remote):
    here = remote()
    reader = here.reader()
    arrays = np.array(RANGES, np.int64).T
    reader.announce(*arrays, 60.0)
    here.read(reader, *RANGES)
    assert len(kept(here)) == 5
    here.log.clear()
    reader.announce(*arrays, 60.0)
    assert not here.log
    assert not reader._requested
    assert not reader._pending


def test_announcements_that_nobody_reads_give_their_claims_back(remote):
    here = remote()
    reader = here.reader()
    for at in range(0, 900_000, 50_000):
        reader.announce(np.array([0]), np.array([at]), np.array([40_000]), 60.0)
    assert len(reader._requested) <= _blocks._KEPT + 1
    folder = here.cache.open()
    here.close()
    ends_s = time.monotonic() + DEADLINE_S
    while folder._claimed:  # of answers that arrive now
        assert time.monotonic() < ends_s
        time.sleep(0.001)


def test_library_reads_by_itself(remote):
    here = remote()
    for _ in range(2):
        file = _blocks.CachedFile(here.reader(), 0, "s3://bucket/a.tar")
        place = bytearray(300_000)
        assert file.read_into(900_000, memoryview(place)) == 100_000
        assert bytes(place[:100_000]) == here.files[0].data[900_000:]
        assert file.read_into(1_000_000, memoryview(place)) == 0
    assert len(here.log) == 1


def test_other_versions_servers_and_folders_are_other_blocks(remote, monkeypatch):
    first = remote()
    first.read(first.reader(), *RANGES)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    other_server = remote()
    other_server.read(other_server.reader(), *RANGES)
    assert other_server.log
    options = _diskcache.StorageOptions({"client_kwargs": {"endpoint_url": "http://two"}, "key": "hidden"})
    for state in (
        replace(State(), version='"new"'),
        replace(State(), url="s3://other/a.tar"),
        replace(State(), options=options),
    ):
        other = remote(state)
        other.read(other.reader(), *RANGES)
        assert other.log
    assert not any("hidden" in path for path in kept(first))
    again = remote(replace(State(), options=_diskcache.StorageOptions({**options.values, "key": "another"})))
    again.read(again.reader(), *RANGES)
    assert not again.log  # keys may change


def test_object_without_a_version_is_not_kept(remote):
    here = remote(State(version=""))
    for _ in range(2):
        here.read(here.reader(), *RANGES)
        assert here.log
        here.log.clear()
    assert not kept(here)


def test_folder_of_another_user_is_not_used(tmp_path, caplog):
    cache = ps.DiskCache(tmp_path, LIMIT)
    folder = tmp_path / f"penstock-blocks-{os.geteuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert cache.open() is None
    assert "is not this user's alone (chmod 700). Everything is read over the network." in caplog.text


def test_folder_in_one_that_everybody_can_write_is_not_used(tmp_path, caplog):
    tmp_path.chmod(0o777)
    assert ps.DiskCache(tmp_path, LIMIT).open() is None
    assert f"cannot be used: everybody can write to {tmp_path}" in caplog.text


def test_a_folder_with_two_names_is_opened_once(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = ps.DiskCache(tmp_path / "real", LIMIT).open()
    assert ps.DiskCache(tmp_path / "link", LIMIT).open() is folder


def test_a_count_that_cannot_be_read_ends_the_writing(remote, monkeypatch, caplog):
    here = remote()
    folder, pread = here.cache.open(), os.pread

    def failing(descriptor, *rest):
        if descriptor == folder._fd:
            raise OSError(errno.ESTALE, "Stale file handle")
        return pread(descriptor, *rest)

    monkeypatch.setattr(_diskcache.os, "pread", failing)
    reader = here.reader()
    for _ in range(2):
        here.read(reader, *RANGES)
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"The cache in {folder.path} cannot be written: Stale file handle. "
            "What is in it is used; the rest is read over the network."
        )
    ]
    assert not kept(here)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_full_disk_is_read_through_with_one_warning(remote, monkeypatch, caplog, call):
    real = getattr(os, call)

    def full(path, *rest):
        if "/writing/" in os.fspath(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *rest)

    here = remote()
    here.read(here.reader(), RANGES[0])
    monkeypatch.setattr(_atomic.os, call, full)
    for _ in range(2):
        here.read(here.reader(), *RANGES)
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"The cache in {here.cache.open().path} cannot be written: No space left on device. "
            "What is in it is used; the rest is read over the network."
        )
    ]
    assert len(kept(here)) == 1
    folder = here.cache.open()
    assert not os.listdir(folder._writing)
    assert folder.nbytes == _diskcache.disk_nbytes(_diskcache.BlockName("", "", 0, 65_536))


def test_a_block_that_the_disk_cannot_give_is_fetched_again(remote, monkeypatch):
    here = remote()
    here.read(here.reader(), *RANGES)
    count = len(here.log)

    def failing(*given):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", failing)
        here.read(here.reader(), *RANGES)
    assert len(here.log) > count


@pytest.mark.parametrize("damage", ["cut", "longer", "empty"])
def test_block_of_another_size_is_fetched_again(remote, damage):
    here = remote()
    here.read(here.reader(), (0, 200_000, 40_000))
    (path,) = kept(here)
    with open(path, "r+b") as file:
        file.truncate({"cut": 40_010, "longer": 40_016, "empty": 0}[damage])
        if damage == "longer":
            file.seek(39_000)
            file.write(bytes(8))
            file.seek(40_008)
            file.write(b"not boot")  # as after a crash
    here.log.clear()
    here.read(here.reader(), (0, 200_000, 40_000), (0, 210_000, 40_000))
    here.read(here.reader(), (0, 200_000, 40_000))
    assert len([each for each in here.log if each[1] == 200_000]) == 1


def test_blocks_are_compared_once_after_the_machine_started_again(remote, monkeypatch):
    here = remote()
    here.read(here.reader(), *RANGES)
    here.close()
    compared = []
    original = _diskcache._checksum
    monkeypatch.setattr(_diskcache, "_checksum", lambda data: compared.append(1) or original(data))
    folder = here.cache.open()
    monkeypatch.setattr(folder, "_boot", b"next one")
    here.log.clear()
    for _ in range(2):
        here.read(here.reader(), *RANGES)
    assert not here.log
    assert len(compared) == 5


@pytest.mark.parametrize("nbytes", [99, 4096, 5000, 70_001])
def test_checksum_shows_what_changed_its_place(nbytes):
    data = np.random.default_rng(nbytes).integers(1, 256, nbytes, np.uint8)

    def swapped(unit, one, other):
        made = data.copy()
        parts = made[: nbytes // unit * unit].reshape(-1, unit)
        if len(parts):
            places = [one % len(parts), other % len(parts)]
            parts[places] = parts[places[::-1]]
        return made

    wrong = [swapped(unit, one, other) for unit in (1, 8, 64, 4096) for one, other in ((0, 1), (0, -1), (3, 300))]
    wrong += [np.roll(data, 8), np.roll(data, 4096), data[::-1], data[:-1], np.append(data, np.uint8(0)), data * 0]
    assert np.unique([int.from_bytes(_diskcache._checksum(data), "little"), 0]).size == 2
    for each in wrong:
        if each.tobytes() != data.tobytes():
            assert _diskcache._checksum(each.tobytes()) != _diskcache._checksum(data.tobytes())


def test_block_with_the_checksum_of_another_version_is_absent(remote, caplog):
    here = remote()
    here.read(here.reader(), (0, 200_000, 40_000))
    (path,) = kept(here)
    with open(path, "r+b") as file:
        file.seek(-16, os.SEEK_END)
        file.write(b"checksumnot boot")
    here.log.clear()
    for _ in range(2):
        here.read(here.reader(), (0, 200_000, 40_000))
    assert len(here.log) == 1
    assert not caplog.records


def test_unfinished_blocks_of_dead_processes_are_deleted_and_nothing_else(tmp_path):
    cache = ps.DiskCache(tmp_path, LIMIT)
    folder = cache.open()
    beside = [tmp_path / "mine.txt", tmp_path / f"penstock-blocks-{os.geteuid()}" / "mine.txt"]
    for name in ("0-5", "7-1", "other"):
        with open(os.path.join(folder._writing, name), "w"):
            pass
    for path in beside:
        path.write_text("mine")
    path = folder.path
    del folder
    assert cache.open() is not None
    assert os.listdir(os.path.join(path, "writing")) == ["other"]
    assert all(each.exists() for each in beside)


def test_limit_holds_and_blocks_of_an_unknown_order_stay(remote):
    here = remote(limit=250_000)
    reader = here.reader()
    for _ in range(2):
        here.read(reader, *((0, at, 50_000) for at in range(0, 1_000_000, 50_000)))
    assert len(kept(here)) == 4
    assert here.cache.open().nbytes <= 250_000
    assert reader.hit_count == 4


def hits_of(here, reader, ds, count, nbytes):
    """Reads epochs of a plan as a run does; returns the hits of each."""
    node = ds._node
    order, hits = ReadOrder(node, bottom(node).opens, node.length), []
    for epoch in range(count):
        before = reader.hit_count
        for index in range(node.length):
            elements, _ = order.elements(epoch, index, index + 1)
            here.read(reader, *((0, element * nbytes, nbytes) for element in elements.tolist()))
        hits.append(reader.hit_count - before)
    return hits


def bottom(node):
    return bottom(node.inputs[0]) if node.inputs else node


@pytest.mark.parametrize("order", ["shuffle", "window", "repeat"])
def test_half_of_the_elements_are_hits_if_half_of_them_fit(remote, order):
    plain = ps.range(200)
    ds = {
        "shuffle": plain.shuffle(seed=3).batch(8),
        "window": plain.shuffle(seed=3, window=50).batch(8),
        "repeat": plain.shuffle(seed=3).repeat(2).batch(8),
    }[order]
    block = 36_864
    here = remote(State(nbytes=200 * 35_000), limit=100 * block)
    hits = hits_of(here, here.reader(), ds, 3, 35_000)
    assert here.cache.open().nbytes <= 100 * block
    assert hits == ([0, 100, 100] if order != "repeat" else [100, 200, 200])


def test_neighbours_in_a_window_find_their_cells_in_a_full_cache(remote):
    ds = ps.range(2048).shuffle(seed=3, window=32).batch(8)  # a cell holds 8 elements
    here = remote(State(nbytes=2048 * 8192), limit=128 * 69_632)
    first = hits_of(here, here.reader(), ds, 1, 8192)
    here.close()
    second = hits_of(here, here.reader(), ds, 1, 8192)  # of another run, which finds the cache full
    assert here.cache.open().nbytes <= 128 * 69_632
    for hits in (*first, *second):
        assert hits >= 0.6 * 2048  # 0.94 with larger windows of cells; 0.44 if nothing was replaced


def test_data_that_no_run_reads_go_first(remote):
    limit = 10 * 53_248
    ranges = [(0, at, 50_000) for at in range(0, 1_000_000, 50_000)]
    old = remote(State(url="s3://old/a.tar"), limit=limit)
    old.read(old.reader(), *ranges)
    before = kept(old)
    assert len(before) == 10
    other = remote(limit=limit)

    def read():
        reader = other.reader()
        for each in ranges:
            other.read(reader, each)
        other.close()

    read()
    assert kept(old) == before
    old.close()
    read()
    assert len(set(kept(old)) - set(before)) == len(kept(old)) == 10


def test_block_that_another_downloads_is_waited_for(remote):
    here = remote()
    folder, reader = here.cache.open(), here.reader()
    name = reader._name(Block(0, 200_000, 240_000))
    assert folder.claim(name)
    thread = threading.Thread(target=here.read, args=(here.reader(), (0, 200_000, 40_000)))
    thread.start()
    folder.reserve(_diskcache.disk_nbytes(name), LIMIT)
    assert folder.store(name, here.files[0].data[200_000:240_000])
    folder.leave(name)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert not here.log


def test_block_whose_download_failed_elsewhere_is_downloaded(remote):
    here = remote()
    folder, reader = here.cache.open(), here.reader()
    name = reader._name(Block(0, 200_000, 240_000))
    assert folder.claim(name)
    thread = threading.Thread(target=here.read, args=(here.reader(), (0, 200_000, 40_000)))
    thread.start()
    folder.leave(name)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(here.log) == 1


def test_patience_with_a_download_elsewhere_ends(remote, monkeypatch):
    monkeypatch.setattr(_blocks, "PATIENCE_S", 0.01)
    here = remote()
    name = here.reader()._name(Block(0, 200_000, 240_000))
    assert here.cache.open().claim(name)
    here.others.add(name)
    here.read(here.reader(), (0, 200_000, 40_000))
    assert len(here.log) == 1
    here.cache.open().leave(name)


def test_reader_that_waits_for_another_leaves_when_its_unit_is_given_up(remote):
    here = remote()
    folder, reader = here.cache.open(), here.reader()
    assert folder.claim(reader._name(Block(0, 200_000, 240_000)))
    words = memoryview(bytearray(8)).cast("q")
    words[0] = 5
    with pytest.raises(UnwantedError):
        reader.read_blocks([(Block(0, 200_000, 240_000), 0, np.zeros(40_000, np.uint8))], RetryBudget(words, 1))


def test_error_of_a_server_reaches_the_reader_and_the_block_is_free(remote):
    here = remote()
    reader = here.reader()
    here.files[0].fetch = None
    with pytest.raises(ps.SourceError, match="TypeError"):
        here.read(reader, (0, 200_000, 40_000))
    assert not here.cache.open()._claimed
    assert not reader._requested
    del here.files[0].fetch
    here.read(reader, (0, 200_000, 40_000))


def test_threads_download_each_block_once(remote):
    here = remote()
    reader = here.reader()
    ranges = [(0, at, 50_000) for at in range(0, 1_000_000, 50_000)]
    threads = [threading.Thread(target=here.read, args=(reader, *ranges)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(kept(here)) == len(here.log) == 20
    assert not any(thread.is_alive() for thread in threads)


def test_closed_reader_says_so(remote):
    here = remote()
    reader = here.reader()
    here.close()
    with pytest.raises(SourceError, match="This source is closed"):
        here.read(reader, *RANGES)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ps.DiskCache("s3://a", 5), ps.ArgumentError, r"DiskCache\('s3://a'\) is a URL; the cache is a folder"),
        (lambda: ps.DiskCache(5, 5), ps.ArgumentTypeError, r"DiskCache\(\) needs the path of a folder, got"),
        (lambda: ps.DiskCache("a", "5 GB"), ps.ArgumentTypeError, r"nbytes=\) is an int, such as 100 \* 10\*\*9"),
        (lambda: ps.DiskCache("a", 0), ps.ArgumentError, r"DiskCache\(nbytes=0\): at least 1"),
        (
            lambda: ps.from_tar("s3://a/*.tar", cache="folder"),
            ps.ArgumentTypeError,
            r"from_tar\(cache=\) is a penstock\.DiskCache, such as DiskCache\('folder', nbytes=100 \* 10\*\*9\), got",
        ),
        (lambda: ps.from_npy("a.npy", cache=5), ps.ArgumentTypeError, r"from_npy\(cache=\) is a penstock\.DiskCache"),
    ],
)
def test_wrong_arguments_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_limit_below_the_data_is_said(tmp_path, caplog):
    cache = ps.DiskCache(tmp_path, 1000)
    cache.require_room(1000)
    assert not caplog.records
    cache.require_room(2000)
    assert "may take 1,000 bytes, and the data have 2,000. What comes first stays" in caplog.text


def test_order_counts_every_use_of_a_source():
    data = ps.range(10)
    ds = ps.zip((data, data.skip(0))).shuffle(seed=1).batch(5)
    order = ReadOrder(ds._node, bottom(ds._node).opens, 2)
    elements, batches = order.elements(0, 0, 2)
    assert Counter(elements.tolist()) == dict.fromkeys(range(10), 2)
    assert Counter(batches.astype(int).tolist()) == {0: 10, 1: 10}
