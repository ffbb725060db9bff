"""Files that change while they are read: an error that names the element, or the right bytes, and never a signal."""

import ctypes
import errno
import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from penstock.native import CopyError, conversion, copy
from tests.native.engines import ENGINES, MODULES, THREADED, Engine, open_engine
from tests.waits import DEADLINE_S

NBYTES = 1 << 18
MOMENTS = {"native": 200, "numpy": 5}  # the oracle shares no memory with the file

# For each kind: `mapped`, `row_nbytes` and `inner` of the source, and the types of a conversion.
ROWS = {
    "table": (True, 84, None, None),
    "small": (True, 2048, None, None),
    "small, read": (False, 2048, None, None),
    "large": (True, 60_000, None, None),
    "large, read": (False, 60_000, None, None),
    "divided": (True, 5 << 19, None, None),
    "divided, read": (False, 5 << 19, None, None),
    "strided": (True, 512, (2, (16, 16), (128, 8)), None),
    "strided, read": (False, 512, (2, (16, 16), (128, 8)), None),
    "converted": (True, 2048, None, ("u1", "f4")),
    "converted, read": (False, 2048, None, ("u1", "f4")),
}


class Rows:
    """A file of random bytes, an engine with two threads, and jobs that read random rows."""

    def __init__(self, engine, path, kind):
        self.mapped, self.row_nbytes, self.inner, types = ROWS[kind]
        self.path = path
        self.moments = MOMENTS[next(name for name, each in ENGINES.items() if isinstance(engine, each))]
        if self.row_nbytes > NBYTES:  # which takes ten times as long, and is hit more often
            self.moments //= 4
        self.nbytes = max(NBYTES, self.row_nbytes)
        self.content = np.random.default_rng(0).integers(1, 255, self.nbytes, np.uint8)
        self.stride = 2048 if self.inner else self.row_nbytes
        self.count = self.nbytes // self.stride
        self.code = conversion(*types) if types else None
        self.engine = engine
        self.open()
        self.expected = self.rows_in(self.content)
        if types:
            self.expected = self.expected.astype(types[1])
        self.job = 0

    def open(self):
        self.content.tofile(self.path)
        self.source = self.engine.file(
            self.path, 0, self.count, self.row_nbytes, self.stride, mapped=self.mapped, inner=self.inner
        )

    def rows_in(self, content):
        if not self.inner:
            return content[: self.count * self.stride].reshape(self.count, self.stride)
        item, shape, strides = self.inner
        assert item == 2
        return np.lib.stride_tricks.as_strided(content.view("u2"), (self.count, *shape), (self.stride, *strides))

    def submit(self, rng):
        batch_size = max(1, min(64, NBYTES // self.row_nbytes))
        rows = rng.integers(0, self.count, batch_size)
        out = np.zeros((batch_size, *self.expected.shape[1:]), self.expected.dtype)
        self.job += 1
        self.engine.submit(self.job, [(self.source, rows, out, None, self.code)])
        return self.job, rows, out

    def finish(self, job, errno=None):
        number, rows, out = job
        try:
            assert self.engine.wait(number, 30.0)
        except CopyError as caught:
            error = caught
        else:
            return out, self.expected[rows]
        assert error.source == self.path
        assert error.element in rows
        assert error.errno == errno
        assert 0 <= error.found_nbytes < error.expected_nbytes
        return None


@pytest.fixture(params=ENGINES)
def engine(request):
    with open_engine(request.param, 2) as engine:
        yield engine


def at_a_moment(rng, action):
    """Starts a thread that runs `action` after up to 0.3 ms."""
    count = int(rng.integers(0, 3000))

    def run():
        for _ in range(count):
            pass
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.faults
@pytest.mark.parametrize("kind", ROWS)
def test_truncated_files_are_errors(engine, kind, tmp_path):
    rows = Rows(engine, tmp_path / "data", kind)
    rng = np.random.default_rng(1)
    failed = 0
    with open(rows.path, "r+b", buffering=0) as file:
        for _ in range(rows.moments):
            length = int(rng.integers(0, rows.nbytes))
            thread = at_a_moment(rng, lambda length=length: file.truncate(length))
            results = [rows.finish(job) for job in [rows.submit(rng) for _ in range(3)]]
            thread.join()
            for result in results:
                failed += result is None
                if result is not None:
                    np.testing.assert_array_equal(*result)
            os.pwrite(file.fileno(), rows.content[length:].tobytes(), length)
    assert failed > 0 or rows.moments < 50


@pytest.mark.faults
@pytest.mark.parametrize("kind", ROWS)
def test_jobs_of_replaced_files_are_right_or_fail(engine, kind, tmp_path):
    rows = Rows(engine, tmp_path / "data", kind)
    rng = np.random.default_rng(1)
    for _ in range(rows.moments // 4):
        rows.open()
        (tmp_path / "new").write_bytes(b"\0" * 9)
        thread = at_a_moment(rng, lambda: os.replace(tmp_path / "new", rows.path))
        results = [rows.finish(job, errno.ESTALE) for job in [rows.submit(rng) for _ in range(2)]]
        thread.join()
        for result in results:
            if result is not None:
                np.testing.assert_array_equal(*result)
        assert rows.finish(rows.submit(rng), errno.ESTALE) is None


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="holes are punched by fallocate(2)")
@pytest.mark.parametrize("kind", ROWS)
def test_holes_are_zeros(engine, kind, tmp_path):
    rows = Rows(engine, tmp_path / "data", kind)
    rng = np.random.default_rng(1)
    punch = ctypes.CDLL(None, use_errno=True).fallocate
    punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    with open(rows.path, "r+b", buffering=0) as file:
        if punch(file.fileno(), 3, 0, 1) != 0:
            pytest.skip(f"this file system has no holes: {os.strerror(ctypes.get_errno())}")
        os.pwrite(file.fileno(), rows.content.tobytes(), 0)
        for _ in range(rows.moments):
            start, length = int(rng.integers(0, rows.nbytes)), int(rng.integers(1, rows.nbytes))
            thread = at_a_moment(rng, lambda start=start, length=length: punch(file.fileno(), 3, start, length))
            results = [rows.finish(job) for job in [rows.submit(rng) for _ in range(2)]]
            thread.join()
            for out, expected in results:
                assert ((out == expected) | (out == 0) | (out.itemsize == 2)).all()
            os.pwrite(file.fileno(), rows.content[start : start + length].tobytes(), start)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 4095, 4096, 9_999])
@pytest.mark.parametrize("width", [1000, 8, 1])
def test_short_files_name_the_element_and_the_bytes(engine, mapped, size, width, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(size))
    count = 10_000 // width
    source = engine.file(path, 0, count, width, mapped=mapped, name="the data")
    out = np.ones((count, width), np.uint8)
    engine.submit(1, [(source, np.arange(count), out, None, None)])
    with pytest.raises(CopyError, match="of the data is incomplete") as info:
        engine.wait(1)
    assert info.value.element == size // width
    assert (info.value.found_nbytes, info.value.expected_nbytes) == (size % width, width)
    complete = np.arange(size // width)
    engine.submit(2, [(source, complete, out, None, None)])
    assert engine.wait(2)


def test_sources_in_one_file_share_its_descriptor_and_mapping(tmp_path):
    if "native" not in ENGINES:
        pytest.skip("the extension is not built")
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))

    def state():
        with open("/proc/self/maps") as maps:
            mappings = sum(str(path) in line for line in maps)
        names = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(name) == str(path) for name in names), mappings

    before = state()
    with open_engine("native", 1) as engine, open(path, "rb") as file:
        sources = [engine.file(path, i, 10, 100, mapped=True) for i in range(5)]
        sources.append(engine.file(file.fileno(), 7, 10, 100, mapped=True))
        assert state() == (before[0] + 2, before[1] + 1)
        del sources
    assert state() == before


def test_windows_overlap(engine, tmp_path):
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(tmp_path / "data")
    for number, mapped in enumerate((True, False)):
        source = engine.file(tmp_path / "data", 2, 900, 65 * 2, 2, mapped=mapped)
        out = np.zeros((3, 65), np.int64)
        engine.submit(number, [(source, np.array([0, 899, 7]), out, None, conversion("u2", "i8"))])
        assert engine.wait(number)
        np.testing.assert_array_equal(out, np.array([[1], [900], [8]]) + np.arange(65))


def test_announced_rows_are_read(engine, tmp_path):
    path = tmp_path / "data"
    np.arange(1 << 20, dtype=np.uint8).tofile(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    source = engine.file(path, 0, 16, 1 << 16)
    for _ in range(100):
        engine.advise([source], np.arange(16)[::-1].copy())
    with pytest.raises(IndexError, match="element 16 is out of range"):
        engine.advise([source], np.array([3, 16]))
    out = np.zeros((16, 1 << 16), np.uint8)
    engine.submit(1, [(source, np.arange(16), out, None, None)])
    assert engine.wait(1)
    assert (out.reshape(-1) == np.fromfile(path, np.uint8)).all()


FOREIGN_FAULT = """
    import ctypes, mmap, os, sys, faulthandler, signal
    import numpy as np
    from penstock.native import Engine
    {before}
    engine = Engine(1)
    path = sys.argv[1]
    open(path, "wb").write(bytes(8192))
    def run(number, should_fail):
        source = engine.file(path, 0, 8, 1000, mapped=True)
        engine.submit(number, [(source, np.arange(8), np.zeros((8, 1000), np.uint8), None, None)])
        try:
            engine.wait(number)
            assert not should_fail
        except OSError:
            assert should_fail
    run(1, False)
    {after}
    os.truncate(path, 0)
    run(2, True)
    print("survived", flush=True)
    with open(path, "r+b") as file:
        os.truncate(path, 4096)
        page = mmap.mmap(file.fileno(), 4096)
        os.truncate(path, 0)
        page[0]  # a fault that is not the engine's
    print("unreachable")
"""


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.skipif("native" not in ENGINES, reason="the extension is not built")
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "", ""),
        ("faulthandler.enable()", "", "Fatal Python error: Bus error"),
        ("", "faulthandler.enable()", "Fatal Python error: Bus error"),
        ("faulthandler.enable()", "faulthandler.disable(); faulthandler.enable()", "Fatal Python error: Bus error"),
        ("", "signal.signal(signal.SIGBUS, signal.SIG_DFL)", ""),
        ("", "signal.signal(signal.SIGBUS, signal.SIG_IGN)", ""),
    ],
)
def test_other_faults_go_to_the_handler_that_was_there(before, after, message, tmp_path):
    script = textwrap.dedent(FOREIGN_FAULT).format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout == "survived\n"
    assert done.returncode == -signal.SIGBUS
    assert message in done.stderr
    assert done.stderr.count("Fatal Python error") == (1 if message else 0)


def test_pytest_has_its_fault_handler():
    assert faulthandler.is_enabled()


@pytest.mark.parametrize("implementation", MODULES)
def test_parts_of_a_file_are_read_up_to_the_first_that_cannot_be(implementation, tmp_path):
    read = MODULES[implementation].read_parts
    content = np.random.default_rng(0).integers(0, 255, 5000, np.uint8)
    content.tofile(tmp_path / "file")
    offsets, sizes = np.array([4000, 0, 10, 4990]), np.array([500, 1000, 0, 10])
    starts, memory = np.array([1000, 0, 1000, 1500]), np.zeros(1600, np.uint8)
    with open(tmp_path / "file", "rb", buffering=0) as file:
        assert read(file.fileno(), offsets, memory, starts, sizes)[0] == 4
        assert memory[:1510].tolist() == [*content[:1000], *content[4000:4500], *content[4990:]]
        assert not memory[1510:].any()
        os.truncate(tmp_path / "file", 4100)
        assert read(file.fileno(), offsets[1:], memory, starts[1:], sizes[1:]) == (2, 0, 0)
        assert read(file.fileno(), offsets, memory, starts, sizes) == (0, 100, 0)
    with open(tmp_path / "file", "ab") as file:  # not to be read
        assert read(file.fileno(), offsets, memory, starts, sizes) == (0, 0, errno.EBADF)
    if implementation == "native":
        with pytest.raises(ValueError, match="parts lie outside"):
            read(0, offsets, memory[:1000], starts, sizes)


@pytest.mark.skipif("native" not in THREADED or sys.platform != "linux", reason="NumPy maps no file; /proc is Linux's")
@pytest.mark.parametrize("give_back_nbytes", [0, 1 << 30])
def test_only_random_rows_of_files_that_do_not_stay_mapped_turn_reading_around_off(give_back_nbytes, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    source = Engine.file(str(path), 0, 100, 100, 100, mapped=True, give_back_nbytes=give_back_nbytes)

    def is_random_after(*rows: int) -> bool:
        copy([(source, np.array(rows), np.empty((len(rows), 100), np.uint8), None, None)])
        with open("/proc/self/smaps") as maps:
            return " rr " in maps.read().partition(str(path))[2].partition("VmFlags:")[2].partition("\n")[0] + " "

    assert not is_random_after(3, 4, 5)
    assert is_random_after(5, 90, 3) == bool(give_back_nbytes)
