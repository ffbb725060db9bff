"""Every way in which a process with a live loader ends, each in a fresh interpreter."""

import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.native import implementation
from tests.faults.programs import Program

pytestmark = pytest.mark.faults

EXECUTORS = pytest.mark.parametrize("executor", ["threads", "processes"])
STARTS_AND_WAITS = ["while it trains", "while it waits"]

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Program]

PRELUDE = """
import time
began_s = time.monotonic()
import contextlib, os, signal, sys, threading
import numpy as np
import penstock as ps
imports_s = time.monotonic() - began_s

def waits_at(element):
    def wait(x):
        if x == element:
            threading.Event().wait()
        return x
    return wait

def in_a_child():
    # What would wait for a worker of the parent waits for ever, and then an alarm ends the child.
    from penstock import loader as _loader
    from penstock.run import _shutdown
    _loader.CLOSE_WAIT_S = _shutdown.EXIT_WAIT_S = 1e6
    signal.alarm(120)
"""


def on(executor: str, script: str) -> str:
    return script.replace("'threads'", repr(executor))


def clean(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stdout, done.stderr)


LIVE = {
    "iterator alive": "it = iter(ps.range(100).batch(2).loader('threads', workers=3)); batch = next(it)",
    "in the middle of a loop, by sys.exit": """
for batch in ps.range(1000).shuffle(1).map(lambda x: x * 2).batch(2).loader('threads', workers=3):
    sys.exit(0)
""",
    "in a thread that is a daemon": """
def use():
    for batch in ps.range(1).repeat().batch(2).loader('threads'):
        started.set()
started = threading.Event()
threading.Thread(target=use, daemon=True).start()
started.wait()
""",
    "in a cycle with its user": """
class Trainer:
    def __init__(self):
        self.me, self.loader = self, ps.range(100).map(self.double).batch(2).loader('threads')
        self.batches = iter(self.loader)
    def double(self, x):
        return x * 2
next(Trainer().batches)
""",
    "in a module's global that is torn down late": """
sys.modules['keeper'] = keeper = type(sys)('keeper')
keeper.loader = ps.range(100).batch(2).loader('threads')
keeper.batches = iter(keeper.loader)
keeper.batch = next(keeper.batches)
""",
    "with an atexit of the user that drops batches": """
import atexit
loader = ps.range(100).batch(2).loader('threads')
kept = list(loader)
atexit.register(kept.clear)
""",
    "never iterated": "loader = ps.range(100).map(lambda x: x * 2).batch(2).loader('threads')",
    "many": "its = [iter(ps.range(100).batch(2).loader('threads', workers=2)) for _ in range(20)]",
}


CASES = [pytest.param(e, script, id=f"{e}, {name}") for e in ("threads", "processes") for name, script in LIVE.items()]
CASES.append(pytest.param("inline", LIVE["iterator alive"].replace(", workers=3", ""), id="inline, iterator alive"))


def until_it_ends(script: str) -> str:
    """The script, which says last when its last line was done, and how long imports took."""
    said = "print(time.monotonic(), imports_s, flush=True)"
    return f"try:\n{textwrap.indent(script.strip(), '    ')}\nfinally:\n    {said}\n"


def require_quick(said: str) -> None:
    """Asserts that a process ended soon after its last line: in 8 s, or 16 times what imports took.

    They take half a second, and more where other programs have the CPUs. The clock is the same in all processes.
    """
    last_s, imports_s = map(float, said.split())
    assert time.monotonic() - last_s < max(8.0, 16 * imports_s), said


@pytest.mark.parametrize(("executor", "script"), CASES)
def test_exit_with_a_live_loader_is_quiet_and_quick(fresh_python: Run, script: str, executor: str) -> None:
    done = fresh_python(PRELUDE + until_it_ends(on(executor, script)))
    clean(done)
    require_quick(done.stdout)


@EXECUTORS
def test_exit_while_a_worker_is_stuck_in_a_users_function(fresh_python: Run, executor: str) -> None:
    script = """
loader = ps.range(100).map(waits_at(7), element_spec=ps.ArraySpec((), 'int64')).batch(2).loader('threads', workers=2)
it = iter(loader)
print([next(it).tolist() for _ in range(3)], flush=True)
"""
    done = fresh_python(PRELUDE + until_it_ends(on(executor, script)))
    batches, ended = done.stdout.splitlines()
    clean(done)
    require_quick(ended)
    assert batches == "[[0, 1], [2, 3], [4, 5]]"


IN_OPENCV = """
import sys, threading
import cv2
import numpy as np
import penstock as ps
from penstock.run import _shutdown

_shutdown.EXIT_WAIT_S = 0.01
image, began = np.random.default_rng(0).integers(0, 255, (150, 150), np.uint8), threading.Event()

def denoised(x, denoise=cv2.fastNlMeansDenoising, image=image):  # takes the GIL again in a destructor
    began.set()
    denoise(image, None, 10, 7, 31)
    return x

class Late:  # the end of the interpreter takes longer than the call of the worker
    def __del__(self):
        denoised(0), denoised(0), denoised(0)

denoised.releases_gil, sys.late = True, Late()
loader = ps.range(10).map(denoised, element_spec=ps.ArraySpec((), "int64")).batch(2).loader("threads", workers=1)
began.clear()
threading.Thread(target=lambda: next(iter(loader)), daemon=True).start()
assert began.wait(60)
sys.exit(3)
"""


@pytest.mark.skipif(implementation() == "numpy", reason="only C++ can keep such a thread from ending the program")
def test_exit_while_a_worker_is_in_opencv_keeps_the_exit_code(fresh_python: Run) -> None:
    result = fresh_python(IN_OPENCV)
    assert (result.returncode, result.stderr) == (3, "")


def test_a_process_ends_after_a_deadline_error(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
spec = ps.ArraySpec((), 'int64')
with ps.range(100).map(waits_at(3), element_spec=spec).batch(1).loader('threads', workers=1, timeout_s=1.0) as loader:
    for batch in loader:
        pass
""",
    )
    assert done.returncode == 1
    assert "DeadlineError: No worker got on for timeout_s=1 s, while batch 3 of epoch 0 was waited for" in done.stderr
    assert "in wait" in done.stderr


def test_batches_that_live_to_the_end_are_no_trouble(fresh_python: Run) -> None:
    clean(
        fresh_python(
            PRELUDE
            + """
loader = ps.from_arrays(np.arange(100.0)).batch(5).loader('threads')
kept = list(loader)
loader.close()
del loader
sys.modules['keeper'] = type(sys)('keeper')
sys.modules['keeper'].kept = kept
"""
        )
    )


# Signals.

TRAINS = (
    PRELUDE
    + """
loader = ps.from_arrays(np.zeros((64, 1000))).shuffle(1).map(lambda x: x * 2).batch(8).loader('threads', workers=2)
next(iter(loader))
print('ready', flush=True)
while True:
    for batch in loader:
        pass
"""
)
WAITS = (
    PRELUDE
    + """
spec = ps.ArraySpec((), 'int64')
it = iter(ps.range(100).map(waits_at(1), element_spec=spec).batch(1).loader('threads', workers=2))
next(it)
print('ready', flush=True)
next(it)
"""
)


@pytest.mark.parametrize(
    ("executor", "to_group"),
    [("threads", False), ("processes", False), ("processes", True)],
    ids=["threads", "processes", "processes, its whole group"],
)
@pytest.mark.parametrize("script", [TRAINS, WAITS], ids=STARTS_AND_WAITS)
def test_ctrl_c_ends_a_process_at_once(start: Start, script: str, to_group: bool, executor: str) -> None:
    status, err = start(on(executor, script)).end(signal.SIGINT, to_group=to_group)
    assert status == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1, err


@pytest.mark.parametrize(
    ("executor", "number"),
    [("threads", signal.SIGKILL), *(("processes", each) for each in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP))],
)
@pytest.mark.parametrize("script", [TRAINS, WAITS], ids=STARTS_AND_WAITS)
def test_a_signal_that_kills_leaves_nothing(start: Start, script: str, number: int, executor: str) -> None:
    program = start(on(executor, script))
    assert len(program.workers()) == 2 * (executor == "processes")
    status, err = program.end(number)
    assert status == -number
    assert err == ""


def test_a_loader_goes_on_after_ctrl_c(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
spec = ps.ArraySpec((), 'int64')
gate = threading.Event()
loader = ps.range(6).map(lambda x: gate.wait() and x if x == 2 else x, element_spec=spec).batch(1).loader('threads')
it = iter(loader)
got = [next(it).tolist() for _ in range(2)]
timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
try:
    timer.start()
    next(it)
except KeyboardInterrupt:
    got.append('interrupted')
gate.set()
print(got + [batch.tolist() for batch in it], loader.get_state()['epoch'])
""",
    )
    clean(done)
    assert done.stdout == "[[0], [1], 'interrupted', [2], [3], [4], [5]] 1\n"


def test_a_loader_on_processes_goes_on_after_ctrl_c(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
from penstock.sources.arrays import RangeSource
from penstock.testing import GatedSource
source = GatedSource(RangeSource(6), closed={2})
loader = ps.from_source(source).batch(1).loader('processes', workers=1)
it = iter(loader)
got = [next(it).tolist() for _ in range(2)]
def interrupt():
    source.wait_for_reads({2})
    os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt)
try:
    thread.start()
    next(it)
except KeyboardInterrupt:
    got.append('interrupted')
thread.join()
source.open_gate()
print(got + [batch.tolist() for batch in it], loader.get_state()['epoch'])
""",
    )
    clean(done)
    assert done.stdout == "[[0], [1], 'interrupted', [2], [3], [4], [5]] 1\n"


# Fork.


@pytest.mark.parametrize("executor", ["threads", "inline", "processes"])
def test_a_forked_child_is_told_and_the_parent_goes_on(fresh_python: Run, executor: str) -> None:
    done = fresh_python(
        PRELUDE
        + f"""
loader = ps.range(400).map(lambda x: x + 0).batch(2).loader('{executor}')
it = iter(loader)
batch = next(it)
state = loader.get_state()
calls = [lambda: next(it), lambda: iter(loader), lambda: loader.set_state(state)]
for number in range(30):  # at some fork a worker holds the lock
    child = os.fork()
    if child == 0:
        in_a_child()
        try:
            calls[number % 3]()
        except ps.LoaderError as error:
            os._exit(0 if 'made in another process' in str(error) else 3)
        os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    next(it)
child = os.fork()
if child == 0:
    in_a_child()
    print(loader.get_state()['position'], batch.tolist(), flush=True)
    del it, batch
    loader.close()
    del loader
    sys.exit(0)  # the ordinary end, with all that runs at exit
assert os.waitpid(child, 0)[1] == 0
print(len(list(it)), len(list(loader)))
""",
    )
    clean(done)
    assert done.stdout == "31 [0, 1]\n169 200\n"


@pytest.mark.parametrize("protocol", ["http", "web"])
def test_a_forked_child_reads_urls_or_says_why_not(fresh_python: Run, protocol: str) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("fsspec")
    done = fresh_python(
        PRELUDE
        + f"""
import fsspec, io
from tests.servers import WebFileSystem, serving
fsspec.register_implementation('web', WebFileSystem)
file = io.BytesIO()
np.save(file, np.arange(20).reshape(10, 2))
with serving() as server:
    server.files['a.npy'] = file.getvalue()
    ds = ps.from_npy(f'{protocol}://{{server.address}}/a.npy')
    print(ds[3].tolist(), flush=True)
    child = os.fork()
    if child == 0:
        in_a_child()
        try:
            print(ds[4].tolist(), flush=True)
        except ps.SourceError as error:
            print(str(error).partition(': ')[2].partition(',')[0], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(ds[5].tolist())
""",
    )
    clean(done)
    in_child = "[8, 9]" if protocol == "web" else "this process is a child of fork()"
    assert done.stdout == f"[6, 7]\n{in_child}\n[10, 11]\n"


def test_a_child_that_is_forked_while_another_thread_starts_the_loader_is_told(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
from penstock import loader as _loader

inside, gate, start = threading.Event(), threading.Event(), _loader.start

def slow_start(arrangement):
    inside.set()
    gate.wait()
    return start(arrangement)

_loader.start = slow_start
loader = ps.range(4).loader('threads')
found = []
thread = threading.Thread(target=lambda: found.extend(loader), daemon=True)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    in_a_child()
    for call in (lambda: iter(loader), lambda: loader.set_state(loader.get_state())):
        try:
            call()
        except ps.LoaderError as error:
            print('made in another process' in str(error), flush=True)
    loader.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
thread.join()
print(found == [0, 1, 2, 3])
loader.close()
""",
    )
    clean(done)
    assert done.stdout == "True\nTrue\nTrue\n"


def test_a_loader_that_nobody_has_started_can_be_iterated_by_a_forked_child(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
loader = ps.range(4).loader('threads')
child = os.fork()
if child == 0:
    in_a_child()
    print([[int(x) for x in loader] for _ in range(2)], flush=True)
    loader.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print([int(x) for x in loader])
loader.close()
""",
    )
    clean(done)
    assert done.stdout == "[[0, 1, 2, 3], [0, 1, 2, 3]]\n[0, 1, 2, 3]\n"


def test_a_child_that_is_forked_while_another_thread_packs_a_plan_can_pack_one(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
class Slow:
    def __reduce__(self):
        inside.set()
        gate.wait()
        return int, ()

inside, gate, slow = threading.Event(), threading.Event(), Slow()

def packs():
    ps.range(4).map(lambda x: (x, slow)[0]).loader('processes', workers=1).close()

thread = threading.Thread(target=packs, daemon=True)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    in_a_child()
    with ps.range(4).map(lambda x: x + 1).loader('processes', workers=1) as loader:
        print([int(x) for x in loader], flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
thread.join()
""",
    )
    clean(done)
    assert done.stdout == "[1, 2, 3, 4]\n"


def test_a_forked_child_closes_no_generator_that_is_being_read_in_the_parent(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
inside, gate, parent = threading.Event(), threading.Event(), os.getpid()

def numbers():
    try:
        yield from range(6)
        inside.set()
        gate.wait()
    finally:
        if os.getpid() != parent:
            print('this is for the parent', flush=True)

loader = ps.from_generator(numbers, element_spec=ps.ArraySpec((), 'int64')).batch(4).loader('threads')
it = iter(loader)
next(it)
inside.wait()
child = os.fork()
if child == 0:
    in_a_child()
    loader.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
print([batch.tolist() for batch in it])
loader.close()
""",
    )
    clean(done)
    assert done.stdout == "[[4, 5]]\n"


@EXECUTORS
def test_a_loader_made_in_a_forked_child_works(fresh_python: Run, executor: str) -> None:
    done = fresh_python(
        PRELUDE
        + on(
            executor,
            """
dataset = ps.range(100).shuffle(1).map(lambda x: x + 0).batch(10)
mine = dataset.loader('threads')
want = [batch.tolist() for batch in mine]
never_run, never_wanted = dataset.loader('threads'), dataset.loader('threads')
child = os.fork()
if child == 0:
    in_a_child()
    never_wanted.close()
    assert [batch.tolist() for batch in never_run] == want
    with dataset.loader('threads') as loader:
        assert [batch.tolist() for batch in loader] == want
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(list(mine)))
""",
        ),
    )
    clean(done)
    assert done.stdout == "10\n"


@EXECUTORS
def test_a_batch_in_a_forked_childs_hands_does_not_change(fresh_python: Run, executor: str) -> None:
    done = fresh_python(
        PRELUDE
        + on(
            executor,
            """
loader = ps.from_arrays(np.arange(4000.0)).shuffle(1).batch(4).loader('threads')
it = iter(loader)
next(it)
batch = next(it)
want = batch.copy()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    in_a_child()
    os.read(reader, 1)
    os._exit(0 if (batch == want).all() else 5)
while loader._delivery.ring.free:
    time.sleep(0.001)
del batch  # the parent uses the slot again, the only one that is free
for each in it:
    pass
os.write(writer, b'.')
print(os.waitpid(child, 0)[1] >> 8)
""",
        ),
    )
    clean(done)
    assert done.stdout == "0\n"


def test_standard_streams_that_are_closed_are_no_place_for_batches(fresh_python: Run) -> None:
    done = fresh_python(
        PRELUDE
        + """
for descriptor in (0, 1, 2):  # as by `<&- >&- 2>&-`
    os.close(descriptor)
def speak(x):
    for stream in (1, 2):
        os.write(stream, b'what a library in C says')
    return x * 2
numbers = np.arange(2000.0)
loader = ps.from_arrays(numbers).map(speak).batch(100).loader('processes', workers=2)
got = []
for batch in loader:
    os.write(2, b'and in the process of the loader')
    got += batch.tolist()
loader.close()
os._exit(0 if got == (numbers * 2).tolist() else 5)
""",
    )
    assert done.returncode == 0


@pytest.mark.parametrize("path", ["'kept'", None])
def test_standard_streams_that_are_closed_are_no_place_for_a_cache(
    path: str | None, fresh_python: Run, tmp_path: Path
) -> None:
    done = fresh_python(
        PRELUDE
        + f"""
os.chdir({str(tmp_path)!r})
np.save('numbers.npy', np.arange(2000.0))
for descriptor in (0, 1, 2):  # as by `<&- >&- 2>&-`
    os.close(descriptor)
def speak(x):
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it does not look whether anybody listens
            os.write(stream, b'what a library in C says')
    return x * 2
kept = ps.from_npy('numbers.npy').map(speak).cache({path}).batch(100)
with kept.loader('threads') as loader:
    epochs = [np.concatenate([batch.copy() for batch in loader]).tolist() for _ in range(2)]
os._exit(0 if epochs == [(np.arange(2000.0) * 2).tolist()] * 2 else 5)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
