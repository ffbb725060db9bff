"""A cache never delivers a wrong element, whatever happens to the processes that fill it.

`PENSTOCK_KILLS` is the number of processes to kill.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources import _cachefiles
from penstock.sources._cacheopen import OpenCacheFiles
from penstock.testing import assert_same

pytestmark = pytest.mark.faults

COUNT = 500
KILLS = int(os.environ.get("PENSTOCK_KILLS", "8"))


def element(x: Any) -> Any:
    """Fixed rows larger than a page, and what has no row; a function of the number alone."""
    number = int(x)
    rows = np.arange(number, number + 3000, dtype="int32")
    for _ in range(20):
        rows = rows * 31 + number
    return {"rows": rows.reshape(3, 1000), "words": "é" * (number % 50), "some": np.arange(number % 7)}


SPEC = {
    "rows": ps.ArraySpec((3, 1000), "int32"),
    "words": ps.ArraySpec((), "U"),
    "some": ps.ArraySpec((None,), "int64"),
}


def made(path: Any) -> ps.Dataset:
    return ps.range(COUNT).map(element, element_spec=SPEC).cache(path)


FILLER = """
import sys
import numpy as np
import penstock as ps
sys.path.insert(0, {folder!r})
from test_cache_kills import made

if __name__ == "__main__":
    path, executor, seed = sys.argv[1:]
    with made(path).shuffle(int(seed)).loader(executor=executor, workers=1 if executor == "inline" else 2) as loader:
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        for _ in loader:
            pass
"""


class Filler:
    """A process that fills a cache, in a session of its own."""

    def __init__(self, path: Path, executor: str, seed: int) -> None:
        script = FILLER.format(folder=str(Path(__file__).parent))
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), executor, str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def begin(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if self.process.stdout.readline() != b"ready\n":
            pytest.fail(self.process.stderr.read().decode())

    def kill(self) -> bool:
        """Kills it, and its workers; returns whether it was still at it."""
        was_running = self.process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        return was_running

    def end(self) -> None:
        _, said = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, said.decode()


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return [element(number) for number in range(COUNT)]


def held_and_right(path: Path, expected: list[Any]) -> int:
    """How many elements are there; compares each."""
    dataset = made(path)
    opened = dataset._node.opens.open()  # type: ignore[union-attr]
    held = np.flatnonzero(opened.look(np.arange(COUNT)))
    opened.close()
    for index in held.tolist():
        assert_same(dataset[index], expected[index])
    return len(held)


def test_killed_at_any_moment_no_wrong_element_is_read(
    tmp_path: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kills, round_, before = random.Random(7), 0, 0, 0
    while kills < KILLS:
        path = tmp_path / f"round {round_}"
        executor = rng.choice(["inline", "threads", "processes"])
        fillers = [Filler(path, executor, rng.randrange(10)) for _ in range(rng.choice([1, 1, 2]))]
        try:
            for filler in fillers:
                filler.begin()
            time.sleep(rng.random() * 0.25)  # the moment is random
        finally:
            kills += sum([filler.kill() for filler in fillers])
        held = held_and_right(path, expected)
        assert held >= before  # what was there stays
        before = held
        if rng.random() < 0.3:  # and so it does if the machine goes down after it, and nothing is believed
            with monkeypatch.context() as patch:
                patch.setattr(_cachefiles, "tag_of", lambda files, tag=1000 + kills: tag)
                assert held_and_right(path, expected) == held
        if held > 0.9 * COUNT:
            round_, before = round_ + 1, 0
    for element_, want in zip(made(path), expected, strict=True):
        assert_same(element_, want)


@pytest.mark.parametrize("executors", [("threads", "processes"), ("inline", "threads")], ids=str)
def test_two_processes_fill_at_once(executors: tuple[str, str], tmp_path: Path, expected: list[Any]) -> None:
    fillers = [Filler(tmp_path, executor, seed) for seed, executor in enumerate(executors)]
    for filler in fillers:
        filler.end()
    assert held_and_right(tmp_path, expected) == COUNT


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; needs the right to mount one."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_disk_that_fills_up_keeps_a_part(
    executor: Any, small_disk: Path, expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    kept = made(small_disk / "kept").shuffle(1).loader(executor=executor, workers=1 if executor == "inline" else 2)
    with kept as loader:
        for _ in range(2):
            seen = 0
            for got in loader:
                assert_same(got, expected[_number(got, expected)])
                seen += 1
            assert seen == COUNT
    held = held_and_right(small_disk / "kept", expected)
    assert 100 < held < 400  # of 12 kB each
    if executor != "processes":
        assert "cannot keep more elements: No space left on device" in caplog.text


def _number(got: Any, expected: list[Any]) -> int:
    """Which element it is."""
    if not hasattr(_number, "known"):
        _number.known = {want["rows"].tobytes(): number for number, want in enumerate(expected)}  # type: ignore[attr-defined]
    return int(_number.known[got["rows"].tobytes()])  # type: ignore[attr-defined]


@pytest.mark.parametrize("whole", [True, False], ids=["nothing", "a part"])
def test_writes_that_fail_in_the_middle_leave_no_wrong_element(
    whole: bool, tmp_path: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, pwrite = random.Random(3), os.pwrite

    def failing(descriptor: int, data: Any, offset: int) -> int:
        if rng.random() < 0.2:
            raise OSError(28, "No space left on device")
        if rng.random() < 0.3 and not whole:
            return pwrite(descriptor, data[: len(data) // 2 + 1], offset)
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", failing)
    for got, want in zip(made(tmp_path), expected, strict=True):
        assert_same(got, want)
    monkeypatch.undo()
    assert 0 < held_and_right(tmp_path, expected) < COUNT


def test_marks_whose_elements_never_reached_the_disk_are_found_out(
    tmp_path: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that goes down may have written the index and not the rows, or the rows in part, page by page."""
    list(made(tmp_path))
    (folder,) = tmp_path.iterdir()
    rng = random.Random(5)
    for name in ("0.npy", "rest.bin"):
        data = bytearray((folder / name).read_bytes())
        for page in range(1, len(data) // 4096):
            if rng.random() < 0.05:
                data[page * 4096 : (page + 1) * 4096] = bytes(4096)
        (folder / name).write_bytes(data)
    index = bytearray((folder / "index.npy").read_bytes())
    for _ in range(100):
        index[rng.randrange(256, len(index))] ^= 1 << rng.randrange(8)
    (folder / "index.npy").write_bytes(index)
    os.truncate(folder / "rest.bin", (folder / "rest.bin").stat().st_size * 3 // 4)
    monkeypatch.setattr(_cachefiles, "tag_of", lambda files: 12345)
    for _ in range(2):
        for got, want in zip(made(tmp_path), expected, strict=True):
            assert_same(got, want)
    opened: OpenCacheFiles = made(tmp_path)._node.opens.open()  # type: ignore[union-attr]
    assert opened.look(np.arange(COUNT)).all()
    opened.close()
