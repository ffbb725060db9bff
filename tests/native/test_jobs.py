"""Jobs from submission to their end: order, checks, deadlines, cancellation, closing, forks and signals."""

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from tests.native.engines import MODULES, THREADED, open_engine
from tests.waits import DEADLINE_S


@pytest.fixture(params=THREADED)
def engine(request):
    with open_engine(request.param, 2) as engine:
        yield engine


def thread_names():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except OSError:  # it has ended
            pass
    return [name for name in names if name.startswith("penstock")]


def test_many_jobs_fill_their_destinations(engine):
    array = np.arange(3_000_000).reshape(1000, 3000)
    source = engine.memory(array)
    rng = np.random.default_rng(0)
    outs, rows = [], []
    for number in range(20):
        rows.append(rng.integers(0, 1000, 100))
        outs.append(np.zeros((100, 3000), array.dtype))
        engine.submit(number, [(source, rows[-1], outs[-1], None, None)])
    for number in reversed(range(20)):
        assert engine.wait(number)
        assert engine.is_done(number)
    for out, row in zip(outs, rows, strict=True):
        np.testing.assert_array_equal(out, array[row])
    assert engine.stats()["nbytes"] == sum(out.nbytes for out in outs)
    assert engine.stats()["jobs"] == 20


def test_rows_may_change_after_submission(engine):
    array = np.arange(1000)
    rows, places, out = np.arange(10), np.arange(10), np.zeros(10, int)
    engine.submit(1, [(engine.memory(array), rows, out, places, None)])
    rows[:], places[:] = 99, 99
    assert engine.wait(1)
    np.testing.assert_array_equal(out, np.arange(10))


def test_sources_and_destinations_live_as_long_as_the_job(engine):
    out = np.zeros((100, 100_000))
    engine.submit(1, [(engine.memory(np.ones((100, 100_000))), np.arange(100), out[:], None, None)])
    gc.collect()
    assert engine.wait(1)
    assert (out == 1).all()


SOURCE = np.arange(20, dtype=np.int32).reshape(10, 2)
ROWS = np.arange(4)
OUT = np.zeros((4, 2), np.int32)


@pytest.mark.parametrize(
    ("copy", "error", "message"),
    [
        ({"rows": np.array([0, 10])}, IndexError, "element 10 is out of range: the array has 10"),
        ({"rows": np.array([0, -1])}, IndexError, "element -1 is out of range: the array has 10"),
        ({"rows": np.array([-(2**63), 2**63 - 1])}, IndexError, "out of range"),
        ({"rows": np.arange(5)}, IndexError, "out of range: the array has 4"),
        ({"rows": np.zeros((2, 2), int)}, ValueError, "one axis"),
        ({"rows": np.arange(4.0)}, TypeError, "int64"),
        ({"rows": np.arange(4, dtype=np.int32)}, TypeError, "int64"),
        ({"rows": np.arange(4, dtype=np.uint64)}, TypeError, "int64"),
        ({"rows": np.arange(4, dtype=">i8")}, TypeError, "int64"),
        ({"rows": [1, 2]}, TypeError, "int64|not 'list'"),
        ({"out_rows": np.array([0, 1, 2, 4])}, IndexError, "destination row 4 is out of range"),
        ({"out_rows": np.array([0, 1, 2, -1])}, IndexError, "destination row -1 is out of range"),
        ({"out_rows": np.arange(3)}, ValueError, "4 rows have 3 destination rows"),
        ({"out": np.zeros((4, 3), np.int32)}, ValueError, "8 bytes, which do not fit rows of 12"),
        ({"out": np.zeros((4, 4), np.int32)[:, ::2]}, ValueError, "contiguous"),
        ({"out": np.zeros((4, 2), object)}, TypeError, "Python objects"),
        ({"out": bytes(32)}, (ValueError, BufferError), "writable|contiguous|read-only"),
        ({"source": SOURCE}, TypeError, "expected a source"),
        ({"conversion": 0x32}, ValueError, "do not fit"),
    ],
)
def test_bad_copies_are_refused_before_a_byte_moves(engine, copy, error, message):
    good = {
        "source": engine.memory(SOURCE, name="the array"),
        "rows": ROWS,
        "out": OUT,
        "out_rows": None,
        "conversion": None,
    }
    with pytest.raises(error, match=message):
        engine.submit(1, [tuple(good.values()), tuple((good | copy).values())])
    assert not OUT.any()
    with pytest.raises(LookupError):
        engine.wait(1)
    engine.submit(1, [])
    assert engine.wait(1)


def test_arrays_of_objects_are_no_sources(engine):
    with pytest.raises(TypeError, match="Python objects"):
        engine.memory(np.array([None, 1], object))
    with pytest.raises(ValueError, match="axes"):
        engine.memory(np.array(3))


def test_numbers_increase_and_are_waited_for_once(engine):
    engine.submit(5, [])
    for number in (5, 4):
        with pytest.raises(ValueError, match="must increase"):
            engine.submit(number, [])
    assert engine.wait(5)
    for number in (5, 4, 6):
        with pytest.raises(LookupError, match="not under way"):
            engine.wait(number)


@pytest.mark.parametrize("count", [0, -1, 257])
@pytest.mark.parametrize("implementation", THREADED)
def test_thread_counts_out_of_range_are_refused(implementation, count):
    with pytest.raises(ValueError, match="1 to 256 threads"):
        THREADED[implementation](count)


def slow_job(engine, number, nbytes=200 << 20):
    """A job of some tens of milliseconds."""
    row = np.zeros((1, 4 << 20), np.uint8)
    out = np.empty((1, 4 << 20), np.uint8)
    engine.submit(number, [(engine.memory(row), np.zeros(1, np.int64), out, None, None)] * (nbytes // row.nbytes))


def test_waits_end_at_their_deadline(engine):
    numbers = iter(range(1, 41))
    for deadline_s in (0, 0.0001):
        for number in itertools.islice(numbers, 20):  # a job may end while this thread waits for a processor
            slow_job(engine, number)
            if not engine.wait(number, deadline_s):
                assert engine.wait(number)
                break
        else:
            pytest.fail(f"No wait of {deadline_s} s ended before its job.")


def test_cancelled_jobs_are_gone_and_nothing_writes_any_more(engine):
    array = np.ones((1000, 10_000), np.uint8)
    source = engine.memory(array)
    out = np.zeros((1000, 10_000), np.uint8)
    for number in range(0, 90, 3):
        for i in range(3):
            engine.submit(number + i, [(source, np.arange(1000), out, None, None)])
        assert engine.cancel(number + 1)
        for i in range(2):
            with pytest.raises(LookupError):
                engine.wait(number + i)
        assert engine.wait(number + 2)
        out[:] = 0  # free again
        time.sleep(0)
        assert not out.any()


def test_waits_for_a_cancelled_job_end(engine):
    slow_job(engine, 1)
    slow_job(engine, 2)

    def wait():
        with contextlib.suppress(LookupError):
            engine.wait(2)

    thread = threading.Thread(target=wait)
    thread.start()
    assert engine.cancel(2)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_nothing_works_after_close_and_close_works_again(engine):
    slow_job(engine, 1)
    assert engine.close()
    assert engine.close(1.0)
    with pytest.raises(ValueError, match="closed"):
        engine.submit(2, [])
    with pytest.raises(LookupError):
        engine.wait(1)


@pytest.mark.faults
@pytest.mark.parametrize("implementation", THREADED)
def test_engines_close_at_any_moment(implementation, tmp_path):
    path = tmp_path / "data"
    array = np.arange(200_000, dtype=np.uint8).reshape(100, 2000)
    array.tofile(path)
    rng = np.random.default_rng(0)
    gc.collect()  # descriptors of earlier tests
    descriptors = len(os.listdir("/proc/self/fd"))
    for moment in range(1000):
        engine = THREADED[implementation](int(rng.integers(1, 4)))
        sources = [engine.memory(array), engine.file(path, 0, 100, 2000, mapped=bool(moment % 2))]
        outs = np.zeros((4, 2, 100, 2000), np.uint8)
        for number, pair in enumerate(outs):
            copies = zip(sources, pair, strict=True)
            engine.submit(number, [(source, np.arange(100), out, None, None) for source, out in copies])
        engine.advise([sources[1]], np.arange(100))
        for _ in range(int(rng.integers(0, 2000))):
            pass
        if moment % 3:
            engine.close()
        del engine, sources, copies
    gc.collect()
    deadline = time.monotonic() + DEADLINE_S
    while thread_names() and time.monotonic() < deadline:
        time.sleep(0.001)  # the kernel lists a thread for a moment after it was joined
    assert thread_names() == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.parametrize("implementation", THREADED)
def test_two_engines_work_side_by_side(implementation):
    array = np.random.default_rng(0).integers(0, 9, (1000, 100))
    with open_engine(implementation, 1) as one, open_engine(implementation, 2) as other:
        source = one.memory(array)  # a source belongs to no engine
        outs = [np.zeros_like(array) for _ in range(2)]
        for number in range(50):
            for engine, out in zip((one, other), outs, strict=True):
                engine.submit(number, [(source, np.arange(1000)[::-1].copy(), out, None, None)])
            for engine, out in zip((other, one), reversed(outs), strict=True):
                assert engine.wait(number)
                np.testing.assert_array_equal(out, array[::-1])


@pytest.mark.parametrize("implementation", THREADED)
def test_many_threads_may_submit_and_wait(implementation):
    array = np.arange(100_000).reshape(1000, 100)
    with open_engine(implementation, 2) as engine:
        source, numbers, lock, wrong = engine.memory(array), iter(range(10_000)), threading.Lock(), []

        def run(seed):
            rng = np.random.default_rng(seed)
            for _ in range(50):
                rows, out = rng.integers(0, 1000, 200), np.zeros((200, 100), int)
                with lock:
                    number = next(numbers)
                    engine.submit(number, [(source, rows, out, None, None)])
                engine.wait(number)
                if not (out == array[rows]).all():
                    wrong.append(number)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("implementation", THREADED)
def test_a_forked_child_leaves_the_engine_alone(implementation):
    script = """
        import os, sys, warnings
        import numpy as np
        from penstock.native import Engine
        warnings.simplefilter("ignore")
        engine = Engine(2)
        array, out = np.ones((100, 50_000)), np.zeros((100, 50_000))
        source = engine.memory(array)
        for i in range(5):
            engine.submit(i, [(source, np.arange(100), out, None, None)])
            child = os.fork()
            if child == 0:
                for call in (lambda: engine.submit(99, []), lambda: engine.wait(0), lambda: engine.cancel(0)):
                    try:
                        call()
                    except RuntimeError:
                        continue
                    os._exit(1)
                assert engine.close()
                del engine, source
                own = Engine(1)
                own.submit(1, [(own.memory(array), np.arange(100), np.zeros((100, 50_000)), None, None)])
                own.wait(1)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert engine.wait(i)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.faults
@pytest.mark.parametrize("implementation", THREADED)
def test_ctrl_c_interrupts_a_wait_at_any_moment(implementation):
    rng, early = np.random.default_rng(0), 0
    with open_engine(implementation, 1) as engine:
        for number in range(100):
            slow_job(engine, number)

            def send(delay_s):
                time.sleep(delay_s)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=send, args=(float(rng.uniform(0, 0.02)),))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012, the signal may come before the wait
                thread.start()
                engine.wait(number)
                thread.join()  # the job was quicker
            thread.join()
            early += not engine.is_done(number)
        assert engine.cancel(number)
    assert early, "each wait lasted as long as its job"


@pytest.mark.slow
def test_an_engine_that_is_forgotten_ends_with_the_program():
    script = """
        import numpy as np
        from penstock.native import Engine
        engine = Engine(2)
        array, out = np.ones((100, 50_000)), np.zeros((100, 50_000))
        for i in range(50):
            engine.submit(i, [(engine.memory(array), np.arange(100), out, None, None)])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_log_says_once_that_the_extension_is_missing(caplog):
    module = MODULES["numpy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PENSTOCK_NATIVE", raising=False)
        patch.setattr(module, "_has_logged", False)
        caplog.clear()
        for _ in range(2):
            assert not module.has_engine()
    assert [record.name for record in caplog.records] == ["penstock"]
    assert "not compiled" in caplog.text


@pytest.mark.slow
def test_the_environment_chooses_numpy():
    done = subprocess.run(
        [sys.executable, "-c", "from penstock import native; print(native.implementation(), native.has_engine())"],
        env=os.environ | {"PENSTOCK_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.stdout, done.stderr) == ("numpy False\n", "")
