"""Which workers run a part of a plan. It is a function of facts, options and the machine alone; nothing runs here."""

import logging
import sys
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, final

from penstock.base._errors import ArgumentError, TravelError
from penstock.base._reach import Reach
from penstock.lower._analysis import Analysis
from penstock.run._cpus import usable_cpu_count
from penstock.run._options import LoaderOptions
from penstock.run.executors._registry import EXECUTORS
from penstock.run.pool._interpreter import why_no_interpreter

_log = logging.getLogger("penstock")

HAS_PROCESSES: Final = sys.platform == "linux"
"""Other systems would need another kind of socket, which keeps packets apart and reports its end, and another way to
end workers whose parent was killed. That is neither built nor tried."""
REMOTE_THREAD_COUNT: Final = 8
"""The least number of threads that wait for a server. Waiting takes no CPU, and more than the default number of
batches are then under way. Where requests are made ahead, threads do not wait: on two CPUs 2 of them read shuffled
images 1.2 times as fast as 8, and from the cache on disk twice as fast."""


@final
class Machine(NamedTuple):
    """What a choice depends on beside the plan and the options."""

    cpu_count: int
    no_processes: str
    """Why this program has no worker processes, and what helps; empty if it has them."""

    @classmethod
    def here(cls) -> Self:
        """Looks at this machine."""
        if not HAS_PROCESSES:
            why = f"They run on Linux so far, and this is {sys.platform}. Use executor='threads'."
        else:
            why = why_no_interpreter()
        return cls(usable_cpu_count(), why)


@final
@dataclass(frozen=True)
class Choice:
    """The workers of a part of a plan."""

    executor: str
    worker_count: int
    """0 for `inline`, and where each node of a cluster decides."""
    note: str = ""
    """A remark for the report."""
    warnings: tuple[str, ...] = ()
    """What the log says of it."""
    is_alone: bool = False
    """The one worker process belongs to no pool."""

    def tell(self) -> None:
        """Logs the warnings."""
        for each in self.warnings:
            _log.warning("%s", each)


def choose(facts: Analysis, options: LoaderOptions, machine: Machine, stays: TravelError | None = None) -> Choice:
    """Chooses the workers of a plan.

    `auto` means processes if a user's function may hold the GIL, and threads if such a function cannot travel to
    another process. Without such a function it means threads: the library releases the GIL, and so does a function with
    the attribute `releases_gil = True`. There are as many workers as CPUs; more threads if they wait for a server, and
    one if several would be no faster.

    Args:
        facts: The plan. What its functions draw from is known after `learn`, and counts as nothing before.
        options: The user's.
        machine: Where it runs.
        stays: Why the plan cannot travel to another process; None if it can, or if nobody tried.

    Raises:
        ArgumentError: The executor cannot run this plan.
    """
    name, reach = options.executor, asked_reach(options)
    if name == "inline":
        return Choice("inline", 0)
    if reach == "process" and machine.no_processes:
        raise ArgumentError(f"executor={name!r} cannot run here. {machine.no_processes}")
    count = machine.cpu_count if options.workers == "auto" else options.workers
    note = ""
    warnings: tuple[str, ...] = ()
    if name == "auto":
        name = "processes" if facts.wants_processes and not machine.no_processes else "threads"
        why = stays or (facts.wants_processes and HAS_PROCESSES and machine.no_processes)
        if why:
            note = f"It runs on threads, not on processes: {why}"
            name, warnings = "threads", (note,)
    elif facts.traits.reads_spans and reach == "machine":
        note = "The steps after a stream run on this machine, because its elements lie in memory here."
        name = "threads" if machine.no_processes else "processes"
    if name == "threads":
        return _on_threads(facts, options, count, note, warnings)
    decides_itself = options.workers == "auto" and EXECUTORS[name].reach == "machine"
    return Choice(name, 0 if decides_itself else count, note, warnings)


def asked_reach(options: LoaderOptions) -> Reach | None:
    """The reach of the user's executor; None for `auto` and `inline`."""
    return None if options.executor == "auto" else EXECUTORS[options.executor].reach


def _on_threads(facts: Analysis, options: LoaderOptions, count: int, note: str, warnings: tuple[str, ...]) -> Choice:
    drawing = next((each for each in facts.functions if each.memo.learned.uses_globals), None)
    if drawing is not None and options.executor != "auto":
        raise ArgumentError(
            f"{drawing.label} at {drawing.where} draws from the global np.random or random, whose state threads would "
            "share in an uncontrolled order. Use random_map(fn), whose fn(element, rng) gets numbers of its own, "
            "or executor='processes', or 'inline'."
        )
    if drawing is not None:
        said = (
            f"It runs inline, without workers, because {drawing.label} draws from the global np.random or random and "
            "cannot go to other processes; random_map() gives it numbers of its own and lets it run on threads. "
        )
        return Choice("inline", 0, said + note, warnings)
    if options.workers == "auto" and facts.waits:
        count = max(count, REMOTE_THREAD_COUNT)
    elif options.workers == "auto" and facts.suits_one_thread:
        count = 1
    drawing = next((each for each in facts.functions if each.memo.learned.uses_torch), None)
    if drawing is not None:
        warning = (
            f"{drawing.label} at {drawing.where} draws from torch's global generator, which threads share with "
            "each other and with your training: what it draws is another in each run, also after "
            "torch.manual_seed(). executor='processes' gives each worker one of its own."
        )
        note, warnings = f"{note} {warning}".lstrip(), (*warnings, warning)
    return Choice("threads", count, note, warnings)


def choose_reader(
    facts: Analysis, options: LoaderOptions, machine: Machine, stays: TravelError | None = None, *, has_stages: bool
) -> Choice:
    """Chooses where a stream is read: in its own worker process, or on a thread.

    In a process, a generator's Python does not compete with the training's for the GIL. The stream stays on a thread if
    it cannot travel, as an iterator of another library, and if it takes batches of stages.

    Args:
        facts: The stream.
        options: The user's.
        machine: Where it runs.
        stays: Why it cannot travel; None if it can, or if nobody tried.
        has_stages: Workers make parts of it.
    """
    if asked_reach(options) == "thread" or machine.no_processes or has_stages or not facts.travels:
        return Choice("threads", 1)
    if stays is None:
        return Choice("processes", 1, is_alone=True)
    note = f"The stream is read on a thread of this process, not in one of its own: {stays}"
    return Choice("threads", 1, note, (note,))
