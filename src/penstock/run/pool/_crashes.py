"""Whose fault the end of a worker was, and what is said of it."""

from typing import Final

from penstock.base._errors import DeadlineError, WorkerError
from penstock.run.pool._child import Child
from penstock.run.pool._client import Job, Plan

DEATH_COUNT: Final = 3
"""How many workers a unit may cost before it is an error: one may have been somebody else's doing."""
HANG_COUNT: Final = 2
"""How many workers may stand still on a unit for `timeout_s` each."""


def blame(child: Child, job: Job, trace: tuple[int, int, int]) -> Exception | None:
    """Counts a unit that a worker did not survive.

    Args:
        child: The worker, reaped.
        job: What it was at.
        trace: Where in it: see `WorkerStatus`.

    Returns:
        An error if it was one too many; None if the unit is to be done again.
    """
    if job.unit.generation <= job.plan.words[0]:
        return None  # given up: whoever gets it does not run it
    at = job.plan.receiver.describe(job.unit, trace)
    if child.asked_at:
        job.hangs += 1
        text = f"{child} did not get on for timeout_s={job.plan.timeout_s:g} s with {at}. It {child.standstill}"
        if job.hangs >= HANG_COUNT:
            return DeadlineError(
                f"{text} It was killed, the second worker in a row that did not get on there. If that is how long it "
                "takes, raise timeout_s."
            )
    else:
        job.deaths += 1
        text = f"{child} {child.ending} while it was at {at}."
        if job.deaths >= DEATH_COUNT:
            return WorkerError(
                f"{text} It was the third worker in a row that ended there. {child.likely_cause()} "
                "executor='inline' runs it in this process, under a debugger if you like."
            )
    job.plan.note(f"{text} A new worker does its work again.", is_warning=True)
    return None


def note_idle(child: Child, plan: Plan) -> None:
    """Notes the end of a worker that had no unit, for the report of a loader whose units it could have had."""
    if child.asked_at:
        text = f"{child} took no work for timeout_s={plan.timeout_s:g} s. It {child.standstill}"
    else:
        text = f"{child} {child.ending} while it waited for work."
    plan.note(f"{text} A new worker takes its place.", is_warning=True)
