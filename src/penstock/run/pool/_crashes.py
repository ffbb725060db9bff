"""Crash attribution: which unit a worker died of, when that is an error, and the words for it."""

from typing import Final

from penstock.base._errors import DeadlineError, WorkerError
from penstock.run._dispatcher import CRASH_LIMIT, Job
from penstock.run.pool._process import WorkerProcess
from penstock.run.pool._tasks import PoolTask

HANG_LIMIT: Final = 2
"""As `CRASH_LIMIT`, for workers that stood still on a unit for `timeout_s` each."""


def attribute(worker: WorkerProcess, job: Job[PoolTask], status: tuple[int, int, int]) -> Exception | None:
    """Counts a unit that a worker did not survive.

    Args:
        worker: The worker, reaped.
        job: The unit that it held.
        status: Where in the unit it was: see `WorkerStatus`.

    Returns:
        An error if the unit reached a limit; None if another worker does it again.
    """
    if job.unit.generation <= job.task.header[0]:
        return None  # given up: workers skip it
    at = job.task.receiver.describe(job.unit, status)
    if worker.asked_at:
        job.hang_count += 1
        text = f"{worker} did not get on for timeout_s={job.task.timeout_s:g} s with {at}. It {worker.standstill}"
        if job.hang_count >= HANG_LIMIT:
            return DeadlineError(
                f"{text} It was killed, the second worker in a row that did not get on there. If that is how long it "
                "takes, raise timeout_s."
            )
    else:
        job.crash_count += 1
        text = f"{worker} {worker.ending} while it was at {at}."
        if job.crash_count >= CRASH_LIMIT:
            return WorkerError(
                f"{text} It was the third worker in a row that ended there. {worker.likely_cause()} "
                "executor='inline' runs it in this process, under a debugger if you like."
            )
    job.task.notes.add(f"{text} A new worker does its work again.")
    return None


def note_idle_crash(worker: WorkerProcess, task: PoolTask) -> None:
    """Notes the end of a worker that had no unit, in the report of a loader whose units it could have had."""
    if worker.asked_at:
        text = f"{worker} took no work for timeout_s={task.timeout_s:g} s. It {worker.standstill}"
    else:
        text = f"{worker} {worker.ending} while it waited for work."
    task.notes.add(f"{text} A new worker takes its place.")
