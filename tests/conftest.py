"""Hypothesis profiles and common fixtures: a fresh interpreter, shared workers, a check that nothing is left behind."""

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.leftovers import children, not_of_others, shared_names
from tests.turns import Turns
from tests.waits import DEADLINE_S, PROGRAM_S

# Read by Keras when it is first imported; without it, the user's own ~/.keras would decide what is tested.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# TensorFlow's notes about its build are no part of what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A window would wait until a user closes it.
os.environ.setdefault("MPLBACKEND", "agg")
# A shell without job control has what it starts in the background ignore Ctrl-C, and Python leaves it at that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

# No deadlines: a busy machine is not a bug. Limits on time are tests of their own, marked `limits`. How many examples
# are drawn in vain is chance.
_IN_VAIN = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_COMMON = {"deadline": None, "suppress_health_check": _IN_VAIN}
settings.register_profile("dev", max_examples=25, **_COMMON)
# On CI, the same examples every time: what chance finds is found while somebody develops.
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

FRAMEWORKS = frozenset({"jax", "keras", "tensorflow", "torch"})
# As `filterwarnings` in pyproject.toml: what Keras says when it saves a model is Keras's to mend.
WARNINGS = ("-W", "error", "-W", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freezes collected tests, which stay until the end, so that no garbage collection visits them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# The first word of `-m`, and the markers that a file with such tests has.
_MARKERS = {
    "framework": ("framework", "keras"),
    "keras": ("keras",),
    "(faults": ("faults", "slow"),
    "cluster": ("cluster",),
    "limits": ("limits",),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without a marker of the set, because importing and collecting all takes seconds."""
    markers = _MARKERS.get(config.option.markexpr.partition(" ")[0])
    if markers is None or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if any(f"mark.{marker}" in text for marker in markers) else True


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("keras"):
            item.add_marker("framework")
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Long tests come first, or the set would wait for them at its end; tests that share what takes long to start are
    neighbours, so that it starts once."""
    if item.get_closest_marker("long"):
        return 0
    if "turns" in getattr(item, "fixturenames", ()):
        return 1
    return 3 if _shares_workers(item) else 2


@pytest.fixture(autouse=True)
def _fast_tests_import_no_framework(request: pytest.FixtureRequest) -> Iterator[None]:
    before = FRAMEWORKS & sys.modules.keys()
    yield
    added = (FRAMEWORKS & sys.modules.keys()) - before
    if added and not request.node.get_closest_marker("framework"):
        pytest.fail(f"{request.node.nodeid} imported {sorted(added)}; mark it `framework` or `keras`.")


@pytest.fixture
def fresh_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script, as text or as a path, in an interpreter of its own, with warnings as errors.

    `fresh_python(script, *arguments, timeout_s=PROGRAM_S, env={}, prefix=[])` returns the completed process, its output
    as text; `env` is added to ours, and `prefix` is a command that starts the interpreter. One that takes longer is
    aborted; the failure holds every thread's stack.
    """

    def run(
        script: str | Path,
        *arguments: str,
        timeout_s: float = PROGRAM_S,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        source = [str(script)] if isinstance(script, Path) else ["-c", script]
        process = subprocess.Popen(
            [*prefix, sys.executable, *WARNINGS, "-X", "faulthandler", *source, *arguments],
            env=os.environ | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # and so a group of processes
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:
            process.send_signal(signal.SIGABRT)  # which faulthandler answers with the stacks
            process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started has the pipes, too
            out, err = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            pytest.fail(f"The script still ran after {timeout_s} s.\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


_TURNS = Turns(WARNINGS)


@pytest.fixture
def turns() -> Turns:
    """An interpreter that runs scripts in turn, for those that need none of their own. See `tests/turns.py`.

    Consecutive tests with this fixture share it. It ends before any other test, which may count child processes.
    """
    return _TURNS


class _SharedWorkers:
    """Worker processes that stay from test to test, because they take longer to start than most tests to run."""

    def __init__(self) -> None:
        self._loaders = contextlib.ExitStack()
        self._count = 0

    def keep(self, count: int) -> None:
        """Ensures that this number of workers is there, so that loaders start none of their own."""
        import penstock as ps

        if count != self._count:
            self.close()
            loader = self._loaders.enter_context(ps.range(8).loader(executor="processes", workers=count))
            next(iter(loader))
            self._count = count

    def processes(self) -> set[int]:
        """Those that are there now, if they are as many: one that was killed is replaced.

        A loader that is closed kills a worker that is at its unit a second later, which a busy machine may make true.
        """
        if not self._count:
            return set()
        from penstock.run.pool._pool import registry

        found = {process for pool in registry._entries.values() for process in pool.pids()}
        return found if len(found) <= self._count else set()

    def close(self) -> None:
        self._count = 0
        self._loaders.close()


_SHARED_WORKERS = _SharedWorkers()
_SHARE_WORKERS = frozenset({"workers_stay", "auto_workers_stay"})


def _shares_workers(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    is_slow = item.get_closest_marker("slow") is not None
    return not _SHARE_WORKERS.isdisjoint(names) or (is_slow and "slow_tests_share_workers" in names)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _shares_workers(item):
        _SHARED_WORKERS.close()
    if "turns" in getattr(item, "fixturenames", ()):
        _TURNS.start()  # before `leaves_nothing_behind` looks at what is there
    else:
        _TURNS.close()


def pytest_sessionfinish() -> None:
    _SHARED_WORKERS.close()
    _TURNS.close()


@pytest.fixture
def workers_stay() -> None:
    """Two worker processes, which consecutive tests with this fixture share. They end before any other test.

    A loader with more workers adds to them, which counts as left behind. Name it before `leaves_nothing_behind`.
    """
    _SHARED_WORKERS.keep(2)


@pytest.fixture
def auto_workers_stay() -> None:
    """As `workers_stay`, with as many processes as `workers="auto"` starts."""
    from penstock.run._cpus import usable_cpu_count

    _SHARED_WORKERS.keep(max(2, usable_cpu_count()))


@pytest.fixture
def slow_tests_share_workers(request: pytest.FixtureRequest) -> None:
    """`auto_workers_stay` for slow tests: for modules whose tests on processes are slow ones."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("auto_workers_stay")


@pytest.fixture
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, child process, descriptor, mapping of ours or entry of `/dev/shm`.

    For a whole file: `pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")`. Objects to which the test still
    refers when it returns (a module's global, a fixture of a wider scope) count as left behind.
    """
    gc.collect()
    gc.freeze()  # collections need not look at what is there now: modules, which are a million objects with frameworks
    threads, descriptors, mappings = set(threading.enumerate()), _descriptors(), _mappings()
    processes, shared = children(), shared_names()

    def new_processes() -> set[int]:
        return children() - processes - _SHARED_WORKERS.processes()

    def left() -> dict[str, list[Any]]:
        found = {
            "threads": sorted(thread.name for thread in set(threading.enumerate()) - threads),
            "processes": sorted(new_processes()),
            "descriptors": sorted((_descriptors() - descriptors).elements()),
            "mappings": sorted((_mappings() - mappings).elements()),
            "/dev/shm": sorted(not_of_others(shared_names() - shared)),
        }
        return {kind: those for kind, those in found.items() if those}

    yield
    gc.collect()
    if remaining := left():
        _join(set(threading.enumerate()) - threads, deadline_s=DEADLINE_S)
        _await_end(new_processes(), deadline_s=DEADLINE_S)
        gc.collect()  # what those threads were the last to hold
        remaining = left()
    if remaining:
        gc.unfreeze()
        gc.collect()  # what hangs together with something older
        remaining = left()
    assert not remaining, f"Left behind: {remaining}"


def _join(threads: set[threading.Thread], *, deadline_s: float) -> None:
    """Waits for threads that are ending; one that is not costs the deadline, once."""
    end_s = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))


def _await_end(processes: set[int], *, deadline_s: float) -> None:
    """Waits for processes that are ending; one that is not costs the deadline, once."""
    end_s = time.monotonic() + deadline_s
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process)
            select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
            os.close(descriptor)


def _descriptors() -> Counter[str]:
    """Counts the targets of open descriptors, such as paths; empty without `/proc`."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # the one that listed the directory
            continue
        # The inodes of pipes, sockets and the like say nothing; how many there are does.
        found[target.partition(":[")[0]] += 1
    return found


def _mappings() -> Counter[str]:
    """Counts the address ranges of ring mappings in this process; empty without `/proc`."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return Counter(line.split()[0] for line in lines if "memfd:penstock" in line)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The groups of Parquet files that were decoded so far in this process."""
    from penstock.tables import parquet

    found: list[int] = []
    read_group = parquet.read_group
    monkeypatch.setattr(parquet, "read_group", lambda *what: found.append(what[1]) or read_group(*what))
    return found
