"""Runs one contender through the lives of a run, each in a process of its own that ends as its phase says.

The process that drives the lives imports the contender's modules in a fork server once, so that a life starts in
milliseconds with nothing but imported modules. A life writes what it trained on, and its state, to a file when it
saves. What it does after that is lost, as the weights are.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from _resize_compare import Step, Unit
from _resize_jobs import JOBS, Phase

_LIFE_TIMEOUT_S = 120


class NotOfferedError(Exception):
    """A contender has no way to do what is asked; the text is from its documentation, or about it."""


class EndedError(Exception):
    """The epoch of a contender ended before the run."""


@dataclass
class Ranks:
    """The ranks of one life, simulated in one process."""

    parts: Sequence[Callable[[], list[Any]]]
    """What each rank takes in a step: some batches."""
    record: Callable[[Any], list[Unit]]
    """Says what a batch holds; its time does not count."""
    state: Callable[[], Any]
    """What is saved for all ranks; it goes through `pickle`."""


Start = Callable[[str, Phase, Any], Ranks]
"""Starts the ranks of a job as a phase says, at a state or, for None, at the beginning."""


@dataclass
class Contender:
    """One way to feed a run."""

    name: str
    package: str
    """The distribution, whose version is printed; without it, the contender is left out."""
    modules: tuple[str, ...]
    """What is imported once, before the lives."""
    start: Start
    jobs: tuple[str, ...] = tuple(JOBS)
    lacks: str = ""
    """Why it does not run the other jobs."""


@dataclass
class Life:
    """What a life left."""

    steps: list[Step] = field(default_factory=list)
    state: bytes | None = None
    """Pickled, because tensors travel between processes as open files."""
    first_s: float = 0.0
    """From the start of the ranks to the end of the first step."""
    rest_s: float = 0.0
    """For all other steps."""
    error: str = ""
    has_ended: bool = False


@dataclass
class Run:
    """What a contender trained on over all lives."""

    steps: list[Step] = field(default_factory=list)
    refusals: list[tuple[Phase, str]] = field(default_factory=list)
    """Phases that were refused at their start, with the message."""
    worker_deaths: list[str] = field(default_factory=list)
    """What was raised when a worker was killed."""
    state_nbytes: list[int] = field(default_factory=list)
    resumes_s: list[tuple[int, float]] = field(default_factory=list)
    """Workers, and seconds from the start of the ranks, at a state, to the end of the first step."""
    stopped: str = ""
    """Why it could not go on, if it could not."""
    life_count: int = 0


def run_lives(contender: Contender, job: str, lives: Sequence[Phase]) -> Run:
    """Runs the lives in turn; a phase that is refused is done as the last accepted one, from the last state."""
    run = Run()
    accepted = JOBS[job].start
    state: bytes | None = None
    for phase in lives:
        life = run_life(contender, job, phase, state)
        if life.error and not life.steps and state is not None:
            run.refusals.append((phase, life.error))
            phase = replace(accepted, steps=phase.steps, extra=phase.extra, ending=_ending(phase, accepted))
            life = run_life(contender, job, phase, state)
        if life.error and phase.ending == "worker" and not life.has_ended:
            run.worker_deaths.append(life.error)
            phase = replace(phase, ending="stop")
            life = run_life(contender, job, phase, state)  # from the last state, as a trainer does
        run.life_count += 1
        if life.error or life.has_ended:
            run.steps += life.steps
            run.stopped = life.error or "the epoch ended"
            break
        run.steps += life.steps
        run.state_nbytes.append(len(life.state or b""))
        if state is not None:
            run.resumes_s.append((phase.workers, life.first_s))
        accepted, state = phase, life.state
    return run


def _ending(wanted: Phase, accepted: Phase) -> str:
    return "stop" if wanted.ending == "worker" and not accepted.workers else wanted.ending


def run_life(contender: Contender, job: str, phase: Phase, state: bytes | None) -> Life:
    """Runs one life in a process of its own, and returns what it left when it saved."""
    context = multiprocessing.get_context("forkserver")
    multiprocessing.set_forkserver_preload(["_resize_all", *contender.modules])
    path = Path(os.environ["PENSTOCK_RESIZE_DIR"], "life")
    path.unlink(missing_ok=True)
    process = context.Process(target=_live, args=(contender.name, job, phase, state, str(path)))
    process.start()
    process.join(_LIFE_TIMEOUT_S + phase.steps)  # a slow loader makes a step a second
    late = process.is_alive()
    _end(process)
    if not path.exists():
        return Life(error="it did not end in time" if late else f"died with {process.exitcode}")
    life: Life = pickle.loads(path.read_bytes())
    return life


def _end(process: BaseProcess) -> None:
    """Ends the process and all that it started, which is its session."""
    assert process.pid
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _live(name: str, job: str, phase: Phase, state: bytes | None, path: str) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # Linux's own with Python 3.11, in place of the fork server's
    with open(path + ".log", "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    from _resize_all import CONTENDERS

    life, ranks = Life(), None
    began_s = time.perf_counter()
    try:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        ranks = CONTENDERS[name].start(job, phase, pickle.loads(state) if state else None)
        for number in range(phase.steps):
            if number == 1 and phase.ending == "worker":
                _kill_a_worker()
            batches = [batch for part in ranks.parts for batch in part()]
            took_s = time.perf_counter() - began_s
            if number:
                life.rest_s += took_s
            else:
                life.first_s = took_s
            life.steps.append([unit for batch in batches for unit in ranks.record(batch)])
            began_s = time.perf_counter()
        life.state = pickle.dumps(ranks.state())
    except (EndedError, StopIteration):
        life.has_ended = True
    except Exception as error:  # what it says is a result
        life.error = f"{type(error).__name__}: {error}"
    unfinished = Path(path + ".part")
    unfinished.write_bytes(pickle.dumps(life))
    unfinished.rename(path)
    if ranks is not None and not life.error and not life.has_ended:
        _go_on(ranks, phase)
    os._exit(0)


def _go_on(ranks: Ranks, phase: Phase) -> None:
    """Makes steps that no state has, and ends hard."""
    with contextlib.suppress(Exception):
        for _ in range(phase.extra - (phase.ending == "rank")):
            for part in ranks.parts:
                part()
        if phase.ending == "rank":
            for part in ranks.parts[: (len(ranks.parts) + 1) // 2]:
                part()
            os.kill(os.getpid(), signal.SIGKILL)


def _kill_a_worker() -> None:
    """Kills the newest descendant that has none itself, which is a worker and no fork server, if there is one."""
    if pid := max((pid for pid in _descendants(os.getpid()) if not _children(pid)), default=0):
        os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found
