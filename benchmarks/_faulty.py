"""The training process of each fault in `faults`: it does its work, and says in a file how that went.

The work, where nothing else is said: elements of `hold_gil`, 4,000 of them (800 with `--quick`), in batches of 8, on
two worker processes, and a consumer that compares every byte of every batch with what it should be.
"""

import contextlib
import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from _harness import MIB, Array
from _jobs import held, hold_gil, plain_picture
from _memory import PeakMemory, descendants, own_usage, private_nbytes

import penstock as ps

_BATCH_SIZE = 8
_FAULT_BATCH = 50
"""After this batch the consumer does what it does, or is ready for what is done to it."""
_FAULT_ELEMENT = 777
_TIMEOUT_S = 5.0
"""`timeout_s` of the loader in the two faults that are hangs; its default is minutes."""
_GONE_S = 2.0
"""What a dropped loader has to let go of everything."""
_EPOCH_GROWTH_KIB = 4.0
"""One page an epoch: what may be a measurement's noise."""

_Function = Callable[[Any], Array]


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    text: str
    as_promised: bool
    seconds: float


class Work:
    """What a training process knows: its size, where it may write, and how long its consumer waited."""

    def __init__(self, quick: bool, scratch: Path) -> None:
        self.quick = quick
        self.scratch = scratch
        self.element_count = 800 if quick else 4000
        self.longest_wait_s = 0.0

    def ready(self) -> None:
        """Tells whoever waits for it that now is the moment."""
        (self.scratch / "ready").touch()

    def loader(self, function: _Function = hold_gil, *, workers: int = 2, **options: Any) -> Any:
        """Returns the loader of the work."""
        dataset = ps.range(self.element_count).map(function).batch(_BATCH_SIZE)
        return dataset.loader(executor="processes", workers=workers, **options)

    def read(self, batches: Iterable[Array], *, then: Callable[[], None] | None = None, first: int = 0) -> str:
        """Reads an epoch from batch `first` on, calls `then` after some batches; returns what is wrong, or ''."""
        expected = held(np.arange(self.element_count)).reshape(-1, _BATCH_SIZE, 16)
        number, asked_s = first, time.perf_counter()
        try:
            for batch in batches:
                if number > first:  # until the first one, workers start
                    self.longest_wait_s = max(self.longest_wait_s, time.perf_counter() - asked_s)
                if number >= len(expected) or not np.array_equal(batch, expected[number]):
                    return f"batch {number} is wrong"
                number += 1
                if number == _FAULT_BATCH and then is not None:
                    then()
                asked_s = time.perf_counter()
        finally:
            self.longest_wait_s = max(self.longest_wait_s, time.perf_counter() - asked_s)
        return "" if number == len(expected) else f"the epoch ends, {1 - number / len(expected):.0%} lost"

    def survives(self, batches: Iterable[Array], *, then: Callable[[], None] | None = None) -> Outcome:
        """Is the outcome of an epoch that should be as if nothing had happened."""
        wrong = self.read(batches, then=then)
        return Outcome(wrong or "survives, identical", not wrong, self.longest_wait_s)

    def fails(self, batches: Iterable[Array], cause: str) -> Outcome:
        """Is the outcome of an epoch that should end in an error that names the element and has `cause` in it."""
        try:
            wrong = self.read(batches)
        except Exception as error:
            told = "\n".join(_told(error))
            named = str(_FAULT_ELEMENT) in told.replace(",", " ").split() and cause in told
            text = type(error).__name__ + (
                f" names element {_FAULT_ELEMENT}" if named else f" without element or cause: {told}"
            )
            return Outcome(text, named, self.longest_wait_s)
        return Outcome(wrong or "no error", as_promised=False, seconds=self.longest_wait_s)


def _told(error: BaseException | None) -> Iterable[str]:
    """What an error, its notes and its causes say."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        yield from getattr(error, "__notes__", ())
        error = error.__cause__ or error.__context__


def _a_worker() -> int:
    return random.choice(descendants(os.getpid()))


def killed_worker(work: Work) -> Outcome:
    return work.survives(work.loader(), then=lambda: os.kill(_a_worker(), signal.SIGKILL))


def stopped_worker(work: Work) -> Outcome:
    return work.survives(work.loader(timeout_s=_TIMEOUT_S), then=lambda: os.kill(_a_worker(), signal.SIGSTOP))


def _at_fault(fault: Callable[[], object]) -> _Function:
    def function(index: Any) -> Array:
        if index == _FAULT_ELEMENT:
            fault()
        return hold_gil(index)

    return function


def exits(work: Work) -> Outcome:
    return work.fails(work.loader(_at_fault(lambda: os._exit(1))), cause="exit")


def exits_once(work: Work) -> Outcome:
    mark = str(work.scratch / "mark")

    def exit_first() -> None:
        if not os.path.exists(mark):
            open(mark, "x").close()
            os._exit(1)

    return work.survives(work.loader(_at_fault(exit_first)))


def crashes(work: Work) -> Outcome:
    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    return work.fails(work.loader(_at_fault(crash)), cause="signal")


def raises(work: Work) -> Outcome:
    def fail() -> NoReturn:
        raise ValueError("truncated file")

    return work.fails(work.loader(_at_fault(fail)), cause="ValueError: truncated file")


def never_returns(work: Work) -> Outcome:
    def spin() -> None:
        for _ in itertools.count():
            pass

    return work.fails(work.loader(_at_fault(spin), timeout_s=_TIMEOUT_S), cause="spin")


def waits_for_signal(work: Work) -> Outcome:
    """Is interrupted or killed in the middle of an epoch; says something only if it was not."""
    while True:
        work.read(work.loader(), then=work.ready)


def stops_early(work: Work) -> Outcome:
    began_s = time.perf_counter()
    for _ in range(3):
        for _batch in work.loader():
            break
        try:
            for _batch in work.loader():
                raise KeyError("the consumer's own")
        except KeyError:
            pass
    elapsed_s = time.perf_counter() - began_s
    del _batch  # its slot
    deadline_s = time.monotonic() + _GONE_S
    while (threads := threading.active_count() - 1) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return Outcome(f"6 loaders dropped, {threads} threads left", not threads, elapsed_s)


def _pictures(work: Work, picture_count: int) -> Outcome:
    batch_count = (1600 if work.quick else 6400) // picture_count
    dataset = ps.range(batch_count * picture_count).map(plain_picture).batch(picture_count)
    asked_s = time.perf_counter()
    for number, batch in enumerate(dataset.loader(executor="processes", workers=2)):
        if number:
            work.longest_wait_s = max(work.longest_wait_s, time.perf_counter() - asked_s)
        colours = (number * picture_count + np.arange(picture_count)) & 0xFF
        if not (batch == colours.astype(np.uint8)[:, None, None, None]).all():
            return Outcome(f"batch {number} is wrong", False, work.longest_wait_s)
        asked_s = time.perf_counter()
    free_nbytes = os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks
    text = f"ok, {batch.nbytes / 1e6:.1f} MB batches, /dev/shm of {free_nbytes / MIB:.0f} MiB"
    return Outcome(text, free_nbytes < 65 * MIB, work.longest_wait_s)


def little_shm(work: Work) -> Outcome:
    return _pictures(work, 64)


def less_shm(work: Work) -> Outcome:
    return _pictures(work, 256)


def large_capture(work: Work) -> Outcome:
    available_nbytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    table = np.zeros(min(1 << 30, available_nbytes // 8), np.uint8)
    table += 1  # every page is there

    def function(index: Any) -> Array:
        row = hold_gil(index)
        row *= table[int(index) * (len(table) // 4000)]  # a one
        return row

    with PeakMemory() as memory:
        began_s = time.perf_counter()
        batches = iter(work.loader(function))
        first = next(batches)
        first_s = time.perf_counter() - began_s
        wrong = work.read(itertools.chain([first], batches))
        # Pages of shared memory that nobody has mapped are in no process's counters.
        shared_mib = _memory_files_nbytes() / MIB
    extra_mib = memory.peaks_mib()["private+shared MiB"]
    text = (
        f"identical; an array of {table.nbytes / MIB:,.0f} MiB costs {extra_mib:,.0f} MiB in processes and "
        f"{shared_mib:,.0f} MiB in shared files"
    )
    # One copy for all, whose mapped pages count twice here.
    return Outcome(wrong or text, not wrong and extra_mib + shared_mib < 1.5 * table.nbytes / MIB, first_s)


def _memory_files_nbytes() -> int:
    """Returns what the anonymous files that this process has open hold, each counted once."""
    nbytes = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            if os.readlink(link).startswith("/memfd:"):
                nbytes[link.stat().st_ino] = 512 * link.stat().st_blocks
    return sum(nbytes.values())


_SCRIPT = """
import sys
open(sys.argv[1], "a").write("x")
from _faulty import Work
from _jobs import hold_gil
from pathlib import Path

def function(index):
    return hold_gil(index)

work = Work(int(sys.argv[2]), Path())
print(work.read(work.loader(function)))
"""


def no_main_guard(work: Work) -> Outcome:
    script, runs = work.scratch / "train.py", work.scratch / "runs"
    script.write_text(_SCRIPT)
    began_s = time.perf_counter()
    command = [sys.executable, str(script), str(runs), str(int(work.quick))]
    child = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    run_count = len(runs.read_text())
    right = child.returncode == 0 and not child.stdout.strip() and run_count == 1
    text = f"identical, module-level code ran {run_count} time{'s' * (run_count != 1)}"
    said = (child.stdout + child.stderr).strip().splitlines()
    return Outcome(text if right else f"status {child.returncode}: {said[-1:]}", right, time.perf_counter() - began_s)


def local_function(work: Work) -> Outcome:
    nothing = 0
    return work.survives(work.loader(lambda index: hold_gil(index + nothing)))


def global_random(work: Work) -> Outcome:
    def function(index: Any) -> Array:
        return np.random.random(1).view(np.int64)  # noqa: NPY002  # it is the case

    state = np.random.get_state()[1].tolist()  # type: ignore[index, unused-ignore]  # noqa: NPY002
    began_s = time.perf_counter()
    drawn = {}
    for workers in (2, 1):
        with work.loader(function, workers=workers) as loader:
            drawn[workers] = np.concatenate([batch.copy() for _epoch in range(2) for batch in loader])
    elapsed_s = time.perf_counter() - began_s
    facts = {
        "no value twice in two epochs": len(np.unique(drawn[2])) == 2 * work.element_count,
        "the same with 1 worker": np.array_equal(drawn[1], drawn[2]),
        "parent's state untouched": np.random.get_state()[1].tolist() == state,  # type: ignore[index, unused-ignore]  # noqa: NPY002
    }
    text = ", ".join(fact if holds else f"NOT: {fact}" for fact, holds in facts.items())
    return Outcome(text, all(facts.values()), elapsed_s)


def many_epochs(work: Work) -> Outcome:
    epoch_count = 40 if work.quick else 200
    warm_count = epoch_count // 2  # until then allocators and caches grow to what they need
    began_s = time.perf_counter()
    work.element_count = 64
    parent, workers = [], []
    with work.loader() as loader:
        for _ in range(epoch_count):
            if wrong := work.read(loader):
                return Outcome(wrong, False, 0.0)
            parent.append(own_usage().private_shared)
            workers.append(sum(map(private_nbytes, descendants(os.getpid()))))
    growths_kib = [
        float(np.polyfit(np.arange(epoch_count - warm_count), nbytes[warm_count:], 1)[0]) / 1024
        for nbytes in (parent, workers)
    ]
    text = (
        f"parent {growths_kib[0]:.1f} KiB an epoch, its workers {growths_kib[1]:.1f}, in the second half of "
        f"{epoch_count} epochs"
    )
    return Outcome(text, max(growths_kib) < _EPOCH_GROWTH_KIB, time.perf_counter() - began_s)


def other_worker_count(work: Work) -> Outcome:
    with work.loader(workers=2) as loader:
        for _ in itertools.islice(loader, _FAULT_BATCH):
            pass
        saved = json.dumps(loader.get_state())
    with work.loader(workers=3) as loader:
        loader.set_state(json.loads(saved))
        wrong = work.read(loader, first=_FAULT_BATCH)
    return Outcome(wrong or "exact", not wrong, work.longest_wait_s)


def _left(descriptor_count: int) -> tuple[int, int]:
    """Returns how many processes and descriptors there are that were not there before the work."""
    return len(descendants(os.getpid())), len(os.listdir("/proc/self/fd")) - descriptor_count


def live(name: str, quick: bool, scratch: Path) -> None:
    """Is the `main` of a training process: does the work, then says how it went and what it has left."""
    work = Work(quick, scratch)
    descriptor_count = len(os.listdir("/proc/self/fd"))
    outcome: Outcome = globals()[name](work)
    gc.collect()
    deadline_s = time.monotonic() + _GONE_S
    while any(left := _left(descriptor_count)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    report = {
        "text": outcome.text,
        "as_promised": outcome.as_promised,
        "seconds": outcome.seconds,
        "processes": left[0],
        "descriptors": left[1],
    }
    (scratch / "unfinished").write_text(json.dumps(report))
    (scratch / "unfinished").rename(scratch / "report")
